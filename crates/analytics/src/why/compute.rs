//! Rule on processors.

use super::{Cause, Finding, View, figures, share, text};
use crate::sample::OperationTotals;

/// Share that computing takes of the time for computing, devices and their queues. At half of it, faster devices would gain less
/// than faster processors.
const COMPUTE_SHARE: f64 = 0.5;
/// Processors that compute on average: below it, none is busy for most of the time.
const BUSY_PROCESSORS: f64 = 0.75;

/// Checksums, compression, encryption and parity take more time than the devices.
pub(super) fn processors(view: &View<'_>) -> Vec<Finding> {
    let mut all = OperationTotals::default();
    // Blocks of a txg are compressed by the pool itself, not within a request of a client.
    view.interval.operations.iter().for_each(|row| all.add(row));
    let compute_ns = all.stage_ns.get("compute");
    let device_ns = all.stage_ns.get("device") + all.stage_ns.get("queue");
    let part = share(compute_ns, compute_ns + device_ns);
    let processors = compute_ns as f64 / (1e9 * view.interval.seconds);
    if part < COMPUTE_SHARE || processors < BUSY_PROCESSORS {
        return Vec::new();
    }
    vec![Finding {
        cause: Cause::Compute,
        subject: view.interval.pool.clone(),
        weight: part,
        figures: figures([
            ("compute_percent", 100.0 * part),
            ("compute_ns", compute_ns as f64),
            ("device_and_queue_ns", device_ns as f64),
        ]),
        sentence: format!(
            "Processors limit: checksums, compression, encryption and parity took {} in {}, with the waiting for processors; devices \
             and their queues took {}.",
            text::seconds(compute_ns as f64 / 1e9),
            view.time(),
            text::seconds(device_ns as f64 / 1e9),
        ),
        advice: "Choose a faster compression (lz4 instead of gzip or zstd-9) and checksum, or more processors.".into(),
    }]
}

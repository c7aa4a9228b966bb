//! Rules on writes: the intent log, the throttle, and the sizes of writes.

use super::{Cause, ENOUGH_REQUESTS, Finding, View, figures, share, text};
use crate::sample::DatasetState;

/// Writes below which the time that they waited says nothing: large writes are few, and each waits long.
const ENOUGH_WAITS: u64 = 10;
/// Share of the time of all requests that is waiting for the log: below a third, a log device would not change much.
const LOG_COMMIT_SHARE: f64 = 0.3;
/// Share of the time of all requests that the throttle takes. It delays some writes of each burst, which is its purpose; a tenth of
/// the time is more than that.
const THROTTLE_SHARE: f64 = 0.1;
/// Records per mean write from which most of a record is rewritten for bytes that no client changed.
const RECORDS_PER_WRITE: u64 = 4;
/// Least size of records that is advised, in bytes: a sector of most disks. Below it, metadata outweighs what is saved.
const LEAST_RECORD_BYTES: u64 = 4096;
/// Bytes of data written to devices per byte that clients wrote, from which records were rewritten: writes in order that fill a
/// record within a txg cost 1, and compression less.
const REWRITTEN: f64 = 2.0;

/// Share of the interval that this time is, 1 at most: requests wait at the same time.
fn time_share(view: &View<'_>, ns: u64) -> f64 {
    (ns as f64 / (1e9 * view.interval.seconds)).min(1.0)
}

/// Writers wait for the intent log, and the pool has no log device.
pub(super) fn sync_writes(view: &View<'_>) -> Vec<Finding> {
    let writes = view.operations(&["write", "flush"]);
    let log_ns = writes.stage_ns.get("log commit") + writes.stage_ns.get("txg sync");
    let part = share(log_ns, view.time_ns());
    let has_log = view.interval.leaves.iter().any(|leaf| leaf.class == "log" && leaf.in_service);
    if has_log || writes.requests < ENOUGH_WAITS || part < LOG_COMMIT_SHARE {
        return Vec::new();
    }
    let log_bytes: u64 =
        view.interval.written.iter().filter(|cause| cause.content == "intent log").map(|cause| cause.bytes).sum();
    let mean_ns = log_ns as f64 / writes.requests as f64;
    let sentence = format!(
        "Sync writes wait for the intent log, and the pool has no log device: this took {} of the time of all requests in {}, {} \
         for each of {} writes and flushes on average; {} were written for the log to the devices that hold the data.",
        text::percent(part),
        view.time(),
        text::time(mean_ns),
        writes.requests,
        text::bytes(log_bytes),
    );
    vec![Finding {
        cause: Cause::SyncWritesWithoutLogDevice,
        subject: view.interval.pool.clone(),
        weight: part * time_share(view, log_ns),
        figures: figures([
            ("log_commit_percent", 100.0 * part),
            ("writes_and_flushes", writes.requests as f64),
            ("mean_log_commit_ns", mean_ns),
            ("log_bytes", log_bytes as f64),
        ]),
        sentence,
        advice: format!(
            "Add a fast device with power-loss protection as log: zpool add {} log DEVICE. sync=disabled is no remedy: it loses \
             acknowledged writes at a power failure.",
            view.interval.pool
        ),
    }]
}

/// The throttle delays writes.
pub(super) fn throttle(view: &View<'_>) -> Vec<Finding> {
    let writes = view.operations(&["write"]);
    let throttle_ns = writes.stage_ns.get("throttle");
    let part = share(throttle_ns, view.time_ns());
    if writes.requests < ENOUGH_WAITS || part < THROTTLE_SHARE {
        return Vec::new();
    }
    let txg = view.interval.txg;
    let device_bytes: u64 = view.interval.written.iter().map(|cause| cause.bytes).sum();
    let sentence = format!(
        "Clients write faster than the devices: the write throttle delays {} writes, {} of the time of all requests in {}. \
         Clients wrote {}/s and the devices {}/s; {} of at most {} are dirty now.",
        writes.requests,
        text::percent(part),
        view.time(),
        text::bytes(view.interval.rate(writes.written_bytes) as u64),
        text::bytes(view.interval.rate(device_bytes) as u64),
        text::bytes(txg.dirty_bytes),
        text::bytes(txg.dirty_max_bytes),
    );
    vec![Finding {
        cause: Cause::Throttle,
        subject: view.interval.pool.clone(),
        weight: part * time_share(view, throttle_ns),
        figures: figures([
            ("throttle_percent", 100.0 * part),
            ("writes", writes.requests as f64),
            ("written_bytes", writes.written_bytes as f64),
            ("device_bytes", device_bytes as f64),
            ("dirty_bytes", txg.dirty_bytes as f64),
            ("dirty_max_bytes", txg.dirty_max_bytes as f64),
        ]),
        sentence,
        advice: "More vdevs, faster devices, or fewer bytes for each written one (compression, record size) raise the rate; more \
                 memory for dirty data only delays the throttle."
            .into(),
    }]
}

/// Writes are much smaller than the records that they change.
pub(super) fn small_writes(view: &View<'_>) -> Vec<Finding> {
    let mut out = Vec::new();
    for dataset in view.interval.datasets.iter().filter(|dataset| dataset.record_bytes > 0) {
        let rows = || view.clients.iter().filter(|row| row.objset == dataset.objset);
        let writes: u64 = rows().map(|row| row.writes).sum();
        let written: u64 = rows().map(|row| row.written_bytes).sum();
        let data: u64 = rows().map(|row| row.data_bytes).sum();
        if writes < ENOUGH_REQUESTS || written == 0 {
            continue;
        }
        let mean = written / writes;
        let rewritten = data as f64 / written as f64;
        if mean > dataset.record_bytes / RECORDS_PER_WRITE || rewritten < REWRITTEN {
            continue;
        }
        let sentence = format!(
            "{}: writes are smaller than the records that they change: {writes} writes of {} on average into records of {} in {}. For \
             each byte that clients wrote, {rewritten:.1} bytes of data were written to the devices, before copies and parity.",
            dataset.name,
            text::bytes(mean),
            text::bytes(dataset.record_bytes),
            view.time(),
        );
        out.push(Finding {
            cause: Cause::SmallWrites,
            subject: dataset.name.clone(),
            weight: 1.0 - 1.0 / rewritten,
            figures: figures([
                ("writes", writes as f64),
                ("mean_write_bytes", mean as f64),
                ("record_bytes", dataset.record_bytes as f64),
                ("data_bytes_per_written_byte", rewritten),
            ]),
            sentence,
            advice: smaller_records(dataset, mean),
        });
    }
    out
}

/// Advice that makes the records of a dataset as small as writes of this size.
fn smaller_records(dataset: &DatasetState, mean_bytes: u64) -> String {
    let size = mean_bytes.max(1).next_power_of_two().max(LEAST_RECORD_BYTES).min(dataset.record_bytes);
    if dataset.is_volume {
        let size = text::bytes(size);
        return format!(
            "A volume keeps its volblocksize: create one with -o volblocksize={size} and copy the data to it."
        );
    }
    format!(
        "zfs set recordsize={} {} applies to new files: write the files again after it.",
        text::bytes(size),
        dataset.name
    )
}

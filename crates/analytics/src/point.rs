//! Values of all series of the history at a time.

use crate::host::InterfaceTotals;
use crate::interval::{Interval, quantile_ns};
use crate::latency::LatencyCounts;
use weir_machine::Stage;

/// Number of series.
pub(crate) const COUNT: usize = 55;

/// Names and units of the values of a [`Point`], in their order. Of the latencies, a point of a coarser resolution has the
/// maximum, of all others the mean.
pub const SERIES: [(&str, &str); COUNT] = [
    ("requests", "1/s"),
    ("read", "bytes/s"),
    ("read.arc_demand", "bytes/s"),
    ("read.arc_prefetched", "bytes/s"),
    ("read.l2arc", "bytes/s"),
    ("read.intent_log", "bytes/s"),
    ("read.disk", "bytes/s"),
    ("read.holes", "bytes/s"),
    ("read.dirty_data", "bytes/s"),
    ("written", "bytes/s"),
    ("read_latency.p50", "s"),
    ("read_latency.p99", "s"),
    ("write_latency.p50", "s"),
    ("write_latency.p99", "s"),
    ("devices.read", "bytes/s"),
    ("devices.written", "bytes/s"),
    ("devices.written.data", "bytes/s"),
    ("devices.written.metadata", "bytes/s"),
    ("devices.written.intent_log", "bytes/s"),
    ("devices.written.labels", "bytes/s"),
    ("devices.written.repair", "bytes/s"),
    ("devices.written.removal", "bytes/s"),
    ("arc.hits", "1/s"),
    ("arc.misses", "1/s"),
    ("arc.size", "bytes"),
    ("txg.dirty", "bytes"),
    ("txg.unstable", "bytes"),
    ("pool.allocated", "bytes"),
    ("devices.written.data.first_copy", "bytes/s"),
    ("devices.written.data.copies", "bytes/s"),
    ("devices.written.data.parity", "bytes/s"),
    ("devices.written.data.padding", "bytes/s"),
    ("arc.mru.data", "bytes"),
    ("arc.mru.metadata", "bytes"),
    ("arc.mfu.data", "bytes"),
    ("arc.mfu.metadata", "bytes"),
    ("arc.max", "bytes"),
    ("arc.mru_ghost_hits", "1/s"),
    ("arc.mfu_ghost_hits", "1/s"),
    ("txg.dirty_max", "bytes"),
    ("requests.time", "s/s"),
    ("stage.admission", "s/s"),
    ("stage.throttle", "s/s"),
    ("stage.locks", "s/s"),
    ("stage.cache", "s/s"),
    ("stage.queue", "s/s"),
    ("stage.device", "s/s"),
    ("stage.compute", "s/s"),
    ("stage.log_commit", "s/s"),
    ("stage.txg_sync", "s/s"),
    ("net.received", "bytes/s"),
    ("net.sent", "bytes/s"),
    ("net.payload_received", "bytes/s"),
    ("net.payload_sent", "bytes/s"),
    ("process.processors", "processors"),
];

/// Values of all series at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// End of the time that the point covers, in milliseconds since 1970.
    pub time_ms: u64,
    /// Values in the order of [`SERIES`]; not a number (NaN) if the version that made the point did not have the series.
    pub values: [f32; COUNT],
    /// Requests by their latency.
    pub latency: LatencyCounts,
}

impl Point {
    /// The values of an interval.
    pub fn of(interval: &Interval) -> Self {
        let all = interval.all_operations();
        let rate = |count: u64| interval.rate(count) as f32;
        let read = |source: &str| rate(all.read_bytes.get(source));
        let written = |content: &str| {
            rate(interval.written.iter().filter(|cause| cause.content == content).map(|cause| cause.bytes).sum())
        };
        let data = |redundancy: &str| {
            let of_data = interval.written.iter().filter(|cause| cause.content == "data");
            rate(of_data.filter(|cause| cause.redundancy == redundancy).map(|cause| cause.bytes).sum())
        };
        let arc = &interval.arc;
        let reads = interval.operation("read").latency;
        let writes = interval.operation("write").latency;
        let latency = |counts: &[u64], share| quantile_ns(counts, share).map_or(0.0, |ns| ns as f32 / 1e9);
        let leaves = |bytes: fn(&crate::LeafTotals) -> u64| rate(interval.leaves.iter().map(bytes).sum());
        let of_pool = [
            rate(all.requests),
            rate(all.read_bytes.total()),
            read("arc demand"),
            read("arc prefetched"),
            read("l2arc"),
            read("intent log"),
            read("disk"),
            read("holes"),
            read("dirty data"),
            rate(all.written_bytes),
            latency(&reads, 0.5),
            latency(&reads, 0.99),
            latency(&writes, 0.5),
            latency(&writes, 0.99),
            leaves(|leaf| leaf.read_bytes),
            leaves(|leaf| leaf.write_bytes),
            written("data"),
            written("metadata"),
            written("intent log"),
            written("labels"),
            written("repair"),
            written("removal"),
            rate(arc.hits()),
            rate(arc.misses),
            arc.size_bytes() as f32,
            interval.txg.dirty_bytes as f32,
            interval.txg.unstable_bytes as f32,
            interval.space.allocated_bytes as f32,
            data("first copy"),
            data("copies"),
            data("parity"),
            data("padding"),
            arc.mru_data_bytes as f32,
            arc.mru_metadata_bytes as f32,
            arc.mfu_data_bytes as f32,
            arc.mfu_metadata_bytes as f32,
            arc.max_bytes as f32,
            rate(arc.mru_ghost_hits),
            rate(arc.mfu_ghost_hits),
            interval.txg.dirty_max_bytes as f32,
        ];
        let mut values = [f32::NAN; COUNT];
        let all_values = of_pool.into_iter().chain(stages(interval)).chain(host(interval));
        values.iter_mut().zip(all_values).for_each(|(value, of)| *value = of);
        Point { time_ms: interval.time_ms, values, latency: LatencyCounts::of_interval(interval) }
    }

    /// One point for several, with the time of the last; `None` if there is none. A value is that of the points that have the
    /// series.
    pub(crate) fn merge(points: impl Iterator<Item = Point>) -> Option<Point> {
        let points: Vec<Point> = points.collect();
        let time_ms = points.last()?.time_ms;
        let values = std::array::from_fn(|series| {
            let of = points.iter().filter_map(|point| point.values.get(series).copied());
            let known = || of.clone().filter(|value| !value.is_nan());
            let is_latency = SERIES.get(series).is_some_and(|(_, unit)| *unit == "s");
            match known().count() {
                0 => f32::NAN,
                _ if is_latency => known().fold(0.0, f32::max),
                count => known().sum::<f32>() / count as f32,
            }
        });
        let latency = LatencyCounts::sum(points.iter().map(|point| point.latency));
        Some(Point { time_ms, values, latency })
    }
}

/// Time of clients' requests and of their stages, in seconds per second: the number of requests that are in progress, or in a stage.
fn stages(interval: &Interval) -> impl Iterator<Item = f32> {
    let all = interval.all_operations();
    let of_clients = interval.clients.iter().filter(|row| row.protocol != "internal");
    let time_ns: u64 = of_clients.map(|row| row.time_ns).sum();
    let stages_ns = Stage::ALL.map(|stage| all.stage_ns.get(stage.name()));
    let seconds = interval.seconds;
    [time_ns].into_iter().chain(stages_ns).map(move |ns| (ns as f64 / 1e9 / seconds) as f32)
}

/// Bytes of the interfaces that connect clients of the pool, and processors at work; not numbers if they are not known.
fn host(interval: &Interval) -> [f32; 5] {
    let Some(host) = &interval.host else { return [f32::NAN; 5] };
    let rate = |bytes: fn(&InterfaceTotals) -> u64| {
        interval.rate(host.interfaces.iter().filter(|one| one.has_clients).map(bytes).sum()) as f32
    };
    [
        rate(|one| one.received_bytes),
        rate(|one| one.sent_bytes),
        rate(|one| one.payload_received_bytes),
        rate(|one| one.payload_sent_bytes),
        (host.processor_ns as f64 / 1e9 / interval.seconds) as f32,
    ]
}

//! Rates of a pool over time: one second for an hour, ten seconds for a day, one minute for a month.
//!
//! ```text
//!   Interval ──► Point ──► ring of seconds ── mean of 10 ──► ring of tens ── mean of 6 ──► ring of minutes
//! ```
//!
//! The rings have a fixed number of points of a fixed size, so that the memory of a history is bounded: [`History::MAX_BYTES`].

use crate::interval::{Interval, quantile_ns};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use utoipa::ToSchema;

/// Number of series.
const COUNT: usize = 28;

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
];

/// Length of the time between two points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Resolution {
    /// One second, for an hour.
    Second,
    /// Ten seconds, for a day.
    TenSeconds,
    /// One minute, for 30 days.
    Minute,
}

impl Resolution {
    const ALL: [Resolution; 3] = [Resolution::Second, Resolution::TenSeconds, Resolution::Minute];

    /// Number of points that are kept.
    pub fn kept(self) -> usize {
        match self {
            Resolution::Second => 3600,
            Resolution::TenSeconds => 8640,
            Resolution::Minute => 43_200,
        }
    }

    /// Seconds between two points.
    pub fn seconds(self) -> u64 {
        match self {
            Resolution::Second => 1,
            Resolution::TenSeconds => 10,
            Resolution::Minute => 60,
        }
    }

    /// Number of points of the next finer resolution in one.
    fn merged(self) -> usize {
        match self {
            Resolution::Second => 1,
            Resolution::TenSeconds => 10,
            Resolution::Minute => 6,
        }
    }
}

/// Values of all series at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// End of the time that the point covers, in milliseconds since 1970.
    pub time_ms: u64,
    /// Values in the order of [`SERIES`].
    pub values: [f32; COUNT],
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
        let reads = interval.operation("read").latency;
        let writes = interval.operation("write").latency;
        let latency = |counts: &[u64], share| quantile_ns(counts, share).map_or(0.0, |ns| ns as f32 / 1e9);
        let leaves = |bytes: fn(&crate::LeafTotals) -> u64| rate(interval.leaves.iter().map(bytes).sum());
        let values = [
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
            rate(interval.arc.hits()),
            rate(interval.arc.misses),
            interval.arc.size_bytes() as f32,
            interval.txg.dirty_bytes as f32,
            interval.txg.unstable_bytes as f32,
            interval.space.allocated_bytes as f32,
        ];
        Point { time_ms: interval.time_ms, values }
    }

    /// One point for several, of which there is at least one.
    fn merge<'a>(points: impl Iterator<Item = &'a Point> + Clone) -> Option<Point> {
        let time_ms = points.clone().last()?.time_ms;
        let count = points.clone().count() as f32;
        let values = std::array::from_fn(|series| {
            let of = points.clone().map(|point| point.values.get(series).copied().unwrap_or(0.0));
            let is_latency = SERIES.get(series).is_some_and(|(_, unit)| *unit == "s");
            if is_latency { of.fold(0.0, f32::max) } else { of.sum::<f32>() / count }
        });
        Some(Point { time_ms, values })
    }
}

/// The history of a pool.
#[derive(Clone, Debug, Default)]
pub struct History {
    rings: [VecDeque<Point>; Resolution::ALL.len()],
    /// Points of the finer resolution that wait for the next point of this one.
    waiting: [Vec<Point>; Resolution::ALL.len()],
}

impl History {
    /// Maximum size of a history in memory, in bytes: that of its points, which the rings may have half as many of as room for.
    pub const MAX_BYTES: usize = 2 * (3600 + 8640 + 43_200) * size_of::<Point>();

    /// Adds the point of a second.
    pub fn push(&mut self, point: Point) {
        self.push_to(0, point);
        debug_assert!(self.rings.iter().zip(Resolution::ALL).all(|(ring, of)| ring.len() <= of.kept()));
    }

    fn push_to(&mut self, level: usize, point: Point) {
        let (Some(ring), Some(resolution)) = (self.rings.get_mut(level), Resolution::ALL.get(level)) else { return };
        if ring.len() >= resolution.kept() {
            ring.pop_front();
        }
        ring.push_back(point);
        let Some(next) = Resolution::ALL.get(level + 1) else { return };
        let Some(waiting) = self.waiting.get_mut(level + 1) else { return };
        waiting.push(point);
        if waiting.len() < next.merged() {
            return;
        }
        let merged = Point::merge(waiting.iter());
        waiting.clear();
        merged.into_iter().for_each(|merged| self.push_to(level + 1, merged));
    }

    /// Points of a resolution whose time is in a range of milliseconds since 1970, oldest first.
    pub fn points(&self, resolution: Resolution, from_ms: u64, to_ms: u64) -> impl Iterator<Item = &Point> {
        let [seconds, tens, minutes] = &self.rings;
        let ring = match resolution {
            Resolution::Second => seconds,
            Resolution::TenSeconds => tens,
            Resolution::Minute => minutes,
        };
        let from = ring.partition_point(|point| point.time_ms < from_ms);
        ring.range(from..).take_while(move |point| point.time_ms <= to_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(second: u64) -> Point {
        Point { time_ms: second * 1000, values: [second as f32; COUNT] }
    }

    #[test]
    fn coarser_points_have_the_mean_and_of_latencies_the_maximum() {
        let mut history = History::default();
        (1..=60).for_each(|second| history.push(point(second)));
        let tens: Vec<Point> = history.points(Resolution::TenSeconds, 0, u64::MAX).copied().collect();
        assert_eq!((tens.len(), tens[0].time_ms, tens[0].values[0]), (6, 10_000, 5.5));
        let latency = SERIES.iter().position(|(name, _)| *name == "read_latency.p99").unwrap();
        assert_eq!(tens[0].values[latency], 10.0);
        let minutes: Vec<Point> = history.points(Resolution::Minute, 0, u64::MAX).copied().collect();
        assert_eq!((minutes.len(), minutes[0].time_ms, minutes[0].values[0]), (1, 60_000, 30.5));
        assert_eq!(minutes[0].values[latency], 60.0);
    }

    #[test]
    fn a_range_has_the_points_of_its_time_and_memory_is_bounded() {
        let mut history = History::default();
        (1..=10_000).for_each(|second| history.push(point(second)));
        let times: Vec<u64> = history.points(Resolution::Second, 9_000_500, 9_003_000).map(|p| p.time_ms).collect();
        assert_eq!(times, [9_001_000, 9_002_000, 9_003_000]);
        assert_eq!(history.points(Resolution::Second, 0, u64::MAX).next().unwrap().time_ms, 6_401_000);
        assert_eq!(history.points(Resolution::Second, 0, u64::MAX).count(), Resolution::Second.kept());
        for (ring, resolution) in history.rings.iter().zip(Resolution::ALL) {
            assert!(ring.capacity() <= 2 * resolution.kept());
        }
        const { assert!(History::MAX_BYTES < 16 << 20) };
    }
}

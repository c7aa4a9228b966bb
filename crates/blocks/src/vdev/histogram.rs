//! How long the operations of a leaf take and how large they are, since the pool was opened.
//!
//! ```text
//!   queued ──── wait, by class ────► submitted ──── disk ────► completed          total = wait + disk
//! ```
//!
//! The buckets are powers of two: bucket `i` counts values from 2^i to 2^(i+1) - 1, and 0 is in bucket 0. The last bucket counts
//! all larger values. An operation that several readers or writers share counts once by its size, as merged, and once for
//! each of them by its time.
//!
//! Source: OpenZFS `include/sys/fs/zfs.h` (`vdev_stat_ex_t`, `L_HISTO`, `RQ_HISTO`), `module/zfs/vdev.c` (`vdev_stat_update`).

use super::queue::slot;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_machine::Priority;

/// Buckets of times: up to 2^37 ns, 137 seconds (`VDEV_L_HISTO_BUCKETS`).
pub const TIME_BUCKETS: usize = 37;
/// Buckets of sizes: up to 16 MiB (`VDEV_RQ_HISTO_BUCKETS`).
pub const SIZE_BUCKETS: usize = 25;

/// Values of a histogram of times in nanoseconds.
pub type Times = [u64; TIME_BUCKETS];
/// Values of a histogram of sizes in bytes.
pub type Sizes = [u64; SIZE_BUCKETS];

/// A histogram.
#[derive(Debug)]
struct Histogram<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for Histogram<N> {
    fn default() -> Self {
        Histogram(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl<const N: usize> Histogram<N> {
    fn record(&self, value: u64) {
        let bucket = (value.checked_ilog2().unwrap_or(0) as usize).min(N - 1);
        if let Some(bucket) = self.0.get(bucket) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn values(&self) -> [u64; N] {
        std::array::from_fn(|i| self.0.get(i).map_or(0, |bucket| bucket.load(Ordering::Relaxed)))
    }
}

/// Histograms of a leaf's reads or of its writes.
#[derive(Debug, Default)]
pub(super) struct QueueHistograms {
    /// Sum of the times that the disk took.
    disk_ns: AtomicU64,
    total: Histogram<TIME_BUCKETS>,
    disk: Histogram<TIME_BUCKETS>,
    /// By class: Sync, Async, Scrub.
    waits: [Histogram<TIME_BUCKETS>; 3],
    single: [Histogram<SIZE_BUCKETS>; 3],
    merged: [Histogram<SIZE_BUCKETS>; 3],
}

/// Nanoseconds that each reader or writer of an operation waited.
pub(super) type Waits = SmallVec<[u64; 2]>;

impl QueueHistograms {
    /// Records a completed operation of `len` bytes that took the disk `disk_ns`.
    pub fn record(&self, class: Priority, len: u64, disk_ns: u64, waits: &Waits) {
        let slot = slot(class);
        self.disk.record(disk_ns);
        self.disk_ns.fetch_add(disk_ns, Ordering::Relaxed);
        for wait in waits {
            self.total.record(wait.saturating_add(disk_ns));
            self.waits[slot].record(*wait);
        }
        let sizes = if waits.len() > 1 { &self.merged[slot] } else { &self.single[slot] };
        sizes.record(len);
    }

    /// Present values, with the operations in the queue.
    pub fn values(&self, pending: [u64; 3], active: [u64; 3]) -> OperationStats {
        OperationStats {
            disk_ns: self.disk_ns.load(Ordering::Relaxed),
            total: self.total.values(),
            disk: self.disk.values(),
            waits: std::array::from_fn(|i| self.waits[i].values()),
            single: std::array::from_fn(|i| self.single[i].values()),
            merged: std::array::from_fn(|i| self.merged[i].values()),
            pending,
            active,
        }
    }
}

/// Statistics of the reads or the writes of a leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationStats {
    /// Sum of the times that the disk took, in nanoseconds.
    pub disk_ns: u64,
    /// Times from the request to its completion.
    pub total: Times,
    /// Times that the disk took.
    pub disk: Times,
    /// Times in the queue, by class: Sync, Async, Scrub.
    pub waits: [Times; 3],
    /// Sizes of operations of one reader or writer, by class.
    pub single: [Sizes; 3],
    /// Sizes of merged operations, by class.
    pub merged: [Sizes; 3],
    /// Operations that wait, by class.
    pub pending: [u64; 3],
    /// Operations in progress, by class.
    pub active: [u64; 3],
}

impl Default for OperationStats {
    fn default() -> Self {
        QueueHistograms::default().values([0; 3], [0; 3])
    }
}

impl OperationStats {
    /// Changes all counters by those of `other`; what waits and is in progress only if `adds_queues`.
    fn change(&mut self, other: &OperationStats, by: fn(u64, u64) -> u64, adds_queues: bool) {
        let change =
            |sums: &mut [u64], values: &[u64]| sums.iter_mut().zip(values).for_each(|(sum, n)| *sum = by(*sum, *n));
        self.disk_ns = by(self.disk_ns, other.disk_ns);
        change(&mut self.total, &other.total);
        change(&mut self.disk, &other.disk);
        for class in 0..3 {
            change(&mut self.waits[class], &other.waits[class]);
            change(&mut self.single[class], &other.single[class]);
            change(&mut self.merged[class], &other.merged[class]);
        }
        if adds_queues {
            change(&mut self.pending, &other.pending);
            change(&mut self.active, &other.active);
        }
    }
}

/// Statistics of a leaf's operations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeafStats {
    /// Reads.
    pub reads: OperationStats,
    /// Writes.
    pub writes: OperationStats,
}

impl LeafStats {
    /// Adds those of another leaf.
    pub fn add(&mut self, other: &LeafStats) {
        self.reads.change(&other.reads, u64::saturating_add, true);
        self.writes.change(&other.writes, u64::saturating_add, true);
    }

    /// Counts since `before`; the queues are those of now.
    #[must_use]
    pub fn since(&self, before: &LeafStats) -> LeafStats {
        let mut out = self.clone();
        out.reads.change(&before.reads, u64::saturating_sub, false);
        out.writes.change(&before.writes, u64::saturating_sub, false);
        out
    }
}

/// Average of a histogram of times, each counted as the middle of its bucket; 0 if there is none (`single_histo_average`).
pub fn average(times: &Times) -> u64 {
    let mut count = 0u128;
    let mut total = 0u128;
    for (bucket, n) in times.iter().enumerate() {
        count += u128::from(*n);
        total += u128::from(*n) * (3u128 << bucket) / 2;
    }
    total.checked_div(count).map_or(0, |average| u64::try_from(average).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;

    #[test]
    fn operations_are_counted_by_time_and_size() {
        let histograms = QueueHistograms::default();
        histograms.record(Priority::Sync, 4096, 1000, &smallvec![0]);
        histograms.record(Priority::Async, 8192, 5000, &smallvec![100, 3000]);
        histograms.record(Priority::Scrub, u64::MAX, u64::MAX, &smallvec![0]);
        let found = histograms.values([1, 2, 3], [0; 3]);
        assert_eq!((found.disk[9], found.disk[12], found.disk[36]), (1, 1, 1));
        assert_eq!((found.total[9], found.total[12], found.total[36]), (1, 2, 1));
        assert_eq!((found.waits[0][0], found.waits[1][6], found.waits[1][11]), (1, 1, 1));
        assert_eq!((found.single[0][12], found.merged[1][13], found.single[2][24]), (1, 1, 1));
        assert_eq!(found.merged[0], [0; SIZE_BUCKETS]);
        let mut sum = LeafStats { reads: found.clone(), writes: OperationStats::default() };
        sum.add(&sum.clone());
        assert_eq!((sum.reads.disk[9], sum.reads.pending), (2, [2, 4, 6]));
        let since = sum.since(&LeafStats { reads: found, writes: OperationStats::default() });
        assert_eq!((since.reads.disk[9], since.reads.pending), (1, [2, 4, 6]));
    }

    #[test]
    fn an_average_takes_the_middle_of_each_bucket() {
        let mut times = [0; TIME_BUCKETS];
        assert_eq!(average(&times), 0);
        times[3] = 1;
        assert_eq!(average(&times), 12);
        times[4] = 1;
        assert_eq!(average(&times), 18);
    }
}

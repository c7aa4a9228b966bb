//! The read queue of a leaf: which reads are in progress, and which wait to be merged with their neighbours. Pure.
//!
//! ```text
//!   read ─► below the limits of its class? ─► start immediately
//!              │ no
//!              ▼
//!   waiting, by class and offset ─► (a read is done) ─► next in ascending order, with its neighbours ─► start
//! ```
//!
//! While the disk keeps up, no read waits or is merged, so no latency is added. Otherwise waiting reads are sorted, and
//! reads that are close together become one operation, each part directly into the buffer of its reader. So a prefetched
//! stream becomes few long operations, whatever the size of its blocks, and so do the columns of RAID-Z. Narrow gaps are
//! read and discarded, which costs less than another operation.
//!
//! Each class has its own limits of reads and bytes in progress, so that prefetch and scrub do not delay synchronous reads.
//! A class that has nothing in progress is served first, so that none starves. Source of the idea: OpenZFS
//! `module/zfs/vdev_queue.c`.

use std::collections::BTreeMap;
use weir_machine::Priority;

/// Maximum length of a merged read in bytes.
const MAX_MERGED_BYTES: u64 = 1 << 20;
/// Maximum number of merged reads, because a device accepts a limited number of buffers per operation.
const MAX_MERGED_READS: usize = 64;
/// Maximum gap between merged reads in bytes.
const MAX_GAP_BYTES: u64 = 32 << 10;
/// Maximum reads in progress of each class: Sync, Async, Scrub.
const LIMITS: [usize; 3] = [32, 32, 32];
/// Maximum bytes in progress of each class; one read may always start. Reads that wait because of this limit can be merged,
/// and the limit is large enough to keep any disk busy.
const LIMIT_BYTES: [u64; 3] = [16 << 20, 4 << 20, 4 << 20];

/// A read that waits or starts.
#[derive(Debug, PartialEq, Eq)]
pub struct Member<T> {
    /// Offset in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Identifies the reader.
    pub token: T,
}

/// Reads that are merged into one operation.
#[derive(Debug, PartialEq, Eq)]
pub struct Batch<T> {
    /// Class, which the caller passes to [`Queue::done`] with the length.
    pub class: Priority,
    /// Offset in bytes.
    pub offset: u64,
    /// Length in bytes, including gaps.
    pub len: u64,
    /// In the order of their offsets; the first is the one that the queue chose.
    pub members: Vec<Member<T>>,
}

/// Reads in progress of a class.
#[derive(Clone, Copy, Debug, Default)]
struct InProgress {
    reads: usize,
    bytes: u64,
}

/// The read queue of one leaf. `T` identifies a waiting reader.
#[derive(Debug)]
pub struct Queue<T> {
    waiting: [BTreeMap<(u64, u64), Member<T>>; 3],
    in_progress: [InProgress; 3],
    /// End of the last started read or batch; the next one is the first above it.
    head: u64,
    /// End of the last requested read.
    last_request_end: u64,
    count: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue { waiting: Default::default(), in_progress: Default::default(), head: 0, last_request_end: 0, count: 0 }
    }
}

fn slot(class: Priority) -> usize {
    match class {
        Priority::Sync => 0,
        Priority::Async => 1,
        Priority::Scrub => 2,
    }
}

const CLASSES: [Priority; 3] = [Priority::Sync, Priority::Async, Priority::Scrub];

impl<T> Queue<T> {
    /// Whether a read of this class and length may start immediately; then it counts as in progress.
    pub fn try_start(&mut self, class: Priority, len: u64) -> bool {
        let slot = slot(class);
        let free = self.is_below_limits(slot) && self.waiting[slot].is_empty();
        if free {
            self.begin(slot, len);
        }
        free
    }

    fn is_below_limits(&self, slot: usize) -> bool {
        self.in_progress[slot].reads < LIMITS[slot] && self.in_progress[slot].bytes < LIMIT_BYTES[slot]
    }

    fn begin(&mut self, slot: usize, len: u64) {
        self.in_progress[slot].reads += 1;
        self.in_progress[slot].bytes += len;
    }

    /// Puts a read in the queue, after [`Queue::try_start`] refused it.
    pub fn wait(&mut self, class: Priority, offset: u64, len: u64, token: T) {
        self.count += 1;
        self.waiting[slot(class)].insert((offset, self.count), Member { offset, len, token });
    }

    /// Records the end of a requested read, whether it starts or waits.
    pub fn record_request(&mut self, offset: u64, len: u64) {
        self.last_request_end = offset.saturating_add(len);
    }

    /// Whether a read at `offset` continues the last requested one.
    pub fn is_sequential(&self, offset: u64) -> bool {
        self.last_request_end == offset
    }

    /// Records the end of a read or batch of `len` bytes, and returns the batch to start next.
    pub fn done(&mut self, class: Priority, len: u64) -> Option<Batch<T>> {
        let ended = &mut self.in_progress[slot(class)];
        ended.reads = ended.reads.saturating_sub(1);
        ended.bytes = ended.bytes.saturating_sub(len);
        let idle = (0..3).find(|&s| self.in_progress[s].reads == 0 && !self.waiting[s].is_empty());
        let open = (0..3).find(|&s| self.is_below_limits(s) && !self.waiting[s].is_empty());
        idle.or(open).and_then(|s| self.start(s))
    }

    fn start(&mut self, slot: usize) -> Option<Batch<T>> {
        let map = &mut self.waiting[slot];
        let key = *map.range((self.head, 0)..).next().or_else(|| map.iter().next())?.0;
        let first = map.remove(&key)?;
        let offset = first.offset;
        let mut end = first.offset.saturating_add(first.len);
        let mut members = vec![first];
        while let Some((&key, next)) = map.range(key..).next() {
            let reach = end.saturating_add(MAX_GAP_BYTES);
            let next_end = next.offset.saturating_add(next.len);
            let long = next_end.saturating_sub(offset) > MAX_MERGED_BYTES || members.len() >= MAX_MERGED_READS;
            if next.offset > reach || long {
                break;
            }
            end = end.max(next_end);
            members.extend(map.remove(&key));
        }
        self.head = end;
        self.begin(slot, end - offset);
        Some(Batch { class: CLASSES[slot], offset, len: end - offset, members })
    }

    /// Number of reads in progress and waiting.
    pub fn load(&self) -> usize {
        self.in_progress.iter().map(|u| u.reads).sum::<usize>() + self.waiting.iter().map(BTreeMap::len).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Priority::{Async, Sync};

    fn full() -> Queue<u32> {
        let mut q = Queue::default();
        for _ in 0..32 {
            assert!(q.try_start(Sync, 4096));
        }
        assert!(!q.try_start(Sync, 4096) && q.try_start(Async, 4096));
        q
    }

    #[test]
    fn close_reads_are_merged_and_distant_ones_are_not() {
        let mut q = full();
        q.wait(Sync, 1 << 20, 4096, 1);
        q.wait(Sync, (1 << 20) + 4096, 4096, 2);
        q.wait(Sync, (1 << 20) + (40 << 10), 4096, 3);
        q.wait(Sync, (1 << 20) + (77 << 10), 4096, 4);
        q.wait(Sync, (1 << 20) + (81 << 10), 128 << 10, 5);
        q.wait(Sync, (1 << 20) + (400 << 10), 4096, 6);
        let batch = q.done(Sync, 4096).unwrap();
        assert_eq!(batch.members.iter().map(|m| m.token).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!((batch.offset, batch.len), (1 << 20, 44 << 10));
        let alone =
            |q: &mut Queue<u32>| q.done(Sync, 4096).unwrap().members.iter().map(|m| m.token).collect::<Vec<_>>();
        assert_eq!(alone(&mut q), [4, 5]);
        assert_eq!(alone(&mut q), [6]);
        assert_eq!(q.done(Sync, 4096), None);
        assert_eq!(q.load(), 32 + 1 - 1);
    }

    #[test]
    fn a_batch_has_a_limit_and_overlapping_reads_share_it() {
        let mut q = full();
        for i in 0..40u32 {
            q.wait(Sync, u64::from(i) * (32 << 10), 32 << 10, i);
        }
        q.wait(Sync, 0, 4096, 99);
        let batch = q.done(Sync, 4096).unwrap();
        assert_eq!((batch.len, batch.members.len()), (1 << 20, 33));
        assert_eq!(batch.members[1].token, 99);
        assert_eq!(q.done(Sync, 4096).unwrap().members.len(), 8);
    }

    #[test]
    fn reads_start_in_ascending_order_and_wrap_around() {
        let mut q = full();
        for (i, at) in [50u64, 10, 90].into_iter().enumerate() {
            q.wait(Sync, at << 20, 4096, i as u32);
        }
        q.head = 40 << 20;
        let order: Vec<u32> = (0..3).map(|_| q.done(Sync, 4096).unwrap().members[0].token).collect();
        assert_eq!(order, [0, 2, 1]);
    }

    #[test]
    fn a_class_with_nothing_in_progress_is_served_first() {
        let mut q = full();
        for _ in 0..31 {
            assert!(q.try_start(Async, 4096));
        }
        q.wait(Sync, 0, 4096, 1);
        q.wait(Async, 0, 4096, 2);
        q.in_progress[1] = InProgress::default();
        assert_eq!(q.done(Sync, 4096).unwrap().members[0].token, 2);
        assert_eq!(q.done(Sync, 4096).unwrap().members[0].token, 1);
    }

    #[test]
    fn long_reads_wait_for_the_limit_of_bytes_and_are_merged() {
        let mut q = Queue::default();
        let block = 128 << 10;
        let started = (0..200u64).filter(|_| q.try_start(Async, block)).count();
        assert_eq!(started as u64 * block, LIMIT_BYTES[1]);
        for i in 0..9u64 {
            q.wait(Async, i * block, block, i as u32);
        }
        let batch = q.done(Async, block).unwrap();
        assert_eq!((batch.len, batch.members.len()), (MAX_MERGED_BYTES, 8));
        assert_eq!(q.done(Async, block), None, "more bytes are in progress than before");
        assert_eq!((q.in_progress[1].reads, q.load()), (31, 32));
    }
}

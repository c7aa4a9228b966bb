//! The write queue of a leaf: which writes are in progress, and which wait to be merged with their neighbours. Pure.
//!
//! As with reads ([`super::queue`]), no write waits while the disk keeps up, except for plugged batches. Otherwise waiting
//! writes are sorted by offset, and adjacent ones are merged. The blocks of a txg are allocated side by side, so most are
//! adjacent. Gaps are not written.
//!
//! Synchronous writes (the intent log) start before those of a txg sync, and those before repairs. A class that has nothing
//! in progress is served first, so that none starves. Source of the idea: OpenZFS `module/zfs/vdev_queue.c`.

use std::collections::BTreeMap;
use weir_machine::Priority;

/// Maximum length of a merged write in bytes.
const MAX_MERGED_BYTES: u64 = 1 << 20;
/// Maximum writes in progress of each class: Sync, Async, Scrub.
const LIMITS: [usize; 3] = [16, 10, 4];
const CLASSES: [Priority; 3] = [Priority::Sync, Priority::Async, Priority::Scrub];

/// A write that waits or starts.
#[derive(Debug, PartialEq, Eq)]
pub struct Member<T> {
    /// Offset in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Identifies the writer.
    pub token: T,
}

/// Adjacent writes that are merged into one operation.
#[derive(Debug, PartialEq, Eq)]
pub struct Batch<T> {
    /// Class, which the caller passes to [`WriteQueue::done`].
    pub class: Priority,
    /// In the order of their offsets; at least one.
    pub members: Vec<Member<T>>,
}

/// The write queue of one leaf. `T` identifies a waiting writer.
#[derive(Debug)]
pub struct WriteQueue<T> {
    waiting: [BTreeMap<(u64, u64), Member<T>>; 3],
    in_progress: [usize; 3],
    /// End of the last started write or batch; the next one is the first above it.
    head: u64,
    count: u64,
}

impl<T> Default for WriteQueue<T> {
    fn default() -> Self {
        WriteQueue { waiting: Default::default(), in_progress: [0; 3], head: 0, count: 0 }
    }
}

impl<T> WriteQueue<T> {
    /// Whether a write of this class may start immediately; then it counts as in progress.
    pub fn try_start(&mut self, class: Priority) -> bool {
        let slot = class as usize;
        let free = self.in_progress[slot] < LIMITS[slot] && self.waiting[slot].is_empty();
        self.in_progress[slot] += usize::from(free);
        free
    }

    /// Puts a write in the queue, after [`WriteQueue::try_start`] refused it.
    pub fn wait(&mut self, class: Priority, offset: u64, len: u64, token: T) {
        self.count += 1;
        self.waiting[class as usize].insert((offset, self.count), Member { offset, len, token });
    }

    /// Records the end of a write or batch, and returns the batch to start next.
    pub fn done(&mut self, class: Priority) -> Option<Batch<T>> {
        let slot = class as usize;
        self.in_progress[slot] = self.in_progress[slot].saturating_sub(1);
        self.start_next()
    }

    /// Returns the next batch that the limits permit to start.
    pub fn start_next(&mut self) -> Option<Batch<T>> {
        let idle = (0..3).find(|&s| self.in_progress[s] == 0 && !self.waiting[s].is_empty());
        let open = (0..3).find(|&s| self.in_progress[s] < LIMITS[s] && !self.waiting[s].is_empty());
        idle.or(open).and_then(|s| self.start(s))
    }

    fn start(&mut self, slot: usize) -> Option<Batch<T>> {
        let map = &mut self.waiting[slot];
        let key = *map.range((self.head, 0)..).next().or_else(|| map.iter().next())?.0;
        let first = map.remove(&key)?;
        let offset = first.offset;
        let mut end = first.offset.saturating_add(first.len);
        let mut members = vec![first];
        while let Some((&key, next)) = map.range((end, 0)..).next() {
            if next.offset != end || end.saturating_add(next.len) - offset > MAX_MERGED_BYTES {
                break;
            }
            end = end.saturating_add(next.len);
            members.extend(map.remove(&key));
        }
        self.head = end;
        self.in_progress[slot] += 1;
        Some(Batch { class: CLASSES[slot], members })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Priority::{Async, Scrub, Sync};

    fn full() -> WriteQueue<u32> {
        let mut q = WriteQueue::default();
        for _ in 0..LIMITS[1] {
            assert!(q.try_start(Async));
        }
        assert!(!q.try_start(Async) && q.try_start(Sync));
        q
    }

    fn tokens(batch: Option<Batch<u32>>) -> Vec<u32> {
        batch.map_or_else(Vec::new, |b| b.members.iter().map(|m| m.token).collect())
    }

    #[test]
    fn adjacent_writes_are_merged_and_gaps_are_not_written() {
        let mut q = full();
        q.wait(Async, 4096, 4096, 2);
        q.wait(Async, 0, 4096, 1);
        q.wait(Async, 8192, 512, 3);
        q.wait(Async, 12288, 4096, 4);
        assert_eq!(tokens(q.done(Async)), [1, 2, 3]);
        assert_eq!(tokens(q.done(Async)), [4]);
        assert_eq!(tokens(q.done(Async)), [0; 0]);
    }

    #[test]
    fn a_batch_has_a_limit_and_contains_an_offset_once() {
        let mut q = full();
        for i in 0..12u32 {
            q.wait(Async, u64::from(i) << 17, 1 << 17, i);
        }
        q.wait(Async, 0, 1 << 17, 99);
        assert_eq!(tokens(q.done(Async)), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(tokens(q.done(Async)), [8, 9, 10, 11]);
        assert_eq!(tokens(q.done(Async)), [99]);
        let mut q = full();
        q.wait(Async, 0, 16 << 20, 7);
        q.wait(Async, 16 << 20, 512, 8);
        assert_eq!(tokens(q.done(Async)), [7]);
    }

    #[test]
    fn writes_queued_together_are_merged() {
        let mut q = WriteQueue::default();
        for i in [2, 0, 1, 7] {
            q.wait(Async, u64::from(i) << 15, 1 << 15, i);
        }
        assert_eq!(tokens(q.start_next()), [0, 1, 2]);
        assert_eq!(tokens(q.start_next()), [7]);
        assert_eq!(tokens(q.start_next()), [0; 0]);
        assert_eq!(q.in_progress, [0, 2, 0]);
    }

    #[test]
    fn the_log_is_served_before_others_and_none_starves() {
        let mut q = full();
        for _ in 1..LIMITS[0] {
            assert!(q.try_start(Sync));
        }
        q.wait(Async, 0, 512, 1);
        q.wait(Sync, 1 << 20, 512, 2);
        q.wait(Scrub, 2 << 20, 512, 3);
        assert_eq!(tokens(q.done(Async)), [3], "nothing of its class is in progress");
        assert_eq!(tokens(q.done(Sync)), [2]);
        assert_eq!(tokens(q.done(Sync)), [1]);
    }
}

//! The queue before a leaf's disk: which reads are under way, and which wait to be joined with their neighbours. Pure.
//!
//! ```text
//!   push ─► room in its class? ─► start at once
//!              │ no
//!              ▼
//!   waiting, by class and offset ─► (a read is done) ─► next in the direction of travel, with its neighbours ─► start
//! ```
//!
//! As long as the disk keeps up, nothing waits and nothing is joined: no latency is added. When it does not, what waits
//! is sorted, and small reads that lie together become one: the gaps between them are read as well and thrown away, which
//! costs less than another operation. Large reads go alone, for then each fills the very buffer that its reader keeps.
//!
//! Each class has its own limit of reads under way, so that prefetch and scrub leave room for those who wait, and each is
//! served whenever it has nothing under way, so that none starves. Source of the idea: OpenZFS `module/zfs/vdev_queue.c`.

use std::collections::BTreeMap;
use weir_machine::Priority;

/// Longest read that is made by joining.
const JOINED_BYTES: u64 = 1 << 20;
/// Reads longer than this are not joined.
const SMALL_BYTES: u64 = 64 << 10;
/// Widest gap between reads that are joined.
const GAP_BYTES: u64 = 32 << 10;
/// Reads under way of each class: Sync, Async, Scrub.
const LIMITS: [usize; 3] = [32, 16, 16];

/// A read that waits or starts.
#[derive(Debug, PartialEq, Eq)]
pub struct Member<T> {
    /// Where, in bytes.
    pub offset: u64,
    /// How much.
    pub len: u64,
    /// Whose.
    pub token: T,
}

/// Reads that start as one.
#[derive(Debug, PartialEq, Eq)]
pub struct Batch<T> {
    /// Its class, to be given back to [`Queue::done`].
    pub class: Priority,
    /// Where, in bytes.
    pub offset: u64,
    /// How much, gaps included.
    pub len: u64,
    /// In the order of their offsets; the first is the one that the queue chose.
    pub members: Vec<Member<T>>,
}

/// The queue of one leaf. `T` is whatever names a waiting reader.
#[derive(Debug)]
pub struct Queue<T> {
    waiting: [BTreeMap<(u64, u64), Member<T>>; 3],
    under_way: [usize; 3],
    /// Where the last start ended: the direction of travel is upwards from here.
    head: u64,
    count: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue { waiting: Default::default(), under_way: [0; 3], head: 0, count: 0 }
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
    /// Whether a read of this class may start at once; then it counts as under way.
    pub fn try_start(&mut self, class: Priority) -> bool {
        let slot = slot(class);
        let free = self.under_way[slot] < LIMITS[slot] && self.waiting[slot].is_empty();
        self.under_way[slot] += usize::from(free);
        free
    }

    /// Puts a read in the queue, after [`Queue::try_start`] refused it.
    pub fn wait(&mut self, class: Priority, offset: u64, len: u64, token: T) {
        self.count += 1;
        self.waiting[slot(class)].insert((offset, self.count), Member { offset, len, token });
    }

    /// Takes note that a read (or a batch) is over, and gives the one to start next.
    pub fn done(&mut self, class: Priority) -> Option<Batch<T>> {
        let slot = slot(class);
        self.under_way[slot] = self.under_way[slot].saturating_sub(1);
        let idle = (0..3).find(|&s| self.under_way[s] == 0 && !self.waiting[s].is_empty());
        let open = (0..3).find(|&s| self.under_way[s] < LIMITS[s] && !self.waiting[s].is_empty());
        idle.or(open).and_then(|s| self.start(s))
    }

    fn start(&mut self, slot: usize) -> Option<Batch<T>> {
        let map = &mut self.waiting[slot];
        let key = *map.range((self.head, 0)..).next().or_else(|| map.iter().next())?.0;
        let first = map.remove(&key)?;
        let (offset, mut end) = (first.offset, first.offset.saturating_add(first.len));
        let longest = if first.len <= SMALL_BYTES { JOINED_BYTES } else { 0 };
        let mut members = vec![first];
        while let Some((&key, next)) = map.range(key..).next() {
            let reach = end.saturating_add(GAP_BYTES);
            let next_end = next.offset.saturating_add(next.len);
            if next.offset > reach || next.len > SMALL_BYTES || next_end.saturating_sub(offset) > longest {
                break;
            }
            end = end.max(next_end);
            members.extend(map.remove(&key));
        }
        self.head = end;
        self.under_way[slot] += 1;
        Some(Batch { class: CLASSES[slot], offset, len: end - offset, members })
    }

    /// Reads under way and waiting.
    pub fn load(&self) -> usize {
        self.under_way.iter().sum::<usize>() + self.waiting.iter().map(BTreeMap::len).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Priority::{Async, Sync};

    fn full() -> Queue<u32> {
        let mut q = Queue::default();
        for _ in 0..32 {
            assert!(q.try_start(Sync));
        }
        assert!(!q.try_start(Sync) && q.try_start(Async));
        q
    }

    #[test]
    fn neighbours_start_together_and_what_is_far_or_long_alone() {
        let mut q = full();
        q.wait(Sync, 1 << 20, 4096, 1);
        q.wait(Sync, (1 << 20) + 4096, 4096, 2);
        q.wait(Sync, (1 << 20) + (40 << 10), 4096, 3);
        q.wait(Sync, (1 << 20) + (77 << 10), 4096, 4);
        q.wait(Sync, (1 << 20) + (81 << 10), 128 << 10, 5);
        let batch = q.done(Sync).unwrap();
        assert_eq!(batch.members.iter().map(|m| m.token).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!((batch.offset, batch.len), (1 << 20, 44 << 10));
        let alone = |q: &mut Queue<u32>| q.done(Sync).unwrap().members.iter().map(|m| m.token).collect::<Vec<_>>();
        assert_eq!(alone(&mut q), [4]);
        assert_eq!(alone(&mut q), [5]);
        assert_eq!(q.done(Sync), None);
        assert_eq!(q.load(), 32 + 1 - 1);
    }

    #[test]
    fn a_batch_has_a_limit_and_overlapping_reads_share_it() {
        let mut q = full();
        for i in 0..40u32 {
            q.wait(Sync, u64::from(i) * (32 << 10), 32 << 10, i);
        }
        q.wait(Sync, 0, 4096, 99);
        let batch = q.done(Sync).unwrap();
        assert_eq!((batch.len, batch.members.len()), (1 << 20, 33));
        assert_eq!(batch.members[1].token, 99);
        assert_eq!(q.done(Sync).unwrap().members.len(), 8);
    }

    #[test]
    fn the_head_travels_upwards_and_turns_back() {
        let mut q = full();
        for (i, at) in [50u64, 10, 90].into_iter().enumerate() {
            q.wait(Sync, at << 20, 4096, i as u32);
        }
        q.head = 40 << 20;
        let order: Vec<u32> = (0..3).map(|_| q.done(Sync).unwrap().members[0].token).collect();
        assert_eq!(order, [0, 2, 1]);
    }

    #[test]
    fn a_class_with_nothing_under_way_is_served_first() {
        let mut q = full();
        for _ in 0..15 {
            assert!(q.try_start(Async));
        }
        q.wait(Sync, 0, 4096, 1);
        q.wait(Async, 0, 4096, 2);
        for _ in 0..16 {
            let _ = q.under_way[1].checked_sub(1).map(|n| q.under_way[1] = n);
        }
        assert_eq!(q.done(Sync).unwrap().members[0].token, 2);
        assert_eq!(q.done(Sync).unwrap().members[0].token, 1);
    }
}

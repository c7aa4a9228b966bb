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
//! is sorted, and reads that lie together become one, each part straight into the buffer of its reader: a stream that is
//! fetched ahead becomes few long operations, whatever the size of its blocks, and so do the columns of RAID-Z. Narrow
//! gaps are read as well and thrown away, which costs less than another operation.
//!
//! Each class has its own limits of reads and bytes under way, so that prefetch and scrub leave room for those who wait,
//! and each is served whenever it has nothing under way, so that none starves. Source of the idea: OpenZFS
//! `module/zfs/vdev_queue.c`.

use std::collections::BTreeMap;
use weir_machine::Priority;

/// Longest read that is made by joining.
const JOINED_BYTES: u64 = 1 << 20;
/// Most reads that are joined, gaps among them counted: a device takes only so many pieces of memory at once.
const JOINED_MEMBERS: usize = 64;
/// Widest gap between reads that are joined.
const GAP_BYTES: u64 = 32 << 10;
/// Reads under way of each class: Sync, Async, Scrub.
const LIMITS: [usize; 3] = [32, 32, 32];
/// Bytes under way of each class; a class is never kept from starting one read. What waits beyond that can still be
/// joined, and a disk that needs more under way to be busy is faster than any memory.
const LIMIT_BYTES: [u64; 3] = [16 << 20, 4 << 20, 4 << 20];

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
    /// Its class, to be given back to [`Queue::done`] with its length.
    pub class: Priority,
    /// Where, in bytes.
    pub offset: u64,
    /// How much, gaps included.
    pub len: u64,
    /// In the order of their offsets; the first is the one that the queue chose.
    pub members: Vec<Member<T>>,
}

/// What is under way in a class.
#[derive(Clone, Copy, Debug, Default)]
struct UnderWay {
    reads: usize,
    bytes: u64,
}

/// The queue of one leaf. `T` is whatever names a waiting reader.
#[derive(Debug)]
pub struct Queue<T> {
    waiting: [BTreeMap<(u64, u64), Member<T>>; 3],
    under_way: [UnderWay; 3],
    /// Where the last start ended: the direction of travel is upwards from here.
    head: u64,
    /// Where the last read that anybody asked for ended.
    asked_to: u64,
    count: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue { waiting: Default::default(), under_way: Default::default(), head: 0, asked_to: 0, count: 0 }
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
    /// Whether a read of this class and length may start at once; then it counts as under way.
    pub fn try_start(&mut self, class: Priority, len: u64) -> bool {
        let slot = slot(class);
        let free = self.has_room(slot) && self.waiting[slot].is_empty();
        if free {
            self.begin(slot, len);
        }
        free
    }

    fn has_room(&self, slot: usize) -> bool {
        self.under_way[slot].reads < LIMITS[slot] && self.under_way[slot].bytes < LIMIT_BYTES[slot]
    }

    fn begin(&mut self, slot: usize, len: u64) {
        self.under_way[slot].reads += 1;
        self.under_way[slot].bytes += len;
    }

    /// Puts a read in the queue, after [`Queue::try_start`] refused it.
    pub fn wait(&mut self, class: Priority, offset: u64, len: u64, token: T) {
        self.count += 1;
        self.waiting[slot(class)].insert((offset, self.count), Member { offset, len, token });
    }

    /// Takes note of a read that somebody asks for, whether it starts or waits.
    pub fn asked(&mut self, offset: u64, len: u64) {
        self.asked_to = offset.saturating_add(len);
    }

    /// Whether a read at `offset` goes on where the last one ended.
    pub fn goes_on(&self, offset: u64) -> bool {
        self.asked_to == offset
    }

    /// Takes note that a read (or a batch) of `len` bytes is over, and gives the one to start next.
    pub fn done(&mut self, class: Priority, len: u64) -> Option<Batch<T>> {
        let ended = &mut self.under_way[slot(class)];
        ended.reads = ended.reads.saturating_sub(1);
        ended.bytes = ended.bytes.saturating_sub(len);
        let idle = (0..3).find(|&s| self.under_way[s].reads == 0 && !self.waiting[s].is_empty());
        let open = (0..3).find(|&s| self.has_room(s) && !self.waiting[s].is_empty());
        idle.or(open).and_then(|s| self.start(s))
    }

    fn start(&mut self, slot: usize) -> Option<Batch<T>> {
        let map = &mut self.waiting[slot];
        let key = *map.range((self.head, 0)..).next().or_else(|| map.iter().next())?.0;
        let first = map.remove(&key)?;
        let (offset, mut end) = (first.offset, first.offset.saturating_add(first.len));
        let mut members = vec![first];
        while let Some((&key, next)) = map.range(key..).next() {
            let reach = end.saturating_add(GAP_BYTES);
            let next_end = next.offset.saturating_add(next.len);
            let long = next_end.saturating_sub(offset) > JOINED_BYTES || members.len() >= JOINED_MEMBERS;
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

    /// Reads under way and waiting.
    pub fn load(&self) -> usize {
        self.under_way.iter().map(|u| u.reads).sum::<usize>() + self.waiting.iter().map(BTreeMap::len).sum::<usize>()
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
    fn neighbours_start_together_and_what_is_far_alone() {
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
    fn the_head_travels_upwards_and_turns_back() {
        let mut q = full();
        for (i, at) in [50u64, 10, 90].into_iter().enumerate() {
            q.wait(Sync, at << 20, 4096, i as u32);
        }
        q.head = 40 << 20;
        let order: Vec<u32> = (0..3).map(|_| q.done(Sync, 4096).unwrap().members[0].token).collect();
        assert_eq!(order, [0, 2, 1]);
    }

    #[test]
    fn a_class_with_nothing_under_way_is_served_first() {
        let mut q = full();
        for _ in 0..31 {
            assert!(q.try_start(Async, 4096));
        }
        q.wait(Sync, 0, 4096, 1);
        q.wait(Async, 0, 4096, 2);
        q.under_way[1] = UnderWay::default();
        assert_eq!(q.done(Sync, 4096).unwrap().members[0].token, 2);
        assert_eq!(q.done(Sync, 4096).unwrap().members[0].token, 1);
    }

    #[test]
    fn long_reads_wait_for_bytes_and_are_joined() {
        let mut q = Queue::default();
        let block = 128 << 10;
        let started = (0..200u64).filter(|_| q.try_start(Async, block)).count();
        assert_eq!(started as u64 * block, LIMIT_BYTES[1]);
        for i in 0..9u64 {
            q.wait(Async, i * block, block, i as u32);
        }
        let batch = q.done(Async, block).unwrap();
        assert_eq!((batch.len, batch.members.len()), (JOINED_BYTES, 8));
        assert_eq!(q.done(Async, block), None, "more bytes are under way than before");
        assert_eq!((q.under_way[1].reads, q.load()), (31, 32));
    }
}

//! The queues of a leaf: which reads or writes are in progress, and which wait to be merged with their neighbours. Pure.
//!
//! ```text
//!  operation ─► below the limits of its class? ─► start immediately
//!             │ no
//!             ▼
//!  waiting, by class and offset ─► (an operation is done) ─► next in ascending order, with its neighbours ─► start
//! ```
//!
//! While the disk keeps up, no operation waits or is merged, so no latency is added. Otherwise waiting operations are sorted,
//! and those that are close together become one, each part directly in the buffer of its reader or writer.
//!
//! *Reads* ([`Reads`]) are merged over narrow gaps, which are read and discarded, because that costs less than another
//! operation. So a prefetched stream becomes few long operations, whatever the size of its blocks, and so do the columns of
//! RAID-Z. *Writes* ([`Writes`]) are merged only if they are adjacent; most are, because the blocks of a txg are allocated
//! side by side.
//!
//! Each class has its own limits, so that prefetch and scrub do not delay synchronous reads, and a txg sync does not delay
//! the intent log. A class that has nothing in progress is served first, so that none starves. While reads of other classes are in
//! progress, scrubs and resilvers read one operation at a time, and each of them only after another read has ended: a disk that
//! prefers short ways of its head would read nothing else. Source of the idea: OpenZFS `module/zfs/vdev_queue.c`
//! (`zfs_vdev_nia_credit`).

use std::collections::BTreeMap;
use std::marker::PhantomData;
use weir_machine::{Priority, invariant};

/// Limits of a queue, by class: Sync, Async, Scrub.
pub trait Rules {
    /// Maximum operations in progress.
    const LIMITS: [usize; 3];
    /// Maximum bytes in progress; one operation may always start.
    const LIMIT_BYTES: [u64; 3];
    /// Maximum number of merged operations.
    const MAX_MERGED: usize;
    /// Maximum gap between merged operations in bytes, and whether they may overlap; `None`: they must be adjacent.
    const MAX_GAP_BYTES: Option<u64>;
    /// Whether operations of the class Scrub alternate with those of other classes that are in progress.
    const ALTERNATES: bool;
}

/// Maximum length of a merged operation in bytes.
const MAX_MERGED_BYTES: u64 = 1 << 20;

/// Rules of reads. Reads that wait because of the limit of bytes can be merged, and that limit is large enough to keep any
/// disk busy. A device accepts a limited number of buffers per operation.
#[derive(Debug)]
pub struct Reads;

impl Rules for Reads {
    const LIMITS: [usize; 3] = [32, 32, 32];
    const LIMIT_BYTES: [u64; 3] = [16 << 20, 4 << 20, 4 << 20];
    const MAX_MERGED: usize = 64;
    const MAX_GAP_BYTES: Option<u64> = Some(32 << 10);
    const ALTERNATES: bool = true;
}

/// Rules of writes: the intent log before a txg sync, and that before repairs.
#[derive(Debug)]
pub struct Writes;

impl Rules for Writes {
    const LIMITS: [usize; 3] = [16, 10, 4];
    const LIMIT_BYTES: [u64; 3] = [u64::MAX; 3];
    const MAX_MERGED: usize = usize::MAX;
    const MAX_GAP_BYTES: Option<u64> = None;
    const ALTERNATES: bool = false;
}

/// An operation that waits or starts.
#[derive(Debug, PartialEq, Eq)]
pub struct Member<T> {
    /// Offset in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Identifies the reader or writer.
    pub token: T,
}

/// Operations that are merged into one.
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

/// Operations in progress of a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct InProgress {
    operations: usize,
    bytes: u64,
}

/// A queue of one leaf. `T` identifies a waiting reader or writer.
#[derive(Debug)]
pub struct Queue<T, R> {
    waiting: [BTreeMap<(u64, u64), Member<T>>; 3],
    in_progress: [InProgress; 3],
    /// End of the last started operation; the next one is the first above it.
    head: u64,
    /// End of the last requested operation.
    last_request_end: u64,
    count: u64,
    /// See [`Queue::foreground`].
    foreground: u64,
    /// Whether an operation of another class has ended since the last one of the class Scrub began.
    is_turn_of_scrub: bool,
    rules: PhantomData<R>,
}

impl<T, R> Default for Queue<T, R> {
    fn default() -> Self {
        Queue {
            waiting: Default::default(),
            in_progress: Default::default(),
            head: 0,
            last_request_end: 0,
            count: 0,
            foreground: 0,
            is_turn_of_scrub: false,
            rules: PhantomData,
        }
    }
}

/// Position of a class: Sync, Async, Scrub.
pub(super) fn slot(class: Priority) -> usize {
    match class {
        Priority::Sync => 0,
        Priority::Async => 1,
        Priority::Scrub => SCRUB,
    }
}

/// Position of the class Scrub, the last.
const SCRUB: usize = 2;
const CLASSES: [Priority; 3] = [Priority::Sync, Priority::Async, Priority::Scrub];

impl<T, R: Rules> Queue<T, R> {
    /// Whether an operation of this class and length may start immediately; then it counts as in progress.
    pub fn try_start(&mut self, class: Priority, len: u64) -> bool {
        let slot = slot(class);
        self.foreground += u64::from(class != Priority::Scrub);
        let free = self.is_below_limits(slot) && self.waiting[slot].is_empty();
        if free {
            self.begin(slot, len);
        }
        free
    }

    fn is_below_limits(&self, slot: usize) -> bool {
        let InProgress { operations, bytes } = self.in_progress[slot];
        operations < R::LIMITS[slot] && bytes < R::LIMIT_BYTES[slot] && self.has_turn(slot)
    }

    /// Whether an operation of a class may begin beside those of others.
    fn has_turn(&self, slot: usize) -> bool {
        let alone = self.in_progress[..SCRUB].iter().all(|class| class.operations == 0);
        !R::ALTERNATES || slot != SCRUB || alone || self.in_progress[SCRUB].operations == 0 && self.is_turn_of_scrub
    }

    fn begin(&mut self, slot: usize, len: u64) {
        self.is_turn_of_scrub &= slot != SCRUB;
        self.in_progress[slot].operations += 1;
        self.in_progress[slot].bytes += len;
    }

    /// Puts an operation in the queue, after [`Queue::try_start`] refused it.
    pub fn wait(&mut self, class: Priority, offset: u64, len: u64, token: T) {
        self.count += 1;
        self.waiting[slot(class)].insert((offset, self.count), Member { offset, len, token });
    }

    /// Number of requests of the classes Sync and Async, without the writes of a txg that the leaf collects before it begins them.
    pub fn foreground(&self) -> u64 {
        self.foreground
    }

    /// Records the end of a requested operation, whether it starts or waits.
    pub fn record_request(&mut self, offset: u64, len: u64) {
        self.last_request_end = offset.saturating_add(len);
    }

    /// Whether an operation at `offset` continues the last requested one.
    pub fn is_sequential(&self, offset: u64) -> bool {
        self.last_request_end == offset
    }

    /// Records the end of an operation or batch of `len` bytes, and returns the batch to start next.
    pub fn done(&mut self, class: Priority, len: u64) -> Option<Batch<T>> {
        let ended = &mut self.in_progress[slot(class)];
        let InProgress { operations, bytes } = *ended;
        invariant!(operations > 0 && bytes >= len, "{len} bytes end of {operations} operations with {bytes} bytes");
        ended.operations = operations.saturating_sub(1);
        ended.bytes = bytes.saturating_sub(len);
        self.is_turn_of_scrub |= class != Priority::Scrub;
        self.start_next()
    }

    /// Returns the next batch that the limits permit to start.
    pub fn start_next(&mut self) -> Option<Batch<T>> {
        let is_idle = |s: &usize| self.in_progress[*s].operations == 0 && self.has_turn(*s);
        let idle = (0..3).find(|s| is_idle(s) && !self.waiting[*s].is_empty());
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
        loop {
            let from = if R::MAX_GAP_BYTES.is_some() { key } else { (end, 0) };
            let Some((&key, next)) = map.range(from..).next() else { break };
            let next_end = next.offset.saturating_add(next.len);
            let is_near = R::MAX_GAP_BYTES.map_or(next.offset == end, |gap| next.offset <= end.saturating_add(gap));
            let is_long = next_end.saturating_sub(offset) > MAX_MERGED_BYTES || members.len() >= R::MAX_MERGED;
            if !is_near || is_long {
                break;
            }
            end = end.max(next_end);
            members.extend(map.remove(&key));
        }
        self.head = end;
        self.begin(slot, end - offset);
        Some(Batch { class: CLASSES[slot], offset, len: end - offset, members })
    }

    /// Numbers of operations that wait and that are in progress, by class.
    pub fn counts(&self) -> ([u64; 3], [u64; 3]) {
        (
            self.waiting.each_ref().map(|waiting| waiting.len() as u64),
            self.in_progress.map(|class| class.operations as u64),
        )
    }

    /// Number of operations in progress and waiting.
    pub fn load(&self) -> usize {
        self.in_progress.iter().map(|u| u.operations).sum::<usize>()
            + self.waiting.iter().map(BTreeMap::len).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Priority::{Async, Scrub, Sync};

    fn full() -> Queue<u32, Reads> {
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
            |q: &mut Queue<u32, Reads>| q.done(Sync, 4096).unwrap().members.iter().map(|m| m.token).collect::<Vec<_>>();
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
    fn scrubs_alternate_with_other_reads() {
        let mut q = Queue::<u32, Reads>::default();
        let block = 1 << 20;
        let scrubs = |q: &Queue<u32, Reads>| q.in_progress[2].operations;
        while q.try_start(Scrub, block) {}
        assert_eq!(scrubs(&q), 4, "alone, they are in progress up to the limit");
        (0..9).for_each(|i| q.wait(Scrub, u64::from(i) << 30, block, i));
        assert!(q.try_start(Sync, 4096) && q.try_start(Sync, 4096));
        (0..4).for_each(|_| assert_eq!(q.done(Scrub, block), None, "another read is in progress"));
        assert_eq!(q.done(Sync, 4096).unwrap().class, Scrub);
        assert_eq!(q.start_next(), None, "one at a time");
        assert_eq!(q.done(Scrub, block), None, "no other read has ended");
        assert_eq!(q.done(Sync, 4096).unwrap().class, Scrub);
        while q.start_next().is_some() {}
        assert_eq!(scrubs(&q), 4, "alone again");
    }

    #[test]
    fn long_reads_wait_for_the_limit_of_bytes_and_are_merged() {
        let mut q = Queue::<u32, Reads>::default();
        let block = 128 << 10;
        let started = (0..200u64).filter(|_| q.try_start(Async, block)).count();
        assert_eq!(started as u64 * block, Reads::LIMIT_BYTES[1]);
        for i in 0..9u64 {
            q.wait(Async, i * block, block, i as u32);
        }
        let batch = q.done(Async, block).unwrap();
        assert_eq!((batch.len, batch.members.len()), (MAX_MERGED_BYTES, 8));
        assert_eq!(q.done(Async, block), None, "more bytes are in progress than before");
        assert_eq!((q.in_progress[1].operations, q.load()), (31, 32));
    }
}

#[cfg(test)]
mod write_tests {
    use super::*;
    use Priority::{Async, Scrub, Sync};

    fn full() -> Queue<u32, Writes> {
        let mut q = Queue::default();
        for _ in 0..Writes::LIMITS[1] {
            assert!(q.try_start(Async, 512));
        }
        assert!(!q.try_start(Async, 512) && q.try_start(Sync, 512));
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
        assert_eq!(tokens(q.done(Async, 512)), [1, 2, 3]);
        assert_eq!(tokens(q.done(Async, 512)), [4]);
        assert_eq!(tokens(q.done(Async, 512)), [0; 0]);
    }

    #[test]
    fn a_batch_has_a_limit_and_contains_an_offset_once() {
        let mut q = full();
        for i in 0..12u32 {
            q.wait(Async, u64::from(i) << 17, 1 << 17, i);
        }
        q.wait(Async, 0, 1 << 17, 99);
        assert_eq!(tokens(q.done(Async, 512)), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(tokens(q.done(Async, 512)), [8, 9, 10, 11]);
        assert_eq!(tokens(q.done(Async, 512)), [99]);
        let mut q = full();
        q.wait(Async, 0, 16 << 20, 7);
        q.wait(Async, 16 << 20, 512, 8);
        assert_eq!(tokens(q.done(Async, 512)), [7]);
    }

    #[test]
    fn writes_queued_together_are_merged() {
        let mut q = Queue::<u32, Writes>::default();
        for i in [2, 0, 1, 7] {
            q.wait(Async, u64::from(i) << 15, 1 << 15, i);
        }
        assert_eq!(tokens(q.start_next()), [0, 1, 2]);
        assert_eq!(tokens(q.start_next()), [7]);
        assert_eq!(tokens(q.start_next()), [0; 0]);
        assert_eq!(q.in_progress.map(|u| u.operations), [0, 2, 0]);
    }

    #[test]
    fn the_log_is_served_before_others_and_none_starves() {
        let mut q = full();
        for _ in 1..Writes::LIMITS[0] {
            assert!(q.try_start(Sync, 512));
        }
        q.wait(Async, 0, 512, 1);
        q.wait(Sync, 1 << 20, 512, 2);
        q.wait(Scrub, 2 << 20, 512, 3);
        assert_eq!(tokens(q.done(Async, 512)), [3], "nothing of its class is in progress");
        assert_eq!(tokens(q.done(Sync, 512)), [2]);
        assert_eq!(tokens(q.done(Sync, 512)), [1]);
    }
}

//! Blocks that a scan has found and not read yet, in the order of their offsets.
//!
//! ```text
//!   walk ─► pointers of data, in the order of the files ─► queue, by vdev and offset ─► reads in ascending order
//!                                                            ▲
//!                                            frees take their blocks out
//! ```
//!
//! Files that were written at the same time have their blocks between each other's on the devices. Read in the order of the
//! files, each block costs a seek; read in the order of the offsets, none does.
//!
//! *Freed blocks.* A block stays in the queue after the end of the [read hold](crate::ReadHold) under which the walk found it.
//! Therefore the allocator takes a block out when it frees it, which is before its space is reused. The walk reads the last
//! synced state, which still refers to what the txg that is syncing has already freed. Therefore the queue remembers the blocks
//! freed in txgs that the walk's state may not include, and refuses them.
//!
//! A block with several copies is in the place of the first. Source of the idea: OpenZFS `module/zfs/dsl_scan.c`
//! (`scan_io_queue_insert`, `dsl_scan_freed`).

use crate::fault_observer::Bookmark;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use weir_format::{BlockPointer, Txg};
use weir_machine::invariant;
use weir_machine::lock::{Mutex, order};

/// A block that a scan has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundBlock {
    /// The object and the number of the block.
    pub origin: Bookmark,
    /// The pointer to the block.
    pub pointer: BlockPointer,
}

/// Share of the rate of the outermost tracks that a disk with platters lacks on the innermost ones.
const INNER_LOSS: f64 = 0.5;

/// Relative time that the devices take to read blocks at their places: a disk with platters reads outer tracks faster than inner ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadCosts(
    /// Allocatable bytes of each top-level vdev of which a device has platters.
    pub BTreeMap<u32, u64>,
);

impl ReadCosts {
    /// The allocated bytes of a block; as many more as fit into the time that its read takes on outer tracks.
    pub fn of(&self, pointer: &BlockPointer) -> u64 {
        let place = pointer.dva(0);
        let bytes = pointer.asize_bytes();
        let Some(size_bytes) = self.0.get(&place.vdev).filter(|size_bytes| **size_bytes > 0) else { return bytes };
        let share = (place.offset_bytes as f64 / *size_bytes as f64).min(1.0);
        (bytes as f64 / (1.0 - INNER_LOSS * share)) as u64
    }
}

/// Sums over the blocks in the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FoundSums {
    /// Allocated bytes.
    pub bytes: u64,
    /// Their [`ReadCosts`].
    pub cost: u64,
}

impl FoundSums {
    fn add(&mut self, pointer: &BlockPointer, costs: &ReadCosts) {
        self.bytes = self.bytes.saturating_add(pointer.asize_bytes());
        self.cost = self.cost.saturating_add(costs.of(pointer));
    }

    fn subtract(&mut self, pointer: &BlockPointer, costs: &ReadCosts) {
        self.bytes = self.bytes.saturating_sub(pointer.asize_bytes());
        self.cost = self.cost.saturating_sub(costs.of(pointer));
    }
}

/// The blocks that the scan of a pool has found. A pool has at most one scan.
#[derive(Debug, Default)]
pub struct ScanQueue {
    state: Mutex<State, { order::SCAN_QUEUE }>,
    /// Number of found blocks. Only a thread that holds the lock changes it.
    count: AtomicUsize,
    /// Whether frees are recorded. Without a scan, a free takes no lock.
    is_active: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// By top-level vdev and offset of the first copy.
    found: BTreeMap<u32, BTreeMap<u64, FoundBlock>>,
    /// Sums over the found blocks.
    sums: FoundSums,
    costs: ReadCosts,
    /// The txgs in which blocks were freed lately, by the same.
    freed: BTreeMap<(u32, u64), Txg>,
    /// The last txg with frees.
    last_freed: Txg,
    /// A walk in progress reads the state of this txg or a later one.
    walked: Option<Txg>,
}

impl State {
    /// Forgets the frees of the txgs up to `synced`: the states that walks read from now on include them.
    fn forget_frees(&mut self, synced: Txg) {
        self.freed.retain(|_, txg| *txg > synced);
    }
}

/// While a txg syncs, readers get a state that is at most this number of txgs older.
const STATE_LAG: u64 = 2;

impl ScanQueue {
    /// Begins to record frees. Returns false if the queue does so already. Otherwise, the walk must begin from a state that
    /// synced after this call.
    pub fn activate(&self) -> bool {
        !self.is_active.swap(true, Ordering::SeqCst)
    }

    /// To be called before the walk looks up its state, which is that of `synced` or of a later txg.
    pub fn begin_walk(&self, synced: Txg) {
        let mut state = self.state.lock();
        state.walked = Some(synced);
        state.forget_frees(synced);
    }

    /// To be called after a walk.
    pub fn end_walk(&self) {
        self.state.lock().walked = None;
    }

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Whether no block is in the queue.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sums over the blocks.
    pub fn sums(&self) -> FoundSums {
        self.state.lock().sums
    }

    /// Takes out all blocks. Those that are added from now on have these costs.
    pub fn restart(&self, costs: ReadCosts) {
        self.clear();
        self.state.lock().costs = costs;
    }

    /// Adds a block that is stored on devices, unless it was freed. A block that is in the queue already stays there once.
    pub fn insert(&self, block: FoundBlock) {
        debug_assert!(!block.pointer.is_hole() && !block.pointer.is_embedded(), "the block is on no device");
        let place = block.pointer.dva(0);
        let state = &mut *self.state.lock();
        if state.freed.contains_key(&(place.vdev, place.offset_bytes)) {
            return;
        }
        let former = state.found.entry(place.vdev).or_default().insert(place.offset_bytes, block);
        state.sums.add(&block.pointer, &state.costs);
        former.iter().for_each(|former| state.sums.subtract(&former.pointer, &state.costs));
        self.count.fetch_add(usize::from(former.is_none()), Ordering::SeqCst);
    }

    /// Takes out the next block: the one with the lowest offset, of the vdev with the fewest reads in progress. Returns `None`
    /// if all vdevs with blocks have `limit` reads in progress.
    pub fn next(&self, in_progress: impl Fn(u32) -> usize, limit: usize) -> Option<FoundBlock> {
        let mut state = self.state.lock();
        let vdevs = state.found.keys().map(|&vdev| (in_progress(vdev), vdev));
        let (_, vdev) = vdevs.min().filter(|(reads, _)| *reads < limit)?;
        self.remove(&mut state, vdev, None)
    }

    /// Takes out a block that is freed in `txg`, if it is there.
    pub fn freed(&self, vdev: u32, offset: u64, txg: Txg) {
        if self.is_active.load(Ordering::SeqCst) {
            let mut state = self.state.lock();
            self.remove(&mut state, vdev, Some(offset));
            // Also a scan that is paused keeps the frees of a few txgs only.
            if state.walked.is_none() && txg > state.last_freed {
                state.forget_frees(Txg(txg.0.saturating_sub(STATE_LAG + 1)));
            }
            state.last_freed = txg;
            state.freed.insert((vdev, offset), txg);
        }
    }

    /// Takes out all blocks.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        state.found.clear();
        state.sums = FoundSums::default();
        self.count.store(0, Ordering::SeqCst);
    }

    /// Takes out all blocks, and records no more frees.
    pub fn deactivate(&self) {
        self.is_active.store(false, Ordering::SeqCst);
        self.clear();
        *self.state.lock() = State::default();
    }

    /// Removes the block at `offset` of a vdev; without an offset, the lowest block of the vdev.
    fn remove(&self, state: &mut State, vdev: u32, offset: Option<u64>) -> Option<FoundBlock> {
        let of_vdev = state.found.get_mut(&vdev)?;
        let removed = match offset {
            Some(offset) => of_vdev.remove(&offset),
            None => of_vdev.pop_first().map(|(_, block)| block),
        };
        if of_vdev.is_empty() {
            state.found.remove(&vdev);
        }
        if let Some(removed) = &removed {
            state.sums.subtract(&removed.pointer, &state.costs);
            let before = self.count.fetch_sub(1, Ordering::SeqCst);
            invariant!(before > 0, "more blocks leave the scan's queue than entered it");
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_format::{Dva, ObjsetId};

    /// Blocks at these places.
    fn blocks(places: &[(u32, u64)]) -> Vec<FoundBlock> {
        let block = |(block, &(vdev, offset_bytes)): (u64, &(u32, u64))| {
            let dva = Dva { vdev, offset_bytes, asize_bytes: 4096, ..Dva::default() };
            let mut words = [0; 16];
            words[..2].copy_from_slice(&dva.to_words());
            let origin = Bookmark { objset: ObjsetId(54), object: 2, level: 0, block };
            FoundBlock { origin, pointer: BlockPointer::from_words(words) }
        };
        (0..).zip(places).map(block).collect()
    }

    /// A queue with blocks at these places.
    fn queue(places: &[(u32, u64)]) -> ScanQueue {
        let queue = ScanQueue::default();
        blocks(places).into_iter().for_each(|block| queue.insert(block));
        queue
    }

    fn drain(queue: &ScanQueue) -> Vec<(u32, u64)> {
        let next = || queue.next(|_| 0, 1).map(|block| block.pointer.dva(0));
        std::iter::from_fn(next).map(|dva| (dva.vdev, dva.offset_bytes)).collect()
    }

    #[test]
    fn blocks_leave_in_the_order_of_their_offsets() {
        let queue = queue(&[(0, 8192), (1, 4096), (0, 0), (0, 4096), (0, 8192)]);
        assert_eq!(
            (queue.len(), queue.sums()),
            (4, FoundSums { bytes: 4 * 4096, cost: 4 * 4096 }),
            "one was found twice"
        );
        assert_eq!(drain(&queue), [(0, 0), (0, 4096), (0, 8192), (1, 4096)]);
        assert!(queue.is_empty());
    }

    #[test]
    fn a_freed_block_is_not_read() {
        let places = [(0, 0), (0, 4096), (1, 0)];
        let queue = queue(&places);
        assert!(queue.activate() && !queue.activate());
        for (vdev, offset) in [(0, 4096), (0, 4096), (7, 0)] {
            queue.freed(vdev, offset, Txg(9));
        }
        assert_eq!((queue.len(), queue.sums().bytes, drain(&queue)), (2, 2 * 4096, vec![(0, 0), (1, 0)]));
        assert_eq!(queue.sums(), FoundSums::default());
    }

    #[test]
    fn inner_tracks_of_a_disk_with_platters_cost_twice_as_much() {
        let queue = ScanQueue::default();
        queue.restart(ReadCosts([(0, 1 << 20)].into()));
        let cost = |places: &[(u32, u64)]| {
            blocks(places).into_iter().for_each(|block| queue.insert(block));
            queue.sums().cost
        };
        assert_eq!(cost(&[(0, 0)]), 4096);
        assert_eq!(cost(&[(0, 1 << 20)]), 3 * 4096);
        assert_eq!(cost(&[(1, 1 << 20)]), 4 * 4096, "no platters");
        drain(&queue);
        assert_eq!(queue.sums(), FoundSums::default());
    }

    /// A txg frees a block before a walk over the state before that txg finds it.
    #[test]
    fn a_block_that_was_freed_before_it_was_found_is_refused() {
        let [block] = blocks(&[(0, 4096)])[..] else { panic!("one block") };
        let queue = ScanQueue::default();
        queue.activate();
        queue.freed(0, 4096, Txg(9));
        queue.begin_walk(Txg(8));
        queue.insert(block);
        assert!(queue.is_empty());
        // The space may belong to another block in a later state.
        queue.begin_walk(Txg(9));
        queue.insert(block);
        assert_eq!(queue.len(), 1);
        queue.deactivate();
        queue.freed(0, 4096, Txg(10));
        queue.insert(block);
        assert_eq!(queue.len(), 1, "no free is recorded without a scan");
    }

    #[test]
    fn frees_are_kept_during_a_walk_and_for_a_few_txgs_otherwise() {
        let queue = ScanQueue::default();
        queue.activate();
        let kept = |queue: &ScanQueue| queue.state.lock().freed.len();
        (10..20).for_each(|txg| queue.freed(0, txg << 12, Txg(txg)));
        assert_eq!(kept(&queue), 3);
        queue.begin_walk(Txg(18));
        (20..30).for_each(|txg| queue.freed(0, txg << 12, Txg(txg)));
        assert_eq!(kept(&queue), 11);
        queue.end_walk();
        queue.freed(0, 0, Txg(30));
        assert_eq!(kept(&queue), 3);
    }

    #[test]
    fn the_vdev_with_the_fewest_reads_is_next() {
        let queue = queue(&[(0, 0), (1, 0), (2, 0)]);
        let reads = |vdev: u32| [3, 1, 2][vdev as usize];
        let vdev = |found: Option<FoundBlock>| found.map(|block| block.pointer.dva(0).vdev);
        assert_eq!(vdev(queue.next(reads, 1)), None);
        let order: Vec<_> = (0..3).map(|_| vdev(queue.next(reads, 4))).collect();
        assert_eq!(order, [Some(1), Some(2), Some(0)]);
        queue.clear();
        assert!(queue.is_empty());
    }
}

//! Blocks that a scan has found and not read yet, in the order of their offsets.
//!
//! ```text
//!   walk ─► pointers of data, in the order of the files ─► queue, by vdev and offset ─► reads in ascending order
//!                                                            ▲
//!                                            frees take their blocks out
//! ```
//!
//! Files that were written at the same time have their blocks between each other's on the devices. Read in the order of the
//! files, each block costs a seek; read in this order, none does. The queue lives longer than a
//! [read hold](crate::ReadHold), so a block that is freed leaves it when it is freed, which is before its space is reused.
//!
//! A block is in the place of its first copy. Source of the idea: OpenZFS `module/zfs/dsl_scan.c` (`scan_io_queue_insert`,
//! `dsl_scan_freed`).

use crate::fault_observer::Bookmark;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use weir_format::BlockPointer;
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

/// Found blocks, by top-level vdev and offset of the first copy.
type Found = BTreeMap<u32, BTreeMap<u64, FoundBlock>>;

/// The queue of a pool: one scan uses it at a time.
#[derive(Debug, Default)]
pub struct ScanQueue {
    found: Mutex<Found, { order::SCAN_QUEUE }>,
    /// Number of blocks. It is changed under the lock; without it, an empty queue costs frees nothing.
    count: AtomicUsize,
}

impl ScanQueue {
    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Whether no block is in the queue.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a block that is stored on devices. One that is in the queue already stays once.
    pub fn insert(&self, block: FoundBlock) {
        debug_assert!(!block.pointer.is_hole() && !block.pointer.is_embedded(), "the block is on no device");
        let place = block.pointer.dva(0);
        let mut found = self.found.lock();
        let former = found.entry(place.vdev).or_default().insert(place.offset_bytes, block);
        self.count.fetch_add(usize::from(former.is_none()), Ordering::SeqCst);
    }

    /// Takes out the next block: the one with the lowest offset, of the vdev with the fewest reads in progress, of which at
    /// most `limit` are in progress.
    pub fn next(&self, in_progress: impl Fn(u32) -> usize, limit: usize) -> Option<FoundBlock> {
        let mut found = self.found.lock();
        let vdevs = found.keys().map(|&vdev| (in_progress(vdev), vdev));
        let (_, vdev) = vdevs.min().filter(|(reads, _)| *reads < limit)?;
        self.remove(&mut found, vdev, None)
    }

    /// Takes out a block that is freed, if it is there.
    pub fn freed(&self, vdev: u32, offset: u64) {
        if !self.is_empty() {
            self.remove(&mut self.found.lock(), vdev, Some(offset));
        }
    }

    /// Takes out all blocks.
    pub fn clear(&self) {
        let mut found = self.found.lock();
        found.clear();
        self.count.store(0, Ordering::SeqCst);
    }

    /// Removes the block at `offset` of a vdev, or its lowest.
    fn remove(&self, found: &mut Found, vdev: u32, offset: Option<u64>) -> Option<FoundBlock> {
        let of_vdev = found.get_mut(&vdev)?;
        let removed = match offset {
            Some(offset) => of_vdev.remove(&offset),
            None => of_vdev.pop_first().map(|(_, block)| block),
        };
        if of_vdev.is_empty() {
            found.remove(&vdev);
        }
        if removed.is_some() {
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

    /// A queue with blocks at these places.
    fn queue(places: &[(u32, u64)]) -> ScanQueue {
        let queue = ScanQueue::default();
        for (block, &(vdev, offset_bytes)) in (0..).zip(places) {
            let dva = Dva { vdev, offset_bytes, asize_bytes: 4096, ..Dva::default() };
            let mut words = [0; 16];
            words[..2].copy_from_slice(&dva.to_words());
            let pointer = BlockPointer::from_words(words);
            let origin = Bookmark { objset: ObjsetId(54), object: 2, level: 0, block };
            queue.insert(FoundBlock { origin, pointer });
        }
        queue
    }

    fn drain(queue: &ScanQueue) -> Vec<(u32, u64)> {
        let next = || queue.next(|_| 0, 1).map(|block| block.pointer.dva(0));
        std::iter::from_fn(next).map(|dva| (dva.vdev, dva.offset_bytes)).collect()
    }

    #[test]
    fn blocks_leave_in_the_order_of_their_offsets() {
        let queue = queue(&[(0, 8192), (1, 4096), (0, 0), (0, 4096), (0, 8192)]);
        assert_eq!(queue.len(), 4, "one was found twice");
        assert_eq!(drain(&queue), [(0, 0), (0, 4096), (0, 8192), (1, 4096)]);
        assert!(queue.is_empty());
    }

    #[test]
    fn a_freed_block_is_not_read() {
        let queue = queue(&[(0, 0), (0, 4096), (1, 0)]);
        queue.freed(0, 4096);
        queue.freed(0, 4096);
        queue.freed(7, 0);
        assert_eq!((queue.len(), drain(&queue)), (2, vec![(0, 0), (1, 0)]));
        queue.freed(0, 0);
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

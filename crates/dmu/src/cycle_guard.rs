//! Detects cycles of links on disk: from a directory to its parent, from a snapshot to the previous one, from a list to
//! its sublists.
//!
//! In a consistent pool no such link leads back to an object that was visited. In a corrupt pool it may, so a walk
//! records each object in a [`CycleGuard`]. The walk takes at most as many steps as there are objects, and then fails
//! with an error that names the object that was reached twice.
//!
//! The same holds for trees of block pointers: levels full of pointers to one indirect block would make a walk as long
//! as the product of their widths. [`VisitedBlocks`] keeps a walk from entering an indirect block again; a listing that
//! descends from the top repeatedly enters a block several times, but always at one position ([`VisitedIndirects`]).

use crate::error::ObjectError;
use crate::object_set::ObjectSet;
use std::collections::{BTreeMap, BTreeSet};
use weir_format::{BlockPointer, ObjectId};

/// Objects that a walk along links has visited.
#[derive(Clone, Debug, Default)]
pub struct CycleGuard(BTreeSet<ObjectId>);

impl CycleGuard {
    /// Records a step of the walk to object `id` of `set`.
    ///
    /// # Errors
    /// [`ObjectError::Corrupt`] if the walk visited the object before.
    pub fn step(&mut self, set: &ObjectSet, id: ObjectId) -> Result<(), ObjectError> {
        let why = "links lead to it twice";
        self.0.insert(id).then_some(()).ok_or_else(|| ObjectError::Corrupt { place: set.place(id, 0, 0), why })
    }
}

/// Indirect blocks that were visited: address, and level and number in the object.
#[derive(Debug, Default)]
pub(crate) struct VisitedIndirects(BTreeMap<(u32, u64), (u8, u64)>);

impl VisitedIndirects {
    /// Records an indirect block; returns false if it was found at another position before.
    pub fn note(&mut self, pointer: &BlockPointer, level: u8, number: u64) -> bool {
        let here = (level, number);
        // All copies are recorded, because an unreadable copy could otherwise hide a readable one.
        let places = pointer.dvas().map(|d| *self.0.entry((d.vdev, d.offset_bytes)).or_insert(here));
        places.filter(|place| *place != here).count() == 0
    }
}

/// Number of addresses in each of the two sets of [`VisitedBlocks`].
const GENERATION: usize = 1 << 19;

/// Blocks of pointers that a walk has entered, by the addresses of all their copies.
///
/// Only the last addresses are known, at least [`GENERATION`] of them and at most twice as many, so that the memory has a
/// bound (about 40 MiB) whatever the size of the pool. A malformed tree with more blocks of pointers than that could still be
/// walked for long, so the number of blocks that are entered has a limit as well.
#[derive(Debug)]
pub struct VisitedBlocks {
    recent: BTreeSet<(u32, u64)>,
    earlier: BTreeSet<(u32, u64)>,
    /// Number of blocks that may still be entered.
    left: u64,
}

impl Default for VisitedBlocks {
    fn default() -> Self {
        Self::at_most(u64::MAX)
    }
}

impl VisitedBlocks {
    /// Permits at most `blocks` blocks to be entered: as many as the pool has room for.
    pub fn at_most(blocks: u64) -> Self {
        VisitedBlocks { recent: BTreeSet::new(), earlier: BTreeSet::new(), left: blocks }
    }

    /// Records a block of pointers; returns false if it was entered before, or is embedded, which no valid one is, or if
    /// there are more blocks than a valid tree has.
    pub fn enter(&mut self, pointer: &BlockPointer) -> bool {
        // All copies are recorded, because an absent copy could otherwise hide one that exists.
        let known = pointer.dvas().filter(|dva| !self.insert((dva.vdev, dva.offset_bytes))).count();
        let is_new = !pointer.is_embedded() && known == 0 && self.left > 0;
        self.left -= u64::from(is_new);
        is_new
    }

    fn insert(&mut self, address: (u32, u64)) -> bool {
        if self.recent.len() >= GENERATION {
            self.earlier = std::mem::take(&mut self.recent);
        }
        !self.earlier.contains(&address) && self.recent.insert(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pointer(offset: u64) -> BlockPointer {
        let mut words = [0; 16];
        words[..2].copy_from_slice(&[1, offset / 512]);
        words[6] = 1 << 63;
        words[10] = 1;
        BlockPointer::from_words(words)
    }

    #[test]
    fn a_block_is_entered_once_within_two_generations() {
        let mut visited = VisitedBlocks::default();
        for block in 0..3 * GENERATION as u64 {
            assert!(visited.enter(&pointer(block * 512)));
        }
        assert!(visited.recent.len() + visited.earlier.len() <= 2 * GENERATION);
        let last = 3 * GENERATION as u64 - 1;
        assert!((0..GENERATION as u64).all(|back| !visited.enter(&pointer((last - back) * 512))));
    }

    #[test]
    fn no_more_blocks_are_entered_than_fit() {
        let mut visited = VisitedBlocks::at_most(2);
        let entered = (0..10).filter(|block| visited.enter(&pointer(block * 512))).count();
        assert_eq!(entered, 2);
    }
}

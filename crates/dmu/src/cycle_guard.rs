//! Detects cycles of links on disk: from a directory to its parent, from a snapshot to the previous one, from a list to
//! its sublists.
//!
//! In a consistent pool no such link leads back to an object that was visited. In a corrupt pool it may, so a walk
//! records each object in a [`CycleGuard`]. The walk takes at most as many steps as there are objects, and then fails
//! with an error that names the object that was reached twice.
//!
//! The same holds for trees of block pointers: levels full of pointers to one indirect block would make a walk as long
//! as the product of their widths. [`VisitedBlocks`] makes a walk enter each indirect block once; a listing that
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

/// Blocks of pointers that a walk has entered, by the addresses of all their copies.
#[derive(Debug, Default)]
pub struct VisitedBlocks(BTreeSet<(u32, u64)>);

impl VisitedBlocks {
    /// Records a block of pointers; returns false if it was entered before, or is embedded, which no valid one is.
    pub fn enter(&mut self, pointer: &BlockPointer) -> bool {
        // All copies are recorded, because an absent copy could otherwise hide one that exists.
        let known = pointer.dvas().filter(|dva| !self.0.insert((dva.vdev, dva.offset_bytes))).count();
        !pointer.is_embedded() && known == 0
    }
}

//! Lists an object's data blocks, or a set's objects, in ascending order, in a time that the pool's size bounds.
//!
//! A tree of block pointers can span far more blocks than a pool can hold, and a malformed tree may do so with a
//! handful of blocks: each level full of pointers to one block of the level below. In a consistent tree only one
//! pointer leads to each indirect block, because indirect blocks are neither deduplicated nor cloned. So a listing
//! records the position of each indirect block, and ends with an error when it finds one at a second position. The
//! number of distinct indirect blocks is bounded by the size of the pool.
//!
//! The blocks of a live set move, so the recorded positions are valid until its next sync.

use crate::cycle_guard::VisitedIndirects;
use crate::error::ObjectError;
use crate::object::Object;
use crate::object_set::ObjectSet;
use crate::read::Seek;
use std::collections::VecDeque;
use std::sync::Arc;
use weir_format::{Dnode, ObjectId};
use weir_machine::Request;

/// The data blocks of an object.
pub struct DataBlocks {
    set: Arc<ObjectSet>,
    object: Arc<Object>,
    next: u64,
    entered: VisitedIndirects,
    version: u64,
}

impl DataBlocks {
    /// Lists all data blocks of an object from the first on.
    pub fn of(set: &Arc<ObjectSet>, object: &Arc<Object>) -> Self {
        let version = set.version();
        DataBlocks { set: set.clone(), object: object.clone(), next: 0, entered: VisitedIndirects::default(), version }
    }

    /// Returns the number of the next block that is not a hole; `None` after the last.
    ///
    /// # Errors
    /// Errors of reading indirect blocks; [`ObjectError::Corrupt`] if two pointers of the tree lead to one indirect
    /// block.
    pub async fn next(&mut self, rq: &Request) -> Result<Option<u64>, ObjectError> {
        let version = self.set.version();
        if version != self.version {
            self.version = version;
            self.entered = VisitedIndirects::default();
        }
        let entered = Some(&mut self.entered);
        let found = self.set.pointers().next_block(rq, &self.object, self.next, Seek::Data, entered).await?;
        self.next = found.map_or(u64::MAX, |found| found.saturating_add(1));
        Ok(found)
    }
}

/// The objects of a set.
pub struct Objects {
    set: Arc<ObjectSet>,
    /// Blocks of dnodes; `None` in a set that never had an object.
    blocks: Option<DataBlocks>,
    found: VecDeque<(ObjectId, Result<Dnode, ObjectError>)>,
}

impl Objects {
    /// Lists all objects of a set except the meta dnode, in ascending order.
    pub fn of(set: &Arc<ObjectSet>) -> Self {
        let blocks = set.meta().map(|meta| DataBlocks::of(set, &meta));
        Objects { set: set.clone(), blocks, found: VecDeque::new() }
    }

    /// Returns the next object, with its dnode or the error of decoding it; `None` after the last.
    ///
    /// # Errors
    /// Errors of reading dnodes; [`ObjectError::Corrupt`] if two pointers of their tree lead to one indirect block.
    pub async fn next(&mut self, rq: &Request) -> Result<Option<(ObjectId, Result<Dnode, ObjectError>)>, ObjectError> {
        while self.found.is_empty() {
            let Some(blocks) = &mut self.blocks else { return Ok(None) };
            let Some(block) = blocks.next(rq).await? else { return Ok(None) };
            self.found = self.set.dnodes().in_block(rq, block).await?.into();
        }
        Ok(self.found.pop_front())
    }
}

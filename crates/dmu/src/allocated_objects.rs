//! Listing an object's data blocks, or a set's objects, from the first to the last: in a time that the pool's size bounds.
//!
//! A tree of block pointers spans far more than any pool can hold, and a forged one may do so with a handful of blocks:
//! each level full of pointers to the one block below. What no sound tree does is to lead to one block of pointers from
//! two places, for such blocks are neither deduplicated nor cloned. So a listing remembers which of them it met where, and
//! ends with an error when one comes again elsewhere. What remains are as many as the pool has room for.
//!
//! While a set is live its blocks move: what was remembered holds until its next sync.

use crate::error::ObjectError;
use crate::object::Object;
use crate::object_set::ObjectSet;
use crate::read::Seek;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use weir_format::{BlockPointer, Dnode, ObjectId};
use weir_machine::Request;

/// The blocks of pointers that were gone into: address, and level and number in the object.
#[derive(Debug, Default)]
pub(crate) struct Entered(BTreeMap<(u32, u64), (u8, u64)>);

impl Entered {
    /// Notes a block of pointers; false if it was met in another place.
    pub fn note(&mut self, pointer: &BlockPointer, level: u8, number: u64) -> bool {
        let here = (level, number);
        // Every copy: one that is not there could hide one that is.
        let places = pointer.dvas().map(|d| *self.0.entry((d.vdev, d.offset_bytes)).or_insert(here));
        places.filter(|place| *place != here).count() == 0
    }
}

/// The data blocks of an object.
pub struct DataBlocks {
    set: Arc<ObjectSet>,
    object: Arc<Object>,
    next: u64,
    entered: Entered,
    version: u64,
}

impl DataBlocks {
    /// All blocks of an object from the first on.
    pub fn of(set: &Arc<ObjectSet>, object: &Arc<Object>) -> Self {
        let version = set.version();
        DataBlocks { set: set.clone(), object: object.clone(), next: 0, entered: Entered::default(), version }
    }

    /// The number of the next block that is no hole; `None` behind the last.
    ///
    /// # Errors
    /// What reading meets; [`ObjectError::Corrupt`] if the tree leads to one block of pointers twice.
    pub async fn next(&mut self, rq: &Request) -> Result<Option<u64>, ObjectError> {
        let version = self.set.version();
        if version != self.version {
            (self.version, self.entered) = (version, Entered::default());
        }
        let entered = Some(&mut self.entered);
        let found = self.set.next_block(rq, &self.object, self.next, Seek::Data, entered).await?;
        self.next = found.map_or(u64::MAX, |found| found.saturating_add(1));
        Ok(found)
    }
}

/// The objects of a set.
pub struct Objects {
    set: Arc<ObjectSet>,
    /// `None` in a set that never had an object.
    blocks: Option<DataBlocks>,
    found: VecDeque<(ObjectId, Result<Dnode, ObjectError>)>,
}

impl Objects {
    /// All objects of a set but the one of all dnodes, in their order.
    pub fn of(set: &Arc<ObjectSet>) -> Self {
        let blocks = set.meta().map(|meta| DataBlocks::of(set, &meta));
        Objects { set: set.clone(), blocks, found: VecDeque::new() }
    }

    /// The next object, or what is wrong with its dnode; `None` behind the last.
    ///
    /// # Errors
    /// What reading dnodes meets; [`ObjectError::Corrupt`] if their tree leads to one block of pointers twice.
    pub async fn next(&mut self, rq: &Request) -> Result<Option<(ObjectId, Result<Dnode, ObjectError>)>, ObjectError> {
        while self.found.is_empty() {
            let Some(blocks) = &mut self.blocks else { return Ok(None) };
            let Some(block) = blocks.next(rq).await? else { return Ok(None) };
            self.found = self.set.dnodes_in_block(rq, block).await?.into();
        }
        Ok(self.found.pop_front())
    }
}

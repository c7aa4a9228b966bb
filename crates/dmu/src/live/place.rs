//! Writes blocks to their final place before their txg syncs, because the intent log refers to them there
//! (OpenZFS `dmu_sync`): large synchronous writes are not written twice.
//!
//! ```text
//!   overlay of the open txg: block n ──place──► disk         the log's record refers to it
//!   changed again in the txg        ──► the written block is an orphan: the sync frees it
//!   sync of the txg                 ──► the tree refers to the written block; nothing is written again
//! ```
//!
//! The caller holds a [`Tx`] of the txg, so it cannot close meanwhile. A block that was changed during its write is an
//! orphan at once; it has the bytes that were to be logged nevertheless.

use super::dirty_object::{BlockLookup, DirtyBlock};
use super::nop_write::compares;
use super::tree::Writer;
use crate::error::{ErrorLocation, ObjectError};
use crate::handles::Writes;
use crate::txg::Tx;
use bytes::Bytes;
use weir_blocks::WriteOptions;
use weir_format::{BlockPointer, ObjectId};
use weir_machine::Request;

impl Writes<'_> {
    /// Writes a data block that `tx`'s txg changed to its final place and returns its pointer; `None` if this is not
    /// possible: the txg did not change it, or it may be deduplicated, or it is encrypted.
    ///
    /// # Errors
    /// Errors of writing the block.
    pub async fn place_block(
        self,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        block: u64,
    ) -> Result<Option<BlockPointer>, ObjectError> {
        let Some(live) = self.set.live().filter(|_| self.set.options().keys.is_none()) else { return Ok(None) };
        let (bytes, writer, kind, policy, former) = {
            let policy = live.settings().policy;
            let shard = live.shard(id);
            let Some(node) = shard.get(&id) else { return Ok(None) };
            let Some(changes) = node.txgs.get(&tx.txg().0) else { return Ok(None) };
            if let Some(pointer) = changes.placed.get(&block) {
                return Ok(Some(*pointer));
            }
            let (Some(DirtyBlock { bytes, writer, .. }), Some(object)) =
                (changes.blocks.get(&block).cloned(), node.current.clone())
            else {
                return Ok(None);
            };
            if policy.dedup.is_some() {
                return Ok(None);
            }
            // What an earlier txg has changed is free once that has synced, and may be overwritten before this one has.
            let former = node.base.clone().filter(|_| node.txgs.len() == 1);
            (bytes, writer, object.dnode.object_type, policy, former)
        };
        let former = former.filter(|_| compares(self.set, &policy, kind));
        let replaces = match &former {
            Some(former) => self.set.pointers().at(rq, former, 0, block).await?.map(Box::new),
            None => None,
        };
        let options = Writer::new(self.set, rq, tx.txg(), policy).options(id, kind, 0, block, bytes.len());
        let options = WriteOptions { fill: 1, embed: false, writer, replaces, ..options };
        let place = ErrorLocation { objset: self.set.id(), object: id, level: 0, block };
        let written = self.set.cache().blocks().write(rq, bytes.clone(), &options).await;
        let pointer = written.map_err(|e| ObjectError::block(place, e))?;
        if pointer.is_hole() || pointer.is_embedded() {
            return Ok(None);
        }
        if pointer.logical_birth() < tx.txg() {
            // A nop-write: the synced block has these bytes, and stays until this txg has synced. The sync compares again.
            return Ok(Some(pointer));
        }
        let mut shard = live.shard(id);
        let is_written = |now: &Bytes| now.as_ptr() == bytes.as_ptr() && now.len() == bytes.len();
        let unchanged = |found: &BlockLookup| matches!(found, BlockLookup::Data(now) if is_written(now));
        let Some(node) = shard.get_mut(&id) else { return self.lost(place) };
        let same = unchanged(&node.lookup(block));
        let changes = node.changes(tx.txg());
        if same && changes.blocks.contains_key(&block) {
            // If two calls wrote it at the same time, the first one's block becomes an orphan.
            if let Some(first) = changes.placed.insert(block, pointer) {
                changes.orphans.push(first);
            }
            drop(shard);
            self.set.cache().insert(&pointer, &self.set.options_now(), bytes);
        } else {
            changes.orphans.push(pointer);
        }
        Ok(Some(pointer))
    }

    /// A node with changes of a txg that cannot close must exist.
    fn lost<T>(self, place: ErrorLocation) -> Result<T, ObjectError> {
        Err(ObjectError::Corrupt { place, why: "an object's changes went while one of its blocks was written" })
    }
}

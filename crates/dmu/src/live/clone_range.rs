//! Block cloning: blocks that several files share (`feature@block_cloning`).
//!
//! [`Writes::block_to_clone`](crate::Writes::block_to_clone) returns the pointer to a block of one object, [`Writes::clone_block`](crate::Writes::clone_block) puts it into
//! another. At the next sync the second tree refers to the same block, and the pool adds one reference
//! ([`super::ObjsetSyncResult::cloned`]). Until then the overlay holds the pointer: nothing is read or kept in memory.
//!
//! Invariants:
//! - The caller holds one [`Tx`] over both calls, so a free of the source block in that txg or later is applied after
//!   the new reference was added.
//! - An encrypted block is shared only where the same key decrypts it: within a dataset, its clones and its snapshots.
//! - A block is shared only after the txg that wrote it has synced, because a record of the intent log that refers to
//!   it must not outlive it.
//!
//! Source: OpenZFS `module/zfs/dmu.c` (`dmu_read_l0_bps`, `dmu_brt_clone`), `module/zfs/zfs_vnops.c`
//! (`zfs_clone_range`).

use super::dirty_object::BlockLookup;
use crate::error::ObjectError;
use crate::handles::Writes;
use crate::object_set::ObjectSet;
use crate::txg::Tx;
use std::sync::Arc;
use weir_codec::crypt::DatasetKey;
use weir_format::{BlockPointer, ObjectId};
use weir_machine::Request;

/// Answer to a request to share a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloneSource {
    /// Can be shared: a hole, data embedded in the pointer, or a block on disk.
    Block(BlockPointer),
    /// Not before the open txg has synced.
    NotSynced,
    /// Never: it is deduplicated, or encrypted with another key, or the pool does not have the feature.
    Unsupported,
}

impl Writes<'_> {
    /// Returns the pointer of a block of an object of `from`, so that an object of this object set shares it in this
    /// transaction; `from` is this object set or another one of the same pool.
    ///
    /// # Errors
    /// [`ObjectError::ReadOnly`] if this object set cannot be changed; errors of reading.
    pub async fn block_to_clone(
        self,
        rq: &Request,
        _tx: &Tx,
        from: &Arc<ObjectSet>,
        id: ObjectId,
        block: u64,
    ) -> Result<CloneSource, ObjectError> {
        let txgs = self.set.txgs().ok_or(ObjectError::ReadOnly { objset: self.set.id() })?;
        // The same key decrypts a block in any place, because salt, initialization vector and MAC are in the pointer.
        let own = &self.set.options().keys;
        let theirs = &from.options().keys;
        let guid = |key: &Option<Arc<DatasetKey>>| key.as_ref().map(|key| key.guid());
        if guid(own) != guid(theirs) || !self.set.policy().is_some_and(|policy| policy.share_blocks) {
            return Ok(CloneSource::Unsupported);
        }
        let encrypted = own.is_some();
        let pointer = loop {
            let version = from.version();
            match from.live().and_then(|live| Some(live.shard(id).get(&id)?.lookup(block))) {
                Some(BlockLookup::Data(_)) => return Ok(CloneSource::NotSynced),
                Some(BlockLookup::Shared(pointer)) => return Ok(CloneSource::Block(pointer)),
                Some(BlockLookup::Hole) => return Ok(CloneSource::Block(BlockPointer::HOLE)),
                Some(BlockLookup::Synced) | None => {}
            }
            let object = from.object(rq, id).await?;
            let found = from.pointers().at(rq, &object, 0, block).await;
            if from.version() == version {
                break found?.unwrap_or(BlockPointer::HOLE);
            }
        };
        if pointer.is_hole() {
            return Ok(CloneSource::Block(BlockPointer::HOLE));
        }
        let sealed_otherwise = pointer.is_encrypted() != encrypted || pointer.uses_crypt() != encrypted;
        if pointer.is_redacted() || pointer.is_dedup() || sealed_otherwise {
            return Ok(CloneSource::Unsupported);
        }
        let is_stable = pointer.is_embedded() || pointer.physical_birth() <= txgs.last_synced();
        Ok(if is_stable { CloneSource::Block(pointer) } else { CloneSource::NotSynced })
    }

    /// Makes a block refer to the block of a pointer from [`Writes::block_to_clone`](crate::Writes::block_to_clone) or from a record of the intent
    /// log.
    ///
    /// # Errors
    /// [`ObjectError::NoObject`]; [`ObjectError::Unsupported`] if the object has another block size; errors of reading
    /// indirect blocks.
    pub async fn clone_block(
        self,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        block: u64,
        pointer: BlockPointer,
    ) -> Result<(), ObjectError> {
        let object = self.set.object(rq, id).await?;
        if pointer.is_hole() {
            let block_bytes = object.block_bytes();
            return self.set.frees().punch(rq, tx, id, block.saturating_mul(block_bytes), block_bytes).await;
        }
        if pointer.is_embedded() {
            let bytes = self.set.pointers().read(rq, &object, block, &pointer).await?;
            return self.write_block(rq, tx, id, block, bytes).await;
        }
        self.put_shared(rq, tx, id, block, pointer).await
    }
}

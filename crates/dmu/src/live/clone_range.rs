//! Blocks that several files share (`feature@block_cloning`).
//!
//! An object *borrows* the pointer to a block of another and *shares* it: at the next sync its tree leads to the same
//! place, and the pool counts one reference more ([`super::ObjsetSyncResult::cloned`]). Until then the overlay knows that the block
//! is the one at that pointer: nothing is read, and nothing waits in memory.
//!
//! Invariants:
//! - Who borrows and shares holds one [`Tx`] over both: what the lender gives up from that group on is freed after the
//!   sharer's reference was counted.
//! - An encrypted block is lent where the same key opens it: within a data set, to its clones and from its snapshots.
//! - A block is lent only once the group that wrote it is on stable storage: a record of the intent log that leads to it
//!   must not outlive it.
//!
//! Source: OpenZFS `module/zfs/dmu.c` (`dmu_read_l0_bps`, `dmu_brt_clone`), `module/zfs/zfs_vnops.c` (`zfs_clone_range`).

use super::node::BlockLookup;
use crate::error::ObjectError;
use crate::object_set::ObjectSet;
use crate::txg::Tx;
use std::sync::Arc;
use weir_codec::crypt::DatasetKey;
use weir_format::{BlockPointer, ObjectId};
use weir_machine::Request;

/// A block that is asked for to be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloneRefusal {
    /// It may be: a hole, bytes in the pointer itself, or a block on the devices.
    Block(BlockPointer),
    /// Not before the present group has synced.
    NotYet,
    /// Not at all: it is deduplicated, or encrypted with another key, or the pool has no such feature.
    Never,
}

impl ObjectSet {
    /// A block of an object of `from`, which is this set or another of the same pool, to be shared by an object of this
    /// set in this transaction.
    ///
    /// # Errors
    /// [`ObjectError::ReadOnly`] if this set cannot be changed; what reading meets.
    pub async fn borrow_block(
        self: &Arc<Self>,
        rq: &Request,
        _tx: &Tx,
        from: &Arc<ObjectSet>,
        id: ObjectId,
        block: u64,
    ) -> Result<CloneRefusal, ObjectError> {
        let txgs = self.txgs().ok_or(ObjectError::ReadOnly { objset: self.id() })?;
        // What one key has sealed, it opens wherever it lies: salt, initialization vector and MAC come with the pointer.
        let (own, theirs) = (&self.options().keys, &from.options().keys);
        let guid = |key: &Option<Arc<DatasetKey>>| key.as_ref().map(|key| key.guid());
        if guid(own) != guid(theirs) || !self.policy().is_some_and(|policy| policy.share_blocks) {
            return Ok(CloneRefusal::Never);
        }
        let encrypted = own.is_some();
        let pointer = loop {
            let version = from.version();
            match from.live().and_then(|live| Some(live.state().nodes.get(&id)?.see(block))) {
                Some(BlockLookup::Data(_)) => return Ok(CloneRefusal::NotYet),
                Some(BlockLookup::Shared(pointer)) => return Ok(CloneRefusal::Block(pointer)),
                Some(BlockLookup::Hole) => return Ok(CloneRefusal::Block(BlockPointer::HOLE)),
                Some(BlockLookup::Synced) | None => {}
            }
            let object = from.object(rq, id).await?;
            let found = from.pointer_at(rq, &object, 0, block).await;
            if from.version() == version {
                break found?.unwrap_or(BlockPointer::HOLE);
            }
        };
        if pointer.is_hole() {
            return Ok(CloneRefusal::Block(BlockPointer::HOLE));
        }
        let sealed_otherwise = pointer.is_encrypted() != encrypted || pointer.uses_crypt() != encrypted;
        if pointer.is_redacted() || pointer.is_dedup() || sealed_otherwise {
            return Ok(CloneRefusal::Never);
        }
        let is_stable = pointer.is_embedded() || pointer.physical_birth() <= txgs.last_synced();
        Ok(if is_stable { CloneRefusal::Block(pointer) } else { CloneRefusal::NotYet })
    }

    /// Lets a block be the one that was lent, or that a record of the intent log leads to.
    ///
    /// # Errors
    /// [`ObjectError::NoObject`]; [`ObjectError::Unsupported`] if the object's blocks have another size; what reading a
    /// pointer that holds its block meets.
    pub async fn share_block(
        self: &Arc<Self>,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        block: u64,
        lent: BlockPointer,
    ) -> Result<(), ObjectError> {
        let object = self.object(rq, id).await?;
        if lent.is_hole() {
            let block_bytes = object.block_bytes();
            return self.punch(rq, tx, id, block.saturating_mul(block_bytes), block_bytes).await;
        }
        if lent.is_embedded() {
            let bytes = self.read_pointer(rq, &object, block, &lent).await?;
            return self.write_block(rq, tx, id, block, bytes).await;
        }
        self.put_shared(rq, tx, id, block, lent).await
    }
}

//! Blocks that several files share (`feature@block_cloning`).
//!
//! A block on the devices is *lent* by one file and *shared* by another: at the next sync the other's tree leads to the
//! same place, and the pool counts one reference more ([`super::Outcome::cloned`]). Until then the sharer holds its bytes
//! like any that were written, so every reader sees them.
//!
//! Who lends and shares holds one [`Tx`] over both: what the lender overwrites from that group on is freed after the
//! sharer's reference was counted.

use super::node::Seen;
use crate::error::ObjectError;
use crate::object_set::ObjectSet;
use crate::txg::Tx;
use bytes::Bytes;
use std::sync::Arc;
use weir_format::{BlockPointer, ObjectId};
use weir_machine::Request;

/// A block that may be shared.
#[derive(Clone, Debug)]
pub struct Lent {
    /// Where it lies.
    pub pointer: BlockPointer,
    /// What it holds.
    pub bytes: Bytes,
}

impl ObjectSet {
    /// A block that another object, of this set or of another of the same pool, may share; `None` if it cannot be: it is
    /// a hole, not on the devices yet, too small to lie anywhere but in its pointer, deduplicated, or encrypted, or the
    /// pool has no such feature. To be called within the transaction in which it is shared.
    ///
    /// # Errors
    /// What reading meets.
    pub async fn lend_block(
        self: &Arc<Self>,
        rq: &Request,
        _tx: &Tx,
        id: ObjectId,
        block: u64,
    ) -> Result<Option<Lent>, ObjectError> {
        let Some(live) = self.live().filter(|_| self.options().keys.is_none()) else { return Ok(None) };
        loop {
            let version = {
                let state = live.state();
                let unsynced = state.nodes.get(&id).is_some_and(|node| node.see(block) != Seen::Synced);
                if !state.policy.share_blocks || unsynced {
                    return Ok(None);
                }
                state.version
            };
            let object = self.object(rq, id).await?;
            let found = self.pointer_at(rq, &object, 0, block).await?;
            let Some(pointer) = found.filter(is_sharable) else { return Ok(None) };
            let bytes = self.read_pointer(rq, &object, block, &pointer).await?;
            if live.state().version == version {
                return Ok(Some(Lent { pointer, bytes }));
            }
        }
    }

    /// Lets a block be the one that was lent.
    ///
    /// # Errors
    /// [`ObjectError::NoObject`]; [`ObjectError::Unsupported`] if the object's blocks have another size.
    pub async fn share_block(
        self: &Arc<Self>,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        block: u64,
        lent: &Lent,
    ) -> Result<(), ObjectError> {
        self.put_shared(rq, tx, id, block, lent.bytes.clone(), lent.pointer).await
    }
}

fn is_sharable(pointer: &BlockPointer) -> bool {
    let lies = !pointer.is_hole() && !pointer.is_embedded() && !pointer.is_redacted();
    lies && !pointer.is_dedup() && !pointer.is_encrypted() && !pointer.uses_crypt()
}

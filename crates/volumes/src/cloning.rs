//! Block cloning between volumes of a pool (OpenZFS `module/zfs/zvol.c`, `zvol_clone_range`).
//!
//! ```text
//!   source   |  block  |  block  |  block  |      equal block sizes, both at a block boundary: cloned
//!   target             |  block  |  block  |      anything else: the caller copies the bytes
//! ```
//!
//! A block that is not synced yet cannot be cloned; for long ranges the call waits once for a txg sync.
//!
//! *Intent log.* A clone has no log record: a flush of the target waits for its txg. OpenZFS before 2.4 does not replay
//! records of clones in the log of a volume, and would give up the rest of that log. Such records of OpenZFS 2.4 are
//! replayed here.
//!
//! *Locks.* Only the target's range is locked. The transaction keeps the source's blocks: a block that is freed or
//! overwritten in its txg or later is released after the clone's reference was added.

use super::{DATA, Volume, VolumeError};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weir_dmu::live::{CloneSource, SpaceReserve};
use weir_dmu::{ErrorLocation, ObjectError};
use weir_format::BlockPointer;
use weir_machine::{Request, Stage};

/// Maximum number of blocks that one transaction clones; a record of the intent log has about as many.
const MAX_CLONED_BLOCKS: u64 = 1000;
/// Minimum length in bytes for which a call waits for a txg sync.
const MIN_WAIT_BYTES: u64 = 1 << 20;

/// A range to clone.
#[derive(Clone, Copy, Debug)]
struct CloneRange {
    /// Offset in the source, in bytes.
    from: u64,
    /// Offset in the target, in bytes.
    to: u64,
    /// Length in bytes, a multiple of the block size.
    len: u64,
}

/// Result of one attempt.
enum Attempt {
    /// This many bytes were cloned.
    Bytes(u64),
    /// The first block is not synced yet.
    NotYet,
    /// The first block cannot be cloned.
    Never,
}

impl Volume {
    /// Clones whole blocks of `from`, a volume or a snapshot of one, to `offset` of this volume. Returns the number of
    /// bytes: those of at most 1000 blocks, and 0 if the first block cannot be cloned, so that the caller has to copy it.
    ///
    /// The clones are stable after [`Volume::flush`]. The caller is attached to both volumes.
    ///
    /// # Errors
    /// As for [`Volume::write`].
    pub async fn clone_range(
        &self,
        rq: &Request,
        from: &Volume,
        from_offset: u64,
        offset: u64,
        len: u64,
    ) -> Result<u64, VolumeError> {
        self.write_state()?;
        self.check(offset, len)?;
        from.check(from_offset, len)?;
        let Some(range) = self.clonable(from, from_offset, offset, len) else { return Ok(0) };
        let mut waited = len < MIN_WAIT_BYTES;
        loop {
            match self.clone_some(rq, from, range).await? {
                Attempt::Bytes(bytes) => {
                    debug_assert!(bytes > 0 && bytes <= range.len, "{bytes} of {} bytes", range.len);
                    return Ok(bytes);
                }
                Attempt::NotYet if !waited => {
                    waited = true;
                    let read_only = || VolumeError::ReadOnly { name: self.name.clone() };
                    let txgs = self.objects.txgs().ok_or_else(read_only)?;
                    txgs.wait_synced(txgs.open()).await.map_err(self.change_error(offset))?;
                }
                Attempt::NotYet | Attempt::Never => return Ok(0),
            }
        }
    }

    /// The part of a range, from its start on, that consists of blocks that may be cloned by their places and sizes.
    fn clonable(&self, from: &Volume, from_offset: u64, offset: u64, len: u64) -> Option<CloneRange> {
        let block_bytes = u64::from(self.block_bytes);
        let same_pool = Arc::ptr_eq(self.objects.cache(), from.objects.cache());
        if !same_pool || block_bytes == 0 || self.block_bytes != from.block_bytes {
            return None;
        }
        let is_aligned = offset.is_multiple_of(block_bytes) && from_offset.is_multiple_of(block_bytes);
        let overlaps = self.objects.id() == from.objects.id() && offset.abs_diff(from_offset) < len;
        let len = (len / block_bytes).min(MAX_CLONED_BLOCKS) * block_bytes;
        (is_aligned && !overlaps && len > 0).then_some(CloneRange { from: from_offset, to: offset, len })
    }

    /// Clones the blocks of a range up to the first one that cannot be cloned, in one transaction.
    async fn clone_some(&self, rq: &Request, from: &Volume, range: CloneRange) -> Result<Attempt, VolumeError> {
        let state = self.write_state()?;
        let CloneRange { from: from_offset, to, len } = range;
        let block_bytes = u64::from(self.block_bytes);
        debug_assert!(len > 0 && len.is_multiple_of(block_bytes), "{len} bytes are whole blocks");
        let clock = &self.objects.cache().machine().clock;
        let _lock = rq.timed(clock, Stage::Locks, state.ranges.lock(to..to + len)).await;
        let tx = self.objects.begin(rq, len, SpaceReserve::Normal).await.map_err(self.change_error(to))?;
        from.cloned_txg.fetch_max(tx.txg().0, Ordering::SeqCst);
        let mut pointers = Vec::new();
        let mut why = Attempt::Never;
        for block in from_offset / block_bytes..(from_offset + len) / block_bytes {
            let source = self.objects.writes().block_to_clone(rq, &tx, &from.objects, DATA, block).await;
            match source.map_err(|error| from.failed(from_offset, error))? {
                CloneSource::Block(pointer) => pointers.push(pointer),
                CloneSource::NotSynced => {
                    why = Attempt::NotYet;
                    break;
                }
                CloneSource::Unsupported => break,
            }
        }
        if pointers.is_empty() {
            return Ok(why);
        }
        let put = async {
            for (block, pointer) in (to / block_bytes..).zip(&pointers) {
                self.objects.writes().clone_block(rq, &tx, DATA, block, *pointer).await?;
            }
            Ok(())
        };
        let put = put.await;
        if let Some(zil) = self.zil() {
            // Also after an error: some blocks may have been cloned.
            zil.log_barrier_until_synced(&tx, Some(DATA));
        }
        put.map_err(self.change_error(to))?;
        let bytes = pointers.len() as u64 * block_bytes;
        self.objects.account_write(rq, &tx, DATA, to, bytes);
        Ok(Attempt::Bytes(bytes))
    }

    /// Replays a clone that OpenZFS logged (`zvol_replay_clone_range`). Blocks past the end of the volume, which may have
    /// shrunk since, are left out.
    pub(crate) async fn replay_clone(
        &self,
        rq: &Request,
        (offset, block_bytes): (u64, u64),
        pointers: &[BlockPointer],
    ) -> Result<(), ObjectError> {
        if block_bytes == 0 || block_bytes != u64::from(self.block_bytes) || !offset.is_multiple_of(block_bytes) {
            let place = ErrorLocation { objset: self.objects.id(), object: DATA, ..ErrorLocation::default() };
            return Err(ObjectError::Corrupt {
                place,
                why: "a record of cloned blocks of another size than the volume's",
            });
        }
        let blocks = self.size_bytes().saturating_sub(offset).div_ceil(block_bytes).min(pointers.len() as u64);
        // The clone was acknowledged as stable, so it may exceed quotas and use the reserved space.
        let tx = self.objects.begin(rq, blocks * block_bytes, SpaceReserve::NetFree).await?;
        for (block, pointer) in (offset / block_bytes..).zip(pointers.iter().take(blocks as usize)) {
            self.objects.writes().clone_block(rq, &tx, DATA, block, *pointer).await?;
        }
        if let Some(zil) = self.zil() {
            zil.log_barrier_until_synced(&tx, Some(DATA));
        }
        Ok(())
    }
}

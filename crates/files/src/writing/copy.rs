//! Copying between files of a pool (OpenZFS `zfs_clone_range`): whole blocks are cloned, the rest is copied.
//!
//! ```text
//!   source   |  block  |  block  |  bloc|             equal block sizes, both at a block boundary: cloned
//!   target   |  block  |  block  |  bloc|             also the last one, if both files end in it
//!   source      | ........ |                          otherwise bytes, up to the next block that can be cloned
//! ```
//!
//! A block that is not synced yet cannot be cloned; for long ranges the copy waits once for a txg sync.
//!
//! *Lock order.* Both files are locked, those of the file system with the lower ID first.

use super::access_checks;
use super::data::PIECE_BYTES;
use super::locks::ObjectLocks;
use super::node::Node;
use super::quota::owners;
use crate::change::Cred;
use crate::change::FilePosition;
use crate::error::FileError;
use crate::file_system::FileSystem;
use crate::handles::Contents;
use crate::metadata::index;
use std::sync::Arc;
use weir_dmu::live::{CloneSource, SpaceReserve};
use weir_dmu::txg::Tx;
use weir_format::{BlockPointer, ObjectId};
use weir_machine::Request;

/// Maximum number of blocks cloned per transaction, limited by the size of a log record.
const MAX_CLONED_BLOCKS: u64 = 1000;
/// Maximum bytes copied per call, to bound the time that the files are locked.
const MAX_COPY_BYTES: u64 = 1 << 30;
/// Minimum length in bytes for which the copy waits for a txg sync.
const MIN_WAIT_BYTES: u64 = 1 << 20;

/// A copy in progress.
struct Copying<'a> {
    files: &'a FileSystem,
    source: ObjectId,
    /// Next offset in the source, in bytes.
    source_at: u64,
    /// Next offset in the target, in bytes.
    target_at: u64,
    left: u64,
    /// Block size of the source in bytes.
    block_bytes: u64,
    source_bytes: u64,
    waited: bool,
}

/// Result of cloning blocks.
enum CloneResult {
    /// This many bytes were cloned.
    Bytes(u64),
    /// The first block is not synced yet.
    NotYet,
    /// The first block cannot be cloned.
    Never,
}

impl Contents<'_> {
    /// Copies up to `len` bytes from a regular file of `from`, a file system or snapshot of the same pool, to one of
    /// this file system, and returns the number of bytes: fewer at the source's end, or if the range is very long.
    /// Blocks are cloned where possible.
    ///
    /// # Errors
    /// [`FileError::CrossDevice`] for a file of another pool; [`FileError::Invalid`] for overlapping ranges of one
    /// file, and for files of other kinds; else as [`Contents::write`](crate::Contents::write).
    pub async fn copy_range(
        self,
        rq: &Request,
        cred: &Cred,
        from: &FileSystem,
        source: FilePosition<ObjectId>,
        target: FilePosition<ObjectId>,
        len: u64,
    ) -> Result<u64, FileError> {
        let done = self.copy_locked(rq, cred, from, source, target, len).await?;
        if done > 0 {
            self.files.commit_if_sync_always(rq, Some(target.file)).await?;
        }
        Ok(done)
    }

    async fn copy_locked(
        self,
        rq: &Request,
        cred: &Cred,
        from: &FileSystem,
        source: FilePosition<ObjectId>,
        target: FilePosition<ObjectId>,
        len: u64,
    ) -> Result<u64, FileError> {
        let FilePosition { file: source, offset: source_at } = source;
        let FilePosition { file: target, offset: target_at } = target;
        if !Arc::ptr_eq(from.objects().cache(), self.files.objects().cache()) {
            return Err(FileError::CrossDevice);
        }
        let _guard = from.holds().pin_snapshot(source)?;
        let _held = self.lock_both(rq, from, source, target).await?;
        let (lender, source_bytes) = from.contents().source_size(rq, cred, source).await?;
        let mut node = self.files.nodes().load(rq, target).await?.require_file()?;
        access_checks::write(cred, &node, false)?;
        let left = len.min(source_bytes.saturating_sub(source_at)).min(MAX_COPY_BYTES);
        Self::check_size(target_at.saturating_add(left))?;
        let same = source == target && from.objects().id() == self.files.objects().id();
        if same && source_at.abs_diff(target_at) < left {
            return Err(FileError::Invalid { why: "overlapping ranges" });
        }
        let mut copying = Copying {
            files: from,
            source,
            source_at,
            target_at,
            left,
            block_bytes: lender,
            source_bytes,
            waited: left < MIN_WAIT_BYTES,
        };
        while copying.left > 0 {
            let done = self.copy_some(rq, cred, &mut node, &mut copying).await;
            let bytes = match done {
                Ok(bytes) => bytes,
                // Bytes copied before the error are reported.
                Err(_) if copying.left < left => break,
                Err(error) => return Err(error),
            };
            copying.source_at += bytes;
            copying.target_at += bytes;
            copying.left -= bytes;
        }
        Ok(left - copying.left)
    }

    /// Locks both files. A read-only source needs no lock.
    async fn lock_both(
        self,
        rq: &Request,
        from: &FileSystem,
        source: ObjectId,
        target: ObjectId,
    ) -> Result<ObjectLocks, FileError> {
        let writing = self.files.writing()?;
        let lender = match &from.writing {
            Some(_) if from.objects().id() == self.files.objects().id() => {
                return Ok(writing.locks.all(rq, [source, target]).await);
            }
            Some(lender) => lender,
            None => return Ok(writing.locks.all(rq, [target]).await),
        };
        let mut held = ObjectLocks::new();
        if from.objects().id() < self.files.objects().id() {
            held.push(lender.locks.one(rq, source).await);
            held.push(writing.locks.one(rq, target).await);
        } else {
            held.push(writing.locks.one(rq, target).await);
            held.push(lender.locks.one(rq, source).await);
        }
        Ok(held)
    }

    /// Block size and size of a regular file that will be read.
    async fn source_size(self, rq: &Request, cred: &Cred, file: ObjectId) -> Result<(u64, u64), FileError> {
        let node = self.files.nodes().load(rq, file).await?.require_file()?;
        access_checks::read(cred, &node)?;
        Ok((node.object.block_bytes(), node.size_bytes()))
    }

    /// Clones or copies as much as one transaction takes; returns the number of bytes.
    async fn copy_some(
        self,
        rq: &Request,
        cred: &Cred,
        node: &mut Node,
        copying: &mut Copying<'_>,
    ) -> Result<u64, FileError> {
        let record_bytes = u64::from(self.files.writing()?.settings().record_bytes);
        if copying.can_clone(node, record_bytes) {
            loop {
                match self.clone_some(rq, cred, node, copying).await? {
                    CloneResult::Bytes(bytes) => return Ok(bytes),
                    CloneResult::NotYet if !copying.waited => {
                        copying.waited = true;
                        let txgs = self.files.objects().txgs().ok_or(FileError::ReadOnly)?;
                        txgs.wait_synced(txgs.open()).await.map_err(FileError::opening)?;
                    }
                    CloneResult::NotYet | CloneResult::Never => break,
                }
            }
        }
        let Copying { source_at: from, target_at: to, .. } = *copying;
        let to_boundary = PIECE_BYTES as u64 - to % PIECE_BYTES as u64;
        let to_block = copying.block_bytes - from % copying.block_bytes;
        // Copy one block at a time: later blocks may be cloneable again.
        let length = copying.left.min(to_boundary).min(to_block);
        let bytes = copying.files.contents().read(rq, copying.source, from, length as usize).await?;
        let end = to + copying.left;
        self.write_in_transaction(rq, cred, node, (to, end), &bytes).await?;
        Ok(bytes.len() as u64)
    }

    /// Clones as many blocks as one transaction takes.
    async fn clone_some(
        self,
        rq: &Request,
        cred: &Cred,
        node: &mut Node,
        copying: &Copying<'_>,
    ) -> Result<CloneResult, FileError> {
        let Copying { source_at: from, target_at: to, .. } = *copying;
        let block_bytes = copying.block_bytes;
        let blocks = copying.blocks(node);
        let most = copying.left.min(blocks * block_bytes);
        self.files.quotas().may_grow(rq, &owners(node)).await?;
        let tx = self.files.begin(rq, most, SpaceReserve::Normal).await?;
        copying.files.holds().note_cloned(tx.txg());
        let failed = |e| FileError::at(e, copying.source, from);
        let mut pointers = Vec::new();
        let mut why = CloneResult::Never;
        for block in 0..blocks {
            let block = from / block_bytes + block;
            let cloned_txg =
                self.files.objects().writes().block_to_clone(rq, &tx, copying.files.objects(), copying.source, block);
            match cloned_txg.await.map_err(failed)? {
                CloneSource::Block(pointer) => pointers.push(pointer),
                CloneSource::NotSynced => {
                    why = CloneResult::NotYet;
                    break;
                }
                CloneSource::Unsupported => break,
            }
        }
        let bytes = most.min(pointers.len() as u64 * block_bytes);
        if bytes == 0 || !self.fit_block(rq, &tx, node, block_bytes).await? {
            return Ok(if bytes == 0 { why } else { CloneResult::Never });
        }
        self.put_cloned(rq, &tx, node, to, &pointers).await?;
        node.set_word(index::SIZE, node.size_bytes().max(to + bytes))?;
        node.touch_contents(self.files.writing()?.now())?;
        let cleared = self.clear_setid_on_write(cred, node)?;
        self.files.nodes().store(rq, &tx, node).await?;
        self.files.log().clone_blocks(&tx, node, (to, bytes), pointers);
        if cleared {
            self.files.log().mode(&tx, node);
        }
        Ok(CloneResult::Bytes(bytes))
    }

    /// Changes the block size of a single-block file; false if impossible.
    pub(super) async fn fit_block(
        self,
        rq: &Request,
        tx: &Tx,
        node: &mut Node,
        block_bytes: u64,
    ) -> Result<bool, FileError> {
        if node.object.block_bytes() != block_bytes {
            match self.files.objects().changes().set_block_bytes(rq, tx, node.id, block_bytes as u32).await {
                Ok(()) => node.object = self.files.object(rq, node.id).await?,
                Err(weir_dmu::ObjectError::Unsupported { .. }) => return Ok(false),
                Err(error) => return Err(FileError::of(error, &node.object)),
            }
        }
        Ok(true)
    }

    /// Replaces the blocks from `offset` on by these block pointers.
    pub(super) async fn put_cloned(
        self,
        rq: &Request,
        tx: &Tx,
        node: &mut Node,
        offset: u64,
        pointers: &[BlockPointer],
    ) -> Result<(), FileError> {
        let first = offset / node.object.block_bytes();
        for (block, pointer) in (first..).zip(pointers) {
            let shared = self.files.objects().writes().clone_block(rq, tx, node.id, block, *pointer).await;
            shared.map_err(|e| FileError::of(e, &node.object))?;
        }
        node.object = self.files.object(rq, node.id).await?;
        Ok(())
    }
}

impl Copying<'_> {
    /// Number of blocks that can be cloned from here in one transaction: whole ones, and a partial one if it is the
    /// last of both files.
    fn blocks(&self, target: &Node) -> u64 {
        let Copying { source_at: from, target_at: to, .. } = *self;
        let ends = self.left == self.source_bytes - from && to.saturating_add(self.left) >= target.size_bytes();
        let blocks = if ends { self.left.div_ceil(self.block_bytes) } else { self.left / self.block_bytes };
        blocks.min(MAX_CLONED_BLOCKS)
    }

    /// Whether sizes and offsets permit cloning the next blocks.
    fn can_clone(&self, target: &Node, record_bytes: u64) -> bool {
        let Copying { source_at: from, target_at: to, .. } = *self;
        let block_bytes = self.block_bytes;
        let size_bytes = target.size_bytes();
        let present_bytes = target.object.block_bytes();
        // A single-block file may get a larger block size; one with an odd size cannot have a second block.
        let fits = block_bytes == present_bytes || block_bytes > present_bytes && size_bytes <= present_bytes;
        let aligned = from.is_multiple_of(block_bytes) && to.is_multiple_of(block_bytes);
        let sole = to == 0 || block_bytes.is_power_of_two();
        // A small file that is growing should not keep small blocks.
        let would_stick = self.left <= block_bytes
            && block_bytes < record_bytes
            && size_bytes <= block_bytes
            && to.saturating_add(self.left) > block_bytes;
        fits && aligned && sole && self.blocks(target) > 0 && !would_stick
    }
}

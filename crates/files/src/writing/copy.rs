//! Copying from file to file within a pool (OpenZFS `zfs_clone_range`): whole blocks are shared, the rest is copied.
//!
//! ```text
//!   source   |  block  |  block  |  bloc|             same size of blocks, both at a block's start: shared
//!   target   |  block  |  block  |  bloc|             the last one too, if both files end in it
//!   source      | ........ |                          elsewhere: bytes, up to where blocks can be shared again
//! ```
//!
//! A block that has not synced yet cannot be shared; where much is to be copied, that is waited for, once.
//!
//! *Order of locks.* Both files are locked, those of the file system with the lower number first.

use super::data::PIECE_BYTES;
use super::locks::HeldSet;
use super::may;
use super::node::Node;
use super::quota::owners;
use crate::change::Cred;
use crate::error::FileError;
use crate::file_system::FileSystem;
use crate::metadata::index;
use std::sync::Arc;
use weir_dmu::live::{Lent, Purpose};
use weir_dmu::txg::Tx;
use weir_format::{BlockPointer, ObjectId};
use weir_machine::Request;

/// Most blocks that one transaction shares: so many pointers go into a record of the log.
const SHARED_AT_ONCE: u64 = 1000;
/// Most bytes that one call copies: nobody is to hold the files' locks for ever.
const MOST_BYTES: u64 = 1 << 30;
/// For so many bytes it is worth to wait for a group.
const WORTH_WAITING_BYTES: u64 = 1 << 20;

/// What is left to be copied.
struct Copying<'a> {
    files: &'a FileSystem,
    source: ObjectId,
    /// From and to where, in bytes.
    at: (u64, u64),
    left: u64,
    /// Of the source's blocks.
    block_bytes: u64,
    source_bytes: u64,
    waited: bool,
}

/// What came of sharing blocks.
enum Shared {
    /// So many bytes are shared.
    Bytes(u64),
    /// The first block is not stable yet.
    NotYet,
    /// The first block cannot be shared.
    Never,
}

impl FileSystem {
    /// Copies up to `len` bytes from a plain file of `from`, a file system or snapshot of the same pool, to one of this
    /// file system, and gives how many: fewer at the source's end, and where the range is very long. Blocks are shared
    /// where they can be.
    ///
    /// # Errors
    /// [`FileError::CrossDevice`] for a file of another pool; [`FileError::Invalid`] for ranges of one file that
    /// overlap, and for what is no plain file; as [`FileSystem::write`].
    pub async fn copy_range(
        &self,
        rq: &Request,
        cred: &Cred,
        (from, source, source_at): (&FileSystem, ObjectId, u64),
        (target, target_at): (ObjectId, u64),
        len: u64,
    ) -> Result<u64, FileError> {
        let done = self.copy_locked(rq, cred, (from, source, source_at), (target, target_at), len).await?;
        if done > 0 {
            self.settle(rq, Some(target)).await?;
        }
        Ok(done)
    }

    async fn copy_locked(
        &self,
        rq: &Request,
        cred: &Cred,
        (from, source, source_at): (&FileSystem, ObjectId, u64),
        (target, target_at): (ObjectId, u64),
        len: u64,
    ) -> Result<u64, FileError> {
        if !Arc::ptr_eq(from.objects().cache(), self.objects().cache()) {
            return Err(FileError::CrossDevice);
        }
        let _kept = from.keep(source)?;
        let _held = self.lock_both(from, source, target).await?;
        let (lender, source_bytes) = from.contents(rq, cred, source).await?;
        let mut node = self.node(rq, target).await?.require_file()?;
        may::write(cred, &node, false)?;
        let left = len.min(source_bytes.saturating_sub(source_at)).min(MOST_BYTES);
        Self::check_size(target_at.saturating_add(left))?;
        let same = source == target && from.objects().id() == self.objects().id();
        if same && source_at.abs_diff(target_at) < left {
            return Err(FileError::Invalid { why: "ranges that overlap" });
        }
        let at = (source_at, target_at);
        let mut copying = Copying {
            files: from,
            source,
            at,
            left,
            block_bytes: lender,
            source_bytes,
            waited: left < WORTH_WAITING_BYTES,
        };
        while copying.left > 0 {
            let done = self.copy_some(rq, cred, &mut node, &mut copying).await;
            let bytes = match done {
                Ok(bytes) => bytes,
                // What was copied before is there.
                Err(_) if copying.left < left => break,
                Err(error) => return Err(error),
            };
            copying.at = (copying.at.0 + bytes, copying.at.1 + bytes);
            copying.left -= bytes;
        }
        Ok(left - copying.left)
    }

    /// Locks both files. A file that cannot change needs no lock.
    async fn lock_both(&self, from: &FileSystem, source: ObjectId, target: ObjectId) -> Result<HeldSet, FileError> {
        let writing = self.writing()?;
        let lender = match &from.writing {
            Some(_) if from.objects().id() == self.objects().id() => {
                return Ok(writing.locks.all([source, target]).await);
            }
            Some(lender) => lender,
            None => return Ok(writing.locks.all([target]).await),
        };
        let mut held = HeldSet::new();
        if from.objects().id() < self.objects().id() {
            held.push(lender.locks.one(source).await);
            held.push(writing.locks.one(target).await);
        } else {
            held.push(writing.locks.one(target).await);
            held.push(lender.locks.one(source).await);
        }
        Ok(held)
    }

    /// The size of the blocks of a plain file that is to be read, and its size.
    async fn contents(&self, rq: &Request, cred: &Cred, file: ObjectId) -> Result<(u64, u64), FileError> {
        let node = self.node(rq, file).await?.require_file()?;
        may::read(cred, &node)?;
        Ok((node.object.block_bytes(), node.size_bytes()))
    }

    /// Shares or copies what one transaction takes, and gives how many bytes.
    async fn copy_some(
        &self,
        rq: &Request,
        cred: &Cred,
        node: &mut Node,
        copying: &mut Copying<'_>,
    ) -> Result<u64, FileError> {
        let record_bytes = u64::from(self.writing()?.settings().record_bytes);
        if copying.can_share(node, record_bytes) {
            loop {
                match self.share_some(rq, cred, node, copying).await? {
                    Shared::Bytes(bytes) => return Ok(bytes),
                    Shared::NotYet if !copying.waited => {
                        copying.waited = true;
                        let groups = self.objects().groups().ok_or(FileError::ReadOnly)?;
                        groups.wait_synced(groups.open()).await.map_err(FileError::opening)?;
                    }
                    Shared::NotYet | Shared::Never => break,
                }
            }
        }
        let (from, to) = copying.at;
        let to_boundary = PIECE_BYTES as u64 - to % PIECE_BYTES as u64;
        let to_block = copying.block_bytes - from % copying.block_bytes;
        // One block at a time: those that follow may be shared again.
        let length = copying.left.min(to_boundary).min(to_block);
        let bytes = copying.files.read(rq, copying.source, from, length as usize).await?;
        let end = to + copying.left;
        self.write_one(rq, cred, node, (to, end), &bytes).await?;
        Ok(bytes.len() as u64)
    }

    /// Shares as many blocks as one transaction takes.
    async fn share_some(
        &self,
        rq: &Request,
        cred: &Cred,
        node: &mut Node,
        copying: &Copying<'_>,
    ) -> Result<Shared, FileError> {
        let (from, to) = copying.at;
        let block_bytes = copying.block_bytes;
        let blocks = copying.blocks(node);
        let most = copying.left.min(blocks * block_bytes);
        self.may_grow(rq, &owners(node)).await?;
        let tx = self.begin(rq, most, Purpose::Write).await?;
        copying.files.note_lent(tx.txg());
        let failed = |e| FileError::at(e, copying.source, from);
        let mut pointers = Vec::new();
        let mut why = Shared::Never;
        for block in 0..blocks {
            let block = from / block_bytes + block;
            let lent = self.objects().borrow_block(rq, &tx, copying.files.objects(), copying.source, block);
            match lent.await.map_err(failed)? {
                Lent::Block(pointer) => pointers.push(pointer),
                Lent::NotYet => {
                    why = Shared::NotYet;
                    break;
                }
                Lent::Never => break,
            }
        }
        let bytes = most.min(pointers.len() as u64 * block_bytes);
        if bytes == 0 || !self.fit_block(rq, &tx, node, block_bytes).await? {
            return Ok(if bytes == 0 { why } else { Shared::Never });
        }
        self.put_shared(rq, &tx, node, to, &pointers).await?;
        node.set_word(index::SIZE, node.size_bytes().max(to + bytes))?;
        node.touch_contents(self.writing()?.now())?;
        let cleared = self.drop_set_ids(cred, node)?;
        self.store(rq, &tx, node).await?;
        self.log_clone(&tx, node, (to, bytes), pointers);
        if cleared {
            self.log_mode(&tx, node);
        }
        Ok(Shared::Bytes(bytes))
    }

    /// Gives a file of one block blocks of that size; false if that cannot be.
    pub(super) async fn fit_block(
        &self,
        rq: &Request,
        tx: &Tx,
        node: &mut Node,
        block_bytes: u64,
    ) -> Result<bool, FileError> {
        if node.object.block_bytes() != block_bytes {
            match self.objects().set_block_bytes(rq, tx, node.id, block_bytes as u32).await {
                Ok(()) => node.object = self.object(rq, node.id).await?,
                Err(weir_dmu::ObjectError::Unsupported { .. }) => return Ok(false),
                Err(error) => return Err(FileError::of(error, &node.object)),
            }
        }
        Ok(true)
    }

    /// Lets the blocks from `offset` on be those that the pointers lead to.
    pub(super) async fn put_shared(
        &self,
        rq: &Request,
        tx: &Tx,
        node: &mut Node,
        offset: u64,
        pointers: &[BlockPointer],
    ) -> Result<(), FileError> {
        let first = offset / node.object.block_bytes();
        for (block, pointer) in (first..).zip(pointers) {
            let shared = self.objects().share_block(rq, tx, node.id, block, *pointer).await;
            shared.map_err(|e| FileError::of(e, &node.object))?;
        }
        node.object = self.object(rq, node.id).await?;
        Ok(())
    }
}

impl Copying<'_> {
    /// How many blocks of the source may stand for those of the target, from here on and in one transaction: whole ones, and
    /// a part of one if that is the last of both files.
    fn blocks(&self, target: &Node) -> u64 {
        let (from, to) = self.at;
        let ends = self.left == self.source_bytes - from && to.saturating_add(self.left) >= target.size_bytes();
        let blocks = if ends { self.left.div_ceil(self.block_bytes) } else { self.left / self.block_bytes };
        blocks.min(SHARED_AT_ONCE)
    }

    /// Whether the next blocks can be shared, as far as sizes and places tell.
    fn can_share(&self, target: &Node, record_bytes: u64) -> bool {
        let ((from, to), block_bytes) = (self.at, self.block_bytes);
        let (size_bytes, present_bytes) = (target.size_bytes(), target.object.block_bytes());
        // A file of one block may get larger ones; and one of odd size has no second.
        let fits = block_bytes == present_bytes || block_bytes > present_bytes && size_bytes <= present_bytes;
        let aligned = from.is_multiple_of(block_bytes) && to.is_multiple_of(block_bytes);
        let sole = to == 0 || block_bytes.is_power_of_two();
        // A small file that is only beginning to grow is not to keep small blocks.
        let would_stick = self.left <= block_bytes
            && block_bytes < record_bytes
            && size_bytes <= block_bytes
            && to.saturating_add(self.left) > block_bytes;
        fits && aligned && sole && self.blocks(target) > 0 && !would_stick
    }
}

//! File contents: writing, truncation, holes (OpenZFS `zfs_write`, `zfs_freesp`, `zfs_grow_blocksize`).
//!
//! *Block size.* A new file has one block of 512 bytes, which grows with the file in steps of 512 bytes up to
//! `recordsize`; after that the file has several blocks of this size, which is fixed.

use super::access_checks;
use super::make::NAME_BYTES;
use super::node::Node;
use super::quota::owners;
use super::rewrite;
use crate::attributes::Attributes;
use crate::change::{Cred, Space, WriteAt};
use crate::error::FileError;
use crate::handles::{Contents, Names};
use crate::metadata::index;
use bytes::Bytes;
use std::ops::Range;
use weir_dmu::ObjectError;
use weir_dmu::live::SpaceReserve;
use weir_dmu::txg::Tx;
use weir_format::ObjectId;
use weir_machine::Request;

/// Maximum bytes written per transaction.
pub(super) const PIECE_BYTES: usize = 1 << 20;
/// Maximum file size in bytes: offsets are signed.
const MAX_FILE_BYTES: u64 = i64::MAX as u64;
const SET_IDS: u64 = 0o6000;
const EXECUTABLE: u64 = 0o111;

impl Contents<'_> {
    /// Writes to a regular file and returns its attributes. The data are stable after [`FileSystem::sync`](crate::FileSystem::sync), or on
    /// return if `sync=always`.
    ///
    /// A large write takes several transactions: after a crash a prefix of it may exist unless it was synced.
    ///
    /// # Errors
    /// [`FileError::IsDirectory`], [`FileError::Invalid`] for files without contents; [`FileError::TooLarge`];
    /// [`FileError::NoSpace`]; permission errors.
    pub async fn write(
        self,
        rq: &Request,
        cred: &Cred,
        file: ObjectId,
        at: WriteAt,
        data: Bytes,
    ) -> Result<Attributes, FileError> {
        self.write_locked(rq, cred, file, at, data).await?;
        self.files.commit_if_sync_always(rq, Some(file)).await?;
        self.files.attrs().get(rq, file).await
    }

    pub(super) async fn write_locked(
        self,
        rq: &Request,
        cred: &Cred,
        file: ObjectId,
        at: WriteAt,
        data: Bytes,
    ) -> Result<(), FileError> {
        let writing = self.files.writing()?;
        let mut _held = writing.locks.one(rq, file).await;
        let mut node = self.files.nodes().load(rq, file).await?.require_file()?;
        access_checks::write(cred, &node, at == WriteAt::End)?;
        if self.files.xattrs().has_capabilities(rq, &node).await? {
            drop(_held);
            self.files.xattrs().clear_capabilities(rq, file).await?;
            _held = writing.locks.one(rq, file).await;
            node = self.files.nodes().load(rq, file).await?.require_file()?;
        }
        let offset = if let WriteAt::Offset(offset) = at { offset } else { node.size_bytes() };
        let end =
            offset.checked_add(data.len() as u64).filter(|end| *end <= MAX_FILE_BYTES).ok_or(FileError::TooLarge)?;
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            // Pieces end at multiples of every block size.
            let to_boundary = PIECE_BYTES - (at % PIECE_BYTES as u64) as usize;
            let piece = rest.split_to(rest.len().min(to_boundary));
            self.write_in_transaction(rq, cred, &mut node, (at, end), &piece).await?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Writes a piece at `at` in its own transaction; `end` is the end of the whole write.
    pub(super) async fn write_in_transaction(
        self,
        rq: &Request,
        cred: &Cred,
        node: &mut Node,
        (at, end): (u64, u64),
        piece: &Bytes,
    ) -> Result<(), FileError> {
        self.files.quotas().may_grow(rq, &owners(node)).await?;
        let tx = self.files.begin(rq, piece.len() as u64, SpaceReserve::Normal).await?;
        self.grow_block(rq, &tx, node, end).await?;
        self.write_piece(rq, &tx, node, at, piece).await?;
        self.files.objects().account_write(rq, &tx, node.id, at, piece.len() as u64);
        node.set_word(index::SIZE, node.size_bytes().max(at + piece.len() as u64))?;
        node.touch_contents(self.files.writing()?.now())?;
        let cleared = self.clear_setid_on_write(cred, node)?;
        self.files.nodes().store(rq, &tx, node).await?;
        self.files.log().write(&tx, node, at, piece);
        if cleared {
            self.files.log().mode(&tx, node);
        }
        Ok(())
    }

    /// Clears the set-user-id and set-group-id bits of an executable on a write by another user.
    pub(super) fn clear_setid_on_write(self, cred: &Cred, node: &mut Node) -> Result<bool, FileError> {
        let mode = node.mode();
        if cred.uid == 0 || mode & SET_IDS == 0 || mode & EXECUTABLE == 0 {
            return Ok(false);
        }
        node.set_word(index::MODE, Names::clear_setid_bits(mode))?;
        Ok(true)
    }

    /// Writes bytes into blocks; whole blocks without a copy.
    pub(super) async fn write_piece(
        self,
        rq: &Request,
        tx: &Tx,
        node: &Node,
        offset: u64,
        piece: &Bytes,
    ) -> Result<(), FileError> {
        let set = self.files.objects();
        let id = node.id;
        let failed = |e| FileError::of(e, &node.object);
        let block_bytes = node.object.block_bytes();
        let mut at = offset;
        let mut rest = piece.clone();
        while !rest.is_empty() {
            let to_boundary = block_bytes - at % block_bytes;
            if to_boundary < block_bytes || (rest.len() as u64) < block_bytes {
                let part = rest.split_to(rest.len().min(to_boundary as usize));
                set.writes().write(rq, tx, id, at, &part).await.map_err(failed)?;
                at += part.len() as u64;
            } else {
                let part = rest.split_to(block_bytes as usize);
                set.writes().write_block(rq, tx, id, at / block_bytes, part).await.map_err(failed)?;
                at += block_bytes;
            }
        }
        Ok(())
    }

    /// Grows the single block of a file for a write that ends at `end`.
    pub(super) async fn grow_block(self, rq: &Request, tx: &Tx, node: &mut Node, end: u64) -> Result<(), FileError> {
        let block_bytes = node.object.block_bytes();
        let record_bytes = u64::from(self.files.writing()?.settings().record_bytes);
        let may_grow = !block_bytes.is_power_of_two() || block_bytes < record_bytes;
        if end <= block_bytes || !may_grow || node.size_bytes() > block_bytes {
            return Ok(());
        }
        let most = if block_bytes > record_bytes { block_bytes.next_power_of_two() } else { record_bytes };
        let wanted = end.min(most).next_multiple_of(512);
        let grown = self.files.objects().changes().set_block_bytes(rq, tx, node.id, wanted as u32).await;
        match grown {
            // There are blocks beyond the file's end: the block size is fixed.
            Ok(()) | Err(ObjectError::Unsupported { .. }) => {}
            Err(error) => return Err(FileError::of(error, &node.object)),
        }
        node.object = self.files.object(rq, node.id).await?;
        Ok(())
    }

    /// Frees most of a range in separate transactions if it is too large for one, before the caller's own
    /// transaction.
    pub(super) async fn free_long_range(self, rq: &Request, node: &Node, range: Range<u64>) -> Result<(), FileError> {
        let freed = self.files.objects().frees().free_long_range(rq, node.id, range).await;
        freed.map_err(|e| FileError::of(e, &node.object))
    }

    /// Resizes a regular file. The caller stores the node.
    pub(super) async fn resize(self, rq: &Request, tx: &Tx, node: &mut Node, size_bytes: u64) -> Result<(), FileError> {
        let old = node.size_bytes();
        if size_bytes < old {
            let cut = self.files.objects().frees().punch(rq, tx, node.id, size_bytes, u64::MAX).await;
            cut.map_err(|e| FileError::of(e, &node.object))?;
            node.object = self.files.object(rq, node.id).await?;
        } else if size_bytes > old {
            self.grow_block(rq, tx, node, size_bytes).await?;
        }
        node.set_word(index::SIZE, size_bytes)
    }

    /// Checks the maximum file size.
    pub(super) fn check_size(size_bytes: u64) -> Result<(), FileError> {
        if size_bytes > MAX_FILE_BYTES { Err(FileError::TooLarge) } else { Ok(()) }
    }

    /// Reserves, zeroes, punches or rewrites a range of a regular file and returns its attributes.
    ///
    /// # Errors
    /// [`FileError::Invalid`] for an empty range; [`FileError::NoSpace`] for a reservation of more than is available; else as [`Contents::write`](crate::Contents::write).
    pub async fn allocate(
        self,
        rq: &Request,
        cred: &Cred,
        file: ObjectId,
        range: Range<u64>,
        space: Space,
    ) -> Result<Attributes, FileError> {
        if range.is_empty() {
            return Err(FileError::Invalid { why: "empty range" });
        }
        match space {
            Space::Rewrite => rewrite::rewrite(self, rq, cred, file, range).await?,
            _ => self.allocate_locked(rq, cred, file, range, space).await?,
        }
        self.files.commit_if_sync_always(rq, Some(file)).await?;
        self.files.attrs().get(rq, file).await
    }

    async fn allocate_locked(
        self,
        rq: &Request,
        cred: &Cred,
        file: ObjectId,
        range: Range<u64>,
        space: Space,
    ) -> Result<(), FileError> {
        let writing = self.files.writing()?;
        Self::check_size(range.end)?;
        let _held = writing.locks.one(rq, file).await;
        let mut node = self.files.nodes().load(rq, file).await?.require_file()?;
        access_checks::write(cred, &node, false)?;
        if let Space::Reserve { .. } = space {
            self.files.quotas().check_reserve(rq, file, range.end - range.start).await?;
        }
        let size_bytes = node.size_bytes();
        let (punches, keeps_size) = match space {
            Space::Reserve { keep_size } => (false, keep_size),
            Space::Zero { keep_size } => (true, keep_size),
            Space::Punch => (true, true),
            Space::Rewrite => (false, true),
        };
        let grows = !keeps_size && range.end > size_bytes;
        // There is nothing to punch beyond the end.
        let inside = range.start..range.end.min(size_bytes);
        let punches = punches && !inside.is_empty();
        if !punches && !grows {
            return Ok(());
        }
        if punches {
            self.free_long_range(rq, &node, inside.clone()).await?;
        }
        let purpose = if grows { SpaceReserve::Normal } else { SpaceReserve::NetFree };
        let tx = self.files.begin(rq, NAME_BYTES, purpose).await?;
        if punches {
            let len = inside.end - inside.start;
            let punched = self.files.objects().frees().punch(rq, &tx, file, inside.start, len).await;
            punched.map_err(|e| FileError::of(e, &node.object))?;
            node.object = self.files.object(rq, file).await?;
        }
        if grows {
            self.resize(rq, &tx, &mut node, range.end).await?;
        }
        node.touch_contents(writing.now())?;
        let cleared = self.clear_setid_on_write(cred, &mut node)?;
        self.files.nodes().store(rq, &tx, &node).await?;
        if punches {
            self.files.log().truncate(&tx, &node, inside.start, inside.end - inside.start);
        }
        if grows {
            self.files.log().truncate(&tx, &node, range.end, 0);
        }
        if cleared {
            self.files.log().mode(&tx, &node);
        }
        Ok(())
    }
}

//! Giving blocks back, and how much of that one group does.
//!
//! The problem: a transaction that takes a file of terabytes away costs next to nothing while it is made, but its group
//! has to visit each block of the file when it is synced; until then nobody's fsync of a later group, and no command, is
//! done. So freeing is spread:
//!
//! ```text
//!   free_down:   … ────────────┬──────────┬──────────┐      pieces from the end on, each a transaction of its own;
//!                 what is left │ piece 2  │ piece 1  │ end  a piece holds few blocks, however long its hole is
//!                              └──────────┴──────────┘
//!   group:       blocks given back so far ≥ limit ─► the next transaction that frees waits for the next group to open
//! ```
//!
//! - What is left fits into one transaction: the caller's, which also changes names, sizes, logs.
//! - Blocks are counted, not bytes: from the fill counts of the synced tree, so that only the indirect blocks along the
//!   edge of a piece are read; and from the overlay.
//! - A piece is not logged. After a crash in the midst, the last pieces of a range that was to be freed may be zeros
//!   while its size is the old one; a file that is to go stands in the delete queue.
//!
//! Source of the ideas: OpenZFS `module/zfs/dmu.c` (`dmu_free_long_range`, `zfs_per_txg_dirty_frees_percent`).

use super::SpaceReserve;
use super::node::Node;
use crate::error::ObjectError;
use crate::object::{Object, shift_left, shift_right};
use crate::object_set::ObjectSet;
use crate::read::pointer_in;
use crate::txg::Tx;
use futures_util::future::BoxFuture;
use std::ops::Range;
use std::sync::Arc;
use weir_format::{BlockPointer, ObjectId};
use weir_machine::Request;

/// A transaction frees this part of what a group may free.
const CHUNKS_PER_TXG: u64 = 16;
/// What a piece is said to write: its dnode.
const PIECE_BYTES: u64 = 8 << 10;

/// The end of a range of blocks.
struct Piece {
    /// Blocks that may still join.
    room: u64,
    /// Stored blocks in it.
    blocks: u64,
    /// Where it begins.
    from: u64,
    /// The next stored block has no room any more.
    is_full: bool,
}

/// Stored blocks below a pointer of that level.
fn stored(pointer: &BlockPointer, level: u8) -> u64 {
    match (pointer.is_hole(), level) {
        (true, _) => 0,
        (false, 0) => 1,
        (false, _) => pointer.fill().max(1),
    }
}

impl Node {
    /// Blocks that unsynced changes wrote in this range.
    fn unsynced(&self, range: &Range<u64>) -> impl Iterator<Item = u64> {
        let all = self.txgs.values().flat_map(|c| c.blocks.range(range.clone()).map(|(n, _)| *n));
        all.chain(self.txgs.values().flat_map(|c| c.shared.range(range.clone()).map(|(n, _)| *n)))
    }
}

impl ObjectSet {
    /// Takes an object away, with all its blocks.
    ///
    /// # Errors
    /// [`ObjectError::NoObject`] if there is none.
    pub async fn remove(self: &Arc<Self>, rq: &Request, tx: &Tx, id: ObjectId) -> Result<(), ObjectError> {
        self.count_freed(rq, tx, id, 0..u64::MAX).await?;
        self.change(rq, id, |node| {
            if node.current.is_none() {
                return Err(self.no_object(id));
            }
            node.remove(tx.txg());
            Ok(())
        })
        .await
    }

    /// Makes `len` bytes from `offset` on zeros: whole blocks are freed, parts of blocks overwritten. To the end of the
    /// object with `u64::MAX`.
    ///
    /// # Errors
    /// [`ObjectError::NoObject`]; what reading meets.
    pub async fn punch(
        self: &Arc<Self>,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        offset: u64,
        len: u64,
    ) -> Result<(), ObjectError> {
        let block_bytes = self.object(rq, id).await?.block_bytes();
        let end = offset.saturating_add(len);
        let (first, last) = (offset.div_ceil(block_bytes), end / block_bytes);
        if !offset.is_multiple_of(block_bytes) {
            let head_end = end.min((offset / block_bytes + 1) * block_bytes);
            self.zero(rq, tx, id, offset, head_end - offset, block_bytes).await?;
        }
        if end != u64::MAX && !end.is_multiple_of(block_bytes) && last >= first {
            self.zero(rq, tx, id, last * block_bytes, end % block_bytes, block_bytes).await?;
        }
        let last = if end == u64::MAX { u64::MAX } else { last };
        if last <= first {
            return Ok(());
        }
        self.count_freed(rq, tx, id, first..last).await?;
        self.free_blocks(rq, tx, id, first..last).await
    }

    /// Counts what is about to be freed, if it can be; the syncer, whose group nobody waits to enter, is not counted.
    async fn count_freed(
        self: &Arc<Self>,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        range: Range<u64>,
    ) -> Result<(), ObjectError> {
        if tx.is_syncing() {
            return Ok(());
        }
        let last = self.object(rq, id).await?.dnode.max_block_id;
        let range = range.start..range.end.min(last.saturating_add(1));
        if !range.is_empty() {
            self.look_ahead(rq, id, range.clone()).await?;
            let freed = self.last_piece(rq, id, range, u64::MAX).await?;
            self.book_freed(tx, freed.blocks);
        }
        Ok(())
    }

    /// Makes blocks holes.
    async fn free_blocks(
        self: &Arc<Self>,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        Range { start: first, end: last }: Range<u64>,
    ) -> Result<(), ObjectError> {
        self.change_image(rq, tx, id, |image, changes| {
            let keep = changes.blocks.split_off(&first);
            changes.blocks.extend(keep.into_iter().filter(|(n, _)| *n >= last));
            changes.displace(first..last);
            changes.shared.retain(|n, _| !(first..last).contains(n));
            changes.freed.add(first..last);
            if last > image.max_block_id {
                image.max_block_id = image.max_block_id.min(first.saturating_sub(1));
            }
            Ok(())
        })
        .await
    }

    /// Overwrites a part of one block with zeros, unless it is a hole.
    async fn zero(
        self: &Arc<Self>,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        offset: u64,
        len: u64,
        block_bytes: u64,
    ) -> Result<(), ObjectError> {
        let object = self.object(rq, id).await?;
        let block = offset / block_bytes;
        if self.read_block(rq, &object, block).await?.is_none() {
            return Ok(());
        }
        self.patch(rq, tx, id, block, (offset % block_bytes) as usize, &vec![0; len as usize]).await
    }

    /// Most blocks that one transaction is to give back.
    fn most_per_piece(&self) -> u64 {
        self.live().map_or(u64::MAX, |live| (live.gate.freed_per_group() / CHUNKS_PER_TXG).max(1))
    }

    /// Whether an object has so few blocks that one transaction may take all of it away. Without reading anything.
    pub fn is_small(&self, object: &Object) -> bool {
        let top = object.dnode.levels.saturating_sub(1);
        let synced =
            object.dnode.block_pointers.iter().map(|pointer| stored(pointer, top)).fold(0, u64::saturating_add);
        let unsynced = self.live().map_or(0, |live| {
            let state = live.state();
            state.nodes.get(&object.id).map_or(0, |node| node.unsynced(&(0..u64::MAX)).count() as u64)
        });
        synced.saturating_add(unsynced) <= self.most_per_piece()
    }

    /// Gives back whole blocks of a range of bytes (to the end of the object with `u64::MAX`) from its end on, in as many
    /// transactions and groups as it takes, until what is left of it is little enough for one transaction. The caller
    /// holds none, and keeps others from changing the range.
    ///
    /// # Errors
    /// As [`ObjectSet::begin`]; [`ObjectError::NoObject`]; what reading meets.
    pub async fn free_down(self: &Arc<Self>, rq: &Request, id: ObjectId, range: Range<u64>) -> Result<(), ObjectError> {
        let object = self.object(rq, id).await?;
        let (block_bytes, blocks) = (object.block_bytes(), object.dnode.max_block_id.saturating_add(1));
        let first = range.start.div_ceil(block_bytes);
        let mut end = if range.end == u64::MAX { blocks } else { blocks.min(range.end / block_bytes) };
        while first < end {
            let piece = self.last_piece(rq, id, first..end, self.most_per_piece()).await?;
            self.look_ahead(rq, id, piece.from..end).await?;
            if piece.from <= first {
                break;
            }
            let tx = self.begin(rq, PIECE_BYTES, SpaceReserve::NetFree).await?;
            self.book_freed(&tx, piece.blocks);
            self.free_blocks(rq, &tx, id, piece.from..end).await?;
            end = piece.from;
        }
        Ok(())
    }

    fn book_freed(&self, tx: &Tx, blocks: u64) {
        if let Some(live) = self.live() {
            live.gate.txgs().book_freed(tx.txg(), blocks);
        }
    }

    /// The longest end of a range of blocks that has no more than `most` stored ones (and as many unsynced).
    async fn last_piece(
        self: &Arc<Self>,
        rq: &Request,
        id: ObjectId,
        range: Range<u64>,
        most: u64,
    ) -> Result<Piece, ObjectError> {
        let (base, unsynced) = {
            let state = self.must_be_live()?.state();
            let node = state.nodes.get(&id);
            let mut unsynced: Vec<u64> = node.map(|node| node.unsynced(&range).collect()).unwrap_or_default();
            unsynced.sort_unstable_by(|a, b| b.cmp(a));
            (node.map(|node| node.base.clone()), unsynced)
        };
        let base = match base {
            Some(base) => base,
            None => Some(self.object(rq, id).await?),
        };
        // The first that has no room any more ends the piece.
        let over = usize::try_from(most).ok().and_then(|most| unsynced.get(most));
        let range = over.map_or(range.start, |n| n + 1)..range.end;
        let mut piece = Piece { room: most, blocks: 0, from: range.end, is_full: false };
        if let Some(base) = &base {
            // To the last block is as far as there are any: then the edge needs no look.
            let to_end = range.end > base.dnode.max_block_id;
            let range = range.start..if to_end { u64::MAX } else { range.end };
            let top = base.dnode.levels.saturating_sub(1);
            for (number, pointer) in base.dnode.block_pointers.iter().enumerate().rev() {
                self.reach_down(rq, base, (pointer, top, number as u64), &range, &mut piece).await?;
            }
        }
        if !piece.is_full {
            piece.from = range.start;
        }
        piece.blocks += unsynced.iter().filter(|n| **n >= piece.from).count() as u64;
        Ok(piece)
    }

    /// Lets what is below a pointer (its level and number with it) and in the range join the piece, from the end on.
    fn reach_down<'a>(
        &'a self,
        rq: &'a Request,
        object: &'a Arc<Object>,
        (pointer, level, number): (&'a BlockPointer, u8, u64),
        range: &'a Range<u64>,
        piece: &'a mut Piece,
    ) -> BoxFuture<'a, Result<(), ObjectError>> {
        Box::pin(async move {
            let start = shift_left(number, object.cover(level));
            let end = start.saturating_add(shift_left(1, object.cover(level)));
            if piece.is_full || pointer.is_hole() || start >= range.end || end <= range.start {
                return Ok(());
            }
            let blocks = stored(pointer, level);
            if start >= range.start && end <= range.end && blocks <= piece.room {
                piece.room -= blocks;
                piece.blocks += blocks;
                piece.from = start;
                return Ok(());
            }
            if level == 0 {
                piece.is_full = true;
                return Ok(());
            }
            let bytes = self.read_indirect(rq, object, pointer, level, start).await?;
            // Not those beyond the range: an indirect block of a long object has many.
            let below = object.cover(level - 1);
            let children = (bytes.len() / BlockPointer::SIZE) as u64;
            let first = shift_left(number, object.fan_out_shift());
            let beyond = shift_right(range.end - 1, below).saturating_add(1).saturating_sub(first).min(children);
            for index in (0..beyond).rev() {
                let child = pointer_in(&bytes, pointer, index as usize).unwrap_or_default();
                self.reach_down(rq, object, (&child, level - 1, first + index), range, piece).await?;
                if piece.is_full {
                    break;
                }
            }
            Ok(())
        })
    }
}

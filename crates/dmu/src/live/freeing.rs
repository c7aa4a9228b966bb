//! Frees blocks of objects, in bounded amounts per txg.
//!
//! The problem: a transaction that removes a file of terabytes costs next to nothing in open context, but the sync of
//! its txg visits each block of the file. Until then every fsync of a later txg, and every command, waits. So long
//! ranges are freed in chunks:
//!
//! ```text
//!   free_long_range:  … ────────────┬──────────┬──────────┐      chunks from the end on, one transaction each;
//!                       the rest    │ chunk 2  │ chunk 1  │ end  a chunk has few blocks, however long its holes are
//!                                   └──────────┴──────────┘
//!   txg:              blocks freed so far ≥ limit ─► the next transaction that frees waits for a later open txg
//! ```
//!
//! - The rest fits into one transaction of the caller, which also changes names, sizes and logs.
//! - Blocks are counted, not bytes. The numbers come from the fill counts of the synced tree, so that only the indirect
//!   blocks at the edge of a chunk are read, and from the overlay.
//! - A chunk is not logged. After a crash, the last chunks of a range that was being freed may be zeros while the size
//!   is the old one; a file that is being removed is in the unlinked set (delete queue).
//!
//! Source of the ideas: OpenZFS `module/zfs/dmu.c` (`dmu_free_long_range`, `zfs_per_txg_dirty_frees_percent`).

use super::dirty_object::DirtyObject;
use super::tx_admission::SpaceReserve;
use crate::error::ObjectError;
use crate::handles::Frees;
use crate::object::Object;
use crate::read::pointer_in;
use crate::txg::Tx;
use futures_util::future::BoxFuture;
use std::ops::Range;
use std::sync::Arc;
use weir_format::{BlockPointer, ObjectId};
use weir_machine::Request;

/// A txg frees at most this number of chunks of the greatest size.
const CHUNKS_PER_TXG: u64 = 16;
/// Bytes that a chunk is assumed to write: its dnode.
const CHUNK_TX_BYTES: u64 = 8 << 10;

/// End of a range of blocks.
struct Chunk {
    /// Blocks that may still be added.
    remaining: u64,
    /// Stored blocks in the chunk.
    blocks: u64,
    /// First block.
    from: u64,
    /// Whether the next stored block did not fit.
    is_full: bool,
}

/// Returns the number of stored blocks below a pointer of this level.
fn stored(pointer: &BlockPointer, level: u8) -> u64 {
    match (pointer.is_hole(), level) {
        (true, _) => 0,
        (false, 0) => 1,
        (false, _) => pointer.fill().max(1),
    }
}

impl DirtyObject {
    /// Returns the blocks that unsynced changes wrote in this range.
    fn unsynced(&self, range: &Range<u64>) -> impl Iterator<Item = u64> {
        let all = self.txgs.values().flat_map(|c| c.blocks.range(range.clone()).map(|(n, _)| *n));
        all.chain(self.txgs.values().flat_map(|c| c.shared.range(range.clone()).map(|(n, _)| *n)))
    }
}

impl<'a> Frees<'a> {
    /// Removes an object with all its blocks.
    ///
    /// # Errors
    /// [`ObjectError::NoObject`] if it does not exist.
    pub async fn remove(self, rq: &Request, tx: &Tx, id: ObjectId) -> Result<(), ObjectError> {
        self.count_freed(rq, tx, id, 0..u64::MAX).await?;
        self.set
            .changes()
            .change_node(rq, id, |node| {
                if node.current.is_none() {
                    return Err(self.set.no_object(id));
                }
                node.remove(tx.txg());
                Ok(())
            })
            .await
    }

    /// Makes `len` bytes from `offset` on zeros: frees whole blocks, overwrites parts of blocks. `u64::MAX` means the
    /// end of the object.
    ///
    /// # Errors
    /// [`ObjectError::NoObject`]; errors of reading.
    pub async fn punch(self, rq: &Request, tx: &Tx, id: ObjectId, offset: u64, len: u64) -> Result<(), ObjectError> {
        let block_bytes = self.set.object(rq, id).await?.block_bytes();
        let end = offset.saturating_add(len);
        let first = offset.div_ceil(block_bytes);
        let last = end / block_bytes;
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

    /// Counts blocks that are about to be freed towards the txg's limit. The syncer's own frees are not counted.
    async fn count_freed(self, rq: &Request, tx: &Tx, id: ObjectId, range: Range<u64>) -> Result<(), ObjectError> {
        if tx.is_syncing() {
            return Ok(());
        }
        let last = self.set.object(rq, id).await?.dnode.max_block_id;
        let range = range.start..range.end.min(last.saturating_add(1));
        if !range.is_empty() {
            self.read_indirects_ahead(rq, id, range.clone()).await?;
            let freed = self.next_free_chunk(rq, id, range, u64::MAX).await?;
            self.add_freed(tx, freed.blocks);
        }
        Ok(())
    }

    /// Makes blocks holes.
    async fn free_blocks(
        self,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        Range { start: first, end: last }: Range<u64>,
    ) -> Result<(), ObjectError> {
        self.set
            .changes()
            .change_image(rq, tx, id, |image, changes| {
                let keep = changes.blocks.split_off(&first);
                changes.blocks.extend(keep.into_iter().filter(|(n, _)| *n >= last));
                changes.displace(first..last);
                changes.shared.retain(|n, _| !(first..last).contains(n));
                changes.freed.add(first..last);
                // The last block of a raw stream is part of its MACs, and its last blocks may be holes (`dnode_sync_free_range`).
                if last > image.max_block_id && self.set.raw().is_none() {
                    image.max_block_id = image.max_block_id.min(first.saturating_sub(1));
                }
                Ok(())
            })
            .await
    }

    /// Overwrites a part of one block with zeros, unless it is a hole.
    async fn zero(
        self,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        offset: u64,
        len: u64,
        block_bytes: u64,
    ) -> Result<(), ObjectError> {
        let object = self.set.object(rq, id).await?;
        let block = offset / block_bytes;
        if self.set.reader().read_block(rq, &object, block).await?.is_none() {
            return Ok(());
        }
        self.set.writes().patch(rq, tx, id, block, (offset % block_bytes) as usize, &vec![0; len as usize]).await
    }

    /// Maximum number of blocks that one transaction frees.
    fn max_chunk_blocks(self) -> u64 {
        self.set.live().map_or(u64::MAX, |live| (live.admission.max_frees_per_txg() / CHUNKS_PER_TXG).max(1))
    }

    /// Whether one transaction may free all blocks of the object. Reads nothing.
    pub fn is_small(self, object: &Object) -> bool {
        let top = object.top_level();
        let synced =
            object.dnode.block_pointers.iter().map(|pointer| stored(pointer, top)).fold(0, u64::saturating_add);
        let unsynced = self.set.live().map_or(0, |live| {
            let shard = live.shard(object.id);
            shard.get(&object.id).map_or(0, |node| node.unsynced(&(0..u64::MAX)).count() as u64)
        });
        synced.saturating_add(unsynced) <= self.max_chunk_blocks()
    }

    /// Frees whole blocks of a range of bytes (`u64::MAX`: to the end of the object) from its end on, in several
    /// transactions and txgs, until the rest is small enough for one transaction. The caller holds no transaction, and
    /// keeps other tasks from changing the range.
    ///
    /// # Errors
    /// As [`ObjectSet::begin`](crate::ObjectSet::begin); [`ObjectError::NoObject`]; errors of reading.
    pub async fn free_long_range(self, rq: &Request, id: ObjectId, range: Range<u64>) -> Result<(), ObjectError> {
        let object = self.set.object(rq, id).await?;
        let (block_bytes, blocks) = (object.block_bytes(), object.dnode.max_block_id.saturating_add(1));
        let first = range.start.div_ceil(block_bytes);
        let mut end = if range.end == u64::MAX { blocks } else { blocks.min(range.end / block_bytes) };
        while first < end {
            let chunk = self.next_free_chunk(rq, id, first..end, self.max_chunk_blocks()).await?;
            self.read_indirects_ahead(rq, id, chunk.from..end).await?;
            if chunk.from <= first {
                break;
            }
            let tx = self.set.begin(rq, CHUNK_TX_BYTES, SpaceReserve::NetFree).await?;
            self.add_freed(&tx, chunk.blocks);
            self.free_blocks(rq, &tx, id, chunk.from..end).await?;
            end = chunk.from;
        }
        Ok(())
    }

    fn add_freed(self, tx: &Tx, blocks: u64) {
        if let Some(live) = self.set.live() {
            live.admission.txgs().add_freed(tx.txg(), blocks);
        }
    }

    /// Returns the longest end of a range of blocks that has at most `most` stored blocks (and at most `most` unsynced
    /// ones).
    async fn next_free_chunk(
        self,
        rq: &Request,
        id: ObjectId,
        range: Range<u64>,
        most: u64,
    ) -> Result<Chunk, ObjectError> {
        let (base, unsynced) = {
            let shard = self.set.must_be_live()?.shard(id);
            let node = shard.get(&id);
            let mut unsynced: Vec<u64> = node.map(|node| node.unsynced(&range).collect()).unwrap_or_default();
            unsynced.sort_unstable_by(|a, b| b.cmp(a));
            (node.map(|node| node.base.clone()), unsynced)
        };
        let base = match base {
            Some(base) => base,
            None => Some(self.set.object(rq, id).await?),
        };
        // The first block beyond the limit ends the chunk.
        let over = usize::try_from(most).ok().and_then(|most| unsynced.get(most));
        let range = over.map_or(range.start, |n| n + 1)..range.end;
        let mut chunk = Chunk { remaining: most, blocks: 0, from: range.end, is_full: false };
        if let Some(base) = &base {
            // If the range ends at the last block, its edge need not be read.
            let to_end = range.end > base.dnode.max_block_id;
            let range = range.start..if to_end { u64::MAX } else { range.end };
            let top = base.top_level();
            for (number, pointer) in base.dnode.block_pointers.iter().enumerate().rev() {
                self.collect_frees(rq, base, (pointer, top, number as u64), &range, &mut chunk).await?;
            }
        }
        if !chunk.is_full {
            chunk.from = range.start;
        }
        chunk.blocks += unsynced.iter().filter(|n| **n >= chunk.from).count() as u64;
        Ok(chunk)
    }

    /// Adds the blocks below a pointer (with its level and number) that are in the range to the chunk, from the end on.
    fn collect_frees(
        self,
        rq: &'a Request,
        object: &'a Arc<Object>,
        (pointer, level, number): (&'a BlockPointer, u8, u64),
        range: &'a Range<u64>,
        chunk: &'a mut Chunk,
    ) -> BoxFuture<'a, Result<(), ObjectError>> {
        Box::pin(async move {
            let tree = object.tree();
            let Range { start, end } = tree.blocks_below(level, number);
            if chunk.is_full || pointer.is_hole() || start >= range.end || end <= range.start {
                return Ok(());
            }
            let blocks = stored(pointer, level);
            if start >= range.start && end <= range.end && blocks <= chunk.remaining {
                chunk.remaining -= blocks;
                chunk.blocks += blocks;
                chunk.from = start;
                return Ok(());
            }
            if level == 0 {
                chunk.is_full = true;
                return Ok(());
            }
            let bytes = self.set.pointers().read_indirect(rq, object, pointer, level, start).await?;
            // Pointers beyond the range are skipped, because an indirect block of a long object has many.
            let first = tree.first_child(number);
            for index in tree.children_above(level, number, range, bytes.len() / BlockPointer::SIZE).rev() {
                let child = pointer_in(&bytes, pointer, index as usize).unwrap_or_default();
                self.collect_frees(rq, object, (&child, level - 1, first + index), range, chunk).await?;
                if chunk.is_full {
                    break;
                }
            }
            Ok(())
        })
    }
}

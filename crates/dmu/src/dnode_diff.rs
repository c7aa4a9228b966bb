//! Finds the dnodes of an object set that may have changed since a txg: those in blocks that were written after it, and
//! those that were freed (OpenZFS `module/zfs/dmu_diff.c`).
//!
//! Writing a block rewrites all blocks above it. So if a pointer's birth is not after the txg, nothing below the
//! pointer has changed. Holes have no birth in every pool, so the caller looks up their former contents in the older
//! set.

use crate::error::ObjectError;
use crate::handles::Dnodes;
use crate::object::Object;
use crate::read::pointer_in;
use std::ops::Range;
use std::sync::Arc;
use weir_format::{BlockPointer, Dnode, ObjectId, Txg};
use weir_machine::Request;

/// End of the range of object numbers, which have 48 bits.
const END: u64 = 1 << 48;

/// Result of one descent to a block of dnodes; the blocks are all below one pointer.
enum Step {
    /// These blocks may have changed.
    Changed(Range<u64>),
    /// The blocks before this one have not changed.
    SkipTo(u64),
}

impl Dnodes<'_> {
    /// Returns the first object numbers, from `from` on, whose dnodes are in blocks written after txg `after`, or in
    /// holes; `None` after the last. Nothing is read below pointers that are older.
    ///
    /// # Errors
    /// Errors of reading indirect blocks.
    pub async fn next_changed(
        self,
        rq: &Request,
        from: ObjectId,
        after: Txg,
    ) -> Result<Option<Range<ObjectId>>, ObjectError> {
        if from.0 >= END {
            return Ok(None);
        }
        let Some(meta) = self.set.meta() else { return Ok(Some(from..ObjectId(END))) };
        let per_block = (meta.block_bytes() / Dnode::SLOT as u64).max(1);
        let mut at = from.0 / per_block;
        loop {
            let first = at.saturating_mul(per_block);
            if first >= END {
                return Ok(None);
            }
            match self.changed_step(rq, &meta, at, after).await? {
                Step::SkipTo(next) => at = next,
                Step::Changed(blocks) => {
                    let end = blocks.end.saturating_mul(per_block).min(END);
                    return Ok(Some(ObjectId(first.max(from.0))..ObjectId(end)));
                }
            }
        }
    }

    /// Descends from the dnode to block `at`.
    async fn changed_step(self, rq: &Request, meta: &Arc<Object>, at: u64, after: Txg) -> Result<Step, ObjectError> {
        let is_old = |p: &BlockPointer| !p.is_hole() && p.birth() <= after;
        let tree = meta.tree();
        let mut level = meta.top_level();
        // Blocks from `at` on that are below the same pointer of this level as `at`.
        let covered = |level: u8, at: u64| at..tree.block_after(level, at);
        let Some(mut pointer) = meta.top_pointer(at).copied() else { return Ok(Step::Changed(at..u64::MAX)) };
        if is_old(&pointer) {
            return Ok(Step::SkipTo(tree.block_after(level, at)));
        }
        while level > 0 && !pointer.is_hole() {
            self.set.pointers().check_level(meta, &pointer, level, at)?;
            let bytes = self.set.pointers().read_indirect(rq, meta, &pointer, level, at).await?;
            let start = tree.index_in(level, at);
            let below = |i: usize| pointer_in(&bytes, &pointer, i).filter(|_| i < tree.fan_out() as usize);
            level -= 1;
            let Some(first) = below(start) else { return Ok(Step::Changed(covered(level + 1, at))) };
            if is_old(&first) || first.is_hole() {
                // Adjacent pointers of the same kind are returned together.
                let alike = |i: &usize| {
                    below(*i).is_some_and(|p| is_old(&p) == is_old(&first) && p.is_hole() == first.is_hole())
                };
                let last = (start..).take_while(alike).last().unwrap_or(start);
                let mut end = at;
                for _ in start..=last {
                    end = tree.block_after(level, end);
                }
                return Ok(if first.is_hole() { Step::Changed(at..end) } else { Step::SkipTo(end) });
            }
            pointer = first;
        }
        if !pointer.is_hole() {
            self.set.pointers().check_level(meta, &pointer, level, at)?;
        }
        Ok(Step::Changed(covered(level, at)))
    }

    /// Returns the objects in use in `range` that are in one block of dnodes, and the number to continue from; `None`
    /// if there are none.
    ///
    /// # Errors
    /// Errors of reading blocks.
    pub async fn objects_in(
        self,
        rq: &Request,
        range: Range<ObjectId>,
    ) -> Result<Option<(Vec<ObjectId>, ObjectId)>, ObjectError> {
        let Some(meta) = self.set.meta() else { return Ok(None) };
        let per_block = (meta.block_bytes() / Dnode::SLOT as u64).max(1);
        let mut from = range.start;
        while from < range.end {
            let found = self.set.pointers().next_data_block(rq, &meta, from.0 / per_block).await?;
            let Some(block) = found.filter(|block| block.saturating_mul(per_block) < range.end.0) else { break };
            let dnodes = self.in_block(rq, block).await?;
            from = ObjectId(block.saturating_add(1).saturating_mul(per_block));
            let ids: Vec<ObjectId> = dnodes.into_iter().map(|(id, _)| id).filter(|id| range.contains(id)).collect();
            if !ids.is_empty() {
                return Ok(Some((ids, from)));
            }
        }
        Ok(None)
    }
}

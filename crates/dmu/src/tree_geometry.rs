//! Arithmetic of the tree of indirect blocks of an object.
//!
//! ```text
//!   dnode ── 1 to 3 pointers at level L-1 ──► indirect blocks of 2^k pointers each ──► … ──► data blocks (level 0)
//!
//!   k = indirect shift - 7, because a pointer has 128 bytes
//!   block n of level l covers the data blocks  n << k·l  to  ((n+1) << k·l) - 1
//!   the pointer above data block n at level l has index  (n >> k·(l-1)) mod 2^k  in its indirect block
//! ```
//!
//! A malformed dnode can claim 12 levels, and so more than 64 bits of block number. Results are then computed as if
//! block numbers had more bits: a right shift returns 0, and a left shift that exceeds 64 bits returns `u64::MAX`.

use std::ops::Range;
use weir_format::{BlockPointer, Dnode};

/// Maximum levels of a tree (`DN_MAX_LEVELS`).
pub const MAX_LEVELS: u8 = 12;
/// log2 of the size of a block pointer in bytes.
const POINTER_SHIFT: u32 = 7;

/// Geometry of a tree of block pointers: the number of pointers in an indirect block determines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeGeometry {
    fan_out_shift: u32,
}

impl TreeGeometry {
    /// Geometry of trees with indirect blocks of 2^`indirect_shift` bytes.
    pub fn new(indirect_shift: u32) -> Self {
        TreeGeometry { fan_out_shift: indirect_shift.saturating_sub(POINTER_SHIFT) }
    }

    /// Geometry of the tree of an object.
    pub fn of(dnode: &Dnode) -> Self {
        TreeGeometry::new(dnode.indirect_shift.into())
    }

    /// Number of pointers in an indirect block; at most 2^32, also if the dnode claims more.
    pub fn fan_out(self) -> u64 {
        1 << self.fan_out_shift.min(32)
    }

    /// Size of an indirect block in bytes.
    pub fn indirect_bytes(self) -> u64 {
        shift_left(BlockPointer::SIZE as u64, self.fan_out_shift)
    }

    /// log2 of the data blocks that a block of `level` covers.
    fn cover_shift(self, level: u8) -> u32 {
        self.fan_out_shift.saturating_mul(level.into())
    }

    /// Number of data blocks that a block of `level` covers.
    pub fn cover(self, level: u8) -> u64 {
        shift_left(1, self.cover_shift(level))
    }

    /// Number of the block of `level` above data block `block`.
    pub fn number_at(self, level: u8, block: u64) -> u64 {
        shift_right(block, self.cover_shift(level))
    }

    /// First data block below block `number` of `level`.
    pub fn first_block(self, level: u8, number: u64) -> u64 {
        shift_left(number, self.cover_shift(level))
    }

    /// Data blocks below block `number` of `level`.
    pub fn blocks_below(self, level: u8, number: u64) -> Range<u64> {
        let first = self.first_block(level, number);
        first..first.saturating_add(self.cover(level))
    }

    /// First data block after those that the block of `level` above data block `block` covers.
    pub fn block_after(self, level: u8, block: u64) -> u64 {
        self.first_block(level, self.number_at(level, block).saturating_add(1))
    }

    /// Index of the pointer above data block `block`, in the indirect block of `level` (at least 1) above it.
    pub fn index_in(self, level: u8, block: u64) -> usize {
        (self.number_at(level.saturating_sub(1), block) & (self.fan_out() - 1)) as usize
    }

    /// Number of the parent of block `number`, one level above.
    pub fn parent(self, number: u64) -> u64 {
        shift_right(number, self.fan_out_shift)
    }

    /// Number of the first child of the indirect block `number`, one level below.
    pub fn first_child(self, number: u64) -> u64 {
        shift_left(number, self.fan_out_shift)
    }

    /// Numbers of the children of the indirect block `number`, one level below.
    pub fn children(self, number: u64) -> Range<u64> {
        let first = self.first_child(number);
        first..first.saturating_add(self.fan_out())
    }

    /// Indices of those pointers of the indirect block `number` of `level` that are above any of the data blocks
    /// `blocks`. The indirect block has `count` pointers.
    pub fn children_above(self, level: u8, number: u64, blocks: &Range<u64>, count: usize) -> Range<u64> {
        if blocks.is_empty() {
            return 0..0;
        }
        let child = |block: u64| self.number_at(level.saturating_sub(1), block);
        let first = self.first_child(number);
        let start = child(blocks.start).saturating_sub(first);
        let end = child(blocks.end - 1).saturating_add(1).saturating_sub(first);
        start.min(count as u64)..end.min(count as u64)
    }

    /// Smallest number of levels, from `levels` on, with which `pointers` pointers of the dnode cover data block
    /// `last`; at most [`MAX_LEVELS`].
    pub fn levels_to_reach(self, last: u64, pointers: usize, levels: u8) -> u8 {
        let reaches = |levels: &u8| self.number_at(levels - 1, last) < pointers.max(1) as u64;
        (levels.max(1)..MAX_LEVELS).find(reaches).unwrap_or(levels.max(MAX_LEVELS))
    }
}

/// Right shift that returns 0 if the shift is 64 bits or more.
fn shift_right(n: u64, by: u32) -> u64 {
    n.checked_shr(by).unwrap_or(0)
}

/// Left shift that returns `u64::MAX` if set bits are shifted out.
fn shift_left(n: u64, by: u32) -> u64 {
    match n.checked_shl(by) {
        Some(shifted) if shifted >> by == n => shifted,
        _ if n == 0 => 0,
        _ => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Indices of the pointers above `blocks`, by comparing each pointer's blocks.
    fn overlapping(tree: TreeGeometry, level: u8, number: u64, blocks: &Range<u64>) -> Vec<u64> {
        let overlaps = |child: &u64| {
            let below = tree.blocks_below(level - 1, *child);
            below.start < blocks.end && blocks.start < below.end
        };
        tree.children(number).filter(overlaps).map(|child| child - tree.first_child(number)).collect()
    }

    proptest! {
        #[test]
        fn positions_agree_with_each_other(
            shift in 10u32..14, level in 1u8..5, number in 0u64..200, block in 0u64..1 << 30
        ) {
            let tree = TreeGeometry::new(shift);
            prop_assert!(tree.blocks_below(level, tree.number_at(level, block)).contains(&block));
            prop_assert_eq!(tree.block_after(level, block), tree.blocks_below(level, tree.number_at(level, block)).end);
            prop_assert_eq!(tree.number_at(level, block), tree.parent(tree.number_at(level - 1, block)));
            let parent = tree.number_at(level, block);
            let child = tree.first_child(parent) + tree.index_in(level, block) as u64;
            prop_assert_eq!(child, tree.number_at(level - 1, block));
            prop_assert!(tree.children(number).all(|child| tree.parent(child) == number));
        }

        #[test]
        fn children_above_a_range_are_those_that_overlap_it(
            level in 1u8..4, number in 0u64..20, start in 0u64..12_000, len in 0u64..3000
        ) {
            let tree = TreeGeometry::new(10);
            let blocks = start..start + len;
            let found = tree.children_above(level, number, &blocks, tree.fan_out() as usize);
            prop_assert_eq!(found.collect::<Vec<_>>(), overlapping(tree, level, number, &blocks));
        }
    }

    #[test]
    fn levels_suffice_for_the_last_block() {
        let tree = TreeGeometry::new(17);
        for (last, pointers, levels) in [(0, 1, 1), (2, 3, 1), (3, 3, 2), (1023, 1, 2), (1024, 1, 3), (u64::MAX, 1, 8)]
        {
            assert_eq!(tree.levels_to_reach(last, pointers, 1), levels, "block {last}");
        }
        assert_eq!(tree.levels_to_reach(0, 1, 5), 5, "levels are not removed");
        assert_eq!(TreeGeometry::new(7).levels_to_reach(9, 1, 1), MAX_LEVELS, "a malformed shift ends at the limit");
    }

    #[test]
    fn shifts_beyond_64_bits_saturate() {
        let tree = TreeGeometry::new(17);
        assert_eq!((tree.cover(7), tree.first_block(7, 0), tree.number_at(7, u64::MAX)), (u64::MAX, 0, 0));
        assert_eq!(tree.blocks_below(6, 16), u64::MAX..u64::MAX);
        assert_eq!(tree.block_after(7, 5), u64::MAX);
    }
}

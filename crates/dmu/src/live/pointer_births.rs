//! Births of pointers: of holes, which have one if `feature@hole_birth` is active, and of blocks that several trees share.

use weir_format::{BlockPointer, ObjectType, Txg};

/// Creates a hole with a birth: its pointer has the logical size, the type and the level of the absent block
/// (`zio_write_compress` and `free_blocks` in OpenZFS's `module/zfs/zio.c` and `dnode_sync.c`).
pub(super) fn hole_born(kind: ObjectType, level: u8, lsize_bytes: u64, txg: Txg) -> BlockPointer {
    debug_assert!(lsize_bytes.is_multiple_of(512), "a block of {lsize_bytes} bytes is not of whole sectors");
    let mut words = [0; 16];
    let lsize = (lsize_bytes >> 9).saturating_sub(1) & 0xffff;
    words[6] = u64::from(level & 31) << 56 | u64::from(kind.0) << 48 | lsize;
    words[10] = txg.0;
    BlockPointer::from_words(words)
}

/// Pointer in an indirect block that replaces the hole `above`, which is of `level`. The parts of a hole with a birth
/// are holes with the same birth (`dbuf_handle_indirect_hole` in OpenZFS's `module/zfs/dbuf.c`).
pub(super) fn part_of_hole(above: &BlockPointer, level: u8, indirect_bytes: u64, block_bytes: u64) -> BlockPointer {
    if above.is_null() || level == 0 {
        return BlockPointer::HOLE;
    }
    let lsize_bytes = if level == 1 { block_bytes } else { indirect_bytes };
    hole_born(above.object_type(), level - 1, lsize_bytes, above.logical_birth())
}

/// Pointer to a block that stays where it is but has its owner's birth `txg`.
pub(super) fn with_birth(pointer: &BlockPointer, txg: Txg) -> BlockPointer {
    let mut words = *pointer.words();
    words[9] = pointer.physical_birth().0;
    words[10] = txg.0;
    BlockPointer::from_words(words)
}

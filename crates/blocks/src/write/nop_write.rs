//! Nop-writes: a block that equals the one that it replaces is not written (`zio_nop_write` of OpenZFS's `module/zfs/zio.c`).

use super::WriteOptions;
use crate::vdev::Tree;
use weir_format::BlockPointer;

/// The block that an encoded one would replace, if that has the same bytes in as many copies. One on a removed vdev is replaced,
/// so that its mapping is needed less.
pub(super) fn same(tree: &Tree, encoded: &BlockPointer, options: &WriteOptions) -> Option<BlockPointer> {
    let former = **options.replaces.as_ref()?;
    debug_assert!(!encoded.uses_crypt() && options.level == 0, "only clear data is compared by its checksum");
    let kinds_and_sizes = |pointer: &BlockPointer| pointer.words()[6];
    let is_same = !former.is_hole()
        && !former.is_embedded()
        && !former.is_gang()
        && kinds_and_sizes(&former) == kinds_and_sizes(encoded)
        && former.checksum() == encoded.checksum()
        && former.dvas().count() == usize::from(options.copies)
        && former.dvas().all(|dva| tree.is_concrete(dva.vdev));
    is_same.then_some(former)
}

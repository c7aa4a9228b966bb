//! The sizes that a vdev tree shows: what a replacement must have at least, what the device has.
//!
//! Source: OpenZFS `module/zfs/vdev.c` (`vdev_get_min_asize`, `vdev_get_stats_ex`), `vdev_raidz.c`, `vdev_draid.c`
//! (`…_min_asize`), `module/zfs/arc.c` (`l2arc_add_vdev`).

use crate::config::{VdevConfig, VdevKind};
use weir_format::label;

/// What labels and the boot area take of a device.
const LABELS_BYTES: u64 = (4 << 20) + 2 * label::LABEL_BYTES;
/// What a dRAID vdev keeps on each device for a later rearrangement, and the unit of its rows.
const DRAID_RESERVE_BYTES: u64 = 32 << 20;
const DRAID_ROW_BYTES: u64 = 16 << 20;

/// Allocatable bytes that the top-level vdev is to have: whole metaslabs.
pub fn of_top(top: &VdevConfig) -> u64 {
    let metaslab = 1u64.checked_shl(top.metaslab_shift as u32).unwrap_or(1);
    top.asize_bytes / metaslab * metaslab
}

/// Allocatable bytes that each child of a vdev of `bytes` is to have.
pub fn of_child(parent: &VdevConfig, bytes: u64) -> u64 {
    let children = (parent.children.len() as u64).max(1);
    match parent.kind {
        VdevKind::Raidz { .. } => bytes.div_ceil(children),
        VdevKind::Draid { spares, .. } => {
            let each = bytes.div_ceil(children.saturating_sub(u64::from(spares)).max(1));
            DRAID_RESERVE_BYTES + each.next_multiple_of(DRAID_ROW_BYTES)
        }
        _ => bytes,
    }
}

/// Bytes of a device that is to have `bytes` allocatable ones.
pub fn of_device(bytes: u64) -> u64 {
    bytes.saturating_add(LABELS_BYTES)
}

/// Bytes of a device that count: whole labels.
pub fn usable_device(bytes: u64) -> u64 {
    bytes / label::LABEL_BYTES * label::LABEL_BYTES
}

/// Bytes that a cache device of `device` bytes can cache: without labels and its own header, a sector.
pub fn of_cache(device: u64, ashift: u64) -> u64 {
    device.saturating_sub(LABELS_BYTES).saturating_sub(1 << ashift.clamp(9, 16))
}

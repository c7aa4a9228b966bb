//! Sizes of vdevs: minimum size of a replacement, usable size of a device.
//!
//! Source: OpenZFS `module/zfs/vdev.c` (`vdev_get_min_asize`, `vdev_get_stats_ex`), `vdev_raidz.c`, `vdev_draid.c`
//! (`…_min_asize`), `module/zfs/arc.c` (`l2arc_add_vdev`).

use crate::config::{VdevConfig, VdevKind};
use weir_format::label;

/// Bytes of labels and boot area on a device.
const LABELS_BYTES: u64 = (4 << 20) + 2 * label::LABEL_BYTES;
/// Bytes that a dRAID vdev reserves on each device for a later expansion; also the unit of its rows.
const DRAID_RESERVE_BYTES: u64 = 32 << 20;
const DRAID_ROW_BYTES: u64 = 16 << 20;

/// Minimum allocatable bytes of a top-level vdev: whole metaslabs.
pub fn of_top(top: &VdevConfig) -> u64 {
    let metaslab = 1u64.checked_shl(top.metaslab_shift as u32).unwrap_or(1);
    top.asize_bytes / metaslab * metaslab
}

/// Minimum allocatable bytes of each child of a vdev of `bytes`.
pub fn of_child(parent: &VdevConfig, bytes: u64) -> u64 {
    let children = (parent.children.len() as u64).max(1);
    match parent.kind {
        VdevKind::Raidz { .. } => bytes.div_ceil(children),
        VdevKind::Draid { nspares, .. } => {
            let each = bytes.div_ceil(children.saturating_sub(u64::from(nspares)).max(1));
            DRAID_RESERVE_BYTES + each.next_multiple_of(DRAID_ROW_BYTES)
        }
        _ => bytes,
    }
}

/// Size of a device with `bytes` allocatable bytes.
pub fn of_device(bytes: u64) -> u64 {
    bytes.saturating_add(LABELS_BYTES)
}

/// Usable bytes of a device: whole labels.
pub fn usable_device(bytes: u64) -> u64 {
    bytes / label::LABEL_BYTES * label::LABEL_BYTES
}

/// Bytes that a cache device of `device` bytes can cache: without labels and its own header, which has one sector.
pub fn of_cache(device: u64, ashift: u64) -> u64 {
    device.saturating_sub(LABELS_BYTES).saturating_sub(1 << ashift.clamp(9, 16))
}

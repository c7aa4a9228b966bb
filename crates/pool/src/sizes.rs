//! Sizes of vdevs: minimum size of a replacement, usable size of a device.
//!
//! Source: OpenZFS `module/zfs/vdev.c` (`vdev_get_min_asize`, `vdev_get_stats_ex`), `vdev_raidz.c`, `vdev_draid.c`
//! (`…_min_asize`), `module/zfs/arc.c` (`l2arc_add_vdev`).

use crate::config::{VdevConfig, VdevKind};
use crate::scan::Device;
use std::collections::{BTreeMap, BTreeSet};
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
        VdevKind::Raidz { .. } => bytes.div_ceil(with_space(parent)),
        VdevKind::Draid { nspares, .. } => {
            let each = bytes.div_ceil(children.saturating_sub(u64::from(nspares)).max(1));
            DRAID_RESERVE_BYTES + each.next_multiple_of(DRAID_ROW_BYTES)
        }
        _ => bytes,
    }
}

/// The present leaves in service that are smaller than what is stored on them: their last two labels would overwrite allocated
/// space (`vdev_open`).
pub fn shrunk(tree: &VdevConfig, devices: &BTreeMap<u64, Device>) -> BTreeSet<u64> {
    fn walk(vdev: &VdevConfig, min_bytes: u64, devices: &BTreeMap<u64, Device>, out: &mut BTreeSet<u64>) {
        let device = devices.get(&vdev.guid).filter(|_| vdev.is_leaf() && !vdev.offline && !vdev.faulted);
        if device.is_some_and(|device| of_leaf(usable_device(device.disk.geometry().size_bytes)) < min_bytes) {
            out.insert(vdev.guid);
        }
        let each = of_child(vdev, min_bytes);
        vdev.children.iter().for_each(|child| walk(child, each, devices, out));
    }
    let mut out = BTreeSet::new();
    for top in tree.children.iter().filter(|top| top.is_concrete()) {
        walk(top, of_top(top), devices, &mut out);
    }
    out
}

/// Number of children whose space a RAID-Z vdev has: one that an expansion adds counts when that has ended.
pub fn with_space(raidz: &VdevConfig) -> u64 {
    (raidz.children.len() as u64).saturating_sub(u64::from(raidz.raidz_expanding)).max(1)
}

/// Size of a device with `bytes` allocatable bytes.
pub fn of_device(bytes: u64) -> u64 {
    bytes.saturating_add(LABELS_BYTES)
}

/// Allocatable bytes that a vdev of at least `min_bytes` would have with the present sizes of its devices; `device_bytes`
/// returns that of a leaf, if it is there. dRAID vdevs keep their size.
pub fn max_asize(vdev: &VdevConfig, min_bytes: u64, device_bytes: &impl Fn(&VdevConfig) -> Option<u64>) -> u64 {
    let each = of_child(vdev, min_bytes);
    let least = || vdev.children.iter().map(|child| max_asize(child, each, device_bytes)).min().unwrap_or(each);
    match vdev.kind {
        VdevKind::Disk | VdevKind::File => {
            device_bytes(vdev).map_or(min_bytes, |bytes| usable_device(bytes).saturating_sub(LABELS_BYTES))
        }
        VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare => least(),
        VdevKind::Raidz { .. } => least().saturating_mul(with_space(vdev)),
        _ => min_bytes,
    }
}

/// Bytes by which a top-level vdev would grow with `zpool online -e`: whole metaslabs (`vs_esize`).
pub fn expandable(top: &VdevConfig, device_bytes: &impl Fn(&VdevConfig) -> Option<u64>) -> u64 {
    let Some(metaslab) = 1u64.checked_shl(top.metaslab_shift as u32).filter(|_| top.metaslab_shift != 0) else {
        return 0;
    };
    let more = max_asize(top, of_top(top), device_bytes).saturating_sub(top.asize_bytes);
    more / metaslab * metaslab
}

/// Usable bytes of a device: whole labels.
pub fn usable_device(bytes: u64) -> u64 {
    bytes / label::LABEL_BYTES * label::LABEL_BYTES
}

/// Allocatable bytes of a device of `usable` bytes.
pub fn of_leaf(usable: u64) -> u64 {
    usable.saturating_sub(LABELS_BYTES)
}

/// Bytes that a cache device of `device` bytes can cache: without labels and its own header, which has one sector.
pub fn of_cache(device: u64, ashift: u64) -> u64 {
    device.saturating_sub(LABELS_BYTES).saturating_sub(1 << ashift.clamp(9, 16))
}

//! Opening of a new pool's devices, with checks for contents that creation would destroy.

use super::layout::Size;
use super::{CreateOptions, NewLeaf, foreign};
use crate::labels::Leaf;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_format::label::{LABEL_BYTES, LABELS, MIN_DEVICE_BYTES, label_offset};
use weir_machine::{Access, Disk, DiskError, Machine};
use weir_pool::assemble::state;
use weir_pool::error::PoolError;
use weir_pool::gpt;
use weir_pool::label::{self, LabelFault, Labels};
use weir_pool::scan::Device;

/// A device that was opened for writing.
pub struct Opened {
    path: PathBuf,
    disk: Arc<dyn Disk>,
}

impl Opened {
    /// The device's size and sector size.
    pub fn size(&self) -> Size {
        let geometry = self.disk.geometry();
        Size { device_bytes: geometry.size_bytes, sector_bytes: geometry.sector_bytes }
    }

    /// The device's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The device.
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// The device as a leaf whose labels the engine writes.
    pub fn leaf(&self, guid: u64, top: usize, ashift: u64, is_log: bool) -> Leaf {
        Leaf { guid, top, ashift, is_log, path: self.path.clone(), disk: self.disk.clone() }
    }
}

/// Opens all devices of a new pool, in the order of [`CreateOptions`]; nothing is written.
///
/// # Errors
/// [`PoolError::Disk`]; unless forced, [`PoolError::InUse`] for devices with pool labels, a partition table, or contents
/// that [`foreign`] detects.
pub(super) async fn open_all(machine: &Machine, options: &CreateOptions) -> Result<Vec<Opened>, PoolError> {
    open_leaves(machine, options.leaves(), options.force, &BTreeSet::new()).await
}

/// Opens devices for writing; nothing is written. `members` are the GUIDs of the pool's own devices: one of these is not taken
/// again, under another path either, not even with `force`, since it would be mirrored by itself, and lose its labels when
/// its former self is detached (OpenZFS `vdev_inuse`, which asks `spa_guid_exists`).
///
/// # Errors
/// [`PoolError::Disk`]; [`PoolError::Refused`] for one of `members`; [`PoolError::InUse`] unless `force`.
pub(crate) async fn open_leaves<'a>(
    machine: &Machine,
    leaves: impl Iterator<Item = &'a NewLeaf>,
    force: bool,
    members: &BTreeSet<u64>,
) -> Result<Vec<Opened>, PoolError> {
    let mut out = Vec::new();
    for leaf in leaves {
        out.push(open(machine, leaf, force, members).await?);
    }
    Ok(out)
}

async fn open(machine: &Machine, leaf: &NewLeaf, force: bool, members: &BTreeSet<u64>) -> Result<Opened, PoolError> {
    let path = leaf.path.clone();
    let failed = |source| PoolError::Disk { path: path.clone(), source };
    let disk = machine.disks.open(&leaf.path, Access::ReadWrite).map_err(failed)?;
    if !members.is_empty() {
        let labels = label::read(&disk).await;
        let guids = labels.configs.iter().flatten().filter_map(|config| config.get_u64("guid"));
        if guids.into_iter().any(|guid| members.contains(&guid)) {
            let what = format!("{} is part of this pool already", path.display());
            return Err(PoolError::Refused { what });
        }
    }
    if !force && let Some(what) = owner(&disk, leaf).await? {
        return Err(PoolError::InUse { path, what });
    }
    Ok(Opened { path, disk })
}

/// Describes contents of a device that a new pool would overwrite; `None` if there are none.
///
/// # Errors
/// [`PoolError::Disk`] if the device cannot be read.
pub async fn owner(disk: &Arc<dyn Disk>, leaf: &NewLeaf) -> Result<Option<String>, PoolError> {
    if disk.geometry().size_bytes < MIN_DEVICE_BYTES {
        return Ok(None);
    }
    let labels = label::read(disk).await;
    let mut was_destroyed = false;
    if let Some(list) = labels.best() {
        let name = list.get_str("name").unwrap_or("?");
        let pool = match list.get_u64("state") {
            Some(state::ACTIVE) => Some(format!("is part of pool '{name}'")),
            Some(state::EXPORTED) => Some(format!("is part of exported pool '{name}'")),
            // Labels of a hot spare or cache device name no pool: who calls knows the pools that are imported.
            _ => None,
        };
        if pool.is_some() {
            return Ok(pool);
        }
        was_destroyed = matches!(list.get_u64("state"), Some(state::DESTROYED | state::SPARE | state::L2CACHE));
    }
    let partitions = gpt::partitions(disk, &leaf.path).await?;
    if !partitions.is_empty() {
        return Ok(Some("has a partition table".into()));
    }
    let failed = |source| PoolError::Disk { path: leaf.path.clone(), source };
    let front = disk.read(0, foreign::FRONT_BYTES).await.map_err(failed)?;
    if let Some(what) = foreign::what(front.as_ref()) {
        return Ok(Some(format!("seems to hold {what}")));
    }
    if leaf.is_file && !was_destroyed && has_data(disk).await.map_err(failed)? {
        return Ok(Some("holds data of an unknown kind".into()));
    }
    Ok(None)
}

/// Whether any byte in the areas of the four labels is not zero.
async fn has_data(disk: &Arc<dyn Disk>) -> Result<bool, DiskError> {
    let size_bytes = disk.geometry().size_bytes;
    for label in 0..LABELS {
        let Some(offset) = label_offset(label, size_bytes) else { continue };
        let bytes = disk.read(offset, LABEL_BYTES as usize).await?;
        if bytes.as_ref().iter().any(|byte| *byte != 0) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The device without labels, as input for building the vdev tree.
pub(crate) fn blank(leaf: &Leaf) -> Device {
    let none = || Err(LabelFault::TooSmall);
    let labels = Labels { configs: [none(), none(), none(), none()], ring: Vec::new() };
    Device { path: leaf.path.clone(), partition: None, disk: leaf.disk.clone(), labels }
}

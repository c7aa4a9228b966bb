//! Paths of devices that have moved: at the import of a pool, the configuration gets the paths at which its devices were found.
//!
//! A path that still leads to the device stays, although the device was found under another name: `/dev/disk/by-id/…` and
//! `/dev/sda` are one device. Paths of partitions stay, because a partition is found by the path of its disk.
//!
//! Source: OpenZFS `lib/libzutil/zutil_import.c` (`fix_paths`).

use super::config::{self, Config};
use std::collections::BTreeMap;
use std::path::Path;
use weir_machine::{Machine, invariant};
use weir_pool::scan::probe;
use weir_pool::{Pool, VdevConfig};

/// Sets the paths of the devices that are not where the configuration says, in it and in the pool's tree. Both are of one pool
/// that is being imported.
pub(super) async fn follow(machine: &Machine, pool: &mut Pool, config: &mut Config) {
    invariant!(pool.config.guid == config.guid, "the configuration is that of the pool");
    let mut moved: BTreeMap<u64, String> = BTreeMap::new();
    for leaf in pool.tree.leaves() {
        let (Some(device), Some(stored)) = (pool.devices.get(&leaf.guid), &leaf.path) else { continue };
        let Some(found) = device.path.to_str().filter(|found| found != stored) else { continue };
        if device.partition.is_none() && !leads_to(machine, Path::new(stored), leaf.guid).await {
            moved.insert(leaf.guid, found.to_owned());
        }
    }
    if moved.is_empty() {
        return;
    }
    rename(&mut pool.tree, &moved);
    config::visit(&mut config.root, &mut |vdev| {
        if let Some(path) = vdev.get_u64("guid").and_then(|guid| moved.get(&guid)) {
            config::set(vdev, "path", path.as_str().into());
        }
    });
    invariant!(
        pool.tree.leaves().iter().all(|leaf| moved.get(&leaf.guid).is_none_or(|path| leaf.path.as_ref() == Some(path))),
        "a device that has moved has its new path"
    );
}

/// Gives the leaves of a tree the paths that a configuration of the same pool has.
pub(super) fn copy(tree: &mut VdevConfig, config: &Config) {
    let mut paths = BTreeMap::new();
    config::visit(&mut config.root.clone(), &mut |vdev| {
        if let (Some(guid), Some(path)) = (vdev.get_u64("guid"), vdev.get_str("path")) {
            paths.insert(guid, path.to_owned());
        }
    });
    rename(tree, &paths);
}

/// Whether the device at a path has this GUID.
async fn leads_to(machine: &Machine, path: &Path, guid: u64) -> bool {
    probe(machine, path).await.is_ok_and(|found| found.iter().any(|device| device.guid() == Some(guid)))
}

fn rename(vdev: &mut VdevConfig, moved: &BTreeMap<u64, String>) {
    if let Some(path) = moved.get(&vdev.guid) {
        vdev.path = Some(path.clone());
    }
    vdev.children.iter_mut().for_each(|child| rename(child, moved));
}

//! Space and states of the vdevs of a pool.
//!
//! Source: OpenZFS `cmd/zpool/zpool_main.c` (`collect_list_stats`).

use serde::{Deserialize, Serialize};
use weir_machine::Request;
use weir_pool::aux_devices::{Extra, cache_state, extras};
use weir_pool::status::VdevState;
use weir_pool::{Class, Pool, PoolError, VdevConfig, VdevKind, capacity, properties, sizes, space};

/// Group of vdevs in the lists of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VdevGroup {
    /// Data of the normal allocation class.
    Normal,
    /// Dedup tables.
    Dedup,
    /// Metadata and small blocks.
    Special,
    /// Intent logs.
    Log,
    /// L2ARC.
    Cache,
    /// Hot spare.
    Spare,
}

/// Groups of vdevs with data, in the order in which they are read.
pub(super) const CLASSES: [(Class, VdevGroup); 4] = [
    (Class::Normal, VdevGroup::Normal),
    (Class::Dedup, VdevGroup::Dedup),
    (Class::Special, VdevGroup::Special),
    (Class::Log, VdevGroup::Log),
];

/// A vdev with its space.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VdevSpaceRow {
    /// Group of the vdev.
    pub group: VdevGroup,
    /// Number of vdevs above it, without the root: 0 for a top-level vdev.
    pub depth: usize,
    /// GUID of the vdev.
    pub guid: u64,
    /// Name of the vdev.
    pub name: String,
    /// Type of the vdev as in its label, for example `mirror` or `file`.
    pub kind: String,
    /// Path of its device, if it is a leaf with one.
    pub path: Option<String>,
    /// Health, for example `ONLINE`; of a hot spare `AVAIL`, `INUSE` or `UNAVAIL`.
    pub health: String,
    /// Usable bytes of its device, if it is a leaf whose device is in use.
    pub device_bytes: Option<u64>,
    /// Space of a top-level vdev.
    pub space: Option<VdevSpace>,
}

/// Space of a top-level vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VdevSpace {
    /// Bytes that can be allocated.
    pub size_bytes: u64,
    /// Bytes that are allocated.
    pub allocated_bytes: u64,
    /// Bytes that only the checkpoint references.
    pub checkpoint_bytes: u64,
    /// Fragmentation of the free space in percent; `None` if the space maps do not tell.
    pub fragmentation_percent: Option<u64>,
    /// Bytes by which it can grow, because its devices have grown.
    pub expandable_bytes: u64,
}

/// The vdevs: those with data by group, each followed by those below it, then cache devices and hot spares.
///
/// # Errors
/// Errors of reading the lists of cache devices and spares.
pub(super) async fn vdev_space(pool: &Pool) -> Result<Vec<VdevSpaceRow>, PoolError> {
    let mut out = Vec::new();
    for (class, group) in CLASSES {
        let all = pool.tree.children.iter().zip(&pool.space.vdevs);
        for (top, space) in all.filter(|(top, _)| top.class == class || is_removed(top)) {
            if top.is_concrete() {
                out.push(VdevSpaceRow { space: Some(space_of(pool, top, space)), ..row(pool, top, group, 0) });
                below(pool, top, group, 1, &mut out);
            } else if group == VdevGroup::Normal && is_removed(top) {
                // As in OpenZFS: what remains of a removed vdev is listed, without space.
                out.push(row(pool, top, group, 0));
            }
        }
    }
    let rq = &Request::internal("vdev_space");
    for cache in extras(pool, rq, Extra::Cache).await? {
        let device = pool.aux.get(&cache.guid);
        let (state, stats) = cache_state(pool, &cache);
        let space = stats.map(|stats| VdevSpace {
            size_bytes: stats.size_bytes,
            allocated_bytes: stats.used_bytes,
            checkpoint_bytes: 0,
            fragmentation_percent: None,
            expandable_bytes: 0,
        });
        out.push(VdevSpaceRow {
            health: state.to_string(),
            space,
            device_bytes: device.map(|device| sizes::usable_device(device.disk.geometry().size_bytes)),
            ..row(pool, &cache, VdevGroup::Cache, 0)
        });
    }
    for spare in extras(pool, rq, Extra::Spare).await? {
        let health = spare_state(pool, &spare).to_owned();
        out.push(VdevSpaceRow { health, device_bytes: None, ..row(pool, &spare, VdevGroup::Spare, 0) });
    }
    Ok(out)
}

/// Whether a top-level vdev was removed, and its blocks have a mapping.
fn is_removed(top: &VdevConfig) -> bool {
    top.kind == VdevKind::Indirect
}

fn below(pool: &Pool, vdev: &VdevConfig, group: VdevGroup, depth: usize, out: &mut Vec<VdevSpaceRow>) {
    for child in &vdev.children {
        out.push(row(pool, child, group, depth));
        below(pool, child, group, depth + 1, out);
    }
}

/// A vdev of the tree.
fn row(pool: &Pool, vdev: &VdevConfig, group: VdevGroup, depth: usize) -> VdevSpaceRow {
    let device = pool.devices.get(&vdev.guid);
    VdevSpaceRow {
        group,
        depth,
        guid: vdev.guid,
        name: vdev.name(),
        kind: vdev.kind.type_name().to_owned(),
        path: vdev.path.clone().filter(|_| vdev.is_leaf()),
        health: pool.states.get(&vdev.guid).copied().unwrap_or(VdevState::Unavail).to_string(),
        device_bytes: device.map(|device| sizes::usable_device(device.disk.geometry().size_bytes)),
        space: None,
    }
}

fn space_of(pool: &Pool, top: &VdevConfig, space: &space::VdevSpace) -> VdevSpace {
    VdevSpace {
        size_bytes: space.space_bytes(),
        allocated_bytes: space.allocated_bytes(),
        checkpoint_bytes: space.checkpoint_bytes,
        fragmentation_percent: capacity::vdev_fragmentation(space),
        expandable_bytes: properties::expandable_bytes_of(pool, top),
    }
}

/// The group of a top-level vdev with data; `None` for one without devices, and for the root.
pub(super) fn group_of(vdev: &VdevConfig) -> Option<VdevGroup> {
    let of_class = CLASSES.into_iter().find(|(class, _)| *class == vdev.class).map(|(_, group)| group);
    of_class.filter(|_| vdev.is_concrete())
}

/// State of a hot spare: `AVAIL`, `INUSE` or `UNAVAIL`.
pub fn spare_state(pool: &Pool, spare: &VdevConfig) -> &'static str {
    let in_use = pool.tree.leaves().iter().any(|leaf| leaf.guid == spare.guid);
    if in_use {
        "INUSE"
    } else if spare.kind == VdevKind::DraidSpare
        || pool.aux.contains_key(&spare.guid)
        // Its labels were not rewritten when it ceased to be active.
        || pool.devices.contains_key(&spare.guid)
    {
        "AVAIL"
    } else {
        "UNAVAIL"
    }
}

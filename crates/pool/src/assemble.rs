//! Putting devices together to pools, by GUID.
//!
//! Each label names its pool, its leaf, and its top-level vdev with all that is below; how many top-level vdevs there are
//! stands in it too. The newest label of each top-level vdev is taken for that vdev, the newest of all for the pool's own
//! facts. Labels can be out of date (a disk that was away, a disk that once belonged to another pool of the same GUID):
//! the MOS configuration, read later, has the last word.

use crate::config::{PoolConfig, VdevConfig, VdevKind};
use crate::error::PoolError;
use crate::scan::{Device, Scan};
use std::collections::BTreeMap;
use weir_format::{NvList, Txg};

/// A pool as its labels show it.
#[derive(Debug)]
pub struct FoundPool {
    /// The newest label's pool-wide facts.
    pub config: PoolConfig,
    /// The newest label's nvlist of each top-level vdev, by its number.
    pub tops: BTreeMap<u64, NvList>,
    /// Devices by the GUID of their leaf. When two claim the same, the newer label wins.
    pub devices: BTreeMap<u64, Device>,
    /// Devices that claimed a GUID already taken by a newer one.
    pub duplicates: Vec<Device>,
    /// Spares and caches, which know no pool until the MOS names them.
    pub where_searched: Vec<std::path::PathBuf>,
}

/// Pool states in a label.
pub mod state {
    /// Imported, or not exported cleanly.
    pub const ACTIVE: u64 = 0;
    /// Exported.
    pub const EXPORTED: u64 = 1;
    /// Destroyed.
    pub const DESTROYED: u64 = 2;
    /// The label of a hot spare.
    pub const SPARE: u64 = 3;
    /// The label of a cache device.
    pub const L2CACHE: u64 = 4;
}

/// What a scan's devices make: pools, and devices that belong to none by themselves (spares and caches).
#[derive(Debug, Default)]
pub struct Assembly {
    /// Pools, by GUID.
    pub pools: BTreeMap<u64, FoundPool>,
    /// Hot spares and cache devices, by the GUID of their vdev.
    pub aux: BTreeMap<u64, Device>,
    /// Devices whose labels hold proven uberblocks but no configuration, or one that makes no sense.
    pub unclear: Vec<(Device, String)>,
}

/// Sorts devices into pools.
pub fn assemble(scan: Scan) -> Assembly {
    let mut out = Assembly::default();
    for device in scan.devices {
        let Some(list) = device.config().cloned() else {
            out.unclear.push((device, "no label with a valid configuration".into()));
            continue;
        };
        let guid = list.get_u64("guid").unwrap_or(0);
        if matches!(list.get_u64("state"), Some(state::SPARE | state::L2CACHE)) {
            out.aux.insert(guid, device);
            continue;
        }
        match PoolConfig::parse(list.clone()) {
            Ok(config) => add(&mut out, device, guid, config, &scan.searched),
            Err(error) => out.unclear.push((device, error.to_string())),
        }
    }
    for pool in out.pools.values_mut() {
        collect_tops(pool);
    }
    out
}

fn add(out: &mut Assembly, device: Device, guid: u64, config: PoolConfig, searched: &[std::path::PathBuf]) {
    let pool = out.pools.entry(config.guid).or_insert_with(|| FoundPool {
        config: config.clone(),
        tops: BTreeMap::new(),
        devices: BTreeMap::new(),
        duplicates: Vec::new(),
        where_searched: searched.to_vec(),
    });
    if config.txg > pool.config.txg {
        pool.config = config;
    }
    match pool.devices.remove(&guid) {
        Some(other) if other.labels.txg() >= device.labels.txg() => {
            pool.devices.insert(guid, other);
            pool.duplicates.push(device);
        }
        Some(other) => {
            pool.duplicates.push(other);
            pool.devices.insert(guid, device);
        }
        None => {
            pool.devices.insert(guid, device);
        }
    }
}

fn collect_tops(pool: &mut FoundPool) {
    let mut best: BTreeMap<u64, (Txg, NvList)> = BTreeMap::new();
    for device in pool.devices.values() {
        let Some(config) = device.config() else { continue };
        let Some(tree) = config.get_list("vdev_tree") else { continue };
        let (Some(id), txg) = (tree.get_u64("id"), Txg(config.get_u64("txg").unwrap_or(0))) else { continue };
        if best.get(&id).is_none_or(|(t, _)| *t < txg) {
            best.insert(id, (txg, tree.clone()));
        }
    }
    pool.tops = best.into_iter().map(|(id, (_, tree))| (id, tree)).collect();
}

impl FoundPool {
    /// The devices that hold parts of the pool.
    pub fn leaves(&self) -> impl Iterator<Item = &Device> {
        self.devices.values()
    }

    /// The tree as the labels tell it: known top-level vdevs in their places, `missing` ones between.
    pub fn label_tree(&self) -> Result<VdevConfig, PoolError> {
        let bad = |what: String| PoolError::Config { pool: self.config.name.clone(), what };
        let decode = |source| PoolError::Decode { what: format!("pool '{}': vdev tree", self.config.name), source };
        let highest = self.tops.keys().last().map_or(0, |k| k.saturating_add(1));
        let count = self.config.vdev_children.unwrap_or(highest).max(highest);
        if count > 16_384 {
            return Err(bad(format!("{count} top-level vdevs are more than any pool has")));
        }
        let mut root = NvList::new();
        root.set("type", "root");
        root.set("guid", self.config.guid);
        let mut root = VdevConfig::parse(&root).map_err(decode)?;
        let holes = self.config.list.get_u64_array("hole_array").unwrap_or_default();
        for id in 0..count {
            let mut list = self.tops.get(&id).cloned().unwrap_or_default();
            if list.is_empty() {
                list.set("type", if holes.contains(&id) { "hole" } else { "missing" });
                list.set("id", id);
            }
            root.children.push(VdevConfig::parse(&list).map_err(decode)?);
        }
        root.kind = VdevKind::Root;
        Ok(root)
    }
}

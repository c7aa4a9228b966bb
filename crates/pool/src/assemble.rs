//! Assembles pools from devices by GUID.
//!
//! Each label names its pool, its leaf, and its top-level vdev with all vdevs below it, and has the number of top-level
//! vdevs. The newest label of a top-level vdev describes that vdev; the newest label of all describes the pool. A label
//! can be out of date (a disk that was away, or that once belonged to another pool with the same GUID), so the MOS
//! configuration, which is read later, overrides the labels.

use crate::config::{PoolConfig, VdevConfig, VdevKind};
use crate::error::PoolError;
use crate::scan::{Device, Scan};
use std::collections::BTreeMap;
use weir_format::{NvList, Txg};

/// A pool as described by its labels.
#[derive(Debug)]
pub struct FoundPool {
    /// Pool-wide configuration of the newest label.
    pub config: PoolConfig,
    /// The newest label's nvlist of each top-level vdev, by vdev id.
    pub tops: BTreeMap<u64, NvList>,
    /// Devices by the GUID of their leaf. If two have the same GUID, the newer label wins.
    pub devices: BTreeMap<u64, Device>,
    /// Devices with a GUID that a newer device has, too.
    pub duplicates: Vec<Device>,
    /// Directories and devices that were searched.
    pub where_searched: Vec<std::path::PathBuf>,
}

/// Pool states of a label.
pub mod state {
    /// Imported, or not cleanly exported.
    pub const ACTIVE: u64 = 0;
    /// Exported.
    pub const EXPORTED: u64 = 1;
    /// Destroyed.
    pub const DESTROYED: u64 = 2;
    /// Label of a hot spare.
    pub const SPARE: u64 = 3;
    /// Label of a cache device.
    pub const L2CACHE: u64 = 4;
}

/// Result of a scan: pools, and devices that name no pool themselves (spares and cache devices).
#[derive(Debug, Default)]
pub struct Assembly {
    /// Pools, by GUID.
    pub pools: BTreeMap<u64, FoundPool>,
    /// Hot spares and cache devices, by vdev GUID.
    pub aux: BTreeMap<u64, Device>,
    /// Devices with valid uberblocks but without a configuration, or with a malformed one, and the reason.
    pub unclear: Vec<(Device, String)>,
}

/// Groups devices into pools.
pub fn assemble(mut scan: Scan) -> Assembly {
    let mut out = Assembly::default();
    discard_uncommitted(&mut scan.devices);
    discard_unsynced(&mut scan.devices);
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

/// Discards labels that an interrupted change of the pool's GUID left: those of the new GUID, if no uberblock of their txg was
/// written to any device that has them. All labels are changed before the first uberblock is written.
fn discard_uncommitted(devices: &mut [Device]) {
    let mut changed = BTreeMap::new();
    for device in devices.iter().filter(|device| device.labels.other_pool().is_some()) {
        let list = device.config();
        let pool = list.and_then(|list| Some((list.get_u64("pool_guid")?, list.get_u64("txg")?)));
        changed.extend(pool);
    }
    for (guid, txg) in changed {
        let is_new = |device: &&mut Device| device.config().and_then(|list| list.get_u64("pool_guid")) == Some(guid);
        let is_committed = |device: &Device| device.labels.ring.iter().any(|slot| slot.uberblock.txg.0 >= txg);
        let mut new: Vec<&mut Device> = devices.iter_mut().filter(is_new).collect();
        if !new.iter().any(|device| is_committed(device)) {
            new.iter_mut().for_each(|device| device.labels.discard_pool(guid));
        }
    }
}

/// Discards labels of a txg that was not committed, where the device has older ones of the pool: the leaf may have another GUID
/// or vdev in them than in the configuration of the last uberblock (`vdev_label_read_config`).
fn discard_unsynced(devices: &mut [Device]) {
    let pool_of = |device: &Device| device.config().and_then(|list| list.get_u64("pool_guid"));
    let mut newest: BTreeMap<u64, Txg> = BTreeMap::new();
    for device in devices.iter() {
        let last = device.labels.ring.iter().map(|slot| slot.uberblock.txg).max();
        if let (Some(pool), Some(last)) = (pool_of(device), last) {
            let of_pool = newest.entry(pool).or_default();
            *of_pool = last.max(*of_pool);
        }
    }
    for device in devices {
        if let Some((pool, last)) = pool_of(device).and_then(|pool| Some((pool, *newest.get(&pool)?))) {
            device.labels.discard_after(pool, last);
        }
    }
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
    /// Devices of the pool.
    pub fn leaves(&self) -> impl Iterator<Item = &Device> {
        self.devices.values()
    }

    /// Vdev tree as described by the labels: known top-level vdevs at their ids, `missing` ones between them.
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

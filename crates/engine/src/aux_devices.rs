//! Hot spares and cache devices: two lists in the MOS, of devices that belong to the pool and have none of its data.
//!
//! The engine holds both lists in [`Config`](super::Config), as of the last synced txg, and writes one when it changes.
//!
//! Source: OpenZFS `module/zfs/spa.c` (`spa_load_spares`, `spa_load_l2cache`, `spa_sync_aux_dev`).

use super::create::contents;
use super::syncing::TxgSync;
use weir_format::dsl::pool as names;
use weir_format::{NvList, ObjectId};
use weir_machine::{Request, invariant};
use weir_pool::error::PoolError;
use weir_pool::mos::Mos;

/// Name in a device's configuration (`ZPOOL_CONFIG_OFFLINE`).
pub(crate) const OFFLINE: &str = "offline";

/// The pool's hot spares and cache devices, as the MOS lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuxDevices {
    /// Hot spares, in use or not.
    pub spares: Vec<NvList>,
    /// Cache devices.
    pub caches: Vec<NvList>,
}

/// Kind of auxiliary device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuxKind {
    /// Hot spare.
    Spare,
    /// Cache device.
    Cache,
}

impl AuxKind {
    /// Name of the entry in the MOS directory, and of the array in the list.
    fn name(self) -> &'static str {
        match self {
            AuxKind::Spare => names::SPARES,
            AuxKind::Cache => names::L2CACHE,
        }
    }
}

fn guid(vdev: &NvList) -> u64 {
    vdev.get_u64("guid").unwrap_or(0)
}

impl AuxDevices {
    /// Reads both lists.
    pub(crate) async fn read(rq: &Request, mos: &Mos) -> Result<Self, PoolError> {
        let mut out = AuxDevices::default();
        for kind in [AuxKind::Spare, AuxKind::Cache] {
            if let Some(id) = mos.named(rq, kind.name()).await? {
                *out.of_mut(kind) = mos.list(rq, id).await?.get_list_array(kind.name()).unwrap_or_default().to_vec();
            }
        }
        Ok(out)
    }

    /// The list of that kind.
    pub fn of(&self, kind: AuxKind) -> &[NvList] {
        match kind {
            AuxKind::Spare => &self.spares,
            AuxKind::Cache => &self.caches,
        }
    }

    fn of_mut(&mut self, kind: AuxKind) -> &mut Vec<NvList> {
        match kind {
            AuxKind::Spare => &mut self.spares,
            AuxKind::Cache => &mut self.caches,
        }
    }

    /// The cache device with that GUID.
    pub fn cache(&self, wanted: u64) -> Option<&NvList> {
        self.caches.iter().find(|cache| guid(cache) == wanted)
    }

    /// The hot spare with that GUID.
    pub fn spare(&self, wanted: u64) -> Option<&NvList> {
        self.spares.iter().find(|spare| guid(spare) == wanted)
    }
}

/// Adds auxiliary devices to their list, in syncing context.
pub(crate) async fn add(syncing: &mut TxgSync<'_>, kind: AuxKind, vdevs: &[NvList]) -> Result<(), PoolError> {
    if vdevs.is_empty() {
        return Ok(());
    }
    syncing.core.config.aux.of_mut(kind).extend(vdevs.iter().cloned());
    write(syncing, kind).await
}

/// Takes an auxiliary device off its list, in syncing context. Returns it, if it was there.
pub(crate) async fn remove(syncing: &mut TxgSync<'_>, kind: AuxKind, gone: u64) -> Result<Option<NvList>, PoolError> {
    let all = syncing.core.config.aux.of_mut(kind);
    let Some(at) = all.iter().position(|vdev| guid(vdev) == gone) else { return Ok(None) };
    let removed = all.remove(at);
    write(syncing, kind).await?;
    Ok(Some(removed))
}

/// Records in the list of cache devices whether one is offline, in syncing context.
pub(crate) async fn set_cache_offline(
    syncing: &mut TxgSync<'_>,
    cache: u64,
    is_offline: bool,
) -> Result<(), PoolError> {
    let all = &mut syncing.core.config.aux.caches;
    let Some(list) = all.iter_mut().find(|vdev| guid(vdev) == cache) else { return Ok(()) };
    list.remove(OFFLINE);
    if is_offline {
        list.set(OFFLINE, 1u64);
    }
    write(syncing, AuxKind::Cache).await
}

/// Empties both lists, in syncing context: the devices belong to another pool.
pub(crate) async fn forget(syncing: &mut TxgSync<'_>) -> Result<(), PoolError> {
    let mos = Mos { set: syncing.engine.mos.clone() };
    syncing.core.config.aux = AuxDevices::default();
    for kind in [AuxKind::Spare, AuxKind::Cache] {
        if mos.named(syncing.change.rq, kind.name()).await?.is_some() {
            write(syncing, kind).await?;
        }
    }
    Ok(())
}

async fn write(syncing: &mut TxgSync<'_>, kind: AuxKind) -> Result<(), PoolError> {
    let all = syncing.core.config.aux.of(kind).to_vec();
    invariant!(all.iter().all(|vdev| guid(vdev) != 0), "an auxiliary device without GUID");
    let mos = Mos { set: syncing.engine.mos.clone() };
    let id = match mos.named(syncing.change.rq, kind.name()).await? {
        Some(id) => id,
        None => contents::new_list(&syncing.change, ObjectId(names::DIRECTORY_OBJECT), kind.name()).await?,
    };
    let mut list = NvList::new();
    list.set(kind.name(), all);
    // The cache file and the events have the devices as well.
    syncing.core.config_dirty = true;
    syncing.write_list(id, &list).await
}

//! Cache devices (L2ARC) of an open pool: put into service, taken offline, and put back.
//!
//! ```text
//!   import, create, add, online, clear, reopen ─► labels are its own ─► Cache::add_cache_device ─► contents found again
//!   remove, offline, export                    ─► L2arc::remove: no I/O any more
//! ```
//!
//! A cache device that cannot be opened is only missing: the pool needs none. No txg waits for one.
//!
//! Source: OpenZFS `module/zfs/spa.c` (`spa_load_l2cache`), `module/zfs/vdev.c` (`vdev_reopen`, `vdev_validate_aux`).

pub use weir_cache::l2arc::CacheDeviceStats;

use super::CacheDevices;
use super::aux_devices::{self, OFFLINE};
use super::offline::OfflineMode;
use super::syncing::TxgSync;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use weir_cache::l2arc::{CacheState, NewCacheDevice, Owner};
use weir_format::NvList;
use weir_machine::{Access, Disk, invariant};
use weir_pool::assemble::state;
use weir_pool::error::PoolError;
use weir_pool::label;
use weir_pool::scan::Device;

fn refused(what: impl Into<String>) -> PoolError {
    PoolError::Refused { what: what.into() }
}

impl CacheDevices<'_> {
    /// Puts all cache devices into service that are not offline and not in service yet. `found` has devices by GUID that a
    /// scan found; others are opened at their paths. One that cannot be opened is logged.
    pub async fn open(&self, found: &mut BTreeMap<u64, Device>) {
        let caches = self.engine.shown().config.aux.caches;
        for cache in caches.iter().filter(|cache| cache.get_u64(OFFLINE).unwrap_or(0) == 0) {
            let Some(guid) = cache.get_u64("guid") else { continue };
            if self.is_known(guid) || self.engine.temporarily_offline.lock().contains(&guid) {
                continue;
            }
            if let Err(error) = self.put_in(cache, found.remove(&guid)).await {
                tracing::warn!(%error, guid, "a cache device is not in service");
            }
        }
    }

    fn is_known(&self, guid: u64) -> bool {
        self.engine.cache.l2arc().stats().devices.iter().any(|device| device.guid == guid)
    }

    /// Opens a cache device and puts it into service.
    async fn put_in(&self, cache: &NvList, found: Option<Device>) -> Result<(), PoolError> {
        let guid = cache.get_u64("guid").unwrap_or(0);
        let disk = match found {
            Some(mut device) => {
                device.reopen(&self.engine.machine, Access::ReadWrite)?;
                device.disk
            }
            None => self.at_path(cache).await?,
        };
        let sector_shift = u64::from(disk.geometry().sector_bytes.max(512).trailing_zeros());
        let ashift = cache.get_u64("ashift").filter(|ashift| *ashift != 0).unwrap_or(sector_shift);
        let owner = Owner { pool_guid: self.engine.shown().config.guid, vdev_guid: guid };
        let new = NewCacheDevice { owner, disk, ashift: u32::try_from(ashift).unwrap_or(0) };
        if !self.engine.cache.add_cache_device(&new) {
            return Err(refused("the cache device is too small, or its sectors are too large"));
        }
        invariant!(self.is_known(guid), "a cache device that was put into service is unknown");
        Ok(())
    }

    /// Opens the device at the path of a cache device, if its labels are those of the cache device.
    async fn at_path(&self, cache: &NvList) -> Result<Arc<dyn Disk>, PoolError> {
        let path = cache.get_str("path").map(PathBuf::from).ok_or_else(|| refused("the device has no path"))?;
        let disk = self.engine.machine.disks.open(&path, Access::ReadWrite);
        let disk = disk.map_err(|source| PoolError::Disk { path: path.clone(), source })?;
        let labels = label::read(&disk).await;
        let is_it = |list: &NvList| {
            list.get_u64("guid") == cache.get_u64("guid") && list.get_u64("state") == Some(state::L2CACHE)
        };
        match labels.best().is_some_and(is_it) {
            true => Ok(disk),
            false => Err(refused(format!("{} has no labels of this device", path.display()))),
        }
    }

    /// Takes a cache device out of service. Returns false if the GUID is not that of a cache device.
    ///
    /// # Errors
    /// Errors of writing the configuration.
    pub async fn offline(&self, guid: u64, mode: OfflineMode) -> Result<bool, PoolError> {
        let _one_at_a_time = self.engine.adding.lock().await;
        if self.engine.shown().config.aux.cache(guid).is_none() {
            return Ok(false);
        }
        if matches!(mode, OfflineMode::Faulted | OfflineMode::FaultedTemporarily) {
            return Err(refused("a cache device cannot be faulted: take it offline, or remove it"));
        }
        let _was_in_service = self.engine.cache.l2arc().remove(guid).await;
        self.engine.devices().set_temporarily_offline(guid, mode == OfflineMode::Temporary);
        if mode == OfflineMode::Kept {
            self.set_offline(guid, true).await?;
        }
        invariant!(!self.is_known(guid), "a cache device that is offline is in service");
        Ok(true)
    }

    /// Puts a cache device into service again. Returns false if the GUID is not that of a cache device.
    ///
    /// # Errors
    /// [`PoolError::Refused`] and [`PoolError::Disk`] if it cannot be opened.
    pub async fn online(&self, guid: u64) -> Result<bool, PoolError> {
        let _one_at_a_time = self.engine.adding.lock().await;
        let Some(cache) = self.engine.shown().config.aux.cache(guid).cloned() else { return Ok(false) };
        // One that failed begins again.
        let _was_in_service = self.engine.cache.l2arc().remove(guid).await;
        self.put_in(&cache, None).await?;
        self.engine.devices().set_temporarily_offline(guid, false);
        if cache.get_u64(OFFLINE).unwrap_or(0) != 0 {
            self.set_offline(guid, false).await?;
        }
        Ok(true)
    }

    /// Puts cache devices that failed into service again, and begins their counters again (`zpool clear`): that one, or all.
    /// Returns whether the GUID is that of a cache device.
    pub async fn clear(&self, guid: Option<u64>) -> bool {
        let l2arc = self.engine.cache.l2arc();
        let caches = self.engine.shown().config.aux;
        for device in l2arc.stats().devices {
            let has_errors = device.read_errors + device.write_errors + device.checksum_errors > 0;
            let has_failed = matches!(device.state, CacheState::Faulted | CacheState::Hung);
            let Some(cache) = caches.cache(device.guid).filter(|_| guid.is_none_or(|guid| guid == device.guid)) else {
                continue;
            };
            if !has_failed && !has_errors {
                continue;
            }
            let _was_in_service = l2arc.remove(device.guid).await;
            if let Err(error) = self.put_in(cache, None).await {
                tracing::warn!(%error, guid = device.guid, "a cache device is not in service");
            }
        }
        guid.is_some_and(|guid| caches.cache(guid).is_some())
    }

    async fn set_offline(&self, guid: u64, is_offline: bool) -> Result<(), PoolError> {
        self.engine
            .sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(aux_devices::set_cache_offline(syncing, guid, is_offline))
            })
            .await
    }
}

//! Devices that are taken offline and brought online again, and missing devices that return, while the pool is in use.
//!
//! ```text
//!   offline ─► out of service at once; `offline` in the configuration, unless for this import only
//!   online  ─► in service again, or its path opened ─► resilver of what it missed
//!   reopen  ─► the paths of all missing devices opened; a device whose labels have the GUID is in service again
//!              before, by command: those in service looked at ([`super::probe`])
//! ```
//!
//! A device in no service lacks each txg; its DTL says so, so that only these txgs are resilvered when it returns. A device
//! that returns may be an older copy of itself: its labels show what it lacks beyond the DTL.
//!
//! Source: OpenZFS `module/zfs/vdev.c` (`vdev_offline_locked`, `vdev_online`, `vdev_fault`, `vdev_reopen`).

use super::Vdevs;
use super::aux_devices::OFFLINE;
use super::config::{self, visit};
use super::labels::Leaf;
use super::supervision::LeafCondition;
use super::syncing::TxgSync;
use super::vdev_config_edit as edit;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use weir_blocks::vdev::PutBackError;
use weir_format::{NvList, Txg};
use weir_machine::{Access, invariant};
use weir_pool::config::{Class, VdevConfig};
use weir_pool::error::PoolError;
use weir_pool::scan::Device;
use weir_pool::{dtls, label};

/// How a device is taken out of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfflineMode {
    /// Until it is brought online.
    Kept,
    /// Until it is brought online, or the next import (`-t`).
    Temporary,
    /// As a faulted device, until `zpool clear` (`-f`).
    Faulted,
    /// As a faulted device, until `zpool clear` or the next import (`-f -t`).
    FaultedTemporarily,
}

fn refused(what: impl Into<String>) -> PoolError {
    PoolError::Refused { what: what.into() }
}

impl Vdevs<'_> {
    fn config_of(&self, guid: u64) -> Result<(VdevConfig, VdevConfig, VdevConfig), PoolError> {
        let bad = |source| PoolError::Decode { what: "the vdev tree".into(), source };
        let root = VdevConfig::parse(&self.engine.shown().config.root).map_err(bad)?;
        let is_of = |top: &&VdevConfig| top.leaves().iter().any(|leaf| leaf.guid == guid);
        let top = root.children.iter().find(is_of).cloned().ok_or_else(|| refused("no such device in pool"))?;
        let leaf = top.leaves().into_iter().find(|leaf| leaf.guid == guid).cloned();
        Ok((root, top, leaf.ok_or_else(|| refused("no such device in pool"))?))
    }

    /// Takes a device out of service. When this returns, it gets no more I/O.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if blocks would become unreadable ("no valid replicas").
    pub async fn offline(&self, guid: u64, mode: OfflineMode) -> Result<(), PoolError> {
        if self.engine.cache_devices().offline(guid, mode).await? {
            return Ok(());
        }
        // A device beside it that is gone must not count as one that has the blocks.
        let beside: Vec<u64> = self.config_of(guid)?.1.leaves().iter().map(|leaf| leaf.guid).collect();
        let _lost = self.probe(|leaf| leaf != guid && beside.contains(&leaf)).await?;
        let _one_at_a_time = self.engine.adding.lock().await;
        let (root, top, _) = self.config_of(guid)?;
        if self.is_required(&root, guid) && top.class != Class::Log {
            return Err(refused("no valid replicas"));
        }
        let tree = self.engine.cache.blocks().tree();
        if let Ok(leaf) = tree.leaf(guid) {
            let _was_in_service = leaf.take_out();
            invariant!(!leaf.is_in_service(), "a device that is offline is in service");
        }
        self.engine.devices().set_temporarily_offline(guid, mode == OfflineMode::Temporary);
        if matches!(mode, OfflineMode::Faulted | OfflineMode::FaultedTemporarily) {
            self.engine.initialize_trim().cancel_of(&[guid]).await?;
        }
        match mode {
            OfflineMode::Kept => self.set_offline(guid, true).await,
            OfflineMode::Temporary => self.engine.sync().await,
            OfflineMode::Faulted => {
                let faulted = BTreeMap::from([(guid, LeafCondition::Faulted)]);
                self.engine.devices().set_conditions(faulted).await
            }
            // The configuration does not have it: the next import finds a device that lacks some txgs.
            OfflineMode::FaultedTemporarily => {
                self.engine.devices().post_fault(guid);
                self.engine.sync().await
            }
        }
    }

    /// Brings a device online. It is in service when this returns `true`; the resilver of what it missed starts by itself. A faulted
    /// device is not offline any more, and stays out of service until its fault is cleared (`vdev_online`): `false`.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if it cannot be opened, or still has operations in progress from before.
    pub async fn online(&self, guid: u64) -> Result<bool, PoolError> {
        if self.engine.cache_devices().online(guid).await? {
            return Ok(true);
        }
        let _is_lost = self.probe(|leaf| leaf == guid).await?;
        if !self.online_alone(guid).await? {
            return Ok(false);
        }
        self.engine.scrubs().start_resilver(false).await?;
        // A hot spare is not needed any more if the device missed nothing.
        self.engine.spares().finish_replacing().await?;
        Ok(true)
    }

    async fn online_alone(&self, guid: u64) -> Result<bool, PoolError> {
        let _one_at_a_time = self.engine.adding.lock().await;
        let (_, top, config) = self.config_of(guid)?;
        let tree = self.engine.cache.blocks().tree();
        let is_out = tree.health().iter().any(|leaf| leaf.guid == guid && leaf.faulted);
        if config.faulted || is_out && !self.engine.devices().offline().contains(&guid) {
            self.engine.devices().set_temporarily_offline(guid, false);
            self.set_offline(guid, false).await?;
            return Ok(false);
        }
        let name = config.name();
        let leaf = tree.leaf(guid);
        let leaf = leaf.map_err(|_| refused("no such device in pool"))?;
        // Counted before and after, as in `clear`.
        self.engine.returns.fetch_add(1, Ordering::SeqCst);
        match leaf.put_back() {
            Ok(()) => {}
            Err(PutBackError::InProgress(count)) => {
                return Err(refused(format!(
                    "{name}: {count} operations from before it was taken out of service have not ended; try again when the \
                     device answers, or after the next import"
                )));
            }
            Err(PutBackError::NoDisk) => {
                let device = self.returned(&config).await?;
                self.put_in(&top, guid, device).await?;
            }
        }
        invariant!(leaf.is_in_service(), "a device that is online is out of service");
        self.engine.returns.fetch_add(1, Ordering::SeqCst);
        self.engine.devices().set_temporarily_offline(guid, false);
        self.set_offline(guid, false).await?;
        Ok(true)
    }

    /// Looks at all devices: takes those out of service that are lost, and puts those into service that are there again
    /// (`zpool reopen`). Returns the paths of the latter.
    ///
    /// # Errors
    /// Errors of writing the configuration.
    pub async fn reopen_all(&self) -> Result<Vec<PathBuf>, PoolError> {
        let _lost = self.probe(|_| true).await?;
        self.engine.cache_devices().open(&mut BTreeMap::new()).await;
        self.reopen().await
    }

    /// Opens the paths of missing devices, and puts those into service that are there again. Returns their paths.
    ///
    /// # Errors
    /// Errors of writing the configuration.
    pub async fn reopen(&self) -> Result<Vec<PathBuf>, PoolError> {
        let health = self.engine.cache.blocks().tree().health();
        let gone: Vec<u64> = health.iter().filter(|leaf| leaf.gone).map(|leaf| leaf.guid).collect();
        if !gone.is_empty() {
            let _lost = self.probe(|leaf| gone.contains(&leaf)).await?;
        }
        let _one_at_a_time = self.engine.adding.lock().await;
        let bad = |source| PoolError::Decode { what: "the vdev tree".into(), source };
        let root = VdevConfig::parse(&self.engine.shown().config.root).map_err(bad)?;
        let tree = self.engine.cache.blocks().tree().clone();
        let offline = self.engine.devices().offline();
        let mut found = Vec::new();
        for top in &root.children {
            for leaf in top.leaves().into_iter().filter(|leaf| !offline.contains(&leaf.guid) && !leaf.faulted) {
                if !tree.leaf(leaf.guid).is_ok_and(|leaf| leaf.disk().is_none()) {
                    continue;
                }
                if let Ok(device) = self.returned(leaf).await {
                    found.push(device.path.clone());
                    self.put_in(top, leaf.guid, device).await?;
                }
            }
        }
        Ok(found)
    }

    /// Opens a missing device at its path.
    async fn returned(&self, config: &VdevConfig) -> Result<Device, PoolError> {
        let path = config.path.clone().map(PathBuf::from).ok_or_else(|| refused("the device has no path"))?;
        let disk = self.engine.machine.disks.open(&path, Access::ReadWrite);
        let disk = disk.map_err(|source| PoolError::Disk { path: path.clone(), source })?;
        let labels = label::read(&disk).await;
        let is_it = |list: &NvList| {
            list.get_u64("guid") == Some(config.guid)
                && list.get_u64("pool_guid") == Some(self.engine.shown().config.guid)
        };
        match labels.best() {
            Some(list) if is_it(list) => Ok(Device { path, partition: None, disk, labels }),
            _ => Err(refused(format!("{} has no labels of this device", path.display()))),
        }
    }

    /// Gives a leaf its disk.
    async fn put_in(&self, top: &VdevConfig, guid: u64, device: Device) -> Result<(), PoolError> {
        let tree = self.engine.cache.blocks().tree().clone();
        let leaf = tree.leaf(guid).map_err(|_| refused("no such device in pool"))?;
        let open = self.engine.txgs().open();
        // What the labels show: an older copy of the device lacks more than the DTL has.
        let lacks = dtls::by_labels(&device, Txg(open.0 + 1), open);
        lacks.ranges().iter().for_each(|(first, last)| leaf.dirty_dtl_range(*first, *last));
        self.engine.returns.fetch_add(1, Ordering::SeqCst);
        if !leaf.set_disk(device.disk.clone()) {
            return Err(refused("the device has another disk already"));
        }
        self.engine.returns.fetch_add(1, Ordering::SeqCst);
        let path = device.path.clone();
        let new = Leaf {
            guid,
            top: top.id as usize,
            ashift: top.ashift,
            is_log: top.class == Class::Log,
            path: device.path,
            disk: device.disk,
        };
        tracing::info!(device = %path.display(), "is there again");
        self.engine
            .sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    syncing.core.leaves.retain(|leaf| leaf.guid != guid);
                    syncing.core.leaves.push(new);
                    syncing.core.leaves.sort_by_key(|leaf| leaf.top);
                    // Most leaves have no spare.
                    let _is_original = edit::unspare(&mut syncing.core.config.root, guid);
                    syncing.core.config_dirty = true;
                    Ok(())
                })
            })
            .await
    }

    /// Records in the configuration and the labels whether a leaf is offline.
    async fn set_offline(&self, guid: u64, is_offline: bool) -> Result<(), PoolError> {
        self.engine
            .sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    visit(&mut syncing.core.config.root, &mut |vdev| {
                        if vdev.get_u64("guid") != Some(guid) {
                            return;
                        }
                        if is_offline {
                            config::set(vdev, OFFLINE, 1u64.into());
                        } else {
                            vdev.remove(OFFLINE);
                        }
                    });
                    if !is_offline {
                        // Most leaves have no spare.
                        let _is_original = edit::unspare(&mut syncing.core.config.root, guid);
                    }
                    syncing.core.config_dirty = true;
                    Ok(())
                })
            })
            .await
    }
}

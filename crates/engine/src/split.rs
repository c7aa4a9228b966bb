//! A new pool of one device of each mirror (`zpool split`), while the pool is in use.
//!
//! ```text
//!   intent logs without blocks ─► txg N: the devices get no more I/O, and lack every txg from N on; the configuration says
//!   that they are being split off ─► their former operations have ended
//!      ─► the pool as of the last uberblock before N is opened on these devices alone ─► one txg: other GUID and name, no
//!         logs, spares and cache devices ─► exported
//!      ─► the present pool detaches them
//! ```
//!
//! *Power cuts.* Before the new pool's first uberblock, its labels do not count ([`weir_pool::assemble()`]): the devices belong
//! to the present pool and are resilvered from txg N on. After it, all of them have labels that say which pool they were split
//! off from, and the next import of that pool detaches them.
//!
//! Source: OpenZFS `module/zfs/spa.c` (`spa_vdev_split_mirror`, `spa_try_repair`).

use super::attach::{TreeChange, parsed};
use super::config::SPLIT_GUID;
use super::create::layout;
use super::events::PoolEvent;
use super::labels::Leaf;
pub use super::split_config::SplitPlan;
use super::syncing::TxgSync;
use super::unflushed::{self, LogsAtImport};
use super::{Engine, Host, ImportOptions, PoolProperty, PoolSplits, add, aux_devices, config, open, vdev_objects};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use weir_blocks::vdev::Replaced;
use weir_format::{NvList, Txg};
use weir_machine::{Request, invariant};
use weir_pool::config::VdevConfig;
use weir_pool::error::PoolError;
use weir_pool::open::{OpenOptions, Pool, classes};
use weir_pool::scan::{Device, scan};
use weir_pool::{assemble, label};

/// Memory for the cache of the new pool while it is made, in bytes.
const ARC_BYTES: u64 = 32 << 20;

/// A pool to split off.
#[derive(Clone, Debug, Default)]
pub struct SplitRequest {
    /// Name of the new pool.
    pub name: String,
    /// GUIDs of devices to take, at most one of each mirror; of each other mirror, the last is taken.
    pub devices: Vec<u64>,
    /// Properties of the new pool.
    pub properties: Vec<PoolProperty>,
    /// The host that does it, for the labels.
    pub host: Host,
    /// The command and the user who gave it, for the new pool's history.
    pub command: Option<(String, u32)>,
}

/// Devices that a pool has given away.
struct SplitOff {
    devices: Vec<Leaf>,
    /// Txg of the last uberblock that they have.
    txg: Txg,
    former: Replaced,
}

fn refused(what: impl Into<String>) -> PoolError {
    PoolError::Refused { what: what.into() }
}

impl PoolSplits<'_> {
    /// Plans a new pool of these devices, and of the last one of each other mirror.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if the pool cannot be split that way, or a device lacks blocks.
    pub fn plan(&self, devices: &[u64]) -> Result<SplitPlan, PoolError> {
        let config = self.engine.shown().config;
        let plan = SplitPlan::of(&config.root, devices)?;
        self.check(&config.root, &plan.leaves)?;
        Ok(plan)
    }

    /// Checks that each of these leaves has all blocks, and that the pool has all without it.
    fn check(&self, root: &NvList, leaves: &[u64]) -> Result<(), PoolError> {
        let root = parsed(root)?;
        let tree = self.engine.cache.blocks().tree();
        for guid in leaves.iter().filter(|guid| **guid != 0) {
            let name =
                || root.leaves().iter().find(|leaf| leaf.guid == *guid).map_or_else(String::new, |leaf| leaf.name());
            let is_whole = tree.leaf(*guid).is_ok_and(|leaf| leaf.is_in_service() && leaf.dtl().is_empty());
            if !is_whole {
                return Err(refused(format!("{} is not in service, or lacks blocks", name())));
            }
            if self.engine.vdevs().is_required(&root, *guid) {
                return Err(refused(format!("{}: no valid replicas", name())));
            }
        }
        Ok(())
    }

    /// Splits a pool off. When this returns, it is exported, and this pool does not know its devices any more. It has the state
    /// of this pool at some time during the call.
    ///
    /// # Errors
    /// [`PoolError::Refused`] before anything is changed, as [`PoolSplits::plan`] does, or if the pool has a checkpoint, or an
    /// intent log that cannot be replayed; errors of writing the new pool, after which the devices are in this pool again and
    /// are resilvered.
    pub async fn split(&self, request: &SplitRequest) -> Result<(), PoolError> {
        super::create::check_pool_name(&request.name)?;
        if request.name == self.engine.name() {
            return Err(refused("pool already exists"));
        }
        let _one_at_a_time = self.engine.adding.lock().await;
        self.engine.vdevs().check_no_checkpoint().await?;
        self.engine.vdev_removals().check_none_running().await?;
        let leaves = self.plan(&request.devices)?.leaves;
        let split_off = {
            let removals = self.engine.vdev_removals();
            let _quiet = removals.quiet_logs().await?;
            let leaves = leaves.clone();
            self.engine
                .sync_task(move |syncing: &mut TxgSync<'_>| {
                    Box::pin(async move {
                        syncing.engine.pool_splits().check(&syncing.core.config.root, &leaves)?;
                        let done = give_away(syncing, leaves);
                        syncing.fail_txg_on_error(done)
                    })
                })
                .await?
        };
        let SplitOff { devices, txg, former } = split_off;
        former.drained().await;
        match self.make(&leaves, &devices, txg, request).await {
            Ok(()) => self.finish(leaves).await,
            Err(error) => {
                self.take_back(devices).await?;
                Err(error)
            }
        }
    }

    /// Makes the new pool of devices that have the state of `txg`.
    async fn make(&self, leaves: &[u64], devices: &[Leaf], txg: Txg, request: &SplitRequest) -> Result<(), PoolError> {
        let machine = &self.engine.machine;
        let mut found = Vec::new();
        for Leaf { path, disk, .. } in devices {
            let labels = label::read(disk).await;
            found.push(Device { path: path.clone(), partition: None, disk: disk.clone(), labels });
        }
        let former_guid = self.engine.shown().config.guid;
        let mut opening = OpenOptions::new(Vec::new(), former_guid.to_string());
        opening.arc_bytes = ARC_BYTES;
        let mut pool = Pool::open_on(machine, &opening, found).await?;
        if pool.uberblock.txg != txg || pool.devices.len() != devices.len() {
            return Err(refused(format!("the devices have the state of txg {}, not of {txg}", pool.uberblock.txg)));
        }
        let mut options = ImportOptions::new(opening);
        options.host = request.host.clone();
        let mut config = open::config_of(&pool, &options)?;
        let former = config.root.clone();
        let wanted: Vec<u64> = leaves.iter().copied().filter(|guid| *guid != 0).collect();
        config.root = SplitPlan::of(&former, &wanted)?.root;
        config.guid = layout::guid(&machine.entropy);
        config::set(&mut config.root, "guid", config.guid.into());
        config.name.clone_from(&request.name);
        config.split_from = Some(former_guid);
        pool.tree = parsed(&config.root)?;
        classes(&Request::internal("split"), &pool.mos, &mut pool.tree).await;
        add::rebuild(machine, &mut pool).await?;
        let engine = open::assemble(machine, &options, pool, config).await?;
        let kept: BTreeSet<u64> = wanted.into_iter().collect();
        let first = engine.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                let done = begin(syncing, &former, &kept).await;
                syncing.fail_txg_on_error(done)
            })
        });
        if let Err(error) = first.await {
            crate::ending::abandon(&engine).await;
            return Err(error);
        }
        // From here on the new pool exists.
        if let Err(error) = settle(&engine, request).await {
            tracing::warn!(%error, pool = request.name, "the new pool lacks properties, or is not exported");
        }
        Ok(())
    }

    /// Detaches the devices that another pool has.
    async fn finish(&self, leaves: Vec<u64>) -> Result<(), PoolError> {
        let gone: Vec<u64> = leaves.iter().copied().filter(|guid| *guid != 0).collect();
        self.engine
            .sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    let done = detach_all(syncing, &leaves).await;
                    syncing.fail_txg_on_error(done)
                })
            })
            .await?;
        gone.into_iter().for_each(|guid| self.engine.events.post_vdev(PoolEvent::VdevRemove, guid));
        Ok(())
    }

    /// Takes devices back of which no pool was made.
    async fn take_back(&self, devices: Vec<Leaf>) -> Result<(), PoolError> {
        self.engine
            .sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    let tree = syncing.engine.cache.blocks().tree();
                    for device in devices {
                        let is_back = tree.leaf(device.guid).is_ok_and(|leaf| leaf.set_disk(device.disk.clone()));
                        invariant!(is_back, "a device that no pool took has another disk");
                        syncing.core.leaves.push(device);
                    }
                    syncing.core.leaves.sort_by_key(|leaf| leaf.top);
                    syncing.core.config.set_splitting(None);
                    syncing.core.config_dirty = true;
                    Ok(())
                })
            })
            .await?;
        self.engine.scrubs().start_resilver(false).await.map(drop)
    }

    /// Carries an interrupted split to its end, after an import that searched these places: detaches the devices if all of them
    /// are in the new pool. If none is, the pool has them.
    pub(super) async fn go_on(&self, search: &[PathBuf]) -> Result<(), PoolError> {
        let config = self.engine.shown().config;
        let Some(leaves) = config.splitting() else { return Ok(()) };
        let _one_at_a_time = self.engine.adding.lock().await;
        let root = parsed(&config.root)?;
        let known = |guid: &u64| root.leaves().iter().any(|leaf| leaf.guid == *guid);
        let wanted: BTreeSet<u64> = leaves.iter().copied().filter(known).collect();
        let found = assemble(scan(&self.engine.machine, search).await?);
        let split_off =
            |device: &&Device| device.config().and_then(|list| list.get_u64(SPLIT_GUID)) == Some(config.guid);
        let gone = found.pools.values().flat_map(|pool| pool.devices.values()).filter(split_off);
        let gone: BTreeSet<u64> = gone.filter_map(Device::guid).filter(|guid| wanted.contains(guid)).collect();
        let tree = self.engine.cache.blocks().tree();
        let is_here = |guid: &u64| tree.leaf(*guid).is_ok_and(|leaf| leaf.disk().is_some());
        if gone == wanted {
            return self.finish(leaves).await;
        }
        if !wanted.iter().all(is_here) {
            // Devices that were not found may be in the new pool.
            return Ok(());
        }
        self.take_back(Vec::new()).await
    }
}

/// Takes the devices out of the vdev tree, in syncing context. The configuration keeps them.
fn give_away(syncing: &mut TxgSync<'_>, leaves: Vec<u64>) -> Result<SplitOff, PoolError> {
    let guids: BTreeSet<u64> = leaves.iter().copied().filter(|guid| *guid != 0).collect();
    let root = syncing.core.config.root.clone();
    let former = TreeChange(syncing).drop_disks(&root, &guids)?;
    let is_gone = |leaf: &Leaf| guids.contains(&leaf.guid);
    let (devices, rest): (Vec<Leaf>, Vec<Leaf>) =
        std::mem::take(&mut syncing.core.leaves).into_iter().partition(is_gone);
    syncing.core.leaves = rest;
    syncing.core.config.set_splitting(Some(leaves));
    syncing.core.config_dirty = true;
    invariant!(devices.len() == guids.len(), "{} of {} devices are split off", devices.len(), guids.len());
    Ok(SplitOff { devices, txg: syncing.core.uberblock.txg, former })
}

/// Detaches all of these leaves in one txg, in syncing context.
async fn detach_all(syncing: &mut TxgSync<'_>, leaves: &[u64]) -> Result<(), PoolError> {
    for guid in leaves.iter().filter(|guid| **guid != 0) {
        let is_known = super::labels::find(&syncing.core.config.root, *guid).is_some();
        if !is_known {
            continue;
        }
        let (root, detached) = TreeChange(syncing).detachable(*guid)?;
        let _former = TreeChange(syncing).detach(root, detached).await?;
    }
    syncing.core.config.set_splitting(None);
    syncing.core.config_dirty = true;
    Ok(())
}

/// The first txg of the new pool: it gives up what only the former pool has. `former` is that one's vdev tree.
async fn begin(syncing: &mut TxgSync<'_>, former: &NvList, kept: &BTreeSet<u64>) -> Result<(), PoolError> {
    unflushed::first_txg_after_import(syncing, LogsAtImport::Claimed).await?;
    for list in former.get_list_array("children").unwrap_or_default() {
        let top: VdevConfig = parsed(list)?;
        if !top.leaves().iter().any(|leaf| kept.contains(&leaf.guid)) {
            // A log: holes and removed vdevs have no objects of this kind.
            if top.is_concrete() {
                vdev_objects::destroy_of_top(syncing, list).await?;
            }
            continue;
        }
        for leaf in list.get_list_array("children").unwrap_or_default() {
            if !kept.contains(&leaf.get_u64("guid").unwrap_or(0)) {
                vdev_objects::destroy_of_leaf(syncing, leaf).await?;
            }
        }
    }
    aux_devices::forget(syncing).await
}

/// Sets the properties of the new pool, writes its history and exports it.
async fn settle(engine: &Arc<Engine>, request: &SplitRequest) -> Result<(), PoolError> {
    let mut done = Ok(());
    for property in &request.properties {
        done = done.and(engine.properties().set_on_pool(property.clone()).await);
    }
    if let Some((line, uid)) = &request.command {
        done = done.and(engine.log_command(line.clone(), *uid));
    }
    // It is exported in any case.
    engine.export().await.and(done)
}

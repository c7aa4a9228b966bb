//! Hot spares: devices without data that take the places of failed ones, by command or by themselves.
//!
//! ```text
//!   a device is faulted or missing ─► a spare that is large enough ─► spare-0 [device spare] ─► resilver
//!                                                                          │
//!     the device is back, or replaced, and has everything ─► spare detached: available again
//!     the device is detached                              ─► the spare takes its place, and is no spare any more
//! ```
//!
//! An active spare has the labels of a leaf; an available one has labels that name no pool. Power may fail between the txg and
//! the rewriting of these labels: a device of the list that is in the tree is active, any other is available, whatever
//! its labels say, as long as they have its GUID.
//!
//! *Distributed spares* have no device and no labels: they serve the devices of their own dRAID vdev, and stay in the list even
//! if the original is detached.
//!
//! A device that is missing gets a spare after [`MISSING_FOR`], a faulted or degraded one at once, one that was taken offline
//! none. The smallest spare that is large enough is tried first.
//!
//! Source: OpenZFS `cmd/zed/agents/zfs_retire.c` (`replace_with_spare`), `cmd/zed/agents/zfs_diagnosis.c` (its time-out),
//! `module/zfs/spa.c` (`spa_vdev_resilver_done_hunt`), `module/zfs/vdev_label.c` (`vdev_inuse`, `vdev_label_init`).

use super::attach::{AttachRequest, min_bytes, parsed};
use super::aux_devices::{self, AuxKind};
use super::create::devices::Opened;
use super::create::{NewLeaf, layout};
use super::events::PoolEvent;
use super::labels::{self, Leaf};
use super::syncing::TxgSync;
use super::vdev_config_edit::{self as edit, IS_SPARE};
use super::{Config, Spares};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_format::NvList;
use weir_machine::{Access, Nanos, invariant};
use weir_pool::assemble::state;
use weir_pool::config::{Class, VdevConfig, VdevKind};
use weir_pool::error::PoolError;
use weir_pool::open::Pool;
use weir_pool::{label, sizes};

/// Time for which a device must be missing before a spare replaces it.
pub const MISSING_FOR: Duration = Duration::from_secs(15);

/// Asked before a device is used, which another process may have; false if it must not be.
pub type MayUse<'a> = &'a mut (dyn FnMut(&Path) -> bool + Send);

/// State of [`Spares::keep_spares`] between two calls.
#[derive(Debug, Default)]
pub struct SpareWatch {
    missing_since: BTreeMap<u64, Nanos>,
    /// Devices, each with a spare that cannot replace it.
    refused: BTreeSet<(u64, u64)>,
}

fn refused(what: impl Into<String>) -> PoolError {
    PoolError::Refused { what: what.into() }
}

fn guid_of(vdev: &NvList) -> u64 {
    vdev.get_u64("guid").unwrap_or(0)
}

/// The hot spare at that path.
pub(crate) fn at<'a>(config: &'a Config, path: &Path) -> Option<&'a NvList> {
    let text = path.to_string_lossy();
    config.aux.spares.iter().find(|spare| spare.get_str("path") == Some(&text))
}

/// Whether a hot spare is a distributed one: space of a dRAID vdev, not a device.
pub(crate) fn is_distributed(spare: &NvList) -> bool {
    spare.get_str("type") == Some(VdevKind::DraidSpare.type_name())
}

/// Checks that the hot spare at that path is not active.
pub(crate) fn check_available(config: &Config, spare: &NvList, path: &Path) -> Result<(), PoolError> {
    match labels::find(&config.root, guid_of(spare)) {
        Some(_) => Err(PoolError::InUse { path: path.to_owned(), what: "is an active hot spare".into() }),
        None => Ok(()),
    }
}

/// Checks that the device is the hot spare, and that nothing uses it.
pub(crate) async fn check(config: &Config, spare: &NvList, opened: &Opened) -> Result<(), PoolError> {
    let in_use = |what: &str| Err(PoolError::InUse { path: opened.path().to_owned(), what: what.into() });
    let guid = guid_of(spare);
    check_available(config, spare, opened.path())?;
    let labels = label::read(opened.disk()).await;
    match labels.best() {
        Some(list) if list.get_u64("guid") != Some(guid) => in_use("has the labels of another device"),
        Some(list) if list.get_u64("state") == Some(state::SPARE) => Ok(()),
        Some(list) if list.get_u64("pool_guid") == Some(config.guid) => Ok(()),
        Some(_) => in_use("is an active hot spare of another pool"),
        None => in_use("has no labels of the hot spare"),
    }
}

/// The configuration of a hot spare as a leaf.
pub(crate) fn active(spare: &NvList, create_txg: u64) -> NvList {
    let mut leaf = NvList::new();
    for name in ["type", "id", "guid", "path", "devid", "phys_path", "whole_disk", "top_guid", "spareid"] {
        if name == "id" {
            leaf.set(name, 0u64);
        } else if let Some(value) = spare.get(name) {
            leaf.set(name, value.clone());
        }
    }
    leaf.set(IS_SPARE, 1u64);
    leaf.set("create_txg", create_txg);
    debug_assert_eq!(guid_of(&leaf), guid_of(spare));
    leaf
}

/// A device that needs a spare.
struct Failed {
    guid: u64,
    name: String,
    needed_bytes: u64,
    /// GUID of the top-level vdev.
    top: u64,
}

/// Available spares whose labels still say that they are active, with their entries in the list.
pub(crate) fn mislabelled(pool: &Pool, config: &Config) -> Vec<(Leaf, NvList)> {
    let is_available = |spare: &&NvList| labels::find(&config.root, guid_of(spare)).is_none();
    let found = config.aux.spares.iter().filter(is_available).filter_map(|spare| {
        let device = pool.devices.get(&guid_of(spare))?;
        let (path, disk) = (device.path.clone(), device.disk.clone());
        Some((Leaf { guid: guid_of(spare), top: 0, ashift: 9, is_log: false, path, disk }, spare.clone()))
    });
    found.collect()
}

/// Notes, in a configuration, that original devices are there again that hot spares replace.
pub(crate) fn note_returned(pool: &Pool, config: &mut Config) {
    let dtls = pool.dtls();
    for leaf in pool.tree.leaves().into_iter().filter(|leaf| !leaf.offline && !leaf.faulted) {
        if pool.devices.contains_key(&leaf.guid) && dtls.contains_key(&leaf.guid) {
            // Most leaves have no spare.
            let _is_original = edit::unspare(&mut config.root, leaf.guid);
        }
    }
}

impl Spares<'_> {
    /// To be called every few seconds: replaces a device that failed by a hot spare. Returns the path of the spare; its
    /// resilver is started. While a vdev is being rebuilt, no device is replaced.
    ///
    /// # Errors
    /// Errors of writing the configuration.
    pub async fn keep_spares(&self, watch: &mut SpareWatch, may_use: MayUse<'_>) -> Result<Option<PathBuf>, PoolError> {
        if self.engine.rebuilds().is_running() {
            return Ok(None);
        }
        let config = self.engine.shown().config;
        let failed = self.failed(&config, watch)?;
        watch.refused.retain(|(device, _)| failed.iter().any(|failed| failed.guid == *device));
        for failed in failed {
            for (spare, path) in self.candidates(&config, &failed) {
                let is_own = config.aux.spare(spare).is_some_and(is_distributed);
                if watch.refused.contains(&(failed.guid, spare)) || !(is_own || may_use(&path)) {
                    continue;
                }
                let is_file = config.aux.spare(spare).and_then(|spare| spare.get_str("type")) == Some("file");
                let new = NewLeaf { path: path.clone(), is_file };
                let request = AttachRequest { device: failed.guid, new, replaces: true, ashift: None, force: false };
                match self.engine.vdevs().attach(&request).await {
                    Ok(()) => {
                        tracing::warn!(device = failed.name, spare = %path.display(), "replaced by a hot spare");
                        return Ok(Some(path));
                    }
                    Err(error @ PoolError::Suspended { .. }) => return Err(error),
                    Err(error) => {
                        tracing::warn!(device = failed.name, spare = %path.display(), %error, "the hot spare is no help");
                        watch.refused.insert((failed.guid, spare));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Devices that failed and are not replaced by a spare yet.
    fn failed(&self, config: &Config, watch: &mut SpareWatch) -> Result<Vec<Failed>, PoolError> {
        let root = parsed(&config.root)?;
        let tree = self.engine.cache.blocks().tree();
        let now = self.engine.machine.clock.now();
        let mut missing = BTreeMap::new();
        let mut ailing = BTreeSet::new();
        let unwanted = self.engine.diagnosis.without_spare();
        let mut out = Vec::new();
        for top in root.children.iter().filter(|top| top.class != Class::Log) {
            for parent in top.walk().into_iter().chain([&root]) {
                let of_top = |child: &&VdevConfig| parent.kind != VdevKind::Root || child.guid == top.guid;
                for leaf in parent.children.iter().filter(of_top).filter(|leaf| leaf.is_leaf() && !leaf.offline) {
                    let is_absent = tree.leaf(leaf.guid).is_ok_and(|leaf| leaf.disk().is_none());
                    if is_absent {
                        missing.insert(leaf.guid, watch.missing_since.get(&leaf.guid).copied().unwrap_or(now));
                    }
                    let is_lost = missing.get(&leaf.guid).is_some_and(|since| now.since(*since) >= MISSING_FOR);
                    let is_free = match parent.kind {
                        VdevKind::Replacing => false,
                        VdevKind::Spare => leaf.is_spare && parent.children.last().is_some_and(|l| l.guid == leaf.guid),
                        _ => true,
                    };
                    if leaf.faulted || leaf.degraded || is_absent {
                        ailing.insert(leaf.guid);
                    }
                    if is_free && (leaf.faulted || leaf.degraded || is_lost) && !unwanted.contains(&leaf.guid) {
                        let needed_bytes = min_bytes(top, sizes::of_top(top), leaf.guid).unwrap_or(u64::MAX);
                        out.push(Failed { guid: leaf.guid, name: leaf.name(), needed_bytes, top: top.guid });
                    }
                }
            }
        }
        watch.missing_since = missing;
        self.engine.diagnosis.want_spares(|leaf| !ailing.contains(&leaf));
        Ok(out)
    }

    /// Available spares that are large enough, the smallest first: GUID and path. The distributed spares of the device's own
    /// dRAID vdev precede them, because all of its devices take part in the resilver.
    fn candidates(&self, config: &Config, failed: &Failed) -> Vec<(u64, PathBuf)> {
        let mut out = Vec::new();
        for spare in &config.aux.spares {
            let is_active = labels::find(&config.root, guid_of(spare)).is_some();
            let Some(path) = spare.get_str("path").map(PathBuf::from).filter(|_| !is_active) else { continue };
            if is_distributed(spare) {
                if spare.get_u64("top_guid") == Some(failed.top) {
                    out.push((0, spare.get_u64("spareid").unwrap_or(0), guid_of(spare), path));
                }
                continue;
            }
            let Ok(disk) = self.engine.machine.disks.open(&path, Access::ReadOnly) else { continue };
            let bytes = layout::leaf_asize_bytes(disk.geometry().size_bytes);
            if bytes >= failed.needed_bytes {
                out.push((bytes, 0, guid_of(spare), path));
            }
        }
        out.sort();
        out.into_iter().map(|(_, _, guid, path)| (guid, path)).collect()
    }

    /// Takes a hot spare or a cache device out of the pool (`zpool remove`). The labels of a cache device are wiped, those of a
    /// spare stay, because another pool may share it. Returns its entry in the list.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if the spare is active or a distributed one, or the pool has a checkpoint.
    pub async fn remove_aux(&self, guid: u64) -> Result<NvList, PoolError> {
        let _one_at_a_time = self.engine.adding.lock().await;
        self.engine.vdevs().check_no_checkpoint().await?;
        let (removed, kind) = self
            .engine
            .sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    if labels::find(&syncing.core.config.root, guid).is_some() {
                        return Err(refused("the hot spare is in use: detach it first"));
                    }
                    let known = |all: &[NvList]| all.iter().any(|vdev| guid_of(vdev) == guid);
                    let aux = &syncing.core.config.aux;
                    if aux.spare(guid).is_some_and(is_distributed) {
                        return Err(refused("dRAID spares cannot be removed"));
                    }
                    let kind = match (known(&aux.spares), known(&aux.caches)) {
                        (true, _) => AuxKind::Spare,
                        (false, true) => AuxKind::Cache,
                        (false, false) => return Err(refused("no such device in pool")),
                    };
                    let removed = aux_devices::remove(syncing, kind, guid).await;
                    let removed = syncing.fail_txg_on_error(removed)?;
                    let entry = removed.ok_or_else(|| refused("no such device in pool"))?;
                    Ok((entry, kind))
                })
            })
            .await?;
        self.engine.events.post_vdev(PoolEvent::VdevRemoveAux, guid);
        if kind == AuxKind::Cache {
            let _was_in_service = self.engine.cache.l2arc().remove(guid).await;
            self.forget_aux(&removed).await;
        }
        Ok(removed)
    }

    /// Wipes the labels of a device that was removed by [`Spares::remove_aux`], if they are its own. A failure leaves labels
    /// that no pool knows, and is logged.
    pub async fn forget_aux(&self, removed: &NvList) {
        if let Err(error) = self.wipe(removed).await {
            tracing::warn!(%error, "the labels of a removed device are not wiped");
        }
    }

    async fn wipe(&self, removed: &NvList) -> Result<(), PoolError> {
        let guid = guid_of(removed);
        invariant!(self.engine.shown().config.aux.spare(guid).is_none(), "the labels of a hot spare are wiped");
        let Some(path) = removed.get_str("path").map(PathBuf::from) else { return Ok(()) };
        let failed = |source| PoolError::Disk { path: path.clone(), source };
        let disk = self.engine.machine.disks.open(&path, Access::ReadWrite).map_err(failed)?;
        let labels = label::read(&disk).await;
        let is_it = labels.best().is_some_and(|list| list.get_u64("guid") == Some(guid));
        if is_it { labels::clear(&disk).await.map_err(failed) } else { Ok(()) }
    }

    /// Detaches the devices that are not needed any more: replaced ones whose replacement has everything, and hot spares whose
    /// original has.
    ///
    /// # Errors
    /// Errors of [`super::Vdevs::detach`].
    pub async fn finish_replacing(&self) -> Result<(), PoolError> {
        while let Some(old) = self.superseded()? {
            if let Err(error) = self.engine.vdevs().detach(old).await {
                // Another caller was first.
                if self.superseded()? != Some(old) {
                    continue;
                }
                return Err(error);
            }
            tracing::info!(guid = old, "a device that was replaced, or a hot spare that is not needed, is detached");
        }
        Ok(())
    }

    /// A device that another one beside it supersedes.
    fn superseded(&self) -> Result<Option<u64>, PoolError> {
        let root = parsed(&self.engine.shown().config.root)?;
        for vdev in root.walk() {
            let Some((old, new)) = pair(vdev) else { continue };
            if old.is_leaf() && self.is_whole(new) && !self.engine.vdevs().is_required(&root, old.guid) {
                invariant!(old.guid != new.guid, "a device supersedes itself");
                return Ok(Some(old.guid));
            }
        }
        Ok(None)
    }

    /// Whether all leaves below are in service and lack nothing.
    fn is_whole(&self, vdev: &VdevConfig) -> bool {
        let tree = self.engine.cache.blocks().tree();
        let is_whole =
            |leaf: &&VdevConfig| tree.leaf(leaf.guid).is_ok_and(|leaf| leaf.is_in_service() && leaf.dtl().is_empty());
        vdev.leaves().iter().all(is_whole)
    }
}

/// The device of a replacing or spare vdev that leaves when another one has everything, and that other one.
fn pair(vdev: &VdevConfig) -> Option<(&VdevConfig, &VdevConfig)> {
    let (first, last) = (vdev.children.first()?, vdev.children.last()?);
    match vdev.kind {
        VdevKind::Replacing => Some((first, last)),
        VdevKind::Spare if last.unspare => Some((first, last)),
        VdevKind::Spare if first.unspare => Some((last, first)),
        // A spare of a spare: the former one is not needed.
        VdevKind::Spare if vdev.children.len() > 2 && last.is_spare => {
            Some((vdev.children.get(1).filter(|middle| middle.is_spare)?, last))
        }
        _ => None,
    }
}

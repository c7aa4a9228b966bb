//! Devices that join others and leave them, while the pool is in use: attach, replace, detach.
//!
//! ```text
//!   checks ─► label with txg 0 ─► one txg: vdev tree replaced, configuration and DTL written ─► resilver
//!                                                                                                │
//!            labels wiped ◄─ drained ◄─ one txg: vdev tree and configuration without it ◄─ detach ◄┘ of a replaced device
//! ```
//!
//! A new device lacks every block: its DTL goes from the first txg to the last one that may have writes in progress on the
//! former tree. It is written to from the moment at which the tree is replaced, in the same txg that commits it.
//!
//! A device may leave if all blocks can be read without it, by the DTLs of the others.
//!
//! A hot spare joins and leaves the same way: see [`super::spares`]. A distributed one has no labels to write or wipe.
//!
//! Source: OpenZFS `module/zfs/spa.c` (`spa_vdev_attach`, `spa_vdev_detach`, `spa_vdev_resilver_done`).

use super::aux_devices::{self, AuxKind};
use super::config::visit;
use super::create::devices::{self, Opened};
use super::create::{NewLeaf, contents, layout};
use super::events::PoolEvent;
use super::labels::{self, Leaf};
use super::rebuild::RebuildTask;
use super::spares;
use super::syncing::TxgSync;
use super::vdev_config_edit::{self as edit, Above, Detached, NewChild};
use super::{Config, Vdevs, vdev_objects};
use std::collections::{BTreeMap, BTreeSet};
use weir_blocks::vdev::Replaced;
use weir_blocks::{Dtl, VdevSpec};
use weir_format::dsl::pool as names;
use weir_format::{NvList, ObjectId, Txg};
use weir_machine::{Request, invariant};
use weir_pool::assemble::state;
use weir_pool::config::{VdevConfig, VdevKind};
use weir_pool::dtls::{self, Dtls};
use weir_pool::error::PoolError;
use weir_pool::mos::Mos;
use weir_pool::scan::Device;
use weir_pool::sizes;
use weir_pool::vdev_builder::{Facts, specs};

/// Txgs that may be in progress at once (`TXG_CONCURRENT_STATES`).
const CONCURRENT_TXGS: u64 = 3;
/// The first txg of a pool, in which a DTL of everything begins (`TXG_INITIAL`).
const FIRST_TXG: Txg = Txg(layout::INITIAL_TXG);
/// Names in a leaf's configuration.
const LEAF_ZAP: &str = "com.delphix:vdev_zap_leaf";
const RESILVER_TXG: &str = "resilver_txg";
const REBUILD_TXG: &str = "rebuild_txg";

/// A device to attach.
#[derive(Clone, Debug)]
pub struct AttachRequest {
    /// GUID of the present device.
    pub device: u64,
    /// The new device.
    pub new: NewLeaf,
    /// Whether it replaces the present device, instead of mirroring it.
    pub replaces: bool,
    /// log2 of the new device's sector size, if it is not what the device says.
    pub ashift: Option<u64>,
    /// Use the new device even if it appears to be in use.
    pub force: bool,
}

fn refused(what: impl Into<String>) -> PoolError {
    PoolError::Refused { what: what.into() }
}

fn guid_of(vdev: &NvList) -> u64 {
    vdev.get_u64("guid").unwrap_or(0)
}

pub(crate) fn parsed(root: &NvList) -> Result<VdevConfig, PoolError> {
    VdevConfig::parse(root).map_err(|source| PoolError::Decode { what: "the vdev tree".into(), source })
}

/// Minimum allocatable bytes of the leaf `guid` below a vdev of `bytes`.
pub(crate) fn min_bytes(vdev: &VdevConfig, bytes: u64, guid: u64) -> Option<u64> {
    if vdev.guid == guid {
        return Some(bytes);
    }
    vdev.children.iter().find_map(|child| min_bytes(child, sizes::of_child(vdev, bytes), guid))
}

impl Vdevs<'_> {
    /// Attaches a device to another one, or replaces that. When this returns, the new device is a part of the pool; the
    /// resilver of what it lacks is started, and [`super::Scrubs::run`] carries it out.
    ///
    /// # Errors
    /// [`PoolError::Refused`] and [`PoolError::InUse`] before anything is written; [`PoolError::Suspended`].
    pub async fn attach(&self, request: &AttachRequest) -> Result<(), PoolError> {
        {
            let _one_at_a_time = self.engine.adding.lock().await;
            self.attach_alone(request, false).await?;
        }
        self.engine.scrubs().start_resilver(false).await.map(drop)
    }

    /// Attaches a device whose blocks are rebuilt sequentially, or resilvered. The caller holds `adding`. Returns the index of the
    /// top-level vdev.
    pub(crate) async fn attach_alone(&self, request: &AttachRequest, rebuilds: bool) -> Result<u32, PoolError> {
        self.check_no_checkpoint().await?;
        self.engine.vdev_removals().check_none_running().await?;
        let mut config = self.engine.shown().config;
        let (top, above) = place_of(&config, request)?;
        if rebuilds {
            self.check_rebuild(&top).await?;
        } else {
            self.engine.rebuilds().check_none_running()?;
        }
        let machine = &self.engine.machine;
        let spare = spares::at(&config, &request.new.path);
        let opened = self.open_new(&config, &top, request).await?;
        let present = labels::find(&config.root, request.device).cloned().unwrap_or_default();
        let create_txg = present.get_u64("create_txg").unwrap_or(0);
        let mut leaf = match spare {
            Some(spare) => spares::active(spare, create_txg),
            None => request.new.list(0, create_txg, &machine.entropy),
        };
        leaf.set(if rebuilds { REBUILD_TXG } else { RESILVER_TXG }, self.engine.txgs().open().0);
        let guid = guid_of(&leaf);
        let is_spare = spare.is_some();
        let above_guid = layout::guid(&machine.entropy);
        let new = NewChild { beside: request.device, leaf, above, above_guid };
        if !edit::attach(&mut config.root, &new) {
            return Err(refused("no such device in pool"));
        }
        let is_log = top.class == weir_pool::Class::Log;
        let device = opened.map(|opened| opened.leaf(guid, top.id as usize, top.ashift, is_log));
        if let Some(device) = &device {
            let list = config.tops().get(top.id as usize).cloned().unwrap_or_default();
            let mut label = config.label_list(&list, labels::find(&list, guid).unwrap_or(&list), Txg(0));
            label.set("create_txg", self.engine.txgs().open().0);
            labels::initialize(device, &label).await?;
        }
        // Operations in progress on the former tree do not reach the new device: its DTL has their txgs.
        let vdev = top.id as u32;
        let _replaced = self
            .engine
            .sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    if rebuilds {
                        RebuildTask(syncing).check().await?;
                    }
                    let done = TreeChange(syncing).attach(&new, device).await;
                    let replaced = syncing.fail_txg_on_error(done)?;
                    if rebuilds {
                        let done = RebuildTask(syncing).initiate(vdev).await;
                        syncing.fail_txg_on_error(done)?;
                    }
                    Ok(replaced)
                })
            })
            .await?;
        if is_spare {
            self.engine.events.post_vdev(PoolEvent::VdevSpare, guid);
        }
        self.engine.events.post_vdev(PoolEvent::VdevAttach, guid);
        Ok(vdev)
    }

    /// Checks that the vdev can be rebuilt sequentially, before the new device is labelled.
    async fn check_rebuild(&self, top: &VdevConfig) -> Result<(), PoolError> {
        let is_possible = matches!(top.kind, VdevKind::Mirror | VdevKind::Draid { .. }) || top.is_leaf();
        if !is_possible || !self.engine.cache.blocks().metaslabs().rebuild(top.id as u32).is_possible() {
            return Err(refused("only mirror and dRAID vdevs support sequential reconstruction"));
        }
        if top.top_zap == 0 {
            return Err(refused("the pool keeps no ZAPs of its vdevs, in which the progress is recorded"));
        }
        self.engine
            .sync_task(|syncing: &mut TxgSync<'_>| Box::pin(async move { RebuildTask(syncing).check().await }))
            .await
    }

    /// Opens the new device and checks it; `None` for a distributed spare, which has no device.
    async fn open_new(
        &self,
        config: &Config,
        top: &VdevConfig,
        request: &AttachRequest,
    ) -> Result<Option<Opened>, PoolError> {
        let NewLeaf { path, .. } = &request.new;
        let spare = spares::at(config, path);
        if let Some(spare) = spare.filter(|spare| spares::is_distributed(spare)) {
            return spares::check_available(config, spare, path).map(|()| None);
        }
        let is_forced = request.force || spare.is_some();
        // A hot spare is a member that may step in.
        let members = if spare.is_some() { BTreeSet::new() } else { members(config) };
        let new = std::iter::once(&request.new);
        let opened = devices::open_leaves(&self.engine.machine, new, is_forced, &members).await?;
        let opened = opened.into_iter().next().ok_or(refused("no device is given"))?;
        if let Some(spare) = spare {
            spares::check(config, spare, &opened).await?;
        }
        check_device(config, top, request, &opened)?;
        Ok(Some(opened))
    }

    /// Whether this leaf is open and in service.
    pub fn is_in_service(&self, device: u64) -> bool {
        self.engine.cache.blocks().tree().leaf(device).is_ok_and(|leaf| leaf.is_in_service())
    }

    /// Whether devices are joining or leaving the pool now.
    pub fn is_changing(&self) -> bool {
        self.engine.adding.try_lock().is_none()
    }

    pub(crate) async fn check_no_checkpoint(&self) -> Result<(), PoolError> {
        let rq = &Request::internal("attach");
        let mos = Mos { set: self.engine.synced().state(rq).await?.mos.clone() };
        match mos.named_words(rq, names::CHECKPOINT).await? {
            Some(_) => Err(refused("the pool has a checkpoint")),
            None => Ok(()),
        }
    }

    /// Detaches a device from a mirror, or from the device that it replaces or that replaces it. Its labels are wiped; a hot
    /// spare becomes available again. If it is the original of a hot spare, that takes its place for good.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if blocks would become unreadable ("no valid replicas"), or the device has no other beside it.
    pub async fn detach(&self, device: u64) -> Result<(), PoolError> {
        let _one_at_a_time = self.engine.adding.lock().await;
        self.check_no_checkpoint().await?;
        self.engine.vdev_removals().check_none_running().await?;
        let (replaced, gone, spare) = self
            .engine
            .sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    let (root, detached) = TreeChange(syncing).detachable(device)?;
                    let done = TreeChange(syncing).detach(root, detached).await;
                    syncing.fail_txg_on_error(done)
                })
            })
            .await?;
        self.engine.events.post_vdev(PoolEvent::VdevRemove, device);
        replaced.drained().await;
        // The pool does not know the device any more: a failure leaves labels that no import uses.
        let Some(gone) = gone else { return Ok(()) };
        let done = match spare {
            Some(spare) => {
                labels::initialize_aux(&gone, self.engine.shown().config.version, &spare, state::SPARE).await
            }
            None => labels::clear(&gone.disk).await.map_err(|source| PoolError::Disk { path: gone.path, source }),
        };
        if let Err(error) = done {
            tracing::warn!(%error, "the labels of a detached device are not changed");
        }
        Ok(())
    }

    /// Detaches a device as [`Vdevs::detach`] does, by a command: the original of a hot spare that is detached gets no other
    /// one by itself before it was healthy again.
    ///
    /// # Errors
    /// Those of [`Vdevs::detach`].
    pub async fn detach_by_command(&self, device: u64) -> Result<(), PoolError> {
        let root = parsed(&self.engine.shown().config.root)?;
        let is_spare = |leaf: &&VdevConfig| leaf.guid == device && leaf.is_spare;
        let above = root.walk().into_iter().find(|vdev| vdev.children.iter().any(|leaf| is_spare(&leaf)));
        let original = above.and_then(|spare| spare.children.first()).map(|first| first.guid);
        self.detach(device).await?;
        if let Some(original) = original.filter(|guid| *guid != device) {
            self.engine.diagnosis.want_no_spare(original);
        }
        Ok(())
    }

    /// Whether blocks would become unreadable, or remain so, without this leaf.
    pub(crate) fn is_required(&self, root: &VdevConfig, guid: u64) -> bool {
        let tree = self.engine.cache.blocks().tree();
        dtls::is_required(root, guid, &|leaf| match tree.leaf(leaf.guid) {
            Ok(leaf) if leaf.is_in_service() => leaf.dtl(),
            _ => Dtl::all(),
        })
    }
}

/// The top-level vdev of a request's present device, and the kind of vdev above it and the new one.
fn place_of(config: &Config, request: &AttachRequest) -> Result<(VdevConfig, Above), PoolError> {
    let missing = || refused("no such device in pool");
    let root = parsed(&config.root)?;
    let is_of = |top: &&VdevConfig| top.leaves().iter().any(|leaf| leaf.guid == request.device);
    let top = root.children.iter().find(is_of).cloned().ok_or_else(missing)?;
    let parent = edit::parent_of(&config.root, request.device).ok_or_else(missing)?;
    let spare = spares::at(config, &request.new.path);
    let is_spare = spare.is_some();
    let is_of_another = |spare: &NvList| spares::is_distributed(spare) && spare.get_u64("top_guid") != Some(top.guid);
    if request.replaces && spare.is_some_and(is_of_another) {
        return Err(refused("dRAID spares can only replace child devices in their parent's dRAID vdev"));
    }
    let was_spare = labels::find(&config.root, request.device).and_then(|leaf| leaf.get_u64(edit::IS_SPARE)) == Some(1);
    let spared =
        edit::parent_of(&config.root, guid_of(parent)).and_then(|above| above.get_str("type")) == Some("spare");
    match (request.replaces, parent.get_str("type")) {
        (false, _) if is_spare => Err(refused("the new device is a hot spare: it can only replace a device")),
        (false, Some("root" | "mirror")) => Ok((top, Above::Mirror)),
        (false, _) => Err(refused("can only attach to mirrors and top-level disks")),
        (true, _) if is_spare && top.class == weir_pool::Class::Log => Err(refused("hot spares cannot replace logs")),
        (true, Some("spare")) if is_spare && !was_spare => Err(refused("a hot spare replaces the device already")),
        (true, Some("spare")) if !is_spare && was_spare => {
            Err(refused("the device is an active hot spare: replace the device that it replaces"))
        }
        (true, Some("replacing")) if is_spare && spared => {
            Err(refused("a hot spare replaces the device already, which is being replaced"))
        }
        (true, _) if is_spare => Ok((top, Above::Spare)),
        (true, _) => Ok((top, Above::Replacing)),
    }
}

/// GUIDs of all devices of a pool: leaves of its vdev tree, hot spares and cache devices.
pub(crate) fn members(config: &Config) -> BTreeSet<u64> {
    let root = VdevConfig::parse(&config.root).ok();
    let leaves = root.iter().flat_map(|root| root.leaves()).map(|leaf| leaf.guid);
    let aux = config.aux.spares.iter().chain(&config.aux.caches).map(guid_of);
    leaves.chain(aux).filter(|guid| *guid != 0).collect()
}

/// Checks the size and the sectors of a new device.
pub(crate) fn check_device(
    config: &Config,
    top: &VdevConfig,
    request: &AttachRequest,
    opened: &Opened,
) -> Result<(), PoolError> {
    let path = request.new.path.display();
    let size = opened.size();
    let needed = min_bytes(top, sizes::of_top(top), request.device).unwrap_or(u64::MAX);
    if layout::leaf_asize_bytes(size.device_bytes) < needed {
        let needed_mib = sizes::of_device(needed) >> 20;
        return Err(refused(format!("{path} is too small: {needed_mib} MiB are needed")));
    }
    let ashift = u64::from(size.sector_bytes.max(1).next_power_of_two().trailing_zeros());
    if request.ashift.unwrap_or(ashift) > top.ashift || ashift > top.ashift {
        return Err(refused(format!(
            "{path} has sectors of {} bytes, and the vdev's have {}",
            1u64 << request.ashift.unwrap_or(ashift).max(ashift).min(32),
            1u64 << top.ashift.min(32)
        )));
    }
    let uses = |path: &str| config.root.get_list_array("children").is_some() && is_at(&config.root, path);
    let text = request.new.path.to_string_lossy();
    let replaces_itself = request.replaces
        && labels::find(&config.root, request.device).and_then(|leaf| leaf.get_str("path")) == Some(&text);
    if uses(&text) && !replaces_itself {
        return Err(PoolError::InUse { path: request.new.path.clone(), what: "is part of this pool".into() });
    }
    Ok(())
}

/// Whether a leaf at or below `vdev` has that path.
fn is_at(vdev: &NvList, path: &str) -> bool {
    let below = vdev.get_list_array("children").unwrap_or_default();
    vdev.get_str("path") == Some(path) || below.iter().any(|child| is_at(child, path))
}

/// Changes of the vdev tree, in syncing context.
pub(crate) struct TreeChange<'a, 'b>(pub(crate) &'a mut TxgSync<'b>);

impl TreeChange<'_, '_> {
    /// Replaces the vdev tree by the one of `root`. `devices` and `dtls` describe new leaves; `renamed` has old and new GUIDs.
    pub(crate) fn replace_tree(
        &self,
        root: &NvList,
        device: Option<&Leaf>,
        dtls: &Dtls,
        renamed: Option<(u64, u64)>,
    ) -> Result<Replaced, PoolError> {
        let devices = device.map(|leaf| (leaf.guid, devices::blank(leaf))).into_iter().collect::<BTreeMap<_, _>>();
        let mut specs = self.specs(root, &devices, dtls)?;
        if let Some((old, new)) = renamed {
            specs.iter_mut().filter(|spec| spec.guid == new).for_each(|spec| spec.former_guid = Some(old));
        }
        self.0.engine.cache.blocks().tree().replace(specs).map_err(|error| self.bad_tree(&error))
    }

    /// Takes the disks of leaves out of the vdev tree, so that these count as missing from the syncing txg on. Operations in
    /// progress end on the former version.
    pub(crate) fn drop_disks(&self, root: &NvList, leaves: &BTreeSet<u64>) -> Result<Replaced, PoolError> {
        let txg = self.0.change.txg();
        let dtls: Dtls = leaves.iter().map(|guid| (*guid, vec![(txg, txg)].into())).collect();
        let without = self.specs(root, &BTreeMap::new(), &Dtls::new())?;
        let with = self.specs(root, &BTreeMap::new(), &dtls)?;
        let tree = self.0.engine.cache.blocks().tree();
        let former = tree.replace(without.into_iter().map(|spec| less(spec, leaves)).collect());
        let former = former.map_err(|error| self.bad_tree(&error))?;
        // The leaves are new ones, without disks.
        let _version_between = tree.replace(with).map_err(|error| self.bad_tree(&error))?;
        Ok(former)
    }

    /// Replaces the vdev tree by the one of `root`, in which the top-level vdev `removed` is a hole.
    pub(crate) fn replace_tree_without(&self, root: &NvList, removed: u32) -> Result<Replaced, PoolError> {
        let specs = self.specs(root, &BTreeMap::new(), &Dtls::new())?;
        self.0.engine.cache.blocks().tree().replace_without(specs, removed).map_err(|error| self.bad_tree(&error))
    }

    /// Replaces the vdev tree by the one of `root`, in which the vdev that has been evacuated is an indirect one.
    pub(crate) fn replace_evacuated(&self, root: &NvList) -> Result<Replaced, PoolError> {
        let specs = self.specs(root, &BTreeMap::new(), &Dtls::new())?;
        self.0.engine.cache.blocks().metaslabs().evacuations().finish(specs).map_err(|error| self.bad_tree(&error))
    }

    fn specs(&self, root: &NvList, devices: &BTreeMap<u64, Device>, dtls: &Dtls) -> Result<Vec<VdevSpec>, PoolError> {
        let facts = Facts { devices, dtls, uberblock: &self.0.core.uberblock, writing: true };
        Ok(specs(&parsed(root)?, &facts))
    }

    fn bad_tree(&self, error: &weir_blocks::TreeError) -> PoolError {
        PoolError::Config { pool: self.0.core.config.name.clone(), what: error.to_string() }
    }

    async fn zaps_of_vdevs(&self) -> Result<Option<ObjectId>, PoolError> {
        let mos = Mos { set: self.0.engine.mos.clone() };
        Ok(mos.named(self.0.change.rq, names::VDEV_ZAP_MAP).await?)
    }

    /// `device` is `None` for a distributed spare.
    async fn attach(&mut self, new: &NewChild, device: Option<Leaf>) -> Result<Replaced, PoolError> {
        let guid = guid_of(&new.leaf);
        let mut root = self.0.core.config.root.clone();
        if !edit::attach(&mut root, new) {
            return Err(refused("no such device in pool"));
        }
        let lacks: Dtl = vec![(FIRST_TXG, Txg(self.0.change.txg().0 + CONCURRENT_TXGS))].into();
        let replaced = self.replace_tree(&root, device.as_ref(), &Dtls::from([(guid, lacks)]), None)?;
        self.0.core.config.root = root;
        if let Some(all) = self.zaps_of_vdevs().await? {
            let id = contents::linked_zap(&self.0.change, all).await?;
            self.0.core.config.set_number(guid, LEAF_ZAP, id.0);
        }
        self.0.core.leaves.extend(device);
        self.0.core.leaves.sort_by_key(|leaf| leaf.top);
        self.0.core.config_dirty = true;
        invariant!(self.0.engine.cache.blocks().tree().leaf(guid).is_ok(), "the new device is not in the tree");
        Ok(replaced)
    }

    /// The vdev tree without a device, if it can be spared.
    pub(crate) fn detachable(&self, device: u64) -> Result<(NvList, Detached), PoolError> {
        let root = &self.0.core.config.root;
        if labels::find(root, device).is_none_or(|vdev| vdev.contains("children")) {
            return Err(refused("no such device in pool"));
        }
        let mut next = root.clone();
        let none = || refused("only applicable to mirror and replacing vdevs");
        let detached = edit::detach(&mut next, device).ok_or_else(none)?;
        if self.0.engine.vdevs().is_required(&parsed(root)?, device) {
            return Err(refused("no valid replicas"));
        }
        Ok((next, detached))
    }

    /// Returns the former tree, the device, and its entry in the list of hot spares if it is one again.
    pub(crate) async fn detach(
        &mut self,
        root: NvList,
        detached: Detached,
    ) -> Result<(Replaced, Option<Leaf>, Option<NvList>), PoolError> {
        let gone = guid_of(&detached.leaf);
        let replaced = self.replace_tree(&root, None, &Dtls::new(), detached.renamed)?;
        self.0.core.config.root = root;
        vdev_objects::destroy_of_leaf(self.0, &detached.leaf).await?;
        if let Some(permanent) = detached.unspared {
            // No entry: a spare that another program has removed from its list.
            let _entry = aux_devices::remove(self.0, AuxKind::Spare, permanent).await?;
        }
        self.0.core.dtls.forget(gone);
        let leaves = &mut self.0.core.leaves;
        let device = leaves.iter().position(|leaf| leaf.guid == gone).map(|at| leaves.remove(at));
        if let Some((old, new)) = detached.renamed {
            leaves.iter_mut().filter(|leaf| leaf.guid == old).for_each(|leaf| leaf.guid = new);
            self.0.core.dtls.rename(old, new);
        }
        self.0.core.config_dirty = true;
        invariant!(self.0.engine.cache.blocks().tree().leaf(gone).is_err(), "the detached device is in the tree");
        let spare = self.0.core.config.aux.spare(gone).cloned();
        Ok((replaced, device, spare))
    }
}

/// A vdev without some of its leaves.
fn less(mut spec: VdevSpec, leaves: &BTreeSet<u64>) -> VdevSpec {
    spec.children.retain(|child| !leaves.contains(&child.guid));
    spec.children = spec.children.into_iter().map(|child| less(child, leaves)).collect();
    spec
}

/// Forgets that devices are new which lack nothing any more.
pub(crate) fn forget_resilver_txgs(syncing: &mut TxgSync<'_>) {
    let tree = syncing.engine.cache.blocks().tree();
    let mut changed = false;
    visit(&mut syncing.core.config.root, &mut |vdev| {
        let is_whole = tree.leaf(guid_of(vdev)).is_ok_and(|leaf| leaf.dtl().is_empty());
        changed |= is_whole && (vdev.remove(RESILVER_TXG).is_some() | vdev.remove(REBUILD_TXG).is_some());
    });
    syncing.core.config_dirty |= changed;
}

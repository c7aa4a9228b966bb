//! Begin of an expansion: checks, and the txg in which the vdev gets a child more.
//!
//! Source: OpenZFS `module/zfs/spa.c` (`spa_vdev_attach`), `module/zfs/vdev_raidz.c` (`vdev_raidz_attach_check`,
//! `vdev_raidz_attach_sync`), `lib/libzfs/libzfs_pool.c` (`zpool_vdev_attach`, for the reasons of refusals).

use super::super::attach::{AttachRequest, TreeChange, check_device, members, parsed};
use super::super::create::contents;
use super::super::create::devices;
use super::super::labels::{self, Leaf};
use super::super::syncing::TxgSync;
use super::super::{Engine, config, spares};
use super::record::{self, Expanding};
use super::refused;
use weir_blocks::vdev::Replaced;
use weir_dsl::sync_tasks::{features, history};
use weir_format::dsl::pool as names;
use weir_format::features::Feature;
use weir_format::nvlist::NvValue;
use weir_format::{NvList, Txg};
use weir_machine::invariant;
use weir_pool::config::{VdevConfig, VdevKind};
use weir_pool::dtls::Dtls;
use weir_pool::error::PoolError;
use weir_pool::initialize_trim::LeafActivity;
use weir_pool::mos::Mos;

/// Bytes of the boot area, which is the scratch area.
pub(super) const SCRATCH_BYTES: u64 = 7 << 19;
/// Maximum children of a vdev (`VDEV_RAIDZ_MAX_COLS` is 255).
const MAX_CHILDREN: usize = 255;
const NO_DEVICE: &str = "no such device in pool";
const LEAF_ZAP: &str = "com.delphix:vdev_zap_leaf";

/// A device that is checked and labelled, and the vdev that it joins.
pub(super) struct NewColumn {
    pub leaf: NvList,
    pub device: Leaf,
    pub vdev: u32,
}

/// Whether the devices of a vdev can be copied: the tree has them in service, and none is being replaced.
fn check_children(engine: &Engine, top: &VdevConfig) -> Result<(), PoolError> {
    let tree = engine.cache.blocks().tree();
    let in_service =
        |child: &VdevConfig| child.is_leaf() && tree.leaf(child.guid).is_ok_and(|leaf| leaf.is_in_service());
    if !top.children.iter().all(in_service) {
        return Err(refused("raidz vdev has devices that are offline or being replaced"));
    }
    let lacks = |child: &&VdevConfig| tree.leaf(child.guid).is_ok_and(|leaf| !leaf.dtl().is_empty());
    match top.children.iter().find(lacks) {
        Some(child) => Err(refused(format!("{} lacks blocks: wait for its resilver", child.name()))),
        None => Ok(()),
    }
}

/// Checks that the vdev can be expanded by the device, and labels that.
pub(super) async fn check(engine: &Engine, request: &AttachRequest) -> Result<NewColumn, PoolError> {
    engine.vdevs().check_no_checkpoint().await?;
    engine.vdev_removals().check_none_running().await?;
    let mut config = engine.shown().config;
    let root = parsed(&config.root)?;
    let top = root.children.iter().find(|top| top.guid == request.device).ok_or_else(|| refused(NO_DEVICE))?;
    if request.replaces || !matches!(top.kind, VdevKind::Raidz { .. }) {
        return Err(refused("can only attach to mirrors and top-level disks"));
    }
    if top.top_zap == 0 {
        return Err(refused("the pool keeps no ZAPs of its vdevs, in which the progress is recorded"));
    }
    engine.sync_task(|syncing: &mut TxgSync<'_>| Box::pin(async move { check_feature(syncing).await })).await?;
    engine.expansions().check_none_running()?;
    if spares::at(&config, &request.new.path).is_some() {
        return Err(refused("the new device is a hot spare: it can only replace a device"));
    }
    let count = top.children.len() + 1;
    let scratch_sectors = SCRATCH_BYTES.checked_shr(top.ashift as u32).unwrap_or(0);
    if count > MAX_CHILDREN || count as u64 > scratch_sectors {
        return Err(refused(format!("a RAID-Z vdev of {} devices cannot be expanded", top.children.len())));
    }
    check_children(engine, top)?;
    for kind in [LeafActivity::Initialize, LeafActivity::Trim] {
        let running = engine.initialize_trim().running(kind);
        if top.children.iter().any(|child| running.contains(&child.guid)) {
            return Err(refused("devices of the vdev are being initialized or trimmed: suspend or cancel that first"));
        }
    }
    let first = top.children.first().map_or(0, |child| child.guid);
    let machine = &engine.machine;
    let new = std::iter::once(&request.new);
    let opened = devices::open_leaves(machine, new, request.force, &members(&config)).await?;
    let opened = opened.into_iter().next().ok_or_else(|| refused("no device is given"))?;
    check_device(&config, top, &AttachRequest { device: first, ..request.clone() }, &opened)?;
    let present = labels::find(&config.root, first).cloned().unwrap_or_default();
    let create_txg = present.get_u64("create_txg").unwrap_or(0);
    let leaf = request.new.list(count as u64 - 1, create_txg, &machine.entropy);
    let guid = leaf.get_u64("guid").unwrap_or(0);
    config.root = with_child(&config.root, top.id, &leaf);
    let device = opened.leaf(guid, top.id as usize, top.ashift, false);
    let list = config.tops().get(top.id as usize).cloned().unwrap_or_default();
    let mut label = config.label_list(&list, labels::find(&list, guid).unwrap_or(&list), Txg(0));
    label.set("create_txg", engine.txgs().open().0);
    labels::initialize(&device, &label).await?;
    Ok(NewColumn { leaf, device, vdev: top.id as u32 })
}

/// Checks that expansions are enabled.
pub(super) async fn check_feature(syncing: &mut TxgSync<'_>) -> Result<(), PoolError> {
    match features::is_enabled(&mut syncing.change, Feature::RAIDZ_EXPANSION).await? {
        true => Ok(()),
        false => Err(refused("raidz_expansion feature must be enabled in order to attach a device to raidz")),
    }
}

/// The vdev tree with one more child of top-level vdev `vdev`, which is being expanded.
fn with_child(root: &NvList, vdev: u64, leaf: &NvList) -> NvList {
    let mut root = root.clone();
    let mut tops = root.get_list_array("children").unwrap_or_default().to_vec();
    if let Some(top) = tops.get_mut(vdev as usize) {
        let mut children = top.get_list_array("children").unwrap_or_default().to_vec();
        children.push(leaf.clone());
        top.set("raidz_expanding", NvValue::Boolean);
        // The last value, as OpenZFS has it.
        top.remove("children");
        top.set("children", children);
    }
    config::set(&mut root, "children", tops.into());
    root
}

/// Adds the device to the vdev. Returns the former tree.
pub(super) async fn begin(
    syncing: &mut TxgSync<'_>,
    vdev: u32,
    leaf: NvList,
    device: Leaf,
) -> Result<Replaced, PoolError> {
    let guid = device.guid;
    let root = with_child(&syncing.core.config.root, vdev.into(), &leaf);
    invariant!(syncing.core.expanding.is_none(), "two vdevs are expanded at a time");
    invariant!(syncing.core.uberblock.reflow == Default::default(), "the uberblock has the position of an expansion");
    let replaced = TreeChange(syncing).replace_tree(&root, Some(&device), &Dtls::new(), None)?;
    syncing.core.config.root = root;
    let mos = Mos { set: syncing.engine.mos.clone() };
    if let Some(all) = mos.named(syncing.change.rq, names::VDEV_ZAP_MAP).await? {
        let id = contents::linked_zap(&syncing.change, all).await?;
        syncing.core.config.set_number(guid, LEAF_ZAP, id.0);
    }
    syncing.core.leaves.push(device);
    syncing.core.leaves.sort_by_key(|leaf| leaf.top);
    syncing.core.config_dirty = true;
    features::count_feature(&mut syncing.change, Feature::RAIDZ_EXPANSION, 1).await?;
    let root = parsed(&syncing.core.config.root)?;
    let top = root.children.get(vdev as usize).ok_or_else(|| refused(NO_DEVICE))?;
    record::begun(&syncing.change, top).await?;
    let text = format!("{} vdev {vdev} new width {}", syncing.core.config.name, top.children.len());
    history::log_pool(&mut syncing.change, "raidz vdev expansion started", &text).await?;
    syncing.core.expanding = Some(Expanding::new(vdev, 0));
    invariant!(syncing.engine.cache.blocks().tree().leaf(guid).is_ok(), "the new device is not in the tree");
    Ok(replaced)
}

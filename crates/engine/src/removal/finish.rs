//! The end of a removal, in syncing context: the vdev becomes an indirect one, or is used again.
//!
//! Source: OpenZFS `module/zfs/vdev_removal.c` (`vdev_remove_complete_sync`, `vdev_remove_replace_with_indirect`,
//! `spa_vdev_remove_cancel_sync`), `module/zfs/vdev_label.c` (`vdev_config_generate`).

use super::super::attach::{TreeChange, parsed};
use super::super::create::layout;
use super::super::labels::{self, Leaf};
use super::super::space::remove_map;
use super::super::syncing::TxgSync;
use super::super::{config, vdev_objects};
use super::record::{CANCELED, FINISHED, Removal, RemovalRecord, count_freed};
use super::{refused, with_classes};
use std::ops::Range;
use weir_blocks::vdev::Replaced;
use weir_dmu::zap;
use weir_dsl::sync_tasks::features;
use weir_format::features::Feature;
use weir_format::{NvList, ObjectId};
use weir_machine::invariant;
use weir_pool::config::VdevConfig;
use weir_pool::error::PoolError;
use weir_pool::metaslab_geometry::MetaslabGeometry;
use weir_pool::mos::Mos;
use weir_pool::top_zap::{self, COUNTS_ARE_PRECISE, OBSOLETE_SM};

/// Values of the vdev that an indirect vdev keeps.
const KEPT: [&str; 7] = [
    "metaslab_shift",
    "ashift",
    "asize",
    "create_txg",
    "com.delphix:indirect_object",
    "com.delphix:indirect_births",
    "com.delphix:vdev_zap_top",
];

/// The indirect vdev that takes the place of a vdev.
fn indirect(of: &NvList, guid: u64, prev: u64) -> NvList {
    let mut list = NvList::new();
    list.set("type", "indirect");
    list.set("id", of.get_u64("id").unwrap_or(0));
    list.set("guid", guid);
    list.set("metaslab_array", 0u64);
    list.set("is_log", 0u64);
    for name in KEPT {
        if let Some(value) = of.get_u64(name) {
            list.set(name, value);
        }
    }
    if prev != u64::MAX {
        list.set("com.delphix:prev_indirect_vdev", prev);
    }
    list
}

fn none() -> PoolError {
    refused("there is no active removal")
}

/// Replaces the vdev by an indirect one. Returns the former tree and the devices.
pub(super) async fn finish(syncing: &mut TxgSync<'_>) -> Result<(Replaced, Vec<Leaf>), PoolError> {
    let removal = syncing.core.removal.clone().ok_or_else(none)?;
    count_freed(syncing).await?;
    let index = removal.vdev as usize;
    let mut record = RemovalRecord::read(syncing).await?;
    if record.copied != record.to_copy {
        // Another program's numbers, which are only shown.
        tracing::info!(copied = record.copied, to_copy = record.to_copy, "the progress of a removal was miscounted");
    }
    let mut tops = syncing.core.config.tops().to_vec();
    let slot = tops.get_mut(index).ok_or_else(none)?;
    let guid = layout::guid(&syncing.engine.machine.entropy);
    let new = indirect(slot, guid, record.prev_indirect_vdev);
    let list = std::mem::replace(slot, new);
    let mut root = syncing.core.config.root.clone();
    config::set(&mut root, "children", tops.into());
    let replaced = TreeChange(syncing).replace_evacuated(&root)?;
    vdev_objects::destroy_but_top_zap(syncing, &list).await?;
    syncing.core.maps.remove_top(removal.vdev);
    syncing.core.config.root = root;
    let (gone, leaves) = std::mem::take(&mut syncing.core.leaves).into_iter().partition(|leaf| leaf.top == index);
    syncing.core.leaves = leaves;
    let gone: Vec<Leaf> = gone;
    gone.iter().for_each(|leaf| syncing.core.dtls.forget(leaf.guid));
    record.copied = record.to_copy;
    record.state = FINISHED;
    record.end_s = syncing.change.now_s;
    record.prev_indirect_vdev = record.vdev;
    record.write(&syncing.change).await?;
    syncing.core.config_dirty = true;
    syncing.core.removal = None;
    let tree = syncing.engine.cache.blocks().tree();
    invariant!(gone.iter().all(|leaf| tree.leaf(leaf.guid).is_err()), "a removed device is in the tree");
    invariant!(gone.iter().all(|leaf| labels::find(&syncing.core.config.root, leaf.guid).is_none()), "a device stays");
    Ok((replaced, gone))
}

/// The removal to cancel: the vdev, and its allocated ranges that have been copied.
pub(super) struct CancelPlan {
    top: VdevConfig,
    removal: Removal,
    copied: Vec<Range<u64>>,
}

/// Reads what the cancellation needs, without a change; `None` if no vdev is being removed.
pub(super) async fn plan_cancel(syncing: &mut TxgSync<'_>) -> Result<Option<CancelPlan>, PoolError> {
    let Some(removal) = syncing.core.removal.clone() else { return Ok(None) };
    let root = parsed(&syncing.core.config.root)?;
    let top = root.children.get(removal.vdev as usize).cloned().ok_or_else(none)?;
    let end = removal.header.max_offset_bytes;
    let geometry = MetaslabGeometry::of(&top);
    let mut copied = Vec::new();
    for metaslab in (0..geometry.count()).take_while(|metaslab| geometry.start(*metaslab) < end) {
        let allocated = syncing.engine.cache.blocks().metaslabs().evacuations().allocated(removal.vdev, metaslab).await;
        for range in allocated.map_err(|error| refused(error.to_string()))? {
            let range = range.start..range.end.min(end);
            copied.extend((!range.is_empty()).then_some(range));
        }
    }
    Ok(Some(CancelPlan { top, removal, copied }))
}

/// Frees the copies, and forgets the removal. Returns the vdev as it is from now on.
pub(super) async fn cancel(syncing: &mut TxgSync<'_>, plan: CancelPlan) -> Result<VdevConfig, PoolError> {
    let CancelPlan { top, removal, copied } = plan;
    let blocks = syncing.engine.cache.blocks().clone();
    let evacuations = blocks.metaslabs().evacuations();
    let failed = |error: weir_blocks::BlockError| refused(error.to_string());
    for range in &copied {
        evacuations.free_copies(range, syncing.change.txg()).map_err(failed)?;
    }
    count_freed(syncing).await?;
    evacuations.cancel().map_err(failed)?;
    let mos = Mos { set: syncing.engine.mos.clone() };
    let zap_of_top = ObjectId(top.top_zap);
    let change = &mut syncing.change;
    let (rq, tx) = (change.rq, change.tx);
    features::count_feature(change, Feature::DEVICE_REMOVAL, -1).await?;
    if zap::remove_name(rq, &change.mos, tx, zap_of_top, COUNTS_ARE_PRECISE).await? {
        features::count_feature(change, Feature::OBSOLETE_COUNTS, -1).await?;
    }
    if let Some(map) = top_zap::object(rq, &mos, &top, OBSOLETE_SM).await? {
        remove_map(change, map).await?;
        zap::remove_name(rq, &change.mos, tx, zap_of_top, OBSOLETE_SM).await?;
        features::count_feature(change, Feature::OBSOLETE_COUNTS, -1).await?;
    }
    if let Some(counts) = removal.header.counts {
        change.mos.frees().remove(rq, tx, counts).await?;
        features::count_feature(change, Feature::OBSOLETE_COUNTS, -1).await?;
    }
    for object in [removal.mapping, removal.births] {
        change.mos.frees().remove(rq, tx, object).await?;
    }
    let mut record = RemovalRecord::read(syncing).await?;
    record.state = CANCELED;
    record.end_s = syncing.change.now_s;
    record.write(&syncing.change).await?;
    let guid = top.guid;
    config::visit(&mut syncing.core.config.root, &mut |vdev| {
        if vdev.get_u64("guid") == Some(guid) {
            for name in ["removing", "com.delphix:indirect_object", "com.delphix:indirect_births"] {
                vdev.remove(name);
            }
        }
    });
    syncing.core.config_dirty = true;
    syncing.core.removal = None;
    let root = with_classes(syncing.engine, parsed(&syncing.core.config.root)?)?;
    let now = root.children.get(top.id as usize).cloned().ok_or_else(none)?;
    invariant!(!now.removing && now.indirect_object == 0, "the configuration says that a vdev is being removed");
    syncing.engine.tops.add(std::slice::from_ref(&now));
    Ok(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_indirect_vdev_keeps_its_size_and_place() {
        let mut of = NvList::new();
        of.set("type", "mirror");
        of.set("id", 3u64);
        of.set("guid", 7u64);
        of.set("metaslab_array", 40u64);
        of.set("ashift", 12u64);
        of.set("removing", 1u64);
        of.set("com.delphix:indirect_object", 50u64);
        let list = indirect(&of, 8, u64::MAX);
        let vdev = VdevConfig::parse(&list).unwrap();
        assert_eq!((vdev.id, vdev.guid, vdev.ashift, vdev.metaslab_array), (3, 8, 12, 0));
        assert_eq!((vdev.indirect_object, vdev.prev_indirect_vdev, vdev.removing), (50, None, false));
        assert_eq!(indirect(&of, 8, 1).get_u64("com.delphix:prev_indirect_vdev"), Some(1));
    }
}

//! MOS objects of vdevs that leave the pool: the maps and the ZAP of a top-level vdev, the DTL and the ZAP of each leaf.
//!
//! Source: OpenZFS `module/zfs/vdev.c` (`vdev_destroy_spacemaps`, `vdev_destroy_ms_flush_data`, `vdev_dtl_sync`,
//! `vdev_destroy_unlink_zap`).

use super::attach::parsed;
use super::space::remove_map;
use super::syncing::TxgSync;
use weir_dmu::zap::{self, Key};
use weir_format::dsl::pool as names;
use weir_format::{NvList, ObjectId};
use weir_pool::error::PoolError;
use weir_pool::metaslab_geometry::MetaslabGeometry;
use weir_pool::mos::Mos;
use weir_pool::top_zap::{self, UNFLUSHED_TXGS};

/// Names in the configuration of a vdev.
const LEAF_ZAP: &str = "com.delphix:vdev_zap_leaf";
const TOP_ZAP: &str = "com.delphix:vdev_zap_top";
const DTL: &str = "DTL";

fn number(vdev: &NvList, name: &str) -> Option<ObjectId> {
    vdev.get_u64(name).filter(|id| *id != 0).map(ObjectId)
}

/// Destroys the objects of a leaf.
pub(super) async fn destroy_of_leaf(syncing: &mut TxgSync<'_>, leaf: &NvList) -> Result<(), PoolError> {
    if let Some(map) = number(leaf, DTL) {
        remove_map(&mut syncing.change, map).await?;
    }
    match number(leaf, LEAF_ZAP) {
        Some(zap) => unlink_zap(syncing, zap).await,
        None => Ok(()),
    }
}

/// Destroys the objects of a top-level vdev on which nothing is allocated, and of its leaves.
pub(super) async fn destroy_of_top(syncing: &mut TxgSync<'_>, list: &NvList) -> Result<(), PoolError> {
    destroy_but_top_zap(syncing, list).await?;
    match number(list, TOP_ZAP) {
        Some(zap) => unlink_zap(syncing, zap).await,
        None => Ok(()),
    }
}

/// Destroys the objects of a top-level vdev and of its leaves, but for its own ZAP.
pub(super) async fn destroy_but_top_zap(syncing: &mut TxgSync<'_>, list: &NvList) -> Result<(), PoolError> {
    let top = parsed(list)?;
    let mos = Mos { set: syncing.engine.mos.clone() };
    let rq = syncing.change.rq;
    if top.metaslab_array != 0 {
        let array = ObjectId(top.metaslab_array);
        let maps = mos.words(rq, array, MetaslabGeometry::of(&top).count()).await?;
        for map in maps.into_iter().filter(|map| *map != 0) {
            remove_map(&mut syncing.change, ObjectId(map)).await?;
        }
        syncing.change.mos.frees().remove(rq, syncing.change.tx, array).await?;
    }
    if let Some(array) = top_zap::object(rq, &mos, &top, UNFLUSHED_TXGS).await? {
        syncing.change.mos.frees().remove(rq, syncing.change.tx, array).await?;
        let zap = ObjectId(top.top_zap);
        zap::remove(rq, &syncing.change.mos, syncing.change.tx, zap, &Key::from(UNFLUSHED_TXGS)).await?;
    }
    let mut leaves = Vec::new();
    super::config::visit(&mut list.clone(), &mut |vdev| {
        if !vdev.contains("children") {
            leaves.push(vdev.clone());
        }
    });
    for leaf in leaves {
        destroy_of_leaf(syncing, &leaf).await?;
    }
    Ok(())
}

/// Destroys the ZAP of a vdev, and its entry in the list of these ZAPs.
async fn unlink_zap(syncing: &mut TxgSync<'_>, zap: ObjectId) -> Result<(), PoolError> {
    let mos = Mos { set: syncing.engine.mos.clone() };
    let (rq, tx) = (syncing.change.rq, syncing.change.tx);
    if let Some(all) = mos.named(rq, names::VDEV_ZAP_MAP).await? {
        let name = format!("{:x}", zap.0);
        // Pools of older software may lack the entry.
        let _was_there = zap::remove(rq, &syncing.change.mos, tx, all, &Key::from(name.as_str())).await?;
    }
    Ok(syncing.change.discard(zap).await?)
}

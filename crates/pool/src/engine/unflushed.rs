//! The first group after a pool was opened: what the last writer left to be done later is done now.
//!
//! *Logs of space maps.* OpenZFS writes the changes of all metaslabs of a group into one log, and brings each metaslab's
//! own map up to date once in a while (`feature@log_spacemap`). Here every map that a log still speaks of is written anew
//! from the free space that was loaded, and the logs go; the feature stays enabled, with nothing in use.
//!
//! *Lists of clones' own blocks* (`feature@livelist`) are removed: they would have to be kept up with each write.
//!
//! *Deferred frees.* Blocks whose freeing was put off to the next group are freed.
//!
//! Source: OpenZFS `module/zfs/spa_log_spacemap.c` (theory at its top), `module/zfs/spa.c` (`spa_sync_deferred_frees`).

use super::datasets::policy_for;
use super::syncing::Syncing;
use crate::config::VdevConfig;
use crate::error::PoolError;
use crate::mos::Mos;
use std::collections::BTreeSet;
use std::sync::Arc;
use weir_blocks::ReadOptions;
use weir_format::dsl::pool as names;
use weir_format::{ObjectId, Txg};
use weir_objects::dsl::change::Change;
use weir_objects::live::{Gate, Policy};
use weir_objects::zil::claim;
use weir_objects::{ObjectError, ObjectSet, Opening, Place, bpobj, zap};

/// Name in a top-level vdev's ZAP: the array of each metaslab's last flush.
const UNFLUSHED: &str = "com.delphix:ms_unflushed_phys_txgs";
const FEATURE: &str = "log_spacemap";
/// Units of log space maps, as log2 of bytes.
const LOG_SHIFT: u32 = 9;

/// Does what was left to do, and has the configuration written.
pub(super) async fn first_group(syncing: &mut Syncing<'_>) -> Result<(), PoolError> {
    syncing.core.config_dirty = true;
    // Before anything is allocated: what these logs lead to may look free.
    claim_logs(syncing).await?;
    flush_logs(syncing).await?;
    drop_livelists(syncing).await?;
    free_deferred(syncing).await
}

/// Clones' lists of their own blocks are not kept up here: they go, and a clone that is destroyed is walked through.
async fn drop_livelists(syncing: &mut Syncing<'_>) -> Result<(), PoolError> {
    let dsl = syncing.engine.dsl_now(syncing.change.rq).await?;
    for dir in dsl.dirs() {
        syncing.change.drop_livelist(dir.id).await?;
    }
    Ok(())
}

/// Claims the intent logs that the last writer left behind.
async fn claim_logs(syncing: &mut Syncing<'_>) -> Result<(), PoolError> {
    let (rq, txg, engine) = (syncing.change.rq, syncing.change.txg(), syncing.engine);
    // What was allocated from here on, the space maps do not know.
    let unknown = Txg(syncing.core.uberblock.txg.0 + 1);
    let blocks = engine.cache.blocks().clone();
    let dsl = engine.dsl_now(rq).await?;
    for dir in dsl.dirs() {
        let head = dsl.head(rq, dir).await?;
        let opening = || Opening { id: head.objset(), ..Opening::default() };
        let pointer = head.phys.pointer;
        let set = ObjectSet::open(rq, engine.cache.clone(), pointer, opening()).await?;
        let options = ReadOptions { raw: true, ..set.options().clone() };
        let header = set.root().header.zil.clone();
        let Some(claim) = claim(rq, &blocks, &options, &header, unknown).await? else { continue };
        // Whoever else has these blocks may give them up before the log is replayed.
        syncing.add_clones(&claim.clones).await?;
        for pointer in &claim.blocks {
            let place = Place { objset: head.objset(), ..Place::default() };
            blocks.claim(pointer, txg).map_err(|error| ObjectError::Block { place, error })?;
        }
        let gate: Arc<dyn Gate> = engine.gate.clone();
        let live = ObjectSet::open_live(rq, engine.cache.clone(), pointer, opening(), gate, Policy::usual()).await?;
        live.set_policy(policy_for(live.kind(), Policy::usual()));
        live.set_zil_header(claim.header);
        syncing.add_set(live);
    }
    Ok(())
}

/// Brings the maps that the logs speak of up to date, and removes the logs.
async fn flush_logs(syncing: &mut Syncing<'_>) -> Result<(), PoolError> {
    let mos = Mos { set: syncing.engine.mos.clone() };
    let rq = syncing.change.rq;
    let Some(logs) = mos.named(rq, names::LOG_SPACEMAP).await? else { return Ok(()) };
    let bad = |source| PoolError::Decode { what: "vdev tree".into(), source };
    let tree = VdevConfig::parse(&syncing.core.config.root).map_err(bad)?;
    let maps: Vec<ObjectId> = mos.numbers(rq, logs).await?.into_values().map(ObjectId).collect();
    let mut touched: BTreeSet<(u32, u64)> = BTreeSet::new();
    for map in &maps {
        let mut note = |segment: weir_format::space_map::SpaceSegment| {
            let top = segment.vdev.and_then(|v| tree.children.get(v as usize));
            if let (Some(vdev), Some(top)) = (segment.vdev, top) {
                let metaslab = segment.offset_bytes.checked_shr(top.metaslab_shift as u32).unwrap_or(0);
                touched.insert((vdev, metaslab));
            }
        };
        crate::allocated::each_segment(rq, &mos, *map, LOG_SHIFT, &mut note).await?;
    }
    let blocks = syncing.engine.cache.blocks().clone();
    for (vdev, metaslab) in touched {
        syncing.core.maps.rewrite(&mut syncing.change, &blocks, vdev, metaslab).await?;
    }
    for map in &maps {
        syncing.change.mos.remove(rq, syncing.change.tx, *map).await?;
    }
    let count = i64::try_from(maps.len()).unwrap_or(0);
    if count > 0 && syncing.change.is_enabled("spacemap_histogram").await? {
        syncing.change.count_feature("spacemap_histogram", -count).await?;
    }
    remove_named(&syncing.change, ObjectId(names::DIRECTORY_OBJECT), names::LOG_SPACEMAP).await?;
    for top in tree.children.iter().filter(|t| t.top_zap != 0) {
        remove_named(&syncing.change, ObjectId(top.top_zap), UNFLUSHED).await?;
    }
    if let Some(count) = syncing.change.feature_count(FEATURE).await?.filter(|n| *n > 0) {
        syncing.change.count_feature(FEATURE, -i64::try_from(count).unwrap_or(0)).await?;
    }
    Ok(())
}

/// Removes an entry of a ZAP and the object that it leads to.
async fn remove_named(change: &Change<'_>, zap: ObjectId, name: &str) -> Result<(), PoolError> {
    let (rq, mos, tx) = (change.rq, &change.mos, change.tx);
    if let Some(object) = zap::lookup_word(rq, mos, zap, name).await? {
        mos.remove(rq, tx, ObjectId(object)).await?;
        zap::remove_name(rq, mos, tx, zap, name).await?;
    }
    Ok(())
}

async fn free_deferred(syncing: &mut Syncing<'_>) -> Result<(), PoolError> {
    let mos = Mos { set: syncing.engine.mos.clone() };
    let (rq, tx) = (syncing.change.rq, syncing.change.tx);
    let Some(list) = mos.named(rq, names::SYNC_BPOBJ).await? else { return Ok(()) };
    let sizes = syncing.change.pool.sizes.clone();
    loop {
        let pointers = bpobj::take(rq, &syncing.change.mos, tx, list, 10_000, &*sizes).await?;
        if pointers.is_empty() {
            return Ok(());
        }
        syncing.free(&pointers).await?;
    }
}

//! Checkpoints: a state of the whole pool that stays readable, and to which an import can go back.
//!
//! ```text
//!   create   the last uberblock ─► MOS directory; from now on, blocks that it needs stay allocated when they are freed
//!            ([`super::checkpoint_obsolete_maps`])
//!   discard  remove the entry ─► free the space in each vdev's checkpoint space map, a txg each ─► feature inactive
//!   rewind   the uberblock in the entry ─► labels, as the newest ─► import
//! ```
//!
//! The uberblock is that of the txg before the one which records it. No block that it needs is freed between: frees of a txg
//! are carried out after its sync tasks.
//!
//! *Going back.* After a rewind, the first txg may overwrite blocks of the state that was left. So the import writes the
//! checkpoint's uberblock first, with the next txg number: a power cut from then on finds the checkpoint's state.
//!
//! *Intent logs* of the checkpoint are not replayed: their blocks may have been reused, and what they hold was synced since.
//!
//! Source: OpenZFS `module/zfs/spa_checkpoint.c`, `module/zfs/spa.c` (`spa_ld_checkpoint_rewind`), `module/zfs/zil.c`
//! (`zil_claim`).

use super::Engine;
use super::attach::parsed;
use super::checkpoint_obsolete_maps::CheckpointAndObsoleteMaps;
use super::labels::{self, Leaf};
use super::space;
use super::syncing::TxgSync;
use std::time::UNIX_EPOCH;
use weir_dmu::zap::{self, Key};
use weir_dsl::sync_tasks::features;
use weir_format::dsl::pool as names;
use weir_format::features::Feature;
use weir_format::space_map::{SpaceKind, SpaceSegment};
use weir_format::{ObjectId, Txg, Uberblock};
use weir_machine::{Request, invariant};
use weir_pool::config::VdevConfig;
use weir_pool::error::PoolError;
use weir_pool::mos::Mos;
use weir_pool::open::Pool;
use weir_pool::space_map_loader::each_segment;
use weir_pool::top_zap::CHECKPOINT_SM;

const DIRECTORY: ObjectId = ObjectId(names::DIRECTORY_OBJECT);
const FEATURE: &Feature = Feature::ZPOOL_CHECKPOINT;

fn refused(what: impl Into<String>) -> PoolError {
    PoolError::Refused { what: what.into() }
}

/// Creates a checkpoint of the pool's present state.
///
/// # Errors
/// [`PoolError::Refused`] if the pool has one, discards one, or has not enabled the feature.
pub async fn create(engine: &Engine) -> Result<(), PoolError> {
    let _one_at_a_time = engine.adding.lock().await;
    engine.vdev_removals().check_none_running().await?;
    engine.expansions().check_none_running()?;
    engine.sync().await?;
    engine
        .sync_task(|syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                if !features::is_enabled(&mut syncing.change, FEATURE).await? {
                    return Err(refused("feature@zpool_checkpoint is not enabled"));
                }
                if has_entry(syncing).await? {
                    return Err(refused("checkpoint exists"));
                }
                if features::is_active(&mut syncing.change, FEATURE).await? {
                    return Err(refused("checkpoint is being discarded"));
                }
                let done = record(syncing).await;
                syncing.fail_txg_on_error(done)
            })
        })
        .await
}

async fn has_entry(syncing: &TxgSync<'_>) -> Result<bool, PoolError> {
    let mos = Mos { set: syncing.engine.mos.clone() };
    Ok(mos.named_words(syncing.change.rq, names::CHECKPOINT).await?.is_some())
}

async fn record(syncing: &mut TxgSync<'_>) -> Result<(), PoolError> {
    let mut uberblock = syncing.core.uberblock.clone();
    invariant!(uberblock.txg < syncing.change.txg(), "the checkpoint is not synced");
    uberblock.checkpoint_txg = uberblock.txg;
    let bytes = uberblock.encode();
    let words: Vec<u64> =
        bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default())).collect();
    let (rq, tx) = (syncing.change.rq, syncing.change.tx);
    zap::put_words(rq, &syncing.change.mos, tx, DIRECTORY, names::CHECKPOINT, &words).await?;
    features::count_feature(&mut syncing.change, FEATURE, 1).await?;
    let tops = parsed(&syncing.core.config.root)?.children;
    syncing.core.aside = CheckpointAndObsoleteMaps::new(&tops, 0);
    let set = syncing.engine.cache.blocks().set_checkpoint(uberblock.txg);
    set.map_err(|error| refused(error.to_string()))
}

/// Makes the checkpoint, at which `pool` is open for writing, the pool's newest state; `leaves` finds the devices.
///
/// # Errors
/// Errors of writing the uberblock; then the newest state is as it was.
pub(crate) async fn go_back(pool: &mut Pool, leaves: impl Fn(&Pool) -> Vec<Leaf>) -> Result<(), PoolError> {
    let former = pool.uberblock.txg;
    let txg = Txg(pool.newest_txg.max(former).0.saturating_add(1));
    let now = pool.machine.clock.wall().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let uberblock = Uberblock { txg, timestamp_s: now, checkpoint_txg: former, ..pool.uberblock.clone() };
    let faults = labels::commit(pool.blocks.tree(), &leaves(pool), None, &uberblock, txg).await?;
    faults.iter().for_each(|fault| tracing::warn!("the uberblock of the checkpoint is not written: {fault}"));
    invariant!(uberblock.txg > former, "the pool goes back to a newer state");
    pool.newest_txg = txg;
    pool.uberblock = uberblock;
    Ok(())
}

/// Discards the pool's checkpoint; returns when its space is free. Goes on with a discarding that was interrupted.
///
/// # Errors
/// [`PoolError::Refused`] if the pool has no checkpoint.
pub async fn discard(engine: &Engine) -> Result<(), PoolError> {
    let _one_at_a_time = engine.adding.lock().await;
    engine
        .sync_task(|syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                if !has_entry(syncing).await? {
                    return match features::is_active(&mut syncing.change, FEATURE).await? {
                        true => Ok(()),
                        false => Err(refused("checkpoint does not exist")),
                    };
                }
                let (rq, tx) = (syncing.change.rq, syncing.change.tx);
                let removed = zap::remove(rq, &syncing.change.mos, tx, DIRECTORY, &Key::from(names::CHECKPOINT)).await;
                let done = removed.map_err(PoolError::from).and_then(|_| {
                    let set = syncing.engine.cache.blocks().set_checkpoint(Txg(0));
                    set.map_err(|error| refused(error.to_string()))
                });
                syncing.fail_txg_on_error(done)
            })
        })
        .await?;
    free_all(engine).await
}

/// Whether a checkpoint is being discarded, as of the last synced txg.
///
/// # Errors
/// Errors of reading the MOS.
pub(crate) async fn is_discarding(engine: &Engine, rq: &Request) -> Result<bool, PoolError> {
    let mos = Mos { set: engine.synced().state(rq).await?.mos.clone() };
    let is_active = weir_pool::features::Features::read(rq, &mos).await?.count(FEATURE.guid).is_some_and(|n| n > 0);
    Ok(is_active && mos.named_words(rq, names::CHECKPOINT).await?.is_none())
}

/// To be called every few seconds: goes on with a discarding that was interrupted.
///
/// # Errors
/// Errors of reading or writing the MOS.
pub async fn keep_discarding(engine: &Engine) -> Result<(), PoolError> {
    if !is_discarding(engine, &Request::internal("checkpoint")).await? {
        return Ok(());
    }
    // Another call of this or of `discard` is at work.
    let Some(_one_at_a_time) = engine.adding.try_lock() else { return Ok(()) };
    free_all(engine).await
}

/// Frees what only the discarded checkpoint needed, one vdev in each txg.
async fn free_all(engine: &Engine) -> Result<(), PoolError> {
    for top in parsed(&engine.shown().config.root)?.children.into_iter().filter(|top| top.top_zap != 0) {
        engine
            .sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    let done = free_top(syncing, &top).await;
                    syncing.fail_txg_on_error(done)
                })
            })
            .await?;
    }
    engine
        .sync_task(|syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                if features::is_active(&mut syncing.change, FEATURE).await? && !has_entry(syncing).await? {
                    features::count_feature(&mut syncing.change, FEATURE, -1).await?;
                    syncing.core.aside.kept_bytes = 0;
                }
                Ok(())
            })
        })
        .await
}

async fn free_top(syncing: &mut TxgSync<'_>, top: &VdevConfig) -> Result<(), PoolError> {
    let (rq, tx, txg) = (syncing.change.rq, syncing.change.tx, syncing.change.txg());
    let zap = ObjectId(top.top_zap);
    let Some(map) = zap::lookup_word(rq, &syncing.change.mos, zap, CHECKPOINT_SM).await?.map(ObjectId) else {
        return Ok(());
    };
    if has_entry(syncing).await? {
        return Err(refused("the pool has a checkpoint"));
    }
    let mut freed: Vec<SpaceSegment> = Vec::new();
    let mos = Mos { set: syncing.engine.mos.clone() };
    each_segment(rq, &mos, map, top.ashift.min(16) as u32, &mut |segment| {
        if segment.kind == SpaceKind::Free {
            freed.push(segment);
        }
    })
    .await?;
    let blocks = syncing.engine.cache.blocks().clone();
    let mut bytes = 0u64;
    for SpaceSegment { offset_bytes, length_bytes, .. } in freed {
        let range = offset_bytes..offset_bytes.saturating_add(length_bytes);
        bytes = bytes.saturating_add(length_bytes);
        let freed = blocks.metaslabs().free(top.id as u32, range, txg);
        freed.map_err(|error| refused(format!("{}: checkpoint space map: {error}", top.name())))?;
    }
    let kept_bytes = &mut syncing.core.aside.kept_bytes;
    *kept_bytes = kept_bytes.saturating_sub(top.deflate(bytes));
    zap::remove(rq, &syncing.change.mos, tx, zap, &Key::from(CHECKPOINT_SM)).await?;
    space::remove_map(&mut syncing.change, map).await
}

//! The first group after a pool was opened: what the last writer left to be done later is done now.
//!
//! *Lists of clones' own blocks* (`feature@livelist`) are removed: they would have to be kept up with each write.
//!
//! *Deferred frees.* Blocks whose freeing was put off to the next group are freed.
//!
//! Source: OpenZFS `module/zfs/spa.c` (`spa_sync_deferred_frees`).

use super::Engine;
use super::datasets::policy_for;
use super::syncing::TxgSync;
use std::sync::Arc;
use weir_blocks::{BlockError, ReadOptions};
use weir_dmu::live::{Policy, TxAdmission};
use weir_dmu::{ErrorLocation, ObjectError, ObjectSet, Opening};
use weir_dsl::bpobj;
use weir_format::Txg;
use weir_format::dsl::pool as names;
use weir_pool::error::PoolError;
use weir_pool::mos::Mos;
use weir_zil::{Claim, claim};

/// Does what was left to do, and has the configuration written. With `without_logs`, what intent logs on missing devices
/// hold is given up.
pub(super) async fn first_txg_after_import(syncing: &mut TxgSync<'_>, without_logs: bool) -> Result<(), PoolError> {
    syncing.core.config_dirty = true;
    // Before anything is allocated: what these logs lead to may look free.
    claim_logs(syncing, without_logs).await?;
    syncing.change.drop_temporary_holds().await?;
    drop_livelists(syncing).await?;
    free_deferred(syncing).await
}

/// Clones' lists of their own blocks are not kept up here: they go, and a clone that is destroyed is walked through.
async fn drop_livelists(syncing: &mut TxgSync<'_>) -> Result<(), PoolError> {
    let dsl = syncing.engine.dsl_now(syncing.change.rq).await?;
    for dir in dsl.dirs() {
        syncing.change.drop_livelist(dir.id).await?;
    }
    Ok(())
}

/// Claims the intent logs that the last writer left behind.
async fn claim_logs(syncing: &mut TxgSync<'_>, without_logs: bool) -> Result<(), PoolError> {
    let (rq, txg, engine) = (syncing.change.rq, syncing.change.txg(), syncing.engine);
    // What was allocated from here on, the space maps do not know.
    let unknown = Txg(syncing.core.uberblock.txg.0 + 1);
    let blocks = engine.cache.blocks().clone();
    let dsl = engine.dsl_now(rq).await?;
    for dir in dsl.dirs() {
        let head = dsl.head(rq, dir).await?;
        let opening = || Opening { id: head.objset(), key: engine.keys.of(Some(dir)), ..Opening::default() };
        let pointer = head.phys.pointer;
        let set = match ObjectSet::open(rq, engine.cache.clone(), pointer, opening()).await {
            // Nobody finds a log there, nor anything else. The others are not to suffer.
            Err(error) if error.is_corrupt() => {
                tracing::warn!("'{}' cannot be opened: {error}", dir.name);
                continue;
            }
            opened => opened?,
        };
        let options = ReadOptions { raw: true, ..set.options().clone() };
        let header = set.root().header.zil.clone();
        let claimed = claim::claim(rq, &blocks, &options, &header, unknown).await;
        let lost =
            is_lost(claimed.as_ref().err()) || is_lost(claim::blocks(rq, &blocks, &options, &header).await.1.as_ref());
        let claim = if without_logs && lost {
            tracing::warn!(
                "what was said to be stable in '{}' and not synced yet is given up: its log is lost",
                dir.name
            );
            // Of the rest of its blocks nobody knows.
            if header.claim_txg.0 != 0 || header.log.birth() < unknown {
                syncing.change.free_log_block(header.log);
            }
            Claim::default()
        } else {
            match claimed {
                Ok(Some(claim)) => claim,
                Ok(None) => continue,
                Err(error) if is_lost(Some(&error)) => return Err(kept(engine, &dir.name, &error)),
                Err(error) => return Err(error.into()),
            }
        };
        // Whoever else has these blocks may give them up before the log is replayed.
        syncing.add_clones(&claim.clones).await?;
        for pointer in &claim.blocks {
            let place = ErrorLocation { objset: head.objset(), ..ErrorLocation::default() };
            blocks.claim(rq, pointer, txg).await.map_err(|error| ObjectError::Block { place, error })?;
        }
        let gate: Arc<dyn TxAdmission> = engine.gate.clone();
        let live = ObjectSet::open_live(rq, engine.cache.clone(), pointer, opening(), gate, Policy::usual()).await?;
        live.set_policy(policy_for(live.kind(), Policy::usual()));
        live.set_zil_header(claim.header);
        syncing.add_set(live);
    }
    Ok(())
}

/// Whether a log has a block on a device that is missing or fails.
fn is_lost(ended_by: Option<&ObjectError>) -> bool {
    matches!(ended_by, Some(ObjectError::Block { error: BlockError::Missing { .. } | BlockError::Device { .. }, .. }))
}

/// The error of an import that meets such a log: nothing of it is claimed in part (`spa_check_logs`).
fn kept(engine: &Engine, dataset: &str, error: &ObjectError) -> PoolError {
    tracing::error!(dataset, %error, "the intent log cannot be read");
    engine.events.report("log_replay", None);
    let what = format!(
        "the intent log of '{dataset}' cannot be read: {error}; bring the device back, or give up the changes in this log \
         with 'zpool import -m'"
    );
    PoolError::Refused { what }
}

async fn free_deferred(syncing: &mut TxgSync<'_>) -> Result<(), PoolError> {
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

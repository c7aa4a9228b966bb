//! The first txg after an import, which completes the last writer's deferred work.
//!
//! *Intent logs* are claimed.
//!
//! *Livelists* of clones (`feature@livelist`) are removed, because Weir does not maintain them.
//!
//! *Deferred frees* (`spa_deferred_bpobj`) are freed.
//!
//! Source: OpenZFS `module/zfs/spa.c` (`spa_sync_deferred_frees`).

use super::Engine;
use super::datasets::policy_for;
use super::events::ErrorReport;
use super::syncing::TxgSync;
use std::sync::Arc;
use weir_blocks::{BlockError, ReadOptions};
use weir_dmu::live::{Policy, TxAdmission};
use weir_dmu::{ErrorLocation, ObjectError, ObjectSet, Opening};
use weir_dsl::sync_tasks::{destroy_head, hold};
use weir_dsl::{Scope, bpobj};
use weir_format::Txg;
use weir_format::dsl::pool as names;
use weir_format::zil::ZilHeader;
use weir_pool::error::PoolError;
use weir_pool::mos::Mos;
use weir_zil::{Claim, claim};

/// Intent logs of an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogsAtImport {
    /// All are claimed.
    Claimed,
    /// Those on missing devices are discarded.
    GivenUp,
    /// All are discarded: the pool is rewound to its checkpoint.
    Dropped,
}

/// Completes deferred work and requests a write of the configuration.
///
pub(super) async fn first_txg_after_import(syncing: &mut TxgSync<'_>, logs: LogsAtImport) -> Result<(), PoolError> {
    syncing.core.config_dirty = true;
    // Claim before any allocation, because the logs' blocks may look free.
    claim_logs(syncing, logs).await?;
    hold::drop_temporary_holds(&mut syncing.change).await?;
    drop_livelists(syncing).await?;
    free_deferred(syncing).await
}

/// Removes all livelists; destroying a clone then traverses its block tree.
async fn drop_livelists(syncing: &mut TxgSync<'_>) -> Result<(), PoolError> {
    let dsl = syncing.engine.live_dsl(syncing.change.rq, Scope::All).await?;
    for dir in dsl.dirs() {
        destroy_head::drop_livelist(&mut syncing.change, dir.id).await?;
    }
    Ok(())
}

/// Claims the intent logs that the last writer left behind.
async fn claim_logs(syncing: &mut TxgSync<'_>, logs: LogsAtImport) -> Result<(), PoolError> {
    let rq = syncing.change.rq;
    let txg = syncing.change.txg();
    let engine = syncing.engine;
    // The space maps do not contain allocations from this txg on.
    let unknown = Txg(syncing.core.uberblock.txg.0 + 1);
    let blocks = engine.cache.blocks().clone();
    let dsl = engine.live_dsl(rq, Scope::All).await?;
    for dir in dsl.dirs() {
        let head = dsl.head(rq, dir).await?;
        let opening = || Opening { id: head.objset(), key: engine.keys.of(Some(dir)), ..Opening::default() };
        let pointer = head.phys.pointer;
        let set = match ObjectSet::open(rq, engine.cache.clone(), pointer, opening()).await {
            // A corrupt dataset must not prevent the import of the others.
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
        let claim = if logs == LogsAtImport::Dropped {
            drop_log(syncing, &header, unknown);
            Claim::default()
        } else if logs == LogsAtImport::GivenUp && lost {
            tracing::warn!(
                "what was said to be stable in '{}' and not synced yet is given up: its log is lost",
                dir.name
            );
            // The rest of the chain cannot be found.
            drop_log(syncing, &header, unknown);
            Claim::default()
        } else {
            match claimed {
                Ok(Some(claim)) => claim,
                Ok(None) => continue,
                Err(error) if is_lost(Some(&error)) => return Err(kept(engine, &dir.name, &error)),
                Err(error) => return Err(error.into()),
            }
        };
        // Other owners of these cloned blocks may free them before the log is replayed, so count references now.
        syncing.add_clones(&claim.clones).await?;
        for pointer in &claim.blocks {
            let place = ErrorLocation { objset: head.objset(), ..ErrorLocation::default() };
            blocks.claim(rq, pointer, txg).await.map_err(|error| ObjectError::Block { place, error })?;
        }
        let gate: Arc<dyn TxAdmission> = engine.gate.clone();
        let live = ObjectSet::open_live(rq, engine.cache.clone(), pointer, opening(), gate, Policy::default()).await?;
        live.set_policy(policy_for(live.kind(), Policy::default()));
        live.syncing().set_zil_header(claim.header);
        syncing.add_set(live);
    }
    Ok(())
}

/// Frees the first block of a log that is given up, if it is allocated.
fn drop_log(syncing: &mut TxgSync<'_>, header: &ZilHeader, unknown: Txg) {
    if header.claim_txg.0 != 0 || header.log.birth() < unknown {
        syncing.change.free_log_block(header.log);
    }
}

/// Whether a log has a block on a device that is missing or fails.
fn is_lost(ended_by: Option<&ObjectError>) -> bool {
    matches!(ended_by, Some(ObjectError::Block { error: BlockError::Missing { .. } | BlockError::Device { .. }, .. }))
}

/// Reports an unreadable intent log and returns the import's error; no log is claimed partially (`spa_check_logs`).
fn kept(engine: &Engine, dataset: &str, error: &ObjectError) -> PoolError {
    tracing::error!(dataset, %error, "the intent log cannot be read");
    engine.events.report(ErrorReport::LogReplay, None);
    let what = format!(
        "the intent log of '{dataset}' cannot be read: {error}; bring the device back, or give up the changes in this log \
         with 'zpool import -m'"
    );
    PoolError::Refused { what }
}

async fn free_deferred(syncing: &mut TxgSync<'_>) -> Result<(), PoolError> {
    let mos = Mos { set: syncing.engine.mos.clone() };
    let rq = syncing.change.rq;
    let tx = syncing.change.tx;
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

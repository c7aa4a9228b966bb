//! The syncer: the task that closes a txg, syncs it, and tells those that wait for it.
//!
//! ```text
//!   wait (request, timeout, idle) ─► quiesce ─► sync ([`syncing`]) ─► show, wake, answer ─► …
//! ```

use super::syncing::{self, SyncerState};
use super::{Engine, IDLE_TXG_TIMEOUT, TXG_TIMEOUT};
use crate::events::ErrorReport;
use futures_util::future::{Either, select};
use futures_util::lock::MutexGuard as AsyncMutexGuard;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often the syncer looks whether the open txg has more changes, after [`Engine::sync_when_idle`].
const IDLE_CHECK: Duration = Duration::from_millis(500);
const _: () = assert!(2 * IDLE_CHECK.as_millis() <= IDLE_TXG_TIMEOUT.as_millis());
/// The opening of a dataset should delay the syncer by a few reads of the ARC at most. A delay of this length is logged.
const LONG_WAIT: Duration = Duration::from_millis(10);

/// [`Engine::lock_mos`] for the syncer.
pub(crate) async fn lock_mos(engine: &Engine) -> AsyncMutexGuard<'_, ()> {
    let asked = engine.machine.clock.now();
    let locked = engine.mos_sync_lock.lock().await;
    let waited_ns = engine.machine.clock.now().ns_since(asked);
    engine.syncer_waited_ns.fetch_add(waited_ns, Ordering::Relaxed);
    if waited_ns >= LONG_WAIT.as_nanos() as u64 {
        let waited_ms = waited_ns / 1_000_000;
        tracing::info!(pool = %engine.name(), waited_ms, "the syncer waited for the opening of a dataset");
    }
    locked
}

/// Waits until the syncer must close the open txg: a sync was requested, [`TXG_TIMEOUT`] has passed, or, after
/// [`Engine::sync_when_idle`], no transaction has begun for [`IDLE_CHECK`].
async fn wait_until_due(engine: &Engine) {
    let clock = &engine.machine.clock;
    let due = clock.now() + TXG_TIMEOUT;
    let mut seen = engine.txgs().begun();
    loop {
        let syncs_when_idle = engine.syncs_when_idle.load(Ordering::Relaxed);
        let until = if syncs_when_idle { due.min(clock.now() + IDLE_CHECK) } else { due };
        let timer = pin!(clock.sleep_until(until));
        let requested = pin!(engine.txgs().sync_requested());
        if let Either::Left(_) = select(requested, timer).await {
            return;
        }
        let begun = engine.txgs().begun();
        if until == due || begun > 0 && begun == seen {
            return;
        }
        seen = begun;
    }
}

/// The syncer.
pub(crate) async fn run(engine: Arc<Engine>, mut core: SyncerState) -> SyncerState {
    loop {
        if !core.frees_on {
            wait_until_due(&engine).await;
        }
        let txg = engine.txgs().quiesce().await;
        let (done, answers) = syncing::sync(&engine, &mut core, txg).await;
        match &done {
            Ok(()) => {
                let logs = engine.sets.select(|open| open.zil.is_some());
                logs.iter().filter_map(|open| open.zil.as_ref()).for_each(|zil| zil.synced(txg));
                engine.gate.synced(txg);
                engine.txgs().synced(txg);
                engine.store_access_times();
                engine.machine.memory.trim_above(engine.budget_bytes());
            }
            Err(why) => {
                tracing::error!("pool '{}' is suspended: {why}", engine.name());
                engine.events.report(ErrorReport::IoFailure, None);
                engine.txgs().fail(&why.to_string());
                core.ended = true;
            }
        }
        for answer in answers {
            answer(done.as_ref().copied().map_err(|why| engine.suspended(why)));
        }
        if core.ended {
            // A failed txg may leave other writes in flight: wait for them, so that the next importer has the devices to
            // itself.
            engine.multihost.end(&engine.machine.clock).await;
            engine.cache.blocks().tree().close(&engine.machine.clock).await;
            core.autotrim.end().await;
            engine.queue.close();
            // Waiters of later txgs get an error, because none will sync.
            engine.txgs().end("pool is exporting");
            return core;
        }
    }
}

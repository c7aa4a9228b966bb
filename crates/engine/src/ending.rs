//! Closing of a pool (OpenZFS `spa_unload`): the engine syncs a last txg, waits for the syncer to end, and closes the cache devices.

use super::Engine;
use super::events::PoolEvent;
use super::syncing::TxgSync;
use weir_pool::assemble::state;
use weir_pool::error::PoolError;

/// Closes a pool whose first txg failed; returns once the engine has released its devices.
pub(crate) async fn abandon(engine: &Engine) {
    engine.cache.l2arc().stop();
    // The syncer has ended, or is about to; if not, this ends it.
    let ended = engine.sync_task(|syncing: &mut TxgSync<'_>| {
        syncing.core.ended = true;
        Box::pin(async { Ok(()) })
    });
    let _refused = ended.await;
    wait_for_syncer(engine).await;
    engine.cache.l2arc().close().await;
    engine.events.end();
}

/// Waits for the syncer to end.
async fn wait_for_syncer(engine: &Engine) {
    let syncer = engine.syncer.lock().take();
    if let Some(syncer) = syncer {
        // If the syncer's task was lost, its waiters have already got the error.
        let _ended = syncer.await;
    }
}

/// Closes a pool with this state in its labels; `None` for the present one.
///
/// # Errors
/// The error of writing the last txg.
pub(crate) async fn end(engine: &Engine, state: Option<u64>) -> Result<(), PoolError> {
    // The last txg does not wait for a cache device.
    engine.cache.l2arc().stop();
    let done = sync_last_txg(engine, state).await;
    engine.cache.l2arc().close().await;
    match state.filter(|_| done.is_ok()) {
        Some(state::DESTROYED) => engine.events.post(PoolEvent::PoolDestroy, |_| {}),
        Some(_) => engine.events.post(PoolEvent::PoolExport, |_| {}),
        None => {}
    }
    engine.events.end();
    done
}

/// Syncs the last txg of a pool that is written to.
async fn sync_last_txg(engine: &Engine, state: Option<u64>) -> Result<(), PoolError> {
    engine.scan.close();
    // A pool that is suspended, or waits for a device, is closed as of its last complete txg.
    engine.devices().give_up_waiting();
    if engine.is_read_only() {
        return Ok(());
    }
    for files in engine.readers() {
        engine.store_of(&files).await;
    }
    engine
        .sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                if let Some(state) = state {
                    syncing.core.config.state = state;
                    syncing.core.config_dirty = true;
                }
                syncing.core.ended = true;
                Ok(())
            })
        })
        .await?;
    wait_for_syncer(engine).await;
    Ok(())
}

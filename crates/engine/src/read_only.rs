//! Read-only import of a pool (`zpool import -o readonly=on`): not a byte of its devices changes.
//!
//! Datasets are opened as of the uberblock: what an intent log has beyond it is not replayed, as in OpenZFS. There is no syncer, so
//! sync tasks and transactions are refused. Pools that cannot be written here can be read: of older versions and of the other byte order,
//! with features that Weir does not write, and with damaged space maps.
//!
//! Source: OpenZFS `module/zfs/spa.c` (`spa_load_impl`: what follows `spa_writeable`), `module/zfs/zfs_vfsops.c`
//! (`zfsvfs_setup`).

use super::aux_devices::AuxDevices;
use super::events::{ErrorReport, PoolEvent};
use super::open::{absent, config_of, keys, other_owner};
use super::tx_admission::{PoolSpace, PoolTxAdmission};
use super::{Engine, ImportOptions, Parts, PoolStatus, allocation, device_paths};
use std::sync::Arc;
use weir_dmu::dedup::Dedup;
use weir_dmu::txg::TxgTracker;
use weir_machine::{Access, Machine, Request, invariant};
use weir_pool::error::PoolError;
use weir_pool::open::Pool;

/// Why changes are refused (`EZFS_POOLREADONLY`).
pub const READ_ONLY: &str = "pool is read-only";

/// Opens a pool read-only.
///
/// # Errors
/// Errors of [`Pool::open`]; [`PoolError::Refused`] if another host uses the pool or it was destroyed, without force.
pub(super) async fn import(machine: &Machine, options: &ImportOptions) -> Result<Arc<Engine>, PoolError> {
    let mut pool = Pool::open_in(machine, &options.open, Access::ReadOnly).await?;
    if let Some(why) = other_owner(&pool, options) {
        return Err(PoolError::Refused { what: format!("pool '{}' cannot be imported: {why}", pool.name()) });
    }
    let rq = &Request::internal("import");
    let mut config = config_of(&pool, options)?;
    config.aux = AuxDevices::read(rq, &pool.mos).await?;
    device_paths::follow(machine, &mut pool, &mut config).await;
    let absent = absent(&pool);
    let mos = pool.mos.set.clone();
    let txgs = TxgTracker::new(pool.newest_txg.max(pool.uberblock.txg));
    let space = PoolSpace { size_bytes: pool.capacity.usable_bytes, ..PoolSpace::default() };
    let dedup = Dedup::read(rq, mos.clone()).await?;
    let gate = PoolTxAdmission::new(machine.clock.clone(), txgs, options.dirty, Arc::new(move || space), dedup);
    let shown =
        PoolStatus { config, uberblock: pool.uberblock.clone(), faults: Vec::new(), freeing: Default::default() };
    let (keys, tops) = (keys(&mut pool), allocation::Tops::of(&pool.tree));
    let (machine, cache, read_only) = (machine.clone(), pool.cache, Some(pool.space));
    let engine = Engine::new(Parts { machine, cache, mos, gate, keys, tops, read_only }, shown);
    invariant!(!engine.cache.blocks().tree().is_writable(), "a pool that is open read-only is written to");
    // Tasks and transactions are refused from now on.
    engine.queue.close();
    engine.txgs().end(READ_ONLY);
    absent.into_iter().for_each(|leaf| engine.events.report(ErrorReport::VdevOpenFailed, Some(leaf)));
    engine.events.post(PoolEvent::PoolImport, |_| {});
    Ok(engine)
}

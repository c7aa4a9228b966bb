//! Removal of top-level vdevs with data: mirrors and single devices of the normal, special and dedup class (`zpool remove`).
//!
//! ```text
//!   checks ─► nothing is allocated on it; intent logs leave it
//!      ─► one txg: "removing" in the configuration, mapping and births objects, record in the MOS directory
//!      ─► txg by txg: allocated ranges are copied to other vdevs, and the copies are in the mapping        [`evacuate`]
//!      ─► one txg: an indirect vdev in the configuration and in the vdev tree, space maps destroyed        [`finish`]
//!      ─► operations on the former tree drained ─► labels wiped
//! ```
//!
//! Each of these txgs is a whole state of the pool, so a power cut, an export or another program's import finds a removal that
//! goes on where the last txg left it: at the end of the mapping. Blocks are read from the vdev until the last txg; what is
//! freed meanwhile is freed there and, if it has been copied, at its copy ([`weir_blocks::Evacuations`]).
//!
//! *Memory.* At most [`DirtyLimits::copied_bytes`](super::DirtyLimits) are in flight, once for each side of a mirror. A mapping
//! takes 16 bytes per entry, for as long as the pool has blocks on the removed vdev; its entries are at least one per 16 MiB
//! copied, and one for each gap of more than 32 KiB.
//!
//! *Errors.* A range has no checksum. A device that fails to read or to write a range cancels the removal, because the copy
//! would make the damage permanent.
//!
//! Source: OpenZFS `module/zfs/vdev_removal.c`.

mod checks;
mod evacuate;
mod finish;
mod record;

pub use checks::mapping_bytes;
pub(crate) use record::{Removal, RemovalRecord, count_freed};

use super::attach::parsed;
use super::events::PoolEvent;
use super::labels::{self, Leaf};
use super::syncing::TxgSync;
use super::{Engine, VdevRemovals};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use weir_blocks::vdev::Replaced;
use weir_format::dsl::pool as names;
use weir_machine::{Request, invariant};
use weir_pool::config::VdevConfig;
use weir_pool::error::PoolError;
use weir_pool::mos::Mos;

/// Interval at which a caller looks whether a removal has ended.
const LOOK: Duration = Duration::from_millis(20);

fn refused(what: impl Into<String>) -> PoolError {
    PoolError::Refused { what: what.into() }
}

/// How far a txg has brought a removal.
enum Step {
    /// Ranges were copied; more may follow.
    Copied,
    /// All ranges have been copied.
    Evacuated,
    /// No vdev is being removed any more.
    Ended,
    /// Ranges could not be copied.
    Failed(String),
}

/// The vdevs with their allocation classes, which the configuration does not have: they are in the vdevs' ZAPs.
fn with_classes(engine: &Engine, mut root: VdevConfig) -> Result<VdevConfig, PoolError> {
    let metaslabs = engine.cache.blocks().metaslabs();
    for top in root.children.iter_mut().filter(|top| top.is_concrete()) {
        let unknown = || refused(format!("{}: its allocation class is not known", top.name()));
        top.class = metaslabs.class(top.id as u32).ok_or_else(unknown)?;
    }
    Ok(root)
}

/// Begins the removal of a top-level vdev with data, and carries it out in the background. When this returns, the removal is
/// recorded on stable storage.
///
/// # Errors
/// [`PoolError::Refused`] with OpenZFS's reason if the vdev cannot be removed now; [`PoolError::Suspended`].
pub async fn start(engine: &Arc<Engine>, guid: u64) -> Result<(), PoolError> {
    let _one_at_a_time = engine.adding.lock().await;
    let removals = engine.vdev_removals();
    engine.vdevs().check_no_checkpoint().await?;
    let top = removals.check(guid).await?;
    let vdev = top.id as u32;
    let blocks = engine.cache.blocks();
    let failed = |error: weir_blocks::BlockError| refused(error.to_string());
    blocks.set_non_allocating(vdev, true).map_err(failed)?;
    let begun = match removals.evacuate(&top).await {
        // The space may be used by now.
        Ok(()) => removals.check(guid).await,
        Err(error) => Err(error),
    };
    let begun = match begun {
        Ok(top) => removals.begin(top).await,
        Err(error) => Err(error),
    };
    if let Err(error) = begun {
        let stays_closed = top.non_allocating || !blocks.tree().can_keep(vdev);
        blocks.set_non_allocating(vdev, stays_closed).map_err(failed)?;
        return Err(error);
    }
    // No pass begins over a vdev that is being removed.
    let leaves: Vec<u64> = top.leaves().iter().map(|leaf| leaf.guid).collect();
    engine.initialize_trim().cancel_of(&leaves).await?;
    engine.growth().renew_capacity().await?;
    carry_out(engine);
    Ok(())
}

/// Carries out the removal that the pool records, in a task of its own, which ends with the pool.
pub(crate) fn carry_out(engine: &Arc<Engine>) {
    let engine = engine.clone();
    engine.removal_tasks.fetch_add(1, Ordering::SeqCst);
    drop(engine.machine.tasks.clone().spawn(async move {
        if let Err(error) = run(&engine).await {
            tracing::info!("the removal of a vdev of pool '{}' was interrupted: {error}", engine.name());
        }
        let tasks = engine.removal_tasks.fetch_sub(1, Ordering::SeqCst);
        invariant!(tasks > 0, "a removal ends twice");
    }));
}

async fn run(engine: &Arc<Engine>) -> Result<(), PoolError> {
    loop {
        let step = engine.sync_task(|syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                let step = evacuate::step(syncing).await;
                syncing.fail_txg_on_error(step)
            })
        });
        match step.await? {
            Step::Copied => {}
            Step::Ended => return Ok(()),
            Step::Evacuated => return engine.vdev_removals().finish().await,
            Step::Failed(why) => {
                tracing::warn!("the removal of a vdev of pool '{}' is canceled: {why}", engine.name());
                return engine.vdev_removals().cancel().await;
            }
        }
    }
}

impl VdevRemovals<'_> {
    async fn begin(&self, top: VdevConfig) -> Result<(), PoolError> {
        self.engine
            .sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    record::check_can_begin(syncing, &top).await?;
                    let done = record::begin(syncing, &top).await;
                    syncing.fail_txg_on_error(done)
                })
            })
            .await
    }

    /// Whether a vdev with data is being removed, as of the last synced txg.
    ///
    /// # Errors
    /// Errors of reading the MOS.
    pub async fn is_running(&self) -> Result<bool, PoolError> {
        let rq = &Request::internal("remove");
        let mos = Mos { set: self.engine.synced().state(rq).await?.mos.clone() };
        let words = mos.named_words(rq, names::REMOVING).await?;
        Ok(words.is_some_and(|words| RemovalRecord::of(&words).is_running()))
    }

    /// Refuses an operation that cannot run beside a removal.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if a vdev is being removed.
    pub(crate) async fn check_none_running(&self) -> Result<(), PoolError> {
        match self.is_running().await? {
            true => Err(refused("device removal in progress")),
            false => Ok(()),
        }
    }

    /// Replaces the vdev, whose ranges have all been copied, by an indirect one.
    async fn finish(&self) -> Result<(), PoolError> {
        let root = parsed(&self.engine.shown().config.root)?;
        let Some(top) = root.children.iter().find(|top| top.removing && top.indirect_object != 0) else {
            return Ok(());
        };
        self.stop_passes(top).await?;
        let finished = self
            .engine
            .sync_task(|syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    if syncing.core.removal.is_none() {
                        return Ok(None);
                    }
                    let done = finish::finish(syncing).await.map(Some);
                    syncing.fail_txg_on_error(done)
                })
            })
            .await?;
        let Some((replaced, gone)) = finished else { return Ok(()) };
        self.engine.events.post_vdev(PoolEvent::VdevRemoveDev, top.guid);
        self.release(replaced, gone).await;
        Ok(())
    }

    /// Wipes the labels of devices that have left the pool, once no operation uses them any more.
    pub(super) async fn release(&self, replaced: Replaced, gone: Vec<Leaf>) {
        replaced.drained().await;
        for leaf in gone {
            // The pool does not know the device any more: a failure leaves labels that no import uses.
            if let Err(error) = labels::clear(&leaf.disk).await {
                tracing::warn!(device = %leaf.path.display(), %error, "the labels of a removed device are not wiped");
            }
        }
    }

    /// Cancels the removal in progress: the copies are freed, and the vdev is used again (`zpool remove -s`).
    ///
    /// # Errors
    /// [`PoolError::Refused`] if there is none.
    pub async fn cancel(&self) -> Result<(), PoolError> {
        let top = self
            .engine
            .sync_task(|syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    let Some(plan) = finish::plan_cancel(syncing).await? else {
                        return Err(refused("there is no active removal"));
                    };
                    let done = finish::cancel(syncing, plan).await;
                    syncing.fail_txg_on_error(done)
                })
            })
            .await?;
        let blocks = self.engine.cache.blocks();
        let vdev = top.id as u32;
        let stays_closed = top.non_allocating || !blocks.tree().can_keep(vdev);
        blocks.set_non_allocating(vdev, stays_closed).map_err(|error| refused(error.to_string()))?;
        invariant!(blocks.metaslabs().evacuations().left_bytes() == 0, "a canceled removal goes on");
        self.engine.growth().renew_capacity().await
    }

    /// Waits until no vdev with data is being removed, and the labels of the devices are wiped.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if the pool is closed before, or the removal cannot go on.
    pub async fn wait(&self) -> Result<(), PoolError> {
        while self.engine.removal_tasks.load(Ordering::SeqCst) > 0 {
            if self.engine.events.is_ended() {
                return Err(refused("the pool is closed"));
            }
            self.engine.machine.clock.sleep(LOOK).await;
        }
        match self.is_running().await? {
            true => Err(refused("the removal was interrupted; it goes on when the pool is imported again")),
            false => Ok(()),
        }
    }

    /// The vdevs, with their allocation classes.
    fn root(&self) -> Result<VdevConfig, PoolError> {
        with_classes(self.engine, parsed(&self.engine.shown().config.root)?)
    }
}

//! Expansion of RAID-Z vdevs: `zpool attach POOL raidz2-0 NEWDISK`.
//!
//! ```text
//!   checks ─► label with txg 0 ─► one txg: one more child and "raidz_expanding" in the configuration, vdev tree replaced
//!      ─► operations on the former tree drained
//!      ─► txg by txg: sectors copied, devices flushed, uberblock with the position; operations on former positions drained
//!      ─► one txg: "raidz_expand_txgs", vdev tree and allocated sizes of the new width
//!      ─► the new space, a scrub
//! ```
//!
//! Each of these txgs is a whole state of the pool, so a power cut, an export or another program's import finds an expansion that
//! goes on at the uberblock's position. [`weir_blocks::ReflowingVdev`] copies; it has the order in which places are reused.
//!
//! *Position.* An uberblock gets a new position only if all devices of the vdev are whole after the flush: a device that failed
//! it may have lost copies, and no resilver would find them, because their blocks are older than its DTL. An uberblock with a
//! new position goes to all devices, and the position counts as synced when all in service have it: only then are older
//! uberblocks not needed any more, whose sectors will be overwritten.
//!
//! *Pauses.* Sectors have no checksum. While a device is missing, lacks blocks, or is being replaced, or after an error, the
//! expansion waits and looks again every [`LOOK`].
//!
//! *Memory.* In the first step the bytes of the scratch area, 3.5 MiB for each child; then [`DirtyLimits::copied_bytes`] a txg
//! (super::DirtyLimits), of which at most 1 MiB for each child are in flight, twice.
//!
//! Source: OpenZFS `module/zfs/vdev_raidz.c`, `module/zfs/spa.c` (`spa_vdev_attach`).

mod begin;
mod record;
mod step;

pub(crate) use record::Expanding;
pub(crate) use step::{committed, position};

use super::attach::{AttachRequest, parsed};
use super::syncing::TxgSync;
use super::{Engine, Expansions};
use begin::NewColumn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use step::Step;
use weir_machine::invariant;
use weir_pool::config::VdevConfig;
use weir_pool::error::PoolError;

/// Interval at which a paused expansion and those who wait for its end look again.
const LOOK: Duration = Duration::from_millis(200);

fn refused(what: impl Into<String>) -> PoolError {
    PoolError::Refused { what: what.into() }
}

/// Begins the expansion of the RAID-Z vdev `request.device`, and carries it out in the background. When this returns, the new
/// device is a part of the pool.
///
/// # Errors
/// [`PoolError::Refused`] and [`PoolError::InUse`] before anything is written; [`PoolError::Suspended`].
pub async fn start(engine: &Arc<Engine>, request: &AttachRequest) -> Result<(), PoolError> {
    let _one_at_a_time = engine.adding.lock().await;
    let column = begin::check(engine, request).await?;
    let NewColumn { leaf, device, vdev } = column;
    let guid = device.guid;
    let replaced = engine
        .sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                begin::check_feature(syncing).await?;
                let done = begin::begin(syncing, vdev, leaf, device).await;
                syncing.fail_txg_on_error(done)
            })
        })
        .await?;
    engine.events.post_vdev(super::events::PoolEvent::VdevAttach, guid);
    // They do not lock what they write, and do not know the new layout.
    replaced.drained().await;
    carry_out(engine);
    Ok(())
}

/// Carries out the expansion that the pool records, in a task of its own, which ends with the pool.
pub(crate) fn carry_out(engine: &Arc<Engine>) {
    let engine = engine.clone();
    engine.expansion_tasks.fetch_add(1, Ordering::SeqCst);
    drop(engine.machine.tasks.clone().spawn(async move {
        if let Err(error) = run(&engine).await {
            tracing::info!("the expansion of a vdev of pool '{}' was interrupted: {error}", engine.name());
        }
        let tasks = engine.expansion_tasks.fetch_sub(1, Ordering::SeqCst);
        invariant!(tasks > 0, "an expansion ends twice");
    }));
}

async fn run(engine: &Arc<Engine>) -> Result<(), PoolError> {
    let mut is_paused = false;
    loop {
        let Some(vdev) = engine.expansions().vdev()? else { return Ok(()) };
        let metaslabs = engine.cache.blocks().metaslabs();
        let mut pause = (!metaslabs.expansion(vdev).is_whole()).then(|| PAUSED.to_owned());
        if pause.is_none() {
            let step = engine.sync_task(|syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    let step = step::step(syncing).await;
                    syncing.fail_txg_on_error(step)
                })
            });
            match step.await? {
                Step::Copied => metaslabs.expansion(vdev).drained().await,
                Step::Ended => return Ok(()),
                Step::Complete => return engine.expansions().finish(vdev).await,
                Step::Failed(why) => pause = Some(why),
            }
        }
        if let Some(why) = &pause {
            if !is_paused {
                tracing::warn!("the expansion of a vdev of pool '{}' is paused: {why}", engine.name());
            }
            if engine.events.is_ended() {
                return Err(refused("the pool is closed"));
            }
            engine.machine.clock.sleep(LOOK).await;
        }
        is_paused = pause.is_some();
    }
}

/// Why an expansion waits.
const PAUSED: &str = "a device is missing, lacks blocks or is being replaced";

impl Expansions<'_> {
    /// Id of the vdev that is being expanded, as of the last synced txg.
    ///
    /// # Errors
    /// Errors of decoding the configuration.
    pub fn vdev(&self) -> Result<Option<u32>, PoolError> {
        let root = parsed(&self.engine.shown().config.root)?;
        Ok(root.children.iter().find(|top| top.raidz_expanding).map(|top| top.id as u32))
    }

    /// Whether the expansion in progress waits for its devices.
    ///
    /// # Errors
    /// As [`Expansions::vdev`].
    pub fn is_paused(&self) -> Result<bool, PoolError> {
        let metaslabs = self.engine.cache.blocks().metaslabs();
        Ok(self.vdev()?.is_some_and(|vdev| !metaslabs.expansion(vdev).is_whole()))
    }

    /// Refuses an operation that cannot run beside an expansion.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if a vdev is being expanded.
    pub(crate) fn check_none_running(&self) -> Result<(), PoolError> {
        match self.vdev()? {
            Some(_) => Err(refused("raidz expansion in progress")),
            None => Ok(()),
        }
    }

    /// Ends the expansion, whose sectors have all been copied: the vdev has its new width and space, and a scrub verifies it.
    async fn finish(&self, vdev: u32) -> Result<(), PoolError> {
        {
            let _one_at_a_time = self.engine.adding.lock().await;
            let replaced = self
                .engine
                .sync_task(move |syncing: &mut TxgSync<'_>| {
                    Box::pin(async move {
                        let done = step::finish(syncing, vdev).await;
                        syncing.fail_txg_on_error(done)
                    })
                })
                .await?;
            // Former operations have the same places.
            drop(replaced);
        }
        let root = parsed(&self.engine.shown().config.root)?;
        let top = root.children.iter().find(|top| top.id == u64::from(vdev));
        if let Some(first) = top.and_then(|top: &VdevConfig| top.leaves().first().map(|leaf| leaf.guid)) {
            self.engine.growth().expand(Some(first)).await?;
        }
        match self.engine.scrubs().start().await {
            Ok(()) => {
                let txg = self.engine.txgs().last_synced().0;
                self.engine.scrub_to_carry_out.store(txg, Ordering::SeqCst);
            }
            Err(error) => tracing::info!("no scrub of pool '{}' follows its expansion: {error}", self.engine.name()),
        }
        Ok(())
    }

    /// Waits until no vdev is being expanded.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if the pool is closed before, or the expansion cannot go on.
    pub async fn wait(&self) -> Result<(), PoolError> {
        while self.engine.expansion_tasks.load(Ordering::SeqCst) > 0 {
            if self.engine.events.is_ended() {
                return Err(refused("the pool is closed"));
            }
            self.engine.machine.clock.sleep(LOOK).await;
        }
        match self.vdev()? {
            Some(_) => Err(refused("the expansion was interrupted; it goes on when the pool is imported again")),
            None => Ok(()),
        }
    }
}

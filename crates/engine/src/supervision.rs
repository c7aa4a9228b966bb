//! Supervision of a pool's devices: slow operations are reported, a device that hangs is taken out of service while
//! redundancy lasts, and failures beyond it suspend the pool instead of ending it.
//!
//! ```text
//!   every second ─► operations older than the slow I/O threshold ─► ereport.fs.zfs.delay, counter of `zpool status -s`
//!                └► a device with one older than the hang threshold ─► ereport.fs.zfs.deadman
//!                     ├─ the pool has all blocks without it ─► out of service at once; `faulted` in the labels
//!                     └─ it does not ─► failmode: wait for it, fail its operations, or end the process
//! ```
//!
//! A suspended pool is resumed by [`Engine::clear`] (`zpool clear`), and its status says why it is suspended. An engine that
//! is not supervised ends when a txg cannot be written, which is what tests of failures want.
//!
//! Source: OpenZFS `module/zfs/vdev.c` (`vdev_deadman`), `module/zfs/spa_misc.c` (`spa_deadman`), `module/zfs/zio.c`
//! (`zio_suspend`); the `faulted` state with its `aux_state`: `module/zfs/vdev_label.c` (`vdev_config_generate`).

use super::config::visit;
use super::events::{ErrorReport, PoolEvent};
use super::syncing::TxgSync;
use super::vdev_config_edit as edit;
use super::{Devices, Engine};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;
use weir_blocks::vdev::{Deadlines, OverdueLeaf, PutBackError};
use weir_blocks::{FailMode, Suspension};
use weir_dmu::zap;
use weir_format::dsl::pool as names;
use weir_format::{NvList, ObjectId};
use weir_machine::invariant;
use weir_pool::error::PoolError;

/// Interval at which devices are checked, at most; a quarter of the shortest threshold if that is less.
const INTERVAL: Duration = Duration::from_secs(1);
/// Names in a leaf's configuration (`ZPOOL_CONFIG_FAULTED`, `ZPOOL_CONFIG_AUX_STATE`). OpenZFS keeps a leaf faulted at
/// import only if the reason is `external`.
const FAULTED: &str = "faulted";
const AUX_STATE: &str = "aux_state";
const EXTERNAL: &str = "external";

/// Called when `failmode=panic` demands that the process end, with the reason.
pub type OnPanic = Arc<dyn Fn(&str) + Send + Sync>;

/// A loop that checks a pool's devices.
struct Supervisor {
    engine: Weak<Engine>,
    deadlines: Deadlines,
    on_panic: OnPanic,
    /// Devices that hang and could not be taken out of service.
    hanging: BTreeSet<u64>,
    /// Whether the suspension was reported.
    is_suspended: bool,
    /// Whether a violated invariant was reported.
    is_violated: bool,
}

/// Starts to supervise the pool's devices: see the [module](self). `on_panic` ends the process.
///
/// # Errors
/// Errors of reading the property `failmode`.
pub async fn supervise(engine: &Arc<Engine>, deadlines: Deadlines, on_panic: OnPanic) -> Result<(), PoolError> {
    engine.is_supervised.store(true, std::sync::atomic::Ordering::Release);
    engine.sync_task(|syncing: &mut TxgSync<'_>| Box::pin(syncing.apply_fail_mode())).await?;
    let interval = (deadlines.slow.min(deadlines.hang) / 4).min(INTERVAL);
    let clock = engine.machine.clock.clone();
    let mut supervisor = Supervisor {
        engine: Arc::downgrade(engine),
        deadlines,
        on_panic,
        hanging: BTreeSet::new(),
        is_suspended: false,
        is_violated: false,
    };
    drop(engine.machine.tasks.spawn(async move {
        loop {
            clock.sleep(interval).await;
            let Some(engine) = supervisor.engine.upgrade().filter(|engine| !engine.events.is_ended()) else {
                return;
            };
            supervisor.check(&engine);
        }
    }));
    Ok(())
}

impl Devices<'_> {
    /// Why the pool's writes are suspended, or why they wait for a device; `None` if neither.
    pub fn suspended_because(&self) -> Option<Arc<str>> {
        let waits = self.engine.waits_for.lock().clone();
        let violation = invariant::violation().map(|what| format!("internal error: {what}").into());
        violation.or(self.suspension().reason()).or(self.engine.txgs().failure()).or(waits)
    }

    fn suspension(&self) -> &Suspension {
        self.engine.cache.blocks().tree().suspension()
    }

    fn set_waits_for(&self, why: Option<String>) {
        *self.engine.waits_for.lock() = why.map(Into::into);
    }

    /// Records whether a leaf is offline until the next import.
    pub(crate) fn set_temporarily_offline(&self, leaf: u64, is_offline: bool) {
        let mut offline = self.engine.temporarily_offline.lock();
        let _was_other = if is_offline { offline.insert(leaf) } else { offline.remove(&leaf) };
        debug_assert_eq!(offline.contains(&leaf), is_offline);
    }

    /// The leaves that the administrator took offline, until they are brought online or until the next import.
    pub(crate) fn offline(&self) -> BTreeSet<u64> {
        let mut offline = self.engine.temporarily_offline.lock().clone();
        visit(&mut self.engine.shown().config.root, &mut |vdev| {
            if vdev.get_u64("offline").is_some_and(|value| value != 0) {
                offline.extend(vdev.get_u64("guid"));
            }
        });
        offline
    }

    /// Clears the error counters of a leaf, or of all, puts those that were taken out of service back, and resumes the
    /// pool's writes (`zpool clear`). Leaves that the administrator took offline stay so.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if a device still has operations in progress from before it was taken out of service, or if
    /// the pool cannot be resumed in this process.
    pub async fn clear(&self, leaf: Option<u64>) -> Result<(), PoolError> {
        let tree = self.engine.cache.blocks().tree().clone();
        let mut chosen: Vec<_> =
            tree.health().into_iter().filter(|health| leaf.is_none_or(|guid| guid == health.guid)).collect();
        let offline = self.offline();
        for health in &mut chosen {
            let Ok(leaf) = tree.leaf(health.guid) else { continue };
            leaf.clear_counts();
            health.faulted &= !offline.contains(&health.guid);
            if !health.faulted {
                continue;
            }
            leaf.put_back().map_err(|error| PoolError::Refused {
                what: match error {
                    PutBackError::NoDisk => format!("{} cannot be opened", health.name),
                    PutBackError::InProgress(count) => format!(
                        "{}: {count} operations from before it was taken out of service have not ended; try again when the \
                         device answers, or after the next import",
                        health.name
                    ),
                },
            })?;
            tracing::info!(device = health.name, "put back into service");
        }
        if let Some(what) = invariant::violation() {
            return Err(PoolError::Refused {
                what: format!("internal error ({what}): stop this process and import the pool again"),
            });
        }
        if let Some(why) = self.engine.txgs().failure() {
            return Err(PoolError::Refused {
                what: format!("a transaction group failed ({why}): export or stop the pool, and import it again"),
            });
        }
        if self.suspension().resume() {
            tracing::info!("pool '{}' is resumed", self.engine.name());
        }
        let faulted: Vec<u64> = chosen.into_iter().filter(|health| health.faulted).map(|health| health.guid).collect();
        if !faulted.is_empty() {
            self.set_faulted(faulted, false).await?;
        }
        self.engine.events.post(PoolEvent::VdevClear, |_| {});
        Ok(())
    }

    /// Ends the waits of a pool that is being closed: for `zpool clear`, and for devices that hang. Their writes fail.
    pub(crate) fn give_up_waiting(&self) {
        let tree = self.engine.cache.blocks().tree();
        let waits = self.engine.waits_for.lock().is_some();
        if !waits && self.suspension().reason().is_none() {
            return;
        }
        self.suspension().close();
        // The supervisor has found that they hang; what matters here is which.
        let long = Deadlines { slow: Duration::MAX, hang: INTERVAL };
        for leaf in tree.check_deadlines(&long).iter().filter(|leaf| waits && leaf.hang.is_some()) {
            tracing::warn!(device = leaf.name, "does not answer; the pool is closed as of its last complete txg");
            // A leaf that was detached meanwhile has nothing to give up.
            let _is_new = tree.leaf(leaf.guid).is_ok_and(|leaf| leaf.take_out());
        }
    }

    /// Records in the configuration and the labels whether leaves are faulted.
    pub(crate) async fn set_faulted(&self, leaves: Vec<u64>, faulted: bool) -> Result<(), PoolError> {
        self.engine
            .sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    visit(&mut syncing.core.config.root, &mut |vdev| {
                        if vdev.get_u64("guid").is_some_and(|guid| leaves.contains(&guid)) {
                            mark(vdev, faulted);
                        }
                    });
                    for guid in leaves.iter().filter(|_| !faulted) {
                        // Most leaves have no spare.
                        let _is_original = edit::unspare(&mut syncing.core.config.root, *guid);
                    }
                    syncing.core.config_dirty = true;
                    Ok(())
                })
            })
            .await
    }
}

/// Marks a leaf's configuration as faulted, or not.
fn mark(vdev: &mut NvList, faulted: bool) {
    if faulted {
        vdev.set(FAULTED, 1u64);
        vdev.set(AUX_STATE, EXTERNAL);
    } else {
        vdev.remove(FAULTED);
        vdev.remove(AUX_STATE);
    }
    debug_assert_eq!(vdev.get_u64(FAULTED) == Some(1), faulted);
}

/// Bytes of writes that a pool keeps, over all its devices, until a flush covers them.
const KEPT_BYTES: u64 = 128 << 20;

impl TxgSync<'_> {
    /// Applies the pool property `failmode`, if the engine is supervised.
    pub(crate) async fn apply_fail_mode(&mut self) -> Result<(), PoolError> {
        if !self.engine.is_supervised.load(std::sync::atomic::Ordering::Acquire) {
            return Ok(());
        }
        let (rq, mos) = (self.change.rq, &self.change.mos);
        let directory = ObjectId(names::DIRECTORY_OBJECT);
        let value = match zap::lookup_word(rq, mos, directory, names::PROPS).await? {
            Some(properties) => zap::lookup_word(rq, mos, ObjectId(properties), "failmode").await?,
            None => None,
        };
        let mode = FailMode::of_property(value.unwrap_or(0));
        let tree = self.engine.cache.blocks().tree();
        tree.suspension().set_mode(mode);
        tree.keep_unstable(if mode == FailMode::Panic { 0 } else { KEPT_BYTES });
        Ok(())
    }
}

impl Supervisor {
    fn check(&mut self, engine: &Arc<Engine>) {
        let overdue = engine.cache.blocks().tree().check_deadlines(&self.deadlines);
        for leaf in overdue.iter().filter(|leaf| leaf.newly_slow > 0) {
            tracing::warn!(device = leaf.name, operations = leaf.newly_slow, "slow I/O");
            engine.events.report(ErrorReport::Delay, Some(leaf.guid));
        }
        let hanging: Vec<&OverdueLeaf> = overdue.iter().filter(|leaf| leaf.hang.is_some()).collect();
        self.hanging.retain(|guid| hanging.iter().any(|leaf| leaf.guid == *guid));
        for leaf in &hanging {
            self.on_hang(engine, leaf);
        }
        let waits = hanging.iter().find(|leaf| self.hanging.contains(&leaf.guid));
        engine.devices().set_waits_for(waits.map(|leaf| Hang(leaf).to_string()));
        self.report_suspension(engine);
    }

    fn on_hang(&mut self, engine: &Arc<Engine>, leaf: &OverdueLeaf) {
        let mode = engine.devices().suspension().mode();
        let is_new = self.hanging.insert(leaf.guid);
        if is_new {
            tracing::error!("pool '{}': {}", engine.name(), Hang(leaf));
            engine.events.report(ErrorReport::Deadman, Some(leaf.guid));
        }
        if !leaf.is_dispensable && mode == FailMode::Wait {
            return;
        }
        if !leaf.is_dispensable && mode == FailMode::Panic && is_new {
            (self.on_panic)(&Hang(leaf).to_string());
            return;
        }
        if engine.cache.blocks().tree().leaf(leaf.guid).is_ok_and(|leaf| leaf.take_out()) {
            self.hanging.remove(&leaf.guid);
            tracing::error!(device = leaf.name, "taken out of service; 'zpool clear' puts it back");
            engine.events.post_state_change(leaf.guid, VDEV_STATE_FAULTED);
            let (engine, guid) = (engine.clone(), leaf.guid);
            drop(engine.machine.tasks.clone().spawn(async move {
                if let Err(error) = engine.devices().set_faulted(vec![guid], true).await {
                    tracing::warn!(%error, "the state of the device is not in the labels");
                }
            }));
        }
    }

    fn report_suspension(&mut self, engine: &Engine) {
        let why = engine.devices().suspension().reason();
        if let Some(why) = why.as_ref().filter(|_| !self.is_suspended) {
            tracing::error!("pool '{}' is suspended: {why}; 'zpool clear' resumes it", engine.name());
            engine.events.report(ErrorReport::IoFailure, None);
        }
        self.is_suspended = why.is_some();
        if let Some(what) = invariant::violation().filter(|_| !self.is_violated) {
            tracing::error!("pool '{}' is suspended after an internal error: {what}", engine.name());
            engine.events.report(ErrorReport::IoFailure, None);
            self.is_violated = true;
        }
        let failed = engine.txgs().failure().filter(|_| engine.devices().suspension().mode() == FailMode::Panic);
        if let Some(why) = failed {
            (self.on_panic)(&why);
        }
    }
}

/// `vdev_state_t` of a faulted vdev.
const VDEV_STATE_FAULTED: u64 = 5;

/// A device that hangs, for messages.
struct Hang<'a>(&'a OverdueLeaf);

impl fmt::Display for Hang<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OverdueLeaf { name, hang, .. } = self.0;
        match hang {
            Some(hang) => write!(f, "{name} does not answer: a {:?} has taken {} s", hang.op, hang.age.as_secs()),
            None => write!(f, "{name} answers"),
        }
    }
}

//! Supervision of a pool's devices: slow operations are reported, a device that hangs is taken out of service while
//! redundancy lasts, and failures beyond it suspend the pool instead of ending it.
//!
//! ```text
//!   every second ─► operations older than the slow I/O threshold ─► ereport.fs.zfs.delay, counter of `zpool status -s`
//!                └► a device with one older than the hang threshold ─► ereport.fs.zfs.deadman
//!                     ├─ the pool has all blocks without it ─► out of service at once; `faulted` in the labels
//!                     └─ it does not ─► failmode: wait for it, fail its operations, or end the process
//!
//!   too many errors of a device ([`super::diagnosis`]) ─► degraded or faulted, in the labels
//!   any error of a device ─► its path and labels are looked at ([`super::probe`])
//! ```
//!
//! A suspended pool is resumed by [`Engine::clear`] (`zpool clear`), and its status says why it is suspended. An engine that
//! is not supervised ends when a txg cannot be written, which is what tests of failures want.
//!
//! Source: OpenZFS `module/zfs/vdev.c` (`vdev_deadman`), `module/zfs/spa_misc.c` (`spa_deadman`), `module/zfs/zio.c`
//! (`zio_suspend`); the `faulted` state with its `aux_state`: `module/zfs/vdev_label.c` (`vdev_config_generate`).

use super::config::visit;
use super::diagnosis::{ErrorKind, Verdict, thresholds};
use super::events::{ErrorReport, Events, PoolEvent};
use super::syncing::TxgSync;
use super::vdev_config_edit as edit;
use super::{Devices, Engine};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use weir_blocks::vdev::{Deadlines, OverdueLeaf, PutBackError};
use weir_blocks::{FailMode, Suspension};
use weir_dmu::{ObjectError, zap};
use weir_format::dsl::pool as names;
use weir_format::{NvList, ObjectId};
use weir_machine::{Nanos, invariant};
use weir_pool::config::{Class, VdevConfig};
use weir_pool::error::PoolError;

/// Interval at which devices are checked, at most; a quarter of the shortest threshold if that is less.
const INTERVAL: Duration = Duration::from_secs(1);
/// Interval between two looks at the paths and labels of devices with errors.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Names in a leaf's configuration (`ZPOOL_CONFIG_FAULTED`, `ZPOOL_CONFIG_DEGRADED`, `ZPOOL_CONFIG_AUX_STATE`). OpenZFS keeps
/// a leaf faulted at import only if the reason is `external`.
const FAULTED: &str = "faulted";
const DEGRADED: &str = "degraded";
const AUX_STATE: &str = "aux_state";

/// Condition of a leaf that its configuration keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeafCondition {
    /// None of the others.
    Healthy,
    /// In service, but it had too many errors.
    Degraded,
    /// Out of service: it had too many errors.
    Failed,
    /// Out of service: it hangs, or the administrator wants it.
    Faulted,
}

impl LeafCondition {
    fn of(vdev: &NvList) -> Self {
        let is = |name| vdev.get_u64(name).is_some_and(|value| value != 0);
        match (is(FAULTED), is(DEGRADED)) {
            (true, _) if vdev.get_str(AUX_STATE) == Some("err_exceeded") => LeafCondition::Failed,
            (true, _) => LeafCondition::Faulted,
            (false, true) => LeafCondition::Degraded,
            (false, false) => LeafCondition::Healthy,
        }
    }

    /// `vdev_state_t`.
    fn state(self) -> u64 {
        match self {
            LeafCondition::Healthy => 7,
            LeafCondition::Degraded => 6,
            LeafCondition::Failed | LeafCondition::Faulted => 5,
        }
    }

    /// Writes it to a leaf's configuration (`vdev_config_generate`).
    fn mark(self, vdev: &mut NvList) {
        [FAULTED, DEGRADED, AUX_STATE].into_iter().for_each(|name| drop(vdev.remove(name)));
        let values = match self {
            LeafCondition::Healthy => None,
            LeafCondition::Degraded => Some((DEGRADED, "err_exceeded")),
            LeafCondition::Failed => Some((FAULTED, "err_exceeded")),
            LeafCondition::Faulted => Some((FAULTED, "external")),
        };
        values.into_iter().for_each(|(name, why)| {
            vdev.set(name, 1u64);
            vdev.set(AUX_STATE, why);
        });
        debug_assert_eq!(LeafCondition::of(vdev), self);
    }
}

/// Called when `failmode=panic` demands that the process end, with the reason.
pub type OnPanic = Arc<dyn Fn(&str) + Send + Sync>;

/// A loop that checks a pool's devices.
struct Supervisor {
    engine: Weak<Engine>,
    deadlines: Deadlines,
    on_panic: OnPanic,
    /// Devices that hang and could not be taken out of service.
    hanging: BTreeSet<u64>,
    /// Devices with errors, and when the last of them were looked at.
    suspects: BTreeSet<u64>,
    probed_at: Option<Nanos>,
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
    if !engine.is_read_only() {
        let applied = engine.sync_task(|syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                syncing.apply_fail_mode().await?;
                syncing.apply_thresholds().await
            })
        });
        applied.await?;
    }
    let interval = (deadlines.slow.min(deadlines.hang) / 4).min(INTERVAL);
    let clock = engine.machine.clock.clone();
    let mut supervisor = Supervisor {
        engine: Arc::downgrade(engine),
        deadlines,
        on_panic,
        hanging: BTreeSet::new(),
        suspects: BTreeSet::new(),
        probed_at: None,
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
        violation
            .or(self.engine.multihost.failure())
            .or(self.suspension().reason())
            .or(self.engine.txgs().failure())
            .or(waits)
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
    /// pool's writes (`zpool clear`). Leaves that the administrator took offline stay offline.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if a device still has operations in progress from before it was taken out of service, or if
    /// the pool cannot be resumed in this process.
    pub async fn clear(&self, leaf: Option<u64>) -> Result<(), PoolError> {
        if self.engine.cache_devices().clear(leaf).await && leaf.is_some() {
            return Ok(());
        }
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
            // Counted before and after, so that neither the end of a scan nor the beginning of one falls between.
            self.engine.returns.fetch_add(1, Ordering::SeqCst);
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
            self.engine.returns.fetch_add(1, Ordering::SeqCst);
            tracing::info!(device = health.name, "put back into service");
        }
        if let Some(what) = invariant::violation() {
            return Err(PoolError::Refused {
                what: format!("internal error ({what}): stop this process and import the pool again"),
            });
        }
        if let Some(why) = self.engine.multihost.failure() {
            return Err(PoolError::Refused {
                what: format!(
                    "another host may have imported the pool meanwhile ({why}): export it, and import it again"
                ),
            });
        }
        if let Some(why) = self.engine.txgs().failure() {
            return Err(PoolError::Refused {
                what: format!("a transaction group failed ({why}): export or stop the pool, and import it again"),
            });
        }
        // Before the pool is resumed: a verdict that it has not recorded yet is void.
        chosen.iter().for_each(|health| self.engine.diagnosis.clear(health.guid));
        if self.suspension().resume() {
            tracing::info!("pool '{}' is resumed", self.engine.name());
        }
        let mut conditions = self.conditions();
        conditions.retain(|guid, condition| {
            // One that is offline, too, stays out of service: `zpool online` can put it back then.
            let is_faulted = chosen.iter().any(|health| health.guid == *guid && health.faulted);
            let is_chosen = chosen.iter().any(|health| health.guid == *guid);
            is_faulted || is_chosen && *condition != LeafCondition::Healthy
        });
        if !conditions.is_empty() {
            let healthy = conditions.into_keys().map(|guid| (guid, LeafCondition::Healthy));
            self.set_conditions(healthy.collect()).await?;
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

    /// Conditions of the leaves, by their configuration.
    fn conditions(&self) -> BTreeMap<u64, LeafCondition> {
        let mut out = BTreeMap::new();
        visit(&mut self.engine.shown().config.root, &mut |vdev| {
            out.extend(vdev.get_u64("guid").map(|guid| (guid, LeafCondition::of(vdev))));
        });
        out
    }

    /// Posts that a leaf is faulted, which the configuration does not keep.
    pub(crate) fn post_fault(&self, leaf: u64) {
        let was = self.conditions().get(&leaf).copied().unwrap_or(LeafCondition::Healthy).state();
        let is = LeafCondition::Faulted.state();
        debug_assert!(self.engine.cache.blocks().tree().leaf(leaf).is_ok_and(|leaf| !leaf.is_in_service()));
        if was != is {
            self.engine.events.post_state_change(leaf, was, is);
        }
    }

    /// Records conditions of leaves in the configuration and the labels, and posts the changes of their states. A suspended pool
    /// records them when it is resumed: one that `zpool clear` has ended meanwhile is not recorded.
    pub(crate) async fn set_conditions(&self, leaves: BTreeMap<u64, LeafCondition>) -> Result<(), PoolError> {
        let before = self.conditions();
        let was = move |guid: u64| before.get(&guid).copied().unwrap_or(LeafCondition::Healthy);
        let post = |events: &Events, guid: u64, from: LeafCondition, to: LeafCondition| {
            if from.state() != to.state() {
                events.post_state_change(guid, from.state(), to.state());
            }
        };
        leaves.iter().for_each(|(guid, condition)| post(&self.engine.events, *guid, was(*guid), *condition));
        self.engine
            .sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    let devices = syncing.engine.devices();
                    let (lasting, ended) = leaves
                        .into_iter()
                        .partition::<BTreeMap<_, _>, _>(|(guid, condition)| devices.lasts(*guid, *condition));
                    ended.into_iter().for_each(|(guid, condition)| {
                        post(&syncing.engine.events, guid, condition, was(guid));
                    });
                    visit(&mut syncing.core.config.root, &mut |vdev| {
                        let condition = vdev.get_u64("guid").and_then(|guid| lasting.get(&guid));
                        condition.into_iter().for_each(|condition| condition.mark(vdev));
                    });
                    for (guid, _) in lasting.iter().filter(|(_, condition)| **condition == LeafCondition::Healthy) {
                        // Most leaves have no spare.
                        let _is_original = edit::unspare(&mut syncing.core.config.root, *guid);
                    }
                    syncing.core.config_dirty = true;
                    Ok(())
                })
            })
            .await
    }

    /// Whether the reason for a condition of a leaf still exists: a faulted leaf is out of service, and the errors of a degraded
    /// one were not cleared.
    fn lasts(&self, guid: u64, condition: LeafCondition) -> bool {
        match condition {
            LeafCondition::Healthy => true,
            LeafCondition::Degraded => self.engine.diagnosis.has_verdict(guid),
            LeafCondition::Failed | LeafCondition::Faulted => {
                let leaf = self.engine.cache.blocks().tree().leaf(guid);
                leaf.map_or(true, |leaf| !leaf.is_in_service())
            }
        }
    }

    /// Carries out the verdict about a device that had too many errors (`zpool_vdev_fault`, `zpool_vdev_degrade`). One
    /// that the pool needs stays in service, as degraded.
    async fn carry_out(&self, guid: u64, verdict: Verdict) -> Result<(), PoolError> {
        let tree = self.engine.cache.blocks().tree().clone();
        let condition = self.conditions().remove(&guid).unwrap_or(LeafCondition::Healthy);
        let Ok(leaf) = tree.leaf(guid) else { return Ok(()) };
        let stays = match verdict {
            Verdict::Degraded => condition != LeafCondition::Healthy,
            Verdict::Faulted => matches!(condition, LeafCondition::Failed | LeafCondition::Faulted),
        };
        if stays || !leaf.is_in_service() {
            return Ok(());
        }
        let bad = |source| PoolError::Decode { what: "the vdev tree".into(), source };
        let root = VdevConfig::parse(&self.engine.shown().config.root).map_err(bad)?;
        let is_of = |top: &&VdevConfig| top.leaves().iter().any(|leaf| leaf.guid == guid);
        let is_log = root.children.iter().find(is_of).is_some_and(|top| top.class == Class::Log);
        let is_needed = self.engine.vdevs().is_required(&root, guid) && !is_log;
        let condition = match verdict {
            Verdict::Faulted if !is_needed && leaf.take_out() => LeafCondition::Failed,
            _ => LeafCondition::Degraded,
        };
        tracing::error!(device = leaf.name(), ?condition, "too many errors; 'zpool clear' marks it as repaired");
        self.set_conditions(BTreeMap::from([(guid, condition)])).await
    }
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

impl TxgSync<'_> {
    /// Applies the vdev properties about errors ([`thresholds`]).
    pub(crate) async fn apply_thresholds(&mut self) -> Result<(), PoolError> {
        let (rq, mos, root) = (self.change.rq, &self.change.mos, &self.core.config.root);
        let found = async {
            let quiet = thresholds::without_slow_events(rq, mos, root).await?;
            Ok::<_, ObjectError>((thresholds::read(rq, mos, root).await?, quiet))
        };
        match found.await {
            Ok((found, quiet)) => {
                self.engine.diagnosis.set_thresholds(found);
                self.engine.diagnosis.set_without_slow_events(quiet);
            }
            // The defaults apply: a ZAP that cannot be read is no reason not to supervise the devices.
            Err(error) => tracing::warn!(%error, "the vdev properties checksum_n … io_t cannot be read"),
        }
        Ok(())
    }
}

impl Supervisor {
    fn check(&mut self, engine: &Arc<Engine>) {
        let overdue = engine.cache.blocks().tree().check_deadlines(&self.deadlines);
        for leaf in overdue.iter().filter(|leaf| leaf.newly_slow > 0) {
            tracing::warn!(device = leaf.name, operations = leaf.newly_slow, "slow I/O");
            if engine.diagnosis.has_slow_events(leaf.guid) {
                engine.events.report(ErrorReport::Delay, Some(leaf.guid));
            }
            let parent = engine.events.parent_of(leaf.guid);
            for _ in 0..leaf.newly_slow {
                engine.diagnosis.record(leaf.guid, parent, ErrorKind::Slow, engine.machine.clock.now());
            }
        }
        let hanging: Vec<&OverdueLeaf> = overdue.iter().filter(|leaf| leaf.hang.is_some()).collect();
        self.hanging.retain(|guid| hanging.iter().any(|leaf| leaf.guid == *guid));
        for leaf in &hanging {
            self.on_hang(engine, leaf);
        }
        let waits = hanging.iter().find(|leaf| self.hanging.contains(&leaf.guid));
        engine.devices().set_waits_for(waits.map(|leaf| Hang(leaf).to_string()));
        for (guid, verdict) in engine.diagnosis.take_verdicts() {
            let engine = engine.clone();
            drop(engine.machine.tasks.clone().spawn(async move {
                if let Err(error) = engine.devices().carry_out(guid, verdict).await {
                    tracing::warn!(%error, "the state of a device is not in the labels");
                }
            }));
        }
        self.probe_suspects(engine);
        self.report_suspension(engine);
    }

    /// Looks at the devices that had errors, not more often than every [`PROBE_INTERVAL`].
    fn probe_suspects(&mut self, engine: &Arc<Engine>) {
        self.suspects.extend(engine.diagnosis.take_suspects());
        let now = engine.machine.clock.now();
        if self.suspects.is_empty() || self.probed_at.is_some_and(|last| now.since(last) < PROBE_INTERVAL) {
            return;
        }
        self.probed_at = Some(now);
        let suspects = std::mem::take(&mut self.suspects);
        let engine = engine.clone();
        drop(engine.machine.tasks.clone().spawn(async move {
            if let Err(error) = engine.vdevs().probe(|leaf| suspects.contains(&leaf)).await {
                tracing::warn!(%error, "devices with errors cannot be looked at");
            }
        }));
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
            let conditions = BTreeMap::from([(leaf.guid, LeafCondition::Faulted)]);
            let engine = engine.clone();
            drop(engine.machine.tasks.clone().spawn(async move {
                if let Err(error) = engine.devices().set_conditions(conditions).await {
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

//! Protection of a pool with the property `multihost` from two hosts that import it (multi-modifier protection, MMP).
//!
//! ```text
//!   host A, pool open      every second, to each leaf in turn: the last uberblock with the present time ─► reserved slot
//!                          10 s without a write that succeeded, or the pool suspended ─► A never writes to the pool again
//!   host B, import         labels name another host, pool not exported ─► watch the uberblocks for 20 s to 25 s
//!                           ├─ one changed ─► refused, also with -f
//!                           └─ none changed ─► claim: ten times a random sequence number, which must still be there 1 s later
//! ```
//!
//! The uberblock of a heartbeat equals the last one that a txg committed, but for its time, its sequence number and the delay
//! between heartbeats. So it leads to the same state, whichever of them an import chooses. It is in the last slot of the ring,
//! which txgs do not use while the property is on.
//!
//! *Failure.* A host that was silent for ten intervals cannot know whether another one imported the pool. It forbids all
//! writes of this process, fails the open txg, and refuses `zpool clear`: the pool is exported and imported again. The same
//! applies to a pool that is suspended for another reason.
//!
//! *Bounds.* A heartbeat that a device holds back is of a txg that the next import exceeds, so it changes nothing when it is
//! written late, except that it may let an import see activity. The claim reaches as many leaves of each top-level vdev as
//! let every host that can use the vdev see one of them.
//!
//! Source: OpenZFS `module/zfs/mmp.c`, `module/zfs/spa.c` (`spa_activity_check_required`, `spa_activity_check_tryimport`,
//! `spa_activity_check_claim`), `module/zfs/vdev_label.c` (`vdev_uberblock_sync`).

use super::labels::{self, Leaf};
use super::{Engine, Host};
use crate::events::ErrorReport;
use futures_util::future::join_all;
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::{Duration, UNIX_EPOCH};
use weir_dmu::zap;
use weir_dsl::sync_tasks::DslSyncContext;
use weir_format::dsl::pool as names;
use weir_format::uberblock::Mmp;
use weir_format::{ObjectId, Uberblock, label as label_layout};
use weir_machine::lock::{Mutex, order};
use weir_machine::{Clock, Machine, Nanos, invariant};
use weir_pool::assemble::state;
use weir_pool::config::{Class, VdevConfig, VdevKind};
use weir_pool::error::PoolError;
use weir_pool::label;
use weir_pool::open::Pool;

/// Name of the pool property.
pub(crate) const PROPERTY: &str = "multihost";
/// Interval of heartbeats to one leaf.
const INTERVAL: Duration = Duration::from_millis(Mmp::INTERVAL_MS);
/// Time without a heartbeat after which the host gives the pool up.
const SILENCE: Duration = Duration::from_millis(Mmp::INTERVAL_MS * Mmp::FAIL_INTERVALS as u64);
/// Interval at which the end of heartbeats waits for those in progress.
const END_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Claims that an import makes (`MMP_IMPORT_VERIFY_ITERS`).
const CLAIMS: u32 = 10;
/// The delay of heartbeats is a mean in which the newest counts this much (`mmp_delay_update`).
const DELAY_WEIGHT: u32 = 128;

/// The heartbeats of a pool.
#[derive(Default)]
pub(crate) struct Multihost(Mutex<State, { order::MULTIHOST }>);

#[derive(Default)]
struct State {
    engine: Weak<Engine>,
    /// While the property is on.
    heartbeats: Option<Heartbeats>,
    /// Whether the task that writes them runs.
    is_running: bool,
    /// Whether the pool is being closed.
    is_ended: bool,
    /// Why this host gave the pool up.
    failure: Option<Arc<str>>,
    /// Leaves with a heartbeat in progress, by GUID.
    pending: BTreeSet<u64>,
}

struct Heartbeats {
    /// The last one that a txg committed, with the time of the last heartbeat.
    uberblock: Uberblock,
    leaves: Vec<Leaf>,
    /// Index of the leaf that comes next.
    next: usize,
    sequence: u16,
    delay: Duration,
    written: Nanos,
}

impl Heartbeats {
    fn took(&mut self, now: Nanos) {
        let delay = now.since(self.written);
        self.written = now;
        // A long delay counts at once, because an importing host waits for as long.
        let mean = (delay + self.delay * (DELAY_WEIGHT - 1)) / DELAY_WEIGHT;
        let least = INTERVAL / self.leaves.len().max(1) as u32;
        self.delay = if delay >= self.delay { delay } else { mean.max(least) };
        invariant!(self.delay >= least.min(delay), "heartbeats are more frequent than they are written");
    }

    /// The next leaf that is in service and has no heartbeat in progress, and what is written to it.
    fn next(&mut self, engine: &Engine, pending: &BTreeSet<u64>) -> Option<(Leaf, Uberblock)> {
        let tree = engine.cache.blocks().tree();
        let is_free = |leaf: &Leaf| {
            !pending.contains(&leaf.guid) && tree.leaf(leaf.guid).is_ok_and(|handle| handle.is_in_service())
        };
        let count = self.leaves.len();
        let index = (0..count).map(|n| (self.next + n) % count).find(|index| is_free(&self.leaves[*index]))?;
        self.next = index + 1;
        let now_s = wall_s(&engine.machine.clock);
        if self.uberblock.timestamp_s != now_s {
            self.uberblock.timestamp_s = now_s;
            self.sequence = 0;
        }
        // After 65,535 in a second the number stays, and the next second changes the time.
        self.sequence = self.sequence.saturating_add(1);
        let mmp = Mmp::heartbeat(self.delay.as_nanos() as u64, self.sequence);
        Some((self.leaves[index].clone(), Uberblock { mmp: Some(mmp), ..self.uberblock.clone() }))
    }
}

fn wall_s(clock: &Clock) -> u64 {
    clock.wall().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

impl Multihost {
    /// Passes on the engine whose heartbeats these are.
    pub(crate) fn know(&self, engine: &Arc<Engine>) {
        self.0.lock().engine = Arc::downgrade(engine);
    }

    /// Why this host may not write to the pool any more.
    pub(crate) fn failure(&self) -> Option<Arc<str>> {
        self.0.lock().failure.clone()
    }

    /// Checks that this host may still write to the pool.
    ///
    /// # Errors
    /// [`PoolError::Refused`] with the reason why not.
    pub(crate) fn check(&self) -> Result<(), PoolError> {
        self.failure().map_or(Ok(()), |why| Err(PoolError::Refused { what: why.to_string() }))
    }

    /// The fields of the next txg's uberblock (`vdev_uberblock_sync`).
    pub(crate) fn fields(&self, is_on: bool) -> Mmp {
        let delay = self.0.lock().heartbeats.as_ref().map_or(INTERVAL, |heartbeats| heartbeats.delay);
        if is_on { Mmp::heartbeat(delay.as_nanos() as u64, 0) } else { Mmp::default() }
    }

    /// A txg was committed with that uberblock. Heartbeats begin or end as the property says.
    pub(crate) fn committed(&self, machine: &Machine, is_on: bool, last: (&Uberblock, &[Leaf]), now: Nanos) {
        let mut state = self.0.lock();
        if !is_on || state.is_ended {
            state.heartbeats = None;
            return;
        }
        let uberblock = last.0.clone();
        let leaves = last.1.to_vec();
        match &mut state.heartbeats {
            Some(heartbeats) => {
                invariant!(heartbeats.uberblock.txg <= uberblock.txg, "an older uberblock is the last one");
                heartbeats.uberblock = uberblock;
                heartbeats.leaves = leaves;
                heartbeats.sequence = 0;
                heartbeats.took(now);
            }
            None => {
                let new = Heartbeats { uberblock, leaves, next: 0, sequence: 0, delay: INTERVAL, written: now };
                state.heartbeats = Some(new);
            }
        }
        if !std::mem::replace(&mut state.is_running, true) {
            drop(machine.tasks.spawn(run(state.engine.clone(), machine.clock.clone())));
        }
    }

    /// Ends the heartbeats of a pool that is being closed, and waits for those in progress, at most [`SILENCE`].
    pub(crate) async fn end(&self, clock: &Clock) {
        {
            let mut state = self.0.lock();
            state.is_ended = true;
            state.heartbeats = None;
        }
        let until = clock.now() + SILENCE;
        while !self.0.lock().pending.is_empty() && clock.now() < until {
            clock.sleep(END_POLL_INTERVAL).await;
        }
    }
}

/// Writes heartbeats until the property is off, the pool is closed, or this host gives it up.
async fn run(engine: Weak<Engine>, clock: Clock) {
    while let Some(engine) = engine.upgrade() {
        let Some(pause) = beat(&engine) else { return };
        drop(engine);
        clock.sleep(pause).await;
    }
}

/// Writes a heartbeat. Returns the time until the next one; `None` if there is none.
fn beat(engine: &Arc<Engine>) -> Option<Duration> {
    let tree = engine.cache.blocks().tree();
    let suspended = tree.suspension().reason();
    let now = engine.machine.clock.now();
    let mut state = engine.multihost.0.lock();
    let State { heartbeats, pending, is_running, .. } = &mut *state;
    let Some(heartbeats) = heartbeats else {
        *is_running = false;
        return None;
    };
    let silence = now.since(heartbeats.written);
    let lost = match suspended {
        Some(why) => Some(why.to_string()),
        None if silence > SILENCE => {
            Some(format!("no heartbeat of the property multihost could be written for {} s", silence.as_secs()))
        }
        None => None,
    };
    if let Some(why) = lost {
        state.heartbeats = None;
        state.is_running = false;
        state.failure = Some(why.as_str().into());
        drop(state);
        give_up(engine, &why);
        return None;
    }
    let pause = INTERVAL / heartbeats.leaves.len().max(1) as u32;
    if let Some((leaf, uberblock)) = heartbeats.next(engine, pending) {
        let is_new = pending.insert(leaf.guid);
        invariant!(is_new, "a leaf has two heartbeats in progress");
        drop(state);
        drop(engine.machine.tasks.spawn(write(engine.clone(), leaf, uberblock)));
    }
    Some(pause)
}

async fn write(engine: Arc<Engine>, leaf: Leaf, uberblock: Uberblock) {
    let index = engine.machine.entropy.below(label_layout::LABELS as u64) as usize;
    let written = labels::write_heartbeat(engine.cache.blocks().tree(), &leaf, index, &uberblock, false).await;
    let now = engine.machine.clock.now();
    let mut state = engine.multihost.0.lock();
    let was_pending = state.pending.remove(&leaf.guid);
    invariant!(was_pending, "a heartbeat ended that did not begin");
    match written {
        Ok(()) => state.heartbeats.iter_mut().for_each(|heartbeats| heartbeats.took(now)),
        Err(error) => tracing::debug!(%error, device = %leaf.path.display(), "a heartbeat is not written"),
    }
}

/// From now on, this process writes nothing more to the pool.
fn give_up(engine: &Engine, why: &str) {
    let tree = engine.cache.blocks().tree();
    tree.set_writable(false);
    tree.suspension().close();
    invariant!(!tree.is_writable(), "a pool that was given up is written to");
    tracing::error!("pool '{}' is suspended for good, because another host may import it: {why}", engine.name());
    engine.events.report(ErrorReport::IoFailure, None);
    engine.txgs().request_sync();
}

/// Whether the property is on, as of the txg that is being synced.
pub(crate) async fn is_on(change: &DslSyncContext<'_>) -> Result<bool, PoolError> {
    let (rq, mos) = (change.rq, &change.mos);
    let Some(properties) = zap::lookup_word(rq, mos, ObjectId(names::DIRECTORY_OBJECT), names::PROPS).await? else {
        return Ok(false);
    };
    Ok(zap::lookup_word(rq, mos, ObjectId(properties), PROPERTY).await?.unwrap_or(0) != 0)
}

/// Checks that the host can have a pool with the property multihost.
///
/// # Errors
/// [`PoolError::Refused`] if it has no host id.
pub(crate) fn check_host(host: &Host) -> Result<(), PoolError> {
    if host.id != 0 {
        return Ok(());
    }
    let what = "multihost=on requires a host id that is not zero: write one to /etc/hostid ('zgenhostid')";
    Err(PoolError::Refused { what: what.into() })
}

/// The newest uberblock of a pool that was watched and that [`claim`] writes to; nothing if the pool needs neither.
pub(super) struct Watched(Option<Uberblock>);

fn in_use(pool: &Pool) -> PoolError {
    let host = pool.label.hostname.as_deref().unwrap_or("another machine");
    PoolError::Refused {
        what: format!("pool '{}' cannot be opened for writing: {host} is writing to it now", pool.name()),
    }
}

/// Checks that no other machine writes to a pool with the property multihost; not overridden by force. Takes 20 s to 25 s by
/// default if the labels name another host and the pool was not exported.
///
/// # Errors
/// [`PoolError::Refused`] if another machine writes to it, or this one has no host id.
pub(super) async fn watch(pool: &Pool, host: &Host) -> Result<Watched, PoolError> {
    let Some(mmp) = pool.uberblock.mmp.filter(|mmp| mmp.delay_ns != 0) else { return Ok(Watched(None)) };
    check_host(host)?;
    if pool.label.state != state::ACTIVE || pool.label.hostid == Some(host.id) {
        return Ok(Watched(None));
    }
    let clock = &pool.machine.clock;
    let before = newest(pool).await;
    if before.as_ref().is_none_or(|newest| newest.txg > pool.newest_txg) {
        return Err(in_use(pool));
    }
    let least = mmp.activity_check_duration();
    // Two hosts that start at the same time end at different ones.
    let until = clock.now() + least + least * pool.machine.entropy.below(250) as u32 / 1000;
    tracing::info!(pool = pool.name(), seconds = least.as_secs(), "watching whether another host writes to the pool");
    while clock.now() < until {
        clock.sleep(INTERVAL.min(least / 4)).await;
        if newest(pool).await.map(|newest| newest.rank()) != before.as_ref().map(Uberblock::rank) {
            return Err(in_use(pool));
        }
    }
    Ok(Watched(before))
}

/// Claims a pool after [`watch`], so that of two hosts that import it at the same time one goes on at most.
///
/// # Errors
/// [`PoolError::Refused`] if another machine claims it; errors of writing.
pub(super) async fn claim(pool: &Pool, watched: Watched, leaves: &[Leaf]) -> Result<(), PoolError> {
    let Watched(Some(found)) = watched else { return Ok(()) };
    // OpenZFS 0.7 wrote neither the interval nor sequence numbers.
    let Some(mmp) = found.mmp.filter(|mmp| mmp.write_interval_ms().is_some()) else { return Ok(()) };
    let interval = Duration::from_millis(mmp.write_interval_ms().unwrap_or(Mmp::INTERVAL_MS)).max(INTERVAL / 10);
    let last = mmp.sequence().filter(|last| *last < u16::MAX).unwrap_or(0);
    for _ in 0..CLAIMS {
        let sequence = last + 1 + pool.machine.entropy.below(u64::from(u16::MAX - last)) as u16;
        let claimed = Uberblock { mmp: Some(mmp.with_sequence(sequence)), ..found.clone() };
        let tree = pool.blocks.tree();
        let writes = leaves.iter().map(|leaf| labels::write_heartbeat(tree, leaf, 0, &claimed, true));
        let answers = join_all(writes).await;
        let is_written = |guid| leaves.iter().zip(&answers).any(|(leaf, done)| leaf.guid == guid && done.is_ok());
        if let Some(top) = pool.tree.children.iter().find(|top| !is_claimed(top, &is_written)) {
            let what = format!(
                "pool '{}' cannot be opened for writing: multihost=on, and too few devices of {} could be claimed",
                pool.name(),
                top.name()
            );
            return Err(PoolError::Refused { what });
        }
        pool.machine.clock.sleep(interval).await;
        if newest(pool).await.map(|newest| newest.rank()) != Some(claimed.rank()) {
            return Err(in_use(pool));
        }
    }
    Ok(())
}

/// Whether any host that can use the vdev sees a leaf that was written (`mmp_claim_uberblock_sync`).
fn is_claimed(top: &VdevConfig, is_written: &impl Fn(u64) -> bool) -> bool {
    let has_labels = |leaf: &&&VdevConfig| matches!(leaf.kind, VdevKind::Disk | VdevKind::File);
    let leaves = top.leaves();
    let written = leaves.iter().filter(has_labels).filter(|leaf| is_written(leaf.guid)).count();
    let needed = match top.kind {
        _ if top.class == Class::Log => 0,
        VdevKind::Raidz { nparity } | VdevKind::Draid { nparity, .. } => usize::from(nparity) + 1,
        VdevKind::Disk | VdevKind::File => 1,
        VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare => {
            let is_present = |leaf: &&&VdevConfig| !(leaf.offline || leaf.faulted || leaf.removed);
            leaves.iter().filter(has_labels).filter(is_present).count().max(1)
        }
        _ => 0,
    };
    written >= needed
}

/// The newest uberblock in the labels of all devices.
async fn newest(pool: &Pool) -> Option<Uberblock> {
    let mut newest: Option<Uberblock> = None;
    for device in pool.devices.values() {
        for slot in label::read(&device.disk).await.ring {
            if newest.as_ref().is_none_or(|known| slot.uberblock.rank() > known.rank()) {
                newest = Some(slot.uberblock);
            }
        }
    }
    newest
}

//! Passes over the free space of single devices: initialization (`zpool initialize`) and trim (`zpool trim`).
//!
//! ```text
//!   start ─► state ACTIVE in the leaf's ZAP ─► a task per leaf: metaslab by metaslab, each free part is made not
//!            allocatable, filled or discarded on this leaf alone, and given back
//!   every few seconds, and at the end ─► offset and state in the ZAP
//!   import ─► passes that are ACTIVE go on from their offset
//! ```
//!
//! A part that is being filled or discarded cannot be allocated, so a pass never touches a block. The offset lags behind what was done: a
//! part may be filled or discarded twice, which does no harm.
//!
//! A pass over a device that goes out of service ends, stays ACTIVE, and goes on with the next import; the pass over one that
//! `zpool offline -f` faults, or whose vdev is removed, is canceled. dRAID vdevs are
//! refused, because a range of them does not lie on all devices.
//!
//! Source: OpenZFS `module/zfs/vdev_initialize.c`, `module/zfs/vdev_trim.c`.

use super::attach::parsed;
use super::events::PoolEvent;
use super::syncing::TxgSync;
use super::{Engine, InitializeTrim};
use bytes::Bytes;
use futures_util::lock::Mutex as AsyncMutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, UNIX_EPOCH};
use weir_blocks::FreeParts;
use weir_dmu::zap::{self, Key};
use weir_format::ObjectId;
use weir_machine::{Nanos, Request};
use weir_pool::config::{VdevConfig, VdevKind};
use weir_pool::error::PoolError;
use weir_pool::initialize_trim::{self, LeafActivity, LeafActivityState, LeafProgress};
use weir_pool::metaslab_geometry::MetaslabGeometry;

/// Pattern of initialized space (`zfs_initialize_value`).
const PATTERN: u64 = 0xdead_beef_dead_beee;
/// Bytes that are written at a time (`zfs_initialize_chunk_size`).
const CHUNK_BYTES: usize = 1 << 20;
/// Minimum length of a part that is trimmed (`zfs_trim_extent_bytes_min`).
const MIN_TRIM_BYTES: u64 = 32 << 10;
/// Maximum bytes that are not allocatable at a time (`zfs_trim_extent_bytes_max`).
const MAX_BYTES: u64 = 128 << 20;
/// Interval at which the offset is recorded.
const RECORD_INTERVAL: Duration = Duration::from_secs(5);
/// Interval at which a caller looks whether a pass has ended.
const LOOK: Duration = Duration::from_millis(20);

/// Values of [`Running`].
const GOES_ON: u8 = 0;
const IS_SUSPENDED: u8 = 1;
const IS_CANCELED: u8 = 2;

/// A pass in progress.
#[derive(Clone, Debug, Default)]
struct Running(Arc<AtomicU8>);

/// The passes in progress of a pool.
#[derive(Debug, Default)]
pub(crate) struct RunningTable {
    /// By kind and leaf.
    running: BTreeMap<(LeafActivity, u64), Running>,
    /// By top-level vdev: held while a pass is in a metaslab. A second pass would skip the parts that a first one has.
    turns: BTreeMap<u32, Arc<AsyncMutex<()>>>,
}

/// A pass to be carried out.
struct Work {
    kind: LeafActivity,
    leaf: u64,
    offset: u64,
    rate: u64,
    running: Running,
}

impl Work {
    /// A pass that no other one of the kind and leaf goes on beside; `None` if there is one.
    fn reserve(engine: &Engine, kind: LeafActivity, leaf: u64, (offset, rate): (u64, u64)) -> Option<Self> {
        let running = Running::default();
        let mut table = engine.leaf_activities.lock();
        if table.running.contains_key(&(kind, leaf)) {
            return None;
        }
        table.running.insert((kind, leaf), running.clone());
        Some(Work { kind, leaf, offset, rate, running })
    }

    /// Allows another pass to begin.
    fn release(&self, engine: &Engine) {
        let was = engine.leaf_activities.lock().running.remove(&(self.kind, self.leaf));
        debug_assert!(was.is_some(), "a pass ends once");
    }
}

/// How a pass ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Complete,
    Stopped,
    /// The pool is being closed: it goes on at the next import.
    Closed,
}

fn refused(what: impl Into<String>) -> PoolError {
    PoolError::Refused { what: what.into() }
}

/// The message for a pass that is in progress already (`libzfs_error_description`).
fn busy(kind: LeafActivity) -> &'static str {
    match kind {
        LeafActivity::Initialize => "currently initializing",
        LeafActivity::Trim => "currently trimming",
    }
}

fn none_active(kind: LeafActivity) -> &'static str {
    match kind {
        LeafActivity::Initialize => "there is no active initialization",
        LeafActivity::Trim => "there is no active trim",
    }
}

impl InitializeTrim<'_> {
    /// Leaves over which a pass of this kind is in progress.
    pub fn running(&self, kind: LeafActivity) -> BTreeSet<u64> {
        self.engine.leaf_activities.lock().running.keys().filter(|(of, _)| *of == kind).map(|(_, leaf)| *leaf).collect()
    }

    /// Waits until no pass over these leaves is in progress.
    ///
    /// # Errors
    /// If the pool is closed.
    pub async fn wait(&self, kind: LeafActivity, leaves: &[u64]) -> Result<(), PoolError> {
        while leaves.iter().any(|leaf| self.running(kind).contains(leaf)) {
            if self.engine.events.is_ended() {
                return Err(refused("the pool is closed"));
            }
            self.engine.machine.clock.sleep(LOOK).await;
        }
        Ok(())
    }

    /// Cancels the passes in progress over these leaves, and waits until they have ended: the leaves leave the pool, or are
    /// faulted.
    ///
    /// # Errors
    /// If the pool is closed.
    pub(crate) async fn cancel_of(&self, leaves: &[u64]) -> Result<(), PoolError> {
        for (kind, leaf) in LeafActivity::ALL.into_iter().flat_map(|kind| leaves.iter().map(move |leaf| (kind, *leaf)))
        {
            let running = self.engine.leaf_activities.lock().running.get(&(kind, leaf)).cloned();
            if let Some(running) = running {
                running.0.store(IS_CANCELED, Ordering::Release);
                self.wait(kind, &[leaf]).await?;
                debug_assert!(!self.running(kind).contains(&leaf), "a canceled pass has ended");
            }
        }
        Ok(())
    }

    /// Suspends or cancels the passes over these leaves, also those that were suspended before. Returns after they have
    /// ended.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if none of them is active.
    pub async fn stop(&self, kind: LeafActivity, leaves: &[u64], suspends: bool) -> Result<(), PoolError> {
        let rq = &Request::internal("stop");
        let mut found = false;
        for leaf in leaves {
            let running = self.engine.leaf_activities.lock().running.get(&(kind, *leaf)).cloned();
            if let Some(running) = running {
                running.0.store(if suspends { IS_SUSPENDED } else { IS_CANCELED }, Ordering::Release);
                self.wait(kind, &[*leaf]).await?;
                found = true;
                continue;
            }
            let state = self.stored(rq, kind, *leaf).await?.map(|(_, progress)| progress.state);
            let is_stopped = matches!(state, Some(LeafActivityState::Active))
                || !suspends && state == Some(LeafActivityState::Suspended);
            if is_stopped {
                let state = if suspends { LeafActivityState::Suspended } else { LeafActivityState::Canceled };
                record(self.engine, kind, *leaf, None, Some(state)).await?;
                found = true;
            }
        }
        if found { Ok(()) } else { Err(refused(none_active(kind))) }
    }

    /// Forgets that these leaves were initialized (`zpool initialize -u`).
    ///
    /// # Errors
    /// [`PoolError::Refused`] if one is being initialized.
    pub async fn forget(&self, kind: LeafActivity, leaves: &[u64]) -> Result<(), PoolError> {
        if leaves.iter().any(|leaf| self.running(kind).contains(leaf)) {
            return Err(refused(busy(kind)));
        }
        let leaves = leaves.to_vec();
        self.engine
            .sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    let (rq, tx) = (syncing.change.rq, syncing.change.tx);
                    for leaf in leaves {
                        let Some(zap) = initialize_trim::zap_of(&syncing.core.config.root, leaf) else { continue };
                        for name in [kind.state_name(), kind.offset_name(), kind.time_name()] {
                            // A leaf that was never initialized has no entries.
                            let _was_there = zap::remove(rq, &syncing.change.mos, tx, zap, &Key::from(name)).await?;
                        }
                    }
                    Ok(())
                })
            })
            .await
    }

    /// The recorded pass over a leaf, and the leaf's ZAP; `None` if it has none.
    async fn stored(
        &self,
        rq: &Request,
        kind: LeafActivity,
        leaf: u64,
    ) -> Result<Option<(ObjectId, LeafProgress)>, PoolError> {
        let Some(zap) = initialize_trim::zap_of(&self.engine.shown().config.root, leaf) else { return Ok(None) };
        let state = self.engine.synced().state(rq).await?;
        Ok(Some((zap, initialize_trim::of_leaf(rq, &state.mos, zap, kind).await?)))
    }
}

/// Starts passes over these leaves, or goes on with suspended ones. `rate` limits a trim, in bytes per second.
///
/// # Errors
/// [`PoolError::Refused`] if a leaf is not in service, has such a pass already, or can have none.
pub async fn start(engine: &Arc<Engine>, kind: LeafActivity, leaves: &[u64], rate: u64) -> Result<(), PoolError> {
    let rq = &Request::internal("start");
    let root = parsed(&engine.shown().config.root)?;
    let mut works = Vec::new();
    for leaf in leaves {
        let is_of = |top: &&VdevConfig| top.leaves().iter().any(|vdev| vdev.guid == *leaf);
        let top = root.children.iter().find(is_of).ok_or_else(|| refused("no such device in pool"))?;
        if matches!(top.kind, VdevKind::Draid { .. }) {
            return Err(refused("the devices of dRAID vdevs cannot be initialized or trimmed one by one"));
        }
        if top.raidz_expanding {
            return Err(refused("raidz expansion in progress"));
        }
        if top.removing {
            return Err(refused("the vdev is being removed"));
        }
        if !engine.cache.blocks().tree().leaf(*leaf).is_ok_and(|leaf| leaf.is_in_service()) {
            return Err(refused("the device is not in service"));
        }
        let Some((_, stored)) = engine.initialize_trim().stored(rq, kind, *leaf).await? else {
            return Err(refused("the pool keeps no ZAPs of its vdevs, in which the progress is recorded"));
        };
        if engine.initialize_trim().running(kind).contains(leaf) {
            return Err(refused(busy(kind)));
        }
        let goes_on = matches!(stored.state, LeafActivityState::Suspended | LeafActivityState::Active);
        let offset = if goes_on { stored.offset } else { 0 };
        let rate = if rate == 0 && goes_on { stored.rate } else { rate };
        works.push((*leaf, offset, rate, goes_on));
    }
    for (leaf, offset, rate, goes_on) in works {
        let work = Work::reserve(engine, kind, leaf, (offset, rate)).ok_or_else(|| refused(busy(kind)))?;
        let fresh = (!goes_on).then(|| (0, now_s(engine)));
        if let Err(error) = begin(engine, &work, fresh).await {
            work.release(engine);
            return Err(error);
        }
        spawn(engine, work);
    }
    Ok(())
}

/// Continues the initializations and trims that were in progress when the pool was closed.
///
/// # Errors
/// Errors of reading the MOS.
pub async fn go_on(engine: &Arc<Engine>) -> Result<(), PoolError> {
    let rq = &Request::internal("initialize or trim");
    let root = parsed(&engine.shown().config.root)?;
    for leaf in root.leaves() {
        for kind in LeafActivity::ALL {
            let stored = engine.initialize_trim().stored(rq, kind, leaf.guid).await?.map(|(_, stored)| stored);
            let is_present = engine.cache.blocks().tree().leaf(leaf.guid).is_ok_and(|leaf| leaf.is_in_service());
            let Some(stored) = stored.filter(|stored| stored.state == LeafActivityState::Active && is_present) else {
                continue;
            };
            if let Some(work) = Work::reserve(engine, kind, leaf.guid, (stored.offset, stored.rate)) {
                spawn(engine, work);
            }
        }
    }
    Ok(())
}

fn now_s(engine: &Engine) -> u64 {
    engine.machine.clock.wall().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Records that a pass begins; with its offset and time unless it goes on.
async fn begin(engine: &Engine, work: &Work, fresh: Option<(u64, u64)>) -> Result<(), PoolError> {
    let (kind, leaf, rate) = (work.kind, work.leaf, work.rate);
    engine
        .sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                let Some(zap) = initialize_trim::zap_of(&syncing.core.config.root, leaf) else {
                    return Err(refused("no such device in pool"));
                };
                let (rq, tx) = (syncing.change.rq, syncing.change.tx);
                let mos = &syncing.change.mos;
                zap::put_word(rq, mos, tx, zap, kind.state_name(), LeafActivityState::Active.number()).await?;
                if let Some((offset, time_s)) = fresh {
                    zap::put_word(rq, mos, tx, zap, kind.offset_name(), offset).await?;
                    zap::put_word(rq, mos, tx, zap, kind.time_name(), time_s).await?;
                }
                if let Some(name) = kind.rate_name() {
                    zap::put_word(rq, mos, tx, zap, name, rate).await?;
                }
                Ok(())
            })
        })
        .await
}

/// Records how far a pass has come, and its state if that changes. A leaf that has left the pool has nothing to record.
async fn record(
    engine: &Engine,
    kind: LeafActivity,
    leaf: u64,
    offset: Option<u64>,
    state: Option<LeafActivityState>,
) -> Result<(), PoolError> {
    let ended_s = state.filter(|state| *state == LeafActivityState::Complete).map(|_| now_s(engine));
    engine
        .sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                let Some(zap) = initialize_trim::zap_of(&syncing.core.config.root, leaf) else { return Ok(()) };
                let (rq, tx) = (syncing.change.rq, syncing.change.tx);
                let words = [
                    (kind.offset_name(), offset),
                    (kind.state_name(), state.map(LeafActivityState::number)),
                    (kind.time_name(), ended_s),
                ];
                for (name, word) in words {
                    if let Some(word) = word {
                        zap::put_word(rq, &syncing.change.mos, tx, zap, name, word).await?;
                    }
                }
                Ok(())
            })
        })
        .await
}

/// Carries a pass out in a task of its own, which ends with the pool.
fn spawn(engine: &Arc<Engine>, mut work: Work) {
    let engine = engine.clone();
    drop(engine.machine.tasks.clone().spawn(async move {
        post(&engine, &work, PoolEvent::TrimStart);
        let ended = pass(&engine, &mut work).await;
        let state = match (&ended, work.running.0.load(Ordering::Acquire)) {
            (Ok(Ended::Complete), _) => Some(LeafActivityState::Complete),
            // One over a device that was faulted meanwhile fails, and is canceled.
            (Ok(Ended::Stopped) | Err(_), IS_CANCELED) => Some(LeafActivityState::Canceled),
            (Ok(Ended::Stopped), _) => Some(LeafActivityState::Suspended),
            (Ok(Ended::Closed) | Err(_), _) => None,
        };
        if let Err(error) = &ended {
            tracing::warn!(leaf = work.leaf, kind = ?work.kind, %error, "the pass over the free space of a device ended");
        }
        if let Some(state) = state
            && let Err(error) = record(&engine, work.kind, work.leaf, Some(work.offset), Some(state)).await
        {
            tracing::warn!(leaf = work.leaf, %error, "the end of a pass is not recorded");
        }
        let event = match state {
            Some(LeafActivityState::Complete) => PoolEvent::TrimFinish,
            Some(LeafActivityState::Suspended) => PoolEvent::TrimSuspend,
            _ => PoolEvent::TrimCancel,
        };
        post(&engine, &work, event);
        work.release(&engine);
    }));
}

/// Posts an event of a trim. OpenZFS has none of initialization.
fn post(engine: &Engine, work: &Work, event: PoolEvent) {
    if work.kind == LeafActivity::Trim {
        engine.events.post_vdev(event, work.leaf);
    }
}

/// One pass, from the offset of `work`, which it moves.
async fn pass(engine: &Arc<Engine>, work: &mut Work) -> Result<Ended, PoolError> {
    let root = parsed(&engine.shown().config.root)?;
    let is_of = |top: &&VdevConfig| top.leaves().iter().any(|vdev| vdev.guid == work.leaf);
    let top = root.children.iter().find(is_of).ok_or_else(|| refused("no such device in pool"))?;
    let vdev = top.id as u32;
    let geometry = MetaslabGeometry::of(top);
    let failed = |error: weir_blocks::BlockError| refused(error.to_string());
    let blocks = engine.cache.blocks().clone();
    let pattern: Bytes = PATTERN.to_le_bytes().repeat(CHUNK_BYTES / 8).into();
    let clock = engine.machine.clock.clone();
    let mut recorded = clock.now();
    // A rate is kept by short parts and pauses.
    let max_bytes = if work.rate == 0 { MAX_BYTES } else { work.rate.clamp(MIN_TRIM_BYTES, MAX_BYTES) };
    let turn = engine.leaf_activities.lock().turns.entry(vdev).or_default().clone();
    for metaslab in 0..geometry.count() {
        let range = geometry.range(metaslab);
        let gone = || refused("the device has left the pool");
        let leaf = blocks.tree().leaf(work.leaf).map_err(|_| gone())?;
        let on_leaf = leaf.part_of(vdev, &range).ok_or_else(gone)?;
        if on_leaf.end <= work.offset {
            continue;
        }
        let _turn = turn.lock().await;
        let mut parts = FreeParts::of(&blocks, vdev, range, max_bytes).map_err(failed)?;
        while let Some(part) = parts.next().await {
            if engine.events.is_ended() {
                return Ok(Ended::Closed);
            }
            if work.running.0.load(Ordering::Acquire) != GOES_ON {
                return Ok(Ended::Stopped);
            }
            let part = leaf.part_of(vdev, &part).ok_or_else(gone)?;
            let part = part.start.max(work.offset)..part.end;
            let len = part.end.saturating_sub(part.start);
            if len == 0 || work.kind == LeafActivity::Trim && len < MIN_TRIM_BYTES {
                continue;
            }
            let end = part.end;
            match work.kind {
                LeafActivity::Initialize => leaf.fill(part, &pattern).await.map_err(failed)?,
                LeafActivity::Trim => drop(leaf.discard(part).await.map_err(failed)?),
            }
            work.offset = end;
            if work.rate > 0 {
                clock.sleep(Duration::from_secs_f64(len as f64 / work.rate as f64)).await;
            }
            recorded = record_at_times(engine, work, recorded).await?;
        }
        drop(parts);
        work.offset = work.offset.max(on_leaf.end);
    }
    Ok(Ended::Complete)
}

/// Records the offset if that was long ago. Returns when it was recorded last.
async fn record_at_times(engine: &Engine, work: &Work, recorded: Nanos) -> Result<Nanos, PoolError> {
    let now = engine.machine.clock.now();
    if now.since(recorded) < RECORD_INTERVAL {
        return Ok(recorded);
    }
    record(engine, work.kind, work.leaf, Some(work.offset), None).await?;
    Ok(now)
}

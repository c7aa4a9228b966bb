//! Sequential rebuild (`zpool attach -s`, `zpool replace -s`): a new device of a mirror or dRAID vdev is given all allocated ranges in
//! the order of their offsets, without checksums; then a scrub verifies them.
//!
//! ```text
//!   one txg: device attached, feature counted, record ACTIVE in the ZAP of the vdev
//!     ─► operations ended that began before ─► passes of a few seconds: allocated ranges copied, devices flushed ─► one txg: position
//!     ─► … ─► one txg: DTLs excised, feature not counted any more, COMPLETE, a scrub begins
//! ```
//!
//! *What has been copied stays right*, because writes reach the new device from the beginning: [`weir_blocks::Rebuild`] keeps them and
//! copies of the same range apart. A position is recorded only after a flush, so a rebuild goes on there after a power cut or an import,
//! here or in OpenZFS.
//!
//! *Errors.* A range that no device has which lacks nothing, a copy that cannot be written and a failed flush are counted. With any, the
//! DTLs stay, and a [resilver](super::resilver) follows, which verifies each block.
//!
//! *Changes meanwhile.* When no device in service lacks anything any more, because it was detached or failed, the rebuild is canceled.
//! When another device does, it begins again.
//!
//! *Memory.* [`IN_FLIGHT_BYTES`], twice.
//!
//! Source: OpenZFS `module/zfs/vdev_rebuild.c`, `module/zfs/spa.c` (`spa_vdev_attach`).

mod task;

pub(crate) use task::RebuildTask;

use super::attach::{AttachRequest, parsed};
use super::syncing::TxgSync;
use super::{Engine, Rebuilds};
use futures_util::StreamExt;
use futures_util::lock::Mutex as AsyncMutex;
use futures_util::stream;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weir_blocks::{BlockError, Rebuild, RebuiltRange};
use weir_format::dsl::{RebuildPhys, RebuildState};
use weir_machine::{Priority, Request, invariant};
use weir_pool::VdevConfig;
use weir_pool::error::PoolError;
use weir_pool::metaslab_geometry::MetaslabGeometry;
use weir_pool::mos::Mos;
use weir_pool::rebuild::of_top;

/// Maximum duration of a pass.
const PASS_TIME: Duration = Duration::from_secs(2);
/// Maximum bytes that are being copied at once.
const IN_FLIGHT_BYTES: u64 = 32 << 20;
/// Interval at which those who wait look again.
const LOOK: Duration = Duration::from_millis(20);
/// Pause after an error that may pass.
const RETRY: Duration = Duration::from_secs(1);
/// Reason for a refusal while a rebuild is in progress (`EZFS_REBUILDING`).
const REBUILDING: &str = "currently sequentially resilvering";

fn refused(what: impl Into<String>) -> PoolError {
    PoolError::Refused { what: what.into() }
}

/// The rebuilds of a pool.
#[derive(Debug, Default)]
pub(crate) struct RebuildTable {
    /// Top-level vdevs whose record is ACTIVE.
    active: BTreeSet<u32>,
    /// Held by the task that carries out the rebuild of a vdev.
    turns: BTreeMap<u32, Arc<AsyncMutex<()>>>,
}

/// Result of a pass.
#[derive(Clone, Debug, Default)]
struct Pass {
    /// All allocated ranges before this offset have been copied.
    next: u64,
    /// Whether nothing is left.
    is_last: bool,
    scanned_bytes: u64,
    issued_bytes: u64,
    rebuilt_bytes: u64,
    errors: u64,
    spent_ns: u64,
}

/// Attaches a device to a mirror or a device, or replaces one there or in a dRAID vdev, and rebuilds it in the background. When
/// this returns, the new device is a part of the pool.
///
/// # Errors
/// [`PoolError::Refused`] and [`PoolError::InUse`] before anything is written; [`PoolError::Suspended`].
pub async fn attach(engine: &Arc<Engine>, request: &AttachRequest) -> Result<(), PoolError> {
    let vdev = {
        let _one_at_a_time = engine.adding.lock().await;
        engine.vdevs().attach_alone(request, true).await?
    };
    carry_out(engine, vdev);
    Ok(())
}

/// Goes on with the rebuilds that the pool records as in progress.
///
/// # Errors
/// Errors of reading the MOS.
pub(crate) async fn go_on(engine: &Arc<Engine>) -> Result<(), PoolError> {
    let rq = &Request::internal("rebuild");
    let root = parsed(&engine.shown().config.root)?;
    let state = engine.synced().state(rq).await?;
    for top in &root.children {
        let record = of_top(rq, &Mos { set: state.mos.clone() }, top).await?;
        if record.is_some_and(|record| record.state == RebuildState::Active) {
            engine.rebuild_table.lock().active.insert(top.id as u32);
            carry_out(engine, top.id as u32);
        }
    }
    Ok(())
}

/// Carries out the rebuild of a top-level vdev in a task of its own, which ends with the pool.
fn carry_out(engine: &Arc<Engine>, vdev: u32) {
    let engine = engine.clone();
    let turn = engine.rebuild_table.lock().turns.entry(vdev).or_default().clone();
    drop(engine.machine.tasks.clone().spawn(async move {
        let _turn = turn.lock().await;
        while engine.rebuilds().is_active(vdev) && !engine.events.is_ended() {
            match run(&engine, vdev).await {
                Ok(()) => {}
                Err(PoolError::Suspended { .. }) => return,
                Err(error) => {
                    tracing::warn!("the rebuild of a vdev of pool '{}' was interrupted: {error}", engine.name());
                    engine.machine.clock.sleep(RETRY).await;
                }
            }
        }
    }));
}

async fn run(engine: &Arc<Engine>, vdev: u32) -> Result<(), PoolError> {
    let blocks = engine.cache.blocks().clone();
    let rebuild = blocks.metaslabs().rebuild(vdev);
    let _in_progress = rebuild.begin();
    let (began, mut targets) = in_txg(engine, move |task| Box::pin(task.begin(vdev))).await?;
    while !rebuild.is_ready(began) {
        if engine.events.is_ended() {
            return Ok(());
        }
        engine.machine.clock.sleep(LOOK).await;
    }
    let rq = Request::internal("rebuild").with_priority(Priority::Scrub);
    while !engine.events.is_ended() {
        let (record, top) = engine.rebuilds().record(&rq, vdev).await?;
        if record.state != RebuildState::Active {
            return Ok(());
        }
        let (now, _) = rebuild.targets();
        if now.is_empty() {
            return in_txg(engine, move |task| Box::pin(task.cancel(vdev))).await;
        }
        if !now.is_subset(&targets) {
            targets = in_txg(engine, move |task| Box::pin(task.reset(vdev))).await?;
            continue;
        }
        let mut pass = run_pass(engine, rebuild, &rq, MetaslabGeometry::of(&top), record.last_offset_bytes).await?;
        // The devices are flushed before a txg records the position, so that all before it has been copied for good.
        let flushed = blocks.flush().await;
        pass.errors += u64::from(flushed.is_err() || rebuild.has_failed_flush());
        let of = targets.clone();
        in_txg(engine, move |task| Box::pin(task.record_pass(vdev, pass, of))).await?;
    }
    Ok(())
}

/// Runs a change of a rebuild in a txg.
async fn in_txg<T: Send + 'static>(
    engine: &Engine,
    change: impl for<'a, 'b, 'c> FnOnce(
        &'a mut RebuildTask<'b, 'c>,
    ) -> futures_util::future::BoxFuture<'a, Result<T, PoolError>>
    + Send
    + 'static,
) -> Result<T, PoolError> {
    engine
        .sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                let done = change(&mut RebuildTask(&mut *syncing)).await;
                syncing.fail_txg_on_error(done)
            })
        })
        .await
}

/// Copies allocated ranges from an offset on.
async fn run_pass(
    engine: &Engine,
    rebuild: Rebuild<'_>,
    rq: &Request,
    geometry: MetaslabGeometry,
    from: u64,
) -> Result<Pass, PoolError> {
    let clock = &engine.machine.clock;
    let began = clock.now();
    let until = began + PASS_TIME;
    let max_bytes = engine.gate.dirty_limits().rebuilt_bytes;
    let mut pass = Pass { next: from, ..Pass::default() };
    let is_over = AtomicBool::new(false);
    for metaslab in geometry.index_of(from)..geometry.count() {
        let range = geometry.range(metaslab);
        let parts = rebuild.parts(metaslab, range.start.max(pass.next)..range.end.max(pass.next)).await;
        let parts = parts.map_err(|error| refused(error.to_string()))?;
        let longest = parts.iter().map(|part| part.end - part.start).max().unwrap_or(1);
        let at_once = usize::try_from(IN_FLIGHT_BYTES / longest).unwrap_or(1).clamp(1, 64);
        let mut left = max_bytes.saturating_sub(pass.scanned_bytes);
        let copies = parts.into_iter().map(|part| {
            let is_wanted = left > 0;
            left = left.saturating_sub(part.end - part.start);
            let (is_over, txg) = (&is_over, engine.txgs().open());
            async move {
                // The first one makes sure that the rebuild goes on.
                if !is_wanted || is_over.load(Ordering::Relaxed) && part.start > from {
                    return None;
                }
                let done = rebuild.copy(rq, part.clone(), txg).await;
                is_over.fetch_or(clock.now() >= until, Ordering::Relaxed);
                Some((part, done))
            }
        });
        let mut copies = stream::iter(copies).buffered(at_once);
        let mut is_whole = true;
        while let Some(copied) = copies.next().await {
            match copied {
                Some((part, done)) if is_whole => pass.count(&part, done)?,
                // A part behind one that was left out is copied again.
                Some(_) => {}
                None => is_whole = false,
            }
        }
        if !is_whole {
            pass.spent_ns = clock.now().ns_since(began);
            return Ok(pass);
        }
        pass.next = pass.next.max(range.end);
    }
    pass.is_last = true;
    pass.spent_ns = clock.now().ns_since(began);
    Ok(pass)
}

impl Pass {
    /// Counts a part.
    fn count(&mut self, part: &Range<u64>, done: Result<RebuiltRange, BlockError>) -> Result<(), PoolError> {
        invariant!(part.start >= self.next, "a rebuild goes back");
        self.next = part.end;
        self.scanned_bytes += part.end - part.start;
        match done {
            Ok(done) => {
                self.issued_bytes += done.issued_bytes;
                self.rebuilt_bytes += done.written_bytes;
                self.errors += u64::from(done.has_failed);
            }
            Err(error @ (BlockError::ReadOnly | BlockError::Invariant { .. })) => {
                return Err(refused(error.to_string()));
            }
            Err(error) => {
                if self.errors == 0 {
                    tracing::warn!(offset = part.start, %error, "a range cannot be rebuilt");
                }
                self.errors += 1;
            }
        }
        Ok(())
    }
}

impl Rebuilds<'_> {
    /// Whether a vdev is being rebuilt.
    pub fn is_running(&self) -> bool {
        !self.engine.rebuild_table.lock().active.is_empty()
    }

    fn is_active(&self, vdev: u32) -> bool {
        self.engine.rebuild_table.lock().active.contains(&vdev)
    }

    /// Refuses an operation that cannot run beside a rebuild.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if a vdev is being rebuilt.
    pub(crate) fn check_none_running(&self) -> Result<(), PoolError> {
        if self.is_running() { Err(refused(REBUILDING)) } else { Ok(()) }
    }

    /// The record of a vdev's last rebuild, as of the last synced txg, and the vdev.
    async fn record(&self, rq: &Request, vdev: u32) -> Result<(RebuildPhys, VdevConfig), PoolError> {
        let root = parsed(&self.engine.shown().config.root)?;
        let top = root.children.into_iter().find(|top| top.id == u64::from(vdev));
        let top = top.ok_or_else(|| refused("no such device in pool"))?;
        let mos = Mos { set: self.engine.synced().state(rq).await?.mos.clone() };
        Ok((of_top(rq, &mos, &top).await?.unwrap_or_default(), top))
    }

    /// Bytes that the rebuilds in progress have still to write, by their estimates.
    ///
    /// # Errors
    /// Errors of reading the MOS.
    pub async fn left_bytes(&self) -> Result<u64, PoolError> {
        let rq = &Request::internal("rebuild");
        let active = self.engine.rebuild_table.lock().active.clone();
        let mut left = 0u64;
        for vdev in active {
            let (record, _) = self.record(rq, vdev).await?;
            left = left.saturating_add(record.estimated_bytes.saturating_sub(record.scanned_bytes));
        }
        Ok(left)
    }

    /// Whether a vdev is being rebuilt, or the end of its rebuild has not synced yet.
    ///
    /// # Errors
    /// Errors of reading the MOS.
    pub async fn is_unfinished(&self, rq: &Request) -> Result<bool, PoolError> {
        if self.is_running() {
            return Ok(true);
        }
        let root = parsed(&self.engine.shown().config.root)?;
        let mos = Mos { set: self.engine.synced().state(rq).await?.mos.clone() };
        for top in &root.children {
            if of_top(rq, &mos, top).await?.is_some_and(|record| record.state == RebuildState::Active) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Waits until no vdev is being rebuilt, and the end of each rebuild has synced.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if the pool is closed before; errors of reading the MOS.
    pub async fn wait(&self) -> Result<(), PoolError> {
        let rq = &Request::internal("rebuild");
        while self.is_unfinished(rq).await? {
            if self.engine.events.is_ended() {
                return Err(refused("the pool is closed"));
            }
            self.engine.machine.clock.sleep(LOOK).await;
        }
        Ok(())
    }
}

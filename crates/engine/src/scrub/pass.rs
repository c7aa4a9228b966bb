//! One pass of a scrub or resilver.
//!
//! ```text
//!   find: walk from the position ─► queue ─► (full, or the walk has ended) ─► read in the order of the offsets ─► position
//!         passes of a few seconds                                             one pass, counts recorded every few seconds
//! ```
//!
//! The position is recorded when the queue is empty: everything before it was read then. Until then, [`Progress::ahead`] has the
//! counts at the recorded position, where a process that does not have the queue begins again.

use super::control::{ScanControl, Unrecorded};
use super::{Counts, FINISHED, Progress, ScanLimits};
use crate::error_log::ErrorLogTask;
use crate::resilver::{ResilverTask, Resume};
use crate::{Engine, Scrubs, TxgSync};
use futures_util::future::{Either, select};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weir_blocks::fault_observer::Bookmark;
use weir_blocks::{BlockError, ReadCosts, ScanQueue, Tree};
use weir_format::dsl::{DslDataset, pool as names};
use weir_format::{BlockPointer, ObjectType, ObjsetId, Txg};
use weir_machine::{Clock, Nanos, Request};
use weir_pool::error::PoolError;
use weir_pool::mos::Mos;
use weir_pool::roots;
use weir_pool::walk::{Claim, Position, Prove, Root, Visit, VisitPosition, Walk};

/// Set in the object set of a position that belongs to the walk over snapshots taken during the scrub.
const RESCAN_BIT: u64 = 1 << 63;
/// Nanoseconds of a second.
const NS_PER_S: i64 = 1_000_000_000;

/// Visitor of the blocks of a pass.
struct ScanPass<'a> {
    clock: Clock,
    /// Time at which the walk that finds blocks ends; `None` while found blocks are read.
    until: Option<Nanos>,
    max_bytes: u64,
    examined_bytes: u64,
    costs: ReadCosts,
    control: &'a ScanControl,
    /// The interrupts before the pass.
    interrupts: u64,
    /// The vdev tree, if this is a pass of a resilver: its DTLs keep the txgs of unreadable blocks.
    keeps: Option<Arc<Tree>>,
}

impl Visit for ScanPass<'_> {
    fn block(&mut self, _at: &VisitPosition, bp: &BlockPointer) -> bool {
        self.examined_bytes += bp.asize_bytes();
        self.control.count_examined(bp.asize_bytes(), self.costs.of(bp));
        false
    }

    fn claim(&mut self, _at: &VisitPosition, _bp: &BlockPointer, _claim: Claim) {}

    fn unreadable(&mut self, at: &VisitPosition, bp: &BlockPointer, _error: &BlockError) {
        self.keeps.iter().for_each(|tree| {
            tree.resilvering().keep_missing(bp.birth(), bp.level() > 0 || bp.object_type().is_metadata())
        });
        // The error log has the root block of an object set under `ROOT_LEVEL`, as readers report it.
        let is_root = bp.object_type() == ObjectType::OBJSET && at.level >= 0;
        let level = if is_root { Bookmark::ROOT_LEVEL as i8 } else { at.level };
        self.control.count_error(VisitPosition { level, ..*at }, bp.physical_birth());
    }

    fn enough(&self) -> bool {
        let is_over = self.until.is_some_and(|until| self.clock.now() >= until);
        is_over || self.examined_bytes >= self.max_bytes || self.is_interrupted()
    }
}

impl ScanPass<'_> {
    fn is_interrupted(&self) -> bool {
        self.control.interrupts() != self.interrupts
    }
}

/// The part of a scan since its recorded position, in this process.
#[derive(Debug)]
pub(crate) struct ScanCycle {
    /// The scan, with its recorded position.
    of: Progress,
    /// Position of the walk; `None` at its end.
    found_to: Option<Position>,
    /// Whether the blocks in the queue are being read.
    is_reading: bool,
    /// Whether snapshots were taken during the walk, which it did not visit.
    has_late: bool,
}

impl ScanCycle {
    /// The cycle that this process has begun at the recorded position of a scan, or a new one, and whether it is new.
    fn continued(
        begun: Option<ScanCycle>,
        scan: &Progress,
        queue: &ScanQueue,
        costs: impl FnOnce() -> ReadCosts,
    ) -> (Self, bool) {
        if let Some(cycle) = begun.filter(|cycle| cycle.of.is_of(scan) && cycle.of.place == scan.place) {
            return (cycle, false);
        }
        queue.restart(costs());
        (ScanCycle { of: scan.clone(), found_to: Some(scan.place), is_reading: false, has_late: false }, true)
    }

    /// Whether the cycle is a part of this scan, whatever position it began at.
    pub fn is_part_of(&self, scan: &Progress) -> bool {
        self.of.is_of(scan)
    }
}

/// How far a scan has got.
enum Reached {
    /// The walk has found blocks that are not read.
    Between,
    /// Everything before this position was read.
    Position(Position),
    /// The walk has ended. With `has_late`, snapshots were taken during the walk, and it did not visit them.
    End { has_late: bool },
}

/// A part of a pass, to be recorded.
struct Part {
    /// The record of the scrub or resilver at the beginning of the pass.
    of: Progress,
    /// Whether the part began at the recorded position: what other processes read behind it is read again.
    is_first: bool,
    counted: Unrecorded,
    reached: Reached,
    repaired_bytes: u64,
    /// Devices could not be given blocks, or may have dropped them.
    unrepaired: bool,
}

/// Records the parts of a pass in progress.
struct Recorder<'a> {
    scrubs: Scrubs<'a>,
    of: &'a Progress,
    is_first: bool,
    /// Bytes that were repaired since the pool was opened, up to the last part.
    repaired_bytes: u64,
    /// End of the last part.
    since: Nanos,
    show: &'a mut (dyn FnMut(&Progress) -> bool + Send),
    /// Whether `show` wants the scan to go on.
    goes_on: bool,
}

impl Recorder<'_> {
    /// Records what was counted since the last part.
    async fn record(&mut self, rq: &Request, reached: Reached) -> Result<(), PoolError> {
        let engine = self.scrubs.engine;
        // Another process continues only at a recorded position. Therefore the repairs before it must be stable.
        let settles = self.of.is_resilver() && !matches!(reached, Reached::Between);
        let unrepaired = settles && self.scrubs.settle_repairs().await;
        let repaired_bytes = repaired_bytes(engine);
        let part = Part {
            of: self.of.clone(),
            is_first: std::mem::take(&mut self.is_first),
            counted: engine.scan.take_unrecorded(),
            reached,
            repaired_bytes: repaired_bytes.saturating_sub(std::mem::replace(&mut self.repaired_bytes, repaired_bytes)),
            unrepaired,
        };
        self.since = self.scrubs.spent_since(self.since);
        engine
            .sync_task(move |syncing: &mut TxgSync<'_>| Box::pin(async move { PassTask(syncing).record(part).await }))
            .await?;
        let progress = self.scrubs.live_progress(rq).await?;
        self.goes_on &= progress.is_none_or(|progress| (self.show)(&progress));
        Ok(())
    }
}

/// Bytes that were repaired since the pool was opened.
pub(super) fn repaired_bytes(engine: &Engine) -> u64 {
    engine.cache.blocks().tree().health().iter().map(|health| health.counts.repaired_bytes).sum()
}

impl Scrubs<'_> {
    /// Makes one pass of a scan whose progress was read after this number of interrupts. `show` is called whenever a part of the pass
    /// has been recorded. Returns whether the scan is to go on.
    pub(super) async fn run_pass(
        &self,
        rq: &Request,
        pace: &ScanLimits,
        (progress, interrupts): (Progress, u64),
        show: &mut (dyn FnMut(&Progress) -> bool + Send),
    ) -> Result<bool, PoolError> {
        let blocks = self.engine.cache.blocks().clone();
        let queue = &blocks.scan_queue().map_err(|error| PoolError::Refused { what: error.to_string() })?;
        let mut turn = self.engine.scan.cycle.lock().await;
        if self.engine.scan.is_closed() {
            return Err(self.engine.closed());
        }
        let (mut cycle, is_first) = ScanCycle::continued(turn.take(), &progress, queue, || blocks.tree().read_costs());
        let mut pass = self.new_pass(pace, progress.is_resilver(), interrupts);
        let repaired_bytes = repaired_bytes(self.engine);
        let _time = self.engine.scan.begin_pass(&self.engine.machine.clock, &progress, is_first, repaired_bytes);
        let mut recorder = Recorder {
            scrubs: Scrubs { engine: self.engine },
            of: &progress,
            is_first,
            repaired_bytes,
            since: self.engine.machine.clock.now(),
            show,
            goes_on: true,
        };
        if queue.activate() {
            // The txg that is syncing may have freed blocks that were not recorded.
            self.engine.sync().await?;
        }
        self.find_some(rq, &mut cycle, queue, *pace, &mut pass).await?;
        self.engine.scan.note_found(cycle.found_to.is_none() && !cycle.has_late);
        if cycle.is_reading && !pass.enough() {
            self.engine.scan.begin_reading(self.engine.machine.clock.now());
            self.read(rq, queue, pace, &mut pass, &mut recorder).await?;
        }
        let reached = match cycle.found_to {
            _ if !cycle.is_reading || !queue.is_empty() => Reached::Between,
            Some(place) => Reached::Position(place),
            None => Reached::End { has_late: cycle.has_late },
        };
        recorder.record(rq, reached).await?;
        recorder.scrubs.spent_since(recorder.since);
        *turn = Some(cycle);
        Ok(recorder.goes_on)
    }

    /// Forgets what was found for a scan that ended.
    pub(super) async fn forget_found(&self) {
        *self.engine.scan.cycle.lock().await = None;
        if let Ok(queue) = self.engine.cache.blocks().scan_queue() {
            queue.deactivate();
        }
    }

    /// Counts the time since `began` as time of the scan; returns the present.
    fn spent_since(&self, began: Nanos) -> Nanos {
        let now = self.engine.machine.clock.now();
        self.engine.scan.unrecorded_ns.fetch_add(now.ns_since(began).cast_signed(), Ordering::SeqCst);
        now
    }

    fn new_pass(&self, pace: &ScanLimits, resilvers: bool, interrupts: u64) -> ScanPass<'_> {
        ScanPass {
            clock: self.engine.machine.clock.clone(),
            until: None,
            max_bytes: pace.bytes,
            examined_bytes: 0,
            costs: self.engine.cache.blocks().tree().read_costs(),
            control: &self.engine.scan,
            interrupts,
            keeps: resilvers.then(|| self.engine.cache.blocks().tree().clone()),
        }
    }

    /// Finds blocks, unless those that were found are being read.
    async fn find_some(
        &self,
        rq: &Request,
        cycle: &mut ScanCycle,
        queue: &Arc<ScanQueue>,
        mut pace: ScanLimits,
        pass: &mut ScanPass<'_>,
    ) -> Result<(), PoolError> {
        let Some(from) = cycle.found_to.filter(|_| !cycle.is_reading) else { return Ok(()) };
        let _hold = self.engine.cache.blocks().hold();
        loop {
            let limit_ns = u64::try_from(pace.time.as_nanos()).unwrap_or(u64::MAX);
            pass.until = Some(Nanos(pass.clock.now().0.saturating_add(limit_ns)));
            // Readers may get the state before the last synced txg for a moment.
            queue.begin_walk(Txg(self.engine.txgs().last_synced().0.saturating_sub(1)));
            let found = self.find(rq, cycle, from, (queue, pace.sorted_blocks), pass).await;
            queue.end_walk();
            found?;
            if cycle.found_to != Some(from) {
                break;
            }
            if pass.is_interrupted() {
                return Ok(());
            }
            pass.control.forget_unrecorded();
            // Descending to the position again costs time as well.
            pace.time = pace.time.saturating_mul(2);
            pass.max_bytes = pass.max_bytes.saturating_mul(2);
            pass.examined_bytes = 0;
            if queue.len() >= pace.sorted_blocks {
                pace.sorted_blocks = pace.sorted_blocks.saturating_mul(2);
            }
        }
        cycle.is_reading = cycle.found_to.is_none() || queue.len() >= pace.sorted_blocks;
        Ok(())
    }

    /// Reads the blocks in the queue. After each interval [`ScanLimits::recorded`], records the counts while the reads go on.
    async fn read(
        &self,
        rq: &Request,
        queue: &ScanQueue,
        pace: &ScanLimits,
        pass: &mut ScanPass<'_>,
        recorder: &mut Recorder<'_>,
    ) -> Result<(), PoolError> {
        pass.until = None;
        let walk = self.walk_of(recorder.of);
        let mut reads = pin!(walk.read_found(queue, pass));
        loop {
            let interval = pin!(self.engine.machine.clock.sleep(pace.recorded));
            if let Either::Left(_) = select(&mut reads, interval).await {
                return Ok(());
            }
            let recorded = match select(&mut reads, pin!(recorder.record(rq, Reached::Between))).await {
                Either::Left((_, recorded)) => return recorded.await,
                Either::Right((recorded, _)) => recorded,
            };
            if recorded.is_err() || !recorder.goes_on {
                self.engine.scan.interrupt();
                reads.await;
                return recorded;
            }
        }
    }

    /// Walks from a position on until the queue has the given number of blocks or the pass has enough.
    async fn find(
        &self,
        rq: &Request,
        cycle: &mut ScanCycle,
        from: Position,
        (queue, max_blocks): (&Arc<ScanQueue>, usize),
        pass: &mut ScanPass<'_>,
    ) -> Result<(), PoolError> {
        let (walk, roots, has_late) = self.walk_from(rq, &cycle.of, from).await?;
        let found_to = walk.find_from(roots, unmarked(from), (queue.clone(), max_blocks), pass).await;
        cycle.found_to = if unmarked(from) == from { found_to } else { found_to.map(marked) };
        cycle.has_late = has_late;
        Ok(())
    }

    fn walk_of(&self, progress: &Progress) -> Walk {
        let (prove, log_before) = match progress.is_resilver() {
            true => (Prove::Lacking, Txg(progress.scan.max_txg.0.saturating_add(1))),
            false => (Prove::Everything, Txg(0)),
        };
        let blocks = self.engine.cache.blocks().clone();
        Walk { machine: self.engine.machine.clone(), blocks, prove, log_before }
    }

    /// The walk from a position on, its roots, and whether snapshots were taken since the beginning, which it does not visit.
    async fn walk_from(
        &self,
        rq: &Request,
        progress: &Progress,
        from: Position,
    ) -> Result<(Walk, Vec<Root>, bool), PoolError> {
        let again = unmarked(from) != from;
        // Snapshots taken during the scrub: the walk may have passed their numbers before it reached their blocks.
        let start = if progress.is_resilver() { progress.resume.began } else { progress.scan.max_txg };
        let revisits = &progress.revisits;
        let is_late = |d: &DslDataset| revisits.round <= 1 && d.is_snapshot() && d.creation_txg > start;
        let wanted = |id: ObjsetId, d: &DslDataset| is_late(d) || again && revisits.now.contains(&id.0);
        let (mut roots, late) = {
            let mos = Mos { set: self.engine.synced().state(rq).await?.mos.clone() };
            let (late, _) = roots::datasets(rq, &mos, &wanted).await?;
            if again { (late, Vec::new()) } else { (roots::roots(rq, &mos).await?.0, late) }
        };
        roots.retain(|root| root.objset >= unmarked(from).objset);
        if progress.is_partial() {
            roots.iter_mut().for_each(|root| root.after = root.after.max(progress.scan.min_txg));
        }
        Ok((self.walk_of(progress), roots, !late.is_empty()))
    }
}

/// A position of the walk that visits snapshots and moved blocks after all other datasets.
fn marked(place: Position) -> Position {
    Position { objset: ObjsetId(place.objset.0 | RESCAN_BIT), ..place }
}

/// A position without the mark of that walk.
fn unmarked(place: Position) -> Position {
    Position { objset: ObjsetId(place.objset.0 & !RESCAN_BIT), ..place }
}

/// Changes of the record of a scan after a pass, in syncing context.
struct PassTask<'a, 'b>(&'a mut TxgSync<'b>);

impl PassTask<'_, '_> {
    /// Records a part of a pass, unless the scrub ended in the meantime or another one began: that one has its own position, and what
    /// this pass read does not count for it.
    async fn record(&mut self, part: Part) -> Result<(), PoolError> {
        let Some(mut progress) = self.0.open_scrub().await.ok().filter(|open| open.is_of(&part.of)) else {
            return Ok(());
        };
        let Part { of: _, is_first, counted, reached, repaired_bytes, unrepaired } = part;
        let scan = &mut progress.scan;
        let at_place = progress.ahead.take().unwrap_or_else(|| Counts::of(scan));
        if is_first {
            at_place.put(scan);
        }
        scan.examined_bytes = scan.examined_bytes.saturating_add(counted.examined_bytes);
        scan.processed_bytes = scan.processed_bytes.saturating_add(repaired_bytes);
        scan.errors = scan.errors.saturating_add(counted.error_count);
        // The nearest second is recorded, and the rest with the next pass: rounded up after each pass of two seconds, the time left
        // was half as long again.
        let unrecorded_ns = &self.0.engine.scan.unrecorded_ns;
        let seconds = (unrecorded_ns.load(Ordering::SeqCst) + NS_PER_S / 2).max(0) / NS_PER_S;
        unrecorded_ns.fetch_sub(seconds * NS_PER_S, Ordering::SeqCst);
        progress.active_s = progress.active_s.saturating_add(seconds.unsigned_abs());
        progress.resume.flags |= if unrepaired { Resume::UNREPAIRED } else { 0 };
        let returns = self.0.engine.returns.load(Ordering::SeqCst);
        if std::mem::replace(&mut self.0.core.returns_scanned, returns) != returns {
            // A device came back into service: it lacks the repairs of earlier passes, and those passes did not verify it.
            progress.resume.flags |= if progress.is_resilver() { Resume::MOVED } else { 0 };
            self.0.core.scrub_began = None;
        }
        // A partial scan does not read all blocks, so the errors of the others must stay in the log.
        let log = if progress.is_partial() { names::ERRLOG_LAST } else { names::ERRLOG_SCRUB };
        if let Err(error) = ErrorLogTask(self.0).add(log, &counted.errors).await {
            // The errors are counted, and a read of the file finds them again (`sync_error_list`).
            tracing::warn!("cannot record errors that a scrub found: {error}");
        }
        self.record_reached(progress, reached, at_place).await
    }

    async fn record_reached(
        &mut self,
        mut progress: Progress,
        reached: Reached,
        at_place: Counts,
    ) -> Result<(), PoolError> {
        match reached {
            Reached::Between => {
                progress.ahead = Some(at_place);
                self.0.put_scrub(&progress).await
            }
            Reached::Position(place) => {
                debug_assert!(place > progress.place, "{place:?} is not behind {:?}", progress.place);
                progress.place = place;
                self.0.put_scrub(&progress).await
            }
            Reached::End { .. } if progress.is_resilver() && progress.resume.flags & Resume::MOVED != 0 => {
                ResilverTask(self.0).start(true).await.map(drop)
            }
            Reached::End { has_late } if has_late || progress.revisits.is_due() => {
                progress.revisits.begin_round();
                progress.place = marked(Position::default());
                self.0.put_scrub(&progress).await
            }
            Reached::End { .. } => self.0.end_scrub(progress, FINISHED).await,
        }
    }
}

//! Scrub: reads every block of the pool in all its copies and columns, and repairs damage.
//!
//! ```text
//!   start ─► `scan` in the MOS: running ─► passes: find blocks, then read them ─► position ─► `scan` … ─► finished
//! ```
//!
//! The record is OpenZFS's (`dsl_scan_phys_t`), so each program shows and continues the other's scrubs. Weir continues at
//! its recorded position ([`PLACE`]); OpenZFS starts again, because it does not know that position.
//!
//! The walk visits datasets and objects in ascending order of their numbers. Snapshots that are taken during the scrub
//! may receive blocks from datasets that were not yet visited, so the scrub visits these snapshots again at the end.
//! Positions of that second walk come after all others. A resilver also visits other datasets again: see [`Revisits`].
//!
//! *Order.* The walk finds blocks in the order of the files, and they are read in the order of their offsets on the devices:
//! see [`pass`].
//!
//! *Fresh pointers.* The pool changes during a scrub. Each walk therefore delays the reuse of freed space
//! ([`weir_blocks::ReadHold`]) and begins at the roots again; blocks that were found and freed since are no longer in the queue
//! ([`weir_blocks::scan_queue`]), and each read delays the reuse of its own block. So no pointer leads to a reused block. Walks are
//! short, because freed space waits for their end.
//!
//! *Errors* beyond redundancy are appended to the pool's [error log](super::error_log). [`errors`] reads the blocks of that log only.
//!
//! Source: OpenZFS `module/zfs/dsl_scan.c`.

pub(crate) mod control;
pub mod errors;
pub(crate) mod pass;

use super::error_log::ErrorLogTask;
use super::events::PoolEvent;
use super::resilver::{RESILVER, ResilverTask, Resume, Revisits};
use super::{Scrubs, TxgSync};
use errors::ErrorScrubTask;
use std::sync::atomic::Ordering;
use std::time::{Duration, UNIX_EPOCH};
use weir_blocks::{Class, FoundSums};
use weir_dmu::zap::{self, NewZap};
use weir_dsl::sync_tasks::history;
use weir_format::dsl::{ScanPhys, pool as names};
use weir_format::{ObjectId, ObjectType, ObjsetId, Txg};
use weir_machine::Request;
use weir_pool::error::PoolError;
use weir_pool::mos::Mos;
use weir_pool::scan_status::{LiveScan, PAUSED, PAUSED_AT, PLACE, average_left_s};
use weir_pool::walk::Position;

const SCRUB: u64 = 1;
pub(crate) const RUNNING: u64 = 1;
const FINISHED: u64 = 2;
pub(crate) const CANCELED: u64 = 3;
const DIRECTORY: ObjectId = ObjectId(names::DIRECTORY_OBJECT);
/// Limits of one pass; each pass ends with a txg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanLimits {
    /// Maximum duration of finding blocks.
    pub time: Duration,
    /// Maximum allocated bytes to read.
    pub bytes: u64,
    /// Interval at which a pass that reads the blocks it has found records how far it is, without ending its reads.
    pub recorded: Duration,
    /// Number of blocks that are found, over several passes, before they are read in the order of their offsets. Each takes about
    /// 250 bytes of memory.
    pub sorted_blocks: usize,
}

impl Default for ScanLimits {
    fn default() -> Self {
        ScanLimits {
            time: Duration::from_secs(2),
            bytes: u64::MAX,
            recorded: Duration::from_secs(2),
            sorted_blocks: 256 << 10,
        }
    }
}

/// The blocks that a new scrub reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrubStart {
    /// All.
    Whole,
    /// Those born after the last txg of the last scrub that was completed (`zpool scrub -C`, `POOL_SCRUB_FROM_LAST_TXG`).
    LastScrubbedTxg,
}

/// Integers of the record of a position, before those of [`Revisits`].
const RECORD_WORDS: usize = 7;
/// Integers of [`Counts`] in the record, after those, if [`Resume::AHEAD`] is set.
const COUNTS_WORDS: usize = 2;

/// Counts of a scan at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Allocated bytes of all blocks that were read.
    pub examined_bytes: u64,
    /// Blocks that could not be read.
    pub errors: u64,
}

impl Counts {
    fn of(scan: &ScanPhys) -> Self {
        Counts { examined_bytes: scan.examined_bytes, errors: scan.errors }
    }

    fn put(self, scan: &mut ScanPhys) {
        debug_assert!(self.examined_bytes <= scan.examined_bytes, "{self:?} is ahead of {scan:?}");
        scan.examined_bytes = self.examined_bytes;
        scan.errors = self.errors;
    }
}

/// A scrub and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The on-disk record.
    pub scan: ScanPhys,
    /// The position before which everything was read.
    pub place: Position,
    /// The counts there, if blocks behind it were read, too. They are read again if the process ends.
    pub ahead: Option<Counts>,
    /// Seconds spent, over all imports.
    pub active_s: u64,
    /// Facts that decide whether a resilver can be continued: see [`super::resilver`].
    pub resume: Resume,
    /// Datasets that a resilver visits again.
    pub revisits: Revisits,
    /// Estimated remaining seconds; `None` before a rate is known.
    pub left_s: Option<u64>,
}

impl Progress {
    /// Whether the scrub or resilver is running or paused.
    pub fn is_open(&self) -> bool {
        matches!(self.scan.func, SCRUB | RESILVER) && self.scan.state == RUNNING
    }

    /// Whether both are states of one scrub or resilver. Another may have taken its place at any time.
    pub(crate) fn is_of(&self, other: &Progress) -> bool {
        let id = |one: &Progress| {
            let ScanPhys { func, min_txg, max_txg, start_time_s, .. } = one.scan;
            (func, min_txg, max_txg, start_time_s, one.resume.began)
        };
        id(self) == id(other)
    }

    /// Whether this is a resilver.
    pub fn is_resilver(&self) -> bool {
        self.scan.func == RESILVER
    }

    /// Whether blocks are left out that are older than a txg.
    pub fn is_partial(&self) -> bool {
        self.is_resilver() || self.scan.min_txg.0 > 0
    }

    /// Whether the scrub is paused.
    pub fn is_paused(&self) -> bool {
        self.is_open() && self.scan.flags & PAUSED != 0
    }

    /// Whether the scrub or resilver went over the whole pool.
    pub fn is_finished(&self) -> bool {
        matches!(self.scan.func, SCRUB | RESILVER) && self.scan.state == FINISHED
    }
}

impl Scrubs<'_> {
    /// The last scrub as the MOS records it, if there was one.
    ///
    /// # Errors
    /// Errors of reading the MOS.
    pub async fn progress(&self, rq: &Request) -> Result<Option<Progress>, PoolError> {
        let synced = self.engine.synced().state(rq).await?;
        scrub_in(rq, &Mos { set: synced.mos.clone() }).await
    }

    /// The last scrub with the counts that this process has beyond its record.
    ///
    /// # Errors
    /// Errors of reading the MOS.
    pub async fn live_progress(&self, rq: &Request) -> Result<Option<Progress>, PoolError> {
        Ok(self.progress(rq).await?.map(|recorded| self.live(&recorded).unwrap_or(recorded)))
    }

    /// A recorded scan with the counts that are in memory and not in its record; `None` if this process does not carry it out.
    fn live(&self, recorded: &Progress) -> Option<Progress> {
        let repaired_bytes = pass::repaired_bytes(self.engine);
        self.engine.scan.live(recorded, self.engine.machine.clock.now(), repaired_bytes, self.queued())
    }

    /// Counts of the scan that a MOS records, if it is in progress in this process.
    pub(crate) async fn live_counts(&self, rq: &Request, mos: &Mos) -> Result<Option<LiveScan>, PoolError> {
        let live = scrub_in(rq, mos).await?.and_then(|recorded| self.live(&recorded));
        Ok(live.map(|Progress { scan, active_s, left_s, .. }| LiveScan {
            examined: scan.examined_bytes,
            queued: self.queued().bytes,
            processed: scan.processed_bytes,
            errors: scan.errors,
            active_s,
            left_s,
        }))
    }

    /// Sums over the blocks that the scan has found and not read.
    fn queued(&self) -> FoundSums {
        self.engine.cache.blocks().scan_queue().map_or_else(|_| FoundSums::default(), |queue| queue.sums())
    }
}

/// The last scrub that a MOS records.
pub(crate) async fn scrub_in(rq: &Request, mos: &Mos) -> Result<Option<Progress>, PoolError> {
    let Some(words) = mos.named_words(rq, names::SCAN).await? else { return Ok(None) };
    let Some(scan) = ScanPhys::from_words(&words) else { return Ok(None) };
    let own = mos.named_words(rq, PLACE).await?.unwrap_or_default();
    let word = |i: usize| own.get(i).copied().unwrap_or(0);
    let place = Position { objset: ObjsetId(word(0)), object: word(1), block: word(3) };
    let resume = Resume { flags: word(4), examined_bytes: word(5), began: Txg(word(6)) };
    let is_ahead = resume.flags & Resume::AHEAD != 0;
    let ahead = is_ahead.then(|| Counts { examined_bytes: word(RECORD_WORDS), errors: word(RECORD_WORDS + 1) });
    let fixed = RECORD_WORDS + if is_ahead { COUNTS_WORDS } else { 0 };
    let revisits = Revisits::of_words(own.get(fixed..).unwrap_or_default());
    let active_s = word(2);
    let left_s = average_left_s(scan.to_examine_bytes, scan.examined_bytes, active_s);
    Ok(Some(Progress { scan, place, ahead, active_s, resume, revisits, left_s }))
}

impl Scrubs<'_> {
    /// Starts a scrub, or resumes a paused one, after a look at all devices ([`super::probe`]). [`Engine::scrub_on`] does the
    /// work.
    ///
    /// # Errors
    /// [`PoolError::Refused`] while a resilver is recorded as running, or a vdev is being rebuilt.
    pub async fn start(&self) -> Result<(), PoolError> {
        self.start_after(ScrubStart::Whole).await
    }

    /// As [`Scrubs::start`], of the whole pool or of the blocks that are newer than the last scrub. One that is running or
    /// paused goes on with its own range.
    ///
    /// # Errors
    /// As [`Scrubs::start`].
    pub async fn start_after(&self, from: ScrubStart) -> Result<(), PoolError> {
        let _lost = self.engine.vdevs().probe(|_| true).await?;
        self.engine.sync_task(move |syncing: &mut TxgSync<'_>| Box::pin(syncing.start_scrub(from))).await
    }

    /// Pauses the scrub until [`Engine::scrub_start`].
    ///
    /// # Errors
    /// [`PoolError::Refused`] if there is no active scrub.
    pub async fn pause(&self) -> Result<(), PoolError> {
        self.engine
            .sync_task(|syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    if let Some(of_errors) = ErrorScrubTask(syncing).open().await? {
                        return ErrorScrubTask(syncing).pause(of_errors).await;
                    }
                    let mut progress = syncing.open_scrub().await?;
                    if progress.is_resilver() {
                        return Err(PoolError::Refused { what: "a resilver cannot be paused".into() });
                    }
                    if progress.is_paused() {
                        let what = "scrub is paused; use 'zpool scrub' to resume scrub";
                        return Err(PoolError::Refused { what: what.into() });
                    }
                    progress.scan.flags |= PAUSED;
                    syncing.put_scrub(&progress).await?;
                    syncing.put_paused_at().await?;
                    syncing.engine.scan.interrupt();
                    syncing.engine.events.post(PoolEvent::ScrubPaused, |_| {});
                    Ok(())
                })
            })
            .await
    }

    /// Cancels the scrub.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if there is no active scrub.
    pub async fn stop(&self) -> Result<(), PoolError> {
        self.engine
            .sync_task(|syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    if ErrorScrubTask(syncing).open().await?.is_some() {
                        return ErrorScrubTask(syncing).end(CANCELED).await;
                    }
                    let progress = syncing.open_scrub().await?;
                    if progress.is_resilver() {
                        return Err(PoolError::Refused { what: "a resilver cannot be canceled".into() });
                    }
                    syncing.end_scrub(progress, CANCELED).await
                })
            })
            .await
    }

    /// Runs the scrub until it finishes, is paused or canceled, or `show` returns false. Returns the progress.
    ///
    /// `show` is called whenever the progress has been recorded in the MOS.
    ///
    /// # Errors
    /// Errors of reading or writing the MOS.
    pub async fn run(
        &self,
        pace: &ScanLimits,
        show: &mut (dyn FnMut(&Progress) -> bool + Send),
    ) -> Result<Option<Progress>, PoolError> {
        let rq = &Request::internal("scrub");
        let mut wanted = true;
        loop {
            let interrupts = self.engine.scan.interrupts();
            let Some(progress) = self.progress(rq).await? else { return Ok(None) };
            if progress.is_finished() && progress.is_resilver() {
                self.engine.spares().finish_replacing().await?;
            }
            if !progress.is_open() {
                self.forget_found().await;
            }
            if !wanted || !progress.is_open() || progress.is_paused() {
                return Ok(Some(progress));
            }
            let Some(progress) = self.ready(rq, progress).await? else { continue };
            wanted = self.run_pass(rq, pace, (progress, interrupts), show).await?;
        }
    }
}

impl TxgSync<'_> {
    pub(crate) async fn start_scrub(&mut self, from: ScrubStart) -> Result<(), PoolError> {
        let refused = |what: &str| PoolError::Refused { what: what.to_owned() };
        let rq = self.change.rq;
        let last = scrub_in(rq, &Mos { set: self.engine.mos.clone() }).await?;
        if last.as_ref().is_some_and(|p| p.is_open() && p.is_resilver()) {
            return Err(refused("currently resilvering"));
        }
        self.engine.rebuilds().check_none_running()?;
        if ErrorScrubTask(self).open().await?.is_some() {
            return Err(refused("an error scrub is in progress; use 'zpool scrub -s' to cancel it"));
        }
        if let Some(mut open) = last.as_ref().filter(|p| p.is_open()).cloned() {
            if open.is_paused() {
                self.engine.events.post(PoolEvent::ScrubResume, |_| {});
            }
            open.scan.flags &= !PAUSED;
            return self.put_scrub(&open).await;
        }
        if last.is_some_and(|p| p.scan.state == RUNNING) {
            return Err(refused("another kind of scan is running"));
        }
        let after = match from {
            ScrubStart::Whole => 0,
            ScrubStart::LastScrubbedTxg => {
                let word = zap::lookup_word(rq, &self.change.mos, DIRECTORY, names::LAST_SCRUBBED_TXG).await?;
                word.unwrap_or(0).min(self.change.txg().0)
            }
        };
        let progress = self.new_scan(SCRUB, (Txg(after), self.change.txg())).await?;
        // A device may lack blocks that this scrub does not read.
        self.core.scrub_began = Some(progress.scan.max_txg).filter(|_| !progress.is_partial());
        self.put_scrub(&progress).await?;
        self.engine.events.post(PoolEvent::ScrubStart, |_| {});
        Ok(())
    }

    /// A new scan of the blocks born in a range of txgs.
    pub(crate) async fn new_scan(&mut self, func: u64, (after, last): (Txg, Txg)) -> Result<Progress, PoolError> {
        debug_assert!(matches!(func, SCRUB | RESILVER) && after <= last);
        ErrorScrubTask(self).forget(func == SCRUB).await?;
        let blocks = self.engine.cache.blocks();
        let to_examine_bytes = Class::ALL.iter().map(|c| blocks.space(*c).allocated_bytes).sum();
        let new = NewZap::new(ObjectType::SCAN_QUEUE);
        let queue = zap::create(self.change.rq, &self.change.mos, self.change.tx, &new).await?;
        let scan = ScanPhys {
            func,
            state: RUNNING,
            queue,
            min_txg: after,
            max_txg: last,
            start_time_s: self.now_s(),
            to_examine_bytes,
            ddt_class_max: 3,
            ..ScanPhys::default()
        };
        blocks.tree().begin_scrub();
        self.core.returns_scanned = self.engine.returns.load(Ordering::SeqCst);
        self.engine.scan.unrecorded_ns.store(0, Ordering::SeqCst);
        let resume = Resume { began: self.change.txg(), ..Resume::default() };
        let text = format!("func={func} mintxg={} maxtxg={}", after.0, last.0);
        self.log_scan("scan setup", &text).await;
        Ok(Progress {
            scan,
            place: Position::default(),
            ahead: None,
            active_s: 0,
            resume,
            revisits: Revisits::default(),
            left_s: None,
        })
    }

    fn now_s(&self) -> u64 {
        self.engine.machine.clock.wall().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
    }

    pub(crate) async fn open_scrub(&self) -> Result<Progress, PoolError> {
        let none = PoolError::Refused { what: "there is no active scrub".into() };
        scrub_in(self.change.rq, &Mos { set: self.engine.mos.clone() }).await?.filter(Progress::is_open).ok_or(none)
    }

    pub(crate) async fn put_scrub(&self, progress: &Progress) -> Result<(), PoolError> {
        let rq = self.change.rq;
        let mos = &self.change.mos;
        let tx = self.change.tx;
        zap::put_words(rq, mos, tx, DIRECTORY, names::SCAN, &progress.scan.to_words()).await?;
        let Position { objset, object, block } = progress.place;
        let Resume { began, .. } = progress.resume;
        let flags = progress.resume.flags & !Resume::AHEAD | if progress.ahead.is_some() { Resume::AHEAD } else { 0 };
        let ahead = progress.ahead.map(|counts| [counts.examined_bytes, counts.errors]);
        let own: [u64; RECORD_WORDS] =
            [objset.0, object, progress.active_s, block, flags, progress.scan.examined_bytes, began.0];
        let own = [own.as_slice(), ahead.as_ref().map_or(&[], |counts| counts), &progress.revisits.to_words()].concat();
        Ok(zap::put_words(rq, mos, tx, DIRECTORY, PLACE, &own).await?)
    }

    async fn put_paused_at(&self) -> Result<(), PoolError> {
        let change = &self.change;
        Ok(zap::put_word(change.rq, &change.mos, change.tx, DIRECTORY, PAUSED_AT, self.now_s()).await?)
    }

    pub(crate) async fn end_scrub(&mut self, mut progress: Progress, state: u64) -> Result<(), PoolError> {
        let rq = self.change.rq;
        let tx = self.change.tx;
        let mos = self.change.mos.clone();
        if progress.scan.queue.0 != 0 {
            self.discard(progress.scan.queue, "the queue of a scrub").await;
        }
        progress.scan.queue = ObjectId(0);
        progress.scan.flags &= !PAUSED;
        progress.scan.state = state;
        progress.scan.end_time_s = self.now_s();
        let what = if state == FINISHED { "scan done" } else { "scan cancelled" };
        self.log_scan(what, &format!("errors={}", progress.scan.errors)).await;
        self.engine.scan.interrupt();
        if progress.is_resilver() {
            return ResilverTask(self).end(progress, state == FINISHED).await;
        }
        let whole = self.core.scrub_began == Some(progress.scan.max_txg) && progress.scan.errors == 0;
        if state == FINISHED && whole {
            let tree = self.engine.cache.blocks().tree();
            super::dtls::excise(&self.core.config.root, tree, progress.scan.max_txg)?;
        }
        if state == FINISHED {
            let txg = progress.scan.max_txg.0;
            zap::put_word(rq, &mos, tx, DIRECTORY, names::LAST_SCRUBBED_TXG, txg).await?;
        }
        if !progress.is_partial() {
            ErrorLogTask(self).rotate().await?;
        }
        self.put_scrub(&progress).await?;
        let event = if state == FINISHED { PoolEvent::ScrubFinish } else { PoolEvent::ScrubAbort };
        self.engine.events.post(event, |_| {});
        Ok(())
    }

    /// Appends to the pool's history. A scan does not depend on that: a failure is logged.
    async fn log_scan(&mut self, what: &str, text: &str) {
        if let Err(error) = history::log_pool(&mut self.change, what, text).await {
            tracing::warn!("the pool's history lacks '{what} {text}': {error}");
        }
    }

    /// Removes an unreferenced object; logs a failure and leaks the object.
    pub(crate) async fn discard(&self, id: ObjectId, what: &str) {
        if let Err(error) = self.change.discard(id).await {
            tracing::warn!("{what} is leaked: {error}");
        }
    }
}

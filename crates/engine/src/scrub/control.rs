//! State of the scan (scrub or resilver) of an open pool in this process, and requests to interrupt it.

use super::pass::ScanCycle;
use super::{Counts, Progress};
use futures_util::lock::Mutex as AsyncMutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;
use weir_blocks::FoundSums;
use weir_format::Txg;
use weir_machine::lock::{Mutex, order};
use weir_machine::{Clock, Nanos};
use weir_pool::walk::VisitPosition;

/// Maximum errors that are recorded at a time.
const MAX_ERRORS: usize = 10_000;

/// Shortest time of reads from which a rate is known.
const LEAST_READING: Duration = Duration::from_secs(1);

/// State of the scan of an open pool in this process.
#[derive(Debug, Default)]
pub(crate) struct ScanControl {
    /// The blocks that the scan has found and read since its recorded position. A pass holds the lock.
    pub cycle: AsyncMutex<Option<ScanCycle>>,
    /// Nanoseconds that the record, which has whole seconds, does not have yet; less than 0 if it has more.
    pub unrecorded_ns: AtomicI64,
    counts: Mutex<ScanCounts, { order::SCAN_COUNTS }>,
    interrupts: AtomicU64,
    is_closed: AtomicBool,
}

/// Counts that the record of the scan in the MOS does not have yet.
#[derive(Debug, Default)]
pub(super) struct Unrecorded {
    pub examined_bytes: u64,
    /// The blocks that could not be read, at most 10,000, with their births.
    pub errors: Vec<(VisitPosition, Txg)>,
    pub error_count: u64,
}

#[derive(Debug, Default)]
struct ScanCounts {
    unrecorded: Unrecorded,
    live: Option<LiveScan>,
}

/// A scan of which this process has begun a pass.
#[derive(Debug)]
struct LiveScan {
    /// With the counts as of the beginning in this process, and all later ones of `examined_bytes` and `errors`.
    progress: Progress,
    /// Bytes examined and bytes repaired at that time; the latter by the whole process.
    examined_before: u64,
    repaired_before: u64,
    /// Time of the scan before that time.
    active_before: Duration,
    /// Time of the passes since then that found blocks, and of those that read blocks.
    finding: Duration,
    reading: Duration,
    /// The blocks that the latter have read.
    read: FoundSums,
    /// Whether the walk has found all blocks.
    has_found_all: bool,
    /// Beginning of the pass in progress.
    pass_began: Option<Nanos>,
    /// Whether it reads the blocks that were found.
    is_reading: bool,
}

impl LiveScan {
    fn new(progress: &Progress, repaired_bytes: u64) -> Self {
        let mut progress = progress.clone();
        // What was read behind the recorded position counts again.
        progress.ahead.take().unwrap_or_else(|| Counts::of(&progress.scan)).put(&mut progress.scan);
        LiveScan {
            examined_before: progress.scan.examined_bytes,
            repaired_before: repaired_bytes,
            active_before: Duration::from_secs(progress.active_s),
            finding: Duration::ZERO,
            reading: Duration::ZERO,
            read: FoundSums::default(),
            has_found_all: false,
            pass_began: None,
            is_reading: false,
            progress,
        }
    }

    /// Counts the time of the pass in progress, if there is one, up to now.
    fn spend(&mut self, now: Nanos) {
        let Some(began) = self.pass_began else { return };
        self.pass_began = Some(now);
        let spent = if self.is_reading { &mut self.reading } else { &mut self.finding };
        *spent += now.since(began);
    }

    /// Estimated remaining seconds: the reads of the blocks in the queue, and the walk to all others and their reads, at the rates of this
    /// process. `None` before a rate is known.
    fn left_s(&self, queued: FoundSums) -> Option<u64> {
        if self.reading < LEAST_READING || self.read.cost == 0 {
            return None;
        }
        let per_cost = self.reading.as_secs_f64() / self.read.cost as f64;
        let mut left_s = queued.cost as f64 * per_cost;
        let scan = &self.progress.scan;
        let unfound = scan.to_examine_bytes.saturating_sub(scan.examined_bytes).saturating_sub(queued.bytes);
        if !self.has_found_all && unfound > 0 {
            let found = (scan.examined_bytes - self.examined_before).saturating_add(queued.bytes).max(1);
            let cost_of_byte = (self.read.cost + queued.cost) as f64 / (self.read.bytes + queued.bytes).max(1) as f64;
            left_s += unfound as f64 * (cost_of_byte * per_cost + self.finding.as_secs_f64() / found as f64);
        }
        Some(left_s.round() as u64)
    }
}

/// Counts the time of a pass until it is dropped.
pub(super) struct PassTime<'a> {
    control: &'a ScanControl,
    clock: Clock,
}

impl Drop for PassTime<'_> {
    fn drop(&mut self) {
        let now = self.clock.now();
        if let Some(live) = &mut self.control.counts.lock().live {
            live.spend(now);
            live.pass_began = None;
        }
    }
}

impl ScanControl {
    /// Begins a pass. `is_first`: at the recorded position, so that what was read behind it counts again. `repaired_bytes` are those of
    /// this process so far.
    pub(super) fn begin_pass(
        &self,
        clock: &Clock,
        progress: &Progress,
        is_first: bool,
        repaired_bytes: u64,
    ) -> PassTime<'_> {
        let counts = &mut *self.counts.lock();
        counts.unrecorded = Unrecorded::default();
        if is_first || !counts.live.as_ref().is_some_and(|live| live.progress.is_of(progress)) {
            counts.live = Some(LiveScan::new(progress, repaired_bytes));
        }
        if let Some(live) = &mut counts.live {
            debug_assert!(live.pass_began.is_none(), "two passes at the same time");
            live.pass_began = Some(clock.now());
            live.is_reading = false;
        }
        PassTime { control: self, clock: clock.clone() }
    }

    /// Notes whether the walk has found all blocks.
    pub(super) fn note_found(&self, has_found_all: bool) {
        if let Some(live) = &mut self.counts.lock().live {
            live.has_found_all = has_found_all;
        }
    }

    /// From now on, the pass in progress reads the blocks that were found.
    pub(super) fn begin_reading(&self, now: Nanos) {
        if let Some(live) = &mut self.counts.lock().live {
            live.spend(now);
            live.is_reading = true;
        }
    }

    /// Counts a block that is read, or that needs no read, with its [`ReadCosts`](weir_blocks::ReadCosts).
    pub(super) fn count_examined(&self, bytes: u64, cost: u64) {
        let counts = &mut *self.counts.lock();
        counts.unrecorded.examined_bytes += bytes;
        if let Some(live) = &mut counts.live {
            live.progress.scan.examined_bytes = live.progress.scan.examined_bytes.saturating_add(bytes);
            if live.is_reading {
                live.read.bytes = live.read.bytes.saturating_add(bytes);
                live.read.cost = live.read.cost.saturating_add(cost);
            }
        }
    }

    /// Counts a block that cannot be read.
    pub(super) fn count_error(&self, at: VisitPosition, birth: Txg) {
        let counts = &mut *self.counts.lock();
        counts.unrecorded.error_count += 1;
        if counts.unrecorded.errors.len() < MAX_ERRORS {
            counts.unrecorded.errors.push((at, birth));
        }
        if let Some(live) = &mut counts.live {
            live.progress.scan.errors = live.progress.scan.errors.saturating_add(1);
        }
    }

    /// Returns the counts of which the caller makes a record.
    pub(super) fn take_unrecorded(&self) -> Unrecorded {
        std::mem::take(&mut self.counts.lock().unrecorded)
    }

    /// Forgets the unrecorded counts of blocks that will be counted again.
    pub(super) fn forget_unrecorded(&self) {
        let counts = &mut *self.counts.lock();
        let Unrecorded { examined_bytes, error_count, .. } = std::mem::take(&mut counts.unrecorded);
        if let Some(live) = &mut counts.live {
            let scan = &mut live.progress.scan;
            debug_assert!(scan.examined_bytes >= examined_bytes && scan.errors >= error_count, "{scan:?}");
            scan.examined_bytes = scan.examined_bytes.saturating_sub(examined_bytes);
            scan.errors = scan.errors.saturating_sub(error_count);
        }
    }

    /// A recorded scan with the counts that this process has beyond its record; `None` if it is another one, or paused.
    /// `repaired_bytes` are those of this process so far, `queued` the blocks that were found and not read.
    pub(super) fn live(
        &self,
        recorded: &Progress,
        now: Nanos,
        repaired_bytes: u64,
        queued: FoundSums,
    ) -> Option<Progress> {
        let counts = &mut *self.counts.lock();
        let is_live =
            |live: &&mut LiveScan| recorded.is_open() && !recorded.is_paused() && live.progress.is_of(recorded);
        let live = counts.live.as_mut().filter(is_live)?;
        live.spend(now);
        let repaired = live.progress.scan.processed_bytes + repaired_bytes.saturating_sub(live.repaired_before);
        let mut shown = recorded.clone();
        let scan = &mut shown.scan;
        scan.examined_bytes = scan.examined_bytes.max(live.progress.scan.examined_bytes);
        scan.errors = scan.errors.max(live.progress.scan.errors);
        scan.processed_bytes = scan.processed_bytes.max(repaired);
        shown.active_s = shown.active_s.max((live.active_before + live.finding + live.reading).as_secs());
        shown.left_s = live.left_s(queued);
        Some(shown)
    }

    /// Makes the pass in progress end after the reads that it has begun.
    pub fn interrupt(&self) {
        self.interrupts.fetch_add(1, Ordering::SeqCst);
    }

    /// Number of interrupts so far.
    pub fn interrupts(&self) -> u64 {
        self.interrupts.load(Ordering::SeqCst)
    }

    /// Ends the scan in this process: the pool is being closed.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.interrupt();
    }

    /// Whether no pass may begin.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }
}

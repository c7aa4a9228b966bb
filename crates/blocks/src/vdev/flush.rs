//! Flushes of a leaf: which of its writes are stable.
//!
//! Completed writes are counted. A flush covers the writes completed before it was submitted, so a caller needs the first
//! flush whose count is not below the count at its call. A caller that arrives while a flush is in progress waits for that
//! one; all callers that wait then share the next. A flush is a shared future: if the caller that started it is dropped,
//! the next one takes the result.
//!
//! *A failed flush is permanent* unless the writes are repeated. The device may have dropped writes, and may report this
//! only once, so a later successful flush proves nothing. Therefore every later flush of this leaf fails, and the txgs of
//! all writes since the last successful flush, and of all later writes, are added to its DTL, until the pool is opened
//! again.
//!
//! *Repeating the writes.* A supervised pool keeps the bytes of the writes that no flush covers ([`super::kept`]). After a
//! failed flush that redundancy does not cover, the pool is suspended; once it is resumed, [`Flusher::repeated`] follows a
//! second write of all of them, in their order, and the next flush covers these. If it succeeds, the leaf has lost nothing.
//!
//! *One flush at a time.* While a flush is in progress no other is sent to the device, because the second might succeed
//! after the first one's error discarded the unwritten data. This includes labels ([`Flusher::flush_labels`]). Their flush
//! is sent even after another has failed, because a label depends on its own flush only.

use super::kept::{KeptWrite, KeptWrites};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_format::Txg;
use weir_machine::invariant;
use weir_machine::lock::{Mutex, MutexGuard, order};
use weir_machine::{Disk, DiskError};

/// First and last txg of an inclusive range.
pub(super) type TxgRange = (Txg, Txg);

#[derive(Clone)]
struct FlushInProgress {
    /// Number of completed writes that the flush covers.
    covers: u64,
    /// Txgs of these writes.
    txgs: Option<TxgRange>,
    answer: Shared<BoxFuture<'static, Result<(), DiskError>>>,
}

#[derive(Default)]
struct State {
    in_progress: Option<FlushInProgress>,
    /// Txgs of the writes that no flush covers yet.
    unstable: Option<TxgRange>,
    failed: Option<DiskError>,
    /// Txgs of the writes that a failed flush covered and that can still be repeated.
    repeatable: Option<TxgRange>,
    kept: KeptWrites,
}

fn joined(a: Option<TxgRange>, b: Option<TxgRange>) -> Option<TxgRange> {
    match (a, b) {
        (Some((first, last)), Some((from, to))) => Some((first.min(from), last.max(to))),
        (one, other) => one.or(other),
    }
}

/// Counts a leaf's completed and stable writes, and flushes its disk.
#[derive(Default)]
pub(super) struct Flusher {
    completed: AtomicU64,
    stable: AtomicU64,
    state: Mutex<State, { order::FLUSHER }>,
}

impl fmt::Debug for Flusher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Flusher({:?} of {:?} stable)", self.stable, self.completed)
    }
}

impl Flusher {
    /// Locks the state; the lock is held for a few instructions, never across an await.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Records a completed or failed write of a block of `txg`, or of a label. `write` is kept until a flush covers it.
    /// Returns whether so much is kept that the caller should flush.
    pub fn wrote(&self, txg: Option<Txg>, write: Option<KeptWrite>) -> bool {
        let mut state = self.state();
        state.unstable = joined(state.unstable, txg.map(|txg| (txg, txg)));
        let number = self.completed.fetch_add(1, Ordering::SeqCst) + 1;
        match write {
            // After a failed flush that cannot be repaired, nothing is kept.
            Some(write) if state.failed.is_none() || state.kept.is_complete() => state.kept.push(number, write),
            _ => false,
        }
    }

    /// Sets how many bytes of writes are kept until a flush covers them; 0 to keep none.
    pub fn set_kept_limit(&self, bytes: u64) {
        self.state().kept.set_limit(bytes);
    }

    /// The writes that no successful flush covers, in their order, if a flush failed and all of them are kept.
    pub fn to_repeat(&self) -> Option<Vec<KeptWrite>> {
        let state = self.state();
        state.failed.as_ref().and_then(|_| state.kept.all())
    }

    /// All writes of [`Flusher::to_repeat`] were written again: the next flush decides whether the leaf has lost any.
    pub fn repeated(&self) {
        let mut state = self.state();
        invariant!(state.failed.is_some(), "writes were repeated although no flush failed");
        state.failed = None;
        state.unstable = joined(state.unstable, state.repeatable);
    }

    /// Whether a flush failed and the writes that it covered can be repeated.
    pub fn can_repeat(&self) -> bool {
        let state = self.state();
        state.failed.is_some() && state.kept.is_complete()
    }

    /// Redundancy covers a failed flush: the writes are not repeated, and the failure is permanent. Returns
    /// whether a flush failed.
    pub fn settle(&self) -> bool {
        let mut state = self.state();
        if state.failed.is_none() {
            return false;
        }
        state.kept.give_up();
        state.repeatable = None;
        true
    }

    /// Whether a flush failed.
    pub fn has_failed(&self) -> bool {
        self.state().failed.is_some()
    }

    /// The device is out of service: it may have dropped the writes that no flush covers, whose txgs are passed to `lost`.
    pub fn give_up(&self, error: DiskError, lost: impl Fn(TxgRange, Option<&DiskError>)) {
        let unstable = {
            let mut state = self.state();
            state.failed.get_or_insert(error);
            state.kept.give_up();
            state.unstable.take()
        };
        unstable.into_iter().for_each(|txgs| lost(txgs, None));
    }

    /// The device is in service again. The writes that it may have dropped are in its DTL. A flush that the device itself
    /// failed stays failed.
    pub fn restart(&self) {
        let mut state = self.state();
        if !matches!(state.failed, Some(DiskError::Refused { .. })) {
            return;
        }
        state.failed = None;
        state.repeatable = None;
        let completed = self.completed.load(Ordering::SeqCst);
        state.kept.covered(completed);
        self.stable.store(completed, Ordering::SeqCst);
    }

    /// Whether every completed write is stable.
    pub fn is_clean(&self) -> bool {
        self.stable.load(Ordering::SeqCst) >= self.completed.load(Ordering::SeqCst)
    }

    /// Makes all writes that completed before the call stable; with `here`, the calling thread may block. On failure, calls
    /// `lost` with the txgs whose writes the device may have dropped and, the first time, with the device's error.
    pub async fn flush(
        &self,
        disk: &Arc<dyn Disk>,
        here: bool,
        lost: impl Fn(TxgRange, Option<&DiskError>),
    ) -> Result<(), DiskError> {
        let mine = self.completed.load(Ordering::SeqCst);
        loop {
            let FlushInProgress { covers, answer, .. } = {
                let mut state = self.state();
                if let Some(error) = state.failed.clone() {
                    let unstable = state.unstable.take();
                    state.repeatable = joined(state.repeatable, unstable);
                    drop(state);
                    unstable.into_iter().for_each(|txgs| lost(txgs, None));
                    return Err(error);
                }
                if self.stable.load(Ordering::SeqCst) >= mine {
                    return Ok(());
                }
                self.started(&mut state, disk, here)
            };
            let answer = answer.await;
            self.ended(covers, &answer, &lost);
            if covers >= mine {
                return answer;
            }
        }
    }

    /// Makes labels stable, which are not counted as writes. Flushes the device even if a flush has failed before. A
    /// failure affects all writes that the flush covers, as in [`Flusher::flush`].
    pub async fn flush_labels(
        &self,
        disk: &Arc<dyn Disk>,
        lost: impl Fn(TxgRange, Option<&DiskError>),
    ) -> Result<(), DiskError> {
        // The labels count as a write that no flush covers.
        let mine = self.completed.fetch_add(1, Ordering::SeqCst) + 1;
        loop {
            let FlushInProgress { covers, answer, .. } = self.started(&mut self.state(), disk, false);
            let answer = answer.await;
            self.ended(covers, &answer, &lost);
            if covers >= mine {
                return answer;
            }
        }
    }

    /// The flush in progress, or a new one.
    fn started(&self, state: &mut State, disk: &Arc<dyn Disk>, here: bool) -> FlushInProgress {
        if let Some(flush) = &state.in_progress {
            return flush.clone();
        }
        // The count is read before the flush is submitted, which the first poll does.
        let covers = self.completed.load(Ordering::SeqCst);
        let disk = disk.clone();
        let answer = async move { disk.flush_for(here).await }.boxed().shared();
        let flush = FlushInProgress { covers, txgs: state.unstable.take(), answer };
        state.in_progress = Some(flush.clone());
        flush
    }

    /// Records the result of a flush; only the first call for a flush has an effect.
    fn ended(&self, covers: u64, answer: &Result<(), DiskError>, lost: &impl Fn(TxgRange, Option<&DiskError>)) {
        let mut state = self.state();
        let Some(FlushInProgress { txgs, .. }) = state.in_progress.take_if(|u| u.covers == covers) else { return };
        match answer {
            Ok(()) => {
                self.stable.fetch_max(covers, Ordering::SeqCst);
                if state.failed.is_none() {
                    state.kept.covered(covers);
                    state.repeatable = None;
                }
            }
            Err(error) => {
                state.repeatable = joined(state.repeatable, txgs);
                let is_first = state.failed.replace(error.clone()).is_none();
                drop(state);
                txgs.into_iter().for_each(|txgs| lost(txgs, Some(error).filter(|_| is_first)));
            }
        }
    }
}

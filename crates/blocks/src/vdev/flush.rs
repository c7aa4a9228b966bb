//! Flushes of a leaf: which of its writes are stable.
//!
//! Completed writes are counted. A flush covers the writes completed before it was submitted, so a caller needs the first
//! flush whose count is not below the count at its call. A caller that arrives while a flush is in progress waits for that
//! one; all callers that wait then share the next. A flush is a shared future: if the caller that started it is dropped,
//! the next one takes the result.
//!
//! *A failed flush is permanent.* The device may have dropped writes, and may report this only once, so a later successful
//! flush proves nothing. Therefore every later flush of this leaf fails, and the txgs of all writes since the last
//! successful flush, and of all later writes, are added to its DTL, until the pool is opened again.
//!
//! *One flush at a time.* While a flush is in progress no other is sent to the device, because the second might succeed
//! after the first one's error discarded the unwritten data. This includes labels ([`Flusher::flush_labels`]). Their flush
//! is sent even after another has failed, because a label depends on its own flush only.

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_format::Txg;
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

    /// Records a completed or failed write of a block of `txg`, or of a label.
    pub fn wrote(&self, txg: Option<Txg>) {
        let mut state = self.state();
        if let Some(txg) = txg {
            let (first, last) = state.unstable.unwrap_or((txg, txg));
            state.unstable = Some((first.min(txg), last.max(txg)));
        }
        self.completed.fetch_add(1, Ordering::SeqCst);
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
        self.stable.store(self.completed.load(Ordering::SeqCst), Ordering::SeqCst);
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
            }
            Err(error) => {
                let is_first = state.failed.replace(error.clone()).is_none();
                drop(state);
                txgs.into_iter().for_each(|txgs| lost(txgs, Some(error).filter(|_| is_first)));
            }
        }
    }
}

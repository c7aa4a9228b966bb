//! When a leaf's writes are stable.
//!
//! Each completed write is counted. A flush covers the writes completed before it was submitted, so a caller is served by
//! the first flush whose count is not below the one that it found: who arrives while another is under way waits for that
//! one, and all who wait then share the next. A flush belongs to nobody: when the caller that started it leaves, the next
//! one takes its answer.
//!
//! *A flush that fails is not forgiven.* The device may have dropped what it could not keep, and say so once only: a
//! second flush that succeeds proves nothing. So from then on every flush of this leaf fails, and the txgs of what it took
//! since its last good flush, and of all that it takes later, go into its DTL, until the pool is opened anew.
//!
//! *One flush at a time.* While one is under way no other is sent to the device: the second might succeed because the first
//! one's error has cleared what the device still had to write. That holds for labels too ([`Flusher::flush_labels`]), whose
//! flush reaches the device even after another has failed: a label is made stable by its own flush alone.

use super::Tree;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_format::Txg;
use weir_machine::{Disk, DiskError, Op};

/// First and last of some transaction groups.
pub(super) type Groups = (Txg, Txg);

#[derive(Clone)]
struct UnderWay {
    /// The writes that it covers.
    covers: u64,
    /// … and their transaction groups.
    groups: Option<Groups>,
    answer: Shared<BoxFuture<'static, Result<(), DiskError>>>,
}

#[derive(Default)]
struct State {
    under_way: Option<UnderWay>,
    /// Transaction groups of the writes that no flush covers yet.
    unstable: Option<Groups>,
    failed: Option<DiskError>,
}

/// What of a leaf's writes is stable.
#[derive(Default)]
pub(super) struct Flusher {
    completed: AtomicU64,
    stable: AtomicU64,
    state: Mutex<State>,
}

impl fmt::Debug for Flusher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Flusher({:?} of {:?} stable)", self.stable, self.completed)
    }
}

impl Flusher {
    /// Held only for a few instructions, never while anything is waited for.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of a write that was answered, of a block of `txg`, or a label.
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

    /// Whether every completed write is stable.
    pub fn is_clean(&self) -> bool {
        self.stable.load(Ordering::SeqCst) >= self.completed.load(Ordering::SeqCst)
    }

    /// Makes stable what was completed before the call, with `here` perhaps on this thread. `lost` is told the transaction
    /// groups of which the device may have dropped writes, and, the first time, its answer.
    pub async fn flush(
        &self,
        disk: &Arc<dyn Disk>,
        here: bool,
        lost: impl Fn(Groups, Option<&DiskError>),
    ) -> Result<(), DiskError> {
        let mine = self.completed.load(Ordering::SeqCst);
        loop {
            let UnderWay { covers, answer, .. } = {
                let mut state = self.state();
                if let Some(error) = state.failed.clone() {
                    let since = state.unstable.take();
                    drop(state);
                    since.into_iter().for_each(|groups| lost(groups, None));
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

    /// Makes stable what was written past this tree before the call: labels. The device is asked although a flush has
    /// failed before. If it fails now, that counts for all writes that it covers, as in [`Flusher::flush`].
    pub async fn flush_labels(
        &self,
        disk: &Arc<dyn Disk>,
        lost: impl Fn(Groups, Option<&DiskError>),
    ) -> Result<(), DiskError> {
        // The labels count as a write that no flush covers.
        let mine = self.completed.fetch_add(1, Ordering::SeqCst) + 1;
        loop {
            let UnderWay { covers, answer, .. } = self.started(&mut self.state(), disk, false);
            let answer = answer.await;
            self.ended(covers, &answer, &lost);
            if covers >= mine {
                return answer;
            }
        }
    }

    /// The flush that is under way, or a new one.
    fn started(&self, state: &mut State, disk: &Arc<dyn Disk>, here: bool) -> UnderWay {
        if let Some(under_way) = &state.under_way {
            return under_way.clone();
        }
        // Counted before it is submitted, which its first poll does.
        let covers = self.completed.load(Ordering::SeqCst);
        let disk = disk.clone();
        let answer = async move { disk.flush_for(here).await }.boxed().shared();
        let under_way = UnderWay { covers, groups: state.unstable.take(), answer };
        state.under_way = Some(under_way.clone());
        under_way
    }

    /// Takes note of an answer; the first who waited for it does.
    fn ended(&self, covers: u64, answer: &Result<(), DiskError>, lost: &impl Fn(Groups, Option<&DiskError>)) {
        let mut state = self.state();
        let Some(UnderWay { groups, .. }) = state.under_way.take_if(|u| u.covers == covers) else { return };
        match answer {
            Ok(()) => {
                self.stable.fetch_max(covers, Ordering::SeqCst);
            }
            Err(error) => {
                let news = state.failed.replace(error.clone()).is_none();
                drop(state);
                groups.into_iter().for_each(|groups| lost(groups, Some(error).filter(|_| news)));
            }
        }
    }
}

impl Tree {
    /// Makes stable what was written to the disk of the leaf `guid` past this tree: labels. No other flush of the disk is
    /// under way meanwhile, and a failure counts for all blocks that the disk may have dropped with it. Works also when
    /// nothing may be written any more.
    ///
    /// # Errors
    /// The disk's answer; [`DiskError::Refused`] if there is no such leaf with a disk.
    pub async fn flush_labels(&self, guid: u64) -> Result<(), DiskError> {
        let absent = DiskError::Refused { op: Op::Flush, why: "the device is not a part of the pool" };
        let (vdev, leaf, disk) = self.disk_of(guid).map_err(|_| absent)?;
        leaf.writes().flusher.flush_labels(disk, leaf.lost(vdev.guid)).await
    }
}

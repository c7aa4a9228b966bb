//! Sync tasks: what administrators ask for, done by the syncer when a group closes.
//!
//! A task checks and then changes, alone and in syncing context; many may be in one group, in the order in which they
//! were asked for. Who asked is told when the group is on stable storage, or at once if the check failed.
//!
//! A task that finds in its checks that it cannot be done has changed nothing. If reading fails halfway, what it changed so
//! far must not become true: then the whole group fails, and the pool with it, as after any other error of the syncer.
//!
//! A task belongs to the group that was open when it was asked for, or a later one: what was changed before it is asked
//! for is in that group at the latest. In an earlier one, a snapshot would lack what its owner had already written.

use super::syncing::TxgSync;
use futures_channel::oneshot;
use futures_util::future::BoxFuture;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use weir_dsl::sync_tasks::DslError;
use weir_format::Txg;
use weir_pool::error::PoolError;

/// Tells who asked: called with what became of the group.
pub(crate) type Answer = Box<dyn FnOnce(Result<(), PoolError>) + Send>;
/// A task: does its work, and leaves what is to be told when it is stable (`None` if it was told already). An error ends the
/// group.
pub(crate) type Job = Box<
    dyn for<'a, 'b> FnOnce(&'a mut TxgSync<'b>) -> BoxFuture<'a, Result<Option<Answer>, PoolError>> + Send + 'static,
>;

/// What a task's own function is: check, then change.
pub trait Task<T>:
    for<'a, 'b> FnOnce(&'a mut TxgSync<'b>) -> BoxFuture<'a, Result<T, PoolError>> + Send + 'static
{
}

impl<T, F> Task<T> for F where
    F: for<'a, 'b> FnOnce(&'a mut TxgSync<'b>) -> BoxFuture<'a, Result<T, PoolError>> + Send + 'static
{
}

/// Whether the pool's own structures could not be read or changed, as opposed to a refusal.
fn is_fault(error: &PoolError) -> bool {
    matches!(error, PoolError::Object(_) | PoolError::Dsl(DslError::Object(_)))
}

/// Tasks that wait for the open group to close.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<(Txg, Job)>,
    closed: bool,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a task in for the group `open`, which is open, or a later one; `None` if no more are taken.
    pub fn push<T: Send + 'static>(
        &self,
        open: Txg,
        task: impl Task<T>,
    ) -> Option<oneshot::Receiver<Result<T, PoolError>>> {
        let (tell, told) = oneshot::channel();
        let job: Job = Box::new(move |syncing| {
            Box::pin(async move {
                let before = syncing.change.marks();
                // Who no longer waits needs no answer.
                match task(&mut *syncing).await {
                    Ok(value) => {
                        let answer: Answer = Box::new(move |stable| drop(tell.send(stable.map(|()| value))));
                        Ok(Some(answer))
                    }
                    Err(error) if is_fault(&error) && syncing.change.marks() != before => {
                        let _ = tell.send(Err(syncing.engine.suspended(&error)));
                        Err(error)
                    }
                    Err(error) => {
                        let _ = tell.send(Err(error));
                        Ok(None)
                    }
                }
            })
        });
        let mut state = self.state();
        if state.closed {
            return None;
        }
        state.jobs.push_back((open, job));
        Some(told)
    }

    /// Those that wait and may be done in group `txg`.
    pub fn take(&self, txg: Txg) -> Vec<Job> {
        let jobs = &mut self.state().jobs;
        let due = jobs.iter().take_while(|(group, _)| *group <= txg).count();
        jobs.drain(..due).map(|(_, job)| job).collect()
    }

    /// Takes no more. Those that wait are dropped, and with them who asked is told that nothing will come.
    pub fn close(&self) {
        let dropped = {
            let mut state = self.state();
            state.closed = true;
            std::mem::take(&mut state.jobs)
        };
        drop(dropped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing<'a>(_: &'a mut TxgSync<'_>) -> BoxFuture<'a, Result<(), PoolError>> {
        Box::pin(async { Ok(()) })
    }

    #[test]
    fn a_task_is_not_done_in_a_group_older_than_what_came_before_it() {
        let queue = Queue::default();
        let push = |open| queue.push(Txg(open), nothing).is_some();
        assert!(push(5) && push(6) && push(6) && push(7));
        // While group 4 syncs, what is in group 5 is not in its tree.
        assert_eq!([4, 5, 6].map(|txg| queue.take(Txg(txg)).len()), [0, 1, 2]);
        assert_eq!(queue.take(Txg(9)).len(), 1);
        queue.close();
        assert!(!push(10));
    }
}

//! Sync tasks: administrative changes that the syncer executes (`dsl_sync_task`).
//!
//! A task checks and then changes, alone and in syncing context. A txg may run many tasks, in the order of submission.
//! The submitter gets the result when the txg is on stable storage, or immediately if the check failed.
//!
//! A failed check changes nothing. If a read fails after the first change, the partial change must not be committed. The
//! txg then fails and the pool is suspended, as after any other error of the syncer.
//!
//! A task runs in the txg that was open at submission or a later one, because all earlier changes are in that txg at the
//! latest. In an earlier txg, a snapshot would lack data that its owner had already written.

use super::syncing::{Answer, TxgSync};
use futures_channel::oneshot;
use futures_util::future::BoxFuture;
use std::collections::VecDeque;
use weir_dsl::sync_tasks::DslError;
use weir_format::Txg;
use weir_machine::lock::{Mutex, MutexGuard, order};
use weir_pool::error::PoolError;

/// A queued task. Returns the completion to call when the txg is stable, or `None` if the submitter has its result.
///
/// An error fails the txg.
pub(crate) type Job = Box<
    dyn for<'a, 'b> FnOnce(&'a mut TxgSync<'b>) -> BoxFuture<'a, Result<Option<Answer>, PoolError>> + Send + 'static,
>;

/// The function of a task: check, then change.
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

/// Tasks that wait for their txg to sync.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State, { order::SYNC_TASKS }>,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<(Txg, Job)>,
    closed: bool,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Queues a task for the open txg `open` or a later one; `None` if the queue is closed.
    pub fn push<T: Send + 'static>(
        &self,
        open: Txg,
        task: impl Task<T>,
    ) -> Option<oneshot::Receiver<Result<T, PoolError>>> {
        let (sender, receiver) = oneshot::channel();
        let job: Job = Box::new(move |syncing| {
            Box::pin(async move {
                let before = syncing.change.marks();
                // Sending fails if the submitter no longer waits; that is no error.
                match task(&mut *syncing).await {
                    Ok(value) => {
                        let answer: Answer = Box::new(move |stable| drop(sender.send(stable.map(|()| value))));
                        Ok(Some(answer))
                    }
                    Err(error) if is_fault(&error) && syncing.change.marks() != before => {
                        let _ = sender.send(Err(syncing.engine.suspended(&error)));
                        Err(error)
                    }
                    Err(error) => {
                        let _ = sender.send(Err(error));
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
        Some(receiver)
    }

    /// Removes and returns the tasks that may run in `txg`.
    pub fn take(&self, txg: Txg) -> Vec<Job> {
        let jobs = &mut self.state().jobs;
        let due = jobs.iter().take_while(|(open, _)| *open <= txg).count();
        jobs.drain(..due).map(|(_, job)| job).collect()
    }

    /// Closes the queue and drops waiting tasks, whose submitters get an error.
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
    fn a_task_runs_in_its_open_txg_or_a_later_one() {
        let queue = Queue::default();
        let push = |open| queue.push(Txg(open), nothing).is_some();
        assert!(push(5) && push(6) && push(6) && push(7));
        // Txg 4 does not contain the changes of txg 5.
        assert_eq!([4, 5, 6].map(|txg| queue.take(Txg(txg)).len()), [0, 1, 2]);
        assert_eq!(queue.take(Txg(9)).len(), 1);
        queue.close();
        assert!(!push(10));
    }
}

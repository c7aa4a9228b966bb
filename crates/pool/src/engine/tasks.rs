//! Sync tasks: what administrators ask for, done by the syncer when a group closes.
//!
//! A task checks and then changes, alone and in syncing context; many may be in one group, in the order in which they
//! were asked for. Who asked is told when the group is on stable storage, or at once if the check failed.

use super::syncing::Syncing;
use crate::error::PoolError;
use futures_channel::oneshot;
use futures_util::future::BoxFuture;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Tells who asked: called with what became of the group.
pub(crate) type Answer = Box<dyn FnOnce(Result<(), PoolError>) + Send>;
/// A task: does its work, and leaves what is to be told when it is stable (`None` if it was told already).
pub(crate) type Job =
    Box<dyn for<'a, 'b> FnOnce(&'a mut Syncing<'b>) -> BoxFuture<'a, Option<Answer>> + Send + 'static>;

/// What a task's own function is: check, then change.
pub trait Task<T>:
    for<'a, 'b> FnOnce(&'a mut Syncing<'b>) -> BoxFuture<'a, Result<T, PoolError>> + Send + 'static
{
}

impl<T, F> Task<T> for F where
    F: for<'a, 'b> FnOnce(&'a mut Syncing<'b>) -> BoxFuture<'a, Result<T, PoolError>> + Send + 'static
{
}

/// Tasks that wait for the open group to close.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    closed: bool,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a task in; `None` if no more are taken.
    pub fn push<T: Send + 'static>(&self, task: impl Task<T>) -> Option<oneshot::Receiver<Result<T, PoolError>>> {
        let (tell, told) = oneshot::channel();
        let job: Job = Box::new(move |syncing| {
            Box::pin(async move {
                match task(syncing).await {
                    Ok(value) => {
                        let answer: Answer = Box::new(move |stable| {
                            // Who no longer waits needs no answer.
                            let _ = tell.send(stable.map(|()| value));
                        });
                        Some(answer)
                    }
                    Err(error) => {
                        let _ = tell.send(Err(error));
                        None
                    }
                }
            })
        });
        let mut state = self.state();
        if state.closed {
            return None;
        }
        state.jobs.push_back(job);
        Some(told)
    }

    /// All that wait.
    pub fn take(&self) -> VecDeque<Job> {
        std::mem::take(&mut self.state().jobs)
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

//! Tasks: futures that run on their own.
//!
//! An engine future never names its executor. It asks [`Tasks`] to run another one beside it and may await the
//! [`JoinHandle`]. Dropping the handle detaches the task: nothing is cancelled behind anybody's back.

use futures_channel::oneshot;
use futures_util::future::BoxFuture;
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use thiserror::Error;

/// What runs tasks: a thread pool in production, the seeded scheduler in the simulator.
pub trait Spawner: Send + Sync {
    /// Runs `task` to its end. `place` is where it was spawned: its name in reports.
    fn spawn(&self, place: &'static Location<'static>, task: BoxFuture<'static, ()>);
    /// Runs `task` on this thread up to where it has to wait, and then as [`Spawner::spawn`] does.
    fn start(&self, place: &'static Location<'static>, mut task: BoxFuture<'static, ()>) {
        // Whatever wakes it before it is spawned finds it polled again soon.
        if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.spawn(place, task);
        }
    }
    /// Drives `task` on the calling thread until it is done, and the spawned tasks with it.
    fn block_on(&self, task: Pin<&mut (dyn Future<Output = ()> + '_)>);
}

/// The task ended without a result: it panicked, or its machine was shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the task started at {place} ended without a result")]
pub struct TaskLost {
    /// Where it was spawned.
    pub place: &'static Location<'static>,
}

/// The result of a spawned task, to come.
pub struct JoinHandle<T> {
    place: &'static Location<'static>,
    result: oneshot::Receiver<T>,
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, TaskLost>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let place = self.place;
        Pin::new(&mut self.result).poll(cx).map(|r| r.map_err(|_| TaskLost { place }))
    }
}

/// The machine's task runner.
#[derive(Clone)]
pub struct Tasks(Arc<dyn Spawner>);

impl Tasks {
    /// Tasks run by `spawner`.
    pub fn new(spawner: Arc<dyn Spawner>) -> Self {
        Tasks(spawner)
    }

    /// Runs `future` beside the caller.
    #[track_caller]
    pub fn spawn<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        let place = Location::caller();
        let (done, result) = oneshot::channel();
        let task = async move {
            let value = future.await;
            // Nobody waits for a detached task's value.
            let _ = done.send(value);
        };
        self.0.spawn(place, Box::pin(task));
        JoinHandle { place, result }
    }

    /// Runs `future` on this thread up to where it has to wait, and from there on beside the caller. What never waits costs
    /// no change of tasks.
    #[track_caller]
    pub fn start(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.0.start(Location::caller(), Box::pin(future));
    }

    /// Drives `future` on this thread until it is done. Not to be called from inside a task.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let mut value = None;
        {
            let slot = &mut value;
            let task = pin!(async move { *slot = Some(future.await) });
            self.0.block_on(task);
        }
        value.expect("a spawner's block_on returns when the future is done")
    }
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tasks")
    }
}

//! Tasks: futures that run concurrently with their creator.
//!
//! Engine code does not name its executor. It spawns futures with [`Tasks`] and may await the [`JoinHandle`].
//! Dropping the handle detaches the task; it does not cancel it.

use futures_channel::oneshot;
use futures_util::future::BoxFuture;
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use thiserror::Error;

/// Runs tasks: a thread pool in production, the seeded scheduler in the simulator.
pub trait Spawner: Send + Sync {
    /// Runs `task` to completion. `location` is where it was spawned, for error messages.
    fn spawn(&self, location: &'static Location<'static>, task: BoxFuture<'static, ()>);
    /// Polls `task` once on this thread and, if it is pending, spawns it as [`Spawner::spawn`].
    fn start(&self, location: &'static Location<'static>, mut task: BoxFuture<'static, ()>) {
        // A wake-up before the spawn may be lost: the spawned task is polled again anyway.
        if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.spawn(location, task);
        }
    }
    /// Runs `work`, which may block for as long as a device does not answer, on a thread that runs no tasks; in the simulator at once.
    fn run_blocking(&self, work: Box<dyn FnOnce() + Send>) {
        work();
    }
    /// Runs `task` on the calling thread until it completes, and spawned tasks meanwhile.
    fn block_on(&self, task: Pin<&mut (dyn Future<Output = ()> + '_)>);
}

/// Error: the task ended without a result because it panicked or its machine was shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the task spawned at {location} ended without a result")]
pub struct TaskLost {
    /// Where it was spawned.
    pub location: &'static Location<'static>,
}

/// Handle to a spawned task; resolves to its result.
pub struct JoinHandle<T> {
    location: &'static Location<'static>,
    result: oneshot::Receiver<T>,
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, TaskLost>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let location = self.location;
        Pin::new(&mut self.result).poll(cx).map(|r| r.map_err(|_| TaskLost { location }))
    }
}

/// Handle to the machine's task executor.
#[derive(Clone)]
pub struct Tasks(Arc<dyn Spawner>);

impl Tasks {
    /// Tasks that `spawner` runs.
    pub fn new(spawner: Arc<dyn Spawner>) -> Self {
        Tasks(spawner)
    }

    /// Spawns `future`, which runs concurrently with the caller.
    #[track_caller]
    pub fn spawn<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        let location = Location::caller();
        let (done, result) = oneshot::channel();
        let task = async move {
            let value = future.await;
            // The task may be detached.
            let _ = done.send(value);
        };
        self.0.spawn(location, Box::pin(task));
        JoinHandle { location, result }
    }

    /// Polls `future` once on this thread and spawns it if it is pending. A future that completes immediately costs
    /// no task switch.
    #[track_caller]
    pub fn start(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.0.start(Location::caller(), Box::pin(future));
    }

    /// Runs `work` where it may block: system calls about a path do as long as its device does not answer.
    #[track_caller]
    pub fn run_blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let location = Location::caller();
        let (done, result) = oneshot::channel();
        self.0.run_blocking(Box::new(move || {
            // The handle may be dropped.
            let _ = done.send(work());
        }));
        JoinHandle { location, result }
    }

    /// Runs `future` on this thread until it completes. Must not be called from inside a task.
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

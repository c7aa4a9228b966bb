//! CPU-bound work, moved off the threads that run tasks.
//!
//! Moving work to another thread and back costs about 10 µs; a checksum over 128 KiB costs 3 µs. So small work runs
//! on the calling thread ([`Compute::run_sized`]), and on one processor all work does.

use futures_channel::oneshot;
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// A unit of CPU-bound work.
pub type Job = Box<dyn FnOnce() + Send + 'static>;

/// Runs jobs: a thread pool, or the simulator.
pub trait ComputePool: Send + Sync {
    /// Runs `job` asynchronously, or immediately on this thread.
    fn run(&self, job: Job);
    /// Maximum number of jobs that run concurrently.
    fn count(&self) -> usize;
}

/// Error: the work panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a computation ended without a result")]
pub struct ComputeLost;

/// Handle to the machine's pool for CPU-bound work.
#[derive(Clone)]
pub struct Compute(Arc<dyn ComputePool>);

impl Compute {
    /// Input size in bytes up to which work runs on the calling thread.
    pub const SMALL_BYTES: usize = 256 << 10;

    /// Compute on `pool`.
    pub fn new(pool: Arc<dyn ComputePool>) -> Self {
        Compute(pool)
    }

    /// Maximum number of jobs that run concurrently.
    pub fn cores(&self) -> usize {
        self.0.count()
    }

    /// Runs `work` on the pool and waits for its result.
    ///
    /// # Errors
    /// [`ComputeLost`] if `work` panics.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, ComputeLost> {
        if self.0.count() <= 1 {
            return Ok(work());
        }
        let (done, result) = oneshot::channel();
        self.0.run(Box::new(move || {
            // The waiting future may have been dropped.
            let _ = done.send(work());
        }));
        result.await.map_err(|_| ComputeLost)
    }

    /// Like [`Compute::run`], but on the calling thread if the input has at most [`Compute::SMALL_BYTES`].
    ///
    /// # Errors
    /// As for [`Compute::run`].
    pub async fn run_sized<T: Send + 'static>(
        &self,
        input_bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ComputeLost> {
        if input_bytes <= Self::SMALL_BYTES { Ok(work()) } else { self.run(work).await }
    }
}

impl fmt::Debug for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Compute({} cores)", self.cores())
    }
}

//! Work that keeps a processor busy, moved off the threads that drive tasks.
//!
//! A hop to another thread and back costs some 10 µs; a checksum over 128 KiB costs 3. So small work runs where it is
//! ([`Compute::run_sized`]), and on one processor all of it does.

use futures_channel::oneshot;
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// A piece of work.
pub type Job = Box<dyn FnOnce() + Send + 'static>;

/// What runs work: a crew of threads, or the simulator.
pub trait Cores: Send + Sync {
    /// Runs `job` some time soon, perhaps at once on this thread.
    fn run(&self, job: Job);
    /// How many jobs may run at once.
    fn count(&self) -> usize;
}

/// The work panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a computation ended without a result")]
pub struct ComputeLost;

/// The machine's processors.
#[derive(Clone)]
pub struct Compute(Arc<dyn Cores>);

impl Compute {
    /// Below so many bytes of input, work is not worth a hop to another thread.
    pub const SMALL_BYTES: usize = 256 << 10;

    /// Processors behind `cores`.
    pub fn new(cores: Arc<dyn Cores>) -> Self {
        Compute(cores)
    }

    /// How many jobs may run at once.
    pub fn cores(&self) -> usize {
        self.0.count()
    }

    /// Runs `work` away from the task threads and waits for its result.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, ComputeLost> {
        if self.0.count() <= 1 {
            return Ok(work());
        }
        let (done, result) = oneshot::channel();
        self.0.run(Box::new(move || {
            // The waiting future may be gone: then the result is not wanted.
            let _ = done.send(work());
        }));
        result.await.map_err(|_| ComputeLost)
    }

    /// As [`Compute::run`], but in place when the work goes over no more than [`Compute::SMALL_BYTES`].
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

//! The platform interface: disks, clock, tasks, compute, random bytes, and the context of a [`Request`].
//!
//! All crates above access the operating system through one [`Machine`]: a few small handles that are cheap to clone
//! and passed explicitly. It has two implementations:
//!
//! ```text
//!                    engine crates: plain `async fn`, no clock, thread or file of their own
//!                                   │
//!          Machine { clock, tasks, compute, entropy, disks: Arc<dyn Disks> ─► Arc<dyn Disk> ◄─ Io, … }
//!                    │                                             │
//!       weir-linux's Production                              weir-sim's SimWorld
//!       tokio · thread pools ·                            one thread · seeded choice of the next task ·
//!       io_uring or pread threads                            virtual time · disks with faults
//! ```
//!
//! The handles are concrete structs over trait objects, not type parameters: an engine generic over its runtime would
//! repeat the parameter in every signature, and the cost of a virtual call per disk operation is negligible.
//!
//! Invariants: an [`Io`] owns its memory and its completion callback, so dropping the future that waits for it is
//! safe; a successful read has filled its buffers; a disk opened [`Access::ReadOnly`] rejects changes.

pub mod accounts;
pub mod buf;
pub mod byte_semaphore;
pub mod compute;
pub mod disk;
pub mod entropy;
pub mod invariant;
pub mod lock;
pub mod map;
pub mod memory;
pub mod net;
pub mod request;
mod slab;
pub mod state_file;
pub mod tasks;
pub mod time;

pub use accounts::{Accounts, Client, Origin, RequestClient, RequestTotals};
pub use buf::{Buf, BufPool};
pub use byte_semaphore::{BytePermit, ByteSemaphore, compact};
pub use compute::{Compute, ComputeLost};
pub use disk::{Access, Bufs, Disk, DiskError, Disks, Done, Geometry, Io, Money, Op, Parts, StoreRequests, StoreSize};
pub use entropy::Entropy;
pub use map::{FixedMap, FixedSet};
pub use memory::Memory;
pub use request::{Operation, Priority, Protocol, Request, Source, Stage, Target};
pub use state_file::{MemoryStateFile, StateFile};
pub use tasks::{JoinHandle, TaskLost, Tasks};
pub use time::{Clock, Nanos};

use std::future::Future;
use std::sync::Arc;

/// Handles to the platform.
#[derive(Clone)]
pub struct Machine {
    /// Monotonic time, wall-clock time and timers.
    pub clock: Clock,
    /// Spawns tasks.
    pub tasks: Tasks,
    /// Runs CPU-bound work.
    pub compute: Compute,
    /// Random bytes.
    pub entropy: Entropy,
    /// Finds and opens disks.
    pub disks: Arc<dyn Disks>,
    /// Opens listening sockets.
    pub net: Arc<dyn net::Net>,
    /// Buffers for writes.
    pub write_buffers: BufPool,
    /// Buffers for reads.
    pub read_buffers: BufPool,
    /// Trims freed memory of the process.
    pub memory: Memory,
}

impl Machine {
    /// Runs `future` on this thread until it completes. Must not be called from inside a task.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.tasks.block_on(future)
    }
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Machine({:?}, {:?})", self.clock, self.compute)
    }
}

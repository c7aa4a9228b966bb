//! The seam to the metal: disks, clock, tasks, chance, and the [`Request`] that is carried down the house.
//!
//! Everything above sees the world through one [`Machine`], a handful of small handles that are cheap to clone and
//! passed explicitly. Two makers build it:
//!
//! ```text
//!                    engine crates: plain `async fn`, no clock, thread or file of their own
//!                                   │
//!          Machine { clock, tasks, compute, entropy, disks: Arc<dyn Disks> ─► Arc<dyn Disk> ◄─ Io, … }
//!                    │                                             │
//!       production::Production                               weir-sim's SimWorld
//!       tokio · crew of threads ·                            one thread · seeded choice of the next task ·
//!       io_uring or pread threads                            virtual time · disks with faults
//! ```
//!
//! The handles are concrete structs over a trait object, not type parameters: an engine that is generic over its
//! runtime spreads the parameter over every signature and gains nothing that a virtual call per disk operation costs.
//!
//! Invariants: an [`Io`] owns its memory and its completion, so that dropping the future that waits for it leaves
//! nothing dangling; a read that succeeds has filled its buffer; a disk opened [`Access::ReadOnly`] refuses to change.
//!
//! ```
//! use weir_machine::{Buf, Machine};
//!
//! let machine = Machine::production().expect("a task runtime");
//! let bytes = machine.block_on(async {
//!     let begun = machine.clock.now();
//!     let task = machine.tasks.spawn(async { Buf::copy_from(b"on another thread").into_bytes() });
//!     let bytes = task.await.expect("the task ran");
//!     assert!(machine.clock.now() >= begun);
//!     bytes
//! });
//! assert_eq!(&bytes[..], b"on another thread");
//! ```

pub mod buf;
pub mod compute;
pub mod crew;
pub mod disk;
pub mod entropy;
pub mod file_flags;
pub mod map;
pub mod memory;
pub mod production;
pub mod real;
pub mod request;
pub mod room;
mod slab;
pub mod tasks;
pub mod time;

pub use buf::{Buf, BufPool};
pub use compute::{Compute, ComputeLost};
pub use disk::{Access, Bufs, Disk, DiskError, Disks, Done, Geometry, Io, Op, Parts};
pub use entropy::Entropy;
pub use map::{FixedMap, FixedSet};
pub use memory::Memory;
pub use production::{BuildError, Production};
pub use real::{Backend, RealDisks};
pub use request::{Priority, Request, Served, Source};
pub use room::{Place, Room, lean};
pub use tasks::{JoinHandle, TaskLost, Tasks};
pub use time::{Clock, Nanos};

use std::future::Future;
use std::sync::Arc;

/// The world, as the engine sees it.
#[derive(Clone)]
pub struct Machine {
    /// Time.
    pub clock: Clock,
    /// Futures that run on their own.
    pub tasks: Tasks,
    /// Work that keeps a processor busy.
    pub compute: Compute,
    /// Chance.
    pub entropy: Entropy,
    /// Where disks come from.
    pub disks: Arc<dyn Disks>,
    /// Memory for what is to be written.
    pub buffers: BufPool,
    /// Memory for what is read.
    pub spares: BufPool,
    /// Memory that was freed.
    pub memory: Memory,
}

impl Machine {
    /// The real world with its usual settings ([`Production::from_env`]).
    pub fn production() -> Result<Machine, BuildError> {
        Production::from_env().build()
    }

    /// Drives `future` on this thread until it is done. Not to be called from inside a task.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.tasks.block_on(future)
    }
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Machine({:?}, {:?})", self.clock, self.compute)
    }
}

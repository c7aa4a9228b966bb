//! The simulator: the same engine on one thread, in virtual time, on disks that lie.
//!
//! The problem: the faults that lose data (a power cut between two writes, a flush that did nothing, a bit that
//! rotted) happen once in years, and never twice in the same way. Here they happen thousands of times a second, and
//! each of them again by its seed.
//!
//! ```text
//!    seed ─► SimWorld ─► Machine { clock, tasks, compute, entropy, disks, … }   what the engine sees
//!              │
//!              ├─ ready tasks: the seed picks who runs next
//!              ├─ events: none ready → virtual time jumps to the earliest (a timer, a disk's answer, a computation)
//!              ├─ nothing ready, no event → deadlock, with the places where the stuck tasks were spawned
//!              └─ trace: a running hash over every choice and every operation with its bytes
//!
//!    SimDisk = medium (pristine image + what was made durable) + cache (completed, not flushed) + faults (liftable)
//! ```
//!
//! Invariants: one seed gives one history, which [`doubled`] checks by running it twice and comparing the traces;
//! nothing here reads a clock, starts a thread or iterates in an order that depends on addresses. The simulator proves
//! itself on each run with a [`canary`]: a small commit protocol that survives every power cut, and its copy with one
//! flush left out, which must be caught.
//!
//! ```
//! use weir_machine::{Access, Buf};
//! use weir_sim::{SimError, SimWorld, Timing};
//!
//! let world = SimWorld::new(42);
//! let disk = world.add_disk("/sim/a", 1 << 20, 4096, Timing::SataSsd);
//! let machine = world.machine();
//! world.cut_after(3); // the write begins, ends, the flush begins: darkness
//! let run = world.run(async {
//!     let disk = machine.disks.open("/sim/a".as_ref(), Access::ReadWrite)?;
//!     disk.write(0, Buf::copy_from(&[7; 4096])).await?;
//!     disk.flush().await
//! });
//! assert!(matches!(run, Err(SimError::PowerCut { .. })));
//! assert!([0, 7].contains(&disk.peek(0, 4096)[0])); // not flushed: there or not, as the seed says
//! ```

pub mod canary;
pub mod disk;
pub mod fault;
pub mod medium;
pub mod readings;
pub mod record;
pub mod rng;
pub mod runs;
pub mod timing;
pub mod trace;
pub mod world;

pub use disk::{SimDisk, Stats};
pub use fault::{Fault, FaultId};
pub use readings::Readings;
pub use record::{Cut, Moment, Recording, Replay, Start};
pub use rng::Rng;
pub use runs::{Diverged, doubled};
pub use timing::Timing;
pub use world::{SimError, SimWorld};

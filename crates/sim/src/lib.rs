//! The simulator: runs the engine on one thread, in virtual time, on disks with injected faults.
//!
//! Problem: the faults that lose data (a power cut between two writes, an ignored flush, bit rot) are rare and not
//! reproducible on real hardware. The simulator injects thousands of them per second, and each is reproducible from
//! its seed.
//!
//! ```text
//!    seed ─► SimWorld ─► Machine { clock, tasks, compute, entropy, disks, … }   used by the engine
//!              │
//!              ├─ ready tasks: the seed picks the next one to run
//!              ├─ events: none ready → virtual time jumps to the earliest (a timer, a disk completion, a computation)
//!              ├─ nothing ready, no event → deadlock error, with the locations where the blocked tasks were spawned
//!              └─ trace: a running hash over every choice and every operation with its bytes
//!
//!    SimDisk = medium (pristine image + durable writes) + cache (completed, not flushed) + faults (removable)
//! ```
//!
//! Invariants: a seed determines the whole history, which [`run_twice`] checks by running it twice and comparing the
//! traces; the simulator reads no clock, starts no thread and iterates in no order that depends on addresses. Each
//! run also checks the simulator itself with a [`canary`]: a minimal commit protocol that survives every power cut,
//! and variants with one flush omitted, which must fail. [`net_canary`] is the same for the faults of the network.
//!
//! ```
//! use weir_machine::{Access, Buf};
//! use weir_sim::{SimError, SimWorld, Timing};
//!
//! let world = SimWorld::new(42);
//! let disk = world.add_disk("/sim/a", 1 << 20, 4096, Timing::SataSsd);
//! let machine = world.machine();
//! world.cut_after(3); // after submit of the write, its completion, and submit of the flush
//! let run = world.run(async {
//!     let disk = machine.disks.open("/sim/a".as_ref(), Access::ReadWrite)?;
//!     disk.write(0, Buf::copy_from(&[7; 4096])).await?;
//!     disk.flush().await
//! });
//! assert!(matches!(run, Err(SimError::PowerCut { .. })));
//! assert!([0, 7].contains(&disk.peek(0, 4096)[0])); // not flushed: survives or not, depending on the seed
//! ```

pub mod canary;
pub mod disk;
pub mod errors;
pub mod fault;
pub mod fuzz;
pub mod medium;
pub mod net;
pub mod net_canary;
pub mod read_set;
pub mod record;
pub mod rng;
pub mod runs;
pub mod scheduler;
pub mod timing;
pub mod trace;
pub mod world;

pub use disk::{SimDisk, Stats};
pub use errors::{ErrorCounts, ErrorPlan};
pub use fault::{Fault, FaultId};
pub use net::{Direction, SimStream};
pub use read_set::ReadSet;
pub use record::{Cut, Moment, Recording, Replay, Start};
pub use rng::Rng;
pub use runs::{Diverged, run_twice};
pub use scheduler::{SimError, Timer};
pub use timing::Timing;
pub use world::SimWorld;

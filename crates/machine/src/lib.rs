//! The seam to the metal: disks, clock, tasks, chance, and the [`Request`] that is carried down the house.
//!
//! Everything above sees the world through one [`Machine`]. Two makers build it: production (threads, io_uring) and
//! the simulator (one thread, virtual time, simulated disks).

pub mod buf;
pub mod disk;
pub mod request;

pub use buf::Buf;
pub use disk::{Access, Disk, DiskError, Disks, Geometry, Io, Op};
pub use request::{Priority, Request, Source};

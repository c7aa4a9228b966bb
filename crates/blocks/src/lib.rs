//! Blocks of a pool: virtual devices, redundancy, and the pipeline that turns a block pointer into proven bytes.
//!
//! ```text
//!  BlockPointer ─► Blocks::read ─► holes, embedded payloads: no device
//!                     │
//!                     ├─ each copy (DVA) in turn ─► gang? its header, then its pieces, all levels
//!                     │        └─ Tree ─► top-level vdev ─► mirror │ raidz │ draid │ indirect ─► leaf ─► queue ─► Disk
//!                     │                    (each tries its redundancy until the checksum holds)
//!                     └─ decrypt, prove the MAC ─► decompress ─► Bytes
//! ```
//!
//! *Who verifies.* The checksum goes down with the read: a vdev with redundancy calls it on each of its candidates (the
//! sides of a mirror, the reconstructions of a RAID-Z block) and returns the first that holds. So a wrong byte is found
//! at the only place that can do something about it, and nothing above ever sees unproven bytes.
//!
//! *Invariants.* Bytes that [`Blocks::read`] gives have passed the checksum of their pointer (or of the pieces of their
//! gang) and, if they are encrypted, their MAC. A forged pointer gives an error, never a panic, and costs at most the
//! format's limit of 16 MiB. An error concerns one block. No lock is held while a device is waited for.
//!
//! *What fails and how* is [`BlockError`]; which device gave wrong or no bytes is counted at the leaf
//! ([`vdev::Counters`]), and told to who watches ([`fault_observer`]).

pub mod alloc;
pub mod draid;
pub mod error;
#[doc(hidden)]
pub mod fault_injection;
pub mod fault_observer;
pub mod fuzz;
mod gang;
pub mod pipeline;
pub mod raidz;
pub mod vdev;
mod write;

pub use alloc::{Class, SpaceChange, SpaceFault, SpaceKind, SpaceSums};
pub use error::BlockError;
pub use fault_observer::{Bookmark, Fault, FaultObserver};
pub use pipeline::{Blocks, CacheClass, ReadOptions};
pub use vdev::{Dtl, MAX_BLOCK_BYTES, Tree, TreeError, VdevKind, VdevSpec};
pub use write::{NonMetaslabFrees, Prepared, ReadHold, Ready, Reserved, VdevGrid, WritableEncodings, WriteOptions};

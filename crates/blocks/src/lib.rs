//! Blocks of a pool: virtual devices, redundancy, and the pipeline that reads a block pointer and verifies its checksum.
//!
//! ```text
//!  BlockPointer ─► Blocks::read ─► holes, embedded payloads: no device
//!                     │
//!                     ├─ each copy (DVA) in turn ─► gang? its header, then its pieces, all levels
//!                     │        └─ Tree ─► top-level vdev ─► mirror │ raidz │ draid │ indirect ─► leaf ─► queue ─► Disk
//!                     │                    (each tries its redundancy until the checksum matches)
//!                     └─ decrypt, verify the MAC ─► decompress ─► Bytes
//! ```
//!
//! *Verification.* The checksum is passed down with the read. A vdev with redundancy applies it to each of its candidates
//! (the sides of a mirror, the reconstructions of a RAID-Z block) and returns the first that matches. So wrong bytes are
//! detected where redundancy can repair them, and no layer above receives unverified bytes.
//!
//! *Invariants.* Bytes that [`Blocks::read`] returns have passed the checksum of their pointer (or of the pieces of their
//! gang) and, if they are encrypted, their MAC. An invalid pointer causes an error, never a panic, and allocates at most
//! the format's limit of 16 MiB. An error concerns one block. No lock is held across an await.
//!
//! *Errors* are [`BlockError`]s. The leaf counts wrong bytes and device errors ([`vdev::Counters`]) and reports them to the
//! [`fault_observer`].

pub mod alloc;
pub mod cached_copy;
pub mod draid;
pub mod error;
#[doc(hidden)]
pub mod fault_injection;
pub mod fault_observer;
mod freeze;
pub mod fuzz;
mod gang;
pub mod pipeline;
pub mod raidz;
mod reads;
pub mod scan_queue;
pub mod suspension;
pub mod vdev;
mod write;

pub use alloc::{Class, SpaceChange, SpaceFault, SpaceKind, SpaceSums};
pub use error::BlockError;
pub use fault_observer::{Bookmark, Fault, FaultObserver};
pub use pipeline::{Blocks, CacheClass, ReadOptions};
pub use reads::ReadHold;
pub use scan_queue::{FoundBlock, FoundSums, ReadCosts, ScanQueue};
pub use suspension::{FailMode, Suspension};
pub use vdev::{Dtl, MAX_BLOCK_BYTES, Tree, TreeError, VdevKind, VdevSpec};
pub use write::trim;
pub use write::{
    Compressed, Evacuations, FreeParts, LogBlocks, MetaslabSource, Metaslabs, NonMetaslabFrees, Prepared, RawForm,
    Ready, Rebuild, RebuiltRange, ReflowLimits, Reflowed, ReflowingVdev, Reserved, SourceError, VdevGrid,
    WritableEncodings, WriteOptions,
};

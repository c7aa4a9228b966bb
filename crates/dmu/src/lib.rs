//! Object sets: dnodes and their blocks, ZAPs, system attributes, dirty data and transaction groups (OpenZFS's DMU).
//!
//! ```text
//!   zap  sa  space_map   name/value tables · attributes of files · space maps    (inside one object)
//!   live  txg            dirty data, transactions, the sync of an object set
//!   ObjectSet            number → dnode → blocks, holes, prefetch; its operations by concept:
//!     reader pointers      contents · block pointers       dnodes accounting   objects in use · space, quotas
//!     changes writes frees dnodes · blocks · removal       syncing             the sync of a txg
//!   tree_geometry        levels, numbers and ranges of the blocks in a tree (arithmetic)
//!   ─────────────        weir-cache: block pointer → verified bytes
//! ```
//!
//! [`ObjectSet`] holds what all operations share: the cache, the root, the cached dnodes, the overlay of unsynced
//! changes. The operations are methods of *handles*, one per concept (`set.reader().read(…)`,
//! `set.writes().write(…)`), which are references that are copied freely.
//!
//! Invariants: data read from disk is not trusted. The format bounds each structure (a block by 16 MiB, a tree by its
//! levels), and each walk ends because every step must make progress. No lock is held across an await.
//!
//! Failures: an [`ObjectError`] names object set, object, level and block, and affects only the location that it names.

pub mod accounting;
pub mod allocated_objects;
mod arrays;
pub mod cycle_guard;
pub mod ddt_brt_reader;
pub mod dedup;
mod dnode_cache;
mod dnode_diff;
mod dnodes;
pub mod error;
pub mod fuzz;
mod handles;
pub mod live;
pub mod mos_plan;
pub mod object;
pub mod object_set;
mod pointers;
mod prefetch;
pub mod read;
pub mod sa;
pub mod space_map;
pub mod tree_geometry;
pub mod txg;
pub mod zap;

pub use allocated_objects::{DataBlocks, Objects};
pub use arrays::write_words;
pub use cycle_guard::{CycleGuard, VisitedBlocks};
pub use error::{ErrorLocation, ObjectError};
pub use handles::{Accounting, Dnodes, Frees, ObjectChanges, Pointers, Reader, Syncing, Writes};
pub use live::{NewObject, Policy, SpaceReserve, TxAdmission};
pub use object::Object;
pub use object_set::{ObjectSet, Opening};
pub use read::{Seek, Segments};
pub use tree_geometry::TreeGeometry;
pub use txg::{Tx, TxgTracker};
pub use zap::Zap;

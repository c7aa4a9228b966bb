//! Object sets that can be changed.
//!
//! The problem: clients change objects all the time, the disks receive the changes a txg later, and all readers must
//! see the newest state at once. So a *live* object set has an overlay with the changes of each unsynced txg to each
//! object ([`dirty_object`]). A read looks into the overlay first, and into the synced tree for the rest. So all code
//! that reads an object set also works on a live one.
//!
//! ```text
//!   write, punch, create … ──► overlay of the open txg
//!                                   │ quiesced: the txg's changes are final
//!   sync ──► trees of the changed objects, bottom up ──► dnodes ──► header ──► the set's new root
//!                                   │
//!            the overlay of that txg is dropped in the same step in which the new root becomes current
//! ```
//!
//! Invariants:
//! - A reader sees one state of a block: it looks at the overlay under the lock of the object's shard, and at the synced dnode.
//!   If the object set was synced meanwhile (there is a counter), it reads again.
//! - A change is made under that lock, after all blocks that it needs were read; with the same condition.
//! - The lock is never held across an await.
//! - The changes of a closed txg are immutable and shared with the syncer.
//! - The overlay has whole blocks. A block that is changed in part is read first.
//!
//! The caller orders conflicting changes to one object (with a file's lock).
//!
//! Rejected: *buffers with states of their own*, one per block and txg (OpenZFS's dbufs), because the states and their
//! locks are most of its code. An ordered map per txg serves the same purpose, and the syncer receives it as a whole.

mod change;
mod clone_range;
pub(crate) mod dirty_object;
mod freeing;
mod nop_write;
mod object_allocator;
mod open;
pub(crate) mod overlay;
mod place;
mod pointer_births;
pub(crate) mod policy;
mod preflight;
mod raw;
mod scratch;
mod seek;
pub mod spans;
pub(crate) mod sync;
mod sync_result;
#[cfg(test)]
mod tests;
mod tree;
mod tx_admission;
mod usage;
mod write;

pub use crate::object::NewObject;
pub use clone_range::CloneSource;
pub use policy::{OwnerOf, Policy, RedundantMetadata};
pub use raw::{RawHeader, RawLayout};
#[doc(hidden)]
pub use scratch::scratch;
pub use sync_result::{Killed, ObjsetSyncResult};
pub use tx_admission::{DedupWriter, SpaceReserve, SpaceUsage, TxAdmission, UnlimitedTxAdmission};

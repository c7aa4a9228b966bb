//! Writes the meta object set (MOS), whose space maps record the space of its own blocks.
//!
//! The problem: writing a block of the MOS allocates space; the allocation is recorded in a space map; a space map is
//! an object of the MOS. OpenZFS syncs in several passes until nothing changes any more. Weir plans the MOS instead:
//!
//! ```text
//!   1 extend   all blocks that will change (data, blocks of dnodes, indirect blocks, the header) get new space,
//!              and their old space is freed                 ◄──────────────────────────────┐
//!   2 the pool appends allocations and frees to the space maps: more blocks change ────────┘ until there are no more
//!   3 write    each block once, bottom up, compressed into its space and padded
//! ```
//!
//! The size of most blocks is known. It is estimated for blocks whose contents are not final: pointers that are not
//! known yet, space maps that still grow. A block that does not fit gets more space, and steps 1 to 3 are repeated;
//! nothing that was written is current before the uberblock is.
//!
//! Invariants: nothing is allocated between a [`MosPlan::extend`] that found no new block and the end of
//! [`MosPlan::write`]; the old space of a block is freed exactly once; [`MosPlan::delta`] is the sum of the written
//! pointers.
//!
//! Rejected: *rewriting in place in later passes* (OpenZFS's `zfs_sync_pass_rewrite`), because it writes most blocks
//! several times, and needs frees that are deferred to a later txg.

mod plan;
mod tree;
mod write;

pub use plan::{MosDelta, MosPlan};
pub use write::MosRoot;

//! Result of syncing an object set.

use weir_format::{BlockPointer, ObjectId};

/// A block that the newest state does not need any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Killed {
    /// Pointer to the block.
    pub pointer: BlockPointer,
    /// Object that the block belonged to.
    pub object: ObjectId,
    /// Level above the data.
    pub level: u8,
    /// Number of the block on that level; [`crate::ErrorLocation::SPILL`] for a spill block.
    pub block: u64,
}

/// Result of syncing an object set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjsetSyncResult {
    /// Pointer to the new root.
    pub root: BlockPointer,
    /// Written blocks, including embedded ones.
    pub born: Vec<BlockPointer>,
    /// Freed blocks.
    pub killed: Vec<Killed>,
    /// Those of `born` that other pointers refer to, too: each is one more reference.
    pub cloned: Vec<BlockPointer>,
    /// Blocks that are in no tree and not accounted; the caller frees their space.
    pub orphans: Vec<BlockPointer>,
    /// Whether a dnode of more than one slot was written (`feature@large_dnode`).
    pub large_dnodes: bool,
    /// Whether a directory got its first long name (`feature@longname`).
    pub long_names: bool,
}

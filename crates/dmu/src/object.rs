//! One object, and the position of its blocks in the tree of indirect blocks.
//!
//! ```text
//!   dnode ── 1 to 3 pointers at level L-1 ──► indirect blocks of 2^(shift-7) pointers each ──► … ──► data blocks
//!
//!   block n of level 0 is below pointer  n >> k·(L-1)  of the dnode, where k = shift - 7;
//!   in an indirect block of level l it is below pointer  (n >> k·(l-1)) mod 2^k
//! ```
//!
//! A level adds k bits of block number. A malformed dnode can claim 12 levels, and so more than 64 bits: such shifts
//! return 0, as they would if block numbers had more bits.

use std::sync::{Arc, Mutex};
use weir_cache::prefetch::Prefetcher;
use weir_format::{BlockPointer, Dnode, ObjectId, ObjectType};

/// An object: its dnode, and the state of its prefetcher.
pub struct Object {
    /// Object number.
    pub id: ObjectId,
    /// Dnode of the object.
    pub dnode: Dnode,
    pub(crate) prefetcher: Arc<Mutex<Prefetcher>>,
    /// Whether the object has blocks that are not synced yet.
    pub(crate) dirty: bool,
}

impl Object {
    /// Creates an object with an idle prefetcher and no unsynced blocks.
    pub fn new(id: ObjectId, dnode: Dnode) -> Self {
        Object::changed(id, dnode, false)
    }

    /// Creates an object of a live set.
    pub(crate) fn changed(id: ObjectId, dnode: Dnode, dirty: bool) -> Self {
        Object { id, dnode, prefetcher: Arc::default(), dirty }
    }

    /// This object with another dnode, and with the same prefetcher.
    pub(crate) fn with_dnode(&self, dnode: Dnode, dirty: bool) -> Self {
        Object { id: self.id, dnode, prefetcher: self.prefetcher.clone(), dirty }
    }

    /// Size of a data block in bytes; at least 512, also if the dnode holds less.
    pub fn block_bytes(&self) -> u64 {
        u64::from(self.dnode.data_block_bytes).max(512)
    }

    /// Bytes from the start of the object to the end of its last block.
    pub fn span_bytes(&self) -> u64 {
        match self.is_empty() {
            true => 0,
            false => self.dnode.max_block_id.saturating_add(1).saturating_mul(self.block_bytes()),
        }
    }

    /// Whether no block was ever written.
    fn is_empty(&self) -> bool {
        !self.dirty && self.dnode.max_block_id == 0 && self.dnode.block_pointers.iter().all(BlockPointer::is_null)
    }

    /// log2 of the pointers in an indirect block.
    pub fn fan_out_shift(&self) -> u32 {
        u32::from(self.dnode.indirect_shift).saturating_sub(7)
    }

    /// log2 of the data blocks that one block of level `level` covers.
    pub(crate) fn cover(&self, level: u8) -> u32 {
        self.fan_out_shift() * u32::from(level)
    }

    /// The dnode's pointer above data block `block`; `None` beyond the last.
    pub(crate) fn top_pointer(&self, block: u64) -> Option<&BlockPointer> {
        let index = shift_right(block, self.cover(self.dnode.levels.saturating_sub(1)));
        self.dnode.block_pointers.get(usize::try_from(index).ok()?)
    }

    /// The index, in the indirect block of level `level` that covers data block `block`, of the pointer above it.
    pub(crate) fn index_in(&self, level: u8, block: u64) -> usize {
        let mask = (1u64 << self.fan_out_shift().min(32)) - 1;
        (shift_right(block, self.cover(level.saturating_sub(1))) & mask) as usize
    }
}

/// Description of a new object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewObject {
    /// Type of the contents.
    pub kind: ObjectType,
    /// Block size in bytes, a multiple of 512.
    pub block_bytes: u32,
    /// log2 of the size of an indirect block.
    pub indirect_shift: u8,
    /// Type of the bonus buffer's contents.
    pub bonus_type: ObjectType,
    /// Contents of the bonus buffer.
    pub bonus: Vec<u8>,
    /// Size of the dnode in slots of 512 bytes.
    pub slots: u8,
}

impl NewObject {
    /// An object without a bonus buffer, with indirect blocks of 128 KiB.
    pub fn new(kind: ObjectType, block_bytes: u32) -> Self {
        NewObject { kind, block_bytes, indirect_shift: 17, bonus_type: ObjectType::NONE, bonus: Vec::new(), slots: 1 }
    }

    /// With this bonus buffer.
    pub fn bonus(mut self, kind: ObjectType, bytes: Vec<u8>) -> Self {
        self.bonus_type = kind;
        self.bonus = bytes;
        self
    }
}

/// Right shift that returns 0 if the shift is 64 bits or more.
pub(crate) fn shift_right(n: u64, by: u32) -> u64 {
    n.checked_shr(by).unwrap_or(0)
}

/// Left shift that returns `u64::MAX` if set bits are shifted out.
pub(crate) fn shift_left(n: u64, by: u32) -> u64 {
    match n.checked_shl(by) {
        Some(shifted) if shifted >> by == n => shifted,
        _ if n == 0 => 0,
        _ => u64::MAX,
    }
}

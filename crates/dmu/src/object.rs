//! One object: its dnode, and the geometry of its tree of indirect blocks ([`crate::tree_geometry`]).

use crate::tree_geometry::TreeGeometry;
use std::sync::Arc;
use weir_cache::prefetch::Prefetcher;
use weir_format::{BlockPointer, Dnode, ObjectId, ObjectType};
use weir_machine::lock::{Mutex, order};

/// An object: its dnode, and the state of its prefetcher.
pub struct Object {
    /// Object number.
    pub id: ObjectId,
    /// Dnode of the object.
    pub dnode: Dnode,
    pub(crate) prefetcher: Arc<Mutex<Prefetcher, { order::PREFETCHER }>>,
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

    /// Geometry of the object's tree.
    pub fn tree(&self) -> TreeGeometry {
        TreeGeometry::of(&self.dnode)
    }

    /// Level of the dnode's pointers.
    pub fn top_level(&self) -> u8 {
        self.dnode.levels.saturating_sub(1)
    }

    /// The dnode's pointer above data block `block`; `None` beyond the last.
    pub(crate) fn top_pointer(&self, block: u64) -> Option<&BlockPointer> {
        let index = self.tree().number_at(self.top_level(), block);
        self.dnode.block_pointers.get(usize::try_from(index).ok()?)
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
    /// Number of pointers in the dnode; 0: as the bonus buffer leaves space for.
    pub pointers: u8,
}

impl NewObject {
    /// An object without a bonus buffer, with indirect blocks of 128 KiB.
    pub fn new(kind: ObjectType, block_bytes: u32) -> Self {
        NewObject {
            kind,
            block_bytes,
            indirect_shift: 17,
            bonus_type: ObjectType::NONE,
            bonus: Vec::new(),
            slots: 1,
            pointers: 0,
        }
    }

    /// With this bonus buffer.
    pub fn bonus(mut self, kind: ObjectType, bytes: Vec<u8>) -> Self {
        self.bonus_type = kind;
        self.bonus = bytes;
        self
    }
}

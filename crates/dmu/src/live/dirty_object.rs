//! One object with the changes of each unsynced txg.
//!
//! ```text
//!   newest txg ─► blocks? freed? removed?      the newest txg that knows a block is decisive
//!   older txg  ─► blocks? freed? removed?
//!   base       ─► the synced tree              for blocks that no txg changed
//! ```
//!
//! The [`DirtyRecords`] of a txg are whole blocks, spans of freed blocks, and an image of the dnode's own fields. They
//! are final when the txg is closed.

use super::spans::Spans;
use crate::object::Object;
use bytes::Bytes;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use weir_blocks::{Compressed, RawForm};
use weir_format::{BlockPointer, Dnode, ObjectId, ObjectType, Txg};
use weir_machine::Origin;

/// A whole block, and the origin of its newest bytes.
#[derive(Clone, Debug)]
pub(crate) struct DirtyBlock {
    pub bytes: Bytes,
    pub writer: Origin,
    /// Form in which the bytes are stored, if they came compressed.
    pub compressed: Option<Compressed>,
    /// Form of a block that came encrypted: the bytes are the stored ones.
    pub raw: Option<RawForm>,
}

impl DirtyBlock {
    /// A block that the pool itself writes.
    pub fn of_pool(bytes: Bytes) -> Self {
        DirtyBlock::new(bytes, Origin::POOL)
    }

    /// A block that is compressed when it is written.
    pub fn new(bytes: Bytes, writer: Origin) -> Self {
        DirtyBlock { bytes, writer, compressed: None, raw: None }
    }
}

/// Changes of one txg to one object.
#[derive(Clone, Debug, Default)]
pub(crate) struct DirtyRecords {
    /// Whether the object that existed before this txg is gone, so that its whole tree is freed first.
    pub removed: bool,
    /// The object's own fields at the end of the txg; `None` if it does not exist then.
    pub image: Option<Box<Dnode>>,
    /// Blocks freed, before `blocks` were written.
    pub freed: Spans,
    /// Blocks written, whole.
    pub blocks: BTreeMap<u64, DirtyBlock>,
    /// Blocks that refer to a block on disk instead of being written. None of them is in `blocks`.
    pub shared: BTreeMap<u64, BlockPointer>,
    /// Blocks of `blocks` that the intent log wrote to their final place.
    pub placed: BTreeMap<u64, BlockPointer>,
    /// Blocks in their final place that were changed again; the sync frees them.
    pub orphans: Vec<BlockPointer>,
    /// Change of the spill block: written, or removed.
    pub spill: Option<Option<Bytes>>,
    /// Form of a spill block that came encrypted: its bytes are the stored ones.
    pub raw_spill: Option<RawForm>,
    /// Minimum number of levels of the tree.
    pub levels: u8,
}

impl DirtyRecords {
    /// Blocks of this range were replaced or freed: forgets their final places.
    pub fn displace(&mut self, range: Range<u64>) {
        let gone: Vec<u64> = self.placed.range(range).map(|(n, _)| *n).collect();
        self.orphans.extend(gone.iter().filter_map(|n| self.placed.remove(n)));
    }

    /// Whether the txg wrote blocks.
    pub fn writes(&self) -> bool {
        !self.blocks.is_empty() || !self.shared.is_empty()
    }
}

/// Content of the overlay for a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BlockLookup {
    /// The block's bytes.
    Data(Bytes),
    /// A block on disk that other pointers refer to, too.
    Shared(BlockPointer),
    /// A hole.
    Hole,
    /// Nothing: the synced tree is decisive.
    Synced,
}

/// An object with unsynced changes.
#[derive(Clone)]
pub(crate) struct DirtyObject {
    /// State in the synced tree; `None` if it does not exist there.
    pub base: Option<Arc<Object>>,
    /// Newest state; `None` if it was removed.
    pub current: Option<Arc<Object>>,
    /// Changes of each unsynced txg, oldest first. Shared with the syncer once the txg is closed.
    pub txgs: BTreeMap<u64, Arc<DirtyRecords>>,
    /// Slots of the dnode when it was removed; 0 if it was not.
    pub removed_slots: usize,
    /// Number of changes.
    pub edits: u64,
}

impl DirtyObject {
    pub fn new(base: Option<Arc<Object>>) -> Self {
        DirtyObject { current: base.clone(), base, txgs: BTreeMap::new(), removed_slots: 0, edits: 0 }
    }

    /// Returns the changes of the open txg.
    pub fn changes(&mut self, txg: Txg) -> &mut DirtyRecords {
        self.edits += 1;
        let changes = self.txgs.entry(txg.0).or_insert_with(|| {
            let image = self.current.as_ref().map(|o| Box::new(o.dnode.clone()));
            Arc::new(DirtyRecords { image, ..DirtyRecords::default() })
        });
        Arc::make_mut(changes)
    }

    /// Takes block `n` out of the open txg's changes; the caller changes it and puts it back.
    pub fn take_open(&mut self, txg: Txg, n: u64) -> Option<Bytes> {
        Arc::make_mut(self.txgs.get_mut(&txg.0)?).blocks.remove(&n).map(|block| block.bytes)
    }

    /// Looks up data block `n`.
    pub fn lookup(&self, n: u64) -> BlockLookup {
        for changes in self.txgs.values().rev() {
            if let Some(block) = changes.blocks.get(&n) {
                return BlockLookup::Data(block.bytes.clone());
            }
            if let Some(pointer) = changes.shared.get(&n) {
                return BlockLookup::Shared(*pointer);
            }
            if changes.removed || changes.freed.contains(n) {
                return BlockLookup::Hole;
            }
        }
        match &self.base {
            Some(base) if n <= base.dnode.max_block_id => BlockLookup::Synced,
            _ => BlockLookup::Hole,
        }
    }

    /// Returns the spill block of the newest change; `None` if no unsynced txg changed it.
    pub fn lookup_spill(&self) -> Option<Option<Bytes>> {
        for changes in self.txgs.values().rev() {
            if let Some(spill) = &changes.spill {
                return Some(spill.clone());
            }
            if changes.removed {
                return Some(None);
            }
        }
        if self.base.is_some() { None } else { Some(None) }
    }

    /// Whether no unsynced change hides the synced tree.
    fn uses_base(&self) -> bool {
        !self.txgs.values().any(|c| c.removed)
    }

    /// Sets the dnode's fields to those of `image`; the pointers are those of the synced tree.
    pub fn set_image(&mut self, id: ObjectId, txg: Txg, mut image: Dnode) {
        let changes = self.changes(txg);
        changes.image = Some(Box::new(image.clone()));
        self.set_tree(&mut image);
        let dirty = self.txgs.values().any(|c| c.writes());
        self.current = Some(Arc::new(match &self.current {
            Some(current) => current.with_dnode(image, dirty),
            None => Object::changed(id, image, dirty),
        }));
    }

    /// Gives `image` the pointers of the synced tree.
    fn set_tree(&self, image: &mut Dnode) {
        match &self.base {
            Some(base) if self.uses_base() => {
                image.levels = base.dnode.levels;
                image.used = base.dnode.used;
                image.block_pointers = base.dnode.block_pointers.clone();
                image.indirect_shift = base.dnode.indirect_shift;
                // A removed spill block takes no space in the dnode, although the synced dnode still has it.
                let taken_away = self.lookup_spill() == Some(None);
                set_spill_pointer(image, base.dnode.spill.filter(|_| !taken_away));
            }
            _ => {
                image.levels = image.levels.max(1);
                image.used = 0;
                image.block_pointers.iter_mut().for_each(|p| *p = BlockPointer::HOLE);
                set_spill_pointer(image, None);
            }
        }
    }

    /// Marks the object as removed from `txg` on.
    pub fn remove(&mut self, txg: Txg) {
        let changes = self.changes(txg);
        changes.displace(0..u64::MAX);
        let orphans = std::mem::take(&mut changes.orphans);
        *changes = DirtyRecords { removed: true, orphans, ..DirtyRecords::default() };
        self.removed_slots = self.current.take().map_or(0, |current| current.dnode.slots());
    }

    /// `txg` is synced, and the tree is now `base`. Returns true if nothing unsynced is left.
    pub fn synced(&mut self, txg: Txg, base: Option<Arc<Object>>) -> bool {
        self.txgs.remove(&txg.0);
        self.base = base;
        if self.txgs.is_empty() {
            return true;
        }
        if let Some(current) = self.current.take() {
            let mut image = current.dnode.clone();
            self.set_tree(&mut image);
            let dirty = self.txgs.values().any(|c| c.writes());
            self.current = Some(Arc::new(current.with_dnode(image, dirty)));
        }
        false
    }
}

/// Size of the bonus buffer, in bytes, of a dnode with this number of slots and pointers.
pub(crate) fn bonus_capacity(slots: usize, pointers: usize, spill: bool) -> usize {
    (slots * Dnode::SLOT).saturating_sub(64 + (pointers + usize::from(spill)) * BlockPointer::SIZE)
}

/// Sets the spill pointer, and so the size of the bonus buffer.
pub(crate) fn set_spill_pointer(dnode: &mut Dnode, spill: Option<BlockPointer>) {
    use weir_format::dnode::DnodeFlags;
    dnode.spill = spill;
    let bit = DnodeFlags::SPILL_BLKPTR;
    dnode.flags = DnodeFlags(if spill.is_some() { dnode.flags.0 | bit } else { dnode.flags.0 & !bit });
    let capacity = bonus_capacity(dnode.slots(), dnode.block_pointers.len(), spill.is_some());
    dnode.bonus.resize(capacity, 0);
}

/// Creates the dnode of an object that has no blocks yet.
pub(crate) fn fresh(new: &crate::object::NewObject) -> Dnode {
    use weir_format::Endian;
    use weir_format::dnode::DnodeFlags;
    let slots = usize::from(new.slots.max(1));
    // `dnode_allocate`: attributes may grow, so their dnodes have one pointer; others have as many as fit.
    let room = (slots * Dnode::SLOT - 64).saturating_sub(new.bonus.len()) / BlockPointer::SIZE;
    let pointers = match new.pointers {
        0 if new.bonus_type == ObjectType::SA => 1,
        0 => room.clamp(1, 3),
        given => usize::from(given).clamp(1, 3),
    };
    let mut bonus: SmallVec<[u8; 320]> = SmallVec::from_slice(&new.bonus);
    bonus.resize(bonus_capacity(slots, pointers, false), 0);
    Dnode {
        object_type: new.kind,
        indirect_shift: new.indirect_shift,
        levels: 1,
        bonus_type: new.bonus_type,
        checksum: 0,
        compression: 0,
        flags: DnodeFlags(DnodeFlags::USED_BYTES),
        data_block_bytes: new.block_bytes.max(512).next_multiple_of(512),
        bonus_len: new.bonus.len().min(bonus_capacity(slots, pointers, false)) as u16,
        extra_slots: (slots - 1) as u8,
        max_block_id: 0,
        used: 0,
        block_pointers: SmallVec::from_elem(BlockPointer::HOLE, pointers),
        bonus,
        spill: None,
        endian: Endian::Little,
    }
}

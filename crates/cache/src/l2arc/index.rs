//! The index of the blocks that have copies on cache devices. Pure.
//!
//! A block is identified by the address of its first copy and its birth txg. A block never changes once written, and an
//! address that is freed and used again has another birth, so an old entry never answers for a new block.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use weir_format::BlockPointer;
use weir_format::l2arc::L2Entry;
use weir_machine::{FixedMap, invariant};

/// Memory of an entry in both tables, in bytes, with the unused parts of their nodes.
pub const ENTRY_BYTES: u64 = 160;

/// Identity of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockId {
    /// Byte offset of the first copy on its top-level vdev.
    pub offset_bytes: u64,
    /// Physical birth txg.
    pub birth: u64,
    /// Top-level vdev of the first copy.
    pub vdev: u32,
}

impl BlockId {
    /// The identity of a block that is neither embedded nor a hole.
    pub fn of(pointer: &BlockPointer) -> Self {
        let dva = pointer.dva(0);
        BlockId { offset_bytes: dva.offset_bytes, birth: pointer.physical_birth().0, vdev: dva.vdev }
    }

    /// The identity of a block in a log.
    pub fn of_entry(entry: &L2Entry) -> Self {
        BlockId { offset_bytes: entry.dva.offset_bytes, birth: entry.birth.0, vdev: entry.dva.vdev }
    }
}

/// A copy of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyPlace {
    /// Number of the cache device.
    pub device: u32,
    /// Byte offset on the device.
    pub offset_bytes: u64,
    /// Sizes and compression, as in an entry of a log ([`L2Entry::prop`]).
    pub prop: u64,
}

/// Bits of [`CopyPlace::prop`] that say how the block is stored: logical and physical size, and compression.
const FORM: u64 = 0x7f_ffff_ffff;

impl CopyPlace {
    /// Physical size in bytes.
    pub fn psize_bytes(&self) -> u64 {
        ((self.prop >> 16 & 0xffff) + 1) << 9
    }

    /// Logical size in bytes.
    pub fn lsize_bytes(&self) -> u64 {
        ((self.prop & 0xffff) + 1) << 9
    }

    /// Whether sizes and compression are those of a pointer.
    pub fn agrees_with(&self, pointer: &BlockPointer) -> bool {
        // A pointer that is not embedded has them at the same bits.
        pointer.words()[6] & FORM == self.prop & FORM
    }
}

/// Bytes of the copies on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopySums {
    /// Number of copies.
    pub count: u64,
    /// Bytes on the device, without padding.
    pub psize_bytes: u64,
    /// Bytes of the blocks, uncompressed.
    pub lsize_bytes: u64,
}

impl CopySums {
    /// The sums without a copy; `None` if it is not among them.
    fn without(self, place: &CopyPlace) -> Option<CopySums> {
        Some(CopySums {
            count: self.count.checked_sub(1)?,
            psize_bytes: self.psize_bytes.checked_sub(place.psize_bytes())?,
            lsize_bytes: self.lsize_bytes.checked_sub(place.lsize_bytes())?,
        })
    }
}

/// The index.
#[derive(Debug, Default)]
pub struct Index {
    copies: FixedMap<BlockId, CopyPlace>,
    by_place: BTreeMap<(u32, u64), BlockId>,
    sums: BTreeMap<u32, CopySums>,
}

impl Index {
    /// Memory of the index in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.copies.len() as u64 * ENTRY_BYTES
    }

    /// The copies on a device.
    pub fn sums(&self, device: u32) -> CopySums {
        self.sums.get(&device).copied().unwrap_or_default()
    }

    /// The copy of a block.
    pub fn get(&self, id: &BlockId) -> Option<CopyPlace> {
        self.copies.get(id).copied()
    }

    /// Whether the block has a copy.
    pub fn contains(&self, id: &BlockId) -> bool {
        self.copies.contains_key(id)
    }

    /// Adds a copy; an older one of the same block, and another block at that place, are forgotten.
    pub fn insert(&mut self, id: BlockId, place: CopyPlace) {
        self.remove(&id);
        if let Some(former) = self.by_place.insert((place.device, place.offset_bytes), id) {
            self.forget(&former);
        }
        let sums = self.sums.entry(place.device).or_default();
        sums.count += 1;
        sums.psize_bytes += place.psize_bytes();
        sums.lsize_bytes += place.lsize_bytes();
        let former = self.copies.insert(id, place);
        invariant!(former.is_none(), "a block has two copies in the index");
        invariant!(self.copies.len() == self.by_place.len(), "the tables of the index differ");
    }

    /// Forgets the copy of a block. Returns whether there was one.
    pub fn remove(&mut self, id: &BlockId) -> bool {
        let Some(place) = self.forget(id) else { return false };
        let known = self.by_place.remove(&(place.device, place.offset_bytes));
        invariant!(known == Some(*id), "the place of a copy has another block");
        true
    }

    /// Forgets the copy of a block if it is still the one at that place.
    pub fn remove_if(&mut self, id: &BlockId, place: &CopyPlace) -> bool {
        self.copies.get(id) == Some(place) && self.remove(id)
    }

    fn forget(&mut self, id: &BlockId) -> Option<CopyPlace> {
        let place = self.copies.remove(id)?;
        let sums = self.sums.entry(place.device).or_default();
        let left = sums.without(&place);
        invariant!(left.is_some(), "a device with {sums:?} loses a copy at {place:?}");
        *sums = left.unwrap_or_default();
        Some(place)
    }

    /// Forgets the copies that begin in a range of a device. Returns their number.
    pub fn clear(&mut self, device: u32, range: Range<u64>) -> u64 {
        let bounds = (Bound::Included((device, range.start)), Bound::Excluded((device, range.end.max(range.start))));
        let gone: Vec<(u32, u64)> = self.by_place.range(bounds).map(|(place, _)| *place).collect();
        for place in &gone {
            if let Some(id) = self.by_place.remove(place) {
                self.forget(&id);
            }
        }
        invariant!(self.copies.len() == self.by_place.len(), "the tables of the index differ");
        gone.len() as u64
    }

    /// Forgets all copies on a device.
    pub fn clear_device(&mut self, device: u32) {
        self.clear(device, 0..u64::MAX);
        self.sums.remove(&device);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u64) -> BlockId {
        BlockId { offset_bytes: n << 12, birth: 5, vdev: 0 }
    }

    fn place(device: u32, offset_bytes: u64) -> CopyPlace {
        CopyPlace { device, offset_bytes, prop: 7 << 16 | 15 }
    }

    #[test]
    fn copies_leave_with_their_place_their_device_or_their_block() {
        let mut index = Index::default();
        (0..100).for_each(|n| index.insert(id(n), place(n as u32 % 2, n * 4096)));
        assert_eq!(index.sums(0), CopySums { count: 50, psize_bytes: 50 * 4096, lsize_bytes: 50 * 8192 });
        assert_eq!(index.clear(0, 0..20 * 4096), 10);
        assert!(!index.contains(&id(18)) && index.contains(&id(19)) && index.contains(&id(20)));
        assert!(index.remove(&id(20)) && !index.remove(&id(20)));
        // The same block again, elsewhere; and another block at its place.
        index.insert(id(22), place(1, 1 << 30));
        assert_eq!(index.get(&id(22)), Some(place(1, 1 << 30)));
        index.insert(id(500), place(1, 1 << 30));
        assert!(!index.contains(&id(22)));
        assert!(!index.remove_if(&id(500), &place(1, 5)) && index.remove_if(&id(500), &place(1, 1 << 30)));
        index.clear_device(1);
        assert_eq!((index.sums(1), index.sums(0).count), (CopySums::default(), 38));
        assert_eq!(index.memory_bytes(), 38 * ENTRY_BYTES);
        // A block of another birth at the same address has no copy.
        assert!(index.contains(&id(24)) && !index.contains(&BlockId { birth: 6, ..id(24) }));
    }
}

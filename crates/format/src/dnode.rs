//! Dnodes (`dnode_phys_t`, OpenZFS `include/sys/dnode.h`): the descriptor of an object.
//!
//! ```text
//!   0 type · 1 indirect block shift · 2 levels · 3 block pointers · 4 bonus type · 5 checksum · 6 compression · 7 flags
//!   8 data block size /512 (u16) · 10 bonus length (u16) · 12 extra slots · 13 pad
//!  16 highest block id (u64) · 24 used (u64) · 32 pad (32)
//!  64 block pointers (1–3 × 128) · bonus area to the end of the last slot, less the spill pointer (128) if flagged
//! ```

use crate::blkptr::BlockPointer;
use crate::cursor::{Cursor, DecodeError, Endian};
use crate::encoder::Encoder;
use crate::kinds::ObjectType;
use smallvec::SmallVec;

/// The flag bits of a dnode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DnodeFlags(pub u8);

#[allow(missing_docs)]
impl DnodeFlags {
    pub const USED_BYTES: u8 = 1;
    pub const USERUSED_ACCOUNTED: u8 = 2;
    pub const SPILL_BLKPTR: u8 = 4;
    pub const USEROBJUSED_ACCOUNTED: u8 = 8;

    pub fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }
}

/// A decoded dnode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dnode {
    /// Type of the object.
    pub object_type: ObjectType,
    /// log2 of an indirect block's size in bytes.
    pub indirect_shift: u8,
    /// Levels of the block tree; 1: the pointers lead to data blocks.
    pub levels: u8,
    /// Type of the bonus area's contents.
    pub bonus_type: ObjectType,
    /// Number of the checksum function for new blocks.
    pub checksum: u8,
    /// Number of the compression function for new blocks.
    pub compression: u8,
    /// Flags.
    pub flags: DnodeFlags,
    /// Size of a data block in bytes (a multiple of 512).
    pub data_block_bytes: u32,
    /// Bytes of the bonus area in use.
    pub bonus_len: u16,
    /// 512-byte slots beyond the first.
    pub extra_slots: u8,
    /// Highest block id at level 0 (`dn_maxblkid`).
    pub max_block_id: u64,
    /// Space used: bytes if `USED_BYTES`, else 512-byte sectors.
    pub used: u64,
    /// The top-level block pointers.
    pub block_pointers: SmallVec<[BlockPointer; 1]>,
    /// The whole bonus area.
    pub bonus: SmallVec<[u8; 320]>,
    /// Pointer to the spill block.
    pub spill: Option<BlockPointer>,
    /// Byte order in which the dnode and its bonus area were written.
    pub endian: Endian,
}

impl Dnode {
    /// Bytes of one slot.
    pub const SLOT: usize = 512;

    /// Decodes the dnode at the start of `bytes`, including its extra slots. `None` for a free slot.
    pub fn decode(bytes: &[u8], endian: Endian) -> Result<Option<Self>, DecodeError> {
        const WHAT: &str = "dnode";
        let bad = |field, value: u64| DecodeError::Field { what: WHAT, field, value };
        let mut c = Cursor::new(bytes, endian, WHAT);
        let [object_type, indirect_shift, levels, nblkptr, bonus_type, checksum, compression, flags] =
            c.array::<8>()?;
        if object_type == 0 {
            return Ok(None);
        }
        let data_sectors = c.u16()?;
        let bonus_len = c.u16()?;
        let extra_slots = c.u8()?;
        c.skip(3)?;
        let max_block_id = c.u64()?;
        let used = c.u64()?;
        c.skip(32)?;
        if !(1..=3).contains(&nblkptr) {
            return Err(bad("block pointer count", nblkptr.into()));
        }
        if !(1..=12).contains(&levels) {
            return Err(bad("levels", levels.into()));
        }
        if levels > 1 && !(10..=24).contains(&indirect_shift) {
            return Err(bad("indirect block shift", indirect_shift.into()));
        }
        let total = (extra_slots as usize + 1) * Self::SLOT;
        if bytes.len() < total {
            return Err(DecodeError::Truncated { what: WHAT, offset: 0, needed: total, have: bytes.len() });
        }
        let mut block_pointers = SmallVec::new();
        for _ in 0..nblkptr {
            block_pointers.push(BlockPointer::decode(&mut c)?);
        }
        let flags = DnodeFlags(flags);
        let has_spill = flags.has(DnodeFlags::SPILL_BLKPTR);
        let tail = if has_spill { BlockPointer::SIZE } else { 0 };
        let bonus_area = (total - c.position()).checked_sub(tail).ok_or(bad("block pointer count", nblkptr.into()))?;
        if usize::from(bonus_len) > bonus_area {
            return Err(bad("bonus length", bonus_len.into()));
        }
        let bonus = SmallVec::from_slice(c.bytes(bonus_area)?);
        let spill = if has_spill { Some(BlockPointer::decode(&mut c)?) } else { None };
        Ok(Some(Dnode {
            object_type: ObjectType(object_type),
            indirect_shift,
            levels,
            bonus_type: ObjectType(bonus_type),
            checksum,
            compression,
            flags,
            data_block_bytes: u32::from(data_sectors) << 9,
            bonus_len,
            extra_slots,
            max_block_id,
            used,
            block_pointers,
            bonus,
            spill,
            endian,
        }))
    }

    /// The on-disk bytes of all slots, in the dnode's byte order.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::with_capacity(self.endian, self.slots() * Dnode::SLOT);
        let pointers = self.block_pointers.len().min(3) as u8;
        e.bytes(&[self.object_type.0, self.indirect_shift, self.levels, pointers]);
        e.bytes(&[self.bonus_type.0, self.checksum, self.compression, self.flags.0]);
        e.u16((self.data_block_bytes >> 9) as u16);
        e.u16(self.bonus_len);
        e.bytes(&[self.extra_slots, 0, 0, 0]);
        e.words(&[self.max_block_id, self.used, 0, 0, 0, 0]);
        for pointer in self.block_pointers.iter().take(3) {
            e.words(pointer.words());
        }
        e.bytes(&self.bonus);
        if let Some(spill) = &self.spill {
            e.words(spill.words());
        }
        e.pad_to(self.slots() * Self::SLOT);
        e.finish()
    }

    /// Number of 512-byte slots that the dnode takes.
    pub fn slots(&self) -> usize {
        self.extra_slots as usize + 1
    }

    /// Space used in bytes.
    pub fn used_bytes(&self) -> u64 {
        if self.flags.has(DnodeFlags::USED_BYTES) { self.used } else { self.used.saturating_mul(512) }
    }

    /// Bytes of the bonus area in use.
    pub fn bonus(&self) -> &[u8] {
        &self.bonus[..usize::from(self.bonus_len).min(self.bonus.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn free_and_invalid_slots() {
        assert_eq!(Dnode::decode(&[0; 512], Endian::Little), Ok(None));
        let mut b = [0u8; 512];
        b[..4].copy_from_slice(&[19, 17, 1, 4]);
        assert!(Dnode::decode(&b, Endian::Little).is_err());
        b[3] = 3;
        assert!(Dnode::decode(&b, Endian::Little).is_ok());
        b[12] = 1;
        assert!(Dnode::decode(&b, Endian::Little).is_err(), "a missing second slot");
        b[12] = 0;
        b[7] = DnodeFlags::SPILL_BLKPTR;
        assert!(Dnode::decode(&b, Endian::Little).is_err(), "three pointers leave no space for a spill pointer");
    }

    proptest! {
        #[test]
        fn bytes_round_trip(
            mut bytes in proptest::collection::vec(any::<u8>(), 1024),
            pointers in 1u8..4, extra in 0u8..2, spill: bool,
        ) {
            bytes[..8].copy_from_slice(&[19, 17, 2, pointers, 44, 7, 2, if spill { 4 } else { 0 }]);
            bytes[10..12].fill(0);
            bytes[12..16].copy_from_slice(&[extra, 0, 0, 0]);
            bytes[32..64].fill(0);
            for endian in [Endian::Little, Endian::Big] {
                if let Ok(dnode) = Dnode::decode(&bytes, endian) {
                    let dnode = dnode.unwrap();
                    prop_assert_eq!(&dnode.encode()[..], &bytes[..dnode.slots() * Dnode::SLOT]);
                } else {
                    prop_assert!(spill && pointers == 3 && extra == 0);
                }
            }
        }
    }
}

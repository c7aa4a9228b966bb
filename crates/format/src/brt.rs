//! The block reference table (OpenZFS `include/sys/brt_impl.h`, `module/zfs/brt.c`): which blocks are shared by clones of
//! file ranges, and how many *further* references each has.
//!
//! Per top-level vdev an object of the MOS, named [`table_name`], holds in its bonus area the [`BrtVdev`], in its data an
//! array of 16-bit counts of entries per region, and leads to a ZAP: byte offset on the vdev (one 64-bit key) → count.
//! Without the feature `block_cloning_endian` the count is an array of eight bytes in the writer's order, with it one
//! 64-bit integer ([`count`]).

use crate::cursor::{Cursor, DecodeError, Endian};
use crate::encoder::Encoder;
use crate::ids::ObjectId;

/// The name of a vdev's table in the MOS directory.
pub fn table_name(vdev: u64) -> String {
    format!("com.fudosecurity:brt:vdev:{vdev}")
}

/// What is known of a vdev's shared blocks (`brt_vdev_phys_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrtVdev {
    /// ZAP of the entries.
    pub entries: ObjectId,
    /// Regions.
    pub regions: u64,
    /// Byte order of the array of counts: 0 little, 1 big.
    pub byte_order: u64,
    /// Entries in all regions.
    pub total: u64,
    /// Bytes of a region.
    pub region_bytes: u64,
    /// Bytes of the blocks with entries.
    pub used_bytes: u64,
    /// Bytes that sharing saves.
    pub saved_bytes: u64,
}

impl BrtVdev {
    /// Bytes on disk.
    pub const SIZE: usize = 56;

    /// Decodes a bonus area.
    pub fn decode(bonus: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let [entries, regions, byte_order, total, region_bytes, used_bytes, saved_bytes] =
            Cursor::new(bonus, endian, "block reference table").words()?;
        let entries = ObjectId(entries);
        Ok(BrtVdev { entries, regions, byte_order, total, region_bytes, used_bytes, saved_bytes })
    }

    /// The bytes of the bonus area.
    pub fn encode(&self, endian: Endian) -> Vec<u8> {
        let BrtVdev { entries, regions, byte_order, total, region_bytes, used_bytes, saved_bytes } = *self;
        let mut e = Encoder::new(endian);
        e.words(&[entries.0, regions, byte_order, total, region_bytes, used_bytes, saved_bytes]);
        e.finish()
    }
}

/// The count in an entry: its integers as the ZAP gives them (one of eight bytes, or eight of one byte in the order of the
/// machine that wrote them).
pub fn count(words: &[u64], endian: Endian) -> Option<u64> {
    match words {
        [count] => Some(*count),
        [..] if words.len() == 8 => {
            let fold = |v: u64, b: &u64| v << 8 | b & 0xff;
            Some(match endian {
                Endian::Little => words.iter().rev().fold(0, fold),
                Endian::Big => words.iter().fold(0, fold),
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_round_trip() {
        let header = BrtVdev {
            entries: ObjectId(7),
            regions: 5,
            byte_order: 0,
            total: 3,
            region_bytes: 16 << 20,
            used_bytes: 4096,
            saved_bytes: 8192,
        };
        for endian in [Endian::Little, Endian::Big] {
            let bytes = header.encode(endian);
            assert_eq!((bytes.len(), BrtVdev::decode(&bytes, endian).unwrap()), (BrtVdev::SIZE, header));
        }
    }

    #[test]
    fn counts() {
        assert_eq!(count(&[7], Endian::Little), Some(7));
        assert_eq!(count(&[1, 2, 0, 0, 0, 0, 0, 0], Endian::Little), Some(0x201));
        assert_eq!(count(&[0, 0, 0, 0, 0, 0, 2, 1], Endian::Big), Some(0x201));
        assert_eq!(count(&[1, 2], Endian::Big), None);
        assert_eq!(table_name(3), "com.fudosecurity:brt:vdev:3");
    }
}

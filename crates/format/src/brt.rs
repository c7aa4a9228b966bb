//! The block reference table (OpenZFS `include/sys/brt_impl.h`, `module/zfs/brt.c`): for each block shared by cloned
//! file ranges, the number of *further* references to it.
//!
//! Each top-level vdev has one MOS object, named [`table_name`]. Its bonus area holds a [`BrtVdev`], its data an
//! array of 16-bit entry counts per region. [`BrtVdev::entries`] names a ZAP that maps a byte offset on the vdev (one
//! 64-bit key) to the reference count. Without the feature `block_cloning_endian` the count is an array of eight
//! bytes in the writer's byte order, with it one 64-bit integer ([`count`]).

use crate::cursor::{Cursor, DecodeError, Endian};
use crate::encoder::Encoder;
use crate::ids::ObjectId;

/// The name of a top-level vdev's table in the MOS directory.
pub fn table_name(vdev: u64) -> String {
    format!("com.fudosecurity:brt:vdev:{vdev}")
}

/// Header of a top-level vdev's block reference table (`brt_vdev_phys_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrtVdev {
    /// ZAP of the reference counts, by offset.
    pub entries: ObjectId,
    /// Number of regions that the vdev is divided into.
    pub regions: u64,
    /// Byte order of the array of entry counts: 0 little-endian, 1 big-endian.
    pub byte_order: u64,
    /// Number of entries in all regions.
    pub total: u64,
    /// Size of a region in bytes.
    pub region_bytes: u64,
    /// Allocated bytes of the blocks that have entries.
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

/// The reference count in an entry. `words` are the integers of the ZAP value: one of eight bytes, or eight of one
/// byte in byte order `endian`. `None` for any other number of integers.
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

//! Indirect vdevs, left by device removal (OpenZFS `include/sys/vdev_indirect_mapping.h`, `vdev_indirect_births.h`):
//! the removed vdev becomes *indirect*, and a sorted array maps its old offsets to new addresses. Block pointers are
//! never rewritten, so each read of the removed vdev looks up its segments here. The target vdev may be indirect
//! itself.

use crate::blkptr::Dva;
use crate::cursor::{Cursor, DecodeError, Endian};
use crate::encoder::Encoder;
use crate::ids::{ObjectId, Txg};

/// The header of a mapping, in its object's bonus area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingHeader {
    /// End of the mapped space in bytes.
    pub max_offset_bytes: u64,
    /// Number of bytes mapped.
    pub mapped_bytes: u64,
    /// Entries of [`MappingEntry::SIZE`] bytes in the object.
    pub entries: u64,
    /// Object with a 32-bit count of obsolete bytes per entry, with the feature `obsolete_counts`.
    pub counts: Option<ObjectId>,
}

impl MappingHeader {
    /// Size in bytes without the counts object.
    pub const SIZE_V0: usize = 24;
    /// Size in bytes with the counts object.
    pub const SIZE_V1: usize = 32;

    /// Decodes a bonus area; its length determines whether there are counts.
    pub fn decode(bonus: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let mut c = Cursor::new(bonus, endian, "indirect mapping");
        let [max_offset_bytes, mapped_bytes, entries] = c.words()?;
        let counts = if bonus.len() >= Self::SIZE_V1 { Some(ObjectId(c.u64()?)) } else { None };
        Ok(MappingHeader { max_offset_bytes, mapped_bytes, entries, counts })
    }

    /// The bonus area, with the counts object only if there is one.
    pub fn encode(&self, endian: Endian) -> Vec<u8> {
        let mut e = Encoder::new(endian);
        e.words(&[self.max_offset_bytes, self.mapped_bytes, self.entries]);
        if let Some(counts) = self.counts {
            e.u64(counts.0);
        }
        e.finish()
    }
}

/// A segment of the removed vdev and its new address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingEntry {
    /// Start on the removed vdev, in bytes.
    pub source_bytes: u64,
    /// New address; its allocated size is the size of the segment.
    pub target: Dva,
}

impl MappingEntry {
    /// Bytes on disk.
    pub const SIZE: usize = 24;

    /// Decodes one entry. The top bit of the source is used in memory by zdb and ignored here.
    pub fn decode(c: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        let [source, w0, w1] = c.words()?;
        let source = source & (u64::MAX >> 1);
        let bad = DecodeError::Field { what: "indirect mapping", field: "source", value: source };
        Ok(MappingEntry { source_bytes: source.checked_mul(512).ok_or(bad)?, target: Dva::from_words(w0, w1) })
    }

    /// Appends the entry.
    pub fn encode(&self, e: &mut Encoder) {
        e.u64(self.source_bytes >> 9);
        e.words(&self.target.to_words());
    }

    /// End of the segment on the removed vdev, in bytes.
    pub fn source_end_bytes(&self) -> u64 {
        self.source_bytes.saturating_add(self.target.asize_bytes)
    }
}

/// Physical birth txg of the copies of all segments up to an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BirthEntry {
    /// End of the segments on the removed vdev, in bytes.
    pub offset_bytes: u64,
    /// The txg in which the segments were copied.
    pub birth: Txg,
}

impl BirthEntry {
    /// Bytes on disk.
    pub const SIZE: usize = 16;

    /// Decodes one entry.
    pub fn decode(c: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        let [offset_bytes, birth] = c.words()?;
        Ok(BirthEntry { offset_bytes, birth: Txg(birth) })
    }

    /// The number of entries, from the bonus area of their object.
    pub fn decode_count(bonus: &[u8], endian: Endian) -> Result<u64, DecodeError> {
        Cursor::new(bonus, endian, "indirect births").u64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_round_trip() {
        let entry = MappingEntry {
            source_bytes: 0x2000,
            target: Dva { vdev: 1, offset_bytes: 0x40_0000, asize_bytes: 0x1000, gang: false, grid: 0 },
        };
        let mut e = Encoder::new(Endian::Big);
        entry.encode(&mut e);
        let bytes = e.finish();
        assert_eq!(MappingEntry::decode(&mut Cursor::new(&bytes, Endian::Big, "t")).unwrap(), entry);
        assert_eq!(entry.source_end_bytes(), 0x3000);
        let marked: Vec<u8> = [1u64 << 63 | 16, 0, 0].iter().flat_map(|w| w.to_le_bytes()).collect();
        assert_eq!(MappingEntry::decode(&mut Cursor::new(&marked, Endian::Little, "t")).unwrap().source_bytes, 0x2000);
        assert!(MappingEntry::decode(&mut Cursor::new(&[0xff; 24], Endian::Little, "t")).is_err());
        let header: Vec<u8> = (1u64..5).flat_map(|w| w.to_be_bytes()).collect();
        assert_eq!(MappingHeader::decode(&header, Endian::Big).unwrap().counts, Some(ObjectId(4)));
        assert_eq!(MappingHeader::decode(&header, Endian::Big).unwrap().encode(Endian::Big), header);
        assert_eq!(MappingHeader::decode(&header[..24], Endian::Big).unwrap().counts, None);
        assert_eq!(MappingHeader::decode(&header[..24], Endian::Big).unwrap().encode(Endian::Big), header[..24]);
    }
}

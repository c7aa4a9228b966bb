//! The mapping of a removed vdev in memory: 16 bytes for each segment.
//!
//! Offsets and lengths are multiples of 512 bytes. An entry has 44 bits for the offset of each side (8 PiB), 17 bits for the
//! length (64 MiB; no segment is longer than a block), and 16 bits for the number of the vdev.

use weir_format::Dva;
use weir_format::indirect::MappingEntry;

/// Bits of an offset.
const OFFSET_BITS: u32 = 44;
/// Bits of a length.
const LEN_BITS: u32 = 17;
/// Bits of the number of a vdev.
const VDEV_BITS: u32 = 16;
/// Unit of offsets and lengths: log2 of bytes.
const UNIT_SHIFT: u32 = 9;

/// A segment of the removed vdev and its address: source and length, vdev and offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry([u64; 2]);

/// `bytes` in units, if they are whole ones and fit.
fn units(bytes: u64, bits: u32) -> Option<u64> {
    let units = bytes >> UNIT_SHIFT;
    (units << UNIT_SHIFT == bytes && units >> bits == 0).then_some(units)
}

impl Entry {
    fn of(entry: &MappingEntry) -> Option<Self> {
        let Dva { vdev, offset_bytes, asize_bytes, .. } = entry.target;
        let source = units(entry.source_bytes, OFFSET_BITS)?;
        let len = units(asize_bytes, LEN_BITS)?;
        let offset = units(offset_bytes, OFFSET_BITS)?;
        let vdev = Some(u64::from(vdev)).filter(|vdev| vdev >> VDEV_BITS == 0)?;
        Some(Entry([source << LEN_BITS | len, vdev << OFFSET_BITS | offset]))
    }

    fn source_bytes(self) -> u64 {
        (self.0[0] >> LEN_BITS) << UNIT_SHIFT
    }

    fn len_bytes(self) -> u64 {
        (self.0[0] & ((1 << LEN_BITS) - 1)) << UNIT_SHIFT
    }

    fn end_bytes(self) -> u64 {
        self.source_bytes() + self.len_bytes()
    }

    fn vdev(self) -> u32 {
        (self.0[1] >> OFFSET_BITS) as u32
    }

    fn offset_bytes(self) -> u64 {
        (self.0[1] & ((1 << OFFSET_BITS) - 1)) << UNIT_SHIFT
    }
}

/// A part of a range and its present address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Top-level vdev.
    pub vdev: u32,
    /// Offset on it.
    pub offset: u64,
    pub len: u64,
}

/// The segments of a removed vdev, or of the part of one that has been copied, sorted by their offset on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mapping(Vec<Entry>);

impl Mapping {
    /// The mapping of these segments in any order; `None` if one does not fit into an entry.
    pub fn of(entries: &[MappingEntry]) -> Option<Self> {
        let mut all = entries.iter().map(Entry::of).collect::<Option<Vec<_>>>()?;
        all.sort_by_key(|entry| entry.source_bytes());
        Some(Mapping(all))
    }

    /// Adds segments behind all others, in their order. False, without a change, if they are not there or do not fit.
    pub fn extend(&mut self, entries: &[MappingEntry]) -> bool {
        let Some(new) = entries.iter().map(Entry::of).collect::<Option<Vec<_>>>() else { return false };
        let mut end = self.end_bytes();
        for entry in &new {
            if entry.source_bytes() < end {
                return false;
            }
            end = entry.end_bytes();
        }
        self.0.extend(new);
        true
    }

    /// End of the last segment on the removed vdev.
    pub fn end_bytes(&self) -> u64 {
        self.0.last().map_or(0, |entry| entry.end_bytes())
    }

    /// The segments of a range; `None` unless the mapping covers all of it.
    pub fn pieces(&self, offset: u64, len: u64) -> Option<Vec<Piece>> {
        let end = offset.checked_add(len)?;
        let first = self.0.partition_point(|entry| entry.end_bytes() <= offset);
        let mut out = Vec::new();
        let mut at = offset;
        for entry in self.0.get(first..)? {
            if at >= end {
                break;
            }
            let skip = at.checked_sub(entry.source_bytes())?;
            let len = entry.end_bytes().min(end).checked_sub(at).filter(|&n| n > 0)?;
            out.push(Piece { vdev: entry.vdev(), offset: entry.offset_bytes().checked_add(skip)?, len });
            at += len;
        }
        (at >= end).then_some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(source_bytes: u64, len: u64, vdev: u32, offset_bytes: u64) -> MappingEntry {
        MappingEntry { source_bytes, target: Dva { vdev, offset_bytes, asize_bytes: len, gang: false, grid: 0 } }
    }

    #[test]
    fn ranges_are_cut_where_the_map_is() {
        let map =
            Mapping::of(&[entry(0x1000, 0x1000, 1, 0x8000), entry(0x2000, 0x3000, 2, 0), entry(0x8000, 0x1000, 1, 0)])
                .unwrap();
        let piece = |vdev, offset, len| Piece { vdev, offset, len };
        assert_eq!(map.pieces(0x1800, 0x400), Some(vec![piece(1, 0x8800, 0x400)]));
        assert_eq!(map.pieces(0x1800, 0x1000), Some(vec![piece(1, 0x8800, 0x800), piece(2, 0, 0x800)]));
        assert_eq!(map.pieces(0x4000, 0x1001), None, "the map ends before the range does");
        assert_eq!(map.pieces(0x800, 0x1000), None);
        assert_eq!(map.pieces(0x5000, 0x100), None);
        assert_eq!(map.pieces(u64::MAX, 2), None);
        assert_eq!(Mapping::default().pieces(0, 1), None);
    }

    #[test]
    fn an_entry_takes_16_bytes_and_holds_the_largest_values() {
        assert_eq!(size_of::<Entry>(), 16);
        let last = (1u64 << 53) - 512;
        let map = Mapping::of(&[entry(last, 16 << 20, 65_535, last)]).unwrap();
        assert_eq!(map.pieces(last, 16 << 20), Some(vec![Piece { vdev: 65_535, offset: last, len: 16 << 20 }]));
        assert!(Mapping::of(&[entry(1 << 53, 512, 0, 0)]).is_none());
        assert!(Mapping::of(&[entry(0, 512, 65_536, 0)]).is_none());
        assert!(Mapping::of(&[entry(0, 64 << 20, 0, 0)]).is_none());
        assert!(Mapping::of(&[entry(100, 512, 0, 0)]).is_none(), "no whole unit");
    }

    #[test]
    fn segments_are_added_in_their_order() {
        let mut map = Mapping::default();
        assert!(map.extend(&[entry(0x1000, 0x1000, 1, 0), entry(0x4000, 0x1000, 1, 0x2000)]));
        assert!(!map.extend(&[entry(0x4800, 0x1000, 1, 0x8000)]), "it overlaps the last one");
        assert!(!map.extend(&[entry(0x6000, 0x1000, 1, 0), entry(0x5000, 0x1000, 1, 0)]));
        assert_eq!(map.end_bytes(), 0x5000);
        assert!(map.extend(&[entry(0x5000, 0x1000, 2, 0)]));
        assert_eq!(map.pieces(0x4800, 0x1000).map(|pieces| pieces.len()), Some(2));
    }
}

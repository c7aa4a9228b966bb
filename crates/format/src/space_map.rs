//! Space maps (OpenZFS `include/sys/space_map.h`, `module/zfs/space_map.c`): a log of allocations and frees.
//! Replaying it from the start gives the allocated segments of a metaslab (or, in a log space map, of all metaslabs
//! changed in a txg).
//!
//! ```text
//!  header (bonus)   object · length of the log in bytes · allocated bytes · 5 unused · histogram (32)
//!  entry, a word:
//!   63 62 61 60 59        50 49                          16 15 14        0
//!   0  |        offset, 47 bits (62–16)                    | T |  run-1   |   one word
//!   1  0  | act |  sync pass  |            txg, 50 bits                    |   debug; zero also pads the end of a block
//!   1  1  | pad |        run-1, 36 bits (59–24)       |   vdev, 24 bits    |   two words, then:
//!   T |                          offset, 63 bits                           |
//! ```
//!
//! Offsets and runs are in units of the map's shift (the vdev's ashift; 2^0 for DTLs). T = 1 is a free.

use crate::cursor::{Cursor, DecodeError, Endian};
use crate::encoder::Encoder;
use crate::ids::Txg;

const WHAT: &str = "space map";

/// The header in the bonus area of a space map's object (`space_map_phys_t`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceMapHeader {
    /// The number of the object itself; unused.
    pub object: u64,
    /// Length of the log in bytes.
    pub length_bytes: u64,
    /// Allocated bytes: allocations less frees.
    pub allocated_bytes: i64,
    /// Number of free segments by log2 of their size in units of the map's shift; absent in old maps.
    pub histogram: Option<[u64; 32]>,
}

impl SpaceMapHeader {
    /// Size in bytes of the header of old maps.
    pub const SIZE_V0: usize = 24;
    /// Size in bytes of the header with histogram.
    pub const SIZE: usize = 320;

    /// Decodes a bonus area.
    pub fn decode(bonus: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let mut c = Cursor::new(bonus, endian, WHAT);
        let [object, length_bytes, allocated] = c.words()?;
        let histogram = if bonus.len() >= Self::SIZE {
            c.skip(40)?;
            Some(c.words()?)
        } else {
            None
        };
        Ok(SpaceMapHeader { object, length_bytes, allocated_bytes: allocated as i64, histogram })
    }

    /// The bytes of the bonus area.
    pub fn encode(&self, endian: Endian) -> Vec<u8> {
        let mut e = Encoder::new(endian);
        e.words(&[self.object, self.length_bytes, self.allocated_bytes as u64]);
        if let Some(histogram) = &self.histogram {
            e.zeros(40);
            e.words(histogram);
        }
        e.finish()
    }
}

/// Whether an entry allocates or frees a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum SpaceKind {
    Alloc,
    Free,
}

/// One entry of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceEntry {
    /// Debug entry: txg and sync pass in which the following entries were written.
    Debug {
        /// 0 allocations follow, 1 frees follow.
        action: u8,
        /// The sync pass.
        sync_pass: u16,
        /// The txg, lower 50 bits.
        txg: Txg,
    },
    /// The word that pads the end of a block before a two-word entry.
    Padding,
    /// A segment allocated or freed.
    Segment(SpaceSegment),
}

/// A segment allocated or freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceSegment {
    /// Allocation or free.
    pub kind: SpaceKind,
    /// The top-level vdev; only in two-word entries of log space maps.
    pub vdev: Option<u32>,
    /// Start in bytes.
    pub offset_bytes: u64,
    /// Length in bytes, at least one unit.
    pub length_bytes: u64,
    /// Number of words of the entry: 1 or 2.
    pub words: u8,
}

/// The vdev number of two-word entries that name no vdev (`SM_NO_VDEVID` truncated to 24 bits).
pub const NO_VDEV: u32 = 0;

/// Iterates over the entries in a space map's log, or a part of it that starts at an entry. Ends after the first
/// error.
#[derive(Clone, Debug)]
pub struct SpaceEntries<'a> {
    cursor: Cursor<'a>,
    shift: u32,
    failed: bool,
}

impl<'a> SpaceEntries<'a> {
    /// Iterates over `log`, whose units are `1 << shift` bytes.
    pub fn new(log: &'a [u8], endian: Endian, shift: u32) -> Self {
        SpaceEntries { cursor: Cursor::new(log, endian, WHAT), shift, failed: false }
    }

    /// Bytes of the log consumed so far.
    pub fn position(&self) -> usize {
        self.cursor.position()
    }

    fn scale(&self, units: u64, field: &'static str) -> Result<u64, DecodeError> {
        let bytes = units.checked_mul(1u64.checked_shl(self.shift).unwrap_or(0)).filter(|_| self.shift < 64);
        bytes.ok_or(DecodeError::Field { what: WHAT, field, value: units })
    }

    fn entry(&mut self) -> Result<SpaceEntry, DecodeError> {
        let w = self.cursor.u64()?;
        let kind = |free: bool| if free { SpaceKind::Free } else { SpaceKind::Alloc };
        let (kind, vdev, offset, run, words) = match w >> 62 {
            2 if w << 2 == 0 => return Ok(SpaceEntry::Padding),
            2 => {
                return Ok(SpaceEntry::Debug {
                    action: ((w >> 60) & 3) as u8,
                    sync_pass: ((w >> 50) & 0x3ff) as u16,
                    txg: Txg(w & ((1 << 50) - 1)),
                });
            }
            3 => {
                let second = self.cursor.u64()?;
                let run = ((w >> 24) & ((1 << 36) - 1)) + 1;
                (kind(second >> 63 != 0), Some((w & 0xff_ffff) as u32), second & (u64::MAX >> 1), run, 2)
            }
            _ => (kind(w >> 15 & 1 != 0), None, (w >> 16) & ((1 << 47) - 1), (w & 0x7fff) + 1, 1),
        };
        let offset_bytes = self.scale(offset, "offset")?;
        let length_bytes = self.scale(run, "run")?;
        if offset_bytes.checked_add(length_bytes).is_none() {
            return Err(DecodeError::Field { what: WHAT, field: "offset", value: offset });
        }
        Ok(SpaceEntry::Segment(SpaceSegment { kind, vdev, offset_bytes, length_bytes, words }))
    }
}

impl Iterator for SpaceEntries<'_> {
    type Item = Result<SpaceEntry, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.cursor.remaining() == 0 {
            return None;
        }
        let entry = self.entry();
        self.failed = entry.is_err();
        Some(entry)
    }
}

/// Appends an entry to a log whose units are `1 << shift` bytes. Two-word entries must not straddle a block boundary:
/// the caller appends [`SpaceEntry::Padding`] before.
pub fn encode_entry(entry: &SpaceEntry, shift: u32, e: &mut Encoder) {
    match entry {
        SpaceEntry::Padding => e.u64(2 << 62),
        SpaceEntry::Debug { action, sync_pass, txg } => {
            e.u64(2 << 62 | u64::from(action & 3) << 60 | u64::from(sync_pass & 0x3ff) << 50 | txg.0 & ((1 << 50) - 1))
        }
        SpaceEntry::Segment(s) => {
            let offset = s.offset_bytes >> shift;
            let run = (s.length_bytes >> shift).wrapping_sub(1);
            let free = u64::from(s.kind == SpaceKind::Free);
            if s.words == 2 {
                let vdev = u64::from(s.vdev.unwrap_or(NO_VDEV) & 0xff_ffff);
                e.u64(3 << 62 | (run & ((1 << 36) - 1)) << 24 | vdev);
                e.u64(free << 63 | offset & (u64::MAX >> 1));
            } else {
                e.u64((offset & ((1 << 47) - 1)) << 16 | free << 15 | run & 0x7fff);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn all_entry_kinds_round_trip() {
        let mut e = Encoder::new(Endian::Little);
        let one =
            SpaceSegment { kind: SpaceKind::Free, vdev: None, offset_bytes: 0x1000, length_bytes: 0x2000, words: 1 };
        let two = SpaceSegment {
            kind: SpaceKind::Alloc,
            vdev: Some(7),
            offset_bytes: 1 << 50,
            length_bytes: 1 << 40,
            words: 2,
        };
        let entries = [
            SpaceEntry::Debug { action: 1, sync_pass: 3, txg: Txg(99) },
            SpaceEntry::Segment(one),
            SpaceEntry::Padding,
            SpaceEntry::Segment(two),
        ];
        entries.iter().for_each(|x| encode_entry(x, 12, &mut e));
        let bytes = e.finish();
        assert_eq!(bytes.len(), 40);
        assert_eq!(u64::from_le_bytes(bytes[8..16].try_into().unwrap()), 1 << 16 | 1 << 15 | 1);
        let back: Vec<_> = SpaceEntries::new(&bytes, Endian::Little, 12).collect::<Result<_, _>>().unwrap();
        assert_eq!(back, entries);
    }

    #[test]
    fn a_truncated_two_word_entry_ends_with_an_error() {
        let bytes = (3u64 << 62).to_be_bytes();
        let all: Vec<_> = SpaceEntries::new(&bytes, Endian::Big, 9).collect();
        assert!(matches!(all[..], [Err(_)]));
    }

    proptest! {
        #[test]
        fn any_words_round_trip(words in proptest::collection::vec(any::<u64>(), 0..20), shift in 0u32..17) {
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            for entry in SpaceEntries::new(&bytes, Endian::Little, shift).flatten() {
                let mut e = Encoder::new(Endian::Big);
                encode_entry(&entry, shift, &mut e);
                let again = SpaceEntries::new(&e.finish(), Endian::Big, shift).next().unwrap().unwrap();
                prop_assert_eq!(again, entry);
            }
        }
    }
}

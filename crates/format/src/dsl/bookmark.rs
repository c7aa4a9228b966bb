//! Bookmarks and redaction lists.

use crate::cursor::{Cursor, DecodeError, Endian};
use crate::encoder::Encoder;
use crate::ids::{ObjectId, Txg};

/// A bookmark (`zfs_bookmark_phys_t`): the value of a ZAP entry. Older pools have shorter values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Bookmark {
    /// GUID of the bookmarked snapshot.
    pub guid: u64,
    pub creation_txg: Txg,
    pub creation_time_s: u64,
    /// The redaction list, or 0.
    pub redaction_list: ObjectId,
    /// Bit 0: the sizes are valid; bit 1: the snapshot still exists.
    pub flags: u64,
    /// Bytes referenced, compressed, uncompressed.
    pub referenced: [u64; 3],
    /// Of these, bytes freed before the next snapshot.
    pub freed_before_next: [u64; 3],
    /// Identity of the IVs, for raw sends.
    pub ivset_guid: u64,
}

impl Bookmark {
    /// Number of words of the oldest form.
    pub const WORDS_V1: usize = 3;
    /// Number of words of the newest form.
    pub const WORDS_V2: usize = 12;
    /// Flag: `referenced` and `freed_before_next` are valid.
    pub const HAS_FREED_BEFORE_NEXT: u64 = 1;
    /// Flag: the snapshot still exists.
    pub const SNAPSHOT_EXISTS: u64 = 2;

    /// From the words of the ZAP entry; absent words are 0. `None` if there are fewer than three.
    pub fn from_words(words: &[u64]) -> Option<Self> {
        if words.len() < Self::WORDS_V1 {
            return None;
        }
        let w = |i: usize| words.get(i).copied().unwrap_or(0);
        Some(Bookmark {
            guid: w(0),
            creation_txg: Txg(w(1)),
            creation_time_s: w(2),
            redaction_list: ObjectId(w(3)),
            flags: w(4),
            referenced: [w(5), w(6), w(7)],
            freed_before_next: [w(8), w(9), w(10)],
            ivset_guid: w(11),
        })
    }

    /// The words of the newest form.
    pub fn to_words(&self) -> [u64; Self::WORDS_V2] {
        let r = self.referenced;
        let f = self.freed_before_next;
        [
            self.guid,
            self.creation_txg.0,
            self.creation_time_s,
            self.redaction_list.0,
            self.flags,
            r[0],
            r[1],
            r[2],
            f[0],
            f[1],
            f[2],
            self.ivset_guid,
        ]
    }
}

/// The header of a redaction list (`redaction_list_phys_t`), in the bonus or spill area of its object.
///
/// ```text
///   0  object     8  block       up to which the list is complete; both 2^64 - 1: the whole list
///   16 entries    24 snapshots   their numbers
///   32 GUIDs of the snapshots
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct RedactionList {
    pub last_object: ObjectId,
    pub last_block: u64,
    /// Entries of [`RedactionBlock::SIZE`] bytes in the object.
    pub entries: u64,
    /// GUIDs of the snapshots that the list redacts against.
    pub snapshots: Vec<u64>,
}

impl RedactionList {
    /// Bytes of the header before the GUIDs.
    pub const HEADER_BYTES: usize = 32;
    /// Size in bytes of a block of entries (`SPA_OLD_MAXBLOCKSIZE`).
    pub const BLOCK_BYTES: u32 = 128 << 10;

    /// Decodes a bonus area.
    pub fn decode(bonus: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let mut c = Cursor::new(bonus, endian, "redaction list");
        let [object, last_block, entries, count] = c.words()?;
        let mut snapshots = Vec::new();
        for _ in 0..count {
            snapshots.push(c.u64()?);
        }
        Ok(RedactionList { last_object: ObjectId(object), last_block, entries, snapshots })
    }

    /// Encodes the contents of the bonus area or spill block.
    pub fn encode(&self, endian: Endian) -> Vec<u8> {
        let mut e = Encoder::new(endian);
        e.words(&[self.last_object.0, self.last_block, self.entries, self.snapshots.len() as u64]);
        e.words(&self.snapshots);
        e.finish()
    }

    /// Whether all entries are there. A list of a redaction that was interrupted is not used.
    pub fn is_complete(&self) -> bool {
        self.last_object.0 == u64::MAX && self.last_block == u64::MAX
    }

    /// Marks the list as complete.
    #[must_use]
    pub fn completed(self) -> Self {
        RedactionList { last_object: ObjectId(u64::MAX), last_block: u64::MAX, ..self }
    }
}

/// A run of redacted blocks of one object (`redact_block_phys_t`).
///
/// ```text
///   0  object     8  first block     16  block size / 512 in the upper 16 bits, blocks - 1 in the lower 48     24  zero
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct RedactionBlock {
    pub object: ObjectId,
    pub block: u64,
    /// Size of a block in bytes.
    pub block_bytes: u32,
    /// Blocks in the run: 1 to [`RedactionBlock::MAX_COUNT`].
    pub count: u64,
}

impl RedactionBlock {
    /// Bytes on disk.
    pub const SIZE: usize = 32;
    /// Maximum number of blocks in a run (`REDACT_BLOCK_MAX_COUNT`).
    pub const MAX_COUNT: u64 = 1 << 48;

    /// Decodes one entry.
    pub fn decode(c: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        let words = c.words()?;
        Ok(Self::from_words(words))
    }

    /// From the words of an entry.
    pub fn from_words([object, block, size_count, _]: [u64; 4]) -> Self {
        RedactionBlock {
            object: ObjectId(object),
            block,
            block_bytes: ((size_count >> 48) as u32) << 9,
            count: (size_count & (Self::MAX_COUNT - 1)) + 1,
        }
    }

    /// The words of an entry.
    pub fn to_words(&self) -> [u64; 4] {
        debug_assert!((1..=Self::MAX_COUNT).contains(&self.count), "a run has blocks");
        let size_count = u64::from(self.block_bytes >> 9) << 48 | self.count.wrapping_sub(1) & (Self::MAX_COUNT - 1);
        [self.object.0, self.block, size_count, 0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redaction_list_is_decoded_as_it_was_encoded() {
        let list = RedactionList { entries: 3, snapshots: vec![7, u64::MAX], ..RedactionList::default() };
        for endian in [Endian::Little, Endian::Big] {
            let bytes = list.encode(endian);
            assert_eq!(bytes.len(), RedactionList::HEADER_BYTES + 16);
            assert_eq!(RedactionList::decode(&bytes, endian), Ok(list.clone()));
            assert!(RedactionList::decode(&bytes[..bytes.len() - 1], endian).is_err());
        }
        assert!(!list.is_complete() && list.completed().is_complete());
    }

    #[test]
    fn a_run_of_one_block_has_the_count_zero_on_disk() {
        let run = RedactionBlock { object: ObjectId(9), block: 4, block_bytes: 16 << 20, count: 1 };
        assert_eq!(run.to_words(), [9, 4, 0x8000 << 48, 0]);
        let longest = RedactionBlock { count: RedactionBlock::MAX_COUNT, block_bytes: 512, ..run };
        assert_eq!(longest.to_words()[2], u64::MAX >> 15);
        for run in [run, longest] {
            assert_eq!(RedactionBlock::from_words(run.to_words()), run);
        }
    }
}

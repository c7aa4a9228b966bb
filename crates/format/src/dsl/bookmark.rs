//! Bookmarks and redaction lists.

use crate::cursor::{Cursor, DecodeError, Endian};
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
}

/// A run of redacted blocks (`redact_block_phys_t`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct RedactionBlock {
    pub object: ObjectId,
    pub block: u64,
    /// Size of a block in bytes.
    pub block_bytes: u32,
    /// Blocks in the run.
    pub count: u64,
}

impl RedactionBlock {
    /// Bytes on disk.
    pub const SIZE: usize = 32;

    /// Decodes one entry.
    pub fn decode(c: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        let [object, block, size_count, _] = c.words()?;
        Ok(RedactionBlock {
            object: ObjectId(object),
            block,
            block_bytes: ((size_count >> 48) as u32) << 9,
            count: size_count & ((1 << 48) - 1),
        })
    }
}

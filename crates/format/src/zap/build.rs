//! New ZAP entries, and encoding of a whole leaf at once.

use super::LeafEdit;
use super::leaf::ARRAY_BYTES;
use crate::cursor::Endian;

/// A ZAP entry to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEntry {
    /// The hash of the name, see [`super::hash_bytes`] and [`super::hash_words`].
    pub hash: u64,
    /// Collision differentiator: distinguishes entries of equal hash.
    pub cd: u32,
    /// The name.
    pub key: NewKey,
    /// Bytes of each integer of the value: 1, 2, 4 or 8.
    pub int_size: u8,
    /// The value's integers.
    pub value: Vec<u64>,
}

/// The name of an entry to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewKey {
    /// A byte string, without the terminating NUL that is stored.
    Name(Vec<u8>),
    /// 64-bit integers.
    Words(Vec<u64>),
}

impl NewKey {
    /// Number of integers of the key as stored.
    pub(super) fn ints(&self) -> usize {
        match self {
            NewKey::Name(name) => name.len() + 1,
            NewKey::Words(words) => words.len(),
        }
    }

    /// The key as stored.
    pub(super) fn bytes(&self) -> Vec<u8> {
        match self {
            NewKey::Name(name) => [name.as_slice(), &[0]].concat(),
            NewKey::Words(words) => words.iter().flat_map(|w| w.to_be_bytes()).collect(),
        }
    }

    /// Size of the stored key in bytes.
    pub fn stored_bytes(&self) -> usize {
        match self {
            NewKey::Name(name) => name.len() + 1,
            NewKey::Words(words) => words.len() * 8,
        }
    }
}

impl NewEntry {
    /// Value of `cd` that requests the lowest unused collision differentiator ([`LeafEdit::insert`]).
    pub const ANY_CD: u32 = u32::MAX;

    /// The value as stored.
    pub(super) fn value_bytes(&self) -> Vec<u8> {
        let drop = 8 - usize::from(self.int_size).min(8);
        self.value.iter().flat_map(|w| w.to_be_bytes().into_iter().skip(drop)).collect()
    }

    /// Number of leaf chunks that the entry takes.
    pub fn chunks(&self) -> usize {
        let value = self.value.len().saturating_mul(self.int_size.into());
        1 + self.key.stored_bytes().div_ceil(ARRAY_BYTES) + value.div_ceil(ARRAY_BYTES)
    }
}

/// Encodes a leaf of `1 << block_shift` bytes for the hashes that begin with the `prefix_len` bits `prefix`; `None`
/// if the entries do not fit.
pub fn encode_leaf(
    block_shift: u32,
    prefix: u64,
    prefix_len: u16,
    entries: &[NewEntry],
    endian: Endian,
) -> Option<Vec<u8>> {
    let mut leaf = LeafEdit::new(block_shift, prefix, prefix_len, true, endian)?;
    for entry in entries {
        leaf.insert(entry).ok()??;
    }
    Some(leaf.into_block())
}

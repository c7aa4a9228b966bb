//! Entries to write, and a whole leaf written at once.

use super::LeafEdit;
use super::leaf::ARRAY_BYTES;
use crate::cursor::Endian;

/// An entry to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEntry {
    /// The hash of the name, see [`super::hash_bytes`] and [`super::hash_words`].
    pub hash: u64,
    /// Tells entries of equal hash apart.
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
    /// Bytes, without the NUL that is stored behind them.
    Name(Vec<u8>),
    /// 64-bit integers.
    Words(Vec<u64>),
}

impl NewKey {
    /// Integers of the key as it is stored.
    pub(super) fn ints(&self) -> usize {
        match self {
            NewKey::Name(name) => name.len() + 1,
            NewKey::Words(words) => words.len(),
        }
    }

    /// The key as it is stored.
    pub(super) fn bytes(&self) -> Vec<u8> {
        match self {
            NewKey::Name(name) => [name.as_slice(), &[0]].concat(),
            NewKey::Words(words) => words.iter().flat_map(|w| w.to_be_bytes()).collect(),
        }
    }

    /// How many bytes that takes.
    pub fn stored_bytes(&self) -> usize {
        match self {
            NewKey::Name(name) => name.len() + 1,
            NewKey::Words(words) => words.len() * 8,
        }
    }
}

impl NewEntry {
    /// The differentiator that stands for "whichever is free" ([`LeafEdit::insert`]).
    pub const ANY_CD: u32 = u32::MAX;

    /// The value as it is stored.
    pub(super) fn value_bytes(&self) -> Vec<u8> {
        let drop = 8 - usize::from(self.int_size).min(8);
        self.value.iter().flat_map(|w| w.to_be_bytes().into_iter().skip(drop)).collect()
    }

    /// Chunks of a leaf that it takes.
    pub fn chunks(&self) -> usize {
        let value = self.value.len().saturating_mul(self.int_size.into());
        1 + self.key.stored_bytes().div_ceil(ARRAY_BYTES) + value.div_ceil(ARRAY_BYTES)
    }
}

/// The bytes of a leaf of `1 << block_shift` bytes for the hashes that begin with the `prefix_len` bits `prefix`; `None` if
/// the entries do not fit.
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

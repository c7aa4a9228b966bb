//! Writing a leaf: all its entries at once, chunks in a row.

use super::leaf::{ARRAY, ARRAY_BYTES, CHAIN_END, CHUNK, ENTRY, HEADER};
use super::{BlockKind, Leaf};
use crate::cursor::Endian;
use crate::encoder::Encoder;

const FREE: u8 = 253;
/// Flag of a leaf: its chains are sorted by collision differentiator.
const CD_SORTED: u8 = 1;

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

impl NewEntry {
    /// Integers of the key, and its bytes.
    fn key_bytes(&self) -> (usize, Vec<u8>) {
        match &self.key {
            NewKey::Name(name) => (name.len() + 1, [name.as_slice(), &[0]].concat()),
            NewKey::Words(words) => (words.len(), words.iter().flat_map(|w| w.to_be_bytes()).collect()),
        }
    }

    fn value_bytes(&self) -> Vec<u8> {
        let drop = 8 - usize::from(self.int_size).min(8);
        self.value.iter().flat_map(|w| w.to_be_bytes().into_iter().skip(drop)).collect()
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
    let bits = block_shift.checked_sub(5).filter(|_| (9..=24).contains(&block_shift))?;
    let drop = (64 - bits).checked_sub(u32::from(prefix_len))?;
    let buckets = 1usize << bits;
    let capacity = ((1usize << block_shift) - 2 * buckets) / CHUNK - 2;
    let mut chunks: Vec<Vec<u8>> = Vec::new();
    // (bucket, cd, chunk, where the chunk's link stands): linked up when all are placed.
    let mut placed: Vec<(usize, u32, usize)> = Vec::new();
    for entry in entries {
        let (key_ints, key) = entry.key_bytes();
        let value = entry.value_bytes();
        let at = chunks.len();
        let key_chunk = at + 1;
        let value_chunk = key_chunk + key.len().div_ceil(ARRAY_BYTES);
        let end = value_chunk + value.len().div_ceil(ARRAY_BYTES);
        if end > capacity || !matches!(entry.int_size, 1 | 2 | 4 | 8) {
            return None;
        }
        let mut e = Encoder::new(endian);
        e.u8(ENTRY);
        e.u8(entry.int_size);
        e.u16(CHAIN_END);
        e.u16(u16::try_from(key_chunk).ok()?);
        e.u16(u16::try_from(key_ints).ok()?);
        e.u16(if value.is_empty() { CHAIN_END } else { u16::try_from(value_chunk).ok()? });
        e.u16(u16::try_from(entry.value.len()).ok()?);
        e.u32(entry.cd);
        e.u64(entry.hash);
        chunks.push(e.finish());
        push_array(&mut chunks, &key, endian)?;
        push_array(&mut chunks, &value, endian)?;
        placed.push((((entry.hash >> drop) as usize) & (buckets - 1), entry.cd, at));
    }
    let used = chunks.len();
    for i in used..capacity {
        let next = if i + 1 < capacity { u16::try_from(i + 1).ok()? } else { CHAIN_END };
        chunks.push(link_chunk(FREE, &[], next, endian));
    }
    let mut table = vec![CHAIN_END; buckets];
    // The last placed stands first in its chain, so the largest cd goes first.
    placed.sort_by_key(|(bucket, cd, _)| (*bucket, std::cmp::Reverse(*cd)));
    for (bucket, _, at) in placed {
        let head = table.get_mut(bucket)?;
        let mut link = Encoder::new(endian);
        link.u16(*head);
        chunks.get_mut(at)?.get_mut(2..4)?.copy_from_slice(&link.finish());
        *head = u16::try_from(at).ok()?;
    }
    let mut e = Encoder::new(endian);
    e.words(&[BlockKind::LEAF, 0, prefix]);
    e.u32(Leaf::MAGIC);
    e.u16(u16::try_from(capacity - used).ok()?);
    e.u16(u16::try_from(entries.len()).ok()?);
    e.u16(prefix_len);
    e.u16(if used < capacity { u16::try_from(used).ok()? } else { CHAIN_END });
    e.u8(CD_SORTED);
    e.pad_to(HEADER);
    table.iter().for_each(|head| e.u16(*head));
    chunks.iter().for_each(|chunk| e.bytes(chunk));
    e.pad_to(1 << block_shift);
    Some(e.finish())
}

fn push_array(chunks: &mut Vec<Vec<u8>>, bytes: &[u8], endian: Endian) -> Option<()> {
    let pieces = bytes.chunks(ARRAY_BYTES).len();
    for (i, piece) in bytes.chunks(ARRAY_BYTES).enumerate() {
        let next = if i + 1 < pieces { u16::try_from(chunks.len() + 1).ok()? } else { CHAIN_END };
        chunks.push(link_chunk(ARRAY, piece, next, endian));
    }
    Some(())
}

fn link_chunk(kind: u8, bytes: &[u8], next: u16, endian: Endian) -> Vec<u8> {
    let mut e = Encoder::new(endian);
    e.u8(kind);
    e.bytes(bytes);
    e.pad_to(CHUNK - 2);
    e.u16(next);
    e.finish()
}

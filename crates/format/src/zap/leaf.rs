//! The leaves of a fat ZAP.
//!
//! ```text
//!   0 block type · 8 pad · 16 hash prefix · 24 magic (u32) · 28 free chunks (u16) · 30 entries (u16)
//!  32 prefix length (u16) · 34 free list (u16) · 36 flags (u8) · pad
//!  48 hash table: block size / 32 chunk numbers (u16), 0xffff ends
//!   … chunks of 24 bytes:
//!     entry  252 · integer size · next (u16) · name chunk · name integers · value chunk · value integers · cd (u32) · hash (u64)
//!     array  251 · 21 bytes · next (u16)
//!     free   253 · 21 bytes · next (u16)
//! ```

mod check;

use super::{BlockKind, WHAT, bad, block_shift};
use crate::cursor::{Cursor, DecodeError, Endian};

pub(super) const CHUNK: usize = 24;
pub(super) const ARRAY_BYTES: usize = 21;
pub(super) const CHAIN_END: u16 = 0xffff;
pub(super) const HEADER: usize = 48;
pub(super) const ENTRY: u8 = 252;
pub(super) const ARRAY: u8 = 251;

/// The header of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafHeader {
    /// Leading bits of the hashes that belong to this leaf.
    pub prefix: u64,
    /// Number of prefix bits.
    pub prefix_len: u16,
    /// Number of free chunks.
    pub free_chunks: u16,
    /// Number of entries.
    pub entries: u16,
    /// First chunk of the free list.
    pub free_list: u16,
    /// Bit 0: chains are sorted by collision differentiator.
    pub flags: u8,
}

/// A leaf, borrowed from its block.
#[derive(Clone, Copy, Debug)]
pub struct Leaf<'a> {
    /// The header.
    pub header: LeafHeader,
    block: &'a [u8],
    endian: Endian,
    shift: u32,
}

/// An entry of a leaf. [`Leaf::name`], [`Leaf::value_words`] etc. read its name and value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafEntry {
    /// Bytes of each integer of the value: 1, 2, 4 or 8.
    pub int_size: u8,
    /// Number of integers in the name: bytes including a NUL, or 64-bit words.
    pub name_ints: u16,
    /// Number of integers in the value.
    pub value_ints: u16,
    /// Collision differentiator: distinguishes entries of equal hash.
    pub cd: u32,
    /// The hash of the name.
    pub hash: u64,
    next: u16,
    name_chunk: u16,
    value_chunk: u16,
}

impl<'a> Leaf<'a> {
    /// The magic number.
    pub const MAGIC: u32 = 0x2ab_1eaf;

    /// Decodes the header of a whole leaf block.
    pub fn decode(block: &'a [u8], endian: Endian) -> Result<Self, DecodeError> {
        let shift = block_shift(block)?;
        let mut c = Cursor::new(block, endian, WHAT);
        let [kind, _, prefix] = c.words()?;
        let magic = c.u32()?;
        if kind != BlockKind::LEAF || magic != Self::MAGIC {
            return Err(DecodeError::Magic {
                what: "ZAP leaf",
                found: if kind == BlockKind::LEAF { magic.into() } else { kind },
            });
        }
        let free_chunks = c.u16()?;
        let entries = c.u16()?;
        let prefix_len = c.u16()?;
        let free_list = c.u16()?;
        let flags = c.u8()?;
        if u32::from(prefix_len) > 64 - (shift - 5) {
            return Err(bad("leaf prefix length", prefix_len.into()));
        }
        let header = LeafHeader { prefix, prefix_len, free_chunks, entries, free_list, flags };
        Ok(Leaf { header, block, endian, shift })
    }

    /// Number of chunks in the leaf.
    pub fn chunks(&self) -> usize {
        (self.block.len() - self.block.len() / 16) / CHUNK - 2
    }

    fn chunk(&self, index: u16) -> Result<&'a [u8], DecodeError> {
        let out = bad("leaf chunk", index.into());
        if usize::from(index) >= self.chunks() {
            return Err(out);
        }
        let at = HEADER + self.block.len() / 16 + usize::from(index) * CHUNK;
        self.block.get(at..at + CHUNK).ok_or(out)
    }

    /// Whether a hash begins with this leaf's prefix.
    pub fn owns(&self, hash: u64) -> bool {
        let len = u32::from(self.header.prefix_len);
        len == 0 || hash >> (64 - len.min(64)) == self.header.prefix
    }

    pub(super) fn entry_at(&self, index: u16) -> Result<LeafEntry, DecodeError> {
        let mut c = Cursor::new(self.chunk(index)?, self.endian, WHAT);
        let kind = c.u8()?;
        if kind != ENTRY {
            return Err(bad("leaf entry type", kind.into()));
        }
        let int_size = c.u8()?;
        if !matches!(int_size, 1 | 2 | 4 | 8) {
            return Err(bad("integer size", int_size.into()));
        }
        Ok(LeafEntry {
            int_size,
            next: c.u16()?,
            name_chunk: c.u16()?,
            name_ints: c.u16()?,
            value_chunk: c.u16()?,
            value_ints: c.u16()?,
            cd: c.u32()?,
            hash: c.u64()?,
        })
    }

    /// The entries whose hash is `hash`, in the order of their chain.
    pub fn find(&self, hash: u64) -> impl Iterator<Item = Result<LeafEntry, DecodeError>> + use<'a> {
        let bits = self.shift - 5;
        let drop = 64 - bits - u32::from(self.header.prefix_len).min(64 - bits);
        let bucket = (hash >> drop) & ((1 << bits) - 1);
        self.chain(bucket as usize).filter(move |e| e.as_ref().map_or(true, |e| e.hash == hash))
    }

    fn chain(&self, bucket: usize) -> impl Iterator<Item = Result<LeafEntry, DecodeError>> + use<'a> {
        let leaf = *self;
        let mut c = Cursor::new(self.block, self.endian, WHAT);
        let mut next = c.skip(HEADER + 2 * bucket).and_then(|()| c.u16()).unwrap_or(CHAIN_END);
        let mut left = self.chunks();
        std::iter::from_fn(move || {
            if next == CHAIN_END {
                return None;
            }
            if left == 0 {
                let looped = next;
                next = CHAIN_END;
                return Some(Err(bad("leaf chain loop at chunk", looped.into())));
            }
            left -= 1;
            let entry = leaf.entry_at(next);
            next = entry.as_ref().map_or(CHAIN_END, |e| e.next);
            Some(entry)
        })
    }

    /// All entries, in the order of the hash table's chains.
    pub fn entries(&self) -> impl Iterator<Item = Result<LeafEntry, DecodeError>> + use<'a> {
        let leaf = *self;
        let mut left = self.chunks();
        (0..1usize << (self.shift - 5)).flat_map(move |bucket| leaf.chain(bucket)).take_while(move |_| {
            // Bounds the walk if inconsistent chains merge.
            let more = left > 0;
            left = left.saturating_sub(1);
            more
        })
    }

    /// Reads `len` bytes from a chain of array chunks.
    fn array(&self, first: u16, len: usize) -> Result<Vec<u8>, DecodeError> {
        if len > self.block.len() {
            return Err(bad("array length", len as u64));
        }
        let mut out = Vec::with_capacity(len);
        let mut at = first;
        while out.len() < len {
            let mut c = Cursor::new(self.chunk(at)?, self.endian, WHAT);
            let kind = c.u8()?;
            if kind != ARRAY {
                return Err(bad("leaf array type", kind.into()));
            }
            out.extend_from_slice(c.bytes(ARRAY_BYTES.min(len - out.len()))?);
            let mut c = Cursor::new(self.chunk(at)?, self.endian, WHAT);
            c.skip(CHUNK - 2)?;
            at = c.u16()?;
        }
        Ok(out)
    }

    /// The name of an entry, without its NUL.
    pub fn name(&self, entry: &LeafEntry) -> Result<Vec<u8>, DecodeError> {
        let mut name = self.array(entry.name_chunk, entry.name_ints.into())?;
        if name.pop() != Some(0) {
            return Err(bad("name length", entry.name_ints.into()));
        }
        Ok(name)
    }

    /// The key of an entry in a ZAP with integer keys.
    pub fn key_words(&self, entry: &LeafEntry) -> Result<Vec<u64>, DecodeError> {
        Ok(integers(&self.array(entry.name_chunk, usize::from(entry.name_ints) * 8)?, 8))
    }

    /// The value's bytes as stored: big-endian integers of `int_size` bytes.
    pub fn value_bytes(&self, entry: &LeafEntry) -> Result<Vec<u8>, DecodeError> {
        self.array(entry.value_chunk, usize::from(entry.value_ints) * usize::from(entry.int_size))
    }

    /// The value's integers, widened to 64 bits.
    pub fn value_words(&self, entry: &LeafEntry) -> Result<Vec<u64>, DecodeError> {
        Ok(integers(&self.value_bytes(entry)?, entry.int_size.into()))
    }
}

fn integers(bytes: &[u8], size: usize) -> Vec<u64> {
    bytes.chunks_exact(size.max(1)).map(|c| c.iter().fold(0, |v, b| v << 8 | u64::from(*b))).collect()
}

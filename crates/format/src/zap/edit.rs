//! In-place edits of a leaf: insert, replace and remove entries, and split the leaf in two.
//!
//! ```text
//!  bucket ─► entry ─► entry ─► end          chains are sorted by collision differentiator
//!              ├─► name:  array ─► array
//!              └─► value: array
//!  free list ─► free ─► free ─► end
//! ```
//!
//! An edit works on a copy of the block. On inconsistent bytes it returns an error and the caller drops the copy, so
//! a leaf on disk is never half changed. Every walk terminates: taking a chunk from the free list or freeing it
//! changes its kind, so a loop reaches a chunk of the wrong kind; other walks count their steps.
//!
//! An edit keeps the byte order of the leaf.

use super::build::{NewEntry, NewKey};
use super::leaf::{ARRAY, ARRAY_BYTES, CHAIN_END, CHUNK, ENTRY, HEADER};
use super::{BlockKind, Leaf, LeafEntry, bad, block_shift};
use crate::cursor::{DecodeError, Endian};

const FREE: u8 = 253;
/// Leaf flag: the chains are sorted by collision differentiator.
const CD_SORTED: u8 = 1;

// Offsets in the header.
const PREFIX: usize = 16;
const MAGIC: usize = 24;
const FREE_CHUNKS: usize = 28;
const ENTRIES: usize = 30;
const PREFIX_LEN: usize = 32;
const FREE_LIST: usize = 34;
const FLAGS: usize = 36;
// Offsets in an entry's chunk.
const NEXT: usize = 2;
const NAME_CHUNK: usize = 4;
const VALUE_CHUNK: usize = 8;
const CD: usize = 12;
const HASH: usize = 16;
/// Offset of the link in array and free chunks.
const LINK: usize = CHUNK - 2;

/// A leaf block that is being edited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafEdit {
    block: Vec<u8>,
    endian: Endian,
    shift: u32,
}

/// Position of an entry in a leaf; valid until the leaf changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Byte offset of the link to the entry's chunk.
    link: usize,
    chunk: u16,
}

impl LeafEdit {
    /// An empty leaf of `1 << block_shift` bytes for the hashes that begin with the `prefix_len` bits `prefix`;
    /// `None` for an invalid size or prefix length. `sorted` sets the flag of sorted chains, which ZAPs that
    /// normalise names require.
    pub fn new(block_shift: u32, prefix: u64, prefix_len: u16, sorted: bool, endian: Endian) -> Option<Self> {
        let bits = block_shift.checked_sub(5).filter(|_| (9..=24).contains(&block_shift))?;
        (64 - bits).checked_sub(u32::from(prefix_len))?;
        let mut leaf = LeafEdit { block: vec![0; 1 << block_shift], endian, shift: block_shift };
        leaf.start(prefix, prefix_len, sorted).ok()?;
        Some(leaf)
    }

    fn start(&mut self, prefix: u64, prefix_len: u16, sorted: bool) -> Result<(), DecodeError> {
        self.put_u64(0, BlockKind::LEAF)?;
        self.put_u64(PREFIX, prefix)?;
        self.put_u32(MAGIC, Leaf::MAGIC)?;
        self.put_u16(PREFIX_LEN, prefix_len)?;
        self.put(FLAGS, &[if sorted { CD_SORTED } else { 0 }])?;
        self.clear_buckets()?;
        // The largest leaves have more chunks than chunk numbers; the excess is never used.
        let chunks = self.capacity() as u16;
        self.put_u16(FREE_CHUNKS, chunks)?;
        for chunk in 0..chunks {
            let at = self.chunk_at(chunk)?;
            self.put(at, &[FREE])?;
            self.put_u16(at + LINK, if chunk + 1 < chunks { chunk + 1 } else { CHAIN_END })?;
        }
        Ok(())
    }

    /// Opens a whole leaf block for editing.
    pub fn open(block: Vec<u8>, endian: Endian) -> Result<Self, DecodeError> {
        let shift = block_shift(&block)?;
        Leaf::decode(&block, endian)?;
        Ok(LeafEdit { block, endian, shift })
    }

    /// The current leaf, for reading.
    pub fn leaf(&self) -> Result<Leaf<'_>, DecodeError> {
        Leaf::decode(&self.block, self.endian)
    }

    /// The edited block.
    pub fn into_block(self) -> Vec<u8> {
        self.block
    }

    /// Number of chunks that an empty leaf of this size has.
    pub fn capacity(&self) -> usize {
        Self::capacity_of(self.shift)
    }

    /// Number of chunks that an empty leaf of `1 << block_shift` bytes has.
    pub fn capacity_of(block_shift: u32) -> usize {
        let len = 1usize << block_shift.clamp(9, 24);
        ((len - len / 16) / CHUNK - 2).min(usize::from(CHAIN_END))
    }

    fn get<const N: usize>(&self, at: usize) -> Result<[u8; N], DecodeError> {
        let bytes = self.block.get(at..).and_then(|b| b.first_chunk::<N>());
        bytes.copied().ok_or(bad("leaf offset", at as u64))
    }

    fn u16(&self, at: usize) -> Result<u16, DecodeError> {
        let bytes = self.get(at)?;
        Ok(if self.endian == Endian::Little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    }

    fn u32(&self, at: usize) -> Result<u32, DecodeError> {
        let bytes = self.get(at)?;
        Ok(if self.endian == Endian::Little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    }

    fn u64(&self, at: usize) -> Result<u64, DecodeError> {
        let bytes = self.get(at)?;
        Ok(if self.endian == Endian::Little { u64::from_le_bytes(bytes) } else { u64::from_be_bytes(bytes) })
    }

    fn put(&mut self, at: usize, bytes: &[u8]) -> Result<(), DecodeError> {
        let target = self.block.get_mut(at..).and_then(|b| b.get_mut(..bytes.len()));
        target.ok_or(bad("leaf offset", at as u64))?.copy_from_slice(bytes);
        Ok(())
    }

    fn put_u16(&mut self, at: usize, v: u16) -> Result<(), DecodeError> {
        self.put(at, &if self.endian == Endian::Little { v.to_le_bytes() } else { v.to_be_bytes() })
    }

    fn put_u32(&mut self, at: usize, v: u32) -> Result<(), DecodeError> {
        self.put(at, &if self.endian == Endian::Little { v.to_le_bytes() } else { v.to_be_bytes() })
    }

    fn put_u64(&mut self, at: usize, v: u64) -> Result<(), DecodeError> {
        self.put(at, &if self.endian == Endian::Little { v.to_le_bytes() } else { v.to_be_bytes() })
    }

    /// Adds `by` to the counter at `at` in the header.
    fn count(&mut self, at: usize, by: i16) -> Result<(), DecodeError> {
        let now = self.u16(at)?;
        let new = now.checked_add_signed(by).ok_or(bad("leaf count", now.into()))?;
        self.put_u16(at, new)
    }

    /// Byte offset of a chunk.
    fn chunk_at(&self, chunk: u16) -> Result<usize, DecodeError> {
        if usize::from(chunk) >= self.capacity() {
            return Err(bad("leaf chunk", chunk.into()));
        }
        Ok(HEADER + self.block.len() / 16 + usize::from(chunk) * CHUNK)
    }

    /// Byte offset of a chunk; an error if it is not of kind `kind`.
    fn chunk_of_kind(&self, chunk: u16, kind: u8) -> Result<usize, DecodeError> {
        let at = self.chunk_at(chunk)?;
        match self.get::<1>(at)? {
            [found] if found == kind => Ok(at),
            [found] => Err(bad("leaf chunk type", found.into())),
        }
    }

    fn clear_buckets(&mut self) -> Result<(), DecodeError> {
        let end = HEADER + self.block.len() / 16;
        self.block.get_mut(HEADER..end).ok_or(bad("leaf offset", end as u64))?.fill(0xff);
        Ok(())
    }

    /// Byte offset of the hash bucket of a hash: the head of its chain.
    fn bucket(&self, hash: u64) -> Result<usize, DecodeError> {
        let bits = self.shift - 5;
        let len = self.u16(PREFIX_LEN)?;
        let drop = (64 - bits).checked_sub(len.into()).ok_or(bad("leaf prefix length", len.into()))?;
        Ok(HEADER + 2 * ((hash >> drop) as usize & ((1 << bits) - 1)))
    }

    /// The entries on the chain of a hash: offset of the link to the entry, its chunk, and the chunk's offset.
    fn chain(&self, hash: u64) -> Result<Vec<(usize, u16, usize)>, DecodeError> {
        let mut link = self.bucket(hash)?;
        let mut out = Vec::new();
        loop {
            let chunk = self.u16(link)?;
            if chunk == CHAIN_END {
                return Ok(out);
            }
            if out.len() >= self.capacity() {
                return Err(bad("leaf chain loop at chunk", chunk.into()));
            }
            let at = self.chunk_of_kind(chunk, ENTRY)?;
            out.push((link, chunk, at));
            link = at + NEXT;
        }
    }

    /// The first entry of a hash for which `is` returns true, and its position.
    pub fn find(
        &self,
        hash: u64,
        mut is: impl FnMut(&Leaf<'_>, &LeafEntry) -> Result<bool, DecodeError>,
    ) -> Result<Option<(LeafEntry, Slot)>, DecodeError> {
        let leaf = self.leaf()?;
        for (link, chunk, _) in self.chain(hash)? {
            let entry = leaf.entry_at(chunk)?;
            if entry.hash == hash && is(&leaf, &entry)? {
                return Ok(Some((entry, Slot { link, chunk })));
            }
        }
        Ok(None)
    }

    fn take_chunk(&mut self, kind: u8) -> Result<(u16, usize), DecodeError> {
        let chunk = self.u16(FREE_LIST)?;
        let at = self.chunk_of_kind(chunk, FREE)?;
        let next = self.u16(at + LINK)?;
        self.put_u16(FREE_LIST, next)?;
        self.count(FREE_CHUNKS, -1)?;
        self.put(at, &[0; CHUNK])?;
        self.put(at, &[kind])?;
        Ok((chunk, at))
    }

    fn free_chunk(&mut self, chunk: u16, kind: u8) -> Result<(), DecodeError> {
        let at = self.chunk_of_kind(chunk, kind)?;
        let next = self.u16(FREE_LIST)?;
        self.put(at, &[0; CHUNK])?;
        self.put(at, &[FREE])?;
        self.put_u16(at + LINK, next)?;
        self.put_u16(FREE_LIST, chunk)?;
        self.count(FREE_CHUNKS, 1)
    }

    /// Writes an array into chunks of the free list and returns the first chunk.
    fn write_array(&mut self, bytes: &[u8]) -> Result<u16, DecodeError> {
        let mut head = CHAIN_END;
        let mut before = None;
        for piece in bytes.chunks(ARRAY_BYTES) {
            let (chunk, at) = self.take_chunk(ARRAY)?;
            self.put(at + 1, piece)?;
            self.put_u16(at + LINK, CHAIN_END)?;
            match before {
                None => head = chunk,
                Some(before) => self.put_u16(before + LINK, chunk)?,
            }
            before = Some(at);
        }
        Ok(head)
    }

    /// The chunks of an array.
    fn array_chunks(&self, first: u16) -> Result<Vec<u16>, DecodeError> {
        let mut out = Vec::new();
        let mut chunk = first;
        while chunk != CHAIN_END {
            if out.len() >= self.capacity() {
                return Err(bad("leaf array loop at chunk", chunk.into()));
            }
            out.push(chunk);
            chunk = self.u16(self.chunk_of_kind(chunk, ARRAY)? + LINK)?;
        }
        Ok(out)
    }

    fn free_array(&mut self, first: u16) -> Result<(), DecodeError> {
        // Free in reverse, so that the free list is in ascending order again.
        self.array_chunks(first)?.into_iter().rev().try_for_each(|chunk| self.free_chunk(chunk, ARRAY))
    }

    /// The lowest collision differentiator that no entry of the hash uses.
    fn unused_cd(&self, hash: u64) -> Result<u32, DecodeError> {
        let mut taken = Vec::new();
        for (_, _, at) in self.chain(hash)? {
            if self.u64(at + HASH)? == hash {
                taken.push(self.u32(at + CD)?);
            }
        }
        taken.sort_unstable();
        Ok(taken.iter().zip(0..).find(|(cd, n)| **cd != *n).map_or(taken.len() as u32, |(_, n)| n))
    }

    /// Links an entry's chunk into its chain, after all entries with a smaller or equal differentiator.
    fn link(&mut self, chunk: u16) -> Result<(), DecodeError> {
        let at = self.chunk_of_kind(chunk, ENTRY)?;
        let hash = self.u64(at + HASH)?;
        let cd = self.u32(at + CD)?;
        let mut link = self.bucket(hash)?;
        for (before, _, other) in self.chain(hash)? {
            link = before;
            if self.u32(other + CD)? > cd {
                break;
            }
            link = other + NEXT;
        }
        let next = self.u16(link)?;
        self.put_u16(at + NEXT, next)?;
        self.put_u16(link, chunk)
    }

    /// Inserts an entry with its `cd` or, if that is [`NewEntry::ANY_CD`], the lowest unused one. Returns the
    /// differentiator; `None` if the leaf is full.
    ///
    /// # Errors
    /// [`DecodeError`] if the leaf is inconsistent or the entry's integer size is invalid.
    pub fn insert(&mut self, entry: &NewEntry) -> Result<Option<u32>, DecodeError> {
        if !matches!(entry.int_size, 1 | 2 | 4 | 8) {
            return Err(bad("integer size", entry.int_size.into()));
        }
        if entry.chunks() > usize::from(self.u16(FREE_CHUNKS)?) {
            return Ok(None);
        }
        let cd = if entry.cd == NewEntry::ANY_CD { self.unused_cd(entry.hash)? } else { entry.cd };
        let name_ints = entry.key.ints();
        let value_ints = entry.value.len();
        let ints = |n: usize| u16::try_from(n).map_err(|_| bad("array length", n as u64));
        let (chunk, at) = self.take_chunk(ENTRY)?;
        let name_chunk = self.write_array(&entry.key.bytes())?;
        let value_chunk = self.write_array(&entry.value_bytes())?;
        self.put(at + 1, &[entry.int_size])?;
        self.put_u16(at + NAME_CHUNK, name_chunk)?;
        self.put_u16(at + NAME_CHUNK + 2, ints(name_ints)?)?;
        self.put_u16(at + VALUE_CHUNK, value_chunk)?;
        self.put_u16(at + VALUE_CHUNK + 2, ints(value_ints)?)?;
        self.put_u32(at + CD, cd)?;
        self.put_u64(at + HASH, entry.hash)?;
        self.link(chunk)?;
        self.count(ENTRIES, 1)?;
        Ok(Some(cd))
    }

    /// Replaces the value of the entry at `slot`; returns `false` and changes nothing if the leaf has too few free
    /// chunks.
    pub fn replace(&mut self, slot: Slot, int_size: u8, value: &[u64]) -> Result<bool, DecodeError> {
        let at = self.chunk_of_kind(slot.chunk, ENTRY)?;
        let old = self.u16(at + VALUE_CHUNK)?;
        let freed = self.array_chunks(old)?.len();
        let new = NewEntry { hash: 0, cd: 0, key: NewKey::Words(Vec::new()), int_size, value: value.to_vec() };
        let bytes = new.value_bytes();
        let ints = u16::try_from(value.len()).map_err(|_| bad("array length", value.len() as u64))?;
        if bytes.len().div_ceil(ARRAY_BYTES) > usize::from(self.u16(FREE_CHUNKS)?) + freed {
            return Ok(false);
        }
        self.free_array(old)?;
        let chunk = self.write_array(&bytes)?;
        self.put(at + 1, &[int_size])?;
        self.put_u16(at + VALUE_CHUNK, chunk)?;
        self.put_u16(at + VALUE_CHUNK + 2, ints)?;
        Ok(true)
    }

    /// Removes the entry at `slot`.
    pub fn remove(&mut self, slot: Slot) -> Result<(), DecodeError> {
        let at = self.chunk_of_kind(slot.chunk, ENTRY)?;
        if self.u16(slot.link)? != slot.chunk {
            return Err(bad("leaf link", slot.link as u64));
        }
        let next = self.u16(at + NEXT)?;
        self.put_u16(slot.link, next)?;
        self.discard(slot.chunk)?;
        Ok(())
    }

    /// Frees the chunks of an entry that is not linked into a chain.
    fn discard(&mut self, chunk: u16) -> Result<(), DecodeError> {
        let at = self.chunk_of_kind(chunk, ENTRY)?;
        let name = self.u16(at + NAME_CHUNK)?;
        let value = self.u16(at + VALUE_CHUNK)?;
        self.free_array(value)?;
        self.free_array(name)?;
        self.free_chunk(chunk, ENTRY)?;
        self.count(ENTRIES, -1)
    }

    /// Splits the leaf by the next bit of the hash: entries with a 0 bit stay, the others move to the new leaf that
    /// is returned.
    ///
    /// # Errors
    /// [`DecodeError`] if the leaf is inconsistent or the prefix already has all bits.
    pub fn split(&mut self) -> Result<LeafEdit, DecodeError> {
        let prefix = self.u64(PREFIX)?;
        let len = self.u16(PREFIX_LEN)?;
        let [flags] = self.get(FLAGS)?;
        let full = bad("leaf prefix length", len.into());
        let bit = 63u32.checked_sub(len.into()).ok_or(full.clone())?;
        let sorted = flags & CD_SORTED != 0;
        let mut upper = Self::new(self.shift, prefix << 1 | 1, len + 1, sorted, self.endian).ok_or(full)?;
        self.put_u64(PREFIX, prefix << 1)?;
        self.put_u16(PREFIX_LEN, len + 1)?;
        self.clear_buckets()?;
        for chunk in 0..self.capacity() as u16 {
            let at = self.chunk_at(chunk)?;
            if self.get::<1>(at)? != [ENTRY] {
                continue;
            }
            if self.u64(at + HASH)? >> bit & 1 == 0 {
                self.link(chunk)?;
            } else {
                self.move_entry(at, &mut upper)?;
                self.discard(chunk)?;
            }
        }
        Ok(upper)
    }

    /// Copies the entry whose chunk is at byte offset `at` into another leaf.
    fn move_entry(&self, at: usize, to: &mut LeafEdit) -> Result<(), DecodeError> {
        let (chunk, new) = to.take_chunk(ENTRY)?;
        to.put(new, &self.get::<CHUNK>(at)?)?;
        for field in [NAME_CHUNK, VALUE_CHUNK] {
            let mut bytes = Vec::new();
            for piece in self.array_chunks(self.u16(at + field)?)? {
                bytes.extend(self.get::<ARRAY_BYTES>(self.chunk_at(piece)? + 1)?);
            }
            let head = to.write_array(&bytes)?;
            to.put_u16(new + field, head)?;
        }
        to.link(chunk)?;
        to.count(ENTRIES, 1)
    }

    /// Merges this empty leaf with its empty sibling: drops the last bit of its prefix.
    pub fn widen(&mut self) -> Result<(), DecodeError> {
        let prefix = self.u64(PREFIX)?;
        let len = self.u16(PREFIX_LEN)?;
        let entries = self.u16(ENTRIES)?;
        if entries != 0 {
            return Err(bad("leaf entries", entries.into()));
        }
        let len = len.checked_sub(1).ok_or(bad("leaf prefix length", 0))?;
        self.put_u64(PREFIX, prefix >> 1)?;
        self.put_u16(PREFIX_LEN, len)
    }
}

//! Changes fat ZAPs.
//!
//! A full leaf is split by the next bit of its hashes; half of its pointers then lead to the new leaf. A leaf with only
//! one pointer cannot be split before the table has grown. The table doubles by being copied, one block with each entry
//! that is added: while it grows, pointers are set in both copies (`next_block` of [`PointerTable`]).
//!
//! ```text
//!   table   a a b c     split a ──►  a A b c     full: c has one pointer ──►  a a A A b b c C
//! ```
//!
//! Two sibling leaves that are both empty are merged.
//!
//! Invariants: `free_block` is above every block in use; a leaf is referred to by its own range of pointers, and by no
//! other. Each block is checked against these before it is followed, so a malformed ZAP ends in an error.

use super::{Change, FAT_SHIFT, NOT_TEXT, ZapWriter, fat_entry, hash_of};
use crate::error::ObjectError;
use crate::object::Object;
use crate::zap::entry::{Key, Match, hash_bits};
use crate::zap::name::NormalizedName;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_format::zap::{FatHeader, Leaf, LeafEdit, LeafEntry, LeafHeader, MicroZap, NewEntry, NormFlags};
use weir_format::zap::{PointerTable, Slot, ZapFlags};
use weir_format::{Cursor, Endian};

/// If a leaf with one pointer has fewer free chunks, the table grows in advance (`ZAP_LEAF_LOW_WATER`).
const LOW_WATER_CHUNKS: u16 = 20;
/// Size of the header's fields in bytes.
const FIELDS_BYTES: usize = 13 * 8;
const TABLE: &str = "a ZAP's header is too short for its table";
const LITTLE: Endian = Endian::Little;

/// A fat ZAP that is being changed: the blocks that will be written.
pub(super) struct Fat<'a> {
    writer: ZapWriter<'a>,
    object: Option<Arc<Object>>,
    header: FatHeader,
    /// The header's block, whose second half is the embedded table.
    first: Vec<u8>,
    /// Whether more of that block has changed than the header's fields.
    first_changed: bool,
    dirty: BTreeMap<u64, Vec<u8>>,
    freed: Vec<(u64, u64)>,
}

impl<'a> Fat<'a> {
    /// Creates an empty ZAP. [`Fat::flush`] writes its blocks.
    pub async fn start(
        writer: ZapWriter<'a>,
        block_shift: u8,
        salt: u64,
        norm: NormFlags,
        flags: ZapFlags,
    ) -> Result<Self, ObjectError> {
        let shift = u32::from(block_shift);
        let header = FatHeader {
            table: PointerTable { shift: shift.saturating_sub(4), ..PointerTable::default() },
            free_block: 2,
            leaves: 1,
            entries: 0,
            salt,
            norm,
            flags,
            block_shift: shift,
        };
        let leaf = LeafEdit::new(shift, 0, 0, norm.any(), LITTLE);
        let leaf = leaf.ok_or(ObjectError::TooLong { what: "the block size of a ZAP" })?;
        let mut first = header.encode(LITTLE);
        first.extend((0..header.table_len()).flat_map(|_| 1u64.to_le_bytes()));
        let dirty = BTreeMap::from([(1, leaf.into_block())]);
        Ok(Fat { writer, object: None, header, first, first_changed: true, dirty, freed: Vec::new() })
    }

    /// Converts a micro ZAP into a fat one with the same entries.
    pub async fn upgrade(writer: ZapWriter<'a>, micro: &MicroZap<'_>) -> Result<Self, ObjectError> {
        let mut fat = Self::start(writer, FAT_SHIFT, micro.salt, micro.norm, ZapFlags(0)).await?;
        for entry in micro.entries() {
            let key = Key::Name(entry.name.to_vec());
            let hash = hash_of(&key, micro.salt, ZapFlags(0), micro.norm).ok_or(NOT_TEXT)?;
            fat.add(&fat_entry(&entry, hash)).await?;
        }
        Ok(fat)
    }

    /// Opens the ZAP with header block `first`; `foreign`: the block has the other byte order.
    pub fn open(
        writer: ZapWriter<'a>,
        object: Arc<Object>,
        first: Vec<u8>,
        foreign: bool,
    ) -> Result<Self, ObjectError> {
        let header = FatHeader::decode(&first, LITTLE).map_err(|e| ObjectError::decode(writer.place(0), e))?;
        let dirty = BTreeMap::new();
        let freed = Vec::new();
        Ok(Fat { writer, object: Some(object), header, first, first_changed: foreign, dirty, freed })
    }

    /// Writes the changed blocks in one step: a concurrent reader sees all changes or none.
    pub async fn flush(&mut self) -> Result<(), ObjectError> {
        let ZapWriter { rq, set, tx, id } = self.writer;
        let mut head = self.header.encode(LITTLE);
        let dirty = std::mem::take(&mut self.dirty);
        let mut blocks: Vec<(u64, Bytes)> = dirty.into_iter().map(|(n, bytes)| (n, Bytes::from(bytes))).collect();
        if self.first_changed || blocks.len() > 1 {
            let place = self.first.get_mut(..head.len());
            place.ok_or(ObjectError::Corrupt { place: self.writer.place(0), why: TABLE })?.copy_from_slice(&head);
            blocks.push((0, Bytes::from(std::mem::take(&mut self.first))));
            let block_bytes = Some(1u32 << self.header.block_shift);
            set.writes().write_blocks(rq, tx, id, block_bytes, &blocks).await?;
        } else {
            // If one leaf got or lost an entry, only the count in the header has changed.
            set.writes().write_blocks(rq, tx, id, None, &blocks).await?;
            head.truncate(FIELDS_BYTES);
            set.writes().write(rq, tx, id, 0, &head).await?;
        }
        for (block, count) in std::mem::take(&mut self.freed) {
            let shift = self.header.block_shift;
            set.frees().punch(rq, tx, id, block << shift, count << shift).await?;
        }
        Ok(())
    }

    fn corrupt(&self, block: u64, why: &'static str) -> ObjectError {
        ObjectError::Corrupt { place: self.writer.place(block), why }
    }

    /// Takes a block to change it; `None` for a hole.
    async fn take(&mut self, block: u64) -> Result<Option<Vec<u8>>, ObjectError> {
        if block == 0 || block >= self.header.free_block {
            return Err(self.corrupt(0, "a ZAP leads to a block that it does not have"));
        }
        match (self.dirty.remove(&block), &self.object) {
            (Some(bytes), _) => Ok(Some(bytes)),
            (None, Some(object)) => self.writer.load(object, block).await,
            (None, None) => Ok(None),
        }
    }

    async fn take_table(&mut self, block: u64) -> Result<Vec<u8>, ObjectError> {
        Ok(self.take(block).await?.unwrap_or_else(|| vec![0; 1 << self.header.block_shift]))
    }

    async fn take_leaf(&mut self, hash: u64) -> Result<(u64, LeafEdit), ObjectError> {
        let number = self.pointer(self.header.index(hash)).await?;
        let bytes = self.take(number).await?.ok_or(self.corrupt(number, "a block of a ZAP is a hole"))?;
        let leaf = self.decoded(number, LeafEdit::open(bytes, LITTLE))?;
        match self.decoded(number, leaf.leaf())?.owns(hash) {
            true => Ok((number, leaf)),
            false => Err(self.corrupt(number, "a leaf of other hashes")),
        }
    }

    fn decoded<T>(&self, block: u64, result: Result<T, weir_format::DecodeError>) -> Result<T, ObjectError> {
        result.map_err(|e| ObjectError::decode(self.writer.place(block), e))
    }

    fn put(&mut self, block: u64, bytes: Vec<u8>) {
        self.dirty.insert(block, bytes);
    }

    fn allocate(&mut self, blocks: u64) -> u64 {
        let first = self.header.free_block;
        self.header.free_block = first.saturating_add(blocks);
        first
    }

    /// Returns the pointer at `index` of the table.
    async fn pointer(&self, index: u64) -> Result<u64, ObjectError> {
        if self.header.is_embedded() {
            return self.decoded(0, self.header.embedded_pointer(&self.first, LITTLE, index));
        }
        let (block, at) = self.header.external_pointer(index);
        let (bytes, endian) = self.look(block).await?;
        let mut cursor = Cursor::new(&bytes, endian, "ZAP pointer table");
        self.decoded(block, cursor.skip(at).and_then(|()| cursor.u64()))
    }

    /// Reads the present block, without changing it.
    async fn look(&self, block: u64) -> Result<(Bytes, Endian), ObjectError> {
        let hole = || self.corrupt(block, "a block of a ZAP is a hole");
        match (self.dirty.get(&block), &self.object) {
            (Some(bytes), _) => Ok((Bytes::copy_from_slice(bytes), LITTLE)),
            (None, Some(object)) => {
                let ZapWriter { rq, set, .. } = self.writer;
                set.reader().read_ordered_block(rq, object, block).await?.ok_or_else(hole)
            }
            (None, None) => Err(hole()),
        }
    }

    async fn leaf_header(&self, block: u64) -> Result<LeafHeader, ObjectError> {
        let (bytes, endian) = self.look(block).await?;
        self.decoded(block, Leaf::decode(&bytes, endian).map(|leaf| leaf.header))
    }

    /// Sets `count` pointers from `index` on to `leaf`, in the table and in the copy that it grows into.
    async fn point(&mut self, index: u64, count: u64, leaf: u64) -> Result<(), ObjectError> {
        if self.header.is_embedded() {
            let start = (1usize << self.header.block_shift >> 1) + 8 * index as usize;
            let range = self.first.get_mut(start..).and_then(|b| b.get_mut(..8 * count as usize));
            let range = range.ok_or(ObjectError::Corrupt { place: self.writer.place(0), why: TABLE })?;
            self.first_changed = true;
            range.chunks_exact_mut(8).for_each(|p| p.copy_from_slice(&leaf.to_le_bytes()));
            return Ok(());
        }
        let table = self.header.table;
        self.fill(table.first_block, index, count, leaf).await?;
        if table.next_block != 0 {
            self.fill(table.next_block, index * 2, count * 2, leaf).await?;
        }
        Ok(())
    }

    /// Sets pointers of the table that begins at block `table`.
    async fn fill(&mut self, table: u64, index: u64, count: u64, leaf: u64) -> Result<(), ObjectError> {
        let per_block = 1u64 << (self.header.block_shift - 3);
        let mut at = index;
        let end = index + count;
        while at < end {
            let block = table.saturating_add(at / per_block);
            let until = (at / per_block + 1).saturating_mul(per_block).min(end);
            let mut bytes = self.take_table(block).await?;
            let range = (at % per_block) as usize * 8..((until - 1) % per_block + 1) as usize * 8;
            let pointers = bytes.get_mut(range).unwrap_or_default();
            pointers.chunks_exact_mut(8).for_each(|p| p.copy_from_slice(&leaf.to_le_bytes()));
            self.put(block, bytes);
            at = until;
        }
        Ok(())
    }

    pub async fn change(&mut self, key: &Key, change: Change<'_>) -> Result<bool, ObjectError> {
        if self.header.flags.uint64_key() != matches!(key, Key::Words(_)) {
            return Err(ObjectError::Unsupported { what: "a key of the other kind than the ZAP's" });
        }
        let (norm, flags) = (self.header.norm, self.header.flags);
        let hash = hash_of(key, self.header.salt, flags, norm).ok_or(NOT_TEXT);
        let value = match change {
            Change::Remove(how) => {
                let Ok(hash) = hash else { return Ok(false) };
                return self.remove(key, hash, how).await;
            }
            Change::Insert(value) | Change::Put(value) => value,
        };
        let (int_size, value) = (value.int_size, value.words.clone());
        let entry = NewEntry { hash: hash?, cd: NewEntry::ANY_CD, key: key.new_key(), int_size, value };
        if entry.chunks() > LeafEdit::capacity_of(self.header.block_shift) {
            return Err(ObjectError::TooLong { what: "an entry of a ZAP" });
        }
        self.enter(key, &entry, change).await
    }

    /// Adds an entry, or changes the one with that name.
    async fn enter(&mut self, key: &Key, entry: &NewEntry, change: Change<'_>) -> Result<bool, ObjectError> {
        loop {
            let (number, mut leaf) = self.take_leaf(entry.hash).await?;
            let found = self.decoded(number, find(&leaf, key, entry.hash, self.header.norm, Match::Exact))?;
            let done = match (found, change) {
                (Some(_), Change::Insert(_)) => return Err(self.writer.exists(key)),
                (Some((_, slot)), _) => self.decoded(number, leaf.replace(slot, entry.int_size, &entry.value))?,
                (None, _) => self.decoded(number, leaf.insert(entry))?.is_some(),
            };
            if !done {
                self.expand(number, leaf, entry.hash).await?;
                continue;
            }
            if found.is_none() {
                self.header.entries = self.header.entries.saturating_add(1);
            }
            let now = self.decoded(number, leaf.leaf())?.header;
            self.put(number, leaf.into_block());
            self.grow_ahead(now.prefix_len, now.free_chunks).await?;
            return Ok(found.is_some());
        }
    }

    /// Adds an entry that is known to be new.
    async fn add(&mut self, entry: &NewEntry) -> Result<(), ObjectError> {
        loop {
            let (number, mut leaf) = self.take_leaf(entry.hash).await?;
            if self.decoded(number, leaf.insert(entry))?.is_some() {
                self.header.entries += 1;
                self.put(number, leaf.into_block());
                return Ok(());
            }
            self.expand(number, leaf, entry.hash).await?;
        }
    }

    /// Splits a full leaf.
    async fn expand(&mut self, number: u64, mut leaf: LeafEdit, hash: u64) -> Result<(), ObjectError> {
        let len = u32::from(self.decoded(number, leaf.leaf())?.header.prefix_len);
        while len == self.header.table.shift {
            if !self.grow_table().await? {
                return Err(ObjectError::TooLong { what: "a list of names with nearly the same hash" });
            }
        }
        let Some(diff) = self.header.table.shift.checked_sub(len + 1) else {
            return Err(self.corrupt(number, "a leaf with a longer prefix than the table has"));
        };
        let prefix = if len == 0 { 0 } else { hash >> (64 - len) };
        let sibling = (prefix << 1 | 1) << diff;
        let upper = self.decoded(number, leaf.split())?;
        let block = self.allocate(1);
        self.header.leaves = self.header.leaves.saturating_add(1);
        self.put(number, leaf.into_block());
        self.put(block, upper.into_block());
        self.point(sibling, 1 << diff, block).await
    }

    /// Grows the table by a step if it is growing, or will have to soon because a leaf is nearly full.
    async fn grow_ahead(&mut self, prefix_len: u16, free_chunks: u16) -> Result<(), ObjectError> {
        let nearly_full = u32::from(prefix_len) == self.header.table.shift && free_chunks < LOW_WATER_CHUNKS;
        if nearly_full || self.header.table.next_block != 0 {
            self.grow_table().await?;
        }
        Ok(())
    }

    /// Takes a step towards a table of twice the size; returns false if the table has its maximum size.
    async fn grow_table(&mut self) -> Result<bool, ObjectError> {
        // An index with more bits than a hash could not distinguish more entries.
        if self.header.table.shift + 2 >= hash_bits(self.header.flags) {
            return Ok(false);
        }
        if self.header.is_embedded() {
            let half = 1usize << self.header.block_shift >> 1;
            let pointers = self.first.get(half..).unwrap_or_default().to_vec();
            let block = self.allocate(1);
            self.put(block, doubled(&pointers));
            self.first_changed = true;
            self.first.truncate(half);
            self.first.resize(2 * half, 0);
            let table = &mut self.header.table;
            (table.first_block, table.blocks, table.shift) = (block, 1, table.shift + 1);
            return Ok(true);
        }
        let mut table = self.header.table;
        if table.next_block == 0 {
            table.next_block = self.allocate(table.blocks * 2);
            table.blocks_copied = 0;
        }
        if table.blocks_copied >= table.blocks {
            return Err(self.corrupt(0, "a pointer table that has grown and still grows"));
        }
        let source = table.first_block.saturating_add(table.blocks_copied);
        let bytes = self.take(source).await?.ok_or(self.corrupt(source, "a pointer table with a hole"))?;
        let target = table.next_block.saturating_add(2 * table.blocks_copied);
        let (lower, upper) = bytes.split_at(bytes.len() / 2);
        self.put(target, doubled(lower));
        self.put(target + 1, doubled(upper));
        self.put(source, bytes);
        table.blocks_copied += 1;
        if table.blocks_copied == table.blocks {
            (table.first_block..table.first_block + table.blocks).for_each(|b| drop(self.dirty.remove(&b)));
            self.freed.push((table.first_block, table.blocks));
            let first_block = table.next_block;
            let (blocks, shift) = (table.blocks * 2, table.shift + 1);
            table = PointerTable { first_block, blocks, shift, next_block: 0, blocks_copied: 0 };
        }
        self.header.table = table;
        Ok(true)
    }

    async fn remove(&mut self, key: &Key, hash: u64, how: Match) -> Result<bool, ObjectError> {
        let (number, mut leaf) = self.take_leaf(hash).await?;
        let mut found = self.decoded(number, find(&leaf, key, hash, self.header.norm, Match::Exact))?;
        if found.is_none() && how != Match::Exact {
            found = self.decoded(number, find(&leaf, key, hash, self.header.norm, how))?;
        }
        let Some((_, slot)) = found else { return Ok(false) };
        self.decoded(number, leaf.remove(slot))?;
        self.header.entries = self.header.entries.saturating_sub(1);
        let left = self.decoded(number, leaf.leaf())?.header.entries;
        self.put(number, leaf.into_block());
        if left == 0 {
            self.shrink(hash).await?;
        }
        Ok(true)
    }

    /// Merges the empty leaf of `hash` with its sibling, as long as that is empty, too.
    async fn shrink(&mut self, hash: u64) -> Result<(), ObjectError> {
        let mut cut = false;
        loop {
            let own = self.pointer(self.header.index(hash)).await?;
            let header = self.leaf_header(own).await?;
            let len = header.prefix_len;
            let Some(diff) = self.header.table.shift.checked_sub(len.into()).filter(|_| len > 0) else { break };
            let high = header.prefix | 1;
            let other = header.prefix ^ 1;
            let number = self.pointer(other << diff).await?;
            let last = self.pointer((other << diff) + (1 << diff) - 1).await?;
            let sibling = self.leaf_header(number).await?;
            if last != number || sibling.entries != 0 || (sibling.prefix, sibling.prefix_len) != (other, len) {
                break;
            }
            let (kept, gone) = if header.prefix == high { (number, own) } else { (own, number) };
            let bytes = self.take(kept).await?.ok_or(self.corrupt(kept, "a block of a ZAP is a hole"))?;
            let mut leaf = self.decoded(kept, LeafEdit::open(bytes, LITTLE))?;
            self.decoded(kept, leaf.widen())?;
            self.put(kept, leaf.into_block());
            self.point(high << diff, 1 << diff, kept).await?;
            self.dirty.remove(&gone);
            self.freed.push((gone, 1));
            self.header.leaves = self.header.leaves.saturating_sub(1);
            cut |= gone + 1 == self.header.free_block;
        }
        if cut { self.cut().await } else { Ok(()) }
    }

    /// Lowers `free_block` to the first block after the last one in use.
    async fn cut(&mut self) -> Result<(), ObjectError> {
        let table = self.header.table;
        let mut last = 0;
        if self.header.is_embedded() {
            let half = 1usize << self.header.block_shift >> 1;
            last = highest(self.first.get(half..).unwrap_or_default(), LITTLE);
        }
        for block in table.first_block..table.first_block + table.blocks {
            let (bytes, endian) = self.look(block).await?;
            last = last.max(block).max(highest(&bytes, endian));
        }
        if table.next_block != 0 {
            last = last.max(table.next_block.saturating_add(2 * table.blocks - 1));
        }
        self.header.free_block = last.saturating_add(1).min(self.header.free_block);
        Ok(())
    }
}

/// Highest of an array of block numbers.
fn highest(pointers: &[u8], endian: Endian) -> u64 {
    let mut cursor = Cursor::new(pointers, endian, "ZAP pointer table");
    std::iter::from_fn(|| cursor.u64().ok()).max().unwrap_or(0)
}

/// Returns each pointer twice.
fn doubled(pointers: &[u8]) -> Vec<u8> {
    pointers.chunks_exact(8).flat_map(|p| [p, p].concat()).collect()
}

/// Returns the entry of a key in a leaf.
fn find(
    leaf: &LeafEdit,
    key: &Key,
    hash: u64,
    norm: NormFlags,
    how: Match,
) -> Result<Option<(LeafEntry, Slot)>, weir_format::DecodeError> {
    match key {
        Key::Words(words) => leaf.find(hash, |leaf, entry| Ok(leaf.key_words(entry)? == *words)),
        Key::Name(name) => {
            let Some(wanted) = NormalizedName::new(name, norm, how) else { return Ok(None) };
            leaf.find(hash, |leaf, entry| Ok(wanted.is(&leaf.name(entry)?)))
        }
    }
}

//! Reads fat ZAPs: look-up and walk through header, pointer table and leaves.

use super::entry::{Entry, Key, Match, Position, Value};
use super::name;
use super::name::NormalizedName;
use super::read::Zap;
use crate::error::ObjectError;
use bytes::Bytes;
use weir_format::zap::{FatHeader, Leaf, LeafEntry, ZapFlags, hash_bytes, hash_words};
use weir_format::{Cursor, Endian};
use weir_machine::Request;

/// Number of leaves that a walk prefetches.
const PREFETCH_LEAVES: u64 = 64;

/// Maximum number of retries of a look-up while the ZAP changes; then its result is final.
const READS_MAX: usize = 100;

/// Header, and its block with the embedded table.
struct Head {
    header: FatHeader,
    block: Bytes,
    endian: Endian,
}

/// Block of a leaf, with its byte order.
struct LeafBlock {
    number: u64,
    bytes: Bytes,
    endian: Endian,
}

impl Zap {
    pub(super) fn header(&self) -> Result<FatHeader, ObjectError> {
        FatHeader::decode(&self.first, self.endian).map_err(|e| ObjectError::decode(self.place(0), e))
    }

    /// Returns the block number of the leaf at `index` of the pointer table.
    async fn table_pointer(&self, rq: &Request, head: &Head, index: u64) -> Result<u64, ObjectError> {
        if head.header.is_embedded() {
            let pointer = head.header.embedded_pointer(&head.block, head.endian, index);
            return pointer.map_err(|e| ObjectError::decode(self.place(0), e));
        }
        let (block, at) = head.header.external_pointer(index);
        let (bytes, endian) = self.block(rq, block).await?;
        let mut cursor = Cursor::new(&bytes, endian, "ZAP pointer table");
        cursor.skip(at).and_then(|()| cursor.u64()).map_err(|e| ObjectError::decode(self.place(block), e))
    }

    async fn block(&self, rq: &Request, block: u64) -> Result<(Bytes, Endian), ObjectError> {
        let found = self.set.reader().read_ordered_block(rq, &self.object, block).await?;
        found.ok_or(ObjectError::Corrupt { place: self.place(block), why: "a block of a ZAP is a hole" })
    }

    /// Decodes the header as of the opening of the ZAP.
    fn head(&self) -> Result<Head, ObjectError> {
        Ok(Head { header: self.header()?, block: self.first.clone(), endian: self.endian })
    }

    /// Reads the present header.
    async fn newest_head(&self, rq: &Request) -> Result<Head, ObjectError> {
        let (block, endian) = self.block(rq, 0).await?;
        let header = FatHeader::decode(&block, endian).map_err(|e| ObjectError::decode(self.place(0), e))?;
        Ok(Head { header, block, endian })
    }

    /// Returns the leaf of a hash. While the ZAP is changed, a header or table that was just read may be outdated. The
    /// header is then read again and left in `head`.
    async fn leaf_block(&self, rq: &Request, head: &mut Head, hash: u64) -> Result<LeafBlock, ObjectError> {
        for _ in 0..READS_MAX {
            match self.try_leaf_block(rq, head, hash).await {
                Err(e) if self.set.is_live() && e.is_corrupt() => *head = self.newest_head(rq).await?,
                done => return done,
            }
        }
        self.try_leaf_block(rq, head, hash).await
    }

    async fn try_leaf_block(&self, rq: &Request, head: &Head, hash: u64) -> Result<LeafBlock, ObjectError> {
        let number = self.table_pointer(rq, head, head.header.index(hash)).await?;
        let (bytes, endian) = self.block(rq, number).await?;
        let block = LeafBlock { number, bytes, endian };
        self.leaf(&block, hash)?;
        Ok(block)
    }

    fn leaf<'a>(&self, block: &'a LeafBlock, hash: u64) -> Result<Leaf<'a>, ObjectError> {
        let place = self.place(block.number);
        let leaf = Leaf::decode(&block.bytes, block.endian).map_err(|e| ObjectError::decode(place, e))?;
        if leaf.owns(hash) { Ok(leaf) } else { Err(ObjectError::Corrupt { place, why: "a leaf of other hashes" }) }
    }

    pub(super) async fn fat_lookup(&self, rq: &Request, name: &[u8], how: Match) -> Result<Option<Value>, ObjectError> {
        Ok(self.fat_find(rq, name, how).await?.map(|(_, value)| value))
    }

    pub(super) async fn fat_stored_name(
        &self,
        rq: &Request,
        name: &[u8],
        how: Match,
    ) -> Result<Option<Vec<u8>>, ObjectError> {
        Ok(self.fat_find(rq, name, how).await?.map(|(stored, _)| stored))
    }

    /// The entry of a name: its stored name and its value.
    async fn fat_find(&self, rq: &Request, name: &[u8], how: Match) -> Result<Option<(Vec<u8>, Value)>, ObjectError> {
        let mut head = self.head()?;
        let header = head.header.clone();
        if header.flags.uint64_key() {
            return Ok(None);
        }
        let (Some(normal), Some(wanted)) =
            (name::normalize(name, header.norm), NormalizedName::new(name, header.norm, how))
        else {
            return Ok(None);
        };
        let hash = hash_bytes(header.salt, header.flags, &normal);
        let block = self.leaf_block(rq, &mut head, hash).await?;
        let leaf = self.leaf(&block, hash)?;
        let failed = |e| ObjectError::decode(self.place(block.number), e);
        let mut found = None;
        for entry in leaf.find(hash) {
            let entry = entry.map_err(failed)?;
            let candidate = leaf.name(&entry).map_err(failed)?;
            if candidate == name {
                return value_of(&leaf, &entry).map(|value| Some((candidate.to_vec(), value))).map_err(failed);
            }
            if found.is_none() && wanted.is(&candidate) {
                found = Some((candidate.to_vec(), entry));
            }
        }
        found.map(|(stored, entry)| value_of(&leaf, &entry).map(|value| (stored, value)).map_err(failed)).transpose()
    }

    pub(super) async fn fat_lookup_words(&self, rq: &Request, key: &[u64]) -> Result<Option<Value>, ObjectError> {
        let mut head = self.head()?;
        let header = head.header.clone();
        if !header.flags.uint64_key() {
            return Ok(None);
        }
        let hash = hash_words(header.salt, header.flags, key);
        let block = self.leaf_block(rq, &mut head, hash).await?;
        let leaf = self.leaf(&block, hash)?;
        let failed = |e| ObjectError::decode(self.place(block.number), e);
        for entry in leaf.find(hash) {
            let entry = entry.map_err(failed)?;
            if leaf.key_words(&entry).map_err(failed)? == key {
                return value_of(&leaf, &entry).map(Some).map_err(failed);
            }
        }
        Ok(None)
    }

    pub(super) async fn fat_entries(&self, rq: &Request, cookie: u64, max: usize) -> Result<Vec<Entry>, ObjectError> {
        let mut head = self.head()?;
        let flags = head.header.flags;
        let mut after = Position::of_cookie(cookie, flags);
        let mut hash = after.map_or(0, |p| p.hash);
        let mut out = Vec::new();
        while out.len() < max {
            let block = self.leaf_block(rq, &mut head, hash).await?;
            let leaf = self.leaf(&block, hash)?;
            self.leaf_entries(&leaf, block.number, flags, after, max - out.len(), &mut out)?;
            let Some(next) = first_hash_after(&leaf) else { break };
            hash = next;
            // A leaf that was merged with the previous one may have entries that were returned already.
            after = Some(Position { hash: next.saturating_sub(1), cd: u32::MAX });
            if out.len() < max {
                self.prefetch_leaves(rq, &head, hash).await;
            }
        }
        Ok(out)
    }

    fn leaf_entries(
        &self,
        leaf: &Leaf<'_>,
        block: u64,
        flags: ZapFlags,
        after: Option<Position>,
        max: usize,
        out: &mut Vec<Entry>,
    ) -> Result<(), ObjectError> {
        let failed = |e| ObjectError::decode(self.place(block), e);
        let mut found: Vec<(Position, LeafEntry)> = Vec::with_capacity(usize::from(leaf.header.entries).min(1024));
        for entry in leaf.entries() {
            let entry = entry.map_err(failed)?;
            let position = Position { hash: entry.hash, cd: entry.cd };
            if after.is_none_or(|after| position > after) {
                found.push((position, entry));
            }
        }
        found.sort_unstable_by_key(|(position, _)| *position);
        for (position, entry) in found.into_iter().take(max) {
            let key = if flags.uint64_key() {
                Key::Words(leaf.key_words(&entry).map_err(failed)?)
            } else {
                Key::Name(leaf.name(&entry).map_err(failed)?)
            };
            let value = value_of(leaf, &entry).map_err(failed)?;
            out.push(Entry { key, value, cookie: position.cookie(flags) });
        }
        Ok(())
    }

    /// Prefetches the leaves after `hash` in the order of a walk. The walk itself meets and returns errors.
    async fn prefetch_leaves(&self, rq: &Request, head: &Head, hash: u64) {
        let first = head.header.index(hash);
        // Prefetches in runs of leaves.
        if !first.is_multiple_of(PREFETCH_LEAVES / 2) {
            return;
        }
        let mut before = None;
        for index in (first..head.header.table_len()).take(PREFETCH_LEAVES as usize) {
            let Ok(number) = self.table_pointer(rq, head, index).await else { return };
            if before.replace(number) == Some(number) {
                continue;
            }
            if let Ok(Some(pointer)) = self.set.pointers().at(rq, &self.object, 0, number).await {
                self.set.cache().prefetch(&pointer, self.set.options());
            }
        }
    }
}

/// Returns the first hash of the leaf after this one; `None` after the last.
fn first_hash_after(leaf: &Leaf<'_>) -> Option<u64> {
    let len = u32::from(leaf.header.prefix_len);
    let next = leaf.header.prefix.checked_add(1)?;
    if len == 0 || len > 63 || next >> len != 0 { None } else { Some(next << (64 - len)) }
}

fn value_of(leaf: &Leaf<'_>, entry: &LeafEntry) -> Result<Value, weir_format::DecodeError> {
    Ok(Value { int_size: entry.int_size, words: leaf.value_words(entry)? })
}

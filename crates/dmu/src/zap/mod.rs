//! ZAPs: the key/value objects of a pool. Directories, properties, names of snapshots and nearly all other names are
//! in ZAPs.
//!
//! There are two forms (their blocks: `weir_format::zap`). A *micro* ZAP is one block that is searched from end to end.
//! A *fat* ZAP is a hash table: header block → pointer table → leaf → chain. A look-up reads at most three blocks,
//! mostly from the cache.
//!
//! *Order.* Both are walked in the order of (hash, collision differentiator), which depends only on names. An
//! [`Entry::cookie`] is this pair packed into 64 bits, plus one. It is valid as long as the entry exists; 0 is the
//! start.
//!
//! *Names* are compared after [`name::normalize`] if the ZAP has normalization flags. The flags of the hash and those
//! of the comparison differ if case is significant.
//!
//! Invariants: a walk continues to strictly greater hashes with each leaf, and each leaf must own the hash by which it
//! was found, so that a malformed table is detected and no walk is endless. Nothing beyond one leaf is allocated.

mod fat;
pub mod name;
#[cfg(test)]
mod tests;
mod write;

pub use write::{
    NewZap, add, add_int, create, create_at, insert, lookup_int, put, put_bytes, put_int, put_word, put_words, remove,
    remove_int, remove_match, remove_name,
};

use crate::error::{ErrorLocation, ObjectError};
use crate::object::Object;
use crate::object_set::ObjectSet;
use bytes::Bytes;
use std::sync::Arc;
use weir_format::zap::{BlockKind, MicroZap, NormFlags, ZapFlags, hash_bytes};
use weir_format::{Endian, ObjectId};
use weir_machine::Request;

/// Comparison of names in a look-up (`matchtype_t`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Match {
    /// Byte by byte.
    #[default]
    Exact,
    /// After the ZAP's normalization, with case folded if the ZAP folds case.
    Normalized,
    /// After normalization, with case significant.
    NormalizedCase,
}

/// Value of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Size of each integer in bytes: 1, 2, 4 or 8.
    pub int_size: u8,
    /// The integers.
    pub words: Vec<u64>,
}

impl Value {
    /// A value of one 64-bit integer.
    pub fn word(word: u64) -> Self {
        Value { int_size: 8, words: vec![word] }
    }

    /// The first integer.
    pub fn first(&self) -> Option<u64> {
        self.words.first().copied()
    }

    /// The value as bytes, if its integers have 1 byte.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        (self.int_size == 1).then(|| self.words.iter().map(|w| *w as u8).collect())
    }

    /// The value as text: bytes up to a NUL.
    pub fn text(&self) -> Option<String> {
        let bytes = self.bytes()?;
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        Some(String::from_utf8_lossy(bytes.get(..end)?).into_owned())
    }
}

/// Key of an entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// A name.
    Name(Vec<u8>),
    /// An array of integers.
    Words(Vec<u64>),
}

impl Key {
    /// The name; `None` for integer keys.
    pub fn name(&self) -> Option<&[u8]> {
        match self {
            Key::Name(name) => Some(name),
            Key::Words(_) => None,
        }
    }

    /// The name, or the integers in hexadecimal.
    pub fn text(&self) -> String {
        match self {
            Key::Name(name) => String::from_utf8_lossy(name).into_owned(),
            Key::Words(words) => words.iter().map(|w| format!("{w:x}")).collect::<Vec<_>>().join("/"),
        }
    }
}

/// An entry of a ZAP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Key,
    /// The value.
    pub value: Value,
    /// Cookie to continue after this entry. Never 0.
    pub cookie: u64,
}

/// Hash and collision differentiator: the order of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Position {
    hash: u64,
    cd: u32,
}

fn hash_bits(flags: ZapFlags) -> u32 {
    if flags.hash64() { 48 } else { 28 }
}

impl Position {
    fn cookie(self, flags: ZapFlags) -> u64 {
        let bits = hash_bits(flags);
        ((self.hash >> (64 - bits)) | u64::from(self.cd) << bits).saturating_add(1)
    }

    /// Position of a cookie; `None` for the start.
    fn of_cookie(cookie: u64, flags: ZapFlags) -> Option<Self> {
        let packed = cookie.checked_sub(1)?;
        let bits = hash_bits(flags);
        Some(Position { hash: packed << (64 - bits), cd: (packed >> bits) as u32 })
    }
}

/// A ZAP, opened for reading.
pub struct Zap {
    set: Arc<ObjectSet>,
    object: Arc<Object>,
    first: Bytes,
    endian: Endian,
    kind: BlockKind,
}

/// Statistics of a ZAP, as zdb shows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ZapLayout {
    /// One block with this size and number of entries.
    Micro {
        /// Size of the block.
        block_bytes: usize,
        /// Number of entries.
        entries: usize,
    },
    /// A hash table.
    Fat(weir_format::zap::FatHeader),
}

impl Zap {
    /// Opens object `id` of `set` as a ZAP.
    pub async fn open(rq: &Request, set: &Arc<ObjectSet>, id: ObjectId) -> Result<Self, ObjectError> {
        let object = set.object(rq, id).await?;
        Self::of(rq, set, object).await
    }

    /// Opens an object as a ZAP.
    pub async fn of(rq: &Request, set: &Arc<ObjectSet>, object: Arc<Object>) -> Result<Self, ObjectError> {
        let place = set.place(object.id, 0, 0);
        let (first, endian) = match set.read_ordered_block(rq, &object, 0).await? {
            Some(found) => found,
            None => return Err(ObjectError::Corrupt { place, why: "a ZAP without its first block" }),
        };
        let kind = BlockKind::of(&first, endian).map_err(|e| ObjectError::decode(place, e))?;
        if kind == BlockKind::Leaf {
            return Err(ObjectError::Corrupt { place, why: "a ZAP that begins with a leaf" });
        }
        Ok(Zap { set: set.clone(), object, first, endian, kind })
    }

    fn place(&self, block: u64) -> ErrorLocation {
        self.set.place(self.object.id, 0, block)
    }

    fn micro(&self) -> Result<MicroZap<'_>, ObjectError> {
        MicroZap::decode(&self.first, self.endian).map_err(|e| ObjectError::decode(self.place(0), e))
    }

    /// Form of the ZAP and its statistics.
    pub fn layout(&self) -> Result<ZapLayout, ObjectError> {
        match self.kind {
            BlockKind::Micro => {
                Ok(ZapLayout::Micro { block_bytes: self.first.len(), entries: self.micro()?.entries().count() })
            }
            _ => self.header().map(ZapLayout::Fat),
        }
    }

    /// Returns the value of `name`.
    pub async fn lookup(&self, rq: &Request, name: &[u8], how: Match) -> Result<Option<Value>, ObjectError> {
        if self.kind != BlockKind::Micro {
            return self.fat_lookup(rq, name, how).await;
        }
        let micro = self.micro()?;
        let Some(wanted) = name::NormalizedName::new(name, micro.norm, how) else { return Ok(None) };
        // Of several names that are equal after normalization, an exact match is preferred.
        let found = match micro.get(name) {
            None if !wanted.is_exact() => micro.entries().find(|e| wanted.is(e.name)).map(|e| e.value),
            found => found,
        };
        Ok(found.map(Value::word))
    }

    /// Returns the value of an integer key.
    pub async fn lookup_words(&self, rq: &Request, key: &[u64]) -> Result<Option<Value>, ObjectError> {
        if self.kind == BlockKind::Micro { Ok(None) } else { self.fat_lookup_words(rq, key).await }
    }

    /// Returns up to `max` entries after `cookie`, in order. Fewer than `max` means the end.
    pub async fn entries(&self, rq: &Request, cookie: u64, max: usize) -> Result<Vec<Entry>, ObjectError> {
        if self.kind != BlockKind::Micro {
            return self.fat_entries(rq, cookie, max).await;
        }
        let micro = self.micro()?;
        let flags = ZapFlags::default();
        let after = Position::of_cookie(cookie, flags);
        let mut all: Vec<(Position, &[u8], u64)> = micro
            .entries()
            .map(|e| {
                (Position { hash: self.hash_of(e.name, micro.salt, flags, micro.norm), cd: e.cd }, e.name, e.value)
            })
            .filter(|(position, ..)| after.is_none_or(|after| *position > after))
            .collect();
        all.sort_unstable_by_key(|(position, ..)| *position);
        let entry = |(position, name, value): (Position, &[u8], u64)| Entry {
            key: Key::Name(name.to_vec()),
            value: Value::word(value),
            cookie: position.cookie(flags),
        };
        Ok(all.into_iter().take(max).map(entry).collect())
    }

    /// Returns all entries of a small ZAP in order; an error if there are more than `limit`.
    pub async fn all(&self, rq: &Request, limit: usize) -> Result<Vec<Entry>, ObjectError> {
        let mut out: Vec<Entry> = Vec::new();
        loop {
            let cookie = out.last().map_or(0, |e| e.cookie);
            let batch = self.entries(rq, cookie, BATCH).await?;
            let end = batch.len() < BATCH;
            out.extend(batch);
            if end {
                return Ok(out);
            }
            if out.len() > limit {
                return Err(ObjectError::Corrupt {
                    place: self.place(0),
                    why: "more entries than a ZAP of its kind has",
                });
            }
        }
    }

    fn hash_of(&self, name: &[u8], salt: u64, flags: ZapFlags, norm: NormFlags) -> u64 {
        match name::normalize(name, norm) {
            Some(normal) => hash_bytes(salt, flags, &normal),
            None => hash_bytes(salt, flags, name),
        }
    }
}

/// Number of entries that [`Zap::all`] reads at a time.
const BATCH: usize = 4096;

/// Returns the 64-bit integer of `name` in ZAP `id`; `None` if there is no such name.
pub async fn lookup_word(
    rq: &Request,
    set: &Arc<ObjectSet>,
    id: ObjectId,
    name: &str,
) -> Result<Option<u64>, ObjectError> {
    let zap = Zap::open(rq, set, id).await?;
    Ok(zap.lookup(rq, name.as_bytes(), Match::Exact).await?.and_then(|v| v.first()))
}

/// Returns the value of a [`Match::Exact`] look-up of `name` in ZAP `id`.
pub async fn lookup(
    rq: &Request,
    set: &Arc<ObjectSet>,
    id: ObjectId,
    name: &str,
) -> Result<Option<Value>, ObjectError> {
    Zap::open(rq, set, id).await?.lookup(rq, name.as_bytes(), Match::Exact).await
}

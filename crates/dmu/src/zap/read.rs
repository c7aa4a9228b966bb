//! Reads ZAPs: look-up and listing, of micro ZAPs here and of fat ZAPs in [`super::fat`].

use super::entry::{Entry, Key, Match, Position, Value};
use super::name;
use crate::error::{ErrorLocation, ObjectError};
use crate::object::Object;
use crate::object_set::ObjectSet;
use bytes::Bytes;
use std::sync::Arc;
use weir_format::zap::{BlockKind, MicroZap, NormFlags, ZapFlags, hash_bytes};
use weir_format::{Endian, ObjectId};
use weir_machine::Request;

/// A ZAP, opened for reading.
pub struct Zap {
    pub(super) set: Arc<ObjectSet>,
    pub(super) object: Arc<Object>,
    pub(super) first: Bytes,
    pub(super) endian: Endian,
    pub(super) kind: BlockKind,
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
        let (first, endian) = match set.reader().read_ordered_block(rq, &object, 0).await? {
            Some(found) => found,
            None => return Err(ObjectError::Corrupt { place, why: "a ZAP without its first block" }),
        };
        let kind = BlockKind::of(&first, endian).map_err(|e| ObjectError::decode(place, e))?;
        if kind == BlockKind::Leaf {
            return Err(ObjectError::Corrupt { place, why: "a ZAP that begins with a leaf" });
        }
        Ok(Zap { set: set.clone(), object, first, endian, kind })
    }

    pub(super) fn place(&self, block: u64) -> ErrorLocation {
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

    /// Returns the name that [`Zap::lookup`] finds, as it is stored.
    pub async fn stored_name(&self, rq: &Request, name: &[u8], how: Match) -> Result<Option<Vec<u8>>, ObjectError> {
        if self.kind != BlockKind::Micro {
            return self.fat_stored_name(rq, name, how).await;
        }
        let micro = self.micro()?;
        let Some(wanted) = name::NormalizedName::new(name, micro.norm, how) else { return Ok(None) };
        if micro.get(name).is_some() {
            return Ok(Some(name.to_vec()));
        }
        Ok(micro.entries().find(|e| wanted.is(e.name)).map(|e| e.name.to_vec()))
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

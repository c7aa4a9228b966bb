//! Changes ZAPs.
//!
//! A ZAP begins as a *micro* ZAP of one 512-byte block, which grows by 512 bytes at a time. An entry that a micro ZAP
//! cannot have (a value that is not one 64-bit integer, a name of 50 bytes or more, too many names with one hash), or a
//! size of more than 128 KiB, converts it into a *fat* ZAP permanently ([`fat`]). A ZAP with flags is fat from the
//! start.
//!
//! ```text
//!   insert · put · remove ──► block 0: micro ──► slot                                  (one block written)
//!                                      fat   ──► pointer ──► leaf                      (two: header, leaf)
//!                                                             └─ full: split, table grows a block at a time
//! ```
//!
//! A change works on copies of the blocks and writes them at its end, so a change that fails changes nothing. Blocks of
//! the other byte order are converted when they are changed.
//!
//! A caller that changes a ZAP holds the lock of the ZAP's owner (a directory's; the syncer needs none, because it is
//! alone): there is no lock here. A reader needs no lock: it sees all blocks of a change at once, and starts again when
//! it was led to a block that is outdated.
//!
//! Source: OpenZFS `module/zfs/{zap,zap_micro,zap_fat,zap_leaf}.c`.

mod fat;
#[cfg(test)]
mod tests;

use super::entry::{Key, Match, Value};
use super::name::{NormalizedName, normalize};
use super::read::{Zap, lookup_word};
use crate::error::{ErrorLocation, ObjectError};
use crate::object::{NewObject, Object};
use crate::object_set::ObjectSet;
use crate::txg::Tx;
use bytes::Bytes;
use fat::Fat;
use std::sync::Arc;
use weir_format::zap::{BlockKind, LeafEdit, MicroEntry, MicroZap, NewEntry, NewKey, NormFlags, ZapFlags};
use weir_format::zap::{byteswapped, hash_bytes, hash_words};
use weir_format::{Endian, ObjectId, ObjectType};
use weir_machine::Request;

/// log2 of the block size of a ZAP that is converted into a fat one (`fzap_default_block_shift`).
const FAT_SHIFT: u8 = 14;
/// Maximum size of a micro ZAP in bytes (`zap_micro_max_size`).
const MICRO_MAX_BYTES: usize = 128 << 10;
/// Growth step of a micro ZAP in bytes.
const MICRO_STEP_BYTES: usize = 512;
/// Maximum length of a stored name in bytes with its NUL; directories may have longer names.
const NAME_MAX_BYTES: usize = 256;
const LONG_NAME_MAX_BYTES: usize = 1024;
/// Maximum length of a value in bytes (`ZAP_MAXVALUELEN`).
const VALUE_MAX_BYTES: usize = 8192;

/// Description of a new ZAP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewZap {
    /// Type of the object, which must be a type of ZAP.
    pub kind: ObjectType,
    /// Flags. A ZAP with flags is fat.
    pub flags: ZapFlags,
    /// Comparison of names.
    pub norm: NormFlags,
    /// log2 of the block size in bytes; 9 without flags means a micro ZAP, which grows.
    pub block_shift: u8,
    /// log2 of the size of an indirect block in bytes.
    pub indirect_shift: u8,
    /// Type of the bonus buffer's contents.
    pub bonus_type: ObjectType,
    /// Contents of the bonus buffer.
    pub bonus: Vec<u8>,
    /// Size of the dnode in slots of 512 bytes.
    pub slots: u8,
}

impl NewZap {
    /// A micro ZAP without flags and bonus buffer, as OpenZFS's `zap_create` makes it.
    pub fn new(kind: ObjectType) -> Self {
        NewZap {
            kind,
            flags: ZapFlags(0),
            norm: NormFlags(0),
            block_shift: 9,
            indirect_shift: 17,
            bonus_type: ObjectType::NONE,
            bonus: Vec::new(),
            slots: 1,
        }
    }

    /// A fat ZAP with these flags and this block size, as `zap_create_flags` makes it.
    pub fn fat(kind: ObjectType, flags: ZapFlags, block_shift: u8, indirect_shift: u8) -> Self {
        NewZap { flags, block_shift, indirect_shift, ..NewZap::new(kind) }
    }

    /// With this bonus buffer.
    pub fn bonus(mut self, kind: ObjectType, bytes: Vec<u8>) -> Self {
        self.bonus_type = kind;
        self.bonus = bytes;
        self
    }

    fn object(&self) -> NewObject {
        NewObject {
            kind: self.kind,
            block_bytes: 1 << self.block_shift.clamp(9, 20),
            indirect_shift: self.indirect_shift,
            bonus_type: self.bonus_type,
            bonus: self.bonus.clone(),
            slots: self.slots,
            pointers: 0,
        }
    }
}

/// Change of one name.
#[derive(Clone, Copy)]
enum Change<'a> {
    /// Adds the name; an error if it exists.
    Insert(&'a Value),
    /// Adds the name, or replaces its value.
    Put(&'a Value),
    /// Removes the matching name, if there is one.
    Remove(Match),
}

/// Creates a ZAP.
pub async fn create(rq: &Request, set: &Arc<ObjectSet>, tx: &Tx, new: &NewZap) -> Result<ObjectId, ObjectError> {
    let id = set.changes().create(rq, tx, &new.object()).await?;
    ZapWriter { rq, set, tx, id }.start(new).await?;
    Ok(id)
}

/// Creates a ZAP with this object number, which must be free: for replay of the intent log.
pub async fn create_at(
    rq: &Request,
    set: &Arc<ObjectSet>,
    tx: &Tx,
    id: ObjectId,
    new: &NewZap,
) -> Result<(), ObjectError> {
    set.changes().create_at(rq, tx, id, &new.object()).await?;
    ZapWriter { rq, set, tx, id }.start(new).await
}

/// Adds a new name.
///
/// # Errors
/// [`ObjectError::NameExists`] if it exists; [`ObjectError::TooLong`] if name or value is too long.
pub async fn insert(
    rq: &Request,
    set: &Arc<ObjectSet>,
    tx: &Tx,
    id: ObjectId,
    key: &Key,
    value: &Value,
) -> Result<(), ObjectError> {
    ZapWriter { rq, set, tx, id }.change(key, Change::Insert(value)).await.map(|_| ())
}

/// Adds a name, or replaces its value. Returns whether it existed.
///
/// # Errors
/// [`ObjectError::TooLong`] if name or value is too long.
pub async fn put(
    rq: &Request,
    set: &Arc<ObjectSet>,
    tx: &Tx,
    id: ObjectId,
    key: &Key,
    value: &Value,
) -> Result<bool, ObjectError> {
    ZapWriter { rq, set, tx, id }.change(key, Change::Put(value)).await
}

/// Removes a name. Returns whether it existed.
pub async fn remove(rq: &Request, set: &Arc<ObjectSet>, tx: &Tx, id: ObjectId, key: &Key) -> Result<bool, ObjectError> {
    ZapWriter { rq, set, tx, id }.change(key, Change::Remove(Match::Exact)).await
}

/// Removes the name that matches `name` (of several, the one that a look-up finds). Returns whether there was one.
pub async fn remove_match(
    rq: &Request,
    set: &Arc<ObjectSet>,
    tx: &Tx,
    id: ObjectId,
    name: &[u8],
    how: Match,
) -> Result<bool, ObjectError> {
    ZapWriter { rq, set, tx, id }.change(&Key::Name(name.to_vec()), Change::Remove(how)).await
}

/// Adds `delta` to the integer of a name; a name that does not exist counts as 0, and a name that becomes 0 is removed.
/// Returns the new value.
pub async fn add(
    rq: &Request,
    set: &Arc<ObjectSet>,
    tx: &Tx,
    id: ObjectId,
    key: &Key,
    delta: i64,
) -> Result<u64, ObjectError> {
    let zap = Zap::open(rq, set, id).await?;
    let old = match key {
        Key::Name(name) => zap.lookup(rq, name, Match::Exact).await?,
        Key::Words(words) => zap.lookup_words(rq, words).await?,
    };
    let new = old.and_then(|v| v.first()).unwrap_or(0).wrapping_add_signed(delta);
    match (new, delta) {
        (_, 0) => {}
        (0, _) => drop(remove(rq, set, tx, id, key).await?),
        (new, _) => drop(put(rq, set, tx, id, key, &Value::word(new)).await?),
    }
    Ok(new)
}

/// Adds or changes a name with one 64-bit integer.
pub async fn put_word(
    rq: &Request,
    set: &Arc<ObjectSet>,
    tx: &Tx,
    id: ObjectId,
    name: &str,
    word: u64,
) -> Result<(), ObjectError> {
    put(rq, set, tx, id, &Key::from(name), &Value::word(word)).await.map(|_| ())
}

/// Adds or changes a name with an array of 64-bit integers.
pub async fn put_words(
    rq: &Request,
    set: &Arc<ObjectSet>,
    tx: &Tx,
    id: ObjectId,
    name: &str,
    words: &[u64],
) -> Result<(), ObjectError> {
    let value = Value { int_size: 8, words: words.to_vec() };
    put(rq, set, tx, id, &Key::from(name), &value).await.map(|_| ())
}

/// Adds or changes a name with bytes. Text is stored with a NUL at its end, which the caller adds.
pub async fn put_bytes(
    rq: &Request,
    set: &Arc<ObjectSet>,
    tx: &Tx,
    id: ObjectId,
    name: &str,
    bytes: &[u8],
) -> Result<(), ObjectError> {
    put(rq, set, tx, id, &Key::from(name), &Value::of_bytes(bytes)).await.map(|_| ())
}

/// Removes a name. Returns whether it existed.
pub async fn remove_name(
    rq: &Request,
    set: &Arc<ObjectSet>,
    tx: &Tx,
    id: ObjectId,
    name: &str,
) -> Result<bool, ObjectError> {
    remove(rq, set, tx, id, &Key::from(name)).await
}

/// Adds an integer to a ZAP that is a set of integers (`zap_add_int`).
///
/// # Errors
/// [`ObjectError::NameExists`] if it is a member.
pub async fn add_int(rq: &Request, set: &Arc<ObjectSet>, tx: &Tx, id: ObjectId, n: u64) -> Result<(), ObjectError> {
    insert(rq, set, tx, id, &Key::of_int(n), &Value::word(n)).await
}

/// Sets the value of an integer key (`zap_update_int_key`).
pub async fn put_int(
    rq: &Request,
    set: &Arc<ObjectSet>,
    tx: &Tx,
    id: ObjectId,
    n: u64,
    word: u64,
) -> Result<(), ObjectError> {
    put(rq, set, tx, id, &Key::of_int(n), &Value::word(word)).await.map(|_| ())
}

/// Removes an integer (`zap_remove_int`). Returns whether it was a member.
pub async fn remove_int(
    rq: &Request,
    set: &Arc<ObjectSet>,
    tx: &Tx,
    id: ObjectId,
    n: u64,
) -> Result<bool, ObjectError> {
    remove(rq, set, tx, id, &Key::of_int(n)).await
}

/// Returns the value of an integer key (`zap_lookup_int_key`); the value of a set's member is the member.
pub async fn lookup_int(rq: &Request, set: &Arc<ObjectSet>, id: ObjectId, n: u64) -> Result<Option<u64>, ObjectError> {
    lookup_word(rq, set, id, &Key::of_int(n).text()).await
}

impl Key {
    /// Name that represents an integer.
    pub fn of_int(n: u64) -> Key {
        Key::Name(format!("{n:x}").into_bytes())
    }

    fn new_key(&self) -> NewKey {
        match self {
            Key::Name(name) => NewKey::Name(name.clone()),
            Key::Words(words) => NewKey::Words(words.clone()),
        }
    }
}

impl From<&str> for Key {
    fn from(name: &str) -> Self {
        Key::Name(name.as_bytes().to_vec())
    }
}

impl Value {
    /// A value of bytes.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Value { int_size: 1, words: bytes.iter().map(|b| u64::from(*b)).collect() }
    }

    fn stored_bytes(&self) -> usize {
        self.words.len().saturating_mul(self.int_size.into())
    }
}

/// Hash of a key in a ZAP; `None` if the key is not text but is compared as text.
fn hash_of(key: &Key, salt: u64, flags: ZapFlags, norm: NormFlags) -> Option<u64> {
    match key {
        Key::Name(name) => Some(hash_bytes(salt, flags, &normalize(name, norm)?)),
        Key::Words(words) => Some(hash_words(salt, flags, words)),
    }
}

const NOT_TEXT: ObjectError =
    ObjectError::Unsupported { what: "a name that is not UTF-8, where names are normalized," };

/// A ZAP and the transaction that changes it.
#[derive(Clone, Copy)]
struct ZapWriter<'a> {
    rq: &'a Request,
    set: &'a Arc<ObjectSet>,
    tx: &'a Tx,
    id: ObjectId,
}

impl<'a> ZapWriter<'a> {
    fn place(&self, block: u64) -> ErrorLocation {
        self.set.place(self.id, 0, block)
    }

    async fn store(&self, block: u64, bytes: Vec<u8>) -> Result<(), ObjectError> {
        self.set.writes().write_block(self.rq, self.tx, self.id, block, Bytes::from(bytes)).await
    }

    /// Returns a block in this machine's byte order; `None` for a hole.
    async fn load(&self, object: &Arc<Object>, block: u64) -> Result<Option<Vec<u8>>, ObjectError> {
        let Some((bytes, endian)) = self.set.reader().read_ordered_block(self.rq, object, block).await? else {
            return Ok(None);
        };
        byteswapped(&bytes, endian, Endian::Little).map(Some).map_err(|e| ObjectError::decode(self.place(block), e))
    }

    /// Writes the first contents of a new object.
    async fn start(self, new: &NewZap) -> Result<(), ObjectError> {
        // The salts of OpenZFS are odd, so they are never 0.
        let salt = self.set.cache().machine().entropy.u64() | 1;
        if new.flags != ZapFlags(0) {
            let mut fat = Fat::start(self, new.block_shift, salt, new.norm, new.flags).await?;
            return fat.flush().await;
        }
        let len = 1usize << new.block_shift.clamp(9, 20);
        let micro = MicroZap::encode(salt, new.norm, &[], len, Endian::Little);
        let micro = micro.ok_or(ObjectError::TooLong { what: "the block size of a ZAP" })?;
        self.store(0, micro).await
    }

    async fn change(self, key: &Key, change: Change<'_>) -> Result<bool, ObjectError> {
        let object = self.set.object(self.rq, self.id).await?;
        if let Change::Insert(value) | Change::Put(value) = change {
            check(&object, key, value)?;
            if matches!(key, Key::Name(name) if name.len() >= NAME_MAX_BYTES) {
                self.set.syncing().note_long_name();
            }
        }
        let place = self.place(0);
        let Some((bytes, endian)) = self.set.reader().read_ordered_block(self.rq, &object, 0).await? else {
            return Err(ObjectError::Corrupt { place, why: "a ZAP without its first block" });
        };
        let wrong = |e| ObjectError::decode(place, e);
        match BlockKind::of(&bytes, endian).map_err(wrong)? {
            BlockKind::Micro => self.change_micro(bytes, endian, key, change).await,
            BlockKind::Header => {
                let foreign = endian != Endian::Little;
                let block = byteswapped(&bytes, endian, Endian::Little).map_err(wrong)?;
                drop(bytes);
                let mut fat = Fat::open(self, object, block, foreign)?;
                let was_there = fat.change(key, change).await?;
                if was_there || !matches!(change, Change::Remove(_)) {
                    fat.flush().await?;
                }
                Ok(was_there)
            }
            BlockKind::Leaf => Err(ObjectError::Corrupt { place, why: "a ZAP that begins with a leaf" }),
        }
    }

    async fn change_micro(
        self,
        bytes: Bytes,
        endian: Endian,
        key: &Key,
        change: Change<'_>,
    ) -> Result<bool, ObjectError> {
        let Key::Name(name) = key else {
            return Err(ObjectError::Unsupported { what: "an integer key in a ZAP of names" });
        };
        let zap = MicroZap::decode(&bytes, endian).map_err(|e| ObjectError::decode(self.place(0), e))?;
        let value = match change {
            Change::Remove(how) => {
                let Some(at) = micro_match(&zap, name, how) else { return Ok(false) };
                self.store_slot(bytes, endian, at, [0; MicroZap::SLOT]).await?;
                return Ok(true);
            }
            Change::Insert(value) | Change::Put(value) => value,
        };
        let known = zap.find(name);
        if known.is_some() && matches!(change, Change::Insert(_)) {
            return Err(self.exists(key));
        }
        let hash = hash_of(key, zap.salt, ZapFlags(0), zap.norm).ok_or(NOT_TEXT)?;
        let place = match known {
            Some((at, entry)) => Some((at, entry.cd)),
            // Without a free slot, the block grows by one.
            None => free_cd(&zap, hash).map(|cd| (zap.free_slot().unwrap_or(bytes.len()), cd)),
        };
        let place = place.filter(|(at, _)| *at < bytes.len().max(MICRO_MAX_BYTES));
        let was_there = known.is_some();
        let word = value.words.first().copied().filter(|_| value.int_size == 8 && value.words.len() == 1);
        let entry = MicroEntry { name, value: word.unwrap_or(0), cd: place.map_or(0, |(_, cd)| cd) };
        let (Some((at, _)), Some(_), true) = (place, word, entry.fits()) else {
            let mut fat = Fat::upgrade(self, &zap).await?;
            fat.change(key, change).await?;
            fat.flush().await?;
            return Ok(was_there);
        };
        let slot = entry.encode(Endian::Little);
        self.store_slot(bytes, endian, at, slot).await?;
        Ok(was_there)
    }

    /// Writes the slot at offset `at` of a micro ZAP's block, which grows if necessary.
    async fn store_slot(
        self,
        bytes: Bytes,
        endian: Endian,
        at: usize,
        slot: [u8; MicroZap::SLOT],
    ) -> Result<(), ObjectError> {
        let ZapWriter { rq, set, tx, id } = self;
        if endian == Endian::Little && at < bytes.len() {
            // If no other task holds the block, it is changed in place.
            drop(bytes);
            return set.writes().write(rq, tx, id, at as u64, &slot).await;
        }
        let mut block =
            byteswapped(&bytes, endian, Endian::Little).map_err(|e| ObjectError::decode(self.place(0), e))?;
        block.resize(block.len().max((at + MicroZap::SLOT).next_multiple_of(MICRO_STEP_BYTES)), 0);
        if let Some(part) = block.get_mut(at..at + MicroZap::SLOT) {
            part.copy_from_slice(&slot);
        }
        let block_bytes = Some(block.len() as u32);
        set.writes().write_blocks(rq, tx, id, block_bytes, &[(0, Bytes::from(block))]).await
    }

    fn exists(&self, key: &Key) -> ObjectError {
        ObjectError::NameExists { name: key.text() }
    }
}

/// Whether a ZAP can store name and value.
fn check(object: &Object, key: &Key, value: &Value) -> Result<(), ObjectError> {
    let name_max = match object.dnode.object_type {
        ObjectType::DIRECTORY_CONTENTS => LONG_NAME_MAX_BYTES,
        _ => NAME_MAX_BYTES,
    };
    if key.new_key().stored_bytes() > name_max {
        return Err(ObjectError::TooLong { what: "the name of an entry" });
    }
    if value.stored_bytes() > VALUE_MAX_BYTES {
        return Err(ObjectError::TooLong { what: "the value of an entry" });
    }
    match key {
        Key::Name(name) if name.is_empty() || name.contains(&0) => {
            Err(ObjectError::Unsupported { what: "an empty name, or one with a NUL in it," })
        }
        Key::Words(words) if words.is_empty() => Err(ObjectError::Unsupported { what: "an empty key" }),
        _ if !matches!(value.int_size, 1 | 2 | 4 | 8) => {
            Err(ObjectError::Unsupported { what: "a value of integers of that size" })
        }
        _ => Ok(()),
    }
}

/// Offset of the slot that a look-up of the name in a micro ZAP finds.
fn micro_match(zap: &MicroZap<'_>, name: &[u8], how: Match) -> Option<usize> {
    if let Some((at, _)) = zap.find(name) {
        return Some(at);
    }
    let wanted = NormalizedName::new(name, zap.norm, how).filter(|wanted| !wanted.is_exact())?;
    let found = zap.entries().find(|e| wanted.is(e.name))?;
    zap.find(found.name).map(|(at, _)| at)
}

/// Lowest collision differentiator that no entry with that hash has; `None` if there are more such entries than one
/// leaf of a fat ZAP could hold.
fn free_cd(zap: &MicroZap<'_>, hash: u64) -> Option<u32> {
    /// Maximum number of chunks of a leaf that an entry of a micro ZAP needs.
    const CHUNKS: usize = 5;
    let mut taken: Vec<u32> = if zap.norm.any() {
        let of_hash = |e: &MicroEntry<'_>| {
            normalize(e.name, zap.norm).is_some_and(|name| hash_bytes(zap.salt, ZapFlags(0), &name) == hash)
        };
        zap.entries().filter(of_hash).map(|e| e.cd).collect()
    } else {
        zap.cds_of(hash).collect()
    };
    if (taken.len() + 1) * CHUNKS >= LeafEdit::capacity_of(FAT_SHIFT.into()) {
        return None;
    }
    taken.sort_unstable();
    Some(taken.iter().zip(0..).find(|(cd, n)| **cd != *n).map_or(taken.len() as u32, |(_, n)| n))
}

/// Converts an entry of a micro ZAP into one of a leaf.
fn fat_entry(entry: &MicroEntry<'_>, hash: u64) -> NewEntry {
    NewEntry { hash, cd: entry.cd, key: NewKey::Name(entry.name.to_vec()), int_size: 8, value: vec![entry.value] }
}

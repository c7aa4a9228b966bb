//! Micro ZAPs: one block, a header of 64 bytes, then slots of 64.
//!
//! ```text
//!  header  block type · salt · normalisation flags · 5 unused words
//!  slot    value (u64) · collision differentiator (u32) · pad (u16) · name (50, NUL-terminated; empty: free slot)
//! ```

use super::{BlockKind, NormFlags, WHAT};
use crate::cursor::{Cursor, DecodeError, Endian};
use crate::encoder::Encoder;

/// A micro ZAP, over its block.
#[derive(Clone, Copy, Debug)]
pub struct MicroZap<'a> {
    slots: &'a [u8],
    endian: Endian,
    /// Salt of the hash that orders the entries.
    pub salt: u64,
    /// How names are compared.
    pub norm: NormFlags,
}

/// One entry of a micro ZAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MicroEntry<'a> {
    /// The name, without NUL.
    pub name: &'a [u8],
    /// The value.
    pub value: u64,
    /// Tells entries of equal hash apart.
    pub cd: u32,
}

impl<'a> MicroZap<'a> {
    /// Bytes of the header and of each slot.
    pub const SLOT: usize = 64;
    /// Longest name in bytes.
    pub const NAME_MAX: usize = 49;

    /// Over a whole block.
    pub fn decode(block: &'a [u8], endian: Endian) -> Result<Self, DecodeError> {
        let mut c = Cursor::new(block, endian, WHAT);
        let [kind, salt, norm] = c.words()?;
        if kind != BlockKind::MICRO {
            return Err(DecodeError::Magic { what: WHAT, found: kind });
        }
        c.skip(Self::SLOT - 24)?;
        let slots = c.bytes(c.remaining())?;
        Ok(MicroZap { slots, endian, salt, norm: NormFlags(norm) })
    }

    /// The entries in the order of their slots.
    pub fn entries(&self) -> impl Iterator<Item = MicroEntry<'a>> + use<'a> {
        let endian = self.endian;
        self.slots.chunks_exact(Self::SLOT).filter_map(move |slot| {
            let mut c = Cursor::new(slot, endian, WHAT);
            let (value, cd) = (c.u64().ok()?, c.u32().ok()?);
            c.skip(2).ok()?;
            let field = c.bytes(Self::SLOT - 14).ok()?;
            let name = field.split(|b| *b == 0).next().unwrap_or(field);
            (!name.is_empty()).then_some(MicroEntry { name, value, cd })
        })
    }

    /// The value of exactly that name.
    pub fn get(&self, name: &[u8]) -> Option<u64> {
        self.entries().find(|e| e.name == name).map(|e| e.value)
    }

    /// The bytes of a micro ZAP block of `block_len` bytes; `None` if the entries or a name do not fit.
    pub fn encode(
        salt: u64,
        norm: NormFlags,
        entries: &[MicroEntry<'_>],
        block_len: usize,
        endian: Endian,
    ) -> Option<Vec<u8>> {
        let fits = entries.len().checked_add(1)?.checked_mul(Self::SLOT)? <= block_len;
        if !fits || entries.iter().any(|x| x.name.is_empty() || x.name.len() > Self::NAME_MAX || x.name.contains(&0)) {
            return None;
        }
        let mut e = Encoder::new(endian);
        e.words(&[BlockKind::MICRO, salt, norm.0]);
        e.pad_to(Self::SLOT);
        for entry in entries {
            let start = e.position();
            e.u64(entry.value);
            e.u32(entry.cd);
            e.u16(0);
            e.bytes(entry.name);
            e.pad_to(start + Self::SLOT);
        }
        e.pad_to(block_len);
        Some(e.finish())
    }
}

/// A micro ZAP that is being changed. It keeps the byte order it had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MicroEdit {
    block: Vec<u8>,
    endian: Endian,
}

impl MicroEdit {
    /// An empty one of `block_len` bytes; `None` if that is no more than its header.
    pub fn new(salt: u64, norm: NormFlags, block_len: usize, endian: Endian) -> Option<Self> {
        MicroZap::encode(salt, norm, &[], block_len, endian).map(|block| MicroEdit { block, endian })
    }

    /// Of a whole block.
    pub fn open(block: Vec<u8>, endian: Endian) -> Result<Self, DecodeError> {
        MicroZap::decode(&block, endian)?;
        Ok(MicroEdit { block, endian })
    }

    /// The ZAP as it is now.
    pub fn zap(&self) -> Result<MicroZap<'_>, DecodeError> {
        MicroZap::decode(&self.block, self.endian)
    }

    /// Its bytes.
    pub fn into_block(self) -> Vec<u8> {
        self.block
    }

    /// Bytes of its block.
    pub fn block_len(&self) -> usize {
        self.block.len()
    }

    fn slots(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.block.get_mut(MicroZap::SLOT..).unwrap_or_default().chunks_exact_mut(MicroZap::SLOT)
    }

    fn slot(&mut self, name: &[u8]) -> Option<&mut [u8]> {
        const NAME: usize = 14;
        self.slots().find(|slot| {
            let field = slot.get(NAME..).unwrap_or_default();
            field.starts_with(name) && field.get(name.len()).is_none_or(|b| *b == 0)
        })
    }

    /// Whether all slots are taken.
    pub fn is_full(&mut self) -> bool {
        self.slot(b"").is_none()
    }

    /// Puts an entry into the first free slot; `false` if there is none. The caller has made sure that the name is new.
    pub fn insert(&mut self, entry: &MicroEntry<'_>) -> bool {
        let endian = self.endian;
        let fits = !entry.name.is_empty() && entry.name.len() <= MicroZap::NAME_MAX && !entry.name.contains(&0);
        let Some(slot) = self.slot(b"").filter(|_| fits) else { return false };
        let mut e = Encoder::new(endian);
        e.u64(entry.value);
        e.u32(entry.cd);
        e.u16(0);
        e.bytes(entry.name);
        e.pad_to(MicroZap::SLOT);
        slot.copy_from_slice(&e.finish());
        true
    }

    /// Changes the value of that name; `false` if it is not there.
    pub fn set(&mut self, name: &[u8], value: u64) -> bool {
        let mut e = Encoder::new(self.endian);
        e.u64(value);
        let Some(field) = self.slot(name).filter(|_| !name.is_empty()).and_then(|s| s.get_mut(..8)) else {
            return false;
        };
        field.copy_from_slice(&e.finish());
        true
    }

    /// Takes out that name; `false` if it is not there.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        let Some(slot) = self.slot(name).filter(|_| !name.is_empty()) else { return false };
        slot.fill(0);
        true
    }

    /// Adds free slots up to a block of `block_len` bytes.
    pub fn grow(&mut self, block_len: usize) {
        self.block.resize(block_len.max(self.block.len()), 0);
    }
}

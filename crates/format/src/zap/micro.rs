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

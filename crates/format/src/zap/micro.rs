//! Micro ZAPs: one block, a header of 64 bytes, then slots of 64.
//!
//! ```text
//!  header  block type · salt · normalisation flags · 5 unused words
//!  slot    value (u64) · collision differentiator (u32) · pad (u16) · name (50, NUL-terminated; empty: free slot)
//! ```

use super::hash::FieldHasher;
use super::{BlockKind, NormFlags, WHAT};
use crate::cursor::{Cursor, DecodeError, Endian};
use crate::encoder::Encoder;

/// A micro ZAP, borrowed from its block.
#[derive(Clone, Copy, Debug)]
pub struct MicroZap<'a> {
    slots: &'a [u8],
    endian: Endian,
    /// Salt of the hash of names.
    pub salt: u64,
    /// Normalisation of names.
    pub norm: NormFlags,
}

/// One entry of a micro ZAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MicroEntry<'a> {
    /// The name, without NUL.
    pub name: &'a [u8],
    /// The value.
    pub value: u64,
    /// Collision differentiator: distinguishes entries of equal hash.
    pub cd: u32,
}

/// Byte offset of the name in a slot.
const NAME: usize = 14;

impl<'a> MicroEntry<'a> {
    /// Whether the name fits in a slot: 1–49 bytes without NUL.
    pub fn fits(&self) -> bool {
        !self.name.is_empty() && self.name.len() <= MicroZap::NAME_MAX && !self.name.contains(&0)
    }

    /// Encodes the slot. A name that does not [fit](Self::fits) is truncated.
    pub fn encode(&self, endian: Endian) -> [u8; MicroZap::SLOT] {
        let mut slot = [0; MicroZap::SLOT];
        let (value, cd) = match endian {
            Endian::Little => (self.value.to_le_bytes(), self.cd.to_le_bytes()),
            Endian::Big => (self.value.to_be_bytes(), self.cd.to_be_bytes()),
        };
        let fields = value.iter().chain(&cd).chain(&[0; 2]).chain(self.name.iter().take(MicroZap::NAME_MAX));
        slot.iter_mut().zip(fields).for_each(|(to, from)| *to = *from);
        slot
    }

    /// Decodes a slot; `None` if it is free.
    fn decode(slot: &'a [u8], endian: Endian) -> Option<Self> {
        let (value, rest) = slot.split_first_chunk::<8>()?;
        let (cd, rest) = rest.split_first_chunk::<4>()?;
        let field = rest.get(2..)?;
        let name = field.get(..field.iter().position(|b| *b == 0).unwrap_or(field.len()))?;
        let (value, cd) = match endian {
            Endian::Little => (u64::from_le_bytes(*value), u32::from_le_bytes(*cd)),
            Endian::Big => (u64::from_be_bytes(*value), u32::from_be_bytes(*cd)),
        };
        (!name.is_empty()).then_some(MicroEntry { name, value, cd })
    }
}

impl<'a> MicroZap<'a> {
    /// Size in bytes of the header and of each slot.
    pub const SLOT: usize = 64;
    /// Maximum length of a name in bytes.
    pub const NAME_MAX: usize = 49;

    /// Decodes the header of a whole block.
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
        self.slots.chunks_exact(Self::SLOT).filter_map(move |slot| MicroEntry::decode(slot, endian))
    }

    /// The value of a name, compared bytewise.
    pub fn get(&self, name: &[u8]) -> Option<u64> {
        self.find(name).map(|(_, entry)| entry.value)
    }

    /// The entry of a name, compared bytewise, and the byte offset of its slot in the block.
    pub fn find(&self, name: &[u8]) -> Option<(usize, MicroEntry<'a>)> {
        // Compare the last byte first: names in a directory often differ only there.
        let last = *name.last()?;
        let len = name.len();
        let holds = |slot: &[u8]| {
            let field = slot.get(NAME..).unwrap_or_default();
            field.get(len - 1) == Some(&last) && field.get(len).is_none_or(|b| *b == 0) && field.starts_with(name)
        };
        let index = self.slots.chunks_exact(Self::SLOT).position(holds)?;
        let at = index * Self::SLOT;
        let entry = MicroEntry::decode(self.slots.get(at..at + Self::SLOT)?, self.endian)?;
        Some((Self::SLOT + at, entry))
    }

    /// The collision differentiators of the entries whose stored names have the hash `hash`, in the order of their
    /// slots.
    pub fn cds_of(&self, hash: u64) -> impl Iterator<Item = u32> + use<'a> {
        let endian = self.endian;
        let mut hasher = FieldHasher::new(self.salt);
        let slots = self.slots.chunks_exact(Self::SLOT);
        let of_hash = slots.filter(move |slot| {
            let field = slot.get(NAME..).unwrap_or_default();
            field.first().is_some_and(|b| *b != 0) && hasher.hash(field) == hash
        });
        of_hash.filter_map(move |slot| MicroEntry::decode(slot, endian)).map(|entry| entry.cd)
    }

    /// Byte offset in the block of the first free slot; `None` if all are in use.
    pub fn free_slot(&self) -> Option<usize> {
        let index = self.slots.chunks_exact(Self::SLOT).position(|slot| slot.get(NAME) == Some(&0))?;
        Some(Self::SLOT * (index + 1))
    }

    /// Encodes a micro ZAP block of `block_len` bytes; `None` if the entries or a name do not fit.
    pub fn encode(
        salt: u64,
        norm: NormFlags,
        entries: &[MicroEntry<'_>],
        block_len: usize,
        endian: Endian,
    ) -> Option<Vec<u8>> {
        let fits = entries.len().checked_add(1)?.checked_mul(Self::SLOT)? <= block_len;
        if !fits || !entries.iter().all(MicroEntry::fits) {
            return None;
        }
        let mut e = Encoder::new(endian);
        e.words(&[BlockKind::MICRO, salt, norm.0]);
        e.pad_to(Self::SLOT);
        entries.iter().for_each(|entry| e.bytes(&entry.encode(endian)));
        e.pad_to(block_len);
        Some(e.finish())
    }
}

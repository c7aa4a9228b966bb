//! A file's system attributes as an editable list, decoded from and encoded to bonus buffer and spill block (OpenZFS
//! `module/zfs/sa.c`, `sa_build_layouts`).
//!
//! Attributes keep their order, including unknown ones. They fill the bonus buffer first; if they do not fit, the
//! spill block pointer takes 128 bytes of it, and the rest is stored in the spill block.
//!
//! Values are held in little-endian order, whatever the order of the block they were read from.

use crate::metadata::index;
use bytes::Bytes;
use smallvec::SmallVec;
use weir_format::acl::{Ace, decode_aces};
use weir_format::sa::{SaHeader, SaSwap, ZPL_ATTRIBUTES};
use weir_format::znode::{Timestamp, Znode};
use weir_format::{DecodeError, Encoder, Endian, ObjectId};

/// Size of the spill block pointer in bytes.
const SPILL_POINTER_BYTES: usize = 128;
/// Maximum size of a spill block in bytes.
const SPILL_MAX_BYTES: usize = 128 << 10;
/// Maximum size of an attribute in bytes: lengths have 16 bits.
const VALUE_MAX_BYTES: usize = 0xffff;

/// The attributes of a new file that come first, in this order (`zfs_mknode`).
const LEADING_ATTRIBUTES: [usize; 13] = [
    index::MODE,
    index::SIZE,
    index::GEN,
    index::UID,
    index::GID,
    index::PARENT,
    index::FLAGS,
    index::ATIME,
    index::MTIME,
    index::CTIME,
    index::CRTIME,
    index::LINKS,
    index::PROJID,
];

/// Value of an attribute.
type Value = SmallVec<[u8; 16]>;

/// An attribute: its ID in the file system, and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attribute {
    pub number: u16,
    pub value: Value,
}

/// The attributes of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SaAttrs {
    attributes: Vec<Attribute>,
}

/// The attributes, split into bonus buffer and spill block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parts<'a> {
    pub bonus: &'a [Attribute],
    /// Empty if there is no spill block.
    pub spill: &'a [Attribute],
}

/// Mapping between attribute IDs and known attributes.
pub(crate) trait AttrRegistry {
    /// Index in [`ZPL_ATTRIBUTES`] of an attribute ID.
    fn index(&self, number: u16) -> Option<usize>;
    /// ID of a known attribute; `None` if it is not registered.
    fn number(&self, index: usize) -> Option<u16>;
    /// Length of an attribute in bytes; 0 if variable.
    fn length(&self, number: u16) -> Option<u16>;
}

fn unknown(number: u16) -> DecodeError {
    DecodeError::Field { what: "system attributes", field: "attribute of another byte order", value: number.into() }
}

/// Converts a value between byte orders; the conversion is symmetric.
fn swapped(
    naming: &impl AttrRegistry,
    number: u16,
    value: &[u8],
    from: Endian,
    to: Endian,
) -> Result<Value, DecodeError> {
    if from == to {
        return Ok(SmallVec::from_slice(value));
    }
    let swap = naming.index(number).and_then(|i| ZPL_ATTRIBUTES.get(i)).ok_or(unknown(number))?.2;
    let width = match swap {
        SaSwap::Uint64 => 8,
        SaSwap::Uint32 => 4,
        SaSwap::Uint16 => 2,
        SaSwap::Uint8 => 1,
        SaSwap::Acl => return swapped_aces(value, from, to),
    };
    let mut out = Value::new();
    for word in value.chunks(width) {
        out.extend(word.iter().rev().copied());
    }
    Ok(out)
}

fn swapped_aces(value: &[u8], from: Endian, to: Endian) -> Result<Value, DecodeError> {
    let mut cursor = weir_format::Cursor::new(value, from, "ACL");
    let mut out = Encoder::new(to);
    while cursor.remaining() > 0 {
        Ace::decode(&mut cursor)?.encode(&mut out);
    }
    Ok(SmallVec::from_vec(out.finish()))
}

fn padded(len: usize) -> usize {
    len.next_multiple_of(8)
}

/// Size in bytes of an SA header with this many variable-length attributes.
fn header_bytes(varying: usize) -> usize {
    8 + padded(2 * varying.saturating_sub(1))
}

impl SaAttrs {
    /// An empty list with capacity for a new file's attributes.
    pub fn with_default_capacity() -> Self {
        SaAttrs { attributes: Vec::with_capacity(ZPL_ATTRIBUTES.len()) }
    }

    /// Adds the attributes of a bonus buffer or spill block.
    pub fn take(
        &mut self,
        naming: &impl AttrRegistry,
        pieces: &[(u16, &[u8])],
        endian: Endian,
    ) -> Result<(), DecodeError> {
        // Reserve capacity for one or two added attributes.
        self.attributes.reserve(pieces.len() + 2);
        for (number, value) in pieces {
            let value = swapped(naming, *number, value, endian, Endian::Little)?;
            self.attributes.push(Attribute { number: *number, value });
        }
        Ok(())
    }

    /// The attributes in their order.
    pub fn into_attributes(self) -> Vec<Attribute> {
        self.attributes
    }

    /// The attributes of a file with a znode, as a conversion creates them.
    pub fn of_znode(naming: &impl AttrRegistry, znode: &Znode, target: Option<&[u8]>) -> Result<Self, DecodeError> {
        let mut row = SaAttrs::default();
        let endian = Endian::Little;
        let aces = znode.acl.aces(None, endian)?;
        row.set_word(naming, index::MODE, znode.mode)?;
        row.set_word(naming, index::SIZE, znode.size_bytes)?;
        row.set_word(naming, index::GEN, znode.generation)?;
        row.set_word(naming, index::UID, znode.uid)?;
        row.set_word(naming, index::GID, znode.gid)?;
        row.set_word(naming, index::PARENT, znode.parent.0)?;
        row.set_word(naming, index::FLAGS, znode.flags)?;
        row.set_time(naming, index::ATIME, znode.atime)?;
        row.set_time(naming, index::MTIME, znode.mtime)?;
        row.set_time(naming, index::CTIME, znode.ctime)?;
        row.set_time(naming, index::CRTIME, znode.crtime)?;
        row.set_word(naming, index::LINKS, znode.links)?;
        if znode.rdev != 0 {
            row.set_word(naming, index::RDEV, znode.rdev)?;
        }
        row.set_aces(naming, &aces)?;
        if let Some(target) = target {
            row.set(naming, index::SYMLINK, target)?;
        }
        if znode.xattr != ObjectId(0) {
            row.set_word(naming, index::XATTR, znode.xattr.0)?;
        }
        Ok(row)
    }

    /// Value of an attribute, if present.
    pub fn get(&self, naming: &impl AttrRegistry, index: usize) -> Option<&[u8]> {
        let number = naming.number(index)?;
        self.attributes.iter().find(|a| a.number == number).map(|a| &a.value[..])
    }

    /// Value of an integer attribute; 0 if absent.
    pub fn word(&self, naming: &impl AttrRegistry, index: usize) -> u64 {
        let bytes = self.get(naming, index).and_then(|v| v.first_chunk::<8>());
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// Sets an attribute; a new one is appended.
    ///
    /// # Errors
    /// If the attribute is not registered.
    pub fn set(&mut self, naming: &impl AttrRegistry, index: usize, value: &[u8]) -> Result<(), DecodeError> {
        let missing = DecodeError::Field { what: "system attributes", field: "known attribute", value: index as u64 };
        let number = naming.number(index).ok_or(missing)?;
        match self.attributes.iter_mut().find(|a| a.number == number) {
            Some(found) => found.value = SmallVec::from_slice(value),
            None => self.attributes.push(Attribute { number, value: SmallVec::from_slice(value) }),
        }
        Ok(())
    }

    /// Sets an integer attribute.
    pub fn set_word(&mut self, naming: &impl AttrRegistry, index: usize, word: u64) -> Result<(), DecodeError> {
        self.set(naming, index, &word.to_le_bytes())
    }

    /// Sets a time.
    pub fn set_time(&mut self, naming: &impl AttrRegistry, index: usize, time: Timestamp) -> Result<(), DecodeError> {
        let mut value = Value::new();
        time.to_words().iter().for_each(|word| value.extend_from_slice(&word.to_le_bytes()));
        self.set(naming, index, &value)
    }

    /// The access control list.
    pub fn aces(&self, naming: &impl AttrRegistry) -> Result<Vec<Ace>, DecodeError> {
        let bytes = self.get(naming, index::DACL_ACES).unwrap_or_default();
        decode_aces(bytes, Endian::Little, self.word(naming, index::DACL_COUNT), true)
    }

    /// Sets the access control list.
    pub fn set_aces(&mut self, naming: &impl AttrRegistry, aces: &[Ace]) -> Result<(), DecodeError> {
        let mut bytes = Encoder::new(Endian::Little);
        aces.iter().for_each(|ace| ace.encode(&mut bytes));
        self.set_word(naming, index::DACL_COUNT, aces.len() as u64)?;
        self.set(naming, index::DACL_ACES, &bytes.finish())
    }

    /// Moves the attributes that come first in a new file to the front, in their order: space accounting reads them
    /// at fixed offsets ([`super::owner`]).
    pub fn move_leading_first(&mut self, naming: &impl AttrRegistry) {
        let rank = |a: &Attribute| LEADING_ATTRIBUTES.iter().position(|index| naming.number(*index) == Some(a.number));
        self.attributes.sort_by_key(|a| rank(a).unwrap_or(LEADING_ATTRIBUTES.len()));
    }

    /// Removes an attribute.
    pub fn unset(&mut self, naming: &impl AttrRegistry, index: usize) {
        if let Some(number) = naming.number(index) {
            self.attributes.retain(|a| a.number != number);
        }
    }

    /// Splits the attributes for a bonus buffer of `room` bytes (without a spill block pointer); `None` if they do
    /// not fit into both.
    pub fn parts(&self, naming: &impl AttrRegistry, room: usize) -> Option<Parts<'_>> {
        let all = &self.attributes[..];
        if all.iter().any(|a| a.value.len() > VALUE_MAX_BYTES) {
            return None;
        }
        let mut fit = fitting(naming, all, room);
        if fit < all.len() {
            fit = fitting(naming, all, room.saturating_sub(SPILL_POINTER_BYTES));
        }
        let (bonus, spill) = all.split_at(fit);
        (fitting(naming, spill, SPILL_MAX_BYTES) == spill.len()).then_some(Parts { bonus, spill })
    }
}

/// Number of leading attributes that fit into `room` bytes.
fn fitting(naming: &impl AttrRegistry, attributes: &[Attribute], room: usize) -> usize {
    let mut used = 0;
    let mut varying = 0;
    for (n, attribute) in attributes.iter().enumerate() {
        varying += usize::from(naming.length(attribute.number) == Some(0));
        if header_bytes(varying) + padded(used) + attribute.value.len() > room {
            return n;
        }
        used = padded(used) + attribute.value.len();
    }
    attributes.len()
}

/// Attribute IDs of a part: its layout.
pub(crate) fn layout(part: &[Attribute]) -> Vec<u16> {
    part.iter().map(|a| a.number).collect()
}

/// Encodes a part.
pub(crate) fn encode(
    naming: &impl AttrRegistry,
    part: &[Attribute],
    layout: u16,
    endian: Endian,
) -> Result<Vec<u8>, DecodeError> {
    let varies = |a: &&Attribute| naming.length(a.number) == Some(0);
    let lengths: Vec<u16> = part.iter().filter(varies).map(|a| a.value.len() as u16).collect();
    let header_bytes = header_bytes(lengths.len());
    let mut out = SaHeader { layout, header_bytes, lengths }.encode(endian);
    out.reserve(part.iter().map(|a| padded(a.value.len())).sum());
    for attribute in part {
        out.resize(padded(out.len()), 0);
        out.extend(swapped(naming, attribute.number, &attribute.value, Endian::Little, endian)?);
    }
    Ok(out)
}

/// Pads a spill block.
pub(crate) fn spill_block(mut bytes: Vec<u8>) -> Bytes {
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    Bytes::from(bytes)
}

//! Name-value lists (OpenZFS `module/nvpair/nvpair.c`, `include/sys/nvpair.h`): the self-describing trees in labels,
//! the MOS configuration, pool history, properties of holds, extended attributes and send streams.
//!
//! ```text
//!  header   encoding (0 native, 1 XDR) · byte order (1 little; native only) · 0 · 0
//!  list     version (0) · flags (1: names are unique) · pair · pair · … · end mark
//!  XDR      encoded size · decoded size · name · type · count · value       ends with two zero words
//!  native   size · name size · 0 · count · type · name\0 … value            ends with one zero word
//! ```
//!
//! XDR pads everything to four bytes and is big-endian; native is the writer's memory image, padded to eight bytes;
//! the pairs of a nested list follow the pair that holds it.
//!
//! Invariants: decoding keeps the order of pairs; a lookup returns the first pair of a name; memory is bounded by the
//! input, since every element takes at least one input byte; nesting is at most [`MAX_DEPTH`]. Names and strings are
//! byte strings without NUL, since names of extended attributes need not be UTF-8.

mod native;
mod print;
#[cfg(test)]
mod tests;
mod xdr;

use crate::cursor::{Cursor, DecodeError, Endian};

const WHAT: &str = "nvlist";

/// Maximum nesting that is decoded. Vdev trees nest about six deep.
pub const MAX_DEPTH: usize = 32;

/// The value of a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum NvValue {
    /// A flag without a value: the presence of the name means true.
    Boolean,
    BooleanValue(bool),
    Byte(u8),
    Int8(i8),
    Uint8(u8),
    Int16(i16),
    Uint16(u16),
    Int32(i32),
    Uint32(u32),
    Int64(i64),
    Uint64(u64),
    /// Nanoseconds.
    HrTime(i64),
    /// The bits of an IEEE double, so that equality is exact.
    Double(u64),
    String(Vec<u8>),
    ByteArray(Vec<u8>),
    BooleanArray(Vec<bool>),
    Int8Array(Vec<i8>),
    Uint8Array(Vec<u8>),
    Int16Array(Vec<i16>),
    Uint16Array(Vec<u16>),
    Int32Array(Vec<i32>),
    Uint32Array(Vec<u32>),
    Int64Array(Vec<i64>),
    Uint64Array(Vec<u64>),
    StringArray(Vec<Vec<u8>>),
    List(NvList),
    ListArray(Vec<NvList>),
}

/// The type numbers of `data_type_t`.
#[allow(missing_docs)]
pub(crate) mod kind {
    pub const BOOLEAN: u32 = 1;
    pub const BYTE: u32 = 2;
    pub const INT16: u32 = 3;
    pub const UINT16: u32 = 4;
    pub const INT32: u32 = 5;
    pub const UINT32: u32 = 6;
    pub const INT64: u32 = 7;
    pub const UINT64: u32 = 8;
    pub const STRING: u32 = 9;
    pub const BYTE_ARRAY: u32 = 10;
    pub const INT16_ARRAY: u32 = 11;
    pub const UINT16_ARRAY: u32 = 12;
    pub const INT32_ARRAY: u32 = 13;
    pub const UINT32_ARRAY: u32 = 14;
    pub const INT64_ARRAY: u32 = 15;
    pub const UINT64_ARRAY: u32 = 16;
    pub const STRING_ARRAY: u32 = 17;
    pub const HRTIME: u32 = 18;
    pub const NVLIST: u32 = 19;
    pub const NVLIST_ARRAY: u32 = 20;
    pub const BOOLEAN_VALUE: u32 = 21;
    pub const INT8: u32 = 22;
    pub const UINT8: u32 = 23;
    pub const BOOLEAN_ARRAY: u32 = 24;
    pub const INT8_ARRAY: u32 = 25;
    pub const UINT8_ARRAY: u32 = 26;
    pub const DOUBLE: u32 = 27;
}

impl NvValue {
    /// The type number and the element count that are encoded in the pair.
    pub(crate) fn kind_and_count(&self) -> (u32, usize) {
        use NvValue::*;
        match self {
            Boolean => (kind::BOOLEAN, 0),
            BooleanValue(_) => (kind::BOOLEAN_VALUE, 1),
            Byte(_) => (kind::BYTE, 1),
            Int8(_) => (kind::INT8, 1),
            Uint8(_) => (kind::UINT8, 1),
            Int16(_) => (kind::INT16, 1),
            Uint16(_) => (kind::UINT16, 1),
            Int32(_) => (kind::INT32, 1),
            Uint32(_) => (kind::UINT32, 1),
            Int64(_) => (kind::INT64, 1),
            Uint64(_) => (kind::UINT64, 1),
            HrTime(_) => (kind::HRTIME, 1),
            Double(_) => (kind::DOUBLE, 1),
            String(_) => (kind::STRING, 1),
            List(_) => (kind::NVLIST, 1),
            ByteArray(v) => (kind::BYTE_ARRAY, v.len()),
            BooleanArray(v) => (kind::BOOLEAN_ARRAY, v.len()),
            Int8Array(v) => (kind::INT8_ARRAY, v.len()),
            Uint8Array(v) => (kind::UINT8_ARRAY, v.len()),
            Int16Array(v) => (kind::INT16_ARRAY, v.len()),
            Uint16Array(v) => (kind::UINT16_ARRAY, v.len()),
            Int32Array(v) => (kind::INT32_ARRAY, v.len()),
            Uint32Array(v) => (kind::UINT32_ARRAY, v.len()),
            Int64Array(v) => (kind::INT64_ARRAY, v.len()),
            Uint64Array(v) => (kind::UINT64_ARRAY, v.len()),
            StringArray(v) => (kind::STRING_ARRAY, v.len()),
            ListArray(v) => (kind::NVLIST_ARRAY, v.len()),
        }
    }

    /// The number, if this is an unsigned 64-bit integer.
    pub fn as_u64(&self) -> Option<u64> {
        if let NvValue::Uint64(v) = self { Some(*v) } else { None }
    }

    /// The text, if this is a string of valid UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        if let NvValue::String(v) = self { std::str::from_utf8(v).ok() } else { None }
    }

    /// The nested list, if this is one.
    pub fn as_list(&self) -> Option<&NvList> {
        if let NvValue::List(v) = self { Some(v) } else { None }
    }
}

macro_rules! from {
    ($($t:ty => $variant:ident),* $(,)?) => {
        $(impl From<$t> for NvValue {
            fn from(v: $t) -> Self {
                NvValue::$variant(v)
            }
        })*
    };
}
from!(bool => BooleanValue, u64 => Uint64, i64 => Int64, u32 => Uint32, i32 => Int32, NvList => List,
    Vec<NvList> => ListArray, Vec<u64> => Uint64Array);

impl From<&str> for NvValue {
    fn from(v: &str) -> Self {
        NvValue::String(v.as_bytes().to_vec())
    }
}

/// A name and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvPair {
    /// The name: bytes without NUL, mostly UTF-8.
    pub name: Vec<u8>,
    /// The value.
    pub value: NvValue,
}

impl NvPair {
    /// The name as text; bytes that are not UTF-8 are replaced.
    pub fn name_lossy(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.name)
    }
}

/// An ordered list of name-value pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvList {
    flags: u32,
    pairs: Vec<NvPair>,
}

impl Default for NvList {
    fn default() -> Self {
        NvList::new()
    }
}

impl NvList {
    /// The flag of a list whose names are unique (`NV_UNIQUE_NAME`).
    pub const UNIQUE_NAME: u32 = 1;

    /// An empty list with unique names.
    pub fn new() -> Self {
        NvList { flags: Self::UNIQUE_NAME, pairs: Vec::new() }
    }

    /// Decodes a packed list, header included, in either encoding. Bytes after its end are ignored, since packed
    /// lists are stored in fixed-size areas.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        NvList::decode_prefix(bytes).map(|(list, _)| list)
    }

    /// Like [`NvList::decode`], and also returns the size of the packed list in bytes.
    pub fn decode_prefix(bytes: &[u8]) -> Result<(Self, usize), DecodeError> {
        let mut c = Cursor::new(bytes, Endian::Big, WHAT);
        let [encoding, order, _, _] = c.array::<4>()?;
        let endian = match (encoding, order) {
            (1, _) => Endian::Big,
            (0, 1) => Endian::Little,
            (0, 0) => Endian::Big,
            (0, _) => return Err(field("byte order", order.into())),
            _ => return Err(field("encoding", encoding.into())),
        };
        let mut c = Cursor::new(bytes, endian, WHAT);
        c.skip(4)?;
        let list = if encoding == 1 { xdr::decode_list(&mut c, 0)? } else { native::decode_list(&mut c)? };
        Ok((list, c.position()))
    }

    /// The packed list in XDR, header included.
    pub fn encode_xdr(&self) -> Vec<u8> {
        xdr::encode(self)
    }

    /// The packed list in the native encoding of a host of byte order `endian`, header included.
    pub fn encode_native(&self, endian: Endian) -> Vec<u8> {
        native::encode(self, endian)
    }

    /// The persistent flags.
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// The pairs in their order.
    pub fn pairs(&self) -> &[NvPair] {
        &self.pairs
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether the list has no pairs.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// The first value of a name.
    pub fn get(&self, name: &str) -> Option<&NvValue> {
        self.get_bytes_name(name.as_bytes())
    }

    /// The first value of a name that may not be UTF-8.
    pub fn get_bytes_name(&self, name: &[u8]) -> Option<&NvValue> {
        self.pairs.iter().find(|p| p.name == name).map(|p| &p.value)
    }

    /// Whether the name is present, whatever its value.
    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// The value of a name, if it is an unsigned 64-bit integer.
    pub fn get_u64(&self, name: &str) -> Option<u64> {
        self.get(name)?.as_u64()
    }

    /// The value of a name, if it is a string of valid UTF-8.
    pub fn get_str(&self, name: &str) -> Option<&str> {
        self.get(name)?.as_str()
    }

    /// The bytes of a name's value, if it is a string.
    pub fn get_string_bytes(&self, name: &str) -> Option<&[u8]> {
        if let NvValue::String(v) = self.get(name)? { Some(v) } else { None }
    }

    /// The value of a name, if it is a nested list.
    pub fn get_list(&self, name: &str) -> Option<&NvList> {
        self.get(name)?.as_list()
    }

    /// The value of a name, if it is an array of nested lists.
    pub fn get_list_array(&self, name: &str) -> Option<&[NvList]> {
        if let NvValue::ListArray(v) = self.get(name)? { Some(v) } else { None }
    }

    /// The value of a name, if it is an array of unsigned 64-bit integers.
    pub fn get_u64_array(&self, name: &str) -> Option<&[u64]> {
        if let NvValue::Uint64Array(v) = self.get(name)? { Some(v) } else { None }
    }

    /// The value of a name, if it is an array of bytes of either type.
    pub fn get_byte_array(&self, name: &str) -> Option<&[u8]> {
        match self.get(name)? {
            NvValue::ByteArray(v) | NvValue::Uint8Array(v) => Some(v),
            _ => None,
        }
    }

    /// The boolean of a name: its value, or `true` for a name without a value.
    pub fn get_bool(&self, name: &str) -> Option<bool> {
        match self.get(name)? {
            NvValue::Boolean => Some(true),
            NvValue::BooleanValue(v) => Some(*v),
            _ => None,
        }
    }

    /// [`NvList::get_u64`], or [`DecodeError::Missing`] with the name.
    pub fn require_u64(&self, name: &'static str) -> Result<u64, DecodeError> {
        self.get_u64(name).ok_or(DecodeError::Missing { what: WHAT, field: name })
    }

    /// [`NvList::get_str`], or [`DecodeError::Missing`] with the name.
    pub fn require_str(&self, name: &'static str) -> Result<&str, DecodeError> {
        self.get_str(name).ok_or(DecodeError::Missing { what: WHAT, field: name })
    }

    /// [`NvList::get_list`], or [`DecodeError::Missing`] with the name.
    pub fn require_list(&self, name: &'static str) -> Result<&NvList, DecodeError> {
        self.get_list(name).ok_or(DecodeError::Missing { what: WHAT, field: name })
    }

    /// Appends a pair; in a list with unique names it replaces an existing pair of the same name.
    pub fn set(&mut self, name: &str, value: impl Into<NvValue>) {
        self.set_bytes_name(name.as_bytes(), value.into());
    }

    /// [`NvList::set`] for names that may not be UTF-8. The name is cut at the first NUL.
    pub fn set_bytes_name(&mut self, name: &[u8], value: NvValue) {
        let name: Vec<u8> = name.iter().copied().take_while(|b| *b != 0).collect();
        if self.flags & Self::UNIQUE_NAME != 0 {
            self.pairs.retain(|p| p.name != name);
        }
        self.pairs.push(NvPair { name, value });
    }

    /// Removes the first pair of a name and returns its value.
    pub fn remove(&mut self, name: &str) -> Option<NvValue> {
        self.remove_bytes_name(name.as_bytes())
    }

    /// [`NvList::remove`] for names that may not be UTF-8.
    pub fn remove_bytes_name(&mut self, name: &[u8]) -> Option<NvValue> {
        let at = self.pairs.iter().position(|p| p.name == name)?;
        Some(self.pairs.remove(at).value)
    }
}

fn field(field: &'static str, value: u64) -> DecodeError {
    DecodeError::Field { what: WHAT, field, value }
}

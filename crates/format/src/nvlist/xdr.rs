//! The XDR encoding of name-value lists.

use super::{MAX_DEPTH, NvList, NvPair, NvValue, WHAT, field, kind};
use crate::cursor::{Cursor, DecodeError, Endian};
use crate::encoder::Encoder;

type Result<T> = std::result::Result<T, DecodeError>;

pub(super) fn decode_list(c: &mut Cursor<'_>, depth: usize) -> Result<NvList> {
    if depth > MAX_DEPTH {
        return Err(field("nesting", depth as u64));
    }
    let version = c.u32()?;
    if version != 0 {
        return Err(field("version", version.into()));
    }
    let flags = c.u32()?;
    let mut pairs = Vec::new();
    loop {
        let encoded = c.u32()?;
        let decoded = c.u32()?;
        if encoded == 0 && decoded == 0 {
            return Ok(NvList { flags, pairs });
        }
        if encoded == 0 || decoded == 0 {
            return Err(field("pair size", encoded.into()));
        }
        let name = string(c)?;
        let kind = c.u32()?;
        let count = c.u32()?;
        let value = value(c, kind, count, depth)?;
        pairs.push(NvPair { name, value });
    }
}

fn padding(len: usize) -> usize {
    len.wrapping_neg() & 3
}

fn string(c: &mut Cursor<'_>) -> Result<Vec<u8>> {
    let len = c.u32()?;
    let len = usize::try_from(len).map_err(|_| field("string length", len.into()))?;
    let bytes = c.bytes(len)?;
    c.skip(padding(len))?;
    if bytes.contains(&0) {
        return Err(field("string with NUL, length", len as u64));
    }
    Ok(bytes.to_vec())
}

/// Decodes an array: an empty array has no bytes, any other repeats its count.
fn array<'a, T>(c: &mut Cursor<'a>, count: u32, mut each: impl FnMut(&mut Cursor<'a>) -> Result<T>) -> Result<Vec<T>> {
    let mut out = Vec::new();
    if count == 0 {
        return Ok(out);
    }
    let again = c.u32()?;
    if again != count {
        return Err(field("array length", again.into()));
    }
    for _ in 0..count {
        out.push(each(c)?);
    }
    Ok(out)
}

fn value(c: &mut Cursor<'_>, kind: u32, count: u32, depth: usize) -> Result<NvValue> {
    use NvValue::*;
    let is_array = matches!(
        kind,
        kind::BYTE_ARRAY..=kind::STRING_ARRAY | kind::NVLIST_ARRAY | kind::BOOLEAN_ARRAY..=kind::UINT8_ARRAY
    );
    let expected = if kind == kind::BOOLEAN { 0 } else { 1 };
    if !is_array && count != expected {
        return Err(field("element count", count.into()));
    }
    Ok(match kind {
        kind::BOOLEAN => Boolean,
        kind::BOOLEAN_VALUE => BooleanValue(c.u32()? != 0),
        kind::BYTE => Byte(c.u32()? as u8),
        kind::INT8 => Int8(c.u32()? as i8),
        kind::UINT8 => Uint8(c.u32()? as u8),
        kind::INT16 => Int16(c.u32()? as i16),
        kind::UINT16 => Uint16(c.u32()? as u16),
        kind::INT32 => Int32(c.u32()? as i32),
        kind::UINT32 => Uint32(c.u32()?),
        kind::INT64 => Int64(c.u64()? as i64),
        kind::UINT64 => Uint64(c.u64()?),
        kind::HRTIME => HrTime(c.u64()? as i64),
        kind::DOUBLE => Double(c.u64()?),
        kind::STRING => String(string(c)?),
        kind::BYTE_ARRAY => {
            let len = usize::try_from(count).map_err(|_| field("array length", count.into()))?;
            let bytes = c.bytes(len)?.to_vec();
            c.skip(padding(len))?;
            ByteArray(bytes)
        }
        kind::BOOLEAN_ARRAY => BooleanArray(array(c, count, |c| Ok(c.u32()? != 0))?),
        kind::INT8_ARRAY => Int8Array(array(c, count, |c| Ok(c.u32()? as i8))?),
        kind::UINT8_ARRAY => Uint8Array(array(c, count, |c| Ok(c.u32()? as u8))?),
        kind::INT16_ARRAY => Int16Array(array(c, count, |c| Ok(c.u32()? as i16))?),
        kind::UINT16_ARRAY => Uint16Array(array(c, count, |c| Ok(c.u32()? as u16))?),
        kind::INT32_ARRAY => Int32Array(array(c, count, |c| Ok(c.u32()? as i32))?),
        kind::UINT32_ARRAY => Uint32Array(array(c, count, Cursor::u32)?),
        kind::INT64_ARRAY => Int64Array(array(c, count, |c| Ok(c.u64()? as i64))?),
        kind::UINT64_ARRAY => Uint64Array(array(c, count, Cursor::u64)?),
        kind::STRING_ARRAY => StringArray((0..count).map(|_| string(c)).collect::<Result<_>>()?),
        kind::NVLIST => List(decode_list(c, depth + 1)?),
        kind::NVLIST_ARRAY => ListArray((0..count).map(|_| decode_list(c, depth + 1)).collect::<Result<_>>()?),
        _ => return Err(DecodeError::Field { what: WHAT, field: "type", value: kind.into() }),
    })
}

pub(super) fn encode(list: &NvList) -> Vec<u8> {
    let mut e = Encoder::new(Endian::Big);
    // The second header byte is the writer's byte order: 1 is little-endian. XDR readers ignore it.
    e.bytes(&[1, 1, 0, 0]);
    encode_list(list, &mut e);
    e.finish()
}

fn encode_list(list: &NvList, e: &mut Encoder) {
    e.u32(0);
    e.u32(list.flags);
    for pair in &list.pairs {
        let start = e.position();
        let (kind, count) = pair.value.kind_and_count();
        e.u32(0);
        e.u32(decoded_size(pair) as u32);
        encode_string(&pair.name, e);
        e.u32(kind);
        e.u32(count as u32);
        if count > 0 {
            encode_value(&pair.value, e);
        }
        e.patch_u32(start, (e.position() - start) as u32);
    }
    e.u32(0);
    e.u32(0);
}

fn encode_string(bytes: &[u8], e: &mut Encoder) {
    e.u32(bytes.len() as u32);
    e.bytes(bytes);
    e.zeros(padding(bytes.len()));
}

fn encode_array<T: Copy>(v: &[T], e: &mut Encoder, mut each: impl FnMut(&mut Encoder, T)) {
    e.u32(v.len() as u32);
    for x in v {
        each(e, *x);
    }
}

fn encode_value(value: &NvValue, e: &mut Encoder) {
    use NvValue::*;
    match value {
        Boolean => {}
        BooleanValue(v) => e.u32((*v).into()),
        Byte(v) | Uint8(v) => e.u32(xdr_char(*v)),
        Int8(v) => e.u32(*v as i32 as u32),
        Int16(v) => e.u32(*v as i32 as u32),
        Uint16(v) => e.u32((*v).into()),
        Int32(v) => e.u32(*v as u32),
        Uint32(v) => e.u32(*v),
        Int64(v) | HrTime(v) => e.u64(*v as u64),
        Uint64(v) | Double(v) => e.u64(*v),
        String(v) => encode_string(v, e),
        ByteArray(v) => {
            e.bytes(v);
            e.zeros(padding(v.len()));
        }
        BooleanArray(v) => encode_array(v, e, |e, x| e.u32(x.into())),
        Int8Array(v) => encode_array(v, e, |e, x| e.u32(x as i32 as u32)),
        Uint8Array(v) => encode_array(v, e, |e, x| e.u32(xdr_char(x))),
        Int16Array(v) => encode_array(v, e, |e, x| e.u32(x as i32 as u32)),
        Uint16Array(v) => encode_array(v, e, |e, x| e.u32(x.into())),
        Int32Array(v) => encode_array(v, e, |e, x| e.u32(x as u32)),
        Uint32Array(v) => encode_array(v, e, |e, x| e.u32(x)),
        Int64Array(v) => encode_array(v, e, |e, x| e.u64(x as u64)),
        Uint64Array(v) => encode_array(v, e, |e, x| e.u64(x)),
        StringArray(v) => v.iter().for_each(|s| encode_string(s, e)),
        List(v) => encode_list(v, e),
        ListArray(v) => v.iter().for_each(|l| encode_list(l, e)),
    }
}

/// Sign-extends a byte, since OpenZFS encodes single bytes through a signed `char`.
fn xdr_char(v: u8) -> u32 {
    v as i8 as i32 as u32
}

/// The value of a pair's second size word: the size of the pair in the memory of a 64-bit reader.
pub(super) fn decoded_size(pair: &NvPair) -> usize {
    let align = |n: usize| (n + 7) & !7;
    align(super::native::PAIR_HEADER + pair.name.len() + 1) + align(super::native::value_size(&pair.value))
}

//! The native encoding of name-value lists: the memory image of a 64-bit machine.

use super::{MAX_DEPTH, NvList, NvPair, NvValue, WHAT, field, kind};
use crate::cursor::{Cursor, DecodeError, Endian};
use crate::encoder::Encoder;

type Result<T> = std::result::Result<T, DecodeError>;

/// Size of a pair's header before its name, in bytes.
pub(super) const PAIR_HEADER: usize = 16;
/// Size of the in-memory list header that represents a nested list, in bytes.
const LIST_HEADER: usize = 24;
/// Size of a pointer in bytes; zero on disk.
const POINTER: usize = 8;

fn align(n: usize) -> usize {
    (n + 7) & !7
}

pub(super) fn decode_list(c: &mut Cursor<'_>) -> Result<NvList> {
    let version = c.u32()?;
    if version != 0 {
        return Err(field("version", version.into()));
    }
    let flags = c.u32()?;
    Ok(NvList { flags, pairs: decode_pairs(c, 0)? })
}

/// Decodes pairs up to the end mark.
fn decode_pairs(c: &mut Cursor<'_>, depth: usize) -> Result<Vec<NvPair>> {
    if depth > MAX_DEPTH {
        return Err(field("nesting", depth as u64));
    }
    let mut pairs = Vec::new();
    loop {
        let size = c.u32()?;
        if size == 0 {
            return Ok(pairs);
        }
        let rest = usize::try_from(size).ok().and_then(|s| s.checked_sub(4)).ok_or(field("pair size", size.into()))?;
        let pair = c.bytes(rest)?;
        pairs.push(decode_pair(pair, c, depth)?);
    }
}

/// Decodes one pair from its bytes without the size word; nested lists follow in `rest`.
fn decode_pair(bytes: &[u8], rest: &mut Cursor<'_>, depth: usize) -> Result<NvPair> {
    let mut c = Cursor::new(bytes, rest.endian(), WHAT);
    let name_size = usize::from(c.u16()?);
    c.skip(2)?;
    let count = c.u32()?;
    let kind = c.u32()?;
    let name = c.bytes(name_size)?;
    let [name @ .., 0] = name else { return Err(field("name size", name_size as u64)) };
    if name.contains(&0) {
        return Err(field("name size", name_size as u64));
    }
    let pad = align(PAIR_HEADER + name_size) - (PAIR_HEADER + name_size);
    if kind != kind::BOOLEAN {
        c.skip(pad)?;
    }
    let value = decode_value(&mut c, kind, count, rest, depth)?;
    Ok(NvPair { name: name.to_vec(), value })
}

fn list_header(c: &mut Cursor<'_>) -> Result<u32> {
    let version = c.u32()?;
    if version != 0 {
        return Err(field("version", version.into()));
    }
    let flags = c.u32()?;
    c.skip(LIST_HEADER - 8)?;
    Ok(flags)
}

fn string(c: &mut Cursor<'_>) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    loop {
        match c.u8()? {
            0 => return Ok(out),
            b => out.push(b),
        }
    }
}

fn array<'a, T>(c: &mut Cursor<'a>, count: u32, mut each: impl FnMut(&mut Cursor<'a>) -> Result<T>) -> Result<Vec<T>> {
    let mut out = Vec::new();
    for _ in 0..count {
        out.push(each(c)?);
    }
    Ok(out)
}

fn decode_value(c: &mut Cursor<'_>, kind: u32, count: u32, rest: &mut Cursor<'_>, depth: usize) -> Result<NvValue> {
    use NvValue::*;
    Ok(match kind {
        kind::BOOLEAN => Boolean,
        kind::BOOLEAN_VALUE => BooleanValue(c.u32()? != 0),
        kind::BYTE => Byte(c.u8()?),
        kind::INT8 => Int8(c.u8()? as i8),
        kind::UINT8 => Uint8(c.u8()?),
        kind::INT16 => Int16(c.u16()? as i16),
        kind::UINT16 => Uint16(c.u16()?),
        kind::INT32 => Int32(c.u32()? as i32),
        kind::UINT32 => Uint32(c.u32()?),
        kind::INT64 => Int64(c.u64()? as i64),
        kind::UINT64 => Uint64(c.u64()?),
        kind::HRTIME => HrTime(c.u64()? as i64),
        kind::DOUBLE => Double(c.u64()?),
        kind::STRING => String(string(c)?),
        kind::BYTE_ARRAY => ByteArray(array(c, count, Cursor::u8)?),
        kind::BOOLEAN_ARRAY => BooleanArray(array(c, count, |c| Ok(c.u32()? != 0))?),
        kind::INT8_ARRAY => Int8Array(array(c, count, |c| Ok(c.u8()? as i8))?),
        kind::UINT8_ARRAY => Uint8Array(array(c, count, Cursor::u8)?),
        kind::INT16_ARRAY => Int16Array(array(c, count, |c| Ok(c.u16()? as i16))?),
        kind::UINT16_ARRAY => Uint16Array(array(c, count, Cursor::u16)?),
        kind::INT32_ARRAY => Int32Array(array(c, count, |c| Ok(c.u32()? as i32))?),
        kind::UINT32_ARRAY => Uint32Array(array(c, count, Cursor::u32)?),
        kind::INT64_ARRAY => Int64Array(array(c, count, |c| Ok(c.u64()? as i64))?),
        kind::UINT64_ARRAY => Uint64Array(array(c, count, Cursor::u64)?),
        kind::STRING_ARRAY => {
            array(c, count, |c| c.skip(POINTER))?;
            StringArray(array(c, count, string)?)
        }
        kind::NVLIST => {
            let flags = list_header(c)?;
            List(NvList { flags, pairs: decode_pairs(rest, depth + 1)? })
        }
        kind::NVLIST_ARRAY => {
            array(c, count, |c| c.skip(POINTER))?;
            let flags = array(c, count, list_header)?;
            let mut lists = Vec::new();
            for flags in flags {
                lists.push(NvList { flags, pairs: decode_pairs(rest, depth + 1)? });
            }
            ListArray(lists)
        }
        _ => return Err(field("type", kind.into())),
    })
}

/// Size of a pair's value in bytes, before alignment.
pub(super) fn value_size(value: &NvValue) -> usize {
    use NvValue::*;
    match value {
        Boolean => 0,
        Byte(_) | Int8(_) | Uint8(_) => 1,
        Int16(_) | Uint16(_) => 2,
        BooleanValue(_) | Int32(_) | Uint32(_) => 4,
        Int64(_) | Uint64(_) | HrTime(_) | Double(_) => 8,
        String(v) => v.len() + 1,
        ByteArray(v) | Uint8Array(v) => v.len(),
        Int8Array(v) => v.len(),
        Int16Array(v) => 2 * v.len(),
        Uint16Array(v) => 2 * v.len(),
        BooleanArray(v) => 4 * v.len(),
        Int32Array(v) => 4 * v.len(),
        Uint32Array(v) => 4 * v.len(),
        Int64Array(v) => 8 * v.len(),
        Uint64Array(v) => 8 * v.len(),
        StringArray(v) => v.iter().map(|s| POINTER + s.len() + 1).sum(),
        List(_) => LIST_HEADER,
        ListArray(v) => v.len() * (POINTER + LIST_HEADER),
    }
}

pub(super) fn encode(list: &NvList, endian: Endian) -> Vec<u8> {
    let mut e = Encoder::new(endian);
    e.bytes(&[0, (endian == Endian::Little).into(), 0, 0]);
    e.u32(0);
    e.u32(list.flags);
    encode_pairs(list, &mut e);
    e.finish()
}

fn encode_pairs(list: &NvList, e: &mut Encoder) {
    for pair in &list.pairs {
        let start = e.position();
        let (kind, count) = pair.value.kind_and_count();
        let value_at = start + align(PAIR_HEADER + pair.name.len() + 1);
        let end = value_at + align(value_size(&pair.value));
        e.u32((end - start) as u32);
        e.u16((pair.name.len() + 1) as u16);
        e.u16(0);
        e.u32(count as u32);
        e.u32(kind);
        e.bytes(&pair.name);
        e.u8(0);
        e.pad_to(value_at);
        encode_value(&pair.value, e);
        e.pad_to(end);
        match &pair.value {
            NvValue::List(v) => encode_pairs(v, e),
            NvValue::ListArray(v) => v.iter().for_each(|l| encode_pairs(l, e)),
            _ => {}
        }
    }
    e.u32(0);
}

fn encode_header(list: &NvList, e: &mut Encoder) {
    e.u32(0);
    e.u32(list.flags);
    e.zeros(LIST_HEADER - 8);
}

fn encode_value(value: &NvValue, e: &mut Encoder) {
    use NvValue::*;
    match value {
        Boolean => {}
        BooleanValue(v) => e.u32((*v).into()),
        Byte(v) | Uint8(v) => e.u8(*v),
        Int8(v) => e.u8(*v as u8),
        Int16(v) => e.u16(*v as u16),
        Uint16(v) => e.u16(*v),
        Int32(v) => e.u32(*v as u32),
        Uint32(v) => e.u32(*v),
        Int64(v) | HrTime(v) => e.u64(*v as u64),
        Uint64(v) | Double(v) => e.u64(*v),
        String(v) => {
            e.bytes(v);
            e.u8(0);
        }
        ByteArray(v) | Uint8Array(v) => e.bytes(v),
        Int8Array(v) => v.iter().for_each(|x| e.u8(*x as u8)),
        BooleanArray(v) => v.iter().for_each(|x| e.u32((*x).into())),
        Int16Array(v) => v.iter().for_each(|x| e.u16(*x as u16)),
        Uint16Array(v) => v.iter().for_each(|x| e.u16(*x)),
        Int32Array(v) => v.iter().for_each(|x| e.u32(*x as u32)),
        Uint32Array(v) => v.iter().for_each(|x| e.u32(*x)),
        Int64Array(v) => v.iter().for_each(|x| e.u64(*x as u64)),
        Uint64Array(v) => e.words(v),
        StringArray(v) => {
            e.zeros(POINTER * v.len());
            for s in v {
                e.bytes(s);
                e.u8(0);
            }
        }
        List(v) => encode_header(v, e),
        ListArray(v) => {
            e.zeros(POINTER * v.len());
            v.iter().for_each(|l| encode_header(l, e));
        }
    }
}

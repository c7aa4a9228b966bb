//! From logical bytes to stored ones and a pointer that lacks only its addresses. Pure.

use super::{WritableEncodings, WriteOptions};
use crate::error::BlockError;
use bytes::Bytes;
use weir_codec::checksum::pointer_checksum;
use weir_codec::compress::MAX_BLOCK_BYTES;
use weir_codec::crypt::{BlockCrypt, IV_BYTES, MAC_BYTES, SALT_BYTES};
use weir_codec::{CodecError, Salt, compress};
use weir_format::{BlockPointer, ChecksumKind, CompressionKind, Endian, ObjectType};
use weir_machine::{Buf, BufPool};

/// Smallest unit of sizes in pointers.
const SECTOR: u64 = 512;
/// The X bit.
const CRYPT: u64 = 1 << 61;

/// How to encode.
pub(super) struct Encoding<'a> {
    pub options: &'a WriteOptions,
    pub salt: &'a Salt,
    /// Where memory for what is stored comes from.
    pub pool: &'a BufPool,
    /// What the pool allows.
    pub formats: WritableEncodings,
    /// Physical sizes are multiples of this.
    pub unit_bytes: u64,
    /// Of encrypted blocks.
    pub salt_and_iv: Option<([u8; SALT_BYTES], [u8; IV_BYTES])>,
    /// The block has to fill a place of this size.
    pub room_bytes: Option<u64>,
}

/// A block ready to be stored.
#[derive(Debug)]
pub(super) struct Stored {
    /// All but its addresses.
    pub pointer: BlockPointer,
    /// What is stored: whole sectors.
    pub bytes: Bytes,
}

/// What became of a block.
pub(super) enum Encoded {
    /// There is nothing to store: a hole, or a payload in the pointer.
    Pointer(BlockPointer),
    Stored(Stored),
}

pub(super) fn encode(how: &Encoding<'_>, data: Bytes) -> Result<Encoded, BlockError> {
    let options = how.options;
    let len = data.len() as u64;
    if len == 0 || !len.is_multiple_of(SECTOR) || len > MAX_BLOCK_BYTES as u64 {
        return Err(BlockError::BadSize { len_bytes: len });
    }
    let kind = match compression_of(options) {
        CompressionKind::Lz4 if !how.formats.lz4 => CompressionKind::Lzjb,
        kind => kind,
    };
    if how.room_bytes.is_none() && kind != CompressionKind::Off && is_zero(&data) {
        return Ok(Encoded::Pointer(hole(how, len)));
    }
    let mut room = Buf::empty();
    let compressed = match kind {
        CompressionKind::Off | CompressionKind::Empty => None,
        kind => squeeze(how, kind, &data, &mut room)?,
    };
    if let Some(payload) = compressed.and_then(|bytes| room.as_ref().get(..bytes))
        && how.room_bytes.is_none()
        && payload.len() <= BlockPointer::EMBEDDED_BYTES
        && options.embed
        && !is_crypt(options)
        && how.formats.embedded_data
        && options.level == 0
        && !matches!(options.object_type, ObjectType::DNODE | ObjectType::OBJSET)
    {
        return Ok(Encoded::Pointer(embedded(options, kind, payload, len)));
    }
    let (kind, bytes) = fit(how, kind, (room, compressed), &data)?;
    let mut words = [0; 16];
    words[6] = properties(options, kind, len, bytes.len() as u64);
    words[10] = options.txg.0;
    words[11] = options.fill;
    seal(how, words, &data, bytes).map(Encoded::Stored)
}

/// The compression function that is meant.
fn compression_of(options: &WriteOptions) -> CompressionKind {
    let stays_readable = matches!(options.object_type, ObjectType::DNODE | ObjectType::OBJSET);
    match options.compression {
        // Dnodes and object sets of encrypted datasets are read without the key, and so not compressed.
        kind if kind != CompressionKind::Off && is_crypt(options) && options.level == 0 && stays_readable => {
            CompressionKind::Empty
        }
        CompressionKind::On | CompressionKind::Inherit => CompressionKind::Lz4,
        kind => kind,
    }
}

/// Whether the pointer gets the X bit.
fn is_crypt(options: &WriteOptions) -> bool {
    options.keys.is_some() || options.sealed
}

/// Whether all bytes are 0: in strides, which the processor can compare at once, but no longer than to the first other.
fn is_zero(data: &[u8]) -> bool {
    data.chunks(256).all(|stride| stride.iter().fold(0, |sum, b| sum | b) == 0)
}

fn hole(how: &Encoding<'_>, lsize_bytes: u64) -> BlockPointer {
    let (options, mut words) = (how.options, [0; 16]);
    if options.hole_birth && how.formats.hole_birth {
        words[6] = u64::from(options.level) << 56 | u64::from(options.object_type.0) << 48 | (lsize_bytes / SECTOR - 1);
        words[10] = options.txg.0;
    }
    BlockPointer::from_words(words)
}

fn embedded(options: &WriteOptions, kind: CompressionKind, payload: &[u8], lsize_bytes: u64) -> BlockPointer {
    let mut bytes = [0; BlockPointer::EMBEDDED_BYTES];
    bytes[..payload.len()].copy_from_slice(payload);
    let mut chunks = bytes.as_chunks::<8>().0.iter();
    let mut words = [0; 16];
    for (_, word) in words.iter_mut().enumerate().filter(|(i, _)| *i != 6 && *i != 10) {
        *word = chunks.next().map_or(0, |c| u64::from_le_bytes(*c));
    }
    let (psize, lsize) = (payload.len() as u64 - 1, lsize_bytes - 1);
    let head = u64::from(options.level) << 56 | u64::from(options.object_type.0) << 48;
    words[6] = 1 << 63 | head | 1 << 39 | u64::from(kind.to_u8()) << 32 | psize << 25 | lsize;
    words[10] = options.txg.0;
    BlockPointer::from_words(words)
}

/// Compresses into memory as long as the block, if that saves an eighth and whole sectors, or makes it fit into a pointer
/// (or the place that there is); gives the compressed bytes' number.
fn squeeze(
    how: &Encoding<'_>,
    kind: CompressionKind,
    data: &[u8],
    room: &mut Buf,
) -> Result<Option<usize>, BlockError> {
    let len = data.len() as u64;
    let mut most = len - (len >> 3);
    if let Some(room) = how.room_bytes {
        most = room.min(len);
    } else if kind != CompressionKind::Zle {
        most -= most % how.unit_bytes;
        if most < how.unit_bytes {
            most = BlockPointer::EMBEDDED_BYTES as u64;
        }
    }
    *room = how.pool.take(data.len());
    let out = room.as_mut().get_mut(..most as usize).unwrap_or_default();
    compress(kind, how.options.compression_level, data, out).map_err(|fault| BlockError::Unencodable { fault })
}

/// The bytes to be stored and how they are compressed: so many at the front of `room`, filled up with zeros, or all as
/// they are.
fn fit(
    how: &Encoding<'_>,
    kind: CompressionKind,
    (mut room, compressed): (Buf, Option<usize>),
    data: &Bytes,
) -> Result<(CompressionKind, Bytes), BlockError> {
    let len = data.len() as u64;
    let rounded = |n: usize| (n as u64).next_multiple_of(how.unit_bytes);
    let size = match (how.room_bytes, compressed) {
        (Some(room), Some(bytes)) if room < len && bytes as u64 <= room => Some(room),
        (Some(room), _) if room < len => {
            return Err(BlockError::NoRoom { psize_bytes: room, needed_bytes: len });
        }
        (None, Some(bytes)) => Some(rounded(bytes)).filter(|&n| n < len),
        _ => None,
    };
    if let (Some(size), Some(bytes)) = (size, compressed) {
        room.truncate(size as usize);
        room.as_mut().iter_mut().skip(bytes).for_each(|byte| *byte = 0);
        return Ok((kind, room.into_bytes()));
    }
    Ok((CompressionKind::Off, aligned(how, room, data)))
}

/// The bytes where a device can take them from. What has to be copied for that is copied here, where the checksum has it at
/// hand at once; encrypting copies anyway.
fn aligned(how: &Encoding<'_>, mut room: Buf, data: &Bytes) -> Bytes {
    if data.as_ptr().addr().is_multiple_of(Buf::ALIGN) || how.options.keys.is_some() {
        return data.clone();
    }
    if room.is_empty() {
        room = how.pool.take(data.len());
    }
    room.as_mut().copy_from_slice(data);
    room.into_bytes()
}

/// A copy to be changed.
fn copied(how: &Encoding<'_>, bytes: &[u8]) -> Buf {
    let mut buf = how.pool.take(bytes.len());
    buf.as_mut().copy_from_slice(bytes);
    buf
}

fn properties(options: &WriteOptions, kind: CompressionKind, lsize_bytes: u64, psize_bytes: u64) -> u64 {
    let checksum = match options.checksum {
        ChecksumKind::On | ChecksumKind::Inherit => ChecksumKind::Fletcher4,
        kind => kind,
    };
    let (lsize, psize) = (lsize_bytes / SECTOR - 1, psize_bytes / SECTOR - 1);
    let kinds = u64::from(checksum as u8) << 40 | u64::from(kind.to_u8()) << 32;
    1 << 63 | u64::from(options.level) << 56 | u64::from(options.object_type.0) << 48 | kinds | psize << 16 | lsize
}

/// Encrypts or authenticates, and takes the checksum.
fn seal(how: &Encoding<'_>, mut words: [u64; 16], logical: &[u8], bytes: Bytes) -> Result<Stored, BlockError> {
    let unencodable = |fault| BlockError::Unencodable { fault };
    let bytes = match &how.options.keys {
        Some(_) => protect(how, &mut words, logical, bytes).map_err(unencodable)?,
        None => bytes,
    };
    if how.options.sealed {
        words[6] |= CRYPT;
    }
    let pointer = BlockPointer::from_words(words);
    let sums = pointer_checksum(&pointer, how.salt, &bytes).map_err(unencodable)?;
    words[12..].copy_from_slice(&sums);
    Ok(Stored { pointer: BlockPointer::from_words(words), bytes })
}

/// What the X bit stands for: see [`weir_codec::crypt`].
fn protect(how: &Encoding<'_>, words: &mut [u64; 16], logical: &[u8], bytes: Bytes) -> Result<Bytes, CodecError> {
    let options = how.options;
    let (Some(keys), Some((salt, iv))) = (&options.keys, how.salt_and_iv) else { return Ok(bytes) };
    words[6] |= CRYPT;
    let mut put_mac = |mac: [u8; MAC_BYTES]| {
        let (front, back) = mac.split_at(8);
        words[14] = u64::from_le_bytes(front.try_into().unwrap_or_default());
        words[15] = u64::from_le_bytes(back.try_into().unwrap_or_default());
    };
    if options.level > 0 {
        put_mac(keys.indirect_mac(Endian::Little, logical));
        return Ok(bytes);
    }
    if options.object_type == ObjectType::OBJSET {
        let mut block = copied(how, &bytes);
        keys.object_set_macs(Endian::Little, block.as_ref())?.store(block.as_mut())?;
        return Ok(block.into_bytes());
    }
    if !options.object_type.is_encrypted() {
        put_mac(keys.authenticate(&bytes));
        return Ok(bytes);
    }
    let crypt = BlockCrypt { object_type: options.object_type, endian: Endian::Little, salt, iv };
    let mut block = copied(how, &bytes);
    put_mac(keys.encrypt(&crypt, block.as_mut())?);
    words[4] = u64::from_le_bytes(salt);
    words[5] = iv.first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
    let tail = iv.last_chunk().map_or(0, |b| u32::from_le_bytes(*b));
    words[11] = u64::from(tail) << 32 | words[11] & 0xffff_ffff;
    Ok(block.into_bytes())
}

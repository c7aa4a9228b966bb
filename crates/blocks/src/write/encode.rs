//! Encoding of a block: from logical bytes to stored bytes and a pointer that lacks only its addresses. Pure.

use super::writer::WritableEncodings;
use super::{RawForm, WriteOptions};
use crate::error::BlockError;
use bytes::Bytes;
use weir_codec::checksum::pointer_checksum;
use weir_codec::compress::MAX_BLOCK_BYTES;
use weir_codec::crypt::{BlockCrypt, IV_BYTES, MAC_BYTES, SALT_BYTES, indirect_mac};
use weir_codec::{CodecError, Salt, compress};
use weir_format::{BlockPointer, ChecksumKind, CompressionKind, Endian, ObjectType};
use weir_machine::{Buf, BufPool};

/// Unit of sizes in pointers, in bytes.
const SECTOR: u64 = 512;
/// The X bit of a pointer's properties: encrypted or authenticated.
const CRYPT: u64 = 1 << 61;

/// Parameters of encoding one block.
pub(super) struct Encoding<'a> {
    pub options: &'a WriteOptions,
    pub salt: &'a Salt,
    /// Buffers for the encoded block.
    pub pool: &'a BufPool,
    /// Encodings that the pool's features allow.
    pub formats: WritableEncodings,
    /// Unit of physical sizes in bytes.
    pub unit_bytes: u64,
    /// Salt and IV of an encrypted block.
    pub salt_and_iv: Option<([u8; SALT_BYTES], [u8; IV_BYTES])>,
    /// Size of the reserved space, which the encoded block has to fill exactly.
    pub reserved_bytes: Option<u64>,
}

/// A block ready to be stored.
#[derive(Debug)]
pub(super) struct Stored {
    /// The pointer without its addresses.
    pub pointer: BlockPointer,
    /// Stored bytes, whole sectors.
    pub bytes: Bytes,
}

/// Result of encoding a block.
pub(super) enum Encoded {
    /// A block that is not stored: a hole, or a payload in the pointer.
    Pointer(BlockPointer),
    Stored(Stored),
}

pub(super) fn encode(encoding: &Encoding<'_>, data: Bytes) -> Result<Encoded, BlockError> {
    let options = encoding.options;
    let len = data.len() as u64;
    if len == 0 || !len.is_multiple_of(SECTOR) || len > MAX_BLOCK_BYTES as u64 {
        return Err(BlockError::BadSize { len_bytes: len });
    }
    if let Some(raw) = &options.raw {
        return raw_block(encoding, raw, &data);
    }
    let kind = match compression_of(options) {
        CompressionKind::Lz4 if !encoding.formats.lz4 => CompressionKind::Lzjb,
        kind => kind,
    };
    if encoding.reserved_bytes.is_none() && kind != CompressionKind::Off && is_zero(&data) {
        return Ok(Encoded::Pointer(hole(encoding, len)));
    }
    let mut buf = Buf::empty();
    let (kind, compressed) = match (&options.compressed, kind) {
        (Some(given), _) if encoding.reserved_bytes.is_none() => {
            buf = encoding.pool.take(data.len());
            (given.kind, filled(&given.bytes, &mut buf))
        }
        (_, CompressionKind::Off | CompressionKind::Empty) => (kind, None),
        (_, kind) => (kind, squeeze(encoding, kind, &data, &mut buf)?),
    };
    if let Some(payload) = compressed.and_then(|bytes| buf.as_ref().get(..bytes))
        && encoding.reserved_bytes.is_none()
        && payload.len() <= BlockPointer::EMBEDDED_BYTES
        && options.embed
        && !is_crypt(options)
        && encoding.formats.embedded_data
        && options.level == 0
        && !matches!(options.object_type, ObjectType::DNODE | ObjectType::OBJSET)
    {
        return Ok(Encoded::Pointer(embedded(options, kind, payload, len)));
    }
    let (kind, bytes) = fit(encoding, kind, (buf, compressed), &data)?;
    let mut words = [0; 16];
    words[6] = properties(options, kind, len, bytes.len() as u64);
    words[10] = options.txg.0;
    words[11] = options.fill;
    seal(encoding, words, &data, bytes).map(Encoded::Stored)
}

/// A block that is stored as it came. A block of dnodes of which none is in use is a hole, as it is with the key.
fn raw_block(encoding: &Encoding<'_>, raw: &RawForm, data: &Bytes) -> Result<Encoded, BlockError> {
    let (options, len) = (encoding.options, data.len() as u64);
    debug_assert!(options.keys.is_none() && options.level == 0, "a raw block of data is not encrypted again");
    if raw.lsize_bytes < len || !raw.lsize_bytes.is_multiple_of(SECTOR) || raw.lsize_bytes > MAX_BLOCK_BYTES as u64 {
        return Err(BlockError::BadSize { len_bytes: raw.lsize_bytes });
    }
    if options.object_type == ObjectType::DNODE && is_zero(data) {
        return Ok(Encoded::Pointer(hole(encoding, len)));
    }
    let mut words = [0; 16];
    words[6] = properties(options, raw.compression, raw.lsize_bytes, len) | CRYPT;
    words[10] = options.txg.0;
    words[11] = options.fill;
    put_mac(&mut words, raw.mac);
    if options.object_type.is_encrypted() {
        put_salt_and_iv(&mut words, raw.salt, raw.iv);
    }
    let bytes = aligned(encoding, Buf::empty(), data);
    seal(encoding, words, data, bytes).map(Encoded::Stored)
}

/// Puts a MAC into a pointer (`zio_crypt_encode_mac_bp`).
fn put_mac(words: &mut [u64; 16], mac: [u8; MAC_BYTES]) {
    let (front, back) = mac.split_at(8);
    words[14] = u64::from_le_bytes(front.try_into().unwrap_or_default());
    words[15] = u64::from_le_bytes(back.try_into().unwrap_or_default());
}

/// Puts salt and IV into a pointer (`zio_crypt_encode_params_bp`).
fn put_salt_and_iv(words: &mut [u64; 16], salt: [u8; SALT_BYTES], iv: [u8; IV_BYTES]) {
    words[4] = u64::from_le_bytes(salt);
    words[5] = iv.first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
    let tail = iv.last_chunk().map_or(0, |b| u32::from_le_bytes(*b));
    words[11] = u64::from(tail) << 32 | words[11] & 0xffff_ffff;
}

/// The effective compression function.
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

/// Whether all bytes are 0. Compares in strides that the compiler vectorises, and stops at the first other stride.
fn is_zero(data: &[u8]) -> bool {
    data.chunks(256).all(|stride| stride.iter().fold(0, |sum, b| sum | b) == 0)
}

fn hole(encoding: &Encoding<'_>, lsize_bytes: u64) -> BlockPointer {
    let options = encoding.options;
    let mut words = [0; 16];
    if options.hole_birth && encoding.formats.hole_birth {
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
    let psize = payload.len() as u64 - 1;
    let lsize = lsize_bytes - 1;
    let head = u64::from(options.level) << 56 | u64::from(options.object_type.0) << 48;
    words[6] = 1 << 63 | head | 1 << 39 | u64::from(kind.to_u8()) << 32 | psize << 25 | lsize;
    words[10] = options.txg.0;
    BlockPointer::from_words(words)
}

/// Compresses into a buffer as long as the block, if that saves an eighth and whole sectors, or makes the block fit into a
/// pointer or the reserved space. Returns the number of compressed bytes.
fn squeeze(
    encoding: &Encoding<'_>,
    kind: CompressionKind,
    data: &[u8],
    buf: &mut Buf,
) -> Result<Option<usize>, BlockError> {
    let len = data.len() as u64;
    let mut max_bytes = len - (len >> 3);
    if let Some(reserved) = encoding.reserved_bytes {
        max_bytes = reserved.min(len);
    } else if kind != CompressionKind::Zle {
        max_bytes -= max_bytes % encoding.unit_bytes;
        if max_bytes < encoding.unit_bytes {
            max_bytes = BlockPointer::EMBEDDED_BYTES as u64;
        }
    }
    *buf = encoding.pool.take(data.len());
    let out = buf.as_mut().get_mut(..max_bytes as usize).unwrap_or_default();
    compress(kind, encoding.options.compression_level, data, out).map_err(|fault| BlockError::Unencodable { fault })
}

/// Copies compressed bytes into a buffer as long as the block; `None` if they are not shorter.
fn filled(bytes: &[u8], buf: &mut Buf) -> Option<usize> {
    let out = buf.as_mut().get_mut(..bytes.len())?;
    out.copy_from_slice(bytes);
    Some(bytes.len())
}

/// The bytes to store and their compression: the compressed bytes at the front of `buf`, padded with zeros, or `data`
/// uncompressed.
fn fit(
    encoding: &Encoding<'_>,
    kind: CompressionKind,
    (mut buf, compressed): (Buf, Option<usize>),
    data: &Bytes,
) -> Result<(CompressionKind, Bytes), BlockError> {
    let len = data.len() as u64;
    let rounded = |n: usize| (n as u64).next_multiple_of(encoding.unit_bytes);
    let size = match (encoding.reserved_bytes, compressed) {
        (Some(reserved), Some(bytes)) if reserved < len && bytes as u64 <= reserved => Some(reserved),
        (Some(reserved), _) if reserved < len => {
            return Err(BlockError::NoRoom { psize_bytes: reserved, needed_bytes: len });
        }
        (None, Some(bytes)) => Some(rounded(bytes)).filter(|&n| n < len),
        _ => None,
    };
    if let (Some(size), Some(bytes)) = (size, compressed) {
        buf.truncate(size as usize);
        buf.as_mut().iter_mut().skip(bytes).for_each(|byte| *byte = 0);
        return Ok((kind, buf.into_bytes()));
    }
    Ok((CompressionKind::Off, aligned(encoding, buf, data)))
}

/// The bytes in memory aligned for direct I/O. Unaligned bytes are copied here and not in the leaf, because the checksum
/// then finds them in the processor's cache. Encryption copies in any case.
fn aligned(encoding: &Encoding<'_>, mut buf: Buf, data: &Bytes) -> Bytes {
    if data.as_ptr().addr().is_multiple_of(Buf::ALIGN) || encoding.options.keys.is_some() {
        return data.clone();
    }
    if buf.is_empty() {
        buf = encoding.pool.take(data.len());
    }
    buf.as_mut().copy_from_slice(data);
    buf.into_bytes()
}

/// A mutable copy.
fn copied(encoding: &Encoding<'_>, bytes: &[u8]) -> Buf {
    let mut buf = encoding.pool.take(bytes.len());
    buf.as_mut().copy_from_slice(bytes);
    buf
}

fn properties(options: &WriteOptions, kind: CompressionKind, lsize_bytes: u64, psize_bytes: u64) -> u64 {
    let checksum = match options.checksum {
        ChecksumKind::On | ChecksumKind::Inherit => ChecksumKind::Fletcher4,
        kind => kind,
    };
    let lsize = lsize_bytes / SECTOR - 1;
    let psize = psize_bytes / SECTOR - 1;
    let kinds = u64::from(checksum as u8) << 40 | u64::from(kind.to_u8()) << 32;
    1 << 63 | u64::from(options.level) << 56 | u64::from(options.object_type.0) << 48 | kinds | psize << 16 | lsize
}

/// Encrypts or authenticates, and computes the checksum.
fn seal(encoding: &Encoding<'_>, mut words: [u64; 16], logical: &[u8], bytes: Bytes) -> Result<Stored, BlockError> {
    let unencodable = |fault| BlockError::Unencodable { fault };
    let bytes = match &encoding.options.keys {
        Some(_) => protect(encoding, &mut words, logical, bytes).map_err(unencodable)?,
        None => bytes,
    };
    if encoding.options.sealed {
        words[6] |= CRYPT;
        if encoding.options.level > 0 {
            put_mac(&mut words, indirect_mac(Endian::Little, logical));
        }
    }
    let pointer = BlockPointer::from_words(words);
    let sums = pointer_checksum(&pointer, encoding.salt, &bytes).map_err(unencodable)?;
    words[12..].copy_from_slice(&sums);
    Ok(Stored { pointer: BlockPointer::from_words(words), bytes })
}

/// Encrypts or authenticates the bytes and sets the X bit; see [`weir_codec::crypt`].
fn protect(encoding: &Encoding<'_>, words: &mut [u64; 16], logical: &[u8], bytes: Bytes) -> Result<Bytes, CodecError> {
    let options = encoding.options;
    let (Some(keys), Some((salt, iv))) = (&options.keys, encoding.salt_and_iv) else { return Ok(bytes) };
    words[6] |= CRYPT;
    if options.level > 0 {
        put_mac(words, keys.indirect_mac(Endian::Little, logical));
        return Ok(bytes);
    }
    if options.object_type == ObjectType::OBJSET {
        let mut block = copied(encoding, &bytes);
        keys.object_set_macs(Endian::Little, block.as_ref())?.store(block.as_mut())?;
        return Ok(block.into_bytes());
    }
    if !options.object_type.is_encrypted() {
        put_mac(words, keys.authenticate(&bytes));
        return Ok(bytes);
    }
    let crypt = BlockCrypt { object_type: options.object_type, endian: Endian::Little, salt, iv };
    let mut block = copied(encoding, &bytes);
    put_mac(words, keys.encrypt(&crypt, block.as_mut())?);
    put_salt_and_iv(words, salt, iv);
    Ok(block.into_bytes())
}

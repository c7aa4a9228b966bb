//! Block compression (OpenZFS `module/zfs/zio_compress.c` and the compressors beside it).
//!
//! A block is compressed as a whole, and stored compressed only if that saves at least one eighth. The compressed
//! bytes are padded with zeros to whole sectors; each format determines its own end:
//!
//! | kind | stored bytes |
//! |---|---|
//! | lzjb | control bytes with eight literals or (length, distance) pairs each: [`lzjb`] |
//! | zle | runs of zeros and of other bytes: [`zle`] |
//! | gzip-1…9 | a zlib stream (RFC 1950) |
//! | lz4 | length (u32, big-endian) · an LZ4 block |
//! | zstd | length (u32, big-endian) · version and level (u32) · a Zstandard frame without its magic number: [`zstd`] |
//! | empty | nothing: the block is all zeros |
//! | uncompressed | the block |
//!
//! **Bounds.* The block pointer gives the logical size, so the destination is allocated before decompression. A
//! decompressor fills it exactly or fails; its memory use does not depend on the compressed bytes.

pub mod lzjb;
pub mod zle;
pub mod zstd;

use crate::error::{CodecError, DecompressFault};
use libdeflater::{CompressionLvl, Compressor, DecompressionError};
use weir_format::CompressionKind;

pub use zstd::ZstdLevel;

/// The largest block of the format (`SPA_MAXBLOCKSIZE`).
pub const MAX_BLOCK_BYTES: usize = 16 << 20;

/// Decompresses a block of `logical_bytes` bytes; `source` may have padding after the compressed bytes.
///
/// # Errors
/// As for [`decompress_into`].
pub fn decompress(kind: CompressionKind, source: &[u8], logical_bytes: usize) -> Result<Vec<u8>, CodecError> {
    if logical_bytes > MAX_BLOCK_BYTES {
        return Err(failed(kind, source, logical_bytes, DecompressFault::Length));
    }
    let mut block = vec![0; logical_bytes];
    decompress_into(kind, source, &mut block)?;
    Ok(block)
}

/// Decompresses a block into `block`, whose length is the logical size. After an error its contents are unspecified.
///
/// # Errors
/// [`CodecError::Decompress`] if `source` does not expand to exactly `block.len()` bytes, or the block is longer than
/// [`MAX_BLOCK_BYTES`]; [`CodecError::CompressionKind`] for `Inherit` and `On`, which name no function.
pub fn decompress_into(kind: CompressionKind, source: &[u8], block: &mut [u8]) -> Result<(), CodecError> {
    let logical_bytes = block.len();
    let outcome = if logical_bytes > MAX_BLOCK_BYTES {
        Err(DecompressFault::Length)
    } else {
        match kind {
            CompressionKind::Inherit | CompressionKind::On => return Err(CodecError::CompressionKind { kind }),
            CompressionKind::Off => copy(source, block),
            CompressionKind::Empty => {
                block.fill(0);
                Ok(())
            }
            CompressionKind::Lzjb => lzjb::decompress(source, block),
            CompressionKind::Zle => zle::decompress(source, block),
            CompressionKind::Gzip(_) => gzip_decompress(source, block),
            CompressionKind::Lz4 => lz4_decompress(source, block),
            CompressionKind::Zstd => zstd::decompress(source, block),
        }
    };
    outcome.map_err(|fault| failed(kind, source, logical_bytes, fault))
}

fn failed(kind: CompressionKind, source: &[u8], logical_bytes: usize, fault: DecompressFault) -> CodecError {
    CodecError::Decompress { kind, compressed_bytes: source.len(), logical_bytes, fault }
}

/// Compresses a block into `output` and returns the compressed size in bytes. `None` if it does not fit, so that the
/// block should be stored uncompressed. The caller detects blocks of zeros.
///
/// `level` is used only by zstd.
///
/// # Errors
/// [`CodecError::CompressionKind`] for kinds without a compressor: `Inherit`, `On`, `Off` and `Empty`.
pub fn compress(
    kind: CompressionKind,
    level: ZstdLevel,
    block: &[u8],
    output: &mut [u8],
) -> Result<Option<usize>, CodecError> {
    Ok(match kind {
        CompressionKind::Inherit | CompressionKind::On | CompressionKind::Off | CompressionKind::Empty => {
            return Err(CodecError::CompressionKind { kind });
        }
        _ if block.len() > MAX_BLOCK_BYTES => None,
        CompressionKind::Lzjb => lzjb::compress(block, output),
        CompressionKind::Zle => zle::compress(block, output),
        CompressionKind::Gzip(level) => {
            let level = CompressionLvl::new(level.into()).map_err(|_| CodecError::CompressionKind { kind })?;
            Compressor::new(level).zlib_compress(block, output).ok()
        }
        CompressionKind::Lz4 => lz4_compress(block, output),
        CompressionKind::Zstd => zstd::compress(level, block, output),
    })
}

fn copy(source: &[u8], block: &mut [u8]) -> Result<(), DecompressFault> {
    block.copy_from_slice(source.get(..block.len()).ok_or(DecompressFault::Truncated)?);
    Ok(())
}

fn exactly(bytes: usize, block: &[u8]) -> Result<(), DecompressFault> {
    if bytes == block.len() { Ok(()) } else { Err(DecompressFault::Length) }
}

fn gzip_decompress(source: &[u8], block: &mut [u8]) -> Result<(), DecompressFault> {
    match libdeflater::Decompressor::new().zlib_decompress(source, block) {
        Ok(bytes) => exactly(bytes, block),
        Err(DecompressionError::BadData) => Err(DecompressFault::Invalid),
        Err(DecompressionError::InsufficientSpace) => Err(DecompressFault::Length),
    }
}

/// The payload after a big-endian length of 4 bytes; `None` if the length exceeds `source`.
fn lz4_payload(source: &[u8]) -> Option<&[u8]> {
    let (length, rest) = source.split_first_chunk::<4>()?;
    rest.get(..usize::try_from(u32::from_be_bytes(*length)).ok()?)
}

fn lz4_decompress(source: &[u8], block: &mut [u8]) -> Result<(), DecompressFault> {
    let payload = lz4_payload(source).ok_or(DecompressFault::Truncated)?;
    if payload.len() > MAX_BLOCK_BYTES * 2 {
        return Err(DecompressFault::Invalid);
    }
    let bytes = lzzzz::lz4::decompress(payload, block).map_err(|_| DecompressFault::Invalid)?;
    exactly(bytes, block)
}

fn lz4_compress(block: &[u8], output: &mut [u8]) -> Option<usize> {
    let (length, rest) = output.split_first_chunk_mut::<4>()?;
    let bytes = lzzzz::lz4::compress(block, rest, lzzzz::lz4::ACC_LEVEL_DEFAULT).ok().filter(|&n| n > 0)?;
    *length = u32::try_from(bytes).ok()?.to_be_bytes();
    Some(4 + bytes)
}

#[cfg(test)]
mod tests;

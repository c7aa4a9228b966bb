//! zstd in ZFS's format (OpenZFS `module/zstd/zfs_zstd.c`, `include/sys/zstd/zstd.h`): a header of 8 bytes, then a
//! Zstandard frame without magic number, content size and checksum.
//!
//! ```text
//!   0 length of the frame (u32, big-endian)
//!   4 level (u8) · version of the library as 10000·major + 100·minor + patch (u24, big-endian)
//! ```
//!
//! Early big-endian hosts wrote the second word in reverse byte order. The version's highest byte is 0, so the
//! position of the zero byte distinguishes the two.

use crate::error::DecompressFault;
use std::cell::RefCell;
use zstd_safe::{CCtx, CParameter, DCtx, DParameter, FrameFormat};

const HEADER_BYTES: usize = 8;

/// A zstd level in ZFS's numbering (`enum zio_zstd_levels`): 1–19, and fast levels from 103 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZstdLevel(u8);

impl ZstdLevel {
    /// The level of `compression=zstd`.
    pub const DEFAULT: ZstdLevel = ZstdLevel(3);

    /// The fast levels by number, starting at `FAST_FROM`.
    const FAST: [i32; 21] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 500, 1000];
    /// Number of the first fast level.
    const FAST_FROM: u8 = 103;

    /// From the number in a block's header or a dataset's property; `None` for an undefined number.
    pub fn from_u8(number: u8) -> Option<Self> {
        let level = ZstdLevel(number);
        level.library_level().is_some().then_some(level)
    }

    /// The number stored in a block's header.
    pub fn to_u8(self) -> u8 {
        self.0
    }

    /// The library's level: 1–19, negative for the fast ones.
    fn library_level(self) -> Option<i32> {
        match self.0 {
            n @ 1..=19 => Some(n.into()),
            n => Self::FAST.get(usize::from(n.checked_sub(Self::FAST_FROM)?)).map(|level| -level),
        }
    }

    /// The name in the `compression` property: `zstd-19`, `zstd-fast-500`.
    pub fn name(self) -> String {
        match self.library_level() {
            Some(level) if level < 0 => format!("zstd-fast-{}", -level),
            _ => format!("zstd-{}", self.0),
        }
    }
}

/// The header of a compressed block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZstdHeader {
    /// Size of the frame, in bytes.
    pub frame_bytes: u32,
    /// Version of the library as 10000·major + 100·minor + patch.
    pub version: u32,
    /// Number of the level.
    pub level: u8,
}

/// The header of a compressed block; `None` if it is truncated.
pub fn header(source: &[u8]) -> Option<ZstdHeader> {
    let (frame, rest) = source.split_first_chunk::<4>()?;
    let word = *rest.first_chunk::<4>()?;
    let zero_from_last = word.iter().rev().position(|&b| b == 0)?;
    let [a, b, c, d] = word;
    let [level, version @ ..] = if zero_from_last % 2 == 0 { [a, b, c, d] } else { [d, c, b, a] };
    let version = version.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
    Some(ZstdHeader { frame_bytes: u32::from_be_bytes(*frame), version, level })
}

/// The level in a compressed block's header; `None` if the header is truncated or the level undefined.
pub fn level(source: &[u8]) -> Option<ZstdLevel> {
    header(source).and_then(|header| ZstdLevel::from_u8(header.level))
}

/// Decompresses `source` into `block`, which it fills exactly.
pub fn decompress(source: &[u8], block: &mut [u8]) -> Result<(), DecompressFault> {
    let (header, rest) = source.split_at_checked(HEADER_BYTES).ok_or(DecompressFault::Truncated)?;
    level(header).ok_or(DecompressFault::Invalid)?;
    let length = header.first_chunk().map_or(0, |b| u32::from_be_bytes(*b));
    let frame = rest.get(..length as usize).ok_or(DecompressFault::Truncated)?;
    let bytes = CONTEXT.with_borrow_mut(|context| {
        let context = context.as_mut().ok_or(DecompressFault::Invalid)?;
        context.decompress(block, frame).map_err(|_| DecompressFault::Invalid)
    })?;
    super::exactly(bytes, block)
}

thread_local! {
    /// Decompression context of each thread, some hundred kilobytes: its creation takes as long as decompressing 16
    /// KiB. No state carries over between blocks, since every block is a separate frame.
    static CONTEXT: RefCell<Option<DCtx<'static>>> = RefCell::new(magicless());
}

fn magicless() -> Option<DCtx<'static>> {
    let mut context = DCtx::try_create()?;
    context.set_parameter(DParameter::Format(FrameFormat::Magicless)).ok()?;
    Some(context)
}

/// Compresses `block` into `output` and returns the compressed size in bytes; `None` if it does not fit.
pub fn compress(level: ZstdLevel, block: &[u8], output: &mut [u8]) -> Option<usize> {
    let (header, rest) = output.split_at_mut_checked(HEADER_BYTES)?;
    let mut context = CCtx::create();
    for parameter in [
        CParameter::CompressionLevel(level.library_level()?),
        CParameter::Format(FrameFormat::Magicless),
        CParameter::ChecksumFlag(false),
        CParameter::ContentSizeFlag(false),
    ] {
        context.set_parameter(parameter).ok()?;
    }
    let bytes = context.compress2(rest, block).ok()?;
    let version = u32::from(level.0) << 24 | zstd_safe::version_number() & 0xff_ffff;
    header[..4].copy_from_slice(&u32::try_from(bytes).ok()?.to_be_bytes());
    header[4..].copy_from_slice(&version.to_be_bytes());
    Some(HEADER_BYTES + bytes)
}

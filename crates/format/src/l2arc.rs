//! On-disk structures of a cache device (OpenZFS `include/sys/arc_impl.h`): a header of 512 bytes at the start of its
//! allocatable space and, for persistent L2ARC, log blocks that list its contents, in two interleaved chains.

use crate::blkptr::Dva;
use crate::cursor::{Cursor, DecodeError, Endian};
use crate::ids::Txg;
use crate::kinds::{ChecksumKind, CompressionKind};

/// Magic number of the header: "ZFSCACHE".
pub const HEADER_MAGIC: u64 = 0x5a46_5343_4143_4845;
/// Magic number of a log block: "LOGBLKHD".
pub const LOG_MAGIC: u64 = 0x4c4f_4742_4c4b_4844;
/// Maximum number of entries in a log block.
pub const LOG_ENTRIES: usize = 1022;

fn endian_of(bytes: &[u8], magic: u64, what: &'static str) -> Result<Endian, DecodeError> {
    let raw = Cursor::new(bytes, Endian::Little, what).array::<8>()?;
    match (u64::from_le_bytes(raw), u64::from_be_bytes(raw)) {
        (n, _) if n == magic => Ok(Endian::Little),
        (_, n) if n == magic => Ok(Endian::Big),
        (found, _) => Err(DecodeError::Magic { what, found }),
    }
}

/// Pointer to a log block (`l2arc_log_blkptr_t`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPointer {
    /// Byte offset on the device.
    pub offset_bytes: u64,
    /// Size in bytes of the cached data that the log block lists.
    pub payload_bytes: u64,
    /// Byte offset of that data on the device.
    pub payload_start: u64,
    prop: u64,
    /// The log block's checksum.
    pub checksum: [u64; 4],
}

impl LogPointer {
    fn decode(c: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        let [offset_bytes, payload_bytes, payload_start, prop] = c.words()?;
        Ok(LogPointer { offset_bytes, payload_bytes, payload_start, prop, checksum: c.words()? })
    }

    /// Uncompressed size in bytes.
    pub fn lsize_bytes(&self) -> u64 {
        ((self.prop & 0xffff) + 1) << 9
    }

    /// Stored size in bytes.
    pub fn psize_bytes(&self) -> u64 {
        ((self.prop >> 16 & 0xffff) + 1) << 9
    }

    /// Compression.
    pub fn compression(&self) -> Option<CompressionKind> {
        CompressionKind::from_u8((self.prop >> 32 & 0x7f) as u8)
    }

    /// Checksum function.
    pub fn checksum_kind(&self) -> Option<ChecksumKind> {
        ChecksumKind::from_u8((self.prop >> 40 & 0xff) as u8)
    }
}

/// The header of a cache device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct L2Header {
    pub endian: Endian,
    pub version: u64,
    pub pool_guid: u64,
    pub vdev_guid: u64,
    /// Entries per log block.
    pub log_entries: u64,
    /// Byte offset up to which old contents were evicted.
    pub evict_bytes: u64,
    /// Bit 0: the device has not yet been filled for the first time.
    pub flags: u64,
    pub start_bytes: u64,
    pub end_bytes: u64,
    /// The newest log block and its predecessor.
    pub logs: [LogPointer; 2],
    pub log_bytes: u64,
    pub log_count: u64,
    pub trim_time_s: u64,
    pub trim_state: u64,
}

impl L2Header {
    /// Bytes on disk, self-checksum included.
    pub const SIZE: usize = 512;

    /// Decodes 512 bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        const WHAT: &str = "L2ARC header";
        let endian = endian_of(bytes, HEADER_MAGIC, WHAT)?;
        let mut c = Cursor::new(bytes, endian, WHAT);
        c.skip(8)?;
        let [version, pool_guid, vdev_guid, log_entries, evict_bytes, flags, start_bytes, end_bytes] = c.words()?;
        let logs = [LogPointer::decode(&mut c)?, LogPointer::decode(&mut c)?];
        let [log_bytes, log_count, trim_time_s, trim_state] = c.words()?;
        Ok(L2Header {
            endian,
            version,
            pool_guid,
            vdev_guid,
            log_entries,
            evict_bytes,
            flags,
            start_bytes,
            end_bytes,
            logs,
            log_bytes,
            log_count,
            trim_time_s,
            trim_state,
        })
    }
}

/// An entry of a log block: a cached block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct L2Entry {
    /// Address of the block in the pool.
    pub dva: Dva,
    pub birth: Txg,
    /// Sizes, compression and so on, as in a block pointer.
    pub prop: u64,
    /// Byte offset of the copy on the cache device.
    pub offset_bytes: u64,
    pub compression_level: u64,
}

/// Decodes a log block: the pointer to the previous block in its chain, and up to `count` entries.
pub fn decode_log(bytes: &[u8], count: usize) -> Result<(LogPointer, Vec<L2Entry>), DecodeError> {
    const WHAT: &str = "L2ARC log";
    let endian = endian_of(bytes, LOG_MAGIC, WHAT)?;
    let mut c = Cursor::new(bytes, endian, WHAT);
    c.skip(8)?;
    let previous = LogPointer::decode(&mut c)?;
    c.skip(56)?;
    let mut entries = Vec::new();
    for _ in 0..count.min(LOG_ENTRIES) {
        let [w0, w1, birth, prop, offset_bytes, compression_level, ..] = c.words::<8>()?;
        let dva = Dva::from_words(w0, w1);
        entries.push(L2Entry { dva, birth: Txg(birth), prop, offset_bytes, compression_level });
    }
    Ok((previous, entries))
}

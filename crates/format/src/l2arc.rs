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
/// Uncompressed bytes of a log block, however many of its entries are used.
pub const LOG_BYTES: usize = 128 + LOG_ENTRIES * ENTRY_BYTES;
/// Version of the header (`L2ARC_PERSISTENT_VERSION`).
pub const VERSION: u64 = 1;
/// Flag of [`L2Header::flags`]: the device has not yet been filled for the first time (`L2ARC_DEV_HDR_EVICT_FIRST`).
pub const FLAG_FIRST: u64 = 1;
/// A cache device whose space ends before this offset has no log blocks (`l2arc_rebuild_blocks_min_l2size`).
const MIN_LOGGED_BYTES: u64 = 1 << 30;
/// Bytes of an entry.
const ENTRY_BYTES: usize = 64;

/// Entries per log block on a device with space from `start_bytes` to `end_bytes`; 0 if it is too small for log blocks
/// (`l2arc_rebuild_dev`).
pub fn log_entries(start_bytes: u64, end_bytes: u64) -> usize {
    if end_bytes < MIN_LOGGED_BYTES {
        return 0;
    }
    // A log block with its payload of blocks of 16 MiB each has to fit on the device.
    (end_bytes.saturating_sub(start_bytes) >> 24).min(LOG_ENTRIES as u64) as usize
}

/// Sizes, compression and further fields of pointers and entries: as in a block pointer, in units of 512 bytes, less one.
fn sizes(lsize_bytes: u64, psize_bytes: u64, compression: CompressionKind) -> u64 {
    let sectors = |bytes: u64| (bytes >> 9).saturating_sub(1) & 0xffff;
    u64::from(compression.to_u8() & 0x7f) << 32 | sectors(psize_bytes) << 16 | sectors(lsize_bytes)
}

fn push(out: &mut Vec<u8>, words: &[u64]) {
    words.iter().for_each(|word| out.extend(word.to_le_bytes()));
}

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

    /// A pointer to a log block of `psize_bytes` stored bytes, which has this fletcher4 checksum.
    pub fn new(
        offset_bytes: u64,
        payload_start: u64,
        payload_bytes: u64,
        psize_bytes: u64,
        compression: CompressionKind,
        checksum: [u64; 4],
    ) -> Self {
        let kind = (ChecksumKind::Fletcher4 as u64) << 40;
        let prop = sizes(LOG_BYTES as u64, psize_bytes, compression) | kind;
        LogPointer { offset_bytes, payload_bytes, payload_start, prop, checksum }
    }

    fn words(&self) -> [u64; 8] {
        let [c0, c1, c2, c3] = self.checksum;
        [self.offset_bytes, self.payload_bytes, self.payload_start, self.prop, c0, c1, c2, c3]
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

    /// Encodes the header, in little-endian byte order, as the first of `area_bytes` bytes: at least
    /// [`L2Header::SIZE`], and a sector of the device. The checksum at the end of the area is left to the caller.
    pub fn encode(&self, area_bytes: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(area_bytes.max(Self::SIZE));
        let guids = [self.pool_guid, self.vdev_guid];
        push(&mut out, &[HEADER_MAGIC, self.version, guids[0], guids[1], self.log_entries, self.evict_bytes]);
        push(&mut out, &[self.flags, self.start_bytes, self.end_bytes]);
        self.logs.iter().for_each(|log| push(&mut out, &log.words()));
        push(&mut out, &[self.log_bytes, self.log_count, self.trim_time_s, self.trim_state]);
        out.resize(area_bytes.max(Self::SIZE), 0);
        out
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

/// The facts about a block in its entry, besides the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryFacts {
    /// Logical size in bytes.
    pub lsize_bytes: u64,
    /// Physical size in bytes, without the padding on the cache device.
    pub psize_bytes: u64,
    /// Compression.
    pub compression: CompressionKind,
    /// Metadata, not the contents of a file or volume.
    pub is_metadata: bool,
    /// The block is encrypted or authenticated.
    pub is_protected: bool,
    /// The block was prefetched, and not used since.
    pub is_prefetched: bool,
    /// The block was in the list of frequently used blocks (MFU).
    pub is_mfu: bool,
}

impl L2Entry {
    /// The entry of a block that has a copy at `offset_bytes`.
    pub fn new(dva: Dva, birth: Txg, offset_bytes: u64, facts: &EntryFacts, compression_level: u64) -> Self {
        // `arc_buf_contents_t` plus one, and `arc_state_type_t`: MRU is 1, MFU is 3.
        let kind = 1 + u64::from(facts.is_metadata);
        let state: u64 = if facts.is_mfu { 3 } else { 1 };
        let prop = sizes(facts.lsize_bytes, facts.psize_bytes, facts.compression)
            | u64::from(facts.is_prefetched) << 39
            | kind << 48
            | u64::from(facts.is_protected) << 56
            | state << 57;
        L2Entry { dva, birth, prop, offset_bytes, compression_level }
    }

    /// Logical size in bytes.
    pub fn lsize_bytes(&self) -> u64 {
        ((self.prop & 0xffff) + 1) << 9
    }

    /// Physical size in bytes.
    pub fn psize_bytes(&self) -> u64 {
        ((self.prop >> 16 & 0xffff) + 1) << 9
    }
}

/// Encodes a log block, in little-endian byte order: the pointer to the previous block of its chain, and at most
/// [`LOG_ENTRIES`] entries.
pub fn encode_log(previous: &LogPointer, entries: &[L2Entry]) -> Vec<u8> {
    let mut out = Vec::with_capacity(LOG_BYTES);
    push(&mut out, &[LOG_MAGIC]);
    push(&mut out, &previous.words());
    push(&mut out, &[0; 7]);
    for entry in entries.iter().take(LOG_ENTRIES) {
        let [w0, w1] = entry.dva.to_words();
        let level = entry.compression_level;
        push(&mut out, &[w0, w1, entry.birth.0, entry.prop, entry.offset_bytes, level, 0, 0]);
    }
    out.resize(LOG_BYTES, 0);
    out
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

#[cfg(test)]
mod tests {
    use super::*;

    const POINTER: LogPointer = LogPointer {
        offset_bytes: 5 << 20,
        payload_bytes: 1 << 20,
        payload_start: 4 << 20,
        prop: 0x070f_0003_007f,
        checksum: [1, 2, 3, 4],
    };

    #[test]
    fn what_was_encoded_is_decoded() {
        let header = L2Header {
            endian: Endian::Little,
            version: VERSION,
            pool_guid: 2,
            vdev_guid: 3,
            log_entries: 63,
            evict_bytes: 5,
            flags: FLAG_FIRST,
            start_bytes: 7,
            end_bytes: 8,
            logs: [POINTER, LogPointer::default()],
            log_bytes: 9,
            log_count: 10,
            trim_time_s: 11,
            trim_state: 12,
        };
        let bytes = header.encode(4096);
        assert_eq!((bytes.len(), L2Header::decode(&bytes).unwrap()), (4096, header));
        let facts = EntryFacts {
            lsize_bytes: 131_072,
            psize_bytes: 4096,
            compression: CompressionKind::Lz4,
            is_metadata: true,
            is_protected: false,
            is_prefetched: false,
            is_mfu: true,
        };
        let dva = Dva { vdev: 1, offset_bytes: 1 << 30, asize_bytes: 4096, ..Dva::default() };
        let entry = L2Entry::new(dva, Txg(77), 6 << 20, &facts, 0);
        assert_eq!((entry.lsize_bytes(), entry.psize_bytes()), (131_072, 4096));
        let bytes = encode_log(&POINTER, &[entry; 3]);
        assert_eq!(bytes.len(), 65_536);
        assert_eq!(decode_log(&bytes, 3).unwrap(), (POINTER, vec![entry; 3]));
    }

    #[test]
    fn a_log_block_has_as_many_entries_as_the_device_has_room_for() {
        let start = (4 << 20) + 4096;
        assert_eq!(log_entries(start, (1 << 30) - 1), 0);
        assert_eq!(log_entries(start, 1 << 30), 63);
        assert_eq!(log_entries(start, 1 << 40), LOG_ENTRIES);
    }
}

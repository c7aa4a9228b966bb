//! Send streams (`dmu_replay_record_t`, OpenZFS `include/sys/zfs_ioctl.h`): the output of `zfs send`.
//!
//! ```text
//!  stream   BEGIN · record · record · … · END        a compound stream (-R) is a BEGIN with an nvlist, an END, streams
//!                                                    one after the other, and an empty END
//!  record   type (u32) · payload length (u32, BEGIN only) · body (272 bytes) · running checksum (32) | payload
//! ```
//!
//! A record has 312 bytes; the body determines the payload's length. All integers are in the sender's byte order,
//! which is detected from the magic number of BEGIN. The running checksum is Fletcher-4 over all bytes of the stream
//! before it, up to the body's end; END also carries the checksum of all bytes before it. The checksum restarts after
//! each END.
//!
//! The caller supplies the checksum function ([`RunningChecksum`]): this crate contains layouts only.
//!
//! Invariants: payloads never exceed [`MAX_PAYLOAD`] (BEGIN: [`MAX_BEGIN_PAYLOAD`]); readers yield slices of their
//! input and do not copy payloads.

mod record;
#[cfg(test)]
mod tests;

pub use record::{Begin, ObjectRecord, Record, SpillRecord, WriteRecord};

use crate::cursor::{DecodeError, Endian};

pub(crate) const WHAT: &str = "send stream";

/// Size of a record without its payload, in bytes.
pub const RECORD_BYTES: usize = 312;
/// Offset of a record's running checksum, in bytes.
pub const CHECKED_BYTES: usize = 280;
/// Maximum payload in bytes: the largest block. Only BEGIN's nvlist may be larger, up to [`MAX_BEGIN_PAYLOAD`].
pub const MAX_PAYLOAD: u64 = 16 << 20;
/// Maximum size of BEGIN's nvlist in bytes.
pub const MAX_BEGIN_PAYLOAD: u64 = 256 << 20;

/// The feature flags of a stream (`DMU_BACKUP_FEATURE_*`).
#[allow(missing_docs)]
pub mod feature {
    pub const DEDUP: u64 = 1 << 0;
    pub const DEDUP_PROPS: u64 = 1 << 1;
    pub const SA_SPILL: u64 = 1 << 2;
    pub const EMBED_DATA: u64 = 1 << 16;
    pub const LZ4: u64 = 1 << 17;
    pub const LARGE_BLOCKS: u64 = 1 << 19;
    pub const RESUMING: u64 = 1 << 20;
    pub const REDACTED: u64 = 1 << 21;
    pub const COMPRESSED: u64 = 1 << 22;
    pub const LARGE_DNODE: u64 = 1 << 23;
    pub const RAW: u64 = 1 << 24;
    pub const ZSTD: u64 = 1 << 25;
    pub const HOLDS: u64 = 1 << 26;
    pub const SWITCH_TO_LARGE_BLOCKS: u64 = 1 << 27;
    pub const LONGNAME: u64 = 1 << 28;
    pub const LARGE_MICROZAP: u64 = 1 << 29;
}

/// Incremental Fletcher-4 over a stream.
pub trait RunningChecksum {
    /// Adds bytes whose 32-bit words are in byte order `endian`. The length is a multiple of four, except for a last
    /// payload.
    fn update(&mut self, bytes: &[u8], endian: Endian);
    /// The checksum so far.
    fn value(&self) -> [u64; 4];
    /// Restarts the checksum.
    fn reset(&mut self);
}

/// A stub that computes no checksum; its value is always zero.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unchecked;

impl RunningChecksum for Unchecked {
    fn update(&mut self, _: &[u8], _: Endian) {}

    fn value(&self) -> [u64; 4] {
        [0; 4]
    }

    fn reset(&mut self) {}
}

/// A record with its payload, offset and checksums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamItem<'a> {
    /// Byte offset of the record.
    pub offset: u64,
    /// The record.
    pub record: Record,
    /// The payload after the record.
    pub payload: &'a [u8],
    /// The running checksum in the record; zero in BEGIN and in streams of old senders.
    pub stored: [u64; 4],
    /// The running checksum computed up to the record's checksum field.
    pub computed: [u64; 4],
    /// In END: the checksum of all bytes before it, as stored in its body and as computed.
    pub end: Option<([u64; 4], [u64; 4])>,
}

impl StreamItem<'_> {
    /// Whether the stored checksums that are present equal the computed ones. Meaningful only with a real
    /// [`RunningChecksum`].
    pub fn checksum_holds(&self) -> bool {
        (self.stored == [0; 4] || self.stored == self.computed) && self.end.is_none_or(|(stored, here)| stored == here)
    }
}

/// Decodes the records of a stream one by one, each from bytes that begin with it.
#[derive(Clone, Debug)]
pub struct StreamDecoder<C> {
    at: u64,
    endian: Option<Endian>,
    checksum: C,
}

impl<C: RunningChecksum> StreamDecoder<C> {
    /// A decoder at the start of a stream.
    pub fn new(checksum: C) -> Self {
        StreamDecoder { at: 0, endian: None, checksum }
    }

    /// Size in bytes of the next record with its payload, decoded from its first [`RECORD_BYTES`].
    ///
    /// # Errors
    /// [`DecodeError`] if `header` is truncated or no record. The first record must be BEGIN.
    pub fn record_bytes(&self, header: &[u8]) -> Result<usize, DecodeError> {
        let (_, record, _) = self.header(header)?;
        Ok(RECORD_BYTES + record.payload_len()?)
    }

    /// Decodes the next record and advances past it.
    ///
    /// # Errors
    /// [`DecodeError`] if `bytes` do not begin with a complete record.
    pub fn take<'a>(&mut self, bytes: &'a [u8]) -> Result<StreamItem<'a>, DecodeError> {
        let (endian, record, stored) = self.header(bytes)?;
        let end = RECORD_BYTES + record.payload_len()?;
        let payload = bytes.get(RECORD_BYTES..end).ok_or(self.truncated(end, bytes.len()))?;
        let (checked, tail) = bytes.get(..RECORD_BYTES).unwrap_or_default().split_at(CHECKED_BYTES);
        let before = self.checksum.value();
        self.checksum.update(checked, endian);
        let computed = self.checksum.value();
        self.checksum.update(tail, endian);
        self.checksum.update(payload, endian);
        // BEGIN has no checksum field: the end of its name occupies those bytes.
        let stored = if matches!(record, Record::Begin(_)) { [0; 4] } else { stored };
        let sums = if let Record::End { checksum, .. } = &record {
            self.checksum.reset();
            Some((*checksum, before))
        } else {
            None
        };
        let offset = self.at;
        (self.at, self.endian) = (offset + end as u64, Some(endian));
        Ok(StreamItem { offset, record, payload, stored, computed, end: sums })
    }

    fn header(&self, bytes: &[u8]) -> Result<(Endian, Record, [u64; 4]), DecodeError> {
        let endian = match self.endian {
            Some(endian) => endian,
            None => Record::endian_of_begin(bytes)?,
        };
        let header = bytes.get(..RECORD_BYTES).ok_or(self.truncated(RECORD_BYTES, bytes.len()))?;
        let (record, stored) = Record::decode(header, endian)?;
        Ok((endian, record, stored))
    }

    fn truncated(&self, needed: usize, have: usize) -> DecodeError {
        DecodeError::Truncated { what: WHAT, offset: self.at as usize, needed, have }
    }
}

/// Iterates over the records in a slice; ends after the first error.
#[derive(Clone, Debug)]
pub struct StreamReader<'a, C> {
    rest: &'a [u8],
    endian: Endian,
    decoder: StreamDecoder<C>,
}

impl<'a, C: RunningChecksum> StreamReader<'a, C> {
    /// Iterates over a whole stream, which must start with BEGIN.
    pub fn new(bytes: &'a [u8], checksum: C) -> Result<Self, DecodeError> {
        let endian = Record::endian_of_begin(bytes)?;
        Ok(StreamReader { rest: bytes, endian, decoder: StreamDecoder::new(checksum) })
    }

    /// The byte order of the stream.
    pub fn endian(&self) -> Endian {
        self.endian
    }
}

impl<'a, C: RunningChecksum> Iterator for StreamReader<'a, C> {
    type Item = Result<StreamItem<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let item = self.decoder.take(self.rest);
        // After an undecodable record the position of the next one is unknown.
        let taken = item.as_ref().map_or(self.rest.len(), |item| RECORD_BYTES + item.payload.len());
        self.rest = self.rest.get(taken..).unwrap_or_default();
        Some(item)
    }
}

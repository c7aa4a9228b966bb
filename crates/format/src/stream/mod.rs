//! Send streams (`dmu_replay_record_t`, OpenZFS `include/sys/zfs_ioctl.h`): what `zfs send` writes.
//!
//! ```text
//!  stream   BEGIN · record · record · … · END        a compound stream (-R) is a BEGIN with an nvlist, an END, streams
//!                                                    one after the other, and an empty END
//!  record   type (u32) · payload length (u32, BEGIN only) · body (272 bytes) · running checksum (32) | payload
//! ```
//!
//! A record has 312 bytes; the payload's length follows from the body. All integers are in the sender's byte order, which
//! the magic number of BEGIN tells. The running checksum is Fletcher-4 over all bytes of the stream before it, up to the
//! body's end; END also carries the checksum of everything before itself. It starts afresh after each END.
//!
//! The caller brings the checksum ([`RunningChecksum`]): this crate knows layouts only.
//!
//! Invariants: payloads never exceed [`MAX_PAYLOAD`]; readers yield slices of what they are given and allocate nothing.

mod record;
#[cfg(test)]
mod tests;

pub use record::{Begin, ObjectRecord, Record, SpillRecord, WriteRecord};

use crate::cursor::{DecodeError, Endian};

pub(crate) const WHAT: &str = "send stream";

/// Bytes of a record without its payload.
pub const RECORD_BYTES: usize = 312;
/// Bytes of a record before its running checksum.
pub const CHECKED_BYTES: usize = 280;
/// Most bytes of a payload: the largest block; nvlists of compound streams may be larger, up to [`MAX_BEGIN_PAYLOAD`].
pub const MAX_PAYLOAD: u64 = 16 << 20;
/// Most bytes of BEGIN's nvlist.
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

/// Fletcher-4 as it runs along a stream.
pub trait RunningChecksum {
    /// Takes in bytes whose 32-bit words are in that order; always a multiple of four, except for a last payload.
    fn update(&mut self, bytes: &[u8], endian: Endian);
    /// The checksum so far.
    fn value(&self) -> [u64; 4];
    /// Starts afresh.
    fn reset(&mut self);
}

/// No checksum: everything holds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unchecked;

impl RunningChecksum for Unchecked {
    fn update(&mut self, _: &[u8], _: Endian) {}

    fn value(&self) -> [u64; 4] {
        [0; 4]
    }

    fn reset(&mut self) {}
}

/// A record with its place in the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamItem<'a> {
    /// Byte offset of the record.
    pub offset: u64,
    /// The record.
    pub record: Record,
    /// What follows it.
    pub payload: &'a [u8],
    /// The running checksum in the record; zero in BEGIN and in streams of old senders.
    pub stored: [u64; 4],
    /// The running checksum that was computed up to there.
    pub computed: [u64; 4],
    /// What END says that the checksum before it is, if this is END, with what was computed.
    pub end: Option<([u64; 4], [u64; 4])>,
}

impl StreamItem<'_> {
    /// Whether the stored checksums, as far as there are any, are those computed. Only means something with a real
    /// [`RunningChecksum`].
    pub fn checksum_holds(&self) -> bool {
        (self.stored == [0; 4] || self.stored == self.computed) && self.end.is_none_or(|(stored, here)| stored == here)
    }
}

/// Takes the records of a stream one after the other, each from bytes that begin with it.
#[derive(Clone, Debug)]
pub struct StreamDecoder<C> {
    at: u64,
    endian: Option<Endian>,
    checksum: C,
}

impl<C: RunningChecksum> StreamDecoder<C> {
    /// At the start of a stream.
    pub fn new(checksum: C) -> Self {
        StreamDecoder { at: 0, endian: None, checksum }
    }

    /// How many bytes the next record has, with its payload, by the word of its first [`RECORD_BYTES`].
    ///
    /// # Errors
    /// If they are no record, or fewer; the first must be BEGIN.
    pub fn record_bytes(&self, header: &[u8]) -> Result<usize, DecodeError> {
        let (_, record, _) = self.header(header)?;
        Ok(RECORD_BYTES + record.payload_len()?)
    }

    /// Takes the next record.
    ///
    /// # Errors
    /// If the bytes do not begin with one.
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
        // BEGIN fills the whole body: the end of its name lies where the others keep the checksum.
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

/// Reads records off a slice.
#[derive(Clone, Debug)]
pub struct StreamReader<'a, C> {
    rest: &'a [u8],
    endian: Endian,
    decoder: StreamDecoder<C>,
}

impl<'a, C: RunningChecksum> StreamReader<'a, C> {
    /// Over a whole stream, which must start with BEGIN.
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
        // Behind what is no record nothing can be found.
        let taken = item.as_ref().map_or(self.rest.len(), |item| RECORD_BYTES + item.payload.len());
        self.rest = self.rest.get(taken..).unwrap_or_default();
        Some(item)
    }
}

//! Reads the records of a received stream, one at a time, and verifies their running checksums.

use crate::error::ReceiveError;
use crate::package::MAX_LIST_BYTES;
use crate::running::RunningFletcher4;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use weir_format::Endian;
use weir_format::stream::{RECORD_BYTES, Record, StreamDecoder};

/// Where a stream comes from.
pub trait Input: Send {
    /// Returns further bytes of the stream, at least one and not many more than `wanted`; none at its end.
    fn get(&mut self, wanted: usize) -> BoxFuture<'_, Result<Vec<u8>, ReceiveError>>;
}

/// A record with its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The record.
    pub record: Record,
    /// Payload of the record.
    pub payload: Bytes,
}

/// The records of a stream as they arrive.
pub struct StreamInput<'a> {
    input: &'a mut dyn Input,
    /// Bytes that have arrived and were not decoded.
    bytes: Vec<u8>,
    decoder: StreamDecoder<RunningFletcher4>,
    begun: bool,
    total_bytes: u64,
}

impl<'a> StreamInput<'a> {
    /// Reads from the start of a stream.
    pub fn new(input: &'a mut dyn Input) -> Self {
        let decoder = StreamDecoder::new(RunningFletcher4::default());
        StreamInput { input, bytes: Vec::new(), decoder, begun: false, total_bytes: 0 }
    }

    /// Bytes of the records so far.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Fetches bytes until this number has arrived. A claimed length alone allocates no memory.
    async fn fill(&mut self, bytes: usize) -> Result<bool, ReceiveError> {
        while self.bytes.len() < bytes {
            let more = self.input.get(bytes - self.bytes.len()).await?;
            if more.is_empty() {
                return Ok(false);
            }
            self.bytes.extend_from_slice(&more);
        }
        Ok(true)
    }

    /// The next record; `None` if the stream ends before it.
    ///
    /// # Errors
    /// [`ReceiveError::Truncated`], [`ReceiveError::Checksum`], [`ReceiveError::Decode`]; [`ReceiveError::Unsupported`] for
    /// a stream of the other byte order.
    pub async fn next(&mut self) -> Result<Option<Received>, ReceiveError> {
        if !self.fill(RECORD_BYTES).await? {
            return if self.bytes.is_empty() { Ok(None) } else { Err(ReceiveError::Truncated) };
        }
        if !self.begun {
            let endian = Record::endian_of_begin(&self.bytes);
            if endian.map_err(|_| ReceiveError::Invalid("invalid stream (bad magic number)".into()))? == Endian::Big {
                return Err(ReceiveError::Unsupported("a stream of a sender of the other byte order".into()));
            }
            self.begun = true;
        }
        let whole = self.decoder.record_bytes(&self.bytes)?;
        if whole > RECORD_BYTES + MAX_LIST_BYTES {
            return Err(ReceiveError::Invalid("invalid stream (nvlist too large)".into()));
        }
        if !self.fill(whole).await? {
            return Err(ReceiveError::Truncated);
        }
        self.total_bytes += whole as u64;
        let rest = self.bytes.split_off(whole);
        let item = self.decoder.take(&self.bytes)?;
        if !item.checksum_holds() {
            return Err(ReceiveError::Checksum);
        }
        let record = item.record;
        let mut bytes = Bytes::from(std::mem::replace(&mut self.bytes, rest));
        Ok(Some(Received { record, payload: bytes.split_off(RECORD_BYTES) }))
    }
}

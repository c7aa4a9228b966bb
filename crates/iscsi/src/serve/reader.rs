//! Reads units from a connection.
//!
//! Headers are read through a buffer, so that a small unit costs one system call. Data segments go from the buffer, and then
//! directly from the socket, to where the session wants them: a long write is not copied.

use crate::wire::bhs::padding;
use crate::wire::digest::{self, DIGEST_BYTES};
use crate::wire::{BHS_BYTES, Bhs, Digests};
use bytes::{Buf, BytesMut};
use std::io;
use tokio::io::AsyncReadExt;
use weir_front::Reader;

/// Size of the buffer in bytes.
const BUFFER_BYTES: usize = 16 << 10;

/// The units of a connection.
pub struct UnitReader {
    reader: Reader,
    buffer: BytesMut,
    /// Digests of the units that follow.
    pub digests: Digests,
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

impl UnitReader {
    /// Reads from a connection, without digests at first.
    pub fn new(reader: Reader) -> Self {
        UnitReader { reader, buffer: BytesMut::with_capacity(BUFFER_BYTES), digests: Digests::default() }
    }

    /// Whether a part of a unit has been read.
    pub fn has_part(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Reads until the buffer has `len` bytes. `false`: the connection ended before the first byte.
    async fn fill(&mut self, len: usize) -> io::Result<bool> {
        debug_assert!(len <= BUFFER_BYTES, "{len} bytes at once");
        while self.buffer.len() < len {
            self.buffer.reserve(BUFFER_BYTES - self.buffer.len().min(BUFFER_BYTES));
            if self.reader.read_buf(&mut self.buffer).await? == 0 {
                return if self.buffer.is_empty() { Ok(false) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
        Ok(true)
    }

    async fn must_fill(&mut self, len: usize) -> io::Result<()> {
        if self.fill(len).await? { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Reads a header, its additional segments and its digest. `None`: the connection ended before it. Dropping the future
    /// loses nothing that was read.
    ///
    /// # Errors
    /// Errors of the connection, and a wrong digest.
    pub async fn header(&mut self) -> io::Result<Option<Bhs>> {
        if !self.fill(BHS_BYTES).await? {
            return Ok(None);
        }
        let mut bhs = Bhs([0; BHS_BYTES]);
        bhs.0.copy_from_slice(&self.buffer[..BHS_BYTES]);
        let digest_bytes = if self.digests.header { DIGEST_BYTES } else { 0 };
        let covered = BHS_BYTES + bhs.ahs_bytes();
        self.must_fill(covered + digest_bytes).await?;
        if self.digests.header && digest::of([&self.buffer[..covered]]) != self.buffer[covered..covered + DIGEST_BYTES]
        {
            return Err(invalid("a header does not match its digest"));
        }
        self.buffer.advance(covered + digest_bytes);
        Ok(Some(bhs))
    }

    /// Reads a data segment of `len` bytes with padding and digest: the first `keep` bytes to the end of `into`. Returns
    /// whether the digest matches.
    ///
    /// # Errors
    /// Errors of the connection.
    pub async fn data(&mut self, len: usize, keep: usize, into: &mut BytesMut) -> io::Result<bool> {
        if len == 0 {
            return Ok(true);
        }
        let start = into.len();
        let keep = keep.min(len);
        into.reserve(keep);
        let buffered = self.buffer.len().min(keep);
        into.extend_from_slice(&self.buffer[..buffered]);
        self.buffer.advance(buffered);
        let mut direct = (&mut self.reader).take((keep - buffered) as u64);
        while into.len() < start + keep {
            if direct.read_buf(into).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let mut crc = crc32c::crc32c_append(0, if self.digests.data { &into[start..] } else { &[] });
        let mut left = len - keep + padding(len);
        while left > 0 {
            self.must_fill(left.min(1024)).await?;
            let part = self.buffer.len().min(left);
            if self.digests.data {
                crc = crc32c::crc32c_append(crc, &self.buffer[..part]);
            }
            self.buffer.advance(part);
            left -= part;
        }
        if !self.digests.data {
            return Ok(true);
        }
        self.must_fill(DIGEST_BYTES).await?;
        let matches = self.buffer[..DIGEST_BYTES] == crc.to_le_bytes();
        self.buffer.advance(DIGEST_BYTES);
        Ok(matches)
    }
}

//! The transmission phase: a pure function plans each request; executing the plan awaits only the device.
//!
//! ```text
//!   header ─▶ plan ─▶ Refuse(errno) · Flush · Read · Status · Cache · Disconnect · Close
//!                     Write(payload) · Zero · Trim  ─▶ and a flush, if FUA
//!                     Skip(payload) then Refuse
//! ```
//!
//! A structured READ is answered by extents: holes as OFFSET_HOLE, data in pieces as the cache returns them, an
//! unreadable block as an ERROR_OFFSET chunk for its piece only. A simple READ fails as a whole.
//!
//! **Stability.** A FLUSH and a request with FUA are answered when the device has made the data stable. TRIM frees whole
//! blocks only, because it is a hint; WRITE_ZEROES is exact. With NO_HOLE, zeros are written like data, which is not
//! faster than a write: so NO_HOLE with FAST_ZERO fails with ENOTSUP immediately.

use crate::handshake::Negotiated;
use crate::wire::{self, Errno, RequestHeader, chunk, command};
use bytes::Bytes;
use futures_util::future::join_all;
use weir_front::{BlockDevice, BlockError};
use weir_machine::{Request, Source, compact};

/// Size in bytes of the pieces of a READ, which are read concurrently.
const PIECE_BYTES: u32 = 1 << 20;
/// Maximum number of extents in one reply to BLOCK_STATUS.
const MAX_EXTENTS: usize = 4096;
/// Encoded size of an extent in bytes.
const EXTENT_BYTES: u32 = 8;
/// Maximum number of extents that a READ distinguishes; the rest of its range is treated as data.
const MAX_READ_EXTENTS: usize = 256;
/// Maximum payload of a WRITE in bytes; a larger one ends the connection.
const MAX_PAYLOAD_BYTES: u32 = wire::MAX_TRANSFER_BYTES;

/// How to execute a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandPlan {
    /// Reply with an error.
    Refuse(Errno),
    /// Discard this many bytes of payload, then reply with an error.
    SkipAndRefuse(u32, Errno),
    /// Make all completed writes stable.
    Flush,
    /// Write the payload, which follows the header.
    Write {
        /// Make the data stable before the reply.
        fua: bool,
    },
    /// Make the range read as zeros.
    Zero {
        /// Whole blocks may be freed.
        holes: bool,
        /// Make the data stable before the reply.
        fua: bool,
    },
    /// Free the blocks that lie entirely within the range.
    Trim {
        /// Make the data stable before the reply.
        fua: bool,
    },
    /// Read the range.
    Read {
        /// Reply with a single chunk.
        whole: bool,
    },
    /// Report the allocation of the range.
    Status {
        /// Report only the first extent.
        one: bool,
    },
    /// Read the range into the cache.
    Cache,
    /// End the session.
    Disconnect,
    /// The stream is out of sync: close the connection.
    Close,
}

/// Plans a request.
pub fn plan(header: &RequestHeader, size_bytes: u64, negotiated: &Negotiated) -> CommandPlan {
    let inside = header.offset.checked_add(header.length.into()).is_some_and(|end| end <= size_bytes);
    let changes = matches!(header.command, command::WRITE | command::WRITE_ZEROES | command::TRIM);
    if changes && !(negotiated.writable && inside) {
        let errno = match header.command {
            _ if !negotiated.writable => Errno::Eperm,
            command::TRIM => Errno::Einval,
            _ => Errno::Enospc,
        };
        return refuse(header, errno);
    }
    if header.flags & !known_flags(header.command, negotiated) != 0 {
        return refuse(header, Errno::Einval);
    }
    let flag = |bit| header.flags & bit != 0;
    let fua = flag(wire::COMMAND_FLAG_FUA);
    let holes = !flag(wire::COMMAND_FLAG_NO_HOLE);
    match header.command {
        command::WRITE if header.length > MAX_PAYLOAD_BYTES => CommandPlan::Close,
        command::WRITE => CommandPlan::Write { fua },
        command::WRITE_ZEROES if flag(wire::COMMAND_FLAG_FAST_ZERO) && !holes => CommandPlan::Refuse(Errno::Enotsup),
        command::WRITE_ZEROES => CommandPlan::Zero { holes, fua },
        command::TRIM => CommandPlan::Trim { fua },
        command::DISC => CommandPlan::Disconnect,
        command::FLUSH => CommandPlan::Flush,
        command::READ | command::CACHE if header.length > wire::MAX_TRANSFER_BYTES => {
            CommandPlan::Refuse(Errno::Eoverflow)
        }
        command::READ | command::CACHE | command::BLOCK_STATUS if !inside => CommandPlan::Refuse(Errno::Einval),
        command::READ => CommandPlan::Read { whole: flag(wire::COMMAND_FLAG_DF) },
        command::CACHE => CommandPlan::Cache,
        command::BLOCK_STATUS if !negotiated.allocation || header.length == 0 => CommandPlan::Refuse(Errno::Einval),
        command::BLOCK_STATUS => CommandPlan::Status { one: flag(wire::COMMAND_FLAG_REQ_ONE) },
        _ => CommandPlan::Refuse(Errno::Enotsup),
    }
}

/// Rejects a request; the payload of a WRITE must still be read from the stream.
fn refuse(header: &RequestHeader, errno: Errno) -> CommandPlan {
    match header.command {
        command::WRITE if header.length > MAX_PAYLOAD_BYTES => CommandPlan::Close,
        command::WRITE => CommandPlan::SkipAndRefuse(header.length, errno),
        _ => CommandPlan::Refuse(errno),
    }
}

/// The flags that a command may carry. FUA is valid with any command once it was offered.
fn known_flags(command: u16, negotiated: &Negotiated) -> u16 {
    let fua = if negotiated.writable { wire::COMMAND_FLAG_FUA } else { 0 };
    let own = match command {
        command::READ if negotiated.structured => wire::COMMAND_FLAG_DF,
        command::BLOCK_STATUS => wire::COMMAND_FLAG_REQ_ONE,
        command::WRITE_ZEROES => wire::COMMAND_FLAG_NO_HOLE | wire::COMMAND_FLAG_FAST_ZERO,
        // DISC has no reply, so its flags are ignored.
        command::DISC => u16::MAX,
        _ => 0,
    };
    fua | own
}

/// Memory in bytes that a request and its reply may hold until the reply is sent.
pub fn memory_bytes(plan: &CommandPlan, header: &RequestHeader) -> u32 {
    match plan {
        CommandPlan::Read { .. } | CommandPlan::Write { .. } => header.length,
        CommandPlan::Cache | CommandPlan::Zero { holes: false, .. } => header.length.min(PIECE_BYTES),
        CommandPlan::Status { one: false } => MAX_EXTENTS as u32 * EXTENT_BYTES,
        _ => 0,
    }
}

/// A reply in pieces.
pub type Pieces = Vec<Bytes>;

/// Executes a planned request and encodes its reply. `payload` is the payload of a WRITE, else empty.
pub async fn answer(
    device: &dyn BlockDevice,
    rq: &Request,
    negotiated: &Negotiated,
    header: &RequestHeader,
    plan: CommandPlan,
    payload: Bytes,
) -> Pieces {
    let reply = ReplyEncoder { structured: negotiated.structured, cookie: header.cookie };
    let ended = |result: Result<(), BlockError>| match result {
        Ok(()) => reply.done(),
        Err(error) => reply.error(report(rq, header.offset, &error)),
    };
    match plan {
        CommandPlan::Read { whole } if negotiated.structured && !whole => {
            read_by_extents(device, rq, header, reply).await
        }
        CommandPlan::Read { .. } => match read_whole(device, rq, header.offset, header.length).await {
            Ok(pieces) => reply.data(header.offset, pieces),
            Err(error) => reply.error(report(rq, header.offset, &error)),
        },
        CommandPlan::Cache => ended(cache(device, rq, header).await),
        CommandPlan::Status { one } => {
            let max = if one { 1 } else { MAX_EXTENTS };
            match device.extents(rq, header.offset, header.length.into(), max).await {
                Ok(extents) => reply.status(&extents.iter().map(|e| (e.len_bytes, e.data)).collect::<Vec<_>>()),
                Err(error) => reply.error(report(rq, header.offset, &error)),
            }
        }
        CommandPlan::Flush => ended(device.flush(rq).await),
        CommandPlan::Write { fua } if payload.is_empty() => ended(flush_if(device, rq, fua).await),
        CommandPlan::Write { fua } => ended(device.write(rq, header.offset, payload, fua).await),
        CommandPlan::Zero { holes, fua } => ended(zero(device, rq, header, holes, fua).await),
        CommandPlan::Trim { fua } => ended(device.unmap(rq, header.offset, header.length.into(), fua).await),
        CommandPlan::Refuse(errno) | CommandPlan::SkipAndRefuse(_, errno) => reply.error(errno),
        CommandPlan::Disconnect | CommandPlan::Close => Pieces::new(),
    }
}

/// Maps an error to the protocol's number and logs I/O errors, because the client sees only the number.
fn report(rq: &Request, offset: u64, error: &BlockError) -> Errno {
    match error {
        BlockError::Full(_) => Errno::Enospc,
        BlockError::ReadOnly => Errno::Eperm,
        BlockError::NotFound | BlockError::Io(_) => {
            tracing::warn!(client = rq.client.name(), operation = rq.operation.name(), offset, %error, "request failed with EIO");
            Errno::Eio
        }
    }
}

async fn flush_if(device: &dyn BlockDevice, rq: &Request, fua: bool) -> Result<(), BlockError> {
    if fua { device.flush(rq).await } else { Ok(()) }
}

async fn zero(
    device: &dyn BlockDevice,
    rq: &Request,
    header: &RequestHeader,
    holes: bool,
    fua: bool,
) -> Result<(), BlockError> {
    if holes {
        return device.write_zeroes(rq, header.offset, header.length.into(), fua).await;
    }
    let zeros = Bytes::from(vec![0; PIECE_BYTES.min(header.length) as usize]);
    for (at, len) in pieces_of(header.offset, header.length) {
        device.write(rq, at, zeros.slice(..len as usize), false).await?;
    }
    flush_if(device, rq, fua).await
}

/// Offset and length of the pieces of a range.
fn pieces_of(offset: u64, length: u32) -> impl Iterator<Item = (u64, u32)> {
    (0..length).step_by(PIECE_BYTES as usize).map(move |at| (offset + u64::from(at), PIECE_BYTES.min(length - at)))
}

async fn read_whole(device: &dyn BlockDevice, rq: &Request, offset: u64, length: u32) -> Result<Pieces, BlockError> {
    let block_bytes = device.block_bytes() as usize;
    let pieces = join_all(pieces_of(offset, length).map(|(at, len)| device.read(rq, at, len as usize))).await;
    pieces.into_iter().map(|piece| Ok(compact(piece?, block_bytes))).collect()
}

async fn cache(device: &dyn BlockDevice, rq: &Request, header: &RequestHeader) -> Result<(), BlockError> {
    for (at, len) in pieces_of(header.offset, header.length) {
        device.read(rq, at, len as usize).await?;
    }
    Ok(())
}

async fn read_by_extents(
    device: &dyn BlockDevice,
    rq: &Request,
    header: &RequestHeader,
    reply: ReplyEncoder,
) -> Pieces {
    // If the extents can't be read, treat the range as data; reads report their own errors.
    let extents = device.extents(rq, header.offset, header.length.into(), MAX_READ_EXTENTS).await.unwrap_or_default();
    let end = header.offset + u64::from(header.length);
    let mut at = header.offset;
    let mut holes = Vec::new();
    let mut data = Vec::new();
    for extent in extents {
        let len = extent.len_bytes.min(end - at) as u32;
        if extent.data {
            data.extend(pieces_of(at, len));
        } else if len != 0 {
            holes.push((at, len));
        }
        at += u64::from(len);
    }
    data.extend(pieces_of(at, (end - at) as u32));
    let read = join_all(data.iter().map(|(at, len)| device.read(rq, *at, *len as usize))).await;
    let mut out = Pieces::new();
    for (at, len) in holes {
        rq.answer(Source::Hole, len.into());
        out.push(reply.hole(at, len));
    }
    for ((at, _), result) in data.into_iter().zip(read) {
        match result {
            Ok(bytes) => out.extend(reply.data_chunk(0, at, compact(bytes, device.block_bytes() as usize))),
            Err(error) => out.push(reply.error_at(report(rq, at, &error), at)),
        }
    }
    out.push(reply.end());
    out
}

/// Encodes the reply to one request.
#[derive(Clone, Copy)]
struct ReplyEncoder {
    structured: bool,
    cookie: u64,
}

impl ReplyEncoder {
    fn done(self) -> Pieces {
        vec![if self.structured { self.end() } else { wire::simple_reply(self.cookie, 0).into() }]
    }

    fn error(self, errno: Errno) -> Pieces {
        if !self.structured {
            return vec![wire::simple_reply(self.cookie, errno as u32).into()];
        }
        let mut out = wire::chunk_head(self.cookie, wire::CHUNK_DONE, chunk::ERROR, 6);
        out.extend_from_slice(&(errno as u32).to_be_bytes());
        out.extend_from_slice(&0u16.to_be_bytes());
        vec![out.into()]
    }

    /// Replies to a READ with all data.
    fn data(self, offset: u64, pieces: Pieces) -> Pieces {
        let mut out = Vec::with_capacity(pieces.len() + 1);
        if !self.structured {
            out.push(wire::simple_reply(self.cookie, 0).into());
        } else {
            let len = pieces.iter().map(Bytes::len).sum::<usize>() as u32;
            if len == 0 {
                return self.done();
            }
            let mut head = wire::chunk_head(self.cookie, wire::CHUNK_DONE, chunk::OFFSET_DATA, len + 8);
            head.extend_from_slice(&offset.to_be_bytes());
            out.push(head.into());
        }
        out.extend(pieces);
        out
    }

    fn data_chunk(self, flags: u16, offset: u64, bytes: Bytes) -> [Bytes; 2] {
        let mut head = wire::chunk_head(self.cookie, flags, chunk::OFFSET_DATA, bytes.len() as u32 + 8);
        head.extend_from_slice(&offset.to_be_bytes());
        [head.into(), bytes]
    }

    fn hole(self, offset: u64, len: u32) -> Bytes {
        let mut out = wire::chunk_head(self.cookie, 0, chunk::OFFSET_HOLE, 12);
        out.extend_from_slice(&offset.to_be_bytes());
        out.extend_from_slice(&len.to_be_bytes());
        out.into()
    }

    fn error_at(self, errno: Errno, offset: u64) -> Bytes {
        let mut out = wire::chunk_head(self.cookie, 0, chunk::ERROR_OFFSET, 14);
        out.extend_from_slice(&(errno as u32).to_be_bytes());
        out.extend_from_slice(&0u16.to_be_bytes());
        out.extend_from_slice(&offset.to_be_bytes());
        out.into()
    }

    fn end(self) -> Bytes {
        wire::chunk_head(self.cookie, wire::CHUNK_DONE, chunk::NONE, 0).into()
    }

    fn status(self, extents: &[(u64, bool)]) -> Pieces {
        let mut out =
            wire::chunk_head(self.cookie, wire::CHUNK_DONE, chunk::BLOCK_STATUS, 4 + 8 * extents.len() as u32);
        out.extend_from_slice(&wire::BASE_ALLOCATION_ID.to_be_bytes());
        for (len, data) in extents {
            let flags = if *data { 0 } else { wire::STATE_HOLE | wire::STATE_ZERO };
            out.extend_from_slice(&u32::try_from(*len).unwrap_or(u32::MAX).to_be_bytes());
            out.extend_from_slice(&flags.to_be_bytes());
        }
        vec![out.into()]
    }
}

#[cfg(test)]
mod tests;

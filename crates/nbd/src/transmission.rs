//! The transmission phase: what a request asks for, decided purely, and its answer, which waits for the device alone.
//!
//! ```text
//!   header ─▶ plan ─▶ Refuse(errno) · Nothing · Read · Status · Cache · Skip(payload) then Refuse · Disconnect · Close
//! ```
//!
//! A structured READ answers by stretches: holes as OFFSET_HOLE, data in pieces as they come from the cache, a bad block
//! as an ERROR_OFFSET chunk for its piece alone while all other bytes arrive. A simple READ can only fail as a whole.

use crate::device::{Device, DeviceError};
use crate::handshake::Agreed;
use crate::wire::{self, Errno, RequestHeader, chunk, command};
use bytes::Bytes;
use futures_util::future::join_all;
use weir_machine::Request;

/// Data are read in pieces of this many bytes, side by side.
const PIECE_BYTES: u32 = 1 << 20;
/// The most extents in one answer to BLOCK_STATUS.
const MAX_EXTENTS: usize = 4096;
/// The most extents that a READ distinguishes; beyond, the rest is taken for data.
const MAX_READ_EXTENTS: usize = 256;
/// The most payload of a WRITE that is read only to be thrown away.
const MAX_PAYLOAD_BYTES: u32 = wire::MAX_TRANSFER_BYTES;

/// What to do with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Answer with an error.
    Refuse(Errno),
    /// Throw so many bytes of payload away, then answer with an error.
    SkipAndRefuse(u32, Errno),
    /// Answer that it is done.
    Done,
    /// Read the range.
    Read {
        /// All in one chunk.
        whole: bool,
    },
    /// Describe the range.
    Status {
        /// One extent is enough.
        one: bool,
    },
    /// Read the range and keep it to ourselves.
    Cache,
    /// The client says good-bye.
    Disconnect,
    /// The stream can't be followed any further.
    Close,
}

/// Decides what a request asks for.
pub fn plan(header: &RequestHeader, size_bytes: u64, agreed: &Agreed) -> Plan {
    let inside = header.offset.checked_add(header.length.into()).is_some_and(|end| end <= size_bytes);
    let known_flags = match header.command {
        command::READ if agreed.structured => wire::COMMAND_FLAG_DF,
        command::BLOCK_STATUS => wire::COMMAND_FLAG_REQ_ONE,
        // FUA, NO_HOLE and FAST_ZERO belong to writes, which are refused whatever their flags.
        command::WRITE | command::WRITE_ZEROES | command::TRIM => u16::MAX,
        _ => 0,
    };
    match header.command {
        command::WRITE if header.length > MAX_PAYLOAD_BYTES => Plan::Close,
        command::WRITE => Plan::SkipAndRefuse(header.length, Errno::Eperm),
        command::DISC => Plan::Disconnect,
        command::TRIM | command::WRITE_ZEROES => Plan::Refuse(Errno::Eperm),
        _ if header.flags & !known_flags != 0 => Plan::Refuse(Errno::Einval),
        command::FLUSH => Plan::Done,
        command::READ | command::CACHE if header.length > wire::MAX_TRANSFER_BYTES => Plan::Refuse(Errno::Eoverflow),
        command::READ | command::CACHE | command::BLOCK_STATUS if !inside => Plan::Refuse(Errno::Einval),
        command::READ => Plan::Read { whole: header.flags & wire::COMMAND_FLAG_DF != 0 },
        command::CACHE => Plan::Cache,
        command::BLOCK_STATUS if !agreed.allocation || header.length == 0 => Plan::Refuse(Errno::Einval),
        command::BLOCK_STATUS => Plan::Status { one: header.flags & wire::COMMAND_FLAG_REQ_ONE != 0 },
        _ => Plan::Refuse(Errno::Enotsup),
    }
}

/// How many bytes an answer may hold in memory until it is sent.
pub fn weight_bytes(plan: &Plan, header: &RequestHeader) -> u32 {
    match plan {
        Plan::Read { .. } => header.length,
        Plan::Cache => header.length.min(PIECE_BYTES),
        _ => 0,
    }
}

/// Bytes to be sent, in pieces.
pub type Pieces = Vec<Bytes>;

/// The answer to a request that was planned.
pub async fn answer(device: &dyn Device, rq: &Request, agreed: &Agreed, header: &RequestHeader, plan: Plan) -> Pieces {
    let reply = Replier { structured: agreed.structured, cookie: header.cookie };
    match plan {
        Plan::Read { whole } if agreed.structured && !whole => read_by_stretches(device, rq, header, reply).await,
        Plan::Read { .. } => match read_whole(device, rq, header.offset, header.length).await {
            Ok(pieces) => reply.data(header.offset, pieces),
            Err(error) => reply.error(report(rq, header.offset, &error)),
        },
        Plan::Cache => match cache(device, rq, header).await {
            Ok(()) => reply.done(),
            Err(error) => reply.error(report(rq, header.offset, &error)),
        },
        Plan::Status { one } => {
            let max = if one { 1 } else { MAX_EXTENTS };
            match device.extents(rq, header.offset, header.length, max).await {
                Ok(extents) => reply.status(&extents.iter().map(|e| (e.len_bytes, e.data)).collect::<Vec<_>>()),
                Err(error) => reply.error(report(rq, header.offset, &error)),
            }
        }
        Plan::Refuse(errno) | Plan::SkipAndRefuse(_, errno) => reply.error(errno),
        Plan::Done => reply.done(),
        Plan::Disconnect | Plan::Close => Pieces::new(),
    }
}

/// Logs why bytes are missing; the client sees a number alone.
fn report(rq: &Request, offset: u64, error: &DeviceError) -> Errno {
    tracing::warn!(client = %rq.client, operation = rq.operation, offset, %error, "answered with EIO");
    Errno::Eio
}

/// Start and length of the pieces of a range.
fn pieces_of(offset: u64, length: u32) -> impl Iterator<Item = (u64, u32)> {
    (0..length).step_by(PIECE_BYTES as usize).map(move |at| (offset + u64::from(at), PIECE_BYTES.min(length - at)))
}

async fn read_whole(device: &dyn Device, rq: &Request, offset: u64, length: u32) -> Result<Pieces, DeviceError> {
    join_all(pieces_of(offset, length).map(|(at, len)| device.read(rq, at, len))).await.into_iter().collect()
}

async fn cache(device: &dyn Device, rq: &Request, header: &RequestHeader) -> Result<(), DeviceError> {
    for (at, len) in pieces_of(header.offset, header.length) {
        device.read(rq, at, len).await?;
    }
    Ok(())
}

async fn read_by_stretches(device: &dyn Device, rq: &Request, header: &RequestHeader, reply: Replier) -> Pieces {
    // Where the map can't be read, the data may still be: the device says so itself.
    let extents = device.extents(rq, header.offset, header.length, MAX_READ_EXTENTS).await.unwrap_or_default();
    let end = header.offset + u64::from(header.length);
    let (mut at, mut holes, mut data) = (header.offset, Vec::new(), Vec::new());
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
    let read = join_all(data.iter().map(|(at, len)| device.read(rq, *at, *len))).await;
    let mut out = Pieces::new();
    for (at, len) in holes {
        out.push(reply.hole(at, len));
    }
    for ((at, _), result) in data.into_iter().zip(read) {
        match result {
            Ok(bytes) => out.extend(reply.data_chunk(0, at, bytes)),
            Err(error) => out.push(reply.error_at(report(rq, at, &error), at)),
        }
    }
    out.push(reply.end());
    out
}

/// Encodes replies to one request.
#[derive(Clone, Copy)]
struct Replier {
    structured: bool,
    cookie: u64,
}

impl Replier {
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

    /// All data of a READ at once.
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

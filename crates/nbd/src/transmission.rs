//! The transmission phase: what a request asks for, decided purely, and its answer, which waits for the device alone.
//!
//! ```text
//!   header ─▶ plan ─▶ Refuse(errno) · Flush · Read · Status · Cache · Disconnect · Close
//!                     Write(payload) · Zero · Trim  ─▶ and a flush, if FUA
//!                     Skip(payload) then Refuse
//! ```
//!
//! A structured READ answers by stretches: holes as OFFSET_HOLE, data in pieces as they come from the cache, a bad block
//! as an ERROR_OFFSET chunk for its piece alone while all other bytes arrive. A simple READ can only fail as a whole.
//!
//! **Stable** is what a FLUSH, or a request with FUA, was answered for: both end in [`Device::flush`]. TRIM is rounded
//! inwards to blocks, for it promises nothing; WRITE_ZEROES is exact. With NO_HOLE the zeros are written like data, which
//! is never faster than a write: with FAST_ZERO as well the answer is ENOTSUP at once, and otherwise zeroing is fast.

use crate::device::{Device, DeviceError};
use crate::handshake::Agreed;
use crate::wire::{self, Errno, RequestHeader, chunk, command};
use bytes::Bytes;
use futures_util::future::join_all;
use weir_machine::{Request, lean};

/// Data are read in pieces of this many bytes, side by side.
const PIECE_BYTES: u32 = 1 << 20;
/// The most extents in one answer to BLOCK_STATUS.
const MAX_EXTENTS: usize = 4096;
/// Bytes of one of them.
const EXTENT_BYTES: u32 = 8;
/// The most extents that a READ distinguishes; beyond, the rest is taken for data.
const MAX_READ_EXTENTS: usize = 256;
/// The most payload of a WRITE; beyond, the stream is given up.
const MAX_PAYLOAD_BYTES: u32 = wire::MAX_TRANSFER_BYTES;

/// What to do with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Answer with an error.
    Refuse(Errno),
    /// Throw so many bytes of payload away, then answer with an error.
    SkipAndRefuse(u32, Errno),
    /// Bring everything to stable storage.
    Flush,
    /// Write the payload, which follows the header.
    Write {
        /// Stable before the answer.
        fua: bool,
    },
    /// Make the range read as zeros.
    Zero {
        /// Blocks may be given back.
        holes: bool,
        /// Stable before the answer.
        fua: bool,
    },
    /// Give back the blocks that lie in the range whole.
    Trim {
        /// Stable before the answer.
        fua: bool,
    },
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
    let changes = matches!(header.command, command::WRITE | command::WRITE_ZEROES | command::TRIM);
    if changes && !(agreed.writable && inside) {
        let errno = match header.command {
            _ if !agreed.writable => Errno::Eperm,
            command::TRIM => Errno::Einval,
            _ => Errno::Enospc,
        };
        return refuse(header, errno);
    }
    if header.flags & !known_flags(header.command, agreed) != 0 {
        return refuse(header, Errno::Einval);
    }
    let flag = |bit| header.flags & bit != 0;
    let (fua, holes) = (flag(wire::COMMAND_FLAG_FUA), !flag(wire::COMMAND_FLAG_NO_HOLE));
    match header.command {
        command::WRITE if header.length > MAX_PAYLOAD_BYTES => Plan::Close,
        command::WRITE => Plan::Write { fua },
        command::WRITE_ZEROES if flag(wire::COMMAND_FLAG_FAST_ZERO) && !holes => Plan::Refuse(Errno::Enotsup),
        command::WRITE_ZEROES => Plan::Zero { holes, fua },
        command::TRIM => Plan::Trim { fua },
        command::DISC => Plan::Disconnect,
        command::FLUSH => Plan::Flush,
        command::READ | command::CACHE if header.length > wire::MAX_TRANSFER_BYTES => Plan::Refuse(Errno::Eoverflow),
        command::READ | command::CACHE | command::BLOCK_STATUS if !inside => Plan::Refuse(Errno::Einval),
        command::READ => Plan::Read { whole: flag(wire::COMMAND_FLAG_DF) },
        command::CACHE => Plan::Cache,
        command::BLOCK_STATUS if !agreed.allocation || header.length == 0 => Plan::Refuse(Errno::Einval),
        command::BLOCK_STATUS => Plan::Status { one: flag(wire::COMMAND_FLAG_REQ_ONE) },
        _ => Plan::Refuse(Errno::Enotsup),
    }
}

/// Refuses a request; the payload of a WRITE comes all the same and has to be read away.
fn refuse(header: &RequestHeader, errno: Errno) -> Plan {
    match header.command {
        command::WRITE if header.length > MAX_PAYLOAD_BYTES => Plan::Close,
        command::WRITE => Plan::SkipAndRefuse(header.length, errno),
        _ => Plan::Refuse(errno),
    }
}

/// The flags that a command may carry. FUA may stand with any command once it was offered.
fn known_flags(command: u16, agreed: &Agreed) -> u16 {
    let fua = if agreed.writable { wire::COMMAND_FLAG_FUA } else { 0 };
    let own = match command {
        command::READ if agreed.structured => wire::COMMAND_FLAG_DF,
        command::BLOCK_STATUS => wire::COMMAND_FLAG_REQ_ONE,
        command::WRITE_ZEROES => wire::COMMAND_FLAG_NO_HOLE | wire::COMMAND_FLAG_FAST_ZERO,
        // Saying good-bye needs no answer, so nothing about it can be wrong.
        command::DISC => u16::MAX,
        _ => 0,
    };
    fua | own
}

/// How many bytes a request and its answer may hold in memory until the answer is sent.
pub fn weight_bytes(plan: &Plan, header: &RequestHeader) -> u32 {
    match plan {
        Plan::Read { .. } | Plan::Write { .. } => header.length,
        Plan::Cache | Plan::Zero { holes: false, .. } => header.length.min(PIECE_BYTES),
        Plan::Status { one: false } => MAX_EXTENTS as u32 * EXTENT_BYTES,
        _ => 0,
    }
}

/// Bytes to be sent, in pieces.
pub type Pieces = Vec<Bytes>;

/// The answer to a request that was planned. `payload` is what followed a WRITE's header, else nothing.
pub async fn answer(
    device: &dyn Device,
    rq: &Request,
    agreed: &Agreed,
    header: &RequestHeader,
    plan: Plan,
    payload: Bytes,
) -> Pieces {
    let reply = Replier { structured: agreed.structured, cookie: header.cookie };
    let ended = |result: Result<(), DeviceError>| match result {
        Ok(()) => reply.done(),
        Err(error) => reply.error(report(rq, header.offset, &error)),
    };
    match plan {
        Plan::Read { whole } if agreed.structured && !whole => read_by_stretches(device, rq, header, reply).await,
        Plan::Read { .. } => match read_whole(device, rq, header.offset, header.length).await {
            Ok(pieces) => reply.data(header.offset, pieces),
            Err(error) => reply.error(report(rq, header.offset, &error)),
        },
        Plan::Cache => ended(cache(device, rq, header).await),
        Plan::Status { one } => {
            let max = if one { 1 } else { MAX_EXTENTS };
            match device.extents(rq, header.offset, header.length, max).await {
                Ok(extents) => reply.status(&extents.iter().map(|e| (e.len_bytes, e.data)).collect::<Vec<_>>()),
                Err(error) => reply.error(report(rq, header.offset, &error)),
            }
        }
        Plan::Flush => ended(device.flush(rq).await),
        Plan::Write { fua } => {
            let written = async {
                if !payload.is_empty() {
                    device.write(rq, header.offset, payload).await?;
                }
                flush_if(device, rq, fua).await
            };
            ended(written.await)
        }
        Plan::Zero { holes, fua } => ended(zero(device, rq, header, holes, fua).await),
        Plan::Trim { fua } => ended(trim(device, rq, header, fua).await),
        Plan::Refuse(errno) | Plan::SkipAndRefuse(_, errno) => reply.error(errno),
        Plan::Disconnect | Plan::Close => Pieces::new(),
    }
}

/// The protocol's number for an error; logs why bytes are missing, for the client sees the number alone.
fn report(rq: &Request, offset: u64, error: &DeviceError) -> Errno {
    match error {
        DeviceError::Full(_) => Errno::Enospc,
        DeviceError::ReadOnly => Errno::Eperm,
        DeviceError::Failed(_) => {
            tracing::warn!(client = %rq.client, operation = rq.operation, offset, %error, "answered with EIO");
            Errno::Eio
        }
    }
}

async fn flush_if(device: &dyn Device, rq: &Request, fua: bool) -> Result<(), DeviceError> {
    if fua { device.flush(rq).await } else { Ok(()) }
}

async fn zero(
    device: &dyn Device,
    rq: &Request,
    header: &RequestHeader,
    holes: bool,
    fua: bool,
) -> Result<(), DeviceError> {
    if holes {
        device.zero(rq, header.offset, header.length).await?;
    } else {
        let zeros = Bytes::from(vec![0; PIECE_BYTES.min(header.length) as usize]);
        for (at, len) in pieces_of(header.offset, header.length) {
            device.write(rq, at, zeros.slice(..len as usize)).await?;
        }
    }
    flush_if(device, rq, fua).await
}

async fn trim(device: &dyn Device, rq: &Request, header: &RequestHeader, fua: bool) -> Result<(), DeviceError> {
    let block = u64::from(device.block_bytes().max(1));
    let end = header.offset + u64::from(header.length);
    let start = header.offset.next_multiple_of(block);
    // The last block of a device may be a short one.
    let end = if end == device.size_bytes() { end } else { end / block * block };
    if let Some(len) = end.checked_sub(start).and_then(|len| u32::try_from(len).ok()).filter(|len| *len != 0) {
        device.zero(rq, start, len).await?;
    }
    flush_if(device, rq, fua).await
}

/// Start and length of the pieces of a range.
fn pieces_of(offset: u64, length: u32) -> impl Iterator<Item = (u64, u32)> {
    (0..length).step_by(PIECE_BYTES as usize).map(move |at| (offset + u64::from(at), PIECE_BYTES.min(length - at)))
}

async fn read_whole(device: &dyn Device, rq: &Request, offset: u64, length: u32) -> Result<Pieces, DeviceError> {
    let block_bytes = device.block_bytes() as usize;
    let pieces = join_all(pieces_of(offset, length).map(|(at, len)| device.read(rq, at, len))).await;
    pieces.into_iter().map(|piece| Ok(lean(piece?, block_bytes))).collect()
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
            Ok(bytes) => out.extend(reply.data_chunk(0, at, lean(bytes, device.block_bytes() as usize))),
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

//! Wire format of the NBD protocol: constants, request headers, reply encodings.
//!
//! Everything is big-endian. Source of the facts: `doc/proto.md` of the NetworkBlockDevice/nbd repository.
//!
//! ```text
//! request          magic 25609513 | command flags u16 | type u16 | cookie u64 | offset u64 | length u32   (28 bytes)
//! simple reply     magic 67446698 | error u32 | cookie u64 | data
//! structured chunk magic 668e33ef | flags u16 | type u16 | cookie u64 | length u32 | payload
//! option           "IHAVEOPT" | option u32 | length u32 | data
//! option reply     magic 0003e889045565a9 | option u32 | type u32 | length u32 | data
//! ```
//!
//! Decoders are total: any input yields a value or `None`, and lengths announced by the peer allocate nothing.

/// `NBDMAGIC`, the first eight bytes of the server.
pub const MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`, before each option and as the server's second magic.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Magic of a reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Magic of a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Magic of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Magic of a chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Size of a request header in bytes.
pub const REQUEST_BYTES: usize = 28;
/// Maximum length of a READ and maximum payload of a WRITE, in bytes.
pub const MAX_TRANSFER_BYTES: u32 = 32 << 20;
/// Maximum length of an export name in bytes.
pub const MAX_NAME_BYTES: usize = 4096;

/// Handshake flag (both sides): fixed newstyle.
pub const FLAG_FIXED_NEWSTYLE: u16 = 1;
/// Handshake flag (both sides): no 124 zero bytes after EXPORT_NAME.
pub const FLAG_NO_ZEROES: u16 = 2;

/// Transmission flag: the other flags are valid.
pub const FLAG_HAS_FLAGS: u16 = 1;
/// Transmission flag: the export is read-only.
pub const FLAG_READ_ONLY: u16 = 1 << 1;
/// Transmission flag: FLUSH is supported.
pub const FLAG_SEND_FLUSH: u16 = 1 << 2;
/// Transmission flag: the FUA command flag is supported.
pub const FLAG_SEND_FUA: u16 = 1 << 3;
/// Transmission flag: TRIM is supported.
pub const FLAG_SEND_TRIM: u16 = 1 << 5;
/// Transmission flag: WRITE_ZEROES is supported.
pub const FLAG_SEND_WRITE_ZEROES: u16 = 1 << 6;
/// Transmission flag: the DF command flag is supported (structured replies only).
pub const FLAG_SEND_DF: u16 = 1 << 7;
/// Transmission flag: several connections see the same bytes.
pub const FLAG_CAN_MULTI_CONN: u16 = 1 << 8;
/// Transmission flag: CACHE is supported.
pub const FLAG_SEND_CACHE: u16 = 1 << 10;
/// Transmission flag: the FAST_ZERO command flag is supported.
pub const FLAG_SEND_FAST_ZERO: u16 = 1 << 11;

/// Options of the handshake.
pub mod option {
    /// Choose an export and begin, without a reply.
    pub const EXPORT_NAME: u32 = 1;
    /// End the session.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Choose an export and begin.
    pub const GO: u32 = 7;
    /// Switch structured replies on.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Types of replies to options.
pub mod reply {
    /// Done.
    pub const ACK: u32 = 1;
    /// One export.
    pub const SERVER: u32 = 2;
    /// One piece of information.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The option is unknown or unsupported.
    pub const ERR_UNSUP: u32 = (1 << 31) | 1;
    /// The server's policy forbids the option.
    pub const ERR_POLICY: u32 = (1 << 31) | 2;
    /// The option's data are malformed.
    pub const ERR_INVALID: u32 = (1 << 31) | 3;
    /// TLS must be started first.
    pub const ERR_TLS_REQUIRED: u32 = (1 << 31) | 5;
    /// No such export.
    pub const ERR_UNKNOWN: u32 = (1 << 31) | 6;
    /// The option's data are too long.
    pub const ERR_TOO_BIG: u32 = (1 << 31) | 9;
}

/// Kinds of information in replies to INFO and GO.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The export's canonical name.
    pub const NAME: u16 = 1;
    /// A human-readable description.
    pub const DESCRIPTION: u16 = 2;
    /// Block sizes.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Commands of the transmission phase.
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write.
    pub const WRITE: u16 = 1;
    /// End the session.
    pub const DISC: u16 = 2;
    /// Make writes durable.
    pub const FLUSH: u16 = 3;
    /// Discard a range.
    pub const TRIM: u16 = 4;
    /// Read a range into the cache.
    pub const CACHE: u16 = 5;
    /// Zero a range.
    pub const WRITE_ZEROES: u16 = 6;
    /// Report the allocation of a range.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Command flag: reply after the change is on stable storage.
pub const COMMAND_FLAG_FUA: u16 = 1;
/// Command flag of WRITE_ZEROES: allocate the range.
pub const COMMAND_FLAG_NO_HOLE: u16 = 1 << 1;
/// Command flag: one contiguous chunk.
pub const COMMAND_FLAG_DF: u16 = 1 << 2;
/// Command flag: only one extent is wanted.
pub const COMMAND_FLAG_REQ_ONE: u16 = 1 << 3;
/// Command flag of WRITE_ZEROES: fail immediately unless zeroing is faster than writing.
pub const COMMAND_FLAG_FAST_ZERO: u16 = 1 << 4;

/// Chunk flag: the last chunk of a reply.
pub const CHUNK_DONE: u16 = 1;

/// Types of chunks.
pub mod chunk {
    /// No payload.
    pub const NONE: u16 = 0;
    /// Offset and data.
    pub const OFFSET_DATA: u16 = 1;
    /// Offset and length of zeros.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents of a metadata context.
    pub const BLOCK_STATUS: u16 = 5;
    /// An error of the whole request.
    pub const ERROR: u16 = (1 << 15) | 1;
    /// An error at an offset.
    pub const ERROR_OFFSET: u16 = (1 << 15) | 2;
}

/// `base:allocation`: the extent is not allocated.
pub const STATE_HOLE: u32 = 1;
/// `base:allocation`: the extent reads as zeros.
pub const STATE_ZERO: u32 = 2;
/// The only supported metadata context.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// ID of that context after negotiation.
pub const BASE_ALLOCATION_ID: u32 = 1;

/// Error numbers of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// Not permitted: the export is read-only.
    Eperm = 1,
    /// I/O error.
    Eio = 5,
    /// Invalid request.
    Einval = 22,
    /// No space left, or a write past the end of the device.
    Enospc = 28,
    /// The request is larger than the limits.
    Eoverflow = 75,
    /// Not supported.
    Enotsup = 95,
}

/// The header of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// Command flags.
    pub flags: u16,
    /// One of [`command`].
    pub command: u16,
    /// Request ID chosen by the client and returned in the reply.
    pub cookie: u64,
    /// Offset in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u32,
}

impl RequestHeader {
    /// Decodes a header; `None` if the magic is wrong or the input is too short.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        if reader.u32()? != REQUEST_MAGIC {
            return None;
        }
        Some(RequestHeader {
            flags: reader.u16()?,
            command: reader.u16()?,
            cookie: reader.u64()?,
            offset: reader.u64()?,
            length: reader.u32()?,
        })
    }

    /// Encodes a header as a client does.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(REQUEST_BYTES);
        out.extend_from_slice(&REQUEST_MAGIC.to_be_bytes());
        out.extend_from_slice(&self.flags.to_be_bytes());
        out.extend_from_slice(&self.command.to_be_bytes());
        out.extend_from_slice(&self.cookie.to_be_bytes());
        out.extend_from_slice(&self.offset.to_be_bytes());
        out.extend_from_slice(&self.length.to_be_bytes());
        out
    }
}

/// A big-endian reader over untrusted bytes.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    /// Takes the next `len` bytes.
    pub fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    /// The next 16 bits.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// The next 32 bits.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// The next 64 bits.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A string: its length in 32 bits, then its UTF-8 bytes, at most [`MAX_NAME_BYTES`].
    pub fn string(&mut self) -> Option<&'a str> {
        let len = self.u32()? as usize;
        if len > MAX_NAME_BYTES {
            return None;
        }
        std::str::from_utf8(self.take(len)?).ok()
    }

    /// The bytes that are not decoded yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

/// Appends a reply to an option.
pub fn option_reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&(data.len() as u32).to_be_bytes());
    out.extend_from_slice(data);
}

/// Encodes a simple reply; `error` is 0 for success, in which case the data follow.
pub fn simple_reply(cookie: u64, error: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(16);
    out.extend_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&error.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
    out
}

/// Encodes the head of a chunk; its payload of `length` bytes follows.
pub fn chunk_head(cookie: u64, flags: u16, kind: u16, length: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(36);
    out.extend_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&flags.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(&length.to_be_bytes());
    out
}

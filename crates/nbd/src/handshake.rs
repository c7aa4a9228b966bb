//! The handshake: fixed newstyle, as a pure state machine. Bytes in, bytes and the next wish out.
//!
//! ```text
//!   greeting ──▶ client flags ──▶ option header ──▶ option data ──▶ option header …
//!                                      │                │
//!                                      └── too long ─▶ skip, ERR_TOO_BIG
//!   EXPORT_NAME / GO of a known name ──▶ Serve          ABORT, nonsense ──▶ Close
//! ```
//!
//! Memory is bounded by [`MAX_OPTION_BYTES`]; the number of options in one handshake by [`MAX_OPTIONS`].

use crate::wire::{self, Reader, info, option, reply};

/// The longest option data that are read; longer ones are skipped and refused.
pub const MAX_OPTION_BYTES: u32 = 64 << 10;
/// How many options a client may send before it is taken for a babbler.
pub const MAX_OPTIONS: u32 = 1024;
/// How much is skipped for the sake of an over-long option before the connection is closed.
const MAX_SKIP_BYTES: u32 = 32 << 20;

/// What the handshake needs to know of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Its name: the volume's.
    pub name: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// The block size that reads best, in bytes.
    pub block_bytes: u32,
    /// Whether the device can be written.
    pub writable: bool,
}

/// The exports, as the handshake sees them.
pub trait Directory {
    /// The names of all exports.
    fn names(&self) -> Vec<String>;
    /// One export; the empty name asks for the default one.
    fn find(&self, name: &str) -> Option<ExportInfo>;
}

/// What was agreed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The export's name.
    pub export: String,
    /// Structured replies.
    pub structured: bool,
    /// `base:allocation` was chosen for this export.
    pub allocation: bool,
    /// The client was told that it may write.
    pub writable: bool,
}

/// What to do after sending [`Turn::send`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Read exactly so many bytes and come back with them.
    Read(usize),
    /// Throw so many bytes away and come back with none.
    Skip(u32),
    /// Begin transmission.
    Serve(Agreed),
    /// Close the connection.
    Close,
}

/// One turn of the conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Bytes to send first.
    pub send: Vec<u8>,
    /// Then what.
    pub next: Next,
}

#[derive(Clone, Copy, Debug)]
enum State {
    ClientFlags,
    OptionHeader,
    OptionData { option: u32 },
    Skipping { option: u32 },
}

/// The state of one handshake.
#[derive(Debug)]
pub struct Handshake {
    state: State,
    may_write: bool,
    no_zeroes: bool,
    structured: bool,
    allocation_for: Option<String>,
    options: u32,
}

const OPTION_HEADER_BYTES: usize = 16;

impl Handshake {
    /// Begins: the greeting, then four bytes of client flags are wanted. `may_write` says whether this client may write
    /// at all.
    pub fn begin(may_write: bool) -> (Self, Turn) {
        let mut send = Vec::with_capacity(18);
        send.extend_from_slice(&wire::MAGIC.to_be_bytes());
        send.extend_from_slice(&wire::OPTION_MAGIC.to_be_bytes());
        send.extend_from_slice(&(wire::FLAG_FIXED_NEWSTYLE | wire::FLAG_NO_ZEROES).to_be_bytes());
        let handshake = Handshake {
            state: State::ClientFlags,
            may_write,
            no_zeroes: false,
            structured: false,
            allocation_for: None,
            options: 0,
        };
        (handshake, Turn { send, next: Next::Read(4) })
    }

    /// Takes the bytes that the last turn wished for.
    pub fn take(&mut self, directory: &dyn Directory, bytes: &[u8]) -> Turn {
        match self.state {
            State::ClientFlags => self.client_flags(bytes),
            State::OptionHeader => self.option_header(directory, bytes).unwrap_or(close()),
            State::OptionData { option } => self.option(directory, option, bytes),
            State::Skipping { option } => self.refuse(option, reply::ERR_TOO_BIG, "the option's data are too long"),
        }
    }

    fn client_flags(&mut self, bytes: &[u8]) -> Turn {
        let known = u32::from(wire::FLAG_FIXED_NEWSTYLE | wire::FLAG_NO_ZEROES);
        match Reader::new(bytes).u32() {
            Some(flags) if flags & !known == 0 => {
                self.no_zeroes = flags & u32::from(wire::FLAG_NO_ZEROES) != 0;
                self.next_option(Vec::new())
            }
            _ => close(),
        }
    }

    fn option_header(&mut self, directory: &dyn Directory, bytes: &[u8]) -> Option<Turn> {
        let mut reader = Reader::new(bytes);
        if reader.u64()? != wire::OPTION_MAGIC {
            return None;
        }
        let (option, length) = (reader.u32()?, reader.u32()?);
        self.options += 1;
        if self.options > MAX_OPTIONS || length > MAX_SKIP_BYTES {
            return None;
        }
        if length > MAX_OPTION_BYTES {
            self.state = State::Skipping { option };
            return Some(Turn { send: Vec::new(), next: Next::Skip(length) });
        }
        if length == 0 {
            return Some(self.option(directory, option, &[]));
        }
        self.state = State::OptionData { option };
        Some(Turn { send: Vec::new(), next: Next::Read(length as usize) })
    }

    fn option(&mut self, directory: &dyn Directory, option: u32, data: &[u8]) -> Turn {
        match option {
            option::EXPORT_NAME => self.export_name(directory, data),
            option::ABORT => {
                let mut send = Vec::new();
                wire::option_reply(&mut send, option, reply::ACK, &[]);
                Turn { send, next: Next::Close }
            }
            option::LIST => self.list(directory, data),
            option::INFO | option::GO => self.info(directory, option, data),
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                self.acknowledge(option, Vec::new())
            }
            option::STRUCTURED_REPLY => self.refuse(option, reply::ERR_INVALID, "no data expected"),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(directory, option, data),
            option::STARTTLS => self.refuse(option, reply::ERR_UNSUP, "TLS is not offered"),
            _ => self.refuse(option, reply::ERR_UNSUP, "unknown option"),
        }
    }

    /// EXPORT_NAME has no way to say no but to close.
    fn export_name(&mut self, directory: &dyn Directory, data: &[u8]) -> Turn {
        let found = std::str::from_utf8(data).ok().filter(|n| n.len() <= wire::MAX_NAME_BYTES);
        let Some(export) = found.and_then(|name| directory.find(name)) else { return close() };
        let mut send = Vec::with_capacity(134);
        send.extend_from_slice(&export.size_bytes.to_be_bytes());
        send.extend_from_slice(&self.transmission_flags(&export).to_be_bytes());
        if !self.no_zeroes {
            send.extend_from_slice(&[0; 124]);
        }
        Turn { send, next: Next::Serve(self.agreed(&export)) }
    }

    fn list(&mut self, directory: &dyn Directory, data: &[u8]) -> Turn {
        if !data.is_empty() {
            return self.refuse(option::LIST, reply::ERR_INVALID, "no data expected");
        }
        let mut send = Vec::new();
        for name in directory.names() {
            let mut entry = (name.len() as u32).to_be_bytes().to_vec();
            entry.extend_from_slice(name.as_bytes());
            wire::option_reply(&mut send, option::LIST, reply::SERVER, &entry);
        }
        self.acknowledge(option::LIST, send)
    }

    fn info(&mut self, directory: &dyn Directory, option: u32, data: &[u8]) -> Turn {
        let Some((name, wants)) = info_request(data) else {
            return self.refuse(option, reply::ERR_INVALID, "malformed request");
        };
        let Some(export) = directory.find(name) else {
            return self.refuse(option, reply::ERR_UNKNOWN, "no such export");
        };
        let mut send = Vec::new();
        let mut about = info::EXPORT.to_be_bytes().to_vec();
        about.extend_from_slice(&export.size_bytes.to_be_bytes());
        about.extend_from_slice(&self.transmission_flags(&export).to_be_bytes());
        wire::option_reply(&mut send, option, reply::INFO, &about);
        if wants.contains(&info::NAME) {
            let mut about = info::NAME.to_be_bytes().to_vec();
            about.extend_from_slice(export.name.as_bytes());
            wire::option_reply(&mut send, option, reply::INFO, &about);
        }
        if wants.contains(&info::DESCRIPTION) {
            let mut about = info::DESCRIPTION.to_be_bytes().to_vec();
            about.extend_from_slice(self.description(&export).as_bytes());
            wire::option_reply(&mut send, option, reply::INFO, &about);
        }
        // Always said, also unasked: a client that learns of it asks for better shapes, and none is bound to obey.
        let mut about = info::BLOCK_SIZE.to_be_bytes().to_vec();
        let preferred = export.block_bytes.next_power_of_two().clamp(512, wire::MAX_TRANSFER_BYTES);
        for size in [1, preferred, wire::MAX_TRANSFER_BYTES] {
            about.extend_from_slice(&size.to_be_bytes());
        }
        wire::option_reply(&mut send, option, reply::INFO, &about);
        let mut turn = self.acknowledge(option, send);
        if option == option::GO {
            turn.next = Next::Serve(self.agreed(&export));
        }
        turn
    }

    fn meta_context(&mut self, directory: &dyn Directory, option: u32, data: &[u8]) -> Turn {
        let set = option == option::SET_META_CONTEXT;
        if set {
            // A failed or repeated choice undoes the earlier one.
            self.allocation_for = None;
        }
        if !self.structured {
            return self.refuse(option, reply::ERR_INVALID, "structured replies first");
        }
        let Some((name, queries)) = meta_request(data) else {
            return self.refuse(option, reply::ERR_INVALID, "malformed request");
        };
        let Some(export) = directory.find(name) else {
            return self.refuse(option, reply::ERR_UNKNOWN, "no such export");
        };
        let matches = |q: &str| q == wire::BASE_ALLOCATION || (!set && q == "base:");
        let chosen = queries.iter().any(|q| matches(q)) || (!set && queries.is_empty());
        let mut send = Vec::new();
        if chosen {
            let id = if set { wire::BASE_ALLOCATION_ID } else { 0 };
            let mut context = id.to_be_bytes().to_vec();
            context.extend_from_slice(wire::BASE_ALLOCATION.as_bytes());
            wire::option_reply(&mut send, option, reply::META_CONTEXT, &context);
            if set {
                self.allocation_for = Some(export.name);
            }
        }
        self.acknowledge(option, send)
    }

    fn agreed(&self, export: &ExportInfo) -> Agreed {
        let allocation = self.allocation_for.as_ref() == Some(&export.name);
        let writable = self.is_writable(export);
        Agreed { export: export.name.clone(), structured: self.structured, allocation, writable }
    }

    fn is_writable(&self, export: &ExportInfo) -> bool {
        self.may_write && export.writable
    }

    fn description(&self, export: &ExportInfo) -> String {
        let how = if self.is_writable(export) { "" } else { ", read-only" };
        format!("ZFS volume {}{how}", export.name)
    }

    fn transmission_flags(&self, export: &ExportInfo) -> u16 {
        let always = wire::FLAG_HAS_FLAGS | wire::FLAG_SEND_FLUSH | wire::FLAG_CAN_MULTI_CONN | wire::FLAG_SEND_CACHE;
        let writing = match self.is_writable(export) {
            true => {
                wire::FLAG_SEND_FUA | wire::FLAG_SEND_TRIM | wire::FLAG_SEND_WRITE_ZEROES | wire::FLAG_SEND_FAST_ZERO
            }
            false => wire::FLAG_READ_ONLY,
        };
        always | writing | if self.structured { wire::FLAG_SEND_DF } else { 0 }
    }

    fn next_option(&mut self, send: Vec<u8>) -> Turn {
        self.state = State::OptionHeader;
        Turn { send, next: Next::Read(OPTION_HEADER_BYTES) }
    }

    fn acknowledge(&mut self, option: u32, mut send: Vec<u8>) -> Turn {
        wire::option_reply(&mut send, option, reply::ACK, &[]);
        self.next_option(send)
    }

    fn refuse(&mut self, option: u32, kind: u32, why: &str) -> Turn {
        let mut send = Vec::new();
        wire::option_reply(&mut send, option, kind, why.as_bytes());
        self.next_option(send)
    }
}

fn close() -> Turn {
    Turn { send: Vec::new(), next: Next::Close }
}

/// Name and wished kinds of information of INFO and GO.
fn info_request(data: &[u8]) -> Option<(&str, Vec<u16>)> {
    let mut reader = Reader::new(data);
    let name = reader.string()?;
    let count = usize::from(reader.u16()?);
    if reader.rest().len() != count.checked_mul(2)? {
        return None;
    }
    let wants = (0..count).map_while(|_| reader.u16()).collect();
    Some((name, wants))
}

/// Name and queries of LIST_META_CONTEXT and SET_META_CONTEXT.
fn meta_request(data: &[u8]) -> Option<(&str, Vec<&str>)> {
    let mut reader = Reader::new(data);
    let name = reader.string()?;
    let count = reader.u32()? as usize;
    // Each query takes four bytes at least: a forged count allocates nothing beyond the data at hand.
    if count > reader.rest().len() / 4 {
        return None;
    }
    let queries = (0..count).map(|_| reader.string()).collect::<Option<Vec<_>>>()?;
    reader.rest().is_empty().then_some((name, queries))
}

#[cfg(test)]
mod tests;

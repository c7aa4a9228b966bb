//! The fixed newstyle handshake as a pure state machine: each step takes the client's bytes and returns bytes to send
//! and the next action.
//!
//! ```text
//!   greeting ──▶ client flags ──▶ option header ──▶ option data ──▶ option header …
//!                                      │                │
//!                                      └── too long ─▶ skip, ERR_TOO_BIG
//!   STARTTLS ──▶ acknowledged ─▶ StartTls: all that was negotiated before is forgotten
//!   EXPORT_NAME / GO of a known name ──▶ Serve          ABORT, malformed ──▶ Close
//! ```
//!
//! Memory is bounded by [`MAX_OPTION_BYTES`]; the number of options in one handshake by [`MAX_OPTIONS`].

use crate::wire::{self, Reader, info, option, reply};
use weir_front::{BlockExport, BlockExports};

/// Maximum length of option data in bytes; longer data are skipped and rejected.
pub const MAX_OPTION_BYTES: u32 = 64 << 10;
/// Maximum number of options; a client that sends more is disconnected.
pub const MAX_OPTIONS: u32 = 1024;
/// Maximum length in bytes of rejected option data that are skipped; longer data end the connection.
const MAX_SKIP_BYTES: u32 = 32 << 20;

/// Whether connections are encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// TLS is not offered.
    #[default]
    Off,
    /// The client chooses.
    Allowed,
    /// Nothing is negotiated without TLS.
    Required,
}

/// Result of the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// The export's name.
    pub export: String,
    /// Structured replies were negotiated.
    pub structured: bool,
    /// `base:allocation` was selected for this export.
    pub allocation: bool,
    /// The export was offered as writable.
    pub writable: bool,
}

/// The server's action after sending [`HandshakeStep::send`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextAction {
    /// Read exactly this many bytes and pass them to [`Handshake::receive`].
    Read(usize),
    /// Discard this many bytes, then call [`Handshake::receive`] with none.
    Skip(u32),
    /// Start TLS on the connection, then read [`OPTION_HEADER_BYTES`] over it and pass them to [`Handshake::receive`].
    StartTls,
    /// Start the transmission phase.
    Serve(Negotiated),
    /// Close the connection.
    Close,
}

/// One step of the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandshakeStep {
    /// Bytes to send first.
    pub send: Vec<u8>,
    /// Action after that.
    pub next: NextAction,
}

#[derive(Clone, Copy, Debug)]
enum HandshakeState {
    ClientFlags,
    OptionHeader,
    OptionData { option: u32 },
    Skipping { option: u32 },
}

/// HandshakeState of one handshake.
#[derive(Debug)]
pub struct Handshake {
    state: HandshakeState,
    tls: TlsMode,
    is_encrypted: bool,
    no_zeroes: bool,
    structured: bool,
    allocation_for: Option<String>,
    options: u32,
}

/// Length of an option's header in bytes.
pub const OPTION_HEADER_BYTES: usize = 16;

impl Handshake {
    /// Starts a handshake: sends the greeting and expects four bytes of client flags.
    pub fn begin(tls: TlsMode) -> (Self, HandshakeStep) {
        let mut send = Vec::with_capacity(18);
        send.extend_from_slice(&wire::MAGIC.to_be_bytes());
        send.extend_from_slice(&wire::OPTION_MAGIC.to_be_bytes());
        send.extend_from_slice(&(wire::FLAG_FIXED_NEWSTYLE | wire::FLAG_NO_ZEROES).to_be_bytes());
        let handshake = Handshake {
            state: HandshakeState::ClientFlags,
            tls,
            is_encrypted: false,
            no_zeroes: false,
            structured: false,
            allocation_for: None,
            options: 0,
        };
        (handshake, HandshakeStep { send, next: NextAction::Read(4) })
    }

    /// Processes the bytes that the last step requested.
    pub fn receive(&mut self, exports: &dyn BlockExports, bytes: &[u8]) -> HandshakeStep {
        match self.state {
            HandshakeState::ClientFlags => self.client_flags(bytes),
            HandshakeState::OptionHeader => self.option_header(exports, bytes).unwrap_or(close()),
            HandshakeState::OptionData { option } => self.option(exports, option, bytes),
            HandshakeState::Skipping { option } => {
                self.refuse(option, reply::ERR_TOO_BIG, "the option's data are too long")
            }
        }
    }

    fn client_flags(&mut self, bytes: &[u8]) -> HandshakeStep {
        let known = u32::from(wire::FLAG_FIXED_NEWSTYLE | wire::FLAG_NO_ZEROES);
        match Reader::new(bytes).u32() {
            Some(flags) if flags & !known == 0 => {
                self.no_zeroes = flags & u32::from(wire::FLAG_NO_ZEROES) != 0;
                self.next_option(Vec::new())
            }
            _ => close(),
        }
    }

    fn option_header(&mut self, exports: &dyn BlockExports, bytes: &[u8]) -> Option<HandshakeStep> {
        let mut reader = Reader::new(bytes);
        if reader.u64()? != wire::OPTION_MAGIC {
            return None;
        }
        let option = reader.u32()?;
        let length = reader.u32()?;
        self.options += 1;
        if self.options > MAX_OPTIONS || length > MAX_SKIP_BYTES {
            return None;
        }
        if length > MAX_OPTION_BYTES {
            self.state = HandshakeState::Skipping { option };
            return Some(HandshakeStep { send: Vec::new(), next: NextAction::Skip(length) });
        }
        if length == 0 {
            return Some(self.option(exports, option, &[]));
        }
        self.state = HandshakeState::OptionData { option };
        Some(HandshakeStep { send: Vec::new(), next: NextAction::Read(length as usize) })
    }

    fn option(&mut self, exports: &dyn BlockExports, option: u32, data: &[u8]) -> HandshakeStep {
        let is_permitted = self.is_encrypted || matches!(option, option::ABORT | option::STARTTLS);
        if self.tls == TlsMode::Required && !is_permitted {
            // EXPORT_NAME has no error reply.
            return match option {
                option::EXPORT_NAME => close(),
                _ => self.refuse(option, reply::ERR_TLS_REQUIRED, "start TLS first"),
            };
        }
        match option {
            option::EXPORT_NAME => self.export_name(exports, data),
            option::ABORT => {
                let mut send = Vec::new();
                wire::option_reply(&mut send, option, reply::ACK, &[]);
                HandshakeStep { send, next: NextAction::Close }
            }
            option::LIST => self.list(exports, data),
            option::INFO | option::GO => self.info(exports, option, data),
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                self.acknowledge(option, Vec::new())
            }
            option::STRUCTURED_REPLY => self.refuse(option, reply::ERR_INVALID, "no data expected"),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(exports, option, data),
            option::STARTTLS => self.start_tls(data),
            _ => self.refuse(option, reply::ERR_UNSUP, "unknown option"),
        }
    }

    /// Forgets what was negotiated in clear text, which others may have altered.
    fn start_tls(&mut self, data: &[u8]) -> HandshakeStep {
        let option = option::STARTTLS;
        if self.tls == TlsMode::Off {
            return self.refuse(option, reply::ERR_POLICY, "TLS is not configured here");
        }
        if self.is_encrypted || !data.is_empty() {
            return self.refuse(option, reply::ERR_INVALID, "TLS is started once, without data");
        }
        self.is_encrypted = true;
        self.structured = false;
        self.allocation_for = None;
        let step = self.acknowledge(option, Vec::new());
        debug_assert_eq!(step.next, NextAction::Read(OPTION_HEADER_BYTES), "an option follows");
        HandshakeStep { next: NextAction::StartTls, ..step }
    }

    /// EXPORT_NAME has no error reply: an unknown name closes the connection.
    fn export_name(&mut self, exports: &dyn BlockExports, data: &[u8]) -> HandshakeStep {
        let found = std::str::from_utf8(data).ok().filter(|n| n.len() <= wire::MAX_NAME_BYTES);
        let Some(export) = found.and_then(|name| exports.find(name)) else { return close() };
        let mut send = Vec::with_capacity(134);
        send.extend_from_slice(&export.size_bytes.to_be_bytes());
        send.extend_from_slice(&self.transmission_flags(&export).to_be_bytes());
        if !self.no_zeroes {
            send.extend_from_slice(&[0; 124]);
        }
        HandshakeStep { send, next: NextAction::Serve(self.negotiated(&export)) }
    }

    fn list(&mut self, exports: &dyn BlockExports, data: &[u8]) -> HandshakeStep {
        if !data.is_empty() {
            return self.refuse(option::LIST, reply::ERR_INVALID, "no data expected");
        }
        let mut send = Vec::new();
        for name in exports.names() {
            let mut entry = (name.len() as u32).to_be_bytes().to_vec();
            entry.extend_from_slice(name.as_bytes());
            wire::option_reply(&mut send, option::LIST, reply::SERVER, &entry);
        }
        self.acknowledge(option::LIST, send)
    }

    fn info(&mut self, exports: &dyn BlockExports, option: u32, data: &[u8]) -> HandshakeStep {
        let Some((name, wants)) = info_request(data) else {
            return self.refuse(option, reply::ERR_INVALID, "malformed request");
        };
        let Some(export) = exports.find(name) else {
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
        // Always sent, even if not requested: clients may use it to align their requests.
        let mut about = info::BLOCK_SIZE.to_be_bytes().to_vec();
        let preferred = export.block_bytes.next_power_of_two().clamp(512, wire::MAX_TRANSFER_BYTES);
        for size in [1, preferred, wire::MAX_TRANSFER_BYTES] {
            about.extend_from_slice(&size.to_be_bytes());
        }
        wire::option_reply(&mut send, option, reply::INFO, &about);
        let mut step = self.acknowledge(option, send);
        if option == option::GO {
            step.next = NextAction::Serve(self.negotiated(&export));
        }
        step
    }

    fn meta_context(&mut self, exports: &dyn BlockExports, option: u32, data: &[u8]) -> HandshakeStep {
        let set = option == option::SET_META_CONTEXT;
        if set {
            // A new request replaces the earlier selection, even if it fails.
            self.allocation_for = None;
        }
        if !self.structured {
            return self.refuse(option, reply::ERR_INVALID, "structured replies first");
        }
        let Some((name, queries)) = meta_request(data) else {
            return self.refuse(option, reply::ERR_INVALID, "malformed request");
        };
        let Some(export) = exports.find(name) else {
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

    fn negotiated(&self, export: &BlockExport) -> Negotiated {
        let allocation = self.allocation_for.as_ref() == Some(&export.name);
        let writable = export.writable;
        Negotiated { export: export.name.clone(), structured: self.structured, allocation, writable }
    }

    fn description(&self, export: &BlockExport) -> String {
        let how = if export.writable { "" } else { ", read-only" };
        format!("ZFS volume {}{how}", export.name)
    }

    fn transmission_flags(&self, export: &BlockExport) -> u16 {
        let always = wire::FLAG_HAS_FLAGS | wire::FLAG_SEND_FLUSH | wire::FLAG_CAN_MULTI_CONN | wire::FLAG_SEND_CACHE;
        let writing = match export.writable {
            true => {
                wire::FLAG_SEND_FUA | wire::FLAG_SEND_TRIM | wire::FLAG_SEND_WRITE_ZEROES | wire::FLAG_SEND_FAST_ZERO
            }
            false => wire::FLAG_READ_ONLY,
        };
        always | writing | if self.structured { wire::FLAG_SEND_DF } else { 0 }
    }

    fn next_option(&mut self, send: Vec<u8>) -> HandshakeStep {
        self.state = HandshakeState::OptionHeader;
        HandshakeStep { send, next: NextAction::Read(OPTION_HEADER_BYTES) }
    }

    fn acknowledge(&mut self, option: u32, mut send: Vec<u8>) -> HandshakeStep {
        wire::option_reply(&mut send, option, reply::ACK, &[]);
        self.next_option(send)
    }

    fn refuse(&mut self, option: u32, kind: u32, message: &str) -> HandshakeStep {
        let mut send = Vec::new();
        wire::option_reply(&mut send, option, kind, message.as_bytes());
        self.next_option(send)
    }
}

fn close() -> HandshakeStep {
    HandshakeStep { send: Vec::new(), next: NextAction::Close }
}

/// Decodes name and requested kinds of information of INFO and GO.
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

/// Decodes name and queries of LIST_META_CONTEXT and SET_META_CONTEXT.
fn meta_request(data: &[u8]) -> Option<(&str, Vec<&str>)> {
    let mut reader = Reader::new(data);
    let name = reader.string()?;
    let count = reader.u32()? as usize;
    // Each query takes at least four bytes, so a false count cannot cause a large allocation.
    if count > reader.rest().len() / 4 {
        return None;
    }
    let queries = (0..count).map(|_| reader.string()).collect::<Option<Vec<_>>>()?;
    reader.rest().is_empty().then_some((name, queries))
}

#[cfg(test)]
mod tests;

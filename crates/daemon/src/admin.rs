//! Wire format of the administration socket: frames of a kind, a length and contents.
//!
//! ```text
//!   kind u8 │ length u32, little-endian │ bytes        length at most MAX_BYTES, less for most kinds
//!
//!   client ─► Command (once, alone)
//!   server ─► Begun · Answer
//!
//!   client ─► Query (once, alone)
//!   server ─► Begun · Part … · Answer
//!
//!   client ─► Call (once, first) · Input
//!   server ─► Begun (once, first) · Out · Err · Ask · AskBytes · End (once, last)
//! ```
//!
//! A command, a query and their answer are JSON ([`weir_admin::Command`], [`weir_admin::Query`], [`weir_admin::Answer`]). The rows
//! of a query are lines of JSON ([`weir_admin::Row`]), cut into parts wherever a frame is full. A call is a command line, for
//! commands that have no such form yet; in a call, a string is a length (u32) and bytes. All three begin with the protocol's
//! version (u32).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use thiserror::Error;

/// Size of a frame's header in bytes.
pub const HEADER_BYTES: usize = 5;
/// Maximum size of the contents of a call in bytes.
pub const MAX_CALL_BYTES: usize = 1 << 20;
/// Maximum size of the contents of any other frame in bytes.
pub const MAX_BYTES: usize = 64 << 10;
/// Maximum size of an answer in bytes: the names of some hundred thousand snapshots.
pub const MAX_ANSWER_BYTES: usize = 64 << 20;
/// Maximum number of arguments of a command.
const MAX_WORDS: usize = 16_384;
/// Protocol version at the start of a command, query or call.
pub const VERSION: u32 = 10;

/// Error of decoding a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// Unknown kind.
    #[error("a frame of unknown kind {0}")]
    Kind(u8),
    /// Longer than the limit of its kind.
    #[error("a frame of {0} bytes")]
    TooLong(usize),
    /// Malformed contents.
    #[error("a frame with malformed contents")]
    Contents,
    /// Another version of the protocol.
    #[error("the peer uses protocol version {0}, this program {VERSION}: use the same version of weir for both")]
    Version(u32),
}

/// A command with its arguments and environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// Program name: `zpool`, `zfs`.
    pub program: String,
    /// Arguments of the command.
    pub words: Vec<OsString>,
    /// Working directory.
    pub folder: PathBuf,
    /// Search path for pools from the environment, used if no argument gives one.
    pub dirs: Option<OsString>,
    /// User and group ID. Not sent: the server reads them from the socket's peer credentials.
    pub ids: (u32, u32),
    /// Whether standard error is a terminal.
    pub terminal: bool,
    /// Whether standard output is a terminal on which the user wants colours.
    pub colors: bool,
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A command.
    Call(Caller),
    /// Bytes of the client's standard input; empty at its end.
    Input(Vec<u8>),
    /// Bytes for the client's standard output.
    Out(Vec<u8>),
    /// Bytes for the client's standard error.
    Err(Vec<u8>),
    /// Requests one line of the client's standard input, after showing this prompt.
    Ask(Vec<u8>),
    /// Exit code of the command.
    End(u8),
    /// Requests the rest of the client's standard input, at most this many bytes; not read from a terminal.
    AskBytes(u32),
    /// A command as JSON.
    Command(Vec<u8>),
    /// The answer to a command as JSON.
    Answer(Vec<u8>),
    /// The command has begun. A command of which this was not sent has had no effect, and can be sent again.
    Begun,
    /// A query as JSON.
    Query(Vec<u8>),
    /// Piece of the rows of a query.
    Part(Vec<u8>),
    /// Cancels the command that was sent: it ends between two of its steps, and is answered.
    Cancel,
    /// Progress of a command that takes long, as JSON.
    Progress(Vec<u8>),
}

/// Decodes the contents of a frame.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(WireError::Contents)?;
        self.0 = rest;
        Ok(head)
    }

    fn u32(&mut self) -> Result<u32, WireError> {
        let bytes = self.take(4)?.first_chunk::<4>().ok_or(WireError::Contents)?;
        Ok(u32::from_le_bytes(*bytes))
    }

    fn text(&mut self) -> Result<OsString, WireError> {
        let len = self.u32()? as usize;
        Ok(OsString::from_vec(self.take(len)?.to_vec()))
    }
}

fn put(out: &mut Vec<u8>, text: &OsStr) {
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn call(caller: &Caller) -> Vec<u8> {
    let mut out = VERSION.to_le_bytes().to_vec();
    out.extend([u8::from(caller.terminal), u8::from(caller.colors)]);
    put(&mut out, OsStr::new(&caller.program));
    put(&mut out, caller.folder.as_os_str());
    out.push(u8::from(caller.dirs.is_some()));
    put(&mut out, caller.dirs.as_deref().unwrap_or_default());
    out.extend_from_slice(&(caller.words.len() as u32).to_le_bytes());
    caller.words.iter().for_each(|word| put(&mut out, word));
    out
}

fn check_version(reader: &mut Reader<'_>) -> Result<(), WireError> {
    match reader.u32()? {
        VERSION => Ok(()),
        other => Err(WireError::Version(other)),
    }
}

fn with_version(json: &[u8]) -> Vec<u8> {
    [&VERSION.to_le_bytes()[..], json].concat()
}

fn without_version(bytes: &[u8]) -> Result<Vec<u8>, WireError> {
    let mut reader = Reader(bytes);
    check_version(&mut reader)?;
    Ok(reader.0.to_vec())
}

fn read_call(bytes: &[u8]) -> Result<Caller, WireError> {
    let mut reader = Reader(bytes);
    check_version(&mut reader)?;
    let flag = |byte: &[u8]| match byte {
        [0] => Ok(false),
        [1] => Ok(true),
        _ => Err(WireError::Contents),
    };
    let terminal = flag(reader.take(1)?)?;
    let colors = flag(reader.take(1)?)?;
    let program = reader.text()?.into_string().map_err(|_| WireError::Contents)?;
    let folder = PathBuf::from(reader.text()?);
    let has_dirs = flag(reader.take(1)?)?;
    let dirs = Some(reader.text()?).filter(|_| has_dirs);
    let count = reader.u32()? as usize;
    if count > MAX_WORDS {
        return Err(WireError::Contents);
    }
    let mut words = Vec::new();
    for _ in 0..count {
        words.push(reader.text()?);
    }
    let caller = Caller { program, words, folder, dirs, ids: (0, 0), terminal, colors };
    if reader.0.is_empty() { Ok(caller) } else { Err(WireError::Contents) }
}

impl Frame {
    /// Encodes the frame. Contents must fit in one frame: see [`Frame::chunks`].
    pub fn encode(&self) -> Vec<u8> {
        let (kind, contents) = match self {
            Frame::Call(caller) => (1, call(caller)),
            Frame::Input(bytes) => (2, bytes.clone()),
            Frame::Out(bytes) => (3, bytes.clone()),
            Frame::Err(bytes) => (4, bytes.clone()),
            Frame::Ask(bytes) => (5, bytes.clone()),
            Frame::End(code) => (6, vec![*code]),
            Frame::AskBytes(max_bytes) => (7, max_bytes.to_le_bytes().to_vec()),
            Frame::Begun => (8, Vec::new()),
            Frame::Command(json) => (9, with_version(json)),
            Frame::Answer(json) => (10, json.clone()),
            Frame::Query(json) => (11, with_version(json)),
            Frame::Part(bytes) => (12, bytes.clone()),
            Frame::Cancel => (13, Vec::new()),
            Frame::Progress(json) => (14, json.clone()),
        };
        let mut out = vec![kind];
        out.extend_from_slice(&(contents.len() as u32).to_le_bytes());
        out.extend(contents);
        out
    }

    /// Splits output of any length into frames.
    pub fn chunks(bytes: &[u8], make: fn(Vec<u8>) -> Frame) -> impl Iterator<Item = Frame> {
        bytes.chunks(MAX_BYTES).map(move |piece| make(piece.to_vec()))
    }

    /// Length of the contents that follow a header, in bytes.
    ///
    /// # Errors
    /// If the kind is unknown or the length exceeds its limit.
    pub fn length(header: [u8; HEADER_BYTES]) -> Result<usize, WireError> {
        let [kind, length @ ..] = header;
        let length = u32::from_le_bytes(length) as usize;
        let max_bytes = match kind {
            1 => MAX_CALL_BYTES,
            2..=5 => MAX_BYTES,
            6 => 1,
            7 => 4,
            8 | 13 => 0,
            9 | 11 => MAX_CALL_BYTES,
            10 => MAX_ANSWER_BYTES,
            12 | 14 => MAX_BYTES,
            other => return Err(WireError::Kind(other)),
        };
        if length > max_bytes { Err(WireError::TooLong(length)) } else { Ok(length) }
    }

    /// Decodes the contents of a frame of this kind.
    ///
    /// # Errors
    /// If the contents are malformed.
    pub fn decode(kind: u8, contents: &[u8]) -> Result<Frame, WireError> {
        Ok(match kind {
            1 => Frame::Call(read_call(contents)?),
            2 => Frame::Input(contents.to_vec()),
            3 => Frame::Out(contents.to_vec()),
            4 => Frame::Err(contents.to_vec()),
            5 => Frame::Ask(contents.to_vec()),
            6 => match contents {
                [code] => Frame::End(*code),
                _ => return Err(WireError::Contents),
            },
            7 => Frame::AskBytes(u32::from_le_bytes(contents.try_into().map_err(|_| WireError::Contents)?)),
            8 if contents.is_empty() => Frame::Begun,
            8 => return Err(WireError::Contents),
            9 => Frame::Command(without_version(contents)?),
            10 => Frame::Answer(contents.to_vec()),
            11 => Frame::Query(without_version(contents)?),
            12 => Frame::Part(contents.to_vec()),
            13 if contents.is_empty() => Frame::Cancel,
            13 => return Err(WireError::Contents),
            14 => Frame::Progress(contents.to_vec()),
            other => return Err(WireError::Kind(other)),
        })
    }
}

/// Name and body of a fuzz target.
pub type Target = (&'static str, fn(&[u8]));

/// Fuzz targets of this crate: each must return for any input, in time and memory bounded by the input's length.
pub const TARGETS: &[Target] = &[("admin_frame", frame_target)];

fn frame_target(data: &[u8]) {
    let Some((header, rest)) = data.split_first_chunk::<HEADER_BYTES>() else { return };
    let Ok(length) = Frame::length(*header) else { return };
    assert!(length <= MAX_ANSWER_BYTES);
    let [kind, ..] = *header;
    let contents = rest.get(..length).unwrap_or(rest);
    if let Ok(frame) = Frame::decode(kind, contents) {
        let bytes = frame.encode();
        let again = bytes.split_first_chunk::<HEADER_BYTES>().map(|(_, contents)| Frame::decode(kind, contents));
        assert_eq!(again, Some(Ok(frame)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller() -> Caller {
        Caller {
            program: "zfs".into(),
            words: vec!["set".into(), OsString::from_vec(vec![0xff, 0]), OsString::new()],
            folder: "/somewhere".into(),
            dirs: Some("/a:/b".into()),
            ids: (0, 0),
            terminal: true,
            colors: true,
        }
    }

    fn decode(bytes: &[u8]) -> Result<Frame, WireError> {
        let (header, contents) = bytes.split_first_chunk::<HEADER_BYTES>().unwrap();
        assert_eq!(Frame::length(*header)?, contents.len());
        Frame::decode(header[0], contents)
    }

    #[test]
    fn frames_round_trip() {
        let without = Caller { dirs: None, terminal: false, colors: false, ..caller() };
        for frame in [
            Frame::Call(caller()),
            Frame::Call(without),
            Frame::Input(b"key\n".to_vec()),
            Frame::Out(Vec::new()),
            Frame::Err(vec![0; MAX_BYTES]),
            Frame::Ask(b"Enter passphrase: ".to_vec()),
            Frame::End(2),
            Frame::AskBytes(33),
            Frame::Begun,
            Frame::Command(b"{}".to_vec()),
            Frame::Answer(vec![b' '; MAX_BYTES + 1]),
            Frame::Query(b"{}".to_vec()),
            Frame::Part(vec![b'\n'; MAX_BYTES]),
            Frame::Cancel,
            Frame::Progress(b"{}".to_vec()),
        ] {
            assert_eq!(decode(&frame.encode()), Ok(frame));
        }
        assert_eq!(Frame::chunks(&[1; MAX_BYTES + 1], Frame::Out).count(), 2);
    }

    #[test]
    fn malformed_frames_are_rejected() {
        assert_eq!(Frame::length([15, 0, 0, 0, 0]), Err(WireError::Kind(15)));
        assert_eq!(Frame::length([12, 1, 0, 1, 0]), Err(WireError::TooLong(MAX_BYTES + 1)));
        assert_eq!(Frame::length([13, 1, 0, 0, 0]), Err(WireError::TooLong(1)));
        assert_eq!(Frame::decode(13, &[0]), Err(WireError::Contents));
        assert_eq!(Frame::length([3, 1, 0, 1, 0]), Err(WireError::TooLong(MAX_BYTES + 1)));
        assert_eq!(Frame::decode(6, &[]), Err(WireError::Contents));
        assert_eq!(Frame::decode(7, &[1, 0, 0]), Err(WireError::Contents));
        assert_eq!(Frame::decode(8, &[0]), Err(WireError::Contents));
        let whole = call(&caller());
        assert_eq!(Frame::decode(1, &whole), Ok(Frame::Call(caller())));
        for len in 0..whole.len() {
            assert!(Frame::decode(1, &whole[..len]).is_err(), "{len}");
        }
        let mut other = whole.clone();
        other[0] = VERSION as u8 + 1;
        assert_eq!(Frame::decode(1, &other), Err(WireError::Version(VERSION + 1)));
        for kind in [9, 11] {
            assert_eq!(Frame::decode(kind, &[3, 0, 0, 0, b'{']), Err(WireError::Version(3)));
            assert_eq!(Frame::decode(kind, &[VERSION as u8, 0, 0]), Err(WireError::Contents));
        }
        let longer = [&whole[..], b"x"].concat();
        assert_eq!(Frame::decode(1, &longer), Err(WireError::Contents));
    }
}

//! Errors of making and of receiving streams.

use thiserror::Error;
use weir_dmu::ObjectError;
use weir_format::DecodeError;

/// Error of making a stream.
#[derive(Debug, Error)]
pub enum SendError {
    /// The names do not describe a stream.
    #[error("{0}")]
    Refused(String),
    /// The names do not describe a stream; the message is complete.
    #[error("{0}")]
    Whole(String),
    /// The dataset has something that cannot be sent.
    #[error("cannot send {0}")]
    Unsupported(&'static str),
    /// A block cannot be read.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The reader of the stream is gone.
    #[error("the stream's reader is gone")]
    ReaderGone,
}

/// Error of receiving a stream.
#[derive(Debug, Error)]
pub enum ReceiveError {
    /// The stream ended before its END record.
    #[error("incomplete stream")]
    Truncated,
    /// A running checksum is wrong.
    #[error("checksum mismatch")]
    Checksum,
    /// The bytes are no record.
    #[error("{0}")]
    Decode(#[from] DecodeError),
    /// A record that no sender makes.
    #[error("{0}")]
    Invalid(String),
    /// A stream that is valid and needs something that is not supported.
    #[error("{0}")]
    Unsupported(String),
    /// The pool cannot be read or written.
    #[error(transparent)]
    Object(#[from] ObjectError),
}

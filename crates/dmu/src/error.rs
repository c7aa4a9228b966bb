//! Errors of reading and changing objects, with their location.

use std::fmt;
use thiserror::Error;
use weir_blocks::BlockError;
use weir_format::{DecodeError, ObjectId, ObjsetId};

/// Location in an object set: object, level and block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ErrorLocation {
    /// The object set.
    pub objset: ObjsetId,
    /// The object; 0 is the object that holds all dnodes.
    pub object: ObjectId,
    /// Level of the block; 0 is data.
    pub level: u8,
    /// Number of the block on its level; [`ErrorLocation::SPILL`] is the spill block.
    pub block: u64,
}

impl ErrorLocation {
    /// Block number of the spill block (OpenZFS's `DMU_SPILL_BLKID` is -2).
    pub const SPILL: u64 = u64::MAX - 1;
}

impl fmt::Display for ErrorLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "object set {} object {}", self.objset, self.object)?;
        match self.block {
            Self::SPILL => write!(f, " spill block"),
            block => write!(f, " level {} block {block}", self.level),
        }
    }
}

/// Error of reading or changing an object, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ObjectError {
    /// The object does not exist.
    #[error("object set {objset} has no object {object}")]
    NoObject {
        /// The object set.
        objset: ObjsetId,
        /// The requested object number.
        object: ObjectId,
    },
    /// The name does not exist.
    #[error("{what} {name:?} does not exist")]
    NoName {
        /// Kind of the named entity.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// The name exists already.
    #[error("{name:?} exists already")]
    NameExists {
        /// The name.
        name: String,
    },
    /// A value exceeds a limit of the format.
    #[error("{what} is too long")]
    TooLong {
        /// The value that is too long.
        what: &'static str,
    },
    /// A block of the object cannot be read.
    #[error("{place}: {error}")]
    Block {
        /// Location of the block.
        place: ErrorLocation,
        /// Cause.
        error: BlockError,
    },
    /// A block was read, but its contents cannot be decoded.
    #[error("{place}: {error}")]
    Decode {
        /// Location of the block.
        place: ErrorLocation,
        /// Cause.
        error: DecodeError,
    },
    /// Structures that contradict each other.
    #[error("{place}: {why}")]
    Corrupt {
        /// Location of the structure.
        place: ErrorLocation,
        /// The contradiction.
        why: &'static str,
    },
    /// The dataset is encrypted and its key is not loaded.
    #[error("object set {objset} is encrypted and its key is not loaded")]
    NoKey {
        /// The object set.
        objset: ObjsetId,
    },
    /// The key does not decrypt the dataset, or is malformed.
    #[error("{dataset}: {error}")]
    Key {
        /// The dataset's name.
        dataset: String,
        /// Cause.
        error: weir_codec::CodecError,
    },
    /// The object set is closed: it is being destroyed, or its contents replaced.
    #[error("object set {objset} is closed")]
    Closed {
        /// The object set.
        objset: ObjsetId,
    },
    /// The object set was not opened for changes.
    #[error("object set {objset} is read-only")]
    ReadOnly {
        /// The object set.
        objset: ObjsetId,
    },
    /// The object number is in use.
    #[error("object set {objset} has an object {object} already")]
    Exists {
        /// The object set.
        objset: ObjsetId,
        /// The number.
        object: ObjectId,
    },
    /// The pool is full.
    #[error("the pool has no space for {bytes} bytes")]
    NoSpace {
        /// Requested bytes.
        bytes: u64,
    },
    /// A quota would be exceeded.
    #[error("the quota of object set {objset} leaves no space for {bytes} bytes")]
    Quota {
        /// The object set.
        objset: ObjsetId,
        /// Requested bytes.
        bytes: u64,
    },
    /// The pool is suspended because a transaction group could not be written.
    #[error("the pool cannot be written: {why}")]
    Suspended {
        /// The first error.
        why: String,
    },
    /// A record of an intent log cannot be replayed.
    #[error("{place}: {why}")]
    Replay {
        /// The block that cannot be read, or the object that the record changes.
        place: ErrorLocation,
        /// Whether a block cannot be read; otherwise the operation itself fails.
        unreadable: bool,
        /// Cause.
        why: String,
    },
    /// An intent log cannot be replayed until the cause is removed; the whole log is kept.
    #[error("the intent log of object set {objset} cannot be replayed and is kept: {why}")]
    LogKept {
        /// The object set.
        objset: ObjsetId,
        /// The first record that cannot be replayed, the cause, and how to remove it.
        why: String,
    },
    /// An operation that Weir does not support.
    #[error("unsupported: {what}")]
    Unsupported {
        /// The operation.
        what: &'static str,
    },
}

impl ObjectError {
    /// Error of reading or writing the block at `place`.
    pub fn block(place: ErrorLocation, error: BlockError) -> Self {
        match error {
            BlockError::NoKey { objset } => ObjectError::NoKey { objset },
            error => ObjectError::Block { place, error },
        }
    }

    /// Error of decoding the structure at `place`.
    pub fn decode(place: ErrorLocation, error: DecodeError) -> Self {
        ObjectError::Decode { place, error }
    }

    /// Whether bytes on disk are wrong, as opposed to missing, locked, or on a device that fails.
    pub fn is_corrupt(&self) -> bool {
        match self {
            ObjectError::Decode { .. } | ObjectError::Corrupt { .. } => true,
            ObjectError::Block { error, .. } => !matches!(
                error,
                BlockError::Missing { .. } | BlockError::Device { .. } | BlockError::Unsupported { .. }
            ),
            _ => false,
        }
    }

    /// The block or object that the error is about, if it is about one.
    pub fn place(&self) -> Option<ErrorLocation> {
        match self {
            ObjectError::Block { place, .. }
            | ObjectError::Decode { place, .. }
            | ObjectError::Corrupt { place, .. }
            | ObjectError::Replay { place, .. } => Some(*place),
            ObjectError::NoObject { objset, object } | ObjectError::Exists { objset, object } => {
                Some(ErrorLocation { objset: *objset, object: *object, ..ErrorLocation::default() })
            }
            _ => None,
        }
    }

    /// Whether the name or object does not exist.
    pub fn is_absent(&self) -> bool {
        matches!(self, ObjectError::NoObject { .. } | ObjectError::NoName { .. })
    }
}

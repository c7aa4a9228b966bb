//! Why an object could not be given.

use std::fmt;
use thiserror::Error;
use weir_blocks::BlockError;
use weir_format::{DecodeError, ObjectId, ObjsetId};

/// Where in an object set something is.
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
    /// The block number that stands for the spill block (OpenZFS's `DMU_SPILL_BLKID` is -2).
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

/// Why an object, or a part of it, could not be given.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ObjectError {
    /// There is no such object.
    #[error("object set {objset} has no object {object}")]
    NoObject {
        /// The object set.
        objset: ObjsetId,
        /// The number asked for.
        object: ObjectId,
    },
    /// There is no such name.
    #[error("{what} {name:?} does not exist")]
    NoName {
        /// What kind of thing is named.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// The name is taken.
    #[error("{name:?} exists already")]
    NameExists {
        /// The name.
        name: String,
    },
    /// More than the format has room for.
    #[error("{what} is too long")]
    TooLong {
        /// What.
        what: &'static str,
    },
    /// A block of the object cannot be read.
    #[error("{place}: {error}")]
    Block {
        /// Which.
        place: ErrorLocation,
        /// Why.
        error: BlockError,
    },
    /// A block was read and does not hold what it should.
    #[error("{place}: {error}")]
    Decode {
        /// Which.
        place: ErrorLocation,
        /// What is wrong.
        error: DecodeError,
    },
    /// Structures that contradict each other.
    #[error("{place}: {why}")]
    Corrupt {
        /// Where.
        place: ErrorLocation,
        /// What is wrong.
        why: &'static str,
    },
    /// The dataset is encrypted and its key is not loaded.
    #[error("object set {objset} is encrypted and its key is not loaded")]
    NoKey {
        /// The object set.
        objset: ObjsetId,
    },
    /// The key does not open the dataset, or is not one.
    #[error("{dataset}: {error}")]
    Key {
        /// The dataset's name.
        dataset: String,
        /// What is wrong with it.
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
    /// The number is taken.
    #[error("object set {objset} has an object {object} already")]
    Exists {
        /// The object set.
        objset: ObjsetId,
        /// The number.
        object: ObjectId,
    },
    /// The pool is full.
    #[error("the pool has no room for {bytes} bytes")]
    NoSpace {
        /// What was asked for.
        bytes: u64,
    },
    /// A quota is reached.
    #[error("the quota of object set {objset} leaves no room for {bytes} bytes")]
    Quota {
        /// The object set.
        objset: ObjsetId,
        /// What was asked for.
        bytes: u64,
    },
    /// A transaction group could not be written: nothing can be any more.
    #[error("the pool cannot be written: {why}")]
    Suspended {
        /// What happened first.
        why: String,
    },
    /// A record of an intent log cannot be replayed.
    #[error("{place}: {why}")]
    Replay {
        /// The block that cannot be read, or the object that the record changes.
        place: ErrorLocation,
        /// Whether a block cannot be read; otherwise the operation itself fails.
        unreadable: bool,
        /// Why.
        why: String,
    },
    /// An intent log cannot be replayed until its cause is removed; nothing of the log is given up.
    #[error("the intent log of object set {objset} cannot be replayed and is kept: {why}")]
    LogKept {
        /// The object set.
        objset: ObjsetId,
        /// The first record that cannot be replayed, the cause, and how to remove it.
        why: String,
    },
    /// Something that this program does not do.
    #[error("{what} is not possible")]
    Unsupported {
        /// What.
        what: &'static str,
    },
}

impl ObjectError {
    /// The error of a block that cannot be read or written, at its place.
    pub fn block(place: ErrorLocation, error: BlockError) -> Self {
        match error {
            BlockError::NoKey { objset } => ObjectError::NoKey { objset },
            error => ObjectError::Block { place, error },
        }
    }

    /// The error of bytes that are no valid structure, at their place.
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

    /// Whether there is nothing of that name or number.
    pub fn is_absent(&self) -> bool {
        matches!(self, ObjectError::NoObject { .. } | ObjectError::NoName { .. })
    }
}

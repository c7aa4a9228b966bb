//! Why a file operation fails. Doors map each kind to their protocol's status.

use thiserror::Error;
use weir_format::ObjectId;
use weir_objects::{Object, ObjectError};

/// Why a file operation fails.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FileError {
    /// No such name or attribute.
    #[error("not found")]
    NotFound,
    /// The object is not a directory.
    #[error("object {object} is not a directory")]
    NotDirectory {
        /// The object.
        object: ObjectId,
    },
    /// The object is a directory and a file is needed.
    #[error("object {object} is a directory")]
    IsDirectory {
        /// The object.
        object: ObjectId,
    },
    /// The object is not a symbolic link.
    #[error("object {object} is not a symbolic link")]
    NotSymlink {
        /// The object.
        object: ObjectId,
    },
    /// The name is longer than the file system allows.
    #[error("name of {len} bytes is too long")]
    NameTooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// Bytes on disk are not what they should be: a checksum that no copy satisfies, or a structure that lies.
    #[error("object {object} is corrupt at offset {offset}: {why}")]
    Corrupt {
        /// The object.
        object: ObjectId,
        /// Byte offset in the object; 0 where it does not apply.
        offset: u64,
        /// What is wrong.
        why: String,
    },
    /// A device failed or is missing, and no redundancy is left for this block.
    #[error("object {object} cannot be read at offset {offset}: {why}")]
    Device {
        /// The object.
        object: ObjectId,
        /// Byte offset in the object.
        offset: u64,
        /// What happened.
        why: String,
    },
    /// The data set is encrypted and its key is not loaded.
    #[error("the key of this file system is not loaded")]
    NoKey,
    /// The object of a file handle is gone, or another file has its number now.
    #[error("object {object} is no longer the file that the handle was made for")]
    Stale {
        /// The object.
        object: ObjectId,
    },
    /// Something that Weir can't read.
    #[error("{what} is not supported")]
    Unsupported {
        /// What.
        what: String,
    },
}

impl FileError {
    /// From an error while reading `object`.
    pub(crate) fn of(error: ObjectError, object: &Object) -> Self {
        Self::at(error, object.id, object.block_bytes())
    }

    /// From an error while opening the object set of a file system.
    pub fn opening(error: ObjectError) -> Self {
        Self::at(error, ObjectId(0), 0)
    }

    /// From an error while reading object `id` with blocks of `block_bytes` (0 if not known).
    pub(crate) fn at(error: ObjectError, object: ObjectId, block_bytes: u64) -> Self {
        let offset = match &error {
            ObjectError::Block { place, .. }
            | ObjectError::Decode { place, .. }
            | ObjectError::Corrupt { place, .. }
                if place.object == object && place.level == 0 && place.block != weir_objects::Place::SPILL =>
            {
                place.block.saturating_mul(block_bytes)
            }
            _ => 0,
        };
        match error {
            ObjectError::NoObject { .. } | ObjectError::NoName { .. } => FileError::NotFound,
            ObjectError::NoKey { .. } | ObjectError::Key { .. } => FileError::NoKey,
            ObjectError::Unsupported { what } => FileError::Unsupported { what: what.to_owned() },
            error if error.is_corrupt() => FileError::Corrupt { object, offset, why: error.to_string() },
            error => FileError::Device { object, offset, why: error.to_string() },
        }
    }
}

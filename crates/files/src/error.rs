//! Errors of file operations. Front ends map each variant to a status of their protocol.

use thiserror::Error;
use weir_dmu::{Object, ObjectError};
use weir_format::ObjectId;

/// Error of a file operation.
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
    /// The object is a directory, but a file is required.
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
        /// Length in bytes.
        len: usize,
    },
    /// The on-disk data are corrupt: no copy matches the checksum, or a structure is invalid.
    #[error("object {object} is corrupt at offset {offset}: {why}")]
    Corrupt {
        /// The object.
        object: ObjectId,
        /// Byte offset in the object; 0 if not applicable.
        offset: u64,
        /// Description of the corruption.
        why: String,
    },
    /// A device failed or is missing, and the block has no redundancy left.
    #[error("object {object} cannot be read at offset {offset}: {why}")]
    Device {
        /// The object.
        object: ObjectId,
        /// Byte offset in the object.
        offset: u64,
        /// Cause.
        why: String,
    },
    /// The dataset is encrypted and its key is not loaded.
    #[error("the key of this file system is not loaded")]
    NoKey,
    /// The object of a file handle was freed, or its number was reused.
    #[error("object {object} is no longer the file that the handle was made for")]
    Stale {
        /// The object.
        object: ObjectId,
    },
    /// Not implemented in Weir.
    #[error("{what} is not supported")]
    Unsupported {
        /// The unsupported feature.
        what: String,
    },
    /// The file system is a snapshot, has `readonly=on`, or its pool is open read-only.
    #[error("the file system is read-only")]
    ReadOnly,
    /// The name exists.
    #[error("the name exists")]
    Exists,
    /// The directory is not empty.
    #[error("directory {object} is not empty")]
    NotEmpty {
        /// The object.
        object: ObjectId,
    },
    /// No permission by mode or access control list (`EACCES`).
    #[error("permission denied on object {object}")]
    Denied {
        /// The object.
        object: ObjectId,
    },
    /// Only the owner or the superuser may do this, or the file's flags forbid it to everyone (`EPERM`).
    #[error("object {object}: not permitted")]
    NotPermitted {
        /// The object.
        object: ObjectId,
    },
    /// The pool or the file system's quota or reservation is full.
    #[error("no space left")]
    NoSpace,
    /// A quota is reached.
    #[error("a quota is reached")]
    Quota,
    /// The file would exceed the maximum size.
    #[error("a file cannot be that large")]
    TooLarge,
    /// The object has the maximum number of links.
    #[error("object {object} has too many links")]
    TooManyLinks {
        /// The object.
        object: ObjectId,
    },
    /// The name is the mount point of another file system.
    #[error("a file system is mounted there")]
    Busy,
    /// The two names are in different file systems.
    #[error("the names are in different file systems")]
    CrossDevice,
    /// The name is not UTF-8, which the file system requires.
    #[error("the name is not UTF-8")]
    BadName,
    /// No extended attribute of that name.
    #[error("no such attribute")]
    NoAttribute,
    /// The value of an extended attribute is too large.
    #[error("an attribute of {len} bytes is too large")]
    AttributeTooLarge {
        /// Length in bytes.
        len: usize,
    },
    /// The arguments are invalid.
    #[error("{why}")]
    Invalid {
        /// Reason.
        why: &'static str,
    },
}

/// Linux error numbers (`errno(3)`), for front ends that use them directly.
mod errno {
    pub const EPERM: i32 = 1;
    pub const ENOENT: i32 = 2;
    pub const EIO: i32 = 5;
    pub const E2BIG: i32 = 7;
    pub const EACCES: i32 = 13;
    pub const EBUSY: i32 = 16;
    pub const EEXIST: i32 = 17;
    pub const EXDEV: i32 = 18;
    pub const ENOTDIR: i32 = 20;
    pub const EISDIR: i32 = 21;
    pub const EINVAL: i32 = 22;
    pub const EFBIG: i32 = 27;
    pub const ENOSPC: i32 = 28;
    pub const EROFS: i32 = 30;
    pub const EMLINK: i32 = 31;
    pub const ENAMETOOLONG: i32 = 36;
    pub const ENOTEMPTY: i32 = 39;
    pub const ENODATA: i32 = 61;
    pub const EILSEQ: i32 = 84;
    pub const EOPNOTSUPP: i32 = 95;
    pub const ESTALE: i32 = 116;
    pub const EDQUOT: i32 = 122;
}

impl FileError {
    /// Linux error number of the error.
    pub fn errno(&self) -> i32 {
        match self {
            FileError::NotFound => errno::ENOENT,
            FileError::NotDirectory { .. } => errno::ENOTDIR,
            FileError::IsDirectory { .. } => errno::EISDIR,
            FileError::NotSymlink { .. } | FileError::Invalid { .. } => errno::EINVAL,
            FileError::NameTooLong { .. } => errno::ENAMETOOLONG,
            FileError::Corrupt { .. } | FileError::Device { .. } => errno::EIO,
            FileError::NoKey | FileError::Denied { .. } => errno::EACCES,
            FileError::Stale { .. } => errno::ESTALE,
            FileError::Unsupported { .. } => errno::EOPNOTSUPP,
            FileError::ReadOnly => errno::EROFS,
            FileError::Exists => errno::EEXIST,
            FileError::NotEmpty { .. } => errno::ENOTEMPTY,
            FileError::NotPermitted { .. } => errno::EPERM,
            FileError::NoSpace => errno::ENOSPC,
            FileError::Quota => errno::EDQUOT,
            FileError::TooLarge => errno::EFBIG,
            FileError::TooManyLinks { .. } => errno::EMLINK,
            FileError::Busy => errno::EBUSY,
            FileError::CrossDevice => errno::EXDEV,
            FileError::BadName => errno::EILSEQ,
            FileError::NoAttribute => errno::ENODATA,
            FileError::AttributeTooLarge { .. } => errno::E2BIG,
        }
    }

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
                if place.object == object && place.level == 0 && place.block != weir_dmu::ErrorLocation::SPILL =>
            {
                place.block.saturating_mul(block_bytes)
            }
            _ => 0,
        };
        match error {
            ObjectError::NoObject { .. } | ObjectError::NoName { .. } => FileError::NotFound,
            ObjectError::NoKey { .. } | ObjectError::Key { .. } => FileError::NoKey,
            ObjectError::ReadOnly { .. } => FileError::ReadOnly,
            ObjectError::Closed { .. } => FileError::Stale { object },
            ObjectError::NoSpace { .. } => FileError::NoSpace,
            ObjectError::Quota { .. } => FileError::Quota,
            ObjectError::NameExists { .. } => FileError::Exists,
            ObjectError::Unsupported { what } => FileError::Unsupported { what: what.to_owned() },
            error if error.is_corrupt() => FileError::Corrupt { object, offset, why: error.to_string() },
            error => FileError::Device { object, offset, why: error.to_string() },
        }
    }
}

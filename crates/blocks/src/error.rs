//! Errors of reading, writing, allocating and freeing a block.

use crate::alloc::SpaceFault;
use thiserror::Error;
use weir_codec::CodecError;
use weir_format::{DecodeError, ObjsetId};
use weir_machine::DiskError;

/// Error of an operation on a block. It concerns this block alone, never the pool.
///
/// `vdev` is the index of the top-level vdev, `offset` the byte offset in its allocatable space (as in a DVA).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BlockError {
    /// Too many of the devices that hold the block are missing.
    #[error("block at {vdev}:{offset:#x} needs devices that are missing: {}", .devices.join(", "))]
    Missing {
        /// Top-level vdev.
        vdev: u32,
        /// Offset in bytes.
        offset: u64,
        /// Names of the missing devices.
        devices: Vec<String>,
    },
    /// Every copy and reconstruction of the block has wrong bytes.
    #[error("block at {vdev}:{offset:#x} is damaged: {fault}")]
    Corrupt {
        /// Top-level vdev.
        vdev: u32,
        /// Offset in bytes.
        offset: u64,
        /// Checksum or decoding error of the last copy tried.
        fault: CodecError,
    },
    /// A structure that the pipeline itself decodes (a gang header) is malformed.
    #[error("block at {vdev}:{offset:#x} is damaged: {fault}")]
    Structure {
        /// Top-level vdev.
        vdev: u32,
        /// Offset in bytes.
        offset: u64,
        /// Decoding error.
        fault: DecodeError,
    },
    /// A device returned an error.
    #[error("block at {vdev}:{offset:#x}: device {device}: {error}")]
    Device {
        /// Top-level vdev.
        vdev: u32,
        /// Offset in bytes.
        offset: u64,
        /// The device's name.
        device: String,
        /// The device's error.
        error: DiskError,
    },
    /// The block is on a kind of vdev, or has an encoding, that this program does not read.
    #[error("block at {vdev}:{offset:#x}: unsupported: {what}")]
    Unsupported {
        /// Top-level vdev.
        vdev: u32,
        /// Offset in bytes.
        offset: u64,
        /// The unsupported kind or encoding.
        what: &'static str,
    },
    /// The block is encrypted and its key is not loaded.
    #[error("object set {objset} is encrypted and its key is not loaded")]
    NoKey {
        /// The object set.
        objset: ObjsetId,
    },
    /// The block's contents were left out of a redacted stream.
    #[error("the block was redacted")]
    Redacted,
    /// The pool is not open for writing.
    #[error("the pool is not open for writing")]
    ReadOnly,
    /// No space is left for a block, not even as a gang.
    #[error("no space for a block of {psize_bytes} bytes")]
    NoSpace {
        /// Size of the block before parity.
        psize_bytes: u64,
    },
    /// The encoded block does not fit into the space reserved for it.
    #[error("a block of {needed_bytes} bytes does not fit into the {psize_bytes} bytes that were reserved for it")]
    NoRoom {
        /// The bytes reserved.
        psize_bytes: u64,
        /// The bytes needed.
        needed_bytes: u64,
    },
    /// The vdev is of a kind, or in a state, in which it cannot be written to.
    #[error("{vdev}:{offset:#x} is on {what}, which cannot be written")]
    NotWritable {
        /// Top-level vdev.
        vdev: u32,
        /// Offset in bytes.
        offset: u64,
        /// Kind or state of the vdev.
        what: &'static str,
    },
    /// An invariant of the engine was violated, so nothing is written any more ([`weir_machine::invariant`]).
    #[error("nothing is written after an internal error ({what}): stop this process, and report the error")]
    Invariant {
        /// The violated invariant, and its place in the source.
        what: &'static str,
    },
    /// No leaf with this GUID has a disk.
    #[error("no device with the GUID {guid}")]
    NoSuchLeaf {
        /// The GUID.
        guid: u64,
    },
    /// A range that should be allocated or freed contradicts the present allocation: the space maps are damaged.
    #[error("space at {vdev}:{offset:#x}+{len_bytes:#x}: {fault}")]
    Space {
        /// Top-level vdev.
        vdev: u32,
        /// Offset in bytes.
        offset: u64,
        /// Length of the range.
        len_bytes: u64,
        /// The contradiction.
        fault: SpaceFault,
    },
    /// The bytes cannot be encoded with the given options.
    #[error("a block cannot be encoded: {fault}")]
    Unencodable {
        /// Encoding error.
        fault: CodecError,
    },
    /// The format has no block of this size.
    #[error("unsupported block size: {len_bytes} bytes")]
    BadSize {
        /// Size of the block.
        len_bytes: u64,
    },
    /// The computation that encodes the block ended without a result.
    #[error("the computation that encodes a block was lost")]
    ComputeLost,
    /// A block pointer that no pool can contain.
    #[error("invalid block pointer: {field} = {value:#x} (address {vdev}:{offset:#x})")]
    InvalidPointer {
        /// Top-level vdev that the pointer names.
        vdev: u32,
        /// Offset that the pointer names.
        offset: u64,
        /// Name of the invalid field.
        field: &'static str,
        /// Value of the field.
        value: u64,
    },
}

impl BlockError {
    /// Whether devices failed or are missing, so that the same operation may succeed later.
    pub fn is_of_devices(&self) -> bool {
        matches!(self, BlockError::Device { .. } | BlockError::Missing { .. })
    }

    /// Rank of the error: of several copies' errors, the one of the highest rank is reported. A device error ranks above
    /// wrong bytes, because the bytes that the device did not return may be right.
    fn weight(&self) -> u8 {
        match self {
            BlockError::InvalidPointer { .. } => 0,
            BlockError::Unsupported { .. } => 1,
            BlockError::Missing { .. } => 2,
            BlockError::Structure { .. } => 3,
            BlockError::Corrupt { .. } => 4,
            BlockError::Device { .. } => 5,
            _ => 6,
        }
    }

    /// The error to report of two copies' errors; missing devices are merged.
    pub(crate) fn worse(mut self, other: BlockError) -> BlockError {
        if let (BlockError::Missing { devices, .. }, BlockError::Missing { devices: more, .. }) = (&mut self, &other) {
            devices.extend(more.iter().cloned());
            devices.sort_unstable();
            devices.dedup();
            return self;
        }
        if other.weight() > self.weight() { other } else { self }
    }
}

/// Keeps the error of the higher rank.
pub(crate) fn note(worst: &mut Option<BlockError>, error: BlockError) {
    *worst = Some(match worst.take() {
        Some(first) => first.worse(error),
        None => error,
    });
}

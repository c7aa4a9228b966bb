//! Why a block could not be given.

use crate::alloc::SpaceFault;
use thiserror::Error;
use weir_codec::CodecError;
use weir_format::{DecodeError, ObjsetId};
use weir_machine::DiskError;

/// Why a block could not be given. It concerns this block's bytes alone, never the pool.
///
/// `vdev` is the index of the top-level vdev, `offset` the byte offset in its allocatable space (as in a DVA).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BlockError {
    /// Too many of the devices that hold it are not there.
    #[error("block at {vdev}:{offset:#x} needs devices that are missing: {}", .devices.join(", "))]
    Missing {
        /// Top-level vdev.
        vdev: u32,
        /// Where in it.
        offset: u64,
        /// Names of the devices that are not there.
        devices: Vec<String>,
    },
    /// The bytes are there and wrong, in every copy and reconstruction.
    #[error("block at {vdev}:{offset:#x} is damaged: {fault}")]
    Corrupt {
        /// Top-level vdev.
        vdev: u32,
        /// Where in it.
        offset: u64,
        /// What is wrong with the last copy tried.
        fault: CodecError,
    },
    /// A structure that the pipeline itself reads (a gang header) is not one.
    #[error("block at {vdev}:{offset:#x} is damaged: {fault}")]
    Structure {
        /// Top-level vdev.
        vdev: u32,
        /// Where in it.
        offset: u64,
        /// What is wrong.
        fault: DecodeError,
    },
    /// A device answered with an error.
    #[error("block at {vdev}:{offset:#x}: device {device}: {error}")]
    Device {
        /// Top-level vdev.
        vdev: u32,
        /// Where in it.
        offset: u64,
        /// The device's name.
        device: String,
        /// Its answer.
        error: DiskError,
    },
    /// The block lies on a kind of vdev, or is encoded in a way, that this program does not read.
    #[error("block at {vdev}:{offset:#x}: {what} cannot be read")]
    Unsupported {
        /// Top-level vdev.
        vdev: u32,
        /// Where in it.
        offset: u64,
        /// What it is.
        what: &'static str,
    },
    /// The block is encrypted and no key was given.
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
    /// There is no space left for a block, not even in pieces.
    #[error("no space for a block of {psize_bytes} bytes")]
    NoSpace {
        /// Its size before parity.
        psize_bytes: u64,
    },
    /// Bytes do not fit into the place that was reserved for them.
    #[error("a block of {needed_bytes} bytes does not fit into the {psize_bytes} bytes that were reserved for it")]
    NoRoom {
        /// The bytes reserved.
        psize_bytes: u64,
        /// The bytes needed.
        needed_bytes: u64,
    },
    /// This program does not write to such a vdev.
    #[error("{vdev}:{offset:#x} lies on {what}, which cannot be written")]
    NotWritable {
        /// Top-level vdev.
        vdev: u32,
        /// Where in it.
        offset: u64,
        /// What it is.
        what: &'static str,
    },
    /// No leaf with this GUID has a disk.
    #[error("no device with the GUID {guid}")]
    NoSuchLeaf {
        /// The GUID.
        guid: u64,
    },
    /// What should be taken or given back is not as the caller believes: the space maps are damaged.
    #[error("space at {vdev}:{offset:#x}+{len_bytes:#x}: {fault}")]
    Space {
        /// Top-level vdev.
        vdev: u32,
        /// Where in it.
        offset: u64,
        /// How much.
        len_bytes: u64,
        /// What is wrong.
        fault: SpaceFault,
    },
    /// Bytes that cannot become a block as was asked.
    #[error("a block cannot be made: {fault}")]
    Unencodable {
        /// Why not.
        fault: CodecError,
    },
    /// A block of a size that the format does not have.
    #[error("a block of {len_bytes} bytes is not possible")]
    BadSize {
        /// Its size.
        len_bytes: u64,
    },
    /// The computation that made the block ended without a result.
    #[error("a block's computation was lost")]
    ComputeLost,
    /// A block pointer that no pool can contain.
    #[error("forged or damaged block pointer: {field} = {value:#x} (address {vdev}:{offset:#x})")]
    InvalidPointer {
        /// Top-level vdev that the pointer names.
        vdev: u32,
        /// Offset that the pointer names.
        offset: u64,
        /// The impossible field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}

impl BlockError {
    /// How much the error tells: of several copies' errors, the one that tells most is reported. A device's error outweighs
    /// wrong bytes: what the device did not give may be right.
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

    /// The one of two copies' errors to report; of missing devices, all.
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

/// Keeps the more telling of the errors seen so far.
pub(crate) fn note(worst: &mut Option<BlockError>, error: BlockError) {
    *worst = Some(match worst.take() {
        Some(first) => first.worse(error),
        None => error,
    });
}

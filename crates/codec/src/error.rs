//! Errors of checksums, decompression, decryption and parity.

use thiserror::Error;
use weir_format::{ChecksumKind, CompressionKind};

/// Why stored bytes could not be turned into a block. The caller adds the location.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CodecError {
    /// The checksum differs: the bytes are corrupt.
    #[error("{} checksum is {actual:x?} instead of {expected:x?}", kind.name())]
    Checksum {
        /// The checksum function.
        kind: ChecksumKind,
        /// The checksum words in the pointer or the trailer.
        expected: [u64; 4],
        /// The checksum words of the bytes.
        actual: [u64; 4],
    },
    /// A block with embedded checksum has no trailer: it was never written, or was overwritten.
    #[error("no {} checksum trailer: its magic number is {found:#x}", kind.name())]
    NoTrailer {
        /// The checksum function.
        kind: ChecksumKind,
        /// The value in place of the magic number (little-endian); 0 if the block is too short.
        found: u64,
    },
    /// The checksum kind cannot be used for this block.
    #[error("checksum kind {} cannot verify this block", kind.name())]
    ChecksumKind {
        /// The kind.
        kind: ChecksumKind,
    },
    /// The compressed bytes do not decompress to the block.
    #[error("{} block of {compressed_bytes} bytes does not expand to {logical_bytes} bytes: {fault}", kind.name())]
    Decompress {
        /// The compression function.
        kind: CompressionKind,
        /// Number of compressed bytes.
        compressed_bytes: usize,
        /// Expected number of decompressed bytes.
        logical_bytes: usize,
        /// Why decompression failed.
        fault: DecompressFault,
    },
    /// The compression kind has no compressor.
    #[error("compression kind {} has no compressor", kind.name())]
    CompressionKind {
        /// The kind.
        kind: CompressionKind,
    },
    /// The wrapping key does not unwrap the dataset's keys: wrong passphrase or key file, or a corrupt key object.
    #[error("the key does not unlock this dataset: wrong passphrase or key")]
    WrongKey,
    /// The key material is malformed.
    #[error("{what}: {problem}")]
    KeyMaterial {
        /// The material: `hex key`, `raw key`, `passphrase`.
        what: &'static str,
        /// The problem.
        problem: &'static str,
    },
    /// Encrypted or authenticated bytes do not match their MAC.
    #[error("authentication of {what} failed")]
    Authentication {
        /// The data that was authenticated.
        what: &'static str,
    },
    /// A number in an encryption key object is not supported.
    #[error("unsupported {field} {value} in the encryption key object")]
    UnknownCrypt {
        /// The field.
        field: &'static str,
        /// The value.
        value: u64,
    },
    /// A dnode or log block to be decrypted is inconsistent.
    #[error("{what} at byte {offset} exceeds the bounds of its block")]
    Structure {
        /// The structure.
        what: &'static str,
        /// Byte offset of the structure in the block.
        offset: usize,
    },
    /// Invalid numbers or lengths of the columns of a RAID-Z row.
    #[error(
        "RAID-Z row of {data_columns} data columns, {parity_columns} parities, {missing_columns} missing: {problem}"
    )]
    Columns {
        /// Number of data columns.
        data_columns: usize,
        /// Number of parity columns given.
        parity_columns: usize,
        /// Number of missing data columns.
        missing_columns: usize,
        /// The problem.
        problem: &'static str,
    },
}

/// Why compressed bytes cannot be decompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecompressFault {
    /// The input ends before the block is complete.
    #[error("input ends early")]
    Truncated,
    /// The input refers to bytes before the block's start, or is otherwise malformed.
    #[error("invalid input")]
    Invalid,
    /// The decompressed size differs from the size of the block.
    #[error("decompressed size mismatch")]
    Length,
}

//! What can be wrong with bytes that should be a block.

use thiserror::Error;
use weir_format::{ChecksumKind, CompressionKind};

/// Why stored bytes did not become a block. *Where* they lay is the caller's to add.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CodecError {
    /// The bytes are not those that were written.
    #[error("{} checksum is {actual:x?} instead of {expected:x?}", kind.name())]
    Checksum {
        /// The function.
        kind: ChecksumKind,
        /// The words that the pointer (or the trailer) holds.
        expected: [u64; 4],
        /// The words of the bytes at hand.
        actual: [u64; 4],
    },
    /// A block that should carry its own checksum has no trailer: never written, or overwritten.
    #[error("no {} checksum trailer: its magic number is {found:#x}", kind.name())]
    NoTrailer {
        /// The function.
        kind: ChecksumKind,
        /// What stands where the magic number should be (little-endian); 0 if the block is too short to have one.
        found: u64,
    },
    /// A checksum kind that a block pointer cannot have or that needs what was not given.
    #[error("checksum kind {} is none that a block can be verified by", kind.name())]
    ChecksumKind {
        /// The kind.
        kind: ChecksumKind,
    },
    /// Compressed bytes that do not decompress to the block.
    #[error("{} block of {compressed_bytes} bytes does not expand to {logical_bytes} bytes: {fault}", kind.name())]
    Decompress {
        /// The function.
        kind: CompressionKind,
        /// Bytes given.
        compressed_bytes: usize,
        /// Bytes that should come out.
        logical_bytes: usize,
        /// What is wrong.
        fault: DecompressFault,
    },
    /// A compression kind that names no function.
    #[error("compression kind {} names no function", kind.name())]
    CompressionKind {
        /// The kind.
        kind: CompressionKind,
    },
    /// The wrapping key does not open the dataset's key: a wrong passphrase or key file (or a damaged key object).
    #[error("the key does not open this dataset: wrong passphrase or key")]
    WrongKey,
    /// Key material that is not a key.
    #[error("{what}: {problem}")]
    KeyMaterial {
        /// Which material: `hex key`, `raw key`, `passphrase`.
        what: &'static str,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Encrypted or authenticated bytes that were not written by a holder of the key.
    #[error("{what} fails its authentication")]
    Authentication {
        /// What was authenticated.
        what: &'static str,
    },
    /// A number of the encryption format that this program does not know.
    #[error("{field} {value} of the encryption format is unknown")]
    UnknownCrypt {
        /// Which number.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// A block to decrypt whose inner structure contradicts itself.
    #[error("{what} at byte {offset} of the block contradicts the block's bounds")]
    Structure {
        /// Which structure.
        what: &'static str,
        /// Where it starts in the block.
        offset: usize,
    },
    /// Columns of a RAID-Z row that no row can have.
    #[error(
        "RAID-Z row of {data_columns} data columns, {parity_columns} parities, {missing_columns} missing: {problem}"
    )]
    Columns {
        /// Data columns.
        data_columns: usize,
        /// Parity columns given.
        parity_columns: usize,
        /// Missing data columns.
        missing_columns: usize,
        /// What is wrong with them.
        problem: &'static str,
    },
}

/// What is wrong with compressed bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecompressFault {
    /// They end before the block is complete.
    #[error("input ends early")]
    Truncated,
    /// They refer to bytes before the block's start, or are otherwise none that the compressor makes.
    #[error("invalid input")]
    Invalid,
    /// They are valid, but the outcome is shorter or longer than the block.
    #[error("another length comes out")]
    Length,
}

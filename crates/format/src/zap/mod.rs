//! ZAPs (OpenZFS `include/sys/zap_impl.h`, `zap_leaf.h`, `module/zfs/zap*.c`): on-disk maps from names to integer
//! arrays, in two forms.
//!
//! *Micro*: one block of 64-byte slots, each a name of up to 49 bytes and one 64-bit value ([`MicroZap`]).
//!
//! *Fat*: an extendible hash table. The hash's leading bits index the *pointer table*, which is in the second half of
//! the header block or in separate blocks and gives the number of the *leaf* block; the next bits pick a chain in the
//! leaf ([`Leaf`]).
//!
//! ```text
//!  hash  | pointer table index (zt_shift bits) |…
//!        | leaf prefix (prefix_len bits) | leaf hash table index (block shift - 5 bits) |…
//! ```
//!
//! A *collision differentiator* (cd) distinguishes entries of equal hash. Names and arrays are stored in chains of
//! 24-byte chunks. All integers are in the block's byte order, except those in a leaf's values, which are big-endian.
//!
//! Invariants: for any input, a chain walk takes at most as many steps as the leaf has chunks; the leaf's size bounds
//! a value's length.

mod build;
mod edit;
mod fat;
mod hash;
mod leaf;
mod micro;
mod swap;
#[cfg(test)]
mod tests;

pub use build::{NewEntry, NewKey, encode_leaf};
pub use edit::{LeafEdit, Slot};
pub use fat::{FatHeader, PointerTable, ZapFlags};
pub use hash::{hash_bytes, hash_words};
pub use leaf::{Leaf, LeafEntry, LeafHeader};
pub use micro::{MicroEntry, MicroZap};
pub use swap::byteswapped;

use crate::cursor::{Cursor, DecodeError, Endian};

pub(crate) const WHAT: &str = "ZAP";

/// How a ZAP normalises names, from its `normflags` (`U8_TEXTPREP_*` in OpenZFS `include/sys/u8_textprep.h`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NormFlags(pub u64);

#[allow(missing_docs)]
impl NormFlags {
    pub const TO_UPPER: u64 = 2;
    pub const TO_LOWER: u64 = 4;
    pub const CANON_DECOMP: u64 = 0x10;
    pub const COMPAT_DECOMP: u64 = 0x20;
    pub const CANON_COMP: u64 = 0x40;
    pub const NFD: u64 = Self::CANON_DECOMP;
    pub const NFC: u64 = Self::CANON_DECOMP | Self::CANON_COMP;
    pub const NFKD: u64 = Self::COMPAT_DECOMP;
    pub const NFKC: u64 = Self::COMPAT_DECOMP | Self::CANON_COMP;

    /// Whether any flag is set.
    pub fn any(self) -> bool {
        self.0 != 0
    }

    /// Whether case is folded.
    pub fn folds_case(self) -> bool {
        self.0 & (Self::TO_UPPER | Self::TO_LOWER) != 0
    }
}

/// Kind of a ZAP block, from its first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum BlockKind {
    Leaf,
    Header,
    Micro,
}

impl BlockKind {
    /// The first word of a leaf.
    pub const LEAF: u64 = 1 << 63;
    /// The first word of a fat ZAP's first block.
    pub const HEADER: u64 = (1 << 63) + 1;
    /// The first word of a micro ZAP.
    pub const MICRO: u64 = (1 << 63) + 3;

    /// Reads the kind from the first word of a block; an error for pointer table blocks, which have no magic number.
    pub fn of(block: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        match Cursor::new(block, endian, WHAT).u64()? {
            Self::LEAF => Ok(BlockKind::Leaf),
            Self::HEADER => Ok(BlockKind::Header),
            Self::MICRO => Ok(BlockKind::Micro),
            found => Err(DecodeError::Magic { what: WHAT, found }),
        }
    }
}

pub(crate) fn bad(field: &'static str, value: u64) -> DecodeError {
    DecodeError::Field { what: WHAT, field, value }
}

/// log2 of a ZAP block's size; an error unless it is a power of two between 512 bytes and 16 MiB.
pub(crate) fn block_shift(block: &[u8]) -> Result<u32, DecodeError> {
    let len = block.len();
    if !len.is_power_of_two() || !(512..=16 << 20).contains(&len) {
        return Err(bad("block size", len as u64));
    }
    Ok(len.trailing_zeros())
}

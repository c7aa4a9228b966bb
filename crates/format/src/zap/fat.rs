//! The first block of a fat ZAP.
//!
//! ```text
//!   0 block type · 8 magic
//!  16 pointer table: first block · blocks · shift · next copy's first block · blocks copied
//!  56 next free block · leaves · entries · salt · normalisation flags · flags
//!   … the second half of the block: the embedded pointer table, if the table is not in separate blocks
//! ```

use super::{BlockKind, NormFlags, WHAT, bad, block_shift};
use crate::cursor::{Cursor, DecodeError, Endian};
use crate::encoder::Encoder;

/// The flags of a ZAP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZapFlags(pub u64);

impl ZapFlags {
    /// Whether the hash has 48 bits; else 28.
    pub fn hash64(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether keys are arrays of 64-bit integers.
    pub fn uint64_key(self) -> bool {
        self.0 & 2 != 0
    }

    /// Whether the key's first word is the hash.
    pub fn pre_hashed(self) -> bool {
        self.0 & 4 != 0
    }
}

/// Location of the pointer table (`zap_table_phys`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PointerTable {
    /// First block of the table; 0 with an embedded table.
    pub first_block: u64,
    /// Number of blocks of the table; 0 with an embedded table.
    pub blocks: u64,
    /// log2 of the number of pointers.
    pub shift: u32,
    /// While the table grows: first block of the larger copy.
    pub next_block: u64,
    /// While the table grows: number of blocks copied so far.
    pub blocks_copied: u64,
}

/// The header of a fat ZAP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FatHeader {
    /// Location of the pointer table.
    pub table: PointerTable,
    /// First block that was never used.
    pub free_block: u64,
    /// Number of leaves.
    pub leaves: u64,
    /// Number of entries.
    pub entries: u64,
    /// Initial value of the hash.
    pub salt: u64,
    /// Normalisation of names.
    pub norm: NormFlags,
    /// Flags.
    pub flags: ZapFlags,
    /// log2 of the block size in bytes.
    pub block_shift: u32,
}

impl FatHeader {
    /// The magic number.
    pub const MAGIC: u64 = 0x2_f52a_b2ab;

    /// Decodes the whole first block of a fat ZAP.
    pub fn decode(block: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let shift = block_shift(block)?;
        let mut c = Cursor::new(block, endian, WHAT);
        let [kind, magic] = c.words()?;
        if kind != BlockKind::HEADER || magic != Self::MAGIC {
            return Err(DecodeError::Magic { what: WHAT, found: if kind == BlockKind::HEADER { magic } else { kind } });
        }
        let [first_block, blocks, table_shift, next_block, blocks_copied] = c.words()?;
        let [free_block, leaves, entries, salt, norm, flags] = c.words()?;
        let embedded_shift = shift - 4;
        let fits = if blocks == 0 {
            table_shift == u64::from(embedded_shift)
        } else {
            // The table is a power of two of whole blocks, indexed by at most 48 hash bits.
            table_shift <= 48
                && table_shift >= u64::from(shift - 3)
                && blocks == 1 << (table_shift - u64::from(shift - 3))
                && first_block.checked_add(blocks).is_some()
        };
        if !fits {
            return Err(bad("pointer table shift", table_shift));
        }
        Ok(FatHeader {
            table: PointerTable { first_block, blocks, shift: table_shift as u32, next_block, blocks_copied },
            free_block,
            leaves,
            entries,
            salt,
            norm: NormFlags(norm),
            flags: ZapFlags(flags),
            block_shift: shift,
        })
    }

    /// Encodes the header, padded to half the block; the caller appends the embedded pointer table or zeros.
    pub fn encode(&self, endian: Endian) -> Vec<u8> {
        let t = &self.table;
        let mut e = Encoder::new(endian);
        e.words(&[BlockKind::HEADER, Self::MAGIC]);
        e.words(&[t.first_block, t.blocks, t.shift.into(), t.next_block, t.blocks_copied]);
        e.words(&[self.free_block, self.leaves, self.entries, self.salt, self.norm.0, self.flags.0]);
        e.pad_to(1 << self.block_shift >> 1);
        e.finish()
    }

    /// The pointer table's index for a hash.
    pub fn index(&self, hash: u64) -> u64 {
        if self.table.shift == 0 { 0 } else { hash >> (64 - self.table.shift) }
    }

    /// Number of pointers in the table.
    pub fn table_len(&self) -> u64 {
        1 << self.table.shift
    }

    /// Whether the pointer table is in the header block.
    pub fn is_embedded(&self) -> bool {
        self.table.blocks == 0
    }

    /// The pointer at `index` in the header block's embedded table: the block number of a leaf.
    pub fn embedded_pointer(&self, block: &[u8], endian: Endian, index: u64) -> Result<u64, DecodeError> {
        let at = usize::try_from(index).ok().filter(|_| index < self.table_len()).ok_or(bad("table index", index))?;
        let mut c = Cursor::new(block, endian, WHAT);
        c.skip((1 << self.block_shift >> 1) + 8 * at)?;
        c.u64()
    }

    /// Block number and byte offset of the pointer at `index`, for a table in separate blocks.
    pub fn external_pointer(&self, index: u64) -> (u64, usize) {
        let per_block_shift = self.block_shift - 3;
        let block = self.table.first_block.saturating_add(index >> per_block_shift);
        (block, ((index & ((1 << per_block_shift) - 1)) << 3) as usize)
    }
}

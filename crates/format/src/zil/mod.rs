//! The intent log (OpenZFS `include/sys/zil.h`, `module/zfs/zil.c`): synchronous changes that are not yet part of a
//! synced txg.
//!
//! ```text
//!  object set header ── ZilHeader.log ──▶ block 0 ──▶ block 1 ──▶ … until a block whose self-checksum fails: the end
//!
//!  new block (checksum kind zilog2)   | chain (184) | record | record | … to `used` |  unused
//!  old block (checksum kind zilog)    | record | record | … to `used` | unused | chain (184) |
//!  chain                              pad · next pointer (128) · used · self-checksum (40)
//!  record                             type (bit 63: ignore case) · length · txg · sequence · body
//! ```
//!
//! A block continues the chain only if its self-checksum was computed with the checksum words of the pointer to it as
//! verifier: two random GUID words, the object set and the block's sequence number. The pointer to the next block
//! differs only in the sequence number ([`next_checksum`]).
//!
//! Invariants: a record takes at least 32 bytes, so the walk of a block terminates; the size of a body bounds the
//! counts in it.

mod encode;
mod record;
#[cfg(test)]
mod tests;

pub use encode::{NewRecord, set_sequence};
pub use record::{
    AclBody, CreateBody, CreateKind, LogBody, LogRecord, LogRecords, RenameKind, TxType, WriteBody, Xvattr,
};

use crate::blkptr::BlockPointer;
use crate::cursor::{Cursor, DecodeError, Endian};
use crate::encoder::Encoder;
use crate::ids::Txg;
use crate::kinds::ChecksumKind;
use crate::label::SelfChecksum;

pub(crate) const WHAT: &str = "intent log";

/// Header of an object set's log (`zil_header_t`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZilHeader {
    /// The txg in which the log's blocks were claimed after a crash; 0 if not claimed.
    pub claim_txg: Txg,
    /// Highest record sequence number that was replayed.
    pub replay_seq: u64,
    /// The first block; a hole if there is no log.
    pub log: BlockPointer,
    /// Highest claimed block sequence number.
    pub claim_block_seq: u64,
    /// Flags: 1 replay needed, 2 `claim_record_seq` is valid.
    pub flags: u64,
    /// Highest claimed record sequence number.
    pub claim_record_seq: u64,
}

impl ZilHeader {
    /// Bytes on disk.
    pub const SIZE: usize = 192;

    /// Decodes 192 bytes.
    pub fn decode(c: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        let [claim_txg, replay_seq] = c.words()?;
        let log = BlockPointer::decode(c)?;
        let [claim_block_seq, flags, claim_record_seq, ..] = c.words::<6>()?;
        Ok(ZilHeader { claim_txg: Txg(claim_txg), replay_seq, log, claim_block_seq, flags, claim_record_seq })
    }

    /// Appends the 192 bytes.
    pub fn encode(&self, e: &mut Encoder) {
        e.words(&[self.claim_txg.0, self.replay_seq]);
        e.words(self.log.words());
        e.words(&[self.claim_block_seq, self.flags, self.claim_record_seq, 0, 0, 0]);
    }

    /// Whether there is no log.
    pub fn is_empty(&self) -> bool {
        self.log.is_hole()
    }
}

/// The link from one log block to the next (`zil_chain_t`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZilChain {
    /// The next block, allocated ahead; its contents may not have been written.
    pub next: BlockPointer,
    /// Bytes of the block in use, including the chain in new blocks and excluding it in old ones.
    pub used_bytes: u64,
    /// Byte order of the chain and of the records.
    pub endian: Endian,
}

impl ZilChain {
    /// Bytes on disk.
    pub const SIZE: usize = 184;

    fn decode(bytes: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let mut c = Cursor::new(bytes, endian, WHAT);
        c.skip(8)?;
        let next = BlockPointer::decode(&mut c)?;
        Ok(ZilChain { next, used_bytes: c.u64()?, endian })
    }

    /// Encodes the chain with an empty self-checksum.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::new(self.endian);
        e.u64(0);
        e.words(self.next.words());
        e.u64(self.used_bytes);
        e.bytes(&SelfChecksum { endian: self.endian, checksum: [0; 4] }.encode());
        e.finish()
    }
}

/// A decoded log block.
#[derive(Clone, Debug)]
pub struct ZilBlock<'a> {
    /// The link to the next block.
    pub chain: ZilChain,
    records: &'a [u8],
}

impl<'a> ZilBlock<'a> {
    /// Decodes a block whose pointer has this checksum kind and byte order. The caller verifies the self-checksum.
    pub fn decode(block: &'a [u8], kind: ChecksumKind, endian: Endian) -> Result<Self, DecodeError> {
        let bad = |value| DecodeError::Field { what: WHAT, field: "bytes in use", value };
        let (chain, from, limit) = if kind == ChecksumKind::Zilog2 {
            (ZilChain::decode(block, endian)?, ZilChain::SIZE, block.len())
        } else {
            let at = block.len().checked_sub(ZilChain::SIZE).ok_or(bad(block.len() as u64))?;
            (ZilChain::decode(block.get(at..).unwrap_or_default(), endian)?, 0, at)
        };
        let used = usize::try_from(chain.used_bytes).ok().filter(|u| *u <= limit).ok_or(bad(chain.used_bytes))?;
        let records = block.get(from..used).ok_or(bad(chain.used_bytes))?;
        Ok(ZilBlock { chain, records })
    }

    /// The records of the block in their order.
    pub fn records(&self) -> LogRecords<'a> {
        LogRecords::new(self.records, self.chain.endian)
    }

    /// Whether the chain continues: the next pointer has the checksum words that follow those of `pointer`, which
    /// refers to this block.
    pub fn continues(&self, pointer: &BlockPointer) -> bool {
        !self.chain.next.is_hole() && self.chain.next.checksum() == next_checksum(pointer.checksum())
    }
}

/// The checksum words of the pointer to the next block, given those of the pointer to this one.
pub fn next_checksum(mut words: [u64; 4]) -> [u64; 4] {
    words[3] = words[3].wrapping_add(1);
    words
}

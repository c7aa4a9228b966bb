//! Walking an object set's intent log, without claiming or replaying anything (its bytes: `weir_format::zil`).
//!
//! The chain ends where a block does not prove itself by its self-checksum: that is how the last block that was allocated
//! but never written looks, so it is no error. A log that was *claimed* at an import ends at the claimed block and record
//! as well: what follows was written by nobody, or again later.
//!
//! Invariants: each block's sequence number is one more than that of the block before, or the chain has ended; so the
//! walk cannot go in circles.

use bytes::Bytes;
use std::sync::Arc;
use weir_blocks::{BlockError, Blocks, ReadOptions};
use weir_dmu::error::{ErrorLocation, ObjectError};
use weir_dmu::object_set::ObjectSet;
use weir_format::zil::{LogRecord, ZilBlock, ZilHeader};
use weir_format::{BlockPointer, ChecksumKind, DecodeError, ObjectId};
use weir_machine::Request;

/// The word of a log pointer's checksum that counts blocks.
const SEQUENCE: usize = 3;
/// The flag of a header whose claimed record number counts.
pub(super) const RECORD_NUMBER_COUNTS: u64 = 2;

/// One block of a log.
#[derive(Clone, Debug)]
pub struct LogBlock {
    /// What leads to it.
    pub pointer: BlockPointer,
    bytes: Bytes,
    kind: ChecksumKind,
    last_record: u64,
}

impl LogBlock {
    /// The block's number in the log.
    pub fn sequence(&self) -> u64 {
        sequence_of(&self.pointer)
    }

    /// The records, up to the last claimed one. In a locked object set only their headers mean anything.
    pub fn records(&self) -> Result<Vec<LogRecord<'_>>, DecodeError> {
        let block = ZilBlock::decode(&self.bytes, self.kind, self.pointer.endian())?;
        let mut out = Vec::new();
        for record in block.records() {
            let record = record?;
            if record.seq > self.last_record {
                break;
            }
            out.push(record);
        }
        Ok(out)
    }
}

pub(super) fn sequence_of(pointer: &BlockPointer) -> u64 {
    pointer.checksum()[SEQUENCE]
}

/// A walk along a log.
pub struct LogWalk {
    blocks: Arc<Blocks>,
    options: ReadOptions,
    next: Option<BlockPointer>,
    last_block: u64,
    last_record: u64,
}

impl LogWalk {
    /// A walk from the first block of an object set's log.
    pub fn new(set: &Arc<ObjectSet>) -> Self {
        let options = ReadOptions { raw: set.is_locked(), ..set.options().clone() };
        LogWalk::over(set.cache().blocks().clone(), options, &set.root().header.zil)
    }

    /// A walk along the log that begins at `header`. With raw `options` an encrypted log is walked without its key.
    pub fn over(blocks: Arc<Blocks>, options: ReadOptions, header: &ZilHeader) -> Self {
        let claimed = header.claim_txg.0 != 0;
        let limit = |counts: bool, at: u64| if counts { at } else { u64::MAX };
        LogWalk {
            blocks,
            options,
            next: Some(header.log).filter(|log| !log.is_hole()),
            last_block: limit(claimed, header.claim_block_seq),
            last_record: limit(claimed && header.flags & RECORD_NUMBER_COUNTS != 0, header.claim_record_seq),
        }
    }

    /// What leads to the next block of the log, whether or not it was ever written; `None` at its end.
    pub fn ahead(&self) -> Option<BlockPointer> {
        self.next.filter(|p| sequence_of(p) <= self.last_block)
    }

    /// The next block; `None` at the end of the log.
    ///
    /// # Errors
    /// A block that is on a missing or failing device. One that does not prove itself is the end.
    pub async fn next(&mut self, rq: &Request) -> Result<Option<LogBlock>, ObjectError> {
        let Some(pointer) = self.ahead() else { return Ok(None) };
        self.next = None;
        let place = self.place(&pointer);
        let kind = pointer.checksum_kind().unwrap_or(ChecksumKind::Zilog2);
        let bytes = match self.blocks.read_zil(rq, &pointer, &self.options).await {
            Ok(bytes) => bytes,
            Err(BlockError::Corrupt { .. } | BlockError::Structure { .. } | BlockError::InvalidPointer { .. }) => {
                return Ok(None);
            }
            Err(error) => return Err(ObjectError::block(place, error)),
        };
        let block = ZilBlock::decode(&bytes, kind, pointer.endian()).map_err(|e| ObjectError::decode(place, e))?;
        if block.continues(&pointer) {
            self.next = Some(block.chain.next);
        }
        Ok(Some(LogBlock { pointer, bytes, kind, last_record: self.last_record }))
    }

    pub(super) fn place(&self, pointer: &BlockPointer) -> ErrorLocation {
        ErrorLocation { objset: self.options.objset, object: ObjectId(0), level: 0, block: sequence_of(pointer) }
    }
}

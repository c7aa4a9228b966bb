//! Walk along an object set's intent log, without claiming or replaying it (on-disk structures: `weir_format::zil`).
//!
//! The chain ends at a block whose embedded checksum does not match. A block that was allocated but never written looks
//! like that, so it is not an error. A log that was *claimed* at an import also ends at the claimed block and record:
//! anything after them was not written, or was written by a device that came back later.
//!
//! Invariant: the sequence number of each block is one more than that of the block before; otherwise the chain has
//! ended. So the walk cannot loop.

use bytes::Bytes;
use std::sync::Arc;
use weir_blocks::{BlockError, Blocks, ReadOptions};
use weir_dmu::error::{ErrorLocation, ObjectError};
use weir_dmu::object_set::ObjectSet;
use weir_format::zil::{LogRecord, ZilBlock, ZilHeader};
use weir_format::{BlockPointer, ChecksumKind, DecodeError, ObjectId};
use weir_machine::{Request, Source};

/// Index of the checksum word of a log pointer that holds the block's sequence number.
const SEQUENCE_WORD: usize = 3;
/// Flag of a header whose claimed record number is valid (`ZIL_CLAIM_LR_SEQ_VALID`).
pub(super) const RECORD_SEQ_VALID: u64 = 2;

/// One block of a log.
#[derive(Clone, Debug)]
pub struct LogBlock {
    /// Pointer to the block.
    pub pointer: BlockPointer,
    bytes: Bytes,
    kind: ChecksumKind,
    last_record: u64,
}

impl LogBlock {
    /// Sequence number of the block in the log.
    pub fn sequence(&self) -> u64 {
        sequence_of(&self.pointer)
    }

    /// Records of the block, up to the last claimed one. If the object set's key is not loaded, only their headers are
    /// meaningful.
    ///
    /// # Errors
    /// [`DecodeError`] if the block or a record is malformed.
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
    pointer.checksum()[SEQUENCE_WORD]
}

/// Walk along a log.
pub struct LogWalk {
    blocks: Arc<Blocks>,
    options: ReadOptions,
    next: Option<BlockPointer>,
    last_block: u64,
    last_record: u64,
}

impl LogWalk {
    /// Walk from the first block of an object set's log.
    pub fn new(set: &Arc<ObjectSet>) -> Self {
        let options = ReadOptions { raw: set.is_locked(), ..set.options().clone() };
        LogWalk::over(set.cache().blocks().clone(), options, &set.root().header.zil)
    }

    /// Walk along the log that begins at `header`. With raw `options` an encrypted log is walked without its key.
    pub fn over(blocks: Arc<Blocks>, options: ReadOptions, header: &ZilHeader) -> Self {
        let claimed = header.claim_txg.0 != 0;
        let limit = |counts: bool, at: u64| if counts { at } else { u64::MAX };
        LogWalk {
            blocks,
            options,
            next: Some(header.log).filter(|log| !log.is_hole()),
            last_block: limit(claimed, header.claim_block_seq),
            last_record: limit(claimed && header.flags & RECORD_SEQ_VALID != 0, header.claim_record_seq),
        }
    }

    /// Pointer to the next block of the log, whether or not the block was ever written; `None` at the end of the log.
    pub fn ahead(&self) -> Option<BlockPointer> {
        self.next.filter(|p| sequence_of(p) <= self.last_block)
    }

    /// Next block; `None` at the end of the log, which includes a block whose checksum does not match.
    ///
    /// # Errors
    /// [`ObjectError::Block`] for a block on a missing or failing device; [`ObjectError::Decode`] for a malformed chain
    /// header.
    pub async fn next(&mut self, rq: &Request) -> Result<Option<LogBlock>, ObjectError> {
        let Some(pointer) = self.ahead() else { return Ok(None) };
        self.next = None;
        let place = self.place(&pointer);
        let kind = pointer.checksum_kind().unwrap_or(ChecksumKind::Zilog2);
        let bytes = match self.blocks.read_zil(rq, &pointer, &self.options).await {
            Ok(bytes) => {
                rq.support(Source::Log, bytes.len() as u64);
                bytes
            }
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

//! Claiming a log at import, and enumerating its blocks (OpenZFS `zil_claim`, `zil_check_log_chain`,
//! `zil_destroy_sync`).
//!
//! After a crash a log may contain blocks that were allocated in txgs that never synced, so the space maps do not hold
//! them. The import *claims* them before it allocates anything. The header records the end of the log at that time: a
//! block that appears later, because a device came back, is not read as part of the log.

use super::walk::{LogWalk, RECORD_SEQ_VALID, sequence_of};
use std::collections::BTreeSet;
use std::sync::Arc;
use weir_blocks::{BlockError, Blocks, ReadOptions};
use weir_dmu::error::{ErrorLocation, ObjectError};
use weir_format::zil::{LogRecord, TxType, ZilHeader};
use weir_format::{BlockPointer, Dva, Txg};
use weir_machine::Request;

/// Flag of a header whose log holds records to replay (`ZIL_REPLAY_NEEDED`).
const REPLAY_NEEDED: u64 = 1;

/// Result of claiming a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Header to write in the first txg.
    pub header: ZilHeader,
    /// Blocks that the space maps do not hold, to allocate in the first txg.
    pub blocks: Vec<BlockPointer>,
    /// File blocks that gain one reference each, from records of cloned ranges.
    pub clones: Vec<BlockPointer>,
}

/// Whether a log holds records that must be replayed before the dataset may be changed.
pub fn needs_replay(header: &ZilHeader) -> bool {
    header.flags & REPLAY_NEEDED != 0
}

/// Follows an unclaimed log; `None` if there is none, or it is already claimed. `first` is the first txg that this
/// import will sync. `options` are raw, or have the dataset's key.
///
/// # Errors
/// [`ObjectError::Block`] for a block on a missing or failing device.
pub async fn claim(
    rq: &Request,
    blocks: &Arc<Blocks>,
    options: &ReadOptions,
    header: &ZilHeader,
    first: Txg,
) -> Result<Option<Claim>, ObjectError> {
    if header.log.is_hole() || header.claim_txg.0 != 0 {
        return Ok(None);
    }
    let mut found = Claim::default();
    let mut taken = BTreeSet::new();
    let mut last_block = 0;
    let mut last_record = 0;
    let mut block_count = 0;
    let mut record_count = 0;
    let mut walk = LogWalk::over(blocks.clone(), options.clone(), header);
    'log: while let Some(pointer) = walk.ahead() {
        collect_unsynced(&mut found.blocks, &mut taken, pointer, first);
        last_block = sequence_of(&pointer);
        block_count += 1;
        let Some(block) = walk.next(rq).await? else { break };
        let Ok(records) = block.records() else { break };
        for record in records {
            if !claim_record(rq, blocks, options, &record, first, &mut found, &mut taken).await? {
                break 'log;
            }
            last_record = record.seq;
            record_count += 1;
        }
    }
    let flags = RECORD_SEQ_VALID | if record_count > 0 || block_count > 1 { REPLAY_NEEDED } else { 0 };
    found.header = ZilHeader {
        claim_txg: first,
        claim_block_seq: last_block,
        claim_record_seq: last_record,
        flags: header.flags | flags,
        ..header.clone()
    };
    Ok(Some(found))
}

fn collect_unsynced(blocks: &mut Vec<BlockPointer>, taken: &mut BTreeSet<Dva>, pointer: BlockPointer, first: Txg) {
    if !pointer.is_hole() && !pointer.is_embedded() && pointer.birth() >= first && taken.insert(pointer.dva(0)) {
        blocks.push(pointer);
    }
}

/// Claims the blocks of a record. Returns false if the record's data was not written: such a record ends the log,
/// because no commit of it has returned.
///
/// # Errors
/// [`ObjectError::Block`] for data on a missing or failing device, because it may have been written.
async fn claim_record(
    rq: &Request,
    blocks: &Arc<Blocks>,
    options: &ReadOptions,
    record: &LogRecord<'_>,
    first: Txg,
    found: &mut Claim,
    taken: &mut BTreeSet<Dva>,
) -> Result<bool, ObjectError> {
    if !has_pointers(record) {
        return Ok(true);
    }
    let Ok(pointers) = record.pointers() else { return Ok(false) };
    if record.tx_type == TxType::CloneRange {
        let shared = |p: &&BlockPointer| !p.is_hole() && !p.is_embedded();
        if pointers.iter().filter(shared).any(|p| p.physical_birth() >= first) {
            return Ok(false);
        }
        found.clones.extend(pointers.iter().filter(shared));
        return Ok(true);
    }
    for pointer in pointers {
        let raw = ReadOptions { raw: true, speculative: true, ..options.clone() };
        let written = !pointer.is_hole() && pointer.birth() >= first;
        if written && let Err(error) = blocks.read(rq, &pointer, &raw).await {
            if matches!(error, BlockError::Device { .. } | BlockError::Missing { .. }) {
                return Err(ObjectError::block(
                    ErrorLocation { objset: options.objset, ..ErrorLocation::default() },
                    error,
                ));
            }
            return Ok(false);
        }
        collect_unsynced(&mut found.blocks, taken, pointer, first);
    }
    Ok(true)
}

fn has_pointers(record: &LogRecord<'_>) -> bool {
    matches!(record.tx_type, TxType::Write | TxType::CloneRange)
}

/// Blocks to free with a log: its own; if it was claimed, also those that only its write records reference, and one
/// reference to each cloned block. The second value is the error that ended the walk early, if any: the blocks behind
/// that position are not found.
pub async fn blocks(
    rq: &Request,
    blocks: &Arc<Blocks>,
    options: &ReadOptions,
    header: &ZilHeader,
) -> (Vec<BlockPointer>, Option<ObjectError>) {
    let claimed = header.claim_txg;
    let mut out = Vec::new();
    let mut seen = BTreeSet::new();
    let mut walk = LogWalk::over(blocks.clone(), options.clone(), header);
    while let Some(pointer) = walk.ahead() {
        out.push(pointer);
        let block = match walk.next(rq).await {
            Ok(Some(block)) => block,
            Ok(None) => break,
            Err(error) => return (out, Some(error)),
        };
        if claimed.0 == 0 {
            continue;
        }
        let Ok(records) = block.records() else { break };
        for record in records.iter().filter(|r| has_pointers(r)) {
            let pointers = record.pointers().unwrap_or_default();
            if record.tx_type == TxType::CloneRange {
                out.extend(pointers.iter().filter(|p| !p.is_hole() && !p.is_embedded()));
                continue;
            }
            pointers.into_iter().for_each(|pointer| collect_unsynced(&mut out, &mut seen, pointer, claimed));
        }
    }
    (out, None)
}

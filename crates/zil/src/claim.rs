//! Claiming a log at import, and finding all its blocks (OpenZFS `zil_claim`, `zil_check_log_chain`, `zil_destroy_sync`).
//!
//! After a crash a log leads to blocks that were allocated in groups that never synced: the space maps know nothing of
//! them. Before anything is allocated again they are *claimed*, and the header remembers how far the log went then: a
//! block that shows up later, because a device came back, is not taken for a part of it.

use super::walk::{LogWalk, RECORD_NUMBER_COUNTS, sequence_of};
use std::collections::BTreeSet;
use std::sync::Arc;
use weir_blocks::{BlockError, Blocks, ReadOptions};
use weir_dmu::error::{ErrorLocation, ObjectError};
use weir_format::zil::{LogRecord, TxType, ZilHeader};
use weir_format::{BlockPointer, Dva, Txg};
use weir_machine::Request;

/// The flag of a header whose log holds records to be replayed.
const REPLAY_NEEDED: u64 = 1;

/// What claiming a log found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// The header to be written in the first group.
    pub header: ZilHeader,
    /// Blocks that the space maps do not know: to be taken in the first group.
    pub blocks: Vec<BlockPointer>,
    /// Blocks of files to which records of cloned ranges add a reference each.
    pub clones: Vec<BlockPointer>,
}

/// Whether a log holds records that must be replayed before the dataset may be changed.
pub fn needs_replay(header: &ZilHeader) -> bool {
    header.flags & REPLAY_NEEDED != 0
}

/// Follows an unclaimed log; `None` if there is none, or it is claimed already. `first` is the first group that this
/// import will sync. `options` are raw, or have the dataset's key.
///
/// # Errors
/// A block that is on a missing or failing device.
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
    let (mut last_block, mut last_record) = (0, 0);
    let (mut block_count, mut record_count) = (0, 0);
    let mut walk = LogWalk::over(blocks.clone(), options.clone(), header);
    'log: while let Some(pointer) = walk.ahead() {
        take(&mut found.blocks, &mut taken, pointer, first);
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
    let flags = RECORD_NUMBER_COUNTS | if record_count > 0 || block_count > 1 { REPLAY_NEEDED } else { 0 };
    found.header = ZilHeader {
        claim_txg: first,
        claim_block_seq: last_block,
        claim_record_seq: last_record,
        flags: header.flags | flags,
        ..header.clone()
    };
    Ok(Some(found))
}

fn take(blocks: &mut Vec<BlockPointer>, taken: &mut BTreeSet<Dva>, pointer: BlockPointer, first: Txg) {
    if !pointer.is_hole() && !pointer.is_embedded() && pointer.birth() >= first && taken.insert(pointer.dva(0)) {
        blocks.push(pointer);
    }
}

/// Whether the record is whole: one whose data was not written any more ends the log, it was promised to nobody.
///
/// # Errors
/// Data on a missing or failing device: they may have been written.
async fn claim_record(
    rq: &Request,
    blocks: &Arc<Blocks>,
    options: &ReadOptions,
    record: &LogRecord<'_>,
    first: Txg,
    found: &mut Claim,
    taken: &mut BTreeSet<Dva>,
) -> Result<bool, ObjectError> {
    if !leads_on(record) {
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
        let raw = ReadOptions { raw: true, ..options.clone() };
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
        take(&mut found.blocks, taken, pointer, first);
    }
    Ok(true)
}

fn leads_on(record: &LogRecord<'_>) -> bool {
    matches!(record.tx_type, TxType::Write | TxType::CloneRange)
}

/// The blocks that are freed with a log: its own; if it was claimed, also those that its write records lead to and hold
/// alone, and one reference to each cloned block. With the error that ended the walk early, if one did: the blocks behind
/// that place are not found.
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
        for record in records.iter().filter(|r| leads_on(r)) {
            let pointers = record.pointers().unwrap_or_default();
            if record.tx_type == TxType::CloneRange {
                out.extend(pointers.iter().filter(|p| !p.is_hole() && !p.is_embedded()));
                continue;
            }
            pointers.into_iter().for_each(|pointer| take(&mut out, &mut seen, pointer, claimed));
        }
    }
    (out, None)
}

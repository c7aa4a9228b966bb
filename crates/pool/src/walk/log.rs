//! Blocks of a dataset's intent log.

use super::{Item, LOG_LEVEL, VisitPosition};
use std::collections::BTreeSet;
use weir_blocks::{Blocks, ReadOptions};
use weir_format::zil::{LogBody, TxType, ZilBlock, ZilHeader};
use weir_format::{BlockPointer, ChecksumKind, Objset, Txg};
use weir_machine::Request;

/// Maximum number of blocks of an intent log that are followed.
const LOG_BLOCKS: usize = 1 << 20;

/// Whether a block is part of an intent log's chain.
pub(super) fn is_log_block(bp: &BlockPointer) -> bool {
    matches!(bp.checksum_kind(), Some(ChecksumKind::Zilog | ChecksumKind::Zilog2))
}

/// Returns the blocks of the intent log in the header of an object set.
pub(super) async fn log_items(
    blocks: &Blocks,
    request: &Request,
    root: &Item,
    header: &[u8],
    before: Txg,
) -> Vec<Item> {
    let Ok(set) = Objset::decode(header, root.bp.endian()) else { return Vec::new() };
    let ZilHeader { claim_txg, log, claim_block_seq, claim_record_seq, flags, .. } = set.zil;
    let claimed = claim_txg != Txg(0);
    let last_block = if claimed { claim_block_seq } else { u64::MAX };
    // Old software did not keep the number of the last record.
    let last_record = if claimed && flags & 2 != 0 { claim_record_seq } else { u64::MAX };
    let mut out: Vec<Item> = Vec::new();
    let mut seen = BTreeSet::new();
    let mut next = log;
    let mut push = |out: &mut Vec<Item>, object: u64, block: u64, bp: BlockPointer| {
        if seen.insert(bp.dva(0)) {
            let at = VisitPosition { objset: root.at.objset, object, level: LOG_LEVEL, block };
            out.push(Item { at, bp, after: Txg(0), log: false, way: root.way });
        }
    };
    for _ in 0..LOG_BLOCKS {
        let Some(kind) = next.checksum_kind().filter(|_| !next.is_hole()) else { break };
        let [.., seq] = next.checksum();
        if seq > last_block || !claimed && next.birth() >= before {
            break;
        }
        push(&mut out, 0, seq, next);
        let options = ReadOptions { raw: true, objset: root.at.objset, ..ReadOptions::default() };
        let Ok(bytes) = blocks.read_zil(request, &next, &options).await else { break };
        let Ok(block) = ZilBlock::decode(&bytes, kind, next.endian()) else { break };
        for record in block.records() {
            let Ok(record) = record else { break };
            if record.seq > last_record {
                return out;
            }
            if !claimed || record.tx_type != TxType::Write {
                continue;
            }
            let old = |p: &BlockPointer| p.is_hole() || p.birth() < claim_txg;
            for pointer in record.pointers().unwrap_or_default().into_iter().filter(|p| !old(p)) {
                // The file of the data is not known without the key.
                let (object, block) = match record.body() {
                    Ok(LogBody::Write(w)) if !next.uses_crypt() => {
                        (w.object.0, w.offset / pointer.lsize_bytes().max(1))
                    }
                    _ => (0, 0),
                };
                push(&mut out, object, block, pointer);
            }
        }
        if !block.continues(&next) || claimed && seq == last_block {
            break;
        }
        next = block.chain.next;
    }
    out
}

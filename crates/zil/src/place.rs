//! Indirect writes: the data of a large write goes to its final location, and its log record points there
//! (`WR_INDIRECT`).
//!
//! Before a batch is packed, the blocks of its large writes are written concurrently, under one hold of the open txg. A
//! write that cannot be placed, because its txg is already closed or for another reason, is logged with its data. The
//! flush of the log covers both.

use super::itx::{Itx, LogPayload, placed_record};
use super::log::{Zil, request};
use futures_util::stream::{self, StreamExt};
use std::sync::Arc;
use weir_dmu::txg::Tx;
use weir_format::BlockPointer;

/// Maximum number of blocks, and of itxs, being placed at the same time.
const MAX_CONCURRENT_WRITES: usize = 32;

/// Part of a write that is in one block.
struct Part {
    block: u64,
    offset: u64,
    length: u64,
}

fn parts(offset: u64, length: u64, block_bytes: u64) -> Vec<Part> {
    let end = offset.saturating_add(length);
    let mut out = Vec::new();
    let mut at = offset;
    while at < end {
        let block = at / block_bytes;
        let until = block.saturating_add(1).saturating_mul(block_bytes).min(end);
        out.push(Part { block, offset: at, length: until - at });
        at = until;
    }
    out
}

/// Writes the data of the batch's large writes to its final location, and replaces their itxs by records that point
/// there.
pub(super) async fn place_large(zil: &Arc<Zil>, itxs: Vec<Itx>) -> Vec<Itx> {
    let is_large = |itx: &Itx| matches!(itx.payload, LogPayload::Write { in_place: Some(_), .. });
    if !itxs.iter().any(is_large) {
        return itxs;
    }
    // A suspended pool has no txg to hold. Writing the log then reports the error.
    let Ok(tx) = zil.txgs.hold() else { return itxs };
    let placed = stream::iter(itxs).map(|itx| place(zil, &tx, itx)).buffered(MAX_CONCURRENT_WRITES);
    placed.flat_map(stream::iter).collect().await
}

async fn place(zil: &Zil, tx: &Tx, itx: Itx) -> Vec<Itx> {
    let LogPayload::Write { offset, length, ref data, in_place: Some(block_bytes) } = itx.payload else {
        return vec![itx];
    };
    if itx.txg != tx.txg() {
        return vec![itx];
    }
    let parts = parts(offset, length, block_bytes);
    let rq = request();
    let place = async |part: &Part| match zil.data.place(&rq, tx, itx.object, part.block).await {
        Ok(pointer) => pointer.filter(|p| p.lsize_bytes() == block_bytes),
        Err(error) => {
            tracing::debug!(set = zil.set.0, %error, "intent log: data of a large write goes into the log");
            None
        }
    };
    let pointers: Vec<Option<BlockPointer>> =
        stream::iter(&parts).map(place).buffered(MAX_CONCURRENT_WRITES).collect().await;
    if pointers.iter().any(Option::is_some) {
        zil.state().unstable_data = true;
    }
    let payload = |(part, pointer): (&Part, Option<BlockPointer>)| match pointer {
        Some(pointer) => LogPayload::Record(placed_record(itx.object, itx.txg, part.offset, part.length, pointer)),
        None => {
            let from = (part.offset - offset) as usize;
            let data = data.as_ref().map(|data| data.slice(from..from + part.length as usize));
            LogPayload::Write { offset: part.offset, length: part.length, data, in_place: None }
        }
    };
    let of = |payload| Itx { payload, ..itx.clone() };
    parts.iter().zip(pointers).map(payload).map(of).collect()
}

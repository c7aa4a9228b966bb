//! Large writes go to their final place, and records that lead there into the log (`WR_INDIRECT`).
//!
//! Before a turn is packed, the blocks of its large writes are written, many at a time, under one hold of the open group.
//! What cannot be placed, because its group is closed already or for any other reason, is logged with its data. The
//! log's flush covers both.

use super::itx::{Itx, LogPayload, placed_record};
use super::log::{Zil, request};
use futures_util::stream::{self, StreamExt};
use std::sync::Arc;
use weir_dmu::txg::Tx;
use weir_format::BlockPointer;

/// Blocks on their way.
const MAX_CONCURRENT_WRITES: usize = 32;

/// The part of a write that is in one block.
struct Part {
    block: u64,
    offset: u64,
    length: u64,
}

fn parts(offset: u64, length: u64, block_bytes: u64) -> Vec<Part> {
    let end = offset.saturating_add(length);
    let (mut out, mut at) = (Vec::new(), offset);
    while at < end {
        let block = at / block_bytes;
        let until = block.saturating_add(1).saturating_mul(block_bytes).min(end);
        out.push(Part { block, offset: at, length: until - at });
        at = until;
    }
    out
}

impl Zil {
    /// Places what is to be placed of the changes that a turn writes.
    pub(super) async fn place_large(self: &Arc<Self>, entries: Vec<Itx>) -> Vec<Itx> {
        let is_large = |entry: &Itx| matches!(entry.said, LogPayload::Write { in_place: Some(_), .. });
        if !entries.iter().any(is_large) {
            return entries;
        }
        // A pool that takes no changes any more has no group to hold; the log will find out.
        let Ok(tx) = self.txgs.hold() else { return entries };
        let placed = stream::iter(entries).map(|entry| self.place(&tx, entry)).buffered(MAX_CONCURRENT_WRITES);
        placed.flat_map(stream::iter).collect().await
    }

    async fn place(&self, tx: &Tx, entry: Itx) -> Vec<Itx> {
        let LogPayload::Write { offset, length, ref data, in_place: Some(block_bytes) } = entry.said else {
            return vec![entry];
        };
        if entry.txg != tx.txg() {
            return vec![entry];
        }
        let parts = parts(offset, length, block_bytes);
        let rq = request();
        let place = async |part: &Part| match self.data.place(&rq, tx, entry.object, part.block).await {
            Ok(pointer) => pointer.filter(|p| p.lsize_bytes() == block_bytes),
            Err(error) => {
                tracing::debug!(set = self.set.0, %error, "intent log: a block goes into the log instead");
                None
            }
        };
        let pointers: Vec<Option<BlockPointer>> =
            stream::iter(&parts).map(place).buffered(MAX_CONCURRENT_WRITES).collect().await;
        if pointers.iter().any(Option::is_some) {
            self.state().unstable_data = true;
        }
        let said = |(part, pointer): (&Part, Option<BlockPointer>)| match pointer {
            Some(pointer) => {
                LogPayload::Record(placed_record(entry.object, entry.txg, part.offset, part.length, pointer))
            }
            None => {
                let from = (part.offset - offset) as usize;
                let data = data.as_ref().map(|data| data.slice(from..from + part.length as usize));
                LogPayload::Write { offset: part.offset, length: part.length, data, in_place: None }
            }
        };
        let of = |said| Itx { txg: entry.txg, object: entry.object, said };
        parts.iter().zip(pointers).map(said).map(of).collect()
    }
}

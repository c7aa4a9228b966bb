//! The pool's history: a ring of packed nvlists in an object of the MOS.

use super::Dsl;
use weir_dmu::error::ObjectError;
use weir_format::dsl::pool;
use weir_format::records::{HistoryHeader, history_records};
use weir_format::{NvList, ObjectId};
use weir_machine::Request;

/// One record: its fields as stored (`history command`, `history time`, `history internal str`, …).
pub type HistoryRecord = NvList;

/// Maximum bytes of history that are read: OpenZFS makes the ring at most 1 GiB, by default 0.1 % of the pool.
const MAX_BYTES: u64 = 256 << 20;

/// All records, oldest first. Records that cannot be decoded are skipped.
pub async fn history(dsl: &Dsl, rq: &Request) -> Result<Vec<HistoryRecord>, ObjectError> {
    let Some(id) = dsl.pool_word(rq, pool::HISTORY).await? else { return Ok(Vec::new()) };
    let object = dsl.mos.object(rq, ObjectId(id)).await?;
    let place = dsl.mos.place(object.id, 0, 0);
    let header = HistoryHeader::decode(object.dnode.bonus(), object.dnode.endian);
    let header = header.map_err(|e| ObjectError::decode(place, e))?;
    // The record of the pool's creation stays at the front; the ring follows.
    let ring = header.size_bytes.saturating_sub(header.create_len);
    let runs = [
        (0, header.create_len),
        (header.begin.max(header.create_len), header.end.saturating_sub(header.begin.max(header.create_len))),
    ];
    let mut out = Vec::new();
    for (start, len) in runs {
        if len > MAX_BYTES || len > ring.max(header.create_len) {
            return Err(ObjectError::Corrupt { place, why: "history is longer than its ring" });
        }
        let mut bytes = Vec::new();
        let mut at = start;
        while at < start.saturating_add(len) {
            let Some(physical) = header.physical(at) else { break };
            let until_wrap = header.size_bytes.saturating_sub(physical);
            let take = (start + len - at).min(until_wrap).min(1 << 20);
            let part = dsl.mos.reader().read(rq, &object, physical, take as usize, header.size_bytes).await?;
            if part.is_empty() {
                break;
            }
            at += part.len() as u64;
            bytes.extend_from_slice(&part);
        }
        out.extend(history_records(&bytes).into_iter().flatten());
    }
    Ok(out)
}

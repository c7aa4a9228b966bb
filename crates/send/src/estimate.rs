//! Estimates the length of a stream from the space accounting of snapshots, without reading them (OpenZFS
//! `dmu_send_estimate_fast`, `dmu_adjust_send_estimate_for_indirects`).
//!
//! The blocks are taken to be of the dataset's record size. Their bytes in the snapshot, less a pointer and plus a
//! record for each, and the records at the beginning and at the end, are the estimate. Objects, free ranges and
//! compression at the receiver are left out.

use crate::error::SendError;
use std::sync::Arc;
use weir_dmu::ObjectSet;
use weir_dsl::bookmarks;
use weir_dsl::props::{self, Value, ZfsProp};
use weir_dsl::space::{BlockBytes, Moment, grown_since};
use weir_dsl::{Dataset, Dsl};
use weir_format::stream::RECORD_BYTES;
use weir_format::{BlockPointer, ObjectId, ObjsetKind};
use weir_machine::Request;

/// Record size of file systems that set none.
const DEFAULT_RECORD_BYTES: u64 = 128 << 10;
/// Object of a volume's data.
const VOLUME_DATA: ObjectId = ObjectId(1);

/// Estimates the bytes of the stream of the snapshot `to`, whose object set is `set`, relative to the snapshot or bookmark
/// `from`. `compressed` streams have compressed blocks as they are (`-c`, `-w`). `None` if `from` is a bookmark that does
/// not remember the sizes: then the stream has to be made to know its length.
///
/// # Errors
/// Errors of reading; the names have been checked.
pub async fn estimate(
    rq: &Request,
    dsl: &Dsl,
    from: Option<&str>,
    (to, set): (&Dataset, &Arc<ObjectSet>),
    compressed: bool,
) -> Result<Option<u64>, SendError> {
    let bytes = match from {
        None => BlockBytes::referenced(&to.phys),
        Some(from) => {
            let Some(moment) = moment_of(rq, dsl, from).await? else { return Ok(None) };
            let Some(grown) = grown_since(dsl, rq, to, &moment).await? else { return Ok(None) };
            grown
        }
    };
    let record_bytes = record_bytes(rq, dsl, to, set).await?;
    Ok(Some(length(bytes, record_bytes, compressed)))
}

fn length(bytes: BlockBytes, record_bytes: u64, compressed: bool) -> u64 {
    let blocks = bytes.uncompressed.checked_div(record_bytes).unwrap_or(0);
    let data = if compressed { bytes.compressed } else { bytes.uncompressed };
    let record = RECORD_BYTES as u64;
    // As OpenZFS computes it: the figures of a damaged pool may wrap, and are shown only.
    data.wrapping_sub(blocks.wrapping_mul(BlockPointer::SIZE as u64))
        .wrapping_add(blocks.wrapping_mul(record))
        .wrapping_add(2 * record)
}

async fn moment_of(rq: &Request, dsl: &Dsl, from: &str) -> Result<Option<Moment>, SendError> {
    let Some((of, _)) = from.split_once('#') else {
        return Ok(Some(Moment::of_snapshot(&dsl.find(rq, from).await?.phys)));
    };
    let Some(dir) = dsl.dir_named(of) else { return Ok(None) };
    let all = bookmarks::bookmarks(dsl, rq, &dsl.head(rq, dir).await?).await?;
    Ok(all.iter().find(|bookmark| bookmark.name == from).and_then(|named| Moment::of_bookmark(&named.bookmark)))
}

async fn record_bytes(rq: &Request, dsl: &Dsl, to: &Dataset, set: &Arc<ObjectSet>) -> Result<u64, SendError> {
    if set.kind() == ObjsetKind::Zvol {
        return Ok(set.object(rq, VOLUME_DATA).await?.block_bytes());
    }
    let Some(dir) = dsl.dir(to.dir) else { return Ok(DEFAULT_RECORD_BYTES) };
    for (_, stored) in dsl.stored_chain(rq, dir).await? {
        if let Some((Value::Number(bytes), _)) = props::stored_value(&stored, ZfsProp::RecordSize.name()) {
            return Ok(*bytes);
        }
    }
    Ok(DEFAULT_RECORD_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_has_a_record_instead_of_a_pointer() {
        let bytes = BlockBytes { allocated: 0, compressed: 100 << 10, uncompressed: 256 << 10 };
        assert_eq!(length(bytes, 128 << 10, false), (256 << 10) + 2 * (312 - 128) + 624);
        assert_eq!(length(bytes, 128 << 10, true), (100 << 10) + 2 * (312 - 128) + 624);
        assert_eq!(length(BlockBytes::default(), 0, false), 624);
    }
}

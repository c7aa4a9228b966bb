//! Changing objects that are arrays of 64-bit integers: lists of block pointers, space maps.

use crate::error::ObjectError;
use crate::object_set::ObjectSet;
use crate::txg::Tx;
use bytes::Bytes;
use std::sync::Arc;
use weir_format::{Endian, ObjectId};
use weir_machine::Request;

/// Writes `words` from index `first` on. Blocks of the other byte order are converted.
pub async fn write_words(
    rq: &Request,
    set: &Arc<ObjectSet>,
    tx: &Tx,
    id: ObjectId,
    first: u64,
    words: &[u64],
) -> Result<(), ObjectError> {
    let object = set.object(rq, id).await?;
    let per_block = object.block_bytes() / 8;
    let mut at = first;
    let mut rest = words;
    while !rest.is_empty() {
        let block = at / per_block;
        let from = at % per_block;
        let (piece, after) = rest.split_at(rest.len().min((per_block - from) as usize));
        let whole = piece.len() as u64 == per_block;
        // A block at the end of the object does not exist yet and needs no conversion.
        let fresh = from == 0 && at.saturating_mul(8) >= object.span_bytes();
        if !whole && !fresh {
            convert_byte_order(rq, set, tx, id, block).await?;
        }
        let bytes: Vec<u8> = piece.iter().flat_map(|w| w.to_le_bytes()).collect();
        set.writes().write(rq, tx, id, at.saturating_mul(8), &bytes).await?;
        at += piece.len() as u64;
        rest = after;
    }
    Ok(())
}

/// Rewrites a big-endian block of integers as little-endian.
async fn convert_byte_order(
    rq: &Request,
    set: &Arc<ObjectSet>,
    tx: &Tx,
    id: ObjectId,
    block: u64,
) -> Result<(), ObjectError> {
    let object = set.object(rq, id).await?;
    if let Some((bytes, Endian::Big)) = set.reader().read_ordered_block(rq, &object, block).await? {
        let mut bytes = bytes.to_vec();
        bytes.chunks_exact_mut(8).for_each(<[u8]>::reverse);
        set.writes().write_block(rq, tx, id, block, Bytes::from(bytes)).await?;
    }
    Ok(())
}

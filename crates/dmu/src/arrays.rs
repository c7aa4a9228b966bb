//! Changing objects that are arrays of 64-bit integers: lists of block pointers, space maps.

use crate::error::ObjectError;
use crate::object_set::ObjectSet;
use crate::txg::Tx;
use bytes::Bytes;
use std::sync::Arc;
use weir_format::{Endian, ObjectId};
use weir_machine::Request;

/// Writes integers from the `first`th on. Blocks that were written in the other byte order are turned.
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
    let (mut at, mut rest) = (first, words);
    while !rest.is_empty() {
        let (block, from) = (at / per_block, at % per_block);
        let (piece, after) = rest.split_at(rest.len().min((per_block - from) as usize));
        let whole = piece.len() as u64 == per_block;
        // Right behind the end there is nothing to be turned.
        let fresh = from == 0 && at.saturating_mul(8) >= object.span_bytes();
        if !whole && !fresh {
            turn(rq, set, tx, id, block).await?;
        }
        let bytes: Vec<u8> = piece.iter().flat_map(|w| w.to_le_bytes()).collect();
        set.write(rq, tx, id, at.saturating_mul(8), &bytes).await?;
        at += piece.len() as u64;
        rest = after;
    }
    Ok(())
}

/// Rewrites a block of integers in this machine's byte order, if it is in the other.
async fn turn(rq: &Request, set: &Arc<ObjectSet>, tx: &Tx, id: ObjectId, block: u64) -> Result<(), ObjectError> {
    let object = set.object(rq, id).await?;
    if let Some((bytes, Endian::Big)) = set.read_ordered_block(rq, &object, block).await? {
        let mut bytes = bytes.to_vec();
        bytes.chunks_exact_mut(8).for_each(<[u8]>::reverse);
        set.write_block(rq, tx, id, block, Bytes::from(bytes)).await?;
    }
    Ok(())
}

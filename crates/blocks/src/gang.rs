//! Gangs: blocks stored in pieces, because no free segment was large enough.
//!
//! ```text
//!  pointer (gang bit) ─► header ─┬─► piece ──────────────► bytes, verified by the piece's own checksum
//!                                ├─► header (a gang again) ─┬─► …
//!                                └─► piece                  └─► …
//! ```
//!
//! All copies of a header are equal, so the first with a matching checksum is used. The sizes of the pieces must add up to
//! the size of the block. This and the limit of the depth bound the cost of a malformed header.

use crate::error::BlockError;
use crate::fault_injection::Stage;
use crate::pipeline::{Blocks, ReadPath};
use crate::vdev::VdevRead;
use futures_util::future::{BoxFuture, join_all};
use weir_codec::checksum::verify_gang_header;
use weir_format::{BlockPointer, DecodeError, gang};
use weir_machine::{Buf, Request};

/// Maximum nesting of gangs.
const MAX_DEPTH: u8 = 16;

/// The part of a header whose checksum matches: all of it, or a header of the classic size at its front.
fn verified_part<'a>(pointer: &BlockPointer, bytes: &'a [u8]) -> Result<&'a [u8], weir_codec::CodecError> {
    let whole = verify_gang_header(pointer, bytes);
    match bytes.get(..gang::CLASSIC_BYTES) {
        Some(front) if whole.is_err() => verify_gang_header(pointer, front).map(|_| front),
        _ => whole.map(|_| bytes),
    }
}

/// The pieces of a block; their sizes must add up to `psize_bytes`.
fn pieces(header: &[u8], psize_bytes: u64) -> Result<Vec<BlockPointer>, DecodeError> {
    let pieces = gang::decode(header)?;
    let bad = |field, value| DecodeError::Field { what: "gang header", field, value };
    if let Some(embedded) = pieces.iter().find(|p| p.is_embedded()) {
        return Err(bad("piece (embedded)", embedded.psize_bytes()));
    }
    // No overflow: each piece is at most 32 MiB and a header has at most 511.
    let total: u64 = pieces.iter().map(BlockPointer::psize_bytes).sum();
    if total != psize_bytes { Err(bad("sum of the pieces", total)) } else { Ok(pieces) }
}

/// Reads the pointers to a gang's pieces.
pub(crate) async fn pieces_of(
    blocks: &Blocks,
    request: &Request,
    pointer: &BlockPointer,
    way: ReadPath,
) -> Result<Vec<BlockPointer>, BlockError> {
    let first = pointer.dva(0);
    let (vdev, offset) = (first.vdev, first.offset_bytes);
    if way.depth >= MAX_DEPTH {
        return Err(BlockError::InvalidPointer { vdev, offset, field: "depth of the gang", value: way.depth.into() });
    }
    let mut header = header(blocks, request, pointer, way).await?;
    blocks.inject(pointer, Stage::Gang, header.as_mut());
    let damaged = |fault| BlockError::Structure { vdev, offset, fault };
    let corrupt = |fault| BlockError::Corrupt { vdev, offset, fault };
    let part = if blocks.verifies_checksums() {
        verified_part(pointer, header.as_ref()).map_err(corrupt)?
    } else {
        header.as_ref()
    };
    pieces(part, pointer.psize_bytes()).map_err(damaged)
}

/// Reads the physical bytes of a gang; the checksum of each piece is verified.
pub(crate) fn read<'a>(
    blocks: &'a Blocks,
    request: &'a Request,
    pointer: &'a BlockPointer,
    way: ReadPath,
) -> BoxFuture<'a, Result<Buf, BlockError>> {
    Box::pin(async move {
        let pieces = pieces_of(blocks, request, pointer, way).await?;
        let deeper = ReadPath { depth: way.depth + 1, ..way };
        let parts = join_all(pieces.iter().map(|p| blocks.physical(request, p, deeper))).await;
        let mut block = blocks.buffer(pointer.psize_bytes() as usize);
        let mut rest = block.as_mut();
        for part in parts {
            let part = part?;
            let (front, tail) = std::mem::take(&mut rest).split_at_mut(part.len());
            front.copy_from_slice(part.as_ref());
            rest = tail;
        }
        Ok(block)
    })
}

/// Reads a copy of the header whose checksum matches; a scrub reads all copies and repairs those that do not.
async fn header(blocks: &Blocks, request: &Request, pointer: &BlockPointer, way: ReadPath) -> Result<Buf, BlockError> {
    let job = VdevRead { psize_bytes: gang::CLASSIC_BYTES as u64, ..blocks.healing_job(request, pointer, way) };
    let sizes = pointer.dvas().filter_map(|d| blocks.tree().gang_header_bytes(d.vdev));
    let len = sizes.min().unwrap_or(0).clamp(gang::CLASSIC_BYTES as u64, gang::MAX_BYTES as u64);
    let verify =
        |bytes: &[u8]| if blocks.verifies_checksums() { verified_part(pointer, bytes).map(drop) } else { Ok(()) };
    blocks.any_copy(&job, pointer, len, &verify).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_format::Endian;

    /// A plain pointer of `sectors` physical sectors.
    fn piece(sectors: u64) -> BlockPointer {
        let mut words = [0; 16];
        words[0] = sectors;
        words[1] = 1;
        words[6] = (sectors - 1) << 16 | (sectors - 1);
        BlockPointer::from_words(words)
    }

    #[test]
    fn pieces_must_add_up() {
        let header = gang::encode(&[piece(3), piece(5)], 512, Endian::Little).unwrap();
        assert_eq!(pieces(&header, 8 << 9).unwrap().len(), 2);
        assert!(pieces(&header, 7 << 9).is_err() && pieces(&header, 9 << 9).is_err());
        assert!(pieces(&[0; 512], 512).is_err());
        let mut words = *piece(1).words();
        words[6] |= 1 << 39;
        let header = gang::encode(&[BlockPointer::from_words(words)], 512, Endian::Little).unwrap();
        assert!(pieces(&header, 1).is_err(), "an embedded piece");
    }
}

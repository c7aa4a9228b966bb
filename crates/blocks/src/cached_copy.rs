//! Copies of blocks outside the pool, on cache devices (L2ARC): the stored form of a block that is in memory, and the way
//! back from a copy to verified bytes.
//!
//! A copy is what the pool's devices hold: compressed and encrypted. So the checksum of the block pointer proves it, and a
//! copy that is stale, overwritten or damaged is detected like any other wrong block.
//!
//! Source: OpenZFS `module/zfs/arc.c` (`l2arc_apply_transforms`, `l2arc_read_done`).

use crate::error::BlockError;
use crate::freeze::freeze;
use crate::pipeline::{Blocks, ReadOptions};
use bytes::Bytes;
use weir_codec::checksum::verify_block;
use weir_codec::compress::ZstdLevel;
use weir_codec::{CodecError, compress};
use weir_format::{BlockPointer, ChecksumKind, CompressionKind};
use weir_machine::{Buf, Request};

/// Whether the checksum in a pointer proves a copy of the block: not that of a gang, whose pointer has the checksum of a
/// header, and of no block without a checksum of its own.
pub fn is_provable(pointer: &BlockPointer) -> bool {
    let is_own = !matches!(
        pointer.checksum_kind(),
        None | Some(
            ChecksumKind::Inherit
                | ChecksumKind::On
                | ChecksumKind::Off
                | ChecksumKind::NoParity
                | ChecksumKind::Label
                | ChecksumKind::GangHeader
                | ChecksumKind::Zilog
                | ChecksumKind::Zilog2
        )
    );
    is_own && !pointer.is_gang() && !pointer.is_embedded() && !pointer.is_hole() && pointer.compression().is_some()
}

/// The stored form of a block from its logical bytes, without padding; `None` if it has to be read from the pool.
///
/// A compressed block is compressed again, which may give other bytes than its writer stored: only those that have the
/// block's checksum are returned. Not attempted are encrypted blocks, those of zstd, whose level the pointer does not have,
/// and those of gzip, which takes longer than to read the block again.
pub fn stored_form(blocks: &Blocks, pointer: &BlockPointer, logical: &Bytes) -> Option<Bytes> {
    if pointer.is_encrypted() || logical.len() as u64 != pointer.lsize_bytes() {
        return None;
    }
    let psize = usize::try_from(pointer.psize_bytes()).ok()?;
    match pointer.compression()? {
        CompressionKind::Off => (psize == logical.len()).then(|| logical.clone()),
        kind @ (CompressionKind::Lz4 | CompressionKind::Lzjb | CompressionKind::Zle) => {
            let mut stored = vec![0; psize];
            compress(kind, ZstdLevel::DEFAULT, logical, &mut stored).ok()??;
            verify_block(pointer, &blocks.salt, &stored).ok()?;
            Some(Bytes::from(stored))
        }
        _ => None,
    }
}

/// Verifies a copy of a block's stored bytes, and returns its logical bytes, or with `options.raw` the stored ones.
///
/// `verifies` is false only in tests that show that the checksum is what detects wrong copies.
///
/// # Errors
/// [`BlockError::Corrupt`] if the bytes are not those of the block; [`BlockError::NoKey`].
pub fn open_copy(
    blocks: &Blocks,
    request: &Request,
    pointer: &BlockPointer,
    options: &ReadOptions,
    copy: Buf,
    verifies: bool,
) -> Result<Bytes, BlockError> {
    let dva = pointer.dva(0);
    let wrong = |fault: CodecError| BlockError::Corrupt { vdev: dva.vdev, offset: dva.offset_bytes, fault };
    if verifies && blocks.verifies_checksums() {
        request.compute(blocks.clock(), || verify_block(pointer, &blocks.salt, copy.as_ref())).map_err(wrong)?;
    }
    if options.raw {
        return Ok(freeze(copy));
    }
    blocks.open(request, pointer, options, copy)
}

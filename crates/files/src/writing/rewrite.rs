//! Writing the blocks of a file anew with the same contents (`zfs rewrite`; OpenZFS `module/zfs/zfs_vnops.c`, `zfs_rewrite`).
//!
//! New blocks have the present compression, checksum and number of copies, and a new place. No time changes, and the intent log gets no
//! record: after a power cut the old blocks are there, which have the same contents. A block that a snapshot or clone shares stays as it
//! is there, so the space of both is used. Nop-writes apply as to other writes ([`weir_blocks`]): with a checksum such as SHA-256, a block
//! that would be the same stays in its place.

use super::access_checks;
use super::data::PIECE_BYTES;
use super::node::Node;
use super::quota::owners;
use crate::change::Cred;
use crate::error::FileError;
use crate::file_system::Seek;
use crate::handles::Contents;
use std::ops::Range;
use weir_dmu::live::SpaceReserve;
use weir_format::ObjectId;
use weir_machine::Request;

/// Writes the blocks of a range of a file anew; holes stay holes. Other writers of the file get their turns between pieces of it.
pub(super) async fn rewrite(
    contents: Contents<'_>,
    rq: &Request,
    cred: &Cred,
    file: ObjectId,
    range: Range<u64>,
) -> Result<(), FileError> {
    let files = contents.files;
    let writing = files.writing()?;
    let mut at = range.start;
    while at < range.end {
        let _held = writing.locks.one(rq, file).await;
        let node = files.nodes().load(rq, file).await?.require_file()?;
        access_checks::write(cred, &node, false)?;
        let end = range.end.min(node.size_bytes());
        let data = contents.seek(rq, file, at, Seek::Data).await?;
        let Some(data) = data.filter(|data| *data < end) else { return Ok(()) };
        let hole = contents.seek(rq, file, data, Seek::Hole).await?.unwrap_or(end);
        let block_bytes = node.object.block_bytes();
        let piece_bytes = block_bytes.max(PIECE_BYTES as u64);
        let start = data / block_bytes * block_bytes;
        let until = hole.min(end).min((start / piece_bytes + 1) * piece_bytes);
        debug_assert!(until > at && start <= data, "{start}..{until} from {at}");
        rewrite_piece(contents, rq, &node, start..until).await?;
        at = until;
    }
    Ok(())
}

/// Writes a range that begins with a block, and has no hole, in a transaction of its own.
async fn rewrite_piece(contents: Contents<'_>, rq: &Request, node: &Node, range: Range<u64>) -> Result<(), FileError> {
    let files = contents.files;
    let len = range.end - range.start;
    let objects = files.objects();
    let data = objects.reader().read(rq, &node.object, range.start, len as usize, node.size_bytes()).await;
    let data = data.map_err(|e| FileError::of(e, &node.object))?;
    debug_assert_eq!(data.len() as u64, len, "the range is within the file");
    files.quotas().may_grow(rq, &owners(node)).await?;
    let tx = files.begin(rq, len, SpaceReserve::Normal).await?;
    contents.write_piece(rq, &tx, node, range.start, &data).await?;
    objects.account_write(rq, &tx, node.id, range.start, len);
    Ok(())
}

//! Commands that read and change blocks.
//!
//! Changes lock their range ([`super::ranges`]): COMPARE AND WRITE and ORWRITE exclude all other changes of their blocks,
//! which makes them atomic towards every session of every target. Long commands work in pieces of [`PIECE_BYTES`].
//!
//! **Stability.** A write is stable when it is answered if the command forces unit access, or the unit has no write cache.
//! VERIFY and WRITE AND VERIFY first make the blocks stable: what they then read is what a power cut leaves.

use super::cdb::{BLOCK_BYTES, Compare, Transfer};
use super::execute::{Context, Failure};
use super::inquiry::{MAX_COMPARE_BLOCKS, MAX_TRANSFER_BLOCKS, MAX_UNMAP_DESCRIPTORS, blocks_of};
use super::sense::{Sense, code, key};
use super::unit::OpenUnit;
use bytes::Bytes;
use futures_util::future::try_join_all;
use std::ops::Range;
use weir_front::{BlockError, Pieces};
use weir_machine::compact;

/// Size of the pieces of long commands in bytes.
pub const PIECE_BYTES: u64 = 1 << 20;
/// Maximum number of blocks that PRE-FETCH reads; the rest of its range is ignored.
const MAX_PREFETCH_BYTES: u64 = 8 << 20;
/// Size of a descriptor of UNMAP and of GET LBA STATUS in bytes.
const DESCRIPTOR_BYTES: usize = 16;
/// Maximum number of descriptors in the data of GET LBA STATUS.
const MAX_STATUS_DESCRIPTORS: usize = 1024;

/// Whether an operation reads or changes blocks: decides what its error means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The operation reads.
    Read,
    /// The operation changes.
    Change,
}

/// The sense data for an error at a block. An I/O error is logged, because the client sees no cause.
pub fn failed(context: &Context<'_>, direction: Direction, lba: u64, error: &BlockError) -> Failure {
    let sense = match error {
        BlockError::Full(_) => Sense::new(key::DATA_PROTECT, code::SPACE_ALLOCATION_FAILED),
        BlockError::ReadOnly => Sense::new(key::DATA_PROTECT, code::WRITE_PROTECTED),
        BlockError::NotFound => Sense::new(key::NOT_READY, code::NOT_READY),
        BlockError::Io(_) => {
            let client = context.rq.client.name();
            tracing::warn!(client, operation = context.rq.operation.name(), lba, %error, "command failed");
            let code = if direction == Direction::Read { code::UNRECOVERED_READ_ERROR } else { code::WRITE_ERROR };
            Sense::new(key::MEDIUM_ERROR, code).with_information(lba)
        }
    };
    Failure::Check(sense)
}

/// Checks that blocks are within the unit.
fn check_range(context: &Context<'_>, lba: u64, blocks: u64) -> Result<(), Sense> {
    let size = blocks_of(&*context.open.device);
    let is_inside = lba < size && lba.checked_add(blocks).is_some_and(|end| end <= size);
    if is_inside { Ok(()) } else { Err(Sense::illegal(code::LBA_OUT_OF_RANGE)) }
}

/// Checks the range of a command that transfers data.
fn check_transfer(context: &Context<'_>, range: &Transfer) -> Result<(), Sense> {
    check_range(context, range.lba, range.blocks.into())?;
    if range.blocks > MAX_TRANSFER_BLOCKS { Err(Sense::in_cdb(length_at(context))) } else { Ok(()) }
}

/// Position of the transfer length in the CDB.
fn length_at(context: &Context<'_>) -> u16 {
    match context.cdb[0] >> 5 {
        0 => 4,
        1 | 2 => 7,
        5 => 6,
        _ => 10,
    }
}

/// The rest of the unit from the start of a range of length 0, else the range.
fn up_to_end(context: &Context<'_>, range: &Transfer) -> Result<(u64, u64), Sense> {
    check_range(context, range.lba, range.blocks.into())?;
    match range.blocks {
        0 => Ok((range.lba, blocks_of(&*context.open.device) - range.lba)),
        blocks => Ok((range.lba, blocks.into())),
    }
}

/// Offset and length of the pieces of a range of bytes.
fn pieces_of(range: Range<u64>) -> impl Iterator<Item = (u64, u64)> {
    let end = range.end;
    std::iter::successors(Some(range.start), |at| Some(at + PIECE_BYTES))
        .take_while(move |at| *at < end)
        .map(move |at| (at, PIECE_BYTES.min(end - at)))
}

/// Reads bytes, pieces concurrently.
async fn read_bytes(context: &Context<'_>, range: Range<u64>) -> Result<Pieces, Failure> {
    let device = &context.open.device;
    let block_bytes = device.block_bytes() as usize;
    let read = |(at, len): (u64, u64)| async move {
        let read = device.read_pieces(context.rq, at, len as usize).await;
        read.map_err(|error| failed(context, Direction::Read, at / BLOCK_BYTES, &error))
    };
    if range.end - range.start <= PIECE_BYTES {
        let pieces = read((range.start, range.end - range.start)).await?;
        return Ok(pieces.into_iter().map(|piece| compact(piece, block_bytes)).collect());
    }
    let read = try_join_all(pieces_of(range).map(read)).await?;
    Ok(read.into_iter().flatten().map(|piece| compact(piece, block_bytes)).collect())
}

/// READ.
pub async fn read(context: &Context<'_>, range: &Transfer) -> Result<Pieces, Failure> {
    check_transfer(context, range)?;
    if range.blocks == 0 {
        return Ok(Pieces::new());
    }
    if range.fua {
        flush(context, range.lba).await?;
    }
    read_bytes(context, range.offset()..range.offset() + range.bytes()).await
}

/// Makes all changes stable.
async fn flush(context: &Context<'_>, lba: u64) -> Result<(), Failure> {
    let flushed = context.open.device.flush(context.rq).await;
    flushed.map_err(|error| failed(context, Direction::Change, lba, &error))
}

/// Checks that the unit may be changed.
fn check_writable(context: &Context<'_>) -> Result<(), Sense> {
    if context.open.unit.mode().software_write_protect {
        return Err(Sense::new(key::DATA_PROTECT, code::SOFTWARE_WRITE_PROTECTED));
    }
    match context.open.device.is_writable() {
        true => Ok(()),
        false => Err(Sense::new(key::DATA_PROTECT, code::WRITE_PROTECTED)),
    }
}

/// Whether a change must be stable when it is answered.
pub fn is_stable(open: &OpenUnit, fua: bool) -> bool {
    fua || !open.has_write_cache()
}

/// Writes bytes of a range that the caller has locked.
async fn write_bytes(context: &Context<'_>, offset: u64, bytes: Bytes, stable: bool) -> Result<(), Failure> {
    let written = context.open.device.write(context.rq, offset, bytes, stable).await;
    written.map_err(|error| failed(context, Direction::Change, offset / BLOCK_BYTES, &error))
}

/// WRITE.
pub async fn write(context: &Context<'_>, range: &Transfer, data: Bytes) -> Result<(), Failure> {
    check_transfer(context, range)?;
    check_writable(context)?;
    if range.blocks == 0 {
        return Ok(());
    }
    // Data beyond what the initiator has is not transferred; the residual count says so.
    let data = at_most(data, range.bytes());
    if data.is_empty() {
        return Ok(());
    }
    let _lock = context.open.unit.ranges.shared(blocks(range)).await;
    write_bytes(context, range.offset(), data, is_stable(context.open, range.fua)).await
}

fn blocks(range: &Transfer) -> Range<u64> {
    range.lba..range.lba + u64::from(range.blocks)
}

/// The first bytes of the data sent; all of them, if the initiator announced fewer than the command needs.
fn at_most(mut data: Bytes, len: u64) -> Bytes {
    data.truncate(usize::try_from(len).unwrap_or(usize::MAX));
    data
}

/// Compares blocks with the data sent, or only reads them.
async fn compare(context: &Context<'_>, range: &Transfer, compare: Compare, data: &[u8]) -> Result<(), Failure> {
    for (at, len) in pieces_of(range.offset()..range.offset() + range.bytes()) {
        let found = read_bytes(context, at..at + len).await?;
        let mut position = (at - range.offset()) as usize;
        for piece in &found {
            let expected = match compare {
                Compare::Nothing => continue,
                Compare::All => data.get(position..position + piece.len()).unwrap_or_default(),
                Compare::One => &[],
            };
            let differs = |(offset, byte): (usize, &u8)| match compare {
                Compare::All => expected.get(offset) != Some(byte),
                _ => data.get((position + offset) % BLOCK_BYTES as usize) != Some(byte),
            };
            if &piece[..] != expected
                && let Some(offset) = piece.iter().enumerate().position(differs)
            {
                let sense = Sense::new(key::MISCOMPARE, code::MISCOMPARE);
                return Err(sense.with_information((position + offset) as u64).into());
            }
            position += piece.len();
        }
        context.check_aborted()?;
    }
    Ok(())
}

/// VERIFY.
pub async fn verify(context: &Context<'_>, range: &Transfer, how: Compare, data: &Bytes) -> Result<(), Failure> {
    check_range(context, range.lba, range.blocks.into())?;
    if how == Compare::All {
        check_transfer(context, range)?;
    }
    if context.open.device.is_writable() && range.blocks > 0 {
        flush(context, range.lba).await?;
    }
    compare(context, range, how, data).await
}

/// WRITE AND VERIFY. What was written stably is read back and compared.
pub async fn write_verify(context: &Context<'_>, range: &Transfer, how: Compare, data: Bytes) -> Result<(), Failure> {
    if how == Compare::One {
        return Err(Sense::in_cdb(1).into());
    }
    write(context, range, data.clone()).await?;
    // Data that the initiator does not have was not written.
    let written = Transfer { blocks: range.blocks.min((data.len() as u64 / BLOCK_BYTES) as u32), ..*range };
    compare(context, &written, Compare::All, &data).await
}

/// Checks that the initiator has announced as many bytes as the command needs: otherwise it means another command.
fn check_announced(context: &Context<'_>, len: u64) -> Result<(), Sense> {
    if u64::from(context.announced_bytes) == len { Ok(()) } else { Err(Sense::in_cdb(length_at(context))) }
}

/// COMPARE AND WRITE: atomic, because the range is locked from the comparison to the write.
pub async fn compare_and_write(context: &Context<'_>, range: &Transfer, data: Bytes) -> Result<(), Failure> {
    check_range(context, range.lba, range.blocks.into())?;
    check_writable(context)?;
    debug_assert!(range.blocks <= MAX_COMPARE_BLOCKS, "one byte of the CDB");
    check_announced(context, 2 * range.bytes())?;
    if range.blocks == 0 {
        return Ok(());
    }
    let mut expected = data;
    let new = expected.split_off(range.bytes() as usize);
    let _lock = context.open.unit.ranges.exclusive(blocks(range)).await;
    compare(context, range, Compare::All, &expected).await?;
    write_bytes(context, range.offset(), new, is_stable(context.open, range.fua)).await
}

/// ORWRITE: atomic like COMPARE AND WRITE.
pub async fn or_write(context: &Context<'_>, range: &Transfer, data: Bytes) -> Result<(), Failure> {
    check_transfer(context, range)?;
    check_writable(context)?;
    if range.blocks == 0 {
        return Ok(());
    }
    check_announced(context, range.bytes())?;
    let _lock = context.open.unit.ranges.exclusive(blocks(range)).await;
    let found = read_bytes(context, range.offset()..range.offset() + range.bytes()).await?;
    let old = found.iter().flat_map(|piece| piece.iter());
    let new: Vec<u8> = data.iter().zip(old).map(|(new, old)| new | old).collect();
    debug_assert_eq!(new.len() as u64, range.bytes());
    write_bytes(context, range.offset(), new.into(), is_stable(context.open, range.fua)).await
}

/// WRITE SAME: zeros free the blocks, whether or not it is asked to unmap them; other contents are written.
pub async fn write_same(
    context: &Context<'_>,
    range: &Transfer,
    (unmap, anchor): (bool, bool),
    data: Option<Bytes>,
) -> Result<(), Failure> {
    check_writable(context)?;
    if anchor {
        return Err(Sense::in_cdb(1).into());
    }
    if data.is_some() {
        check_announced(context, BLOCK_BYTES)?;
    }
    check_range(context, range.lba, range.blocks.into())?;
    if range.blocks == 0 {
        return Err(Sense::in_cdb(length_at(context)).into());
    }
    let Range { start: lba, end } = blocks(range);
    let count = end - lba;
    let pattern = data.filter(|pattern| pattern.iter().any(|byte| *byte != 0));
    let stable = is_stable(context.open, range.fua);
    let _lock = context.open.unit.ranges.shared(lba..lba + count).await;
    let range = lba * BLOCK_BYTES..(lba + count) * BLOCK_BYTES;
    tracing::trace!(lba, count, unmap, "WRITE SAME");
    let Some(pattern) = pattern else {
        let zeroed = context.open.device.write_zeroes(context.rq, range.start, range.end - range.start, stable).await;
        return zeroed.map_err(|error| failed(context, Direction::Change, lba, &error));
    };
    let whole = Bytes::from(pattern.repeat((PIECE_BYTES.min(range.end - range.start) / BLOCK_BYTES) as usize));
    for (at, len) in pieces_of(range) {
        write_bytes(context, at, whole.slice(..len as usize), false).await?;
        context.check_aborted()?;
    }
    if stable { flush(context, lba).await } else { Ok(()) }
}

/// UNMAP: the ranges read as zeros afterwards, as the unit reports (LBPRZ), and the device's blocks that lie entirely within
/// them are freed.
pub async fn unmap(context: &Context<'_>, anchor: bool, list: &[u8]) -> Result<(), Failure> {
    check_writable(context)?;
    if anchor {
        return Err(Sense::in_cdb(1).into());
    }
    if list.is_empty() {
        return Ok(());
    }
    let (head, descriptors) = list.split_first_chunk::<8>().ok_or(Sense::illegal(code::PARAMETER_LIST_LENGTH))?;
    let len = usize::from(u16::from_be_bytes([head[2], head[3]])).min(descriptors.len());
    let descriptors = descriptors[..len].chunks_exact(DESCRIPTOR_BYTES);
    if descriptors.len() > MAX_UNMAP_DESCRIPTORS as usize {
        return Err(Sense::in_list(2).into());
    }
    let ranges: Vec<(u64, u32)> = descriptors.map(|one| (word_64(one, 0), word_32(one, 8))).collect();
    for (lba, count) in ranges.iter().filter(|(_, count)| *count > 0) {
        check_range(context, *lba, (*count).into())?;
    }
    let stable = is_stable(context.open, false);
    for (lba, count) in ranges.into_iter().filter(|(_, count)| *count > 0) {
        let _lock = context.open.unit.ranges.shared(lba..lba + u64::from(count)).await;
        let len = u64::from(count) * BLOCK_BYTES;
        let freed = context.open.device.write_zeroes(context.rq, lba * BLOCK_BYTES, len, stable).await;
        freed.map_err(|error| failed(context, Direction::Change, lba, &error))?;
        context.check_aborted()?;
    }
    Ok(())
}

fn word_64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u64::from_be_bytes(*word))
}

fn word_32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_be_bytes(*word))
}

/// GET LBA STATUS data: mapped and deallocated ranges from `lba` on.
pub async fn status(context: &Context<'_>, lba: u64, room: u32) -> Result<Vec<u8>, Failure> {
    check_range(context, lba, 0)?;
    let max = ((room as usize).saturating_sub(8) / DESCRIPTOR_BYTES).clamp(1, MAX_STATUS_DESCRIPTORS);
    let len = (blocks_of(&*context.open.device) - lba) * BLOCK_BYTES;
    let extents = context.open.device.extents(context.rq, lba * BLOCK_BYTES, len, max).await;
    let extents = extents.map_err(|error| failed(context, Direction::Read, lba, &error))?;
    let mut list = Vec::new();
    let mut at = lba;
    for extent in extents {
        let mut left = extent.len_bytes / BLOCK_BYTES;
        while left > 0 && list.len() < max * DESCRIPTOR_BYTES {
            let count = u32::try_from(left).unwrap_or(u32::MAX);
            list.extend_from_slice(&at.to_be_bytes());
            list.extend_from_slice(&count.to_be_bytes());
            list.extend_from_slice(&[u8::from(!extent.data), 0, 0, 0]);
            at += u64::from(count);
            left -= u64::from(count);
        }
    }
    let mut out = (list.len() as u32 + 4).to_be_bytes().to_vec();
    out.extend_from_slice(&[0; 4]);
    out.extend(list);
    Ok(out)
}

/// SYNCHRONIZE CACHE: makes all changes of the unit stable.
pub async fn synchronize(context: &Context<'_>, range: &Transfer) -> Result<(), Failure> {
    up_to_end(context, range)?;
    flush(context, range.lba).await
}

/// PRE-FETCH: reads blocks into the cache.
pub async fn prefetch(context: &Context<'_>, range: &Transfer) -> Result<(), Failure> {
    let (lba, count) = up_to_end(context, range)?;
    let start = lba * BLOCK_BYTES;
    let end = start + (count * BLOCK_BYTES).min(MAX_PREFETCH_BYTES);
    for (at, len) in pieces_of(start..end) {
        drop(read_bytes(context, at..at + len).await?);
    }
    Ok(())
}

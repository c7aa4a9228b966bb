//! The usual read of RAID-Z: every data column directly into its position in the block.
//!
//! ```text
//!   block   │ D0      │ D1      │ D2      │ D3      │     one buffer, split into parts that are owned separately
//!             ▲ child 2  ▲ child 3  missing   ▲ child 5    each child fills its part; parity columns have buffers of
//!                                   ▲                      their own
//!                                   └ reconstructed in place after the parts are joined again
//! ```
//!
//! No byte is copied, and no memory but the block is needed. It is possible if the block is one row of columns on disks
//! that all respond; otherwise the columns that were read become the cells of the complete read ([`super::raidz`]), which
//! continues from there.

use super::leaf::Leaf;
use super::raidz::{ColumnRef, ColumnState, Read};
use super::{Body, Verify};
use crate::error::{BlockError, note};
use crate::raidz::Column;
use bytes::Bytes;
use futures_util::future::join_all;
use weir_codec::parity;
use weir_machine::Buf;

/// A column being read: its position, whether its device is read, and its part of the block (`None` for parity).
struct Piece {
    at: ColumnRef,
    asked: bool,
    part: Option<Buf>,
}

/// Returns the verified block; `None` if the complete read must continue with the cells.
pub(super) async fn read(read: &mut Read<'_>, verify: Option<Verify<'_>>) -> Option<Buf> {
    let mut wants = read.wants();
    wants.sort_unstable();
    let devices: Vec<&Leaf> = wants.iter().map(|&at| fresh_leaf(read, at)).collect::<Option<_>>()?;
    let mut pieces = cut(read, &wants)?;
    let (target, job, place) = (read.target, read.job, read.place);
    let asked = pieces.iter_mut().filter(|piece| piece.asked);
    let reads = asked.zip(devices).map(|(piece, leaf)| {
        let Column { offset_bytes, size_bytes, .. } = target.map.rows[0].columns[piece.at.1];
        leaf.read_into(job, place, offset_bytes, size_bytes as u64, None, piece.part.take())
    });
    let answers = join_all(reads).await;
    if answers.iter().any(Result::is_err) {
        settle(read, &wants, answers);
        return None;
    }
    for (piece, answer) in pieces.iter_mut().filter(|piece| piece.asked).zip(answers) {
        piece.part = answer.ok();
    }
    let (mut block, parities) = join(read, pieces)?;
    let rebuilt = rebuild(read, &wants, block.as_mut(), &parities).is_some();
    if rebuilt && verify.is_none_or(|prove| prove(block.as_ref()).is_ok()) {
        return Some(block);
    }
    keep(read, &wants, block.into_bytes(), parities);
    None
}

/// The disk behind a column, if it is one that holds the block for sure.
fn fresh_leaf<'a>(read: &Read<'a>, at: ColumnRef) -> Option<&'a Leaf> {
    let vdev = read.target.children.get(read.column(at).child)?;
    match &vdev.body {
        Body::Leaf(leaf) if leaf.read_preference(read.job.birth) == 0 => Some(leaf),
        _ => None,
    }
}

/// Cuts a new block up, in the order of the columns; `None` if it is not one row of columns that follow each other.
fn cut(read: &Read<'_>, wants: &[ColumnRef]) -> Option<Vec<Piece>> {
    let [row] = &read.target.map.rows[..] else { return None };
    let mut rest = read.job.pool.take(read.target.map.len);
    let mut pieces = Vec::with_capacity(row.columns.len());
    let mut end = 0;
    for (c, column) in row.columns.iter().enumerate() {
        let at = (0, c);
        let data = c >= read.target.map.nparity;
        let asked = wants.contains(&at);
        if data && column.size_bytes > 0 {
            if column.at != end {
                return None;
            }
            end += column.size_bytes;
            pieces.push(Piece { at, asked, part: Some(rest.split_to(column.size_bytes)) });
        } else if asked {
            pieces.push(Piece { at, asked, part: None });
        }
    }
    (end == read.target.map.len).then_some(pieces)
}

/// Takes note of what devices gave, when not all of them gave.
fn settle(read: &mut Read<'_>, wants: &[ColumnRef], answers: Vec<Result<Buf, BlockError>>) {
    for (&at, answer) in wants.iter().zip(answers) {
        read.cells[at.0][at.1] = match answer {
            Ok(buf) => ColumnState::Got(buf.into_bytes()),
            Err(error) => {
                note(&mut read.failure, error);
                ColumnState::Failed
            }
        };
    }
}

/// Puts the parts together again, and the parities by their number. Where a part came back in other memory, it goes
/// into its cell with the others, and there is no block.
fn join(read: &mut Read<'_>, pieces: Vec<Piece>) -> Option<(Buf, Vec<(usize, Buf)>)> {
    let nparity = read.target.map.nparity;
    let mut block = None::<Buf>;
    let mut parities = Vec::new();
    let mut strays = Vec::new();
    for Piece { at, asked, part } in pieces {
        let part = part?;
        match &mut block {
            _ if at.1 < nparity => parities.push((at.1, part)),
            None => block = Some(part),
            Some(block) => {
                if let Err(part) = block.rejoin(part) {
                    strays.push((at, asked, part));
                }
            }
        }
    }
    if strays.is_empty() {
        return Some((block?, parities));
    }
    // What was put together so far is asked for again by the thorough read; this is as rare as disks of large sectors.
    for (at, _, part) in strays.into_iter().filter(|stray| stray.1) {
        read.cells[at.0][at.1] = ColumnState::Got(part.into_bytes());
    }
    for (c, part) in parities {
        read.cells[0][c] = ColumnState::Got(part.into_bytes());
    }
    None
}

/// Rebuilds the columns that were not asked for, in place; `None` if there are too few parities.
fn rebuild(read: &Read<'_>, wants: &[ColumnRef], block: &mut [u8], parities: &[(usize, Buf)]) -> Option<()> {
    let nparity = read.target.map.nparity;
    let mut data = Vec::new();
    let mut gaps = Vec::new();
    let mut rest = block;
    for (c, column) in read.target.map.rows[0].columns.iter().enumerate().skip(nparity) {
        let (part, tail) = rest.split_at_mut_checked(column.size_bytes)?;
        rest = tail;
        if column.size_bytes == 0 || wants.contains(&(0, c)) {
            data.push(Some(&*part));
        } else {
            gaps.push(part);
            data.push(None);
        }
    }
    if gaps.is_empty() {
        return Some(());
    }
    let by_number = |c| parities.iter().find(|(n, _)| *n == c).map(|(_, buf)| buf.as_ref());
    let parities: Vec<Option<&[u8]>> = (0..nparity).map(by_number).collect();
    read.job.request.compute(read.job.clock, || parity::reconstruct(&data, &parities, &mut gaps)).ok()
}

/// Keeps a block with a wrong checksum as the columns that were read, so that the complete read can find the wrong one.
fn keep(read: &mut Read<'_>, wants: &[ColumnRef], block: Bytes, parities: Vec<(usize, Buf)>) {
    for &at in wants.iter().filter(|at| at.1 >= read.target.map.nparity) {
        let Column { at: from, size_bytes, .. } = *read.column(at);
        read.cells[at.0][at.1] = ColumnState::Got(block.slice(from..from + size_bytes));
    }
    for (c, part) in parities {
        read.cells[0][c] = ColumnState::Got(part.into_bytes());
    }
}

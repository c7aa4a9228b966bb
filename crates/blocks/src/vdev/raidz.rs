//! Reads RAID-Z and dRAID: reads enough columns, reconstructs missing ones, and if the checksum is wrong, finds the
//! columns with wrong bytes.
//!
//! ```text
//!  1  data columns of current devices; for missing ones, as many parity columns (or columns of devices with a DTL)
//!  2  assemble, reconstruct missing columns, verify the checksum ──────────────────────► done
//!  3  all other columns
//!     (a scrub reads these also if the checksum is right, and compares them with their expected bytes)
//!  4  for each set of at most p suspected devices: leave out their columns, reconstruct, verify ─► done
//!  5  for each side of a child that is a mirror (a disk and its spare): use the columns of that side, and repeat 4
//! ```
//!
//! The cost of step 4 grows with the number of sets. At most [`MAX_ATTEMPTS`] are tried, more than three of forty
//! devices need.

mod heal;
pub(super) mod read;
mod write;

use super::reflow::Snapshot;
use super::{Body, Place, RaidzVdev, Tree, Vdev, VdevRead};
use crate::error::{BlockError, note};
use crate::raidz::{Column, Map, Reflowed, Row, Shadow, Suspect};
use bytes::Bytes;
use futures_util::future::join_all;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use weir_codec::{CodecError, parity};
use weir_format::Txg;
use weir_machine::Buf;

/// Maximum number of sets of suspected devices that are tried for one block.
const MAX_ATTEMPTS: usize = 12_000;

/// A mapped block, and the widths that its vdev has had since it was written.
pub(super) struct RaidzTarget<'a> {
    pub map: Map,
    pub children: &'a [Vdev],
    pub ashift: u32,
    pub widths: RangeInclusive<u64>,
    /// Of a vdev that is being expanded: the snapshot that the map is made from, the layout, and the block's offset.
    pub reflow: Option<(Arc<Snapshot>, Reflowed, u64)>,
}

/// State of a column during a read.
#[derive(Clone)]
pub(super) enum ColumnState {
    /// Not requested.
    Untried,
    /// Bytes from the device, right or wrong.
    Got(Bytes),
    /// The device failed or is missing.
    Failed,
}

/// State of a read, with a cell for each column.
pub(super) struct Read<'a> {
    pub target: &'a RaidzTarget<'a>,
    tree: &'a Tree,
    pub job: &'a VdevRead<'a>,
    pub place: Place,
    pub cells: Vec<Vec<ColumnState>>,
    /// Error of a device.
    pub failure: Option<BlockError>,
    missing: Vec<String>,
}

/// Row and column.
pub(super) type ColumnRef = (usize, usize);

/// Result of an attempt to reconstruct the block.
#[derive(PartialEq)]
enum Assembly {
    Built,
    /// More columns are missing or left out than there are parity columns.
    Impossible,
}

/// Returns the sets of 1, then 2, … then `most` of the numbers below `count`.
fn subsets(count: usize, most: usize) -> impl Iterator<Item = Vec<usize>> {
    (1..=most.min(count)).flat_map(move |k| {
        let mut next: Option<Vec<usize>> = Some((0..k).collect());
        std::iter::from_fn(move || {
            let this = next.take()?;
            let mut following = this.clone();
            // Increments the rightmost number that is not at its maximum; those after it get the values that follow it.
            if let Some(i) = (0..k).rev().find(|&i| this[i] + (k - i) < count) {
                for (step, slot) in following[i..].iter_mut().enumerate() {
                    *slot = this[i] + 1 + step;
                }
                next = Some(following);
            }
            Some(this)
        })
    })
}

impl Read<'_> {
    pub(super) fn column(&self, (row, column): ColumnRef) -> &Column {
        &self.target.map.rows[row].columns[column]
    }

    fn child(&self, at: ColumnRef) -> Option<&Vdev> {
        self.target.children.get(self.column(at).child)
    }

    fn read_preference(&self, at: ColumnRef) -> u8 {
        let offset = self.column(at).offset_bytes;
        self.child(at).map_or(2, |c| c.read_preference(self.tree, self.place, offset, self.job.birth))
    }

    fn all(&self) -> Vec<ColumnRef> {
        let rows = self.target.map.rows.iter().enumerate();
        rows.flat_map(|(r, row)| (0..row.columns.len()).map(move |c| (r, c))).collect()
    }

    /// Marks empty columns as read, and those of absent devices as failed; also of stale ones, if nothing verifies the bytes.
    fn mark_absent(&mut self) {
        for at in self.all() {
            if self.column(at).size_bytes == 0 {
                self.cells[at.0][at.1] = ColumnState::Got(Bytes::new());
            } else if self.read_preference(at) > u8::from(!self.job.needs_current()) {
                let mut names = Vec::new();
                if let Some(child) = self.child(at) {
                    child.absent(&mut names);
                }
                self.missing.extend(names);
                self.cells[at.0][at.1] = ColumnState::Failed;
            }
        }
        self.missing.sort_unstable();
        self.missing.dedup();
    }

    /// Returns the columns to read next so that each row has as many as it has data columns: current data, current
    /// parity, then columns of children whose DTL has the block's birth. Empty if all rows have enough, or there are no
    /// more columns to read.
    pub(super) fn wants(&self) -> Vec<ColumnRef> {
        let nparity = self.target.map.nparity;
        let mut wants = Vec::new();
        for (r, row) in self.cells.iter().enumerate() {
            let needed = row.len().saturating_sub(nparity);
            let got = row.iter().enumerate().filter(|(c, cell)| {
                matches!(cell, ColumnState::Got(_)) && (*c >= nparity || self.column((r, *c)).size_bytes > 0)
            });
            let short = needed.saturating_sub(got.count());
            let mut open: Vec<ColumnRef> =
                (0..row.len()).filter(|&c| matches!(row[c], ColumnState::Untried)).map(|c| (r, c)).collect();
            open.sort_by_key(|&at| (self.read_preference(at), at.1 < nparity, at.1));
            wants.extend(open.into_iter().take(short));
        }
        wants
    }

    fn untried(&self) -> Vec<ColumnRef> {
        self.all().into_iter().filter(|&(r, c)| matches!(self.cells[r][c], ColumnState::Untried)).collect()
    }

    /// Reads columns; adjacent ones of a child in one operation, unless a distributed spare may have them on different devices.
    async fn fetch(&mut self, wants: &[ColumnRef]) {
        let mut sorted = wants.to_vec();
        sorted.sort_by_key(|&at| (self.column(at).child, self.column(at).offset_bytes));
        let mut runs: Vec<(usize, u64, u64, Vec<ColumnRef>)> = Vec::new();
        let in_one_place = |child: usize| self.target.children.get(child).is_none_or(|vdev| !vdev.is_distributed());
        for at in sorted {
            let Column { child, offset_bytes, size_bytes, .. } = *self.column(at);
            let follows = |c: usize, end: u64| c == child && end == offset_bytes && in_one_place(child);
            match runs.last_mut() {
                Some((c, start, len, members)) if follows(*c, start.wrapping_add(*len)) => {
                    *len += size_bytes as u64;
                    members.push(at);
                }
                _ => runs.push((child, offset_bytes, size_bytes as u64, vec![at])),
            }
        }
        let Read { target, tree, job, place, .. } = *self;
        let reads = runs.iter().map(|&(child, start, len, _)| async move {
            match target.children.get(child) {
                Some(vdev) => vdev.read(tree, job, place, start, len, None).await,
                None => Err(BlockError::Missing { vdev: place.vdev, offset: place.offset, devices: Vec::new() }),
            }
        });
        let answers = join_all(reads).await;
        for ((_, start, _, members), answer) in runs.iter().zip(answers) {
            match answer {
                Ok(buf) => self.fill(*start, members, buf.into_bytes()),
                Err(error) => {
                    for at in members {
                        self.cells[at.0][at.1] = ColumnState::Failed;
                    }
                    note(&mut self.failure, error);
                }
            }
        }
    }

    fn fill(&mut self, start: u64, members: &[ColumnRef], bytes: Bytes) {
        for &at in members {
            let Column { offset_bytes, size_bytes, .. } = *self.column(at);
            let from = offset_bytes.wrapping_sub(start) as usize;
            self.cells[at.0][at.1] = ColumnState::Got(bytes.slice(from..from + size_bytes));
        }
    }

    fn left_out(&self, column: &Column, left_out: &[Suspect]) -> bool {
        left_out.iter().any(|s| s.gave(column, *self.target.widths.end(), self.target.ashift))
    }

    /// Returns the bytes of a column, if they may be used.
    fn bytes(&self, at: ColumnRef, left_out: &[Suspect]) -> Option<&[u8]> {
        match &self.cells[at.0][at.1] {
            ColumnState::Got(bytes) if bytes.is_empty() || !self.left_out(self.column(at), left_out) => Some(bytes),
            _ => None,
        }
    }

    /// Whether leaving out these devices changes the result.
    fn changes(&self, left_out: &[Suspect]) -> bool {
        let nparity = self.target.map.nparity;
        self.target.map.rows.iter().enumerate().any(|(r, row)| {
            let gap = (nparity..row.columns.len()).any(|c| matches!(self.cells[r][c], ColumnState::Failed));
            row.columns.iter().enumerate().any(|(c, column)| {
                let got = matches!(&self.cells[r][c], ColumnState::Got(b) if !b.is_empty());
                got && (c >= nparity || gap) && self.left_out(column, left_out)
            })
        })
    }

    /// Assembles the block from the columns that were read and not left out.
    fn assemble(&self, block: &mut Buf, left_out: &[Suspect]) -> Assembly {
        let rows = self.target.map.rows.iter().enumerate();
        for (r, row) in rows {
            if self.assemble_row(r, row, block.as_mut(), left_out).is_none() {
                return Assembly::Impossible;
            }
        }
        Assembly::Built
    }

    fn assemble_row(&self, r: usize, row: &Row, block: &mut [u8], left_out: &[Suspect]) -> Option<()> {
        let nparity = self.target.map.nparity;
        let data: Vec<Option<&[u8]>> = (nparity..row.columns.len()).map(|c| self.bytes((r, c), left_out)).collect();
        let mut gaps: Vec<&mut [u8]> = Vec::new();
        // Data columns have the order of the row in the block, so the buffer is split from its front.
        let mut rest = block;
        let mut cut = 0;
        for (column, bytes) in row.columns.iter().skip(nparity).zip(&data) {
            if column.size_bytes == 0 {
                continue;
            }
            let (_, tail) = rest.split_at_mut_checked(column.at.checked_sub(cut)?)?;
            let (piece, tail) = tail.split_at_mut_checked(column.size_bytes)?;
            (rest, cut) = (tail, column.at + column.size_bytes);
            match bytes {
                Some(bytes) => piece.copy_from_slice(bytes),
                None => gaps.push(piece),
            }
        }
        if gaps.is_empty() {
            return Some(());
        }
        let parities: Vec<Option<&[u8]>> = (0..nparity).map(|c| self.bytes((r, c), left_out)).collect();
        self.job.request.compute(self.job.clock, || parity::reconstruct(&data, &parities, &mut gaps)).ok()
    }

    /// Leaves out one set of suspects after another until the checksum is right; then counts an error for each wrong
    /// one.
    fn search(&self, block: &mut Buf, prove: &dyn Fn(&[u8]) -> Result<(), CodecError>) -> Result<(), CodecError> {
        let suspects = self.target.map.suspects(self.target.ashift, self.target.widths.clone());
        let mut fault = prove(block.as_ref());
        for left_out in subsets(suspects.len(), self.target.map.nparity).take(MAX_ATTEMPTS) {
            let chosen: Vec<Suspect> = left_out.iter().filter_map(|&i| suspects.get(i).copied()).collect();
            if !self.changes(&chosen) || self.assemble(block, &chosen) == Assembly::Impossible {
                continue;
            }
            fault = prove(block.as_ref());
            if fault.is_ok() {
                self.count_errors(block, &chosen);
                break;
            }
        }
        fault
    }

    /// Returns the children that are mirrors themselves (a disk and its spare or replacement), with each of their
    /// sides.
    fn sides(&self) -> Vec<(usize, usize)> {
        let used: BTreeSet<usize> = self.target.map.columns().map(|c| c.child).collect();
        let sides = |child: &usize| match self.target.children.get(*child).map(|v| &v.body) {
            Some(Body::Mirror(sides)) => sides.len(),
            _ => 0,
        };
        used.iter().flat_map(|child| (0..sides(child)).map(move |side| (*child, side))).collect()
    }

    /// Replaces the columns of `child` by those of one of its sides.
    async fn ask_side(&mut self, child: usize, side: usize) {
        let target = self.target;
        let Some(Body::Mirror(sides)) = target.children.get(child).map(|v| &v.body) else { return };
        let Some(vdev) = sides.get(side) else { return };
        for at in self.all() {
            let Column { child: of, offset_bytes, size_bytes, .. } = *self.column(at);
            if of != child || size_bytes == 0 {
                continue;
            }
            let answer = vdev.read(self.tree, self.job, self.place, offset_bytes, size_bytes as u64, None).await;
            self.cells[at.0][at.1] = answer.map_or(ColumnState::Failed, |buf| ColumnState::Got(buf.into_bytes()));
        }
    }

    /// Counts an error at each device with a data column that was left out and differs from the reconstructed one.
    fn count_errors(&self, block: &Buf, left_out: &[Suspect]) {
        let mut wrong = BTreeMap::new();
        for at in self.all() {
            let column = self.column(at);
            let right = block.as_ref().get(column.at..column.at + column.size_bytes);
            let ColumnState::Got(bytes) = &self.cells[at.0][at.1] else { continue };
            if at.1 >= self.target.map.nparity && self.left_out(column, left_out) && right != Some(bytes) {
                wrong.entry(column.child).or_insert((column.offset_bytes, column.size_bytes as u64));
            }
        }
        self.blame(wrong);
    }

    /// Counts an error at each device that gave a column of a block that no combination of columns yields: which of them are wrong
    /// is not known (OpenZFS `vdev_raidz_io_done_unrecoverable`).
    fn count_unrecoverable(&self) {
        let mut gave = BTreeMap::new();
        for at in self.all() {
            let Column { child, offset_bytes, size_bytes, .. } = *self.column(at);
            if size_bytes > 0 && matches!(self.cells[at.0][at.1], ColumnState::Got(_)) {
                gave.entry(child).or_insert((offset_bytes, size_bytes as u64));
            }
        }
        self.blame(gave);
    }

    /// Counts an error at each of these children, and reports the offset of its first wrong column.
    fn blame(&self, wrong: BTreeMap<usize, (u64, u64)>) {
        if wrong.is_empty() || !self.job.reports_fault(self.place) {
            return;
        }
        for (child, range) in wrong {
            // A child whose DTL has the block's birth gives old bytes: that is known, and no new fault.
            let Self { tree, job, place, .. } = *self;
            let is_current = |child: &&Vdev| child.read_preference(tree, place, range.0, job.birth) == 0;
            if let Some(child) = self.target.children.get(child).filter(is_current) {
                child.checksum_error(tree, job, place, range);
            }
        }
    }

    /// Too few columns to put the block together.
    fn shortage(&self) -> BlockError {
        let Place { vdev, offset, .. } = self.place;
        match &self.failure {
            Some(error) => error.clone(),
            None => BlockError::Missing { vdev, offset, devices: self.missing.clone() },
        }
    }

    /// Error if no combination has the right checksum; a device that returned an error may have had the right bytes.
    fn damaged(&self, fault: CodecError) -> BlockError {
        let Place { vdev, offset, .. } = self.place;
        let wrong = BlockError::Corrupt { vdev, offset, fault };
        self.failure.clone().map_or(wrong.clone(), |error| error.worse(wrong))
    }
}

impl RaidzTarget<'_> {
    /// Further places of the block's columns, to which they are written during an expansion.
    pub fn shadows(&self) -> Vec<Shadow> {
        let Some((snapshot, layout, offset)) = &self.reflow else { return Vec::new() };
        self.map.shadows(*offset, self.ashift, *layout, snapshot.progress.copies)
    }
}

impl RaidzVdev {
    /// Number of children without the one that an expansion adds.
    pub(super) fn former_width(&self) -> u64 {
        self.children.len() as u64 - u64::from(self.reflow.is_some())
    }

    /// Number of children that a block born in `birth` was written to.
    pub(super) fn logical_width(&self, birth: Txg) -> u64 {
        let later = self.expansion_txgs.iter().filter(|&&txg| txg > birth.0).count() as u64;
        self.former_width().saturating_sub(later).max(self.nparity + 1)
    }

    /// Whether the expansions are those of `old`, or one has begun or ended since.
    pub(super) fn continues(&self, old: &RaidzVdev) -> bool {
        let is_same = self.expansion_txgs == old.expansion_txgs;
        match (&old.reflow, &self.reflow) {
            (None, None) => is_same,
            (Some(old), Some(new)) => is_same && Arc::ptr_eq(old, new),
            (None, Some(new)) => is_same && new.progress().synced.offset_bytes == 0,
            (Some(_), None) => self.expansion_txgs.split_last().is_some_and(|(_, former)| former == old.expansion_txgs),
        }
    }

    /// Maps a range of the vdev to columns, by the geometry that blocks born in `birth` were written with.
    pub(super) fn target(&self, offset: u64, len: u64, birth: Txg) -> RaidzTarget<'_> {
        self.target_of(offset, len, birth, self.reflow.as_ref().map(|reflow| reflow.snapshot()))
    }

    /// As [`RaidzVdev::target`], at this point of the expansion in progress.
    pub(super) fn target_of(
        &self,
        offset: u64,
        len: u64,
        birth: Txg,
        snapshot: Option<Arc<Snapshot>>,
    ) -> RaidzTarget<'_> {
        let physical_width = self.children.len() as u64;
        let logical_width = self.logical_width(birth);
        let ashift = self.ashift;
        let nparity = self.nparity;
        let done = Reflowed { physical_width, logical_width, moved_bytes: u64::MAX, scratch: false };
        let layout = snapshot.as_ref().map_or(done, |now| now.progress.layout(physical_width, logical_width));
        let map = if logical_width == physical_width {
            Map::new(offset, len, ashift, physical_width, nparity)
        } else {
            Map::expanded(offset, len, ashift, nparity, layout)
        };
        let reflow = snapshot.map(|snapshot| (snapshot, layout, offset));
        RaidzTarget { map, children: &self.children, ashift, widths: logical_width..=physical_width, reflow }
    }
}

#[cfg(test)]
mod tests {
    use super::subsets;

    #[test]
    fn every_set_once_the_small_ones_first() {
        let all: Vec<_> = subsets(4, 2).collect();
        assert_eq!(
            all,
            [
                vec![0],
                vec![1],
                vec![2],
                vec![3],
                vec![0, 1],
                vec![0, 2],
                vec![0, 3],
                vec![1, 2],
                vec![1, 3],
                vec![2, 3]
            ]
        );
        assert_eq!(subsets(7, 3).count(), 7 + 21 + 35);
        assert_eq!(subsets(2, 3).count(), 2 + 1);
        assert_eq!(subsets(0, 3).count(), 0);
    }
}

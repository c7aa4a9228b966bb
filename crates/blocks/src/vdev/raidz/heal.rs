//! Putting right what a proven RAID-Z block shows to be wrong.

use super::{ColumnRef, ColumnState, Read};
use crate::raidz::Column;
use crate::vdev::WriteJob;
use crate::vdev::reflow::LayoutInUse;
use crate::vdev::write::Portion;
use bytes::Bytes;
use futures_util::future::join_all;
use std::collections::BTreeMap;
use weir_codec::parity;
use weir_machine::Buf;
use weir_machine::accounts::Redundancy;

impl Read<'_> {
    /// The columns, data or parity, that devices gave otherwise than the proven block says they should be (or, with
    /// `failed`, did not give at all, though they are there), with what belongs there.
    pub(super) fn differences(&self, block: &Buf, failed: bool) -> Vec<(ColumnRef, Bytes)> {
        let nparity = self.target.map.nparity;
        let mut out = Vec::new();
        for (r, row) in self.target.map.rows.iter().enumerate() {
            let right = |c: &Column| block.as_ref().get(c.at..c.at + c.size_bytes).unwrap_or_default();
            let data: Vec<&[u8]> = row.columns.iter().skip(nparity).map(right).collect();
            let mut expected: Vec<Vec<u8>> = row.columns.iter().take(nparity).map(|c| vec![0; c.size_bytes]).collect();
            let mut parities: Vec<&mut [u8]> = expected.iter_mut().map(Vec::as_mut_slice).collect();
            if parity::generate(&data, &mut parities).is_err() {
                continue;
            }
            let all = expected.iter().map(Vec::as_slice).chain(data);
            for (c, right) in all.enumerate() {
                let differs = match self.cells.get(r).and_then(|cells| cells.get(c)) {
                    Some(ColumnState::Got(bytes)) => bytes.as_ref() != right,
                    Some(ColumnState::Failed) => failed && !right.is_empty() && self.read_preference((r, c)) < 2,
                    _ => false,
                };
                if differs {
                    out.push(((r, c), Bytes::copy_from_slice(right)));
                }
            }
        }
        out
    }

    /// Counts one error at each device whose column, data or parity, is not what the proven block says it should be.
    pub(super) fn count_differences(&self, block: &Buf) {
        let mut wrong = BTreeMap::new();
        for (at, _) in self.differences(block, false) {
            let column = self.column(at);
            wrong.entry(column.child).or_insert((column.offset_bytes, column.size_bytes as u64));
        }
        self.blame(wrong);
    }

    /// Writes what belongs there to each device that gave something else or an error. What cannot be written stays as it
    /// is: the block is there nevertheless.
    pub(super) async fn heal(&self, block: &Buf) {
        let differences = self.differences(block, true);
        if differences.is_empty() {
            return;
        }
        let Some(job) = &WriteJob::repairing(self.job, self.tree, self.place).await else { return };
        let _locked = job.lock_range(self.tree, self.place, self.job.psize_bytes).await;
        let tops = &*self.tree.version();
        let in_use = self.target.reflow.as_ref().map(|(snapshot, ..)| LayoutInUse::of_read(snapshot));
        in_use.iter().for_each(|layout| job.layouts.add(layout.clone()));
        let shadows = self.target.shadows();
        let places = differences.into_iter().flat_map(|(at, bytes)| {
            let column = self.column(at);
            let own = (column.child, column.offset_bytes);
            let copies = shadows.iter().filter(move |shadow| (shadow.row, shadow.column) == at);
            let copies = copies.map(|shadow| (shadow.child, shadow.offset_bytes));
            std::iter::once(own).chain(copies).map(move |place| (place, bytes.clone()))
        });
        let writes = places.filter_map(|((child, offset), bytes)| {
            let child = self.target.children.get(child)?;
            Some(async move {
                // The device counts what it could not write.
                let portion = Portion::new(Redundancy::First, 0);
                let _ = child.write(tops, job, portion, self.place, offset, bytes).await;
            })
        });
        join_all(writes).await;
    }
}

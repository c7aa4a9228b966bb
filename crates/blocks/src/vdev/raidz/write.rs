//! Writes of RAID-Z vdevs, and their parts on one child.

use crate::error::BlockError;
use crate::vdev::tree::Tops;
use crate::vdev::write::{Portion, write_rows};
use crate::vdev::{Place, RaidzVdev, WriteJob};
use bytes::Bytes;
use std::ops::Range;

impl RaidzVdev {
    /// Writes `data` at `offset` of this vdev. During an expansion it goes to each place that a row has, and waits for a copy of
    /// its range.
    pub(in crate::vdev) async fn write(
        &self,
        tops: &Tops,
        job: &WriteJob<'_>,
        portion: Portion,
        place: Place,
        offset: u64,
        data: Bytes,
    ) -> Result<(), BlockError> {
        let Some(reflow) = &self.reflow else {
            let target = self.target(offset, data.len() as u64, job.txg);
            return write_rows((tops, &self.children), job, portion, place, (&target.map, &[]), &data, false).await;
        };
        // Each row has a whole logical width, though the last one may end before.
        let sectors = (data.len() as u64).div_ceil(1 << self.ashift);
        let width = self.logical_width(job.txg);
        let rows = sectors.div_ceil((width - self.nparity).max(1));
        let in_use = reflow.begin_write(offset..offset.saturating_add((rows * width) << self.ashift)).await;
        job.layouts.add(in_use.clone());
        let target = self.target_of(offset, data.len() as u64, job.txg, Some(in_use.snapshot.clone()));
        let places = (&target.map, &target.shadows()[..]);
        let done = write_rows((tops, &self.children), job, portion, place, places, &data, false).await;
        job.layouts.remove(&in_use);
        done
    }

    /// The part of child `index` that holds its sectors of a range.
    pub(in crate::vdev) fn part_of(&self, index: u64, range: &Range<u64>) -> Range<u64> {
        let width = self.children.len() as u64;
        // The first row whose sector on this child is not before the given sector.
        let row = |sector: u64| sector.saturating_sub(index).div_ceil(width) << self.ashift;
        row(range.start.div_ceil(1 << self.ashift))..row(range.end >> self.ashift)
    }
}

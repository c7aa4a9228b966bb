//! Copies of the sectors of a RAID-Z vdev to their places in the new layout of an expansion.
//!
//! ```text
//!   sector n     old place: child n mod w, row n div w ─► new place: child n mod (w + 1), row n div (w + 1)
//!   scratch area     as the new place, in front of the allocatable space
//! ```
//!
//! Contiguous sectors are one range of each child, before and after. A range has no checksum: it is copied as it is. Therefore a vdev
//! of which a device is missing, lacks blocks or is being replaced is not copied.
//!
//! *How far.* With s sectors on stable storage in the new layout, the rows of blocks that are still in their old place begin
//! with sector s − w + 1 at the earliest. Sectors up to s + s div w − w have new places in front of those.
//!
//! Source: OpenZFS `module/zfs/vdev_raidz.c` (`raidz_reflow_impl`, `raidz_reflow_scratch_sync`).

use super::canary::DeviceBug;
use super::leaf::Leaf;
use super::reflow::{CopyLock, Progress, ReflowState};
use super::spec::Reflow;
use super::tree::Tops;
use super::write::Portion;
use super::{Body, Place, RaidzVdev, Tree, Vdev, VdevRead, WriteJob};
use crate::error::BlockError;
use crate::raidz::{Copies, SCRATCH_BYTES};
use bytes::{Bytes, BytesMut};
use futures_util::future::join_all;
use std::ops::Range;
use std::sync::Arc;
use weir_machine::accounts::Redundancy;
use weir_machine::invariant;

/// Maximum bytes of each child that are copied at a time.
const CHUNK_BYTES: u64 = 1 << 20;

/// A RAID-Z vdev that is being expanded.
pub(crate) struct ReflowCopy<'a> {
    tree: &'a Tree,
    tops: Arc<Tops>,
    vdev: u32,
    reflow: Arc<ReflowState>,
}

/// How to read and write, for copies.
pub(crate) struct CopyJobs<'a> {
    pub read: VdevRead<'a>,
    pub write: WriteJob<'a>,
}

/// A contiguous range of one child: child, first row, rows.
type Part = (usize, u64, u64);

/// The ranges of `width` children that hold the sectors from `first` on, by their first sector.
fn parts(first: u64, count: u64, width: u64) -> Vec<Part> {
    let part = |nth: u64| {
        let sector = first + nth;
        ((sector % width) as usize, sector / width, count / width + u64::from(nth < count % width))
    };
    (0..count.min(width)).map(part).collect()
}

impl<'a> ReflowCopy<'a> {
    /// The expansion in progress of a top-level vdev, if there is one.
    pub fn of(tree: &'a Tree, vdev: u32) -> Option<Self> {
        let tops = tree.version();
        let reflow = match &tops.get(vdev)?.vdev.body {
            Body::Raidz(RaidzVdev { reflow: Some(reflow), .. }) => reflow.clone(),
            _ => return None,
        };
        Some(ReflowCopy { tree, tops, vdev, reflow })
    }
}

impl ReflowCopy<'_> {
    fn raidz(&self) -> Result<&RaidzVdev, BlockError> {
        let field = "expansion of vdev";
        let none = BlockError::InvalidPointer { vdev: self.vdev, offset: 0, field, value: self.vdev.into() };
        match self.tops.get(self.vdev).map(|top| &top.vdev.body) {
            Some(Body::Raidz(raidz)) => Ok(raidz),
            _ => Err(none),
        }
    }

    pub fn sector_bytes(&self) -> u64 {
        1 << self.raidz().map_or(0, |raidz| raidz.ashift)
    }

    pub fn progress(&self) -> Progress {
        self.reflow.progress()
    }

    /// Whether all devices are in service, lack nothing, and none is being replaced.
    pub fn is_whole(&self) -> bool {
        let is_whole = |child: &Vdev| match &child.body {
            Body::Leaf(leaf) => leaf.present() && leaf.has_everything(),
            _ => false,
        };
        self.raidz().is_ok_and(|raidz| raidz.children.iter().all(is_whole))
    }

    /// Bytes of the vdev's space that the scratch area holds.
    pub fn scratch_bytes(&self) -> Result<u64, BlockError> {
        let raidz = self.raidz()?;
        Ok((SCRATCH_BYTES >> raidz.ashift << raidz.ashift) * raidz.children.len() as u64)
    }

    /// End of the sectors that may be copied before the next uberblock.
    pub fn bound_bytes(&self) -> Result<u64, BlockError> {
        let raidz = self.raidz()?;
        let old = raidz.former_width();
        let mut overruns = false;
        let mut has_bug = |leaf: &Arc<Leaf>| overruns |= leaf.writes().canary.has(DeviceBug::OverrunsReflow);
        raidz.children.iter().for_each(|child| child.each_leaf(&mut has_bug));
        if overruns {
            return Ok(u64::MAX >> raidz.ashift << raidz.ashift);
        }
        let synced = self.progress().synced.offset_bytes >> raidz.ashift;
        Ok((synced + synced / old).saturating_sub(old) << raidz.ashift)
    }

    /// Waits for writes in a range, and keeps others away from it.
    pub async fn lock(&self, range: Range<u64>) -> CopyLock {
        self.reflow.begin_copy(range).await
    }

    /// Records that the sectors before `bytes` have been copied; the lock of their range is held.
    pub fn copied(&self, _lock: &CopyLock, bytes: u64) {
        let copies = self.progress().copies;
        self.reflow.copied(Copies { place_bytes: bytes, ..copies });
    }

    pub fn committed(&self, synced: Reflow) {
        self.reflow.committed(synced);
    }

    pub fn revert(&self) {
        self.reflow.revert();
    }

    /// Waits until no operation uses a former position.
    pub async fn drained(&self) {
        self.reflow.drained().await;
    }

    /// Copies sectors from their old places, `to_bytes` in front of their new ones.
    ///
    /// # Errors
    /// Errors of devices; a device that failed to write has the txg in its DTL.
    pub async fn copy(&self, jobs: &CopyJobs<'_>, range: Range<u64>, back_bytes: u64) -> Result<(), BlockError> {
        let _operation = self.tree.begin()?;
        let raidz = self.raidz()?;
        let longest = (CHUNK_BYTES * raidz.former_width()).max(1 << raidz.ashift);
        let mut from = range.start;
        while from < range.end {
            let to = range.end.min(from.saturating_add(longest));
            self.copy_chunk(jobs, raidz, from..to, back_bytes).await?;
            from = to;
        }
        Ok(())
    }

    async fn copy_chunk(
        &self,
        jobs: &CopyJobs<'_>,
        raidz: &RaidzVdev,
        range: Range<u64>,
        back_bytes: u64,
    ) -> Result<(), BlockError> {
        let ashift = raidz.ashift;
        let first = range.start >> ashift;
        let count = (range.end - range.start) >> ashift;
        let old = raidz.former_width();
        let new = raidz.children.len() as u64;
        let place = Place::new(self.vdev, range.start);
        let sources = parts(first, count, old);
        let reads = sources
            .iter()
            .map(|&(child, row, rows)| self.read(jobs, raidz, place, child, row << ashift, rows << ashift));
        let sources: Vec<Bytes> = join_all(reads).await.into_iter().collect::<Result<_, _>>()?;
        let sector = |nth: u64| {
            let at = ((nth / old) << ashift) as usize;
            sources.get((nth % old) as usize).and_then(|bytes| bytes.get(at..at + (1 << ashift)))
        };
        let mut writes = Vec::new();
        for (nth, (child, row, rows)) in (0u64..).zip(parts(first, count, new)) {
            let mut bytes = BytesMut::with_capacity((rows << ashift) as usize);
            for sector in (0..rows).filter_map(|row| sector(nth + row * new)) {
                bytes.extend_from_slice(sector);
            }
            invariant!(bytes.len() as u64 == rows << ashift, "sectors of a RAID-Z expansion are missing");
            let offset = (row << ashift).wrapping_sub(back_bytes);
            writes.push(self.write(jobs, raidz, place, child, offset, bytes.freeze()));
        }
        join_all(writes).await.into_iter().collect()
    }

    /// Copies the scratch area of all children to the new places of its sectors.
    ///
    /// # Errors
    /// As [`ReflowCopy::copy`].
    pub async fn copy_scratch(&self, jobs: &CopyJobs<'_>) -> Result<(), BlockError> {
        let _operation = self.tree.begin()?;
        let raidz = self.raidz()?;
        let len = self.scratch_bytes()? / raidz.children.len() as u64;
        let place = Place::new(self.vdev, 0);
        let copies = (0..raidz.children.len()).map(|child| async move {
            let from = 0u64.wrapping_sub(SCRATCH_BYTES);
            let bytes = self.read(jobs, raidz, place, child, from, len).await?;
            self.write(jobs, raidz, place, child, 0, bytes).await
        });
        join_all(copies).await.into_iter().collect()
    }

    /// Records that the scratch area holds the first sectors.
    pub fn copied_to_scratch(&self, _lock: &CopyLock, bytes: u64) {
        let copies = self.progress().copies;
        self.reflow.copied(Copies { scratch_bytes: bytes, ..copies });
    }

    fn child<'a>(&self, raidz: &'a RaidzVdev, child: usize) -> Result<&'a Vdev, BlockError> {
        let missing = || BlockError::Missing { vdev: self.vdev, offset: 0, devices: Vec::new() };
        raidz.children.get(child).filter(|child| child.is_writable()).ok_or_else(missing)
    }

    async fn read(
        &self,
        jobs: &CopyJobs<'_>,
        raidz: &RaidzVdev,
        place: Place,
        child: usize,
        offset: u64,
        len: u64,
    ) -> Result<Bytes, BlockError> {
        let child = self.child(raidz, child)?;
        let buf = child.read(self.tree, &jobs.read, place, offset, len, None).await?;
        Ok(buf.into_bytes())
    }

    async fn write(
        &self,
        jobs: &CopyJobs<'_>,
        raidz: &RaidzVdev,
        place: Place,
        child: usize,
        offset: u64,
        bytes: Bytes,
    ) -> Result<(), BlockError> {
        let portion = Portion::new(Redundancy::First, 0);
        self.child(raidz, child)?.write(&self.tops, &jobs.write, portion, place, offset, bytes).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each sector is in one part, at its row, before and after.
    #[test]
    fn contiguous_sectors_are_one_range_of_each_child() {
        for width in 2..6 {
            for (first, count) in [(0, 1), (3, 2), (7, 11), (10, 40)] {
                let mut found = Vec::new();
                for (child, row, rows) in parts(first, count, width) {
                    found.extend((row..row + rows).map(|row| row * width + child as u64));
                }
                found.sort_unstable();
                assert_eq!(found, (first..first + count).collect::<Vec<_>>(), "width {width}");
            }
        }
    }
}

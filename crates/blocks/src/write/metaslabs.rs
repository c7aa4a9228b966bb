//! The metaslabs of a pool: what is known of their free space, and when it is in memory.

use super::evacuation::Evacuations;
use super::loads::MetaslabSource;
use super::rebuild::Rebuild;
use super::reflow::ReflowingVdev;
use super::space::space_fault;
use crate::alloc::{Class, LoadStats, SpaceFault, SpaceSums, Summary};
use crate::error::BlockError;
use crate::pipeline::Blocks;
use std::ops::Range;
use std::sync::Arc;
use weir_format::Txg;

/// Free ranges of at most this length between allocated ones are copied with them, in bytes.
const MAX_GAP_BYTES: u64 = 64 << 10;

/// The metaslabs of [`Blocks`].
#[derive(Clone, Copy)]
pub struct Metaslabs<'a> {
    pub(super) blocks: &'a Blocks,
}

impl<'a> Metaslabs<'a> {
    /// The evacuation of a vdev that is being removed.
    pub fn evacuations(self) -> Evacuations<'a> {
        Evacuations { blocks: self.blocks }
    }

    /// The expansion of a RAID-Z vdev.
    pub fn expansion(self, vdev: u32) -> ReflowingVdev<'a> {
        ReflowingVdev { blocks: self.blocks, vdev }
    }

    /// The sequential rebuild of a vdev.
    pub fn rebuild(self, vdev: u32) -> Rebuild<'a> {
        Rebuild { blocks: self.blocks, vdev }
    }

    /// Parts of a range of a metaslab that are not allocatable, with the short gaps between them: what an expansion or a rebuild
    /// copies. `metaslab` is its number.
    ///
    /// # Errors
    /// [`BlockError::Space`] if the metaslab cannot be loaded; [`BlockError::ReadOnly`].
    pub(super) async fn not_allocatable(
        self,
        vdev: u32,
        metaslab: u64,
        range: Range<u64>,
    ) -> Result<Vec<Range<u64>>, BlockError> {
        let writer = self.blocks.writer()?;
        if writer.space().free_segments(vdev, metaslab).is_none() {
            writer.load(vdev, metaslab).await;
        }
        let free = writer.space().free_segments(vdev, metaslab);
        let free = free.ok_or_else(|| space_fault(vdev, range.start, 0)(SpaceFault::NotLoaded))?;
        Ok(between(range, &free, MAX_GAP_BYTES))
    }

    /// Takes over the allocated sizes that the vdev tree says, after an expansion has ended.
    ///
    /// # Errors
    /// [`BlockError::NotWritable`] if the vdev is of a kind that is not written to; [`BlockError::ReadOnly`].
    pub fn renew_sizing(self, vdev: u32) -> Result<(), BlockError> {
        let sizing = self.blocks.tree().sizing(vdev)?;
        self.blocks.writer()?.space().set_sizing(vdev, sizing);
        Ok(())
    }

    /// Frees a range of a vdev that no block refers to any more: space that a discarded checkpoint kept.
    ///
    /// # Errors
    /// [`BlockError::Space`] if a part is free already; [`BlockError::ReadOnly`].
    pub fn free(self, vdev: u32, range: Range<u64>, txg: Txg) -> Result<(), BlockError> {
        let fault = space_fault(vdev, range.start, range.end.saturating_sub(range.start));
        self.blocks.writer()?.space().free(vdev, range, txg).map_err(fault)
    }

    /// Adds metaslabs to a vdev that has grown, up to `count`, and returns the numbers of the new ones. They have no free space
    /// until [`Metaslabs::set_free`].
    ///
    /// # Errors
    /// [`BlockError::ReadOnly`].
    pub fn grow(self, vdev: u32, count: u64) -> Result<Range<u64>, BlockError> {
        let first = self.blocks.writer()?.space().grow_vdev(vdev, count);
        Ok(first.unwrap_or(count)..count)
    }

    /// The allocation class of a vdev; `None` if nothing can be allocated on it.
    pub fn class(self, vdev: u32) -> Option<Class> {
        self.blocks.writer().ok()?.space().vdev(vdev).map(|about| about.class)
    }

    /// Forgets the metaslabs of a vdev that leaves the pool, on which nothing is allocated any more
    /// ([`Blocks::set_non_allocating`]). Returns the sums of its space.
    ///
    /// # Errors
    /// [`BlockError::ReadOnly`].
    pub fn remove(self, vdev: u32) -> Result<SpaceSums, BlockError> {
        Ok(self.blocks.writer()?.space().remove_vdev(vdev))
    }

    /// Loads the free ranges (in the vdev's space) of a metaslab. Before that nothing is allocated in it.
    ///
    /// # Errors
    /// [`BlockError::Space`], [`BlockError::ReadOnly`].
    pub fn set_free(self, vdev: u32, metaslab: u64, free: &[Range<u64>]) -> Result<(), BlockError> {
        self.blocks.writer()?.space().load(vdev, metaslab, free).map_err(space_fault(vdev, metaslab, 0))
    }

    /// Sets what is known of the free space of a metaslab, which is loaded when it is needed.
    ///
    /// # Errors
    /// [`BlockError::Space`], [`BlockError::ReadOnly`].
    pub fn summarize(self, vdev: u32, metaslab: u64, summary: Summary) -> Result<(), BlockError> {
        self.blocks.writer()?.space().summarize(vdev, metaslab, summary).map_err(space_fault(vdev, metaslab, 0))
    }

    /// Sets the source of metaslabs that are not loaded, once, and the maximum memory for loaded ones. From then on,
    /// metaslabs are unloaded.
    ///
    /// # Errors
    /// [`BlockError::ReadOnly`].
    pub fn set_source(self, source: Arc<dyn MetaslabSource>, max_bytes: u64) -> Result<(), BlockError> {
        self.blocks.writer()?.set_source(source, max_bytes);
        Ok(())
    }

    /// Changes the maximum memory for loaded metaslabs; no effect before [`Metaslabs::set_source`].
    pub fn limit_loaded(self, max_bytes: u64) {
        if let Ok(writer) = self.blocks.writer() {
            writer.space().limit_loaded(max_bytes);
        }
    }

    /// Loads a metaslab, unless it is loaded; waits until it is, or the load failed.
    ///
    /// # Errors
    /// [`BlockError::ReadOnly`].
    pub async fn load(self, vdev: u32, metaslab: u64) -> Result<(), BlockError> {
        self.blocks.writer()?.load(vdev, metaslab).await;
        Ok(())
    }

    /// Loaded metaslabs, and their memory.
    pub fn stats(self) -> LoadStats {
        self.blocks.writer().map_or_else(|_| LoadStats::default(), |w| w.space().load_stats())
    }

    /// Allocated ranges of a metaslab according to all changes that [`Blocks::take_changes`] returned so far, which is the
    /// content of its space map; `None` if it is not loaded.
    pub fn allocated_as_synced(self, vdev: u32, metaslab: u64) -> Option<Vec<Range<u64>>> {
        self.blocks.writer().ok()?.space().allocated_as_synced(vdev, metaslab)
    }

    /// Number of a metaslab's free segments of 2ⁿ to 2ⁿ⁺¹−1 bytes, for each n, as of `txg`: allocatable segments, and the
    /// frees of each txg up to that one.
    pub fn free_histogram(self, vdev: u32, metaslab: u64, txg: Txg) -> [u64; 64] {
        self.blocks.writer().map_or([0; 64], |w| w.space().metaslab_histogram(vdev, metaslab, txg))
    }

    /// Allocatable segments of a metaslab: those that are free according to its space map, without deferred frees; `None` if
    /// it is not loaded.
    pub fn free_segments(self, vdev: u32, metaslab: u64) -> Option<Vec<Range<u64>>> {
        self.blocks.writer().ok()?.space().free_segments(vdev, metaslab)
    }
}

/// The parts of a range between free ones that are longer than `gap`.
fn between(range: Range<u64>, free: &[Range<u64>], gap: u64) -> Vec<Range<u64>> {
    let mut out = Vec::new();
    let mut from = range.start;
    for free in free {
        let free = free.start.max(range.start)..free.end.min(range.end);
        let is_at_edge = free.start <= from || free.end >= range.end;
        if free.start >= free.end || (free.end - free.start <= gap && !is_at_edge) {
            continue;
        }
        if free.start > from {
            out.push(from..free.start);
        }
        from = from.max(free.end);
    }
    if from < range.end {
        out.push(from..range.end);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::between;

    #[test]
    fn allocated_ranges_are_between_free_ones_and_span_short_gaps() {
        let parts = |free: &[(u64, u64)]| {
            let free: Vec<_> = free.iter().map(|(start, end)| *start..*end).collect();
            between(10..100, &free, 4).into_iter().map(|part| (part.start, part.end)).collect::<Vec<_>>()
        };
        assert_eq!(parts(&[]), [(10, 100)]);
        assert_eq!(parts(&[(0, 200)]), []);
        assert_eq!(parts(&[(0, 12), (20, 30), (40, 43), (90, 120)]), [(12, 20), (30, 90)]);
        assert_eq!(parts(&[(5, 8), (99, 100), (300, 400)]), [(10, 99)]);
        assert_eq!(parts(&[(10, 12), (12, 50)]), [(50, 100)]);
    }
}

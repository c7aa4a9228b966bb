//! Evacuation of a top-level vdev that is being removed: its allocated ranges are copied to other vdevs.
//!
//! ```text
//!   offset   0 ──── copied: in the mapping ────► end ──── not copied yet ────► size of the vdev
//!   free        here, and the copy                         here: it is not copied any more
//! ```
//!
//! Only the syncer copies ranges and frees blocks, and never both at once: no range is freed while it is being copied. Until the last range
//! is copied, blocks are read from the vdev itself.
//!
//! Source: OpenZFS `module/zfs/vdev_removal.c` (`free_from_removing_vdev`, `spa_vdev_copy_segment`).

use super::space::space_fault;
use super::writer::Writer;
use crate::alloc::{AllocRequest, Class, NotAllocated, SpaceFault};
use crate::error::BlockError;
use crate::fault_observer::BlockContext;
use crate::pipeline::Blocks;
use crate::vdev::{
    CopiedRange, FailedLeaves, Layouts, Mapping, Piece, Place, Recipients, Replaced, TreeError, VdevSpec, WriteJob,
    copy,
};
use std::ops::Range;
use std::sync::Arc;
use weir_format::indirect::MappingEntry;
use weir_format::{Dva, Txg};
use weir_machine::accounts::{Content, Shares};
use weir_machine::{Request, invariant};

/// The state of an evacuation.
#[derive(Debug)]
pub(super) struct Evacuation {
    vdev: u32,
    /// The ranges that have been copied.
    map: Mapping,
    /// Allocated bytes that have still to be copied.
    left_bytes: u64,
    /// Bytes that were freed before they were copied, since the last call of [`Evacuations::take_freed_bytes`].
    freed_bytes: u64,
}

/// The part of a freed range that has been copied.
#[derive(Debug, Default)]
pub(super) struct CopiedPart {
    /// The part of the range that has been copied, at its start.
    pub range: Range<u64>,
    /// Where its copies are.
    pub pieces: Vec<Piece>,
}

impl Evacuation {
    /// The copied part of a range, without a change.
    fn copied_part(&self, range: &Range<u64>) -> Result<CopiedPart, BlockError> {
        let end = range.end.min(self.map.end_bytes());
        if end <= range.start {
            return Ok(CopiedPart::default());
        }
        let (vdev, offset) = (self.vdev, range.start);
        let field = "offset (not in the mapping of a vdev that is being removed)";
        let lost = BlockError::InvalidPointer { vdev, offset, field, value: offset };
        let pieces = self.map.pieces(offset, end - offset).ok_or(lost)?;
        Ok(CopiedPart { range: offset..end, pieces })
    }

    /// Counts the part of a freed range that need not be copied any more, and returns the other part.
    fn free(&mut self, range: &Range<u64>) -> Result<CopiedPart, BlockError> {
        let part = self.copied_part(range)?;
        let uncopied = range.end - range.start - (part.range.end - part.range.start);
        // The number of bytes left comes from the pool.
        self.left_bytes = self.left_bytes.saturating_sub(uncopied);
        self.freed_bytes += uncopied;
        Ok(part)
    }

    /// Adds copied ranges to the mapping; `bytes` of them are allocated.
    fn extend(&mut self, entries: &[MappingEntry], bytes: u64) -> Result<(), BlockError> {
        let before = self.map.end_bytes();
        if !self.map.extend(entries) {
            let field = "mapping of a vdev that is being removed";
            return Err(BlockError::InvalidPointer { vdev: self.vdev, offset: before, field, value: before });
        }
        invariant!(entries.is_empty() || self.map.end_bytes() > before, "a copied range is not in the mapping");
        self.left_bytes = self.left_bytes.saturating_sub(bytes);
        Ok(())
    }
}

impl Writer {
    /// The part of a range to be freed that has been copied to other vdevs, if the vdev is being removed.
    pub(super) fn free_copied(&self, vdev: u32, range: &Range<u64>) -> Result<CopiedPart, BlockError> {
        let mut evacuation = self.evacuation.lock();
        match evacuation.as_mut().filter(|evacuation| evacuation.vdev == vdev) {
            Some(evacuation) => evacuation.free(range),
            None => Ok(CopiedPart::default()),
        }
    }
}

/// The evacuation of [`Blocks`].
#[derive(Clone, Copy)]
pub struct Evacuations<'a> {
    pub(super) blocks: &'a Blocks,
}

impl Evacuations<'_> {
    /// Begins or continues the evacuation of a vdev on which nothing is allocated any more. `map` has the ranges that have been
    /// copied; `left_bytes` are allocated behind them.
    ///
    /// # Errors
    /// [`BlockError::InvalidPointer`] if an entry of the mapping is out of bounds; [`BlockError::ReadOnly`].
    pub fn begin(self, vdev: u32, map: &[MappingEntry], left_bytes: u64) -> Result<(), BlockError> {
        let field = "mapping of a vdev that is being removed";
        let map = Mapping::of(map).ok_or(BlockError::InvalidPointer { vdev, offset: 0, field, value: 0 })?;
        let mut evacuation = self.blocks.writer()?.evacuation.lock();
        invariant!(evacuation.is_none(), "two vdevs are removed at a time");
        *evacuation = Some(Evacuation { vdev, map, left_bytes, freed_bytes: 0 });
        Ok(())
    }

    /// Ends the evacuation, because it was canceled: no range counts as copied any more.
    ///
    /// # Errors
    /// [`BlockError::ReadOnly`].
    pub fn cancel(self) -> Result<(), BlockError> {
        let writer = self.blocks.writer()?;
        let Some(evacuation) = writer.evacuation.lock().take() else { return Ok(()) };
        writer.non_metaslab_frees().removed.retain(|(vdev, _)| *vdev != evacuation.vdev);
        Ok(())
    }

    /// Ends the evacuation, after all has been copied: `specs` has a removed vdev in the place of this one.
    ///
    /// # Errors
    /// [`TreeError`] as for the replacement of a tree; then nothing is changed.
    pub fn finish(self, specs: Vec<VdevSpec>) -> Result<Replaced, TreeError> {
        let none = || TreeError::Field { vdev: "the vdev that is being removed".into(), field: "mapping", value: 0 };
        let writer = self.blocks.writer().map_err(|_| none())?;
        let (vdev, map) = writer.evacuation.lock().as_ref().map(|one| (one.vdev, one.map.clone())).ok_or_else(none)?;
        let replaced = self.blocks.tree().replace_by_mapping(specs, vdev, map)?;
        *writer.evacuation.lock() = None;
        let _sums = writer.space().remove_vdev(vdev);
        Ok(replaced)
    }

    /// Bytes of the vdev that have still to be copied.
    pub fn left_bytes(self) -> u64 {
        let Ok(writer) = self.blocks.writer() else { return 0 };
        writer.evacuation.lock().as_ref().map_or(0, |one| one.left_bytes)
    }

    /// Bytes that were freed before they were copied, since the last call.
    pub fn take_freed_bytes(self) -> u64 {
        let Ok(writer) = self.blocks.writer() else { return 0 };
        writer.evacuation.lock().as_mut().map_or(0, |one| std::mem::take(&mut one.freed_bytes))
    }

    /// Allocated ranges of a metaslab according to all allocations and frees so far, also those of the open txgs.
    ///
    /// # Errors
    /// [`BlockError::Space`] if the metaslab cannot be loaded; [`BlockError::ReadOnly`].
    pub async fn allocated(self, vdev: u32, metaslab: u64) -> Result<Vec<Range<u64>>, BlockError> {
        let writer = self.blocks.writer()?;
        if writer.space().allocated(vdev, metaslab).is_none() {
            writer.load(vdev, metaslab).await;
        }
        let allocated = writer.space().allocated(vdev, metaslab);
        allocated.ok_or_else(|| space_fault(vdev, metaslab, 0)(SpaceFault::NotLoaded))
    }

    /// Allocates contiguous space for a copy of `len_bytes`, in the given class or in one that its blocks overflow to.
    ///
    /// # Errors
    /// [`BlockError::NoSpace`] if no free segment is that long; [`BlockError::ReadOnly`].
    pub async fn reserve(self, class: Class, len_bytes: u64, txg: Txg) -> Result<Dva, BlockError> {
        let writer = self.blocks.writer()?;
        let request = AllocRequest { class, psize_bytes: len_bytes, copies: 1, txg };
        let full = BlockError::NoSpace { psize_bytes: len_bytes };
        loop {
            let allocated = writer.space().allocate(&request);
            match allocated {
                Ok(dvas) => {
                    let dva = dvas.first().copied().ok_or(full)?;
                    if dva.asize_bytes != len_bytes {
                        // RAID-Z, which no pool has from which a vdev is removed.
                        writer.space().undo(&dva, txg);
                        let what = "a vdev with parity";
                        return Err(BlockError::NotWritable { vdev: dva.vdev, offset: dva.offset_bytes, what });
                    }
                    return Ok(dva);
                }
                Err(NotAllocated::Full) => return Err(full),
                Err(NotAllocated::Load(vdev, metaslab)) => writer.load(vdev, metaslab).await,
            }
        }
    }

    /// Frees a part of the space of copies that no block uses.
    ///
    /// # Errors
    /// [`BlockError::Space`] if it is free already; [`BlockError::ReadOnly`].
    pub fn unreserve(self, vdev: u32, range: Range<u64>, txg: Txg) -> Result<(), BlockError> {
        self.blocks.metaslabs().free(vdev, range, txg)
    }

    /// Frees the copies of a range of the vdev, which stays allocated itself: the removal is canceled.
    ///
    /// # Errors
    /// [`BlockError::Space`] if one is free already; [`BlockError::InvalidPointer`] if the range has not been copied.
    pub fn free_copies(self, range: &Range<u64>, txg: Txg) -> Result<(), BlockError> {
        let part = match self.blocks.writer()?.evacuation.lock().as_ref() {
            Some(evacuation) => evacuation.copied_part(range)?,
            None => return Ok(()),
        };
        for Piece { vdev, offset, len } in part.pieces {
            self.unreserve(vdev, offset..offset + len, txg)?;
        }
        Ok(())
    }

    /// Copies a range of the vdev into reserved space.
    ///
    /// # Errors
    /// [`BlockError`] if a device in service failed to read its part, or to write it. Devices that failed to write have the txg
    /// in their DTLs.
    pub async fn copy(self, request: &Request, from: (u32, u64), to: &Dva, txg: Txg) -> Result<(), BlockError> {
        let blocks = self.blocks;
        let writer = blocks.writer()?;
        let range = CopiedRange {
            from: Place::new(from.0, from.1),
            to: Place::new(to.vdev, to.offset_bytes),
            len: to.asize_bytes,
        };
        let write = WriteJob {
            request,
            clock: blocks.clock(),
            pool: &writer.buffers,
            txg,
            repair: false,
            plug: None,
            here: false,
            about: BlockContext::default(),
            hold: blocks.hold().map(Arc::new),
            layouts: Layouts::default(),
            recipients: Recipients::All,
            failed: Some(FailedLeaves::default()),
            cost: blocks.tree().accounts().write_cost(Content::Removal, txg.0, 0, Shares::new()),
        };
        // The vdev has all blocks, so that no DTL matters.
        let done = copy(blocks.tree(), &blocks.job(request, Txg(u64::MAX)), &write, range).await;
        let failed = write.failed.as_ref();
        let has_failed = failed.is_some_and(|failed| !failed.is_empty());
        failed.into_iter().for_each(|failed| blocks.tree().record_failed(failed, txg));
        match done {
            Ok(()) if has_failed => {
                Err(BlockError::Missing { vdev: to.vdev, offset: to.offset_bytes, devices: Vec::new() })
            }
            done => done,
        }
    }

    /// Records that ranges of the vdev have been copied; they follow the last ones. `bytes` of them are allocated.
    ///
    /// # Errors
    /// [`BlockError::InvalidPointer`] if they do not; [`BlockError::ReadOnly`].
    pub fn extend(self, entries: &[MappingEntry], bytes: u64) -> Result<(), BlockError> {
        match self.blocks.writer()?.evacuation.lock().as_mut() {
            Some(evacuation) => evacuation.extend(entries, bytes),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(source_bytes: u64, len: u64, offset_bytes: u64) -> MappingEntry {
        MappingEntry { source_bytes, target: Dva { vdev: 1, offset_bytes, asize_bytes: len, gang: false, grid: 0 } }
    }

    /// 12 KiB are allocated: 0 to 4 KiB and 8 to 16 KiB. The copy of the first two ranges has the gap between them.
    #[test]
    fn bytes_left_do_not_count_gaps_and_shrink_by_what_is_freed_before_it_is_copied() {
        let mut evacuation = Evacuation { vdev: 0, map: Mapping::default(), left_bytes: 12 << 10, freed_bytes: 0 };
        evacuation.extend(&[entry(0, 12 << 10, 1 << 20)], 8 << 10).unwrap();
        assert_eq!(evacuation.left_bytes, 4 << 10);
        let part = evacuation.free(&(8 << 10..14 << 10)).unwrap();
        assert_eq!(part.range, 8 << 10..12 << 10);
        assert_eq!(part.pieces, [Piece { vdev: 1, offset: (1 << 20) + (8 << 10), len: 4 << 10 }]);
        assert_eq!((evacuation.left_bytes, evacuation.freed_bytes), (2 << 10, 2 << 10));
        evacuation.extend(&[entry(14 << 10, 2 << 10, 2 << 20)], 2 << 10).unwrap();
        assert_eq!(evacuation.left_bytes, 0);
        assert!(evacuation.extend(&[entry(0, 512, 0)], 512).is_err(), "it has been copied already");
    }
}

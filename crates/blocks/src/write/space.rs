//! Space management of [`Blocks`]: vdevs, freeing and claiming blocks, sums of space.

use super::Reserved;
use super::evacuation::CopiedPart;
use super::metaslabs::Metaslabs;
use super::place::Placed;
use super::writer::NonMetaslabFrees;
use crate::alloc::{Class, SpaceChange, SpaceFault, SpaceSums, VdevSpace};
use crate::error::BlockError;
use crate::gang;
use crate::pipeline::{Blocks, ReadPath};
use crate::vdev::Remapped;
use futures_util::future::BoxFuture;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering;
use weir_format::{BlockPointer, Dva, Txg};
use weir_machine::Request;

/// Division of a vdev's space into metaslabs, for [`Blocks::add_vdev`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VdevGrid {
    /// Index of the top-level vdev.
    pub vdev: u32,
    /// Allocation class.
    pub class: Class,
    /// log2 of a metaslab's size.
    pub metaslab_shift: u32,
    /// Number of metaslabs.
    pub metaslab_count: u64,
    /// Nothing new is allocated there, but blocks may be freed.
    pub non_allocating: bool,
}

pub(super) fn space_fault(vdev: u32, offset: u64, len_bytes: u64) -> impl Fn(SpaceFault) -> BlockError {
    move |fault| BlockError::Space { vdev, offset, len_bytes, fault }
}

impl Blocks {
    /// The metaslabs, one by one.
    pub fn metaslabs(&self) -> Metaslabs<'_> {
        Metaslabs { blocks: self }
    }

    /// Adds a vdev to the allocator, before its metaslabs are loaded. A vdev that was added before is kept unchanged.
    ///
    /// # Errors
    /// [`BlockError::NotWritable`] if the vdev is of a kind that is not written to; [`BlockError::ReadOnly`].
    pub fn add_vdev(&self, grid: &VdevGrid) -> Result<(), BlockError> {
        let VdevGrid { vdev, class, metaslab_shift, metaslab_count, non_allocating } = *grid;
        let sizing = self.tree().sizing(vdev)?;
        // Nothing is allocated on a vdev that lacks too many devices, such as a missing log device.
        let non_allocating = non_allocating || !self.tree().can_keep(vdev);
        let about = VdevSpace { vdev, class, sizing, metaslab_shift, metaslab_count, non_allocating };
        self.writer()?.space().add_vdev(about);
        Ok(())
    }

    /// Stops or resumes allocation on a vdev.
    ///
    /// # Errors
    /// [`BlockError::ReadOnly`].
    pub fn set_non_allocating(&self, vdev: u32, non_allocating: bool) -> Result<(), BlockError> {
        self.writer()?.space().set_non_allocating(vdev, non_allocating);
        Ok(())
    }

    /// Makes every later block of more than `bytes` before parity a gang block: for tests.
    ///
    /// # Errors
    /// [`BlockError::ReadOnly`].
    pub fn force_gangs_above(&self, bytes: Option<u64>) -> Result<(), BlockError> {
        self.writer()?.space().set_largest_piece(bytes);
        Ok(())
    }

    /// Unit of physical sizes in bytes: the smallest sector size of the normal vdevs.
    pub fn unit_bytes(&self) -> u64 {
        self.writer().map_or(512, |w| w.space().unit_bytes())
    }

    /// Hands out the allocations and frees of the txgs up to `txg` since the last call.
    pub fn take_changes(&self, txg: Txg) -> Vec<SpaceChange> {
        self.writer().map_or_else(|_| Vec::new(), |w| w.space().take_changes(txg))
    }

    /// Records that `txg` has synced: space freed two uberblocks before is allocatable again, unless reads are in progress
    /// that began before it was freed. Returns the ranges, by vdev; they may be trimmed. `wrote_uberblock` is false for a
    /// txg without changes.
    pub fn synced(&self, txg: Txg, wrote_uberblock: bool) -> Vec<(u32, Range<u64>)> {
        let Ok(writer) = self.writer() else { return Vec::new() };
        let oldest_read = writer.reads.synced(txg);
        writer.space().synced(txg, wrote_uberblock, oldest_read)
    }

    /// Sums of space over the vdevs of a class.
    pub fn space(&self, class: Class) -> SpaceSums {
        self.writer().map_or_else(|_| SpaceSums::default(), |w| w.space().sums(class))
    }

    /// Sums of space of one vdev.
    pub fn vdev_space(&self, vdev: u32) -> SpaceSums {
        self.writer().map_or_else(|_| SpaceSums::default(), |w| w.space().vdev_sums(vdev))
    }

    /// Whether the class has a vdev on which blocks are allocated.
    pub fn has_class(&self, class: Class) -> bool {
        self.writer().is_ok_and(|w| w.space().has_class(class))
    }

    /// Bytes that a block counts in its dataset's used space: the allocated size, less the share of parity that a block of
    /// 128 KiB would have (`bp_get_dsize`).
    pub fn dsize_bytes(&self, pointer: &BlockPointer) -> u64 {
        pointer.dvas().map(|d| self.dsize_of(&d)).sum()
    }

    /// Value of [`Blocks::dsize_bytes`] for a reserved block that is not written yet.
    pub fn reserved_dsize_bytes(&self, reserved: &Reserved) -> u64 {
        reserved.dvas().iter().map(|d| self.dsize_of(d)).sum()
    }

    /// Bytes that one copy counts in its dataset's used space.
    pub fn dsize_of(&self, dva: &Dva) -> u64 {
        match self.tree().deflate(dva.vdev) {
            Some(deflate) => (dva.asize_bytes >> 9) * deflate,
            None => dva.asize_bytes,
        }
    }

    /// Frees the space of a block in `txg`: of a gang, header and pieces. Holes and embedded blocks have none. Space that a
    /// checkpoint needs stays allocated. [`Blocks::drain_non_metaslab_frees`] returns it, and freed space of removed vdevs.
    ///
    /// # Errors
    /// [`BlockError::Space`] if a part is free already. Errors of reading a gang header; then nothing is freed.
    pub async fn free(&self, request: &Request, pointer: &BlockPointer, txg: Txg) -> Result<(), BlockError> {
        let checkpoint_txg = self.writer()?.checkpoint_txg.load(Ordering::Relaxed);
        let is_kept = pointer.physical_birth().0 <= checkpoint_txg && txg.0 > checkpoint_txg;
        let mut places = Vec::new();
        let _hold = self.hold();
        self.places(
            request,
            pointer,
            ReadPath { depth: 0, prefetch: false, resilver: false, speculative: false, origin: None },
            &mut places,
        )
        .await?;
        for dva in places {
            self.free_dva(&dva, txg, is_kept)?;
        }
        Ok(())
    }

    /// Collects all DVAs of a block, including those of a gang's pieces.
    fn places<'a>(
        &'a self,
        request: &'a Request,
        pointer: &'a BlockPointer,
        way: ReadPath,
        out: &'a mut Vec<Dva>,
    ) -> BoxFuture<'a, Result<(), BlockError>> {
        Box::pin(async move {
            if pointer.is_embedded() || pointer.is_hole() {
                return Ok(());
            }
            if !pointer.is_gang() {
                out.extend(pointer.dvas());
                return Ok(());
            }
            for piece in gang::pieces_of(self, request, pointer, way).await? {
                self.places(request, &piece, ReadPath { depth: way.depth + 1, ..way }, out).await?;
            }
            for dva in pointer.dvas() {
                let asize_bytes = self.tree().header_bytes(dva.vdev, pointer.physical_birth().0)?;
                out.push(Dva { asize_bytes, ..dva });
            }
            Ok(())
        })
    }

    fn free_dva(&self, dva: &Dva, txg: Txg, is_kept: bool) -> Result<(), BlockError> {
        let writer = self.writer()?;
        writer.scan_queue.freed(dva.vdev, dva.offset_bytes, txg);
        let range = dva.offset_bytes..dva.offset_bytes.saturating_add(dva.asize_bytes);
        let Remapped { there, mut removed } = self.tree().remap(dva.vdev, range)?;
        for (vdev, range) in &there {
            // The allocator knows only vdevs of kinds that are written to.
            self.tree().sizing(*vdev)?;
            if is_kept {
                continue;
            }
            let fault = space_fault(*vdev, range.start, range.end - range.start);
            writer.space().free(*vdev, range.clone(), txg).map_err(fault)?;
            // No vdev is removed while there is a checkpoint.
            let CopiedPart { range: copied, pieces } = writer.free_copied(*vdev, range)?;
            for piece in pieces {
                let range = piece.offset..piece.offset + piece.len;
                let fault = space_fault(piece.vdev, piece.offset, piece.len);
                writer.space().free(piece.vdev, range, txg).map_err(fault)?;
            }
            removed.extend((!copied.is_empty()).then_some((*vdev, copied)));
        }
        let mut frees = writer.non_metaslab_frees();
        frees.removed.extend(removed);
        frees.kept.extend(there.into_iter().filter(|_| is_kept));
        Ok(())
    }

    /// Sets the txg of the pool's checkpoint, which needs all blocks born up to it; 0 if the pool has none.
    ///
    /// # Errors
    /// [`BlockError::ReadOnly`].
    pub fn set_checkpoint(&self, txg: Txg) -> Result<(), BlockError> {
        self.writer()?.checkpoint_txg.store(txg.0, Ordering::Relaxed);
        Ok(())
    }

    /// Hands out the frees since the last call that belong in the checkpoint and obsolete space maps.
    pub fn drain_non_metaslab_frees(&self) -> NonMetaslabFrees {
        self.writer().map_or_else(|_| NonMetaslabFrees::default(), |w| std::mem::take(&mut *w.non_metaslab_frees()))
    }

    pub(super) fn free_placed(&self, placed: &Placed, txg: Txg) -> Result<(), BlockError> {
        let mut outcome = Ok(());
        placed.each(&mut |dva| {
            let freed = self.free_dva(dva, txg, false);
            if outcome.is_ok() {
                outcome = freed;
            }
        });
        outcome
    }

    /// Claims the space of a block that was written before the import, but in no synced txg: blocks of the intent log, and
    /// blocks that its records point to. Of a gang, header and pieces.
    ///
    /// # Errors
    /// [`BlockError::Space`] if a part is not free; then nothing is claimed. Errors of reading a gang header.
    pub async fn claim(&self, request: &Request, pointer: &BlockPointer, txg: Txg) -> Result<(), BlockError> {
        let mut places = Vec::new();
        let way = ReadPath { depth: 0, prefetch: false, resilver: false, speculative: false, origin: None };
        self.places(request, pointer, way, &mut places).await?;
        let writer = self.writer()?;
        loop {
            let Err(error) = self.claim_all(&places, txg) else { return Ok(()) };
            let BlockError::Space { vdev, offset, fault: SpaceFault::NotLoaded, .. } = error else { return Err(error) };
            let unloaded = writer.space().first_unloaded(vdev, &(offset..offset.saturating_add(1)));
            // Not if the load of the metaslab failed.
            let Some(metaslab) = unloaded else { return Err(error) };
            writer.load(vdev, metaslab).await;
        }
    }

    /// Claims all of some ranges, or none.
    fn claim_all(&self, places: &[Dva], txg: Txg) -> Result<(), BlockError> {
        let mut space = self.writer()?.space();
        let mut claimed = Vec::new();
        for &dva in places {
            let Dva { vdev, offset_bytes: at, asize_bytes: len, .. } = dva;
            if let Err(fault) = space.claim(vdev, at..at.saturating_add(len), txg) {
                for dva in claimed {
                    space.undo(&dva, txg);
                }
                return Err(space_fault(vdev, at, len)(fault));
            }
            claimed.push(dva);
        }
        Ok(())
    }

    /// Flushes every leaf that was written to since its last flush.
    ///
    /// # Errors
    /// [`BlockError::Device`], [`BlockError::ReadOnly`].
    pub async fn flush(&self) -> Result<(), BlockError> {
        self.tree().flush().await
    }

    /// Flushes some top-level vdevs, or all: for the intent log, which need not wait for the others.
    ///
    /// # Errors
    /// As [`Blocks::flush`].
    pub async fn flush_vdevs(&self, request: &Request, vdevs: Option<&BTreeSet<u32>>) -> Result<(), BlockError> {
        self.tree().flush_if(|vdev| vdevs.is_none_or(|vdevs| vdevs.contains(&vdev)), request.here).await
    }
}

//! Space as callers see it: told to the allocator, taken, given back, summed up.

use super::Reserved;
use super::place::Placed;
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
use weir_machine::{Buf, Request};

/// The parts of a vdev's space that its space maps tell of, for [`Blocks::add_vdev`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VdevGrid {
    /// Index of the top-level vdev.
    pub vdev: u32,
    /// What it is for.
    pub class: Class,
    /// log2 of a metaslab's size.
    pub metaslab_shift: u32,
    /// How many metaslabs it has.
    pub metaslab_count: u64,
    /// Nothing new may go there, but blocks may be freed.
    pub closed: bool,
}

/// Freed space that metaslabs are not told of: ranges of top-level vdevs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NonMetaslabFrees {
    /// What stays taken because the checkpoint needs it.
    pub kept: Vec<(u32, Range<u64>)>,
    /// What of removed vdevs nothing leads to any more.
    pub removed: Vec<(u32, Range<u64>)>,
}

fn space_fault(vdev: u32, offset: u64, len_bytes: u64) -> impl Fn(SpaceFault) -> BlockError {
    move |fault| BlockError::Space { vdev, offset, len_bytes, fault }
}

impl Blocks {
    /// Tells of a vdev's space, before its metaslabs are loaded. One that is known already is kept.
    ///
    /// # Errors
    /// [`BlockError::NotWritable`] if the vdev is of a kind that is not written to; [`BlockError::ReadOnly`].
    pub fn add_vdev(&self, grid: &VdevGrid) -> Result<(), BlockError> {
        let VdevGrid { vdev, class, metaslab_shift, metaslab_count, closed } = *grid;
        let sizing = self.tree().sizing(vdev)?;
        // Nothing is sent where it cannot be kept: a log device that is missing, say.
        let closed = closed || !self.tree().can_keep(vdev);
        let about = VdevSpace { vdev, class, sizing, metaslab_shift, metaslab_count, closed };
        self.writer()?.space().add_vdev(about);
        Ok(())
    }

    /// Tells which ranges (in the vdev's space) of a metaslab are free. Until then nothing is taken from it.
    ///
    /// # Errors
    /// [`BlockError::Space`], [`BlockError::ReadOnly`].
    pub fn set_space(&self, vdev: u32, metaslab: u64, free: &[Range<u64>]) -> Result<(), BlockError> {
        self.writer()?.space().load(vdev, metaslab, free).map_err(space_fault(vdev, metaslab, 0))
    }

    /// Opens a vdev for new blocks, or closes it.
    ///
    /// # Errors
    /// [`BlockError::ReadOnly`].
    pub fn set_closed(&self, vdev: u32, closed: bool) -> Result<(), BlockError> {
        self.writer()?.space().set_closed(vdev, closed);
        Ok(())
    }

    /// From here on every block of more than `bytes` before parity becomes a gang: for tests.
    ///
    /// # Errors
    /// [`BlockError::ReadOnly`].
    pub fn force_gangs_above(&self, bytes: Option<u64>) -> Result<(), BlockError> {
        self.writer()?.space().set_largest_piece(bytes);
        Ok(())
    }

    /// Physical sizes of blocks are multiples of this: the sector of the normal vdev with the smallest.
    pub fn unit_bytes(&self) -> u64 {
        self.writer().map_or(512, |w| w.space().unit_bytes())
    }

    /// What was taken and given back in `txg` since the last call.
    pub fn take_changes(&self, txg: Txg) -> Vec<SpaceChange> {
        self.writer().map_or_else(|_| Vec::new(), |w| w.space().take_changes(txg))
    }

    /// Takes note that `txg` is on stable storage: what was given back two groups before can be taken again, unless reads
    /// are under way that began before that. Gives the ranges, by vdev, which may be trimmed.
    pub fn synced(&self, txg: Txg) -> Vec<(u32, Range<u64>)> {
        let Ok(writer) = self.writer() else { return Vec::new() };
        let oldest_read = writer.reads.synced(txg);
        writer.space().synced(txg, oldest_read)
    }

    /// The space of the vdevs of a class.
    pub fn space(&self, class: Class) -> SpaceSums {
        self.writer().map_or_else(|_| SpaceSums::default(), |w| w.space().sums(class))
    }

    /// The space of one vdev.
    pub fn vdev_space(&self, vdev: u32) -> SpaceSums {
        self.writer().map_or_else(|_| SpaceSums::default(), |w| w.space().vdev_sums(vdev))
    }

    /// What is allocated in a metaslab according to all changes that [`Blocks::take_changes`] gave so far: what its space map
    /// should say.
    pub fn allocated_as_synced(&self, vdev: u32, metaslab: u64) -> Vec<Range<u64>> {
        self.writer().map_or_else(|_| Vec::new(), |w| w.space().allocated_as_synced(vdev, metaslab))
    }

    /// Number of a metaslab's free segments of 2ⁿ to 2ⁿ⁺¹−1 bytes, for each n, as of `txg`: what can be taken, and what was
    /// freed in each txg up to that one.
    pub fn free_histogram(&self, vdev: u32, metaslab: u64, txg: Txg) -> [u64; 64] {
        self.writer().map_or([0; 64], |w| w.space().metaslab_histogram(vdev, metaslab, txg))
    }

    /// The free segments of a metaslab: what its space map, less what is deferred, should say.
    pub fn free_segments(&self, vdev: u32, metaslab: u64) -> Vec<Range<u64>> {
        self.writer().map_or_else(|_| Vec::new(), |w| w.space().free_segments(vdev, metaslab))
    }

    /// Whether there is an open vdev of this class.
    pub fn has_class(&self, class: Class) -> bool {
        self.writer().is_ok_and(|w| w.space().has_class(class))
    }

    /// What a block counts towards its dataset's use, in bytes: the space that it takes, less the share of parity that a
    /// block of 128 KiB would have (`bp_get_dsize`).
    pub fn dsize_bytes(&self, pointer: &BlockPointer) -> u64 {
        pointer.dvas().map(|d| self.dsize_of(&d)).sum()
    }

    /// The same of a block that is yet to be written.
    pub fn reserved_dsize_bytes(&self, reserved: &Reserved) -> u64 {
        reserved.dvas().iter().map(|d| self.dsize_of(d)).sum()
    }

    /// What one copy counts.
    pub fn dsize_of(&self, dva: &Dva) -> u64 {
        match self.tree().deflate(dva.vdev) {
            Some(deflate) => (dva.asize_bytes >> 9) * deflate,
            None => dva.asize_bytes,
        }
    }

    /// Gives the space of a block back in `txg`: of a gang, header and pieces. Holes and embedded blocks have none. What
    /// a checkpoint needs stays taken, and is told of by [`Blocks::drain_non_metaslab_frees`]; so is what removed vdevs had of it.
    ///
    /// # Errors
    /// [`BlockError::Space`] if any of it is free already; an error of reading if a gang's header cannot be read: then
    /// nothing is given back.
    pub async fn free(&self, request: &Request, pointer: &BlockPointer, txg: Txg) -> Result<(), BlockError> {
        let kept_to = self.writer()?.kept_to.load(Ordering::Relaxed);
        let is_kept = pointer.physical_birth().0 <= kept_to && txg.0 > kept_to;
        let mut places = Vec::new();
        let _hold = self.hold();
        self.places(request, pointer, ReadPath { depth: 0, prefetch: false, origin: None }, &mut places).await?;
        for dva in places {
            self.give_back_one(&dva, txg, is_kept)?;
        }
        Ok(())
    }

    /// All places of a block.
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

    fn give_back_one(&self, dva: &Dva, txg: Txg, is_kept: bool) -> Result<(), BlockError> {
        let writer = self.writer()?;
        let range = dva.offset_bytes..dva.offset_bytes.saturating_add(dva.asize_bytes);
        let Remapped { there, removed } = self.tree().remap(dva.vdev, range)?;
        for (vdev, range) in &there {
            // Space on a kind of vdev that is not written to has no account here.
            self.tree().sizing(*vdev)?;
            if !is_kept {
                let fault = space_fault(*vdev, range.start, range.end - range.start);
                writer.space().give_back(*vdev, range.clone(), txg).map_err(fault)?;
            }
        }
        let mut aside = writer.aside();
        aside.removed.extend(removed);
        aside.kept.extend(there.into_iter().filter(|_| is_kept));
        Ok(())
    }

    /// The pool has a checkpoint, which needs all blocks born up to that group; group 0: it has none.
    ///
    /// # Errors
    /// [`BlockError::ReadOnly`].
    pub fn set_checkpoint(&self, txg: Txg) -> Result<(), BlockError> {
        self.writer()?.kept_to.store(txg.0, Ordering::Relaxed);
        Ok(())
    }

    /// What was freed since the last call and has to be written down elsewhere than in the metaslabs' space maps.
    pub fn drain_non_metaslab_frees(&self) -> NonMetaslabFrees {
        self.writer().map_or_else(|_| NonMetaslabFrees::default(), |w| std::mem::take(&mut *w.aside()))
    }

    pub(super) fn give_back(&self, placed: &Placed, txg: Txg) -> Result<(), BlockError> {
        let mut outcome = Ok(());
        placed.each(&mut |dva| {
            let given = self.give_back_one(dva, txg, false);
            if outcome.is_ok() {
                outcome = given;
            }
        });
        outcome
    }

    /// Takes exactly the places of a block that was written before the pool was opened, but in no synced transaction
    /// group: what the intent log leads to, and its own blocks. Of a gang, header and pieces.
    ///
    /// # Errors
    /// [`BlockError::Space`] if a place is not free; then none is taken. An error of reading if a gang's header cannot be
    /// read.
    pub async fn claim(&self, request: &Request, pointer: &BlockPointer, txg: Txg) -> Result<(), BlockError> {
        let mut places = Vec::new();
        let way = ReadPath { depth: 0, prefetch: false, origin: None };
        self.places(request, pointer, way, &mut places).await?;
        let mut space = self.writer()?.space();
        let mut taken = Vec::new();
        for dva in places {
            let Dva { vdev, offset_bytes: at, asize_bytes: len, .. } = dva;
            if let Err(fault) = space.claim(vdev, at..at.saturating_add(len), txg) {
                for dva in taken {
                    space.undo(&dva, txg);
                }
                return Err(space_fault(vdev, at, len)(fault));
            }
            taken.push(dva);
        }
        Ok(())
    }

    /// Makes all that was written stable, on every leaf that was written to since its last flush.
    ///
    /// # Errors
    /// [`BlockError::Device`], [`BlockError::ReadOnly`].
    pub async fn flush(&self) -> Result<(), BlockError> {
        self.tree().flush().await
    }

    /// Makes stable what was written to some top-level vdevs, or to all: for the intent log, which need not wait for the
    /// others.
    ///
    /// # Errors
    /// As [`Blocks::flush`].
    pub async fn flush_vdevs(&self, request: &Request, vdevs: Option<&BTreeSet<u32>>) -> Result<(), BlockError> {
        self.tree().flush_if(|vdev| vdevs.is_none_or(|vdevs| vdevs.contains(&vdev)), request.here).await
    }

    /// Writes to a leaf, `offset` bytes from its start: labels and uberblocks.
    ///
    /// # Errors
    /// As [`crate::Tree::write_leaf`].
    pub async fn write_leaf(&self, guid: u64, offset: u64, bytes: Buf) -> Result<(), BlockError> {
        self.tree().write_leaf(guid, offset, bytes).await
    }

    /// Makes what was written to a leaf stable.
    ///
    /// # Errors
    /// As [`crate::Tree::flush_leaf`].
    pub async fn flush_leaf(&self, guid: u64) -> Result<(), BlockError> {
        self.tree().flush_leaf(guid).await
    }
}

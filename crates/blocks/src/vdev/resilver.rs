//! Resilvering: writes blocks to the leaves that lack them, and to no other.
//!
//! ```text
//!   block, read and verified ─► its places ─► (removed vdev: where the range is now) ─► the vdev's layout, with parity
//!                                                                                        └─► leaves whose DTL has its birth
//! ```
//!
//! A block is written as when it was new, so every kind of vdev has one mapping; a leaf that has the block ignores the write.
//! Ranges of removed vdevs were copied in a later txg than their block was born in, so they are written to each leaf with any
//! DTL.
//!
//! Source: OpenZFS `module/zfs/dsl_scan.c` (`dsl_scan_need_resilver`), `module/zfs/vdev_mirror.c` (`vdev_mirror_io_done`),
//! `module/zfs/vdev.c` (`vdev_resilver_needed`).

use super::write::Recipients;
use super::{Body, Place, Tree, Vdev, VdevRead, WriteJob};
use crate::alloc::AllocStatus;
use bytes::Bytes;
use std::fmt;
use weir_format::{BlockPointer, Txg};
use weir_machine::accounts::Redundancy;
use weir_machine::invariant;

/// A vdev tree, for resilvers ([`Tree::resilvering`]).
#[derive(Clone, Copy)]
pub struct Resilvering<'a> {
    tree: &'a Tree,
}

impl fmt::Debug for Resilvering<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Resilvering({:?})", self.range())
    }
}

impl<'a> Resilvering<'a> {
    pub(super) fn new(tree: &'a Tree) -> Self {
        Resilvering { tree }
    }

    /// First and last txg that leaves in service lack; `None` if they lack nothing.
    pub fn range(&self) -> Option<(Txg, Txg)> {
        let mut range: Option<(Txg, Txg)> = None;
        self.tree.version().each_leaf(&mut |leaf| {
            if !leaf.present() {
                return;
            }
            let dtl = leaf.writes().dtl().missing();
            if let (Some((first, _)), Some(last)) = (dtl.ranges().first().copied(), dtl.max()) {
                range = Some(range.map_or((first, last), |(from, to)| (from.min(first), to.max(last))));
            }
        });
        invariant!(range.is_none_or(|(first, last)| first <= last), "a DTL ends before it begins");
        range
    }

    /// Whether a leaf in service may lack its copy of a block on top-level vdev `vdev` that was born in `birth`.
    fn lacks_copy(&self, vdev: u32, birth: Txg) -> bool {
        let is_removed = |vdev: &Vdev| matches!(vdev.body, Body::Indirect(_));
        let lacks = self.tree.with_top(vdev, |top| (is_removed(&top.vdev), top.vdev.lacks_copy(birth)));
        match lacks {
            Some((true, _)) => self.range().is_some(),
            Some((false, lacks)) => lacks,
            None => false,
        }
    }

    /// Whether a resilver has to read a block: a device in service may lack a copy of it. True for all gang blocks, whose
    /// pieces may be on other vdevs, and for blocks on removed vdevs, while any device lacks anything.
    pub fn needs(&self, pointer: &BlockPointer) -> bool {
        if pointer.is_embedded() || pointer.is_hole() || pointer.is_redacted() {
            return false;
        }
        let birth = pointer.physical_birth();
        match pointer.is_gang() {
            true => self.range().is_some(),
            false => pointer.dvas().any(|dva| self.lacks_copy(dva.vdev, birth)),
        }
    }

    /// A block born in `birth` could not be read: the DTLs keep that txg when the scan ends. With `below`, it has pointers to
    /// other blocks, and the DTLs keep all earlier txgs as well.
    pub fn keep_missing(&self, birth: Txg, below: bool) {
        self.tree.version().each_leaf(&mut |leaf| {
            let mut dtl = leaf.writes().dtl();
            let until = dtl.missing().until(birth);
            for (first, last) in until.ranges().iter().copied().filter(|(_, last)| below || *last == birth) {
                dtl.dirty(if below { first } else { birth }, last, true);
            }
        });
    }

    /// Whether a leaf in service could not be given a block since the scan began, or failed a flush: the scan cannot be
    /// resumed by another process, which would not know it.
    pub fn has_unrepaired(&self) -> bool {
        let mut any = false;
        self.tree.version().each_leaf(&mut |leaf| {
            let writes = leaf.writes();
            any |= leaf.is_behind() && (writes.flusher.has_failed() || writes.dtl().has_unrepaired());
        });
        any
    }

    /// Writes a verified block at `place` to the leaves that lack it. Failures are recorded in their DTLs.
    pub(crate) async fn give(&self, job: &VdevRead<'a>, place: Place, data: Bytes) {
        if !self.lacks_copy(place.vdev, job.birth) {
            return;
        }
        let Some(write) = self.job(job, place) else { return };
        let is_removed = |vdev: &Vdev| matches!(vdev.body, Body::Indirect(_));
        if !self.tree.with_top(place.vdev, |top| is_removed(&top.vdev)).unwrap_or(false) {
            // The leaf counts failed writes.
            let _recorded = self.tree.write(&write, Redundancy::First, place, data).await;
            return;
        }
        let write = WriteJob { recipients: Recipients::Behind, ..write };
        let end = place.offset.saturating_add(data.len() as u64);
        let Ok(now) = self.tree.remap(place.vdev, place.offset..end) else { return };
        let mut at = 0;
        for (vdev, range) in now.there {
            let len = (range.end - range.start) as usize;
            let there = Place { hops: place.hops + 1, ..Place::new(vdev, range.start) };
            let piece = data.slice(at..(at + len).min(data.len()));
            let _recorded = self.tree.write(&write, Redundancy::First, there, piece).await;
            at = (at + len).min(data.len());
        }
    }

    /// The write of a resilver; `None` if the block is not there any more, or the pool is not open for writing.
    fn job(&self, job: &VdevRead<'a>, place: Place) -> Option<WriteJob<'a>> {
        let write = WriteJob::repair(job, self.tree, Recipients::Lacking)?;
        (job.alloc_status(place) != AllocStatus::Freed).then_some(write)
    }
}

impl Vdev {
    /// Whether a leaf in service below has `birth` in its DTL.
    fn lacks_copy(&self, birth: Txg) -> bool {
        let mut lacks = false;
        self.each_leaf(&mut |leaf| lacks |= leaf.is_stale(birth));
        lacks
    }
}

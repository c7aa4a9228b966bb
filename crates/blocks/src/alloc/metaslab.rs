//! One metaslab: its free segments, the ranges allocated and freed in each txg, and the deferred frees.

use super::segments::Segments;
use super::{SpaceFault, SpaceKind};
use std::collections::BTreeMap;
use std::ops::Range;
use weir_format::Txg;
use weir_machine::invariant;

/// Number of uberblocks that must have been written after a free's own before the space is allocatable again; the pool
/// can be rewound by this number of uberblocks (`TXG_DEFER_SIZE`).
pub const DEFER: u64 = 2;
/// Best fit is used if the longest free segment is shorter than this (`metaslab_df_alloc_threshold`).
const BEST_FIT_BYTES: u64 = 128 << 10;
/// Best fit is also used if less than one part in this many of the metaslab is free.
const BEST_FIT_FREE_DIVISOR: u64 = 25;
/// Maximum number of segments examined behind the cursor.
const MAX_SEGMENTS_TRIED: usize = 128;

/// Changes of one txg that were not handed out yet.
#[derive(Clone, Debug, Default)]
struct Changes {
    allocated: Segments,
    freed: Segments,
}

/// Relation between a block pointer and the present allocation at its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocStatus {
    /// The space is allocated, and not in one of the txgs that are remembered: by the pointer's block or by a later one
    /// that was written to all devices.
    Synced,
    /// The space is allocated by the pointer's block, which is not on stable storage yet.
    Unsynced,
    /// The pointer's block was freed: the space is free, or allocated in a later txg.
    Freed,
}

/// Deferred frees whose deferral has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeferredFrees {
    /// Ranges that are allocatable again.
    pub freed: Vec<Range<u64>>,
    /// Bytes freed in a metaslab that is not loaded; the ranges are known once its space map is loaded.
    pub forgotten_bytes: u64,
}

/// A part of a top-level vdev that has its own space map.
#[derive(Clone, Debug)]
pub struct Metaslab {
    range: Range<u64>,
    /// Allocatable segments.
    free: Segments,
    /// Deferred frees by txg.
    deferred: BTreeMap<Txg, Segments>,
    changes: BTreeMap<Txg, Changes>,
    /// Ranges allocated in the last txgs. An older pointer into such a range is stale.
    recent: BTreeMap<Txg, Segments>,
    /// Offset at which the search for a segment continues, by log2 of the size.
    cursors: [u64; 64],
    loaded: bool,
    /// Free segments that are temporarily not allocatable.
    disabled: Segments,
}

impl Metaslab {
    /// A metaslab whose free space is unknown: nothing can be allocated in it.
    pub fn new(range: Range<u64>) -> Self {
        Metaslab {
            cursors: [range.start; 64],
            range,
            free: Segments::default(),
            deferred: BTreeMap::new(),
            changes: BTreeMap::new(),
            recent: BTreeMap::new(),
            loaded: false,
            disabled: Segments::default(),
        }
    }

    /// Range in the allocatable space of the top-level vdev, in bytes.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Allocatable segments.
    pub fn free_segments(&self) -> &Segments {
        &self.free
    }

    /// Sets the free ranges, as the space map on disk lists them.
    ///
    /// # Errors
    /// [`SpaceFault`] if a range is outside of the metaslab, overlaps another, or the metaslab was loaded before.
    pub fn load(&mut self, free: &[Range<u64>]) -> Result<(), SpaceFault> {
        if self.loaded {
            return Err(SpaceFault::LoadedTwice);
        }
        let mut segments = Segments::default();
        for range in free {
            if range.start < self.range.start || range.end > self.range.end || range.start > range.end {
                return Err(SpaceFault::Outside);
            }
            if !segments.add(range.clone()) {
                return Err(SpaceFault::AlreadyFree);
            }
        }
        for range in self.deferred.values().flat_map(Segments::iter) {
            segments.remove_common(&range);
        }
        for range in self.changes.values().flat_map(|c| c.allocated.iter()) {
            segments.remove_common(&range);
        }
        self.free = segments;
        self.loaded = true;
        Ok(())
    }

    /// Allocates `len` contiguous bytes and returns their offset; `None` if no free segment is that long.
    pub fn allocate(&mut self, len: u64, txg: Txg) -> Option<u64> {
        let largest = self.free.largest_bytes();
        if len == 0 || largest < len {
            return None;
        }
        let size = self.range.end - self.range.start;
        let is_best_fit = largest < BEST_FIT_BYTES || self.free.total_bytes() < size / BEST_FIT_FREE_DIVISOR;
        let cursor = &mut self.cursors[len.ilog2() as usize];
        let next = if is_best_fit { None } else { self.free.first_fit(*cursor, len, MAX_SEGMENTS_TRIED) };
        let at = next.or_else(|| self.free.best_fit(len))?;
        *cursor = at + len;
        let was_free = self.free.remove(at..at + len);
        invariant!(was_free, "the allocated range {at:#x}, {len:#x} bytes, was not free");
        let is_new = self.changes.entry(txg).or_default().allocated.add(at..at + len);
        invariant!(is_new, "range {at:#x}, {len:#x} bytes, is allocated twice in txg {}", txg.0);
        self.note_recent(at..at + len, txg);
        Some(at)
    }

    /// Reverts an allocation in `txg` that was not handed out as a change and not written to. Returns the bytes that are
    /// allocatable again.
    pub fn unallocate(&mut self, range: Range<u64>, txg: Txg) -> u64 {
        let len = range.end - range.start;
        let was_pending = self.changes.get_mut(&txg).is_some_and(|c| c.allocated.remove(range.clone()));
        if let Some(recent) = self.recent.get_mut(&txg) {
            recent.remove_common(&range);
        }
        if was_pending && self.free.add(range) { len } else { 0 }
    }

    /// Allocates exactly `range`.
    ///
    /// # Errors
    /// [`SpaceFault::NotFree`] if not all of it is free.
    pub fn claim(&mut self, range: Range<u64>, txg: Txg) -> Result<(), SpaceFault> {
        if !self.free.remove(range.clone()) {
            return Err(SpaceFault::NotFree);
        }
        let is_new = self.changes.entry(txg).or_default().allocated.add(range.clone());
        invariant!(is_new, "the claimed range {range:#x?} is allocated twice in txg {}", txg.0);
        self.note_recent(range, txg);
        Ok(())
    }

    fn note_recent(&mut self, range: Range<u64>, txg: Txg) {
        let recent = self.recent.entry(txg).or_default();
        // A part may have been allocated, handed out as a change, freed and reused in this same txg.
        recent.remove_common(&range);
        let is_new = recent.add(range);
        invariant!(is_new, "a part of the range remains among the recent allocations of txg {}", txg.0);
    }

    /// Status of the space at `range` for a pointer born in `birth`; `synced` is the last synced txg.
    pub fn alloc_status(&self, range: &Range<u64>, birth: Txg, synced: Txg) -> AllocStatus {
        let mut unused = [&self.free, &self.disabled].into_iter().chain(self.deferred.values());
        let is_free = unused.any(|segments| segments.touches(range));
        let mut allocated = self.recent.iter().filter(|(_, segments)| segments.touches(range)).map(|(txg, _)| *txg);
        match allocated.next_back() {
            _ if is_free => AllocStatus::Freed,
            Some(last) if last > birth => AllocStatus::Freed,
            Some(last) if last > synced => AllocStatus::Unsynced,
            _ if !self.loaded => AllocStatus::Unsynced,
            _ => AllocStatus::Synced,
        }
    }

    /// Frees `range` in `txg`; it becomes allocatable when the deferral ends.
    ///
    /// # Errors
    /// [`SpaceFault`] if the range reaches beyond the metaslab, or a part of it is free already.
    pub fn free(&mut self, range: Range<u64>, txg: Txg) -> Result<(), SpaceFault> {
        if range.start < self.range.start || range.end > self.range.end || range.is_empty() {
            return Err(SpaceFault::Outside);
        }
        if self.free.touches(&range) || self.deferred.values().any(|d| d.touches(&range)) {
            return Err(SpaceFault::AlreadyFree);
        }
        self.deferred.entry(txg).or_default().add(range.clone());
        let changes = self.changes.entry(txg).or_default();
        // Space allocated and freed in the same txg is dropped from both lists; neither reaches the space map.
        let mut synced_allocated = Segments::default();
        synced_allocated.add(range.clone());
        for pending in changes.allocated.remove_common(&range) {
            synced_allocated.remove(pending);
        }
        for part in synced_allocated.iter() {
            changes.freed.add(part);
        }
        Ok(())
    }

    /// Hands out the changes of `txg` since the last call: allocations, then frees.
    pub fn changes(&mut self, txg: Txg) -> Vec<(SpaceKind, Range<u64>)> {
        let Some(Changes { allocated, freed }) = self.changes.remove(&txg) else { return Vec::new() };
        let allocated = allocated.iter().map(|r| (SpaceKind::Alloc, r));
        allocated.chain(freed.iter().map(|r| (SpaceKind::Free, r))).collect()
    }

    /// Makes the frees of txgs up to `freed_until` allocatable, and forgets the allocations of txgs up to `forget_until`.
    pub fn release_deferred(&mut self, freed_until: Txg, forget_until: Txg) -> DeferredFrees {
        self.recent = self.recent.split_off(&Txg(forget_until.0.saturating_add(1)));
        let later = self.deferred.split_off(&Txg(freed_until.0.saturating_add(1)));
        let released = std::mem::replace(&mut self.deferred, later);
        let freed: Vec<Range<u64>> = released.values().flat_map(Segments::iter).collect();
        if !self.loaded {
            return DeferredFrees {
                freed: Vec::new(),
                forgotten_bytes: released.values().map(Segments::total_bytes).sum(),
            };
        }
        for range in &freed {
            let was_allocated = self.free.add(range.clone());
            invariant!(was_allocated, "the freed range {range:#x?} is free already");
        }
        DeferredFrees { freed, forgotten_bytes: 0 }
    }

    /// Makes the free segments within `range` temporarily not allocatable, without a change of the space map. Returns them.
    pub fn disable_range(&mut self, range: &Range<u64>) -> Vec<Range<u64>> {
        let disabled = self.free.remove_common(range);
        for part in &disabled {
            self.disabled.add(part.clone());
        }
        disabled
    }

    /// Makes a range that [`Metaslab::disable_range`] returned allocatable again.
    pub fn enable_range(&mut self, range: Range<u64>) {
        let was_disabled = self.disabled.remove(range.clone());
        let is_new = self.free.add(range.clone());
        invariant!(was_disabled && is_new, "range {range:#x?} was not set aside");
    }

    /// Number of free segments of 2ⁿ to 2ⁿ⁺¹−1 bytes, for each n: allocatable segments, and the frees of each txg up to
    /// `txg`. Each txg's frees are counted separately and not merged, as in the header of a space map
    /// (`metaslab_sync` in OpenZFS's `module/zfs/metaslab.c`).
    pub fn histogram(&self, txg: Txg) -> [u64; 64] {
        let mut out = [0; 64];
        let deferred = self.deferred.range(..=txg).map(|(_, segments)| segments);
        for segments in [&self.free, &self.disabled].into_iter().chain(deferred) {
            segments.histogram(&mut out);
        }
        out
    }

    /// Allocated segments according to all changes handed out so far, which is the content of the space map on disk.
    pub fn synced_allocated(&self) -> Segments {
        let mut synced_allocated = Segments::default();
        synced_allocated.add(self.range.clone());
        let unused = [&self.free, &self.disabled].into_iter().chain(self.deferred.values());
        for part in unused.flat_map(Segments::iter) {
            synced_allocated.remove(part);
        }
        for changes in self.changes.values() {
            for part in changes.allocated.iter() {
                synced_allocated.remove_common(&part);
            }
            for part in changes.freed.iter() {
                synced_allocated.remove_common(&part);
                synced_allocated.add(part);
            }
        }
        synced_allocated
    }
}

//! One metaslab: its free space, the ranges allocated and freed in each txg, and the deferred frees.

use super::contents::{Contents, LoadState, Loaded, Summary, Unloaded};
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
    /// The space was neither allocated nor freed in one of the txgs that are remembered, and the metaslab is not loaded.
    Unknown,
}

/// Deferred frees whose deferral has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeferredFrees {
    /// Ranges that are allocatable again.
    pub freed: Vec<Range<u64>>,
    /// Bytes freed in a metaslab of which nothing is known; the ranges are known once it is loaded.
    pub forgotten_bytes: u64,
}

/// A part of a top-level vdev that has its own space map.
#[derive(Clone, Debug)]
pub struct Metaslab {
    range: Range<u64>,
    contents: Contents,
    /// Deferred frees by txg.
    deferred: BTreeMap<Txg, Segments>,
    changes: BTreeMap<Txg, Changes>,
    /// Ranges allocated in the last txgs. An older pointer into such a range is stale.
    recent: BTreeMap<Txg, Segments>,
}

impl Metaslab {
    /// A metaslab whose free space is unknown: nothing can be allocated in it.
    pub fn new(range: Range<u64>) -> Self {
        let [deferred, recent] = Default::default();
        Metaslab { range, contents: Contents::Unknown, deferred, changes: BTreeMap::new(), recent }
    }

    /// Range in the allocatable space of the top-level vdev, in bytes.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    fn size_bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn loaded(&self) -> Option<&Loaded> {
        if let Contents::Loaded(loaded) = &self.contents { Some(loaded) } else { None }
    }

    fn loaded_mut(&mut self) -> Option<&mut Loaded> {
        if let Contents::Loaded(loaded) = &mut self.contents { Some(loaded) } else { None }
    }

    /// Allocatable segments, if the metaslab is loaded.
    pub fn free_segments(&self) -> Option<&Segments> {
        self.loaded().map(|loaded| &loaded.free)
    }

    /// Number of segments in memory of the free space, if the metaslab is loaded.
    pub fn loaded_segments(&self) -> Option<usize> {
        self.loaded().map(|loaded| loaded.free.len() + loaded.disabled.len())
    }

    /// Allocatable bytes; those of a metaslab that is not loaded as well.
    pub fn free_bytes(&self) -> u64 {
        match &self.contents {
            Contents::Unknown => 0,
            Contents::Unloaded(unloaded) => unloaded.summary.free_bytes,
            Contents::Loaded(loaded) => loaded.free.total_bytes(),
        }
    }

    /// Txg of the last use, if the metaslab is loaded.
    pub fn used(&self) -> Option<Txg> {
        self.loaded().map(|loaded| loaded.used)
    }

    /// Whether a segment of `len` bytes is free.
    pub fn fits(&self, len: u64) -> bool {
        self.loaded().is_some_and(|loaded| loaded.free.largest_bytes() >= len)
    }

    /// Whether the metaslab is not loaded, and may have a segment of `len` bytes ([`Unloaded::may_fit`]).
    pub fn may_fit(&self, len: u64, hard: bool) -> bool {
        matches!(&self.contents, Contents::Unloaded(unloaded) if unloaded.may_fit(len, hard, self.size_bytes()))
    }

    /// log2 of the length of the longest free segment; an estimate, if the metaslab is not loaded.
    pub fn bucket(&self) -> u32 {
        match &self.contents {
            Contents::Unknown => 0,
            Contents::Unloaded(unloaded) => unloaded.bucket(),
            Contents::Loaded(loaded) => loaded.free.largest_bytes().max(1).ilog2(),
        }
    }

    /// Sets the free ranges of a metaslab of which nothing was known, as the space map on disk lists them.
    ///
    /// # Errors
    /// [`SpaceFault`] if a range is outside of the metaslab, overlaps another, or the metaslab is known already.
    pub fn load(&mut self, free: &[Range<u64>]) -> Result<(), SpaceFault> {
        if !matches!(self.contents, Contents::Unknown) {
            return Err(SpaceFault::LoadedTwice);
        }
        let segments = self.allocatable(free)?;
        self.contents = Contents::Loaded(Box::new(Loaded::new(segments, self.range.start, Txg(0))));
        Ok(())
    }

    /// Sets the summary of a metaslab of which nothing was known.
    ///
    /// # Errors
    /// [`SpaceFault`] if more is free than the metaslab has, or it is known already.
    pub fn summarize(&mut self, summary: Summary) -> Result<(), SpaceFault> {
        if !matches!(self.contents, Contents::Unknown) {
            return Err(SpaceFault::LoadedTwice);
        }
        if summary.free_bytes > self.size_bytes() {
            return Err(SpaceFault::Outside);
        }
        self.contents = Contents::Unloaded(Box::new(Unloaded::new(summary)));
        Ok(())
    }

    /// The given free ranges without deferred frees and allocations that were not handed out yet.
    fn allocatable(&self, free: &[Range<u64>]) -> Result<Segments, SpaceFault> {
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
        Ok(segments)
    }

    /// Begins to load the metaslab; false if it is not unloaded, or its space map contradicts itself.
    pub fn begin_load(&mut self) -> bool {
        let Contents::Unloaded(unloaded) = &mut self.contents else { return false };
        if !matches!(unloaded.state, LoadState::Idle | LoadState::Failed) {
            return false;
        }
        unloaded.state = LoadState::Loading;
        true
    }

    /// Ends the load with the free ranges of a txg that synced after it began. `used` is the txg of the first use.
    ///
    /// # Errors
    /// [`SpaceFault`] if the ranges contradict the summary; then the metaslab is never loaded.
    pub fn finish_load(&mut self, free: &[Range<u64>], used: Txg) -> Result<(), SpaceFault> {
        let allocatable = self.allocatable(free);
        let is_unchanged = self.has_no_new_allocations();
        let Contents::Unloaded(unloaded) = &mut self.contents else { return Err(SpaceFault::LoadedTwice) };
        invariant!(unloaded.state == LoadState::Loading, "a metaslab is loaded that was {:?}", unloaded.state);
        invariant!(is_unchanged, "space was allocated in a metaslab that is not loaded");
        let known_bytes = unloaded.summary.free_bytes;
        match allocatable {
            Ok(segments) if segments.total_bytes() == known_bytes => {
                self.contents = Contents::Loaded(Box::new(Loaded::new(segments, self.range.start, used)));
                Ok(())
            }
            contradiction => {
                unloaded.state = LoadState::Contradicts;
                Err(contradiction.err().unwrap_or(SpaceFault::Contradicts))
            }
        }
    }

    /// Ends a load that failed, if one is in progress.
    pub fn fail_load(&mut self) {
        if let Contents::Unloaded(unloaded) = &mut self.contents
            && unloaded.state == LoadState::Loading
        {
            unloaded.state = LoadState::Failed;
        }
    }

    /// Whether the last load failed, and may be tried again.
    pub fn has_failed_load(&self) -> bool {
        matches!(&self.contents, Contents::Unloaded(unloaded) if unloaded.state == LoadState::Failed)
    }

    /// Permits a load after one that failed.
    pub fn retry_load(&mut self) {
        if let Contents::Unloaded(unloaded) = &mut self.contents
            && unloaded.state == LoadState::Failed
        {
            unloaded.state = LoadState::Idle;
        }
    }

    /// Whether the metaslab may be unloaded: its space map has all its allocations, and nothing refers to its segments.
    ///
    /// Allocations are handed out for the space map before their txg has synced, so those of later txgs than `synced` may not
    /// be in the space map, or only in that of a state that a power cut would undo.
    pub fn may_unload(&self, synced: Txg) -> bool {
        let is_written = self.recent.last_key_value().is_none_or(|(txg, _)| *txg <= synced);
        is_written && self.has_no_new_allocations() && self.loaded().is_some_and(|loaded| loaded.disabled.is_empty())
    }

    /// Whether all allocations were handed out as changes.
    fn has_no_new_allocations(&self) -> bool {
        self.changes.values().all(|changes| changes.allocated.is_empty())
    }

    /// Forgets the free segments. The caller has checked [`Metaslab::may_unload`].
    pub fn unload(&mut self) {
        invariant!(self.has_no_new_allocations(), "a metaslab with allocations that no space map has is unloaded");
        if let Contents::Loaded(loaded) = &self.contents {
            invariant!(loaded.disabled.is_empty(), "a metaslab is unloaded while it is being trimmed");
            self.contents = Contents::Unloaded(Box::new(loaded.summarize()));
        }
    }

    /// Allocates `len` contiguous bytes and returns their offset; `None` if no free segment is that long.
    pub fn allocate(&mut self, len: u64, txg: Txg) -> Option<u64> {
        let size = self.size_bytes();
        let loaded = self.loaded_mut()?;
        let largest = loaded.free.largest_bytes();
        if len == 0 || largest < len {
            return None;
        }
        let is_best_fit = largest < BEST_FIT_BYTES || loaded.free.total_bytes() < size / BEST_FIT_FREE_DIVISOR;
        let cursor = &mut loaded.cursors[len.ilog2() as usize];
        let next = if is_best_fit { None } else { loaded.free.first_fit(*cursor, len, MAX_SEGMENTS_TRIED) };
        let at = next.or_else(|| loaded.free.best_fit(len))?;
        *cursor = at + len;
        loaded.used = loaded.used.max(txg);
        let was_free = loaded.free.remove(at..at + len);
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
        let loaded = self.loaded_mut().filter(|_| was_pending);
        if loaded.is_some_and(|loaded| loaded.free.add(range)) { len } else { 0 }
    }

    /// Allocates exactly `range`.
    ///
    /// # Errors
    /// [`SpaceFault::NotFree`] if not all of it is free; [`SpaceFault::NotLoaded`].
    pub fn claim(&mut self, range: Range<u64>, txg: Txg) -> Result<(), SpaceFault> {
        let loaded = self.loaded_mut().ok_or(SpaceFault::NotLoaded)?;
        if !loaded.free.remove(range.clone()) {
            return Err(SpaceFault::NotFree);
        }
        loaded.used = loaded.used.max(txg);
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

    /// The free segments that are known one by one.
    fn unused(&self) -> impl Iterator<Item = &Segments> + '_ {
        let loaded = self.loaded().into_iter().flat_map(|loaded| [&loaded.free, &loaded.disabled]);
        loaded.chain(self.deferred.values())
    }

    /// Status of the space at `range` for a pointer born in `birth`; `synced` is the last synced txg.
    pub fn alloc_status(&self, range: &Range<u64>, birth: Txg, synced: Txg) -> AllocStatus {
        let is_free = self.unused().any(|segments| segments.touches(range));
        let mut allocated = self.recent.iter().filter(|(_, segments)| segments.touches(range)).map(|(txg, _)| *txg);
        match allocated.next_back() {
            _ if is_free => AllocStatus::Freed,
            Some(last) if last > birth => AllocStatus::Freed,
            Some(last) if last > synced => AllocStatus::Unsynced,
            _ if self.loaded().is_none() => AllocStatus::Unknown,
            _ => AllocStatus::Synced,
        }
    }

    /// Frees `range` in `txg`; it becomes allocatable when the deferral ends.
    ///
    /// # Errors
    /// [`SpaceFault`] if the range reaches beyond the metaslab, or a part of it is known to be free already.
    pub fn free(&mut self, range: Range<u64>, txg: Txg) -> Result<(), SpaceFault> {
        if range.start < self.range.start || range.end > self.range.end || range.is_empty() {
            return Err(SpaceFault::Outside);
        }
        let is_free = self.loaded().is_some_and(|loaded| loaded.free.touches(&range));
        if is_free || self.deferred.values().any(|d| d.touches(&range)) {
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

    /// Hands out the changes of the txgs up to `txg` since the last call: allocations, then frees.
    ///
    /// A change of an earlier txg is one that was made after the last call for that txg.
    pub fn changes(&mut self, txg: Txg) -> Vec<(SpaceKind, Range<u64>)> {
        if self.changes.first_key_value().is_none_or(|(first, _)| *first > txg) {
            return Vec::new();
        }
        let later = self.changes.split_off(&Txg(txg.0.saturating_add(1)));
        let ready = std::mem::replace(&mut self.changes, later);
        let allocated = ready.values().flat_map(|c| c.allocated.iter()).map(|r| (SpaceKind::Alloc, r));
        allocated.chain(ready.values().flat_map(|c| c.freed.iter()).map(|r| (SpaceKind::Free, r))).collect()
    }

    /// Makes the frees of txgs up to `freed_until` allocatable, and forgets the allocations of txgs up to `forget_until`. The
    /// frees of a metaslab that is being loaded stay deferred.
    pub fn release_deferred(&mut self, freed_until: Txg, forget_until: Txg) -> DeferredFrees {
        self.recent = self.recent.split_off(&Txg(forget_until.0.saturating_add(1)));
        if let Contents::Unloaded(unloaded) = &mut self.contents {
            match unloaded.state {
                LoadState::Loading => return DeferredFrees::default(),
                LoadState::Failed => unloaded.state = LoadState::Idle,
                LoadState::Idle | LoadState::Contradicts => {}
            }
        }
        let later = self.deferred.split_off(&Txg(freed_until.0.saturating_add(1)));
        let released = std::mem::replace(&mut self.deferred, later);
        let mut freed: Vec<Range<u64>> = Vec::new();
        for range in released.values().flat_map(Segments::iter) {
            match &mut self.contents {
                Contents::Unknown => {
                    let forgotten_bytes = released.values().map(Segments::total_bytes).sum();
                    return DeferredFrees { freed: Vec::new(), forgotten_bytes };
                }
                Contents::Unloaded(unloaded) => unloaded.add(&range),
                Contents::Loaded(loaded) => {
                    let was_allocated = loaded.free.add(range.clone());
                    invariant!(was_allocated, "the freed range {range:#x?} is free already");
                }
            }
            freed.push(range);
        }
        DeferredFrees { freed, forgotten_bytes: 0 }
    }

    /// Makes the free segments within `range` temporarily not allocatable, without a change of the space map. Returns them.
    pub fn disable_range(&mut self, range: &Range<u64>) -> Vec<Range<u64>> {
        let Some(loaded) = self.loaded_mut() else { return Vec::new() };
        let disabled = loaded.free.remove_common(range);
        for part in &disabled {
            loaded.disabled.add(part.clone());
        }
        disabled
    }

    /// Makes a range that [`Metaslab::disable_range`] returned allocatable again.
    pub fn enable_range(&mut self, range: Range<u64>) {
        let enabled = self.loaded_mut().map(|loaded| {
            let was_disabled = loaded.disabled.remove(range.clone());
            loaded.free.add(range.clone()) && was_disabled
        });
        invariant!(enabled == Some(true), "range {range:#x?} was not set aside");
    }

    /// Number of free segments of 2ⁿ to 2ⁿ⁺¹−1 bytes, for each n: allocatable segments, and the frees of each txg up to
    /// `txg`. Each txg's frees are counted separately and not merged, as in the header of a space map
    /// (`metaslab_sync` in OpenZFS's `module/zfs/metaslab.c`). While a metaslab is not loaded, its new frees are not merged
    /// either.
    pub fn histogram(&self, txg: Txg) -> [u64; 64] {
        let mut out = [0; 64];
        match &self.contents {
            Contents::Unknown => {}
            Contents::Unloaded(unloaded) => {
                unloaded.summary.histogram.iter().for_each(|counts| counts.write(&mut out));
            }
            Contents::Loaded(loaded) => {
                loaded.free.histogram(&mut out);
                loaded.disabled.histogram(&mut out);
            }
        }
        self.deferred.range(..=txg).for_each(|(_, segments)| segments.histogram(&mut out));
        out
    }

    /// Allocated segments according to all allocations and frees so far; `None` if the metaslab is not loaded.
    pub fn allocated(&self) -> Option<Segments> {
        self.loaded()?;
        let mut allocated = Segments::default();
        allocated.add(self.range.clone());
        for part in self.unused().flat_map(Segments::iter) {
            allocated.remove(part);
        }
        Some(allocated)
    }

    /// Allocated segments according to all changes handed out so far, which is the content of the space map on disk; `None`
    /// if the metaslab is not loaded.
    pub fn synced_allocated(&self) -> Option<Segments> {
        let mut synced_allocated = self.allocated()?;
        for changes in self.changes.values() {
            for part in changes.allocated.iter() {
                synced_allocated.remove_common(&part);
            }
            for part in changes.freed.iter() {
                synced_allocated.remove_common(&part);
                synced_allocated.add(part);
            }
        }
        Some(synced_allocated)
    }
}

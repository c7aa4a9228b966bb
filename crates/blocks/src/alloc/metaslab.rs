//! One metaslab: its free segments, what of them was taken or given back in which transaction group, and what was given
//! back so recently that it must not be used yet.

use super::segments::Segments;
use super::{SpaceFault, SpaceKind};
use std::collections::BTreeMap;
use std::ops::Range;
use weir_format::Txg;

/// How many transaction groups must have synced after a free before its space is used again: so long a pool can be
/// rewound (`TXG_DEFER_SIZE`).
pub const DEFER: u64 = 2;
/// With less than this in one piece (`metaslab_df_alloc_threshold`) …
const TIGHT_BYTES: u64 = 128 << 10;
/// … or less than one part in so many free, the smallest segment that fits is taken rather than the next.
const TIGHT_SHARE: u64 = 25;
/// Segments that are looked at from the cursor on.
const TRIES: usize = 128;

/// What changed in one transaction group and was not yet handed out.
#[derive(Clone, Debug, Default)]
struct Changes {
    taken: Segments,
    given_back: Segments,
}

/// How a pointer and what its place is used for go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocStatus {
    /// The place is taken, since longer than anybody remembers: by its block, or by one that all devices have had since.
    Synced,
    /// It is taken by its block, which is not on stable storage yet.
    Unsynced,
    /// Its block is gone: the place is free, or taken by a younger one.
    Freed,
}

/// What has rested long enough.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeferredFrees {
    /// Usable again.
    pub freed: Vec<Range<u64>>,
    /// Given back to a metaslab that was not loaded: its space map will tell.
    pub forgotten_bytes: u64,
}

/// A part of a top-level vdev, with a space map of its own.
#[derive(Clone, Debug)]
pub struct Metaslab {
    range: Range<u64>,
    /// What can be taken.
    free: Segments,
    /// What was given back in which transaction group.
    deferred: BTreeMap<Txg, Segments>,
    changes: BTreeMap<Txg, Changes>,
    /// What was taken in which transaction group, the last ones: a pointer that is older than that leads nowhere.
    recent: BTreeMap<Txg, Segments>,
    /// Where the search for a segment goes on, by log2 of the size.
    cursors: [u64; 64],
    loaded: bool,
    /// Free, but taken out of use for a while.
    held: Segments,
}

impl Metaslab {
    /// A metaslab of which nothing is known yet: nothing can be taken from it.
    pub fn new(range: Range<u64>) -> Self {
        let cursors = [range.start; 64];
        let (free, deferred, changes, recent, held) = Default::default();
        Metaslab { range, free, deferred, changes, recent, cursors, loaded: false, held }
    }

    /// Where it lies.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// What can be taken.
    pub fn free(&self) -> &Segments {
        &self.free
    }

    /// Takes note of what is free.
    ///
    /// # Errors
    /// [`SpaceFault`] if a range lies outside, overlaps another, or the metaslab was loaded before.
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
        for range in self.changes.values().flat_map(|c| c.taken.iter()) {
            segments.remove_common(&range);
        }
        self.free = segments;
        self.loaded = true;
        Ok(())
    }

    /// Takes `len` bytes in one piece; `None` if there is none.
    pub fn take(&mut self, len: u64, txg: Txg) -> Option<u64> {
        let largest = self.free.largest_bytes();
        if len == 0 || largest < len {
            return None;
        }
        let size = self.range.end - self.range.start;
        let tight = largest < TIGHT_BYTES || self.free.total_bytes() < size / TIGHT_SHARE;
        let cursor = &mut self.cursors[len.ilog2() as usize];
        let next = if tight { None } else { self.free.first_fit(*cursor, len, TRIES) };
        let at = next.or_else(|| self.free.best_fit(len))?;
        *cursor = at + len;
        self.free.remove(at..at + len);
        self.changes.entry(txg).or_default().taken.add(at..at + len);
        self.note_recent(at..at + len, txg);
        Some(at)
    }

    /// Forgets that `range` was taken in `txg`: nobody was told, nothing was written. Gives the bytes that are free again.
    pub fn unallocate(&mut self, range: Range<u64>, txg: Txg) -> u64 {
        let len = range.end - range.start;
        let taken = self.changes.get_mut(&txg).is_some_and(|c| c.taken.remove(range.clone()));
        if let Some(recent) = self.recent.get_mut(&txg) {
            recent.remove_common(&range);
        }
        if taken && self.free.add(range) { len } else { 0 }
    }

    /// Takes exactly `range`.
    ///
    /// # Errors
    /// [`SpaceFault::NotFree`] if not all of it is free.
    pub fn claim(&mut self, range: Range<u64>, txg: Txg) -> Result<(), SpaceFault> {
        if !self.free.remove(range.clone()) {
            return Err(SpaceFault::NotFree);
        }
        self.changes.entry(txg).or_default().taken.add(range.clone());
        self.note_recent(range, txg);
        Ok(())
    }

    fn note_recent(&mut self, range: Range<u64>, txg: Txg) {
        let recent = self.recent.entry(txg).or_default();
        // Some of it was taken, told, given back and forgotten in this very group, perhaps.
        recent.remove_common(&range);
        recent.add(range);
    }

    /// What a pointer born in `birth` can expect to find at `range`; `synced` is the last group on stable storage.
    pub fn standing(&self, range: &Range<u64>, birth: Txg, synced: Txg) -> AllocStatus {
        let mut unused = [&self.free, &self.held].into_iter().chain(self.deferred.values());
        let gone = unused.any(|segments| segments.touches(range));
        let mut taken = self.recent.iter().filter(|(_, segments)| segments.touches(range)).map(|(txg, _)| *txg);
        match taken.next_back() {
            _ if gone => AllocStatus::Freed,
            Some(last) if last > birth => AllocStatus::Freed,
            Some(last) if last > synced => AllocStatus::Unsynced,
            _ if !self.loaded => AllocStatus::Unsynced,
            _ => AllocStatus::Synced,
        }
    }

    /// Gives `range` back.
    ///
    /// # Errors
    /// [`SpaceFault`] if it reaches beyond the metaslab, or some of it is free already.
    pub fn give_back(&mut self, range: Range<u64>, txg: Txg) -> Result<(), SpaceFault> {
        if range.start < self.range.start || range.end > self.range.end || range.is_empty() {
            return Err(SpaceFault::Outside);
        }
        if self.free.touches(&range) || self.deferred.values().any(|d| d.touches(&range)) {
            return Err(SpaceFault::AlreadyFree);
        }
        self.deferred.entry(txg).or_default().add(range.clone());
        let changes = self.changes.entry(txg).or_default();
        // What was taken in the same group, and nobody was told of, nobody needs to hear of.
        let mut synced_allocated = Segments::default();
        synced_allocated.add(range.clone());
        for untold in changes.taken.remove_common(&range) {
            synced_allocated.remove(untold);
        }
        for part in synced_allocated.iter() {
            changes.given_back.add(part);
        }
        Ok(())
    }

    /// What changed in `txg` since the last call.
    pub fn changes(&mut self, txg: Txg) -> Vec<(SpaceKind, Range<u64>)> {
        let Some(Changes { taken, given_back }) = self.changes.remove(&txg) else { return Vec::new() };
        let taken = taken.iter().map(|r| (SpaceKind::Alloc, r));
        taken.chain(given_back.iter().map(|r| (SpaceKind::Free, r))).collect()
    }

    /// Makes what was given back up to group `ripe` usable again, and forgets who took what up to group `settled`.
    pub fn release_deferred(&mut self, ripe: Txg, settled: Txg) -> DeferredFrees {
        self.recent = self.recent.split_off(&Txg(settled.0.saturating_add(1)));
        let later = self.deferred.split_off(&Txg(ripe.0.saturating_add(1)));
        let ripe = std::mem::replace(&mut self.deferred, later);
        let freed: Vec<Range<u64>> = ripe.values().flat_map(Segments::iter).collect();
        if !self.loaded {
            return DeferredFrees {
                freed: Vec::new(),
                forgotten_bytes: ripe.values().map(Segments::total_bytes).sum(),
            };
        }
        for range in &freed {
            self.free.add(range.clone());
        }
        DeferredFrees { freed, forgotten_bytes: 0 }
    }

    /// Takes what is free of `range` away for a while, without a change that anybody is told of.
    pub fn hold(&mut self, range: &Range<u64>) -> Vec<Range<u64>> {
        let held = self.free.remove_common(range);
        for part in &held {
            self.held.add(part.clone());
        }
        held
    }

    /// Ends [`Metaslab::hold`].
    pub fn release(&mut self, range: Range<u64>) {
        self.held.remove(range.clone());
        self.free.add(range);
    }

    /// Number of free segments of 2ⁿ to 2ⁿ⁺¹−1 bytes, for each n: of what can be taken, and of what was freed in each txg
    /// up to `txg`. Those are counted separately and not merged, as in the header of a space map
    /// (`metaslab_sync` in OpenZFS's `module/zfs/metaslab.c`).
    pub fn histogram(&self, txg: Txg) -> [u64; 64] {
        let mut out = [0; 64];
        let deferred = self.deferred.range(..=txg).map(|(_, segments)| segments);
        for segments in [&self.free, &self.held].into_iter().chain(deferred) {
            segments.histogram(&mut out);
        }
        out
    }

    /// What is allocated according to all changes that were handed out so far: what the space map should say.
    pub fn synced_allocated(&self) -> Segments {
        let mut synced_allocated = Segments::default();
        synced_allocated.add(self.range.clone());
        let unused = [&self.free, &self.held].into_iter().chain(self.deferred.values());
        for part in unused.flat_map(Segments::iter) {
            synced_allocated.remove(part);
        }
        for changes in self.changes.values() {
            for part in changes.taken.iter() {
                synced_allocated.remove_common(&part);
            }
            for part in changes.given_back.iter() {
                synced_allocated.remove_common(&part);
                synced_allocated.add(part);
            }
        }
        synced_allocated
    }
}

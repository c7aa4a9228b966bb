//! The allocator: chooses the addresses of new blocks. Pure: no I/O, clock or lock.
//!
//! A top-level vdev's space is divided into metaslabs of equal size. Every change is handed out as data
//! ([`Allocator::take_changes`]); the engine writes it to the space maps, because those are objects, which this crate does
//! not know.
//!
//! *Loading.* Only loaded metaslabs have their free segments in memory; of the others, a summary chooses the one to load
//! next ([`NotAllocated::Load`]), and they take frees. The caller loads a metaslab and asks again. A metaslab without a use for
//! some txgs is unloaded, and the longest unused ones earlier if the memory has reached its bound.
//!
//! ```text
//!   class ─► vdev, by a rotor: each gets a share in proportion to its free space before the rotor advances
//!              └─► metaslab: the active one while a segment fits; else the one with the longest free segment, then the
//!                  emptiest; of those with long segments, a loaded one
//!                     └─► segment: first fit from the cursor on, or best fit when space is short
//! ```
//!
//! *Copies* of one block are allocated on different vdevs; if there are too few, in distant metaslabs of one vdev.
//!
//! *Classes.* Blocks of a class are allocated on its vdevs. If it has none or they are full, blocks of the log and dedup
//! tables are allocated on the special vdevs, and those and all others on the normal ones.
//!
//! *Deferred frees.* Space freed in txg t is allocatable when t or a later txg and two more have written an uberblock,
//! because until then a pool can be rewound to a state that needs it. Txgs without changes write none, and do not count.
//! Space that is allocated and freed in one txg, before the allocation was handed out as a change, is no change, but is
//! deferred all the same.
//!
//! *Stale pointers.* Reads in progress delay the reuse of blocks freed since they began ([`Allocator::synced`]). The
//! allocations of the last txgs are remembered, so that a stale pointer can be recognised
//! ([`Allocator::alloc_status`]): wrong bytes at its address are no device error and must not be repaired.
//!
//! *Invariants.* A byte of a metaslab is free, deferred or allocated; no byte is allocated twice; freeing a range that is
//! not allocated is an error and changes nothing. Equal sequences of calls return equal results.
//!
//! Source of the ideas: OpenZFS `module/zfs/metaslab.c`.

mod contents;
mod loading;
mod metaslab;
mod rotor;
mod segments;
mod sizing;
#[cfg(test)]
mod tests;

pub use contents::{SegmentCounts, Summary};
pub use loading::LoadStats;
pub use metaslab::{AllocStatus, DEFER, DeferredFrees, Metaslab};
pub use segments::Segments;
pub use sizing::{RaidzSizing, Sizing};
pub use weir_format::space_map::SpaceKind;

use rotor::Rotor;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use thiserror::Error;
use weir_format::{Dva, Txg};
use weir_machine::invariant;

/// Allocation class of a block, which decides the vdevs that it is allocated on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Everything else.
    #[default]
    Normal,
    /// The intent log.
    Log,
    /// Metadata and small blocks.
    Special,
    /// Dedup tables.
    Dedup,
}

impl Class {
    /// All classes, in the order of their index.
    pub const ALL: [Class; 4] = [Class::Normal, Class::Log, Class::Special, Class::Dedup];

    /// Classes on whose vdevs a block of this class is allocated, the first one with space
    /// (OpenZFS `module/zfs/spa_misc.c`, `spa_preferred_class`; `zio.c`, `zio_alloc_zil`).
    fn preferences(self) -> &'static [Class] {
        match self {
            Class::Normal => &[Class::Normal],
            Class::Log => &[Class::Log, Class::Special, Class::Normal],
            Class::Special => &[Class::Special, Class::Normal],
            Class::Dedup => &[Class::Dedup, Class::Special, Class::Normal],
        }
    }

    /// Name of the class in `zpool status -j` and in a vdev's `allocation_bias`.
    pub fn name(self) -> &'static str {
        match self {
            Class::Normal => "normal",
            Class::Log => "log",
            Class::Special => "special",
            Class::Dedup => "dedup",
        }
    }
}

/// The space of one top-level vdev, as the pool's configuration describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VdevSpace {
    /// Index of the vdev in the pool.
    pub vdev: u32,
    /// Allocation class.
    pub class: Class,
    /// Rules for the allocated size of blocks.
    pub sizing: Sizing,
    /// log2 of a metaslab's size.
    pub metaslab_shift: u32,
    /// Number of metaslabs.
    pub metaslab_count: u64,
    /// Nothing new is allocated there (`noalloc`, or a vdev being removed), but blocks may be freed.
    pub non_allocating: bool,
}

/// A change of a metaslab's space in one txg, for its space map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceChange {
    /// The top-level vdev.
    pub vdev: u32,
    /// The metaslab in it.
    pub metaslab: u64,
    /// Allocated or freed.
    pub kind: SpaceKind,
    /// Offset in the vdev's allocatable space, in bytes.
    pub offset_bytes: u64,
    /// Length in bytes.
    pub len_bytes: u64,
}

/// Sums of space, in bytes. `size = allocated + deferred + free`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceSums {
    /// Size of all metaslabs.
    pub size_bytes: u64,
    /// Allocated.
    pub allocated_bytes: u64,
    /// Freed, but not yet allocatable.
    pub deferred_bytes: u64,
    /// Allocatable.
    pub free_bytes: u64,
}

/// Reason why space could not be loaded, claimed or freed: the caller's range contradicts the present allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum SpaceFault {
    #[error("no such vdev or metaslab")]
    Unknown,
    #[error("outside of its metaslab")]
    Outside,
    #[error("it is free already")]
    AlreadyFree,
    #[error("it is not free")]
    NotFree,
    #[error("double load of its space map")]
    LoadedTwice,
    #[error("its metaslab is not loaded")]
    NotLoaded,
    #[error("its space map contradicts the map's header")]
    Contradicts,
}

/// Reason why nothing was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAllocated {
    /// This metaslab must be loaded first: vdev and index. The caller loads it and asks again.
    Load(u32, u64),
    /// There are not enough free segments of that length.
    Full,
}

/// Result of looking for space on one vdev.
enum Found {
    /// At this offset.
    At(u64),
    /// In this metaslab perhaps, which is not loaded.
    Unloaded(u64),
}

/// A request for the space of one block.
#[derive(Clone, Copy, Debug)]
pub struct AllocRequest {
    /// Allocation class.
    pub class: Class,
    /// Bytes before parity and padding.
    pub psize_bytes: u64,
    /// Number of copies, 1 to 3.
    pub copies: u8,
    /// Txg of the allocation.
    pub txg: Txg,
}

/// Preferred distance of copies on one vdev: the vdev's size shifted right by this (`ditto_same_vdev_distance_shift`).
const DISTANCE_SHIFT: u32 = 3;

/// Number of synced txgs whose allocations are remembered.
const REMEMBERED_TXGS: u64 = 4;

/// Among metaslabs with free segments of this length (log2) or longer, loaded ones are preferred.
const LONG_SEGMENT_SHIFT: u32 = 24;

struct VdevState {
    about: VdevSpace,
    metaslabs: Vec<Metaslab>,
    /// The metaslab in use for the first, second, third copy.
    active: [Option<usize>; 3],
    free_bytes: u64,
    deferred_bytes: u64,
}

/// The pool's free space.
#[derive(Default)]
pub struct Allocator {
    vdevs: BTreeMap<u32, VdevState>,
    rotors: [Rotor; Class::ALL.len()],
    synced: Txg,
    /// The last txgs that wrote an uberblock, newest first: the states that the pool can be rewound to.
    rewindable: VecDeque<Txg>,
    /// Maximum bytes before parity that are allocated contiguously; tests of gang blocks set it.
    largest_piece: Option<u64>,
    /// Limit and statistics of loaded metaslabs.
    loading: loading::Loading,
}

impl Allocator {
    /// Adds a vdev whose metaslabs are not loaded. A vdev that was added before is kept unchanged.
    pub fn add_vdev(&mut self, about: VdevSpace) {
        let size = 1u64 << about.metaslab_shift.min(62);
        let metaslabs = (0..about.metaslab_count).map(|i| Metaslab::new(i * size..(i + 1) * size)).collect();
        let VdevSpace { vdev, class, non_allocating, .. } = about;
        let state = VdevState { about, metaslabs, active: [None; 3], free_bytes: 0, deferred_bytes: 0 };
        if let Entry::Vacant(slot) = self.vdevs.entry(vdev) {
            slot.insert(state);
            if !non_allocating {
                self.rotors[class as usize].add(vdev);
            }
        }
    }

    /// Adds metaslabs to a vdev, up to `count`, without free space. Returns the number of the first one.
    pub fn grow_vdev(&mut self, vdev: u32, count: u64) -> Option<u64> {
        let state = self.vdevs.get_mut(&vdev)?;
        let size = 1u64 << state.about.metaslab_shift.min(62);
        let first = state.metaslabs.len() as u64;
        state.metaslabs.extend((first..count).map(|i| Metaslab::new(i * size..(i + 1) * size)));
        state.about.metaslab_count = state.metaslabs.len() as u64;
        debug_assert!(state.about.metaslab_count >= count, "metaslabs are missing");
        Some(first)
    }

    /// Forgets a vdev that leaves the pool, with its deferred frees. Returns its sums; all zero if it is not known.
    pub fn remove_vdev(&mut self, vdev: u32) -> SpaceSums {
        let Some(state) = self.vdevs.remove(&vdev) else { return SpaceSums::default() };
        invariant!(state.about.non_allocating, "vdev {vdev} is removed while blocks are allocated on it");
        self.rotors[state.about.class as usize].remove(vdev);
        state.sums()
    }

    /// Stops or resumes allocation on a vdev.
    pub fn set_non_allocating(&mut self, vdev: u32, non_allocating: bool) {
        let Some(state) = self.vdevs.get_mut(&vdev) else { return };
        state.about.non_allocating = non_allocating;
        let rotor = &mut self.rotors[state.about.class as usize];
        rotor.remove(vdev);
        if !non_allocating {
            rotor.add(vdev);
        }
    }

    /// Loads the free ranges of a metaslab.
    ///
    /// # Errors
    /// [`SpaceFault`] if there is no such metaslab, or as [`Metaslab::load`].
    pub fn load(&mut self, vdev: u32, metaslab: u64, free: &[Range<u64>]) -> Result<(), SpaceFault> {
        let state = self.vdevs.get_mut(&vdev).ok_or(SpaceFault::Unknown)?;
        let slot = usize::try_from(metaslab).ok().and_then(|i| state.metaslabs.get_mut(i));
        let slot = slot.ok_or(SpaceFault::Unknown)?;
        slot.load(free)?;
        state.free_bytes += slot.free_bytes();
        Ok(())
    }

    /// Limits contiguous allocations to `bytes` before parity, so that tests can force gang blocks.
    pub fn set_largest_piece(&mut self, bytes: Option<u64>) {
        self.largest_piece = bytes;
    }

    /// Whether the class has a vdev on which blocks are allocated.
    pub fn has_class(&self, class: Class) -> bool {
        !self.rotors[class as usize].is_empty()
    }

    /// Description of a vdev.
    pub fn vdev(&self, vdev: u32) -> Option<&VdevSpace> {
        self.vdevs.get(&vdev).map(|v| &v.about)
    }

    /// Smallest and common unit of allocated sizes over the vdevs of the normal class, in bytes (`spa_min_alloc`,
    /// `spa_gcd_alloc`; with powers of two they are the same).
    pub fn unit_bytes(&self) -> u64 {
        let normal = self.vdevs.values().filter(|v| v.about.class == Class::Normal);
        1 << normal.map(|v| v.about.sizing.ashift).min().unwrap_or(9)
    }

    /// Allocates all copies of a block, or nothing.
    ///
    /// # Errors
    /// [`NotAllocated`].
    pub fn allocate(&mut self, request: &AllocRequest) -> Result<Vec<Dva>, NotAllocated> {
        if self.largest_piece.is_some_and(|limit| request.psize_bytes > limit) {
            return Err(NotAllocated::Full);
        }
        for &class in request.class.preferences() {
            for hard in [false, true] {
                match self.allocate_in(class, request, hard) {
                    Err(NotAllocated::Full) => {}
                    found => return found,
                }
            }
        }
        Err(NotAllocated::Full)
    }

    fn allocate_in(&mut self, class: Class, request: &AllocRequest, hard: bool) -> Result<Vec<Dva>, NotAllocated> {
        let mut dvas: Vec<Dva> = Vec::with_capacity(usize::from(request.copies));
        for _ in 0..request.copies.clamp(1, 3) {
            match self.allocate_copy(class, request, &dvas, hard) {
                Ok(dva) => dvas.push(dva),
                Err(why) => {
                    dvas.iter().for_each(|dva| self.undo(dva, request.txg));
                    return Err(why);
                }
            }
        }
        Ok(dvas)
    }

    /// Allocates one more copy besides `others`: on a vdev that has none yet, else at a distance, else anywhere.
    fn allocate_copy(
        &mut self,
        class: Class,
        request: &AllocRequest,
        others: &[Dva],
        hard: bool,
    ) -> Result<Dva, NotAllocated> {
        let free = |vdev: u32| self.vdevs.get(&vdev).map_or(0, |v| v.free_bytes);
        let candidates = self.rotors[class as usize].candidates(others.last().map(|d| d.vdev), free);
        for distance_shift in [Some(DISTANCE_SHIFT), Some(62), None] {
            for &vdev in &candidates {
                let Some(state) = self.vdevs.get_mut(&vdev) else { continue };
                let asize_bytes = state.about.sizing.asize_bytes(request.psize_bytes, request.txg.0);
                let near: Vec<u64> = others.iter().filter(|d| d.vdev == vdev).map(|d| d.offset_bytes).collect();
                let place = CopyPlace { copy: others.len(), near: &near, distance_shift, hard };
                let offset_bytes = match state.allocate(asize_bytes, request.txg, &place) {
                    Some(Found::At(offset_bytes)) => offset_bytes,
                    Some(Found::Unloaded(metaslab)) => return Err(NotAllocated::Load(vdev, metaslab)),
                    None => continue,
                };
                if others.is_empty() {
                    let free = |vdev: u32| self.vdevs.get(&vdev).map_or(0, |v| v.free_bytes);
                    self.rotors[class as usize].record(vdev, asize_bytes, free);
                }
                return Ok(Dva { vdev, offset_bytes, asize_bytes, gang: false, grid: 0 });
            }
            if others.is_empty() {
                break;
            }
        }
        Err(NotAllocated::Full)
    }

    /// Reverts an allocation that was not handed out as a change and not written to.
    pub(crate) fn undo(&mut self, dva: &Dva, txg: Txg) {
        if let Some(state) = self.vdevs.get_mut(&dva.vdev) {
            let range = dva.offset_bytes..dva.offset_bytes + dva.asize_bytes;
            if let Ok(metaslab) = state.at(&range) {
                state.free_bytes += metaslab.unallocate(range, txg);
            }
        }
    }

    /// Allocates exactly `range` of a vdev.
    ///
    /// # Errors
    /// [`SpaceFault`], and nothing is allocated.
    pub fn claim(&mut self, vdev: u32, range: Range<u64>, txg: Txg) -> Result<(), SpaceFault> {
        let state = self.vdevs.get_mut(&vdev).ok_or(SpaceFault::Unknown)?;
        state.at(&range)?.claim(range.clone(), txg)?;
        state.free_bytes -= range.end - range.start;
        Ok(())
    }

    /// Frees a range in `txg`, or in the txg after the last synced one if `txg` has synced already.
    ///
    /// # Errors
    /// [`SpaceFault`], and nothing changes.
    pub fn free(&mut self, vdev: u32, range: Range<u64>, txg: Txg) -> Result<(), SpaceFault> {
        let txg = if self.synced == Txg(0) { txg } else { txg.max(Txg(self.synced.0 + 1)) };
        let state = self.vdevs.get_mut(&vdev).ok_or(SpaceFault::Unknown)?;
        state.at(&range)?.free(range.clone(), txg)?;
        state.deferred_bytes += range.end - range.start;
        Ok(())
    }

    /// Hands out the allocations and frees of the txgs up to `txg` since the last call, in the order of vdev, metaslab, kind
    /// (allocations first) and offset.
    pub fn take_changes(&mut self, txg: Txg) -> Vec<SpaceChange> {
        let mut out = Vec::new();
        for (&vdev, state) in &mut self.vdevs {
            for (index, metaslab) in state.metaslabs.iter_mut().enumerate() {
                out.extend(metaslab.changes(txg).into_iter().map(|(kind, range)| SpaceChange {
                    vdev,
                    metaslab: index as u64,
                    kind,
                    offset_bytes: range.start,
                    len_bytes: range.end - range.start,
                }));
            }
        }
        out
    }

    /// Records that `txg` has synced and returns the ranges that became allocatable, as vdev and range.
    ///
    /// `wrote_uberblock` is false for a txg without changes. Such a txg cannot be rewound to, so that it makes no state
    /// before it superfluous.
    ///
    /// `oldest_read` is the txg that was the last synced one when the oldest read in progress began. Blocks freed later stay
    /// deferred, because that read may use a pointer to them.
    pub fn synced(&mut self, txg: Txg, wrote_uberblock: bool, oldest_read: Txg) -> Vec<(u32, Range<u64>)> {
        self.synced = self.synced.max(txg);
        if wrote_uberblock && self.rewindable.front() != Some(&txg) {
            invariant!(self.rewindable.front().is_none_or(|last| *last < txg), "txg {} synced out of order", txg.0);
            self.rewindable.push_front(txg);
            self.rewindable.truncate(DEFER as usize + 1);
        }
        // Before that many txgs, the state that was imported can be rewound to.
        let oldest_rewind = self.rewindable.get(DEFER as usize).copied().unwrap_or_default();
        let freed_until = oldest_rewind.min(oldest_read);
        let forget_until = Txg(txg.0.saturating_sub(REMEMBERED_TXGS)).min(oldest_read);
        let mut out = Vec::new();
        for (&vdev, state) in &mut self.vdevs {
            for metaslab in &mut state.metaslabs {
                let DeferredFrees { freed, forgotten_bytes } = metaslab.release_deferred(freed_until, forget_until);
                state.deferred_bytes -= forgotten_bytes;
                for range in freed {
                    state.deferred_bytes -= range.end - range.start;
                    state.free_bytes += range.end - range.start;
                    out.push((vdev, range));
                }
            }
        }
        self.unload_unused();
        out
    }

    /// Status of an address for a pointer to a block of `psize_bytes`, born in `birth`; [`AllocStatus::Unsynced`] where
    /// nothing is known of the address.
    pub fn alloc_status(&self, vdev: u32, offset_bytes: u64, psize_bytes: u64, birth: Txg) -> AllocStatus {
        let Some(state) = self.vdevs.get(&vdev) else { return AllocStatus::Unsynced };
        let end = offset_bytes.saturating_add(state.about.sizing.asize_bytes(psize_bytes, birth.0));
        let index = usize::try_from(offset_bytes >> state.about.metaslab_shift).ok();
        let metaslab = index.and_then(|i| state.metaslabs.get(i));
        metaslab.map_or(AllocStatus::Unsynced, |m| m.alloc_status(&(offset_bytes..end), birth, self.synced))
    }

    /// Makes the free segments within a range temporarily not allocatable and returns them.
    pub fn disable_range(&mut self, vdev: u32, range: Range<u64>) -> Vec<Range<u64>> {
        let Some(state) = self.vdevs.get_mut(&vdev) else { return Vec::new() };
        let disabled: Vec<Range<u64>> = state.metaslabs.iter_mut().flat_map(|m| m.disable_range(&range)).collect();
        state.free_bytes -= disabled.iter().map(|r| r.end - r.start).sum::<u64>();
        disabled
    }

    /// Makes one of the ranges that [`Allocator::disable_range`] returned allocatable again.
    pub fn enable_range(&mut self, vdev: u32, range: Range<u64>) {
        let Some(state) = self.vdevs.get_mut(&vdev) else { return };
        let len = range.end - range.start;
        if let Ok(metaslab) = state.at(&range) {
            metaslab.enable_range(range);
            state.free_bytes += len;
        }
    }

    /// Sums over one vdev.
    pub fn vdev_sums(&self, vdev: u32) -> SpaceSums {
        self.vdevs.get(&vdev).map(VdevState::sums).unwrap_or_default()
    }

    /// Sums over the vdevs of a class.
    pub fn sums(&self, class: Class) -> SpaceSums {
        let of_class = self.vdevs.values().filter(|v| v.about.class == class).map(VdevState::sums);
        of_class.fold(SpaceSums::default(), |a, b| SpaceSums {
            size_bytes: a.size_bytes + b.size_bytes,
            allocated_bytes: a.allocated_bytes + b.allocated_bytes,
            deferred_bytes: a.deferred_bytes + b.deferred_bytes,
            free_bytes: a.free_bytes + b.free_bytes,
        })
    }

    /// Histogram of a metaslab's free segments as of `txg`; see [`Metaslab::histogram`].
    pub fn metaslab_histogram(&self, vdev: u32, metaslab: u64, txg: Txg) -> [u64; 64] {
        let slot = self.vdevs.get(&vdev).and_then(|v| v.metaslabs.get(usize::try_from(metaslab).ok()?));
        slot.map_or([0; 64], |m| m.histogram(txg))
    }

    /// Allocated ranges of a metaslab according to all changes handed out so far; `None` if it is not loaded.
    pub fn allocated_as_synced(&self, vdev: u32, metaslab: u64) -> Option<Vec<Range<u64>>> {
        let slot = self.vdevs.get(&vdev)?.metaslabs.get(usize::try_from(metaslab).ok()?)?;
        Some(slot.synced_allocated()?.iter().collect())
    }

    /// Allocated ranges of a metaslab according to all allocations and frees so far; `None` if it is not loaded.
    pub fn allocated(&self, vdev: u32, metaslab: u64) -> Option<Vec<Range<u64>>> {
        let slot = self.vdevs.get(&vdev)?.metaslabs.get(usize::try_from(metaslab).ok()?)?;
        Some(slot.allocated()?.iter().collect())
    }

    /// Free segments of a metaslab; `None` if it is not loaded.
    pub fn free_segments(&self, vdev: u32, metaslab: u64) -> Option<Vec<Range<u64>>> {
        let slot = self.vdevs.get(&vdev)?.metaslabs.get(usize::try_from(metaslab).ok()?)?;
        Some(slot.free_segments()?.iter().collect())
    }
}

/// Where a copy of a block may be on a vdev.
struct CopyPlace<'a> {
    /// Number of the copy.
    copy: usize,
    /// Offsets of the other copies on the vdev.
    near: &'a [u64],
    /// The minimum distance from them is the vdev's size shifted right by this; any if `None`.
    distance_shift: Option<u32>,
    /// Metaslabs that are not loaded are tried even if their summaries promise no segment that is long enough.
    hard: bool,
}

impl VdevState {
    /// The metaslab that a range begins in; the range must end in it as well.
    fn at(&mut self, range: &Range<u64>) -> Result<&mut Metaslab, SpaceFault> {
        let index = usize::try_from(range.start >> self.about.metaslab_shift).map_err(|_| SpaceFault::Unknown)?;
        let metaslab = self.metaslabs.get_mut(index).ok_or(SpaceFault::Unknown)?;
        if range.end > metaslab.range().end || range.end < range.start {
            return Err(SpaceFault::Outside);
        }
        Ok(metaslab)
    }

    /// Allocates `len` bytes, or names the metaslab to load before.
    fn allocate(&mut self, len: u64, txg: Txg, place: &CopyPlace<'_>) -> Option<Found> {
        let CopyPlace { copy, near, distance_shift, hard } = *place;
        let size = (self.metaslabs.len() as u64) << self.about.metaslab_shift;
        // The next metaslab begins at least a byte away.
        let distance = distance_shift.map_or(0, |shift| (size >> shift).max(1));
        let far = |m: &Metaslab| {
            let Range { start, end } = m.range();
            near.iter().all(|&at| {
                let gap = if at < start { start - at } else { (at + 1).saturating_sub(end) };
                gap >= distance
            })
        };
        let copy = copy.min(2);
        let fits = |m: &Metaslab| m.fits(len) && far(m);
        let others: Vec<usize> =
            self.active.iter().enumerate().filter(|(c, _)| *c != copy).filter_map(|(_, a)| *a).collect();
        let active = self.active[copy].filter(|&i| self.metaslabs.get(i).is_some_and(fits));
        let best = || {
            let may_fit = |m: &Metaslab| fits(m) || m.may_fit(len, hard) && far(m);
            let candidates = self.metaslabs.iter().enumerate().filter(|(_, m)| may_fit(m));
            let weight = |(i, m): &(usize, &Metaslab)| {
                let bucket = m.bucket();
                let is_loaded = m.free_segments().is_some();
                let order = (bucket, m.free_bytes(), std::cmp::Reverse(*i));
                (!others.contains(i), bucket.min(LONG_SEGMENT_SHIFT), is_loaded, order)
            };
            candidates.max_by_key(weight).map(|(i, _)| i)
        };
        let index = active.or_else(best)?;
        let metaslab = self.metaslabs.get_mut(index)?;
        if metaslab.free_segments().is_none() {
            return Some(Found::Unloaded(index as u64));
        }
        self.active[copy] = Some(index);
        let at = metaslab.allocate(len, txg)?;
        self.free_bytes -= len;
        Some(Found::At(at))
    }

    fn sums(&self) -> SpaceSums {
        let size_bytes = (self.metaslabs.len() as u64) << self.about.metaslab_shift;
        let deferred_bytes = self.deferred_bytes;
        let free_bytes = self.free_bytes;
        let allocated_bytes = size_bytes.checked_sub(deferred_bytes + free_bytes);
        invariant!(allocated_bytes.is_some(), "{free_bytes} free and {deferred_bytes} deferred of {size_bytes} bytes");
        SpaceSums { size_bytes, allocated_bytes: allocated_bytes.unwrap_or(0), deferred_bytes, free_bytes }
    }
}

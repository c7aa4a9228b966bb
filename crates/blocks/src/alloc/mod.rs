//! The allocator: where new blocks go. Pure: no I/O, clock or lock.
//!
//! A top-level vdev's space is cut into metaslabs of equal size; what is free in them is kept in memory, and every
//! change is handed out as data ([`Allocator::take_changes`]) for the space maps, which are objects and so not this
//! floor's business.
//!
//! ```text
//!   class ─► vdev, by a rotor: each gets a share in proportion to its free space before it is the next one's turn
//!              └─► metaslab: the active one as long as it can; else the one with the longest free segment, then the emptiest
//!                     └─► segment: from the cursor on, or the smallest that fits when space gets tight
//! ```
//!
//! *Copies* of one block go to different vdevs; where there are too few, to distant metaslabs of one.
//!
//! *Classes.* Blocks of a class go to its vdevs, and to the normal ones when it has none or they are full.
//!
//! *Time.* What is given back in transaction group t can be taken again when t + 2 has synced: until then a pool can be
//! rewound to a state that needs it. What is taken and given back in one group, with nobody told in between, is no
//! change, but waits as long.
//!
//! *Old pointers.* Reads hold back the reuse of what they may lead to ([`Allocator::synced`]), and for a while it is
//! remembered who took what, so that a pointer can be told to be too old ([`Allocator::standing`]): what it finds is then
//! no device's fault, and nothing to be put right.
//!
//! *Invariants.* A byte of a metaslab is free, deferred or taken; nothing is handed out twice; giving back what is not
//! taken is an error and changes nothing. The same calls give the same answers.
//!
//! Source of the ideas: OpenZFS `module/zfs/metaslab.c`.

mod metaslab;
mod rotor;
mod segments;
mod sizing;
#[cfg(test)]
mod tests;

pub use metaslab::{AllocStatus, DEFER, DeferredFrees, Metaslab};
pub use segments::Segments;
pub use sizing::{RaidzSizing, Sizing};
pub use weir_format::space_map::SpaceKind;

use rotor::Rotor;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use thiserror::Error;
use weir_format::{Dva, Txg};

/// What a block is for, which decides the vdevs that it goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Everything.
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
    /// All of them, in the order of their index.
    pub const ALL: [Class; 4] = [Class::Normal, Class::Log, Class::Special, Class::Dedup];

    /// The word in `zpool status -j` and in a vdev's `allocation_bias`.
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
    /// Its index in the pool.
    pub vdev: u32,
    /// What it is for.
    pub class: Class,
    /// How large blocks become on it.
    pub sizing: Sizing,
    /// log2 of a metaslab's size.
    pub metaslab_shift: u32,
    /// How many metaslabs it has.
    pub metaslab_count: u64,
    /// Nothing new may go there (a vdev being removed), but blocks may be freed.
    pub closed: bool,
}

/// A change of a metaslab's space in one transaction group, for its space map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceChange {
    /// The top-level vdev.
    pub vdev: u32,
    /// The metaslab in it.
    pub metaslab: u64,
    /// Taken or given back.
    pub kind: SpaceKind,
    /// Where in the vdev's space, in bytes.
    pub offset_bytes: u64,
    /// How much.
    pub len_bytes: u64,
}

/// How much space there is, in bytes. `size = allocated + deferred + free`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceSums {
    /// All of it, in whole metaslabs.
    pub size_bytes: u64,
    /// Taken.
    pub allocated_bytes: u64,
    /// Given back, but not yet usable.
    pub deferred_bytes: u64,
    /// Usable.
    pub free_bytes: u64,
}

/// Why space could not be loaded, claimed or given back: what the caller believes to lie there does not.
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
    #[error("its free space was told twice")]
    LoadedTwice,
}

/// What is to be allocated.
#[derive(Clone, Copy, Debug)]
pub struct AllocRequest {
    /// For which class.
    pub class: Class,
    /// Bytes before parity and padding.
    pub psize_bytes: u64,
    /// On how many places, 1 to 3.
    pub copies: u8,
    /// In which transaction group.
    pub txg: Txg,
}

/// How far copies on one vdev should be apart: this part of it (`ditto_same_vdev_distance_shift`).
const DISTANCE_SHIFT: u32 = 3;

/// For how many groups after they have synced it is remembered who took what.
const REMEMBERED: u64 = 4;

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
    /// Tests of gangs: nothing of more than so many bytes before parity is found in one piece.
    largest_piece: Option<u64>,
}

impl Allocator {
    /// Adds a vdev, of whose free space nothing is known yet. One that is there already is kept.
    pub fn add_vdev(&mut self, about: VdevSpace) {
        let size = 1u64 << about.metaslab_shift.min(62);
        let metaslabs = (0..about.metaslab_count).map(|i| Metaslab::new(i * size..(i + 1) * size)).collect();
        let (vdev, class) = (about.vdev, about.class);
        let closed = about.closed;
        let state = VdevState { about, metaslabs, active: [None; 3], free_bytes: 0, deferred_bytes: 0 };
        if let Entry::Vacant(slot) = self.vdevs.entry(vdev) {
            slot.insert(state);
            if !closed {
                self.rotors[class as usize].add(vdev);
            }
        }
    }

    /// Opens a vdev for new blocks, or closes it.
    pub fn set_closed(&mut self, vdev: u32, closed: bool) {
        let Some(state) = self.vdevs.get_mut(&vdev) else { return };
        state.about.closed = closed;
        let rotor = &mut self.rotors[state.about.class as usize];
        rotor.remove(vdev);
        if !closed {
            rotor.add(vdev);
        }
    }

    /// Takes note of what is free in a metaslab.
    ///
    /// # Errors
    /// [`SpaceFault`].
    pub fn load(&mut self, vdev: u32, metaslab: u64, free: &[Range<u64>]) -> Result<(), SpaceFault> {
        let state = self.vdevs.get_mut(&vdev).ok_or(SpaceFault::Unknown)?;
        let slot = usize::try_from(metaslab).ok().and_then(|i| state.metaslabs.get_mut(i));
        let slot = slot.ok_or(SpaceFault::Unknown)?;
        slot.load(free)?;
        state.free_bytes += slot.free().total_bytes();
        Ok(())
    }

    /// From here on nothing of more than `bytes` is found in one piece: a test of gangs.
    pub fn set_largest_piece(&mut self, bytes: Option<u64>) {
        self.largest_piece = bytes;
    }

    /// The vdevs of a class, if any is open.
    pub fn has_class(&self, class: Class) -> bool {
        !self.rotors[class as usize].is_empty()
    }

    /// What a vdev is like.
    pub fn vdev(&self, vdev: u32) -> Option<&VdevSpace> {
        self.vdevs.get(&vdev).map(|v| &v.about)
    }

    /// Smallest and common unit of allocated sizes over the vdevs of the normal class, in bytes (`spa_min_alloc`,
    /// `spa_gcd_alloc`; with powers of two they are the same).
    pub fn unit_bytes(&self) -> u64 {
        let normal = self.vdevs.values().filter(|v| v.about.class == Class::Normal);
        1 << normal.map(|v| v.about.sizing.ashift).min().unwrap_or(9)
    }

    /// Places for all copies of a block, or `None` if there is not so much space in one piece.
    pub fn allocate(&mut self, want: &AllocRequest) -> Option<Vec<Dva>> {
        if self.largest_piece.is_some_and(|most| want.psize_bytes > most) {
            return None;
        }
        let found = self.allocate_in(want.class, want);
        let normal = |this: &mut Self| this.allocate_in(Class::Normal, want);
        if want.class == Class::Normal { found } else { found.or_else(|| normal(self)) }
    }

    fn allocate_in(&mut self, class: Class, want: &AllocRequest) -> Option<Vec<Dva>> {
        let mut dvas: Vec<Dva> = Vec::with_capacity(usize::from(want.copies));
        for _ in 0..want.copies.clamp(1, 3) {
            match self.allocate_copy(class, want, &dvas) {
                Some(dva) => dvas.push(dva),
                None => {
                    for dva in dvas {
                        self.undo(&dva, want.txg);
                    }
                    return None;
                }
            }
        }
        Some(dvas)
    }

    /// One more copy besides `others`: on a vdev that has none yet, else far away, else anywhere.
    fn allocate_copy(&mut self, class: Class, want: &AllocRequest, others: &[Dva]) -> Option<Dva> {
        let free = |vdev: u32| self.vdevs.get(&vdev).map_or(0, |v| v.free_bytes);
        let ring = self.rotors[class as usize].ring(others.last().map(|d| d.vdev), free);
        for distance_shift in [Some(DISTANCE_SHIFT), Some(62), None] {
            for &vdev in &ring {
                let Some(state) = self.vdevs.get_mut(&vdev) else { continue };
                let asize_bytes = state.about.sizing.asize_bytes(want.psize_bytes, want.txg.0);
                let near: Vec<u64> = others.iter().filter(|d| d.vdev == vdev).map(|d| d.offset_bytes).collect();
                let Some(offset_bytes) = state.take(asize_bytes, want.txg, others.len(), &near, distance_shift) else {
                    continue;
                };
                if others.is_empty() {
                    let free = |vdev: u32| self.vdevs.get(&vdev).map_or(0, |v| v.free_bytes);
                    self.rotors[class as usize].took(vdev, asize_bytes, free);
                }
                return Some(Dva { vdev, offset_bytes, asize_bytes, gang: false, grid: 0 });
            }
            if others.is_empty() {
                break;
            }
        }
        None
    }

    /// Forgets an allocation of which nobody was told and to which nothing was written.
    pub(crate) fn undo(&mut self, dva: &Dva, txg: Txg) {
        if let Some(state) = self.vdevs.get_mut(&dva.vdev) {
            let range = dva.offset_bytes..dva.offset_bytes + dva.asize_bytes;
            if let Ok(metaslab) = state.at(&range) {
                state.free_bytes += metaslab.unallocate(range, txg);
            }
        }
    }

    /// Takes exactly this place.
    ///
    /// # Errors
    /// [`SpaceFault`], and nothing is taken.
    pub fn claim(&mut self, vdev: u32, range: Range<u64>, txg: Txg) -> Result<(), SpaceFault> {
        let state = self.vdevs.get_mut(&vdev).ok_or(SpaceFault::Unknown)?;
        state.at(&range)?.claim(range.clone(), txg)?;
        state.free_bytes -= range.end - range.start;
        Ok(())
    }

    /// Gives a place back in `txg` (or, if that has synced already, in the one after the last that did).
    ///
    /// # Errors
    /// [`SpaceFault`], and nothing changes.
    pub fn give_back(&mut self, vdev: u32, range: Range<u64>, txg: Txg) -> Result<(), SpaceFault> {
        let txg = if self.synced == Txg(0) { txg } else { txg.max(Txg(self.synced.0 + 1)) };
        let state = self.vdevs.get_mut(&vdev).ok_or(SpaceFault::Unknown)?;
        state.at(&range)?.give_back(range.clone(), txg)?;
        state.deferred_bytes += range.end - range.start;
        Ok(())
    }

    /// What was taken and given back in `txg` since the last call, by vdev, metaslab, kind (taken first) and offset.
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

    /// Takes note that `txg` is on stable storage, and that the oldest read under way began when `oldest_read` was the last
    /// that was: what it may lead to is not used again before it has ended. Gives what became usable: vdev and range.
    pub fn synced(&mut self, txg: Txg, oldest_read: Txg) -> Vec<(u32, Range<u64>)> {
        self.synced = self.synced.max(txg);
        let ripe = Txg(txg.0.saturating_sub(DEFER)).min(oldest_read);
        let settled = Txg(txg.0.saturating_sub(REMEMBERED)).min(oldest_read);
        let mut out = Vec::new();
        for (&vdev, state) in &mut self.vdevs {
            for metaslab in &mut state.metaslabs {
                let DeferredFrees { freed, forgotten_bytes } = metaslab.release_deferred(ripe, settled);
                state.deferred_bytes -= forgotten_bytes;
                for range in freed {
                    state.deferred_bytes -= range.end - range.start;
                    state.free_bytes += range.end - range.start;
                    out.push((vdev, range));
                }
            }
        }
        out
    }

    /// What a pointer to a block of `psize_bytes`, born in `birth`, can expect to find at its place. Where nothing is known of
    /// a place, its block is not settled.
    pub fn standing(&self, vdev: u32, offset_bytes: u64, psize_bytes: u64, birth: Txg) -> AllocStatus {
        let Some(state) = self.vdevs.get(&vdev) else { return AllocStatus::Unsynced };
        let end = offset_bytes.saturating_add(state.about.sizing.asize_bytes(psize_bytes, birth.0));
        let index = usize::try_from(offset_bytes >> state.about.metaslab_shift).ok();
        let metaslab = index.and_then(|i| state.metaslabs.get(i));
        metaslab.map_or(AllocStatus::Unsynced, |m| m.standing(&(offset_bytes..end), birth, self.synced))
    }

    /// Takes what is free of a range out of use for a while.
    pub fn hold(&mut self, vdev: u32, range: Range<u64>) -> Vec<Range<u64>> {
        let Some(state) = self.vdevs.get_mut(&vdev) else { return Vec::new() };
        let held: Vec<Range<u64>> = state.metaslabs.iter_mut().flat_map(|m| m.hold(&range)).collect();
        state.free_bytes -= held.iter().map(|r| r.end - r.start).sum::<u64>();
        held
    }

    /// Ends [`Allocator::hold`] for one of its ranges.
    pub fn release(&mut self, vdev: u32, range: Range<u64>) {
        let Some(state) = self.vdevs.get_mut(&vdev) else { return };
        let len = range.end - range.start;
        if let Ok(metaslab) = state.at(&range) {
            metaslab.release(range);
            state.free_bytes += len;
        }
    }

    /// The sums over one vdev.
    pub fn vdev_sums(&self, vdev: u32) -> SpaceSums {
        self.vdevs.get(&vdev).map(VdevState::sums).unwrap_or_default()
    }

    /// The sums over the vdevs of a class.
    pub fn sums(&self, class: Class) -> SpaceSums {
        let of_class = self.vdevs.values().filter(|v| v.about.class == class).map(VdevState::sums);
        of_class.fold(SpaceSums::default(), |a, b| SpaceSums {
            size_bytes: a.size_bytes + b.size_bytes,
            allocated_bytes: a.allocated_bytes + b.allocated_bytes,
            deferred_bytes: a.deferred_bytes + b.deferred_bytes,
            free_bytes: a.free_bytes + b.free_bytes,
        })
    }

    /// How many free segments of 2ⁿ to 2ⁿ⁺¹−1 bytes a vdev has, for each n.
    pub fn histogram(&self, vdev: u32) -> [u64; 64] {
        let mut histogram = [0; 64];
        for metaslab in self.vdevs.get(&vdev).map_or(&[][..], |v| &v.metaslabs) {
            metaslab.free().histogram(&mut histogram);
        }
        histogram
    }

    /// The histogram of a metaslab's free segments as of `txg`: see [`Metaslab::histogram`].
    pub fn metaslab_histogram(&self, vdev: u32, metaslab: u64, txg: Txg) -> [u64; 64] {
        let slot = self.vdevs.get(&vdev).and_then(|v| v.metaslabs.get(usize::try_from(metaslab).ok()?));
        slot.map_or([0; 64], |m| m.histogram(txg))
    }

    /// What is allocated in a metaslab according to all changes that were handed out so far.
    pub fn allocated_as_synced(&self, vdev: u32, metaslab: u64) -> Vec<Range<u64>> {
        let slot = self.vdevs.get(&vdev).and_then(|v| v.metaslabs.get(usize::try_from(metaslab).ok()?));
        slot.map_or_else(Vec::new, |m| m.synced_allocated().iter().collect())
    }

    /// The free segments of a metaslab.
    pub fn free_segments(&self, vdev: u32, metaslab: u64) -> Vec<Range<u64>> {
        let slot = self.vdevs.get(&vdev).and_then(|v| v.metaslabs.get(usize::try_from(metaslab).ok()?));
        slot.map_or_else(Vec::new, |m| m.free().iter().collect())
    }
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

    /// Takes `len` bytes for the copy number `copy`, away from the places `near`: this part of the vdev, or None for
    /// anywhere.
    fn take(&mut self, len: u64, txg: Txg, copy: usize, near: &[u64], distance_shift: Option<u32>) -> Option<u64> {
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
        let usable = |m: &Metaslab| m.free().largest_bytes() >= len && far(m);
        let others: Vec<usize> =
            self.active.iter().enumerate().filter(|(c, _)| *c != copy).filter_map(|(_, a)| *a).collect();
        let active = self.active[copy].filter(|&i| self.metaslabs.get(i).is_some_and(usable));
        let best = || {
            let candidates = self.metaslabs.iter().enumerate().filter(|(_, m)| usable(m));
            let weight = |(i, m): &(usize, &Metaslab)| {
                let bucket = m.free().largest_bytes().max(1).ilog2();
                (!others.contains(i), bucket, m.free().total_bytes(), std::cmp::Reverse(*i))
            };
            candidates.max_by_key(weight).map(|(i, _)| i)
        };
        let index = active.or_else(best)?;
        self.active[copy] = Some(index);
        let at = self.metaslabs.get_mut(index)?.take(len, txg)?;
        self.free_bytes -= len;
        Some(at)
    }

    fn sums(&self) -> SpaceSums {
        let size_bytes = (self.metaslabs.len() as u64) << self.about.metaslab_shift;
        let (deferred_bytes, free_bytes) = (self.deferred_bytes, self.free_bytes);
        let allocated_bytes = size_bytes.saturating_sub(deferred_bytes + free_bytes);
        SpaceSums { size_bytes, allocated_bytes, deferred_bytes, free_bytes }
    }
}

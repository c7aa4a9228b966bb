//! Simulated disks: the seam's [`Disk`] over a [`Medium`], a timing model and laid faults.
//!
//! An operation takes effect and is answered when it completes, at a moment that the timing model and the seed choose;
//! so answers come in any order, as on hardware that queues. A write may leak to the medium before that: a power cut
//! treats unfinished writes like cached ones.
//!
//! The contract of the seam is enforced: offsets and lengths that are not whole sectors fail with EINVAL, a disk opened
//! read-only refuses to change. [`Stats`] counts both what was done and what was tried.

use crate::fault::{Fault, FaultId};
use crate::medium::Medium;
use crate::readings::Sectors;
use crate::record::Event;
use crate::rng::Rng;
use crate::timing::{Timing, TimingState};
use crate::trace::hash_bytes;
use crate::world::Shared;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use weir_machine::{Access, Bufs, Disk, DiskError, Disks, Geometry, Io, Op};

const EIO: i32 = 5;
const EINVAL: i32 = 22;
const ENXIO: i32 = 6;
const ENOENT: i32 = 2;

/// What a disk was asked to do since it was made, whether it did it or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Reads.
    pub reads: u64,
    /// Bytes asked for by reads.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Operations that were answered with an error.
    pub errors: u64,
}

impl Stats {
    /// Operations that are not reads: none of them may happen to a pool that is opened read-only.
    pub fn changes(&self) -> u64 {
        self.writes + self.flushes + self.discards
    }
}

struct Laid {
    fault: Fault,
    /// For faults that wait for the nth operation: how many have passed.
    seen: u64,
}

struct State {
    medium: Medium,
    timing_state: TimingState,
    rng: Rng,
    stats: Stats,
    next: u64,
    pending: BTreeMap<u64, Pending>,
    hung: Vec<Io>,
    faults: BTreeMap<FaultId, Laid>,
    next_fault: u64,
}

struct Pending {
    io: Io,
    /// What a flush covers.
    watermark: u64,
    /// The error that was drawn for it.
    errno: Option<i32>,
    misdirected: Option<(FaultId, u64)>,
}

/// A simulated disk.
pub struct SimDisk {
    number: u64,
    path: PathBuf,
    geometry: Geometry,
    timing: Timing,
    world: Weak<Shared>,
    state: Mutex<State>,
}

impl SimDisk {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where it is found.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it is.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn timing(&self) -> Timing {
        self.timing
    }

    pub(crate) fn medium(&self) -> Medium {
        self.lock().medium.clone()
    }

    pub(crate) fn keep_readings(&self) {
        self.lock().medium.keep_readings();
    }

    pub(crate) fn take_readings(&self) -> Sectors {
        self.lock().medium.take_readings()
    }

    /// What it was asked to do.
    pub fn stats(&self) -> Stats {
        self.lock().stats
    }

    /// Lays a fault over it.
    pub fn lay(&self, fault: Fault) -> FaultId {
        let state = &mut *self.lock();
        let id = FaultId(state.next_fault);
        state.next_fault += 1;
        state.medium.mark(id, &fault, &mut state.rng);
        state.faults.insert(id, Laid { fault, seen: 0 });
        id
    }

    /// Lifts a fault: contents and behaviour are as if it had never been. What hung goes on.
    pub fn lift(self: &Arc<Self>, id: FaultId) {
        let hung = {
            let mut state = self.lock();
            state.medium.unmark(id);
            state.faults.remove(&id);
            if state.faults.values().any(|laid| laid.fault == Fault::Hang) {
                Vec::new()
            } else {
                std::mem::take(&mut state.hung)
            }
        };
        for io in hung {
            self.start(io);
        }
    }

    /// Lifts every fault.
    pub fn lift_all(self: &Arc<Self>) {
        let ids: Vec<FaultId> = self.lock().faults.keys().copied().collect();
        ids.into_iter().for_each(|id| self.lift(id));
    }

    /// What was written at `offset`, whatever the faults: for judging, not for the code under test.
    pub fn peek(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.lock().medium.read_true(offset, &mut bytes);
        bytes
    }

    /// The power fails: see [`Medium::power_cut`].
    pub(crate) fn power_cut(&self) {
        let dropped = {
            let state = &mut *self.lock();
            state.medium.power_cut(&mut state.rng);
            state.timing_state = TimingState::default();
            (std::mem::take(&mut state.pending), std::mem::take(&mut state.hung))
        };
        // Their waiters are gone too; dropping completions wakes nobody that matters, but not under the lock.
        drop(dropped);
    }

    fn submit(self: &Arc<Self>, io: Io, access: Access) {
        let Some(world) = self.world.upgrade().filter(|world| world.has_power()) else { return };
        world.trace("submit", &[self.number, io.op as u64, io.offset, io.len]);
        let refusal = {
            let state = &mut *self.lock();
            count(&mut state.stats, &io);
            let sector = u64::from(self.geometry.sector_bytes);
            let uneven = !io.offset.is_multiple_of(sector) || !io.len.is_multiple_of(sector);
            let Io { op, offset, len, .. } = io;
            match io.check(&self.geometry, access) {
                Ok(()) if uneven => Some(DiskError::Os { op, offset, len, errno: EINVAL }),
                Ok(()) if state.faults.values().any(|laid| laid.fault == Fault::Gone) => Some(gone(op)),
                Ok(()) => None,
                Err(error) => Some(error),
            }
        };
        if let Some(error) = refusal {
            self.lock().stats.errors += 1;
            return io.fail(error);
        }
        self.start(io);
    }

    /// Lets an operation begin, with the fate that faults and timing give it.
    fn start(self: &Arc<Self>, io: Io) {
        let Some(world) = self.world.upgrade() else { return };
        let now_ns = world.now_ns();
        if io.op != Op::Read {
            world.count_change();
        }
        let state = &mut *self.lock();
        if state.faults.values().any(|laid| laid.fault == Fault::Hang) {
            state.hung.push(io);
            return;
        }
        let id = state.next;
        state.next += 1;
        let (op, offset, len, size) = (io.op, io.offset, io.len, self.geometry.size_bytes);
        let done_ns = self.timing.completes_ns(&mut state.timing_state, now_ns, op, offset, len, size, &mut state.rng);
        let mut delay_ns = done_ns - now_ns;
        let (mut errno, mut misdirected) = (None, None);
        for (fault_id, laid) in &mut state.faults {
            match laid.fault {
                Fault::FailNth { nth, errno: code } => {
                    if laid.seen == nth {
                        errno = Some(code);
                    }
                    laid.seen += 1;
                }
                Fault::Misdirect { nth, to } if op == Op::Write => {
                    if laid.seen == nth {
                        misdirected = Some((*fault_id, to));
                    }
                    laid.seen += 1;
                }
                Fault::Slow { factor } => delay_ns = delay_ns.saturating_mul(u64::from(factor)),
                _ => {}
            }
        }
        match op {
            // A discarded range reads as anything: here as a pattern that no reader will take for its data.
            Op::Write | Op::Discard => {
                let pattern = || vec![0xdd; len as usize];
                let data: Arc<[u8]> = if op == Op::Write { io.parts.concat() } else { pattern() }.into();
                world.record(|| Event::Begin { disk: self.number, id, offset, data: data.clone() });
                state.medium.begin_write(id, offset, data);
            }
            Op::Flush => world.record(|| Event::AskFlush { disk: self.number }),
            Op::Read => {}
        }
        let watermark = state.medium.watermark();
        state.pending.insert(id, Pending { io, watermark, errno, misdirected });
        let disk = self.clone();
        world.at(now_ns + delay_ns, Box::new(move || disk.complete(id)));
    }

    /// The operation takes effect and is answered.
    fn complete(&self, id: u64) {
        let Some(world) = self.world.upgrade() else { return };
        let (io, result) = {
            let state = &mut *self.lock();
            let Some(pending) = state.pending.remove(&id) else { return };
            let Pending { mut io, watermark, errno, misdirected } = pending;
            let (op, offset, len) = (io.op, io.offset, io.len);
            let os = |errno| Err(DiskError::Os { op, offset, len, errno });
            let lost = state.faults.values().any(|laid| laid.fault == Fault::Gone);
            if op == Op::Read {
                state.medium.note_read(offset, len);
            }
            let result = match (op, errno) {
                _ if lost => Err(gone(op)),
                (_, Some(errno)) => os(errno),
                (Op::Read, None) if read(&state.medium, offset, &mut io.bufs) => Ok(()),
                (Op::Read, None) => os(EIO),
                (Op::Write | Op::Discard, None) => {
                    world.record(|| Event::Complete { disk: self.number, id });
                    state.medium.complete_write(id, misdirected);
                    Ok(())
                }
                (Op::Flush, None) => {
                    if !state.faults.values().any(|laid| laid.fault == Fault::LyingFlush) {
                        world.record(|| Event::Flush { disk: self.number, watermark });
                        state.medium.make_durable(watermark);
                    }
                    Ok(())
                }
            };
            if result.is_err() {
                state.medium.abandon_write(id);
                state.stats.errors += 1;
            }
            (io, result)
        };
        let bytes = if result.is_ok() && world.traces_bytes() {
            let memory = io.bufs.iter().map(AsRef::as_ref).chain(io.parts.iter().map(AsRef::as_ref));
            memory.fold(0, |hash: u64, bytes: &[u8]| hash.rotate_left(7) ^ hash_bytes(bytes))
        } else {
            0
        };
        world.trace("complete", &[self.number, io.op as u64, io.offset, u64::from(result.is_ok()), bytes]);
        if io.op != Op::Read {
            world.count_change();
        }
        match result {
            Ok(()) => io.succeed(),
            Err(error) => io.fail(error),
        }
    }
}

/// Fills the buffers one after the other; false where a sector cannot be read.
fn read(medium: &Medium, offset: u64, bufs: &mut Bufs) -> bool {
    let mut at = offset;
    bufs.iter_mut().all(|buf| {
        let from = at;
        at += buf.len() as u64;
        medium.read(from, buf.as_mut())
    })
}

fn gone(op: Op) -> DiskError {
    DiskError::Refused { op, why: "the disk is gone" }
}

fn count(stats: &mut Stats, io: &Io) {
    match io.op {
        Op::Read => {
            stats.reads += 1;
            stats.read_bytes += io.len;
        }
        Op::Write => stats.writes += 1,
        Op::Flush => stats.flushes += 1,
        Op::Discard => stats.discards += 1,
    }
}

struct Opened {
    disk: Arc<SimDisk>,
    access: Access,
}

impl Disk for Opened {
    fn geometry(&self) -> Geometry {
        self.disk.geometry
    }

    fn submit(&self, io: Io) {
        self.disk.submit(io, self.access);
    }
}

/// The table of disks that a simulated machine finds.
#[derive(Default)]
pub(crate) struct SimDisks(Mutex<BTreeMap<PathBuf, Arc<SimDisk>>>);

impl SimDisks {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Arc<SimDisk>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(
        &self,
        world: &Arc<Shared>,
        path: &Path,
        size_bytes: u64,
        sector_bytes: u32,
        timing: Timing,
        image: Option<File>,
    ) -> Arc<SimDisk> {
        let medium = Medium::new(u64::from(sector_bytes), size_bytes, image);
        let geometry = Geometry { size_bytes, sector_bytes, rotational: timing == Timing::Rpm7k };
        self.add_medium(world, path, geometry, timing, medium)
    }

    /// Puts a disk with these contents at `path`.
    pub(crate) fn add_medium(
        &self,
        world: &Arc<Shared>,
        path: &Path,
        geometry: Geometry,
        timing: Timing,
        medium: Medium,
    ) -> Arc<SimDisk> {
        let mut table = self.lock();
        let state = State {
            medium,
            timing_state: TimingState::default(),
            rng: world.draw(Rng::fork),
            stats: Stats::default(),
            next: 0,
            pending: BTreeMap::new(),
            hung: Vec::new(),
            faults: BTreeMap::new(),
            next_fault: 0,
        };
        let disk = Arc::new(SimDisk {
            number: table.len() as u64,
            path: path.into(),
            geometry,
            timing,
            world: Arc::downgrade(world),
            state: Mutex::new(state),
        });
        table.insert(path.into(), disk.clone());
        disk
    }

    pub(crate) fn all(&self) -> Vec<Arc<SimDisk>> {
        self.lock().values().cloned().collect()
    }
}

impl Disks for SimDisks {
    fn scan(&self, dir: &Path) -> Result<Vec<PathBuf>, DiskError> {
        let table = self.lock();
        if !table.keys().any(|path| path.starts_with(dir)) {
            return Err(DiskError::Open { path: dir.into(), errno: ENOENT });
        }
        Ok(table.keys().filter(|path| path.parent() == Some(dir)).cloned().collect())
    }

    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn Disk>, DiskError> {
        let failed = |errno| DiskError::Open { path: path.into(), errno };
        let disk = self.lock().get(path).cloned().ok_or_else(|| failed(ENOENT))?;
        if disk.lock().faults.values().any(|laid| laid.fault == Fault::Gone) {
            return Err(failed(ENXIO));
        }
        Ok(Arc::new(Opened { disk, access }))
    }
}

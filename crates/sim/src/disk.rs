//! Simulated disks: implement [`Disk`] over a [`Medium`], a timing model and injected faults.
//!
//! An operation takes effect when it completes, at a time that the timing model and the seed determine; so
//! completions come in any order, as on hardware with a queue. A write may reach the medium before that: a power cut
//! treats unfinished writes like cached ones.
//!
//! The contract of [`Disk`] is enforced: offsets and lengths that are not multiples of a sector fail with EINVAL, and
//! a disk opened read-only rejects changes. [`Stats`] counts all operations submitted, whether or not they succeed.

use crate::errors::Failure;
use crate::fault::{Fault, FaultId};
use crate::medium::Medium;
use crate::read_set::SectorSet;
use crate::rng::Rng;
use crate::scheduler::{DiskEvent, Shared};
use crate::timing::{Timing, TimingState};
use crate::trace::hash_bytes;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use weir_machine::{Access, Bufs, Disk, DiskError, Disks, Geometry, Io, Op};

const EIO: i32 = 5;
const EINVAL: i32 = 22;
const ENXIO: i32 = 6;
const ENOENT: i32 = 2;

/// Counts of the operations submitted to a disk since it was created, whether or not they succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Reads.
    pub reads: u64,
    /// Bytes requested by reads.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes of writes.
    pub write_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Operations that failed.
    pub errors: u64,
}

impl Stats {
    /// Operations that are not reads: none may be submitted for a pool that is imported read-only.
    pub fn changes(&self) -> u64 {
        self.writes + self.flushes + self.discards
    }
}

struct ActiveFault {
    fault: Fault,
    /// For faults of the nth operation: number of operations so far.
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
    faults: BTreeMap<FaultId, ActiveFault>,
    next_fault: u64,
}

struct Pending {
    io: Io,
    /// For a flush: the last write that it covers.
    watermark: u64,
    /// The error with which the operation will fail.
    errno: Option<i32>,
    /// Whether the world's plan of errors makes the operation fail.
    injected: bool,
    misdirected: Option<(FaultId, u64)>,
}

/// A simulated disk.
pub struct SimDisk {
    number: u64,
    path: PathBuf,
    first_geometry: Geometry,
    size_bytes: AtomicU64,
    timing: Timing,
    world: Weak<Shared>,
    state: Mutex<State>,
}

impl SimDisk {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The disk's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The disk's geometry.
    pub fn geometry(&self) -> Geometry {
        Geometry { size_bytes: self.size_bytes.load(Ordering::Relaxed), ..self.first_geometry }
    }

    /// Makes the disk larger: the new bytes are zeros.
    pub fn grow(&self, size_bytes: u64) {
        assert!(size_bytes >= self.geometry().size_bytes, "a disk does not shrink");
        self.lock().medium.grow(size_bytes);
        self.size_bytes.store(size_bytes, Ordering::Relaxed);
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

    pub(crate) fn track_reads(&self) {
        self.lock().medium.track_reads();
    }

    pub(crate) fn take_read_set(&self) -> SectorSet {
        self.lock().medium.take_read_set()
    }

    /// Counts of the operations submitted so far.
    pub fn stats(&self) -> Stats {
        self.lock().stats
    }

    /// Injects a fault.
    pub fn lay(&self, fault: Fault) -> FaultId {
        let state = &mut *self.lock();
        let id = FaultId(state.next_fault);
        state.next_fault += 1;
        state.medium.mark(id, &fault, &mut state.rng);
        state.faults.insert(id, ActiveFault { fault, seen: 0 });
        id
    }

    /// Removes a fault: contents and behaviour are as if it had never existed. Hung operations continue.
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

    /// Removes all faults.
    pub fn lift_all(self: &Arc<Self>) {
        let ids: Vec<FaultId> = self.lock().faults.keys().copied().collect();
        ids.into_iter().for_each(|id| self.lift(id));
    }

    /// The bytes written at `offset`, without the effect of faults: for checks, not for the code under test.
    pub fn peek(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.lock().medium.read_true(offset, &mut bytes);
        bytes
    }

    /// Simulates a power failure: see [`Medium::power_cut`].
    pub(crate) fn power_cut(&self) {
        let dropped = {
            let state = &mut *self.lock();
            state.medium.power_cut(&mut state.rng);
            state.timing_state = TimingState::default();
            (std::mem::take(&mut state.pending), std::mem::take(&mut state.hung))
        };
        // Drop the operations outside the lock, since dropping completions may wake tasks.
        drop(dropped);
    }

    fn submit(self: &Arc<Self>, io: Io, access: Access) {
        let Some(world) = self.world.upgrade().filter(|world| world.has_power()) else { return };
        world.trace("submit", &[self.number, io.op as u64, io.offset, io.len]);
        let rejection = {
            let state = &mut *self.lock();
            count(&mut state.stats, &io);
            let sector = u64::from(self.geometry().sector_bytes);
            let uneven = !io.offset.is_multiple_of(sector) || !io.len.is_multiple_of(sector);
            let Io { op, offset, len, .. } = io;
            match io.check(&self.geometry(), access) {
                Ok(()) if uneven => Some(DiskError::Os { op, offset, len, errno: EINVAL }),
                Ok(()) if state.faults.values().any(|laid| laid.fault == Fault::Gone) => Some(gone(op)),
                Ok(()) => {
                    let errno = state.faults.values().find_map(|laid| match laid.fault {
                        Fault::FailWrites { errno } if op == Op::Write => Some(errno),
                        _ => None,
                    });
                    errno.map(|errno| DiskError::Os { op, offset, len, errno })
                }
                Err(error) => Some(error),
            }
        };
        if let Some(error) = rejection {
            self.lock().stats.errors += 1;
            return io.fail(error);
        }
        let failure = world.draw_error(self.number, io.op);
        if failure == Some(Failure::AtOnce) {
            return self.fail_at_once(io);
        }
        self.start_with(io, failure.map(|_| EIO));
    }

    /// Answers an operation with an error before it has begun.
    fn fail_at_once(&self, io: Io) {
        {
            let state = &mut *self.lock();
            state.stats.errors += 1;
            if io.op == Op::Flush {
                let watermark = state.medium.watermark();
                state.medium.lose(watermark, &mut state.rng);
            }
        }
        io.fail_errno(EIO);
    }

    /// Starts an operation: faults and timing determine its completion time and result.
    fn start(self: &Arc<Self>, io: Io) {
        self.start_with(io, None);
    }

    /// Starts an operation, which fails with `injected` if that is given.
    fn start_with(self: &Arc<Self>, io: Io, injected: Option<i32>) {
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
        let op = io.op;
        let offset = io.offset;
        let len = io.len;
        let size = self.geometry().size_bytes;
        let done_ns = self.timing.completes_ns(&mut state.timing_state, now_ns, op, offset, len, size, &mut state.rng);
        let mut delay_ns = done_ns - now_ns;
        let mut errno = None;
        let mut misdirected = None;
        let mut loses_writes = false;
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
                Fault::FailFlushes { errno: code } if op == Op::Flush => {
                    errno = Some(code);
                    loses_writes = true;
                }
                Fault::Slow { factor } => delay_ns = delay_ns.saturating_mul(u64::from(factor)),
                _ => {}
            }
        }
        match op {
            // The contents of a discarded range are undefined: here a pattern that readers do not take for valid
            // data.
            Op::Write | Op::Discard => {
                let pattern = || vec![0xdd; len as usize];
                let data: Arc<[u8]> = if op == Op::Write { io.parts.concat() } else { pattern() }.into();
                world.record(|| DiskEvent::Begin { disk: self.number, id, offset, data: data.clone() });
                state.medium.begin_write(id, offset, data);
            }
            Op::Flush => world.record(|| DiskEvent::AskFlush { disk: self.number }),
            Op::Read => {}
        }
        let watermark = state.medium.watermark();
        let errno = injected.or(errno);
        state
            .pending
            .insert(id, Pending { io, watermark, errno, injected: injected.is_some() || loses_writes, misdirected });
        let disk = self.clone();
        world.at(now_ns + delay_ns, Box::new(move || disk.complete(id)));
    }

    /// Completes an operation: it takes effect and its result is delivered.
    fn complete(&self, id: u64) {
        let Some(world) = self.world.upgrade() else { return };
        let (io, result) = {
            let state = &mut *self.lock();
            let Some(pending) = state.pending.remove(&id) else { return };
            let Pending { mut io, watermark, errno, injected, misdirected } = pending;
            let op = io.op;
            let offset = io.offset;
            let len = io.len;
            let os = |errno| Err(DiskError::Os { op, offset, len, errno });
            let is_gone = state.faults.values().any(|laid| laid.fault == Fault::Gone);
            if op == Op::Read {
                state.medium.note_read(offset, len);
            }
            let result = match (op, errno) {
                _ if is_gone => Err(gone(op)),
                (_, Some(errno)) => os(errno),
                (Op::Read, None) if read(&state.medium, offset, &mut io.bufs) => Ok(()),
                (Op::Read, None) => os(EIO),
                (Op::Write | Op::Discard, None) => {
                    world.record(|| DiskEvent::Complete { disk: self.number, id });
                    state.medium.complete_write(id, misdirected);
                    Ok(())
                }
                (Op::Flush, None) => {
                    if !state.faults.values().any(|laid| laid.fault == Fault::LyingFlush) {
                        world.record(|| DiskEvent::Flush { disk: self.number, watermark });
                        state.medium.make_durable(watermark);
                    }
                    Ok(())
                }
            };
            if injected {
                match op {
                    Op::Flush => state.medium.lose(watermark, &mut state.rng),
                    _ => state.medium.tear(id, &mut state.rng),
                }
            }
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

/// Fills the buffers in order; false if a sector is unreadable.
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
        Op::Write => {
            stats.writes += 1;
            stats.write_bytes += io.len;
        }
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
        self.disk.geometry()
    }

    fn submit(&self, io: Io) {
        self.disk.submit(io, self.access);
    }
}

/// The disks of a simulated machine, by path.
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

    /// Adds a disk with these contents at `path`.
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
            first_geometry: geometry,
            size_bytes: AtomicU64::new(geometry.size_bytes),
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

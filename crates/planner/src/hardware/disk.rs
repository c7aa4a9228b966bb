//! A modelled disk behind the machine's [`Disk`] interface.

use super::contents::{Contents, Payload};
use super::drive::{Command, Drive, DriveSpec};
use super::processors::{Costs, Processors};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_machine::{Access, Disk, DiskError, Disks, Geometry, Io, Op};
use weir_sim::Timer;

const ENOENT: i32 = 2;

/// Operations of a disk since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Time in which the drive was at work, in nanoseconds.
    pub busy_ns: u64,
}

/// The processors of the modelled server, what work costs on them, and the payload of the load: shared by all devices.
pub struct Work {
    /// The payload, of which and of whose parity disks hold the factors alone.
    pub payload: Arc<Payload>,
    /// The processors.
    pub processors: Mutex<Processors>,
    /// Whether requests of clients come before the work of writes.
    pub clients_first: bool,
    /// Number of processors that compress, checksum and compute the parity of writes.
    pub write_processors: usize,
    /// The costs.
    pub costs: Costs,
    /// Bytes of a record.
    pub record_bytes: f64,
    /// Share of the bytes that the devices of the pool write that are data; the others are parity and copies.
    pub payload_share: f64,
}

impl Work {
    fn lock(&self) -> MutexGuard<'_, Processors> {
        self.processors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Charges `work_ns` nanoseconds that are asked for at `now_ns`; returns when they are over.
    pub fn charge(&self, now_ns: u64, work_ns: f64) -> u64 {
        self.lock().work(now_ns, work_ns as u64)
    }

    /// Like [`Work::charge`], for a request of a client.
    pub fn charge_client(&self, now_ns: u64, work_ns: f64) -> u64 {
        if self.clients_first { self.lock().work_first(now_ns, work_ns as u64) } else { self.charge(now_ns, work_ns) }
    }

    /// Like [`Work::charge`], on the processors for writes.
    fn charge_write(&self, now_ns: u64, work_ns: f64) -> u64 {
        self.lock().work_on(self.write_processors, now_ns, work_ns as u64)
    }

    /// Processor time of a device operation: of its bytes, checksums, and compression or its reverse; and its records.
    fn device_ns(&self, op: Op, len: u64, parity: f64) -> f64 {
        let costs = &self.costs;
        let kib = len as f64 / 1024.0;
        let records = len as f64 / self.record_bytes;
        let (records_ns, bytes_ns) = match op {
            Op::Read => (
                records * costs.read_record_ns,
                costs.checksum_ns_per_kib + costs.decompress_ns_per_kib + costs.read_ns_per_kib,
            ),
            Op::Write => (
                records * self.payload_share * costs.written_record_ns,
                costs.checksum_ns_per_kib
                    + costs.compress_ns_per_kib
                    + parity * costs.parity_ns_per_kib
                    + costs.write_ns_per_kib,
            ),
            Op::Flush | Op::Discard => (0.0, 0.0),
        };
        costs.device_operation_ns + records_ns + kib * bytes_ns
    }
}

struct State {
    drive: Drive,
    contents: Contents,
    pending: BTreeMap<u64, Io>,
    next: u64,
    counters: Counters,
    sequential_write_ns: f64,
    /// Time of the earliest timer that is set.
    timer_ns: Option<u64>,
}

/// A disk with the timing of a drive. It holds what is written; it never fails.
pub struct ModelDisk {
    spec: DriveSpec,
    geometry: Geometry,
    timer: Timer,
    work: Arc<Work>,
    /// Share of the columns of its vdev that hold parity, of each parity: what a byte written to this disk costs of parity.
    parity: f64,
    /// Distance in bytes of the pool's first byte from the drive's first one: in a pool that is partly full, what is written
    /// next comes to later tracks.
    shift_bytes: u64,
    state: Mutex<State>,
}

impl ModelDisk {
    /// An empty disk. `fill` is the share of it, from 0 to 1, that the contents of a pool would occupy already.
    pub fn new(spec: &DriveSpec, size_bytes: u64, fill: f64, timer: Timer, work: Arc<Work>, parity: f64) -> Arc<Self> {
        let state = State {
            drive: Drive::new(spec, size_bytes),
            contents: Contents::default(),
            pending: BTreeMap::new(),
            next: 0,
            counters: Counters::default(),
            sequential_write_ns: 0.0,
            timer_ns: None,
        };
        let geometry = Geometry { size_bytes, sector_bytes: 4096, rotational: spec.is_rotating() };
        let shift_bytes = (size_bytes as f64 * fill.clamp(0.0, 1.0)) as u64 / 4096 * 4096;
        Arc::new(ModelDisk { spec: spec.clone(), geometry, timer, work, parity, shift_bytes, state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts so far.
    pub fn counters(&self) -> Counters {
        let state = self.lock();
        Counters { busy_ns: state.drive.busy_ns(), ..state.counters }
    }

    /// Nanoseconds that the drive would have taken for all writes so far, one behind the other at its sequential rate at their places.
    pub fn sequential_write_ns(&self) -> f64 {
        self.lock().sequential_write_ns
    }

    fn accept(self: &Arc<Self>, io: Io, access: Access) {
        if let Err(error) = io.check(&self.geometry, access) {
            return io.fail(error);
        }
        if io.op == Op::Read || io.op == Op::Discard {
            return self.submit_to_drive(io);
        }
        // The bytes are checksummed and compressed before they are sent to the drive.
        let ready_ns = self.work.charge_write(self.timer.now_ns(), self.work.device_ns(io.op, io.len, self.parity));
        let disk = self.clone();
        self.timer.at(ready_ns, move || disk.submit_to_drive(io));
    }

    fn submit_to_drive(self: &Arc<Self>, mut io: Io) {
        let now_ns = self.timer.now_ns();
        {
            let state = &mut *self.lock();
            let id = state.next;
            state.next += 1;
            let Io { op, offset, len, .. } = io;
            let place = (offset + self.shift_bytes) % self.geometry.size_bytes;
            match op {
                Op::Read => {
                    state.counters.reads += 1;
                    state.counters.read_bytes += len;
                }
                Op::Write => {
                    state.counters.writes += 1;
                    state.counters.written_bytes += len;
                    let rate = self.spec.sustained_write_rate_at(place as f64 / self.geometry.size_bytes as f64);
                    state.sequential_write_ns += len as f64 * 1e9 / rate;
                    let mut at = offset;
                    for part in std::mem::take(&mut io.parts) {
                        state.contents.write(at, &part, &self.work.payload);
                        at += part.len() as u64;
                    }
                }
                Op::Flush => state.counters.flushes += 1,
                Op::Discard => state.contents.clear(offset, len),
            }
            state.pending.insert(id, io);
            state.drive.submit(now_ns, Command { id, op, offset: place, len });
        }
        self.advance();
    }

    /// Advances the drive to now, answers what is done, and sets the timer for what is not.
    fn advance(self: &Arc<Self>) {
        let now_ns = self.timer.now_ns();
        let done: Vec<Io> = {
            let state = &mut *self.lock();
            if state.timer_ns.is_some_and(|at| at <= now_ns) {
                state.timer_ns = None;
            }
            let ids = state.drive.advance(now_ns);
            let done = ids.iter().filter_map(|id| state.pending.remove(id)).collect();
            if let Some(next_ns) = state.drive.next_ns().filter(|next| state.timer_ns.is_none_or(|at| *next < at)) {
                state.timer_ns = Some(next_ns);
                let disk = self.clone();
                self.timer.at(next_ns, move || disk.advance());
            }
            done
        };
        for io in done {
            self.answer(io, now_ns);
        }
    }

    fn answer(self: &Arc<Self>, mut io: Io, now_ns: u64) {
        if io.op != Op::Read {
            return io.succeed();
        }
        let mut at = io.offset;
        {
            let state = self.lock();
            for buf in &mut io.bufs {
                state.contents.read(at, buf.as_mut(), &self.work.payload);
                at += buf.len() as u64;
            }
        }
        let verified_ns = self.work.charge(now_ns, self.work.device_ns(Op::Read, io.len, 0.0));
        self.timer.at(verified_ns, move || io.succeed());
    }
}

/// The disks of a modelled machine by their path.
#[derive(Default)]
pub struct ModelDisks(Mutex<BTreeMap<PathBuf, Arc<ModelDisk>>>);

impl ModelDisks {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Arc<ModelDisk>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a disk.
    pub fn add(&self, path: impl Into<PathBuf>, disk: Arc<ModelDisk>) {
        self.lock().insert(path.into(), disk);
    }

    /// The sum of all disks' counters, and the longest time that one of them was at work.
    pub fn counters(&self) -> (Counters, u64) {
        let each: Vec<Counters> = self.lock().values().map(|disk| disk.counters()).collect();
        let longest_ns = each.iter().map(|counters| counters.busy_ns).max().unwrap_or(0);
        let sum = each.iter().fold(Counters::default(), |sum, one| Counters {
            reads: sum.reads + one.reads,
            read_bytes: sum.read_bytes + one.read_bytes,
            writes: sum.writes + one.writes,
            written_bytes: sum.written_bytes + one.written_bytes,
            flushes: sum.flushes + one.flushes,
            busy_ns: sum.busy_ns + one.busy_ns,
        });
        (sum, longest_ns)
    }

    /// Number of disks.
    pub fn count(&self) -> usize {
        self.lock().len()
    }
}

struct Opened {
    disk: Arc<ModelDisk>,
    access: Access,
}

impl Disk for Opened {
    fn geometry(&self) -> Geometry {
        self.disk.geometry
    }

    fn submit(&self, io: Io) {
        self.disk.accept(io, self.access);
    }
}

impl Disks for ModelDisks {
    fn scan(&self, dir: &Path) -> Result<Vec<PathBuf>, DiskError> {
        Ok(self.lock().keys().filter(|path| path.parent() == Some(dir)).cloned().collect())
    }

    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn Disk>, DiskError> {
        let found = self.lock().get(path).cloned();
        let disk = found.ok_or_else(|| DiskError::Open { path: path.into(), errno: ENOENT })?;
        Ok(Arc::new(Opened { disk, access }))
    }
}

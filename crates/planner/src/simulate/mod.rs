//! A load on a modelled server, in virtual time: the engine, its cache and its file systems run unchanged on modelled disks.
//!
//! ```text
//!   client threads ─► link of the client ─► link of the server ─► processors ─► files or volume ─► ARC ─► vdevs ─► drives
//! ```
//!
//! Links, processors and drives take virtual time; the engine's own work takes none, and is charged to the processors by
//! [`Costs`](crate::hardware::processors::Costs) where bytes reach or leave a device or a client. The same seed gives the same
//! figures.

mod array;
pub mod outcome;
mod prepare;
pub mod replacement;
pub mod server;
pub mod workload;

use crate::hardware::contents::{PAYLOAD_BYTES, Payload};
use crate::hardware::disk::Counters;
use crate::hardware::link::{Link, LinkSpec, Way};
use array::Array;
use bytes::Bytes;
use futures_util::future::{join, join_all};
use outcome::{Outcome, Totals};
use prepare::{fill, fill_cache_device, make_target, open_target, overwrite, read_all};
use server::{Server, ServerSpec};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use thiserror::Error;
use weir_files::{Cred, FileError, FileSystem, WriteAt};
use weir_format::ObjectId;
use weir_machine::Source;
use weir_machine::{Clock, Request};
use weir_pool::PoolError;
use weir_sim::{Rng, SimError, Timer};
use weir_volumes::{Volume, VolumeError};
use workload::{Order, Workload};

/// Bytes of a message besides its data: RPC, NFS and compound headers.
const MESSAGE_BYTES: u64 = 160;
/// Points of the time series of a measurement.
const POINTS: u32 = 60;

/// Why a simulation has no result.
#[derive(Debug, Error)]
pub enum SimulationError {
    /// The pool.
    #[error("the modelled pool: {0}")]
    Pool(#[from] PoolError),
    /// A file.
    #[error("a file of the modelled pool: {0}")]
    File(#[from] FileError),
    /// The volume.
    #[error("the volume of the modelled pool: {0}")]
    Volume(#[from] VolumeError),
    /// A disk of an array.
    #[error("a disk of the modelled array: {0}")]
    Disk(#[from] weir_machine::DiskError),
    /// The world ended.
    #[error("the simulation ended: {0}")]
    World(#[from] SimError),
    /// The description cannot be simulated.
    #[error("{0}")]
    Refused(String),
}

/// Where the load's bytes go.
enum Target {
    Files(Arc<FileSystem>, Vec<ObjectId>),
    Volume(Arc<Volume>, u64),
    Array(Array, u64),
}

impl Target {
    async fn read(&self, rq: &Request, file: usize, offset: u64, len: usize) -> Result<usize, SimulationError> {
        Ok(match self {
            Target::Files(files, objects) => files.contents().read(rq, objects[file], offset, len).await?.len(),
            Target::Volume(volume, each) => volume.read(rq, file as u64 * each + offset, len).await?.len(),
            Target::Array(array, each) => array.read(file as u64 * each + offset, len).await?,
        })
    }

    async fn write(
        &self,
        rq: &Request,
        file: usize,
        offset: u64,
        data: Bytes,
        stable: bool,
    ) -> Result<(), SimulationError> {
        match self {
            Target::Files(files, objects) => {
                let root = Cred::root();
                files.contents().write(rq, &root, objects[file], WriteAt::Offset(offset), data).await?;
                if stable {
                    files.sync(rq, Some(objects[file])).await?;
                }
            }
            Target::Volume(volume, each) => volume.write(rq, file as u64 * each + offset, data, stable).await?,
            Target::Array(array, each) => array.write(file as u64 * each + offset, data).await?,
        }
        Ok(())
    }
}

/// State that the client threads share.
struct Shared {
    target: Target,
    workload: Workload,
    clock: Clock,
    timer: Timer,
    server: Arc<Server>,
    server_link: Option<Mutex<Link>>,
    client_links: Vec<Mutex<Link>>,
    payload: Bytes,
    totals: Mutex<Totals>,
    /// Virtual times between which operations count, and after which threads end.
    measured: (u64, u64),
    positions: Vec<AtomicU64>,
    /// Writes so far.
    written: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    async fn until(&self, when_ns: u64) {
        let now_ns = self.timer.now_ns();
        if when_ns > now_ns {
            self.clock.sleep(Duration::from_nanos(when_ns - now_ns)).await;
        }
    }

    /// Sends `bytes` over both links; both carry the message at the same time, so the slower one decides.
    async fn send(&self, client: usize, way: Way, bytes: u64) {
        let Some(server) = &self.server_link else { return };
        let now_ns = self.timer.now_ns();
        let own = lock(&self.client_links[client]).send(way, bytes, now_ns);
        let arrived = lock(server).send(way, bytes, now_ns).max(own);
        self.until(arrived).await;
    }

    async fn work(&self, work_ns: f64) {
        let done_ns = self.server.work.charge_client(self.timer.now_ns(), work_ns);
        self.until(done_ns).await;
    }

    fn place(&self, file: usize, rng: &mut Rng) -> u64 {
        let Workload { operation_bytes, file_bytes, order, .. } = self.workload;
        let slots = (file_bytes / operation_bytes).max(1);
        let slot = match order {
            Order::Sequential => self.positions[file].fetch_add(1, Ordering::Relaxed) % slots,
            Order::Random => rng.below(slots),
        };
        slot * operation_bytes
    }

    /// One of the outstanding operations of a thread, again and again until the end of the measurement.
    async fn run(&self, client: usize, file: usize, mut rng: Rng) -> Result<(), SimulationError> {
        let len = self.workload.operation_bytes;
        let costs = self.server.work.costs;
        let copy_ns = len as f64 / 1024.0 * costs.copy_ns_per_kib;
        let is_task = self.workload.outstanding() > 1 || self.server_link.is_some();
        let request_ns = costs.request_ns + if is_task { costs.task_ns } else { 0.0 };
        loop {
            let begun_ns = self.timer.now_ns();
            if begun_ns >= self.measured.1 {
                return Ok(());
            }
            let reads = rng.below(100) < self.workload.read_percent;
            let offset = self.place(file, &mut rng);
            let rq = Request::internal("load");
            if reads {
                self.send(client, Way::ToServer, MESSAGE_BYTES).await;
                self.work(request_ns).await;
                self.target.read(&rq, file, offset, len as usize).await?;
                self.work(copy_ns).await;
                self.send(client, Way::ToClient, MESSAGE_BYTES + len).await;
            } else {
                self.send(client, Way::ToServer, MESSAGE_BYTES + len).await;
                self.work(request_ns + costs.write_request_ns + copy_ns).await;
                let data = self.data(&mut rng);
                self.target.write(&rq, file, offset, data, self.workload.stable).await?;
                self.send(client, Way::ToClient, MESSAGE_BYTES).await;
            }
            let done_ns = self.timer.now_ns();
            if done_ns > self.measured.0 && done_ns <= self.measured.1 {
                lock(&self.totals).add(&rq, reads, len, done_ns - begun_ns);
            }
            if self.workload.client_us > 0.0 {
                self.until(done_ns + (self.workload.client_us * 1e3) as u64).await;
            }
        }
    }

    fn data(&self, rng: &mut Rng) -> Bytes {
        let len = self.workload.operation_bytes as usize;
        let from = rng.below(((self.payload.len() - len) / 4096) as u64 + 1) as usize * 4096;
        let number = self.written.fetch_add(1, Ordering::Relaxed);
        payload_slice(&self.payload, from..from + len, &self.server.spec, number)
    }
}

/// A slice of the payload. If the pool deduplicates, each record of it differs from all others by a number in its first bytes:
/// `number`, which the caller does not use twice.
fn payload_slice(payload: &Bytes, range: std::ops::Range<usize>, spec: &ServerSpec, number: u64) -> Bytes {
    let slice = payload.slice(range);
    if !spec.pool.dedup {
        return slice;
    }
    let mut own = slice.to_vec();
    for (at, record) in own.chunks_mut(spec.pool.record_bytes as usize).enumerate() {
        let stamp = (number << 16 | at as u64).to_le_bytes();
        let len = record.len().min(stamp.len());
        record[..len].copy_from_slice(&stamp[..len]);
    }
    own.into()
}

/// Counters of the hardware at an instant.
struct Instant {
    disks: Counters,
    longest_disk_ns: u64,
    log_ns: u64,
    cache_ns: u64,
    processors_ns: u64,
    wire_bytes: [u64; 2],
    wire_ns: [u64; 2],
    client_ns: u64,
}

impl Instant {
    fn take(shared: &Shared) -> Self {
        let (disks, longest_disk_ns) = shared.server.disks.counters();
        let link = shared.server_link.as_ref().map(|link| lock(link).clone());
        let client = |link: &Mutex<Link>| lock(link).busy_ns().into_iter().max().unwrap_or(0);
        Instant {
            disks,
            longest_disk_ns,
            log_ns: shared.server.log.as_ref().map_or(0, |log| log.counters().busy_ns),
            cache_ns: shared.server.cache.as_ref().map_or(0, |cache| cache.counters().busy_ns),
            processors_ns: lock(&shared.server.work.processors).busy_ns(),
            wire_bytes: link.as_ref().map_or([0; 2], Link::wire_bytes),
            wire_ns: link.as_ref().map_or([0; 2], Link::busy_ns),
            client_ns: shared.client_links.iter().map(client).max().unwrap_or(0),
        }
    }
}

/// Runs the load on a server made from `spec`; everything that is random follows from `seed`.
///
/// # Errors
/// [`SimulationError`]: a description that cannot be simulated, or an error of the engine.
pub fn simulate(seed: u64, spec: &ServerSpec, workload: &Workload) -> Result<Outcome, SimulationError> {
    check(spec, workload)?;
    let (server, rng) = new_server(seed, spec);
    let world = server.world.clone();
    let outcome = world.run(run(server, workload.clone(), rng));
    // Tasks of the engine hold the world, which holds them: they are dropped here.
    world.power_failure();
    outcome?
}

/// Like [`simulate`], on the same disks without ZFS: mirrored pairs, striped, behind the same links.
///
/// # Errors
/// Those of [`simulate`]; a layout that is not a mirror of two.
pub fn simulate_array(seed: u64, spec: &ServerSpec, workload: &Workload) -> Result<Outcome, SimulationError> {
    check(spec, workload)?;
    if spec.pool.layout != server::VdevLayout::Mirror(2) {
        return Err(SimulationError::Refused("an array without ZFS has mirrors of two disks".into()));
    }
    let (server, mut rng) = new_server(seed, spec);
    let each = workload.file_bytes.next_multiple_of(1 << 20);
    let target = Target::Array(Array::new(&server)?, each);
    let payload = server.work.payload.bytes().clone();
    let world = server.world.clone();
    let outcome = world.run(measure(server, target, workload.clone(), payload, rng.fork()));
    world.power_failure();
    outcome?
}

fn new_server(seed: u64, spec: &ServerSpec) -> (Arc<Server>, Rng) {
    let mut rng = Rng::new(seed);
    let payload = Payload::random(&mut rng);
    (Arc::new(Server::new(seed, spec.clone(), payload)), rng)
}

fn check(spec: &ServerSpec, workload: &Workload) -> Result<(), SimulationError> {
    let refused = |why: &str| Err(SimulationError::Refused(why.to_owned()));
    if workload.outstanding() == 0 {
        return refused("a load needs at least one client, thread and operation at a time");
    }
    if workload.operation_bytes == 0 || workload.operation_bytes as usize > PAYLOAD_BYTES {
        return refused("an operation has between 1 byte and 16 MiB");
    }
    if workload.file_bytes < workload.operation_bytes {
        return refused("a file is smaller than an operation");
    }
    let pool = &spec.pool;
    let capacity = pool.drive_bytes * (pool.layout.data_disks() * pool.vdevs) as u64;
    if workload.working_set_bytes() > capacity / 10 * 8 {
        return refused("the files need more than 80 % of the pool");
    }
    if !pool.record_bytes.is_power_of_two() || !(512..=16 << 20).contains(&pool.record_bytes) {
        return refused("the record size is a power of two from 512 to 16 MiB");
    }
    Ok(())
}

async fn run(server: Arc<Server>, workload: Workload, mut rng: Rng) -> Result<Outcome, SimulationError> {
    let payload = server.work.payload.bytes().clone();
    let mut engine = server.create_pool().await?;
    let rq = Request::internal("prepare");
    let mut target = make_target(&engine, &rq, &server.spec, &workload).await?;
    if workload.reads_records(server.spec.pool.record_bytes) {
        fill(&target, &workload, &server.spec, &payload).await?;
        if workload.overwrites > 0.0 {
            engine.sync().await?;
            overwrite(&target, &workload, &server.spec, &payload, rng.fork()).await?;
        }
        drop(target);
        engine.sync().await?;
        engine = server.reopen(engine).await?;
        target = open_target(&engine, &rq, &workload).await?;
        if workload.warm {
            if server.spec.pool.cache.is_some() {
                fill_cache_device(&server, &engine, &target, &workload).await?;
            }
            read_all(&target, &workload, server.spec.pool.record_bytes).await?;
        }
    }
    let outcome = measure(server, target, workload, payload, rng).await?;
    drop(engine);
    Ok(outcome)
}

async fn measure(
    server: Arc<Server>,
    target: Target,
    workload: Workload,
    payload: Bytes,
    mut rng: Rng,
) -> Result<Outcome, SimulationError> {
    let timer = server.world.timer();
    let begin_ns = timer.now_ns() + (workload.ramp_seconds * 1e9) as u64;
    let measured = (begin_ns, begin_ns + (workload.seconds * 1e9) as u64);
    let link = server.spec.link;
    let client_link = |link: LinkSpec| LinkSpec { gbit: workload.client_gbit.unwrap_or(link.gbit), ..link };
    let clients = workload.clients;
    let files = clients * workload.threads;
    let shared = Shared {
        target,
        clock: server.machine.clock.clone(),
        timer: timer.clone(),
        // The latency is that of the whole way, and losses are those of the client's link.
        server_link: link.map(|link| Mutex::new(Link::new(LinkSpec { loss: 0.0, ..link }))),
        client_links: link
            .map_or(Vec::new(), |link| (0..clients).map(|_| Mutex::new(Link::new(client_link(link)))).collect()),
        server,
        payload,
        totals: Mutex::default(),
        measured,
        positions: (0..files).map(|_| AtomicU64::new(0)).collect(),
        written: AtomicU64::new(0),
        workload,
    };
    let mut threads = Vec::new();
    for file in 0..files {
        for _ in 0..shared.workload.depth {
            threads.push(shared.run(file / shared.workload.threads, file, rng.fork()));
        }
    }
    let watch = async {
        shared.until(measured.0).await;
        let before = Instant::take(&shared);
        let mut points = Vec::new();
        for point in 1..=POINTS {
            shared.until(measured.0 + (measured.1 - measured.0) * u64::from(point) / u64::from(POINTS)).await;
            points.push(lock(&shared.totals).bytes());
        }
        (before, Instant::take(&shared), points)
    };
    let (results, (before, after, points)) = join(join_all(threads), watch).await;
    results.into_iter().collect::<Result<Vec<()>, _>>()?;
    let seconds = shared.workload.seconds;
    let totals = std::mem::take(&mut *lock(&shared.totals));
    let ns = seconds * 1e9;
    let share = |before: u64, after: u64| (after - before) as f64 / ns;
    let processors = shared.server.spec.processors.max(1) as f64;
    let others = usize::from(shared.server.log.is_some()) + usize::from(shared.server.cache.is_some());
    let disks = (shared.server.disks.count() - others) as f64;
    let log_share = share(before.log_ns, after.log_ns);
    let cache_share = share(before.cache_ns, after.cache_ns);
    let busy = outcome::Busy {
        disks: (share(before.disks.busy_ns, after.disks.busy_ns) - log_share - cache_share) / disks,
        busiest_disk: share(before.longest_disk_ns, after.longest_disk_ns),
        log: log_share,
        cache: cache_share,
        processors: share(before.processors_ns, after.processors_ns) / processors,
        link_to_server: share(before.wire_ns[0], after.wire_ns[0]),
        link_to_clients: share(before.wire_ns[1], after.wire_ns[1]),
        client_link: share(before.client_ns, after.client_ns),
    };
    let device = outcome::Traffic {
        disk_read_bytes: after.disks.read_bytes - before.disks.read_bytes,
        disk_written_bytes: after.disks.written_bytes - before.disks.written_bytes,
        disk_reads: after.disks.reads - before.disks.reads,
        disk_writes: after.disks.writes - before.disks.writes,
        flushes: after.disks.flushes - before.disks.flushes,
        wire_bytes: std::array::from_fn(|way| after.wire_bytes[way] - before.wire_bytes[way]),
    };
    Ok(Outcome::new(seconds, totals, busy, device, &points))
}

impl Totals {
    fn add(&mut self, rq: &Request, reads: bool, len: u64, ns: u64) {
        self.latencies_ns.push(ns);
        if reads {
            self.reads += 1;
            self.read_bytes += len;
            for source in Source::ALL {
                *self.by_source.entry(source.name()).or_default() += rq.answered_bytes(source);
            }
        } else {
            self.writes += 1;
            self.written_bytes += len;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::server::{PoolSpec, VdevLayout};
    use super::*;
    use crate::hardware::drive::DriveSpec;

    fn server() -> ServerSpec {
        let pool = PoolSpec::new(DriveSpec::named("nvme").unwrap(), VdevLayout::Mirror(2), 1);
        ServerSpec {
            arc_bytes: 32 << 20,
            dirty_bytes: 32 << 20,
            link: Some(LinkSpec::new(1.0)),
            ..ServerSpec::new(pool)
        }
    }

    fn short(workload: Workload) -> Workload {
        Workload { file_bytes: 16 << 20, ramp_seconds: 0.05, seconds: 0.2, ..workload }
    }

    #[test]
    fn a_link_of_1_gbit_limits_an_nvme_mirror() {
        let read = simulate(3, &server(), &Workload { depth: 8, ..short(Workload::sequential_read()) }).unwrap();
        assert_eq!(read.limit, outcome::Limit::ServerLink, "{read:?}");
        assert!((110.0..118.0).contains(&read.read_mb_s), "{read:?}");
        let answered: u64 = read.bytes_by_source.values().sum();
        assert!((answered as f64 - read.read_mb_s * 1e6 * read.seconds).abs() < 1.0, "{answered} {read:?}");
    }

    #[test]
    fn the_same_seed_gives_the_same_figures_and_volumes_take_loads_too() {
        let load =
            Workload { volume: true, order: Order::Random, read_percent: 50, ..short(Workload::sequential_read()) };
        let first = simulate(5, &server(), &load).unwrap();
        assert!(first.read_mb_s > 0.0 && first.write_mb_s > 0.0, "{first:?}");
        assert_eq!(first, simulate(5, &server(), &load).unwrap());
    }

    #[test]
    fn overwrites_scatter_a_file_so_that_a_disk_reads_it_slowly() {
        let pool = PoolSpec::new(DriveSpec::named("hdd-7k").unwrap(), VdevLayout::Single, 1);
        let spec = ServerSpec { arc_bytes: 8 << 20, dirty_bytes: 32 << 20, ..ServerSpec::new(pool) };
        let read = |overwrites| {
            let load = Workload { overwrites, depth: 4, ..short(Workload::sequential_read()) };
            simulate(1, &spec, &Workload { file_bytes: 32 << 20, ..load }).unwrap().read_mb_s
        };
        let whole = read(0.0);
        let scattered = read(1.0);
        assert!(scattered < 0.7 * whole, "{scattered:.0} of {whole:.0} MB/s");
    }

    #[test]
    fn descriptions_that_cannot_be_simulated_are_refused() {
        let refused = |change: fn(&mut ServerSpec, &mut Workload)| {
            let (mut server, mut load) = (server(), short(Workload::sequential_read()));
            change(&mut server, &mut load);
            matches!(simulate(1, &server, &load), Err(SimulationError::Refused(_)))
        };
        assert!(refused(|_, load| load.clients = 0));
        assert!(refused(|_, load| load.operation_bytes = 0));
        assert!(refused(|_, load| load.file_bytes = 1));
        assert!(refused(|server, _| server.pool.drive_bytes = 1 << 20));
        assert!(refused(|server, _| server.pool.record_bytes = 3000));
        assert!(!refused(|_, _| {}));
    }
}

//! Costs of requests, device operations and records on this machine's processors, measured by reads and writes of a small pool in a
//! temporary file.
//!
//! ```text
//!   records of 4 KiB and of 128 KiB, each: hit alone, hit among 16 ─► sequential and random reads from the device ─► writes ─► sync
//! ```
//!
//! Each figure is processor time of the whole process for one operation. The difference of the two record sizes is what a KiB costs.
#![allow(clippy::disallowed_methods, reason = "measures real time")]

use crate::failure::Failure;
use crate::stores::serving_machine;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::{FileSystemSpec, Kind, NewDataset};
use weir_engine::{CreateOptions, Engine, ImportOptions, Layout, NewLeaf, NewTopLevelVdev};
use weir_files::{Cred, FileError, FileSystem, New, NewKind, WriteAt};
use weir_format::ObjectId;
use weir_machine::{Machine, Request};
use weir_pool::OpenOptions;
use weir_pool::config::Class;

const POOL: &str = "calibrate";
const FILE: &[u8] = b"data";
const DEVICE_BYTES: u64 = 2 << 30;
const FILE_BYTES: u64 = 256 << 20;
const WRITE_BYTES: usize = 1 << 20;
/// `recordsize` of the datasets, and bytes of a read or write: each is an operation of the device if the ARC does not have it.
const RECORD_BYTES: [u64; 2] = [4096, 128 << 10];
/// Part of the file that is read from the ARC.
const CACHED_BYTES: u64 = 4 << 20;
/// Smaller than the file, so that the ARC answers few random reads; larger than the distance that prefetch reads ahead.
const ARC_BYTES: u64 = 96 << 20;
/// Operations at a time of those that are tasks.
const DEPTH: usize = 16;
/// Rounds; the cheapest counts, because other work on the machine only adds time.
const ROUNDS: usize = 5;

/// Costs in nanoseconds of one processor. Those of a KiB include all its checksums and copies.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineCosts {
    /// A read that the ARC answers, without a network protocol.
    pub request_ns: f64,
    /// A KiB of such a read.
    pub cached_ns_per_kib: f64,
    /// Further cost of a request among others, which is a task of its own.
    pub task_ns: f64,
    /// Further cost of a read of one record from the device in sequential order: one operation of the device reads many.
    pub read_record_ns: f64,
    /// A KiB of such a record.
    pub read_ns_per_kib: f64,
    /// Further cost of a record that an operation of the device reads by itself.
    pub device_operation_ns: f64,
    /// Further cost of a request that writes, until its data are dirty.
    pub write_request_ns: f64,
    /// A record that a txg writes.
    pub written_record_ns: f64,
    /// A KiB that is written, up to the device.
    pub write_ns_per_kib: f64,
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("weir plan calibrate: {error}"))
}

/// Measures in five rounds: each kind of read for at least `round`, and overwrites of a quarter of the file.
///
/// # Errors
/// If no pool can be made in a temporary file.
pub fn measure(round: Duration) -> Result<EngineCosts, Failure> {
    let folder = tempfile::tempdir().map_err(failed)?;
    let path = folder.path().join("device");
    let device = std::fs::File::create(&path).and_then(|file| file.set_len(DEVICE_BYTES));
    device.map_err(|error| failed(format!("{}: {error}", path.display())))?;
    let (machine, _disks) = serving_machine()?;
    machine.block_on(async {
        let engine = filled(&machine, &path).await?;
        engine.export().await.map_err(failed)?;
        drop(engine);
        let mut open = OpenOptions::new(vec![folder.path().to_owned()], POOL);
        open.arc_bytes = ARC_BYTES;
        let engine = Engine::import(&machine, &ImportOptions::new(open)).await.map_err(failed)?;
        let mut of_sizes = Vec::new();
        for record_bytes in RECORD_BYTES {
            of_sizes.push(File::open(&engine, record_bytes).await?.operations(round).await?);
        }
        engine.export().await.map_err(failed)?;
        Ok(costs(&of_sizes))
    })
}

fn dataset(record_bytes: u64) -> String {
    format!("{POOL}/r{record_bytes}")
}

/// A pool with a dataset for each record size, each with a file, on a device that is a file.
async fn filled(machine: &Machine, path: &Path) -> Result<Arc<Engine>, Failure> {
    let leaf = NewLeaf { path: path.to_owned(), is_file: true };
    let top = NewTopLevelVdev { class: Class::Normal, layout: Layout::Single, leaves: vec![leaf] };
    let mut options = CreateOptions::new(POOL, vec![top]);
    // zio_compress: off is 2.
    options.root_properties =
        vec![("compression".to_owned(), Value::Number(2)), ("atime".to_owned(), Value::Number(0))];
    let engine = Engine::create(machine, &options).await.map_err(failed)?;
    let rq = &Request::internal("calibrate");
    let data = Bytes::from(super::calibrate::noise(WRITE_BYTES));
    for record_bytes in RECORD_BYTES {
        let name = dataset(record_bytes);
        let properties = vec![("recordsize".to_owned(), Value::Number(record_bytes))];
        let new = NewDataset { name: name.clone(), kind: Kind::FileSystem(FileSystemSpec::default()), properties };
        engine.create_dataset(new).await.map_err(failed)?;
        let files = engine.file_system(rq, &name).await.map_err(failed)?;
        let new = New::of(NewKind::Regular, 0o600);
        let made = files.names().create(rq, &Cred::root(), files.root(), FILE, &new).await.map_err(failed)?;
        for offset in (0..FILE_BYTES).step_by(WRITE_BYTES) {
            let at = WriteAt::Offset(offset);
            files.contents().write(rq, &Cred::root(), made.object, at, data.clone()).await.map_err(failed)?;
        }
    }
    engine.sync().await.map_err(failed)?;
    Ok(engine)
}

/// Processor time of one operation of each kind, in nanoseconds, with one record size.
#[derive(Clone, Copy, Debug)]
struct Operations {
    /// A read that the ARC answers, alone.
    cached: f64,
    /// Such a read among others.
    cached_task: f64,
    /// A read of records one after the other.
    sequential: f64,
    /// A read of a record that only the device has, among others.
    uncached_task: f64,
    /// A write, until its data are dirty.
    write: f64,
    /// A written record, in the sync of its txg.
    synced: f64,
}

/// The costs that follow from the operations with the small record size and with the large one.
fn costs(of_sizes: &[Operations]) -> EngineCosts {
    let [small, large] = of_sizes else { return EngineCosts::default() };
    let kib = RECORD_BYTES.map(|bytes| bytes as f64 / 1024.0);
    // Cost without bytes, and of a KiB.
    let parted = |of: fn(&Operations) -> f64| {
        let each = ((of(large) - of(small)) / (kib[1] - kib[0])).max(0.0);
        ((of(small) - each * kib[0]).max(0.0), each)
    };
    let (request_ns, cached_ns_per_kib) = parted(|one| one.cached);
    let (read_record_ns, read_ns_per_kib) = parted(|one| one.sequential - one.cached);
    let (write_ns, write_kib) = parted(|one| one.write);
    let (written_record_ns, synced_kib) = parted(|one| one.synced);
    EngineCosts {
        request_ns,
        cached_ns_per_kib,
        task_ns: (small.cached_task - small.cached).max(0.0),
        read_record_ns,
        read_ns_per_kib,
        device_operation_ns: (small.uncached_task - small.cached_task - (small.sequential - small.cached)).max(0.0),
        write_request_ns: (write_ns - request_ns).max(0.0),
        written_record_ns,
        write_ns_per_kib: write_kib + synced_kib,
    }
}

/// A file of the pool with one record size.
struct File {
    engine: Arc<Engine>,
    files: Arc<FileSystem>,
    object: ObjectId,
    record_bytes: u64,
}

impl File {
    async fn open(engine: &Arc<Engine>, record_bytes: u64) -> Result<Self, Failure> {
        let rq = &Request::internal("calibrate");
        let files = engine.file_system(rq, &dataset(record_bytes)).await.map_err(failed)?;
        let object = files.directories().lookup(rq, files.root(), FILE).await.map_err(failed)?;
        Ok(File { engine: engine.clone(), files, object, record_bytes })
    }

    async fn operations(&self, round: Duration) -> Result<Operations, Failure> {
        // Into the ARC, and its lists for blocks that are read more than once.
        for _ in 0..2 {
            for offset in (0..CACHED_BYTES).step_by(self.record_bytes as usize) {
                self.read(offset).await.map_err(failed)?;
            }
        }
        let cached = self.cheapest(round, 1, Order::Random(CACHED_BYTES)).await?;
        let cached_task = self.cheapest(round, DEPTH, Order::Random(CACHED_BYTES)).await?;
        let some_cached = self.cheapest(round, DEPTH, Order::Random(FILE_BYTES)).await?;
        // Of reads anywhere in the file, the ARC answers a part.
        let missed = 1.0 - ARC_BYTES as f64 / FILE_BYTES as f64;
        let sequential = self.cheapest(round, 1, Order::Sequential).await?;
        let (write, synced) = self.overwritten().await?;
        let uncached_task = cached_task + (some_cached - cached_task) / missed;
        Ok(Operations { cached, cached_task, sequential, uncached_task, write, synced })
    }

    fn read(&self, offset: u64) -> impl Future<Output = Result<usize, FileError>> + Send + 'static {
        let (files, object, len) = (self.files.clone(), self.object, self.record_bytes as usize);
        async move {
            let rq = &Request::internal("calibrate");
            Ok(files.contents().read(rq, object, offset, len).await?.len())
        }
    }

    /// Processor time of a read of a record, `depth` of them at a time, in nanoseconds; the cheapest round.
    async fn cheapest(&self, round: Duration, depth: usize, order: Order) -> Result<f64, Failure> {
        let tasks = &self.engine.machine.tasks;
        let mut best = f64::INFINITY;
        let mut places = Places { order, record_bytes: self.record_bytes, last: 0 };
        for _ in 0..ROUNDS {
            let begun = Instant::now();
            let cpu_begun = processor_ns();
            let mut in_progress = FuturesUnordered::new();
            let mut reads = 0u32;
            loop {
                let goes_on = begun.elapsed() < round;
                if goes_on && depth == 1 {
                    self.read(places.next()).await.map_err(failed)?;
                    reads += 1;
                    continue;
                }
                while goes_on && in_progress.len() < depth {
                    in_progress.push(tasks.spawn(self.read(places.next())));
                }
                let Some(done) = in_progress.next().await else { break };
                done.map_err(failed)?.map_err(failed)?;
                reads += 1;
            }
            best = best.min((processor_ns() - cpu_begun) / f64::from(reads.max(1)));
        }
        Ok(best)
    }

    /// Processor time of a write of a record until its data are dirty, and of its part of the sync, in nanoseconds. The records are
    /// random, and none is written twice in a round.
    async fn overwritten(&self) -> Result<(f64, f64), Failure> {
        let records = FILE_BYTES / self.record_bytes;
        let writes = records / 4;
        let rq = &Request::internal("calibrate");
        let data = super::calibrate::noise(self.record_bytes as usize);
        let mut best = (f64::INFINITY, f64::INFINITY);
        let mut record = 0;
        for _ in 0..ROUNDS {
            let begun = processor_ns();
            for _ in 0..writes {
                // A linear congruential generator whose period is the number of records, a power of two.
                record = (record * 1021 + 4099) % records;
                let at = WriteAt::Offset(record * self.record_bytes);
                // A client's data are copied once.
                let own = Bytes::copy_from_slice(&data);
                self.files.contents().write(rq, &Cred::root(), self.object, at, own).await.map_err(failed)?;
            }
            let written = processor_ns();
            self.engine.sync().await.map_err(failed)?;
            let of = |ns: f64| ns / writes as f64;
            best = (best.0.min(of(written - begun)), best.1.min(of(processor_ns() - written)));
        }
        Ok(best)
    }
}

/// Order of the reads.
#[derive(Clone, Copy)]
enum Order {
    /// One record after the other, from the beginning again at the end.
    Sequential,
    /// At random in this number of bytes from the beginning on.
    Random(u64),
}

/// Places of reads in a file.
struct Places {
    order: Order,
    record_bytes: u64,
    last: u64,
}

impl Places {
    fn next(&mut self) -> u64 {
        match self.order {
            Order::Sequential => {
                self.last = (self.last + self.record_bytes) % FILE_BYTES;
                self.last
            }
            Order::Random(bytes) => {
                // A linear congruential generator; its upper bits are the random ones.
                self.last = self.last.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (self.last >> 33) % (bytes / self.record_bytes) * self.record_bytes
            }
        }
    }
}

/// Processor time of this process so far, of all its threads, in nanoseconds.
fn processor_ns() -> f64 {
    weir_lab::clock::cpu_seconds().unwrap_or_default() * 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_parted_by_the_sizes_of_the_records() {
        let of = |bytes_ns: f64| Operations {
            cached: 5000.0 + bytes_ns,
            cached_task: 12_000.0 + bytes_ns,
            sequential: 20_000.0 + 3.0 * bytes_ns,
            uncached_task: 35_000.0 + 3.0 * bytes_ns,
            write: 9000.0 + 2.0 * bytes_ns,
            synced: 30_000.0 + 4.0 * bytes_ns,
        };
        let costs = costs(&[of(40.0), of(1280.0)]);
        let expected = EngineCosts {
            request_ns: 5000.0,
            cached_ns_per_kib: 10.0,
            task_ns: 7000.0,
            read_record_ns: 15_000.0,
            read_ns_per_kib: 20.0,
            device_operation_ns: 8000.0,
            write_request_ns: 4000.0,
            written_record_ns: 30_000.0,
            write_ns_per_kib: 60.0,
        };
        assert_eq!(costs, expected);
    }
}

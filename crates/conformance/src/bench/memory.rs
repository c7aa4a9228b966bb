//! Benchmark of memory by the size of the pool: import, allocation, and a walk that compares the space maps, on simulated
//! disks of up to 32 TiB.
//!
//! ```text
//!   prepare  a pool on sparse disks ─► space maps with 10⁵, 10⁶, 10⁷ free segments · a file with a million block pointers
//!   write    import ─► write 64 MiB in 8 txgs ─► export           ┐ each is a process of its own, whose peak resident memory
//!   walk     open ─► every block pointer, the space maps          ┘ is printed
//! ```
//!
//! The allocated segments between the free ones are claimed without block pointers: a walk finds them as leaks. The file's
//! blocks are so small that they are embedded in their pointers: it is metadata only.
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use weir_blocks::{BlockError, SpaceFault};
use weir_dmu::live::{NewObject, SpaceReserve};
use weir_dsl::sync_tasks::{FileSystemSpec, Kind, NewDataset};
use weir_engine::{CreateOptions, Engine, ImportOptions, Layout, NewLeaf, NewTopLevelVdev, TxgSync};
use weir_format::{BlockPointer, Dva, ObjectType};
use weir_machine::{Machine, Request};
use weir_pool::config::Class;
use weir_pool::error::PoolError;
use weir_pool::verify::verify_pool;
use weir_pool::{OpenOptions, Pool};

use super::sparse_disks::SparseDisks;
use super::{SELF, folder, measuring, peak_bytes};
use crate::JudgeError;
use crate::report::{Report, line};

const POOL: &str = "b-memory";
/// Cache limit of the measured processes, small enough that other memory shows.
const ARC_BYTES: u64 = 64 << 20;
/// Limit of loaded metaslabs that follows from it.
const LOADED_BYTES: u64 = ARC_BYTES / 4;
/// Pools: disks, size of each in TiB.
const POOLS: [(usize, u64); 3] = [(1, 1), (1, 32), (32, 32)];
/// Numbers of free segments.
const SEGMENTS: [u64; 3] = [100_000, 1_000_000, 10_000_000];
/// Segments that are claimed in one txg while a pool is prepared.
const CLAIMED_PER_TXG: u64 = 200_000;
/// Block pointers of the file (a shape may name fewer), and the size of its blocks in bytes.
const POINTERS: u64 = 1 << 20;
const BLOCK_BYTES: usize = 512;
/// Blocks that are written in one transaction.
const BLOCKS_PER_TX: u64 = 1024;
/// Bytes that are written, and the number of txgs.
const WRITTEN_BYTES: u64 = 64 << 20;
const WRITTEN_TXGS: u64 = 8;
/// Size of written blocks in bytes.
const RECORD_BYTES: u64 = 128 << 10;
/// Datasets that are opened to measure what an open one takes.
const DATASETS: usize = 500;
/// Maximum peak memory of the process that walks, and of the one that imports and writes, in bytes. The ARC and the dirty
/// data are a part of it, and of the second the metaslabs in use, whose number of segments the pool decides.
const WALK_LIMIT_BYTES: u64 = 512 << 20;
const WRITE_LIMIT_BYTES: u64 = 512 << 20;

/// Runs the benchmark; its pools are made in the folder of benchmarks and removed. `--most N` leaves out pools with more free
/// segments.
///
/// # Errors
/// If a measuring process fails, or the folder cannot be written.
pub fn run(arguments: &[String], report: &mut Report) -> Result<(), JudgeError> {
    let most: u64 = match arguments {
        [flag, most] if flag == "--most" => most.parse().map_err(|_| failed(format!("{most} is no number")))?,
        _ => u64::MAX,
    };
    for (disks, tib) in POOLS {
        for segments in SEGMENTS.into_iter().filter(|segments| *segments <= most) {
            let home = folder().join(POOL);
            let io = |source| JudgeError::Io { what: home.display().to_string(), source };
            if home.exists() {
                std::fs::remove_dir_all(&home).map_err(io)?;
            }
            std::fs::create_dir_all(&home).map_err(io)?;
            let place = home.display().to_string();
            let shape = format!("{disks},{tib},{segments},{POINTERS}");
            for step in ["prepare", "write", "walk", "datasets"] {
                // Datasets take the same on all pools.
                if step == "datasets" && (disks > 1 || segments > SEGMENTS[0]) {
                    continue;
                }
                let text = measuring(&["memory-bench-child", step, &shape, &place])?;
                for result in text.lines() {
                    report.pass(&format!("{disks} x {tib} TiB, {segments} free segments, {step}"), result);
                }
            }
            std::fs::remove_dir_all(&home).map_err(io)?;
        }
    }
    Ok(())
}

fn failed(why: String) -> JudgeError {
    JudgeError::Process { command: "memory-bench".to_string(), why }
}

/// Measuring process. The shape is the number of disks, their size in TiB, the number of free segments, and that of block
/// pointers, with commas between them.
pub fn main(step: &str, shape: &str, home: &str) -> ExitCode {
    let numbers: Vec<u64> = shape.split(',').filter_map(|number| number.parse().ok()).collect();
    let [disks, tib, segments, pointers] = numbers[..] else { return ExitCode::FAILURE };
    let bench = match Bench::new(Path::new(home), (disks as usize, tib), segments, pointers) {
        Ok(bench) => bench,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let machine = bench.machine.clone();
    let done = machine.block_on(async {
        match step {
            "prepare" => bench.prepare().await,
            "write" => bench.write().await,
            "walk" => bench.walk().await,
            _ => bench.datasets().await,
        }
    });
    match done {
        Ok(text) => {
            line(&text);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{step}: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Bench {
    machine: Machine,
    home: PathBuf,
    disks: Arc<SparseDisks>,
    count: usize,
    segments: u64,
    pointers: u64,
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

/// Returns the result of a step, or an error if the peak memory of this process exceeds its limit.
fn within(limit_bytes: u64, text: String) -> Result<String, PoolError> {
    let peak = peak_bytes(SELF);
    if peak == 0 || peak > limit_bytes {
        let what = format!("a peak of {} exceeds the limit of {}: {text}", mib(peak), mib(limit_bytes));
        return Err(PoolError::Refused { what });
    }
    Ok(text)
}

/// Present resident memory of this process (`proc(5)`).
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|text| text.trim().trim_end_matches(" kB").parse::<u64>().ok()).map_or(0, |kib| kib << 10)
}

impl Bench {
    fn new(home: &Path, (count, tib): (usize, u64), segments: u64, pointers: u64) -> Result<Self, JudgeError> {
        let disks = Arc::new(SparseDisks::new(home, tib << 40));
        let mut machine = weir_linux::machine().map_err(|error| failed(error.to_string()))?;
        machine.disks = disks.clone();
        Ok(Bench { machine, home: home.to_owned(), disks, count, segments, pointers })
    }

    fn opening(&self) -> OpenOptions {
        let mut open = OpenOptions::new(vec![self.home.clone()], POOL);
        open.arc_bytes = ARC_BYTES;
        open
    }

    async fn import(&self) -> Result<Arc<Engine>, PoolError> {
        let engine = Engine::import(&self.machine, &ImportOptions::new(self.opening())).await?;
        // The limit of a release build, also in a debug build.
        engine.cache.blocks().metaslabs().limit_loaded(LOADED_BYTES);
        Ok(engine)
    }

    /// Makes the pool.
    async fn prepare(&self) -> Result<String, PoolError> {
        let begun = Instant::now();
        let mut tops = Vec::new();
        for number in 0..self.count {
            self.disks.create(number).map_err(|error| refused(&error))?;
            let leaves = vec![NewLeaf { path: self.disks.path(number), is_file: true }];
            tops.push(NewTopLevelVdev { class: Class::Normal, layout: Layout::Single, leaves });
        }
        let mut options = CreateOptions::new(POOL, tops);
        options.arc_bytes = 1 << 30;
        options.force = true;
        let engine = Engine::create(&self.machine, &options).await?;
        engine.cache.blocks().metaslabs().limit_loaded(u64::MAX);
        let made = write_pointers(&engine, self.pointers).await.and(self.fragment(&engine).await);
        let loads = engine.cache.blocks().metaslabs().stats();
        engine.export().await?;
        made?;
        let seconds = begun.elapsed().as_secs();
        Ok(format!("{} metaslabs, {} free segments, {seconds} s", loads.metaslabs, loads.segments))
    }

    /// Divides the free space: claims a sector in the middle of each of many equal parts.
    async fn fragment(&self, engine: &Arc<Engine>) -> Result<(), PoolError> {
        let size = engine.cache.blocks().vdev_space(0).size_bytes;
        let parts = self.segments / self.count as u64;
        let part = size / parts / 4096 * 4096;
        let all =
            (0..self.count as u32).flat_map(|vdev| (0..parts).map(move |n| (vdev, n * part + part / 8192 * 4096)));
        let mut batch = Vec::new();
        for (vdev, offset_bytes) in all {
            batch.push(Dva { vdev, offset_bytes, asize_bytes: 4096, gang: false, grid: 0 });
            if batch.len() as u64 >= CLAIMED_PER_TXG {
                claim(engine, std::mem::take(&mut batch)).await?;
            }
        }
        claim(engine, batch).await
    }

    /// Imports the pool and writes to it.
    async fn write(&self) -> Result<String, PoolError> {
        let begun = Instant::now();
        let engine = self.import().await?;
        let imported = format!("import: peak {}, {:.1} s", mib(peak_bytes(SELF)), begun.elapsed().as_secs_f64());
        let before = engine.cache.blocks().metaslabs().stats();
        let rq = &Request::internal("bench");
        let set = engine.open_set(rq, POOL, None).await?;
        for _ in 0..WRITTEN_TXGS {
            let bytes = WRITTEN_BYTES / WRITTEN_TXGS;
            let tx = set.begin(rq, bytes, SpaceReserve::Normal).await?;
            let new = NewObject::new(ObjectType::PLAIN_FILE_CONTENTS, RECORD_BYTES as u32);
            let id = set.changes().create(rq, &tx, &new).await?;
            let mut record = vec![0; RECORD_BYTES as usize];
            for block in 0..bytes / RECORD_BYTES {
                self.machine.entropy.fill(&mut record);
                set.writes().write(rq, &tx, id, block * RECORD_BYTES, &record).await?;
            }
            drop(tx);
            engine.sync().await?;
        }
        let after = engine.cache.blocks().metaslabs().stats();
        let loads = after.loads - before.loads;
        let text = format!(
            "{imported}; {} written in {WRITTEN_TXGS} txgs: peak {}, {loads} metaslabs loaded ({} before), {} of {} in \
             memory with {} segments, {}",
            mib(WRITTEN_BYTES),
            mib(peak_bytes(SELF)),
            before.loads,
            after.loaded,
            after.metaslabs,
            after.segments,
            mib(after.bytes),
        );
        engine.export().await?;
        within(WRITE_LIMIT_BYTES, text)
    }

    /// Walks the pool and compares the space maps.
    async fn walk(&self) -> Result<String, PoolError> {
        let begun = Instant::now();
        let pool = Pool::open(&self.machine, &self.opening()).await?;
        let rq = &Request::internal("bench");
        let report = verify_pool(&pool, rq).await?;
        let space = report.space.as_ref();
        let peak = peak_bytes(SELF);
        let pointers: u64 = report.counts.embedded.iter().sum();
        let whole = report.clash_count == 0 && report.unreadable_count == 0 && pointers >= self.pointers;
        let text = format!(
            "{pointers} embedded pointers and {} blocks in {} passes, {} claimed segments found, peak {}, {:.1} s",
            report.counts.total().count,
            space.map_or(0, |space| space.passes),
            space.map_or(0, |space| space.leak_count),
            mib(peak),
            begun.elapsed().as_secs_f64(),
        );
        if !whole {
            return Err(PoolError::Refused { what: format!("the walk is not whole: {text}") });
        }
        within(WALK_LIMIT_BYTES, text)
    }

    /// Opens many file systems.
    async fn datasets(&self) -> Result<String, PoolError> {
        let engine = self.import().await?;
        for n in 0..DATASETS {
            let kind = Kind::FileSystem(FileSystemSpec::default());
            engine.create_dataset(NewDataset { name: format!("{POOL}/d{n}"), kind, properties: Vec::new() }).await?;
        }
        engine.export().await?;
        let engine = self.import().await?;
        let rq = &Request::internal("bench");
        // What all have in common is in memory before.
        let first = engine.file_system(rq, &format!("{POOL}/d0")).await?;
        engine.sync().await?;
        let before = resident_bytes();
        let mut open = vec![first];
        for n in 1..DATASETS {
            open.push(engine.file_system(rq, &format!("{POOL}/d{n}")).await?);
        }
        let each = resident_bytes().saturating_sub(before) / (DATASETS as u64 - 1);
        drop(open);
        engine.export().await?;
        Ok(format!("an open file system takes {} KiB, with its blocks in the ARC", each >> 10))
    }
}

fn refused(error: &dyn std::fmt::Display) -> PoolError {
    PoolError::Refused { what: error.to_string() }
}

/// Allocates exactly these segments, in one txg.
async fn claim(engine: &Arc<Engine>, segments: Vec<Dva>) -> Result<(), PoolError> {
    engine
        .sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                let blocks = syncing.engine.cache.blocks().clone();
                for dva in segments {
                    let mut words = [0; 16];
                    words[..2].copy_from_slice(&dva.to_words());
                    words[6] = 1 << 63 | 7 << 40 | 2 << 32 | 7 << 16 | 7;
                    words[10] = syncing.change.txg().0;
                    let pointer = BlockPointer::from_words(words);
                    match blocks.claim(syncing.change.rq, &pointer, syncing.change.txg()).await {
                        // The pool's own blocks are there.
                        Ok(()) | Err(BlockError::Space { fault: SpaceFault::NotFree, .. }) => {}
                        Err(error) => return Err(refused(&error)),
                    }
                }
                Ok(())
            })
        })
        .await
}

/// Writes a file whose blocks are all embedded in their pointers.
async fn write_pointers(engine: &Arc<Engine>, pointers: u64) -> Result<(), PoolError> {
    let rq = &Request::internal("bench");
    let set = engine.open_set(rq, POOL, None).await?;
    let mut id = None;
    for first in (0..pointers).step_by(BLOCKS_PER_TX as usize) {
        let tx = set.begin(rq, BLOCKS_PER_TX * BLOCK_BYTES as u64, SpaceReserve::Normal).await?;
        let object = match id {
            Some(object) => object,
            None => {
                let new = NewObject::new(ObjectType::PLAIN_FILE_CONTENTS, BLOCK_BYTES as u32);
                *id.insert(set.changes().create(rq, &tx, &new).await?)
            }
        };
        for block in first..first + BLOCKS_PER_TX {
            let mut bytes = [0; BLOCK_BYTES];
            bytes[..8].copy_from_slice(&(block + 1).to_le_bytes());
            set.writes().write(rq, &tx, object, block * BLOCK_BYTES as u64, &bytes).await?;
        }
    }
    engine.sync().await
}

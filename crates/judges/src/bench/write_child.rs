//! What the bench measures of Weir's writing, each in a process of its own: make a pool on the files that are there, write,
//! make it stable, print one line.
//!
//! Every piece that is written is a buffer of its own, as a client's would be: what waits in memory is really there.
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use weir_files::{Cred, FileSystem, New, NewKind, WriteAt};
use weir_format::ObjectId;
use weir_machine::{Machine, Request};
use weir_objects::dsl::change::{FileSystemSpec, Kind, NewDataset};
use weir_objects::props::Value;
use weir_pool::config::Class;
use weir_pool::{CreateOptions, Engine, Layout, NewLeaf, NewTop};

use super::{ARC_BYTES, Measured, cpu_seconds, peak_bytes};
use crate::JudgeError;
use crate::fuzz::Chance;
use crate::report::line;

const POOL: &str = "b-write";
/// The file system that is written to: its properties are those of the measurement.
const FILES: &str = "b-write/files";

/// A sequential writer hands over this much at once.
const PIECE_BYTES: usize = 1 << 20;
/// What synced writes write, and for how long.
const SYNCED_BYTES: usize = 4 << 10;
const SYNCED_TIME: Duration = Duration::from_secs(4);
/// Random writes: their size, which is their file's record size, and how many at once.
const RANDOM_BYTES: usize = 8 << 10;
const RANDOM_DEPTH: usize = 32;
/// How long random writes go on.
pub const RANDOM_TIME: Duration = Duration::from_secs(10);
/// `compression`, as it is stored.
const UNCOMPRESSED: u64 = 2;
const LZ4: u64 = 15;

/// The measuring process.
pub fn main(what: &str, folder: &str, layout: &str, mib: &str) -> ExitCode {
    let done = match mib.parse() {
        Ok(mib) => measure(what, Path::new(folder), layout, mib),
        Err(_) => Err(failed(format!("{mib} is no number"))),
    };
    match done {
        Ok(measured) => {
            line(&measured.to_line());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn failed(error: impl ToString) -> JudgeError {
    JudgeError::Process { command: "write-bench-child".to_string(), why: error.to_string() }
}

/// The file system that a measurement writes to.
struct Target {
    machine: Machine,
    engine: Arc<Engine>,
    files: Arc<FileSystem>,
}

/// Memory that a pool of this bench may hold: cache and what waits for its groups.
pub fn budget_bytes() -> u64 {
    ARC_BYTES + weir_pool::engine::DirtyLimits::default().max_bytes
}

async fn make(machine: &Machine, what: &str, folder: &Path, layout: &str) -> Result<Target, JudgeError> {
    let mut images: Vec<_> = std::fs::read_dir(folder)
        .map_err(|source| JudgeError::Io { what: folder.display().to_string(), source })?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "img"))
        .collect();
    images.sort();
    let layout = match layout {
        "single" => Layout::Single,
        "mirror" => Layout::Mirror,
        "raidz2" => Layout::Raidz(2),
        other => return Err(failed(format!("no layout is called {other}"))),
    };
    let leaves = images.into_iter().map(|path| NewLeaf { path, is_file: true }).collect();
    let mut options = CreateOptions::new(POOL, vec![NewTop { class: Class::Normal, layout, leaves }]);
    options.arc_bytes = ARC_BYTES;
    options.force = true;
    let engine = Engine::create(machine, &options).await.map_err(failed)?;
    let properties = match what {
        "random" => vec![("recordsize", RANDOM_BYTES as u64)],
        "plain" => vec![("compression", UNCOMPRESSED)],
        "lz4" => vec![("compression", LZ4)],
        _ => Vec::new(),
    };
    let properties = properties.into_iter().map(|(name, value)| (name.to_string(), Value::Number(value))).collect();
    let kind = Kind::FileSystem(FileSystemSpec::default());
    engine.create_dataset(NewDataset { name: FILES.to_string(), kind, properties }).await.map_err(failed)?;
    let files = engine.file_system(&Request::internal("bench"), FILES).await.map_err(failed)?;
    Ok(Target { machine: machine.clone(), engine, files })
}

fn measure(what: &str, folder: &Path, layout: &str, mib: u64) -> Result<Measured, JudgeError> {
    let machine = Machine::production().map_err(failed)?;
    machine.block_on(async {
        let target = make(&machine, what, folder, layout).await?;
        let bytes = mib << 20;
        if what == "random" {
            // The file that is overwritten is made outside of the measurement.
            target.sequential(&noise(7, 8 * PIECE_BYTES), bytes).await?;
            target.engine.sync().await.map_err(failed)?;
        }
        let (begun, cpu_begun, group) = (Instant::now(), cpu_seconds(), target.engine.groups().last_synced());
        let (bytes, operations) = match what {
            "sequential" => target.sequential(&noise(7, 8 * PIECE_BYTES), bytes).await?,
            "plain" | "lz4" => target.sequential(&compressible(8 * PIECE_BYTES), bytes).await?,
            "random" => target.random(bytes).await?,
            _ => match what.strip_prefix("synced-").and_then(|writers| writers.parse().ok()) {
                Some(writers) => target.synced(writers).await?,
                None => return Err(failed(format!("no measurement is called {what}"))),
            },
        };
        let (seconds, cpu_seconds) = (begun.elapsed().as_secs_f64(), cpu_seconds() - cpu_begun);
        line(&format!("groups {}", target.engine.groups().last_synced().0 - group.0));
        let measured = Measured { bytes, operations, seconds, peak_bytes: peak_bytes(), cpu_seconds };
        target.engine.export().await.map_err(failed)?;
        Ok(measured)
    })
}

/// A file of that name, made if it is not there.
async fn file(files: &FileSystem, rq: &Request, name: &str) -> Result<ObjectId, JudgeError> {
    let new = New { exclusive: false, ..New::of(NewKind::Regular, 0o644) };
    let made = files.create(rq, &Cred::root(), files.root(), name.as_bytes(), &new).await.map_err(failed)?;
    Ok(made.object)
}

impl Target {
    /// One file from its beginning to its end, then an fsync.
    async fn sequential(&self, data: &[u8], bytes: u64) -> Result<(u64, u64), JudgeError> {
        let rq = &Request::internal("bench");
        let file = file(&self.files, rq, "large").await?;
        let pieces = bytes / PIECE_BYTES as u64;
        for (number, piece) in (0..pieces).zip(data.chunks_exact(PIECE_BYTES).cycle()) {
            let at = WriteAt::Offset(number * PIECE_BYTES as u64);
            let piece = Bytes::copy_from_slice(piece);
            self.files.write(rq, &Cred::root(), file, at, piece).await.map_err(failed)?;
        }
        self.files.sync(rq, Some(file)).await.map_err(failed)?;
        Ok((pieces * PIECE_BYTES as u64, pieces))
    }

    /// Records of a file in an order without order, for some time; then an fsync, which is part of it.
    async fn random(&self, bytes: u64) -> Result<(u64, u64), JudgeError> {
        let rq = &Request::internal("bench");
        let file = file(&self.files, rq, "large").await?;
        let data = &noise(8, PIECE_BYTES);
        let (mut chance, begun) = (Chance::new(7), Instant::now());
        let places = std::iter::from_fn(|| {
            let place = chance.below(bytes as usize / RANDOM_BYTES) as u64;
            (begun.elapsed() < RANDOM_TIME).then_some(place)
        });
        let writes = stream::iter(places)
            .map(|place| {
                let from = place as usize * RANDOM_BYTES % PIECE_BYTES;
                let piece = Bytes::copy_from_slice(data.get(from..from + RANDOM_BYTES).unwrap_or_default());
                let at = WriteAt::Offset(place * RANDOM_BYTES as u64);
                async move { self.files.write(rq, &Cred::root(), file, at, piece).await.map_err(failed) }
            })
            .buffer_unordered(RANDOM_DEPTH);
        let operations = writes.try_fold(0, |sum, _| async move { Ok(sum + 1) }).await?;
        self.files.sync(rq, Some(file)).await.map_err(failed)?;
        Ok((operations * RANDOM_BYTES as u64, operations))
    }

    /// So many writers, each with a file of its own: write, fsync, write, fsync.
    async fn synced(&self, writers: u64) -> Result<(u64, u64), JudgeError> {
        let data = Bytes::from(noise(9, SYNCED_BYTES));
        let writers: Vec<_> = (0..writers)
            .map(|writer| {
                let (files, data) = (self.files.clone(), data.clone());
                self.machine.tasks.spawn(async move { synced_writer(&files, writer, &data).await })
            })
            .collect();
        let mut operations = 0;
        for writer in writers {
            operations += writer.await.map_err(|_| failed("a writer was lost"))??;
        }
        Ok((operations * SYNCED_BYTES as u64, operations))
    }
}

async fn synced_writer(files: &FileSystem, writer: u64, data: &[u8]) -> Result<u64, JudgeError> {
    let rq = &Request::internal("bench");
    let file = file(files, rq, &format!("synced {writer}")).await?;
    let (begun, mut operations) = (Instant::now(), 0);
    while begun.elapsed() < SYNCED_TIME {
        let at = WriteAt::Offset(operations * SYNCED_BYTES as u64);
        files.write(rq, &Cred::root(), file, at, Bytes::copy_from_slice(data)).await.map_err(failed)?;
        files.sync(rq, Some(file)).await.map_err(failed)?;
        operations += 1;
    }
    Ok(operations)
}

/// Bytes that no compression makes smaller.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut chance = Chance::new(seed);
    (0..bytes / 8).flat_map(|_| chance.draw().to_le_bytes()).collect()
}

/// Bytes that lz4 makes two to three times smaller, as text is: words of a small vocabulary.
fn compressible(bytes: usize) -> Vec<u8> {
    let mut chance = Chance::new(10);
    let words: Vec<Vec<u8>> = (0..2000)
        .map(|_| {
            let length = 3 + chance.below(9);
            (0..length).map(|_| b'a' + chance.below(26) as u8).chain([b' ']).collect()
        })
        .collect();
    let mut out = Vec::with_capacity(bytes + 16);
    while out.len() < bytes {
        // Some words are said more often than others.
        let rare = chance.below(words.len());
        out.extend_from_slice(words.get(chance.below(rare + 1)).map_or(b" ", Vec::as_slice));
    }
    out.truncate(bytes);
    out
}

//! Measuring processes of the write benchmark: make a pool on existing files,
//! write, make it stable, print one line.
//!
//! Every write has a buffer of its own, like that of a client, so that dirty data really take memory.
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::future::Future;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::{FileSystemSpec, Kind, NewDataset};
use weir_engine::{CreateOptions, Engine, Layout, NewLeaf, NewTopLevelVdev};
use weir_files::{Cred, FileSystem, New, NewKind, WriteAt};
use weir_format::ObjectId;
use weir_machine::{Machine, Request};
use weir_pool::config::Class;

use super::{ARC_BYTES, Measured, SELF, cpu_seconds, peak_bytes};
use crate::JudgeError;
use crate::fuzz::Chance;
use crate::report::line;

/// The pool of all measurements.
pub(super) const POOL: &str = "b-write";
/// File system that is written to; its properties depend on the measurement.
const FILES: &str = "b-write/files";

/// Bytes of each write of a sequential writer.
pub(super) const PIECE_BYTES: usize = 1 << 20;
/// Bytes of each synchronous write, and duration.
pub(super) const SYNCED_BYTES: usize = 4 << 10;
pub(super) const SYNCED_TIME: Duration = Duration::from_secs(4);
/// Size of random writes, which is the record size of their file, and their number in flight.
const RANDOM_BYTES: usize = 8 << 10;
const RANDOM_DEPTH: usize = 32;
/// Duration of random writes.
pub const RANDOM_TIME: Duration = Duration::from_secs(10);
/// Small files: their number, their size, the number in a directory, and the number of concurrent clients.
const SMALL_FILES: u64 = 100_000;
pub(super) const SMALL_BYTES: usize = 4 << 10;
const SMALL_IN_A_DIRECTORY: u64 = 1000;
pub(super) const SMALL_CLIENTS: u64 = 8;
/// Time limit, after which no more are created; the rate is that of the created ones.
pub(super) const SMALL_TIME: Duration = Duration::from_secs(45);
/// Values of `compression` as stored.
const UNCOMPRESSED: u64 = 2;
const LZ4: u64 = 15;

/// Measuring process.
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
pub(super) struct Target {
    machine: Machine,
    pub(super) engine: Arc<Engine>,
    files: Arc<FileSystem>,
}

/// Memory budget of a pool in this benchmark: cache and dirty data.
pub fn budget_bytes() -> u64 {
    ARC_BYTES + weir_engine::DirtyLimits::default().max_bytes
}

/// Makes a pool on the images of a folder.
///
/// # Errors
/// Errors of the engine.
pub(super) async fn make_pool(machine: &Machine, folder: &Path, layout: &str) -> Result<Arc<Engine>, JudgeError> {
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
    let mut options = CreateOptions::new(POOL, vec![NewTopLevelVdev { class: Class::Normal, layout, leaves }]);
    options.arc_bytes = ARC_BYTES;
    options.force = true;
    Engine::create(machine, &options).await.map_err(failed)
}

async fn make(machine: &Machine, what: &str, folder: &Path, layout: &str) -> Result<Target, JudgeError> {
    let properties: &[(&str, u64)] = match what {
        "random" => &[("recordsize", RANDOM_BYTES as u64)],
        "plain-text" | "plain-half" => &[("compression", UNCOMPRESSED)],
        "lz4-text" | "lz4-half" => &[("compression", LZ4)],
        _ => &[],
    };
    make_with(machine, folder, layout, properties).await
}

/// Makes a pool on the images of a folder, with a file system that has these properties, as stored.
pub(super) async fn make_with(
    machine: &Machine,
    folder: &Path,
    layout: &str,
    properties: &[(&str, u64)],
) -> Result<Target, JudgeError> {
    let engine = make_pool(machine, folder, layout).await?;
    let properties = properties.iter().map(|(name, value)| ((*name).to_string(), Value::Number(*value))).collect();
    let kind = Kind::FileSystem(FileSystemSpec::default());
    engine.create_dataset(NewDataset { name: FILES.to_string(), kind, properties }).await.map_err(failed)?;
    let files = engine.file_system(&Request::internal("bench"), FILES).await.map_err(failed)?;
    Ok(Target { machine: machine.clone(), engine, files })
}

fn measure(what: &str, folder: &Path, layout: &str, mib: u64) -> Result<Measured, JudgeError> {
    let machine = weir_linux::machine().map_err(failed)?;
    machine.block_on(async {
        let target = make(&machine, what, folder, layout).await?;
        let bytes = mib << 20;
        if what == "random" {
            // The file to overwrite is written before the measurement.
            target.sequential(&noise(7, 8 * PIECE_BYTES), bytes).await?;
            target.engine.sync().await.map_err(failed)?;
        }
        let begun = Instant::now();
        let cpu_begun = cpu_seconds(SELF);
        let group = target.engine.txgs().last_synced();
        let (bytes, operations) = match what {
            "sequential" => target.sequential(&noise(7, 8 * PIECE_BYTES), bytes).await?,
            "plain-text" | "lz4-text" => target.sequential(&sources(8 * PIECE_BYTES)?, bytes).await?,
            "plain-half" | "lz4-half" => target.sequential(&half_noise(8 * PIECE_BYTES), bytes).await?,
            "random" => target.random(bytes).await?,
            "small" => target.small(true).await?,
            "small-once" => target.small(false).await?,
            _ => match what.strip_prefix("synced-").and_then(|writers| writers.parse().ok()) {
                Some(writers) => target.synced(writers).await?,
                None => return Err(failed(format!("{} {what}", super::UNKNOWN))),
            },
        };
        let (seconds, cpu_seconds) = (begun.elapsed().as_secs_f64(), cpu_seconds(SELF) - cpu_begun);
        line(&format!("groups {}", target.engine.txgs().last_synced().0 - group.0));
        let measured = Measured { bytes, operations, seconds, peak_bytes: peak_bytes(SELF), cpu_seconds };
        target.engine.export().await.map_err(failed)?;
        Ok(measured)
    })
}

/// Returns the file with this name, which is created if it does not exist.
async fn file(files: &FileSystem, rq: &Request, name: &str) -> Result<ObjectId, JudgeError> {
    let new = New { exclusive: false, ..New::of(NewKind::Regular, 0o644) };
    let made = files.names().create(rq, &Cred::root(), files.root(), name.as_bytes(), &new).await.map_err(failed)?;
    Ok(made.object)
}

impl Target {
    /// Writes one file from its beginning to its end, then an fsync.
    pub(super) async fn sequential(&self, data: &[u8], bytes: u64) -> Result<(u64, u64), JudgeError> {
        let rq = &Request::internal("bench");
        let file = file(&self.files, rq, "large").await?;
        let pieces = bytes / PIECE_BYTES as u64;
        for (number, piece) in (0..pieces).zip(data.chunks_exact(PIECE_BYTES).cycle()) {
            let at = WriteAt::Offset(number * PIECE_BYTES as u64);
            let piece = Bytes::copy_from_slice(piece);
            self.files.contents().write(rq, &Cred::root(), file, at, piece).await.map_err(failed)?;
        }
        self.files.sync(rq, Some(file)).await.map_err(failed)?;
        Ok((pieces * PIECE_BYTES as u64, pieces))
    }

    /// Overwrites records of a file in random order for some time, including an fsync at the end.
    async fn random(&self, bytes: u64) -> Result<(u64, u64), JudgeError> {
        let rq = &Request::internal("bench");
        let file = file(&self.files, rq, "large").await?;
        let data = &noise(8, PIECE_BYTES);
        let mut chance = Chance::new(7);
        let begun = Instant::now();
        let places = std::iter::from_fn(|| {
            let place = chance.below(bytes as usize / RANDOM_BYTES) as u64;
            (begun.elapsed() < RANDOM_TIME).then_some(place)
        });
        let writes = stream::iter(places)
            .map(|place| {
                let from = place as usize * RANDOM_BYTES % PIECE_BYTES;
                let piece = Bytes::copy_from_slice(data.get(from..from + RANDOM_BYTES).unwrap_or_default());
                let at = WriteAt::Offset(place * RANDOM_BYTES as u64);
                async move { self.files.contents().write(rq, &Cred::root(), file, at, piece).await.map_err(failed) }
            })
            .buffer_unordered(RANDOM_DEPTH);
        let operations = writes.try_fold(0, |sum, _| async move { Ok(sum + 1) }).await?;
        self.files.sync(rq, Some(file)).await.map_err(failed)?;
        Ok((operations * RANDOM_BYTES as u64, operations))
    }

    /// Runs writers with a file each: write, fsync, write, fsync.
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

    /// Creates small files by many clients. They are stable one by one, or all after the last; then all are removed,
    /// and that is made stable.
    async fn small(&self, each: bool) -> Result<(u64, u64), JudgeError> {
        let data = Bytes::from(noise(11, SMALL_BYTES));
        let made = self.clients(|files, client| {
            let data = data.clone();
            async move { make_small(&files, client, &data, each).await }
        });
        let made = made.await?;
        if !each {
            self.engine.sync().await.map_err(failed)?;
        }
        let made = std::sync::Mutex::new(made);
        let gone = self.clients(|files, client| {
            let mut made = made.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let mine = made.get_mut(client as usize).map(std::mem::take).unwrap_or_default();
            async move { remove_small(&files, mine, each).await }
        });
        let gone: u64 = gone.await?.into_iter().sum();
        if !each {
            self.engine.sync().await.map_err(failed)?;
        }
        Ok((gone * SMALL_BYTES as u64, gone))
    }

    /// Runs the clients concurrently and returns their results.
    async fn clients<T: Send + 'static, F: Future<Output = Result<T, JudgeError>> + Send + 'static>(
        &self,
        client: impl Fn(Arc<FileSystem>, u64) -> F,
    ) -> Result<Vec<T>, JudgeError> {
        let started: Vec<_> =
            (0..SMALL_CLIENTS).map(|number| self.machine.tasks.spawn(client(self.files.clone(), number))).collect();
        let mut out = Vec::new();
        for client in started {
            out.push(client.await.map_err(|_| failed("a client was lost"))??);
        }
        Ok(out)
    }
}

async fn synced_writer(files: &FileSystem, writer: u64, data: &[u8]) -> Result<u64, JudgeError> {
    let rq = &Request::internal("bench");
    let file = file(files, rq, &format!("synced {writer}")).await?;
    let begun = Instant::now();
    let mut operations = 0;
    while begun.elapsed() < SYNCED_TIME {
        let at = WriteAt::Offset(operations * SYNCED_BYTES as u64);
        files.contents().write(rq, &Cred::root(), file, at, Bytes::copy_from_slice(data)).await.map_err(failed)?;
        files.sync(rq, Some(file)).await.map_err(failed)?;
        operations += 1;
    }
    Ok(operations)
}

/// A directory and the names of the files in it.
type Made = Vec<(ObjectId, Vec<String>)>;

async fn make_small(files: &FileSystem, client: u64, data: &[u8], each: bool) -> Result<Made, JudgeError> {
    let rq = &Request::internal("bench");
    let cred = &Cred::root();
    let mut dirs = Vec::new();
    let begun = Instant::now();
    for (dir, mut names) in small_names(client) {
        let made =
            files.names().create(rq, cred, files.root(), dir.as_bytes(), &New::of(NewKind::Directory, 0o755)).await;
        let made = made.map_err(failed)?.object;
        names.truncate(if begun.elapsed() < SMALL_TIME { names.len() } else { 0 });
        for name in &names {
            let file = files.names().create(rq, cred, made, name.as_bytes(), &New::of(NewKind::Regular, 0o644)).await;
            let file = file.map_err(failed)?.object;
            let data = Bytes::copy_from_slice(data);
            files.contents().write(rq, cred, file, WriteAt::Offset(0), data).await.map_err(failed)?;
            if each {
                files.sync(rq, Some(file)).await.map_err(failed)?;
            }
        }
        dirs.push((made, names));
    }
    Ok(dirs)
}

async fn remove_small(files: &FileSystem, made: Made, each: bool) -> Result<u64, JudgeError> {
    let rq = &Request::internal("bench");
    let cred = &Cred::root();
    let mut gone = 0;
    for (dir, names) in made {
        gone += names.len() as u64;
        for name in names {
            files.names().remove(rq, cred, dir, name.as_bytes()).await.map_err(failed)?;
        }
        if each {
            files.sync(rq, Some(dir)).await.map_err(failed)?;
        }
    }
    Ok(gone)
}

/// Directories of a client with the names of their files.
pub(super) fn small_names(client: u64) -> impl Iterator<Item = (String, Vec<String>)> {
    let dirs = (client..SMALL_FILES / SMALL_IN_A_DIRECTORY).step_by(SMALL_CLIENTS as usize);
    dirs.map(|dir| (format!("d{dir}"), (0..SMALL_IN_A_DIRECTORY).map(|file| format!("file-{file:04}")).collect()))
}

/// Incompressible bytes.
pub(super) fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut chance = Chance::new(seed);
    (0..bytes / 8).flat_map(|_| chance.draw().to_le_bytes()).collect()
}

/// Pages of half noise and half zeros, like fio's data for compression by half.
fn half_noise(bytes: usize) -> Vec<u8> {
    let mut out = noise(10, bytes);
    for page in out.chunks_mut(4 << 10) {
        let half = page.len() / 2;
        page.iter_mut().skip(half).for_each(|byte| *byte = 0);
    }
    out
}

/// Text: the sources of this workspace, repeated.
fn sources(bytes: usize) -> Result<Vec<u8>, JudgeError> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("..")];
    let mut text = Vec::new();
    let io = |source| JudgeError::Io { what: "the workspace's sources".to_string(), source };
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).map_err(io)? {
            let path = entry.map_err(io)?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                text.extend(std::fs::read(&path).map_err(io)?);
            }
        }
    }
    Ok(text.into_iter().cycle().take(bytes).collect())
}

//! Measuring processes of the benchmark of pools on object stores: print one line with what was measured, one with the requests.
//!
//! ```text
//!   put URL N, get URL N        N objects of 1 MiB below the URL, 16 requests at the same time: what the store gives
//!   write LAYOUT N DEVICES      makes a pool, writes N MiB into a file, fsync, and a txg
//!   read LAYOUT N DEVICES       opens that pool and reads the file
//!   synced LAYOUT N DEVICES     makes a pool; 4 KiB and an fsync, over and over
//! ```
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::{FileSystemSpec, Kind, NewDataset};
use weir_engine::{CreateOptions, Engine, ImportOptions, Layout, NewLeaf, NewTopLevelVdev};
use weir_files::{Cred, FileSystem, New, NewKind, WriteAt};
use weir_format::ObjectId;
use weir_machine::{Machine, Request};
use weir_object_store::counters::Counts;
use weir_object_store::store::{Condition, Store};
use weir_object_store::{DiskUrl, StoreDisks, StoreUrl, is_url, open_store, with_stores};
use weir_pool::OpenOptions;
use weir_pool::config::Class;

use super::write_child::{SYNCED_BYTES, SYNCED_TIME, noise};
use super::{ARC_BYTES, Measured, SELF, cpu_seconds, peak_bytes};
use crate::JudgeError;
use crate::report::line;

const POOL: &str = "b-object";
const FILES: &str = "b-object/files";
const FILE: &str = "large";
/// Bytes of a write or read, of an object, and of a record.
const PIECE_BYTES: u64 = 1 << 20;
/// Requests to the store at the same time, as of a disk.
const PARALLEL: usize = 16;
/// Reads in flight, as of a server whose client reads a whole file.
const AHEAD: usize = 4;

/// Measuring process.
pub fn main(words: &[String]) -> ExitCode {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let measured = match words.as_slice() {
        [what @ ("put" | "get"), url, count] => raw(what, url, count),
        [what @ ("write" | "read" | "synced"), layout, mib, devices @ ..] => pool(what, layout, mib, devices),
        other => Err(failed(format!("{} {other:?}", super::UNKNOWN))),
    };
    match measured {
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
    JudgeError::Process { command: "object-bench-child".to_string(), why: error.to_string() }
}

/// A measurement that begins now.
struct Begun {
    at: Instant,
    cpu_seconds: f64,
}

impl Begun {
    fn now() -> Self {
        Begun { at: Instant::now(), cpu_seconds: cpu_seconds(SELF) }
    }

    fn ended(&self, bytes: u64, operations: u64) -> Measured {
        let seconds = self.at.elapsed().as_secs_f64();
        let cpu_seconds = cpu_seconds(SELF) - self.cpu_seconds;
        Measured { bytes, operations, seconds, peak_bytes: peak_bytes(SELF), cpu_seconds }
    }
}

/// Bytes of which no two pieces in a row are equal.
fn pieces() -> Vec<Bytes> {
    noise(7, 8 * PIECE_BYTES as usize).chunks_exact(PIECE_BYTES as usize).map(Bytes::copy_from_slice).collect()
}

/// Measures requests of this client without a disk.
fn raw(what: &str, url: &str, count: &str) -> Result<Measured, JudgeError> {
    let count: u64 = count.parse().map_err(failed)?;
    let machine = weir_linux::machine().map_err(failed)?;
    let store = open_store(&StoreUrl::parse(url).map_err(failed)?, machine.compute.clone()).map_err(failed)?;
    let pieces = pieces();
    let begun = Begun::now();
    machine.block_on(async {
        let one = |number: u64| {
            let (store, machine) = (store.clone(), machine.clone());
            let piece = pieces[number as usize % pieces.len()].clone();
            let is_put = what == "put";
            async move {
                let name = format!("{number:016x}");
                let request = async move { transfer(&*store, name, is_put.then_some(piece)).await };
                machine.tasks.spawn(request).await.map_err(|_| failed("a request was lost"))?
            }
        };
        stream::iter(0..count).map(one).buffer_unordered(PARALLEL).try_for_each(|()| async { Ok(()) }).await
    })?;
    Ok(begun.ended(count * PIECE_BYTES, count))
}

async fn transfer(store: &dyn Store, name: String, piece: Option<Bytes>) -> Result<(), JudgeError> {
    if let Some(piece) = piece {
        return store.put(name, piece, Condition::Missing).await.map(drop).map_err(failed);
    }
    let got = store.get(name.clone(), None).await.map_err(failed)?;
    match got {
        Some(got) if got.bytes.len() as u64 == PIECE_BYTES => Ok(()),
        _ => Err(failed(format!("object {name} is not there, or not whole"))),
    }
}

/// The vdevs of a layout: the first device has the data, the others are those that the layout names.
fn vdevs(layout: &str, devices: &[&str]) -> Result<Vec<NewTopLevelVdev>, JudgeError> {
    let classes: &[Class] = match layout {
        "alone" => &[Class::Normal],
        "log" => &[Class::Normal, Class::Log],
        "log-special" => &[Class::Normal, Class::Log, Class::Special],
        other => return Err(failed(format!("no layout is called {other}"))),
    };
    if classes.len() != devices.len() {
        return Err(failed(format!("the layout {layout} has {} devices", classes.len())));
    }
    let vdev = |(class, device): (&Class, &&str)| {
        let path = PathBuf::from(device.split('?').next().unwrap_or_default());
        NewTopLevelVdev { class: *class, layout: Layout::Single, leaves: vec![NewLeaf { path, is_file: true }] }
    };
    Ok(classes.iter().zip(devices).map(vdev).collect())
}

fn pool(what: &str, layout: &str, mib: &str, devices: &[&str]) -> Result<Measured, JudgeError> {
    let bytes = mib.parse::<u64>().map_err(failed)? << 20;
    let (machine, disks) = with_stores(weir_linux::machine().map_err(failed)?);
    let measured = machine.block_on(async {
        let (engine, files) = match what {
            "read" => open(&machine, devices).await?,
            _ => make(&machine, &disks, layout, devices).await?,
        };
        let before = counts(&disks);
        let begun = Begun::now();
        let (bytes, operations) = match what {
            "write" => write(&engine, &files, bytes).await?,
            "read" => read(&files, bytes).await?,
            _ => synced(&files).await?,
        };
        let measured = begun.ended(bytes, operations);
        print_requests(before, counts(&disks));
        drop(files);
        engine.export().await.map_err(failed)?;
        Ok(measured)
    });
    disks.close_all();
    measured
}

/// The requests of all disks so far.
fn counts(disks: &StoreDisks) -> Counts {
    let mut sum = Counts::default();
    for (_, counts) in disks.counts() {
        for (sum, requests) in sum.requests.iter_mut().zip(counts.requests) {
            *sum += requests;
        }
        sum.retries += counts.retries;
        sum.read_bytes += counts.read_bytes;
        sum.written_bytes += counts.written_bytes;
    }
    sum
}

/// Prints the requests of the measurement: get, put, head, delete, and those that repeat one; bytes received and sent.
fn print_requests(before: Counts, after: Counts) {
    let requests: Vec<String> = (0..4).map(|kind| (after.requests[kind] - before.requests[kind]).to_string()).collect();
    let retries = after.retries - before.retries;
    let received = after.read_bytes - before.read_bytes;
    let sent = after.written_bytes - before.written_bytes;
    line(&format!("requests {} {retries} {received} {sent}", requests.join(" ")));
}

async fn make(
    machine: &Machine,
    disks: &StoreDisks,
    layout: &str,
    devices: &[&str],
) -> Result<(Arc<Engine>, Arc<FileSystem>), JudgeError> {
    for device in devices.iter().filter(|device| is_url(device)) {
        disks.create(&DiskUrl::parse(device).map_err(failed)?).map_err(failed)?;
    }
    let mut options = CreateOptions::new(POOL, vdevs(layout, devices)?);
    options.arc_bytes = ARC_BYTES;
    options.force = true;
    let engine = Engine::create(machine, &options).await.map_err(failed)?;
    let kind = Kind::FileSystem(FileSystemSpec::default());
    let properties = vec![("recordsize".to_string(), Value::Number(PIECE_BYTES))];
    engine.create_dataset(NewDataset { name: FILES.to_string(), kind, properties }).await.map_err(failed)?;
    let files = engine.file_system(&Request::internal("bench"), FILES).await.map_err(failed)?;
    Ok((engine, files))
}

async fn open(machine: &Machine, devices: &[&str]) -> Result<(Arc<Engine>, Arc<FileSystem>), JudgeError> {
    let search = devices.iter().map(|device| PathBuf::from(device.split('?').next().unwrap_or_default())).collect();
    let mut open = OpenOptions::new(search, POOL);
    open.arc_bytes = ARC_BYTES;
    let engine = Engine::import(machine, &ImportOptions::new(open)).await.map_err(failed)?;
    let files = engine.file_system(&Request::internal("bench"), FILES).await.map_err(failed)?;
    Ok((engine, files))
}

/// The file with this name, which is created if it does not exist.
async fn file(files: &FileSystem, rq: &Request, name: &str) -> Result<ObjectId, JudgeError> {
    let new = New { exclusive: false, ..New::of(NewKind::Regular, 0o644) };
    let made = files.names().create(rq, &Cred::root(), files.root(), name.as_bytes(), &new).await.map_err(failed)?;
    Ok(made.object)
}

/// Writes one file from its beginning to its end, until the store has it: an fsync, and the txg.
async fn write(engine: &Engine, files: &FileSystem, bytes: u64) -> Result<(u64, u64), JudgeError> {
    let rq = &Request::internal("bench");
    let file = file(files, rq, FILE).await?;
    let pieces = pieces();
    for number in 0..bytes / PIECE_BYTES {
        // A buffer of its own, as that of a client.
        let piece = Bytes::copy_from_slice(&pieces[number as usize % pieces.len()]);
        let at = WriteAt::Offset(number * PIECE_BYTES);
        files.contents().write(rq, &Cred::root(), file, at, piece).await.map_err(failed)?;
    }
    files.sync(rq, Some(file)).await.map_err(failed)?;
    engine.sync().await.map_err(failed)?;
    Ok((bytes, bytes / PIECE_BYTES))
}

async fn read(files: &FileSystem, bytes: u64) -> Result<(u64, u64), JudgeError> {
    let rq = &Request::internal("bench");
    let file = files.directories().lookup(rq, files.root(), FILE.as_bytes()).await.map_err(failed)?;
    let reads = stream::iter((0..bytes / PIECE_BYTES).map(|number| number * PIECE_BYTES))
        .map(|offset| files.contents().read_segments(rq, file, offset, PIECE_BYTES as usize))
        .buffered(AHEAD);
    let got = reads
        .try_fold(0, |sum, pieces| async move { Ok(sum + pieces.iter().map(|piece| piece.len() as u64).sum::<u64>()) })
        .await
        .map_err(failed)?;
    if got != bytes {
        return Err(failed(format!("{got} bytes of {bytes} were read")));
    }
    Ok((bytes, bytes / PIECE_BYTES))
}

/// Writes 4 KiB and waits for an fsync, over and over.
async fn synced(files: &FileSystem) -> Result<(u64, u64), JudgeError> {
    let rq = &Request::internal("bench");
    let data = Bytes::from(noise(9, SYNCED_BYTES));
    let file = file(files, rq, "synced").await?;
    let begun = Instant::now();
    let mut operations = 0;
    while begun.elapsed() < SYNCED_TIME {
        let at = WriteAt::Offset(operations * SYNCED_BYTES as u64);
        files.contents().write(rq, &Cred::root(), file, at, Bytes::copy_from_slice(&data)).await.map_err(failed)?;
        files.sync(rq, Some(file)).await.map_err(failed)?;
        operations += 1;
    }
    Ok((operations * SYNCED_BYTES as u64, operations))
}

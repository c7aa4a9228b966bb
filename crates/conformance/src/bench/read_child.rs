//! Measuring processes of the read benchmark: open the pool, read, print one line.
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use weir_files::{FileError, FileSystem};
use weir_format::ObjectId;
use weir_machine::{Accounts, Operation, Protocol, Request};
use weir_pool::OpenOptions;

use super::{ARC_BYTES, Measured, SELF, cpu_seconds, peak_bytes};
use crate::JudgeError;
use crate::engine::Opened;
use crate::fuzz::Chance;
use crate::report::line;

/// Bytes of each request of a sequential reader, and number of requests in flight.
const PIECE_BYTES: u64 = 1 << 20;
const AHEAD: usize = 4;

/// Size of random reads, and their number in flight.
const RANDOM_BYTES: usize = 8 << 10;
const RANDOM_DEPTH: usize = 32;

/// Bytes of the file that are in the cache, and number of passes over them.
const HOT_BYTES: u64 = 96 << 20;
const HOT_TURNS: u64 = 40;

/// Size of the client requests that are answered from the cache, and their number.
const REQUEST_BYTES: usize = 4 << 10;
const REQUESTS: u64 = 2_000_000;

/// Number of entries in one page of a listing.
const LISTING: usize = 1024;

/// The measuring process.
pub fn main(what: &str, devices: &str, pool: &str) -> ExitCode {
    match measure(what, Path::new(devices), pool) {
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
    JudgeError::Process { command: "read-bench-child".to_string(), why: error.to_string() }
}

struct File {
    files: Arc<FileSystem>,
    object: ObjectId,
    size_bytes: u64,
}

fn measure(what: &str, devices: &Path, pool: &str) -> Result<Measured, JudgeError> {
    let mut options = OpenOptions::new(vec![devices.to_path_buf()], pool);
    options.arc_bytes = ARC_BYTES;
    let opened = Opened::new(&options)?;
    let directory = what.strip_prefix("list-").map(|count| format!("d{count}"));
    let (dataset, name) = match (what, &directory) {
        (_, Some(name)) => (pool.to_string(), &**name),
        ("random", None) => (format!("{pool}/r8k"), "small"),
        _ => (pool.to_string(), "large"),
    };
    let files = opened.file_system(&dataset).map_err(failed)?;
    let machine = opened.machine().clone();
    let request = Request::internal("bench");
    let file = machine.block_on(async {
        let object = files.directories().lookup(&request, files.root(), name.as_bytes()).await?;
        let size_bytes = files.attrs().get(&request, object).await?.size_bytes;
        Ok::<_, FileError>(File { files: files.clone(), object, size_bytes })
    });
    let file = file.map_err(failed)?;
    if what == "hot" || what == "requests" {
        // Fills the cache before the measurement.
        machine.block_on(sequential(&request, &file, HOT_BYTES, 1)).map_err(failed)?;
    }
    let begun = Instant::now();
    let cpu_begun = cpu_seconds(SELF);
    let (bytes, operations) = match what {
        "sequential" => machine.block_on(sequential(&request, &file, file.size_bytes, AHEAD)),
        "random" => machine.block_on(random(&request, &file)),
        "hot" => machine.block_on(hot(&request, &file)),
        "requests" => machine.block_on(requests(opened.pool().blocks.tree().accounts(), &file)),
        _ if directory.is_some() => machine.block_on(list(&request, &file)),
        other => return Err(failed(format!("{} {other}", super::UNKNOWN))),
    }
    .map_err(failed)?;
    let (seconds, cpu_seconds) = (begun.elapsed().as_secs_f64(), cpu_seconds(SELF) - cpu_begun);
    for leaf in opened.pool().blocks.tree().health() {
        line(&format!("leaf {} {}", leaf.counts.read_bytes, leaf.name));
    }
    Ok(Measured { bytes, operations, seconds, peak_bytes: peak_bytes(SELF), cpu_seconds })
}

/// Reads sequentially with several requests in flight, like a server for a client that reads a whole file.
async fn sequential(rq: &Request, file: &File, bytes: u64, ahead: usize) -> Result<(u64, u64), FileError> {
    let offsets = (0..bytes.div_ceil(PIECE_BYTES)).map(|piece| piece * PIECE_BYTES);
    let reads = stream::iter(offsets)
        .map(|offset| file.files.contents().read_segments(rq, file.object, offset, PIECE_BYTES as usize))
        .buffered(ahead);
    reads
        .try_fold((0, 0), |sum, pieces| async move { Ok(add(sum, pieces.iter().map(|piece| piece.len()).sum())) })
        .await
}

/// Reads each block of the file once in random order, so that nothing comes from the cache.
async fn random(rq: &Request, file: &File) -> Result<(u64, u64), FileError> {
    let mut chance = Chance::new(7);
    let mut order: Vec<u64> = (0..file.size_bytes / RANDOM_BYTES as u64).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, chance.below(last + 1));
    }
    let reads = stream::iter(order)
        .map(|block| file.files.contents().read_segments(rq, file.object, block * RANDOM_BYTES as u64, RANDOM_BYTES))
        .buffer_unordered(RANDOM_DEPTH);
    reads
        .try_fold((0, 0), |sum, pieces| async move { Ok(add(sum, pieces.iter().map(|piece| piece.len()).sum())) })
        .await
}

/// Reads with one reader on one core from the cache, and copies every byte, as for a client's buffer.
async fn hot(rq: &Request, file: &File) -> Result<(u64, u64), FileError> {
    let mut sum = (0, 0);
    let mut buffer = Vec::with_capacity(PIECE_BYTES as usize);
    for _ in 0..HOT_TURNS {
        for offset in (0..HOT_BYTES).step_by(PIECE_BYTES as usize) {
            let pieces = file.files.contents().read_segments(rq, file.object, offset, PIECE_BYTES as usize).await?;
            buffer.clear();
            pieces.iter().for_each(|piece| buffer.extend_from_slice(piece));
            sum = add(sum, std::hint::black_box(&buffer).len());
        }
    }
    Ok(sum)
}

/// Answers small requests of one client from the cache, each in its own context that is recorded in the accounts: the
/// measurement in which accounting has the largest share.
async fn requests(accounts: &Accounts, file: &File) -> Result<(u64, u64), FileError> {
    let client = accounts.client(Protocol::Nbd, "bench");
    let mut sum = (0, 0);
    let mut chance = Chance::new(7);
    for _ in 0..REQUESTS {
        let rq = accounts.begin(&client, Operation::Read);
        // In random order: a constant stride would be prefetched.
        let offset = (chance.below(HOT_BYTES as usize / REQUEST_BYTES) * REQUEST_BYTES) as u64;
        let pieces = file.files.contents().read_segments(&rq, file.object, offset, REQUEST_BYTES).await?;
        sum = add(sum, std::hint::black_box(&pieces).iter().map(|piece| piece.len()).sum());
        accounts.record(&rq);
    }
    Ok(sum)
}

/// Lists a directory page by page; the bytes are those of the names.
async fn list(rq: &Request, file: &File) -> Result<(u64, u64), FileError> {
    let mut sum = (0, 0);
    let mut cookie = 0;
    loop {
        let page = file.files.directories().read_dir(rq, file.object, cookie, LISTING).await?;
        let Some(last) = page.last() else { return Ok(sum) };
        cookie = last.cookie;
        sum = page.iter().fold(sum, |sum, entry| add(sum, entry.name.len()));
    }
}

fn add((bytes, operations): (u64, u64), more: usize) -> (u64, u64) {
    (bytes + more as u64, operations + 1)
}

//! What a request, an operation of a device and a written record cost this machine's processors, measured by reads and writes of a small
//! pool in a temporary file.
#![allow(clippy::disallowed_methods, reason = "measures real time")]

use crate::failure::Failure;
use crate::stores::serving_machine;
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_dsl::props::Value;
use weir_engine::{CreateOptions, Engine, ImportOptions, Layout, NewLeaf, NewTopLevelVdev};
use weir_files::{Cred, FileSystem, New, NewKind, WriteAt};
use weir_format::ObjectId;
use weir_machine::{Machine, Request};
use weir_pool::OpenOptions;
use weir_pool::config::Class;

const POOL: &str = "calibrate";
const FILE: &[u8] = b"data";
const DEVICE_BYTES: u64 = 512 << 20;
const FILE_BYTES: u64 = 128 << 20;
const WRITE_BYTES: usize = 1 << 20;
/// `recordsize`, and bytes of a read: each is an operation of the device if the ARC does not have it.
const RECORD_BYTES: u64 = 4096;
/// Part of the file that is read from the ARC.
const CACHED_BYTES: u64 = 4 << 20;
/// Less than the file: what is read at random is seldom in the ARC.
const ARC_BYTES: u64 = 32 << 20;
/// Rounds; the cheapest counts, because other work on the machine only adds time.
const ROUNDS: usize = 5;

/// Costs in nanoseconds of one processor.
#[derive(Clone, Copy, Debug)]
pub struct EngineCosts {
    /// A read that the ARC answers, without a network protocol.
    pub request_ns: f64,
    /// Cost of a read of one record from the device beyond that, with its checksum.
    pub device_operation_ns: f64,
    /// Cost of an overwritten record beyond a request, until it is synced, with its checksum.
    pub written_record_ns: f64,
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
        let costs = costs(&engine, round).await;
        engine.export().await.map_err(failed)?;
        costs
    })
}

/// A pool with a file, on a device that is a file.
async fn filled(machine: &Machine, path: &Path) -> Result<Arc<Engine>, Failure> {
    let leaf = NewLeaf { path: path.to_owned(), is_file: true };
    let top = NewTopLevelVdev { class: Class::Normal, layout: Layout::Single, leaves: vec![leaf] };
    let mut options = CreateOptions::new(POOL, vec![top]);
    options.root_properties = vec![
        ("recordsize".to_owned(), Value::Number(RECORD_BYTES)),
        // zio_compress: off is 2.
        ("compression".to_owned(), Value::Number(2)),
        ("atime".to_owned(), Value::Number(0)),
    ];
    let engine = Engine::create(machine, &options).await.map_err(failed)?;
    let rq = &Request::internal("calibrate");
    let files = engine.file_system(rq, POOL).await.map_err(failed)?;
    let new = New::of(NewKind::Regular, 0o600);
    let made = files.names().create(rq, &Cred::root(), files.root(), FILE, &new).await.map_err(failed)?;
    let data = Bytes::from(super::calibrate::noise(WRITE_BYTES));
    for offset in (0..FILE_BYTES).step_by(WRITE_BYTES) {
        let at = WriteAt::Offset(offset);
        files.contents().write(rq, &Cred::root(), made.object, at, data.clone()).await.map_err(failed)?;
    }
    engine.sync().await.map_err(failed)?;
    drop(files);
    Ok(engine)
}

async fn costs(engine: &Arc<Engine>, round: Duration) -> Result<EngineCosts, Failure> {
    let rq = &Request::internal("calibrate");
    let files = engine.file_system(rq, POOL).await.map_err(failed)?;
    let object = files.directories().lookup(rq, files.root(), FILE).await.map_err(failed)?;
    // Into the ARC, and its lists for blocks that are read more than once.
    for _ in 0..2 {
        for offset in (0..CACHED_BYTES).step_by(RECORD_BYTES as usize) {
            files.contents().read(rq, object, offset, RECORD_BYTES as usize).await.map_err(failed)?;
        }
    }
    let cached = cheapest(&files, object, CACHED_BYTES, round).await?;
    let uncached = cheapest(&files, object, FILE_BYTES, round).await?;
    // Of reads anywhere in the file, the ARC answers a part.
    let missed = 1.0 - ARC_BYTES as f64 / FILE_BYTES as f64;
    let written = overwritten(engine, &files, object).await?;
    Ok(EngineCosts {
        request_ns: cached,
        device_operation_ns: ((uncached - cached) / missed).max(0.0),
        written_record_ns: (written - cached).max(0.0),
    })
}

/// Processor time of overwriting a record and of its part of the sync, in nanoseconds. The records are random, and none is written
/// twice in a round.
async fn overwritten(engine: &Arc<Engine>, files: &FileSystem, object: ObjectId) -> Result<f64, Failure> {
    const RECORDS: u64 = FILE_BYTES / RECORD_BYTES;
    const WRITES: u64 = RECORDS / 4;
    let rq = &Request::internal("calibrate");
    let data = Bytes::from(super::calibrate::noise(RECORD_BYTES as usize));
    let mut best = f64::INFINITY;
    let mut record = 0;
    for _ in 0..ROUNDS {
        let begun = processor_ns();
        for _ in 0..WRITES {
            // A linear congruential generator whose period is the number of records, a power of two.
            record = (record * 1021 + 4099) % RECORDS;
            let at = WriteAt::Offset(record * RECORD_BYTES);
            files.contents().write(rq, &Cred::root(), object, at, data.clone()).await.map_err(failed)?;
        }
        engine.sync().await.map_err(failed)?;
        best = best.min((processor_ns() - begun) / WRITES as f64);
    }
    Ok(best)
}

/// Processor time of a read of a record at random in the first `bytes` of the file, in nanoseconds.
async fn cheapest(files: &FileSystem, object: ObjectId, bytes: u64, round: Duration) -> Result<f64, Failure> {
    let rq = &Request::internal("calibrate");
    let mut best = f64::INFINITY;
    let mut place = 1u64;
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let cpu_begun = processor_ns();
        let mut reads = 0u32;
        while begun.elapsed() < round {
            for _ in 0..64 {
                // A linear congruential generator; its upper bits are the random ones.
                place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let offset = (place >> 33) % (bytes / RECORD_BYTES) * RECORD_BYTES;
                files.contents().read(rq, object, offset, RECORD_BYTES as usize).await.map_err(failed)?;
            }
            reads += 64;
        }
        best = best.min((processor_ns() - cpu_begun) / f64::from(reads));
    }
    Ok(best)
}

/// Processor time of this process so far, of all its threads, in nanoseconds.
fn processor_ns() -> f64 {
    weir_lab::clock::cpu_seconds().unwrap_or_default() * 1e9
}

//! Benchmark of a resilver: a disk of a RAID-Z2 of six or of a mirror of two, half full, is replaced by a blank one.
//!
//! *Limited devices* are modelled in virtual time (`weir-planner`), so that this machine's speed does not count: each reads and writes
//! 100 MB/s, as one behind nbdkit's rate filter does, or is a disk of 7,200 rpm. *Plain files* share this machine's disk: what the
//! resilver writes to the new file is compared with the rate at which fio could read and write the same bytes there. Records are of 128
//! KiB and of 8 KiB; the rows of 8 KiB have no target.
//!
//! The bound of a resilver is the sequential rate of the new disk at the places that are written: inner tracks of a disk are slower.
//!
//! Further rows: the throughput of a client during the resilver, compared with the throughput in the degraded pool before it; the deviation
//! of the stated time left from the real one; and the rate of reads through a cache device (L2ARC).
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use super::write::{self, Disks};
use super::{fio_uring, line_of, measuring, resilver_child};
use crate::report::{Report, line};
use crate::{JudgeError, wrong};
use std::path::Path;
use weir_planner::hardware::drive::DriveSpec;
use weir_planner::hardware::flash::FlashSpec;
use weir_planner::simulate::replacement::{Record, Replacement, simulate_replacement};
use weir_planner::simulate::server::{CacheDeviceSpec, PoolSpec, ServerSpec, VdevLayout};
use weir_planner::simulate::simulate;
use weir_planner::simulate::workload::{Order, Workload};

/// Default number of rounds on plain files.
const ROUNDS: usize = 3;
const SEED: u64 = 1;
/// Rate of a limited device in MB/s.
const LIMITED_MB_S: f64 = 100.0;
/// Sizes of a modelled drive in bytes, with records of 128 KiB and of 8 KiB: half of them takes a limited device 80 and 10 seconds.
/// The model keeps their contents: a run takes 12 GB of memory.
const DRIVE_BYTES: [u64; 2] = [16 << 30, 2 << 30];
/// Files of a modelled pool.
const FILES: u64 = 4;
/// Largest share of its throughput in the degraded pool that a client may lose during the resilver.
const LOST: f64 = 0.3;
/// Largest deviation of the stated time left.
const TIME_LEFT: f64 = 0.2;
/// Times left that are compared: they are stated in whole seconds.
const LEAST_LEFT_S: f64 = 4.0;

/// A device that reads and writes at the same rate in any order.
const LIMITED: FlashSpec = FlashSpec {
    read_mb_s: LIMITED_MB_S,
    write_mb_s: LIMITED_MB_S,
    read_us: 100.0,
    write_us: 100.0,
    read_us_per_kib: 0.0,
    channels: 8,
    buffer_gb: 0.0,
    sustained_mb_s: LIMITED_MB_S,
    random_amplification: 1.0,
    flush_us: 100.0,
    mixed_mb_s: 0.0,
};

/// A layout, and the share of its raw space that data takes with records of 128 KiB and 8 KiB (sectors of 4 KiB).
struct Shape {
    name: &'static str,
    layout: VdevLayout,
    shares: [f64; 2],
    disks: &'static Disks,
    /// Bytes that are read for each byte that is written to the new disk.
    read: f64,
}

const SHAPES: [Shape; 2] = [
    Shape {
        name: "RAID-Z2 of six",
        layout: VdevLayout::Raidz(2, 6),
        shares: [2.0 / 3.0, 1.0 / 3.0],
        disks: &write::RAIDZ2,
        read: 4.0,
    },
    Shape {
        name: "mirror of two",
        layout: VdevLayout::Mirror(2),
        shares: [0.5, 0.5],
        disks: &write::MIRROR,
        read: 1.0,
    },
];
const RECORDS: [u64; 2] = [128 << 10, 8 << 10];

/// Runs the benchmark: `--rounds N`; `--only files`, `--only modelled`, or a part of that: `limited`, `disks`, `clients`, `cache`.
///
/// # Errors
/// Errors if fio is missing, or a measurement fails.
pub fn run(arguments: &[String], report: &mut Report) -> Result<(), JudgeError> {
    let value = |name: &str| arguments.iter().position(|a| a == name).and_then(|at| arguments.get(at + 1));
    let rounds = value("--rounds").and_then(|n| n.parse().ok()).unwrap_or(ROUNDS).max(1);
    let only = value("--only");
    let wanted = |part: &str| only.is_none_or(|only| only == part);
    let modelled = |part: &str| only.is_none_or(|only| only == part || only == "modelled");
    line(&format!("{:<58} {:>9} {:>9} {:>6} {:>6}", "", "Weir", "bound", "ratio", "target"));
    for shape in &SHAPES {
        if modelled("limited") {
            replaced(shape, &DriveSpec::Flash(LIMITED), "100 MB/s each", report)?;
        }
        if modelled("disks") {
            replaced(shape, &disk()?, "7,200 rpm", report)?;
        }
        if modelled("clients") {
            client(shape, &DriveSpec::Flash(LIMITED), report)?;
        }
    }
    if modelled("cache") {
        cache_device(report)?;
    }
    if wanted("files") {
        for shape in &SHAPES {
            for (record, share) in RECORDS.into_iter().zip(shape.shares) {
                plain_files(shape, record, share, rounds, report)?;
            }
        }
    }
    Ok(())
}

/// Prints a row, and records whether it meets its target.
fn row(report: &mut Report, name: &str, (ours, bound): (f64, f64), target: Option<f64>) {
    let ratio = ours / bound;
    let (wanted, verdict) = super::verdict(report, ratio, target);
    line(&format!("{name:<58} {ours:>9.1} {bound:>9.1} {ratio:>6.2} {wanted:>6} {verdict}"));
}

fn failed(error: impl ToString) -> JudgeError {
    wrong("resilver-bench", error.to_string())
}

/// A modelled server, and files that fill half of its pool.
fn half_full(shape: &Shape, drive: &DriveSpec, record_bytes: u64, share: f64) -> (ServerSpec, Workload) {
    let mut pool = PoolSpec::new(drive.clone(), shape.layout, 1);
    pool.drive_bytes = if record_bytes == RECORDS[0] { DRIVE_BYTES[0] } else { DRIVE_BYTES[1] };
    pool.record_bytes = record_bytes;
    let data = (shape.layout.disks() as f64 * pool.drive_bytes as f64 * share / 2.0) as u64;
    let file_bytes = (data / FILES).next_multiple_of(1 << 20);
    let server = ServerSpec { arc_bytes: super::ARC_BYTES, ..ServerSpec::new(pool) };
    (server, Workload { threads: FILES as usize, file_bytes, ..Workload::sequential_read() })
}

/// The model of a disk of 7,200 rpm.
fn disk() -> Result<DriveSpec, JudgeError> {
    DriveSpec::named("hdd-7k").ok_or_else(|| failed("the planner has no disk of 7,200 rpm"))
}

/// A drive of a modelled pool is replaced.
fn replaced(shape: &Shape, drive: &DriveSpec, of: &str, report: &mut Report) -> Result<(), JudgeError> {
    for (record, share) in RECORDS.into_iter().zip(shape.shares) {
        let (server, files) = half_full(shape, drive, record, share);
        let done = simulate_replacement(SEED, &server, &files, false).map_err(failed)?;
        let name = format!("{}, {of}, {} KiB: MB/s to the new disk", shape.name, record >> 10);
        let target = (record == RECORDS[0]).then_some(0.7);
        row(report, &name, rates(&done), target);
        if record == RECORDS[0] {
            time_left(&done, &format!("{}, {of}", shape.name), report);
        }
    }
    Ok(())
}

/// The rate of the resilver, and the sequential rate of the new drive at the places that were written, in MB/s.
fn rates(done: &Replacement) -> (f64, f64) {
    let megabytes = done.written_bytes as f64 / 1e6;
    (megabytes / done.seconds, megabytes / done.sequential_seconds)
}

fn stated(record: &Record) -> String {
    record.left_s.map_or_else(|| "no".to_owned(), |left| left.to_string())
}

/// How far the stated time left was from the real one, from the first tenth on.
fn time_left(done: &Replacement, about: &str, report: &mut Report) {
    let records = done.records.iter().filter(|record| record.examined_share >= 0.1);
    let deviations = records.filter_map(|record| {
        let real = done.seconds - record.seconds;
        let off = record.left_s.map_or(f64::INFINITY, |left| (left as f64 - real).abs() / real);
        (real >= LEAST_LEFT_S).then_some((off, record, real))
    });
    let deviations: Vec<_> = deviations.collect();
    let mut tenths = 0;
    for (off, record, real) in &deviations {
        // A line for each tenth of the bytes.
        let tenth = (record.examined_share * 10.0) as u32;
        if std::mem::replace(&mut tenths, tenth) == tenth {
            continue;
        }
        line(&format!(
            "  {:>3.0} % of the bytes after {:>4.0} s: {} s stated, {real:.0} s left ({:.0} %)",
            record.examined_share * 100.0,
            record.seconds,
            stated(record),
            off * 100.0
        ));
    }
    let name = format!("{about}: time left, worst of {}", deviations.len());
    let worst = deviations.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
    let Some((off, record, real)) = worst else { return report.fail(&name, &["no time was stated".to_owned()]) };
    let text = format!(
        "off by {:.0} %, at most {:.0} %: {} s stated after {:.0} s and {:.0} % of the bytes, {real:.0} s left",
        off * 100.0,
        TIME_LEFT * 100.0,
        stated(record),
        record.seconds,
        record.examined_share * 100.0
    );
    match off <= TIME_LEFT {
        true => report.pass(&name, &text),
        false => report.fail(&name, &[text]),
    }
}

/// A client that reads and writes records of 128 KiB at random.
fn client(shape: &Shape, drive: &DriveSpec, report: &mut Report) -> Result<(), JudgeError> {
    let (server, files) = half_full(shape, drive, RECORDS[0], shape.shares[0]);
    let load = Workload { read_percent: 70, order: Order::Random, seconds: 5.0, ..files };
    let done = simulate_replacement(SEED, &server, &load, true).map_err(failed)?;
    let rates_of_resilver = rates(&done);
    let load = done.load.ok_or_else(|| failed("the load has no result"))?;
    let rate = |of: &weir_planner::simulate::outcome::Outcome| of.read_mb_s + of.write_mb_s;
    let name = |what: &str| format!("{}, 100 MB/s each: {what}", shape.name);
    row(report, &name("a client without a disk, of that with all"), (rate(&load.degraded), rate(&load.healthy)), None);
    row(
        report,
        &name("a client beside the resilver"),
        (rate(&load.resilvering), rate(&load.degraded)),
        Some(1.0 - LOST),
    );
    row(report, &name("that resilver"), rates_of_resilver, None);
    Ok(())
}

/// Reads of three times the ARC that the cache device has.
fn cache_device(report: &mut Report) -> Result<(), JudgeError> {
    let cache = FlashSpec { read_mb_s: 4.0 * LIMITED_MB_S, write_mb_s: 4.0 * LIMITED_MB_S, channels: 32, ..LIMITED };
    let cache = FlashSpec { sustained_mb_s: cache.write_mb_s, ..cache };
    let mut pool = PoolSpec::new(disk()?, VdevLayout::Mirror(2), 1);
    pool.cache = Some(CacheDeviceSpec { drive: DriveSpec::Flash(cache), bytes: 2 << 30 });
    let server = ServerSpec { arc_bytes: super::ARC_BYTES, ..ServerSpec::new(pool) };
    let file_bytes = 3 * super::ARC_BYTES / FILES;
    let load = Workload {
        threads: FILES as usize,
        depth: 4,
        order: Order::Random,
        warm: true,
        file_bytes,
        ..Workload::sequential_read()
    };
    let outcome = simulate(SEED, &server, &load).map_err(failed)?;
    let name = "cache device of 400 MB/s, 3 × ARC at random: MB/s read";
    row(report, name, (outcome.read_mb_s, cache.read_mb_s), Some(0.8));
    Ok(())
}

/// A resilver on plain files, which share this machine's disk.
fn plain_files(shape: &Shape, record: u64, share: f64, rounds: usize, report: &mut Report) -> Result<(), JudgeError> {
    let home = super::folder().join("write");
    let images = write::images(&home, shape.disks)?;
    let raw = shape.disks.images as f64 * (shape.disks.image_mib << 20) as f64;
    let payload_mib = ((raw * share / 2.0) as u64 >> 20).to_string();
    let folder = write::folder_of(shape.disks.name);
    let folder = folder.canonicalize().map_err(crate::io(folder.display()))?;
    let size = format!("--size={}m", shape.disks.each_mib);
    let depth = format!("--iodepth={}", 32_u64.div_ceil(shape.disks.images));
    let mut ratios: Vec<(f64, f64)> = Vec::new();
    for _ in 0..rounds {
        let reads = fio_uring("read", &images, &["--bs=128k", "--offset=5m", &depth, &size])?;
        let writes = fio_uring("write", &images[..1], &["--bs=128k", "--offset=5m", "--iodepth=32", &size])?;
        // The new disk's bytes take the time of their own writes, and that of the reads from which they are computed.
        let bound = 1.0 / (shape.read / reads.mb_per_second() + 1.0 / writes.mb_per_second());
        let folder = folder.display().to_string();
        let words = ["resilver-bench-child", shape.disks.name, &record.to_string(), &payload_mib, &folder];
        ratios.push((line_of(&measuring(&words)?)?.mb_per_second(), bound));
    }
    ratios.sort_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
    let target = (record == RECORDS[0]).then_some(0.8);
    let name = format!("{}, plain files, {} KiB: MB/s to the new disk", shape.name, record >> 10);
    row(report, &name, ratios[ratios.len() / 2], target);
    Ok(())
}

/// The measuring process: see [`resilver_child`].
pub fn main(words: &[String]) -> std::process::ExitCode {
    let done = match words {
        [layout, record, mib, folder] => match (record.parse(), mib.parse()) {
            (Ok(record), Ok(mib)) => resilver_child::measure(layout, record, mib, Path::new(folder)),
            _ => Err(failed("sizes are numbers")),
        },
        _ => Err(failed("takes a layout, a record size, a payload and a folder")),
    };
    match done {
        Ok(measured) => {
            line(&measured.to_line());
            std::process::ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            std::process::ExitCode::FAILURE
        }
    }
}

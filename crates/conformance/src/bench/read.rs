//! Benchmark of reads: Weir, fio, OpenZFS's zdb and zfs-fuse on the same images in the same minutes, as ratios.
//!
//! The pools are made by zfs-fuse (`xtask/scripts/zfs-fuse.sh make`): one disk, a mirror, a stripe of three and a
//! RAID-Z2 of six, each with a large incompressible file. Every measurement is a process of its own, so that caches are
//! cold and peak memory is that of the measurement. Weir, fio and zfs-fuse open images with O_DIRECT. fio reads the
//! same images at the offsets of the data, all images at once, which shows the maximum of the disks. Each figure is the
//! best of several rounds in which the peers alternate, because noise on a shared machine only makes them slower.
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::{Measured, folder, line_of, measuring, zfs_fuse};
use crate::JudgeError;
use crate::process::weir;
use crate::report::{Report, line};
use crate::zdb::{Tools, output};

/// Rounds of each measurement.
const TURNS: usize = 3;

/// One pool of the benchmark.
#[derive(Clone, Copy)]
struct Case {
    pool: &'static str,
    /// Images of the pool.
    images: u32,
    /// Images hidden from Weir: those with most of the file's data, so that it must be reconstructed.
    hidden: u32,
    /// Data on each image that fio reads, in MiB.
    per_image_mib: u32,
    /// Minimum ratio of Weir's sequential read to fio's.
    sequential: f64,
}

const CASES: &[Case] = &[
    Case { pool: "b-single", images: 1, hidden: 0, per_image_mib: 640, sequential: 0.85 },
    Case { pool: "b-mirror", images: 2, hidden: 0, per_image_mib: 512, sequential: 0.85 },
    Case { pool: "b-stripe", images: 3, hidden: 0, per_image_mib: 170, sequential: 0.85 },
    Case { pool: "b-raidz2", images: 6, hidden: 0, per_image_mib: 192, sequential: 0.75 },
    Case { pool: "b-raidz2", images: 6, hidden: 2, per_image_mib: 192, sequential: 0.5 },
];

/// Runs the benchmark. `--prepare` makes the pools if they do not exist; `--only POOL` selects one.
///
/// # Errors
/// If the pools, fio or the tools are missing.
pub fn run(arguments: &[String], report: &mut Report) -> Result<(), JudgeError> {
    let folder = folder();
    if arguments.iter().any(|argument| argument == "--prepare") {
        prepare(&folder)?;
    }
    let only = arguments.iter().position(|argument| argument == "--only").and_then(|at| arguments.get(at + 1));
    line(&format!("{:<34} {:>12} {:>12} {:>7} {:>7}", "", "Weir", "peer", "ratio", "target"));
    for case in CASES.iter().filter(|case| only.is_none_or(|only| only == case.pool)) {
        let images = Images::lay_out(&folder, case, &fullest(&folder, case)?)?;
        sequential(case, &images, report)?;
        if case.hidden == 0 {
            random(case, &images, report)?;
            verify(case, &images, report)?;
        }
        if case.pool == "b-single" {
            hot(&images, report)?;
        }
    }
    Ok(())
}

fn prepare(folder: &Path) -> Result<(), JudgeError> {
    zfs_fuse(folder, &["make"])?.lines().for_each(line);
    Ok(())
}

/// Data on all images of a pool, in bytes; 0 for an unknown pool.
pub(super) fn data_bytes(pool: &str) -> u64 {
    let case = CASES.iter().find(|case| case.pool == pool);
    case.map_or(0, |case| u64::from(case.per_image_mib * case.images) << 20)
}

/// A folder of links to the images that Weir may see.
struct Images {
    seen: tempfile::TempDir,
    all: Vec<PathBuf>,
    home: PathBuf,
}

impl Images {
    fn lay_out(folder: &Path, case: &Case, hidden: &[String]) -> Result<Images, JudgeError> {
        let home = folder.join(case.pool);
        let all: Vec<PathBuf> = (0..case.images).map(|number| home.join(format!("d{number}.img"))).collect();
        if !home.join(".made").exists() {
            return Err(JudgeError::Missing {
                what: "no pools to read (cargo xtask bench read --prepare)".to_string(),
            });
        }
        let io = |source| JudgeError::Io { what: "links to images".to_string(), source };
        let seen = tempfile::tempdir().map_err(io)?;
        for (number, image) in all.iter().enumerate() {
            let (name, image) = (format!("d{number}.img"), image.canonicalize().map_err(io)?);
            if !hidden.contains(&name) {
                std::os::unix::fs::symlink(image, seen.path().join(name)).map_err(io)?;
            }
        }
        Ok(Images { seen, all, home: home.parent().map(Path::to_path_buf).unwrap_or_default() })
    }
}

/// Returns the images that a case hides: those from which most of the file was read when all were present.
fn fullest(folder: &Path, case: &Case) -> Result<Vec<String>, JudgeError> {
    if case.hidden == 0 {
        return Ok(Vec::new());
    }
    let printed = child(Images::lay_out(folder, case, &[])?.seen.path(), case.pool, "sequential")?;
    let mut leaves: Vec<(u64, String)> = printed
        .lines()
        .filter_map(|printed| {
            let (bytes, path) = printed.strip_prefix("leaf ")?.split_once(' ')?;
            Some((bytes.parse().ok()?, Path::new(path).file_name()?.to_str()?.to_string()))
        })
        .collect();
    leaves.sort_unstable_by(|a, b| b.cmp(a));
    let all: u64 = leaves.iter().map(|leaf| leaf.0).sum();
    leaves.truncate(case.hidden as usize);
    let gone: u64 = leaves.iter().map(|leaf| leaf.0).sum();
    let names: Vec<String> = leaves.into_iter().map(|leaf| leaf.1).collect();
    line(&format!(
        "{} without {}: {} % of the reads were theirs",
        case.pool,
        names.join(", "),
        100 * gone / all.max(1)
    ));
    Ok(names)
}

/// Measures Weir in a process of its own.
fn ours(images: &Images, pool: &str, what: &str) -> Result<Measured, JudgeError> {
    line_of(&child(images.seen.path(), pool, what)?)
}

/// Returns the output of a measuring process.
pub(crate) fn child(devices: &Path, pool: &str, what: &str) -> Result<String, JudgeError> {
    measuring(&["read-bench-child", what, &devices.display().to_string(), pool])
}

/// Measures fio on all images of a case.
fn fio(case: &Case, images: &Images, pattern: &str, block: &str, depth: u32) -> Result<Measured, JudgeError> {
    let per_image = depth.div_ceil(case.images);
    let mut arguments = vec![
        "--ioengine=io_uring".to_string(),
        "--readonly".to_string(),
        format!("--rw={pattern}"),
        format!("--bs={block}"),
        format!("--iodepth={per_image}"),
        "--offset=5m".to_string(),
        format!("--size={}m", case.per_image_mib),
    ];
    if pattern == "randread" {
        arguments.extend(["--runtime=5", "--time_based", "--norandommap"].map(String::from));
    }
    super::fio("read", &images.all, &arguments)
}

/// Returns the best of several rounds of two measurements that alternate.
fn in_turns(
    mut first: impl FnMut() -> Result<Measured, JudgeError>,
    mut second: impl FnMut() -> Result<Measured, JudgeError>,
    value: impl Fn(&Measured) -> f64,
) -> Result<(Measured, Measured), JudgeError> {
    let mut best = (first()?, second()?);
    for _ in 1..TURNS {
        let again_first = first()?;
        let again_second = second()?;
        if value(&again_first) > value(&best.0) {
            best.0 = again_first;
        }
        if value(&again_second) > value(&best.1) {
            best.1 = again_second;
        }
    }
    Ok(best)
}

/// Prints a row and records whether it meets the target.
fn row(report: &mut Report, name: &str, ours: (f64, &str), peer: f64, target: Option<f64>) {
    let ratio = ours.0 / peer;
    let wanted = target.map_or("-".to_string(), |target| format!("{target:.2}"));
    line(&format!("{name:<34} {:>9.0} {} {peer:>12.0} {ratio:>7.2} {wanted:>7}", ours.0, ours.1));
    match target {
        Some(target) if ratio < target => report.failed += 1,
        Some(_) => report.passed += 1,
        None => {}
    }
}

fn sequential(case: &Case, images: &Images, report: &mut Report) -> Result<(), JudgeError> {
    let name = |what: &str| match case.hidden {
        0 => format!("{} {what}", case.pool),
        hidden => format!("{} -{hidden} {what}", case.pool),
    };
    let measure = || ours(images, case.pool, "sequential");
    let (mine, peer) = in_turns(measure, || fio(case, images, "read", "128k", 32), Measured::mb_per_second)?;
    row(report, &name("sequential/fio"), (mine.mb_per_second(), "MB/s"), peer.mb_per_second(), Some(case.sequential));
    line(&format!("{:<34} {:>9.3} s/GiB", name("processor time"), mine.cpu_seconds_per_gib()));
    let budget = super::ARC_BYTES as f64;
    row(report, &name("peak memory/budget"), (mine.peak_bytes as f64 / 1e6, "MB  "), budget / 1e6, None);
    if mine.peak_bytes as f64 > budget * 1.15 {
        report.failed += 1;
    } else {
        report.passed += 1;
    }
    if case.hidden > 0 {
        return Ok(());
    }
    match zfs_fuse(&images.home, &["read", case.pool, "large"]) {
        Ok(printed) => {
            let mut words =
                printed.lines().last().unwrap_or_default().split(' ').filter_map(|word| word.parse::<f64>().ok());
            if let (Some(seconds), Some(bytes)) = (words.next(), words.next()) {
                let theirs = bytes / 1e6 / seconds;
                row(report, &name("sequential/zfs-fuse"), (mine.mb_per_second(), "MB/s"), theirs, Some(1.0));
            }
        }
        Err(error) => report.skip("zfs-fuse", &error.to_string()),
    }
    Ok(())
}

fn random(case: &Case, images: &Images, report: &mut Report) -> Result<(), JudgeError> {
    let measure = || ours(images, case.pool, "random");
    let (mine, peer) = in_turns(measure, || fio(case, images, "randread", "8k", 32), Measured::per_second)?;
    let name = format!("{} random 8K depth 32/fio", case.pool);
    row(report, &name, (mine.per_second(), "op/s"), peer.per_second(), Some(0.6));
    Ok(())
}

fn hot(images: &Images, report: &mut Report) -> Result<(), JudgeError> {
    let mine = ours(images, "b-single", "hot")?;
    row(report, "ARC-hot, one core/5 GB/s", (mine.mb_per_second(), "MB/s"), 5000.0, Some(1.0));
    Ok(())
}

/// Compares the speed of Weir's `zdb -bcc` with that of OpenZFS's, which `fetch-zfs-tools.sh` changes to exit without
/// its sleep of six seconds, because that is not part of the walk.
fn verify(case: &Case, images: &Images, report: &mut Report) -> Result<(), JudgeError> {
    let tools = Tools::find()?;
    let timed = |command: &mut Command| -> Result<f64, JudgeError> {
        let begun = Instant::now();
        let done = output(command)?;
        let seconds = begun.elapsed().max(Duration::from_micros(1)).as_secs_f64();
        if done.status.success() {
            return Ok(seconds);
        }
        let said = String::from_utf8_lossy(&done.stderr).lines().last().unwrap_or_default().to_string();
        Err(JudgeError::Process { command: format!("{command:?}"), why: said })
    };
    let arguments = |command: &mut Command| {
        command.args(["-e", "-p"]).arg(images.seen.path()).arg(case.pool).arg("-bcc");
    };
    let mut mine = f64::MAX;
    let mut theirs = f64::MAX;
    for _ in 0..2 {
        let mut command = Command::new(weir()?);
        arguments(command.arg("zdb"));
        mine = mine.min(timed(&mut command)?);
        let mut command = tools.program("sbin/zdb");
        arguments(&mut command);
        theirs = theirs.min(timed(&mut command)?);
    }
    let bytes = f64::from(case.per_image_mib * case.images) * 1.048_576;
    row(report, &format!("{} zdb -bcc/OpenZFS", case.pool), (bytes / mine, "MB/s"), bytes / theirs, Some(1.0));
    Ok(())
}

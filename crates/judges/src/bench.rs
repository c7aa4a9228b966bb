//! Reads beside other readers: Weir, fio, OpenZFS's zdb and zfs-fuse on the same images in the same minutes, as ratios.
//!
//! The pools are made by zfs-fuse (`xtask/scripts/zfs-fuse.sh make`): one disk, a mirror, a stripe of three and a RAID-Z2
//! of six, each with a large file that does not compress. Every measurement is a process of its own, so that caches are
//! cold and peak memory is its alone; Weir opens images with O_DIRECT, fio is told to, zfs-fuse too. fio reads the same
//! images where the data lies, all of them at once, which is what the disks below can give. Each figure is the best of
//! several turns, peers taking turns, since noise on a shared machine only ever slows down.
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::JudgeError;
use crate::process::weir;
use crate::report::{Report, line};
use crate::zdb::{Tools, output};

/// Turns that each measurement is taken.
const TURNS: usize = 3;

/// One pool of the bench.
#[derive(Clone, Copy)]
struct Case {
    pool: &'static str,
    /// Images of the pool.
    images: u32,
    /// Images hidden from Weir: those that hold the most of the file's data, so that it must be rebuilt.
    hidden: u32,
    /// Data on each image that fio reads, in MiB.
    per_image_mib: u32,
    /// Least ratio of Weir's sequential read to fio's.
    sequential: f64,
}

const CASES: &[Case] = &[
    Case { pool: "b-single", images: 1, hidden: 0, per_image_mib: 640, sequential: 0.85 },
    Case { pool: "b-mirror", images: 2, hidden: 0, per_image_mib: 512, sequential: 0.85 },
    Case { pool: "b-stripe", images: 3, hidden: 0, per_image_mib: 170, sequential: 0.85 },
    Case { pool: "b-raidz2", images: 6, hidden: 0, per_image_mib: 192, sequential: 0.75 },
    Case { pool: "b-raidz2", images: 6, hidden: 2, per_image_mib: 192, sequential: 0.5 },
];

/// What one process measured.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    /// Bytes read.
    pub bytes: u64,
    /// Operations done.
    pub operations: u64,
    /// Time taken, in seconds.
    pub seconds: f64,
    /// Peak resident memory, in bytes; 0 if not measured.
    pub peak_bytes: u64,
    /// Processor time of all threads, in seconds; 0 if not measured.
    pub cpu_seconds: f64,
}

impl Measured {
    fn mb_per_second(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.seconds
    }

    fn per_second(&self) -> f64 {
        self.operations as f64 / self.seconds
    }

    fn cpu_seconds_per_gib(&self) -> f64 {
        self.cpu_seconds / (self.bytes as f64 / f64::from(1 << 30))
    }

    /// As the one line that a measuring process prints.
    pub fn to_line(&self) -> String {
        let Measured { bytes, operations, seconds, peak_bytes, cpu_seconds } = self;
        format!("measured {bytes} {operations} {seconds:.6} {peak_bytes} {cpu_seconds:.3}")
    }

    fn from_line(text: &str) -> Option<Measured> {
        let mut words = text.strip_prefix("measured ")?.split(' ');
        Some(Measured {
            bytes: words.next()?.parse().ok()?,
            operations: words.next()?.parse().ok()?,
            seconds: words.next()?.parse().ok()?,
            peak_bytes: words.next()?.parse().ok()?,
            cpu_seconds: words.next()?.parse().ok()?,
        })
    }
}

/// Runs the bench. `--prepare` makes the pools if they are not there; `--only POOL` picks one.
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

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/bench")
}

fn prepare(folder: &Path) -> Result<(), JudgeError> {
    zfs_fuse(folder, &["make"])?.lines().for_each(line);
    Ok(())
}

/// Runs the script that runs zfs-fuse, in a folder that is made if need be; gives what it said.
pub(crate) fn zfs_fuse(folder: &Path, arguments: &[&str]) -> Result<String, JudgeError> {
    std::fs::create_dir_all(folder).map_err(|source| JudgeError::Io { what: folder.display().to_string(), source })?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../xtask/scripts/zfs-fuse.sh");
    let mut command = Command::new(script);
    command.arg(Tools::find()?.folder()).arg(folder).args(arguments);
    succeeded(&mut command)
}

pub(crate) fn succeeded(command: &mut Command) -> Result<String, JudgeError> {
    let done = output(command)?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    let last = said.lines().last().unwrap_or_default().to_string();
    if done.status.code() == Some(3) {
        return Err(JudgeError::Missing { what: last });
    }
    Err(JudgeError::Process { command: format!("{command:?}"), why: last })
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

/// The images that a case hides: those from which most was read for the file when all were there.
fn fullest(folder: &Path, case: &Case) -> Result<Vec<String>, JudgeError> {
    if case.hidden == 0 {
        return Ok(Vec::new());
    }
    let told = child(Images::lay_out(folder, case, &[])?.seen.path(), case.pool, "sequential")?;
    let mut leaves: Vec<(u64, String)> = told
        .lines()
        .filter_map(|told| {
            let (bytes, path) = told.strip_prefix("leaf ")?.split_once(' ')?;
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

/// One measurement of Weir in a process of its own.
fn ours(images: &Images, pool: &str, what: &str) -> Result<Measured, JudgeError> {
    line_of(&child(images.seen.path(), pool, what)?)
}

/// The figures that a measuring process printed.
pub(crate) fn line_of(text: &str) -> Result<Measured, JudgeError> {
    text.lines().find_map(Measured::from_line).ok_or_else(|| JudgeError::Process {
        command: "read-bench-child".to_string(),
        why: format!("no figures in {text:?}"),
    })
}

/// What a measuring process prints.
pub(crate) fn child(devices: &Path, pool: &str, what: &str) -> Result<String, JudgeError> {
    let program =
        std::env::current_exe().map_err(|source| JudgeError::Io { what: "own program".to_string(), source })?;
    let mut command = Command::new(program);
    succeeded(command.args(["read-bench-child", what]).arg(devices).arg(pool))
}

/// One measurement of fio on all images of a case.
fn fio(case: &Case, images: &Images, pattern: &str, block: &str, depth: u32) -> Result<Measured, JudgeError> {
    let per_image = depth.div_ceil(case.images);
    let mut command = Command::new("fio");
    command.args(["--output-format=json", "--direct=1", "--ioengine=io_uring", "--readonly", "--group_reporting"]);
    command.args([
        format!("--rw={pattern}"),
        format!("--bs={block}"),
        format!("--iodepth={per_image}"),
        "--offset=5m".to_string(),
        format!("--size={}m", case.per_image_mib),
    ]);
    if pattern == "randread" {
        command.args(["--runtime=5", "--time_based", "--norandommap"]);
    }
    for (number, image) in images.all.iter().enumerate() {
        command.arg(format!("--name=d{number}")).arg(format!("--filename={}", image.display()));
    }
    let text = match succeeded(&mut command) {
        Err(JudgeError::Io { .. }) => return Err(JudgeError::Missing { what: "fio is not installed".to_string() }),
        other => other?,
    };
    let parsed: Value = serde_json::from_str(text.get(text.find('{').unwrap_or(0)..).unwrap_or_default())
        .map_err(|source| JudgeError::Manifest { golden: "fio's report".to_string(), source })?;
    let read = &parsed["jobs"][0]["read"];
    let figure = |name: &str| read[name].as_f64().unwrap_or_default();
    Ok(Measured {
        bytes: figure("io_bytes") as u64,
        operations: figure("total_ios") as u64,
        seconds: figure("runtime") / 1000.0,
        ..Measured::default()
    })
}

/// The best of several turns of two measurements that take turns.
fn in_turns(
    mut first: impl FnMut() -> Result<Measured, JudgeError>,
    mut second: impl FnMut() -> Result<Measured, JudgeError>,
    value: impl Fn(&Measured) -> f64,
) -> Result<(Measured, Measured), JudgeError> {
    let mut best = (first()?, second()?);
    for _ in 1..TURNS {
        let (again_first, again_second) = (first()?, second()?);
        if value(&again_first) > value(&best.0) {
            best.0 = again_first;
        }
        if value(&again_second) > value(&best.1) {
            best.1 = again_second;
        }
    }
    Ok(best)
}

/// Prints a row and books whether the target is met.
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
    let budget = super::bench_child::ARC_BYTES as f64;
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
        Ok(told) => {
            let mut words =
                told.lines().last().unwrap_or_default().split(' ').filter_map(|word| word.parse::<f64>().ok());
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

/// Our `zdb -bcc` beside OpenZFS's: the ratio is of speeds.
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
    let (mut mine, mut theirs) = (f64::MAX, f64::MAX);
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

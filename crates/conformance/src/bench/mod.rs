//! Benchmarks: Weir and its peers do the same work on the same disks in the same minutes, compared as ratios.
//!
//! A figure alone depends on the machine as much as on the program, so no test has a time limit. Each benchmark runs
//! Weir and its peers in turn and prints ratios. Every measurement is a process of its own, which prints one line, so
//! that caches are cold, and peak memory and processor time are those of the measurement.
//!
//! ```text
//!   read, scan ──► read_child                  the engine opens a pool that zfs-fuse made
//!   write ───────► write_child                 the engine makes a pool on files that were written before
//!         ───────► mounted                     the same files under any file system that can be mounted
//!   scan ────────► administration              commands of an administrator on a pool that a server has open
//!   plan ────────► weir bench, weir plan         loads of `weir bench`, predicted and measured
//!   resilver ────► resilver_child              a disk is replaced; on modelled disks in virtual time
//!   memory ──────► a child of its own          pools on simulated disks; peak memory
//!   object ──────► object_child                a pool on an object store, and the store by itself
//!   serve ───────► nfs_load, block_load, smb_load   clients of Weir's servers and of their peers
//!   all ─────────► fio, zfs-fuse.sh            the disks by themselves, the peers
//! ```
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

pub mod administration;
pub mod compare;
pub mod memory;
pub mod mounted;
pub mod object;
pub mod object_child;
pub mod plan;
pub mod read;
pub mod read_child;
pub mod resilver;
pub mod resilver_child;
pub mod scale;
pub mod scan;
pub mod serve;
pub mod sparse_disks;
pub mod write;
pub mod write_child;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::JudgeError;
use crate::report::Report;
use crate::zdb::{Tools, output};

/// Cache limit in every benchmark.
pub const ARC_BYTES: u64 = 256 << 20;

/// Result of a measuring process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    /// Bytes read or written.
    pub bytes: u64,
    /// Number of operations.
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

    /// Encodes the line that a measuring process prints.
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

/// The beginning of the message about a measurement that a program does not have.
const UNKNOWN: &str = "no measurement is called";
/// This process in `/proc`.
const SELF: &str = "self";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/bench")
}

/// Runs the script that runs zfs-fuse in a folder, which is created if necessary; returns its output.
fn zfs_fuse(folder: &Path, arguments: &[&str]) -> Result<String, JudgeError> {
    std::fs::create_dir_all(folder).map_err(|source| JudgeError::Io { what: folder.display().to_string(), source })?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../xtask/scripts/zfs-fuse.sh");
    let mut command = Command::new(script);
    command.arg(Tools::find()?.folder()).arg(folder).args(arguments);
    succeeded(&mut command)
}

/// Returns the output of a program that must succeed; exit code 3 means that something is missing on this machine.
fn succeeded(command: &mut Command) -> Result<String, JudgeError> {
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

/// Runs this program again as a measuring process; returns its output.
fn measuring(arguments: &[&str]) -> Result<String, JudgeError> {
    let program =
        std::env::current_exe().map_err(|source| JudgeError::Io { what: "own program".to_string(), source })?;
    succeeded(Command::new(program).args(arguments))
}

/// Decodes the line of a measuring process.
fn line_of(text: &str) -> Result<Measured, JudgeError> {
    text.lines().find_map(Measured::from_line).ok_or_else(|| JudgeError::Process {
        command: "a measuring process".to_string(),
        why: format!("no figures in {text:?}"),
    })
}

/// Measures fio on all these files at once with direct I/O; `direction` is `read` or `write`.
fn fio(direction: &str, files: &[PathBuf], arguments: &[String]) -> Result<Measured, JudgeError> {
    let mut command = Command::new("fio");
    command.args(["--output-format=json", "--direct=1", "--group_reporting"]).args(arguments);
    for (number, file) in files.iter().enumerate() {
        command.arg(format!("--name=d{number}")).arg(format!("--filename={}", file.display()));
    }
    let text = match succeeded(&mut command) {
        Err(JudgeError::Io { .. }) => return Err(JudgeError::Missing { what: "fio is not installed".to_string() }),
        other => other?,
    };
    let parsed: Value = serde_json::from_str(text.get(text.find('{').unwrap_or(0)..).unwrap_or_default())
        .map_err(|source| JudgeError::Manifest { golden: "fio's report".to_string(), source })?;
    let job = &parsed["jobs"][0];
    let figure = |name: &str| job[direction][name].as_f64().unwrap_or_default();
    Ok(Measured {
        bytes: figure("io_bytes") as u64,
        operations: figure("total_ios") as u64,
        seconds: figure("runtime") / 1000.0,
        ..Measured::default()
    })
}

/// Measures fio on these files at once through io_uring; a write ends with an fsync.
fn fio_uring(pattern: &str, files: &[PathBuf], arguments: &[&str]) -> Result<Measured, JudgeError> {
    let direction = if pattern.ends_with("read") { "read" } else { "write" };
    let mut all = vec!["--ioengine=io_uring".to_string(), "--end_fsync=1".to_string(), format!("--rw={pattern}")];
    all.extend(arguments.iter().map(|argument| (*argument).to_string()));
    fio(direction, files, &all)
}

/// Counts whether a ratio meets its target, if it has one; returns the target and the verdict as a row shows them.
fn verdict(report: &mut Report, ratio: f64, target: Option<f64>) -> (String, &'static str) {
    match target {
        None => ("-".to_string(), ""),
        Some(target) if ratio >= target => {
            report.passed += 1;
            (format!("{target:.2}"), "met")
        }
        Some(target) => {
            report.failed += 1;
            (format!("{target:.2}"), "missed")
        }
    }
}

/// Processor time of all threads of a process so far (`proc(5)`), in ticks of 10 ms.
fn cpu_seconds(process: &str) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let behind_the_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    behind_the_name.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>()
        / 100.0
}

/// Processor time and number of a process and its descendants (`proc(5)`). The time contains that of descendants which have
/// ended and were waited for.
fn process_tree(root: u32) -> (f64, usize) {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // Parent, and ticks: user and system, of the process and of children that it has waited for.
    let stat = |id: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        let words = stat.rsplit_once(')')?.1.split_whitespace().skip(1);
        let words: Vec<f64> = words.filter_map(|word| word.parse().ok()).collect();
        Some((id, *words.first()? as u32, words.get(10..14)?.iter().sum::<f64>()))
    };
    let processes: Vec<(u32, u32, f64)> = ids.filter_map(stat).collect();
    let mut tree = std::collections::BTreeSet::from([root]);
    loop {
        let before = tree.len();
        let children = processes.iter().filter(|(_, parent, _)| tree.contains(parent)).map(|(id, ..)| *id);
        let children: Vec<u32> = children.collect();
        tree.extend(children);
        if tree.len() == before {
            break;
        }
    }
    let ticks: f64 = processes.iter().filter(|(id, ..)| tree.contains(id)).map(|(.., ticks)| ticks).sum();
    (ticks / 100.0, tree.len())
}

/// Peak resident memory of a process (`proc(5)`).
fn peak_bytes(process: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.and_then(|peak| peak.trim().trim_end_matches(" kB").parse::<u64>().ok()).map_or(0, |kib| kib << 10)
}

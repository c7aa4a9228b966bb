//! Benchmark of long lists: directories of up to a million entries, up to ten thousand snapshots, and commands with up to ten
//! thousand datasets. Ten times the entries must take about ten times as long.
//!
//! The pool is made by zfs-fuse (`xtask/scripts/zfs-fuse.sh make-scan`). Each list is read cold by a process of its
//! own: a directory through the engine, page by page like a server; snapshots by `weir zfs list` with its default
//! columns.
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use super::administration;
use super::read::child;
use super::{folder, line_of, succeeded, zfs_fuse};
use crate::JudgeError;
use crate::process::weir;
use crate::report::{Report, line};

const POOL: &str = "b-scan";
const DIRECTORIES: [u64; 3] = [10_000, 100_000, 1_000_000];
const SNAPSHOTS: [u64; 3] = [1_000, 3_000, 10_000];
/// Rounds for each list; the fastest counts.
const TURNS: usize = 3;
/// Maximum cost of an entry of the longest list, relative to that in the list before.
const GROWTH: f64 = 1.5;

/// Runs the benchmark: all of it, or `--only lists` or `--only commands`. `--prepare` makes the pool of the lists if it does
/// not exist.
///
/// # Errors
/// Errors if the pool or the tools are missing, or a list has a wrong number of entries.
pub fn run(arguments: &[String], report: &mut Report) -> Result<(), JudgeError> {
    let wanted = |part: &str| match arguments.iter().position(|argument| argument == "--only") {
        Some(at) => arguments.get(at + 1).is_some_and(|only| only == part),
        None => true,
    };
    if wanted("commands") {
        administration::run(report)?;
    }
    if wanted("lists") { lists(arguments, report) } else { Ok(()) }
}

fn lists(arguments: &[String], report: &mut Report) -> Result<(), JudgeError> {
    let folder = folder();
    if arguments.iter().any(|argument| argument == "--prepare") {
        zfs_fuse(&folder, &["make-scan"])?.lines().for_each(line);
    }
    let home = folder.join(POOL);
    if !home.join(".made").exists() {
        return Err(JudgeError::Missing { what: "no pool to list (cargo xtask bench scan --prepare)".to_string() });
    }
    let home = home.canonicalize().map_err(|source| JudgeError::Io { what: home.display().to_string(), source })?;
    series(report, "entries of a directory", &DIRECTORIES, |count| directory(&home, count))?;
    series(report, "snapshots", &SNAPSHOTS, |count| snapshots(&home, count))
}

/// Measures lists of growing length and prints each one.
fn series(
    report: &mut Report,
    what: &str,
    counts: &[u64],
    measure: impl Fn(u64) -> Result<(u64, f64), JudgeError>,
) -> Result<(), JudgeError> {
    let mut before = None;
    for &count in counts {
        let mut best = measure(count)?;
        for _ in 1..TURNS {
            let again = measure(count)?;
            best = if again.1 < best.1 { again } else { best };
        }
        let (found, seconds) = best;
        let each = seconds / found.max(1) as f64 * 1e6;
        let growth = before.map_or(1.0, |before| each / before);
        let about =
            format!("{found:>9} {what:<24} {seconds:>8.3} s {each:>8.2} µs each, {growth:.2} times the row above");
        if found == count && growth <= GROWTH {
            report.pass("scan", &about)
        } else {
            report.fail("scan", &[about])
        }
        before = Some(each);
    }
    Ok(())
}

fn directory(home: &Path, count: u64) -> Result<(u64, f64), JudgeError> {
    let measured = line_of(&child(home, POOL, &format!("list-{count}"))?)?;
    Ok((measured.operations, measured.seconds))
}

fn snapshots(home: &Path, count: u64) -> Result<(u64, f64), JudgeError> {
    let mut command = Command::new(weir()?);
    command.args(["zfs", "list", "-H", "-t", "snapshot", "-r", "-d"]).arg(home).arg(format!("{POOL}/s{count}"));
    let begun = Instant::now();
    let printed = succeeded(&mut command)?;
    Ok((printed.lines().count() as u64, begun.elapsed().as_secs_f64()))
}

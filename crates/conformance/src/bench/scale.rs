//! Benchmark of one daemon with many datasets: 100, 1,000 and 10,000 of them in a pool of one file.
//!
//! For each number: the time of a `zfs create` (of the last hundred), of `zfs list` of all, of a start of the daemon until it has
//! the pool open, and its resident memory then and after the list. Docs: docs/scale.md.
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use crate::report::{Report, line};
use crate::site::{Daemon, Site};
use crate::{JudgeError, io, wrong};
use std::time::Instant;

const POOL: &str = "scale";
const DEVICE_BYTES: u64 = 8 << 30;
const COUNTS: [u64; 3] = [100, 1_000, 10_000];
/// Commands whose time is measured at each number.
const TIMED: u64 = 100;

/// Resident memory of a process in bytes.
fn resident_bytes(id: u32) -> Result<u64, JudgeError> {
    let path = format!("/proc/{id}/status");
    let text = std::fs::read_to_string(&path).map_err(io(&path))?;
    let kib = text.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| wrong(path, "no VmRSS"))
}

/// Runs the benchmark; `--most N` leaves out greater numbers of datasets.
///
/// # Errors
/// If a command fails.
pub fn run(arguments: &[String], report: &mut Report) -> Result<(), JudgeError> {
    let most = match arguments {
        [] => u64::MAX,
        [flag, number] if flag == "--most" => {
            number.parse().map_err(|_| wrong("scale-bench", "--most takes a number of datasets"))?
        }
        _ => return Err(wrong("scale-bench", "takes --most N")),
    };
    let site = Site::local()?;
    let device = site.device("d0", DEVICE_BYTES)?;
    site.ok(&format!("zpool create {POOL} {device}"))?;
    let mut daemon = site.daemon(POOL)?;
    let mut made = 0;
    line("datasets  zfs create   zfs list      start   memory at start   after the list");
    for count in COUNTS.into_iter().filter(|count| *count <= most) {
        let mut begun = Instant::now();
        for n in made..count {
            if n == count - TIMED {
                begun = Instant::now();
            }
            site.ok(&format!("zfs create {POOL}/d{n}"))?;
        }
        let create_ms = begun.elapsed().as_secs_f64() * 1e3 / TIMED as f64;
        made = count;
        daemon.end()?;
        let begun = Instant::now();
        daemon = site.daemon(POOL)?;
        let start_s = begun.elapsed().as_secs_f64();
        let at_start = resident_bytes(daemon.id())?;
        let begun = Instant::now();
        let listed = site.ok("zfs list -H")?;
        let list_s = begun.elapsed().as_secs_f64();
        let after = resident_bytes(daemon.id())?;
        let about = format!(
            "{count:>8} {create_ms:>8.1} ms {list_s:>8.2} s {start_s:>8.1} s {:>13} MiB {:>12} MiB",
            at_start >> 20,
            after >> 20
        );
        match listed.lines().count() as u64 == count + 1 {
            true => report.pass("scale", &about),
            false => report.fail("scale", &[format!("zfs list has {} lines: {about}", listed.lines().count())]),
        }
    }
    Daemon::end(daemon)
}

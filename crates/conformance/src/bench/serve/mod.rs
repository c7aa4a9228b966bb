//! Benchmark of served storage: Weir and its peers serve the same protocol from a file of the same size, to the same client
//! program, in the same minutes, as ratios.
//!
//! ```text
//!   row            client                      Weir             peer
//!   nfs …          [`nfs_load`] (this program)  a file system    nfs-ganesha on xfs on a loop device with direct I/O
//!   nbd …          fio's engine nbd             a volume         nbdkit and qemu-nbd on a file, without the page cache
//!   iscsi …        qemu-img bench               a volume         tgt on a file, through the page cache
//!   smb …          smbclient                    a file system    the same smbd on xfs on a loop device with direct I/O
//! ```
//!
//! Both ends are on the loopback of a network namespace that the benchmark makes, because nfs-ganesha needs a port mapper.
//! In each round a contender gets a new pool or file system on a new image, so that none profits from the round before. A
//! row shows the median of all rounds with the minimum and the maximum; its ratio is the median of the ratios of the rounds.
//! Processor time is that of the server's processes alone, per GB that the client got or gave; for listings, per million
//! files. Rounds end early, so that the run takes no longer than eight minutes.
//!
//! Data is random, so that no compression helps; over iSCSI it is one byte, and the volume has compression=off.
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

pub mod block_load;
pub mod nfs_load;
mod rows;
mod servers;
mod smb_load;

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use self::rows::{ROWS, Row};
use self::servers::{Contender, Home, Server};
use super::{Measured, folder};
use crate::JudgeError;
use crate::report::{Report, line};

/// Default number of rounds.
const ROUNDS: usize = 3;
/// Default size of the files and volumes, in MiB; and that of the short form, which shows only that everything works.
const MIB: u64 = 1024;
const SHORT_MIB: u64 = 128;
/// Default time in minutes after which no round begins that would last longer.
const MINUTES: u64 = 8;
/// Environment variable that says that this process is in the namespace.
const INSIDE: &str = "WEIR_BENCH_NAMESPACE";

/// Result of a row in one round, for one contender.
#[derive(Clone, Copy, Debug)]
struct Figure {
    measured: Measured,
    server_cpu_seconds: f64,
}

/// Runs the benchmark: `--rounds N`, `--only TEXT` (rows whose name begins with it), `--mib N`, `--minutes N`; `--short` for
/// one round with small files.
///
/// # Errors
/// [`JudgeError::Missing`] without network namespaces; failures of servers and clients.
pub fn run(arguments: &[String], report: &mut Report) -> Result<(), JudgeError> {
    enter_namespace()?;
    let value = |name: &str| arguments.iter().position(|a| a == name).and_then(|at| arguments.get(at + 1));
    let number = |name: &str, usual: u64| value(name).and_then(|n| n.parse().ok()).unwrap_or(usual).max(1);
    let only = value("--only").map_or("", String::as_str);
    let is_short = arguments.iter().any(|argument| argument == "--short");
    let rounds = number("--rounds", if is_short { 1 } else { ROUNDS as u64 });
    let mib = number("--mib", if is_short { SHORT_MIB } else { MIB });
    let limit = Duration::from_secs(60 * number("--minutes", MINUTES));
    let home = Home::new(&folder().join("serve"), mib)?;
    let begun = Instant::now();
    let mut figures: BTreeMap<(usize, Contender), Vec<Figure>> = BTreeMap::new();
    let mut missing: BTreeMap<Contender, String> = BTreeMap::new();
    for round in 0..rounds {
        // The first round takes as long as any: it also finds out what is missing.
        let each = begun.elapsed() / u32::try_from(round.max(1)).unwrap_or(u32::MAX);
        if round > 0 && begun.elapsed() + each > limit {
            line(&format!(
                "  {round} of {rounds} rounds: another one would end after {} minutes",
                limit.as_secs() / 60
            ));
            break;
        }
        for contender in Contender::ALL {
            let rows: Vec<(usize, &Row)> =
                ROWS.iter().enumerate().filter(|(_, row)| row.has(contender) && row.name.starts_with(only)).collect();
            if rows.is_empty() || missing.contains_key(&contender) {
                continue;
            }
            line(&format!("  round {} of {rounds}: {}", round + 1, contender.name()));
            match measure_all(&home, contender, &rows) {
                Ok(found) => {
                    for (row, figure) in found {
                        figures.entry((row, contender)).or_default().push(figure);
                    }
                }
                Err(JudgeError::Missing { what }) => {
                    line(&format!("  {} is skipped: {what}", contender.name()));
                    missing.insert(contender, what);
                }
                Err(error) => return Err(error),
            }
        }
    }
    print(&figures, only, report);
    Ok(())
}

/// Executes this program again in a network and mount namespace of its own, unless it is there already.
fn enter_namespace() -> Result<(), JudgeError> {
    if std::env::var_os(INSIDE).is_some() {
        return Ok(());
    }
    let unshared = ["--net", "--mount", "--propagation", "private", "--"];
    let can = Command::new("unshare").args(unshared).arg("true").stderr(Stdio::null()).status();
    if !can.is_ok_and(|status| status.success()) {
        return Err(JudgeError::Missing { what: "no network namespaces: run as root".to_string() });
    }
    let program =
        std::env::current_exe().map_err(|source| JudgeError::Io { what: "own program".to_string(), source })?;
    let begin = "ip link set lo up && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(unshared).args(["sh", "-c", begin, "sh"]).arg(program).args(std::env::args_os().skip(1));
    let source = command.env(INSIDE, "1").exec();
    Err(JudgeError::Io { what: "unshare".to_string(), source })
}

/// Measures a contender in these rows, on new storage.
fn measure_all(home: &Home, contender: Contender, rows: &[(usize, &Row)]) -> Result<Vec<(usize, Figure)>, JudgeError> {
    let mut server = Server::start(home, contender)?;
    let mut found = Vec::new();
    for (number, row) in rows {
        if row.is_cold {
            server.restart_cold()?;
        }
        (row.prepare)(&server, home.mib)?;
        let before = server.processes();
        let measured = (row.measure)(&server, home.mib)?;
        found.push((*number, Figure { measured, server_cpu_seconds: server.cpu_seconds_since(before) }));
    }
    server.stop()?;
    Ok(found)
}

fn print(figures: &BTreeMap<(usize, Contender), Vec<Figure>>, only: &str, report: &mut Report) {
    line(&format!("{:<28} {:<11} {:>26} {:>26} {:>6} {:>6}", "row", "peer", "Weir", "peer", "ratio", "aim"));
    for (number, row) in ROWS.iter().enumerate().filter(|(_, row)| row.name.starts_with(only)) {
        let Some(ours) = figures.get(&(number, row.ours)) else { continue };
        for peer in row.peers {
            let Some(theirs) = figures.get(&(number, *peer)) else {
                report.skip(row.name, &format!("{} is missing", peer.name()));
                continue;
            };
            let speed = |figure: &Figure| row.unit.of(&figure.measured);
            let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(one, other)| speed(one) / speed(other)).collect();
            let ratio = median(ratios);
            let text = format!(
                "{:<28} {:<11} {:>26} {:>26} {ratio:>6.2} {:>6.2}",
                row.name,
                peer.name(),
                shown(row, ours),
                shown(row, theirs),
                row.aim
            );
            line(&text);
            line(&format!(
                "{:<28} processor seconds of the server per {}: {:.2} and {:.2}; client: {}",
                "",
                if moves_data(ours) { "GB" } else { "million files" },
                cpu_per_gb(ours),
                cpu_per_gb(theirs),
                row.client
            ));
            if ratio >= row.aim {
                report.pass(row.name, &format!("{ratio:.2} of {}", peer.name()));
            } else {
                report.fail(row.name, &[format!("{ratio:.2} of {}; the aim is {:.2}", peer.name(), row.aim)]);
            }
        }
    }
}

fn shown(row: &Row, figures: &[Figure]) -> String {
    let speeds: Vec<f64> = figures.iter().map(|figure| row.unit.of(&figure.measured)).collect();
    let least = speeds.iter().copied().fold(f64::INFINITY, f64::min);
    let most = speeds.iter().copied().fold(0.0, f64::max);
    format!("{:.0} {} ({least:.0}–{most:.0})", median(speeds), row.unit.name())
}

fn moves_data(figures: &[Figure]) -> bool {
    figures.iter().all(|figure| figure.measured.bytes > 0)
}

/// Processor time per GB, or per million operations that move no data.
fn cpu_per_gb(figures: &[Figure]) -> f64 {
    let units = |figure: &Figure| match figure.measured.bytes {
        0 => figure.measured.operations as f64 / 1e6,
        bytes => bytes as f64 / 1e9,
    };
    median(figures.iter().map(|figure| figure.server_cpu_seconds / units(figure)).collect())
}

fn median(values: Vec<f64>) -> f64 {
    weir_lab::statistics::median(&values).unwrap_or_default()
}

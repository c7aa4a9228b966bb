//! Two builds of Weir compared: the same work on the same files, in interleaved rounds, with 95 % confidence intervals.
//!
//! In each round both builds run every row, one directly after the other; the build that goes first alternates. The
//! ratio of a row is taken per round, because what slows one run down (another program, the disk's own cleaning) mostly
//! slows down its neighbour as well. The table shows the geometric mean of these ratios and the 95 % interval of
//! Student's t on their logarithms.
//!
//! ```text
//!   this build  ── weir-judge, weir ──┐
//!                                     ├─► row ─► ratio of speed, ratio of processor time ─► verdict
//!   other build ── weir-judge, weir ──┘
//! ```
//!
//! A row fails if it is shown to be slower by more than 5 %: its whole interval is below 0.95. If the interval is wider
//! than ±5 %, the speed says little, and the processor time per unit of work decides: its whole interval is above 1.05.
//! `--processor PERCENT` compares the processor time alone, with this tolerance: `cargo xtask bench accounting` compares
//! a build that accounts requests with one that does not.
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use statrs::distribution::{ContinuousCDF, StudentsT};

use super::mounted::{self, MountedBy};
use super::{Measured, SELF, folder, line_of, peak_bytes, read, succeeded, write};
use crate::JudgeError;
use crate::report::{Report, line};

/// Rounds, unless `--rounds` is given.
const ROUNDS: usize = 10;
/// A row fails if it is slower, or takes more processor time, by more than this share.
const TOLERANCE: f64 = 0.05;

/// Pools that are read, with the measurements of each: sequential and random reads from disks, and from the ARC.
const READS: &[(&str, &[&str])] = &[
    ("b-single", &["sequential", "random", "hot", "requests"]),
    ("b-mirror", &["sequential", "random"]),
    ("b-stripe", &["sequential", "random"]),
    ("b-raidz2", &["sequential", "random"]),
];
/// Measurements of the engine's writes, with the disks that they write to and the payload in MiB.
const WRITES: &[(&str, &str, u64)] = &[
    ("sequential", "single", 1280),
    ("sequential", "raidz2", 1024),
    ("sequential", "mirror", 768),
    ("synced-1", "single", 0),
    ("synced-32", "single", 0),
    ("random", "single", write::RANDOM_MIB),
    ("plain-half", "single", 1280),
    ("lz4-half", "single", 1280),
    ("lz4-text", "single", 1280),
    ("small", "single", 0),
    ("small-once", "single", 0),
];
/// Measurements through `weir mount`.
const MOUNTED: &[&str] = &["sequential", "synced-1", "small", "small-once"];

/// One row: the same work for both builds.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Row {
    /// The engine reads a pool of `bench read --prepare`.
    Read { pool: &'static str, what: &'static str },
    /// `weir zdb -bcc` on a pool of `bench read --prepare`.
    Verify { pool: &'static str },
    /// The engine makes a pool and writes it.
    Write { what: &'static str, disks: &'static str, mib: u64 },
    /// A program writes through `weir mount`.
    Mounted { what: &'static str },
}

impl Row {
    fn all() -> Vec<Row> {
        let mut rows = Vec::new();
        for &(pool, measurements) in READS {
            rows.extend(measurements.iter().map(|&what| Row::Read { pool, what }));
            rows.push(Row::Verify { pool });
        }
        rows.extend(WRITES.iter().map(|&(what, disks, mib)| Row::Write { what, disks, mib }));
        rows.extend(MOUNTED.iter().map(|&what| Row::Mounted { what }));
        rows
    }

    fn name(&self) -> String {
        match self {
            Row::Read { pool, what } => format!("read {} {what}", pool.trim_start_matches("b-")),
            Row::Verify { pool } => format!("zdb -bcc {}", pool.trim_start_matches("b-")),
            Row::Write { what, disks, .. } => format!("write {disks} {what}"),
            Row::Mounted { what } => format!("mount {what}"),
        }
    }

    /// Whether the speed is given in operations per second; otherwise in MB/s.
    fn counts_operations(&self) -> bool {
        let (Row::Read { what, .. } | Row::Write { what, .. } | Row::Mounted { what }) = self else { return false };
        ["random", "requests", "synced-1", "synced-32", "small", "small-once"].contains(what)
    }

    fn speed(&self, measured: &Measured) -> f64 {
        if self.counts_operations() { measured.per_second() } else { measured.mb_per_second() }
    }

    /// Processor seconds per operation or per byte.
    fn cost(&self, measured: &Measured) -> f64 {
        let work = if self.counts_operations() { measured.operations } else { measured.bytes };
        measured.cpu_seconds / work as f64
    }
}

/// The programs of one build.
struct Build {
    judge: PathBuf,
    weir: PathBuf,
}

impl Build {
    /// The build by judge program is given; `weir` must be in the same folder.
    fn with_judge(judge: PathBuf) -> Result<Build, JudgeError> {
        let weir = judge.with_file_name("weir");
        let build = Build { judge, weir };
        for program in [&build.judge, &build.weir] {
            if !program.is_file() {
                return Err(JudgeError::Missing { what: format!("{} is not built", program.display()) });
            }
        }
        Ok(build)
    }

    fn measure(&self, row: &Row) -> Result<Measured, JudgeError> {
        let pool_folder = |pool: &str| folder().join(pool).display().to_string();
        let judge = |arguments: &[&str]| line_of(&succeeded(Command::new(&self.judge).args(arguments))?);
        match row {
            Row::Read { pool, what } => judge(&["read-bench-child", what, &pool_folder(pool), pool]),
            Row::Verify { pool } => self.verify(pool),
            Row::Write { what, disks, mib } => {
                let images = write::folder_of(disks).display().to_string();
                judge(&["write-bench-child", what, &images, disks, &mib.to_string()])
            }
            Row::Mounted { what } => {
                let program = std::env::current_exe()
                    .map_err(|source| JudgeError::Io { what: "own program".to_string(), source })?;
                let mut command = Command::new(program);
                line_of(&succeeded(command.env("WEIR_BIN", &self.weir).args(["mounted-weir-child", what]))?)
            }
        }
    }

    /// Time and processor time of `weir zdb -bcc`; bytes are those that fio would read of the pool's images.
    fn verify(&self, pool: &str) -> Result<Measured, JudgeError> {
        let before = waited_cpu_seconds();
        let begun = Instant::now();
        let mut command = Command::new(&self.weir);
        succeeded(command.args(["zdb", "-e", "-p"]).arg(folder().join(pool)).args([pool, "-bcc"]))?;
        Ok(Measured {
            bytes: read::data_bytes(pool),
            operations: 1,
            seconds: begun.elapsed().as_secs_f64(),
            peak_bytes: peak_bytes(SELF),
            cpu_seconds: waited_cpu_seconds() - before,
        })
    }
}

/// Processor time of all children that this process has waited for (`proc(5)`, fields cutime and cstime), in seconds.
fn waited_cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_the_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    after_the_name.split_whitespace().skip(13).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>()
        / 100.0
}

/// Measurements of one row by both builds, a pair per round.
#[derive(Default)]
struct Pairs {
    this: Vec<Measured>,
    other: Vec<Measured>,
}

impl Pairs {
    /// Measures a row by both builds, one directly after the other.
    fn measure(&mut self, row: &Row, this: &Build, other: &Build, this_first: bool) -> Result<(), JudgeError> {
        let (mine, theirs) = if this_first {
            (this.measure(row)?, other.measure(row)?)
        } else {
            let theirs = other.measure(row)?;
            (this.measure(row)?, theirs)
        };
        self.this.push(mine);
        self.other.push(theirs);
        Ok(())
    }
}

/// Compares this build with another: `OTHER-JUDGE [--rounds N] [--only TEXT]`.
///
/// `OTHER-JUDGE` is the program `weir-judge` of the other build, with `weir` beside it; rows by name contains `TEXT`
/// are run.
///
/// # Errors
/// If a program, a pool or fio is missing, or a measurement fails.
pub fn run(arguments: &[String], report: &mut Report) -> Result<(), JudgeError> {
    let value = |name: &str| arguments.iter().position(|a| a == name).and_then(|at| arguments.get(at + 1));
    let rounds = value("--rounds").and_then(|n| n.parse().ok()).unwrap_or(ROUNDS).max(2);
    let rows: Vec<Row> =
        Row::all().into_iter().filter(|row| value("--only").is_none_or(|only| row.name().contains(only))).collect();
    let other = arguments.first().filter(|first| !first.starts_with("--"));
    let other = other.ok_or_else(|| JudgeError::Missing { what: "name the other build's weir-judge".to_string() })?;
    let own = std::env::current_exe().map_err(|source| JudgeError::Io { what: "own program".to_string(), source })?;
    let tolerance = value("--processor").and_then(|n| n.parse::<f64>().ok()).map(|percent| percent / 100.0);
    let (this, other) = both(Build::with_judge(own), Build::with_judge(PathBuf::from(other)))?;
    mounted::remove_leftovers(&folder());
    write::prepare(&folder().join("write"))?;
    let mut rows: Vec<(Row, Pairs)> = rows.into_iter().map(|row| (row, Pairs::default())).collect();
    for round in 0..rounds {
        let mut measured = Vec::new();
        for (row, mut pairs) in rows {
            match pairs.measure(&row, &this, &other, round % 2 == 0) {
                Ok(()) => measured.push((row, pairs)),
                Err(error) if error.to_string().contains(super::UNKNOWN) => {
                    line(&format!("{}: left out, since one build does not know it", row.name()));
                }
                Err(error) => return Err(error),
            }
        }
        rows = measured;
        line(&format!("round {} of {rounds} done", round + 1));
    }
    line("| | this | other | speed, 95 % | processor time, 95 % | |");
    line("|---|---|---|---|---|---|");
    for (row, pairs) in &rows {
        print(row, pairs, tolerance, report);
    }
    Ok(())
}

fn both<T>(first: Result<T, JudgeError>, second: Result<T, JudgeError>) -> Result<(T, T), JudgeError> {
    Ok((first?, second?))
}

fn print(row: &Row, pairs: &Pairs, processor_tolerance: Option<f64>, report: &mut Report) {
    let speed = Interval::of(&ratios(pairs, |measured| row.speed(measured)));
    let cost = Interval::of(&ratios(pairs, |measured| row.cost(measured)));
    let mean = |all: &[Measured]| all.iter().map(|measured| row.speed(measured)).sum::<f64>() / all.len() as f64;
    let unit = if row.counts_operations() { "/s" } else { " MB/s" };
    let verdict = match processor_tolerance {
        Some(tolerance) if cost.low > 1.0 + tolerance => Verdict::Worse,
        Some(_) => Verdict::NotWorse,
        None => verdict(&speed, &cost),
    };
    line(&format!(
        "| {} | {:.0}{unit} | {:.0}{unit} | {speed} | {cost} | {verdict} |",
        row.name(),
        mean(&pairs.this),
        mean(&pairs.other)
    ));
    if verdict == Verdict::Worse { report.failed += 1 } else { report.passed += 1 }
}

/// Ratios of this build's figure to the other's, one per round.
fn ratios(pairs: &Pairs, figure: impl Fn(&Measured) -> f64) -> Vec<f64> {
    pairs.this.iter().zip(&pairs.other).map(|(this, other)| figure(this) / figure(other)).collect()
}

/// Geometric mean of ratios with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Interval {
    mean: f64,
    low: f64,
    high: f64,
}

impl Interval {
    /// Student's t on the logarithms of the ratios; at least two are needed, otherwise the interval is unbounded.
    fn of(ratios: &[f64]) -> Interval {
        let count = ratios.len() as f64;
        let logs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
        let mean = logs.iter().sum::<f64>() / count;
        let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (count - 1.0);
        let quantile = StudentsT::new(0.0, 1.0, count - 1.0).map_or(f64::INFINITY, |t| t.inverse_cdf(0.975));
        let half = quantile * (variance / count).sqrt();
        Interval { mean: mean.exp(), low: (mean - half).exp(), high: (mean + half).exp() }
    }

    /// Whether the interval is narrower than the tolerance on both sides.
    fn is_narrow(&self) -> bool {
        self.high / self.mean <= 1.0 + TOLERANCE && self.mean / self.low <= 1.0 + TOLERANCE
    }
}

impl std::fmt::Display for Interval {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.3} ({:.3} to {:.3})", self.mean, self.low, self.high)
    }
}

/// Verdict on this build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Not shown to be worse by more than the tolerance.
    NotWorse,
    /// Shown to be worse by more than the tolerance.
    Worse,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Verdict::NotWorse => "not worse",
            Verdict::Worse => "WORSE",
        })
    }
}

fn verdict(speed: &Interval, cost: &Interval) -> Verdict {
    let slower = speed.high < 1.0 - TOLERANCE;
    let costlier = !speed.is_narrow() && cost.low > 1.0 + TOLERANCE;
    if slower || costlier { Verdict::Worse } else { Verdict::NotWorse }
}

/// Measures one row through `weir mount` with the program that `WEIR_BIN` names; prints one line.
pub fn mounted_main(what: &str) -> ExitCode {
    let image = write::folder_of("single").join("d0.img");
    match measure_mounted(what, &image) {
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

fn measure_mounted(what: &str, image: &Path) -> Result<Measured, JudgeError> {
    let image = image.canonicalize().map_err(|source| JudgeError::Io { what: image.display().to_string(), source })?;
    mounted::measure(MountedBy::Weir, &image, what, 1280)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_students() {
        // Quantile of t with 3 degrees of freedom at 0.975: 3.18245. Logarithms 0, 0.1, 0.2, 0.3: mean 0.15, deviation
        // 0.129099, so the half width is 3.18245 × 0.129099 / 2.
        let interval = Interval::of(&[1.0, 0.1_f64.exp(), 0.2_f64.exp(), 0.3_f64.exp()]);
        assert!((interval.mean.ln() - 0.15).abs() < 1e-9);
        assert!((interval.high.ln() - 0.15 - 0.205_426).abs() < 1e-4, "{interval}");
        assert!((interval.low.ln() - 0.15 + 0.205_426).abs() < 1e-4, "{interval}");
        assert!(!interval.is_narrow());
    }

    #[test]
    fn a_row_is_worse_only_if_its_whole_interval_is() {
        let same = Interval { mean: 1.0, low: 0.99, high: 1.01 };
        let noisy = Interval { mean: 0.9, low: 0.7, high: 1.15 };
        let slower = Interval { mean: 0.9, low: 0.88, high: 0.92 };
        let costlier = Interval { mean: 1.2, low: 1.1, high: 1.3 };
        assert_eq!(verdict(&same, &same), Verdict::NotWorse);
        assert_eq!(verdict(&slower, &same), Verdict::Worse);
        assert_eq!(verdict(&noisy, &same), Verdict::NotWorse, "a wide interval alone shows nothing");
        assert_eq!(verdict(&noisy, &costlier), Verdict::Worse, "then processor time decides");
        assert_eq!(verdict(&same, &costlier), Verdict::NotWorse, "a narrow speed interval is enough");
    }

    #[test]
    fn every_row_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<String> = Row::all().iter().map(Row::name).collect();
        assert_eq!(names.len(), Row::all().len());
    }
}

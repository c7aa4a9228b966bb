//! Runs fio and reads its answers.
//!
//! fio (GPL) is a program of its own: it gets a job file and writes `json+` (fio(1), OUTPUT). Both stay in the directory of the
//! results. Rates second by second come from its bandwidth logs, whose rows are milliseconds, KiB/s, direction (0 read, 1 write) and
//! block size.

use crate::clock;
use crate::error::LabError;
use crate::load::{Engine, Load, Stability, job_file};
use crate::result::{Flow, Latency, Round, Second};
use crate::target::Target;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How often a running fio is looked after.
const POLL: Duration = Duration::from_millis(100);

/// Figure of a round: mean time of a write without the flush after it, if fio measured them apart.
pub const WRITE_ALONE: &str = "write_without_flush_mean_ns";

/// Figure of a round: mean time of the flush after a write, if fio measured them apart.
pub const FLUSH_ALONE: &str = "flush_mean_ns";

/// An installed fio, and the I/O engine that works for a target.
#[derive(Debug, Clone)]
pub struct Fio {
    /// Version, such as `fio-3.33`.
    pub version: String,
    /// Interface for the target.
    pub engine: Engine,
    /// Whether the client's page cache is bypassed.
    pub is_direct: bool,
    /// How writes are made stable.
    pub stability: Stability,
}

/// Watches a running load.
pub trait Monitor {
    /// Is called at least every quarter of a second with the seconds since the load began; `false` stops the load.
    fn poll(&mut self, seconds: f64) -> bool;
}

impl Fio {
    /// Finds fio, and the best interface that works on the target: asynchronous before synchronous, direct before cached.
    ///
    /// # Errors
    /// If fio is not installed or no interface works; the message says why.
    pub fn find(target: &Target) -> Result<Self, LabError> {
        let asked = Command::new("fio").arg("--version").stdin(Stdio::null()).output();
        let version = match asked {
            Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
            _ => {
                let what =
                    "not found; install it (package fio in Debian, Ubuntu, Fedora, FreeBSD and Homebrew)".to_owned();
                return Err(LabError::Program { program: "fio", what });
            }
        };
        if let Target::Nbd(_) = target {
            return Ok(Self { version, engine: Engine::Nbd, is_direct: true, stability: Stability::Fsync });
        }
        let stability = if has_dsync() { Stability::Dsync } else { Stability::Fdatasync };
        let mut last = String::new();
        for (engine, is_direct) in [
            (Engine::IoUring, true),
            (Engine::Libaio, true),
            (Engine::Psync, true),
            (Engine::IoUring, false),
            (Engine::Psync, false),
        ] {
            match probe(target, engine, is_direct) {
                Ok(()) => return Ok(Self { version, engine, is_direct, stability }),
                Err(text) => last = text,
            }
        }
        Err(LabError::Program { program: "fio", what: format!("cannot use the target: {last}") })
    }

    /// Runs a load. Files of the run are `FOLDER/NAME.fio`, `NAME.json` and logs. `None` if the monitor stopped it.
    ///
    /// # Errors
    /// If fio cannot be started, ends with an error, or writes something other than json+.
    pub fn run(
        &self,
        name: &str,
        load: &Load,
        target: &Target,
        folder: &Path,
        monitor: &mut dyn Monitor,
    ) -> Result<Option<Round>, LabError> {
        let stem = file_stem(name);
        let logs = folder.join(&stem);
        remove_logs(folder, &stem);
        let job = folder.join(format!("{stem}.fio"));
        let answer = folder.join(format!("{stem}.json"));
        std::fs::write(&job, job_file(name, load, target, self, &logs)).map_err(LabError::io(&job))?;
        let errors = folder.join(format!("{stem}.err"));
        let mut child = start(&job, &answer, &errors, load.writes())?;
        let watch = clock::Stopwatch::start();
        let status = loop {
            if let Some(status) = child.try_wait().map_err(LabError::io(Path::new("fio")))? {
                break status;
            }
            if !monitor.poll(watch.seconds()) {
                stop(&mut child);
                return Ok(None);
            }
            clock::sleep(POLL);
        };
        if !monitor.poll(watch.seconds()) {
            return Ok(None);
        }
        let text = std::fs::read_to_string(&answer).unwrap_or_default();
        if !status.success() {
            return Err(LabError::Program { program: "fio", what: complaint(&errors, &text) });
        }
        let mut round = parse(&answer.display().to_string(), &text, load)?;
        let _ = std::fs::remove_file(&errors);
        round.series = series(folder, &stem);
        remove_logs(folder, &stem);
        Ok(Some(round))
    }
}

/// Whether this fio can open a file with `O_DSYNC`: older versions know only `O_SYNC`.
fn has_dsync() -> bool {
    let asked = Command::new("fio").arg("--cmdhelp=sync").stdin(Stdio::null()).output();
    asked.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("dsync"))
}

/// Reads one block through an interface, in a file made for it or from the target itself.
fn probe(target: &Target, engine: Engine, is_direct: bool) -> Result<(), String> {
    let mut command = Command::new("fio");
    command.args(["--name=probe", "--bs=4k", "--size=4k", "--number_ios=1", "--thread", "--output-format=terse"]);
    command.arg(format!("--ioengine={}", engine.name())).arg(format!("--direct={}", u8::from(is_direct)));
    let mut made: Option<PathBuf> = None;
    match target {
        Target::Directory(path) => {
            let file = path.join(format!("{}.probe", crate::load::FILE_PREFIX));
            command.arg("--rw=write").arg(format!("--filename={}", file.display().to_string().replace(':', "\\:")));
            made = Some(file);
        }
        Target::File(path) | Target::Device(path) => {
            command.args(["--rw=read", "--readonly"]);
            command.arg(format!("--filename={}", path.display().to_string().replace(':', "\\:")));
        }
        Target::Nbd(_) | Target::Network(_) | Target::InProcess(_) => {}
    }
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string());
    if let Some(file) = made {
        let _ = std::fs::remove_file(file);
    }
    let output = output?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    match output.status.success() {
        true => Ok(()),
        false => Err(text
            .lines()
            .find(|line| line.contains("err") || line.contains("fail"))
            .unwrap_or("fio failed")
            .trim()
            .to_owned()),
    }
}

/// Starts fio; a load that only reads is run with `--readonly`, with which fio refuses to write.
///
/// Its messages go to a file, because a pipe that is read only at the end stops a program that writes more than the pipe holds.
fn start(job: &Path, answer: &Path, errors: &Path, writes: bool) -> Result<Child, LabError> {
    let messages = std::fs::File::create(errors).map_err(LabError::io(errors))?;
    let mut command = Command::new("fio");
    command.args(["--output-format=json+", "--eta=never"]).arg("--output").arg(answer).arg(job);
    if !writes {
        command.arg("--readonly");
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(messages);
    command.spawn().map_err(|error| LabError::Program { program: "fio", what: error.to_string() })
}

/// Ends a load: fio closes its files on SIGINT. A fio that does not end within ten seconds is killed.
fn stop(child: &mut Child) {
    if let Ok(id) = i32::try_from(child.id())
        && let Some(process) = rustix::process::Pid::from_raw(id)
    {
        let _ = rustix::process::kill_process(process, rustix::process::Signal::INT);
    }
    for _ in 0..100 {
        if matches!(child.try_wait(), Ok(Some(_)) | Err(_)) {
            return;
        }
        clock::sleep(POLL);
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// The line that fio wrote about its failure.
fn complaint(errors: &Path, answer: &str) -> String {
    let text = std::fs::read_to_string(errors).unwrap_or_default();
    let lines: Vec<&str> = text.lines().chain(answer.lines()).map(str::trim).collect();
    let says = |marks: &[&str]| lines.iter().copied().find(|line| marks.iter().any(|mark| line.contains(mark)));
    let line = says(&["Bad option", "error="]).or_else(|| says(&["fio:"]));
    line.map_or_else(|| "failed without a message".to_owned(), |line| line.trim_start_matches("fio: ").to_owned())
}

/// Name of a step as part of a file name.
#[must_use]
pub fn file_stem(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect()
}

fn logs_of(folder: &Path, stem: &str) -> Vec<PathBuf> {
    let start = format!("{stem}_bw.");
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&start)))
        .collect()
}

fn remove_logs(folder: &Path, stem: &str) {
    for path in logs_of(folder, stem) {
        let _ = std::fs::remove_file(path);
    }
}

/// Sums the workers' logs by second.
fn series(folder: &Path, stem: &str) -> Vec<Second> {
    let mut seconds = BTreeMap::new();
    for path in logs_of(folder, stem) {
        for line in std::fs::read_to_string(path).unwrap_or_default().lines() {
            add_row(&mut seconds, line);
        }
    }
    let last = seconds.keys().max().copied().unwrap_or_default();
    (1..=last).map(|second| seconds.get(&second).copied().unwrap_or_default()).collect()
}

/// Adds a row of a bandwidth log to its second.
fn add_row(seconds: &mut BTreeMap<u64, Second>, line: &str) -> Option<()> {
    let fields: Vec<u64> = line.split(',').map_while(|field| field.trim().parse().ok()).collect();
    let bytes = fields.get(1)?.checked_mul(1024)?;
    // A row ends its second: 1001 ms stands for the first one. A day has 86,400, a year would be an error of fio's.
    let second = fields.first()?.checked_add(500)? / 1000;
    if !(1..=31_536_000).contains(&second) {
        return None;
    }
    let entry = seconds.entry(second).or_default();
    match fields.get(2)? {
        0 => entry.read_bytes = entry.read_bytes.checked_add(bytes)?,
        _ => entry.written_bytes = entry.written_bytes.checked_add(bytes)?,
    }
    Some(())
}

/// Reads fio's json+ of one job (with `group_reporting`) that carried `load`.
///
/// # Errors
/// If the text is not JSON or names no job.
pub fn parse(name: &str, text: &str, load: &Load) -> Result<Round, LabError> {
    // fio puts messages before and after the object.
    let from = text.find('{').unwrap_or(0);
    let to = text.rfind('}').map_or(text.len(), |end| end + 1).max(from);
    let value: Value = serde_json::from_str(&text[from..to]).map_err(|error| LabError::format(name, error))?;
    let job = value["jobs"].get(0).ok_or_else(|| LabError::format(name, "no job in fio's answer"))?;
    let number = |value: &Value| value.as_f64().unwrap_or_default();
    let flow = |direction: &str| {
        let operations = job[direction]["total_ios"].as_u64().unwrap_or_default();
        // fio counts the bytes of operations that were in flight at the end of the ramp, but not these operations.
        let bytes = match load.blocks[..] {
            [(block_bytes, _)] => operations.saturating_mul(block_bytes),
            _ => job[direction]["io_bytes"].as_u64().unwrap_or_default(),
        };
        Flow { bytes, operations }
    };
    let seconds = number(&job["read"]["runtime"]).max(number(&job["write"]["runtime"])) / 1000.0;
    let worker_seconds = number(&job["job_runtime"]) / 1000.0;
    let cpu = (number(&job["usr_cpu"]) + number(&job["sys_cpu"])) / 100.0 * worker_seconds;
    let (latency, figures) = latency(job, load.sync);
    Ok(Round {
        seconds,
        read: flow("read"),
        written: flow("write"),
        latency,
        figures,
        client_cpu_seconds: Some(cpu),
        ..Round::default()
    })
}

/// Latencies of one direction of fio's answer.
#[derive(Default)]
struct Part {
    bins: BTreeMap<u64, u64>,
    sum: f64,
    count: f64,
    max_ns: u64,
}

impl Part {
    fn of(job: &Value, direction: &str) -> Self {
        let value = &job[direction]["lat_ns"];
        let count = value["N"].as_f64().unwrap_or_default();
        let mut part = Self { count, ..Self::default() };
        if count > 0.0 {
            part.sum = value["mean"].as_f64().unwrap_or_default() * count;
            part.max_ns = value["max"].as_u64().unwrap_or_default();
        }
        for (bound, operations) in value["bins"].as_object().into_iter().flatten() {
            let Ok(bound) = bound.parse() else { continue };
            part.add(bound, operations.as_u64().unwrap_or_default());
        }
        part
    }

    fn mean(&self) -> f64 {
        self.sum / self.count.max(1.0)
    }

    fn add(&mut self, ns: u64, operations: u64) {
        let total = self.bins.entry(bucket(ns)).or_default();
        *total = total.saturating_add(operations);
    }

    /// Latencies of two kinds of operations.
    fn merged(mut self, other: &Self) -> Self {
        for (bound, operations) in &other.bins {
            self.add(*bound, *operations);
        }
        let (sum, count, max_ns) = (self.sum + other.sum, self.count + other.count, self.max_ns.max(other.max_ns));
        Self { sum, count, max_ns, ..self }
    }

    /// Latencies of operations that are each followed by a flush.
    ///
    /// The mean is exact. fio does not say which flush followed which write: the distribution is that of independent ones.
    fn followed_by(&self, flush: &Self) -> Self {
        let flushes: u64 = flush.bins.values().fold(0, |sum, count| sum.saturating_add(*count));
        let mut shares: BTreeMap<u64, f64> = BTreeMap::new();
        for (write_ns, writes) in &self.bins {
            for (flush_ns, count) in &flush.bins {
                let both = bucket(write_ns.saturating_add(*flush_ns));
                *shares.entry(both).or_default() += *writes as f64 * (*count as f64 / flushes.max(1) as f64);
            }
        }
        Self {
            bins: shares.into_iter().map(|(ns, share)| (ns, share.round() as u64)).filter(|(_, n)| *n > 0).collect(),
            sum: (self.mean() + flush.mean()) * self.count,
            count: self.count,
            max_ns: self.max_ns.saturating_add(flush.max_ns),
        }
    }
}

/// Latency of reads and writes. If `flushes`, each write contains the flush after it, and its parts are figures beside it.
fn latency(job: &Value, flushes: bool) -> (Option<Latency>, BTreeMap<String, f64>) {
    let mut write = Part::of(job, "write");
    let flush = Part::of(job, "sync");
    let mut figures = BTreeMap::new();
    // A write to a file that is open with O_DSYNC includes its flush; fio counts no flush of its own then.
    if flushes && write.count > 0.0 && flush.count > 0.0 {
        figures.insert(WRITE_ALONE.to_owned(), write.mean());
        figures.insert(FLUSH_ALONE.to_owned(), flush.mean());
        write = write.followed_by(&flush);
    }
    let all = Part::of(job, "read").merged(&write);
    let mean_ns = all.mean();
    ((all.count > 0.0).then(|| from_histogram(all.bins.into_iter().collect(), mean_ns, all.max_ns)), figures)
}

/// Latency from its histogram: percentiles are upper bounds of their buckets, at most the largest value.
#[must_use]
pub fn from_histogram(histogram: Vec<(u64, u64)>, mean_ns: f64, max_ns: u64) -> Latency {
    let total: u64 = histogram.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count));
    let at = |share: f64| {
        let rank = (share * total as f64).ceil().max(1.0) as u64;
        let mut seen = 0_u64;
        let found = histogram.iter().find(|(_, count)| {
            seen = seen.saturating_add(*count);
            seen >= rank
        });
        found.map_or(max_ns, |(bound, _)| (*bound).min(max_ns))
    };
    let [p50_ns, p95_ns, p99_ns, p999_ns] = [0.5, 0.95, 0.99, 0.999].map(at);
    Latency { mean_ns, p50_ns, p95_ns, p99_ns, p999_ns, max_ns, histogram }
}

/// Upper bound of the bucket of a latency: eight buckets between two powers of two.
#[must_use]
pub fn bucket(ns: u64) -> u64 {
    if ns < 8 {
        return ns;
    }
    let shift = ns.ilog2() - 3;
    (((ns >> shift) + 1) << shift).saturating_sub(1).max(ns)
}

/// Fuzz body of the readers of fio's answers and logs.
pub fn fuzz(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    for sync in [false, true] {
        let _ = parse("input", &text, &Load { sync, ..Load::sequential(4096, 0) });
    }
    let mut seconds = BTreeMap::new();
    for line in text.lines() {
        let _ = add_row(&mut seconds, line);
    }
}

#[cfg(test)]
#[path = "fio_tests.rs"]
mod tests;

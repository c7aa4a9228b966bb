//! Benchmark of pools on an object store: versitygw over a folder, local log and special devices in a folder beside it.
//!
//! In each round the store by itself and each layout do the same work, one after the other; a row shows the median of all rounds
//! with the least and the most, and the median of the ratios of the rounds. Client and server share the machine, and its page cache.
//!
//! ```text
//!   row            work of Weir                                   compared with
//!   write          a file in records of 1 MiB, fsync, and a txg   PUT of as many objects of 1 MiB, 16 at the same time
//!   read           the file, after the pool was opened again      GET of as many objects of 1 MiB, 16 at the same time
//!   fsync          4 KiB and an fsync, one after the other        the same on a pool with a local disk and a local log
//! ```
//!
//! Beside each: the requests for each GB of payload, and what they cost at [`PRICES`].
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use super::{Measured, folder, line_of};
use crate::object::store::Started;
use crate::report::{Report, line};
use crate::{JudgeError, io, wrong};
use weir_object_store::counters::{Counts, KINDS};
use weir_object_store::prices::Prices;

/// Default number of rounds, and of MiB that are written and read.
const ROUNDS: usize = 5;
const MIB: u64 = 1024;
/// Least ratio of each row.
const TARGET: f64 = 0.7;
/// Size of local devices and of disks in the store.
const LOCAL_BYTES: u64 = 2 << 30;
/// Prices of 1,000 requests: an example, within what stores ask.
const PRICES: &str = "[[store]]\nurl = \"s3://\"\ncurrency = \"USD\"\nput_per_1000 = 0.005\nget_per_1000 = 0.0004\n";

/// Layouts of pools on the store, and how rows name them.
const LAYOUTS: [(&str, &str); 3] =
    [("alone", "store alone"), ("log", "with a local log"), ("log-special", "with local log and special")];

/// Runs the benchmark: `--rounds N`, `--mib N`, `--only write|read|fsync`.
///
/// # Errors
/// Errors if versitygw is missing, or a measurement fails.
pub fn run(arguments: &[String], report: &mut Report) -> Result<(), JudgeError> {
    let value = |name: &str| arguments.iter().position(|a| a == name).and_then(|at| arguments.get(at + 1));
    let number = |name: &str| value(name).and_then(|n| n.parse::<u64>().ok());
    let rounds = number("--rounds").map_or(ROUNDS, |n| n as usize).max(1);
    let mib = number("--mib").unwrap_or(MIB).max(1);
    let only = value("--only").map(String::as_str);
    let home = folder().join("object");
    std::fs::create_dir_all(&home).map_err(io("a folder"))?;
    let store = match Started::within("versitygw", &home) {
        Err(JudgeError::Missing { what }) => {
            report.skip("bench object", &what);
            return Ok(());
        }
        started => started?,
    };
    let devices = tempfile::tempdir_in(&home).map_err(io("a folder"))?;
    let mut bench = Bench { store, devices: devices.path().to_path_buf(), mib, rounds: Vec::new() };
    for number in 0..rounds {
        let round = bench.round(number, only)?;
        bench.rounds.push(round);
    }
    bench.rows(report)
}

/// Measurements of a round: names, figures and requests.
type Round = Vec<(String, Measured, Counts)>;

struct Bench {
    store: Started,
    devices: PathBuf,
    mib: u64,
    rounds: Vec<Round>,
}

impl Bench {
    /// Runs a measuring process.
    fn measure(&self, words: &[&str]) -> Result<(Measured, Counts), JudgeError> {
        let text = self.store.program("object-bench-child", words)?;
        Ok((line_of(&text)?, requests_of(&text)))
    }

    /// A local device of its own: written before, so that nothing pays for the allocation of its blocks.
    fn local(&self, name: &str) -> Result<String, JudgeError> {
        let path = self.devices.join(name);
        if !path.is_file() {
            let file = std::fs::File::create(&path).map_err(io("a device"))?;
            let piece = vec![0; 8 << 20];
            for _ in 0..LOCAL_BYTES >> 23 {
                std::io::Write::write_all(&mut &file, &piece).map_err(io("a device"))?;
            }
            file.sync_all().map_err(io("a device"))?;
        }
        Ok(path.display().to_string())
    }

    /// The devices of a pool on the store. Its disk is new in each round.
    fn devices(&self, layout: &str, disk: &str) -> Result<Vec<String>, JudgeError> {
        let mut devices = vec![format!("{}?size={LOCAL_BYTES}", self.store.url(disk))];
        if layout != "alone" {
            devices.push(self.local("log")?);
        }
        if layout == "log-special" {
            devices.push(self.local("special")?);
        }
        Ok(devices)
    }

    fn round(&self, number: usize, only: Option<&str>) -> Result<Round, JudgeError> {
        let wants = |row: &str| only.is_none_or(|only| only == row);
        let mib = self.mib.to_string();
        // Prefixes are never used twice, also not by a run that was ended.
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let name = |what: &str| format!("{what}-{number}-{seconds}");
        let mut round = Round::new();
        let mut add = |row: String, measured: Result<(Measured, Counts), JudgeError>| {
            let (measured, requests) = measured?;
            round.push((row, measured, requests));
            Ok::<(), JudgeError>(())
        };
        let raw = self.store.url(&name("raw"));
        if wants("write") || wants("read") {
            add("PUT".into(), self.measure(&["put", &raw, &mib]))?;
        }
        for (layout, _) in LAYOUTS {
            let disk = name(layout);
            let devices = self.devices(layout, &disk)?;
            let devices: Vec<&str> = devices.iter().map(String::as_str).collect();
            if wants("write") || wants("read") {
                add(format!("write {layout}"), self.measure(&[&["write", layout, &mib], &devices[..]].concat()))?;
            }
            if wants("read") {
                // The pool is read right after the store by itself was.
                add(format!("GET {layout}"), self.measure(&["get", &raw, &mib]))?;
                add(format!("read {layout}"), self.measure(&[&["read", layout, &mib], &devices[..]].concat()))?;
            }
            self.store.remove(&disk);
        }
        self.store.remove(&name("raw"));
        if wants("fsync") {
            let local = [self.local("data")?, self.local("log")?];
            add("fsync local".into(), self.measure(&["synced", "log", "0", &local[0], &local[1]]))?;
            for (layout, _) in LAYOUTS {
                let disk = name(&format!("fsync-{layout}"));
                let devices = self.devices(layout, &disk)?;
                let devices: Vec<&str> = devices.iter().map(String::as_str).collect();
                add(format!("fsync {layout}"), self.measure(&[&["synced", layout, "0"], &devices[..]].concat()))?;
                self.store.remove(&disk);
            }
        }
        Ok(round)
    }

    /// Prints the rows and counts which targets are met.
    fn rows(&self, report: &mut Report) -> Result<(), JudgeError> {
        line(&format!("{:<42} {:>25} {:>30} {:>11} {:>6}", "", "Weir", "beside", "ratio", "target"));
        for (row, peer) in [("write", "PUT"), ("read", "GET"), ("fsync", "fsync local")] {
            for (layout, shown) in LAYOUTS {
                let peer = if row == "read" { format!("{peer} {layout}") } else { peer.to_string() };
                // Without a local log, each fsync waits for the store.
                let target = (row != "fsync" || layout != "alone").then_some(TARGET);
                let pairs = self.pairs(&format!("{row} {layout}"), &peer);
                if !pairs.is_empty() {
                    self.row(row, &format!("{row}, {shown} / {peer}"), &pairs, target, report);
                    self.costs(&format!("{row} {layout}"))?;
                }
            }
        }
        Ok(())
    }

    /// The figures of a measurement and of its peer in each round.
    fn pairs(&self, name: &str, peer: &str) -> Vec<(Measured, Measured)> {
        let of = |round: &Round, name: &str| {
            round.iter().find(|(known, ..)| known == name).map(|(_, measured, _)| *measured)
        };
        self.rounds.iter().filter_map(|round| Some((of(round, name)?, of(round, peer)?))).collect()
    }

    fn row(&self, row: &str, shown: &str, pairs: &[(Measured, Measured)], target: Option<f64>, report: &mut Report) {
        let (unit, value): (_, fn(&Measured) -> f64) =
            if row == "fsync" { ("op/s", Measured::per_second) } else { ("MB/s", Measured::mb_per_second) };
        let ours: Vec<f64> = pairs.iter().map(|(ours, _)| value(ours)).collect();
        let peer: Vec<f64> = pairs.iter().map(|(_, peer)| value(peer)).collect();
        let ratios: Vec<f64> = ours.iter().zip(&peer).map(|(ours, peer)| ours / peer).collect();
        let ratio = super::write::median(&ratios);
        let (wanted, verdict) = super::verdict(report, ratio, target);
        let (ours, peer) = (super::write::spread(&ours), super::write::spread(&peer));
        line(&format!("{shown:<42} {ours:>25} {unit} {peer:>25} {unit} {ratio:>6.2} {wanted:>6} {verdict}"));
    }

    /// Prints the requests of a measurement for each GB, and their price, as the mean of the rounds; processor time and memory.
    fn costs(&self, name: &str) -> Result<(), JudgeError> {
        let prices = Prices::parse(PRICES).map_err(|why| wrong("prices", why))?;
        let price = prices.of("s3://bucket/disk").ok_or_else(|| wrong("prices", "none applies"))?;
        let mut sum = (0.0, 0.0, 0, [0.0; 4], 0.0, 0.0);
        let all = self.rounds.iter().flatten().filter(|(known, ..)| known == name);
        for (_, measured, counts) in all {
            sum.0 += measured.bytes as f64 / 1e9;
            sum.1 += measured.cpu_seconds;
            sum.2 = sum.2.max(measured.peak_bytes);
            for (kind, _) in KINDS {
                sum.3[kind as usize] += counts.requests[kind as usize] as f64;
                sum.4 += price.of_requests(kind, counts).nanos as f64 / 1e9;
            }
            sum.5 += counts.retries as f64;
        }
        let (gb, cpu_seconds, peak_bytes, requests, cost, retries) = sum;
        let requests: Vec<String> =
            KINDS.iter().map(|(kind, name)| format!("{name} {:.0}", requests[*kind as usize] / gb)).collect();
        line(&format!(
            "  per GB: {}, of these repeated {:.0}; {:.4} USD; processor {:.2} s; peak memory {:.0} MB",
            requests.join(", "),
            retries / gb,
            cost / gb,
            cpu_seconds / gb,
            peak_bytes as f64 / 1e6,
        ));
        Ok(())
    }
}

/// The requests that a measuring process printed; none without the line.
fn requests_of(text: &str) -> Counts {
    let line = text.lines().find_map(|line| line.strip_prefix("requests ")).unwrap_or_default();
    let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    match numbers.as_slice() {
        [get, put, head, delete, retries, read_bytes, written_bytes] => Counts {
            requests: [*get, *put, *head, *delete],
            retries: *retries,
            read_bytes: *read_bytes,
            written_bytes: *written_bytes,
            ..Counts::default()
        },
        _ => Counts::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_those_of_the_line() {
        let counts = requests_of("groups 3\nrequests 1 2 3 4 5 6 7\nmeasured 1 1 1 1 1\n");
        assert_eq!((counts.requests, counts.retries), ([1, 2, 3, 4], 5));
        assert_eq!((counts.read_bytes, counts.written_bytes), (6, 7));
        assert_eq!(requests_of("requests 1 2"), Counts::default());
    }
}

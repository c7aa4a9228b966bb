//! Benchmark of writes: Weir and its peers on the same files in the same minutes, as ratios.
//!
//! The files are in `target/bench/write/LAYOUT`. They are written once before, so that no contestant pays for the
//! allocation of their blocks. In each round fio writes them with direct I/O, and Weir makes a new pool on them and
//! writes it. Payload is compared, up to and including the last fsync. A row shows the median of all rounds with the
//! minimum and the maximum. Its ratio is the median of the ratios of the rounds, because what slows one contestant down
//! mostly slows down its neighbour as well.
//!
//! ```text
//!   row      work of Weir                                         compared with
//!   single   1 MiB after 1 MiB into a file, fsync                 fio, 128 KiB, io_uring, all files at once, fsync
//!   raidz2   the same; of six disks four carry payload            … × 4/6
//!   mirror   the same; everything is written twice                …
//!   synced   4 KiB, fsync, over and over; then by 32 at once      fio, 4 KiB, O_DSYNC; ourselves with one writer
//!   random   8 KiB anywhere in a file of 8 KiB records, fsync     fio, 8 KiB anywhere, 32 at once, fsync
//!   lz4      as single: source text; pages half noise, half zeros Weir without compression
//!   small    100,000 files of 4 KiB by 8 clients: make, write,    zfs-fuse, btrfs, xfs, all through mounts
//!            fsync each; remove all, fsync the directories; then
//!            make all, sync once, remove all, sync
//!   mounted  single and synced (one writer) through a mount       zfs-fuse, btrfs, xfs
//! ```
//!
//! On a machine with other load, a contestant that waits for a processor waits for whole time slices, which distorts
//! every figure. `chrt -r 5 target/release/weir-judge write-bench` gives all contestants priority.
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::mounted::{self, MountedBy};
use super::write_child::{RANDOM_TIME, budget_bytes};
use super::{Measured, fio_uring, folder, line_of, measuring, verdict};
use crate::JudgeError;
use crate::report::{Report, line};

/// Default number of rounds.
const ROUNDS: usize = 5;
/// Maximum ratio of peak memory to its budget.
const MEMORY_SLACK: f64 = 1.2;
/// Minimum gain of 32 synchronous writers over one.
const GROUP_COMMIT: f64 = 6.0;

/// Minimum gain over zfs-fuse with small files.
const SMALL_FILES_GAIN: f64 = 3.0;

/// Disks that are written.
pub(super) struct Disks {
    pub(super) name: &'static str,
    about: &'static str,
    pub(super) images: u64,
    pub(super) image_mib: u64,
    /// Amount that fio writes to each image, in MiB.
    pub(super) each_mib: u64,
    payload_mib: u64,
    /// Maximum share of payload in the written bytes.
    share: f64,
    /// Minimum ratio.
    target: f64,
}

pub(super) const SINGLE: Disks = Disks {
    name: "single",
    about: "one disk",
    images: 1,
    image_mib: 2048,
    each_mib: 1280,
    payload_mib: 1280,
    share: 1.0,
    target: 0.7,
};
/// One disk with room for data that is overwritten: a nearly full pool waits for freed space.
pub(super) const ROOMY: Disks = Disks { name: "roomy", image_mib: 8192, ..SINGLE };
pub(super) const RAIDZ2: Disks = Disks {
    name: "raidz2",
    about: "RAID-Z2 of six",
    images: 6,
    image_mib: 512,
    each_mib: 256,
    payload_mib: 1024,
    share: 4.0 / 6.0,
    target: 0.7,
};
pub(super) const MIRROR: Disks = Disks {
    name: "mirror",
    about: "mirror of two",
    images: 2,
    image_mib: 1280,
    each_mib: 768,
    payload_mib: 768,
    share: 1.0,
    target: 0.45,
};
/// Size of the file that is overwritten at random.
pub(super) const RANDOM_MIB: u64 = 512;

/// Runs the benchmark: `--rounds N`, `--only ROW`.
///
/// # Errors
/// Errors if fio is missing, or a measurement fails.
pub fn run(arguments: &[String], report: &mut Report) -> Result<(), JudgeError> {
    let value = |name: &str| arguments.iter().position(|a| a == name).and_then(|at| arguments.get(at + 1));
    let rounds = value("--rounds").and_then(|n| n.parse().ok()).unwrap_or(ROUNDS).max(1);
    let only = value("--only");
    let wanted = |row: &str| only.is_none_or(|only| only == row);
    mounted::remove_leftovers(&folder());
    let mut bench = Bench { home: folder().join("write"), rounds, report };
    line(&format!("{:<36} {:>30} {:>30} {:>6} {:>6}", "", "Weir", "beside", "ratio", "target"));
    for disks in [&SINGLE, &RAIDZ2, &MIRROR] {
        if wanted(disks.name) {
            bench.sequential(disks)?;
        }
    }
    if wanted("synced") {
        bench.synced()?;
    }
    if wanted("random") {
        bench.random()?;
    }
    if wanted("lz4") {
        bench.lz4("half", "half zeros")?;
        bench.lz4("text", "source text")?;
    }
    if wanted("small") {
        bench.small("small", "small files")?;
        bench.small("small-once", "small files, one sync")?;
    }
    if wanted("mounted") {
        bench.mounted("sequential", "mounted, sequential", "MB/s", Measured::mb_per_second)?;
        bench.mounted("synced-1", "mounted, 4K and fsync", "op/s", Measured::per_second)?;
    }
    Ok(())
}

struct Bench<'a> {
    home: PathBuf,
    rounds: usize,
    report: &'a mut Report,
}

/// Results of one contestant in all rounds.
type Rounds = Vec<Measured>;

/// Results of Weir, in the engine and through a mount.
#[derive(Default)]
struct Ours {
    engine: Rounds,
    mounted: Rounds,
}

impl Bench<'_> {
    /// Returns the files of these disks.
    fn images(&self, disks: &Disks) -> Result<Vec<PathBuf>, JudgeError> {
        images(&self.home, disks)
    }

    fn ours(&self, what: &str, disks: &Disks, mib: u64) -> Result<(Measured, String), JudgeError> {
        let folder = self.home.join(disks.name);
        let printed = measuring(&["write-bench-child", what, &path(&folder)?, disks.name, &mib.to_string()])?;
        let measured = line_of(&printed)?;
        Ok((measured, printed))
    }

    fn sequential(&mut self, disks: &Disks) -> Result<(), JudgeError> {
        let images = self.images(disks)?;
        let size = format!("--size={}m", disks.each_mib);
        let depth = format!("--iodepth={}", 32_u64.div_ceil(disks.images));
        let mut ours = Rounds::new();
        let mut raw = Rounds::new();
        for _ in 0..self.rounds {
            raw.push(fio_uring("write", &images, &["--bs=128k", &depth, "--offset=5m", &size])?);
            ours.push(self.ours("sequential", disks, disks.payload_mib)?.0);
        }
        let payload = |raw: &Measured| raw.mb_per_second() * disks.share;
        let beside = if disks.share < 1.0 { "/ fio × 4/6" } else { "/ fio" };
        let name = format!("{}, sequential {beside}", disks.about);
        self.row(&name, "MB/s", (&ours, Measured::mb_per_second), (&raw, payload), Some(disks.target));
        self.costs(disks.about, &ours);
        Ok(())
    }

    fn synced(&mut self) -> Result<(), JudgeError> {
        let images = self.images(&SINGLE)?;
        let mut one = Rounds::new();
        let mut many = Rounds::new();
        let mut raw = Rounds::new();
        for _ in 0..self.rounds {
            let arguments = ["--ioengine=psync", "--sync=dsync", "--rw=write", "--bs=4k", "--offset=5m", "--size=1g"];
            let timed = ["--time_based", "--runtime=4"];
            raw.push(super::fio(
                "write",
                &images,
                &arguments.iter().chain(&timed).map(|a| a.to_string()).collect::<Vec<_>>(),
            )?);
            one.push(self.ours("synced-1", &SINGLE, 0)?.0);
            many.push(self.ours("synced-32", &SINGLE, 0)?.0);
        }
        let per_second = Measured::per_second;
        self.row("4K and fsync, 1 writer / O_DSYNC", "op/s", (&one, per_second), (&raw, per_second), Some(0.7));
        self.row("32 writers / 1 writer", "op/s", (&many, per_second), (&one, per_second), Some(GROUP_COMMIT));
        self.costs("synced", &many);
        Ok(())
    }

    fn random(&mut self) -> Result<(), JudgeError> {
        let images = self.images(&SINGLE)?;
        let mut ours = Rounds::new();
        let mut raw = Rounds::new();
        let mut groups = Vec::new();
        let size = format!("--size={RANDOM_MIB}m");
        let time = format!("--runtime={}", RANDOM_TIME.as_secs());
        for _ in 0..self.rounds {
            let arguments = ["--bs=8k", "--iodepth=32", "--offset=5m", &size, &time, "--time_based", "--norandommap"];
            raw.push(fio_uring("randwrite", &images, &arguments)?);
            let (measured, printed) = self.ours("random", &SINGLE, RANDOM_MIB)?;
            ours.push(measured);
            groups.extend(printed.lines().find_map(|line| line.strip_prefix("groups ")?.parse::<u64>().ok()));
        }
        let per_second = Measured::per_second;
        self.row("random 8K overwrites / fio", "op/s", (&ours, per_second), (&raw, per_second), Some(0.3));
        let least = groups.iter().min().copied().unwrap_or_default();
        line(&format!("{:<36} {least} transaction groups or more in each round", "random 8K overwrites"));
        self.costs("random 8K overwrites", &ours);
        Ok(())
    }

    fn lz4(&mut self, data: &str, about: &str) -> Result<(), JudgeError> {
        self.images(&SINGLE)?;
        let mut packed = Rounds::new();
        let mut plain = Rounds::new();
        for _ in 0..self.rounds {
            plain.push(self.ours(&format!("plain-{data}"), &SINGLE, SINGLE.payload_mib)?.0);
            packed.push(self.ours(&format!("lz4-{data}"), &SINGLE, SINGLE.payload_mib)?.0);
        }
        let rate = Measured::mb_per_second;
        self.row(&format!("{about}, lz4 / off"), "MB/s", (&packed, rate), (&plain, rate), Some(1.0));
        self.costs(&format!("{about}, lz4"), &packed);
        Ok(())
    }

    /// Measures small files. The row of the engine has no target, because its peers go through the kernel.
    fn small(&mut self, what: &str, name: &str) -> Result<(), JudgeError> {
        self.images(&SINGLE)?;
        let (ours, peers) = self.by_mount(what, &mut |bench| Ok(bench.ours(what, &SINGLE, 0)?.0))?;
        let per_second = Measured::per_second;
        for (by, rounds) in &peers {
            let target = (*by == MountedBy::ZfsFuse).then_some(SMALL_FILES_GAIN);
            let row = format!("{name}, mounted / {}", by.name());
            self.row(&row, "/s  ", (&ours.mounted, per_second), (rounds, per_second), target);
            if *by == MountedBy::ZfsFuse {
                self.row(
                    &format!("{name}, in the engine / zfs-fuse"),
                    "/s  ",
                    (&ours.engine, per_second),
                    (rounds, per_second),
                    None,
                );
            }
        }
        self.costs(&format!("{name}, in the engine"), &ours.engine);
        self.costs(&format!("{name}, mounted"), &ours.mounted);
        Ok(())
    }

    fn mounted(
        &mut self,
        what: &str,
        name: &str,
        unit: &str,
        value: impl Fn(&Measured) -> f64 + Copy,
    ) -> Result<(), JudgeError> {
        self.images(&SINGLE)?;
        let (ours, peers) = self.by_mount(what, &mut |_| Ok(Measured::default()))?;
        for (by, rounds) in &peers {
            self.row(&format!("{name} / {}", by.name()), unit, (&ours.mounted, value), (rounds, value), None);
        }
        self.costs(name, &ours.mounted);
        Ok(())
    }

    /// Measures Weir and its peers through their mounts, in turn. Peers that this machine lacks are reported and left
    /// out.
    fn by_mount(
        &mut self,
        what: &str,
        in_the_engine: &mut dyn FnMut(&mut Self) -> Result<Measured, JudgeError>,
    ) -> Result<(Ours, BTreeMap<MountedBy, Rounds>), JudgeError> {
        let image = self.images(&SINGLE)?.swap_remove(0);
        let mut ours = Ours::default();
        let mut peers: BTreeMap<MountedBy, Rounds> =
            MountedBy::PEERS.into_iter().map(|by| (by, Rounds::new())).collect();
        for _ in 0..self.rounds {
            for by in peers.keys().copied().collect::<Vec<_>>() {
                match mounted::measure(by, &image, what, SINGLE.payload_mib) {
                    Ok(measured) => peers.entry(by).or_default().push(measured),
                    Err(JudgeError::Missing { what }) => {
                        self.report.skip(by.name(), &what);
                        peers.remove(&by);
                    }
                    Err(error) => return Err(error),
                }
            }
            let measured = mounted::measure(MountedBy::Weir, &image, what, SINGLE.payload_mib)?;
            ours.mounted.push(measured);
            ours.engine.push(in_the_engine(self)?);
        }
        Ok((ours, peers))
    }

    /// Prints a row and records whether it meets the target.
    fn row(
        &mut self,
        name: &str,
        unit: &str,
        (ours, of_ours): (&Rounds, impl Fn(&Measured) -> f64),
        (peer, of_peer): (&Rounds, impl Fn(&Measured) -> f64),
        target: Option<f64>,
    ) {
        let ours: Vec<f64> = ours.iter().map(of_ours).collect();
        let peer: Vec<f64> = peer.iter().map(of_peer).collect();
        let ratio = median(&ours.iter().zip(&peer).map(|(ours, peer)| ours / peer).collect::<Vec<_>>());
        let (wanted, met) = verdict(self.report, ratio, target);
        line(&format!(
            "{name:<36} {:>25} {unit} {:>25} {unit} {ratio:>6.2} {wanted:>6} {met}",
            spread(&ours),
            spread(&peer)
        ));
    }

    /// Prints the processor time of the row above, and its memory, which has a target of its own.
    fn costs(&mut self, name: &str, ours: &Rounds) {
        let busy: Vec<f64> = ours.iter().map(|m| m.cpu_seconds / m.seconds).collect();
        let each: Vec<f64> = ours.iter().map(|m| m.cpu_seconds * 1e6 / m.operations as f64).collect();
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let per_gib = median(&ours.iter().map(Measured::cpu_seconds_per_gib).collect::<Vec<_>>());
        let (busy, each) = (median(&busy), median(&each));
        line(&format!(
            "{:<36} {busy:.2} of {cores} cores busy, {each:.0} µs an operation, {per_gib:.2} s/GiB",
            format!("  {name}: processor")
        ));
        let budget = budget_bytes() as f64;
        let peak = ours.iter().map(|m| m.peak_bytes).max().unwrap_or_default() as f64;
        let (_, met) = verdict(self.report, budget * MEMORY_SLACK / peak, Some(1.0));
        line(&format!(
            "{:<36} {:.0} MB, {:.2} of cache and dirty limit ({:.0} MB), at most {MEMORY_SLACK}: {}",
            format!("  {name}: peak memory"),
            peak / 1e6,
            peak / budget,
            budget / 1e6,
            met
        ));
    }
}

/// Returns the files of these disks in a folder below `home`, which were written once.
pub(super) fn images(home: &Path, disks: &Disks) -> Result<Vec<PathBuf>, JudgeError> {
    let home = home.join(disks.name);
    let io = |source| JudgeError::Io { what: home.display().to_string(), source };
    std::fs::create_dir_all(&home).map_err(io)?;
    let home = home.canonicalize().map_err(io)?;
    let images: Vec<_> = (0..disks.images).map(|number| home.join(format!("d{number}.img"))).collect();
    let there = |image: &PathBuf| image.metadata().is_ok_and(|found| found.len() == disks.image_mib << 20);
    let made = home.join(".made");
    if !images.iter().all(there) || !made.exists() {
        fio_uring("write", &images, &["--bs=1m", "--iodepth=4", &format!("--size={}m", disks.image_mib)])?;
        std::fs::write(made, []).map_err(io)?;
    }
    Ok(images)
}

/// Makes the files of all disks.
pub(super) fn prepare(home: &Path) -> Result<(), JudgeError> {
    [&SINGLE, &RAIDZ2, &MIRROR].into_iter().try_for_each(|disks| images(home, disks).map(drop))
}

/// Returns the folder of the files of one kind of disks.
pub(super) fn folder_of(disks: &str) -> PathBuf {
    folder().join("write").join(disks)
}

fn path(path: &Path) -> Result<String, JudgeError> {
    let absolute = path.canonicalize().map_err(|source| JudgeError::Io { what: path.display().to_string(), source })?;
    Ok(absolute.display().to_string())
}

pub(super) fn median(of: &[f64]) -> f64 {
    weir_lab::statistics::median(of).unwrap_or(f64::NAN)
}

/// Median, minimum and maximum.
pub(super) fn spread(of: &[f64]) -> String {
    let least = of.iter().copied().fold(f64::INFINITY, f64::min);
    let most = of.iter().copied().fold(0.0, f64::max);
    format!("{:.0} ({least:.0} to {most:.0})", median(of))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_is_between_the_two_in_the_middle() {
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
    }
}

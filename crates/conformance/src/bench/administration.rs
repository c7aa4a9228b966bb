//! Benchmark of commands on a pool that a server has open: what they cost with few and with many datasets, and what lists
//! cost a writer.
//!
//! ```text
//!   weir zfs create ×10,000 ─┐
//!   weir zfs set    ×10,000 ─┼─► weir serve ─► one file
//!   NBD writes ──────────────┘
//! ```
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::{folder, succeeded};
use crate::JudgeError;
use crate::nbd::NbdDevice;
use crate::process::{Serving, weir};
use crate::report::{Report, line};

const POOL: &str = "b-many";
const VOLUME: &str = "b-many/volume";
const DEVICE_BYTES: u64 = 8 << 30;
/// Datasets after which the series are compared.
const FEW: u32 = 1_000;
const MANY: u32 = 10_000;
/// Maximum time of [`MANY`] commands, relative to that of [`FEW`]: their number, and a tenth.
const GROWTH: f64 = 11.0;
/// Line of the log for each txg that a reader has delayed by 10 ms.
const SYNCER_WAITED: &str = "the syncer waited for";
/// Pause between two lists.
const LIST_PAUSE: Duration = Duration::from_millis(200);
/// Minimum throughput of a writer while lists are read, relative to that without.
const KEPT: f64 = 0.9;
/// Rounds of writing, each with and without lists, and the time of each.
const ROUNDS: usize = 7;
const WINDOW: Duration = Duration::from_secs(4);
/// Writes of the writer.
const WRITE_BYTES: usize = 1 << 20;
const VOLUME_BYTES: u64 = 1 << 30;

/// Runs the benchmark on a pool that it makes and removes.
///
/// # Errors
/// If a command fails, or the folder cannot be written.
pub fn run(report: &mut Report) -> Result<(), JudgeError> {
    let home = folder().join(POOL);
    let failed = |source| JudgeError::Io { what: home.display().to_string(), source };
    if home.exists() {
        std::fs::remove_dir_all(&home).map_err(failed)?;
    }
    std::fs::create_dir_all(&home).map_err(failed)?;
    let home = home.canonicalize().map_err(failed)?;
    let device = home.join("d0");
    std::fs::File::create(&device).and_then(|file| file.set_len(DEVICE_BYTES)).map_err(failed)?;
    let commands = Commands { home: home.clone(), weir: weir()? };
    commands.run(&["zpool", "create", POOL, &device.display().to_string()])?;
    commands.run(&["zfs", "create", "-V", &format!("{}M", VOLUME_BYTES >> 20), VOLUME])?;
    let server = Serving::logging(&home, POOL)?;
    let done = lists(report, &commands, &server).and_then(|()| series(report, &commands));
    let log = server.stop_and_read()?;
    let waits = log.iter().filter(|line| line.contains(SYNCER_WAITED)).count();
    judge(report, format!("the syncer waited {waits} times for a reader longer than 10 ms (aim: never)"), waits == 0);
    std::fs::remove_dir_all(&home).map_err(failed)?;
    done
}

/// Runs commands as an administrator does: each is a process.
struct Commands {
    home: PathBuf,
    weir: PathBuf,
}

impl Commands {
    fn run(&self, arguments: &[&str]) -> Result<String, JudgeError> {
        succeeded(command(&self.weir, &self.home).args(arguments))
    }

    /// Runs a command for each number, and returns the time that they took.
    fn each(
        &self,
        what: &str,
        numbers: std::ops::Range<u32>,
        arguments: impl Fn(&str) -> Vec<String>,
    ) -> Result<Duration, JudgeError> {
        let begun = Instant::now();
        for n in numbers.clone() {
            let arguments = arguments(&format!("{POOL}/d{n}"));
            succeeded(command(&self.weir, &self.home).args(&arguments))?;
            let done = n + 1 - numbers.start;
            if done.is_multiple_of(FEW) {
                let left = begun.elapsed().mul_f64(f64::from(numbers.end - n - 1) / f64::from(done));
                line(&format!("  {what}: {} of {}, {} s left", n + 1, numbers.end, left.as_secs()));
            }
        }
        Ok(begun.elapsed())
    }
}

fn command(weir: &Path, home: &Path) -> Command {
    let mut command = Command::new(weir);
    command.env("WEIR_POOL_DIRS", home);
    command
}

/// Creates datasets and sets a property of each, when there are few and when there are many.
fn series(report: &mut Report, commands: &Commands) -> Result<(), JudgeError> {
    let create = |name: &str| ["zfs", "create", name].map(str::to_string).to_vec();
    let set = |name: &str| ["zfs", "set", "compression=zstd", name].map(str::to_string).to_vec();
    let few_created = commands.each("create", 0..FEW, create)?;
    let few_set = commands.each("set", 0..FEW, set)?;
    let many_created = few_created + commands.each("create", FEW..MANY, create)?;
    let many_set = commands.each("set", 0..MANY, set)?;
    for (what, few, many) in [("zfs create", few_created, many_created), ("zfs set", few_set, many_set)] {
        let growth = many.as_secs_f64() / few.as_secs_f64();
        let about = format!(
            "{what}: {FEW} datasets {:.1} s, {MANY} datasets {:.1} s: {growth:.2} times (at most {GROWTH})",
            few.as_secs_f64(),
            many.as_secs_f64()
        );
        judge(report, about, growth <= GROWTH);
    }
    Ok(())
}

/// Writes to a volume with and without lists in the same minutes.
fn lists(report: &mut Report, commands: &Commands, server: &Serving) -> Result<(), JudgeError> {
    let address = server.nbd.ok_or_else(|| JudgeError::Missing { what: "an address for NBD".to_string() })?;
    let failed = |error: crate::tree::TreeError| JudgeError::Missing { what: error.to_string() };
    let mut device = NbdDevice::open(address, VOLUME).map_err(failed)?;
    let mut at = 0;
    let mut ratios = Vec::new();
    let lists = AtomicUsize::new(0);
    // The first round fills the volume's blocks.
    write(&mut device, &mut at).map_err(failed)?;
    for _ in 0..ROUNDS {
        let alone = write(&mut device, &mut at).map_err(failed)?;
        let is_over = AtomicBool::new(false);
        let beside = std::thread::scope(|scope| {
            let lister = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    commands.run(&["zfs", "list"])?;
                    commands.run(&["zpool", "status", POOL])?;
                    lists.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(LIST_PAUSE);
                }
                Ok::<_, JudgeError>(())
            });
            let beside = write(&mut device, &mut at).map_err(failed);
            is_over.store(true, Ordering::Relaxed);
            let listed = lister.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            listed.and(beside)
        })?;
        ratios.push(beside / alone);
    }
    ratios.sort_by(f64::total_cmp);
    let middle = ratios.get(ROUNDS / 2).copied().unwrap_or_default();
    let about = format!(
        "writing beside zfs list and zpool status every {} ms: {middle:.2} of the throughput (at least {KEPT}; rounds {}; {} lists)",
        LIST_PAUSE.as_millis(),
        ratios.iter().map(|ratio| format!("{ratio:.2}")).collect::<Vec<_>>().join(" "),
        lists.load(Ordering::Relaxed)
    );
    judge(report, about, middle >= KEPT);
    Ok(())
}

fn judge(report: &mut Report, about: String, is_good: bool) {
    if is_good { report.pass("scan", &about) } else { report.fail("scan", &[about]) }
}

/// Writes for one window, flushes, and returns the bytes per second.
fn write(device: &mut NbdDevice, at: &mut u64) -> Result<f64, crate::tree::TreeError> {
    let mut data = vec![0; WRITE_BYTES];
    let begun = Instant::now();
    let mut written = 0;
    while begun.elapsed() < WINDOW {
        // Blocks that differ and do not compress.
        let mut word = *at ^ 0x9e37_79b9_7f4a_7c15;
        for chunk in data.chunks_exact_mut(8) {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        device.write(*at, &data, false)?;
        *at = (*at + WRITE_BYTES as u64) % VOLUME_BYTES;
        written += WRITE_BYTES as u64;
    }
    device.flush()?;
    Ok(written as f64 / begun.elapsed().as_secs_f64())
}

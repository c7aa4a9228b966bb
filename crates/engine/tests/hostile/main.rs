//! Malformed pools: no bytes on a disk make Weir panic, hang or exhaust memory.
//!
//! ```text
//!   golden images on simulated disks ─► blocks read without checksums, corrupted by the seed ─► every query runs once
//!                                       (see weir_blocks::fault_injection)
//! ```
//!
//! Checksums keep random damage from the decoders, but an attacker who crafts a pool computes its checksums, too.
//! Therefore checksums are not verified here, and metadata are corrupted after they are read: before decompression in a
//! quarter of the seeds, after it in the others. Results may be wrong and may be errors. The test fails on a panic, on many
//! times the steps or time that any healthy pool needs, and on memory use beyond [`MEMORY_BYTES`].
//!
//! `WEIR_HOSTILE_SEEDS` is the number of seeds per pool (2 if unset), `WEIR_HOSTILE_FIRST` the first seed,
//! `WEIR_HOSTILE_POOLS` the names of the pools.

#![allow(clippy::disallowed_methods, reason = "the watchdog measures real time on its own thread")]
#![allow(clippy::unwrap_used, reason = "a failed setup step fails the test")]

mod corruption;
mod drive;
mod wide;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weir_sim::{SimWorld, Timing};

/// Small pools that together have every structure.
const POOLS: [&str; 14] = [
    "single-a9",
    "mirror2-a12",
    "v28",
    "longname-s",
    "snaps",
    "quota",
    "props",
    "removal",
    "enc",
    "zil-main",
    "gang",
    "bclone",
    "dedup-fast",
    "special",
];
/// Maximum polls and events of one seed.
const MAX_STEPS: u64 = 20_000_000;
/// Maximum time of one seed, in a debug build on a loaded machine.
const MAX_SEED_TIME: Duration = Duration::from_secs(60);
/// Maximum growth of the address space during the whole test.
const MEMORY_BYTES: u64 = 1 << 30;

thread_local! {
    /// Message and backtrace of this thread's last panic.
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// A golden pool, unpacked.
struct Golden {
    name: String,
    folder: tempfile::TempDir,
    pool: String,
    devices: Vec<String>,
    keys: Vec<(String, Vec<u8>)>,
}

impl Golden {
    fn unpack(name: &str) -> Option<Golden> {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden");
        let from = std::env::var_os("WEIR_GOLDEN").map_or(top, PathBuf::from);
        let Ok(text) = std::fs::read(from.join(format!("{name}.json"))) else {
            eprintln!("skipped: no golden {name} in {} (WEIR_GOLDEN)", from.display());
            return None;
        };
        let about: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let archive = from.join(format!("{name}.tar.zst"));
        let unpack = "zstd -dc \"$0\" | tar -xSf - -C \"$1\"";
        let status = Command::new("sh").args(["-c", unpack]).arg(archive).arg(folder.path()).status().unwrap();
        assert!(status.success(), "unpacking {name}");
        let device = |d: &serde_json::Value| d["file"].as_str().unwrap().to_owned();
        let devices = about["devices"].as_array().unwrap().iter().map(device).collect();
        let pool = about["pool"].as_str().unwrap().to_owned();
        let keys = about["keys"].as_object().into_iter().flatten();
        let key = |(root, key): (&String, &serde_json::Value)| {
            let secret = key["passphrase"].as_str().or(key["hex"].as_str()).or(key["raw_hex"].as_str());
            (format!("{pool}/{root}"), secret.unwrap_or_default().as_bytes().to_vec())
        };
        let keys = keys.map(key).collect();
        Some(Golden { name: name.to_owned(), folder, devices, keys, pool })
    }
}

/// Sums over all seeds.
#[derive(Default)]
struct Sum {
    seeds: AtomicU64,
    opened: AtomicU64,
    corrupted: AtomicU64,
    answers: AtomicU64,
    errors: AtomicU64,
}

/// Runs one seed on one pool. Returns the panic or the exceeded limit as an error.
fn run(golden: &Golden, seed: u64, sum: &Sum) -> Result<(), String> {
    let world = SimWorld::new(seed);
    world.limit_steps(MAX_STEPS);
    for device in &golden.devices {
        let image = golden.folder.path().join(device);
        world.add_image(Path::new("/sim").join(device), &image, Timing::Nvme).unwrap();
    }
    let marks = corruption::Marks::default();
    let mut options = drive::options(Path::new("/sim"), &golden.pool, &golden.keys);
    options.forger = Some(corruption::corrupter(seed, marks.clone()));
    let machine = world.machine();
    let ran = catch_unwind(AssertUnwindSafe(|| {
        // Most pools that are corrupted from the start do not open.
        let counters = world.run(drive::drive(&machine, &options, &marks, !seed.is_multiple_of(2)));
        world.power_failure();
        counters
    }));
    sum.seeds.fetch_add(1, Ordering::Relaxed);
    sum.corrupted.fetch_add(marks.blocks.load(Ordering::Relaxed), Ordering::Relaxed);
    let counters = match ran {
        Ok(Ok(counters)) => counters,
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err(PANIC.take()),
    };
    sum.opened.fetch_add(counters.opened.into(), Ordering::Relaxed);
    sum.answers.fetch_add(counters.answers, Ordering::Relaxed);
    sum.errors.fetch_add(counters.errors, Ordering::Relaxed);
    Ok(())
}

/// Peak address space of this process in bytes.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmPeak:"));
    line.and_then(|l| l.trim().strip_suffix(" kB")).and_then(|l| l.trim().parse::<u64>().ok()).map_or(0, |k| k << 10)
}

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|s| s.parse().ok()).unwrap_or(otherwise)
}

/// Runs `work`. If it exceeds [`MAX_SEED_TIME`], prints `what` and aborts the process, because an endless loop cannot be
/// unwound.
fn with_watchdog<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let (done, over) = std::sync::mpsc::channel::<()>();
    let name = what.to_owned();
    let guard = std::thread::spawn(move || {
        if over.recv_timeout(MAX_SEED_TIME) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            eprintln!("{name}: not finished within {MAX_SEED_TIME:?}");
            std::process::abort();
        }
    });
    let out = work();
    drop(done);
    guard.join().unwrap();
    out
}

#[test]
fn corrupted_blocks_cause_no_panic_hang_or_memory_exhaustion() {
    let note = |info: &std::panic::PanicHookInfo<'_>| {
        let trace = std::backtrace::Backtrace::capture();
        PANIC.set(format!("{info}\n{trace}"));
    };
    std::panic::set_hook(Box::new(note));
    let wanted = std::env::var("WEIR_HOSTILE_POOLS").ok();
    let names = wanted.as_deref().map_or(POOLS.to_vec(), |w| w.split(',').collect());
    let goldens: Vec<Golden> = names.into_iter().filter_map(Golden::unpack).collect();
    let first = number("WEIR_HOSTILE_FIRST", 0);
    let seeds = number("WEIR_HOSTILE_SEEDS", 2);
    let sum = Sum::default();
    let next = AtomicU64::new(0);
    let findings = std::sync::Mutex::new(Vec::new());
    let start = Instant::now();
    let before = peak_bytes();
    let memory = AtomicU64::new(before + MEMORY_BYTES);
    let worker = || {
        loop {
            let run_number = next.fetch_add(1, Ordering::Relaxed);
            let seed = first + run_number / goldens.len() as u64;
            let pool = run_number % goldens.len() as u64;
            if seed >= first + seeds {
                return;
            }
            let golden = &goldens[pool as usize];
            let what = format!("{}, seed {seed}", golden.name);
            let began = Instant::now();
            let found = with_watchdog(&what, || run(golden, seed, &sum));
            if began.elapsed() > MAX_SEED_TIME / 10 {
                eprintln!("{what}: slow, {:?}", began.elapsed());
            }
            let peak = peak_bytes();
            let grown = peak > memory.fetch_max(peak, Ordering::Relaxed);
            let grown = grown.then(|| format!("{} MiB", (peak - before) >> 20));
            if let Some(error) = found.err().or(grown) {
                eprintln!("{what}: {error}");
                findings.lock().unwrap().push(what);
            }
        }
    };
    if !goldens.is_empty() {
        std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(worker))));
    }
    let _ = std::panic::take_hook();
    let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
    eprintln!(
        "{} seeds, {} blocks corrupted, {} pools opened, {} results, {} errors, {} MiB more, {:?}",
        of(&sum.seeds),
        of(&sum.corrupted),
        of(&sum.opened),
        of(&sum.answers),
        of(&sum.errors),
        (peak_bytes() - before) >> 20,
        start.elapsed()
    );
    let findings = findings.into_inner().unwrap();
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
    assert!(
        goldens.is_empty() || of(&sum.corrupted) > 0 && of(&sum.errors) > 0 && of(&sum.opened) > 0,
        "no seed had an effect"
    );
}

//! Hostile pools: no bytes on a disk make Weir panic, hang or eat memory.
//!
//! ```text
//!   golden images on simulated disks ─► blocks without proof, each forged by the seed ─► everything is asked once
//!                                       (see weir_blocks::fault_injection)
//! ```
//!
//! Checksums keep chance damage from the decoders, but who forges a pool forges its checksums too. So here blocks are
//! not proven, and metadata are changed on their way up: before decompression in a quarter of the seeds, after it in
//! the others. Answers may be wrong and may be errors. What must not be is a panic, more steps or more time than any
//! healthy pool needs by far, or memory beyond [`MEMORY_BYTES`].
//!
//! `WEIR_HOSTILE_SEEDS` (2 if unset) says how many seeds each pool gets, `WEIR_HOSTILE_FIRST` where they begin,
//! `WEIR_HOSTILE_POOLS` which pools.

#![allow(clippy::disallowed_methods, reason = "the guard against a hang measures real time, on a thread of its own")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]

mod drive;
mod forge;
mod wide;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weir_sim::{SimWorld, Timing};

/// Small pools that between them have every structure.
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
/// Polls and events of one seed.
const STEPS: u64 = 20_000_000;
/// Time of one seed, in a debug build on a busy machine.
const TIME: Duration = Duration::from_secs(60);
/// Address space that the whole test may add while it runs, whatever is forged.
const MEMORY_BYTES: u64 = 1 << 30;

thread_local! {
    /// Where this thread's last panic was.
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

/// What all seeds came to.
#[derive(Default)]
struct Sum {
    seeds: AtomicU64,
    opened: AtomicU64,
    forged: AtomicU64,
    answers: AtomicU64,
    errors: AtomicU64,
}

/// One seed against one pool; what is wrong with it.
fn run(golden: &Golden, seed: u64, sum: &Sum) -> Result<(), String> {
    let world = SimWorld::new(seed);
    world.limit_steps(STEPS);
    for device in &golden.devices {
        let image = golden.folder.path().join(device);
        world.add_image(Path::new("/sim").join(device), &image, Timing::Nvme).unwrap();
    }
    let marks = forge::Marks::default();
    let mut options = drive::options(Path::new("/sim"), &golden.pool, &golden.keys);
    options.forger = Some(forge::forger(seed, marks.clone()));
    let machine = world.machine();
    let ran = catch_unwind(AssertUnwindSafe(|| {
        // Most pools that are forged from the start do not open.
        let tally = world.run(drive::drive(&machine, &options, &marks, !seed.is_multiple_of(2)));
        world.power_failure();
        tally
    }));
    sum.seeds.fetch_add(1, Ordering::Relaxed);
    sum.forged.fetch_add(marks.blocks.load(Ordering::Relaxed), Ordering::Relaxed);
    let tally = match ran {
        Ok(Ok(tally)) => tally,
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err(PANIC.take()),
    };
    sum.opened.fetch_add(tally.opened.into(), Ordering::Relaxed);
    sum.answers.fetch_add(tally.answers, Ordering::Relaxed);
    sum.errors.fetch_add(tally.errors, Ordering::Relaxed);
    Ok(())
}

/// Most address space that this process ever had.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmPeak:"));
    line.and_then(|l| l.trim().strip_suffix(" kB")).and_then(|l| l.trim().parse::<u64>().ok()).map_or(0, |k| k << 10)
}

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|s| s.parse().ok()).unwrap_or(otherwise)
}

/// Runs `work` and ends the process, naming `what`, if that takes too long: a loop without end cannot be unwound.
fn watched<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let (done, over) = std::sync::mpsc::channel::<()>();
    let name = what.to_owned();
    let guard = std::thread::spawn(move || {
        if over.recv_timeout(TIME) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            eprintln!("{name}: not done within {TIME:?}");
            std::process::abort();
        }
    });
    let out = work();
    drop(done);
    guard.join().unwrap();
    out
}

#[test]
fn no_forged_block_makes_it_panic_hang_or_eat_memory() {
    let note = |info: &std::panic::PanicHookInfo<'_>| {
        let trace = std::backtrace::Backtrace::capture();
        PANIC.set(format!("{info}\n{trace}"));
    };
    std::panic::set_hook(Box::new(note));
    let wanted = std::env::var("WEIR_HOSTILE_POOLS").ok();
    let names = wanted.as_deref().map_or(POOLS.to_vec(), |w| w.split(',').collect());
    let goldens: Vec<Golden> = names.into_iter().filter_map(Golden::unpack).collect();
    let (first, seeds) = (number("WEIR_HOSTILE_FIRST", 0), number("WEIR_HOSTILE_SEEDS", 2));
    let (sum, next, findings) = (Sum::default(), AtomicU64::new(0), std::sync::Mutex::new(Vec::new()));
    let (start, before) = (Instant::now(), peak_bytes());
    let memory = AtomicU64::new(before + MEMORY_BYTES);
    let worker = || {
        loop {
            let turn = next.fetch_add(1, Ordering::Relaxed);
            let (seed, pool) = (first + turn / goldens.len() as u64, turn % goldens.len() as u64);
            if seed >= first + seeds {
                return;
            }
            let golden = &goldens[pool as usize];
            let what = format!("{}, seed {seed}", golden.name);
            let began = Instant::now();
            let found = watched(&what, || run(golden, seed, &sum));
            if began.elapsed() > TIME / 10 {
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
        "{} seeds, {} blocks forged, {} opened, {} answers, {} errors, {} MiB more, {:?}",
        of(&sum.seeds),
        of(&sum.forged),
        of(&sum.opened),
        of(&sum.answers),
        of(&sum.errors),
        (peak_bytes() - before) >> 20,
        start.elapsed()
    );
    let findings = findings.into_inner().unwrap();
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
    assert!(goldens.is_empty() || of(&sum.forged) > 0 && of(&sum.errors) > 0 && of(&sum.opened) > 0, "it was felt");
}

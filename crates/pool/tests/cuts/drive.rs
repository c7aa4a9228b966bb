//! Histories, recorded, cut and judged.

use crate::states::{Moments, Shared, When};
use crate::world::{Shape, create, dump, import, make_files, make_volume, whole, world};
use crate::{datasets, files, volume};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use weir_machine::Machine;
use weir_sim::{Moment, Recording, Replay, Rng, SimWorld};

const FILE_CLIENTS: usize = 2;
/// Bytes at each end of a device that hold labels, in which uberblocks lie.
const LABELS: u64 = 512 << 10;
const DEVICE: u64 = 64 << 20;

/// What the clients of one history know.
struct Known {
    files: Vec<Shared<files::Known>>,
    volume: Shared<volume::Known>,
    datasets: Shared<datasets::Known>,
}

impl Known {
    fn new() -> Self {
        let of = |n: usize| Arc::new(Mutex::new(files::Known::new(&format!("tank/f{n}"))));
        Known {
            files: (0..FILE_CLIENTS).map(of).collect(),
            volume: Arc::new(Mutex::new(volume::Known::new())),
            datasets: Arc::new(Mutex::new(datasets::Known::new())),
        }
    }

    fn promises(&self) -> u64 {
        let files: u64 = self.files.iter().map(|k| k.lock().unwrap().promises).sum();
        files + self.volume.lock().unwrap().promises + self.datasets.lock().unwrap().promises
    }
}

/// The same, once the history is over.
struct Judged {
    files: Vec<files::Known>,
    volume: volume::Known,
    datasets: datasets::Known,
}

impl Known {
    fn close(self) -> Judged {
        let files = self.files.iter().map(|k| std::mem::replace(&mut *k.lock().unwrap(), files::Known::new("")));
        Judged {
            files: files.collect(),
            volume: std::mem::replace(&mut *self.volume.lock().unwrap(), volume::Known::new()),
            datasets: std::mem::replace(&mut *self.datasets.lock().unwrap(), datasets::Known::new()),
        }
    }
}

/// A history, run once.
struct History {
    seed: u64,
    shape: Shape,
    known: Judged,
    recording: Recording,
    promises: u64,
    /// When the pool and what the clients work on was there.
    made: When,
}

async fn clients(machine: Machine, moments: Moments, seed: u64, shape: Shape, known: &Known, changes: u64) -> When {
    let engine = create(&machine, shape).await.unwrap();
    for n in 0..FILE_CLIENTS {
        make_files(&engine, &format!("tank/f{n}")).await;
    }
    make_volume(&engine, volume::NAME, volume::BYTES).await;
    make_files(&engine, datasets::HOME).await;
    let made = moments.now();
    let (mut rng, clock) = (Rng::new(seed), machine.clock.clone());
    let mut tasks = Vec::new();
    for known in &known.files {
        let (engine, clock, moments) = (engine.clone(), clock.clone(), moments.clone());
        let client = files::Client::new(engine, clock, moments, known.clone(), rng.fork());
        tasks.push(machine.tasks.spawn(client.run(changes)));
    }
    let (of, at, now) = (engine.clone(), clock.clone(), moments.clone());
    let client = volume::Client { engine: of, clock: at, moments: now, known: known.volume.clone(), rng: rng.fork() };
    tasks.push(machine.tasks.spawn(client.run(changes)));
    let (of, known) = (engine.clone(), known.datasets.clone());
    let client = datasets::Client { engine: of, clock, moments, known, rng: rng.fork() };
    tasks.push(machine.tasks.spawn(client.run(changes / 3)));
    for task in tasks {
        task.await.unwrap();
    }
    engine.export().await.unwrap();
    made
}

fn record(seed: u64, changes: u64) -> History {
    let shape = Shape::of(seed);
    let (world, known) = (world(seed, shape), Known::new());
    let start = world.record();
    let run = world.run(clients(world.machine(), Moments(world.clone()), seed, shape, &known, changes));
    let made = run.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    let promises = known.promises();
    History { seed, shape, known: known.close(), recording: world.recording(start), promises, made }
}

/// What is wrong after a cut, if anything. Half of the pools are walked as the cut has left them, the others after what
/// was in their logs has been written.
fn judge(known: &Judged, world: &SimWorld, cut: When) -> Result<(), String> {
    let machine = world.machine();
    let judged = world.run(async {
        let before = cut.is_multiple_of(2);
        if before {
            whole(&machine).await.map_err(|e| format!("before import: {e}"))?;
        }
        let engine = import(&machine).await.map_err(|e| format!("import: {e}"))?;
        for known in &known.files {
            files::judge(&engine, known, cut).await?;
        }
        volume::judge(&engine, &known.volume, cut).await?;
        datasets::judge(&engine, &known.datasets, cut).await?;
        if before {
            return Ok(());
        }
        engine.export().await.map_err(|e| format!("export: {e}"))?;
        whole(&machine).await.map_err(|e| format!("after replay: {e}"))
    });
    // What still runs holds the world that it runs in.
    world.power_failure();
    judged.unwrap_or_else(|e| Err(e.to_string()))
}

/// Cuts at these moments, which ascend, on all processors. The first failure of each processor.
fn cut_all(history: &History, cuts: &[When]) -> Vec<(When, String)> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let share = cuts.len().div_ceil(processors).max(1);
    let one = |cuts: &[When]| {
        let mut replay = Replay::new(&history.recording);
        for cut in cuts {
            replay.advance(*cut);
            let world = replay.cut(history.seed.wrapping_mul(1_000_003).wrapping_add(*cut));
            if let Err(why) = judge(&history.known, &world, *cut) {
                return Some((*cut, why));
            }
        }
        None
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = cuts.chunks(share).map(|cuts| scope.spawn(move || one(cuts))).collect();
        running.into_iter().filter_map(|thread| thread.join().expect("a cut panicked")).collect()
    })
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|said| said.parse().ok()).unwrap_or(otherwise)
}

/// Some of the moments since the pool was made, or all.
fn moments(history: &History, most: u64) -> Vec<When> {
    let (first, last) = (history.made, history.recording.len());
    let all = last - first;
    let count = most.min(all);
    (0..count).map(|n| first + 1 + n * all / count).collect()
}

#[test]
fn any_cut_keeps_what_was_promised() {
    let (all, first) = (number("WEIR_SIM_CUTS", 48), number("WEIR_SIM_SEED", 1));
    let (begin, mut done, mut promises, mut seed) = (Instant::now(), 0, 0, first);
    while done < all {
        // Few cuts are spread over some histories.
        let history = record(seed, 24);
        let cuts = moments(&history, (all - done).min(all.div_ceil(4).max(1)));
        promises += history.promises;
        let failures = cut_all(&history, &cuts);
        assert!(failures.is_empty(), "WEIR_SIM_SEED={seed} ({:?}): {failures:#?}", history.shape);
        done += cuts.len() as u64;
        seed += 1;
        let rate = done as f64 / begin.elapsed().as_secs_f64();
        println!("seeds {first} to {}: {done} cuts ({rate:.0}/s), {promises} promises", seed - 1);
    }
    assert!(promises > 0);
}

#[test]
fn one_seed_is_one_history() {
    let kinds = |seed| record(seed, 6).recording.moments().collect::<Vec<_>>();
    assert_eq!(kinds(3), kinds(3));
}

/// The flushes between the last write of contents and an uberblock.
fn flushes_before_uberblocks(recording: &Recording) -> Vec<usize> {
    let (mut since, mut out) = (Vec::new(), Vec::new());
    for (n, moment) in recording.moments().enumerate() {
        match moment {
            Moment::Flush { .. } => since.push(n),
            Moment::Write { offset, .. } if !(LABELS..DEVICE - LABELS).contains(&offset) => out.append(&mut since),
            Moment::Write { .. } => since.clear(),
            Moment::Other => {}
        }
    }
    out
}

#[test]
fn a_flush_left_out_before_the_uberblock_is_caught() {
    let mut history = record(10, 12);
    let flushes = flushes_before_uberblocks(&history.recording);
    assert!(!flushes.is_empty());
    history.recording.drop_flushes(&flushes);
    let cuts = moments(&history, 400);
    let caught = AtomicU64::new(0);
    // A pool that is torn may be torn in a way that ends this program's own checks.
    for cut in cuts.chunks(8) {
        caught.fetch_add(cut_all(&history, cut).len() as u64, Ordering::Relaxed);
        if caught.load(Ordering::Relaxed) > 0 {
            return;
        }
    }
    panic!("pools written without a flush before the uberblock pass: nothing here proves anything");
}

#[test]
fn zdb_finds_no_leak_after_a_cut() {
    let Some(tools) = std::env::var_os("WEIR_ZFS_TOOLS").map(PathBuf::from) else {
        return eprintln!("skipped: WEIR_ZFS_TOOLS does not name a folder with OpenZFS's programs");
    };
    let history = record(number("WEIR_SIM_SEED", 1), 24);
    let mut replay = Replay::new(&history.recording);
    // Odd numbers: these are exported in the end.
    for cut in moments(&history, 3).into_iter().map(|cut| cut | 1).filter(|cut| *cut <= history.recording.len()) {
        replay.advance(cut);
        let world = replay.cut(cut);
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cut-{cut}"));
        std::fs::create_dir_all(&dir).unwrap();
        for when in ["as it was cut", "after import"] {
            dump(&world, &dir);
            let output = std::process::Command::new(tools.join("sbin/zdb"))
                .env("LD_LIBRARY_PATH", tools.join("lib/x86_64-linux-gnu"))
                .args(["-e", "-p"])
                .arg(&dir)
                .args(["-bcc", "tank"])
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            let said = String::from_utf8_lossy(&output.stderr);
            let clean = output.status.success() && text.contains("No leaks");
            assert!(clean, "seed {}, cut {cut}, {when}: {text}{said}", history.seed);
            judge(&history.known, &world, cut).unwrap();
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

//! Driver of the test: records histories, cuts them and judges the disks that remain.

use crate::faulty_device::FaultyDevice;
use crate::judge::{Way, judge};
use crate::memo::Memo;
use crate::op_counters::{Counter, DISCARDS, OpCounters, REWOUND, SHARED};
use crate::progress::Progress;
use crate::states::{Moments, Shared, When};
use crate::world::{Home, Shape, create, make_home, scatter, world};
use crate::zdb::Zdb;
use crate::{datasets, files, volume};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use weir_machine::Machine;
use weir_sim::{Cut, Moment, Recording, Replay, Rng};

const FILE_CLIENTS: usize = 2;
/// Changes of each client in a history, and in a history that is cut at every moment.
const CHANGES: u64 = 40;
const FEW_CHANGES: u64 = 12;
/// Bytes at each end of a device that hold labels with their uberblocks.
const LABELS: u64 = 512 << 10;
const DEVICE: u64 = 64 << 20;

/// Acknowledged state of all clients of a history.
struct Known {
    files: Vec<Shared<files::Known>>,
    volume: Shared<volume::Known>,
    datasets: Shared<datasets::Known>,
    counter: Counter,
}

impl Known {
    fn new() -> Self {
        let of = |n: usize| Arc::new(Mutex::new(files::Known::new(&format!("tank/f{n}"))));
        Known {
            files: (0..FILE_CLIENTS).map(of).collect(),
            volume: Arc::new(Mutex::new(volume::Known::new())),
            datasets: Arc::new(Mutex::new(datasets::Known::new())),
            counter: Counter::default(),
        }
    }

    fn promises(&self) -> u64 {
        let files: u64 = self.files.iter().map(|k| k.lock().unwrap().promises).sum();
        files + self.volume.lock().unwrap().promises + self.datasets.lock().unwrap().promises
    }
}

/// Acknowledged state of all clients after the end of the history.
pub struct Judged {
    pub shape: Shape,
    pub files: Vec<files::Known>,
    pub volume: volume::Known,
    pub datasets: datasets::Known,
    /// Number of the volume's key in the last pool, which is tried first on the next pool.
    pub key_hint: AtomicU8,
}

impl Known {
    fn close(self, shape: Shape) -> Judged {
        let files = self.files.iter().map(|k| std::mem::replace(&mut *k.lock().unwrap(), files::Known::new("")));
        Judged {
            shape,
            files: files.collect(),
            volume: std::mem::replace(&mut *self.volume.lock().unwrap(), volume::Known::new()),
            datasets: std::mem::replace(&mut *self.datasets.lock().unwrap(), datasets::Known::new()),
            key_hint: AtomicU8::new(0),
        }
    }
}

impl Judged {
    /// Datasets that have a key.
    pub fn encrypted(&self) -> Vec<&str> {
        let files = self.files.iter().map(|known| known.dataset.as_str());
        let all = files.chain([volume::NAME, datasets::HOME]);
        all.filter(|name| self.shape.suite_of(name).is_some()).collect()
    }
}

/// A recorded history.
struct History {
    seed: u64,
    known: Judged,
    recording: Recording,
    promises: u64,
    counters: OpCounters,
    /// Moment at which the pool and the clients' datasets existed.
    made: When,
}

async fn clients(machine: Machine, moments: Moments, seed: u64, shape: Shape, known: &Known, changes: u64) -> When {
    let engine = create(&machine, shape).await.unwrap();
    let records = [128 << 10, 16 << 10];
    for (known, record_bytes) in known.files.iter().zip(records) {
        let name = known.lock().unwrap().dataset.clone();
        make_home(&engine, &machine, &name, Home::Files { record_bytes }, shape.suite_of(&name)).await;
    }
    let of_volume = shape.suite_of(volume::NAME);
    let of_sets = shape.suite_of(datasets::HOME);
    make_home(&engine, &machine, volume::NAME, Home::Volume { size_bytes: volume::BYTES }, of_volume).await;
    make_home(&engine, &machine, datasets::HOME, Home::Files { record_bytes: records[0] }, of_sets).await;
    let gaps = if shape.scattered { Some(scatter(&engine, shape).await) } else { None };
    let made = moments.now();
    let mut rng = Rng::new(seed);
    let clock = machine.clock.clone();
    let counter = known.counter.clone();
    let mut tasks = Vec::new();
    if let Some(fault) = shape.fault {
        let faulty = FaultyDevice {
            engine: engine.clone(),
            clock: clock.clone(),
            disk: moments.0.disks().remove((seed % shape.devices as u64) as usize),
            fault,
            after: Duration::from_millis(seed / 16 % 8),
            counter: counter.clone(),
        };
        tasks.push(machine.tasks.spawn(faulty.fail()));
    }
    for known in &known.files {
        let engine = engine.clone();
        let clock = clock.clone();
        let moments = moments.clone();
        let client = files::Client::new(engine, clock, moments, known.clone(), rng.fork(), counter.clone());
        tasks.push(machine.tasks.spawn(client.run(changes)));
    }
    let client = volume::Client {
        engine: engine.clone(),
        machine: machine.clone(),
        moments: moments.clone(),
        known: known.volume.clone(),
        rng: rng.fork(),
        counter: counter.clone(),
        suite: of_volume,
    };
    tasks.push(machine.tasks.spawn(client.run(changes)));
    let of = engine.clone();
    let known = known.datasets.clone();
    let client = datasets::Client { engine: of, clock, moments, known, rng: rng.fork(), counter };
    tasks.push(machine.tasks.spawn(client.run(changes * 2 / 3)));
    for task in tasks {
        task.await.unwrap();
    }
    drop(gaps);
    engine.export().await.unwrap();
    made
}

fn record(seed: u64, changes: u64) -> History {
    let shape = Shape::of(seed);
    let world = world(seed, shape);
    let known = Known::new();
    let start = world.record();
    let run = world.run(clients(world.machine(), Moments(world.clone()), seed, shape, &known, changes));
    let made = run.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    let promises = known.promises();
    let mut counters = known.counter.0.lock().unwrap().clone();
    counters.add(DISCARDS, world.disks().iter().map(|disk| disk.stats().discards).sum());
    History { seed, known: known.close(shape), recording: world.recording(start), promises, counters, made }
}

/// Cuts at moments of a history, divided into pieces for the worker threads.
struct Cutter<'a> {
    history: &'a History,
    /// Replay of the recording, and the number of moments that it has passed.
    walk: Mutex<(Replay<'a>, usize)>,
    cuts: &'a [When],
    zdb: Option<&'a Zdb>,
    failures: Mutex<Vec<(When, String)>>,
    /// Distinct states: cuts that left the same bytes count once.
    states: AtomicU64,
    memo: Memo,
}

/// Cuts of one piece. They are adjacent, so some of them leave the same bytes.
const PIECE: usize = 16;

impl<'a> Cutter<'a> {
    fn new(history: &'a History, cuts: &'a [When], zdb: Option<&'a Zdb>) -> Self {
        let walk = Mutex::new((Replay::new(&history.recording), 0));
        Cutter {
            history,
            walk,
            cuts,
            zdb,
            failures: Mutex::new(Vec::new()),
            states: AtomicU64::new(0),
            memo: Memo::default(),
        }
    }

    /// Returns the next piece: disk states after cuts, each with its moments. Empty after the last piece.
    fn piece(&self) -> Vec<(Cut, Vec<When>)> {
        let (replay, done) = &mut *self.walk.lock().unwrap();
        let mut states: BTreeMap<Vec<u64>, (Cut, Vec<When>)> = BTreeMap::new();
        for moment in self.cuts.iter().skip(*done).take(PIECE) {
            replay.advance(*moment);
            let cut = replay.cut(self.history.seed.wrapping_mul(1_000_003).wrapping_add(*moment));
            states.entry(cut.fingerprint()).or_insert((cut, Vec::new())).1.push(*moment);
            *done += 1;
        }
        states.into_values().collect()
    }

    /// Judges pieces until none is left or one has failed.
    fn work(&self) {
        while self.failures.lock().unwrap().is_empty() {
            let piece = self.piece();
            if piece.is_empty() {
                return;
            }
            for (cut, moments) in piece {
                self.states.fetch_add(1, Ordering::Relaxed);
                let known = &self.history.known;
                let zdb = self.zdb.filter(|zdb| zdb.is_due()).map(|zdb| zdb.judge(&cut.world(), known, moments[0]));
                let found = self.memo.look(known, cut, Way::of(known, moments[0]));
                let judged = found.and_then(|found| judge(&found, known, &moments)).and(zdb.unwrap_or(Ok(())));
                if let Err(why) = judged {
                    self.failures.lock().unwrap().push((moments[0], why));
                    return;
                }
            }
        }
    }

    /// Judges all cuts with one thread per processor while `beside` runs on another thread.
    fn run<T: Send>(&self, beside: impl FnOnce() -> T + Send) -> T {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            let beside = scope.spawn(beside);
            let working: Vec<_> = (0..processors).map(|_| scope.spawn(|| self.work())).collect();
            for thread in working {
                thread.join().expect("a cut panicked");
            }
            beside.join().expect("a history panicked")
        })
    }
}

pub fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// One history of seven; a long run reaches every shape.
fn is_cut_everywhere(seed: u64) -> bool {
    seed % 7 == 4
}

fn changes_of(seed: u64) -> u64 {
    if is_cut_everywhere(seed) { FEW_CHANGES } else { CHANGES }
}

/// Maximum cuts of a history in a run of `all` cuts. A long history gets only a part of them, so that a run covers many
/// histories, and a third of that if its cuts are seldom equivalent. In a long run that part exceeds the number of moments.
fn max_cuts(seed: u64, all: u64) -> u64 {
    let part = match (is_cut_everywhere(seed), Shape::of(seed).unloads_early) {
        (true, _) => 4,
        (false, false) => 16,
        (false, true) => 48,
    };
    all.div_ceil(part).max(12)
}

/// Selects up to `most` moments since the creation of the pool, evenly spaced.
fn moments(history: &History, most: u64) -> Vec<When> {
    let first = history.made;
    let last = history.recording.len();
    let all = last - first;
    let count = most.min(all);
    (0..count).map(|n| first + 1 + n * all / count).collect()
}

/// Panics on the first failure, with the variables that reproduce it.
fn fail_on_first(history: &History, cutter: &Cutter<'_>) {
    let failures = cutter.failures.lock().unwrap();
    let Some((moment, why)) = failures.first() else { return };
    let seed = history.seed;
    let shape = history.known.shape;
    panic!("WEIR_SIM_SEED={seed} WEIR_SIM_AT={moment} ({shape:?}): {why}");
}

#[test]
fn every_cut_keeps_acknowledged_state() {
    let mut progress = Progress::open();
    let all = number("WEIR_SIM_CUTS", 48);
    let zdb = number("WEIR_SIM_ZDB", 0);
    let zdb = if zdb == 0 { None } else { Zdb::find(zdb) };
    let at: Option<When> = std::env::var("WEIR_SIM_AT").ok().and_then(|text| text.parse().ok());
    let mut next = (progress.cuts < all).then(|| record(progress.next_seed(), changes_of(progress.next_seed())));
    while let Some(history) = next.take() {
        let most = max_cuts(history.seed, all).min(all - progress.cuts);
        let cuts = at.map_or_else(|| moments(&history, most), |at| vec![at]);
        let cutter = Cutter::new(&history, &cuts, zdb.as_ref());
        let more = at.is_none() && progress.cuts + (cuts.len() as u64) < all;
        let begun = Instant::now();
        let seed = history.seed + 1;
        next = cutter.run(|| more.then(|| record(seed, changes_of(seed))));
        fail_on_first(&history, &cutter);
        progress.cuts += cuts.len() as u64;
        progress.states += cutter.states.load(Ordering::Relaxed);
        progress.opened += cutter.memo.opened();
        progress.counters.add_all(&history.counters);
        progress.counters.add(SHARED, cutter.memo.sharing());
        progress.counters.add(REWOUND, cutter.memo.rewound());
        progress.promises += history.promises;
        progress.histories += 1;
        progress.zdb += zdb.as_ref().map_or(0, Zdb::take_count);
        progress.busy += begun.elapsed();
        progress.save_and_print(all);
    }
    assert!(progress.promises > 0);
    progress.counters.assert_all_occurred(if at.is_some() { 0 } else { progress.cuts });
}

#[test]
fn one_seed_is_one_history() {
    let kinds = |seed| record(seed, 6).recording.moments().collect::<Vec<_>>();
    assert_eq!(kinds(3), kinds(3));
}

/// Flushes between the last write of data and the write of an uberblock.
fn flushes_before_uberblocks(recording: &Recording) -> Vec<usize> {
    let mut since = Vec::new();
    let mut out = Vec::new();
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
fn a_missing_flush_before_the_uberblock_is_detected() {
    let mut history = record(10, 12);
    let flushes = flushes_before_uberblocks(&history.recording);
    assert!(!flushes.is_empty());
    history.recording.drop_flushes(&flushes);
    let cuts = moments(&history, 400);
    let cutter = Cutter::new(&history, &cuts, None);
    cutter.run(|| ());
    let caught = cutter.failures.lock().unwrap();
    assert!(!caught.is_empty(), "pools written without a flush before the uberblock pass: the test detects nothing");
}

#[test]
fn zdb_finds_no_leak_after_a_cut() {
    let Some(zdb) = Zdb::find(1) else {
        return eprintln!("skipped: WEIR_ZFS_TOOLS does not name a folder with OpenZFS's programs");
    };
    let history = record(number("WEIR_SIM_SEED", 1), CHANGES);
    let mut replay = Replay::new(&history.recording);
    for moment in moments(&history, 3) {
        replay.advance(moment);
        zdb.judge(&replay.cut(moment).world(), &history.known, moment).unwrap();
    }
}

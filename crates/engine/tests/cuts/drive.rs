//! Histories, recorded, cut and judged.

use crate::judge::{Way, judge};
use crate::ledger::Ledger;
use crate::memo::Memo;
use crate::states::{Moments, Shared, When};
use crate::tally::{Counter, DISCARDS, REWOUND, SHARED, Tally};
use crate::world::{Home, Shape, create, make_home, scatter, world};
use crate::zdb::Zdb;
use crate::{datasets, files, volume};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use weir_machine::Machine;
use weir_sim::{Cut, Moment, Recording, Replay, Rng};

const FILE_CLIENTS: usize = 2;
/// Changes of each client in a history; in one that is cut at every moment.
const CHANGES: u64 = 40;
const FEW_CHANGES: u64 = 12;
/// Bytes at each end of a device that hold labels, in which uberblocks lie.
const LABELS: u64 = 512 << 10;
const DEVICE: u64 = 64 << 20;

/// What the clients of one history know.
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

/// The same, once the history is over.
pub struct Judged {
    pub shape: Shape,
    pub files: Vec<files::Known>,
    pub volume: volume::Known,
    pub datasets: datasets::Known,
    /// The number of the volume's key that the last pool had: the first to be tried with the next.
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
    /// The data sets that have a key.
    pub fn encrypted(&self) -> Vec<&str> {
        let files = self.files.iter().map(|known| known.dataset.as_str());
        let all = files.chain([volume::NAME, datasets::HOME]);
        all.filter(|name| self.shape.suite_of(name).is_some()).collect()
    }
}

/// A history, run once.
struct History {
    seed: u64,
    known: Judged,
    recording: Recording,
    promises: u64,
    tally: Tally,
    /// When the pool and what the clients work on was there.
    made: When,
}

async fn clients(machine: Machine, moments: Moments, seed: u64, shape: Shape, known: &Known, changes: u64) -> When {
    let engine = create(&machine, shape).await.unwrap();
    let records = [128 << 10, 16 << 10];
    for (known, record_bytes) in known.files.iter().zip(records) {
        let name = known.lock().unwrap().dataset.clone();
        make_home(&engine, &machine, &name, Home::Files { record_bytes }, shape.suite_of(&name)).await;
    }
    let (of_volume, of_sets) = (shape.suite_of(volume::NAME), shape.suite_of(datasets::HOME));
    make_home(&engine, &machine, volume::NAME, Home::Volume { size_bytes: volume::BYTES }, of_volume).await;
    make_home(&engine, &machine, datasets::HOME, Home::Files { record_bytes: records[0] }, of_sets).await;
    let gaps = shape.scattered.then(|| scatter(&engine, shape));
    let made = moments.now();
    let (mut rng, clock, counter) = (Rng::new(seed), machine.clock.clone(), known.counter.clone());
    let mut tasks = Vec::new();
    for known in &known.files {
        let (engine, clock, moments) = (engine.clone(), clock.clone(), moments.clone());
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
    let (of, known) = (engine.clone(), known.datasets.clone());
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
    let (world, known) = (world(seed, shape), Known::new());
    let start = world.record();
    let run = world.run(clients(world.machine(), Moments(world.clone()), seed, shape, &known, changes));
    let made = run.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    let (promises, mut tally) = (known.promises(), known.counter.0.lock().unwrap().clone());
    tally.add(DISCARDS, world.disks().iter().map(|disk| disk.stats().discards).sum());
    History { seed, known: known.close(shape), recording: world.recording(start), promises, tally, made }
}

/// Cuts at moments of a history, in pieces that any processor may take.
struct Cutter<'a> {
    history: &'a History,
    /// The walk, and how many of the moments it has passed.
    walk: Mutex<(Replay<'a>, usize)>,
    cuts: &'a [When],
    zdb: Option<&'a Zdb>,
    failures: Mutex<Vec<(When, String)>>,
    /// Different states: cuts that left the same bytes are one.
    states: AtomicU64,
    memo: Memo,
}

/// Cuts of one piece: neighbours, of which some leave the same bytes.
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

    /// The next piece: disks as cuts leave them, each with its moments; none when all are done.
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

    /// Judges pieces until there are no more, or one failed.
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

    /// Judges all cuts on all processors, while `beside` runs, too.
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
    std::env::var(name).ok().and_then(|said| said.parse().ok()).unwrap_or(otherwise)
}

/// One history of seven; over time of every shape.
fn is_cut_everywhere(seed: u64) -> bool {
    seed % 7 == 4
}

fn changes_of(seed: u64) -> u64 {
    if is_cut_everywhere(seed) { FEW_CHANGES } else { CHANGES }
}

/// Cuts of a history, at most, in a run of `all` cuts. To long histories a part of them is given, so that there are many;
/// where the run is long, that part is more than they have moments.
fn most_cuts(seed: u64, all: u64) -> u64 {
    let part = if is_cut_everywhere(seed) { 4 } else { 25 };
    all.div_ceil(part).max(12)
}

/// Some of the moments since the pool was made, or all.
fn moments(history: &History, most: u64) -> Vec<When> {
    let (first, last) = (history.made, history.recording.len());
    let all = last - first;
    let count = most.min(all);
    (0..count).map(|n| first + 1 + n * all / count).collect()
}

/// The first failure says how to see it again.
fn demand_none(history: &History, cutter: &Cutter<'_>) {
    let failures = cutter.failures.lock().unwrap();
    let Some((moment, why)) = failures.first() else { return };
    let (seed, shape) = (history.seed, history.known.shape);
    panic!("WEIR_SIM_SEED={seed} WEIR_SIM_AT={moment} ({shape:?}): {why}");
}

#[test]
fn any_cut_keeps_what_was_promised() {
    let (mut ledger, all) = (Ledger::open(), number("WEIR_SIM_CUTS", 48));
    let zdb = number("WEIR_SIM_ZDB", 0);
    let zdb = if zdb == 0 { None } else { Zdb::find(zdb) };
    let at: Option<When> = std::env::var("WEIR_SIM_AT").ok().and_then(|said| said.parse().ok());
    let mut next = (ledger.cuts < all).then(|| record(ledger.next_seed(), changes_of(ledger.next_seed())));
    while let Some(history) = next.take() {
        let most = most_cuts(history.seed, all).min(all - ledger.cuts);
        let cuts = at.map_or_else(|| moments(&history, most), |at| vec![at]);
        let cutter = Cutter::new(&history, &cuts, zdb.as_ref());
        let more = at.is_none() && ledger.cuts + (cuts.len() as u64) < all;
        let (begun, seed) = (Instant::now(), history.seed + 1);
        next = cutter.run(|| more.then(|| record(seed, changes_of(seed))));
        demand_none(&history, &cutter);
        ledger.cuts += cuts.len() as u64;
        ledger.states += cutter.states.load(Ordering::Relaxed);
        ledger.opened += cutter.memo.opened();
        ledger.tally.add_all(&history.tally);
        ledger.tally.add(SHARED, cutter.memo.sharing());
        ledger.tally.add(REWOUND, cutter.memo.rewound());
        ledger.promises += history.promises;
        ledger.histories += 1;
        ledger.zdb += zdb.as_ref().map_or(0, Zdb::take_count);
        ledger.busy += begun.elapsed();
        ledger.save_and_tell(all);
    }
    assert!(ledger.promises > 0);
    ledger.tally.demand_all(if at.is_some() { 0 } else { ledger.cuts });
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
    let cutter = Cutter::new(&history, &cuts, None);
    cutter.run(|| ());
    let caught = cutter.failures.lock().unwrap();
    assert!(
        !caught.is_empty(),
        "pools written without a flush before the uberblock pass: nothing here proves anything"
    );
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

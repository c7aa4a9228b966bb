//! Driver of the test: runs all histories, with one thread per processor.

use crate::history::{Ending, History, Prepared};
use crate::world::SHAPES;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use weir_sim::{ErrorCounts, ErrorPlan, Rng};

/// Changes of each client in a history of which each operation fails once, and in a history with random errors.
const FEW_CHANGES: u64 = 6;
const MANY_CHANGES: u64 = 40;

pub fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Sums over the histories of a run.
#[derive(Default)]
struct Sums {
    histories: u64,
    errors: ErrorCounts,
    promises: u64,
    refusals: u64,
    failures: Vec<String>,
}

/// Runs the histories of one pool with one thread per processor.
fn run_all(prepared: &Prepared, histories: &[History], sums: &Mutex<Sums>) {
    let next = AtomicUsize::new(0);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        while let Some(history) = histories.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = history.run(prepared);
            let mut sums = sums.lock().unwrap();
            sums.histories += 1;
            sums.errors += outcome.errors;
            sums.promises += outcome.promises;
            sums.refusals += outcome.refusals;
            if let Err(why) = outcome.judged {
                sums.failures.push(format!("{} pool, {history}: {why}", prepared.shape.name));
            }
        }
    };
    std::thread::scope(|scope| {
        (0..processors).for_each(|_| drop(scope.spawn(work)));
    });
}

/// Errors of a run that must fail operations in all ways: the default of `cargo xtask sim`.
const ENOUGH_ERRORS: u64 = 10_000;
/// Ways in which an operation fails: at once or after a delay; once, three times or permanently. Each seed tests one way.
const WAYS: u64 = 6;
/// Errors of one history with a disk that fails for good, about. Most of them repeat the same few.
const PERMANENT_ERRORS: u64 = 35;
/// Minimum histories of a seed and a pool in which single operations fail.
const MIN_SINGLE: u64 = 4;
/// Errors of the share of a seed and a pool for each history with random errors.
const ERRORS_PER_RANDOM: u64 = 200;

/// Number of operations that fail in the histories of a seed.
fn failing_operations(seed: u64) -> u64 {
    [1, 3, u64::MAX][(seed / 2 % 3) as usize]
}

/// Histories of a seed and a pool in which single operations fail, if its share of the run is `share` errors: they have
/// half of it.
fn single_histories(seed: u64, share: u64) -> u64 {
    let each = failing_operations(seed).min(PERMANENT_ERRORS);
    (share / 2).div_ceil(each).max(MIN_SINGLE)
}

const ENDINGS: [Ending; 3] = [Ending::Cut, Ending::Stop, Ending::Export];

/// Histories of `seed`, one for each of its operations, or at most `most`: that operation fails, and for some seeds the
/// following operations of the same disk, too.
pub fn each_operation(prepared: &Prepared, seed: u64, most: u64) -> Vec<History> {
    let base =
        History { seed, errors: None, changes: FEW_CHANGES, ending: Ending::Cut, tolerated: false, canary: false };
    let operations = base.run(prepared).operations;
    assert!(operations > 50, "only {operations} operations");
    let stride = operations.div_ceil(most.max(1)).max(1);
    let without_delay = seed % 2 == 1;
    let count = failing_operations(seed);
    let fails = |nth| History {
        errors: Some(ErrorPlan::Nth { nth, count, at_once: without_delay }),
        ending: if nth % 4 < 2 { Ending::Cut } else { ENDINGS[nth as usize % 4 - 1] },
        ..base.clone()
    };
    (seed % stride..operations).step_by(stride as usize).map(fails).collect()
}

/// Longer histories with random errors of all disks, or of disks whose errors redundancy tolerates.
fn at_random(prepared: &Prepared, seed: u64, count: u64) -> Vec<History> {
    let one = |n: u64| {
        let seed = seed * 1_000 + n;
        let mut rng = Rng::new(seed);
        let tolerated = !prepared.shape.tolerated().is_empty() && rng.chance(1, 2);
        let disks = if tolerated { prepared.shape.tolerated() } else { prepared.shape.all() };
        // Beyond redundancy most errors end the history, so they must be rare.
        let rate = if tolerated { [5, 50, 400] } else { [2, 8, 30] }[rng.below(3) as usize];
        let mut of = |share| if rng.chance(share, 3) { rate } else { 0 };
        let errors = Some(ErrorPlan::Random { disks, reads: of(1), writes: of(2), flushes: of(2) });
        let ending = ENDINGS[rng.below(3) as usize];
        History { seed, errors, changes: MANY_CHANGES, ending, tolerated, canary: false }
    };
    (0..count).map(one).collect()
}

fn fail_on_first(failures: &[String]) {
    let Some(first) = failures.first() else { return };
    let kinds: BTreeMap<&str, usize> = failures.iter().fold(BTreeMap::new(), |mut kinds, failure| {
        *kinds.entry(failure.rsplit("ending ").next().unwrap_or(failure)).or_default() += 1;
        kinds
    });
    for (kind, count) in kinds.iter().take(20) {
        eprintln!("{count} × ending {kind}");
    }
    panic!("{} histories broke a promise, such as: {first}", failures.len());
}

#[test]
fn device_errors_break_no_promise() {
    let all = number("WEIR_SIM_ERRORS", 64);
    let first = number("WEIR_SIM_SEED", 1);
    let prepared: Vec<Prepared> = SHAPES.into_iter().map(Prepared::new).collect();
    let sums = Mutex::new(Sums::default());
    // The errors are spread over all ways of failing and all pools. The seeds of a long run together fail each operation.
    let share = all.div_ceil(WAYS * prepared.len() as u64);
    for seed in first.. {
        for prepared in &prepared {
            run_all(prepared, &each_operation(prepared, seed, single_histories(seed, share)), &sums);
            run_all(prepared, &at_random(prepared, seed, (share / ERRORS_PER_RANDOM).max(1)), &sums);
            if sums.lock().unwrap().failures.len() > 20 {
                break;
            }
        }
        let sums = sums.lock().unwrap();
        println!("seed {seed}: {} of {all} errors, {} histories", sums.errors.all(), sums.histories);
        let covers_ways = all < ENOUGH_ERRORS || seed + 1 >= first + WAYS;
        if covers_ways && sums.errors.all() >= all || !sums.failures.is_empty() {
            break;
        }
    }
    let Sums { histories, errors, promises, refusals, failures } = sums.into_inner().unwrap();
    fail_on_first(&failures);
    assert!(promises > 0);
    let kinds = [errors.reads, errors.writes, errors.flushes];
    assert!(all < ENOUGH_ERRORS || !kinds.contains(&0), "a kind of operation never failed: {errors}");
    println!(
        "{} errors ({errors}) in {histories} histories: {promises} promises kept, {refusals} answers were errors",
        errors.all()
    );
}

#[test]
fn one_seed_is_one_history() {
    let prepared = Prepared::new(SHAPES[5]);
    for history in at_random(&prepared, 7, 3) {
        let run = || history.run(&prepared);
        let one = run();
        let two = run();
        assert_eq!((one.errors, one.operations, one.promises), (two.errors, two.operations, two.promises));
    }
}

/// The test detects a planted bug: commits return although their log block could not be written.
#[test]
fn the_canary_is_detected() {
    let prepared = Prepared::new(SHAPES[0]);
    // With these seeds the disk fails permanently and without delay. The last operations are those of clients.
    for seed in [5, 11, 17] {
        for history in each_operation(&prepared, seed, u64::MAX).into_iter().rev() {
            let planted = History { canary: true, ending: Ending::Cut, ..history };
            if let Err(why) = planted.run(&prepared).judged {
                println!("the canary is detected: {} pool, {planted}: {why}", prepared.shape.name);
                let right = History { canary: false, ..planted };
                assert_eq!(right.run(&prepared).judged, Ok(()), "without the planted bug: {right}");
                return;
            }
        }
    }
    panic!("a log that reports lost records as stable passes: the test detects nothing");
}

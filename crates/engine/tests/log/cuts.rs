//! Power failures at random changes of a history; then the pool is imported, its log is replayed and its files are judged.

use crate::client::{Client, Shared, judge};
use crate::world::{HOME, Shape, assert_pool_clean, create, import, open, options, world};
use std::time::Duration;
use weir_engine::{Engine, Layout, VdevAddRequest};
use weir_machine::{Machine, Request, Source};
use weir_pool::{Class, PoolError, VdevConfig};
use weir_sim::{Rng, SimError, SimWorld};
use weir_zil::LogWalk;

const CLIENTS: u64 = 3;
const CHANGES: u64 = 14;

/// Changes of the pool while the clients change files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meanwhile {
    Nothing,
    /// The log device is removed, and added and removed again.
    LogLeaves,
}

fn log_of(engine: &Engine) -> Option<u64> {
    let root = VdevConfig::parse(&engine.shown().config.root).unwrap();
    root.children.iter().find(|top| top.is_concrete() && top.class == Class::Log).map(|top| top.guid)
}

/// Removes the log device twice.
async fn remove_log(engine: &Engine, machine: &Machine, shape: Shape) -> Result<(), PoolError> {
    for _ in 0..2 {
        machine.clock.sleep(Duration::from_millis(30)).await;
        if let Some(log) = log_of(engine) {
            engine.vdev_removals().remove_log(log).await?;
        }
        assert_eq!(log_of(engine), None);
        machine.clock.sleep(Duration::from_millis(10)).await;
        let log = options(shape).tops.remove(1);
        engine.devices().add(&VdevAddRequest { tops: vec![log], ashift: Some(9), ..VdevAddRequest::default() }).await?;
    }
    engine.vdev_removals().remove_log(log_of(engine).unwrap()).await
}

async fn history(
    machine: &Machine,
    seed: u64,
    (shape, meanwhile): (Shape, Meanwhile),
    known: &[Shared],
) -> Result<(), PoolError> {
    let (engine, files) = create(machine, shape).await?;
    let mut rng = Rng::new(seed);
    let clients: Vec<_> = known
        .iter()
        .zip(0..)
        .map(|(known, number)| {
            let files = files.clone();
            let clock = machine.clock.clone();
            let known = known.clone();
            machine.tasks.spawn(Client { files, clock, known, number, rng: rng.fork() }.run(CHANGES))
        })
        .collect();
    if meanwhile == Meanwhile::LogLeaves {
        remove_log(&engine, machine, shape).await?;
    }
    for client in clients {
        client.await.unwrap();
    }
    engine.stop().await
}

/// Counts records of the file system's log that are newer than the last synced txg.
async fn records(machine: &Machine) -> u64 {
    let rq = Request::internal("test");
    let pool = open(machine).await;
    let Ok(files) = pool.file_system(&rq, HOME).await else { return 0 };
    let mut walk = LogWalk::new(files.objects());
    let mut count = 0;
    while let Some(block) = walk.next(&rq).await.unwrap() {
        count += block.records().unwrap().iter().filter(|r| r.txg > pool.uberblock.txg).count() as u64;
    }
    count
}

/// Imports the pool and replays its log; the power fails before, during or after the replay.
fn fail_again(world: &SimWorld, at: u64, place: &str) {
    world.cut_after(at);
    let machine = world.machine();
    let run = world.run(async {
        let engine = import(&machine).await?;
        engine.file_system(&Request::internal("test"), HOME).await?;
        engine.stop().await
    });
    world.cancel_cut();
    match run {
        Ok(done) => done.unwrap_or_else(|e| panic!("{place}: {e}")),
        Err(SimError::PowerCut { .. }) => {}
        Err(other) => panic!("{place}: {other}"),
    }
    let machine = world.machine();
    let whole = world.run(async { assert_pool_clean(&machine, &format!("{place}, failed again after {at}")).await });
    whole.unwrap_or_else(|e| panic!("{place}: {e}"));
}

/// Cuts a history at change `at` and judges the pool. Returns the number of commits and of records to replay.
fn cut(seed: u64, (shape, meanwhile): (Shape, Meanwhile), at: u64) -> (u64, u64) {
    let place = format!("seed {seed}, {shape:?}, {meanwhile:?}, cut {at}");
    let world = world(seed, shape);
    let known: Vec<Shared> = (0..CLIENTS).map(|_| Shared::default()).collect();
    world.cut_after(at);
    let machine = world.machine();
    match world.run(history(&machine, seed, (shape, meanwhile), &known)) {
        Ok(done) => done.unwrap(),
        Err(SimError::PowerCut { .. }) => {}
        Err(other) => panic!("{place}: {other}"),
    }
    world.cancel_cut();
    let commits = known.iter().map(|k| k.lock().unwrap().commits).sum();
    if commits == 0 {
        // No commit was made before the pool and its directories existed.
        return (0, 0);
    }
    let machine = world.machine();
    let records = world.run(async {
        assert_pool_clean(&machine, &format!("{place}, before import")).await;
        records(&machine).await
    });
    let records = records.unwrap_or_else(|e| panic!("{place}: {e}"));
    let mut rng = Rng::new(seed ^ at);
    let failed_again = rng.below(3);
    for _ in 0..failed_again {
        fail_again(&world, 1 + rng.below(160), &place);
    }
    let machine = world.machine();
    let judged = world.run(async {
        let engine = import(&machine).await.unwrap_or_else(|e| panic!("{place}: {e}"));
        let rq = Request::internal("test");
        let files = engine.file_system(&rq, HOME).await.unwrap_or_else(|e| panic!("{place}: {e}"));
        if records > 0 && failed_again == 0 {
            assert!(rq.support_bytes(Source::Log) > 0, "{place}: the accounts do not show what the replay read");
        }
        for (number, known) in (0..).zip(&known) {
            let known = std::mem::take(&mut *known.lock().unwrap());
            judge(&files, number, &known, &place).await;
        }
        engine.export().await.unwrap();
        assert_pool_clean(&machine, &format!("{place}, after replay")).await;
    });
    judged.unwrap_or_else(|e| panic!("{place}: {e}"));
    (commits, records)
}

/// Number of changes of the disks before the history begins, and in total.
fn changes(seed: u64, (shape, meanwhile): (Shape, Meanwhile)) -> (u64, u64) {
    let world = world(seed, shape);
    let machine = world.machine();
    world.run(async { create(&machine, shape).await.map(drop) }).unwrap().unwrap();
    let before = world.changes();
    world.power_failure();
    let world = crate::world::world(seed, shape);
    let machine = world.machine();
    let known: Vec<Shared> = (0..CLIENTS).map(|_| Shared::default()).collect();
    world.run(history(&machine, seed, (shape, meanwhile), &known)).unwrap().unwrap();
    (before, world.changes())
}

/// Cuts a history at `WEIR_LOG_CUTS` random changes, or at `cuts`.
fn cut_all_over(seed: u64, shape: Shape, cuts: u64) {
    cut_meanwhile(seed, (shape, Meanwhile::Nothing), cuts);
}

fn cut_meanwhile(seed: u64, history: (Shape, Meanwhile), cuts: u64) {
    let wanted = std::env::var("WEIR_LOG_CUTS").ok().and_then(|s| s.parse().ok());
    let cuts = wanted.unwrap_or(cuts);
    let (before, all) = changes(seed, history);
    let mut rng = Rng::new(seed);
    let mut commits = 0;
    let mut replayed = 0;
    for _ in 0..cuts {
        let (done, records) = cut(seed, history, before + 1 + rng.below(all - before));
        commits += done;
        replayed += records;
    }
    println!("{history:?}: {cuts} cuts among {} changes, after {commits} commits, {replayed} records", all - before);
    assert!(commits > cuts && replayed > cuts);
}

#[test]
fn acknowledged_changes_are_replayed_from_a_mirror() {
    cut_all_over(3, Shape { layout: Layout::Mirror, devices: 2, log: false }, 12);
    cut_all_over(4, Shape { layout: Layout::Mirror, devices: 2, log: false }, 12);
}

#[test]
fn acknowledged_changes_are_replayed_from_a_raidz() {
    cut_all_over(5, Shape { layout: Layout::Raidz(1), devices: 3, log: false }, 12);
}

#[test]
fn acknowledged_changes_are_replayed_from_a_log_device() {
    cut_all_over(6, Shape { layout: Layout::Single, devices: 1, log: true }, 12);
    cut_all_over(7, Shape { layout: Layout::Single, devices: 1, log: true }, 12);
}

#[test]
fn acknowledged_changes_survive_the_removal_of_the_log_device() {
    for seed in [8, 9] {
        let shape = Shape { layout: Layout::Mirror, devices: 2, log: true };
        cut_meanwhile(seed, (shape, Meanwhile::LogLeaves), 24);
    }
}

//! Power cuts on a simulated disk with an intent log: after a cut at any moment, every change of a commit that returned
//! is recoverable.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]

mod model;
mod replaying;

use model::{DISK, Faults, Found, Known, Op, PATH, Pool, recover};
use std::sync::Arc;
use std::time::Duration;
use weir_format::Txg;
use weir_format::zil::ZilHeader;
use weir_machine::Request;
use weir_sim::{Rng, SimError, SimWorld, Timing};
use weir_zil::Zil;

const CLIENTS: u64 = 5;
const OPS: u64 = 12;

/// One client: names, small and large writes, and occasional commits.
async fn client(pool: Arc<Pool>, zil: Arc<Zil>, number: u64, mut rng: Rng) {
    let rq = Request::internal("client");
    for _ in 0..OPS {
        pool.machine.clock.sleep(Duration::from_micros(rng.below(3000))).await;
        let object = 100 + rng.below(3);
        {
            let tx = pool.txgs.hold().unwrap();
            let bytes = match rng.below(4) {
                0 => 1 + rng.below(300_000),
                _ => 1 + rng.below(9_000),
            };
            let op = if rng.chance(1, 3) { Op::Create } else { Op::Write { object, bytes } };
            pool.change(&zil, &tx, number, op);
            if rng.chance(1, 5) {
                pool.machine.clock.sleep(Duration::from_micros(rng.below(500))).await;
            }
        }
        if rng.chance(1, 2) {
            let object = rng.chance(2, 3).then_some(object);
            let due = pool.committed_by(object);
            zil.commit(&rq, object.map(weir_format::ObjectId)).await.unwrap();
            pool.acknowledge(due);
        }
    }
}

fn world(seed: u64) -> SimWorld {
    let world = SimWorld::new(seed);
    let timing = if seed.is_multiple_of(2) { Timing::Chaos } else { Timing::SataSsd };
    world.add_disk(PATH, DISK, 4096, timing);
    world
}

/// Runs the clients to their end or to the cut; returns the changes they made and the state found on the disk.
fn run(seed: u64, cut: Option<u64>, faults: Faults) -> (SimWorld, Arc<Pool>, Found, u64) {
    let world = world(seed);
    let pool = Pool::new(&world.machine(), seed, faults);
    if let Some(cut) = cut {
        world.cut_after(cut);
    }
    let inner = pool.clone();
    let done = world.run(async move {
        let zil = inner.log(ZilHeader::default());
        inner.machine.tasks.spawn(inner.clone().syncer(zil.clone()));
        let mut rng = Rng::new(seed ^ 77);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|n| inner.machine.tasks.spawn(client(inner.clone(), zil.clone(), n, rng.fork())))
            .collect();
        for client in clients {
            client.await.unwrap();
        }
    });
    match done {
        Ok(()) => world.power_failure(),
        Err(SimError::PowerCut { .. }) => {}
        Err(error) => panic!("seed {seed}, cut {cut:?}: {error}"),
    }
    let changes = world.changes();
    world.cancel_cut();
    let machine = world.machine();
    let found = world.run(async move { recover(&machine).await }).unwrap();
    (world, pool, found, changes)
}

/// Each acknowledged change has synced or is in the log.
fn nothing_acknowledged_is_lost(known: &Known, found: &Found, place: &str) {
    for (n, change) in known.changes.iter().enumerate() {
        if !change.acknowledged || change.txg <= found.txg {
            continue;
        }
        match change.op {
            Op::Create => assert!(found.created.contains(&n), "{place}: name {n} of {change:?} is lost"),
            Op::Write { bytes, .. } => {
                assert_eq!(found.written.get(&n), Some(&bytes), "{place}: data {n} of {change:?} is lost");
            }
        }
    }
}

/// The log holds each client's names in the order in which it made them, without gaps.
fn names_are_in_order(known: &Known, found: &Found, place: &str) {
    for client in 0..CLIENTS {
        let of_client = |n: &&usize| known.changes[**n].client == client && known.changes[**n].txg > found.txg;
        let logged: Vec<_> = found.created.iter().filter(of_client).copied().collect();
        let made = (0..known.changes.len()).filter(|n| known.changes[*n].op == Op::Create);
        let made: Vec<_> = made.filter(|n| of_client(&n)).take(logged.len()).collect();
        assert_eq!(logged, made, "{place}: names of client {client}");
    }
}

/// The chain contains every block that is allocated in the space maps of the last synced txg, and no other blocks but
/// those to be claimed.
fn nothing_is_leaked(known: &Known, found: &Found, place: &str) {
    for (block, allocated) in &known.allocated {
        let in_use = *allocated <= found.txg && known.freed.get(block).is_none_or(|freed| *freed > found.txg);
        let claimed = found.claim.as_ref().is_some_and(|c| c.blocks.iter().any(|b| b.dva(0).offset_bytes == *block));
        assert_eq!(claimed, found.blocks.contains(block) && *allocated > found.txg, "{place}: claim of {block:x}");
        assert!(!in_use || found.blocks.contains(block), "{place}: block {block:x} of {allocated} is leaked");
        assert!(in_use || claimed || !found.blocks.contains(block), "{place}: block {block:x} is used and free");
    }
}

fn check(pool: &Pool, found: &Found, place: &str) {
    let known = pool.known();
    nothing_acknowledged_is_lost(&known, found, place);
    names_are_in_order(&known, found, place);
    if !known.broken {
        nothing_is_leaked(&known, found, place);
    }
    if let Some(claim) = &found.claim {
        let records = found.created.len() + found.written.len();
        assert_eq!(claim.header.claim_txg, Txg(found.txg.0 + 1));
        assert_eq!(weir_zil::needs_replay(&claim.header), records > 0 || found.blocks.len() > 1, "{place}");
    }
}

fn seeds() -> u64 {
    std::env::var("WEIR_LOG_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(12)
}

#[test]
fn commits_survive_a_cut_at_any_moment() {
    let mut cuts = 0;
    let mut replayed = 0;
    for seed in 0..seeds() {
        let (_, pool, found, changes) = run(seed, None, Faults::default());
        check(&pool, &found, &format!("seed {seed}"));
        let mut rng = Rng::new(seed);
        for _ in 0..12 {
            let cut = 1 + rng.below(changes);
            let (_, pool, found, _) = run(seed, Some(cut), Faults::default());
            check(&pool, &found, &format!("seed {seed}, cut {cut}"));
            cuts += 1;
            replayed += found.created.len() + found.written.len();
        }
    }
    println!("{cuts} cuts, {replayed} records to replay");
    assert!(replayed > cuts, "the logs were empty");
}

/// A chain's beginning: nothing is acknowledged before something stable leads to it.
#[test]
fn the_first_commits_survive_a_cut() {
    for seed in 0..8 {
        for cut in 1..40 {
            let (_, pool, found, _) = run(seed, Some(cut), Faults::default());
            check(&pool, &found, &format!("seed {seed}, cut {cut}"));
        }
    }
}

#[test]
fn commits_survive_a_cut_when_the_log_fails() {
    let cases = [
        Faults { failed_writes: 10, ..Faults::default() },
        Faults { failed_flushes: 20, ..Faults::default() },
        Faults { failed_allocations: 20, ..Faults::default() },
        Faults { failed_writes: 5, failed_flushes: 5, failed_allocations: 5 },
    ];
    for seed in 1000..1000 + seeds() / 3 {
        for faults in cases {
            let (_, pool, found, changes) = run(seed, None, faults);
            check(&pool, &found, &format!("seed {seed}, {faults:?}"));
            let mut rng = Rng::new(seed);
            for _ in 0..4 {
                let cut = 1 + rng.below(changes);
                let (_, pool, found, _) = run(seed, Some(cut), faults);
                check(&pool, &found, &format!("seed {seed}, {faults:?}, cut {cut}"));
            }
        }
    }
}

/// Runs clients until `commits` commits of one of them have returned; then the power fails.
fn run_to_commit(seed: u64, faults: Faults, commits: u64) -> (Arc<Pool>, Found) {
    let world = world(seed);
    let pool = Pool::new(&world.machine(), seed, faults);
    let inner = pool.clone();
    let done = world.run(async move {
        let zil = inner.log(ZilHeader::default());
        inner.machine.tasks.spawn(lazy_syncer(inner.clone(), zil.clone()));
        let mut rng = Rng::new(seed);
        for n in 1..CLIENTS {
            inner.machine.tasks.spawn(client(inner.clone(), zil.clone(), n, rng.fork()));
        }
        for object in 0..commits {
            {
                let tx = inner.txgs.hold().unwrap();
                inner.change(&zil, &tx, 0, Op::Write { object, bytes: 1 + rng.below(400_000) });
            }
            let due = inner.committed_by(Some(object));
            zil.commit(&Request::internal("client"), Some(weir_format::ObjectId(object))).await.unwrap();
            inner.acknowledge(due);
        }
    });
    done.unwrap();
    world.power_failure();
    let machine = world.machine();
    let found = world.run(async move { recover(&machine).await }).unwrap();
    (pool, found)
}

/// A block or a flush may fail before the commits of its batch wait for it.
#[test]
fn commits_of_a_batch_that_failed_wait_for_their_txg() {
    let cases = [
        Faults { failed_writes: 50, ..Faults::default() },
        Faults { failed_writes: 10, ..Faults::default() },
        Faults { failed_flushes: 50, ..Faults::default() },
        Faults { failed_writes: 10, failed_flushes: 20, failed_allocations: 5 },
    ];
    for faults in cases {
        for seed in 0..seeds() {
            for commits in 1..6 {
                let (pool, found) = run_to_commit(seed, faults, commits);
                check(&pool, &found, &format!("seed {seed}, {faults:?}, after commit {commits}"));
            }
        }
    }
}

#[test]
fn equal_seeds_have_equal_traces() {
    for seed in 0..4 {
        weir_sim::run_twice(seed, |world| {
            world.add_disk(PATH, DISK, 4096, Timing::Chaos);
            let pool = Pool::new(&world.machine(), seed, Faults::default());
            let run = world.run(async move {
                let zil = pool.log(ZilHeader::default());
                pool.machine.tasks.spawn(pool.clone().syncer(zil.clone()));
                client(pool, zil, 0, Rng::new(seed)).await;
            });
            run.unwrap();
        })
        .unwrap();
    }
}

/// Concurrent commits share blocks and flushes.
#[test]
fn committers_share_a_flush() {
    let world = SimWorld::new(5);
    world.add_disk(PATH, DISK, 4096, Timing::SataSsd);
    let pool = Pool::new(&world.machine(), 5, Faults::default());
    let inner = pool.clone();
    let run = world.run(async move {
        let zil = inner.log(ZilHeader::default());
        let syncer = inner.machine.tasks.spawn(inner.clone().syncer(zil.clone()));
        let rq = Request::internal("first");
        {
            let tx = inner.txgs.hold().unwrap();
            inner.change(&zil, &tx, 0, Op::Create);
        }
        zil.commit(&rq, None).await.unwrap();
        let before = inner.counts();
        let together: Vec<_> = (0..64)
            .map(|n| {
                let pool = inner.clone();
                let zil = zil.clone();
                inner.machine.tasks.spawn(async move {
                    let rq = Request::internal("client");
                    for _ in 0..4 {
                        {
                            let tx = pool.txgs.hold().unwrap();
                            pool.change(&zil, &tx, n, Op::Write { object: n, bytes: 100 });
                        }
                        zil.commit(&rq, Some(weir_format::ObjectId(n))).await.unwrap();
                    }
                })
            })
            .collect();
        for one in together {
            one.await.unwrap();
        }
        drop(syncer);
        let (writes, flushes) = inner.counts();
        (writes - before.0, flushes - before.1)
    });
    let (writes, flushes) = run.unwrap();
    println!("256 commits: {writes} blocks, {flushes} flushes");
    assert!((4..=40).contains(&flushes) && writes <= 60, "{writes} blocks, {flushes} flushes");
}

/// A single client that commits each write waits little longer than a write and a flush of the device take; many
/// concurrent clients have a much higher throughput. In virtual time.
#[test]
fn commits_are_as_fast_as_the_device() {
    const WRITES: u64 = 200;
    let run = |writers: u64| {
        let world = SimWorld::new(8);
        world.add_disk(PATH, DISK, 4096, Timing::SataSsd);
        let pool = Pool::new(&world.machine(), 8, Faults::default());
        let run = world.run(async move {
            let zil = pool.log(ZilHeader::default());
            let clock = pool.machine.clock.clone();
            pool.machine.tasks.spawn(lazy_syncer(pool.clone(), zil.clone()));
            let write = async |pool: Arc<Pool>, zil: Arc<Zil>, n: u64, count: u64| {
                for _ in 0..count {
                    {
                        let tx = pool.txgs.hold().unwrap();
                        pool.change(&zil, &tx, n, Op::Write { object: n, bytes: 4096 });
                    }
                    zil.commit(&Request::internal("client"), Some(weir_format::ObjectId(n))).await.unwrap();
                }
            };
            write(pool.clone(), zil.clone(), 0, 1).await;
            let begun = clock.now();
            let all = (0..writers).map(|n| write(pool.clone(), zil.clone(), n, WRITES));
            futures_util::future::join_all(all).await;
            let each_ns = clock.now().ns_since(begun) / (WRITES * writers);
            let begun = clock.now();
            for n in 0..WRITES {
                pool.disk.write((64 << 20) + n * 8192, weir_machine::Buf::zeroed(8192)).await.unwrap();
                pool.disk.flush().await.unwrap();
            }
            (each_ns, clock.now().ns_since(begun) / WRITES)
        });
        run.unwrap()
    };
    let (alone, raw) = run(1);
    let (together, _) = run(32);
    println!("a commit of one writer {alone} ns, of 32 writers {together} ns; a raw write and flush {raw} ns");
    assert!(alone * 7 < raw * 10, "alone {alone} ns, raw {raw} ns");
    assert!(together * 6 < alone, "together {together} ns, alone {alone} ns");
}

/// Syncs a txg only on request.
async fn lazy_syncer(pool: Arc<Pool>, zil: Arc<Zil>) {
    loop {
        pool.txgs.sync_requested().await;
        pool.sync(&zil).await;
    }
}

/// Records that have synced need no block, and the log frees its unneeded blocks: an idle log keeps one block.
#[test]
fn an_idle_log_keeps_one_block() {
    let world = SimWorld::new(6);
    world.add_disk(PATH, DISK, 4096, Timing::Nvme);
    let pool = Pool::new(&world.machine(), 6, Faults::default());
    let run = world.run(async move {
        let zil = pool.log(ZilHeader::default());
        let rq = Request::internal("client");
        pool.machine.tasks.spawn(pool.clone().syncer(zil.clone()));
        for n in 0..20 {
            {
                let tx = pool.txgs.hold().unwrap();
                pool.change(&zil, &tx, n, Op::Write { object: n, bytes: 50_000 });
            }
            zil.commit(&rq, None).await.unwrap();
        }
        for _ in 0..3 {
            pool.txgs.wait_synced(pool.txgs.open()).await.unwrap();
        }
        {
            let known = pool.known();
            assert!(known.allocated.len() > 10);
            assert_eq!(known.freed.len() + 1, known.allocated.len());
        }
        assert!(!zil.header().log.is_hole());
        // Nothing was logged since, so nothing is written and nothing is flushed.
        let before = pool.counts();
        zil.commit(&rq, None).await.unwrap();
        assert_eq!(pool.counts(), before);
    });
    run.unwrap();
}

/// With `sync=disabled` a commit returns immediately; with `sync=always` the caller must commit each change.
#[test]
fn sync_property_decides_when_commits_wait() {
    use weir_zil::{Policy, SyncMode};
    let world = SimWorld::new(7);
    world.add_disk(PATH, DISK, 4096, Timing::Nvme);
    let pool = Pool::new(&world.machine(), 7, Faults::default());
    let run = world.run(async move {
        let zil = pool.log(ZilHeader::default());
        let rq = Request::internal("client");
        zil.set_policy(Policy { sync: SyncMode::Disabled, ..Policy::default() });
        {
            let tx = pool.txgs.hold().unwrap();
            pool.change(&zil, &tx, 0, Op::Create);
        }
        zil.commit(&rq, None).await.unwrap();
        assert_eq!((pool.known().writes, pool.txgs.last_synced()), (0, Txg(9)));
        zil.set_policy(Policy { sync: SyncMode::Always, ..Policy::default() });
        assert!(zil.commits_each());
        // The change has no record: after the policy change, a commit waits for its txg.
        pool.machine.tasks.spawn(pool.clone().syncer(zil.clone()));
        zil.commit(&rq, None).await.unwrap();
        assert!(pool.txgs.last_synced() >= Txg(10));
    });
    run.unwrap();
}

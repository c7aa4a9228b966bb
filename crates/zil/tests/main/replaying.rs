//! Replay interrupted by repeated power cuts: every record is replayed, and no record whose change has synced is
//! replayed twice.

use crate::model::{Faults, Found, Op, Pool, owner, recover};
use crate::run;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weir_dmu::ErrorLocation;
use weir_dmu::ObjectError;
use weir_format::zil::{LogBody, LogRecord};
use weir_format::{ObjectId, Txg};
use weir_machine::Request;
use weir_sim::{Rng, SimError, SimWorld};
use weir_zil::{GiveUp, Replayer, Zil, needs_replay};

/// Replays names, and records which in which txg.
struct RecordingReplayer {
    pool: Arc<Pool>,
    zil: Arc<Zil>,
    done: Arc<Mutex<Vec<(usize, Txg)>>>,
    refusal: Mutex<Refusal>,
}

/// Record that fails, number of times, and error.
struct Refusal {
    number: usize,
    times: u32,
    error: ObjectError,
}

impl Refusal {
    fn full(number: usize, times: u32) -> Self {
        Refusal { number, times, error: ObjectError::NoSpace { bytes: 0 } }
    }
}

impl Replayer for RecordingReplayer {
    fn replay<'a>(
        &'a self,
        _: &'a Request,
        _: &'a LogRecord<'a>,
        body: &'a LogBody<'a>,
        _: Option<bytes::Bytes>,
    ) -> BoxFuture<'a, Result<(), ObjectError>> {
        async move {
            let LogBody::Link { name, .. } = body else { panic!("a change of an object that is gone: {body:?}") };
            let number = std::str::from_utf8(name).unwrap().parse().unwrap();
            {
                let mut refusal = self.refusal.lock().unwrap();
                if refusal.number == number && refusal.times > 0 {
                    refusal.times -= 1;
                    return Err(refusal.error.clone());
                }
            }
            let tx = self.pool.txgs.hold().unwrap();
            self.pool.machine.clock.sleep(Duration::from_micros(700)).await;
            self.done.lock().unwrap().push((number, tx.txg()));
            self.zil.log(&tx, ObjectId(1), body);
            Ok(())
        }
        .boxed()
    }
}

/// One import: replays the log of the header, until the end or the cut. Returns whether it reached the end, and the
/// records replayed.
fn import_and_replay(
    world: &SimWorld,
    seed: u64,
    found: &Found,
    cut: u64,
    refusal: Refusal,
) -> (bool, Vec<(usize, Txg)>) {
    let done = Arc::new(Mutex::new(Vec::new()));
    let header = found.claim.as_ref().map_or(&found.header, |claim| &claim.header).clone();
    let pool = Pool::of(&world.machine(), seed, Faults::default(), found.txg);
    let out = done.clone();
    world.cut_after(cut);
    let run = world.run(async move {
        let zil = pool.log(header);
        let first = pool.txgs.open();
        pool.machine.tasks.spawn(pool.clone().syncer(zil.clone()));
        pool.txgs.wait_synced(first).await.unwrap();
        let set = owner(&pool.machine).await;
        let replayer = RecordingReplayer { pool, zil: zil.clone(), done: out, refusal: Mutex::new(refusal) };
        let rq = Request::internal("replay");
        let replayed = zil.replay(&rq, &set, &replayer, GiveUp::IfLost).await?;
        if let Some(lost) = &replayed.given_up {
            assert!(lost.records > 0 && lost.record.is_some_and(|record| record.kind == "TX_LINK"), "{lost:?}");
            zil.give_up(&rq, &set).await?;
        }
        Ok::<_, ObjectError>(replayed)
    });
    world.cancel_cut();
    let ended = match run {
        Ok(replayed) => {
            world.power_failure();
            replayed.is_ok()
        }
        Err(SimError::PowerCut { .. }) => false,
        Err(error) => panic!("seed {seed}: {error}"),
    };
    let done = std::mem::take(&mut *done.lock().unwrap());
    (ended, done)
}

fn recovered(world: &SimWorld) -> Found {
    let machine = world.machine();
    world.run(async move { recover(&machine).await }).unwrap()
}

#[test]
fn every_record_is_replayed_and_none_twice() {
    let mut imports = 0;
    let mut records = 0;
    let mut resumed = 0;
    for seed in 0..40 {
        let (world, pool, found, _) = run(seed, Some(60 + seed * 5), Faults::default());
        let due = |n: &usize| pool.known().changes[*n].txg > found.txg;
        let due: BTreeSet<usize> = found.created.iter().copied().filter(due).collect();
        assert!(due.iter().all(|n| pool.known().changes[*n].op == Op::Create));
        let mut rng = Rng::new(seed);
        let mut found = found;
        let mut synced = BTreeSet::new();
        for round in 0.. {
            // Each round cuts later, so that the loop ends.
            let refusal = Refusal::full(due.first().copied().unwrap_or(0), u32::from(seed.is_multiple_of(3)));
            let (ended, done) = import_and_replay(&world, seed, &found, 5 + rng.below(20) + round * 10, refusal);
            found = recovered(&world);
            imports += 1;
            for (number, txg) in done {
                assert!(!synced.contains(&number), "seed {seed}: name {number} was replayed and synced before");
                if txg <= found.txg {
                    synced.insert(number);
                }
            }
            resumed += u64::from(found.header.replay_seq > 0);
            assert!(
                !found.header.log.is_hole() || synced == due,
                "seed {seed}: the log was destroyed before all was replayed"
            );
            if ended {
                break;
            }
        }
        assert_eq!(synced, due, "seed {seed}");
        assert!(!needs_replay(&found.header) && found.created.is_empty(), "seed {seed}: {:?}", found.header);
        records += due.len();
    }
    println!("{records} records in {imports} imports, {resumed} of them resumed in the middle");
    assert!(resumed > 5 && records > 40);
}

/// Log in which a record in the middle fails. Returns the record's number, the numbers before it, and the log.
fn with_refused() -> (SimWorld, Found, usize, Vec<usize>) {
    let (world, pool, found, _) = run(4, Some(90), Faults::default());
    let due: Vec<usize> = found.created.iter().copied().filter(|n| pool.known().changes[*n].txg > found.txg).collect();
    let middle = due.len() / 2;
    (world, found, due[middle], due[..middle].to_vec())
}

#[test]
fn a_full_pool_keeps_the_log() {
    let (world, found, refused, before) = with_refused();
    let (ended, done) = import_and_replay(&world, 4, &found, u64::MAX / 2, Refusal::full(refused, u32::MAX));
    assert!(!ended && done.len() == before.len(), "the record is retried, and no later one is replayed");
    let left = recovered(&world);
    assert!(needs_replay(&left.header));
    assert!(left.created.contains(&refused));
}

#[test]
fn a_failed_record_gives_up_the_rest_of_the_log() {
    let (world, found, refused, before) = with_refused();
    let error = ObjectError::Replay { place: ErrorLocation::default(), unreadable: false, why: "it is damaged".into() };
    let (ended, done) =
        import_and_replay(&world, 4, &found, u64::MAX / 2, Refusal { number: refused, times: u32::MAX, error });
    assert!(ended, "the dataset is opened");
    assert_eq!(done.iter().map(|(number, _)| *number).collect::<Vec<_>>(), before);
    let left = recovered(&world);
    assert!(!needs_replay(&left.header) && left.created.is_empty(), "{:?}", left.header);
}

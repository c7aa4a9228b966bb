//! Logs of space maps: short, kept up, flushed at export, and cheaper than a map for each metaslab.

use crate::{real, work, zdb};
use std::path::Path;
use weir_dmu::live::SpaceReserve;
use weir_engine::{CreateOptions, Engine, ImportOptions, Layout, NewLeaf, NewTopLevelVdev};
use weir_format::ObjectId;
use weir_format::dsl::pool as names;
use weir_machine::{Machine, Request};
use weir_pool::config::Class;
use weir_pool::{OpenOptions, Pool};
use weir_sim::{SimWorld, Timing};

const SEARCH: &str = "/sim";
const DEVICES: usize = 3;
const OBJECTS: u64 = 40;
const GROUPS: u64 = 60;

fn options(with_log: bool) -> CreateOptions {
    let leaf = |i: usize| NewLeaf { path: format!("{SEARCH}/d{i}").into(), is_file: true };
    let top = |i: usize| NewTopLevelVdev { class: Class::Normal, layout: Layout::Single, leaves: vec![leaf(i)] };
    let mut options = CreateOptions::new("tank", (0..DEVICES).map(top).collect());
    options.ashift = Some(12);
    options.arc_bytes = 16 << 20;
    options.features.retain(|name| with_log || name != "log_spacemap");
    options
}

/// Changes a few blocks here and there.
async fn touch(engine: &Engine, ids: &[u64], group: u64) {
    let rq = &Request::internal("test");
    let set = engine.open_set(rq, "tank", None).await.unwrap();
    let tx = set.begin(rq, 1 << 20, SpaceReserve::Normal).await.unwrap();
    for n in 0..8 {
        let at = (group * 8 + n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let id = ids[(at % ids.len() as u64) as usize];
        let block = at / 64 % 64;
        set.writes().write(rq, &tx, ObjectId(id), block << 14, &work::contents(group, block * 2)).await.unwrap();
    }
}

/// The logs that the last group left.
async fn logs(machine: &Machine) -> usize {
    let rq = &Request::internal("test");
    let pool = Pool::open(machine, &OpenOptions::new(vec![SEARCH.into()], "tank")).await.unwrap();
    match pool.mos.named(rq, names::LOG_SPACEMAP).await.unwrap() {
        Some(zap) => pool.mos.numbers(rq, zap).await.unwrap().len(),
        None => 0,
    }
}

/// Gives how many writes small groups took.
fn run(with_log: bool) -> u64 {
    let world = SimWorld::new(5);
    for i in 0..DEVICES {
        world.add_disk(format!("{SEARCH}/d{i}"), 128 << 20, 512, Timing::Nvme);
    }
    let machine = world.machine();
    let (ids, engine) = world
        .run(async {
            let engine = Engine::create(&machine, &options(with_log)).await.unwrap();
            let mut ids = Vec::new();
            for n in 0..OBJECTS {
                ids.push(work::write_object(&engine, "tank", 64, n).await.unwrap());
                engine.sync().await.unwrap();
            }
            (ids, engine)
        })
        .unwrap();
    let before = world.changes();
    world
        .run(async {
            for group in 0..GROUPS {
                touch(&engine, &ids, group).await;
                engine.sync().await.unwrap();
            }
        })
        .unwrap();
    let changes = world.changes() - before;
    world
        .run(async {
            engine.stop().await.unwrap();
            work::assert_pool_clean(&machine, Path::new(SEARCH), "tank").await;
            let left = logs(&machine).await;
            assert_eq!(with_log, (10..=66).contains(&left), "{left} logs after {GROUPS} groups");
            let open = OpenOptions::new(vec![SEARCH.into()], "tank");
            let engine = Engine::import(&machine, &ImportOptions::new(open)).await.unwrap();
            touch(&engine, &ids, 0).await;
            engine.export().await.unwrap();
            work::assert_pool_clean(&machine, Path::new(SEARCH), "tank").await;
            assert_eq!(logs(&machine).await, usize::from(with_log), "the last group's own");
        })
        .unwrap();
    changes
}

#[test]
fn a_log_is_short_and_saves_writes() {
    let with = run(true);
    let without = run(false);
    println!("{GROUPS} small groups: {with} writes with logs of space maps, {without} without");
    assert!(with * 20 < without * 19, "{with} writes with logs, {without} without");
}

/// Changes that are only in the logs of a pool that was not exported are read by zdb and by an import.
#[test]
fn logs_of_a_pool_that_was_left() {
    let dir = real::folder("space-log");
    let machine = weir_linux::machine().unwrap();
    let tops: Vec<NewTopLevelVdev> =
        ["a", "b"].map(|name| real::top(&dir, name, Class::Normal, Layout::Mirror, 2)).into_iter().collect();
    let mut ids = Vec::new();
    machine.block_on(async {
        let engine = Engine::create(&machine, &CreateOptions::new("tank", tops)).await.unwrap();
        for n in 0..8 {
            ids.push(work::write_object(&engine, "tank", 64, n).await.unwrap());
        }
        for group in 0..45 {
            touch(&engine, &ids, group).await;
            engine.sync().await.unwrap();
        }
        engine.stop().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
    });
    zdb::assert_clean(&dir, "tank");
    zdb::assert_counted(&dir, "tank");
    machine.block_on(async {
        let engine = real::import(&machine, &dir).await.unwrap();
        touch(&engine, &ids, 50).await;
        engine.sync().await.unwrap();
        engine.stop().await.unwrap();
    });
    zdb::assert_clean(&dir, "tank");
    machine.block_on(async {
        let engine = real::import(&machine, &dir).await.unwrap();
        touch(&engine, &ids, 51).await;
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
    });
    zdb::assert_clean(&dir, "tank");
    zdb::assert_counted(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A pool that is left after each of several txgs, of which each frees some of what the ones before wrote: no histogram
/// promises a longer free segment than there is.
fn histograms_hold_after_each_txg(with_log: bool) {
    let world = SimWorld::new(6);
    for i in 0..DEVICES {
        world.add_disk(format!("{SEARCH}/d{i}"), 128 << 20, 512, Timing::Nvme);
    }
    let machine = world.machine();
    world
        .run(async {
            let engine = Engine::create(&machine, &options(with_log)).await.unwrap();
            let mut ids = Vec::new();
            for n in 0..12 {
                ids.push(work::write_object(&engine, "tank", 64, n).await.unwrap());
            }
            engine.sync().await.unwrap();
            for group in 0..8 {
                touch(&engine, &ids, group).await;
                work::write_object(&engine, "tank", 600, group).await.unwrap();
                engine.sync().await.unwrap();
                work::assert_pool_clean(&machine, Path::new(SEARCH), "tank").await;
            }
            engine.stop().await.unwrap();
        })
        .unwrap();
}

#[test]
fn histograms_hold_after_each_txg_with_logs() {
    histograms_hold_after_each_txg(true);
}

#[test]
fn histograms_hold_after_each_txg_without_logs() {
    histograms_hold_after_each_txg(false);
}

/// A pool without features has headers of the first version, and no histogram is counted.
#[test]
fn without_the_feature_space_maps_have_no_histogram() {
    let dir = real::folder("no-histogram");
    let machine = weir_linux::machine().unwrap();
    let mut options = real::pool_of(&dir, Layout::Mirror, 2);
    options.features.clear();
    machine.block_on(async {
        let engine = Engine::create(&machine, &options).await.unwrap();
        work::write_object(&engine, "tank", 64, 1).await.unwrap();
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
        let pool = Pool::open(&machine, &OpenOptions::new(vec![dir.clone()], "tank")).await.unwrap();
        let metaslabs = pool.space.vdevs.iter().flat_map(|v| &v.metaslabs).filter(|m| m.space_map != 0);
        assert!(metaslabs.clone().count() > 0 && metaslabs.clone().all(|m| m.histogram.is_none()));
    });
    zdb::assert_clean(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}

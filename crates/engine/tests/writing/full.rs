//! A pool that is full: writing stops in time, freeing goes on, and then writing does too. All on simulated disks;
//! Weir's own walk judges the exported pool, and OpenZFS's zdb a copy of it on real files.

use crate::{real, work, zdb};
use futures_util::future::join;
use std::path::Path;
use std::time::Duration;
use weir_dmu::ObjectError;
use weir_dmu::live::SpaceReserve;
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::Setting;
use weir_engine::{CreateOptions, Engine, Layout, NewLeaf, NewTopLevelVdev};
use weir_format::ObjectId;
use weir_machine::{Machine, Request};
use weir_pool::PoolError;
use weir_pool::config::Class;
use weir_sim::{SimWorld, Timing};

const SEARCH: &str = "/sim";
const MIB: u64 = 1 << 20;

fn options(layout: Layout, devices: usize, ashift: u64) -> CreateOptions {
    let leaf = |i: usize| NewLeaf { path: format!("{SEARCH}/d{i}").into(), is_file: true };
    let top = NewTopLevelVdev { class: Class::Normal, layout, leaves: (0..devices).map(leaf).collect() };
    let mut options = CreateOptions::new("tank", vec![top]);
    options.ashift = Some(ashift);
    options.arc_bytes = 16 << 20;
    options
}

fn is_full(error: &PoolError) -> bool {
    matches!(error, PoolError::Object(ObjectError::NoSpace { .. } | ObjectError::Quota { .. }))
}

/// Writes objects of 1 MiB until there is no more space; gives their numbers.
async fn fill(engine: &Engine) -> Vec<u64> {
    fill_set(engine, "tank").await
}

async fn fill_set(engine: &Engine, name: &str) -> Vec<u64> {
    let mut ids = Vec::new();
    loop {
        match work::write_object(engine, name, 64, ids.len() as u64).await {
            Ok(id) => ids.push(id),
            Err(error) if is_full(&error) => return ids,
            Err(error) => panic!("after {} objects: {error}", ids.len()),
        }
    }
}

async fn empty(engine: &Engine, ids: &[u64]) {
    empty_set(engine, "tank", ids).await;
}

async fn empty_set(engine: &Engine, name: &str, ids: &[u64]) {
    let rq = &Request::internal("test");
    let set = engine.open_set(rq, name, None).await.unwrap();
    for id in ids {
        let tx = set.begin(rq, 16 << 10, SpaceReserve::NetFree).await.unwrap();
        set.frees().remove(rq, &tx, ObjectId(*id)).await.unwrap();
    }
}

async fn scenario(machine: &Machine, options: &CreateOptions) {
    let engine = Engine::create(machine, options).await.unwrap();
    let first = fill(&engine).await;
    assert!(first.len() >= 8, "only {} MiB went in", first.len());
    empty(&engine, &first).await;
    let second = fill(&engine).await;
    assert!(second.len() * 10 >= first.len() * 8, "{} MiB, then {} MiB", first.len(), second.len());
    engine.export().await.unwrap();
    work::assert_pool_clean(machine, Path::new(SEARCH), "tank").await;
}

/// A world with this number of disks of this size.
fn world(seed: u64, devices: usize, mib: u64) -> SimWorld {
    let world = SimWorld::new(seed);
    for i in 0..devices {
        world.add_disk(format!("{SEARCH}/d{i}"), mib * MIB, 512, Timing::Nvme);
    }
    world
}

/// Demands that zdb, if present, reads every block of the exported pool and finds its objects.
fn assert_clean(world: &SimWorld, name: &str) {
    if zdb::tools().is_none() {
        return;
    }
    let dir = real::folder(&format!("full-{name}"));
    world.save(&dir).unwrap();
    zdb::assert_clean(&dir, "tank");
    zdb::assert_counted(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}

fn run(name: &str, layout: Layout, devices: usize, ashift: u64) {
    let world = world(11, devices, 80);
    let machine = world.machine();
    world.run(scenario(&machine, &options(layout, devices, ashift))).unwrap();
    assert_clean(&world, name);
}

/// A read of several seconds, as a scrub's, delays the reuse of freed space: writers wait for its end.
#[test]
fn writers_wait_for_freed_space_that_a_long_read_delays() {
    let world = world(11, 1, 80);
    let machine = world.machine();
    let scenario = async {
        let engine = Engine::create(&machine, &options(Layout::Single, 1, 9)).await.unwrap();
        let ids = fill(&engine).await;
        let hold = engine.cache.blocks().hold();
        empty(&engine, &ids).await;
        let read = async {
            machine.clock.sleep(Duration::from_secs(3)).await;
            drop(hold);
        };
        let ((), written) = join(read, work::write_object(&engine, "tank", 64, 99)).await;
        written.expect("there is space after the read");
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, Path::new(SEARCH), "tank").await;
    };
    world.run(scenario).unwrap();
}

#[test]
fn one_device() {
    run("single", Layout::Single, 1, 9);
}

#[test]
fn raidz_with_large_sectors() {
    run("raidz", Layout::Raidz(1), 3, 12);
}

async fn set(engine: &Engine, name: &str, property: &str, value: u64) {
    let settings = vec![(property.to_owned(), Setting::Set(Value::Number(value)))];
    engine.properties().set_properties(name.to_owned(), settings).await.unwrap();
}

/// Quotas stop writing, reservations keep space for their owners.
async fn shares(machine: &Machine) {
    let engine = Engine::create(machine, &options(Layout::Single, 1, 9)).await.unwrap();
    for name in ["tank/q", "tank/r"] {
        work::make_dataset(&engine, name).await.unwrap();
    }
    set(&engine, "tank/q", "quota", 6 * MIB).await;
    let in_quota = fill_set(&engine, "tank/q").await;
    // Half of each object is incompressible.
    assert!((9..=13).contains(&in_quota.len()), "{} MiB within a quota of 6", in_quota.len());
    empty_set(&engine, "tank/q", &in_quota).await;
    set(&engine, "tank/q", "quota", 0).await;
    set(&engine, "tank/q", "refquota", 3 * MIB).await;
    let in_quota = fill_set(&engine, "tank/q").await;
    assert!((4..=7).contains(&in_quota.len()), "{} MiB within a refquota of 3", in_quota.len());
    set(&engine, "tank/r", "reservation", 8 * MIB).await;
    let others = fill(&engine).await;
    let reserved = fill_set(&engine, "tank/r").await;
    assert!(reserved.len() >= 12, "{} MiB in a reservation of 8, {} beside it", reserved.len(), others.len());
    engine.export().await.unwrap();
    work::assert_pool_clean(machine, Path::new(SEARCH), "tank").await;
}

#[test]
fn quotas_and_reservations() {
    let world = world(12, 1, 120);
    let machine = world.machine();
    world.run(shares(&machine)).unwrap();
    assert_clean(&world, "shares");
}

/// Three copies of small blocks: each byte takes many times its size.
async fn copies(machine: &Machine) {
    let engine = Engine::create(machine, &options(Layout::Raidz(2), 4, 12)).await.unwrap();
    set(&engine, "tank", "copies", 3).await;
    for _ in 0..2 {
        let ids = fill(&engine).await;
        assert!(ids.len() >= 4, "only {} MiB went in", ids.len());
        empty(&engine, &ids).await;
    }
    engine.export().await.unwrap();
    work::assert_pool_clean(machine, Path::new(SEARCH), "tank").await;
}

#[test]
fn many_copies_of_small_blocks() {
    let world = world(13, 4, 80);
    let machine = world.machine();
    world.run(copies(&machine)).unwrap();
    assert_clean(&world, "copies");
}

//! Freeing that spreads over groups: each frees a part, a crash in between loses and leaks nothing.

use crate::files::home;
use crate::real::{folder, pool_of};
use crate::waiting::free_per_group;
use crate::{work, zdb};
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::NewDataset;
use weir_engine::{CreateOptions, Engine, ImportOptions, Layout, NewLeaf, NewTopLevelVdev};
use weir_files::{Cred, FileSystem, New, NewKind, SetAttributes, Space, WriteAt};
use weir_format::{ObjectId, Txg};
use weir_machine::{Machine, Request};
use weir_pool::OpenOptions;
use weir_pool::config::Class;
use weir_sim::{Fault, SimWorld, Timing};

/// Blocks that a group frees, and that one transaction frees beyond.
const LIMIT: u64 = 160;
const PIECE: u64 = LIMIT / 16;
/// A file's blocks: three levels of pointers.
const BLOCK_BYTES: u64 = 512;
const BLOCKS: u64 = 3000;
const SEARCH: &str = "/sim";

fn world(seed: u64) -> SimWorld {
    let world = SimWorld::new(seed);
    world.add_disk(format!("{SEARCH}/d"), 64 << 20, 512, Timing::SataSsd);
    world
}

async fn create(machine: &Machine) -> Arc<Engine> {
    let leaf = NewLeaf { path: format!("{SEARCH}/d").into(), is_file: true };
    let top = NewTopLevelVdev { class: Class::Normal, layout: Layout::Single, leaves: vec![leaf] };
    let mut options = CreateOptions::new("tank", vec![top]);
    options.ashift = Some(9);
    options.arc_bytes = 16 << 20;
    options.dirty.freed_blocks = LIMIT;
    let engine = Engine::create(machine, &options).await.unwrap();
    engine.create_dataset(small_blocks()).await.unwrap();
    engine
}

fn small_blocks() -> NewDataset {
    NewDataset { properties: vec![("recordsize".into(), Value::Number(BLOCK_BYTES))], ..home() }
}

async fn import(machine: &Machine, dir: &Path) -> Arc<Engine> {
    let mut options = ImportOptions::new(OpenOptions::new(vec![dir.to_owned()], "tank"));
    options.open.arc_bytes = 16 << 20;
    options.dirty.freed_blocks = LIMIT;
    Engine::import(machine, &options).await.unwrap()
}

/// Makes a file of many blocks, each in a place of its own, with a hole in its midst.
async fn make(engine: &Engine, name: &str) -> (Arc<FileSystem>, ObjectId) {
    let rq = &Request::internal("test");
    let root = Cred::root();
    let files = engine.file_system(rq, "tank/home").await.unwrap();
    let new = New::of(NewKind::Regular, 0o644);
    let file = files.names().create(rq, &root, files.root(), name.as_bytes(), &new).await.unwrap().object;
    let half = BLOCKS * BLOCK_BYTES / 2;
    for (part, at) in [(0, 0), (1, half + (1 << 40))] {
        let noise = (0..half >> 14).flat_map(|n| work::contents(7 + part, n * 2)).chain(work::contents(9, 0));
        let data = Bytes::from_iter(noise.take(half as usize));
        files.contents().write(rq, &root, file, WriteAt::Offset(at), data).await.unwrap();
    }
    engine.sync().await.unwrap();
    (files, file)
}

/// Blocks of a file in the last group that was synced.
async fn stored(files: &FileSystem, file: ObjectId) -> u64 {
    match files.objects().object(&Request::internal("test"), file).await {
        Ok(object) => object.dnode.block_pointers.iter().map(|pointer| pointer.fill()).sum(),
        Err(_) => 0,
    }
}

/// Looks at the file while `change` goes on, and demands that no group frees more than it may. Gives how many groups
/// freed.
async fn assert_bounded_frees(
    engine: &Arc<Engine>,
    (files, file): (&Arc<FileSystem>, ObjectId),
    change: impl Future<Output = ()> + Send + 'static,
) -> u64 {
    let clock = engine.machine.clock.clone();
    let tasks = engine.machine.tasks.clone();
    let changing = tasks.spawn(change);
    let mut txgs = 0;
    let mut txg = engine.txgs().last_synced();
    let mut blocks = stored(files, file).await;
    assert!(blocks > 0);
    let mut idle = 0;
    while idle < 200 {
        clock.sleep(Duration::from_micros(100)).await;
        let now = stored(files, file).await;
        let passed = engine.txgs().last_synced().0 - txg.0;
        if now < blocks {
            // A group's blocks are gone a moment before it counts as synced.
            let most = (passed + 1) * (LIMIT + PIECE);
            assert!(blocks - now <= most, "{} blocks went in {passed} groups", blocks - now);
            txgs += 1;
            blocks = now;
            idle = 0;
            txg = engine.txgs().last_synced();
        } else {
            idle += 1;
        }
        if idle > 100 && now > 0 {
            engine.sync().await.unwrap();
        }
    }
    changing.await.unwrap();
    txgs
}

#[test]
fn a_large_file_goes_over_many_groups() {
    let world = world(1);
    let machine = world.machine();
    let run = world.run(async move {
        let engine = create(&machine).await;
        let (files, file) = make(&engine, "large").await;
        assert_eq!(stored(&files, file).await, BLOCKS);
        let on = files.clone();
        let root = Cred::root();
        let at = engine.txgs().clone();
        let unlink = async move {
            let before = at.open();
            on.names().remove(&Request::internal("test"), &root, on.root(), b"large").await.unwrap();
            assert_eq!(at.open(), before, "no transaction waits for its blocks");
        };
        let txgs = assert_bounded_frees(&engine, (&files, file), unlink).await;
        assert!(txgs >= BLOCKS / (LIMIT + PIECE) - 1, "{txgs} groups");
        assert_eq!(stored(&files, file).await, 0);
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, Path::new(SEARCH), "tank").await;
    });
    run.unwrap();
}

#[test]
fn cutting_and_punching_spread_as_well() {
    let world = world(2);
    let machine = world.machine();
    let run = world.run(async move {
        let engine = create(&machine).await;
        let (files, file) = make(&engine, "large").await;
        let half = BLOCKS * BLOCK_BYTES / 2;
        let on = files.clone();
        let punch = async move {
            let range = BLOCK_BYTES * 100 + 9..half - 9;
            on.contents().allocate(&Request::internal("test"), &Cred::root(), file, range, Space::Punch).await.unwrap();
        };
        assert!(assert_bounded_frees(&engine, (&files, file), punch).await > 5);
        engine.sync().await.unwrap();
        // The blocks at both edges are there, as far as the range leaves them something.
        assert_eq!(stored(&files, file).await, BLOCKS / 2 + 102);
        let on = files.clone();
        let cut = async move {
            let set = SetAttributes { size_bytes: Some(BLOCK_BYTES * 10 + 1), ..SetAttributes::default() };
            on.attrs().set(&Request::internal("test"), &Cred::root(), file, &set).await.unwrap();
        };
        assert!(assert_bounded_frees(&engine, (&files, file), cut).await > 5);
        engine.sync().await.unwrap();
        let rq = &Request::internal("test");
        assert_eq!(files.attrs().get(rq, file).await.unwrap().size_bytes, BLOCK_BYTES * 10 + 1);
        assert_eq!(stored(&files, file).await, 11);
        let found = files.contents().read(rq, file, 0, 1 << 20).await.unwrap();
        assert!(found[..5120] == work::contents(7, 0)[..5120] && found.len() == 5121);
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, Path::new(SEARCH), "tank").await;
    });
    run.unwrap();
}

/// The power fails while a file goes: what is left of it goes when the pool is opened again, and nothing leaks.
#[test]
fn a_crash_in_between_leaves_the_rest_for_later() {
    for seed in 10..16 {
        let world = world(seed);
        let machine = world.machine();
        let run = world.run(async move {
            let engine = create(&machine).await;
            let (files, file) = make(&engine, "large").await;
            let on = files.clone();
            let clock = machine.clock.clone();
            machine.tasks.spawn(async move {
                on.names().remove(&Request::internal("test"), &Cred::root(), on.root(), b"large").await
            });
            let most = BLOCKS - seed * 150;
            while stored(&files, file).await > most {
                clock.sleep(Duration::from_micros(100)).await;
            }
            let left = stored(&files, file).await;
            assert!(left > 0 && left < BLOCKS);
        });
        run.unwrap();
        world.power_failure();
        let machine = world.machine();
        let judged = world.run(async move {
            let dir = Path::new(SEARCH);
            work::assert_pool_clean(&machine, dir, "tank").await;
            let engine = import(&machine, dir).await;
            let files = engine.file_system(&Request::internal("test"), "tank/home").await.unwrap();
            let rq = &Request::internal("test");
            assert!(files.directories().read_dir(rq, files.root(), 0, 9).await.unwrap().is_empty());
            // It goes while others work.
            let used = || engine.gate.space().used_bytes;
            while used() >= BLOCKS * BLOCK_BYTES / 4 {
                machine.clock.sleep(Duration::from_millis(1)).await;
            }
            engine.sync().await.unwrap();
            engine.export().await.unwrap();
            work::assert_pool_clean(&machine, dir, "tank").await;
        });
        judged.unwrap();
    }
}

/// Blocks of a destroyed dataset, on a device so slow that each indirect block takes a sixth of a second: a txg
/// without waiters frees them for 2.5 seconds, one with a waiter for one second.
#[test]
fn a_group_frees_no_longer_than_it_may() {
    const MANY: u64 = 30_000;
    /// The time is checked after this number of blocks.
    const BLOCKS_PER_TIME_CHECK: u64 = 4096;
    let world = world(3);
    let machine = world.machine();
    let slow = world.clone();
    let run = world.run(async move {
        let rq = &Request::internal("test");
        let root = Cred::root();
        let dir = Path::new(SEARCH);
        let engine = create(&machine).await;
        let files = engine.file_system(rq, "tank/home").await.unwrap();
        let file =
            files.names().create(rq, &root, files.root(), b"file", &New::of(NewKind::Regular, 0o644)).await.unwrap();
        for part in 0..MANY / 1000 {
            let data = Bytes::from_iter((0..40).flat_map(|n| work::contents(part + 1, n * 2)).take(512_000));
            files.contents().write(rq, &root, file.object, WriteAt::Offset(part * 512_000), data).await.unwrap();
        }
        drop(files);
        engine.export().await.unwrap();

        let mut options = ImportOptions::new(OpenOptions::new(vec![dir.to_owned()], "tank"));
        options.open.arc_bytes = 16 << 20;
        let engine = Engine::import(&machine, &options).await.unwrap();
        free_per_group(&engine, 0).await;
        engine.destroy_dataset("tank/home".into()).await.unwrap();
        let used = || engine.gate.space().used_bytes / BLOCK_BYTES;
        let at_first = used();
        assert!(at_first > MANY);
        let slowness = slow.disks()[0].lay(Fault::Slow { factor: 2000 });
        free_per_group(&engine, 100_000).await;
        let alone = at_first - used();
        let waiting = engine.clone();
        let before = used();
        let waiting = machine.tasks.spawn(async move { waiting.sync().await.unwrap() });
        engine.wait_synced(Txg(engine.txgs().last_synced().0 + 1)).await.unwrap();
        let waited_for = before - used();
        assert!(alone > BLOCKS_PER_TIME_CHECK && alone < MANY / 2, "{alone} without waiters");
        assert!(
            waited_for > BLOCKS_PER_TIME_CHECK / 2 && waited_for + BLOCKS_PER_TIME_CHECK / 2 < alone,
            "{waited_for} of {alone}"
        );
        waiting.await.unwrap();
        slow.disks()[0].lift(slowness);
        while used() > MANY / 10 {
            engine.sync().await.unwrap();
        }
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, dir, "tank").await;
    });
    run.unwrap();
}

/// A pool that is closed while a file goes is clean, and goes on with it.
#[test]
fn what_is_half_freed_is_clean_for_zdb() {
    let dir = folder("freeing");
    let machine = weir_linux::machine().unwrap();
    let mut options = pool_of(&dir, Layout::Raidz(1), 3);
    options.dirty.freed_blocks = LIMIT;
    machine.block_on(async {
        let engine = Engine::create(&machine, &options).await.unwrap();
        engine.create_dataset(small_blocks()).await.unwrap();
        let (files, file) = make(&engine, "large").await;
        let on = files.clone();
        let going = machine.tasks.spawn(async move {
            on.names().remove(&Request::internal("test"), &Cred::root(), on.root(), b"large").await
        });
        while stored(&files, file).await == BLOCKS {
            machine.clock.sleep(Duration::from_millis(1)).await;
        }
        engine.export().await.unwrap();
        // The name was gone at once.
        going.await.unwrap().unwrap();
        let left = stored(&files, file).await;
        assert!(left > 0 && left < BLOCKS, "{left} blocks are left");
        work::assert_pool_clean(&machine, &dir, "tank").await;
        zdb::assert_clean(&dir, "tank");
        let engine = import(&machine, &dir).await;
        engine.file_system(&Request::internal("test"), "tank/home").await.unwrap();
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
    });
    zdb::assert_clean(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}

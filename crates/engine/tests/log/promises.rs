//! Completeness of commits: all changes are stable when a commit returns, and a replay fails on no record.

use crate::world::{HOME, Shape, assert_pool_clean, create, import, noise, world};
use std::sync::Arc;
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::Setting;
use weir_engine::{Engine, Layout};
use weir_files::{Cred, FileError, FileSystem, New, NewKind, SetAttributes, SetTime, WriteAt, XattrMode};
use weir_machine::Request;
use weir_sim::SimWorld;
use weir_zil::{Policy, SyncMode};

const SHAPE: Shape = Shape { layout: Layout::Mirror, devices: 2, log: false };

/// Runs `life` on a pool whose log chain has begun; then the power fails.
fn before_failure(seed: u64, life: impl AsyncFnOnce(&Arc<Engine>, &Arc<FileSystem>)) -> SimWorld {
    let world = world(seed, SHAPE);
    let machine = world.machine();
    let run = world.run(async {
        let rq = Request::internal("test");
        let root = Cred::root();
        let (engine, files) = create(&machine, SHAPE).await.unwrap();
        files.names().create(&rq, &root, files.root(), b"begun", &New::of(NewKind::Regular, 0)).await.unwrap();
        files.sync(&rq, None).await.unwrap();
        engine.sync().await.unwrap();
        let synced = engine.txgs().last_synced();
        life(&engine, &files).await;
        assert_eq!(engine.txgs().last_synced(), synced, "the log alone makes it stable");
    });
    run.unwrap();
    world.power_failure();
    world
}

/// Imports the pool, replays the log and runs `life`.
fn after_replay(world: &SimWorld, life: impl AsyncFnOnce(&Arc<FileSystem>)) {
    let machine = world.machine();
    let run = world.run(async {
        assert_pool_clean(&machine, "with a log").await;
        let engine = import(&machine).await.unwrap();
        let files = engine.file_system(&Request::internal("test"), HOME).await.unwrap();
        life(&files).await;
        engine.export().await.unwrap();
        assert_pool_clean(&machine, "after replay").await;
    });
    run.unwrap();
}

/// The commit of a directory makes a new file stable with the owner, times and mode of its creation.
#[test]
fn a_new_file_is_stable_with_its_initial_attributes() {
    let times = (Some(SetTime::At(7_000_000_000)), Some(SetTime::At(9_000_000_000)));
    let attributes =
        SetAttributes { uid: Some(7), gid: Some(8), atime: times.0, mtime: times.1, ..SetAttributes::default() };
    let world = before_failure(20, async |_, files| {
        let rq = Request::internal("test");
        let root = Cred::root();
        let new = New { set: attributes, ..New::of(NewKind::Regular, 0o640) };
        files.names().create(&rq, &root, files.root(), b"made", &new).await.unwrap();
        files.sync(&rq, Some(files.root())).await.unwrap();
    });
    after_replay(&world, async |files| {
        let rq = Request::internal("test");
        let file = files.directories().lookup(&rq, files.root(), b"made").await.unwrap();
        let found = files.attrs().get(&rq, file).await.unwrap();
        assert_eq!((found.uid, found.gid, found.mode & 0o7777), (7, 8, 0o640));
        assert_eq!((found.atime_ns, found.mtime_ns), (7_000_000_000, 9_000_000_000));
    });
}

/// The commit of a file makes its attributes in an attribute directory stable.
#[test]
fn attribute_files_are_stable_with_their_file() {
    let value = noise(40_000, 3);
    let world = before_failure(21, async |_, files| {
        let rq = Request::internal("test");
        let root = Cred::root();
        let file = files.directories().lookup(&rq, files.root(), b"begun").await.unwrap();
        files.xattrs().set(&rq, &root, file, b"user.large", &value, XattrMode::Any).await.unwrap();
        files.sync(&rq, Some(file)).await.unwrap();
    });
    after_replay(&world, async |files| {
        let rq = Request::internal("test");
        let file = files.directories().lookup(&rq, files.root(), b"begun").await.unwrap();
        let found = files.xattrs().get(&rq, file, b"user.large").await.unwrap().unwrap();
        assert!(found == value, "{} bytes", found.len());
    });
}

/// Gang blocks can be written to their final place, and the log points to them.
#[test]
fn gangs_in_their_final_place_are_replayed() {
    let data = noise(300_000, 4);
    let world = before_failure(22, async |engine, files| {
        let rq = Request::internal("test");
        let root = Cred::root();
        let file = files.directories().lookup(&rq, files.root(), b"begun").await.unwrap();
        engine.cache.blocks().force_gangs_above(Some(16 << 10)).unwrap();
        files.contents().write(&rq, &root, file, WriteAt::Offset(0), data.clone()).await.unwrap();
        files.sync(&rq, Some(file)).await.unwrap();
    });
    after_replay(&world, async |files| {
        let rq = Request::internal("test");
        let file = files.directories().lookup(&rq, files.root(), b"begun").await.unwrap();
        assert!(files.contents().read(&rq, file, 0, 1 << 20).await.unwrap() == data);
    });
}

/// A log is replayed into a dataset that was set `readonly` after the power failure.
#[test]
fn a_log_is_replayed_into_a_dataset_that_became_read_only() {
    let world = before_failure(24, async |_, files| {
        let rq = Request::internal("test");
        let root = Cred::root();
        files.names().create(&rq, &root, files.root(), b"late", &New::of(NewKind::Regular, 0o600)).await.unwrap();
        files.sync(&rq, None).await.unwrap();
    });
    let machine = world.machine();
    let run = world.run(async {
        let engine = import(&machine).await.unwrap();
        let setting = Setting::Set(Value::Number(1));
        engine.properties().set_properties(HOME.into(), vec![("readonly".into(), setting)]).await.unwrap();
        engine.export().await.unwrap();
    });
    run.unwrap();
    world.power_failure();
    after_replay(&world, async |files| {
        let rq = Request::internal("test");
        let root = Cred::root();
        files.directories().lookup(&rq, files.root(), b"late").await.unwrap();
        let new = New::of(NewKind::Regular, 0o600);
        let refused = files.names().create(&rq, &root, files.root(), b"later", &new).await;
        assert_eq!(refused.unwrap_err(), FileError::ReadOnly);
    });
}

/// A log is replayed although the data exceed a quota that was set after the power failure.
#[test]
fn a_log_is_replayed_past_a_quota() {
    let data = noise(4 << 20, 6);
    let world = before_failure(25, async |_, files| {
        let rq = Request::internal("test");
        let root = Cred::root();
        let file = files.directories().lookup(&rq, files.root(), b"begun").await.unwrap();
        files.contents().write(&rq, &root, file, WriteAt::Offset(0), data.clone()).await.unwrap();
        files.sync(&rq, Some(file)).await.unwrap();
    });
    let machine = world.machine();
    let run = world.run(async {
        let engine = import(&machine).await.unwrap();
        for name in ["quota", "refquota"] {
            let setting = Setting::Set(Value::Number(1 << 20));
            engine.properties().set_properties(HOME.into(), vec![(name.into(), setting)]).await.unwrap();
        }
        engine.export().await.unwrap();
    });
    run.unwrap();
    world.power_failure();
    after_replay(&world, async |files| {
        let rq = Request::internal("test");
        let root = Cred::root();
        let file = files.directories().lookup(&rq, files.root(), b"begun").await.unwrap();
        assert!(files.contents().read(&rq, file, 0, 8 << 20).await.unwrap() == data);
        let refused = files.contents().write(&rq, &root, file, WriteAt::End, data.slice(..512)).await;
        assert_eq!(refused.map(drop), Err(FileError::Quota));
    });
}

/// Changes with `sync=disabled` are not logged. Records that depend on them are written only after the txg of those changes
/// has synced.
#[test]
fn records_wait_for_unlogged_changes() {
    for cut_us in (0..40).map(|n| n * 100) {
        let world = world(23, SHAPE);
        let machine = world.machine();
        let made = world.run(async {
            let rq = Request::internal("test");
            let root = Cred::root();
            let (engine, files) = create(&machine, SHAPE).await.unwrap();
            let new = |kind| New::of(kind, 0o755);
            files.names().create(&rq, &root, files.root(), b"begun", &new(NewKind::Regular)).await.unwrap();
            files.sync(&rq, None).await.unwrap();
            engine.sync().await.unwrap();
            let zil = engine.sets.get(files.objects().id()).unwrap().zil.unwrap();
            let policy = zil.policy();
            zil.set_policy(Policy { sync: SyncMode::Disabled, ..policy });
            let dir =
                files.names().create(&rq, &root, files.root(), b"dir", &new(NewKind::Directory)).await.unwrap().object;
            zil.set_policy(policy);
            files.names().create(&rq, &root, dir, b"inside", &new(NewKind::Regular)).await.unwrap();
            let commit = files.sync(&rq, None);
            let cut = machine.clock.sleep(std::time::Duration::from_micros(cut_us));
            futures_util::pin_mut!(commit, cut);
            let cut = futures_util::future::select(commit, cut).await;
            matches!(cut, futures_util::future::Either::Left(_))
        });
        let stable = made.unwrap();
        world.power_failure();
        after_replay(&world, async |files| {
            let rq = Request::internal("test");
            files.directories().lookup(&rq, files.root(), b"begun").await.unwrap();
            let dir = files.directories().lookup(&rq, files.root(), b"dir").await;
            assert!(dir.is_ok() || !stable, "after {cut_us} us");
        });
    }
}

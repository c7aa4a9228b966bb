//! What is stable when a commit returns: no less than what was changed, and nothing that a replay would stumble over.

use crate::world::{HOME, Shape, create, demand_whole, import, noise, world};
use std::sync::Arc;
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::Setting;
use weir_engine::{Engine, Layout};
use weir_files::{Cred, FileError, FileSystem, New, NewKind, SetAttributes, SetTime, WriteAt, XattrMode};
use weir_machine::Request;
use weir_sim::SimWorld;
use weir_zil::{Policy, SyncMode};

const SHAPE: Shape = Shape { layout: Layout::Mirror, devices: 2, log: false };

/// The first life of a pool, with a log whose chain has begun; then the power fails.
fn first_life(seed: u64, life: impl AsyncFnOnce(&Arc<Engine>, &Arc<FileSystem>)) -> SimWorld {
    let world = world(seed, SHAPE);
    let machine = world.machine();
    let run = world.run(async {
        let (rq, root) = (Request::internal("test"), Cred::root());
        let (engine, files) = create(&machine, SHAPE).await.unwrap();
        files.create(&rq, &root, files.root(), b"begun", &New::of(NewKind::Regular, 0)).await.unwrap();
        files.sync(&rq, None).await.unwrap();
        engine.sync().await.unwrap();
        let synced = engine.txgs().last_synced();
        life(&engine, &files).await;
        assert_eq!(engine.txgs().last_synced(), synced, "the log says it");
    });
    run.unwrap();
    world.power_failure();
    world
}

/// The next life: the log is replayed.
fn second_life(world: &SimWorld, life: impl AsyncFnOnce(&Arc<FileSystem>)) {
    let machine = world.machine();
    let run = world.run(async {
        demand_whole(&machine, "with a log").await;
        let engine = import(&machine).await.unwrap();
        let files = engine.file_system(&Request::internal("test"), HOME).await.unwrap();
        life(&files).await;
        engine.export().await.unwrap();
        demand_whole(&machine, "after replay").await;
    });
    run.unwrap();
}

/// A new name is stable with all that its file was made with: who made it commits its directory.
#[test]
fn a_file_is_stable_with_what_it_was_made_with() {
    let times = (Some(SetTime::At(7_000_000_000)), Some(SetTime::At(9_000_000_000)));
    let asked =
        SetAttributes { uid: Some(7), gid: Some(8), atime: times.0, mtime: times.1, ..SetAttributes::default() };
    let world = first_life(20, async |_, files| {
        let (rq, root) = (Request::internal("test"), Cred::root());
        let new = New { set: asked, ..New::of(NewKind::Regular, 0o640) };
        files.create(&rq, &root, files.root(), b"made", &new).await.unwrap();
        files.sync(&rq, Some(files.root())).await.unwrap();
    });
    second_life(&world, async |files| {
        let rq = Request::internal("test");
        let file = files.lookup(&rq, files.root(), b"made").await.unwrap();
        let found = files.attributes(&rq, file).await.unwrap();
        assert_eq!((found.uid, found.gid, found.mode & 0o7777), (7, 8, 0o640));
        assert_eq!((found.atime_ns, found.mtime_ns), (7_000_000_000, 9_000_000_000));
    });
}

/// An attribute that has a file of its own is stable when the file is that it belongs to.
#[test]
fn attributes_with_files_are_stable_with_theirs() {
    let value = noise(40_000, 3);
    let world = first_life(21, async |_, files| {
        let (rq, root) = (Request::internal("test"), Cred::root());
        let file = files.lookup(&rq, files.root(), b"begun").await.unwrap();
        files.set_xattr(&rq, &root, file, b"user.large", &value, XattrMode::Any).await.unwrap();
        files.sync(&rq, Some(file)).await.unwrap();
    });
    second_life(&world, async |files| {
        let rq = Request::internal("test");
        let file = files.lookup(&rq, files.root(), b"begun").await.unwrap();
        let found = files.xattr(&rq, file, b"user.large").await.unwrap().unwrap();
        assert!(found == value, "{} bytes", found.len());
    });
}

/// Blocks in many pieces can be written to their final place and be found by the log.
#[test]
fn gangs_in_their_final_place_are_replayed() {
    let data = noise(300_000, 4);
    let world = first_life(22, async |engine, files| {
        let (rq, root) = (Request::internal("test"), Cred::root());
        let file = files.lookup(&rq, files.root(), b"begun").await.unwrap();
        engine.cache.blocks().force_gangs_above(Some(16 << 10)).unwrap();
        files.write(&rq, &root, file, WriteAt::Offset(0), data.clone()).await.unwrap();
        files.sync(&rq, Some(file)).await.unwrap();
    });
    second_life(&world, async |files| {
        let rq = Request::internal("test");
        let file = files.lookup(&rq, files.root(), b"begun").await.unwrap();
        assert!(files.read(&rq, file, 0, 1 << 20).await.unwrap() == data);
    });
}

/// What was promised is kept also where nothing may be changed any more.
#[test]
fn a_log_is_replayed_into_what_is_read_only_now() {
    let world = first_life(24, async |_, files| {
        let (rq, root) = (Request::internal("test"), Cred::root());
        files.create(&rq, &root, files.root(), b"late", &New::of(NewKind::Regular, 0o600)).await.unwrap();
        files.sync(&rq, None).await.unwrap();
    });
    let machine = world.machine();
    let run = world.run(async {
        let engine = import(&machine).await.unwrap();
        let setting = Setting::Set(Value::Number(1));
        engine.set_properties(HOME.into(), vec![("readonly".into(), setting)]).await.unwrap();
        engine.export().await.unwrap();
    });
    run.unwrap();
    world.power_failure();
    second_life(&world, async |files| {
        let (rq, root) = (Request::internal("test"), Cred::root());
        files.lookup(&rq, files.root(), b"late").await.unwrap();
        let new = New::of(NewKind::Regular, 0o600);
        let refused = files.create(&rq, &root, files.root(), b"later", &new).await;
        assert_eq!(refused.unwrap_err(), FileError::ReadOnly);
    });
}

/// What was promised is kept also if it is more than what may be written now.
#[test]
fn a_log_is_replayed_past_a_quota() {
    let data = noise(4 << 20, 6);
    let world = first_life(25, async |_, files| {
        let (rq, root) = (Request::internal("test"), Cred::root());
        let file = files.lookup(&rq, files.root(), b"begun").await.unwrap();
        files.write(&rq, &root, file, WriteAt::Offset(0), data.clone()).await.unwrap();
        files.sync(&rq, Some(file)).await.unwrap();
    });
    let machine = world.machine();
    let run = world.run(async {
        let engine = import(&machine).await.unwrap();
        for name in ["quota", "refquota"] {
            let setting = Setting::Set(Value::Number(1 << 20));
            engine.set_properties(HOME.into(), vec![(name.into(), setting)]).await.unwrap();
        }
        engine.export().await.unwrap();
    });
    run.unwrap();
    world.power_failure();
    second_life(&world, async |files| {
        let (rq, root) = (Request::internal("test"), Cred::root());
        let file = files.lookup(&rq, files.root(), b"begun").await.unwrap();
        assert!(files.read(&rq, file, 0, 8 << 20).await.unwrap() == data);
        let refused = files.write(&rq, &root, file, WriteAt::End, data.slice(..512)).await;
        assert_eq!(refused.map(drop), Err(FileError::Quota));
    });
}

/// What was changed while nothing was promised is not in the log: nothing that needs it comes into the log before it is
/// stable.
#[test]
fn records_wait_for_what_was_not_logged() {
    for cut_us in (0..40).map(|n| n * 100) {
        let world = world(23, SHAPE);
        let machine = world.machine();
        let made = world.run(async {
            let (rq, root) = (Request::internal("test"), Cred::root());
            let (engine, files) = create(&machine, SHAPE).await.unwrap();
            let new = |kind| New::of(kind, 0o755);
            files.create(&rq, &root, files.root(), b"begun", &new(NewKind::Regular)).await.unwrap();
            files.sync(&rq, None).await.unwrap();
            engine.sync().await.unwrap();
            let zil = engine.sets.get(files.objects().id()).unwrap().zil.unwrap();
            let policy = zil.policy();
            zil.set_policy(Policy { sync: SyncMode::Disabled, ..policy });
            let dir = files.create(&rq, &root, files.root(), b"dir", &new(NewKind::Directory)).await.unwrap().object;
            zil.set_policy(policy);
            files.create(&rq, &root, dir, b"inside", &new(NewKind::Regular)).await.unwrap();
            let commit = files.sync(&rq, None);
            let cut = machine.clock.sleep(std::time::Duration::from_micros(cut_us));
            futures_util::pin_mut!(commit, cut);
            let cut = futures_util::future::select(commit, cut).await;
            matches!(cut, futures_util::future::Either::Left(_))
        });
        let stable = made.unwrap();
        world.power_failure();
        second_life(&world, async |files| {
            let rq = Request::internal("test");
            files.lookup(&rq, files.root(), b"begun").await.unwrap();
            let dir = files.lookup(&rq, files.root(), b"dir").await;
            assert!(dir.is_ok() || !stable, "after {cut_us} us");
        });
    }
}

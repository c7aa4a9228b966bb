//! Logs that cannot be replayed completely because a block of a file, of a volume or of the log is unreadable.

use crate::world::{HOME, SEARCH, Shape, create, import, make, noise, open, opening, world};
use crate::{keys, volumes};
use bytes::Bytes;
use std::sync::Arc;
use weir_dmu::{ObjectError, ObjectSet, zap};
use weir_engine::{Engine, Layout};
use weir_engine::{Event, ImportOptions};
use weir_files::{Cred, FileError, FileSystem, HoldKind, New, NewKind, WriteAt};
use weir_format::label::FRONT_BYTES;
use weir_format::{BlockPointer, ObjectId};
use weir_machine::{Machine, Request};
use weir_pool::PoolError;
use weir_sim::{Fault, SimDisk, SimWorld};
use weir_zil::{LogWalk, needs_replay};

const ALONE: Shape = Shape { layout: Layout::Single, devices: 1, log: false };
const MIRROR: Shape = Shape { layout: Layout::Mirror, devices: 2, log: false };
/// Size of a file of one block, of which a small write must read the rest.
const FILE_BYTES: usize = 100_000;

fn rq() -> Request {
    Request::internal("test")
}

/// Copies of a block on a device as offsets and lengths in bytes, equal on all sides of a mirror.
fn copies(pointer: &BlockPointer) -> Vec<(u64, u64)> {
    assert!(!pointer.is_embedded() && !pointer.is_hole());
    pointer.dvas().map(|dva| (FRONT_BYTES + dva.offset_bytes, pointer.psize_bytes())).collect()
}

async fn first_block(set: &Arc<ObjectSet>, object: ObjectId) -> Vec<(u64, u64)> {
    let found = set.object(&rq(), object).await.unwrap();
    copies(&set.pointers().at(&rq(), &found, 0, 0).await.unwrap().unwrap())
}

fn disk(world: &SimWorld, name: &str) -> Arc<SimDisk> {
    world.disks().into_iter().find(|disk| disk.path().ends_with(name)).unwrap()
}

fn damage(disk: &SimDisk, places: &[(u64, u64)], rot: bool) {
    for &(offset, len) in places {
        disk.lay(if rot { Fault::Rot { offset, len, bits: 9 } } else { Fault::Unreadable { offset, len } });
    }
}

/// Creates a file with one synced block.
async fn synced_file(engine: &Engine, files: &Arc<FileSystem>) -> ObjectId {
    let new = New::of(NewKind::Regular, 0o600);
    let file = files.names().create(&rq(), &Cred::root(), files.root(), b"f", &new).await.unwrap().object;
    let data = noise(FILE_BYTES, 1);
    files.contents().write(&rq(), &Cred::root(), file, WriteAt::Offset(0), data).await.unwrap();
    engine.sync().await.unwrap();
    file
}

/// Writes to a part of that block and then creates another file; both changes are only in the log.
async fn log_changes(files: &Arc<FileSystem>, file: ObjectId) {
    files
        .contents()
        .write(&rq(), &Cred::root(), file, WriteAt::Offset(7), Bytes::from_static(b"changed"))
        .await
        .unwrap();
    files.sync(&rq(), Some(file)).await.unwrap();
    make(files, "behind").await;
}

/// Creates a pool whose power failed with a log. Returns the copies of the file's block.
fn cut(seed: u64, shape: Shape) -> (SimWorld, Vec<(u64, u64)>) {
    let world = world(seed, shape);
    let machine = world.machine();
    let places = world.run(async {
        let (engine, files) = create(&machine, shape).await.unwrap();
        make(&files, "early").await;
        let file = synced_file(&engine, &files).await;
        log_changes(&files, file).await;
        first_block(files.objects(), file).await
    });
    let places = places.unwrap();
    world.power_failure();
    (world, places)
}

async fn has(files: &Arc<FileSystem>, name: &str) -> bool {
    match files.directories().lookup(&rq(), files.root(), name.as_bytes()).await {
        Ok(file) => files.contents().read(&rq(), file, 0, 1 << 20).await.unwrap() == name.repeat(1000),
        Err(error) => {
            assert_eq!(error, FileError::NotFound);
            false
        }
    }
}

/// Events of logs that could not be replayed.
fn reports(engine: &Engine) -> Vec<Arc<Event>> {
    let events = engine.events.after(0).events;
    events.into_iter().filter(|event| event.class == "ereport.fs.zfs.log_replay").collect()
}

/// Damaged files as `zpool status -v` lists them.
async fn listed(machine: &Machine) -> Vec<String> {
    let pool = open(machine).await;
    let errors = weir_pool::errlog::errors(&pool, &rq()).await.unwrap();
    weir_pool::errlog::error_lines(&pool, &rq(), &errors, &Default::default()).await
}

async fn assert_no_leaks(machine: &Machine) {
    let report = weir_pool::verify::verify_pool(&open(machine).await, &rq()).await.unwrap();
    assert!(report.clashes.is_empty() && report.leaks().count() == 0, "{:x?}", report.leaks().collect::<Vec<_>>());
}

#[test]
fn an_unreadable_block_loses_the_rest_of_the_log_but_not_the_file_system() {
    for rot in [false, true] {
        let (world, places) = cut(31, ALONE);
        damage(&disk(&world, "d0"), &places, rot);
        let machine = world.machine();
        let run = world.run(async {
            let engine = import(&machine).await.unwrap();
            let files = engine.file_system(&rq(), HOME).await.unwrap();
            assert!(has(&files, "early").await && !has(&files, "behind").await);
            let file = files.directories().lookup(&rq(), files.root(), b"f").await.unwrap();
            assert!(files.contents().read(&rq(), file, 0, 10).await.is_err());
            let [report] = &reports(&engine)[..] else { panic!("{:?}", reports(&engine)) };
            assert_eq!((report.list.get_str("dataset"), report.list.get_u64("zio_object")), (Some(HOME), Some(file.0)));
            assert_eq!(report.list.get_str("log_record_type"), Some("TX_WRITE"));
            make(&files, "new").await;
            engine.stop().await.unwrap();
            let listed = listed(&machine).await;
            assert!(listed.contains(&"tank/home:/f".to_owned()), "{listed:?}");
            // The log was discarded, so the next import has no error.
            let engine = import(&machine).await.unwrap();
            let files = engine.file_system(&rq(), HOME).await.unwrap();
            assert!(has(&files, "new").await && reports(&engine).is_empty());
            engine.export().await.unwrap();
            assert_no_leaks(&machine).await;
        });
        run.unwrap();
    }
}

#[test]
fn an_unreadable_block_loses_the_rest_of_the_log_but_not_the_volume() {
    let world = world(32, volumes::SHAPE);
    let machine = world.machine();
    let places = world.run(async {
        let (engine, volume) = volumes::create_with_volume(&machine).await;
        // The first commit begins the log, and waits for its txg.
        volume.write(&rq(), 0, noise(16 << 10, 2), true).await.unwrap();
        engine.sync().await.unwrap();
        volume.write(&rq(), 512, noise(512, 3), true).await.unwrap();
        volume.write(&rq(), 1 << 20, noise(16 << 10, 4), true).await.unwrap();
        first_block(&engine.open_set(&rq(), volumes::NAME, None).await.unwrap(), ObjectId(1)).await
    });
    world.power_failure();
    let places = places.unwrap();
    world.disks().iter().for_each(|disk| damage(disk, &places, true));
    let machine = world.machine();
    let run = world.run(async {
        let engine = import(&machine).await.unwrap();
        let volume = engine.volume(&rq(), volumes::NAME).await.unwrap();
        assert_eq!(volume.read(&rq(), 1 << 20, 4).await.unwrap(), [0; 4][..]);
        volume.write(&rq(), 1 << 20, noise(512, 5), true).await.unwrap();
        assert_eq!(reports(&engine).len(), 1);
        engine.export().await.unwrap();
        assert_eq!(listed(&machine).await, ["tank/vol:<0x1>"]);
        assert_no_leaks(&machine).await;
    });
    run.unwrap();
}

#[test]
fn an_unreadable_block_loses_the_rest_of_the_log_but_not_the_encrypted_file_system() {
    let world = world(33, keys::SHAPE);
    let machine = world.machine();
    let places = world.run(async {
        let engine = keys::create(&machine).await;
        let files = engine.file_system(&rq(), keys::HOME).await.unwrap();
        make(&files, "early").await;
        let file = synced_file(&engine, &files).await;
        log_changes(&files, file).await;
        first_block(files.objects(), file).await
    });
    world.power_failure();
    let places = places.unwrap();
    world.disks().iter().for_each(|disk| damage(disk, &places, true));
    let machine = world.machine();
    let run = world.run(async {
        // No log is discarded without the key.
        let engine = keys::import(&machine, false).await;
        assert!(engine.file_system(&rq(), keys::HOME).await.is_err());
        engine.stop().await.unwrap();
        let engine = keys::import(&machine, true).await;
        let files = engine.file_system(&rq(), keys::HOME).await.unwrap();
        assert!(!has(&files, "behind").await);
        assert_eq!(reports(&engine).len(), 1);
        engine.export().await.unwrap();
        assert_no_leaks(&machine).await;
    });
    run.unwrap();
}

/// Pool with one side of its mirror missing and the file's block damaged on the other.
fn degraded(seed: u64) -> SimWorld {
    let (world, places) = cut(seed, MIRROR);
    damage(&disk(&world, "d0"), &places, true);
    disk(&world, "d1").lay(Fault::Gone);
    world
}

#[test]
fn a_log_waits_for_a_device_that_may_have_the_unreadable_block() {
    let world = degraded(34);
    let machine = world.machine();
    let run = world.run(async {
        let engine = import(&machine).await.unwrap();
        for _ in 0..2 {
            let error = engine.file_system(&rq(), HOME).await.err().unwrap();
            let text = error.to_string();
            assert!(matches!(error, PoolError::Object(ObjectError::LogKept { .. })), "{text}");
            assert!(["TX_WRITE", "d1", "zpool import -m"].iter().all(|word| text.contains(word)), "{text}");
        }
        assert_eq!(reports(&engine).len(), 2);
        engine.stop().await.unwrap();
        disk(&world, "d1").lift_all();
        let engine = import(&machine).await.unwrap();
        let files = engine.file_system(&rq(), HOME).await.unwrap();
        assert!(has(&files, "behind").await);
        let file = files.directories().lookup(&rq(), files.root(), b"f").await.unwrap();
        assert_eq!(files.contents().read(&rq(), file, 7, 7).await.unwrap(), "changed");
        assert!(reports(&engine).is_empty());
        engine.export().await.unwrap();
        assert!(listed(&machine).await.is_empty());
    });
    run.unwrap();
}

async fn import_without_logs(machine: &Machine) -> Arc<Engine> {
    let mut options = ImportOptions::new(opening());
    options.without_logs = true;
    Engine::import(machine, &options).await.unwrap()
}

#[test]
fn a_log_that_waits_for_a_device_is_discarded_on_request() {
    let world = degraded(35);
    let machine = world.machine();
    let run = world.run(async {
        let engine = import_without_logs(&machine).await;
        let files = engine.file_system(&rq(), HOME).await.unwrap();
        assert!(has(&files, "early").await && !has(&files, "behind").await);
        assert_eq!(reports(&engine).len(), 1);
        engine.export().await.unwrap();
        assert!(listed(&machine).await.contains(&"tank/home:/f".to_owned()));
    });
    run.unwrap();
}

/// Copies of each block of the file system's log.
async fn log_places(machine: &Machine) -> Vec<Vec<(u64, u64)>> {
    let pool = open(machine).await;
    let set = pool.object_set(&rq(), HOME).await.unwrap();
    let mut walk = LogWalk::new(&set);
    let mut places = Vec::new();
    while let Some(block) = walk.next(&rq()).await.unwrap() {
        places.push(copies(&block.pointer));
    }
    places
}

#[test]
fn damage_of_a_claimed_log_is_reported() {
    for rot in [false, true] {
        let (world, _) = cut(36, ALONE);
        let machine = world.machine();
        let run = world.run(async {
            // The import claims the log; no client uses the file system.
            import(&machine).await.unwrap().stop().await.unwrap();
            let places = log_places(&machine).await;
            assert!(places.len() >= 2, "{places:?}");
            damage(&disk(&world, "d0"), &places[1], rot);
            let engine = import(&machine).await.unwrap();
            let files = engine.file_system(&rq(), HOME).await.unwrap();
            assert!(has(&files, "early").await && !has(&files, "behind").await);
            assert!(!needs_replay(&files.objects().root().header.zil));
            assert_eq!(reports(&engine).len(), 1, "rot {rot}");
            engine.export().await.unwrap();
            let listed = listed(&machine).await;
            assert!(listed.contains(&"tank/home:<0x0>".to_owned()), "{listed:?}");
        });
        run.unwrap();
    }
}

#[test]
fn a_log_on_a_failing_device_is_discarded_only_on_request() {
    let (world, _) = cut(37, ALONE);
    let machine = world.machine();
    let run = world.run(async {
        let places = log_places(&machine).await;
        damage(&disk(&world, "d0"), &places[0], false);
        let refused = import(&machine).await.unwrap_err().to_string();
        assert!([HOME, SEARCH, "zpool import -m"].iter().all(|word| refused.contains(word)), "{refused}");
        let engine = import_without_logs(&machine).await;
        let files = engine.file_system(&rq(), HOME).await.unwrap();
        assert!(has(&files, "early").await && !has(&files, "behind").await);
        make(&files, "new").await;
        engine.export().await.unwrap();
        let engine = import(&machine).await.unwrap();
        let files = engine.file_system(&rq(), HOME).await.unwrap();
        assert!(has(&files, "new").await);
        engine.export().await.unwrap();
    });
    run.unwrap();
}

#[test]
fn an_unreadable_delete_queue_is_not_changed() {
    let world = world(38, ALONE);
    let machine = world.machine();
    let places = world.run(async {
        let (engine, files) = create(&machine, ALONE).await.unwrap();
        let new = New::of(NewKind::Regular, 0o600);
        for n in 0..200 {
            let name = format!("open-{n}");
            let file =
                files.names().create(&rq(), &Cred::root(), files.root(), name.as_bytes(), &new).await.unwrap().object;
            files.holds().hold(file, HoldKind::Open);
            files.names().remove(&rq(), &Cred::root(), files.root(), name.as_bytes()).await.unwrap();
        }
        make(&files, "early").await;
        engine.sync().await.unwrap();
        let master = ObjectId(weir_format::znode::master::OBJECT);
        let queue = zap::lookup_word(&rq(), files.objects(), master, "DELETE_QUEUE").await.unwrap().unwrap();
        first_block(files.objects(), ObjectId(queue)).await
    });
    world.power_failure();
    damage(&disk(&world, "d0"), &places.unwrap(), true);
    let machine = world.machine();
    let run = world.run(async {
        let engine = import(&machine).await.unwrap();
        let files = engine.file_system(&rq(), HOME).await.unwrap();
        assert!(has(&files, "early").await);
        make(&files, "new").await;
        engine.stop().await.unwrap();
    });
    run.unwrap();
}

//! Logs of encrypted datasets: claimed without the key, replayed with it, closed when it is unloaded.

use crate::world::{SEARCH, Shape, assert_pool_clean, options, world};
use bytes::Bytes;
use std::sync::Arc;
use weir_codec::crypt::Suite;
use weir_dsl::KeyFormat;
use weir_dsl::sync_tasks::{FileSystemSpec, Kind, NewDataset, VolumeSpec};
use weir_engine::{Crypt, Encryption, ImportOptions, KeyError, NewRoot};
use weir_engine::{Engine, Layout};
use weir_files::FilePosition;
use weir_files::{Cred, FileError, FileSystem, HoldKind, New, NewKind, WriteAt};
use weir_machine::{Machine, Request};
use weir_pool::{OpenOptions, PoolError};
use weir_zil::needs_replay;

pub const SHAPE: Shape = Shape { layout: Layout::Mirror, devices: 2, log: false };
pub const HOME: &str = "tank/e";
const VOLUME: &str = "tank/e/vol";
const OTHER: &str = "tank/other";

fn secret() -> Vec<u8> {
    vec![7; 32]
}

fn new(name: &str, kind: Kind) -> NewDataset {
    NewDataset { name: name.to_owned(), kind, properties: Vec::new() }
}

pub async fn create(machine: &Machine) -> Arc<Engine> {
    let engine = Engine::create(machine, &options(SHAPE)).await.unwrap();
    let root = NewRoot::new(machine, HOME, KeyFormat::Raw, "prompt", None, secret()).await.unwrap();
    let encryption = Encryption { crypt: Crypt::With(Suite::Aes256Gcm), root: Some(root) };
    let files = || Kind::FileSystem(FileSystemSpec::default());
    engine.create_encrypted(new(HOME, files()), encryption).await.unwrap();
    let volume = VolumeSpec { size_bytes: 4 << 20, block_bytes: 16 << 10 };
    engine.create_dataset(new(VOLUME, Kind::Volume(volume))).await.unwrap();
    engine.create_dataset(new(OTHER, files())).await.unwrap();
    engine
}

pub async fn import(machine: &Machine, key: bool) -> Arc<Engine> {
    let mut open = OpenOptions::new(vec![SEARCH.into()], "tank");
    if key {
        open.keys = vec![(HOME.to_owned(), secret())];
    }
    Engine::import(machine, &ImportOptions::new(open)).await.unwrap()
}

/// Creates a file and commits it.
async fn make(engine: &Engine, set: &str, name: &str) {
    let rq = Request::internal("test");
    let root = Cred::root();
    let files = engine.file_system(&rq, set).await.unwrap();
    let new = New::of(NewKind::Regular, 0o600);
    let made = files.names().create(&rq, &root, files.root(), name.as_bytes(), &new).await.unwrap().object;
    files.contents().write(&rq, &root, made, WriteAt::Offset(0), Bytes::from(name.repeat(9000))).await.unwrap();
    files.sync(&rq, Some(made)).await.unwrap();
}

async fn assert_file(files: &Arc<FileSystem>, name: &str) {
    let rq = Request::internal("test");
    let file =
        files.directories().lookup(&rq, files.root(), name.as_bytes()).await.unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(files.contents().read(&rq, file, 0, 1 << 20).await.unwrap(), name.repeat(9000), "{name}");
}

async fn write_volume(engine: &Engine, n: u8) {
    let rq = Request::internal("test");
    let volume = engine.volume(&rq, VOLUME).await.unwrap();
    volume.write(&rq, u64::from(n) * 300_000, Bytes::from(vec![n; 20_000]), true).await.unwrap();
}

async fn assert_volume(engine: &Engine, n: u8) {
    let rq = Request::internal("test");
    let volume = engine.volume(&rq, VOLUME).await.unwrap();
    let found = volume.read(&rq, u64::from(n) * 300_000, 20_000).await.unwrap();
    assert!(found == vec![n; 20_000], "write {n}: {:?} …", found.get(..4));
}

async fn assert_locked(engine: &Engine) {
    let rq = Request::internal("test");
    let refused = engine.file_system(&rq, HOME).await.err().unwrap();
    let PoolError::File { source, .. } = refused else { panic!("{refused}") };
    assert!(matches!(*source, FileError::NoKey), "{source}");
    assert!(engine.volume(&rq, VOLUME).await.is_err());
}

/// Pool whose power failed with records in the logs of its encrypted datasets.
fn cut() -> weir_sim::SimWorld {
    let world = world(11, SHAPE);
    let machine = world.machine();
    let first = world.run(async {
        let engine = create(&machine).await;
        make(&engine, HOME, "early").await;
        write_volume(&engine, 1).await;
        engine.sync().await.unwrap();
        make(&engine, HOME, "late").await;
        make(&engine, OTHER, "plain").await;
        write_volume(&engine, 2).await;
    });
    first.unwrap();
    world.power_failure();
    world
}

#[test]
fn a_log_is_claimed_without_its_key_and_replayed_with_it() {
    let world = cut();
    for _ in 0..2 {
        let machine = world.machine();
        let locked = world.run(async {
            let engine = import(&machine, false).await;
            assert_locked(&engine).await;
            let rq = &Request::internal("test");
            assert_file(&engine.file_system(rq, OTHER).await.unwrap(), "plain").await;
            engine.snapshot(vec![format!("{HOME}@now")], Vec::new()).await.unwrap();
            engine.destroy_snapshots(vec![format!("{HOME}@now")], false).await.unwrap();
            engine.export().await.unwrap();
            assert_pool_clean(&machine, "claimed").await;
        });
        locked.unwrap();
        world.power_failure();
    }
    let machine = world.machine();
    let last = world.run(async {
        let rq = &Request::internal("test");
        let engine = import(&machine, false).await;
        assert_locked(&engine).await;
        let wrong = engine.encryption_keys().load(rq, HOME, vec![8; 32]).await.unwrap_err();
        assert!(matches!(wrong, PoolError::Key(KeyError::Wrong { .. })), "{wrong}");
        let short = engine.encryption_keys().check(rq, HOME, vec![7; 31]).await.unwrap_err();
        assert!(matches!(short, PoolError::Key(KeyError::Material { .. })), "{short}");
        let child = engine.encryption_keys().load(rq, VOLUME, secret()).await.unwrap_err();
        assert!(matches!(child, PoolError::Key(KeyError::NotRoot { .. })), "{child}");
        let plain = engine.encryption_keys().load(rq, OTHER, secret()).await.unwrap_err();
        assert!(matches!(plain, PoolError::Key(KeyError::NotEncrypted { .. })), "{plain}");
        engine.encryption_keys().check(rq, HOME, secret()).await.unwrap();
        assert_locked(&engine).await;
        engine.encryption_keys().load(rq, HOME, secret()).await.unwrap();
        let again = engine.encryption_keys().load(rq, HOME, secret()).await.unwrap_err();
        assert!(matches!(again, PoolError::Key(KeyError::Loaded { .. })), "{again}");
        let files = engine.file_system(rq, HOME).await.unwrap();
        assert_file(&files, "early").await;
        assert_file(&files, "late").await;
        assert_volume(&engine, 1).await;
        assert_volume(&engine, 2).await;
        assert!(!needs_replay(&files.objects().root().header.zil));
        engine.export().await.unwrap();
        assert_pool_clean(&machine, "replayed").await;
    });
    last.unwrap();
}

#[test]
fn the_import_replays_logs_with_the_key_it_was_given() {
    let world = cut();
    let machine = world.machine();
    let last = world.run(async {
        let engine = import(&machine, true).await;
        let files = engine.file_system(&Request::internal("test"), HOME).await.unwrap();
        assert_file(&files, "late").await;
        assert_volume(&engine, 2).await;
        engine.export().await.unwrap();
        assert_pool_clean(&machine, "replayed").await;
    });
    last.unwrap();
}

#[test]
fn locked_datasets_with_logs_are_destroyed() {
    let world = cut();
    let machine = world.machine();
    let last = world.run(async {
        let engine = import(&machine, false).await;
        for name in [VOLUME, HOME] {
            engine.destroy_dataset(name.into()).await.unwrap();
        }
        engine.export().await.unwrap();
        assert_pool_clean(&machine, "destroyed").await;
    });
    last.unwrap();
}

#[test]
fn keys_are_unloaded_and_loaded_again() {
    let world = world(12, SHAPE);
    let machine = world.machine();
    let first = world.run(async {
        let rq = &Request::internal("test");
        let engine = create(&machine).await;
        let mut made = Vec::new();
        for n in 0..3u8 {
            for i in 0..4 {
                let name = format!("file-{n}-{i}");
                make(&engine, HOME, &name).await;
                made.push(name);
            }
            write_volume(&engine, n).await;
            let files = engine.file_system(rq, HOME).await.unwrap();
            files.holds().hold(files.root(), HoldKind::Open);
            let busy = engine.encryption_keys().unload(rq, HOME).await.unwrap_err();
            assert!(matches!(busy, PoolError::Key(KeyError::Busy { .. })), "{busy}");
            make(&engine, HOME, &format!("busy-{n}")).await;
            files.holds().release(rq, files.root(), HoldKind::Open).await.unwrap();
            let snapshot = format!("{HOME}@{n}");
            engine.snapshot(vec![snapshot.clone()], Vec::new()).await.unwrap();
            let old = engine.file_system(rq, &snapshot).await.unwrap();
            assert_file(&old, &format!("busy-{n}")).await;
            engine.encryption_keys().unload(rq, HOME).await.unwrap();
            let again = engine.encryption_keys().unload(rq, HOME).await.unwrap_err();
            assert!(matches!(again, PoolError::Key(KeyError::Unloaded { .. })), "{again}");
            assert_locked(&engine).await;
            for files in [&files, &old] {
                assert!(files.is_closed());
                assert!(files.directories().read_dir(rq, files.root(), 0, 10).await.is_err(), "the key is unloaded");
            }
            let rootless = engine.create_dataset(new("tank/e/x", Kind::FileSystem(FileSystemSpec::default()))).await;
            assert!(matches!(rootless, Err(PoolError::Key(KeyError::RootNotLoaded))), "{rootless:?}");
            make(&engine, OTHER, &format!("plain-{n}")).await;
            engine.encryption_keys().load(rq, HOME, secret()).await.unwrap();
            let files = engine.file_system(rq, HOME).await.unwrap();
            for name in &made {
                assert_file(&files, name).await;
            }
            assert_volume(&engine, n).await;
        }
        made
    });
    let made = first.unwrap();
    world.power_failure();
    let machine = world.machine();
    let second = world.run(async {
        assert_pool_clean(&machine, "cut").await;
        let engine = import(&machine, true).await;
        let files = engine.file_system(&Request::internal("test"), HOME).await.unwrap();
        for name in &made {
            assert_file(&files, name).await;
        }
        engine.export().await.unwrap();
        assert_pool_clean(&machine, "exported").await;
    });
    second.unwrap();
}

/// A clone of encrypted blocks is replayed from the log; its blocks stay allocated until the key is loaded.
#[test]
fn clones_wait_for_the_key() {
    let world = world(23, SHAPE);
    let machine = world.machine();
    let name = "much ".repeat(4);
    let first = world.run(async {
        let rq = Request::internal("test");
        let root = Cred::root();
        let engine = create(&machine).await;
        make(&engine, HOME, &name).await;
        engine.sync().await.unwrap();
        let files = engine.file_system(&rq, HOME).await.unwrap();
        let source = files.directories().lookup(&rq, files.root(), name.as_bytes()).await.unwrap();
        let synced = engine.txgs().last_synced();
        let new = New::of(NewKind::Regular, 0o600);
        let copy = files.names().create(&rq, &root, files.root(), b"copy", &new).await.unwrap().object;
        let len = (name.len() * 9000) as u64;
        assert_eq!(
            files
                .contents()
                .copy_range(
                    &rq,
                    &root,
                    &files,
                    FilePosition { file: source, offset: 0 },
                    FilePosition { file: copy, offset: 0 },
                    len
                )
                .await
                .unwrap(),
            len
        );
        // After the removal of the source only the log refers to the blocks.
        files.names().remove(&rq, &root, files.root(), name.as_bytes()).await.unwrap();
        files.sync(&rq, None).await.unwrap();
        assert_eq!(engine.txgs().last_synced(), synced, "the log alone makes it stable");
    });
    first.unwrap();
    world.power_failure();
    let machine = world.machine();
    let second = world.run(async {
        let rq = Request::internal("test");
        assert_pool_clean(&machine, "with a log").await;
        let engine = import(&machine, false).await;
        make(&engine, OTHER, "meanwhile").await;
        assert_locked(&engine).await;
        engine.export().await.unwrap();
        assert_pool_clean(&machine, "claimed").await;
        let engine = import(&machine, true).await;
        let files = engine.file_system(&rq, HOME).await.unwrap();
        let copy = files.directories().lookup(&rq, files.root(), b"copy").await.unwrap();
        assert!(files.contents().read(&rq, copy, 0, 1 << 20).await.unwrap() == name.repeat(9000));
        assert!(files.directories().lookup(&rq, files.root(), name.as_bytes()).await.is_err());
        engine.export().await.unwrap();
        assert_pool_clean(&machine, "replayed").await;
    });
    second.unwrap();
}

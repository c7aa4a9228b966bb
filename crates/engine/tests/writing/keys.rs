//! Encrypted file systems and volumes as clients use them: made, written, snapshotted, cloned, their keys changed,
//! unloaded and loaded again, in every cipher; judged by zdb without the key and with it.

use crate::files::{body, check, fill};
use crate::{real, work, zdb};
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use weir_codec::crypt::Suite;
use weir_dsl::KeyFormat;
use weir_dsl::sync_tasks::{FileSystemSpec, Kind, NewDataset, VolumeSpec};
use weir_engine::{CreateOptions, Engine, Layout};
use weir_engine::{Crypt, Encryption, ImportOptions, KeyChange, KeyError, NewRoot};
use weir_files::FilePosition;
use weir_files::{Cred, New, NewKind, WriteAt};
use weir_machine::{Machine, Request};
use weir_pool::config::Class;
use weir_pool::{OpenOptions, PoolError};

const ITERATIONS: u64 = 100_000;
const VOLUME_BYTES: u64 = 4 << 20;

/// A key: its format and what the user says.
#[derive(Clone, Copy)]
struct Key(KeyFormat, &'static str);

const OLD: Key = Key(KeyFormat::Passphrase, "correct horse battery");
const NEW: Key = Key(KeyFormat::Hex, "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff");

impl Key {
    fn secret(self) -> Vec<u8> {
        self.1.as_bytes().to_vec()
    }

    async fn root(self, machine: &Machine, name: &str) -> NewRoot {
        NewRoot::new(machine, name, self.0, "prompt", Some(ITERATIONS), self.secret()).await.unwrap()
    }
}

fn new(name: &str, kind: Kind) -> NewDataset {
    NewDataset { name: name.to_owned(), kind, properties: Vec::new() }
}

fn files_of(name: &str) -> NewDataset {
    new(name, Kind::FileSystem(FileSystemSpec::default()))
}

fn volume_of(name: &str) -> NewDataset {
    new(name, Kind::Volume(VolumeSpec { size_bytes: VOLUME_BYTES, block_bytes: 16 << 10 }))
}

fn sector(n: u64) -> Bytes {
    Bytes::from(work::contents(n, 0))
}

async fn import(machine: &Machine, dir: &Path, keys: &[(&str, Key)]) -> Arc<Engine> {
    let mut open = OpenOptions::new(vec![dir.to_owned()], "tank");
    open.keys = keys.iter().map(|(root, key)| ((*root).to_owned(), key.secret())).collect();
    Engine::import(machine, &ImportOptions::new(open)).await.unwrap()
}

fn key_error(result: Result<(), PoolError>) -> KeyError {
    match result {
        Err(PoolError::Key(error)) => error,
        other => panic!("not a refused key: {other:?}"),
    }
}

/// Makes all kinds of encrypted datasets, and writes them as clients.
async fn make(machine: &Machine, engine: &Engine, suite: Suite) {
    let rq = &Request::internal("test");
    let root = Encryption { crypt: Crypt::With(suite), root: Some(OLD.root(machine, "tank/e").await) };
    engine.create_encrypted(files_of("tank/e"), root).await.unwrap();
    engine.create_dataset(files_of("tank/e/c")).await.unwrap();
    engine.create_dataset(volume_of("tank/e/v")).await.unwrap();
    let plain = Encryption { crypt: Crypt::Off, root: None };
    engine.create_encrypted(files_of("tank/e/plain"), plain).await.unwrap();
    for name in ["tank/e", "tank/e/c", "tank/e/plain"] {
        let files = engine.file_system(rq, name).await.unwrap();
        fill(&files, rq, 1).await;
    }
    let volume = engine.volume(rq, "tank/e/v").await.unwrap();
    for n in 0..20 {
        volume.write(rq, n * (32 << 10), sector(n), n % 2 == 0).await.unwrap();
    }
    engine.snapshot(vec!["tank/e@s".into(), "tank/e/v@s".into()], Vec::new()).await.unwrap();
    engine.clone_snapshot("tank/e@s".into(), "tank/k".into(), Vec::new()).await.unwrap();
    let clone = engine.file_system(rq, "tank/k").await.unwrap();
    check(&clone, rq, 1).await;
    fill(&clone, rq, 2).await;
    fill(&engine.file_system(rq, "tank/e").await.unwrap(), rq, 3).await;
    volume.write(rq, 0, sector(99), true).await.unwrap();
}

/// Demands that all is there that [`make`] wrote.
async fn assert_all(engine: &Engine) {
    let rq = &Request::internal("test");
    for (name, generation) in [
        ("tank/e", 1),
        ("tank/e", 3),
        ("tank/e/c", 1),
        ("tank/e/plain", 1),
        ("tank/e@s", 1),
        ("tank/k", 1),
        ("tank/k", 2),
    ] {
        check(&engine.file_system(rq, name).await.unwrap(), rq, generation).await;
    }
    let volume = engine.volume(rq, "tank/e/v").await.unwrap();
    for n in 0..20 {
        let wanted = sector(if n == 0 { 99 } else { n });
        assert_eq!(volume.read(rq, n * (32 << 10), 16 << 10).await.unwrap(), wanted, "sector {n}");
    }
    let old = engine.volume(rq, "tank/e/v@s").await.unwrap();
    assert_eq!(old.read(rq, 0, 16 << 10).await.unwrap(), sector(0));
}

/// Makes and exports a pool, and runs zdb; with `lives`, imports it a second time.
fn judge(suite: Suite, layout: Layout, count: usize, lives: bool) {
    let dir = real::folder(&format!("keys-{}", suite.name()));
    let machine = weir_linux::machine().unwrap();
    let options = CreateOptions::new("tank", vec![real::top(&dir, "a", Class::Normal, layout, count)]);
    machine.block_on(async {
        let engine = Engine::create(&machine, &options).await.unwrap();
        make(&machine, &engine, suite).await;
        assert_all(&engine).await;
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
    });
    zdb::assert_clean(&dir, "tank");
    zdb::assert_counted(&dir, "tank");
    for dataset in ["tank/e", "tank/e/v", "tank/k"] {
        zdb::assert_opened(&dir, OLD.1, dataset);
    }
    if let Some(copied) = zdb::file_with_key(&dir, OLD.1, "tank/e", "dir/file-3-5") {
        assert!(copied == body(8), "zdb finds other bytes in the file");
    }
    if lives {
        change_keys(&machine, &dir);
        move_root(&machine, &dir);
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

/// The root gets another key, and a child one of its own.
fn change_keys(machine: &Machine, dir: &Path) {
    machine.block_on(async {
        let engine = import(machine, dir, &[("tank/e", OLD)]).await;
        assert_all(&engine).await;
        let change = KeyChange::New(NEW.root(machine, "tank/e").await);
        engine.encryption_keys().change("tank/e".into(), change).await.unwrap();
        let own = KeyChange::New(OLD.root(machine, "tank/e/c").await);
        engine.encryption_keys().change("tank/e/c".into(), own).await.unwrap();
        let of_clone = KeyChange::New(OLD.root(machine, "tank/k").await);
        assert_eq!(key_error(engine.encryption_keys().change("tank/k".into(), of_clone).await), KeyError::Clone);
        assert_all(&engine).await;
        engine.export().await.unwrap();
        work::assert_pool_clean(machine, dir, "tank").await;
    });
    zdb::assert_clean(dir, "tank");
    zdb::assert_opened(dir, NEW.1, "tank/e");
    zdb::assert_opened(dir, OLD.1, "tank/e/c");
}

/// The child inherits again; the promoted clone becomes the encryption root.
fn move_root(machine: &Machine, dir: &Path) {
    let rq = &Request::internal("test");
    machine.block_on(async {
        let engine = import(machine, dir, &[("tank/e", NEW)]).await;
        assert_eq!(
            key_error(engine.encryption_keys().change("tank/e/c".into(), KeyChange::Inherit).await),
            KeyError::NotLoaded
        );
        engine.encryption_keys().load(rq, "tank/e/c", OLD.secret()).await.unwrap();
        assert_all(&engine).await;
        engine.encryption_keys().change("tank/e/c".into(), KeyChange::Inherit).await.unwrap();
        let twice = engine.encryption_keys().change("tank/e/c".into(), KeyChange::Inherit).await;
        assert_eq!(key_error(twice), KeyError::InheritsAlready);
        engine.promote("tank/k".into()).await.unwrap();
        let known = KeyError::Loaded { name: "tank/k".into() };
        assert_eq!(key_error(engine.encryption_keys().load(rq, "tank/k", NEW.secret()).await), known);
        engine.create_dataset(files_of("tank/e/late")).await.unwrap();
        engine.export().await.unwrap();
        work::assert_pool_clean(machine, dir, "tank").await;
    });
    zdb::assert_clean(dir, "tank");
    machine.block_on(async {
        let engine = import(machine, dir, &[("tank/k", NEW)]).await;
        check(&engine.file_system(rq, "tank/e/c").await.unwrap(), rq, 1).await;
        check(&engine.file_system(rq, "tank/e").await.unwrap(), rq, 3).await;
        engine.file_system(rq, "tank/e/late").await.unwrap();
        engine.export().await.unwrap();
    });
    zdb::assert_clean(dir, "tank");
}

#[test]
fn lives_of_gcm_on_a_mirror() {
    judge(Suite::Aes256Gcm, Layout::Mirror, 2, true);
}

#[test]
fn lives_of_ccm_on_raidz() {
    judge(Suite::Aes128Ccm, Layout::Raidz(1), 3, true);
}

#[test]
fn other_ciphers() {
    for suite in [Suite::Aes192Ccm, Suite::Aes256Ccm, Suite::Aes128Gcm, Suite::Aes192Gcm] {
        judge(suite, Layout::Single, 1, false);
    }
}

/// Copies of encrypted files share blocks where one key opens them, and zdb reads them with it.
#[test]
fn copies_of_encrypted_files_share_blocks() {
    let dir = real::folder("keys-copies");
    let machine = weir_linux::machine().unwrap();
    let options = CreateOptions::new("tank", vec![real::top(&dir, "a", Class::Normal, Layout::Mirror, 2)]);
    let rq = &Request::internal("test");
    let root = Cred::root();
    let data = Bytes::from_iter((0..64).flat_map(|n| work::contents(3, n * 2)).take(1_000_000));
    let data = &data;
    machine.block_on(async {
        let engine = Engine::create(&machine, &options).await.unwrap();
        for name in ["tank/e", "tank/f"] {
            let root = NewRoot::new(&machine, name, OLD.0, "prompt", Some(ITERATIONS), OLD.secret()).await.unwrap();
            let encryption = Encryption { crypt: Crypt::With(Suite::Aes256Gcm), root: Some(root) };
            engine.create_encrypted(files_of(name), encryption).await.unwrap();
        }
        let make = async |name: &str, file: &str| {
            let files = engine.file_system(rq, name).await.unwrap();
            let new = New::of(NewKind::Regular, 0o644);
            let made = files.names().create(rq, &root, files.root(), file.as_bytes(), &new).await.unwrap().object;
            (files, made)
        };
        let (e, source) = make("tank/e", "source").await;
        e.contents().write(rq, &root, source, WriteAt::Offset(0), data.clone()).await.unwrap();
        engine.snapshot(vec!["tank/e@s".into()], Vec::new()).await.unwrap();
        engine.clone_snapshot("tank/e@s".into(), "tank/k".into(), Vec::new()).await.unwrap();
        let old = engine.file_system(rq, "tank/e@s").await.unwrap();
        // Within the dataset, from its snapshot, to its clone; with another key, bytes are copied.
        for (name, from, shares) in
            [("tank/e", &e, true), ("tank/e", &old, true), ("tank/k", &e, true), ("tank/f", &e, false)]
        {
            let saved = engine.gate.space().saved_bytes;
            let file = if std::ptr::eq(from, &old) { "of-snapshot" } else { "copy" };
            let (files, copy) = make(name, file).await;
            let copied = files
                .contents()
                .copy_range(
                    rq,
                    &root,
                    from,
                    FilePosition { file: source, offset: 0 },
                    FilePosition { file: copy, offset: 0 },
                    u64::MAX >> 1,
                )
                .await
                .unwrap();
            assert_eq!(copied, data.len() as u64, "{name}");
            assert!(files.contents().read(rq, copy, 0, 1 << 20).await.unwrap() == data[..], "{name}");
            engine.sync().await.unwrap();
            assert!(files.contents().read(rq, copy, 0, 1 << 20).await.unwrap() == data[..], "{name}");
            assert_eq!(engine.gate.space().saved_bytes - saved > 900_000, shares, "{name}");
        }
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
    });
    zdb::assert_clean(&dir, "tank");
    for (set, file) in [("tank/e", "copy"), ("tank/e", "of-snapshot"), ("tank/k", "copy"), ("tank/f", "copy")] {
        let found = zdb::file_with_key(&dir, OLD.1, set, file);
        assert!(found.is_none_or(|found| found == data[..]), "{set} {file}");
    }
    machine.block_on(async {
        let engine = import(&machine, &dir, &[("tank/e", OLD), ("tank/f", OLD)]).await;
        let e = engine.file_system(rq, "tank/e").await.unwrap();
        for file in ["source", "of-snapshot"] {
            e.names().remove(rq, &root, e.root(), file.as_bytes()).await.unwrap();
        }
        engine.destroy_dataset("tank/k".into()).await.unwrap();
        engine.destroy_snapshots(vec!["tank/e@s".into()], false).await.unwrap();
        engine.sync().await.unwrap();
        assert_eq!(engine.gate.space().saved_bytes, 0, "one holder is left");
        let copy = e.directories().lookup(rq, e.root(), b"copy").await.unwrap();
        assert!(e.contents().read(rq, copy, 0, 1 << 20).await.unwrap() == data[..]);
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
    });
    zdb::assert_clean(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}

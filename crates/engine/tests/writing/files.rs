//! Files in pools on real files: what clients do, snapshots, a reopening, and what zdb says.

use crate::real::{folder, pool_of};
use crate::{work, zdb};
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::{FileSystemSpec, Kind, NewDataset};
use weir_engine::{Engine, ImportOptions, Layout};
use weir_files::FilePosition;
use weir_files::{Cred, FileError, FileSystem, HoldKind, New, NewKind, SetAttributes, Space, WriteAt};
use weir_format::ObjectId;
use weir_machine::{Machine, Request};
use weir_pool::features::Features;
use weir_pool::mos::Mos;
use weir_pool::{OpenOptions, Pool};

/// A position in a file.
fn at(file: ObjectId, offset: u64) -> FilePosition<ObjectId> {
    FilePosition { file, offset }
}

const FILES: u64 = 40;

pub fn body(n: u64) -> Bytes {
    let len = (n * 7919 % 300_000) as usize;
    let soft = (0..len).map(|i| if i % 3 == 0 { ((i as u64 * n) >> 3) as u8 } else { n as u8 });
    Bytes::from_iter(soft)
}

pub async fn fill(files: &FileSystem, rq: &Request, generation: u64) {
    let root = Cred::root();
    let dir = match files.directories().lookup(rq, files.root(), b"dir").await {
        Ok(dir) => dir,
        Err(_) => {
            let new = New::of(NewKind::Directory, 0o755);
            files.names().create(rq, &root, files.root(), b"dir", &new).await.unwrap().object
        }
    };
    for n in 0..FILES {
        let name = format!("file-{generation}-{n}");
        let made =
            files.names().create(rq, &root, dir, name.as_bytes(), &New::of(NewKind::Regular, 0o644)).await.unwrap();
        files.contents().write(rq, &root, made.object, WriteAt::Offset(0), body(n + generation)).await.unwrap();
        if n % 8 == 0 {
            files.sync(rq, Some(made.object)).await.unwrap();
        }
    }
}

pub async fn check(files: &FileSystem, rq: &Request, generation: u64) {
    let dir = files.directories().lookup(rq, files.root(), b"dir").await.unwrap();
    for n in 0..FILES {
        let file: ObjectId =
            files.directories().lookup(rq, dir, format!("file-{generation}-{n}").as_bytes()).await.unwrap();
        let wanted = body(n + generation);
        let found = files.contents().read(rq, file, 0, wanted.len() + 1).await.unwrap();
        assert!(found == wanted, "file-{generation}-{n}");
    }
}

pub async fn import(machine: &Machine, dir: &Path) -> Arc<Engine> {
    Engine::import(machine, &ImportOptions::new(OpenOptions::new(vec![dir.to_owned()], "tank"))).await.unwrap()
}

/// Writes, makes snapshots and a clone, destroys, exports; reads it all back in the same program and in another open.
fn judge(name: &str, layout: Layout, count: usize) {
    let dir = folder(name);
    let machine = weir_linux::machine().unwrap();
    let options = pool_of(&dir, layout, count);
    let rq = &Request::internal("test");
    machine.block_on(async {
        let engine = Engine::create(&machine, &options).await.unwrap();
        engine.create_dataset(home()).await.unwrap();
        let files = engine.file_system(rq, "tank/home").await.unwrap();
        fill(&files, rq, 1).await;
        check(&files, rq, 1).await;
        engine.snapshot(vec!["tank/home@one".into(), "tank@one".into()], Vec::new()).await.unwrap();
        fill(&files, rq, 2).await;
        engine.clone_snapshot("tank/home@one".into(), "tank/clone".into(), Vec::new()).await.unwrap();
        let clone = engine.file_system(rq, "tank/clone").await.unwrap();
        fill(&clone, rq, 3).await;
        clone.holds().hold(clone.root(), HoldKind::Open);
        assert!(engine.destroy_dataset("tank/clone".into()).await.is_err(), "a client has a file open");
        fill(&clone, rq, 4).await;
        clone.holds().release(rq, clone.root(), HoldKind::Open).await.unwrap();
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
    });
    zdb::assert_clean(&dir, "tank");
    machine.block_on(async {
        let engine = import(&machine, &dir).await;
        let files = engine.file_system(rq, "tank/home").await.unwrap();
        check(&files, rq, 1).await;
        check(&files, rq, 2).await;
        let old = engine.file_system(rq, "tank/home@one").await.unwrap();
        check(&old, rq, 1).await;
        assert!(!old.is_writable());
        let root = Cred::root();
        let dir_of = files.directories().lookup(rq, files.root(), b"dir").await.unwrap();
        for n in 0..FILES {
            files.names().remove(rq, &root, dir_of, format!("file-1-{n}").as_bytes()).await.unwrap();
        }
        engine.destroy_dataset("tank/clone".into()).await.unwrap();
        engine.destroy_snapshots(vec!["tank/home@one".into()], false).await.unwrap();
        check(&files, rq, 2).await;
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
    });
    zdb::assert_clean(&dir, "tank");
    machine.block_on(async {
        let pool = Pool::open(&machine, &OpenOptions::new(vec![dir.clone()], "tank")).await.unwrap();
        let files = pool.file_system(rq, "tank/home").await.unwrap();
        check(&files, rq, 2).await;
    });
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn files_on_one_device() {
    judge("files-single", Layout::Single, 1);
}

#[test]
fn files_on_raidz2() {
    judge("files-raidz2", Layout::Raidz(2), 5);
}

/// Bytes that do not compress.
pub fn noise(len: usize, seed: u64) -> Bytes {
    let blocks = (0..len.div_ceil(16 << 10) as u64).flat_map(|n| work::contents(seed, n * 2));
    Bytes::from_iter(blocks.take(len))
}

async fn make(files: &FileSystem, name: &str, data: Bytes) -> ObjectId {
    let rq = Request::internal("test");
    let root = Cred::root();
    let new = New::of(NewKind::Regular, 0o644);
    let made = files.names().create(&rq, &root, files.root(), name.as_bytes(), &new).await.unwrap().object;
    files.contents().write(&rq, &root, made, WriteAt::Offset(0), data).await.unwrap();
    made
}

async fn demand(files: &FileSystem, name: &str, wanted: &[u8]) {
    let rq = Request::internal("test");
    let file = files.directories().lookup(&rq, files.root(), name.as_bytes()).await.unwrap();
    let found = files.contents().read(&rq, file, 0, wanted.len() + 1).await.unwrap();
    assert!(found == wanted, "{name}");
}

/// Copies share blocks: within a file system, to another, from a snapshot; in part, over something, and with holes.
async fn copies(engine: &Engine, data: &Bytes) -> Vec<u8> {
    let rq = &Request::internal("test");
    let root = Cred::root();
    engine.create_dataset(NewDataset { name: "tank/b".into(), ..home() }).await.unwrap();
    let a = engine.file_system(rq, "tank").await.unwrap();
    let b = engine.file_system(rq, "tank/b").await.unwrap();
    let source = make(&a, "source", data.clone()).await;
    a.contents().allocate(rq, &root, source, 1 << 20..2 << 20, Space::Punch).await.unwrap();
    let mut holed = data.to_vec();
    holed[1 << 20..2 << 20].fill(0);
    engine.snapshot(vec!["tank@one".into()], Vec::new()).await.unwrap();
    let old = engine.file_system(rq, "tank@one").await.unwrap();
    let len = data.len() as u64;
    for (files, name, from) in [(&a, "same", &a), (&b, "other", &a), (&b, "snapshot", &old)] {
        let before = engine.gate.space().saved_bytes;
        let copy = make(files, name, Bytes::new()).await;
        let copied =
            files.contents().copy_range(rq, &root, from, at(source, 0), at(copy, 0), u64::MAX >> 1).await.unwrap();
        assert_eq!(copied, len, "{name}");
        demand(files, name, &holed).await;
        engine.sync().await.unwrap();
        demand(files, name, &holed).await;
        let saved = engine.gate.space().saved_bytes - before;
        assert!(saved >= len - (1 << 20), "{name} saves {saved}");
        // A block that is changed is the changer's own.
        files.contents().write(rq, &root, copy, WriteAt::Offset(9), Bytes::from_static(b"mine")).await.unwrap();
        engine.sync().await.unwrap();
    }
    demand(&a, "source", &holed).await;
    // Not at blocks' starts, and over something: bytes.
    let odd = make(&b, "odd", noise(500_000, 77)).await;
    b.contents().copy_range(rq, &root, &a, at(source, 1000), at(odd, 5000), 400_000).await.unwrap();
    let mut wanted = noise(500_000, 77).to_vec();
    wanted[5000..405_000].copy_from_slice(&holed[1000..401_000]);
    demand(&b, "odd", &wanted).await;
    // Ranges that end in a block, in the source's middle and at its end: what is behind them in the target stays.
    let block = 128 << 10;
    for (name, from, to, bytes) in [("middle", 0, 0, 300_000), ("end", (5 << 20) - block, block, block as u64 + 777)] {
        let target = make(&b, name, noise(900_000, 5)).await;
        engine.sync().await.unwrap();
        b.contents().copy_range(rq, &root, &a, at(source, from as u64), at(target, to as u64), bytes).await.unwrap();
        let mut wanted = noise(900_000, 5).to_vec();
        wanted[to..to + bytes as usize].copy_from_slice(&holed[from..from + bytes as usize]);
        demand(&b, name, &wanted).await;
        b.names().remove(rq, &root, b.root(), name.as_bytes()).await.unwrap();
    }
    // Ranges of one file.
    let overlap = a.contents().copy_range(rq, &root, &a, at(source, 0), at(source, 4096), 8192).await;
    assert!(matches!(overlap, Err(FileError::Invalid { .. })), "{overlap:?}");
    a.contents().copy_range(rq, &root, &a, at(source, 0), at(source, 1 << 20), 512 << 10).await.unwrap();
    holed.copy_within(0..512 << 10, 1 << 20);
    demand(&a, "source", &holed).await;
    holed
}

pub fn home() -> NewDataset {
    let kind = Kind::FileSystem(FileSystemSpec::default());
    NewDataset { name: "tank/home".into(), kind, properties: Vec::new() }
}

#[test]
fn copies_share_blocks() {
    let dir = folder("files-copies");
    let machine = weir_linux::machine().unwrap();
    let options = pool_of(&dir, Layout::Mirror, 2);
    let rq = &Request::internal("test");
    let data = noise((5 << 20) + 777, 3);
    let wanted = machine.block_on(async {
        let engine = Engine::create(&machine, &options).await.unwrap();
        let wanted = copies(&engine, &data).await;
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
        wanted
    });
    zdb::assert_clean(&dir, "tank");
    machine.block_on(async {
        let engine = import(&machine, &dir).await;
        let a = engine.file_system(rq, "tank").await.unwrap();
        let b = engine.file_system(rq, "tank/b").await.unwrap();
        let mut copy = data.to_vec();
        copy[1 << 20..2 << 20].fill(0);
        copy[9..13].copy_from_slice(b"mine");
        demand(&a, "same", &copy).await;
        demand(&b, "other", &copy).await;
        demand(&b, "snapshot", &copy).await;
        demand(&a, "source", &wanted).await;
        assert!(engine.gate.space().saved_bytes > 8 << 20);
        let root = Cred::root();
        for (files, name) in [(&a, "source"), (&b, "other"), (&b, "snapshot"), (&b, "odd")] {
            files.names().remove(rq, &root, files.root(), name.as_bytes()).await.unwrap();
        }
        engine.destroy_snapshots(vec!["tank@one".into()], false).await.unwrap();
        engine.sync().await.unwrap();
        demand(&a, "same", &copy).await;
        assert_eq!(engine.gate.space().saved_bytes, 0, "one holder is left");
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
    });
    zdb::assert_clean(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Copies of any range, writes, truncations and groups in any order, on three files with small blocks, against arrays. Half
/// of the places are blocks' starts: elsewhere nothing is shared.
async fn random_copies(engine: &Engine, seed: u64) {
    let rq = &Request::internal("test");
    let root = Cred::root();
    let files = engine.file_system(rq, "tank/home").await.unwrap();
    let mut state = seed;
    let mut below = |limit: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % limit
    };
    let names: Vec<String> = (0..3).map(|n| format!("copies-{seed}-{n}")).collect();
    let mut ids = Vec::new();
    let mut models = vec![Vec::<u8>::new(); 3];
    for name in &names {
        ids.push(make(&files, name, Bytes::new()).await);
    }
    for step in 0..400 {
        let to = below(3);
        let from = below(3);
        let mut place = || if below(2) == 0 { below(60_000) } else { below(15) << 12 };
        let target = place();
        let source = place();
        let len = 1 + below(30_000);
        match below(10) {
            0 => engine.sync().await.unwrap(),
            1 => {
                files.attrs().set(rq, &root, ids[to], &SetAttributes::size(target as u64)).await.unwrap();
                models[to].resize(target, 0);
            }
            2..5 => {
                let data = noise(len, step);
                let end = models[to].len().max(target + len);
                models[to].resize(end, 0);
                models[to][target..target + len].copy_from_slice(&data);
                files.contents().write(rq, &root, ids[to], WriteAt::Offset(target as u64), data).await.unwrap();
            }
            _ => {
                let len = len.min(models[from].len().saturating_sub(source));
                if len == 0 || to == from && source.abs_diff(target) < len {
                    continue;
                }
                let out_of = at(ids[from], source as u64);
                let into = at(ids[to], target as u64);
                let copied = files.contents().copy_range(rq, &root, &files, out_of, into, len as u64).await.unwrap();
                assert_eq!(copied, len as u64, "seed {seed}, step {step}");
                let data = models[from][source..source + len].to_vec();
                let end = models[to].len().max(target + len);
                models[to].resize(end, 0);
                models[to][target..target + len].copy_from_slice(&data);
            }
        }
        demand(&files, &names[to], &models[to]).await;
    }
    engine.sync().await.unwrap();
    for (name, model) in names.iter().zip(&models) {
        demand(&files, name, model).await;
    }
}

#[test]
fn copies_of_any_range() {
    let dir = folder("files-any-copies");
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let engine = Engine::create(&machine, &pool_of(&dir, Layout::Single, 1)).await.unwrap();
        let small = vec![("recordsize".to_owned(), Value::Number(4096))];
        engine.create_dataset(NewDataset { properties: small, ..home() }).await.unwrap();
        for seed in 0..6 {
            random_copies(&engine, seed).await;
        }
        assert!(engine.gate.space().saved_bytes > 0, "nothing is shared");
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
    });
    zdb::assert_clean(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Software that does not know such names would not stand them: the feature says that they are there.
#[test]
fn long_names_are_a_feature_in_use() {
    let dir = folder("files-long-names");
    let machine = weir_linux::machine().unwrap();
    let mut options = pool_of(&dir, Layout::Single, 1);
    options.features.push("longname".into());
    let rq = &Request::internal("test");
    machine.block_on(async {
        let engine = Engine::create(&machine, &options).await.unwrap();
        let properties = vec![("longname".into(), Value::Number(1))];
        engine.create_dataset(NewDataset { properties, ..home() }).await.unwrap();
        let files = engine.file_system(rq, "tank/home").await.unwrap();
        for (len, count) in [(255, 0), (256, 1), (1023, 1)] {
            let new = New::of(NewKind::Regular, 0o644);
            files.names().create(rq, &Cred::root(), files.root(), &vec![b'n'; len], &new).await.unwrap();
            engine.sync().await.unwrap();
            let features = Features::read(rq, &Mos { set: engine.mos.clone() }).await.unwrap();
            assert_eq!(features.count("org.zfsonlinux:longname"), Some(count), "a name of {len} bytes");
        }
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
    });
    std::fs::remove_dir_all(&dir).unwrap();
}

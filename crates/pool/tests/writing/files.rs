//! Files in pools on real files: what clients do, snapshots, a reopening, and what zdb says.

use crate::real::{folder, pool_of};
use crate::{work, zdb};
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use weir_files::{Cred, FileSystem, New, NewKind, WriteAt};
use weir_format::ObjectId;
use weir_machine::{Machine, Request};
use weir_objects::dsl::change::{FileSystemSpec, Kind, NewDataset};
use weir_pool::engine::ImportOptions;
use weir_pool::{Engine, Layout, OpenOptions, Pool};

const FILES: u64 = 40;

fn body(n: u64) -> Bytes {
    let len = (n * 7919 % 300_000) as usize;
    let soft = (0..len).map(|i| if i % 3 == 0 { ((i as u64 * n) >> 3) as u8 } else { n as u8 });
    Bytes::from_iter(soft)
}

async fn fill(files: &FileSystem, rq: &Request, generation: u64) {
    let root = Cred::root();
    let dir = match files.lookup(rq, files.root(), b"dir").await {
        Ok(dir) => dir,
        Err(_) => {
            let new = New::of(NewKind::Directory, 0o755);
            files.create(rq, &root, files.root(), b"dir", &new).await.unwrap().object
        }
    };
    for n in 0..FILES {
        let name = format!("file-{generation}-{n}");
        let made = files.create(rq, &root, dir, name.as_bytes(), &New::of(NewKind::Regular, 0o644)).await.unwrap();
        files.write(rq, &root, made.object, WriteAt::Offset(0), body(n + generation)).await.unwrap();
        if n % 8 == 0 {
            files.sync(rq, Some(made.object)).await.unwrap();
        }
    }
}

async fn check(files: &FileSystem, rq: &Request, generation: u64) {
    let dir = files.lookup(rq, files.root(), b"dir").await.unwrap();
    for n in 0..FILES {
        let file: ObjectId = files.lookup(rq, dir, format!("file-{generation}-{n}").as_bytes()).await.unwrap();
        let wanted = body(n + generation);
        let found = files.read(rq, file, 0, wanted.len() + 1).await.unwrap();
        assert!(found == wanted, "file-{generation}-{n}");
    }
}

async fn import(machine: &Machine, dir: &Path) -> Arc<Engine> {
    Engine::import(machine, &ImportOptions::new(OpenOptions::new(vec![dir.to_owned()], "tank"))).await.unwrap()
}

/// Writes, makes snapshots and a clone, destroys, exports; reads it all back in the same program and in another open.
fn judge(name: &str, layout: Layout, count: usize) {
    let dir = folder(name);
    let machine = Machine::production().unwrap();
    let options = pool_of(&dir, layout, count);
    let rq = &Request::internal("test");
    machine.block_on(async {
        let engine = Engine::create(&machine, &options).await.unwrap();
        let home = NewDataset {
            name: "tank/home".into(),
            kind: Kind::FileSystem(FileSystemSpec::default()),
            properties: Vec::new(),
        };
        engine.create_dataset(home).await.unwrap();
        let files = engine.file_system(rq, "tank/home").await.unwrap();
        fill(&files, rq, 1).await;
        check(&files, rq, 1).await;
        engine.snapshot(vec!["tank/home@one".into(), "tank@one".into()], Vec::new()).await.unwrap();
        fill(&files, rq, 2).await;
        engine.clone_snapshot("tank/home@one".into(), "tank/clone".into(), Vec::new()).await.unwrap();
        let clone = engine.file_system(rq, "tank/clone").await.unwrap();
        fill(&clone, rq, 3).await;
        assert!(engine.destroy_dataset("tank/clone".into()).await.is_err(), "clients use it");
        engine.export().await.unwrap();
        work::demand_whole(&machine, &dir, "tank").await;
    });
    zdb::demand_clean(&dir, "tank");
    machine.block_on(async {
        let engine = import(&machine, &dir).await;
        let files = engine.file_system(rq, "tank/home").await.unwrap();
        check(&files, rq, 1).await;
        check(&files, rq, 2).await;
        let old = engine.file_system(rq, "tank/home@one").await.unwrap();
        check(&old, rq, 1).await;
        assert!(!old.is_writable());
        let root = Cred::root();
        let dir_of = files.lookup(rq, files.root(), b"dir").await.unwrap();
        for n in 0..FILES {
            files.remove(rq, &root, dir_of, format!("file-1-{n}").as_bytes()).await.unwrap();
        }
        engine.destroy_dataset("tank/clone".into()).await.unwrap();
        engine.destroy_snapshots(vec!["tank/home@one".into()], false).await.unwrap();
        check(&files, rq, 2).await;
        engine.export().await.unwrap();
        work::demand_whole(&machine, &dir, "tank").await;
    });
    zdb::demand_clean(&dir, "tank");
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

//! Pools that are split: on real files, judged by zdb, and in the simulator, where the power fails at every write and flush
//! while a client writes.

use crate::cuts::is_cut;
use crate::{real, work, zdb};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use weir_dsl::sync_tasks::{FileSystemSpec, Kind, NewDataset};
use weir_engine::scrub::ScanLimits;
use weir_engine::split::SplitRequest;
use weir_engine::{CreateOptions, Engine, ImportOptions, Layout, NewLeaf, NewTopLevelVdev, VdevAddRequest};
use weir_files::{Cred, FileSystem, New, NewKind, WriteAt};
use weir_machine::{Machine, Request};
use weir_pool::{Class, OpenOptions, Pool, PoolError, VdevConfig};
use weir_sim::{SimWorld, Timing};

const SEARCH: &str = "/sim";

async fn write_stable(files: &Arc<FileSystem>, name: &str) -> Result<(), PoolError> {
    let rq = Request::internal("test");
    let root = Cred::root();
    let failed = |error: weir_files::FileError| PoolError::Refused { what: error.to_string() };
    let new = New::of(NewKind::Regular, 0o600);
    let made = files.names().create(&rq, &root, files.root(), name.as_bytes(), &new).await.map_err(failed)?.object;
    let data = Bytes::from(name.repeat(900));
    files.contents().write(&rq, &root, made, WriteAt::Offset(0), data).await.map_err(failed)?;
    files.sync(&rq, Some(made)).await.map_err(failed)
}

/// Whether the file is there, with its contents.
async fn has_file(files: &FileSystem, name: &str) -> bool {
    let rq = &Request::internal("test");
    let Ok(file) = files.directories().lookup(rq, files.root(), name.as_bytes()).await else { return false };
    let read = files.contents().read(rq, file, 0, 1 << 20).await.unwrap();
    assert_eq!(read, name.repeat(900), "{name}");
    true
}

async fn home(engine: &Engine, pool: &str) -> Result<Arc<FileSystem>, PoolError> {
    engine.file_system(&Request::internal("test"), &format!("{pool}/home")).await
}

async fn make_home(engine: &Engine) -> Result<Arc<FileSystem>, PoolError> {
    let kind = Kind::FileSystem(FileSystemSpec::default());
    engine.create_dataset(NewDataset { name: "tank/home".into(), kind, properties: Vec::new() }).await?;
    home(engine, "tank").await
}

fn request(name: &str) -> SplitRequest {
    SplitRequest { name: name.into(), ..SplitRequest::default() }
}

fn root(engine: &Engine) -> VdevConfig {
    VdevConfig::parse(&engine.shown().config.root).unwrap()
}

fn kinds(engine: &Engine) -> Vec<String> {
    root(engine).children.iter().map(|top| top.kind.type_name().to_owned()).collect()
}

async fn import(machine: &Machine, dir: &Path, pool: &str) -> Result<Arc<Engine>, PoolError> {
    let open = OpenOptions { arc_bytes: 16 << 20, ..OpenOptions::new(vec![dir.to_owned()], pool) };
    Engine::import(machine, &ImportOptions::new(open)).await
}

/// Two mirrors, a special one, logs between them, a spare and a cache device; a third device of one mirror is chosen.
async fn split_real(machine: &Machine, dir: &Path) -> Result<(), PoolError> {
    let tops = vec![
        real::top(dir, "a", Class::Normal, Layout::Mirror, 2),
        real::top(dir, "l", Class::Log, Layout::Mirror, 2),
        real::top(dir, "b", Class::Normal, Layout::Mirror, 3),
        real::top(dir, "s", Class::Special, Layout::Mirror, 2),
        real::top(dir, "m", Class::Log, Layout::Single, 1),
    ];
    let mut aux = real::top(dir, "x", Class::Normal, Layout::Single, 2).leaves;
    let engine = Engine::create(machine, &CreateOptions::new("tank", tops)).await?;
    let more = VdevAddRequest { spares: aux.split_off(1), caches: aux, ..VdevAddRequest::default() };
    engine.devices().add(&more).await?;
    let files = make_home(&engine).await?;
    for n in 0..10 {
        write_stable(&files, &format!("before-{n}")).await?;
    }
    let first = root(&engine).children[2].children[0].guid;
    let why = engine.pool_splits().split(&request("tank")).await.unwrap_err().to_string();
    assert_eq!(why, "pool already exists");
    let wanted = SplitRequest { devices: vec![first], ..request("half") };
    engine.pool_splits().split(&wanted).await?;
    assert_eq!(kinds(&engine), ["file", "mirror", "mirror", "file", "file"]);
    for n in 0..10 {
        write_stable(&files, &format!("after-{n}")).await?;
    }
    let why = engine.pool_splits().split(&request("other")).await.unwrap_err().to_string();
    assert_eq!(why, "Source pool must be composed only of mirrors");
    engine.export().await
}

#[test]
fn both_pools_are_whole() {
    let dir = real::folder("split");
    let machine = weir_linux::machine().unwrap();
    machine.block_on(split_real(&machine, &dir)).unwrap();
    for pool in ["tank", "half"] {
        machine.block_on(work::assert_pool_clean(&machine, &dir, pool));
        zdb::assert_clean(&dir, pool);
        zdb::assert_counted(&dir, pool);
    }
    machine.block_on(async {
        let open = OpenOptions::new(vec![dir.clone()], "half");
        let pool = Pool::open(&machine, &open).await.unwrap();
        assert_eq!(pool.label.state, weir_pool::assemble::state::EXPORTED);
        let former = Pool::open(&machine, &OpenOptions::new(vec![dir.clone()], "tank")).await.unwrap();
        assert!(pool.config.guid != former.config.guid);
        let leaves = |pool: &Pool| pool.tree.leaves().iter().map(|leaf| leaf.guid).collect::<BTreeSet<_>>();
        assert!(leaves(&pool).is_disjoint(&leaves(&former)));
        assert!(pool.config.list.get_u64("split_guid") == Some(former.config.guid));
        let engine = import(&machine, &dir, "half").await.unwrap();
        assert_eq!(kinds(&engine), ["file", "hole", "file", "file", "hole"]);
        assert!(engine.shown().config.aux.spares.is_empty() && engine.shown().config.aux.caches.is_empty());
        assert_eq!(engine.shown().config.split_from, None);
        let files = home(&engine, "half").await.unwrap();
        for n in 0..10 {
            assert!(has_file(&files, &format!("before-{n}")).await);
            assert!(!has_file(&files, &format!("after-{n}")).await);
        }
        write_stable(&files, "new").await.unwrap();
        engine.export().await.unwrap();
        let engine = import(&machine, &dir, "tank").await.unwrap();
        assert_eq!(engine.shown().config.aux.spares.len(), 1);
        let files = home(&engine, "tank").await.unwrap();
        for n in 0..10 {
            assert!(has_file(&files, &format!("before-{n}")).await && has_file(&files, &format!("after-{n}")).await);
        }
        write_stable(&files, "new").await.unwrap();
        engine.export().await.unwrap();
    });
    for pool in ["tank", "half"] {
        machine.block_on(work::assert_pool_clean(&machine, &dir, pool));
        zdb::assert_clean(&dir, pool);
        zdb::assert_counted(&dir, pool);
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Files that were acknowledged as stable, and those before the split began.
type Stable = Arc<std::sync::Mutex<(usize, usize)>>;

fn new(index: usize) -> NewLeaf {
    NewLeaf { path: format!("{SEARCH}/d{index}").into(), is_file: true }
}

/// Two mirrors and a log device.
async fn prepare(machine: &Machine) -> Result<(), PoolError> {
    let top = |class, layout, range: std::ops::Range<usize>| NewTopLevelVdev {
        class,
        layout,
        leaves: range.map(new).collect(),
    };
    let mut options = CreateOptions::new(
        "tank",
        vec![
            top(Class::Normal, Layout::Mirror, 0..2),
            top(Class::Normal, Layout::Mirror, 2..4),
            top(Class::Log, Layout::Single, 4..5),
        ],
    );
    options.arc_bytes = 16 << 20;
    let engine = Engine::create(machine, &options).await?;
    let _files = make_home(&engine).await?;
    engine.stop().await
}

/// Splits the pool while a client writes files.
async fn split_in_use(machine: &Machine, stable: &Stable) -> Result<(), PoolError> {
    let engine = import(machine, Path::new(SEARCH), "tank").await?;
    let files = home(&engine, "tank").await?;
    for n in 0..2 {
        write_stable(&files, &format!("f{n}")).await?;
        *stable.lock().unwrap() = (n + 1, n + 1);
    }
    let client = {
        let (files, stable, clock) = (files.clone(), stable.clone(), machine.clock.clone());
        machine.tasks.spawn(async move {
            for n in 2..8 {
                write_stable(&files, &format!("f{n}")).await.unwrap();
                stable.lock().unwrap().0 = n + 1;
                clock.sleep(Duration::from_millis(2)).await;
            }
        })
    };
    engine.pool_splits().split(&request("half")).await?;
    client.await.unwrap();
    engine.stop().await
}

/// Judges what a cut left: the present pool has everything that was stable, and the new one, if there is one, what was stable
/// before. Returns whether there is a new pool.
async fn judge(machine: &Machine, stable: &Stable) -> bool {
    let search = Path::new(SEARCH);
    let (all, before) = *stable.lock().unwrap();
    work::assert_pool_clean(machine, search, "tank").await;
    let engine = import(machine, search, "tank").await.unwrap();
    engine.devices().clear(None).await.unwrap();
    engine.scrubs().start_resilver_if_needed().await.unwrap();
    let limits =
        ScanLimits { time: Duration::from_secs(60), bytes: 1 << 20, sorted_blocks: 64, ..ScanLimits::default() };
    engine.scrubs().run(&limits, &mut |_| true).await.unwrap();
    assert!(engine.cache.blocks().tree().dtls().is_empty(), "{:?}", engine.cache.blocks().tree().dtls());
    let files = home(&engine, "tank").await.unwrap();
    for n in 0..all {
        assert!(has_file(&files, &format!("f{n}")).await, "f{n} of {all}");
    }
    assert_eq!(engine.shown().config.splitting(), None);
    let is_split = kinds(&engine)[0] == "file";
    assert_eq!(kinds(&engine)[1] == "file", is_split, "all mirrors or none");
    engine.stop().await.unwrap();
    work::assert_pool_clean(machine, search, "tank").await;
    let half = import(machine, search, "half").await;
    assert_eq!(half.is_ok(), is_split, "{:?}", half.err());
    let Ok(half) = half else { return false };
    let files = home(&half, "half").await.unwrap();
    for n in 0..before {
        assert!(has_file(&files, &format!("f{n}")).await, "f{n} of {before} in the new pool");
    }
    half.stop().await.unwrap();
    work::assert_pool_clean(machine, search, "half").await;
    true
}

/// Cuts at change `at` of the split; `None` if there are fewer, else whether there is a new pool.
fn cut(seed: u64, at: u64) -> Option<bool> {
    let world = SimWorld::new(seed);
    for i in 0..5 {
        world.add_disk(format!("{SEARCH}/d{i}"), 64 << 20, 512, Timing::Nvme);
    }
    let machine = world.machine();
    world.run(prepare(&machine)).unwrap().unwrap();
    let stable = Stable::default();
    world.cut_after(at);
    let run = world.run(split_in_use(&machine, &stable));
    world.cancel_cut();
    let is_cut = is_cut(run, seed, at);
    let machine = world.machine();
    let judged = world.run(async { judge(&machine, &stable).await });
    let is_split = judged.unwrap_or_else(|error| panic!("seed {seed} cut {at}: {error}"));
    assert!(is_cut || is_split, "seed {seed}: the pool is not split");
    is_cut.then_some(is_split)
}

/// Every 101st change; `WEIR_SIM_CUT_STEP=1` cuts at each.
#[test]
fn any_cut_leaves_one_whole_pool_or_two() {
    let step = std::env::var("WEIR_SIM_CUT_STEP").ok().and_then(|step| step.parse().ok()).unwrap_or(101);
    let mut at = 1;
    let mut seen = BTreeSet::new();
    while let Some(is_split) = cut(40_000 + at, at) {
        seen.insert(is_split);
        at += step;
    }
    assert_eq!(seen, BTreeSet::from([false, true]), "cuts before and after the new pool exists, of {at}");
}

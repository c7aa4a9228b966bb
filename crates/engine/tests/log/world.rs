//! Pools in the simulator and their verification.

use bytes::Bytes;
use std::sync::Arc;
use weir_dsl::sync_tasks::{FileSystemSpec, Kind, NewDataset};
use weir_engine::{CreateOptions, Engine, ImportOptions, Layout, NewLeaf, NewTopLevelVdev};
use weir_files::{Cred, FileSystem, New, NewKind, WriteAt};
use weir_machine::{Machine, Request};
use weir_pool::config::Class;
use weir_pool::{OpenOptions, Pool, PoolError};
use weir_sim::{SimWorld, Timing};

pub const SEARCH: &str = "/sim";
pub const HOME: &str = "tank/home";
const DEVICE_BYTES: u64 = 64 << 20;

/// Devices of a pool, with or without a log device.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub layout: Layout,
    pub devices: usize,
    pub log: bool,
}

pub fn world(seed: u64, shape: Shape) -> SimWorld {
    let world = SimWorld::new(seed);
    let timing = if seed.is_multiple_of(3) { Timing::Chaos } else { Timing::SataSsd };
    for i in 0..shape.devices + usize::from(shape.log) {
        world.add_disk(format!("{SEARCH}/d{i}"), DEVICE_BYTES, 512, timing);
    }
    world
}

pub fn options(shape: Shape) -> CreateOptions {
    let leaf = |i: usize| NewLeaf { path: format!("{SEARCH}/d{i}").into(), is_file: true };
    let mut tops = vec![NewTopLevelVdev {
        class: Class::Normal,
        layout: shape.layout,
        leaves: (0..shape.devices).map(leaf).collect(),
    }];
    if shape.log {
        tops.push(NewTopLevelVdev { class: Class::Log, layout: Layout::Single, leaves: vec![leaf(shape.devices)] });
    }
    let mut options = CreateOptions::new("tank", tops);
    options.ashift = Some(9);
    options.arc_bytes = 16 << 20;
    options
}

/// Incompressible data of `len` bytes.
pub fn noise(len: usize, seed: u64) -> Bytes {
    let mut data = vec![0; len];
    weir_sim::Rng::new(seed).fill(&mut data);
    Bytes::from(data)
}

/// Creates a file that repeats its name 1000 times, and commits it.
pub async fn make(files: &Arc<FileSystem>, name: &str) {
    let rq = Request::internal("test");
    let root = Cred::root();
    let new = New::of(NewKind::Regular, 0o600);
    let made = files.names().create(&rq, &root, files.root(), name.as_bytes(), &new).await.unwrap().object;
    let data = Bytes::from(name.repeat(1000));
    files.contents().write(&rq, &root, made, WriteAt::Offset(0), data).await.unwrap();
    files.sync(&rq, Some(made)).await.unwrap();
}

/// Creates a file that repeats its name 1000 times.
pub async fn write(files: &Arc<FileSystem>, name: &str) {
    let rq = Request::internal("test");
    let root = Cred::root();
    let new = New::of(NewKind::Regular, 0o600);
    let made = files.names().create(&rq, &root, files.root(), name.as_bytes(), &new).await.unwrap().object;
    files.contents().write(&rq, &root, made, WriteAt::Offset(0), Bytes::from(name.repeat(1000))).await.unwrap();
}

/// Creates the pool with one file system.
pub async fn create(machine: &Machine, shape: Shape) -> Result<(Arc<Engine>, Arc<FileSystem>), PoolError> {
    let engine = Engine::create(machine, &options(shape)).await?;
    let kind = Kind::FileSystem(FileSystemSpec::default());
    engine.create_dataset(NewDataset { name: HOME.into(), kind, properties: Vec::new() }).await?;
    let files = engine.file_system(&Request::internal("test"), HOME).await?;
    Ok((engine, files))
}

/// Options of opening the pool.
pub fn opening() -> OpenOptions {
    let mut open = OpenOptions::new(vec![SEARCH.into()], "tank");
    open.arc_bytes = 16 << 20;
    open
}

pub async fn import(machine: &Machine) -> Result<Arc<Engine>, PoolError> {
    Engine::import(machine, &ImportOptions::new(opening())).await
}

/// Opens the pool read-only.
pub async fn open(machine: &Machine) -> Pool {
    Pool::open(machine, &opening()).await.unwrap()
}

/// Verifies that all blocks are readable and accounted for, and that all invariants hold.
pub async fn assert_pool_clean(machine: &Machine, when: &str) {
    let pool = open(machine).await;
    let report = weir_pool::verify::verify_pool(&pool, &Request::internal("test")).await.unwrap();
    let leaks: Vec<_> = report.leaks().take(5).collect();
    let faults = report.space.as_ref().map(|s| format!("{:?}", s.faults));
    let invariants = weir_pool::invariants::check_invariants(&pool, &Request::internal("test")).await.unwrap();
    let findings: Vec<String> = invariants.findings.iter().take(12).map(ToString::to_string).collect();
    assert!(invariants.is_clean(), "{when}, txg {}: {findings:#?}", pool.uberblock.txg);
    assert!(
        report.is_clean(),
        "{when}, txg {}: unreadable {:?}, clashes {:?}, leaks {leaks:x?}, {faults:?}",
        pool.uberblock.txg,
        report.unreadable.iter().take(3).collect::<Vec<_>>(),
        report.clashes.iter().take(3).collect::<Vec<_>>()
    );
}

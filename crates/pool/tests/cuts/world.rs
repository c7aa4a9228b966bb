//! Pools in the simulator and their judgement.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use weir_machine::{Clock, Machine, Request};
use weir_objects::dsl::change::{ChangeError, FileSystemSpec, Kind, NewDataset, VolumeSpec};
use weir_objects::props::Value;
use weir_pool::config::Class;
use weir_pool::engine::ImportOptions;
use weir_pool::{CreateOptions, Engine, Layout, NewLeaf, NewTop, OpenOptions, Pool, PoolError};
use weir_sim::{SimWorld, Timing};

pub const SEARCH: &str = "/sim";
const DEVICE_BYTES: u64 = 64 << 20;

/// Devices of a pool: data, and a log of its own or not.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub layout: Layout,
    pub devices: usize,
    pub log: bool,
    /// Equal blocks are kept once.
    pub dedup: bool,
}

impl Shape {
    /// One of some, by the seed.
    pub fn of(seed: u64) -> Self {
        match seed % 5 {
            0 => Shape { layout: Layout::Single, devices: 1, log: false, dedup: false },
            1 => Shape { layout: Layout::Mirror, devices: 2, log: false, dedup: false },
            2 => Shape { layout: Layout::Single, devices: 1, log: true, dedup: false },
            3 => Shape { layout: Layout::Single, devices: 1, log: false, dedup: true },
            _ => Shape { layout: Layout::Raidz(1), devices: 3, log: false, dedup: false },
        }
    }
}

pub fn world(seed: u64, shape: Shape) -> SimWorld {
    let world = SimWorld::new(seed);
    let timing = if seed.is_multiple_of(3) { Timing::Chaos } else { Timing::SataSsd };
    for i in 0..shape.devices + usize::from(shape.log) {
        world.add_disk(format!("{SEARCH}/d{i}"), DEVICE_BYTES, 512, timing);
    }
    world
}

fn options(shape: Shape) -> CreateOptions {
    let leaf = |i: usize| NewLeaf { path: format!("{SEARCH}/d{i}").into(), is_file: true };
    let mut tops =
        vec![NewTop { class: Class::Normal, layout: shape.layout, leaves: (0..shape.devices).map(leaf).collect() }];
    if shape.log {
        tops.push(NewTop { class: Class::Log, layout: Layout::Single, leaves: vec![leaf(shape.devices)] });
    }
    let mut options = CreateOptions::new("tank", tops);
    options.ashift = Some(9);
    options.arc_bytes = 16 << 20;
    if shape.dedup {
        // What the clients write would else be so short that it stands in the pointers.
        let number = |name: &str, n| (name.to_owned(), Value::Number(n));
        options.root_properties = vec![number("dedup", 1), number("compression", 2)];
    }
    options
}

pub async fn create(machine: &Machine, shape: Shape) -> Result<Arc<Engine>, PoolError> {
    Engine::create(machine, &options(shape)).await
}

pub async fn make_files(engine: &Engine, name: &str) {
    let kind = Kind::FileSystem(FileSystemSpec::default());
    engine.create_dataset(NewDataset { name: name.into(), kind, properties: Vec::new() }).await.unwrap();
}

pub async fn make_volume(engine: &Engine, name: &str, size_bytes: u64) {
    let kind = Kind::Volume(VolumeSpec { size_bytes, block_bytes: 8 << 10 });
    engine.create_dataset(NewDataset { name: name.into(), kind, properties: Vec::new() }).await.unwrap();
}

fn opening() -> OpenOptions {
    let mut open = OpenOptions::new(vec![SEARCH.into()], "tank");
    open.arc_bytes = 16 << 20;
    open
}

pub async fn import(machine: &Machine) -> Result<Arc<Engine>, PoolError> {
    Engine::import(machine, &ImportOptions::new(opening())).await
}

/// Asks again while somebody looks at the data set: a syncer or an administrator may, for a moment.
pub async fn patiently<F: Future<Output = Result<(), PoolError>>>(clock: &Clock, ask: impl Fn() -> F) {
    for _ in 0..1000 {
        match ask().await {
            Err(PoolError::Change(ChangeError::Busy { .. })) => clock.sleep(Duration::from_millis(1)).await,
            done => return done.unwrap(),
        }
    }
    panic!("a data set that nobody uses stays busy");
}

/// Weir's own judgement: all readable, all accounted for.
pub async fn whole(machine: &Machine) -> Result<(), String> {
    let pool = Pool::open(machine, &opening()).await.map_err(|e| e.to_string())?;
    let report = pool.verify(&Request::internal("test")).await.map_err(|e| e.to_string())?;
    if report.is_clean() {
        return Ok(());
    }
    let leaks: Vec<_> = report.leaks().take(5).collect();
    let faults = report.space.as_ref().map(|s| format!("{:?}", s.faults));
    let (unreadable, clashes) = (report.unreadable.first(), report.clashes.first());
    Err(format!(
        "txg {}: unreadable {unreadable:?}, clashes {clashes:?}, leaks {leaks:x?}, {faults:?}",
        pool.uberblock.txg
    ))
}

/// Writes the contents of the disks into files of a folder.
pub fn dump(world: &SimWorld, dir: &Path) {
    use std::os::unix::fs::FileExt;
    const PIECE: u64 = 1 << 20;
    for disk in world.disks() {
        let file = std::fs::File::create(dir.join(disk.path().file_name().unwrap())).unwrap();
        file.set_len(DEVICE_BYTES).unwrap();
        for at in (0..DEVICE_BYTES).step_by(PIECE as usize) {
            let bytes = disk.peek(at, PIECE as usize);
            if bytes.iter().any(|b| *b != 0) {
                file.write_all_at(&bytes, at).unwrap();
            }
        }
    }
}

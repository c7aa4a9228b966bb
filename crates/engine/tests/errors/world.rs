//! Pools of the histories.

use crate::acknowledged_state::{Known, Slot, UNIT, bytes_of};
use bytes::Bytes;
use std::sync::Arc;
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::{FileSystemSpec, Kind, NewDataset, VolumeSpec};
use weir_engine::{CreateOptions, Engine, ImportOptions, Layout, NewLeaf, NewTopLevelVdev};
use weir_files::{Cred, FileSystem, New, NewKind, WriteAt};
use weir_machine::{Machine, Request};
use weir_pool::config::Class;
use weir_pool::{OpenOptions, Pool, PoolError};
use weir_sim::{SimWorld, Timing};

pub const SEARCH: &str = "/sim";
pub const FILES: &str = "tank/files";
pub const VOLUME: &str = "tank/volume";
/// Units of the volume.
const VOLUME_UNITS: usize = 32;
const DEVICE_BYTES: u64 = 64 << 20;

/// Devices of a pool.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub name: &'static str,
    /// Number of normal top-level vdevs, which have equal layouts.
    pub tops: usize,
    pub layout: Layout,
    /// Devices of each normal top-level vdev.
    pub devices: usize,
    /// Log devices, mirrored if there are two.
    pub logs: usize,
}

impl Shape {
    fn disks(&self) -> usize {
        self.tops * self.devices + self.logs
    }

    /// All disks, by number.
    pub fn all(&self) -> Vec<u64> {
        (0..self.disks() as u64).collect()
    }

    /// Disks whose errors redundancy tolerates: one of each redundant top-level vdev.
    pub fn tolerated(&self) -> Vec<u64> {
        let normal = (0..self.tops).map(|top| top * self.devices).filter(|_| self.devices > 1);
        let log = (self.logs > 1).then_some(self.tops * self.devices);
        normal.chain(log).map(|disk| disk as u64).collect()
    }
}

const SINGLE: Shape = Shape { name: "single", tops: 1, layout: Layout::Single, devices: 1, logs: 0 };

pub const SHAPES: [Shape; 8] = [
    SINGLE,
    Shape { name: "stripe", tops: 2, ..SINGLE },
    Shape { name: "mirror", layout: Layout::Mirror, devices: 2, ..SINGLE },
    Shape { name: "raidz", layout: Layout::Raidz(1), devices: 3, ..SINGLE },
    Shape { name: "single-log", logs: 1, ..SINGLE },
    Shape { name: "mirror-log", layout: Layout::Mirror, devices: 2, logs: 1, ..SINGLE },
    Shape { name: "raidz2-logs", layout: Layout::Raidz(2), devices: 4, logs: 2, ..SINGLE },
    Shape { name: "mirrors", tops: 2, layout: Layout::Mirror, devices: 2, logs: 2 },
];

fn options(shape: Shape) -> CreateOptions {
    let leaf = |i: usize| NewLeaf { path: format!("{SEARCH}/d{i}").into(), is_file: true };
    let top = |n: usize| NewTopLevelVdev {
        class: Class::Normal,
        layout: shape.layout,
        leaves: (n * shape.devices..(n + 1) * shape.devices).map(leaf).collect(),
    };
    let mut tops: Vec<NewTopLevelVdev> = (0..shape.tops).map(top).collect();
    if shape.logs > 0 {
        let layout = if shape.logs > 1 { Layout::Mirror } else { Layout::Single };
        tops.push(NewTopLevelVdev {
            class: Class::Log,
            layout,
            leaves: (shape.disks() - shape.logs..shape.disks()).map(leaf).collect(),
        });
    }
    let mut options = CreateOptions::new("tank", tops);
    options.ashift = Some(9);
    options.arc_bytes = 8 << 20;
    options
}

fn opening() -> OpenOptions {
    let mut open = OpenOptions::new(vec![SEARCH.into()], "tank");
    open.arc_bytes = 8 << 20;
    open
}

pub async fn import(machine: &Machine) -> Result<Arc<Engine>, PoolError> {
    Engine::import(machine, &ImportOptions::new(opening())).await
}

/// Creates a file in the root directory.
pub async fn make_file(files: &FileSystem, name: &str) -> Result<weir_format::ObjectId, weir_files::FileError> {
    let rq = Request::internal("client");
    let new = New::of(NewKind::Regular, 0o644);
    Ok(files.names().create(&rq, &Cred::root(), files.root(), name.as_bytes(), &new).await?.object)
}

/// Creates a pool that was in use until the power failed. Returns its disks and its acknowledged state.
pub fn prepare(shape: Shape) -> (SimWorld, Known) {
    let world = SimWorld::new(shape.disks() as u64);
    for i in 0..shape.disks() {
        world.add_disk(format!("{SEARCH}/d{i}"), DEVICE_BYTES, 512, Timing::Nvme);
    }
    let machine = world.machine();
    let mut known = Known::default();
    let run = world.run(async {
        let engine = Engine::create(&machine, &options(shape)).await.unwrap();
        let records = vec![("recordsize".to_owned(), Value::Number(16 << 10))];
        let kind = Kind::FileSystem(FileSystemSpec::default());
        engine.create_dataset(NewDataset { name: FILES.into(), kind, properties: records }).await.unwrap();
        let kind = Kind::Volume(VolumeSpec { size_bytes: (VOLUME_UNITS * UNIT) as u64, block_bytes: 8 << 10 });
        engine.create_dataset(NewDataset { name: VOLUME.into(), kind, properties: Vec::new() }).await.unwrap();
        let rq = Request::internal("test");
        let files = engine.file_system(&rq, FILES).await.unwrap();
        for n in 0..2 {
            let name = format!("old-{n}");
            let file = make_file(&files, &name).await.unwrap();
            let data: Vec<u8> = (0..8).flat_map(|unit| bytes_of(n as u64 + 1, unit)).collect();
            files.contents().write(&rq, &Cred::root(), file, WriteAt::Offset(0), Bytes::from(data)).await.unwrap();
            known.names.insert(name, Slot::new(Some(n)));
            known.files.push(vec![Slot::new(n as u64 + 1); 8]);
        }
        known.volume = vec![Slot::new(0); VOLUME_UNITS];
        engine.volume(&rq, VOLUME).await.unwrap();
        engine.sync().await.unwrap();
        // A log that the import must claim and replay.
        let file = make_file(&files, "logged").await.unwrap();
        let data: Vec<u8> = (0..4).flat_map(|unit| bytes_of(3, unit)).collect();
        files.contents().write(&rq, &Cred::root(), file, WriteAt::Offset(0), Bytes::from(data)).await.unwrap();
        files.sync(&rq, None).await.unwrap();
        known.names.insert("logged".into(), Slot::new(Some(2)));
        known.files.push(vec![Slot::new(3); 4]);
    });
    run.unwrap();
    world.power_failure();
    (world, known)
}

/// Verifies that all blocks are readable and accounted for.
pub async fn verify(machine: &Machine) -> Result<(), String> {
    let pool = Pool::open(machine, &opening()).await.map_err(|e| e.to_string())?;
    let report = weir_pool::verify::verify_pool(&pool, &Request::internal("test")).await.map_err(|e| e.to_string())?;
    if report.is_clean() {
        return Ok(());
    }
    let leaks: Vec<_> = report.leaks().take(3).collect();
    let faults = report.space.as_ref().map(|s| format!("{:?}", s.faults));
    let unreadable = report.unreadable.first();
    let clashes = report.clashes.first();
    Err(format!("unreadable {unreadable:?}, clashes {clashes:?}, leaks {leaks:x?}, {faults:?}"))
}

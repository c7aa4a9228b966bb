//! A storage server to be modelled, and its pool made by the engine on modelled disks.

use crate::hardware::contents::Payload;
use crate::hardware::disk::{ModelDisk, ModelDisks, Work};
use crate::hardware::drive::DriveSpec;
use crate::hardware::link::LinkSpec;
use crate::hardware::processors::{Costs, Processors};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use weir_dsl::props::Value;
use weir_engine::{CreateOptions, Engine, ImportOptions, Layout, NewLeaf, NewTopLevelVdev};
use weir_machine::{Compute, Machine};
use weir_pool::config::Class;
use weir_pool::{OpenOptions, PoolError};
use weir_sim::SimWorld;

const FOLDER: &str = "/model";
/// Name of the modelled pool.
pub const POOL: &str = "tank";

/// Disks of one top-level vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VdevLayout {
    /// One disk.
    Single,
    /// A mirror of this many disks.
    Mirror(usize),
    /// RAID-Z: parity and number of disks.
    Raidz(u8, usize),
}

impl VdevLayout {
    /// Number of disks.
    pub fn disks(self) -> usize {
        match self {
            VdevLayout::Single => 1,
            VdevLayout::Mirror(disks) | VdevLayout::Raidz(_, disks) => disks,
        }
    }

    /// Disks that may fail without loss.
    pub fn redundancy(self) -> usize {
        match self {
            VdevLayout::Single => 0,
            VdevLayout::Mirror(disks) => disks - 1,
            VdevLayout::Raidz(parity, _) => parity.into(),
        }
    }

    /// Share of the columns of a RAID-Z vdev that hold parity; 0 for other layouts.
    pub fn parity_share(self) -> f64 {
        match self {
            VdevLayout::Raidz(parity, width) => f64::from(parity) / width as f64,
            VdevLayout::Single | VdevLayout::Mirror(_) => 0.0,
        }
    }

    /// Disks whose capacity holds data.
    pub fn data_disks(self) -> usize {
        self.disks() - self.redundancy()
    }

    fn engine_layout(self) -> Layout {
        match self {
            VdevLayout::Single => Layout::Single,
            VdevLayout::Mirror(_) => Layout::Mirror,
            VdevLayout::Raidz(parity, _) => Layout::Raidz(parity),
        }
    }
}

/// `sync` of the dataset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncProperty {
    /// `standard`.
    #[default]
    Standard,
    /// `always`.
    Always,
    /// `disabled`.
    Disabled,
}

/// `primarycache` of the dataset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheProperty {
    /// `all`.
    #[default]
    All,
    /// `metadata`.
    Metadata,
    /// `none`.
    Nothing,
}

/// A cache device (L2ARC).
#[derive(Clone, Debug)]
pub struct CacheDeviceSpec {
    /// The drive.
    pub drive: DriveSpec,
    /// Size of the drive in bytes.
    pub bytes: u64,
}

/// A pool and its main dataset.
#[derive(Clone, Debug)]
pub struct PoolSpec {
    /// The drives of the data vdevs.
    pub drive: DriveSpec,
    /// Size of each drive in bytes.
    pub drive_bytes: u64,
    /// Layout of each data vdev.
    pub layout: VdevLayout,
    /// Number of data vdevs.
    pub vdevs: usize,
    /// Log device.
    pub log: Option<DriveSpec>,
    /// Cache device (L2ARC).
    pub cache: Option<CacheDeviceSpec>,
    /// `recordsize`, and `volblocksize` of a volume, in bytes.
    pub record_bytes: u64,
    /// `sync`.
    pub sync: SyncProperty,
    /// `primarycache`.
    pub primary_cache: CacheProperty,
    /// `compression`: what the engine runs. Its cost in virtual time is part of [`Costs`].
    pub compression: bool,
    /// `dedup=on`.
    pub dedup: bool,
    /// Share of each drive that is already in use, from 0 to 1: what is written next comes to the tracks behind it.
    pub fill: f64,
}

impl PoolSpec {
    /// A pool with default properties.
    pub fn new(drive: DriveSpec, layout: VdevLayout, vdevs: usize) -> Self {
        PoolSpec {
            drive,
            drive_bytes: 1 << 40,
            layout,
            vdevs,
            log: None,
            cache: None,
            record_bytes: 128 << 10,
            sync: SyncProperty::Standard,
            primary_cache: CacheProperty::All,
            compression: false,
            dedup: false,
            fill: 0.0,
        }
    }
}

/// A server to be modelled.
#[derive(Clone, Debug)]
pub struct ServerSpec {
    /// The pool.
    pub pool: PoolSpec,
    /// Bytes of the ARC.
    pub arc_bytes: u64,
    /// Limit of dirty data in bytes (`zfs_dirty_data_max`).
    pub dirty_bytes: u64,
    /// Number of processors.
    pub processors: usize,
    /// Of these, the number that compress, checksum and compute the parity of writes; none: all. OpenZFS has a thread for this on
    /// each of 80 % of the processors, rounded down (`zio_taskq_batch_pct`; 75 % before 2021); this engine uses all.
    pub write_processors: Option<usize>,
    /// Requests of clients come before other work. OpenZFS runs the threads that compress and checksum writes at a lower priority
    /// than others; this engine does not.
    pub clients_first: bool,
    /// Costs of work.
    pub costs: Costs,
    /// The server's network link; none: the load runs on the server.
    pub link: Option<LinkSpec>,
}

impl ServerSpec {
    /// A server with this pool, eight processors, 1 GiB of ARC, 256 MiB of dirty data and no network.
    pub fn new(pool: PoolSpec) -> Self {
        ServerSpec {
            pool,
            arc_bytes: 1 << 30,
            dirty_bytes: 256 << 20,
            processors: 8,
            write_processors: None,
            clients_first: false,
            costs: Costs::default(),
            link: None,
        }
    }
}

/// A modelled server that runs.
pub struct Server {
    /// The world, which has the time.
    pub world: SimWorld,
    /// The machine that the engine runs on.
    pub machine: Machine,
    /// The disks.
    pub disks: Arc<ModelDisks>,
    /// The log device.
    pub log: Option<Arc<ModelDisk>>,
    /// The cache device.
    pub cache: Option<Arc<ModelDisk>>,
    /// The processors.
    pub work: Arc<Work>,
    /// The description from which the server was made.
    pub spec: ServerSpec,
}

fn number(name: &str, value: u64) -> (String, Value) {
    (name.to_owned(), Value::Number(value))
}

impl Server {
    /// A server with empty disks, in a world of its own.
    pub fn new(seed: u64, spec: ServerSpec, payload: Payload) -> Self {
        let world = SimWorld::new(seed);
        world.run_in_order();
        world.limit_steps(u64::MAX);
        let processors = Mutex::new(Processors::new(spec.processors));
        let write_processors = spec.write_processors.unwrap_or(spec.processors);
        let clients_first = spec.clients_first;
        let payload = Arc::new(payload);
        let layout = spec.pool.layout;
        let payload_share = layout.data_disks() as f64 / layout.disks() as f64;
        let record_bytes = spec.pool.record_bytes as f64;
        let costs = spec.costs;
        let work = Work { payload, processors, clients_first, write_processors, costs, record_bytes, payload_share };
        let work = Arc::new(work);
        let disks = Arc::<ModelDisks>::default();
        let parity = layout.parity_share();
        let drive = |spec: &DriveSpec, bytes: u64, fill: f64, parity: f64| {
            ModelDisk::new(spec, bytes, fill, world.timer(), work.clone(), parity)
        };
        for at in 0..spec.pool.vdevs * layout.disks() {
            disks.add(disk_path(at), drive(&spec.pool.drive, spec.pool.drive_bytes, spec.pool.fill, parity));
        }
        let log = spec.pool.log.as_ref().map(|log| drive(log, 16 << 30, 0.0, 0.0));
        if let Some(log) = &log {
            disks.add(log_path(), log.clone());
        }
        let cache = spec.pool.cache.as_ref().map(|cache| drive(&cache.drive, cache.bytes / 4096 * 4096, 0.0, 0.0));
        if let Some(cache) = &cache {
            disks.add(cache_path(), cache.clone());
        }
        // Work on the engine's own threads takes no virtual time: it is charged where bytes reach or leave a device.
        let compute = Compute::new(Arc::new(AtOnce));
        let machine = Machine { disks: disks.clone(), compute, ..world.machine() };
        Server { world, machine, disks, log, cache, work, spec }
    }

    /// Adds a blank drive like those of the pool at the next place; returns its path and the drive.
    pub(super) fn add_blank_drive(&self, at: usize) -> (PathBuf, Arc<ModelDisk>) {
        let pool = &self.spec.pool;
        let parity = pool.layout.parity_share();
        let disk =
            ModelDisk::new(&pool.drive, pool.drive_bytes, pool.fill, self.world.timer(), self.work.clone(), parity);
        self.disks.add(disk_path(at), disk.clone());
        (disk_path(at), disk)
    }

    fn create_options(&self) -> CreateOptions {
        let pool = &self.spec.pool;
        let leaf = |path: PathBuf| NewLeaf { path, is_file: true };
        let width = pool.layout.disks();
        let mut tops: Vec<NewTopLevelVdev> = (0..pool.vdevs)
            .map(|vdev| NewTopLevelVdev {
                class: Class::Normal,
                layout: pool.layout.engine_layout(),
                leaves: (vdev * width..(vdev + 1) * width).map(|at| leaf(disk_path(at))).collect(),
            })
            .collect();
        if pool.log.is_some() {
            tops.push(NewTopLevelVdev { class: Class::Log, layout: Layout::Single, leaves: vec![leaf(log_path())] });
        }
        let mut options = CreateOptions::new(POOL, tops);
        if pool.cache.is_some() {
            options.caches = vec![leaf(cache_path())];
        }
        options.ashift = Some(12);
        options.arc_bytes = self.spec.arc_bytes;
        options.dirty.max_bytes = self.spec.dirty_bytes;
        options.root_properties = vec![
            number("recordsize", pool.record_bytes),
            // zio_compress: off is 2, LZ4 is 15.
            number("compression", if pool.compression { 15 } else { 2 }),
            number("sync", pool.sync as u64),
            number(
                "primarycache",
                match pool.primary_cache {
                    CacheProperty::Nothing => 0,
                    CacheProperty::Metadata => 1,
                    CacheProperty::All => 2,
                },
            ),
            number("atime", 0),
        ];
        if pool.dedup {
            // zio_checksum: on is 1.
            options.root_properties.push(number("dedup", 1));
        }
        options
    }

    /// Creates the pool.
    ///
    /// # Errors
    /// Those of [`Engine::create`].
    pub async fn create_pool(&self) -> Result<Arc<Engine>, PoolError> {
        Engine::create(&self.machine, &self.create_options()).await
    }

    /// Exports the pool and imports it again: what was cached is gone.
    ///
    /// # Errors
    /// Those of [`Engine::export`] and [`Engine::import`].
    pub async fn reopen(&self, engine: Arc<Engine>) -> Result<Arc<Engine>, PoolError> {
        engine.export().await?;
        drop(engine);
        let mut open = OpenOptions::new(vec![FOLDER.into()], POOL);
        open.arc_bytes = self.spec.arc_bytes;
        let mut options = ImportOptions::new(open);
        options.dirty.max_bytes = self.spec.dirty_bytes;
        Engine::import(&self.machine, &options).await
    }
}

pub(super) fn disk_path(at: usize) -> PathBuf {
    format!("{FOLDER}/disk{at:03}").into()
}

fn log_path() -> PathBuf {
    format!("{FOLDER}/log").into()
}

fn cache_path() -> PathBuf {
    format!("{FOLDER}/cache").into()
}

/// Does work at once, on the only thread of the simulation.
struct AtOnce;

impl weir_machine::compute::ComputePool for AtOnce {
    fn run(&self, job: weir_machine::compute::Job) {
        job();
    }

    fn count(&self) -> usize {
        1
    }
}

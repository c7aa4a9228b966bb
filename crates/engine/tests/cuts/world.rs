//! Pools in the simulator and their verification.

use crate::faulty_device::DeviceFault;
use futures_util::FutureExt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use weir_blocks::alloc::DEFER;
use weir_codec::CodecError;
use weir_codec::crypt::Suite;
use weir_dmu::ObjectError;
use weir_dsl::KeyFormat;
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::{DslError, FileSystemSpec, Kind, NewDataset, VolumeSpec};
use weir_engine::create::{DraidRequest, PoolValue};
use weir_engine::{CreateOptions, Engine, Layout, NewLeaf, NewTopLevelVdev};
use weir_engine::{Crypt, Encryption, ImportOptions, NewRoot};
use weir_format::Txg;
use weir_machine::{Clock, Machine, Request};
use weir_pool::config::Class;
use weir_pool::uberblocks::ranked;
use weir_pool::{OpenOptions, Pool, PoolError, Rewind, assemble, scan};
use weir_sim::{SimWorld, Timing};

pub const SEARCH: &str = "/sim";
const DEVICE_BYTES: u64 = 64 << 20;

/// Devices and properties of a pool, with or without a log device.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub layout: Layout,
    pub devices: usize,
    pub log: bool,
    /// The pool deduplicates.
    pub dedup: bool,
    /// Cipher of the encrypted datasets; none: no dataset is encrypted.
    pub suite: Option<Suite>,
    /// Freed space is trimmed in the background (`autotrim`).
    pub autotrim: bool,
    /// Maximum blocks that a txg frees. It is small, so that freeing some files and every dataset takes several txgs.
    pub freed_blocks: u64,
    /// Free space is fragmented, so the allocator reuses freed space as soon as it is allowed to.
    pub scattered: bool,
    /// Metaslabs are unloaded as soon as possible, so that each txg loads them. Then cuts are less often equivalent, and take
    /// three times as long.
    pub unloads_early: bool,
    /// Fault of one of the devices while the clients change the pool. Redundancy tolerates it.
    pub fault: Option<DeviceFault>,
}

/// All ciphers.
const SUITES: [Suite; 6] =
    [Suite::Aes256Gcm, Suite::Aes128Ccm, Suite::Aes192Gcm, Suite::Aes256Ccm, Suite::Aes128Gcm, Suite::Aes192Ccm];

impl Shape {
    /// Shape of the history with this seed.
    pub fn of(seed: u64) -> Self {
        let suite = seed.is_multiple_of(2).then_some(SUITES[(seed / 2 % 6) as usize]);
        let autotrim = seed % 3 == 1;
        let freed_blocks = [100_000, 24, 3][(seed / 3 % 3) as usize];
        let scattered = seed / 5 % 2 == 1;
        let unloads_early = seed % 4 == 2;
        let layout = Layout::Single;
        let devices = 1;
        let log = false;
        let dedup = false;
        let fault = None;
        let shape =
            Shape { layout, devices, log, dedup, suite, autotrim, freed_blocks, scattered, unloads_early, fault };
        let fault = [None, Some(DeviceFault::Hang), Some(DeviceFault::Slow)][(seed / 5 % 3) as usize];
        match seed % 5 {
            0 => shape,
            1 => Shape { layout: Layout::Mirror, devices: 2, fault, ..shape },
            2 => Shape { log: true, ..shape },
            3 => Shape { dedup: true, ..shape },
            _ if seed / 5 % 4 == 2 => Shape { layout: DRAID, devices: 4, fault, ..shape },
            _ => Shape { layout: Layout::Raidz(1), devices: 3, fault, ..shape },
        }
    }
}

impl Shape {
    /// Cipher of a client's dataset; every dataset but [`PLAIN`] is encrypted.
    pub fn suite_of(&self, name: &str) -> Option<Suite> {
        self.suite.filter(|_| name != PLAIN)
    }
}

/// dRAID with one data device per group and one distributed spare.
const DRAID: Layout = Layout::Draid(DraidRequest { parity: 1, data: Some(1), children: None, spares: 1 });

/// Dataset that is never encrypted.
const PLAIN: &str = "tank/f0";

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
    options.dirty.freed_blocks = shape.freed_blocks;
    options.properties = vec![("autotrim".into(), PoolValue::Number(shape.autotrim.into()))];
    if shape.dedup {
        // Compressed data of the clients would fit into the block pointers, which are not deduplicated.
        let number = |name: &str, n| (name.to_owned(), Value::Number(n));
        options.root_properties = vec![number("dedup", 1), number("compression", 2)];
    }
    options
}

pub async fn create(machine: &Machine, shape: Shape) -> Result<Arc<Engine>, PoolError> {
    Ok(with_loading(Engine::create(machine, &options(shape)).await?, shape))
}

/// Sets when the engine unloads metaslabs; by itself it does so as soon as possible, because its invariants are checked.
fn with_loading(engine: Arc<Engine>, shape: Shape) -> Arc<Engine> {
    if !shape.unloads_early {
        engine.cache.blocks().metaslabs().limit_loaded(u64::MAX);
    }
    engine
}

/// Size of free segments in a pool with fragmented space. It is too small for the allocator's cursor, so the allocator
/// takes the smallest segment that fits, which is the one freed last.
const PIECE_BYTES: u64 = 112 << 10;
/// Size of the unusable gaps between free segments.
const GAP_BYTES: u64 = 32 << 10;

/// Pending trims. Their ranges cannot be allocated until the value is dropped.
pub type Gaps = Vec<Pin<Box<dyn Future<Output = ()> + Send>>>;

/// Fragments the free space: starts trims of parts of it, which cannot be allocated until the trim ends, and never polls
/// the trims again.
pub async fn scatter(engine: &Engine, shape: Shape) -> Gaps {
    let blocks = engine.cache.blocks();
    // A trim that waits for a metaslab to be loaded would take no space.
    let metaslabs = blocks.metaslabs().stats().metaslabs;
    for (vdev, metaslab) in (0..=u32::from(shape.log)).flat_map(|vdev| (0..metaslabs).map(move |i| (vdev, i))) {
        blocks.metaslabs().load(vdev, metaslab).await.unwrap();
    }
    let gaps = (0..=u32::from(shape.log)).flat_map(|vdev| {
        let size = blocks.vdev_space(vdev).size_bytes;
        (PIECE_BYTES..size).step_by((PIECE_BYTES + GAP_BYTES) as usize).map(move |at| (vdev, at..at + GAP_BYTES))
    });
    let begun = |gap| {
        let blocks = blocks.clone();
        let mut trim: Pin<Box<dyn Future<Output = ()> + Send>> =
            Box::pin(async move { assert!(weir_blocks::trim(&blocks, &[gap]).await.is_ok()) });
        // A range with allocated blocks is not trimmed.
        trim.as_mut().now_or_never().is_none().then_some(trim)
    };
    let gaps: Gaps = gaps.filter_map(begun).collect();
    assert!(gaps.len() > 100 && blocks.metaslabs().stats().segments > 100, "too few gaps");
    gaps
}

/// Encryption root for a dataset with its key of this number; the first key has number 0.
pub async fn root(machine: &Machine, name: &str, number: u8) -> NewRoot {
    NewRoot::new(machine, name, KeyFormat::Raw, "prompt", None, secret(number)).await.unwrap()
}

fn secret(number: u8) -> Vec<u8> {
    vec![7 + number; 32]
}

/// Creates a file system that inherits the encryption of its parent.
pub async fn make_files(engine: &Engine, name: &str) {
    let kind = Kind::FileSystem(FileSystemSpec::default());
    engine.create_dataset(NewDataset { name: name.into(), kind, properties: Vec::new() }).await.unwrap();
}

/// Creates the dataset that a client works on, as an encryption root if there is a cipher.
pub async fn make_home(engine: &Engine, machine: &Machine, name: &str, home: Home, suite: Option<Suite>) {
    let (kind, properties) = match home {
        Home::Files { record_bytes } => {
            let record = ("recordsize".to_owned(), Value::Number(record_bytes));
            (Kind::FileSystem(FileSystemSpec::default()), vec![record])
        }
        Home::Volume { size_bytes } => (Kind::Volume(VolumeSpec { size_bytes, block_bytes: 8 << 10 }), Vec::new()),
    };
    let encryption = match suite {
        Some(suite) => Encryption { crypt: Crypt::With(suite), root: Some(root(machine, name, 0).await) },
        None => Encryption::default(),
    };
    engine.create_encrypted(NewDataset { name: name.into(), kind, properties }, encryption).await.unwrap();
}

/// Kind of dataset that a client works on.
pub enum Home {
    Files { record_bytes: u64 },
    Volume { size_bytes: u64 },
}

fn opening() -> OpenOptions {
    let mut open = OpenOptions::new(vec![SEARCH.into()], "tank");
    open.arc_bytes = 16 << 20;
    open
}

/// Imports the pool with keys for these datasets: pairs of name and key number.
pub async fn import(machine: &Machine, shape: Shape, keys: &[(&str, u8)]) -> Result<Arc<Engine>, PoolError> {
    let mut open = opening();
    open.keys = keys.iter().map(|(name, number)| ((*name).to_owned(), secret(*number))).collect();
    let mut options = ImportOptions::new(open);
    options.dirty.freed_blocks = shape.freed_blocks;
    Ok(with_loading(Engine::import(machine, &options).await?, shape))
}

/// Whether the import failed because of a wrong key.
pub fn is_wrong_key(error: &PoolError) -> bool {
    matches!(error, PoolError::Object(ObjectError::Key { error: CodecError::WrongKey, .. }))
}

/// Repeats `ask` while the dataset is busy, because the syncer or an administrator may hold it for a short time.
pub async fn retry_while_busy<F: Future<Output = Result<(), PoolError>>>(clock: &Clock, ask: impl Fn() -> F) {
    for _ in 0..1000 {
        match ask().await {
            Err(PoolError::Dsl(DslError::Busy { .. })) => clock.sleep(Duration::from_millis(1)).await,
            done => return done.unwrap(),
        }
    }
    panic!("an unused dataset stays busy");
}

/// Verifies that all blocks are readable and accounted for. Returns the number of pointers to cloned blocks.
pub async fn verify_pool(machine: &Machine) -> Result<u64, String> {
    let pool = Pool::open(machine, &opening()).await.map_err(|e| e.to_string())?;
    verify_open_pool(&pool).await
}

/// Verifies the oldest txg to which a pool can always be rewound, because the frees since then are deferred
/// (`TXG_DEFER_SIZE`). Returns whether such a txg exists.
pub async fn verify_oldest_rewind(machine: &Machine) -> Result<bool, String> {
    let found = scan(machine, &[SEARCH.into()]).await.map_err(|e| e.to_string())?;
    let pools = assemble(found).pools;
    let ranked = pools.values().next().map(|found| ranked(found, None)).unwrap_or_default();
    let newest = ranked.first().map_or(Txg(0), |uberblock| uberblock.txg);
    let before = ranked.iter().map(|uberblock| uberblock.txg).take_while(|txg| txg.0 + DEFER >= newest.0);
    let Some(oldest) = before.last().filter(|oldest| *oldest < newest) else { return Ok(false) };
    let mut open = opening();
    open.rewind = Rewind::Before(oldest);
    let pool = Pool::open(machine, &open).await.map_err(|e| format!("rewound to {oldest}: {e}"))?;
    if pool.uberblock.txg != oldest {
        return Err(format!("cannot be rewound to txg {oldest}, only to {}", pool.uberblock.txg));
    }
    verify_open_pool(&pool).await.map_err(|e| format!("rewound: {e}"))?;
    Ok(true)
}

async fn verify_open_pool(pool: &Pool) -> Result<u64, String> {
    let report = weir_pool::verify::verify_pool(pool, &Request::internal("test")).await.map_err(|e| e.to_string())?;
    if report.is_clean() {
        let invariants = weir_pool::invariants::check_invariants(pool, &Request::internal("test"))
            .await
            .map_err(|e| e.to_string())?;
        if invariants.is_clean() {
            return Ok(report.cloned.1);
        }
        let findings: Vec<String> = invariants.findings.iter().take(12).map(ToString::to_string).collect();
        return Err(format!("txg {}: {findings:#?}", pool.uberblock.txg));
    }
    let leaks: Vec<_> = report.leaks().take(5).collect();
    let faults = report.space.as_ref().map(|s| format!("{:?}", s.faults));
    let unreadable = report.unreadable.first();
    let clashes = report.clashes.first();
    Err(format!(
        "txg {}: unreadable {unreadable:?}, clashes {clashes:?}, leaks {leaks:x?}, {faults:?}",
        pool.uberblock.txg
    ))
}

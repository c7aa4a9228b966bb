//! The engine of a writable pool: transaction admission, open datasets, sync tasks and the syncer.
//!
//! ```text
//!   clients ──► transaction admission ──► open txg ─┐ every 5 s, at a share of the dirty limit, or on request
//!   administrators ──► queue of sync tasks ─────────┤
//!                                                   ▼
//!                                      syncer: one task, one txg at a time ([`syncing`])
//! ```
//!
//! [`Engine`] consists of the *machine*, the *cache* with the blocks below it, the writable *MOS*, the *transaction
//! admission* (space, quota, throttle), the table of open object *sets*, the loaded *keys*, the *events*, the *queue* of
//! sync tasks and the published [`PoolStatus`]. [`syncing::SyncerState`] holds the state that only the syncer uses.
//!
//! *Failure.* When a txg cannot be written, the engine suspends the pool: it writes no later txg and returns an error to
//! all waiters. The disks keep the last txg that was written completely.

pub mod activity;
pub mod add;
pub(crate) mod allocation;
pub mod attach;
pub mod autoreplace;
pub mod autotrim;
pub mod aux_devices;
pub mod brt;
pub mod cache_devices;
pub mod changed_datasets;
pub mod checkpoint;
pub mod checkpoint_obsolete_maps;
pub(crate) mod closing;
pub mod config;
pub mod create;
pub mod datasets;
mod dedup_quota;
mod device_paths;
pub mod diagnosis;
pub mod dtls;
mod ending;
pub(crate) mod error_log;
pub mod events;
pub mod expand;
pub mod expansion;
mod fault_sink;
pub mod freeing;
pub mod initialize_trim;
pub mod keys;
pub mod labels;
pub mod long_holds;
mod lost_records;
mod multihost;
pub mod offline;
pub mod open;
pub mod open_datasets;
pub mod open_set;
pub mod prefetch;
pub mod probe;
pub mod program;
mod property_changes;
pub mod read_guards;
pub mod read_only;
pub mod rebuild;
pub mod receives;
mod redact;
pub mod reguid;
pub mod removal;
mod remove_log;
pub mod resilver;
pub mod scrub;
pub mod sends;
pub mod space;
pub mod spares;
pub mod split;
mod split_config;
pub mod supervision;
pub mod sync_task_api;
mod synced_maps;
pub mod synced_state;
mod syncer;
pub mod syncing;
pub mod tasks;
mod trim;
pub mod tx_admission;
mod unflushed;
mod vdev_allocating;
mod vdev_config_edit;
mod vdev_objects;
mod vdev_properties;

pub use activity::Activity;
pub use add::VdevAddRequest;
pub use attach::AttachRequest;
pub use changed_datasets::{Changed, ChangedDatasets};
pub use config::{Config, Host};
pub use create::{CreateOptions, Layout, NewLeaf, NewTopLevelVdev};
pub use events::{Event, Events};
pub use freeing::Freeing;
pub use keys::{Crypt, Encryption, KeyChange, KeyError, KeyStore, NewRoot};
pub use long_holds::{DiffSession, LongHolds};
pub use offline::OfflineMode;
pub use open::ImportOptions;
pub use program::{Program, ProgramChange, ProgramTxg};
pub use property_changes::PoolProperty;
pub use read_guards::{DslReadGuard, PoolSnapshotGuard};
pub use spares::SpareWatch;
pub use syncing::{SyncerState, TxgSync};
pub use tasks::Task;
pub use tx_admission::{DirtyLimits, PoolSpace, PoolTxAdmission};
pub use vdev_properties::VdevSetting;

use diagnosis::Diagnosis;
use error_log::LostBlocks;
use fault_sink::FaultSink;
use futures_util::lock::Mutex as AsyncMutex;
use open_datasets::{OpenDataset, OpenDatasets, OpenSet};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tasks::Queue;
use weir_cache::Cache;
use weir_dmu::ObjectSet;
use weir_dmu::live::TxAdmission;
use weir_dmu::txg::TxgTracker;
use weir_dsl::{Dsl, Scope};
use weir_files::FileSystem;
use weir_format::{ObjectId, Txg, Uberblock};
use weir_machine::lock::{Mutex, MutexGuard, order};
use weir_machine::{JoinHandle, Machine, Nanos, Request};
use weir_pool::assemble::state;
use weir_pool::error::PoolError;
use weir_pool::space::Space;

/// The time after which a txg is synced (`zfs_txg_timeout`).
pub const TXG_TIMEOUT: Duration = Duration::from_secs(5);
/// The time in which changes are synced that no others follow, after [`Engine::sync_when_idle`].
pub const IDLE_TXG_TIMEOUT: Duration = Duration::from_secs(1);

/// Loaded metaslabs take at most one part in this many of the ARC's limit, besides it.
const LOADED_METASLABS_DIVISOR: u64 = 4;
/// Minimum of that limit, in bytes.
const MIN_LOADED_METASLABS_BYTES: u64 = 16 << 20;

/// Maximum memory for loaded metaslabs. Debug builds and the simulator unload a metaslab as early as possible, so that their
/// tests load metaslabs in every txg.
fn max_loaded_bytes(arc_bytes: u64) -> u64 {
    match weir_machine::invariant::is_checked() {
        true => 0,
        false => (arc_bytes / LOADED_METASLABS_DIVISOR).max(MIN_LOADED_METASLABS_BYTES),
    }
}

/// The pool's configuration and uberblock as of the last synced txg.
#[derive(Clone, Debug)]
pub struct PoolStatus {
    /// The configuration.
    pub config: Config,
    /// The last uberblock.
    pub uberblock: Uberblock,
    /// Errors of writing labels in that txg.
    pub faults: Vec<String>,
    /// Destroyed datasets that are being freed.
    pub freeing: Freeing,
}

/// A pool, open for reading and writing.
pub struct Engine {
    /// The machine that the engine runs on.
    pub machine: Machine,
    /// The cache above the pool's blocks.
    pub cache: Arc<Cache>,
    /// The meta object set.
    pub mos: Arc<ObjectSet>,
    /// Admission of transactions: space, quotas and the write throttle.
    pub gate: Arc<PoolTxAdmission>,
    /// The object sets that are open for writing.
    pub sets: OpenDatasets,
    /// Datasets that were created, destroyed or renamed, for front ends.
    pub changed: ChangedDatasets,
    /// The loaded keys of encrypted datasets.
    pub keys: KeyStore,
    /// The pool's events.
    pub events: Arc<Events>,
    /// Lost blocks that are not in the error log yet.
    pub(crate) lost_blocks: Arc<LostBlocks>,
    /// Diagnosis of the devices by their errors.
    pub(crate) diagnosis: Arc<Diagnosis>,
    opened: Nanos,
    /// Whether intent logs that cannot be replayed now are discarded (`zpool import -m`).
    gives_up_logs: AtomicBool,
    /// Held while a dataset is opened, so that each is opened once.
    opening: AsyncMutex<()>,
    /// Held while changed properties are applied to open datasets.
    renewing: AsyncMutex<()>,
    /// Serializes the syncer's changes of the MOS with the opening of datasets ([`Engine::lock_mos`]).
    mos_sync_lock: AsyncMutex<()>,
    /// Snapshots destroyed since the pool was opened.
    pub snapshots_destroyed: AtomicU64,
    /// Time that the syncer has waited for `mos_sync_lock`.
    syncer_waited_ns: AtomicU64,
    pub(crate) queue: Queue,
    /// The top-level vdevs, for space accounting.
    pub(crate) tops: allocation::Tops,
    /// Tasks that carry out the removal of a vdev.
    removal_tasks: AtomicU64,
    /// Tasks that carry out the expansion of a vdev.
    expansion_tasks: AtomicU64,
    /// The txg in which the end of an expansion or of a rebuild started a scrub that no task reads blocks for yet; 0 for none.
    scrub_to_carry_out: AtomicU64,
    /// How often devices came back into service: what a scan has passed then, they may lack.
    returns: AtomicU64,
    scan: scrub::control::ScanControl,
    /// Sequential rebuilds in progress.
    pub(crate) rebuild_table: Mutex<rebuild::RebuildTable, { order::REBUILDS }>,
    /// Held while vdevs are added.
    adding: AsyncMutex<()>,
    /// Long holds on snapshots that are read.
    pub reading: LongHolds,
    /// Space of the vdevs of a pool that is open read-only: no txg changes it.
    read_only: Option<Space>,
    syncs_when_idle: AtomicBool,
    synced_states: synced_state::SyncedStates,
    /// Whether failures suspend the pool instead of ending the engine ([`supervision`]).
    is_supervised: AtomicBool,
    /// The heartbeats of the property multihost.
    pub(crate) multihost: multihost::Multihost,
    /// Directory below which the file systems are mounted, until the pool is closed (property `altroot`).
    altroot: OnceLock<String>,
    /// Directories of redacted datasets that may be opened, until the pool is closed (`zfs mount -f`).
    redacted: Mutex<BTreeSet<ObjectId>, { order::REDACTED_DATASETS }>,
    /// The property `cachefile`, which the pool does not store; empty for the usual cache file.
    cachefile: Mutex<String>,
    /// The device that the pool waits for, if one hangs.
    waits_for: Mutex<Option<Arc<str>>, { order::WAITS_FOR }>,
    /// GUIDs of the leaves that are offline until the next import.
    temporarily_offline: Mutex<BTreeSet<u64>, { order::OFFLINE_DEVICES }>,
    /// Initializations and trims of single devices that are in progress.
    leaf_activities: Mutex<initialize_trim::RunningTable, { order::LEAF_ACTIVITIES }>,
    shown: Mutex<PoolStatus, { order::SHOWN }>,
    syncer: Mutex<Option<JoinHandle<SyncerState>>, { order::SYNCER }>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine({} txg {})", self.shown().config.name, self.txgs().last_synced())
    }
}

/// The components of an [`Engine`].
pub(crate) struct Parts {
    pub machine: Machine,
    pub cache: Arc<Cache>,
    pub mos: Arc<ObjectSet>,
    pub gate: Arc<PoolTxAdmission>,
    pub keys: KeyStore,
    pub tops: allocation::Tops,
    /// Space of the vdevs, if the pool is opened read-only.
    pub read_only: Option<Space>,
}

impl Engine {
    /// Creates a pool and opens it. When this returns, the pool is on stable storage.
    ///
    /// # Errors
    /// [`PoolError::Refused`] and [`PoolError::InUse`] before any device is written; errors of writing.
    pub async fn create(machine: &Machine, options: &CreateOptions) -> Result<Arc<Engine>, PoolError> {
        create::create(machine, options).await
    }

    /// Opens a pool for reading and writing. When this returns, its labels name this machine.
    ///
    /// # Errors
    /// Errors of [`weir_pool::Pool::open`]; [`PoolError::Refused`] if the pool may not be written here.
    pub async fn import(machine: &Machine, options: &ImportOptions) -> Result<Arc<Engine>, PoolError> {
        match options.read_only {
            true => read_only::import(machine, options).await,
            false => open::import_and_add(machine, options, &VdevAddRequest::default()).await,
        }
    }

    /// Assembles the engine and starts the syncer.
    pub(crate) fn start(parts: Parts, core: SyncerState) -> Arc<Engine> {
        debug_assert!(parts.read_only.is_none(), "a pool that is open read-only has no syncer");
        let blocks = parts.cache.blocks();
        let max_loaded_bytes = max_loaded_bytes(parts.cache.stats().sizes.budget_bytes);
        // Refused only in a pool that is not written to, which loads no metaslab.
        let _ = blocks.metaslabs().set_source(core.maps.source(&parts.machine, blocks), max_loaded_bytes);
        let shown = PoolStatus {
            config: core.config.clone(),
            uberblock: core.uberblock.clone(),
            faults: Vec::new(),
            freeing: core.freeing,
        };
        let engine = Self::new(parts, shown);
        engine.multihost.know(&engine);
        let syncer = engine.machine.tasks.spawn(syncer::run(engine.clone(), core));
        *engine.syncer.lock() = Some(syncer);
        engine
    }

    /// Assembles the engine, without its syncer.
    pub(crate) fn new(parts: Parts, shown: PoolStatus) -> Arc<Engine> {
        let Parts { machine, cache, mos, gate, keys, tops, read_only } = parts;
        let events = Events::new(machine.clock.clone(), &shown.config);
        let lost_blocks = Arc::<LostBlocks>::default();
        let diagnosis = Arc::<Diagnosis>::default();
        let sink = FaultSink {
            clock: machine.clock.clone(),
            events: events.clone(),
            lost_blocks: lost_blocks.clone(),
            diagnosis: diagnosis.clone(),
        };
        cache.blocks().tree().set_fault_observer(Arc::new(sink));
        // Set once, here.
        let _ = gate.tree.set(cache.blocks().tree().clone());
        let opened = machine.clock.now();
        Arc::new(Engine {
            machine,
            cache,
            mos,
            gate,
            sets: OpenDatasets::default(),
            changed: ChangedDatasets::default(),
            keys,
            events,
            lost_blocks,
            diagnosis,
            opened,
            gives_up_logs: AtomicBool::new(false),
            opening: AsyncMutex::new(()),
            renewing: AsyncMutex::new(()),
            mos_sync_lock: AsyncMutex::default(),
            snapshots_destroyed: AtomicU64::new(0),
            syncer_waited_ns: AtomicU64::new(0),
            queue: Queue::default(),
            tops,
            removal_tasks: AtomicU64::new(0),
            expansion_tasks: AtomicU64::new(0),
            scrub_to_carry_out: AtomicU64::new(0),
            returns: AtomicU64::new(0),
            scan: scrub::control::ScanControl::default(),
            rebuild_table: Mutex::default(),
            adding: AsyncMutex::new(()),
            reading: LongHolds::default(),
            read_only,
            syncs_when_idle: AtomicBool::new(false),
            synced_states: Default::default(),
            is_supervised: AtomicBool::new(false),
            multihost: multihost::Multihost::default(),
            altroot: OnceLock::new(),
            redacted: Mutex::default(),
            cachefile: Mutex::default(),
            waits_for: Mutex::default(),
            temporarily_offline: Mutex::default(),
            leaf_activities: Mutex::default(),
            shown: Mutex::new(shown),
            syncer: Mutex::default(),
        })
    }

    /// From now on, changes that no others follow are synced within [`IDLE_TXG_TIMEOUT`]; others, as ever, within
    /// [`TXG_TIMEOUT`].
    pub fn sync_when_idle(&self) {
        self.syncs_when_idle.store(true, Ordering::Relaxed);
        // The syncer waits without looking; from the next txg on it looks.
        self.txgs().request_sync();
    }

    /// Whether the pool is open read-only ([`ImportOptions::read_only`]).
    pub fn is_read_only(&self) -> bool {
        self.read_only.is_some()
    }

    /// Allocated and free bytes of a top-level vdev.
    pub fn vdev_space_bytes(&self, vdev: u32) -> [u64; 2] {
        let (allocated, size) = match &self.read_only {
            Some(space) => {
                space.vdevs.get(vdev as usize).map_or((0, 0), |top| (top.allocated_bytes(), top.space_bytes()))
            }
            None => {
                let sums = self.cache.blocks().vdev_space(vdev);
                (sums.allocated_bytes, sums.size_bytes)
            }
        };
        [allocated, size.saturating_sub(allocated)]
    }

    /// The time at which the pool was opened.
    pub fn opened(&self) -> Nanos {
        self.opened
    }

    /// The pool's transaction groups.
    pub fn txgs(&self) -> &Arc<TxgTracker> {
        self.gate.txgs()
    }

    /// The pool's status as of the last synced txg.
    pub fn shown(&self) -> PoolStatus {
        self.locked_shown().clone()
    }

    fn locked_shown(&self) -> MutexGuard<'_, PoolStatus> {
        self.shown.lock()
    }

    pub(crate) fn show(&self, core: &SyncerState, faults: Vec<PoolError>) {
        let faults = faults.iter().map(ToString::to_string).collect();
        *self.locked_shown() = PoolStatus {
            config: core.config.clone(),
            uberblock: core.uberblock.clone(),
            faults,
            freeing: core.freeing,
        };
        self.synced_states.forget();
    }

    /// The pool's name.
    pub fn name(&self) -> String {
        self.locked_shown().config.name.clone()
    }

    pub(crate) fn suspended(&self, why: &PoolError) -> PoolError {
        PoolError::Suspended { pool: self.name(), why: why.to_string() }
    }

    /// Time that the syncer has waited for datasets to be opened, since the pool was opened. It waits for no other readers.
    pub fn syncer_waited(&self) -> Duration {
        Duration::from_nanos(self.syncer_waited_ns.load(Ordering::Relaxed))
    }

    /// Reads DSL directories of the open txg. The caller is the syncer or holds the lock of [`Engine::lock_mos`].
    pub(crate) async fn live_dsl(&self, rq: &Request, scope: Scope<'_>) -> Result<Arc<Dsl>, PoolError> {
        Ok(Dsl::read(rq, self.mos.clone(), &self.name(), scope).await?)
    }

    /// Waits until all changes made so far are on stable storage.
    ///
    /// # Errors
    /// The error that suspended the pool, if the txg cannot be written.
    pub async fn sync(&self) -> Result<(), PoolError> {
        if self.is_read_only() {
            return Ok(());
        }
        Ok(self.txgs().wait_synced(self.txgs().open()).await?)
    }

    /// Waits until `txg` is on stable storage.
    ///
    /// # Errors
    /// The error that suspended the pool, if the txg cannot be written.
    pub async fn wait_synced(&self, txg: Txg) -> Result<(), PoolError> {
        Ok(self.txgs().wait_synced(txg).await?)
    }

    /// Runs a sync task in syncing context: check, then change. Returns its result once the txg is on stable storage.
    ///
    /// # Errors
    /// Errors of the task's checks; [`PoolError::Suspended`].
    pub async fn sync_task<T: Send + 'static>(&self, task: impl Task<T>) -> Result<T, PoolError> {
        let answer = self.queue.push(self.txgs().open(), task).ok_or_else(|| self.closed())?;
        self.txgs().request_sync();
        answer.await.unwrap_or_else(|_| Err(self.closed()))
    }

    /// The error of a task that no txg will run.
    fn closed(&self) -> PoolError {
        if self.is_read_only() {
            return PoolError::Refused { what: read_only::READ_ONLY.into() };
        }
        PoolError::Suspended { pool: self.name(), why: "pool is exporting".into() }
    }

    /// Exports the pool: syncs a last txg whose labels say that any machine may import it.
    ///
    /// # Errors
    /// The error of writing the last txg.
    pub async fn export(&self) -> Result<(), PoolError> {
        ending::end(self, Some(state::EXPORTED)).await
    }

    /// Destroys the pool: syncs a last txg whose labels mark it as destroyed. Its blocks stay until they are overwritten.
    ///
    /// # Errors
    /// The error of writing the last txg.
    pub async fn destroy(&self) -> Result<(), PoolError> {
        ending::end(self, Some(state::DESTROYED)).await
    }

    /// Closes the pool after a last txg; its labels still say that it is in use.
    ///
    /// # Errors
    /// The error of writing the last txg.
    pub async fn stop(&self) -> Result<(), PoolError> {
        ending::end(self, None).await
    }
}

impl Engine {
    /// File systems with access times that are not stored yet.
    pub(crate) fn readers(&self) -> Vec<Arc<FileSystem>> {
        let is_file_system = |open: &OpenSet| matches!(open.contents, Some(OpenDataset::Files(_)));
        let files = |open: OpenSet| match open.contents {
            Some(OpenDataset::Files(files)) if files.atimes().is_pending() => Some(files),
            _ => None,
        };
        self.sets.select(is_file_system).into_iter().filter_map(files).collect()
    }

    /// Memory that the pool may use, in bytes: the cache, the dirty data and the loaded metaslabs.
    fn budget_bytes(&self) -> u64 {
        let loaded_bytes = self.cache.blocks().metaslabs().stats().bytes;
        self.cache.stats().sizes.budget_bytes + self.gate.dirty_limits().max_bytes + loaded_bytes
    }

    pub(crate) async fn store_of(&self, files: &FileSystem) {
        if let Err(error) = files.atimes().store(&Request::internal("access times")).await {
            tracing::debug!(name = files.name(), %error, "access times are not stored");
        }
    }

    /// Stores pending access times in background tasks, in later txgs.
    fn store_access_times(self: &Arc<Self>) {
        for files in self.readers() {
            let engine = self.clone();
            self.machine.tasks.spawn(async move { engine.store_of(&files).await });
        }
    }
}

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident = $handle:ident;)+) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug)]
            pub struct $handle<'a> {
                pub(crate) engine: &'a Engine,
            }
        )+

        impl Engine {
            $(
                $(#[$doc])*
                pub fn $name(&self) -> $handle<'_> {
                    $handle { engine: self }
                }
            )+
        }
    };
}

handles! {
    /// The pool as of the last synced txg: its MOS, datasets and properties, which readers see without the syncer.
    synced = Synced;
    /// Changes of properties, of datasets and of the pool, and the renewal of the settings that depend on them.
    properties = PropertyChanges;
    /// The loaded keys of encrypted datasets.
    encryption_keys = EncryptionKeys;
    /// The pool's devices: added, trimmed, taken out of service and put back.
    devices = Devices;
    /// Properties of vdevs: comments, user properties, and thresholds of errors from which on devices are degraded or faulted.
    vdev_properties = VdevProperties;
    /// Cache devices (L2ARC) in service.
    cache_devices = CacheDevices;
    /// Devices that join others, leave them, go offline and return.
    vdevs = Vdevs;
    /// Pools that are made of one device of each mirror.
    pool_splits = PoolSplits;
    /// Top-level vdevs that leave the pool.
    vdev_removals = VdevRemovals;
    /// RAID-Z vdevs that get one more device.
    expansions = Expansions;
    /// Vdevs whose new devices are rebuilt sequentially.
    rebuilds = Rebuilds;
    /// Replacement of devices that failed, by hot spares and by new devices at their paths.
    spares = Spares;
    /// Vdevs whose devices have grown.
    growth = Growth;
    /// Passes over the free space of devices.
    initialize_trim = InitializeTrim;
    /// Scrubs and resilvers.
    scrubs = Scrubs;
    /// Scrubs of the blocks in the error log.
    error_scrubs = ErrorScrubs;
    /// Comparisons of snapshots (`zfs diff`).
    comparisons = Comparisons;
    /// Snapshots that are sent (`zfs send`), and redaction bookmarks of them.
    sends = Sends;
    /// Datasets that are received from streams (`zfs receive`).
    receives = Receives;
}

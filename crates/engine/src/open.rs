//! Import of an existing pool for reading and writing (`spa_load`).
//!
//! ```text
//!   Pool::open, disks for writing ─► checks of owner, devices, features ─► free space from the space maps
//!      ─► writable MOS ─► first txg: deferred frees released, labels with the new host
//! ```
//!
//! All checks precede the first write. Import refuses, with the reason: a pool that another machine uses, a pool that
//! lacks devices, and a pool with an active feature or operation that Weir can read but cannot maintain while it writes.
//!
//! Source: OpenZFS `module/zfs/spa.c` (`spa_ld_check_features`, `spa_ld_trusted_config`, `spa_load_impl`),
//! `cmd/zpool/zpool_main.c` (the checks of `zpool import`).

use super::add::VdevAddRequest;
use super::autotrim::AutoTrim;
use super::aux_devices::AuxDevices;
use super::brt::BlockRefTable;
use super::checkpoint_obsolete_maps::CheckpointAndObsoleteMaps;
use super::config::Config;
use super::dtls::StoredDtls;
use super::events::{ErrorReport, PoolEvent};
use super::expansion::{self, Expanding};
use super::keys::KeyStore;
use super::labels::{self, Leaf};
use super::multihost;
use super::rebuild;
use super::removal::{self, Removal};
use super::space::SpaceMaps;
use super::syncing::{SyncerState, TxgSync};
use super::tx_admission::{DirtyLimits, PoolTxAdmission};
use super::unflushed::LogsAtImport;
use super::{Engine, Host, Parts, allocation, checkpoint, device_paths, ending, spares, unflushed};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weir_blocks::WritableEncodings;
use weir_dmu::dedup::Dedup;
use weir_dmu::live::{Policy, UnlimitedTxAdmission};
use weir_dmu::txg::TxgTracker;
use weir_dmu::{ObjectSet, Opening, zap};
use weir_format::dsl::pool as names;
use weir_format::{DslDataset, DslDir, Endian, ObjectId, ObjectType, Txg, features};
use weir_machine::{Access, Machine, Request};
use weir_pool::assemble::state;
use weir_pool::config::{Class, VdevConfig, VdevKind};
use weir_pool::error::PoolError;
use weir_pool::open::{OpenOptions, Pool};
use weir_pool::space_map_loader::SpaceMapIndex;
use weir_pool::{dtls, sizes};

/// Features that Weir reads but does not write: a pool on which one is active opens only read-only.
const READ_ONLY_FEATURES: [&str; 1] = ["draid_failure_domains"];

/// Space maps of at most this length in total are checked whole before a pool is written; of longer ones only headers are
/// read, and each map is checked when its metaslab is loaded.
const CHECKED_MAP_BYTES: u64 = 4 << 20;

/// Options of a writable import.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// Which pool to open, and where to search for it.
    pub open: OpenOptions,
    /// The pool's new name.
    pub new_name: Option<String>,
    /// Whether the new name lasts until the pool is closed, and is not written to it.
    pub is_temporary: bool,
    /// Import even if another machine used the pool last or it was destroyed.
    pub force: bool,
    /// Discard intent logs on missing devices and log records that cannot be replayed now (`zpool import -m`).
    pub without_logs: bool,
    /// Open the pool read-only: not a byte of its devices changes (`zpool import -o readonly=on`).
    pub read_only: bool,
    /// The importing host.
    pub host: Host,
    /// Limits of dirty data.
    pub dirty: DirtyLimits,
}

impl ImportOptions {
    /// Options that open the pool under its name, without force, with default limits.
    pub fn new(open: OpenOptions) -> Self {
        ImportOptions {
            open,
            new_name: None,
            is_temporary: false,
            force: false,
            without_logs: false,
            read_only: false,
            host: Host::default(),
            dirty: DirtyLimits::default(),
        }
    }
}

/// The refusal of a pool that can be read and not written.
fn refused_for_writing(pool: &Pool, what: impl std::fmt::Display) -> PoolError {
    refused(pool, format!("{what}; it can be read: 'zpool import -o readonly=on', 'weir mount -o ro'"))
}

fn refused(pool: &Pool, what: impl std::fmt::Display) -> PoolError {
    PoolError::Refused { what: format!("pool '{}' cannot be opened for writing: {what}", pool.name()) }
}

/// Opens a pool for reading and writing, and adds vdevs to it.
///
/// # Errors
/// Errors of [`Engine::import`] and [`Engine::create`].
pub async fn import_and_add(
    machine: &Machine,
    options: &ImportOptions,
    more: &VdevAddRequest,
) -> Result<Arc<Engine>, PoolError> {
    let mut pool = Pool::open_in(machine, &options.open, Access::ReadWrite).await?;
    if let Some(why) = other_owner(&pool, options) {
        return Err(refused(&pool, why));
    }
    let watched = multihost::watch(&pool, &options.host).await?;
    check_devices(&pool)?;
    check_sizes(&pool)?;
    check_features(&pool)?;
    let rq = &Request::internal("import");
    check_tree(rq, &pool).await?;
    check_dead_lists(rq, &pool).await?;
    if pool.mos.named_words(rq, names::CONDENSING_INDIRECT).await?.is_some() {
        return Err(refused_for_writing(&pool, "the mapping of a removed vdev is being shortened"));
    }
    multihost::claim(&pool, watched, &leaves(&pool)).await?;
    if options.open.checkpoint {
        checkpoint::go_back(&mut pool, leaves).await?;
    }
    // A leaf that is offline is not written to: its DTL grows. So does that of a faulted leaf, which is out of service.
    let tree = pool.tree.clone();
    for leaf in tree.leaves().into_iter().filter(|leaf| leaf.offline) {
        pool.devices.remove(&leaf.guid);
    }
    let mut config = config_of(&pool, options)?;
    config.aux = AuxDevices::read(rq, &pool.mos).await?;
    device_paths::follow(machine, &mut pool, &mut config).await;
    spares::note_returned(&pool, &mut config);
    let mislabelled = spares::mislabelled(&pool, &config);
    let added = more.join(machine, &mut pool, &mut config).await?;
    let mut aux = std::mem::take(&mut pool.aux);
    let absent = absent(&pool);
    let is_rewound = pool.uberblock.checkpoint_txg.0 != 0;
    let engine = assemble(machine, options, pool, config).await?;
    absent.into_iter().for_each(|leaf| engine.events.report(ErrorReport::VdevOpenFailed, Some(leaf)));
    let without_logs = options.without_logs;
    engine.gives_up_logs.store(without_logs, Ordering::Relaxed);
    let logs = match (is_rewound, without_logs) {
        (true, _) => LogsAtImport::Dropped,
        (false, true) => LogsAtImport::GivenUp,
        (false, false) => LogsAtImport::Claimed,
    };
    let first = engine.sync_task(move |syncing: &mut TxgSync<'_>| {
        Box::pin(async move {
            let done = match unflushed::first_txg_after_import(syncing, logs).await {
                Ok(()) => added.make(syncing).await,
                failed => failed,
            };
            // The next import assumes that this txg claimed all logs, so a failed claim must fail the txg.
            syncing.fail_txg_on_error(done)
        })
    });
    if let Err(error) = first.await {
        ending::abandon(&engine).await;
        return Err(error);
    }
    for (spare, list) in mislabelled {
        if let Err(error) = labels::initialize_aux(&spare, engine.shown().config.version, &list, state::SPARE).await {
            tracing::warn!(%error, "the labels of an available hot spare are not restored");
        }
    }
    engine.cache_devices().open(&mut aux).await;
    engine.events.post(PoolEvent::PoolImport, |_| {});
    if engine.vdev_removals().is_running().await? {
        removal::carry_out(&engine);
    }
    if engine.expansions().vdev()?.is_some() {
        expansion::carry_out(&engine);
    }
    rebuild::go_on(&engine).await?;
    if let Err(error) = engine.pool_splits().go_on(&options.open.search).await {
        tracing::warn!(%error, "an interrupted split of the pool is not carried to its end");
    }
    Ok(engine)
}

/// Why the pool may not be imported here without force: another machine owns it, or it was destroyed.
pub(super) fn other_owner(pool: &Pool, options: &ImportOptions) -> Option<String> {
    let label = &pool.label;
    if options.force {
        return None;
    }
    if label.state == state::DESTROYED {
        return Some("it was destroyed; -D -f imports it again".to_owned());
    }
    let other = label.hostid.filter(|id| *id != options.host.id)?;
    if label.state != state::ACTIVE {
        return None;
    }
    let host = label.hostname.as_deref().unwrap_or("unknown");
    Some(format!("it may be in use on another machine ({host}, hostid {other:x}); -f forces it"))
}

fn check_devices(pool: &Pool) -> Result<(), PoolError> {
    if pool.uberblock.endian != Endian::Little {
        return Err(refused_for_writing(pool, "a machine of the other byte order wrote it"));
    }
    if !VERSIONS.contains(&pool.config.version) {
        return Err(refused_for_writing(pool, format!("it has version {}", pool.config.version)));
    }
    for top in &pool.tree.children {
        let is_foreign = |leaf: &&VdevConfig| {
            leaf.kind == VdevKind::DraidSpare && leaf.draid_spare.is_none_or(|(guid, _)| guid != top.guid)
        };
        if let Some(spare) = top.leaves().into_iter().find(is_foreign) {
            return Err(refused(pool, format!("{} is not of the vdev that it is in", spare.name())));
        }
    }
    for vdev in pool.tree.walk() {
        let odd = match vdev.kind {
            // OpenZFS says so of a log that it takes out, for one txg.
            _ if vdev.removing && vdev.kind != VdevKind::Indirect && vdev.indirect_object == 0 => {
                Some("a log vdev is being removed from it")
            }
            _ => None,
        };
        if let Some(odd) = odd {
            return Err(refused_for_writing(pool, odd));
        }
    }
    Ok(())
}

/// Checks that no device shrank that the pool needs.
fn check_sizes(pool: &Pool) -> Result<(), PoolError> {
    let Some(guid) = sizes::shrunk(&pool.tree, &pool.devices).into_iter().next() else { return Ok(()) };
    let name = pool.devices.get(&guid).map(|device| device.name()).unwrap_or_default();
    Err(refused(pool, format!("{name} is smaller than it was: what was stored at its end is gone")))
}

/// DSL directories for internal use; pools of older versions lack some of them.
const INTERNAL_DIRS: [&str; 3] = ["$MOS", "$FREE", "$ORIGIN"];
/// The pool versions that Weir writes: the last legacy version that it supports, and the version of feature flags.
const VERSIONS: [u64; 2] = [28, features::VERSION_FEATURES];
fn check_features(pool: &Pool) -> Result<(), PoolError> {
    let all = pool.features.for_read.iter().chain(&pool.features.for_write);
    for (guid, _) in all.filter(|(_, count)| **count > 0) {
        let Some(feature) = features::by_guid(guid) else {
            return Err(refused_for_writing(pool, format!("it uses the feature {guid}, which is not known")));
        };
        if READ_ONLY_FEATURES.contains(&feature.name) {
            let name = feature.name;
            return Err(refused_for_writing(pool, format!("it uses feature@{name}, which is not kept up")));
        }
    }
    Ok(())
}

/// Checks that the parent pointer of every DSL directory matches the path that led to it.
///
/// Space accounting follows parent pointers. A read-only import tolerates directories that cannot be found.
async fn check_tree(rq: &Request, pool: &Pool) -> Result<(), PoolError> {
    if let Some((name, error)) = pool.dsl.damaged().first() {
        return Err(refused(pool, format!("its dataset '{name}' cannot be found: {error}")));
    }
    let lost = |name: &str| refused(pool, format!("the parent pointer of its dataset '{name}' is missing or wrong"));
    let set = &pool.mos.set;
    let Some(root) = pool.dsl.root() else { return Err(lost(pool.name())) };
    if root.phys.parent.0 != 0 {
        return Err(lost(&root.name));
    }
    for dir in pool.dsl.dirs() {
        for child in dir.children.iter().filter_map(|child| pool.dsl.dir(*child)) {
            if child.phys.parent != dir.id {
                return Err(lost(&child.name));
            }
        }
    }
    // Internal directories are not in the tree of user-visible datasets.
    for name in INTERNAL_DIRS {
        let Some(id) = zap::lookup_word(rq, set, root.phys.children, name).await?.map(ObjectId) else { continue };
        let object = set.object(rq, id).await?;
        let phys = DslDir::decode(object.dnode.bonus(), object.dnode.endian);
        let phys = phys.map_err(|e| PoolError::Decode { what: format!("directory {name}"), source: e })?;
        if object.dnode.bonus_type != ObjectType::DSL_DIR || phys.parent != root.id {
            return Err(lost(name));
        }
    }
    Ok(())
}

/// The first pool version whose dead lists are sorted by birth txg (`SPA_VERSION_DIR_CLONES`).
const DEADLISTS_VERSION: u64 = 26;

/// Checks that no dataset has a dead list of the older format, which an upgraded pool may still contain.
///
/// Weir reads such a list but cannot split or merge it, and would find that out in the middle of creating or destroying
/// a snapshot.
async fn check_dead_lists(rq: &Request, pool: &Pool) -> Result<(), PoolError> {
    let created = pool.mos.named(rq, names::CREATION_VERSION).await?;
    if created.is_some_and(|version| version.0 >= DEADLISTS_VERSION) {
        return Ok(());
    }
    let set = &pool.mos.set;
    let mut from = ObjectId(1);
    while let Some(id) = set.dnodes().next_object(rq, from).await? {
        from = ObjectId(id.0 + 1);
        let object = set.object(rq, id).await?;
        if object.dnode.bonus_type != ObjectType::DSL_DATASET {
            continue;
        }
        let phys = DslDataset::decode(object.dnode.bonus(), object.dnode.endian);
        let list = phys.map_err(|e| PoolError::Decode { what: format!("dataset {id}"), source: e })?.deadlist;
        if list.0 != 0 && set.object(rq, list).await?.dnode.object_type == ObjectType::BPOBJ {
            return Err(refused_for_writing(pool, "its datasets have dead lists older than version 26"));
        }
    }
    Ok(())
}

/// GUIDs of the leaves whose devices are missing.
pub(super) fn absent(pool: &Pool) -> Vec<u64> {
    let is_absent = |leaf: &&VdevConfig| leaf.kind != VdevKind::DraidSpare && !pool.devices.contains_key(&leaf.guid);
    pool.tree.leaves().into_iter().filter(is_absent).map(|leaf| leaf.guid).collect()
}

/// The loaded keys of a pool.
pub(super) fn keys(pool: &mut Pool) -> KeyStore {
    let opened = pool.loaded.iter().filter_map(|(dir, key)| Some((pool.dsl.dir(*dir)?.crypto_key()?, key.clone())));
    let opened = opened.collect();
    KeyStore::new(std::mem::take(&mut pool.wrapping), opened)
}

/// The devices whose labels are written.
fn leaves(pool: &Pool) -> Vec<Leaf> {
    let mut out = Vec::new();
    for (index, top) in pool.tree.children.iter().enumerate() {
        for leaf in top.leaves() {
            if let Some(device) = pool.devices.get(&leaf.guid) {
                out.push(Leaf {
                    guid: leaf.guid,
                    top: index,
                    ashift: top.ashift,
                    is_log: top.class == Class::Log,
                    path: device.path.clone(),
                    disk: device.disk.clone(),
                });
            }
        }
    }
    out
}

/// The configuration that the engine writes from now on.
pub(super) fn config_of(pool: &Pool, options: &ImportOptions) -> Result<Config, PoolError> {
    let bad = |source| PoolError::Decode { what: format!("pool '{}': configuration", pool.name()), source };
    let mut config = Config::of(&pool.config, options.host.clone()).map_err(bad)?;
    config.state = state::ACTIVE;
    if let Some(name) = &options.new_name {
        crate::create::check_pool_name(name)?;
        let stored = std::mem::replace(&mut config.name, name.clone());
        config.stored_name = Some(stored).filter(|_| options.is_temporary);
    }
    Ok(config)
}

pub(super) async fn assemble(
    machine: &Machine,
    options: &ImportOptions,
    mut pool: Pool,
    config: Config,
) -> Result<Arc<Engine>, PoolError> {
    let rq = &Request::internal("import");
    let mut index = SpaceMapIndex::read(rq, &pool.mos, &pool.tree.children).await?;
    let fault = match index.map_bytes() {
        ..=CHECKED_MAP_BYTES => index.first_fault(rq, &pool.mos).await?,
        _ => index.faults.pop(),
    };
    if let Some(fault) = fault {
        return Err(refused(&pool, format!("its space maps cannot be trusted: {fault}")));
    }
    let blocks = pool.blocks.clone();
    allocation::set_known(&blocks, &pool.tree, &index)?;
    let has = |guid: &str| pool.features.count(guid).is_some();
    let formats = WritableEncodings {
        lz4: has("org.illumos:lz4_compress"),
        embedded_data: has("com.delphix:embedded_data"),
        hole_birth: has("com.delphix:hole_birth"),
    };
    blocks.set_formats(formats).map_err(|error| refused(&pool, error))?;
    // The checkpoint's uberblock; its third word is its txg.
    let checkpoint = pool.mos.named_words(rq, names::CHECKPOINT).await?.and_then(|words| words.get(2).copied());
    blocks.set_checkpoint(Txg(checkpoint.unwrap_or(0))).map_err(|error| refused(&pool, error))?;
    let maps = SpaceMaps::read(rq, &pool.mos, &pool.tree.children, pool.uberblock.root, index.log).await?;
    // After a rewind, new txgs must be newer than the discarded ones.
    let txgs = TxgTracker::new(pool.newest_txg.max(pool.uberblock.txg));
    let open = Arc::new(UnlimitedTxAdmission(txgs.clone()));
    let root = pool.uberblock.root;
    let mos = ObjectSet::open_live(rq, pool.cache.clone(), root, Opening::default(), open, Policy::of_mos()).await?;
    let dedup = Dedup::read(rq, mos.clone()).await?;
    let tops = allocation::Tops::of(&pool.tree);
    let space = allocation::source(&blocks, &tops);
    let context = allocation::context(machine, &config, &blocks, (space)());
    let gate = PoolTxAdmission::new(machine.clock.clone(), txgs, options.dirty, space, dedup);
    let no_config = || refused(&pool, "its MOS has no configuration");
    let config_object = pool.mos.named(rq, names::CONFIG).await?.ok_or_else(no_config)?;
    let on_disk = dtls::read_all(rq, &pool.mos, &pool.tree, pool.uberblock.txg).await;
    let fixed_endian = pool.features.count("com.truenas:block_cloning_endian").is_some_and(|n| n > 0);
    let clones = BlockRefTable::read(rq, &pool.mos, &pool.tree.children, fixed_endian).await?;
    gate.set_dedup_saved_bytes(clones.saved_bytes().saturating_add(gate.dedup.saved_bytes()));
    let aside = CheckpointAndObsoleteMaps::new(&pool.tree.children, pool.capacity.checkpoint_bytes);
    gate.set_checkpoint_bytes(aside.kept_bytes);
    let removal = Removal::read(rq, &pool.mos, &pool.tree).await?;
    let expanding = Expanding::read(rq, &pool.mos, &pool.tree, &pool.uberblock.reflow).await;
    let expanding = expanding.map_err(|error| refused(&pool, error))?;
    let core = SyncerState {
        config,
        config_dirty: true,
        leaves: leaves(&pool),
        maps,
        uberblock: pool.uberblock.clone(),
        config_object,
        context,
        clones,
        aside,
        dtls: StoredDtls::new(on_disk, blocks.tree().dtls()),
        scrub_began: None,
        returns_scanned: 0,
        resilver_began: None,
        autotrim: AutoTrim::default(),
        limits: None,
        max_frees_per_txg: options.dirty.freed_blocks,
        max_copied_bytes_per_txg: options.dirty.copied_bytes,
        removal,
        expanding,
        frees_on: false,
        freeing: Default::default(),
        stuck: None,
        given_up: None,
        ended: false,
        opened: Vec::new(),
    };
    let keys = keys(&mut pool);
    let (machine, cache, read_only) = (machine.clone(), pool.cache, None);
    Ok(Engine::start(Parts { machine, cache, mos, gate, keys, tops, read_only }, core))
}

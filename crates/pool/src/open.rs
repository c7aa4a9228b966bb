//! Opens a pool read-only: from its devices to the MOS.
//!
//! ```text
//!   labels ─► vdev tree of the labels ─► MOS ─► configuration, salt, DTLs, mappings ─► vdev tree of the pool ─► MOS
//! ```
//!
//! The labels suffice to find the configuration in the MOS, which replaces theirs. With a rewind, older uberblocks are
//! tried one after the other until one leads to a readable MOS with a readable list of datasets and readable space maps
//! (all space maps, if the pool is opened for writing).
//!
//! Failures: [`PoolError`] names the devices that are missing beyond redundancy, the unsupported features, or the first
//! object of the MOS that cannot be read.

use crate::assemble::{Assembly, FoundPool, assemble};
use crate::capacity::{self, Capacity};
use crate::config::{Class, PoolConfig, VdevConfig, VdevKind};
use crate::dtls::{self, Dtls};
use crate::error::PoolError;
use crate::features::{self, Features};
use crate::mos::Mos;
use crate::scan::{Device, Scan, scan};
use crate::scan_status::LiveScan;
use crate::space::{self, Space};
use crate::space_map_loader::SpaceMapIndex;
use crate::status::{self, States, VdevState};
use crate::top_zap::ALLOCATION_BIAS;
use crate::vdev_builder::{Facts, specs};
use crate::{indirect, sizes, uberblocks};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use weir_blocks::fault_injection::PointerForger;
use weir_blocks::fault_observer::Bookmark;
use weir_blocks::{Blocks, Tree};
use weir_cache::Cache;
use weir_codec::Salt;
use weir_codec::crypt::WrappingKey;
use weir_dmu::{ObjectError, ObjectSet, Opening};
use weir_dsl::{Dsl, SetKey};
use weir_format::dsl::pool as names;
use weir_format::{ObjectId, Txg, Uberblock};
use weir_machine::{Access, Machine, Request};

/// Size of the ARC that reads the configuration, in bytes.
pub(crate) const LABEL_ARC_BYTES: u64 = 16 << 20;

/// Choice of the uberblock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rewind {
    /// The best one.
    #[default]
    No,
    /// The best one that leads to a readable MOS (`-F`).
    Auto,
    /// The best one of at most this txg (`-T`), older ones if that is unreadable.
    Before(Txg),
}

/// Parameters of opening a pool.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Directories and devices to search.
    pub search: Vec<PathBuf>,
    /// Name or GUID of the pool; empty for the only pool that is found.
    pub pool: String,
    /// Choice of the uberblock.
    pub rewind: Rewind,
    /// Whether to open the state of the pool's checkpoint.
    pub checkpoint: bool,
    /// Memory for the cache, in bytes.
    pub arc_bytes: u64,
    /// Keys of encrypted datasets: the name of the encryption root, and the key in the format of its `keyformat`.
    pub keys: Vec<(String, Vec<u8>)>,
    /// Whether blocks are altered without verification: only for tests of hostile pools (see
    /// [`weir_blocks::fault_injection`]).
    #[doc(hidden)]
    pub forger: Option<PointerForger>,
}

impl OpenOptions {
    /// Default memory for the cache.
    pub const ARC_BYTES: u64 = 256 << 20;

    /// Opens the newest state of the pool with this name or GUID in these places.
    pub fn new(search: Vec<PathBuf>, pool: impl Into<String>) -> Self {
        OpenOptions {
            search,
            pool: pool.into(),
            rewind: Rewind::No,
            checkpoint: false,
            arc_bytes: Self::ARC_BYTES,
            keys: Vec::new(),
            forger: None,
        }
    }
}

/// A pool, open for reading.
pub struct Pool {
    /// The machine that it runs on.
    pub machine: Machine,
    /// Pool-wide configuration of the MOS.
    pub config: PoolConfig,
    /// Configuration of the newest label.
    pub label: PoolConfig,
    /// Vdev tree as described by the MOS.
    pub tree: VdevConfig,
    /// State of the pool.
    pub state: VdevState,
    /// Why writes of the pool are suspended, or wait for a device; `None` if neither, or if no process has it open.
    pub suspended: Option<String>,
    /// Lost blocks that the process that has the pool open found, with their births, and that are not in the error log yet.
    pub unlogged_errors: Vec<(Bookmark, Txg)>,
    /// Present counts of the scan, if a process has the pool open and carries a scan out.
    pub live_scan: Option<LiveScan>,
    /// States of the vdevs by GUID.
    pub states: States,
    /// The uberblock in use.
    pub uberblock: Uberblock,
    /// Highest txg of any uberblock; after a rewind it is higher than that of the uberblock in use.
    pub newest_txg: Txg,
    /// Reader of blocks.
    pub blocks: Arc<Blocks>,
    /// The cache above it.
    pub cache: Arc<Cache>,
    /// The meta object set.
    pub mos: Mos,
    /// Enabled features with their reference counts.
    pub features: Features,
    /// Devices by the GUID of their leaf.
    pub devices: BTreeMap<u64, Device>,
    /// Spares and cache devices by GUID.
    pub aux: BTreeMap<u64, Device>,
    /// Warnings, one line each.
    pub warnings: Vec<String>,
    /// Directory below which the process that has the pool open mounts its file systems (`altroot`); empty for none.
    pub altroot: String,
    /// Whether the process that has the pool open has it open read-only (the pool's property `readonly`).
    pub read_only: bool,
    /// The property `cachefile` of a pool that a process has open; empty for the usual cache file.
    pub cachefile: String,
    /// The datasets.
    pub dsl: Arc<Dsl>,
    /// Loaded keys by the directory of their dataset.
    pub loaded: BTreeMap<ObjectId, SetKey>,
    /// Given wrapping keys by the directory of their encryption root.
    pub wrapping: BTreeMap<ObjectId, Arc<WrappingKey>>,
    /// Sums of the space maps.
    pub space: Space,
    /// Space of the pool.
    pub capacity: Capacity,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} txg {})", self.config.name, self.uberblock.txg)
    }
}

/// The devices of the chosen pool.
pub(crate) struct Candidate<'a> {
    pub machine: &'a Machine,
    pub found: &'a FoundPool,
    pub arc_bytes: u64,
    pub forger: Option<PointerForger>,
    pub writing: bool,
    /// Whether there are other states to choose from.
    pub rewinds: bool,
}

/// MOS of one uberblock.
struct RootedMos {
    config: PoolConfig,
    tree: VdevConfig,
    states: (VdevState, States),
    uberblock: Uberblock,
    cache: Arc<Cache>,
    mos: Mos,
    features: Features,
}

/// State that was read from the MOS.
struct ImportedState {
    dsl: Arc<Dsl>,
    space: Space,
    capacity: Capacity,
}

impl Pool {
    /// The pool's health, as `zpool list` shows it: its state, or `SUSPENDED`.
    pub fn health(&self) -> String {
        self.suspended.as_ref().map_or_else(|| self.state.to_string(), |_| status::SUSPENDED.to_owned())
    }

    /// Finds and opens a pool for reading.
    pub async fn open(machine: &Machine, options: &OpenOptions) -> Result<Pool, PoolError> {
        Self::open_in(machine, options, Access::ReadOnly).await
    }

    /// Finds and opens a pool with access to its devices as requested.
    pub async fn open_in(machine: &Machine, options: &OpenOptions, access: Access) -> Result<Pool, PoolError> {
        let scanned = scan(machine, &options.search).await?;
        let looked_at = scanned.looked_at;
        let mut assembly = assemble(scanned);
        let mut found = choose(&mut assembly, options, looked_at)?;
        let left_out = match access {
            Access::ReadWrite => make_writable(machine, &mut found)?,
            Access::ReadOnly => Vec::new(),
        };
        let mut pool = Self::open_found(machine, options, (found, assembly.aux), access).await?;
        pool.warnings.extend(left_out);
        Ok(pool)
    }

    /// Opens a pool on these devices alone, which are open for writing. Nothing is searched.
    pub async fn open_on(machine: &Machine, options: &OpenOptions, devices: Vec<Device>) -> Result<Pool, PoolError> {
        let looked_at = devices.len();
        let mut assembly = assemble(Scan { devices, looked_at, ..Scan::default() });
        let found = choose(&mut assembly, options, looked_at)?;
        Self::open_found(machine, options, (found, assembly.aux), Access::ReadWrite).await
    }

    async fn open_found(
        machine: &Machine,
        options: &OpenOptions,
        (found, aux): (FoundPool, BTreeMap<u64, Device>),
        access: Access,
    ) -> Result<Pool, PoolError> {
        let label = found.config.clone();
        features::check_label(&label)?;
        let (forger, writing) = (options.forger.clone(), access == Access::ReadWrite);
        let rewinds = options.rewind != Rewind::No;
        let candidate = Candidate { machine, found: &found, arc_bytes: options.arc_bytes, forger, writing, rewinds };
        let (opened, contents) = if options.checkpoint {
            // For a checkpoint, only the path to it in the newest state must be readable.
            let newest = candidate.rewind(options.rewind, |uberblock| candidate.root(uberblock).boxed()).await?;
            candidate.whole(checkpoint(&newest).await?).await?
        } else {
            candidate.rewind(options.rewind, |uberblock| candidate.whole(uberblock).boxed()).await?
        };
        let warnings = warnings(&found, &opened);
        let newest_txg = uberblocks::ranked(&found, None).first().map_or(opened.uberblock.txg, |u| u.txg);
        let (state, states) = opened.states;
        let rq = &Request::internal("open");
        let (wrapping, loaded) = load_keys(rq, &contents.dsl, &options.keys).await?;
        Ok(Pool {
            machine: machine.clone(),
            config: opened.config,
            label,
            tree: opened.tree,
            state,
            suspended: None,
            unlogged_errors: Vec::new(),
            live_scan: None,
            states,
            uberblock: opened.uberblock,
            newest_txg,
            blocks: opened.cache.blocks().clone(),
            cache: opened.cache,
            mos: opened.mos,
            features: opened.features,
            devices: found.devices,
            aux,
            warnings,
            altroot: String::new(),
            read_only: false,
            cachefile: String::new(),
            dsl: contents.dsl,
            loaded,
            wrapping,
            space: contents.space,
            capacity: contents.capacity,
        })
    }

    /// Name of the pool.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// DTLs of the leaves by GUID.
    pub fn dtls(&self) -> Dtls {
        self.blocks.tree().dtls()
    }

    /// A line for each top-level vdev with too few devices to read the blocks of some txgs.
    pub fn lost(&self) -> Vec<String> {
        lost_lines(&self.tree, &self.states, &self.dtls())
    }
}

/// Opens the devices of a pool for writing. One that cannot be, or became smaller than what is stored on it, is left out as if it
/// were not there, if the others suffice. Returns a line about each of those (OpenZFS `module/zfs/vdev.c`, `vdev_open`).
///
/// # Errors
/// Why a device cannot be opened for writing, if the pool needs it.
fn make_writable(machine: &Machine, found: &mut FoundPool) -> Result<Vec<String>, PoolError> {
    let tree = found.label_tree()?;
    let shrunk = sizes::shrunk(&tree, &found.devices);
    let mut left_out: BTreeMap<u64, String> = BTreeMap::new();
    let mut first = None;
    for (guid, device) in &mut found.devices {
        match device.reopen(machine, Access::ReadWrite) {
            Err(PoolError::Disk { source, path }) if source.lacks_descriptors() => {
                return Err(PoolError::Disk { source, path });
            }
            Err(error) => {
                left_out.insert(*guid, format!("left out, as it cannot be opened for writing: {error}"));
                first = first.or(Some(error));
            }
            Ok(()) if shrunk.contains(guid) => {
                left_out.insert(*guid, format!("{} is left out: it is smaller than it was", device.name()));
            }
            Ok(()) => {}
        }
    }
    let is_there = |guid: u64| found.devices.contains_key(&guid) && !left_out.contains_key(&guid);
    let (_, states) = status::states(&tree, &is_there, &Dtls::new());
    if !left_out.is_empty() && !status::lacking(&tree, &states).is_empty() {
        // Those that became smaller are refused when all is known about the pool.
        return first.map_or(Ok(Vec::new()), Err);
    }
    found.devices.retain(|guid, _| !left_out.contains_key(guid));
    Ok(left_out.into_values().collect())
}

/// Loads the given keys.
pub async fn load_keys(
    rq: &Request,
    dsl: &Dsl,
    keys: &[(String, Vec<u8>)],
) -> Result<(BTreeMap<ObjectId, Arc<WrappingKey>>, BTreeMap<ObjectId, SetKey>), PoolError> {
    let mut roots = BTreeMap::new();
    let mut out = BTreeMap::new();
    for (name, secret) in keys {
        let missing = || ObjectError::NoName { what: "dataset", name: name.clone() };
        let root = dsl.dir_named(name).ok_or_else(missing)?;
        let wrapping = weir_dsl::keys::wrapping_key(dsl, rq, root, secret).await?;
        out.extend(weir_dsl::keys::load_keys_with(dsl, rq, root, &wrapping).await?);
        roots.insert(root.id, Arc::new(wrapping));
    }
    Ok((roots, out))
}

/// Chooses the requested pool.
pub(crate) fn choose(assembly: &mut Assembly, options: &OpenOptions, looked_at: usize) -> Result<FoundPool, PoolError> {
    let searched = options.search.clone();
    if assembly.pools.is_empty() {
        return Err(PoolError::NothingFound { searched, devices: looked_at });
    }
    let matches = |p: &FoundPool| {
        options.pool.is_empty() || p.config.name == options.pool || p.config.guid.to_string() == options.pool
    };
    let guids: Vec<u64> = assembly.pools.values().filter(|p| matches(p)).map(|p| p.config.guid).collect();
    match guids[..] {
        [guid] => assembly.pools.remove(&guid).ok_or(PoolError::NothingFound { searched, devices: looked_at }),
        [] => {
            let found = assembly.pools.values().map(|p| p.config.name.clone()).collect();
            Err(PoolError::NoSuchPool { wanted: options.pool.clone(), searched, found })
        }
        _ => Err(PoolError::Ambiguous { name: options.pool.clone(), guids }),
    }
}

impl Candidate<'_> {
    fn name(&self) -> &str {
        &self.found.config.name
    }

    fn unreadable(&self, what: &str) -> impl Fn(ObjectError) -> PoolError {
        let (pool, what) = (self.name().to_owned(), what.to_owned());
        move |source| PoolError::Mos { pool: pool.clone(), what: what.clone(), source: Box::new(source) }
    }

    /// Tries one uberblock after the other.
    async fn rewind<'a, T>(
        &self,
        rewind: Rewind,
        attempt: impl Fn(Uberblock) -> BoxFuture<'a, Result<T, PoolError>>,
    ) -> Result<T, PoolError> {
        let at_most = if let Rewind::Before(txg) = rewind { Some(txg) } else { None };
        let ranked = uberblocks::ranked(self.found, at_most);
        let tries = if rewind == Rewind::No { 1 } else { ranked.len() };
        let mut first = None;
        for uberblock in ranked.into_iter().take(tries) {
            match attempt(uberblock).await {
                Ok(opened) => return Ok(opened),
                // Older uberblocks need the same devices and features.
                Err(e @ (PoolError::MissingDevices { .. } | PoolError::UnsupportedFeatures { .. })) => return Err(e),
                Err(error) => first = first.or(Some(error)),
            }
        }
        let devices = self.found.devices.len();
        Err(first.unwrap_or(PoolError::NoUberblock { pool: self.name().to_owned(), at_most, devices }))
    }

    /// Opens the MOS below a vdev tree.
    pub(crate) async fn mos(
        &self,
        rq: &Request,
        tree: Arc<Tree>,
        salt: Salt,
        uberblock: &Uberblock,
        arc_bytes: u64,
    ) -> Result<(Arc<Cache>, Mos), PoolError> {
        let mut blocks = Blocks::new(self.machine, tree, salt);
        if let Some(forger) = self.forger.clone() {
            blocks = blocks.unproven(forger);
        }
        let blocks = Arc::new(blocks);
        let cache = Cache::new(self.machine.clone(), blocks, arc_bytes);
        let set = ObjectSet::open(rq, cache.clone(), uberblock.root, Opening::default()).await;
        Ok((cache, Mos { set: set.map_err(self.unreadable("its root"))? }))
    }

    pub(crate) fn tree(&self, config: &VdevConfig, dtls: &Dtls, uberblock: &Uberblock) -> Result<Arc<Tree>, PoolError> {
        let facts = Facts { devices: &self.found.devices, dtls, uberblock, writing: self.writing };
        let bad = |e: weir_blocks::TreeError| PoolError::Config { pool: self.name().to_owned(), what: e.to_string() };
        Tree::new(specs(config, &facts), &self.machine.clock).map_err(bad)
    }

    /// Reads the MOS of an uberblock and the state in it.
    async fn whole(&self, uberblock: Uberblock) -> Result<(RootedMos, ImportedState), PoolError> {
        let rooted = self.root(uberblock).await?;
        let rq = &Request::internal("open");
        let dsl = Dsl::open(rq, rooted.mos.set.clone(), &rooted.config.name).await?;
        let space = space::load(rq, &rooted.mos, &rooted.tree).await?;
        let capacity = capacity::compute_space(rq, &rooted.mos, &rooted.tree, &space).await?;
        if self.rewinds && self.writing {
            let mut index = SpaceMapIndex::read(rq, &rooted.mos, &rooted.tree.children).await?;
            if let Some(fault) = index.first_fault(rq, &rooted.mos).await? {
                let what = format!("its space maps cannot be trusted: {fault}");
                return Err(PoolError::Config { pool: self.name().to_owned(), what });
            }
        }
        Ok((rooted, ImportedState { dsl, space, capacity }))
    }

    /// Opens the MOS of an uberblock.
    async fn root(&self, uberblock: Uberblock) -> Result<RootedMos, PoolError> {
        let rq = &Request::internal("open");
        let by_labels = self.found.label_tree()?;
        let tree = self.tree(&by_labels, &Dtls::new(), &uberblock)?;
        let (_, mos) = match self.mos(rq, tree, Salt::none(), &uberblock, LABEL_ARC_BYTES).await {
            Ok(opened) => opened,
            // If the labels show the reason already, that error is better.
            Err(error) => return Err(self.judge(&by_labels).err().unwrap_or(error)),
        };
        let bad = self.unreadable("its configuration");
        let Some(config) = mos.named(rq, names::CONFIG).await.map_err(&bad)? else {
            return Err(PoolError::Config {
                pool: self.name().to_owned(),
                what: "its MOS has no configuration".into(),
            });
        };
        let list = mos.list(rq, config).await.map_err(&bad)?;
        let config = PoolConfig::parse(list);
        let what = || format!("pool '{}': configuration in the MOS", self.name());
        let config = config.map_err(|source| PoolError::Decode { what: what(), source })?;
        let mut trusted = config.vdev_tree()?;
        self.judge(&trusted)?;
        let mos = self.mos_of_removed(rq, mos, &trusted, &uberblock).await?;
        classes(rq, &mos, &mut trusted).await;
        let features = Features::read(rq, &mos).await.map_err(self.unreadable("its features"))?;
        features.check(self.name())?;
        let salt = mos.named_bytes(rq, names::CHECKSUM_SALT).await.map_err(self.unreadable("its checksum salt"))?;
        let salt = salt.and_then(|b| <[u8; Salt::BYTES]>::try_from(b).ok()).map_or_else(Salt::none, Salt::new);
        let on_disk = dtls::read_all(rq, &mos, &trusted, uberblock.txg).await;
        let tree = self.tree(&trusted, &on_disk, &uberblock)?;
        let states = status::states(&trusted, &|guid| self.found.devices.contains_key(&guid), &tree.dtls());
        indirect::load(rq, &mos, &trusted, &tree).await.map_err(self.unreadable("the mapping of a removed vdev"))?;
        let (cache, mos) = self.mos(rq, tree, salt, &uberblock, self.arc_bytes).await?;
        Ok(RootedMos { config, tree: trusted, states, uberblock, cache, mos, features })
    }

    /// Returns a MOS that reads blocks on removed vdevs too. `by_labels` reads the vdevs that the labels describe. No label
    /// describes a removed vdev, and every object but the configuration may have blocks on one, so after a removal the MOS is
    /// opened again over the vdevs of the configuration, with the mappings of the removed ones (OpenZFS `module/zfs/spa.c`,
    /// `spa_ld_open_indirect_vdev_metadata`).
    pub(crate) async fn mos_of_removed(
        &self,
        rq: &Request,
        by_labels: Mos,
        trusted: &VdevConfig,
        uberblock: &Uberblock,
    ) -> Result<Mos, PoolError> {
        if indirect::newest_first(trusted).is_empty() {
            return Ok(by_labels);
        }
        let tree = self.tree(trusted, &Dtls::new(), uberblock)?;
        let (_, mos) = self.mos(rq, tree.clone(), Salt::none(), uberblock, LABEL_ARC_BYTES).await?;
        indirect::load(rq, &mos, trusted, &tree).await.map_err(self.unreadable("the mapping of a removed vdev"))?;
        Ok(mos)
    }

    /// Checks that no vdev lacks more devices than its redundancy allows.
    fn judge(&self, tree: &VdevConfig) -> Result<(), PoolError> {
        let (_, states) = status::states(tree, &|guid| self.found.devices.contains_key(&guid), &Dtls::new());
        let missing = status::lacking(tree, &states);
        if missing.is_empty() {
            return Ok(());
        }
        Err(PoolError::MissingDevices { pool: self.name().to_owned(), missing })
    }
}

/// Reads the allocation classes, which are in the ZAPs of the top-level vdevs.
pub async fn classes(rq: &Request, mos: &Mos, tree: &mut VdevConfig) {
    for top in tree.children.iter_mut().filter(|t| t.top_zap != 0 && t.class == Class::Normal) {
        let found = weir_dmu::zap::lookup(rq, &mos.set, ObjectId(top.top_zap), ALLOCATION_BIAS).await;
        match found.ok().flatten().and_then(|v| v.text()).as_deref() {
            Some("special") => top.class = Class::Special,
            Some("dedup") => top.class = Class::Dedup,
            Some("log") => top.class = Class::Log,
            _ => {}
        }
    }
}

/// Returns the uberblock of the checkpoint, whose words are in the MOS directory.
async fn checkpoint(opened: &RootedMos) -> Result<Uberblock, PoolError> {
    let rq = &Request::internal("open");
    let pool = opened.config.name.clone();
    let words = opened.mos.named_words(rq, names::CHECKPOINT).await;
    let what = "its checkpoint".to_owned();
    let words = words.map_err(|e| PoolError::Mos { pool: pool.clone(), what, source: Box::new(e) })?;
    let words = words.ok_or(PoolError::NoCheckpoint { pool: pool.clone() })?;
    let what = || format!("pool '{pool}': uberblock of the checkpoint");
    uberblocks::of_checkpoint(&words).map_err(|source| PoolError::Decode { what: what(), source })
}

/// A line for each top-level vdev with unreadable blocks, because too many of its leaves are absent or have DTLs.
fn lost_lines(tree: &VdevConfig, states: &States, dtls: &Dtls) -> Vec<String> {
    // For an unusable vdev its state is enough.
    let usable = |top: &&VdevConfig| states.get(&top.guid).is_some_and(|state| state.is_usable());
    let tops = tree.children.iter().filter(|top| top.is_concrete()).filter(usable);
    let lost = tops.map(|top| (top, status::lost_by(top, states, dtls))).filter(|(_, lost)| !lost.is_empty());
    lost.map(|(top, lost)| format!("{} has too few devices to read the blocks of {lost}", top.name())).collect()
}

/// Warnings for the administrator who imports this pool.
fn warnings(found: &FoundPool, opened: &RootedMos) -> Vec<String> {
    let mut out = Vec::new();
    for vdev in opened.tree.leaves() {
        if !found.devices.contains_key(&vdev.guid) && matches!(vdev.kind, VdevKind::Disk | VdevKind::File) {
            let was = vdev.path.as_deref().unwrap_or("unknown");
            out.push(format!("device {} (was {was}) is missing", vdev.guid));
        }
    }
    for device in &found.duplicates {
        out.push(format!("{} claims to be a device that is there already, and is older: left out", device.name()));
    }
    let tree = opened.cache.blocks().tree();
    let dtls = tree.dtls();
    let usable = |leaf: &VdevConfig| opened.states.1.get(&leaf.guid).is_some_and(|state| state.is_usable());
    for leaf in opened.tree.leaves().into_iter().filter(|leaf| usable(leaf)) {
        if let Some(dtl) = dtls.get(&leaf.guid) {
            out.push(format!("{} misses {dtl}", leaf.name()));
        }
    }
    out.extend(lost_lines(&opened.tree, &opened.states.1, &dtls));
    out
}

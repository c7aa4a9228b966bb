//! Opening a pool: from its devices to the MOS, read-only.
//!
//! ```text
//!   labels ─► tree as they know it ─► MOS ─► configuration, salt, DTLs, mappings ─► tree as the pool knows it ─► MOS
//! ```
//!
//! The labels are good enough to find the configuration in the MOS; that one is trusted and replaces them. With a rewind,
//! older uberblocks are tried in turn until one leads to a MOS that can be read, the list of data sets and the space maps
//! with it (of a pool that is to be written, all that they say).
//!
//! What fails: [`PoolError`] names the devices that are missing beyond redundancy, the features that are not known, or
//! the first thing in the MOS that cannot be read.

use crate::assemble::{Assembly, FoundPool, assemble};
use crate::capacity::{self, Capacity};
use crate::config::{Class, PoolConfig, VdevConfig, VdevKind};
use crate::dtls::{self, Dtls};
use crate::error::PoolError;
use crate::features::{self, Features};
use crate::mos::Mos;
use crate::scan::{Device, scan};
use crate::space::{self, Space};
use crate::status::{self, States, VdevState};
use crate::vdev_builder::{Facts, specs};
use crate::{indirect, space_map_loader, uberblocks};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use weir_blocks::fault_injection::PointerForger;
use weir_blocks::{Blocks, Dtl, Tree};
use weir_cache::Cache;
use weir_codec::Salt;
use weir_codec::crypt::WrappingKey;
use weir_dmu::{ObjectError, ObjectSet, Opening};
use weir_dsl::{Dsl, SetKey};
use weir_format::dsl::pool as names;
use weir_format::{Endian, ObjectId, Txg, Uberblock};
use weir_machine::{Access, Machine, Request};

/// Which uberblock is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rewind {
    /// The best one.
    #[default]
    No,
    /// The best one that leads to a MOS that can be read (`-F`).
    Auto,
    /// The best one at or before a txg (`-T`), older ones if that cannot be read.
    Before(Txg),
}

/// Which pool is opened, and how.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Folders and devices to look at.
    pub search: Vec<PathBuf>,
    /// The pool's name or GUID; empty for the only one that is there.
    pub pool: String,
    /// Which uberblock is used.
    pub rewind: Rewind,
    /// Open the state that the pool's checkpoint keeps.
    pub checkpoint: bool,
    /// Memory for the cache, in bytes.
    pub arc_bytes: u64,
    /// Keys of encrypted datasets: the name of the encryption root, and the key as its `keyformat` says.
    pub keys: Vec<(String, Vec<u8>)>,
    /// Forge blocks and prove none: for tests of hostile pools only (see [`weir_blocks::fault_injection`]).
    #[doc(hidden)]
    pub forger: Option<PointerForger>,
}

impl OpenOptions {
    /// Memory for the cache if nothing else is said.
    pub const ARC_BYTES: u64 = 256 << 20;

    /// The pool of that name in these places, as it is.
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
    /// The pool-wide configuration in the MOS.
    pub config: PoolConfig,
    /// The configuration in the newest label.
    pub label: PoolConfig,
    /// The vdevs, as the MOS knows them.
    pub tree: VdevConfig,
    /// How the pool stands.
    pub state: VdevState,
    /// How each vdev stands, by its GUID.
    pub states: States,
    /// The uberblock in use.
    pub uberblock: Uberblock,
    /// The highest txg of any uberblock found; higher than that of the one in use after a rewind.
    pub newest_txg: Txg,
    /// Its blocks.
    pub blocks: Arc<Blocks>,
    /// The cache above them.
    pub cache: Arc<Cache>,
    /// The meta object set.
    pub mos: Mos,
    /// Features enabled and in use.
    pub features: Features,
    /// The devices found, by the GUID of their leaf.
    pub devices: BTreeMap<u64, Device>,
    /// Spares and caches found, by their GUID.
    pub aux: BTreeMap<u64, Device>,
    /// What is not as it should be, one line each.
    pub warnings: Vec<String>,
    /// The datasets.
    pub dsl: Arc<Dsl>,
    /// Keys opened, by the directory of their dataset.
    pub loaded: BTreeMap<ObjectId, SetKey>,
    /// The wrapping keys that were given, by the directory of their encryption root.
    pub wrapping: BTreeMap<ObjectId, Arc<WrappingKey>>,
    /// Its space maps' sums.
    pub space: Space,
    /// How much it holds.
    pub capacity: Capacity,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} txg {})", self.config.name, self.uberblock.txg)
    }
}

/// The devices of one pool, chosen.
struct Candidate<'a> {
    machine: &'a Machine,
    found: &'a FoundPool,
    arc_bytes: u64,
    forger: Option<PointerForger>,
    writing: bool,
    /// There are other states to choose from.
    rewinds: bool,
}

/// The MOS that one uberblock led to.
struct RootedMos {
    config: PoolConfig,
    tree: VdevConfig,
    states: (VdevState, States),
    uberblock: Uberblock,
    cache: Arc<Cache>,
    mos: Mos,
    features: Features,
}

/// What stands in it.
struct ImportedState {
    dsl: Arc<Dsl>,
    space: Space,
    capacity: Capacity,
}

impl Pool {
    /// Finds and opens a pool.
    pub async fn open(machine: &Machine, options: &OpenOptions) -> Result<Pool, PoolError> {
        Self::open_in(machine, options, Access::ReadOnly).await
    }

    /// The same, with its devices opened so that the pool may be written.
    pub async fn open_in(machine: &Machine, options: &OpenOptions, access: Access) -> Result<Pool, PoolError> {
        let scanned = scan(machine, &options.search).await?;
        let looked_at = scanned.looked_at;
        let mut assembly = assemble(scanned);
        let mut found = choose(&mut assembly, options, looked_at)?;
        if access == Access::ReadWrite {
            for device in found.devices.values_mut() {
                device.reopen(machine, access)?;
            }
        }
        let label = found.config.clone();
        features::check_label(&label)?;
        let (forger, writing) = (options.forger.clone(), access == Access::ReadWrite);
        let rewinds = options.rewind != Rewind::No;
        let candidate = Candidate { machine, found: &found, arc_bytes: options.arc_bytes, forger, writing, rewinds };
        let (opened, contents) = if options.checkpoint {
            // Of the newest state only the way to the checkpoint matters: who wants that may have nothing else left.
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
            states,
            uberblock: opened.uberblock,
            newest_txg,
            blocks: opened.cache.blocks().clone(),
            cache: opened.cache,
            mos: opened.mos,
            features: opened.features,
            devices: found.devices,
            aux: assembly.aux,
            warnings,
            dsl: contents.dsl,
            loaded,
            wrapping,
            space: contents.space,
            capacity: contents.capacity,
        })
    }

    /// The pool's name.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// The txgs whose writes each leaf lacks, by its GUID.
    pub fn dtls(&self) -> Dtls {
        self.blocks.tree().dtls()
    }

    /// A line for each top-level vdev that has too few devices to read the blocks of some txgs.
    pub fn lost(&self) -> Vec<String> {
        lost_lines(&self.tree, &self.states, &self.dtls())
    }
}

/// Opens what the given keys open.
pub async fn load_keys(
    rq: &Request,
    dsl: &Dsl,
    keys: &[(String, Vec<u8>)],
) -> Result<(BTreeMap<ObjectId, Arc<WrappingKey>>, BTreeMap<ObjectId, SetKey>), PoolError> {
    let (mut roots, mut out) = (BTreeMap::new(), BTreeMap::new());
    for (name, secret) in keys {
        let missing = || ObjectError::NoName { what: "dataset", name: name.clone() };
        let root = dsl.dir_named(name).ok_or_else(missing)?;
        let wrapping = dsl.wrapping_key(rq, root, secret).await?;
        out.extend(dsl.load_keys_with(rq, root, &wrapping).await?);
        roots.insert(root.id, Arc::new(wrapping));
    }
    Ok((roots, out))
}

/// The pool that was asked for.
fn choose(assembly: &mut Assembly, options: &OpenOptions, looked_at: usize) -> Result<FoundPool, PoolError> {
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

    /// Tries one state after the other.
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
                // Older uberblocks bring back neither devices nor features.
                Err(e @ (PoolError::MissingDevices { .. } | PoolError::UnsupportedFeatures { .. })) => return Err(e),
                Err(error) => first = first.or(Some(error)),
            }
        }
        let devices = self.found.devices.len();
        Err(first.unwrap_or(PoolError::NoUberblock { pool: self.name().to_owned(), at_most, devices }))
    }

    /// Opens the MOS below a tree.
    async fn mos(
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

    fn tree(&self, config: &VdevConfig, dtls: &Dtls, uberblock: &Uberblock) -> Result<Arc<Tree>, PoolError> {
        let facts = Facts { devices: &self.found.devices, dtls, uberblock, writing: self.writing };
        let bad = |e: weir_blocks::TreeError| PoolError::Config { pool: self.name().to_owned(), what: e.to_string() };
        Tree::new(specs(config, &facts)).map_err(bad)
    }

    /// A state with what stands in it.
    async fn whole(&self, uberblock: Uberblock) -> Result<(RootedMos, ImportedState), PoolError> {
        let rooted = self.root(uberblock).await?;
        let rq = &Request::internal("open");
        let dsl = Dsl::open(rq, rooted.mos.set.clone(), &rooted.config.name).await?;
        let space = space::load(rq, &rooted.mos, &rooted.tree).await?;
        let capacity = capacity::compute_space(rq, &rooted.mos, &rooted.tree, &space).await?;
        if self.rewinds && self.writing {
            let known = space_map_loader::allocated(rq, &rooted.mos, &rooted.tree.children).await?;
            if let Some(fault) = known.faults.first() {
                let what = format!("its space maps cannot be trusted: {fault}");
                return Err(PoolError::Config { pool: self.name().to_owned(), what });
            }
        }
        Ok((rooted, ImportedState { dsl, space, capacity }))
    }

    /// The MOS of a state.
    async fn root(&self, uberblock: Uberblock) -> Result<RootedMos, PoolError> {
        let rq = &Request::internal("open");
        let by_labels = self.found.label_tree()?;
        let tree = self.tree(&by_labels, &Dtls::new(), &uberblock)?;
        let (_, mos) = match self.mos(rq, tree, Salt::none(), &uberblock, 16 << 20).await {
            Ok(opened) => opened,
            // If the labels already show why, say that.
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

    /// Checks that the vdevs do not lack more devices than their redundancy bears.
    fn judge(&self, tree: &VdevConfig) -> Result<(), PoolError> {
        let (_, states) = status::states(tree, &|guid| self.found.devices.contains_key(&guid), &Dtls::new());
        let missing = status::lacking(tree, &states);
        if missing.is_empty() {
            return Ok(());
        }
        Err(PoolError::MissingDevices { pool: self.name().to_owned(), missing })
    }
}

/// The allocation classes, which stand in the top-level vdevs' own ZAPs.
pub async fn classes(rq: &Request, mos: &Mos, tree: &mut VdevConfig) {
    const BIAS: &str = "org.zfsonlinux:allocation_bias";
    for top in tree.children.iter_mut().filter(|t| t.top_zap != 0 && t.class == Class::Normal) {
        let found = weir_dmu::zap::lookup(rq, &mos.set, ObjectId(top.top_zap), BIAS).await;
        match found.ok().flatten().and_then(|v| v.text()).as_deref() {
            Some("special") => top.class = Class::Special,
            Some("dedup") => top.class = Class::Dedup,
            Some("log") => top.class = Class::Log,
            _ => {}
        }
    }
}

/// The uberblock that the checkpoint keeps: its words stand in the MOS directory.
async fn checkpoint(opened: &RootedMos) -> Result<Uberblock, PoolError> {
    let rq = &Request::internal("open");
    let pool = opened.config.name.clone();
    let words = opened.mos.named_words(rq, names::CHECKPOINT).await;
    let what = "its checkpoint".to_owned();
    let words = words.map_err(|e| PoolError::Mos { pool: pool.clone(), what, source: Box::new(e) })?;
    let words = words.ok_or(PoolError::NoCheckpoint { pool: pool.clone() })?;
    let mut bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    bytes.resize(bytes.len().max(Uberblock::SIZE), 0);
    let source = Uberblock::decode(&bytes);
    let what = || format!("pool '{pool}': uberblock of the checkpoint");
    let uberblock = source.map_err(|source| PoolError::Decode { what: what(), source })?;
    // The words are this machine's already; the order that the magic tells is that of the bytes made of them here.
    debug_assert_eq!(uberblock.endian, Endian::Little);
    Ok(uberblock)
}

/// A line for each top-level vdev that cannot give some blocks, because too many of its leaves are absent or lack them.
fn lost_lines(tree: &VdevConfig, states: &States, dtls: &Dtls) -> Vec<String> {
    // Of one that is not usable at all, its state says enough.
    let usable = |top: &&VdevConfig| states.get(&top.guid).is_some_and(|state| state.is_usable());
    let tops = tree.children.iter().filter(|top| top.is_concrete()).filter(usable);
    let lost = tops.map(|top| (top, lost_by(top, states, dtls))).filter(|(_, lost)| !lost.is_empty());
    lost.map(|(top, lost)| format!("{} has too few devices to read the blocks of {lost}", top.name())).collect()
}

/// The txgs whose blocks a top-level vdev cannot give.
fn lost_by(top: &VdevConfig, states: &States, dtls: &Dtls) -> Dtl {
    let usable = |guid: u64| states.get(&guid).is_some_and(|state| state.is_usable());
    dtls::lost(top, &|leaf| match usable(leaf.guid) {
        true => dtls.get(&leaf.guid).cloned().unwrap_or_default(),
        false => Dtl::all(),
    })
}

/// What a person should know who opens this pool.
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

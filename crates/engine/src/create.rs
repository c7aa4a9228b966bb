//! Creation of a pool in one transaction group (`spa_create`).
//!
//! ```text
//!   check devices ─► blank labels ─► empty space ─► txg 4, by the syncer: the MOS, the root file system ─► uberblock
//! ```
//!
//! Until the first uberblock is written, txg 0 in the labels marks the devices as not in use. An ordinary sync task
//! creates the contents of the MOS ([`contents`]), so creation shares the write path of every other txg.
//!
//! Source: OpenZFS `module/zfs/spa.c` (`spa_create`), `module/zfs/vdev_label.c` (`vdev_label_init`, `vdev_inuse`).

pub(crate) mod contents;
pub mod devices;
pub mod draid;
mod foreign;
pub mod layout;

pub use draid::DraidRequest;
pub use layout::{Layout, NewLeaf, NewTopLevelVdev};

use super::events::PoolEvent;
use crate::autotrim::AutoTrim;
use crate::aux_devices::AuxDevices;
use crate::brt::BlockRefTable;
use crate::checkpoint_obsolete_maps::CheckpointAndObsoleteMaps;
use crate::dtls::StoredDtls;
use crate::keys::{Crypt, Encryption, KeyError, KeyStore};
use crate::labels::{self, Leaf};
use crate::space::SpaceMaps;
use crate::syncing::{SyncerState, TxgSync};
use crate::tx_admission::{DirtyLimits, PoolTxAdmission};
use crate::{Config, Engine, Host, Parts, allocation, multihost};
use devices::{Opened, open_all};
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_blocks::{Blocks, Tree, WritableEncodings};
use weir_cache::Cache;
use weir_codec::Salt;
use weir_dmu::ObjectSet;
use weir_dmu::dedup::Dedup;
use weir_dmu::live::{Policy, UnlimitedTxAdmission};
use weir_dmu::txg::TxgTracker;
use weir_dsl::props;
use weir_dsl::sync_tasks::{FileSystemSpec, needed_feature};
use weir_format::features::Feature;
use weir_format::{BlockPointer, Endian, NvList, ObjectId, ObjsetId, ObjsetKind, Txg, Uberblock, features};
use weir_machine::Machine;
use weir_pool::assemble::state;
use weir_pool::config::{Class, VdevConfig};
use weir_pool::error::PoolError;
use weir_pool::scan::Device;
use weir_pool::vdev_builder::{Facts, specs};

/// Default log2 of the sector size of new vdevs: 4 KiB.
const DEFAULT_ASHIFT: u64 = 12;
/// Prefixes that no pool name may have, because commands read such words as vdev types.
const RESERVED_PREFIXES: [&str; 4] = ["mirror", "raidz", "draid", "spare"];
/// Names that no pool may have, because commands read them as vdev types.
const RESERVED: [&str; 1] = ["log"];

/// The features that OpenZFS 2.2 enables in a new pool.
pub const DEFAULT_FEATURES: [&str; 39] = [
    "async_destroy",
    "empty_bpobj",
    "lz4_compress",
    "multi_vdev_crash_dump",
    "spacemap_histogram",
    "enabled_txg",
    "hole_birth",
    "extensible_dataset",
    "embedded_data",
    "bookmarks",
    "filesystem_limits",
    "large_blocks",
    "large_dnode",
    "sha512",
    "skein",
    "edonr",
    "userobj_accounting",
    "encryption",
    "project_quota",
    "device_removal",
    "obsolete_counts",
    "zpool_checkpoint",
    "spacemap_v2",
    "allocation_classes",
    "resilver_defer",
    "bookmark_v2",
    "redaction_bookmarks",
    "redacted_datasets",
    "bookmark_written",
    "log_spacemap",
    "livelist",
    "device_rebuild",
    "zstd_compress",
    "draid",
    "zilsaxattr",
    "head_errlog",
    "blake3",
    "block_cloning",
    "vdev_zaps_v2",
];

/// Options of creating a pool.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// The pool's name.
    pub name: String,
    /// The name until the pool is closed, which is not written to it.
    pub temporary_name: Option<String>,
    /// The top-level vdevs, in the order of their ids.
    pub tops: Vec<NewTopLevelVdev>,
    /// Cache devices.
    pub caches: Vec<NewLeaf>,
    /// Hot spares.
    pub spares: Vec<NewLeaf>,
    /// log2 of the sector size; `None` for the default.
    pub ashift: Option<u64>,
    /// Features to enable, by their short names.
    pub features: Vec<String>,
    /// The pool property `compatibility`.
    pub compatibility: Option<String>,
    /// The pool property `comment`.
    pub comment: Option<String>,
    /// Other pool properties, with their stored values.
    pub properties: Vec<(String, PoolValue)>,
    /// Properties of the root file system, with their stored values.
    pub root_properties: Vec<(String, props::Value)>,
    /// Attributes of the root file system that are fixed at creation.
    pub root: FileSystemSpec,
    /// Encryption of the root file system.
    pub encryption: Encryption,
    /// Use devices even if they appear to be in use.
    pub force: bool,
    /// The host that creates the pool.
    pub host: Host,
    /// The command, for the history.
    pub command: String,
    /// Size of the cache, in bytes.
    pub arc_bytes: u64,
    /// Limits of dirty data.
    pub dirty: DirtyLimits,
}

/// The value of a pool property.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum PoolValue {
    Number(u64),
    Text(String),
}

impl CreateOptions {
    /// Options for a pool on these vdevs with the default features.
    pub fn new(name: impl Into<String>, tops: Vec<NewTopLevelVdev>) -> Self {
        CreateOptions {
            name: name.into(),
            temporary_name: None,
            tops,
            caches: Vec::new(),
            spares: Vec::new(),
            ashift: None,
            features: DEFAULT_FEATURES.iter().map(|f| (*f).to_owned()).collect(),
            compatibility: None,
            comment: None,
            properties: Vec::new(),
            root_properties: Vec::new(),
            root: FileSystemSpec::default(),
            encryption: Encryption::default(),
            force: false,
            host: Host::default(),
            command: String::new(),
            arc_bytes: weir_pool::OpenOptions::ARC_BYTES,
            dirty: DirtyLimits::default(),
        }
    }

    /// The name of the pool until it is closed.
    pub(crate) fn open_name(&self) -> &str {
        self.temporary_name.as_deref().unwrap_or(&self.name)
    }

    /// Checks the options that can be checked without opening a device.
    ///
    /// # Errors
    /// [`PoolError::Refused`] with the reason; [`KeyError`] for invalid encryption options.
    pub fn check(&self) -> Result<(), PoolError> {
        check_pool_name(&self.name)?;
        self.temporary_name.as_deref().map_or(Ok(()), check_pool_name)?;
        for top in &self.tops {
            top.check()?;
        }
        if !self.tops.iter().any(|t| t.class == Class::Normal) {
            return Err(refused("a pool needs a vdev for its data"));
        }
        let enabled = |name: &str| self.features.iter().any(|f| f == name);
        if let Some(name) = self.features.iter().find(|f| features::by_name(f).is_none()) {
            return Err(refused(format!("there is no feature '{name}'")));
        }
        let large = (self.root.slots > 1).then_some(Feature::LARGE_DNODE);
        let mut needed =
            self.root_properties.iter().filter_map(|(name, value)| needed_feature(name, value)).chain(large);
        if let Some(feature) = needed.find(|feature| !enabled(feature.name)) {
            return Err(refused(format!("a property of the root file system needs feature@{}", feature.name)));
        }
        let classes = self.tops.iter().any(|t| matches!(t.class, Class::Special | Class::Dedup));
        if classes && !enabled("allocation_classes") {
            return Err(refused("special and dedup vdevs need feature@allocation_classes"));
        }
        if self.tops.iter().any(|t| matches!(t.layout, Layout::Draid(_))) && !enabled("draid") {
            return Err(refused("dRAID vdevs need feature@draid"));
        }
        match (self.encryption.crypt, &self.encryption.root) {
            (Crypt::With(_), None) => return Err(KeyError::NoFormat.into()),
            (Crypt::With(_), _) if !enabled("encryption") || !enabled("bookmark_v2") => {
                return Err(KeyError::NoFeature.into());
            }
            (Crypt::Inherit | Crypt::Off, Some(_)) => return Err(KeyError::Off.into()),
            _ => {}
        }
        let mut paths: Vec<_> = self.leaves().map(|l| &l.path).collect();
        paths.sort();
        match paths.windows(2).find(|pair| pair.first() == pair.last()) {
            Some([twice, ..]) => Err(refused(format!("{} is named twice", twice.display()))),
            _ => Ok(()),
        }
    }

    /// All devices: those of the top-level vdevs in order, then caches, then spares.
    fn leaves(&self) -> impl Iterator<Item = &NewLeaf> {
        self.tops.iter().flat_map(|t| &t.leaves).chain(&self.caches).chain(&self.spares)
    }
}

fn refused(what: impl Into<String>) -> PoolError {
    PoolError::Refused { what: what.into() }
}

/// Checks a pool's name.
///
/// # Errors
/// [`PoolError::Refused`] with the reason.
pub fn check_pool_name(name: &str) -> Result<(), PoolError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | ' ');
    let wrong = |why: &str| Err(refused(format!("'{name}' cannot be a pool's name: {why}")));
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return wrong("it must begin with a letter");
    }
    if !name.chars().all(allowed) {
        return wrong("only letters, digits, '-', '_', '.', ':' and spaces are allowed");
    }
    if name.len() > 247 {
        return wrong("it is too long");
    }
    if RESERVED.contains(&name) || RESERVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
        return wrong("it is reserved");
    }
    Ok(())
}

/// Creates a pool and opens it. When this returns, the pool is on stable storage.
///
/// # Errors
/// [`PoolError::Refused`] and [`PoolError::InUse`] before any device is written; errors of writing.
pub async fn create(machine: &Machine, options: &CreateOptions) -> Result<Arc<Engine>, PoolError> {
    options.check()?;
    let is_multihost = (multihost::PROPERTY.to_owned(), PoolValue::Number(1));
    if options.properties.contains(&is_multihost) {
        multihost::check_host(&options.host)?;
    }
    let opened = open_all(machine, options).await?;
    let (config, aux) = plan(machine, options, &opened)?;
    let leaves = leaves(&config, &opened)?;
    for leaf in &leaves {
        let top = config.tops().get(leaf.top).cloned().unwrap_or_default();
        let own = labels::find(&top, leaf.guid).cloned().unwrap_or_default();
        let mut list = config.label_list(&top, &own, Txg(0));
        list.set("create_txg", layout::INITIAL_TXG);
        labels::initialize(leaf, &list).await?;
    }
    aux.label(config.version).await?;
    let mut tree = config_tree(&config)?;
    // The configuration says of a log that it is one; a vdev's ZAP, which is not written yet, has the other classes.
    tree.children.iter_mut().zip(&options.tops).for_each(|(top, new)| top.class = new.class);
    let (engine, contents) = assemble(machine, options, config, leaves, &tree, aux)?;
    let first = engine.sync_task(move |syncing: &mut TxgSync<'_>| {
        Box::pin(async move {
            let done = contents.make(syncing).await;
            syncing.fail_txg_on_error(done)
        })
    });
    if let Err(error) = first.await {
        crate::ending::abandon(&engine).await;
        return Err(error);
    }
    engine.cache_devices().open(&mut BTreeMap::new()).await;
    engine.events.post(PoolEvent::PoolCreate, |_| {});
    Ok(engine)
}

/// Hot spares and cache devices: their nvlists and the devices for their labels.
#[derive(Default)]
pub(crate) struct Aux {
    pub spares: Vec<NvList>,
    pub caches: Vec<NvList>,
    leaves: Vec<(Leaf, NvList, u64)>,
}

impl Aux {
    async fn label(&self, version: u64) -> Result<(), PoolError> {
        for (leaf, list, state) in &self.leaves {
            labels::initialize_aux(leaf, version, list, *state).await?;
        }
        Ok(())
    }
}

/// The configuration of the new pool.
fn plan(machine: &Machine, options: &CreateOptions, opened: &[Opened]) -> Result<(Config, Aux), PoolError> {
    let entropy = &machine.entropy;
    let guid = layout::guid(entropy);
    let ashift = options.ashift.unwrap_or(DEFAULT_ASHIFT);
    let mut rest = opened;
    let mut tops = Vec::new();
    for (id, top) in options.tops.iter().enumerate() {
        let (own, others) = rest.split_at(top.leaves.len().min(rest.len()));
        let sizes: Vec<layout::Size> = own.iter().map(Opened::size).collect();
        tops.push(top.list(id as u64, &sizes, ashift, layout::INITIAL_TXG, entropy)?);
        rest = others;
    }
    let mut root = NvList::new();
    root.set("type", "root");
    root.set("id", 0u64);
    root.set("guid", guid);
    root.set("create_txg", layout::INITIAL_TXG);
    root.set("children", tops);
    let distributed: Vec<NvList> = root
        .get_list_array("children")
        .unwrap_or_default()
        .iter()
        .flat_map(|top| draid::spares_of(top, entropy))
        .collect();
    let mut aux = Aux::default();
    for (index, (leaf, opened)) in options.caches.iter().chain(&options.spares).zip(rest).enumerate() {
        let is_cache = index < options.caches.len();
        let list = leaf.aux_list(opened.size(), is_cache.then_some(ashift), entropy)?;
        let state = if is_cache { state::L2CACHE } else { state::SPARE };
        let own_ashift = list.get_u64("ashift").unwrap_or(ashift);
        let guid = list.get_u64("guid").unwrap_or(0);
        aux.leaves.push((opened.leaf(guid, 0, own_ashift, false), list.clone(), state));
        if is_cache { aux.caches.push(list) } else { aux.spares.push(list) }
    }
    aux.spares.extend(distributed);
    let mut config = Config::new(&options.name, guid, options.host.clone(), root);
    if let Some(name) = &options.temporary_name {
        config.stored_name = Some(std::mem::replace(&mut config.name, name.clone()));
    }
    config.aux = AuxDevices { spares: aux.spares.clone(), caches: aux.caches.clone() };
    config.comment.clone_from(&options.comment);
    config.compatibility.clone_from(&options.compatibility);
    Ok((config, aux))
}

fn config_tree(config: &Config) -> Result<VdevConfig, PoolError> {
    let decoded = VdevConfig::parse(&config.root);
    decoded.map_err(|source| PoolError::Decode { what: "the new pool's vdevs".into(), source })
}

/// The devices of the top-level vdevs, for their labels.
fn leaves(config: &Config, opened: &[Opened]) -> Result<Vec<Leaf>, PoolError> {
    let tree = config_tree(config)?;
    let mut out = Vec::new();
    for (index, top) in tree.children.iter().enumerate() {
        for leaf in top.leaves() {
            if let Some(opened) = opened.get(out.len()) {
                out.push(opened.leaf(leaf.guid, index, top.ashift, top.class == Class::Log));
            }
        }
    }
    Ok(out)
}

fn assemble(
    machine: &Machine,
    options: &CreateOptions,
    config: Config,
    leaves: Vec<Leaf>,
    tree: &VdevConfig,
    aux: Aux,
) -> Result<(Arc<Engine>, contents::Contents), PoolError> {
    let mut salt = [0; Salt::BYTES];
    machine.entropy.fill(&mut salt);
    let uberblock = Uberblock {
        endian: Endian::Little,
        version: config.version,
        txg: Txg(layout::INITIAL_TXG - 1),
        guid_sum: config.guid_sum(),
        timestamp_s: 0,
        root: BlockPointer::HOLE,
        software_version: config.version,
        mmp: None,
        checkpoint_txg: Txg(0),
        reflow: Default::default(),
    };
    let devices: BTreeMap<u64, Device> = leaves.iter().map(|leaf| (leaf.guid, devices::blank(leaf))).collect();
    let facts = Facts { devices: &devices, dtls: &BTreeMap::new(), uberblock: &uberblock, writing: true };
    let bad = |e: weir_blocks::TreeError| PoolError::Config { pool: config.name.clone(), what: e.to_string() };
    let blocks =
        Arc::new(Blocks::new(machine, Tree::new(specs(tree, &facts), &machine.clock).map_err(bad)?, Salt::new(salt)));
    allocation::set_empty(&blocks, tree)?;
    let has = |name: &str| options.features.iter().any(|f| f == name);
    let formats = WritableEncodings {
        lz4: has("lz4_compress"),
        embedded_data: has("embedded_data"),
        hole_birth: has("hole_birth"),
    };
    blocks.set_formats(formats).map_err(|error| PoolError::Refused { what: error.to_string() })?;
    let cache = Cache::new(machine.clone(), blocks.clone(), options.arc_bytes);
    let txgs = TxgTracker::new(uberblock.txg);
    let open = Arc::new(UnlimitedTxAdmission(txgs.clone()));
    let mos = ObjectSet::make(cache.clone(), ObjsetId::MOS, ObjsetKind::Meta, open, Policy::of_mos());
    let tops = allocation::Tops::of(tree);
    let space = allocation::source(&blocks, &tops);
    let context = allocation::context(machine, &config, &blocks, (space)());
    let gate = PoolTxAdmission::new(machine.clock.clone(), txgs, options.dirty, space, Dedup::new(mos.clone()));
    let core = SyncerState {
        config,
        config_dirty: true,
        leaves,
        maps: SpaceMaps::default(),
        uberblock,
        config_object: ObjectId(0),
        context,
        clones: BlockRefTable::default(),
        aside: CheckpointAndObsoleteMaps::default(),
        dtls: StoredDtls::default(),
        scrub_began: None,
        returns_scanned: 0,
        resilver_began: None,
        autotrim: AutoTrim::default(),
        limits: None,
        max_frees_per_txg: options.dirty.freed_blocks,
        max_copied_bytes_per_txg: options.dirty.copied_bytes,
        removal: None,
        expanding: None,
        frees_on: false,
        freeing: Default::default(),
        stuck: None,
        given_up: None,
        ended: false,
        opened: Vec::new(),
    };
    let contents = contents::Contents { options: options.clone(), salt, aux };
    let (machine, keys, read_only) = (machine.clone(), KeyStore::default(), None);
    let engine = Engine::start(Parts { machine, cache, mos, gate, keys, tops, read_only }, core);
    Ok((engine, contents))
}

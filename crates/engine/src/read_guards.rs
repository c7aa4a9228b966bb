//! Consistent read access to a writable pool: its DSL, and the whole pool in the form of a read-only import.
//!
//! Both are of the last synced txg ([`super::synced_state`]): the syncer goes on meanwhile, and delays only the reuse of the
//! blocks that the txg refers to.

use super::synced_state::SyncedState;
use super::{Synced, device_paths};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use weir_blocks::vdev::LeafHealth;
use weir_dsl::{Dsl, Scope};
use weir_format::dsl::pool as names;
use weir_machine::Request;
use weir_pool::assemble::{Assembly, assemble, state as pool_state};
use weir_pool::config::{PoolConfig, VdevConfig};
use weir_pool::error::PoolError;
use weir_pool::features::Features;
use weir_pool::mos::Mos;
use weir_pool::open::{OpenOptions, Pool, classes, load_keys};
use weir_pool::scan::{ScanOptions, scan_with};
use weir_pool::status::{self, States, VdevState};
use weir_pool::{capacity, space};

/// Time in which a device in service must answer a view's reads of its labels.
const LABELS_WITHIN: Duration = Duration::from_secs(2);

/// A pool's DSL as of a synced txg. The blocks of that txg are not reused while it is held.
pub struct DslReadGuard {
    dsl: Arc<Dsl>,
    _state: Option<Arc<SyncedState>>,
}

impl DslReadGuard {
    /// The DSL of a read-only pool.
    pub fn fixed(dsl: Arc<Dsl>) -> Self {
        DslReadGuard { dsl, _state: None }
    }
}

impl Deref for DslReadGuard {
    type Target = Dsl;

    fn deref(&self) -> &Dsl {
        &self.dsl
    }
}

/// A writable pool as of a synced txg. The blocks of that txg are not reused while it is held.
pub struct PoolSnapshotGuard {
    pool: Pool,
    _state: Arc<SyncedState>,
}

impl Deref for PoolSnapshotGuard {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        &self.pool
    }
}

impl Synced<'_> {
    /// The DSL as of the last txg, with all its directories.
    ///
    /// # Errors
    /// Errors of reading the MOS.
    pub async fn dsl(&self, rq: &Request) -> Result<DslReadGuard, PoolError> {
        let state = self.state(rq).await?;
        Ok(DslReadGuard { dsl: state.dsl(rq).await?, _state: Some(state) })
    }

    /// The DSL as of the last txg, with the directory of the dataset `name` and its ancestors alone ([`Scope::Path`]).
    ///
    /// # Errors
    /// Errors of reading the MOS.
    pub async fn dsl_of(&self, rq: &Request, name: &str) -> Result<DslReadGuard, PoolError> {
        self.dsl_in(rq, Scope::Path(name)).await
    }

    /// The DSL as of the last txg, with the directories in `scope` alone.
    ///
    /// # Errors
    /// Errors of reading the MOS.
    pub async fn dsl_in(&self, rq: &Request, scope: Scope<'_>) -> Result<DslReadGuard, PoolError> {
        if scope == Scope::All {
            return self.dsl(rq).await;
        }
        let state = self.state(rq).await?;
        let dsl = Dsl::read(rq, state.mos.clone(), &self.engine.name(), scope).await?;
        Ok(DslReadGuard { dsl, _state: Some(state) })
    }

    /// The pool as of its last txg, read through the engine's cache and devices.
    ///
    /// The states of the devices are those of the engine. The search paths in `options` are scanned for the labels that the
    /// devices have now. The labels of a device that is out of service, or does not answer within two seconds, are not in the view:
    /// it has to be there at all times.
    ///
    /// # Errors
    /// Errors of reading the MOS.
    pub async fn view(&self, options: &OpenOptions) -> Result<PoolSnapshotGuard, PoolError> {
        let rq = &Request::internal("view");
        let synced = self.state(rq).await?;
        let mos = Mos { set: synced.mos.clone() };
        let no_config = || PoolError::Config { pool: self.engine.name(), what: "its MOS has no configuration".into() };
        let config = mos.named(rq, names::CONFIG).await?.ok_or_else(no_config)?;
        let what = || format!("pool '{}': configuration in the MOS", self.engine.name());
        let config = PoolConfig::parse(mos.list(rq, config).await?);
        let mut config = config.map_err(|source| PoolError::Decode { what: what(), source })?;
        // It may be a temporary one.
        config.name = self.engine.name();
        let mut tree = config.vdev_tree()?;
        if self.engine.is_read_only() {
            // The MOS keeps the paths that it has.
            device_paths::copy(&mut tree, &self.engine.shown().config);
        }
        classes(rq, &mos, &mut tree).await;
        let (state, states) = self.vdev_states(&mut tree);
        let mut assembly = self.labels(options, &tree).await?;
        // None if all its files were removed: then the engine uses them through their open files.
        let found = assembly.pools.remove(&self.engine.shown().config.guid);
        let (mut label, devices) =
            found.map_or_else(|| (config.clone(), BTreeMap::new()), |found| (found.config, found.devices));
        if self.engine.is_read_only() {
            // It is in use, although its labels are as its export left them.
            label.state = pool_state::ACTIVE;
        }
        let dsl = synced.dsl(rq).await?;
        let (wrapping, mut loaded) = load_keys(rq, &dsl, &options.keys).await?;
        loaded.extend(dsl.dirs().into_iter().filter_map(|dir| Some((dir.id, self.engine.keys.of(Some(dir))?))));
        let space = space::load(rq, &mos, &tree).await?;
        let capacity = capacity::compute_space(rq, &mos, &tree, &space).await?;
        let uberblock = synced.uberblock.clone();
        let live_scan = self.engine.scrubs().live_counts(rq, &mos).await?;
        let pool = Pool {
            machine: self.engine.machine.clone(),
            config,
            label,
            tree,
            state,
            suspended: self.engine.devices().suspended_because().map(|why| why.to_string()),
            unlogged_errors: self.engine.lost_blocks.unlogged(),
            live_scan,
            states,
            newest_txg: uberblock.txg,
            uberblock,
            blocks: self.engine.cache.blocks().clone(),
            cache: self.engine.cache.clone(),
            features: Features::read(rq, &mos).await?,
            mos,
            devices,
            aux: assembly.aux,
            warnings: Vec::new(),
            altroot: self.engine.facts().altroot,
            read_only: self.engine.is_read_only(),
            cachefile: self.engine.cachefile.lock().clone(),
            dsl,
            loaded,
            wrapping,
            space,
            capacity,
        };
        Ok(PoolSnapshotGuard { pool, _state: synced })
    }

    /// The vdev tree with its states from memory: of a pool whose MOS cannot be read.
    ///
    /// # Errors
    /// [`PoolError::Decode`] if the configuration of the last txg has no vdev tree.
    pub fn vdevs_in_memory(&self) -> Result<(VdevConfig, VdevState, States), PoolError> {
        let what = || format!("pool '{}': vdev tree in memory", self.engine.name());
        let tree = VdevConfig::parse(&self.engine.shown().config.root);
        let mut tree = tree.map_err(|source| PoolError::Decode { what: what(), source })?;
        let (state, states) = self.vdev_states(&mut tree);
        Ok((tree, state, states))
    }

    /// Marks the leaves that are out of service; returns the states of the pool and of its vdevs.
    fn vdev_states(&self, tree: &mut VdevConfig) -> (VdevState, States) {
        let vdevs = self.engine.cache.blocks().tree();
        let health = vdevs.health();
        let of = |wanted: fn(&LeafHealth) -> bool| {
            health.iter().filter(|leaf| wanted(leaf)).map(|leaf| leaf.guid).collect::<BTreeSet<u64>>()
        };
        set_out_of_service(tree, &self.engine.devices().offline(), &of(|leaf| leaf.faulted));
        let in_use = of(|leaf| leaf.present);
        let gone = of(|leaf| leaf.gone);
        // The open file of a device whose path does not lead to it any more may still have its blocks, if the pool works.
        let without_gone = self.engine.devices().suspended_because().is_some();
        if without_gone {
            set_removed(tree, &gone);
        }
        let is_present = |guid| in_use.contains(&guid) && !(without_gone && gone.contains(&guid));
        let (mut state, mut states) = status::states(tree, &is_present, &vdevs.dtls());
        if !without_gone && status::mark_removed(tree, &gone, &mut states) {
            state = state.max(VdevState::Degraded);
        }
        (state, states)
    }

    /// The labels in the search paths of `options`, without those of the leaves that are faulted, which may never answer.
    async fn labels(&self, options: &OpenOptions, tree: &VdevConfig) -> Result<Assembly, PoolError> {
        let faulted = tree.leaves().into_iter().filter(|leaf| leaf.faulted).filter_map(|leaf| leaf.path.as_deref());
        let faulted: BTreeSet<PathBuf> = faulted.map(PathBuf::from).collect();
        let leaves_out = |path: &Path| faulted.contains(path);
        let limits = ScanOptions { leaves_out: Some(&leaves_out), patience: Some(LABELS_WITHIN), skips_absent: true };
        Ok(assemble(scan_with(&self.engine.machine, &options.search, &limits).await?))
    }
}

fn set_removed(vdev: &mut VdevConfig, gone: &BTreeSet<u64>) {
    vdev.removed |= vdev.is_leaf() && gone.contains(&vdev.guid);
    vdev.children.iter_mut().for_each(|child| set_removed(child, gone));
}

/// Marks the leaves that are out of service, also before that is in the configuration, and if it is not kept there.
fn set_out_of_service(vdev: &mut VdevConfig, offline: &BTreeSet<u64>, faulted: &BTreeSet<u64>) {
    vdev.offline |= vdev.is_leaf() && offline.contains(&vdev.guid);
    vdev.faulted |= vdev.is_leaf() && faulted.contains(&vdev.guid) && !vdev.offline;
    vdev.children.iter_mut().for_each(|child| set_out_of_service(child, offline, faulted));
}

//! The exports of a pool: its file systems and snapshots as one tree, its volumes and their snapshots as devices.

use crate::damaged::DamagedDatasets;
use crate::files::TreeFiles;
use crate::shares::{DatasetShares, FileShares, Shares, Sharing};
use crate::volumes::Volumes;
use futures_util::FutureExt;
use futures_util::lock::Mutex as AsyncMutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use weir_dsl::props::{DatasetKind, Property, Value, ZfsProp};
use weir_dsl::{Dsl, PoolFacts, Scope};
use weir_engine::{Changed, DslReadGuard, Engine};
use weir_files::tree::{Created, Export, FileFuture, Files, Opener, Tree};
use weir_files::{FileError, FileSystem};
use weir_front::shares::Names;
use weir_machine::{Accounts, Machine, Request};
use weir_pool::datasets::{DatasetInfo, datasets_in, datasets_of};
use weir_pool::{Pool, PoolError};
use weir_volumes::Volume;

/// A pool that is open read-only or writable.
#[derive(Clone, Debug)]
pub enum OpenPool {
    /// Open read-only.
    ReadOnly(Arc<Pool>),
    /// Open in an engine, for writing unless the engine is read-only.
    Engine(Arc<Engine>),
}

impl OpenPool {
    /// Name of the pool.
    pub fn name(&self) -> String {
        match self {
            OpenPool::ReadOnly(pool) => pool.name().to_owned(),
            OpenPool::Engine(engine) => engine.name(),
        }
    }

    /// GUID of the pool.
    pub fn guid(&self) -> u64 {
        match self {
            OpenPool::ReadOnly(pool) => pool.config.guid,
            OpenPool::Engine(engine) => engine.shown().config.guid,
        }
    }

    /// Accounts of the pool.
    pub fn accounts(&self) -> &Arc<Accounts> {
        match self {
            OpenPool::ReadOnly(pool) => pool.blocks.tree().accounts(),
            OpenPool::Engine(engine) => engine.cache.accounts(),
        }
    }

    /// Whether the pool is writable.
    pub fn is_writable(&self) -> bool {
        matches!(self, OpenPool::Engine(engine) if !engine.is_read_only())
    }

    /// Facts that properties depend on.
    pub(crate) fn facts(&self) -> PoolFacts {
        match self {
            OpenPool::ReadOnly(pool) => pool.facts(),
            OpenPool::Engine(engine) => engine.facts(),
        }
    }

    /// Datasets of the pool.
    pub(crate) async fn dsl(&self, rq: &Request) -> Result<DslReadGuard, PoolError> {
        match self {
            OpenPool::ReadOnly(pool) => Ok(DslReadGuard::fixed(pool.dsl.clone())),
            OpenPool::Engine(engine) => engine.synced().dsl(rq).await,
        }
    }

    /// Datasets with `sync=disabled`, on which a crash may lose data that clients consider stable.
    ///
    /// # Errors
    /// If the properties cannot be read.
    pub async fn with_sync_disabled(&self, rq: &Request) -> Result<Vec<String>, PoolError> {
        /// Stored value of `sync=disabled`.
        const DISABLED: u64 = 2;
        let dsl = self.dsl(rq).await?;
        if !self.is_writable() {
            return Ok(Vec::new());
        }
        let mut out = Vec::new();
        for info in datasets_of(rq, &dsl, false).await {
            let sync = stored(rq, &dsl, &info, ZfsProp::Sync.name()).await;
            if sync.is_some_and(|property| property.value == Value::Number(DISABLED)) {
                out.push(info.name);
            }
        }
        Ok(out)
    }

    /// Encrypted datasets whose keys are not loaded; none of a pool that is open read-only.
    ///
    /// # Errors
    /// If the datasets cannot be read.
    pub(crate) async fn without_key(&self, rq: &Request) -> Result<BTreeSet<String>, PoolError> {
        let OpenPool::Engine(engine) = self else { return Ok(BTreeSet::new()) };
        let dsl = engine.synced().dsl(rq).await?;
        let is_locked = |dir: &&weir_dsl::Dir| dir.crypto_key().is_some() && engine.keys.of(Some(dir)).is_none();
        Ok(dsl.dirs().into_iter().filter(is_locked).map(|dir| dir.name.clone()).collect())
    }

    /// The first file system on which this property is `off`; `None` for a pool that is open read-only.
    ///
    /// # Errors
    /// If the properties cannot be read.
    pub async fn first_with_off(&self, rq: &Request, property: &str) -> Result<Option<String>, PoolError> {
        let OpenPool::Engine(engine) = self else { return Ok(None) };
        let dsl = engine.synced().dsl(rq).await?;
        for info in datasets_of(rq, &dsl, false).await.iter().filter(|info| info.kind == DatasetKind::Filesystem) {
            let found = stored(rq, &dsl, info, property).await;
            if found.is_some_and(|found| found.value == Value::Number(0)) {
                return Ok(Some(info.name.clone()));
            }
        }
        Ok(None)
    }

    async fn file_system(&self, rq: &Request, name: &str) -> Result<Arc<FileSystem>, PoolError> {
        match self {
            OpenPool::ReadOnly(pool) => pool.file_system(rq, name).await,
            OpenPool::Engine(engine) => engine.file_system(rq, name).await,
        }
    }

    pub(crate) async fn volume(&self, rq: &Request, name: &str) -> Result<Arc<Volume>, PoolError> {
        match self {
            OpenPool::ReadOnly(pool) => {
                let objects = pool.object_set(rq, name).await?;
                let failed = |source| PoolError::Volume { name: name.to_owned(), source: Box::new(source) };
                Volume::open(rq, objects, name).await.map_err(failed)
            }
            OpenPool::Engine(engine) => engine.volume(rq, name).await,
        }
    }
}

/// A property of a dataset; `None` if it cannot be read, which [`Exports`] reports.
async fn stored(rq: &Request, dsl: &Dsl, info: &DatasetInfo, property: &str) -> Option<Property> {
    let dir = dsl.dir_named(&info.name)?;
    dsl.stored_property(rq, dir, info.kind, property).await.ok().flatten()
}

/// Opens file systems of a pool for the tree.
struct PoolOpener {
    pool: OpenPool,
    damaged: Arc<DamagedDatasets>,
}

impl PoolOpener {
    /// Opens the file system of an export, or says why it cannot be opened.
    async fn file_system(&self, rq: &Request, export: &Export) -> Result<Arc<FileSystem>, FileError> {
        match self.pool.file_system(rq, &export.name).await {
            Ok(files) if files.fsid() == export.id => Ok(files),
            // A new dataset has this name now.
            Ok(_) => Err(FileError::NotFound),
            Err(PoolError::File { source, .. }) => Err(*source),
            Err(PoolError::Object(source)) => Err(FileError::opening(source)),
            Err(other) => Err(FileError::Unsupported { what: other.to_string() }),
        }
    }
}

impl Opener for PoolOpener {
    fn open<'a>(&'a self, rq: &'a Request, export: &'a Export) -> FileFuture<'a, Arc<dyn Files>> {
        async move {
            let opened = self.file_system(rq, export).await;
            match &opened {
                Ok(_) => self.damaged.forget(&export.name),
                Err(why @ (FileError::Corrupt { .. } | FileError::Device { .. })) => {
                    self.damaged.note(&export.name, &why.to_string());
                }
                Err(_) => {}
            }
            opened.map(|files| files as Arc<dyn Files>)
        }
        .boxed()
    }

    fn created<'a>(&'a self, rq: &'a Request, export: &'a Export) -> FileFuture<'a, Created> {
        async move {
            let failed = |error: PoolError| FileError::Unsupported { what: error.to_string() };
            let dsl = self.pool.dsl(rq).await.map_err(failed)?;
            let found = dsl.find(rq, &export.name).await.map_err(|_| FileError::NotFound)?;
            Ok(Created { seconds: found.phys.creation_time_s, txg: found.phys.creation_txg.0 })
        }
        .boxed()
    }
}

/// File systems and volumes that a pool exports. [`Exports::renew`] rebuilds them after datasets are created,
/// destroyed or renamed, or share something else. At first nothing is shared ([`Exports::share`]).
pub struct Exports {
    /// The exported pool.
    pub pool: OpenPool,
    /// File systems and their snapshots, for mounts.
    pub tree: Arc<Tree>,
    /// The same, for the front ends on the network.
    pub files: Arc<TreeFiles>,
    /// Volumes and their snapshots.
    pub volumes: Arc<Volumes>,
    /// Shares of the datasets.
    pub shares: Shares,
    /// The rules of the file systems.
    pub file_shares: Arc<FileShares>,
    /// Datasets that are damaged and not served.
    pub damaged: Arc<DamagedDatasets>,
    /// Held while the exports are brought up to date.
    renewing: AsyncMutex<()>,
}

impl Exports {
    /// Builds the exports of a pool.
    ///
    /// # Errors
    /// If the datasets cannot be read.
    pub async fn open(rq: &Request, pool: &OpenPool) -> Result<Exports, PoolError> {
        if let OpenPool::Engine(engine) = pool {
            // What changed before is in the lists that are read now.
            engine.changed.take();
        }
        let damaged = Arc::<DamagedDatasets>::default();
        let all = datasets(rq, pool, &damaged).await?;
        let clock = match pool {
            OpenPool::ReadOnly(pool) => pool.machine.clock.clone(),
            OpenPool::Engine(engine) => engine.machine.clock.clone(),
        };
        let opener = PoolOpener { pool: pool.clone(), damaged: damaged.clone() };
        let tree = Tree::with_clock(Arc::new(opener), tree_exports(&all), clock);
        let tree = Arc::new(tree.with_accounts(pool.accounts()));
        let volumes = Arc::new(Volumes::new(pool.accounts()));
        volumes.renew(rq, pool, &all).await;
        let file_shares = Arc::<FileShares>::default();
        let files = Arc::new(TreeFiles::new(tree.clone(), pool.guid(), file_shares.clone()));
        let pool = pool.clone();
        let shares = Shares::default();
        let renewing = AsyncMutex::default();
        Ok(Exports { pool, tree, files, volumes, shares, file_shares, damaged, renewing })
    }

    /// Sets what decides what is shared, and applies it.
    ///
    /// # Errors
    /// If the datasets cannot be read.
    pub async fn share(&self, rq: &Request, sharing: Sharing) -> Result<(), PoolError> {
        let _one_at_a_time = self.renewing.lock().await;
        self.shares.set_sharing(sharing);
        let all = datasets(rq, &self.pool, &self.damaged).await?;
        self.shares.replace(None, self.shares.read(rq, &self.pool, &all).await?);
        self.apply();
        Ok(())
    }

    /// Names of the file systems and snapshots that are shared over NFS with any host, but of those that are damaged.
    pub fn file_system_names(&self) -> Vec<String> {
        let all = || self.tree.exports().into_iter().map(|export| export.name).collect();
        let mut names = self.file_shares.names().unwrap_or_else(all);
        let damaged = self.damaged.all();
        names.retain(|name| !damaged.contains_key(name));
        names
    }

    /// Properties of sharing and mounting of all file systems and volumes, whatever is shared, by name.
    ///
    /// # Errors
    /// If the datasets cannot be read.
    pub async fn dataset_shares(&self, rq: &Request) -> Result<BTreeMap<String, DatasetShares>, PoolError> {
        crate::shares::read(rq, &self.pool, &datasets(rq, &self.pool, &self.damaged).await?).await
    }

    /// Shares a file system that waits for a command (true), or does not although its properties say so (false), until the
    /// process ends.
    pub fn share_one(&self, id: u64, is_shared: bool) {
        self.shares.set_override(id, is_shared);
        self.apply();
    }

    /// Shares a file system that was just mounted, as its properties say; with `read_only`, clients of NFS and SMB change nothing
    /// either.
    pub fn share_mounted(&self, id: u64, read_only: bool) {
        self.shares.set_mounted(id, read_only);
        self.apply();
    }

    /// Shares the datasets at and below `top` as their properties say, also where `zfs unshare` ended it: their sharing was set. The
    /// next renewal applies it.
    pub fn share_again(&self, top: &str) {
        self.shares.share_again(top);
    }

    /// Applies what the datasets share to calls that begin from now on; clients of devices that are not shared any more are
    /// disconnected.
    fn apply(&self) {
        self.apply_rules();
        self.shares.tell_applied();
    }

    /// The first half of [`Exports::apply`]: those who configure targets and shares get their signal later.
    fn apply_rules(&self) {
        self.volumes.share(self.shares.applied(&self.file_shares));
    }

    /// Looks up the host names in the properties, and applies their addresses. Names that cannot be resolved have none.
    pub async fn resolve_names(&self, machine: &Machine) {
        let mut names = Names::new();
        let wanted = self.shares.host_names().borrow().clone();
        for name in wanted {
            match machine.net.resolve(&name).await {
                Ok(addresses) => drop(names.insert(name, addresses)),
                Err(error) => tracing::warn!(name, %error, "a host in a property of sharing has no access"),
            }
        }
        if self.shares.set_names(names) {
            self.apply();
        }
    }

    /// Brings the exports up to date with the datasets that have changed since the last call.
    ///
    /// # Errors
    /// If the datasets cannot be read; the next call tries again.
    pub async fn renew(&self, rq: &Request) -> Result<(), PoolError> {
        let OpenPool::Engine(engine) = &self.pool else { return Ok(()) };
        // One at a time: an older state must not replace a newer one.
        let _one_at_a_time = self.renewing.lock().await;
        let done = match engine.changed.take() {
            Changed::All => self.renew_all(rq).await,
            Changed::Below(tops) if tops.is_empty() => Ok(()),
            Changed::Below(tops) => self.renew_below(rq, engine, tops.into_iter().collect()).await,
        };
        if done.is_err() {
            engine.changed.note_all();
        }
        done
    }

    async fn renew_all(&self, rq: &Request) -> Result<(), PoolError> {
        let all = datasets(rq, &self.pool, &self.damaged).await?;
        self.damaged.retain(|name| all.iter().any(|dataset| dataset.name == name));
        // The rules first: a new file system has its rules when it appears in the tree.
        self.shares.replace(None, self.shares.read(rq, &self.pool, &all).await?);
        self.apply_rules();
        self.tree.renew(tree_exports(&all));
        self.volumes.renew(rq, &self.pool, &all).await;
        self.shares.tell_applied();
        Ok(())
    }

    async fn renew_below(&self, rq: &Request, engine: &Engine, tops: Vec<String>) -> Result<(), PoolError> {
        // By name, so that no dataset is listed twice.
        let mut found = BTreeMap::new();
        for top in &tops {
            let scope = Scope::Subtree(top);
            let dsl = engine.synced().dsl_in(rq, scope).await?;
            let below = datasets_in(rq, &dsl, scope, true).await;
            let whole = below.into_iter().filter(|dataset| !dataset.is_partial);
            found.extend(whole.map(|dataset| (dataset.name.clone(), dataset)));
        }
        let is_below = |name: &str| tops.iter().any(|top| Scope::Subtree(top).contains(name));
        self.damaged.retain(|name| !is_below(name) || found.contains_key(name));
        let found: Vec<DatasetInfo> = found.into_values().collect();
        note_damaged(rq, &*engine.synced().dsl(rq).await?, &found, &self.damaged).await;
        self.shares.replace(Some(&tops), self.shares.read(rq, &self.pool, &found).await?);
        self.apply_rules();
        self.tree.renew_below(&tops, tree_exports(&found));
        self.volumes.renew_below(rq, &self.pool, &tops, &found).await;
        self.shares.tell_applied();
        Ok(())
    }
}

async fn datasets(rq: &Request, pool: &OpenPool, damaged: &DamagedDatasets) -> Result<Vec<DatasetInfo>, PoolError> {
    let dsl = pool.dsl(rq).await?;
    let mut all = datasets_of(rq, &dsl, true).await;
    all.retain(|dataset| !dataset.is_partial);
    note_damaged(rq, &dsl, &all, damaged).await;
    Ok(all)
}

/// Records the file systems and volumes that cannot be read. They stay in the lists: their children are found through them.
async fn note_damaged(rq: &Request, dsl: &Dsl, all: &[DatasetInfo], damaged: &DamagedDatasets) {
    for dataset in all.iter().filter(|dataset| dataset.kind != DatasetKind::Snapshot) {
        let why = match &dataset.damage {
            Some(why) => Some(why.clone()),
            None => unreadable(rq, dsl, dataset).await,
        };
        if let Some(why) = why {
            damaged.note(&dataset.name, &why);
        }
    }
}

/// Why what describes a dataset cannot be read: its properties, and the first objects of its object set.
async fn unreadable(rq: &Request, dsl: &Dsl, dataset: &DatasetInfo) -> Option<String> {
    let dir = dsl.dir_named(&dataset.name)?;
    if let Err(error) = dsl.stored_chain(rq, dir).await {
        return Some(error.to_string());
    }
    let contents =
        async { dsl.check_contents(rq, &dsl.head(rq, dir).await?, dataset.kind == DatasetKind::Volume).await };
    contents.await.err().map(|error| error.to_string())
}

/// Selects file systems and their snapshots.
fn tree_exports(all: &[DatasetInfo]) -> Vec<Export> {
    let exported = all.iter().filter(|dataset| match dataset.kind {
        DatasetKind::Filesystem => true,
        DatasetKind::Snapshot => !dataset.of_volume,
        _ => false,
    });
    exported.map(|dataset| Export { name: dataset.name.clone(), id: dataset.fsid }).collect()
}

#[cfg(test)]
mod tests;

//! The exports of a pool: its file systems and snapshots as one tree, its volumes and their snapshots as devices.

use bytes::Bytes;
use futures_util::FutureExt;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_dsl::props::{DatasetKind, Value};
use weir_engine::{DslReadGuard, Engine};
use weir_files::tree::{Export, FileFuture, Files, Opener, Tree};
use weir_files::{FileError, FileSystem};
use weir_machine::{Accounts, Request};
use weir_nbd::device::{BlockExports, Device, DeviceFuture, Extent};
use weir_nbd::{DeviceError, ExportInfo, ExportList};
use weir_pool::datasets::{DatasetInfo, datasets_of};
use weir_pool::{Pool, PoolError};
use weir_volumes::{Attachment, Volume};

/// A pool that is open read-only or writable.
#[derive(Clone, Debug)]
pub enum OpenPool {
    /// Open read-only.
    ReadOnly(Arc<Pool>),
    /// Open for writing, with a running engine.
    Writable(Arc<Engine>),
}

impl OpenPool {
    /// Name of the pool.
    pub fn name(&self) -> String {
        match self {
            OpenPool::ReadOnly(pool) => pool.name().to_owned(),
            OpenPool::Writable(engine) => engine.name(),
        }
    }

    /// GUID of the pool.
    pub fn guid(&self) -> u64 {
        match self {
            OpenPool::ReadOnly(pool) => pool.config.guid,
            OpenPool::Writable(engine) => engine.shown().config.guid,
        }
    }

    /// Accounts of the pool.
    pub fn accounts(&self) -> &Arc<Accounts> {
        match self {
            OpenPool::ReadOnly(pool) => pool.blocks.tree().accounts(),
            OpenPool::Writable(engine) => engine.cache.accounts(),
        }
    }

    /// Whether the pool is writable.
    pub fn is_writable(&self) -> bool {
        matches!(self, OpenPool::Writable(_))
    }

    /// Datasets of the pool.
    pub(crate) async fn dsl(&self, rq: &Request) -> Result<DslReadGuard, PoolError> {
        match self {
            OpenPool::ReadOnly(pool) => Ok(DslReadGuard::fixed(pool.dsl.clone())),
            OpenPool::Writable(engine) => engine.dsl(rq).await,
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
        let facts = match self {
            OpenPool::ReadOnly(_) => return Ok(Vec::new()),
            OpenPool::Writable(engine) => engine.facts(),
        };
        let mut out = Vec::new();
        for info in datasets_of(rq, &dsl, false).await {
            let dataset = dsl.find(rq, &info.name).await?;
            let sync = dsl.property(rq, &dataset, &facts, "sync").await?;
            if sync.is_some_and(|property| property.value == Value::Number(DISABLED)) {
                out.push(info.name);
            }
        }
        Ok(out)
    }

    /// The first file system on which this property is `off`; `None` for a pool that is open read-only.
    ///
    /// # Errors
    /// If the properties cannot be read.
    pub async fn first_with_off(&self, rq: &Request, property: &str) -> Result<Option<String>, PoolError> {
        let OpenPool::Writable(engine) = self else { return Ok(None) };
        let dsl = engine.dsl(rq).await?;
        let facts = engine.facts();
        for info in datasets_of(rq, &dsl, false).await.iter().filter(|info| info.kind == DatasetKind::Filesystem) {
            let dataset = dsl.find(rq, &info.name).await?;
            let found = dsl.property(rq, &dataset, &facts, property).await?;
            if found.is_some_and(|found| found.value == Value::Number(0)) {
                return Ok(Some(info.name.clone()));
            }
        }
        Ok(None)
    }

    async fn file_system(&self, rq: &Request, name: &str) -> Result<Arc<FileSystem>, PoolError> {
        match self {
            OpenPool::ReadOnly(pool) => pool.file_system(rq, name).await,
            OpenPool::Writable(engine) => engine.file_system(rq, name).await,
        }
    }

    async fn volume(&self, rq: &Request, name: &str) -> Result<Arc<Volume>, PoolError> {
        match self {
            OpenPool::ReadOnly(pool) => {
                let objects = pool.object_set(rq, name).await?;
                let failed = |source| PoolError::Volume { name: name.to_owned(), source: Box::new(source) };
                Volume::open(rq, objects, name).await.map_err(failed)
            }
            OpenPool::Writable(engine) => engine.volume(rq, name).await,
        }
    }
}

/// Opens file systems of a pool for the tree.
struct PoolOpener(OpenPool);

impl Opener for PoolOpener {
    fn open<'a>(&'a self, rq: &'a Request, export: &'a Export) -> FileFuture<'a, Arc<dyn Files>> {
        async move {
            match self.0.file_system(rq, &export.name).await {
                Ok(files) if files.fsid() == export.id => Ok(files as Arc<dyn Files>),
                // A new dataset has this name now.
                Ok(_) => Err(FileError::NotFound),
                Err(PoolError::File { source, .. }) => Err(*source),
                Err(PoolError::Object(source)) => Err(FileError::opening(source)),
                Err(other) => Err(FileError::Unsupported { what: other.to_string() }),
            }
        }
        .boxed()
    }
}

/// File systems and volumes that a pool exports. [`Exports::renew`] rebuilds them after datasets are created,
/// destroyed or renamed.
pub struct Exports {
    /// The exported pool.
    pub pool: OpenPool,
    /// File systems and their snapshots.
    pub tree: Arc<Tree>,
    /// Volumes and their snapshots.
    pub volumes: Arc<Volumes>,
}

impl Exports {
    /// Builds the exports of a pool.
    ///
    /// # Errors
    /// If the datasets cannot be read.
    pub async fn open(rq: &Request, pool: &OpenPool) -> Result<Exports, PoolError> {
        let all = datasets(rq, pool).await?;
        let clock = match pool {
            OpenPool::ReadOnly(pool) => pool.machine.clock.clone(),
            OpenPool::Writable(engine) => engine.machine.clock.clone(),
        };
        let tree = Tree::with_clock(Arc::new(PoolOpener(pool.clone())), tree_exports(&all), clock);
        let tree = Arc::new(tree.with_accounts(pool.accounts()));
        let volumes = Arc::new(Volumes::default());
        volumes.renew(rq, pool, &all).await;
        Ok(Exports { pool: pool.clone(), tree, volumes })
    }

    /// Rebuilds the exports from the current datasets.
    ///
    /// # Errors
    /// If the datasets cannot be read.
    pub async fn renew(&self, rq: &Request) -> Result<(), PoolError> {
        let all = datasets(rq, &self.pool).await?;
        self.tree.renew(tree_exports(&all));
        self.volumes.renew(rq, &self.pool, &all).await;
        Ok(())
    }
}

async fn datasets(rq: &Request, pool: &OpenPool) -> Result<Vec<DatasetInfo>, PoolError> {
    Ok(datasets_of(rq, &*pool.dsl(rq).await?, true).await)
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

/// An exported volume.
#[derive(Clone)]
struct ExportedVolume {
    /// The dataset's `fsid_guid`.
    id: u64,
    volume: Arc<Volume>,
}

/// The volumes of a pool and their snapshots. They are opened in advance, because clients ask for sizes first.
#[derive(Default)]
pub struct Volumes(Mutex<BTreeMap<String, ExportedVolume>>);

impl Volumes {
    fn volumes(&self) -> MutexGuard<'_, BTreeMap<String, ExportedVolume>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Exports the volumes among `all`. A volume that cannot be opened (its key is not loaded, or it is damaged) is
    /// skipped and logged.
    async fn renew(&self, rq: &Request, pool: &OpenPool, all: &[DatasetInfo]) {
        let before = self.volumes().clone();
        let mut opened = BTreeMap::new();
        for dataset in all.iter().filter(|dataset| dataset.kind == DatasetKind::Volume || dataset.of_volume) {
            let known = before.get(&dataset.name).filter(|l| l.id == dataset.fsid && !l.volume.is_closed());
            let volume = match known {
                Some(volumes) => Ok(volumes.volume.clone()),
                None => pool.volume(rq, &dataset.name).await,
            };
            match volume {
                Ok(volume) => drop(opened.insert(dataset.name.clone(), ExportedVolume { id: dataset.fsid, volume })),
                Err(error) => tracing::warn!(name = dataset.name, %error, "volume is not exported"),
            }
        }
        *self.volumes() = opened;
    }

    /// Finds a volume; the empty name selects the only volume, if there is exactly one.
    fn named(&self, name: &str) -> Option<(String, Arc<Volume>)> {
        let all = self.volumes();
        let mut each = all.iter();
        let found = match (name, each.next(), each.next()) {
            ("", Some(only), None) => Some(only),
            (name, ..) => all.get_key_value(name),
        };
        found.map(|(name, volumes)| (name.clone(), volumes.volume.clone()))
    }
}

impl ExportList for Volumes {
    fn names(&self) -> Vec<String> {
        self.volumes().keys().cloned().collect()
    }

    fn find(&self, name: &str) -> Option<ExportInfo> {
        self.named(name).map(|(name, volume)| ExportInfo {
            name,
            size_bytes: volume.size_bytes(),
            block_bytes: volume.block_bytes(),
            writable: volume.is_writable(),
        })
    }
}

impl BlockExports for Volumes {
    fn open<'a>(&'a self, _: &'a Request, name: &'a str) -> DeviceFuture<'a, Arc<dyn Device>> {
        let attached = self.named(name).map(|(_, volume)| volume.attach());
        let attached = attached.filter(|attached| !attached.volume().is_closed());
        let found = attached.map(|attached| Arc::new(AttachedVolume(attached)) as Arc<dyn Device>);
        Box::pin(std::future::ready(found.ok_or_else(|| DeviceError::failed("no such volume"))))
    }
}

/// A volume with a connected client; the volume is busy meanwhile.
struct AttachedVolume(Attachment);

impl AttachedVolume {
    fn device(&self) -> &dyn Device {
        &**self.0.volume()
    }
}

impl Device for AttachedVolume {
    fn is_writable(&self) -> bool {
        self.device().is_writable()
    }

    fn write<'a>(&'a self, rq: &'a Request, offset: u64, bytes: Bytes) -> DeviceFuture<'a, ()> {
        self.device().write(rq, offset, bytes)
    }

    fn zero<'a>(&'a self, rq: &'a Request, offset: u64, len: u32) -> DeviceFuture<'a, ()> {
        self.device().zero(rq, offset, len)
    }

    fn flush<'a>(&'a self, rq: &'a Request) -> DeviceFuture<'a, ()> {
        self.device().flush(rq)
    }

    fn size_bytes(&self) -> u64 {
        self.device().size_bytes()
    }

    fn block_bytes(&self) -> u32 {
        self.device().block_bytes()
    }

    fn read<'a>(&'a self, rq: &'a Request, offset: u64, len: u32) -> DeviceFuture<'a, Bytes> {
        self.device().read(rq, offset, len)
    }

    fn extents<'a>(&'a self, rq: &'a Request, offset: u64, len: u32, max: usize) -> DeviceFuture<'a, Vec<Extent>> {
        self.device().extents(rq, offset, len, max)
    }
}

#[cfg(test)]
mod tests;

//! What a pool shows: its file systems and their snapshots as one tree, its volumes and theirs as devices.

use bytes::Bytes;
use futures_util::FutureExt;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_files::tree::{Answer, Files, Member, Opener, Tree};
use weir_files::{FileError, FileSystem};
use weir_machine::Request;
use weir_nbd::device::{Answer as DeviceAnswer, Device, Exports, Extent};
use weir_nbd::{DeviceError, Directory, ExportInfo};
use weir_objects::props::{DatasetKind, Value};
use weir_pool::datasets::{DatasetInfo, datasets_of};
use weir_pool::engine::{Datasets, Engine};
use weir_pool::{Pool, PoolError};
use weir_volumes::{Attachment, Volume};

/// A pool to be shown.
#[derive(Clone, Debug)]
pub enum Shown {
    /// Open for reading alone.
    Read(Arc<Pool>),
    /// Open for changes.
    Written(Arc<Engine>),
}

impl Shown {
    /// Its name.
    pub fn name(&self) -> String {
        match self {
            Shown::Read(pool) => pool.name().to_owned(),
            Shown::Written(engine) => engine.name(),
        }
    }

    /// Its GUID.
    pub fn guid(&self) -> u64 {
        match self {
            Shown::Read(pool) => pool.config.guid,
            Shown::Written(engine) => engine.shown().config.guid,
        }
    }

    /// Whether it takes changes.
    pub fn is_writable(&self) -> bool {
        matches!(self, Shown::Written(_))
    }

    /// Its datasets.
    pub(crate) async fn dsl(&self, rq: &Request) -> Result<Datasets, PoolError> {
        match self {
            Shown::Read(pool) => Ok(Datasets::fixed(pool.dsl.clone())),
            Shown::Written(engine) => engine.dsl(rq).await,
        }
    }

    /// The datasets whose property `sync` is `disabled`: what clients are told is stable there may be lost in a crash.
    ///
    /// # Errors
    /// What reading the properties meets.
    pub async fn unsynced(&self, rq: &Request) -> Result<Vec<String>, PoolError> {
        /// `sync=disabled`, as it is stored.
        const DISABLED: u64 = 2;
        let dsl = self.dsl(rq).await?;
        let facts = match self {
            Shown::Read(_) => return Ok(Vec::new()),
            Shown::Written(engine) => engine.facts(),
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

    /// The first file system whose property of that name is `off`. What is only read is not asked.
    ///
    /// # Errors
    /// What reading the properties meets.
    pub async fn off(&self, rq: &Request, property: &str) -> Result<Option<String>, PoolError> {
        let Shown::Written(engine) = self else { return Ok(None) };
        let (dsl, facts) = (engine.dsl(rq).await?, engine.facts());
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
            Shown::Read(pool) => pool.file_system(rq, name).await,
            Shown::Written(engine) => engine.file_system(rq, name).await,
        }
    }

    async fn volume(&self, rq: &Request, name: &str) -> Result<Arc<Volume>, PoolError> {
        match self {
            Shown::Read(pool) => {
                let objects = pool.object_set(rq, name).await?;
                let failed = |source| PoolError::Volume { name: name.to_owned(), source: Box::new(source) };
                Volume::open(rq, objects, name).await.map_err(failed)
            }
            Shown::Written(engine) => engine.volume(rq, name).await,
        }
    }
}

/// Opens file systems of a pool.
struct PoolOpener(Shown);

impl Opener for PoolOpener {
    fn open<'a>(&'a self, rq: &'a Request, member: &'a Member) -> Answer<'a, Arc<dyn Files>> {
        async move {
            match self.0.file_system(rq, &member.name).await {
                Ok(files) if files.fsid() == member.id => Ok(files as Arc<dyn Files>),
                // Another has the name by now.
                Ok(_) => Err(FileError::NotFound),
                Err(PoolError::File { source, .. }) => Err(*source),
                Err(PoolError::Object(source)) => Err(FileError::opening(source)),
                Err(other) => Err(FileError::Unsupported { what: other.to_string() }),
            }
        }
        .boxed()
    }
}

/// What all doors of a pool show: its tree, and its volumes. When data sets came, went or got other names, it is renewed,
/// and what clients see changes with it.
pub struct Front {
    /// The pool.
    pub pool: Shown,
    /// Its file systems and their snapshots.
    pub tree: Arc<Tree>,
    /// Its volumes and theirs.
    pub volumes: Arc<Volumes>,
}

impl Front {
    /// Opens what a pool shows.
    ///
    /// # Errors
    /// What reading its data sets meets.
    pub async fn open(rq: &Request, pool: &Shown) -> Result<Front, PoolError> {
        let all = datasets(rq, pool).await?;
        let clock = match pool {
            Shown::Read(pool) => pool.machine.clock.clone(),
            Shown::Written(engine) => engine.machine.clock.clone(),
        };
        let tree = Arc::new(Tree::with_clock(Arc::new(PoolOpener(pool.clone())), members(&all), clock));
        let volumes = Arc::new(Volumes::default());
        volumes.renew(rq, pool, &all).await;
        Ok(Front { pool: pool.clone(), tree, volumes })
    }

    /// Shows the data sets that there are now.
    ///
    /// # Errors
    /// What reading them meets.
    pub async fn renew(&self, rq: &Request) -> Result<(), PoolError> {
        let all = datasets(rq, &self.pool).await?;
        self.tree.renew(members(&all));
        self.volumes.renew(rq, &self.pool, &all).await;
        Ok(())
    }
}

async fn datasets(rq: &Request, pool: &Shown) -> Result<Vec<DatasetInfo>, PoolError> {
    Ok(datasets_of(rq, &*pool.dsl(rq).await?, true).await)
}

/// The file systems and their snapshots.
fn members(all: &[DatasetInfo]) -> Vec<Member> {
    let shown = all.iter().filter(|dataset| match dataset.kind {
        DatasetKind::Filesystem => true,
        DatasetKind::Snapshot => !dataset.of_volume,
        _ => false,
    });
    shown.map(|dataset| Member { name: dataset.name.clone(), id: dataset.fsid }).collect()
}

/// A volume that is served.
#[derive(Clone)]
struct Listed {
    /// The data set's `fsid_guid`.
    id: u64,
    volume: Arc<Volume>,
}

/// The volumes of a pool and their snapshots, opened: their sizes must be known before a client asks.
#[derive(Default)]
pub struct Volumes(Mutex<BTreeMap<String, Listed>>);

impl Volumes {
    fn listed(&self) -> MutexGuard<'_, BTreeMap<String, Listed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves those among `all`. One that can't be opened (its key is not loaded, or it is damaged) is left out, with a
    /// line in the log.
    async fn renew(&self, rq: &Request, pool: &Shown, all: &[DatasetInfo]) {
        let before = self.listed().clone();
        let mut opened = BTreeMap::new();
        for dataset in all.iter().filter(|dataset| dataset.kind == DatasetKind::Volume || dataset.of_volume) {
            let known = before.get(&dataset.name).filter(|l| l.id == dataset.fsid && !l.volume.is_closed());
            let volume = match known {
                Some(listed) => Ok(listed.volume.clone()),
                None => pool.volume(rq, &dataset.name).await,
            };
            match volume {
                Ok(volume) => drop(opened.insert(dataset.name.clone(), Listed { id: dataset.fsid, volume })),
                Err(error) => tracing::warn!(name = dataset.name, %error, "a volume is not served"),
            }
        }
        *self.listed() = opened;
    }

    /// The empty name means the only volume, where there is only one.
    fn named(&self, name: &str) -> Option<(String, Arc<Volume>)> {
        let all = self.listed();
        let mut each = all.iter();
        let found = match (name, each.next(), each.next()) {
            ("", Some(only), None) => Some(only),
            (name, ..) => all.get_key_value(name),
        };
        found.map(|(name, listed)| (name.clone(), listed.volume.clone()))
    }
}

impl Directory for Volumes {
    fn names(&self) -> Vec<String> {
        self.listed().keys().cloned().collect()
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

impl Exports for Volumes {
    fn open<'a>(&'a self, _: &'a Request, name: &'a str) -> DeviceAnswer<'a, Arc<dyn Device>> {
        let attached = self.named(name).map(|(_, volume)| volume.attach());
        let attached = attached.filter(|attached| !attached.volume().is_closed());
        let found = attached.map(|attached| Arc::new(Attached(attached)) as Arc<dyn Device>);
        Box::pin(std::future::ready(found.ok_or_else(|| DeviceError::failed("no such volume"))))
    }
}

/// A volume that a client uses: it is busy for as long.
struct Attached(Attachment);

impl Attached {
    fn device(&self) -> &dyn Device {
        &**self.0.volume()
    }
}

impl Device for Attached {
    fn is_writable(&self) -> bool {
        self.device().is_writable()
    }

    fn write<'a>(&'a self, rq: &'a Request, offset: u64, bytes: Bytes) -> DeviceAnswer<'a, ()> {
        self.device().write(rq, offset, bytes)
    }

    fn zero<'a>(&'a self, rq: &'a Request, offset: u64, len: u32) -> DeviceAnswer<'a, ()> {
        self.device().zero(rq, offset, len)
    }

    fn flush<'a>(&'a self, rq: &'a Request) -> DeviceAnswer<'a, ()> {
        self.device().flush(rq)
    }

    fn size_bytes(&self) -> u64 {
        self.device().size_bytes()
    }

    fn block_bytes(&self) -> u32 {
        self.device().block_bytes()
    }

    fn read<'a>(&'a self, rq: &'a Request, offset: u64, len: u32) -> DeviceAnswer<'a, Bytes> {
        self.device().read(rq, offset, len)
    }

    fn extents<'a>(&'a self, rq: &'a Request, offset: u64, len: u32, max: usize) -> DeviceAnswer<'a, Vec<Extent>> {
        self.device().extents(rq, offset, len, max)
    }
}

#[cfg(test)]
mod tests;

//! What a pool shows: its file systems and their snapshots as one tree, its volumes and theirs as devices.

use futures_util::FutureExt;
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_files::tree::{Answer, Files, Member, Opener, Tree};
use weir_files::{FileError, FileSystem};
use weir_machine::Request;
use weir_nbd::device::{Answer as DeviceAnswer, Device, Exports};
use weir_nbd::{DeviceError, Directory, ExportInfo};
use weir_objects::dsl::Dsl;
use weir_objects::props::{DatasetKind, Value};
use weir_pool::datasets::datasets_of;
use weir_pool::engine::Engine;
use weir_pool::{Pool, PoolError};
use weir_volumes::Volume;

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
    pub(crate) async fn dsl(&self, rq: &Request) -> Result<Arc<Dsl>, PoolError> {
        match self {
            Shown::Read(pool) => Ok(pool.dsl.clone()),
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
    fn open<'a>(&'a self, rq: &'a Request, name: &'a str) -> Answer<'a, Arc<dyn Files>> {
        async move {
            match self.0.file_system(rq, name).await {
                Ok(files) => Ok(files as Arc<dyn Files>),
                Err(PoolError::File { source, .. }) => Err(*source),
                Err(PoolError::Object(source)) => Err(FileError::opening(source)),
                Err(other) => Err(FileError::Unsupported { what: other.to_string() }),
            }
        }
        .boxed()
    }
}

/// The tree of all file systems and snapshots of a pool.
pub async fn tree(rq: &Request, pool: &Shown) -> Result<Tree, PoolError> {
    let datasets = datasets_of(rq, &*pool.dsl(rq).await?, true).await;
    let shown = datasets.into_iter().filter(|dataset| match dataset.kind {
        DatasetKind::Filesystem => true,
        DatasetKind::Snapshot => !dataset.of_volume,
        _ => false,
    });
    let members = shown.map(|dataset| Member { name: dataset.name, id: dataset.id.0 }).collect();
    Ok(Tree::new(Arc::new(PoolOpener(pool.clone())), members))
}

/// The volumes of a pool and their snapshots, opened: their sizes must be known before a client asks.
pub struct Volumes(BTreeMap<String, Arc<Volume>>);

impl Volumes {
    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

/// Opens the volumes of a pool. One that can't be opened (its key is not loaded, or it is damaged) is left out, with a
/// line in the log.
pub async fn volumes(rq: &Request, pool: &Shown) -> Result<Volumes, PoolError> {
    let mut opened = BTreeMap::new();
    for dataset in datasets_of(rq, &*pool.dsl(rq).await?, true).await {
        if dataset.kind != DatasetKind::Volume && !dataset.of_volume {
            continue;
        }
        match pool.volume(rq, &dataset.name).await {
            Ok(volume) => drop(opened.insert(dataset.name, volume)),
            Err(error) => tracing::warn!(name = dataset.name, %error, "a volume is not served"),
        }
    }
    Ok(Volumes(opened))
}

impl Directory for Volumes {
    fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    /// The empty name means the only volume, where there is only one.
    fn find(&self, name: &str) -> Option<ExportInfo> {
        let mut all = self.0.iter();
        let found = match (name, all.next(), all.next()) {
            ("", Some(only), None) => Some(only),
            (name, ..) => self.0.get_key_value(name),
        };
        found.map(|(name, volume)| ExportInfo {
            name: name.clone(),
            size_bytes: volume.size_bytes(),
            block_bytes: volume.block_bytes(),
            writable: weir_nbd::Device::is_writable(&**volume),
        })
    }
}

impl Exports for Volumes {
    fn open<'a>(&'a self, _: &'a Request, name: &'a str) -> DeviceAnswer<'a, Arc<dyn Device>> {
        let found = self.0.get(name).map(|volume| Arc::clone(volume) as Arc<dyn Device>);
        Box::pin(std::future::ready(found.ok_or_else(|| DeviceError::failed("no such volume"))))
    }
}

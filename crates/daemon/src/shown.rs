//! What a pool shows: its file systems and their snapshots as one tree, its volumes and theirs as devices.

use futures_util::FutureExt;
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_files::FileError;
use weir_files::tree::{Answer, Files, Member, Opener, Tree};
use weir_machine::Request;
use weir_nbd::device::{Answer as DeviceAnswer, Device, Exports};
use weir_nbd::{DeviceError, Directory, ExportInfo};
use weir_objects::props::DatasetKind;
use weir_pool::{Pool, PoolError};
use weir_volumes::Volume;

/// Opens file systems of a pool.
struct PoolOpener(Arc<Pool>);

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
pub async fn tree(rq: &Request, pool: &Arc<Pool>) -> Result<Tree, PoolError> {
    let datasets = pool.datasets(rq, true).await?;
    let shown = datasets.into_iter().filter(|dataset| match dataset.kind {
        DatasetKind::Filesystem => true,
        DatasetKind::Snapshot => !dataset.of_volume,
        _ => false,
    });
    let members = shown.map(|dataset| Member { name: dataset.name, id: dataset.id.0 }).collect();
    Ok(Tree::new(Arc::new(PoolOpener(Arc::clone(pool))), members))
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
pub async fn volumes(rq: &Request, pool: &Arc<Pool>) -> Result<Volumes, PoolError> {
    let mut opened = BTreeMap::new();
    for dataset in pool.datasets(rq, true).await? {
        if dataset.kind != DatasetKind::Volume && !dataset.of_volume {
            continue;
        }
        let objects = match pool.object_set(rq, &dataset.name).await {
            Ok(objects) => objects,
            Err(error) => {
                tracing::warn!(name = dataset.name, %error, "a volume is not served");
                continue;
            }
        };
        match Volume::open(rq, objects, &dataset.name).await {
            Ok(volume) => drop(opened.insert(dataset.name, volume)),
            Err(error) => tracing::warn!(%error, "a volume is not served"),
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

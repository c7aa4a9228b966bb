//! Opens a pool's datasets by name, with the given keys.

use crate::error::PoolError;
use crate::features::Features;
use crate::mos::Mos;
use crate::open::Pool;
use std::collections::BTreeSet;
use std::sync::Arc;
use weir_dmu::ObjectSet;
use weir_dsl::props::{DatasetKind, Value, ZfsProp};
use weir_dsl::redaction::redaction_of;
use weir_dsl::{Dataset, Dir, Dsl, MountedFileSystems, PoolFacts, Scope};
use weir_files::{FileSystem, Identity, Snapdir};
use weir_format::features::Feature;
use weir_format::{DslDataset, ObjsetId, ObjsetKind};
use weir_machine::Request;

/// A dataset in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetInfo {
    /// Full name.
    pub name: String,
    /// Object set of the dataset. After its destruction another one may get the number.
    pub id: ObjsetId,
    /// `fsid_guid` of the dataset, 56 random bits: no other dataset ever has it.
    pub fsid: u64,
    /// Kind of the dataset.
    pub kind: DatasetKind,
    /// Whether a snapshot is one of a volume.
    pub of_volume: bool,
    /// Whether clients cannot use it: a part of it was received, or it is hidden, or the blocks of a volume are redacted.
    pub is_partial: bool,
    /// Whether it lacks blocks that its stream left out: a file system is then mounted by `zfs mount -f` only.
    pub is_redacted: bool,
    /// Why its object set cannot be read. The kind of such a dataset is that of its newest readable snapshot, or taken for a
    /// file system.
    pub damage: Option<String>,
}

/// Lists all file systems, volumes and, if requested, snapshots. A dataset follows its parent; the snapshots of a dataset
/// follow it, oldest first. Datasets whose entries in the MOS cannot be read are logged and left out.
pub async fn datasets_of(rq: &Request, dsl: &Dsl, snapshots: bool) -> Vec<DatasetInfo> {
    datasets_in(rq, dsl, Scope::All, snapshots).await
}

/// Lists the datasets in `scope`, as [`datasets_of`] does.
pub async fn datasets_in(rq: &Request, dsl: &Dsl, scope: Scope<'_>, snapshots: bool) -> Vec<DatasetInfo> {
    let mut out = Vec::new();
    // Reading the fields of each dataset would take long in pools with many snapshots.
    let any_redacted = match Features::read(rq, &Mos { set: dsl.mos().clone() }).await {
        Ok(features) => features.count(Feature::REDACTED_DATASETS.guid).is_some_and(|count| count > 0),
        Err(_) => true,
    };
    for dir in dsl.dirs().into_iter().filter(|dir| scope.contains(&dir.name)) {
        let info = dataset_infos(rq, dsl, dir, (snapshots, any_redacted)).await;
        match info {
            Ok(infos) => out.extend(infos),
            Err(error) => tracing::warn!(name = dir.name, %error, "cannot read a dataset"),
        }
    }
    out
}

async fn dataset_infos(
    rq: &Request,
    dsl: &Dsl,
    dir: &Dir,
    (snapshots, any_redacted): (bool, bool),
) -> Result<Vec<DatasetInfo>, PoolError> {
    let head = dsl.head(rq, dir).await?;
    let (of_volume, damage) = match dsl.kind(rq, dir).await {
        Ok(kind) => (kind == ObjsetKind::Zvol, None),
        Err(error) => (is_volume_by_snapshots(rq, dsl, dir).await?, Some(error.to_string())),
    };
    let kind = if of_volume { DatasetKind::Volume } else { DatasetKind::Filesystem };
    let id = head.objset();
    let fsid = head.phys.fsid_guid;
    let is_redacted = any_redacted && redaction_of(dsl, rq, &head).await?.is_some();
    let is_partial =
        head.phys.flags & DslDataset::INCONSISTENT != 0 || weir_dsl::is_hidden(&dir.name) || is_redacted && of_volume;
    let of_head =
        DatasetInfo { name: dir.name.clone(), id, fsid, kind, of_volume: false, is_partial, is_redacted, damage };
    let mut out = vec![of_head];
    if snapshots {
        for s in &dsl.snapshots(rq, dir).await?.snapshots {
            let kind = DatasetKind::Snapshot;
            let fsid = s.phys.fsid_guid;
            let (name, id) = (s.name.clone(), s.objset());
            let is_redacted = any_redacted && redaction_of(dsl, rq, s).await?.is_some();
            let is_partial = is_redacted && of_volume;
            out.push(DatasetInfo { name, id, fsid, kind, of_volume, is_partial, is_redacted, damage: None });
        }
    }
    Ok(out)
}

/// Whether the newest readable snapshot of a dataset is one of a volume.
async fn is_volume_by_snapshots(rq: &Request, dsl: &Dsl, dir: &Dir) -> Result<bool, PoolError> {
    for snapshot in dsl.snapshots(rq, dir).await?.snapshots.iter().rev() {
        if let Ok(set) = dsl.open_set(rq, snapshot, None).await {
            return Ok(set.kind() == ObjsetKind::Zvol);
        }
    }
    Ok(false)
}

impl Pool {
    /// Lists the pool's datasets, as [`datasets_of`] does. Those whose object sets cannot be read are logged and left out.
    pub async fn datasets(&self, rq: &Request, snapshots: bool) -> Result<Vec<DatasetInfo>, PoolError> {
        let mut all = datasets_of(rq, &self.dsl, snapshots).await;
        all.retain(|dataset| {
            if let Some(why) = &dataset.damage {
                tracing::warn!(name = dataset.name, error = why, "cannot read a dataset");
            }
            dataset.damage.is_none()
        });
        Ok(all)
    }

    /// Returns a dataset by its full name.
    pub async fn dataset(&self, rq: &Request, name: &str) -> Result<Dataset, PoolError> {
        Ok(self.dsl.find(rq, name).await?)
    }

    /// Opens the object set of a dataset, with its key if one was given.
    pub async fn object_set(&self, rq: &Request, name: &str) -> Result<Arc<ObjectSet>, PoolError> {
        let dataset = self.dataset(rq, name).await?;
        let key = self.loaded.get(&dataset.dir).cloned();
        Ok(self.dsl.open_set(rq, &dataset, key).await?)
    }

    /// Opens a file system or a snapshot of one.
    pub async fn file_system(&self, rq: &Request, name: &str) -> Result<Arc<FileSystem>, PoolError> {
        let dataset = self.dataset(rq, name).await?;
        let key = self.loaded.get(&dataset.dir).cloned();
        let set = self.dsl.open_set(rq, &dataset, key).await?;
        let identity = self.identity(rq, &dataset).await?;
        let opened = FileSystem::open(rq, set, identity).await;
        opened.map_err(|source| PoolError::File { name: name.to_owned(), source: Box::new(source) })
    }

    /// Identity of a file system, which is not in its own objects.
    async fn identity(&self, rq: &Request, dataset: &Dataset) -> Result<Identity, PoolError> {
        let facts = self.facts();
        let mut numbers = [0u64; 3];
        for (number, prop) in numbers.iter_mut().zip([ZfsProp::Available, ZfsProp::LongName, ZfsProp::SnapDir]) {
            let found = self.dsl.property(rq, dataset, &facts, prop.name()).await?;
            *number = match found.map(|p| p.value) {
                Some(Value::Number(n)) => n,
                _ => 0,
            };
        }
        let [available_bytes, long_names, snapdir] = numbers;
        Ok(Identity {
            name: dataset.name.clone(),
            fsid: dataset.phys.fsid_guid,
            is_snapshot: dataset.is_snapshot(),
            referenced_bytes: dataset.phys.referenced_bytes,
            available_bytes,
            long_names: long_names != 0,
            snapdir: Snapdir::from_number(snapdir),
        })
    }

    /// Facts about the pool that datasets need.
    pub fn facts(&self) -> PoolFacts {
        let loaded_keys: BTreeSet<_> = self.loaded.keys().filter_map(|dir| self.dsl.dir(*dir)?.crypto_key()).collect();
        PoolFacts {
            usable_bytes: self.capacity.usable_bytes,
            altroot: self.altroot.clone(),
            loaded_keys,
            mounted: MountedFileSystems::default(),
        }
    }
}

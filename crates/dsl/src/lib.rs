//! Datasets (OpenZFS `module/zfs/dsl_dir.c`, `dsl_dataset.c`, `dsl_prop.c`): the tree of file systems and volumes, their
//! snapshots, and their properties.
//!
//! ```text
//!   MOS object 1 ─ root_dataset ─► Dir pool ──── children ─► Dir pool/a ─► …
//!                                     │ head                      │ head
//!                                  Dataset pool ─ names ─►     Dataset pool/a ─ snapshot names ─► Dataset pool/a@s
//! ```
//!
//! [`Dsl::open`] reads the tree of directories once: a [`Dsl`] reads one state of the pool, which does not change. A caller
//! that needs one dataset reads its directory and the ancestors alone ([`Scope::Path`]).
//! Snapshots and property ZAPs are read at the first call, all of a directory together, and remembered.
//!
//! Invariants: every directory is visited once (a cycle is an error of the branch that contains it); names come from the
//! parents' ZAPs alone. The mutex is held during look-ups only, never across an await.
//!
//! Failures: a directory or snapshot that cannot be read is listed in [`Dsl::damaged`] or in the list's `damaged`.
//! Only its descendants become unavailable with it.

pub mod bookmarks;
pub mod bpobj;
pub mod deadlist;
pub mod dedup_sync;
mod directories;
pub mod fuzz;
pub mod history;
pub mod keys;
pub mod livelist;
mod properties;
pub mod props;
pub mod raw_key;
pub mod redaction;
pub mod resume;
mod snapshots;
pub mod space;
pub mod sync_tasks;

pub use bookmarks::NamedBookmark;
pub use directories::Scope;
pub use history::HistoryRecord;
pub use keys::{KeyFormat, KeySpec, SetKey};
pub use properties::{MountedFileSystems, PoolFacts};
pub use raw_key::RawKey;
pub use resume::{ResumeState, StreamForms};
pub use snapshots::SnapshotList;
pub use weir_dmu::accounting::{Account, Accounts, Domains, QuotaKind, QuotaPrincipal};

use crate::directories::Directories;
use crate::props::Stored;
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_blocks::CacheClass;
use weir_codec::crypt::DatasetKey;
use weir_dmu::error::ObjectError;
use weir_dmu::object_set::{ObjectSet, Opening};
use weir_dmu::zap::{self, Zap};
use weir_format::dsl::dir_field;
use weir_format::{DslDataset, DslDir, ObjectId, ObjectType, ObjsetId, ObjsetKind};
use weir_machine::Request;
use weir_machine::lock::{Mutex, MutexGuard, order};

/// Maximum accepted length of a dataset's name, in bytes. Above OpenZFS's limit, because a pool that was imported under
/// a longer name may contain names that could not be created now.
const MAX_NAME_LEN: usize = 1024;
/// Maximum number of directories on the way to the root: each name takes at least one letter and a slash.
const MAX_DEPTH: usize = MAX_NAME_LEN / 2;
/// Maximum accepted number of children of a directory, snapshots of a dataset, or entries of another ZAP of the MOS.
const MAX_ENTRIES: usize = 1 << 24;

/// How names of a dataset's snapshots and bookmarks are compared: ignoring case if its file names are
/// (`dsl_dataset_snap_lookup`).
pub(crate) fn matching(phys: &DslDataset) -> zap::Match {
    match phys.flags & DslDataset::CASE_INSENSITIVE {
        0 => zap::Match::Exact,
        _ => zap::Match::Normalized,
    }
}

/// Whether a dataset of this name, or one above it, is a temporary one, which users do not see: `%recv`, `%rollback`.
pub fn is_hidden(name: &str) -> bool {
    name.split('/').any(|part| part.starts_with('%'))
}

/// A DSL directory: a file system or volume with its snapshots, properties and limits.
#[derive(Clone, Debug)]
pub struct Dir {
    /// Object number in the MOS.
    pub id: ObjectId,
    /// Full name.
    pub name: String,
    /// Contents of the directory's bonus area.
    pub phys: DslDir,
    /// Child directories that were read, sorted by name.
    pub children: Vec<ObjectId>,
    /// Further fields, if the object is a ZAP as well: counts, encryption key, and so on.
    pub fields: BTreeMap<String, u64>,
}

impl Dir {
    /// The object that holds the wrapped key, if the dataset is encrypted.
    pub fn crypto_key(&self) -> Option<ObjectId> {
        self.fields.get(dir_field::CRYPTO_KEY_OBJ).map(|id| ObjectId(*id))
    }
}

/// A head or a snapshot.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// Object number in the MOS; also the number of the dataset's object set.
    pub id: ObjectId,
    /// Full name, `pool/a` or `pool/a@s`.
    pub name: String,
    /// DSL directory of the dataset.
    pub dir: ObjectId,
    /// Contents of the dataset's bonus area.
    pub phys: DslDataset,
    /// Whether the dataset's object is a ZAP as well.
    pub extensible: bool,
}

impl Dataset {
    /// The part of the name after `@`.
    pub fn snapshot_name(&self) -> Option<&str> {
        self.name.split_once('@').map(|(_, snapshot)| snapshot)
    }

    /// Whether the dataset is a snapshot.
    pub fn is_snapshot(&self) -> bool {
        self.snapshot_name().is_some()
    }

    /// The number of the dataset's object set.
    pub fn objset(&self) -> ObjsetId {
        ObjsetId(self.id.0)
    }
}

#[derive(Default)]
struct DatasetMemo {
    snapshots: BTreeMap<ObjectId, Arc<SnapshotList>>,
    stored: BTreeMap<ObjectId, Arc<Stored>>,
    kinds: BTreeMap<ObjectId, ObjsetKind>,
}

/// The datasets of a pool.
pub struct Dsl {
    mos: Arc<ObjectSet>,
    directories: Directories,
    remembered: Mutex<DatasetMemo, { order::DATASET_MEMO }>,
}

impl Dsl {
    /// Reads all directories from a pool's MOS.
    ///
    /// # Errors
    /// Errors of finding and reading the root directory.
    pub async fn open(rq: &Request, mos: Arc<ObjectSet>, pool_name: &str) -> Result<Arc<Self>, ObjectError> {
        Self::read(rq, mos, pool_name, Scope::All).await
    }

    /// Reads the directories in `scope`. The others are missing from all lists and look-ups.
    ///
    /// # Errors
    /// Errors of finding and reading the root directory.
    pub async fn read(
        rq: &Request,
        mos: Arc<ObjectSet>,
        pool_name: &str,
        scope: Scope<'_>,
    ) -> Result<Arc<Self>, ObjectError> {
        let directories = Directories::read(rq, &mos, pool_name, scope).await?;
        Ok(Arc::new(Dsl { mos, directories, remembered: Mutex::default() }))
    }

    /// The MOS.
    pub fn mos(&self) -> &Arc<ObjectSet> {
        &self.mos
    }

    /// The root directory.
    pub fn root(&self) -> Option<&Dir> {
        self.dir(self.directories.root)
    }

    /// A directory by its object.
    pub fn dir(&self, id: ObjectId) -> Option<&Dir> {
        self.directories.dirs.get(&id)
    }

    /// A directory by its full name.
    pub fn dir_named(&self, name: &str) -> Option<&Dir> {
        self.dir(*self.directories.names.get(name)?)
    }

    /// The full names of a directory's children, sorted, also of those that were not read; without internal and hidden ones.
    ///
    /// # Errors
    /// Errors of reading the ZAP of the children.
    pub async fn child_names(&self, rq: &Request, dir: &Dir) -> Result<Vec<String>, ObjectError> {
        let children = directories::children_of(rq, &self.mos, dir.phys.children).await?;
        let names = children.into_iter().map(|(_, name)| format!("{}/{name}", dir.name));
        Ok(names.filter(|name| !is_hidden(name)).collect())
    }

    /// All directories that were read, a parent before its children, children by name.
    pub fn dirs(&self) -> Vec<&Dir> {
        let mut out = Vec::with_capacity(self.directories.dirs.len());
        let mut to_list = vec![self.directories.root];
        while let Some(dir) = to_list.pop().and_then(|id| self.dir(id)) {
            to_list.extend(dir.children.iter().rev().filter(|id| self.directories.dirs.contains_key(id)));
            out.push(dir);
        }
        out
    }

    /// The directories that users see: all but those below a hidden one ([`is_hidden`]).
    pub fn visible_dirs(&self) -> Vec<&Dir> {
        self.dirs().into_iter().filter(|dir| !is_hidden(&dir.name)).collect()
    }

    /// Directories that could not be read, with the reason.
    pub fn damaged(&self) -> &[(String, ObjectError)] {
        &self.directories.damaged
    }

    fn remembered(&self) -> MutexGuard<'_, DatasetMemo> {
        self.remembered.lock()
    }

    /// The live dataset of a directory.
    pub async fn head(&self, rq: &Request, dir: &Dir) -> Result<Dataset, ObjectError> {
        self.dataset(rq, dir.phys.head_dataset, dir.name.clone()).await
    }

    /// A dataset by its full name.
    pub async fn find(&self, rq: &Request, name: &str) -> Result<Dataset, ObjectError> {
        let (of, snapshot) = name.split_once('@').map_or((name, None), |(of, snapshot)| (of, Some(snapshot)));
        let absent = || ObjectError::NoName { what: "dataset", name: name.to_owned() };
        let dir = self.dir_named(of).ok_or_else(absent)?;
        let head = self.head(rq, dir).await?;
        let Some(snapshot) = snapshot else { return Ok(head) };
        if head.phys.snapshot_names.0 == 0 {
            return Err(absent());
        }
        let names = Zap::open(rq, &self.mos, head.phys.snapshot_names).await?;
        let found = names.lookup(rq, snapshot.as_bytes(), matching(&head.phys)).await?;
        let id = found.and_then(|value| value.first()).ok_or_else(absent)?;
        self.dataset(rq, ObjectId(id), name.to_owned()).await
    }

    /// The dataset in object `id`. The caller knows its full name.
    pub async fn dataset(&self, rq: &Request, id: ObjectId, name: String) -> Result<Dataset, ObjectError> {
        let object = self.mos.object(rq, id).await?;
        let place = self.mos.place(id, 0, 0);
        if object.dnode.bonus_type != ObjectType::DSL_DATASET {
            return Err(ObjectError::Corrupt { place, why: "not a dataset" });
        }
        let phys = DslDataset::decode(object.dnode.bonus(), object.dnode.endian);
        let phys = phys.map_err(|e| ObjectError::decode(place, e))?;
        Ok(Dataset { id, name, dir: phys.dir, phys, extensible: object.dnode.object_type.is_zap() })
    }

    /// The fields of a dataset whose object is a ZAP as well: features, receive state, bookmarks.
    pub async fn dataset_fields(
        &self,
        rq: &Request,
        dataset: &Dataset,
    ) -> Result<BTreeMap<String, zap::Value>, ObjectError> {
        if !dataset.extensible {
            return Ok(BTreeMap::new());
        }
        let entries = Zap::open(rq, &self.mos, dataset.id).await?.all(rq, MAX_ENTRIES).await?;
        Ok(entries.into_iter().map(|e| (e.key.text(), e.value)).collect())
    }

    /// Opens the dataset's object set, with its key if it is encrypted and the key is loaded.
    pub async fn open_set(
        &self,
        rq: &Request,
        dataset: &Dataset,
        key: Option<Arc<DatasetKey>>,
    ) -> Result<Arc<ObjectSet>, ObjectError> {
        let dir = self.dir(dataset.dir);
        let cache = match dir {
            Some(dir) => self.cache_class(rq, dir).await?,
            None => CacheClass::All,
        };
        let opening = Opening { id: dataset.objset(), key, cache, raw: None };
        let set = ObjectSet::open(rq, self.mos.cache().clone(), dataset.phys.pointer, opening).await?;
        if let Some(dir) = dir {
            set.set_secondary_class(self.secondary_class(rq, dir).await?);
            set.set_prefetch_class(self.prefetch_class(rq, dir).await?);
        }
        Ok(set)
    }

    /// The kind of a directory's dataset, read from its head's object set and remembered.
    pub async fn kind(&self, rq: &Request, dir: &Dir) -> Result<ObjsetKind, ObjectError> {
        if let Some(kind) = self.remembered().kinds.get(&dir.id) {
            return Ok(*kind);
        }
        let head = self.head(rq, dir).await?;
        let opening = Opening { id: head.objset(), ..Opening::default() };
        let set = ObjectSet::open(rq, self.mos.cache().clone(), head.phys.pointer, opening).await?;
        self.remembered().kinds.insert(dir.id, set.kind());
        Ok(set.kind())
    }

    /// Whether `later` descends from the snapshot `earlier`, of which the directory and the creation txg are looked at
    /// (`dsl_dataset_is_before`).
    ///
    /// # Errors
    /// Errors of reading the origins of clones.
    pub async fn is_before(&self, rq: &Request, later: &Dataset, earlier: &Dataset) -> Result<bool, ObjectError> {
        let mut later = later.clone();
        let born = earlier.phys.creation_txg;
        // Each step goes to an older origin; a malformed one that is not older ends the loop.
        loop {
            if later.is_snapshot() && born >= later.phys.creation_txg {
                return Ok(false);
            }
            if later.dir == earlier.dir {
                return Ok(true);
            }
            let origin = self.dir(later.dir).map_or(later.phys.prev_snapshot, |dir| dir.phys.origin);
            if origin.0 == 0 {
                return Ok(false);
            }
            if origin == earlier.id {
                return Ok(true);
            }
            let limit = later.phys.creation_txg;
            later = self.dataset(rq, origin, "origin@".to_owned()).await?;
            if (later.dir, later.phys.creation_txg) == (earlier.dir, born) {
                // A bookmark of the origin.
                return Ok(true);
            }
            if later.phys.creation_txg >= limit {
                return Ok(false);
            }
        }
    }
}

//! Datasets (OpenZFS `module/zfs/dsl_dir.c`, `dsl_dataset.c`, `dsl_prop.c`): the tree of file systems and volumes, their
//! snapshots, and what is known of each.
//!
//! ```text
//!   MOS object 1 ─ root_dataset ─► Dir pool ──── children ─► Dir pool/a ─► …
//!                                     │ head                      │ head
//!                                  Dataset pool ─ names ─►     Dataset pool/a ─ snapshot names ─► Dataset pool/a@s
//! ```
//!
//! [`Dsl::open`] reads the tree of directories once, each one once: a pool that is read never changes. Snapshots and
//! property ZAPs are read when they are first asked for, a directory's all at once, and remembered.
//!
//! Invariants: every directory is visited once (a tree that leads back into itself is an error for the branch that does);
//! names come from the way down, never from what an object says of itself. The mutexes are held for a look-up alone.
//!
//! What fails: a directory or snapshot that cannot be read is listed in [`Dsl::damaged`] or in the list's `damaged`; it
//! takes nothing else with it but what is below it.

mod bookmarks;
pub mod bpobj;
pub mod deadlist;
pub mod dedup_sync;
pub mod fuzz;
mod history;
mod keys;
pub mod livelist;
mod properties;
pub mod props;
mod snapshots;
mod space;
pub mod sync_tasks;

pub use bookmarks::NamedBookmark;
pub use history::HistoryRecord;
pub use keys::{KeyFormat, KeySpec, SetKey};
pub use properties::PoolFacts;
pub use snapshots::SnapshotList;
pub use weir_dmu::accounting::{Account, Accounts, Domains, QuotaKind, QuotaPrincipal};

use crate::props::Stored;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_blocks::CacheClass;
use weir_codec::crypt::DatasetKey;
use weir_dmu::error::ObjectError;
use weir_dmu::object_set::{ObjectSet, Opening};
use weir_dmu::zap::{self, Zap};
use weir_format::dsl::{dir_field, pool};
use weir_format::{DslDataset, DslDir, ObjectId, ObjectType, ObjsetId, ObjsetKind};
use weir_machine::Request;

/// Longest name of a dataset that is believed, in bytes: a pool of another name may have made one longer than it could be
/// given.
const MAX_NAME_LEN: usize = 1024;
/// Deepest chain of directories that is followed upwards: each has a name of one letter and a slash at least.
const MAX_DEPTH: usize = MAX_NAME_LEN / 2;
/// Most entries of one directory of datasets, or snapshots of one dataset, that are believed.
const MOST: usize = 1 << 24;

/// How the names of a dataset's snapshots and bookmarks are looked for: without case if those of its files are
/// (`dsl_dataset_snap_lookup`).
pub(crate) fn matching(phys: &DslDataset) -> zap::Match {
    match phys.flags & DslDataset::CASE_INSENSITIVE {
        0 => zap::Match::Exact,
        _ => zap::Match::Normalized,
    }
}

/// A directory of the tree: a file system or volume with all that belongs to it.
#[derive(Clone, Debug)]
pub struct Dir {
    /// Its object in the MOS.
    pub id: ObjectId,
    /// Full name.
    pub name: String,
    /// What stands in its object.
    pub phys: DslDir,
    /// The directories below, by name.
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
    /// Its object in the MOS; also the number of its object set.
    pub id: ObjectId,
    /// Full name, `pool/a` or `pool/a@s`.
    pub name: String,
    /// Its directory.
    pub dir: ObjectId,
    /// What stands in its object.
    pub phys: DslDataset,
    /// Its object is a ZAP as well.
    pub extensible: bool,
}

impl Dataset {
    /// The part of the name after `@`.
    pub fn snapshot_name(&self) -> Option<&str> {
        self.name.split_once('@').map(|(_, snapshot)| snapshot)
    }

    /// Whether it is a snapshot.
    pub fn is_snapshot(&self) -> bool {
        self.snapshot_name().is_some()
    }

    /// The number of its object set.
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
    root: ObjectId,
    dirs: BTreeMap<ObjectId, Dir>,
    names: BTreeMap<String, ObjectId>,
    damaged: Vec<(String, ObjectError)>,
    remembered: Mutex<DatasetMemo>,
}

impl Dsl {
    /// Reads the tree of datasets of the pool whose MOS this is.
    pub async fn open(rq: &Request, mos: Arc<ObjectSet>, pool_name: &str) -> Result<Arc<Self>, ObjectError> {
        let root = zap::lookup_word(rq, &mos, ObjectId(pool::DIRECTORY_OBJECT), pool::ROOT_DATASET).await?;
        let missing = ObjectError::NoName { what: "MOS directory entry", name: pool::ROOT_DATASET.into() };
        let root = ObjectId(root.ok_or(missing)?);
        let (mut dirs, mut names, mut damaged) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        let mut seen = BTreeSet::from([root]);
        let mut to_read = vec![(root, pool_name.to_owned())];
        while let Some((id, name)) = to_read.pop() {
            match read_dir(rq, &mos, id, &name).await {
                Ok((mut dir, children)) => {
                    for (child, below) in children {
                        let why = match (seen.insert(child), name.len() + 1 + below.len() <= MAX_NAME_LEN) {
                            (true, true) => {
                                dir.children.push(child);
                                to_read.push((child, format!("{name}/{below}")));
                                continue;
                            }
                            (false, _) => "the directory stands in the tree twice",
                            (true, false) => "the directory stands deeper than any name can lead",
                        };
                        let place = mos.place(child, 0, 0);
                        damaged.push((format!("{name}/{below}"), ObjectError::Corrupt { place, why }));
                    }
                    names.insert(name, id);
                    dirs.insert(id, dir);
                }
                Err(error) if id == root => return Err(error),
                Err(error) => damaged.push((name, error)),
            }
        }
        Ok(Arc::new(Dsl { mos, root, dirs, names, damaged, remembered: Mutex::default() }))
    }

    /// The MOS.
    pub fn mos(&self) -> &Arc<ObjectSet> {
        &self.mos
    }

    /// The root directory.
    pub fn root(&self) -> Option<&Dir> {
        self.dirs.get(&self.root)
    }

    /// A directory by its object.
    pub fn dir(&self, id: ObjectId) -> Option<&Dir> {
        self.dirs.get(&id)
    }

    /// A directory by its full name.
    pub fn dir_named(&self, name: &str) -> Option<&Dir> {
        self.dirs.get(self.names.get(name)?)
    }

    /// All directories, a parent before its children, children by name.
    pub fn dirs(&self) -> Vec<&Dir> {
        let mut out = Vec::with_capacity(self.dirs.len());
        let mut to_list = vec![self.root];
        while let Some(dir) = to_list.pop().and_then(|id| self.dirs.get(&id)) {
            to_list.extend(dir.children.iter().rev().filter(|id| self.dirs.contains_key(id)));
            out.push(dir);
        }
        out
    }

    /// Directories that could not be read, with the reason.
    pub fn damaged(&self) -> &[(String, ObjectError)] {
        &self.damaged
    }

    fn remembered(&self) -> MutexGuard<'_, DatasetMemo> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// The dataset in object `id`, which is known to be called `name`.
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
        let entries = Zap::open(rq, &self.mos, dataset.id).await?.all(rq, MOST).await?;
        Ok(entries.into_iter().map(|e| (e.key.text(), e.value)).collect())
    }

    /// Opens the dataset's object set, with its key if it is encrypted and the key is at hand.
    pub async fn open_set(
        &self,
        rq: &Request,
        dataset: &Dataset,
        key: Option<Arc<DatasetKey>>,
    ) -> Result<Arc<ObjectSet>, ObjectError> {
        let cache = match self.dir(dataset.dir) {
            Some(dir) => self.cache_class(rq, dir).await?,
            None => CacheClass::All,
        };
        let opening = Opening { id: dataset.objset(), key, cache };
        ObjectSet::open(rq, self.mos.cache().clone(), dataset.phys.pointer, opening).await
    }

    /// What kind of dataset the directory holds: its head's object set is looked into, once.
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
}

/// A directory, and the objects and names of those below.
async fn read_dir(
    rq: &Request,
    mos: &Arc<ObjectSet>,
    id: ObjectId,
    name: &str,
) -> Result<(Dir, Vec<(ObjectId, String)>), ObjectError> {
    let object = mos.object(rq, id).await?;
    let place = mos.place(id, 0, 0);
    if object.dnode.bonus_type != ObjectType::DSL_DIR {
        return Err(ObjectError::Corrupt { place, why: "not a directory of datasets" });
    }
    let phys = DslDir::decode(object.dnode.bonus(), object.dnode.endian).map_err(|e| ObjectError::decode(place, e))?;
    let mut fields = BTreeMap::new();
    if object.dnode.object_type.is_zap() {
        for entry in Zap::of(rq, mos, object).await?.all(rq, MOST).await? {
            fields.insert(entry.key.text(), entry.value.first().unwrap_or(0));
        }
    }
    let mut children = Vec::new();
    if phys.children.0 != 0 {
        for entry in Zap::open(rq, mos, phys.children).await?.all(rq, MOST).await? {
            let below = entry.key.text();
            // Names with `$` are ZFS's own: $MOS, $FREE, $ORIGIN, $LEAK.
            if let Some(child) = entry.value.first().filter(|_| !below.starts_with('$')) {
                children.push((ObjectId(child), below));
            }
        }
        children.sort_unstable_by(|a, b| a.1.cmp(&b.1));
    }
    Ok((Dir { id, name: name.to_owned(), phys, children: Vec::new(), fields }, children))
}

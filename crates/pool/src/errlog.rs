//! The persistent error log: blocks that are lost, as found by readers and by the last scrub.
//!
//! ```text
//!   MOS directory ─ errlog_last, errlog_scrub ─► ZAP   "objset:object:level:block"                      (the old form)
//!                                                ZAP   head dataset ─► ZAP "object:level:block:birth"  (`head_errlog`)
//! ```
//!
//! The old form names the object set in which the block was found. The form by head dataset names the block by its birth, so
//! that each file system, snapshot and clone that has this block can be found, and an entry whose block no one has any more is
//! not counted ([`AffectedSets`]). Whether that is so is not known for blocks without a birth, and in datasets that cannot be
//! read: the entry counts then for the head dataset.
//!
//! An object is shown by its path, found by following parents from the object to the root; an object without a path, by
//! its numbers. Source: OpenZFS `module/zfs/spa_errlog.c` (`process_error_block`, `check_filesystem`),
//! `lib/libzfs/libzfs_pool.c` (`zpool_obj_to_path`).

use crate::error::PoolError;
use crate::mos::{MAX_ENTRIES, Mos};
use crate::open::Pool;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use weir_blocks::fault_observer::Bookmark;
use weir_dmu::zap::Entry;
use weir_dmu::{ErrorLocation, ObjectError, ObjectSet, Zap};
use weir_dsl::props::Value as PropertyValue;
use weir_dsl::{Dataset, Dsl, MountedFileSystems, SetKey};
use weir_files::FileSystem;
use weir_format::dsl::pool as names;
use weir_format::records::ErrorName;
use weir_format::{BlockPointer, ObjectId, ObjsetId, Txg};
use weir_machine::Request;

/// Feature that keeps the log by dataset.
const HEAD_ERRLOG: &str = "com.delphix:head_errlog";
/// Maximum number of components of a path.
const MAX_DEPTH: usize = 4096;
/// Number of entries of a log that are read at once.
const MAX_CONCURRENT_READS: usize = 1024;
/// Maximum number of blocks that are looked up in datasets, over all entries; beyond it, entries count for their head dataset.
const MAX_LOOKUPS: usize = 20_000;
/// Object sets that are kept open for that.
const MAX_OPEN_SETS: usize = 64;

/// Permanent errors of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Errors {
    /// Number of lost blocks; one that several datasets have counts for each of them.
    pub count: u64,
    /// Error of reading a part of the log.
    pub lost: Option<ObjectError>,
    /// Dataset and object of each error, without duplicates.
    objects: BTreeSet<(u64, u64)>,
}

/// Reads the error log, and adds the errors that it does not have yet.
pub async fn errors(pool: &Pool, rq: &Request) -> Result<Errors, PoolError> {
    let by_head = pool.features.count(HEAD_ERRLOG).is_some();
    let logged = Logged::read(rq, &pool.mos, by_head).await?;
    let mut out = Errors { lost: logged.lost, ..Errors::default() };
    let mut found: BTreeSet<(u64, ErrorName)> = logged.entries.iter().map(|entry| (entry.head, entry.name)).collect();
    for (at, birth) in &pool.unlogged_errors {
        found.insert(unlogged(pool, rq, by_head, at, *birth).await);
    }
    let mut affected = AffectedSets::new(&pool.dsl, &pool.loaded, pool.blocks.tree().is_writable());
    for (head, name) in found {
        match name {
            ErrorName::Bookmark { objset, object, .. } => out.add(objset, object),
            ErrorName::InHead { object, level, block, birth } => {
                let block = LostBlock { object: ObjectId(object), level, block, birth: Txg(birth) };
                affected.of(rq, head, &block).await.into_iter().for_each(|set| out.add(set.objset, object));
            }
        }
    }
    Ok(out)
}

/// The entries of the error log.
#[derive(Debug, Default)]
pub struct Logged {
    /// The entries that can be decoded.
    pub entries: Vec<LoggedError>,
    /// Error of reading a part of the log.
    pub lost: Option<ObjectError>,
}

/// An entry of the error log, and where it is.
#[derive(Clone, Debug)]
pub struct LoggedError {
    /// Name of the log in the directory of the MOS.
    pub log: &'static str,
    /// The ZAP that has the entry: the log, or what it has for a head dataset.
    pub zap: ObjectId,
    /// Key of the entry there.
    pub key: String,
    /// Object set of the head dataset under which the log lists the entry (feature `head_errlog`); 0 in a log without that feature.
    head: u64,
    name: ErrorName,
}

impl Logged {
    /// Reads the error log.
    ///
    /// # Errors
    /// If the directory of the MOS cannot be read.
    pub async fn read(rq: &Request, mos: &Mos, by_head: bool) -> Result<Self, PoolError> {
        let mut out = Logged::default();
        for log in [names::ERRLOG_LAST, names::ERRLOG_SCRUB] {
            let Some(id) = mos.named(rq, log).await? else { continue };
            for entry in out.zap(rq, mos, id).await {
                if !by_head {
                    out.add(log, id, 0, &entry);
                    continue;
                }
                let head = u64::from_str_radix(&entry.key.text(), 16);
                let (Ok(head), Some(inner)) = (head, entry.value.first()) else { continue };
                for entry in out.zap(rq, mos, ObjectId(inner)).await {
                    out.add(log, ObjectId(inner), head, &entry);
                }
            }
        }
        Ok(out)
    }

    /// Returns the entries of a ZAP; none if it cannot be read, which is recorded.
    async fn zap(&mut self, rq: &Request, mos: &Mos, id: ObjectId) -> Vec<Entry> {
        let read = async { Zap::open(rq, &mos.set, id).await?.all(rq, MAX_ENTRIES).await };
        read.await.unwrap_or_else(|error| {
            self.lost = Some(error);
            Vec::new()
        })
    }

    fn add(&mut self, log: &'static str, zap: ObjectId, head: u64, entry: &Entry) {
        let key = entry.key.text();
        if let Some(name) = ErrorName::parse(&key, head != 0) {
            self.entries.push(LoggedError { log, zap, key, head, name });
        }
    }
}

impl LoggedError {
    /// The places at which datasets have the block; none if no dataset has it any more.
    pub async fn places(&self, rq: &Request, sets: &mut AffectedSets<'_>) -> Vec<LostPlace> {
        match self.name {
            ErrorName::InHead { object, level, block, birth } => {
                let block = LostBlock { object: ObjectId(object), level, block, birth: Txg(birth) };
                sets.of(rq, self.head, &block).await
            }
            ErrorName::Bookmark { objset, object, level, block } => {
                let block = LostBlock { object: ObjectId(object), level, block, birth: Txg(0) };
                match sets.look_up(rq, objset, &block).await {
                    BlockFound::It(pointer) => vec![LostPlace { objset, pointer: Some(pointer) }],
                    BlockFound::Other(_) => Vec::new(),
                    BlockFound::Unknown => vec![LostPlace { objset, pointer: None }],
                }
            }
        }
    }

    /// The bookmark of the block in an object set.
    pub fn bookmark(&self, objset: u64) -> Bookmark {
        let (ErrorName::InHead { object, level, block, .. } | ErrorName::Bookmark { object, level, block, .. }) =
            self.name;
        Bookmark { objset: ObjsetId(objset), object, level, block }
    }
}

/// A dataset that has, or may have, a lost block.
#[derive(Clone, Debug)]
pub struct LostPlace {
    /// The object set of the dataset.
    pub objset: u64,
    /// The pointer to the block; `None` if it cannot be found.
    pub pointer: Option<BlockPointer>,
}

/// The entry that an error will have in the log.
async fn unlogged(pool: &Pool, rq: &Request, by_head: bool, at: &Bookmark, birth: Txg) -> (u64, ErrorName) {
    let Bookmark { objset, object, level, block } = *at;
    if !by_head {
        return (0, ErrorName::Bookmark { objset: objset.0, object, level, block });
    }
    let dataset = pool.dsl.dataset(rq, ObjectId(objset.0), String::new()).await.ok();
    let head = dataset.and_then(|dataset| pool.dsl.dir(dataset.dir)).map_or(objset.0, |dir| dir.phys.head_dataset.0);
    (head, ErrorName::InHead { object, level, block, birth: birth.0 })
}

/// A block that an entry names.
#[derive(Clone, Copy)]
struct LostBlock {
    object: ObjectId,
    level: i64,
    block: u64,
    birth: Txg,
}

/// The block that a dataset has at the place of a lost block.
enum BlockFound {
    /// The lost block.
    It(BlockPointer),
    /// A block of that birth, or none (0).
    Other(Txg),
    /// That cannot be read.
    Unknown,
}

/// Finds the datasets that have a lost block: file systems, volumes, their snapshots, and clones.
pub struct AffectedSets<'a> {
    dsl: &'a Dsl,
    loaded: &'a BTreeMap<ObjectId, SetKey>,
    /// Whether the pool is open for writing.
    is_writable: bool,
    sets: BTreeMap<u64, Option<Arc<ObjectSet>>>,
    lookups: usize,
}

impl<'a> AffectedSets<'a> {
    /// Looks in the datasets of a pool, of which these keys are loaded.
    pub fn new(dsl: &'a Dsl, loaded: &'a BTreeMap<ObjectId, SetKey>, is_writable: bool) -> Self {
        AffectedSets { dsl, loaded, is_writable, sets: BTreeMap::new(), lookups: 0 }
    }

    /// The datasets that have a block that the log keeps under `head`; `head` itself if that is not known.
    async fn of(&mut self, rq: &Request, head: u64, block: &LostBlock) -> Vec<LostPlace> {
        let unknown = LostPlace { objset: head, pointer: None };
        if block.birth == Txg(0) || head == 0 {
            return vec![unknown];
        }
        let Some(top) = self.oldest_head(rq, head, block.birth).await else { return vec![unknown] };
        let mut found = Vec::new();
        let mut heads = VecDeque::from([top]);
        let mut seen = BTreeSet::from([top]);
        while let Some(id) = heads.pop_front() {
            if self.lookups > MAX_LOOKUPS {
                found.push(unknown);
                break;
            }
            for clone in self.in_file_system(rq, id, block, &mut found).await {
                if seen.insert(clone) {
                    heads.push_back(clone);
                }
            }
        }
        debug_assert!(found.iter().all(|place| place.objset != 0));
        found
    }

    async fn dataset(&self, rq: &Request, id: u64) -> Option<Dataset> {
        self.dsl.dataset(rq, ObjectId(id), String::new()).await.ok()
    }

    /// The head dataset of the oldest snapshot, among those that `head` descends from, that may have a block of `birth`
    /// (`find_top_affected_fs`).
    async fn oldest_head(&self, rq: &Request, head: u64, birth: Txg) -> Option<u64> {
        let mut oldest = self.dataset(rq, head).await?;
        let mut steps = 0;
        while oldest.phys.prev_snapshot.0 != 0 && birth < oldest.phys.prev_snapshot_txg && steps < MAX_LOOKUPS {
            let older = self.dataset(rq, oldest.phys.prev_snapshot.0).await?;
            // In a malformed pool, the chain could be a circle.
            if older.phys.creation_txg >= oldest.phys.creation_txg && older.is_snapshot() && oldest.is_snapshot() {
                return None;
            }
            oldest = older;
            steps += 1;
        }
        self.dsl.dir(oldest.dir).map(|dir| dir.phys.head_dataset.0)
    }

    /// Adds a file system and its snapshots to `found`, if they have the block. Returns the clones of these snapshots
    /// (`check_filesystem`).
    async fn in_file_system(
        &mut self,
        rq: &Request,
        id: u64,
        block: &LostBlock,
        found: &mut Vec<LostPlace>,
    ) -> Vec<u64> {
        let Some(head) = self.dataset(rq, id).await else { return Vec::new() };
        let mut until = Txg(u64::MAX);
        let in_head = self.look_up(rq, id, block).await;
        let mut of_head = None;
        match in_head {
            BlockFound::It(pointer) => of_head = Some(pointer),
            BlockFound::Unknown => found.push(LostPlace { objset: id, pointer: None }),
            BlockFound::Other(Txg(0)) => {}
            BlockFound::Other(birth) => until = birth,
        }
        found.extend(of_head.map(|pointer| LostPlace { objset: id, pointer: Some(pointer) }));
        if of_head.is_some() && !self.is_writable {
            // As in a read-only import by OpenZFS, which is in no txg: the head stands for its snapshots.
            return Vec::new();
        }
        let mut affected = BTreeSet::new();
        let mut next = head.phys.prev_snapshot.0;
        let mut txg = head.phys.prev_snapshot_txg;
        while next != 0 && block.birth < txg && self.lookups <= MAX_LOOKUPS {
            let Some(snapshot) = self.dataset(rq, next).await.filter(|snapshot| snapshot.dir == head.dir) else {
                break;
            };
            // A head that has the block has it since its birth, and so have its snapshots since then.
            let in_snapshot = match of_head {
                None if txg <= until => match self.look_up(rq, next, block).await {
                    BlockFound::It(pointer) => Some(pointer),
                    BlockFound::Other(_) | BlockFound::Unknown => None,
                },
                of_head => of_head,
            };
            if in_snapshot.is_some() {
                found.push(LostPlace { objset: next, pointer: in_snapshot });
                affected.insert(next);
            }
            if snapshot.phys.prev_snapshot_txg >= txg {
                break;
            }
            next = snapshot.phys.prev_snapshot.0;
            txg = snapshot.phys.prev_snapshot_txg;
        }
        let dirs = self.dsl.dirs().into_iter();
        dirs.filter(|dir| affected.contains(&dir.phys.origin.0)).map(|dir| dir.phys.head_dataset.0).collect()
    }

    /// Looks for the block in an object set; one of birth 0 is any block there.
    async fn look_up(&mut self, rq: &Request, id: u64, block: &LostBlock) -> BlockFound {
        self.lookups += 1;
        let Some(set) = self.open(rq, id).await else { return BlockFound::Unknown };
        let Ok(level) = u8::try_from(block.level) else { return BlockFound::Unknown };
        if block.object.0 == 0 {
            return BlockFound::Unknown;
        }
        let object = match set.object(rq, block.object).await {
            Ok(object) => object,
            Err(ObjectError::NoObject { .. }) => return BlockFound::Other(Txg(0)),
            Err(_) => return BlockFound::Unknown,
        };
        let pointer = match block.block {
            ErrorLocation::SPILL => Ok(object.dnode.spill),
            _ if level >= object.dnode.levels => Ok(None),
            number => set.pointers().at(rq, &object, level, number).await,
        };
        let is_it = |pointer: &BlockPointer| {
            block.birth == Txg(0)
                || [pointer.birth(), pointer.logical_birth(), pointer.physical_birth()].contains(&block.birth)
        };
        match pointer {
            Ok(Some(pointer)) if pointer.is_hole() => BlockFound::Other(Txg(0)),
            Ok(Some(pointer)) if is_it(&pointer) => BlockFound::It(pointer),
            Ok(pointer) => BlockFound::Other(pointer.map_or(Txg(0), |pointer| pointer.birth())),
            Err(_) => BlockFound::Unknown,
        }
    }

    async fn open(&mut self, rq: &Request, id: u64) -> Option<Arc<ObjectSet>> {
        if let Some(set) = self.sets.get(&id) {
            return set.clone();
        }
        if self.sets.len() >= MAX_OPEN_SETS {
            self.sets.clear();
        }
        let set = match self.dataset(rq, id).await {
            Some(dataset) => {
                let key = self.loaded.get(&dataset.dir).cloned();
                self.dsl.open_set(rq, &dataset, key).await.ok()
            }
            None => None,
        };
        self.sets.insert(id, set.clone());
        set
    }
}

/// Returns the files with errors, one line each: the path if their file system is among those that are mounted at their mount points,
/// else `dataset:/path` (`zpool_obj_to_path` in OpenZFS's libzfs).
pub async fn error_lines(pool: &Pool, rq: &Request, errors: &Errors, mounted: &MountedFileSystems) -> Vec<String> {
    let mut out = Vec::new();
    let mut last: Option<(u64, NamedSet)> = None;
    for (set, object) in &errors.objects {
        if last.as_ref().is_none_or(|(last, _)| last != set) {
            last = Some((*set, NamedSet::open(pool, rq, *set, mounted).await));
        }
        if let Some((_, named)) = &last {
            out.push(named.line(rq, *set, *object).await);
        }
    }
    out
}

/// A dataset with errors.
struct NamedSet {
    /// `None` if it is gone.
    name: Option<String>,
    files: Option<Arc<FileSystem>>,
    /// Where it is mounted, without a slash at the end.
    mountpoint: Option<String>,
}

impl NamedSet {
    async fn open(pool: &Pool, rq: &Request, set: u64, mounted: &MountedFileSystems) -> Self {
        let dataset = pool.dsl.dataset(rq, ObjectId(set), String::new()).await.ok();
        let dir = dataset.as_ref().and_then(|d| pool.dsl.dir(d.dir).filter(|dir| dir.phys.head_dataset.0 == set));
        let mountpoint = match (&dataset, dir) {
            (Some(head), Some(dir)) => mountpoint_of(pool, rq, head, &dir.name, mounted).await,
            _ => None,
        };
        let name = match dir {
            Some(dir) => Some(dir.name.clone()),
            None => pool.dsl.snapshot_name(rq, ObjectId(set)).await.ok().flatten(),
        };
        let files = match &name {
            Some(name) => pool.file_system(rq, name).await.ok(),
            None => None,
        };
        NamedSet { name, files, mountpoint }
    }

    async fn line(&self, rq: &Request, set: u64, object: u64) -> String {
        let Some(name) = self.name.as_ref().filter(|_| set != 0) else {
            let set = if set == 0 { "metadata".to_owned() } else { format!("{set:#x}") };
            return format!("<{set}>:<{object:#x}>");
        };
        let path = match &self.files {
            Some(files) => path_of(rq, files, ObjectId(object)).await,
            None => None,
        };
        match (path, &self.mountpoint) {
            (Some(path), Some(mountpoint)) => format!("{mountpoint}{path}"),
            (Some(path), None) => format!("{name}:{path}"),
            (None, _) => format!("{name}:<{object:#x}>"),
        }
    }
}

/// Where a file system is mounted, if it is at its mount point. A mount of the whole pool may be anywhere.
async fn mountpoint_of(
    pool: &Pool,
    rq: &Request,
    head: &Dataset,
    name: &str,
    mounted: &MountedFileSystems,
) -> Option<String> {
    if *mounted == MountedFileSystems::All || !mounted.has(head.phys.fsid_guid) {
        return None;
    }
    let named = pool.dataset(rq, name).await.ok()?;
    let found = pool.dsl.property(rq, &named, &pool.facts(), "mountpoint").await.ok()??;
    match found.value {
        PropertyValue::Text(path) if path.starts_with('/') => Some(path.trim_end_matches('/').to_owned()),
        _ => None,
    }
}

impl Errors {
    fn add(&mut self, set: u64, object: u64) {
        self.count += 1;
        self.objects.insert((set, object));
    }
}

/// Returns the path of an object from the root; `None` if a parent cannot be read.
pub async fn path_of(rq: &Request, files: &FileSystem, object: ObjectId) -> Option<String> {
    let mut at = object;
    let mut parts = Vec::new();
    while at != files.root() {
        let parent = files.attrs().parent(rq, at).await.ok()?;
        if parts.len() >= MAX_DEPTH || parent == at {
            return None;
        }
        parts.push(name_in(rq, files, parent, at).await?);
        at = parent;
    }
    parts.reverse();
    Some(format!("/{}", parts.join("/")))
}

async fn name_in(rq: &Request, files: &FileSystem, dir: ObjectId, object: ObjectId) -> Option<String> {
    let mut cookie = 0;
    loop {
        let entries = files.directories().read_dir(rq, dir, cookie, MAX_CONCURRENT_READS).await.ok()?;
        let found = entries.iter().find(|e| e.object == object);
        if let Some(found) = found {
            return Some(String::from_utf8_lossy(&found.name).into_owned());
        }
        cookie = entries.last()?.cookie;
    }
}

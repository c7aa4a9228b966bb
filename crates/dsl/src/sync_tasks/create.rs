//! New file systems and volumes (OpenZFS `dsl_dir_create_sync`, `dsl_dataset_create_sync`, `dmu_objset_create`).
//!
//! ```text
//!   create_dir    DSL directory: props ZAP, children ZAP, its name in the parent
//!   create_head   DSL dataset: snapshot names, deadlist, contents (its origin's, or the empty $ORIGIN's)
//!   the caller    opens the set for writing; FileSystemSpec or VolumeSpec makes the first objects in the same txg
//! ```

use super::names::{check_name, split_name};
use super::{
    DslError, DslSyncContext, FileSystemSpec, VolumeSpec, features, history, limits, lists, names, number, properties,
};
use crate::deadlist;
use crate::props::{self, ZfsProp};
use std::collections::BTreeMap;
use weir_dmu::object_set::{ObjectSet, Opening};
use weir_format::dsl::dir_field;
use weir_format::features::Feature;
use weir_format::{DslDataset, DslDir, ObjectId, ObjectType, ObjsetId, ObjsetKind, Txg};

/// First txg of a pool; datasets created in it have creation txg 1 (`TXG_INITIAL`).
const FIRST_TXG: u64 = 4;
/// `casesensitivity=insensitive`: snapshot names ignore case as well. With `mixed` they do not
/// (`zfs_fill_zplprops_impl`).
const INSENSITIVE: u64 = 1;
/// Flag of a directory: its breakdown of used space is valid.
const USED_BREAKDOWN: u64 = 1;

/// Kind of a new dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file system.
    FileSystem(FileSystemSpec),
    /// A volume.
    Volume(VolumeSpec),
}

impl Kind {
    /// Kind of the dataset's object set.
    pub fn objset(&self) -> ObjsetKind {
        match self {
            Kind::FileSystem(_) => ObjsetKind::Zfs,
            Kind::Volume(_) => ObjsetKind::Zvol,
        }
    }
}

/// Specification of a new dataset.
#[derive(Clone, Debug)]
pub struct NewDataset {
    /// Full name.
    pub name: String,
    /// Kind of dataset.
    pub kind: Kind,
    /// Properties to set, with values as stored: see [`properties::set_property`](super::properties::set_property).
    pub properties: Vec<(String, props::Value)>,
}

/// Objects of a new dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Created {
    /// DSL directory.
    pub dir: ObjectId,
    /// DSL dataset; also the number of its object set, which has no objects yet.
    pub dataset: ObjectId,
}

/// Creates a directory below `parent`, or the root directory.
pub(super) async fn create_dir(
    cx: &mut DslSyncContext<'_>,
    parent: Option<ObjectId>,
    name: &str,
) -> Result<ObjectId, DslError> {
    let dir = DslDir {
        creation_time_s: cx.now_s,
        parent: parent.unwrap_or_default(),
        props: cx.zap(ObjectType::DSL_PROPS).await?,
        children: cx.zap(ObjectType::DSL_DIR_CHILD_MAP).await?,
        flags: USED_BREAKDOWN,
        ..DslDir::default()
    };
    let bonus = dir.encode(weir_format::Endian::Little);
    let id = cx.object(ObjectType::DSL_DIR, ObjectType::DSL_DIR, bonus).await?;
    cx.touched.insert(id);
    match parent {
        Some(parent) => {
            cx.insert_word(cx.dir(parent).await?.children, name, id.0).await?;
            if !name.starts_with('$') {
                count_datasets(cx, parent, dir_field::FILESYSTEM_COUNT, 1).await?;
            }
        }
        None => cx.insert_word(super::DIRECTORY, weir_format::dsl::pool::ROOT_DATASET, id.0).await?,
    }
    Ok(id)
}

/// Adds to the counts of file systems or snapshots of a directory and its ancestors, where the directories have
/// counts (`dsl_fs_ss_count_adjust`).
pub(super) async fn count_datasets(
    cx: &mut DslSyncContext<'_>,
    dir: ObjectId,
    field: &str,
    by: i64,
) -> Result<(), DslError> {
    for (at, _) in names::upwards(cx, dir).await?.into_iter().filter(|_| by != 0) {
        let Some(count) = dir_word(cx, at, field).await? else { break };
        cx.put_word(at, field, count.saturating_add_signed(by)).await?;
    }
    Ok(())
}

/// A field of a directory whose object is a ZAP as well.
pub(super) async fn dir_word(cx: &DslSyncContext<'_>, dir: ObjectId, field: &str) -> Result<Option<u64>, DslError> {
    if cx.object_type(dir).await? != super::ZAP_METADATA {
        return Ok(None);
    }
    cx.word(dir, field).await
}

/// Creates the dataset of a directory, with the contents of `origin` (`dsl_dataset_create_sync_dd`).
pub(super) async fn create_dataset(
    cx: &mut DslSyncContext<'_>,
    dir: ObjectId,
    origin: Option<ObjectId>,
) -> Result<ObjectId, DslError> {
    let txg = cx.txg();
    let mut phys = DslDataset {
        dir,
        fsid_guid: cx.fsid(),
        guid: cx.guid(),
        snapshot_names: cx.zap_folding(ObjectType::DSL_DS_SNAP_MAP).await?,
        creation_time_s: cx.now_s,
        creation_txg: if txg.0 == FIRST_TXG { Txg(1) } else { txg },
        flags: DslDataset::UNIQUE_ACCURATE,
        ..DslDataset::default()
    };
    let id = cx.object(ObjectType::DSL_DATASET, ObjectType::DSL_DATASET, vec![0; DslDataset::SIZE]).await?;
    match origin {
        Some(origin) => begin_from(cx, &mut phys, id, origin).await?,
        None => phys.deadlist = deadlist::create(cx.rq, &cx.mos, cx.tx).await?,
    }
    cx.put_dataset(id, &phys).await?;
    let mut of = cx.dir(dir).await?;
    of.head_dataset = id;
    of.origin = origin.unwrap_or_default();
    cx.put_dir(dir, &of).await?;
    Ok(id)
}

/// Gives a new dataset the contents of a snapshot.
async fn begin_from(
    cx: &mut DslSyncContext<'_>,
    phys: &mut DslDataset,
    id: ObjectId,
    origin: ObjectId,
) -> Result<(), DslError> {
    let mut from = cx.dataset(origin).await?;
    phys.prev_snapshot = origin;
    phys.prev_snapshot_txg = from.creation_txg;
    phys.referenced_bytes = from.referenced_bytes;
    phys.compressed_bytes = from.compressed_bytes;
    phys.uncompressed_bytes = from.uncompressed_bytes;
    phys.pointer = from.pointer;
    phys.flags |= from.flags & (DslDataset::INCONSISTENT | DslDataset::CASE_INSENSITIVE);
    features::copy_features(cx, origin, id).await?;
    let mut of = cx.dir(from.dir).await?;
    let head = cx.dataset(of.head_dataset).await?;
    let until = phys.prev_snapshot_txg;
    phys.deadlist = lists::deadlist_until(cx, head.deadlist, until).await?;
    from.children += 1;
    if from.next_clones.0 == 0 {
        from.next_clones = cx.zap(ObjectType::NEXT_CLONES).await?;
    }
    cx.set_insert(from.next_clones, id.0).await?;
    cx.put_dataset(origin, &from).await?;
    if of.clones.0 == 0 {
        of.clones = cx.zap(ObjectType::DSL_CLONES).await?;
        cx.put_dir(from.dir, &of).await?;
    }
    cx.set_insert(of.clones, id.0).await
}

/// The empty snapshot that is the origin of all datasets; `None` in pools older than it.
pub(super) async fn empty_origin(cx: &mut DslSyncContext<'_>) -> Result<Option<ObjectId>, DslError> {
    let Some(dir) = names::special_dir(cx, super::pool_dirs::ORIGIN).await? else { return Ok(None) };
    let head = cx.dir(dir).await?.head_dataset;
    if head.0 == 0 {
        return Ok(None);
    }
    let snapshot = cx.dataset(head).await?.prev_snapshot;
    Ok(Some(snapshot).filter(|id| id.0 != 0))
}

/// Creates a directory and its dataset below `parent`, with the contents of the snapshot `origin`; empty if `None`.
pub(super) async fn create_head(
    cx: &mut DslSyncContext<'_>,
    parent: ObjectId,
    name: &str,
    origin: Option<ObjectId>,
) -> Result<Created, DslError> {
    let dir = create_dir(cx, Some(parent), name).await?;
    let origin = match origin {
        Some(origin) => Some(origin),
        None => empty_origin(cx).await?,
    };
    let dataset = create_dataset(cx, dir, origin).await?;
    if !name.starts_with('$') && features::is_active(cx, Feature::FILESYSTEM_LIMITS).await? {
        features::zapify(cx, dir).await?;
        for field in [dir_field::FILESYSTEM_COUNT, dir_field::SNAPSHOT_COUNT] {
            cx.put(dir, field, number(0)).await?;
        }
    }
    Ok(Created { dir, dataset })
}

/// Activates the accounting features of a new file system, as far as the pool has them enabled: object counts by
/// user, and all counts by project.
pub(super) async fn use_accounting(cx: &mut DslSyncContext<'_>, dataset: ObjectId) -> Result<(), DslError> {
    for name in [Feature::USEROBJ_ACCOUNTING, Feature::PROJECT_QUOTA] {
        if features::is_enabled(cx, name).await? {
            features::activate(cx, dataset, name).await?;
        }
    }
    Ok(())
}

/// Checks that a dataset may be created: its name, its parent, its sizes.
///
/// # Errors
/// The [`DslError`] of the first check that fails.
pub async fn check_create(cx: &mut DslSyncContext<'_>, new: &NewDataset) -> Result<(), DslError> {
    let parent = check_place(cx, &new.name).await?;
    check_count_limit(cx, parent, dir_field::FILESYSTEM_COUNT, 1, ObjectId(0)).await?;
    match &new.kind {
        Kind::Volume(spec) => {
            spec.check(&new.name)?;
            let bytes = props::Value::Number(spec.block_bytes.into());
            properties::check_feature(cx, &new.name, ZfsProp::VolBlockSize.name(), &bytes).await?;
        }
        Kind::FileSystem(spec) => {
            let more = props::Value::Number(spec.slots.saturating_sub(1).into());
            properties::check_feature(cx, &new.name, ZfsProp::DnodeSize.name(), &more).await?;
        }
    }
    check_new_properties(cx, &new.name, parent, &new.properties, 0).await
}

/// Blocks in the MOS that the pool must have room for (OpenZFS `dmu_objset_create`, `dsl_dataset_snapshot`,
/// `dsl_bookmark_create`).
const NEW_DATASET_BLOCKS: u64 = 5;
pub(super) const NEW_SNAPSHOT_BLOCKS: u64 = 3;
pub(super) const NEW_BOOKMARK_BLOCKS: u64 = 1;
/// Size of such a block in bytes, with its three copies (OpenZFS `dsl_sync_task_sync`).
const MOS_BLOCK_BYTES: u64 = 3 * (16 << 10);

/// Checks that the pool has room for this number of additional blocks in the MOS, whatever reservations hold.
pub(super) async fn check_room(cx: &mut DslSyncContext<'_>, name: &str, blocks: u64) -> Result<(), DslError> {
    let root = names::root_dir(cx).await?;
    let used_bytes = cx.dir(root).await?.used_bytes;
    if used_bytes.saturating_add(blocks.saturating_mul(MOS_BLOCK_BYTES)) > cx.pool.capacity_bytes {
        return Err(DslError::space(name, "out of space"));
    }
    Ok(())
}

/// Checks the properties of a new dataset that refers to the given number of bytes: the pool has the features for
/// them, and there is space for the reservations.
pub(super) async fn check_new_properties(
    cx: &mut DslSyncContext<'_>,
    name: &str,
    parent: ObjectId,
    properties: &[(String, props::Value)],
    referenced_bytes: u64,
) -> Result<(), DslError> {
    check_room(cx, name, NEW_DATASET_BLOCKS).await?;
    for (property, value) in properties {
        properties::check_feature(cx, name, property, value).await?;
    }
    let number = |wanted: ZfsProp| {
        let found = properties.iter().rev().find(|(property, _)| property == wanted.name());
        found.map_or(0, |(_, value)| if let props::Value::Number(n) = value { *n } else { 0 })
    };
    let most = |limit: ZfsProp| Some(number(limit)).filter(|n| *n != 0).unwrap_or(u64::MAX);
    let reserved = number(ZfsProp::Reservation);
    let own = number(ZfsProp::RefReservation);
    let left = limits::available_in(cx, parent).await?.min(most(ZfsProp::Quota));
    if reserved.max(own) > left || own > most(ZfsProp::RefQuota) {
        return Err(DslError::space(name, "out of space: size is greater than available space"));
    }
    if referenced_bytes > most(ZfsProp::RefQuota) {
        return Err(DslError::space(name, "size is less than current used or reserved space"));
    }
    Ok(())
}

/// Checks that a file system or volume of that name may be created, and returns its parent directory.
pub(super) async fn check_place(cx: &mut DslSyncContext<'_>, name: &str) -> Result<ObjectId, DslError> {
    check_name(name)?;
    if split_name(name).1.is_some() {
        return Err(DslError::kind(name, "not the name of a file system or volume"));
    }
    let no_parent = || DslError::NoParent { name: name.to_owned() };
    let (above, last) = name.rsplit_once('/').ok_or_else(no_parent)?;
    let parent = match names::find_head(cx, above).await {
        Err(DslError::Missing { .. }) => return Err(no_parent()),
        other => other?,
    };
    if cx.word(parent.at.dir.children, last).await?.is_some() {
        return Err(DslError::exists(name));
    }
    if kind_of(cx, &parent.phys, parent.id).await? == ObjsetKind::Zvol {
        return Err(DslError::kind(name, "parent is not a filesystem"));
    }
    Ok(parent.at.id)
}

/// Kind of a dataset's object set.
pub(super) async fn kind_of(cx: &DslSyncContext<'_>, phys: &DslDataset, id: ObjectId) -> Result<ObjsetKind, DslError> {
    let opening = Opening { id: ObjsetId(id.0), ..Opening::default() };
    let set = ObjectSet::open(cx.rq, cx.mos.cache().clone(), phys.pointer, opening).await?;
    Ok(set.kind())
}

/// Checks `filesystem_limit` or `snapshot_limit` from a directory upwards (`dsl_fs_ss_limit_check`), up to but not
/// including `until`, which counts the datasets already (object 0: up to the root).
pub(super) async fn check_count_limit(
    cx: &mut DslSyncContext<'_>,
    dir: ObjectId,
    field: &'static str,
    more: u64,
    until: ObjectId,
) -> Result<(), DslError> {
    take_count(cx, dir, field, more, until, &mut BTreeMap::new()).await
}

/// Checks the limit together with the counts in `taken`, by directory, that others will add; then adds these as
/// well.
pub(super) async fn take_count(
    cx: &mut DslSyncContext<'_>,
    dir: ObjectId,
    field: &'static str,
    more: u64,
    until: ObjectId,
    taken: &mut BTreeMap<ObjectId, u64>,
) -> Result<(), DslError> {
    let property = if field == dir_field::SNAPSHOT_COUNT { ZfsProp::SnapshotLimit } else { ZfsProp::FilesystemLimit };
    for (at, of) in names::upwards(cx, dir).await?.into_iter().take_while(|(at, _)| *at != until && more != 0) {
        let Some(count) = dir_word(cx, at, field).await? else { break };
        let all = taken.entry(at).or_default();
        *all = all.saturating_add(more);
        let limit = cx.word(of.props, property.name()).await?.unwrap_or(u64::MAX);
        if count.saturating_add(*all) > limit {
            let why = if field == dir_field::SNAPSHOT_COUNT {
                "the limit of snapshots is reached"
            } else {
                "the limit of file systems is reached"
            };
            return Err(DslError::space(&names::dir_name(cx, at).await?, why));
        }
    }
    Ok(())
}

/// Creates a file system or volume. The caller then opens its set ([`Created::dataset`]) for writing and creates
/// the first objects in this txg.
///
/// # Errors
/// Those of [`check_create`], before anything was changed.
pub async fn create(cx: &mut DslSyncContext<'_>, new: &NewDataset) -> Result<Created, DslError> {
    check_create(cx, new).await?;
    let parent = check_place(cx, &new.name).await?;
    let last = new.name.rsplit_once('/').map_or(new.name.as_str(), |(_, last)| last);
    let created = create_head(cx, parent, last, None).await?;
    if let Kind::FileSystem(spec) = &new.kind {
        if spec.casesensitivity == INSENSITIVE {
            let mut phys = cx.dataset(created.dataset).await?;
            phys.flags |= DslDataset::CASE_INSENSITIVE;
            cx.put_dataset(created.dataset, &phys).await?;
        }
        use_accounting(cx, created.dataset).await?;
    }
    history::log(cx, &new.name, created.dataset, "create", "").await?;
    for (name, value) in &new.properties {
        properties::store_at_creation(cx, created, name, value).await?;
    }
    Ok(created)
}

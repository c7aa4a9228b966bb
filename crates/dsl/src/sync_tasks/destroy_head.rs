//! Destruction of file systems and volumes (OpenZFS `dsl_destroy_head_sync_impl`, `dsl_dir_destroy_sync`).
//!
//! The names and objects are removed in this txg; the blocks, which may be numerous, in later ones: the root pointer of
//! the dataset is added to the pool's bptree ([`super::trees`]), the space moves from the dataset to `$FREE`.

use super::names::Found;
use super::space::{Delta, Use};
use super::{
    DslError, DslSyncContext, bookmark, create, destroy, features, history, lists, names, properties, scan, synced,
    trees,
};
use weir_format::dsl::{Bookmark, dataset_field, dir_field};
use weir_format::features::Feature;
use weir_format::{DslDataset, ObjectId};

/// Checks that a file system or volume may be destroyed: it has neither children nor snapshots.
///
/// # Errors
/// [`DslError::Missing`], [`DslError::HasDependents`], [`DslError::Kind`] (the root), [`DslError::Busy`] (a stream uses
/// the redaction list of a bookmark).
pub async fn check_destroy(cx: &mut DslSyncContext<'_>, name: &str) -> Result<(), DslError> {
    let found = names::find_head(cx, name).await?;
    if found.at.dir.parent.0 == 0 {
        return Err(DslError::kind(name, "the root dataset is destroyed with its pool only"));
    }
    let children: Vec<String> =
        names::children_of(cx, &found.at.dir).await?.into_iter().map(|(n, _)| format!("{name}/{n}")).collect();
    if !children.is_empty() {
        return Err(DslError::HasDependents { name: name.into(), what: "children", dependents: children });
    }
    let snapshots: Vec<String> =
        names::snapshots_of(cx, &found.phys).await?.into_iter().map(|(n, _)| format!("{name}@{n}")).collect();
    if !snapshots.is_empty() {
        return Err(DslError::HasDependents { name: name.into(), what: "snapshots", dependents: snapshots });
    }
    if let Some(zap) = names::bookmarks_zap(cx, found.id).await? {
        let bookmarks = bookmark::bookmarks_in(cx, zap).await?;
        if bookmarks.iter().any(|(_, bookmark)| (cx.reading)(bookmark.redaction_list)) {
            return Err(DslError::busy(name, "the redaction list of a bookmark is in use"));
        }
    }
    trees::check_freeing(cx, &found.phys).await
}

/// Destroys a file system or volume. The caller closes its open set before, with the intent log.
///
/// # Errors
/// Those of [`check_destroy`], before anything was changed.
pub async fn destroy(cx: &mut DslSyncContext<'_>, name: &str) -> Result<(), DslError> {
    check_destroy(cx, name).await?;
    let found = names::find_head(cx, name).await?;
    history::log(cx, name, found.id, "destroy", &format!("(bptree, mintxg={})", found.phys.prev_snapshot_txg)).await?;
    destroy_head(cx, found).await
}

pub(super) async fn destroy_head(cx: &mut DslSyncContext<'_>, found: Found) -> Result<(), DslError> {
    let id = found.id;
    let dir_id = found.at.id;
    let reserved = synced::ref_reservation(cx, dir_id).await?;
    properties::charge_ref_reservation(cx, &found, reserved, 0).await?;
    let origin_goes = origin_goes_too(cx, &found.phys, &found.at.dir).await?;
    scan::scan_destroyed(cx, id, None).await?;
    scan::drop_error_logs(cx, id).await?;
    features::drop_features(cx, id).await?;
    leave_origin(cx, id, &found.phys).await?;
    lists::deadlist_destroy(cx, found.phys.deadlist).await?;
    drop_remap_list(cx, id).await?;
    drop_livelist(cx, dir_id).await?;
    free_tree(cx, &found).await?;
    let mut dir = cx.dir(dir_id).await?;
    dir.head_dataset = ObjectId(0);
    cx.put_dir(dir_id, &dir).await?;
    cx.remove(found.phys.snapshot_names).await?;
    drop_bookmarks(cx, id).await?;
    destroy::clear_bootfs(cx, id).await?;
    features::remove_zapified(cx, id).await?;
    destroy_dir(cx, dir_id).await?;
    if origin_goes {
        destroy::destroy_snapshot(cx, found.phys.prev_snapshot).await?;
    }
    Ok(())
}

/// Whether a clone's origin is marked for deferred destruction and has no other user.
async fn origin_goes_too(
    cx: &DslSyncContext<'_>,
    phys: &DslDataset,
    dir: &weir_format::DslDir,
) -> Result<bool, DslError> {
    if dir.origin.0 == 0 || phys.prev_snapshot.0 == 0 {
        return Ok(false);
    }
    let origin = cx.dataset(phys.prev_snapshot).await?;
    let waits = origin.flags & DslDataset::DEFER_DESTROY != 0 && origin.children == 2;
    Ok(waits && destroy::holds_on(cx, &origin).await? == 0 && !(cx.reading)(phys.prev_snapshot))
}

/// Removes a dataset from its origin's list of clones.
async fn leave_origin(cx: &mut DslSyncContext<'_>, id: ObjectId, phys: &DslDataset) -> Result<(), DslError> {
    if phys.prev_snapshot.0 == 0 {
        return Ok(());
    }
    let mut origin = cx.dataset(phys.prev_snapshot).await?;
    if origin.next_clones.0 != 0 {
        cx.set_remove(origin.next_clones, id.0).await?;
    }
    origin.children = origin.children.saturating_sub(1);
    cx.put_dataset(phys.prev_snapshot, &origin).await?;
    let clones = cx.dir(origin.dir).await?.clones;
    if clones.0 != 0 {
        cx.set_remove(clones, id.0).await?;
    }
    Ok(())
}

async fn drop_remap_list(cx: &mut DslSyncContext<'_>, id: ObjectId) -> Result<(), DslError> {
    if let Some(list) = names::dataset_word(cx, id, dataset_field::REMAP_DEADLIST).await? {
        lists::deadlist_destroy(cx, ObjectId(list)).await?;
        cx.zap_remove(id, dataset_field::REMAP_DEADLIST).await?;
        features::count_feature(cx, Feature::OBSOLETE_COUNTS, -1).await?;
    }
    Ok(())
}

/// Removes a clone's livelist: from now on its tree is walked instead (`dsl_dir_remove_livelist`).
pub async fn drop_livelist(cx: &mut DslSyncContext<'_>, dir: ObjectId) -> Result<(), DslError> {
    if let Some(list) = create::dir_word(cx, dir, dir_field::LIVELIST).await? {
        lists::deadlist_destroy(cx, ObjectId(list)).await?;
        cx.zap_remove(dir, dir_field::LIVELIST).await?;
        features::count_feature(cx, Feature::LIVELIST, -1).await?;
    }
    Ok(())
}

/// Adds the dataset's tree to the bptree, and its space to `$FREE`.
async fn free_tree(cx: &mut DslSyncContext<'_>, found: &Found) -> Result<(), DslError> {
    let dir = cx.dir(found.at.id).await?;
    let size = Delta::new(dir.used_bytes, dir.compressed_bytes, dir.uncompressed_bytes);
    synced::book(cx, found.at.id, Use::Head, -size).await?;
    trees::add_tree(cx, &found.phys.pointer, found.phys.prev_snapshot_txg, size).await
}

/// Removes the bookmarks of a destroyed head.
async fn drop_bookmarks(cx: &mut DslSyncContext<'_>, head: ObjectId) -> Result<(), DslError> {
    let Some(zap) = names::bookmarks_zap(cx, head).await? else { return Ok(()) };
    for (_, bookmark) in bookmark::bookmarks_in(cx, zap).await? {
        bookmark::drop_redaction_list(cx, &bookmark).await?;
        if bookmark.flags & Bookmark::HAS_FREED_BEFORE_NEXT != 0 {
            features::count_feature(cx, Feature::BOOKMARK_WRITTEN, -1).await?;
        }
        if super::bookmark::needs_newer_form(&bookmark) {
            features::count_feature(cx, Feature::BOOKMARK_V2, -1).await?;
        }
    }
    cx.remove(zap).await?;
    features::count_feature(cx, Feature::BOOKMARKS, -1).await
}

/// Removes a directory whose dataset is destroyed.
async fn destroy_dir(cx: &mut DslSyncContext<'_>, id: ObjectId) -> Result<(), DslError> {
    let dir = cx.dir(id).await?;
    cx.touched.insert(id);
    let siblings = cx.dir(dir.parent).await?.children;
    let entries = cx.entries(siblings).await?;
    let name = entries.into_iter().find(|(_, v)| v.first() == Some(id.0)).map(|(n, _)| n).unwrap_or_default();
    if !name.starts_with('$') {
        create::count_datasets(cx, dir.parent, dir_field::FILESYSTEM_COUNT, -1).await?;
    }
    properties::reserve(cx, id, 0).await?;
    drop_key(cx, id).await?;
    cx.remove(dir.children).await?;
    cx.remove(dir.props).await?;
    cx.remove_if(dir.clones).await?;
    for (_, value) in cx.entries(dir.permissions).await? {
        cx.remove_if(ObjectId(value.first().unwrap_or(0))).await?;
    }
    cx.remove_if(dir.permissions).await?;
    cx.zap_remove(siblings, &name).await?;
    features::remove_zapified(cx, id).await
}

/// Releases a directory's wrapped key; removes the object when no other directory uses it.
async fn drop_key(cx: &mut DslSyncContext<'_>, dir: ObjectId) -> Result<(), DslError> {
    use weir_format::dsl::crypto_key::REFCOUNT;
    let Some(key) = create::dir_word(cx, dir, dir_field::CRYPTO_KEY_OBJ).await?.map(ObjectId) else { return Ok(()) };
    match cx.word(key, REFCOUNT).await?.unwrap_or(1) {
        0 | 1 => cx.remove(key).await,
        more => cx.put_word(key, REFCOUNT, more - 1).await,
    }
}

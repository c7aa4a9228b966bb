//! Rollback to the last snapshot (OpenZFS `dsl_dataset_rollback_sync`, `dsl_dataset_clone_swap_sync_impl`).
//!
//! A temporary clone of the snapshot is created, head and clone exchange their contents, and the clone is destroyed
//! with the head's former contents: so the head's new blocks are freed as a destroyed clone's tree is, in the
//! background.

use super::names::{Found, FoundDir};
use super::space::{Delta, Use, difference};
use super::{
    DslError, DslSyncContext, bookmark, create, destroy_head, features, history, limits, lists, names, properties,
    scan, synced, trees,
};
use crate::props::ZfsProp;
use weir_format::dsl::dataset_field;
use weir_format::{DslDataset, ObjectId, Txg};

/// Name of the temporary clone.
const TEMPORARY_CLONE: &str = "%rollback";
/// The first txg in which a pool has snapshots of its own (`TXG_INITIAL`).
const FIRST_TXG: Txg = Txg(4);

/// Checks that a dataset may be rolled back to its last snapshot; `to`: the full name that the caller expects it to
/// have.
///
/// # Errors
/// [`DslError::Missing`] (no snapshot), [`DslError::HasDependents`] (newer snapshots or bookmarks),
/// [`DslError::Busy`], [`DslError::Space`].
pub async fn check_rollback(cx: &mut DslSyncContext<'_>, name: &str, to: Option<&str>) -> Result<(), DslError> {
    let head = names::find_head(cx, name).await?;
    let phys = &head.phys;
    if phys.prev_snapshot.0 == 0 || phys.prev_snapshot_txg < FIRST_TXG {
        return Err(DslError::missing(to.unwrap_or("the last snapshot")));
    }
    if phys.prev_snapshot_txg >= cx.txg() {
        return Err(DslError::busy(name, "the snapshot was created in this txg"));
    }
    lists::check_lists(cx, head.id).await?;
    if let Some(to) = to {
        let target = names::find_snapshot(cx, to).await?;
        if target.id != phys.prev_snapshot {
            return Err(newer_snapshots(cx, &head, &target).await?);
        }
    }
    if let Some(zap) = names::bookmarks_zap(cx, head.id).await? {
        let newer: Vec<String> = bookmark::bookmarks_in(cx, zap)
            .await?
            .into_iter()
            .filter(|(_, b)| b.creation_txg > phys.prev_snapshot_txg)
            .map(|(n, _)| format!("{name}#{n}"))
            .collect();
        if !newer.is_empty() {
            return Err(DslError::HasDependents {
                name: name.into(),
                what: "more recent bookmarks",
                dependents: newer,
            });
        }
    }
    let snapshot = cx.dataset(phys.prev_snapshot).await?;
    let quota = properties::own_number(cx, head.at.id, ZfsProp::RefQuota).await?;
    if quota != 0 && snapshot.referenced_bytes > quota {
        return Err(DslError::space(name, "the snapshot refers to more than the refquota"));
    }
    let charge = synced::ref_reservation(cx, head.at.id).await?.min(phys.unique_bytes);
    if charge > limits::available_in(cx, head.at.id).await? {
        return Err(DslError::space(name, "out of space"));
    }
    trees::check_freeing(cx, phys).await
}

async fn newer_snapshots(cx: &mut DslSyncContext<'_>, head: &Found, target: &Found) -> Result<DslError, DslError> {
    let related = target.at.id == head.at.id || head.at.dir.origin == target.id;
    if !related {
        return Ok(DslError::kind(&target.name, "not a snapshot of this dataset"));
    }
    let mut newer = Vec::new();
    for (name, id) in names::snapshots_of(cx, &head.phys).await? {
        if cx.dataset(id).await?.creation_txg > target.phys.creation_txg {
            newer.push(format!("{}@{name}", head.name));
        }
    }
    Ok(DslError::HasDependents { name: target.name.clone(), what: "more recent snapshots", dependents: newer })
}

/// Rolls a dataset back to its last snapshot. The caller closes its open set before, opens it again after, and
/// clears the intent log in its header in this txg.
///
/// # Errors
/// Those of [`check_rollback`], before anything was changed.
pub async fn rollback(cx: &mut DslSyncContext<'_>, name: &str, to: Option<&str>) -> Result<(), DslError> {
    check_rollback(cx, name, to).await?;
    let head = names::find_head(cx, name).await?;
    let clone = create::create_head(cx, head.at.id, TEMPORARY_CLONE, Some(head.phys.prev_snapshot)).await?;
    swap(cx, clone.dataset, head.id).await?;
    let dir = cx.dir(clone.dir).await?;
    let phys = cx.dataset(clone.dataset).await?;
    let name_of_clone = format!("{name}/{TEMPORARY_CLONE}");
    let at = FoundDir { id: clone.dir, dir, name: name_of_clone.clone() };
    destroy_head::destroy_head(cx, Found { at, id: clone.dataset, phys, name: name_of_clone }).await?;
    history::log(cx, name, head.id, "rollback", "").await
}

/// Exchanges the contents of a head and a clone of its last snapshot.
pub(super) async fn swap(cx: &mut DslSyncContext<'_>, clone_id: ObjectId, head_id: ObjectId) -> Result<(), DslError> {
    let mut clone = cx.dataset(clone_id).await?;
    let mut head = cx.dataset(head_id).await?;
    swap_features(cx, clone_id, head_id).await?;
    let reserved = synced::ref_reservation(cx, head.dir).await?;
    let charge = difference(reserved.min(head.unique_bytes), reserved.min(clone.unique_bytes));
    let mut origin = cx.dataset(clone.prev_snapshot).await?;
    if origin.next_snapshot == head_id {
        // Unique bytes of a clone's origin depend on its successor in its own directory.
        let alone = lists::deadlist_range(cx, clone.deadlist, origin.prev_snapshot_txg, Txg(u64::MAX)).await?;
        origin.unique_bytes = alone.used.max(0) as u64;
        cx.put_dataset(clone.prev_snapshot, &origin).await?;
    }
    swap_space(cx, &clone, &head).await?;
    synced::book(cx, head.dir, Use::RefReservation, Delta::used(charge)).await?;
    std::mem::swap(&mut clone.pointer, &mut head.pointer);
    std::mem::swap(&mut clone.referenced_bytes, &mut head.referenced_bytes);
    std::mem::swap(&mut clone.compressed_bytes, &mut head.compressed_bytes);
    std::mem::swap(&mut clone.uncompressed_bytes, &mut head.uncompressed_bytes);
    std::mem::swap(&mut clone.unique_bytes, &mut head.unique_bytes);
    std::mem::swap(&mut clone.deadlist, &mut head.deadlist);
    cx.put_dataset(clone_id, &clone).await?;
    cx.put_dataset(head_id, &head).await?;
    swap_remap_lists(cx, clone_id, head_id).await?;
    bookmark::bookmarks_recounted(cx, head_id, head.prev_snapshot).await?;
    scan::scan_swapped(cx, clone_id, head_id).await?;
    destroy_head::drop_livelist(cx, clone.dir).await?;
    destroy_head::drop_livelist(cx, head.dir).await
}

/// Updates the space of the two directories.
async fn swap_space(cx: &mut DslSyncContext<'_>, clone: &DslDataset, head: &DslDataset) -> Result<(), DslError> {
    let of_clone = lists::deadlist_space(cx, clone.deadlist).await?;
    let of_head = lists::deadlist_space(cx, head.deadlist).await?;
    let refers = |d: &DslDataset| Delta::new(d.referenced_bytes, d.compressed_bytes, d.uncompressed_bytes);
    let mut delta = refers(clone);
    delta += of_clone;
    delta += -refers(head);
    delta += -of_head;
    synced::book(cx, head.dir, Use::Head, delta).await?;
    synced::book(cx, clone.dir, Use::Head, -delta).await?;
    let origin = synced::origin_txg(cx, head.dir).await?;
    let end = Txg(u64::MAX);
    let in_clone = lists::deadlist_range(cx, clone.deadlist, origin, end).await?.used;
    let in_head = lists::deadlist_range(cx, head.deadlist, origin, end).await?.used;
    synced::transfer(cx, head.dir, in_clone - in_head, Use::Head, Use::Snapshots).await
}

async fn swap_features(cx: &mut DslSyncContext<'_>, a: ObjectId, b: ObjectId) -> Result<(), DslError> {
    let of_a = features::features_of(cx, a).await?;
    let of_b = features::features_of(cx, b).await?;
    features::drop_features(cx, a).await?;
    features::drop_features(cx, b).await?;
    for (to, features) in [(b, of_a), (a, of_b)] {
        for (name, value) in features {
            features::activate_with(cx, to, name, value).await?;
        }
    }
    Ok(())
}

async fn swap_remap_lists(cx: &mut DslSyncContext<'_>, a: ObjectId, b: ObjectId) -> Result<(), DslError> {
    let field = dataset_field::REMAP_DEADLIST;
    let lists = (names::dataset_word(cx, a, field).await?, names::dataset_word(cx, b, field).await?);
    for (to, list) in [(b, lists.0), (a, lists.1)] {
        match list {
            Some(list) => {
                features::zapify(cx, to).await?;
                cx.put_word(to, field, list).await?;
            }
            None if names::dataset_word(cx, to, field).await?.is_some() => {
                cx.zap_remove(to, field).await?;
            }
            None => {}
        }
    }
    Ok(())
}

//! Destruction of snapshots (OpenZFS `dsl_destroy_snapshot_sync_impl`).
//!
//! ```text
//!   before   prev ◄── S(deadlist A) ◄── next(deadlist B)
//!   after    prev ◄──────────────────── next(A + the blocks of B born up to prev)
//!                     the blocks of B born after prev have no reference left: onto the pool's free list
//! ```
//!
//! Only the keys of the deadlists are read; their block pointers move as whole lists. The bytes that become unique to
//! the neighbours follow from those lists too:
//! - *prev* gains the blocks in next's list born between prev's predecessor and prev;
//! - *next*, if it is a snapshot, gains the blocks in the list after it born between prev and S.

use super::space::{Delta, Use, changed};
use super::{
    DslError, DslSyncContext, bookmark, create, features, history, lists, names, pool_dirs, scan, snapshot, synced,
};
use std::collections::BTreeSet;
use weir_dmu::cycle_guard::CycleGuard;
use weir_dmu::error::ObjectError;
use weir_format::dsl::{Bookmark, dataset_field, dir_field, pool};
use weir_format::features::Feature;
use weir_format::{DslDataset, ObjectId, Txg};

/// Checks that a snapshot may be destroyed; with `defer`, or marked for deferred destruction. Returns its object.
///
/// # Errors
/// [`DslError::Missing`], [`DslError::Busy`] (it is being read), [`DslError::Held`], [`DslError::HasDependents`] (clones).
pub async fn check_destroy_snapshot(
    cx: &mut DslSyncContext<'_>,
    name: &str,
    defer: bool,
) -> Result<ObjectId, DslError> {
    let found = names::find_snapshot(cx, name).await?;
    if (cx.reading)(found.id) {
        return Err(DslError::busy(name, "it is being read"));
    }
    lists::check_lists(cx, found.phys.next_snapshot).await?;
    lists::check_lists(cx, found.at.dir.head_dataset).await?;
    if defer {
        return Ok(found.id);
    }
    if holds_on(cx, &found.phys).await? > 0 {
        return Err(DslError::Held { names: vec![name.to_owned()] });
    }
    if found.phys.children > 1 {
        let dependents = clone_names(cx, &found.phys).await?;
        return Err(DslError::HasDependents { name: name.to_owned(), what: "clones", dependents });
    }
    Ok(found.id)
}

/// Number of holds on a snapshot.
pub(super) async fn holds_on(cx: &DslSyncContext<'_>, phys: &DslDataset) -> Result<usize, DslError> {
    Ok(cx.entries(phys.user_refs).await?.len())
}

/// The names of a snapshot's clones.
pub(super) async fn clone_names(cx: &mut DslSyncContext<'_>, phys: &DslDataset) -> Result<Vec<String>, DslError> {
    let mut out = Vec::new();
    for (_, value) in cx.entries(phys.next_clones).await? {
        if let Some(id) = value.first() {
            let dir = cx.dataset(ObjectId(id)).await?.dir;
            out.push(names::dir_name(cx, dir).await?);
        }
    }
    out.sort_unstable();
    Ok(out)
}

/// Destroys snapshots, all or none. With `defer`, those with holds or clones are marked instead.
///
/// # Errors
/// Those of [`check_destroy_snapshot`], before anything was changed.
pub async fn destroy_snapshots(cx: &mut DslSyncContext<'_>, names: &[String], defer: bool) -> Result<(), DslError> {
    let mut to_destroy = Vec::with_capacity(names.len());
    let mut seen = BTreeSet::new();
    let mut held = Vec::new();
    for name in names {
        let found = match check_destroy_snapshot(cx, name, defer).await {
            // All of them are named.
            Err(DslError::Held { names }) => {
                held.extend(names);
                continue;
            }
            found => found?,
        };
        if seen.insert(found) {
            to_destroy.push(name);
        }
    }
    if !held.is_empty() {
        return Err(DslError::Held { names: held });
    }
    for name in to_destroy {
        let found = names::find_snapshot(cx, name).await?;
        let needed = found.phys.children > 1 || holds_on(cx, &found.phys).await? > 0;
        if needed {
            let phys = DslDataset { flags: found.phys.flags | DslDataset::DEFER_DESTROY, ..found.phys.clone() };
            cx.put_dataset(found.id, &phys).await?;
            history::log(cx, name, found.id, "defer_destroy", "").await?;
        } else {
            history::log(cx, name, found.id, "destroy", "").await?;
            destroy_snapshot(cx, found.id).await?;
        }
    }
    Ok(())
}

/// Destroys a snapshot without holds and clones.
pub(super) async fn destroy_snapshot(cx: &mut DslSyncContext<'_>, id: ObjectId) -> Result<(), DslError> {
    let phys = cx.dataset(id).await?;
    let dir = cx.dir(phys.dir).await?;
    let head_id = dir.head_dataset;
    let bookmarked = bookmarks_of_destroyed(cx, head_id, &phys).await?;
    scan::scan_destroyed(cx, id, Some(phys.next_snapshot)).await?;
    features::drop_features(cx, id).await?;
    unlink_from_previous(cx, id, &phys).await?;
    let next_id = phys.next_snapshot;
    let old_unique = cx.dataset(next_id).await?.unique_bytes;
    move_lists(cx, id, &phys, next_id).await?;
    move_remapped(cx, id, &phys, next_id).await?;
    if !bookmarked {
        remove_clones_key(cx, phys.dir, phys.creation_txg).await?;
    }
    if next_id == head_id {
        recount_head(cx, next_id, old_unique).await?;
    } else {
        next_gains(cx, &phys, next_id).await?;
        let head = cx.dataset(head_id).await?;
        if !bookmarked {
            lists::deadlist_remove_key(cx, head.deadlist, phys.creation_txg).await?;
        }
        if let Some(list) = names::dataset_word(cx, head_id, dataset_field::REMAP_DEADLIST).await? {
            lists::deadlist_remove_key(cx, ObjectId(list), phys.creation_txg).await?;
        }
    }
    forget_snapshot(cx, id, &phys, head_id).await
}

/// Links the previous snapshot to the next one; updates its list of clones if it is a clone's branch point.
async fn unlink_from_previous(cx: &mut DslSyncContext<'_>, id: ObjectId, phys: &DslDataset) -> Result<(), DslError> {
    if phys.prev_snapshot.0 == 0 {
        return Ok(());
    }
    let mut previous = cx.dataset(phys.prev_snapshot).await?;
    if previous.next_snapshot == id {
        previous.next_snapshot = phys.next_snapshot;
        cx.put_dataset(phys.prev_snapshot, &previous).await
    } else if previous.next_clones.0 != 0 {
        cx.set_remove(previous.next_clones, id.0).await?;
        cx.set_insert(previous.next_clones, phys.next_snapshot.0).await
    } else {
        Ok(())
    }
}

/// Moves the deadlists: see the diagram at the top.
async fn move_lists(
    cx: &mut DslSyncContext<'_>,
    id: ObjectId,
    phys: &DslDataset,
    next_id: ObjectId,
) -> Result<(), DslError> {
    let mut next = cx.dataset(next_id).await?;
    (next.prev_snapshot, next.prev_snapshot_txg) = (phys.prev_snapshot, phys.prev_snapshot_txg);
    cx.put_dataset(next_id, &next).await?;
    if phys.prev_snapshot.0 != 0 {
        let mut previous = cx.dataset(phys.prev_snapshot).await?;
        // After unlinking, a previous snapshot that is followed by `next` is no branch point.
        if previous.next_snapshot == next_id {
            let range = (previous.prev_snapshot_txg, phys.prev_snapshot_txg);
            let gained = lists::deadlist_range(cx, next.deadlist, range.0, range.1).await?;
            previous.unique_bytes = changed(previous.unique_bytes, gained.used);
            cx.put_dataset(phys.prev_snapshot, &previous).await?;
        }
    }
    let freed = lists::deadlist_range(cx, next.deadlist, phys.prev_snapshot_txg, Txg(u64::MAX)).await?;
    synced::book(cx, phys.dir, Use::Snapshots, -freed).await?;
    let missing = || ObjectError::NoName { what: "MOS directory entry", name: pool::FREE_BPOBJ.into() };
    let free = cx.pool_object(pool::FREE_BPOBJ).await?.ok_or_else(missing)?;
    lists::deadlist_move(cx, next.deadlist, free, phys.prev_snapshot_txg).await?;
    pool_dirs::book_free(cx, freed).await?;
    lists::deadlist_merge(cx, next.deadlist, phys.deadlist).await?;
    lists::deadlist_destroy(cx, phys.deadlist).await?;
    let phys = DslDataset { deadlist: ObjectId(0), ..cx.dataset(id).await? };
    cx.put_dataset(id, &phys).await
}

/// Moves the remap deadlists in the same way.
async fn move_remapped(
    cx: &mut DslSyncContext<'_>,
    id: ObjectId,
    phys: &DslDataset,
    next: ObjectId,
) -> Result<(), DslError> {
    let of_next = names::dataset_word(cx, next, dataset_field::REMAP_DEADLIST).await?.map(ObjectId);
    let own = names::dataset_word(cx, id, dataset_field::REMAP_DEADLIST).await?.map(ObjectId);
    if let Some(list) = of_next {
        let obsolete = match cx.pool_object(pool::OBSOLETE_BPOBJ).await? {
            Some(obsolete) => obsolete,
            None => {
                let obsolete = lists::list(cx).await?;
                cx.insert_word(super::DIRECTORY, pool::OBSOLETE_BPOBJ, obsolete.0).await?;
                features::count_feature(cx, Feature::OBSOLETE_COUNTS, 1).await?;
                obsolete
            }
        };
        lists::deadlist_move(cx, list, obsolete, phys.prev_snapshot_txg).await?;
    }
    let Some(own) = own else { return Ok(()) };
    match of_next {
        Some(list) => {
            lists::deadlist_merge(cx, list, own).await?;
            lists::deadlist_destroy(cx, own).await?;
            features::count_feature(cx, Feature::OBSOLETE_COUNTS, -1).await
        }
        // The next dataset has none: it takes over this one.
        None => {
            features::zapify(cx, next).await?;
            cx.insert_word(next, dataset_field::REMAP_DEADLIST, own.0).await
        }
    }
}

/// Removes the key from the deadlists of clones' heads that branched off after `key`.
pub(super) async fn remove_clones_key(cx: &mut DslSyncContext<'_>, dir: ObjectId, key: Txg) -> Result<(), DslError> {
    let mut to_visit = vec![dir];
    let mut trail = CycleGuard::default();
    while let Some(dir) = to_visit.pop() {
        trail.step(&cx.mos, dir)?;
        let clones = cx.dir(dir).await?.clones;
        for (_, value) in cx.entries(clones).await? {
            let Some(id) = value.first().map(ObjectId) else { continue };
            let clone = cx.dataset(id).await?;
            if synced::origin_txg(cx, clone.dir).await? <= key {
                continue;
            }
            lists::deadlist_remove_key(cx, clone.deadlist, key).await?;
            if let Some(list) = names::dataset_word(cx, id, dataset_field::REMAP_DEADLIST).await? {
                lists::deadlist_remove_key(cx, ObjectId(list), key).await?;
            }
            to_visit.push(clone.dir);
        }
    }
    Ok(())
}

/// Recounts the unique bytes of the head that follows the destroyed snapshot, and charges its refreservation anew.
async fn recount_head(cx: &mut DslSyncContext<'_>, head_id: ObjectId, old_unique: u64) -> Result<(), DslError> {
    let mut head = cx.dataset(head_id).await?;
    recount_unique(cx, &mut head).await?;
    cx.put_dataset(head_id, &head).await?;
    let reserved = synced::ref_reservation(cx, head.dir).await?;
    if old_unique < reserved {
        let gained = head.unique_bytes.saturating_sub(old_unique).min(reserved - old_unique);
        synced::book(cx, head.dir, Use::RefReservation, Delta::used(-(gained as i64))).await?;
    }
    Ok(())
}

/// Recounts the unique bytes of a head: referenced bytes less those shared with its last snapshot
/// (`dsl_dataset_recalc_head_uniq`).
pub(super) async fn recount_unique(cx: &mut DslSyncContext<'_>, head: &mut DslDataset) -> Result<(), DslError> {
    let shared = match head.prev_snapshot {
        ObjectId(0) => 0,
        previous => cx.dataset(previous).await?.referenced_bytes,
    };
    let dead = lists::deadlist_space(cx, head.deadlist).await?.used;
    head.unique_bytes = head.referenced_bytes.saturating_sub(changed(shared, -dead));
    head.flags |= DslDataset::UNIQUE_ACCURATE;
    Ok(())
}

/// Adds to the next snapshot's unique bytes the blocks that only it and the destroyed one referred to.
async fn next_gains(cx: &mut DslSyncContext<'_>, phys: &DslDataset, next_id: ObjectId) -> Result<(), DslError> {
    let mut next = cx.dataset(next_id).await?;
    let after = cx.dataset(next.next_snapshot).await?;
    let gained = lists::deadlist_range(cx, after.deadlist, phys.prev_snapshot_txg, phys.creation_txg).await?;
    next.unique_bytes = changed(next.unique_bytes, gained.used);
    cx.put_dataset(next_id, &next).await
}

/// Removes a snapshot's name and objects.
async fn forget_snapshot(
    cx: &mut DslSyncContext<'_>,
    id: ObjectId,
    phys: &DslDataset,
    head_id: ObjectId,
) -> Result<(), DslError> {
    let head = cx.dataset(head_id).await?;
    let names = names::snapshots_of(cx, &head).await?;
    if let Some((name, _)) = names.into_iter().find(|(_, of)| *of == id) {
        cx.zap_remove(head.snapshot_names, &name).await?;
        if !name.starts_with('%') {
            create::count_datasets(cx, phys.dir, dir_field::SNAPSHOT_COUNT, -1).await?;
        }
    }
    clear_bootfs(cx, id).await?;
    for zap in [phys.next_clones, phys.props, phys.user_refs] {
        cx.remove_if(zap).await?;
    }
    snapshot::note_snapshots_changed(cx, phys.dir).await?;
    features::remove_zapified(cx, id).await
}

/// Clears the pool's property `bootfs` if it names a destroyed dataset.
pub(super) async fn clear_bootfs(cx: &mut DslSyncContext<'_>, id: ObjectId) -> Result<(), DslError> {
    let Some(props) = cx.pool_object(pool::PROPS).await? else { return Ok(()) };
    if cx.word(props, "bootfs").await? == Some(id.0) {
        cx.zap_remove(props, "bootfs").await?;
    }
    Ok(())
}

/// Updates the bookmarks around a destroyed snapshot: for those before it more is freed before their next snapshot;
/// those at it record that it is gone. Returns whether one of the latter counts freed bytes, so that the deadlists
/// must keep the key.
async fn bookmarks_of_destroyed(
    cx: &mut DslSyncContext<'_>,
    head: ObjectId,
    phys: &DslDataset,
) -> Result<bool, DslError> {
    let Some(zap) = names::bookmarks_zap(cx, head).await? else { return Ok(false) };
    let next = cx.dataset(phys.next_snapshot).await?.deadlist;
    let mut counts = false;
    for (name, mut bookmark) in bookmark::bookmarks_in(cx, zap).await? {
        let at = bookmark.creation_txg;
        if bookmark.flags & Bookmark::HAS_FREED_BEFORE_NEXT == 0 || at < phys.prev_snapshot_txg {
            continue;
        }
        if at < phys.creation_txg {
            let freed = lists::deadlist_range(cx, next, Txg(0), at).await?;
            let [used, compressed, uncompressed] = bookmark.freed_before_next;
            bookmark.freed_before_next = [
                changed(used, freed.used),
                changed(compressed, freed.compressed),
                changed(uncompressed, freed.uncompressed),
            ];
        } else if at == phys.creation_txg {
            bookmark.flags &= !Bookmark::SNAPSHOT_EXISTS;
            counts = true;
        } else {
            continue;
        }
        bookmark::put_bookmark(cx, zap, &name, &bookmark).await?;
    }
    Ok(counts)
}

//! Creation of snapshots (OpenZFS `dsl_dataset_snapshot_sync_impl`).
//!
//! ```text
//!   before   … ── prev ◄── head(deadlist D)           D: blocks of prev that head killed
//!   after    … ── prev ◄── snapshot(D) ◄── head(D')    D': empty, with a key per earlier snapshot
//! ```
//!
//! The snapshot takes over the head's contents, its deadlist and its place in the chain; no data is copied. The head's
//! unique space becomes 0, so a refreservation is charged anew.

use super::names::{Found, check_component, check_name, split_name};
use super::space::{Delta, Use};
use super::{
    DslError, DslSyncContext, bookmark, create, features, history, limits, lists, names, properties, scan, synced,
};
use crate::props;
use std::collections::{BTreeMap, BTreeSet};
use weir_format::dsl::{Bookmark, dataset_field, dir_field};
use weir_format::features::Feature;
use weir_format::{DslDataset, ObjectId, ObjectType, Txg};

/// Checks that all these snapshots (full names) may be created in one txg.
///
/// # Errors
/// [`DslError::Name`], [`DslError::Missing`] (no such dataset), [`DslError::Exists`], [`DslError::Kind`] (two of one dataset), [`DslError::Busy`]
/// (a dataset that is being received or destroyed; a second snapshot in one txg), [`DslError::Space`] (a
/// refreservation without space beside the snapshot; a limit; a pool without space).
pub async fn check_snapshots(cx: &mut DslSyncContext<'_>, names: &[String]) -> Result<(), DslError> {
    let mut seen = BTreeSet::new();
    let mut taken = BTreeMap::new();
    let mut counted = BTreeMap::new();
    for name in names {
        check_name(name)?;
        let (of, Some(('@', snapshot))) = split_name(name) else {
            return Err(DslError::kind(name, "not the name of a snapshot"));
        };
        if !seen.insert(of) {
            return Err(DslError::kind(name, "multiple snapshots of same fs not allowed"));
        }
        let head = names::find_head(cx, of).await?;
        check_snapshot(cx, &head, name, snapshot).await?;
        create::take_count(cx, head.at.id, dir_field::SNAPSHOT_COUNT, 1, ObjectId(0), &mut counted).await?;
        // The refreservation charges the head's unique bytes once more, beside the snapshot.
        let needed = head.phys.unique_bytes.min(synced::ref_reservation(cx, head.at.id).await?);
        if needed > 0 && !limits::take_space(cx, head.at.id, needed, &mut taken).await? {
            let why = "out of space: the refreservation does not fit beside a snapshot";
            return Err(DslError::space(name, why));
        }
    }
    let Some(first) = names.first() else { return Ok(()) };
    create::check_room(cx, first, create::NEW_SNAPSHOT_BLOCKS.saturating_mul(names.len() as u64)).await
}

async fn check_snapshot(cx: &mut DslSyncContext<'_>, head: &Found, name: &str, snapshot: &str) -> Result<(), DslError> {
    check_component(snapshot).map_err(|why| DslError::Name { name: name.to_owned(), why })?;
    if names::snapshot_named(cx, &head.phys, snapshot).await?.is_some() {
        return Err(DslError::exists(name));
    }
    if head.phys.prev_snapshot_txg >= cx.txg() {
        return Err(DslError::busy(name, "a snapshot was created in this txg"));
    }
    if head.phys.flags & DslDataset::INCONSISTENT != 0 {
        return Err(DslError::busy(name, "it is being received or destroyed"));
    }
    lists::check_lists(cx, head.id).await
}

/// Creates snapshots of several datasets, all in one txg, with user properties.
///
/// # Errors
/// Those of [`check_snapshots`], before anything was changed.
pub async fn snapshot(
    cx: &mut DslSyncContext<'_>,
    names: &[String],
    properties: &[(String, props::Value)],
) -> Result<Vec<ObjectId>, DslError> {
    check_snapshots(cx, names).await?;
    let mut made = Vec::with_capacity(names.len());
    for name in names {
        let (of, snapshot) = name.split_once('@').unwrap_or((name, ""));
        let head = names::find_head(cx, of).await?;
        let id = snapshot_head(cx, head.id, snapshot).await?;
        for (property, value) in properties {
            properties::store_on_snapshot(cx, id, property, value).await?;
        }
        history::log(cx, name, id, "snapshot", "").await?;
        made.push(id);
    }
    Ok(made)
}

/// Creates the snapshot `name` of a head.
pub(super) async fn snapshot_head(
    cx: &mut DslSyncContext<'_>,
    head_id: ObjectId,
    name: &str,
) -> Result<ObjectId, DslError> {
    let mut head = cx.dataset(head_id).await?;
    create::count_datasets(cx, head.dir, dir_field::SNAPSHOT_COUNT, 1).await?;
    // The origin of all datasets must be older than any of them.
    let txg = if name == super::pool_dirs::ORIGIN { Txg(1) } else { cx.txg() };
    let snapshot = DslDataset {
        next_snapshot: head_id,
        snapshot_names: ObjectId(0),
        children: 1,
        creation_time_s: cx.now_s,
        creation_txg: txg,
        unique_bytes: 0,
        fsid_guid: cx.fsid(),
        guid: cx.guid(),
        next_clones: ObjectId(0),
        props: ObjectId(0),
        user_refs: ObjectId(0),
        ..head.clone()
    };
    let bonus = snapshot.encode(weir_format::Endian::Little);
    let id = cx.object(ObjectType::DSL_DATASET, ObjectType::DSL_DATASET, bonus).await?;
    features::copy_features(cx, head_id, id).await?;
    link_before(cx, &head, head_id, id).await?;
    let reserved = synced::ref_reservation(cx, head.dir).await?;
    let charge = head.unique_bytes.min(reserved) as i64;
    synced::book(cx, head.dir, Use::RefReservation, Delta::used(charge)).await?;
    let keys = bookmark_keys(cx, head_id, head.prev_snapshot_txg).await?;
    head.deadlist = lists::deadlist_until(cx, head.deadlist, Txg(u64::MAX)).await?;
    for key in std::iter::once(head.prev_snapshot_txg).chain(keys) {
        lists::deadlist_add_key(cx, head.deadlist, key).await?;
    }
    hand_over_fields(cx, &head, head_id, id).await?;
    (head.prev_snapshot, head.prev_snapshot_txg, head.unique_bytes) = (id, txg, 0);
    head.flags |= DslDataset::UNIQUE_ACCURATE;
    cx.put_dataset(head_id, &head).await?;
    cx.insert_word(head.snapshot_names, name, id.0).await?;
    scan::scan_snapshotted(cx, head_id, id).await?;
    note_snapshots_changed(cx, head.dir).await?;
    Ok(id)
}

/// Puts the snapshot in the head's place after the previous snapshot.
async fn link_before(
    cx: &mut DslSyncContext<'_>,
    head: &DslDataset,
    head_id: ObjectId,
    id: ObjectId,
) -> Result<(), DslError> {
    if head.prev_snapshot.0 == 0 {
        return Ok(());
    }
    let mut before = cx.dataset(head.prev_snapshot).await?;
    if before.next_snapshot == head_id {
        before.next_snapshot = id;
        cx.put_dataset(head.prev_snapshot, &before).await?;
    } else if before.next_clones.0 != 0 {
        cx.set_remove(before.next_clones, head_id.0).await?;
        cx.set_insert(before.next_clones, id.0).await?;
    }
    Ok(())
}

/// Births since `after` for which bookmarks need keys in the head's deadlist (`dsl_bookmark_snapshotted`).
async fn bookmark_keys(cx: &mut DslSyncContext<'_>, head: ObjectId, after: Txg) -> Result<Vec<Txg>, DslError> {
    let Some(zap) = names::bookmarks_zap(cx, head).await? else { return Ok(Vec::new()) };
    let counts = |b: &Bookmark| b.flags & Bookmark::HAS_FREED_BEFORE_NEXT != 0 && b.creation_txg > after;
    let bookmarks = bookmark::bookmarks_in(cx, zap).await?;
    let mut keys: Vec<Txg> = bookmarks.into_iter().filter(|(_, b)| counts(b)).map(|(_, b)| b.creation_txg).collect();
    keys.sort_unstable();
    keys.dedup();
    Ok(keys)
}

/// Moves the remap deadlist to the snapshot; a snapshot of an encrypted dataset gets an IV set GUID.
async fn hand_over_fields(
    cx: &mut DslSyncContext<'_>,
    head: &DslDataset,
    head_id: ObjectId,
    id: ObjectId,
) -> Result<(), DslError> {
    if let Some(list) = names::dataset_word(cx, head_id, dataset_field::REMAP_DEADLIST).await? {
        cx.zap_remove(head_id, dataset_field::REMAP_DEADLIST).await?;
        features::zapify(cx, id).await?;
        cx.insert_word(id, dataset_field::REMAP_DEADLIST, list).await?;
    }
    let encrypted = create::dir_word(cx, head.dir, dir_field::CRYPTO_KEY_OBJ).await?.is_some();
    if encrypted && features::is_enabled(cx, Feature::BOOKMARK_V2).await? {
        features::zapify(cx, id).await?;
        cx.insert_word(id, dataset_field::IVSET_GUID, cx.fsid()).await?;
    }
    Ok(())
}

/// Records when a directory's snapshots last changed.
pub(super) async fn note_snapshots_changed(cx: &mut DslSyncContext<'_>, dir: ObjectId) -> Result<(), DslError> {
    if !features::is_enabled(cx, Feature::EXTENSIBLE_DATASET).await? {
        return Ok(());
    }
    features::zapify(cx, dir).await?;
    let value = weir_dmu::zap::Value { int_size: 8, words: vec![cx.now_s, 0] };
    cx.put(dir, dir_field::SNAPSHOTS_CHANGED, value).await
}

//! Renaming (OpenZFS `dsl_dir_rename_sync`, `dsl_dataset_rename_snapshot_sync`).

use super::limits::Moved;
use super::names::{Found, FoundDir, check_component};
use super::space::{Delta, Use, difference};
use super::{DslError, DslSyncContext, create, features, history, key, limits, names, properties, snapshot, synced};
use crate::matching;
use std::collections::BTreeSet;
use weir_dmu::cycle_guard::CycleGuard;
use weir_dmu::zap;
use weir_format::dsl::dir_field;
use weir_format::features::Feature;
use weir_format::{DslDataset, ObjectId};

/// Checks that a file system or volume with its descendants may be renamed to `to`.
///
/// # Errors
/// [`DslError::Missing`], [`DslError::Exists`], [`DslError::NoParent`], [`DslError::Name`],
/// [`DslError::Kind`] (the root; below itself), [`DslError::Space`] (no space below the new parent).
pub async fn check_rename(cx: &mut DslSyncContext<'_>, from: &str, to: &str) -> Result<(), DslError> {
    let found = names::find_head(cx, from).await?.at;
    if found.dir.parent.0 == 0 {
        return Err(DslError::kind(from, "the root dataset has its pool's name"));
    }
    if to.strip_prefix(from).is_some_and(|rest| rest.starts_with('/')) {
        return Err(DslError::kind(to, "a dataset cannot be below itself"));
    }
    let parent = create::check_place(cx, to).await?;
    check_longest(cx, &found, from, to).await?;
    if parent != found.dir.parent {
        check_move(cx, &found, parent, to).await?;
    }
    Ok(())
}

/// Checks the names of descendants and snapshots, which become longer too.
async fn check_longest(cx: &mut DslSyncContext<'_>, found: &FoundDir, from: &str, to: &str) -> Result<(), DslError> {
    let more = to.len().saturating_sub(from.len());
    let mut to_visit = vec![(found.id, from.len())];
    let mut trail = CycleGuard::default();
    while let Some((id, len)) = to_visit.pop() {
        trail.step(&cx.mos, id)?;
        let dir = cx.dir(id).await?;
        let snapshots = match dir.head_dataset {
            ObjectId(0) => Vec::new(),
            head => names::snapshots_of(cx, &cx.dataset(head).await?).await?,
        };
        let longest = snapshots.iter().map(|(n, _)| n.len() + 1).max().unwrap_or(0);
        if len + longest + more > 255 {
            return Err(DslError::Name { name: to.to_owned(), why: "a name below would be too long" });
        }
        to_visit.extend(names::children_of(cx, &dir).await?.into_iter().map(|(n, child)| (child, len + 1 + n.len())));
    }
    Ok(())
}

/// Checks the space and count limits of the new parent and its ancestors for the moved subtree.
async fn check_move(cx: &mut DslSyncContext<'_>, found: &FoundDir, parent: ObjectId, to: &str) -> Result<(), DslError> {
    let dir = &found.dir;
    let moved = Moved {
        bytes: dir.used_bytes.max(dir.reserved_bytes),
        datasets: 1 + create::dir_word(cx, found.id, dir_field::FILESYSTEM_COUNT).await?.unwrap_or(0),
        snapshots: create::dir_word(cx, found.id, dir_field::SNAPSHOT_COUNT).await?.unwrap_or(0),
    };
    if !limits::check_transfer(cx, dir.parent, parent, &moved).await? {
        return Err(DslError::space(to, "out of space below the new parent"));
    }
    // A change of a key visits the descendants that inherit it and no others: they must stay below their root.
    match key::key_root(cx, found.id).await? {
        Some(root) if root != found.id && key::key_root(cx, parent).await? != Some(root) => {
            Err(DslError::Key { name: found.name.clone(), why: "cannot leave its encryption root" })
        }
        _ => Ok(()),
    }
}

/// Renames a file system or volume with its descendants.
///
/// # Errors
/// Those of [`check_rename`], before any change except counts that are started.
pub async fn rename(cx: &mut DslSyncContext<'_>, from: &str, to: &str) -> Result<(), DslError> {
    let found = names::find_head(cx, from).await?;
    if features::is_active(cx, Feature::FILESYSTEM_LIMITS).await? {
        // The target may have counts, which then must include the moved subtree.
        properties::start_counting(cx, found.at.id).await?;
    }
    check_rename(cx, from, to).await?;
    history::log(cx, from, found.id, "rename", &format!("-> {to}")).await?;
    let parent = create::check_place(cx, to).await?;
    let dir_id = found.at.id;
    let old_parent = found.at.dir.parent;
    let last = |name: &str| name.rsplit_once('/').map_or(name.to_owned(), |(_, last)| last.to_owned());
    if parent != old_parent {
        move_space(cx, dir_id, old_parent, parent).await?;
    }
    cx.zap_remove(cx.dir(old_parent).await?.children, &last(from)).await?;
    cx.insert_word(cx.dir(parent).await?.children, &last(to), dir_id.0).await?;
    let mut dir = cx.dir(dir_id).await?;
    dir.parent = parent;
    cx.put_dir(dir_id, &dir).await
}

/// Moves a directory's charge from one parent to another.
async fn move_space(cx: &mut DslSyncContext<'_>, id: ObjectId, from: ObjectId, to: ObjectId) -> Result<(), DslError> {
    let dir = cx.dir(id).await?;
    let datasets = 1 + create::dir_word(cx, id, dir_field::FILESYSTEM_COUNT).await?.unwrap_or(0) as i64;
    let snapshots = create::dir_word(cx, id, dir_field::SNAPSHOT_COUNT).await?.unwrap_or(0) as i64;
    for (parent, sign) in [(from, -1), (to, 1)] {
        create::count_datasets(cx, parent, dir_field::FILESYSTEM_COUNT, sign * datasets).await?;
        create::count_datasets(cx, parent, dir_field::SNAPSHOT_COUNT, sign * snapshots).await?;
    }
    let size = Delta::new(dir.used_bytes, dir.compressed_bytes, dir.uncompressed_bytes);
    let unused = difference(dir.reserved_bytes.max(dir.used_bytes), dir.used_bytes);
    synced::book(cx, from, Use::Children, -size).await?;
    synced::book(cx, to, Use::Children, size).await?;
    synced::book(cx, from, Use::ChildReservations, Delta::used(-unused)).await?;
    synced::book(cx, to, Use::ChildReservations, Delta::used(unused)).await
}

/// Checks that a snapshot may have another name after the `@`.
async fn check_rename_snapshot(
    cx: &mut DslSyncContext<'_>,
    from: &str,
    to: &str,
) -> Result<(Found, DslDataset), DslError> {
    check_component(to).map_err(|why| DslError::Name { name: to.to_owned(), why })?;
    let found = names::find_snapshot(cx, from).await?;
    let head = cx.dataset(found.at.dir.head_dataset).await?;
    let full = format!("{}@{to}", found.at.name);
    if names::snapshot_named(cx, &head, to).await?.is_some() {
        return Err(DslError::exists(&full));
    }
    if full.len() > 255 {
        return Err(DslError::Name { name: full, why: "name is too long" });
    }
    Ok((found, head))
}

/// A snapshot to rename with the fields of its head, and the new name after the `@`.
type SnapshotRename<'n> = (Found, DslDataset, &'n String);

/// Checks that snapshots (full names) may have other names after the `@`; at most one per dataset.
///
/// # Errors
/// [`DslError::Missing`], [`DslError::Exists`], [`DslError::Name`], [`DslError::Kind`] (two of one dataset).
pub async fn check_rename_snapshots(cx: &mut DslSyncContext<'_>, names: &[(String, String)]) -> Result<(), DslError> {
    plan_renames(cx, names).await.map(drop)
}

async fn plan_renames<'n>(
    cx: &mut DslSyncContext<'_>,
    names: &'n [(String, String)],
) -> Result<Vec<SnapshotRename<'n>>, DslError> {
    let mut plan = Vec::with_capacity(names.len());
    let mut seen = BTreeSet::new();
    for (from, to) in names {
        let (found, head) = check_rename_snapshot(cx, from, to).await?;
        if !seen.insert(found.at.id) {
            return Err(DslError::kind(from, "two snapshots of one dataset"));
        }
        plan.push((found, head, to));
    }
    Ok(plan)
}

/// Renames snapshots (full names) to other names after the `@`, all or none; at most one per dataset.
///
/// # Errors
/// Those of [`check_rename_snapshots`], before anything was changed.
pub async fn rename_snapshots(cx: &mut DslSyncContext<'_>, names: &[(String, String)]) -> Result<(), DslError> {
    for (found, head, to) in plan_renames(cx, names).await? {
        history::log(cx, &found.name, found.id, "rename", &format!("-> @{to}")).await?;
        let old = found.name.split_once('@').map_or("", |(_, name)| name);
        let how = matching(&head);
        zap::remove_match(cx.rq, &cx.mos, cx.tx, head.snapshot_names, old.as_bytes(), how).await?;
        cx.insert_word(head.snapshot_names, to, found.id.0).await?;
        snapshot::note_snapshots_changed(cx, found.at.id).await?;
    }
    Ok(())
}

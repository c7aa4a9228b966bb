//! Bookmarks (OpenZFS `module/zfs/dsl_bookmark.c`): the GUID and txgs of a snapshot, which outlive it, and, with
//! `feature@bookmark_written`, how much of the snapshot's data was freed since.
//!
//! A bookmark that counts freed bytes needs a key at its creation txg in the deadlists of the heads that descend from
//! it: the key of its snapshot stays as long as the bookmark.

use super::names::{Found, check_name, split_name};
use super::{DslError, DslSyncContext, ZAP_METADATA, create, destroy, features, history, lists, names, redact};
use crate::matching;
use std::borrow::Cow;
use std::collections::BTreeSet;
use weir_dmu::cycle_guard::CycleGuard;
use weir_dmu::zap::name::normalize;
use weir_dmu::zap::{Match, Value};
use weir_format::dsl::{Bookmark, RedactionList, dataset_field, dir_field};
use weir_format::features::Feature;
use weir_format::zap::NormFlags;
use weir_format::{DslDataset, ObjectId, Txg};

/// The bookmarks in a ZAP, from the oldest to the newest; those of one txg by name.
pub(super) async fn bookmarks_in(cx: &DslSyncContext<'_>, zap: ObjectId) -> Result<Vec<(String, Bookmark)>, DslError> {
    let entries = cx.entries(zap).await?;
    let decoded = |(name, value): (String, Value)| Some((name, Bookmark::from_words(&value.words)?));
    let mut out: Vec<_> = entries.into_iter().filter_map(decoded).collect();
    out.sort_by(|a, b| (a.1.creation_txg, &a.0).cmp(&(b.1.creation_txg, &b.0)));
    Ok(out)
}

/// Stores a bookmark, in the shortest form that holds it.
pub(super) async fn put_bookmark(
    cx: &DslSyncContext<'_>,
    zap: ObjectId,
    name: &str,
    bookmark: &Bookmark,
) -> Result<(), DslError> {
    let mut words = bookmark.to_words().to_vec();
    if !needs_newer_form(bookmark) {
        words.truncate(Bookmark::WORDS_V1);
    }
    cx.put(zap, name, Value { int_size: 8, words }).await
}

/// Whether a bookmark has fields that the oldest form cannot hold.
pub(super) fn needs_newer_form(bookmark: &Bookmark) -> bool {
    bookmark.ivset_guid != 0 || bookmark.flags & Bookmark::HAS_FREED_BEFORE_NEXT != 0 || bookmark.redaction_list.0 != 0
}

/// The bookmark of a snapshot (`dsl_bookmark_set_phys`).
pub(super) async fn bookmark_of(
    cx: &mut DslSyncContext<'_>,
    id: ObjectId,
    phys: &DslDataset,
) -> Result<Bookmark, DslError> {
    let mut bookmark = Bookmark {
        guid: phys.guid,
        creation_txg: phys.creation_txg,
        creation_time_s: phys.creation_time_s,
        ..Bookmark::default()
    };
    let encrypted = create::dir_word(cx, phys.dir, dir_field::CRYPTO_KEY_OBJ).await?.is_some();
    if encrypted && features::is_enabled(cx, Feature::BOOKMARK_V2).await? {
        bookmark.ivset_guid = names::dataset_word(cx, id, dataset_field::IVSET_GUID).await?.unwrap_or(0);
    }
    if features::is_enabled(cx, Feature::BOOKMARK_WRITTEN).await? {
        bookmark.flags = Bookmark::SNAPSHOT_EXISTS | Bookmark::HAS_FREED_BEFORE_NEXT;
        bookmark.referenced = [phys.referenced_bytes, phys.compressed_bytes, phys.uncompressed_bytes];
        let next = cx.dataset(phys.next_snapshot).await?;
        let freed = lists::deadlist_space(cx, next.deadlist).await?;
        bookmark.freed_before_next = [freed.used as u64, freed.compressed as u64, freed.uncompressed as u64];
    }
    Ok(bookmark)
}

/// Adds a bookmark to a head, and counts it.
pub(super) async fn add_bookmark(
    cx: &mut DslSyncContext<'_>,
    head: ObjectId,
    name: &str,
    bookmark: &Bookmark,
) -> Result<(), DslError> {
    let zap = match names::bookmarks_zap(cx, head).await? {
        Some(zap) => zap,
        None => {
            let zap = cx.zap_folding(ZAP_METADATA).await?;
            features::count_feature(cx, Feature::BOOKMARKS, 1).await?;
            features::zapify(cx, head).await?;
            cx.insert_word(head, dataset_field::BOOKMARK_NAMES, zap.0).await?;
            zap
        }
    };
    if needs_newer_form(bookmark) {
        features::count_feature(cx, Feature::BOOKMARK_V2, 1).await?;
    }
    put_bookmark(cx, zap, name, bookmark).await
}

/// Adds a new bookmark to a head, and counts it, also as one that counts freed bytes.
pub(super) async fn add_counted(
    cx: &mut DslSyncContext<'_>,
    head: ObjectId,
    name: &str,
    bookmark: &Bookmark,
) -> Result<(), DslError> {
    if bookmark.flags & Bookmark::HAS_FREED_BEFORE_NEXT != 0 {
        features::count_feature(cx, Feature::BOOKMARK_WRITTEN, 1).await?;
    }
    add_bookmark(cx, head, name, bookmark).await
}

/// Makes the empty list of a bookmark of a redacted snapshot, which keeps what the snapshot was redacted for; 0 for other
/// snapshots (`dsl_bookmark_create_sync_impl_snap`).
async fn list_of_redacted(cx: &mut DslSyncContext<'_>, snapshot: ObjectId) -> Result<ObjectId, DslError> {
    match features::redaction_of(cx, snapshot).await? {
        Some(snapshots) => {
            let list = RedactionList { snapshots, ..RedactionList::default() };
            redact::make_list(cx, &list.completed()).await
        }
        None => Ok(ObjectId(0)),
    }
}

/// Counts anew in the bookmarks at `origin` the bytes freed before the next snapshot, which changed
/// (`dsl_bookmark_next_changed`).
pub(super) async fn bookmarks_recounted(
    cx: &mut DslSyncContext<'_>,
    head: ObjectId,
    origin: ObjectId,
) -> Result<(), DslError> {
    let Some(zap) = names::bookmarks_zap(cx, head).await? else { return Ok(()) };
    let phys = cx.dataset(origin).await?;
    for (name, old) in bookmarks_in(cx, zap).await? {
        if old.creation_txg == phys.creation_txg && old.flags & Bookmark::HAS_FREED_BEFORE_NEXT != 0 {
            let new = bookmark_of(cx, origin, &phys).await?;
            put_bookmark(cx, zap, &name, &Bookmark { redaction_list: old.redaction_list, ..new }).await?;
        }
    }
    Ok(())
}

/// Removes the redaction list of a bookmark that is destroyed.
pub(super) async fn drop_redaction_list(cx: &mut DslSyncContext<'_>, bookmark: &Bookmark) -> Result<(), DslError> {
    if bookmark.redaction_list.0 == 0 {
        return Ok(());
    }
    let object = cx.mos.object(cx.rq, bookmark.redaction_list).await?;
    if object.dnode.spill.is_some() {
        features::count_feature(cx, Feature::REDACTION_LIST_SPILL, -1).await?;
    }
    cx.remove(bookmark.redaction_list).await?;
    features::count_feature(cx, Feature::REDACTION_BOOKMARKS, -1).await
}

/// Whether a point is in a head's history: the snapshot that this txg created in a directory is one of the head's own, or
/// one up to an origin of it (`dsl_dataset_is_before`). A bookmark keeps the point of a snapshot that is destroyed.
async fn is_before(cx: &DslSyncContext<'_>, (dir, created): (ObjectId, Txg), head: &Found) -> Result<bool, DslError> {
    let mut at = head.at.dir.clone();
    let mut until = Txg(u64::MAX);
    let mut trail = CycleGuard::default();
    loop {
        trail.step(&cx.mos, at.head_dataset)?;
        if cx.dataset(at.head_dataset).await?.dir == dir {
            return Ok(created <= until);
        }
        if at.origin.0 == 0 {
            return Ok(false);
        }
        let origin = cx.dataset(at.origin).await?;
        until = origin.creation_txg;
        at = cx.dir(origin.dir).await?;
    }
}

/// Checks that a bookmark `name` of `source`, a snapshot or a bookmark, may be made.
///
/// # Errors
/// [`DslError::Feature`], [`DslError::Missing`], [`DslError::Exists`], [`DslError::Kind`] (the source is
/// not in the dataset's history), [`DslError::Name`].
pub async fn check_bookmark(cx: &mut DslSyncContext<'_>, name: &str, source: &str) -> Result<(), DslError> {
    check_name(name)?;
    if !features::is_enabled(cx, Feature::BOOKMARKS).await? {
        return Err(DslError::Feature { name: name.to_owned(), feature: Feature::BOOKMARKS.name });
    }
    let (of, Some(('#', short))) = split_name(name) else {
        return Err(DslError::kind(name, "not the name of a bookmark"));
    };
    let head = names::find_head(cx, of).await?;
    if bookmark_named(cx, &head, short).await?.is_some() {
        return Err(DslError::exists(name));
    }
    create::check_room(cx, name, create::NEW_BOOKMARK_BLOCKS).await?;
    let point = match split_name(source) {
        (_, Some(('@', _))) => {
            let snapshot = names::find_snapshot(cx, source).await?;
            if let Some(guids) = features::redaction_of(cx, snapshot.id).await? {
                redact::check_number(name, &guids)?;
            }
            (snapshot.at.id, snapshot.phys.creation_txg)
        }
        (_, Some(('#', _))) => {
            let (of_source, _, bookmark) = find_bookmark(cx, source).await?;
            (of_source.at.id, bookmark.creation_txg)
        }
        _ => return Err(DslError::kind(source, "neither a snapshot nor a bookmark")),
    };
    match is_before(cx, point, &head).await? {
        true => Ok(()),
        false => Err(DslError::kind(source, "the source is not an ancestor of the new bookmark's dataset")),
    }
}

/// The bookmark of a head that has this name after the `#`, with its stored name.
pub(super) async fn bookmark_named(
    cx: &DslSyncContext<'_>,
    head: &Found,
    short: &str,
) -> Result<Option<(String, Bookmark)>, DslError> {
    let Some(zap) = names::bookmarks_zap(cx, head.id).await? else { return Ok(None) };
    let mut all = bookmarks_in(cx, zap).await?;
    let mut at = all.iter().position(|(name, _)| name == short);
    if at.is_none() && matching(&head.phys) == Match::Normalized {
        // The comparison of names in ZAPs that ignore case.
        let folded = |name: &str| normalize(name.as_bytes(), NormFlags(NormFlags::TO_UPPER)).map(Cow::into_owned);
        at = all.iter().position(|(name, _)| folded(name) == folded(short));
    }
    Ok(at.map(|at| all.swap_remove(at)))
}

/// A bookmark by its full name: its head, its stored name, its contents.
async fn find_bookmark(cx: &mut DslSyncContext<'_>, name: &str) -> Result<(Found, String, Bookmark), DslError> {
    let (of, short) = name.split_once('#').unwrap_or((name, ""));
    let head = names::find_head(cx, of).await?;
    let (short, bookmark) = bookmark_named(cx, &head, short).await?.ok_or_else(|| DslError::missing(name))?;
    Ok((head, short, bookmark))
}

/// Creates bookmarks, `(name, source)` each, all or none.
///
/// # Errors
/// Those of [`check_bookmark`], before anything was changed.
pub async fn bookmark(cx: &mut DslSyncContext<'_>, bookmarks: &[(String, String)]) -> Result<(), DslError> {
    let mut seen = BTreeSet::new();
    for (name, source) in bookmarks {
        check_bookmark(cx, name, source).await?;
        if !seen.insert(name) {
            return Err(DslError::exists(name));
        }
    }
    for (name, source) in bookmarks {
        let (of, short) = name.split_once('#').unwrap_or((name, ""));
        let head = names::find_head(cx, of).await?.id;
        let bookmark = if source.contains('@') {
            let snapshot = names::find_snapshot(cx, source).await?;
            let made = bookmark_of(cx, snapshot.id, &snapshot.phys).await?;
            Bookmark { redaction_list: list_of_redacted(cx, snapshot.id).await?, ..made }
        } else {
            // A copy has no redaction list: the list belongs to the original.
            Bookmark { redaction_list: ObjectId(0), ..find_bookmark(cx, source).await?.2 }
        };
        add_counted(cx, head, short, &bookmark).await?;
        let text = format!("name={short} creation_txg={}", bookmark.creation_txg);
        history::log(cx, of, head, "bookmark", &text).await?;
    }
    Ok(())
}

/// Destroys bookmarks (full names), all or none; a missing bookmark is no error.
///
/// # Errors
/// [`DslError::Busy`] if a stream uses the redaction list of one.
pub async fn destroy_bookmarks(cx: &mut DslSyncContext<'_>, names: &[String]) -> Result<(), DslError> {
    for name in names {
        match find_bookmark(cx, name).await {
            Ok((_, _, bookmark)) if (cx.reading)(bookmark.redaction_list) => {
                return Err(DslError::busy(name, "its redaction list is in use"));
            }
            Ok(_) | Err(DslError::Missing { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    for name in names {
        let (head, short, bookmark) = match find_bookmark(cx, name).await {
            Err(DslError::Missing { .. }) => continue,
            other => other?,
        };
        let Some(zap) = names::bookmarks_zap(cx, head.id).await? else { continue };
        destroy_bookmark(cx, head.id, zap, &short, &bookmark).await?;
        history::log(cx, &head.name, head.id, "remove bookmark", &format!("name={short}")).await?;
    }
    Ok(())
}

async fn destroy_bookmark(
    cx: &mut DslSyncContext<'_>,
    head_id: ObjectId,
    zap: ObjectId,
    name: &str,
    bookmark: &Bookmark,
) -> Result<(), DslError> {
    let counts = |b: &Bookmark| b.flags & Bookmark::HAS_FREED_BEFORE_NEXT != 0;
    if needs_newer_form(bookmark) {
        features::count_feature(cx, Feature::BOOKMARK_V2, -1).await?;
    }
    if counts(bookmark) {
        let head = cx.dataset(head_id).await?;
        let at = bookmark.creation_txg;
        let others = bookmarks_in(cx, zap).await?;
        let needed = others.iter().any(|(n, b)| n != name && b.creation_txg == at && counts(b));
        let snapshot_is_there = bookmark.flags & Bookmark::SNAPSHOT_EXISTS != 0;
        if !needed && !snapshot_is_there && at < head.prev_snapshot_txg {
            destroy::remove_clones_key(cx, head.dir, at).await?;
            lists::deadlist_remove_key(cx, head.deadlist, at).await?;
        }
        features::count_feature(cx, Feature::BOOKMARK_WRITTEN, -1).await?;
    }
    drop_redaction_list(cx, bookmark).await?;
    cx.zap_remove(zap, name).await?;
    if cx.entries(zap).await?.is_empty() {
        cx.remove(zap).await?;
        features::count_feature(cx, Feature::BOOKMARKS, -1).await?;
        cx.zap_remove(head_id, dataset_field::BOOKMARK_NAMES).await?;
    }
    Ok(())
}

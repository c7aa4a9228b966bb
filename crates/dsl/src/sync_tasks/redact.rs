//! Redaction bookmarks (OpenZFS `module/zfs/dmu_redact.c`, `dsl_bookmark_create_redacted_sync`).
//!
//! ```text
//!   begin     the bookmark, with an empty list
//!   append …  each in a txg of its own: entries behind those that are there, and how far they reach
//!   complete  the list may be used
//! ```
//!
//! A redaction that ends early leaves an incomplete list, which no stream uses. To begin it again with the same snapshots
//! clears the list. The header is in the bonus area: lists whose header is in a spill block (`redaction_list_spill`) are read,
//! and not made.

use super::names::{self, split_name};
use super::{DslError, DslSyncContext, bookmark, create, features, history};
use crate::redaction;
use weir_dmu::live::NewObject;
use weir_format::dsl::{Bookmark, RedactionBlock, RedactionList};
use weir_format::features::Feature;
use weir_format::{Endian, ObjectId, ObjectType};
use weir_machine::invariant;

/// Type of arrays of 64-bit numbers that are metadata (`DMU_OTN_UINT64_METADATA`).
const NUMBERS: ObjectType = ObjectType(0xc3);
/// Maximum size of a bonus area in bytes (`DN_OLD_MAX_BONUSLEN`).
const MAX_BONUS_BYTES: usize = 320;
/// Maximum number of snapshots of a list, whose header is in the bonus area.
pub const MAX_SNAPSHOTS: usize = (MAX_BONUS_BYTES - RedactionList::HEADER_BYTES) / 8;
/// Message of OpenZFS if there are more.
const TOO_MANY: &str = "too many redaction snapshots specified";
/// Message of OpenZFS if a name has a `#`.
const NO_HASH: &str = "redaction bookmark name must not contain '#'";

/// Description of a redaction bookmark to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRedaction {
    /// Full name of the snapshot that is redacted.
    pub snapshot: String,
    /// Name after the `#` of the bookmark.
    pub bookmark: String,
    /// GUIDs of the snapshots whose changes are redacted.
    pub guids: Vec<u64>,
}

impl NewRedaction {
    /// Full name of the bookmark.
    pub fn full_name(&self) -> String {
        let of = self.snapshot.split('@').next().unwrap_or_default();
        format!("{of}#{}", self.bookmark)
    }
}

/// A redaction list that is being made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedactionTask {
    /// Full name of the bookmark.
    pub name: String,
    /// Object of the list in the MOS.
    pub list: ObjectId,
}

/// Checks that a redaction bookmark may be made. Returns the bookmark of an interrupted redaction that it continues.
///
/// # Errors
/// [`DslError::Feature`], [`DslError::Exists`] if a bookmark of that name is an ordinary one or complete, and those of
/// [`bookmark::check_bookmark`]; [`DslError::Kind`] with OpenZFS's message.
pub async fn check_begin(cx: &mut DslSyncContext<'_>, new: &NewRedaction) -> Result<Option<Bookmark>, DslError> {
    let name = new.full_name();
    if new.bookmark.contains('#') {
        return Err(DslError::kind(&new.bookmark, NO_HASH));
    }
    if !features::is_enabled(cx, Feature::REDACTION_BOOKMARKS).await? {
        return Err(DslError::Feature { name, feature: Feature::REDACTION_BOOKMARKS.name });
    }
    check_number(&name, &new.guids)?;
    let snapshot = names::find_snapshot(cx, &new.snapshot).await?;
    let head = names::find_head(cx, snapshot_head(&new.snapshot)).await?;
    let Some((_, found)) = bookmark::bookmark_named(cx, &head, &new.bookmark).await? else {
        bookmark::check_bookmark(cx, &name, &new.snapshot).await?;
        return Ok(None);
    };
    if found.redaction_list.0 == 0 || found.guid != snapshot.phys.guid {
        return Err(DslError::exists(&name));
    }
    let mut present = header_of(cx, found.redaction_list).await?;
    let mut wanted = new.guids.clone();
    let is_complete = present.is_complete();
    present.snapshots.sort_unstable();
    wanted.sort_unstable();
    match present.snapshots == wanted {
        false => Err(DslError::kind(&name, "attempted to resume redaction with a mismatched redaction list")),
        true if is_complete => Err(DslError::exists(&name)),
        true => Ok(Some(found)),
    }
}

/// Checks that a list has room for these snapshots.
///
/// # Errors
/// [`DslError::Kind`] with OpenZFS's message.
pub(super) fn check_number(name: &str, guids: &[u64]) -> Result<(), DslError> {
    if guids.len() > MAX_SNAPSHOTS { Err(DslError::kind(name, TOO_MANY)) } else { Ok(()) }
}

/// The dataset of a snapshot's name.
fn snapshot_head(snapshot: &str) -> &str {
    split_name(snapshot).0
}

async fn header_of(cx: &DslSyncContext<'_>, list: ObjectId) -> Result<RedactionList, DslError> {
    let object = cx.mos.object(cx.rq, list).await?;
    Ok(redaction::header(&cx.mos, cx.rq, &object).await?)
}

/// Makes the bookmark with an empty list, or clears the list of an interrupted redaction.
///
/// # Errors
/// Those of [`check_begin`], before anything was changed.
pub async fn begin(cx: &mut DslSyncContext<'_>, new: &NewRedaction) -> Result<RedactionTask, DslError> {
    let name = new.full_name();
    if let Some(found) = check_begin(cx, new).await? {
        let list = found.redaction_list;
        cx.mos.frees().punch(cx.rq, cx.tx, list, 0, u64::MAX).await?;
        put_header(cx, list, &RedactionList { snapshots: new.guids.clone(), ..RedactionList::default() }).await?;
        return Ok(RedactionTask { name, list });
    }
    let snapshot = names::find_snapshot(cx, &new.snapshot).await?;
    let head = names::find_head(cx, snapshot_head(&new.snapshot)).await?;
    let mut made = bookmark::bookmark_of(cx, snapshot.id, &snapshot.phys).await?;
    let list = make_list(cx, &RedactionList { snapshots: new.guids.clone(), ..RedactionList::default() }).await?;
    made.redaction_list = list;
    bookmark::add_counted(cx, head.id, &new.bookmark, &made).await?;
    let text = format!(
        "name={} creation_txg={} target_snap={} redact_obj={list}",
        new.bookmark, made.creation_txg, snapshot.id
    );
    history::log(cx, &head.name, head.id, "bookmark", &text).await?;
    invariant!(header_of(cx, list).await?.entries == 0, "a new redaction list is empty");
    Ok(RedactionTask { name, list })
}

/// Makes the object of a redaction list, and counts it.
pub(super) async fn make_list(cx: &mut DslSyncContext<'_>, header: &RedactionList) -> Result<ObjectId, DslError> {
    let bonus = header.encode(Endian::Little);
    invariant!(bonus.len() <= MAX_BONUS_BYTES, "the header of a redaction list has {} bytes", bonus.len());
    let new = NewObject::new(NUMBERS, RedactionList::BLOCK_BYTES).bonus(NUMBERS, bonus);
    let list = cx.mos.changes().create(cx.rq, cx.tx, &new).await?;
    features::count_feature(cx, Feature::REDACTION_BOOKMARKS, 1).await?;
    Ok(list)
}

async fn put_header(cx: &DslSyncContext<'_>, list: ObjectId, header: &RedactionList) -> Result<(), DslError> {
    let endian = cx.mos.object(cx.rq, list).await?.dnode.endian;
    Ok(cx.mos.changes().set_bonus(cx.rq, cx.tx, list, NUMBERS, &header.encode(endian)).await?)
}

/// The header of a list that is being made.
async fn current(cx: &mut DslSyncContext<'_>, task: &RedactionTask) -> Result<RedactionList, DslError> {
    let (of, short) = task.name.split_once('#').unwrap_or((&task.name, ""));
    let head = names::find_head(cx, of).await?;
    let found = bookmark::bookmark_named(cx, &head, short).await?;
    match found {
        Some((_, found)) if found.redaction_list == task.list => header_of(cx, task.list).await,
        _ => Err(DslError::missing(&task.name)),
    }
}

/// Adds runs of blocks to a list.
///
/// # Errors
/// [`DslError::Missing`] if the bookmark was destroyed; [`DslError::Space`].
pub async fn append(
    cx: &mut DslSyncContext<'_>,
    task: &RedactionTask,
    runs: &[RedactionBlock],
) -> Result<(), DslError> {
    let mut header = current(cx, task).await?;
    create::check_room(cx, &task.name, create::NEW_BOOKMARK_BLOCKS).await?;
    invariant!(!header.is_complete(), "a complete redaction list does not change");
    let Some(last) = runs.last() else { return Ok(()) };
    let bytes: Vec<u8> = runs.iter().flat_map(RedactionBlock::to_words).flat_map(u64::to_le_bytes).collect();
    let at = header.entries.saturating_mul(RedactionBlock::SIZE as u64);
    cx.mos.writes().write(cx.rq, cx.tx, task.list, at, &bytes).await?;
    header.entries = header.entries.saturating_add(runs.len() as u64);
    header.last_object = last.object;
    header.last_block = last.block.saturating_add(last.count - 1);
    put_header(cx, task.list, &header).await
}

/// Marks a list as complete.
///
/// # Errors
/// [`DslError::Missing`] if the bookmark was destroyed.
pub async fn complete(cx: &mut DslSyncContext<'_>, task: &RedactionTask) -> Result<(), DslError> {
    let header = current(cx, task).await?;
    put_header(cx, task.list, &header.completed()).await?;
    invariant!(header_of(cx, task.list).await?.is_complete(), "the redaction list is complete");
    Ok(())
}

//! Clones (OpenZFS `dmu_objset_clone`): a new file system or volume with the contents of a snapshot.

use super::{Created, DslError, DslSyncContext, create, features, history, lists, names, properties};
use crate::props;
use weir_format::dsl::{crypto_key, dir_field};
use weir_format::{DslDataset, ObjectId};

/// Checks that a clone may be created.
///
/// # Errors
/// Those of [`create::check_create`](super::create::check_create); [`DslError::Missing`] for the snapshot; [`DslError::Busy`] for one
/// that is marked for deferred destruction.
pub async fn check_clone(cx: &mut DslSyncContext<'_>, origin: &str, name: &str) -> Result<(), DslError> {
    let snapshot = names::find_snapshot(cx, origin).await?;
    let parent = create::check_place(cx, name).await?;
    create::check_count_limit(cx, parent, dir_field::FILESYSTEM_COUNT, 1, ObjectId(0)).await?;
    if snapshot.phys.creation_txg >= cx.txg() {
        return Err(DslError::busy(origin, "it was created in this txg"));
    }
    lists::check_lists(cx, snapshot.at.dir.head_dataset).await?;
    if snapshot.phys.flags & DslDataset::DEFER_DESTROY != 0 {
        return Err(DslError::busy(origin, "its destroy is deferred"));
    }
    Ok(())
}

/// Makes a clone share the key of its origin, if that is encrypted.
pub(super) async fn share_key(cx: &mut DslSyncContext<'_>, from: ObjectId, to: ObjectId) -> Result<(), DslError> {
    let Some(key) = create::dir_word(cx, from, dir_field::CRYPTO_KEY_OBJ).await? else { return Ok(()) };
    features::zapify(cx, to).await?;
    cx.insert_word(to, dir_field::CRYPTO_KEY_OBJ, key).await?;
    let key = ObjectId(key);
    let uses = cx.word(key, crypto_key::REFCOUNT).await?.unwrap_or(1);
    cx.put_word(key, crypto_key::REFCOUNT, uses + 1).await
}

/// Creates a clone. Its set begins with the snapshot's header: the caller opens it for writing and clears the
/// intent log in it, which is the origin's, in this txg.
///
/// # Errors
/// Those of [`check_clone`], before anything was changed.
pub async fn clone_snapshot(
    cx: &mut DslSyncContext<'_>,
    origin: &str,
    name: &str,
    properties: &[(String, props::Value)],
) -> Result<Created, DslError> {
    check_clone(cx, origin, name).await?;
    let snapshot = names::find_snapshot(cx, origin).await?;
    let parent = create::check_place(cx, name).await?;
    create::check_new_properties(cx, name, parent, properties, snapshot.phys.referenced_bytes).await?;
    let last = name.rsplit_once('/').map_or(name, |(_, last)| last);
    let created = create::create_head(cx, parent, last, Some(snapshot.id)).await?;
    share_key(cx, snapshot.at.id, created.dir).await?;
    history::log(cx, name, created.dataset, "clone", &format!("origin={origin} ({})", snapshot.id)).await?;
    for (property, value) in properties {
        properties::store_at_creation(cx, created, property, value).await?;
    }
    Ok(created)
}

//! Deadlists for the operations here ([`crate::deadlist`], [`crate::bpobj`]): each call updates the reference count of
//! the shared empty list's feature.

use super::space::Delta;
use super::{DslError, DslSyncContext, features};
use crate::bpobj::{self, EmptyList, Sums};
use crate::{deadlist, livelist};
use weir_dmu::error::ObjectError;
use weir_format::dsl::pool;
use weir_format::features::Feature;
use weir_format::{BlockPointer, ObjectId, ObjectType, Txg};

/// The feature that counts references to the shared empty list.
const EMPTY: &Feature = Feature::EMPTY_BPOBJ;

impl From<Sums> for Delta {
    fn from(sums: Sums) -> Self {
        Delta::new(sums.used_bytes, sums.compressed_bytes, sums.uncompressed_bytes)
    }
}

async fn empty_list(cx: &mut DslSyncContext<'_>) -> Result<EmptyList, DslError> {
    Ok(EmptyList {
        enabled: features::is_enabled(cx, EMPTY).await?,
        counts_frees: features::is_active(cx, Feature::LIVELIST).await?,
        object: cx.word(super::DIRECTORY, pool::EMPTY_BPOBJ).await?.map(ObjectId),
        references: 0,
    })
}

async fn settle(cx: &mut DslSyncContext<'_>, mut empty: EmptyList) -> Result<(), DslError> {
    if empty.references != 0 {
        features::count_feature(cx, EMPTY, empty.references).await?;
    }
    if empty.object.is_some() && features::feature_count(cx, EMPTY).await? == Some(0) {
        empty.discard(cx.rq, &cx.mos, cx.tx).await?;
    }
    Ok(())
}

/// Refuses a dataset whose deadlist has the plain form of pools before version 26: blocks can be inserted, but
/// snapshots before it can be neither created nor destroyed.
pub(super) async fn check_lists(cx: &DslSyncContext<'_>, dataset: ObjectId) -> Result<(), DslError> {
    let list = cx.dataset(dataset).await?.deadlist;
    match cx.object_type(list).await? {
        ObjectType::BPOBJ => {
            Err(ObjectError::Unsupported { what: "this with a deadlist older than pool version 26" }.into())
        }
        _ => Ok(()),
    }
}

/// A new, unshared list of block pointers.
pub(super) async fn list(cx: &mut DslSyncContext<'_>) -> Result<ObjectId, DslError> {
    let counts_frees = features::is_active(cx, Feature::LIVELIST).await?;
    Ok(bpobj::create(cx.rq, &cx.mos, cx.tx, counts_frees).await?)
}

/// Inserts blocks into a deadlist.
pub(super) async fn deadlist_insert(
    cx: &mut DslSyncContext<'_>,
    list: ObjectId,
    pointers: &[BlockPointer],
) -> Result<(), DslError> {
    if pointers.is_empty() {
        return Ok(());
    }
    let mut empty = empty_list(cx).await?;
    let sizes = cx.pool.sizes.clone();
    deadlist::insert(cx.rq, &cx.mos, cx.tx, list, pointers, &*sizes, &mut empty).await?;
    settle(cx, empty).await
}

/// A new deadlist with another one's keys below `until`, all empty.
pub(super) async fn deadlist_until(
    cx: &mut DslSyncContext<'_>,
    list: ObjectId,
    until: Txg,
) -> Result<ObjectId, DslError> {
    let mut empty = empty_list(cx).await?;
    let id = deadlist::clone_until(cx.rq, &cx.mos, cx.tx, list, until, &mut empty).await?;
    settle(cx, empty).await?;
    Ok(id)
}

/// Adds a key that is greater than all existing ones.
pub(super) async fn deadlist_add_key(cx: &mut DslSyncContext<'_>, list: ObjectId, key: Txg) -> Result<(), DslError> {
    let mut empty = empty_list(cx).await?;
    deadlist::add_key(cx.rq, &cx.mos, cx.tx, list, key, &mut empty).await?;
    settle(cx, empty).await
}

/// Removes a key; its blocks move to the key before it.
pub(super) async fn deadlist_remove_key(cx: &mut DslSyncContext<'_>, list: ObjectId, key: Txg) -> Result<(), DslError> {
    let mut empty = empty_list(cx).await?;
    deadlist::remove_key(cx.rq, &cx.mos, cx.tx, list, key, &mut empty).await?;
    settle(cx, empty).await
}

/// Moves all of `from` into `into`.
pub(super) async fn deadlist_merge(
    cx: &mut DslSyncContext<'_>,
    into: ObjectId,
    from: ObjectId,
) -> Result<(), DslError> {
    let mut empty = empty_list(cx).await?;
    let sizes = cx.pool.sizes.clone();
    deadlist::merge(cx.rq, &cx.mos, cx.tx, into, from, &*sizes, &mut empty).await?;
    settle(cx, empty).await
}

/// Moves the blocks born after `after` to a list of block pointers.
pub(super) async fn deadlist_move(
    cx: &mut DslSyncContext<'_>,
    list: ObjectId,
    to: ObjectId,
    after: Txg,
) -> Result<(), DslError> {
    let mut empty = empty_list(cx).await?;
    deadlist::move_bpobj(cx.rq, &cx.mos, cx.tx, list, to, after, &mut empty).await?;
    settle(cx, empty).await
}

/// Removes a deadlist; its blocks stay.
pub(super) async fn deadlist_destroy(cx: &mut DslSyncContext<'_>, list: ObjectId) -> Result<(), DslError> {
    let mut empty = empty_list(cx).await?;
    deadlist::destroy(cx.rq, &cx.mos, cx.tx, list, &mut empty).await?;
    settle(cx, empty).await
}

/// Adds the allocated blocks of the next part of a destroyed clone's livelist to the pool's list `free`; their
/// space is accounted to `$FREE` already. False if there is no such clone.
pub(super) async fn list_deleted_clone(cx: &mut DslSyncContext<'_>, free: ObjectId) -> Result<bool, DslError> {
    let Some(clones) = cx.word(super::DIRECTORY, pool::DELETED_CLONES).await?.map(ObjectId) else {
        return Ok(false);
    };
    let rq = cx.rq;
    let tx = cx.tx;
    let mos = cx.mos.clone();
    let Some(list) = livelist::of_deleted_clones(rq, &mos).await?.first().copied() else {
        cx.zap_remove(super::DIRECTORY, pool::DELETED_CLONES).await?;
        cx.remove(clones).await?;
        return Ok(true);
    };
    let Some((key, part)) = deadlist::lists(rq, &mos, list).await?.into_iter().next() else {
        cx.set_remove(clones, list.0).await?;
        deadlist_destroy(cx, list).await?;
        features::count_feature(cx, Feature::LIVELIST, -1).await?;
        return Ok(true);
    };
    let pointers = livelist::allocated(rq, &mos, part).await?;
    let sizes = cx.pool.sizes.clone();
    bpobj::push(rq, &mos, tx, free, &pointers, false, &*sizes).await?;
    let mut empty = empty_list(cx).await?;
    deadlist::drop_key(rq, &mos, tx, list, (key, part), &mut empty).await?;
    settle(cx, empty).await?;
    Ok(true)
}

/// The sums of a deadlist.
pub(super) async fn deadlist_space(cx: &DslSyncContext<'_>, list: ObjectId) -> Result<Delta, DslError> {
    Ok(deadlist::space(cx.rq, &cx.mos, list).await?.into())
}

/// The sums of the blocks born after `after` and not after `until`.
pub(super) async fn deadlist_range(
    cx: &DslSyncContext<'_>,
    list: ObjectId,
    after: Txg,
    until: Txg,
) -> Result<Delta, DslError> {
    let sizes = cx.pool.sizes.clone();
    Ok(deadlist::space_range(cx.rq, &cx.mos, list, after, until, &*sizes).await?.into())
}

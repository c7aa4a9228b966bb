//! Updates a running scrub when datasets change (OpenZFS `dsl_scan_ds_snapshotted`, `dsl_scan_ds_destroyed`,
//! `dsl_scan_ds_clone_swapped`): its bookmark and its queue name datasets by object, and must remain valid for the
//! implementation that resumes it. [`super::Moves`] has the same for Weir's own scans. Destroying a dataset also removes its error logs (`spa_delete_dataset_errlog`).

use super::{DslError, DslSyncContext, features};
use weir_dmu::zap::{self, Value};
use weir_format::ObjectId;
use weir_format::dsl::{ScanPhys, pool};
use weir_format::features::Feature;

/// State of a scan: running (`DSS_SCANNING`).
const SCANNING: u64 = 1;
/// Flag of a scan: visit the dataset again, from its start (`DSF_VISIT_DS_AGAIN`).
const VISIT_AGAIN: u64 = 1;
/// The object set of a bookmark whose dataset was destroyed (`ZB_DESTROYED_OBJSET`).
const DESTROYED: u64 = u64::MAX;
/// Indices of integers in the scan's entry: the flags, the first integer of the bookmark.
const FLAGS: usize = 23;
const BOOKMARK: usize = 19;

/// The entry of a running scan: its integers, and the ZAP of datasets that it will visit.
async fn running_scan(cx: &DslSyncContext<'_>) -> Result<Option<(Vec<u64>, ObjectId)>, DslError> {
    let Some(value) = zap::lookup(cx.rq, &cx.mos, super::DIRECTORY, pool::SCAN).await? else { return Ok(None) };
    let scan = ScanPhys::from_words(&value.words).filter(|scan| scan.state == SCANNING);
    Ok(scan.map(|scan| (value.words, scan.queue)))
}

async fn put_scan(cx: &DslSyncContext<'_>, words: Vec<u64>) -> Result<(), DslError> {
    cx.put(super::DIRECTORY, pool::SCAN, Value { int_size: 8, words }).await
}

/// Removes a dataset from the queue; returns the txg from which on the scan was to visit it.
async fn unqueue(cx: &DslSyncContext<'_>, queue: ObjectId, id: ObjectId) -> Result<Option<u64>, DslError> {
    if queue.0 == 0 {
        return Ok(None);
    }
    let from = zap::lookup_int(cx.rq, &cx.mos, queue, id.0).await?;
    if from.is_some() {
        cx.set_remove(queue, id.0).await?;
    }
    Ok(from)
}

async fn enqueue(cx: &DslSyncContext<'_>, queue: ObjectId, id: ObjectId, from: Option<u64>) -> Result<(), DslError> {
    if let Some(from) = from {
        zap::put_int(cx.rq, &cx.mos, cx.tx, queue, id.0, from).await?;
    }
    Ok(())
}

/// Replaces a destroyed dataset in the scan; if it is a snapshot, by `next`, which takes over its blocks.
pub(super) async fn scan_destroyed(
    cx: &mut DslSyncContext<'_>,
    id: ObjectId,
    next: Option<ObjectId>,
) -> Result<(), DslError> {
    next.into_iter().for_each(|next| cx.moved_into(next));
    let Some((mut words, queue)) = running_scan(cx).await? else { return Ok(()) };
    if words.get(BOOKMARK) == Some(&id.0) {
        match next {
            Some(next) => {
                words[BOOKMARK] = next.0;
                words[FLAGS] |= VISIT_AGAIN;
            }
            None => words[BOOKMARK..BOOKMARK + 4].copy_from_slice(&[DESTROYED, 0, 0, 0]),
        }
        put_scan(cx, words).await?;
    }
    let from = unqueue(cx, queue, id).await?;
    match next {
        Some(next) => enqueue(cx, queue, next, from).await,
        None => Ok(()),
    }
}

/// Replaces a head by its new snapshot, which has its contents.
pub(super) async fn scan_snapshotted(
    cx: &mut DslSyncContext<'_>,
    head: ObjectId,
    snapshot: ObjectId,
) -> Result<(), DslError> {
    cx.moves.snapshots.push((head, snapshot));
    let Some((mut words, queue)) = running_scan(cx).await? else { return Ok(()) };
    if words.get(BOOKMARK) == Some(&head.0) {
        words[BOOKMARK] = snapshot.0;
        put_scan(cx, words).await?;
    }
    let from = unqueue(cx, queue, head).await?;
    enqueue(cx, queue, snapshot, from).await
}

/// Exchanges two datasets that exchanged their contents.
pub(super) async fn scan_swapped(cx: &mut DslSyncContext<'_>, a: ObjectId, b: ObjectId) -> Result<(), DslError> {
    cx.moved_into(a);
    cx.moved_into(b);
    let Some((mut words, queue)) = running_scan(cx).await? else { return Ok(()) };
    if let Some(at) = words.get_mut(BOOKMARK).filter(|at| **at == a.0 || **at == b.0) {
        *at = if *at == a.0 { b.0 } else { a.0 };
        put_scan(cx, words).await?;
    }
    let of_a = unqueue(cx, queue, a).await?;
    let of_b = unqueue(cx, queue, b).await?;
    enqueue(cx, queue, a, of_b).await?;
    enqueue(cx, queue, b, of_a).await
}

/// Removes the error log of a destroyed head. A log that cannot be read keeps its entries, because this is no
/// reason to keep the head (`delete_dataset_errlog`).
pub(super) async fn drop_error_logs(cx: &mut DslSyncContext<'_>, head: ObjectId) -> Result<(), DslError> {
    if !features::is_enabled(cx, Feature::HEAD_ERRLOG).await? {
        return Ok(());
    }
    for name in [pool::ERRLOG_LAST, pool::ERRLOG_SCRUB] {
        let Some(log) = cx.word(super::DIRECTORY, name).await?.filter(|log| *log != 0) else { continue };
        match drop_errors_of(cx, ObjectId(log), head).await {
            Err(DslError::Object(error)) => {
                tracing::warn!(pool = cx.pool.name.as_str(), %error, "cannot remove the error log of dataset {head}");
            }
            other => other?,
        }
    }
    Ok(())
}

async fn drop_errors_of(cx: &DslSyncContext<'_>, log: ObjectId, head: ObjectId) -> Result<(), DslError> {
    if let Some(own) = zap::lookup_int(cx.rq, &cx.mos, log, head.0).await? {
        cx.set_remove(log, head.0).await?;
        cx.discard(ObjectId(own)).await?;
    }
    Ok(())
}

//! Space: available bytes, bytes written since a snapshot, sizes of deadlists.
//!
//! *Available* is the minimum of the free space at each directory up to the root (quota less used bytes), where the
//! unused part of a reservation counts for its own subtree; at the root the pool's size less the slop takes the place
//! of the quota (`dsl_dir_space_available`).
//!
//! *Written since* a snapshot: the growth of the referenced bytes, plus the bytes that the snapshot refers to and that
//! were freed since. The deadlists in between hold these, under births up to the snapshot's
//! (`dsl_dataset_space_written`).

use super::{Dataset, Dir, Dsl, MAX_DEPTH, MAX_ENTRIES};
use crate::bpobj;
use std::sync::Arc;
use weir_dmu::cycle_guard::CycleGuard;
use weir_dmu::error::ObjectError;
use weir_dmu::zap::Zap;
use weir_format::dsl::{Bpobj, Deadlist};
use weir_format::{BlockPointer, ObjectId, ObjectType, Txg};
use weir_machine::Request;

/// Block pointers of old deadlists read at a time.
const POINTERS_PER_READ: u64 = 8192;

/// Bytes that can still be written below a directory; `pool_bytes` is the pool's size less its slop.
pub fn available_in_dir(dsl: &Dsl, dir: &Dir, pool_bytes: u64) -> u64 {
    let mut path = vec![dir];
    while let Some(parent) = path.last().and_then(|d| dsl.dir(d.phys.parent)) {
        if path.len() > MAX_DEPTH {
            break;
        }
        path.push(parent);
    }
    let mut above = u64::MAX;
    for (depth, dir) in path.iter().rev().enumerate() {
        let phys = &dir.phys;
        let mut quota = if phys.quota_bytes == 0 { u64::MAX } else { phys.quota_bytes };
        if depth == 0 {
            quota = quota.min(pool_bytes);
        }
        let unused = phys.reserved_bytes.saturating_sub(phys.used_bytes);
        let parent_space = above.saturating_add(unused);
        above = match phys.used_bytes > quota {
            true => 0,
            false => (quota - phys.used_bytes).min(parent_space),
        };
    }
    above
}

/// Bytes that can still be written to a head, with its own limits `ref_quota` and `ref_reservation` (0: none).
pub fn available(dsl: &Dsl, head: &Dataset, pool_bytes: u64, ref_quota: u64, ref_reservation: u64) -> u64 {
    let Some(dir) = dsl.dir(head.dir) else { return 0 };
    let mut available = available_in_dir(dsl, dir, pool_bytes);
    available = available.saturating_add(ref_reservation.saturating_sub(head.phys.unique_bytes));
    if ref_quota != 0 {
        available = available.min(ref_quota.saturating_sub(head.phys.referenced_bytes));
    }
    available
}

/// The property `written`: bytes written since the previous snapshot; `None` if there is none (pools older than the
/// `$ORIGIN` snapshot).
pub async fn written(dsl: &Dsl, rq: &Request, dataset: &Dataset) -> Result<Option<u64>, ObjectError> {
    if dataset.phys.prev_snapshot.0 == 0 {
        return Ok(None);
    }
    let before = dsl.dataset(rq, dataset.phys.prev_snapshot, String::new()).await?;
    written_since(dsl, rq, dataset, &before).await.map(Some)
}

/// The property `written@snapshot`: bytes written to `dataset` since `since`, an earlier snapshot of it or of its
/// origins.
pub async fn written_since(dsl: &Dsl, rq: &Request, dataset: &Dataset, since: &Dataset) -> Result<u64, ObjectError> {
    let mut total = dataset.phys.referenced_bytes.wrapping_sub(since.phys.referenced_bytes);
    let mut at = dataset.id;
    let mut phys = dataset.phys.clone();
    let mut trail = CycleGuard::default();
    loop {
        trail.step(&dsl.mos, at)?;
        if at == since.id {
            return Ok(total);
        }
        // All blocks of a deadlist were born before the snapshot right before it.
        let whole = phys.prev_snapshot_txg == since.phys.creation_txg;
        let until = if whole { Txg(u64::MAX) } else { since.phys.creation_txg };
        total = total.wrapping_add(deadlist_space(dsl, rq, phys.deadlist, until).await?);
        at = phys.prev_snapshot;
        if at.0 == 0 {
            break;
        }
        phys = dsl.dataset(rq, at, String::new()).await?.phys;
    }
    let name = since.name.clone();
    Err(ObjectError::NoName { what: "earlier snapshot", name })
}

/// Bytes in a deadlist that were born in txg `until` or before; `Txg(u64::MAX)` for all.
pub async fn deadlist_space(dsl: &Dsl, rq: &Request, id: ObjectId, until: Txg) -> Result<u64, ObjectError> {
    if id.0 == 0 {
        return Ok(0);
    }
    let object = dsl.mos.object(rq, id).await?;
    let place = dsl.mos.place(id, 0, 0);
    if object.dnode.object_type == ObjectType::BPOBJ {
        return bpobj_space(dsl, rq, id, until).await;
    }
    if until.0 == u64::MAX {
        let header = Deadlist::decode(object.dnode.bonus(), object.dnode.endian);
        return header.map(|d| d.used_bytes).map_err(|e| ObjectError::decode(place, e));
    }
    let mut total = 0u64;
    for entry in Zap::of(rq, &dsl.mos, object).await?.all(rq, MAX_ENTRIES).await? {
        // The blocks of a list were born after its key, up to the next key; the keys are txgs of snapshots.
        let key = Deadlist::key(&entry.key.text());
        if let (Some(key), Some(list)) = (key, entry.value.first())
            && key < until.0
        {
            total = total.saturating_add(bpobj_space(dsl, rq, ObjectId(list), Txg(u64::MAX)).await?);
        }
    }
    Ok(total)
}

/// Bytes of the block pointers in a list, those in its sub-lists included, that were born in `until` or before.
pub async fn bpobj_space(dsl: &Dsl, rq: &Request, id: ObjectId, until: Txg) -> Result<u64, ObjectError> {
    let object = dsl.mos.object(rq, id).await?;
    let place = dsl.mos.place(id, 0, 0);
    let header = Bpobj::decode(object.dnode.bonus(), object.dnode.endian);
    let header = header.map_err(|e| ObjectError::decode(place, e))?;
    if until.0 == u64::MAX {
        return Ok(header.bytes);
    }
    let mut total = 0u64;
    let mut at = 0u64;
    while at < header.pointers {
        let pointers = bpobj_pointers(dsl, rq, &object, &header, at).await?;
        if pointers.is_empty() {
            break;
        }
        at += pointers.len() as u64;
        let older = pointers.iter().filter(|bp| bp.logical_birth() <= until);
        total = older.fold(total, |sum, bp| sum.saturating_add(bp.asize_bytes()));
    }
    Ok(total)
}

/// Some of a list's own block pointers, from index `from` on.
pub async fn bpobj_pointers(
    dsl: &Dsl,
    rq: &Request,
    object: &Arc<weir_dmu::Object>,
    header: &Bpobj,
    from: u64,
) -> Result<Vec<BlockPointer>, ObjectError> {
    const WORDS: u64 = 16;
    let count = header.pointers.saturating_sub(from).min(POINTERS_PER_READ);
    let words = dsl.mos.reader().read_words(rq, object, from.saturating_mul(WORDS), count * WORDS).await?;
    let (pointers, _) = words.as_chunks::<{ WORDS as usize }>();
    bpobj::without_holes(&dsl.mos, object.id, pointers)
}

/// The sub-lists of a list.
pub async fn bpobj_sub_objects(dsl: &Dsl, rq: &Request, header: &Bpobj) -> Result<Vec<ObjectId>, ObjectError> {
    let Some((id, count)) = header.sub_objects.filter(|(id, count)| id.0 != 0 && *count != 0) else {
        return Ok(Vec::new());
    };
    let object = dsl.mos.object(rq, id).await?;
    Ok(dsl.mos.reader().read_words(rq, &object, 0, count).await?.into_iter().map(ObjectId).collect())
}

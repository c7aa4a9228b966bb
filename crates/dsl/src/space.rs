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
use weir_format::dsl::{Bookmark, Bpobj, Deadlist};
use weir_format::{BlockPointer, DslDataset, ObjectId, ObjectType, Txg};
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

/// Bytes of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockBytes {
    /// Allocated.
    pub allocated: u64,
    /// After compression.
    pub compressed: u64,
    /// Before compression.
    pub uncompressed: u64,
}

impl BlockBytes {
    /// Bytes that a head or snapshot refers to.
    pub fn referenced(phys: &DslDataset) -> Self {
        BlockBytes {
            allocated: phys.referenced_bytes,
            compressed: phys.compressed_bytes,
            uncompressed: phys.uncompressed_bytes,
        }
    }

    // The sums of a damaged pool may wrap: they are printed only, and no decision depends on them.
    fn plus(self, more: BlockBytes) -> Self {
        BlockBytes {
            allocated: self.allocated.wrapping_add(more.allocated),
            compressed: self.compressed.wrapping_add(more.compressed),
            uncompressed: self.uncompressed.wrapping_add(more.uncompressed),
        }
    }

    fn minus(self, less: BlockBytes) -> Self {
        BlockBytes {
            allocated: self.allocated.wrapping_sub(less.allocated),
            compressed: self.compressed.wrapping_sub(less.compressed),
            uncompressed: self.uncompressed.wrapping_sub(less.uncompressed),
        }
    }
}

/// A moment of a dataset: that of a snapshot, or of a bookmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Creation txg of the snapshot.
    pub txg: Txg,
    /// Bytes that it referred to.
    pub referenced: BlockBytes,
    /// Of these, bytes that were freed before the next snapshot, which bookmarks remember.
    pub freed_before_next: Option<BlockBytes>,
}

impl Moment {
    /// The moment of a snapshot.
    pub fn of_snapshot(phys: &DslDataset) -> Self {
        let referenced = BlockBytes::referenced(phys);
        Moment { txg: phys.creation_txg, referenced, freed_before_next: None }
    }

    /// The moment of a bookmark; `None` if the bookmark does not remember the sizes.
    pub fn of_bookmark(bookmark: &Bookmark) -> Option<Self> {
        let bytes =
            |[allocated, compressed, uncompressed]: [u64; 3]| BlockBytes { allocated, compressed, uncompressed };
        (bookmark.flags & Bookmark::HAS_FREED_BEFORE_NEXT != 0).then(|| Moment {
            txg: bookmark.creation_txg,
            referenced: bytes(bookmark.referenced),
            freed_before_next: Some(bytes(bookmark.freed_before_next)),
        })
    }
}

/// The property `written@snapshot`: bytes written to `dataset` since `since`, an earlier snapshot of it or of its
/// origins.
pub async fn written_since(dsl: &Dsl, rq: &Request, dataset: &Dataset, since: &Dataset) -> Result<u64, ObjectError> {
    if dataset.id == since.id {
        return Ok(0);
    }
    let grown = grown_since(dsl, rq, dataset, &Moment::of_snapshot(&since.phys)).await?;
    let missing = || ObjectError::NoName { what: "earlier snapshot", name: since.name.clone() };
    grown.map(|grown| grown.allocated).ok_or_else(missing)
}

/// Bytes written to `dataset` since an earlier moment of it or of its origins (`dsl_dataset_space_written_impl`); `None`
/// if the moment of a snapshot is not that of an earlier one.
///
/// # Errors
/// Errors of reading the deadlists.
pub async fn grown_since(
    dsl: &Dsl,
    rq: &Request,
    dataset: &Dataset,
    since: &Moment,
) -> Result<Option<BlockBytes>, ObjectError> {
    let mut total = BlockBytes::referenced(&dataset.phys).minus(since.referenced);
    let mut at = dataset.id;
    let mut phys = dataset.phys.clone();
    let mut trail = CycleGuard::default();
    while phys.prev_snapshot_txg > since.txg {
        trail.step(&dsl.mos, at)?;
        total = total.plus(deadlist_space(dsl, rq, phys.deadlist, since.txg).await?);
        at = phys.prev_snapshot;
        phys = dsl.dataset(rq, at, String::new()).await?.phys;
    }
    match since.freed_before_next {
        Some(freed) => Ok(Some(total.plus(freed))),
        // All blocks of a deadlist were born before the snapshot right before it.
        None if phys.prev_snapshot_txg == since.txg => {
            Ok(Some(total.plus(deadlist_space(dsl, rq, phys.deadlist, Txg(u64::MAX)).await?)))
        }
        None => Ok(None),
    }
}

/// Allocated bytes that are freed if all snapshots of a dataset from `first` to `last` are destroyed
/// (`dsl_dataset_space_wouldfree`).
///
/// # Errors
/// Errors of reading the deadlists; [`ObjectError::Corrupt`] if `last` is not `first` or a later snapshot of its dataset.
pub async fn freed_with(dsl: &Dsl, rq: &Request, first: &Dataset, last: &Dataset) -> Result<u64, ObjectError> {
    let mut freed = 0u64;
    let mut at = last.phys.next_snapshot;
    let mut trail = CycleGuard::default();
    while at != first.id {
        trail.step(&dsl.mos, at)?;
        let phys = dsl.dataset(rq, at, String::new()).await?.phys;
        let all = deadlist_space(dsl, rq, phys.deadlist, Txg(u64::MAX)).await?;
        // Blocks that the snapshot before `first` refers to stay.
        let kept = deadlist_space(dsl, rq, phys.deadlist, first.phys.prev_snapshot_txg).await?;
        freed = freed.saturating_add(all.minus(kept).allocated);
        at = phys.prev_snapshot;
    }
    Ok(freed)
}

/// Bytes in a deadlist that were born in txg `until` or before; `Txg(u64::MAX)` for all.
pub async fn deadlist_space(dsl: &Dsl, rq: &Request, id: ObjectId, until: Txg) -> Result<BlockBytes, ObjectError> {
    if id.0 == 0 {
        return Ok(BlockBytes::default());
    }
    let object = dsl.mos.object(rq, id).await?;
    let place = dsl.mos.place(id, 0, 0);
    if object.dnode.object_type == ObjectType::BPOBJ {
        return bpobj_space(dsl, rq, id, until).await;
    }
    if until.0 == u64::MAX {
        let header = Deadlist::decode(object.dnode.bonus(), object.dnode.endian);
        let bytes = |d: Deadlist| BlockBytes {
            allocated: d.used_bytes,
            compressed: d.compressed_bytes,
            uncompressed: d.uncompressed_bytes,
        };
        return header.map(bytes).map_err(|e| ObjectError::decode(place, e));
    }
    let mut total = BlockBytes::default();
    for entry in Zap::of(rq, &dsl.mos, object).await?.all(rq, MAX_ENTRIES).await? {
        // The blocks of a list were born after its key, up to the next key; the keys are txgs of snapshots.
        let key = Deadlist::key(&entry.key.text());
        if let (Some(key), Some(list)) = (key, entry.value.first())
            && key < until.0
        {
            total = total.plus(bpobj_space(dsl, rq, ObjectId(list), Txg(u64::MAX)).await?);
        }
    }
    Ok(total)
}

/// Bytes of the block pointers in a list, those in its sub-lists included, that were born in `until` or before.
pub async fn bpobj_space(dsl: &Dsl, rq: &Request, id: ObjectId, until: Txg) -> Result<BlockBytes, ObjectError> {
    let object = dsl.mos.object(rq, id).await?;
    let place = dsl.mos.place(id, 0, 0);
    let header = Bpobj::decode(object.dnode.bonus(), object.dnode.endian);
    let header = header.map_err(|e| ObjectError::decode(place, e))?;
    if until.0 == u64::MAX {
        let (compressed, uncompressed) = header.sizes.unwrap_or_default();
        return Ok(BlockBytes { allocated: header.bytes, compressed, uncompressed });
    }
    let mut total = BlockBytes::default();
    let mut at = 0u64;
    while at < header.pointers {
        let pointers = bpobj_pointers(dsl, rq, &object, &header, at).await?;
        if pointers.is_empty() {
            break;
        }
        at += pointers.len() as u64;
        let older = pointers.iter().filter(|bp| bp.logical_birth() <= until);
        total = older.fold(total, |sum, bp| {
            let compressed = bp.psize_bytes();
            // Indirect blocks count as compressed (`bp_get_ucsize`).
            let uncompressed = if bp.level() > 0 { compressed } else { bp.lsize_bytes() };
            sum.plus(BlockBytes { allocated: bp.asize_bytes(), compressed, uncompressed })
        });
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

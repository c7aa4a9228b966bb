//! Accounting of a synced object set in its dataset and the directories above (OpenZFS `dsl_dataset_block_born`,
//! `dsl_dataset_block_kill`, `dsl_dataset_sync_done`).
//!
//! ```text
//!   born    referenced and unique grow
//!   killed  born after the last snapshot?  yes: no other reference: freed now, unique shrinks
//!                                          no: the snapshot refers to it: onto the deadlist; if it was born after the
//!                                              snapshot before that one, it is now unique to the last snapshot
//! ```
//!
//! A refreservation keeps the head's charge at max(unique, refreservation): growth of unique reduces REFRSRV.

use super::space::{Delta, Use, changed, charged};
use super::{DslError, DslSyncContext, bookmark, destroy_head, features, lists, names, properties};
use crate::bpobj::Sums;
use weir_format::dsl::Bookmark;
use weir_format::features::Feature;
use weir_format::{BlockPointer, ChecksumKind, CompressionKind, DslDataset, ObjectId, Txg};

/// Maximum size in bytes of a block without `feature@large_blocks` (`SPA_OLD_MAXBLOCKSIZE`).
pub(super) const OLD_MAX_BLOCK_BYTES: u64 = 128 << 10;

/// A block with its three sizes.
#[derive(Clone, Debug)]
pub(super) struct Sized {
    pub pointer: BlockPointer,
    pub size: Delta,
}

/// Result of syncing a dataset's object set.
#[derive(Clone, Copy, Debug)]
pub struct SyncedSet<'a> {
    /// The pointer to its new header.
    pub root: BlockPointer,
    /// Blocks written, the header's included.
    pub born: &'a [BlockPointer],
    /// Blocks that the set no longer refers to.
    pub killed: &'a [BlockPointer],
}

/// Sums over the blocks of one sync.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Booked {
    /// All blocks born.
    pub born: Delta,
    /// Killed blocks without another reference.
    pub freed: Delta,
    /// Killed blocks that snapshots refer to.
    pub dead: Delta,
    /// Of these, the bytes born after the clone's origin: they move from the head's use to the snapshots'.
    pub to_snapshots: i64,
    /// Of these, the bytes that are now unique to the last snapshot.
    pub unique_to_previous: i64,
}

/// Snapshot txgs that decide how a killed block of a dataset is accounted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct When {
    /// The last snapshot.
    pub previous: Txg,
    /// The snapshot before that; `None` if the last snapshot's next is not this head (it is a clone's origin).
    pub before_previous: Option<Txg>,
    /// The clone's origin; 0 for no clone.
    pub origin: Txg,
}

impl Booked {
    pub(super) fn add_born(&mut self, size: Delta) {
        self.born += size;
    }

    /// Accounts a killed block; returns whether it is freed now.
    pub(super) fn add_killed(&mut self, birth: Txg, size: Delta, when: &When) -> bool {
        if birth > when.previous {
            self.freed += size;
            return true;
        }
        self.dead += size;
        if when.before_previous.is_some_and(|before| birth > before) {
            self.unique_to_previous += size.used;
        }
        if birth > when.origin {
            self.to_snapshots += size.used;
        }
        false
    }
}

/// The per-dataset feature that a checksum needs, if any.
pub(super) fn feature_of_checksum(kind: ChecksumKind) -> Option<&'static Feature> {
    match kind {
        ChecksumKind::Sha512 => Some(Feature::SHA512),
        ChecksumKind::Skein => Some(Feature::SKEIN),
        ChecksumKind::Edonr => Some(Feature::EDONR),
        ChecksumKind::Blake3 => Some(Feature::BLAKE3),
        _ => None,
    }
}

/// The per-dataset features that a block needs, if any.
pub(super) fn feature_of(pointer: &BlockPointer) -> [Option<&'static Feature>; 3] {
    let large = pointer.lsize_bytes() > OLD_MAX_BLOCK_BYTES;
    let checksum = pointer.checksum_kind().and_then(feature_of_checksum);
    let zstd = pointer.compression() == Some(CompressionKind::Zstd);
    [large.then_some(Feature::LARGE_BLOCKS), checksum, zstd.then_some(Feature::ZSTD_COMPRESS)]
}

/// A block with its three sizes; `None` if it takes none.
pub(super) fn sized(cx: &DslSyncContext<'_>, pointer: &BlockPointer) -> Option<Sized> {
    if pointer.is_hole() || pointer.is_redacted() {
        return None;
    }
    let size = Sums::of(pointer, &*cx.pool.sizes).into();
    Some(Sized { pointer: *pointer, size })
}

/// Applies `delta` to a directory, accounts `new_use` bytes of it as `new` and takes the difference from `old`;
/// then applies the change of the charge to each directory up to the root.
pub(super) async fn book_moved(
    cx: &mut DslSyncContext<'_>,
    dir: ObjectId,
    delta: Delta,
    new_use: i64,
    old: Use,
    new: Use,
) -> Result<(), DslError> {
    let mut delta = delta;
    let mut new_use = new_use;
    let mut old = old;
    let mut new = new;
    for (at, mut phys) in names::upwards(cx, dir).await? {
        let above = super::space::book(&mut phys, delta, new_use, old, new);
        cx.put_dir(at, &phys).await?;
        (new_use, old, new) = (delta.used, Use::ChildReservations, Use::Children);
        delta.used = above;
    }
    Ok(())
}

/// Accounts a change of one use of a directory, and of the charges up to the root.
pub(super) async fn book(cx: &mut DslSyncContext<'_>, dir: ObjectId, what: Use, delta: Delta) -> Result<(), DslError> {
    if delta.is_zero() {
        return Ok(());
    }
    book_moved(cx, dir, delta, delta.used, what, what).await
}

/// The refreservation of a directory's head.
pub(super) async fn ref_reservation(cx: &mut DslSyncContext<'_>, dir: ObjectId) -> Result<u64, DslError> {
    properties::own_number(cx, dir, "refreservation").await
}

/// The snapshot txgs of a head.
async fn when(cx: &DslSyncContext<'_>, id: ObjectId, phys: &DslDataset) -> Result<When, DslError> {
    let mut when = When { previous: phys.prev_snapshot_txg, ..When::default() };
    if phys.prev_snapshot.0 != 0 {
        let previous = cx.dataset(phys.prev_snapshot).await?;
        when.before_previous = (previous.next_snapshot == id).then_some(previous.prev_snapshot_txg);
    }
    when.origin = origin_txg(cx, phys.dir).await?;
    Ok(when)
}

/// The txg of the snapshot that a directory is a clone of; 0 if it is no clone.
pub(super) async fn origin_txg(cx: &DslSyncContext<'_>, dir: ObjectId) -> Result<Txg, DslError> {
    match cx.dir(dir).await?.origin {
        ObjectId(0) => Ok(Txg(0)),
        origin => Ok(cx.dataset(origin).await?.creation_txg),
    }
}

/// Accounts the result of syncing a dataset's object set: the new root pointer, blocks born and killed, space up to
/// the root directory, deadlist, bookmarks, features. Blocks without references are added to
/// [`DslSyncContext::take_frees`].
pub async fn apply_synced(
    cx: &mut DslSyncContext<'_>,
    id: ObjectId,
    synced: &SyncedSet<'_>,
) -> Result<Booked, DslError> {
    let mut phys = cx.dataset(id).await?;
    // A clone's livelist, which other software maintains for a faster destroy, would not contain these blocks.
    destroy_head::drop_livelist(cx, phys.dir).await?;
    let when = when(cx, id, &phys).await?;
    let mut booked = Booked::default();
    let mut dead = Vec::new();
    let mut features = std::collections::BTreeSet::new();
    for pointer in synced.born {
        if let Some(born) = sized(cx, pointer) {
            booked.add_born(born.size);
            features.extend(feature_of(pointer).into_iter().flatten());
        }
    }
    let mut killed_by_birth = Vec::with_capacity(synced.killed.len());
    for pointer in synced.killed {
        let Some(block) = sized(cx, pointer) else { continue };
        let birth = block.pointer.birth();
        killed_by_birth.push((birth, block.size));
        if booked.add_killed(birth, block.size, &when) {
            cx.free(block.pointer);
        } else {
            dead.push(block.pointer);
        }
    }
    lists::deadlist_insert(cx, phys.deadlist, &dead).await?;
    bookmarks_killed(cx, id, &phys, &killed_by_birth).await?;
    phys.pointer = synced.root;
    book_synced(cx, id, phys, &booked).await?;
    for feature in features {
        features::activate(cx, id, feature).await?;
    }
    Ok(booked)
}

/// The arithmetic of [`apply_synced`].
async fn book_synced(
    cx: &mut DslSyncContext<'_>,
    id: ObjectId,
    mut phys: DslDataset,
    booked: &Booked,
) -> Result<(), DslError> {
    let gone = [booked.freed, booked.dead];
    let sum = |of: fn(&Delta) -> i64| of(&booked.born) - gone.iter().map(of).sum::<i64>();
    phys.referenced_bytes = changed(phys.referenced_bytes, sum(|d| d.used));
    phys.compressed_bytes = changed(phys.compressed_bytes, sum(|d| d.compressed));
    phys.uncompressed_bytes = changed(phys.uncompressed_bytes, sum(|d| d.uncompressed));
    let mut own = booked.born;
    own += -booked.freed;
    let reserved = ref_reservation(cx, phys.dir).await?;
    let charge = charged(phys.unique_bytes, own.used, reserved);
    phys.unique_bytes = changed(phys.unique_bytes, own.used);
    cx.put_dataset(id, &phys).await?;
    let delta = Delta { used: charge, ..own };
    book_moved(cx, phys.dir, delta, own.used, Use::RefReservation, Use::Head).await?;
    if booked.to_snapshots != 0 {
        transfer(cx, phys.dir, booked.to_snapshots, Use::Head, Use::Snapshots).await?;
    }
    if booked.unique_to_previous != 0 {
        let mut previous = cx.dataset(phys.prev_snapshot).await?;
        previous.unique_bytes = changed(previous.unique_bytes, booked.unique_to_previous);
        cx.put_dataset(phys.prev_snapshot, &previous).await?;
    }
    Ok(())
}

/// Moves bytes of one directory from one use to another.
pub(super) async fn transfer(
    cx: &mut DslSyncContext<'_>,
    dir: ObjectId,
    bytes: i64,
    from: Use,
    to: Use,
) -> Result<(), DslError> {
    let mut phys = cx.dir(dir).await?;
    super::space::transfer(&mut phys, bytes, from, to);
    cx.put_dir(dir, &phys).await
}

/// Counts blocks that a head killed as freed before the next snapshot, in the bookmarks since its last snapshot
/// that could still see them (`dsl_bookmark_block_killed`).
async fn bookmarks_killed(
    cx: &mut DslSyncContext<'_>,
    id: ObjectId,
    phys: &DslDataset,
    killed: &[(Txg, Delta)],
) -> Result<(), DslError> {
    if killed.is_empty() {
        return Ok(());
    }
    let Some(zap) = names::bookmarks_zap(cx, id).await? else { return Ok(()) };
    for (name, mut bookmark) in bookmark::bookmarks_in(cx, zap).await? {
        let counts = bookmark.flags & Bookmark::HAS_FREED_BEFORE_NEXT != 0;
        if !counts || bookmark.creation_txg < phys.prev_snapshot_txg {
            continue;
        }
        let mut sum = Delta::default();
        killed.iter().filter(|(birth, _)| *birth <= bookmark.creation_txg).for_each(|(_, size)| sum += *size);
        if sum.is_zero() {
            continue;
        }
        let [used, compressed, uncompressed] = bookmark.freed_before_next;
        bookmark.freed_before_next =
            [changed(used, sum.used), changed(compressed, sum.compressed), changed(uncompressed, sum.uncompressed)];
        bookmark::put_bookmark(cx, zap, &name, &bookmark).await?;
    }
    Ok(())
}

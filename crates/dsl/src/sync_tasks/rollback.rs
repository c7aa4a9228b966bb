//! Rollback to the last snapshot (OpenZFS `dsl_dataset_rollback_sync`, `dsl_dataset_clone_swap_sync_impl`).
//!
//! A temporary clone of the snapshot is created, head and clone exchange their contents, and the clone is destroyed
//! with the head's former contents: so the head's new blocks are freed as a destroyed clone's tree is, in the
//! background.

use super::names::{Found, FoundDir};
use super::space::{Delta, Use, difference};
use super::{DslError, DslSyncContext};
use weir_format::dsl::dataset_field;
use weir_format::{DslDataset, ObjectId, Txg};

/// Name of the temporary clone.
const TEMPORARY_CLONE: &str = "%rollback";
/// The first txg in which a pool has snapshots of its own (`TXG_INITIAL`).
const FIRST_TXG: Txg = Txg(4);

impl DslSyncContext<'_> {
    /// Checks that a dataset may be rolled back to its last snapshot; `to`: the full name that the caller expects it to
    /// have.
    ///
    /// # Errors
    /// [`DslError::Missing`] (no snapshot), [`DslError::HasDependents`] (newer snapshots or bookmarks),
    /// [`DslError::Busy`], [`DslError::Space`].
    pub async fn check_rollback(&mut self, name: &str, to: Option<&str>) -> Result<(), DslError> {
        let head = self.find_head(name).await?;
        let phys = &head.phys;
        if phys.prev_snapshot.0 == 0 || phys.prev_snapshot_txg < FIRST_TXG {
            return Err(DslError::missing(to.unwrap_or("the last snapshot")));
        }
        if phys.prev_snapshot_txg >= self.txg() {
            return Err(DslError::busy(name, "the snapshot was created in this txg"));
        }
        self.check_lists(head.id).await?;
        if let Some(to) = to {
            let target = self.find_snapshot(to).await?;
            if target.id != phys.prev_snapshot {
                return Err(self.newer_snapshots(&head, &target).await?);
            }
        }
        if let Some(zap) = self.bookmarks_zap(head.id).await? {
            let newer: Vec<String> = self
                .bookmarks_in(zap)
                .await?
                .into_iter()
                .filter(|(_, b)| b.creation_txg > phys.prev_snapshot_txg)
                .map(|(n, _)| format!("{name}#{n}"))
                .collect();
            if !newer.is_empty() {
                return Err(DslError::HasDependents {
                    name: name.into(),
                    what: "more recent bookmarks",
                    dependents: newer,
                });
            }
        }
        let snapshot = self.dataset(phys.prev_snapshot).await?;
        let quota = self.own_number(head.at.id, "refquota").await?;
        if quota != 0 && snapshot.referenced_bytes > quota {
            return Err(DslError::space(name, "the snapshot refers to more than the refquota"));
        }
        let charge = self.ref_reservation(head.at.id).await?.min(phys.unique_bytes);
        if charge > self.available_in(head.at.id).await? {
            return Err(DslError::space(name, "out of space"));
        }
        self.check_freeing(phys).await
    }

    async fn newer_snapshots(&mut self, head: &Found, target: &Found) -> Result<DslError, DslError> {
        let related = target.at.id == head.at.id || head.at.dir.origin == target.id;
        if !related {
            return Ok(DslError::kind(&target.name, "not a snapshot of this dataset"));
        }
        let mut newer = Vec::new();
        for (name, id) in self.snapshots_of(&head.phys).await? {
            if self.dataset(id).await?.creation_txg > target.phys.creation_txg {
                newer.push(format!("{}@{name}", head.name));
            }
        }
        Ok(DslError::HasDependents { name: target.name.clone(), what: "more recent snapshots", dependents: newer })
    }

    /// Rolls a dataset back to its last snapshot. The caller closes its open set before, opens it again after, and
    /// clears the intent log in its header in this txg.
    ///
    /// # Errors
    /// Those of [`DslSyncContext::check_rollback`], before anything was changed.
    pub async fn rollback(&mut self, name: &str, to: Option<&str>) -> Result<(), DslError> {
        self.check_rollback(name, to).await?;
        let head = self.find_head(name).await?;
        let clone = self.create_head(head.at.id, TEMPORARY_CLONE, Some(head.phys.prev_snapshot)).await?;
        self.swap(clone.dataset, head.id).await?;
        let dir = self.dir(clone.dir).await?;
        let phys = self.dataset(clone.dataset).await?;
        let name_of_clone = format!("{name}/{TEMPORARY_CLONE}");
        let at = FoundDir { id: clone.dir, dir, name: name_of_clone.clone() };
        self.destroy_head(Found { at, id: clone.dataset, phys, name: name_of_clone }).await?;
        self.log(name, head.id, "rollback", "").await
    }

    /// Exchanges the contents of a head and a clone of its last snapshot.
    async fn swap(&mut self, clone_id: ObjectId, head_id: ObjectId) -> Result<(), DslError> {
        let mut clone = self.dataset(clone_id).await?;
        let mut head = self.dataset(head_id).await?;
        self.swap_features(clone_id, head_id).await?;
        let reserved = self.ref_reservation(head.dir).await?;
        let charge = difference(reserved.min(head.unique_bytes), reserved.min(clone.unique_bytes));
        let mut origin = self.dataset(clone.prev_snapshot).await?;
        if origin.next_snapshot == head_id {
            // Unique bytes of a clone's origin depend on its successor in its own directory.
            let alone = self.deadlist_range(clone.deadlist, origin.prev_snapshot_txg, Txg(u64::MAX)).await?;
            origin.unique_bytes = alone.used.max(0) as u64;
            self.put_dataset(clone.prev_snapshot, &origin).await?;
        }
        self.swap_space(&clone, &head).await?;
        self.book(head.dir, Use::RefReservation, Delta::used(charge)).await?;
        std::mem::swap(&mut clone.pointer, &mut head.pointer);
        std::mem::swap(&mut clone.referenced_bytes, &mut head.referenced_bytes);
        std::mem::swap(&mut clone.compressed_bytes, &mut head.compressed_bytes);
        std::mem::swap(&mut clone.uncompressed_bytes, &mut head.uncompressed_bytes);
        std::mem::swap(&mut clone.unique_bytes, &mut head.unique_bytes);
        std::mem::swap(&mut clone.deadlist, &mut head.deadlist);
        self.put_dataset(clone_id, &clone).await?;
        self.put_dataset(head_id, &head).await?;
        self.swap_remap_lists(clone_id, head_id).await?;
        self.bookmarks_recounted(head_id, head.prev_snapshot).await?;
        self.scan_swapped(clone_id, head_id).await?;
        self.drop_livelist(clone.dir).await?;
        self.drop_livelist(head.dir).await
    }

    /// Updates the space of the two directories.
    async fn swap_space(&mut self, clone: &DslDataset, head: &DslDataset) -> Result<(), DslError> {
        let of_clone = self.deadlist_space(clone.deadlist).await?;
        let of_head = self.deadlist_space(head.deadlist).await?;
        let refers = |d: &DslDataset| Delta::new(d.referenced_bytes, d.compressed_bytes, d.uncompressed_bytes);
        let mut delta = refers(clone);
        delta += of_clone;
        delta += -refers(head);
        delta += -of_head;
        self.book(head.dir, Use::Head, delta).await?;
        self.book(clone.dir, Use::Head, -delta).await?;
        let origin = self.origin_txg(head.dir).await?;
        let end = Txg(u64::MAX);
        let in_clone = self.deadlist_range(clone.deadlist, origin, end).await?.used;
        let in_head = self.deadlist_range(head.deadlist, origin, end).await?.used;
        self.transfer(head.dir, in_clone - in_head, Use::Head, Use::Snapshots).await
    }

    async fn swap_features(&mut self, a: ObjectId, b: ObjectId) -> Result<(), DslError> {
        let of_a = self.features_of(a).await?;
        let of_b = self.features_of(b).await?;
        self.drop_features(a).await?;
        self.drop_features(b).await?;
        for (to, features) in [(b, of_a), (a, of_b)] {
            for (name, value) in features {
                self.activate_with(to, name, value).await?;
            }
        }
        Ok(())
    }

    async fn swap_remap_lists(&mut self, a: ObjectId, b: ObjectId) -> Result<(), DslError> {
        let field = dataset_field::REMAP_DEADLIST;
        let lists = (self.dataset_word(a, field).await?, self.dataset_word(b, field).await?);
        for (to, list) in [(b, lists.0), (a, lists.1)] {
            match list {
                Some(list) => {
                    self.zapify(to).await?;
                    self.put_word(to, field, list).await?;
                }
                None if self.dataset_word(to, field).await?.is_some() => {
                    self.zap_remove(to, field).await?;
                }
                None => {}
            }
        }
        Ok(())
    }
}

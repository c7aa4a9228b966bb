//! Destruction of snapshots (OpenZFS `dsl_destroy_snapshot_sync_impl`).
//!
//! ```text
//!   before   prev ◄── S(deadlist A) ◄── next(deadlist B)
//!   after    prev ◄──────────────────── next(A + the blocks of B born up to prev)
//!                     the blocks of B born after prev have no reference left: onto the pool's free list
//! ```
//!
//! Only the keys of the deadlists are read; their block pointers move as whole lists. The bytes that become unique to
//! the neighbours follow from those lists too:
//! - *prev* gains the blocks in next's list born between prev's predecessor and prev;
//! - *next*, if it is a snapshot, gains the blocks in the list after it born between prev and S.

use super::space::{Delta, Use, changed};
use super::{DslError, DslSyncContext};
use std::collections::BTreeSet;
use weir_dmu::cycle_guard::CycleGuard;
use weir_dmu::error::ObjectError;
use weir_format::dsl::{Bookmark, dataset_field, dir_field, pool};
use weir_format::{DslDataset, ObjectId, Txg};

impl DslSyncContext<'_> {
    /// Checks that a snapshot may be destroyed; with `defer`, or marked for deferred destruction. Returns its object.
    ///
    /// # Errors
    /// [`DslError::Missing`], [`DslError::Busy`] (held), [`DslError::HasDependents`] (clones).
    pub async fn check_destroy_snapshot(&mut self, name: &str, defer: bool) -> Result<ObjectId, DslError> {
        let found = self.find_snapshot(name).await?;
        if (self.reading)(found.id) {
            return Err(DslError::busy(name, "it is being read"));
        }
        self.check_lists(found.phys.next_snapshot).await?;
        self.check_lists(found.at.dir.head_dataset).await?;
        if defer {
            return Ok(found.id);
        }
        if self.holds_on(&found.phys).await? > 0 {
            return Err(DslError::busy(name, "it is held"));
        }
        if found.phys.children > 1 {
            let dependents = self.clone_names(&found.phys).await?;
            return Err(DslError::HasDependents { name: name.to_owned(), what: "clones", dependents });
        }
        Ok(found.id)
    }

    /// Number of holds on a snapshot.
    pub(super) async fn holds_on(&self, phys: &DslDataset) -> Result<usize, DslError> {
        Ok(self.entries(phys.user_refs).await?.len())
    }

    /// The names of a snapshot's clones.
    pub(super) async fn clone_names(&mut self, phys: &DslDataset) -> Result<Vec<String>, DslError> {
        let mut out = Vec::new();
        for (_, value) in self.entries(phys.next_clones).await? {
            if let Some(id) = value.first() {
                let dir = self.dataset(ObjectId(id)).await?.dir;
                out.push(self.dir_name(dir).await?);
            }
        }
        out.sort_unstable();
        Ok(out)
    }

    /// Destroys snapshots, all or none. With `defer`, those with holds or clones are marked instead.
    ///
    /// # Errors
    /// Those of [`DslSyncContext::check_destroy_snapshot`], before anything was changed.
    pub async fn destroy_snapshots(&mut self, names: &[String], defer: bool) -> Result<(), DslError> {
        let mut to_destroy = Vec::with_capacity(names.len());
        let mut seen = BTreeSet::new();
        for name in names {
            let found = self.check_destroy_snapshot(name, defer).await?;
            if seen.insert(found) {
                to_destroy.push(name);
            }
        }
        for name in to_destroy {
            let found = self.find_snapshot(name).await?;
            let needed = found.phys.children > 1 || self.holds_on(&found.phys).await? > 0;
            if needed {
                let phys = DslDataset { flags: found.phys.flags | DslDataset::DEFER_DESTROY, ..found.phys.clone() };
                self.put_dataset(found.id, &phys).await?;
                self.log(name, found.id, "defer_destroy", "").await?;
            } else {
                self.log(name, found.id, "destroy", "").await?;
                self.destroy_snapshot(found.id).await?;
            }
        }
        Ok(())
    }

    /// Destroys a snapshot without holds and clones.
    pub(super) async fn destroy_snapshot(&mut self, id: ObjectId) -> Result<(), DslError> {
        let phys = self.dataset(id).await?;
        let dir = self.dir(phys.dir).await?;
        let head_id = dir.head_dataset;
        let bookmarked = self.bookmarks_of_destroyed(head_id, &phys).await?;
        self.scan_destroyed(id, Some(phys.next_snapshot)).await?;
        self.drop_features(id).await?;
        self.unlink_from_previous(id, &phys).await?;
        let next_id = phys.next_snapshot;
        let old_unique = self.dataset(next_id).await?.unique_bytes;
        self.move_lists(id, &phys, next_id).await?;
        self.move_remapped(id, &phys, next_id).await?;
        if !bookmarked {
            self.remove_clones_key(phys.dir, phys.creation_txg).await?;
        }
        if next_id == head_id {
            self.recount_head(next_id, old_unique).await?;
        } else {
            self.next_gains(&phys, next_id).await?;
            let head = self.dataset(head_id).await?;
            if !bookmarked {
                self.deadlist_remove_key(head.deadlist, phys.creation_txg).await?;
            }
            if let Some(list) = self.dataset_word(head_id, dataset_field::REMAP_DEADLIST).await? {
                self.deadlist_remove_key(ObjectId(list), phys.creation_txg).await?;
            }
        }
        self.forget_snapshot(id, &phys, head_id).await
    }

    /// Links the previous snapshot to the next one; updates its list of clones if it is a clone's branch point.
    async fn unlink_from_previous(&mut self, id: ObjectId, phys: &DslDataset) -> Result<(), DslError> {
        if phys.prev_snapshot.0 == 0 {
            return Ok(());
        }
        let mut previous = self.dataset(phys.prev_snapshot).await?;
        if previous.next_snapshot == id {
            previous.next_snapshot = phys.next_snapshot;
            self.put_dataset(phys.prev_snapshot, &previous).await
        } else if previous.next_clones.0 != 0 {
            self.set_remove(previous.next_clones, id.0).await?;
            self.set_insert(previous.next_clones, phys.next_snapshot.0).await
        } else {
            Ok(())
        }
    }

    /// Moves the deadlists: see the diagram at the top.
    async fn move_lists(&mut self, id: ObjectId, phys: &DslDataset, next_id: ObjectId) -> Result<(), DslError> {
        let mut next = self.dataset(next_id).await?;
        (next.prev_snapshot, next.prev_snapshot_txg) = (phys.prev_snapshot, phys.prev_snapshot_txg);
        self.put_dataset(next_id, &next).await?;
        if phys.prev_snapshot.0 != 0 {
            let mut previous = self.dataset(phys.prev_snapshot).await?;
            // After unlinking, a previous snapshot that is followed by `next` is no branch point.
            if previous.next_snapshot == next_id {
                let range = (previous.prev_snapshot_txg, phys.prev_snapshot_txg);
                let gained = self.deadlist_range(next.deadlist, range.0, range.1).await?;
                previous.unique_bytes = changed(previous.unique_bytes, gained.used);
                self.put_dataset(phys.prev_snapshot, &previous).await?;
            }
        }
        let freed = self.deadlist_range(next.deadlist, phys.prev_snapshot_txg, Txg(u64::MAX)).await?;
        self.book(phys.dir, Use::Snapshots, -freed).await?;
        let missing = || ObjectError::NoName { what: "MOS directory entry", name: pool::FREE_BPOBJ.into() };
        let free = self.pool_object(pool::FREE_BPOBJ).await?.ok_or_else(missing)?;
        self.deadlist_move(next.deadlist, free, phys.prev_snapshot_txg).await?;
        self.book_free(freed).await?;
        self.deadlist_merge(next.deadlist, phys.deadlist).await?;
        self.deadlist_destroy(phys.deadlist).await?;
        let phys = DslDataset { deadlist: ObjectId(0), ..self.dataset(id).await? };
        self.put_dataset(id, &phys).await
    }

    /// Moves the remap deadlists in the same way.
    async fn move_remapped(&mut self, id: ObjectId, phys: &DslDataset, next: ObjectId) -> Result<(), DslError> {
        let of_next = self.dataset_word(next, dataset_field::REMAP_DEADLIST).await?.map(ObjectId);
        let own = self.dataset_word(id, dataset_field::REMAP_DEADLIST).await?.map(ObjectId);
        if let Some(list) = of_next {
            let obsolete = match self.pool_object(pool::OBSOLETE_BPOBJ).await? {
                Some(obsolete) => obsolete,
                None => {
                    let obsolete = self.list().await?;
                    self.insert_word(super::DIRECTORY, pool::OBSOLETE_BPOBJ, obsolete.0).await?;
                    self.count_feature("obsolete_counts", 1).await?;
                    obsolete
                }
            };
            self.deadlist_move(list, obsolete, phys.prev_snapshot_txg).await?;
        }
        let Some(own) = own else { return Ok(()) };
        match of_next {
            Some(list) => {
                self.deadlist_merge(list, own).await?;
                self.deadlist_destroy(own).await?;
                self.count_feature("obsolete_counts", -1).await
            }
            // The next dataset has none: it takes over this one.
            None => {
                self.zapify(next).await?;
                self.insert_word(next, dataset_field::REMAP_DEADLIST, own.0).await
            }
        }
    }

    /// Removes the key from the deadlists of clones' heads that branched off after `key`.
    pub(super) async fn remove_clones_key(&mut self, dir: ObjectId, key: Txg) -> Result<(), DslError> {
        let mut to_visit = vec![dir];
        let mut trail = CycleGuard::default();
        while let Some(dir) = to_visit.pop() {
            trail.step(&self.mos, dir)?;
            let clones = self.dir(dir).await?.clones;
            for (_, value) in self.entries(clones).await? {
                let Some(id) = value.first().map(ObjectId) else { continue };
                let clone = self.dataset(id).await?;
                if self.origin_txg(clone.dir).await? <= key {
                    continue;
                }
                self.deadlist_remove_key(clone.deadlist, key).await?;
                if let Some(list) = self.dataset_word(id, dataset_field::REMAP_DEADLIST).await? {
                    self.deadlist_remove_key(ObjectId(list), key).await?;
                }
                to_visit.push(clone.dir);
            }
        }
        Ok(())
    }

    /// Recounts the unique bytes of the head that follows the destroyed snapshot, and charges its refreservation anew.
    async fn recount_head(&mut self, head_id: ObjectId, old_unique: u64) -> Result<(), DslError> {
        let mut head = self.dataset(head_id).await?;
        self.recount_unique(&mut head).await?;
        self.put_dataset(head_id, &head).await?;
        let reserved = self.ref_reservation(head.dir).await?;
        if old_unique < reserved {
            let gained = head.unique_bytes.saturating_sub(old_unique).min(reserved - old_unique);
            self.book(head.dir, Use::RefReservation, Delta::used(-(gained as i64))).await?;
        }
        Ok(())
    }

    /// Recounts the unique bytes of a head: referenced bytes less those shared with its last snapshot
    /// (`dsl_dataset_recalc_head_uniq`).
    pub(super) async fn recount_unique(&mut self, head: &mut DslDataset) -> Result<(), DslError> {
        let shared = match head.prev_snapshot {
            ObjectId(0) => 0,
            previous => self.dataset(previous).await?.referenced_bytes,
        };
        let dead = self.deadlist_space(head.deadlist).await?.used;
        head.unique_bytes = head.referenced_bytes.saturating_sub(changed(shared, -dead));
        head.flags |= DslDataset::UNIQUE_ACCURATE;
        Ok(())
    }

    /// Adds to the next snapshot's unique bytes the blocks that only it and the destroyed one referred to.
    async fn next_gains(&mut self, phys: &DslDataset, next_id: ObjectId) -> Result<(), DslError> {
        let mut next = self.dataset(next_id).await?;
        let after = self.dataset(next.next_snapshot).await?;
        let gained = self.deadlist_range(after.deadlist, phys.prev_snapshot_txg, phys.creation_txg).await?;
        next.unique_bytes = changed(next.unique_bytes, gained.used);
        self.put_dataset(next_id, &next).await
    }

    /// Removes a snapshot's name and objects.
    async fn forget_snapshot(&mut self, id: ObjectId, phys: &DslDataset, head_id: ObjectId) -> Result<(), DslError> {
        let head = self.dataset(head_id).await?;
        let names = self.snapshots_of(&head).await?;
        if let Some((name, _)) = names.into_iter().find(|(_, of)| *of == id) {
            self.zap_remove(head.snapshot_names, &name).await?;
            if !name.starts_with('%') {
                self.count_datasets(phys.dir, dir_field::SNAPSHOT_COUNT, -1).await?;
            }
        }
        self.clear_bootfs(id).await?;
        for zap in [phys.next_clones, phys.props, phys.user_refs] {
            self.remove_if(zap).await?;
        }
        self.note_snapshots_changed(phys.dir).await?;
        self.remove_zapified(id).await
    }

    /// Clears the pool's property `bootfs` if it names a destroyed dataset.
    pub(super) async fn clear_bootfs(&mut self, id: ObjectId) -> Result<(), DslError> {
        let Some(props) = self.pool_object(pool::PROPS).await? else { return Ok(()) };
        if self.word(props, "bootfs").await? == Some(id.0) {
            self.zap_remove(props, "bootfs").await?;
        }
        Ok(())
    }

    /// Updates the bookmarks around a destroyed snapshot: for those before it more is freed before their next snapshot;
    /// those at it record that it is gone. Returns whether one of the latter counts freed bytes, so that the deadlists
    /// must keep the key.
    async fn bookmarks_of_destroyed(&mut self, head: ObjectId, phys: &DslDataset) -> Result<bool, DslError> {
        let Some(zap) = self.bookmarks_zap(head).await? else { return Ok(false) };
        let next = self.dataset(phys.next_snapshot).await?.deadlist;
        let mut counts = false;
        for (name, mut bookmark) in self.bookmarks_in(zap).await? {
            let at = bookmark.creation_txg;
            if bookmark.flags & Bookmark::HAS_FREED_BEFORE_NEXT == 0 || at < phys.prev_snapshot_txg {
                continue;
            }
            if at < phys.creation_txg {
                let freed = self.deadlist_range(next, Txg(0), at).await?;
                let [used, compressed, uncompressed] = bookmark.freed_before_next;
                bookmark.freed_before_next = [
                    changed(used, freed.used),
                    changed(compressed, freed.compressed),
                    changed(uncompressed, freed.uncompressed),
                ];
            } else if at == phys.creation_txg {
                bookmark.flags &= !Bookmark::SNAPSHOT_EXISTS;
                counts = true;
            } else {
                continue;
            }
            self.put_bookmark(zap, &name, &bookmark).await?;
        }
        Ok(counts)
    }
}

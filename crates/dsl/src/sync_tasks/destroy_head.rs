//! Destruction of file systems and volumes (OpenZFS `dsl_destroy_head_sync_impl`, `dsl_dir_destroy_sync`).
//!
//! The names and objects are removed in this txg; the blocks, which may be numerous, in later ones: the root pointer of
//! the dataset is added to the pool's bptree ([`super::trees`]), the space moves from the dataset to `$FREE`.

use super::names::Found;
use super::space::{Delta, Use};
use super::{DslError, DslSyncContext};
use weir_format::dsl::{Bookmark, dataset_field, dir_field};
use weir_format::{DslDataset, ObjectId};

impl DslSyncContext<'_> {
    /// Checks that a file system or volume may be destroyed: it has neither children nor snapshots.
    ///
    /// # Errors
    /// [`DslError::Missing`], [`DslError::HasDependents`], [`DslError::Kind`] (the root).
    pub async fn check_destroy(&mut self, name: &str) -> Result<(), DslError> {
        let found = self.find_head(name).await?;
        if found.at.dir.parent.0 == 0 {
            return Err(DslError::kind(name, "the root dataset is destroyed with its pool only"));
        }
        let children: Vec<String> =
            self.children_of(&found.at.dir).await?.into_iter().map(|(n, _)| format!("{name}/{n}")).collect();
        if !children.is_empty() {
            return Err(DslError::HasDependents { name: name.into(), what: "children", dependents: children });
        }
        let snapshots: Vec<String> =
            self.snapshots_of(&found.phys).await?.into_iter().map(|(n, _)| format!("{name}@{n}")).collect();
        if !snapshots.is_empty() {
            return Err(DslError::HasDependents { name: name.into(), what: "snapshots", dependents: snapshots });
        }
        self.check_freeing(&found.phys).await
    }

    /// Destroys a file system or volume. The caller closes its open set before, with the intent log.
    ///
    /// # Errors
    /// Those of [`DslSyncContext::check_destroy`], before anything was changed.
    pub async fn destroy(&mut self, name: &str) -> Result<(), DslError> {
        self.check_destroy(name).await?;
        let found = self.find_head(name).await?;
        self.log(name, found.id, "destroy", &format!("(bptree, mintxg={})", found.phys.prev_snapshot_txg)).await?;
        self.destroy_head(found).await
    }

    pub(super) async fn destroy_head(&mut self, found: Found) -> Result<(), DslError> {
        let id = found.id;
        let dir_id = found.at.id;
        let reserved = self.ref_reservation(dir_id).await?;
        self.charge_ref_reservation(&found, reserved, 0).await?;
        let origin_goes = self.origin_goes_too(&found.phys, &found.at.dir).await?;
        self.scan_destroyed(id, None).await?;
        self.drop_error_logs(id).await?;
        self.drop_features(id).await?;
        self.leave_origin(id, &found.phys).await?;
        self.deadlist_destroy(found.phys.deadlist).await?;
        self.drop_remap_list(id).await?;
        self.drop_livelist(dir_id).await?;
        self.free_tree(&found).await?;
        let mut dir = self.dir(dir_id).await?;
        dir.head_dataset = ObjectId(0);
        self.put_dir(dir_id, &dir).await?;
        self.remove(found.phys.snapshot_names).await?;
        self.drop_bookmarks(id).await?;
        self.clear_bootfs(id).await?;
        self.remove_zapified(id).await?;
        self.destroy_dir(dir_id).await?;
        if origin_goes {
            self.destroy_snapshot(found.phys.prev_snapshot).await?;
        }
        Ok(())
    }

    /// Whether a clone's origin is marked for deferred destruction and has no other user.
    async fn origin_goes_too(&self, phys: &DslDataset, dir: &weir_format::DslDir) -> Result<bool, DslError> {
        if dir.origin.0 == 0 || phys.prev_snapshot.0 == 0 {
            return Ok(false);
        }
        let origin = self.dataset(phys.prev_snapshot).await?;
        let waits = origin.flags & DslDataset::DEFER_DESTROY != 0 && origin.children == 2;
        Ok(waits && self.holds_on(&origin).await? == 0 && !(self.reading)(phys.prev_snapshot))
    }

    /// Removes a dataset from its origin's list of clones.
    async fn leave_origin(&mut self, id: ObjectId, phys: &DslDataset) -> Result<(), DslError> {
        if phys.prev_snapshot.0 == 0 {
            return Ok(());
        }
        let mut origin = self.dataset(phys.prev_snapshot).await?;
        if origin.next_clones.0 != 0 {
            self.set_remove(origin.next_clones, id.0).await?;
        }
        origin.children = origin.children.saturating_sub(1);
        self.put_dataset(phys.prev_snapshot, &origin).await?;
        let clones = self.dir(origin.dir).await?.clones;
        if clones.0 != 0 {
            self.set_remove(clones, id.0).await?;
        }
        Ok(())
    }

    async fn drop_remap_list(&mut self, id: ObjectId) -> Result<(), DslError> {
        if let Some(list) = self.dataset_word(id, dataset_field::REMAP_DEADLIST).await? {
            self.deadlist_destroy(ObjectId(list)).await?;
            self.zap_remove(id, dataset_field::REMAP_DEADLIST).await?;
            self.count_feature("obsolete_counts", -1).await?;
        }
        Ok(())
    }

    /// Removes a clone's livelist: from now on its tree is walked instead (`dsl_dir_remove_livelist`).
    pub async fn drop_livelist(&mut self, dir: ObjectId) -> Result<(), DslError> {
        if let Some(list) = self.dir_word(dir, dir_field::LIVELIST).await? {
            self.deadlist_destroy(ObjectId(list)).await?;
            self.zap_remove(dir, dir_field::LIVELIST).await?;
            self.count_feature("livelist", -1).await?;
        }
        Ok(())
    }

    /// Adds the dataset's tree to the bptree, and its space to `$FREE`.
    async fn free_tree(&mut self, found: &Found) -> Result<(), DslError> {
        let dir = self.dir(found.at.id).await?;
        let size = Delta::new(dir.used_bytes, dir.compressed_bytes, dir.uncompressed_bytes);
        self.book(found.at.id, Use::Head, -size).await?;
        self.add_tree(&found.phys.pointer, found.phys.prev_snapshot_txg, size).await
    }

    /// Removes the bookmarks of a destroyed head.
    async fn drop_bookmarks(&mut self, head: ObjectId) -> Result<(), DslError> {
        let Some(zap) = self.bookmarks_zap(head).await? else { return Ok(()) };
        for (_, bookmark) in self.bookmarks_in(zap).await? {
            self.drop_redaction_list(&bookmark).await?;
            if bookmark.flags & Bookmark::HAS_FREED_BEFORE_NEXT != 0 {
                self.count_feature("bookmark_written", -1).await?;
            }
            if super::bookmark::needs_newer_form(&bookmark) {
                self.count_feature("bookmark_v2", -1).await?;
            }
        }
        self.remove(zap).await?;
        self.count_feature("bookmarks", -1).await
    }

    /// Removes a directory whose dataset is destroyed.
    async fn destroy_dir(&mut self, id: ObjectId) -> Result<(), DslError> {
        let dir = self.dir(id).await?;
        self.touched.insert(id);
        let siblings = self.dir(dir.parent).await?.children;
        let entries = self.entries(siblings).await?;
        let name = entries.into_iter().find(|(_, v)| v.first() == Some(id.0)).map(|(n, _)| n).unwrap_or_default();
        if !name.starts_with('$') {
            self.count_datasets(dir.parent, dir_field::FILESYSTEM_COUNT, -1).await?;
        }
        self.reserve(id, 0).await?;
        self.drop_key(id).await?;
        self.remove(dir.children).await?;
        self.remove(dir.props).await?;
        self.remove_if(dir.clones).await?;
        for (_, value) in self.entries(dir.permissions).await? {
            self.remove_if(ObjectId(value.first().unwrap_or(0))).await?;
        }
        self.remove_if(dir.permissions).await?;
        self.zap_remove(siblings, &name).await?;
        self.remove_zapified(id).await
    }

    /// Releases a directory's wrapped key; removes the object when no other directory uses it.
    async fn drop_key(&mut self, dir: ObjectId) -> Result<(), DslError> {
        use weir_format::dsl::crypto_key::REFCOUNT;
        let Some(key) = self.dir_word(dir, dir_field::CRYPTO_KEY_OBJ).await?.map(ObjectId) else { return Ok(()) };
        match self.word(key, REFCOUNT).await?.unwrap_or(1) {
            0 | 1 => self.remove(key).await,
            more => self.put_word(key, REFCOUNT, more - 1).await,
        }
    }
}

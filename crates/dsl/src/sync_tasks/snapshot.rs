//! Creation of snapshots (OpenZFS `dsl_dataset_snapshot_sync_impl`).
//!
//! ```text
//!   before   … ── prev ◄── head(deadlist D)           D: blocks of prev that head killed
//!   after    … ── prev ◄── snapshot(D) ◄── head(D')    D': empty, with a key per earlier snapshot
//! ```
//!
//! The snapshot takes over the head's contents, its deadlist and its place in the chain; no data is copied. The head's
//! unique space becomes 0, so a refreservation is charged anew.

use super::names::{Found, check_component, check_name, split_name};
use super::space::{Delta, Use};
use super::{DslError, DslSyncContext};
use crate::props;
use std::collections::{BTreeMap, BTreeSet};
use weir_format::dsl::{Bookmark, dataset_field, dir_field};
use weir_format::{DslDataset, ObjectId, ObjectType, Txg};

impl DslSyncContext<'_> {
    /// Checks that all these snapshots (full names) may be created in one txg.
    ///
    /// # Errors
    /// [`DslError::Name`], [`DslError::Missing`] (no such dataset), [`DslError::Exists`], [`DslError::Busy`]
    /// (a dataset that is being received or destroyed; a second snapshot in one txg), [`DslError::Space`] (a
    /// refreservation without space beside the snapshot; a limit).
    pub async fn check_snapshots(&mut self, names: &[String]) -> Result<(), DslError> {
        let mut seen = BTreeSet::new();
        let mut taken = BTreeMap::new();
        let mut counted = BTreeMap::new();
        for name in names {
            check_name(name)?;
            let (of, Some(('@', snapshot))) = split_name(name) else {
                return Err(DslError::kind(name, "not the name of a snapshot"));
            };
            if !seen.insert(of) {
                return Err(DslError::busy(name, "two snapshots of one dataset"));
            }
            let head = self.find_head(of).await?;
            self.check_snapshot(&head, name, snapshot).await?;
            self.take_count(head.at.id, dir_field::SNAPSHOT_COUNT, 1, ObjectId(0), &mut counted).await?;
            // The refreservation charges the head's unique bytes once more, beside the snapshot.
            let needed = head.phys.unique_bytes.min(self.ref_reservation(head.at.id).await?);
            if needed > 0 && !self.take_space(head.at.id, needed, &mut taken).await? {
                let why = "out of space: the refreservation does not fit beside a snapshot";
                return Err(DslError::space(name, why));
            }
        }
        Ok(())
    }

    async fn check_snapshot(&mut self, head: &Found, name: &str, snapshot: &str) -> Result<(), DslError> {
        check_component(snapshot).map_err(|why| DslError::Name { name: name.to_owned(), why })?;
        if self.snapshot_named(&head.phys, snapshot).await?.is_some() {
            return Err(DslError::exists(name));
        }
        if head.phys.prev_snapshot_txg >= self.txg() {
            return Err(DslError::busy(name, "a snapshot was created in this txg"));
        }
        if head.phys.flags & DslDataset::INCONSISTENT != 0 {
            return Err(DslError::busy(name, "it is being received or destroyed"));
        }
        self.check_lists(head.id).await
    }

    /// Creates snapshots of several datasets, all in one txg, with user properties.
    ///
    /// # Errors
    /// Those of [`DslSyncContext::check_snapshots`], before anything was changed.
    pub async fn snapshot(
        &mut self,
        names: &[String],
        properties: &[(String, props::Value)],
    ) -> Result<Vec<ObjectId>, DslError> {
        self.check_snapshots(names).await?;
        let mut made = Vec::with_capacity(names.len());
        for name in names {
            let (of, snapshot) = name.split_once('@').unwrap_or((name, ""));
            let head = self.find_head(of).await?;
            let id = self.snapshot_head(head.id, snapshot).await?;
            for (property, value) in properties {
                self.store_on_snapshot(id, property, value).await?;
            }
            self.log(name, id, "snapshot", "").await?;
            made.push(id);
        }
        Ok(made)
    }

    /// Creates the snapshot `name` of a head.
    pub(super) async fn snapshot_head(&mut self, head_id: ObjectId, name: &str) -> Result<ObjectId, DslError> {
        let mut head = self.dataset(head_id).await?;
        self.count_datasets(head.dir, dir_field::SNAPSHOT_COUNT, 1).await?;
        // The origin of all datasets must be older than any of them.
        let txg = if name == super::pool::ORIGIN { Txg(1) } else { self.txg() };
        let snapshot = DslDataset {
            next_snapshot: head_id,
            snapshot_names: ObjectId(0),
            children: 1,
            creation_time_s: self.now_s,
            creation_txg: txg,
            unique_bytes: 0,
            fsid_guid: self.fsid(),
            guid: self.guid(),
            next_clones: ObjectId(0),
            props: ObjectId(0),
            user_refs: ObjectId(0),
            ..head.clone()
        };
        let bonus = snapshot.encode(weir_format::Endian::Little);
        let id = self.object(ObjectType::DSL_DATASET, ObjectType::DSL_DATASET, bonus).await?;
        self.copy_features(head_id, id).await?;
        self.link_before(&head, head_id, id).await?;
        let reserved = self.ref_reservation(head.dir).await?;
        let charge = head.unique_bytes.min(reserved) as i64;
        self.book(head.dir, Use::RefReservation, Delta::used(charge)).await?;
        let keys = self.bookmark_keys(head_id, head.prev_snapshot_txg).await?;
        head.deadlist = self.deadlist_until(head.deadlist, Txg(u64::MAX)).await?;
        for key in std::iter::once(head.prev_snapshot_txg).chain(keys) {
            self.deadlist_add_key(head.deadlist, key).await?;
        }
        self.hand_over_fields(&head, head_id, id).await?;
        (head.prev_snapshot, head.prev_snapshot_txg, head.unique_bytes) = (id, txg, 0);
        head.flags |= DslDataset::UNIQUE_ACCURATE;
        self.put_dataset(head_id, &head).await?;
        self.insert_word(head.snapshot_names, name, id.0).await?;
        self.scan_snapshotted(head_id, id).await?;
        self.note_snapshots_changed(head.dir).await?;
        Ok(id)
    }

    /// Puts the snapshot in the head's place after the previous snapshot.
    async fn link_before(&mut self, head: &DslDataset, head_id: ObjectId, id: ObjectId) -> Result<(), DslError> {
        if head.prev_snapshot.0 == 0 {
            return Ok(());
        }
        let mut before = self.dataset(head.prev_snapshot).await?;
        if before.next_snapshot == head_id {
            before.next_snapshot = id;
            self.put_dataset(head.prev_snapshot, &before).await?;
        } else if before.next_clones.0 != 0 {
            self.set_remove(before.next_clones, head_id.0).await?;
            self.set_insert(before.next_clones, id.0).await?;
        }
        Ok(())
    }

    /// Births since `after` for which bookmarks need keys in the head's deadlist (`dsl_bookmark_snapshotted`).
    async fn bookmark_keys(&mut self, head: ObjectId, after: Txg) -> Result<Vec<Txg>, DslError> {
        let Some(zap) = self.bookmarks_zap(head).await? else { return Ok(Vec::new()) };
        let counts = |b: &Bookmark| b.flags & Bookmark::HAS_FREED_BEFORE_NEXT != 0 && b.creation_txg > after;
        let bookmarks = self.bookmarks_in(zap).await?;
        let mut keys: Vec<Txg> =
            bookmarks.into_iter().filter(|(_, b)| counts(b)).map(|(_, b)| b.creation_txg).collect();
        keys.sort_unstable();
        keys.dedup();
        Ok(keys)
    }

    /// Moves the remap deadlist to the snapshot; a snapshot of an encrypted dataset gets an IV set GUID.
    async fn hand_over_fields(&mut self, head: &DslDataset, head_id: ObjectId, id: ObjectId) -> Result<(), DslError> {
        if let Some(list) = self.dataset_word(head_id, dataset_field::REMAP_DEADLIST).await? {
            self.zap_remove(head_id, dataset_field::REMAP_DEADLIST).await?;
            self.zapify(id).await?;
            self.insert_word(id, dataset_field::REMAP_DEADLIST, list).await?;
        }
        let encrypted = self.dir_word(head.dir, dir_field::CRYPTO_KEY_OBJ).await?.is_some();
        if encrypted && self.is_enabled("bookmark_v2").await? {
            self.zapify(id).await?;
            self.insert_word(id, dataset_field::IVSET_GUID, self.fsid()).await?;
        }
        Ok(())
    }

    /// Records when a directory's snapshots last changed.
    pub(super) async fn note_snapshots_changed(&mut self, dir: ObjectId) -> Result<(), DslError> {
        if !self.is_enabled("extensible_dataset").await? {
            return Ok(());
        }
        self.zapify(dir).await?;
        let value = weir_dmu::zap::Value { int_size: 8, words: vec![self.now_s, 0] };
        self.put(dir, dir_field::SNAPSHOTS_CHANGED, value).await
    }
}

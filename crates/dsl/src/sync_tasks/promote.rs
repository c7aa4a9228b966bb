//! Promotion (OpenZFS `dsl_dataset_promote_sync`): a clone and its origin's dataset exchange their roles.
//!
//! ```text
//!   before   a1 ── a2 ── a3 ── head a               after   a3 ── head a  (a clone of a2 now)
//!                   └─ b1 ── head b                          a1 ── a2 ── b1 ── head b
//! ```
//!
//! The snapshots up to the branch point move to the clone's directory with their names, bookmarks and space. Sizes and
//! deadlists determine that space: snapshot N refers to the blocks of N-1, plus those born, less those killed in
//! between; so the blocks born up to the branch point are those that it refers to plus those of all deadlists up to it.

use super::limits::Moved;
use super::names::Found;
use super::space::{Delta, Use, difference};
use super::{DslError, DslSyncContext};
use weir_dmu::cycle_guard::CycleGuard;
use weir_format::dsl::{Bookmark, dir_field};
use weir_format::{DslDataset, ObjectId, ObjectType, Txg};

/// Objects that a promotion changes.
struct Plan {
    clone: Found,
    /// Snapshots that move, from the branch point back: object, name, fields.
    shared: Vec<(ObjectId, String, DslDataset)>,
    /// The clone's head and snapshots, from the head back.
    of_clone: Vec<(ObjectId, DslDataset)>,
    /// The origin's head and snapshots after the branch point, from the head back.
    of_origin: Vec<(ObjectId, DslDataset)>,
    /// The origin's directory, and its head.
    origin_dir: ObjectId,
    origin_head: ObjectId,
    /// The snapshot that the origin's directory is a clone of; 0 if it is no clone.
    origin_origin: ObjectId,
    moved: Delta,
}

impl Plan {
    fn branch(&self) -> Option<&(ObjectId, String, DslDataset)> {
        self.shared.first()
    }
}

impl DslSyncContext<'_> {
    /// The chain of snapshots from `from` back to `until`, exclusive.
    async fn chain(&self, from: ObjectId, until: ObjectId) -> Result<Vec<(ObjectId, DslDataset)>, DslError> {
        let mut out = Vec::new();
        let mut trail = CycleGuard::default();
        let mut at = from;
        while at.0 != 0 && at != until {
            trail.step(&self.mos, at)?;
            let phys = self.dataset(at).await?;
            let previous = phys.prev_snapshot;
            out.push((at, phys));
            at = previous;
        }
        Ok(out)
    }

    async fn plan_promotion(&mut self, name: &str) -> Result<Plan, DslError> {
        let clone = self.find_head(name).await?;
        let no_clone = || DslError::kind(name, "not a cloned filesystem or volume");
        let origin = clone.at.dir.origin;
        if origin.0 == 0 || Some(origin) == self.empty_origin().await? {
            return Err(no_clone());
        }
        if clone.phys.flags & DslDataset::NO_PROMOTE != 0 {
            return Err(DslError::kind(name, "it may not be promoted"));
        }
        let origin_dir = self.dataset(origin).await?.dir;
        let of = self.dir(origin_dir).await?;
        let head = self.dataset(of.head_dataset).await?;
        let names = self.snapshots_of(&head).await?;
        let mut shared = Vec::new();
        for (id, phys) in self.chain(origin, of.origin).await? {
            let name = names.iter().find(|(_, of)| *of == id).map(|(n, _)| n.clone());
            let place = self.mos.place(id, 0, 0);
            let nameless = weir_dmu::ObjectError::Corrupt { place, why: "a snapshot without a name" };
            shared.push((id, name.ok_or(nameless)?, phys));
        }
        let of_clone = self.chain(clone.id, origin).await?;
        let of_origin = self.chain(of.head_dataset, origin).await?;
        let mut plan = Plan {
            clone,
            shared,
            of_clone,
            of_origin,
            origin_dir,
            origin_head: of.head_dataset,
            origin_origin: of.origin,
            moved: Delta::default(),
        };
        plan.moved = self.moved_space(&plan).await?;
        Ok(plan)
    }

    /// Sums of the blocks born up to the branch point, since the origin's own origin.
    async fn moved_space(&self, plan: &Plan) -> Result<Delta, DslError> {
        let refers = |d: &DslDataset| Delta::new(d.referenced_bytes, d.compressed_bytes, d.uncompressed_bytes);
        let mut moved = plan.branch().map(|(_, _, phys)| refers(phys)).unwrap_or_default();
        for (_, _, phys) in plan.shared.iter().filter(|(_, _, phys)| phys.prev_snapshot.0 != 0) {
            moved += self.deadlist_space(phys.deadlist).await?;
        }
        if plan.origin_origin.0 != 0 {
            moved += -refers(&self.dataset(plan.origin_origin).await?);
        }
        Ok(moved)
    }

    /// Checks that a clone may be promoted.
    ///
    /// # Errors
    /// [`DslError::Kind`] (no clone), [`DslError::HasDependents`] (snapshots or bookmarks of the same names),
    /// [`DslError::Space`], [`DslError::Key`] (the clone does not inherit from the key's root).
    pub async fn check_promote(&mut self, name: &str) -> Result<(), DslError> {
        let plan = self.plan_promotion(name).await?;
        self.check_plan(&plan).await
    }

    async fn check_plan(&mut self, plan: &Plan) -> Result<(), DslError> {
        let name = &plan.clone.name;
        let mut conflicts = Vec::new();
        for (_, snapshot, _) in &plan.shared {
            if self.snapshot_named(&plan.clone.phys, snapshot).await?.is_some() {
                conflicts.push(format!("{name}@{snapshot}"));
            }
            if name.len() + 1 + snapshot.len() > 255 {
                return Err(DslError::Name { name: format!("{name}@{snapshot}"), why: "name is too long" });
            }
        }
        for (bookmark, _) in self.bookmarks_to_move(plan).await? {
            if self.bookmark_named(&plan.clone, &bookmark).await?.is_some() {
                conflicts.push(format!("{name}#{bookmark}"));
            }
        }
        if !conflicts.is_empty() {
            let what = "conflicting snapshots or bookmarks";
            return Err(DslError::HasDependents { name: name.clone(), what, dependents: conflicts });
        }
        self.check_promotion_space(plan).await?;
        self.check_promotion_key(plan).await
    }

    /// Checks that the moved blocks fit under the limits of the clone and its ancestors.
    async fn check_promotion_space(&mut self, plan: &Plan) -> Result<(), DslError> {
        let moved = Moved { bytes: plan.moved.used.max(0) as u64, datasets: 0, snapshots: plan.shared.len() as u64 };
        match self.check_transfer(plan.origin_dir, plan.clone.at.id, &moved).await? {
            true => Ok(()),
            false => Err(DslError::space(&plan.clone.name, "out of space for what it takes over")),
        }
    }

    /// Checks that the same key keeps wrapping both keys (`dsl_dataset_promote_crypt_check`).
    async fn check_promotion_key(&mut self, plan: &Plan) -> Result<(), DslError> {
        let origin = plan.origin_dir;
        let Some(root) = self.key_root(origin).await? else { return Ok(()) };
        // If the origin is its own root, the clone becomes the root; if the origin is a clone, its own origin is the
        // root.
        if root == origin || self.is_clone(origin).await? {
            return Ok(());
        }
        if self.key_root(plan.clone.at.dir.parent).await? == Some(root) {
            return Ok(());
        }
        Err(DslError::Key { name: plan.clone.name.clone(), why: "the clone is not below the key's root" })
    }

    async fn bookmarks_to_move(&mut self, plan: &Plan) -> Result<Vec<(String, Bookmark)>, DslError> {
        let Some(zap) = self.bookmarks_zap(plan.origin_head).await? else { return Ok(Vec::new()) };
        let until = plan.branch().map_or(Txg(0), |(_, _, phys)| phys.creation_txg);
        let mut bookmarks = self.bookmarks_in(zap).await?;
        bookmarks.retain(|(_, b)| b.creation_txg <= until);
        Ok(bookmarks)
    }

    /// Promotes a clone.
    ///
    /// # Errors
    /// Those of [`DslSyncContext::check_promote`], before anything was changed.
    pub async fn promote(&mut self, name: &str) -> Result<(), DslError> {
        let plan = self.plan_promotion(name).await?;
        self.check_plan(&plan).await?;
        let uses = self.snapshot_uses(&plan).await?;
        let unique = self.unique_of_branch(&plan).await?;
        self.promote_key(&plan).await?;
        let old_next = self.turn_branch(&plan, unique).await?;
        self.turn_origins(&plan).await?;
        self.move_bookmarks(&plan).await?;
        for (id, snapshot, _) in &plan.shared {
            self.move_snapshot(&plan, *id, snapshot, old_next).await?;
        }
        self.move_promoted_space(&plan, uses).await?;
        self.drop_livelist(plan.clone.at.id).await?;
        self.drop_livelist(plan.origin_dir).await?;
        self.log(name, plan.clone.id, "promote", "").await
    }

    /// The `SNAP` use after the promotion: in the clone's directory, in the origin's.
    async fn snapshot_uses(&self, plan: &Plan) -> Result<(i64, i64), DslError> {
        let end = Txg(u64::MAX);
        let origin = self.origin_txg(plan.origin_dir).await?;
        let mut of_clone = 0;
        for list in plan.shared.iter().map(|(_, _, p)| p.deadlist).chain(plan.of_clone.iter().map(|(_, p)| p.deadlist))
        {
            of_clone += self.deadlist_range(list, origin, end).await?.used;
        }
        let branch = plan.branch().map_or(Txg(0), |(_, _, phys)| phys.creation_txg);
        let mut of_origin = 0;
        for (_, phys) in &plan.of_origin {
            of_origin += self.deadlist_range(phys.deadlist, branch, end).await?.used;
        }
        Ok((of_clone, of_origin))
    }

    /// Unique bytes of the branch point afterwards: those that the clone's first snapshot (or head) no longer refers
    /// to.
    async fn unique_of_branch(&self, plan: &Plan) -> Result<u64, DslError> {
        let (Some((_, first)), Some((_, _, branch))) = (plan.of_clone.last(), plan.branch()) else { return Ok(0) };
        let alone = self.deadlist_range(first.deadlist, branch.prev_snapshot_txg, Txg(u64::MAX)).await?;
        Ok(alone.used.max(0) as u64)
    }

    /// Makes the clone's first snapshot follow the branch point; the dataset that followed it becomes its clone.
    /// Returns that one.
    async fn turn_branch(&mut self, plan: &Plan, unique: u64) -> Result<ObjectId, DslError> {
        let (Some((id, _, _)), Some((first, _))) = (plan.branch(), plan.of_clone.last()) else {
            return Ok(ObjectId(0));
        };
        let mut branch = self.dataset(*id).await?;
        let old_next = branch.next_snapshot;
        branch.next_snapshot = *first;
        branch.unique_bytes = unique;
        if branch.next_clones.0 != 0 {
            self.set_remove(branch.next_clones, first.0).await?;
            self.set_insert(branch.next_clones, old_next.0).await?;
        }
        self.put_dataset(*id, &branch).await?;
        Ok(old_next)
    }

    /// Gives the clone's directory the origin's origin, and the origin's directory the branch point as origin.
    async fn turn_origins(&mut self, plan: &Plan) -> Result<(), DslError> {
        let Some((branch, _, _)) = plan.branch() else { return Ok(()) };
        let clone_dir = plan.clone.at.id;
        let mut dir = self.dir(clone_dir).await?;
        let mut of = self.dir(plan.origin_dir).await?;
        dir.origin = of.origin;
        of.origin = *branch;
        if of.clones.0 != 0 {
            self.set_remove(of.clones, plan.clone.id.0).await?;
        }
        if dir.clones.0 == 0 {
            dir.clones = self.zap(ObjectType::DSL_CLONES).await?;
        }
        self.set_insert(dir.clones, plan.origin_head.0).await?;
        self.put_dir(clone_dir, &dir).await?;
        self.put_dir(plan.origin_dir, &of).await?;
        if plan.origin_origin.0 == 0 {
            return Ok(());
        }
        let above = self.dataset(plan.origin_origin).await?.dir;
        let clones = self.dir(above).await?.clones;
        if clones.0 != 0 {
            self.set_insert(clones, plan.clone.id.0).await?;
            self.set_remove(clones, plan.origin_head.0).await?;
        }
        Ok(())
    }

    async fn move_bookmarks(&mut self, plan: &Plan) -> Result<(), DslError> {
        let bookmarks = self.bookmarks_to_move(plan).await?;
        if let Some(zap) = self.bookmarks_zap(plan.origin_head).await? {
            for (name, bookmark) in bookmarks {
                self.zap_remove(zap, &name).await?;
                if super::bookmark::needs_newer_form(&bookmark) {
                    self.count_feature("bookmark_v2", -1).await?;
                }
                self.add_bookmark(plan.clone.id, &name, &bookmark).await?;
            }
        }
        match plan.branch() {
            Some((branch, _, _)) => self.bookmarks_recounted(plan.clone.id, *branch).await,
            None => Ok(()),
        }
    }

    /// Moves one snapshot to the clone's directory, and its clones from one directory's list to the other's.
    async fn move_snapshot(
        &mut self,
        plan: &Plan,
        id: ObjectId,
        name: &str,
        old_next: ObjectId,
    ) -> Result<(), DslError> {
        let old_names = self.dataset(plan.origin_head).await?.snapshot_names;
        let new_names = self.dataset(plan.clone.id).await?.snapshot_names;
        self.zap_remove(old_names, name).await?;
        self.insert_word(new_names, name, id.0).await?;
        self.count_datasets(plan.origin_dir, dir_field::SNAPSHOT_COUNT, -1).await?;
        self.count_datasets(plan.clone.at.id, dir_field::SNAPSHOT_COUNT, 1).await?;
        let mut phys = self.dataset(id).await?;
        phys.dir = plan.clone.at.id;
        self.put_dataset(id, &phys).await?;
        let old = self.dir(plan.origin_dir).await?.clones;
        let new = self.dir(plan.clone.at.id).await?.clones;
        for (_, value) in self.entries(phys.next_clones).await? {
            let Some(next) = value.first().filter(|next| *next != old_next.0) else { continue };
            let of = self.dataset(ObjectId(next)).await?.dir;
            let head = self.dir(of).await?.head_dataset.0;
            self.set_remove(old, head).await?;
            self.set_insert(new, head).await?;
        }
        Ok(())
    }

    async fn move_promoted_space(&mut self, plan: &Plan, uses: (i64, i64)) -> Result<(), DslError> {
        let moved = plan.moved;
        for (dir, now, sign) in [(plan.clone.at.id, uses.0, 1), (plan.origin_dir, uses.1, -1)] {
            let phys = self.dir(dir).await?;
            let [_, snapshots, ..] = phys.used_breakdown;
            let by = if phys.flags & 1 != 0 { difference(changed_to(now), snapshots) } else { 0 };
            let all = if sign > 0 { moved } else { -moved };
            self.book(dir, Use::Snapshots, Delta::used(by)).await?;
            self.book(dir, Use::Head, Delta { used: all.used - by, ..all }).await?;
        }
        Ok(())
    }

    /// Makes a promoted clone the root of its key, if the origin was.
    async fn promote_key(&mut self, plan: &Plan) -> Result<(), DslError> {
        use weir_format::dsl::crypto_key::ROOT_DDOBJ;
        let Some(key) = self.dir_word(plan.clone.at.id, dir_field::CRYPTO_KEY_OBJ).await?.map(ObjectId) else {
            return Ok(());
        };
        let root = self.word(key, ROOT_DDOBJ).await?.map(ObjectId);
        if root != Some(plan.origin_dir) {
            return Ok(());
        }
        for id in self.key_users(plan.origin_dir).await? {
            if let Some(key) = self.dir_word(id, dir_field::CRYPTO_KEY_OBJ).await?.map(ObjectId)
                && self.word(key, ROOT_DDOBJ).await?.map(ObjectId) == Some(plan.origin_dir)
            {
                self.put_word(key, ROOT_DDOBJ, plan.clone.at.id.0).await?;
            }
        }
        self.move_key_properties(plan.origin_dir, plan.clone.at.id).await
    }

    /// Moves the key's location and format properties, which are set at its root.
    async fn move_key_properties(&mut self, from: ObjectId, to: ObjectId) -> Result<(), DslError> {
        let from = self.dir(from).await?.props;
        let to = self.dir(to).await?.props;
        let location = self.entries(from).await?.into_iter().find(|(name, _)| name == "keylocation");
        if let Some((name, value)) = location {
            self.zap_remove(from, &name).await?;
            self.put(to, &name, value).await?;
        }
        Ok(())
    }
}

fn changed_to(bytes: i64) -> u64 {
    bytes.max(0) as u64
}

//! Administrative operations on datasets. Each is one sync task: checked and executed in one txg, and stable on return.
//!
//! A dataset that clients use (they have its files open or are attached to the volume) is busy and cannot be destroyed or
//! rolled back. An open dataset without clients is closed first ([`super::closing`]).

use super::closing::{clear_log, close};
use super::datasets::policy_for;
use super::keys::{self, Encryption};
use super::syncing::TxgSync;
use super::{Engine, Program, closing, program};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weir_dmu::live::{Policy, TxAdmission};
use weir_dmu::{ObjectSet, Opening};
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::{
    DslSyncContext, Kind, NewDataset, bookmark, branch, create, destroy, destroy_head, history, hold, key, promote,
    rename, rollback, snapshot,
};
use weir_dsl::{MountedFileSystems, Scope};
use weir_format::ObjsetId;
use weir_machine::{Request, invariant};
use weir_pool::error::PoolError;

/// Pairs of a dataset or snapshot and a tag or name.
pub type Pairs = Vec<(String, String)>;
/// Properties with their stored values.
pub type Values = Vec<(String, Value)>;

impl Engine {
    /// Writes a txg with its uberblock, even if nothing was changed, and waits until all changes made so far are on stable
    /// storage.
    ///
    /// # Errors
    /// The error that suspended the pool, if the txg cannot be written.
    pub async fn sync_always(&self) -> Result<(), PoolError> {
        let before = self.shown().uberblock.txg;
        self.sync_task(|syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                syncing.core.config_dirty = true;
                Ok(())
            })
        })
        .await?;
        invariant!(self.shown().uberblock.txg > before, "a forced sync wrote no uberblock");
        Ok(())
    }

    /// Creates a file system or volume.
    ///
    /// # Errors
    /// Errors of [`create::create`](weir_dsl::sync_tasks::create::create).
    pub async fn create_dataset(&self, new: NewDataset) -> Result<(), PoolError> {
        self.create_encrypted(new, Encryption::default()).await
    }

    /// Creates a file system or volume with the requested encryption.
    ///
    /// # Errors
    /// Errors of [`create::create`](weir_dsl::sync_tasks::create::create); [`super::KeyError`] if it cannot be encrypted as requested.
    pub async fn create_encrypted(&self, new: NewDataset, encryption: Encryption) -> Result<(), PoolError> {
        let name = new.name.clone();
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                create::check_create(&mut syncing.change, &new).await?;
                let plan = keys::plan(syncing, &new.name, &encryption).await?;
                let created = create::create(&mut syncing.change, &new).await?;
                let key = match plan {
                    Some(plan) => Some(keys::encrypt(syncing, created, &plan).await?),
                    None => None,
                };
                let engine = syncing.engine;
                let gate: Arc<dyn TxAdmission> = engine.gate.clone();
                let policy = policy_for(new.kind.objset(), Policy::default());
                let opening = Opening { id: ObjsetId(created.dataset.0), key, ..Opening::default() };
                let set = ObjectSet::make_with(engine.cache.clone(), opening, new.kind.objset(), gate, policy);
                let DslSyncContext { rq, tx, .. } = &syncing.change;
                match &new.kind {
                    Kind::FileSystem(spec) => spec.create(rq, &set, tx).await.map(drop)?,
                    Kind::Volume(spec) => spec.create(rq, &set, tx).await?,
                }
                syncing.add_set(set);
                Ok(())
            })
        })
        .await?;
        self.changed.note(&name);
        self.properties().renew(&Request::internal("create"), Scope::Path(&name)).await
    }

    /// Creates a clone of a snapshot.
    ///
    /// # Errors
    /// Errors of [`branch::clone_snapshot`](weir_dsl::sync_tasks::branch::clone_snapshot).
    pub async fn clone_snapshot(&self, origin: String, name: String, properties: Values) -> Result<(), PoolError> {
        let clone = name.clone();
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                let created = branch::clone_snapshot(&mut syncing.change, &origin, &name, &properties).await?;
                clear_log(syncing, created.dataset, &name).await
            })
        })
        .await?;
        self.changed.note(&clone);
        self.properties().renew(&Request::internal("clone"), Scope::Path(&clone)).await
    }

    /// Creates snapshots atomically, all of the same txg.
    ///
    /// # Errors
    /// Errors of [`snapshot::snapshot`](weir_dsl::sync_tasks::snapshot::snapshot).
    pub async fn snapshot(&self, names: Vec<String>, properties: Values) -> Result<(), PoolError> {
        let made = names.clone();
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(snapshot::snapshot(&mut syncing.change, &names, &properties).await.map(drop)?) })
        })
        .await?;
        made.iter().for_each(|name| self.changed.note(name));
        Ok(())
    }

    /// Destroys snapshots; with `defer`, those in use are destroyed when their last user is gone.
    ///
    /// # Errors
    /// Errors of [`destroy::destroy_snapshots`](weir_dsl::sync_tasks::destroy::destroy_snapshots).
    pub async fn destroy_snapshots(&self, names: Vec<String>, defer: bool) -> Result<(), PoolError> {
        let destroyed = names.clone();
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(destroy::destroy_snapshots(&mut syncing.change, &names, defer).await?) })
        })
        .await?;
        self.snapshots_destroyed.fetch_add(destroyed.len() as u64, Ordering::Relaxed);
        destroyed.iter().for_each(|name| self.changed.note(name));
        Ok(())
    }

    /// Destroys a file system or volume that has neither snapshots nor children.
    ///
    /// # Errors
    /// Errors of [`destroy_head::destroy`](weir_dsl::sync_tasks::destroy_head::destroy); busy while clients use it.
    pub async fn destroy_dataset(&self, name: String) -> Result<(), PoolError> {
        let closing = closing::begin(self, &name).await?;
        let destroyed = name.clone();
        let done = self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                destroy_head::check_destroy(&mut syncing.change, &name).await?;
                let dataset = close(syncing, &name).await?;
                let is_clone = key::is_clone(&mut syncing.change, dataset.dir).await?;
                destroy_head::destroy(&mut syncing.change, &name).await?;
                tracing::debug!("object set {} destroyed", dataset.id);
                drop_orphaned_keys(syncing).await.map(|()| is_clone)
            })
        });
        match closing.end(done.await)? {
            // The snapshot that it was cloned from may have been destroyed with it (`zfs destroy -d`).
            true => self.changed.note_all(),
            false => self.changed.note(&destroyed),
        }
        Ok(())
    }

    /// Rolls a dataset back to its last snapshot, which must be `to` if that is given.
    ///
    /// # Errors
    /// Errors of [`rollback::rollback`](weir_dsl::sync_tasks::rollback::rollback); busy while clients use it.
    pub async fn rollback(&self, name: String, to: Option<String>) -> Result<(), PoolError> {
        let closing = closing::begin(self, &name).await?;
        let rolled_back = name.clone();
        let done = self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                rollback::check_rollback(&mut syncing.change, &name, to.as_deref()).await?;
                let id = close(syncing, &name).await?.id;
                rollback::rollback(&mut syncing.change, &name, to.as_deref()).await?;
                clear_log(syncing, id, &name).await
            })
        });
        closing.end(done.await)?;
        self.changed.note(&rolled_back);
        self.properties().renew(&Request::internal("rollback"), Scope::Path(&rolled_back)).await
    }

    /// Promotes a clone, so that its origin depends on it.
    ///
    /// # Errors
    /// Errors of [`promote::promote`](weir_dsl::sync_tasks::promote::promote).
    pub async fn promote(&self, name: String) -> Result<(), PoolError> {
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                promote::promote(&mut syncing.change, &name).await?;
                drop_orphaned_keys(syncing).await
            })
        })
        .await?;
        // Snapshots move between this dataset and its origin.
        self.changed.note_all();
        Ok(())
    }

    /// Renames a file system or volume.
    ///
    /// # Errors
    /// Errors of [`rename::rename`](weir_dsl::sync_tasks::rename::rename).
    pub async fn rename(&self, from: String, to: String) -> Result<(), PoolError> {
        let before = from.clone();
        let renamed = to.clone();
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(rename::rename(&mut syncing.change, &from, &to).await?) })
        })
        .await?;
        self.changed.note(&before);
        self.changed.note(&renamed);
        // The dataset and its descendants inherit from new ancestors now.
        self.properties().renew(&Request::internal("rename"), Scope::Subtree(&renamed)).await
    }

    /// Renames snapshots atomically: pairs of a snapshot and its new name after the `@`.
    ///
    /// # Errors
    /// Errors of [`rename::rename_snapshots`](weir_dsl::sync_tasks::rename::rename_snapshots).
    pub async fn rename_snapshots(&self, names: Pairs) -> Result<(), PoolError> {
        let renamed: Vec<String> = names.iter().map(|(snapshot, _)| snapshot.clone()).collect();
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(rename::rename_snapshots(&mut syncing.change, &names).await?) })
        })
        .await?;
        renamed.iter().for_each(|name| self.changed.note(name));
        Ok(())
    }

    /// Holds snapshots: pairs of snapshot and tag.
    ///
    /// # Errors
    /// Errors of [`hold::hold`](weir_dsl::sync_tasks::hold::hold).
    pub async fn hold(&self, holds: Pairs) -> Result<(), PoolError> {
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(hold::hold(&mut syncing.change, &holds, false).await?) })
        })
        .await
    }

    /// Releases snapshots: pairs of snapshot and tag.
    ///
    /// # Errors
    /// Errors of [`hold::release`](weir_dsl::sync_tasks::hold::release).
    pub async fn release(&self, holds: Pairs) -> Result<(), PoolError> {
        let released: Vec<String> = holds.iter().map(|(snapshot, _)| snapshot.clone()).collect();
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(hold::release(&mut syncing.change, &holds).await?) })
        })
        .await?;
        // The release may have destroyed the snapshot (`zfs destroy -d`).
        released.iter().for_each(|name| self.changed.note(name));
        Ok(())
    }

    /// Creates bookmarks: pairs of a bookmark and its source snapshot or bookmark.
    ///
    /// # Errors
    /// Errors of [`bookmark::bookmark`](weir_dsl::sync_tasks::bookmark::bookmark).
    pub async fn bookmark(&self, bookmarks: Pairs) -> Result<(), PoolError> {
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(bookmark::bookmark(&mut syncing.change, &bookmarks).await?) })
        })
        .await
    }

    /// Destroys bookmarks.
    ///
    /// # Errors
    /// Errors of [`bookmark::destroy_bookmarks`](weir_dsl::sync_tasks::bookmark::destroy_bookmarks).
    pub async fn destroy_bookmarks(&self, names: Vec<String>) -> Result<(), PoolError> {
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(bookmark::destroy_bookmarks(&mut syncing.change, &names).await?) })
        })
        .await
    }

    /// Runs a program in one txg, with all other changes of datasets kept out ([`super::program`]). Returns its result when the txg
    /// is stable. File systems in `mounted` can be neither destroyed nor rolled back.
    ///
    /// # Errors
    /// [`PoolError::Suspended`]: a change failed after its first write, or the txg cannot be written.
    pub async fn run_program<T: Send + 'static>(
        &self,
        mounted: MountedFileSystems,
        program: impl Program<T>,
    ) -> Result<T, PoolError> {
        let (value, has_changed) = self
            .sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move { Ok(program::run(syncing, mounted, program).await) })
            })
            .await?;
        if has_changed {
            self.changed.note_all();
            self.properties().renew(&Request::internal("program"), Scope::All).await?;
        }
        Ok(value)
    }

    /// Appends an administrator's command to the pool's history, in the next txg, without waiting for it: what the command
    /// did is stable already (`spa_history_log_nvl`). [`Engine::sync`] makes the history complete.
    ///
    /// # Errors
    /// [`PoolError::Suspended`].
    pub fn log_command(&self, line: String, uid: u32) -> Result<(), PoolError> {
        if self.is_read_only() {
            return Ok(());
        }
        let queued = self.queue.push(self.txgs().open(), move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(history::log_command(&mut syncing.change, &line, uid).await?) })
        });
        queued.map(drop).ok_or_else(|| self.closed())
    }
}

/// Drops keys of encryption roots that the task moved or destroyed.
pub(crate) async fn drop_orphaned_keys(syncing: &TxgSync<'_>) -> Result<(), PoolError> {
    let engine = syncing.engine;
    if engine.keys.is_empty() {
        return Ok(());
    }
    engine.keys.drop_orphaned_roots(syncing.change.rq, &*engine.live_dsl(syncing.change.rq, Scope::All).await?).await
}

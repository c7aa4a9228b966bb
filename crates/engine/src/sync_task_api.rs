//! Administrative operations on datasets. Each is one sync task: checked and executed in one txg, and stable on return.
//!
//! A dataset that clients use (they have its files open or are attached to the volume) is busy and cannot be destroyed or
//! rolled back. An open dataset without clients is closed first ([`super::closing`]).

use super::Engine;
use super::closing::{clear_log, close};
use super::datasets::policy_for;
use super::keys::{self, Encryption};
use super::syncing::TxgSync;
use std::sync::Arc;
use weir_dmu::live::{Policy, TxAdmission};
use weir_dmu::{ObjectSet, Opening};
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::{DslSyncContext, Kind, NewDataset, Setting, VolumeSpec};
use weir_dsl::{QuotaKind, QuotaPrincipal, Scope};
use weir_format::ObjsetId;
use weir_machine::Request;
use weir_pool::error::PoolError;

/// Pairs of a dataset or snapshot and a tag or name.
pub type Pairs = Vec<(String, String)>;
/// Properties with their stored values.
pub type Values = Vec<(String, Value)>;

/// Native properties that decide what front ends share and mount, and how; properties `weir:*` do, too.
const FRONT_END_PROPERTIES: [&str; 9] =
    ["sharenfs", "sharesmb", "canmount", "mountpoint", "zoned", "readonly", "snapdir", "snapdev", "volmode"];

impl Engine {
    /// Creates a file system or volume.
    ///
    /// # Errors
    /// Errors of [`DslSyncContext::create`].
    pub async fn create_dataset(&self, new: NewDataset) -> Result<(), PoolError> {
        self.create_encrypted(new, Encryption::default()).await
    }

    /// Creates a file system or volume with the requested encryption.
    ///
    /// # Errors
    /// Errors of [`DslSyncContext::create`]; [`super::KeyError`] if it cannot be encrypted as requested.
    pub async fn create_encrypted(&self, new: NewDataset, encryption: Encryption) -> Result<(), PoolError> {
        let name = new.name.clone();
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                syncing.change.check_create(&new).await?;
                let plan = keys::plan(syncing, &new.name, &encryption).await?;
                let created = syncing.change.create(&new).await?;
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
        self.renew_settings(&Request::internal("create"), Scope::Path(&name)).await
    }

    /// Creates a clone of a snapshot.
    ///
    /// # Errors
    /// Errors of [`DslSyncContext::clone_snapshot`].
    pub async fn clone_snapshot(&self, origin: String, name: String, properties: Values) -> Result<(), PoolError> {
        let clone = name.clone();
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                let created = syncing.change.clone_snapshot(&origin, &name, &properties).await?;
                clear_log(syncing, created.dataset, &name).await
            })
        })
        .await?;
        self.changed.note(&clone);
        self.renew_settings(&Request::internal("clone"), Scope::Path(&clone)).await
    }

    /// Creates snapshots atomically, all of the same txg.
    ///
    /// # Errors
    /// Errors of [`DslSyncContext::snapshot`].
    pub async fn snapshot(&self, names: Vec<String>, properties: Values) -> Result<(), PoolError> {
        let made = names.clone();
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(syncing.change.snapshot(&names, &properties).await.map(drop)?) })
        })
        .await?;
        made.iter().for_each(|name| self.changed.note(name));
        Ok(())
    }

    /// Destroys snapshots; with `defer`, those in use are destroyed when their last user is gone.
    ///
    /// # Errors
    /// Errors of [`DslSyncContext::destroy_snapshots`].
    pub async fn destroy_snapshots(&self, names: Vec<String>, defer: bool) -> Result<(), PoolError> {
        let destroyed = names.clone();
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(syncing.change.destroy_snapshots(&names, defer).await?) })
        })
        .await?;
        destroyed.iter().for_each(|name| self.changed.note(name));
        Ok(())
    }

    /// Destroys a file system or volume that has neither snapshots nor children.
    ///
    /// # Errors
    /// Errors of [`DslSyncContext::destroy`]; busy while clients use it.
    pub async fn destroy_dataset(&self, name: String) -> Result<(), PoolError> {
        let closing = self.closing(&name).await?;
        let destroyed = name.clone();
        let done = self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                syncing.change.check_destroy(&name).await?;
                let dataset = close(syncing, &name).await?;
                let is_clone = syncing.change.is_clone(dataset.dir).await?;
                syncing.change.destroy(&name).await?;
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
    /// Errors of [`DslSyncContext::rollback`]; busy while clients use it.
    pub async fn rollback(&self, name: String, to: Option<String>) -> Result<(), PoolError> {
        let closing = self.closing(&name).await?;
        let rolled_back = name.clone();
        let done = self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                syncing.change.check_rollback(&name, to.as_deref()).await?;
                let id = close(syncing, &name).await?.id;
                syncing.change.rollback(&name, to.as_deref()).await?;
                clear_log(syncing, id, &name).await
            })
        });
        closing.end(done.await)?;
        self.changed.note(&rolled_back);
        self.renew_settings(&Request::internal("rollback"), Scope::Path(&rolled_back)).await
    }

    /// Promotes a clone, so that its origin depends on it.
    ///
    /// # Errors
    /// Errors of [`DslSyncContext::promote`].
    pub async fn promote(&self, name: String) -> Result<(), PoolError> {
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                syncing.change.promote(&name).await?;
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
    /// Errors of [`DslSyncContext::rename`].
    pub async fn rename(&self, from: String, to: String) -> Result<(), PoolError> {
        let before = from.clone();
        let renamed = to.clone();
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(syncing.change.rename(&from, &to).await?) })
        })
        .await?;
        self.changed.note(&before);
        self.changed.note(&renamed);
        // The dataset and its descendants inherit from new ancestors now.
        self.renew_settings(&Request::internal("rename"), Scope::Subtree(&renamed)).await
    }

    /// Renames snapshots atomically: pairs of a snapshot and its new name after the `@`.
    ///
    /// # Errors
    /// Errors of [`DslSyncContext::rename_snapshots`].
    pub async fn rename_snapshots(&self, names: Pairs) -> Result<(), PoolError> {
        let renamed: Vec<String> = names.iter().map(|(snapshot, _)| snapshot.clone()).collect();
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(syncing.change.rename_snapshots(&names).await?) })
        })
        .await?;
        renamed.iter().for_each(|name| self.changed.note(name));
        Ok(())
    }

    /// Holds snapshots: pairs of snapshot and tag.
    ///
    /// # Errors
    /// Errors of [`DslSyncContext::hold`].
    pub async fn hold(&self, holds: Pairs) -> Result<(), PoolError> {
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(syncing.change.hold(&holds, false).await?) })
        })
        .await
    }

    /// Releases snapshots: pairs of snapshot and tag.
    ///
    /// # Errors
    /// Errors of [`DslSyncContext::release`].
    pub async fn release(&self, holds: Pairs) -> Result<(), PoolError> {
        let released: Vec<String> = holds.iter().map(|(snapshot, _)| snapshot.clone()).collect();
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(syncing.change.release(&holds).await?) })
        })
        .await?;
        // The release may have destroyed the snapshot (`zfs destroy -d`).
        released.iter().for_each(|name| self.changed.note(name));
        Ok(())
    }

    /// Creates bookmarks: pairs of a bookmark and its source snapshot or bookmark.
    ///
    /// # Errors
    /// Errors of [`DslSyncContext::bookmark`].
    pub async fn bookmark(&self, bookmarks: Pairs) -> Result<(), PoolError> {
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(syncing.change.bookmark(&bookmarks).await?) })
        })
        .await
    }

    /// Destroys bookmarks.
    ///
    /// # Errors
    /// Errors of [`DslSyncContext::destroy_bookmarks`].
    pub async fn destroy_bookmarks(&self, names: Vec<String>) -> Result<(), PoolError> {
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(syncing.change.destroy_bookmarks(&names).await?) })
        })
        .await
    }

    /// Sets or inherits properties atomically, and applies them to open datasets.
    ///
    /// # Errors
    /// Errors of [`DslSyncContext::set_properties`].
    pub async fn set_properties(&self, name: String, settings: Vec<(String, Setting)>) -> Result<(), PoolError> {
        let top = name.clone();
        let is_of_front_ends = settings
            .iter()
            .any(|(property, _)| property.starts_with("weir:") || FRONT_END_PROPERTIES.contains(&property.as_str()));
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(syncing.change.set_properties(&name, &settings).await?) })
        })
        .await?;
        if is_of_front_ends {
            self.changed.note(&top);
        }
        self.renew_settings(&Request::internal("set"), Scope::Subtree(&top)).await
    }

    /// Sets the quota of a user, group or project in a file system, in bytes or objects; 0 removes it.
    ///
    /// Without an id, sets the default for principals that have no quota of their own.
    ///
    /// # Errors
    /// [`PoolError::File`] if the file system is read-only; errors of opening it.
    pub async fn set_quota(
        &self,
        name: String,
        who: QuotaPrincipal,
        what: QuotaKind,
        id: Option<u64>,
        limit: u64,
    ) -> Result<(), PoolError> {
        let rq = &Request::internal("set");
        let files = self.file_system(rq, &name).await?;
        let failed = |source| PoolError::File { name: name.clone(), source: Box::new(source) };
        files.quotas().set(rq, who, what, id, limit).await.map_err(failed)?;
        self.sync().await
    }

    /// Resizes a volume to `size_bytes`.
    ///
    /// # Errors
    /// Errors of opening the volume; [`DslError`] if the size is invalid.
    pub async fn set_volume_size(&self, name: String, size_bytes: u64) -> Result<(), PoolError> {
        let rq = &Request::internal("set");
        let volume = self.volume(rq, &name).await?;
        let spec = VolumeSpec { size_bytes, block_bytes: volume.block_bytes() };
        spec.check(&name).map_err(PoolError::from)?;
        let failed = |source| PoolError::Volume { name: name.clone(), source: Box::new(source) };
        volume.resize(rq, size_bytes).await.map_err(failed)?;
        self.sync().await
    }

    /// Appends an administrator's command to the pool's history.
    ///
    /// # Errors
    /// Errors of writing the history; [`PoolError::Suspended`].
    pub async fn log_command(&self, line: String, uid: u32) -> Result<(), PoolError> {
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(syncing.change.log_command(&line, uid).await?) })
        })
        .await
    }
}

/// Drops keys of encryption roots that the task moved or destroyed.
async fn drop_orphaned_keys(syncing: &TxgSync<'_>) -> Result<(), PoolError> {
    let engine = syncing.engine;
    if engine.keys.is_empty() {
        return Ok(());
    }
    engine.keys.drop_orphaned_roots(syncing.change.rq, &*engine.live_dsl(syncing.change.rq, Scope::All).await?).await
}

//! Administrative operations on datasets. Each is one sync task: checked and executed in one txg, and stable on return.
//!
//! A dataset that clients use (they have its files open or are attached to the volume) is busy and cannot be destroyed or
//! rolled back. An open dataset without clients is closed first: it admits no further transactions and its intent log
//! writes no further blocks. The task then removes it from the open sets, so that no later txg writes to a destroyed
//! dataset. If the task fails, the dataset opens again.

use super::Engine;
use super::datasets::policy_for;
use super::keys::{self, Encryption};
use super::open_datasets::OpenSet;
use super::syncing::TxgSync;
use std::sync::Arc;
use weir_blocks::ReadOptions;
use weir_dmu::live::{Policy, TxAdmission};
use weir_dmu::{ObjectSet, Opening};
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::{DslError, DslSyncContext, Kind, NewDataset, Setting, VolumeSpec};
use weir_dsl::{QuotaKind, QuotaPrincipal};
use weir_format::zil::ZilHeader;
use weir_format::{ObjectId, ObjsetId};
use weir_machine::Request;
use weir_pool::error::PoolError;
use weir_zil as zil;

/// Pairs of a dataset or snapshot and a tag or name.
pub type Pairs = Vec<(String, String)>;
/// Properties with their stored values.
pub type Values = Vec<(String, Value)>;

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
        self.renew_settings(&Request::internal("create")).await
    }

    /// Creates a clone of a snapshot.
    ///
    /// # Errors
    /// Errors of [`DslSyncContext::clone_snapshot`].
    pub async fn clone_snapshot(&self, origin: String, name: String, properties: Values) -> Result<(), PoolError> {
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                let created = syncing.change.clone_snapshot(&origin, &name, &properties).await?;
                clear_log(syncing, created.dataset).await
            })
        })
        .await?;
        self.renew_settings(&Request::internal("clone")).await
    }

    /// Creates snapshots atomically, all of the same txg.
    ///
    /// # Errors
    /// Errors of [`DslSyncContext::snapshot`].
    pub async fn snapshot(&self, names: Vec<String>, properties: Values) -> Result<(), PoolError> {
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(syncing.change.snapshot(&names, &properties).await.map(drop)?) })
        })
        .await
    }

    /// Destroys snapshots; with `defer`, those in use are destroyed when their last user is gone.
    ///
    /// # Errors
    /// Errors of [`DslSyncContext::destroy_snapshots`].
    pub async fn destroy_snapshots(&self, names: Vec<String>, defer: bool) -> Result<(), PoolError> {
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(syncing.change.destroy_snapshots(&names, defer).await?) })
        })
        .await
    }

    /// Destroys a file system or volume that has neither snapshots nor children.
    ///
    /// # Errors
    /// Errors of [`DslSyncContext::destroy`]; busy while clients use it.
    pub async fn destroy_dataset(&self, name: String) -> Result<(), PoolError> {
        let closing = self.closing(&name).await?;
        let done = self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                syncing.change.check_destroy(&name).await?;
                let id = close(syncing, &name).await?;
                let done = syncing.change.destroy(&name).await;
                tracing::debug!("object set {id} destroyed");
                done?;
                drop_orphaned_keys(syncing).await
            })
        });
        closing.end(done.await)
    }

    /// Rolls a dataset back to its last snapshot, which must be `to` if that is given.
    ///
    /// # Errors
    /// Errors of [`DslSyncContext::rollback`]; busy while clients use it.
    pub async fn rollback(&self, name: String, to: Option<String>) -> Result<(), PoolError> {
        let closing = self.closing(&name).await?;
        let done = self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                syncing.change.check_rollback(&name, to.as_deref()).await?;
                let id = close(syncing, &name).await?;
                syncing.change.rollback(&name, to.as_deref()).await?;
                clear_log(syncing, id).await
            })
        });
        closing.end(done.await)?;
        self.renew_settings(&Request::internal("rollback")).await
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
        .await
    }

    /// Renames a file system or volume.
    ///
    /// # Errors
    /// Errors of [`DslSyncContext::rename`].
    pub async fn rename(&self, from: String, to: String) -> Result<(), PoolError> {
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(syncing.change.rename(&from, &to).await?) })
        })
        .await?;
        // The dataset inherits from its new ancestors now.
        self.renew_settings(&Request::internal("rename")).await
    }

    /// Renames snapshots atomically: pairs of a snapshot and its new name after the `@`.
    ///
    /// # Errors
    /// Errors of [`DslSyncContext::rename_snapshots`].
    pub async fn rename_snapshots(&self, names: Pairs) -> Result<(), PoolError> {
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(syncing.change.rename_snapshots(&names).await?) })
        })
        .await
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
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(syncing.change.release(&holds).await?) })
        })
        .await
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
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(syncing.change.set_properties(&name, &settings).await?) })
        })
        .await?;
        self.renew_settings(&Request::internal("set")).await
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
        files.set_quota(rq, who, what, id, limit).await.map_err(failed)?;
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
    engine.keys.drop_orphaned_roots(syncing.change.rq, &*engine.dsl_now(syncing.change.rq).await?).await
}

/// A dataset that is being closed; it opens again on drop unless [`Closing::end`] succeeds.
pub(crate) struct Closing(Option<OpenSet>);

impl Drop for Closing {
    fn drop(&mut self) {
        if let Some(open) = self.0.take() {
            open.set.close(false);
            open.zil.iter().for_each(|zil| zil.reopen());
        }
    }
}

impl Closing {
    /// Ends the close with the result of its task; a failed task opens the dataset again.
    pub(crate) fn end<T>(mut self, done: Result<T, PoolError>) -> Result<T, PoolError> {
        if done.is_ok() {
            self.0 = None;
        }
        done
    }
}

impl Engine {
    /// Whether clients use a dataset: they have its files open or are attached to the volume.
    ///
    /// # Errors
    /// Errors of finding the dataset.
    pub async fn is_used(&self, rq: &Request, name: &str) -> Result<bool, PoolError> {
        let id = self.dsl(rq).await?.find(rq, name).await?.objset();
        Ok(self.sets.get(id).and_then(|open| open.door).is_some_and(|door| door.is_used()))
    }

    /// Closes a dataset; its transactions that have begun belong to the open txg or an earlier one.
    pub(crate) async fn closing(&self, name: &str) -> Result<Closing, PoolError> {
        let busy = || Err(DslError::Busy { name: name.to_owned(), why: "clients use it" }.into());
        // The lock prevents opening the dataset in the meantime.
        let _one_at_a_time = self.opening.lock().await;
        let id = {
            let rq = Request::internal("close");
            let found = self.dsl(&rq).await?.find(&rq, name).await;
            // The sync task reports a missing dataset.
            let Ok(dataset) = found else { return Ok(Closing(None)) };
            dataset.objset()
        };
        let Some(open) = self.sets.get(id) else { return Ok(Closing(None)) };
        open.set.close(true);
        let closing = Closing(Some(open.clone()));
        if open.door.is_some_and(|door| door.is_used()) {
            return busy();
        }
        if let Some(zil) = &open.zil {
            zil.shut().await;
        }
        Ok(closing)
    }
}

/// Removes a closed or unopened dataset from the open sets and frees its intent log; returns its object number.
///
/// The caller is in syncing context.
pub(crate) async fn close(syncing: &mut TxgSync<'_>, name: &str) -> Result<ObjectId, PoolError> {
    let rq = syncing.change.rq;
    let dsl = syncing.engine.dsl_now(rq).await?;
    let dataset = dsl.find(rq, name).await?;
    if syncing.engine.sets.get(dataset.objset()).is_some_and(|open| !open.set.is_closed()) {
        return Err(DslError::Busy { name: name.to_owned(), why: "clients have just opened it" }.into());
    }
    // The intent log is freed with the dataset: no commit runs any more, so the header leads to all its blocks.
    let engine = syncing.engine;
    let opening = Opening { id: dataset.objset(), ..Opening::default() };
    let pointer = syncing.change.dataset(dataset.id).await?.pointer;
    let set = ObjectSet::open(rq, engine.cache.clone(), pointer, opening).await?;
    let options = ReadOptions { raw: true, ..set.options().clone() };
    let header = set.root().header.zil.clone();
    let (blocks, ended_by) = zil::claim::blocks(rq, engine.cache.blocks(), &options, &header).await;
    if let Some(error) = ended_by {
        tracing::warn!(name, %error, "blocks of a destroyed intent log stay allocated");
    }
    blocks.into_iter().for_each(|block| syncing.change.free_log_block(block));
    engine.sets.remove(dataset.objset());
    Ok(dataset.id)
}

/// Clears the intent log header of an object set that was copied from a snapshot, because the log is the origin's.
pub(crate) async fn clear_log(syncing: &mut TxgSync<'_>, dataset: ObjectId) -> Result<(), PoolError> {
    let engine = syncing.engine;
    let phys = syncing.change.dataset(dataset).await?;
    let pointer = phys.pointer;
    let key = match engine.keys.is_empty() {
        true => None,
        false => engine.keys.of(engine.dsl_now(syncing.change.rq).await?.dir(phys.dir)),
    };
    let opening = Opening { id: ObjsetId(dataset.0), key, ..Opening::default() };
    let gate: Arc<dyn TxAdmission> = engine.gate.clone();
    let rq = syncing.change.rq;
    let set = ObjectSet::open_live(rq, engine.cache.clone(), pointer, opening, gate, Policy::default()).await?;
    set.set_policy(policy_for(set.kind(), Policy::default()));
    set.set_zil_header(ZilHeader::default());
    syncing.add_set(set);
    Ok(())
}

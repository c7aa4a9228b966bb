//! What administrators do to data sets, each as one sync task: checked and done in one group, and stable on return.
//!
//! A data set that clients use (they have files of it open, or are attached to the volume) is not destroyed or rolled back:
//! it is busy. One that is merely open is closed first: no change of it begins any more, its intent log writes no block
//! any more; the task then takes it out of the sets, so that no group writes to what is gone. If the task finds that it
//! cannot be done, the data set opens again.

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

/// Pairs of a data set or snapshot and a tag or name.
pub type Pairs = Vec<(String, String)>;
/// Properties with their values as they are stored.
pub type Values = Vec<(String, Value)>;

impl Engine {
    /// Makes a file system or volume.
    ///
    /// # Errors
    /// Those of [`DslSyncContext::create`].
    pub async fn create_dataset(&self, new: NewDataset) -> Result<(), PoolError> {
        self.create_encrypted(new, Encryption::default()).await
    }

    /// Makes a file system or volume, encrypted as asked.
    ///
    /// # Errors
    /// Those of [`DslSyncContext::create`], and each [`super::KeyError`] that says why not.
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
                let policy = policy_for(new.kind.objset(), Policy::usual());
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

    /// Makes a clone of a snapshot.
    ///
    /// # Errors
    /// Those of [`DslSyncContext::clone_snapshot`].
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

    /// Makes snapshots, all of one moment.
    ///
    /// # Errors
    /// Those of [`DslSyncContext::snapshot`].
    pub async fn snapshot(&self, names: Vec<String>, properties: Values) -> Result<(), PoolError> {
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(syncing.change.snapshot(&names, &properties).await.map(drop)?) })
        })
        .await
    }

    /// Destroys snapshots; with `defer`, those in use later.
    ///
    /// # Errors
    /// Those of [`DslSyncContext::destroy_snapshots`].
    pub async fn destroy_snapshots(&self, names: Vec<String>, defer: bool) -> Result<(), PoolError> {
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(syncing.change.destroy_snapshots(&names, defer).await?) })
        })
        .await
    }

    /// Destroys a file system or volume that has neither snapshots nor children.
    ///
    /// # Errors
    /// Those of [`DslSyncContext::destroy`]; busy while clients use it.
    pub async fn destroy_dataset(&self, name: String) -> Result<(), PoolError> {
        let closing = self.closing(&name).await?;
        let done = self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                syncing.change.check_destroy(&name).await?;
                let id = close(syncing, &name).await?;
                let done = syncing.change.destroy(&name).await;
                tracing::debug!("object set {id} destroyed");
                done?;
                settle_keys(syncing).await
            })
        });
        closing.end(done.await)
    }

    /// Takes a data set back to its last snapshot, which is `to` if that is named.
    ///
    /// # Errors
    /// Those of [`DslSyncContext::rollback`]; busy while clients use it.
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

    /// Makes a clone independent of its origin.
    ///
    /// # Errors
    /// Those of [`DslSyncContext::promote`].
    pub async fn promote(&self, name: String) -> Result<(), PoolError> {
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                syncing.change.promote(&name).await?;
                settle_keys(syncing).await
            })
        })
        .await
    }

    /// Gives a file system or volume another name.
    ///
    /// # Errors
    /// Those of [`DslSyncContext::rename`].
    pub async fn rename(&self, from: String, to: String) -> Result<(), PoolError> {
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(syncing.change.rename(&from, &to).await?) })
        })
        .await?;
        // It inherits from others now.
        self.renew_settings(&Request::internal("rename")).await
    }

    /// Gives snapshots other names, all or none: pairs of a snapshot and what is to stand after its `@`.
    ///
    /// # Errors
    /// Those of [`DslSyncContext::rename_snapshots`].
    pub async fn rename_snapshots(&self, names: Pairs) -> Result<(), PoolError> {
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(syncing.change.rename_snapshots(&names).await?) })
        })
        .await
    }

    /// Holds snapshots: pairs of snapshot and tag.
    ///
    /// # Errors
    /// Those of [`DslSyncContext::hold`].
    pub async fn hold(&self, holds: Pairs) -> Result<(), PoolError> {
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(syncing.change.hold(&holds, false).await?) })
        })
        .await
    }

    /// Releases snapshots: pairs of snapshot and tag.
    ///
    /// # Errors
    /// Those of [`DslSyncContext::release`].
    pub async fn release(&self, holds: Pairs) -> Result<(), PoolError> {
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(syncing.change.release(&holds).await?) })
        })
        .await
    }

    /// Makes bookmarks: pairs of bookmark and what it remembers.
    ///
    /// # Errors
    /// Those of [`DslSyncContext::bookmark`].
    pub async fn bookmark(&self, bookmarks: Pairs) -> Result<(), PoolError> {
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(syncing.change.bookmark(&bookmarks).await?) })
        })
        .await
    }

    /// Destroys bookmarks.
    ///
    /// # Errors
    /// Those of [`DslSyncContext::destroy_bookmarks`].
    pub async fn destroy_bookmarks(&self, names: Vec<String>) -> Result<(), PoolError> {
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(syncing.change.destroy_bookmarks(&names).await?) })
        })
        .await
    }

    /// Sets or inherits properties, all or none of them. They count at once in what is open.
    ///
    /// # Errors
    /// Those of [`DslSyncContext::set_properties`].
    pub async fn set_properties(&self, name: String, settings: Vec<(String, Setting)>) -> Result<(), PoolError> {
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(syncing.change.set_properties(&name, &settings).await?) })
        })
        .await?;
        self.renew_settings(&Request::internal("set")).await
    }

    /// Sets how many bytes or objects a user, group or project may use in a file system (without an id: each that has no
    /// limit of its own); 0: as many as it likes.
    ///
    /// # Errors
    /// If there is no such file system, or it is read-only.
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

    /// Gives a volume another size, in bytes.
    ///
    /// # Errors
    /// If it is no volume, or the size is none.
    pub async fn set_volume_size(&self, name: String, size_bytes: u64) -> Result<(), PoolError> {
        let rq = &Request::internal("set");
        let volume = self.volume(rq, &name).await?;
        let spec = VolumeSpec { size_bytes, block_bytes: volume.block_bytes() };
        spec.check(&name).map_err(PoolError::from)?;
        let failed = |source| PoolError::Volume { name: name.clone(), source: Box::new(source) };
        volume.resize(rq, size_bytes).await.map_err(failed)?;
        self.sync().await
    }

    /// Writes an administrator's command into the pool's history.
    ///
    /// # Errors
    /// If it cannot be written.
    pub async fn log_command(&self, line: String, uid: u32) -> Result<(), PoolError> {
        self.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(syncing.change.log_command(&line, uid).await?) })
        })
        .await
    }
}

/// Roots of keys may have moved, or gone.
async fn settle_keys(syncing: &TxgSync<'_>) -> Result<(), PoolError> {
    let engine = syncing.engine;
    if engine.keys.is_empty() {
        return Ok(());
    }
    engine.keys.settle(syncing.change.rq, &*engine.dsl_now(syncing.change.rq).await?).await
}

/// A data set that is being closed; it opens again unless that is brought to an end.
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
    /// What became of it.
    pub(crate) fn end<T>(mut self, done: Result<T, PoolError>) -> Result<T, PoolError> {
        if done.is_ok() {
            self.0 = None;
        }
        done
    }
}

impl Engine {
    /// Whether clients use a data set: they have files of it open, or are attached to the volume.
    ///
    /// # Errors
    /// If there is none of that name.
    pub async fn is_used(&self, rq: &Request, name: &str) -> Result<bool, PoolError> {
        let id = self.dsl(rq).await?.find(rq, name).await?.objset();
        Ok(self.sets.get(id).and_then(|open| open.door).is_some_and(|door| door.is_used()))
    }

    /// Closes a data set: changes of it that have begun are in the group that is open now.
    pub(crate) async fn closing(&self, name: &str) -> Result<Closing, PoolError> {
        let busy = || Err(DslError::Busy { name: name.to_owned(), why: "clients use it" }.into());
        // Nobody opens it meanwhile.
        let _one_at_a_time = self.opening.lock().await;
        let id = {
            let rq = Request::internal("close");
            let found = self.dsl(&rq).await?.find(&rq, name).await;
            // That it is not there is the task's to say.
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

/// Takes a data set that is closed, or was never open, out of the sets, in syncing context. Gives its number.
pub(crate) async fn close(syncing: &mut TxgSync<'_>, name: &str) -> Result<ObjectId, PoolError> {
    let rq = syncing.change.rq;
    let dsl = syncing.engine.dsl_now(rq).await?;
    let dataset = dsl.find(rq, name).await?;
    if syncing.engine.sets.get(dataset.objset()).is_some_and(|open| !open.set.is_closed()) {
        return Err(DslError::Busy { name: name.to_owned(), why: "clients have just opened it" }.into());
    }
    // Its intent log goes with it: nobody commits any more, so that its header leads to all of it.
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

/// Takes the intent log out of the header of a set that begins with a snapshot's contents: the log was its origin's.
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
    let set = ObjectSet::open_live(rq, engine.cache.clone(), pointer, opening, gate, Policy::usual()).await?;
    set.set_policy(policy_for(set.kind(), Policy::usual()));
    set.set_zil_header(ZilHeader::default());
    syncing.add_set(set);
    Ok(())
}

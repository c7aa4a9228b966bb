//! Closing of open datasets before a sync task destroys them, rolls them back or unloads their keys.
//!
//! A closed dataset admits no further transactions, and its intent log writes no further blocks. The task then removes it
//! from the open sets, so that no later txg writes to a destroyed dataset. If the task fails, the dataset opens again.

use super::Engine;
use super::datasets::policy_for;
use super::open_datasets::OpenSet;
use super::syncing::TxgSync;
use std::sync::Arc;
use weir_blocks::ReadOptions;
use weir_dmu::live::{Policy, TxAdmission};
use weir_dmu::{ObjectSet, Opening};
use weir_dsl::sync_tasks::DslError;
use weir_dsl::{Dataset, Scope};
use weir_format::zil::ZilHeader;
use weir_format::{ObjectId, ObjsetId};
use weir_machine::{Request, invariant};
use weir_pool::error::PoolError;
use weir_zil as zil;

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
    /// The close of a dataset that is not open.
    pub(crate) fn none() -> Self {
        Closing(None)
    }

    /// The close of an open dataset, of which the caller has closed the object set.
    pub(crate) fn of(open: OpenSet) -> Self {
        invariant!(open.set.is_closed(), "the object set of a dataset that is being closed is open");
        Closing(Some(open))
    }

    /// Ends the close with the result of its task; a failed task opens the dataset again.
    pub(crate) fn end<T>(mut self, done: Result<T, PoolError>) -> Result<T, PoolError> {
        if done.is_ok() {
            self.0 = None;
        }
        done
    }
}

/// Closes a dataset; its transactions that have begun belong to the open txg or an earlier one.
pub(crate) async fn begin(engine: &Engine, name: &str) -> Result<Closing, PoolError> {
    let busy = || Err(DslError::Busy { name: name.to_owned(), why: "clients use it" }.into());
    // The lock prevents opening the dataset in the meantime.
    let _one_at_a_time = engine.opening.lock().await;
    let id = {
        let rq = Request::internal("close");
        let found = engine.synced().dsl_of(&rq, name).await?.find(&rq, name).await;
        // The sync task reports a missing dataset.
        let Ok(dataset) = found else { return Ok(Closing::none()) };
        dataset.objset()
    };
    let Some(open) = engine.sets.get(id) else { return Ok(Closing::none()) };
    open.set.close(true);
    let closing = Closing::of(open.clone());
    if open.contents.is_some_and(|contents| contents.is_used()) {
        return busy();
    }
    if let Some(zil) = &open.zil {
        zil.shut().await;
    }
    Ok(closing)
}

/// Removes a closed or unopened dataset from the open sets and frees its intent log; returns the dataset.
///
/// The caller is in syncing context.
pub(crate) async fn close(syncing: &mut TxgSync<'_>, name: &str) -> Result<Dataset, PoolError> {
    let rq = syncing.change.rq;
    let dsl = syncing.engine.live_dsl(rq, Scope::Path(name)).await?;
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
    Ok(dataset)
}

/// Clears the intent log header of an object set that was copied from a snapshot, because the log is the origin's.
///
/// `name` is the dataset's name.
pub(crate) async fn clear_log(syncing: &mut TxgSync<'_>, dataset: ObjectId, name: &str) -> Result<(), PoolError> {
    let engine = syncing.engine;
    let phys = syncing.change.dataset(dataset).await?;
    let pointer = phys.pointer;
    let key = match engine.keys.is_empty() {
        true => None,
        false => engine.keys.of(engine.live_dsl(syncing.change.rq, Scope::Path(name)).await?.dir(phys.dir)),
    };
    let opening = Opening { id: ObjsetId(dataset.0), key, ..Opening::default() };
    let gate: Arc<dyn TxAdmission> = engine.gate.clone();
    let rq = syncing.change.rq;
    let set = ObjectSet::open_live(rq, engine.cache.clone(), pointer, opening, gate, Policy::default()).await?;
    set.set_policy(policy_for(set.kind(), Policy::default()));
    set.syncing().set_zil_header(ZilHeader::default());
    syncing.add_set(set);
    Ok(())
}

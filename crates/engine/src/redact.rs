//! Redaction bookmarks (OpenZFS `dmu_redact_snap`).
//!
//! ```text
//!   check names, hold the snapshots ─► sync task: the bookmark with an empty list
//!   walk the redaction snapshots ─► runs of blocks ─► sync tasks: the list grows ─► sync task: the list is complete
//! ```
//!
//! An error in between leaves the bookmark with a list that no stream uses. The same command makes the list anew.

use super::Sends;
use super::long_holds::Reader;
use super::syncing::TxgSync;
use futures_channel::mpsc;
use futures_util::StreamExt;
use futures_util::future::try_join;
use std::sync::Arc;
use weir_dmu::{ObjectError, ObjectSet};
use weir_dsl::redaction::redaction_of;
use weir_dsl::sync_tasks::redact::{self, NewRedaction, RedactionTask};
use weir_dsl::sync_tasks::{DslError, split_name};
use weir_dsl::{Dataset, Dsl};
use weir_format::dsl::RedactionBlock;
use weir_format::{ObjsetId, Txg};
use weir_machine::{Request, invariant};
use weir_pool::error::PoolError;
use weir_send::SendError;

/// Runs of blocks that one sync task writes.
const RUNS_OF_TASK: usize = 1 << 14;
/// Messages of OpenZFS.
const NOT_A_DESCENDANT: &str = "redaction snapshot must be descendent of snapshot being redacted";
const IS_REDACTED: &str = "attempted to redact redacted dataset or with respect to redacted dataset";

/// The snapshots of a redaction. They cannot be destroyed while this exists.
struct RedactionSession {
    set: Arc<ObjectSet>,
    txg: Txg,
    by: Vec<Arc<ObjectSet>>,
    new: NewRedaction,
    _holds: Vec<Reader>,
}

fn kind(name: &str, why: &'static str) -> DslError {
    DslError::Kind { name: name.to_owned(), why }
}

fn failed(error: SendError) -> PoolError {
    match error {
        SendError::Object(error) => PoolError::Object(error),
        other => PoolError::Refused { what: other.to_string() },
    }
}

impl Sends<'_> {
    /// Makes a redaction bookmark of `snapshot` in its dataset: the list of the blocks that all of the snapshots `by` changed,
    /// which are later than `snapshot`.
    ///
    /// # Errors
    /// [`DslError::Missing`], [`DslError::Kind`] with OpenZFS's message, and those of [`redact::check_begin`]; errors of
    /// reading the snapshots.
    pub async fn redact(&self, rq: &Request, snapshot: &str, bookmark: &str, by: &[String]) -> Result<(), PoolError> {
        let held = self.hold_for_redaction(rq, snapshot, bookmark, by).await?;
        let new = held.new.clone();
        let task = self.engine.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(redact::begin(&mut syncing.change, &new).await?) })
        });
        let task = task.await?;
        let _list = self.engine.reading.begin(ObjsetId(task.list.0));
        let (to, runs) = mpsc::channel(RUNS_OF_TASK);
        let walk = async { weir_send::redact::redact(rq, &held.set, held.txg, &held.by, to).await.map_err(failed) };
        // The writer first: the walk fails for want of a reader if it fails.
        try_join(self.write_runs(&task, runs), walk).await?;
        let done = task.clone();
        let completed = self.engine.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(redact::complete(&mut syncing.change, &done).await?) })
        });
        completed.await?;
        self.engine.changed.note(&task.name);
        Ok(())
    }

    /// Writes the runs as they come.
    async fn write_runs(&self, task: &RedactionTask, runs: mpsc::Receiver<RedactionBlock>) -> Result<(), PoolError> {
        let mut batches = runs.ready_chunks(RUNS_OF_TASK);
        while let Some(batch) = batches.next().await {
            invariant!(!batch.is_empty() && batch.len() <= RUNS_OF_TASK, "a batch of {} runs", batch.len());
            let task = task.clone();
            let written = self.engine.sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move { Ok(redact::append(&mut syncing.change, &task, &batch).await?) })
            });
            written.await?;
        }
        Ok(())
    }

    /// Checks the names, and holds the snapshots.
    async fn hold_for_redaction(
        &self,
        rq: &Request,
        snapshot: &str,
        bookmark: &str,
        by: &[String],
    ) -> Result<RedactionSession, PoolError> {
        let dsl = self.engine.synced().dsl(rq).await?;
        let of = snapshot_of(rq, &dsl, snapshot).await?;
        // `dsl` prevents all destroys until the holds prevent those of these.
        let mut holds = vec![self.engine.reading.begin(of.objset())];
        let set = dsl.open_set(rq, &of, self.engine.keys.of(dsl.dir(of.dir))).await?;
        let mut guids = Vec::new();
        let mut sets = Vec::new();
        for name in by {
            let later = snapshot_of(rq, &dsl, name).await?;
            if later.id == of.id || !dsl.is_before(rq, &later, &of).await? {
                return Err(kind(name, NOT_A_DESCENDANT).into());
            }
            if guids.contains(&later.phys.guid) {
                continue;
            }
            holds.push(self.engine.reading.begin(later.objset()));
            guids.push(later.phys.guid);
            sets.push(dsl.open_set(rq, &later, self.engine.keys.of(dsl.dir(later.dir))).await?);
        }
        if let Some(locked) = sets.iter().chain([&set]).find(|set| set.is_locked()) {
            let why = "the keys of encrypted datasets must be loaded";
            let name = format!("{snapshot} ({})", locked.id());
            return Err(DslError::Key { name, why }.into());
        }
        let new = NewRedaction { snapshot: snapshot.to_owned(), bookmark: bookmark.to_owned(), guids };
        Ok(RedactionSession { set, txg: of.phys.creation_txg, by: sets, new, _holds: holds })
    }
}

/// A snapshot by its name; it must have all its blocks.
async fn snapshot_of(rq: &Request, dsl: &Dsl, name: &str) -> Result<Dataset, PoolError> {
    if !matches!(split_name(name), (_, Some(('@', _)))) {
        return Err(kind(name, NOT_A_DESCENDANT).into());
    }
    let found = dsl.find(rq, name).await.map_err(|error| match error {
        ObjectError::NoName { .. } => PoolError::Dsl(DslError::missing(name)),
        other => other.into(),
    })?;
    if redaction_of(dsl, rq, &found).await?.is_some() {
        return Err(kind(name, IS_REDACTED).into());
    }
    Ok(found)
}

//! Programs of many changes in one txg (`zfs program`, OpenZFS `module/zfs/zcp.c`).
//!
//! ```text
//!   open context                                   syncing context of one txg
//!   run_program ─► queue ─► … datasets sync ─► program: look ─► check ─► change ─► look ─► … ─► MOS, uberblock ─► answer
//! ```
//!
//! The program runs as one sync task: no other change of datasets comes between its changes, its reads see the live MOS and
//! so its own changes, and the result is given to the caller when the txg is stable. Each change checks and then changes, as
//! a sync task of its own would; what was changed before a refusal stays. A fault after the first write of a change fails
//! the txg, so none of the program's changes is on stable storage then.
//!
//! The syncer waits for the program, and so do all that wait for the txg: programs must be bounded by their interpreter.
//!
//! A dataset that is destroyed or rolled back is closed within the txg. The sync tasks of single commands close it before
//! their txg ([`super::closing`]), because they know its name then. So a program finds a dataset busy that has changes of a
//! later txg, or whose intent log has blocks to which the synced header does not lead: they would outlive the dataset.
//!
//! Rejected: closing all unused datasets before the txg. Requests of clients to unrelated datasets would fail meanwhile.

use super::OpenSet;
use super::closing::{Closing, clear_log, close};
use super::sync_task_api::drop_orphaned_keys;
use super::syncing::TxgSync;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::{
    DslError, Setting, bookmark, branch, destroy, destroy_head, promote, properties, rename, rollback, snapshot,
};
use weir_dsl::{Dsl, MountedFileSystems, PoolFacts, Scope, SetKey};
use weir_format::ObjsetId;
use weir_machine::{Request, invariant};
use weir_pool::error::PoolError;

/// A change that a program can make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramChange {
    /// Creates a bookmark.
    Bookmark {
        /// Full name of a snapshot or bookmark.
        source: String,
        /// Full name of the new bookmark.
        name: String,
    },
    /// Creates a clone.
    Clone {
        /// Full name of a snapshot.
        origin: String,
        /// Full name of the clone.
        name: String,
    },
    /// Destroys a file system or volume.
    Destroy {
        /// Full name.
        name: String,
    },
    /// Destroys a snapshot.
    DestroySnapshot {
        /// Full name.
        name: String,
        /// Whether one with holds or clones is destroyed when they are gone.
        defer: bool,
    },
    /// Clears a property of a dataset or snapshot.
    Inherit {
        /// Full name.
        name: String,
        /// Property.
        property: String,
    },
    /// Promotes a clone.
    Promote {
        /// Full name.
        name: String,
    },
    /// Renames a snapshot.
    RenameSnapshot {
        /// Full name.
        snapshot: String,
        /// New name after the `@`.
        new_name: String,
    },
    /// Rolls a dataset back to its last snapshot.
    Rollback {
        /// Full name.
        name: String,
    },
    /// Sets a user property.
    SetUser {
        /// Full name of a dataset or snapshot.
        name: String,
        /// Property, which contains a colon.
        property: String,
        /// Value.
        value: String,
    },
    /// Creates a snapshot.
    Snapshot {
        /// Full name.
        name: String,
    },
}

/// The txg of a program, for its reads and changes.
pub struct ProgramTxg<'s, 'b> {
    syncing: &'s mut TxgSync<'b>,
    mounted: MountedFileSystems,
    has_changed: bool,
    snapshots_destroyed: u64,
}

/// The function of a program. It must end by itself in bounded time.
pub trait Program<T>: for<'a, 's, 'b> FnOnce(&'a mut ProgramTxg<'s, 'b>) -> BoxFuture<'a, T> + Send + 'static {}

impl<T, F> Program<T> for F where
    F: for<'a, 's, 'b> FnOnce(&'a mut ProgramTxg<'s, 'b>) -> BoxFuture<'a, T> + Send + 'static
{
}

/// Runs a program in a txg; returns its result, and whether it has changed something.
pub(crate) async fn run<T>(
    syncing: &mut TxgSync<'_>,
    mounted: MountedFileSystems,
    program: impl Program<T>,
) -> (T, bool) {
    let mut txg = ProgramTxg { syncing, mounted, has_changed: false, snapshots_destroyed: 0 };
    let value = program(&mut txg).await;
    let ProgramTxg { has_changed, snapshots_destroyed, .. } = txg;
    invariant!(has_changed || snapshots_destroyed == 0, "a program destroyed snapshots and changed nothing");
    syncing.engine.snapshots_destroyed.fetch_add(snapshots_destroyed, Ordering::Relaxed);
    (value, has_changed)
}

impl ProgramTxg<'_, '_> {
    /// Number of the txg.
    pub fn txg(&self) -> u64 {
        self.syncing.change.txg().0
    }

    /// Name of the pool.
    pub fn pool(&self) -> &str {
        &self.syncing.change.pool.name
    }

    /// The request that the work is attributed to.
    pub fn rq(&self) -> &Request {
        self.syncing.change.rq
    }

    /// The directories in `scope`, with the changes of the program so far.
    ///
    /// # Errors
    /// Errors of reading the root directory.
    pub async fn dsl(&self, scope: Scope<'_>) -> Result<Arc<Dsl>, PoolError> {
        self.syncing.engine.live_dsl(self.rq(), scope).await
    }

    /// Pool facts that dataset properties depend on.
    pub fn facts(&self) -> PoolFacts {
        PoolFacts { mounted: self.mounted.clone(), ..self.syncing.engine.facts() }
    }

    /// The loaded key of a dataset of this directory, if it is encrypted.
    pub fn key(&self, dsl: &Dsl, dir: weir_format::ObjectId) -> Option<SetKey> {
        self.syncing.engine.keys.of(dsl.dir(dir))
    }

    /// Checks whether a change is possible now, and changes nothing.
    ///
    /// # Errors
    /// The refusal.
    pub async fn check(&mut self, change: &ProgramChange) -> Result<(), PoolError> {
        let before = self.syncing.change.marks();
        let checked = self.check_change(change).await;
        invariant!(self.syncing.change.marks() == before, "the check of a program's change has changed the MOS");
        checked
    }

    /// Makes a change: checks it first, and changes nothing if it is refused.
    ///
    /// # Errors
    /// The refusal. After a fault in the middle of the change, the txg fails.
    pub async fn apply(&mut self, change: &ProgramChange) -> Result<(), PoolError> {
        self.check_change(change).await?;
        let before = self.syncing.change.marks();
        let mut done = self.make(change).await;
        if done.is_ok() {
            done = self.syncing.sync_made().await;
            // The next change may concern a set that this one has created.
            let made = std::mem::take(&mut self.syncing.core.opened);
            self.syncing.core.opened = self.syncing.engine.sets.close_unused(made);
        }
        if self.syncing.change.marks() != before {
            self.has_changed = true;
            return self.syncing.fail_txg_on_error(done);
        }
        done
    }

    async fn check_change(&mut self, change: &ProgramChange) -> Result<(), PoolError> {
        let cx = &mut self.syncing.change;
        match change {
            ProgramChange::Bookmark { source, name } => bookmark::check_bookmark(cx, name, source).await?,
            ProgramChange::Clone { origin, name } => branch::check_clone(cx, origin, name).await?,
            ProgramChange::Destroy { name } => {
                destroy_head::check_destroy(cx, name).await?;
                self.check_unused(name).await?;
            }
            ProgramChange::DestroySnapshot { name, defer } => {
                destroy::check_destroy_snapshot(cx, name, *defer).await?;
            }
            ProgramChange::Inherit { name, property } => {
                properties::check_settings(cx, name, &[(property.clone(), Setting::Inherit)]).await?;
            }
            ProgramChange::Promote { name } => promote::check_promote(cx, name).await?,
            ProgramChange::RenameSnapshot { snapshot, new_name } => {
                rename::check_rename_snapshots(cx, &[(snapshot.clone(), new_name.clone())]).await?;
            }
            ProgramChange::Rollback { name } => {
                rollback::check_rollback(cx, name, None).await?;
                self.check_unused(name).await?;
            }
            ProgramChange::SetUser { name, property, value } => {
                properties::check_settings(cx, name, &[user(property, value)]).await?;
            }
            ProgramChange::Snapshot { name } => snapshot::check_snapshots(cx, std::slice::from_ref(name)).await?,
        }
        Ok(())
    }

    /// Makes a change that was checked.
    async fn make(&mut self, change: &ProgramChange) -> Result<(), PoolError> {
        let syncing = &mut *self.syncing;
        let cx = &mut syncing.change;
        match change {
            ProgramChange::Bookmark { source, name } => {
                bookmark::bookmark(cx, &[(name.clone(), source.clone())]).await?;
            }
            ProgramChange::Clone { origin, name } => {
                let created = branch::clone_snapshot(cx, origin, name, &[]).await?;
                clear_log(syncing, created.dataset, name).await?;
            }
            ProgramChange::Destroy { name } => {
                let closing = close_in_txg(syncing, name).await?;
                let dataset = close(syncing, name).await?;
                tracing::debug!("object set {} destroyed by a program", dataset.id);
                closing.end(destroy_head::destroy(&mut syncing.change, name).await.map_err(PoolError::from))?;
                drop_orphaned_keys(syncing).await?;
            }
            ProgramChange::DestroySnapshot { name, defer } => {
                destroy::destroy_snapshots(cx, std::slice::from_ref(name), *defer).await?;
                self.snapshots_destroyed += 1;
            }
            ProgramChange::Inherit { name, property } => {
                properties::set_property(cx, name, property, &Setting::Inherit).await?;
            }
            ProgramChange::Promote { name } => {
                promote::promote(cx, name).await?;
                drop_orphaned_keys(syncing).await?;
            }
            ProgramChange::RenameSnapshot { snapshot, new_name } => {
                rename::rename_snapshots(cx, &[(snapshot.clone(), new_name.clone())]).await?;
            }
            ProgramChange::Rollback { name } => {
                let closing = close_in_txg(syncing, name).await?;
                let id = close(syncing, name).await?.id;
                closing.end(rollback::rollback(&mut syncing.change, name, None).await.map_err(PoolError::from))?;
                clear_log(syncing, id, name).await?;
            }
            ProgramChange::SetUser { name, property, value } => {
                properties::set_properties(cx, name, &[user(property, value)]).await?;
            }
            ProgramChange::Snapshot { name } => {
                snapshot::snapshot(cx, std::slice::from_ref(name), &[]).await?;
            }
        }
        Ok(())
    }

    /// Fails if a dataset is mounted, or clients use it.
    async fn check_unused(&self, name: &str) -> Result<(), PoolError> {
        let rq = self.rq();
        let head = self.dsl(Scope::Path(name)).await?.find(rq, name).await?;
        if self.mounted.has(head.phys.fsid_guid) {
            return Err(DslError::busy(name, "it is mounted").into());
        }
        let contents = self.syncing.engine.sets.get(head.objset()).and_then(|open| open.contents);
        match contents.is_some_and(|contents| contents.is_used()) {
            true => Err(DslError::busy(name, "clients use it").into()),
            false => Ok(()),
        }
    }
}

fn user(property: &str, value: &str) -> (String, Setting) {
    (property.to_owned(), Setting::Set(Value::Text(value.to_owned())))
}

/// Closes a dataset for a change in this txg: see the top of the file.
async fn close_in_txg(syncing: &TxgSync<'_>, name: &str) -> Result<Closing, PoolError> {
    let engine = syncing.engine;
    let busy = |why| Err(DslError::busy(name, why).into());
    // The holder of the lock may wait for this txg, so the syncer does not wait for the lock.
    let Some(_one_at_a_time) = engine.opening.try_lock() else { return busy("a dataset is being opened") };
    let rq = syncing.change.rq;
    let head = engine.live_dsl(rq, Scope::Path(name)).await?.find(rq, name).await?;
    let Some(open) = engine.sets.get(ObjsetId(head.id.0)) else { return Ok(Closing::none()) };
    let OpenSet { set, zil, contents, .. } = &open;
    set.close(true);
    let closing = Closing::of(open.clone());
    let txg = syncing.change.txg();
    if contents.as_ref().is_some_and(|contents| !contents.close_unless_used(txg)) {
        return busy("clients use it");
    }
    if zil.as_ref().is_some_and(|zil| !zil.shut_if_synced(txg)) {
        return busy("its intent log is being written");
    }
    if !set.syncing().is_clean() {
        return busy("it has changes of a later txg");
    }
    invariant!(set.is_closed(), "a dataset that is destroyed or rolled back is open");
    Ok(closing)
}

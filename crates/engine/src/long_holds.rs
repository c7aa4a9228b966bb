//! Long holds: snapshots with readers cannot be destroyed.
//!
//! Readers are clients with open files of a snapshot or attached to a volume's snapshot, and comparisons, which read two
//! snapshots. An open snapshot without readers is closed before it is destroyed. Later client requests then fail as
//! stale, so they never read reused blocks.
//!
//! To compare a head file system, the engine takes a temporary snapshot with a temporary hold and a deferred destroy. If
//! the process ends early, the next import releases the hold and thereby destroys the snapshot.
//!
//! Source: OpenZFS `module/zfs/dsl_dataset.c` (`dsl_dataset_long_hold`), `zfs_ioctl.c` (`zfs_ioc_tmp_snapshot`).

use super::open_datasets::OpenDataset;
use super::{Comparisons, TxgSync};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use weir_dsl::sync_tasks::{DslError, IsHeld, destroy, hold, snapshot};
use weir_files::FileSystem;
use weir_files::diff::Diff;
use weir_format::{ObjectId, ObjsetId, Txg};
use weir_machine::lock::{Mutex, MutexGuard, order};
use weir_machine::{Request, invariant};
use weir_pool::diff::Pair;
use weir_pool::error::PoolError;
use weir_volumes::Volume;

/// The tag of temporary holds.
const TAG: &str = "zfs-diff";
/// Maximum names that are tried for a temporary snapshot.
const MAX_NAMES: u32 = 1000;

/// The pool's long holds on snapshots.
#[derive(Clone, Default)]
pub struct LongHolds(Arc<Mutex<Readers, { order::LONG_HOLDS }>>);

#[derive(Default)]
struct Readers {
    /// Number of comparisons that read a snapshot.
    counts: BTreeMap<ObjsetId, usize>,
    /// Snapshots that are open for clients.
    open: BTreeMap<ObjsetId, Vec<WeakOpenDataset>>,
}

/// A weak reference to an open snapshot, whose clients own it.
enum WeakOpenDataset {
    Files(Weak<FileSystem>),
    Volume(Weak<Volume>),
}

impl WeakOpenDataset {
    fn upgrade(&self) -> Option<OpenDataset> {
        match self {
            WeakOpenDataset::Files(files) => files.upgrade().map(OpenDataset::Files),
            WeakOpenDataset::Volume(volume) => volume.upgrade().map(OpenDataset::Volume),
        }
    }
}

impl LongHolds {
    fn all_of(&self) -> MutexGuard<'_, Readers> {
        self.0.lock()
    }

    /// Whether a snapshot has readers; closes it if not. `syncing` is the syncing txg.
    pub(crate) fn is_read(&self, id: ObjectId, syncing: Txg) -> bool {
        let id = ObjsetId(id.0);
        let mut all = self.all_of();
        let open: Vec<OpenDataset> =
            all.open.get(&id).into_iter().flatten().filter_map(WeakOpenDataset::upgrade).collect();
        let is_read = all.counts.contains_key(&id)
            || open.iter().any(OpenDataset::is_used)
            || !open.iter().all(|dataset| dataset.close_unless_used(syncing));
        if !is_read {
            all.open.remove(&id);
        }
        is_read
    }

    /// Whether clients use any snapshot.
    pub fn is_used(&self) -> bool {
        self.all_of().open.values().flatten().filter_map(WeakOpenDataset::upgrade).any(|dataset| dataset.is_used())
    }

    /// A callback for sync tasks of the txg `syncing` that tells whether a snapshot has readers.
    pub(crate) fn asked(&self, syncing: Txg) -> IsHeld {
        let reading = self.clone();
        Arc::new(move |id| reading.is_read(id, syncing))
    }

    pub(crate) fn begin(&self, id: ObjsetId) -> Reader {
        *self.all_of().counts.entry(id).or_default() += 1;
        Reader { reading: self.clone(), id }
    }

    /// Registers an open snapshot; it has readers while clients use it.
    pub(crate) fn watch(&self, id: ObjsetId, dataset: &OpenDataset) {
        let dataset = match dataset {
            OpenDataset::Files(files) => WeakOpenDataset::Files(Arc::downgrade(files)),
            OpenDataset::Volume(volume) => WeakOpenDataset::Volume(Arc::downgrade(volume)),
        };
        let mut all = self.all_of();
        let open = all.open.entry(id).or_default();
        open.retain(|other| other.upgrade().is_some());
        open.push(dataset);
    }
}

/// A long hold on a snapshot, released on drop.
pub(crate) struct Reader {
    reading: LongHolds,
    id: ObjsetId,
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut all = self.reading.all_of();
        let known = all.counts.get_mut(&self.id);
        invariant!(known.as_ref().is_some_and(|count| **count > 0), "a long hold is released twice");
        if let Some(count) = known {
            *count -= 1;
            if *count == 0 {
                all.counts.remove(&self.id);
            }
        }
    }
}

/// A comparison of two states of a file system of a pool that changes.
pub struct DiffSession {
    /// The comparison.
    pub diff: Diff,
    /// The states.
    pub pair: Pair,
    _readers: [Reader; 2],
    temporary: Option<String>,
}

impl Comparisons<'_> {
    /// Compares a snapshot with a later one or with its file system's present state.
    ///
    /// The caller must end the session with [`Engine::end_comparison`].
    ///
    /// # Errors
    /// Errors of [`Pair::find`], of creating a temporary snapshot, and of opening the file systems.
    pub async fn begin(&self, rq: &Request, older: &str, newer: &str) -> Result<DiffSession, PoolError> {
        // Check the names before creating a temporary snapshot.
        let dsl = self.engine.synced().dsl(rq).await?;
        Pair::find(rq, &dsl, &self.engine.facts(), older, newer).await?;
        drop(dsl);
        let temporary = if newer.contains('@') { None } else { Some(self.temporary_snapshot(newer).await?) };
        let opened = self.open_pair(rq, older, temporary.as_deref().unwrap_or(newer)).await;
        match opened {
            Ok((diff, pair, _readers)) => Ok(DiffSession { diff, pair, _readers, temporary }),
            Err(error) => {
                if let Some(name) = temporary {
                    self.drop_temporary(name).await?;
                }
                Err(error)
            }
        }
    }

    /// Ends a comparison and destroys its temporary snapshot.
    ///
    /// # Errors
    /// Errors of the sync task that releases the temporary snapshot.
    pub async fn end(&self, comparison: DiffSession) -> Result<(), PoolError> {
        let DiffSession { _readers, temporary, diff, .. } = comparison;
        drop((diff, _readers));
        match temporary {
            Some(name) => self.drop_temporary(name).await,
            None => Ok(()),
        }
    }

    async fn open_pair(&self, rq: &Request, older: &str, newer: &str) -> Result<(Diff, Pair, [Reader; 2]), PoolError> {
        let dsl = self.engine.synced().dsl(rq).await?;
        let pair = Pair::find(rq, &dsl, &self.engine.facts(), older, newer).await?;
        // `dsl` prevents all destroys until the long holds prevent those of these two.
        let readers = [pair.older, pair.newer].map(|id| self.engine.reading.begin(id));
        drop(dsl);
        let a = self.engine.file_system(rq, older).await?;
        let b = self.engine.file_system(rq, newer).await?;
        // A rename may have given the names to other snapshots in the meantime.
        if [a.objects().id(), b.objects().id()] != [pair.older, pair.newer] {
            return Err(DslError::Busy { name: newer.to_owned(), why: "its snapshots are being renamed" }.into());
        }
        let failed = |source| PoolError::File { name: older.to_owned(), source: Box::new(source) };
        Ok((Diff::new(rq, a, b, pair.after).await.map_err(failed)?, pair, readers))
    }

    /// Creates a snapshot that is destroyed by the next import at the latest; returns its name.
    async fn temporary_snapshot(&self, of: &str) -> Result<String, PoolError> {
        for number in 0..MAX_NAMES {
            let name = format!("{of}@{TAG}-{number}");
            let made = name.clone();
            let done = self.engine.sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    snapshot::snapshot(&mut syncing.change, std::slice::from_ref(&made), &[]).await?;
                    hold::hold(&mut syncing.change, &[(made.clone(), TAG.to_owned())], true).await?;
                    Ok(destroy::destroy_snapshots(&mut syncing.change, &[made], true).await?)
                })
            });
            match done.await {
                Err(PoolError::Dsl(DslError::Exists { .. })) => {}
                done => return done.map(|()| name),
            }
        }
        let what = format!("'{of}' has too many snapshots of the name {TAG}");
        Err(PoolError::Refused { what })
    }

    async fn drop_temporary(&self, name: String) -> Result<(), PoolError> {
        self.engine.release(vec![(name, TAG.to_owned())]).await
    }
}

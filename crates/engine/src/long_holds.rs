//! Snapshots that somebody reads: they cannot be destroyed meanwhile.
//!
//! Clients have files of a snapshot open, or are attached to one of a volume; comparisons read two. A snapshot that is open
//! here and that nobody uses is closed before it goes: what clients then ask of it is stale, and never what others wrote
//! where its blocks were.
//!
//! What a head file system holds now is read from a snapshot as well, one that nobody asked to keep: it is made with a
//! temporary hold and marked to go with that hold, so that it goes when the pool is opened next, if its reader could not
//! take it away.
//!
//! Source: OpenZFS `module/zfs/dsl_dataset.c` (`dsl_dataset_long_hold`), `zfs_ioctl.c` (`zfs_ioc_tmp_snapshot`).

use super::open_datasets::OpenDataset;
use super::{Engine, TxgSync};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use weir_dsl::sync_tasks::{DslError, IsHeld};
use weir_files::FileSystem;
use weir_files::diff::Diff;
use weir_format::{ObjectId, ObjsetId, Txg};
use weir_machine::Request;
use weir_pool::diff::Pair;
use weir_pool::error::PoolError;
use weir_volumes::Volume;

/// The tag of temporary holds.
const TAG: &str = "zfs-diff";
/// Names that are tried for a temporary snapshot.
const MAX_NAMES: u32 = 1000;

/// The snapshots that are read.
#[derive(Clone, Default)]
pub struct LongHolds(Arc<Mutex<Readers>>);

#[derive(Default)]
struct Readers {
    /// By how many.
    counts: BTreeMap<ObjsetId, usize>,
    /// Those that are open for clients.
    doors: BTreeMap<ObjsetId, Vec<WeakOpenDataset>>,
}

/// A snapshot that is open for as long as somebody has it.
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
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a snapshot is being read, asked in the group that is syncing. If not, it is closed.
    fn is_read(&self, id: ObjectId, syncing: Txg) -> bool {
        let (mut all, id) = (self.all_of(), ObjsetId(id.0));
        let doors: Vec<OpenDataset> =
            all.doors.get(&id).into_iter().flatten().filter_map(WeakOpenDataset::upgrade).collect();
        let is_read = all.counts.contains_key(&id)
            || doors.iter().any(OpenDataset::is_used)
            || !doors.iter().all(|door| door.close_unless_used(syncing));
        if !is_read {
            all.doors.remove(&id);
        }
        is_read
    }

    /// Whether clients use any snapshot.
    pub fn is_used(&self) -> bool {
        self.all_of().doors.values().flatten().filter_map(WeakOpenDataset::upgrade).any(|door| door.is_used())
    }

    /// The same, to be asked by those who destroy in the group that is syncing.
    pub(crate) fn asked(&self, syncing: Txg) -> IsHeld {
        let reading = self.clone();
        Arc::new(move |id| reading.is_read(id, syncing))
    }

    fn begin(&self, id: ObjsetId) -> Reader {
        *self.all_of().counts.entry(id).or_default() += 1;
        Reader { reading: self.clone(), id }
    }

    /// A snapshot was opened: it is read while clients use it.
    pub(crate) fn watch(&self, id: ObjsetId, door: &OpenDataset) {
        let door = match door {
            OpenDataset::Files(files) => WeakOpenDataset::Files(Arc::downgrade(files)),
            OpenDataset::Volume(volume) => WeakOpenDataset::Volume(Arc::downgrade(volume)),
        };
        let mut all = self.all_of();
        let doors = all.doors.entry(id).or_default();
        doors.retain(|other| other.upgrade().is_some());
        doors.push(door);
    }
}

/// Somebody reads a snapshot until this is dropped.
struct Reader {
    reading: LongHolds,
    id: ObjsetId,
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut all = self.reading.all_of();
        if let Some(count) = all.counts.get_mut(&self.id) {
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

impl Engine {
    /// Compares a snapshot with a later one, or with what its file system holds now. Whoever has it ends it with
    /// [`Engine::end_comparison`].
    ///
    /// # Errors
    /// Those of [`Pair::find`]; if no temporary snapshot can be made; what opening them meets.
    pub async fn compare(&self, rq: &Request, older: &str, newer: &str) -> Result<DiffSession, PoolError> {
        // Said before a snapshot is made for nothing.
        let dsl = self.dsl(rq).await?;
        Pair::find(rq, &dsl, &self.facts(), older, newer).await?;
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

    /// Ends a comparison: what was made for it goes.
    ///
    /// # Errors
    /// If the pool cannot be written.
    pub async fn end_comparison(&self, comparison: DiffSession) -> Result<(), PoolError> {
        let DiffSession { _readers, temporary, diff, .. } = comparison;
        drop((diff, _readers));
        match temporary {
            Some(name) => self.drop_temporary(name).await,
            None => Ok(()),
        }
    }

    async fn open_pair(&self, rq: &Request, older: &str, newer: &str) -> Result<(Diff, Pair, [Reader; 2]), PoolError> {
        let dsl = self.dsl(rq).await?;
        let pair = Pair::find(rq, &dsl, &self.facts(), older, newer).await?;
        // While `dsl` is held nobody destroys anything; and then, nobody destroys these.
        let readers = [pair.older, pair.newer].map(|id| self.reading.begin(id));
        drop(dsl);
        let (a, b) = (self.file_system(rq, older).await?, self.file_system(rq, newer).await?);
        // Another may have got the name meanwhile.
        if [a.objects().id(), b.objects().id()] != [pair.older, pair.newer] {
            return Err(DslError::Busy { name: newer.to_owned(), why: "its snapshots are being renamed" }.into());
        }
        let failed = |source| PoolError::File { name: older.to_owned(), source: Box::new(source) };
        Ok((Diff::new(rq, a, b, pair.after).await.map_err(failed)?, pair, readers))
    }

    /// Makes a snapshot that goes with the pool's being closed at the latest; gives its name.
    async fn temporary_snapshot(&self, of: &str) -> Result<String, PoolError> {
        for number in 0..MAX_NAMES {
            let name = format!("{of}@{TAG}-{number}");
            let made = name.clone();
            let done = self.sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    syncing.change.snapshot(std::slice::from_ref(&made), &[]).await?;
                    syncing.change.hold(&[(made.clone(), TAG.to_owned())], true).await?;
                    Ok(syncing.change.destroy_snapshots(&[made], true).await?)
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
        self.release(vec![(name, TAG.to_owned())]).await
    }
}

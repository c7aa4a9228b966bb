//! Snapshots of a dataset: one ZAP has their names, one object per snapshot has the rest. The objects are read once,
//! several concurrently.

use super::{Dataset, Dir, Dsl, MAX_ENTRIES};
use futures_util::stream::{self, StreamExt};
use std::sync::Arc;
use weir_dmu::error::ObjectError;
use weir_dmu::zap::{self, Zap};
use weir_format::ObjectId;
use weir_machine::Request;

/// Maximum number of snapshot objects that are read concurrently.
const MAX_CONCURRENT_READS: usize = 32;

/// All snapshots of a dataset.
#[derive(Clone, Debug, Default)]
pub struct SnapshotList {
    /// From the oldest to the newest.
    pub snapshots: Vec<Dataset>,
    /// Names whose object could not be read.
    pub damaged: Vec<(String, ObjectError)>,
}

impl Dsl {
    /// The snapshots of a directory's dataset, read at the first call. Time is linear in their number.
    pub async fn snapshots(&self, rq: &Request, dir: &Dir) -> Result<Arc<SnapshotList>, ObjectError> {
        if let Some(list) = self.remembered().snapshots.get(&dir.id) {
            return Ok(list.clone());
        }
        let head = self.head(rq, dir).await?;
        let names = match head.phys.snapshot_names.0 {
            0 => Vec::new(),
            _ => Zap::open(rq, &self.mos, head.phys.snapshot_names).await?.all(rq, MAX_ENTRIES).await?,
        };
        let mut wanted: Vec<(ObjectId, String)> = names
            .into_iter()
            .map(|e| (ObjectId(e.value.first().unwrap_or(0)), format!("{}@{}", dir.name, e.key.text())))
            .collect();
        // In the order of their object numbers, so that neighbours are read from one block.
        wanted.sort_unstable();
        let mut list = SnapshotList::default();
        let mut reads = stream::iter(wanted)
            .map(|(id, name)| async move {
                let read = self.dataset(rq, id, name.clone()).await;
                (name, read)
            })
            .buffered(MAX_CONCURRENT_READS);
        while let Some((name, read)) = reads.next().await {
            match read {
                Ok(dataset) => list.snapshots.push(dataset),
                Err(error) => list.damaged.push((name, error)),
            }
        }
        drop(reads);
        list.snapshots.sort_by(|a, b| (a.phys.creation_txg, &a.name).cmp(&(b.phys.creation_txg, &b.name)));
        let list = Arc::new(list);
        self.remembered().snapshots.insert(dir.id, list.clone());
        Ok(list)
    }

    /// The full name of the snapshot in object `id`; `None` if no name refers to it.
    pub async fn snapshot_name(&self, rq: &Request, id: ObjectId) -> Result<Option<String>, ObjectError> {
        let snapshot = self.dataset(rq, id, String::new()).await?;
        let Some(dir) = self.dir(snapshot.dir) else { return Ok(None) };
        let list = self.snapshots(rq, dir).await?;
        Ok(list.snapshots.iter().find(|s| s.id == id).map(|s| s.name.clone()))
    }

    /// The names of a snapshot's clones, sorted.
    pub async fn clones(&self, rq: &Request, snapshot: &Dataset) -> Result<Vec<String>, ObjectError> {
        if snapshot.phys.next_clones.0 == 0 {
            return Ok(Vec::new());
        }
        let mut out = Vec::new();
        for entry in Zap::open(rq, &self.mos, snapshot.phys.next_clones).await?.all(rq, MAX_ENTRIES).await? {
            let Some(id) = entry.value.first() else { continue };
            let clone = self.dataset(rq, ObjectId(id), String::new()).await?;
            out.extend(self.dir(clone.dir).map(|dir| dir.name.clone()));
        }
        out.sort_unstable();
        Ok(out)
    }

    /// The holds on a snapshot: tag and time (seconds since 1970), by tag.
    pub async fn holds(&self, rq: &Request, snapshot: &Dataset) -> Result<Vec<(String, u64)>, ObjectError> {
        if snapshot.phys.user_refs.0 == 0 {
            return Ok(Vec::new());
        }
        let entries = Zap::open(rq, &self.mos, snapshot.phys.user_refs).await?.all(rq, MAX_ENTRIES).await?;
        let mut out: Vec<_> = entries.into_iter().map(|e| (e.key.text(), e.value.first().unwrap_or(0))).collect();
        out.sort_unstable();
        Ok(out)
    }

    /// The delegated permissions of a directory: keys as stored (`ul$1000` and so on; OpenZFS
    /// `include/sys/dsl_deleg.h`), each with its permissions, sorted by key.
    pub async fn permissions(&self, rq: &Request, dir: &Dir) -> Result<Vec<(String, Vec<String>)>, ObjectError> {
        if dir.phys.permissions.0 == 0 {
            return Ok(Vec::new());
        }
        let mut out = Vec::new();
        for entry in Zap::open(rq, &self.mos, dir.phys.permissions).await?.all(rq, MAX_ENTRIES).await? {
            let Some(id) = entry.value.first() else { continue };
            let granted = Zap::open(rq, &self.mos, ObjectId(id)).await?.all(rq, MAX_ENTRIES).await?;
            let mut granted: Vec<String> = granted.into_iter().map(|e| e.key.text()).collect();
            granted.sort_unstable();
            out.push((entry.key.text(), granted));
        }
        out.sort_unstable();
        Ok(out)
    }

    /// An integer of the MOS's directory (object 1).
    pub async fn pool_word(&self, rq: &Request, name: &str) -> Result<Option<u64>, ObjectError> {
        zap::lookup_word(rq, &self.mos, ObjectId(weir_format::dsl::pool::DIRECTORY_OBJECT), name).await
    }
}

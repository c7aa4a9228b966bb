//! Updates a running scrub when datasets change (OpenZFS `dsl_scan_ds_snapshotted`, `dsl_scan_ds_destroyed`,
//! `dsl_scan_ds_clone_swapped`): its bookmark and its queue name datasets by object, and must remain valid for the
//! implementation that resumes it. Destroying a dataset also removes its error logs (`spa_delete_dataset_errlog`).

use super::{DslError, DslSyncContext};
use weir_dmu::zap::{self, Value};
use weir_format::ObjectId;
use weir_format::dsl::{ScanPhys, pool};

/// State of a scan: running (`DSS_SCANNING`).
const SCANNING: u64 = 1;
/// Flag of a scan: visit the dataset again, from its start (`DSF_VISIT_DS_AGAIN`).
const VISIT_AGAIN: u64 = 1;
/// The object set of a bookmark whose dataset was destroyed (`ZB_DESTROYED_OBJSET`).
const DESTROYED: u64 = u64::MAX;
/// Indices of integers in the scan's entry: the flags, the first integer of the bookmark.
const FLAGS: usize = 23;
const BOOKMARK: usize = 19;

impl DslSyncContext<'_> {
    /// The entry of a running scan: its integers, and the ZAP of datasets that it will visit.
    async fn running_scan(&self) -> Result<Option<(Vec<u64>, ObjectId)>, DslError> {
        let Some(value) = zap::lookup(self.rq, &self.mos, super::DIRECTORY, pool::SCAN).await? else { return Ok(None) };
        let scan = ScanPhys::from_words(&value.words).filter(|scan| scan.state == SCANNING);
        Ok(scan.map(|scan| (value.words, scan.queue)))
    }

    async fn put_scan(&self, words: Vec<u64>) -> Result<(), DslError> {
        self.put(super::DIRECTORY, pool::SCAN, Value { int_size: 8, words }).await
    }

    /// Removes a dataset from the queue; returns the txg from which on the scan was to visit it.
    async fn unqueue(&self, queue: ObjectId, id: ObjectId) -> Result<Option<u64>, DslError> {
        if queue.0 == 0 {
            return Ok(None);
        }
        let from = zap::lookup_int(self.rq, &self.mos, queue, id.0).await?;
        if from.is_some() {
            self.set_remove(queue, id.0).await?;
        }
        Ok(from)
    }

    async fn enqueue(&self, queue: ObjectId, id: ObjectId, from: Option<u64>) -> Result<(), DslError> {
        if let Some(from) = from {
            zap::put_int(self.rq, &self.mos, self.tx, queue, id.0, from).await?;
        }
        Ok(())
    }

    /// Replaces a destroyed dataset in the scan; if it is a snapshot, by `next`, which takes over its blocks.
    pub(super) async fn scan_destroyed(&mut self, id: ObjectId, next: Option<ObjectId>) -> Result<(), DslError> {
        let Some((mut words, queue)) = self.running_scan().await? else { return Ok(()) };
        if words.get(BOOKMARK) == Some(&id.0) {
            match next {
                Some(next) => {
                    words[BOOKMARK] = next.0;
                    words[FLAGS] |= VISIT_AGAIN;
                }
                None => words[BOOKMARK..BOOKMARK + 4].copy_from_slice(&[DESTROYED, 0, 0, 0]),
            }
            self.put_scan(words).await?;
        }
        let from = self.unqueue(queue, id).await?;
        match next {
            Some(next) => self.enqueue(queue, next, from).await,
            None => Ok(()),
        }
    }

    /// Replaces a head by its new snapshot, which has its contents.
    pub(super) async fn scan_snapshotted(&mut self, head: ObjectId, snapshot: ObjectId) -> Result<(), DslError> {
        let Some((mut words, queue)) = self.running_scan().await? else { return Ok(()) };
        if words.get(BOOKMARK) == Some(&head.0) {
            words[BOOKMARK] = snapshot.0;
            self.put_scan(words).await?;
        }
        let from = self.unqueue(queue, head).await?;
        self.enqueue(queue, snapshot, from).await
    }

    /// Exchanges two datasets that exchanged their contents.
    pub(super) async fn scan_swapped(&mut self, a: ObjectId, b: ObjectId) -> Result<(), DslError> {
        let Some((mut words, queue)) = self.running_scan().await? else { return Ok(()) };
        if let Some(at) = words.get_mut(BOOKMARK).filter(|at| **at == a.0 || **at == b.0) {
            *at = if *at == a.0 { b.0 } else { a.0 };
            self.put_scan(words).await?;
        }
        let of_a = self.unqueue(queue, a).await?;
        let of_b = self.unqueue(queue, b).await?;
        self.enqueue(queue, a, of_b).await?;
        self.enqueue(queue, b, of_a).await
    }

    /// Removes the error log of a destroyed head. A log that cannot be read keeps its entries, because this is no
    /// reason to keep the head (`delete_dataset_errlog`).
    pub(super) async fn drop_error_logs(&mut self, head: ObjectId) -> Result<(), DslError> {
        if !self.is_enabled("head_errlog").await? {
            return Ok(());
        }
        for name in [pool::ERRLOG_LAST, pool::ERRLOG_SCRUB] {
            let Some(log) = self.word(super::DIRECTORY, name).await?.filter(|log| *log != 0) else { continue };
            match self.drop_errors_of(ObjectId(log), head).await {
                Err(DslError::Object(error)) => {
                    tracing::warn!(pool = self.pool.name.as_str(), %error, "cannot remove the error log of dataset {head}");
                }
                other => other?,
            }
        }
        Ok(())
    }

    async fn drop_errors_of(&self, log: ObjectId, head: ObjectId) -> Result<(), DslError> {
        if let Some(own) = zap::lookup_int(self.rq, &self.mos, log, head.0).await? {
            self.set_remove(log, head.0).await?;
            self.discard(ObjectId(own)).await?;
        }
        Ok(())
    }
}

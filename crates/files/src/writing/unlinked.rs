//! Unlinked files: still open, or waiting to be freed.
//!
//! A file that is unlinked while it is open, or that is too large for one transaction, is listed in the *delete
//! queue* (the unlinked set), a ZAP that the master node references (OpenZFS `module/os/linux/zfs/zfs_dir.c`,
//! `zfs_unlinked_add`, `zfs_rmnode`). After a crash the queue is emptied when the file system is next opened for
//! writing, so no space leaks. A large file is freed from its end, in pieces, over as many txgs as necessary
//! ([`Frees::free_long_range`](weir_dmu::Frees::free_long_range)), while the removal returns immediately; the last piece, the object and its queue entry
//! are removed in one transaction.
//!
//! A snapshot is never modified, but it can be destroyed: open files of it prevent that.
//!
//! [`ObjectSet::free_long_range`]: weir_dmu::ObjectSet::free_long_range

use super::node::Node;
use crate::error::FileError;
use crate::file_system::FileSystem;
use crate::handles::{DeleteQueue, Holds};
use crate::metadata::index;
use std::collections::BTreeMap;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use weir_dmu::live::SpaceReserve;
use weir_dmu::txg::Tx;
use weir_dmu::zap::{self, Zap};
use weir_format::znode::DirEntry as StoredEntry;
use weir_format::{ObjectId, Txg};
use weir_machine::lock::Mutex;
use weir_machine::{Request, invariant};

/// Number of queue entries read at a time.
const BATCH: usize = 256;
/// Estimated bytes written by a removal: blocks of dnodes and of the queue.
const REAP_BYTES: u64 = 8 << 10;

/// The open files.
pub(crate) type HoldCounts = Mutex<BTreeMap<ObjectId, OpenCount>>;

/// Why a file is held, and hence what the hold prevents. Every hold keeps the file after the removal of its last link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldKind {
    /// A client has the file open: its dataset is busy.
    Open,
    /// A call is in progress: the dataset is not busy, but a snapshot is not destroyed meanwhile.
    Call,
    /// The kernel knows the file's inode number. It may know it for days after the last use, so the dataset may be rolled
    /// back, destroyed or exported at any time.
    Lookup,
}

/// Number of holds of a file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OpenCount {
    opens: u64,
    calls: u64,
    lookups: u64,
    /// Unlinked: the last release frees it.
    nameless: bool,
}

impl OpenCount {
    fn of(&mut self, kind: HoldKind) -> &mut u64 {
        match kind {
            HoldKind::Open => &mut self.opens,
            HoldKind::Call => &mut self.calls,
            HoldKind::Lookup => &mut self.lookups,
        }
    }

    fn is_zero(&self) -> bool {
        self.opens == 0 && self.calls == 0 && self.lookups == 0
    }
}

/// Pins a snapshot until it is dropped.
pub(super) struct OpenGuard<'a> {
    files: &'a FileSystem,
    object: ObjectId,
}

impl Drop for OpenGuard<'_> {
    fn drop(&mut self) {
        // Files of a snapshot are never unlinked.
        self.files.holds().end_hold(self.object, HoldKind::Open);
    }
}

impl<'a> Holds<'a> {
    /// Holds a file, so that it survives the removal of its last link. Unless the kind is [`HoldKind::Lookup`], it also pins a
    /// snapshot, if that is not closed already; the caller checks that afterwards. Each hold needs one
    /// [`Holds::release`](crate::Holds::release) of the same kind.
    pub fn hold(self, object: ObjectId, kind: HoldKind) {
        *self.files.holds.lock().entry(object).or_default().of(kind) += 1;
    }

    /// Closes the file system permanently, unless files of it are open or in a call, or blocks of it were cloned in a txg
    /// after `syncing`, whose references are not synced yet. Returns whether it is closed.
    pub fn close_unless_used(self, syncing: Txg) -> bool {
        let holds = self.files.holds.lock();
        let idle = holds.values().all(|held| held.opens == 0 && held.calls == 0);
        let unused = idle && self.files.cloned_txg.load(Ordering::SeqCst) <= syncing.0;
        if unused {
            self.files.objects().close(true);
        }
        unused
    }

    /// Whether any file is held.
    pub fn any(self) -> bool {
        !self.files.holds.lock().is_empty()
    }

    /// Whether the file system can be closed and opened again without a trace: no file is held, and blocks of it were cloned in
    /// no txg after `synced`.
    pub fn is_idle(self, synced: Txg) -> bool {
        !self.any() && self.files.cloned_txg.load(Ordering::SeqCst) <= synced.0
    }

    /// Records that blocks of it are cloned in a txg. Call it while the file is held.
    pub(super) fn note_cloned(self, txg: Txg) {
        self.files.cloned_txg.fetch_max(txg.0, Ordering::SeqCst);
    }

    /// Pins a snapshot while blocks of a file are cloned; `None` if this is not a snapshot.
    ///
    /// # Errors
    /// [`FileError::Stale`] if it was destroyed.
    pub(super) fn pin_snapshot(self, object: ObjectId) -> Result<Option<OpenGuard<'a>>, FileError> {
        if !self.files.is_snapshot() {
            return Ok(None);
        }
        self.hold(object, HoldKind::Open);
        let kept = OpenGuard { files: self.files, object };
        if self.files.is_closed() { Err(FileError::Stale { object }) } else { Ok(Some(kept)) }
    }

    /// Releases a hold; returns the entry if it was the last one.
    fn end_hold(self, object: ObjectId, kind: HoldKind) -> Option<OpenCount> {
        let mut holds = self.files.holds.lock();
        let last = holds.get_mut(&object).is_some_and(|held| {
            let count = held.of(kind);
            invariant!(*count > 0, "file {object} is released once more than it was held, as {kind:?}");
            *count = count.saturating_sub(1);
            held.is_zero()
        });
        if last { holds.remove(&object) } else { None }
    }

    /// Releases a hold. An unlinked file without holds is freed.
    ///
    /// # Errors
    /// If the file cannot be freed; it stays in the delete queue.
    pub async fn release(self, rq: &Request, object: ObjectId, kind: HoldKind) -> Result<(), FileError> {
        match self.end_hold(object, kind) {
            Some(OpenCount { nameless: true, .. }) => self.files.delete_queue().reap_soon(rq, object).await,
            _ => Ok(()),
        }
    }

    /// Number of open files.
    pub fn open_count(self) -> usize {
        self.files.holds.lock().values().filter(|held| held.opens > 0).count()
    }

    /// Whether an unlinked file is held; it is then freed by the last release.
    fn stays_held(self, object: ObjectId) -> bool {
        self.files.holds.lock().get_mut(&object).map(|hold| hold.nameless = true).is_some()
    }
}

impl DeleteQueue<'_> {
    /// Whether a file that was just unlinked can be freed in the same transaction. A file that cannot be read for
    /// that is queued.
    pub(super) async fn can_free_in_transaction(self, rq: &Request, node: &Node) -> bool {
        !self.files.holds().stays_held(node.id)
            && node.word(index::XATTR) == 0
            && (node.is_dir() || self.files.objects().frees().is_small(&node.object))
            && self.files.objects().frees().read_indirects_ahead(rq, node.id, 0..u64::MAX).await.is_ok()
    }

    /// Adds a file to the delete queue.
    pub(super) async fn add(self, rq: &Request, tx: &Tx, object: ObjectId) -> Result<(), FileError> {
        let queue = self.files.writing()?.unlinked;
        let entered = zap::put_int(rq, self.files.objects(), tx, queue, object.0, object.0).await;
        entered.map_err(|e| FileError::at(e, queue, 0))
    }

    /// Frees an unlinked file if it has no holds. A file that needs many txgs is freed asynchronously
    /// (`zfs_zrele_async`); an error is logged, and the file stays in the queue.
    ///
    /// # Errors
    /// If a small file cannot be freed.
    pub(super) async fn reap_soon(self, rq: &Request, object: ObjectId) -> Result<(), FileError> {
        let Some(writing) = &self.files.writing else { return Ok(()) };
        let replaying = writing.zil.as_ref().is_some_and(|zil| zil.is_replaying());
        let found = self.files.objects().object(rq, object).await;
        let large = !replaying && found.is_ok_and(|found| !self.files.objects().frees().is_small(&found));
        let own = writing.own.get().filter(|_| large).and_then(Weak::upgrade);
        let Some(files) = own else { return self.reap_unless_held(rq, object).await };
        writing.machine.tasks.spawn(async move {
            // One file at a time, because all share the space that can be freed per txg.
            let Some(writing) = &files.writing else { return };
            let _turn = writing.delete_queue_lock.lock().await;
            files.delete_queue().reap_or_log(&Request::internal("delete queue"), object).await;
        });
        Ok(())
    }

    /// Frees an unlinked file if it has no holds.
    pub(super) async fn reap_unless_held(self, rq: &Request, object: ObjectId) -> Result<(), FileError> {
        let Some(writing) = &self.files.writing else { return Ok(()) };
        let _held = writing.locks.one(rq, object).await;
        match self.files.nodes().load(rq, object).await {
            Ok(node) if node.links() == 0 && !self.files.holds().stays_held(object) => self.reap(rq, &node).await,
            Ok(_) | Err(FileError::Stale { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Frees a file and its extended attributes. Under its lock.
    async fn reap(self, rq: &Request, node: &Node) -> Result<(), FileError> {
        let failed = |e| FileError::of(e, &node.object);
        if !node.is_dir() {
            self.files.objects().frees().free_long_range(rq, node.id, 0..u64::MAX).await.map_err(failed)?;
        }
        let xattrs = ObjectId(node.word(index::XATTR));
        let has_xattrs = xattrs.0 != 0 && self.empty_xattrs(rq, xattrs).await?;
        let queue = self.files.writing()?.unlinked;
        let tx = self.files.begin(rq, REAP_BYTES, SpaceReserve::NetFree).await?;
        if has_xattrs {
            self.files.objects().frees().remove(rq, &tx, xattrs).await.map_err(failed)?;
        }
        self.files.objects().frees().remove(rq, &tx, node.id).await.map_err(failed)?;
        let left = zap::remove_int(rq, self.files.objects(), &tx, queue, node.id.0).await;
        left.map(drop).map_err(|e| FileError::at(e, queue, 0))
    }

    /// Frees all files in the directory of an unlinked file's extended attributes, each together with its name,
    /// because a free object number may be reused. Returns whether there is a directory.
    async fn empty_xattrs(self, rq: &Request, dir: ObjectId) -> Result<bool, FileError> {
        let failed = |e| FileError::at(e, dir, 0);
        loop {
            let opened = match Zap::open(rq, self.files.objects(), dir).await {
                Err(error) if error.is_absent() => return Ok(false),
                opened => opened.map_err(failed)?,
            };
            let entries = opened.entries(rq, 0, BATCH).await.map_err(failed)?;
            if entries.is_empty() {
                return Ok(true);
            }
            for entry in &entries {
                let file = entry.value.first().map(|word| StoredEntry::from_word(word).object);
                if let Some(file) = file {
                    match self.files.objects().frees().free_long_range(rq, file, 0..u64::MAX).await {
                        Err(error) if !error.is_absent() => return Err(failed(error)),
                        _ => {}
                    }
                }
                let tx = self.files.begin(rq, REAP_BYTES, SpaceReserve::NetFree).await?;
                zap::remove(rq, self.files.objects(), &tx, dir, &entry.key).await.map_err(failed)?;
                let Some(file) = file else { continue };
                match self.files.objects().frees().remove(rq, &tx, file).await {
                    Err(error) if !error.is_absent() => return Err(failed(error)),
                    _ => {}
                }
            }
        }
    }

    /// Empties the delete queue: call it once after the file system was opened for writing and its log was replayed.
    /// Open files are kept. Returns the number of freed files.
    ///
    /// # Errors
    /// If the queue cannot be read. A file that cannot be freed stays in it and is logged.
    pub async fn empty(self, rq: &Request) -> Result<u64, FileError> {
        let mut gone = 0;
        for object in self.list(rq).await? {
            gone += self.reap_or_log(rq, object).await;
        }
        Ok(gone)
    }

    /// Frees the files in the delete queue that fit into one transaction. Returns whether others, which may need many
    /// txgs, are left for [`DeleteQueue::empty`](crate::DeleteQueue::empty) while the file system is in use.
    ///
    /// # Errors
    /// If the queue cannot be read.
    pub async fn empty_of_small(self, rq: &Request) -> Result<bool, FileError> {
        let mut large = false;
        for object in self.list(rq).await? {
            match self.files.objects().object(rq, object).await {
                Ok(found) if !self.files.objects().frees().is_small(&found) => large = true,
                _ => _ = self.reap_or_log(rq, object).await,
            }
        }
        Ok(large)
    }

    /// Objects in the delete queue.
    async fn list(self, rq: &Request) -> Result<Vec<ObjectId>, FileError> {
        let queue = self.files.writing()?.unlinked;
        let failed = |e| FileError::at(e, queue, 0);
        let mut waiting = Vec::new();
        let opened = Zap::open(rq, self.files.objects(), queue).await.map_err(failed)?;
        let mut cookie = 0;
        loop {
            let entries = opened.entries(rq, cookie, BATCH).await.map_err(failed)?;
            let Some(last) = entries.last() else { break };
            cookie = last.cookie;
            waiting.extend(entries.iter().filter_map(|entry| entry.value.first()).map(ObjectId));
        }
        Ok(waiting)
    }

    /// Returns the number of freed files: one or none.
    async fn reap_or_log(self, rq: &Request, object: ObjectId) -> u64 {
        match self.reap_queued(rq, object).await {
            Ok(()) => 1,
            Err(error) => {
                tracing::warn!(name = self.files.name(), %object, %error, "an unlinked file stays queued");
                0
            }
        }
    }

    async fn reap_queued(self, rq: &Request, object: ObjectId) -> Result<(), FileError> {
        match self.files.objects().object(rq, object).await {
            Ok(_) => self.reap_unless_held(rq, object).await,
            // The file was freed already; remove its entry.
            Err(error) if error.is_absent() => {
                let queue = self.files.writing()?.unlinked;
                let tx = self.files.begin(rq, REAP_BYTES, SpaceReserve::NetFree).await?;
                let left = zap::remove_int(rq, self.files.objects(), &tx, queue, object.0).await;
                left.map(drop).map_err(|e| FileError::at(e, queue, 0))
            }
            Err(error) => Err(FileError::at(error, object, 0)),
        }
    }
}

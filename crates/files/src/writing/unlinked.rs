//! Files without names: held open, or waiting to be taken apart.
//!
//! A file that loses its last name while it is open, or that is too large for one transaction, stands in the *delete
//! queue*, a ZAP that the master node leads to (OpenZFS `module/os/linux/zfs/zfs_dir.c`, `zfs_unlinked_add`,
//! `zfs_rmnode`). So a crash loses nothing: whoever opens the file system next empties the queue. A large file is cut
//! off from its end, piece by piece, over as many groups as it takes ([`ObjectSet::free_down`]), while who removed it goes
//! on; with the last piece the object and its entry in the queue go together.
//!
//! A snapshot changes nothing, but it may go: files of it that are held open keep it.
//!
//! [`ObjectSet::free_down`]: weir_dmu::ObjectSet::free_down

use super::lock;
use super::node::Node;
use crate::error::FileError;
use crate::file_system::FileSystem;
use crate::metadata::index;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, Weak};
use weir_dmu::live::Purpose;
use weir_dmu::txg::Tx;
use weir_dmu::zap::{self, Zap};
use weir_format::znode::DirEntry as StoredEntry;
use weir_format::{ObjectId, Txg};
use weir_machine::Request;

/// Files that the queue is read for at a time.
const BATCH: usize = 256;
/// What a removal is said to write: blocks of dnodes and of the queue.
const REAP_BYTES: u64 = 8 << 10;

/// What is held open.
pub(crate) type Holds = Mutex<BTreeMap<ObjectId, Held>>;

/// A file that somebody has open.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held {
    count: u64,
    /// So many of them for the time of a call.
    calls: u64,
    /// It has no name any more: the last hold takes it along.
    nameless: bool,
}

/// A snapshot that is kept until this is dropped.
pub(super) struct Kept<'a> {
    files: &'a FileSystem,
    object: ObjectId,
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        // Nothing of a snapshot loses its name.
        self.files.end_hold(self.object);
    }
}

impl FileSystem {
    /// Keeps a file alive although its last name may go: somebody has it open. Keeps a snapshot, too, unless it is closed
    /// already: who holds looks then. One [`FileSystem::release`] for each.
    pub fn hold(&self, object: ObjectId) {
        lock(&self.holds).entry(object).or_default().count += 1;
    }

    /// The same for the time of a call, by which a file is not in use. One [`FileSystem::end_call`] for each.
    pub fn hold_for_call(&self, object: ObjectId) {
        let mut holds = lock(&self.holds);
        let held = holds.entry(object).or_default();
        (held.count, held.calls) = (held.count + 1, held.calls + 1);
    }

    /// Ends the hold of a call, as [`FileSystem::release`] does.
    ///
    /// # Errors
    /// Those of [`FileSystem::release`].
    pub async fn end_call(&self, rq: &Request, object: ObjectId) -> Result<(), FileError> {
        lock(&self.holds).entry(object).and_modify(|held| held.calls = held.calls.saturating_sub(1));
        self.release(rq, object).await
    }

    /// Closes it for good, unless files of it are held or blocks of it were lent in a group after `syncing`: their new
    /// owners count with that group only. Gives whether it is closed.
    pub fn close_unless_used(&self, syncing: Txg) -> bool {
        let holds = lock(&self.holds);
        let unused = holds.is_empty() && self.lent.load(Ordering::SeqCst) <= syncing.0;
        if unused {
            self.objects().close(true);
        }
        unused
    }

    /// Blocks of it are lent in a group. Noted while the file is held.
    pub(super) fn note_lent(&self, txg: Txg) {
        self.lent.fetch_max(txg.0, Ordering::SeqCst);
    }

    /// Keeps a snapshot for as long as blocks of a file are lent; `None` for what is no snapshot.
    ///
    /// # Errors
    /// [`FileError::Stale`] if it is gone.
    pub(super) fn keep(&self, object: ObjectId) -> Result<Option<Kept<'_>>, FileError> {
        if !self.is_snapshot() {
            return Ok(None);
        }
        self.hold(object);
        let kept = Kept { files: self, object };
        if self.is_closed() { Err(FileError::Stale { object }) } else { Ok(Some(kept)) }
    }

    /// Ends a hold; gives what is known of the file if it was the last one.
    fn end_hold(&self, object: ObjectId) -> Option<Held> {
        let mut holds = lock(&self.holds);
        let last = holds.get_mut(&object).is_some_and(|hold| {
            hold.count -= 1;
            hold.count == 0
        });
        if last { holds.remove(&object) } else { None }
    }

    /// Ends a hold. A file without a name and without holds goes.
    ///
    /// # Errors
    /// What taking the file apart meets. It is then in the delete queue still.
    pub async fn release(&self, rq: &Request, object: ObjectId) -> Result<(), FileError> {
        match self.end_hold(object) {
            Some(Held { nameless: true, .. }) => self.reap_soon(rq, object).await,
            _ => Ok(()),
        }
    }

    /// How many files are held open; for longer than a call, that is.
    pub fn held_count(&self) -> usize {
        lock(&self.holds).values().filter(|held| held.count > held.calls).count()
    }

    /// Whether it was closed for good.
    pub fn is_closed(&self) -> bool {
        self.objects().is_closed()
    }

    /// Whether a file without a name is held open. If so, it goes with its last hold.
    fn stays_held(&self, object: ObjectId) -> bool {
        lock(&self.holds).get_mut(&object).map(|hold| hold.nameless = true).is_some()
    }

    /// Whether a file that has just lost its last name can go in the same transaction. One that cannot be read to be taken
    /// apart waits in the queue.
    pub(super) async fn goes_at_once(&self, rq: &Request, node: &Node) -> bool {
        !self.stays_held(node.id)
            && node.word(index::XATTR) == 0
            && (node.is_dir() || self.objects().is_small(&node.object))
            && self.objects().look_ahead(rq, node.id, 0..u64::MAX).await.is_ok()
    }

    /// Enters a file into the delete queue.
    pub(super) async fn queue_unlinked(&self, rq: &Request, tx: &Tx, object: ObjectId) -> Result<(), FileError> {
        let queue = self.writing()?.unlinked;
        let entered = zap::put_int(rq, self.objects(), tx, queue, object.0, object.0).await;
        entered.map_err(|e| FileError::at(e, queue, 0))
    }

    /// Sees to it that a file without a name goes, if nobody holds it. One that takes many groups goes by and by: nobody
    /// waits for it (`zfs_zrele_async`). That it could not, the log tells; then it is still in the queue.
    ///
    /// # Errors
    /// What taking a small file apart meets.
    pub(super) async fn reap_soon(&self, rq: &Request, object: ObjectId) -> Result<(), FileError> {
        let Some(writing) = &self.writing else { return Ok(()) };
        let replaying = writing.zil.as_ref().is_some_and(|zil| zil.is_replaying());
        let found = self.objects().object(rq, object).await;
        let large = !replaying && found.is_ok_and(|found| !self.objects().is_small(&found));
        let own = writing.own.get().filter(|_| large).and_then(Weak::upgrade);
        let Some(files) = own else { return self.reap_unless_held(rq, object).await };
        writing.machine.tasks.spawn(async move {
            // One after the other: what may be given back in a group is shared with those who wait for it.
            let Some(writing) = &files.writing else { return };
            let _turn = writing.reaping.lock().await;
            files.reap_or_tell(&Request::internal("delete queue"), object).await;
        });
        Ok(())
    }

    /// Takes a file apart that has no name, if nobody holds it.
    pub(super) async fn reap_unless_held(&self, rq: &Request, object: ObjectId) -> Result<(), FileError> {
        let Some(writing) = &self.writing else { return Ok(()) };
        let _held = writing.locks.one(object).await;
        match self.node(rq, object).await {
            Ok(node) if node.links() == 0 && !self.stays_held(object) => self.reap(rq, &node).await,
            Ok(_) | Err(FileError::Stale { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Takes a file apart, with its extended attributes. Under its lock.
    async fn reap(&self, rq: &Request, node: &Node) -> Result<(), FileError> {
        let failed = |e| FileError::of(e, &node.object);
        if !node.is_dir() {
            self.objects().free_down(rq, node.id, 0..u64::MAX).await.map_err(failed)?;
        }
        let xattrs = ObjectId(node.word(index::XATTR));
        let has_xattrs = xattrs.0 != 0 && self.empty_xattrs(rq, xattrs).await?;
        let queue = self.writing()?.unlinked;
        let tx = self.begin(rq, REAP_BYTES, Purpose::Free).await?;
        if has_xattrs {
            self.objects().remove(rq, &tx, xattrs).await.map_err(failed)?;
        }
        self.objects().remove(rq, &tx, node.id).await.map_err(failed)?;
        let left = zap::remove_int(rq, self.objects(), &tx, queue, node.id.0).await;
        left.map(drop).map_err(|e| FileError::at(e, queue, 0))
    }

    /// Takes all files out of the directory of a file's extended attributes, of which nobody else knows any more: each
    /// with its name, for a number that is free may be another's tomorrow. Gives whether there is one.
    async fn empty_xattrs(&self, rq: &Request, dir: ObjectId) -> Result<bool, FileError> {
        let failed = |e| FileError::at(e, dir, 0);
        loop {
            let opened = match Zap::open(rq, self.objects(), dir).await {
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
                    match self.objects().free_down(rq, file, 0..u64::MAX).await {
                        Err(error) if !error.is_absent() => return Err(failed(error)),
                        _ => {}
                    }
                }
                let tx = self.begin(rq, REAP_BYTES, Purpose::Free).await?;
                zap::remove(rq, self.objects(), &tx, dir, &entry.key).await.map_err(failed)?;
                let Some(file) = file else { continue };
                match self.objects().remove(rq, &tx, file).await {
                    Err(error) if !error.is_absent() => return Err(failed(error)),
                    _ => {}
                }
            }
        }
    }

    /// Empties the delete queue: to be called once, when the file system was opened for writing and its log replayed.
    /// Files that are held stay. Gives how many went.
    ///
    /// # Errors
    /// The queue cannot be read. A file that cannot be taken apart stays in it, with a line in the log.
    pub async fn empty_delete_queue(&self, rq: &Request) -> Result<u64, FileError> {
        let mut gone = 0;
        for object in self.delete_queue(rq).await? {
            gone += self.reap_or_tell(rq, object).await;
        }
        Ok(gone)
    }

    /// Takes those files out of the delete queue that go at once. Gives whether others are left, which may take many
    /// groups: for [`FileSystem::empty_delete_queue`], while the file system is in use.
    ///
    /// # Errors
    /// The queue cannot be read.
    pub async fn empty_delete_queue_of_small(&self, rq: &Request) -> Result<bool, FileError> {
        let mut large = false;
        for object in self.delete_queue(rq).await? {
            match self.objects().object(rq, object).await {
                Ok(found) if !self.objects().is_small(&found) => large = true,
                _ => _ = self.reap_or_tell(rq, object).await,
            }
        }
        Ok(large)
    }

    /// What waits in the delete queue.
    async fn delete_queue(&self, rq: &Request) -> Result<Vec<ObjectId>, FileError> {
        let queue = self.writing()?.unlinked;
        let failed = |e| FileError::at(e, queue, 0);
        let mut waiting = Vec::new();
        let opened = Zap::open(rq, self.objects(), queue).await.map_err(failed)?;
        let mut cookie = 0;
        loop {
            let entries = opened.entries(rq, cookie, BATCH).await.map_err(failed)?;
            let Some(last) = entries.last() else { break };
            cookie = last.cookie;
            waiting.extend(entries.iter().filter_map(|entry| entry.value.first()).map(ObjectId));
        }
        Ok(waiting)
    }

    /// Gives how many files went: one, or none.
    async fn reap_or_tell(&self, rq: &Request, object: ObjectId) -> u64 {
        match self.reap_queued(rq, object).await {
            Ok(()) => 1,
            Err(error) => {
                tracing::warn!(name = self.name(), %object, %error, "an unlinked file stays queued");
                0
            }
        }
    }

    async fn reap_queued(&self, rq: &Request, object: ObjectId) -> Result<(), FileError> {
        match self.objects().object(rq, object).await {
            Ok(_) => self.reap_unless_held(rq, object).await,
            // The entry of a file that is gone already.
            Err(error) if error.is_absent() => {
                let queue = self.writing()?.unlinked;
                let tx = self.begin(rq, REAP_BYTES, Purpose::Free).await?;
                let left = zap::remove_int(rq, self.objects(), &tx, queue, object.0).await;
                left.map(drop).map_err(|e| FileError::at(e, queue, 0))
            }
            Err(error) => Err(FileError::at(error, object, 0)),
        }
    }
}

//! Invalidation of what the kernel has cached of files that another protocol changed.
//!
//! ```text
//!   change by NFS, SMB … ─► queue of this mount ─► thread ─► kernel: forget the name, or attributes and pages
//! ```
//!
//! A thread of its own calls the kernel, because the call waits for locks of the directory or of pages, and an operation that holds
//! such a lock may wait for this process. The queue has each name and file once, so a file that is written all the time costs one call
//! per [`PAUSE`]. A change for which the queue has no room becomes visible when the kernel's cache expires
//! ([`crate::name_cache::SHORT_TTL`]).

use crate::inner::Inner;
use fuser::{INodeNo, Notifier};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use weir_files::tree::{ChangeObserver, Changed};
use weir_machine::lock::Mutex;

/// Maximum number of queued names and of queued files.
const MAX_QUEUED: usize = 4096;
/// Time between two rounds of calls.
const PAUSE: Duration = Duration::from_millis(1);

/// Names and files for the kernel to forget, by inode numbers.
#[derive(Debug, Default, PartialEq, Eq)]
struct Queued {
    names: BTreeSet<(u64, Vec<u8>)>,
    files: BTreeSet<u64>,
}

/// The queue of one mount.
#[derive(Debug, Default)]
pub(crate) struct Invalidations {
    queued: Arc<Mutex<Queued>>,
    /// Wakes the thread; unset until it runs. The thread ends when this is dropped.
    wake: OnceLock<SyncSender<()>>,
}

impl Invalidations {
    /// Starts the thread, when the mount is made.
    pub(crate) fn start(&self, kernel: Notifier) {
        let (wake, woken) = sync_channel(1);
        let queued = Arc::clone(&self.queued);
        let run = move || serve(&kernel, &queued, &woken);
        match std::thread::Builder::new().name("weir-invalidate".into()).spawn(run) {
            // Set once per mount.
            Ok(_thread) => drop(self.wake.set(wake)),
            Err(error) => tracing::warn!(%error, "the kernel keeps what other protocols change for a second"),
        }
    }

    /// Makes the kernel look up a name again.
    pub(crate) fn forget_name(&self, dir: u64, name: &[u8]) {
        self.queue(|queued| queued.names.len() < MAX_QUEUED && queued.names.insert((dir, name.to_vec())));
    }

    /// Makes the kernel read attributes and data of a file again.
    pub(crate) fn forget_file(&self, number: u64) {
        self.queue(|queued| queued.files.len() < MAX_QUEUED && queued.files.insert(number));
    }

    /// Wakes the thread if `add` has added something.
    fn queue(&self, add: impl FnOnce(&mut Queued) -> bool) {
        let Some(wake) = self.wake.get() else { return };
        if !add(&mut self.queued.lock()) {
            return;
        }
        match wake.try_send(()) {
            // One that is full wakes the thread after this change, too.
            Ok(()) | Err(TrySendError::Full(())) => {}
            Err(TrySendError::Disconnected(())) => debug_assert!(false, "the thread runs as long as the mount"),
        }
    }
}

impl ChangeObserver for Inner {
    fn changed(&self, change: Changed<'_>) {
        match change {
            // The kernel has cached nothing of a file system that it has not entered.
            Changed::Name { dir, name } => {
                if let Some(number) = self.inodes.known_number(dir) {
                    self.invalidations.forget_name(number, name);
                }
            }
            // A mount for a file server knows what the kernel has cached.
            Changed::File(node) if self.server.is_some() && !self.lookups.contains(node) => {}
            Changed::File(node) => {
                if let Some(number) = self.inodes.known_number(node) {
                    self.invalidations.forget_file(number);
                }
            }
        }
    }
}

/// Calls the kernel until the mount is gone.
fn serve(kernel: &Notifier, queued: &Mutex<Queued>, woken: &Receiver<()>) {
    while woken.recv().is_ok() {
        let Queued { names, files } = std::mem::take(&mut *queued.lock());
        // Errors mean that the kernel has not cached it, or that the mount is gone.
        for (dir, name) in names {
            let _ = kernel.inval_entry(INodeNo(dir), OsStr::from_bytes(&name));
        }
        for number in files {
            let _ = kernel.inval_inode(INodeNo(number), 0, 0);
        }
        std::thread::park_timeout(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_queued_once_and_the_queue_is_bounded() {
        let invalidations = Invalidations::default();
        invalidations.forget_file(1);
        assert_eq!(*invalidations.queued.lock(), Queued::default(), "nothing takes it before the mount is made");
        let (wake, woken) = sync_channel(1);
        invalidations.wake.set(wake).unwrap();
        for _ in 0..3 {
            invalidations.forget_name(1, b"a");
            invalidations.forget_file(7);
        }
        let expected = Queued { names: BTreeSet::from([(1, b"a".to_vec())]), files: BTreeSet::from([7]) };
        assert_eq!(*invalidations.queued.lock(), expected);
        assert_eq!((woken.try_recv(), woken.try_recv().is_err()), (Ok(()), true), "woken once");
        (0..5000).for_each(|number| invalidations.forget_file(number));
        assert_eq!(invalidations.queued.lock().files.len(), MAX_QUEUED);
    }
}

//! How long the kernel may believe what a name leads to.
//!
//! Where this mount is the only door of its pool, names change by the kernel's own doing, of which it knows, or by an
//! administrator's: a rollback, a file system that comes or goes. So names are believed for good, and after each such command
//! those in the mount's root are taken back; the kernel then forgets all that it knew below them.
//!
//! Believed for a moment alone is what leads from one file system into another, and a name that has other spellings: the kernel
//! would go on believing one when the file goes by another.

use crate::inner::{FOREVER, SHORTLY};
use fuser::{INodeNo, Notifier};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Names of plain entries of the root that are believed for good; more are believed for a moment.
const MOST: usize = 4096;

/// The names that the kernel was told.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// To whom they are taken back; none while the mount is being made.
    kernel: OnceLock<Notifier>,
    /// Those in the root that may have to be taken back.
    in_root: Mutex<BTreeSet<Vec<u8>>>,
}

impl Names {
    /// Takes names back there.
    pub(crate) fn tell(&self, kernel: Notifier) {
        // There is one kernel.
        let _ = self.kernel.set(kernel);
    }

    /// How long a name in the directory `parent` is believed that `stays` in its file system and has no other spelling.
    pub(crate) fn believed(&self, parent: INodeNo, name: &[u8], stays: bool) -> Duration {
        let mut lasts = stays;
        if parent == INodeNo::ROOT {
            let mut known = self.in_root.lock().unwrap_or_else(PoisonError::into_inner);
            if known.contains(name) || known.len() < MOST || !stays {
                known.insert(name.to_vec());
            } else {
                lasts = false;
            }
        }
        if lasts { FOREVER } else { SHORTLY }
    }

    /// Has the kernel forget all names, on a thread that may wait: the kernel takes them from a directory when nobody
    /// changes that, and who does so may wait for us.
    pub(crate) fn take_back(&self) {
        let Some(kernel) = self.kernel.get().cloned() else { return };
        let known = std::mem::take(&mut *self.in_root.lock().unwrap_or_else(PoisonError::into_inner));
        let forget = move || {
            for name in known {
                // It knew that name, or not; or the mount is gone.
                let _ = kernel.inval_entry(INodeNo::ROOT, OsStr::from_bytes(&name));
            }
        };
        if let Err(error) = std::thread::Builder::new().name("weir-names".into()).spawn(forget) {
            tracing::warn!(%error, "the kernel may go on believing names that are gone");
        }
    }

    /// Has the kernel ask for a file's attributes again.
    pub(crate) fn attributes_changed(&self, number: INodeNo) {
        if let Some(kernel) = self.kernel.get() {
            // It did not know them, or the mount is gone.
            let _ = kernel.inval_inode(number, -1, 0);
        }
    }
}

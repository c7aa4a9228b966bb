//! Control of the kernel's cache of directory entries.
//!
//! If this mount is the only front end of its pool, names change only by the kernel's own operations or by
//! administration: rollback, creation or destruction of a file system. So names get a long TTL, and after each such
//! command the entries of the mount's root are invalidated, which makes the kernel drop everything below them.
//!
//! Two kinds of names get only a short TTL: those that lead into another file system, and those in directories where
//! one file has several spellings (case-insensitive or normalizing), because the kernel would keep one spelling after
//! the file was renamed under another.

use fuser::{INodeNo, Notifier};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;
use std::time::Duration;
use weir_machine::lock::Mutex;

/// TTL of everything on a read-only mount, and of names on an exclusive mount.
pub(crate) const LONG_TTL: Duration = Duration::from_secs(24 * 3600);
/// TTL of whatever may change without the kernel's knowledge: by another front end, or by a txg sync that determines
/// a file's allocated size.
pub(crate) const SHORT_TTL: Duration = Duration::from_secs(1);
/// Maximum number of root entries with a long TTL; further ones get a short TTL.
const MAX_LONG_LIVED_ROOT_NAMES: usize = 4096;

/// Names that the kernel caches.
#[derive(Debug, Default)]
pub(crate) struct NameCache {
    /// Notification channel to the kernel; unset while the mount is being set up.
    kernel: OnceLock<Notifier>,
    /// Names in the root that may have to be invalidated.
    in_root: Mutex<BTreeSet<Vec<u8>>>,
}

impl NameCache {
    /// Sets the notification channel.
    pub(crate) fn set_notifier(&self, kernel: Notifier) {
        // Set once per mount.
        let _ = self.kernel.set(kernel);
    }

    /// TTL of a name in directory `parent`. `stays` means that it leads to the same file system and has no other
    /// spelling.
    pub(crate) fn entry_ttl(&self, parent: INodeNo, name: &[u8], stays: bool) -> Duration {
        let mut is_long_lived = stays;
        if parent == INodeNo::ROOT {
            let mut known = self.in_root.lock();
            if known.contains(name) || known.len() < MAX_LONG_LIVED_ROOT_NAMES || !stays {
                known.insert(name.to_vec());
            } else {
                is_long_lived = false;
            }
        }
        if is_long_lived { LONG_TTL } else { SHORT_TTL }
    }

    /// Invalidates all names. Runs on its own thread, because the kernel locks the directory: an operation that holds
    /// that lock may be waiting for this process.
    pub(crate) fn invalidate_all(&self) {
        let Some(kernel) = self.kernel.get().cloned() else { return };
        let known = std::mem::take(&mut *self.in_root.lock());
        let forget = move || {
            for name in known {
                // Errors mean that the kernel did not cache the name, or that the mount is gone.
                let _ = kernel.inval_entry(INodeNo::ROOT, OsStr::from_bytes(&name));
            }
        };
        if let Err(error) = std::thread::Builder::new().name("weir-names".into()).spawn(forget) {
            tracing::warn!(%error, "the kernel may keep stale names");
        }
    }

    /// Makes the kernel look up a name again. It waits for operations in the directory; mounts below the name are detached if it
    /// leads elsewhere then.
    pub(crate) fn invalidate(&self, parent: INodeNo, name: &[u8]) {
        if let Some(kernel) = self.kernel.get() {
            // Errors mean that the kernel did not cache the name, or that the mount is gone.
            let _ = kernel.inval_entry(parent, OsStr::from_bytes(name));
        }
    }

    /// Invalidates the kernel's cached attributes of a file.
    pub(crate) fn invalidate_attributes(&self, number: INodeNo) {
        if let Some(kernel) = self.kernel.get() {
            // Errors mean that they were not cached, or that the mount is gone.
            let _ = kernel.inval_inode(number, -1, 0);
        }
    }
}

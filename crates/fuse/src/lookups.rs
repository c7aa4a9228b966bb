//! Lookup counts: files that the kernel knows stay, even if their last link is removed.
//!
//! The kernel refers to a file by its inode number from the first reply that names it until it forgets the number, and need
//! not open it meanwhile: a descriptor with `O_PATH`, which smbd uses for nearly everything, sends no OPEN. On a mount for a
//! file server, a file is therefore held from its first lookup until the kernel has forgotten all of them. Other mounts hold
//! open files alone: they would pay for each file in the kernel's cache.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use weir_files::tree::Node;

/// The counts of one mount. There is one row per file in the kernel's inode cache, which the kernel bounds.
#[derive(Debug, Default)]
pub(crate) struct Lookups(Mutex<BTreeMap<Node, u64>>);

impl Lookups {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Node, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a lookup. Returns whether it is the first: then the file must be held.
    pub(crate) fn add(&self, node: Node) -> bool {
        let mut counts = self.lock();
        let count = counts.entry(node).or_default();
        *count += 1;
        *count == 1
    }

    /// Forgets lookups. Returns whether none is left: then the file must be released.
    pub(crate) fn forget(&self, node: Node, lookups: u64) -> bool {
        let mut counts = self.lock();
        let Some(count) = counts.get_mut(&node) else { return false };
        *count = count.saturating_sub(lookups);
        let last = *count == 0;
        if last {
            counts.remove(&node);
        }
        last
    }

    /// Forgets everything, at the end of the mount. Returns the files that are held.
    pub(crate) fn forget_all(&self) -> Vec<Node> {
        std::mem::take(&mut *self.lock()).into_keys().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_held_from_the_first_lookup_to_the_last_forget() {
        let lookups = Lookups::default();
        let node = |object| Node { branch: 0, object };
        assert_eq!([lookups.add(node(7)), lookups.add(node(7)), lookups.add(node(8))], [true, false, true]);
        assert_eq!([lookups.forget(node(7), 1), lookups.forget(node(7), 1)], [false, true]);
        assert_eq!([lookups.forget(node(7), 1), lookups.forget(node(9), 1)], [false, false]);
        assert_eq!((lookups.forget_all(), lookups.forget_all()), (vec![node(8)], vec![]));
    }
}

//! Lookup counts: files that the kernel knows stay, even if their last link is removed.
//!
//! The kernel refers to a file by its inode number from the first reply that names it until it forgets the number, and need
//! not open it meanwhile: a descriptor with `O_PATH`, which smbd uses for nearly everything, sends no OPEN. On a mount for a
//! file server, a file is therefore held from its first lookup until the kernel has forgotten all of them. Other mounts hold
//! open files alone: they would pay for each file in the kernel's cache. These holds do not make a dataset busy, because the
//! kernel keeps what it knows until it needs the memory.

use std::collections::BTreeMap;
use weir_machine::lock::{Mutex, MutexGuard};

use weir_files::tree::{Hold, Node};

/// The lookups of one file that the kernel has not forgotten.
struct Known<H> {
    count: u64,
    /// `None` until the first lookup holds the file, and for files that are not stored.
    hold: Option<H>,
}

/// The counts of one mount. There is one row per file in the kernel's inode cache, which the kernel bounds.
pub(crate) struct Lookups<H = Hold>(Mutex<BTreeMap<Node, Known<H>>>);

impl<H> Default for Lookups<H> {
    fn default() -> Self {
        Lookups(Mutex::default())
    }
}

impl<H> Lookups<H> {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Node, Known<H>>> {
        self.0.lock()
    }

    /// Counts a lookup. Returns whether the file must be held: at the first lookup, and when `is_void` says that the hold
    /// keeps nothing any more.
    pub(crate) fn add(&self, node: Node, is_void: impl Fn(&H) -> bool) -> bool {
        let mut all = self.lock();
        let known = all.entry(node).or_insert(Known { count: 0, hold: None });
        known.count += 1;
        known.count == 1 || known.hold.as_ref().is_some_and(is_void)
    }

    /// Whether the kernel has not forgotten a file.
    pub(crate) fn contains(&self, node: Node) -> bool {
        self.lock().contains_key(&node)
    }

    /// Keeps the hold of a file until the kernel has forgotten it. Returns the hold that must be released now: the one that
    /// it replaces, or itself if the kernel has forgotten the file already.
    pub(crate) fn keep(&self, node: Node, hold: H) -> Option<H> {
        match self.lock().get_mut(&node) {
            Some(known) => known.hold.replace(hold),
            None => Some(hold),
        }
    }

    /// Forgets lookups. Returns the hold that must be released, if none is left.
    pub(crate) fn forget(&self, node: Node, lookups: u64) -> Option<H> {
        let mut all = self.lock();
        let known = all.get_mut(&node)?;
        known.count = known.count.saturating_sub(lookups);
        if known.count > 0 {
            return None;
        }
        all.remove(&node).and_then(|known| known.hold)
    }

    /// Forgets everything, at the end of the mount. Returns the holds that must be released.
    pub(crate) fn forget_all(&self) -> Vec<H> {
        std::mem::take(&mut *self.lock()).into_values().filter_map(|known| known.hold).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_held_from_the_first_lookup_to_the_last_forget() {
        let lookups = Lookups::<u64>::default();
        let node = |object| Node { branch: 0, object };
        let add = |object| lookups.add(node(object), |_| false);
        assert_eq!([add(7), add(7), add(8)], [true, false, true]);
        assert_eq!([lookups.keep(node(7), 70), lookups.keep(node(8), 80)], [None, None]);
        assert_eq!([lookups.contains(node(7)), lookups.contains(node(9))], [true, false]);
        assert_eq!([lookups.forget(node(7), 1), lookups.forget(node(7), 1)], [None, Some(70)]);
        assert_eq!([lookups.forget(node(7), 1), lookups.forget(node(9), 1)], [None, None]);
        assert_eq!(lookups.keep(node(7), 71), Some(71), "the kernel has forgotten it meanwhile");
        assert_eq!((lookups.forget_all(), lookups.forget_all()), (vec![80], vec![]));
    }

    #[test]
    fn a_hold_that_keeps_nothing_is_replaced() {
        let lookups = Lookups::<u64>::default();
        let node = Node { branch: 0, object: 7 };
        assert!(lookups.add(node, |_| true) && lookups.keep(node, 1).is_none());
        assert!(lookups.add(node, |hold| *hold == 1), "its file system was rolled back");
        assert_eq!((lookups.keep(node, 2), lookups.add(node, |hold| *hold == 1)), (Some(1), false));
        assert_eq!(lookups.forget(node, 3), Some(2));
    }
}

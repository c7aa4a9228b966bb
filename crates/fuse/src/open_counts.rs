//! How many files and directories of each file system programs have open through a mount.
//!
//! The kernel says whether a mount is busy, not which of the file systems in it is.

use std::collections::BTreeMap;
use weir_machine::lock::{Mutex, MutexGuard};

/// Opens by the index of the file system in the tree. A row is there while something is open.
#[derive(Debug, Default)]
pub(crate) struct OpenCounts(Mutex<BTreeMap<u32, u64>>);

impl OpenCounts {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, u64>> {
        self.0.lock()
    }

    /// Counts an open.
    pub(crate) fn add(&self, branch: u32) {
        *self.lock().entry(branch).or_default() += 1;
    }

    /// Counts a close.
    pub(crate) fn remove(&self, branch: u32) {
        let mut counts = self.lock();
        let Some(count) = counts.get_mut(&branch) else { return };
        debug_assert!(*count > 0, "a row counts something");
        *count -= 1;
        if *count == 0 {
            counts.remove(&branch);
        }
    }

    /// Files and directories that are open now.
    pub(crate) fn count(&self, branch: u32) -> u64 {
        self.lock().get(&branch).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_are_counted_by_file_system() {
        let counts = OpenCounts::default();
        [1, 1, 2].into_iter().for_each(|branch| counts.add(branch));
        assert_eq!([counts.count(1), counts.count(2), counts.count(3)], [2, 1, 0]);
        [1, 2, 3].into_iter().for_each(|branch| counts.remove(branch));
        assert_eq!([counts.count(1), counts.count(2), counts.count(3)], [1, 0, 0]);
        assert_eq!(counts.lock().len(), 1);
    }
}

//! The opened file systems of a tree: a bounded number of idle ones stays open.
//!
//! A file system is opened when it is first accessed. Beyond [`MAX_OPENED`], those that were not accessed for longest are given
//! up (CLOCK: one bit per file system says whether it was accessed since it was last looked at). The next access opens such a
//! file system again; a writable one is the same as before while the engine has it open. So giving one up is always correct,
//! except for a snapshot whose files are held: the holds would be forgotten.

use super::Opened;
use super::namespace::{MountedDataset, Namespace};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weir_machine::lock::Mutex;

/// Number of opened file systems that a tree keeps although they are idle.
pub(super) const MAX_OPENED: usize = 128;

/// The indices of opened file systems, in the order in which they are looked at.
#[derive(Default)]
pub(super) struct OpenedBranches(Mutex<VecDeque<u32>>);

impl OpenedBranches {
    /// Adds a file system that was just opened, and gives up idle ones beyond the bound.
    pub fn add(&self, index: u32, namespace: &Namespace) {
        let mut beyond = {
            let mut all = self.0.lock();
            all.push_back(index);
            all.len().saturating_sub(MAX_OPENED)
        };
        // At most two looks at each file system: the first may only clear its bit.
        let mut left = 2 * (MAX_OPENED + beyond);
        while beyond > 0 && left > 0 {
            left -= 1;
            let Some(next) = self.0.lock().pop_front() else { return };
            let is_gone = next != index && namespace.branch(next).is_none_or(|branch| give_up(branch));
            if is_gone {
                beyond -= 1;
            } else {
                self.0.lock().push_back(next);
            }
        }
    }
}

/// Gives up a file system unless it was accessed lately or is in use. Returns whether it is not open any more.
fn give_up(branch: &MountedDataset) -> bool {
    let mut opened = branch.opened.lock();
    let Some(Opened::Files(files)) = &*opened else { return true };
    if branch.accessed.swap(false, Ordering::Relaxed) || files.has_holds() {
        return false;
    }
    // References are made under this lock alone: nothing can begin to hold a file of a snapshot that only the tree refers to.
    if !files.is_writable() && Arc::strong_count(files) > 1 {
        return false;
    }
    let given_up = opened.take();
    // Closing it takes locks of its own.
    drop(opened);
    drop(given_up);
    true
}

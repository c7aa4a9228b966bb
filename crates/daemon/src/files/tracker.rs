//! Changes of a file that overlap.
//!
//! A client keeps its cache after its own change if the attributes before the change match the cache (RFC 1813, 2.6: weak
//! cache consistency). That is correct only if nothing else changed the file between the reading of these attributes and the
//! change. So each change of a file is registered here while it runs, and reports the attributes before it only if no other
//! change of the same file overlapped it. Otherwise it reports none, and the client revalidates its cache. No lock is held
//! across an await.
//!
//! Changes through a mount of the same pool are not tracked here.

use std::collections::BTreeMap;
use weir_machine::lock::Mutex;

use weir_files::tree::Node;

/// The running changes by file.
#[derive(Debug, Default)]
pub(super) struct ChangeTracker(Mutex<BTreeMap<Node, RunningChanges>>);

#[derive(Debug, Default)]
struct RunningChanges {
    count: u32,
    /// Whether two changes overlapped since the count was last 0.
    overlapped: bool,
}

/// A running change; unregistered on drop.
#[derive(Debug)]
pub(super) struct TrackedChange<'a> {
    tracker: &'a ChangeTracker,
    node: Node,
}

impl ChangeTracker {
    /// Registers a change of a file, before its attributes are read.
    pub(super) fn begin(&self, node: Node) -> TrackedChange<'_> {
        let mut all = self.0.lock();
        let running = all.entry(node).or_default();
        running.count += 1;
        running.overlapped |= running.count > 1;
        TrackedChange { tracker: self, node }
    }
}

impl TrackedChange<'_> {
    /// Whether no other change overlapped this one so far. Call it after the "after" attributes were read.
    pub(super) fn was_exclusive(&self) -> bool {
        let all = self.tracker.0.lock();
        all.get(&self.node).is_some_and(|running| !running.overlapped)
    }
}

impl Drop for TrackedChange<'_> {
    fn drop(&mut self) {
        let mut all = self.tracker.0.lock();
        if let Some(running) = all.get_mut(&self.node) {
            running.count -= 1;
            if running.count == 0 {
                all.remove(&self.node);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_changes_have_no_before_attributes() {
        let changes = ChangeTracker::default();
        let one = Node { branch: 0, object: 5 };
        let other = Node { branch: 1, object: 5 };
        let first = changes.begin(one);
        let apart = changes.begin(other);
        assert!(first.was_exclusive() && apart.was_exclusive());
        let second = changes.begin(one);
        drop(first);
        assert!(!second.was_exclusive());
        let third = changes.begin(one);
        drop(second);
        assert!(!third.was_exclusive());
        drop(third);
        assert!(changes.begin(one).was_exclusive());
        drop(apart);
        assert!(changes.0.lock().is_empty());
    }
}

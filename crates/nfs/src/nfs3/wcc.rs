//! Weak cache consistency: attributes of a file just before a change (RFC 1813, 2.6).
//!
//! If the "before" attributes match its cache, a client keeps the cache after its own change. That is correct only if
//! nothing else changed the file between the reading of "before" and the change. So each change of a file is
//! registered here while it runs, and returns "before" only if no other change of the same file overlapped it.
//! Otherwise it returns none, as the protocol allows, and the client revalidates its cache. No lock is held across an
//! await.
//!
//! WccTracker by other front ends of the same process are not tracked here.

use super::ResolvedFile;
use crate::wire::Encoder;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use weir_files::tree::Node;

/// The running changes by file.
#[derive(Debug, Default)]
pub(crate) struct WccTracker(Mutex<BTreeMap<Node, RunningChanges>>);

#[derive(Debug, Default)]
struct RunningChanges {
    count: u32,
    /// Whether two changes overlapped since the count was last 0.
    overlapped: bool,
}

/// A running change; unregistered on drop.
#[derive(Debug)]
pub(crate) struct TrackedChange<'a> {
    tracker: &'a WccTracker,
    node: Node,
}

impl WccTracker {
    /// Registers a change of a file, before its attributes are read.
    pub(crate) fn begin(&self, node: Node) -> TrackedChange<'_> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let running = all.entry(node).or_default();
        running.count += 1;
        running.overlapped |= running.count > 1;
        TrackedChange { tracker: self, node }
    }
}

impl TrackedChange<'_> {
    /// Whether no other change overlapped this one so far. Call it after the "after" attributes were read.
    pub(crate) fn was_exclusive(&self) -> bool {
        let all = self.tracker.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&self.node).is_some_and(|running| !running.overlapped)
    }
}

impl Drop for TrackedChange<'_> {
    fn drop(&mut self) {
        let mut all = self.tracker.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = all.get_mut(&self.node) {
            running.count -= 1;
            if running.count == 0 {
                all.remove(&self.node);
            }
        }
    }
}

/// Attributes before and after a change (`wcc_data`).
#[derive(Debug, Default)]
pub(crate) struct WccData {
    /// Attributes before the change, if they are certain.
    pub(crate) before: Option<ResolvedFile>,
    /// Attributes now.
    pub(crate) after: Option<ResolvedFile>,
}

impl WccData {
    /// For a file that was not changed.
    pub(crate) fn unchanged(found: Option<ResolvedFile>) -> Self {
        WccData { before: None, after: found }
    }

    /// Encodes `wcc_data`.
    pub(crate) fn put(&self, out: &mut Encoder) {
        out.bool(self.before.is_some());
        if let Some(before) = &self.before {
            out.u64(before.attributes.size_bytes);
            super::time(out, before.attributes.mtime_ns);
            super::time(out, before.attributes.ctime_ns);
        }
        super::post_op(out, self.after.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_changes_have_no_before_attributes() {
        let changes = WccTracker::default();
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
        assert!(changes.0.lock().unwrap().is_empty());
    }
}

//! Weak cache consistency: what a file was like just before a change (RFC 1813, 2.6).
//!
//! A client that finds its own idea of a file in "before" may go on believing its cache after its own change. That is
//! only true if nobody else changed the file between "before" and the change. So each change of a file notes itself here
//! for as long as it runs, and tells "before" only if no other one was under way at any time of it; else it tells none,
//! as the protocol allows, and the client asks again. No lock is held while anything waits.
//!
//! Changes that come through another door of the same process are not seen here.

use super::Found;
use crate::wire::Encoder;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use weir_files::tree::Node;

/// The changes under way.
#[derive(Debug, Default)]
pub(crate) struct Changes(Mutex<BTreeMap<Node, Running>>);

#[derive(Debug, Default)]
struct Running {
    count: u32,
    /// Two of them overlapped since the file was last alone.
    overlapped: bool,
}

/// A change under way.
#[derive(Debug)]
pub(crate) struct Change<'a> {
    all: &'a Changes,
    node: Node,
}

impl Changes {
    /// Notes a change of a file, before anything of the file is looked at.
    pub(crate) fn begin(&self, node: Node) -> Change<'_> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let running = all.entry(node).or_default();
        running.count += 1;
        running.overlapped |= running.count > 1;
        Change { all: self, node }
    }
}

impl Change<'_> {
    /// Whether no other change was under way since this one began. Asked after "after" was read.
    pub(crate) fn was_alone(&self) -> bool {
        let all = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&self.node).is_some_and(|running| !running.overlapped)
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let mut all = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = all.get_mut(&self.node) {
            running.count -= 1;
            if running.count == 0 {
                all.remove(&self.node);
            }
        }
    }
}

/// A file before and after a change, for `wcc_data`.
#[derive(Debug, Default)]
pub(crate) struct Weak {
    /// As it was, where that is certain.
    pub(crate) before: Option<Found>,
    /// As it is now.
    pub(crate) after: Option<Found>,
}

impl Weak {
    /// A file that was not changed.
    pub(crate) fn unchanged(found: Option<Found>) -> Self {
        Weak { before: None, after: found }
    }

    /// Writes `wcc_data`.
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
    fn changes_that_overlap_know_it_and_later_ones_do_not() {
        let changes = Changes::default();
        let (one, other) = (Node { branch: 0, object: 5 }, Node { branch: 1, object: 5 });
        let first = changes.begin(one);
        let apart = changes.begin(other);
        assert!(first.was_alone() && apart.was_alone());
        let second = changes.begin(one);
        drop(first);
        assert!(!second.was_alone());
        let third = changes.begin(one);
        drop(second);
        assert!(!third.was_alone());
        drop(third);
        assert!(changes.begin(one).was_alone());
        drop(apart);
        assert!(changes.0.lock().unwrap().is_empty());
    }
}

//! Progress of a change that consists of many sync tasks, and the author's wish to end it.
//!
//! ```text
//!   author ── cancel ─► ChangeMonitor ◄── check before each sync task ── change
//!          ◄─ progress ─             ◄── parts that are done ──────────
//! ```
//!
//! A sync task is atomic, so a change that is canceled ends between two of them: what was destroyed is gone, the rest is
//! untouched. As in OpenZFS, whose `zfs destroy -r` can be interrupted between datasets, snapshots that go together are one task.

use crate::refusal::{Refusal, RefusalKind};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How far a change has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeProgress {
    /// Number of datasets and snapshots that are destroyed.
    pub done: u64,
    /// Number of all datasets and snapshots of the change.
    pub all: u64,
}

/// A change in progress, shared by who carries it out and who waits for it.
#[derive(Clone, Debug, Default)]
pub struct ChangeMonitor(Arc<MonitorState>);

#[derive(Debug, Default)]
struct MonitorState {
    is_canceled: AtomicBool,
    done: AtomicU64,
    all: AtomicU64,
}

impl ChangeMonitor {
    /// Ends the change before its next sync task.
    pub fn cancel(&self) {
        self.0.is_canceled.store(true, Ordering::Relaxed);
    }

    /// Progress; `None` before it is known of how many parts the change consists.
    pub fn progress(&self) -> Option<ChangeProgress> {
        let all = self.0.all.load(Ordering::Relaxed);
        (all > 0).then(|| ChangeProgress { done: self.0.done.load(Ordering::Relaxed), all })
    }

    /// Fails if the change was canceled.
    ///
    /// # Errors
    /// [`RefusalKind::Canceled`] with the number of parts that are done.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        if !self.0.is_canceled.load(Ordering::Relaxed) {
            return Ok(());
        }
        let why = match self.progress() {
            None => "canceled before anything was destroyed".to_owned(),
            Some(ChangeProgress { done, all }) => {
                format!("canceled; {done} of {all} datasets and snapshots are destroyed")
            }
        };
        Err(Refusal::new(RefusalKind::Canceled, why))
    }

    /// Whether the change is canceled.
    pub fn is_canceled(&self) -> bool {
        self.0.is_canceled.load(Ordering::Relaxed)
    }

    /// Sets the number of parts that are left; those that are done count in addition.
    pub(crate) fn plan(&self, left: usize) {
        self.0.all.store(self.0.done.load(Ordering::Relaxed) + left as u64, Ordering::Relaxed);
    }

    /// Counts parts that are done.
    pub(crate) fn advance(&self, parts: usize) {
        let done = self.0.done.fetch_add(parts as u64, Ordering::Relaxed) + parts as u64;
        debug_assert!(done <= self.0.all.load(Ordering::Relaxed), "more is destroyed than was planned");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_canceled_change_says_how_far_it_came() {
        let monitor = ChangeMonitor::default();
        assert_eq!((monitor.progress(), monitor.check()), (None, Ok(())));
        let same = monitor.clone();
        same.plan(3);
        same.advance(1);
        assert_eq!((monitor.progress(), monitor.check()), (Some(ChangeProgress { done: 1, all: 3 }), Ok(())));
        // Planned again, with one more.
        same.plan(3);
        monitor.cancel();
        let refusal = same.check().unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::Canceled);
        assert_eq!(refusal.why, "canceled; 1 of 4 datasets and snapshots are destroyed");
        let early = ChangeMonitor::default();
        early.cancel();
        assert_eq!(early.check().unwrap_err().why, "canceled before anything was destroyed");
    }
}

//! Locks of ranges of a unit: commands that compare and change blocks exclude other changes of the same blocks, so that they
//! are atomic. Plain writes exclude only those commands, not each other.

use std::ops::Range;
use weir_machine::lock::{Mutex, MutexGuard};

use tokio::sync::Notify;

struct LockedRange {
    id: u64,
    range: Range<u64>,
    is_exclusive: bool,
}

#[derive(Default)]
struct State {
    held: Vec<LockedRange>,
    next: u64,
}

/// The locks of one unit.
#[derive(Default)]
pub struct RangeLocks {
    state: Mutex<State>,
    released: Notify,
}

/// A locked range; unlocked when dropped.
pub struct RangeLock<'a> {
    locks: &'a RangeLocks,
    id: u64,
}

impl RangeLocks {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Locks a range against exclusive holders.
    pub async fn shared(&self, range: Range<u64>) -> RangeLock<'_> {
        self.lock(range, false).await
    }

    /// Locks a range against all other holders.
    pub async fn exclusive(&self, range: Range<u64>) -> RangeLock<'_> {
        self.lock(range, true).await
    }

    async fn lock(&self, range: Range<u64>, is_exclusive: bool) -> RangeLock<'_> {
        loop {
            // The waiter is registered before the table is read: a release in between wakes it.
            let released = self.released.notified();
            {
                let mut state = self.state();
                let overlaps = |held: &LockedRange| held.range.start < range.end && range.start < held.range.end;
                let conflicts = |held: &LockedRange| (is_exclusive || held.is_exclusive) && overlaps(held);
                if !state.held.iter().any(conflicts) {
                    let id = state.next;
                    state.next += 1;
                    state.held.push(LockedRange { id, range, is_exclusive });
                    return RangeLock { locks: self, id };
                }
            }
            released.await;
        }
    }
}

impl Drop for RangeLock<'_> {
    fn drop(&mut self) {
        let mut state = self.locks.state();
        let before = state.held.len();
        state.held.retain(|held| held.id != self.id);
        debug_assert_eq!(state.held.len() + 1, before, "a lock is released once");
        drop(state);
        self.locks.released.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn only_exclusive_holders_exclude() {
        let locks = RangeLocks::default();
        let first = locks.shared(0..10).now_or_never().unwrap();
        let second = locks.shared(5..15).now_or_never().unwrap();
        let apart = locks.exclusive(15..20).now_or_never().unwrap();
        let mut waiting = Box::pin(locks.exclusive(9..10));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(first);
        assert!(waiting.as_mut().now_or_never().is_none(), "the second one overlaps, too");
        drop(second);
        let held = waiting.now_or_never().unwrap();
        assert!(locks.shared(9..11).now_or_never().is_none());
        drop((held, apart));
        assert!(locks.exclusive(0..100).now_or_never().is_some());
    }
}

//! Byte range locks: changes of overlapping ranges are serialised, so that the intent log records them in the order
//! in which they are made. Changes of other ranges run concurrently.

use futures_channel::oneshot;
use std::ops::Range;
use weir_machine::lock::{Mutex, MutexGuard};

#[derive(Default)]
struct State {
    held: Vec<(u64, Range<u64>)>,
    waiting: Vec<oneshot::Sender<()>>,
    next: u64,
}

/// The range locks of one volume.
#[derive(Default)]
pub(crate) struct RangeLocks(Mutex<State>);

/// A locked range; unlocked when dropped.
pub(crate) struct RangeLock<'a> {
    ranges: &'a RangeLocks,
    id: u64,
}

impl RangeLocks {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Locks a range; waits while an overlapping range is locked.
    pub async fn lock(&self, range: Range<u64>) -> RangeLock<'_> {
        loop {
            let waiting = {
                let mut state = self.state();
                let overlaps = |held: &Range<u64>| held.start < range.end && range.start < held.end;
                if !state.held.iter().any(|(_, held)| overlaps(held)) {
                    state.next += 1;
                    let id = state.next;
                    state.held.push((id, range));
                    return RangeLock { ranges: self, id };
                }
                let (sender, waiting) = oneshot::channel();
                state.waiting.push(sender);
                waiting
            };
            let _ = waiting.await;
        }
    }
}

impl Drop for RangeLock<'_> {
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.ranges.state();
            state.held.retain(|(id, _)| *id != self.id);
            std::mem::take(&mut state.waiting)
        };
        for sender in waiting {
            // The waiter may have been dropped.
            let _ = sender.send(());
        }
    }
}

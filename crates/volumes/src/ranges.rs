//! Locks of byte ranges: changes of overlapping ranges go one after the other, so that the intent log has them in the
//! order in which they were done; others go at the same time.

use futures_channel::oneshot;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Default)]
struct State {
    held: Vec<(u64, Range<u64>)>,
    waiting: Vec<oneshot::Sender<()>>,
    next: u64,
}

/// The locks of one volume.
#[derive(Default)]
pub(crate) struct Ranges(Mutex<State>);

/// A range, locked.
pub(crate) struct Held<'a> {
    ranges: &'a Ranges,
    id: u64,
}

impl Ranges {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks a range; waits while another that overlaps it is locked.
    pub async fn lock(&self, range: Range<u64>) -> Held<'_> {
        loop {
            let waiting = {
                let mut state = self.state();
                let overlaps = |held: &Range<u64>| held.start < range.end && range.start < held.end;
                if !state.held.iter().any(|(_, held)| overlaps(held)) {
                    state.next += 1;
                    let id = state.next;
                    state.held.push((id, range));
                    return Held { ranges: self, id };
                }
                let (tell, waiting) = oneshot::channel();
                state.waiting.push(tell);
                waiting
            };
            let _ = waiting.await;
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.ranges.state();
            state.held.retain(|(id, _)| *id != self.id);
            std::mem::take(&mut state.waiting)
        };
        for tell in waiting {
            // One that went away needs no answer.
            let _ = tell.send(());
        }
    }
}

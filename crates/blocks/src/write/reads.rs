//! Reads under way hold back the reuse of space.
//!
//! A pointer is right when a read begins, and its block may be freed while the read goes on; transaction groups can be
//! milliseconds short, so that the space would be free again, taken and written to before a slow disk has answered. A
//! mirror of which one side has been overwritten and the other not yet would then *prove* the old bytes, and putting the
//! first side right by them would destroy the new block.
//!
//! ```text
//!   read begins, s is the last group on stable storage ────────────────► read ends
//!          what groups after s give back stays unused until then
//! ```
//!
//! So what a read found at its place when it began stays there until it ends. Whether it is *its* block is another
//! question, for a pointer may be older than the read: [`crate::alloc::Allocator::standing`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_format::Txg;

#[derive(Debug, Default)]
struct State {
    /// The last group on stable storage.
    synced: Txg,
    /// How many reads began after which group was synced.
    under_way: BTreeMap<Txg, u64>,
}

/// The reads under way.
#[derive(Debug, Default)]
pub(crate) struct Reads(Mutex<State>);

/// Keeps the space of every block that is in use now from being used again, until it is dropped. Whoever walks over a pool
/// open for writing holds one from before it looks up pointers until it has read what they lead to.
#[derive(Debug)]
#[must_use]
pub struct ReadHold {
    reads: Arc<Reads>,
    began: Txg,
}

impl Drop for ReadHold {
    fn drop(&mut self) {
        let mut state = self.reads.state();
        if let Some(count) = state.under_way.get_mut(&self.began) {
            *count -= 1;
            if *count == 0 {
                state.under_way.remove(&self.began);
            }
        }
    }
}

impl Reads {
    /// Held only for a few instructions.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn begin(self: &Arc<Self>) -> ReadHold {
        let mut state = self.state();
        let began = state.synced;
        *state.under_way.entry(began).or_default() += 1;
        drop(state);
        ReadHold { reads: self.clone(), began }
    }

    /// Takes note that `txg` is on stable storage. Gives the last group whose frees no read is in the way of, and the last
    /// one that was synced when the oldest read began. A read that begins later can only find what is free by then.
    pub fn synced(&self, txg: Txg) -> Txg {
        let mut state = self.state();
        state.synced = state.synced.max(txg);
        let synced = state.synced;
        state.under_way.first_key_value().map_or(synced, |(&began, _)| began)
    }
}

//! Reads in progress delay the reuse of space.
//!
//! A pointer is valid when a read begins, but its block may be freed during the read. Txgs can take only milliseconds, so
//! the space could be free again, allocated and overwritten before a slow disk has answered. If then one side of a mirror
//! is overwritten and the other not yet, the checksum accepts the old bytes of the second side, and a self-heal of the
//! first side would destroy the new block.
//!
//! ```text
//!   read begins, s is the last synced txg ────────────────► read ends
//!          space freed in txgs after s is not reused until then
//! ```
//!
//! So the bytes at an address when a read begins stay there until it ends. They need not belong to the pointer's block,
//! because a pointer may be older than the read; see [`crate::alloc::Allocator::alloc_status`].

use std::collections::BTreeMap;
use std::sync::Arc;
use weir_format::Txg;
use weir_machine::invariant;
use weir_machine::lock::{Mutex, MutexGuard, order};

#[derive(Debug, Default)]
struct State {
    /// The last synced txg.
    synced: Txg,
    /// Number of reads in progress, by the txg that was the last synced one when they began.
    in_progress: BTreeMap<Txg, u64>,
}

/// The reads in progress.
#[derive(Debug, Default)]
pub(crate) struct Reads(Mutex<State, { order::READ_HOLDS }>);

/// Delays the reuse of all blocks that are allocated when it is created, until it is dropped. A traversal of a pool that is
/// open for writing holds one from before it looks up pointers until it has read their blocks.
#[derive(Debug)]
#[must_use]
pub struct ReadHold {
    reads: Arc<Reads>,
    began: Txg,
}

impl Drop for ReadHold {
    fn drop(&mut self) {
        let mut state = self.reads.state();
        let known = state.in_progress.get_mut(&self.began);
        invariant!(known.as_ref().is_some_and(|count| **count > 0), "a read ends that did not begin");
        if let Some(count) = known {
            *count -= 1;
            if *count == 0 {
                state.in_progress.remove(&self.began);
            }
        }
    }
}

impl Reads {
    /// Locks the state; the lock is held for a few instructions.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    pub fn begin(self: &Arc<Self>) -> ReadHold {
        let mut state = self.state();
        let began = state.synced;
        *state.in_progress.entry(began).or_default() += 1;
        drop(state);
        ReadHold { reads: self.clone(), began }
    }

    /// Whether all reads and writes in progress began after `txg` was synced.
    pub fn all_began_since(&self, txg: Txg) -> bool {
        let state = self.state();
        state.synced >= txg && state.in_progress.first_key_value().is_none_or(|(&began, _)| began >= txg)
    }

    /// The last synced txg when the oldest read or write in progress began, if there is one.
    pub fn oldest(&self) -> Option<Txg> {
        self.state().in_progress.first_key_value().map(|(&began, _)| began)
    }

    /// Records that `txg` has synced. Returns the last txg whose frees no read delays: the last synced one when the oldest
    /// read in progress began.
    pub fn synced(&self, txg: Txg) -> Txg {
        let mut state = self.state();
        state.synced = state.synced.max(txg);
        let synced = state.synced;
        state.in_progress.first_key_value().map_or(synced, |(&began, _)| began)
    }
}

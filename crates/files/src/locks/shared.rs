//! The lock table for concurrent callers, some of which wait.

use super::{
    Conflict, LockClient, LockError, LockOutcome, LockOwner, LockRange, LockRequest, LockTable, LockedFile, Share,
    WaitId,
};
use futures_channel::oneshot;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use weir_machine::lock::Mutex;

/// Called when a request that waited is granted: the owner holds the lock then. It runs outside the table's lock and must not
/// block.
pub type GrantCallback = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    table: LockTable,
    callbacks: BTreeMap<WaitId, GrantCallback>,
}

/// The locks of a pool's files.
#[derive(Default)]
pub struct Locks {
    state: Mutex<State>,
    mounts: AtomicU64,
}

/// Answer to a request that may wait.
pub enum Requested {
    /// The owner holds the lock.
    Granted,
    /// The owner holds the lock when this completes.
    Waits(LockWait),
}

/// A request that waits; it is ended by dropping this before it completes.
pub struct LockWait {
    locks: Arc<Locks>,
    file: LockedFile,
    id: WaitId,
    granted: oneshot::Receiver<()>,
    is_done: bool,
}

impl Future for LockWait {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let polled = Pin::new(&mut self.granted).poll(cx);
        // An error means that the request was ended with all of its client.
        self.is_done |= polled.is_ready();
        polled.map(|_| ())
    }
}

impl Drop for LockWait {
    fn drop(&mut self) {
        if !self.is_done {
            self.locks.cancel(self.file, self.id);
        }
    }
}

impl Locks {
    /// A number for a mount, which no other mount of these locks has.
    pub fn mount(&self) -> u64 {
        self.mounts.fetch_add(1, Ordering::Relaxed)
    }

    /// Executes a step on the table, then runs the callbacks of the requests that it granted.
    fn step<T>(&self, step: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let done = step(&mut state);
        let granted = state.table.take_granted();
        let callbacks: Vec<_> = granted.iter().filter_map(|id| state.callbacks.remove(id)).collect();
        drop(state);
        callbacks.into_iter().for_each(|callback| callback());
        done
    }

    /// See [`LockTable::test`].
    pub fn test(&self, file: LockedFile, owner: &LockOwner, request: LockRequest) -> Option<Conflict> {
        self.step(|state| state.table.test(file, owner, request))
    }

    /// Locks a range. With a callback it waits if another lock is in the way; a callback of an equal request that waits
    /// already is replaced.
    ///
    /// # Errors
    /// As [`LockTable::lock`].
    pub fn lock(
        &self,
        file: LockedFile,
        owner: &LockOwner,
        request: LockRequest,
        granted: Option<GrantCallback>,
    ) -> Result<LockOutcome, LockError> {
        self.step(|state| {
            let outcome = state.table.lock(file, owner, request, granted.is_some())?;
            if let (LockOutcome::Waiting(id), Some(granted)) = (&outcome, granted) {
                state.callbacks.insert(*id, granted);
            }
            Ok(outcome)
        })
    }

    /// Locks a range, waiting as long as another lock is in the way.
    ///
    /// # Errors
    /// As [`LockTable::lock`].
    pub fn lock_or_wait(
        self: &Arc<Self>,
        file: LockedFile,
        owner: &LockOwner,
        request: LockRequest,
    ) -> Result<Requested, LockError> {
        let (sender, granted) = oneshot::channel();
        // The receiver is gone if the wait was ended at the same moment.
        let callback: GrantCallback = Box::new(move || {
            let _ = sender.send(());
        });
        Ok(match self.lock(file, owner, request, Some(callback))? {
            LockOutcome::Waiting(id) => {
                Requested::Waits(LockWait { locks: self.clone(), file, id, granted, is_done: false })
            }
            LockOutcome::Granted | LockOutcome::Denied(_) => Requested::Granted,
        })
    }

    /// See [`LockTable::unlock`].
    ///
    /// # Errors
    /// As [`LockTable::unlock`].
    pub fn unlock(&self, file: LockedFile, owner: &LockOwner, range: LockRange) -> Result<(), LockError> {
        self.step(|state| state.table.unlock(file, owner, range))
    }

    fn cancel(&self, file: LockedFile, id: WaitId) -> bool {
        self.step(|state| {
            state.callbacks.remove(&id);
            state.table.cancel(file, id)
        })
    }

    /// Ends a waiting request; false if there is none that equals this one.
    pub fn cancel_request(&self, file: LockedFile, owner: &LockOwner, request: LockRequest) -> bool {
        self.step(|state| {
            let Some(id) = state.table.waiter(file, owner, request) else { return false };
            state.callbacks.remove(&id);
            state.table.cancel(file, id)
        })
    }

    /// Releases everything of a client and ends its waiting requests.
    pub fn release_client(&self, client: &LockClient) {
        self.step(|state| {
            for id in state.table.release_client(client) {
                state.callbacks.remove(&id);
            }
        });
    }

    /// See [`LockTable::share`].
    ///
    /// # Errors
    /// As [`LockTable::share`].
    pub fn share(&self, file: LockedFile, share: Share) -> Result<bool, LockError> {
        self.step(|state| state.table.share(file, share))
    }

    /// See [`LockTable::unshare`].
    pub fn unshare(&self, file: LockedFile, owner: &LockOwner) {
        self.step(|state| state.table.unshare(file, owner));
    }

    /// Whether a client has a lock, a reservation or a waiting request.
    pub fn has_client(&self, client: &LockClient) -> bool {
        self.step(|state| state.table.has_client(client))
    }

    /// Clients with a lock, a reservation or a waiting request.
    pub fn clients(&self) -> Vec<LockClient> {
        self.step(|state| state.table.clients())
    }

    /// Number of held ranges and reservations.
    pub fn len(&self) -> usize {
        self.step(|state| state.table.len())
    }

    /// Number of waiting requests.
    pub fn waiting(&self) -> usize {
        self.step(|state| state.table.waiting())
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

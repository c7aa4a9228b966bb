//! Transaction groups (txgs): changes that become stable together.
//!
//! ```text
//!   open (n)  ──quiesce──►  quiescing (n-1) ──holds gone──►  syncing (n-1) ──uberblock──►  synced (n-1)
//!     ▲ Tx: a hold            no new holds                     only the syncer
//! ```
//!
//! A [`Tx`] is a hold on the open txg: everything that is changed under one `Tx` becomes stable in the same txg, or is
//! lost as a whole. Dropping it releases the hold. There is no abort: a caller checks first, and then changes.
//!
//! *Order.* The holder of a `Tx` may wait for blocks to be read, but not for another transaction, a sync of a txg, or
//! the intent log, because these could be waiting for its hold.
//!
//! *Failure.* When a txg cannot be synced ([`TxgTracker::fail`]), no later one can be. All waiters get the error, and
//! no new transaction begins. Txgs that were synced stay stable.
//!
//! Source: OpenZFS `module/zfs/txg.c`.

use crate::error::ObjectError;
use futures_channel::oneshot;
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_format::Txg;
use weir_machine::lock::{Mutex, MutexGuard, order};
use weir_machine::{Origin, invariant};

type Waiters = Vec<oneshot::Sender<()>>;

#[derive(Default)]
struct State {
    open: u64,
    synced: u64,
    holds: BTreeMap<u64, u64>,
    /// Transactions that have begun in the open txg.
    begun: u64,
    dirty_bytes: BTreeMap<u64, u64>,
    freed_blocks: BTreeMap<u64, u64>,
    /// Waiters for a txg to open.
    opened: BTreeMap<u64, Waiters>,
    quiesced: BTreeMap<u64, Waiters>,
    stable: BTreeMap<u64, Waiters>,
    /// Youngest txg with a waiter, and the waiters that watch it.
    sync_requested: u64,
    on_request: Waiters,
    failed: Option<Arc<str>>,
    /// `failed` says that the pool was closed: nothing went wrong.
    ended: bool,
}

/// Transaction groups of one pool.
pub struct TxgTracker(Mutex<State, { order::TXGS }>);

/// A hold on a txg.
pub struct Tx {
    txg: Txg,
    txgs: Option<Arc<TxgTracker>>,
    logged: bool,
    writer: Origin,
}

impl Tx {
    /// Txg of the transaction.
    pub fn txg(&self) -> Txg {
        self.txg
    }

    /// Transaction in the txg that is being synced: only for the syncer, which knows when it ends.
    pub fn of_syncing(txg: Txg) -> Tx {
        Tx { txg, txgs: None, logged: true, writer: Origin::POOL }
    }

    /// Sets the origin of the transaction's changes.
    pub(crate) fn with_writer(mut self, writer: Origin) -> Tx {
        self.writer = writer;
        self
    }

    /// Origin of the transaction's changes.
    pub fn writer(&self) -> Origin {
        self.writer
    }

    /// Excludes this transaction from the intent log, because its changes are unreachable after a crash.
    pub fn mark_unlogged(&mut self) {
        self.logged = false;
    }

    /// Whether the intent log records the transaction.
    pub fn is_logged(&self) -> bool {
        self.logged
    }

    /// Whether this is a transaction of the syncer.
    pub(crate) fn is_syncing(&self) -> bool {
        self.txgs.is_none()
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        if let Some(txgs) = &self.txgs {
            txgs.release(self.txg);
        }
    }
}

fn wake(waiters: Waiters) {
    for waiter in waiters {
        // A waiter that is gone needs no answer.
        let _ = waiter.send(());
    }
}

impl TxgTracker {
    /// Transaction groups of a pool whose last synced txg is `synced`; the following one is open.
    pub fn new(synced: Txg) -> Arc<Self> {
        Arc::new(TxgTracker(Mutex::new(State { open: synced.0 + 1, synced: synced.0, ..State::default() })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Returns the open txg.
    pub fn open(&self) -> Txg {
        Txg(self.state().open)
    }

    /// Number of transactions that have begun in the open txg.
    pub fn begun(&self) -> u64 {
        self.state().begun
    }

    /// Returns the last synced txg.
    pub fn last_synced(&self) -> Txg {
        Txg(self.state().synced)
    }

    /// Holds the open txg regardless of the pool's limits, which [`crate::live::TxAdmission`] enforces.
    ///
    /// # Errors
    /// [`ObjectError::Suspended`] once a txg could not be synced.
    pub fn hold(self: &Arc<Self>) -> Result<Tx, ObjectError> {
        let mut state = self.state();
        if let Some(why) = &state.failed {
            return Err(ObjectError::Suspended { why: why.to_string() });
        }
        let open = state.open;
        *state.holds.entry(open).or_default() += 1;
        state.begun += 1;
        Ok(Tx { txg: Txg(open), txgs: Some(self.clone()), logged: true, writer: Origin::POOL })
    }

    fn release(&self, txg: Txg) {
        let waiters = {
            let mut state = self.state();
            let holds = state.holds.get_mut(&txg.0);
            let left = holds.as_ref().and_then(|n| n.checked_sub(1));
            invariant!(left.is_some(), "txg {} is released without a hold", txg.0);
            let left = left.unwrap_or(0);
            if let Some(n) = holds.filter(|_| left > 0) {
                *n = left;
                return;
            }
            state.holds.remove(&txg.0);
            state.quiesced.remove(&txg.0).unwrap_or_default()
        };
        wake(waiters);
    }

    /// Closes the open txg, opens its successor, waits until the closed one has no holds, and returns it. Only the
    /// syncer calls this, one call at a time.
    pub async fn quiesce(&self) -> Txg {
        let (txg, opened) = {
            let mut state = self.state();
            state.open += 1;
            state.begun = 0;
            invariant!(state.open > state.synced + 1, "txg {} opens after {} has synced", state.open, state.synced);
            let open = state.open;
            let later = state.opened.split_off(&(open + 1));
            (open - 1, std::mem::replace(&mut state.opened, later))
        };
        opened.into_values().for_each(wake);
        loop {
            let waiting = {
                let mut state = self.state();
                if !state.holds.contains_key(&txg) {
                    return Txg(txg);
                }
                let (tell, waiting) = oneshot::channel();
                state.quiesced.entry(txg).or_default().push(tell);
                waiting
            };
            let _ = waiting.await;
        }
    }

    /// Marks the txg as synced: it is on stable storage.
    pub fn synced(&self, txg: Txg) {
        let waiters = {
            let mut state = self.state();
            invariant!(txg.0 > state.synced && txg.0 < state.open, "txg {} synced after {}", txg.0, state.synced);
            invariant!(!state.holds.contains_key(&txg.0), "txg {} synced with transactions in it", txg.0);
            state.synced = txg.0;
            state.dirty_bytes.retain(|unsynced, _| *unsynced > txg.0);
            state.freed_blocks.retain(|unsynced, _| *unsynced > txg.0);
            let later = state.stable.split_off(&(txg.0 + 1));
            std::mem::replace(&mut state.stable, later)
        };
        waiters.into_values().for_each(wake);
    }

    /// Marks the txg as failed: no txg is synced from now on.
    pub fn fail(&self, why: &str) {
        let waiters = {
            let mut state = self.state();
            state.failed.get_or_insert_with(|| why.into());
            [std::mem::take(&mut state.stable), std::mem::take(&mut state.opened)]
        };
        waiters.into_iter().flat_map(BTreeMap::into_values).for_each(wake);
    }

    /// Marks the end of the pool: its last txg is synced, and waiters of later ones get an error.
    pub fn end(&self, why: &str) {
        {
            let mut state = self.state();
            state.ended |= state.failed.is_none();
        }
        self.fail(why);
    }

    /// The reason why the pool cannot be written any more, if a txg failed; a pool that was closed has none.
    pub fn failure(&self) -> Option<Arc<str>> {
        let state = self.state();
        state.failed.clone().filter(|_| !state.ended)
    }

    /// Waits until `txg` is on stable storage, and tells the syncer that a waiter exists.
    ///
    /// # Errors
    /// [`ObjectError::Suspended`] if the pool is suspended first.
    pub async fn wait_synced(&self, txg: Txg) -> Result<(), ObjectError> {
        self.wait(txg.0, txg.0, |state| (state.synced, &mut state.stable)).await
    }

    /// Waits until `txg` or a later one is open, and makes the syncer close those before it.
    ///
    /// # Errors
    /// [`ObjectError::Suspended`] if the pool is suspended first.
    pub async fn wait_open(&self, txg: Txg) -> Result<(), ObjectError> {
        self.wait(txg.0, txg.0.saturating_sub(1), |state| (state.open, &mut state.opened)).await
    }

    /// Waits until the state that `of` selects has reached `txg`, and makes the syncer close all txgs up to `closed`.
    /// to `closed`.
    async fn wait(
        &self,
        txg: u64,
        closed: u64,
        of: fn(&mut State) -> (u64, &mut BTreeMap<u64, Waiters>),
    ) -> Result<(), ObjectError> {
        loop {
            let (waiting, on_request) = {
                let mut state = self.state();
                if of(&mut state).0 >= txg {
                    return Ok(());
                }
                if let Some(why) = &state.failed {
                    return Err(ObjectError::Suspended { why: why.to_string() });
                }
                let (tell, waiting) = oneshot::channel();
                of(&mut state).1.entry(txg).or_default().push(tell);
                state.sync_requested = state.sync_requested.max(closed);
                (waiting, std::mem::take(&mut state.on_request))
            };
            wake(on_request);
            let _ = waiting.await;
        }
    }

    /// Whether there is a waiter for the sync of the open txg.
    pub fn is_sync_requested(&self) -> bool {
        let state = self.state();
        state.sync_requested >= state.open
    }

    /// Makes the syncer sync the open txg soon, without waiting.
    pub fn request_sync(&self) {
        let on_request = {
            let mut state = self.state();
            state.sync_requested = state.sync_requested.max(state.open);
            std::mem::take(&mut state.on_request)
        };
        wake(on_request);
    }

    /// Waits until there is a waiter for the sync of the open txg. The syncer sleeps on this and on its timer.
    pub async fn sync_requested(&self) {
        loop {
            let waiting = {
                let mut state = self.state();
                if state.sync_requested >= state.open {
                    return;
                }
                let (tell, waiting) = oneshot::channel();
                state.on_request.push(tell);
                waiting
            };
            let _ = waiting.await;
        }
    }

    /// Adds dirty bytes to `txg`.
    pub fn add_dirty(&self, txg: Txg, bytes: u64) {
        *self.state().dirty_bytes.entry(txg.0).or_default() += bytes;
    }

    /// Dirty bytes of all txgs.
    pub fn dirty_bytes(&self) -> u64 {
        self.state().dirty_bytes.values().sum()
    }

    /// Adds blocks that transactions of `txg` free.
    pub fn add_freed(&self, txg: Txg, blocks: u64) {
        let mut state = self.state();
        let freed = state.freed_blocks.entry(txg.0).or_default();
        // The number of blocks may follow from the size of a file, which comes from the pool.
        *freed = freed.saturating_add(blocks);
    }

    /// Number of blocks that transactions of `txg` free; 0 if it is synced.
    pub fn freed_blocks_of(&self, txg: Txg) -> u64 {
        self.state().freed_blocks.get(&txg.0).copied().unwrap_or(0)
    }

    /// Dirty bytes of `txg`.
    pub fn dirty_bytes_of(&self, txg: Txg) -> u64 {
        self.state().dirty_bytes.get(&txg.0).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_sim::SimWorld;

    #[test]
    fn a_txg_syncs_when_its_holds_are_gone() {
        let world = SimWorld::new(1);
        let machine = world.machine();
        let run = world.run(async move {
            let txgs = TxgTracker::new(Txg(4));
            let tx = txgs.hold().unwrap();
            assert_eq!(tx.txg(), Txg(5));
            let syncer = txgs.clone();
            let waiter = txgs.clone();
            let sync = machine.tasks.spawn(async move {
                syncer.sync_requested().await;
                let txg = syncer.quiesce().await;
                assert_eq!(syncer.open(), Txg(6));
                syncer.synced(txg);
                txg
            });
            let wait = machine.tasks.spawn(async move { waiter.wait_synced(Txg(5)).await });
            machine.clock.sleep(std::time::Duration::from_secs(1)).await;
            assert_eq!(txgs.last_synced(), Txg(4), "the hold keeps it back");
            drop(tx);
            assert_eq!(sync.await.unwrap(), Txg(5));
            wait.await.unwrap().unwrap();
            txgs.fail("a disk is gone");
            assert!(txgs.hold().is_err() && txgs.wait_synced(Txg(6)).await.is_err());
            assert!(txgs.wait_synced(Txg(5)).await.is_ok());
            assert_eq!(txgs.failure().as_deref(), Some("a disk is gone"));
            txgs.end("closed");
            assert!(txgs.failure().is_some(), "it failed before it was closed");
        });
        run.unwrap();
    }

    #[test]
    fn a_pool_that_was_closed_has_not_failed() {
        let txgs = TxgTracker::new(Txg(4));
        txgs.end("pool is exporting");
        assert!(txgs.hold().is_err() && txgs.failure().is_none());
    }
}

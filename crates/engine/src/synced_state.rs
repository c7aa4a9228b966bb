//! The pool as of its last synced txg, for readers: they do not wait for the syncer, and the syncer does not wait for them.
//!
//! ```text
//!   syncer ── txg N+1: changes the live MOS ──────────────► uberblock N+1 ─► show
//!   reader ── hold ─► uberblock N ─► MOS of txg N (on disk and in the ARC, never changed) ─► names, properties, status
//! ```
//!
//! The MOS of a synced txg is never overwritten, because its blocks are not reused while a [`ReadHold`] is out. The hold is
//! taken before the uberblock is looked up, and the syncer shows an uberblock before it makes the space that its txg freed
//! reusable, so the hold covers every block of that uberblock.
//!
//! All readers of one txg share one [`SyncedState`]. The engine forgets it when the next txg has synced, so that an idle
//! engine delays no reuse of space.

use super::Synced;
use futures_util::lock::Mutex as AsyncMutex;
use std::sync::Arc;
use weir_blocks::ReadHold;
use weir_dmu::{ObjectSet, Opening};
use weir_dsl::Dsl;
use weir_format::Uberblock;
use weir_machine::Request;
use weir_pool::error::PoolError;

/// The MOS of a synced txg, and its DSL.
pub struct SyncedState {
    /// The uberblock of the txg.
    pub uberblock: Uberblock,
    /// The MOS.
    pub mos: Arc<ObjectSet>,
    pool_name: String,
    /// All directories, once a reader has asked for them.
    dsl: AsyncMutex<Option<Arc<Dsl>>>,
    /// Keeps the blocks of the MOS; `None` if the pool is closed, and nothing is reused any more.
    _hold: Option<ReadHold>,
}

/// The state of the last synced txg, if a reader has asked for it.
///
/// The lock is held while the MOS is opened, so that concurrent readers open it once. The syncer does not take
/// it: it clears the state with [`SyncedStates::forget`], which does nothing while a reader is reading it.
#[derive(Default)]
pub(crate) struct SyncedStates(AsyncMutex<Option<Arc<SyncedState>>>);

impl SyncedStates {
    /// Forgets the state, because a later txg has synced. A reader that is reading it now checks for that itself.
    pub fn forget(&self) {
        if let Some(mut state) = self.0.try_lock() {
            *state = None;
        }
    }
}

impl SyncedState {
    /// The DSL with all its directories, which are read at the first call.
    ///
    /// # Errors
    /// Errors of reading the root directory.
    pub async fn dsl(&self, rq: &Request) -> Result<Arc<Dsl>, PoolError> {
        let mut known = self.dsl.lock().await;
        let dsl = match &*known {
            Some(dsl) => dsl.clone(),
            None => Dsl::open(rq, self.mos.clone(), &self.pool_name).await?,
        };
        Ok(known.insert(dsl).clone())
    }
}

impl Synced<'_> {
    /// The pool as of the last synced txg.
    ///
    /// # Errors
    /// Errors of reading the MOS.
    pub async fn state(&self, rq: &Request) -> Result<Arc<SyncedState>, PoolError> {
        let mut known = self.engine.synced_states.0.lock().await;
        let hold = self.engine.cache.blocks().hold();
        let uberblock = self.engine.shown().uberblock;
        if let Some(state) = known.as_ref().filter(|state| state.uberblock.txg == uberblock.txg) {
            return Ok(state.clone());
        }
        let mos = ObjectSet::open(rq, self.engine.cache.clone(), uberblock.root, Opening::default()).await?;
        let dsl = AsyncMutex::default();
        let state = Arc::new(SyncedState { uberblock, mos, pool_name: self.engine.name(), dsl, _hold: hold });
        // If a later txg has synced meanwhile, the state is of no use to the next reader.
        *known = (self.engine.shown().uberblock.txg == state.uberblock.txg).then(|| state.clone());
        Ok(state)
    }
}

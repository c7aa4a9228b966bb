//! Who may begin a transaction: space, quotas, and the write throttle.
//!
//! *Throttle.* What clients write waits in memory for its group to sync. Up to 60 % of the limit nobody is held up; from
//! there on each new transaction waits a little, the longer the fuller it is, so that clients slow down smoothly to what
//! the devices take instead of running into a wall. At the limit everybody waits for a group to sync.
//!
//! ```text
//!   delay          │                 ╱ limit (100 %)
//!   scale·(d-60%)  │               ╱
//!   ─────────────  │           _-─
//!    (100%-d)      └──────────┴────────► dirty bytes
//!                   20 % sync   60 %
//! ```
//!
//! The delays of different clients are queued one after another, so that together they get what the curve gives.
//!
//! *Space.* A part of the pool is kept back (the slop): writing stops before it, changes of names may take half of it,
//! and what frees space more still, so that a full pool can be emptied. Space that was freed in the last groups and is
//! not yet usable is waited for.
//!
//! *Freeing.* What one group gives back is bounded: [`weir_dmu::live`] cuts it into transactions, and they wait here.
//!
//! Source of the ideas: OpenZFS `module/zfs/dmu_tx.c` (theory above `dmu_tx_delay`), `module/zfs/dsl_pool.c`,
//! `module/zfs/spa_misc.c` (`spa_get_slop_space`).

use futures_util::future::BoxFuture;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use weir_dmu::ObjectError;
use weir_dmu::dedup::Dedup;
use weir_dmu::live::{SpaceReserve, TxAdmission};
use weir_dmu::txg::{Tx, TxgTracker};
use weir_dsl::sync_tasks::{LimitRefusal, Limits};
use weir_format::{ObjsetId, Txg};
use weir_machine::{Clock, Nanos, Request};

/// How much may wait in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyLimits {
    /// At most so many bytes wait for their groups to sync.
    pub max_bytes: u64,
    /// From this share of the limit on transactions are delayed, in percent.
    pub delay_percent: u64,
    /// From this share on the open group is synced without waiting for its time, in percent.
    pub sync_percent: u64,
    /// Steepness of the curve: the delay at the middle between its start and the limit, in nanoseconds.
    pub scale_ns: u64,
    /// No transaction is delayed longer, in nanoseconds.
    pub longest_ns: u64,
    /// Blocks that the transactions of one group give back, and, besides, so many of destroyed data sets: who would free
    /// more waits for the next group.
    pub freed_blocks: u64,
}

impl DirtyLimits {
    /// The usual limits with so many bytes.
    pub const fn new(max_bytes: u64) -> Self {
        let (delay_percent, sync_percent, freed_blocks) = (60, 20, 100_000);
        DirtyLimits { max_bytes, delay_percent, sync_percent, scale_ns: 500_000, longest_ns: 100_000_000, freed_blocks }
    }

    fn share(&self, percent: u64) -> u64 {
        self.max_bytes / 100 * percent
    }

    /// How long a transaction is held up when so many bytes wait.
    pub fn delay(&self, dirty_bytes: u64) -> Duration {
        let start = self.share(self.delay_percent);
        let ns = if dirty_bytes >= self.max_bytes {
            self.longest_ns
        } else if dirty_bytes <= start {
            0
        } else {
            let above = u128::from(dirty_bytes - start) * u128::from(self.scale_ns);
            let ns = above / u128::from(self.max_bytes - dirty_bytes);
            u64::try_from(ns).unwrap_or(u64::MAX).min(self.longest_ns)
        };
        Duration::from_nanos(ns)
    }
}

impl Default for DirtyLimits {
    fn default() -> Self {
        Self::new(256 << 20)
    }
}

/// The pool's space, in bytes as they are sold to data sets (parity left out).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolSpace {
    /// All there is.
    pub size_bytes: u64,
    /// What is taken.
    pub used_bytes: u64,
    /// What was given back, but is not usable yet.
    pub deferred_bytes: u64,
    /// What is kept back.
    pub slop_bytes: u64,
    /// What data sets refer to more than once: each is charged for it, and the devices hold it once.
    pub saved_bytes: u64,
    /// What only the checkpoint needs.
    pub kept_bytes: u64,
}

impl PoolSpace {
    /// What all data sets together may refer to (`spa_get_dspace` less the slop).
    pub fn capacity_bytes(&self) -> u64 {
        let own = self.size_bytes.saturating_add(self.saved_bytes);
        own.saturating_sub(self.slop_bytes).saturating_sub(self.kept_bytes)
    }

    /// What of the slop stays closed to that purpose.
    fn kept(&self, purpose: SpaceReserve) -> u64 {
        match purpose {
            SpaceReserve::Normal => self.slop_bytes,
            SpaceReserve::Half => self.slop_bytes / 2,
            SpaceReserve::NetFree => self.slop_bytes / 8,
        }
    }

    /// What a transaction of that purpose may still take.
    pub fn available(&self, purpose: SpaceReserve) -> u64 {
        let free = self.size_bytes.saturating_sub(self.used_bytes).saturating_sub(self.deferred_bytes);
        free.saturating_sub(self.kept(purpose))
    }
}

/// Knows how much space the pool has.
pub type SpaceSource = Arc<dyn Fn() -> PoolSpace + Send + Sync>;

/// How often a transaction waits for a group, after which there may be space for it, before it is refused.
const SPACE_TRIES: u32 = 6;
/// What is written may take so many times its size: copies, parity and padding, blocks that lead to it.
const INFLATION: u64 = 3;

/// The pool's gate.
pub struct PoolTxAdmission {
    clock: Clock,
    txgs: Arc<TxgTracker>,
    dirty: DirtyLimits,
    space: SpaceSource,
    /// The pool's dedup tables.
    pub(crate) dedup: Arc<Dedup>,
    /// The data sets' own limits, as of the last group; `None` while they are not known.
    limits: Mutex<Option<Limits>>,
    /// When the last delayed transaction was let through.
    last_wakeup: Mutex<Nanos>,
    /// What sharing of blocks saves, in bytes, as of the last group.
    saved_bytes: AtomicU64,
    kept_bytes: AtomicU64,
}

impl PoolTxAdmission {
    /// A gate to the groups of a pool.
    pub fn new(
        clock: Clock,
        txgs: Arc<TxgTracker>,
        dirty: DirtyLimits,
        space: SpaceSource,
        dedup: Arc<Dedup>,
    ) -> Arc<Self> {
        let (limits, last_wakeup, saved_bytes, kept_bytes) = Default::default();
        Arc::new(PoolTxAdmission { clock, txgs, dirty, space, dedup, limits, last_wakeup, saved_bytes, kept_bytes })
    }

    fn limits(&self) -> MutexGuard<'_, Option<Limits>> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the numbers of a group count that is on its way to the disks.
    pub(crate) fn set_numbers(&self, read: &Limits) {
        self.limits().get_or_insert_with(Limits::default).take_numbers(read);
    }

    /// The group is on the disks: what waited for it in memory is in the numbers now.
    pub(crate) fn synced(&self, txg: Txg) {
        if let Some(limits) = self.limits().as_mut() {
            limits.synced(txg);
        }
    }

    /// The pool's space now.
    pub fn space(&self) -> PoolSpace {
        let [saved_bytes, kept_bytes] = [&self.saved_bytes, &self.kept_bytes].map(|n| n.load(Ordering::Relaxed));
        PoolSpace { saved_bytes, kept_bytes, ..(self.space)() }
    }

    /// Lets it count what only the checkpoint needs.
    pub(crate) fn set_checkpoint_bytes(&self, bytes: u64) {
        self.kept_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Lets it count what sharing of blocks saves.
    pub(crate) fn set_dedup_saved_bytes(&self, bytes: u64) {
        self.saved_bytes.store(bytes, Ordering::Relaxed);
    }

    /// How much may wait in memory.
    pub fn dirty_limits(&self) -> DirtyLimits {
        self.dirty
    }

    async fn enter(&self, set: ObjsetId, bytes: u64, purpose: SpaceReserve) -> Result<Tx, ObjectError> {
        let started = self.clock.now();
        self.wait_for_space(set, bytes, purpose).await?;
        while self.txgs.dirty_bytes() >= self.dirty.max_bytes {
            self.txgs.push();
            self.txgs.wait_synced(Txg(self.txgs.last_synced().0 + 1)).await?;
        }
        self.delay(started).await;
        let tx = self.hold(purpose).await?;
        if let Some(limits) = self.limits().as_mut() {
            limits.book(set, tx.txg(), bytes);
        }
        if self.txgs.dirty_bytes_of(tx.txg()) >= self.dirty.share(self.dirty.sync_percent) {
            self.txgs.push();
        }
        Ok(tx)
    }

    /// A hold on the open group; for who frees, on one that does not free enough yet.
    async fn hold(&self, purpose: SpaceReserve) -> Result<Tx, ObjectError> {
        loop {
            let tx = self.txgs.hold()?;
            let txg = tx.txg();
            if purpose != SpaceReserve::NetFree || self.txgs.freed_blocks_of(txg) < self.dirty.freed_blocks {
                return Ok(tx);
            }
            drop(tx);
            self.txgs.wait_open(Txg(txg.0 + 1)).await?;
        }
    }

    /// Whether there is space now.
    fn ask(&self, set: ObjsetId, bytes: u64, purpose: SpaceReserve) -> Result<(), LimitRefusal> {
        let space = self.space();
        let mut anything_waits = space.deferred_bytes > 0;
        if let Some(limits) = self.limits().as_ref() {
            anything_waits |= limits.anything_waits();
            let admitted = limits.admit(set, bytes, purpose, space.slop_bytes - space.kept(purpose));
            // What was freed a moment ago may be enough, once it is synced and can be used again.
            admitted.map_err(|why| if anything_waits { LimitRefusal::Wait } else { why })?;
        }
        let waiting = self.txgs.dirty_bytes();
        if bytes > space.available(purpose) {
            return Err(if anything_waits || waiting > 0 { LimitRefusal::Wait } else { LimitRefusal::Full });
        }
        let most = bytes.saturating_add(waiting).saturating_mul(INFLATION);
        if waiting > 0 && most > space.available(SpaceReserve::NetFree) {
            return Err(LimitRefusal::Wait);
        }
        Ok(())
    }

    async fn wait_for_space(&self, set: ObjsetId, bytes: u64, purpose: SpaceReserve) -> Result<(), ObjectError> {
        for tried in 0.. {
            match self.ask(set, bytes, purpose) {
                Ok(()) => return Ok(()),
                Err(LimitRefusal::Quota) => return Err(ObjectError::Quota { objset: set, bytes }),
                Err(LimitRefusal::Full) => break,
                Err(LimitRefusal::Wait) if tried == SPACE_TRIES => break,
                Err(LimitRefusal::Wait) => self.txgs.wait_synced(self.txgs.open()).await?,
            }
        }
        Err(ObjectError::NoSpace { bytes })
    }

    /// Waits as long as the curve says for what is dirty now.
    async fn delay(&self, started: Nanos) {
        let delay = self.dirty.delay(self.txgs.dirty_bytes());
        if delay.is_zero() || self.clock.now().since(started) > delay {
            return;
        }
        let until = {
            let mut last = self.last_wakeup.lock().unwrap_or_else(PoisonError::into_inner);
            *last = (started + delay).max(*last + delay);
            *last
        };
        self.clock.sleep_until(until).await;
    }
}

impl TxAdmission for PoolTxAdmission {
    fn assign_tx<'a>(
        &'a self,
        _rq: &'a Request,
        set: ObjsetId,
        bytes: u64,
        purpose: SpaceReserve,
    ) -> BoxFuture<'a, Result<Tx, ObjectError>> {
        Box::pin(self.enter(set, bytes, purpose))
    }

    fn usage(&self, set: ObjsetId) -> Option<(u64, u64)> {
        self.limits().as_ref()?.usage(set)
    }

    fn txgs(&self) -> &Arc<TxgTracker> {
        &self.txgs
    }

    fn freed_per_group(&self) -> u64 {
        self.dirty.freed_blocks
    }

    fn dedup(&self) -> Option<&Arc<Dedup>> {
        Some(&self.dedup)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_is_flat_then_steep_then_ends() {
        let limits = DirtyLimits::new(100 << 20);
        let at = |percent: u64| limits.delay((100 << 20) / 100 * percent).as_nanos();
        assert_eq!((at(0), at(60)), (0, 0));
        // In the middle between start and limit it is the scale.
        assert_eq!(at(80), 500_000);
        assert!(at(95) > 3 * at(80) && at(99) > 3 * at(95));
        assert_eq!(at(100), 100_000_000);
    }

    #[test]
    fn freeing_may_go_on_where_writing_stops() {
        let space = PoolSpace {
            size_bytes: 1000,
            used_bytes: 960,
            deferred_bytes: 0,
            slop_bytes: 48,
            saved_bytes: 0,
            kept_bytes: 0,
        };
        assert_eq!(space.available(SpaceReserve::Normal), 0);
        assert_eq!(space.available(SpaceReserve::Half), 16);
        assert_eq!(space.available(SpaceReserve::NetFree), 34);
    }
}

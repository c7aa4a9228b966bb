//! Transaction admission: space, quotas, and the write throttle (`dmu_tx_assign`).
//!
//! *Throttle.* Dirty data is in memory until its txg syncs. Up to 60 % of the limit, transactions begin without delay.
//! Above that, each new transaction is delayed, the longer the more data is dirty, so that clients slow down smoothly to
//! the devices' throughput. At the limit, new transactions wait for a txg to sync.
//!
//! ```text
//!   delay          │                 ╱ limit (100 %)
//!   scale·(d-60%)  │               ╱
//!   ─────────────  │           _-─
//!    (100%-d)      └──────────┴────────► dirty bytes
//!                   20 % sync   60 %
//! ```
//!
//! The delays of different clients are queued one after another, so that the curve limits their total rate.
//!
//! *Space.* A part of the pool, the slop, is reserved. Normal writes leave all of it, changes of names may use half, and
//! transactions that free space may use seven eighths, so that a full pool can be emptied. If space was freed in recent
//! txgs and is not usable yet, transactions wait for it.
//!
//! *Freeing.* The number of blocks that one txg frees is bounded: [`weir_dmu::live`] splits long frees into
//! transactions, which wait here for a txg below that bound.
//!
//! Source of the ideas: OpenZFS `module/zfs/dmu_tx.c` (theory above `dmu_tx_delay`), `module/zfs/dsl_pool.c`,
//! `module/zfs/spa_misc.c` (`spa_get_slop_space`).

use futures_util::future::BoxFuture;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use weir_blocks::Tree;
use weir_dmu::ObjectError;
use weir_dmu::dedup::Dedup;
use weir_dmu::live::{DedupWriter, SpaceReserve, SpaceUsage, TxAdmission};
use weir_dmu::txg::{Tx, TxgTracker};
use weir_dsl::sync_tasks::{LimitRefusal, Limits};
use weir_format::{ObjectId, ObjsetId, Txg};
use weir_machine::lock::{Mutex, MutexGuard, order};
use weir_machine::{Clock, Nanos, Request, Stage};

/// Limits of dirty data and of frees per txg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyLimits {
    /// Maximum dirty bytes of all txgs that have not synced (`zfs_dirty_data_max`).
    pub max_bytes: u64,
    /// Share of `max_bytes` above which transactions are delayed, in percent.
    pub delay_percent: u64,
    /// Share of `max_bytes` above which the open txg syncs before its timeout, in percent.
    pub sync_percent: u64,
    /// Steepness of the curve: the delay at the middle between its start and the limit, in nanoseconds.
    pub scale_ns: u64,
    /// Maximum delay of a transaction, in nanoseconds.
    pub longest_ns: u64,
    /// Maximum blocks that the transactions of one txg free, and separately the maximum of destroyed datasets' blocks.
    ///
    /// A transaction that would free more waits for the next txg.
    pub freed_blocks: u64,
    /// Maximum bytes of a vdev that is being removed that one txg copies to other vdevs.
    pub copied_bytes: u64,
    /// Maximum bytes of a vdev that is being rebuilt that are copied before the position is recorded.
    pub rebuilt_bytes: u64,
}

impl DirtyLimits {
    /// Default limits with `max_bytes` of dirty data.
    pub const fn new(max_bytes: u64) -> Self {
        DirtyLimits {
            max_bytes,
            delay_percent: 60,
            sync_percent: 20,
            scale_ns: 500_000,
            longest_ns: 100_000_000,
            freed_blocks: 100_000,
            copied_bytes: 32 << 20,
            rebuilt_bytes: 1 << 30,
        }
    }

    fn share(&self, percent: u64) -> u64 {
        self.max_bytes / 100 * percent
    }

    /// The delay of a transaction at `dirty_bytes` of dirty data.
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

/// The pool's space in deflated bytes, as datasets account it (without parity).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolSpace {
    /// Total size.
    pub size_bytes: u64,
    /// Allocated space.
    pub used_bytes: u64,
    /// Freed space that is not usable yet (deferred frees).
    pub deferred_bytes: u64,
    /// Reserved space (slop).
    pub slop_bytes: u64,
    /// Space saved by dedup and block cloning: each dataset is charged, and the devices hold one copy.
    pub saved_bytes: u64,
    /// Space that only the checkpoint refers to.
    pub kept_bytes: u64,
    /// The last synced txg when the oldest read in progress began, if there is one: what was freed later is not usable yet.
    pub oldest_read: Option<Txg>,
}

impl PoolSpace {
    /// Space that all datasets together may reference, in bytes (`spa_get_dspace` less the slop).
    pub fn capacity_bytes(&self) -> u64 {
        let own = self.size_bytes.saturating_add(self.saved_bytes);
        own.saturating_sub(self.slop_bytes).saturating_sub(self.kept_bytes)
    }

    /// The part of the slop that transactions of this purpose must leave, in bytes.
    fn reserved_bytes(&self, purpose: SpaceReserve) -> u64 {
        match purpose {
            SpaceReserve::Normal => self.slop_bytes,
            SpaceReserve::Half => self.slop_bytes / 2,
            SpaceReserve::NetFree => self.slop_bytes / 8,
        }
    }

    /// Space that a transaction of this purpose may still allocate, in bytes.
    pub fn available(&self, purpose: SpaceReserve) -> u64 {
        // Each txg that writes an uberblock frees some metadata, so that a pool in use always has deferred frees. The slop
        // has room for them.
        let deferred_bytes = self.deferred_bytes.saturating_sub(self.slop_bytes / DEFERRED_IN_SLOP);
        let free = self.size_bytes.saturating_sub(self.used_bytes).saturating_sub(deferred_bytes);
        free.saturating_sub(self.reserved_bytes(purpose))
    }
}

/// Callback that returns the pool's present space.
pub type SpaceSource = Arc<dyn Fn() -> PoolSpace + Send + Sync>;

/// Maximum txgs that a transaction waits for space before it is refused, without those in which a long read delayed the reuse of
/// freed space.
const SPACE_TRIES: u32 = 6;
/// Txgs that sync during a read that delays the reuse of freed space for long, such as one of a scrub.
const LONG_READ_TXGS: u64 = 2;
/// Maximum time that a transaction waits for such reads.
const MAX_LONG_READ_WAIT: Duration = Duration::from_secs(10);
/// Interval at which it looks again.
const LONG_READ_LOOK: Duration = Duration::from_millis(20);
/// Part of the slop that may consist of deferred frees: less than any purpose must leave.
const DEFERRED_IN_SLOP: u64 = 32;
/// Assumed ratio of allocated to written bytes: copies, parity, padding and indirect blocks.
const INFLATION: u64 = 3;

/// Transaction admission of a pool.
pub struct PoolTxAdmission {
    clock: Clock,
    txgs: Arc<TxgTracker>,
    dirty: DirtyLimits,
    space: SpaceSource,
    /// The pool's dedup tables.
    pub(crate) dedup: Arc<Dedup>,
    /// The vdev tree, whose suspension new transactions wait for.
    pub(crate) tree: OnceLock<Arc<Tree>>,
    /// The datasets' limits as of the last txg; `None` while they are not known.
    limits: Mutex<Option<Limits>, { order::ADMISSION_LIMITS }>,
    /// Time at which the last delayed transaction begins.
    last_wakeup: Mutex<Nanos, { order::ADMISSION_WAKEUP }>,
    /// Space saved by dedup and block cloning as of the last txg, in bytes.
    saved_bytes: AtomicU64,
    /// Space that only the checkpoint refers to as of the last txg, in bytes.
    kept_bytes: AtomicU64,
    /// Whether a transaction waits for deferred frees, which only txgs with uberblocks return.
    awaits_frees: AtomicBool,
}

impl PoolTxAdmission {
    /// Admission to the txgs of a pool.
    pub fn new(
        clock: Clock,
        txgs: Arc<TxgTracker>,
        dirty: DirtyLimits,
        space: SpaceSource,
        dedup: Arc<Dedup>,
    ) -> Arc<Self> {
        Arc::new(PoolTxAdmission {
            clock,
            txgs,
            dirty,
            space,
            dedup,
            tree: OnceLock::new(),
            limits: Mutex::default(),
            last_wakeup: Mutex::default(),
            saved_bytes: AtomicU64::new(0),
            kept_bytes: AtomicU64::new(0),
            awaits_frees: AtomicBool::new(false),
        })
    }

    fn limits(&self) -> MutexGuard<'_, Option<Limits>> {
        self.limits.lock()
    }

    /// Replaces the usage and limits by those of the txg that is being synced: those of the `changed` directories, or all.
    pub(crate) fn set_numbers(&self, read: &Limits, changed: Option<&BTreeSet<ObjectId>>) {
        match (&mut *self.limits(), changed) {
            (Some(limits), Some(changed)) => limits.take_changed(read, changed),
            (limits, _) => limits.get_or_insert_with(Limits::default).take_numbers(read),
        }
    }

    /// Drops the reservations of a txg that has synced; the usage includes its writes now.
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

    /// Sets the space that only the checkpoint refers to.
    pub(crate) fn set_checkpoint_bytes(&self, bytes: u64) {
        self.kept_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Sets the space that dedup and block cloning save.
    pub(crate) fn set_dedup_saved_bytes(&self, bytes: u64) {
        self.saved_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Whether a transaction has waited for deferred frees since the last call, and there are any.
    pub(crate) fn take_awaits_frees(&self) -> bool {
        self.awaits_frees.swap(false, Ordering::Relaxed) && self.space().deferred_bytes > 0
    }

    /// The limits of dirty data.
    pub fn dirty_limits(&self) -> DirtyLimits {
        self.dirty
    }

    async fn enter(&self, rq: &Request, set: ObjsetId, bytes: u64, purpose: SpaceReserve) -> Result<Tx, ObjectError> {
        if let Some(suspension) = self.tree.get().map(|tree| tree.suspension()) {
            if let Some(why) = suspension.refusal() {
                return Err(ObjectError::Suspended { why: why.to_string() });
            }
            rq.timed(&self.clock, Stage::Admission, suspension.wait_for_resume()).await;
        }
        let started = self.clock.now();
        rq.timed(&self.clock, Stage::Admission, self.wait_for_space(set, bytes, purpose)).await?;
        rq.timed(&self.clock, Stage::Throttle, self.throttle(started)).await?;
        let tx = rq.timed(&self.clock, Stage::Admission, self.hold(purpose)).await?;
        if let Some(limits) = self.limits().as_mut() {
            limits.book(set, tx.txg(), bytes);
        }
        if self.txgs.dirty_bytes_of(tx.txg()) >= self.dirty.share(self.dirty.sync_percent) {
            self.txgs.request_sync();
        }
        Ok(tx)
    }

    /// Waits until there is less dirty data than the limit, and delays a transaction that began at `started`.
    async fn throttle(&self, started: Nanos) -> Result<(), ObjectError> {
        while self.txgs.dirty_bytes() >= self.dirty.max_bytes {
            self.txgs.request_sync();
            self.txgs.wait_synced(Txg(self.txgs.last_synced().0 + 1)).await?;
        }
        self.delay(started).await;
        Ok(())
    }

    /// Holds the open txg; for a transaction that frees, waits for a txg below `freed_blocks`.
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

    /// Checks whether there is space now.
    fn check_space(&self, set: ObjsetId, bytes: u64, purpose: SpaceReserve) -> Result<(), LimitRefusal> {
        let space = self.space();
        let waiting = self.txgs.dirty_bytes();
        let has_deferred = space.deferred_bytes > 0;
        let mut anything_waits = waiting > 0 || has_deferred;
        if let Some(limits) = self.limits().as_ref() {
            let admitted = limits.admit(set, bytes, purpose, space.slop_bytes - space.reserved_bytes(purpose));
            anything_waits |= limits.anything_waits();
            // Changes in open txgs, and frees that follow from them, may make room once they have synced. No deferred free
            // changes what a quota counts.
            let may_change = |why| limits.anything_waits() || why == LimitRefusal::Full && has_deferred;
            admitted.map_err(|why| if may_change(why) { LimitRefusal::Wait } else { why })?;
        }
        if bytes > space.available(purpose) {
            if has_deferred {
                self.awaits_frees.store(true, Ordering::Relaxed);
            }
            return Err(if anything_waits { LimitRefusal::Wait } else { LimitRefusal::Full });
        }
        let worst_case_bytes = bytes.saturating_add(waiting).saturating_mul(INFLATION);
        if waiting > 0 && worst_case_bytes > space.available(SpaceReserve::NetFree) {
            return Err(LimitRefusal::Wait);
        }
        Ok(())
    }

    /// Whether freed space waits for the end of a long read.
    fn is_delayed_by_read(&self) -> bool {
        let space = self.space();
        let last = self.txgs.last_synced().0;
        space.deferred_bytes > 0 && space.oldest_read.is_some_and(|txg| txg.0 + LONG_READ_TXGS <= last)
    }

    async fn wait_for_space(&self, set: ObjsetId, bytes: u64, purpose: SpaceReserve) -> Result<(), ObjectError> {
        let began = self.clock.now();
        let mut tried = 0;
        loop {
            match self.check_space(set, bytes, purpose) {
                Ok(()) => return Ok(()),
                Err(LimitRefusal::Quota) => return Err(ObjectError::Quota { objset: set, bytes }),
                Err(LimitRefusal::Full) => break,
                Err(LimitRefusal::Wait) if tried == SPACE_TRIES => break,
                Err(LimitRefusal::Wait) => {
                    let is_delayed = self.is_delayed_by_read() && self.clock.now().since(began) < MAX_LONG_READ_WAIT;
                    tried += u32::from(!is_delayed);
                    if is_delayed {
                        self.clock.sleep(LONG_READ_LOOK).await;
                    }
                    self.txgs.wait_synced(self.txgs.open()).await?;
                }
            }
        }
        // A pool that is closed has no space at all: that it is closed is the error.
        drop(self.txgs.hold()?);
        Err(ObjectError::NoSpace { bytes })
    }

    /// Delays a transaction that began at `started`, according to the present amount of dirty data.
    async fn delay(&self, started: Nanos) {
        let delay = self.dirty.delay(self.txgs.dirty_bytes());
        if delay.is_zero() || self.clock.now().since(started) > delay {
            return;
        }
        let until = {
            let mut last = self.last_wakeup.lock();
            *last = (started + delay).max(*last + delay);
            *last
        };
        self.clock.sleep_until(until).await;
    }
}

impl TxAdmission for PoolTxAdmission {
    fn assign_tx<'a>(
        &'a self,
        rq: &'a Request,
        set: ObjsetId,
        bytes: u64,
        purpose: SpaceReserve,
    ) -> BoxFuture<'a, Result<Tx, ObjectError>> {
        Box::pin(self.enter(rq, set, bytes, purpose))
    }

    fn usage(&self, set: ObjsetId) -> Option<SpaceUsage> {
        self.limits().as_ref()?.usage(set)
    }

    fn txgs(&self) -> &Arc<TxgTracker> {
        &self.txgs
    }

    fn max_frees_per_txg(&self) -> u64 {
        self.dirty.freed_blocks
    }

    fn dedup(&self) -> Option<Arc<dyn DedupWriter>> {
        Some(self.dedup.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_is_zero_then_rises_to_the_maximum() {
        let limits = DirtyLimits::new(100 << 20);
        let at = |percent: u64| limits.delay((100 << 20) / 100 * percent).as_nanos();
        assert_eq!((at(0), at(60)), (0, 0));
        // In the middle between start and limit the delay is the scale.
        assert_eq!(at(80), 500_000);
        assert!(at(95) > 3 * at(80) && at(99) > 3 * at(95));
        assert_eq!(at(100), 100_000_000);
    }

    #[test]
    fn frees_may_use_slop_that_writes_may_not() {
        let space = PoolSpace {
            size_bytes: 1000,
            used_bytes: 960,
            deferred_bytes: 0,
            slop_bytes: 48,
            saved_bytes: 0,
            kept_bytes: 0,
            oldest_read: None,
        };
        assert_eq!(space.available(SpaceReserve::Normal), 0);
        assert_eq!(space.available(SpaceReserve::Half), 16);
        assert_eq!(space.available(SpaceReserve::NetFree), 34);
    }
}

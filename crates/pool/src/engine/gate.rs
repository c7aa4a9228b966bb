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
//! Source of the ideas: OpenZFS `module/zfs/dmu_tx.c` (theory above `dmu_tx_delay`), `module/zfs/dsl_pool.c`,
//! `module/zfs/spa_misc.c` (`spa_get_slop_space`).

use futures_util::future::BoxFuture;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use weir_format::{ObjsetId, Txg};
use weir_machine::{Clock, Nanos, Request};
use weir_objects::ObjectError;
use weir_objects::live::{Gate, Purpose};
use weir_objects::txg::{Tx, TxGroups};

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
}

impl DirtyLimits {
    /// The usual limits with so many bytes.
    pub const fn new(max_bytes: u64) -> Self {
        DirtyLimits { max_bytes, delay_percent: 60, sync_percent: 20, scale_ns: 500_000, longest_ns: 100_000_000 }
    }

    /// A tenth of the machine's memory, at most 4 GiB.
    pub fn of_memory(memory_bytes: u64) -> Self {
        Self::new((memory_bytes / 10).clamp(64 << 20, 4 << 30))
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
}

impl PoolSpace {
    /// What a transaction of that purpose may still take.
    pub fn available(&self, purpose: Purpose) -> u64 {
        let kept = match purpose {
            Purpose::Write => self.slop_bytes,
            Purpose::Names => self.slop_bytes / 2,
            Purpose::Free => self.slop_bytes / 8,
        };
        self.size_bytes.saturating_sub(self.used_bytes).saturating_sub(self.deferred_bytes).saturating_sub(kept)
    }
}

/// Knows how much space the pool has.
pub type SpaceSource = Arc<dyn Fn() -> PoolSpace + Send + Sync>;

/// The data sets' own limits.
pub trait Limits: Send + Sync {
    /// Whether `set` may take `bytes` more; `pending_bytes` of it wait to be synced.
    ///
    /// # Errors
    /// [`ObjectError::NoSpace`] with the limit that forbids it.
    fn check(&self, set: ObjsetId, bytes: u64, pending_bytes: u64, purpose: Purpose) -> Result<(), ObjectError>;
}

/// How often a transaction waits for freed space to become usable before it is refused.
const SPACE_TRIES: u32 = 4;

/// The pool's gate.
pub struct PoolGate {
    clock: Clock,
    groups: Arc<TxGroups>,
    limits: DirtyLimits,
    space: SpaceSource,
    quotas: OnceLock<Arc<dyn Limits>>,
    /// When the last delayed transaction was let through.
    last_wakeup: Mutex<Nanos>,
}

impl PoolGate {
    /// A gate to the groups of a pool.
    pub fn new(clock: Clock, groups: Arc<TxGroups>, limits: DirtyLimits, space: SpaceSource) -> Arc<Self> {
        Arc::new(PoolGate { clock, groups, limits, space, quotas: OnceLock::new(), last_wakeup: Mutex::default() })
    }

    /// Lets the data sets' own limits count. The first ones given stay.
    pub fn set_limits(&self, limits: Arc<dyn Limits>) {
        // A second call has nothing to add.
        let _ = self.quotas.set(limits);
    }

    /// Its limits of memory.
    pub fn dirty_limits(&self) -> DirtyLimits {
        self.limits
    }

    /// The pool's space now.
    pub fn space(&self) -> PoolSpace {
        (self.space)()
    }

    async fn enter(&self, set: ObjsetId, bytes: u64, purpose: Purpose) -> Result<Tx, ObjectError> {
        let started = self.clock.now();
        self.wait_for_space(bytes, purpose).await?;
        if let Some(quotas) = self.quotas.get() {
            quotas.check(set, bytes, self.groups.dirty_bytes(), purpose)?;
        }
        while self.groups.dirty_bytes() >= self.limits.max_bytes {
            self.groups.push();
            self.groups.wait_synced(Txg(self.groups.last_synced().0 + 1)).await?;
        }
        self.hold_up(started).await;
        let tx = self.groups.hold()?;
        self.groups.book_dirty(tx.txg(), bytes);
        if self.groups.dirty_bytes_of(tx.txg()) >= self.limits.share(self.limits.sync_percent) {
            self.groups.push();
        }
        Ok(tx)
    }

    async fn wait_for_space(&self, bytes: u64, purpose: Purpose) -> Result<(), ObjectError> {
        for _ in 0..SPACE_TRIES {
            let space = self.space();
            let wanted = bytes.saturating_add(self.groups.dirty_bytes());
            if wanted <= space.available(purpose) {
                return Ok(());
            }
            // What is not usable yet may be enough, and what is estimated may be less.
            let later = PoolSpace { deferred_bytes: 0, ..space };
            if bytes > later.available(purpose) {
                break;
            }
            let open = self.groups.open();
            self.groups.push();
            self.groups.wait_synced(open).await?;
        }
        let space = self.space();
        if bytes <= space.available(purpose) {
            return Ok(());
        }
        Err(ObjectError::NoSpace { bytes })
    }

    /// Waits as long as the curve says for what is dirty now.
    async fn hold_up(&self, started: Nanos) {
        let delay = self.limits.delay(self.groups.dirty_bytes());
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

impl Gate for PoolGate {
    fn admit<'a>(
        &'a self,
        _rq: &'a Request,
        set: ObjsetId,
        bytes: u64,
        purpose: Purpose,
    ) -> BoxFuture<'a, Result<Tx, ObjectError>> {
        Box::pin(self.enter(set, bytes, purpose))
    }

    fn groups(&self) -> &Arc<TxGroups> {
        &self.groups
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
        let space = PoolSpace { size_bytes: 1000, used_bytes: 960, deferred_bytes: 0, slop_bytes: 48 };
        assert_eq!(space.available(Purpose::Write), 0);
        assert_eq!(space.available(Purpose::Names), 16);
        assert_eq!(space.available(Purpose::Free), 34);
    }
}

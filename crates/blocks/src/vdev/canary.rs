//! Planted bugs in the treatment of devices that hang, are slow, answer late, come back stale or fail flushes.
//!
//! With the feature `canary`, a test plants one in the vdev tree and must find it with the simulator's faults. Without the
//! feature there is no bug and no code for one.

#[cfg(feature = "canary")]
use std::sync::atomic::{AtomicU8, Ordering};

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DeviceBug {
    /// Operations in progress of a device that is taken out of service wait on.
    KeepsWaiting = 1,
    /// Slow operations are not counted.
    CountsNothingSlow,
    /// A device is put back while operations from before are in progress.
    PutBackEarly,
    /// A device that is put back counts as complete.
    ForgetsDtl,
    /// After a failed flush the next one is trusted, without repeating the writes.
    TrustsNextFlush,
    /// A resilver leaves out the blocks of every other txg.
    SkipsResilver,
    /// A RAID-Z expansion overwrites places that only the next uberblock does not need.
    OverrunsReflow,
}

/// The planted bug, if there is one.
#[derive(Debug, Default)]
pub(super) struct Canary {
    #[cfg(feature = "canary")]
    bug: AtomicU8,
}

impl Canary {
    #[cfg(feature = "canary")]
    pub fn plant(&self, bug: DeviceBug) {
        self.bug.store(bug as u8, Ordering::Relaxed);
    }

    #[cfg(feature = "canary")]
    pub fn has(&self, bug: DeviceBug) -> bool {
        self.bug.load(Ordering::Relaxed) == bug as u8
    }

    #[cfg(not(feature = "canary"))]
    #[allow(clippy::unused_self, reason = "the other form of this function needs it")]
    pub fn has(&self, _bug: DeviceBug) -> bool {
        false
    }
}

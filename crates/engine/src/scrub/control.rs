//! State of the scan (scrub or resilver) of an open pool in this process, and requests to interrupt it.

use super::pass::ScanCycle;
use futures_util::lock::Mutex as AsyncMutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// State of the scan of an open pool in this process.
#[derive(Debug, Default)]
pub(crate) struct ScanControl {
    /// The blocks that the scan has found and read since its recorded position. A pass holds the lock.
    pub cycle: AsyncMutex<Option<ScanCycle>>,
    /// Nanoseconds that the record, which has whole seconds, does not have yet; less than 0 if it has more.
    pub unrecorded_ns: AtomicI64,
    interrupts: AtomicU64,
    is_closed: AtomicBool,
}

impl ScanControl {
    /// Makes the pass in progress end after the reads that it has begun.
    pub fn interrupt(&self) {
        self.interrupts.fetch_add(1, Ordering::SeqCst);
    }

    /// Number of interrupts so far.
    pub fn interrupts(&self) -> u64 {
        self.interrupts.load(Ordering::SeqCst)
    }

    /// Ends the scan in this process: the pool is being closed.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.interrupt();
    }

    /// Whether no pass may begin.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }
}

//! Counters of one leaf.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of a leaf's reads since the pool was opened.
#[derive(Debug, Default)]
pub struct Counters {
    pub(super) reads: AtomicU64,
    pub(super) read_bytes: AtomicU64,
    pub(super) read_errors: AtomicU64,
    checksum_errors: AtomicU64,
}

/// Values of a leaf's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Completed reads, including failed ones.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Failed reads.
    pub read_errors: u64,
    /// Reads that returned wrong bytes.
    pub checksum_errors: u64,
    /// Completed writes.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Failed writes and flushes.
    pub write_errors: u64,
    /// Bytes written as repairs.
    pub repaired_bytes: u64,
    /// Operations that took longer than the threshold of slow I/O.
    pub slow: u64,
}

impl Counters {
    /// Present values of the read counters.
    pub fn counts(&self) -> Counts {
        Counts {
            reads: self.reads.load(Ordering::Relaxed),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            read_errors: self.read_errors.load(Ordering::Relaxed),
            checksum_errors: self.checksum_errors.load(Ordering::Relaxed),
            ..Counts::default()
        }
    }

    /// Sets the counters of errors to zero.
    pub(super) fn clear_errors(&self) {
        self.read_errors.store(0, Ordering::Relaxed);
        self.checksum_errors.store(0, Ordering::Relaxed);
    }

    /// Counts a read that returned wrong bytes.
    pub(crate) fn checksum_error(&self) {
        self.checksum_errors.fetch_add(1, Ordering::Relaxed);
    }
}

//! State of a leaf for writing: counters, DTL, flushes and the queue of writes.

use super::Dtl;
use super::canary::Canary;
use super::dtl::LeafDtl;
use super::flush::Flusher;
use super::kept::KeptWrite;
use super::leaf_write::LeafWriteQueue;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_format::Txg;
use weir_machine::Clock;
use weir_machine::lock::{Mutex, MutexGuard, order};

/// State of a leaf for writing.
#[derive(Debug)]
pub(super) struct LeafWrites {
    writes: AtomicU64,
    write_bytes: AtomicU64,
    pub write_errors: AtomicU64,
    pub repaired_bytes: AtomicU64,
    pub flusher: Flusher,
    pub canary: Canary,
    dtl: Mutex<LeafDtl, { order::DTL }>,
    pub writers: LeafWriteQueue,
}

/// Write counters of a leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WriteCounts {
    pub writes: u64,
    pub write_bytes: u64,
    pub write_errors: u64,
    pub repaired_bytes: u64,
}

impl LeafWrites {
    pub fn counts(&self) -> WriteCounts {
        WriteCounts {
            writes: self.writes.load(Ordering::Relaxed),
            write_bytes: self.write_bytes.load(Ordering::Relaxed),
            write_errors: self.write_errors.load(Ordering::Relaxed),
            repaired_bytes: self.repaired_bytes.load(Ordering::Relaxed),
        }
    }

    pub fn new(dtl: Dtl, clock: &Clock) -> Self {
        LeafWrites {
            writes: AtomicU64::default(),
            write_bytes: AtomicU64::default(),
            write_errors: AtomicU64::default(),
            repaired_bytes: AtomicU64::default(),
            flusher: Flusher::default(),
            canary: Canary::default(),
            dtl: Mutex::new(LeafDtl::new(dtl)),
            writers: LeafWriteQueue::new(clock),
        }
    }

    /// Locks the DTL; the lock is held for a few instructions.
    pub fn dtl(&self) -> MutexGuard<'_, LeafDtl> {
        self.dtl.lock()
    }

    /// Counts a completed write.
    pub fn count(&self, len: u64) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.write_bytes.fetch_add(len, Ordering::Relaxed);
    }

    /// Counts a completed or failed write of a block of `txg`, or of a label; one that completed is kept until a flush
    /// covers it. Returns whether so much is kept that the caller should flush.
    ///
    /// A write that fails because its device `is_out` of service is no error of the device (OpenZFS `vdev_stat_update`).
    pub fn record(&self, len: u64, ok: bool, is_out: bool, txg: Option<Txg>, write: KeptWrite) -> bool {
        if ok {
            self.count(len);
        } else if !is_out {
            self.write_errors.fetch_add(1, Ordering::Relaxed);
        }
        // A part may have been written even if the write failed.
        self.flusher.wrote(txg, Some(write).filter(|_| ok))
    }
}

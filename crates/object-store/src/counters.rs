//! Requests of a disk: how many of each kind, bytes, repetitions and time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads of objects or ranges.
    Get,
    /// Writes of objects.
    Put,
    /// Questions for an object's tag.
    Head,
    /// Deletions.
    Delete,
}

/// Kinds with their names, in the order of [`Counts::requests`].
pub const KINDS: [(Kind, &str); 4] =
    [(Kind::Get, "get"), (Kind::Put, "put"), (Kind::Head, "head"), (Kind::Delete, "delete")];

/// Counters of a disk since the process named it first.
#[derive(Debug, Default)]
pub struct Counters {
    requests: [AtomicU64; 4],
    time_ns: [AtomicU64; 4],
    longest_ns: [AtomicU64; 4],
    failed: [AtomicU64; 4],
    retries: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

/// The values of [`Counters`] at an instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests by kind that were sent, in the order of [`KINDS`]; also those that failed or are not answered yet.
    pub requests: [u64; 4],
    /// Sums of the times in nanoseconds that requests took, by kind.
    pub time_ns: [u64; 4],
    /// Times in nanoseconds of the longest requests, by kind.
    pub longest_ns: [u64; 4],
    /// Requests by kind that were not answered with success. A condition that was not met counts.
    pub failed: [u64; 4],
    /// Requests that repeat one of the same operation.
    pub retries: u64,
    /// Bytes of objects received.
    pub read_bytes: u64,
    /// Bytes of objects sent.
    pub written_bytes: u64,
}

impl Counters {
    /// Counts a request that is sent.
    pub fn sent(&self, kind: Kind) {
        self.requests[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the end of a request: its answer, or its time limit.
    pub fn ended(&self, kind: Kind, time: Duration, is_success: bool) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.time_ns[kind as usize].fetch_add(ns, Ordering::Relaxed);
        self.longest_ns[kind as usize].fetch_max(ns, Ordering::Relaxed);
        self.failed[kind as usize].fetch_add(u64::from(!is_success), Ordering::Relaxed);
    }

    /// Counts a repetition.
    pub fn retried(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts bytes received and sent.
    pub fn moved(&self, read_bytes: u64, written_bytes: u64) {
        self.read_bytes.fetch_add(read_bytes, Ordering::Relaxed);
        self.written_bytes.fetch_add(written_bytes, Ordering::Relaxed);
    }

    /// The values now.
    pub fn now(&self) -> Counts {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            requests: self.requests.each_ref().map(value),
            time_ns: self.time_ns.each_ref().map(value),
            longest_ns: self.longest_ns.each_ref().map(value),
            failed: self.failed.each_ref().map(value),
            retries: value(&self.retries),
            read_bytes: value(&self.read_bytes),
            written_bytes: value(&self.written_bytes),
        }
    }
}

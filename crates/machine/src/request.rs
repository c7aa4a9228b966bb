//! The context of one client request, carried by reference all the way down. Each floor books on it what it gave.

use std::sync::atomic::{AtomicU64, Ordering};

/// Where bytes came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The ARC, put there by an earlier demand.
    ArcDemand,
    /// The ARC, put there by prefetch.
    ArcPrefetch,
    /// The second-level cache.
    L2arc,
    /// The intent log.
    Log,
    /// A disk.
    Disk,
    /// No storage: holes and payloads embedded in pointers.
    Nothing,
}

impl Source {
    /// All of them, in the order of their index.
    pub const ALL: [Source; 6] =
        [Source::ArcDemand, Source::ArcPrefetch, Source::L2arc, Source::Log, Source::Disk, Source::Nothing];
}

/// How urgent a block is: OpenZFS's I/O classes for reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Somebody waits.
    #[default]
    Sync,
    /// Prefetch.
    Async,
    /// Scrub, verification: every copy of a block is read and tested, not just the first that is right.
    Scrub,
}

/// One client request (or one internal job), with what it was given.
#[derive(Debug, Default)]
pub struct Request {
    /// Who asks: a client's address or a job's name.
    pub client: String,
    /// Protocol: `nfs3`, `nbd`, `fuse`, `internal`.
    pub protocol: &'static str,
    /// Operation, in the protocol's words.
    pub operation: &'static str,
    /// Urgency of what it reads.
    pub priority: Priority,
    /// The thread that asks has nothing else to do until its device has answered ([`crate::Io::here`]).
    pub here: bool,
    served_bytes: [AtomicU64; 6],
    device_ops: AtomicU64,
    device_wait_ns: AtomicU64,
}

impl Request {
    /// A new context.
    pub fn new(client: impl Into<String>, protocol: &'static str, operation: &'static str) -> Self {
        Request { client: client.into(), protocol, operation, ..Request::default() }
    }

    /// A context for work that no client asked for.
    pub fn internal(operation: &'static str) -> Self {
        Request::new("", "internal", operation)
    }

    /// The same with another urgency.
    pub fn with_priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// The same from a thread that has nothing else to do, or has.
    pub fn with_here(mut self, here: bool) -> Self {
        self.here = here;
        self
    }

    /// Books `bytes` given by `source`.
    pub fn book(&self, source: Source, bytes: u64) {
        self.served_bytes[source as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Books one device operation and the time waited for it.
    pub fn book_device(&self, wait_ns: u64) {
        self.device_ops.fetch_add(1, Ordering::Relaxed);
        self.device_wait_ns.fetch_add(wait_ns, Ordering::Relaxed);
    }

    /// Bytes given by `source` so far.
    pub fn served_bytes(&self, source: Source) -> u64 {
        self.served_bytes[source as usize].load(Ordering::Relaxed)
    }

    /// Device operations so far, and nanoseconds waited for them.
    pub fn device(&self) -> (u64, u64) {
        (self.device_ops.load(Ordering::Relaxed), self.device_wait_ns.load(Ordering::Relaxed))
    }
}

/// Totals over many requests: what a door has served.
#[derive(Debug, Default)]
pub struct Served {
    bytes: [AtomicU64; Source::ALL.len()],
    requests: AtomicU64,
}

impl Served {
    /// Adds what a finished request was given.
    pub fn book(&self, request: &Request) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        for (total, bytes) in self.bytes.iter().zip(&request.served_bytes) {
            total.fetch_add(bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Requests so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Bytes given by `source` so far.
    pub fn bytes(&self, source: Source) -> u64 {
        self.bytes[source as usize].load(Ordering::Relaxed)
    }
}

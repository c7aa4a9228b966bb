//! The context of one client request, passed by reference to all layers. Each layer records the bytes that it served.

use std::sync::atomic::{AtomicU64, Ordering};

/// The source of bytes served to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The ARC, cached by an earlier demand read or a write.
    ArcDemand,
    /// The ARC, cached by prefetch.
    ArcPrefetch,
    /// The second-level cache; not yet recorded.
    L2arc,
    /// The intent log; not yet recorded.
    Log,
    /// A disk.
    Disk,
    /// No storage: holes and payloads embedded in pointers.
    Hole,
    /// Dirty data: written, and not synced yet.
    Dirty,
}

impl Source {
    /// All sources, in the order of their discriminants.
    pub const ALL: [Source; 7] =
        [Source::ArcDemand, Source::ArcPrefetch, Source::L2arc, Source::Log, Source::Disk, Source::Hole, Source::Dirty];
}

/// I/O priority class of reads, as in OpenZFS (`ZIO_PRIORITY_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Synchronous read: a client waits for it.
    #[default]
    Sync,
    /// Asynchronous read: prefetch.
    Async,
    /// Scrub or verification: all copies of a block are read and verified.
    Scrub,
}

/// One client request or internal job, with the bytes served to it.
#[derive(Debug, Default)]
pub struct Request {
    /// The client's address; empty for internal jobs.
    pub client: String,
    /// Protocol: `nfs3`, `nbd`, `fuse`, `internal`.
    pub protocol: &'static str,
    /// Operation, as named by the protocol.
    pub operation: &'static str,
    /// Priority of its reads.
    pub priority: Priority,
    /// The requesting thread is idle until its device operations complete ([`crate::Io::here`]).
    pub here: bool,
    served_bytes: [AtomicU64; Source::ALL.len()],
    device_ops: AtomicU64,
    device_wait_ns: AtomicU64,
}

impl Request {
    /// A new request context.
    pub fn new(client: impl Into<String>, protocol: &'static str, operation: &'static str) -> Self {
        Request { client: client.into(), protocol, operation, ..Request::default() }
    }

    /// A context for internal work.
    pub fn internal(operation: &'static str) -> Self {
        Request::new("", "internal", operation)
    }

    /// Sets the priority.
    pub fn with_priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Sets whether the requesting thread is idle meanwhile.
    pub fn with_here(mut self, here: bool) -> Self {
        self.here = here;
        self
    }

    /// Records `bytes` served by `source`.
    pub fn record(&self, source: Source, bytes: u64) {
        self.served_bytes[source as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Records one device operation and the time spent waiting for it, in nanoseconds.
    pub fn record_device(&self, wait_ns: u64) {
        self.device_ops.fetch_add(1, Ordering::Relaxed);
        self.device_wait_ns.fetch_add(wait_ns, Ordering::Relaxed);
    }

    /// Bytes served by `source` so far.
    pub fn served_bytes(&self, source: Source) -> u64 {
        self.served_bytes[source as usize].load(Ordering::Relaxed)
    }

    /// Number of device operations so far, and nanoseconds spent waiting for them.
    pub fn device(&self) -> (u64, u64) {
        (self.device_ops.load(Ordering::Relaxed), self.device_wait_ns.load(Ordering::Relaxed))
    }
}

/// Totals over the requests of a server.
#[derive(Debug, Default)]
pub struct RequestTotals {
    bytes: [AtomicU64; Source::ALL.len()],
    requests: AtomicU64,
}

impl RequestTotals {
    /// Adds the bytes served to a finished request.
    pub fn record(&self, request: &Request) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        for (total, bytes) in self.bytes.iter().zip(&request.served_bytes) {
            total.fetch_add(bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Number of requests so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Bytes served by `source` so far.
    pub fn bytes(&self, source: Source) -> u64 {
        self.bytes[source as usize].load(Ordering::Relaxed)
    }
}

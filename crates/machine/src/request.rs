//! The context of one client request, passed by reference to all layers. Each layer records the bytes and the time that
//! it contributed.
//!
//! ```text
//!   server: Request::new(client, operation) ─► files, volumes ─► dmu ─► cache ─► blocks ─► disk
//!      │                                          │ target        │ bytes by source, time by stage
//!      └── Accounts::record(&request, …) ◄────────┴───────────────┘
//! ```
//!
//! *Answered and support bytes.* A read of a file or volume answers a range of bytes; [`Request::answer`] records each of
//! them once, with its source. Everything else that is read for the request (indirect blocks, dnodes, directories, the
//! rest of a block that is changed in part) is recorded with [`Request::support`], in whole blocks. So the answered
//! bytes of all sources add up to the bytes of the answer.
//!
//! A request holds numbers only: a layer that records something writes to a fixed slot and allocates nothing. One task works on
//! a request, on one thread at a time, so the slots need no locked addition; debug builds check that no addition is lost.
//! Compiled with `--cfg weir_no_accounting`, the slots stay zero; `cargo xtask bench accounting` compares the two.

use crate::accounts::{Client, Origin, RequestClient};
use crate::invariant;
use crate::time::{Clock, Nanos};
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::Poll;

/// Whether requests are accounted. `--cfg weir_no_accounting` turns it off, to measure its cost.
pub(crate) const IS_ACCOUNTED: bool = !cfg!(weir_no_accounting);

/// The source of bytes that were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The ARC, cached by an earlier demand read or a write.
    ArcDemand,
    /// The ARC, cached by prefetch.
    ArcPrefetch,
    /// Cache devices (L2ARC).
    L2arc,
    /// The intent log: blocks read to claim and to replay it.
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

    /// The source's name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Source::ArcDemand => "arc demand",
            Source::ArcPrefetch => "arc prefetched",
            Source::L2arc => "l2arc",
            Source::Log => "intent log",
            Source::Disk => "disk",
            Source::Hole => "holes",
            Source::Dirty => "dirty data",
        }
    }
}

/// Part of the way of a request in which time passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Waiting for a suspended pool, for the open txg, or for space that recent frees return.
    Admission,
    /// Delayed by the write throttle.
    Throttle,
    /// Waiting for a lock that another request holds.
    Locks,
    /// Waiting for a block that another request is reading.
    Cache,
    /// In the queue of a device.
    Queue,
    /// At a device.
    Device,
    /// Checksums, compression, encryption and parity of blocks, and waiting for a processor that computes them.
    Compute,
    /// Waiting for the intent log to make changes stable.
    LogCommit,
    /// Waiting for a txg to sync.
    TxgSync,
}

impl Stage {
    /// All stages, in the order of their discriminants.
    pub const ALL: [Stage; 9] = [
        Stage::Admission,
        Stage::Throttle,
        Stage::Locks,
        Stage::Cache,
        Stage::Queue,
        Stage::Device,
        Stage::Compute,
        Stage::LogCommit,
        Stage::TxgSync,
    ];

    /// The stage's name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Admission => "admission",
            Stage::Throttle => "throttle",
            Stage::Locks => "locks",
            Stage::Cache => "cache",
            Stage::Queue => "queue",
            Stage::Device => "device",
            Stage::Compute => "compute",
            Stage::LogCommit => "log commit",
            Stage::TxgSync => "txg sync",
        }
    }
}

/// Protocol of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// Work of the pool itself, or of a command.
    #[default]
    Internal,
    /// NFS version 3, with MOUNT.
    Nfs3,
    /// Network Block Device.
    Nbd,
    /// A FUSE mount.
    Fuse,
    /// SCSI commands over iSCSI.
    Iscsi,
    /// SMB, through a FUSE mount for smbd.
    Smb,
}

impl Protocol {
    /// All protocols, in the order of their discriminants.
    pub const ALL: [Protocol; 6] =
        [Protocol::Internal, Protocol::Nfs3, Protocol::Nbd, Protocol::Fuse, Protocol::Iscsi, Protocol::Smb];

    /// The protocol's name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Internal => "internal",
            Protocol::Nfs3 => "nfs3",
            Protocol::Nbd => "nbd",
            Protocol::Fuse => "fuse",
            Protocol::Iscsi => "iscsi",
            Protocol::Smb => "smb",
        }
    }
}

/// Defines [`Operation`]: its variants, their slots and their names.
macro_rules! operations {
    ($($(#[$doc:meta])* $variant:ident => $name:literal,)*) => {
        /// Operation of a request. Operations of different protocols that do the same have one variant.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Operation {
            $($(#[$doc])* $variant,)*
            /// Internal work, with its name.
            Internal(&'static str),
        }

        impl Operation {
            /// All operations of clients, in the order of their slots.
            pub const OF_CLIENTS: &'static [Operation] = &[$(Operation::$variant,)*];

            /// The operation's name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Operation::$variant => $name,)*
                    Operation::Internal(name) => name,
                }
            }

            /// The operation's slot in tables: below [`Operation::SLOTS`]. All internal work has one slot, the last.
            pub fn slot(self) -> usize {
                match self {
                    $(Operation::$variant => Slot::$variant as usize,)*
                    Operation::Internal(_) => Slot::Internal as usize,
                }
            }

            /// Number of slots.
            pub const SLOTS: usize = Slot::Internal as usize + 1;
        }

        /// The slots, in order.
        enum Slot {
            $($variant,)*
            Internal,
        }
    };
}

operations! {
    /// An operation that the server does not know.
    Unknown => "unknown",
    /// No operation: a test of the connection.
    Null => "null",
    /// Read data.
    Read => "read",
    /// Write data.
    Write => "write",
    /// Make earlier writes stable: NFS COMMIT, NBD FLUSH, fsync.
    Flush => "flush",
    /// Look up a name.
    Lookup => "lookup",
    /// Read attributes.
    GetAttr => "getattr",
    /// Change attributes, including the size.
    SetAttr => "setattr",
    /// Test permissions.
    Access => "access",
    /// Read a symbolic link.
    ReadLink => "readlink",
    /// Create a file.
    Create => "create",
    /// Create a directory.
    MkDir => "mkdir",
    /// Create a symbolic link.
    Symlink => "symlink",
    /// Create a device, FIFO or socket.
    MkNod => "mknod",
    /// Remove a file.
    Remove => "remove",
    /// Remove a directory.
    RmDir => "rmdir",
    /// Rename.
    Rename => "rename",
    /// Create a hard link.
    Link => "link",
    /// List a directory.
    ReadDir => "readdir",
    /// List a directory with attributes.
    ReadDirPlus => "readdirplus",
    /// Statistics or limits of a file system.
    StatFs => "statfs",
    /// Open a file, a directory or a block device.
    Open => "open",
    /// Close a file or a directory.
    Release => "release",
    /// Read an extended attribute.
    GetXattr => "getxattr",
    /// List extended attributes.
    ListXattr => "listxattr",
    /// Set an extended attribute.
    SetXattr => "setxattr",
    /// Remove an extended attribute.
    RemoveXattr => "removexattr",
    /// Find data or a hole.
    Seek => "lseek",
    /// Allocate or punch a range of a file.
    Allocate => "fallocate",
    /// Copy a range between files.
    Copy => "copy_file_range",
    /// Read or set flags of a file.
    Ioctl => "ioctl",
    /// Free a range of a volume.
    Trim => "trim",
    /// Write zeros to a volume.
    WriteZeroes => "write zeroes",
    /// Read a range of a volume ahead.
    Cache => "cache",
    /// List the allocated ranges of a volume.
    BlockStatus => "block status",
    /// Mount, unmount or list exports.
    Mount => "mount",
    /// Test, take or release a lock.
    Lock => "lock",
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

/// The range that a request reads or changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Number of the object set of the dataset; 0 until it is known.
    pub dataset: u64,
    /// Number of the object.
    pub object: u64,
    /// Offset of the first byte.
    pub offset_bytes: u64,
    /// Length.
    pub size_bytes: u64,
}

/// One client request or internal job, with what was recorded for it.
#[derive(Debug)]
pub struct Request {
    /// The client.
    pub client: RequestClient,
    /// Whether another request of the client was in progress when this one began.
    pub is_overlapping: bool,
    /// User ID of the caller, if the protocol has one.
    pub user: Option<u32>,
    /// Operation.
    pub operation: Operation,
    /// Priority of its reads.
    pub priority: Priority,
    /// The requesting thread is idle until its device operations complete ([`crate::Io::here`]).
    pub here: bool,
    /// Time at which the request began.
    pub begun: Nanos,
    target: [AtomicU64; 4],
    slots: [AtomicU64; SLOTS],
    /// Bit n is set once slot n was added to: most slots of a request stay zero.
    used: AtomicU32,
}

/// The slots of a request: bytes answered and support bytes by source, time by stage, bytes written, device operations.
pub(crate) const ANSWERED: Range<usize> = 0..Source::ALL.len();
pub(crate) const SUPPORT: Range<usize> = ANSWERED.end..ANSWERED.end + Source::ALL.len();
pub(crate) const STAGES: Range<usize> = SUPPORT.end..SUPPORT.end + Stage::ALL.len();
pub(crate) const WRITTEN: usize = STAGES.end;
pub(crate) const DEVICE_OPS: usize = WRITTEN + 1;
/// Number of slots.
pub(crate) const SLOTS: usize = DEVICE_OPS + 1;
const _: () = assert!(SLOTS <= u32::BITS as usize);

impl Default for Request {
    fn default() -> Self {
        Request::internal("unnamed")
    }
}

impl Request {
    /// A new request of `client`.
    pub fn new(client: &Client, operation: Operation) -> Self {
        Request::new_at(client, operation, Nanos::default())
    }

    /// A new request of `client` that began at `begun`.
    #[inline(always)]
    pub(crate) fn new_at(client: &Client, operation: Operation, begun: Nanos) -> Self {
        let (client, is_overlapping) = client.begin_request();
        let zeros = || AtomicU64::new(0);
        Request {
            client,
            is_overlapping,
            user: None,
            operation,
            priority: Priority::Sync,
            here: false,
            begun,
            target: std::array::from_fn(|_| zeros()),
            slots: std::array::from_fn(|_| zeros()),
            used: AtomicU32::new(0),
        }
    }

    /// A context for internal work.
    pub fn internal(name: &'static str) -> Self {
        Request::new(&Client::INTERNAL, Operation::Internal(name))
    }

    /// Sets the priority.
    pub fn with_priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Sets the user.
    pub fn with_user(mut self, user: u32) -> Self {
        self.user = Some(user);
        self
    }

    /// Sets whether the requesting thread is idle meanwhile.
    pub fn with_here(mut self, here: bool) -> Self {
        self.here = here;
        self
    }

    /// The protocol of the client.
    pub fn protocol(&self) -> Protocol {
        self.client.protocol()
    }

    /// The origin of the data that this request writes.
    pub fn origin(&self) -> Origin {
        self.client.origin()
    }

    /// Sets the range that the request reads or changes. Of several, the first is kept.
    pub fn set_target(&self, target: Target) {
        let Target { dataset, object, offset_bytes, size_bytes } = target;
        if IS_ACCOUNTED && self.target[0].load(Ordering::Relaxed) == 0 {
            let words = [dataset, object, offset_bytes, size_bytes];
            self.target.iter().zip(words).for_each(|(slot, word)| slot.store(word, Ordering::Relaxed));
        }
    }

    /// The range that the request reads or changes.
    pub fn target(&self) -> Target {
        let [dataset, object, offset_bytes, size_bytes] =
            std::array::from_fn(|n| self.target.get(n).map_or(0, |word| word.load(Ordering::Relaxed)));
        Target { dataset, object, offset_bytes, size_bytes }
    }

    /// Records `bytes` of the answer, from `source`.
    pub fn answer(&self, source: Source, bytes: u64) {
        self.add(ANSWERED.start + source as usize, bytes);
    }

    /// Records `bytes` that were read from `source` for the request but are not part of its answer.
    pub fn support(&self, source: Source, bytes: u64) {
        self.add(SUPPORT.start + source as usize, bytes);
    }

    /// Records `bytes` that the request wrote, before compression and redundancy.
    pub fn wrote(&self, bytes: u64) {
        self.add(WRITTEN, bytes);
    }

    /// Records time spent in a stage, in nanoseconds.
    pub fn spent(&self, stage: Stage, ns: u64) {
        self.add(STAGES.start + stage as usize, ns);
    }

    /// Waits for `work`, and records the time in `stage`. Work that need not wait costs no time stamp.
    pub async fn timed<T>(&self, clock: &Clock, stage: Stage, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        if let Some(done) = poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => Poll::Ready(None),
        })
        .await
        {
            return done;
        }
        let started = if IS_ACCOUNTED { clock.now() } else { Nanos::default() };
        let done = work.await;
        if IS_ACCOUNTED {
            self.spent(stage, clock.now().ns_since(started));
        }
        done
    }

    /// Does `work` on this thread, and records the time as [`Stage::Compute`].
    pub fn compute<T>(&self, clock: &Clock, work: impl FnOnce() -> T) -> T {
        if !IS_ACCOUNTED {
            return work();
        }
        let started = clock.now();
        let done = work();
        self.spent(Stage::Compute, clock.now().ns_since(started));
        done
    }

    /// Waits for `work` of other threads or of this one, and records all of the time as [`Stage::Compute`].
    pub async fn wait_computed<T>(&self, clock: &Clock, work: impl Future<Output = T>) -> T {
        if !IS_ACCOUNTED {
            return work.await;
        }
        let started = clock.now();
        let done = work.await;
        self.spent(Stage::Compute, clock.now().ns_since(started));
        done
    }

    /// Records one device operation: the time in nanoseconds from its request to its answer, and how much of it was spent in
    /// the queue.
    pub fn record_device(&self, ns: u64, queued_ns: u64) {
        debug_assert!(queued_ns <= ns, "in the queue for {queued_ns} of {ns} ns");
        self.add(DEVICE_OPS, 1);
        self.spent(Stage::Queue, queued_ns);
        self.spent(Stage::Device, ns.saturating_sub(queued_ns));
    }

    /// Bytes of the answer from `source` so far.
    pub fn answered_bytes(&self, source: Source) -> u64 {
        self.slot(ANSWERED.start + source as usize)
    }

    /// Bytes from `source` so far that are not part of the answer.
    pub fn support_bytes(&self, source: Source) -> u64 {
        self.slot(SUPPORT.start + source as usize)
    }

    /// Bytes from `source` so far, answered or not.
    pub fn read_bytes(&self, source: Source) -> u64 {
        self.answered_bytes(source) + self.support_bytes(source)
    }

    /// Bytes written so far.
    pub fn written_bytes(&self) -> u64 {
        self.slot(WRITTEN)
    }

    /// Nanoseconds spent in a stage so far. Stages of concurrent device operations add up, so the sum may exceed the
    /// duration of the request.
    pub fn stage_ns(&self, stage: Stage) -> u64 {
        self.slot(STAGES.start + stage as usize)
    }

    /// The slots that were added to, with their sums.
    #[inline]
    pub(crate) fn used(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        let mut used = self.used.load(Ordering::Relaxed);
        std::iter::from_fn(move || {
            let slot = used.trailing_zeros() as usize;
            // Removes the lowest bit; there is none after the last slot.
            used &= used.wrapping_sub(1);
            self.slots.get(slot).map(|sum| (slot, sum.load(Ordering::Relaxed)))
        })
    }

    fn slot(&self, slot: usize) -> u64 {
        self.slots.get(slot).map_or(0, |sum| sum.load(Ordering::Relaxed))
    }

    /// Adds to a slot, unless accounting is compiled out.
    ///
    /// Only the task that works on the request adds, so a load and a store are enough: a locked addition takes 20 cycles.
    #[inline]
    fn add(&self, slot: usize, n: u64) {
        let Some(sum) = self.slots.get(slot).filter(|_| IS_ACCOUNTED && n != 0) else { return };
        let before = sum.load(Ordering::Relaxed);
        if cfg!(debug_assertions) {
            let now = sum.fetch_add(n, Ordering::Relaxed);
            invariant!(now == before, "two threads add to one request at once: {now} after {before}");
        } else {
            sum.store(before.wrapping_add(n), Ordering::Relaxed);
        }
        self.used.store(self.used.load(Ordering::Relaxed) | 1 << slot, Ordering::Relaxed);
    }

    /// Number of device operations so far.
    pub fn device_ops(&self) -> u64 {
        self.slot(DEVICE_OPS)
    }
}

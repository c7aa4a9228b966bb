//! The disk interface: the trait [`Disk`] and its operations.
//!
//! An [`Io`] owns its buffers until completion; they return through `io.done`. One contiguous range may fill several
//! buffers, or be written from several parts, so that adjacent transfers become one operation. Dropping the future
//! that waits for an operation does not cancel it: the disk still owns the memory, because io_uring and DMA may still
//! access it.
//!
//! Data to be written is shared, not owned: [`Bytes`] are immutable, so the client, the cache and several disks can
//! use the same memory without a copy. A disk that requires alignment copies unaligned memory; buffers of a
//! [`crate::BufPool`] are aligned.
//!
//! Order: concurrent operations may be performed in any order. A [`Op::Flush`] covers only the writes that were
//! *completed* before it was submitted.
//!
//! Failure: every operation completes exactly once, unless the disk hangs or drops it. An error has the operation and
//! the range; the buffers of a failed operation are not returned.

use crate::buf::Buf;
use bytes::Bytes;
use futures_channel::oneshot;
use smallvec::{SmallVec, smallvec};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

/// Size and sector size of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Smallest unit of transfer in bytes: offsets and lengths of every [`Io`] are multiples of it.
    pub sector_bytes: u32,
    /// Whether the disk is rotational.
    pub rotational: bool,
}

/// Kind of an [`Io`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Reads into the buffers.
    Read,
    /// Writes the parts.
    Write,
    /// Makes all completed writes durable.
    Flush,
    /// Discards the range: its contents are no longer needed.
    Discard,
}

/// Why an [`Io`] failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DiskError {
    /// The range extends past the end of the disk.
    #[error("{op:?} of {len} bytes at {offset} extends past the end of the disk ({size_bytes} bytes)")]
    OutOfRange {
        /// The operation.
        op: Op,
        /// Start of the range in bytes.
        offset: u64,
        /// Length of the range in bytes.
        len: u64,
        /// Size of the disk in bytes.
        size_bytes: u64,
    },
    /// The operating system returned an error.
    #[error("{op:?} of {len} bytes at {offset}: {}", std::io::Error::from_raw_os_error(*.errno))]
    Os {
        /// The operation.
        op: Op,
        /// Start of the range in bytes.
        offset: u64,
        /// Length of the range in bytes.
        len: u64,
        /// `errno`.
        errno: i32,
    },
    /// The file ended before the range did: it shrank after it was opened.
    #[error("{op:?} of {len} bytes at {offset}: only {done} bytes transferred")]
    Short {
        /// The operation.
        op: Op,
        /// Start of the range in bytes.
        offset: u64,
        /// Length of the range in bytes.
        len: u64,
        /// Number of bytes transferred.
        done: u64,
    },
    /// The disk is missing, was opened read-only, or the operation is malformed.
    #[error("{op:?}: {why}")]
    Refused {
        /// The operation.
        op: Op,
        /// The reason.
        why: &'static str,
    },
    /// A store of objects failed, or what it has is not what was written.
    #[error("{op:?}: {why}")]
    Store {
        /// The operation.
        op: Op,
        /// Place of the object and the reason.
        why: Box<str>,
    },
    /// A disk in an object store could not be opened.
    #[error("{why}")]
    Unopened {
        /// Place and reason.
        why: Box<str>,
    },
    /// A path could not be opened.
    #[error("{}: {}", .path.display(), std::io::Error::from_raw_os_error(*.errno))]
    Open {
        /// The path.
        path: PathBuf,
        /// `errno`.
        errno: i32,
    },
    /// A file is on a file system that this process serves.
    #[error(
        "{}: this process serves the file system that the file is on, and both would hang if it were killed; use a file elsewhere",
        .path.display()
    )]
    OwnMount {
        /// The path.
        path: PathBuf,
    },
}

impl DiskError {
    /// Whether a path could not be opened because no file descriptor was left, in this process (EMFILE) or in the machine
    /// (ENFILE). It says nothing about the device.
    pub fn lacks_descriptors(&self) -> bool {
        /// `ENFILE` and `EMFILE` of every Unix.
        const NONE_LEFT: [i32; 2] = [23, 24];
        matches!(self, DiskError::Open { errno, .. } if NONE_LEFT.contains(errno))
    }

    /// Whether the device is there, and failed to open, read or write.
    pub fn is_of_device(&self) -> bool {
        const ENOENT: i32 = 2;
        match self {
            DiskError::Os { .. } | DiskError::Short { .. } => true,
            DiskError::Open { errno, .. } => *errno != ENOENT && !self.lacks_descriptors(),
            _ => false,
        }
    }
}

/// The buffers of a read, in the order of their bytes.
pub type Bufs = SmallVec<[Buf; 1]>;

/// The data of a write, in order.
pub type Parts = SmallVec<[Bytes; 1]>;

/// Completion callback of an operation; runs on the completing thread. It must be short (wake a task, start the next
/// operation) and must not block or panic.
pub type Done = Box<dyn FnOnce(Result<Bufs, DiskError>) + Send>;

/// One operation on a disk. It owns its buffers and its completion callback, so dropping the waiting future is safe.
pub struct Io {
    /// The kind of operation.
    pub op: Op,
    /// Start of the range in bytes.
    pub offset: u64,
    /// Length of the range in bytes: the total length of a read's buffers or of a write's parts.
    pub len: u64,
    /// The buffers that a read fills; empty for other operations.
    pub bufs: Bufs,
    /// The data of a write; empty for other operations.
    pub parts: Parts,
    /// The submitting thread would be idle until the operation completes: the disk may perform it on that thread
    /// before `submit` returns, which saves two thread switches.
    pub here: bool,
    /// Called with the result and the buffers.
    pub done: Done,
}

/// A disk, real or simulated.
pub trait Disk: Send + Sync {
    /// The disk's geometry.
    fn geometry(&self) -> Geometry;
    /// Looks again how large the disk is, because it may have grown since it was opened, and returns the geometry from now on.
    fn look_again(&self) -> Geometry {
        self.geometry()
    }
    /// Starts an operation; `io.done` receives the result. Does not block for the transfer, unless `io.here` permits
    /// it.
    fn submit(&self, io: Io);
    /// A buffer for reading `len` bytes. Its contents are unspecified until a read succeeds, since buffers may be
    /// recycled.
    fn buffer(&self, len: usize) -> Buf {
        Buf::zeroed(len)
    }
}

impl dyn Disk {
    /// Reads `len` bytes at `offset`, both multiples of the sector size.
    pub async fn read(&self, offset: u64, len: usize) -> Result<Buf, DiskError> {
        one(self.run(Op::Read, offset, len as u64, smallvec![self.buffer(len)], Parts::new(), false).await)
    }

    /// Reads from `offset` into the buffers in order, as one operation. Each buffer's length is a multiple of the
    /// sector size.
    pub async fn read_into(&self, offset: u64, bufs: Bufs) -> Result<Bufs, DiskError> {
        let len = bufs.iter().map(|buf| buf.len() as u64).sum();
        self.run(Op::Read, offset, len, bufs, Parts::new(), false).await
    }

    /// Writes `bytes` at `offset`.
    pub async fn write(&self, offset: u64, bytes: impl Into<Bytes>) -> Result<(), DiskError> {
        let bytes = bytes.into();
        self.run(Op::Write, offset, bytes.len() as u64, Bufs::new(), smallvec![bytes], false).await.map(drop)
    }

    /// Makes all completed writes durable.
    pub async fn flush(&self) -> Result<(), DiskError> {
        self.flush_for(false).await
    }

    /// Like [`Self::flush`]; with `here`, possibly on this thread ([`Io::here`]).
    pub async fn flush_for(&self, here: bool) -> Result<(), DiskError> {
        self.run(Op::Flush, 0, 0, Bufs::new(), Parts::new(), here).await.map(drop)
    }

    /// Discards `len` bytes at `offset`. Their contents are undefined afterwards.
    pub async fn discard(&self, offset: u64, len: u64) -> Result<(), DiskError> {
        self.run(Op::Discard, offset, len, Bufs::new(), Parts::new(), false).await.map(drop)
    }

    async fn run(
        &self,
        op: Op,
        offset: u64,
        len: u64,
        bufs: Bufs,
        parts: Parts,
        here: bool,
    ) -> Result<Bufs, DiskError> {
        let (sender, result) = oneshot::channel();
        // The waiting future may have been dropped.
        let done: Done = Box::new(move |result| drop(sender.send(result)));
        self.submit(Io { op, offset, len, bufs, parts, here, done });
        result.await.unwrap_or(Err(DiskError::Refused { op, why: "the disk dropped the operation" }))
    }
}

/// The single buffer of a read.
fn one(result: Result<Bufs, DiskError>) -> Result<Buf, DiskError> {
    result.map(|mut bufs| bufs.pop().unwrap_or(Buf::empty()))
}

impl Io {
    /// Completes the operation successfully and returns the buffers.
    pub fn succeed(self) {
        (self.done)(Ok(self.bufs));
    }

    /// Completes the operation with an error.
    pub fn fail(self, error: DiskError) {
        (self.done)(Err(error));
    }

    /// Completes the operation with an error number of the operating system.
    pub fn fail_errno(self, errno: i32) {
        let Io { op, offset, len, .. } = self;
        self.fail(DiskError::Os { op, offset, len, errno });
    }

    /// Validates the operation before it starts.
    ///
    /// # Errors
    /// The range extends past the end, a change is submitted to a read-only disk, or the buffers or parts do not have
    /// `len` bytes in total.
    pub fn check(&self, geometry: &Geometry, access: Access) -> Result<(), DiskError> {
        let Io { op, offset, len, .. } = *self;
        if op != Op::Read && access == Access::ReadOnly {
            return Err(DiskError::Refused { op, why: "the disk was opened read-only" });
        }
        if offset.checked_add(len).is_none_or(|end| end > geometry.size_bytes) {
            return Err(DiskError::OutOfRange { op, offset, len, size_bytes: geometry.size_bytes });
        }
        let memory: Option<usize> = match op {
            Op::Read => Some(self.bufs.iter().map(Buf::len).sum()),
            Op::Write => Some(self.parts.iter().map(Bytes::len).sum()),
            Op::Flush | Op::Discard => None,
        };
        if memory.is_some_and(|bytes| bytes as u64 != len) {
            return Err(DiskError::Refused { op, why: "the buffers' length differs from the range's" });
        }
        Ok(())
    }
}

/// Access mode of an open disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read-only: the disk is never changed.
    ReadOnly,
    /// Reading and writing.
    ReadWrite,
}

/// An amount of money.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Money {
    /// 10⁻⁹ of the currency's unit.
    pub nanos: u64,
    /// Code of the currency, such as `USD`.
    pub currency: String,
}

/// Size of an open disk in a store of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSize {
    /// The disk, as its path names it.
    pub disk: String,
    /// Size of the disk in bytes, of which objects that are missing take no space.
    pub size_bytes: u64,
    /// Price of a month with all objects, by the user's price list; `None` without one.
    pub month: Option<Money>,
}

/// Requests of one kind of a disk in a store of objects, since the process named it first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreRequests {
    /// The disk, as its path names it.
    pub disk: String,
    /// Kind of the requests: `get`, `put`, `head` or `delete`.
    pub kind: &'static str,
    /// Number of requests, also of those that failed.
    pub requests: u64,
    /// Requests that were not answered with success.
    pub failed: u64,
    /// Sum of the times that they took, in nanoseconds.
    pub time_ns: u64,
    /// Time of the longest one, in nanoseconds.
    pub longest_ns: u64,
    /// Bytes of objects received or sent.
    pub bytes: u64,
    /// Repetitions of operations of the disk, in the row of one kind.
    pub retries: u64,
    /// Price of the requests and bytes, by the user's price list; `None` without one.
    pub cost: Option<Money>,
}

/// Finds and opens disks: files and devices in production, a table in the simulator.
pub trait Disks: Send + Sync {
    /// The regular files and block devices directly in `dir`, sorted.
    fn scan(&self, dir: &Path) -> Result<Vec<PathBuf>, DiskError>;
    /// Opens the disk at `path`.
    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn Disk>, DiskError>;
    /// The requests of open disks that are in stores of objects.
    fn store_requests(&self) -> Vec<StoreRequests> {
        Vec::new()
    }
    /// The sizes of open disks that are in stores of objects.
    fn store_sizes(&self) -> Vec<StoreSize> {
        Vec::new()
    }
}

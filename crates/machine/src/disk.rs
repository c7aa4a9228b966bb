//! The disk seam: one trait with two calls, and what goes through it.
//!
//! An [`Io`] is a letter that carries its own envelope: the buffers of a read go down with it and come back through
//! `io.done`. One range may fill several buffers, or come from several parts, one behind the other: neighbours become
//! one operation. Whoever waits may give up at any time (a dropped future); the disk still owns the memory, and its
//! answer then goes nowhere. io_uring and DMA allow nothing less.
//!
//! What is written is shared, not owned: nobody can change [`Bytes`], so the same memory is the client's, the cache's and
//! the way to several disks at once, without a copy. A disk that needs its memory aligned copies what is not; memory of a
//! [`crate::BufPool`] is.
//!
//! Order: operations that are under way at the same time may be done in any order. A [`Op::Flush`] covers the writes
//! that were *completed* before it was submitted, no others.
//!
//! Failure: every operation ends in exactly one answer, except on a disk that hangs or forgets it, which drops it. An error names the operation and
//! the range; the buffer of a failed operation is not given back.

use crate::buf::Buf;
use bytes::Bytes;
use futures_channel::oneshot;
use smallvec::{SmallVec, smallvec};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

/// What a disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Smallest unit of transfer in bytes: offsets and lengths of every [`Io`] are multiples of it.
    pub sector_bytes: u32,
    /// A spinning disk.
    pub rotational: bool,
}

/// What an [`Io`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Fill the buffer from the disk.
    Read,
    /// Write the parts.
    Write,
    /// Make everything written and completed so far durable.
    Flush,
    /// The range's contents are no longer needed.
    Discard,
}

/// Why a disk did not do an [`Io`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DiskError {
    /// The range reaches past the end.
    #[error("{op:?} of {len} bytes at {offset} reaches past the end of the disk ({size_bytes} bytes)")]
    OutOfRange {
        /// What was asked.
        op: Op,
        /// Where.
        offset: u64,
        /// How much.
        len: u64,
        /// The disk's size.
        size_bytes: u64,
    },
    /// The operating system's error number.
    #[error("{op:?} of {len} bytes at {offset}: {}", std::io::Error::from_raw_os_error(*.errno))]
    Os {
        /// What was asked.
        op: Op,
        /// Where.
        offset: u64,
        /// How much.
        len: u64,
        /// `errno`.
        errno: i32,
    },
    /// The file ended before the range did: it shrank after it was opened.
    #[error("{op:?} of {len} bytes at {offset} got only {done}")]
    Short {
        /// What was asked.
        op: Op,
        /// Where.
        offset: u64,
        /// How much.
        len: u64,
        /// Bytes transferred.
        done: u64,
    },
    /// The disk is gone, or was opened read-only and asked to write.
    #[error("{op:?}: {why}")]
    Refused {
        /// What was asked.
        op: Op,
        /// Why not.
        why: &'static str,
    },
    /// A path that could not be opened.
    #[error("{}: {}", .path.display(), std::io::Error::from_raw_os_error(*.errno))]
    Open {
        /// The path.
        path: PathBuf,
        /// `errno`.
        errno: i32,
    },
}

/// The buffers of one operation, in the order of their bytes.
pub type Bufs = SmallVec<[Buf; 1]>;

/// What one operation writes, in the order of its bytes.
pub type Parts = SmallVec<[Bytes; 1]>;

/// What is done with an operation's answer, on the thread that has it: a few instructions, such as waking a task or
/// starting the next operation. Never waits, never panics.
pub type Done = Box<dyn FnOnce(Result<Bufs, DiskError>) + Send>;

/// One operation on a disk. It owns its buffers and its completion, so a future that is dropped leaves nothing dangling.
pub struct Io {
    /// What to do.
    pub op: Op,
    /// Where, in bytes.
    pub offset: u64,
    /// How much, in bytes (the length of all buffers of a read, of all parts of a write).
    pub len: u64,
    /// What a read fills (none for others).
    pub bufs: Bufs,
    /// What a write writes (none for others).
    pub parts: Parts,
    /// Whoever submits this waits for nothing else, and would have its thread idle meanwhile: a disk may do it on that
    /// thread before `submit` returns, which spares two changes of threads.
    pub here: bool,
    /// Where the result goes, with the buffers.
    pub done: Done,
}

/// A disk, real or simulated.
pub trait Disk: Send + Sync {
    /// What it is.
    fn geometry(&self) -> Geometry;
    /// Starts an operation; the result arrives through `io.done`. Never blocks for the transfer itself, unless `io.here`
    /// permits it.
    fn submit(&self, io: Io);
    /// A buffer to read `len` bytes into. Its contents are unspecified until a read has succeeded: a disk may recycle.
    fn buffer(&self, len: usize) -> Buf {
        Buf::zeroed(len)
    }
}

impl dyn Disk {
    /// Reads `len` bytes at `offset`, both multiples of the sector size.
    pub async fn read(&self, offset: u64, len: usize) -> Result<Buf, DiskError> {
        one(self.run(Op::Read, offset, len as u64, smallvec![self.buffer(len)], Parts::new(), false).await)
    }

    /// Fills the buffers one after the other from `offset` on, as one operation; each one's length is a multiple of the
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

    /// Makes completed writes durable.
    pub async fn flush(&self) -> Result<(), DiskError> {
        self.flush_for(false).await
    }

    /// As [`Self::flush`]; with `here`, perhaps on this thread ([`Io::here`]).
    pub async fn flush_for(&self, here: bool) -> Result<(), DiskError> {
        self.run(Op::Flush, 0, 0, Bufs::new(), Parts::new(), here).await.map(drop)
    }

    /// Tells the disk that `len` bytes at `offset` are no longer needed. They read as anything afterwards.
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
        let (tell, result) = oneshot::channel();
        // Nobody waits any more: the answer is not wanted.
        let done: Done = Box::new(move |answer| drop(tell.send(answer)));
        self.submit(Io { op, offset, len, bufs, parts, here, done });
        result.await.unwrap_or(Err(DiskError::Refused { op, why: "the disk dropped the operation" }))
    }
}

/// The buffer of an operation that has one.
fn one(answer: Result<Bufs, DiskError>) -> Result<Buf, DiskError> {
    answer.map(|mut bufs| bufs.pop().unwrap_or(Buf::empty()))
}

impl Io {
    /// Answers with the buffers.
    pub fn succeed(self) {
        (self.done)(Ok(self.bufs));
    }

    /// Answers with an error.
    pub fn fail(self, error: DiskError) {
        (self.done)(Err(error));
    }

    /// Answers with the operating system's error number.
    pub fn fail_errno(self, errno: i32) {
        let Io { op, offset, len, .. } = self;
        self.fail(DiskError::Os { op, offset, len, errno });
    }

    /// What is wrong with it before it starts: a range past the end, a change to what is read-only, buffers or parts that
    /// are not `len` bytes long.
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
            return Err(DiskError::Refused { op, why: "the buffers are not as long as the range" });
        }
        Ok(())
    }
}

/// How a disk is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Not one byte may change.
    ReadOnly,
    /// Reads and writes.
    ReadWrite,
}

/// Where disks come from: the file system in production, a table in the simulator.
pub trait Disks: Send + Sync {
    /// The regular files and block devices directly in `dir`, sorted.
    fn scan(&self, dir: &Path) -> Result<Vec<PathBuf>, DiskError>;
    /// Opens one.
    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn Disk>, DiskError>;
}

//! Block devices as the protocols for them see them: NBD today; the interface suits SCSI as well.
//!
//! ```text
//!   protocol ─▶ BlockExports::open ─▶ BlockDevice ─▶ a volume of a pool, or memory in tests
//! ```
//!
//! Calls are dispatched dynamically, and each returns one boxed future: a protocol is compiled once, whatever it serves, and
//! the box costs far less than the rest of a request. Every protocol maps [`BlockError`] to its status in one table.

use bytes::Bytes;
use futures_util::future::{BoxFuture, pending, ready};
use futures_util::{FutureExt, TryFutureExt};
use smallvec::SmallVec;
use std::error::Error;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use thiserror::Error;
use weir_machine::{Accounts, Request};

/// Error of a device operation.
#[derive(Debug, Error)]
pub enum BlockError {
    /// The pool or the quota is full.
    #[error("no space: {0}")]
    Full(Box<dyn Error + Send + Sync>),
    /// The device is read-only.
    #[error("the device is read-only")]
    ReadOnly,
    /// There is no device of this name.
    #[error("no such device")]
    NotFound,
    /// Any other error; a client sees an I/O error, so its server logs the message.
    #[error("{0}")]
    Io(Box<dyn Error + Send + Sync>),
}

impl BlockError {
    /// An I/O error with this message or cause.
    pub fn io(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        BlockError::Io(cause.into())
    }
}

/// Future of a device operation.
pub type BlockFuture<'a, T> = BoxFuture<'a, Result<T, BlockError>>;

/// Data in pieces, in order.
pub type Pieces = SmallVec<[Bytes; 4]>;

/// A range of a device that is entirely data or entirely hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub len_bytes: u64,
    /// Whether it is allocated; a hole reads as zeros.
    pub data: bool,
}

/// A block device. Callers pass ranges inside the device only, and change it only if [`BlockDevice::is_writable`].
///
/// All clients of one export share one device: a completed write is visible to each of them, and a flush makes the
/// completed writes of all clients stable. A change is stable when it is answered if `fua` (force unit access) is set, else
/// after the next [`BlockDevice::flush`].
pub trait BlockDevice: Send + Sync {
    /// Persistent identity of the device, from which protocols make serial numbers: the same whenever and wherever the pool
    /// is served, and never reused.
    fn id(&self) -> u64;
    /// Size in bytes.
    fn size_bytes(&self) -> u64;
    /// Waits until the size differs from `known_bytes`, and returns it. The default is for devices whose size is fixed.
    fn resized(&self, known_bytes: u64) -> BoxFuture<'_, u64> {
        let size_bytes = self.size_bytes();
        if size_bytes == known_bytes { pending().boxed() } else { ready(size_bytes).boxed() }
    }
    /// Block size in bytes: smaller and unaligned writes cost a read of their block.
    fn block_bytes(&self) -> u32;
    /// Whether the device can be changed.
    fn is_writable(&self) -> bool;
    /// Reads exactly `len` bytes at `offset`.
    fn read<'a>(&'a self, rq: &'a Request, offset: u64, len: usize) -> BlockFuture<'a, Bytes>;
    /// Reads exactly `len` bytes at `offset`, in pieces as they are cached: a device that holds them in blocks does not copy.
    fn read_pieces<'a>(&'a self, rq: &'a Request, offset: u64, len: usize) -> BlockFuture<'a, Pieces> {
        self.read(rq, offset, len).map_ok(|bytes| Pieces::from_iter([bytes])).boxed()
    }
    /// The extents of a range, in order and without gaps, at most `max` of them.
    fn extents<'a>(&'a self, rq: &'a Request, offset: u64, len: u64, max: usize) -> BlockFuture<'a, Vec<Extent>>;
    /// Writes `bytes` at `offset`.
    fn write<'a>(&'a self, rq: &'a Request, offset: u64, bytes: Bytes, fua: bool) -> BlockFuture<'a, ()>;
    /// Makes exactly this range read as zeros, and frees the blocks that lie entirely within it.
    fn write_zeroes<'a>(&'a self, rq: &'a Request, offset: u64, len: u64, fua: bool) -> BlockFuture<'a, ()>;
    /// Frees the blocks that lie entirely within a range, which then read as zeros; the rest of the range stays as it is.
    fn unmap<'a>(&'a self, rq: &'a Request, offset: u64, len: u64, fua: bool) -> BlockFuture<'a, ()> {
        let blocks = whole_blocks(offset..offset.saturating_add(len), self.size_bytes(), self.block_bytes());
        match blocks.end - blocks.start {
            0 if fua => self.flush(rq),
            0 => ready(Ok(())).boxed(),
            len => self.write_zeroes(rq, blocks.start, len, fua),
        }
    }
    /// Copies `len` bytes at `from_offset` of a device to `offset` of this one. The default reads and writes them.
    fn copy_from<'a>(
        &'a self,
        rq: &'a Request,
        from: &'a dyn BlockDevice,
        from_offset: u64,
        offset: u64,
        len: u64,
    ) -> BlockFuture<'a, ()> {
        async move {
            let bytes = from.read(rq, from_offset, len as usize).await?;
            self.write(rq, offset, bytes, false).await
        }
        .boxed()
    }
    /// Makes all completed changes stable.
    fn flush<'a>(&'a self, rq: &'a Request) -> BlockFuture<'a, ()>;
    /// Waits until the device is withdrawn, because its pool is being closed or it is not shared any more: its clients are
    /// disconnected then. The default is for devices that exist as long as the process.
    fn withdrawn(&self) -> BoxFuture<'_, ()> {
        pending().boxed()
    }
    /// Accounts of the device's pool, in which requests are recorded; `None` for a device without accounts of its own.
    fn accounts(&self) -> Option<Arc<Accounts>> {
        None
    }
}

/// The blocks that lie entirely within a range; the last one of a device may be shorter than the others.
fn whole_blocks(range: Range<u64>, size_bytes: u64, block_bytes: u32) -> Range<u64> {
    let block_bytes = u64::from(block_bytes.max(1));
    let start = range.start.checked_next_multiple_of(block_bytes).unwrap_or(u64::MAX);
    let end = if range.end >= size_bytes { size_bytes } else { range.end / block_bytes * block_bytes };
    start..end.max(start)
}

/// Properties of a device that a client sees before it opens it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockExport {
    /// Dataset name of the volume or snapshot.
    pub name: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Preferred block size in bytes.
    pub block_bytes: u32,
    /// Whether the device can be changed.
    pub writable: bool,
}

/// The devices that are exported to a host; the others do not exist for it.
pub trait HostBlockExports: Send + Sync {
    /// Exports that a host sees.
    fn seen_by(&self, host: IpAddr) -> Arc<dyn BlockExports>;
}

/// The exported devices, as one host sees them.
pub trait BlockExports: Send + Sync {
    /// The names of all exports.
    fn names(&self) -> Vec<String>;
    /// Properties of an export; the empty name selects the default export.
    fn find(&self, name: &str) -> Option<BlockExport>;
    /// Opens an export by name. The device is in use until it is dropped.
    fn open<'a>(&'a self, rq: &'a Request, name: &'a str) -> BlockFuture<'a, Arc<dyn BlockDevice>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_blocks_are_unmapped() {
        let blocks = |range| whole_blocks(range, 10_000, 4096);
        assert_eq!(blocks(0..4096), 0..4096);
        assert_eq!(blocks(1..8192), 4096..8192);
        assert!(blocks(1..8191).is_empty() && blocks(5000..5000).is_empty() && blocks(0..0).is_empty());
        assert_eq!(blocks(4097..10_000), 8192..10_000, "the last block is shorter");
        assert!(blocks(9000..9999).is_empty() && blocks(u64::MAX..u64::MAX).is_empty());
    }
}

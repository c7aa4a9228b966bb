//! Owned, page-aligned buffers — what O_DIRECT and io_uring need — and the pool that recycles them.
//!
//! A read of 1 MiB into fresh memory costs 256 page faults and the zeroing of every page: more time than the disk
//! takes. So buffers come from a [`BufPool`] and go back to it when they are dropped, also after [`Buf::into_bytes`],
//! when the last clone of the bytes is.
//!
//! ```text
//!   BufPool::take ─► Buf ─► Io ─► disk fills it ─► Buf ─► into_bytes ─► Bytes (clones, slices)
//!        ▲                                                                   │ last drop
//!        └──────────── shelf of its size class, up to the pool's limit ◄─────┘
//! ```
//!
//! Size classes go in four steps per doubling from 4 KiB to 32 MiB, so that at most a fifth of a buffer is slack.
//!
//! Invariants: memory is initialised from its first day (so no undefined bytes exist), but a recycled buffer still
//! holds what was read into it before. A disk that answers a read with success has overwritten every byte of it, and
//! on failure the buffer is not given back: old bytes cannot reach a reader. In debug builds recycled buffers are
//! overwritten with 0xA5, so that a test would see it.

#![allow(unsafe_code, reason = "aligned allocation: the standard library's safe containers cannot ask for it")]

use bytes::Bytes;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

const PAGE: usize = 4096;
const CLASSES: usize = 48;

/// An allocation: aligned to a page, initialised, owned.
struct Block {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a block owns its memory alone; nothing in it is tied to a thread.
unsafe impl Send for Block {}
// SAFETY: shared access to a block only reads.
unsafe impl Sync for Block {}

impl Block {
    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, PAGE).expect("buffer sizes are far below isize::MAX")
    }

    fn zeroed(bytes: usize) -> Block {
        let bytes = bytes.max(PAGE);
        let layout = Self::layout(bytes);
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Block { start, bytes }
    }

    fn as_slice(&self) -> &[u8] {
        // SAFETY: `bytes` initialised bytes, owned by this block, borrowed with it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow is unique.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this very layout, freed once.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.bytes)) }
    }
}

/// Index and size in bytes of the class that holds `len` bytes; none above 32 MiB.
fn class_of(len: usize) -> Option<(usize, usize)> {
    let pages = len.div_ceil(PAGE).max(1);
    if pages <= 4 {
        return Some((pages - 1, pages * PAGE));
    }
    let doubling = (usize::BITS - (pages - 1).leading_zeros()) as usize; // pages is in 2^(d-1)+1 ..= 2^d, d ≥ 3
    let step = 1 << (doubling - 3);
    let steps = pages.div_ceil(step); // 5 ..= 8
    let index = (doubling - 3) * 4 + steps - 1;
    (index < CLASSES).then_some((index, steps * step * PAGE))
}

struct Shelves {
    limit_bytes: usize,
    kept_bytes: AtomicUsize,
    fresh: AtomicU64,
    reused: AtomicU64,
    by_class: [Mutex<Vec<Block>>; CLASSES],
}

impl Shelves {
    fn put(&self, block: Block) {
        let Some((class, bytes)) = class_of(block.bytes) else { return };
        debug_assert_eq!(bytes, block.bytes);
        if self.kept_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > self.limit_bytes {
            self.kept_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return;
        }
        self.by_class[class].lock().unwrap_or_else(PoisonError::into_inner).push(block);
    }

    fn get(&self, class: usize) -> Option<Block> {
        let block = self.by_class[class].lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        self.kept_bytes.fetch_sub(block.bytes, Ordering::Relaxed);
        Some(block)
    }
}

/// What a [`BufPool`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounts {
    /// Buffers made from new memory.
    pub fresh: u64,
    /// Buffers recycled.
    pub reused: u64,
    /// Bytes waiting on the shelves.
    pub kept_bytes: usize,
}

/// Recycles buffers. A small handle: clones share the shelves.
#[derive(Clone)]
pub struct BufPool(Arc<Shelves>);

impl BufPool {
    /// A pool that keeps at most `limit_bytes` of unused memory.
    pub fn new(limit_bytes: usize) -> Self {
        BufPool(Arc::new(Shelves {
            limit_bytes,
            kept_bytes: AtomicUsize::new(0),
            fresh: AtomicU64::new(0),
            reused: AtomicU64::new(0),
            by_class: std::array::from_fn(|_| Mutex::new(Vec::new())),
        }))
    }

    /// A buffer of `len` bytes whose contents are unspecified: to be read into.
    pub fn take(&self, len: usize) -> Buf {
        let Some((class, class_bytes)) = class_of(len) else { return Buf::zeroed(len) };
        let block = match self.0.get(class) {
            Some(mut block) => {
                self.0.reused.fetch_add(1, Ordering::Relaxed);
                if cfg!(debug_assertions) {
                    block.as_mut_slice().fill(0xa5);
                }
                block
            }
            None => {
                self.0.fresh.fetch_add(1, Ordering::Relaxed);
                Block::zeroed(class_bytes)
            }
        };
        Buf { block: Some(block), start: 0, len, home: Some(self.0.clone()) }
    }

    /// What it did so far.
    pub fn counts(&self) -> PoolCounts {
        PoolCounts {
            fresh: self.0.fresh.load(Ordering::Relaxed),
            reused: self.0.reused.load(Ordering::Relaxed),
            kept_bytes: self.0.kept_bytes.load(Ordering::Relaxed),
        }
    }
}

impl fmt::Debug for BufPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufPool({:?})", self.counts())
    }
}

/// An owned buffer whose first byte is aligned to [`Buf::ALIGN`] until [`Buf::advance`] moves it; its length is any
/// number of bytes.
pub struct Buf {
    /// None: no memory at all, length 0.
    block: Option<Block>,
    start: usize,
    len: usize,
    home: Option<Arc<Shelves>>,
}

impl Buf {
    /// Alignment of the first byte.
    pub const ALIGN: usize = PAGE;

    /// No bytes and no memory.
    pub const fn empty() -> Self {
        Buf { block: None, start: 0, len: 0, home: None }
    }

    /// `len` zero bytes, outside any pool.
    pub fn zeroed(len: usize) -> Self {
        let block = (len > 0).then(|| Block::zeroed(len.next_multiple_of(PAGE)));
        Buf { block, start: 0, len, home: None }
    }

    /// A copy of `bytes`, outside any pool.
    pub fn copy_from(bytes: &[u8]) -> Self {
        let mut buf = Buf::zeroed(bytes.len());
        buf.as_mut().copy_from_slice(bytes);
        buf
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of memory that it holds, whatever its length: what a cache that keeps it should charge.
    pub fn capacity(&self) -> usize {
        self.block.as_ref().map_or(0, |b| b.bytes)
    }

    /// Shortens it to `len` bytes; no effect when it is shorter.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Drops `count` bytes from the front (all, when there are fewer), without a copy; the alignment goes with them.
    pub fn advance(&mut self, count: usize) {
        let count = count.min(self.len);
        self.start += count;
        self.len -= count;
    }

    /// Freezes the buffer into shareable bytes without a copy. Its memory is recycled when the last clone is dropped.
    pub fn into_bytes(self) -> Bytes {
        if self.is_empty() { Bytes::new() } else { Bytes::from_owner(self) }
    }
}

impl AsRef<[u8]> for Buf {
    fn as_ref(&self) -> &[u8] {
        self.block.as_ref().map_or(&[], |b| &b.as_slice()[self.start..self.start + self.len])
    }
}

impl AsMut<[u8]> for Buf {
    fn as_mut(&mut self) -> &mut [u8] {
        self.block.as_mut().map_or(&mut [], |b| &mut b.as_mut_slice()[self.start..self.start + self.len])
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        if let (Some(block), Some(home)) = (self.block.take(), self.home.take()) {
            home.put(block);
        }
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_grow_in_steps_of_a_quarter() {
        let mut last = (0, PAGE);
        for len in (1..=33 << 20).step_by(1000) {
            let Some((index, bytes)) = class_of(len) else {
                assert!(len > 32 << 20);
                continue;
            };
            assert!(bytes >= len && (index, bytes) >= last);
            assert!(bytes <= 4 * PAGE || bytes <= len + len / 4 + PAGE, "{len} in {bytes}");
            assert_eq!(class_of(bytes), Some((index, bytes)), "a class holds its own size");
            last = (index, bytes);
        }
        assert_eq!(last, (CLASSES - 1, 32 << 20));
    }

    #[test]
    fn memory_comes_back_when_the_last_bytes_are_dropped() {
        let pool = BufPool::new(1 << 20);
        let mut buf = pool.take(10_000);
        assert_eq!(buf.as_ref().as_ptr() as usize % Buf::ALIGN, 0);
        buf.as_mut().fill(7);
        let bytes = buf.into_bytes();
        let slice = bytes.slice(100..200);
        drop(bytes);
        assert_eq!(pool.counts(), PoolCounts { fresh: 1, reused: 0, kept_bytes: 0 });
        assert!(slice.iter().all(|b| *b == 7));
        drop(slice);
        assert_eq!(pool.counts().kept_bytes, 12_288);
        let again = pool.take(9_000);
        assert_eq!((again.len(), again.capacity()), (9_000, 12_288));
        assert_eq!(pool.counts(), PoolCounts { fresh: 1, reused: 1, kept_bytes: 0 });
        if cfg!(debug_assertions) {
            assert!(again.as_ref().iter().all(|b| *b == 0xa5), "old bytes are not left for the next reader");
        }
    }

    #[test]
    fn a_pool_keeps_no_more_than_its_limit() {
        let pool = BufPool::new(64 << 10);
        let held: Vec<Buf> = (0..32).map(|_| pool.take(8192)).collect();
        drop(held);
        assert_eq!(pool.counts().kept_bytes, 64 << 10);
        drop(pool.take(40 << 20));
        assert_eq!(pool.counts().kept_bytes, 64 << 10, "what is larger than every class is not kept");
    }

    #[test]
    fn cutting_both_ends_and_nothing_at_all() {
        let mut buf = Buf::copy_from(b"0123456789");
        buf.advance(2);
        buf.truncate(5);
        assert_eq!(buf.as_ref(), b"23456");
        buf.advance(9);
        assert!(buf.is_empty());
        assert!(Buf::empty().into_bytes().is_empty());
        assert!(Buf::zeroed(0).as_mut().is_empty());
    }
}

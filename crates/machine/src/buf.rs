//! Owned, page-aligned buffers, as O_DIRECT and io_uring require, and the pool that recycles them.
//!
//! A read of 1 MiB into new memory costs 256 page faults and the zeroing of every page: more time than the disk
//! takes. So buffers are taken from a [`BufPool`] and return to it when they are dropped; after [`Buf::into_bytes`],
//! when the last clone of the bytes is dropped.
//!
//! ```text
//!   BufPool::take ─► Buf ─► Io ─► disk fills it ─► Buf ─► into_bytes ─► Bytes (clones, slices)
//!        ▲                                                                   │ last drop
//!        └──────────── free list of its size class, up to the limit ◄─────┘
//! ```
//!
//! Buffers up to 1 MiB are pieces of regions (`slab`). A prefaulting pool ([`BufPool::prefaulting`]) has a thread
//! that populates the pages of a size's next region while the current pieces are still in use, because page faults
//! cost more time than a small read. Only frequently used sizes are prefaulted; the pages of their first regions are
//! populated by page faults. There are four size classes per doubling from 4 KiB to 32 MiB, so that at most a fifth of a
//! buffer is unused.
//!
//! Invariants: memory is always initialised (so no undefined bytes exist), but a recycled buffer still has its
//! previous contents. A disk that completes a read successfully has overwritten every byte of it, and after a failed
//! read the buffer is not returned: old bytes cannot reach a reader. In debug builds recycled buffers are overwritten
//! with 0xA5, so that tests would detect a violation.

#![allow(unsafe_code, reason = "aligned allocation, which the standard library's safe containers do not support")]

use crate::compute::ComputePool;
use crate::lock::{Mutex, order};
use crate::slab::{self, Region};
use bytes::Bytes;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::BTreeMap;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const PAGE: usize = 4096;
const CLASSES: usize = 48;
/// Number of regions of a size from which on further regions are prefaulted. Memory prefaulted for a rarely used size
/// would be wasted.
const PREFAULT_MIN_REGIONS: usize = 4;

/// An owned, initialised, page-aligned allocation.
struct Block {
    start: NonNull<u8>,
    bytes: usize,
    /// Whether the block is a piece of a region of the pool, which outlives it and frees the memory.
    piece: bool,
}

// SAFETY: a block has exclusive ownership of its memory, which is not tied to a thread.
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
        Block { start, bytes, piece: false }
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the range has `bytes` initialised bytes, owned exclusively by this block and borrowed with it.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if !self.piece {
            // SAFETY: allocated in `zeroed` with the same layout, freed once.
            unsafe { dealloc(self.start.as_ptr(), Self::layout(self.bytes)) }
        }
    }
}

/// Index and size in bytes of the smallest size class of at least `len` bytes; `None` above 32 MiB.
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

struct PoolShared {
    limit_bytes: usize,
    /// Whether buffers are physically contiguous if possible; their sizes are powers of two.
    contiguous: bool,
    kept_bytes: AtomicUsize,
    fresh: AtomicU64,
    reused: AtomicU64,
    by_class: [Mutex<Vec<Block>, { order::BUFFERS }>; CLASSES],
    region_table: Mutex<RegionTable, { order::BUFFER_REGIONS }>,
    /// Thread that prefaults regions.
    prefaulter: Option<Arc<dyn ComputePool>>,
}

/// Pieces without memory (never used, or released to the kernel), by size class, and all regions.
#[derive(Default)]
struct RegionTable {
    free: BTreeMap<usize, FreePieces>,
    regions: Vec<Region>,
}

/// The unused pieces of a size class.
#[derive(Default)]
struct FreePieces {
    /// Used from the end.
    pieces: Vec<Block>,
    /// Whether a region is being prefaulted.
    prefault_pending: bool,
    /// Number of regions mapped so far.
    regions: usize,
}

impl FreePieces {
    /// Whether another region should be prefaulted: the size is frequently used and few pieces are left.
    fn needs_prefault(&self, bytes: usize) -> bool {
        !self.prefault_pending
            && self.regions >= PREFAULT_MIN_REGIONS
            && self.pieces.len() <= slab::pieces_of(bytes) / 2
    }
}

impl RegionTable {
    /// Adds a region; its pieces are used after the remaining pieces of the class.
    fn add(&mut self, class: usize, bytes: usize, region: Region) {
        let left = std::mem::take(&mut self.free.entry(class).or_default().pieces);
        let mut pieces: Vec<Block> = region.pieces(bytes).map(|start| Block { start, bytes, piece: true }).collect();
        // Use the lowest address first.
        pieces.reverse();
        pieces.extend(left);
        let free = self.free.entry(class).or_default();
        (free.pieces, free.regions) = (pieces, free.regions + 1);
        self.regions.push(region);
    }
}

impl PoolShared {
    fn put(&self, block: Block) {
        let Some((class, bytes)) = class_of(block.bytes) else { return };
        debug_assert_eq!(bytes, block.bytes);
        if self.kept_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > self.limit_bytes {
            self.kept_bytes.fetch_sub(bytes, Ordering::Relaxed);
            if block.piece {
                slab::release_pages(block.start, bytes);
                self.region_table.lock().free.entry(class).or_default().pieces.push(block);
            }
            return;
        }
        self.by_class[class].lock().push(block);
    }

    /// A new block of a size class.
    fn fresh(self: &Arc<Self>, class: usize, bytes: usize) -> Block {
        self.fresh.fetch_add(1, Ordering::Relaxed);
        let supported = if self.contiguous { slab::supports_contiguous(bytes) } else { slab::supports(bytes) };
        if !supported {
            return Block::zeroed(bytes);
        }
        let mut region_table = self.region_table.lock();
        if region_table.free.get(&class).is_none_or(|free| free.pieces.is_empty()) {
            let region = if self.contiguous { Region::map_contiguous() } else { Region::map() };
            let Some(region) = region else { return Block::zeroed(bytes) };
            region_table.add(class, bytes, region);
        }
        let free = region_table.free.entry(class).or_default();
        let block = free.pieces.pop();
        if free.needs_prefault(bytes) {
            free.prefault_pending = self.prefault(class, bytes);
        }
        block.unwrap_or_else(|| Block::zeroed(bytes))
    }

    /// Starts prefaulting the next region of a class, if the pool has a thread for it.
    fn prefault(self: &Arc<Self>, class: usize, bytes: usize) -> bool {
        let Some(prefaulter) = &self.prefaulter else { return false };
        let pool = Arc::downgrade(self);
        prefaulter.run(Box::new(move || {
            let region = Region::map().inspect(|region| region.populate(bytes));
            let Some(pool) = pool.upgrade() else { return };
            let mut region_table = pool.region_table.lock();
            region_table.free.entry(class).or_default().prefault_pending = false;
            region.into_iter().for_each(|region| region_table.add(class, bytes, region));
        }));
        true
    }

    fn get(&self, class: usize) -> Option<Block> {
        let block = self.by_class[class].lock().pop()?;
        self.kept_bytes.fetch_sub(block.bytes, Ordering::Relaxed);
        Some(block)
    }
}

/// Counters of a [`BufPool`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounts {
    /// Buffers allocated from new memory.
    pub fresh: u64,
    /// Buffers that were recycled.
    pub reused: u64,
    /// Bytes of unused buffers in the free lists.
    pub kept_bytes: usize,
}

/// A pool that recycles buffers. A cheap handle: clones share the pool.
#[derive(Clone)]
pub struct BufPool(Arc<PoolShared>);

impl BufPool {
    /// A pool that keeps at most `limit_bytes` of unused memory.
    pub fn new(limit_bytes: usize) -> Self {
        Self::with(limit_bytes, false, None)
    }

    /// Like [`BufPool::new`]; a job of `prefaulter` faults memory in before it is needed.
    pub fn prefaulting(limit_bytes: usize, prefaulter: Arc<dyn ComputePool>) -> Self {
        Self::with(limit_bytes, false, Some(prefaulter))
    }

    /// Like [`BufPool::new`], with buffers in physically contiguous memory if possible, for repeated writes. Buffer
    /// sizes are powers of two; memory is mapped in regions of 2 MiB per size.
    pub fn contiguous(limit_bytes: usize) -> Self {
        Self::with(limit_bytes, true, None)
    }

    fn with(limit_bytes: usize, contiguous: bool, prefaulter: Option<Arc<dyn ComputePool>>) -> Self {
        BufPool(Arc::new(PoolShared {
            limit_bytes,
            contiguous,
            kept_bytes: AtomicUsize::new(0),
            fresh: AtomicU64::new(0),
            reused: AtomicU64::new(0),
            by_class: std::array::from_fn(|_| Mutex::new(Vec::new())),
            region_table: Mutex::default(),
            prefaulter,
        }))
    }

    /// A buffer of `len` bytes whose contents are unspecified: for reading into.
    pub fn take(&self, len: usize) -> Buf {
        let size = if self.0.contiguous { len.next_power_of_two() } else { len };
        let Some((class, class_bytes)) = class_of(size) else { return Buf::zeroed(len) };
        let block = match self.0.get(class) {
            Some(mut block) => {
                self.0.reused.fetch_add(1, Ordering::Relaxed);
                if cfg!(debug_assertions) {
                    block.as_mut_slice().fill(0xa5);
                }
                block
            }
            None => self.0.fresh(class, class_bytes),
        };
        Buf::over(block, len, Some(self.0.clone()))
    }

    /// The counters so far.
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

/// Memory shared by one or several buffers, which own disjoint ranges of it; returned to the pool when the last of
/// them is dropped.
struct Memory {
    block: ManuallyDrop<Block>,
    pool: Option<Arc<PoolShared>>,
}

impl Memory {
    fn new(block: Block, pool: Option<Arc<PoolShared>>) -> Arc<Memory> {
        Arc::new(Memory { block: ManuallyDrop::new(block), pool })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: taken only here, and the memory is not used after its drop.
        let block = unsafe { ManuallyDrop::take(&mut self.block) };
        if let Some(pool) = self.pool.take() {
            pool.put(block);
        }
    }
}

/// An owned buffer whose first byte is aligned to [`Buf::ALIGN`] until [`Buf::advance`] or [`Buf::split_to`] moves it;
/// its length is any number of bytes.
pub struct Buf {
    /// `None` if the length is 0. Buffers that share memory have disjoint ranges `start .. start + reach`.
    memory: Option<Arc<Memory>>,
    start: usize,
    len: usize,
    /// Length of the range owned by this buffer, from `start`: `len` before truncation.
    reach: usize,
}

impl Buf {
    /// Alignment of the first byte.
    pub const ALIGN: usize = PAGE;

    /// An empty buffer without memory.
    pub const fn empty() -> Self {
        Buf { memory: None, start: 0, len: 0, reach: 0 }
    }

    fn over(block: Block, len: usize, pool: Option<Arc<PoolShared>>) -> Self {
        Buf { memory: Some(Memory::new(block, pool)), start: 0, len, reach: len }
    }

    /// A buffer of `len` zero bytes that belongs to no pool.
    pub fn zeroed(len: usize) -> Self {
        if len == 0 { Buf::empty() } else { Buf::over(Block::zeroed(len.next_multiple_of(PAGE)), len, None) }
    }

    /// A copy of `bytes` that belongs to no pool.
    pub fn copy_from(bytes: &[u8]) -> Self {
        let mut buf = Buf::zeroed(bytes.len());
        buf.as_mut().copy_from_slice(bytes);
        buf
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of memory that the buffer keeps allocated, whatever its length: its cost in a cache.
    pub fn capacity(&self) -> usize {
        self.memory.as_ref().map_or(0, |m| m.block.bytes)
    }

    /// Shortens the buffer to `len` bytes; no effect if it is shorter.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Drops `count` bytes from the front (all if there are fewer) without a copy. The buffer may lose its alignment.
    pub fn advance(&mut self, count: usize) {
        let count = count.min(self.len);
        self.start += count;
        self.len -= count;
        self.reach -= count;
    }

    /// Splits the first `count` bytes (all if there are fewer) off into a separate buffer without a copy, so that two
    /// devices can read into the parts concurrently. [`Buf::rejoin`] joins them again.
    pub fn split_to(&mut self, count: usize) -> Buf {
        let count = count.min(self.len);
        let front = Buf { memory: self.memory.clone(), start: self.start, len: count, reach: count };
        self.advance(count);
        front
    }

    /// Appends `next`, which was split off from the end of this buffer.
    ///
    /// # Errors
    /// Returns `next` if it is not adjacent.
    pub fn rejoin(&mut self, next: Buf) -> Result<(), Buf> {
        let neighbours = match (&self.memory, &next.memory) {
            (Some(one), Some(two)) => Arc::ptr_eq(one, two) && self.start + self.reach == next.start,
            _ => false,
        };
        if !neighbours || self.len != self.reach {
            return Err(next);
        }
        self.len += next.len;
        self.reach += next.reach;
        Ok(())
    }

    /// Freezes the buffer into shareable bytes without a copy. Its memory is recycled when the last clone is dropped.
    pub fn into_bytes(self) -> Bytes {
        if self.is_empty() { Bytes::new() } else { Bytes::from_owner(self) }
    }
}

impl From<Buf> for Bytes {
    fn from(buf: Buf) -> Bytes {
        buf.into_bytes()
    }
}

impl AsRef<[u8]> for Buf {
    fn as_ref(&self) -> &[u8] {
        match &self.memory {
            // SAFETY: the range is within the block, and no other buffer's range overlaps it.
            Some(memory) => unsafe {
                std::slice::from_raw_parts(memory.block.start.as_ptr().add(self.start), self.len)
            },
            None => &[],
        }
    }
}

impl AsMut<[u8]> for Buf {
    fn as_mut(&mut self) -> &mut [u8] {
        match &self.memory {
            // SAFETY: as above, and the range's only owner is mutably borrowed.
            Some(memory) => unsafe {
                std::slice::from_raw_parts_mut(memory.block.start.as_ptr().add(self.start), self.len)
            },
            None => &mut [],
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
    fn size_classes_grow_by_a_quarter() {
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
    fn memory_is_recycled_when_the_last_bytes_are_dropped() {
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
            assert!(again.as_ref().iter().all(|b| *b == 0xa5), "old bytes are not visible to the next reader");
        }
    }

    #[test]
    fn contiguous_buffers_are_disjoint_and_recycled() {
        let pool = BufPool::contiguous(4 << 20);
        for _ in 0..2 {
            let lens = [4096, 5000, 70_000, 128 << 10, 1 << 20, 2 << 20, 3 << 20, 100];
            let mut held: Vec<Buf> = lens.iter().cycle().take(40).map(|len| pool.take(*len)).collect();
            held.iter_mut().enumerate().for_each(|(n, buf)| buf.as_mut().fill(n as u8));
            assert!(held.iter().enumerate().all(|(n, buf)| buf.as_ref().iter().all(|b| *b == n as u8)));
            assert!(held.iter().all(|buf| buf.as_ref().as_ptr().addr().is_multiple_of(Buf::ALIGN)));
        }
        assert!(pool.counts().reused > 0 && pool.counts().kept_bytes <= 4 << 20);
    }

    #[test]
    fn pieces_of_regions_are_recycled_and_outlive_the_pool() {
        let pool = BufPool::new(128 << 10);
        let mut held: Vec<Buf> = (0..20).map(|_| pool.take(128 << 10)).collect();
        held.iter_mut().enumerate().for_each(|(n, buf)| buf.as_mut().fill(n as u8));
        assert!(held.iter().enumerate().all(|(n, buf)| buf.as_ref().iter().all(|b| *b == n as u8)));
        let last = held.pop().unwrap().into_bytes();
        drop(held);
        assert_eq!(pool.counts().kept_bytes, 128 << 10);
        let again: Vec<Buf> = (0..31).map(|_| pool.take(128 << 10)).collect();
        assert_eq!(pool.counts(), PoolCounts { fresh: 50, reused: 1, kept_bytes: 0 });
        assert_eq!(pool.0.region_table.lock().regions.len(), 2, "released pieces are used again");
        drop((again, pool));
        assert!(last.iter().all(|b| *b == 19), "a piece keeps its region mapped");
    }

    /// Runs each job on a thread of its own.
    struct Threads;

    impl ComputePool for Threads {
        fn run(&self, job: crate::compute::Job) {
            #[allow(clippy::disallowed_methods, reason = "a pool of threads for this test")]
            drop(std::thread::spawn(job));
        }

        fn count(&self) -> usize {
            1
        }
    }

    #[test]
    fn prefaulted_regions_are_used_and_disjoint() {
        let pool = BufPool::prefaulting(0, Arc::new(Threads));
        for len in [8192, 12_288, 640 << 10] {
            // Regions after the first ones are prefaulted, or mapped here if prefaulting is too slow.
            let mut held: Vec<Buf> = (0..6 * slab::pieces_of(len)).map(|_| pool.take(len)).collect();
            held.iter_mut().enumerate().for_each(|(n, buf)| buf.as_mut().fill(n as u8));
            assert!(held.iter().enumerate().all(|(n, buf)| buf.as_ref().iter().all(|b| *b == n as u8)), "{len}");
        }
        while pool.0.region_table.lock().free.values().any(|free| free.prefault_pending) {
            std::thread::yield_now();
        }
        let regions = pool.0.region_table.lock().regions.len();
        assert!((19..=24).contains(&regions), "six of each size are used, one or two are prefaulted: {regions}");
        let made = pool.take(8192);
        assert_eq!(pool.counts().reused, 0);
        assert_eq!(made.capacity(), 8192);
    }

    #[test]
    fn the_free_lists_are_bounded() {
        let pool = BufPool::new(64 << 10);
        let held: Vec<Buf> = (0..32).map(|_| pool.take(8192)).collect();
        drop(held);
        assert_eq!(pool.counts().kept_bytes, 64 << 10);
        drop(pool.take(40 << 20));
        assert_eq!(pool.counts().kept_bytes, 64 << 10, "buffers larger than every class are not recycled");
    }

    #[test]
    fn split_buffers_can_be_filled_and_rejoined() {
        let pool = BufPool::new(1 << 20);
        let mut rest = pool.take(12_000);
        let mut first = rest.split_to(4096);
        let mut second = rest.split_to(4096);
        first.as_mut().fill(1);
        second.as_mut().fill(2);
        rest.as_mut().fill(3);
        assert_eq!((first.len(), second.len(), rest.len()), (4096, 4096, 12_000 - 8192));
        let rest = first.rejoin(rest).unwrap_err();
        first.rejoin(second).unwrap();
        first.rejoin(rest).unwrap();
        assert!(first.rejoin(Buf::copy_from(b"other memory")).is_err());
        let bytes = first.into_bytes();
        assert_eq!(bytes.len(), 12_000);
        assert!((0..12_000).all(|i| bytes[i] == 1 + (i / 4096) as u8));
        assert_eq!(pool.counts().kept_bytes, 0);
        drop(bytes);
        assert_eq!(pool.counts().kept_bytes, 12_288, "the memory was recycled once, as a whole");
    }

    #[test]
    fn a_truncated_buffer_cannot_be_rejoined() {
        let mut rest = Buf::zeroed(8192);
        let mut first = rest.split_to(4096);
        first.truncate(100);
        assert!(first.rejoin(rest).is_err());
    }

    #[test]
    fn advance_truncate_and_empty_buffers() {
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

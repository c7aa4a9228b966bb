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
//! Buffers up to 1 MiB are pieces of regions (`slab`). A pool that was told to ([`BufPool::ahead`]) has the pages of a
//! size's next region made by a thread of its own while the pieces before it are still being filled: a page fault and the
//! clearing of a page cost whoever meets them more than a small read does. Only sizes that are much used get that: their
//! first regions come page by page.
//!
//! Size classes go in four steps per doubling from 4 KiB to 32 MiB, so that at most a fifth of a buffer is slack.
//!
//! Invariants: memory is initialised from its first day (so no undefined bytes exist), but a recycled buffer still
//! holds what was read into it before. A disk that answers a read with success has overwritten every byte of it, and
//! on failure the buffer is not given back: old bytes cannot reach a reader. In debug builds recycled buffers are
//! overwritten with 0xA5, so that a test would see it.

#![allow(unsafe_code, reason = "aligned allocation: the standard library's safe containers cannot ask for it")]

use crate::compute::Cores;
use crate::crew::Crew;
use crate::slab::{self, Region};
use bytes::Bytes;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::BTreeMap;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const PAGE: usize = 4096;
const CLASSES: usize = 48;
/// Regions of a size from which on others are made ready before they are needed: memory that waits for a size that is
/// little used would be lost to the others.
const USED_REGIONS: usize = 4;

/// An allocation: aligned to a page, initialised, owned.
struct Block {
    start: NonNull<u8>,
    bytes: usize,
    /// A piece of a region of the shelves, which outlive it; nothing to free.
    piece: bool,
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
        Block { start, bytes, piece: false }
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: `bytes` initialised bytes, owned by this block alone, borrowed with it.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if !self.piece {
            // SAFETY: allocated in `zeroed` with this very layout, freed once.
            unsafe { dealloc(self.start.as_ptr(), Self::layout(self.bytes)) }
        }
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
    /// Buffers are of contiguous memory, in sizes of powers of two.
    contiguous: bool,
    kept_bytes: AtomicUsize,
    fresh: AtomicU64,
    reused: AtomicU64,
    by_class: [Mutex<Vec<Block>>; CLASSES],
    addresses: Mutex<Addresses>,
    /// Makes the pages of regions that will soon be used.
    ahead: Option<Crew>,
}

/// Pieces that were never used or gave their memory back, by class, and the regions that all pieces lie in.
#[derive(Default)]
struct Addresses {
    free: BTreeMap<usize, Free>,
    regions: Vec<Region>,
}

/// What a class has left.
#[derive(Default)]
struct Free {
    /// The last is used next.
    pieces: Vec<Block>,
    /// A region is being made ready.
    coming: bool,
    /// Regions that it ever had.
    regions: usize,
}

impl Free {
    /// Whether another region is to be made ready: few pieces are left of a size of which much is in use.
    fn wants_more(&self, bytes: usize) -> bool {
        !self.coming && self.regions >= USED_REGIONS && self.pieces.len() <= slab::pieces_of(bytes) / 2
    }
}

impl Addresses {
    /// Takes a region in, to be used after what is left of the class.
    fn add(&mut self, class: usize, bytes: usize, region: Region) {
        let left = std::mem::take(&mut self.free.entry(class).or_default().pieces);
        let mut pieces: Vec<Block> = region.pieces(bytes).map(|start| Block { start, bytes, piece: true }).collect();
        // The lowest address first.
        pieces.reverse();
        pieces.extend(left);
        let free = self.free.entry(class).or_default();
        (free.pieces, free.regions) = (pieces, free.regions + 1);
        self.regions.push(region);
    }
}

impl Shelves {
    fn put(&self, block: Block) {
        let Some((class, bytes)) = class_of(block.bytes) else { return };
        debug_assert_eq!(bytes, block.bytes);
        if self.kept_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > self.limit_bytes {
            self.kept_bytes.fetch_sub(bytes, Ordering::Relaxed);
            if block.piece {
                slab::give_back(block.start, bytes);
                self.addresses().free.entry(class).or_default().pieces.push(block);
            }
            return;
        }
        self.by_class[class].lock().unwrap_or_else(PoisonError::into_inner).push(block);
    }

    fn addresses(&self) -> MutexGuard<'_, Addresses> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// New memory of a class.
    fn fresh(self: &Arc<Self>, class: usize, bytes: usize) -> Block {
        self.fresh.fetch_add(1, Ordering::Relaxed);
        let makes = if self.contiguous { slab::makes_contiguous(bytes) } else { slab::makes(bytes) };
        if !makes {
            return Block::zeroed(bytes);
        }
        let mut addresses = self.addresses();
        if addresses.free.get(&class).is_none_or(|free| free.pieces.is_empty()) {
            let region = if self.contiguous { Region::map_contiguous() } else { Region::map() };
            let Some(region) = region else { return Block::zeroed(bytes) };
            addresses.add(class, bytes, region);
        }
        let free = addresses.free.entry(class).or_default();
        let block = free.pieces.pop();
        if free.wants_more(bytes) {
            free.coming = self.make_ready(class, bytes);
        }
        block.unwrap_or_else(|| Block::zeroed(bytes))
    }

    /// Has the next region of a class made ready, if there is somebody to do that.
    fn make_ready(self: &Arc<Self>, class: usize, bytes: usize) -> bool {
        let Some(crew) = &self.ahead else { return false };
        let shelves = Arc::downgrade(self);
        crew.run(Box::new(move || {
            let region = Region::map().inspect(|region| region.make_pages(bytes));
            let Some(shelves) = shelves.upgrade() else { return };
            let mut addresses = shelves.addresses();
            addresses.free.entry(class).or_default().coming = false;
            region.into_iter().for_each(|region| addresses.add(class, bytes, region));
        }));
        true
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
        Self::with(limit_bytes, false, None)
    }

    /// The same, with a thread that makes memory ready before it is asked for.
    pub fn ahead(limit_bytes: usize) -> Self {
        Self::with(limit_bytes, false, Some(Crew::new("weir-memory", 1)))
    }

    /// The same, of buffers that lie in one piece of the machine's memory if they can: to be written from, over and over.
    /// Memory is taken in pieces of 2 MiB for each size, which is a power of two.
    pub fn contiguous(limit_bytes: usize) -> Self {
        Self::with(limit_bytes, true, None)
    }

    fn with(limit_bytes: usize, contiguous: bool, ahead: Option<Crew>) -> Self {
        BufPool(Arc::new(Shelves {
            limit_bytes,
            contiguous,
            kept_bytes: AtomicUsize::new(0),
            fresh: AtomicU64::new(0),
            reused: AtomicU64::new(0),
            by_class: std::array::from_fn(|_| Mutex::new(Vec::new())),
            addresses: Mutex::default(),
            ahead,
        }))
    }

    /// A buffer of `len` bytes whose contents are unspecified: to be read into.
    pub fn take(&self, len: usize) -> Buf {
        let room = if self.0.contiguous { len.next_power_of_two() } else { len };
        let Some((class, class_bytes)) = class_of(room) else { return Buf::zeroed(len) };
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

/// Memory under one or several buffers, which own disjoint ranges of it; the last of them gives it back.
struct Memory {
    block: ManuallyDrop<Block>,
    home: Option<Arc<Shelves>>,
}

impl Memory {
    fn new(block: Block, home: Option<Arc<Shelves>>) -> Arc<Memory> {
        Arc::new(Memory { block: ManuallyDrop::new(block), home })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: taken here and nowhere else, and the memory is not used after its drop.
        let block = unsafe { ManuallyDrop::take(&mut self.block) };
        if let Some(home) = self.home.take() {
            home.put(block);
        }
    }
}

/// An owned buffer whose first byte is aligned to [`Buf::ALIGN`] until [`Buf::advance`] or [`Buf::split_to`] moves it;
/// its length is any number of bytes.
pub struct Buf {
    /// None: no memory at all, length 0. Buffers that share a memory have disjoint ranges `start .. start + reach`.
    memory: Option<Arc<Memory>>,
    start: usize,
    len: usize,
    /// End of the range that is its own, from `start`: `len` before it was truncated.
    reach: usize,
}

impl Buf {
    /// Alignment of the first byte.
    pub const ALIGN: usize = PAGE;

    /// No bytes and no memory.
    pub const fn empty() -> Self {
        Buf { memory: None, start: 0, len: 0, reach: 0 }
    }

    fn over(block: Block, len: usize, home: Option<Arc<Shelves>>) -> Self {
        Buf { memory: Some(Memory::new(block, home)), start: 0, len, reach: len }
    }

    /// `len` zero bytes, outside any pool.
    pub fn zeroed(len: usize) -> Self {
        if len == 0 { Buf::empty() } else { Buf::over(Block::zeroed(len.next_multiple_of(PAGE)), len, None) }
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

    /// Bytes of memory that it keeps from being freed, whatever its length: what a cache that keeps it should charge.
    pub fn capacity(&self) -> usize {
        self.memory.as_ref().map_or(0, |m| m.block.bytes)
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
        self.reach -= count;
    }

    /// Cuts the first `count` bytes (all, when there are fewer) off into a buffer of their own, without a copy: what two
    /// devices read into the two parts at once lies together afterwards ([`Buf::rejoin`]).
    pub fn split_to(&mut self, count: usize) -> Buf {
        let count = count.min(self.len);
        let front = Buf { memory: self.memory.clone(), start: self.start, len: count, reach: count };
        self.advance(count);
        front
    }

    /// Puts `next` back behind this one, if that is where it was cut off.
    ///
    /// # Errors
    /// Gives `next` back if it is not from there.
    pub fn rejoin(&mut self, next: Buf) -> Result<(), Buf> {
        let neighbours = match (&self.memory, &next.memory) {
            (Some(mine), Some(theirs)) => Arc::ptr_eq(mine, theirs) && self.start + self.reach == next.start,
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
            // SAFETY: the range lies in the block (it was cut from it) and no other buffer's range touches it.
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
            // SAFETY: as above, and the borrow of the range's only owner is unique.
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
    fn contiguous_buffers_do_not_overlap_and_are_used_again() {
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
    fn pieces_of_regions_are_used_again_and_outlive_the_pool() {
        let pool = BufPool::new(128 << 10);
        let mut held: Vec<Buf> = (0..20).map(|_| pool.take(128 << 10)).collect();
        held.iter_mut().enumerate().for_each(|(n, buf)| buf.as_mut().fill(n as u8));
        assert!(held.iter().enumerate().all(|(n, buf)| buf.as_ref().iter().all(|b| *b == n as u8)));
        let last = held.pop().unwrap().into_bytes();
        drop(held);
        assert_eq!(pool.counts().kept_bytes, 128 << 10);
        let again: Vec<Buf> = (0..31).map(|_| pool.take(128 << 10)).collect();
        assert_eq!(pool.counts(), PoolCounts { fresh: 50, reused: 1, kept_bytes: 0 });
        assert_eq!(pool.0.addresses().regions.len(), 2, "given back, then handed out again");
        drop((again, pool));
        assert!(last.iter().all(|b| *b == 19), "the regions live as long as a piece does");
    }

    #[test]
    fn regions_that_are_made_ahead_are_used_and_disjoint() {
        let pool = BufPool::ahead(0);
        for len in [8192, 12_288, 640 << 10] {
            // What follows the first regions was made ready, or is made here if that was too slow.
            let mut held: Vec<Buf> = (0..6 * slab::pieces_of(len)).map(|_| pool.take(len)).collect();
            held.iter_mut().enumerate().for_each(|(n, buf)| buf.as_mut().fill(n as u8));
            assert!(held.iter().enumerate().all(|(n, buf)| buf.as_ref().iter().all(|b| *b == n as u8)), "{len}");
        }
        while pool.0.addresses().free.values().any(|free| free.coming) {
            std::thread::yield_now();
        }
        let regions = pool.0.addresses().regions.len();
        assert!((19..=24).contains(&regions), "six of each size are used, and one or two wait: {regions}");
        let made = pool.take(8192);
        assert_eq!(pool.counts().reused, 0);
        assert_eq!(made.capacity(), 8192);
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
    fn parts_are_filled_apart_and_lie_together_again() {
        let pool = BufPool::new(1 << 20);
        let mut rest = pool.take(12_000);
        let (mut first, mut second) = (rest.split_to(4096), rest.split_to(4096));
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
        assert_eq!(pool.counts().kept_bytes, 12_288, "the memory went back whole, once");
    }

    #[test]
    fn a_part_that_was_shortened_takes_nothing_behind_it() {
        let mut rest = Buf::zeroed(8192);
        let mut first = rest.split_to(4096);
        first.truncate(100);
        assert!(first.rejoin(rest).is_err());
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

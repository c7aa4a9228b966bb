//! Slab memory for buffers: pieces of regions.
//!
//! The standard allocator zeroes memory that the kernel has already zeroed, adds a header to page-aligned
//! allocations, which costs an extra page, and maps and unmaps memory for every large buffer, which costs more than
//! the read. So buffers up to 1 MiB are pieces of regions, whose pages are first touched by the read itself or
//! populated before it ([`Region::populate`]):
//!
//! ```text
//!   region  2 MiB of addresses  │ piece │ piece │ piece │ … │ remainder: never touched
//! ```
//!
//! A region stays mapped as long as its pool. The memory of an unused piece is released to the kernel
//! ([`release_pages`]), but its addresses are kept and used again before a new region is mapped: so resident memory
//! follows the current use, and address space the peak use.
//!
//! Rejected for read buffers: huge pages. They save page faults, but in virtual machines whose host reclaims free
//! huge pages, each one causes hundreds of faults on the host: twice the processor time. Write buffers are few and
//! reused, and there huge pages help: a device with a limited scatter-gather list (a few hundred entries for virtio)
//! accepts many large operations at once only if each is physically contiguous ([`Region::map_contiguous`]).

#![allow(unsafe_code, reason = "mapping and releasing memory")]

use std::ptr::NonNull;

/// Size of a region in bytes.
const REGION_BYTES: usize = 2 << 20;

/// Whether regions support pieces of this size.
pub fn supports(piece_bytes: usize) -> bool {
    piece_bytes.is_multiple_of(4 << 10) && (4 << 10..=1 << 20).contains(&piece_bytes)
}

/// Number of pieces of this size in a region.
pub fn pieces_of(piece_bytes: usize) -> usize {
    REGION_BYTES / piece_bytes
}

/// Whether contiguous regions support pieces of this size.
pub fn supports_contiguous(piece_bytes: usize) -> bool {
    piece_bytes.is_power_of_two() && (4 << 10..=REGION_BYTES).contains(&piece_bytes)
}

/// A mapped region; unmapped when dropped.
pub struct Region(NonNull<u8>);

// SAFETY: a region is an address range that is not tied to a thread, and it does not access its memory.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps a region; `None` if the kernel refuses.
    pub fn map() -> Option<Region> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address chosen by the kernel.
        let got = unsafe { libc::mmap(std::ptr::null_mut(), REGION_BYTES, protection, flags, -1, 0) };
        if got == libc::MAP_FAILED { None } else { NonNull::new(got.cast()).map(Region) }
    }

    /// Maps a region in physically contiguous memory (a huge page) if the kernel has one.
    pub fn map_contiguous() -> Option<Region> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address chosen by the kernel, twice as large as needed: the region is the part
        // aligned to a huge page; the rest is unmapped.
        unsafe {
            let got = libc::mmap(std::ptr::null_mut(), 2 * REGION_BYTES, protection, flags, -1, 0);
            if got == libc::MAP_FAILED {
                return None;
            }
            let before = got.cast::<u8>().align_offset(REGION_BYTES);
            let start = got.cast::<u8>().add(before);
            if before > 0 {
                libc::munmap(got, before);
            }
            libc::munmap(start.add(REGION_BYTES).cast(), REGION_BYTES - before);
            // Best effort: on failure the region has ordinary pages.
            libc::madvise(start.cast(), REGION_BYTES, libc::MADV_HUGEPAGE);
            NonNull::new(start).map(Region)
        }
    }

    /// The pieces of the region: zeroed and page-aligned.
    pub fn pieces(&self, piece_bytes: usize) -> impl Iterator<Item = NonNull<u8>> + use<> {
        let start = self.0;
        // SAFETY: each offset is inside the region.
        (0..pieces_of(piece_bytes)).map(move |n| unsafe { start.add(n * piece_bytes) })
    }

    /// Populates all pages of the pieces with one system call, which is cheaper than a fault per page and can be done
    /// by another thread.
    pub fn populate(&self, piece_bytes: usize) {
        let bytes = pieces_of(piece_bytes) * piece_bytes;
        // SAFETY: the range is inside the region. Old kernels reject the call: then pages are populated by page
        // faults.
        unsafe { libc::madvise(self.0.as_ptr().cast(), bytes, libc::MADV_POPULATE_WRITE) };
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped with this size, unmapped once; the pool that owns it outlives its pieces.
        unsafe { libc::munmap(self.0.as_ptr().cast(), REGION_BYTES) };
    }
}

/// Releases the memory of an unused piece to the kernel; it is zero when it is next used.
pub fn release_pages(piece: NonNull<u8>, piece_bytes: usize) {
    // SAFETY: the caller owns the piece and does not use it. On failure the memory stays allocated.
    unsafe { libc::madvise(piece.as_ptr().cast(), piece_bytes, libc::MADV_DONTNEED) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_aligned_disjoint_and_zeroed_after_release() {
        let region = Region::map().unwrap();
        let pieces: Vec<_> = region.pieces(512 << 10).collect();
        assert_eq!(pieces.len(), 4);
        for (n, piece) in pieces.iter().enumerate() {
            assert_eq!(piece.as_ptr() as usize % 4096, 0);
            assert_eq!(piece.as_ptr() as usize, pieces[0].as_ptr() as usize + n * (512 << 10));
            // SAFETY: the region is mapped and used only by this test.
            let bytes = unsafe { std::slice::from_raw_parts_mut(piece.as_ptr(), 512 << 10) };
            assert!(bytes.iter().all(|b| *b == 0));
            bytes.fill(n as u8 + 1);
        }
        release_pages(pieces[1], 512 << 10);
        // SAFETY: as above.
        let first = |n: usize| unsafe { *pieces[n].as_ptr() };
        assert_eq!([first(0), first(1), first(2)], [1, 0, 3]);
        assert!(
            supports(4 << 10) && supports(12 << 10) && supports(1 << 20) && !supports(2 << 10) && !supports(2 << 20)
        );
    }
}

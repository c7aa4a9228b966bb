//! Memory for the buffers that blocks are read into: pieces of regions.
//!
//! The allocator of the standard library writes zeros over memory that the kernel has just cleared, which touches each page
//! twice and by hand; it puts a header before what is aligned to a page, which costs a page more; and what it maps and unmaps
//! for every large buffer costs more than the read. So buffers up to 1 MiB are pieces of regions, first touched by the read
//! itself, or made ready before it ([`Region::make_pages`]):
//!
//! ```text
//!   region  2 MiB of addresses  │ piece │ piece │ piece │ … │ less than a piece: never touched
//! ```
//!
//! A region is never unmapped while its slab lives. A piece that nobody needs gives its memory back to the kernel
//! ([`give_back`]) but keeps its addresses, and is handed out again before a new region is made: so the resident memory
//! follows the use, and addresses follow its peak.
//!
//! Rejected for what is read: asking for huge pages. A fault less per page, but in virtual machines whose host takes free
//! huge pages back, each one came with hundreds of faults of the host: twice the processor time. What is written goes through
//! a few buffers over and over, and there they pay: a device that is told of memory piece by piece (virtio has room for a few
//! hundred pieces) takes many large operations at once only if each is one piece ([`Region::map_contiguous`]).

#![allow(unsafe_code, reason = "mapping memory, and giving it back piece by piece")]

use std::ptr::NonNull;

/// Size of a region.
const REGION_BYTES: usize = 2 << 20;

/// Whether pieces of this size are made here.
pub fn makes(piece_bytes: usize) -> bool {
    piece_bytes.is_multiple_of(4 << 10) && (4 << 10..=1 << 20).contains(&piece_bytes)
}

/// Pieces of this size in a region.
pub fn pieces_of(piece_bytes: usize) -> usize {
    REGION_BYTES / piece_bytes
}

/// Whether pieces of this size are made here of contiguous memory.
pub fn makes_contiguous(piece_bytes: usize) -> bool {
    piece_bytes.is_power_of_two() && (4 << 10..=REGION_BYTES).contains(&piece_bytes)
}

/// Addresses of a region, unmapped with it.
pub struct Region(NonNull<u8>);

// SAFETY: a region is a range of addresses; nothing in it is tied to a thread, and it is not read or written through.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps a region; none if the kernel gives none.
    pub fn map() -> Option<Region> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping wherever the kernel likes.
        let got = unsafe { libc::mmap(std::ptr::null_mut(), REGION_BYTES, protection, flags, -1, 0) };
        if got == libc::MAP_FAILED { None } else { NonNull::new(got.cast()).map(Region) }
    }

    /// The same in one piece of the machine's memory, if the kernel has one.
    pub fn map_contiguous() -> Option<Region> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping wherever the kernel likes, twice as long as needed: a region of it begins where a huge page
        // may, and what is before and behind it is unmapped again.
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
            // Refused, it is memory like other.
            libc::madvise(start.cast(), REGION_BYTES, libc::MADV_HUGEPAGE);
            NonNull::new(start).map(Region)
        }
    }

    /// The pieces that it is cut into: zero bytes, aligned to a page.
    pub fn pieces(&self, piece_bytes: usize) -> impl Iterator<Item = NonNull<u8>> + use<> {
        let start = self.0;
        // SAFETY: each offset is inside the region.
        (0..pieces_of(piece_bytes)).map(move |n| unsafe { start.add(n * piece_bytes) })
    }

    /// Has the kernel make all pages of the pieces at once, which costs less than a fault for each; and costs nothing where
    /// they are used, if another thread does it.
    pub fn make_pages(&self, piece_bytes: usize) {
        let bytes = pieces_of(piece_bytes) * piece_bytes;
        // SAFETY: inside the region. An old kernel refuses: then the pages come when they are touched.
        unsafe { libc::madvise(self.0.as_ptr().cast(), bytes, libc::MADV_POPULATE_WRITE) };
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this size, unmapped once; the slab that owns it outlives its pieces.
        unsafe { libc::munmap(self.0.as_ptr().cast(), REGION_BYTES) };
    }
}

/// Gives the memory of an unused piece back to the kernel; it reads as zeros when it is next used.
pub fn give_back(piece: NonNull<u8>, piece_bytes: usize) {
    // SAFETY: the piece is owned by the caller and not in use. If the kernel refuses, the memory simply stays.
    unsafe { libc::madvise(piece.as_ptr().cast(), piece_bytes, libc::MADV_DONTNEED) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_aligned_disjoint_and_zero_and_forget_what_was_in_them() {
        let region = Region::map().unwrap();
        let pieces: Vec<_> = region.pieces(512 << 10).collect();
        assert_eq!(pieces.len(), 4);
        for (n, piece) in pieces.iter().enumerate() {
            assert_eq!(piece.as_ptr() as usize % 4096, 0);
            assert_eq!(piece.as_ptr() as usize, pieces[0].as_ptr() as usize + n * (512 << 10));
            // SAFETY: the region is mapped, and this test alone uses it.
            let bytes = unsafe { std::slice::from_raw_parts_mut(piece.as_ptr(), 512 << 10) };
            assert!(bytes.iter().all(|b| *b == 0));
            bytes.fill(n as u8 + 1);
        }
        give_back(pieces[1], 512 << 10);
        // SAFETY: as above.
        let first = |n: usize| unsafe { *pieces[n].as_ptr() };
        assert_eq!([first(0), first(1), first(2)], [1, 0, 3]);
        assert!(makes(4 << 10) && makes(12 << 10) && makes(1 << 20) && !makes(2 << 10) && !makes(2 << 20));
    }
}

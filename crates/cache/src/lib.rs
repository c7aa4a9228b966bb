//! The adaptive replacement cache (ARC) over the block pipeline.
//!
//! ```text
//!   reader ──▶ Cache::read ──▶ arc (policy and bytes) ──miss──▶ l2arc (cache devices) ──miss──▶ weir-blocks
//!                 ▲
//!   prefetch (streams of one object) ── Cache::prefetch
//! ```
//!
//! Entries are verified, decrypted and decompressed bytes, keyed by the address and birth of their block. A block
//! never changes once written, so entries need no invalidation.
//!
//! ```
//! use weir_cache::Prefetcher;
//!
//! // An object of 64 MiB that is read from its start, 128 KiB at a time.
//! let size = 64 << 20;
//! let mut prefetcher = Prefetcher::default();
//! assert!(prefetcher.observe(0, 128 << 10, size).is_empty()); // one read is no stream
//! let ahead = prefetcher.observe(128 << 10, 128 << 10, size);
//! assert_eq!(ahead[0].start, 256 << 10); // the second one is: fetch what follows
//! ```

pub mod arc;
mod cache;
pub mod l2arc;
pub mod prefetch;

#[cfg(test)]
mod tests;

pub use cache::{Cache, Stats};
pub use prefetch::Prefetcher;

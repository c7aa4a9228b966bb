//! The adaptive replacement cache (ARC) over the block pipeline.
//!
//! ```text
//!   reader ──▶ Cache::read ──▶ arc (policy and bytes) ──miss──▶ weir-blocks
//!                 ▲
//!   prefetch (streams of one object) ── Cache::prefetch
//! ```
//!
//! Entries are verified, decrypted and decompressed bytes, keyed by the address and birth of their block. A block
//! never changes once written, so entries need no invalidation.

pub mod arc;
mod cache;
pub mod prefetch;

#[cfg(test)]
mod tests;

pub use cache::{Cache, Stats};
pub use prefetch::Prefetcher;

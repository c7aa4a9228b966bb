//! The adaptive replacement cache above the block pipeline: memory in front of disks.
//!
//! ```text
//!   reader ──▶ Cache::read ──▶ arc (policy, keeps bytes) ──miss──▶ weir-blocks
//!                 ▲
//!   prefetch (streams of one object) ── Cache::prefetch
//! ```
//!
//! Only proven, decrypted, decompressed bytes are kept, under the address and birth of their block. A block never
//! changes once written, so nothing is ever invalidated.

pub mod arc;
mod cache;
pub mod prefetch;

#[cfg(test)]
mod tests;

pub use cache::{Cache, Stats};
pub use prefetch::Prefetcher;

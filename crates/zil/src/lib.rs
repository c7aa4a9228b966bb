//! Intent logs: stable storage for changes whose txg has not synced yet (OpenZFS `module/zfs/zil.c`; the on-disk
//! structures are in `weir_format::zil`).
//!
//! The problem: a client wants its change stable now, but a txg syncs only every few seconds. So each change is also
//! recorded as an intent log transaction (itx) in memory. A *commit* writes the records to log blocks of the dataset's
//! own chain, which starts at the header in the object set. When the txg of the change has synced, its record and block
//! are no longer needed. After a crash, the records that the import finds are *replayed*.
//!
//! ```text
//!  Zil::log ──► itx lists per txg and object ──commit──► batch ──► blocks ──► device ──► flush ──► commits return
//!               (itx)                          (write)   (pack)    (chain)    (store)
//!  txg sync: Zil::sync returns the header and the blocks to free · Zil::synced drops records
//!  import:   claim ──► replay ──► destroy the log
//! ```
//!
//! Invariants:
//! - After [`Zil::commit`] returns, each committed change has synced, or a [`LogWalk`] from the header of the last
//!   synced txg finds its record.
//! - A block is allocated before its predecessor is written, and its predecessor is stable before the txg of the
//!   allocation syncs. So a stable pointer leads to each allocated block.
//! - The first block of a chain is written only after the txg whose header points to it has synced.
//! - One task per log writes ([`write`](self)). The mutex is held briefly, and never across an await.
//!
//! A record that cannot be replayed ends the replay. It and all later records are given up and reported, or the log is
//! kept (see `replay`).
//!
//! Failures: see the writer. A log that cannot be written, or has no space, is slow but correct: commits wait for their
//! txg to sync.
//!
//! Data of large writes is written to its final location and the record points to it, unless the pool has separate log
//! devices ([`place`]).

mod chain;
pub mod claim;
mod itx;
mod log;
mod lost;
pub mod pack;
mod place;
mod replay;
mod store;
#[cfg(test)]
mod tests;
mod walk;
mod write;

pub use chain::LogSync;
pub use claim::{Claim, claim, needs_replay};
pub use log::{LogOpening, Policy, SyncMode, WriteKind, Zil};
pub use lost::{FailedRecord, GiveUp, GivenUp, MAX_OBJECTS, object_of};
pub use replay::{Replayed, Replayer};
pub use store::{BlockLog, LogData, LogStore};
pub use walk::{LogBlock, LogWalk};

//! Intent logs: what a dataset promised to its clients since the last group synced (OpenZFS `module/zfs/zil.c`; the bytes
//! are in `weir_format::zil`).
//!
//! The problem: a client wants its change stable now, and a group syncs every few seconds. So each change is also said in
//! a record, kept in memory; a *commit* writes the records to blocks of the dataset's own chain, which the object set's
//! header leads to. When the change's group has synced, record and block are needed no more. After a crash the records
//! that are found are *replayed*.
//!
//! ```text
//!  Zil::log ──► lists per group and object ──commit──► turn ──► blocks ──► device ──► flush ──► committers told
//!               (entry)                    (write)     (pack)   (chain)    (store)
//!  group syncs: Zil::sync gives header and blocks to free · Zil::synced forgets records
//!  import: claim ──► replay ──► the log goes
//! ```
//!
//! Invariants:
//! - What [`Zil::commit`] has returned from is found by a [`LogWalk`] from the header of the last synced group, or has
//!   synced itself.
//! - A block is allocated before its predecessor is written, and its predecessor is stable before the group of the
//!   allocation syncs: nothing allocated is ever without something stable that leads to it.
//! - A chain begins where something stable leads to: its first commit waits for the group that writes the header.
//! - One task writes ([`write`](self)); the mutex is held for moments, and never across an await.
//!
//! A record that cannot be replayed ends the replay; the records from it on are given up and reported, or the log is kept
//! (see `replay`).
//!
//! What fails: see the writer. A log that cannot be written, or has no room, is slow, not wrong: commits wait for their
//! group.
//!
//! Data of large writes goes to its final place, and the record leads there, unless the log has a device of its own
//! ([`place`]).

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
pub use lost::{FailedRecord, GiveUp, GivenUp, MAX_OBJECTS};
pub use replay::{Replayed, Replayer, object_of};
pub use store::{BlockLog, LogData, LogStore};
pub use walk::{LogBlock, LogWalk};

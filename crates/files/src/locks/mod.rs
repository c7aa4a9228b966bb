//! Advisory locks on files, shared by NFS clients (network lock manager) and FUSE mounts: byte ranges, whole files, and
//! DOS share reservations.
//!
//! ```text
//!   NFS client ─▶ TEST, LOCK, UNLOCK ─┐                    ┌─ held ranges per file and owner
//!                                     ├─▶ Locks ─▶ LockTable ─ waiting requests, in order of arrival
//!   process on a mount ─▶ fcntl, flock┘      │             └─ share reservations
//!                                            └─▶ callbacks of the requests that were granted, outside the lock
//! ```
//!
//! [`LockTable`] is pure: values in, decisions out, no I/O and no clock. [`Locks`] is the same for concurrent callers, with
//! callbacks for those that wait.
//!
//! **Rules** (POSIX, as Linux implements them in `fs/locks.c`):
//!
//! - Shared locks of different owners overlap; an exclusive lock overlaps with none of another owner. Locks of one owner
//!   never conflict: a new one replaces what it overlaps, so locks are upgraded, downgraded, split and merged.
//! - A request that conflicts with a held lock is refused or waits. Requests that wait are granted in order of arrival, each
//!   as soon as no held lock is in its way. A new request is not held back by those that wait: otherwise an owner that holds
//!   a range shared could not lock it shared again while another owner waits for it, and both would wait forever.
//! - A request that would wait for itself through the locks and requests of others is refused ([`LockError::Deadlock`]).
//! - A whole file is the range [`LockRange::ALL`]. `flock` through FUSE is such a lock of the open file (the kernel gives
//!   each open file an owner of its own). So `flock` and POSIX locks exclude each other, as they do on NFS mounts.
//!
//! **Bounds.** Locks and waiting requests are counted, per client and in total ([`LockLimits`]); beyond the limits a request
//! is refused. An unlock that splits a range counts as well.
//!
//! **A lock outlives the name of its file** until its owner releases it: the key contains the generation, so a later file with
//! the same object number does not inherit it.

mod ranges;
mod shared;
mod shares;
mod table;

#[cfg(test)]
mod tests;

pub use shared::{GrantCallback, LockWait, Locks, Requested};
pub use shares::{Share, ShareModes};
pub use table::{Conflict, LockLimits, LockOutcome, LockTable, WaitId};

use std::sync::Arc;
use thiserror::Error;

/// A file, for its lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockedFile {
    /// Persistent ID of the file system.
    pub file_system: u64,
    /// Number of the file in it.
    pub object: u64,
    /// Tells successive files with the same number apart.
    pub generation: u64,
}

/// Source of lock requests: limits are counted for each, and all locks of one are released together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockClient {
    /// An NFS client, by its address.
    Nlm(Arc<str>),
    /// A FUSE mount, by its number.
    Fuse(u64),
}

/// Owner of locks: locks of one owner do not conflict.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockOwner {
    /// A process of an NFS client.
    Nlm {
        /// Address of the client.
        client: Arc<str>,
        /// The client's number of the process (`svid`).
        process: u32,
        /// The client's further identification (`oh`).
        handle: Arc<[u8]>,
    },
    /// A process, or an open file, of a FUSE mount.
    Fuse {
        /// Number of the mount.
        mount: u64,
        /// The kernel's number of the owner.
        owner: u64,
    },
}

impl LockOwner {
    /// The client that the owner belongs to.
    pub fn client(&self) -> LockClient {
        match self {
            LockOwner::Nlm { client, .. } => LockClient::Nlm(client.clone()),
            LockOwner::Fuse { mount, .. } => LockClient::Fuse(*mount),
        }
    }
}

/// Kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockKind {
    /// Several owners may hold it: a read lock.
    Shared,
    /// One owner holds it: a write lock.
    Exclusive,
}

impl LockKind {
    fn conflicts(self, other: LockKind) -> bool {
        self == LockKind::Exclusive || other == LockKind::Exclusive
    }
}

/// A range of bytes with both ends included, so that a lock can reach the last possible byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockRange {
    /// First byte.
    pub start: u64,
    /// Last byte; not before `start`.
    pub end: u64,
}

impl LockRange {
    /// The whole file, whatever its size becomes.
    pub const ALL: LockRange = LockRange { start: 0, end: u64::MAX };

    /// A range with both ends; `None` if the end is before the start.
    pub fn new(start: u64, end: u64) -> Option<Self> {
        (start <= end).then_some(LockRange { start, end })
    }

    fn overlaps(self, other: LockRange) -> bool {
        self.start <= other.end && other.start <= self.end
    }
}

/// A lock that is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRequest {
    /// The bytes.
    pub range: LockRange,
    /// The kind.
    pub kind: LockKind,
    /// Number of the process, for callers that ask who holds a lock.
    pub process: u32,
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LockError {
    /// The owner would wait for itself.
    #[error("the request would wait for a lock whose holder waits for this owner")]
    Deadlock,
    /// The client, or all clients together, have too many locks or waiting requests.
    #[error("too many locks")]
    TooMany,
}

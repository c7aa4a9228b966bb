//! Advisory locks as network protocols see them.
//!
//! The locks of all protocols and mounts are in one table, so they exclude each other. A protocol names the owner: the client
//! by its address, and the process by what the client says about it.

use crate::files::{FileError, FileId};
use crate::rules::Caller;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use thiserror::Error;
use weir_machine::Request;

/// Owner of locks. Locks of one owner do not conflict.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockOwner {
    /// Address of the client.
    pub client: Arc<str>,
    /// The client's number of the process.
    pub process: u32,
    /// The client's further identification of the owner.
    pub handle: Arc<[u8]>,
}

/// Bytes of a file, both ends included, and the kind of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lock {
    /// First byte.
    pub start: u64,
    /// Last byte; not before `start`. The greatest number means the end of the file, wherever it is.
    pub end: u64,
    /// Whether only one owner may hold it; otherwise it is shared.
    pub is_exclusive: bool,
}

/// A lock that is in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// The lock.
    pub lock: Lock,
    /// Number of its process.
    pub process: u32,
    /// Further identification of its owner; empty if the owner is no client of this protocol.
    pub handle: Arc<[u8]>,
}

/// Answer to a lock request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockOutcome {
    /// The owner holds the lock.
    Granted,
    /// Another lock is in the way.
    Denied(LockHolder),
    /// The request waits; its callback will be called.
    Waiting,
}

/// Reading, writing, both or neither, of DOS share reservations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareModes {
    /// Reading.
    pub read: bool,
    /// Writing.
    pub write: bool,
}

/// Called when a request that waited is granted.
pub type GrantCallback = Box<dyn FnOnce() + Send>;

/// Why a lock request failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LockError {
    /// The file cannot be locked by the caller.
    #[error("{0}")]
    File(#[from] FileError),
    /// The owner would wait for itself.
    #[error("the request would wait for itself")]
    Deadlock,
    /// The client, or all clients, have too many locks.
    #[error("too many locks")]
    TooMany,
}

/// Future of a lock operation.
pub type LockFuture<'a, T> = BoxFuture<'a, Result<T, LockError>>;

/// Locks on the files of a pool. To test or take a lock, the caller must be permitted to read the file, or to write it if
/// the lock is exclusive. Releasing needs no permission and works after the file is gone.
pub trait FileLocks: Send + Sync {
    /// The lock that is in the way of another one, if there is one.
    fn test_lock<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        file: FileId,
        owner: &'a LockOwner,
        lock: Lock,
    ) -> LockFuture<'a, Option<LockHolder>>;
    /// Takes a lock. With a callback it waits while another lock is in the way. A request that waits already keeps its place.
    fn lock<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        file: FileId,
        owner: &'a LockOwner,
        lock: Lock,
        granted: Option<GrantCallback>,
    ) -> LockFuture<'a, LockOutcome>;
    /// Releases the bytes of a lock, whatever its kind; what is not held is ignored.
    ///
    /// # Errors
    /// [`LockError::TooMany`] if too many locks would remain.
    fn unlock(&self, file: FileId, owner: &LockOwner, lock: Lock) -> Result<(), LockError>;
    /// Ends a waiting request; false if there is none.
    fn cancel_lock(&self, file: FileId, owner: &LockOwner, lock: Lock) -> bool;
    /// Reserves a file for `access`, and denies `deny` to others; false if the reservation of another owner excludes it.
    fn share<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        file: FileId,
        owner: &'a LockOwner,
        access: ShareModes,
        deny: ShareModes,
    ) -> LockFuture<'a, bool>;
    /// Ends an owner's reservation.
    fn unshare(&self, file: FileId, owner: &LockOwner);
    /// Releases everything of a client.
    fn release_client(&self, client: &str);
    /// Whether a client holds a lock or a reservation, or waits.
    fn has_client(&self, client: &str) -> bool;
}

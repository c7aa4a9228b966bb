//! Locks of processes on a mount: `fcntl` and `flock`, in the table that NFS clients use, too.
//!
//! The kernel names an owner: for `fcntl` the process, for `flock` and open file description locks the open file. It releases
//! the locks of a process when that closes any descriptor of the file (`flush`), and those of an open file with its last
//! descriptor (`release`).
//!
//! **Waiting.** A request that waits (`F_SETLKW`, `flock` without `LOCK_NB`) is answered when the lock is granted. The kernel
//! keeps the caller in the call until then, even if it is killed, and tells the server of a signal by FUSE_INTERRUPT, which
//! `fuser` does not pass on. So the signals of a caller that waits are looked up every [`SIGNAL_INTERVAL`]: a pending one ends
//! the wait with EINTR, which the kernel turns into a restart of the call or an error of the caller, as for any system call.
//! A caller in another process namespace is not visible; it waits until the lock is granted.
//!
//! **`flock` is a lock of the whole file** here, as on NFS mounts: `fuser` does not pass on which of both it was. So both
//! kinds exclude each other, and a process that takes both on one file with two descriptors waits for itself.

use crate::inner::{Inner, report};
use fuser::{Errno, INodeNo, LockOwner as KernelOwner, ReplyLock};
use futures_util::future::{Either, select};
use std::pin::pin;
use std::time::Duration;
use weir_files::locks::{
    LockClient, LockError, LockKind, LockOutcome, LockOwner, LockRange, LockRequest, LockWait, Requested,
};
use weir_linux::signals;
use weir_machine::Request;

/// Interval at which signals of a caller that waits are looked up.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);
/// Last byte of a lock that the kernel sends for "to the end of the file".
const KERNEL_END: u64 = i64::MAX as u64;

/// A request of `fcntl` or `flock`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelLock {
    pub(crate) owner: KernelOwner,
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub(crate) kind: i32,
    /// Process of the caller; 0 when it unlocks.
    pub(crate) process: u32,
    /// Thread of the caller, which waits.
    pub(crate) thread: u32,
    /// Whether it waits.
    pub(crate) waits: bool,
}

impl KernelLock {
    fn range(&self) -> Result<LockRange, Errno> {
        let end = if self.end >= KERNEL_END { u64::MAX } else { self.end };
        LockRange::new(self.start, end).ok_or(Errno::EINVAL)
    }

    /// The lock to take; `None` to release.
    fn request(&self) -> Result<Option<LockRequest>, Errno> {
        let kind = match self.kind {
            libc::F_RDLCK => LockKind::Shared,
            libc::F_WRLCK => LockKind::Exclusive,
            libc::F_UNLCK => return Ok(None),
            _ => return Err(Errno::EINVAL),
        };
        Ok(Some(LockRequest { range: self.range()?, kind, process: self.process }))
    }
}

fn errno(error: LockError) -> Errno {
    match error {
        LockError::Deadlock => Errno::EDEADLK,
        LockError::TooMany => Errno::ENOLCK,
    }
}

impl Inner {
    fn owner(&self, owner: KernelOwner) -> LockOwner {
        LockOwner::Fuse { mount: self.mount, owner: owner.0 }
    }

    /// Replies with the lock that is in the way, or with the request marked as unlocked.
    pub(crate) async fn test_lock(&self, rq: &Request, number: INodeNo, lock: KernelLock, reply: ReplyLock) {
        let found = async {
            let request = lock.request()?.ok_or(Errno::EINVAL)?;
            let file = self.tree.locked_file(rq, self.node(number)?).await.map_err(|e| report(rq, &e))?;
            Ok::<_, Errno>(self.tree.locks().test(file, &self.owner(lock.owner), request))
        };
        match found.await {
            Err(errno) => reply.error(errno),
            Ok(None) => reply.locked(lock.start, lock.end, libc::F_UNLCK, 0),
            Ok(Some(conflict)) => {
                let LockRequest { range, kind, process } = conflict.lock;
                let kind = if kind == LockKind::Shared { libc::F_RDLCK } else { libc::F_WRLCK };
                // A process of another machine has no number here.
                let is_local = matches!(conflict.owner, LockOwner::Fuse { .. });
                let end = range.end.min(KERNEL_END);
                reply.locked(range.start.min(end), end, kind, if is_local { process } else { 0 });
            }
        }
    }

    /// Takes or releases a lock.
    pub(crate) async fn set_lock(&self, rq: &Request, number: INodeNo, lock: KernelLock) -> Result<(), Errno> {
        let file = self.tree.locked_file(rq, self.node(number)?).await.map_err(|e| report(rq, &e))?;
        let owner = self.owner(lock.owner);
        let locks = self.tree.locks();
        let Some(request) = lock.request()? else {
            return locks.unlock(file, &owner, lock.range()?).map_err(errno);
        };
        if lock.waits {
            match locks.lock_or_wait(file, &owner, request).map_err(errno)? {
                Requested::Granted => Ok(()),
                Requested::Waits(wait) => self.wait_for_lock(wait, lock.thread).await,
            }
        } else {
            match locks.lock(file, &owner, request, None).map_err(errno)? {
                LockOutcome::Granted => Ok(()),
                LockOutcome::Denied(_) | LockOutcome::Waiting(_) => Err(Errno::EAGAIN),
            }
        }
    }

    /// Waits until a lock is granted, or a signal arrives for the thread that waits.
    async fn wait_for_lock(&self, mut wait: LockWait, thread: u32) -> Result<(), Errno> {
        let Some(clock) = self.tree.clock() else {
            wait.await;
            return Ok(());
        };
        loop {
            match select(&mut wait, pin!(clock.sleep(SIGNAL_INTERVAL))).await {
                Either::Left(_) => return Ok(()),
                Either::Right(_) if signals::is_pending(thread) => return Err(Errno::EINTR),
                Either::Right(_) => {}
            }
        }
    }

    /// Releases all locks of an owner on a file, because it closed it.
    pub(crate) async fn release_locks(&self, rq: &Request, number: INodeNo, owner: KernelOwner) -> Result<(), Errno> {
        let locks = self.tree.locks();
        // Most files are closed without a lock on any.
        if !locks.has_client(&LockClient::Fuse(self.mount)) {
            return Ok(());
        }
        let file = self.tree.locked_file(rq, self.node(number)?).await.map_err(|e| report(rq, &e))?;
        locks.unlock(file, &self.owner(owner), LockRange::ALL).map_err(errno)
    }
}

impl Inner {
    /// Closes a file with its last descriptor, and releases the locks of the open file if it had any.
    pub(crate) async fn release_locks_and_close(
        &self,
        rq: &Request,
        number: INodeNo,
        owner: Option<KernelOwner>,
    ) -> Result<(), Errno> {
        if let Some(owner) = owner {
            self.release_locks(rq, number, owner).await?;
        }
        self.close(rq, number).await
    }
}

impl Drop for Inner {
    /// Releases the locks of the mount when it ends.
    fn drop(&mut self) {
        self.tree.locks().release_client(&LockClient::Fuse(self.mount));
    }
}

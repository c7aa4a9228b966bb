//! A semaphore of bytes that bounds the memory held for a server's clients: requests being received and replies not
//! yet sent.
//!
//! A server acquires a [`BytePermit`] of a [`ByteSemaphore`] before it allocates memory for a client, and stops
//! reading from the client until then: so the semaphore bounds the memory whatever the number of clients. A stalled
//! client could hold its permit forever: the server closes its connection while others wait
//! ([`ByteSemaphore::has_waiters`]).
//!
//! The permit must cover the memory actually held: a small slice keeps its whole block allocated, so it is copied
//! ([`compact`]).
//!
//! Invariant: a task that waits for a permit holds no permit of the same semaphore, since that could deadlock.

use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Unit in which the semaphore counts, in bytes.
const UNIT_BYTES: usize = 4096;
/// A slice is copied if it is smaller than this fraction of its block.
const MIN_USEFUL_FRACTION: usize = 4;

/// Returns `bytes`, or a copy of them if they are less than a quarter of the block of `whole_bytes` that they keep
/// allocated.
pub fn compact(bytes: Bytes, whole_bytes: usize) -> Bytes {
    if bytes.len() < whole_bytes / MIN_USEFUL_FRACTION { Bytes::copy_from_slice(&bytes) } else { bytes }
}

/// A semaphore that counts bytes.
#[derive(Clone, Debug)]
pub struct ByteSemaphore {
    free: Arc<Semaphore>,
    units: usize,
    waiting: Arc<AtomicUsize>,
}

/// Bytes acquired from a [`ByteSemaphore`]; released when dropped.
#[derive(Debug)]
pub struct BytePermit {
    permit: Option<OwnedSemaphorePermit>,
}

impl BytePermit {
    /// Releases all but `bytes`, rounded up to 4 KiB.
    pub fn shrink_to(&mut self, bytes: usize) {
        if let Some(permit) = &mut self.permit {
            let kept = permit.split(bytes.div_ceil(UNIT_BYTES).min(permit.num_permits()));
            debug_assert!(kept.is_some(), "a permit has as many units as it says");
            self.permit = kept;
        }
    }
}

/// Counts a waiter until dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ByteSemaphore {
    /// A semaphore of `bytes`, rounded up to a multiple of 4 KiB.
    pub fn new(bytes: usize) -> Self {
        let units = bytes.div_ceil(UNIT_BYTES).min(Semaphore::MAX_PERMITS);
        ByteSemaphore { free: Arc::new(Semaphore::new(units)), units, waiting: Arc::default() }
    }

    /// Acquires `bytes` when they are available, in FIFO order. A request for more than the total acquires all.
    pub async fn acquire(&self, bytes: usize) -> BytePermit {
        let units = bytes.div_ceil(UNIT_BYTES).min(self.units);
        let Some(units) = u32::try_from(units).ok().filter(|units| *units != 0) else {
            return BytePermit { permit: None };
        };
        if let Ok(permit) = self.free.clone().try_acquire_many_owned(units) {
            return BytePermit { permit: Some(permit) };
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.waiting);
        // The semaphore is never closed.
        BytePermit { permit: self.free.clone().acquire_many_owned(units).await.ok() }
    }

    /// Whether any task is waiting for a permit.
    pub fn has_waiters(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) != 0
    }

    /// Whether a permit is held, or a task waits for one.
    pub fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.free) > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn permits_are_bounded_and_released() {
        let semaphore = ByteSemaphore::new(3 * UNIT_BYTES);
        let first = semaphore.acquire(UNIT_BYTES + 1).now_or_never().unwrap();
        let nothing = semaphore.acquire(0).now_or_never().unwrap();
        let mut second = Box::pin(semaphore.acquire(2 * UNIT_BYTES));
        assert!(second.as_mut().now_or_never().is_none() && semaphore.has_waiters());
        // Waiters are served in FIFO order.
        let mut third = Box::pin(semaphore.acquire(UNIT_BYTES));
        assert!(third.as_mut().now_or_never().is_none());
        drop((first, nothing));
        let second = second.now_or_never().unwrap();
        drop((second, third.now_or_never().unwrap()));
        assert!(!semaphore.has_waiters());
        let mut shrunk = semaphore.acquire(3 * UNIT_BYTES).now_or_never().unwrap();
        shrunk.shrink_to(UNIT_BYTES - 1);
        drop(semaphore.acquire(2 * UNIT_BYTES).now_or_never().unwrap());
        drop(shrunk);
        let all = semaphore.acquire(usize::MAX).now_or_never().unwrap();
        assert!(Box::pin(semaphore.acquire(1)).as_mut().now_or_never().is_none());
        assert!(!semaphore.has_waiters(), "a dropped waiter is no longer counted");
        drop(all);
    }

    #[test]
    fn small_slices_are_copied() {
        let whole = Bytes::from(vec![7; 4096]);
        let compacted = |len: usize| compact(whole.slice(9..9 + len), whole.len());
        assert!(compacted(1023).is_unique() && !compacted(1024).is_unique());
        assert_eq!((compacted(1023), compacted(2000)), (whole.slice(..1023), whole.slice(..2000)));
    }
}

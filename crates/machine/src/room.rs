//! Memory that the clients of a server hold: what they are sending, and what they have not taken yet.
//!
//! Who lets clients hold memory takes a [`Place`] of a [`Room`] before it does, and stops listening to the client until it
//! has one: so the room bounds the memory however many clients there are. A client that holds its place for ever would
//! take it from all others. So what a client is to do with the memory is done [`Room::hurried`]: it may take its time as
//! long as nobody waits, and no longer than so long if somebody does.
//!
//! What is counted must be what is held: a few bytes of a large block keep all of it, so such are copied ([`lean`]).
//!
//! Invariant: whoever waits for a place of one room holds none of the same room that it alone can give back.

use bytes::Bytes;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What a room is counted in, in bytes.
const UNIT_BYTES: usize = 4096;
/// Which part of a piece of memory is worth to hold it whole.
const LEAN_PART: usize = 4;

/// Bytes that may be held for long, of a piece of memory of `whole_bytes` that goes on living with them: a copy, if that is
/// much more than they are.
pub fn lean(bytes: Bytes, whole_bytes: usize) -> Bytes {
    if bytes.len() < whole_bytes / LEAN_PART { Bytes::copy_from_slice(&bytes) } else { bytes }
}

/// So many bytes, for all who take of them.
#[derive(Clone, Debug)]
pub struct Room {
    free: Arc<Semaphore>,
    units: usize,
    waiting: Arc<AtomicUsize>,
}

/// Some bytes of a room; given back when dropped.
#[derive(Debug)]
pub struct Place {
    _permit: Option<OwnedSemaphorePermit>,
}

/// One that waits, until this is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Room {
    /// Room for so many bytes.
    pub fn new(bytes: usize) -> Self {
        let units = bytes.div_ceil(UNIT_BYTES).min(Semaphore::MAX_PERMITS);
        Room { free: Arc::new(Semaphore::new(units)), units, waiting: Arc::default() }
    }

    /// Takes so many bytes, once they are free; those who came first are first. Who wants more than there is gets all.
    pub async fn take(&self, bytes: usize) -> Place {
        let units = bytes.div_ceil(UNIT_BYTES).min(self.units);
        let Some(units) = u32::try_from(units).ok().filter(|units| *units != 0) else { return Place { _permit: None } };
        if let Ok(permit) = self.free.clone().try_acquire_many_owned(units) {
            return Place { _permit: Some(permit) };
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.waiting);
        // The semaphore is never closed.
        Place { _permit: self.free.clone().acquire_many_owned(units).await.ok() }
    }

    /// Whether somebody waits for a place.
    pub fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) != 0
    }

    /// Does what a client must do its part for while it holds a place of this room.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if that took longer than `limit`, and somebody waits; those of `work`.
    pub async fn hurried<T>(&self, limit: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        let mut work = pin!(work);
        loop {
            match tokio::time::timeout(limit, work.as_mut()).await {
                Ok(done) => return done,
                Err(_) if self.is_wanted() => return Err(io::ErrorKind::TimedOut.into()),
                Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Production;
    use futures_util::FutureExt;
    use futures_util::future::pending;

    const LIMIT: Duration = Duration::from_millis(20);

    #[test]
    fn places_are_bounded_and_come_back() {
        let room = Room::new(3 * UNIT_BYTES);
        let first = room.take(UNIT_BYTES + 1).now_or_never().unwrap();
        let nothing = room.take(0).now_or_never().unwrap();
        let mut second = Box::pin(room.take(2 * UNIT_BYTES));
        assert!(second.as_mut().now_or_never().is_none() && room.is_wanted());
        // Nobody overtakes one that waits.
        let mut third = Box::pin(room.take(UNIT_BYTES));
        assert!(third.as_mut().now_or_never().is_none());
        drop((first, nothing));
        let second = second.now_or_never().unwrap();
        drop((second, third.now_or_never().unwrap()));
        assert!(!room.is_wanted());
        let all = room.take(usize::MAX).now_or_never().unwrap();
        assert!(Box::pin(room.take(1)).as_mut().now_or_never().is_none());
        assert!(!room.is_wanted(), "who gave up waits no more");
        drop(all);
    }

    #[test]
    fn small_parts_are_copied() {
        let whole = Bytes::from(vec![7; 4096]);
        let kept = |len: usize| lean(whole.slice(9..9 + len), whole.len());
        assert!(kept(1023).is_unique() && !kept(1024).is_unique());
        assert_eq!((kept(1023), kept(2000)), (whole.slice(..1023), whole.slice(..2000)));
    }

    #[test]
    fn only_what_others_wait_for_is_hurried() {
        let machine = Production::default().build().unwrap();
        machine.block_on(async {
            let room = Room::new(UNIT_BYTES);
            let place = room.take(1).await;
            let slow = tokio::time::timeout(LIMIT * 4, room.hurried(LIMIT, pending::<io::Result<()>>()));
            assert!(slow.await.is_err(), "nobody waits");
            let mut other = Box::pin(room.take(1));
            assert!(other.as_mut().now_or_never().is_none());
            let error = room.hurried(LIMIT, pending::<io::Result<()>>()).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert_eq!(room.hurried(LIMIT, async { Ok(7) }).await.unwrap(), 7);
            drop(place);
            other.await;
        });
    }
}

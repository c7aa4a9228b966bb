//! Counts of the locks by their place in the order (feature `lock-stats`): how often each is taken and waited for, how long
//! the waits are, and how long it is held.
//!
//! Each thread counts for itself, so that counting adds no contention; [`snapshot`] adds up. A lock takes some 50 ns longer
//! than without counting, because the clock is read twice.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "measures real time, for a benchmark")]

use super::order;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

/// All places: the last is that of locks that name none.
const PLACES: usize = order::LEAF as usize + 1;

/// Counts of the locks at one place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockCounts {
    /// Number of times that a lock was taken.
    pub taken: u64,
    /// Number of these that waited for another thread.
    pub waited: u64,
    /// Time of these waits, in nanoseconds.
    pub wait_ns: u64,
    /// Time that locks were held, in nanoseconds.
    pub held_ns: u64,
}

#[derive(Default)]
struct Row {
    taken: AtomicU64,
    waited: AtomicU64,
    wait_ns: AtomicU64,
    held_ns: AtomicU64,
}

/// The counts of one thread; only that thread changes them.
struct Rows([Row; PLACES]);

static THREADS: Mutex<Vec<Arc<Rows>>> = Mutex::new(Vec::new());

thread_local! {
    static MINE: Arc<Rows> = {
        let rows = Arc::new(Rows(std::array::from_fn(|_| Row::default())));
        THREADS.lock().unwrap_or_else(PoisonError::into_inner).push(rows.clone());
        rows
    };
}

fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

fn ns_since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Takes a lock at `place`, and counts it. Returns the guard and the time from which it is held.
pub(super) fn lock<T>(mutex: &Mutex<T>, place: u8) -> (MutexGuard<'_, T>, Instant) {
    let (guard, waited_ns) = match mutex.try_lock() {
        Ok(guard) => (guard, None),
        Err(TryLockError::Poisoned(poisoned)) => (poisoned.into_inner(), None),
        Err(TryLockError::WouldBlock) => {
            let begun = Instant::now();
            let guard = mutex.lock().unwrap_or_else(PoisonError::into_inner);
            (guard, Some(ns_since(begun)))
        }
    };
    MINE.with(|rows| {
        let Some(row) = rows.0.get(place as usize) else { return };
        add(&row.taken, 1);
        if let Some(ns) = waited_ns {
            add(&row.waited, 1);
            add(&row.wait_ns, ns);
        }
    });
    (guard, Instant::now())
}

/// Counts the release of a lock.
pub(super) fn released(place: u8, since: Instant) {
    // A lock that is released while its thread ends is not counted.
    let _counted = MINE.try_with(|rows| rows.0.get(place as usize).map(|row| add(&row.held_ns, ns_since(since))));
}

/// The counts of all threads by the name of the place, since the program began.
pub fn snapshot() -> Vec<(&'static str, LockCounts)> {
    let threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
    let sum = |place: usize, field: fn(&Row) -> &AtomicU64| {
        threads.iter().filter_map(|rows| rows.0.get(place)).map(|row| field(row).load(Ordering::Relaxed)).sum()
    };
    (0..PLACES as u8)
        .map(|place| {
            let at = place as usize;
            let counts = LockCounts {
                taken: sum(at, |row| &row.taken),
                waited: sum(at, |row| &row.waited),
                wait_ns: sum(at, |row| &row.wait_ns),
                held_ns: sum(at, |row| &row.held_ns),
            };
            (order::name(place), counts)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_counted_with_their_waits() {
        let before: u64 = snapshot().iter().map(|(_, counts)| counts.taken).sum();
        let mutex = Arc::new(super::super::Mutex::<u8, { order::BUFFERS }>::new(0));
        let held = mutex.lock();
        let other = std::thread::spawn({
            let mutex = mutex.clone();
            move || *mutex.lock() += 1
        });
        drop(held);
        other.join().unwrap();
        let after: u64 = snapshot().iter().map(|(_, counts)| counts.taken).sum();
        assert!(after >= before + 2, "{before} {after}");
    }
}

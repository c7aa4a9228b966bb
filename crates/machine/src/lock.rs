//! Locks with an order that debug builds and the simulator check.
//!
//! [`order`] lists the locks of all crates in the order in which a thread may take them: while it holds one, it takes only
//! later ones. So no set of threads can wait for each other in a circle. A [`Mutex`] has its place in that order as a part of
//! its type.
//!
//! These locks are held for a few instructions and never across an await. What is held across awaits is listed, with its own
//! order, in [`order`], too.
//!
//! The locks of the implementations of the platform (`weir-linux`, `weir-sim`) are not in the list: they guard a queue or a
//! table, and no code that takes another lock runs under them.

#[cfg(feature = "lock-stats")]
pub mod stats;

use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

/// The order of locks: see the [module](self).
///
/// Locks that are held across awaits, from the first to the last that a request takes:
///
/// 1. `Engine::adding` (`zpool add`), `Engine::opening` (opening a dataset), `Engine::renewing` (applying changed properties),
///    the syncer's state
/// 2. `files`: the rename lock of a file system, then the locks of objects in ascending number, then the registry of system
///    attributes, then the delete queue
/// 3. `volumes`: ranges of a volume in ascending offset
/// 4. `Engine`: the last synced state
/// 5. `nfs`: the record of clients with locks, while it is stored
/// 6. byte semaphores: memory of a client's request before that of its host, then that of the server
pub mod order {
    /// Declares places in the order, first to last.
    macro_rules! places {
        ($($(#[$doc:meta])* $name:ident,)*) => {
            #[allow(non_camel_case_types, reason = "the variants are the names of the constants below")]
            #[allow(clippy::upper_case_acronyms, reason = "as above")]
            #[repr(u8)]
            enum Place { $($name,)* }

            $($(#[$doc])* pub const $name: u8 = Place::$name as u8;)*

            /// The name of a place, for messages.
            pub fn name(place: u8) -> &'static str {
                const NAMES: &[&str] = &[$(stringify!($name),)*];
                NAMES.get(place as usize).copied().unwrap_or("unknown")
            }
        };
    }

    places! {
        /// Task of the syncer, until the pool is closed.
        SYNCER,
        /// State of the pool that `zpool status` shows.
        SHOWN,
        /// Device that the pool waits for.
        WAITS_FOR,
        /// Devices that are offline until the next import.
        OFFLINE_DEVICES,
        /// Passes over the free space of devices.
        LEAF_ACTIVITIES,
        /// Table of open datasets.
        OPEN_DATASETS,
        /// How far streams were received.
        RESUME_POINTS,
        /// Changes of datasets that no front end has taken yet.
        CHANGED_DATASETS,
        /// Loaded keys.
        KEYS,
        /// Readers with long holds.
        LONG_HOLDS,
        /// Queue of sync tasks.
        SYNC_TASKS,
        /// Limits of transaction admission.
        ADMISSION_LIMITS,
        /// Time of the last wake-up of transaction admission.
        ADMISSION_WAKEUP,
        /// Top-level vdevs that space was added for.
        TOP_LEVEL_VDEVS,
        /// Logs of the space maps.
        SPACE_LOG,
        /// State of an intent log.
        INTENT_LOG,
        /// Holds and states of txgs.
        TXGS,
        /// A shard of the ARC.
        ARC,
        /// Versions of the vdev tree.
        VDEV_TREE,
        /// Holds of reads in progress.
        READ_HOLDS,
        /// Loads of metaslabs in progress.
        METASLAB_LOADS,
        /// Free and allocated space.
        ALLOCATOR,
        /// Frees outside of loaded metaslabs.
        OTHER_FREES,
        /// Encodings that writes may use.
        ENCODINGS,
        /// Salts of encrypted blocks.
        SALTS,
        /// Whether writes are suspended.
        SUSPENSION,
        /// Batch of writes that is not submitted yet.
        WRITE_PLUG,
        /// Leaves that failed a part of a block.
        FAILED_LEAVES,
        /// Queue of a leaf's reads or writes.
        LEAF_QUEUE,
        /// Operations of a device in progress.
        DEVICE_OPERATIONS,
        /// Flushes of a leaf.
        FLUSHER,
        /// DTL of a leaf.
        DTL,
        /// Errors of the devices.
        DIAGNOSIS,
        /// Lost blocks that are not in the pool's error log yet.
        LOST_BLOCKS,
        /// Ring of the pool's events.
        EVENTS,
        /// Clients of the accounts.
        CLIENTS,
        /// Table of the buffers' memory regions.
        BUFFER_REGIONS,
        /// Free buffers of one size.
        BUFFERS,
    }
}

thread_local! {
    /// Places of the locks that this thread holds.
    static HELD: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A lock at `PLACE` in the [order]. Poisoning is ignored: no change under a lock of this program panics half-way.
#[derive(Default)]
pub struct Mutex<T, const PLACE: u8>(std::sync::Mutex<T>);

impl<T, const PLACE: u8> Mutex<T, PLACE> {
    /// A lock over `value`.
    pub const fn new(value: T) -> Self {
        Mutex(std::sync::Mutex::new(value))
    }

    /// Waits for the lock.
    ///
    /// # Panics
    /// In debug builds and in the simulator, if this thread holds a lock that is not before this one in the [order].
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let is_checked = crate::invariant::is_checked();
        if is_checked {
            check(PLACE);
        }
        #[cfg(feature = "lock-stats")]
        let (guard, since) = stats::lock(&self.0, PLACE);
        #[cfg(not(feature = "lock-stats"))]
        let guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        MutexGuard {
            place: is_checked.then_some(PLACE),
            guard,
            #[cfg(feature = "lock-stats")]
            since: (PLACE, since),
        }
    }

    /// The value, without the lock.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks the order, and notes that this thread holds a lock.
fn check(place: u8) {
    HELD.with_borrow_mut(|held| {
        if let Some(later) = held.iter().find(|held| **held >= place) {
            let later = order::name(*later);
            // The lock is not taken, so that the test ends instead of waiting forever.
            panic!("lock {} is taken under {later}, which comes after it in the order of locks", order::name(place));
        }
        held.push(place);
    });
}

impl<T, const PLACE: u8> fmt::Debug for Mutex<T, PLACE> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mutex({})", order::name(PLACE))
    }
}

/// A held [`Mutex`].
#[must_use = "the lock is released at once"]
pub struct MutexGuard<'a, T> {
    guard: std::sync::MutexGuard<'a, T>,
    /// Place of the lock, if the order is checked.
    place: Option<u8>,
    /// Place of the lock, and the time from which it is held.
    #[cfg(feature = "lock-stats")]
    since: (u8, std::time::Instant),
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        #[cfg(feature = "lock-stats")]
        stats::released(self.since.0, self.since.1);
        let Some(place) = self.place else { return };
        HELD.with_borrow_mut(|held| {
            let at = held.iter().rposition(|held| *held == place);
            debug_assert!(at.is_some(), "lock {} is released by another thread", order::name(place));
            at.map(|at| held.remove(at));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_taken_in_their_order() {
        let first = Mutex::<u8, { order::ARC }>::new(1);
        let second = Mutex::<u8, { order::ALLOCATOR }>::new(2);
        let mut held = first.lock();
        *held += *second.lock();
        drop(held);
        let _later = second.lock();
        assert_eq!(first.into_inner(), 3);
    }

    #[test]
    #[should_panic(expected = "lock ARC is taken under ALLOCATOR")]
    fn the_other_order_stops_a_test() {
        let first = Mutex::<u8, { order::ARC }>::new(1);
        let second = Mutex::<u8, { order::ALLOCATOR }>::new(2);
        let _held = second.lock();
        let _wrong = first.lock();
    }

    #[test]
    #[should_panic(expected = "lock ARC is taken under ARC")]
    fn two_locks_of_one_kind_are_not_held_at_once() {
        let one = Mutex::<u8, { order::ARC }>::new(1);
        let other = Mutex::<u8, { order::ARC }>::new(2);
        let _held = one.lock();
        let _wrong = other.lock();
    }
}

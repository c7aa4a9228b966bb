//! Locks with an order that debug builds and the simulator check.
//!
//! [`order`] lists the locks of all crates in the order in which a thread may take them: while it holds one, it takes only
//! later ones. So no set of threads can wait for each other in a circle. A [`Mutex`] or [`RwLock`] has its place in that order
//! as a part of its type; without one, it is [`order::LEAF`], under which no lock is taken. `clippy.toml` bans the standard
//! library's locks elsewhere.
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
use std::panic::Location;
use std::sync::PoisonError;

/// The order of locks: see the [module](self).
///
/// Locks that are held across awaits, from the first to the last that a request takes:
///
/// 1. `daemon`: `changing` of the daemon's pools (their opening and closing), then `Exports::renewing`; `smb`: shares, then
///    connections
/// 2. `Engine::adding` (`zpool add`), `Engine::opening` (opening a dataset), `Engine::renewing` (applying changed properties),
///    the turn of a device that is initialized or trimmed, the turn of a vdev that is rebuilt, the pass of a scan
///    (`Engine::scan_cycle`), the syncer's state
/// 3. `Engine::mos_sync_lock`
/// 4. `files`: the rename lock of a file system, then the locks of objects in ascending number, then the registry of system
///    attributes, then the delete queue
/// 5. `volumes`: ranges of a volume in ascending offset
/// 6. `Engine`: the last synced state, then its DSL
/// 7. `nfs`: the record of clients with locks, while it is stored
/// 8. byte semaphores: memory of a client's request before that of its host, then that of the server
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
        /// Files with the history of analytics, while they are read or written.
        HISTORY_FILES,
        /// The mounts that a process makes by itself, while it makes them.
        AUTOMOUNTS,
        /// The mounts of a process.
        MOUNTS,
        /// The pools that a process has open.
        OPEN_POOLS,
        /// Tasks that follow the shares of the pools.
        FOLLOWING,
        /// The pools that the daemon is opening.
        OPENING_POOLS,
        /// The pools that NFS serves.
        NFS_POOLS,
        /// Shares that the properties of the pools define.
        SHARES,
        /// The pools that a process serves.
        POOL_TABLE,
        /// Callbacks for changes of the tree of exported file systems.
        TREE_WATCHERS,
        /// Front ends to which changes of files are reported.
        CHANGE_OBSERVERS,
        /// Tasks that look up host names.
        RESOLVING,
        /// Logical units of the iSCSI server.
        ISCSI_UNITS,
        /// The tree of exported file systems.
        NAMESPACE,
        /// A file system of the tree, if it is open.
        OPENED_FILES,
        /// Task of the syncer, until the pool is closed.
        SYNCER,
        /// State of the pool that `zpool status` shows.
        SHOWN,
        /// Device that the pool waits for.
        WAITS_FOR,
        /// Heartbeats of the pool.
        MULTIHOST,
        /// Devices that are offline until the next import.
        OFFLINE_DEVICES,
        /// Redacted datasets that may be opened.
        REDACTED_DATASETS,
        /// Passes over the free space of devices.
        LEAF_ACTIVITIES,
        /// Sequential rebuilds in progress.
        REBUILDS,
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
        /// Datasets that a DSL has read.
        DATASET_MEMO,
        /// Free object numbers of an object set.
        OBJECT_NUMBERS,
        /// A shard of the objects of an object set that have unsynced changes.
        OVERLAY,
        /// Settings of the next sync of an object set.
        OVERLAY_SETTINGS,
        /// Holds and states of txgs.
        TXGS,
        /// Root of an object set, as of its last sync.
        SYNCED_ROOT,
        /// Decoded dnodes of an object set.
        DNODE_CACHE,
        /// Sequential reads of an object.
        PREFETCHER,
        /// A shard of the ARC.
        ARC,
        /// Versions of the vdev tree.
        VDEV_TREE,
        /// Progress of a RAID-Z expansion.
        RAIDZ_REFLOW,
        /// Ranges that are written and copied while vdevs are being rebuilt.
        REBUILD_RANGES,
        /// Layouts of a RAID-Z vdev, and ranges, that a write uses.
        RAIDZ_LAYOUTS,
        /// Holds of reads in progress.
        READ_HOLDS,
        /// Blocks that a scan has found and not read.
        SCAN_QUEUE,
        /// Counts of a scan that are not recorded yet.
        SCAN_COUNTS,
        /// Loads of metaslabs in progress.
        METASLAB_LOADS,
        /// Copies of the blocks of a vdev that is being removed.
        EVACUATION,
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
        /// Connections of a server.
        CONNECTIONS,
        /// Memory of a block device in memory, for tests.
        MEMORY_DEVICE,
        /// The client of the last request through a mount.
        LAST_CLIENT,
        /// Clients of NFS by their connections.
        NFS_PEERS,
        /// Pools that an NFS client uses.
        POOL_USES,
        /// Clients of the accounts.
        CLIENTS,
        /// Files of the accounts, while what the threads counted is added to them.
        FILE_TABLE,
        /// Objects of a disk in an object store.
        STORE_OBJECTS,
        /// Table of the buffers' memory regions.
        BUFFER_REGIONS,
        /// Free buffers of one size.
        BUFFERS,
        /// Tables and caches under which no other lock is taken: the place of a lock that names none.
        LEAF,
    }
}

thread_local! {
    /// Places of the locks that this thread holds, and where it took them.
    static HELD: RefCell<Vec<(u8, &'static Location<'static>)>> = const { RefCell::new(Vec::new()) };
}

/// A lock at `PLACE` in the [order]. Poisoning is ignored: no change under a lock of this program panics half-way.
#[derive(Default)]
pub struct Mutex<T, const PLACE: u8 = { order::LEAF }>(std::sync::Mutex<T>);

impl<T, const PLACE: u8> Mutex<T, PLACE> {
    /// A lock over `value`.
    pub const fn new(value: T) -> Self {
        Mutex(std::sync::Mutex::new(value))
    }

    /// Waits for the lock.
    ///
    /// # Panics
    /// In debug builds and in the simulator, if this thread holds a lock that is not before this one in the [order].
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        #[cfg_attr(not(feature = "lock-stats"), allow(unused_mut, reason = "changed only to be counted"))]
        let mut held = LockRecord::check(PLACE);
        #[cfg(feature = "lock-stats")]
        let guard = {
            let (guard, since) = stats::lock(&self.0, PLACE);
            held.since = Some((PLACE, since));
            guard
        };
        #[cfg(not(feature = "lock-stats"))]
        let guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        MutexGuard { guard, _held: held }
    }

    /// The value, without the lock.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lock at `PLACE` in the [order] that several readers hold at a time. It is not counted (`lock-stats`).
#[derive(Default)]
pub struct RwLock<T, const PLACE: u8 = { order::LEAF }>(std::sync::RwLock<T>);

impl<T, const PLACE: u8> RwLock<T, PLACE> {
    /// A lock over `value`.
    pub const fn new(value: T) -> Self {
        RwLock(std::sync::RwLock::new(value))
    }

    /// Waits until no writer holds the lock.
    ///
    /// # Panics
    /// As [`Mutex::lock`].
    #[track_caller]
    pub fn read(&self) -> ReadGuard<'_, T> {
        let held = LockRecord::check(PLACE);
        ReadGuard { guard: self.0.read().unwrap_or_else(PoisonError::into_inner), _held: held }
    }

    /// Waits until no other thread holds the lock.
    ///
    /// # Panics
    /// As [`Mutex::lock`].
    #[track_caller]
    pub fn write(&self) -> WriteGuard<'_, T> {
        let held = LockRecord::check(PLACE);
        WriteGuard { guard: self.0.write().unwrap_or_else(PoisonError::into_inner), _held: held }
    }
}

/// That this thread holds a lock.
struct LockRecord {
    /// Place of the lock, if the order is checked.
    place: Option<u8>,
    /// Place of the lock, and the time from which it is held, if it is counted.
    #[cfg(feature = "lock-stats")]
    since: Option<(u8, std::time::Instant)>,
}

impl LockRecord {
    /// Checks the order, and notes that this thread holds a lock at `place`.
    #[track_caller]
    fn check(place: u8) -> LockRecord {
        let is_checked = crate::invariant::is_checked();
        if is_checked {
            check(place);
        }
        LockRecord {
            place: is_checked.then_some(place),
            #[cfg(feature = "lock-stats")]
            since: None,
        }
    }
}

impl Drop for LockRecord {
    fn drop(&mut self) {
        #[cfg(feature = "lock-stats")]
        if let Some((place, since)) = self.since {
            stats::released(place, since);
        }
        let Some(place) = self.place else { return };
        HELD.with_borrow_mut(|held| {
            let at = held.iter().rposition(|(held, _)| *held == place);
            debug_assert!(at.is_some(), "lock {} is released by another thread", order::name(place));
            at.map(|at| held.remove(at));
        });
    }
}

/// Checks the order, and notes that this thread holds a lock.
#[track_caller]
fn check(place: u8) {
    let here = Location::caller();
    HELD.with_borrow_mut(|held| {
        if let Some((later, since)) = held.iter().find(|(held, _)| *held >= place) {
            let (name, later) = (order::name(place), order::name(*later));
            // The lock is not taken, so that the test ends instead of waiting forever.
            panic!("lock {name} ({here}) is taken under {later} ({since}), which does not come before it");
        }
        held.push((place, here));
    });
}

impl<T, const PLACE: u8> fmt::Debug for Mutex<T, PLACE> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mutex({})", order::name(PLACE))
    }
}

impl<T, const PLACE: u8> fmt::Debug for RwLock<T, PLACE> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RwLock({})", order::name(PLACE))
    }
}

/// A held [`Mutex`]. Fields are dropped in this order: the lock is released before that is noted.
#[must_use = "the lock is released at once"]
pub struct MutexGuard<'a, T> {
    guard: std::sync::MutexGuard<'a, T>,
    _held: LockRecord,
}

/// A [`RwLock`] that is held for reading.
#[must_use = "the lock is released at once"]
pub struct ReadGuard<'a, T> {
    guard: std::sync::RwLockReadGuard<'a, T>,
    _held: LockRecord,
}

/// A [`RwLock`] that is held for writing.
#[must_use = "the lock is released at once"]
pub struct WriteGuard<'a, T> {
    guard: std::sync::RwLockWriteGuard<'a, T>,
    _held: LockRecord,
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

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
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
    #[should_panic(expected = "is taken under ALLOCATOR")]
    fn the_other_order_stops_a_test() {
        let first = Mutex::<u8, { order::ARC }>::new(1);
        let second = Mutex::<u8, { order::ALLOCATOR }>::new(2);
        let _held = second.lock();
        let _wrong = first.lock();
    }

    #[test]
    #[should_panic(expected = "is taken under LEAF")]
    fn no_lock_is_taken_under_one_without_a_place() {
        let table = RwLock::<u8>::new(1);
        *table.write() += 1;
        let arc = Mutex::<u8, { order::ARC }>::new(2);
        let _held = table.read();
        let _wrong = arc.lock();
    }

    #[test]
    #[should_panic(expected = "is taken under ARC")]
    fn two_locks_of_one_kind_are_not_held_at_once() {
        let one = Mutex::<u8, { order::ARC }>::new(1);
        let other = Mutex::<u8, { order::ARC }>::new(2);
        let _held = one.lock();
        let _wrong = other.lock();
    }
}

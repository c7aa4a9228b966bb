//! Overlay of a live object set: its objects with unsynced changes, and the settings of the next sync.
//!
//! Objects are divided into shards by their numbers, each with a lock of its own, so that clients of different objects do not
//! wait for each other. [`Overlay::version`] counts the syncs. A sync makes its root current, then counts, and only then removes
//! objects from the shards. So a reader that finds no changes of an object under the lock of its shard, and then reads the
//! object from the synced tree, has its newest state if the version is the same as before when it holds the lock again.

use super::dirty_object::{DirtyObject, DirtyRecords};
use super::object_allocator::ObjectAllocator;
use super::policy::Policy;
use super::tx_admission::TxAdmission;
use crate::object::Object;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_blocks::RawForm;
use weir_format::zil::ZilHeader;
use weir_format::{ObjectId, Txg};
use weir_machine::lock::{Mutex, MutexGuard, order};

/// Number of shards.
const SHARDS: usize = 16;

/// Objects with unsynced changes.
pub(crate) type Objects = BTreeMap<ObjectId, DirtyObject>;

/// Settings of the next sync.
pub(crate) struct Settings {
    pub policy: Policy,
    /// Header of the intent log for the next sync.
    pub zil: Option<ZilHeader>,
    /// Whether a directory got a name that needs `feature@longname`.
    pub long_names: bool,
    /// In a set that is received raw: forms of blocks of dnodes, by unsynced txg and block.
    pub raw_dnodes: BTreeMap<(Txg, u64), RawForm>,
}

/// An object that a txg changed.
pub(crate) struct ChangedObject {
    pub id: ObjectId,
    pub base: Option<Arc<Object>>,
    pub changes: Arc<DirtyRecords>,
}

/// A shard, on cache lines of its own.
#[repr(align(128))]
#[derive(Default)]
struct Shard(Mutex<Objects, { order::OVERLAY }>);

/// State of an object set that can be changed.
pub(crate) struct Overlay {
    pub admission: Arc<dyn TxAdmission>,
    shards: [Shard; SHARDS],
    settings: Mutex<Settings, { order::OVERLAY_SETTINGS }>,
    allocator: Mutex<ObjectAllocator, { order::OBJECT_NUMBERS }>,
    version: AtomicU64,
    edits: AtomicU64,
}

impl Overlay {
    pub fn new(admission: Arc<dyn TxAdmission>, policy: Policy, first_block: u64) -> Self {
        let settings = Settings { policy, zil: None, long_names: false, raw_dnodes: BTreeMap::new() };
        Overlay {
            admission,
            shards: Default::default(),
            settings: Mutex::new(settings),
            allocator: Mutex::new(ObjectAllocator::new(first_block)),
            version: AtomicU64::new(0),
            edits: AtomicU64::new(0),
        }
    }

    /// The shard of an object. Locked for a lookup or a change, never across an await.
    pub fn shard(&self, id: ObjectId) -> MutexGuard<'_, Objects> {
        let [first, ..] = &self.shards;
        self.shards.get(id.0 as usize % SHARDS).unwrap_or(first).0.lock()
    }

    /// The settings of the next sync. Locked as a shard is, and not together with one.
    pub fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock()
    }

    /// The free object numbers. The caller takes a number and inserts its object while it holds this lock.
    pub fn allocator(&self) -> MutexGuard<'_, ObjectAllocator> {
        self.allocator.lock()
    }

    /// Counts the syncs. A reader that finds another number must read again.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::SeqCst)
    }

    /// Counts a sync, whose root is current.
    pub fn next_version(&self) {
        self.version.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts the changes of objects.
    pub fn edits(&self) -> u64 {
        self.edits.load(Ordering::SeqCst)
    }

    /// Changes an object in its locked shard; one without unsynced changes begins with `base`.
    pub fn change<T>(
        &self,
        shard: &mut Objects,
        id: ObjectId,
        base: Option<Arc<Object>>,
        how: impl FnOnce(&mut DirtyObject) -> T,
    ) -> T {
        let object = shard.entry(id).or_insert_with(|| DirtyObject::new(base));
        let before = object.edits;
        let out = how(object);
        debug_assert!(object.edits >= before, "the changes of an object are counted up");
        self.edits.fetch_add(object.edits - before, Ordering::SeqCst);
        out
    }

    /// Objects that a txg changed, in the order of their numbers.
    pub fn changed_in(&self, txg: Txg) -> Vec<ChangedObject> {
        let mut out = Vec::new();
        for shard in &self.shards {
            let objects = shard.0.lock();
            out.extend(objects.iter().filter_map(|(id, object)| {
                let changes = object.txgs.get(&txg.0)?.clone();
                Some(ChangedObject { id: *id, base: object.base.clone(), changes })
            }));
        }
        out.sort_unstable_by_key(|changed| changed.id);
        out
    }

    /// Whether a txg changed objects.
    pub fn has_changes_in(&self, txg: Txg) -> bool {
        self.shards.iter().any(|shard| shard.0.lock().values().any(|object| object.txgs.contains_key(&txg.0)))
    }

    /// Whether no object has unsynced changes.
    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.0.lock().is_empty())
    }

    /// Slots of dnodes that objects with unsynced changes take in a range of numbers.
    pub fn slots_taken(&self, range: Range<ObjectId>) -> Vec<u64> {
        let mut out = Vec::new();
        for shard in &self.shards {
            let objects = shard.0.lock();
            out.extend(objects.range(range.clone()).flat_map(|(id, object)| {
                let newest = object.current.as_ref().or(object.base.as_ref());
                id.0..id.0 + newest.map_or(1, |object| object.dnode.slots() as u64)
            }));
        }
        out
    }
}

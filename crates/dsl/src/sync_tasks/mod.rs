//! Changes of datasets in syncing context (OpenZFS `module/zfs/dsl_dir.c`, `dsl_dataset.c`, `dsl_destroy.c`,
//! `dsl_prop.c`, `dsl_bookmark.c`, `dsl_userhold.c`, `dsl_pool.c`): creation, snapshots, clones, destruction,
//! properties, and the accounting of every block that is born or killed.
//!
//! ```text
//!   1  object sets sync          each returns its new root pointer, the blocks born and those killed
//!   2  apply_synced              accounts them: dataset, directories up to the root, deadlist, previous snapshot
//!   3  operations                create, snapshot, destroy …: check everything, then change the MOS
//!   4  sets created in 3 sync    and are accounted as in 2
//!   5  the MOS itself            book_mos, then its blocks are written
//! ```
//!
//! All of this happens in syncing context: one task, which changes the MOS under the syncing txg's [`Tx`] alone. No
//! state is kept in memory between operations: directories and datasets are read from the MOS's dirty data and written
//! back, so a reader always sees the current state.
//!
//! Invariants, which hold after every function here:
//! - an operation either fails in its checks and has changed nothing, or completes (a later error is a device error);
//! - for each directory `used` is the sum of its breakdown, and a parent is charged max(used, reservation) of a child;
//! - a block is in exactly one place: referenced by a head, in a deadlist, or handed out by [`DslSyncContext::take_frees`].
//!
//! Rejected: a cache of directories with deltas. The dirty data of the MOS is one already.

pub mod bookmark;
pub mod branch;
pub mod create;
pub mod delegation;
pub mod destroy;
pub mod destroy_head;
mod error;
pub mod features;
mod file_system;
pub mod history;
pub mod hold;
pub mod key;
pub mod limits;
mod lists;
mod names;
pub mod pool_dirs;
pub mod promote;
pub mod properties;
pub mod receive;
pub mod receive_properties;
pub mod receive_raw;
pub mod receive_redacted;
pub mod redact;
pub mod rename;
pub mod rollback;
mod scan;
pub mod snapshot;
pub mod space;
pub mod synced;
#[cfg(test)]
mod tests;
pub mod trees;
mod volume;

pub use create::{Created, Kind, NewDataset};
pub use error::DslError;
pub use file_system::{FileSystemSpec, ZPL_VERSION};
pub use key::{KeySource, NewKey};
pub use limits::{LimitRefusal, Limits};
pub use names::{check_component, check_name, split_name};
pub use pool_dirs::PoolDirs;
pub use properties::{Setting, needed_feature};
pub use synced::{Booked, SyncedSet};
pub use trees::Freed;
pub use trees::{BptreeEntry, waiting_trees};
pub use volume::{VolumeSpec, check_volume_size, set_volume_size};

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use weir_dmu::allocated_objects::DataBlocks;
use weir_dmu::error::ObjectError;
use weir_dmu::live::NewObject;
use weir_dmu::object_set::ObjectSet;
use weir_dmu::txg::Tx;
use weir_dmu::zap::{self, Key, NewZap, Value, Zap};
use weir_format::dsl::pool as pool_name;
use weir_format::zap::{BlockKind, NormFlags};
use weir_format::{BlockPointer, DslDataset, DslDir, Encoder, Endian, NvList, ObjectId, ObjectType, Txg};
use weir_machine::{Entropy, Request};

/// The ZAP type that describes itself as metadata (`DMU_OTN_ZAP_METADATA`).
pub const ZAP_METADATA: ObjectType = ObjectType(0xc4);
/// Object directory of the MOS (object 1).
const DIRECTORY: ObjectId = ObjectId(pool_name::DIRECTORY_OBJECT);
/// Maximum accepted number of entries of one ZAP.
const MAX_ENTRIES: usize = 1 << 24;

/// A value that is one number.
fn number(n: u64) -> Value {
    Value { int_size: 8, words: vec![n] }
}

/// A text value: its bytes and a NUL.
fn text(text: &str) -> Value {
    Value { int_size: 1, words: text.bytes().chain([0]).map(u64::from).collect() }
}

/// Returns the bytes that a block takes on its devices (`bp_get_dsize`).
pub type BlockSizes = Arc<dyn Fn(&BlockPointer) -> u64 + Send + Sync>;

/// Facts about the pool that the operations depend on.
#[derive(Clone)]
pub struct PoolContext {
    /// The pool's name.
    pub name: String,
    /// On-disk version; 5000 for pools with features.
    pub version: u64,
    /// Pool size less the slop, in bytes: the upper bound of the root directory's quota.
    pub capacity_bytes: u64,
    /// Returns the bytes that a block takes on its devices.
    pub sizes: BlockSizes,
    /// Source of random bytes.
    pub entropy: Entropy,
    /// Host name for the field `history hostname` of history records.
    pub host: String,
}

/// Decides before the destruction of a snapshot whether readers hold it. If so, it is not destroyed; if not, it refuses
/// new readers.
pub type IsHeld = Arc<dyn Fn(ObjectId) -> bool + Send + Sync>;

/// The syncing context of one transaction group, for changes of datasets.
pub struct DslSyncContext<'a> {
    /// The request that the work is attributed to.
    pub rq: &'a Request,
    /// The meta object set.
    pub mos: Arc<ObjectSet>,
    /// The assigned transaction of the syncing txg.
    pub tx: &'a Tx,
    /// The pool.
    pub pool: PoolContext,
    /// Seconds since 1970.
    pub now_s: u64,
    /// Tells which snapshots readers hold.
    pub reading: IsHeld,
    frees: Vec<BlockPointer>,
    label_features: BTreeMap<&'static str, bool>,
    pool_objects: BTreeMap<&'static str, ObjectId>,
    /// Directories that changed, or whose heads did.
    touched: BTreeSet<ObjectId>,
    records: Vec<NvList>,
    moves: Moves,
}

/// Datasets to which blocks moved from other places, where a scan may not have been yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    /// Datasets that got blocks of destroyed snapshots, of exchanged heads, or by cloning and deduplication.
    pub into: BTreeSet<ObjectId>,
    /// Heads with their new snapshots.
    pub snapshots: Vec<(ObjectId, ObjectId)>,
}

impl<'a> DslSyncContext<'a> {
    /// A context for the txg of `tx`.
    pub fn new(rq: &'a Request, mos: Arc<ObjectSet>, tx: &'a Tx, pool: PoolContext, now_s: u64) -> Self {
        DslSyncContext {
            rq,
            mos,
            tx,
            pool,
            now_s,
            reading: Arc::new(|_| false),
            frees: Vec::new(),
            label_features: BTreeMap::new(),
            pool_objects: BTreeMap::new(),
            touched: BTreeSet::new(),
            records: Vec::new(),
            moves: Moves::default(),
        }
    }

    /// The syncing txg.
    pub fn txg(&self) -> Txg {
        self.tx.txg()
    }

    /// Returns the blocks without references, to be freed in this txg, that were added since the last call.
    pub fn take_frees(&mut self) -> Vec<BlockPointer> {
        std::mem::take(&mut self.frees)
    }

    /// Counters that reveal a change between two calls: changes of the MOS so far, and blocks waiting to be freed.
    pub fn marks(&self) -> (u64, usize) {
        (self.mos.edits(), self.frees.len())
    }

    /// The records that were added to the pool's history since the last [`DslSyncContext::take_records`].
    pub fn records(&self) -> &[NvList] {
        &self.records
    }

    /// Returns the records that were added to the pool's history since the last call.
    pub fn take_records(&mut self) -> Vec<NvList> {
        std::mem::take(&mut self.records)
    }

    /// Records that a dataset refers to blocks that another one, or another of its objects, got first.
    pub fn moved_into(&mut self, dataset: ObjectId) {
        self.moves.into.insert(dataset);
    }

    /// Returns the moves of blocks since the last call.
    pub fn take_moves(&mut self) -> Moves {
        std::mem::take(&mut self.moves)
    }

    /// Features that the MOS needs and that became active (`true`) or inactive since the last call, by name on disk, so
    /// that the pool updates the labels' `features_for_read`.
    pub fn label_features(&mut self) -> BTreeMap<&'static str, bool> {
        std::mem::take(&mut self.label_features)
    }

    fn free(&mut self, pointer: BlockPointer) {
        if !pointer.is_hole() && !pointer.is_embedded() {
            self.frees.push(pointer);
        }
    }

    /// Frees a block of an intent log, which no dataset accounts for.
    pub fn free_log_block(&mut self, pointer: BlockPointer) {
        self.free(pointer);
    }

    /// A random GUID: 64 bits, never 0.
    fn guid(&self) -> u64 {
        self.pool.entropy.u64().max(1)
    }

    /// A random identifier of a file system for NFS: 56 bits.
    fn fsid(&self) -> u64 {
        (self.pool.entropy.u64() >> 8).max(1)
    }

    /// The object of an entry of the MOS's directory; `None` if there is no entry.
    async fn pool_object(&mut self, name: &'static str) -> Result<Option<ObjectId>, DslError> {
        if let Some(id) = self.pool_objects.get(name) {
            return Ok(Some(*id));
        }
        let found = self.word(DIRECTORY, name).await?.map(ObjectId);
        if let Some(id) = found {
            self.pool_objects.insert(name, id);
        }
        Ok(found)
    }

    /// Creates an object of the MOS without data.
    async fn object(&self, kind: ObjectType, bonus_type: ObjectType, bonus: Vec<u8>) -> Result<ObjectId, DslError> {
        let new = NewObject::new(kind, 512).bonus(bonus_type, bonus);
        Ok(self.mos.changes().create(self.rq, self.tx, &new).await?)
    }

    async fn remove(&self, id: ObjectId) -> Result<(), DslError> {
        Ok(self.mos.frees().remove(self.rq, self.tx, id).await?)
    }

    /// Removes an object of the MOS that is no longer used. If its blocks cannot be found, the object is left in place,
    /// because the failure would otherwise suspend the pool.
    ///
    /// # Errors
    /// Errors of finding the blocks; then nothing was changed.
    pub async fn discard(&self, id: ObjectId) -> Result<(), DslError> {
        let object = self.mos.object(self.rq, id).await?;
        let mut blocks = DataBlocks::of(&self.mos, &object);
        while blocks.next(self.rq).await?.is_some() {}
        self.remove(id).await
    }

    async fn remove_if(&self, id: ObjectId) -> Result<(), DslError> {
        if id.0 == 0 { Ok(()) } else { self.remove(id).await }
    }

    async fn object_type(&self, id: ObjectId) -> Result<ObjectType, DslError> {
        Ok(self.mos.object(self.rq, id).await?.dnode.object_type)
    }

    /// A new ZAP.
    async fn zap(&self, kind: ObjectType) -> Result<ObjectId, DslError> {
        Ok(zap::create(self.rq, &self.mos, self.tx, &NewZap::new(kind)).await?)
    }

    /// A new ZAP whose lookups may ignore case.
    async fn zap_folding(&self, kind: ObjectType) -> Result<ObjectId, DslError> {
        let new = NewZap { norm: NormFlags(NormFlags::TO_UPPER), ..NewZap::new(kind) };
        Ok(zap::create(self.rq, &self.mos, self.tx, &new).await?)
    }

    /// A new ZAP, with an entry `name` in the ZAP `from` that refers to it.
    async fn zap_linked(&mut self, kind: ObjectType, from: ObjectId, name: &str) -> Result<ObjectId, DslError> {
        let id = self.zap(kind).await?;
        self.insert_word(from, name, id.0).await?;
        Ok(id)
    }

    /// Turns an object without data into a ZAP that keeps its bonus area.
    async fn make_zap(&self, id: ObjectId) -> Result<(), DslError> {
        let block_bytes = self.mos.object(self.rq, id).await?.block_bytes() as usize;
        let mut e = Encoder::new(Endian::Little);
        e.words(&[BlockKind::MICRO, self.guid() | 1]);
        e.pad_to(block_bytes);
        self.mos.writes().write_block(self.rq, self.tx, id, 0, e.finish().into()).await?;
        Ok(self.mos.changes().set_kind(self.rq, self.tx, id, ZAP_METADATA).await?)
    }

    /// The integer under a name.
    async fn word(&self, zap: ObjectId, name: &str) -> Result<Option<u64>, DslError> {
        Ok(zap::lookup_word(self.rq, &self.mos, zap, name).await?)
    }

    /// All entries of a ZAP, in their order.
    async fn entries(&self, zap: ObjectId) -> Result<Vec<(String, Value)>, DslError> {
        if zap.0 == 0 {
            return Ok(Vec::new());
        }
        let all = Zap::open(self.rq, &self.mos, zap).await?.all(self.rq, MAX_ENTRIES).await?;
        Ok(all.into_iter().map(|e| (e.key.text(), e.value)).collect())
    }

    async fn put(&self, zap: ObjectId, name: &str, value: Value) -> Result<(), DslError> {
        let key = Key::from(name);
        zap::put(self.rq, &self.mos, self.tx, zap, &key, &value).await?;
        Ok(())
    }

    async fn put_word(&self, zap: ObjectId, name: &str, word: u64) -> Result<(), DslError> {
        Ok(zap::put_word(self.rq, &self.mos, self.tx, zap, name, word).await?)
    }

    async fn insert_word(&self, zap: ObjectId, name: &str, word: u64) -> Result<(), DslError> {
        let key = Key::from(name);
        Ok(zap::insert(self.rq, &self.mos, self.tx, zap, &key, &number(word)).await?)
    }

    async fn zap_remove(&self, zap: ObjectId, name: &str) -> Result<bool, DslError> {
        let key = Key::from(name);
        Ok(zap::remove(self.rq, &self.mos, self.tx, zap, &key).await?)
    }

    /// Adds a number to a ZAP that is a set of numbers: the name of each entry is the number in hexadecimal.
    async fn set_insert(&self, zap: ObjectId, number: u64) -> Result<(), DslError> {
        self.insert_word(zap, &format!("{number:x}"), number).await
    }

    async fn set_remove(&self, zap: ObjectId, number: u64) -> Result<bool, DslError> {
        self.zap_remove(zap, &format!("{number:x}")).await
    }

    /// A directory's fields.
    pub async fn dir(&self, id: ObjectId) -> Result<DslDir, DslError> {
        let object = self.mos.object(self.rq, id).await?;
        let place = self.mos.place(id, 0, 0);
        if object.dnode.bonus_type != ObjectType::DSL_DIR {
            return Err(ObjectError::Corrupt { place, why: "not a directory of datasets" }.into());
        }
        let dir = DslDir::decode(object.dnode.bonus(), object.dnode.endian);
        Ok(dir.map_err(|e| ObjectError::decode(place, e))?)
    }

    async fn put_dir(&mut self, id: ObjectId, dir: &DslDir) -> Result<(), DslError> {
        self.touched.insert(id);
        let endian = self.mos.object(self.rq, id).await?.dnode.endian;
        Ok(self.mos.changes().set_bonus(self.rq, self.tx, id, ObjectType::DSL_DIR, &dir.encode(endian)).await?)
    }

    /// A dataset's fields.
    pub async fn dataset(&self, id: ObjectId) -> Result<DslDataset, DslError> {
        let object = self.mos.object(self.rq, id).await?;
        let place = self.mos.place(id, 0, 0);
        if object.dnode.bonus_type != ObjectType::DSL_DATASET {
            return Err(ObjectError::Corrupt { place, why: "not a dataset" }.into());
        }
        let dataset = DslDataset::decode(object.dnode.bonus(), object.dnode.endian);
        Ok(dataset.map_err(|e| ObjectError::decode(place, e))?)
    }

    async fn put_dataset(&mut self, id: ObjectId, dataset: &DslDataset) -> Result<(), DslError> {
        self.touched.insert(dataset.dir);
        let endian = self.mos.object(self.rq, id).await?.dnode.endian;
        Ok(self.mos.changes().set_bonus(self.rq, self.tx, id, ObjectType::DSL_DATASET, &dataset.encode(endian)).await?)
    }
}

//! Datasets that change (OpenZFS `module/zfs/dsl_dir.c`, `dsl_dataset.c`, `dsl_destroy.c`, `dsl_prop.c`,
//! `dsl_bookmark.c`, `dsl_userhold.c`, `dsl_pool.c`): creation, snapshots, clones, destruction, properties, and the
//! accounting of every block that is born or dies.
//!
//! ```text
//!   1  object sets sync          each gives its new root pointer, the blocks born and those killed
//!   2  Change::apply_synced      books them: dataset, directories up to the root, dead list, snapshot before
//!   3  operations                create, snapshot, destroy …: check everything, then change the MOS
//!   4  sets made in 3 sync       and are booked as in 2
//!   5  the MOS itself            Change::book_mos, then its blocks are written
//! ```
//!
//! All of this happens in syncing context: one task, the MOS changed under the syncing group's [`Tx`] alone. Nothing is
//! kept in memory between operations: directories and datasets are read from the MOS's overlay and written back, so what
//! a reader sees is always what is there.
//!
//! Invariants, held by every function here:
//! - an operation either fails in its checks and has changed nothing, or goes through (an error after that is a device's);
//! - for each directory `used` is the sum of its breakdown, and a parent is charged max(used, reservation) of a child;
//! - a block is in exactly one place: referenced by a head, in a dead list, or handed out by [`DslSyncContext::take_frees`].
//!
//! What was rejected: a cache of directories with deltas. The overlay of the MOS is one already.

mod bookmark;
mod branch;
mod create;
mod destroy;
mod destroy_head;
mod error;
mod features;
mod file_system;
mod history;
mod hold;
mod key;
mod limits;
mod lists;
mod names;
mod pool;
mod promote;
mod properties;
mod rename;
mod rollback;
mod scan;
mod snapshot;
pub mod space;
mod synced;
#[cfg(test)]
mod tests;
mod trees;
mod volume;

pub use create::{Created, Kind, NewDataset};
pub use error::DslError;
pub use file_system::{FileSystemSpec, ZPL_VERSION};
pub use key::{KeySource, NewKey};
pub use limits::{LimitRefusal, Limits};
pub use names::{check_component, check_name, split_name};
pub use pool::PoolDirs;
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
/// The MOS's directory.
const DIRECTORY: ObjectId = ObjectId(pool_name::DIRECTORY_OBJECT);
/// Entries of one ZAP that are believed.
const MOST: usize = 1 << 24;

/// A value that is one number.
fn number(n: u64) -> Value {
    Value { int_size: 8, words: vec![n] }
}

/// A value that is a text: its bytes and a NUL.
fn text(text: &str) -> Value {
    Value { int_size: 1, words: text.bytes().chain([0]).map(u64::from).collect() }
}

/// Tells the bytes that a block takes on its devices (`bp_get_dsize`).
pub type BlockSizes = Arc<dyn Fn(&BlockPointer) -> u64 + Send + Sync>;

/// What a change needs to know of the pool.
#[derive(Clone)]
pub struct PoolContext {
    /// The pool's name.
    pub name: String,
    /// Its version; 5000 for pools with features.
    pub version: u64,
    /// Its size less the slop, in bytes: what the root directory's quota is at most.
    pub capacity_bytes: u64,
    /// Bytes of a block on its devices.
    pub sizes: BlockSizes,
    /// Chance.
    pub entropy: Entropy,
    /// The name in history records' `history hostname`.
    pub host: String,
}

/// Asked before a snapshot is destroyed: whether it is being read. If so, it stays; if not, nobody begins to.
pub type IsHeld = Arc<dyn Fn(ObjectId) -> bool + Send + Sync>;

/// The syncing context of one transaction group, for changes of datasets.
pub struct DslSyncContext<'a> {
    /// On whose behalf.
    pub rq: &'a Request,
    /// The meta object set.
    pub mos: Arc<ObjectSet>,
    /// The hold on the syncing group.
    pub tx: &'a Tx,
    /// The pool.
    pub pool: PoolContext,
    /// Seconds since 1970.
    pub now_s: u64,
    /// Which snapshots are being read.
    pub reading: IsHeld,
    frees: Vec<BlockPointer>,
    label_features: BTreeMap<&'static str, bool>,
    pool_objects: BTreeMap<&'static str, ObjectId>,
    /// Directories that changed, or whose heads did.
    touched: BTreeSet<ObjectId>,
    records: Vec<NvList>,
}

impl<'a> DslSyncContext<'a> {
    /// A context for the group of `tx`.
    pub fn new(rq: &'a Request, mos: Arc<ObjectSet>, tx: &'a Tx, pool: PoolContext, now_s: u64) -> Self {
        let (frees, label_features, pool_objects, touched) = Default::default();
        let (reading, records): (IsHeld, _) = (Arc::new(|_| false), Vec::new());
        DslSyncContext { rq, mos, tx, pool, now_s, reading, frees, label_features, pool_objects, touched, records }
    }

    /// The syncing group.
    pub fn txg(&self) -> Txg {
        self.tx.txg()
    }

    /// Blocks that nobody needs any more, to be freed in this group. Called again, it gives what came since.
    pub fn take_frees(&mut self) -> Vec<BlockPointer> {
        std::mem::take(&mut self.frees)
    }

    /// What tells whether anything was changed in between: changes of the MOS so far, and blocks that wait to be taken.
    pub fn marks(&self) -> (u64, usize) {
        (self.mos.edits(), self.frees.len())
    }

    /// What went into the pool's history in this group. Called again, it gives what came since.
    pub fn take_records(&mut self) -> Vec<NvList> {
        std::mem::take(&mut self.records)
    }

    /// Features that the MOS needs and that became active (`true`) or idle since the last call, by name on disk: the
    /// labels' `features_for_read` follow.
    pub fn label_features(&mut self) -> BTreeMap<&'static str, bool> {
        std::mem::take(&mut self.label_features)
    }

    fn free(&mut self, pointer: BlockPointer) {
        if !pointer.is_hole() && !pointer.is_embedded() {
            self.frees.push(pointer);
        }
    }

    /// A block of an intent log, which is in no dataset's account, is needed no more.
    pub fn free_log_block(&mut self, pointer: BlockPointer) {
        self.free(pointer);
    }

    /// An identity that no other has: 64 bits of chance, never 0.
    fn guid(&self) -> u64 {
        self.pool.entropy.u64().max(1)
    }

    /// An identity of 56 bits, for NFS.
    fn fsid(&self) -> u64 {
        (self.pool.entropy.u64() >> 8).max(1)
    }

    /// An object that the MOS's directory names; `None` if it does not.
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

    /// Makes an object of the MOS without data.
    async fn object(&self, kind: ObjectType, bonus_type: ObjectType, bonus: Vec<u8>) -> Result<ObjectId, DslError> {
        let new = NewObject::new(kind, 512).bonus(bonus_type, bonus);
        Ok(self.mos.create(self.rq, self.tx, &new).await?)
    }

    async fn remove(&self, id: ObjectId) -> Result<(), DslError> {
        Ok(self.mos.remove(self.rq, self.tx, id).await?)
    }

    /// Takes an object of the MOS away that nobody asks for any more. If its blocks cannot be found, it stays behind: that
    /// would stop the pool, for nothing.
    ///
    /// # Errors
    /// What finding them meets; then nothing was changed.
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

    /// A new ZAP whose names are compared without case where asked so.
    async fn zap_folding(&self, kind: ObjectType) -> Result<ObjectId, DslError> {
        let new = NewZap { norm: NormFlags(NormFlags::TO_UPPER), ..NewZap::new(kind) };
        Ok(zap::create(self.rq, &self.mos, self.tx, &new).await?)
    }

    /// A new ZAP that an entry of another leads to.
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
        self.mos.write_block(self.rq, self.tx, id, 0, e.finish().into()).await?;
        Ok(self.mos.set_kind(self.rq, self.tx, id, ZAP_METADATA).await?)
    }

    /// The word that a name leads to.
    async fn word(&self, zap: ObjectId, name: &str) -> Result<Option<u64>, DslError> {
        Ok(zap::lookup_word(self.rq, &self.mos, zap, name).await?)
    }

    /// All entries of a ZAP, in their order.
    async fn entries(&self, zap: ObjectId) -> Result<Vec<(String, Value)>, DslError> {
        if zap.0 == 0 {
            return Ok(Vec::new());
        }
        let all = Zap::open(self.rq, &self.mos, zap).await?.all(self.rq, MOST).await?;
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

    /// Adds a number to a ZAP that is a set of numbers: each stands under its hexadecimal text.
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
        Ok(self.mos.set_bonus(self.rq, self.tx, id, ObjectType::DSL_DIR, &dir.encode(endian)).await?)
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
        Ok(self.mos.set_bonus(self.rq, self.tx, id, ObjectType::DSL_DATASET, &dataset.encode(endian)).await?)
    }
}

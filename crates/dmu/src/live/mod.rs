//! Object sets that can be changed.
//!
//! The problem: clients change objects all the time, the disks receive the changes a txg later, and all readers must
//! see the newest state at once. So a *live* object set has an overlay with the changes of each unsynced txg to each
//! object ([`dirty_object`]). A read looks into the overlay first, and into the synced tree for the rest. So all code that
//! reads an object set also works on a live one.
//!
//! ```text
//!   write, punch, create … ──► overlay of the open txg
//!                                   │ quiesced: the txg's changes are final
//!   sync ──► trees of the changed objects, bottom up ──► dnodes ──► header ──► the set's new root
//!                                   │
//!            the overlay of that txg is dropped in the same step in which the new root becomes current
//! ```
//!
//! Invariants:
//! - A reader sees one state of a block: it looks at the overlay and the synced dnode under one lock.
//! - A change is made under that lock, after all blocks that it needs were read. If the object set was synced meanwhile
//!   (there is a counter), it reads again.
//! - The lock is never held across an await.
//! - The changes of a closed txg are immutable and shared with the syncer.
//! - The overlay has whole blocks. A block that is changed in part is read first.
//!
//! The caller orders conflicting changes to one object (with a file's lock).
//!
//! Rejected: *buffers with states of their own*, one per block and txg (OpenZFS's dbufs), because the states and their
//! locks are most of its code. An ordered map per txg serves the same purpose, and the syncer receives it as a whole.

mod change;
mod clone_range;
pub(crate) mod dirty_object;
mod freeing;
mod object_allocator;
mod place;
mod preflight;
mod seek;
pub mod spans;
pub(crate) mod sync;
#[cfg(test)]
mod tests;
mod tree;
mod usage;

pub use clone_range::CloneSource;
pub use sync::{Killed, ObjsetSyncResult, OwnerOf};

use crate::dedup::{Dedup, DedupPolicy};
use crate::error::ObjectError;
use crate::object_set::ObjectSet;
use crate::txg::{Tx, TxgTracker};
use dirty_object::DirtyObject;
use futures_util::future::BoxFuture;
use object_allocator::ObjectAllocator;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_codec::compress::ZstdLevel;
use weir_format::zil::ZilHeader;
use weir_format::{ChecksumKind, CompressionKind, ObjectId, ObjectType, ObjsetId};
use weir_machine::Request;

/// Purpose of a transaction, which decides how much of the pool's reserved space (slop space) it may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceReserve {
    /// Takes space: none of the reserve.
    Normal,
    /// DirtyRecords names and attributes: half of the reserve.
    Half,
    /// Frees more than it takes: so much of the reserve that a full pool can be emptied.
    NetFree,
}

/// Admits transactions: the pool, which knows free space, quotas and the amount of dirty data.
pub trait TxAdmission: Send + Sync {
    /// Begins a transaction that changes up to `bytes` of `set`. Waits while the pool has too much dirty data.
    fn assign_tx<'a>(
        &'a self,
        rq: &'a Request,
        set: ObjsetId,
        bytes: u64,
        purpose: SpaceReserve,
    ) -> BoxFuture<'a, Result<Tx, ObjectError>>;

    /// The pool's transaction groups.
    fn txgs(&self) -> &Arc<TxgTracker>;

    /// The pool's dedup tables; `None`: nothing is deduplicated.
    fn dedup(&self) -> Option<&Arc<Dedup>> {
        None
    }

    /// Number of blocks that the transactions of one txg may free; further ones wait for a later txg.
    fn max_frees_per_txg(&self) -> u64 {
        u64::MAX
    }

    /// Returns the referenced bytes of an object set and the bytes that may still be added; `None` if unknown.
    fn usage(&self, _set: ObjsetId) -> Option<(u64, u64)> {
        None
    }
}

/// Admits every transaction: for the syncer's own changes, and for tests.
pub struct UnlimitedTxAdmission(pub Arc<TxgTracker>);

impl TxAdmission for UnlimitedTxAdmission {
    fn assign_tx<'a>(
        &'a self,
        _: &'a Request,
        _: ObjsetId,
        _: u64,
        _: SpaceReserve,
    ) -> BoxFuture<'a, Result<Tx, ObjectError>> {
        Box::pin(async move { self.0.hold() })
    }

    fn txgs(&self) -> &Arc<TxgTracker> {
        &self.0
    }
}

/// Policy for writing the blocks of an object set, from the dataset's properties.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// `compression`, resolved: never `On` or `Inherit`.
    pub compression: CompressionKind,
    /// Level of zstd.
    pub zstd_level: ZstdLevel,
    /// `checksum`, resolved.
    pub checksum: ChecksumKind,
    /// `dedup`; `None` means off.
    pub dedup: Option<DedupPolicy>,
    /// `copies` of data.
    pub copies: u8,
    /// Copies of metadata: one more than of data, as with `redundant_metadata=all`; the MOS has three copies of
    /// everything.
    pub metadata_copies: u8,
    /// `special_small_blocks` in bytes: data blocks up to this size go to the special class.
    pub special_small_bytes: u32,
    /// Whether small blocks are embedded in their pointers (`feature@embedded_data`).
    pub embed: bool,
    /// Whether files may share blocks (`feature@block_cloning`).
    pub share_blocks: bool,
    /// Finds the owner of a file, for the accounting of users, groups and projects.
    pub owner_of: Option<OwnerOf>,
}

impl Default for Policy {
    /// Policy of a file system with default properties: LZ4, fletcher4.
    fn default() -> Self {
        Policy {
            compression: CompressionKind::Lz4,
            zstd_level: ZstdLevel::DEFAULT,
            checksum: ChecksumKind::Fletcher4,
            dedup: None,
            copies: 1,
            metadata_copies: 2,
            special_small_bytes: 0,
            embed: true,
            share_blocks: false,
            owner_of: None,
        }
    }
}

impl Policy {
    /// Checksum of metadata: that of data if it is strong enough (`ZCHECKSUM_FLAG_METADATA`).
    pub fn metadata_checksum(&self) -> ChecksumKind {
        use ChecksumKind::{Blake3, Edonr, Fletcher4, Sha256, Sha512, Skein};
        match self.checksum {
            good @ (Sha256 | Sha512 | Skein | Edonr | Blake3) => good,
            _ => Fletcher4,
        }
    }

    /// Policy of the MOS.
    pub fn of_mos() -> Self {
        Policy { copies: 3, metadata_copies: 3, ..Policy::default() }
    }
}

/// Description of a new object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewObject {
    /// Type of the contents.
    pub kind: ObjectType,
    /// Block size in bytes, a multiple of 512.
    pub block_bytes: u32,
    /// log2 of the size of an indirect block.
    pub indirect_shift: u8,
    /// Type of the bonus buffer's contents.
    pub bonus_type: ObjectType,
    /// Contents of the bonus buffer.
    pub bonus: Vec<u8>,
    /// Size of the dnode in slots of 512 bytes.
    pub slots: u8,
}

impl NewObject {
    /// An object without a bonus buffer, with indirect blocks of 128 KiB.
    pub fn new(kind: ObjectType, block_bytes: u32) -> Self {
        NewObject { kind, block_bytes, indirect_shift: 17, bonus_type: ObjectType::NONE, bonus: Vec::new(), slots: 1 }
    }

    /// With this bonus buffer.
    pub fn bonus(mut self, kind: ObjectType, bytes: Vec<u8>) -> Self {
        self.bonus_type = kind;
        self.bonus = bytes;
        self
    }
}

pub(crate) struct State {
    pub nodes: BTreeMap<ObjectId, DirtyObject>,
    /// Counts the syncs. A reader that finds another number must read again.
    pub version: u64,
    /// Counts the changes of the overlay.
    pub edits: u64,
    pub allocator: ObjectAllocator,
    pub policy: Policy,
    /// Header of the intent log for the next sync.
    pub zil: Option<ZilHeader>,
    /// Whether a directory got a name that needs `feature@longname`.
    pub long_names: bool,
}

/// State of an object set that can be changed.
pub(crate) struct DirtyObjset {
    pub admission: Arc<dyn TxAdmission>,
    state: Mutex<State>,
}

impl DirtyObjset {
    pub fn new(admission: Arc<dyn TxAdmission>, policy: Policy, first_block: u64) -> Self {
        let allocator = ObjectAllocator::new(first_block);
        let nodes = Default::default();
        let zil = Default::default();
        let state = State { nodes, version: 0, edits: 0, allocator, policy, zil, long_names: false };
        DirtyObjset { admission, state: Mutex::new(state) }
    }

    /// The overlay. Locked for a lookup or a change, never across an await.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes a live object set of this type without disks, for tests: its changes stay in memory.
#[doc(hidden)]
pub fn scratch(machine: &weir_machine::Machine, kind: weir_format::ObjsetKind) -> Arc<ObjectSet> {
    use weir_blocks::{Blocks, Tree};
    use weir_cache::Cache;
    let tree = Tree::new(Vec::new()).expect("an empty tree has nothing wrong with it");
    let blocks = Arc::new(Blocks::new(machine, tree, weir_codec::Salt::none()));
    let cache = Cache::new(machine.clone(), blocks, 1 << 20);
    let admission = Arc::new(UnlimitedTxAdmission(TxgTracker::new(weir_format::Txg(3))));
    ObjectSet::make(cache, ObjsetId(54), kind, admission, Policy::default())
}

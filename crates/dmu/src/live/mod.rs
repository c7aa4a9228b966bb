//! Object sets that change.
//!
//! The problem: clients change objects all the time, the disks learn of it a transaction group later, and everybody must
//! see the newest state at once. So a *live* object set has an overlay: what each unsynced txg does to each object
//! ([`node`]). Reading looks there first and in the synced tree for the rest; so everything that reads an object set
//! works on a live one unchanged.
//!
//! ```text
//!   write, punch, create … ──► overlay of the open txg
//!                                   │ quiesced: nothing in it changes any more
//!   sync ──► trees of the changed objects, bottom up ──► dnodes ──► header ──► the set's new root
//!                                   │
//!            overlay of that txg is dropped in the same moment in which the new root counts
//! ```
//!
//! Invariants:
//! - What one reader sees of one block is one state: the overlay and the synced dnode are looked at under one lock.
//! - A change is made under that lock alone, after whatever it needs was read; if the set was synced meanwhile, it reads
//!   again (a counter tells).
//! - The lock is never held across an await.
//! - A closed txg's changes are shared with the syncer and immutable.
//! - Blocks are whole in the overlay. One that is changed in part is read first.
//!
//! The order of conflicting changes to one object is the caller's business (a file's lock).
//!
//! What was rejected: *buffers with states of their own*, one per block and txg (OpenZFS's dbufs): the states and their
//! locks are most of its code. An ordered map per txg does the same, and the syncer gets it whole.

mod change;
mod clone_range;
mod freeing;
pub(crate) mod node;
mod object_allocator;
mod place;
mod preflight;
mod room;
mod seek;
pub mod spans;
pub(crate) mod sync;
#[cfg(test)]
mod tests;
mod tree;
mod usage;

pub use clone_range::CloneRefusal;
pub use sync::{Killed, ObjsetSyncResult, OwnerOf};

use crate::dedup::{Dedup, DedupPolicy};
use crate::error::ObjectError;
use crate::object_set::ObjectSet;
use crate::txg::{Tx, TxgTracker};
use futures_util::future::BoxFuture;
use node::Node;
use object_allocator::ObjectAllocator;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_codec::compress::ZstdLevel;
use weir_format::zil::ZilHeader;
use weir_format::{ChecksumKind, CompressionKind, ObjectId, ObjectType, ObjsetId};
use weir_machine::Request;

/// What a transaction is for: how far into the pool's reserve it may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceReserve {
    /// It takes space.
    Normal,
    /// It changes names and attributes: it may take half of the reserve.
    Half,
    /// It gives back more than it takes: a full pool can be emptied.
    NetFree,
}

/// Who lets transactions begin: the pool, which knows space, quotas and how much waits in memory.
pub trait TxAdmission: Send + Sync {
    /// A transaction that will change up to `bytes` of `set`. Waits while too much waits in memory.
    fn assign_tx<'a>(
        &'a self,
        rq: &'a Request,
        set: ObjsetId,
        bytes: u64,
        purpose: SpaceReserve,
    ) -> BoxFuture<'a, Result<Tx, ObjectError>>;

    /// The pool's groups.
    fn txgs(&self) -> &Arc<TxgTracker>;

    /// The pool's dedup tables; without them nothing is deduplicated.
    fn dedup(&self) -> Option<&Arc<Dedup>> {
        None
    }

    /// How many blocks the transactions of one group are to give back: those that free wait for the next group then.
    fn freed_per_group(&self) -> u64 {
        u64::MAX
    }

    /// What a set refers to, and what may still be written to it, in bytes; `None` if that is not known.
    fn usage(&self, _set: ObjsetId) -> Option<(u64, u64)> {
        None
    }
}

/// Lets everything in: the syncer's own changes, and tests.
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

/// How a set's blocks are written: what its properties say.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// `compression`, resolved: never `On` or `Inherit`.
    pub compression: CompressionKind,
    /// The level of zstd.
    pub zstd_level: ZstdLevel,
    /// `checksum`, resolved.
    pub checksum: ChecksumKind,
    /// `dedup`; `None` for off.
    pub dedup: Option<DedupPolicy>,
    /// `copies` of data.
    pub copies: u8,
    /// Copies of metadata: one more, as `redundant_metadata=all` says; the MOS has three of everything.
    pub metadata_copies: u8,
    /// `special_small_blocks` in bytes: data blocks up to so long go to the special class.
    pub special_small_bytes: u32,
    /// Blocks short enough may stand in their pointers (`feature@embedded_data`).
    pub embed: bool,
    /// Files may share blocks (`feature@block_cloning`).
    pub share_blocks: bool,
    /// Who owns a file, for the accounting of users, groups and projects.
    pub owner_of: Option<OwnerOf>,
}

impl Policy {
    /// A file system's with nothing set: LZ4, fletcher4.
    pub fn usual() -> Self {
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

    /// The checksum of metadata: the data's if that is good enough (`ZCHECKSUM_FLAG_METADATA`).
    pub fn metadata_checksum(&self) -> ChecksumKind {
        use ChecksumKind::{Blake3, Edonr, Fletcher4, Sha256, Sha512, Skein};
        match self.checksum {
            good @ (Sha256 | Sha512 | Skein | Edonr | Blake3) => good,
            _ => Fletcher4,
        }
    }

    /// The MOS's.
    pub fn of_mos() -> Self {
        Policy { copies: 3, metadata_copies: 3, ..Policy::usual() }
    }
}

/// An object to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewObject {
    /// What it holds.
    pub kind: ObjectType,
    /// Size of its blocks in bytes, a multiple of 512.
    pub block_bytes: u32,
    /// log2 of an indirect block's size.
    pub indirect_shift: u8,
    /// What the bonus area holds.
    pub bonus_type: ObjectType,
    /// The bonus area's contents.
    pub bonus: Vec<u8>,
    /// 512-byte slots of its dnode.
    pub slots: u8,
}

impl NewObject {
    /// An object without a bonus area, with indirect blocks of 128 KiB.
    pub fn new(kind: ObjectType, block_bytes: u32) -> Self {
        NewObject { kind, block_bytes, indirect_shift: 17, bonus_type: ObjectType::NONE, bonus: Vec::new(), slots: 1 }
    }

    /// With this bonus area.
    pub fn bonus(mut self, kind: ObjectType, bytes: Vec<u8>) -> Self {
        self.bonus_type = kind;
        self.bonus = bytes;
        self
    }
}

pub(crate) struct State {
    pub nodes: BTreeMap<ObjectId, Node>,
    /// Counts the syncs: who read something before must not build on it after.
    pub version: u64,
    /// Counts what changes the overlay.
    pub edits: u64,
    pub numbers: ObjectAllocator,
    pub policy: Policy,
    /// The intent log's header as the next sync is to write it.
    pub zil: Option<ZilHeader>,
    /// A directory got a name that takes `feature@longname`.
    pub long_names: bool,
}

/// What makes an object set live.
pub(crate) struct DirtyObjset {
    pub gate: Arc<dyn TxAdmission>,
    state: Mutex<State>,
}

impl DirtyObjset {
    pub fn new(gate: Arc<dyn TxAdmission>, policy: Policy, first_block: u64) -> Self {
        let numbers = ObjectAllocator::new(first_block);
        let (nodes, zil) = Default::default();
        let state = State { nodes, version: 0, edits: 0, numbers, policy, zil, long_names: false };
        DirtyObjset { gate, state: Mutex::new(state) }
    }

    /// The overlay. Held for a look or a change, never across an await.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A live object set of that kind on no disk at all: its changes stay in memory. For tests.
#[doc(hidden)]
pub fn scratch(machine: &weir_machine::Machine, kind: weir_format::ObjsetKind) -> Arc<ObjectSet> {
    use weir_blocks::{Blocks, Tree};
    use weir_cache::Cache;
    let tree = Tree::new(Vec::new()).expect("an empty tree has nothing wrong with it");
    let blocks = Arc::new(Blocks::new(machine, tree, weir_codec::Salt::none()));
    let cache = Cache::new(machine.clone(), blocks, 1 << 20);
    let gate = Arc::new(UnlimitedTxAdmission(TxgTracker::new(weir_format::Txg(3))));
    ObjectSet::make(cache, ObjsetId(54), kind, gate, Policy::usual())
}

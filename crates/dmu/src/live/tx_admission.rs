//! Transaction admission: the interface through which object sets ask the pool for transactions, and through which they
//! reach its txgs and its dedup tables.
//!
//! An object set is below the pool, and the dedup tables are objects of an object set (the MOS). Both are therefore
//! reached through traits, which the pool and the dedup tables implement.

use crate::error::ObjectError;
use crate::txg::{Tx, TxgTracker};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use weir_blocks::{ReadOptions, WriteOptions};
use weir_format::{BlockPointer, ObjsetId};
use weir_machine::Request;

/// Purpose of a transaction, which decides how much of the pool's reserved space (slop space) it may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceReserve {
    /// Takes space: none of the reserve.
    Normal,
    /// Changes names and attributes: half of the reserve.
    Half,
    /// Frees more than it takes: so much of the reserve that a full pool can be emptied.
    NetFree,
}

/// Space of one object set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceUsage {
    /// Bytes that the object set references, with its dirty data.
    pub referenced_bytes: u64,
    /// Bytes that may still be added.
    pub available_bytes: u64,
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
    fn dedup(&self) -> Option<Arc<dyn DedupWriter>> {
        None
    }

    /// Number of blocks that the transactions of one txg may free; further ones wait for a later txg.
    fn max_frees_per_txg(&self) -> u64 {
        u64::MAX
    }

    /// Returns the referenced bytes of an object set and the bytes that may still be added; `None` if unknown.
    fn usage(&self, _set: ObjsetId) -> Option<SpaceUsage> {
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

/// Writes deduplicated blocks; implemented by the pool's dedup tables.
pub trait DedupWriter: Send + Sync {
    /// Writes a data block, or adds a reference to a stored block with the same contents. With `verify`, the contents
    /// are compared first, and `read` are the options of reading the stored block.
    fn write<'a>(
        &'a self,
        rq: &'a Request,
        bytes: &'a Bytes,
        options: &'a WriteOptions,
        verify: bool,
        read: &'a ReadOptions,
    ) -> BoxFuture<'a, Result<BlockPointer, ObjectError>>;
}

//! Opens object sets for changes, and begins transactions.

use super::overlay::Overlay;
use super::policy::Policy;
use super::tx_admission::{SpaceReserve, SpaceUsage, TxAdmission};
use crate::error::ObjectError;
use crate::object_set::{ObjectSet, Opening};
use crate::txg::{Tx, TxgTracker};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weir_blocks::RawForm;
use weir_cache::Cache;
use weir_format::{BlockPointer, ObjectId, ObjsetId, ObjsetKind, Txg};
use weir_machine::{Request, Target};

impl ObjectSet {
    /// Opens the object set of `pointer` for changes.
    pub async fn open_live(
        rq: &Request,
        cache: Arc<Cache>,
        pointer: BlockPointer,
        opening: Opening,
        admission: Arc<dyn TxAdmission>,
        policy: Policy,
    ) -> Result<Arc<Self>, ObjectError> {
        let set = Self::read_root(rq, cache, pointer, opening).await?;
        let last = set.meta().map_or(0, |meta| meta.dnode.max_block_id);
        Ok(Arc::new(set.alive(Overlay::new(admission, policy, last))))
    }

    /// Creates an object set that the first sync writes.
    pub fn make(
        cache: Arc<Cache>,
        id: ObjsetId,
        kind: ObjsetKind,
        admission: Arc<dyn TxAdmission>,
        policy: Policy,
    ) -> Arc<Self> {
        Self::make_with(cache, Opening { id, ..Opening::default() }, kind, admission, policy)
    }

    /// Creates an object set with these options, such as the key of an encrypted dataset.
    pub fn make_with(
        cache: Arc<Cache>,
        opening: Opening,
        kind: ObjsetKind,
        admission: Arc<dyn TxAdmission>,
        policy: Policy,
    ) -> Arc<Self> {
        let header = super::sync::new_header(kind, policy.owner_of.is_some());
        let set = Self::with_header(cache, opening, BlockPointer::HOLE, header);
        Arc::new(set.alive(Overlay::new(admission, policy, 0)))
    }

    /// Whether the object set can be changed.
    pub fn is_live(&self) -> bool {
        self.live().is_some()
    }

    pub(super) fn must_be_live(&self) -> Result<&Overlay, ObjectError> {
        self.live().ok_or(ObjectError::ReadOnly { objset: self.id() })
    }

    /// Sets the policy for writing blocks from now on.
    pub fn set_policy(&self, policy: Policy) {
        if let Some(live) = self.live() {
            live.settings().policy = policy;
        }
    }

    /// Returns the policy for writing blocks; `None` if the object set is read-only.
    pub fn policy(&self) -> Option<Policy> {
        self.live().map(|live| live.settings().policy)
    }

    /// Returns the number of changes since the object set was opened. An unchanged number means unchanged objects.
    pub fn edits(&self) -> u64 {
        self.live().map_or(0, Overlay::edits)
    }

    /// Returns the pool's transaction groups; `None` if the object set is read-only.
    pub fn txgs(&self) -> Option<Arc<TxgTracker>> {
        self.live().map(|live| live.admission.txgs().clone())
    }

    /// Returns the referenced bytes and the bytes that dirty data may still add; `None` if the object set is read-only.
    pub fn usage(&self) -> Option<SpaceUsage> {
        self.live()?.admission.usage(self.id())
    }

    /// Begins a transaction that changes up to `bytes` bytes. Waits while the pool has too much dirty data.
    ///
    /// # Errors
    /// [`ObjectError::ReadOnly`], [`ObjectError::NoSpace`], [`ObjectError::Quota`], [`ObjectError::Suspended`];
    /// [`ObjectError::Closed`] after [`ObjectSet::close`].
    pub async fn begin(&self, rq: &Request, bytes: u64, purpose: SpaceReserve) -> Result<Tx, ObjectError> {
        let tx = self.must_be_live()?.admission.assign_tx(rq, self.id(), bytes, purpose).await?;
        let tx = tx.with_writer(rq.origin());
        // Checked after the transaction has begun: no transaction of a closed object set begins after `close`.
        if self.is_closed() { Err(ObjectError::Closed { objset: self.id() }) } else { Ok(tx) }
    }

    /// Records bytes that a client writes to an object in `tx`. They are unstable until the intent log or the txg has
    /// them.
    pub fn account_write(&self, rq: &Request, tx: &Tx, object: ObjectId, offset: u64, len: u64) {
        rq.set_target(Target { dataset: self.id().0, object: object.0, offset_bytes: offset, size_bytes: len });
        rq.wrote(len);
        self.cache().accounts().became_unstable(tx.txg().0, len);
    }

    /// Closes the object set for new transactions, or opens it again. Transactions that have begun are in the open txg
    /// or an older one. A read-only object set is closed before its blocks are reallocated.
    pub fn close(&self, closed: bool) {
        self.closed.store(closed, Ordering::SeqCst);
    }

    /// Whether the object set is closed, or its key was unloaded.
    pub fn is_closed(&self) -> bool {
        self.options().keys.as_ref().is_some_and(|keys| keys.is_revoked()) || self.closed.load(Ordering::SeqCst)
    }

    /// The form of a block of dnodes that `txg` changes, as the stream said; `None` if it said nothing.
    pub(super) fn raw_dnodes(&self, txg: Txg, block: u64) -> Option<RawForm> {
        self.live()?.settings().raw_dnodes.get(&(txg, block)).copied()
    }

    /// Checks that the object set is received from a raw stream.
    pub(super) fn must_be_raw(&self) -> Result<(), ObjectError> {
        match self.raw() {
            Some(_) => Ok(()),
            None => Err(ObjectError::Unsupported { what: "raw blocks in a set that is not received raw" }),
        }
    }

    pub(super) fn no_object(&self, id: ObjectId) -> ObjectError {
        ObjectError::NoObject { objset: self.id(), object: id }
    }

    /// Number of syncs of a live set since it was opened; 0 for other sets.
    pub(crate) fn version(&self) -> u64 {
        self.live().map_or(0, Overlay::version)
    }

    /// Whether a read failed because a sync freed blocks of the tree that was being read. The caller retries on the new
    /// tree.
    pub(crate) fn raced_with_sync(&self, error: &ObjectError, version: u64) -> bool {
        self.is_live() && self.version() != version && error.is_corrupt()
    }
}

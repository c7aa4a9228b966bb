//! Intent log of one dataset: the changes that are logged, and the commits that wait for them.

use super::chain::{Chain, LogSync};
use super::itx::{ENDIAN, Itx, ItxLists, LogPayload};
use super::pack::{MAX_RECORD_BYTES, Sizes};
use super::store::{LogData, LogStore};
use bytes::Bytes;
use futures_channel::oneshot;
use std::sync::Arc;
use weir_dmu::error::ObjectError;
use weir_dmu::txg::{Tx, TxgTracker};
use weir_format::zil::{LogBody, NewRecord, TxType, ZilHeader};
use weir_format::{BlockPointer, ObjectId, ObjsetId, Txg};
use weir_machine::lock::{Mutex, MutexGuard, order};
use weir_machine::{Accounts, Machine, Request, Stage};

/// Maximum data of a write that is kept with its itx, in bytes; a commit reads longer data from the object.
const MAX_KEPT_DATA_BYTES: usize = 32 << 10;

/// Minimum length of a write that may go to its final location, in bytes (`zfs_immediate_write_sz`).
const INDIRECT_WRITE_BYTES: u64 = 32 << 10;

/// When changes of a dataset are stable (property `sync`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncMode {
    /// A commit returns after the changes are stable.
    #[default]
    Standard,
    /// Every change is committed before it is answered.
    Always,
    /// Commits return immediately; changes become stable when their txg syncs.
    Disabled,
}

/// Writes whose data a commit puts in its final location, so that their records need no data (`logbias`; OpenZFS
/// `zil_write_state`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteKind {
    /// None: the pool has separate log devices, which are faster.
    #[default]
    Never,
    /// Large writes that cover at least half of their block.
    Large,
    /// All writes.
    Always,
}

impl WriteKind {
    /// Whether a write of `length` bytes goes to its final location, in an object with blocks of `block_bytes`.
    fn applies_to(self, length: u64, block_bytes: u64) -> bool {
        match self {
            WriteKind::Never => false,
            WriteKind::Large => length >= INDIRECT_WRITE_BYTES && length >= block_bytes / 2,
            WriteKind::Always => true,
        }
    }
}

/// Settings of a dataset's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// When changes are stable.
    pub sync: SyncMode,
    /// Whether the feature `zilsaxattr` is active for the dataset, so that records may set extended attributes.
    /// Otherwise a commit of such a change waits for its txg.
    pub sa_xattr: bool,
    /// Writes that go to their final location.
    pub in_place: WriteKind,
}

/// Channel to a commit that waits for a block; carries whether the block is stable.
pub(super) type Waiter = oneshot::Sender<bool>;

#[derive(Default)]
pub(super) struct State {
    pub policy: Policy,
    pub lists: ItxLists,
    pub chain: Chain,
    pub sizes: Sizes,
    /// Sequence number of the last record.
    pub seq: u64,
    /// Commits whose changes the writer has not taken yet.
    pub joining: Vec<Waiter>,
    /// Commits that wait for a block, by its number.
    pub waiters: std::collections::BTreeMap<u64, Vec<Waiter>>,
    /// Bytes of writes whose records end in a block, by its number: their txgs and lengths. They are stable when the block
    /// is.
    pub written: std::collections::BTreeMap<u64, Vec<(Txg, u64)>>,
    pub writing: bool,
    pub flushing: bool,
    /// Vdevs to which blocks were written since the last flush began; and whether data went to its final location,
    /// which may be on any vdev.
    pub unstable_vdevs: std::collections::BTreeSet<u32>,
    pub unstable_data: bool,
    /// Wakes the writer, which waits until fewer blocks are in flight.
    pub writer_waker: Option<oneshot::Sender<()>>,
    /// Objects that were removed while the writer held changes of them.
    pub removed: std::collections::BTreeSet<ObjectId>,
    /// Sequence number of the record being replayed: changes logged now are already in the log.
    pub replaying: Option<u64>,
    /// Whether no block is written any more (`zil_suspend`): commits wait for their txg.
    pub suspended: bool,
    /// Number of failed block writes and flushes so far.
    pub failures: u64,
    /// Whether the planted bug is on ([`Zil::plant_canary`]).
    #[cfg(feature = "canary")]
    pub canary: bool,
}

/// A dataset's intent log. See the [module](super).
pub struct Zil {
    pub(super) machine: Machine,
    pub(super) set: ObjsetId,
    pub(super) txgs: Arc<TxgTracker>,
    pub(super) store: Arc<dyn LogStore>,
    pub(super) data: Arc<dyn LogData>,
    pub(super) accounts: Arc<Accounts>,
    state: Mutex<State, { order::INTENT_LOG }>,
}

/// Parameters for opening a log.
pub struct LogOpening {
    /// Task spawner, clock and random numbers.
    pub machine: Machine,
    /// Object set that owns the log.
    pub set: ObjsetId,
    /// The pool's txgs.
    pub txgs: Arc<TxgTracker>,
    /// Storage for log blocks.
    pub store: Arc<dyn LogStore>,
    /// Current contents of the dataset's objects.
    pub data: Arc<dyn LogData>,
    /// The pool's accounts.
    pub accounts: Arc<Accounts>,
    /// Settings of the log.
    pub policy: Policy,
    /// Log header in the dataset's object set.
    pub header: ZilHeader,
}

impl Zil {
    /// Opens a dataset's log. A claimed log that holds records must be replayed before anything is changed
    /// ([`super::replay`]); [`Zil::adopt`] reuses or frees an empty one.
    pub fn new(opening: LogOpening) -> Arc<Self> {
        let LogOpening { machine, set, txgs, store, data, accounts, policy, header } = opening;
        let state = State { policy, chain: Chain::new(header), ..State::default() };
        Arc::new(Zil { machine, set, txgs, store, data, accounts, state: Mutex::new(state) })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Object set that owns the log.
    pub fn set(&self) -> ObjsetId {
        self.set
    }

    /// Settings of the log.
    pub fn policy(&self) -> Policy {
        self.state().policy
    }

    /// Changes the settings from now on.
    pub fn set_policy(&self, policy: Policy) {
        self.state().policy = policy;
    }

    /// Whether every change must be committed before it is answered.
    pub fn commits_each(&self) -> bool {
        self.policy().sync == SyncMode::Always
    }

    /// Plants a bug: commits of a batch in which a block failed return as if they were stable. For tests that must
    /// detect it.
    #[cfg(feature = "canary")]
    pub fn plant_canary(&self) {
        self.state().canary = true;
    }

    /// Header as of the last synced txg.
    pub fn header(&self) -> ZilHeader {
        self.state().chain.header().clone()
    }

    /// Logs a change made in `tx`. `about` is the object that is created, removed, linked, renamed or changed. Earlier
    /// changes of a renamed object are written before the rename.
    ///
    /// While a record is replayed, this marks it as replayed in `tx`'s txg instead.
    pub fn log(&self, tx: &Tx, about: ObjectId, body: &LogBody<'_>) {
        self.log_name(tx, about, body, false);
    }

    /// Logs a change, with the choice of comparing its names without case.
    pub fn log_name(&self, tx: &Tx, about: ObjectId, body: &LogBody<'_>, ignore_case: bool) {
        let txg = tx.txg();
        let mut state = self.state();
        if state.is_unlogged(tx) {
            return;
        }
        let kind = body.tx_type();
        let payload = NewRecord { body, ignore_case, txg, seq: 0 }.encode(ENDIAN);
        let of_object = kind.is_out_of_order();
        if payload.len() as u64 > MAX_RECORD_BYTES || kind == TxType::SetSaXattr && !state.policy.sa_xattr {
            return state.lists.push_unlogged(txg, of_object.then_some(about));
        }
        let itx = Itx { txg, writer: tx.writer(), object: about, payload: LogPayload::Record(payload) };
        if of_object {
            return state.lists.push_of_object(itx);
        }
        if matches!(kind, TxType::Rename | TxType::RenameExchange | TxType::RenameWhiteout) {
            state.lists.promote(Some(about));
        }
        state.lists.push_common(itx);
    }

    /// Orders the changes of an object logged so far before all names that are made from now on. For changes that
    /// decide what new files inherit, or where a file may get a name.
    pub fn settle(&self, object: ObjectId) {
        self.state().lists.order_before_names(object);
    }

    /// Logs a write made in `tx` to an object with blocks of `block_bytes`.
    pub fn log_write(&self, tx: &Tx, object: ObjectId, offset: u64, data: &Bytes, block_bytes: u64) {
        let txg = tx.txg();
        let mut state = self.state();
        if data.is_empty() || state.is_unlogged(tx) {
            return;
        }
        let kept = (data.len() <= MAX_KEPT_DATA_BYTES).then(|| data.clone());
        let length = data.len() as u64;
        let in_place = Some(block_bytes).filter(|bytes| *bytes > 0 && state.policy.in_place.applies_to(length, *bytes));
        let payload = LogPayload::Write { offset, length, data: kept, in_place };
        state.lists.push_of_object(Itx { txg, writer: tx.writer(), object, payload });
    }

    /// Records that a change made in `tx` has no log record: a change of one object, or (`None`) of any kind. Commits
    /// that it concerns wait for its txg.
    pub fn log_barrier_until_synced(&self, tx: &Tx, object: Option<ObjectId>) {
        let mut state = self.state();
        if !state.is_unlogged(tx) {
            state.lists.push_unlogged(tx.txg(), object);
        }
    }

    /// Drops the logged changes of an object whose last name is gone; call it before its removal is logged. These
    /// changes need not become stable any more, and the object number may be reused.
    pub fn forget(&self, object: ObjectId) {
        let mut state = self.state();
        state.lists.remove_async(object);
        if state.writing {
            state.removed.insert(object);
        }
    }

    /// Makes stable all changes logged before the call: every change of names, and the other changes of `object`, or of
    /// all objects. Must not be called while a transaction is held.
    ///
    /// # Errors
    /// [`ObjectError::Suspended`] if neither the log nor the pool can be written.
    pub async fn commit(self: &Arc<Self>, rq: &Request, object: Option<ObjectId>) -> Result<(), ObjectError> {
        let (unlogged, written, first) = {
            let mut state = self.state();
            if state.policy.sync == SyncMode::Disabled {
                return Ok(());
            }
            if state.suspended || state.lists.has_gap() {
                (Some(self.txgs.open()), None, false)
            } else {
                let unlogged = state.lists.last_unlogged(object);
                state.lists.promote(object);
                let idle = !state.writing;
                (unlogged, Self::join_commit(&mut state), idle && state.writing)
            }
        };
        let clock = &self.machine.clock;
        let asked = clock.now();
        // The writer runs on this thread until it waits for a device: that is time of the commit, too.
        if first {
            self.machine.tasks.start(self.clone().write_batches());
        }
        self.flush_in_background();
        let mut unlogged = unlogged;
        if let Some(written) = written {
            if written.await != Ok(true) {
                // The log failed or has no space: wait for the txg.
                unlogged = Some(self.txgs.open());
            }
            rq.spent(Stage::LogCommit, clock.now().ns_since(asked));
        }
        match unlogged {
            Some(txg) => rq.timed(clock, Stage::TxgSync, self.txgs.wait_synced(txg)).await,
            None => Ok(()),
        }
    }

    /// Joins the next commit batch. The caller starts the writer if none was running. Returns `None` if nothing is
    /// pending or in flight.
    fn join_commit(state: &mut State) -> Option<oneshot::Receiver<bool>> {
        if state.lists.is_empty() && !state.writing {
            let last = state.chain.last_in_flight()?;
            return Some(state.wait_for(last));
        }
        let (sender, receiver) = oneshot::channel();
        state.joining.push(sender);
        state.writing = true;
        Some(receiver)
    }

    /// Stops writing blocks, and returns when none is in flight: the header of the next txg then leads to all blocks.
    /// Commits wait for their txg from now on (`zil_suspend`).
    pub async fn shut(self: &Arc<Self>) {
        loop {
            let waiting = {
                let mut state = self.state();
                state.suspended = true;
                match (state.writing, state.chain.last_in_flight()) {
                    (false, None) => return,
                    (false, Some(last)) => state.wait_for(last),
                    (true, _) => {
                        let (sender, receiver) = oneshot::channel();
                        state.joining.push(sender);
                        receiver
                    }
                }
            };
            self.flush_in_background();
            let _ = waiting.await;
        }
    }

    /// Ends the present chain if it has a block on the top-level vdev `vdev`, or any block for `None`: its blocks are freed as
    /// soon as their records have synced, and the next commit begins a new chain. Returns whether it has such a block. One
    /// that the sync of [`Zil::adopt`] has not brought into the chain yet is not seen (`zil_reset`).
    pub fn leave(&self, vdev: Option<u32>) -> bool {
        self.state().chain.end_on(vdev)
    }

    /// Whether the log can be closed and opened again: it has no record in memory, no block, and nothing in progress.
    pub fn is_idle(&self) -> bool {
        let state = self.state();
        let in_progress = state.writing || state.flushing || state.suspended || state.replaying.is_some();
        let waits = !state.joining.is_empty() || !state.waiters.is_empty() || !state.written.is_empty();
        !in_progress && !waits && state.lists.has_no_txg() && state.chain.is_unused()
    }

    /// Stops writing blocks as [`Zil::shut`], in the syncing context of `syncing` after [`Zil::sync`], without waiting. Returns
    /// whether it did: not while a block is being written, and not if the header that [`Zil::sync`] returned does not lead to all
    /// blocks, or one of them was allocated in a later txg.
    pub fn shut_if_synced(&self, syncing: Txg) -> bool {
        let mut state = self.state();
        let is_idle = !state.writing && state.chain.last_in_flight().is_none();
        let shuts = is_idle && state.chain.is_synced(syncing);
        state.suspended |= shuts;
        shuts
    }

    /// Resumes writing blocks (`zil_resume`).
    pub fn reopen(&self) {
        self.state().suspended = false;
    }

    /// Applies the sync of `txg` to the log. Call it once for each txg, when nothing is logged in it any more and
    /// before the object set's header is written.
    ///
    /// Waits for blocks whose successor was allocated in the txg.
    pub async fn sync(self: &Arc<Self>, txg: Txg) -> LogSync {
        loop {
            let waiting = {
                let mut state = self.state();
                match state.chain.last_blocking_sync(txg) {
                    Some(number) => state.wait_for(number),
                    None => return state.chain.sync(txg),
                }
            };
            self.flush_in_background();
            let _ = waiting.await;
        }
    }

    /// Drops the records of `txg`, which is on stable storage.
    pub fn synced(&self, txg: Txg) {
        self.state().lists.synced(txg);
    }

    /// Reuses a log without records for a new chain: keeps the claimed block if it has this program's byte order and
    /// checksum kind and is neither a gang block nor encrypted; otherwise frees it. Call it once, in `tx`, for a log
    /// that needs no replay.
    pub fn adopt(&self, tx: &Tx) {
        let mut state = self.state();
        let first = state.chain.header().log;
        if first.is_hole() {
            return;
        }
        let usable = first.endian() == ENDIAN
            && first.checksum_kind() == Some(weir_format::ChecksumKind::Zilog2)
            && !first.is_gang()
            // Data written there earlier used the pointer's initialization vector, which must not encrypt twice.
            && !first.uses_crypt();
        if usable {
            let keep = with_checksum(first, self.first_checksum());
            state.chain.destroy(tx.txg(), Some(keep), Vec::new());
        } else {
            state.chain.destroy(tx.txg(), None, vec![first]);
        }
    }

    /// Destroys the log in `tx`'s txg; `frees` are all its blocks ([`super::claim::blocks`]).
    pub fn destroy(&self, tx: &Tx, frees: Vec<BlockPointer>) {
        self.state().chain.destroy(tx.txg(), None, frees);
    }

    /// Checksum words of the first block of a new chain: random, so that no old block is mistaken for a part of it.
    pub(super) fn first_checksum(&self) -> [u64; 4] {
        [self.machine.entropy.u64(), self.machine.entropy.u64(), self.set.0, 1]
    }

    /// Whether a record is being replayed. Its change was already acknowledged, so it must not fail on limits of space
    /// that apply to new changes.
    pub fn is_replaying(&self) -> bool {
        self.state().replaying.is_some()
    }

    /// Sets the record being replayed: changes logged until the next call are the replay of the record `seq`.
    pub(super) fn replaying(&self, seq: Option<u64>) {
        self.state().replaying = seq;
    }
}

impl State {
    /// Whether a change is not logged: it is being replayed, the sync policy is disabled, or the transaction does not
    /// need it.
    fn is_unlogged(&mut self, tx: &Tx) -> bool {
        let txg = tx.txg();
        if let Some(seq) = self.replaying {
            self.chain.replayed(txg, seq);
            return true;
        }
        if !tx.is_logged() {
            return true;
        }
        if self.policy.sync == SyncMode::Disabled {
            // If the policy changes later, commits still wait for this txg.
            self.lists.push_unlogged(txg, None);
            return true;
        }
        false
    }

    /// Waits for the block of that number, which is in flight.
    pub(super) fn wait_for(&mut self, number: u64) -> oneshot::Receiver<bool> {
        let (sender, receiver) = oneshot::channel();
        self.waiters.entry(number).or_default().push(sender);
        receiver
    }
}

/// Copy of a pointer with other checksum words.
pub(super) fn with_checksum(pointer: BlockPointer, checksum: [u64; 4]) -> BlockPointer {
    let mut words = *pointer.words();
    for (to, word) in words.iter_mut().skip(12).zip(checksum) {
        *to = word;
    }
    BlockPointer::from_words(words)
}

/// Notifies waiting commits.
pub(super) fn notify(waiters: Vec<Waiter>, stable: bool) {
    for waiter in waiters {
        // A dropped receiver needs no answer.
        let _ = waiter.send(stable);
    }
}

/// Request of the log writer.
pub(super) fn request() -> Request {
    Request::internal("intent log")
}

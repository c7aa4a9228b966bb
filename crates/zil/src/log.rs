//! One dataset's log: what is logged, and who waits for it.

use super::chain::{Chain, LogSync};
use super::itx::{ENDIAN, Itx, Lists, LogPayload};
use super::pack::{MAX_RECORD_BYTES, Sizes};
use super::store::{LogData, LogStore};
use bytes::Bytes;
use futures_channel::oneshot;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_dmu::error::ObjectError;
use weir_dmu::txg::{Tx, TxgTracker};
use weir_format::zil::{LogBody, NewRecord, TxType, ZilHeader};
use weir_format::{BlockPointer, ObjectId, ObjsetId, Txg};
use weir_machine::{Machine, Request};

/// Data of a write up to this is kept with its record; more is read from the object when it is committed.
const KEPT_DATA_BYTES: usize = 32 << 10;

/// Writes from this on may go to their final place (`zfs_immediate_write_sz`).
const INDIRECT_WRITE_BYTES: u64 = 32 << 10;

/// What a dataset promises of its changes (`sync`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncMode {
    /// What a client asks to be stable is stable before it is answered.
    #[default]
    Standard,
    /// Every change is stable before it is answered.
    Always,
    /// Nothing is promised before its group syncs.
    Disabled,
}

/// Which writes go to their final place at once, so that their records need no data (`logbias`; OpenZFS
/// `zil_write_state`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteKind {
    /// None: the log has a device of its own, which is faster.
    #[default]
    Never,
    /// Large ones, that are at least half of their block.
    Large,
    /// All.
    Always,
}

impl WriteKind {
    /// Whether a write of `length` bytes does, in an object with such blocks.
    fn takes(self, length: u64, block_bytes: u64) -> bool {
        match self {
            WriteKind::Never => false,
            WriteKind::Large => length >= INDIRECT_WRITE_BYTES && length >= block_bytes / 2,
            WriteKind::Always => true,
        }
    }
}

/// How a dataset's log is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// What is promised.
    pub sync: SyncMode,
    /// The feature `zilsaxattr` is active for the dataset: records may set extended attributes. Until then a commit of
    /// such a change waits for its group.
    pub sa_xattr: bool,
    /// Which writes go to their final place.
    pub in_place: WriteKind,
}

/// Somebody who waits for a block: told whether it is stable.
pub(super) type Waiter = oneshot::Sender<bool>;

#[derive(Default)]
pub(super) struct State {
    pub policy: Policy,
    pub lists: Lists,
    pub chain: Chain,
    pub sizes: Sizes,
    /// The number of the last record.
    pub seq: u64,
    /// Committers whose changes no turn of the writer has taken yet.
    pub joining: Vec<Waiter>,
    /// Who waits for the block of a number, in the order of numbers.
    pub waiters: std::collections::BTreeMap<u64, Vec<Waiter>>,
    pub writing: bool,
    pub flushing: bool,
    /// Where blocks were written to since the last flush began; and whether data went to its final place, which may be
    /// anywhere.
    pub unstable_vdevs: std::collections::BTreeSet<u32>,
    pub unstable_data: bool,
    /// The writer, waiting for fewer blocks in flight.
    pub on_room: Option<oneshot::Sender<()>>,
    /// Objects that went away while the writer had changes of them in hand.
    pub gone: std::collections::BTreeSet<ObjectId>,
    /// The record being replayed: what is logged now is in the log already.
    pub replaying: Option<u64>,
    /// No block is written any more: commits wait for their group.
    pub shut: bool,
    /// Blocks and flushes that failed so far.
    pub failures: u64,
    /// The planted bug is on ([`Zil::plant_canary`]).
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
    state: Mutex<State>,
}

/// What a log is opened with.
pub struct LogOpening {
    /// Tasks and chance.
    pub machine: Machine,
    /// Whose log it is.
    pub set: ObjsetId,
    /// The pool's groups.
    pub txgs: Arc<TxgTracker>,
    /// Where its blocks go.
    pub store: Arc<dyn LogStore>,
    /// The dataset's objects, live.
    pub data: Arc<dyn LogData>,
    /// How it is kept.
    pub policy: Policy,
    /// The log's header in the dataset's object set.
    pub header: ZilHeader,
}

impl Zil {
    /// A dataset's log. One that was claimed and holds records must be replayed before anything is changed
    /// ([`super::replay`]); an empty one is taken over, or given up, by [`Zil::adopt`].
    pub fn new(opening: LogOpening) -> Arc<Self> {
        let LogOpening { machine, set, txgs, store, data, policy, header } = opening;
        let state = State { policy, chain: Chain::new(header), ..State::default() };
        Arc::new(Zil { machine, set, txgs, store, data, state: Mutex::new(state) })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whose log it is.
    pub fn set(&self) -> ObjsetId {
        self.set
    }

    /// How it is kept.
    pub fn policy(&self) -> Policy {
        self.state().policy
    }

    /// Keeps it otherwise from now on.
    pub fn set_policy(&self, policy: Policy) {
        self.state().policy = policy;
    }

    /// Whether every change is to be committed before it is answered.
    pub fn commits_each(&self) -> bool {
        self.policy().sync == SyncMode::Always
    }

    /// Plants a bug: commits of a batch in which a block failed are told that they are stable. For tests of tests, which
    /// must find it.
    #[cfg(feature = "canary")]
    pub fn plant_canary(&self) {
        self.state().canary = true;
    }

    /// The header as of the group that was synced last.
    pub fn header(&self) -> ZilHeader {
        self.state().chain.header().clone()
    }

    /// Logs a change made in `tx`. `about` is the object that it is about: created, removed, linked, renamed, changed.
    /// A renamed object's own changes are committed before the renaming.
    ///
    /// While a record is replayed, this marks it as replayed in `tx`'s group instead.
    pub fn log(&self, tx: &Tx, about: ObjectId, body: &LogBody<'_>) {
        self.log_name(tx, about, body, false);
    }

    /// The same for names to be compared without case.
    pub fn log_name(&self, tx: &Tx, about: ObjectId, body: &LogBody<'_>, ignore_case: bool) {
        let txg = tx.txg();
        let mut state = self.state();
        if state.is_unlogged(tx) {
            return;
        }
        let kind = body.tx_type();
        let said = NewRecord { body, ignore_case, txg, seq: 0 }.encode(ENDIAN);
        let of_object = kind.is_out_of_order();
        if said.len() as u64 > MAX_RECORD_BYTES || kind == TxType::SetSaXattr && !state.policy.sa_xattr {
            return state.lists.push_unsaid(txg, of_object.then_some(about));
        }
        let entry = Itx { txg, object: about, said: LogPayload::Record(said) };
        if of_object {
            return state.lists.push_of_object(entry);
        }
        if matches!(kind, TxType::Rename | TxType::RenameExchange | TxType::RenameWhiteout) {
            state.lists.promote(Some(about));
        }
        state.lists.push_common(entry);
    }

    /// The changes of an object that were logged so far are replayed before all names that are made from now on: for those
    /// that say what new files inherit, or where a file may get a name.
    pub fn settle(&self, object: ObjectId) {
        self.state().lists.settle(object);
    }

    /// Logs a write made in `tx` to an object with blocks of `block_bytes`.
    pub fn log_write(&self, tx: &Tx, object: ObjectId, offset: u64, data: &Bytes, block_bytes: u64) {
        let txg = tx.txg();
        let mut state = self.state();
        if data.is_empty() || state.is_unlogged(tx) {
            return;
        }
        let kept = (data.len() <= KEPT_DATA_BYTES).then(|| data.clone());
        let length = data.len() as u64;
        let in_place = Some(block_bytes).filter(|bytes| *bytes > 0 && state.policy.in_place.takes(length, *bytes));
        let said = LogPayload::Write { offset, length, data: kept, in_place };
        state.lists.push_of_object(Itx { txg, object, said });
    }

    /// A change made in `tx` that no record can say: of one object alone, or of whatever. Commits that it concerns wait
    /// for its group.
    pub fn log_barrier_until_synced(&self, tx: &Tx, object: Option<ObjectId>) {
        let mut state = self.state();
        if !state.is_unlogged(tx) {
            state.lists.push_unsaid(tx.txg(), object);
        }
    }

    /// The last name of an object is gone (to be called before its removal is logged): its own changes need not be
    /// stable any more, and its number may soon be another's.
    pub fn forget(&self, object: ObjectId) {
        let mut state = self.state();
        state.lists.forget(object);
        if state.writing {
            state.gone.insert(object);
        }
    }

    /// Makes stable all that was logged before the call: every change of names, and the other changes of `object`, or
    /// of all objects. Must not be called while a transaction is held.
    ///
    /// # Errors
    /// [`ObjectError::Suspended`] if neither the log nor the pool can be written.
    pub async fn commit(self: &Arc<Self>, rq: &Request, object: Option<ObjectId>) -> Result<(), ObjectError> {
        let begun = self.machine.clock.now();
        let done = self.make_stable(object).await;
        rq.record_device(self.machine.clock.now().ns_since(begun));
        done
    }

    async fn make_stable(self: &Arc<Self>, object: Option<ObjectId>) -> Result<(), ObjectError> {
        let (unsaid, written, first) = {
            let mut state = self.state();
            if state.policy.sync == SyncMode::Disabled {
                return Ok(());
            }
            if state.shut || state.lists.lacks() {
                (Some(self.txgs.open()), None, false)
            } else {
                let unsaid = state.lists.unsaid(object);
                state.lists.promote(object);
                let idle = !state.writing;
                (unsaid, Self::join(&mut state), idle && state.writing)
            }
        };
        if first {
            self.machine.tasks.start(self.clone().write_turns());
        }
        self.flush_in_background();
        if let Some(written) = written
            && written.await != Ok(true)
        {
            // The log failed, or has no room: the group will do.
            return self.txgs.wait_synced(self.txgs.open()).await;
        }
        match unsaid {
            Some(txg) => self.txgs.wait_synced(txg).await,
            None => Ok(()),
        }
    }

    /// Joins the next turn of the writer, which the caller starts if nobody was writing; nothing to wait for if nothing is
    /// to be written nor on its way.
    fn join(state: &mut State) -> Option<oneshot::Receiver<bool>> {
        if state.lists.is_empty() && !state.writing {
            let last = state.chain.last_in_flight()?;
            return Some(state.wait_for(last));
        }
        let (tell, told) = oneshot::channel();
        state.joining.push(tell);
        state.writing = true;
        Some(told)
    }

    /// Writes no block any more, and returns when none is on its way: the header of the next group leads to all there
    /// are. Commits wait for their group from now on.
    pub async fn shut(self: &Arc<Self>) {
        loop {
            let waiting = {
                let mut state = self.state();
                state.shut = true;
                match (state.writing, state.chain.last_in_flight()) {
                    (false, None) => return,
                    (false, Some(last)) => state.wait_for(last),
                    (true, _) => {
                        let (tell, told) = oneshot::channel();
                        state.joining.push(tell);
                        told
                    }
                }
            };
            self.flush_in_background();
            let _ = waiting.await;
        }
    }

    /// Writes blocks again.
    pub fn reopen(&self) {
        self.state().shut = false;
    }

    /// What the sync of `txg` does to the log: to be called once for each group, when nothing is logged in it any more
    /// and before the object set's header is written.
    ///
    /// Waits for blocks whose successor was allocated in the group.
    pub async fn sync(self: &Arc<Self>, txg: Txg) -> LogSync {
        loop {
            let waiting = {
                let mut state = self.state();
                match state.chain.holds_back(txg) {
                    Some(number) => state.wait_for(number),
                    None => return state.chain.sync(txg),
                }
            };
            self.flush_in_background();
            let _ = waiting.await;
        }
    }

    /// The group is on stable storage: its records are needed no more.
    pub fn synced(&self, txg: Txg) {
        self.state().lists.synced(txg);
    }

    /// Takes over a log without records for a chain of this program's own: it keeps the claimed block, if that is in
    /// this program's byte order and form, and not encrypted. To be called once, in `tx`, for a log that needs no replay.
    pub fn adopt(&self, tx: &Tx) {
        let mut state = self.state();
        let first = state.chain.header().log;
        if first.is_hole() {
            return;
        }
        let usable = first.endian() == ENDIAN
            && first.checksum_kind() == Some(weir_format::ChecksumKind::Zilog2)
            && !first.is_gang()
            // What was written there, if anything was, had the vector in the pointer: it must not encrypt twice.
            && !first.uses_crypt();
        if usable {
            let keep = with_checksum(first, self.first_checksum());
            state.chain.destroy(tx.txg(), Some(keep), Vec::new());
        } else {
            state.chain.destroy(tx.txg(), None, vec![first]);
        }
    }

    /// The log goes away in `tx`'s group: `frees` are all its blocks ([`super::claim::blocks`]).
    pub fn destroy(&self, tx: &Tx, frees: Vec<BlockPointer>) {
        self.state().chain.destroy(tx.txg(), None, frees);
    }

    /// The checksum words of a new chain's first block: chance, so that no old block is taken for one of it.
    pub(super) fn first_checksum(&self) -> [u64; 4] {
        [self.machine.entropy.u64(), self.machine.entropy.u64(), self.set.0, 1]
    }

    /// Whether a record is being replayed: what it says was promised, also where there is no more room for promises now.
    pub fn is_replaying(&self) -> bool {
        self.state().replaying.is_some()
    }

    /// What is logged until [`Zil::replayed`] is the replay of the record `seq`.
    pub(super) fn replaying(&self, seq: Option<u64>) {
        self.state().replaying = seq;
    }
}

impl State {
    /// Whether a change is not to be logged: it is being replayed, or nothing is promised, or it does not matter.
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
            // Should the policy change, commits know of it.
            self.lists.push_unsaid(txg, None);
            return true;
        }
        false
    }

    /// Waits for the block of that number, which is in flight.
    pub(super) fn wait_for(&mut self, number: u64) -> oneshot::Receiver<bool> {
        let (tell, told) = oneshot::channel();
        self.waiters.entry(number).or_default().push(tell);
        told
    }
}

/// A pointer with other checksum words.
pub(super) fn with_checksum(pointer: BlockPointer, checksum: [u64; 4]) -> BlockPointer {
    let mut words = *pointer.words();
    for (to, word) in words.iter_mut().skip(12).zip(checksum) {
        *to = word;
    }
    BlockPointer::from_words(words)
}

/// Tells those who wait.
pub(super) fn tell(waiters: Vec<Waiter>, stable: bool) {
    for waiter in waiters {
        // One that went away needs no answer.
        let _ = waiter.send(stable);
    }
}

/// For the writer's requests.
pub(super) fn request() -> Request {
    Request::internal("intent log")
}

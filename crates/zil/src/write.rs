//! The writer: turns what is logged into blocks, and tells who waits when they are stable.
//!
//! One task at a time takes all that is to be committed with all who wait for it: a *turn*. While its last block is on
//! its way, the next turn is packed and issued; those who come later share the third. Writes complete in any order; a
//! flush makes stable the blocks up to the first that is not written, and only if somebody waits for one of them.
//!
//! Who commits while nobody writes, begins the first turn on its own thread, and where the turn is one block on one device,
//! that thread writes and flushes it: a lone client's fsync changes no thread at all. Those who come meanwhile are served
//! by a task.
//!
//! A flush goes to the devices that hold blocks of the log, and to all if data went to its final place.
//!
//! *Failure.* A block that cannot be written ends the chain there; a flush that fails ends it at the first block that is
//! not stable. Commits that wait for such a block or a later one wait for their txg to sync instead, and so do those of a
//! batch that is still being written when this happens: its records may be among the lost ones, and the blocks that are
//! left in flight do not hold them.

use super::itx::{Itx, LogPayload, write_record};
use super::log::{State, Waiter, Zil, request, tell, with_checksum};
use super::pack::{self, Fit, MIN_BLOCK_BYTES};
use crate::itx::ENDIAN;
use bytes::Bytes;
use futures_channel::oneshot;
use std::sync::Arc;
use std::task::Poll;
use weir_dmu::error::ObjectError;
use weir_format::zil::{ZilChain, next_checksum, set_sequence};
use weir_format::{BlockPointer, ObjectId, Txg};
use weir_machine::Request;

/// Turns whose last block is on its way.
const MAX_IN_FLIGHT_BATCHES: usize = 2;
/// Blocks on their way.
const BLOCKS: usize = 32;

/// Why a turn ended early: those in it wait for the group.
struct Stopped;

impl From<ObjectError> for Stopped {
    fn from(error: ObjectError) -> Self {
        tracing::warn!(%error, "intent log: waiting for the group instead");
        Stopped
    }
}

/// A block being packed.
struct Filling {
    pointer: BlockPointer,
    /// The block's bytes so far, with room for the chain at the front.
    bytes: Vec<u8>,
    last_record: Txg,
}

impl Filling {
    fn new(pointer: BlockPointer) -> Self {
        Filling { pointer, bytes: vec![0; ZilChain::SIZE], last_record: Txg(0) }
    }

    fn room_bytes(&self) -> u64 {
        self.pointer.lsize_bytes().saturating_sub(self.bytes.len() as u64)
    }

    fn push(&mut self, record: &[u8], txg: Txg) {
        self.bytes.extend_from_slice(record);
        self.last_record = self.last_record.max(txg);
    }

    fn is_empty(&self) -> bool {
        self.bytes.len() == ZilChain::SIZE
    }

    /// The block's bytes, not yet sealed.
    fn finish(mut self, next: BlockPointer) -> Vec<u8> {
        let used_bytes = self.bytes.len() as u64;
        let chain = ZilChain { next, used_bytes, endian: ENDIAN }.encode();
        self.bytes.splice(..ZilChain::SIZE, chain);
        self.bytes.resize(used_bytes.next_multiple_of(MIN_BLOCK_BYTES) as usize, 0);
        self.bytes
    }
}

/// Lets others go first; on a thread that only started a task, leaves the rest to that.
async fn pending_once() {
    let mut waited = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut waited, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// One turn.
struct CommitBatch<'a> {
    zil: &'a Arc<Zil>,
    rq: &'a Request,
    filling: Option<Filling>,
    /// Blocks that went to the device.
    issued: usize,
}

impl Zil {
    /// Writes turn after turn until nothing is left.
    pub(super) async fn write_turns(self: Arc<Self>) {
        let rq = request();
        let mut first = true;
        while let Some((entries, joining, failures)) = self.next_turn().await {
            let entries = self.place_large(entries).await;
            {
                let mut state = self.state();
                for (record, data) in entries.iter().map(Itx::sizes) {
                    state.sizes.expect(record, data);
                }
            }
            let mut turn = CommitBatch { zil: &self, rq: &rq, filling: None, issued: 0 };
            let stopped = turn.write(entries).await.is_err();
            self.end_turn(joining, stopped, failures);
            // Whoever began this may have what it waited for: it is not kept here for others.
            if std::mem::take(&mut first) && self.state().has_more() {
                pending_once().await;
            }
        }
    }

    /// The records and the commits of the next batch, and the number of failures before it; `None` when there is
    /// nothing to write.
    async fn next_turn(&self) -> Option<(Vec<Itx>, Vec<Waiter>, u64)> {
        loop {
            let room = {
                let mut state = self.state();
                if !state.has_more() {
                    state.writing = false;
                    state.gone.clear();
                    return None;
                }
                if state.waiters.len() < MAX_IN_FLIGHT_BATCHES {
                    state.gone.clear();
                    let entries = state.lists.take();
                    let joining = std::mem::take(&mut state.joining);
                    // Some of theirs may have to wait for what is not logged: they wait for the group.
                    let served = if state.lists.lacks() { Vec::new() } else { joining };
                    return Some((entries, served, state.failures));
                }
                state.wait_for_room()
            };
            let _ = room.await;
        }
    }

    /// Lets the batch's commits wait for the last block in flight, and with it for all before. They wait for their txg if
    /// a block or a flush has failed since the batch was taken: its records may have been in what was lost.
    fn end_turn(self: &Arc<Self>, joining: Vec<Waiter>, stopped: bool, failures: u64) {
        let mut state = self.state();
        state.sizes.done();
        if stopped {
            state.lose(self.txgs.open());
        }
        if stopped || state.has_failed_since(failures) {
            drop(state);
            return tell(joining, false);
        }
        match state.chain.last_in_flight() {
            Some(number) => state.waiters.entry(number).or_default().extend(joining),
            // Nothing has failed, so what is not in flight is stable, or has synced.
            None => {
                drop(state);
                return tell(joining, true);
            }
        }
        drop(state);
        self.flush_in_background();
    }

    /// The block that is to be written next: the chain's, or the first of a new chain, once something stable leads to
    /// it.
    async fn next_block(&self) -> Result<BlockPointer, Stopped> {
        let (settles, ended) = {
            let state = self.state();
            (state.chain.settles(), state.chain.has_ended())
        };
        if ended {
            return Err(Stopped);
        }
        self.txgs.wait_synced(settles).await?;
        if let Some(pointer) = self.state().chain.fresh() {
            return Ok(pointer);
        }
        let txg = {
            let tx = self.txgs.hold()?;
            let pointer = self.store.allocate(MIN_BLOCK_BYTES, tx.txg(), self.first_checksum()).await?;
            self.state().chain.begin(pointer, tx.txg());
            tx.txg()
        };
        self.txgs.wait_synced(txg).await?;
        self.state().chain.fresh().ok_or(Stopped)
    }

    /// A write is done, well or not.
    async fn on_written(self: Arc<Self>, number: u64, pointer: BlockPointer, written: Result<(), ObjectError>) {
        match written {
            Ok(()) => {
                let mut state = self.state();
                state.chain.written(number);
                state.unstable_vdevs.extend(pointer.dvas().map(|dva| dva.vdev));
            }
            Err(error) => {
                tracing::warn!(set = self.set.0, %error, "intent log: a block could not be written");
                let waiters = self.state().fail(number, self.txgs.open());
                tell(waiters, false);
            }
        }
        self.state().make_room();
        self.flush_as_wanted().await;
    }

    /// Flushes if a written block is waited for and nobody else does.
    pub(super) fn flush_in_background(self: &Arc<Self>) {
        if self.state().wants_flush().is_some() {
            let zil = self.clone();
            self.machine.tasks.start(async move { zil.flush_as_wanted().await });
        }
    }

    async fn flush_as_wanted(self: &Arc<Self>) {
        let rq = request().with_here(true);
        loop {
            let (end, vdevs, data) = {
                let mut state = self.state();
                let Some(end) = state.wants_flush() else { return };
                state.flushing = true;
                (end, std::mem::take(&mut state.unstable_vdevs), std::mem::take(&mut state.unstable_data))
            };
            let flushed = self.store.flush(&rq, Some(&vdevs).filter(|_| !data)).await;
            let (told, stable) = {
                let mut state = self.state();
                state.flushing = false;
                match flushed {
                    Ok(()) => {
                        let stable = state.chain.flushed(end);
                        let later = state.waiters.split_off(&stable);
                        let told = std::mem::replace(&mut state.waiters, later);
                        (told.into_values().flatten().collect(), true)
                    }
                    Err(error) => {
                        tracing::warn!(set = self.set.0, %error, "intent log: a flush failed");
                        state.unstable_vdevs.extend(vdevs);
                        state.unstable_data |= data;
                        // A device may have dropped any block that no flush has covered.
                        let first = state.chain.first_unstable();
                        (state.fail(first, self.txgs.open()), false)
                    }
                }
            };
            tell(told, stable);
            self.state().make_room();
        }
    }
}

impl State {
    /// Up to which block a flush would make stable what somebody waits for; `None` if one is under way.
    fn wants_flush(&self) -> Option<u64> {
        let end = self.chain.written_up_to();
        (!self.flushing && self.waiters.keys().next().is_some_and(|first| *first < end)).then_some(end)
    }

    /// Whether another turn is to come.
    fn has_more(&self) -> bool {
        !self.lists.is_empty() || !self.joining.is_empty()
    }

    fn wait_for_room(&mut self) -> oneshot::Receiver<()> {
        let (tell, told) = oneshot::channel();
        self.on_room = Some(tell);
        told
    }

    fn make_room(&mut self) {
        if let Some(writer) = self.on_room.take() {
            let _ = writer.send(());
        }
    }
}

impl CommitBatch<'_> {
    async fn write(&mut self, entries: Vec<Itx>) -> Result<(), Stopped> {
        for entry in entries {
            // A chain's first block waits for a group, with which most of the turn may have synced.
            if entry.txg > self.zil.txgs.last_synced() && self.filling.is_none() {
                self.filling = Some(Filling::new(self.zil.next_block().await?));
            }
            if entry.txg > self.zil.txgs.last_synced() {
                self.place(entry).await?;
            } else {
                let (record, data) = entry.sizes();
                self.zil.state().sizes.placed(record + data.next_multiple_of(8));
            }
        }
        match self.filling.take_if(|f| !f.is_empty()) {
            Some(filling) => self.issue(filling, true).await,
            None => Ok(()),
        }
    }

    async fn place(&mut self, entry: Itx) -> Result<(), Stopped> {
        let (record, mut left) = entry.sizes();
        let mut at = 0;
        let mut turned_away = 0;
        loop {
            if self.filling.is_none() {
                self.filling = Some(Filling::new(self.zil.next_block().await?));
            }
            let room = self.filling.as_ref().map_or(0, Filling::room_bytes);
            let now = match pack::fit(room, record, left) {
                Fit::Whole => left,
                Fit::Part(bytes) => bytes,
                // The second block was made for it; a third would not be larger.
                Fit::Next if turned_away > 1 => return Err(Stopped),
                Fit::Next => {
                    turned_away += 1;
                    self.next().await?;
                    continue;
                }
            };
            turned_away = 0;
            let whole = now == left;
            let Some(bytes) = self.record(&entry, at, now).await? else {
                self.zil.state().sizes.placed(record + left.next_multiple_of(8));
                return Ok(());
            };
            if let Some(filling) = &mut self.filling {
                filling.push(&bytes, entry.txg);
            }
            let placed = if whole { record + now.next_multiple_of(8) } else { now };
            self.zil.state().sizes.placed(placed);
            if whole {
                return Ok(());
            }
            (at, left) = (at + now, left - now);
            self.next().await?;
        }
    }

    /// Goes to the next block.
    async fn next(&mut self) -> Result<(), Stopped> {
        match self.filling.take() {
            Some(filling) => self.issue(filling, false).await,
            None => Ok(()),
        }
    }

    /// The record of a change, or of `length` bytes of its data from the `at`th; `None` if its object is gone.
    async fn record(&self, entry: &Itx, at: u64, length: u64) -> Result<Option<Vec<u8>>, Stopped> {
        match &entry.said {
            LogPayload::Record(bytes) => {
                let mut bytes = bytes.clone();
                set_sequence(&mut bytes, self.zil.state().next_seq(), ENDIAN);
                Ok(Some(bytes))
            }
            LogPayload::Write { offset, data, .. } => {
                let offset = offset.saturating_add(at);
                let kept = data.as_ref().map(|d| d.slice(at as usize..(at + length) as usize));
                let Some(data) = self.data(entry.object, offset, length, kept).await? else { return Ok(None) };
                let seq = self.zil.state().next_seq();
                Ok(Some(write_record(entry.object, entry.txg, seq, offset, &data)))
            }
        }
    }

    async fn data(
        &self,
        object: ObjectId,
        offset: u64,
        length: u64,
        kept: Option<Bytes>,
    ) -> Result<Option<Bytes>, Stopped> {
        if kept.is_some() {
            return Ok(kept);
        }
        let data = self.zil.data.read(self.rq, object, offset, length).await?;
        // Should the number have become another's while it was read, so had it been forgotten before.
        let data = data.filter(|_| !self.zil.state().gone.contains(&object));
        if data.as_ref().is_some_and(|d| d.len() as u64 != length) { Err(Stopped) } else { Ok(data) }
    }

    /// Allocates the block's successor and lets the block go to the device: the turn's last, or not.
    async fn issue(&mut self, filling: Filling, last: bool) -> Result<(), Stopped> {
        let zil = self.zil;
        let (pointer, last_record) = (filling.pointer, filling.last_record);
        let checksum = next_checksum(pointer.checksum());
        let (number, next, bytes) = {
            let tx = zil.txgs.hold()?;
            let (least, best) = zil.state().sizes.next_block();
            let next = match zil.store.allocate(best, tx.txg(), checksum).await {
                Err(_) if least < best => zil.store.allocate(least, tx.txg(), checksum).await.ok(),
                next => next.ok(),
            };
            // A block without successor says so in the form of one that has one.
            let bytes = filling.finish(next.unwrap_or(with_checksum(BlockPointer::HOLE, checksum)));
            (zil.state().chain.issue(last_record, tx.txg(), next), next, bytes)
        };
        let number = number.ok_or(Stopped)?;
        let writer = zil.clone();
        let here = last && self.issued == 0;
        self.issued += 1;
        zil.machine.tasks.start(async move {
            let written = writer.store.write(&request().with_here(here), &pointer, bytes).await;
            writer.on_written(number, pointer, written).await;
        });
        if next.is_none() {
            tracing::warn!(set = zil.set.0, "intent log: no room for another block");
        }
        loop {
            let room = {
                let mut state = zil.state();
                if state.chain.being_written() < BLOCKS {
                    return Ok(());
                }
                state.wait_for_room()
            };
            let _ = room.await;
        }
    }
}

impl State {
    /// Records of groups up to `txg` are neither in the log nor in memory any more: until it has synced, every commit
    /// waits for it.
    fn lose(&mut self, txg: Txg) {
        self.lists.push_unsaid(txg, None);
    }

    /// The block of that number, and all behind it, will not be found after a crash. Gives the commits that waited for
    /// them; `open` is the open txg, which no record in those blocks is younger than.
    #[must_use]
    fn fail(&mut self, number: u64, open: Txg) -> Vec<Waiter> {
        self.chain.fail(number);
        self.failures += 1;
        self.lose(open);
        self.waiters.split_off(&number).into_values().flatten().collect()
    }

    /// Whether a block or a flush has failed since there had been that many failures.
    fn has_failed_since(&self, failures: u64) -> bool {
        debug_assert!(failures <= self.failures);
        #[cfg(feature = "canary")]
        if self.canary {
            return false;
        }
        self.failures > failures
    }

    fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }
}

//! Log writer: writes itxs to log blocks, and notifies commits when their blocks are stable.
//!
//! One task per log takes all itxs to commit together with the commits that wait for them: a *batch*. While the last
//! block of a batch is in flight, the next batch is packed and issued; later commits join the third.
//!
//! Writes complete in any order. A flush makes stable the blocks up to the first that is not written, and is issued
//! only if a commit waits for one of them.
//!
//! If no writer is running, a commit starts one on its own thread. If the first batch is one block on one device, that
//! thread also writes and flushes it, so a single client's fsync needs no thread switch. A background task writes the
//! batches of commits that arrive in the meantime.
//!
//! A flush covers the devices that hold blocks of the log, and all devices if data went to its final location.
//!
//! *Failure.* A block that cannot be written ends the chain there; a flush that fails ends it at the first block that
//! is not stable. Commits that wait for such a block or a later one wait for their txg to sync instead. So do the
//! commits of a batch that is still being written at that time, because its records may be among the lost ones, and the
//! blocks left in flight do not hold them.

use super::itx::{Itx, LogPayload, write_record};
use super::log::{State, Waiter, Zil, notify, request, with_checksum};
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
use weir_machine::accounts::Shares;

/// Maximum number of batches whose last block is in flight.
const MAX_IN_FLIGHT_BATCHES: usize = 2;
/// Maximum number of blocks in flight.
const MAX_IN_FLIGHT_BLOCKS: usize = 32;

/// A batch ended early: its commits wait for their txg.
struct Stopped;

impl From<ObjectError> for Stopped {
    fn from(error: ObjectError) -> Self {
        tracing::warn!(%error, "intent log: waiting for the txg to sync instead");
        Stopped
    }
}

/// Block being packed.
struct OpenBlock {
    pointer: BlockPointer,
    /// Bytes of the block so far, with space for the chain header at the front.
    bytes: Vec<u8>,
    last_record: Txg,
    /// Origins of the records, and the bytes of each.
    writers: Shares,
}

impl OpenBlock {
    fn new(pointer: BlockPointer) -> Self {
        OpenBlock { pointer, bytes: vec![0; ZilChain::SIZE], last_record: Txg(0), writers: Shares::new() }
    }

    fn free_bytes(&self) -> u64 {
        self.pointer.lsize_bytes().saturating_sub(self.bytes.len() as u64)
    }

    fn push(&mut self, record: &[u8], itx: &Itx) {
        self.bytes.extend_from_slice(record);
        self.last_record = self.last_record.max(itx.txg);
        let bytes = record.len() as u64;
        match self.writers.iter_mut().find(|(writer, _)| *writer == itx.writer) {
            Some((_, sum)) => *sum += bytes,
            None => self.writers.push((itx.writer, bytes)),
        }
    }

    fn is_empty(&self) -> bool {
        self.bytes.len() == ZilChain::SIZE
    }

    /// Bytes of the complete block, not yet sealed.
    fn finish(mut self, next: BlockPointer) -> Vec<u8> {
        let used_bytes = self.bytes.len() as u64;
        let chain = ZilChain { next, used_bytes, endian: ENDIAN }.encode();
        self.bytes.splice(..ZilChain::SIZE, chain);
        self.bytes.resize(used_bytes.next_multiple_of(MIN_BLOCK_BYTES) as usize, 0);
        self.bytes
    }
}

/// Yields once, so that other tasks run first; on a thread that only started a task, leaves the rest to that task.
async fn yield_once() {
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

/// Bytes of the writes among `itxs`, by txg.
fn written_bytes(itxs: &[Itx]) -> Vec<(Txg, u64)> {
    let mut written: Vec<(Txg, u64)> = Vec::new();
    for itx in itxs {
        let LogPayload::Write { length, .. } = itx.payload else { continue };
        match written.last_mut().filter(|(txg, _)| *txg == itx.txg) {
            Some((_, bytes)) => *bytes += length,
            None => written.push((itx.txg, length)),
        }
    }
    written
}

/// Batch of itxs being written.
struct CommitBatch<'a> {
    zil: &'a Arc<Zil>,
    rq: &'a Request,
    open_block: Option<OpenBlock>,
    /// Number of blocks issued to the device.
    issued: usize,
}

impl Zil {
    /// Writes batch after batch until nothing is left.
    pub(super) async fn write_batches(self: Arc<Self>) {
        let rq = request();
        let mut first = true;
        while let Some((itxs, joining, failures)) = self.next_batch().await {
            let written = written_bytes(&itxs);
            let itxs = super::place::place_large(&self, itxs).await;
            {
                let mut state = self.state();
                for (record, data) in itxs.iter().map(Itx::sizes) {
                    state.sizes.expect(record, data);
                }
            }
            let mut batch = CommitBatch { zil: &self, rq: &rq, open_block: None, issued: 0 };
            let stopped = batch.write(itxs).await.is_err();
            self.end_batch(joining, written, stopped, failures);
            // The commit that started this writer may be complete: return its thread before serving others.
            if std::mem::take(&mut first) && self.state().has_work() {
                yield_once().await;
            }
        }
    }

    /// Itxs and commits of the next batch, and the number of failures before it; `None` if there is nothing to write.
    async fn next_batch(&self) -> Option<(Vec<Itx>, Vec<Waiter>, u64)> {
        loop {
            let capacity = {
                let mut state = self.state();
                if !state.has_work() {
                    state.writing = false;
                    state.removed.clear();
                    return None;
                }
                if state.waiters.len() < MAX_IN_FLIGHT_BATCHES {
                    state.removed.clear();
                    let itxs = state.lists.take();
                    let joining = std::mem::take(&mut state.joining);
                    // Some of these commits may depend on a change without a record: they wait for the txg.
                    let served = if state.lists.has_gap() { Vec::new() } else { joining };
                    return Some((itxs, served, state.failures));
                }
                state.wait_for_capacity()
            };
            let _ = capacity.await;
        }
    }

    /// Registers the batch's commits to wait for the last block in flight, and thereby for all before it. They wait for
    /// their txg if a block or a flush has failed since the batch was taken: its records may have been in the lost
    /// blocks.
    fn end_batch(self: &Arc<Self>, joining: Vec<Waiter>, written: Vec<(Txg, u64)>, stopped: bool, failures: u64) {
        let mut state = self.state();
        state.sizes.done();
        if stopped {
            state.require_sync(self.txgs.open());
        }
        if stopped || state.has_failed_since(failures) {
            drop(state);
            return notify(joining, false);
        }
        match state.chain.last_in_flight() {
            Some(number) => {
                state.waiters.entry(number).or_default().extend(joining);
                state.written.entry(number).or_default().extend(written);
            }
            // Nothing has failed, so a block that is not in flight is stable, or its records have synced.
            None => {
                drop(state);
                self.account_stable(written);
                return notify(joining, true);
            }
        }
        drop(state);
        self.flush_in_background();
    }

    /// Next block to write: the chain's fresh block, or the first of a new chain after a stable pointer leads to it.
    async fn next_block(&self) -> Result<BlockPointer, Stopped> {
        let (writable_after, ended) = {
            let state = self.state();
            (state.chain.writable_after(), state.chain.has_ended())
        };
        if ended {
            return Err(Stopped);
        }
        self.txgs.wait_synced(writable_after).await?;
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

    /// Handles the completion of a block write.
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
                notify(waiters, false);
            }
        }
        self.state().wake_writer();
        self.flush_as_wanted().await;
    }

    /// Starts a flush task if a commit waits for a written block and no flush is running.
    pub(super) fn flush_in_background(self: &Arc<Self>) {
        if self.state().wants_flush().is_some() {
            let zil = self.clone();
            self.machine.tasks.start(async move { zil.flush_as_wanted().await });
        }
    }

    /// Records in the accounts that written bytes are stable.
    fn account_stable(&self, written: impl IntoIterator<Item = (Txg, u64)>) {
        written.into_iter().for_each(|(txg, bytes)| self.accounts.became_stable(txg.0, bytes));
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
            let (waiters, stable) = {
                let mut state = self.state();
                state.flushing = false;
                match flushed {
                    Ok(()) => {
                        let stable = state.chain.flushed(end);
                        let later = state.waiters.split_off(&stable);
                        let waiters = std::mem::replace(&mut state.waiters, later);
                        let later = state.written.split_off(&stable);
                        let written = std::mem::replace(&mut state.written, later);
                        self.account_stable(written.into_values().flatten());
                        (waiters.into_values().flatten().collect(), true)
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
            notify(waiters, stable);
            self.state().wake_writer();
        }
    }
}

impl State {
    /// One more than the number of the last block that a flush would make stable, if a commit waits for such a block;
    /// `None` if not, or if a flush is running.
    fn wants_flush(&self) -> Option<u64> {
        let end = self.chain.written_up_to();
        (!self.flushing && self.waiters.keys().next().is_some_and(|first| *first < end)).then_some(end)
    }

    /// Whether another batch is pending.
    fn has_work(&self) -> bool {
        !self.lists.is_empty() || !self.joining.is_empty()
    }

    fn wait_for_capacity(&mut self) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        self.writer_waker = Some(sender);
        receiver
    }

    fn wake_writer(&mut self) {
        if let Some(writer) = self.writer_waker.take() {
            let _ = writer.send(());
        }
    }
}

impl CommitBatch<'_> {
    async fn write(&mut self, itxs: Vec<Itx>) -> Result<(), Stopped> {
        for itx in itxs {
            // The first block of a chain waits for a txg sync, which may have synced most of the batch.
            if itx.txg > self.zil.txgs.last_synced() && self.open_block.is_none() {
                self.open_block = Some(OpenBlock::new(self.zil.next_block().await?));
            }
            if itx.txg > self.zil.txgs.last_synced() {
                self.place(itx).await?;
            } else {
                let (record, data) = itx.sizes();
                self.zil.state().sizes.placed(record + data.next_multiple_of(8));
            }
        }
        match self.open_block.take_if(|f| !f.is_empty()) {
            Some(open_block) => self.issue(open_block, true).await,
            None => Ok(()),
        }
    }

    async fn place(&mut self, itx: Itx) -> Result<(), Stopped> {
        let (record, mut left) = itx.sizes();
        let mut at = 0;
        let mut rejections = 0;
        loop {
            if self.open_block.is_none() {
                self.open_block = Some(OpenBlock::new(self.zil.next_block().await?));
            }
            let free_bytes = self.open_block.as_ref().map_or(0, OpenBlock::free_bytes);
            let now = match pack::fit(free_bytes, record, left) {
                Fit::Whole => left,
                Fit::Part(bytes) => bytes,
                // The second block was sized for this record; a third would not be larger.
                Fit::Next if rejections > 1 => return Err(Stopped),
                Fit::Next => {
                    rejections += 1;
                    self.finish_block().await?;
                    continue;
                }
            };
            rejections = 0;
            let whole = now == left;
            let Some(bytes) = self.record(&itx, at, now).await? else {
                self.zil.state().sizes.placed(record + left.next_multiple_of(8));
                return Ok(());
            };
            if let Some(open_block) = &mut self.open_block {
                open_block.push(&bytes, &itx);
            }
            let placed = if whole { record + now.next_multiple_of(8) } else { now };
            self.zil.state().sizes.placed(placed);
            if whole {
                return Ok(());
            }
            (at, left) = (at + now, left - now);
            self.finish_block().await?;
        }
    }

    /// Issues the open block, if there is one.
    async fn finish_block(&mut self) -> Result<(), Stopped> {
        match self.open_block.take() {
            Some(open_block) => self.issue(open_block, false).await,
            None => Ok(()),
        }
    }

    /// Record of a change, or of `length` bytes of its data from offset `at`; `None` if its object is gone.
    async fn record(&self, itx: &Itx, at: u64, length: u64) -> Result<Option<Vec<u8>>, Stopped> {
        match &itx.payload {
            LogPayload::Record(bytes) => {
                let mut bytes = bytes.clone();
                set_sequence(&mut bytes, self.zil.state().next_seq(), ENDIAN);
                Ok(Some(bytes))
            }
            LogPayload::Write { offset, data, .. } => {
                let offset = offset.saturating_add(at);
                let kept = data.as_ref().map(|d| d.slice(at as usize..(at + length) as usize));
                let Some(data) = self.data(itx.object, offset, length, kept).await? else { return Ok(None) };
                let seq = self.zil.state().next_seq();
                Ok(Some(write_record(itx.object, itx.txg, seq, offset, &data)))
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
        // If the object number was reused during the read, the object had been removed before.
        let data = data.filter(|_| !self.zil.state().removed.contains(&object));
        if data.as_ref().is_some_and(|d| d.len() as u64 != length) { Err(Stopped) } else { Ok(data) }
    }

    /// Allocates the block's successor and issues the block to the device. `last` marks the last block of the batch.
    async fn issue(&mut self, open_block: OpenBlock, last: bool) -> Result<(), Stopped> {
        let zil = self.zil;
        let pointer = open_block.pointer;
        let last_record = open_block.last_record;
        let writers = open_block.writers.clone();
        let checksum = next_checksum(pointer.checksum());
        let (number, next, bytes) = {
            let tx = zil.txgs.hold()?;
            let (least, best) = zil.state().sizes.next_block();
            let next = match zil.store.allocate(best, tx.txg(), checksum).await {
                Err(_) if least < best => zil.store.allocate(least, tx.txg(), checksum).await.ok(),
                next => next.ok(),
            };
            // A block without successor points to a hole with the successor's checksum words.
            let bytes = open_block.finish(next.unwrap_or(with_checksum(BlockPointer::HOLE, checksum)));
            (zil.state().chain.issue(last_record, tx.txg(), next), next, bytes)
        };
        let number = number.ok_or(Stopped)?;
        let writer = zil.clone();
        let here = last && self.issued == 0;
        self.issued += 1;
        zil.machine.tasks.start(async move {
            let written = writer.store.write(&request().with_here(here), &pointer, bytes, writers).await;
            writer.on_written(number, pointer, written).await;
        });
        if next.is_none() {
            tracing::warn!(set = zil.set.0, "intent log: no space for another block");
        }
        loop {
            let capacity = {
                let mut state = zil.state();
                if state.chain.being_written() < MAX_IN_FLIGHT_BLOCKS {
                    return Ok(());
                }
                state.wait_for_capacity()
            };
            let _ = capacity.await;
        }
    }
}

impl State {
    /// Records that records of txgs up to `txg` are neither in the log nor in memory any more: until it has synced,
    /// every commit waits for it.
    fn require_sync(&mut self, txg: Txg) {
        self.lists.push_unlogged(txg, None);
    }

    /// Ends the chain at a block that a walk after a crash cannot find, nor any later block. Returns the commits that
    /// waited for them. `open` is the open txg; no record in those blocks is newer.
    #[must_use]
    fn fail(&mut self, number: u64, open: Txg) -> Vec<Waiter> {
        self.chain.fail(number);
        self.failures += 1;
        self.require_sync(open);
        self.written.split_off(&number);
        self.waiters.split_off(&number).into_values().flatten().collect()
    }

    /// Whether a block or a flush has failed since the failure count was `failures`.
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

//! Chain of log blocks, from the first that is still needed to the next one to write, and the log header that points to
//! it (OpenZFS `zil_sync`). Pure: no block is read or written here.
//!
//! ```text
//!   header ──▶ stable ──▶ stable ──▶ written ──▶ issued ──▶ issued ──▶ fresh
//!              └─ freed from the front, once ┘         flushed     allocated ahead; not written yet
//!                 all its records have synced           in order
//! ```
//!
//! Invariants: the blocks are in chain order and become stable in that order. The last block of an intact chain is
//! fresh. A chain has *ended* if one of its blocks could not be written or could get no successor: nothing is appended
//! to it, and when all its records have synced the log starts a new chain.

use std::collections::{BTreeMap, VecDeque, vec_deque};
use weir_format::zil::ZilHeader;
use weir_format::{BlockPointer, Txg};
use weir_machine::invariant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Fresh,
    Issued,
    Written,
    Stable,
    Failed,
}

#[derive(Clone, Debug)]
struct ChainBlock {
    pointer: BlockPointer,
    /// Txg in which the block was allocated.
    allocated: Txg,
    /// Txg in which its successor was allocated.
    issued: Txg,
    /// Newest txg of its records.
    last_record: Txg,
    step: Step,
}

impl ChainBlock {
    fn in_flight(&self) -> bool {
        matches!(self.step, Step::Issued | Step::Written)
    }

    /// Whether nothing in the block is needed after `txg` has synced.
    fn is_unneeded(&self, txg: Txg, ended: bool) -> bool {
        let is_idle = matches!(self.step, Step::Stable | Step::Failed) || ended && self.step == Step::Fresh;
        is_idle && self.allocated <= txg && self.last_record <= txg
    }
}

/// Whether a block has a copy on the top-level vdev `vdev`.
fn is_on(pointer: &BlockPointer, vdev: u32) -> bool {
    pointer.dvas().any(|dva| dva.vdev == vdev)
}

/// Pending destruction of a log.
#[derive(Clone, Debug)]
struct Destroy {
    txg: Txg,
    /// Block that becomes the first of the next chain, with the checksum words of that chain.
    keep: Option<BlockPointer>,
    frees: Vec<BlockPointer>,
}

/// Effect of a txg sync on a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogSync {
    /// Log header from this txg on.
    pub header: ZilHeader,
    /// Whether the header differs from that of the previous txg. If so, the object set must be written.
    pub changed: bool,
    /// Blocks that are no longer needed, to free in this txg.
    pub frees: Vec<BlockPointer>,
}

/// Chain of log blocks. See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chain {
    header: ZilHeader,
    blocks: VecDeque<ChainBlock>,
    /// Number of stable blocks at the front of `blocks`. The log of one txg may have ten thousand stable blocks, and
    /// every commit looks at the blocks behind them; only a sync looks at the stable ones again.
    stable: usize,
    /// Number of the first of `blocks`, counted since the log was opened over all its chains.
    first: u64,
    ended: bool,
    destroy: Option<Destroy>,
    /// Txg whose sync writes the header that points to the chain's first block.
    head_txg: Txg,
    /// Sequence number of the last record replayed in each txg.
    replayed: BTreeMap<Txg, u64>,
}

impl Chain {
    pub fn new(header: ZilHeader) -> Self {
        Chain { header, ..Chain::default() }
    }

    pub fn header(&self) -> &ZilHeader {
        &self.header
    }

    /// Whether it has no blocks, and its header is the one of an empty log.
    pub fn is_unused(&self) -> bool {
        self.header.log.is_hole() && self.blocks.is_empty() && self.destroy.is_none() && self.replayed.is_empty()
    }

    /// Whether the header leads to all blocks, and none was allocated after the txg `synced`, the last of [`Chain::sync`].
    pub fn is_synced(&self, synced: Txg) -> bool {
        let is_led_to = !self.header.log.is_hole() || self.blocks.is_empty();
        is_led_to && self.destroy.is_none() && self.blocks.iter().all(|block| block.allocated <= synced)
    }

    /// Next block to write; `None` if the chain has to be started first.
    pub fn fresh(&self) -> Option<BlockPointer> {
        self.blocks.back().filter(|b| b.step == Step::Fresh && !self.ended).map(|b| b.pointer)
    }

    /// Whether no block can be appended, not even a first one, until the present blocks are freed.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Txg that must have synced before a block of the chain is written: until then no stable pointer leads to the
    /// block.
    pub fn writable_after(&self) -> Txg {
        self.destroy.as_ref().map_or(self.head_txg, |d| d.txg)
    }

    /// Starts a chain with a block allocated in `txg`.
    pub fn begin(&mut self, pointer: BlockPointer, txg: Txg) {
        invariant!(self.blocks.is_empty() && !self.ended, "a chain of {} blocks begins again", self.blocks.len());
        self.head_txg = txg;
        self.push(pointer, txg);
    }

    fn push(&mut self, pointer: BlockPointer, allocated: Txg) {
        self.blocks.push_back(ChainBlock {
            pointer,
            allocated,
            issued: Txg(0),
            last_record: Txg(0),
            step: Step::Fresh,
        });
    }

    /// Marks the fresh block as issued to the device. It holds records up to txg `last_record`; its successor was
    /// allocated in txg `issued`, or could not be allocated, which ends the chain. Returns the number of the block;
    /// `None` if the chain has ended before.
    pub fn issue(&mut self, last_record: Txg, issued: Txg, successor: Option<BlockPointer>) -> Option<u64> {
        let number = self.first + self.blocks.len().checked_sub(1)? as u64;
        let ended = self.ended;
        let last = self.blocks.back_mut().filter(|b| b.step == Step::Fresh)?;
        invariant!(last.allocated <= issued, "the successor was allocated in txg {}, before its block", issued.0);
        (last.last_record, last.issued) = (last_record, issued);
        last.step = if ended { Step::Failed } else { Step::Issued };
        match successor {
            Some(pointer) => self.push(pointer, issued),
            None => self.ended = true,
        }
        (!ended).then_some(number)
    }

    fn at(&mut self, number: u64) -> Option<&mut ChainBlock> {
        self.blocks.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// Marks a block as written but not yet flushed.
    pub fn written(&mut self, number: u64) {
        if let Some(block) = self.at(number).filter(|b| b.step == Step::Issued) {
            block.step = Step::Written;
        }
    }

    /// Ends the chain at a block that could not be written or flushed: a walk cannot find it or any later block.
    pub fn fail(&mut self, number: u64) {
        self.ended = true;
        let from = number.saturating_sub(self.first) as usize;
        self.blocks.iter_mut().skip(from).filter(|b| b.in_flight()).for_each(|b| b.step = Step::Failed);
    }

    /// Blocks that are not yet stable.
    fn unstable(&self) -> vec_deque::Iter<'_, ChainBlock> {
        self.blocks.range(self.stable.min(self.blocks.len())..)
    }

    /// Number of the last unstable block that satisfies `is`.
    fn last(&self, is: impl Fn(&ChainBlock) -> bool) -> Option<u64> {
        self.unstable().rposition(is).map(|at| self.first + (self.stable + at) as u64)
    }

    /// One more than the number of the last block that a flush would make stable; all blocks before it are written.
    pub fn written_up_to(&self) -> u64 {
        let written = self.unstable().take_while(|b| b.step == Step::Written).count();
        self.first + (self.stable + written) as u64
    }

    /// Records a completed flush that began when all blocks before `end` were written. Returns one more than the number
    /// of the last stable block: less than `end` if a block failed during the flush.
    pub fn flushed(&mut self, end: u64) -> u64 {
        let end = (end.saturating_sub(self.first) as usize).min(self.blocks.len());
        let flushed = self.blocks.range_mut(self.stable.min(end)..end);
        self.stable += flushed.take_while(|b| b.step == Step::Written).map(|b| b.step = Step::Stable).count();
        invariant!(self.stable <= self.blocks.len(), "{} of {} blocks are stable", self.stable, self.blocks.len());
        self.first_unstable()
    }

    /// Ends the chain if it has a block on the top-level vdev `vdev`, or any block for `None`: when the records in its blocks
    /// have synced, all of them are freed. Returns whether it has such a block.
    pub fn end_on(&mut self, vdev: Option<u32>) -> bool {
        let is_there = self.blocks.iter().any(|block| vdev.is_none_or(|vdev| is_on(&block.pointer, vdev)));
        self.ended |= is_there;
        is_there
    }

    /// Number of the first block that is not stable.
    pub fn first_unstable(&self) -> u64 {
        self.first + self.stable as u64
    }

    /// Number of the last block that was issued and is not yet stable.
    pub fn last_in_flight(&self) -> Option<u64> {
        self.last(ChainBlock::in_flight)
    }

    /// Number of blocks being written.
    pub fn being_written(&self) -> usize {
        self.unstable().filter(|b| b.step == Step::Issued).count()
    }

    /// Number of the last block in flight whose successor was allocated in `txg` or before. If `txg` synced and that
    /// block were lost, no pointer would lead to the successor.
    pub fn last_blocking_sync(&self, txg: Txg) -> Option<u64> {
        self.last(|b| b.in_flight() && b.issued <= txg)
    }

    /// Destroys the log in `txg`: frees all `frees`; `keep` becomes the first block of the next chain.
    pub fn destroy(&mut self, txg: Txg, keep: Option<BlockPointer>, frees: Vec<BlockPointer>) {
        self.destroy = Some(Destroy { txg, keep, frees });
    }

    /// Records that the record `seq` was replayed in `txg`.
    pub fn replayed(&mut self, txg: Txg, seq: u64) {
        self.replayed.insert(txg, seq);
    }

    /// Applies the sync of `txg` to the log.
    pub fn sync(&mut self, txg: Txg) -> LogSync {
        let before = self.header.clone();
        let mut frees = Vec::new();
        let later = self.replayed.split_off(&Txg(txg.0 + 1));
        if let Some(seq) = std::mem::replace(&mut self.replayed, later).into_values().max() {
            self.header.replay_seq = self.header.replay_seq.max(seq);
        }
        if let Some(destroy) = self.destroy.take_if(|d| d.txg <= txg) {
            self.header = ZilHeader::default();
            self.replayed.clear();
            frees = destroy.frees;
            if let Some(keep) = destroy.keep {
                self.header.log = keep;
                self.push(keep, keep.birth());
                self.head_txg = destroy.txg;
            }
        }
        let had_blocks = !self.blocks.is_empty();
        let over = self.blocks.iter().take_while(|b| b.is_unneeded(txg, self.ended)).count();
        let lost = self.blocks.iter().take(over).find(|b| b.last_record > txg);
        invariant!(lost.is_none(), "a log block with records of a txg after {} is freed", txg.0);
        frees.extend(self.blocks.drain(..over).map(|b| b.pointer));
        self.first += over as u64;
        // Failed blocks, and a fresh one of a chain that has ended, are freed too, and were not counted as stable.
        self.stable = self.stable.saturating_sub(over);
        if let Some(block) = self.blocks.front() {
            self.header.log = block.pointer;
        } else if had_blocks {
            self.header.log = BlockPointer::HOLE;
            self.ended = false;
        }
        LogSync { changed: self.header != before, header: self.header.clone(), frees }
    }
}

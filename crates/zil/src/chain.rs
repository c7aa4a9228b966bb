//! The blocks of a log from the first that is still needed to the one that will be written next, and what the log's
//! header says of them (OpenZFS `zil_sync`). Pure: no block is read or written here.
//!
//! ```text
//!   header ──▶ stable ──▶ stable ──▶ written ──▶ issued ──▶ issued ──▶ fresh
//!              └─ freed from the front, once all ─┘         flushed     allocated ahead; no bytes yet
//!                 its records have synced                   in order
//! ```
//!
//! Invariants: the blocks are in the order of the chain, and become stable in that order; the last one of a whole chain
//! is fresh. A chain whose block could not be written, or could get no successor, has *ended*: nothing is added to it,
//! and when all its records have synced the log starts anew.

use std::collections::{BTreeMap, VecDeque, vec_deque};
use weir_format::zil::ZilHeader;
use weir_format::{BlockPointer, Txg};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Fresh,
    Issued,
    Written,
    Stable,
    Failed,
}

#[derive(Clone, Debug)]
struct HeldBlock {
    pointer: BlockPointer,
    /// The group in which it was allocated.
    allocated: Txg,
    /// The group in which its successor was allocated.
    issued: Txg,
    /// The youngest group of its records.
    last_record: Txg,
    step: Step,
}

impl HeldBlock {
    fn in_flight(&self) -> bool {
        matches!(self.step, Step::Issued | Step::Written)
    }

    /// Nothing in it is needed once `txg` has synced.
    fn is_over(&self, txg: Txg, ended: bool) -> bool {
        let at_rest = matches!(self.step, Step::Stable | Step::Failed) || ended && self.step == Step::Fresh;
        at_rest && self.allocated <= txg && self.last_record <= txg
    }
}

/// A log that goes away in some group.
#[derive(Clone, Debug)]
struct Destroy {
    txg: Txg,
    /// A block that stays for the next chain, with that chain's checksum words.
    keep: Option<BlockPointer>,
    frees: Vec<BlockPointer>,
}

/// What a group's sync does to a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogSync {
    /// The log's header from now on.
    pub header: ZilHeader,
    /// Whether it is another than that of the group before: then the object set is to be written.
    pub changed: bool,
    /// Blocks that are no longer needed, to be freed in this group.
    pub frees: Vec<BlockPointer>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chain {
    header: ZilHeader,
    blocks: VecDeque<HeldBlock>,
    /// So many of the first `blocks` are stable. A group's log may have ten thousands of them, and every commit asks for
    /// those behind: nothing but a sync looks at these again.
    stable: usize,
    /// The number of the first of `blocks`, counted from the log's opening over all its chains.
    first: u64,
    ended: bool,
    destroy: Option<Destroy>,
    /// The group that makes the place of the chain's first block known.
    settled: Txg,
    /// The last record replayed in each group.
    replayed: BTreeMap<Txg, u64>,
}

impl Chain {
    pub fn new(header: ZilHeader) -> Self {
        Chain { header, ..Chain::default() }
    }

    pub fn header(&self) -> &ZilHeader {
        &self.header
    }

    /// The block to be written next; `None` if the chain is to be begun.
    pub fn fresh(&self) -> Option<BlockPointer> {
        self.blocks.back().filter(|b| b.step == Step::Fresh && !self.ended).map(|b| b.pointer)
    }

    /// No block can be added, not even a first one, until what is there is gone.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// The group that must have synced before a block of the chain is written: until then nothing stable leads to it.
    pub fn settles(&self) -> Txg {
        self.destroy.as_ref().map_or(self.settled, |d| d.txg)
    }

    /// Begins a chain with a block allocated in `txg`.
    pub fn begin(&mut self, pointer: BlockPointer, txg: Txg) {
        self.settled = txg;
        self.push(pointer, txg);
    }

    fn push(&mut self, pointer: BlockPointer, allocated: Txg) {
        self.blocks.push_back(HeldBlock { pointer, allocated, issued: Txg(0), last_record: Txg(0), step: Step::Fresh });
    }

    /// The fresh block goes to the device, with records up to the group `last_record`; its successor was allocated in
    /// `issued` (or could not be: then the chain ends). Gives its number; `None` if the chain has ended before.
    pub fn issue(&mut self, last_record: Txg, issued: Txg, successor: Option<BlockPointer>) -> Option<u64> {
        let number = self.first + self.blocks.len().checked_sub(1)? as u64;
        let ended = self.ended;
        let last = self.blocks.back_mut().filter(|b| b.step == Step::Fresh)?;
        (last.last_record, last.issued) = (last_record, issued);
        last.step = if ended { Step::Failed } else { Step::Issued };
        match successor {
            Some(pointer) => self.push(pointer, issued),
            None => self.ended = true,
        }
        (!ended).then_some(number)
    }

    fn at(&mut self, number: u64) -> Option<&mut HeldBlock> {
        self.blocks.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// The write of a block is done.
    pub fn written(&mut self, number: u64) {
        if let Some(block) = self.at(number).filter(|b| b.step == Step::Issued) {
            block.step = Step::Written;
        }
    }

    /// A block, and with it all behind it, will not be found again: the chain has ended.
    pub fn fail(&mut self, number: u64) {
        self.ended = true;
        let from = number.saturating_sub(self.first) as usize;
        self.blocks.iter_mut().skip(from).filter(|b| b.in_flight()).for_each(|b| b.step = Step::Failed);
    }

    /// The blocks that are not yet stable.
    fn unstable(&self) -> vec_deque::Iter<'_, HeldBlock> {
        self.blocks.range(self.stable.min(self.blocks.len())..)
    }

    /// The number of the last block that is not yet stable and of which `is` holds.
    fn last(&self, is: impl Fn(&HeldBlock) -> bool) -> Option<u64> {
        self.unstable().rposition(is).map(|at| self.first + (self.stable + at) as u64)
    }

    /// One more than the number of the last block that a flush would make stable: all before it are written.
    pub fn written_up_to(&self) -> u64 {
        let written = self.unstable().take_while(|b| b.step == Step::Written).count();
        self.first + (self.stable + written) as u64
    }

    /// A flush is done that began when all blocks before `end` were written. Gives one more than the number of the last
    /// block that is stable: less than `end` if a block has failed meanwhile.
    pub fn flushed(&mut self, end: u64) -> u64 {
        let end = (end.saturating_sub(self.first) as usize).min(self.blocks.len());
        let flushed = self.blocks.range_mut(self.stable.min(end)..end);
        self.stable += flushed.take_while(|b| b.step == Step::Written).map(|b| b.step = Step::Stable).count();
        debug_assert!(self.stable <= self.blocks.len());
        self.first_unstable()
    }

    /// The number of the first block that is not stable.
    pub fn first_unstable(&self) -> u64 {
        self.first + self.stable as u64
    }

    /// The number of the last block that went to the device and is not yet stable.
    pub fn last_in_flight(&self) -> Option<u64> {
        self.last(HeldBlock::in_flight)
    }

    /// Blocks that are being written.
    pub fn being_written(&self) -> usize {
        self.unstable().filter(|b| b.step == Step::Issued).count()
    }

    /// The number of the last block in flight whose successor was allocated in `txg` or before: were it lost, and `txg`
    /// synced, nothing would lead to that successor any more.
    pub fn holds_back(&self, txg: Txg) -> Option<u64> {
        self.last(|b| b.in_flight() && b.issued <= txg)
    }

    /// The log goes away in `txg`: all `frees` are freed, and `keep` is the first block of the next chain.
    pub fn destroy(&mut self, txg: Txg, keep: Option<BlockPointer>, frees: Vec<BlockPointer>) {
        self.destroy = Some(Destroy { txg, keep, frees });
    }

    /// The record `seq` was replayed in `txg`.
    pub fn replayed(&mut self, txg: Txg, seq: u64) {
        self.replayed.insert(txg, seq);
    }

    /// What `txg` does to the log.
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
                self.settled = destroy.txg;
            }
        }
        let had_blocks = !self.blocks.is_empty();
        let over = self.blocks.iter().take_while(|b| b.is_over(txg, self.ended)).count();
        frees.extend(self.blocks.drain(..over).map(|b| b.pointer));
        self.first += over as u64;
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

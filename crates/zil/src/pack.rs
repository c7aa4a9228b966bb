//! Packing of records into log blocks, and the sizes of those blocks (OpenZFS `zil_lwb_assign`, `zil_lwb_plan`,
//! `zil_lwb_predict`).
//!
//! A record never crosses a block boundary; instead a write may become several records, each with a part of the data.
//! Each block is allocated one ahead, before its contents are known. Its size is predicted from the unplaced rest of
//! the current burst (the records that the writer took as one batch), or else from the last eight bursts.
//!
//! Invariants: no record is larger than the largest block can hold ([`MAX_RECORD_BYTES`]). A part carries a multiple of
//! eight bytes unless it is the last. Each iteration of a packing loop either places bytes or moves to a block with
//! space for some.

use weir_format::zil::{WriteBody, ZilChain};
use weir_machine::invariant;

/// Unit of log block sizes and of their written lengths, in bytes.
pub const MIN_BLOCK_BYTES: u64 = 4096;
/// Largest log block, in bytes.
pub const MAX_BLOCK_BYTES: u64 = 128 << 10;
/// Longest record that fits a block, in bytes.
pub const MAX_RECORD_BYTES: u64 = MAX_BLOCK_BYTES - ZilChain::SIZE as u64;
/// Maximum data of a write that fits one block, in bytes.
const MAX_DATA_BYTES: u64 = MAX_RECORD_BYTES - WriteBody::RECORD_BYTES as u64;
/// Maximum space left unused at the end of a block to avoid splitting a write into one more part, in bytes.
const MAX_WASTE_BYTES: u64 = MAX_DATA_BYTES / 16;
/// Number of past bursts from which the next is predicted.
const REMEMBERED_BURSTS: usize = 8;

/// Part of a record that fits a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// All of the rest.
    Whole,
    /// This many bytes of its data, a multiple of eight; the rest continues in the next block.
    Part(u64),
    /// Nothing: a new block is needed.
    Next,
}

/// Decides how much of a record of `record_bytes`, with `data_bytes` of data that may be split, fits into `free_bytes`.
pub fn fit(free_bytes: u64, record_bytes: u64, data_bytes: u64) -> Fit {
    let data = data_bytes.next_multiple_of(8);
    if record_bytes + data <= free_bytes {
        return Fit::Whole;
    }
    let last_part = data % MAX_DATA_BYTES;
    let wasteful = free_bytes < MAX_WASTE_BYTES && (last_part == 0 || free_bytes < record_bytes + last_part);
    if data == 0 || free_bytes < record_bytes + 8 || wasteful {
        return Fit::Next;
    }
    Fit::Part((free_bytes - record_bytes) & !7)
}

/// Block sizes for a burst: the best size, and the minimum for its first block. Both exclude the chain header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Plan {
    best: u64,
    least: u64,
}

/// Predictor of log block sizes.
#[derive(Clone, Debug)]
pub struct Sizes {
    past: [Plan; REMEMBERED_BURSTS],
    newest: usize,
    /// Bytes of the current burst that are not in a block yet.
    unplaced: u64,
    size: u64,
    max_record: u64,
}

impl Default for Sizes {
    fn default() -> Self {
        let past = [Plan { best: MAX_RECORD_BYTES, least: 0 }; REMEMBERED_BURSTS];
        Sizes { past, newest: 0, unplaced: 0, size: 0, max_record: 0 }
    }
}

impl Sizes {
    /// Adds a record to the current burst.
    pub fn expect(&mut self, record_bytes: u64, data_bytes: u64) {
        let bytes = record_bytes + data_bytes.next_multiple_of(8);
        self.unplaced += bytes;
        self.size += bytes;
        self.max_record = self.max_record.max(record_bytes);
    }

    /// Subtracts bytes of the burst that were placed, or no longer need to be.
    pub fn placed(&mut self, bytes: u64) {
        invariant!(self.unplaced >= bytes, "{bytes} bytes of a burst are placed, {} were left", self.unplaced);
        self.unplaced = self.unplaced.saturating_sub(bytes);
    }

    /// Ends the burst.
    pub fn done(&mut self) {
        if self.size > 0 {
            self.newest = (self.newest + 1) % REMEMBERED_BURSTS;
            self.past[self.newest] = plan(self.size, self.max_record);
        }
        self.unplaced = 0;
        self.size = 0;
        self.max_record = 0;
    }

    /// Minimum and best size, in bytes, of the block after the one being closed. Both are multiples of
    /// [`MIN_BLOCK_BYTES`] and include the chain header. A record that is not placed yet fits the minimum.
    pub fn next_block(&self) -> (u64, u64) {
        let Plan { best, least } =
            if self.unplaced > 0 { plan(self.unplaced, self.max_record) } else { self.predict() };
        let whole = |bytes: u64| (bytes + ZilChain::SIZE as u64).next_multiple_of(MIN_BLOCK_BYTES);
        let best = whole(best).min(MAX_BLOCK_BYTES);
        (whole(least).min(best), best)
    }

    /// Sizes sufficient for seven of the last eight bursts, or for all eight if the largest is less than twice the
    /// second largest.
    fn predict(&self) -> Plan {
        let mut first = 0;
        let mut second = 0;
        for past in self.past {
            if past.least >= first {
                (second, first) = (first, past.least);
            } else {
                second = second.max(past.least);
            }
        }
        let choose = |first: u64, second: u64| if first < second * 2 { first } else { second };
        let best = self.past.iter().map(|p| p.best).min().unwrap_or(0);
        Plan { least: choose(first, second), best: choose(first.max(best), second.max(best)) }
    }
}

/// Best distribution of a burst of `size` bytes, with a longest record of `max_record` bytes, over blocks.
fn plan(size: u64, max_record: u64) -> Plan {
    let waste = MAX_WASTE_BYTES.max(max_record + 8);
    if size <= MAX_RECORD_BYTES {
        return Plan { best: size, least: size };
    }
    let large = Plan { best: MAX_RECORD_BYTES, least: waste.min(MAX_RECORD_BYTES) };
    if size > 8 * MAX_RECORD_BYTES {
        return large;
    }
    // Divide a medium burst evenly. The first block may have to hold the bytes that do not fit the others because of
    // waste.
    let blocks = size.div_ceil(MAX_DATA_BYTES);
    let chunk = size.div_ceil(blocks);
    if chunk > MAX_RECORD_BYTES.saturating_sub(waste) {
        return large;
    }
    let others = (MAX_RECORD_BYTES - waste) * (blocks - 1);
    Plan { best: chunk, least: size.saturating_sub(others).max(waste) }
}

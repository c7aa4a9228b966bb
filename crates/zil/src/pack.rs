//! Which records go into which log block, and how large blocks are (OpenZFS `zil_lwb_assign`, `zil_lwb_plan`,
//! `zil_lwb_predict`).
//!
//! A record never crosses a block; a write may become several records instead, each with a part of the data. Blocks
//! are allocated one ahead, before it is known what will go into them: their size is guessed from what is left of the
//! present burst (what one turn of the writer took) or else from the last eight.
//!
//! Invariants: whatever fits no block is never asked for ([`MAX_RECORD_BYTES`]); a part carries a multiple of eight
//! bytes unless it is the last; each turn of a packing loop either places bytes or goes to a block with room for some.

use weir_format::zil::{WriteBody, ZilChain};

/// Log blocks are multiples of this, in size and in what is written of them.
pub const MIN_BLOCK_BYTES: u64 = 4096;
/// The largest log block.
pub const MAX_BLOCK_BYTES: u64 = 128 << 10;
/// The longest record that fits a block.
pub const MAX_RECORD_BYTES: u64 = MAX_BLOCK_BYTES - ZilChain::SIZE as u64;
/// Data of a write that fits a block of its own.
const MAX_DATA_BYTES: u64 = MAX_RECORD_BYTES - WriteBody::RECORD_BYTES as u64;
/// What may stay empty at the end of a block to save a write from being cut in one more part.
const MAX_WASTE_BYTES: u64 = MAX_DATA_BYTES / 16;
/// Bursts that are remembered.
const BURSTS: usize = 8;

/// How much of a record goes into a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// All that is left of it.
    Whole,
    /// This many bytes of its data, a multiple of eight; the rest goes on in the next block.
    Part(u64),
    /// Nothing: the next block is to be begun.
    Next,
}

/// How much of a record of `record_bytes`, with `data_bytes` of data that may be parted, goes into `room_bytes`.
pub fn fit(room_bytes: u64, record_bytes: u64, data_bytes: u64) -> Fit {
    let data = data_bytes.next_multiple_of(8);
    if record_bytes + data <= room_bytes {
        return Fit::Whole;
    }
    let last_part = data % MAX_DATA_BYTES;
    let wasteful = room_bytes < MAX_WASTE_BYTES && (last_part == 0 || room_bytes < record_bytes + last_part);
    if data == 0 || room_bytes < record_bytes + 8 || wasteful {
        return Fit::Next;
    }
    Fit::Part((room_bytes - record_bytes) & !7)
}

/// What a burst would want: the size of its blocks, and the least that its first one should have. Chains not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Plan {
    best: u64,
    least: u64,
}

/// The sizes of log blocks to come.
#[derive(Clone, Debug)]
pub struct Sizes {
    past: [Plan; BURSTS],
    turn: usize,
    /// Bytes of the present burst that have no block yet.
    left: u64,
    size: u64,
    longest: u64,
}

impl Default for Sizes {
    fn default() -> Self {
        let past = [Plan { best: MAX_RECORD_BYTES, least: 0 }; BURSTS];
        Sizes { past, turn: 0, left: 0, size: 0, longest: 0 }
    }
}

impl Sizes {
    /// A record joins the burst.
    pub fn expect(&mut self, record_bytes: u64, data_bytes: u64) {
        let bytes = record_bytes + data_bytes.next_multiple_of(8);
        self.left += bytes;
        self.size += bytes;
        self.longest = self.longest.max(record_bytes);
    }

    /// Bytes of the burst were placed, or need no place any more.
    pub fn placed(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub(bytes);
    }

    /// The burst is over.
    pub fn done(&mut self) {
        if self.size > 0 {
            self.turn = (self.turn + 1) % BURSTS;
            self.past[self.turn] = plan(self.size, self.longest);
        }
        (self.left, self.size, self.longest) = (0, 0, 0);
    }

    /// The least and the best size of the block after the one that is being closed: multiples of
    /// [`MIN_BLOCK_BYTES`], with a chain. A record that is still to be placed fits the least.
    pub fn next_block(&self) -> (u64, u64) {
        let Plan { best, least } = if self.left > 0 { plan(self.left, self.longest) } else { self.predict() };
        let whole = |bytes: u64| (bytes + ZilChain::SIZE as u64).next_multiple_of(MIN_BLOCK_BYTES);
        let best = whole(best).min(MAX_BLOCK_BYTES);
        (whole(least).min(best), best)
    }

    /// Enough for seven of the last eight bursts, unless the eighth is not even twice as large.
    fn predict(&self) -> Plan {
        let (mut first, mut second) = (0, 0);
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

/// How a burst of `size` bytes, its longest record `longest`, is best spread over blocks.
fn plan(size: u64, longest: u64) -> Plan {
    let waste = MAX_WASTE_BYTES.max(longest + 8);
    if size <= MAX_RECORD_BYTES {
        return Plan { best: size, least: size };
    }
    let large = Plan { best: MAX_RECORD_BYTES, least: waste.min(MAX_RECORD_BYTES) };
    if size > 8 * MAX_RECORD_BYTES {
        return large;
    }
    // A medium burst is divided evenly. The first block may have to take what the others waste.
    let blocks = size.div_ceil(MAX_DATA_BYTES);
    let chunk = size.div_ceil(blocks);
    if chunk > MAX_RECORD_BYTES.saturating_sub(waste) {
        return large;
    }
    let others = (MAX_RECORD_BYTES - waste) * (blocks - 1);
    Plan { best: chunk, least: size.saturating_sub(others).max(waste) }
}

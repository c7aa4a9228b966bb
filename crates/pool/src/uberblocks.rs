//! Chooses the uberblock: the root of the pool's state.
//!
//! A sync writes the new uberblock to a slot of the ring in some of the pool's labels, after all blocks below it.
//! So the valid uberblock of the highest rank (txg, then time, then MMP sequence) on any device is the pool's last
//! consistent state. Those of lower rank are older states, which a rewind tries one after the other.

use crate::assemble::FoundPool;
use weir_format::{DecodeError, Txg, Uberblock};

/// Returns the distinct valid uberblocks of a pool's own devices, best first.
pub fn ranked(pool: &FoundPool, at_most: Option<Txg>) -> Vec<Uberblock> {
    let all = pool.leaves().flat_map(|d| &d.labels.ring).map(|s| &s.uberblock);
    let mut all: Vec<_> = all.filter(|u| at_most.is_none_or(|t| u.txg <= t)).cloned().collect();
    all.sort_by(|a, b| b.rank().cmp(&a.rank()).then_with(|| b.root.words().cmp(a.root.words())));
    all.dedup_by(|a, b| a.rank() == b.rank() && a.root == b.root);
    all
}

/// The uberblock of a checkpoint, whose words are in the MOS directory in native byte order.
pub fn of_checkpoint(words: &[u64]) -> Result<Uberblock, DecodeError> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.resize(bytes.len().max(Uberblock::SIZE), 0);
    Uberblock::decode(&bytes)
}

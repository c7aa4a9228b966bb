//! Choosing the uberblock: the root of everything.
//!
//! A sync writes the new uberblock to a slot of the ring in some of the pool's labels, after everything that it leads
//! to. So the proven uberblock of the highest rank (txg, then time, then MMP sequence) on any device is the pool's last
//! consistent state, and those below it are older ones, which a rewind tries in turn.

use crate::assemble::FoundPool;
use weir_format::{Txg, Uberblock};

/// The distinct proven uberblocks of a pool's own devices, best first.
pub fn ranked(pool: &FoundPool, at_most: Option<Txg>) -> Vec<Uberblock> {
    let all = pool.leaves().flat_map(|d| &d.labels.ring).map(|s| &s.uberblock);
    let mut all: Vec<_> = all.filter(|u| at_most.is_none_or(|t| u.txg <= t)).cloned().collect();
    all.sort_by(|a, b| b.rank().cmp(&a.rank()).then_with(|| b.root.words().cmp(a.root.words())));
    all.dedup_by(|a, b| a.rank() == b.rank() && a.root == b.root);
    all
}

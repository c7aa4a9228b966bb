//! Which numbers new objects get.
//!
//! Dnode blocks are looked into one after the other, from the last one of the set on; their free slots are handed out in
//! order, so objects made together lie together. Numbers of removed objects come back once their removal is synced: a
//! number never means two objects within one txg.

use std::collections::BTreeSet;
use weir_format::ObjectId;

/// Free numbers that are known, and where to look for more.
#[derive(Debug)]
pub(crate) struct ObjectAllocator {
    free: BTreeSet<u64>,
    next_block: u64,
}

impl ObjectAllocator {
    /// Numbers of a set whose last dnode block is `block`.
    pub fn new(block: u64) -> Self {
        ObjectAllocator { free: BTreeSet::new(), next_block: block }
    }

    /// A free number with `slots` free slots from it on, within one block of `per_block`.
    pub fn take(&mut self, slots: u64, per_block: u64) -> Option<ObjectId> {
        let fits =
            |n: &&u64| **n % per_block + slots <= per_block && (1..slots).all(|i| self.free.contains(&(**n + i)));
        let first = *self.free.iter().find(fits)?;
        for n in first..first + slots {
            self.free.remove(&n);
        }
        Some(ObjectId(first))
    }

    /// The block to look into next.
    pub fn next_block(&self) -> u64 {
        self.next_block
    }

    /// The free numbers of `block`, which was the next one to look into.
    pub fn refill(&mut self, block: u64, free: impl Iterator<Item = u64>) {
        if block == self.next_block {
            self.next_block += 1;
            self.free.extend(free.filter(|n| *n != 0));
        }
    }

    /// `slots` numbers from `id` on are in use.
    pub fn claim(&mut self, id: ObjectId, slots: u64) {
        for n in id.0..id.0.saturating_add(slots) {
            self.free.remove(&n);
        }
    }

    /// `slots` numbers from `id` on are free again.
    pub fn give_back(&mut self, id: ObjectId, slots: u64, per_block: u64) {
        // Blocks not looked into yet will tell by themselves.
        if id.0 / per_block < self.next_block {
            self.free.extend(id.0..id.0 + slots);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_order_and_large_ones_within_a_block() {
        let mut n = ObjectAllocator::new(0);
        assert_eq!(n.take(1, 32), None);
        n.refill(0, 0..32);
        n.refill(0, 0..32);
        assert_eq!(n.take(1, 32), Some(ObjectId(1)));
        n.claim(ObjectId(3), 1);
        assert_eq!(n.take(2, 32), Some(ObjectId(4)));
        assert_eq!(n.take(1, 32), Some(ObjectId(2)));
        n.refill(1, 32..64);
        assert_eq!(n.take(30, 32), Some(ObjectId(32)));
        n.give_back(ObjectId(3), 1, 32);
        assert_eq!(n.take(1, 32), Some(ObjectId(3)));
        assert_eq!(n.next_block(), 2);
    }
}

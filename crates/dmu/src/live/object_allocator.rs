//! Allocates object numbers.
//!
//! The allocator reads one block of dnodes after the other, from the last one of the object set on, and hands out its
//! free slots in order, so objects that are created together are adjacent. Numbers of removed objects are reused after
//! their removal has synced: a number never means two objects within one txg.

use std::collections::BTreeSet;
use weir_format::ObjectId;

/// Known free numbers, and the next block to read.
#[derive(Debug)]
pub(crate) struct ObjectAllocator {
    free: BTreeSet<u64>,
    next_block: u64,
}

impl ObjectAllocator {
    /// Allocator for an object set whose last block of dnodes is `block`.
    pub fn new(block: u64) -> Self {
        ObjectAllocator { free: BTreeSet::new(), next_block: block }
    }

    /// Takes a number with `slots` free slots from it on, within one block of `per_block` slots.
    pub fn take(&mut self, slots: u64, per_block: u64) -> Option<ObjectId> {
        let fits =
            |n: &&u64| **n % per_block + slots <= per_block && (1..slots).all(|i| self.free.contains(&(**n + i)));
        let first = *self.free.iter().find(fits)?;
        for n in first..first + slots {
            self.free.remove(&n);
        }
        Some(ObjectId(first))
    }

    /// Next block to read.
    pub fn next_block(&self) -> u64 {
        self.next_block
    }

    /// Adds the free numbers of `block`, the next one to read.
    pub fn refill(&mut self, block: u64, free: impl Iterator<Item = u64>) {
        if block == self.next_block {
            self.next_block += 1;
            self.free.extend(free.filter(|n| *n != 0));
        }
    }

    /// Marks `slots` numbers from `id` on as in use.
    pub fn mark_used(&mut self, id: ObjectId, slots: u64) {
        for n in id.0..id.0.saturating_add(slots) {
            self.free.remove(&n);
        }
    }

    /// Marks `slots` numbers from `id` on as free.
    pub fn free(&mut self, id: ObjectId, slots: u64, per_block: u64) {
        // Blocks that were not read yet are skipped; their free slots are found when they are read.
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
        n.mark_used(ObjectId(3), 1);
        assert_eq!(n.take(2, 32), Some(ObjectId(4)));
        assert_eq!(n.take(1, 32), Some(ObjectId(2)));
        n.refill(1, 32..64);
        assert_eq!(n.take(30, 32), Some(ObjectId(32)));
        n.free(ObjectId(3), 1, 32);
        assert_eq!(n.take(1, 32), Some(ObjectId(3)));
        assert_eq!(n.next_block(), 2);
    }
}

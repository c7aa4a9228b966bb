//! Pointers that a walk has found and not visited yet.

use super::Item;
use std::collections::BTreeMap;
use weir_machine::invariant;

/// Pointers that are not visited yet, by root, by the first position below them, and by the order in which they were found.
#[derive(Default)]
pub(super) struct Waiting {
    items: BTreeMap<(usize, (u64, u64), u64), Item>,
    pushed: u64,
}

impl Waiting {
    pub(super) fn push(&mut self, item: Item) {
        self.pushed += 1;
        let former = self.items.insert((item.way.root, item.way.start, self.pushed), item);
        invariant!(former.is_none(), "two pointers wait at one place");
    }

    /// The pointer with the lowest position.
    pub(super) fn lowest(&self) -> Option<&Item> {
        self.items.first_key_value().map(|(_, item)| item)
    }

    /// All, in order.
    pub(super) fn all(&self) -> impl Iterator<Item = &Item> {
        self.items.values()
    }

    /// Takes the pointer with the lowest position.
    pub(super) fn pop(&mut self) -> Option<Item> {
        self.items.pop_first().map(|(_, item)| item)
    }
}

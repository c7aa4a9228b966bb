//! Which datasets were created, destroyed or renamed, or share something else, since a front end last asked: it renews
//! these and no others.

use std::collections::BTreeSet;
use weir_machine::lock::{Mutex, order};

/// Number of names from which on it is cheaper to renew everything.
const MAX_NAMES: usize = 1024;

/// Datasets whose lists of snapshots, children or keys have changed, or properties that front ends follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// Any of them.
    All,
    /// These file systems and volumes, their snapshots and descendants. Some may no longer exist.
    Below(BTreeSet<String>),
}

impl Default for Changed {
    fn default() -> Self {
        Changed::Below(BTreeSet::new())
    }
}

/// The changes that no front end has taken yet.
#[derive(Default)]
pub struct ChangedDatasets(Mutex<Changed, { order::CHANGED_DATASETS }>);

impl ChangedDatasets {
    /// Notes a change of a dataset; for a snapshot or bookmark, of the dataset that it belongs to.
    pub fn note(&self, name: &str) {
        let of = name.split(['@', '#']).next().unwrap_or(name);
        let mut changed = self.0.lock();
        if let Changed::Below(names) = &mut *changed {
            names.insert(of.to_owned());
            if names.len() > MAX_NAMES {
                *changed = Changed::All;
            }
        }
    }

    /// Notes that any dataset may have changed.
    pub fn note_all(&self) {
        *self.0.lock() = Changed::All;
    }

    /// Takes the changes noted so far.
    pub fn take(&self) -> Changed {
        std::mem::take(&mut *self.0.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_taken_once_and_bounded() {
        let changed = ChangedDatasets::default();
        assert_eq!(changed.take(), Changed::default());
        for name in ["p/a@s", "p/a#b", "p/b", "p/a"] {
            changed.note(name);
        }
        assert_eq!(changed.take(), Changed::Below(BTreeSet::from(["p/a".to_owned(), "p/b".to_owned()])));
        assert_eq!(changed.take(), Changed::default());
        for n in 0..=MAX_NAMES {
            changed.note(&format!("p/{n}"));
        }
        changed.note("p/later");
        assert_eq!((changed.take(), changed.take()), (Changed::All, Changed::default()));
    }
}

//! The exports of a tree: which file systems and snapshots exist, and where.
//!
//! Changes replace the exports below the changed datasets only, so that their cost depends on the number of these, not on
//! the number of all exports.

use super::shadow::ShadowNames;
use super::source::Created;
use super::synthetic_entries::Entries;
use super::{Export, Opened};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use weir_machine::lock::{Mutex, order};

/// A file system or snapshot with its position in the tree.
#[derive(Clone)]
pub(super) struct MountedDataset {
    pub export: Export,
    pub parent: Option<u32>,
    pub is_snapshot: bool,
    pub children: Entries,
    pub snapshots: Entries,
    /// Time of the last creation or destruction of a snapshot, in nanoseconds since 1970; initially the time the tree
    /// was created.
    pub snapshots_changed_ns: i128,
    /// The opened file system, kept over renames.
    pub opened: Arc<Mutex<Option<Opened>, { order::OPENED_FILES }>>,
    /// Whether it was accessed since [`super::opened::OpenedBranches`] last looked.
    pub accessed: Arc<AtomicBool>,
    /// Time of creation of a snapshot in seconds since 1970, when it was first asked for.
    pub created: Arc<OnceLock<Created>>,
    /// Second names of the snapshots, and the snapshots that they are of.
    pub shadow: Arc<Mutex<Option<Arc<ShadowNames>>>>,
}

/// The exports of a tree.
#[derive(Clone, Default)]
pub(super) struct Namespace {
    /// Exports by index; `None` for removed ones.
    branches: Vec<Option<Arc<MountedDataset>>>,
    by_id: BTreeMap<u64, u32>,
    by_name: BTreeMap<String, u32>,
}

/// Which exports to replace.
#[derive(Clone, Copy, Debug)]
pub(super) enum Extent<'a> {
    /// All: the first new export is the root.
    All,
    /// These file systems with their snapshots and descendants.
    Below(&'a [String]),
}

/// Effect of a replacement.
#[derive(Debug, Default)]
pub(super) struct Replaced {
    /// Indices of the exports that were put in place.
    pub placed: Vec<u32>,
    /// Whether any export was added, removed or renamed.
    pub changed: bool,
}

impl Namespace {
    /// The export of an index, unless it was removed.
    pub fn branch(&self, index: u32) -> Option<&Arc<MountedDataset>> {
        self.branches.get(index as usize).and_then(Option::as_ref)
    }

    /// The index of the export with this ID.
    pub fn index_of(&self, id: u64) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    /// All exports, in the order of their index.
    pub fn exports(&self) -> impl Iterator<Item = &Export> {
        self.branches.iter().flatten().map(|branch| &branch.export)
    }

    /// Replaces the exports in `extent` by `exports`, which lie there too. An export whose parent is missing is skipped.
    pub fn replace(&mut self, extent: Extent<'_>, mut exports: Vec<Export>, now_ns: i128) -> Replaced {
        let first = match extent {
            Extent::All => usize::from(!exports.is_empty()),
            Extent::Below(_) => 0,
        };
        if let Some(rest) = exports.get_mut(first..) {
            // Parents before children: `a` < `a/b`, and a snapshot after its file system.
            rest.sort_by(|a, b| a.name.cmp(&b.name));
        }
        let mut out = Replaced::default();
        let mut before = self.detach(match extent {
            Extent::All => self.by_name.values().copied().collect(),
            Extent::Below(tops) => tops.iter().flat_map(|top| self.below(top)).collect(),
        });
        for (place, export) in exports.into_iter().enumerate() {
            // An export that was renamed from outside the extent.
            if let Some(index) = self.index_of(export.id).filter(|index| self.branch(*index).is_some()) {
                before.extend(self.detach(BTreeSet::from([index])));
            }
            out.placed.extend(self.attach(&before, export, place < first, now_ns));
        }
        for index in &out.placed {
            let same = |old: &Arc<MountedDataset>| self.branch(*index).is_some_and(|new| new.export == old.export);
            out.changed |= !before.get(index).is_some_and(same);
        }
        let removed: Vec<u64> = before
            .iter()
            .filter(|(index, _)| self.branch(**index).is_none())
            .map(|(_, branch)| branch.export.id)
            .collect();
        out.changed |= !removed.is_empty();
        for id in removed {
            self.by_id.remove(&id);
        }
        self.keep_times(&before, &out.placed);
        debug_assert_eq!(self.by_id.len(), self.by_name.len(), "each export has one ID and one name");
        out
    }

    /// Takes exports out of the tree; their IDs keep their indices.
    fn detach(&mut self, indices: BTreeSet<u32>) -> BTreeMap<u32, Arc<MountedDataset>> {
        let mut out = BTreeMap::new();
        for index in indices {
            let Some(branch) = self.branches.get_mut(index as usize).and_then(Option::take) else { continue };
            self.by_name.remove(&branch.export.name);
            out.insert(index, branch);
        }
        // Those whose parents were taken out as well stay in their parents' lists, which are compared later.
        for branch in out.values() {
            let (_, leaf, _) = split(&branch.export.name);
            if let Some(parent) = branch.parent.and_then(|parent| self.branch_mut(parent)) {
                match branch.is_snapshot {
                    true => parent.snapshots.remove(leaf, branch.export.id),
                    false => parent.children.remove(leaf, branch.export.id),
                }
            }
        }
        out
    }

    /// An export to be changed. It is copied if a reader holds the tree as it was.
    fn branch_mut(&mut self, index: u32) -> Option<&mut MountedDataset> {
        self.branches.get_mut(index as usize).and_then(Option::as_mut).map(Arc::make_mut)
    }

    /// The indices of a file system, its snapshots and its descendants.
    fn below(&self, top: &str) -> Vec<u32> {
        // `0` follows `/`, and `A` follows `@`.
        let between = |from: char, to: char| {
            let from = format!("{top}{from}");
            let to = format!("{top}{to}");
            self.by_name.range((Bound::Included(from), Bound::Excluded(to))).map(|(_, index)| *index)
        };
        let own = self.by_name.get(top).copied();
        own.into_iter().chain(between('/', '0')).chain(between('@', 'A')).collect()
    }

    /// Puts an export in its place; returns its index.
    fn attach(
        &mut self,
        before: &BTreeMap<u32, Arc<MountedDataset>>,
        export: Export,
        is_root: bool,
        now_ns: i128,
    ) -> Option<u32> {
        let (parent, leaf, is_snapshot) = split(&export.name);
        let parent = parent.and_then(|name| self.by_name.get(name)).copied();
        if parent.is_none() && !is_root && !self.was_root(before, &export) {
            return None;
        }
        let known = self.index_of(export.id);
        let index = known.unwrap_or(self.branches.len() as u32);
        if let Some(parent) = parent.and_then(|parent| self.branch_mut(parent)) {
            match is_snapshot {
                true => parent.snapshots.insert(leaf, export.id, index),
                false => parent.children.insert(leaf, export.id, index),
            }
        }
        if known.is_none() {
            self.branches.push(None);
        }
        self.by_id.insert(export.id, index);
        self.by_name.insert(export.name.clone(), index);
        let branch = MountedDataset {
            parent,
            is_snapshot,
            children: Entries::default(),
            snapshots: Entries::default(),
            snapshots_changed_ns: now_ns,
            opened: before.get(&index).map(|branch| branch.opened.clone()).unwrap_or_default(),
            accessed: before.get(&index).map(|branch| branch.accessed.clone()).unwrap_or_default(),
            created: before.get(&index).map(|branch| branch.created.clone()).unwrap_or_default(),
            shadow: Arc::default(),
            export,
        };
        let slot = self.branches.get_mut(index as usize)?;
        debug_assert!(slot.is_none(), "two exports have one ID");
        *slot = Some(Arc::new(branch));
        Some(index)
    }

    /// Whether an export was the root before, so that it needs no parent.
    fn was_root(&self, before: &BTreeMap<u32, Arc<MountedDataset>>, export: &Export) -> bool {
        let old = self.index_of(export.id).and_then(|index| before.get(&index));
        old.is_some_and(|old| old.parent.is_none() && old.export == *export)
    }

    /// Keeps the times of file systems whose snapshots are the same as before.
    fn keep_times(&mut self, before: &BTreeMap<u32, Arc<MountedDataset>>, placed: &[u32]) {
        for index in placed {
            let Some(old) = before.get(index) else { continue };
            if let Some(new) = self.branch_mut(*index)
                && new.snapshots.by_name == old.snapshots.by_name
            {
                new.snapshots_changed_ns = old.snapshots_changed_ns;
            }
        }
    }
}

/// Splits a name into parent, last component and whether it is a snapshot: `pool/a@s` is (`pool/a`, `s`, true).
fn split(name: &str) -> (Option<&str>, &[u8], bool) {
    if let Some((parent, leaf)) = name.split_once('@') {
        return (Some(parent), leaf.as_bytes(), true);
    }
    match name.rsplit_once('/') {
        Some((parent, leaf)) => (Some(parent), leaf.as_bytes(), false),
        None => (None, name.as_bytes(), false),
    }
}

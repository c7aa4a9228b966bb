//! Taking leaves out of service and putting them back, while the tree is in use.

use super::deadline::{Deadlines, LongestOperation};
use super::leaf::Leaf;
use super::{Body, Tree, Vdev};
use std::sync::Arc;
use weir_machine::{Disk, DiskError, Op};

/// A leaf whose operations take long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverdueLeaf {
    /// GUID of the leaf.
    pub guid: u64,
    /// Name of the leaf.
    pub name: String,
    /// Number of its operations that have become slow since the last check.
    pub newly_slow: u64,
    /// Longest operation in progress, if the device hangs.
    pub hang: Option<LongestOperation>,
    /// Whether all blocks can be read, and new ones written, without this leaf.
    pub is_dispensable: bool,
}

/// Error of putting a leaf back into service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutBackError {
    /// The pool has no such leaf, or the leaf has no disk.
    NoDisk,
    /// This number of operations from before are still in progress; a late write could overwrite newer blocks.
    InProgress(u64),
}

impl Tree {
    /// Counts slow operations, and returns the leaves that have new ones or that hang.
    pub fn check_deadlines(&self, deadlines: &Deadlines) -> Vec<OverdueLeaf> {
        let mut overdue = Vec::new();
        for top in self.tops() {
            top.vdev.each_leaf(&mut |vdev, leaf| {
                let Some(watched) = leaf.watched().filter(|watched| watched.is_in_service()) else { return };
                let (newly_slow, longest) = watched.check(deadlines.slow);
                let hang = longest.filter(|longest| longest.age >= deadlines.hang);
                if newly_slow > 0 || hang.is_some() {
                    let is_dispensable = top.vdev.has_all_without(vdev.guid);
                    let (guid, name) = (vdev.guid, vdev.name.clone());
                    overdue.push(OverdueLeaf { guid, name, newly_slow, hang, is_dispensable });
                }
            });
        }
        overdue
    }

    /// Takes the leaf `guid` out of service: its operations in progress fail now, and it is neither read nor written until
    /// [`Tree::put_back`]. Blocks that it may have dropped are in its DTL. Returns whether there is such a leaf in service.
    pub fn take_out(&self, guid: u64) -> bool {
        let Some((vdev, leaf)) = self.leaf(guid) else { return false };
        let Some(watched) = leaf.watched().filter(|watched| watched.is_in_service()) else { return false };
        watched.take_out();
        debug_assert!(!leaf.present(), "{} is still in service", vdev.name);
        let error = DiskError::Refused { op: Op::Flush, why: "the device is out of service" };
        leaf.writes().flusher.give_up(error, leaf.lost(vdev.guid));
        true
    }

    /// Puts the leaf `guid` back into service. Its DTL stays until a scrub has repaired it.
    ///
    /// # Errors
    /// [`PutBackError`].
    pub fn put_back(&self, guid: u64) -> Result<(), PutBackError> {
        let (_, leaf) = self.leaf(guid).ok_or(PutBackError::NoDisk)?;
        let watched = leaf.watched().ok_or(PutBackError::NoDisk)?;
        if watched.is_in_service() {
            return Ok(());
        }
        leaf.writes().flusher.restart();
        watched.put_back().map_err(PutBackError::InProgress)
    }

    /// Sets the error counters of the leaf `guid` to zero, and that of its slow operations.
    pub fn clear_counts(&self, guid: u64) {
        if let Some((_, leaf)) = self.leaf(guid) {
            leaf.clear_counts();
        }
    }

    /// The disk of the leaf `guid`, in service or not. Operations on it fail while it is out of service.
    pub fn disk(&self, guid: u64) -> Option<Arc<dyn Disk>> {
        let watched = self.leaf(guid)?.1.watched()?;
        Some(watched.clone())
    }

    /// Whether the leaf `guid` has a disk in service.
    pub fn is_in_service(&self, guid: u64) -> bool {
        self.leaf(guid).is_some_and(|(_, leaf)| leaf.present())
    }

    pub(super) fn leaf(&self, guid: u64) -> Option<(&Vdev, &Leaf)> {
        let vdev = self.tops().find_map(|top| top.vdev.find_leaf(guid))?;
        match &vdev.body {
            Body::Leaf(leaf) => Some((vdev, leaf)),
            _ => None,
        }
    }
}

impl Vdev {
    fn each_leaf(&self, visit: &mut dyn FnMut(&Vdev, &Leaf)) {
        match &self.body {
            Body::Leaf(leaf) => visit(self, leaf),
            _ => self.children().iter().for_each(|child| child.each_leaf(visit)),
        }
    }

    /// Whether all blocks can be read, and new ones written, without the leaf `guid` (`vdev_dtl_required`).
    fn has_all_without(&self, guid: u64) -> bool {
        let lacking = |children: &[Vdev]| children.iter().filter(|child| !child.has_all_without(guid)).count() as u64;
        match &self.body {
            Body::Leaf(leaf) => self.guid != guid && leaf.present() && leaf.has_everything(),
            Body::Mirror(children) => lacking(children) < children.len() as u64,
            Body::Raidz(vdev) => lacking(&vdev.children) <= vdev.nparity,
            Body::Draid { map, children } => lacking(children) <= map.layout().nparity,
            Body::Indirect(_) => true,
            Body::DraidSpare { .. } | Body::Unsupported(_) => false,
        }
    }
}

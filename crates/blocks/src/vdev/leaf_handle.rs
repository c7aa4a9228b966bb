//! Operations on one leaf of a tree that is in use: its service state, DTL, labels and counters.

use super::canary::DeviceBug;
use super::deadline::LongestOperation;
use super::dtl::LeafDtl;
use super::leaf::Leaf;
use super::{Dtl, Tree};
use std::fmt;
use std::sync::Arc;
use weir_format::Txg;
use weir_machine::{Disk, DiskError, Op, invariant};

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
    /// The leaf has no disk.
    NoDisk,
    /// This number of operations from before are still in progress; a late write could overwrite newer blocks.
    InProgress(u64),
}

/// A leaf of a tree ([`Tree::leaf`]). It stays valid when the tree is replaced.
pub struct LeafHandle<'a> {
    pub(super) tree: &'a Tree,
    pub(super) leaf: Arc<Leaf>,
}

impl fmt::Debug for LeafHandle<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeafHandle({})", self.leaf.name)
    }
}

impl<'a> LeafHandle<'a> {
    pub(super) fn new(tree: &'a Tree, leaf: Arc<Leaf>) -> Self {
        LeafHandle { tree, leaf }
    }

    /// Name of the leaf.
    pub fn name(&self) -> &str {
        &self.leaf.name
    }

    /// The disk of the leaf, in service or not; `None` if the device is missing or lost. Operations on it fail while it is
    /// out of service.
    pub fn disk(&self) -> Option<Arc<dyn Disk>> {
        let watched = self.leaf.watched().filter(|watched| !watched.is_lost());
        watched.map(|watched| watched.clone() as Arc<dyn Disk>)
    }

    /// Gives a leaf whose device was missing or lost its disk. From here on it is written to; its DTL has what it lacks.
    /// False, without a change, if the leaf has a disk, or operations of the former one are still in progress.
    pub fn set_disk(&self, disk: Arc<dyn Disk>) -> bool {
        let Some(lost) = self.leaf.watched().filter(|watched| watched.is_lost()) else {
            return self.leaf.set_disk(disk, false, &self.tree.clock);
        };
        self.leaf.writes().flusher.restart();
        lost.replace(disk).is_ok()
    }

    /// Takes the leaf out of service as missing, because its path leads to no device or to one with other labels.
    /// [`LeafHandle::set_disk`] puts it back. Returns whether it was in service.
    pub fn lose(&self) -> bool {
        let Some(watched) = self.leaf.watched().filter(|watched| watched.is_in_service()) else { return false };
        watched.lose();
        self.gave_up();
        true
    }

    /// Records whether the path of the leaf leads to its device, which is in service through its open file. Returns whether that is
    /// new.
    pub fn set_gone(&self, is_gone: bool) -> bool {
        self.leaf.watched().is_some_and(|watched| watched.set_gone(is_gone))
    }

    /// Records what a device that was taken out of service may have dropped.
    fn gave_up(&self) {
        invariant!(!self.leaf.present(), "{} is still in service", self.leaf.name);
        let error = DiskError::Refused { op: Op::Flush, why: "the device is out of service" };
        self.leaf.writes().flusher.give_up(error, self.leaf.lost());
    }

    /// Whether the leaf has a disk in service.
    pub fn is_in_service(&self) -> bool {
        self.leaf.present()
    }

    /// Takes the leaf out of service: its operations in progress fail now, and it is neither read nor written until
    /// [`LeafHandle::put_back`]. Blocks that it may have dropped are in its DTL. Returns whether it was in service.
    pub fn take_out(&self) -> bool {
        let Some(watched) = self.leaf.watched().filter(|watched| watched.is_in_service()) else { return false };
        watched.take_out();
        self.gave_up();
        true
    }

    /// Puts the leaf back into service. Its DTL stays until a scrub has repaired it.
    ///
    /// # Errors
    /// [`PutBackError`].
    pub fn put_back(&self) -> Result<(), PutBackError> {
        let watched = self.leaf.watched().filter(|watched| !watched.is_lost()).ok_or(PutBackError::NoDisk)?;
        if watched.is_in_service() {
            return Ok(());
        }
        self.leaf.writes().flusher.restart();
        if self.leaf.writes().canary.has(DeviceBug::ForgetsDtl) {
            *self.leaf.writes().dtl() = LeafDtl::default();
        }
        watched.put_back().map_err(PutBackError::InProgress)
    }

    /// Sets the error counters to zero, and that of slow operations.
    pub fn clear_counts(&self) {
        self.leaf.clear_counts();
    }

    /// The txgs whose writes the leaf lacks.
    pub fn dtl(&self) -> Dtl {
        self.leaf.writes().dtl().missing()
    }

    /// Adds `txg` to the DTL. Returns whether it is new.
    pub fn dirty_dtl(&self, txg: Txg) -> bool {
        let mut dtl = self.leaf.writes().dtl();
        let is_new = !dtl.contains(txg);
        dtl.dirty(txg, txg, false);
        is_new
    }

    /// Adds the txgs from `first` to `last` to the DTL.
    pub fn dirty_dtl_range(&self, first: Txg, last: Txg) {
        self.leaf.writes().dtl().dirty(first, last, false);
    }

    /// Excises the DTL after a scrub that verified or repaired all blocks of the leaf born up to `scrubbed`, and returns
    /// the rest. `None`, without a change, if the leaf is missing, its DTL has later txgs, or it failed a flush: reading the
    /// bytes afterwards does not prove that the device has stored them.
    pub fn excise_dtl(&self, scrubbed: Txg) -> Option<Dtl> {
        if !self.leaf.present() || self.leaf.writes().flusher.has_failed() {
            return None;
        }
        self.leaf.writes().dtl().excise(scrubbed)
    }

    /// Flushes labels that were written to the disk without this tree. No other flush of the disk is in progress
    /// meanwhile, and a failure affects all blocks that the disk may have dropped. Works also when the tree is not writable.
    ///
    /// # Errors
    /// The disk's error; [`DiskError::Refused`] if it has no disk in service.
    pub async fn flush_labels(&self) -> Result<(), DiskError> {
        let absent = DiskError::Refused { op: Op::Flush, why: "the device is not in service" };
        let disk = self.leaf.disk().ok_or(absent)?;
        self.leaf.writes().flusher.flush_labels(disk, self.leaf.lost()).await
    }

    /// Counts the write of a label or an uberblock, which does not pass through the leaf's queue.
    pub fn count_label(&self, bytes: u64) {
        self.leaf.writes().count(bytes);
    }
}

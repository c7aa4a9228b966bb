//! Virtual devices: the tree from top-level vdevs down to disks.
//!
//! A block's address names a top-level vdev by its index in the pool and a byte offset in its allocatable space. Each
//! kind of vdev maps such a range to ranges of its children:
//!
//! ```text
//!  mirror, replacing, spare   the same range on any one child
//!  raidz, draid               sectors spread over the children, with parity to reconstruct missing or wrong ones
//!  distributed spare          the same offset on the child of its dRAID vdev that has its space there
//!  indirect                   pieces of other top-level vdevs, by the mapping that device removal wrote
//!  leaf                       the same offset, after the front labels and the boot area (4 MiB), on its disk
//! ```
//!
//! A read carries the verification of its bytes ([`Verify`]), so each vdev can try all of its redundancy. A read below
//! RAID-Z carries none, because the checksum covers the whole block.
//!
//! A leaf without a disk is *missing*. The [`Dtl`] of a leaf holds the txgs whose writes it lacks; the leaf is read last
//! for blocks born in them, and is no redundancy for those.

mod build;
mod canary;
mod copy;
pub(crate) mod counters;
mod deadline;
mod distributed_spare;
mod dtl;
mod flush;
pub mod histogram;
mod indirect;
mod kept;
mod kind;
mod leaf;
mod leaf_handle;
mod leaf_part;
mod leaf_write;
mod leaf_writes;
mod mapping;
mod mirror;
pub mod queue;
mod raidz;
mod rebuild;
mod reflow;
mod reflow_copy;
mod resilver;
mod single_leaf;
mod spec;
mod tree;
mod write;

#[cfg(feature = "canary")]
pub use canary::DeviceBug;
pub(crate) use copy::{CopiedRange, copy};
pub use counters::{Counters, Counts};
pub use deadline::{Deadlines, LongestOperation};
pub use dtl::Dtl;
pub(crate) use indirect::Remapped;
pub use kind::VdevKind;
pub use leaf_handle::{LeafHandle, OverdueLeaf, PutBackError};
pub(crate) use leaf_write::WritePlug;
pub(crate) use mapping::{Mapping, Piece};
pub use rebuild::RebuildInProgress;
pub(crate) use rebuild::{RebuiltVdev, UNKNOWN_BIRTH};
pub(crate) use reflow::Layouts;
pub(crate) use reflow_copy::{CopyJobs, ReflowCopy};
pub use resilver::Resilvering;
pub use spec::{DistributedSpare, Expansion, Reflow, TreeError, VdevSpec};
pub use tree::{Replaced, Tree};
pub(crate) use write::{FailedLeaves, Recipients, WriteJob};

use crate::alloc::{AllocStatus, RaidzSizing};
use crate::draid;
use crate::error::BlockError;
use crate::fault_observer::{BlockContext, FaultKind};
use crate::raidz::Map;
use crate::reads::ReadHold;
use distributed_spare::SpareVdev;
use futures_util::future::BoxFuture;
use indirect::Indirect;
use leaf::Leaf;
use reflow::ReflowState;
use std::sync::Arc;
use weir_codec::CodecError;
use weir_format::Txg;
use weir_machine::{Buf, BufPool, Clock, Priority, Request};

/// Maximum length of a read in bytes: the largest block of the format.
pub const MAX_BLOCK_BYTES: u64 = 16 << 20;

/// Number of queued reads up to which a sequential read prefers the side of a mirror that the previous read used. Large
/// enough that reads are merged, small enough that a stream uses all sides.
const SEQUENTIAL_BONUS_READS: usize = 8;

/// Verification that the bytes of a read must pass.
pub(crate) type Verify<'a> = &'a (dyn Fn(&[u8]) -> Result<(), CodecError> + Sync);

/// Tells whether the block of a pointer is still at its address.
pub(crate) trait PointerFreshness: Sync {
    /// Status of the space at `place` for a pointer to a block of `psize_bytes`, born in `birth`.
    fn alloc_status(&self, place: Place, psize_bytes: u64, birth: Txg) -> AllocStatus;
    /// Delays the reuse of all space that is allocated now.
    fn hold(&self) -> ReadHold;
    /// Loads the metaslab of `place`, so that its status is known.
    fn load_at(&self, place: Place) -> BoxFuture<'_, ()>;
}

/// Parameters of a read from the tree.
#[derive(Clone, Copy)]
pub(crate) struct VdevRead<'a> {
    pub request: &'a Request,
    pub clock: &'a Clock,
    pub pool: &'a BufPool,
    /// Physical birth txg of the block; decides its RAID-Z layout, and is looked up in the DTLs. [`UNKNOWN_BIRTH`]: only devices
    /// that lack nothing are read.
    pub birth: Txg,
    /// The block may not exist, so wrong bytes are no device fault: the next block of an intent log's chain.
    pub speculative: bool,
    /// Wrong copies are repaired: the pool is open for writing, and the block has a real checksum.
    pub self_heals: bool,
    /// The block is written to the leaves whose DTL has its birth txg.
    pub resilver: bool,
    /// Size of the block before parity.
    pub psize_bytes: u64,
    /// Check for stale pointers; `None` if the pool is not open for writing.
    pub freshness: Option<&'a dyn PointerFreshness>,
    /// The block that is read.
    pub about: BlockContext,
}

impl VdevRead<'_> {
    /// Whether every copy is read, even if the first is right.
    pub fn tests_every_copy(&self) -> bool {
        self.request.priority == Priority::Scrub && !self.resilver
    }

    /// Whether a device must not be read that may lack the bytes, because nothing verifies them.
    fn needs_current(&self) -> bool {
        self.birth == UNKNOWN_BIRTH
    }

    fn alloc_status(&self, place: Place) -> AllocStatus {
        self.freshness.map_or(AllocStatus::Synced, |f| f.alloc_status(place, self.psize_bytes, self.birth))
    }

    /// Makes the status of the space at `place` known before wrong bytes there are judged. Only reads that may repair wait
    /// for that: a scrub knows that its pointers are not stale, and a metaslab's load must not wait for another one.
    pub async fn settle(&self, place: Place) {
        if let Some(freshness) = self.freshness.filter(|_| self.self_heals && !self.tests_every_copy()) {
            freshness.load_at(place).await;
        }
    }

    /// Whether wrong bytes at `place` are a device fault: not if the block may not exist, or was freed.
    pub fn reports_fault(&self, place: Place) -> bool {
        !self.speculative && self.alloc_status(place) != AllocStatus::Freed
    }

    /// Whether wrong bytes at `place` are repaired: only if the block is synced and the pointer is not stale. Pointers of a
    /// scrub are not stale ([`crate::ReadHold`]). For other reads, no leaf may have a later txg in its DTL, because such a
    /// leaf may still have the bytes of a stale pointer's block.
    pub fn repairs(&self, tree: &Tree, place: Place) -> bool {
        let scrub = self.request.priority == Priority::Scrub;
        let is_current = match self.alloc_status(place) {
            AllocStatus::Synced => true,
            AllocStatus::Unknown => scrub,
            AllocStatus::Unsynced | AllocStatus::Freed => false,
        };
        self.self_heals
            && self.freshness.is_some()
            && is_current
            && (scrub || tree.has_all_since(place.vdev, self.birth))
    }
}

/// An address in a top-level vdev, which errors name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub vdev: u32,
    pub offset: u64,
    /// Number of redirections to another top-level vdev.
    pub hops: u8,
}

impl Place {
    pub fn new(vdev: u32, offset: u64) -> Self {
        Place { vdev, offset, hops: 0 }
    }
}

/// A vdev below the top, or the top itself.
pub(crate) struct Vdev {
    pub name: String,
    pub guid: u64,
    pub body: Body,
}

pub(crate) enum Body {
    Leaf(Arc<Leaf>),
    Mirror(Vec<Vdev>),
    Raidz(RaidzVdev),
    Draid {
        map: draid::Map,
        children: Vec<Vdev>,
    },
    /// A distributed spare in use.
    DraidSpare(SpareVdev),
    Indirect(Arc<Indirect>),
    Unsupported(&'static str),
}

/// A RAID-Z vdev.
pub(crate) struct RaidzVdev {
    pub ashift: u32,
    pub nparity: u64,
    /// Txgs in which completed expansions took effect, ascending.
    pub expansion_txgs: Vec<u64>,
    /// The expansion in progress.
    pub reflow: Option<Arc<ReflowState>>,
    pub children: Vec<Vdev>,
}

/// State and counters of a leaf.
#[derive(Clone, Debug)]
pub struct LeafHealth {
    /// GUID of the leaf.
    pub guid: u64,
    /// Name of the leaf.
    pub name: String,
    /// Whether the leaf has a disk.
    pub present: bool,
    /// Whether the leaf has a disk that was taken out of service.
    pub faulted: bool,
    /// Whether the leaf is in service although its path does not lead to its device any more.
    pub gone: bool,
    /// Counters since the pool was opened.
    pub counts: Counts,
}

impl Vdev {
    /// RAID-Z geometry, also of RAID-Z below a mirror; an error names a kind of vdev that is not written to.
    fn striping(&self) -> Result<Option<RaidzSizing>, &'static str> {
        match &self.body {
            Body::Leaf(_) => Ok(None),
            // ztest mirrors RAID-Z vdevs: the allocated size has to include the parity of each side.
            Body::Mirror(sides) => {
                let mut widest = None;
                for side in sides.iter().filter(|side| matches!(side.body, Body::Raidz(_) | Body::Draid { .. })) {
                    let side = side.striping()?;
                    if widest.is_some() && widest != side {
                        return Err("a mirror of unlike RAID-Z vdevs");
                    }
                    widest = side;
                }
                Ok(widest)
            }
            Body::Raidz(v) => {
                // Blocks have the former width until the expansion is complete.
                let width = v.former_width();
                let expansion_txgs = v.expansion_txgs.clone();
                Ok(Some(RaidzSizing { nparity: v.nparity, width, expansion_txgs, whole_rows: false }))
            }
            Body::Draid { map, .. } => {
                let draid::Layout { ndata, nparity, .. } = *map.layout();
                Ok(Some(RaidzSizing { nparity, width: ndata + nparity, expansion_txgs: Vec::new(), whole_rows: true }))
            }
            Body::DraidSpare(_) => Err("a distributed spare"),
            Body::Indirect(_) => Err("a removed vdev"),
            Body::Unsupported(what) => Err(what),
        }
    }

    /// Reads `len` bytes at `offset` of this vdev; errors name `place`, the address in the top-level vdev. With `verify`,
    /// all redundancy is tried until the bytes pass.
    pub(crate) fn read<'a>(
        &'a self,
        tree: &'a Tree,
        job: &'a VdevRead<'a>,
        place: Place,
        offset: u64,
        len: u64,
        verify: Option<Verify<'a>>,
    ) -> BoxFuture<'a, Result<Buf, BlockError>> {
        Box::pin(async move {
            match &self.body {
                Body::Leaf(leaf) => leaf.read(job, place, offset, len, verify).await,
                Body::Mirror(children) => mirror::read(children, tree, job, place, offset, len, verify).await,
                Body::Raidz(vdev) => {
                    let target = vdev.target(offset, len, job.birth);
                    raidz::read::read(&target, tree, job, place, verify).await
                }
                Body::Draid { map, children } => {
                    let ashift = tree.ashift(place.vdev).unwrap_or(9);
                    let rows = Map::of_draid(map, offset, len);
                    if rows.len as u64 != len {
                        let Place { vdev, offset, .. } = place;
                        let field = "offset (beyond its dRAID group)";
                        return Err(BlockError::InvalidPointer { vdev, offset, field, value: offset });
                    }
                    let width = children.len() as u64;
                    let target =
                        raidz::RaidzTarget { map: rows, children, ashift, widths: width..=width, reflow: None };
                    raidz::read::read(&target, tree, job, place, verify).await
                }
                Body::DraidSpare(spare) => spare.read(tree, job, place, (offset, len), verify).await,
                Body::Indirect(indirect) => indirect.read(tree, job, place, offset, len, verify).await,
                Body::Unsupported(what) => {
                    Err(BlockError::Unsupported { vdev: place.vdev, offset: place.offset, what })
                }
            }
        })
    }

    fn copies<'a>(
        &'a self,
        tree: &'a Tree,
        job: &'a VdevRead<'a>,
        place: Place,
        offset: u64,
        len: u64,
        out: &'a mut Vec<Buf>,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            match &self.body {
                Body::Mirror(children) => {
                    for child in children {
                        child.copies(tree, job, place, offset, len, out).await;
                    }
                }
                Body::Indirect(indirect) => out.extend(indirect.copies(tree, job, place, offset, len).await),
                _ => out.extend(self.read(tree, job, place, offset, len, None).await),
            }
        })
    }

    /// Preference for reading a block born in `birth` at `offset` of this vdev, lower is better: 0 default, 1 its DTL has that
    /// txg, 2 missing.
    pub(crate) fn read_preference(&self, tree: &Tree, place: Place, offset: u64, birth: Txg) -> u8 {
        match &self.body {
            Body::Leaf(leaf) => leaf.read_preference(birth),
            Body::Mirror(children) => {
                children.iter().map(|c| c.read_preference(tree, place, offset, birth)).min().unwrap_or(2)
            }
            Body::DraidSpare(spare) => spare.read_preference(tree, place, offset, birth),
            Body::Unsupported(_) => 2,
            Body::Raidz(_) | Body::Draid { .. } | Body::Indirect(_) => 0,
        }
    }

    /// Cost of a read at `offset` on this vdev's least loaded leaf: the number of reads queued there. A read that does not
    /// continue the leaf's last one cannot be merged with it, and costs [`SEQUENTIAL_BONUS_READS`] more.
    pub(crate) fn load(&self, offset: u64) -> usize {
        match &self.body {
            Body::Leaf(leaf) => match leaf.load(offset) {
                (reads, true) => reads,
                (reads, false) => reads + SEQUENTIAL_BONUS_READS,
            },
            Body::Mirror(children) => children.iter().map(|child| child.load(offset)).min().unwrap_or(0),
            // As of an idle device that read elsewhere: the device that it replaces, if it works, is as good.
            Body::DraidSpare(_) => SEQUENTIAL_BONUS_READS,
            _ => 0,
        }
    }

    fn children(&self) -> &[Vdev] {
        match &self.body {
            Body::Mirror(children) | Body::Draid { children, .. } => children,
            Body::Raidz(vdev) => &vdev.children,
            _ => &[],
        }
    }

    /// Adds the names of the missing leaves.
    pub(crate) fn absent(&self, names: &mut Vec<String>) {
        match &self.body {
            Body::Leaf(leaf) | Body::DraidSpare(SpareVdev { leaf, .. }) if !leaf.present() => {
                names.push(self.name.clone())
            }
            _ => self.children().iter().for_each(|c| c.absent(names)),
        }
    }

    /// Whether a distributed spare is here, whose space is on another device in each slice of its dRAID vdev. What is read and
    /// written here at once may not continue in the next slice.
    pub(super) fn is_distributed(&self) -> bool {
        matches!(self.body, Body::DraidSpare(_)) || self.children().iter().any(Vdev::is_distributed)
    }

    /// Counts and reports wrong bytes at the first present leaf below. Returns whether there is one.
    pub(crate) fn checksum_error(&self, tree: &Tree, job: &VdevRead<'_>, place: Place, range: (u64, u64)) -> bool {
        match &self.body {
            Body::Leaf(leaf) if leaf.present() => {
                leaf.counters().checksum_error();
                let (offset, size_bytes) = range;
                let range = (leaf::on_device(offset), size_bytes);
                leaf.report(FaultKind::Checksum(None), range, job.about, job.request.priority);
                true
            }
            Body::DraidSpare(spare) => spare.checksum_error(tree, job, place, range),
            _ => self.children().iter().any(|child| child.checksum_error(tree, job, place, range)),
        }
    }

    /// Calls `visit` with each leaf below.
    fn each_leaf(&self, visit: &mut dyn FnMut(&Arc<Leaf>)) {
        match &self.body {
            Body::Leaf(leaf) | Body::DraidSpare(SpareVdev { leaf, .. }) => visit(leaf),
            _ => self.children().iter().for_each(|child| child.each_leaf(visit)),
        }
    }

    /// Whether all blocks can be read, and new ones written, without the leaf `guid` (`vdev_dtl_required`).
    fn has_all_without(&self, guid: u64) -> bool {
        let lacking = |children: &[Vdev]| children.iter().filter(|child| !child.has_all_without(guid)).count() as u64;
        match &self.body {
            Body::Leaf(leaf) | Body::DraidSpare(SpareVdev { leaf, .. }) => {
                self.guid != guid && leaf.present() && leaf.has_everything()
            }
            Body::Mirror(children) => lacking(children) < children.len() as u64,
            Body::Raidz(vdev) => lacking(&vdev.children) <= vdev.nparity,
            Body::Draid { map, children } => lacking(children) <= map.layout().nparity,
            Body::Indirect(_) => true,
            Body::Unsupported(_) => false,
        }
    }

    /// Whether no DTL below has a txg after `birth`.
    fn has_all_since(&self, birth: Txg) -> bool {
        match &self.body {
            Body::Leaf(leaf) | Body::DraidSpare(SpareVdev { leaf, .. }) => leaf.has_all_since(birth),
            Body::Mirror(_) | Body::Raidz(_) | Body::Draid { .. } => {
                self.children().iter().all(|c| c.has_all_since(birth))
            }
            _ => false,
        }
    }

    /// Whether this vdev can return the blocks of `old`, which it replaces: it has the same layout of data, and shares a
    /// leaf with it (RAID-Z and dRAID: each child does).
    fn has_blocks_of(&self, old: &Vdev) -> bool {
        let each_child = |new: &[Vdev], old: &[Vdev]| {
            new.len() == old.len() && new.iter().zip(old).all(|(new, old)| new.has_blocks_of(old))
        };
        match (&self.body, &old.body) {
            (Body::Raidz(new), Body::Raidz(old)) => {
                // A vdev whose expansion begins has one child more.
                let begins = old.reflow.is_none() && new.reflow.is_some();
                let count = new.children.len().saturating_sub(usize::from(begins));
                let children = new.children.get(..count).unwrap_or_default();
                new.nparity == old.nparity && new.continues(old) && each_child(children, &old.children)
            }
            (Body::Draid { map: new_map, children: new }, Body::Draid { map: old_map, children: old }) => {
                new_map.layout() == old_map.layout() && each_child(new, old)
            }
            (
                Body::Leaf(_) | Body::Mirror(_) | Body::DraidSpare(_),
                Body::Leaf(_) | Body::Mirror(_) | Body::DraidSpare(_),
            ) => {
                let mut shared = false;
                self.each_leaf(&mut |new| old.each_leaf(&mut |old| shared |= Arc::ptr_eq(new, old)));
                shared
            }
            (Body::Indirect(new), Body::Indirect(old)) => Arc::ptr_eq(new, old),
            (Body::Unsupported(new), Body::Unsupported(old)) => new == old,
            _ => false,
        }
    }

    /// Collects the txgs of failed writes and flushes of the leaves below since the pool was opened.
    fn collect_failed(&self, out: &mut Dtl) {
        self.each_leaf(&mut |leaf| {
            out.add_all(&leaf.writes().dtl().failed());
        });
    }
}

//! Virtual devices: the tree from top-level vdevs down to disks.
//!
//! A block's address names a top-level vdev by its index in the pool and a byte offset in its allocatable space. Each
//! kind of vdev maps such a range to ranges of its children:
//!
//! ```text
//!  mirror, replacing, spare   the same range on any one child
//!  raidz, draid               sectors spread over the children, with parity to reconstruct missing or wrong ones
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
pub(crate) mod counters;
mod deadline;
mod dtl;
mod flush;
mod indirect;
mod kind;
mod leaf;
mod leaf_write;
mod leaf_writes;
mod mirror;
pub mod queue;
mod raidz;
mod service;
mod single_leaf;
mod spec;
mod write;

pub use counters::{Counters, Counts};
pub use deadline::{Deadlines, LongestOperation};
pub use dtl::Dtl;
pub(crate) use indirect::Remapped;
pub use kind::VdevKind;
pub(crate) use leaf_write::WritePlug;
pub use service::{OverdueLeaf, PutBackError};
pub use spec::{DistributedSpare, Expansion, Reflow, TreeError, VdevSpec};
pub(crate) use write::{FailedLeaves, WriteJob};

use crate::alloc::{AllocStatus, RaidzSizing, Sizing};
use crate::draid;
use crate::error::BlockError;
use crate::fault_observer::{BlockContext, FaultKind, FaultNotifier, FaultObserver};
use crate::raidz::Map;
use crate::suspension::Suspension;
use crate::write::reads::ReadHold;
use futures_util::future::BoxFuture;
use indirect::{Indirect, MAX_HOPS};
use leaf::Leaf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use weir_codec::CodecError;
use weir_format::Txg;
use weir_format::indirect::MappingEntry;
use weir_machine::{Accounts, Buf, BufPool, Clock, Priority, Request};

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
}

/// Parameters of a read from the tree.
#[derive(Clone, Copy)]
pub(crate) struct VdevRead<'a> {
    pub request: &'a Request,
    pub clock: &'a Clock,
    pub pool: &'a BufPool,
    /// Physical birth txg of the block; decides its RAID-Z layout, and is looked up in the DTLs.
    pub birth: Txg,
    /// The block may not exist, so wrong bytes are no device fault: the next block of an intent log's chain.
    pub speculative: bool,
    /// Wrong copies are repaired: the pool is open for writing, and the block has a real checksum.
    pub self_heals: bool,
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
        self.request.priority == Priority::Scrub
    }

    fn alloc_status(&self, place: Place) -> AllocStatus {
        self.freshness.map_or(AllocStatus::Synced, |f| f.alloc_status(place, self.psize_bytes, self.birth))
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
        self.self_heals
            && self.freshness.is_some()
            && self.alloc_status(place) == AllocStatus::Synced
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
    Leaf(Leaf),
    Mirror(Vec<Vdev>),
    Raidz(RaidzVdev),
    Draid {
        map: draid::Map,
        children: Vec<Vdev>,
    },
    /// A distributed spare of the dRAID vdev `top`.
    DraidSpare {
        top: u32,
        spare: u64,
    },
    Indirect(Indirect),
    Unsupported(&'static str),
}

/// A RAID-Z vdev.
pub(crate) struct RaidzVdev {
    pub ashift: u32,
    pub nparity: u64,
    pub expansion: Expansion,
    pub children: Vec<Vdev>,
}

/// A top-level vdev.
struct Top {
    ashift: u32,
    asize_bytes: u64,
    vdev: Vdev,
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
    /// Counters since the pool was opened.
    pub counts: Counts,
}

/// The pool's devices.
pub struct Tree {
    /// Top-level vdevs by index, followed by empty slots for vdevs that are added later.
    tops: Box<[OnceLock<Top>]>,
    /// Whether writing is allowed.
    writable: AtomicBool,
    /// Number of writes and discards in progress.
    in_progress: AtomicU64,
    notifier: FaultNotifier,
    accounts: Arc<Accounts>,
    clock: Clock,
    suspension: Suspension,
}

impl Tree {
    /// Sets the observer of device faults, unless one is set already.
    pub fn set_fault_observer(&self, observer: Arc<dyn FaultObserver>) {
        self.notifier.set(observer);
    }

    /// Suspension of writes after failures that redundancy does not cover.
    pub fn suspension(&self) -> &Suspension {
        &self.suspension
    }

    /// Accounts of the pool's requests and of the bytes written to its devices.
    pub fn accounts(&self) -> &Arc<Accounts> {
        &self.accounts
    }

    pub(crate) fn notifier(&self) -> &FaultNotifier {
        &self.notifier
    }

    fn tops(&self) -> impl Iterator<Item = &Top> {
        self.tops.iter().map_while(OnceLock::get)
    }

    fn top_at(&self, index: u32) -> Option<&Top> {
        self.tops.get(index as usize)?.get()
    }

    /// Allows or forbids writing; a new tree forbids it. Disks that were opened read-only refuse in any case.
    pub fn set_writable(&self, writable: bool) {
        self.writable.store(writable, Ordering::SeqCst);
    }

    /// Whether writing is allowed.
    pub fn is_writable(&self) -> bool {
        self.writable.load(Ordering::SeqCst)
    }

    fn check_writable(&self) -> Result<(), BlockError> {
        if self.is_writable() { Ok(()) } else { Err(BlockError::ReadOnly) }
    }

    /// Parameters of the allocated size of blocks on top-level vdev `vdev`.
    ///
    /// # Errors
    /// [`BlockError::NotWritable`] if it is of a kind that this program does not write to.
    pub fn sizing(&self, vdev: u32) -> Result<Sizing, BlockError> {
        let top = self.top(Place::new(vdev, 0))?;
        let raidz = top.vdev.striping().map_err(|what| BlockError::NotWritable { vdev, offset: 0, what })?;
        Ok(Sizing { ashift: top.ashift, raidz })
    }

    /// Allocated bytes of a gang header on `vdev`; for a removed vdev, the size that the header had there.
    ///
    /// # Errors
    /// As [`Tree::sizing`].
    pub(crate) fn header_bytes(&self, vdev: u32, birth: u64) -> Result<u64, BlockError> {
        let header = weir_format::gang::CLASSIC_BYTES as u64;
        let top = self.top(Place::new(vdev, 0))?;
        match &top.vdev.body {
            Body::Indirect(_) => Ok(header.next_multiple_of(1 << top.ashift)),
            _ => Ok(self.sizing(vdev)?.asize_bytes(header, birth)),
        }
    }

    /// Bytes that 512 bytes of allocated space on `vdev` count as in a dataset's used space; `None` for kinds of vdevs that
    /// are not written to.
    pub fn deflate(&self, vdev: u32) -> Option<u64> {
        if let Ok(sizing) = self.sizing(vdev) {
            return Some(sizing.deflate());
        }
        None
    }

    /// Number of top-level vdevs.
    pub fn len(&self) -> usize {
        self.tops().count()
    }

    /// Whether there are no vdevs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// State and counters of all leaves, in the order of the tree.
    pub fn health(&self) -> Vec<LeafHealth> {
        let mut out = Vec::new();
        for top in self.tops() {
            top.vdev.health(&mut out);
        }
        out
    }

    /// The child of dRAID vdev `top` that holds `offset` of its distributed spare.
    fn spare_child(&self, top: u32, spare: u64, offset: u64, place: Place) -> Result<&Vdev, BlockError> {
        let Place { vdev, offset: at, hops } = place;
        let child = match self.top_at(top).map(|t| &t.vdev.body) {
            Some(Body::Draid { map, children }) if hops < MAX_HOPS => {
                map.spare_child(spare, offset).and_then(|i| children.get(i))
            }
            _ => None,
        };
        child.ok_or(BlockError::InvalidPointer { vdev, offset: at, field: "distributed spare", value: spare })
    }

    fn top(&self, place: Place) -> Result<&Top, BlockError> {
        let Place { vdev, offset, .. } = place;
        let invalid = BlockError::InvalidPointer { vdev, offset, field: "vdev", value: vdev.into() };
        self.top_at(vdev).ok_or(invalid)
    }

    /// log2 of the sector size of top-level vdev `vdev`, if there is one.
    pub fn ashift(&self, vdev: u32) -> Option<u32> {
        self.top_at(vdev).map(|t| t.ashift)
    }

    /// Reads `len` bytes at `place`: reads whole sectors, and passes `len` bytes to `verify`.
    pub(crate) async fn read(
        &self,
        job: &VdevRead<'_>,
        place: Place,
        len: u64,
        verify: Verify<'_>,
    ) -> Result<Buf, BlockError> {
        let (top, whole) = self.check(place, len)?;
        let exact = |bytes: &[u8]| verify(bytes.get(..len as usize).unwrap_or(bytes));
        let mut buf = top.vdev.read(self, job, place, place.offset, whole, Some(&exact)).await?;
        buf.truncate(len as usize);
        Ok(buf)
    }

    /// All copies of a range that can be read, right or wrong.
    pub(crate) fn copies<'a>(&'a self, job: &'a VdevRead<'a>, place: Place, len: u64) -> BoxFuture<'a, Vec<Buf>> {
        Box::pin(async move {
            let Ok((top, whole)) = self.check(place, len) else { return Vec::new() };
            let mut out = Vec::new();
            top.vdev.copies(self, job, place, place.offset, whole, &mut out).await;
            for buf in &mut out {
                buf.truncate(len as usize);
            }
            out
        })
    }

    /// Sets the mapping of removed vdev `vdev`. False, without a change, if it has a mapping already or is not a removed
    /// vdev.
    pub fn set_mapping(&self, vdev: u32, map: Vec<MappingEntry>) -> bool {
        match self.top_at(vdev).map(|t| &t.vdev.body) {
            Some(Body::Indirect(indirect)) => indirect.set(map),
            _ => false,
        }
    }

    /// Maximum bytes of a gang header on `vdev`: the smallest allocation.
    pub(crate) fn gang_header_bytes(&self, vdev: u32) -> Option<u64> {
        let top = self.top_at(vdev)?;
        Some(match &top.vdev.body {
            Body::Draid { map, .. } => map.layout().ndata << top.ashift,
            _ => 1 << top.ashift,
        })
    }

    /// Checks a range; returns its vdev and its length in whole sectors.
    fn check(&self, place: Place, len: u64) -> Result<(&Top, u64), BlockError> {
        let Place { vdev, offset, .. } = place;
        let top = self.top(place)?;
        let invalid = |field, value| Err(BlockError::InvalidPointer { vdev, offset, field, value });
        if len == 0 || len > MAX_BLOCK_BYTES {
            return invalid("size", len);
        }
        let sector = 1u64 << top.ashift;
        if offset % sector != 0 {
            return invalid("offset (not a multiple of the sector size)", offset);
        }
        let whole = len.next_multiple_of(sector);
        let end = offset.checked_add(whole).filter(|&end| top.asize_bytes == 0 || end <= top.asize_bytes);
        if end.is_none() {
            return invalid("offset (beyond the device)", offset);
        }
        Ok((top, whole))
    }
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
            Body::Raidz(v) if v.expansion.reflow.is_some() => Err("a RAID-Z vdev that is being expanded"),
            Body::Raidz(v) => {
                let width = v.children.len() as u64;
                let expansion_txgs = v.expansion.txgs.clone();
                Ok(Some(RaidzSizing { nparity: v.nparity, width, expansion_txgs, whole_rows: false }))
            }
            Body::Draid { map, .. } => {
                let draid::Layout { ndata, nparity, .. } = *map.layout();
                Ok(Some(RaidzSizing { nparity, width: ndata + nparity, expansion_txgs: Vec::new(), whole_rows: true }))
            }
            Body::DraidSpare { .. } => Err("a distributed spare"),
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
                Body::Leaf(leaf) => leaf.read(self, job, place, offset, len, verify).await,
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
                    let target = raidz::RaidzTarget { map: rows, children, ashift, widths: width..=width };
                    raidz::read::read(&target, tree, job, place, verify).await
                }
                Body::DraidSpare { top, spare } => {
                    let child = tree.spare_child(*top, *spare, offset, place)?;
                    let place = Place { hops: place.hops + 1, ..place };
                    child.read(tree, job, place, offset, len, verify).await
                }
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

    /// Preference for reading a block born in `birth` from this vdev, lower is better: 0 default, 1 its DTL has that txg,
    /// 2 missing.
    pub(crate) fn read_preference(&self, birth: Txg) -> u8 {
        match &self.body {
            Body::Leaf(leaf) => leaf.read_preference(birth),
            Body::Mirror(children) => children.iter().map(|c| c.read_preference(birth)).min().unwrap_or(2),
            Body::Unsupported(_) => 2,
            Body::Raidz(_) | Body::Draid { .. } | Body::DraidSpare { .. } | Body::Indirect(_) => 0,
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
            Body::Leaf(leaf) if !leaf.present() => names.push(self.name.clone()),
            _ => self.children().iter().for_each(|c| c.absent(names)),
        }
    }

    /// Counts and reports wrong bytes at the first present leaf below. Returns whether there is one.
    pub(crate) fn checksum_error(&self, job: &VdevRead<'_>, range: (u64, u64)) -> bool {
        match &self.body {
            Body::Leaf(leaf) if leaf.present() => {
                leaf.counters().checksum_error();
                let (offset, size_bytes) = range;
                let range = (leaf::on_device(offset), size_bytes);
                leaf.report(self.guid, FaultKind::Checksum(None), range, job.about, job.request.priority);
                true
            }
            _ => self.children().iter().any(|child| child.checksum_error(job, range)),
        }
    }

    fn health(&self, out: &mut Vec<LeafHealth>) {
        if let Body::Leaf(leaf) = &self.body {
            let name = self.name.clone();
            let present = leaf.present();
            let faulted = leaf.is_faulted();
            out.push(LeafHealth { guid: self.guid, name, present, faulted, counts: leaf.counts() });
        }
        for child in self.children() {
            child.health(out);
        }
    }
}

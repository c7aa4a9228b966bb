//! Virtual devices: the tree from top-level vdevs down to disks.
//!
//! A block's address names a top-level vdev by its index in the pool and a byte offset in the space that it offers. Each
//! kind of vdev turns such a range into ranges of its children:
//!
//! ```text
//!  mirror, replacing, spare   the same range on any one child
//!  raidz, draid               sectors spread over the children, with parity to make good for missing or wrong ones
//!  indirect                   pieces of other top-level vdevs, by the map that device removal left
//!  leaf                       the same offset, after the front labels and the boot area (4 MiB), on its disk
//! ```
//!
//! A read carries the test that its bytes must pass ([`Proof`]), so each vdev can try whatever redundancy it has. A read
//! below RAID-Z carries none: there only the whole block can be proven.
//!
//! A leaf without a disk is *missing*. A leaf that lacks the writes of some txgs has them in its [`Dtl`]; it is read last
//! for blocks born in them, and is no redundancy for those.

mod dtl;
mod flush;
mod indirect;
mod leaf;
mod leaf_write;
mod mirror;
pub mod queue;
mod raidz;
mod single_leaf;
mod spec;
mod write;
pub mod write_queue;

pub use dtl::Dtl;
pub(crate) use indirect::Remapped;
pub use leaf::{Counters, Counts};
pub(crate) use leaf_write::WritePlug;
pub use spec::{Expansion, Reflow, TreeError, VdevKind, VdevSpec};
pub(crate) use write::WriteJob;

use crate::alloc::{AllocStatus, RaidzSizing, Sizing};
use crate::draid;
use crate::error::BlockError;
use crate::fault_observer::{BlockContext, FaultKind, FaultNotifier, FaultObserver};
use crate::raidz::{Map, Reflowed};
use crate::write::ReadHold;
use futures_util::future::BoxFuture;
use indirect::{Indirect, MAX_HOPS};
use leaf::Leaf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use weir_codec::CodecError;
use weir_format::Txg;
use weir_format::indirect::MappingEntry;
use weir_machine::{Buf, BufPool, Clock, Priority, Request};

/// The largest range that is ever read at once: the largest block of the format.
pub const MAX_BLOCK_BYTES: u64 = 16 << 20;

/// So many reads may wait at a side of a mirror before one that would go on there goes elsewhere: a stretch of blocks that
/// is long enough to be read in few operations, and short enough that all sides work for one stream.
const GOING_ON_READS: usize = 8;

/// The test that the bytes of a read must pass.
pub(crate) type Proof<'a> = &'a (dyn Fn(&[u8]) -> Result<(), CodecError> + Sync);

/// Knows whether a block is still where its pointer says.
pub(crate) trait PointerFreshness: Sync {
    /// What a pointer to a block of `psize_bytes`, born in `birth`, can expect to find at `place`.
    fn standing(&self, place: Place, psize_bytes: u64, birth: Txg) -> AllocStatus;
    /// Keeps what is in use now from being used again.
    fn hold(&self) -> ReadHold;
}

/// What a read needs on its way through the tree.
#[derive(Clone, Copy)]
pub(crate) struct VdevRead<'a> {
    pub request: &'a Request,
    pub clock: &'a Clock,
    pub pool: &'a BufPool,
    /// When the block was allocated: which layout it has, and whose DTL has it.
    pub birth: Txg,
    /// There may be no block there, and then no device is to blame: the next of an intent log's chain.
    pub speculative: bool,
    /// What is found wrong is put right: the pool is open for writing, and the proof proves.
    pub heals: bool,
    /// The block's size before parity.
    pub psize_bytes: u64,
    /// Of a pool open for writing: who knows whether the block is still there.
    pub umpire: Option<&'a dyn PointerFreshness>,
    /// Which block is wanted.
    pub about: BlockContext,
}

impl VdevRead<'_> {
    /// Whether every copy is to be tested, also when the first is right.
    pub fn tests_every_copy(&self) -> bool {
        self.request.priority == Priority::Scrub
    }

    fn standing(&self, place: Place) -> AllocStatus {
        self.umpire.map_or(AllocStatus::Synced, |u| u.standing(place, self.psize_bytes, self.birth))
    }

    /// Whether wrong bytes at `place` are a device's fault: not when the block may never have been there, or is gone.
    pub fn blames(&self, place: Place) -> bool {
        !self.speculative && self.standing(place) != AllocStatus::Freed
    }

    /// Whether wrong bytes at `place` are to be put right. Only where the block is settled; and, but for a scrub, whose
    /// pointers are not old ([`crate::ReadHold`]), only where no device's DTL has a later txg: a device with one may
    /// still have the bytes of an old pointer's block.
    pub fn mends(&self, tree: &Tree, place: Place) -> bool {
        let scrub = self.request.priority == Priority::Scrub;
        self.heals
            && self.umpire.is_some()
            && self.standing(place) == AllocStatus::Synced
            && (scrub || tree.has_all_since(place.vdev, self.birth))
    }
}

/// A range of a top-level vdev, which errors name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub vdev: u32,
    pub offset: u64,
    /// How often the read was sent on to another top-level vdev.
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

impl Top {
    fn build(spec: VdevSpec, bell: &FaultNotifier) -> Result<Top, TreeError> {
        let (ashift, asize_bytes) = (spec.ashift, spec.asize_bytes);
        Ok(Top { ashift, asize_bytes, vdev: Vdev::build(spec, ashift, 0, bell)? })
    }
}

/// What a leaf is and how it fared.
#[derive(Clone, Debug)]
pub struct LeafHealth {
    /// The leaf's GUID.
    pub guid: u64,
    /// Its name.
    pub name: String,
    /// Whether there is a disk behind it.
    pub present: bool,
    /// What it did.
    pub counts: leaf::Counts,
}

/// How many vdevs can be added to a tree.
const ROOM: usize = 64;

/// The pool's devices.
pub struct Tree {
    /// By index, from the first on; those behind the last are room for vdevs that are added later.
    tops: Box<[OnceLock<Top>]>,
    /// Whether anything may be written.
    writable: AtomicBool,
    /// Writes and discards that have begun and not ended.
    under_way: AtomicU64,
    bell: FaultNotifier,
}

impl Tree {
    /// Builds the tree from the description of the pool's top-level vdevs; a vdev's `id` is its index.
    ///
    /// # Errors
    /// [`TreeError`] for numbers that no pool has (sector sizes, parities, numbers of children, depth).
    pub fn new(specs: Vec<VdevSpec>) -> Result<Arc<Tree>, TreeError> {
        let bell = FaultNotifier::default();
        let tops = spec::sorted(specs)?.into_iter().map(|spec| Ok(OnceLock::from(Top::build(spec, &bell)?)));
        let mut tops = tops.collect::<Result<Vec<_>, TreeError>>()?;
        tops.resize_with(tops.len() + ROOM, OnceLock::new);
        Ok(Arc::new(Tree { tops: tops.into(), writable: AtomicBool::new(false), under_way: AtomicU64::new(0), bell }))
    }

    /// Adds a top-level vdev behind the last one. Nothing of it is used until somebody takes space there.
    ///
    /// # Errors
    /// [`TreeError`] as for a new tree; also if its index is not the next, or there is no room: at most 64 can be added.
    pub fn add(&self, spec: VdevSpec) -> Result<(), TreeError> {
        let (vdev, value) = (spec.name.clone(), spec.id);
        let index = || TreeError::Field { vdev: vdev.clone(), field: "id", value };
        if value != self.len() as u64 {
            return Err(index());
        }
        let top = Top::build(spec, &self.bell)?;
        let slot = self.tops.get(self.len()).ok_or_else(index)?;
        slot.set(top).map_err(|_| index())
    }

    /// From now on this one is told what goes wrong with the devices. The first one stays.
    pub fn set_watch(&self, watch: Arc<dyn FaultObserver>) {
        self.bell.set(watch);
    }

    pub(crate) fn bell(&self) -> &FaultNotifier {
        &self.bell
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

    /// Whether anything may be written.
    pub fn is_writable(&self) -> bool {
        self.writable.load(Ordering::SeqCst)
    }

    fn check_writable(&self) -> Result<(), BlockError> {
        if self.is_writable() { Ok(()) } else { Err(BlockError::ReadOnly) }
    }

    /// How large blocks become on top-level vdev `vdev`.
    ///
    /// # Errors
    /// [`BlockError::NotWritable`] if it is of a kind that this program does not write to.
    pub fn sizing(&self, vdev: u32) -> Result<Sizing, BlockError> {
        let top = self.top(Place::new(vdev, 0))?;
        let raidz = top.vdev.striping().map_err(|what| BlockError::NotWritable { vdev, offset: 0, what })?;
        Ok(Sizing { ashift: top.ashift, raidz })
    }

    /// Bytes that a gang's header takes on `vdev`; of a removed one, as large as it was there.
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

    /// What 512 bytes of allocated space on `vdev` count as towards a dataset's use, if the vdev has space of its own.
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

    /// Every leaf with its counters, in the order of the tree.
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
        let forged = BlockError::InvalidPointer { vdev, offset, field: "vdev", value: vdev.into() };
        self.top_at(vdev).ok_or(forged)
    }

    /// log2 of the sector size of top-level vdev `vdev`, if there is one.
    pub fn ashift(&self, vdev: u32) -> Option<u32> {
        self.top_at(vdev).map(|t| t.ashift)
    }

    /// Reads `len` bytes at `place`, proven by `proof`: whole sectors are read, `len` bytes are tested and returned.
    pub(crate) async fn read(
        &self,
        job: &VdevRead<'_>,
        place: Place,
        len: u64,
        proof: Proof<'_>,
    ) -> Result<Buf, BlockError> {
        let (top, whole) = self.check(place, len)?;
        let exact = |bytes: &[u8]| proof(bytes.get(..len as usize).unwrap_or(bytes));
        let mut buf = top.vdev.read(self, job, place, place.offset, whole, Some(&exact)).await?;
        buf.truncate(len as usize);
        Ok(buf)
    }

    /// Every copy of a range that devices give, right or wrong.
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

    /// Tells where the blocks of removed vdev `vdev` lie now. The first map given counts: false if there was one, or the
    /// vdev is not a removed one.
    pub fn set_mapping(&self, vdev: u32, map: Vec<MappingEntry>) -> bool {
        match self.top_at(vdev).map(|t| &t.vdev.body) {
            Some(Body::Indirect(indirect)) => indirect.set(map),
            _ => false,
        }
    }

    /// Bytes of the largest gang header on `vdev`: its smallest allocation.
    pub(crate) fn gang_header_bytes(&self, vdev: u32) -> Option<u64> {
        let top = self.top_at(vdev)?;
        Some(match &top.vdev.body {
            Body::Draid { map, .. } => map.layout().ndata << top.ashift,
            _ => 1 << top.ashift,
        })
    }

    /// The vdev and the whole sectors of a range, if it can be read at all.
    fn check(&self, place: Place, len: u64) -> Result<(&Top, u64), BlockError> {
        let Place { vdev, offset, .. } = place;
        let top = self.top(place)?;
        let forged = |field, value| Err(BlockError::InvalidPointer { vdev, offset, field, value });
        if len == 0 || len > MAX_BLOCK_BYTES {
            return forged("size", len);
        }
        let sector = 1u64 << top.ashift;
        if offset % sector != 0 {
            return forged("offset (not a multiple of the sector size)", offset);
        }
        let whole = len.next_multiple_of(sector);
        let end = offset.checked_add(whole).filter(|&end| top.asize_bytes == 0 || end <= top.asize_bytes);
        if end.is_none() {
            return forged("offset (beyond the device)", offset);
        }
        Ok((top, whole))
    }
}

impl Vdev {
    /// What RAID-Z, perhaps below a mirror, adds to the size of blocks; an error names a kind that is not written to.
    fn striping(&self) -> Result<Option<RaidzSizing>, &'static str> {
        match &self.body {
            Body::Leaf(_) => Ok(None),
            // ztest mirrors RAID-Z: every side has to have room for its parities.
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
            Body::Raidz(v) if v.expansion.reflow.is_some() => Err("a RAID-Z vdev that is being widened"),
            Body::Raidz(v) => {
                let (width, widened) = (v.children.len() as u64, v.expansion.txgs.clone());
                Ok(Some(RaidzSizing { nparity: v.nparity, width, widened, whole_rows: false }))
            }
            Body::Draid { map, .. } => {
                let draid::Layout { ndata, nparity, .. } = *map.layout();
                Ok(Some(RaidzSizing { nparity, width: ndata + nparity, widened: Vec::new(), whole_rows: true }))
            }
            Body::DraidSpare { .. } => Err("a distributed spare"),
            Body::Indirect(_) => Err("a removed vdev"),
            Body::Unsupported(what) => Err(what),
        }
    }

    /// Reads `len` bytes at `offset` of this vdev; `place` is the range of the top-level vdev for which, as errors name
    /// it. With a proof, all redundancy is tried until it holds.
    pub(crate) fn read<'a>(
        &'a self,
        tree: &'a Tree,
        job: &'a VdevRead<'a>,
        place: Place,
        offset: u64,
        len: u64,
        proof: Option<Proof<'a>>,
    ) -> BoxFuture<'a, Result<Buf, BlockError>> {
        Box::pin(async move {
            match &self.body {
                Body::Leaf(leaf) => leaf.read(self, job, place, offset, len, proof).await,
                Body::Mirror(children) => mirror::read(children, tree, job, place, offset, len, proof).await,
                Body::Raidz(vdev) => {
                    let target = vdev.target(offset, len, job.birth);
                    raidz::read(&target, tree, job, place, proof).await
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
                    raidz::read(&target, tree, job, place, proof).await
                }
                Body::DraidSpare { top, spare } => {
                    let child = tree.spare_child(*top, *spare, offset, place)?;
                    let place = Place { hops: place.hops + 1, ..place };
                    child.read(tree, job, place, offset, len, proof).await
                }
                Body::Indirect(indirect) => indirect.read(tree, job, place, offset, len, proof).await,
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

    /// How reluctantly to ask this vdev for a block born in `birth`: 0 willingly, 1 its DTL has that txg, 2 not there.
    pub(crate) fn read_preference(&self, birth: Txg) -> u8 {
        match &self.body {
            Body::Leaf(leaf) => leaf.read_preference(birth),
            Body::Mirror(children) => children.iter().map(|c| c.read_preference(birth)).min().unwrap_or(2),
            Body::Unsupported(_) => 2,
            Body::Raidz(_) | Body::Draid { .. } | Body::DraidSpare { .. } | Body::Indirect(_) => 0,
        }
    }

    /// What a read at `offset` costs at this vdev's cheapest leaf: the reads that are before it. One that goes on where
    /// the leaf's last one ended will be joined with it, which is worth [`GOING_ON_READS`].
    pub(crate) fn load(&self, offset: u64) -> usize {
        match &self.body {
            Body::Leaf(leaf) => match leaf.load(offset) {
                (reads, true) => reads,
                (reads, false) => reads + GOING_ON_READS,
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

    /// Adds the names of the leaves that are not there.
    pub(crate) fn absent(&self, names: &mut Vec<String>) {
        match &self.body {
            Body::Leaf(leaf) if !leaf.present() => names.push(self.name.clone()),
            _ => self.children().iter().for_each(|c| c.absent(names)),
        }
    }

    /// Counts wrong bytes, a range of its space, at the first leaf that could have given them, and tells of it.
    pub(crate) fn checksum_error(&self, job: &VdevRead<'_>, range: (u64, u64)) -> bool {
        match &self.body {
            Body::Leaf(leaf) if leaf.present() => {
                leaf.counters().checksum_error();
                let (offset, size_bytes) = range;
                let range = (leaf::on_device(offset), size_bytes);
                leaf.tell(self.guid, FaultKind::Checksum(None), range, job.about, job.request.priority);
                true
            }
            _ => self.children().iter().any(|child| child.checksum_error(job, range)),
        }
    }

    fn health(&self, out: &mut Vec<LeafHealth>) {
        if let Body::Leaf(leaf) = &self.body {
            let (guid, name) = (self.guid, self.name.clone());
            out.push(LeafHealth { guid, name, present: leaf.present(), counts: leaf.counts() });
        }
        for child in self.children() {
            child.health(out);
        }
    }
}

impl RaidzVdev {
    /// Children that a block born in `birth` was written to.
    fn logical_width(&self, birth: Txg) -> u64 {
        let now = self.children.len() as u64 - u64::from(self.expansion.reflow.is_some());
        let later = self.expansion.txgs.iter().filter(|&&txg| txg > birth.0).count() as u64;
        now.saturating_sub(later).max(self.nparity + 1)
    }

    fn target(&self, offset: u64, len: u64, birth: Txg) -> raidz::RaidzTarget<'_> {
        let physical_width = self.children.len() as u64;
        let logical_width = self.logical_width(birth);
        let (ashift, nparity) = (self.ashift, self.nparity);
        let map = if logical_width == physical_width {
            Map::new(offset, len, ashift, physical_width, nparity)
        } else {
            let reflow = self.expansion.reflow;
            let moved_bytes = reflow.map_or(u64::MAX, |r| r.offset_bytes);
            let scratch = reflow.is_some_and(|r| r.scratch);
            Map::expanded(
                offset,
                len,
                ashift,
                nparity,
                Reflowed { physical_width, logical_width, moved_bytes, scratch },
            )
        };
        raidz::RaidzTarget { map, children: &self.children, ashift, widths: logical_width..=physical_width }
    }
}

//! The vdev tree of a pool, which can be replaced while it is in use.
//!
//! ```text
//!   Tree ─► Tops (one version) ─► Top 0 ─► mirror ─► leaf 100 ◄─┐
//!    │                                                          │ leaves are shared: disk, queues, counters, DTL
//!    └ replace ─► Tops (next version) ─► Top 0 ─► mirror ─► leaf 100, leaf 101
//! ```
//!
//! An operation uses the version that was current when it began. So a read in progress ends on the vdevs that it began with,
//! and a write in progress does not reach a leaf that a later version adds: that leaf's DTL must contain the txgs of all
//! blocks that may be written meanwhile. [`Replaced::drained`] waits for the operations on the replaced version, for example
//! before a detached device is relabelled.
//!
//! *Owner of the DTLs.* Each leaf has its DTL, from the import to the export, whether its device is present or not. The MOS
//! and the labels hold copies; the engine compares and rewrites them at the end of each txg.

use super::build::{SharedParts, build};
use super::histogram::LeafStats;
use super::indirect::MAX_HOPS;
use super::leaf::Leaf;
use super::leaf_handle::{LeafHandle, OverdueLeaf};
use super::mapping::Mapping;
use super::rebuild::RangeLocks;
use super::resilver::Resilvering;
use super::{
    Body, Deadlines, Dtl, LeafHealth, MAX_BLOCK_BYTES, Place, RaidzVdev, TreeError, Vdev, VdevRead, VdevSpec, Verify,
};
use crate::alloc::Sizing;
use crate::error::BlockError;
use crate::fault_observer::{FaultNotifier, FaultObserver};
use crate::scan_queue::ReadCosts;
use crate::suspension::Suspension;
use arc_swap::ArcSwap;
use futures_channel::oneshot;
use futures_util::future::{BoxFuture, join_all};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use weir_format::Txg;
use weir_format::indirect::MappingEntry;
use weir_machine::lock::{Mutex, order};
use weir_machine::{Accounts, Buf, Clock, invariant};

/// A top-level vdev.
pub(super) struct Top {
    pub ashift: u32,
    pub asize_bytes: u64,
    pub vdev: Vdev,
}

/// The top-level vdevs of one version of the tree, by index.
pub(super) struct Tops {
    tops: Vec<Arc<Top>>,
    /// Dropped with the last operation on this version.
    _in_use: oneshot::Sender<()>,
}

impl Tops {
    /// The version, and a receiver that ends when nothing uses it any more.
    fn new(tops: Vec<Arc<Top>>) -> (Arc<Self>, oneshot::Receiver<()>) {
        let (sender, unused) = oneshot::channel();
        (Arc::new(Tops { tops, _in_use: sender }), unused)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Top> {
        self.tops.iter().map(Arc::as_ref)
    }

    pub fn get(&self, index: u32) -> Option<&Top> {
        self.tops.get(index as usize).map(Arc::as_ref)
    }

    pub fn at(&self, place: Place) -> Result<&Top, BlockError> {
        let Place { vdev, offset, .. } = place;
        self.get(vdev).ok_or(BlockError::InvalidPointer { vdev, offset, field: "vdev", value: vdev.into() })
    }

    /// Checks a range; returns its vdev and its length in whole sectors.
    pub fn check(&self, place: Place, len: u64) -> Result<(&Top, u64), BlockError> {
        let Place { vdev, offset, .. } = place;
        let top = self.at(place)?;
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

    /// The child of dRAID vdev `top` that holds `offset` of its distributed spare.
    pub fn spare_child(&self, top: u32, spare: u64, offset: u64, place: Place) -> Result<&Vdev, BlockError> {
        let Place { vdev, offset: at, hops } = place;
        let child = match self.get(top).map(|t| &t.vdev.body) {
            Some(Body::Draid { map, children }) if hops < MAX_HOPS => {
                map.spare_child(spare, offset).and_then(|i| children.get(i))
            }
            _ => None,
        };
        child.ok_or(BlockError::InvalidPointer { vdev, offset: at, field: "distributed spare", value: spare })
    }

    pub fn each_leaf(&self, visit: &mut dyn FnMut(&Arc<Leaf>)) {
        self.iter().for_each(|top| top.vdev.each_leaf(visit));
    }

    fn shared_parts(&self) -> SharedParts {
        let mut parts = SharedParts::default();
        self.each_leaf(&mut |leaf| drop(parts.leaves.insert(leaf.guid(), leaf.clone())));
        for top in self.iter() {
            match &top.vdev.body {
                Body::Indirect(removed) => drop(parts.removed.insert(top.vdev.guid, removed.clone())),
                Body::Raidz(RaidzVdev { reflow: Some(reflow), .. }) => {
                    parts.reflows.insert(top.vdev.guid, reflow.clone());
                }
                _ => {}
            }
        }
        parts
    }
}

/// The version of the tree that [`Tree::replace`] replaced.
#[must_use = "operations on the replaced vdevs may be in progress"]
pub struct Replaced(oneshot::Receiver<()>);

impl Replaced {
    /// Waits until no operation uses the replaced version.
    pub async fn drained(self) {
        // The sender is never used: the result tells only that it was dropped.
        let _ended = self.0.await;
    }
}

impl fmt::Debug for Replaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Replaced")
    }
}

/// The pool's devices.
pub struct Tree {
    tops: ArcSwap<Tops>,
    /// Ends when nothing uses `tops` any more. Its lock makes replacements exclusive.
    unused: Mutex<oneshot::Receiver<()>, { order::VDEV_TREE }>,
    /// Whether writing is allowed.
    writable: AtomicBool,
    /// Number of writes and discards in progress.
    pub(super) in_progress: AtomicU64,
    notifier: FaultNotifier,
    accounts: Arc<Accounts>,
    pub(super) clock: Clock,
    suspension: Suspension,
    range_locks: Arc<RangeLocks>,
}

/// The least limit of a leaf's kept writes, in bytes.
const KEPT_AT_LEAST_BYTES: u64 = 4 << 20;

impl Tree {
    /// Builds the tree from the description of the pool's top-level vdevs; a vdev's `id` is its index.
    ///
    /// # Errors
    /// [`TreeError`] for numbers that no pool has (sector sizes, parities, numbers of children, depth).
    pub fn new(specs: Vec<VdevSpec>, clock: &Clock) -> Result<Arc<Tree>, TreeError> {
        let notifier = FaultNotifier::default();
        let (tops, unused) = Tops::new(build(specs, &SharedParts::default(), &notifier, clock)?);
        Ok(Arc::new(Tree {
            tops: ArcSwap::new(tops),
            unused: Mutex::new(unused),
            writable: AtomicBool::new(false),
            in_progress: AtomicU64::new(0),
            notifier,
            accounts: Arc::new(Accounts::new(clock)),
            clock: clock.clone(),
            suspension: Suspension::default(),
            range_locks: Arc::default(),
        }))
    }

    /// Replaces the vdevs by those that `specs` describes, while the tree is in use. A leaf with the GUID of a present one
    /// keeps its disk, queues, counters and DTL, to which the txgs of its description are added; any other is new. The last
    /// versions' top-level vdevs stay, with their index, sector size and layout of data, each with one of its leaves at
    /// least (of RAID-Z and dRAID: each child); further ones can follow.
    ///
    /// # Errors
    /// [`TreeError`] as for a new tree, and for vdevs that could not return the blocks of the present ones. Nothing is
    /// changed then.
    pub fn replace(&self, specs: Vec<VdevSpec>) -> Result<Replaced, TreeError> {
        self.replace_but(specs, None)
    }

    /// As [`Tree::replace`], except that the top-level vdev `removed` is a removed one in `specs`, with this mapping.
    pub(crate) fn replace_by_mapping(
        &self,
        specs: Vec<VdevSpec>,
        removed: u32,
        map: Mapping,
    ) -> Result<Replaced, TreeError> {
        self.replace_but(specs, Some((removed, Some(map))))
    }

    /// As [`Tree::replace`], except that the top-level vdev `removed`, on which no block is allocated, is a hole in `specs`.
    ///
    /// # Errors
    /// As [`Tree::replace`].
    pub fn replace_without(&self, specs: Vec<VdevSpec>, removed: u32) -> Result<Replaced, TreeError> {
        self.replace_but(specs, Some((removed, None)))
    }

    /// The vdev that is removed, if one is, becomes a hole, or, if it has a mapping, an indirect vdev.
    fn replace_but(
        &self,
        specs: Vec<VdevSpec>,
        removed: Option<(u32, Option<Mapping>)>,
    ) -> Result<Replaced, TreeError> {
        let mut unused = self.unused.lock();
        let old = self.version();
        let mut known = old.shared_parts();
        let removed = removed.map(|(vdev, map)| {
            let spec = specs.iter().find(|spec| spec.id == u64::from(vdev));
            let is_hole = map.is_none();
            if let (Some(spec), Some(map)) = (spec, map) {
                known.removed.insert(spec.guid, Arc::new(map.into()));
            }
            (vdev, is_hole)
        });
        let mut dtls = Vec::new();
        specs.iter().for_each(|spec| collect_dtls(spec, &mut dtls));
        let renamed: Vec<_> = specs.iter().filter_map(|spec| Some((spec.former_guid?, spec.guid))).collect();
        let new = build(specs, &known, &self.notifier, &self.clock)?;
        let count = new.len() as u64;
        for (index, top) in old.iter().enumerate() {
            let bad = |field, value| TreeError::Field { vdev: top.vdev.name.clone(), field, value };
            let next = new.get(index).ok_or(bad("number of top-level vdevs", count))?;
            if let Some((_, is_hole)) = removed.filter(|(vdev, _)| *vdev == index as u32) {
                match next.vdev.body {
                    Body::Unsupported(_) if is_hole => continue,
                    Body::Indirect(_) if !is_hole => continue,
                    _ => return Err(bad("removed top-level vdev", index as u64)),
                }
            }
            if next.ashift != top.ashift {
                return Err(bad("ashift", next.ashift.into()));
            }
            if !next.vdev.has_blocks_of(&top.vdev) {
                return Err(bad("replacement (it has another layout, or none of the devices) of index", index as u64));
            }
        }
        for (guid, dtl) in dtls {
            let leaf = known.leaves.get(&guid);
            let ranges = dtl.ranges().iter();
            ranges.for_each(|(from, to)| leaf.iter().for_each(|leaf| leaf.writes().dtl().dirty(*from, *to, false)));
        }
        for (former, guid) in renamed {
            known.leaves.get(&former).into_iter().for_each(|leaf| leaf.rename(guid));
        }
        let (tops, next_unused) = Tops::new(new);
        invariant!(tops.tops.len() >= old.tops.len(), "a top-level vdev disappears");
        self.tops.store(tops);
        Ok(Replaced(std::mem::replace(&mut unused, next_unused)))
    }

    /// Ranges that are written and copied while vdevs are being rebuilt.
    pub(crate) fn range_locks(&self) -> &Arc<RangeLocks> {
        &self.range_locks
    }

    /// The tree, for resilvers.
    pub fn resilvering(&self) -> Resilvering<'_> {
        Resilvering::new(self)
    }

    /// The present version. An operation that awaits holds it, so that [`Replaced::drained`] waits for the operation.
    pub(super) fn version(&self) -> Arc<Tops> {
        self.tops.load_full()
    }

    /// Applies `query` to the top-level vdev `index`, if there is one.
    pub(super) fn with_top<T>(&self, index: u32, query: impl FnOnce(&Top) -> T) -> Option<T> {
        self.tops.load().get(index).map(query)
    }

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

    /// Allows or forbids writing; a new tree forbids it. Disks that were opened read-only refuse in any case.
    pub fn set_writable(&self, writable: bool) {
        self.writable.store(writable, Ordering::SeqCst);
    }

    /// Whether writing is allowed.
    pub fn is_writable(&self) -> bool {
        self.writable.load(Ordering::SeqCst)
    }

    pub(super) fn check_writable(&self) -> Result<(), BlockError> {
        if let Some(what) = invariant::violation() {
            return Err(BlockError::Invariant { what });
        }
        if self.is_writable() { Ok(()) } else { Err(BlockError::ReadOnly) }
    }

    /// The leaf `guid`.
    ///
    /// # Errors
    /// [`BlockError::NoSuchLeaf`] if there is none.
    pub fn leaf(&self, guid: u64) -> Result<LeafHandle<'_>, BlockError> {
        let mut found = None;
        self.tops.load().each_leaf(&mut |leaf| {
            if leaf.is_named(guid) {
                found = Some(leaf.clone());
            }
        });
        found.map(|leaf| LeafHandle::new(self, leaf)).ok_or(BlockError::NoSuchLeaf { guid })
    }

    /// State and counters of all leaves, in the order of the tree.
    pub fn health(&self) -> Vec<LeafHealth> {
        let mut out = Vec::new();
        self.tops.load().each_leaf(&mut |leaf| {
            let name = leaf.name.clone();
            let present = leaf.present();
            let faulted = leaf.is_faulted();
            let gone = leaf.watched().is_some_and(|watched| watched.is_gone());
            out.push(LeafHealth { guid: leaf.guid(), name, present, faulted, gone, counts: leaf.counts() });
        });
        out
    }

    /// Number of operations of all leaves since the pool was opened, without those of scrubs and resilvers.
    pub fn foreground_operations(&self) -> u64 {
        let mut out = 0;
        self.tops.load().each_leaf(&mut |leaf| out += leaf.foreground_operations());
        out
    }

    /// Statistics of the operations of each leaf, by GUID.
    pub fn stats(&self) -> BTreeMap<u64, LeafStats> {
        let mut out = BTreeMap::new();
        self.tops.load().each_leaf(&mut |leaf| {
            out.insert(leaf.guid(), leaf.stats());
        });
        out
    }

    /// Counts slow operations, and returns the leaves that have new ones or that hang.
    pub fn check_deadlines(&self, deadlines: &Deadlines) -> Vec<OverdueLeaf> {
        let mut overdue = Vec::new();
        for top in self.tops.load().iter() {
            top.vdev.each_leaf(&mut |leaf| {
                let Some(watched) = leaf.watched().filter(|watched| watched.is_in_service()) else { return };
                let (newly_slow, longest) = watched.check(deadlines.slow);
                let hang = longest.filter(|longest| longest.age >= deadlines.hang);
                if newly_slow > 0 || hang.is_some() {
                    let is_dispensable = top.vdev.has_all_without(leaf.guid());
                    let name = leaf.name.clone();
                    overdue.push(OverdueLeaf { guid: leaf.guid(), name, newly_slow, hang, is_dispensable });
                }
            });
        }
        overdue
    }

    /// DTLs that are not empty, by the GUID of the leaf.
    pub fn dtls(&self) -> BTreeMap<u64, Dtl> {
        let mut out = BTreeMap::new();
        self.tops.load().each_leaf(&mut |leaf| {
            let dtl = leaf.writes().dtl().missing();
            if !dtl.is_empty() {
                out.insert(leaf.guid(), dtl);
            }
        });
        out
    }

    /// Adds `txg` to the DTLs of the leaves whose writes in it are lost, or will be: those without a disk in service, and
    /// those that failed a flush.
    pub fn dirty_lost(&self, txg: Txg) {
        self.tops.load().each_leaf(&mut |leaf| match (leaf.present(), leaf.writes().flusher.can_repeat()) {
            (true, true) => leaf.writes().dtl().dirty_unstable(txg, txg),
            (true, false) if !leaf.writes().flusher.has_failed() => {}
            _ => leaf.writes().dtl().dirty(txg, txg, false),
        });
    }

    /// Keeps the writes that no flush covers, at most about `bytes` over all leaves, so that they can be repeated after a
    /// failed flush ([`Tree::repeat_unstable`]); 0 to keep none.
    pub fn keep_unstable(&self, bytes: u64) {
        let tops = self.version();
        let mut leaves = 0;
        tops.each_leaf(&mut |_| leaves += 1);
        let each = (bytes / leaves.max(1)).max(KEPT_AT_LEAST_BYTES.min(bytes));
        tops.each_leaf(&mut |leaf| leaf.writes().flusher.set_kept_limit(each));
    }

    /// Whether a flush failed and the writes that it covered can be repeated ([`Tree::repeat_unstable`]).
    pub fn can_repeat_unstable(&self) -> bool {
        let mut can = false;
        self.version().each_leaf(&mut |leaf| can |= leaf.writes().flusher.can_repeat());
        can
    }

    /// Writes again what the failed flushes covered, where it is kept, and flushes: after a failure of devices that has
    /// passed. Returns the errors of leaves where that failed again, which the next [`Tree::flush`] returns too.
    pub async fn repeat_unstable(&self) -> Vec<BlockError> {
        let mut leaves = Vec::new();
        self.version().each_leaf(&mut |leaf| leaves.push(leaf.clone()));
        let done = join_all(leaves.iter().map(|leaf| leaf.repeat_unstable())).await;
        done.into_iter().filter_map(Result::err).collect()
    }

    /// Plants a bug in the treatment of all present devices, which the simulator's faults must find.
    #[cfg(feature = "canary")]
    pub fn plant(&self, bug: super::DeviceBug) {
        self.version().each_leaf(&mut |leaf| {
            leaf.writes().canary.plant(bug);
            leaf.watched().into_iter().for_each(|watched| watched.plant(bug));
        });
    }

    /// Redundancy covered the flushes that failed: what they covered is not repeated.
    pub(super) fn settle_flushes(&self) {
        self.version().each_leaf(&mut |leaf| leaf.settle_flush());
    }

    /// Begins a scrub of all leaves: from here on their DTLs record its failed repairs.
    pub fn begin_scrub(&self) {
        self.tops.load().each_leaf(&mut |leaf| leaf.writes().dtl().begin_scrub());
    }

    /// Whether no DTL of a top-level vdev's leaves has a txg after `birth`.
    pub(super) fn has_all_since(&self, vdev: u32, birth: Txg) -> bool {
        self.with_top(vdev, |top| top.vdev.has_all_since(birth)).unwrap_or(false)
    }

    /// Allocatable bytes of all top-level vdevs; `None` if that of one is unknown.
    pub fn size_bytes(&self) -> Option<u64> {
        let tops = self.version();
        let sizes = tops.iter().map(|top| Some(top.asize_bytes).filter(|bytes| *bytes > 0));
        sizes.sum()
    }

    /// Relative time that reads take at places of the devices.
    pub fn read_costs(&self) -> ReadCosts {
        let tops = self.version();
        let has_platters = |top: &Top| {
            let mut has = false;
            top.vdev.each_leaf(&mut |leaf| has |= leaf.has_platters());
            has
        };
        let rotating = (0..).zip(tops.iter()).filter(|(_, top)| has_platters(top));
        ReadCosts(rotating.map(|(index, top)| (index, top.asize_bytes)).collect())
    }

    /// Number of top-level vdevs.
    pub fn len(&self) -> usize {
        self.tops.load().tops.len()
    }

    /// Whether there are no vdevs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// log2 of the sector size of top-level vdev `vdev`, if there is one.
    pub fn ashift(&self, vdev: u32) -> Option<u32> {
        self.with_top(vdev, |top| top.ashift)
    }

    /// Parameters of the allocated size of blocks on top-level vdev `vdev`.
    ///
    /// # Errors
    /// [`BlockError::NotWritable`] if it is of a kind that this program does not write to.
    pub fn sizing(&self, vdev: u32) -> Result<Sizing, BlockError> {
        let tops = self.tops.load();
        let top = tops.at(Place::new(vdev, 0))?;
        let raidz = top.vdev.striping().map_err(|what| BlockError::NotWritable { vdev, offset: 0, what })?;
        Ok(Sizing { ashift: top.ashift, raidz })
    }

    /// Bytes that 512 bytes of allocated space on `vdev` count as in a dataset's used space; `None` for kinds of vdevs that
    /// are not written to.
    pub fn deflate(&self, vdev: u32) -> Option<u64> {
        Some(self.sizing(vdev).ok()?.deflate())
    }

    /// Allocated bytes of a gang header on `vdev`; for a removed vdev, the size that the header had there.
    ///
    /// # Errors
    /// As [`Tree::sizing`].
    pub(crate) fn header_bytes(&self, vdev: u32, birth: u64) -> Result<u64, BlockError> {
        let header = weir_format::gang::CLASSIC_BYTES as u64;
        let tops = self.tops.load();
        let top = tops.at(Place::new(vdev, 0))?;
        match &top.vdev.body {
            Body::Indirect(_) => Ok(header.next_multiple_of(1 << top.ashift)),
            _ => Ok(self.sizing(vdev)?.asize_bytes(header, birth)),
        }
    }

    /// Maximum bytes of a gang header on `vdev`: the smallest allocation.
    pub(crate) fn gang_header_bytes(&self, vdev: u32) -> Option<u64> {
        self.with_top(vdev, |top| match &top.vdev.body {
            Body::Draid { map, .. } => map.layout().ndata << top.ashift,
            _ => 1 << top.ashift,
        })
    }

    /// Whether a top-level vdev is one device.
    pub(crate) fn is_one_device(&self, vdev: u32) -> bool {
        self.with_top(vdev, |top| matches!(top.vdev.body, Body::Leaf(_))).unwrap_or(false)
    }

    /// Whether a top-level vdev has enough present devices to store new writes.
    pub fn can_keep(&self, vdev: u32) -> bool {
        self.with_top(vdev, |top| top.vdev.can_keep()).unwrap_or(false)
    }

    /// Whether top-level vdev `vdev` is of a kind that supports discards.
    pub(crate) fn discards(&self, vdev: u32) -> bool {
        let supports = |top: &Top| matches!(top.vdev.body, Body::Leaf(_) | Body::Mirror(_) | Body::Raidz(_));
        self.with_top(vdev, supports).unwrap_or(false)
    }

    /// Sets the mapping of removed vdev `vdev`. False, without a change, if it has a mapping already or is not a removed
    /// vdev.
    pub fn set_mapping(&self, vdev: u32, map: &[MappingEntry]) -> bool {
        let set = |top: &Top| match &top.vdev.body {
            Body::Indirect(indirect) => indirect.set(map),
            _ => false,
        };
        self.with_top(vdev, set).unwrap_or(false)
    }

    /// Reads `len` bytes at `place`: reads whole sectors, and passes `len` bytes to `verify`.
    pub(crate) async fn read(
        &self,
        job: &VdevRead<'_>,
        place: Place,
        len: u64,
        verify: Verify<'_>,
    ) -> Result<Buf, BlockError> {
        let tops = self.version();
        let (top, whole) = tops.check(place, len)?;
        let exact = |bytes: &[u8]| verify(bytes.get(..len as usize).unwrap_or(bytes));
        let mut buf = top.vdev.read(self, job, place, place.offset, whole, Some(&exact)).await?;
        buf.truncate(len as usize);
        Ok(buf)
    }

    /// All copies of a range that can be read, right or wrong.
    pub(crate) fn copies<'a>(&'a self, job: &'a VdevRead<'a>, place: Place, len: u64) -> BoxFuture<'a, Vec<Buf>> {
        Box::pin(async move {
            let tops = self.version();
            let Ok((top, whole)) = tops.check(place, len) else { return Vec::new() };
            let mut out = Vec::new();
            top.vdev.copies(self, job, place, place.offset, whole, &mut out).await;
            for buf in &mut out {
                buf.truncate(len as usize);
            }
            out
        })
    }
}

/// Collects the DTLs of a description that are not empty, by the GUID of the leaf.
fn collect_dtls(spec: &VdevSpec, out: &mut Vec<(u64, Dtl)>) {
    out.extend((!spec.dtl.is_empty()).then(|| (spec.guid, spec.dtl.clone())));
    spec.children.iter().for_each(|child| collect_dtls(child, out));
}

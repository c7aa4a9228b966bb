//! Verifies a pool: every block is visited once, its checksum is right, and the space maps allocate exactly these
//! blocks.
//!
//! ```text
//!   space maps ─▶ allocated ranges ──────────┐
//!   deferred frees ─────────────────▶ blocks ├─▶ each block removes its segments
//!   MOS and datasets ──walk──▶ blocks ────────┘        │
//!                                  not removable: allocated twice, or in use though free
//!                                  remaining: leaked
//! ```
//!
//! *Passes.* The allocated ranges of a large or fragmented pool do not fit into memory. Then the metaslabs are divided into
//! runs of at most [`RUN_SEGMENTS`] segments, and the pool is walked once for each run: a pass claims only the segments in
//! its run. The first pass also verifies checksums and counts; later ones read only blocks of pointers.
//!
//! A segment may rightly be visited several times if its block is deduplicated (by its pointer) or cloned (by the block
//! reference table). Segments on removed vdevs are followed to their new addresses. While a vdev is being removed, its
//! blocks are still read there, and no pointer leads to their copies, so the allocated segments of the vdev up to the
//! end of its mapping remove the segments of their copies as well.
//!
//! All figures are those of `zdb -bcc` (OpenZFS `cmd/zdb/zdb.c`, `dump_block_stats`), so the sums can be compared.

use crate::block_stats::{BlockStats, DEFERRED, row_of};
use crate::config::{VdevConfig, VdevKind};
use crate::indirect;
use crate::mos::Mos;
use crate::open::Pool;
use crate::ranges::Ranges;
use crate::space_map_loader::{Allocated, MapFault, MetaslabRun, RUN_SEGMENTS, SpaceMapIndex};
use crate::walk::{Claim, Prove, Root, Visit, VisitPosition, Walk, gang_claims};
use std::collections::{BTreeMap, BTreeSet};
use weir_blocks::BlockError;
use weir_dmu::zap::Zap;
use weir_dmu::{CycleGuard, DataBlocks, ErrorLocation, ObjectError};
use weir_dsl::sync_tasks::waiting_trees;
use weir_dsl::{deadlist, livelist};
use weir_format::dsl::Bpobj;
use weir_format::dsl::pool as names;
use weir_format::indirect::MappingEntry;
use weir_format::{BlockPointer, Cursor, DecodeError, Dva, ObjectId, ObjsetId, Txg, brt};
use weir_machine::Request;

/// Maximum number of findings of each kind that are returned; all are counted.
const KEPT: usize = 1000;
/// Maximum length of a chain of removed vdevs.
const MAX_DEPTH: u32 = 64;
/// Maximum number of blocks of a destroyed dataset's tree in memory at a time.
const TREE_BLOCKS: u64 = 1 << 16;
/// Maximum number of entries of a block reference table whose addresses are in memory, at 8 bytes each.
const MAX_CLONES: usize = 1 << 26;
/// Number of entries of a block reference table that are read at a time.
const CLONES_PER_READ: usize = 4096;

/// Parameters of a verification.
pub struct Plan<'a> {
    /// The walk.
    pub walk: Walk,
    /// The meta object set.
    pub mos: &'a Mos,
    /// The top-level vdevs as the MOS describes them.
    pub tops: &'a [VdevConfig],
    /// New addresses of the segments of removed vdevs, by vdev, each list sorted by source.
    pub moved: BTreeMap<u32, Vec<MappingEntry>>,
    /// Whether to compare with the space maps.
    pub space: bool,
    /// Maximum number of allocated segments in memory: usually [`RUN_SEGMENTS`].
    pub max_segments: u64,
}

/// Progress of a verification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Number of visited blocks.
    pub blocks: u64,
    /// Allocated bytes of these blocks.
    pub met_bytes: u64,
    /// Allocated bytes of the pool, if the space maps were read.
    pub total_bytes: u64,
    /// Bad blocks so far.
    pub bad: u64,
    /// Number of the pass, from 1 on.
    pub pass: u64,
    /// Number of passes.
    pub passes: u64,
}

/// A block whose segment is free, or in use by another block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clash {
    /// Position of the block.
    pub at: VisitPosition,
    /// Segment of the block.
    pub claim: Claim,
    /// Bytes of the segment that are free, or in use by another block.
    pub bytes: u64,
}

/// Result of a verification.
#[derive(Debug, Default)]
pub struct Report {
    /// Statistics by type and level.
    pub counts: BlockStats,
    /// The first thousand unreadable blocks.
    pub unreadable: Vec<(VisitPosition, BlockError)>,
    /// Number of unreadable blocks.
    pub unreadable_count: u64,
    /// The first thousand clashes.
    pub clashes: Vec<Clash>,
    /// Number of clashes.
    pub clash_count: u64,
    /// Bytes saved by deduplication, and the number of pointers that save them.
    pub deduped: (u64, u64),
    /// Bytes saved by block cloning, and the number of pointers that save them.
    pub cloned: (u64, u64),
    /// Bytes of the copies that a vdev removal in progress has made.
    pub removing_bytes: u64,
    /// Comparison with the space maps, if it was requested.
    pub space: Option<SpaceReport>,
}

/// Result of comparing the blocks with the space maps.
#[derive(Debug, Default)]
pub struct SpaceReport {
    /// Allocated bytes of each vdev by its space maps and their logs.
    pub bytes: BTreeMap<u32, u64>,
    /// Bytes kept for a checkpoint.
    pub checkpoint_bytes: u64,
    /// The first thousand space maps that contradict themselves or cannot be read.
    pub faults: Vec<MapFault>,
    /// The first thousand segments that are allocated and used by no block.
    pub leaks: Vec<Claim>,
    /// Number of these segments.
    pub leak_count: u64,
    /// Number of passes of the walk.
    pub passes: u64,
}

impl SpaceReport {
    /// Adds the result of one pass, whose allocated segments without those of the blocks are `rest`.
    fn add(&mut self, rest: Allocated) {
        for (vdev, bytes) in rest.bytes {
            *self.bytes.entry(vdev).or_default() += bytes;
        }
        self.checkpoint_bytes += rest.checkpoint_bytes;
        self.faults.extend(rest.faults.into_iter().take(KEPT.saturating_sub(self.faults.len())));
        let leaks = rest.vdevs.iter().flat_map(|(vdev, ranges)| ranges.iter().map(|(start, len)| (*vdev, start, len)));
        for leak in leaks {
            self.leak_count += 1;
            if self.leaks.len() < KEPT {
                self.leaks.push(leak);
            }
        }
    }
}

impl Report {
    /// Returns the allocated bytes of the blocks.
    pub fn found_bytes(&self) -> u64 {
        let kept = self.space.as_ref().map_or(0, |s| s.checkpoint_bytes);
        let saved = self.deduped.0 + self.cloned.0;
        (self.counts.total().asize_bytes + kept + self.removing_bytes).saturating_sub(saved)
    }

    /// Returns the allocated bytes of the space maps.
    pub fn allocated_bytes(&self) -> u64 {
        self.space.as_ref().map_or(0, |s| s.bytes.values().sum())
    }

    /// Returns the first thousand segments that are allocated and used by no block: (vdev, offset, length).
    pub fn leaks(&self) -> impl Iterator<Item = Claim> + '_ {
        self.space.iter().flat_map(|space| space.leaks.iter().copied())
    }

    /// Whether blocks and space maps agree.
    pub fn space_agrees(&self) -> bool {
        let agrees = |space: &SpaceReport| space.faults.is_empty() && space.leak_count == 0;
        self.space.as_ref().is_none_or(agrees) && self.clash_count == 0
    }

    /// Whether nothing was found.
    pub fn is_clean(&self) -> bool {
        self.unreadable_count == 0 && self.space_agrees()
    }
}

/// Verifies `roots`; calls `show` from time to time.
///
/// # Errors
/// [`ObjectError`] if the lists that a verification starts from cannot be read; everything else is in the report.
pub async fn verify(
    rq: &Request,
    plan: &Plan<'_>,
    roots: Vec<Root>,
    show: &mut (dyn FnMut(Progress) + Send),
) -> Result<Report, ObjectError> {
    let mut index = match plan.space {
        true => SpaceMapIndex::read(rq, plan.mos, plan.tops).await?,
        false => SpaceMapIndex::default(),
    };
    let runs = index.runs(plan.max_segments);
    let passes = runs.len() as u64;
    let faults = std::mem::take(&mut index.faults);
    let space = plan.space.then(|| SpaceReport { faults, passes, ..SpaceReport::default() });
    let mut verifier = Verifier {
        report: Report { space, ..Report::default() },
        index,
        run: MetaslabRun::ALL,
        allocated: None,
        metaslab_shifts: plan.tops.iter().map(|t| (t.id as u32, t.metaslab_shift as u32)).collect(),
        moved: &plan.moved,
        clones: clones(rq, plan).await?,
        seen: BTreeSet::new(),
        row: None,
        progress: Progress { passes, ..Progress::default() },
        show,
    };
    verifier.progress.total_bytes = verifier.index.total_bytes();
    for run in runs {
        verifier.begin(rq, plan, run).await?;
        deferred(rq, plan, &mut verifier).await?;
        removing(rq, plan, &mut verifier).await?;
        let prove = if verifier.is_first() { plan.walk.prove } else { Prove::Nothing };
        let walk = Walk { machine: plan.walk.machine.clone(), blocks: plan.walk.blocks.clone(), prove, ..plan.walk };
        walk.run(roots.clone(), &mut verifier).await;
        verifier.end();
    }
    (verifier.show)(verifier.progress);
    Ok(verifier.report)
}

struct Verifier<'a> {
    report: Report,
    index: SpaceMapIndex,
    /// The metaslabs of this pass.
    run: MetaslabRun,
    /// Their allocated segments without those of the blocks visited so far; `None` if space maps are not compared.
    allocated: Option<Allocated>,
    metaslab_shifts: BTreeMap<u32, u32>,
    moved: &'a BTreeMap<u32, Vec<MappingEntry>>,
    /// Offsets in the block reference table of each vdev, sorted.
    clones: BTreeMap<u32, Vec<u64>>,
    /// Deduplicated and cloned blocks visited in this pass that may have segments in its run.
    seen: BTreeSet<(u32, u64)>,
    /// Counts everything in this row.
    row: Option<usize>,
    progress: Progress,
    show: &'a mut (dyn FnMut(Progress) + Send),
}

impl Visit for Verifier<'_> {
    fn block(&mut self, _at: &VisitPosition, bp: &BlockPointer) -> bool {
        if self.is_first() {
            let shifts = &self.metaslab_shifts;
            let metaslab =
                |vdev: u32, offset: u64| offset.checked_shr(shifts.get(&vdev).copied().unwrap_or(63)).unwrap_or(0);
            self.report.counts.add(bp, self.row.unwrap_or(row_of(bp.object_type())), metaslab);
            self.progress.blocks += 1;
            self.progress.met_bytes += bp.asize_bytes();
        }
        let Some(first) = bp.dvas().next() else { return false };
        let key = (first.vdev, first.offset_bytes);
        let is_clone = || self.clones.get(&key.0).is_some_and(|offsets| offsets.binary_search(&key.1).is_ok());
        let is_shared = bp.is_dedup() || is_clone();
        if !self.may_have_segments(bp) {
            return false;
        }
        if !is_shared || self.seen.insert(key) {
            return true;
        }
        // The pass of the first address counts what the block saves.
        if self.part((key.0, key.1, 1)).is_some() {
            let saved = if bp.is_dedup() { &mut self.report.deduped } else { &mut self.report.cloned };
            saved.0 += bp.asize_bytes();
            saved.1 += 1;
        }
        false
    }

    fn claim(&mut self, at: &VisitPosition, _bp: &BlockPointer, claim: Claim) {
        let missing = self.take(claim, 0);
        if missing > 0 {
            self.clash(Clash { at: *at, claim, bytes: missing });
        }
    }

    fn unreadable(&mut self, at: &VisitPosition, _bp: &BlockPointer, error: &BlockError) {
        if !self.is_first() {
            return;
        }
        self.report.unreadable_count += 1;
        self.progress.bad += 1;
        if self.report.unreadable.len() < KEPT {
            self.report.unreadable.push((*at, error.clone()));
        }
    }

    fn tick(&mut self) {
        (self.show)(self.progress);
    }
}

impl Verifier<'_> {
    /// Begins a pass over the segments of a run.
    async fn begin(&mut self, rq: &Request, plan: &Plan<'_>, run: MetaslabRun) -> Result<(), ObjectError> {
        debug_assert!(self.allocated.is_none() && self.seen.is_empty(), "the last pass has ended");
        self.run = run;
        self.progress.pass += 1;
        if plan.space {
            self.allocated = Some(self.index.allocated(rq, plan.mos, &run).await?);
        }
        Ok(())
    }

    /// Ends the pass: what is left of its allocated segments is leaked.
    fn end(&mut self) {
        self.seen.clear();
        if let (Some(rest), Some(space)) = (self.allocated.take(), &mut self.report.space) {
            space.add(rest);
        }
    }

    fn is_first(&self) -> bool {
        self.progress.pass <= 1
    }

    /// The part of a segment that this pass claims.
    fn part(&self, (vdev, offset, len): Claim) -> Option<Claim> {
        let shift = self.index.tops.get(&vdev).map_or(63, |top| top.geometry.shift());
        let part = self.run.part(vdev, shift, offset..offset.saturating_add(len))?;
        Some((vdev, part.start, part.end - part.start))
    }

    /// Whether a block may have segments that this pass claims. The pieces of a gang, and the copies of the blocks of removed
    /// vdevs, may be anywhere.
    fn may_have_segments(&self, bp: &BlockPointer) -> bool {
        let may =
            |d: Dva| self.moved.contains_key(&d.vdev) || self.part((d.vdev, d.offset_bytes, d.asize_bytes)).is_some();
        self.progress.passes <= 1 || bp.is_gang() || bp.dvas().any(may)
    }

    fn clash(&mut self, clash: Clash) {
        self.report.clash_count += 1;
        self.progress.bad += 1;
        if self.report.clashes.len() < KEPT {
            self.report.clashes.push(clash);
        }
    }

    /// Removes a segment from the allocated ones; returns the number of bytes of this pass's part that were not allocated.
    fn take(&mut self, claim: Claim, depth: u32) -> u64 {
        let (vdev, offset, len) = claim;
        if self.allocated.is_none() {
            return 0;
        }
        if let Some(mapping) = self.moved.get(&vdev) {
            return self.take_copies(mapping, offset, len, depth);
        }
        let Some((_, offset, len)) = self.part(claim) else { return 0 };
        let ranges = self.allocated.as_mut().and_then(|space| space.vdevs.get_mut(&vdev));
        ranges.map_or(len, |ranges| ranges.remove(offset, len))
    }

    /// Removes the copies of a segment, found by a mapping, from the allocated segments; returns the number of bytes
    /// that were not allocated.
    fn take_copies(&mut self, mapping: &[MappingEntry], offset: u64, len: u64, depth: u32) -> u64 {
        if depth >= MAX_DEPTH {
            return len;
        }
        let end = offset.saturating_add(len);
        let first = mapping.partition_point(|e| e.source_end_bytes() <= offset);
        let mut missing = if self.is_first() { len } else { 0 };
        for entry in mapping.iter().skip(first).take_while(|e| e.source_bytes < end) {
            let from = entry.source_bytes.max(offset);
            let to = entry.source_end_bytes().min(end);
            let target = entry.target.offset_bytes.saturating_add(from - entry.source_bytes);
            let piece = to.saturating_sub(from);
            missing = missing.saturating_sub(piece) + self.take((entry.target.vdev, target, piece), depth + 1);
        }
        missing
    }
}

/// Claims the copies of the allocated segments of a vdev that is being removed, up to the end of its mapping
/// (`zdb_claim_removing`).
async fn removing(rq: &Request, plan: &Plan<'_>, verifier: &mut Verifier<'_>) -> Result<(), ObjectError> {
    for top in plan.tops.iter().filter(|top| top.removing && top.is_concrete() && top.indirect_object != 0) {
        let (id, object) = (top.id as u32, ObjectId(top.indirect_object));
        let (header, mapping) = indirect::mapping(rq, plan.mos, object).await?;
        let metaslabs = verifier.index.tops.get(&id).map_or(0, |top| top.metaslabs.len() as u64);
        for metaslab in 0..metaslabs {
            let copied = verifier.index.allocated(rq, plan.mos, &MetaslabRun::one((id, metaslab))).await?;
            let copied: Vec<(u64, u64)> = copied.vdevs.get(&id).into_iter().flat_map(Ranges::iter).collect();
            for (start, len) in copied.into_iter().filter(|(start, _)| *start < header.max_offset_bytes) {
                let len = len.min(header.max_offset_bytes - start);
                if verifier.is_first() {
                    verifier.report.removing_bytes += len;
                }
                let bytes = verifier.take_copies(&mapping, start, len, 1);
                if bytes > 0 {
                    let at = VisitPosition { objset: ObjsetId::MOS, object: object.0, level: 0, block: 0 };
                    verifier.clash(Clash { at, claim: (id, start, len), bytes });
                }
            }
        }
    }
    Ok(())
}

/// Claims freed blocks whose space is not freed yet.
async fn deferred(rq: &Request, plan: &Plan<'_>, verifier: &mut Verifier<'_>) -> Result<(), ObjectError> {
    verifier.row = Some(DEFERRED);
    for name in [names::SYNC_BPOBJ, names::FREE_BPOBJ] {
        let Some(list) = plan.mos.named(rq, name).await? else { continue };
        let mut lists = vec![list];
        let mut trail = CycleGuard::default();
        while let Some(list) = lists.pop() {
            trail.step(&plan.mos.set, list)?;
            lists.extend(pointers(rq, plan, list, verifier).await?);
        }
    }
    deleted_clones(rq, plan, verifier).await?;
    trees(rq, plan, verifier).await?;
    verifier.row = None;
    Ok(())
}

/// Claims blocks in the live lists of destroyed clones.
async fn deleted_clones(rq: &Request, plan: &Plan<'_>, verifier: &mut Verifier<'_>) -> Result<(), ObjectError> {
    let mos = &plan.mos.set;
    for list in livelist::of_deleted_clones(rq, mos).await? {
        for part in deadlist::lists(rq, mos, list).await?.into_values() {
            for (bp, block) in livelist::allocated(rq, mos, part).await?.iter().zip(0u64..) {
                freed(
                    rq,
                    plan,
                    verifier,
                    &VisitPosition { objset: ObjsetId::MOS, object: part.0, level: 0, block },
                    bp,
                )
                .await;
            }
        }
    }
    Ok(())
}

/// Claims the remaining blocks of the trees of destroyed datasets.
async fn trees(rq: &Request, plan: &Plan<'_>, verifier: &mut Verifier<'_>) -> Result<(), ObjectError> {
    for (tree, number) in waiting_trees(rq, &plan.mos.set).await?.into_iter().zip(0u64..) {
        let mut rest = Some(tree);
        while let Some(tree) = rest {
            let (blocks, more) = tree.look(rq, plan.mos.set.cache(), TREE_BLOCKS).await?;
            rest = more;
            for (bp, index) in blocks.iter().zip(0u64..) {
                let at = VisitPosition { objset: ObjsetId::MOS, object: number, level: bp.level() as i8, block: index };
                freed(rq, plan, verifier, &at, bp).await;
            }
            // A malformed tree may lead to the same blocks without end.
            if verifier.report.clash_count > KEPT as u64 {
                break;
            }
        }
    }
    Ok(())
}

/// Claims the pointers of one list; returns the lists below it.
async fn pointers(
    rq: &Request,
    plan: &Plan<'_>,
    list: ObjectId,
    verifier: &mut Verifier<'_>,
) -> Result<Vec<ObjectId>, ObjectError> {
    let mos = plan.mos;
    let object = mos.set.object(rq, list).await?;
    let place = ErrorLocation { objset: mos.set.id(), object: list, level: 0, block: 0 };
    let bad = |error: DecodeError| ObjectError::Decode { place, error };
    let header = Bpobj::decode(object.dnode.bonus(), object.dnode.endian).map_err(bad)?;
    let per_block = object.block_bytes() / BlockPointer::SIZE as u64;
    let mut blocks = DataBlocks::of(&mos.set, &object);
    while let Some(block) = blocks.next(rq).await? {
        let left = header.pointers.saturating_sub(block.saturating_mul(per_block)).min(per_block);
        let Some((bytes, endian)) = mos.set.reader().read_ordered_block(rq, &object, block).await?.filter(|_| left > 0)
        else {
            break;
        };
        let mut cursor = Cursor::new(&bytes, endian, "list of block pointers");
        for index in 0..left {
            let bp = BlockPointer::decode(&mut cursor).map_err(bad)?;
            let at =
                VisitPosition { objset: ObjsetId::MOS, object: list.0, level: 0, block: block * per_block + index };
            freed(rq, plan, verifier, &at, &bp).await;
        }
    }
    let Some((lists, count)) = header.sub_objects else { return Ok(Vec::new()) };
    Ok(mos.words(rq, lists, count).await?.into_iter().filter(|l| *l != 0).map(ObjectId).collect())
}

/// Counts and claims a block that is still to be freed.
async fn freed(rq: &Request, plan: &Plan<'_>, verifier: &mut Verifier<'_>, at: &VisitPosition, bp: &BlockPointer) {
    if bp.is_hole() || !verifier.block(at, bp) {
        return;
    }
    let claims = match bp.is_gang() {
        true => gang_claims(&plan.walk.blocks, rq, bp).await,
        false => bp.dvas().map(|d| (d.vdev, d.offset_bytes, d.asize_bytes)).collect(),
    };
    for claim in claims {
        verifier.claim(at, bp, claim);
    }
}

/// Returns the offsets of cloned blocks, by vdev, sorted.
async fn clones(rq: &Request, plan: &Plan<'_>) -> Result<BTreeMap<u32, Vec<u64>>, ObjectError> {
    let mut out = BTreeMap::new();
    for top in plan.tops {
        let Some(table) = plan.mos.named(rq, &brt::table_name(top.id)).await? else { continue };
        let object = plan.mos.set.object(rq, table).await?;
        let place = ErrorLocation { objset: ObjsetId::MOS, object: table, level: 0, block: 0 };
        let header = brt::BrtVdev::decode(object.dnode.bonus(), object.dnode.endian)
            .map_err(|error| ObjectError::Decode { place, error })?;
        if header.entries.0 == 0 {
            continue;
        }
        let zap = Zap::open(rq, &plan.mos.set, header.entries).await?;
        let mut offsets = Vec::new();
        let mut cookie = 0;
        loop {
            let entries = zap.entries(rq, cookie, CLONES_PER_READ).await?;
            let Some(last) = entries.last() else { break };
            cookie = last.cookie;
            let keys = entries.iter().filter_map(|entry| match &entry.key {
                weir_dmu::zap::Key::Words(words) => words.first().copied(),
                _ => None,
            });
            offsets.extend(keys);
            if offsets.len() > MAX_CLONES {
                let place = ErrorLocation { object: header.entries, ..place };
                return Err(ObjectError::Corrupt { place, why: "more entries than a block reference table has" });
            }
        }
        offsets.sort_unstable();
        out.insert(top.id as u32, offsets);
    }
    Ok(out)
}

/// Verifies every block of the pool, and that the space maps allocate exactly these blocks.
///
/// # Errors
/// [`ObjectError`] if the lists that a verification starts from cannot be read; everything else is in the report.
pub async fn verify_pool(pool: &Pool, rq: &Request) -> Result<Report, ObjectError> {
    verify_pool_in_passes(pool, rq, RUN_SEGMENTS).await
}

/// As [`verify_pool`], with at most `max_segments` allocated segments in memory at a time.
///
/// # Errors
/// As [`verify_pool`].
pub async fn verify_pool_in_passes(pool: &Pool, rq: &Request, max_segments: u64) -> Result<Report, ObjectError> {
    let mut moved = BTreeMap::new();
    for vdev in pool.tree.children.iter().filter(|v| v.kind == VdevKind::Indirect && v.indirect_object != 0) {
        moved.insert(vdev.id as u32, indirect::mapping(rq, &pool.mos, ObjectId(vdev.indirect_object)).await?.1);
    }
    let log_before = Txg(pool.uberblock.txg.0.saturating_add(1));
    let (machine, blocks) = (pool.machine.clone(), pool.blocks.clone());
    let walk = Walk { machine, blocks, prove: Prove::Everything, log_before };
    let plan = Plan { walk, mos: &pool.mos, tops: &pool.tree.children, moved, space: true, max_segments };
    let (roots, bad) = crate::roots::roots(rq, &pool.mos).await?;
    let mut report = verify(rq, &plan, roots, &mut |_| ()).await?;
    report.unreadable_count += bad;
    Ok(report)
}

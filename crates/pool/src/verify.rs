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
use crate::space_map_loader::{Allocated, allocated};
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
use weir_format::{BlockPointer, Cursor, DecodeError, ObjectId, ObjsetId, Txg, brt};
use weir_machine::Request;

/// Maximum number of findings of each kind that are returned; all are counted.
const KEPT: usize = 1000;
/// Maximum length of a chain of removed vdevs.
const MAX_DEPTH: u32 = 64;
/// Maximum number of blocks of a destroyed dataset's tree in memory at a time.
const TREE_BLOCKS: u64 = 1 << 16;
/// Maximum number of entries of a block reference table in memory.
const MAX_CLONES: usize = 1 << 26;

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
    /// Allocated segments of the space maps that no block uses.
    pub space: Option<Allocated>,
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

    /// Returns the segments that are allocated and used by no block: (vdev, offset, length).
    pub fn leaks(&self) -> impl Iterator<Item = Claim> + '_ {
        let vdevs = self.space.iter().flat_map(|s| &s.vdevs);
        vdevs.flat_map(|(vdev, ranges)| ranges.iter().map(|(start, len)| (*vdev, start, len)))
    }

    /// Whether blocks and space maps agree.
    pub fn space_agrees(&self) -> bool {
        let space = self.space.as_ref().is_none_or(|s| s.faults.is_empty());
        space && self.clash_count == 0 && self.leaks().next().is_none()
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
    let space = if plan.space { Some(allocated(rq, plan.mos, plan.tops).await?) } else { None };
    let total_bytes = space.as_ref().map_or(0, |s| s.bytes.values().sum());
    let mut verifier = Verifier {
        report: Report { space, ..Report::default() },
        metaslab_shifts: plan.tops.iter().map(|t| (t.id as u32, t.metaslab_shift as u32)).collect(),
        moved: &plan.moved,
        clones: clones(rq, plan).await?,
        seen: BTreeSet::new(),
        row: None,
        progress: Progress { total_bytes, ..Progress::default() },
        show,
    };
    deferred(rq, plan, &mut verifier).await?;
    removing(rq, plan, &mut verifier).await?;
    plan.walk.run(roots, &mut verifier).await;
    (verifier.show)(verifier.progress);
    Ok(verifier.report)
}

struct Verifier<'a> {
    report: Report,
    metaslab_shifts: BTreeMap<u32, u32>,
    moved: &'a BTreeMap<u32, Vec<MappingEntry>>,
    /// Addresses in the block reference table.
    clones: BTreeSet<(u32, u64)>,
    /// Deduplicated and cloned blocks visited so far.
    seen: BTreeSet<(u32, u64)>,
    /// Counts everything in this row.
    row: Option<usize>,
    progress: Progress,
    show: &'a mut (dyn FnMut(Progress) + Send),
}

impl Visit for Verifier<'_> {
    fn block(&mut self, _at: &VisitPosition, bp: &BlockPointer) -> bool {
        let shifts = &self.metaslab_shifts;
        let metaslab =
            |vdev: u32, offset: u64| offset.checked_shr(shifts.get(&vdev).copied().unwrap_or(63)).unwrap_or(0);
        self.report.counts.add(bp, self.row.unwrap_or(row_of(bp.object_type())), metaslab);
        self.progress.blocks += 1;
        self.progress.met_bytes += bp.asize_bytes();
        let Some(first) = bp.dvas().next() else { return false };
        let key = (first.vdev, first.offset_bytes);
        let saved = if bp.is_dedup() {
            &mut self.report.deduped
        } else if self.clones.contains(&key) {
            &mut self.report.cloned
        } else {
            return true;
        };
        if self.seen.insert(key) {
            return true;
        }
        saved.0 += bp.asize_bytes();
        saved.1 += 1;
        false
    }

    fn claim(&mut self, at: &VisitPosition, _bp: &BlockPointer, claim: Claim) {
        let missing = self.take(claim, 0);
        if missing > 0 {
            self.clash(Clash { at: *at, claim, bytes: missing });
        }
    }

    fn unreadable(&mut self, at: &VisitPosition, _bp: &BlockPointer, error: &BlockError) {
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
    fn clash(&mut self, clash: Clash) {
        self.report.clash_count += 1;
        self.progress.bad += 1;
        if self.report.clashes.len() < KEPT {
            self.report.clashes.push(clash);
        }
    }

    /// Removes a segment from the allocated ones; returns the number of bytes that were not allocated.
    fn take(&mut self, (vdev, offset, len): Claim, depth: u32) -> u64 {
        let Some(space) = &mut self.report.space else { return 0 };
        let Some(mapping) = self.moved.get(&vdev) else {
            return space.vdevs.get_mut(&vdev).map_or(len, |ranges| ranges.remove(offset, len));
        };
        self.take_copies(mapping, offset, len, depth)
    }

    /// Removes the copies of a segment, found by a mapping, from the allocated segments; returns the number of bytes
    /// that were not allocated.
    fn take_copies(&mut self, mapping: &[MappingEntry], offset: u64, len: u64, depth: u32) -> u64 {
        if depth >= MAX_DEPTH {
            return len;
        }
        let end = offset.saturating_add(len);
        let first = mapping.partition_point(|e| e.source_end_bytes() <= offset);
        let mut missing = len;
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
        let Some(space) = &verifier.report.space else { return Ok(()) };
        let copied: Vec<(u64, u64)> = space.vdevs.get(&id).into_iter().flat_map(Ranges::iter).collect();
        for (start, len) in copied.into_iter().filter(|(start, _)| *start < header.max_offset_bytes) {
            let len = len.min(header.max_offset_bytes - start);
            verifier.report.removing_bytes += len;
            let bytes = verifier.take_copies(&mapping, start, len, 1);
            if bytes > 0 {
                let at = VisitPosition { objset: ObjsetId::MOS, object: object.0, level: 0, block: 0 };
                verifier.clash(Clash { at, claim: (id, start, len), bytes });
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

/// Returns the addresses of cloned blocks.
async fn clones(rq: &Request, plan: &Plan<'_>) -> Result<BTreeSet<(u32, u64)>, ObjectError> {
    let mut out = BTreeSet::new();
    for top in plan.tops {
        let Some(table) = plan.mos.named(rq, &brt::table_name(top.id)).await? else { continue };
        let object = plan.mos.set.object(rq, table).await?;
        let place = ErrorLocation { objset: ObjsetId::MOS, object: table, level: 0, block: 0 };
        let header = brt::BrtVdev::decode(object.dnode.bonus(), object.dnode.endian)
            .map_err(|error| ObjectError::Decode { place, error })?;
        if header.entries.0 == 0 {
            continue;
        }
        for entry in Zap::open(rq, &plan.mos.set, header.entries).await?.all(rq, MAX_CLONES).await? {
            if let weir_dmu::zap::Key::Words(words) = &entry.key
                && let Some(offset) = words.first()
            {
                out.insert((top.id as u32, *offset));
            }
        }
    }
    Ok(out)
}

/// Verifies every block of the pool, and that the space maps allocate exactly these blocks.
///
/// # Errors
/// [`ObjectError`] if the lists that a verification starts from cannot be read; everything else is in the report.
pub async fn verify_pool(pool: &Pool, rq: &Request) -> Result<Report, ObjectError> {
    let mut moved = BTreeMap::new();
    for vdev in pool.tree.children.iter().filter(|v| v.kind == VdevKind::Indirect && v.indirect_object != 0) {
        moved.insert(vdev.id as u32, indirect::mapping(rq, &pool.mos, ObjectId(vdev.indirect_object)).await?.1);
    }
    let log_before = Txg(pool.uberblock.txg.0.saturating_add(1));
    let (machine, blocks) = (pool.machine.clone(), pool.blocks.clone());
    let walk = Walk { machine, blocks, prove: Prove::Everything, log_before };
    let plan = Plan { walk, mos: &pool.mos, tops: &pool.tree.children, moved, space: true };
    let (roots, bad) = crate::roots::roots(rq, &pool.mos).await?;
    let mut report = verify(rq, &plan, roots, &mut |_| ()).await?;
    report.unreadable_count += bad;
    Ok(report)
}

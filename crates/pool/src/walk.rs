//! Walks over every block that a pool refers to, once.
//!
//! ```text
//!   roots (MOS, each dataset from its previous snapshot's txg) ─► waiting ─► visit ─► read, if there is more below
//!                                                                  ▲                   │  or it is to verify the bytes
//!                                                                  └── pointers found ◄┘  (concurrent reads)
//! ```
//!
//! A block is born in one txg and never changes; a snapshot shares older blocks with the snapshot before it. So a walk
//! that visits, in each dataset, only blocks born after its previous snapshot visits every block exactly once (OpenZFS
//! `module/zfs/dmu_traverse.c`).
//!
//! Of the pointers that wait, the one whose position is the lowest is visited next. So the pointers of an indirect block are
//! visited before its siblings, and at most one block of pointers for each level and each concurrent read waits, whatever the
//! size of the pool. And a walk that ends early has visited all data before the position where it ends, and little behind it:
//! blocks of pointers that concurrent reads were ahead, which the next walk visits again. The visitor is called from one task;
//! reads run on all processors.
//!
//! An unreadable block is reported to the visitor, and the blocks below it are left out.

mod found;
mod log;
mod waiting;

use bytes::Bytes;
use found::{Hold, MAX_DELAY, Sink};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use log::{is_log_block, log_items};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use waiting::Waiting;
use weir_blocks::{BlockError, Blocks, Bookmark, ReadOptions};
use weir_codec::checksum::verify_gang_header;
use weir_dmu::{ErrorLocation, TreeGeometry, VisitedBlocks};
use weir_format::{BlockPointer, CompressionKind, Dnode, ObjectType, Objset, ObjsetId, Txg, gang};
use weir_machine::{Machine, Priority, Request, invariant};

/// Maximum number of concurrent reads.
const PARALLEL: usize = 48;
/// Maximum number of concurrent reads of blocks of pointers. They run ahead of the data, and if the walk ends early, the next
/// one visits them again.
const AHEAD: usize = 16;
/// Maximum bytes of concurrent reads.
const PARALLEL_BYTES: u64 = 64 << 20;
/// Maximum depth of nested gang blocks.
const GANG_DEPTH: usize = 12;
/// Maximum number of pieces of a gang block: 16 MiB in sectors.
const GANG_PIECES: usize = 32 << 10;
/// Minimum size of a block in bytes, which bounds the number of blocks of a pool.
const MIN_BLOCK_BYTES: u64 = 512;

/// Object number of the meta dnode in positions.
pub const META_DNODE: u64 = 0;
/// Block number of a spill block in positions.
pub const SPILL: u64 = ErrorLocation::SPILL;
/// Level of blocks of intent logs in positions.
pub const LOG_LEVEL: i8 = -2;

/// Position of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VisitPosition {
    /// Object set.
    pub objset: ObjsetId,
    /// Object.
    pub object: u64,
    /// Level; [`LOG_LEVEL`] for the intent log.
    pub level: i8,
    /// Number of the block.
    pub block: u64,
}

impl fmt::Display for VisitPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{}, {}, {}, {:x}>", self.objset, self.object, self.level, self.block)
    }
}

/// A dataset to walk, or the MOS.
#[derive(Clone, Debug)]
pub struct Root {
    /// Object set.
    pub objset: ObjsetId,
    /// Pointer to its header.
    pub pointer: BlockPointer,
    /// Blocks born up to this txg are left out.
    pub after: Txg,
    /// Whether to walk its intent log, as for heads of datasets.
    pub log: bool,
}

/// A segment of allocated space: top-level vdev, offset, length.
pub type Claim = (u32, u64, u64);

/// Visitor of the blocks of a walk.
pub trait Visit {
    /// Visits a block that is neither a hole nor redacted. Returns whether to call [`Visit::claim`] for its segments.
    fn block(&mut self, at: &VisitPosition, bp: &BlockPointer) -> bool;
    /// Visits a segment of a block for which [`Visit::block`] returned true.
    fn claim(&mut self, at: &VisitPosition, bp: &BlockPointer, claim: Claim);
    /// Visits an unreadable block. The blocks below it are not walked.
    fn unreadable(&mut self, at: &VisitPosition, bp: &BlockPointer, error: &BlockError);
    /// Called from time to time, between blocks.
    fn tick(&mut self) {}
    /// Whether to end the walk early, after the reads in progress.
    fn enough(&self) -> bool {
        false
    }
}

/// Position where a walk ended early and another one continues: everything before it was visited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Object set.
    pub objset: ObjsetId,
    /// Object.
    pub object: u64,
    /// Block of its data.
    pub block: u64,
}

/// Blocks to read besides those of pointers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Prove {
    /// Nothing.
    Nothing,
    /// All metadata.
    Metadata,
    /// Every block.
    Everything,
    /// The blocks that devices in service lack, which are written to them (a resilver).
    Lacking,
}

/// A walk over a pool's blocks.
pub struct Walk {
    /// Runs the tasks.
    pub machine: Machine,
    /// Reader of blocks.
    pub blocks: Arc<Blocks>,
    /// Blocks to verify.
    pub prove: Prove,
    /// Blocks of intent logs born in this txg or later were written after the pool's last sync and are left out.
    pub log_before: Txg,
}

struct Item {
    at: VisitPosition,
    bp: BlockPointer,
    after: Txg,
    log: bool,
    way: ResumePath,
}

/// State on the path from a root to a block.
#[derive(Clone, Copy, Debug, Default)]
struct ResumePath {
    /// Index of the root.
    root: usize,
    /// Object and block before which everything is left out.
    from: (u64, u64),
    /// First position below the pointer.
    start: (u64, u64),
    /// Number of dnodes in a block of the meta dnode; 0 for all other objects.
    slots: u64,
}

impl ResumePath {
    /// Root, and first position below the pointer.
    fn place(&self) -> (usize, (u64, u64)) {
        (self.root, self.start)
    }

    /// Path to `count` data blocks of `object` from `first` on; `None` if all of them are left out.
    fn down(self, object: u64, first: u64, count: u64) -> Option<ResumePath> {
        let at = |block: u64| match self.slots {
            0 => (object, block),
            slots => (block.saturating_mul(slots), 0),
        };
        let start = at(first);
        let end = at(first.saturating_add(count));
        (end > self.from).then_some(ResumePath { start, ..self })
    }
}

impl Item {
    /// Position for the observers of devices.
    fn origin(&self) -> Bookmark {
        let VisitPosition { objset, object, level, block } = self.at;
        let is_root = self.bp.object_type() == ObjectType::OBJSET && !self.bp.is_embedded();
        let level = if is_root { Bookmark::ROOT_LEVEL } else { level.into() };
        Bookmark { objset, object, level, block }
    }

    /// Whether the block has pointers to other blocks.
    fn leads_on(&self) -> bool {
        let bp = &self.bp;
        let has_pointers = bp.level() > 0 || matches!(bp.object_type(), ObjectType::DNODE | ObjectType::OBJSET);
        has_pointers && self.at.level != LOG_LEVEL
    }

    /// Whether the block belongs to an older snapshot.
    fn is_older(&self) -> bool {
        self.bp.birth() <= self.after
    }

    /// Whether the walk that this one continues visited it: it only leads to the position where this walk begins.
    fn is_known(&self) -> bool {
        self.way.start < self.way.from
    }
}

/// Result of a read.
struct Done {
    item: Item,
    bytes: u64,
    result: Result<Bytes, BlockError>,
    /// Blocks of a log that were found by following it.
    log_items: Vec<Item>,
    gang: Vec<Claim>,
}

struct Run<'a, V: Visit> {
    walk: &'a Walk,
    visitor: &'a mut V,
    waiting: Waiting,
    /// Blocks of pointers that were entered lately. A consistent pool has one pointer to each; in a malformed one, levels of
    /// blocks full of the same pointer would make the walk as long as the product of their widths.
    entered: VisitedBlocks,
    reads: FuturesUnordered<BoxFuture<'static, Option<Done>>>,
    bytes_under_way: u64,
    /// Concurrent reads of blocks of pointers.
    ahead: usize,
    /// Destination of the blocks that the walk verifies, if it only finds them.
    sink: Option<Sink>,
    /// Reads in progress by the first position below them.
    reads_at: BTreeMap<(usize, (u64, u64)), usize>,
    /// Concurrent reads of found blocks, by top-level vdev.
    of_vdevs: BTreeMap<u32, usize>,
    /// Delay after each read, during which it still counts as concurrent, as a multiple of the read's duration.
    delay_factor: u32,
    /// Delays the reuse of the blocks that are read, if the walk's caller does not.
    hold: Option<Arc<Hold>>,
}

/// Decrements the count of `key`; removes a count that becomes 0.
fn count_down<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) {
    let Some(count) = counts.get_mut(key) else { return };
    debug_assert!(*count > 0, "a count of nothing is kept");
    *count -= 1;
    if *count == 0 {
        counts.remove(key);
    }
}

impl Walk {
    /// Walks `roots` in order.
    pub async fn run<V: Visit>(&self, roots: Vec<Root>, visitor: &mut V) {
        self.run_from(roots, Position::default(), visitor).await;
    }

    /// Walks `roots` in order, and continues at `from` if that is in the first of them. Returns the position where the
    /// walk ended early, if it did.
    pub async fn run_from<V: Visit>(&self, roots: Vec<Root>, from: Position, visitor: &mut V) -> Option<Position> {
        Run::new(self, visitor).run_from(roots, from).await
    }
}

impl<'a, V: Visit> Run<'a, V> {
    fn new(walk: &'a Walk, visitor: &'a mut V) -> Self {
        let size = walk.blocks.tree().size_bytes();
        Run {
            walk,
            visitor,
            waiting: Waiting::default(),
            entered: VisitedBlocks::at_most(size.map_or(u64::MAX, |bytes| bytes / MIN_BLOCK_BYTES)),
            reads: FuturesUnordered::new(),
            bytes_under_way: 0,
            ahead: 0,
            sink: None,
            reads_at: BTreeMap::new(),
            of_vdevs: BTreeMap::new(),
            delay_factor: 0,
            hold: None,
        }
    }

    async fn run_from(mut self, roots: Vec<Root>, from: Position) -> Option<Position> {
        let objsets: Vec<ObjsetId> = roots.iter().map(|root| root.objset).collect();
        for (number, root) in roots.into_iter().enumerate().rev() {
            let at = VisitPosition { objset: root.objset, object: META_DNODE, level: 0, block: 0 };
            let from = if root.objset == from.objset { (from.object, from.block) } else { (0, 0) };
            let way = ResumePath { root: number, from, start: (0, 0), slots: 0 };
            self.waiting.push(Item { at, bp: root.pointer, after: root.after, log: root.log, way });
        }
        self.drive().await;
        let next = |item: &Item| (item.way.root, item.way.start.max(item.way.from));
        let (root, (object, block)) = self.waiting.all().map(next).min()?;
        Some(Position { objset: *objsets.get(root)?, object, block })
    }

    async fn drive(&mut self) {
        loop {
            if self.has_room()
                && let Some(item) = self.waiting.pop()
            {
                self.visit(item);
                continue;
            }
            match self.reads.next().await {
                None => return,
                // The task was lost with its machine: there are no more results.
                Some(None) => return,
                Some(Some(done)) => self.finish(done),
            }
            self.visitor.tick();
        }
    }

    /// Whether the next pointer can be visited now.
    fn has_room(&self) -> bool {
        let room = self.reads.len() < PARALLEL && self.bytes_under_way < PARALLEL_BYTES && !self.visitor.enough();
        room && self.may_find() && (self.ahead < AHEAD || self.waiting.lowest().is_some_and(|item| !item.leads_on()))
    }

    fn visit(&mut self, item: Item) {
        let bp = &item.bp;
        if bp.is_hole() || bp.is_redacted() || bp.logical_birth() == Txg(0) {
            return;
        }
        if item.is_older() {
            // A dataset that is unchanged since its snapshot is walked there; a log that began later belongs to the
            // dataset.
            if item.log {
                self.start(item, true, true, false);
            }
            return;
        }
        let is_stored = !bp.is_embedded() && item.at.level != LOG_LEVEL;
        if self.sink.is_some() && is_stored && !item.leads_on() && !bp.is_gang() {
            self.find(&item);
            return;
        }
        // The pointers on the path to the first position were counted by the earlier walk.
        let claim = !item.is_known() && self.visitor.block(&item.at, bp);
        let ganged = claim && bp.is_gang();
        if claim && !ganged {
            for d in bp.dvas() {
                self.visitor.claim(&item.at, bp, (d.vdev, d.offset_bytes, d.asize_bytes));
            }
        }
        let proven = match self.walk.prove {
            // With the blocks of intent logs.
            Prove::Lacking => self.walk.proves(bp),
            _ => is_stored && self.walk.proves(bp),
        };
        let below = item.leads_on();
        if below && !self.entered.enter(bp) {
            return;
        }
        if below || proven || ganged {
            self.start(item, below || proven, below, ganged);
        }
    }

    fn start(&mut self, item: Item, read: bool, below: bool, ganged: bool) {
        let bytes = item.bp.lsize_bytes().max(item.bp.psize_bytes());
        self.bytes_under_way += bytes;
        self.ahead += usize::from(item.leads_on());
        *self.reads_at.entry(item.way.place()).or_default() += 1;
        let blocks = self.walk.blocks.clone();
        let log_before = self.walk.log_before;
        // A block that is not verified is read only for its pointers, so one valid copy suffices.
        let resilver = self.walk.prove == Prove::Lacking && blocks.tree().resilvering().needs(&item.bp);
        let priority = match self.walk.prove {
            Prove::Nothing => Priority::Async,
            Prove::Lacking if !resilver => Priority::Async,
            _ => Priority::Scrub,
        };
        let clock = self.walk.machine.clock.clone();
        let delay_factor = self.delay_factor;
        let hold = self.hold.clone();
        let task = self.walk.machine.tasks.spawn(async move {
            let begun = clock.now();
            let request = Request::internal("walk").with_priority(priority);
            let result =
                if read { contents(&blocks, &request, &item, below, resilver).await } else { Ok(Bytes::new()) };
            let gang = if ganged { gang_claims(&blocks, &request, &item.bp).await } else { Vec::new() };
            let log_items = match &result {
                Ok(header) if item.log => log_items(&blocks, &request, &item, header, log_before).await,
                _ => Vec::new(),
            };
            drop(hold);
            if delay_factor > 0 {
                clock.sleep(clock.now().since(begun).saturating_mul(delay_factor).min(MAX_DELAY)).await;
            }
            Done { item, bytes, result, log_items, gang }
        });
        self.reads.push(Box::pin(async move { task.await.ok() }));
    }

    fn finish(&mut self, done: Done) {
        invariant!(self.bytes_under_way >= done.bytes, "{} bytes are read, {} ended", self.bytes_under_way, done.bytes);
        self.bytes_under_way = self.bytes_under_way.saturating_sub(done.bytes);
        let item = &done.item;
        let ended = usize::from(item.leads_on());
        invariant!(self.ahead >= ended, "more blocks of pointers were read than begun");
        self.ahead = self.ahead.saturating_sub(ended);
        count_down(&mut self.reads_at, &item.way.place());
        count_down(&mut self.of_vdevs, &item.bp.dva(0).vdev);
        for claim in done.gang {
            self.visitor.claim(&item.at, &item.bp, claim);
        }
        match done.result {
            Err(_) if item.is_known() => {}
            // A log ends where a block was never written.
            Err(_) if self.walk.prove == Prove::Lacking && is_log_block(&item.bp) => {}
            Err(error) => self.visitor.unreadable(&item.at, &item.bp, &error),
            Ok(bytes) if item.leads_on() => {
                if !item.is_older() {
                    self.below(&done.item, &bytes);
                }
                done.log_items.into_iter().for_each(|item| self.waiting.push(item));
            }
            Ok(_) => {}
        }
    }

    /// Pushes the pointers in a block in order.
    fn below(&mut self, item: &Item, bytes: &[u8]) {
        let (at, bp) = (item.at, &item.bp);
        let endian = bp.endian();
        if bp.level() > 0 {
            let per_block = bytes.len() / BlockPointer::SIZE;
            for (i, child) in BlockPointer::in_block(bytes, endian) {
                let block = at.block.wrapping_mul(per_block as u64).wrapping_add(i as u64);
                // A malformed level would lead in circles: every step must descend.
                if child.is_hole() || child.level() + 1 != bp.level() {
                    continue;
                }
                let at = VisitPosition { level: child.level() as i8, block, ..at };
                let span = (per_block as u64).saturating_pow(child.level().into());
                let Some(way) = item.way.down(at.object, block.saturating_mul(span), span) else { continue };
                self.waiting.push(Item { at, bp: child, after: item.after, log: false, way });
            }
        } else if bp.object_type() == ObjectType::DNODE {
            let slots = bytes.len() / Dnode::SLOT;
            let mut slot = 0;
            while slot < slots {
                let rest = bytes.get(slot * Dnode::SLOT..).unwrap_or_default();
                let object = at.block.wrapping_mul(slots as u64).wrapping_add(slot as u64);
                slot += match Dnode::decode(rest, endian) {
                    Ok(Some(dnode)) => {
                        if object >= item.way.from.0 {
                            let way = ResumePath { slots: 0, ..item.way };
                            self.dnode(&dnode, at.objset, object, item.after, way);
                        }
                        dnode.slots()
                    }
                    Ok(None) | Err(_) => 1,
                };
            }
        } else if let Ok(set) = Objset::decode(bytes, endian) {
            let accounting = set.flags & Objset::USER_ACCOUNTING != 0 || set.user_used.is_some();
            let dnodes = [
                (set.meta_dnode, META_DNODE, true),
                (set.project_used, Objset::PROJECTUSED_OBJECT, accounting),
                (set.group_used, Objset::GROUPUSED_OBJECT, accounting),
                (set.user_used, Objset::USERUSED_OBJECT, accounting),
            ];
            for (dnode, object, wanted) in dnodes {
                if let Some(dnode) = dnode.filter(|_| wanted) {
                    let is_meta = object == META_DNODE;
                    let slots = if is_meta { u64::from(dnode.data_block_bytes) / Dnode::SLOT as u64 } else { 0 };
                    let way = ResumePath { slots, ..item.way };
                    self.dnode(&dnode, at.objset, object, item.after, way);
                }
            }
        }
    }

    fn dnode(&mut self, dnode: &Dnode, objset: ObjsetId, object: u64, after: Txg, way: ResumePath) {
        let is_meta = object == META_DNODE;
        for (i, bp) in dnode.block_pointers.iter().enumerate() {
            // Only the meta dnode has dnodes, and no object contains an object set.
            let fits = bp.object_type() != ObjectType::OBJSET && (bp.object_type() == ObjectType::DNODE) == is_meta;
            if bp.is_hole() || !fits || bp.level() + 1 != dnode.levels {
                continue;
            }
            let at = VisitPosition { objset, object, level: bp.level() as i8, block: i as u64 };
            let tree = TreeGeometry::of(dnode);
            let Some(way) = way.down(object, tree.first_block(bp.level(), i as u64), tree.cover(bp.level())) else {
                continue;
            };
            self.waiting.push(Item { at, bp: *bp, after, log: false, way });
        }
        if let Some(bp) = dnode.spill.filter(|bp| bp.level() == 0 && bp.object_type() != ObjectType::DNODE) {
            let at = VisitPosition { objset, object, level: 0, block: SPILL };
            let Some(way) = way.down(object, SPILL, 1) else { return };
            self.waiting.push(Item { at, bp, after, log: false, way });
        }
    }
}

/// Reads a block: its logical bytes if it has pointers, otherwise it is only verified. Dnodes of encrypted datasets are
/// readable without a key, except for their bonus buffers.
async fn contents(
    blocks: &Blocks,
    request: &Request,
    item: &Item,
    below: bool,
    resilver: bool,
) -> Result<Bytes, BlockError> {
    let bp = &item.bp;
    let raw = !below || bp.is_encrypted();
    let origin = Some(item.origin());
    let options = ReadOptions { raw, objset: item.at.objset, origin, resilver, ..ReadOptions::default() };
    let bytes = blocks.read(request, bp, &options).await?;
    if !below || !raw {
        return Ok(bytes);
    }
    let dva = bp.dva(0);
    let corrupt = |fault| BlockError::Corrupt { vdev: dva.vdev, offset: dva.offset_bytes, fault };
    match bp.compression() {
        Some(CompressionKind::Off | CompressionKind::Empty) | None => Ok(bytes),
        Some(kind) => {
            let mut out = vec![0; bp.lsize_bytes() as usize];
            weir_codec::decompress_into(kind, &bytes, &mut out).map_err(corrupt)?;
            Ok(out.into())
        }
    }
}

/// Segments of a gang block: the copies of its header and all pieces, at every depth.
pub(crate) async fn gang_claims(blocks: &Blocks, request: &Request, bp: &BlockPointer) -> Vec<Claim> {
    let mut out = Vec::new();
    let mut queue = vec![(*bp, 0)];
    while let Some((bp, depth)) = queue.pop() {
        if !bp.is_gang() {
            out.extend(bp.dvas().map(|d| (d.vdev, d.offset_bytes, d.asize_bytes)));
            continue;
        }
        let pieces = if depth < GANG_DEPTH { gang_header(blocks, request, &bp).await } else { Vec::new() };
        // The address of a gang block covers its header and the pieces' addresses at the same position.
        for (i, d) in bp.dvas().enumerate() {
            let below: u64 = pieces.iter().map(|p| p.dva(i).asize_bytes).sum();
            out.push((d.vdev, d.offset_bytes, d.asize_bytes.saturating_sub(below)));
        }
        queue.extend(pieces.into_iter().map(|p| (p, depth + 1)));
        if out.len() + queue.len() > GANG_PIECES {
            break;
        }
    }
    out
}

/// Returns the pointers in a gang header, from the first valid copy; none if no copy is valid.
async fn gang_header(blocks: &Blocks, request: &Request, bp: &BlockPointer) -> Vec<BlockPointer> {
    let sector = bp.dvas().filter_map(|d| blocks.tree().ashift(d.vdev)).min().unwrap_or(9).clamp(9, 16);
    let mut sizes = vec![1usize << sector, gang::CLASSIC_BYTES];
    sizes.dedup();
    for size in sizes {
        for d in bp.dvas() {
            let Ok(bytes) = blocks.read_raw(request, d.vdev, d.offset_bytes, size as u64).await else { continue };
            if verify_gang_header(bp, &bytes).is_ok()
                && let Ok(pieces) = gang::decode(&bytes)
            {
                return pieces;
            }
        }
    }
    Vec::new()
}

//! Writes the tree of one object: data blocks first, then the blocks of pointers above them, bottom up.
//!
//! ```text
//!   changed blocks ─► written, concurrently ─► pointers ─┐
//!   freed spans    ──────────────────────────► holes ─────┴─► edits of the tree, level by level from below
//! ```
//!
//! Each block is written once per txg, and each block that it replaces is reported as killed, once. Subtrees without an
//! edit are not read. A block of data that equals the one that it replaces is not written (nop-write): it was neither born
//! nor killed.

use super::dirty_object::{DirtyBlock, DirtyRecords, bonus_capacity};
use super::nop_write::compares;
use super::pointer_births::{hole_born, part_of_hole, with_birth};
use super::policy::{DedupPolicy, Policy};
use super::spans::Spans;
use super::sync_result::{Killed, ObjsetSyncResult};
use super::tx_admission::DedupWriter;
use crate::error::{ErrorLocation, ObjectError};
use crate::object::Object;
use crate::object_set::ObjectSet;
use crate::read::pointer_in;
use crate::tree_geometry::TreeGeometry;
use bytes::Bytes;
use futures_util::future::{BoxFuture, try_join_all};
use futures_util::stream::{self, FuturesUnordered, Stream, StreamExt};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use weir_blocks::{BlockError, Class, ReadOptions, WriteOptions};
use weir_cache::Cache;
use weir_format::{BlockPointer, CompressionKind, Dnode, Endian, ObjectId, ObjectType, Txg};
use weir_machine::lock::Mutex;
use weir_machine::{ByteSemaphore, Request};

/// Maximum number of blocks in a batch. The cost of a batch beyond that of its bytes is shared by its blocks.
const MAX_BATCH_BLOCKS: usize = 16;
const MAX_BATCH_BYTES: usize = 1 << 20;
/// Maximum number of batches of one object that are written at the same time, as far as [`MAX_IN_FLIGHT_BYTES`] allows.
const MAX_CONCURRENT_BATCHES: usize = 16;
/// Maximum bytes of data blocks that are being written at the same time.
const MAX_IN_FLIGHT_BYTES: usize = 32 << 20;
/// Maximum number of level-1 indirect blocks of one object that are changed at the same time.
const MAX_CONCURRENT_INDIRECT_READS: usize = 16;
/// Percentage of the special vdevs' space that only metadata may fill (`zfs_special_class_metadata_reserve_pct`).
const SPECIAL_METADATA_RESERVE_PCT: u64 = 25;
/// Maximum pointers of an indirect block, which has at most 16 MiB.
const MAX_FAN_OUT: usize = 1 << 17;

/// Writer of an object set's trees.
pub(super) struct Writer<'a> {
    pub set: &'a Arc<ObjectSet>,
    pub rq: &'a Request,
    pub txg: Txg,
    pub policy: Policy,
    /// Blocks that were written and killed so far.
    pub outcome: Mutex<ObjsetSyncResult>,
    /// Bounds the bytes of data blocks that are being written.
    pub in_flight: ByteSemaphore,
}

/// Tree of one object while it is written.
struct Tree<'a> {
    id: ObjectId,
    kind: ObjectType,
    geometry: TreeGeometry,
    edits: BTreeMap<u64, BlockPointer>,
    freed: &'a Spans,
    /// Change of the object's allocated bytes.
    used: Mutex<i64>,
    /// Former number of levels if the tree gets more; the dnode's former pointers are then below the new levels.
    old_levels: u8,
    old_tops: SmallVec<[BlockPointer; 3]>,
}

impl Tree<'_> {
    /// Blocks below one pointer of `level`.
    fn covered(&self, level: u8, first: u64) -> std::ops::Range<u64> {
        first..first.saturating_add(self.geometry.cover(level))
    }

    fn has_edit(&self, range: &std::ops::Range<u64>) -> bool {
        self.edits.range(range.clone()).next().is_some()
    }

    fn frees(&self, range: &std::ops::Range<u64>) -> bool {
        self.freed.at_or_after(range.start).is_some_and(|span| span.start < range.end)
    }

    /// Whether the txg changes anything at or below the pointer `old` of `level` above the blocks from `first` on.
    fn touches(&self, old: &BlockPointer, level: u8, first: u64) -> bool {
        let range = self.covered(level, first);
        self.carries_old_top(level, first) || self.has_edit(&range) || !old.is_hole() && self.frees(&range)
    }

    /// Whether the dnode's former pointers are below the block of `level` that begins at `first`.
    fn carries_old_top(&self, level: u8, first: u64) -> bool {
        self.old_levels > 0 && level >= self.old_levels && first == 0
    }

    fn frees_all(&self, range: &std::ops::Range<u64>) -> bool {
        self.freed.at_or_after(range.start).is_some_and(|s| s.start <= range.start && s.end >= range.end)
    }
}

/// A data block to write: its number and its contents.
pub(super) type Block = Result<(u64, DirtyBlock), ObjectError>;

/// Fill count of a data block: the number of its blocks (or dnodes).
pub(super) type Fill<'a> = &'a (dyn Fn(&[u8]) -> u64 + Sync);

impl<'a> Writer<'a> {
    pub fn new(set: &'a Arc<ObjectSet>, rq: &'a Request, txg: Txg, policy: Policy) -> Self {
        Writer { set, rq, txg, policy, outcome: Mutex::default(), in_flight: ByteSemaphore::new(MAX_IN_FLIGHT_BYTES) }
    }
}

impl Writer<'_> {
    fn place(&self, id: ObjectId, level: u8, block: u64) -> ErrorLocation {
        self.set.place(id, level, block)
    }

    /// Options for writing a block, from the object set's properties, the type of object and the level
    /// (`dmu_write_policy` in OpenZFS's `module/zfs/dmu.c`).
    pub fn options(&self, id: ObjectId, kind: ObjectType, level: u8, block: u64, bytes: usize) -> WriteOptions {
        let policy = &self.policy;
        let metadata = level > 0 || kind.is_metadata();
        let mut options = WriteOptions::new(self.txg, kind);
        options.objset = self.set.id();
        (options.object, options.block, options.level) = (id, block, level);
        options.checksum = if metadata { policy.metadata_checksum() } else { policy.checksum };
        options.compression = if metadata { CompressionKind::Lz4 } else { policy.compression };
        if let Some(dedup) = policy.dedup.filter(|_| !metadata) {
            options.checksum = dedup.checksum;
            if options.compression == CompressionKind::Off {
                // Blocks of zeros still become holes: otherwise they would be the entry with the most references.
                options.compression = CompressionKind::Empty;
            }
        }
        options.compression_level = policy.zstd_level;
        options.copies = if metadata { policy.metadata_copies(kind, level) } else { policy.copies };
        let small = !metadata && bytes as u64 <= u64::from(policy.special_small_bytes);
        options.class = if kind.is_dedup_table() {
            Class::Dedup
        } else if metadata || small && self.special_takes_data() {
            Class::Special
        } else {
            Class::Normal
        };
        options.keys = self.set.options().keys.clone();
        options.sealed = level > 0 && self.set.raw().is_some();
        options.embed = policy.embed;
        options
    }

    /// Whether small blocks of data may be allocated on the special vdevs: the rest is for metadata.
    fn special_takes_data(&self) -> bool {
        let space = self.set.cache().blocks().space(Class::Special);
        space.allocated_bytes < space.size_bytes / 100 * (100 - SPECIAL_METADATA_RESERVE_PCT)
    }

    /// The pool's dedup tables, if data blocks of this type of object are deduplicated.
    fn dedup(&self, kind: ObjectType) -> Option<(Arc<dyn DedupWriter>, DedupPolicy)> {
        let is_clear = self.set.options().keys.is_none() && self.set.raw().is_none();
        let policy = self.policy.dedup.filter(|_| !kind.is_metadata() && is_clear)?;
        Some((self.set.live()?.admission.dedup()?, policy))
    }

    /// Creates the hole that replaces a block. Its birth is this txg if there was a block, or a hole with a birth; in
    /// both cases `was_null` is false.
    fn hole(&self, was_null: bool, kind: ObjectType, level: u8, lsize_bytes: u64) -> BlockPointer {
        if was_null || !self.set.cache().blocks().formats().hole_birth {
            return BlockPointer::HOLE;
        }
        hole_born(kind, level, lsize_bytes, self.txg)
    }

    fn dsize(&self, pointer: &BlockPointer) -> i64 {
        self.set.cache().blocks().dsize_bytes(pointer) as i64
    }

    fn born(&self, tree: &Tree<'_>, pointer: BlockPointer) {
        if !pointer.is_hole() {
            *tree.used.lock() += self.dsize(&pointer);
            self.outcome.lock().born.push(pointer);
        }
    }

    fn killed(&self, tree: &Tree<'_>, pointer: BlockPointer, level: u8, block: u64) {
        if !pointer.is_hole() {
            *tree.used.lock() -= self.dsize(&pointer);
            let killed = Killed { pointer, object: tree.id, level, block };
            self.outcome.lock().killed.push(killed);
        }
    }

    /// Writes a block and keeps it in the cache.
    async fn write(&self, tree: &Tree<'_>, bytes: Bytes, options: WriteOptions) -> Result<BlockPointer, ObjectError> {
        let place = self.place(tree.id, options.level, options.block);
        let (cache, rq) = (self.set.cache(), self.rq);
        let written = cache.blocks().write(rq, bytes.clone(), &options).await;
        let pointer = written.map_err(|e| ObjectError::block(place, e))?;
        if options.raw.is_none() {
            cache.insert(&pointer, &self.set.options_now(), bytes);
        }
        self.born(tree, pointer);
        Ok(pointer)
    }

    /// Writes data blocks concurrently on all processors, adjacent ones in one batch. Those that equal the blocks of `former`
    /// are not written.
    async fn write_data(
        &self,
        tree: &Tree<'_>,
        former: Option<Object>,
        blocks: impl Stream<Item = Block>,
        fill: Fill<'_>,
    ) -> Result<BTreeMap<u64, BlockPointer>, ObjectError> {
        let mut out = BTreeMap::new();
        let mut in_flight = FuturesUnordered::new();
        let dedup = self.dedup(tree.kind);
        let mut blocks = pin!(blocks);
        loop {
            let mut batch = Vec::new();
            let mut batch_bytes = 0;
            while batch.len() < MAX_BATCH_BLOCKS && batch_bytes < MAX_BATCH_BYTES {
                let Some(block) = blocks.next().await else { break };
                let (n, DirtyBlock { bytes, writer, compressed, raw }) = block?;
                if raw.is_none() && self.set.raw().is_some() {
                    return Err(ObjectError::NoKey { objset: self.set.id() });
                }
                batch_bytes += bytes.len();
                let options = self.options(tree.id, tree.kind, 0, n, bytes.len());
                let replaces = match &former {
                    Some(former) => self.set.pointers().at(self.rq, former, 0, n).await?.map(Box::new),
                    None => None,
                };
                let options = WriteOptions { fill: fill(&bytes), writer, compressed, raw, replaces, ..options };
                batch.push((bytes, options));
            }
            let Some((_, first)) = batch.first() else { break };
            let place = self.place(tree.id, 0, first.block);
            let permit = self.in_flight.acquire(batch_bytes).await;
            let (cache, read, dedup) = (self.set.cache().clone(), self.set.options_now(), dedup.clone());
            let job = async move {
                let _permit = permit;
                write_batch(&cache, batch, &read, dedup, place).await
            };
            let handle = self.set.cache().machine().tasks.spawn(job);
            in_flight
                .push(async move { handle.await.map_err(|_| ObjectError::block(place, BlockError::ComputeLost))? });
            if in_flight.len() >= MAX_CONCURRENT_BATCHES
                && let Some(done) = in_flight.next().await
            {
                self.landed(tree, &mut out, done?);
            }
        }
        while let Some(done) = in_flight.next().await {
            self.landed(tree, &mut out, done?);
        }
        Ok(out)
    }

    /// Adopts the data blocks that are shared, or were written to their final place before.
    fn share_data(&self, tree: &Tree<'_>, changes: &DirtyRecords, edits: &mut BTreeMap<u64, BlockPointer>) {
        for (n, pointer) in &changes.placed {
            self.born(tree, *pointer);
            edits.insert(*n, *pointer);
        }
        for (n, pointer) in &changes.shared {
            let pointer = with_birth(pointer, self.txg);
            self.born(tree, pointer);
            self.outcome.lock().cloned.push(pointer);
            edits.insert(*n, pointer);
        }
    }

    fn landed(&self, tree: &Tree<'_>, out: &mut BTreeMap<u64, BlockPointer>, written: Written) {
        for (n, pointer) in written {
            if pointer.logical_birth() == self.txg {
                self.born(tree, pointer);
            }
            out.insert(n, pointer);
        }
    }

    /// Writes the changes of a txg to one object, and returns its dnode; `None` if it was removed.
    pub async fn object(
        &self,
        id: ObjectId,
        base: Option<&Dnode>,
        changes: &DirtyRecords,
    ) -> Result<Option<Dnode>, ObjectError> {
        let to_write = changes.blocks.iter().filter(|(n, _)| !changes.placed.contains_key(n));
        let blocks = stream::iter(to_write.map(|(n, block)| Ok((*n, block.clone()))));
        self.object_of(id, base, changes, blocks, &|_| 1).await
    }

    /// Writes an object whose blocks are made while they are written, so that not all of them are in memory.
    pub async fn object_of(
        &self,
        id: ObjectId,
        base: Option<&Dnode>,
        changes: &DirtyRecords,
        blocks: impl Stream<Item = Block>,
        fill: Fill<'_>,
    ) -> Result<Option<Dnode>, ObjectError> {
        let kind = changes.image.as_deref().or(base).map_or(ObjectType::NONE, |d| d.object_type);
        let everything = Spans::default();
        let bare = |shift: u8| Tree {
            id,
            kind,
            geometry: TreeGeometry::new(shift.into()),
            edits: BTreeMap::new(),
            freed: &everything,
            used: Mutex::default(),
            old_levels: 0,
            old_tops: SmallVec::new(),
        };
        let mut base = base;
        if let Some(old) = base.filter(|_| changes.removed || changes.image.is_none()) {
            let tree = bare(old.indirect_shift);
            for (n, top) in (0..).zip(&old.block_pointers) {
                self.free_below(&tree, *top, old.levels.saturating_sub(1), n).await?;
            }
            self.killed(&tree, old.spill.unwrap_or_default(), 0, ErrorLocation::SPILL);
            base = None;
        }
        let Some(image) = changes.image.as_deref() else { return Ok(None) };
        let mut dnode = image.clone();
        adopt(&mut dnode, base);
        let mut tree = Tree { freed: &changes.freed, ..bare(dnode.indirect_shift) };
        let former = base.filter(|_| compares(self.set, &self.policy, kind)).map(|old| Object::new(id, old.clone()));
        let mut edits = self.write_data(&tree, former, blocks, fill).await?;
        self.share_data(&tree, changes, &mut edits);
        tree.edits = edits;
        grow(&mut tree, &mut dnode, changes.levels);
        let top = dnode.levels - 1;
        self.edit_all(&tree, &mut dnode.block_pointers, top, 0, dnode.data_block_bytes.into()).await?;
        self.spill(&tree, &mut dnode, changes).await?;
        // The pointer of the old spill block may have been where the bonus buffer is now.
        dnode.bonus.clone_from(&image.bonus);
        let spill = dnode.spill;
        super::dirty_object::set_spill_pointer(&mut dnode, spill);
        let used = *tree.used.lock();
        dnode.used = dnode.used_bytes().saturating_add_signed(used);
        dnode.flags.0 |= weir_format::DnodeFlags::USED_BYTES;
        Ok(Some(dnode))
    }

    async fn spill(&self, tree: &Tree<'_>, dnode: &mut Dnode, changes: &DirtyRecords) -> Result<(), ObjectError> {
        let Some(spill) = &changes.spill else { return Ok(()) };
        let old = dnode.spill.take();
        self.killed(tree, old.unwrap_or_default(), 0, ErrorLocation::SPILL);
        let new = match spill {
            Some(bytes) => {
                let options = self.options(tree.id, ObjectType::SA, 0, ErrorLocation::SPILL, bytes.len());
                let options = WriteOptions { raw: changes.raw_spill, ..options };
                Some(self.write(tree, bytes.clone(), options).await?)
            }
            None => None,
        };
        super::dirty_object::set_spill_pointer(dnode, new);
        Ok(())
    }

    /// Returns the pointer that replaces `old`, the pointer of `level` above the blocks from `first` on.
    fn edit<'f>(
        &'f self,
        tree: &'f Tree<'f>,
        old: BlockPointer,
        level: u8,
        first: u64,
        block_bytes: u64,
    ) -> BoxFuture<'f, Result<BlockPointer, ObjectError>> {
        Box::pin(async move {
            if !tree.touches(&old, level, first) {
                return Ok(old);
            }
            if level == 0 {
                return Ok(self.edit_data(tree, old, first, block_bytes));
            }
            let number = tree.geometry.number_at(level, first);
            let range = tree.covered(level, first);
            let indirect_bytes = tree.geometry.indirect_bytes();
            if !tree.carries_old_top(level, first) && !tree.has_edit(&range) && tree.frees_all(&range) {
                self.free_below(tree, old, level, number).await?;
                return Ok(self.hole(old.is_null(), tree.kind, level, indirect_bytes));
            }
            let mut below = self.children(tree, &old, level, first, block_bytes).await?;
            self.edit_all(tree, &mut below, level - 1, first, block_bytes).await?;
            self.killed(tree, old, level, number);
            if below.iter().all(BlockPointer::is_hole) {
                let was_null = old.is_null() && below.iter().all(BlockPointer::is_null);
                return Ok(self.hole(was_null, tree.kind, level, indirect_bytes));
            }
            let mut bytes = Vec::with_capacity(below.len() * BlockPointer::SIZE);
            below.iter().for_each(|pointer| bytes.extend_from_slice(&pointer.encode(Endian::Little)));
            let fill = below.iter().map(fill_of).fold(0, u64::saturating_add);
            drop(below);
            let options = self.options(tree.id, tree.kind, level, number, bytes.len());
            self.write(tree, Bytes::from(bytes), WriteOptions { fill, embed: false, ..options }).await
        })
    }

    /// Returns the pointer that replaces that of data block `n`, which changes.
    fn edit_data(&self, tree: &Tree<'_>, old: BlockPointer, n: u64, block_bytes: u64) -> BlockPointer {
        let new = tree.edits.get(&n).copied();
        // A nop-write: the block stays. A new block has another birth.
        if new == Some(old) && !old.is_embedded() {
            return old;
        }
        self.killed(tree, old, 0, n);
        new.unwrap_or_else(|| self.hole(old.is_null(), tree.kind, 0, block_bytes))
    }

    /// Updates adjacent pointers of `level` above the blocks from `first` on. Level-1 indirect blocks are changed
    /// concurrently; there are few blocks of higher levels.
    async fn edit_all(
        &self,
        tree: &Tree<'_>,
        pointers: &mut [BlockPointer],
        level: u8,
        first: u64,
        block_bytes: u64,
    ) -> Result<(), ObjectError> {
        let step = tree.geometry.cover(level);
        let firsts = (0u64..).map(|n| first.saturating_add(n.saturating_mul(step)));
        let touched = firsts.zip(pointers).filter(|(first, old)| tree.touches(old, level, *first));
        let at_once = if level == 1 { MAX_CONCURRENT_INDIRECT_READS } else { 1 };
        let mut in_flight = FuturesUnordered::new();
        for (first, pointer) in touched.collect::<Vec<_>>() {
            if level == 0 {
                *pointer = self.edit_data(tree, *pointer, first, block_bytes);
                continue;
            }
            in_flight.push(self.edit_in_place(tree, pointer, level, first, block_bytes));
            if in_flight.len() >= at_once
                && let Some(done) = in_flight.next().await
            {
                done?;
            }
        }
        while let Some(done) = in_flight.next().await {
            done?;
        }
        Ok(())
    }

    async fn edit_in_place(
        &self,
        tree: &Tree<'_>,
        pointer: &mut BlockPointer,
        level: u8,
        first: u64,
        block_bytes: u64,
    ) -> Result<(), ObjectError> {
        *pointer = self.edit(tree, *pointer, level, first, block_bytes).await?;
        Ok(())
    }

    /// Returns the pointers in the indirect block of `pointer`; holes if it is a hole. In a tree with new levels, the
    /// dnode's former pointers are the first ones of the first block of the lowest new level.
    async fn children(
        &self,
        tree: &Tree<'_>,
        pointer: &BlockPointer,
        level: u8,
        first: u64,
        block_bytes: u64,
    ) -> Result<Vec<BlockPointer>, ObjectError> {
        let count = (tree.geometry.fan_out() as usize).min(MAX_FAN_OUT);
        if pointer.is_hole() {
            let indirect_bytes = tree.geometry.indirect_bytes();
            let mut out = vec![part_of_hole(pointer, level, indirect_bytes, block_bytes); count];
            if level == tree.old_levels && first == 0 {
                out.iter_mut().zip(&tree.old_tops).for_each(|(slot, top)| *slot = *top);
            }
            return Ok(out);
        }
        let number = tree.geometry.number_at(level, first);
        let place = self.place(tree.id, level, number);
        let read = self.set.cache().read(self.rq, pointer, &self.set.options_at(place)).await;
        let bytes = read.map_err(|e| ObjectError::block(place, e))?;
        if bytes.len() != count * BlockPointer::SIZE {
            return Err(ObjectError::Corrupt { place, why: "indirect block of another size" });
        }
        Ok((0..count).map(|i| pointer_in(&bytes, pointer, i).unwrap_or_default()).collect())
    }

    /// Reports all blocks below a pointer, and its own block, as killed.
    fn free_below<'f>(
        &'f self,
        tree: &'f Tree<'f>,
        pointer: BlockPointer,
        level: u8,
        number: u64,
    ) -> BoxFuture<'f, Result<(), ObjectError>> {
        Box::pin(async move {
            if pointer.is_hole() {
                return Ok(());
            }
            if level > 0 {
                let first = tree.geometry.first_block(level, number);
                let children = self.children(tree, &pointer, level, first, 0).await?;
                for (n, child) in (tree.geometry.first_child(number)..).zip(children) {
                    self.free_below(tree, child, level - 1, n).await?;
                }
            }
            self.killed(tree, pointer, level, number);
            Ok(())
        })
    }
}

/// Written data blocks by number.
type Written = Vec<(u64, BlockPointer)>;

/// Writes data blocks of one object, the first of which is at `place`, and keeps them in the cache.
async fn write_batch(
    cache: &Cache,
    batch: Vec<(Bytes, WriteOptions)>,
    read: &ReadOptions,
    dedup: Option<(Arc<dyn DedupWriter>, DedupPolicy)>,
    place: ErrorLocation,
) -> Result<Written, ObjectError> {
    let rq = Request::internal("sync");
    let blocks: Vec<(u64, Bytes)> = batch.iter().map(|(bytes, options)| (options.block, bytes.clone())).collect();
    // What is encrypted is not what readers get.
    let is_readable = batch.iter().all(|(_, options)| options.raw.is_none());
    let number = |n: usize| blocks.get(n).map_or(place.block, |(block, _)| *block);
    let pointers = match dedup {
        Some((dedup, policy)) => {
            let writes = batch.iter().map(|(bytes, options)| dedup.write(&rq, bytes, options, policy.verify, read));
            try_join_all(writes).await?
        }
        None => {
            let written = cache.blocks().write_all(&rq, batch).await;
            written.map_err(|(n, e)| ObjectError::block(ErrorLocation { block: number(n), ..place }, e))?
        }
    };
    let written = blocks.into_iter().zip(pointers).map(|((n, bytes), pointer)| {
        if is_readable {
            cache.insert(&pointer, read, bytes);
        }
        (n, pointer)
    });
    Ok(written.collect())
}

/// Adds levels until the last block is below the dnode's pointers, and there are `least`.
fn grow(tree: &mut Tree<'_>, dnode: &mut Dnode, least: u8) {
    let last = tree.edits.keys().next_back().copied().unwrap_or(0).max(dnode.max_block_id);
    let old = dnode.levels.max(1);
    let levels = tree.geometry.levels_to_reach(last, dnode.block_pointers.len(), old.max(least));
    dnode.levels = levels;
    // A hole with a birth also has a level; in the dnode it would be mistaken for one of the new top level.
    if levels > old && !dnode.block_pointers.iter().all(BlockPointer::is_null) {
        tree.old_levels = old;
        tree.old_tops = dnode.block_pointers.iter().copied().collect();
        dnode.block_pointers.iter_mut().for_each(|p| *p = BlockPointer::HOLE);
    }
}

/// Contribution of a pointer to the fill count above it.
fn fill_of(pointer: &BlockPointer) -> u64 {
    if pointer.is_hole() {
        0
    } else if pointer.is_embedded() {
        1
    } else {
        pointer.fill()
    }
}

/// Gives a dnode the pointers of its base.
fn adopt(dnode: &mut Dnode, base: Option<&Dnode>) {
    match base {
        Some(base) => {
            dnode.levels = base.levels;
            dnode.used = base.used;
            dnode.flags.0 = dnode.flags.0 & !weir_format::DnodeFlags::USED_BYTES
                | base.flags.0 & weir_format::DnodeFlags::USED_BYTES;
            dnode.indirect_shift = base.indirect_shift;
            dnode.block_pointers = base.block_pointers.clone();
            super::dirty_object::set_spill_pointer(dnode, base.spill);
        }
        None => {
            dnode.used = 0;
            dnode.block_pointers.iter_mut().for_each(|p| *p = BlockPointer::HOLE);
            super::dirty_object::set_spill_pointer(dnode, None);
        }
    }
    let room = bonus_capacity(dnode.slots(), dnode.block_pointers.len(), dnode.spill.is_some());
    dnode.bonus.resize(room, 0);
}

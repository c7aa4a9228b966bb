//! Freeing in the background (OpenZFS `module/zfs/bptree.c`, `dsl_process_async_destroys` in `dsl_scan.c`): the pool's
//! list of blocks that destroyed snapshots left, the livelists of destroyed clones ([`crate::livelist`]), and the trees
//! of destroyed datasets. Each txg frees a part.
//!
//! ```text
//!   bptree object   entries: root pointer · only blocks born after this txg · resume bookmark
//!                   header (bonus): first and last entry, sizes still to be freed
//! ```
//!
//! A tree is walked in post-order: a block is freed after all blocks below it, so that the blocks that are not freed
//! yet can still be found after a crash. When the txg has freed its share, the bookmark of the first block not freed is
//! written into the entry; every block before it in post-order is freed. The walk pauses only at blocks of level 0, as
//! OpenZFS's does, so that each implementation can resume the other's.
//!
//! *A block that cannot be read* ends the walk through its tree, not the txg: the bookmark of the first block below it
//! that was not visited goes into the entry, the next tree is freed, and each txg tries again ([`Freed::stuck`]).
//! Entries behind a stuck tree stay when they are complete, as entries without blocks to free, because the header
//! cannot represent gaps.

use super::space::Delta;
use super::{DslError, DslSyncContext, features, lists, pool_dirs};
use crate::bpobj::{self, Sums};
use futures_util::future::BoxFuture;
use std::cmp::Ordering;
use std::sync::Arc;
use weir_cache::Cache;
use weir_dmu::VisitedBlocks;
use weir_dmu::error::{ErrorLocation, ObjectError};
use weir_dmu::live::NewObject;
use weir_dmu::object::Object;
use weir_dmu::object_set::{ObjectSet, Opening};
use weir_dmu::zap;
use weir_format::dsl::pool;
use weir_format::features::Feature;
use weir_format::{
    BlockPointer, Cursor, Dnode, DslDataset, Encoder, Endian, ObjectId, ObjectType, Objset, ObjsetId, Txg,
};
use weir_machine::Request;

/// An array of 64-bit integers that describes itself as metadata (`DMU_OTN_UINT64_METADATA`).
const WORDS_METADATA: ObjectType = ObjectType(0xc3);
/// Bytes of a block of the object.
const BLOCK_BYTES: u32 = 128 << 10;
/// Maximum accepted number of waiting trees.
const MAX_TREES: u64 = 1 << 20;
/// Maximum accepted number of entries ever created.
const MAX_ENTRIES: u64 = 1 << 40;
/// Bytes of an entry.
const ENTRY_BYTES: u64 = 168;
/// The object set of bookmarks in destroyed trees (`ZB_DESTROYED_OBJSET`).
const DESTROYED: u64 = u64::MAX;
/// The feature that is active while there are trees.
const FEATURE: &Feature = Feature::ASYNC_DESTROY;

/// Header of the object (`bptree_phys_t`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Header {
    begin: u64,
    end: u64,
    sizes: [u64; 3],
}

impl Header {
    fn decode(bonus: &[u8], endian: Endian) -> Result<Self, weir_format::DecodeError> {
        let [begin, end, used, compressed, uncompressed] = Cursor::new(bonus, endian, "trees to be freed").words()?;
        Ok(Header { begin, end, sizes: [used, compressed, uncompressed] })
    }

    fn of(mos: &ObjectSet, object: &Object) -> Result<Self, ObjectError> {
        let place = mos.place(object.id, 0, 0);
        let header = Self::decode(object.dnode.bonus(), object.dnode.endian);
        let header = header.map_err(|e| ObjectError::decode(place, e))?;
        match header.end.saturating_sub(header.begin) > MAX_TREES || header.end > MAX_ENTRIES {
            true => Err(ObjectError::Corrupt { place, why: "more trees to be freed than a pool has datasets" }),
            false => Ok(header),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::new(Endian::Little);
        e.words(&[self.begin, self.end]);
        e.words(&self.sizes);
        e.finish()
    }

    fn add(&mut self, delta: Delta) {
        let deltas = [delta.used, delta.compressed, delta.uncompressed];
        self.sizes.iter_mut().zip(deltas).for_each(|(size, by)| *size = size.saturating_add_signed(by));
    }
}

/// The trees that wait to be freed, for readers that change nothing.
///
/// # Errors
/// Errors of reading them.
pub async fn waiting_trees(rq: &Request, mos: &Arc<ObjectSet>) -> Result<Vec<BptreeEntry>, ObjectError> {
    let found = zap::lookup_word(rq, mos, super::DIRECTORY, pool::BPTREE_OBJ).await?;
    let Some(id) = found.filter(|id| *id != 0).map(ObjectId) else { return Ok(Vec::new()) };
    let object = mos.object(rq, id).await?;
    let wrong = |why| ObjectError::Corrupt { place: mos.place(id, 0, 0), why };
    let header = Header::of(mos, &object)?;
    let mut trees = Vec::new();
    for number in header.begin..header.end {
        let first = number.saturating_mul(ENTRY_BYTES / 8);
        let words = mos.reader().read_words(rq, &object, first, ENTRY_BYTES / 8).await?;
        trees.push(BptreeEntry::of_words(&words).ok_or(wrong("a malformed entry"))?);
    }
    Ok(trees)
}

/// Position in a walk: object, level, block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ResumeBookmark {
    object: u64,
    level: u64,
    block: u64,
}

/// Entry of the bptree (`bptree_entry_phys_t`): a destroyed dataset, or the rest of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BptreeEntry {
    root: BlockPointer,
    after: Txg,
    mark: Option<ResumeBookmark>,
}

impl BptreeEntry {
    /// Up to about `most` blocks to free, in the order of freeing, and the rest of the tree.
    ///
    /// # Errors
    /// Errors of reading the tree; then no block is returned.
    pub async fn look(
        self,
        rq: &Request,
        cache: &Arc<Cache>,
        most: u64,
    ) -> Result<(Vec<BlockPointer>, Option<BptreeEntry>), ObjectError> {
        if self.is_done() {
            return Ok((Vec::new(), None));
        }
        let freer = AsyncDestroyer::open(rq, cache, &self, most).await?.run(rq, &self.root).await;
        match freer.stuck {
            Some(error) => Err(error),
            None => Ok((freer.freed, freer.paused.map(|mark| BptreeEntry { mark: Some(mark), ..self }))),
        }
    }

    /// Whether the tree has no blocks left to free.
    fn is_done(&self) -> bool {
        self.root.is_hole() || self.root.birth() <= self.after
    }

    pub(crate) fn of_words(words: &[u64]) -> Option<Self> {
        let root = BlockPointer::from_words(words.get(..16)?.try_into().ok()?);
        let [after, objset, object, level, block]: [u64; 5] = words.get(16..21)?.try_into().ok()?;
        let none = [objset, object, level, block] == [0; 4];
        let mark = (!none).then_some(ResumeBookmark { object, level, block });
        Some(BptreeEntry { root, after: Txg(after), mark })
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut e = Encoder::new(Endian::Little);
        e.words(self.root.words());
        e.u64(self.after.0);
        match self.mark {
            Some(mark) => e.words(&[DESTROYED, mark.object, mark.level, mark.block]),
            None => e.words(&[0; 4]),
        }
        e.finish()
    }
}

/// Result of one txg's freeing in the background.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    /// Blocks.
    pub blocks: u64,
    /// Whether more blocks wait to be freed.
    pub more: bool,
    /// First read error of a tree: the rest of the tree waits until it can be read.
    pub stuck: Option<ObjectError>,
}

/// Result of freeing a part of a tree.
#[derive(Default)]
struct PendingFree {
    blocks: u64,
    /// The rest of the tree, if any.
    rest: Option<BptreeEntry>,
    stuck: Option<ObjectError>,
}

/// Post-order walk that frees.
struct AsyncDestroyer {
    set: Arc<ObjectSet>,
    after: Txg,
    /// Everything before this bookmark is freed.
    resume: Option<ResumeBookmark>,
    /// Number of blocks that may still be freed in this txg.
    left: u64,
    /// Where the walk paused: the first bookmark that is not freed.
    paused: Option<ResumeBookmark>,
    /// The read error there.
    stuck: Option<ObjectError>,
    freed: Vec<BlockPointer>,
    /// Addresses of the indirect blocks that were entered. A valid tree contains each once; in malformed input, levels
    /// full of the same pointer would make the walk as long as the product of their widths.
    entered: VisitedBlocks,
}

async fn trees_header(cx: &DslSyncContext<'_>, id: ObjectId) -> Result<Header, DslError> {
    let object = cx.mos.object(cx.rq, id).await?;
    Ok(Header::of(&cx.mos, &object)?)
}

async fn put_trees_header(cx: &DslSyncContext<'_>, id: ObjectId, header: &Header) -> Result<(), DslError> {
    Ok(cx.mos.changes().set_bonus(cx.rq, cx.tx, id, WORDS_METADATA, &header.encode()).await?)
}

/// Checks that a dataset can be freed. A pool without `async_destroy` frees it in this txg, so all of it must be
/// readable; in other pools an unreadable part waits.
///
/// # Errors
/// Errors of reading it.
pub(super) async fn check_freeing(cx: &mut DslSyncContext<'_>, phys: &DslDataset) -> Result<(), DslError> {
    if !features::is_enabled(cx, FEATURE).await? {
        let tree = BptreeEntry { root: phys.pointer, after: phys.prev_snapshot_txg, mark: None };
        tree.look(cx.rq, cx.mos.cache(), u64::MAX).await?;
    }
    Ok(())
}

/// Adds a tree whose blocks born after `after` are to free; their space is accounted to `$FREE` until then.
pub(super) async fn add_tree(
    cx: &mut DslSyncContext<'_>,
    root: &BlockPointer,
    after: Txg,
    size: Delta,
) -> Result<(), DslError> {
    let tree = BptreeEntry { root: *root, after, mark: None };
    if !features::is_enabled(cx, FEATURE).await? {
        // A pool without `async_destroy` frees the tree in this txg.
        let mut header = Header::default();
        let part = free_some(cx, &mut header, tree, u64::MAX, false).await?;
        return part.stuck.map_or(Ok(()), |error| Err(error.into()));
    }
    let id = match cx.word(super::DIRECTORY, pool::BPTREE_OBJ).await? {
        Some(id) => ObjectId(id),
        None => {
            let new = NewObject::new(WORDS_METADATA, BLOCK_BYTES).bonus(WORDS_METADATA, Header::default().encode());
            let id = cx.mos.changes().create(cx.rq, cx.tx, &new).await?;
            cx.insert_word(super::DIRECTORY, pool::BPTREE_OBJ, id.0).await?;
            features::count_feature(cx, FEATURE, 1).await?;
            id
        }
    };
    let mut header = trees_header(cx, id).await?;
    cx.mos.writes().write(cx.rq, cx.tx, id, header.end * ENTRY_BYTES, &tree.bytes()).await?;
    header.end += 1;
    header.add(size);
    put_trees_header(cx, id, &header).await?;
    pool_dirs::book_free(cx, size).await
}

/// Frees up to `most` of the waiting blocks. The syncer calls this once per txg; [`DslSyncContext::take_frees`]
/// returns the blocks.
pub async fn free_in_background(cx: &mut DslSyncContext<'_>, most: u64) -> Result<Freed, DslError> {
    let mut freed = Freed::default();
    if let Some(list) = cx.pool_object(pool::FREE_BPOBJ).await? {
        free_listed(cx, list, most, &mut freed).await?;
        while freed.blocks < most && lists::list_deleted_clone(cx, list).await? {
            free_listed(cx, list, most, &mut freed).await?;
        }
    }
    if freed.blocks < most
        && let Some(id) = cx.word(super::DIRECTORY, pool::BPTREE_OBJ).await?.map(ObjectId)
    {
        free_trees(cx, id, most, &mut freed).await?;
    }
    let trees = cx.word(super::DIRECTORY, pool::BPTREE_OBJ).await?.is_some();
    let listed = match cx.pool_object(pool::FREE_BPOBJ).await? {
        Some(list) => !bpobj::is_empty(cx.rq, &cx.mos, list).await?,
        None => false,
    };
    let clones = cx.word(super::DIRECTORY, pool::DELETED_CLONES).await?.is_some();
    freed.more = trees || listed || clones;
    Ok(freed)
}

/// Frees the listed blocks but no trees: for tests whose trees are on no disk.
#[cfg(test)]
pub(super) async fn free_listed_for_test(cx: &mut DslSyncContext<'_>) {
    let list = cx.pool_object(pool::FREE_BPOBJ).await.unwrap().unwrap();
    free_listed(cx, list, u64::MAX, &mut Freed::default()).await.unwrap();
}

async fn free_listed(
    cx: &mut DslSyncContext<'_>,
    list: ObjectId,
    most: u64,
    freed: &mut Freed,
) -> Result<(), DslError> {
    let sizes = cx.pool.sizes.clone();
    while freed.blocks < most {
        let left = most - freed.blocks;
        let pointers = bpobj::take(cx.rq, &cx.mos, cx.tx, list, left, &*sizes).await?;
        if pointers.is_empty() {
            break;
        }
        let mut sum = Delta::default();
        for pointer in pointers {
            sum += Sums::of(&pointer, &*sizes).into();
            freed.blocks += 1;
            cx.free(pointer);
        }
        pool_dirs::book_free(cx, -sum).await?;
    }
    Ok(())
}

/// Frees up to `most` blocks of waiting trees in all, and removes the object when no tree is left.
async fn free_trees(cx: &mut DslSyncContext<'_>, id: ObjectId, most: u64, freed: &mut Freed) -> Result<(), DslError> {
    let mut header = trees_header(cx, id).await?;
    let mut number = header.begin;
    while number < header.end && freed.blocks < most {
        let object = cx.mos.object(cx.rq, id).await?;
        let at = number * ENTRY_BYTES;
        let words = cx.mos.reader().read_words(cx.rq, &object, at / 8, ENTRY_BYTES / 8).await?;
        let wrong = ObjectError::Corrupt { place: cx.mos.place(id, 0, 0), why: "a malformed entry" };
        let tree = BptreeEntry::of_words(&words).ok_or(wrong)?;
        let part = free_some(cx, &mut header, tree.clone(), most - freed.blocks, true).await?;
        freed.blocks += part.blocks;
        let pauses = part.rest.is_some() && part.stuck.is_none();
        freed.stuck = freed.stuck.take().or(part.stuck);
        match part.rest {
            Some(rest) if rest == tree => {}
            Some(rest) => cx.mos.writes().write(cx.rq, cx.tx, id, at, &rest.bytes()).await?,
            // Behind a stuck tree.
            None if number > header.begin && tree.is_done() => {}
            None if number > header.begin => {
                let done = BptreeEntry { after: Txg(u64::MAX), mark: None, ..tree };
                cx.mos.writes().write(cx.rq, cx.tx, id, at, &done.bytes()).await?;
            }
            None => {
                header.begin += 1;
                cx.mos.frees().punch(cx.rq, cx.tx, id, at, ENTRY_BYTES).await?;
            }
        }
        if part.blocks > 0 || header.begin > number {
            put_trees_header(cx, id, &header).await?;
        }
        if pauses {
            break;
        }
        number += 1;
    }
    if header.begin >= header.end {
        // The object must be removed: its sizes are all subtracted.
        cx.zap_remove(super::DIRECTORY, pool::BPTREE_OBJ).await?;
        cx.remove(id).await?;
        features::count_feature(cx, FEATURE, -1).await?;
    }
    Ok(())
}

/// Frees up to `most` blocks of a tree.
async fn free_some(
    cx: &mut DslSyncContext<'_>,
    header: &mut Header,
    tree: BptreeEntry,
    most: u64,
    booked: bool,
) -> Result<PendingFree, DslError> {
    if tree.is_done() {
        return Ok(PendingFree::default());
    }
    let freer = match AsyncDestroyer::open(cx.rq, cx.mos.cache(), &tree, most).await {
        Ok(freer) => freer.run(cx.rq, &tree.root).await,
        Err(error) => return Ok(PendingFree { rest: Some(tree), stuck: Some(error), ..PendingFree::default() }),
    };
    let mut sum = Delta::default();
    let sizes = cx.pool.sizes.clone();
    for pointer in &freer.freed {
        sum += Sums::of(pointer, &*sizes).into();
    }
    let blocks = freer.freed.len() as u64;
    for pointer in freer.freed {
        cx.free(pointer);
    }
    if blocks > 0 {
        header.add(-sum);
        if booked {
            pool_dirs::book_free(cx, -sum).await?;
        }
    }
    let rest = freer.paused.map(|mark| BptreeEntry { mark: Some(mark), ..tree });
    Ok(PendingFree { blocks, rest, stuck: freer.stuck })
}

impl AsyncDestroyer {
    async fn open(rq: &Request, cache: &Arc<Cache>, tree: &BptreeEntry, most: u64) -> Result<Self, ObjectError> {
        let opening = Opening { id: ObjsetId(DESTROYED), ..Opening::default() };
        let set = ObjectSet::open(rq, cache.clone(), tree.root, opening).await?;
        Ok(AsyncDestroyer {
            set,
            after: tree.after,
            resume: tree.mark,
            left: most,
            paused: None,
            stuck: None,
            freed: Vec::new(),
            entered: VisitedBlocks::default(),
        })
    }

    /// Walks the whole object set: its objects, the accounting objects, then its header.
    async fn run(mut self, rq: &Request, root: &BlockPointer) -> Self {
        let header = self.set.root().header.clone();
        let dnodes = [
            (0, header.meta_dnode),
            (Objset::PROJECTUSED_OBJECT, header.project_used),
            (Objset::GROUPUSED_OBJECT, header.group_used),
            (Objset::USERUSED_OBJECT, header.user_used),
        ];
        for (number, dnode) in dnodes {
            if let Some(dnode) = dnode {
                self.dnode(rq, number, dnode).await;
            }
        }
        if self.paused.is_none() {
            self.freed.push(*root);
        }
        self
    }

    /// Ends the walk, because the next block cannot be read.
    fn get_stuck(&mut self, at: ResumeBookmark, error: ObjectError) {
        // If the resume bookmark was not reached yet, it is below this block.
        self.paused = Some(self.resume.unwrap_or(at));
        self.stuck = Some(error);
    }

    /// The first bookmark at or below a block; below the meta dnode it is one of an object.
    fn first_below(object: &Object, level: u8, block: u64) -> ResumeBookmark {
        let number = object.id.0;
        let block = object.tree().first_block(level, block);
        match number {
            0 => ResumeBookmark { object: block.saturating_mul(slots_of(object)).max(1), level: 0, block: 0 },
            object => ResumeBookmark { object, level: 0, block },
        }
    }

    /// Position of a block and its subtree relative to the resume bookmark: before, around, or behind it.
    fn compare_to_resume(object: &Object, level: u8, block: u64, mark: &ResumeBookmark) -> Ordering {
        let number = object.id.0;
        let (mark_level, mark_block) = match (number, mark.object) {
            (own, of) if own == of => (mark.level, mark.block),
            // Below the meta dnode: the block of dnodes that contains the object.
            (0, of) if of < Objset::PROJECTUSED_OBJECT => (0, of / slots_of(object)),
            (own, of) => return own.cmp(&of),
        };
        if block == ErrorLocation::SPILL || mark_block == ErrorLocation::SPILL {
            return block.cmp(&mark_block);
        }
        let level = u64::from(level);
        let levels = u8::try_from(level.abs_diff(mark_level)).unwrap_or(u8::MAX);
        let up = |block: u64| object.tree().number_at(levels, block);
        if level >= mark_level {
            return block.cmp(&up(mark_block));
        }
        // Everything below the bookmark is freed.
        up(block).cmp(&mark_block).then(Ordering::Less)
    }

    fn dnode<'a>(&'a mut self, rq: &'a Request, number: u64, dnode: Dnode) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let top = dnode.levels.saturating_sub(1);
            let pointers = dnode.block_pointers.clone();
            let spill = dnode.spill;
            let object = Arc::new(Object::new(ObjectId(number), dnode));
            for (block, pointer) in (0u64..).zip(pointers) {
                self.block(rq, &object, top, block, pointer).await;
            }
            if let Some(pointer) = spill {
                self.block(rq, &object, 0, ErrorLocation::SPILL, pointer).await;
            }
        })
    }

    /// Frees the blocks below a block, then the block.
    fn block<'a>(
        &'a mut self,
        rq: &'a Request,
        object: &'a Arc<Object>,
        level: u8,
        block: u64,
        pointer: BlockPointer,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let shared = pointer.is_hole() || pointer.is_redacted() || pointer.birth() <= self.after;
            if self.paused.is_some() || shared {
                return;
            }
            match self.resume.as_ref().map(|mark| Self::compare_to_resume(object, level, block, mark)) {
                Some(Ordering::Less) => return,
                // There was no block at the bookmark itself.
                Some(Ordering::Greater) => self.resume = None,
                Some(Ordering::Equal) | None => {}
            }
            let mark = ResumeBookmark { object: object.id.0, level: level.into(), block };
            if self.resume == Some(mark) {
                // Everything below it is freed.
                self.resume = None;
            } else if (level > 0 || object.id.0 == 0) && !self.entered.enter(&pointer) {
                let place = self.set.place(object.id, level, block);
                let error = ObjectError::Corrupt { place, why: "a block of pointers that is in the tree twice" };
                self.get_stuck(Self::first_below(object, level, block), error);
            } else if level > 0 {
                self.below(rq, object, level, block, &pointer).await;
            } else if object.id.0 == 0 {
                self.dnodes(rq, object, block, &pointer).await;
            }
            if self.paused.is_some() {
                return;
            }
            if level == 0 && self.left == 0 {
                self.paused = Some(mark);
                return;
            }
            self.left = self.left.saturating_sub(1);
            self.freed.push(pointer);
        })
    }

    async fn below(&mut self, rq: &Request, object: &Arc<Object>, level: u8, block: u64, pointer: &BlockPointer) {
        let data_block = object.tree().first_block(level, block);
        let bytes = match self.set.pointers().read_indirect(rq, object, pointer, level, data_block).await {
            Ok(bytes) => bytes,
            Err(error) => return self.get_stuck(Self::first_below(object, level, block), error),
        };
        let mut cursor = Cursor::new(&bytes, pointer.endian(), "indirect block");
        let first = object.tree().first_child(block);
        for index in 0..bytes.len() / BlockPointer::SIZE {
            let number = first + index as u64;
            match BlockPointer::decode(&mut cursor) {
                Ok(child) => self.block(rq, object, level - 1, number, child).await,
                Err(error) => {
                    let error = ObjectError::decode(self.set.place(object.id, level, block), error);
                    return self.get_stuck(Self::first_below(object, level - 1, number), error);
                }
            }
            if self.paused.is_some() {
                return;
            }
        }
    }

    async fn dnodes(&mut self, rq: &Request, meta: &Arc<Object>, block: u64, pointer: &BlockPointer) {
        let bytes = match self.set.pointers().read(rq, meta, block, pointer).await {
            Ok(bytes) => bytes,
            Err(error) => return self.get_stuck(Self::first_below(meta, 0, block), error),
        };
        let slots = bytes.len() / Dnode::SLOT;
        let mut slot = 0;
        while slot < slots && self.paused.is_none() {
            let number = block * slots as u64 + slot as u64;
            match Dnode::decode(bytes.get(slot * Dnode::SLOT..).unwrap_or_default(), pointer.endian()) {
                Ok(Some(dnode)) => {
                    slot += dnode.slots();
                    self.object(rq, number, dnode).await;
                }
                Ok(None) => slot += 1,
                Err(error) => {
                    let error = ObjectError::decode(self.set.place(meta.id, 0, block), error);
                    return self.get_stuck(ResumeBookmark { object: number.max(1), level: 0, block: 0 }, error);
                }
            }
        }
    }

    /// Frees an object's blocks, unless the object is before the resume bookmark and so freed already.
    async fn object(&mut self, rq: &Request, number: u64, dnode: Dnode) {
        if number == 0 || self.resume.is_some_and(|mark| number < mark.object) {
            return;
        }
        self.resume = self.resume.filter(|mark| mark.object == number);
        self.dnode(rq, number, dnode).await;
        // Whether or not the bookmark was found in this object, the next objects are behind it.
        self.resume = None;
    }
}

/// Slots for dnodes in a block of the meta dnode.
fn slots_of(meta: &Object) -> u64 {
    (meta.block_bytes() / Dnode::SLOT as u64).max(1)
}

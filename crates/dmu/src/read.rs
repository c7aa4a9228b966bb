//! Reading objects: down the tree of indirect blocks, holes, and what is fetched ahead.
//!
//! A range is read in two steps: first the pointers of all its blocks, one look at each lowest indirect block; then the
//! blocks themselves, many at a time. A block that cannot be read is an error for the read that asks for it.
//!
//! Holes are what has no pointer: a null pointer at any level, or a number beyond the last block. They give zeros from
//! one shared page.

use crate::allocated_objects::Entered;
use crate::error::{ErrorLocation, ObjectError};
use crate::live::node::BlockLookup;
use crate::object::{Object, shift_left, shift_right};
use crate::object_set::ObjectSet;
use bytes::Bytes;
use futures_util::stream::{FuturesOrdered, StreamExt};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::{Arc, PoisonError};
use weir_blocks::ReadOptions;
use weir_codec::decompress_into;
use weir_format::{BlockPointer, Cursor, Endian, ObjectType};
use weir_machine::{Priority, Request};

/// Zeros that every hole is made of.
static ZEROS: [u8; 128 << 10] = [0; 128 << 10];
/// Blocks that one read has under way.
const MAX_CONCURRENT_READS: usize = 32;
/// Ways down the tree that one seek tries: a tree whose fill counts tell the truth needs no more than it has levels;
/// forged ones could go on for ever.
pub(crate) const SEEK_DESCENTS: u32 = 64;
/// Bytes of the largest single read.
pub const MAX_READ_BYTES: usize = 64 << 20;

/// A read, as the pieces that lie in the cache.
pub type Segments = SmallVec<[Bytes; 4]>;

/// What to seek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// A byte in a block.
    Data,
    /// A byte in no block.
    Hole,
    /// A block of dnodes with one in use: of the object that holds them, whose fill counts count these.
    Dnodes,
}

impl Seek {
    /// Whether such a block may be below `pointer`, which leads to level `level`.
    fn may_be_below(self, pointer: &BlockPointer, object: &Object, level: u8) -> bool {
        match self {
            Seek::Data => !pointer.is_hole(),
            Seek::Dnodes => !pointer.is_hole() && pointer.fill() > 0,
            Seek::Hole => pointer.is_hole() || level > 0 && pointer.fill() != shift_left(1, object.cover(level)),
        }
    }
}

impl ObjectSet {
    /// Up to `len` bytes from `offset`, clipped at `end` (the size that the reader knows: a file's size, a volume's; the
    /// object itself knows only its blocks). Starts to fetch what is likely to be read next.
    pub async fn read(
        self: &Arc<Self>,
        rq: &Request,
        object: &Arc<Object>,
        offset: u64,
        len: usize,
        end: u64,
    ) -> Result<Bytes, ObjectError> {
        let mut segments = self.read_segments(rq, object, offset, len, end).await?;
        if segments.len() == 1 {
            return Ok(segments.remove(0));
        }
        let mut whole = Vec::with_capacity(segments.iter().map(Bytes::len).sum());
        segments.iter().for_each(|segment| whole.extend_from_slice(segment));
        Ok(Bytes::from(whole))
    }

    /// The same without joining the pieces.
    pub async fn read_segments(
        self: &Arc<Self>,
        rq: &Request,
        object: &Arc<Object>,
        offset: u64,
        len: usize,
        end: u64,
    ) -> Result<Segments, ObjectError> {
        loop {
            let version = self.version();
            match self.read_segments_once(rq, object, offset, len, end).await {
                Err(error) if self.raced_with_sync(&error, version) => {}
                answer => return answer,
            }
        }
    }

    async fn read_segments_once(
        self: &Arc<Self>,
        rq: &Request,
        object: &Arc<Object>,
        offset: u64,
        len: usize,
        end: u64,
    ) -> Result<Segments, ObjectError> {
        let end = offset.saturating_add(len.min(MAX_READ_BYTES) as u64).min(end);
        if offset >= end {
            return Ok(Segments::new());
        }
        let unsynced = self.view(rq, object, offset, end).await?;
        let (object, overlay) = unsynced.as_ref().map_or((object, None), |(object, seen)| (object, Some(seen)));
        self.prefetch_after(object, offset, end - offset, object.span_bytes());
        let block_bytes = object.block_bytes();
        let (first, last) = (offset / block_bytes, (end - 1) / block_bytes);
        if first == last {
            let pointer = self.pointer_at(rq, object, 0, first).await?;
            let part = offset - first * block_bytes..end - first * block_bytes;
            return self.read_part(rq, object, first, pointer, overlay.and_then(|seen| seen.get(&first)), part).await;
        }
        let mut out = Segments::new();
        let mut under_way = FuturesOrdered::new();
        let mut at = first;
        while at <= last {
            let pointers = self.pointers(rq, object, at..last.saturating_add(1)).await?;
            for (n, pointer) in (at..).zip(&pointers) {
                let start = n.saturating_mul(block_bytes);
                let part = offset.max(start) - start..(end - start).min(block_bytes);
                let seen = overlay.and_then(|seen| seen.get(&n));
                under_way.push_back(self.read_part(rq, object, n, *pointer, seen, part));
                if under_way.len() >= MAX_CONCURRENT_READS
                    && let Some(done) = under_way.next().await
                {
                    out.extend(done?);
                }
            }
            at = at.saturating_add(pointers.len().max(1) as u64);
        }
        while let Some(done) = under_way.next().await {
            out.extend(done?);
        }
        Ok(out)
    }

    async fn read_part(
        self: &Arc<Self>,
        rq: &Request,
        object: &Arc<Object>,
        block: u64,
        pointer: Option<BlockPointer>,
        seen: Option<&BlockLookup>,
        part: Range<u64>,
    ) -> Result<Segments, ObjectError> {
        let within = |len: usize| (part.start as usize).min(len)..(part.end as usize).min(len);
        let (pointer, seen) = match seen {
            Some(BlockLookup::Shared(shared)) => (Some(*shared), None),
            seen => (pointer, seen),
        };
        match pointer {
            _ if let Some(BlockLookup::Data(bytes)) = seen => {
                Ok(SmallVec::from_iter([bytes.slice(within(bytes.len()))]))
            }
            _ if seen.is_some() => Ok(zeros(part.end.saturating_sub(part.start))),
            None => Ok(zeros(part.end.saturating_sub(part.start))),
            Some(pointer) => {
                let bytes = self.read_pointer(rq, object, block, &pointer).await?;
                // `read_pointer` gives exactly a block's bytes.
                Ok(SmallVec::from_iter([bytes.slice(within(bytes.len()))]))
            }
        }
    }

    /// A whole data block; `None` for a hole.
    pub async fn read_block(
        self: &Arc<Self>,
        rq: &Request,
        object: &Arc<Object>,
        block: u64,
    ) -> Result<Option<Bytes>, ObjectError> {
        Ok(self.read_ordered_block(rq, object, block).await?.map(|(bytes, _)| bytes))
    }

    /// A whole data block and the byte order in which it was written; `None` for a hole. Blocks of one object may
    /// differ: a pool may have been moved between machines.
    pub async fn read_ordered_block(
        self: &Arc<Self>,
        rq: &Request,
        object: &Arc<Object>,
        block: u64,
    ) -> Result<Option<(Bytes, Endian)>, ObjectError> {
        loop {
            let version = self.version();
            match self.read_block_once(rq, object, block).await {
                Err(error) if self.raced_with_sync(&error, version) => {}
                answer => return answer,
            }
        }
    }

    async fn read_block_once(
        self: &Arc<Self>,
        rq: &Request,
        object: &Arc<Object>,
        block: u64,
    ) -> Result<Option<(Bytes, Endian)>, ObjectError> {
        let newest = match self.view_block(rq, object, block).await? {
            Some((newest, BlockLookup::Shared(pointer))) => {
                return Ok(Some((self.read_pointer(rq, &newest, block, &pointer).await?, pointer.endian())));
            }
            Some((_, BlockLookup::Data(bytes))) => return Ok(Some((bytes, Endian::Little))),
            Some((_, BlockLookup::Hole)) => return Ok(None),
            Some((newest, BlockLookup::Synced)) => Some(newest),
            None => None,
        };
        let object = newest.as_ref().unwrap_or(object);
        match self.pointer_at(rq, object, 0, block).await? {
            None => Ok(None),
            Some(pointer) => Ok(Some((self.read_pointer(rq, object, block, &pointer).await?, pointer.endian()))),
        }
    }

    /// How often a live set was synced.
    pub(crate) fn version(&self) -> u64 {
        self.live().map_or(0, |live| live.state().version)
    }

    /// Whether a read failed because the set was synced meanwhile: a tree that was looked up before may lead to blocks
    /// that are others' by now. Then it is done again on the new tree.
    pub(crate) fn raced_with_sync(&self, error: &ObjectError, version: u64) -> bool {
        self.is_live() && self.version() != version && error.is_corrupt()
    }

    /// Up to `count` 64-bit integers of an object that is an array of them, from the `first`th on: as far as its blocks
    /// go and at most [`MAX_READ_BYTES`].
    pub async fn read_words(
        self: &Arc<Self>,
        rq: &Request,
        object: &Arc<Object>,
        first: u64,
        count: u64,
    ) -> Result<Vec<u64>, ObjectError> {
        let newest = if self.is_live() { Some(self.object(rq, object.id).await?) } else { None };
        let object = newest.as_ref().unwrap_or(object);
        let per_block = object.block_bytes() / 8;
        let end = first.saturating_add(count.min(MAX_READ_BYTES as u64 / 8)).min(object.span_bytes() / 8);
        let (mut out, mut at) = (Vec::new(), first);
        while at < end {
            let block = at / per_block;
            let until = block.saturating_add(1).saturating_mul(per_block).min(end);
            match self.read_ordered_block(rq, object, block).await? {
                None => out.extend((at..until).map(|_| 0)),
                Some((bytes, endian)) => {
                    let mut cursor = Cursor::new(&bytes, endian, "array");
                    let place = self.place(object.id, 0, block);
                    let failed = |e| ObjectError::decode(place, e);
                    cursor.skip((at % per_block) as usize * 8).map_err(failed)?;
                    for _ in at..until {
                        out.push(cursor.u64().map_err(failed)?);
                    }
                }
            }
            at = until;
        }
        Ok(out)
    }

    /// The spill block: where attributes go that have no room in the bonus area.
    pub async fn read_spill(
        self: &Arc<Self>,
        rq: &Request,
        object: &Arc<Object>,
    ) -> Result<Option<(Bytes, Endian)>, ObjectError> {
        let newest = match self.view_spill(rq, object).await? {
            Some((_, Some(spill))) => return Ok(spill.map(|bytes| (bytes, Endian::Little))),
            Some((newest, None)) => Some(newest),
            None => None,
        };
        let object = newest.as_ref().unwrap_or(object);
        let Some(pointer) = object.dnode.spill.filter(|p| !p.is_hole()) else { return Ok(None) };
        let place = self.place(object.id, 0, ErrorLocation::SPILL);
        let bytes = self.cache().read(rq, &pointer, &self.options_at(place)).await;
        Ok(Some((bytes.map_err(|e| ObjectError::block(place, e))?, pointer.endian())))
    }

    /// The data block that `pointer` leads to, which must be as long as the object's blocks are.
    pub async fn read_pointer(
        &self,
        rq: &Request,
        object: &Object,
        block: u64,
        pointer: &BlockPointer,
    ) -> Result<Bytes, ObjectError> {
        let place = self.place(object.id, 0, block);
        let sealed = self.is_locked() && pointer.is_encrypted() && pointer.object_type() == ObjectType::DNODE;
        let bytes = if sealed {
            self.read_sealed(rq, pointer, place).await
        } else {
            self.cache().read(rq, pointer, &self.options_at(place)).await
        };
        let bytes = bytes.map_err(|e| ObjectError::block(place, e))?;
        if bytes.len() as u64 != object.block_bytes() {
            return Err(ObjectError::Corrupt { place, why: "block is not as long as the object's blocks are" });
        }
        Ok(bytes)
    }

    /// A block of dnodes without the key: what is encrypted in it stays so, the rest is clear (and proven by the
    /// checksum alone).
    async fn read_sealed(
        &self,
        rq: &Request,
        pointer: &BlockPointer,
        place: ErrorLocation,
    ) -> Result<Bytes, weir_blocks::BlockError> {
        let options = ReadOptions { raw: true, ..self.options_at(place) };
        let stored = self.cache().read(rq, pointer, &options).await?;
        let dva = pointer.dva(0);
        let corrupt = |fault| weir_blocks::BlockError::Corrupt { vdev: dva.vdev, offset: dva.offset_bytes, fault };
        let kind = pointer.compression().unwrap_or(weir_format::CompressionKind::Inherit);
        let mut clear = vec![0; pointer.lsize_bytes() as usize];
        decompress_into(kind, &stored, &mut clear).map_err(corrupt)?;
        Ok(Bytes::from(clear))
    }

    /// The pointer to block `block` of level `level`; `None` in a hole.
    pub async fn pointer_at(
        &self,
        rq: &Request,
        object: &Object,
        level: u8,
        block: u64,
    ) -> Result<Option<BlockPointer>, ObjectError> {
        let first = shift_left(block, object.fan_out_shift() * u32::from(level));
        let Some(mut pointer) = object.top_pointer(first).copied().filter(|p| !p.is_hole()) else { return Ok(None) };
        let top = object.dnode.levels.saturating_sub(1);
        if level > top {
            return Ok(None);
        }
        self.check_level(object, &pointer, top, first)?;
        for above in (level + 1..=top).rev() {
            let bytes = self.read_indirect(rq, object, &pointer, above, first).await?;
            let Some(below) = pointer_in(&bytes, &pointer, object.index_in(above, first)) else { return Ok(None) };
            if below.is_hole() {
                return Ok(None);
            }
            self.check_level(object, &below, above - 1, first)?;
            pointer = below;
        }
        Ok(Some(pointer))
    }

    /// The pointers of data blocks from `blocks.start` on: at least one, as far as the lowest indirect block goes and
    /// the range does.
    async fn pointers(
        &self,
        rq: &Request,
        object: &Object,
        blocks: Range<u64>,
    ) -> Result<SmallVec<[Option<BlockPointer>; 8]>, ObjectError> {
        let wanted = blocks.end.saturating_sub(blocks.start);
        if object.dnode.levels <= 1 {
            let all = (blocks.start..blocks.end).map(|n| object.top_pointer(n).copied().filter(|p| !p.is_hole()));
            return Ok(all.take(MAX_CONCURRENT_READS).collect());
        }
        let shift = object.fan_out_shift();
        let start = object.index_in(1, blocks.start);
        let count = ((1usize << shift.min(32)) - start).min(usize::try_from(wanted).unwrap_or(usize::MAX));
        let Some(above) = self.pointer_at(rq, object, 1, shift_right(blocks.start, shift)).await? else {
            return Ok(SmallVec::from_elem(None, count));
        };
        let bytes = self.read_indirect(rq, object, &above, 1, blocks.start).await?;
        let mut out = SmallVec::with_capacity(count);
        for (index, block) in (start..start + count).zip(blocks.start..) {
            let pointer = pointer_in(&bytes, &above, index).filter(|p| !p.is_hole());
            if let Some(pointer) = &pointer {
                self.check_level(object, pointer, 0, block)?;
            }
            out.push(pointer);
        }
        Ok(out)
    }

    /// Reads an indirect block: the pointers in it.
    ///
    /// # Errors
    /// What reading the block meets.
    pub async fn read_indirect(
        &self,
        rq: &Request,
        object: &Object,
        pointer: &BlockPointer,
        level: u8,
        block: u64,
    ) -> Result<Bytes, ObjectError> {
        let place = self.place(object.id, level, shift_right(block, object.fan_out_shift() * u32::from(level)));
        self.cache().read(rq, pointer, &self.options_at(place)).await.map_err(|e| ObjectError::block(place, e))
    }

    /// A pointer must lead one level down: a forged one could lead back up. Only data are embedded in pointers; whole
    /// levels of a forged tree could be.
    pub(crate) fn check_level(
        &self,
        object: &Object,
        pointer: &BlockPointer,
        level: u8,
        block: u64,
    ) -> Result<(), ObjectError> {
        let why = match (pointer.level() == level, level > 0 && pointer.is_embedded()) {
            // Embedded pointers keep their level in the same bits.
            (false, _) => "block pointer is of another level",
            (true, true) => "a block of pointers is embedded in its pointer",
            (true, false) => return Ok(()),
        };
        let place = self.place(object.id, level, shift_right(block, object.fan_out_shift() * u32::from(level)));
        Err(ObjectError::Corrupt { place, why })
    }

    /// The first data block at or after `from` that is not a hole.
    pub async fn next_data_block(&self, rq: &Request, object: &Object, from: u64) -> Result<Option<u64>, ObjectError> {
        self.next_block(rq, object, from, Seek::Data, None).await
    }

    /// The first data block at or after `from` that is data, or a hole. Skips whole subtrees: nothing below a null
    /// pointer is read, and a subtree whose fill count says that all its blocks are data has no hole to look for. Blocks
    /// of pointers are noted in `entered`.
    pub(crate) async fn next_block(
        &self,
        rq: &Request,
        object: &Object,
        from: u64,
        what: Seek,
        mut entered: Option<&mut Entered>,
    ) -> Result<Option<u64>, ObjectError> {
        let top = object.dnode.levels.saturating_sub(1);
        let mut at = from;
        // A tree that tells the truth disappoints once per level: below the pointers on the way to `from` itself.
        for _ in 0..SEEK_DESCENTS {
            let first = shift_right(at, object.cover(top));
            let tops = object.dnode.block_pointers.iter().enumerate();
            let candidate = tops
                .skip(usize::try_from(first).unwrap_or(usize::MAX))
                .find(|(_, p)| what.may_be_below(p, object, top));
            let Some((index, pointer)) = candidate else {
                // Beyond the last pointer there is nothing but a hole.
                let end = shift_left(object.dnode.block_pointers.len() as u64, object.cover(top));
                return Ok((what == Seek::Hole).then_some(end.max(at)));
            };
            at = at.max(shift_left(index as u64, object.cover(top)));
            match self.descend(rq, object, *pointer, &mut at, what, entered.as_deref_mut()).await? {
                Some(found) => return Ok(Some(found)),
                None if at == u64::MAX => return Ok(None),
                None => {}
            }
        }
        Err(ObjectError::Corrupt { place: self.place(object.id, top, at), why: "fill counts lie" })
    }

    /// Looks below a pointer of the dnode for the first block from `at` on; `None` if a subtree had none after all: `at`
    /// then is the first block behind it.
    async fn descend(
        &self,
        rq: &Request,
        object: &Object,
        mut pointer: BlockPointer,
        at: &mut u64,
        what: Seek,
        mut entered: Option<&mut Entered>,
    ) -> Result<Option<u64>, ObjectError> {
        for level in (1..object.dnode.levels).rev() {
            if pointer.is_hole() {
                return Ok(Some(*at));
            }
            self.check_level(object, &pointer, level, *at)?;
            let number = shift_right(*at, object.cover(level));
            if entered.as_mut().is_some_and(|entered| !entered.note(&pointer, level, number)) {
                let place = self.place(object.id, level, number);
                return Err(ObjectError::Corrupt { place, why: "a block of pointers that stands in two places" });
            }
            let bytes = self.read_indirect(rq, object, &pointer, level, *at).await?;
            let start = object.index_in(level, *at);
            let mut below = (start..1usize << object.fan_out_shift().min(32))
                .map_while(|i| Some((i, pointer_in(&bytes, &pointer, i)?)));
            let cover = object.cover(level - 1);
            let Some((index, child)) = below.find(|(_, p)| what.may_be_below(p, object, level - 1)) else {
                let next = shift_right(*at, object.cover(level)).saturating_add(1);
                *at = shift_left(next, object.cover(level));
                return Ok(None);
            };
            if index > start {
                let base = shift_left(shift_right(*at, object.cover(level)), object.cover(level));
                *at = base.saturating_add(shift_left(index as u64, cover));
            }
            pointer = child;
        }
        Ok(Some(*at))
    }

    /// The first byte at or after `offset`, before `end`, that is in a block, or in none; `None` if there is none.
    pub async fn seek(
        self: &Arc<Self>,
        rq: &Request,
        object: &Object,
        offset: u64,
        end: u64,
        what: Seek,
    ) -> Result<Option<u64>, ObjectError> {
        loop {
            let version = self.version();
            match self.seek_once(rq, object, offset, end, what).await {
                Err(error) if self.raced_with_sync(&error, version) => {}
                answer => return answer,
            }
        }
    }

    async fn seek_once(
        self: &Arc<Self>,
        rq: &Request,
        object: &Object,
        offset: u64,
        end: u64,
        what: Seek,
    ) -> Result<Option<u64>, ObjectError> {
        if offset >= end {
            return Ok(None);
        }
        let block_bytes = object.block_bytes();
        let found = match self.is_live() {
            true => self.next_block_live(rq, object.id, offset / block_bytes, end.div_ceil(block_bytes), what).await?,
            false => self.next_block(rq, object, offset / block_bytes, what, None).await?,
        };
        Ok(found.map(|block| block.saturating_mul(block_bytes).max(offset)).filter(|at| *at < end))
    }

    /// Tells the object's prefetcher of a read, and starts what it wants.
    pub(crate) fn prefetch_after(self: &Arc<Self>, object: &Arc<Object>, offset: u64, len: u64, end: u64) {
        let ranges = {
            let mut prefetcher = object.prefetcher.lock().unwrap_or_else(PoisonError::into_inner);
            prefetcher.observe(offset, len, end)
        };
        for range in ranges {
            let (set, object) = (self.clone(), object.clone());
            let job = async move {
                let rq = Request::internal("prefetch").with_priority(Priority::Async);
                // An error here is met again, and reported, by whoever reads the block.
                let _ = set.prefetch_range(&rq, &object, range).await;
            };
            drop(self.cache().machine().tasks.spawn(job));
        }
    }

    async fn prefetch_range(&self, rq: &Request, object: &Object, range: Range<u64>) -> Result<(), ObjectError> {
        let block_bytes = object.block_bytes();
        let (mut at, end) = (range.start / block_bytes, range.end.div_ceil(block_bytes));
        while at < end {
            let pointers = self.pointers(rq, object, at..end).await?;
            for (block, pointer) in (at..).zip(&pointers) {
                let Some(pointer) = pointer else { continue };
                let options = self.options_at(self.place(object.id, 0, block));
                self.cache().prefetch(pointer, &ReadOptions { prefetch: true, ..options });
            }
            at = at.saturating_add(pointers.len().max(1) as u64);
        }
        Ok(())
    }
}

/// The pointer at `index` of an indirect block; `None` beyond its end.
pub(crate) fn pointer_in(block: &[u8], above: &BlockPointer, index: usize) -> Option<BlockPointer> {
    let at = index.checked_mul(BlockPointer::SIZE)?;
    let bytes = block.get(at..at.checked_add(BlockPointer::SIZE)?)?;
    BlockPointer::decode(&mut Cursor::new(bytes, above.endian(), "indirect block")).ok()
}

/// Zeros of a hole.
fn zeros(mut len: u64) -> Segments {
    let mut out = Segments::new();
    while len > 0 {
        let part = len.min(ZEROS.len() as u64);
        out.push(Bytes::from_static(&ZEROS).slice(..part as usize));
        len -= part;
    }
    out
}

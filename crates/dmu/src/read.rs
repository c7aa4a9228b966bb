//! Reads objects: traversal of indirect blocks, holes, and prefetch.
//!
//! A range is read in two steps: first the pointers of all its blocks, with one read of each level-1 indirect block;
//! then the data blocks, many concurrently. A block that cannot be read is an error of the read that requested it.
//!
//! A hole is a null pointer at any level, or a block number beyond the last block. Holes are read as zeros from one
//! shared buffer.

use crate::cycle_guard::VisitedIndirects;
use crate::error::{ErrorLocation, ObjectError};
use crate::live::dirty_object::BlockLookup;
use crate::object::Object;
use crate::object_set::ObjectSet;
use bytes::Bytes;
use futures_util::stream::{FuturesOrdered, StreamExt};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use weir_blocks::ReadOptions;
use weir_codec::decompress_into;
use weir_format::{BlockPointer, Cursor, Endian, ObjectType};
use weir_machine::{Request, Source, Target};

/// Contents of all holes.
static ZEROS: [u8; 128 << 10] = [0; 128 << 10];
/// Maximum blocks that one call reads concurrently.
const MAX_CONCURRENT_READS: usize = 32;
/// Maximum descents of one seek. A tree with correct fill counts needs at most one per level; with wrong fill counts, a
/// seek might otherwise never end.
pub(crate) const SEEK_DESCENTS: u32 = 64;
/// Maximum bytes of one read.
pub const MAX_READ_BYTES: usize = 64 << 20;

/// Result of a read, as slices of cached blocks.
pub type Segments = SmallVec<[Bytes; 4]>;

/// Target of a seek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// A byte in a block.
    Data,
    /// A byte in no block.
    Hole,
    /// A block of the meta dnode with a dnode in use; the fill counts of the meta dnode count these.
    Dnodes,
}

impl Seek {
    /// Whether a target may be below `pointer`, which leads to level `level`.
    fn may_be_below(self, pointer: &BlockPointer, object: &Object, level: u8) -> bool {
        match self {
            Seek::Data => !pointer.is_hole(),
            Seek::Dnodes => !pointer.is_hole() && pointer.fill() > 0,
            Seek::Hole => pointer.is_hole() || level > 0 && pointer.fill() != object.tree().cover(level),
        }
    }
}

impl ObjectSet {
    /// Reads up to `len` bytes from `offset`, clipped at `end` (the size of the file or volume in bytes; the object
    /// itself knows only its blocks). Prefetches the blocks that are likely to be read next.
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

    /// Reads like [`ObjectSet::read`], without copying the slices into one buffer.
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
        if is_contents(object) {
            let size_bytes = end - offset;
            rq.set_target(Target { dataset: self.id().0, object: object.id.0, offset_bytes: offset, size_bytes });
        }
        let unsynced = self.view(rq, object, offset, end).await?;
        let (object, overlay) = unsynced.as_ref().map_or((object, None), |(object, seen)| (object, Some(seen)));
        self.prefetch_after(object, offset, end - offset, object.span_bytes());
        let block_bytes = object.block_bytes();
        let first = offset / block_bytes;
        let last = (end - 1) / block_bytes;
        if first == last {
            let pointer = self.pointer_at(rq, object, 0, first).await?;
            let part = offset - first * block_bytes..end - first * block_bytes;
            return self.read_part(rq, object, first, pointer, overlay.and_then(|seen| seen.get(&first)), part).await;
        }
        let mut out = Segments::new();
        let mut in_flight = FuturesOrdered::new();
        let mut at = first;
        while at <= last {
            let pointers = self.pointers(rq, object, at..last.saturating_add(1)).await?;
            for (n, pointer) in (at..).zip(&pointers) {
                let start = n.saturating_mul(block_bytes);
                let part = offset.max(start) - start..(end - start).min(block_bytes);
                let seen = overlay.and_then(|seen| seen.get(&n));
                in_flight.push_back(self.read_part(rq, object, n, *pointer, seen, part));
                if in_flight.len() >= MAX_CONCURRENT_READS
                    && let Some(done) = in_flight.next().await
                {
                    out.extend(done?);
                }
            }
            at = at.saturating_add(pointers.len().max(1) as u64);
        }
        while let Some(done) = in_flight.next().await {
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
        if let Some(BlockLookup::Data(bytes)) = seen {
            let bytes = bytes.slice(within(bytes.len()));
            self.account(rq, object, Source::Dirty, bytes.len() as u64);
            return Ok(SmallVec::from_iter([bytes]));
        }
        let Some(pointer) = pointer.filter(|_| seen.is_none()) else {
            let len = part.end.saturating_sub(part.start);
            self.account(rq, object, Source::Hole, len);
            return Ok(zeros(len));
        };
        let (bytes, source) = self.read_pointer_from(rq, object, block, &pointer).await?;
        // That is exactly one block.
        let bytes = bytes.slice(within(bytes.len()));
        self.account(rq, object, source, bytes.len() as u64);
        Ok(SmallVec::from_iter([bytes]))
    }

    /// Reads a whole data block; `None` for a hole.
    pub async fn read_block(
        self: &Arc<Self>,
        rq: &Request,
        object: &Arc<Object>,
        block: u64,
    ) -> Result<Option<Bytes>, ObjectError> {
        Ok(self.read_ordered_block(rq, object, block).await?.map(|(bytes, _)| bytes))
    }

    /// Reads a whole data block and its byte order; `None` for a hole. Blocks of one object may differ in byte order,
    /// because a pool may have been moved between machines.
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
            Some((_, BlockLookup::Data(bytes))) => {
                rq.support(Source::Dirty, bytes.len() as u64);
                return Ok(Some((bytes, Endian::Little)));
            }
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

    /// Number of syncs of a live set since it was opened; 0 for other sets.
    pub(crate) fn version(&self) -> u64 {
        self.live().map_or(0, |live| live.state().version)
    }

    /// Whether a read failed because a sync freed blocks of the tree that was being read. The caller retries on the new
    /// tree.
    pub(crate) fn raced_with_sync(&self, error: &ObjectError, version: u64) -> bool {
        self.is_live() && self.version() != version && error.is_corrupt()
    }

    /// Reads up to `count` 64-bit integers of an array object, from index `first` on. The result ends at the object's
    /// last block, and after at most [`MAX_READ_BYTES`].
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
        let mut out = Vec::new();
        let mut at = first;
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

    /// Reads the spill block, which holds the attributes that exceed the bonus area; `None` if there is none.
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

    /// Records bytes of a range that was read: contents of files and volumes are the answer of a request.
    fn account(&self, rq: &Request, object: &Object, source: Source, bytes: u64) {
        if is_contents(object) {
            rq.answer(source, bytes);
        } else {
            rq.support(source, bytes);
        }
    }

    /// Reads the data block that `pointer` leads to.
    ///
    /// # Errors
    /// Errors of reading the block; [`ObjectError::Corrupt`] if its length is not the object's block size.
    pub async fn read_pointer(
        &self,
        rq: &Request,
        object: &Object,
        block: u64,
        pointer: &BlockPointer,
    ) -> Result<Bytes, ObjectError> {
        let (bytes, source) = self.read_pointer_from(rq, object, block, pointer).await?;
        rq.support(source, bytes.len() as u64);
        Ok(bytes)
    }

    /// Reads a data block, and returns the source of its bytes, which are not recorded yet.
    async fn read_pointer_from(
        &self,
        rq: &Request,
        object: &Object,
        block: u64,
        pointer: &BlockPointer,
    ) -> Result<(Bytes, Source), ObjectError> {
        let place = self.place(object.id, 0, block);
        let sealed = self.is_locked() && pointer.is_encrypted() && pointer.object_type() == ObjectType::DNODE;
        let bytes = if sealed {
            self.read_sealed(rq, pointer, place).await
        } else {
            self.cache().read_from(rq, pointer, &self.options_at(place)).await
        };
        let (bytes, source) = bytes.map_err(|e| ObjectError::block(place, e))?;
        if bytes.len() as u64 != object.block_bytes() {
            return Err(ObjectError::Corrupt { place, why: "block size differs from the object's" });
        }
        Ok((bytes, source))
    }

    /// Reads a block of dnodes without the key. The bonus areas stay encrypted. The rest is readable, and only the
    /// checksum verifies it, not the MAC.
    async fn read_sealed(
        &self,
        rq: &Request,
        pointer: &BlockPointer,
        place: ErrorLocation,
    ) -> Result<(Bytes, Source), weir_blocks::BlockError> {
        let options = ReadOptions { raw: true, ..self.options_at(place) };
        let (stored, source) = self.cache().read_from(rq, pointer, &options).await?;
        let dva = pointer.dva(0);
        let corrupt = |fault| weir_blocks::BlockError::Corrupt { vdev: dva.vdev, offset: dva.offset_bytes, fault };
        let kind = pointer.compression().unwrap_or(weir_format::CompressionKind::Inherit);
        let mut clear = vec![0; pointer.lsize_bytes() as usize];
        decompress_into(kind, &stored, &mut clear).map_err(corrupt)?;
        Ok((Bytes::from(clear), source))
    }

    /// Returns the pointer to block `block` of level `level`; `None` in a hole.
    pub async fn pointer_at(
        &self,
        rq: &Request,
        object: &Object,
        level: u8,
        block: u64,
    ) -> Result<Option<BlockPointer>, ObjectError> {
        let first = object.tree().first_block(level, block);
        let Some(mut pointer) = object.top_pointer(first).copied().filter(|p| !p.is_hole()) else { return Ok(None) };
        let top = object.top_level();
        if level > top {
            return Ok(None);
        }
        self.check_level(object, &pointer, top, first)?;
        for above in (level + 1..=top).rev() {
            let bytes = self.read_indirect(rq, object, &pointer, above, first).await?;
            let Some(below) = pointer_in(&bytes, &pointer, object.tree().index_in(above, first)) else {
                return Ok(None);
            };
            if below.is_hole() {
                return Ok(None);
            }
            self.check_level(object, &below, above - 1, first)?;
            pointer = below;
        }
        Ok(Some(pointer))
    }

    /// Returns the pointers of data blocks from `blocks.start` on: at least one, up to the end of the level-1 indirect
    /// block or of the range.
    pub(crate) async fn pointers(
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
        let tree = object.tree();
        let start = tree.index_in(1, blocks.start);
        let count = (tree.fan_out() as usize - start).min(usize::try_from(wanted).unwrap_or(usize::MAX));
        let Some(above) = self.pointer_at(rq, object, 1, tree.parent(blocks.start)).await? else {
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

    /// Reads an indirect block, an array of block pointers.
    ///
    /// # Errors
    /// Errors of reading the block.
    pub async fn read_indirect(
        &self,
        rq: &Request,
        object: &Object,
        pointer: &BlockPointer,
        level: u8,
        block: u64,
    ) -> Result<Bytes, ObjectError> {
        let place = self.place(object.id, level, object.tree().number_at(level, block));
        self.cache().read(rq, pointer, &self.options_at(place)).await.map_err(|e| ObjectError::block(place, e))
    }

    /// Checks that a pointer leads to level `level`, because a pointer of a malformed tree might lead back up, and that
    /// no indirect block is embedded in its pointer.
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
            (true, true) => "an indirect block is embedded in its pointer",
            (true, false) => return Ok(()),
        };
        let place = self.place(object.id, level, object.tree().number_at(level, block));
        Err(ObjectError::Corrupt { place, why })
    }

    /// Returns the first data block at or after `from` that is not a hole.
    pub async fn next_data_block(&self, rq: &Request, object: &Object, from: u64) -> Result<Option<u64>, ObjectError> {
        self.next_block(rq, object, from, Seek::Data, None).await
    }

    /// Returns the first data block at or after `from` that matches `what`. Skips whole subtrees: nothing below a null
    /// pointer is read, and a seek for holes skips subtrees whose fill counts are complete. Indirect blocks are
    /// recorded in `entered`.
    pub(crate) async fn next_block(
        &self,
        rq: &Request,
        object: &Object,
        from: u64,
        what: Seek,
        mut entered: Option<&mut VisitedIndirects>,
    ) -> Result<Option<u64>, ObjectError> {
        let tree = object.tree();
        let top = object.top_level();
        let mut at = from;
        // In a consistent tree at most one descent per level fails: below the pointers on the path to `from`.
        for _ in 0..SEEK_DESCENTS {
            let first = tree.number_at(top, at);
            let tops = object.dnode.block_pointers.iter().enumerate();
            let candidate = tops
                .skip(usize::try_from(first).unwrap_or(usize::MAX))
                .find(|(_, p)| what.may_be_below(p, object, top));
            let Some((index, pointer)) = candidate else {
                // All blocks beyond the last pointer are holes.
                let end = tree.first_block(top, object.dnode.block_pointers.len() as u64);
                return Ok((what == Seek::Hole).then_some(end.max(at)));
            };
            at = at.max(tree.first_block(top, index as u64));
            match self.descend(rq, object, *pointer, &mut at, what, entered.as_deref_mut()).await? {
                Some(found) => return Ok(Some(found)),
                None if at == u64::MAX => return Ok(None),
                None => {}
            }
        }
        Err(ObjectError::Corrupt { place: self.place(object.id, top, at), why: "wrong fill counts" })
    }

    /// Searches below a pointer of the dnode for the first block from `at` on; `None` if a subtree has none: `at` is
    /// then the first block after that subtree.
    async fn descend(
        &self,
        rq: &Request,
        object: &Object,
        mut pointer: BlockPointer,
        at: &mut u64,
        what: Seek,
        mut entered: Option<&mut VisitedIndirects>,
    ) -> Result<Option<u64>, ObjectError> {
        let tree = object.tree();
        for level in (1..object.dnode.levels).rev() {
            if pointer.is_hole() {
                return Ok(Some(*at));
            }
            self.check_level(object, &pointer, level, *at)?;
            let number = tree.number_at(level, *at);
            if entered.as_mut().is_some_and(|entered| !entered.note(&pointer, level, number)) {
                let place = self.place(object.id, level, number);
                return Err(ObjectError::Corrupt { place, why: "an indirect block is in two places" });
            }
            let bytes = self.read_indirect(rq, object, &pointer, level, *at).await?;
            let start = tree.index_in(level, *at);
            let mut below = (start..tree.fan_out() as usize).map_while(|i| Some((i, pointer_in(&bytes, &pointer, i)?)));
            let Some((index, child)) = below.find(|(_, p)| what.may_be_below(p, object, level - 1)) else {
                *at = tree.block_after(level, *at);
                return Ok(None);
            };
            if index > start {
                *at = tree.first_block(level - 1, tree.first_child(number).saturating_add(index as u64));
            }
            pointer = child;
        }
        Ok(Some(*at))
    }

    /// Returns the offset of the first byte of data, or of a hole, in `offset..end`; `None` if there is none.
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
}

/// Whether an object is a file or a volume, the bytes of which are the answers of requests.
fn is_contents(object: &Object) -> bool {
    matches!(object.dnode.object_type, ObjectType::PLAIN_FILE_CONTENTS | ObjectType::ZVOL)
}

/// The pointer at `index` of an indirect block; `None` beyond its end.
pub(crate) fn pointer_in(block: &[u8], above: &BlockPointer, index: usize) -> Option<BlockPointer> {
    let at = index.checked_mul(BlockPointer::SIZE)?;
    let bytes = block.get(at..at.checked_add(BlockPointer::SIZE)?)?;
    BlockPointer::decode(&mut Cursor::new(bytes, above.endian(), "indirect block")).ok()
}

/// Returns `len` zero bytes.
fn zeros(mut len: u64) -> Segments {
    let mut out = Segments::new();
    while len > 0 {
        let part = len.min(ZEROS.len() as u64);
        out.push(Bytes::from_static(&ZEROS).slice(..part as usize));
        len -= part;
    }
    out
}

//! Reads objects: traversal of indirect blocks, holes, and prefetch.
//!
//! A range is read in two steps: first the pointers of all its blocks, with one read of each level-1 indirect block;
//! then the data blocks, many concurrently. A block that cannot be read is an error of the read that requested it.
//!
//! A hole is a null pointer at any level, or a block number beyond the last block. Holes are read as zeros from one
//! shared buffer.

use crate::error::{ErrorLocation, ObjectError};
use crate::handles::Reader;
use crate::live::dirty_object::BlockLookup;
use crate::object::Object;
use bytes::Bytes;
use futures_util::stream::{FuturesOrdered, StreamExt};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use weir_format::{BlockPointer, Cursor, Endian, ObjectType};
use weir_machine::{Request, Source, Target};

/// Contents of all holes.
static ZEROS: [u8; 128 << 10] = [0; 128 << 10];
/// Maximum blocks that one call reads concurrently.
pub(crate) const MAX_CONCURRENT_READS: usize = 32;
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
    pub(crate) fn may_be_below(self, pointer: &BlockPointer, object: &Object, level: u8) -> bool {
        match self {
            Seek::Data => !pointer.is_hole(),
            Seek::Dnodes => !pointer.is_hole() && pointer.fill() > 0,
            Seek::Hole => pointer.is_hole() || level > 0 && pointer.fill() != object.tree().cover(level),
        }
    }
}

impl Reader<'_> {
    /// Reads up to `len` bytes from `offset`, clipped at `end` (the size of the file or volume in bytes; the object
    /// itself knows only its blocks). Prefetches the blocks that are likely to be read next.
    pub async fn read(
        self,
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

    /// Reads like [`Reader::read`](crate::Reader::read), without copying the slices into one buffer.
    pub async fn read_segments(
        self,
        rq: &Request,
        object: &Arc<Object>,
        offset: u64,
        len: usize,
        end: u64,
    ) -> Result<Segments, ObjectError> {
        loop {
            let version = self.set.version();
            match self.read_segments_once(rq, object, offset, len, end).await {
                Err(error) if self.set.raced_with_sync(&error, version) => {}
                answer => return answer,
            }
        }
    }

    async fn read_segments_once(
        self,
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
            rq.set_target(Target { dataset: self.set.id().0, object: object.id.0, offset_bytes: offset, size_bytes });
        }
        let unsynced = self.view(rq, object, offset, end).await?;
        let (object, overlay) = unsynced.as_ref().map_or((object, None), |(object, seen)| (object, Some(seen)));
        self.prefetch_after(object, offset, end - offset, object.span_bytes());
        let block_bytes = object.block_bytes();
        let first = offset / block_bytes;
        let last = (end - 1) / block_bytes;
        if first == last {
            let pointer = self.set.pointers().at(rq, object, 0, first).await?;
            let part = offset - first * block_bytes..end - first * block_bytes;
            return self.read_part(rq, object, first, pointer, overlay.and_then(|seen| seen.get(&first)), part).await;
        }
        let mut out = Segments::new();
        let mut in_flight = FuturesOrdered::new();
        let mut at = first;
        while at <= last {
            let pointers = self.set.pointers().below(rq, object, at..last.saturating_add(1)).await?;
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
        self,
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
        let (bytes, source) = self.set.pointers().read_from(rq, object, block, &pointer).await?;
        // That is exactly one block.
        let bytes = bytes.slice(within(bytes.len()));
        self.account(rq, object, source, bytes.len() as u64);
        Ok(SmallVec::from_iter([bytes]))
    }

    /// Reads a whole data block; `None` for a hole.
    pub async fn read_block(
        self,
        rq: &Request,
        object: &Arc<Object>,
        block: u64,
    ) -> Result<Option<Bytes>, ObjectError> {
        Ok(self.read_ordered_block(rq, object, block).await?.map(|(bytes, _)| bytes))
    }

    /// Reads a whole data block and its byte order; `None` for a hole. Blocks of one object may differ in byte order,
    /// because a pool may have been moved between machines.
    pub async fn read_ordered_block(
        self,
        rq: &Request,
        object: &Arc<Object>,
        block: u64,
    ) -> Result<Option<(Bytes, Endian)>, ObjectError> {
        loop {
            let version = self.set.version();
            match self.read_block_once(rq, object, block).await {
                Err(error) if self.set.raced_with_sync(&error, version) => {}
                answer => return answer,
            }
        }
    }

    async fn read_block_once(
        self,
        rq: &Request,
        object: &Arc<Object>,
        block: u64,
    ) -> Result<Option<(Bytes, Endian)>, ObjectError> {
        let newest = match self.view_block(rq, object, block).await? {
            Some((newest, BlockLookup::Shared(pointer))) => {
                return Ok(Some((self.set.pointers().read(rq, &newest, block, &pointer).await?, pointer.endian())));
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
        match self.set.pointers().at(rq, object, 0, block).await? {
            None => Ok(None),
            Some(pointer) => Ok(Some((self.set.pointers().read(rq, object, block, &pointer).await?, pointer.endian()))),
        }
    }

    /// Reads up to `count` 64-bit integers of an array object, from index `first` on. The result ends at the object's
    /// last block, and after at most [`MAX_READ_BYTES`].
    pub async fn read_words(
        self,
        rq: &Request,
        object: &Arc<Object>,
        first: u64,
        count: u64,
    ) -> Result<Vec<u64>, ObjectError> {
        let newest = if self.set.is_live() { Some(self.set.object(rq, object.id).await?) } else { None };
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
                    let place = self.set.place(object.id, 0, block);
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
    pub async fn read_spill(self, rq: &Request, object: &Arc<Object>) -> Result<Option<(Bytes, Endian)>, ObjectError> {
        let newest = match self.view_spill(rq, object).await? {
            Some((_, Some(spill))) => return Ok(spill.map(|bytes| (bytes, Endian::Little))),
            Some((newest, None)) => Some(newest),
            None => None,
        };
        let object = newest.as_ref().unwrap_or(object);
        let Some(pointer) = object.dnode.spill.filter(|p| !p.is_hole()) else { return Ok(None) };
        let place = self.set.place(object.id, 0, ErrorLocation::SPILL);
        let bytes = self.set.cache().read(rq, &pointer, &self.set.options_at(place)).await;
        Ok(Some((bytes.map_err(|e| ObjectError::block(place, e))?, pointer.endian())))
    }

    /// Records bytes of a range that was read: contents of files and volumes are the answer of a request.
    fn account(self, rq: &Request, object: &Object, source: Source, bytes: u64) {
        if is_contents(object) {
            rq.answer(source, bytes);
        } else {
            rq.support(source, bytes);
        }
    }

    /// Returns the offset of the first byte of data, or of a hole, in `offset..end`; `None` if there is none.
    pub async fn seek(
        self,
        rq: &Request,
        object: &Object,
        offset: u64,
        end: u64,
        what: Seek,
    ) -> Result<Option<u64>, ObjectError> {
        loop {
            let version = self.set.version();
            match self.seek_once(rq, object, offset, end, what).await {
                Err(error) if self.set.raced_with_sync(&error, version) => {}
                answer => return answer,
            }
        }
    }

    async fn seek_once(
        self,
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
        let found = match self.set.is_live() {
            true => self.next_block_live(rq, object.id, offset / block_bytes, end.div_ceil(block_bytes), what).await?,
            false => self.set.pointers().next_block(rq, object, offset / block_bytes, what, None).await?,
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

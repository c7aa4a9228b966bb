//! Walks the blocks of a snapshot that were born after a txg, in the order of a stream (OpenZFS
//! `module/zfs/dmu_traverse.c`, `send_cb`): by object number; in an object its dnode, its blocks, its spill block.
//!
//! Writing a block rewrites all blocks above it, so nothing below an older pointer is read. Holes without a birth may be
//! of any age, so they are reported always; a receiver that has no data there does nothing.

use crate::error::SendError;
use crate::make::MAX_AHEAD_BYTES;
use bytes::Bytes;
use futures_channel::mpsc::Sender;
use futures_util::future::{BoxFuture, poll_fn};
use std::sync::Arc;
use weir_blocks::{Bookmark, ReadOptions};
use weir_dmu::{ErrorLocation, Object, ObjectError, ObjectSet, VisitedBlocks};
use weir_format::{BlockPointer, CompressionKind, Cursor, Dnode, Endian, ObjectId, Txg};
use weir_machine::{BytePermit, ByteSemaphore, Request};

/// Maximum object number (`DN_MAX_OBJECT`).
const MAX_OBJECTS: u64 = 1 << 48;

/// The next part of the stream.
pub(crate) enum Found {
    /// An object, and its spill block if that is older than the txg.
    Object { id: ObjectId, dnode: Box<Dnode>, unmodified_spill: Option<BlockPointer> },
    /// A block of dnodes, with its encryption parameters.
    ObjectRange { first: ObjectId, slots: u64, pointer: BlockPointer },
    /// Numbers without objects.
    FreeObjects { first: ObjectId, count: u64 },
    /// Blocks without data, up to `end`; the last may be beyond the end of the object.
    Hole { object: ObjectId, first: u64, end: u64, block_bytes: u64 },
    /// Blocks whose data is left out, up to `end`.
    Redacted { object: ObjectId, first: u64, end: u64, block_bytes: u64 },
    /// A data block.
    Data { object: ObjectId, dnode: Arc<Object>, block: u64, pointer: BlockPointer },
    /// A spill block.
    Spill { object: ObjectId, pointer: BlockPointer },
}

/// A part of the stream, with the memory that its block takes.
pub(crate) type Item = (Found, Option<BytePermit>);

/// A walk over one object set.
pub(crate) struct Traversal<'a> {
    pub rq: &'a Request,
    pub set: &'a Arc<ObjectSet>,
    /// Blocks born in this txg or before are left out.
    pub after: Txg,
    /// Whether blocks of dnodes are read as they are on disk, and reported.
    pub is_raw: bool,
    /// Whether holes beyond the last block of an object are reported as well.
    pub all_holes: bool,
    /// Object and block from which on the set is walked.
    pub from_point: Option<(ObjectId, u64)>,
    pub to: Sender<Item>,
    pub entered: VisitedBlocks,
    pub memory: ByteSemaphore,
}

impl<'a> Traversal<'a> {
    /// Walks the whole set.
    pub async fn run(mut self) -> Result<(), SendError> {
        let Some(meta) = self.set.meta() else { return Ok(()) };
        self.object(&meta).await
    }

    async fn found(&mut self, found: Found, bytes: u64) -> Result<(), SendError> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).min(MAX_AHEAD_BYTES);
        let permit = if bytes > 0 { Some(self.memory.acquire(bytes).await) } else { None };
        let gone = |_| SendError::ReaderGone;
        poll_fn(|cx| self.to.poll_ready(cx)).await.map_err(gone)?;
        self.to.start_send((found, permit)).map_err(gone)
    }

    /// Whether all blocks below a pointer of `object` come before the point from which the set is walked.
    fn is_before(&self, object: &Object, level: u8, number: u64) -> bool {
        let Some((from, block)) = self.from_point else { return false };
        let end = number.saturating_add(1).saturating_mul(object.tree().cover(level));
        match object.id {
            ObjectId(0) => end.saturating_mul(object.block_bytes() / Dnode::SLOT as u64) <= from.0,
            id => id < from || id == from && end <= block,
        }
    }

    fn is_old(&self, pointer: &BlockPointer) -> bool {
        pointer.logical_birth().0 != 0 && pointer.logical_birth() <= self.after
    }

    async fn object(&mut self, object: &Arc<Object>) -> Result<(), SendError> {
        let top = object.top_level();
        for (number, pointer) in (0..).zip(object.dnode.block_pointers.clone()) {
            self.visit(object, pointer, top, number).await?;
        }
        if object.id.0 == 0 {
            return Ok(());
        }
        match object.dnode.spill {
            Some(spill) if !spill.is_hole() && !self.is_old(&spill) => {
                self.found(Found::Spill { object: object.id, pointer: spill }, spill.lsize_bytes()).await
            }
            _ => Ok(()),
        }
    }

    /// Visits the pointer `number` of `level`.
    fn visit<'s>(
        &'s mut self,
        object: &'s Arc<Object>,
        pointer: BlockPointer,
        level: u8,
        number: u64,
    ) -> BoxFuture<'s, Result<(), SendError>> {
        Box::pin(async move {
            if self.is_old(&pointer) || self.is_before(object, level, number) {
                return Ok(());
            }
            if pointer.is_hole() {
                return self.hole(object, level, number).await;
            }
            if pointer.is_redacted() && level == 0 {
                let (first, block_bytes) = (number, object.block_bytes());
                let end = number.saturating_add(1);
                return self.found(Found::Redacted { object: object.id, first, end, block_bytes }, 0).await;
            }
            let first = object.tree().first_block(level, number);
            let place = self.set.place(object.id, level, number);
            let corrupt = |why| ObjectError::Corrupt { place, why };
            if pointer.level() != level {
                return Err(corrupt("block pointer is of another level").into());
            }
            if level > 0 {
                if !self.entered.enter(&pointer) {
                    return Err(corrupt("an indirect block is in two places").into());
                }
                let bytes = self.set.pointers().read_indirect(self.rq, object, &pointer, level, first).await?;
                let fan_out = object.tree().fan_out();
                for index in 0..fan_out {
                    let at = index as usize * BlockPointer::SIZE;
                    let Some(part) = bytes.get(at..at + BlockPointer::SIZE) else { break };
                    let child = BlockPointer::decode(&mut Cursor::new(part, pointer.endian(), "indirect block"));
                    let child = child.map_err(|e| ObjectError::decode(place, e))?;
                    if !self.is_old(&child) {
                        let number = object.tree().first_child(number).saturating_add(index);
                        self.visit(object, child, level - 1, number).await?;
                    }
                }
                return Ok(());
            }
            if object.id.0 == 0 {
                return self.dnodes(object, &pointer, number).await;
            }
            let found = Found::Data { object: object.id, dnode: object.clone(), block: number, pointer };
            self.found(found, object.block_bytes()).await
        })
    }

    async fn hole(&mut self, object: &Arc<Object>, level: u8, number: u64) -> Result<(), SendError> {
        let tree = object.tree();
        // A number that overflows is beyond every object, and can never have been anything but a hole.
        let Some(first) = number.checked_mul(tree.cover(level)) else { return Ok(()) };
        let end = first.saturating_add(tree.cover(level));
        if object.id.0 == 0 {
            let slots = object.block_bytes() / Dnode::SLOT as u64;
            let most = slots.saturating_mul(object.dnode.max_block_id.saturating_add(1)).min(MAX_OBJECTS);
            let first = first.saturating_mul(slots);
            let end = end.saturating_mul(slots).min(most);
            // Numbers beyond the last block of dnodes have no objects at the receiver either.
            return match end.checked_sub(first) {
                None | Some(0) => Ok(()),
                Some(count) => self.found(Found::FreeObjects { first: ObjectId(first), count }, 0).await,
            };
        }
        let is_beyond = !object.dnode.object_type.is_metadata() && first > object.dnode.max_block_id;
        if is_beyond && !self.all_holes {
            return Ok(());
        }
        self.found(Found::Hole { object: object.id, first, end, block_bytes: object.block_bytes() }, 0).await
    }

    /// Visits the objects of a block of dnodes.
    async fn dnodes(&mut self, meta: &Arc<Object>, pointer: &BlockPointer, block: u64) -> Result<(), SendError> {
        let bytes = match self.is_raw {
            true => self.raw_dnodes(block, pointer).await?,
            false => self.set.pointers().read(self.rq, meta, block, pointer).await?,
        };
        let slots = (bytes.len() / Dnode::SLOT) as u64;
        if self.is_raw {
            let first = ObjectId(block.saturating_mul(slots));
            self.found(Found::ObjectRange { first, slots, pointer: *pointer }, 0).await?;
        }
        let mut slot = 0;
        let first = self.from_point.map_or(ObjectId(0), |(first, _)| first);
        while slot < slots {
            let id = ObjectId(block.saturating_mul(slots).saturating_add(slot));
            let at = bytes.get(slot as usize * Dnode::SLOT..).unwrap_or_default();
            let place = self.set.place(id, 0, ErrorLocation::default().block);
            match Dnode::decode(at, pointer.endian()).map_err(|e| ObjectError::decode(place, e))? {
                None => {
                    slot += 1;
                    if id.0 != 0 && id >= first {
                        self.found(Found::FreeObjects { first: id, count: 1 }, 0).await?;
                    }
                }
                Some(dnode) => {
                    slot += dnode.slots() as u64;
                    if id.0 != 0 && id >= first {
                        self.one(id, dnode).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads a block of dnodes as it is on disk: their bonus areas are encrypted, the rest is not.
    async fn raw_dnodes(&self, block: u64, pointer: &BlockPointer) -> Result<Bytes, SendError> {
        let place = self.set.place(ObjectId(0), 0, block);
        let is_stored = pointer.compression() == Some(CompressionKind::Off) && pointer.endian() == Endian::Little;
        if !pointer.uses_crypt() || pointer.is_embedded() || !is_stored {
            return Err(ObjectError::Corrupt { place, why: "a block of dnodes cannot be sent raw" }.into());
        }
        let origin = Some(Bookmark { objset: self.set.id(), object: 0, level: 0, block });
        let options = ReadOptions { origin, raw: true, ..self.set.options().clone() };
        let read = self.set.cache().read(self.rq, pointer, &options).await;
        Ok(read.map_err(|error| ObjectError::block(place, error))?)
    }

    async fn one(&mut self, id: ObjectId, dnode: Dnode) -> Result<(), SendError> {
        if dnode.endian == Endian::Big && dnode.bonus_len > 0 {
            return Err(SendError::Unsupported("objects of the other byte order"));
        }
        let unmodified_spill = dnode.spill.filter(|spill| !spill.is_hole() && spill.logical_birth() <= self.after);
        let bytes = unmodified_spill.map_or(0, |spill| spill.lsize_bytes());
        let object = Arc::new(Object::new(id, dnode.clone()));
        self.found(Found::Object { id, dnode: Box::new(dnode), unmodified_spill }, bytes).await?;
        self.object(&object).await
    }
}

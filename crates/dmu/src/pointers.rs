//! Follows the block pointers of an object: from its dnode down to one block.

use crate::cycle_guard::VisitedIndirects;
use crate::error::{ErrorLocation, ObjectError};
use crate::handles::Pointers;
use crate::object::Object;
use crate::read::{MAX_CONCURRENT_READS, SEEK_DESCENTS, Seek, pointer_in};
use bytes::Bytes;
use smallvec::SmallVec;
use std::ops::Range;
use weir_blocks::ReadOptions;
use weir_codec::decompress_into;
use weir_format::{BlockPointer, ObjectType};
use weir_machine::{Request, Source};

impl Pointers<'_> {
    /// Reads the data block that `pointer` leads to.
    ///
    /// # Errors
    /// Errors of reading the block; [`ObjectError::Corrupt`] if its length is not the object's block size.
    pub async fn read(
        self,
        rq: &Request,
        object: &Object,
        block: u64,
        pointer: &BlockPointer,
    ) -> Result<Bytes, ObjectError> {
        let (bytes, source) = self.read_from(rq, object, block, pointer).await?;
        rq.support(source, bytes.len() as u64);
        Ok(bytes)
    }

    /// Reads a data block, and returns the source of its bytes, which are not recorded yet.
    pub(crate) async fn read_from(
        self,
        rq: &Request,
        object: &Object,
        block: u64,
        pointer: &BlockPointer,
    ) -> Result<(Bytes, Source), ObjectError> {
        let place = self.set.place(object.id, 0, block);
        let sealed = self.set.is_locked() && pointer.is_encrypted() && pointer.object_type() == ObjectType::DNODE;
        let bytes = if sealed {
            self.read_sealed(rq, pointer, place).await
        } else {
            self.set.cache().read_from(rq, pointer, &self.set.options_at(place)).await
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
        self,
        rq: &Request,
        pointer: &BlockPointer,
        place: ErrorLocation,
    ) -> Result<(Bytes, Source), weir_blocks::BlockError> {
        let options = ReadOptions { raw: true, ..self.set.options_at(place) };
        let (stored, source) = self.set.cache().read_from(rq, pointer, &options).await?;
        let dva = pointer.dva(0);
        let corrupt = |fault| weir_blocks::BlockError::Corrupt { vdev: dva.vdev, offset: dva.offset_bytes, fault };
        let kind = pointer.compression().unwrap_or(weir_format::CompressionKind::Inherit);
        let mut clear = vec![0; pointer.lsize_bytes() as usize];
        decompress_into(kind, &stored, &mut clear).map_err(corrupt)?;
        Ok((Bytes::from(clear), source))
    }

    /// Returns the pointer to block `block` of level `level`; `None` in a hole.
    pub async fn at(
        self,
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
    pub(crate) async fn below(
        self,
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
        let Some(above) = self.at(rq, object, 1, tree.parent(blocks.start)).await? else {
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
        self,
        rq: &Request,
        object: &Object,
        pointer: &BlockPointer,
        level: u8,
        block: u64,
    ) -> Result<Bytes, ObjectError> {
        let place = self.set.place(object.id, level, object.tree().number_at(level, block));
        self.set.cache().read(rq, pointer, &self.set.options_at(place)).await.map_err(|e| ObjectError::block(place, e))
    }

    /// Checks that a pointer leads to level `level`, because a pointer of a malformed tree might lead back up, and that
    /// no indirect block is embedded in its pointer.
    pub(crate) fn check_level(
        self,
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
        let place = self.set.place(object.id, level, object.tree().number_at(level, block));
        Err(ObjectError::Corrupt { place, why })
    }

    /// Returns the first data block at or after `from` that is not a hole.
    pub async fn next_data_block(self, rq: &Request, object: &Object, from: u64) -> Result<Option<u64>, ObjectError> {
        self.next_block(rq, object, from, Seek::Data, None).await
    }

    /// Returns the first data block at or after `from` that matches `what`. Skips whole subtrees: nothing below a null
    /// pointer is read, and a seek for holes skips subtrees whose fill counts are complete. Indirect blocks are
    /// recorded in `entered`.
    pub(crate) async fn next_block(
        self,
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
        Err(ObjectError::Corrupt { place: self.set.place(object.id, top, at), why: "wrong fill counts" })
    }

    /// Searches below a pointer of the dnode for the first block from `at` on; `None` if a subtree has none: `at` is
    /// then the first block after that subtree.
    async fn descend(
        self,
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
                let place = self.set.place(object.id, level, number);
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
}

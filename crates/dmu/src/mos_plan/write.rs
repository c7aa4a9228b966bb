//! Writes the planned blocks: bottom up, each block once.

use super::plan::MosPlan;
use super::tree::{META, Reservation, TreePlan};
use crate::error::ObjectError;
use crate::live::overlay::ChangedObject;
use crate::live::sync::{Adopted, dnodes_in, put_dnode};
use crate::object::Object;
use crate::object_set::Root;
use bytes::Bytes;
use futures_util::stream::{self, FuturesUnordered, StreamExt};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use weir_blocks::BlockError;
use weir_blocks::WriteOptions;
use weir_format::{BlockPointer, Dnode, DnodeFlags, Encoder, Endian, ObjectId, ObjectType, Objset};
use weir_machine::Request;

/// Maximum number of blocks of one object that are written at the same time.
const MAX_CONCURRENT_BATCHES: usize = 64;
/// Maximum number of objects that are written at the same time.
const MAX_CONCURRENT_TREES: usize = 32;

/// Root of the written MOS.
pub struct MosRoot {
    /// Pointer for the uberblock.
    pub pointer: BlockPointer,
    pub(super) header: Objset,
    /// Changed objects; `None` for removed ones.
    pub(super) objects: Vec<Adopted>,
}

/// Result of writing the tree of one object.
enum Written {
    /// Dnode of the object; `None` if it was removed.
    Tree(Option<Box<Dnode>>),
    /// Blocks of a level that are larger than their space, each with its size in bytes.
    TooSmall(u8, Vec<(u64, u64)>),
}

/// New pointers, by level and block.
type Pointers = BTreeMap<(u8, u64), BlockPointer>;

impl MosPlan {
    /// Writes all blocks. Returns `None` if some did not fit: they have more space now, and the caller updates the
    /// space maps before it calls this again.
    ///
    /// # Errors
    /// Errors of reading the old trees and of writing.
    pub async fn write(&mut self, rq: &Request) -> Result<Option<MosRoot>, ObjectError> {
        let mut objects = Vec::new();
        let mut small = Vec::new();
        let changed_objects = self.changed_objects();
        {
            let this = &*self;
            let trees = changed_objects.iter().filter_map(|changed| Some((changed, this.trees.get(&changed.id)?)));
            let writes: Vec<_> = trees.map(|(changed, tree)| this.write_object(rq, changed, tree)).collect();
            let mut writes = stream::iter(writes).buffered(MAX_CONCURRENT_TREES);
            while let Some(written) = writes.next().await {
                match written? {
                    (id, Written::Tree(dnode)) => {
                        objects.push((id, dnode.map(|dnode| Arc::new(Object::new(id, *dnode)))));
                    }
                    (id, Written::TooSmall(level, blocks)) => small.push((id, level, blocks)),
                }
            }
        }
        let fits = small.is_empty();
        for (id, level, blocks) in small {
            self.enlarge(id, level, blocks)?;
        }
        if !fits {
            return Ok(None);
        }
        let Some(tree) = self.trees.get(&META) else { return Ok(None) };
        match self.write_meta(rq, tree, &objects).await? {
            Written::Tree(Some(meta)) => self.write_header(rq, *meta, objects).await,
            Written::Tree(None) => Ok(None),
            Written::TooSmall(level, blocks) => {
                self.enlarge(META, level, blocks)?;
                Ok(None)
            }
        }
    }

    async fn write_object(
        &self,
        rq: &Request,
        changed: &ChangedObject,
        tree: &TreePlan,
    ) -> Result<(ObjectId, Written), ObjectError> {
        let contents = |block: u64| changed.changes.blocks.get(&block).map(|block| (block.bytes.clone(), 1));
        Ok((tree.id, self.write_tree(rq, tree, &contents).await?))
    }

    /// Frees the space of blocks that did not fit, and records their sizes.
    fn enlarge(&mut self, id: ObjectId, level: u8, blocks: Vec<(u64, u64)>) -> Result<(), ObjectError> {
        for (block, was) in blocks {
            self.min_psize.insert((id, level, block), was + was / 8 + 512);
            let slot = self.trees.get_mut(&id).and_then(|tree| {
                let slot = tree.reservations.remove(&(level, block))?;
                tree.used -= slot.dsize_bytes as i64;
                Some(slot)
            });
            if let Some(slot) = slot {
                self.unreserve(slot)?;
            }
        }
        Ok(())
    }

    async fn write_meta(&self, rq: &Request, tree: &TreePlan, objects: &[Adopted]) -> Result<Written, ObjectError> {
        let per_block = (tree.block_bytes() / Dnode::SLOT as u64).max(1);
        let mut by_block: BTreeMap<u64, Vec<&Adopted>> = BTreeMap::new();
        for object in objects {
            by_block.entry(object.0.0 / per_block).or_default().push(object);
        }
        let mut contents = BTreeMap::new();
        for (block, changed) in by_block {
            let old = self.old_block(rq, tree, 0, block).await?;
            let mut bytes = old.map_or_else(|| vec![0; tree.block_bytes() as usize], |b| b.to_vec());
            // Removed dnodes are wiped first, because a larger dnode may cover their slots now.
            for gone in [true, false] {
                for (id, object) in changed.iter().filter(|(_, o)| o.is_none() == gone) {
                    let at = (id.0 % per_block) as usize * Dnode::SLOT;
                    put_dnode(&mut bytes, at, object.as_ref().map(|o| &o.dnode));
                }
            }
            let fill = dnodes_in(&bytes);
            contents.insert(block, (Bytes::from(bytes), fill));
        }
        self.write_tree(rq, tree, &|block| contents.get(&block).cloned()).await
    }

    async fn write_header(
        &mut self,
        rq: &Request,
        meta: Dnode,
        objects: Vec<Adopted>,
    ) -> Result<Option<MosRoot>, ObjectError> {
        let fill = meta.block_pointers.iter().map(BlockPointer::fill).sum();
        let header = Objset { meta_dnode: Some(meta), ..self.set.root().header.clone() };
        let bytes = Bytes::from(header.encode(self.header_bytes() as usize, Endian::Little));
        let options = WriteOptions { fill, ..self.options(META, ObjectType::OBJSET, 0, 0) };
        let Some(slot) = &self.header else { return Ok(None) };
        match self.blocks.fill(rq, &slot.reserved, bytes, &options).await {
            Ok(pointer) => Ok(Some(MosRoot { pointer, header, objects })),
            Err(BlockError::NoRoom { psize_bytes, .. }) => {
                self.min_psize.insert((META, u8::MAX, 0), psize_bytes + 512);
                if let Some(slot) = self.header.take() {
                    self.unreserve(slot)?;
                }
                Ok(None)
            }
            Err(error) => Err(ObjectError::block(self.set.place(META, 0, 0), error)),
        }
    }

    /// Writes the blocks of an object, level by level.
    async fn write_tree(
        &self,
        rq: &Request,
        tree: &TreePlan,
        contents: &(dyn Fn(u64) -> Option<(Bytes, u64)> + Sync),
    ) -> Result<Written, ObjectError> {
        let Some(mut dnode) = tree.image.clone() else { return Ok(Written::Tree(None)) };
        let mut pointers = Pointers::new();
        for level in 0..tree.levels() {
            let mut jobs = Vec::new();
            for (&(_, block), slot) in tree.reservations.range((level, 0)..=(level, u64::MAX)) {
                let (bytes, fill) = if level == 0 {
                    let missing = ObjectError::Corrupt { place: self.set.place(tree.id, 0, block), why: "no contents" };
                    contents(block).ok_or(missing)?
                } else {
                    self.indirect(rq, tree, &pointers, level, block).await?
                };
                let options = WriteOptions { fill, ..self.options(tree.id, tree.kind(), level, block) };
                jobs.push((slot, bytes, options));
            }
            let small = self.fill_all(rq, jobs, &mut pointers).await?;
            if !small.is_empty() {
                return Ok(Written::TooSmall(level, small));
            }
        }
        self.set_tops(tree, &pointers, &mut dnode);
        Ok(Written::Tree(Some(Box::new(dnode))))
    }

    /// Writes all planned blocks of one level, and keeps them in the cache, because the following txg changes most of
    /// them again. Returns the blocks that did not fit, with their sizes.
    async fn fill_all(
        &self,
        rq: &Request,
        jobs: Vec<(&Reservation, Bytes, WriteOptions)>,
        pointers: &mut Pointers,
    ) -> Result<Vec<(u64, u64)>, ObjectError> {
        let mut small = Vec::new();
        let mut in_flight = FuturesUnordered::new();
        let mut jobs = jobs.into_iter();
        loop {
            for (slot, bytes, options) in jobs.by_ref().take(MAX_CONCURRENT_BATCHES - in_flight.len()) {
                in_flight.push(async move {
                    let filled = self.blocks.fill(rq, &slot.reserved, bytes.clone(), &options).await;
                    (options, bytes, filled)
                });
            }
            let Some((options, bytes, filled)) = in_flight.next().await else { return Ok(small) };
            let (level, block) = (options.level, options.block);
            match filled {
                Ok(pointer) => {
                    self.set.cache().insert(&pointer, self.set.options(), bytes);
                    pointers.insert((level, block), pointer);
                }
                Err(BlockError::NoRoom { psize_bytes, .. }) => small.push((block, psize_bytes)),
                Err(error) => return Err(ObjectError::block(self.set.place(options.object, level, block), error)),
            }
        }
    }

    /// Returns an indirect block with the new pointers, and the sum of the fill counts below it.
    async fn indirect(
        &self,
        rq: &Request,
        tree: &TreePlan,
        pointers: &Pointers,
        level: u8,
        block: u64,
    ) -> Result<(Bytes, u64), ObjectError> {
        let old = self.old_block(rq, tree, level, block).await?;
        let mut bytes = old.map_or_else(|| vec![0; tree.indirect_bytes() as usize], |b| b.to_vec());
        let Range { start: first, end } = tree.geometry().children(block);
        let mut put = |child: u64, pointer: &BlockPointer| {
            let at = (child - first) as usize * BlockPointer::SIZE;
            let mut e = Encoder::new(Endian::Little);
            e.words(pointer.words());
            if let Some(place) = bytes.get_mut(at..at + BlockPointer::SIZE) {
                place.copy_from_slice(&e.finish());
            }
        };
        if block == 0 && level == tree.old_levels() && level > 0 {
            let tops = tree.base.as_ref().map(|base| base.dnode.block_pointers.clone()).unwrap_or_default();
            for (child, pointer) in tops.iter().enumerate() {
                put(child as u64, pointer);
            }
        }
        if level == 1 {
            for child in tree.new_holes.range(first..end) {
                put(*child, &BlockPointer::HOLE);
            }
        }
        for ((_, child), pointer) in pointers.range((level - 1, first)..(level - 1, end)) {
            put(*child, pointer);
        }
        let fill = fill_of(&bytes);
        Ok((Bytes::from(bytes), fill))
    }

    /// Puts the new pointers into the dnode.
    fn set_tops(&self, tree: &TreePlan, pointers: &Pointers, dnode: &mut Dnode) {
        let top = tree.levels() - 1;
        // Pointers of another level are removed from the dnode, also if they are holes.
        let same_height = |base: &&Arc<Object>| base.dnode.levels.max(1) == tree.levels();
        let old = tree.base.as_ref().filter(same_height).map(|base| &base.dnode.block_pointers);
        for (index, pointer) in dnode.block_pointers.iter_mut().enumerate() {
            let kept = old.and_then(|old| old.get(index)).copied().unwrap_or(BlockPointer::HOLE);
            let new_holes = top == 0 && tree.new_holes.contains(&(index as u64));
            let new = pointers.get(&(top, index as u64)).copied();
            *pointer = new.unwrap_or(if new_holes { BlockPointer::HOLE } else { kept });
        }
        dnode.levels = tree.levels();
        let before = tree.base.as_ref().map_or(0, |base| base.dnode.used_bytes());
        dnode.used = before.saturating_add_signed(tree.used);
        // An object that was never written may lack the flag.
        dnode.flags.0 |= DnodeFlags::USED_BYTES;
    }

    /// Makes the root current, and drops the overlay of the txg and the freed blocks from the cache.
    pub fn finish(self, root: &MosRoot) {
        self.freed.iter().for_each(|freed| self.set.cache().forget(freed));
        if let Some(live) = self.set.live() {
            let objects = root.objects.iter().cloned();
            self.set.syncing().adopt(live, self.txg, Root::new(root.pointer, root.header.clone()), objects.collect());
        }
    }
}

/// Sum of the fill counts of a block of pointers.
fn fill_of(block: &[u8]) -> u64 {
    let pointers = BlockPointer::in_block(block, Endian::Little).filter(|(_, pointer)| !pointer.is_hole());
    let fill = |(_, pointer): (usize, BlockPointer)| if pointer.is_embedded() { 1 } else { pointer.fill() };
    pointers.map(fill).fold(0, u64::saturating_add)
}

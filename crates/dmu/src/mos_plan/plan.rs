//! Plans the blocks of the MOS that a txg writes: reserves space for them and frees the blocks that they replace.

use super::tree::{META, Reservation, TreePlan};
use crate::error::ObjectError;
use crate::live::overlay::ChangedObject;
use crate::object::Object;
use crate::object_set::ObjectSet;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use weir_blocks::Class;
use weir_blocks::WriteOptions;
use weir_blocks::{BlockError, Blocks};
use weir_format::{BlockPointer, Dnode, Endian, ObjectId, ObjectType, Objset, Txg};
use weir_machine::Request;

/// Reserve, in bytes, in the last blocks of objects of the MOS that grow while it is planned.
const GROWTH_BYTES: u64 = 1024;
/// Bytes by which a changed dnode can make its compressed block longer: its pointers with their checksums.
const DNODE_BYTES: u64 = 448;
/// Bytes by which a changed pointer can make its compressed indirect block longer.
const POINTER_BYTES: u64 = 140;

/// Change of sizes: written blocks minus killed ones, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MosDelta {
    /// Allocated, without parity.
    pub used: i64,
    /// After compression.
    pub compressed: i64,
}

/// Blocks of the MOS that one txg writes.
pub struct MosPlan {
    pub(super) set: Arc<ObjectSet>,
    pub(super) blocks: Arc<Blocks>,
    pub(super) txg: Txg,
    pub(super) trees: BTreeMap<ObjectId, TreePlan>,
    pub(super) header: Option<Reservation>,
    delta: MosDelta,
    /// Blocks that are freed. They are read until the plan is written.
    pub(super) freed: Vec<BlockPointer>,
    /// Minimum sizes of blocks that did not fit into their space.
    pub(super) min_psize: BTreeMap<(ObjectId, u8, u64), u64>,
}

impl MosPlan {
    /// Plan for the changes of `txg` to the MOS.
    pub fn new(set: Arc<ObjectSet>, txg: Txg) -> Self {
        let blocks = set.cache().blocks().clone();
        let trees = Default::default();
        let header = Default::default();
        let delta = Default::default();
        let freed = Vec::new();
        let min_psize = Default::default();
        MosPlan { set, blocks, txg, trees, header, delta, freed, min_psize }
    }

    /// Change of the MOS's sizes, as far as it is planned.
    pub fn delta(&self) -> MosDelta {
        self.delta
    }

    /// Objects that the txg changed, as the overlay has them now.
    pub(super) fn changed_objects(&self) -> Vec<ChangedObject> {
        let Some(live) = self.set.live() else { return Vec::new() };
        live.changed_in(self.txg)
    }

    /// Whether the txg changes the MOS.
    pub fn is_needed(&self) -> bool {
        !self.changed_objects().is_empty()
    }

    /// Allocates space for every block that will change and has none yet, and frees the space of the blocks they
    /// replace. Returns false if there was nothing to do.
    ///
    /// # Errors
    /// Errors of reading the old trees; [`ObjectError::NoSpace`] if the pool has no free block.
    pub async fn extend(&mut self, rq: &Request) -> Result<bool, ObjectError> {
        let changed_objects = self.changed_objects();
        if changed_objects.is_empty() {
            return Ok(false);
        }
        let mut any = false;
        for changed in &changed_objects {
            any |= self.extend_object(rq, changed).await?;
        }
        any |= self.extend_meta(rq, &changed_objects).await?;
        if self.header.is_none() {
            self.reserve_header(rq).await?;
            any = true;
        }
        Ok(any)
    }

    async fn extend_object(&mut self, rq: &Request, changed: &ChangedObject) -> Result<bool, ObjectError> {
        let mut tree = self.trees.remove(&changed.id).unwrap_or_else(|| TreePlan::of(changed));
        let answer = self.extend_tree(rq, changed, &mut tree).await;
        self.trees.insert(changed.id, tree);
        answer
    }

    async fn extend_tree(
        &mut self,
        rq: &Request,
        changed: &ChangedObject,
        tree: &mut TreePlan,
    ) -> Result<bool, ObjectError> {
        let mut any = false;
        if changed.changes.removed && !tree.base_is_freed {
            if let Some(base) = &changed.base {
                let all = 0..u64::MAX;
                for (_, old) in self.old_pointers(rq, base, all, true).await? {
                    self.kill(rq, &old).await?;
                    any = true;
                }
            }
            tree.base = None;
            tree.base_is_freed = true;
        }
        let Some(image) = &changed.changes.image else {
            for slot in std::mem::take(&mut tree.reservations).into_values() {
                self.unreserve(slot)?;
                any = true;
            }
            tree.image = None;
            return Ok(any);
        };
        tree.set_image((**image).clone());
        if let Some(base) = tree.base.clone() {
            for span in changed.changes.freed.iter() {
                for ((level, block), old) in self.old_pointers(rq, &base, span, false).await? {
                    if level == 0 && !changed.changes.blocks.contains_key(&block) && tree.new_holes.insert(block) {
                        tree.used -= self.kill(rq, &old).await? as i64;
                        any = true;
                    }
                }
            }
        }
        let dirty: BTreeSet<u64> = changed.changes.blocks.keys().copied().collect();
        // Blocks that were written, got space, and were then freed in the same txg.
        let gone: Vec<u64> =
            tree.reservations.keys().filter(|(l, n)| *l == 0 && !dirty.contains(n)).map(|(_, n)| *n).collect();
        for block in gone {
            if let Some(slot) = tree.reservations.remove(&(0, block)) {
                tree.used -= slot.dsize_bytes as i64;
                self.unreserve(slot)?;
            }
            tree.new_holes.insert(block);
            any = true;
        }
        for (level, block) in tree.blocks_to_write(&dirty) {
            if tree.reservations.contains_key(&(level, block)) {
                continue;
            }
            any = true;
            let dirty = changed.changes.blocks.get(&block).filter(|_| level == 0);
            let data = dirty.map(|block| block.bytes.clone());
            let psize = match data {
                Some(bytes) => self.data_psize(changed.id, image.object_type, block, &bytes).await?,
                None => self.indirect_psize(rq, changed.id, tree, level, block).await?,
            };
            self.reserve(rq, changed.id, tree, (level, block), psize).await?;
        }
        Ok(any)
    }

    /// Plans the blocks of dnodes of all changed objects, and the indirect blocks above them.
    async fn extend_meta(&mut self, rq: &Request, changed_objects: &[ChangedObject]) -> Result<bool, ObjectError> {
        let base = self.set.meta();
        let mut tree = match self.trees.remove(&META) {
            Some(tree) => tree,
            None => TreePlan::meta(base),
        };
        let per_block = tree.block_bytes() / Dnode::SLOT as u64;
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        for changed in changed_objects {
            *counts.entry(changed.id.0 / per_block.max(1)).or_default() += 1;
        }
        if let (Some(last), Some(image)) = (counts.keys().last(), &mut tree.image) {
            image.max_block_id = image.max_block_id.max(*last);
        }
        tree.grow();
        let dirty: BTreeSet<u64> = counts.keys().copied().collect();
        let mut any = false;
        for (level, block) in tree.blocks_to_write(&dirty) {
            if tree.reservations.contains_key(&(level, block)) {
                continue;
            }
            any = true;
            let psize = if level == 0 {
                let changed = counts.get(&block).copied().unwrap_or(0);
                let old = self.old_block(rq, &tree, 0, block).await?;
                let options = self.options(META, ObjectType::DNODE, 0, block);
                let least = match old {
                    Some(bytes) => self.compressed(&bytes, &options).await?,
                    None => 0,
                };
                (least + (changed + 4) * DNODE_BYTES).min(tree.block_bytes())
            } else {
                self.indirect_psize(rq, META, &tree, level, block).await?
            };
            self.reserve(rq, META, &mut tree, (level, block), psize).await?;
        }
        self.trees.insert(META, tree);
        Ok(any)
    }

    /// Options for writing blocks of the MOS.
    pub(super) fn options(&self, object: ObjectId, kind: ObjectType, level: u8, block: u64) -> WriteOptions {
        let usual = WriteOptions::new(self.txg, kind);
        let copies = 3;
        let class = if kind.is_dedup_table() { Class::Dedup } else { Class::Special };
        // An embedded block could outgrow its pointer while the space maps record the allocations.
        WriteOptions { object, block, level, copies, class, embed: false, ..usual }
    }

    async fn data_psize(
        &self,
        id: ObjectId,
        kind: ObjectType,
        block: u64,
        bytes: &bytes::Bytes,
    ) -> Result<u64, ObjectError> {
        let psize = self.compressed(bytes, &self.options(id, kind, 0, block)).await?;
        let grows = kind == ObjectType::SPACE_MAP;
        Ok((psize + if grows { GROWTH_BYTES } else { 0 }).min(bytes.len() as u64))
    }

    async fn compressed(&self, bytes: &bytes::Bytes, options: &WriteOptions) -> Result<u64, ObjectError> {
        let failed = |error| ObjectError::block(self.set.place(options.object, options.level, options.block), error);
        self.blocks.compressed_bytes(bytes.clone(), options).await.map_err(failed)
    }

    /// Upper bound of the size of an indirect block: its present size and that of the new pointers.
    async fn indirect_psize(
        &self,
        rq: &Request,
        id: ObjectId,
        tree: &TreePlan,
        level: u8,
        block: u64,
    ) -> Result<u64, ObjectError> {
        let options = self.options(id, tree.kind(), level, block);
        let old = self.old_block(rq, tree, level, block).await?;
        let least = match old {
            Some(bytes) => self.compressed(&bytes, &options).await?,
            None => 0,
        };
        let changed = tree.children_of(level, block) + 4;
        Ok((least + changed * POINTER_BYTES).min(tree.indirect_bytes()))
    }

    async fn reserve_header(&mut self, rq: &Request) -> Result<(), ObjectError> {
        let old = self.set.pointer();
        if !old.is_hole() {
            self.kill(rq, &old).await?;
        }
        let len = self.header_bytes();
        let options = self.options(META, ObjectType::OBJSET, 0, 0);
        let psize = (3 * DNODE_BYTES + 512).min(len).max(self.min_psize(META, u8::MAX, 0));
        self.header = Some(self.place(&options, psize, len).await?);
        Ok(())
    }

    /// Bytes of the header block: its present length.
    pub(super) fn header_bytes(&self) -> u64 {
        let old = self.set.pointer();
        if old.is_hole() { Objset::SIZE_V3 as u64 } else { old.lsize_bytes() }
    }

    fn min_psize(&self, id: ObjectId, level: u8, block: u64) -> u64 {
        self.min_psize.get(&(id, level, block)).copied().unwrap_or(0)
    }

    /// Allocates space for a block, and frees that of the block it replaces.
    async fn reserve(
        &mut self,
        rq: &Request,
        id: ObjectId,
        tree: &mut TreePlan,
        (level, block): (u8, u64),
        psize: u64,
    ) -> Result<(), ObjectError> {
        let options = self.options(id, tree.kind(), level, block);
        let psize = psize.max(self.min_psize(id, level, block));
        if !tree.replaced.contains(&(level, block)) {
            if let Some(old) = self.old_pointer(rq, tree, level, block).await?
                && !(level == 0 && tree.new_holes.contains(&block))
            {
                tree.used -= self.kill(rq, &old).await? as i64;
            }
            tree.replaced.insert((level, block));
        }
        let len = if level == 0 { tree.block_bytes() } else { tree.indirect_bytes() };
        let slot = self.place(&options, psize, len).await?;
        tree.used += slot.dsize_bytes as i64;
        tree.reservations.insert((level, block), slot);
        Ok(())
    }

    /// Allocates space for a block of `len` bytes that will be compressed to `psize`.
    async fn place(&mut self, options: &WriteOptions, psize: u64, len: u64) -> Result<Reservation, ObjectError> {
        let failed =
            |error: BlockError| ObjectError::block(self.set.place(options.object, options.level, options.block), error);
        let reserved = self.blocks.reserve(psize, options).await.map_err(failed)?;
        let dsize_bytes = self.blocks.reserved_dsize_bytes(&reserved);
        let slot = Reservation { dsize_bytes, psize_bytes: reserved.psize_bytes().min(len), reserved };
        self.delta.used += slot.dsize_bytes as i64;
        self.delta.compressed += slot.psize_bytes as i64;
        Ok(slot)
    }

    /// Frees space to which nothing current was written.
    pub(super) fn unreserve(&mut self, slot: Reservation) -> Result<(), ObjectError> {
        self.delta.used -= slot.dsize_bytes as i64;
        self.delta.compressed -= slot.psize_bytes as i64;
        let failed = |error| ObjectError::block(self.set.place(META, 0, 0), error);
        self.blocks.unreserve(slot.reserved).map_err(failed)
    }

    /// Frees the space of a block; returns its allocated bytes.
    async fn kill(&mut self, rq: &Request, old: &BlockPointer) -> Result<u64, ObjectError> {
        if old.is_hole() || old.is_embedded() {
            return Ok(0);
        }
        let bytes = self.blocks.dsize_bytes(old);
        let failed = |error| ObjectError::block(self.set.place(META, old.level(), 0), error);
        self.blocks.free(rq, old, self.txg).await.map_err(failed)?;
        self.delta.used -= bytes as i64;
        self.delta.compressed -= old.psize_bytes() as i64;
        self.freed.push(*old);
        Ok(bytes)
    }

    /// Returns the pointer of a block in the synced tree.
    async fn old_pointer(
        &self,
        rq: &Request,
        tree: &TreePlan,
        level: u8,
        block: u64,
    ) -> Result<Option<BlockPointer>, ObjectError> {
        match &tree.base {
            Some(base) if level < base.dnode.levels => self.set.pointers().at(rq, base, level, block).await,
            _ => Ok(None),
        }
    }

    /// Reads a block of the synced tree.
    pub(super) async fn old_block(
        &self,
        rq: &Request,
        tree: &TreePlan,
        level: u8,
        block: u64,
    ) -> Result<Option<bytes::Bytes>, ObjectError> {
        let Some(pointer) = self.old_pointer(rq, tree, level, block).await? else { return Ok(None) };
        let place = self.set.place(tree.id, level, block);
        if pointer.endian() != Endian::Little {
            return Err(ObjectError::Unsupported { what: "the MOS of a big-endian machine, to be changed here," });
        }
        let bytes = self.set.cache().read(rq, &pointer, &self.set.options_at(place)).await;
        Ok(Some(bytes.map_err(|e| ObjectError::block(place, e))?))
    }

    /// Returns all pointers of a synced tree to data blocks of a range; with `above`, those to indirect blocks as well.
    async fn old_pointers(
        &self,
        rq: &Request,
        base: &Arc<Object>,
        range: std::ops::Range<u64>,
        above: bool,
    ) -> Result<Vec<((u8, u64), BlockPointer)>, ObjectError> {
        let mut out = Vec::new();
        let end = range.end.min(base.dnode.max_block_id.saturating_add(1));
        let mut block = range.start;
        while block < end {
            let Some(found) = self.set.pointers().next_data_block(rq, base, block).await?.filter(|n| *n < end) else {
                break;
            };
            if let Some(pointer) = self.set.pointers().at(rq, base, 0, found).await? {
                out.push(((0, found), pointer));
            }
            block = found + 1;
        }
        if above {
            for level in 1..base.dnode.levels {
                let count = base.tree().number_at(level, base.dnode.max_block_id) + 1;
                for block in 0..count {
                    if let Some(pointer) = self.set.pointers().at(rq, base, level, block).await? {
                        out.push(((level, block), pointer));
                    }
                }
            }
        }
        if let Some(spill) = base.dnode.spill.filter(|p| above && !p.is_hole()) {
            out.push(((0, crate::ErrorLocation::SPILL), spill));
        }
        Ok(out)
    }
}

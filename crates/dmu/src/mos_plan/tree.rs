//! Plan for one object of the MOS: which of its blocks get new space.

use crate::live::dirty_object;
use crate::live::overlay::ChangedObject;
use crate::object::Object;
use crate::tree_geometry::TreeGeometry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use weir_blocks::Reserved;
use weir_format::{BlockPointer, Dnode, ObjectId, ObjectType};

/// The object that holds all dnodes.
pub(super) const META: ObjectId = ObjectId(0);

/// Space that was allocated for a block.
pub(super) struct Reservation {
    pub reserved: Reserved,
    /// Allocated bytes, without parity.
    pub dsize_bytes: u64,
    pub psize_bytes: u64,
}

/// Plan for the tree of an object.
pub(super) struct TreePlan {
    pub id: ObjectId,
    /// Synced object; its blocks stay unless they are replaced.
    pub base: Option<Arc<Object>>,
    /// Whether all blocks of a removed object were freed.
    pub base_is_freed: bool,
    /// The object's own fields after the txg; `None` if it is removed.
    pub image: Option<Dnode>,
    /// Space of new blocks, by level and number.
    pub reservations: BTreeMap<(u8, u64), Reservation>,
    /// Blocks whose old space was freed.
    pub replaced: BTreeSet<(u8, u64)>,
    /// Data blocks that became holes.
    pub new_holes: BTreeSet<u64>,
    /// Change of the object's allocated bytes.
    pub used: i64,
}

impl TreePlan {
    pub fn of(changed: &ChangedObject) -> Self {
        let base = if changed.changes.removed { None } else { changed.base.clone() };
        let mut tree = Self::with(changed.id, base);
        if let Some(image) = &changed.changes.image {
            tree.set_image((**image).clone());
        }
        tree
    }

    /// The object of all dnodes.
    pub fn meta(base: Option<Arc<Object>>) -> Self {
        let mut tree = Self::with(META, base.clone());
        tree.image = Some(match base {
            Some(base) => base.dnode.clone(),
            None => dirty_object::fresh(&crate::object::NewObject::new(ObjectType::DNODE, 16 << 10)),
        });
        tree
    }

    fn with(id: ObjectId, base: Option<Arc<Object>>) -> Self {
        let image = Default::default();
        let base_is_freed = Default::default();
        let reservations = Default::default();
        let replaced = Default::default();
        let new_holes = Default::default();
        let used = Default::default();
        TreePlan { id, base, base_is_freed, image, reservations, replaced, new_holes, used }
    }

    pub fn set_image(&mut self, image: Dnode) {
        self.image = Some(image);
        self.grow();
    }

    pub fn kind(&self) -> ObjectType {
        self.image.as_ref().map_or(ObjectType::NONE, |i| i.object_type)
    }

    pub fn block_bytes(&self) -> u64 {
        self.image.as_ref().map_or(512, |i| u64::from(i.data_block_bytes).max(512))
    }

    pub fn indirect_bytes(&self) -> u64 {
        1 << self.indirect_shift()
    }

    fn indirect_shift(&self) -> u32 {
        self.image.as_ref().map_or(14, |i| u32::from(i.indirect_shift)).clamp(10, 24)
    }

    /// Geometry of the tree.
    pub fn geometry(&self) -> TreeGeometry {
        TreeGeometry::new(self.indirect_shift())
    }

    pub fn levels(&self) -> u8 {
        self.image.as_ref().map_or(1, |i| i.levels.max(1))
    }

    /// Levels of the synced tree; 0 if it has no block.
    pub fn old_levels(&self) -> u8 {
        match &self.base {
            Some(base) if !base.dnode.block_pointers.iter().all(BlockPointer::is_hole) => base.dnode.levels,
            _ => 0,
        }
    }

    /// Adds levels until the last block is below the dnode's pointers.
    pub fn grow(&mut self) {
        let old = self.old_levels();
        let geometry = self.geometry();
        let Some(image) = &mut self.image else { return };
        let levels = image.levels.max(old);
        image.levels = geometry.levels_to_reach(image.max_block_id, image.block_pointers.len(), levels);
    }

    /// All blocks that change: the data blocks `dirty`, and the indirect blocks above these and above the dead ones.
    pub fn blocks_to_write(&self, dirty: &BTreeSet<u64>) -> Vec<(u8, u64)> {
        let mut out: Vec<(u8, u64)> = dirty.iter().map(|n| (0, *n)).collect();
        let mut below: BTreeSet<u64> = dirty.union(&self.new_holes).copied().collect();
        let old = self.old_levels();
        for level in 1..self.levels() {
            let mut here: BTreeSet<u64> = below.iter().map(|n| self.geometry().parent(*n)).collect();
            if old > 0 && level >= old {
                // The dnode's former pointers are now below a block of this level.
                here.insert(0);
            }
            out.extend(here.iter().map(|n| (level, *n)));
            below = here;
        }
        out
    }

    /// Planned or dead blocks directly below an indirect block.
    pub fn children_of(&self, level: u8, block: u64) -> u64 {
        let Range { start: first, end } = self.geometry().children(block);
        let below = self.reservations.range((level - 1, first)..(level - 1, end)).count();
        let new_holes = if level == 1 { self.new_holes.range(first..end).count() } else { 0 };
        let grown = if level >= self.old_levels() { 3 } else { 0 };
        (below + new_holes) as u64 + grown
    }
}

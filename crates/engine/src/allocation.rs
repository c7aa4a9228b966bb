//! Initialization of the allocator with a pool's free space, and the pool's space totals.

use super::config::Config;
use super::tx_admission::{PoolSpace, SpaceSource};
use std::sync::Arc;
use weir_blocks::alloc::{SegmentCounts, Summary};
use weir_blocks::{BlockError, Blocks, VdevGrid};
use weir_dsl::sync_tasks::PoolContext;
use weir_machine::Machine;
use weir_machine::lock::{Mutex, MutexGuard, order};
use weir_pool::capacity;
use weir_pool::config::{Class, VdevConfig};
use weir_pool::error::PoolError;
use weir_pool::metaslab_geometry::MetaslabGeometry;
use weir_pool::space_map_loader::{MapSummary, SpaceMapIndex};

fn failed(top: &VdevConfig) -> impl Fn(BlockError) -> PoolError {
    let name = top.name();
    move |error| PoolError::Refused { what: format!("{name}: {error}") }
}

fn add(blocks: &Blocks, top: &VdevConfig) -> Result<(), PoolError> {
    let grid = VdevGrid {
        vdev: top.id as u32,
        class: top.class,
        metaslab_shift: top.metaslab_shift as u32,
        metaslab_count: MetaslabGeometry::of(top).count(),
        non_allocating: top.non_allocating || top.removing,
    };
    blocks.add_vdev(&grid).map_err(failed(top))
}

/// Adds the vdevs of a new pool to the allocator, with all space free.
pub(crate) fn set_empty(blocks: &Blocks, root: &VdevConfig) -> Result<(), PoolError> {
    blocks.tree().set_writable(true);
    for top in root.children.iter().filter(|t| t.is_concrete()) {
        set_empty_top(blocks, top)?;
    }
    Ok(())
}

/// Adds a new top-level vdev to the allocator, with all space free.
pub(crate) fn set_empty_top(blocks: &Blocks, top: &VdevConfig) -> Result<(), PoolError> {
    add(blocks, top)?;
    let geometry = MetaslabGeometry::of(top);
    for metaslab in 0..geometry.count() {
        blocks.metaslabs().set_free(top.id as u32, metaslab, &[geometry.range(metaslab)]).map_err(failed(top))?;
    }
    Ok(())
}

/// Adds the metaslabs of a top-level vdev that has grown, with all their space free.
pub(crate) fn grow_top(blocks: &Blocks, top: &VdevConfig) -> Result<(), PoolError> {
    let geometry = MetaslabGeometry::of(top);
    for metaslab in blocks.metaslabs().grow(top.id as u32, geometry.count()).map_err(failed(top))? {
        blocks.metaslabs().set_free(top.id as u32, metaslab, &[geometry.range(metaslab)]).map_err(failed(top))?;
    }
    Ok(())
}

/// Adds the vdevs of an existing pool, with summaries of their metaslabs. Space that only the checkpoint needs is allocated in
/// the space maps.
pub(crate) fn set_known(blocks: &Blocks, root: &VdevConfig, known: &SpaceMapIndex) -> Result<(), PoolError> {
    blocks.tree().set_writable(true);
    for top in root.children.iter().filter(|t| t.is_concrete()) {
        let vdev = top.id as u32;
        let Some(maps) = known.tops.get(&vdev) else {
            // It is being added to the pool.
            set_empty_top(blocks, top)?;
            continue;
        };
        add(blocks, top)?;
        for (metaslab, map) in (0u64..).zip(&maps.metaslabs) {
            let size_bytes = maps.geometry.size_bytes(metaslab);
            let allocated_bytes = known.allocated_bytes((vdev, metaslab));
            let Some(free_bytes) = size_bytes.checked_sub(allocated_bytes) else {
                let name = top.name();
                let what =
                    format!("{name}: metaslab {metaslab} has {size_bytes} bytes, {allocated_bytes} are allocated");
                return Err(PoolError::Refused { what });
            };
            let histogram = histogram(map, maps.ashift, free_bytes);
            blocks.metaslabs().summarize(vdev, metaslab, Summary { free_bytes, histogram }).map_err(failed(top))?;
        }
    }
    Ok(())
}

/// Free segments of a metaslab by size, by its map's header; `None` if that has no histogram.
fn histogram(map: &MapSummary, ashift: u32, free_bytes: u64) -> Option<SegmentCounts> {
    let mut out = [0; 64];
    if map.object.0 == 0 {
        out[free_bytes.max(1).ilog2() as usize] = 1;
        return Some(SegmentCounts::of(&out));
    }
    for (log, count) in (ashift as usize..64).zip(map.histogram.as_ref()?) {
        out[log] = *count;
    }
    Some(SegmentCounts::of(&out))
}

/// The top-level vdevs of the normal class, whose space datasets account.
#[derive(Clone, Default)]
pub(crate) struct Tops(Arc<Mutex<Vec<VdevConfig>, { order::TOP_LEVEL_VDEVS }>>);

impl Tops {
    /// The vdevs of a pool.
    pub fn of(root: &VdevConfig) -> Self {
        let tops = Tops::default();
        tops.add(&root.children);
        tops
    }

    /// Adds vdevs; those of other classes, and those that are being removed or do not allocate, are ignored.
    pub fn add(&self, more: &[VdevConfig]) {
        let counts = |top: &&VdevConfig| {
            let is_used = !top.removing && !top.non_allocating;
            top.is_concrete() && top.class == Class::Normal && is_used
        };
        let more = more.iter().filter(counts);
        self.locked().extend(more.cloned());
    }

    /// Forgets a vdev that is being removed, or allocates no more.
    pub fn remove(&self, id: u64) {
        self.locked().retain(|top| top.id != id);
    }

    /// Replaces the vdevs that are known by their new description.
    pub fn renew(&self, new: &[VdevConfig]) {
        for top in self.locked().iter_mut() {
            if let Some(new) = new.iter().find(|new| new.id == top.id) {
                *top = new.clone();
            }
        }
    }

    fn locked(&self) -> MutexGuard<'_, Vec<VdevConfig>> {
        self.0.lock()
    }
}

/// A callback that returns the pool's present space.
pub(crate) fn source(blocks: &Arc<Blocks>, tops: &Tops) -> SpaceSource {
    let blocks = blocks.clone();
    let tops = tops.clone();
    Arc::new(move || {
        let mut out = PoolSpace::default();
        for top in tops.locked().iter() {
            let sums = blocks.vdev_space(top.id as u32);
            out.size_bytes += top.deflate(sums.size_bytes);
            out.used_bytes += top.deflate(sums.allocated_bytes);
            out.deferred_bytes += top.deflate(sums.deferred_bytes);
        }
        // What a removal will copy to these vdevs.
        out.used_bytes += blocks.metaslabs().evacuations().left_bytes();
        out.slop_bytes = capacity::slop(out.size_bytes, 0);
        out.oldest_read = blocks.oldest_read();
        out
    })
}

/// Pool facts that DSL sync tasks need.
pub(crate) fn context(machine: &Machine, config: &Config, blocks: &Arc<Blocks>, space: PoolSpace) -> PoolContext {
    let blocks = blocks.clone();
    PoolContext {
        name: config.name.clone(),
        version: config.version,
        capacity_bytes: space.capacity_bytes(),
        sizes: Arc::new(move |pointer| blocks.dsize_bytes(pointer)),
        entropy: machine.entropy.clone(),
        host: config.host.name.clone(),
    }
}

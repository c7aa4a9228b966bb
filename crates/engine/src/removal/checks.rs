//! Reasons not to remove a top-level vdev with data, and the memory that its mapping would take.
//!
//! Source: OpenZFS `module/zfs/vdev_removal.c` (`spa_vdev_remove_top_check`), `lib/libzfs/libzfs_pool.c` (`zpool_vdev_remove`),
//! `module/zfs/vdev_label.c` (`vdev_config_generate`, `ZPOOL_CONFIG_INDIRECT_SIZE`).

use super::super::VdevRemovals;
use super::evacuate::{MAX_GAP_BYTES, MAX_SEGMENT_BYTES};
use super::refused;
use weir_blocks::Blocks;
use weir_dmu::zap;
use weir_format::dsl::pool as names;
use weir_format::features::Feature;
use weir_format::indirect::MappingEntry;
use weir_machine::Request;
use weir_pool::config::{Class, VdevConfig, VdevKind};
use weir_pool::error::PoolError;
use weir_pool::mos::Mos;

/// For vdevs of other sectors, and RAID-Z and dRAID.
const INVALID_CONFIG: &str = "invalid config; all top-level vdevs must have the same sector size and not be raidz.";
const NOT_SUPPORTED: &str = "operation not supported on this type of pool";
const BUSY: &str = "Pool busy; removal may already be in progress";
const NO_SPACE: &str = "out of space";

impl VdevRemovals<'_> {
    /// Checks whether a top-level vdev with data can be removed now, and returns it.
    pub(super) async fn check(&self, guid: u64) -> Result<VdevConfig, PoolError> {
        let root = self.root()?;
        let is_it = |top: &&VdevConfig| top.guid == guid && top.is_concrete();
        let top = root.children.iter().find(is_it).cloned().ok_or_else(|| refused(NOT_SUPPORTED))?;
        let rq = &Request::internal("remove");
        let mos = Mos { set: self.engine.synced().state(rq).await?.mos.clone() };
        let is_enabled = match mos.named(rq, names::FEATURES_FOR_READ).await? {
            Some(features) => zap::lookup_word(rq, &mos.set, features, Feature::DEVICE_REMOVAL.guid).await?.is_some(),
            None => false,
        };
        if !is_enabled || top.class == Class::Log || top.top_zap == 0 {
            return Err(refused(NOT_SUPPORTED));
        }
        if top.removing {
            return Err(refused("removal for this vdev is already in progress."));
        }
        if self.is_running().await? {
            return Err(refused(BUSY));
        }
        let tree = self.engine.cache.blocks().tree();
        for leaf in top.leaves() {
            match tree.leaf(leaf.guid) {
                Ok(handle) if handle.is_in_service() && handle.dtl().is_empty() => {}
                _ => return Err(refused(BUSY)),
            }
        }
        let scan = self.engine.scrubs().progress(rq).await?;
        self.engine.rebuilds().check_none_running()?;
        if scan.is_some_and(|scan| scan.is_open() && scan.is_resilver()) {
            return Err(refused(BUSY));
        }
        check_tops(&root, &top).map_err(refused)?;
        self.check_space(&top)?;
        Ok(top)
    }

    /// Checks that the other vdevs have space for the blocks of `top`, and the pool for its datasets without it.
    fn check_space(&self, top: &VdevConfig) -> Result<(), PoolError> {
        let blocks = self.engine.cache.blocks();
        let normal = blocks.space(weir_blocks::Class::Normal);
        let own = blocks.vdev_space(top.id as u32);
        let has_space = match top.class {
            // Its size leaves the capacity.
            Class::Normal if !top.non_allocating => {
                let pool = self.engine.gate.space();
                let used = pool.used_bytes.saturating_add(pool.deferred_bytes);
                pool.size_bytes.saturating_sub(pool.slop_bytes).saturating_sub(used) >= top.deflate(own.size_bytes)
            }
            Class::Normal => normal.free_bytes.saturating_sub(own.free_bytes) >= own.allocated_bytes,
            _ => normal.free_bytes >= own.allocated_bytes,
        };
        if has_space { Ok(()) } else { Err(refused(NO_SPACE)) }
    }
}

/// Checks the layout of the pool without `removed`.
fn check_tops(root: &VdevConfig, removed: &VdevConfig) -> Result<(), &'static str> {
    let concrete = || root.children.iter().filter(|top| top.is_concrete());
    let others = concrete().filter(|top| top.id != removed.id && top.class == Class::Normal);
    if removed.class == Class::Normal && others.clone().all(|top| top.non_allocating || top.removing) {
        // Of the last vdev on which data is allocated, OpenZFS says this too.
        return Err(NO_SPACE);
    }
    for top in concrete() {
        let is_mirror_of_leaves = top.kind == VdevKind::Mirror && top.children.iter().all(VdevConfig::is_leaf);
        let has_data = top.class == Class::Normal || top.class == removed.class;
        if has_data && top.ashift != removed.ashift || !(top.is_leaf() || is_mirror_of_leaves) {
            return Err(INVALID_CONFIG);
        }
    }
    Ok(())
}

/// Estimate of the memory for the mapping that the removal of a vdev would leave, in bytes, as OpenZFS shows it: 24 bytes per
/// entry. Weir keeps 16 of them in memory.
pub fn mapping_bytes(blocks: &Blocks, top: &VdevConfig) -> u64 {
    let vdev = top.id as u32;
    let mut free = [0u64; 64];
    let count = weir_pool::metaslab_geometry::MetaslabGeometry::of(top).count();
    for metaslab in 0..count {
        let histogram = blocks.metaslabs().free_histogram(vdev, metaslab, weir_format::Txg(u64::MAX));
        free.iter_mut().zip(histogram).for_each(|(sum, more)| *sum = sum.saturating_add(more));
    }
    entries(blocks.vdev_space(vdev).allocated_bytes, &free).saturating_mul(MappingEntry::SIZE as u64)
}

/// Number of entries for this many allocated bytes between free segments of 2ⁿ to 2ⁿ⁺¹−1 bytes.
fn entries(allocated_bytes: u64, free: &[u64; 64]) -> u64 {
    let mut to_copy = allocated_bytes;
    let mut count = 0u64;
    for (log, segments) in free.iter().enumerate() {
        // Short gaps are copied.
        match log + 1 < MAX_GAP_BYTES.ilog2() as usize {
            true => to_copy = to_copy.saturating_add(segments.saturating_mul(1 << (log + 1))),
            false => count = count.saturating_add(*segments),
        }
    }
    count.saturating_add(to_copy / MAX_SEGMENT_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_format::NvList;

    fn top(id: u64, kind: &str, ashift: u64, bias: &str) -> NvList {
        let mut list = NvList::new();
        list.set("type", kind);
        list.set("id", id);
        list.set("guid", id + 10);
        list.set("ashift", ashift);
        if !bias.is_empty() {
            list.set("alloc_bias", bias);
        }
        if kind != "file" {
            let child = |guid: u64| {
                let mut list = NvList::new();
                list.set("type", "file");
                list.set("guid", guid);
                list
            };
            list.set("children", (0..3).map(|n| child(100 * id + n)).collect::<Vec<_>>());
        }
        list
    }

    fn check(tops: Vec<NvList>, removed: usize) -> Result<(), &'static str> {
        let mut root = NvList::new();
        root.set("type", "root");
        root.set("children", tops);
        let root = VdevConfig::parse(&root).unwrap();
        check_tops(&root, &root.children[removed])
    }

    #[test]
    fn only_mirrors_and_devices_of_one_sector_size_are_removed() {
        let file = |id, ashift| top(id, "file", ashift, "");
        assert_eq!(check(vec![file(0, 12), top(1, "mirror", 12, "")], 0), Ok(()));
        assert_eq!(check(vec![file(0, 12), file(1, 9)], 0), Err(INVALID_CONFIG));
        assert_eq!(check(vec![file(0, 12), top(1, "raidz", 12, "")], 0), Err(INVALID_CONFIG));
        assert_eq!(check(vec![file(0, 12)], 0), Err(NO_SPACE), "the last one");
        assert_eq!(check(vec![file(0, 12), top(1, "file", 12, "special")], 0), Err(NO_SPACE), "the last normal one");
        assert_eq!(check(vec![file(0, 12), top(1, "file", 12, "special")], 1), Ok(()));
        assert_eq!(check(vec![file(0, 12), top(1, "file", 9, "special")], 1), Err(INVALID_CONFIG));
        let specials = vec![file(0, 12), top(1, "file", 9, "special"), top(2, "file", 12, "dedup")];
        assert_eq!(check(specials, 2), Ok(()));
    }

    #[test]
    fn entries_are_counted_by_long_gaps_and_by_length() {
        let mut free = [0; 64];
        assert_eq!(entries(0, &free), 0);
        free[20] = 3;
        assert_eq!(entries(40 << 20, &free), 5);
        free[10] = 16 << 10;
        assert_eq!(entries(40 << 20, &free), 7, "32 MiB of gaps of 2 KiB");
    }
}

//! Freed space that does not return to metaslabs: checkpoint and obsolete space maps.
//!
//! ```text
//!   born before the checkpoint     stays allocated; the vdev's checkpoint space map records it
//!   on a removed vdev              the remapped space is freed; the removed vdev's obsolete space map records the range
//! ```
//!
//! Both are space maps of a whole top-level vdev. The vdev's ZAP refers to them; they are created on first use. OpenZFS
//! frees the space in the first when the checkpoint is discarded, and condenses the removed vdev's mapping by the second.
//!
//! Source: OpenZFS `module/zfs/metaslab.c` (`metaslab_free_impl`, `metaslab_sync`), `spa_checkpoint.c` (theory),
//! `vdev_indirect.c` (`vdev_indirect_sync_obsolete`).

use crate::space::create_map;
use std::collections::BTreeMap;
use std::ops::Range;
use weir_dmu::space_map::{self, BLOCK_BYTES_WITH_LOG, Style};
use weir_dmu::zap;
use weir_dsl::sync_tasks::{DslSyncContext, features};
use weir_format::ObjectId;
use weir_format::features::Feature;
use weir_format::space_map::{SpaceKind, SpaceSegment};
use weir_pool::config::VdevConfig;
use weir_pool::error::PoolError;
use weir_pool::top_zap::{CHECKPOINT_SM, OBSOLETE_SM};

/// The feature for obsolete space maps of removed vdevs.
const COUNTS: &Feature = Feature::OBSOLETE_COUNTS;

/// The checkpoint and obsolete space maps of a pool.
#[derive(Clone, Debug, Default)]
pub struct CheckpointAndObsoleteMaps {
    tops: BTreeMap<u32, VdevConfig>,
    /// Space that only the checkpoint refers to, in deflated bytes (without parity).
    pub kept_bytes: u64,
}

impl CheckpointAndObsoleteMaps {
    /// The maps of a pool; `kept_bytes` is the space that only the checkpoint refers to.
    pub fn new(tops: &[VdevConfig], kept_bytes: u64) -> Self {
        let tops = tops.iter().map(|top| (top.id as u32, top.clone())).collect();
        CheckpointAndObsoleteMaps { tops, kept_bytes }
    }

    /// Adds a vdev that is being removed, whose freed ranges will be recorded.
    pub fn add_removed(&mut self, top: &VdevConfig) {
        self.tops.insert(top.id as u32, top.clone());
    }

    /// Appends frees to the maps; false if there were none.
    pub async fn append(
        &mut self,
        change: &mut DslSyncContext<'_>,
        freed: weir_blocks::NonMetaslabFrees,
    ) -> Result<bool, PoolError> {
        let weir_blocks::NonMetaslabFrees { kept, removed } = freed;
        let any = !kept.is_empty() || !removed.is_empty();
        for (vdev, ranges) in by_vdev(kept) {
            let Some(top) = self.tops.get(&vdev) else { continue };
            let bytes = ranges.iter().map(|r| r.end - r.start).fold(0, u64::saturating_add);
            self.kept_bytes = self.kept_bytes.saturating_add(top.deflate(bytes));
            write(change, top, CHECKPOINT_SM, SpaceKind::Free, top.ashift.min(16) as u32, &ranges).await?;
        }
        if removed.is_empty() || !features::is_enabled(change, COUNTS).await? {
            return Ok(any);
        }
        for (vdev, ranges) in by_vdev(removed) {
            let Some(top) = self.tops.get(&vdev) else { continue };
            if write(change, top, OBSOLETE_SM, SpaceKind::Alloc, 0, &ranges).await? {
                features::count_feature(change, COUNTS, 1).await?;
            }
        }
        Ok(any)
    }
}

fn by_vdev(ranges: Vec<(u32, Range<u64>)>) -> BTreeMap<u32, Vec<Range<u64>>> {
    let mut out: BTreeMap<u32, Vec<Range<u64>>> = BTreeMap::new();
    for (vdev, range) in ranges {
        out.entry(vdev).or_default().push(range);
    }
    out
}

/// Appends ranges to a vdev's map `name`; true if the map was created.
async fn write(
    change: &mut DslSyncContext<'_>,
    top: &VdevConfig,
    name: &str,
    kind: SpaceKind,
    shift: u32,
    ranges: &[Range<u64>],
) -> Result<bool, PoolError> {
    let zap = ObjectId(top.top_zap);
    if zap.0 == 0 {
        return Err(PoolError::Refused { what: format!("{}: it has no ZAP to name a space map in", top.name()) });
    }
    let two_words = features::is_active(change, Feature::SPACEMAP_V2).await?;
    let known = zap::lookup_word(change.rq, &change.mos, zap, name).await?.map(ObjectId);
    let map = match known {
        Some(map) => map,
        None => {
            let map = create_map(change, BLOCK_BYTES_WITH_LOG).await?;
            zap::put_word(change.rq, &change.mos, change.tx, zap, name, map.0).await?;
            map
        }
    };
    let one = |r: &Range<u64>| {
        let length_bytes = r.end - r.start;
        SpaceSegment { kind, vdev: None, offset_bytes: r.start, length_bytes, words: 1 }
    };
    let segments: Vec<SpaceSegment> = ranges.iter().map(one).collect();
    let style = Style { shift, two_words, pass: 1 };
    space_map::append(change.rq, &change.mos, change.tx, map, style, &segments, None).await?;
    Ok(known.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_format::NvList;

    #[test]
    fn the_deflate_ratio_of_raidz_depends_on_its_width() {
        let leaf = |guid: u64| {
            let mut list = NvList::new();
            list.set("type", "disk");
            list.set("guid", guid);
            list
        };
        let mut list = NvList::new();
        list.set("type", "raidz");
        list.set("nparity", 1u64);
        list.set("ashift", 12u64);
        list.set("children", (1..=5).map(leaf).collect::<Vec<_>>());
        let top = VdevConfig::parse(&list).unwrap();
        let maps = CheckpointAndObsoleteMaps::new(std::slice::from_ref(&top), 0);
        assert_eq!(maps.tops[&0].deflate(5 << 20), top.deflate(5 << 20));
    }
}

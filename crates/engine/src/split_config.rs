//! The vdev tree of a pool that is split off from another one: nvlists in, nvlists out.
//!
//! ```text
//!   mirror-0 [A B]  ─► B        its own GUID; the values of the mirror as a top-level vdev
//!   log             ─► hole     its last id is that of the others, because blocks name their vdev by it
//!   hole, indirect  ─► the same
//! ```
//!
//! Source: OpenZFS `lib/libzfs/libzfs_pool.c` (`zpool_vdev_split`), `module/zfs/spa.c` (`spa_vdev_split_mirror`).

use super::remove_log::hole;
use super::vdev_config_edit::move_top_values;
use std::collections::BTreeSet;
use weir_format::NvList;
use weir_pool::error::PoolError;

/// A pool to split off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitPlan {
    /// The vdev tree, with the GUID of the present pool.
    pub(super) root: NvList,
    /// GUIDs of the leaves that it takes, by top-level vdev; 0 for those without.
    pub leaves: Vec<u64>,
}

fn guid(vdev: &NvList) -> u64 {
    vdev.get_u64("guid").unwrap_or(0)
}

fn refused(what: impl Into<String>) -> PoolError {
    PoolError::Refused { what: what.into() }
}

impl SplitPlan {
    /// Plans a pool of one device of each mirror of `root`: those of `wanted`, and the last one of each other mirror.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if a vdev with data is no mirror of devices, or `wanted` has others than at most one of each.
    pub(super) fn of(root: &NvList, wanted: &[u64]) -> Result<Self, PoolError> {
        let mut tops = Vec::new();
        let mut leaves = Vec::new();
        let mut left: BTreeSet<u64> = wanted.iter().copied().collect();
        for (id, top) in (0u64..).zip(root.get_list_array("children").unwrap_or_default()) {
            let is_log = top.get_u64("is_log").unwrap_or(0) != 0;
            let (new, leaf) = match top.get_str("type") {
                Some("hole") => (hole(id), 0),
                _ if is_log => (hole(id), 0),
                Some("indirect") => (top.clone(), 0),
                Some("mirror") => Self::side(top, id, &mut left)?,
                _ => return Err(refused("Source pool must be composed only of mirrors")),
            };
            tops.push(new);
            leaves.push(leaf);
        }
        if !left.is_empty() || wanted.len() > leaves.iter().filter(|leaf| **leaf != 0).count() {
            return Err(refused("Device list must include at most one disk from each mirror"));
        }
        let mut new = root.clone();
        super::config::set(&mut new, "children", tops.into());
        Ok(SplitPlan { root: new, leaves })
    }

    /// A device of a mirror as a top-level vdev, and its GUID.
    fn side(mirror: &NvList, id: u64, wanted: &mut BTreeSet<u64>) -> Result<(NvList, u64), PoolError> {
        let below = mirror.get_list_array("children").unwrap_or_default();
        let named = below.iter().find(|child| wanted.contains(&guid(child)));
        let side = named.or(below.last().filter(|_| below.len() > 1));
        let side = side.ok_or_else(|| refused("Source pool must be composed only of mirrors"))?;
        if side.contains("children") {
            return Err(refused("a device of the pool is being replaced"));
        }
        wanted.remove(&guid(side));
        let mut new = side.clone();
        super::config::set(&mut new, "id", id.into());
        move_top_values(&mut mirror.clone(), &mut new);
        Ok((new, guid(side)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(guid: u64) -> NvList {
        let mut list = NvList::new();
        list.set("type", "file");
        list.set("id", guid % 10);
        list.set("guid", guid);
        list.set("com.delphix:vdev_zap_leaf", guid + 100);
        list
    }

    fn top(kind: &str, guid: u64, children: Vec<NvList>) -> NvList {
        let mut list = NvList::new();
        list.set("type", kind);
        list.set("guid", guid);
        list.set("asize", 5u64);
        list.set("com.delphix:vdev_zap_top", 77u64);
        list.set("children", children);
        list
    }

    fn pool(tops: Vec<NvList>) -> NvList {
        let mut root = NvList::new();
        root.set("type", "root");
        root.set("guid", 1u64);
        root.set("children", tops);
        root
    }

    fn mirrors() -> NvList {
        let mut log = top("mirror", 30, vec![leaf(31), leaf(32)]);
        log.set("is_log", 1u64);
        pool(vec![
            top("mirror", 10, vec![leaf(11), leaf(12)]),
            log,
            top("mirror", 20, vec![leaf(21), leaf(22), leaf(23)]),
        ])
    }

    #[test]
    fn a_device_of_each_mirror_becomes_a_top_level_vdev() {
        let plan = SplitPlan::of(&mirrors(), &[21]).unwrap();
        assert_eq!(plan.leaves, [12, 0, 21]);
        let tops = plan.root.get_list_array("children").unwrap();
        let facts = |top: &NvList| (guid(top), top.get_u64("id"), top.get_u64("asize"), top.contains("children"));
        assert_eq!(facts(&tops[0]), (12, Some(0), Some(5), false));
        assert_eq!(tops[0].get_u64("com.delphix:vdev_zap_top"), Some(77));
        assert_eq!(tops[0].get_u64("com.delphix:vdev_zap_leaf"), Some(112));
        assert_eq!((tops[1].get_str("type"), guid(&tops[1]), tops[1].get_u64("id")), (Some("hole"), 0, Some(1)));
        assert_eq!(facts(&tops[2]), (21, Some(2), Some(5), false));
    }

    #[test]
    fn other_vdevs_and_devices_are_refused() {
        let why = |root: &NvList, wanted: &[u64]| SplitPlan::of(root, wanted).unwrap_err().to_string();
        for wanted in [&[99][..], &[21, 22], &[31], &[11, 11, 11]] {
            assert_eq!(why(&mirrors(), wanted), "Device list must include at most one disk from each mirror");
        }
        let single = pool(vec![leaf(5)]);
        assert_eq!(why(&single, &[]), "Source pool must be composed only of mirrors");
        let replacing = top("mirror", 10, vec![leaf(11), top("replacing", 12, vec![leaf(13), leaf(14)])]);
        assert_eq!(why(&pool(vec![replacing]), &[]), "a device of the pool is being replaced");
    }
}

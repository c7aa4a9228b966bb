//! Passes over the free space of devices, as the pool records them: initialization and trim.
//!
//! The ZAP of each leaf records its last initialization and trim. The recorded offset, counted from the start of the leaf's
//! allocatable space, is where the next pass continues.
//!
//! Source: OpenZFS `include/sys/fs/zfs.h` (`VDEV_LEAF_ZAP_INITIALIZE_…`, `VDEV_LEAF_ZAP_TRIM_…`), `module/zfs/vdev_initialize.c`
//! (`vdev_initialize_calculate_progress`).

use crate::config::{VdevConfig, VdevKind};
use crate::error::PoolError;
use crate::metaslab_geometry::MetaslabGeometry;
use crate::open::Pool;
use crate::space::VdevSpace;
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_dmu::{ObjectError, ObjectSet, zap};
use weir_format::{NvList, ObjectId};
use weir_machine::Request;

/// Name of a leaf's ZAP in its configuration.
const LEAF_ZAP: &str = "com.delphix:vdev_zap_leaf";

/// Kind of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeafActivity {
    /// Writes a pattern to free space, so that thin devices allocate it.
    Initialize,
    /// Discards free space.
    Trim,
}

/// State of a pass (`vdev_initializing_state_t`, `vdev_trim_state_t`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are OpenZFS's")]
pub enum LeafActivityState {
    #[default]
    None,
    Active,
    Canceled,
    Suspended,
    Complete,
}

/// A pass over one leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeafProgress {
    /// The state.
    pub state: LeafActivityState,
    /// Offset in the leaf's allocatable space, in bytes, up to which the pass is complete.
    pub offset: u64,
    /// Time of the start, or of the end if it is complete, in seconds since 1970.
    pub time_s: u64,
    /// Maximum bytes per second of a trim; 0 for no limit.
    pub rate: u64,
}

impl LeafActivityState {
    /// As it is stored.
    pub fn number(self) -> u64 {
        self as u64
    }

    /// From the stored number; `None` for others.
    pub fn from_number(number: u64) -> Option<Self> {
        let all = [Self::None, Self::Active, Self::Canceled, Self::Suspended, Self::Complete];
        all.into_iter().find(|state| state.number() == number)
    }
}

impl LeafActivity {
    /// Both.
    pub const ALL: [LeafActivity; 2] = [LeafActivity::Initialize, LeafActivity::Trim];

    /// Name of the state in a leaf's ZAP.
    pub fn state_name(self) -> &'static str {
        match self {
            LeafActivity::Initialize => "com.delphix:vdev_initialize_state",
            LeafActivity::Trim => "org.zfsonlinux:vdev_trim_state",
        }
    }

    /// Name of the offset in a leaf's ZAP.
    pub fn offset_name(self) -> &'static str {
        match self {
            LeafActivity::Initialize => "com.delphix:next_offset_to_initialize",
            LeafActivity::Trim => "org.zfsonlinux:next_offset_to_trim",
        }
    }

    /// Name of the time in a leaf's ZAP.
    pub fn time_name(self) -> &'static str {
        match self {
            LeafActivity::Initialize => "com.delphix:vdev_initialize_action_time",
            LeafActivity::Trim => "org.zfsonlinux:vdev_trim_action_time",
        }
    }

    /// Name of the rate in a leaf's ZAP, of trims.
    pub fn rate_name(self) -> Option<&'static str> {
        (self == LeafActivity::Trim).then_some("org.zfsonlinux:vdev_trim_rate")
    }
}

/// The ZAP of a leaf; `None` if it has none, as in pools of older versions.
pub fn zap_of(root: &NvList, leaf: u64) -> Option<ObjectId> {
    if root.get_u64("guid") == Some(leaf) && !root.contains("children") {
        return root.get_u64(LEAF_ZAP).filter(|id| *id != 0).map(ObjectId);
    }
    root.get_list_array("children").into_iter().flatten().find_map(|child| zap_of(child, leaf))
}

/// The last pass of a kind over the leaf with this ZAP.
///
/// # Errors
/// Errors of reading the ZAP.
pub async fn of_leaf(
    rq: &Request,
    mos: &Arc<ObjectSet>,
    zap: ObjectId,
    kind: LeafActivity,
) -> Result<LeafProgress, ObjectError> {
    let mut words = [0; 4];
    let names = [Some(kind.state_name()), Some(kind.offset_name()), Some(kind.time_name()), kind.rate_name()];
    for (word, name) in words.iter_mut().zip(names) {
        let Some(name) = name else { continue };
        *word = zap::lookup_word(rq, mos, zap, name).await?.unwrap_or(0);
    }
    let [state, offset, time_s, rate] = words;
    Ok(LeafProgress { state: LeafActivityState::from_number(state).unwrap_or_default(), offset, time_s, rate })
}

/// The last passes of a kind over all leaves of a pool, by GUID.
///
/// # Errors
/// Errors of reading the MOS.
pub async fn of_pool(rq: &Request, pool: &Pool, kind: LeafActivity) -> Result<BTreeMap<u64, LeafProgress>, PoolError> {
    let empty = NvList::new();
    let root = pool.config.list.get_list("vdev_tree").unwrap_or(&empty);
    let mut out = BTreeMap::new();
    for leaf in pool.tree.leaves() {
        let progress = match zap_of(root, leaf.guid) {
            Some(zap) => of_leaf(rq, &pool.mos.set, zap, kind).await?,
            None => LeafProgress::default(),
        };
        out.insert(leaf.guid, progress);
    }
    Ok(out)
}

/// Percentage that is done of a pass over a leaf of a top-level vdev: of the free space of its metaslabs, those that end
/// before the offset.
pub fn percent(top: &VdevConfig, space: &VdevSpace, progress: &LeafProgress) -> u64 {
    if progress.state == LeafActivityState::Complete {
        return 100;
    }
    let disks = match top.kind {
        VdevKind::Raidz { .. } => top.children.len().max(1) as u64,
        _ => 1,
    };
    let geometry = MetaslabGeometry::of(top);
    let mut done = 0u64;
    let mut all = 0u64;
    for (metaslab, used) in (0..geometry.count()).zip(&space.metaslabs) {
        let free = geometry.size_bytes(metaslab).saturating_sub(used.allocated_bytes) / disks;
        all = all.saturating_add(free);
        if geometry.range(metaslab).end / disks <= progress.offset {
            done = done.saturating_add(free);
        }
    }
    done.saturating_mul(100) / all.saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_those_of_openzfs() {
        for (number, state) in
            [(0, LeafActivityState::None), (1, LeafActivityState::Active), (4, LeafActivityState::Complete)]
        {
            assert_eq!((state.number(), LeafActivityState::from_number(number)), (number, Some(state)));
        }
        assert_eq!(LeafActivityState::from_number(5), None);
    }

    #[test]
    fn the_zap_of_a_leaf_is_found_below_others() {
        let leaf = |guid: u64| {
            let mut list = NvList::new();
            list.set("guid", guid);
            list.set(LEAF_ZAP, guid * 10);
            list
        };
        let mut mirror = NvList::new();
        mirror.set("guid", 2u64);
        mirror.set("children", vec![leaf(3), leaf(4)]);
        let mut root = NvList::new();
        root.set("guid", 1u64);
        root.set("children", vec![mirror, leaf(5)]);
        assert_eq!([3, 4, 5].map(|guid| zap_of(&root, guid).map(|id| id.0)), [Some(30), Some(40), Some(50)]);
        assert_eq!((zap_of(&root, 2), zap_of(&root, 9)), (None, None));
    }
}

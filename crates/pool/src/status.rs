//! States of vdevs and of the pool, from the vdev tree and the devices that were found.
//!
//! A leaf has the state in the configuration (offline, faulted, degraded, removed), or is online, or cannot be opened. A
//! leaf in service with a DTL is online, as in OpenZFS: it gets what it lacks by a resilver. A parent is degraded as long as
//! its redundancy suffices for its unusable children, and unavailable otherwise. A top-level vdev that lacks blocks because
//! the DTLs of its leaves overlap ([`crate::dtls::lost`] returns their txgs) is degraded, too.

use crate::config::{Class, VdevConfig, VdevKind};
use crate::dtls::{self, Dtls};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use weir_blocks::Dtl;

/// State of a vdev, or of a pool; a greater value is worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum VdevState {
    Online,
    Degraded,
    Offline,
    Removed,
    Faulted,
    Unavail,
}

impl fmt::Display for VdevState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VdevState::Online => "ONLINE",
            VdevState::Degraded => "DEGRADED",
            VdevState::Offline => "OFFLINE",
            VdevState::Removed => "REMOVED",
            VdevState::Faulted => "FAULTED",
            VdevState::Unavail => "UNAVAIL",
        })
    }
}

impl VdevState {
    /// Whether all blocks can be read.
    pub fn is_usable(self) -> bool {
        matches!(self, VdevState::Online | VdevState::Degraded)
    }
}

/// States of all vdevs of a tree, by GUID. Vdevs of GUID 0 (missing ones) are left out.
pub type States = BTreeMap<u64, VdevState>;

/// Health of a pool whose writes are suspended (`zpool_get_state_str`).
pub const SUSPENDED: &str = "SUSPENDED";

/// Returns the states of `root` and all vdevs below; `present` tells whether the device with a leaf's GUID was found.
pub fn states(root: &VdevConfig, present: &impl Fn(u64) -> bool, dtls: &Dtls) -> (VdevState, States) {
    let mut all = States::new();
    visit(root, &|leaf| leaf_state(leaf, present), &mut all);
    let mut tops = Vec::new();
    for top in &root.children {
        let state = all.get(&top.guid).copied().unwrap_or(VdevState::Unavail);
        let lacks = state == VdevState::Online && top.is_concrete() && !lost_by(top, &all, dtls).is_empty();
        let state = if lacks { VdevState::Degraded } else { state };
        all.insert(top.guid, state);
        tops.push(state);
    }
    let state = root_state(root, &tops);
    all.insert(root.guid, state);
    (state, all)
}

/// Marks leaves as removed that are used although their paths do not lead to them any more, and the vdevs above them as degraded.
/// Returns whether there are any.
pub fn mark_removed(vdev: &VdevConfig, gone: &BTreeSet<u64>, states: &mut States) -> bool {
    let mut below = false;
    for child in &vdev.children {
        below |= mark_removed(child, gone, states);
    }
    let is_gone = vdev.is_leaf() && gone.contains(&vdev.guid);
    let shown = if is_gone { VdevState::Removed } else { VdevState::Degraded };
    if let Some(state) = states.get_mut(&vdev.guid).filter(|_| is_gone || below) {
        *state = shown.max(*state);
    }
    is_gone || below
}

/// Txgs whose blocks a vdev cannot return, because too many of its leaves are unusable or have them in their DTLs.
pub fn lost_by(vdev: &VdevConfig, states: &States, dtls: &Dtls) -> Dtl {
    let usable = |guid: u64| states.get(&guid).is_some_and(|state| state.is_usable());
    dtls::lost(vdev, &|leaf| match usable(leaf.guid) {
        true => dtls.get(&leaf.guid).cloned().unwrap_or_default(),
        false => Dtl::all(),
    })
}

fn visit(vdev: &VdevConfig, leaf: &impl Fn(&VdevConfig) -> VdevState, all: &mut States) -> VdevState {
    let children: Vec<VdevState> = vdev.children.iter().map(|c| visit(c, leaf, all)).collect();
    let state = match vdev.kind {
        VdevKind::Disk | VdevKind::File | VdevKind::DraidSpare => leaf(vdev),
        VdevKind::Indirect | VdevKind::Hole => VdevState::Online,
        VdevKind::Missing => VdevState::Unavail,
        VdevKind::Root => root_state(vdev, &children),
        VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare => {
            by_redundancy(&children, children.len().saturating_sub(1))
        }
        VdevKind::Raidz { nparity } => by_redundancy(&children, nparity.into()),
        VdevKind::Draid { nparity, .. } => by_redundancy(&children, nparity.into()),
    };
    all.insert(vdev.guid, state);
    state
}

fn leaf_state(vdev: &VdevConfig, present: &impl Fn(u64) -> bool) -> VdevState {
    if vdev.offline {
        VdevState::Offline
    } else if vdev.faulted {
        // Present or not: a faulted device is not opened (`vdev_open`).
        VdevState::Faulted
    } else if vdev.kind != VdevKind::DraidSpare && !present(vdev.guid) {
        // A distributed spare exists as long as its dRAID vdev does.
        if vdev.removed { VdevState::Removed } else { VdevState::Unavail }
    } else if vdev.degraded {
        VdevState::Degraded
    } else {
        VdevState::Online
    }
}

fn by_redundancy(children: &[VdevState], tolerated: usize) -> VdevState {
    let unusable = children.iter().filter(|s| !s.is_usable()).count();
    if unusable > tolerated {
        VdevState::Unavail
    } else if children.iter().any(|s| *s != VdevState::Online) {
        VdevState::Degraded
    } else {
        VdevState::Online
    }
}

/// A missing log device costs the last synchronous writes, not the pool.
fn root_state(root: &VdevConfig, children: &[VdevState]) -> VdevState {
    let mut worst = VdevState::Online;
    for (vdev, state) in root.children.iter().zip(children) {
        let state = match *state {
            VdevState::Online => VdevState::Online,
            s if s.is_usable() || vdev.class == Class::Log => VdevState::Degraded,
            _ => VdevState::Unavail,
        };
        worst = worst.max(state);
    }
    worst
}

/// One line for each top-level vdev (except logs) that lacks more devices than its redundancy allows, with the name of
/// each missing device.
pub fn lacking(root: &VdevConfig, states: &States) -> Vec<String> {
    let mut out = Vec::new();
    for vdev in &root.children {
        let state = states.get(&vdev.guid).copied().unwrap_or(VdevState::Unavail);
        if state.is_usable() || vdev.class == Class::Log {
            continue;
        }
        if vdev.kind == VdevKind::Missing {
            out.push(format!("top-level vdev {}: none of its devices was found", vdev.id));
            continue;
        }
        let gone = vdev.leaves().into_iter().filter(|l| !states.get(&l.guid).is_some_and(|s| s.is_usable()));
        let gone: Vec<String> = gone
            .map(|l| match &l.path {
                Some(path) => format!("device {} (was {path})", l.guid),
                None => format!("device {}", l.guid),
            })
            .collect();
        out.push(format!("top-level vdev {} ({}) lacks {}", vdev.id, vdev.name(), gone.join(", ")));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_format::NvList;

    fn list(kind: &str, guid: u64, children: Vec<NvList>) -> NvList {
        let mut l = NvList::new();
        l.set("type", kind);
        l.set("guid", guid);
        l.set("path", format!("/dev/{guid}").as_str());
        if !children.is_empty() {
            l.set("children", children);
        }
        l
    }

    fn tree(kind: &str, parity: u64) -> VdevConfig {
        let leaves = (10..14).map(|g| list("disk", g, vec![])).collect();
        let mut top = list(kind, 2, leaves);
        top.set("nparity", parity);
        VdevConfig::parse(&list("root", 1, vec![top])).unwrap()
    }

    #[test]
    fn redundancy_decides() {
        for (kind, parity, tolerated) in [("mirror", 0, 3), ("raidz", 1, 1), ("raidz", 2, 2), ("raidz", 3, 3)] {
            let tree = tree(kind, parity);
            for gone in 0..=4u64 {
                let (state, all) = states(&tree, &|g| g >= 10 + gone, &Dtls::new());
                let expected = match gone {
                    0 => VdevState::Online,
                    n if n <= tolerated => VdevState::Degraded,
                    _ => VdevState::Unavail,
                };
                assert_eq!(state, expected, "{kind}{parity} without {gone}");
                assert_eq!(lacking(&tree, &all).len(), usize::from(gone > tolerated));
            }
        }
    }

    #[test]
    fn a_leaf_with_a_dtl_is_online_as_long_as_others_have_the_blocks() {
        for kind in ["mirror", "raidz"] {
            let tree = tree(kind, 1);
            let dtl: Dtl = vec![(weir_format::Txg(5), weir_format::Txg(9))].into();
            let of = |guids: &[u64]| guids.iter().map(|guid| (*guid, dtl.clone())).collect::<Dtls>();
            let (state, all) = states(&tree, &|_| true, &of(&[12]));
            assert_eq!((state, all[&2], all[&12]), (VdevState::Online, VdevState::Online, VdevState::Online));
            let (state, all) = states(&tree, &|_| true, &of(&[10, 11, 12, 13]));
            assert_eq!((state, all[&2], all[&12]), (VdevState::Degraded, VdevState::Degraded, VdevState::Online));
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let tree = tree("raidz", 1);
        let (_, all) = states(&tree, &|g| g > 11, &Dtls::new());
        let lines = lacking(&tree, &all);
        assert_eq!(lines, ["top-level vdev 0 (raidz1-0) lacks device 10 (was /dev/10), device 11 (was /dev/11)"]);
    }
}

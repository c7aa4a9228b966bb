//! DTLs (dirty time logs) of a pool's leaves: the txgs whose writes a leaf lacks, and what these mean for redundancy.
//!
//! ```text
//!   space map of the leaf in the MOS (`DTL` in its configuration), whose segments are txgs instead of bytes
//!     ∪ label of the leaf older than those of its top-level vdev: every txg since its last label or uberblock
//!     = DTL of the leaf
//! ```
//!
//! The labels show that a leaf was away even if the MOS has no DTL, because the program that wrote the pool kept none,
//! or because the leaf is an older copy of itself. The labels of all leaves below a top-level vdev are rewritten
//! together, so a leaf with older labels was away then, or has been away since. A leaf that returns gets new labels; its
//! newest uberblock shows until when it was there.
//!
//! A block cannot be read if it was born in a txg that is in more DTLs than its vdev has redundancy ([`lost`]). A leaf
//! is required if its absence would add such txgs ([`is_required`]).
//!
//! Source: OpenZFS `module/zfs/vdev.c` (`vdev_dtl_load`, `vdev_dtl_reassess`, `vdev_dtl_required`).

use crate::config::{VdevConfig, VdevKind};
use crate::mos::Mos;
use crate::ranges::Ranges;
use crate::scan::Device;
use crate::space_map_loader::each_segment;
use std::collections::BTreeMap;
use weir_blocks::Dtl;
use weir_dmu::ObjectError;
use weir_format::space_map::{SpaceKind, SpaceSegment};
use weir_format::{ObjectId, Txg};
use weir_machine::Request;

/// Non-empty DTLs by the GUID of their leaf.
pub type Dtls = BTreeMap<u64, Dtl>;

/// Reads the DTLs in the MOS, up to `last`, the txg of the uberblock in use, because no device lacks later txgs. A DTL
/// that cannot be read is taken for one of all txgs up to `last`.
pub async fn read_all(rq: &Request, mos: &Mos, tree: &VdevConfig, last: Txg) -> Dtls {
    let mut out = Dtls::new();
    for leaf in tree.leaves().into_iter().filter(|l| l.dtl_object != 0) {
        let dtl = match read(rq, mos, ObjectId(leaf.dtl_object)).await {
            Ok(dtl) => dtl.until(last),
            Err(error) => {
                tracing::warn!(guid = leaf.guid, %error, "cannot read the DTL of a device");
                Dtl::all().until(last)
            }
        };
        if !dtl.is_empty() {
            out.insert(leaf.guid, dtl);
        }
    }
    out
}

async fn read(rq: &Request, mos: &Mos, id: ObjectId) -> Result<Dtl, ObjectError> {
    let mut txgs = Ranges::default();
    let mut each = |s: SpaceSegment| match s.kind {
        SpaceKind::Alloc => drop(txgs.add(s.offset_bytes, s.length_bytes)),
        SpaceKind::Free => drop(txgs.remove(s.offset_bytes, s.length_bytes)),
    };
    each_segment(rq, mos, id, 0, &mut each).await?;
    Ok(txgs.iter().map(|(start, len)| (Txg(start), Txg(start + len - 1))).collect::<Vec<_>>().into())
}

/// Returns the newest txg of the labels of a top-level vdev's leaves. Labels are written before the uberblock of their
/// txg, so that after a power failure only some leaves may have new ones. Labels of txgs after `last`, the txg of the
/// uberblock in use, are therefore ignored.
pub fn newest_label(top: &VdevConfig, devices: &BTreeMap<u64, Device>, last: Txg) -> Txg {
    let devices = top.leaves().into_iter().filter_map(|leaf| devices.get(&leaf.guid));
    devices.filter_map(|device| device.labels.txg_until(last)).max().unwrap_or_default()
}

/// DTL that a device's labels imply: if they are older than `newest`, every txg after its newest label and uberblock,
/// up to `last`.
pub fn by_labels(device: &Device, newest: Txg, last: Txg) -> Dtl {
    let mut out = Dtl::default();
    let Some(label) = device.labels.txg_until(last).filter(|txg| *txg < newest) else { return out };
    let uberblocks = device.labels.ring.iter().map(|slot| slot.uberblock.txg).filter(|txg| *txg <= last);
    let seen = uberblocks.fold(label, Txg::max);
    if seen < last {
        out.add(Txg(seen.0 + 1), last);
    }
    out
}

/// DTLs that the labels of a pool imply, for the uberblock of txg `last`.
pub fn all_by_labels(root: &VdevConfig, devices: &BTreeMap<u64, Device>, last: Txg) -> Dtls {
    let mut out = Dtls::new();
    for top in &root.children {
        let newest = newest_label(top, devices, last);
        let leaves = top.leaves().into_iter().filter_map(|leaf| Some((leaf.guid, devices.get(&leaf.guid)?)));
        out.extend(leaves.map(|(guid, device)| (guid, by_labels(device, newest, last))).filter(|(_, d)| !d.is_empty()));
    }
    out
}

/// Txgs whose blocks a vdev cannot return; `of_leaf` returns the DTL of a leaf ([`Dtl::all`] if the leaf is absent).
pub fn lost(vdev: &VdevConfig, of_leaf: &impl Fn(&VdevConfig) -> Dtl) -> Dtl {
    let tolerated = match vdev.kind {
        // In a row that a failed device has for a distributed spare, it has no column of its own: it counts once.
        VdevKind::Disk | VdevKind::File | VdevKind::DraidSpare => return of_leaf(vdev),
        VdevKind::Indirect | VdevKind::Hole => return Dtl::default(),
        VdevKind::Missing => return Dtl::all(),
        VdevKind::Root => 0,
        VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare => vdev.children.len().saturating_sub(1),
        VdevKind::Raidz { nparity } | VdevKind::Draid { nparity, .. } => usize::from(nparity),
    };
    let children: Vec<Dtl> = vdev.children.iter().map(|child| lost(child, of_leaf)).collect();
    Dtl::in_more_than(tolerated, &children)
}

/// Whether the leaf `guid` is required, because without it more txgs would be unreadable. `false` means that it may be
/// taken offline or detached.
pub fn is_required(root: &VdevConfig, guid: u64, of_leaf: &impl Fn(&VdevConfig) -> Dtl) -> bool {
    let without = |leaf: &VdevConfig| if leaf.guid == guid { Dtl::all() } else { of_leaf(leaf) };
    lost(root, &without) != lost(root, of_leaf)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_format::NvList;

    fn vdev(kind: &str, guid: u64, children: Vec<NvList>) -> NvList {
        let mut list = NvList::new();
        list.set("type", kind);
        list.set("guid", guid);
        list.set("nparity", 1u64);
        if !children.is_empty() {
            list.set("children", children);
        }
        list
    }

    fn tree(kind: &str) -> VdevConfig {
        let leaves = (10..13).map(|guid| vdev("disk", guid, vec![])).collect();
        VdevConfig::parse(&vdev("root", 1, vec![vdev(kind, 2, leaves)])).unwrap()
    }

    fn dtl(first: u64, last: u64) -> Dtl {
        vec![(Txg(first), Txg(last))].into()
    }

    #[test]
    fn a_dtl_counts_for_no_redundancy() {
        let dtls = Dtls::from([(11, dtl(120, 340))]);
        let of_leaf = |leaf: &VdevConfig| dtls.get(&leaf.guid).cloned().unwrap_or_default();
        let raidz = tree("raidz");
        assert!(lost(&raidz, &of_leaf).is_empty());
        assert!(is_required(&raidz, 10, &of_leaf) && is_required(&raidz, 12, &of_leaf));
        assert!(!is_required(&raidz, 11, &of_leaf), "no block needs it");
        let without = |leaf: &VdevConfig| if leaf.guid == 10 { Dtl::all() } else { of_leaf(leaf) };
        assert_eq!(lost(&raidz, &without), dtl(120, 340));
        let mirror = tree("mirror");
        assert!(lost(&mirror, &without).is_empty());
        assert!(is_required(&mirror, 12, &without) && !is_required(&mirror, 11, &without));
    }
}

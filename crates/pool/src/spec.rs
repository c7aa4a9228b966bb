//! From the configuration's vdev tree and the devices found to what `weir-blocks` builds its tree from.

use crate::config::{VdevConfig, VdevKind};
use crate::scan::Device;
use std::collections::BTreeMap;
use weir_blocks::vdev::{Expansion, Reflow};
use weir_blocks::{VdevSpec, draid};
use weir_format::{Txg, Uberblock};

/// What is known besides the configuration.
pub struct Facts<'a> {
    /// Devices by the GUID of their leaf.
    pub devices: &'a BTreeMap<u64, Device>,
    /// What each leaf missed, by its GUID: inclusive ranges of transaction groups.
    pub dtls: &'a BTreeMap<u64, Vec<(Txg, Txg)>>,
    /// The uberblock in use.
    pub uberblock: &'a Uberblock,
    /// The pool is to be written: who may not be written to is not read from either.
    pub writing: bool,
}

/// The top-level vdevs.
pub fn specs(root: &VdevConfig, facts: &Facts<'_>) -> Vec<VdevSpec> {
    root.children.iter().map(|top| spec(top, root, facts, newest_label(top, facts))).collect()
}

/// The newest label txg among a top-level vdev's leaves: they are rewritten together, so an older one was away. Labels are
/// written before the uberblock that makes their group true, so that a power cut may leave them new on some leaves only:
/// those of groups after the uberblock's tell nothing.
fn newest_label(top: &VdevConfig, facts: &Facts<'_>) -> Txg {
    let devices = top.leaves().into_iter().filter_map(|l| facts.devices.get(&l.guid));
    devices.filter_map(|d| d.labels.txg_until(facts.uberblock.txg)).max().unwrap_or_default()
}

fn spec(vdev: &VdevConfig, root: &VdevConfig, facts: &Facts<'_>, newest: Txg) -> VdevSpec {
    let children = vdev.children.iter().map(|c| spec(c, root, facts, newest)).collect();
    let mut out = VdevSpec::inner(vdev.id, vdev.guid, vdev.name(), kind(vdev, root, facts), children);
    if vdev.is_leaf() {
        let is_off = vdev.offline || vdev.faulted;
        let device = facts.devices.get(&vdev.guid).filter(|_| !(facts.writing && is_off));
        out.disk = device.map(|d| d.disk.clone());
        out.stale =
            is_off || device.is_some_and(|d| d.labels.txg_until(facts.uberblock.txg).is_some_and(|txg| txg < newest));
        out.dtl = facts.dtls.get(&vdev.guid).cloned().unwrap_or_default();
        if let Some(device) = device {
            out.name = device.name();
        }
    }
    out.top(vdev.ashift as u32, vdev.asize_bytes)
}

fn kind(vdev: &VdevConfig, root: &VdevConfig, facts: &Facts<'_>) -> weir_blocks::VdevKind {
    use weir_blocks::VdevKind as To;
    match vdev.kind {
        VdevKind::Disk => To::Disk,
        VdevKind::File => To::File,
        VdevKind::Mirror => To::Mirror,
        VdevKind::Replacing => To::Replacing,
        VdevKind::Spare => To::Spare,
        VdevKind::Raidz { parity } => To::Raidz { nparity: parity.into(), expansion: expansion(vdev, facts.uberblock) },
        VdevKind::Draid { parity, data, spares, groups } => To::Draid(draid::Layout {
            ndata: data.into(),
            nparity: parity.into(),
            nspares: spares.into(),
            ngroups: groups.into(),
            children: vdev.children.len() as u64,
            width: vdev.children.len() as u64,
        }),
        VdevKind::DraidSpare => {
            let top = root.children.iter().position(|t| Some(t.guid) == vdev.draid_spare.map(|s| s.0));
            To::DraidSpare {
                top: top.map_or(u32::MAX, |t| t as u32),
                spare: vdev.draid_spare.map_or(u64::MAX, |s| s.1),
            }
        }
        VdevKind::Indirect => To::Indirect,
        VdevKind::Hole => To::Hole,
        VdevKind::Missing | VdevKind::Root => To::Missing,
    }
}

fn expansion(vdev: &VdevConfig, uberblock: &Uberblock) -> Option<Expansion> {
    if vdev.raidz_expand_txgs.is_empty() && !vdev.raidz_expanding {
        return None;
    }
    let reflow = vdev.raidz_expanding.then_some(Reflow {
        offset_bytes: uberblock.reflow.offset_bytes,
        scratch: uberblock.reflow.scratch_state == 1,
    });
    Some(Expansion { txgs: vdev.raidz_expand_txgs.clone(), reflow })
}

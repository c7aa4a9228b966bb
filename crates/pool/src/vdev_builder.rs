//! Converts the configuration's vdev tree and the devices that were found into the specification of `weir-blocks`'
//! tree.

use crate::config::{VdevConfig, VdevKind};
use crate::dtls::{self, Dtls};
use crate::scan::Device;
use std::collections::BTreeMap;
use weir_blocks::vdev::{DistributedSpare, Expansion, Reflow};
use weir_blocks::{Dtl, VdevSpec};
use weir_format::{Txg, Uberblock};

/// Facts besides the configuration.
pub struct Facts<'a> {
    /// Devices by the GUID of their leaf.
    pub devices: &'a BTreeMap<u64, Device>,
    /// DTLs in the MOS.
    pub dtls: &'a Dtls,
    /// The uberblock in use.
    pub uberblock: &'a Uberblock,
    /// Whether the pool is opened for writing: a leaf that must not be written is then not read either.
    pub writing: bool,
}

/// Specifications of the top-level vdevs.
pub fn specs(root: &VdevConfig, facts: &Facts<'_>) -> Vec<VdevSpec> {
    let newest = |top| dtls::newest_label(top, facts.devices, facts.uberblock.txg);
    root.children.iter().map(|top| spec(top, root, facts, newest(top))).collect()
}

fn spec(vdev: &VdevConfig, root: &VdevConfig, facts: &Facts<'_>, newest: Txg) -> VdevSpec {
    let children = vdev.children.iter().map(|c| spec(c, root, facts, newest)).collect();
    let mut out = VdevSpec::inner(vdev.id, vdev.guid, vdev.name(), vdev.kind, children);
    out.expansion = expansion(vdev, facts.uberblock);
    out.distributed_spare = distributed_spare(vdev, root);
    if vdev.is_leaf() {
        let is_off = vdev.offline || vdev.faulted;
        let device = facts.devices.get(&vdev.guid).filter(|_| !(facts.writing && vdev.offline));
        out.disk = device.map(|d| d.disk.clone());
        // `zpool clear` puts a faulted leaf back into service.
        out.faulted = facts.writing && vdev.faulted;
        if vdev.kind == VdevKind::DraidSpare {
            // It has no device that could be left out.
            out.faulted = facts.writing && is_off;
        }
        out.dtl = facts.dtls.get(&vdev.guid).cloned().unwrap_or_default();
        if let Some(device) = device {
            out.name = device.name();
            out.dtl.add_all(&dtls::by_labels(device, newest, facts.uberblock.txg));
        }
        // If the pool is only read, the leaf is read last; if it is written, its DTL stays.
        if is_off && !facts.writing {
            out.dtl = Dtl::all();
        }
    }
    out.top(vdev.ashift as u32, vdev.asize_bytes)
}

fn distributed_spare(vdev: &VdevConfig, root: &VdevConfig) -> Option<DistributedSpare> {
    let (guid, spare) = vdev.draid_spare?;
    let top = root.children.iter().position(|top| top.guid == guid)?;
    Some(DistributedSpare { top: top as u32, spare })
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

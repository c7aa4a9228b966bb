//! Builds the vdev tree from its description, and checks every number in it.

use super::distributed_spare::{NoBytes, SpareVdev};
use super::indirect::Indirect;
use super::kind::VdevKind;
use super::leaf::Leaf;
use super::reflow::ReflowState;
use super::spec::{DistributedSpare, Expansion, TreeError, VdevSpec};
use super::tree::Top;
use super::{Body, Dtl, RaidzVdev, Vdev};
use crate::draid;
use crate::fault_observer::FaultNotifier;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use weir_machine::{Clock, Disk};

/// Maximum depth of vdevs: raidz → spare → replacing → disk is four; an invalid configuration may have any depth.
const MAX_DEPTH: u32 = 8;
/// Maximum number of children of a vdev (`VDEV_RAIDZ_MAX_COLS` and the limit of dRAID are 255).
const MAX_CHILDREN: usize = 255;
/// Maximum number of top-level vdevs: holes fill gaps in the ids, so an invalid id must not determine their number.
const MAX_TOPS: u64 = 1 << 16;

/// Parts of a present tree by GUID, which the next version shares.
#[derive(Default)]
pub(super) struct SharedParts {
    pub leaves: BTreeMap<u64, Arc<Leaf>>,
    pub removed: BTreeMap<u64, Arc<Indirect>>,
    pub reflows: BTreeMap<u64, Arc<ReflowState>>,
}

/// Builds top-level vdevs from their description, with the parts of `known`.
pub(super) fn build(
    specs: Vec<VdevSpec>,
    known: &SharedParts,
    notifier: &FaultNotifier,
    clock: &Clock,
) -> Result<Vec<Arc<Top>>, TreeError> {
    let mut spares = BTreeSet::new();
    specs.iter().try_for_each(|spec| check_spares(spec, &mut spares, 0))?;
    let builder = Builder { known, notifier, clock };
    sorted(specs)?.into_iter().map(|spec| builder.top(spec).map(Arc::new)).collect()
}

/// Checks that each distributed spare occurs once: its space holds the blocks of one device.
fn check_spares(spec: &VdevSpec, known: &mut BTreeSet<(u32, u64)>, depth: u32) -> Result<(), TreeError> {
    if let Some(DistributedSpare { top, spare }) = spec.distributed_spare
        && !known.insert((top, spare))
    {
        let field = "distributed spare (it is in use already)";
        return Err(TreeError::Field { vdev: spec.name.clone(), field, value: spare });
    }
    // Deeper trees are refused.
    let children = spec.children.iter().take_while(|_| depth <= MAX_DEPTH);
    children.into_iter().try_for_each(|child| check_spares(child, known, depth + 1))
}

/// Sorts the top-level vdevs by id, and fills gaps with holes.
fn sorted(mut specs: Vec<VdevSpec>) -> Result<Vec<VdevSpec>, TreeError> {
    specs.sort_by_key(|s| s.id);
    let mut out: Vec<VdevSpec> = Vec::with_capacity(specs.len());
    for spec in specs {
        let field = |field, value| TreeError::Field { vdev: spec.name.clone(), field, value };
        if spec.id >= MAX_TOPS || spec.id < out.len() as u64 {
            return Err(field("id", spec.id));
        }
        let no_space = matches!(spec.kind, VdevKind::Hole | VdevKind::Missing);
        if !no_space && !(9..=16).contains(&spec.ashift) {
            return Err(field("ashift", spec.ashift.into()));
        }
        while (out.len() as u64) < spec.id {
            out.push(VdevSpec { kind: VdevKind::Hole, ..VdevSpec::leaf(out.len() as u64, 0, "hole", None) });
        }
        out.push(spec);
    }
    Ok(out)
}

struct Builder<'a> {
    known: &'a SharedParts,
    notifier: &'a FaultNotifier,
    clock: &'a Clock,
}

impl Builder<'_> {
    fn top(&self, spec: VdevSpec) -> Result<Top, TreeError> {
        let ashift = spec.ashift;
        let asize_bytes = spec.asize_bytes;
        Ok(Top { ashift, asize_bytes, vdev: self.vdev(spec, ashift, 0)? })
    }

    fn leaf(&self, guids: (u64, u64), name: &str, disk: Option<Arc<dyn Disk>>, faulted: bool, dtl: Dtl) -> Arc<Leaf> {
        let (guid, former) = guids;
        if let Some(leaf) = self.known.leaves.get(&former) {
            return leaf.clone();
        }
        let leaf = Leaf::new(guid, name.to_owned(), dtl, self.notifier, self.clock);
        if let Some(disk) = disk {
            let is_set = leaf.set_disk(disk, faulted, self.clock);
            debug_assert!(is_set, "a new leaf has no disk yet");
        }
        Arc::new(leaf)
    }

    fn vdev(&self, spec: VdevSpec, ashift: u32, depth: u32) -> Result<Vdev, TreeError> {
        let VdevSpec {
            guid, former_guid, name, kind, expansion, distributed_spare, children, disk, faulted, dtl, ..
        } = spec;
        let bad = |field, value| Err(TreeError::Field { vdev: name.clone(), field, value });
        if depth > MAX_DEPTH {
            return bad("depth", depth.into());
        }
        if children.len() > MAX_CHILDREN {
            return bad("number of children", children.len() as u64);
        }
        let count = children.len();
        let children: Vec<Vdev> =
            children.into_iter().map(|child| self.vdev(child, ashift, depth + 1)).collect::<Result<_, _>>()?;
        let body = match kind {
            VdevKind::Disk | VdevKind::File => {
                Body::Leaf(self.leaf((guid, former_guid.unwrap_or(guid)), &name, disk, faulted, dtl))
            }
            VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare if count == 0 => {
                return bad("number of children", 0);
            }
            VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare => Body::Mirror(children),
            VdevKind::Raidz { nparity } => {
                let expansion = expansion.unwrap_or_default();
                let known = self.known.reflows.get(&guid).cloned();
                Body::Raidz(raidz(&name, ashift, nparity, (expansion, known), children)?)
            }
            VdevKind::Draid { nparity, ndata, nspares, ngroups } => {
                let layout = draid::Layout {
                    ndata: ndata.into(),
                    nparity: nparity.into(),
                    nspares: nspares.into(),
                    ngroups: ngroups.into(),
                    children: count as u64,
                    width: count as u64,
                };
                let map = draid::Map::new(layout, ashift);
                let map = map.map_err(|error| TreeError::Draid { vdev: name.clone(), error })?;
                Body::Draid { map, children }
            }
            VdevKind::DraidSpare => match distributed_spare {
                Some(DistributedSpare { top, spare }) => {
                    let leaf = self.leaf((guid, guid), &name, Some(Arc::new(NoBytes)), faulted, dtl);
                    Body::DraidSpare(SpareVdev { top, spare, leaf })
                }
                None => Body::Unsupported("a distributed spare of an unknown vdev"),
            },
            VdevKind::Indirect => Body::Indirect(self.known.removed.get(&guid).cloned().unwrap_or_default()),
            VdevKind::Hole => Body::Unsupported("a hole among the vdevs"),
            VdevKind::Missing | VdevKind::Root => Body::Unsupported("a vdev that the configuration does not describe"),
        };
        Ok(Vdev { name, guid, body })
    }
}

fn raidz(
    name: &str,
    ashift: u32,
    nparity: u8,
    (expansion, known): (Expansion, Option<Arc<ReflowState>>),
    children: Vec<Vdev>,
) -> Result<RaidzVdev, TreeError> {
    let bad = |field, value| Err(TreeError::Field { vdev: name.to_owned(), field, value });
    if !(1..=3).contains(&nparity) {
        return bad("parity", nparity.into());
    }
    if children.len() <= nparity as usize {
        return bad("number of children", children.len() as u64);
    }
    let expansions = expansion.txgs.len() + usize::from(expansion.reflow.is_some());
    if children.len() - nparity as usize <= expansions {
        return bad("number of expansions", expansions as u64);
    }
    let Expansion { txgs: expansion_txgs, reflow } = expansion;
    let reflow = reflow.map(|synced| known.unwrap_or_else(|| Arc::new(ReflowState::new(synced))));
    Ok(RaidzVdev { ashift, nparity: nparity.into(), expansion_txgs, reflow, children })
}

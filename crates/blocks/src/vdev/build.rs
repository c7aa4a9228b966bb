//! Builds the vdev tree from its description, and checks every number in it.

use super::deadline::WatchedDisk;
use super::indirect::Indirect;
use super::kind::VdevKind;
use super::leaf::Leaf;
use super::spec::{DistributedSpare, Expansion, TreeError, VdevSpec};
use super::{Body, RaidzVdev, Top, Tree, Vdev};
use crate::draid;
use crate::fault_observer::FaultNotifier;
use crate::suspension::Suspension;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use weir_machine::{Accounts, Clock};

/// Maximum depth of vdevs: raidz → spare → replacing → disk is four; an invalid configuration may have any depth.
const MAX_DEPTH: u32 = 8;
/// Maximum number of children of a vdev (`VDEV_RAIDZ_MAX_COLS` and the limit of dRAID are 255).
const MAX_CHILDREN: usize = 255;
/// Maximum number of top-level vdevs: holes fill gaps in the ids, so an invalid id must not determine their number.
const MAX_TOPS: u64 = 1 << 16;

/// Maximum number of top-level vdevs that can be added to a tree.
const MAX_ADDED_VDEVS: usize = 64;

impl Tree {
    /// Builds the tree from the description of the pool's top-level vdevs; a vdev's `id` is its index.
    ///
    /// # Errors
    /// [`TreeError`] for numbers that no pool has (sector sizes, parities, numbers of children, depth).
    pub fn new(specs: Vec<VdevSpec>, clock: &Clock) -> Result<Arc<Tree>, TreeError> {
        let notifier = FaultNotifier::default();
        let tops = sorted(specs)?.into_iter().map(|spec| Ok(OnceLock::from(Top::build(spec, &notifier, clock)?)));
        let mut tops = tops.collect::<Result<Vec<_>, TreeError>>()?;
        tops.resize_with(tops.len() + MAX_ADDED_VDEVS, OnceLock::new);
        Ok(Arc::new(Tree {
            tops: tops.into(),
            writable: AtomicBool::new(false),
            in_progress: AtomicU64::new(0),
            notifier,
            accounts: Arc::new(Accounts::new(clock)),
            clock: clock.clone(),
            suspension: Suspension::default(),
        }))
    }

    /// Adds a top-level vdev behind the last one. The vdev is not used before space is allocated on it.
    ///
    /// # Errors
    /// [`TreeError`] as for a new tree; also if its index is not the next, or if 64 vdevs were added already.
    pub fn add(&self, spec: VdevSpec) -> Result<(), TreeError> {
        let vdev = spec.name.clone();
        let value = spec.id;
        let index = || TreeError::Field { vdev: vdev.clone(), field: "id", value };
        if value != self.len() as u64 {
            return Err(index());
        }
        let top = Top::build(spec, &self.notifier, &self.clock)?;
        let slot = self.tops.get(self.len()).ok_or_else(index)?;
        slot.set(top).map_err(|_| index())
    }
}

impl Top {
    fn build(spec: VdevSpec, notifier: &FaultNotifier, clock: &Clock) -> Result<Top, TreeError> {
        let ashift = spec.ashift;
        let asize_bytes = spec.asize_bytes;
        Ok(Top { ashift, asize_bytes, vdev: Vdev::build(spec, ashift, 0, notifier, clock)? })
    }
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

impl Vdev {
    fn build(
        spec: VdevSpec,
        ashift: u32,
        depth: u32,
        notifier: &FaultNotifier,
        clock: &Clock,
    ) -> Result<Vdev, TreeError> {
        let VdevSpec { guid, name, kind, expansion, distributed_spare, children, disk, faulted, dtl, .. } = spec;
        let bad = |field, value| Err(TreeError::Field { vdev: name.clone(), field, value });
        if depth > MAX_DEPTH {
            return bad("depth", depth.into());
        }
        if children.len() > MAX_CHILDREN {
            return bad("number of children", children.len() as u64);
        }
        let count = children.len();
        let children: Vec<Vdev> = children
            .into_iter()
            .map(|c| Vdev::build(c, ashift, depth + 1, notifier, clock))
            .collect::<Result<_, _>>()?;
        let body = match kind {
            VdevKind::Disk | VdevKind::File => {
                Body::Leaf(Leaf::new(disk.map(|disk| WatchedDisk::new(disk, clock)), faulted, dtl, notifier))
            }
            VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare if count == 0 => {
                return bad("number of children", 0);
            }
            VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare => Body::Mirror(children),
            VdevKind::Raidz { nparity } => {
                Body::Raidz(raidz(&name, ashift, nparity, expansion.unwrap_or_default(), children)?)
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
                Some(DistributedSpare { top, spare }) => Body::DraidSpare { top, spare },
                None => Body::Unsupported("a distributed spare of an unknown vdev"),
            },
            VdevKind::Indirect => Body::Indirect(Indirect::default()),
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
    expansion: Expansion,
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
    Ok(RaidzVdev { ashift, nparity: nparity.into(), expansion, children })
}

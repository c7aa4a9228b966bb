//! The pure description that a tree is built from.

use super::indirect::Indirect;
use super::kind::VdevKind;
use super::leaf::Leaf;
use super::{Body, Dtl, RaidzVdev, Vdev};
use crate::draid;
use crate::fault_observer::FaultNotifier;
use std::fmt;
use std::sync::Arc;
use thiserror::Error;
use weir_machine::Disk;

/// Maximum depth of vdevs: raidz → spare → replacing → disk is four; an invalid configuration may have any depth.
const MAX_DEPTH: u32 = 8;
/// Most children of a vdev (`VDEV_RAIDZ_MAX_COLS` and the limit of dRAID are 255).
const MAX_CHILDREN: usize = 255;
/// Maximum number of top-level vdevs: holes fill gaps in the ids, so an invalid id must not determine their number.
const MAX_TOPS: u64 = 1 << 16;

/// Expansions of a RAID-Z vdev (`raidz_expand_txgs` and `raidz_expanding` of its configuration).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expansion {
    /// Txgs in which completed expansions took effect, ascending.
    pub txgs: Vec<u64>,
    /// The expansion in progress.
    pub reflow: Option<Reflow>,
}

/// Progress of an expansion, by the uberblock's `raidz_reflow_info`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reflow {
    /// Bytes of the vdev's space that are in the new layout.
    pub offset_bytes: u64,
    /// Whether the first of them are still in the scratch area in front of the allocatable space.
    pub scratch: bool,
}

/// Place of a distributed spare: the dRAID vdev that provides its space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DistributedSpare {
    /// Id of the dRAID top-level vdev.
    pub top: u32,
    /// Number of the spare in it.
    pub spare: u64,
}

/// A vdev, as a pool's configuration describes it.
#[derive(Clone)]
pub struct VdevSpec {
    /// Index among its siblings; of a top-level vdev, what addresses name it by.
    pub id: u64,
    /// GUID of the vdev.
    pub guid: u64,
    /// Name in the output of tools: a path, `mirror-0`.
    pub name: String,
    /// Kind of the vdev.
    pub kind: VdevKind,
    /// Expansions of a RAID-Z vdev; `None` if there were none.
    pub expansion: Option<Expansion>,
    /// Place of a distributed spare; `None` for other kinds, and for a spare of an unknown vdev.
    pub distributed_spare: Option<DistributedSpare>,
    /// log2 of the sector size; of top-level vdevs only.
    pub ashift: u32,
    /// Allocatable bytes (`asize`), 0 if unknown; of top-level vdevs only.
    pub asize_bytes: u64,
    /// Children of the vdev.
    pub children: Vec<VdevSpec>,
    /// The disk behind a leaf; `None` if it is missing or must not be used.
    pub disk: Option<Arc<dyn Disk>>,
    /// The txgs whose writes the leaf lacks.
    pub dtl: Dtl,
}

impl VdevSpec {
    /// A leaf over `disk`.
    pub fn leaf(id: u64, guid: u64, name: impl Into<String>, disk: Option<Arc<dyn Disk>>) -> Self {
        VdevSpec {
            id,
            guid,
            name: name.into(),
            kind: VdevKind::File,
            expansion: None,
            distributed_spare: None,
            ashift: 0,
            asize_bytes: 0,
            children: Vec::new(),
            disk,
            dtl: Dtl::default(),
        }
    }

    /// A vdev of `children`.
    pub fn inner(id: u64, guid: u64, name: impl Into<String>, kind: VdevKind, children: Vec<VdevSpec>) -> Self {
        VdevSpec { kind, children, ..VdevSpec::leaf(id, guid, name, None) }
    }

    /// Makes it a top-level vdev.
    pub fn top(self, ashift: u32, asize_bytes: u64) -> Self {
        VdevSpec { ashift, asize_bytes, ..self }
    }
}

impl fmt::Debug for VdevSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VdevSpec")
            .field("id", &self.id)
            .field("name", &self.name)
            .field("kind", &self.kind)
            .field("ashift", &self.ashift)
            .field("present", &self.disk.is_some())
            .field("children", &self.children)
            .finish_non_exhaustive()
    }
}

/// Why a description is not one of a pool's devices.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TreeError {
    /// A number out of its range.
    #[error("vdev {vdev}: {field} = {value} is not possible")]
    Field {
        /// The vdev's name.
        vdev: String,
        /// Which number.
        field: &'static str,
        /// Value of the parameter.
        value: u64,
    },
    /// A dRAID layout that cannot be.
    #[error("vdev {vdev}: {error}")]
    Draid {
        /// The vdev's name.
        vdev: String,
        /// Why.
        error: draid::LayoutError,
    },
}

/// The top-level vdevs in the order of their ids, gaps filled with holes.
pub(super) fn sorted(mut specs: Vec<VdevSpec>) -> Result<Vec<VdevSpec>, TreeError> {
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
    pub(super) fn build(spec: VdevSpec, ashift: u32, depth: u32, notifier: &FaultNotifier) -> Result<Vdev, TreeError> {
        let VdevSpec { guid, name, kind, expansion, distributed_spare, children, disk, dtl, .. } = spec;
        let bad = |field, value| Err(TreeError::Field { vdev: name.clone(), field, value });
        if depth > MAX_DEPTH {
            return bad("depth", depth.into());
        }
        if children.len() > MAX_CHILDREN {
            return bad("number of children", children.len() as u64);
        }
        let count = children.len();
        let children: Vec<Vdev> =
            children.into_iter().map(|c| Vdev::build(c, ashift, depth + 1, notifier)).collect::<Result<_, _>>()?;
        let body = match kind {
            VdevKind::Disk | VdevKind::File => Body::Leaf(Leaf::new(disk, dtl, notifier)),
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

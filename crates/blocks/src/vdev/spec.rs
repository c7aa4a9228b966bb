//! The pure description that a tree is built from.

use super::dtl::Dtl;
use super::kind::VdevKind;
use crate::draid;
use std::fmt;
use std::sync::Arc;
use thiserror::Error;
use weir_machine::Disk;

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
    /// GUID that a present leaf has so far, if the tree is replaced by one in which it has another.
    pub former_guid: Option<u64>,
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
    /// Whether the disk is out of service until [`super::Tree::put_back`].
    pub faulted: bool,
    /// The txgs whose writes the leaf lacks.
    pub dtl: Dtl,
}

impl VdevSpec {
    /// A leaf over `disk`.
    pub fn leaf(id: u64, guid: u64, name: impl Into<String>, disk: Option<Arc<dyn Disk>>) -> Self {
        VdevSpec {
            id,
            guid,
            former_guid: None,
            name: name.into(),
            kind: VdevKind::File,
            expansion: None,
            distributed_spare: None,
            ashift: 0,
            asize_bytes: 0,
            children: Vec::new(),
            disk,
            faulted: false,
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

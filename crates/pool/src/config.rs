//! The vdev tree in labels and in the MOS (OpenZFS `module/zfs/spa_config.c`, `module/zfs/vdev.c`).
//!
//! A label has only its own top-level vdev; the MOS configuration has all of them. Both have the same nvlist format,
//! which is decoded here. Nothing is trusted: the limits of depth and width are those of the format.

use crate::error::PoolError;
use weir_blocks::alloc::{RaidzSizing, Sizing};
pub use weir_blocks::{Class, VdevKind};
use weir_format::{DecodeError, NvList, Txg};

/// Maximum depth of a tree: root, top-level, replacing or spare, leaf, and one more nesting of the latter two.
const MAX_DEPTH: usize = 8;
/// Maximum number of children of a vdev, more than any real one has.
const MAX_CHILDREN: usize = 16_384;

/// One vdev of the tree.
#[derive(Clone, Debug)]
pub struct VdevConfig {
    /// Kind of the vdev.
    pub kind: VdevKind,
    /// GUID of the vdev.
    pub guid: u64,
    /// Index of the vdev below its parent.
    pub id: u64,
    /// Path of the device when the configuration was written.
    pub path: Option<String>,
    /// Device id (devid), if any.
    pub devid: Option<String>,
    /// Whether the vdev has a whole disk: the path is that of its first partition.
    pub whole_disk: bool,
    /// log2 of the sector size; of top-level vdevs only.
    pub ashift: u64,
    /// Allocatable bytes; of top-level vdevs only.
    pub asize_bytes: u64,
    /// MOS object that lists the metaslabs' space maps.
    pub metaslab_array: u64,
    /// log2 of a metaslab's size in bytes.
    pub metaslab_shift: u64,
    /// Allocation class.
    pub class: Class,
    /// Txg in which the vdev was added.
    pub create_txg: Txg,
    /// MOS object of this leaf's DTL, or 0.
    pub dtl_object: u64,
    /// MOS object of an indirect vdev's mapping, or 0.
    pub indirect_object: u64,
    /// MOS object of an indirect vdev's birth array, or 0.
    pub indirect_births: u64,
    /// The vdev to whose removal this indirect vdev was chained, if any.
    pub prev_indirect_vdev: Option<u64>,
    /// MOS object of the ZAP of a top-level vdev, or 0.
    pub top_zap: u64,
    /// Whether removal has begun.
    pub removing: bool,
    /// Whether no new blocks are allocated on it.
    pub non_allocating: bool,
    /// Whether the administrator took it offline.
    pub offline: bool,
    /// Whether it is faulted.
    pub faulted: bool,
    /// Whether it is degraded.
    pub degraded: bool,
    /// Why it is faulted or degraded: `external` or `err_exceeded`.
    pub aux_state: Option<String>,
    /// Whether it was removed from the machine.
    pub removed: bool,
    /// Whether it never existed (split off, or missing when the configuration was written).
    pub not_present: bool,
    /// Whether this leaf is an active hot spare.
    pub is_spare: bool,
    /// Whether the other devices of its spare vdev leave when this one has everything.
    pub unspare: bool,
    /// Whether a RAID-Z expansion is in progress.
    pub raidz_expanding: bool,
    /// The txgs in which earlier RAID-Z expansions were completed.
    pub raidz_expand_txgs: Vec<u64>,
    /// GUID of the dRAID vdev of a distributed spare, and the number of the spare.
    pub draid_spare: Option<(u64, u64)>,
    /// Children of the vdev.
    pub children: Vec<VdevConfig>,
}

impl VdevConfig {
    /// Decodes the tree below `list`.
    pub fn parse(list: &NvList) -> Result<Self, DecodeError> {
        Self::parse_at(list, 0)
    }

    fn parse_at(list: &NvList, depth: usize) -> Result<Self, DecodeError> {
        const WHAT: &str = "vdev tree";
        let children = list.get_list_array("children").unwrap_or_default();
        if depth >= MAX_DEPTH || children.len() > MAX_CHILDREN {
            return Err(DecodeError::Field { what: WHAT, field: "children", value: children.len() as u64 });
        }
        let flag = |name: &str| list.get_u64(name).unwrap_or(0) != 0;
        let number = |name: &str| list.get_u64(name).unwrap_or(0);
        let text = |name: &str| list.get_string_bytes(name).map(|b| String::from_utf8_lossy(b).into_owned());
        let kind = Self::kind(list)?;
        let children = children.iter().map(|c| Self::parse_at(c, depth + 1)).collect::<Result<Vec<_>, _>>()?;
        Ok(VdevConfig {
            kind,
            guid: number("guid"),
            id: number("id"),
            path: text("path"),
            devid: text("devid"),
            whole_disk: flag("whole_disk"),
            ashift: number("ashift"),
            asize_bytes: number("asize"),
            metaslab_array: number("metaslab_array"),
            metaslab_shift: number("metaslab_shift"),
            class: Self::class(list),
            create_txg: Txg(number("create_txg")),
            dtl_object: number("DTL"),
            indirect_object: number("com.delphix:indirect_object"),
            indirect_births: number("com.delphix:indirect_births"),
            prev_indirect_vdev: list.get_u64("com.delphix:prev_indirect_vdev").filter(|v| *v != u64::MAX),
            top_zap: number("com.delphix:vdev_zap_top"),
            removing: flag("removing"),
            non_allocating: flag("non_allocating"),
            offline: flag("offline"),
            faulted: flag("faulted"),
            degraded: flag("degraded"),
            aux_state: text("aux_state"),
            removed: flag("removed"),
            not_present: flag("not_present"),
            is_spare: flag("is_spare"),
            unspare: flag("unspare"),
            raidz_expanding: list.contains("raidz_expanding"),
            raidz_expand_txgs: list.get_u64_array("raidz_expand_txgs").unwrap_or_default().to_vec(),
            draid_spare: list.get_u64("top_guid").zip(list.get_u64("spareid")),
            children,
        })
    }

    fn kind(list: &NvList) -> Result<VdevKind, DecodeError> {
        const WHAT: &str = "vdev tree";
        let number = |name: &str| list.get_u64(name).unwrap_or(0);
        let parity = || match number("nparity") {
            // Pools older than RAID-Z2 have no parity entry.
            0 => Ok(1),
            n @ 1..=3 => Ok(n as u8),
            value => Err(DecodeError::Field { what: WHAT, field: "nparity", value }),
        };
        let small = |field: &'static str| {
            u8::try_from(number(field)).map_err(|_| DecodeError::Field { what: WHAT, field, value: number(field) })
        };
        Ok(match list.require_str("type")? {
            "root" => VdevKind::Root,
            "disk" => VdevKind::Disk,
            "file" => VdevKind::File,
            "mirror" => VdevKind::Mirror,
            "replacing" => VdevKind::Replacing,
            "spare" => VdevKind::Spare,
            "raidz" => VdevKind::Raidz { nparity: parity()? },
            "draid" => VdevKind::Draid {
                nparity: parity()?,
                ndata: small("draid_ndata")?,
                nspares: small("draid_nspares")?,
                ngroups: u32::try_from(number("draid_ngroups")).unwrap_or(0),
            },
            "dspare" => VdevKind::DraidSpare,
            "indirect" => VdevKind::Indirect,
            "hole" => VdevKind::Hole,
            "missing" => VdevKind::Missing,
            _ => return Err(DecodeError::Missing { what: WHAT, field: "known type" }),
        })
    }

    fn class(list: &NvList) -> Class {
        if list.get_u64("is_log").unwrap_or(0) != 0 {
            return Class::Log;
        }
        match list.get_str("alloc_bias").or_else(|| list.get_str("alloc_class")) {
            Some("log") => Class::Log,
            Some("special") => Class::Special,
            Some("dedup") => Class::Dedup,
            _ => Class::Normal,
        }
    }

    /// Parameters of the allocated size of blocks on this top-level vdev (`vdev_psize_to_asize`).
    pub fn sizing(&self) -> Sizing {
        self.sizing_with(self.ashift.min(16) as u32)
    }

    /// Deflated bytes of raw bytes on this top-level vdev (`vdev_deflate_ratio`): raw space multiplied by the share of
    /// payload in a 128 KiB block, so without parity. Datasets account deflated bytes.
    pub fn deflate(&self, bytes: u64) -> u64 {
        (bytes >> 9).saturating_mul(self.sizing().deflate())
    }

    fn sizing_with(&self, ashift: u32) -> Sizing {
        let plain = Sizing { ashift, raidz: None };
        match self.kind {
            // A mirror needs the maximum over its children: in pools of ztest these may be RAID-Z.
            VdevKind::Mirror => {
                let sides = self.children.iter().map(|side| side.sizing_with(ashift));
                sides.max_by_key(Sizing::typical_asize_bytes).unwrap_or(plain)
            }
            VdevKind::Raidz { nparity } => {
                let mut expansion_txgs: Vec<u64> = self.raidz_expand_txgs.clone();
                // The expansion in progress takes effect in a later txg than any.
                expansion_txgs.extend(self.raidz_expanding.then_some(u64::MAX));
                let width = self.children.len() as u64;
                Sizing {
                    ashift,
                    raidz: Some(RaidzSizing { nparity: nparity.into(), width, expansion_txgs, whole_rows: false }),
                }
            }
            VdevKind::Draid { nparity, ndata, .. } => {
                let nparity = u64::from(nparity);
                let width = u64::from(ndata).max(1) + nparity;
                Sizing {
                    ashift,
                    raidz: Some(RaidzSizing { nparity, width, expansion_txgs: Vec::new(), whole_rows: true }),
                }
            }
            _ => plain,
        }
    }

    /// Bytes of a row of a dRAID vdev's redundancy group, which allocations do not share; 1 for other kinds.
    pub fn draid_row_bytes(&self) -> u64 {
        match self.kind {
            VdevKind::Draid { nparity, ndata, .. } => {
                (u64::from(nparity) + u64::from(ndata)).max(1) << self.ashift.min(16)
            }
            _ => 1,
        }
    }

    /// Whether this is a leaf.
    pub fn is_leaf(&self) -> bool {
        matches!(self.kind, VdevKind::Disk | VdevKind::File | VdevKind::DraidSpare)
    }

    /// Whether blocks can be allocated there: not a hole, missing or indirect.
    pub fn is_concrete(&self) -> bool {
        !matches!(self.kind, VdevKind::Indirect | VdevKind::Hole | VdevKind::Missing | VdevKind::Root)
    }

    /// This vdev and all vdevs below it, parents first.
    pub fn walk(&self) -> Vec<&VdevConfig> {
        let mut out = vec![self];
        let mut next = 0;
        while let Some(v) = out.get(next).copied() {
            out.extend(&v.children);
            next += 1;
        }
        out
    }

    /// All leaves, in the order of the tree.
    pub fn leaves(&self) -> Vec<&VdevConfig> {
        if self.is_leaf() {
            return vec![self];
        }
        self.children.iter().flat_map(|c| c.leaves()).collect()
    }

    /// Name in the output of tools: `mirror-0`, `raidz2-1`, the last component of a device's path.
    pub fn name(&self) -> String {
        match self.kind {
            VdevKind::Root => "root".into(),
            VdevKind::Disk | VdevKind::File => match &self.path {
                Some(path) if self.kind == VdevKind::File => path.clone(),
                Some(path) => short_device(path, self.whole_disk),
                None => self.guid.to_string(),
            },
            VdevKind::Mirror => format!("mirror-{}", self.id),
            VdevKind::Replacing => format!("replacing-{}", self.id),
            VdevKind::Spare => format!("spare-{}", self.id),
            VdevKind::Raidz { nparity } => format!("raidz{nparity}-{}", self.id),
            VdevKind::Draid { nparity, ndata, nspares, .. } => {
                format!("draid{nparity}:{ndata}d:{}c:{nspares}s-{}", self.children.len(), self.id)
            }
            VdevKind::DraidSpare => self.path.clone().unwrap_or_else(|| self.guid.to_string()),
            VdevKind::Indirect => format!("indirect-{}", self.id),
            VdevKind::Hole => format!("hole-{}", self.id),
            VdevKind::Missing => format!("missing-{}", self.id),
        }
    }
}

/// Short name of a device: `x` for a whole disk `/dev/disk/by-id/x-part1`, `sda` for `/dev/sda1`.
fn short_device(path: &str, whole_disk: bool) -> String {
    let base = path.rsplit('/').next().unwrap_or(path);
    if !whole_disk {
        return base.to_owned();
    }
    if let Some((stem, part)) = base.rsplit_once("-part")
        && part.bytes().all(|b| b.is_ascii_digit())
    {
        return stem.to_owned();
    }
    let stem = base.trim_end_matches(|c: char| c.is_ascii_digit());
    let stem = match stem.strip_suffix('p') {
        Some(inner) if inner.ends_with(|c: char| c.is_ascii_digit()) => inner,
        _ => stem,
    };
    if stem.is_empty() { base.to_owned() } else { stem.to_owned() }
}

/// Pool-wide configuration of a label or the MOS.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Name.
    pub name: String,
    /// GUID.
    pub guid: u64,
    /// 0 active, 1 exported, 2 destroyed, 3 spare, 4 cache.
    pub state: u64,
    /// Txg in which it was written.
    pub txg: Txg,
    /// On-disk version.
    pub version: u64,
    /// Host id of the writing machine, if present.
    pub hostid: Option<u64>,
    /// Host name of the writing machine, if present.
    pub hostname: Option<String>,
    /// Errata of old software.
    pub errata: u64,
    /// Comment.
    pub comment: Option<String>,
    /// Number of top-level vdevs.
    pub vdev_children: Option<u64>,
    /// Features that a reader must support.
    pub features_for_read: Vec<String>,
    /// The nvlist itself.
    pub list: NvList,
}

impl PoolConfig {
    /// Decodes the pool-wide part.
    pub fn parse(list: NvList) -> Result<Self, DecodeError> {
        let text = |name: &str| list.get_string_bytes(name).map(|b| String::from_utf8_lossy(b).into_owned());
        let features = list.get_list("features_for_read").map(NvList::pairs).unwrap_or_default();
        Ok(PoolConfig {
            name: text("name").ok_or(DecodeError::Missing { what: "pool configuration", field: "name" })?,
            guid: list.require_u64("pool_guid")?,
            state: list.get_u64("state").unwrap_or(0),
            txg: Txg(list.get_u64("txg").unwrap_or(0)),
            version: list.require_u64("version")?,
            hostid: list.get_u64("hostid"),
            hostname: text("hostname"),
            errata: list.get_u64("errata").unwrap_or(0),
            comment: text("comment"),
            vdev_children: list.get_u64("vdev_children"),
            features_for_read: features.iter().map(|p| p.name_lossy().into_owned()).collect(),
            list,
        })
    }

    /// Decodes the vdev tree.
    pub fn vdev_tree(&self) -> Result<VdevConfig, PoolError> {
        let parsed = self.list.require_list("vdev_tree").and_then(VdevConfig::parse);
        parsed.map_err(|source| PoolError::Decode { what: format!("pool '{}': vdev tree", self.name), source })
    }
}

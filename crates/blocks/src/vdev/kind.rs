//! Kinds of vdevs, as the `type` of a vdev in a pool's configuration names them (OpenZFS `module/zfs/vdev.c`,
//! `vdev_ops_table`).

/// Kind of a vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VdevKind {
    /// The root of the vdev tree, which has the top-level vdevs.
    Root,
    /// A block device.
    Disk,
    /// A regular file.
    File,
    /// A mirror: every child has the same contents.
    Mirror,
    /// A mirror during the replacement of a device.
    Replacing,
    /// A mirror of a device and the spare that replaces it.
    Spare,
    /// RAID-Z.
    Raidz {
        /// Parity columns: 1 to 3.
        nparity: u8,
    },
    /// dRAID.
    Draid {
        /// Parity columns of a redundancy group: 1 to 3.
        nparity: u8,
        /// Data columns of a redundancy group.
        ndata: u8,
        /// Distributed spares.
        nspares: u8,
        /// Redundancy groups of a slice.
        ngroups: u32,
    },
    /// A distributed spare: space spread over the children of a dRAID vdev.
    DraidSpare,
    /// A removed vdev, whose blocks were moved to other vdevs ([`super::Tree::set_mapping`]).
    Indirect,
    /// A removed log vdev.
    Hole,
    /// A vdev that was left out at import (`-m`), or that the configuration does not describe.
    Missing,
}

impl VdevKind {
    /// Name of the kind in the `type` entry of a configuration.
    pub fn type_name(self) -> &'static str {
        match self {
            VdevKind::Root => "root",
            VdevKind::Disk => "disk",
            VdevKind::File => "file",
            VdevKind::Mirror => "mirror",
            VdevKind::Replacing => "replacing",
            VdevKind::Spare => "spare",
            VdevKind::Raidz { .. } => "raidz",
            VdevKind::Draid { .. } => "draid",
            VdevKind::DraidSpare => "dspare",
            VdevKind::Indirect => "indirect",
            VdevKind::Hole => "hole",
            VdevKind::Missing => "missing",
        }
    }
}

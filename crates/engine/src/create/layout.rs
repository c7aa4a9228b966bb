//! Vdevs of a new pool: checks, sizes, and the initial vdev tree.
//!
//! ```text
//!   device     rounded down to whole labels; less 4 MiB at the start and 512 KiB at the end
//!   mirror     the smallest child          RAID-Z     the smallest child, times their number
//!   dRAID      see draid.rs
//!   metaslab   a power of two: about 16 of them below 8 GiB, 512 MiB to 100 GiB, then about 200, at most 16 GiB each
//! ```
//!
//! Source: OpenZFS `module/zfs/vdev.c` (`vdev_open`, `vdev_metaslab_set_size`), `module/zfs/vdev_raidz.c`.

use super::draid::DraidRequest;
use std::path::PathBuf;
use weir_format::{NvList, label};
use weir_machine::Entropy;
use weir_pool::config::Class;
use weir_pool::error::PoolError;

/// Maximum children of a vdev.
pub(super) const MAX_CHILDREN: usize = 255;
/// Range of a vdev's ashift (log2 of the sector size).
const ASHIFTS: std::ops::RangeInclusive<u64> = 9..=16;
/// The txg in which a pool is created (`TXG_INITIAL`).
pub const INITIAL_TXG: u64 = 4;

/// Redundancy layout of a top-level vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One device.
    Single,
    /// A mirror of all devices.
    Mirror,
    /// RAID-Z with this number of parity devices, 1 to 3.
    Raidz(u8),
    /// dRAID.
    Draid(DraidRequest),
}

/// A device of a new vdev.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewLeaf {
    /// Path of the device; it is written to the labels and should be absolute.
    pub path: PathBuf,
    /// Whether it is a regular file, not a block device.
    pub is_file: bool,
}

/// A top-level vdev to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTopLevelVdev {
    /// Allocation class.
    pub class: Class,
    /// Redundancy layout.
    pub layout: Layout,
    /// The vdev's devices.
    pub leaves: Vec<NewLeaf>,
}

/// Size and sector size of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Size of the whole device, in bytes.
    pub device_bytes: u64,
    /// Size of a sector, in bytes.
    pub sector_bytes: u32,
}

impl NewTopLevelVdev {
    /// Checks the number of devices against the layout and the class.
    ///
    /// # Errors
    /// [`PoolError::Refused`] with the reason.
    pub fn check(&self) -> Result<(), PoolError> {
        let count = self.leaves.len();
        let least = match self.layout {
            Layout::Single => 1,
            Layout::Mirror => 2,
            Layout::Raidz(parity @ 1..=3) => usize::from(parity) + 1,
            Layout::Raidz(parity) => return Err(refused(format!("RAID-Z has one to three parities, not {parity}"))),
            Layout::Draid(request) => {
                request.over(count).map_err(refused)?;
                2
            }
        };
        let name = self.kind_name();
        if count < least {
            return Err(refused(format!("{name} needs at least {least} devices, {count} given")));
        }
        if count > MAX_CHILDREN || (self.layout == Layout::Single && count > 1) {
            return Err(refused(format!("{name} cannot have {count} devices")));
        }
        if self.class == Class::Log && matches!(self.layout, Layout::Raidz(_) | Layout::Draid(_)) {
            return Err(refused("a log can be a device or a mirror, not RAID-Z or dRAID".into()));
        }
        Ok(())
    }

    fn kind_name(&self) -> String {
        match self.layout {
            Layout::Single => "a device".into(),
            Layout::Mirror => "a mirror".into(),
            Layout::Raidz(parity) => format!("raidz{parity}"),
            Layout::Draid(request) => format!("draid{}", request.parity),
        }
    }

    /// The vdev's configuration. `sizes` are those of its leaves; `ashift` is the minimum log2 of the sector size.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if a device is too small or its sectors too large.
    pub fn list(&self, id: u64, sizes: &[Size], ashift: u64, txg: u64, entropy: &Entropy) -> Result<NvList, PoolError> {
        let ashift = ashift_of(sizes, ashift)?;
        for (leaf, size) in self.leaves.iter().zip(sizes) {
            if size.device_bytes < label::MIN_DEVICE_BYTES {
                let path = leaf.path.display();
                let least = label::MIN_DEVICE_BYTES >> 20;
                return Err(refused(format!("{path} is smaller than {least} MiB")));
            }
        }
        let asize_bytes = self.asize_bytes(sizes)?;
        let leaves = self.leaves.iter().enumerate();
        let mut top = match self.layout {
            Layout::Single => NvList::new(),
            Layout::Mirror => inner("mirror", None, id, entropy),
            Layout::Raidz(parity) => inner("raidz", Some(parity), id, entropy),
            Layout::Draid(request) => {
                let mut top = inner("draid", Some(request.parity), id, entropy);
                request.over(self.leaves.len()).map_err(refused)?.describe(&mut top);
                top
            }
        };
        let mut leaves: Vec<NvList> = leaves.map(|(i, leaf)| leaf.list(i as u64, txg, entropy)).collect();
        if self.layout == Layout::Single {
            top = leaves.pop().unwrap_or_default();
            top.set("id", id);
            top.remove("create_txg");
        }
        top.set("metaslab_array", 0u64);
        top.set("metaslab_shift", metaslab_shift(asize_bytes));
        top.set("ashift", ashift);
        top.set("asize", asize_bytes);
        top.set("is_log", u64::from(self.class == Class::Log));
        top.set("create_txg", txg);
        if self.layout != Layout::Single {
            top.set("children", leaves);
        }
        Ok(top)
    }

    /// Allocatable bytes of the whole vdev.
    fn asize_bytes(&self, sizes: &[Size]) -> Result<u64, PoolError> {
        let each = sizes.iter().map(|s| leaf_asize_bytes(s.device_bytes)).min().unwrap_or(0);
        match self.layout {
            Layout::Raidz(_) => Ok(each.saturating_mul(self.leaves.len() as u64)),
            Layout::Single | Layout::Mirror => Ok(each),
            Layout::Draid(request) => match request.over(self.leaves.len()).map_err(refused)?.asize_bytes(each) {
                0 => Err(refused("the devices are too small for one redundancy group of this dRAID vdev".into())),
                bytes => Ok(bytes),
            },
        }
    }
}

impl NewLeaf {
    /// The nvlist of a device that is not a top-level vdev, created in `txg`.
    pub fn list(&self, id: u64, txg: u64, entropy: &Entropy) -> NvList {
        let mut list = NvList::new();
        list.set("type", if self.is_file { "file" } else { "disk" });
        list.set("id", id);
        list.set("guid", guid(entropy));
        list.set("path", self.path.to_string_lossy().as_ref());
        if !self.is_file {
            list.set("whole_disk", 0u64);
        }
        list.set("create_txg", txg);
        list
    }

    /// The nvlist of a hot spare or a cache device.
    pub fn aux_list(&self, size: Size, ashift: Option<u64>, entropy: &Entropy) -> Result<NvList, PoolError> {
        let mut list = self.list(0, INITIAL_TXG, entropy);
        list.remove("id");
        if let Some(ashift) = ashift {
            list.set("ashift", ashift_of(&[size], ashift)?);
        }
        Ok(list)
    }
}

fn refused(what: String) -> PoolError {
    PoolError::Refused { what }
}

fn inner(kind: &str, parity: Option<u8>, id: u64, entropy: &Entropy) -> NvList {
    let mut list = NvList::new();
    list.set("type", kind);
    list.set("id", id);
    list.set("guid", guid(entropy));
    if let Some(parity) = parity {
        list.set("nparity", u64::from(parity));
    }
    list
}

/// A random GUID other than 0, which means none.
pub fn guid(entropy: &Entropy) -> u64 {
    entropy.u64().max(1)
}

/// log2 of the sector size of a vdev: at least `least` and the sector size of each device.
fn ashift_of(sizes: &[Size], least: u64) -> Result<u64, PoolError> {
    let needed = sizes.iter().map(|s| u64::from(s.sector_bytes.max(1).next_power_of_two().trailing_zeros())).max();
    let ashift = least.max(needed.unwrap_or(0));
    if ASHIFTS.contains(&ashift) {
        return Ok(ashift);
    }
    Err(refused(format!("sectors of 2^{ashift} bytes: a vdev's are of 2^9 to 2^16")))
}

/// Allocatable bytes of a device: its size in whole labels less labels and boot area.
pub fn leaf_asize_bytes(device_bytes: u64) -> u64 {
    label::usable_device_bytes(device_bytes).saturating_sub(label::FRONT_BYTES + label::BACK_BYTES)
}

/// log2 of the metaslab size for a vdev of `asize` bytes.
pub fn metaslab_shift(asize: u64) -> u64 {
    const MIN_COUNT: u64 = 16;
    const DEFAULT_COUNT: u64 = 200;
    const MAX_COUNT: u64 = 1 << 17;
    const DEFAULT_SHIFT: u64 = 29;
    const MIN_SHIFT: u64 = 24;
    const MAX_SHIFT: u64 = 34;
    let bits = |n: u64| u64::from(u64::BITS - n.leading_zeros());
    let count = asize >> DEFAULT_SHIFT;
    let shift = if count < MIN_COUNT {
        bits(asize / MIN_COUNT)
    } else if count > DEFAULT_COUNT {
        bits(asize / DEFAULT_COUNT)
    } else {
        DEFAULT_SHIFT
    };
    match shift {
        s if s < MIN_SHIFT => MIN_SHIFT,
        s if s > MAX_SHIFT && asize >> MAX_SHIFT > MAX_COUNT => bits(asize / MAX_COUNT),
        s => s.min(MAX_SHIFT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metaslab_sizes_equal_those_of_openzfs() {
        // A file of 64 MiB: 59.5 MiB in three metaslabs of 16 MiB.
        assert_eq!(leaf_asize_bytes(64 << 20), 62_390_272);
        assert_eq!(metaslab_shift(62_390_272), 24);
        assert_eq!(metaslab_shift(4 << 30), 29);
        assert_eq!(metaslab_shift(50 << 30), 29);
        assert_eq!(metaslab_shift(1 << 40), 33);
        assert_eq!(metaslab_shift(100 << 40), 34);
        assert_eq!(metaslab_shift(4 << 50), 36);
    }

    fn top(layout: Layout, count: usize) -> NewTopLevelVdev {
        let leaf = |i| NewLeaf { path: format!("/d/{i}").into(), is_file: true };
        NewTopLevelVdev { class: Class::Normal, layout, leaves: (0..count).map(leaf).collect() }
    }

    #[test]
    fn counts_are_checked() {
        for (layout, count, good) in [
            (Layout::Single, 1, true),
            (Layout::Mirror, 1, false),
            (Layout::Mirror, 4, true),
            (Layout::Raidz(1), 2, true),
            (Layout::Raidz(3), 3, false),
            (Layout::Raidz(4), 9, false),
            (Layout::Raidz(2), 256, false),
        ] {
            assert_eq!(top(layout, count).check().is_ok(), good, "{layout:?} of {count}");
        }
        let log = NewTopLevelVdev { class: Class::Log, ..top(Layout::Raidz(1), 3) };
        assert!(log.check().is_err());
    }
}

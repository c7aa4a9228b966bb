//! The dRAID vdevs of a command line: `draid[PARITY][:DATAd][:CHILDRENc][:SPARESs]`.
//!
//! ```text
//!   draid                    one parity, up to eight data devices per redundancy group, no distributed spare
//!   draid2:4d:12c:1s         two parities and four data devices per group, twelve devices, the space of one is spare
//! ```
//!
//! Failure domains (a width that is a multiple of the children) are not created.
//!
//! Source: OpenZFS `cmd/zpool/zpool_vdev.c` (`get_parity`, `draid_config_by_type`), `module/zfs/vdev_draid.c`
//! (`vdev_draid_open`, `vdev_draid_spare_create`).

use super::layout;
use weir_format::NvList;
use weir_machine::Entropy;

/// Bytes at the end of each child that are reserved for a later expansion.
const RESERVE_BYTES: u64 = 32 << 20;
/// Unit in which a redundancy group takes space of each child.
const ROW_BYTES: u64 = 16 << 20;
/// Data devices of a group, if their number is not given.
const DEFAULT_DATA: u64 = 8;
/// Maximum number of distributed spares.
const MAX_SPARES: u64 = 100;

/// A dRAID vdev as the command line has it; what is not given follows from the number of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraidRequest {
    /// Parity devices of a group: 1 to 3.
    pub parity: u8,
    /// Data devices of a group.
    pub data: Option<u64>,
    /// Number of devices, which is only compared with those that are named.
    pub children: Option<u64>,
    /// Distributed spares.
    pub spares: u64,
}

/// The layout of a dRAID vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraidLayout {
    /// Parity devices of a group: 1 to 3.
    pub parity: u8,
    /// Data devices of a group: 1 to 254.
    pub data: u64,
    /// Distributed spares: 0 to 100.
    pub spares: u64,
    /// Number of devices: 2 to 255.
    pub children: u64,
    /// Groups that fill whole rows of all devices without the spares.
    pub groups: u64,
}

/// Whether `text` is the name of a distributed spare: `draid2-0-1` (OpenZFS `zpool_is_draid_spare`).
pub fn is_spare_name(text: &str) -> bool {
    let Some(numbers) = text.strip_prefix("draid") else { return false };
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    numbers.split('-').count() == 3 && numbers.split('-').all(is_number)
}

impl DraidRequest {
    /// Reads a vdev type that begins with `draid`.
    ///
    /// # Errors
    /// The part that is wrong, and what is expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = text.split(':');
        let parity = match parts.next().and_then(|kind| kind.strip_prefix("draid")) {
            Some("") => 1,
            Some(digit @ ("1" | "2" | "3")) => digit.parse().unwrap_or(1),
            _ => return Err(format!("'{text}': the parity of a dRAID vdev is 1, 2 or 3")),
        };
        let mut out = DraidRequest { parity, data: None, children: None, spares: 0 };
        for part in parts {
            let wrong = || format!("'{text}': a number with 'd', 'c' or 's' is expected, not '{part}'");
            let (number, suffix) = part.split_at_checked(part.len().saturating_sub(1)).ok_or_else(wrong)?;
            if !number.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(wrong());
            }
            let number: u64 = number.parse().map_err(|_| wrong())?;
            match suffix.to_ascii_lowercase().as_str() {
                "d" => out.data = Some(number),
                "c" => out.children = Some(number),
                "s" => out.spares = number,
                "w" => return Err(format!("'{text}': failure domains of dRAID vdevs are not supported")),
                _ => return Err(wrong()),
            }
        }
        Ok(out)
    }

    /// The layout over that number of devices.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn over(&self, devices: usize) -> Result<DraidLayout, String> {
        let devices = devices as u64;
        let DraidRequest { parity, data, children, spares } = *self;
        if devices > layout::MAX_CHILDREN as u64 {
            return Err(format!("{devices} devices were given, and a dRAID vdev has at most {}", layout::MAX_CHILDREN));
        }
        match children {
            Some(children) if children != 0 && children < devices && devices.is_multiple_of(children) => {
                return Err("failure domains of dRAID vdevs are not supported".into());
            }
            Some(children) if children != devices => {
                return Err(format!("invalid number of dRAID disks; {children} required but {devices} provided"));
            }
            _ => {}
        }
        let for_data = devices.saturating_sub(u64::from(parity)).saturating_sub(spares.min(devices));
        if for_data == 0 {
            return Err(format!(
                "{spares} distributed spares and {parity} parity devices leave none of {devices} devices for data"
            ));
        }
        let data = data.unwrap_or(for_data.min(DEFAULT_DATA));
        if data == 0 || data > for_data {
            return Err(format!("{data} data devices per group are not possible: 1 to {for_data} are"));
        }
        if spares > MAX_SPARES {
            return Err(format!("{spares} distributed spares are too many: at most {MAX_SPARES} are possible"));
        }
        let disks = devices - spares;
        let width = data + u64::from(parity);
        let groups = (1..=disks).find(|groups| (groups * width).is_multiple_of(disks)).unwrap_or(disks);
        Ok(DraidLayout { parity, data, spares, children: devices, groups })
    }
}

impl DraidLayout {
    /// Allocatable bytes of the vdev, of which each child has `child_bytes`: whole rows of the children without the
    /// reserve, and whole groups of these.
    pub fn asize_bytes(&self, child_bytes: u64) -> u64 {
        let rows = child_bytes.saturating_sub(RESERVE_BYTES) / ROW_BYTES;
        let group_bytes = (self.data + u64::from(self.parity)) * ROW_BYTES;
        let bytes = rows.saturating_mul(ROW_BYTES).saturating_mul(self.children - self.spares);
        bytes / group_bytes * group_bytes
    }

    /// Adds the layout to the vdev's configuration.
    pub(super) fn describe(&self, top: &mut NvList) {
        top.set("draid_ndata", self.data);
        top.set("draid_nspares", self.spares);
        top.set("draid_ngroups", self.groups);
    }
}

/// The distributed spares of a new top-level vdev, for the pool's list of spares; none if it is no dRAID vdev.
pub(crate) fn spares_of(top: &NvList, entropy: &Entropy) -> Vec<NvList> {
    let number = |name: &str| top.get_u64(name).unwrap_or(0);
    let spares = (0..number("draid_nspares")).map(|spare| {
        let mut list = NvList::new();
        list.set("type", "dspare");
        list.set("guid", layout::guid(entropy));
        list.set("path", format!("draid{}-{}-{spare}", number("nparity"), number("id")).as_str());
        list.set("top_guid", number("guid"));
        list.set("spareid", spare);
        list.set("whole_disk", 1u64);
        list.set("is_spare", 1u64);
        list.set("ashift", number("ashift"));
        list
    });
    spares.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(text: &str, devices: usize) -> Result<(u8, u64, u64, u64), String> {
        let layout = DraidRequest::parse(text)?.over(devices)?;
        assert!(
            (layout.groups * (layout.data + u64::from(layout.parity))).is_multiple_of(layout.children - layout.spares)
        );
        Ok((layout.parity, layout.data, layout.spares, layout.groups))
    }

    #[test]
    fn layouts_are_those_of_openzfs() {
        assert_eq!(over("draid", 2), Ok((1, 1, 0, 1)));
        // The golden pool of OpenZFS 2.4.4: six children of 91.5 MiB.
        assert_eq!(over("draid1:3d:6c:1s", 6), Ok((1, 3, 1, 5)));
        assert_eq!(DraidRequest::parse("draid1:3d:1s").unwrap().over(6).unwrap().asize_bytes(95_944_704), 201_326_592);
        assert_eq!(over("draid2:8d:51c:2s", 51), Ok((2, 8, 2, 49)));
        assert_eq!(over("draid3:2S:4D", 20), Ok((3, 4, 2, 18)));
        assert_eq!(over("draid2", 12), Ok((2, 8, 0, 6)));
        assert_eq!(DraidRequest::parse("draid").unwrap().over(3).unwrap().asize_bytes(40 << 20), 0);
    }

    #[test]
    fn names_of_spares_are_known() {
        let names = ["draid2-0-1", "draid1-10-99"];
        assert!(names.into_iter().all(is_spare_name));
        let others = ["draid2", "draid2-0", "draid2-0-1-2", "draid2--1", "draid2:4d", "raid2-0-1", "draid-0-1"];
        assert!(!others.into_iter().any(is_spare_name));
    }

    #[test]
    fn what_makes_no_layout_is_refused() {
        for (text, devices, why) in [
            ("draid0", 3, "parity"),
            ("draid4:2d", 9, "parity"),
            ("draid01", 9, "parity"),
            ("draidx", 9, "parity"),
            ("draid:", 9, "expected, not ''"),
            ("draid:d", 9, "expected, not 'd'"),
            ("draid:8", 9, "expected, not '8'"),
            ("draid:8x", 9, "expected, not '8x'"),
            ("draid:+8d", 20, "expected, not '+8d'"),
            ("draid:8dé", 20, "expected, not '8dé'"),
            ("draid:99999999999999999999d", 9, "expected"),
            ("draid:6c", 7, "6 required but 7 provided"),
            ("draid:0c", 7, "0 required but 7 provided"),
            ("draid:3c", 6, "failure domains"),
            ("draid:2d:6w", 6, "failure domains"),
            ("draid:0d", 6, "0 data devices"),
            ("draid:6d", 6, "6 data devices"),
            ("draid3", 3, "leave none of 3"),
            ("draid:18446744073709551615s", 6, "leave none"),
            ("draid:101s:1d", 255, "101 distributed spares"),
            ("draid", 256, "at most 255"),
        ] {
            let error = over(text, devices).unwrap_err();
            assert!(error.contains(why), "{text} over {devices}: {error}");
        }
    }
}

//! The usual places of pools, where commands look if no place is named: the devices of the cache file, and the block devices
//! of this machine.
//!
//! *Block devices.* `/sys/class/block` lists them. These are left out:
//!
//! - whole disks with partitions: their partitions are listed too;
//! - paths of a disk that device mapper joins (dm-multipath): the joined device is listed too, and the kernel allows only
//!   that one to be written;
//! - devices without a medium, memory disks, optical drives, and volumes of OpenZFS's module;
//! - what this process may not read.
//!
//! Source: Linux `Documentation/ABI/stable/sysfs-block`; the prefix `mpath-` of `dm/uuid` is that of multipath-tools.

use crate::cache_file::CacheFile;
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use weir_object_store::is_url_path;

/// Devices to scan if no place is named, each under one path.
pub fn usual() -> Vec<PathBuf> {
    let cached = CacheFile::usual().map(|file| file.device_paths()).unwrap_or_default();
    let mut seen = BTreeSet::new();
    let all = cached.into_iter().chain(block_devices(Path::new("/sys/class/block")));
    all.filter(|path| is_readable(path) && crate::locks::Identity::of(path).is_some_and(|id| seen.insert(id))).collect()
}

/// Whether a file or device can be opened for reading, without waiting for a medium.
fn is_readable(path: &Path) -> bool {
    // A disk in an object store is asked for when it is scanned.
    is_url_path(path)
        || rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).is_ok()
}

/// The block devices that can hold a pool, from their folders in `/sys`.
fn block_devices(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<_> =
        entries.flatten().map(|entry| entry.path()).filter(|device| can_hold_a_pool(device)).collect();
    names.sort();
    // A `!` in sysfs is a `/` below /dev.
    let node = |device: PathBuf| {
        device.file_name().map(|name| PathBuf::from(format!("/dev/{}", name.to_string_lossy().replace('!', "/"))))
    };
    names.into_iter().filter_map(node).collect()
}

fn can_hold_a_pool(device: &Path) -> bool {
    /// Names of devices that never hold a pool.
    const OTHERS: [&str; 6] = ["ram", "zram", "sr", "fd", "zd", "md_d"];
    let name = device.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let is_numbered =
        |prefix: &str| name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let has_medium = std::fs::read_to_string(device.join("size")).is_ok_and(|size| size.trim() != "0");
    has_medium && !OTHERS.iter().any(|prefix| is_numbered(prefix)) && !has_partitions(device) && !is_path(device)
}

fn has_partitions(device: &Path) -> bool {
    let Ok(below) = std::fs::read_dir(device) else { return false };
    below.flatten().any(|entry| entry.path().join("partition").exists())
}

/// Whether the device is one path of a disk that dm-multipath joins.
fn is_path(device: &Path) -> bool {
    let Ok(holders) = std::fs::read_dir(device.join("holders")) else { return false };
    let is_multipath = |holder: std::fs::DirEntry| {
        std::fs::read_to_string(holder.path().join("dm/uuid")).is_ok_and(|uuid| uuid.starts_with("mpath-"))
    };
    holders.flatten().any(is_multipath)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_disk_is_listed_once_and_what_holds_no_pool_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        for (device, size) in
            [("sda", 4096), ("sda1", 2048), ("sdb", 8), ("sdc", 8), ("sdd", 0), ("ram0", 8), ("sr0", 8)]
        {
            put(&format!("{device}/size"), &format!("{size}\n"));
        }
        put("sda/sda1/partition", "1\n");
        // Two paths to one disk, and a logical volume on another.
        put("sdb/holders/dm-0/dm/uuid", "mpath-36001405\n");
        put("sdc/holders/dm-1/dm/uuid", "LVM-abc\n");
        put("dm-0/size", "8\n");
        put("cciss!c0d0/size", "8\n");
        let found: Vec<String> = block_devices(dir.path()).iter().map(|path| path.display().to_string()).collect();
        assert_eq!(found, ["/dev/cciss/c0d0", "/dev/dm-0", "/dev/sda1", "/dev/sdc"]);
    }
}

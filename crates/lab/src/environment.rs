//! Facts about the machine that a result depends on, and counters of its disks and processors.
//!
//! Sources: `/proc/cpuinfo`, `/proc/meminfo`, `/proc/stat` and `/proc/self/mountinfo` (proc(5)); `/sys/dev/block/MAJOR:MINOR` and
//! its `stat` (Documentation/block/stat.rst of Linux), `/sys/class/net`. A fact that cannot be read is absent.

use crate::target::Target;
use std::collections::BTreeMap;
use std::fs::read_to_string;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bytes in a sector of `/sys/block/*/stat` and `/sys/block/*/size`, whatever the disk's own sector.
const SECTOR_BYTES: u64 = 512;

/// File system of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Directory on which it is mounted.
    pub point: PathBuf,
    /// Kind, such as `ext4` or `nfs4`.
    pub kind: String,
    /// Device, export or dataset.
    pub source: String,
    /// Options of the file system, such as `rw,vers=4.2`.
    pub options: String,
}

/// The file system of a path.
#[must_use]
pub fn mount_of(path: &Path) -> Option<Mount> {
    let table = read_to_string("/proc/self/mountinfo").ok()?;
    // A later mount on the same directory covers the earlier one.
    let mounts = table.lines().filter_map(mount).filter(|mount| path.starts_with(&mount.point));
    mounts.max_by_key(|mount| mount.point.as_os_str().len())
}

/// Parses a line of `/proc/self/mountinfo`.
fn mount(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let point = left.split(' ').nth(4)?;
    let mut fields = right.split(' ');
    Some(Mount {
        point: PathBuf::from(unescape(point)),
        kind: fields.next()?.to_owned(),
        source: unescape(fields.next()?),
        options: fields.next().unwrap_or_default().to_owned(),
    })
}

/// Undoes the octal escapes of `/proc/self/mountinfo` for blank, tab, line feed and backslash.
fn unescape(field: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(field.to_owned(), |text, (escape, plain)| text.replace(escape, plain))
}

/// Collects the facts for a target.
#[must_use]
pub fn facts(target: &Target) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    let mut add = |key: &str, value: Option<String>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            facts.insert(key.to_owned(), value);
        }
    };
    add("weir", Some(env!("CARGO_PKG_VERSION").to_owned()));
    add("kernel", first_line("/proc/sys/kernel/osrelease"));
    add("processors", std::thread::available_parallelism().ok().map(|count| count.to_string()));
    add("processor", labelled("/proc/cpuinfo", "model name"));
    add("memory_bytes", memory_bytes().map(|bytes| bytes.to_string()));
    if let Some(mount) = target.path().and_then(mount_of).filter(|_| !matches!(target, Target::Device(_))) {
        add("file_system", Some(mount.kind));
        add("mount_source", Some(mount.source));
        add("mount_options", Some(mount.options));
    }
    if let Some(disk) = Disk::below(target) {
        for (key, file) in [
            ("size_sectors", "size"),
            ("rotational", "queue/rotational"),
            ("scheduler", "queue/scheduler"),
            ("write_cache", "queue/write_cache"),
            ("logical_block_bytes", "queue/logical_block_size"),
            ("model", "device/model"),
        ] {
            add(&format!("disk.{}.{key}", disk.name), first_line(disk.folder.join(file)));
        }
    }
    for entry in std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_up = first_line(entry.path().join("operstate")).is_some_and(|state| state == "up");
        if is_up {
            add(&format!("link.{name}.mtu"), first_line(entry.path().join("mtu")));
            add(
                &format!("link.{name}.mbit_per_s"),
                first_line(entry.path().join("speed")).filter(|speed| speed != "-1"),
            );
        }
    }
    facts
}

/// Memory of the machine in bytes.
#[must_use]
pub fn memory_bytes() -> Option<u64> {
    let text = labelled("/proc/meminfo", "MemTotal")?;
    text.trim_end_matches("kB").trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn first_line(path: impl AsRef<Path>) -> Option<String> {
    Some(read_to_string(path).ok()?.lines().next()?.trim().to_owned())
}

/// Value of the first line `LABEL: VALUE` of a file.
fn labelled(path: &str, label: &str) -> Option<String> {
    let text = read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(label))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Bytes moved by a disk since the machine started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskCounters {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

/// Whole disk below a target, on this machine.
#[derive(Debug, Clone)]
pub struct Disk {
    /// Name, such as `sda`.
    pub name: String,
    folder: PathBuf,
}

impl Disk {
    /// The disk below a target; `None` if there is none on this machine (a network or memory file system), or several (a stripe of the
    /// kernel's).
    #[must_use]
    pub fn below(target: &Target) -> Option<Self> {
        let metadata = std::fs::metadata(target.path()?).ok()?;
        let device = if matches!(target, Target::Device(_)) { metadata.rdev() } else { metadata.dev() };
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let folder = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
        let is_part = folder.join("partition").exists();
        let folder = if is_part { folder.parent()?.to_path_buf() } else { folder };
        Some(Self { name: folder.file_name()?.to_string_lossy().into_owned(), folder })
    }

    /// Special file of the disk.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        Path::new("/dev").join(&self.name)
    }

    /// Size of a logical block in bytes, the smallest that direct I/O takes.
    #[must_use]
    pub fn logical_block_bytes(&self) -> Option<u64> {
        first_line(self.folder.join("queue/logical_block_size"))?.parse().ok()
    }

    /// Whether the disk says that it has rotating platters.
    #[must_use]
    pub fn is_rotational(&self) -> Option<bool> {
        first_line(self.folder.join("queue/rotational")).map(|text| text == "1")
    }

    /// Present counters.
    #[must_use]
    pub fn counters(&self) -> Option<DiskCounters> {
        let text = first_line(self.folder.join("stat"))?;
        let fields: Vec<u64> = text.split_ascii_whitespace().map_while(|field| field.parse().ok()).collect();
        Some(DiskCounters {
            read_bytes: fields.get(2)?.checked_mul(SECTOR_BYTES)?,
            written_bytes: fields.get(6)?.checked_mul(SECTOR_BYTES)?,
        })
    }
}

/// Processor time of the machine since it started, in ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessorTicks {
    busy: u64,
    total: u64,
}

impl ProcessorTicks {
    /// Present counters.
    #[must_use]
    pub fn now() -> Option<Self> {
        let text = read_to_string("/proc/stat").ok()?;
        Self::parse(text.lines().next()?)
    }

    /// Parses the first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal.
    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<u64> =
            line.strip_prefix("cpu ")?.split_ascii_whitespace().take(8).map_while(|f| f.parse().ok()).collect();
        let idle = fields.get(3)?.checked_add(*fields.get(4)?)?;
        let total = fields.iter().try_fold(0_u64, |sum, field| sum.checked_add(*field))?;
        Some(Self { busy: total - idle, total })
    }

    /// Share of the processors that was busy since an earlier reading, 0 to 1.
    #[must_use]
    pub fn busy_since(self, earlier: Self) -> Option<f64> {
        let total = self.total.checked_sub(earlier.total).filter(|total| *total > 0)?;
        Some(self.busy.saturating_sub(earlier.busy) as f64 / total as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo_gives_kind_source_and_options() {
        let line = r"36 35 98:0 /mnt1 /mnt\040two rw,noatime master:1 - ext3 /dev/root rw,errors=continue";
        let got = mount(line).unwrap();
        assert_eq!(got.point, Path::new("/mnt two"));
        assert_eq!((got.kind.as_str(), got.source.as_str()), ("ext3", "/dev/root"));
        assert_eq!(got.options, "rw,errors=continue");
        assert_eq!(mount("36 35"), None);
    }

    #[test]
    fn the_share_of_busy_processors_leaves_out_waiting_for_disks() {
        let before = ProcessorTicks::parse("cpu  100 0 100 800 0 0 0 0 0 0").unwrap();
        let after = ProcessorTicks::parse("cpu  130 0 120 840 10 0 0 0 0 0").unwrap();
        assert_eq!(after.busy_since(before), Some(0.5));
        assert_eq!(before.busy_since(before), None);
        assert_eq!(ProcessorTicks::parse("cpu0 1 2 3 4 5"), None);
    }

    #[test]
    fn facts_of_this_machine_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let facts = facts(&Target::Directory(dir.path().to_path_buf()));
        for key in ["kernel", "processors", "memory_bytes", "file_system", "weir"] {
            assert!(facts.contains_key(key), "{key} is missing in {facts:?}");
        }
        assert!(ProcessorTicks::now().is_some());
    }
}

//! The memory that this process may use: the machine's, or less if a control group (cgroup) limits it.
//!
//! ```text
//!   /proc/self/cgroup      0::/system.slice/weir.service        version 2
//!                          4:memory:/docker/1234                version 1
//!   /proc/self/mountinfo   … ROOT MOUNTPOINT … - cgroup2 …      ROOT is the cgroup that MOUNTPOINT shows
//!
//!   MOUNTPOINT/system.slice/weir.service/memory.max, memory.high      each cgroup up to MOUNTPOINT may set a limit,
//!   MOUNTPOINT/system.slice/memory.max, memory.high                   and the smallest holds
//!   MOUNTPOINT/memory.max, memory.high
//! ```
//!
//! Above `memory.high` the kernel slows a group down until it is below again, so it counts as a limit. Version 1 has
//! `memory.limit_in_bytes` in each cgroup, and in `memory.stat` the smallest limit of all groups above, which a container
//! cannot see. Groups with no limit say `max` (version 2) or a number near 2^63 (version 1).
//!
//! Source: Linux `Documentation/admin-guide/cgroup-v2.rst`, `cgroup-v1/memory.rst`, `proc_pid_mountinfo(5)`.

use std::path::{Path, PathBuf};

/// Memory that is assumed where the kernel does not say.
const UNKNOWN_BYTES: u64 = 2 << 30;

/// How much memory this process may use, and which limit that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// In bytes.
    pub bytes: u64,
    /// The file of the cgroup that sets the limit; `None` if it is all memory of the machine.
    pub cgroup: Option<PathBuf>,
}

impl MemoryLimit {
    /// The limit of this process now.
    pub fn current() -> Self {
        Self::below(Path::new("/"))
    }

    /// The limit as `proc` and the mounts of cgroups below `root` tell it.
    fn below(root: &Path) -> Self {
        let machine = read(&root.join("proc/meminfo")).and_then(|text| machine_bytes(&text)).unwrap_or(UNKNOWN_BYTES);
        let mut smallest = MemoryLimit { bytes: machine, cgroup: None };
        let groups = read(&root.join("proc/self/cgroup")).unwrap_or_default();
        let mounts = read(&root.join("proc/self/mountinfo")).unwrap_or_default();
        for mount in mounts.lines().filter_map(Mount::parse) {
            let Some(group) = groups.lines().find_map(|line| mount.version.group(line)) else { continue };
            let point = root.join(mount.point.strip_prefix("/").unwrap_or(&mount.point));
            // A group outside of what the mount shows: the mount's own limits hold all the same.
            let inside = group.strip_prefix(&mount.root).unwrap_or(Path::new(""));
            let is_plain = inside.components().all(|part| matches!(part, std::path::Component::Normal(_)));
            let mut folder = if is_plain { point.join(inside) } else { point.clone() };
            loop {
                for (file, bytes) in mount.version.limits(&folder) {
                    if bytes < smallest.bytes {
                        smallest = MemoryLimit { bytes, cgroup: Some(file) };
                    }
                }
                if folder == point || !folder.pop() {
                    break;
                }
            }
        }
        debug_assert!(smallest.bytes <= machine, "a cgroup cannot give more than the machine has");
        smallest
    }
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// `MemTotal:       24684188 kB`, in bytes.
fn machine_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// A version of cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Version {
    /// The group that a line of `/proc/self/cgroup` names, if the line is of this version and about memory.
    fn group(self, line: &str) -> Option<PathBuf> {
        let mut parts = line.splitn(3, ':');
        let hierarchy = parts.next()?;
        let controllers = parts.next()?;
        let path = PathBuf::from(parts.next()?);
        let fits = match self {
            Version::One => controllers.split(',').any(|name| name == "memory"),
            Version::Two => hierarchy == "0" && controllers.is_empty(),
        };
        fits.then_some(path)
    }

    /// The limits that a group sets, in bytes, and the file of each.
    fn limits(self, folder: &Path) -> Vec<(PathBuf, u64)> {
        let number = |name: &str| {
            let file = folder.join(name);
            let bytes = read(&file)?.trim().parse().ok()?;
            Some((file, bytes))
        };
        let above = || {
            let file = folder.join("memory.stat");
            let text = read(&file)?;
            let line = text.lines().find_map(|line| line.strip_prefix("hierarchical_memory_limit "))?;
            Some((file, line.trim().parse().ok()?))
        };
        match self {
            Version::One => [number("memory.limit_in_bytes"), above()].into_iter().flatten().collect(),
            Version::Two => [number("memory.max"), number("memory.high")].into_iter().flatten().collect(),
        }
    }
}

/// A mount of a hierarchy of groups.
struct Mount {
    version: Version,
    /// The group that the mount point shows.
    root: PathBuf,
    point: PathBuf,
}

impl Mount {
    /// From a line of `/proc/self/mountinfo`, if it is a mount of groups that can limit memory.
    fn parse(line: &str) -> Option<Mount> {
        let (front, back) = line.split_once(" - ")?;
        let mut front = front.split(' ').skip(3);
        let root = unescape(front.next()?);
        let point = unescape(front.next()?);
        let mut back = back.split(' ');
        let version = match back.next()? {
            "cgroup2" => Version::Two,
            "cgroup" if back.nth(1)?.split(',').any(|option| option == "memory") => Version::One,
            _ => return None,
        };
        Some(Mount { version, root, point })
    }
}

/// A path of mountinfo, in which space, tab, line feed and backslash are three octal digits behind a backslash.
fn unescape(text: &str) -> PathBuf {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        let (front, tail) = rest.split_at(at);
        out.push_str(front);
        let code = tail.get(1..4).and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(u8::is_ascii);
        out.push(code.map_or('\\', char::from));
        rest = tail.get(if code.is_some() { 4 } else { 1 }..).unwrap_or_default();
    }
    out.push_str(rest);
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A file tree like that of a kernel, with 8 GiB of memory.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str, cgroup: &str, mountinfo: &str) -> Root {
            let root = Root(std::env::temp_dir().join(format!("weir-memory-{name}-{}", std::process::id())));
            // Of an earlier process with the same number.
            let _ = std::fs::remove_dir_all(&root.0);
            root.put("proc/meminfo", "MemTotal:        8388608 kB\nMemFree:          123456 kB\n");
            root.put("proc/self/cgroup", cgroup);
            root.put("proc/self/mountinfo", mountinfo);
            root
        }

        fn put(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        fn limit(&self) -> (u64, Option<String>) {
            let limit = MemoryLimit::below(&self.0);
            let below = |path: PathBuf| path.strip_prefix(&self.0).unwrap().display().to_string();
            (limit.bytes, limit.cgroup.map(below))
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_smallest_limit_up_a_hierarchy_of_version_2_holds() {
        let mounts =
            "22 1 0:5 / /proc rw - proc proc rw\n30 23 0:26 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw\n";
        let root = Root::new("v2", "0::/system.slice/weir.service\n", mounts);
        assert_eq!(root.limit(), (8192 * MIB, None), "no file says anything");
        root.put("sys/fs/cgroup/system.slice/weir.service/memory.max", "max\n");
        root.put("sys/fs/cgroup/system.slice/memory.max", "1073741824\n");
        assert_eq!(root.limit(), (1024 * MIB, Some("sys/fs/cgroup/system.slice/memory.max".into())));
        root.put("sys/fs/cgroup/system.slice/weir.service/memory.high", "314572800\n");
        assert_eq!(root.limit(), (300 * MIB, Some("sys/fs/cgroup/system.slice/weir.service/memory.high".into())));
        root.put("sys/fs/cgroup/other/memory.max", "4096\n");
        assert_eq!(root.limit().0, 300 * MIB, "another group's limit");
    }

    #[test]
    fn a_hierarchy_of_version_1_is_read_with_the_limits_above_a_container() {
        let mounts = "31 23 0:27 /docker/12 /sys/fs/cgroup/memory\\040v1 rw - cgroup cgroup rw,memory\n\
                      32 23 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
        let root = Root::new("v1", "4:memory:/docker/12/a\n1:cpu:/docker\n0::/\n", mounts);
        root.put("sys/fs/cgroup/memory v1/a/memory.limit_in_bytes", "9223372036854771712\n");
        root.put("sys/fs/cgroup/memory v1/memory.limit_in_bytes", "536870912\n");
        assert_eq!(root.limit(), (512 * MIB, Some("sys/fs/cgroup/memory v1/memory.limit_in_bytes".into())));
        root.put("sys/fs/cgroup/memory v1/a/memory.stat", "cache 0\nhierarchical_memory_limit 268435456\nrss 1\n");
        assert_eq!(root.limit(), (256 * MIB, Some("sys/fs/cgroup/memory v1/a/memory.stat".into())));
    }

    #[test]
    fn a_group_outside_of_its_mount_has_the_limits_of_the_mount() {
        let mounts = "30 23 0:26 /pod /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        for group in ["0::/../other\n", "0::/elsewhere/x\n", "0::/pod/../../x\n"] {
            let root = Root::new("outside", group, mounts);
            root.put("sys/fs/cgroup/memory.max", "104857600\n");
            assert_eq!(root.limit().0, 100 * MIB, "{group}");
        }
        let root = Root::new("garbage", "malformed\n:::\n", "x - \n\n1 2 3\n");
        assert_eq!(root.limit(), (8192 * MIB, None));
        assert!(MemoryLimit::current().bytes > 0);
    }
}

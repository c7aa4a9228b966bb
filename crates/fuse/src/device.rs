//! The device `/dev/fuse`, and mounts that root makes through it without a helper.
//!
//! `fuser` passes the file system type `fuse` to `mount(2)`. Users, and programs such as `findmnt` and `df`, tell file systems
//! apart by the second part of the type, so Weir mounts by itself, with the type `fuse.weir`, which the kernel takes as the type
//! `fuse` with the subtype `weir`. Users other than root mount by `fusermount3`, which does the same.

use crate::mount::{ChangedOptions, FuseError, MountOptions};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

const DEVICE: &str = "/dev/fuse";
/// Type of the mounts.
pub(crate) const TYPE: &str = "fuse.weir";
/// Permission bits of reading and writing for all users, as distributions set them.
const OPEN_TO_ALL: u32 = 0o666;

/// Opens the device.
///
/// # Errors
/// [`FuseError::NoDevice`] with the way to repair it.
pub(crate) fn open() -> Result<File, FuseError> {
    File::options().read(true).write(true).open(DEVICE).map_err(|why| {
        let mode = std::fs::metadata(DEVICE).ok().map(|found| found.permissions().mode());
        FuseError::NoDevice { advice: advice(Errno::from_io_error(&why), mode), why }
    })
}

/// How to repair an error of opening the device, which has this mode if it exists.
fn advice(error: Option<Errno>, mode: Option<u32>) -> String {
    let in_container = "in a container, start it with --device /dev/fuse --cap-add SYS_ADMIN";
    match (error, mode) {
        (Some(Errno::ACCESS), Some(mode)) if mode & OPEN_TO_ALL != OPEN_TO_ALL => {
            let user = rustix::process::geteuid().as_raw();
            format!("user {user} may not open it (mode {:04o}); as root: chmod 0666 /dev/fuse", mode & 0o7777)
        }
        (Some(Errno::PERM | Errno::ACCESS), Some(_)) => {
            format!(
                "the kernel forbids this process to open it; {in_container}; of a systemd unit, DeviceAllow=/dev/fuse rw"
            )
        }
        (_, None) => format!("there is no such device; as root: modprobe fuse; {in_container}"),
        (_, Some(_)) => "the kernel has no FUSE; as root: modprobe fuse".to_owned(),
    }
}

/// A mount that this process made by itself. Dropping it detaches the mount, if it is still there.
#[derive(Debug)]
pub(crate) struct DirectMount {
    path: PathBuf,
    /// Number of the mounted device: nothing that is mounted later at this path has it while this value lives.
    number: Option<String>,
}

impl DirectMount {
    /// Number of the mounted device.
    pub(crate) fn device(&self) -> Option<String> {
        self.number.clone()
    }
}

/// Changes the options of the mount of this device at a path.
///
/// # Errors
/// The kernel's; [`Errno::INVAL`] if something else is mounted there.
pub(crate) fn remount(path: &Path, number: &str, options: ChangedOptions) -> Result<(), Errno> {
    if number_at(path).as_deref() != Some(number) {
        return Err(Errno::INVAL);
    }
    match rustix::mount::mount_remount(path, flags(options), c"") {
        // Files are open for writing: their writes are refused by what is served.
        Err(Errno::BUSY) if !options.writable => {
            let options = ChangedOptions { writable: true, ..options };
            rustix::mount::mount_remount(path, flags(options), c"")
        }
        done => done,
    }
}

impl Drop for DirectMount {
    fn drop(&mut self) {
        if self.number.is_some() && number_at(&self.path) == self.number {
            // It has just ended, or it stays until this process does.
            let _ = rustix::mount::unmount(&self.path, UnmountFlags::DETACH);
        }
    }
}

/// Mounts the device at a directory. With `checks`, the kernel checks permissions by modes.
///
/// # Errors
/// The kernel's.
pub(crate) fn mount(device: &File, path: &Path, options: &MountOptions, checks: bool) -> io::Result<DirectMount> {
    let root_mode = path.metadata()?.mode();
    let user = rustix::process::getuid().as_raw();
    let group = rustix::process::getgid().as_raw();
    let fd = device.as_raw_fd();
    let mut data = format!("fd={fd},rootmode={root_mode:o},user_id={user},group_id={group}");
    data.push_str(if checks { ",default_permissions" } else { "" });
    data.push_str(if options.allow_other { ",allow_other" } else { "" });
    let data = CString::new(data).map_err(io::Error::other)?;
    let MountOptions { writable, dev, suid, exec, .. } = *options;
    let flags = flags(ChangedOptions { writable, dev, suid, exec });
    rustix::mount::mount(options.source.as_str(), path, TYPE, flags, Some(data.as_c_str()))?;
    Ok(DirectMount { path: path.to_path_buf(), number: number_at(path) })
}

fn flags(options: ChangedOptions) -> MountFlags {
    let all = [
        (!options.writable, MountFlags::RDONLY),
        (!options.dev, MountFlags::NODEV),
        (!options.suid, MountFlags::NOSUID),
        (!options.exec, MountFlags::NOEXEC),
    ];
    all.into_iter().filter(|(wanted, _)| *wanted).fold(MountFlags::empty(), |all, (_, flag)| all | flag)
}

/// Whether something is mounted at a path.
pub(crate) fn is_mount_point(path: &Path) -> bool {
    number_at(path).is_some()
}

/// Number of the device that is mounted at a path, the topmost if there are several.
pub(crate) fn number_at(path: &Path) -> Option<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    number_in(&table, path)
}

fn number_in(table: &str, path: &Path) -> Option<String> {
    let at = |line: &&str| line.split(' ').nth(4).is_some_and(|point| crate::stale::unescaped_path(point) == path);
    table.lines().rfind(at)?.split(' ').nth(2).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_what_is_missing_and_the_command() {
        let missing = advice(Some(Errno::NOENT), None);
        assert!(missing.contains("no such device") && missing.contains("modprobe fuse"), "{missing}");
        let closed = advice(Some(Errno::ACCESS), Some(0o020_600));
        assert!(closed.contains("mode 0600") && closed.contains("chmod 0666 /dev/fuse"), "{closed}");
        let container = advice(Some(Errno::PERM), Some(0o020_666));
        assert!(container.contains("--device /dev/fuse") && !container.contains("modprobe"), "{container}");
        let no_driver = advice(Some(Errno::NODEV), Some(0o020_666));
        assert!(no_driver.contains("modprobe fuse") && !no_driver.contains("chmod"), "{no_driver}");
    }

    #[test]
    fn the_topmost_mount_of_a_path_is_found() {
        let table = "90 27 0:52 / /mnt/a\\040b rw - fuse.weir t rw\n91 27 0:53 / /mnt/a\\040b rw - fuse.weir u rw\n";
        assert_eq!(number_in(table, Path::new("/mnt/a b")).as_deref(), Some("0:53"));
        assert_eq!(number_in(table, Path::new("/mnt/a")), None);
    }
}

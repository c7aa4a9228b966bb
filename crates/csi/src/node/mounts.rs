//! Mounts of this machine.

use super::programs::{ProgramError, Programs};
use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount};
use std::io::{ErrorKind, Seek, SeekFrom};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Maximum number of mounts over each other that are unmounted.
const MAX_LAYERS: u32 = 16;
/// Maximum number of options of a mount.
const MAX_FLAGS: usize = 64;

/// Why a mount failed.
#[derive(Debug, Error)]
pub enum MountError {
    /// Only root can mount.
    #[error("{what} needs the rights of root (CAP_SYS_ADMIN): run the node plugin in a privileged container")]
    NotRoot {
        /// Work that needs them.
        what: &'static str,
    },
    /// A file is in the way.
    #[error("{}: {why}", .path.display())]
    InUse {
        /// The path.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// There is nothing at the path.
    #[error("{} does not exist", .path.display())]
    Missing {
        /// The path.
        path: PathBuf,
    },
    /// An option of mount is invalid.
    #[error("mount option '{0}' is invalid: it is one option without comma, and not more than {MAX_FLAGS}")]
    Flag(String),
    /// The system refused.
    #[error("cannot {what} {}: {why}", .path.display())]
    System {
        /// The operation.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// The reason.
        why: std::io::Error,
    },
    /// A program failed.
    #[error(transparent)]
    Program(#[from] ProgramError),
}

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Where it is mounted.
    pub point: PathBuf,
    /// Type of its file system.
    pub kind: String,
    /// Source of the mount, for example a device.
    pub source: String,
    /// Numbers of the file system's device, and the directory of it that is mounted: the same for all bind mounts of one.
    pub contents: (String, PathBuf),
}

/// Space of what is mounted at a path: total, used and available.
pub enum Usage {
    /// A block device.
    Device {
        /// Size in bytes.
        bytes: u64,
    },
    /// A file system.
    Files {
        /// In bytes.
        bytes: (u64, u64, u64),
        /// In inodes.
        inodes: (u64, u64, u64),
    },
}

/// A path of mountinfo: `\040` stands for a space.
fn unescaped(text: &str) -> PathBuf {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| *first == b'\\') {
            Some(byte) => {
                out.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    std::ffi::OsString::from_vec(out).into()
}

/// The mounts in the text of mountinfo (proc_pid_mountinfo(5)).
fn parse(text: &str) -> Vec<Mount> {
    let line = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let mut after = after.split(' ');
        let mut before = before.split(' ').skip(2);
        let contents = (before.next()?.to_owned(), unescaped(before.next()?));
        let point = unescaped(before.next()?);
        Some(Mount { point, kind: after.next()?.to_owned(), source: after.next()?.to_owned(), contents })
    };
    text.lines().filter_map(line).collect()
}

/// The mounts that this process sees.
fn all() -> Result<Vec<Mount>, MountError> {
    let failed = |why| MountError::System { what: "read", path: "/proc/self/mountinfo".into(), why };
    let text = std::fs::read("/proc/self/mountinfo").map_err(failed)?;
    Ok(parse(&String::from_utf8_lossy(&text)))
}

/// Without a slash at its end, and without links.
fn plain(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.components().collect())
}

/// The uppermost mount at a path.
///
/// # Errors
/// If the mounts of this process cannot be read.
pub fn mount_at(path: &Path) -> Result<Option<Mount>, MountError> {
    let path = plain(path);
    Ok(all()?.into_iter().rfind(|mount| mount.point == path))
}

/// A path, other than these, at which the contents of the mount at `path` are mounted too.
///
/// # Errors
/// As [`mount_at`].
pub fn elsewhere(path: &Path, except: &[&Path]) -> Result<Option<PathBuf>, MountError> {
    let Some(mount) = mount_at(path)? else { return Ok(None) };
    let except: Vec<PathBuf> = except.iter().map(|path| plain(path)).collect();
    let is_other = |other: &Mount| {
        other.contents == mount.contents && other.point != mount.point && !except.contains(&other.point)
    };
    Ok(all()?.into_iter().find(is_other).map(|other| other.point))
}

/// Type of the file system that contains an existing path.
///
/// # Errors
/// As [`mount_at`].
pub fn kind_of(path: &Path) -> Result<Option<String>, MountError> {
    let Ok(path) = path.canonicalize() else { return Ok(None) };
    for above in path.ancestors() {
        if let Some(mount) = mount_at(above)? {
            return Ok(Some(mount.kind));
        }
    }
    Ok(None)
}

/// Whether something is mounted at a path.
///
/// # Errors
/// As [`mount_at`].
pub fn is_mounted(path: &Path) -> Result<bool, MountError> {
    Ok(mount_at(path)?.is_some())
}

/// Whether what is mounted at a path can only be read.
///
/// # Errors
/// If it cannot be found out.
pub fn is_read_only(path: &Path) -> Result<bool, MountError> {
    let failed = |why: rustix::io::Errno| MountError::System { what: "examine", path: path.into(), why: why.into() };
    Ok(statvfs(path).map_err(failed)?.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// Fails unless this process is root.
///
/// # Errors
/// [`MountError::NotRoot`].
pub fn check_root(what: &'static str) -> Result<(), MountError> {
    if rustix::process::geteuid().is_root() { Ok(()) } else { Err(MountError::NotRoot { what }) }
}

/// Makes a directory with its parents.
///
/// # Errors
/// If it cannot be made.
pub fn make_directory(path: &Path) -> Result<(), MountError> {
    let failed = |why| MountError::System { what: "make the directory", path: path.into(), why };
    std::fs::create_dir_all(path).map_err(failed)
}

/// Makes an empty file with its parent directories, at which a device can be mounted.
///
/// # Errors
/// If it cannot be made.
pub fn make_file(path: &Path) -> Result<(), MountError> {
    path.parent().map_or(Ok(()), make_directory)?;
    let failed = |why| MountError::System { what: "make the file", path: path.into(), why };
    std::fs::File::options().create(true).append(true).open(path).map(drop).map_err(failed)
}

/// Removes the empty directory or file at which something was mounted. A directory with contents is an error.
///
/// # Errors
/// If it is not empty or cannot be removed.
pub fn remove(path: &Path) -> Result<(), MountError> {
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(why) => return Err(MountError::System { what: "examine", path: path.into(), why }),
    };
    if found.is_file() && found.len() > 0 {
        return Err(MountError::InUse {
            path: path.into(),
            why: "a file with contents is there: it is not removed".into(),
        });
    }
    let removed = if found.is_dir() { std::fs::remove_dir(path) } else { std::fs::remove_file(path) };
    removed.map_err(|why| MountError::System { what: "remove", path: path.into(), why })
}

/// Mounts `from` also at `to`.
///
/// # Errors
/// If the system refuses.
pub fn bind(from: &Path, to: &Path, read_only: bool) -> Result<(), MountError> {
    let failed = |why: rustix::io::Errno| MountError::System { what: "mount at", path: to.into(), why: why.into() };
    mount_bind(from, to).map_err(failed)?;
    if read_only && let Err(why) = mount_remount(to, MountFlags::BIND | MountFlags::RDONLY, "") {
        // A mount that can be written must not stay.
        unmount(to)?;
        return Err(failed(why));
    }
    Ok(())
}

/// Mounts a file system by mount(8).
///
/// # Errors
/// If an option is invalid or mount fails.
pub async fn mount(
    programs: &Programs,
    kind: &str,
    source: &str,
    to: &Path,
    flags: &[String],
) -> Result<(), MountError> {
    let is_flag = |flag: &String| {
        !flag.is_empty()
            && flag.len() <= 256
            && !flag.contains(|c: char| c == ',' || c.is_whitespace() || c.is_control())
    };
    if let Some(flag) = flags.iter().find(|flag| !is_flag(flag)).or(flags.get(MAX_FLAGS)) {
        return Err(MountError::Flag(flag.clone()));
    }
    let options = if flags.is_empty() { "defaults".to_owned() } else { flags.join(",") };
    let to = to.to_string_lossy();
    programs.run("mount", &["-t", kind, "-o", &options, "--", source, &to]).await?;
    Ok(())
}

/// Unmounts all that is mounted at a path; nothing mounted is no error.
///
/// # Errors
/// If the system refuses, for example because the mount is in use.
pub fn unmount(path: &Path) -> Result<(), MountError> {
    for _ in 0..MAX_LAYERS {
        if !is_mounted(path)? {
            return Ok(());
        }
        check_root("umount")?;
        let failed =
            |why: rustix::io::Errno| MountError::System { what: "unmount", path: path.into(), why: why.into() };
        rustix::mount::unmount(path, UnmountFlags::NOFOLLOW).map_err(failed)?;
    }
    Err(MountError::InUse { path: path.into(), why: format!("more than {MAX_LAYERS} mounts are there") })
}

/// Space of what is mounted at a path.
///
/// # Errors
/// If it cannot be read.
pub fn usage(path: &Path) -> Result<Usage, MountError> {
    let failed = |why| MountError::System { what: "examine", path: path.into(), why };
    let found = std::fs::metadata(path).map_err(failed)?;
    if found.file_type().is_block_device() {
        let bytes = std::fs::File::open(path).and_then(|mut device| device.seek(SeekFrom::End(0))).map_err(failed)?;
        return Ok(Usage::Device { bytes });
    }
    let space = statvfs(path).map_err(|why| failed(why.into()))?;
    let block = space.f_frsize;
    let bytes = |blocks: u64| blocks.saturating_mul(block);
    let used = space.f_blocks.saturating_sub(space.f_bfree);
    Ok(Usage::Files {
        bytes: (bytes(space.f_blocks), bytes(used), bytes(space.f_bavail)),
        inodes: (space.f_files, space.f_files.saturating_sub(space.f_ffree), space.f_favail),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_is_read() {
        let text = "36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw\nbroken line\n\
                    37 35 0:50 / /a rw shared:1 - nfs4 192.0.2.1:/tank rw\n";
        let mounts = parse(text);
        assert_eq!(mounts.len(), 2);
        assert_eq!((mounts[0].point.as_path(), mounts[0].kind.as_str()), (Path::new("/mnt 2"), "ext3"));
        assert_eq!((mounts[1].source.as_str(), mounts[1].kind.as_str()), ("192.0.2.1:/tank", "nfs4"));
        assert_eq!(mounts[0].contents, ("98:0".to_owned(), PathBuf::from("/mnt1")));
        assert_eq!(unescaped("a\\"), Path::new("a\\"));
        assert!(is_mounted(Path::new("/proc/")).unwrap() && !is_mounted(Path::new("/proc/self")).unwrap());
        assert_eq!(kind_of(Path::new("/proc/1/..")).unwrap().as_deref(), Some("proc"));
    }

    #[test]
    fn only_what_is_empty_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let full = dir.path().join("full");
        std::fs::create_dir(&full).unwrap();
        std::fs::write(full.join("data"), "x").unwrap();
        assert!(remove(&full).is_err() && remove(&full.join("data")).is_err());
        assert!(full.join("data").exists());
        let device = dir.path().join("a/device");
        make_file(&device).unwrap();
        remove(&device).unwrap();
        remove(&device).unwrap();
        assert!(!device.exists());
    }
}

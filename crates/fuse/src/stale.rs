//! Mounts whose server is dead: the process was killed, and the kernel answers every access with ENOTCONN.
//!
//! A mount is unmounted here only if the table of mounts says that it is one of this server, and `statfs` of it fails with
//! ENOTCONN. `statfs` is never answered from the kernel's caches, and a living server answers it. Mounts of this server have
//! the type `fuse.weir`; earlier versions made root's with the type `fuse`,
//! which are known by their source, the pool.

use rustix::fs::statfs;
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Types of mounts of this and of earlier versions.
const TYPES: [&str; 2] = ["fuse.weir", "fuse"];
const TABLE: &str = "/proc/self/mountinfo";

/// Mount points of a pool in the text of `/proc/self/mountinfo` (`proc_pid_mountinfo(5)`).
fn mount_points(table: &str, pool: &str) -> Vec<PathBuf> {
    let of_pool = |line: &&str| {
        let Some((_, rest)) = line.split_once(" - ") else { return false };
        let mut words = rest.split(' ');
        let is_ours = words.next().is_some_and(|kind| TYPES.contains(&kind));
        is_ours && words.next().is_some_and(|source| unescaped(source.as_bytes()) == pool.as_bytes())
    };
    let points = table.lines().filter(of_pool).filter_map(|line| line.split(' ').nth(4));
    points.map(unescaped_path).collect()
}

/// A path in the table.
pub(crate) fn unescaped_path(text: &str) -> PathBuf {
    PathBuf::from(OsString::from_vec(unescaped(text.as_bytes())))
}

/// Replaces `\ooo` by the byte with that octal number.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.first_chunk::<3>().filter(|_| *first == b'\\');
        let number = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        out.push(number.unwrap_or(*first));
        rest = if number.is_some() { after.get(3..).unwrap_or(&[]) } else { after };
    }
    out
}

/// Unmounts the mount of a pool at `path` if it is stale; true if it was.
pub fn unmount_stale_at(path: &Path, pool: &str) -> bool {
    // The mount point itself cannot be resolved if it is stale; its directory can.
    let resolved = match (path.parent(), path.file_name()) {
        (Some(dir), Some(name)) if dir == Path::new("") => Path::new(".").canonicalize().map(|dir| dir.join(name)),
        (Some(dir), Some(name)) => dir.canonicalize().map(|dir| dir.join(name)),
        _ => return false,
    };
    let table = std::fs::read_to_string(TABLE).unwrap_or_default();
    resolved.is_ok_and(|path| mount_points(&table, pool).contains(&path) && unmount_if_dead(&path))
}

/// Unmounts all stale mounts of a pool that this user may unmount, and returns where they were. Call it when a server starts
/// that mounts by itself.
pub fn unmount_stale(pool: &str) -> Vec<PathBuf> {
    let table = std::fs::read_to_string(TABLE).unwrap_or_default();
    mount_points(&table, pool).into_iter().filter(|path| unmount_if_dead(path)).collect()
}

fn unmount_if_dead(path: &Path) -> bool {
    if statfs(path).err() != Some(Errno::NOTCONN) {
        return false;
    }
    use rustix::mount::{UnmountFlags, unmount};
    let done = match unmount(path, UnmountFlags::DETACH) {
        Ok(()) => true,
        // A user's mount was made by the helper, which also ends it.
        Err(_) => {
            let helper = std::process::Command::new("fusermount3").args(["-u", "-z"]).arg(path).output();
            helper.is_ok_and(|ended| ended.status.success())
        }
    };
    match done {
        true => tracing::info!(path = %path.display(), "unmounted: its server is dead"),
        false => tracing::warn!(path = %path.display(), "its server is dead, and it cannot be unmounted"),
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_a_pool_are_found_in_the_table() {
        let table = "22 27 0:21 / /proc rw,relatime - proc proc rw\n\
                     90 27 0:52 / /mnt/a\\040b rw,nosuid shared:5 master:1 - fuse.weir tank rw,user_id=0\n\
                     91 27 0:53 / /mnt/c rw - fuse.weirder tank rw\n\
                     92 27 0:54 / /mnt/tank rw - fuse.weir other rw\n\
                     93 27 0:55 / /mnt/d rw - fuse tank rw,user_id=0\n";
        assert_eq!(mount_points(table, "tank"), [Path::new("/mnt/a b"), Path::new("/mnt/d")]);
        assert_eq!(unescaped(br"a\134\0x\04"), br"a\\0x\04");
    }
}

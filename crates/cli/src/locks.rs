//! One process at a time writes a pool: each locks its devices (`flock`) for as long as it has it open.
//!
//! The lock is on the files, not in a file beside them, so it holds whatever folder and name a pool is opened by, and it
//! ends with the process however that ends. Readers take none: they see the last transaction group that was synced.
//! Commands name the process in the way.

use crate::failure::Failure;
use std::collections::BTreeSet;
use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What makes a file or device the same under any path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    /// That of what is at a path.
    pub fn of(path: &Path) -> Option<Self> {
        std::fs::metadata(path).ok().map(|metadata| Self::in_metadata(&metadata))
    }

    fn in_metadata(metadata: &std::fs::Metadata) -> Self {
        Identity { device: metadata.dev(), inode: metadata.ino() }
    }
}

/// The devices of a pool, locked until this is dropped.
#[derive(Debug)]
pub struct Locks {
    files: Vec<File>,
}

impl Locks {
    /// What is locked.
    pub fn identities(&self) -> BTreeSet<Identity> {
        self.files.iter().filter_map(|file| file.metadata().ok()).map(|m| Identity::in_metadata(&m)).collect()
    }
}

/// Locks devices. What cannot be opened is left to whoever needs it.
///
/// # Errors
/// One line that names the process that has one of them.
pub fn lock(pool: &str, mut paths: Vec<PathBuf>) -> Result<Locks, Failure> {
    // In one order, so that of two processes one gets them all.
    paths.sort();
    paths.dedup();
    let mut files = Vec::new();
    for path in paths {
        let Ok(file) = File::open(&path) else { continue };
        match file.try_lock() {
            Ok(()) => files.push(file),
            Err(TryLockError::WouldBlock) => {
                return Err(Failure::busy(format!("cannot open '{pool}': {}", in_the_way(&path))));
            }
            Err(TryLockError::Error(error)) => {
                return Err(Failure::failed(format!("cannot lock {}: {error}", path.display())));
            }
        }
    }
    Ok(Locks { files })
}

/// Who has a device.
fn in_the_way(path: &Path) -> String {
    let Some(pid) = holder_of(path) else { return format!("another process is writing to {}", path.display()) };
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<_> = line.split(|byte| *byte == 0).filter(|word| !word.is_empty()).take(4).collect();
    let command = words.iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>().join(" ");
    let command = if command.is_empty() { String::new() } else { format!(" ({command})") };
    format!("process {pid}{command} has it open for writing; stop that first")
}

/// The process that holds a lock on a file, as the kernel lists it: `1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE 0 EOF`.
pub fn holder_of(path: &Path) -> Option<u32> {
    let wanted = Identity::of(path)?;
    locked().into_iter().find(|(_, identity)| *identity == wanted).map(|(pid, _)| pid)
}

/// What a process holds locks on.
pub fn held_by(pid: u32) -> BTreeSet<Identity> {
    locked().into_iter().filter(|(holder, _)| *holder == pid).map(|(_, identity)| identity).collect()
}

/// All locks with their holders.
fn locked() -> Vec<(u32, Identity)> {
    let all = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let parse = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let is_flock = words.next() == Some("FLOCK");
        let pid = words.nth(2)?.parse().ok()?;
        let mut place = words.next()?.split(':');
        let mut number = |radix| u64::from_str_radix(place.next()?, radix).ok();
        let (major, minor, inode) = (number(16)?, number(16)?, number(10)?);
        let device = rustix::fs::makedev(u32::try_from(major).ok()?, u32::try_from(minor).ok()?);
        is_flock.then_some((pid, Identity { device, inode }))
    };
    all.lines().filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_one_is_told_who_is_in_the_way() {
        let dir = tempfile::tempdir().unwrap();
        let paths: Vec<PathBuf> = ["b", "a"].map(|name| dir.path().join(name)).to_vec();
        for path in &paths {
            std::fs::write(path, b"x").unwrap();
        }
        let first = lock("p", paths.clone()).unwrap();
        let error = lock("p", paths.clone()).unwrap_err();
        assert_eq!(error.code, 1);
        assert!(error.line.contains("cannot open 'p'"), "{}", error.line);
        // Where the kernel lists locks, it says whose.
        if std::fs::read_to_string("/proc/locks").is_ok_and(|all| !all.is_empty()) {
            assert!(error.line.contains(&format!("process {}", std::process::id())), "{}", error.line);
        }
        drop(first);
        assert!(lock("p", paths).is_ok());
        assert!(lock("p", vec![dir.path().join("nothing")]).is_ok());
    }
}

//! One process at a time writes a pool: each locks its devices (`flock`) for as long as it has it open.
//!
//! The lock is on the files, not in a file beside them, so it holds for every path, link and bind mount that leads to
//! them, and the kernel releases it when the process ends. Readers take no lock: they see the last synced txg. The
//! error of a command names the process that holds the lock.
//!
//! A loop device and the file behind it are the same storage, so both are locked:
//!
//! ```text
//!   named                                   locked
//!   a file                                  the file, exclusively
//!   a loop device of a whole file           the device and the file, exclusively
//!   a partition of a loop device, or a      the device exclusively, the file shared, and of the file the range of bytes
//!   loop device of a part of a file         that the device shows (an open file description lock)
//! ```
//!
//! So two parts of one file may belong to two processes, and a part and the whole may not. The same device under two
//! device nodes is kept to one writer by the kernel (`O_EXCL`). A disk in an object store has a lock
//! file of its own ([`crate::stores`]). Source: Linux `Documentation/ABI/testing/sysfs-block-loop`, `fcntl(2)`.

use crate::admin::remote_process;
use crate::failure::Failure;
use crate::stores::lock_file;
use std::collections::BTreeSet;
use std::fs::{File, TryLockError};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use weir_linux::lock_part;

/// Identity of a file or device, the same under every path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    /// Identity of the file or device at a path. A loop device over a whole file has the file's identity.
    pub fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(lock_file(path)).ok()?;
        match Backing::of(&metadata, Path::new("/sys/dev/block")) {
            Some(Backing { part: None, file }) => std::fs::metadata(file).ok().map(|file| Self::in_metadata(&file)),
            _ => Some(Self::in_metadata(&metadata)),
        }
    }

    fn in_metadata(metadata: &std::fs::Metadata) -> Self {
        Identity { device: metadata.dev(), inode: metadata.ino() }
    }
}

/// The file behind a loop device.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Backing {
    file: PathBuf,
    /// First byte and length in bytes of what the device shows of the file; `None` if it shows the whole file.
    part: Option<(u64, u64)>,
}

impl Backing {
    /// Backing file of the device with this metadata, if it is a loop device or a partition of one. `devices` is
    /// `/sys/dev/block`, which names each block device by its numbers.
    fn of(metadata: &std::fs::Metadata, devices: &Path) -> Option<Self> {
        if !metadata.file_type().is_block_device() {
            return None;
        }
        let number = metadata.rdev();
        let major = rustix::fs::major(number);
        let minor = rustix::fs::minor(number);
        Self::in_folder(&std::fs::canonicalize(devices.join(format!("{major}:{minor}"))).ok()?)
    }

    /// Backing file from a block device's folder in `/sys`. A partition's folder is inside its device's.
    fn in_folder(folder: &Path) -> Option<Self> {
        const SECTOR_BYTES: u64 = 512;
        let text = |folder: &Path, name: &str| {
            std::fs::read_to_string(folder.join(name)).ok().map(|text| text.trim_end_matches('\n').to_owned())
        };
        let number = |folder: &Path, name: &str| text(folder, name)?.trim().parse::<u64>().ok();
        let is_partition = folder.join("partition").exists();
        let device = if is_partition { folder.parent()? } else { folder };
        let file = PathBuf::from(text(device, "loop/backing_file")?);
        let offset_bytes = number(device, "loop/offset").unwrap_or(0);
        let limit_bytes = number(device, "loop/sizelimit").unwrap_or(0);
        let size_bytes = number(folder, "size")?.saturating_mul(SECTOR_BYTES);
        let part = if is_partition {
            let start_bytes = number(folder, "start")?.saturating_mul(SECTOR_BYTES);
            Some((offset_bytes.saturating_add(start_bytes), size_bytes))
        } else {
            (offset_bytes != 0 || limit_bytes != 0).then_some((offset_bytes, size_bytes))
        };
        Some(Backing { file, part })
    }
}

/// The devices of a pool, locked until this is dropped.
#[derive(Debug, Default)]
pub struct Locks {
    files: Vec<LockedFile>,
}

/// A locked file.
#[derive(Debug)]
struct LockedFile {
    /// The device for which it is locked: itself, or one that shows it.
    device: PathBuf,
    file: File,
}

impl Locks {
    /// Identities of the locked files and devices.
    pub fn identities(&self) -> BTreeSet<Identity> {
        let metadata = self.files.iter().filter_map(|locked| locked.file.metadata().ok());
        metadata.map(|metadata| Identity::in_metadata(&metadata)).collect()
    }

    /// Holds further locks as well.
    pub fn join(&mut self, more: Locks) {
        self.files.extend(more.files);
    }

    /// Releases the locks of devices that exist and are not among `own`.
    pub fn release_others(&mut self, own: &BTreeSet<Identity>) {
        self.files.retain(|locked| Identity::of(&locked.device).is_none_or(|identity| own.contains(&identity)));
    }
}

/// Locks devices. Skips devices that cannot be opened: the import reports them.
///
/// # Errors
/// One line that names the process that holds the lock of one of the devices.
pub fn lock(pool: &str, mut paths: Vec<PathBuf>) -> Result<Locks, Failure> {
    // In sorted order, so that one of two competing processes gets all locks.
    paths.sort();
    paths.dedup();
    let mut locks = Locks { files: Vec::new() };
    for path in paths {
        if weir_linux::own_mounts::has(&path) {
            // Opening it as a device says why it cannot be one.
            continue;
        }
        let Ok(file) = File::open(lock_file(&path)) else { continue };
        let backing = file.metadata().ok().and_then(|metadata| Backing::of(&metadata, Path::new("/sys/dev/block")));
        locks.add(pool, (&path, &path), file, How::Alone)?;
        if let Some(Backing { file: behind, part }) = backing {
            locks.add_backing(pool, &path, &behind, part)?;
        }
    }
    Ok(locks)
}

/// How a file is locked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Alone,
    Shared,
}

impl Locks {
    /// Locks a file or device, at its path, for a device.
    fn add(&mut self, pool: &str, (device, path): (&Path, &Path), file: File, how: How) -> Result<(), Failure> {
        let locked = match how {
            How::Alone => file.try_lock(),
            How::Shared => file.try_lock_shared(),
        };
        match locked {
            Ok(()) => self.files.push(LockedFile { device: device.to_owned(), file }),
            Err(TryLockError::WouldBlock) => {
                return Err(in_the_way(pool, path));
            }
            Err(TryLockError::Error(error)) => {
                return Err(Failure::failed(format!("cannot lock {}: {error}", path.display())));
            }
        }
        Ok(())
    }

    /// Locks the file behind a loop device, or the part of it that the device shows.
    fn add_backing(&mut self, pool: &str, device: &Path, path: &Path, part: Option<(u64, u64)>) -> Result<(), Failure> {
        // A file that was deleted, or is in another mount namespace, has no path here that another process could name.
        let Ok(file) = File::options().read(true).write(true).open(path).or_else(|_| File::open(path)) else {
            return Ok(());
        };
        let Some((offset, len)) = part else { return self.add(pool, (device, path), file, How::Alone) };
        match lock_part(&file, offset, len) {
            Ok(()) => self.add(pool, (device, path), file, How::Shared),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                let bytes = format!("bytes {offset} to {} of {}", offset.saturating_add(len), path.display());
                Err(Failure::busy(format!("cannot open '{pool}': another device with {bytes} is in use")))
            }
            Err(error) => Err(Failure::failed(format!("cannot lock a part of {}: {error}", path.display()))),
        }
    }
}

/// Failure that names the process that holds the lock of a device. A process that accepts commands keeps the lock; any
/// other process is a command that soon ends.
fn in_the_way(pool: &str, path: &Path) -> Failure {
    let Some(pid) = holder_of(path) else {
        let line = format!("cannot open '{pool}': another process is writing to {}", path.display());
        return Failure::not_yet(line, "another process");
    };
    let holder = described(pid);
    let line = format!("cannot open '{pool}': {holder} has it open for writing; stop that first");
    let keeps = pid == std::process::id() || remote_process(pid).is_some();
    if keeps { Failure::busy(line) } else { Failure::not_yet(line, holder) }
}

/// Process id and command line of a process.
pub fn described(pid: u32) -> String {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<_> = line.split(|byte| *byte == 0).filter(|word| !word.is_empty()).take(4).collect();
    let command = words.iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>().join(" ");
    let command = if command.is_empty() { String::new() } else { format!(" ({command})") };
    format!("process {pid}{command}")
}

/// The process that holds a lock on a file, as the kernel lists it: `1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE 0
/// EOF`.
pub fn holder_of(path: &Path) -> Option<u32> {
    let wanted = Identity::of(path)?;
    locked().into_iter().find(|(_, identity)| *identity == wanted).map(|(pid, _)| pid)
}

/// Files and devices on which a process holds locks.
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
        let major = number(16)?;
        let minor = number(16)?;
        let inode = number(10)?;
        let device = rustix::fs::makedev(u32::try_from(major).ok()?, u32::try_from(minor).ok()?);
        is_flock.then_some((pid, Identity { device, inode }))
    };
    all.lines().filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a lock that this test has just released. A child process that another test is starting has copies of the
    /// descriptors, and so the locks, until it runs its program.
    #[allow(clippy::disallowed_methods, reason = "waits for a real process")]
    fn when_free(mut lock: impl FnMut() -> Result<Locks, Failure>) -> Locks {
        let started = std::time::Instant::now();
        loop {
            match lock() {
                Ok(locks) => return locks,
                Err(error) => assert!(started.elapsed().as_secs() < 60, "{}", error.line),
            }
            std::thread::yield_now();
        }
    }

    /// Locks files by [`when_free`].
    fn lock_when_free(paths: &[PathBuf]) -> Locks {
        when_free(|| lock("p", paths.to_vec()))
    }

    #[test]
    fn links_and_names_lead_to_the_same_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("disk"), b"x").unwrap();
        std::fs::hard_link(path("disk"), path("hard")).unwrap();
        std::os::unix::fs::symlink(path("disk"), path("soft")).unwrap();
        let first = lock("p", vec![path("disk")]).unwrap();
        for name in ["hard", "soft"] {
            assert!(lock("p", vec![path(name)]).unwrap_err().is_busy(), "{name}");
            assert!(Identity::of(&path(name)).is_some_and(|identity| first.identities().contains(&identity)), "{name}");
        }
    }

    #[test]
    fn devices_that_left_a_pool_are_unlocked() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["kept", "left"].map(|name| dir.path().join(name));
        paths.iter().for_each(|path| std::fs::write(path, b"x").unwrap());
        let mut locks = lock_when_free(&paths);
        let own = BTreeSet::from_iter(Identity::of(&paths[0]));
        locks.release_others(&own);
        assert_eq!(locks.identities(), own);
        assert!(lock("q", vec![paths[0].clone()]).unwrap_err().is_busy());
        drop(lock_when_free(&paths[1..]));
        std::fs::remove_file(&paths[0]).unwrap();
        locks.release_others(&BTreeSet::new());
        assert_eq!(locks.identities().len(), 1, "a device that is away");
    }

    #[test]
    fn the_file_behind_a_loop_device_is_read_from_its_folder_in_sys() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("loop7/size", "524288\n");
        assert_eq!(Backing::in_folder(&dir.path().join("loop7")), None, "no file is behind it");
        put("loop7/loop/backing_file", "/images/my disk\n");
        put("loop7/loop/offset", "0\n");
        put("loop7/loop/sizelimit", "0\n");
        put("loop7/loop7p2/partition", "2\n");
        put("loop7/loop7p2/start", "2048\n");
        put("loop7/loop7p2/size", "4096\n");
        let of = |name: &str| Backing::in_folder(&dir.path().join(name)).unwrap();
        let file = PathBuf::from("/images/my disk");
        assert_eq!(of("loop7"), Backing { file: file.clone(), part: None });
        assert_eq!(of("loop7/loop7p2"), Backing { file: file.clone(), part: Some((2048 * 512, 4096 * 512)) });
        put("loop7/loop/offset", "4096\n");
        assert_eq!(of("loop7"), Backing { file: file.clone(), part: Some((4096, 524_288 * 512)) });
        assert_eq!(of("loop7/loop7p2"), Backing { file, part: Some((4096 + 2048 * 512, 4096 * 512)) });
    }

    #[test]
    fn parts_of_one_file_may_have_two_processes_and_a_part_and_the_whole_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        std::fs::write(&path, vec![0; 8192]).unwrap();
        let behind = |part| {
            let mut locks = Locks { files: Vec::new() };
            locks.add_backing("p", &path, &path, part).map(|()| locks)
        };
        let first = behind(Some((0, 4096))).unwrap();
        let second = behind(Some((4096, 4096))).unwrap();
        assert!(behind(Some((4095, 512))).unwrap_err().line.contains("bytes 4095 to 4607"));
        assert!(behind(None).unwrap_err().is_busy() && lock("p", vec![path.clone()]).unwrap_err().is_busy());
        drop((first, second));
        let whole = when_free(|| behind(None));
        assert!(behind(Some((0, 4096))).unwrap_err().is_busy());
        drop(whole);
    }

    /// A loop device, detached on drop.
    struct Loop(PathBuf);

    impl Loop {
        /// Returns `None` and prints a line where loop devices are not available.
        fn new(words: &[&str], file: &Path) -> Option<Loop> {
            let out = std::process::Command::new("losetup").args(["-f", "--show"]).args(words).arg(file).output();
            match out {
                Ok(out) if out.status.success() => Some(Loop(String::from_utf8(out.stdout).unwrap().trim().into())),
                _ => {
                    eprintln!("skipped: no loop devices here");
                    None
                }
            }
        }
    }

    impl Drop for Loop {
        fn drop(&mut self) {
            // A failed detach leaks the loop device but fails no test.
            let _ = std::process::Command::new("losetup").arg("-d").arg(&self.0).output();
        }
    }

    #[test]
    fn a_loop_device_over_a_file_that_is_open_is_the_same_device() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        std::fs::File::create(&path).unwrap().set_len(8 << 20).unwrap();
        let Some(whole) = Loop::new(&[], &path) else { return };
        assert_eq!(Identity::of(&whole.0), Identity::of(&path));
        let first = lock("p", vec![path.clone()]).unwrap();
        assert!(lock("p", vec![whole.0.clone()]).unwrap_err().is_busy(), "the file is open");
        drop(first);
        let second = lock_when_free(std::slice::from_ref(&whole.0));
        assert!(lock("p", vec![path.clone()]).unwrap_err().is_busy(), "the loop device is open");
        assert!(Identity::of(&path).is_some_and(|identity| second.identities().contains(&identity)));
        drop(second);
        drop(lock_when_free(std::slice::from_ref(&path)));
        let Some(part) = Loop::new(&["-o", "1048576", "--sizelimit", "4194304"], &path) else { return };
        let third = lock_when_free(std::slice::from_ref(&part.0));
        for other in [&path, &whole.0] {
            assert!(lock("p", vec![other.clone()]).unwrap_err().is_busy(), "{}", other.display());
        }
        drop(third);
        drop(lock_when_free(&[path]));
    }

    #[test]
    fn a_second_lock_fails_and_names_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        let paths: Vec<PathBuf> = ["b", "a"].map(|name| dir.path().join(name)).to_vec();
        for path in &paths {
            std::fs::write(path, b"x").unwrap();
        }
        let first = lock("p", paths.clone()).unwrap();
        let error = lock("p", paths.clone()).unwrap_err();
        assert_eq!(error.code, 1);
        assert!(error.line.contains("cannot open 'p'"), "{}", error.line);
        // The holder is known where the kernel lists locks.
        if std::fs::read_to_string("/proc/locks").is_ok_and(|all| !all.is_empty()) {
            assert!(error.line.contains(&format!("process {}", std::process::id())), "{}", error.line);
        }
        drop(first);
        drop(lock_when_free(&paths));
        assert!(lock("p", vec![dir.path().join("nothing")]).is_ok());
    }
}

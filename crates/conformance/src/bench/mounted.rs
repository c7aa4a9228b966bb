//! Writes through mounts: the same work on each file system.
//!
//! One worker writes plain files in a folder, whatever file system it is on. Weir and zfs-fuse mount through
//! FUSE; btrfs and xfs are mounted by the kernel on a loop device with direct I/O. Each is a new file system in the
//! same file. A file system that this machine lacks is reported in a line, and has no row.
//!
//! Each keeps the same promise. As strace shows, zfs-fuse writes its intent log and flushes the file below before it
//! answers an fsync; with 8 clients, once for about four of them. It takes ten requests of the kernel to create, sync
//! and remove a file; Weir takes nine.
//!
//! FUSE does not forward `sync(2)`. To make everything stable at once, the worker runs a command of each file system:
//! `weir zpool sync`; in zfs-fuse a property is set, which waits for the txg; otherwise
//! `sync -f`.
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use super::write_child::{
    PIECE_BYTES, POOL, SMALL_BYTES, SMALL_CLIENTS, SMALL_TIME, SYNCED_BYTES, SYNCED_TIME, make_pool, noise, small_names,
};
use super::{Measured, cpu_seconds, line_of, peak_bytes, succeeded, zfs_fuse};
use crate::JudgeError;
use crate::process::{Mounted, weir};
use crate::report::line;
use crate::zdb::Tools;

/// Environment variable with the shell command that makes everything stable; the mount point is appended, unless it
/// ends in `#`.
const SYNC_ALL: &str = "WEIR_BENCH_SYNC";

/// Prefix of the folders on which loop devices are mounted.
const MOUNTPOINT: &str = "weir-bench-";

/// A file system that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MountedBy {
    /// `weir mount`.
    Weir,
    /// zfs-fuse.
    ZfsFuse,
    /// The kernel's btrfs.
    Btrfs,
    /// The kernel's xfs.
    Xfs,
}

impl MountedBy {
    /// All except Weir.
    pub const PEERS: [MountedBy; 3] = [MountedBy::ZfsFuse, MountedBy::Btrfs, MountedBy::Xfs];

    /// Name in a row.
    pub fn name(self) -> &'static str {
        match self {
            MountedBy::Weir => "Weir",
            MountedBy::ZfsFuse => "zfs-fuse",
            MountedBy::Btrfs => "btrfs",
            MountedBy::Xfs => "xfs",
        }
    }
}

/// Makes a new file system in `image` (the only one in its folder), runs the worker on it, and destroys it.
///
/// # Errors
/// [`JudgeError::Missing`] if this machine lacks the file system; other failures.
pub fn measure(by: MountedBy, image: &Path, what: &str, mib: u64) -> Result<Measured, JudgeError> {
    match by {
        MountedBy::Weir => in_weir(image, what, mib),
        MountedBy::ZfsFuse => {
            let program = own_program()?;
            let home = image.parent().unwrap_or(Path::new("/"));
            let (image, mib) = (image.display().to_string(), mib.to_string());
            let zfs = Tools::find()?.folder().join("peer/sbin/zfs");
            let sync = format!("{SYNC_ALL}={} set weir:synced=\"$(date +%N)\" {POOL} #", zfs.display());
            let worker = ["env", &sync, &program, "mounted-bench-child", what, &mib];
            line_of(&zfs_fuse(home, &[&["write", POOL, &image], &worker[..]].concat())?)
        }
        MountedBy::Btrfs => in_kernel(image, &["mkfs.btrfs", "-q", "-f"], what, mib),
        MountedBy::Xfs => in_kernel(image, &["mkfs.xfs", "-q", "-f"], what, mib),
    }
}

fn own_program() -> Result<String, JudgeError> {
    let program = std::env::current_exe();
    let program = program.map_err(|source| JudgeError::Io { what: "own program".to_string(), source })?;
    Ok(program.display().to_string())
}

fn worker(folder: &Path, what: &str, mib: u64, sync: &str) -> Result<Measured, JudgeError> {
    let (mib, folder) = (mib.to_string(), folder.display().to_string());
    let mut command = Command::new(own_program()?);
    line_of(&succeeded(command.env(SYNC_ALL, sync).args(["mounted-bench-child", what, &mib, &folder]))?)
}

/// Measures `weir mount`. Processor time and memory are those of the server.
fn in_weir(image: &Path, what: &str, mib: u64) -> Result<Measured, JudgeError> {
    let folder = image.parent().unwrap_or(Path::new("/"));
    let failed = |error: &dyn std::fmt::Display| JudgeError::Process { command: "make".into(), why: error.to_string() };
    let machine = weir_linux::machine().map_err(|error| failed(&error))?;
    machine.block_on(async {
        let engine = make_pool(&machine, folder, "single").await?;
        engine.export().await.map_err(|error| failed(&error))
    })?;
    let mounted = Mounted::writable(folder, POOL)?;
    let server = mounted.id().unwrap_or_default().to_string();
    let begun = cpu_seconds(&server);
    let sync = format!("{} zpool sync -d {} {POOL} #", weir()?.display(), folder.display());
    let mut measured = worker(&mounted.path(""), what, mib, &sync)?;
    measured.cpu_seconds = cpu_seconds(&server) - begun;
    measured.peak_bytes = peak_bytes(&server);
    mounted.stop()?;
    Ok(measured)
}

/// A file system of the kernel, mounted on a loop device until dropped.
pub(super) struct Looped {
    device: String,
    mountpoint: tempfile::TempDir,
}

impl Looped {
    /// Makes a file system in `image` and mounts it.
    pub(super) fn new(image: &Path, mkfs: &[&str]) -> Result<Looped, JudgeError> {
        let missing = |what: String| JudgeError::Missing { what };
        let run = |command: &mut Command| {
            succeeded(command).map_err(|error| missing(format!("{}: {error}", command.get_program().display())))
        };
        let (program, options) = mkfs.split_first().ok_or_else(|| missing("no mkfs".to_string()))?;
        let mountpoint = tempfile::Builder::new().prefix(MOUNTPOINT).tempdir();
        let mountpoint = mountpoint.map_err(|source| JudgeError::Io { what: "mount point".to_string(), source })?;
        let device = run(Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(image))?;
        let looped = Looped { device: device.trim().to_string(), mountpoint };
        run(Command::new(program).args(options).arg(&looped.device))?;
        run(Command::new("mount").arg(&looped.device).arg(looped.mountpoint.path()))?;
        Ok(looped)
    }

    /// Where it is mounted.
    pub(super) fn path(&self) -> &Path {
        self.mountpoint.path()
    }

    /// Unmounts and mounts again, so that the kernel holds none of its pages.
    pub(super) fn remount(&mut self) -> Result<(), JudgeError> {
        succeeded(Command::new("umount").arg(self.mountpoint.path()))?;
        succeeded(Command::new("mount").arg(&self.device).arg(self.mountpoint.path())).map(drop)
    }
}

impl Drop for Looped {
    fn drop(&mut self) {
        // Unmounting a folder that is not mounted is harmless.
        let _ = crate::zdb::output(Command::new("umount").arg(self.mountpoint.path()));
        let _ = crate::zdb::output(Command::new("losetup").arg("--detach").arg(&self.device));
    }
}

/// Unmounts and detaches loop devices that a killed benchmark left behind: only those whose file is in `home`.
pub fn remove_leftovers(home: &Path) {
    let Ok(home) = home.canonicalize() else { return };
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    for device in loops_in(Path::new("/sys/block"), &home) {
        for mountpoint in mountpoints_of(&device, &mounts) {
            let _ = crate::zdb::output(Command::new("umount").arg(mountpoint));
            // A folder that is not empty or has another name stays.
            if mountpoint.file_name().is_some_and(|name| name.to_string_lossy().starts_with(MOUNTPOINT)) {
                let _ = std::fs::remove_dir(mountpoint);
            }
        }
        let _ = crate::zdb::output(Command::new("losetup").arg("--detach").arg(&device));
        line(&format!("{}: left behind by a bench that was killed, removed", device.display()));
    }
}

/// Returns the loop devices whose file is in `home`; `block` is the folder of block devices in sysfs.
fn loops_in(block: &Path, home: &Path) -> Vec<PathBuf> {
    let mut loops = Vec::new();
    for entry in std::fs::read_dir(block).into_iter().flatten().flatten() {
        let Ok(file) = std::fs::read_to_string(entry.path().join("loop/backing_file")) else { continue };
        if Path::new(file.trim_end()).starts_with(home) {
            loops.push(Path::new("/dev").join(entry.file_name()));
        }
    }
    loops.sort();
    loops
}

/// Returns the mount points of a device in the kernel's list of mounts.
fn mountpoints_of<'a>(device: &Path, mounts: &'a str) -> Vec<&'a Path> {
    let pairs = mounts.lines().filter_map(|mount| mount.split_once(' '));
    let of_device = pairs.filter(|(source, _)| Path::new(source) == device);
    of_device.filter_map(|(_, rest)| rest.split(' ').next()).map(Path::new).collect()
}

fn in_kernel(image: &Path, mkfs: &[&str], what: &str, mib: u64) -> Result<Measured, JudgeError> {
    let looped = Looped::new(image, mkfs)?;
    worker(looped.mountpoint.path(), what, mib, "sync -f")
}

/// Measuring process: writes in a folder.
pub fn main(what: &str, mib: &str, folder: &str) -> ExitCode {
    let folder = Path::new(folder);
    let begun = Instant::now();
    let done = match (what, mib.parse::<u64>()) {
        ("sequential", Ok(mib)) => sequential(folder, mib),
        ("synced-1", Ok(_)) => synced(folder),
        ("small", Ok(_)) => small(folder, true),
        ("small-once", Ok(_)) => small(folder, false),
        _ => Err(std::io::Error::other(format!("{} {what}", super::UNKNOWN))),
    };
    match done {
        Ok((bytes, operations)) => {
            let seconds = begun.elapsed().as_secs_f64();
            line(&Measured { bytes, operations, seconds, ..Measured::default() }.to_line());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{}: {error}", folder.display());
            ExitCode::FAILURE
        }
    }
}

fn sequential(folder: &Path, mib: u64) -> std::io::Result<(u64, u64)> {
    let data = noise(7, 8 * PIECE_BYTES);
    let mut file = File::create(folder.join("large"))?;
    for (_, piece) in (0..mib).zip(data.chunks_exact(PIECE_BYTES).cycle()) {
        file.write_all(piece)?;
    }
    file.sync_all()?;
    Ok((mib << 20, mib))
}

fn synced(folder: &Path) -> std::io::Result<(u64, u64)> {
    let data = noise(9, SYNCED_BYTES);
    let file = File::create(folder.join("synced"))?;
    let begun = Instant::now();
    let mut operations = 0;
    while begun.elapsed() < SYNCED_TIME {
        file.write_all_at(&data, operations * SYNCED_BYTES as u64)?;
        file.sync_all()?;
        operations += 1;
    }
    Ok((operations * SYNCED_BYTES as u64, operations))
}

/// Many small files in directories of their own clients. Files are stable one by one, or all after the last; then all
/// are removed, and that is made stable.
fn small(folder: &Path, each: bool) -> std::io::Result<(u64, u64)> {
    let data = &noise(11, SMALL_BYTES);
    let begun = Instant::now();
    let made = clients(|client| make_small(folder, client, data, begun, each))?;
    if !each {
        sync_all(folder)?;
    }
    let gone = clients(|client| {
        let made = made.get(client as usize).map_or(&[][..], Vec::as_slice);
        made.iter().try_for_each(std::fs::remove_file)?;
        for (dir, _) in small_names(client).filter(|_| each) {
            File::open(folder.join(dir))?.sync_all()?;
        }
        Ok(made.len() as u64)
    })?;
    if !each {
        sync_all(folder)?;
    }
    let gone = gone.into_iter().sum();
    Ok((gone * SMALL_BYTES as u64, gone))
}

/// Runs the clients concurrently and returns their results.
fn clients<T: Send>(client: impl Fn(u64) -> std::io::Result<T> + Sync) -> std::io::Result<Vec<T>> {
    let client = &client;
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..SMALL_CLIENTS).map(|number| scope.spawn(move || client(number))).collect();
        let lost = |_| Err(std::io::Error::other("a client was lost"));
        all.into_iter().map(|client| client.join().unwrap_or_else(lost)).collect()
    })
}

/// Returns the created files; creates no more after the time limit.
fn make_small(folder: &Path, client: u64, data: &[u8], begun: Instant, each: bool) -> std::io::Result<Vec<PathBuf>> {
    let mut made = Vec::new();
    for (dir, names) in small_names(client) {
        let dir = folder.join(dir);
        std::fs::create_dir(&dir)?;
        for name in names.iter().take_while(|_| begun.elapsed() < SMALL_TIME) {
            let path = dir.join(name);
            let mut file = File::create(&path)?;
            file.write_all(data)?;
            if each {
                file.sync_all()?;
            }
            made.push(path);
        }
    }
    Ok(made)
}

fn sync_all(folder: &Path) -> std::io::Result<()> {
    let words = std::env::var(SYNC_ALL).map_err(std::io::Error::other)?;
    let line = words.strip_suffix('#').map_or(format!("{words} {}", folder.display()), str::to_string);
    let done = Command::new("sh").args(["-c", &line]).stdin(Stdio::null()).stdout(Stdio::null()).status()?;
    if done.success() { Ok(()) } else { Err(std::io::Error::other(format!("{line}: {done}"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loops_on_own_files_are_leftovers() {
        let block = tempfile::tempdir().unwrap();
        for (name, file) in [
            ("loop0", Some("/b/bench/write/single/d0")),
            ("loop1", Some("/b/benches/d0")),
            ("loop2", Some("/b/bench/write/mirror/d1 (deleted)")),
            ("loop3", None),
        ] {
            let about = block.path().join(name).join("loop");
            std::fs::create_dir_all(&about).unwrap();
            file.map_or(Ok(()), |file| std::fs::write(about.join("backing_file"), format!("{file}\n"))).unwrap();
        }
        std::fs::create_dir(block.path().join("vda")).unwrap();
        let found = loops_in(block.path(), Path::new("/b/bench"));
        assert_eq!(found, [Path::new("/dev/loop0"), Path::new("/dev/loop2")]);
        let mounts = "/dev/loop1 /a ext4 rw 0 0\n/dev/loop0 /tmp/weir-bench-x xfs rw 0 0\n/dev/loop0 /b xfs rw 0 0\n";
        assert_eq!(mountpoints_of(&found[0], mounts), [Path::new("/tmp/weir-bench-x"), Path::new("/b")]);
        assert!(mountpoints_of(&found[1], mounts).is_empty());
    }
}

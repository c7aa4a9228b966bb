//! The same writing through every file system's own door: a mount.
//!
//! One worker writes plain files in a folder; it does not know whose folder it is. Weir and zfs-fuse mount through FUSE,
//! btrfs and xfs by the kernel on a loop device that goes past the page cache; each on a new file system in the same file.
//! What this machine does not have is a line that says so, and no row.
//!
//! Each keeps the same promise. What zfs-fuse does at an fsync was looked at with strace: it writes its intent log and flushes
//! the file below before it answers, by 8 clients once for some four of them. It takes ten requests of the kernel for a file
//! that is made, synced and removed; Weir takes nine.
//!
//! FUSE passes no `sync(2)` on. Where all is to be made stable at once, each file system has a command of its own for that,
//! which the worker runs: `weir zpool sync`; a property set in zfs-fuse, which waits for its transaction group; `sync -f`.
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

/// The variable with the command for a shell that makes all stable; the mount point goes behind it, unless it ends in `#`.
const SYNC_ALL: &str = "WEIR_BENCH_SYNC";

/// How the names of folders begin that loop devices are mounted on.
const MOUNTPOINT: &str = "weir-bench-";

/// Whose mount it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whose {
    /// `weir mount`.
    Weir,
    /// zfs-fuse.
    ZfsFuse,
    /// The kernel's btrfs.
    Btrfs,
    /// The kernel's xfs.
    Xfs,
}

impl Whose {
    /// All others.
    pub const PEERS: [Whose; 3] = [Whose::ZfsFuse, Whose::Btrfs, Whose::Xfs];

    /// The name in a row.
    pub fn name(self) -> &'static str {
        match self {
            Whose::Weir => "Weir",
            Whose::ZfsFuse => "zfs-fuse",
            Whose::Btrfs => "btrfs",
            Whose::Xfs => "xfs",
        }
    }
}

/// Makes a new file system in `image` (the only one in its folder), has the worker write there, and takes it away.
///
/// # Errors
/// [`JudgeError::Missing`] if this machine does not have it; what fails.
pub fn measure(whose: Whose, image: &Path, what: &str, mib: u64) -> Result<Measured, JudgeError> {
    match whose {
        Whose::Weir => in_weir(image, what, mib),
        Whose::ZfsFuse => {
            let program = own_program()?;
            let home = image.parent().unwrap_or(Path::new("/"));
            let (image, mib) = (image.display().to_string(), mib.to_string());
            let zfs = Tools::find()?.folder().join("peer/sbin/zfs");
            let sync = format!("{SYNC_ALL}={} set weir:synced=\"$(date +%N)\" {POOL} #", zfs.display());
            let worker = ["env", &sync, &program, "mounted-bench-child", what, &mib];
            line_of(&zfs_fuse(home, &[&["write", POOL, &image], &worker[..]].concat())?)
        }
        Whose::Btrfs => in_kernel(image, &["mkfs.btrfs", "-q", "-f"], what, mib),
        Whose::Xfs => in_kernel(image, &["mkfs.xfs", "-q", "-f"], what, mib),
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

/// Processor time and memory are those of the program that serves the mount.
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

/// A file system of the kernel, mounted on a loop device; gone when this is dropped.
struct Looped {
    device: String,
    mountpoint: tempfile::TempDir,
}

impl Looped {
    fn new(image: &Path, mkfs: &[&str]) -> Result<Looped, JudgeError> {
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
}

impl Drop for Looped {
    fn drop(&mut self) {
        // What was not mounted cannot be unmounted, without harm.
        let _ = crate::zdb::output(Command::new("umount").arg(self.mountpoint.path()));
        let _ = crate::zdb::output(Command::new("losetup").arg("--detach").arg(&self.device));
    }
}

/// Unmounts and detaches what a bench that was killed has left behind: loop devices whose file lies in `home`, no others.
pub fn remove_leftovers(home: &Path) {
    let Ok(home) = home.canonicalize() else { return };
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    for device in loops_in(Path::new("/sys/block"), &home) {
        for mountpoint in mountpoints_of(&device, &mounts) {
            let _ = crate::zdb::output(Command::new("umount").arg(mountpoint));
            // What is not empty, or is no folder of ours, stays.
            if mountpoint.file_name().is_some_and(|name| name.to_string_lossy().starts_with(MOUNTPOINT)) {
                let _ = std::fs::remove_dir(mountpoint);
            }
        }
        let _ = crate::zdb::output(Command::new("losetup").arg("--detach").arg(&device));
        line(&format!("{}: left behind by a bench that was killed, removed", device.display()));
    }
}

/// The loop devices whose file lies in `home`; `block` is what the kernel tells of block devices.
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

/// Where a device is mounted, as the kernel's list of mounts says.
fn mountpoints_of<'a>(device: &Path, mounts: &'a str) -> Vec<&'a Path> {
    let pairs = mounts.lines().filter_map(|mount| mount.split_once(' '));
    let of_device = pairs.filter(|(source, _)| Path::new(source) == device);
    of_device.filter_map(|(_, rest)| rest.split(' ').next()).map(Path::new).collect()
}

fn in_kernel(image: &Path, mkfs: &[&str], what: &str, mib: u64) -> Result<Measured, JudgeError> {
    let looped = Looped::new(image, mkfs)?;
    worker(looped.mountpoint.path(), what, mib, "sync -f")
}

/// The measuring process: writes in a folder.
pub fn main(what: &str, mib: &str, folder: &str) -> ExitCode {
    let folder = Path::new(folder);
    let begun = Instant::now();
    let done = match (what, mib.parse::<u64>()) {
        ("sequential", Ok(mib)) => sequential(folder, mib),
        ("synced-1", Ok(_)) => synced(folder),
        ("small", Ok(_)) => small(folder, true),
        ("small-once", Ok(_)) => small(folder, false),
        _ => Err(std::io::Error::other(format!("no measurement is called {what}"))),
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
    let (begun, mut operations) = (Instant::now(), 0);
    while begun.elapsed() < SYNCED_TIME {
        file.write_all_at(&data, operations * SYNCED_BYTES as u64)?;
        file.sync_all()?;
        operations += 1;
    }
    Ok((operations * SYNCED_BYTES as u64, operations))
}

/// Many small files in directories of their own clients: each made and stable at once, or all after the last; all gone,
/// and that stable too.
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

/// What each of the clients gives, side by side.
fn clients<T: Send>(client: impl Fn(u64) -> std::io::Result<T> + Sync) -> std::io::Result<Vec<T>> {
    let client = &client;
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..SMALL_CLIENTS).map(|number| scope.spawn(move || client(number))).collect();
        let lost = |_| Err(std::io::Error::other("a client was lost"));
        all.into_iter().map(|client| client.join().unwrap_or_else(lost)).collect()
    })
}

/// Gives what it made: no more when the time is over.
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

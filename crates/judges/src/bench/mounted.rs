//! The same writing through every file system's own door: a mount.
//!
//! One worker writes plain files in a folder; it does not know whose folder it is. Weir and zfs-fuse mount through FUSE,
//! btrfs and xfs by the kernel on a loop device that goes past the page cache; each on a new file system in the same file.
//! What this machine does not have is a line that says so, and no row.
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use super::write_child::{
    PIECE_BYTES, POOL, SMALL_BYTES, SMALL_CLIENTS, SMALL_TIME, SYNCED_BYTES, SYNCED_TIME, make_pool, noise, small_names,
};
use super::{Measured, cpu_seconds, line_of, measuring, peak_bytes, succeeded, zfs_fuse};
use crate::JudgeError;
use crate::process::Mounted;
use crate::report::line;
use weir_machine::Machine;

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
            line_of(&zfs_fuse(home, &["write", POOL, &image, &program, "mounted-bench-child", what, &mib])?)
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

fn worker(folder: &Path, what: &str, mib: u64) -> Result<Measured, JudgeError> {
    line_of(&measuring(&["mounted-bench-child", what, &mib.to_string(), &folder.display().to_string()])?)
}

/// Processor time and memory are those of the program that serves the mount.
fn in_weir(image: &Path, what: &str, mib: u64) -> Result<Measured, JudgeError> {
    let folder = image.parent().unwrap_or(Path::new("/"));
    let failed = |error: &dyn std::fmt::Display| JudgeError::Process { command: "make".into(), why: error.to_string() };
    let machine = Machine::production().map_err(|error| failed(&error))?;
    machine.block_on(async {
        let engine = make_pool(&machine, folder, "single").await?;
        engine.export().await.map_err(|error| failed(&error))
    })?;
    let mounted = Mounted::writable(folder, POOL)?;
    let server = mounted.id().unwrap_or_default().to_string();
    let begun = cpu_seconds(&server);
    let mut measured = worker(&mounted.path(""), what, mib)?;
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
        let mountpoint = tempfile::Builder::new().prefix("weir-bench-").tempdir();
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

fn in_kernel(image: &Path, mkfs: &[&str], what: &str, mib: u64) -> Result<Measured, JudgeError> {
    let looped = Looped::new(image, mkfs)?;
    worker(looped.mountpoint.path(), what, mib)
}

/// The measuring process: writes in a folder.
pub fn main(what: &str, mib: &str, folder: &str) -> ExitCode {
    let folder = Path::new(folder);
    let begun = Instant::now();
    let done = match (what, mib.parse::<u64>()) {
        ("sequential", Ok(mib)) => sequential(folder, mib),
        ("synced-1", Ok(_)) => synced(folder),
        ("small", Ok(_)) => small(folder),
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

/// Many small files in directories of their own client: each made and stable; all gone, and that stable too.
fn small(folder: &Path) -> std::io::Result<(u64, u64)> {
    let data = &noise(11, SMALL_BYTES);
    let made = std::thread::scope(|scope| {
        let clients = (0..SMALL_CLIENTS).map(|client| scope.spawn(move || small_client(folder, client, data)));
        let clients: Vec<_> = clients.collect();
        let lost = |_| Err(std::io::Error::other("a client was lost"));
        clients.into_iter().map(|client| client.join().unwrap_or_else(lost)).sum::<std::io::Result<u64>>()
    })?;
    Ok((made * SMALL_BYTES as u64, made))
}

/// Gives how many it made: no more when the time is over.
fn small_client(folder: &Path, client: u64, data: &[u8]) -> std::io::Result<u64> {
    let (begun, mut made) = (Instant::now(), Vec::new());
    for (dir, names) in small_names(client) {
        let dir = folder.join(dir);
        std::fs::create_dir(&dir)?;
        for name in names.iter().take_while(|_| begun.elapsed() < SMALL_TIME) {
            let path = dir.join(name);
            let mut file = File::create(&path)?;
            file.write_all(data)?;
            file.sync_all()?;
            made.push(path);
        }
    }
    made.iter().try_for_each(std::fs::remove_file)?;
    for (dir, _) in small_names(client) {
        File::open(folder.join(dir))?.sync_all()?;
    }
    Ok(made.len() as u64)
}

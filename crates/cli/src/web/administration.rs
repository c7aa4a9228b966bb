//! Administration by the page: command lines of this process, carried out as those that arrive on its socket.
#![allow(clippy::disallowed_methods, reason = "a real process, in real time")]

use super::disks::SmartCache;
use crate::call::{Call, DIRS_VARIABLE, Input, Line};
use crate::command_target::now;
use crate::locks::Identity;
use crate::log;
use crate::places;
use crate::process::PoolProcess;
use bytes::Bytes;
use futures_util::future::{BoxFuture, Either, select};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::task::spawn_blocking;
use weir_daemon::admin::Caller;
use weir_engine::create::NewLeaf;
use weir_engine::create::devices::owner;
use weir_machine::{Access, Clock, Machine};
use weir_planner::hardware::drive::DriveSpec;
use weir_planner::plan::capacity;
use weir_planner::simulate::server::{PoolSpec, VdevLayout};
use weir_pool::scan;
use weir_web::{
    Administration, CommandLine, Device, Disk, LayoutQuery, Ran, STALL_TIME, Secret, StreamEnd, UsableSpace, VdevKind,
};

/// Maximum size of the output of a command in bytes: the list of some hundred thousand snapshots.
const MAX_OUTPUT_BYTES: usize = 64 << 20;
/// Maximum number of devices that are listed.
const MAX_DEVICES: usize = 1024;
/// Maximum number of devices and vdevs of a layout.
const MAX_LAYOUT: usize = 255;
/// Commands that wait for clients, whose list is read again before.
const CLOSING: [&str; 2] = ["export", "destroy"];

/// This process, as the page administers it.
pub struct ProcessAdministration {
    process: Arc<PoolProcess>,
    smart: Arc<SmartCache>,
}

impl ProcessAdministration {
    /// The administration of this process.
    pub fn new(process: Arc<PoolProcess>) -> Self {
        ProcessAdministration { process, smart: Arc::default() }
    }
}

impl ProcessAdministration {
    /// Carries out a command line, with an input and an output of its own.
    async fn carry_out(&self, line: &CommandLine, ends: Ends<'_>) -> Ran {
        let caller = Caller {
            program: line.program.to_owned(),
            words: line.words.iter().map(OsString::from).collect(),
            folder: PathBuf::from("/"),
            dirs: std::env::var_os(DIRS_VARIABLE),
            ids: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
            terminal: false,
            colors: false,
        };
        let (to, from) = mpsc::unbounded_channel();
        let gone = Arc::new(AtomicBool::new(false));
        let waiting = Arc::new(AtomicUsize::new(0));
        let call = Call::of_client(caller, self.process.clone(), to, gone.clone(), waiting.clone());
        let done = spawn_blocking(move || crate::carry_out(&call));
        let collecting =
            Collecting { clock: self.process.machine.clock.clone(), gone, waiting, ends, rest: Bytes::new() };
        let mut ran = collecting.collect(from).await;
        // A command whose task panicked has failed.
        ran.code = done.await.unwrap_or(1);
        crate::admin::refresh_cache_files(&self.process).await;
        ran
    }
}

impl Administration for ProcessAdministration {
    fn run<'a>(&'a self, line: &'a CommandLine, secret: Option<&'a Secret>) -> BoxFuture<'a, Ran> {
        Box::pin(async move {
            if line.program == "zpool" && line.words.first().is_some_and(|word| CLOSING.contains(&word.as_str())) {
                for pool in self.process.all() {
                    pool.refresh_clients().await;
                }
            }
            self.carry_out(line, Ends { secret, stream: None }).await
        })
    }

    fn stream<'a>(&'a self, line: &'a CommandLine, end: StreamEnd) -> BoxFuture<'a, Ran> {
        Box::pin(self.carry_out(line, Ends { secret: None, stream: Some(end) }))
    }

    fn contents<'a>(&'a self, devices: &'a [String]) -> BoxFuture<'a, Vec<String>> {
        let (machine, devices) = (self.process.machine.clone(), devices.to_vec());
        Box::pin(async move {
            let look = move || devices.iter().take(MAX_DEVICES).map(|path| described(&machine, path)).collect();
            spawn_blocking(look).await.unwrap_or_default()
        })
    }

    fn devices(&self, path: Option<String>) -> BoxFuture<'_, Vec<Device>> {
        let process = self.process.clone();
        Box::pin(async move { spawn_blocking(move || devices(&process, path)).await.unwrap_or_default() })
    }

    fn disks(&self) -> BoxFuture<'_, Vec<Disk>> {
        let (process, smart) = (self.process.clone(), self.smart.clone());
        Box::pin(async move { spawn_blocking(move || disks(&process, &smart)).await.unwrap_or_default() })
    }

    fn usable_space(&self, layout: &LayoutQuery) -> Result<UsableSpace, String> {
        usable_space(layout)
    }

    fn log(&self) -> Vec<String> {
        log::last_lines()
    }

    fn time(&self) -> String {
        crate::daemon::utc(now().sec)
    }
}

/// Where the input of a command comes from, and where its output goes beside its result.
struct Ends<'a> {
    /// Answer to questions for a line.
    secret: Option<&'a Secret>,
    stream: Option<StreamEnd>,
}

/// A command whose output is collected.
struct Collecting<'a> {
    clock: Clock,
    /// Set if no one reads the output any more, or there is too much of it: commands that print without bound end then.
    gone: Arc<AtomicBool>,
    waiting: Arc<AtomicUsize>,
    ends: Ends<'a>,
    /// Rest of the last chunk of the input, which the command has not asked for yet.
    rest: Bytes,
}

impl Collecting<'_> {
    /// Collects the output of the command until it ends.
    async fn collect(mut self, mut from: UnboundedReceiver<Line>) -> Ran {
        let mut out = Vec::new();
        let mut err = Vec::new();
        let mut is_too_long = false;
        while let Some(line) = from.recv().await {
            self.waiting.fetch_sub(line.bytes(), Ordering::Relaxed);
            let (to, bytes) = match line {
                Line::Out(bytes) => match &self.ends.stream {
                    Some(StreamEnd::Output(to)) => {
                        // After the first chunk that was not taken, no further one is waited for.
                        if !self.gone.load(Ordering::Relaxed) && !give(&self.clock, to, bytes).await {
                            self.gone.store(true, Ordering::Relaxed);
                        }
                        continue;
                    }
                    _ => (&mut out, bytes),
                },
                Line::Err(bytes) => (&mut err, bytes),
                Line::Ask(input, to) => {
                    // The receiver is closed if the command ended meanwhile.
                    drop(to.send(self.input(input).await));
                    continue;
                }
            };
            if to.len() + bytes.len() > MAX_OUTPUT_BYTES {
                self.gone.store(true, Ordering::Relaxed);
                is_too_long = true;
            } else {
                to.extend(bytes);
            }
        }
        if is_too_long {
            err.extend_from_slice(b"the command printed more than 64 MiB, and the rest was left out\n");
        }
        debug_assert!(out.len() <= MAX_OUTPUT_BYTES, "output is bounded");
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ran { code: 0, out: text(out), err: text(err) }
    }

    /// The input that the command asks for: the secret, or the next bytes of the stream. Raw keys are not for the page.
    async fn input(&mut self, asked: Input) -> Vec<u8> {
        match (asked, &mut self.ends.stream) {
            (Input::Line(_), _) => self.ends.secret.map(|secret| secret.text().as_bytes().to_vec()).unwrap_or_default(),
            (Input::Bytes(most), Some(StreamEnd::Input(from))) => {
                while self.rest.is_empty() {
                    match from.recv().await {
                        Some(chunk) => self.rest = chunk,
                        None => return Vec::new(),
                    }
                }
                let len = self.rest.len().min(most as usize);
                self.rest.split_to(len).to_vec()
            }
            (Input::Bytes(_), _) => Vec::new(),
        }
    }
}

/// Gives a chunk to the reader of a stream; false if it does not take it in time, or is gone.
async fn give(clock: &Clock, to: &mpsc::Sender<Vec<u8>>, bytes: Vec<u8>) -> bool {
    match select(pin!(to.send(bytes)), pin!(clock.sleep(STALL_TIME))).await {
        Either::Left((taken, _)) => taken.is_ok(),
        Either::Right(_) => false,
    }
}

/// A device in one line: path, size, and contents with the GUID of the pool on it.
fn described(machine: &Machine, path: &str) -> String {
    match contents(machine, Path::new(path)) {
        Ok((bytes, what)) => format!("{path}: {bytes} bytes, {what}"),
        Err(why) => format!("{path}: {why}"),
    }
}

/// Size of a device in bytes, and what is on it.
fn contents(machine: &Machine, path: &Path) -> Result<(u64, String), String> {
    if path.is_dir() {
        return Err("a directory, and no device: name a device or a file in it".to_owned());
    }
    let disk = machine.disks.open(path, Access::ReadOnly).map_err(|error| error.to_string())?;
    let bytes = disk.geometry().size_bytes;
    let leaf = NewLeaf { path: path.to_owned(), is_file: path.is_file() };
    let found = machine.block_on(owner(&disk, &leaf)).map_err(|error| error.to_string())?;
    let Some(what) = found else { return Ok((bytes, "no data found".to_owned())) };
    let scanned = machine.block_on(scan(machine, &[path.to_owned()])).map_err(|error| error.to_string())?;
    let guids = weir_pool::assemble(scanned).pools.into_values().map(|pool| pool.config.guid.to_string());
    let guids = guids.collect::<Vec<_>>().join(", ");
    Ok((bytes, if guids.is_empty() { what } else { format!("{what} ({guids})") }))
}

/// The device at a path; without one, devices of this machine that a pool could use, and files in the directories of the
/// configuration.
fn devices(process: &PoolProcess, path: Option<String>) -> Vec<Device> {
    let paths = match path {
        Some(path) => vec![PathBuf::from(path)],
        None => places::usual().into_iter().chain(files(process)).collect(),
    };
    let used: BTreeSet<Identity> = process.paths().iter().filter_map(|path| Identity::of(path)).collect();
    let mut seen = BTreeSet::new();
    let mut out = Vec::new();
    for path in paths {
        let identity = Identity::of(&path);
        if out.len() == MAX_DEVICES || identity.is_some_and(|identity| !seen.insert(identity)) {
            continue;
        }
        let (size_bytes, contents) = contents(&process.machine, &path).unwrap_or_else(|why| (0, why));
        let in_use = identity.is_some_and(|identity| used.contains(&identity));
        out.push(Device { path: path.display().to_string(), size_bytes, contents, in_use });
    }
    debug_assert!(out.len() <= MAX_DEVICES, "the list is bounded");
    out.sort_by(|one, other| one.path.cmp(&other.path));
    out
}

/// Disks of the open pools, then devices that a pool could use. Asking a disk for its health may take seconds.
fn disks(process: &PoolProcess, smart: &SmartCache) -> Vec<Disk> {
    let of_pool = |path: PathBuf| {
        let size = process.machine.disks.open(&path, Access::ReadOnly).map_or(0, |disk| disk.geometry().size_bytes);
        Device { path: path.display().to_string(), size_bytes: size, contents: "in a pool".to_owned(), in_use: true }
    };
    let used = process.paths().into_iter().take(MAX_DEVICES).map(of_pool);
    let free = devices(process, None).into_iter().filter(|device| !device.in_use);
    used.chain(free).map(|device| smart.disk(device)).collect()
}

/// Files in the directories that the configuration and the environment name.
fn files(process: &PoolProcess) -> Vec<PathBuf> {
    let given = std::env::var_os(DIRS_VARIABLE);
    let folders = given.iter().flat_map(std::env::split_paths);
    let configured = process.daemon().map(|daemon| daemon.pool_dirs()).unwrap_or_default();
    let entries = folders.chain(configured).filter_map(|folder| std::fs::read_dir(folder).ok());
    entries.flatten().flatten().map(|entry| entry.path()).filter(|path| path.is_file()).take(MAX_DEVICES).collect()
}

/// Usable space of a layout by the planner's arithmetic.
fn usable_space(query: &LayoutQuery) -> Result<UsableSpace, String> {
    let LayoutQuery { kind, disks, vdevs, disk_bytes } = *query;
    if !(1..=MAX_LAYOUT).contains(&disks) || !(1..=MAX_LAYOUT).contains(&vdevs) || disk_bytes > 1 << 60 {
        return Err(format!("a pool has 1 to {MAX_LAYOUT} vdevs of 1 to {MAX_LAYOUT} devices of less than 1 EiB"));
    }
    let raidz = |parity: u8| match disks > usize::from(parity) {
        true => Ok(VdevLayout::Raidz(parity, disks)),
        false => Err(format!("raidz{parity} needs at least {} devices", parity + 1)),
    };
    let (layout, vdevs) = match kind {
        VdevKind::Stripe => (VdevLayout::Single, vdevs * disks),
        VdevKind::Mirror if disks >= 2 => (VdevLayout::Mirror(disks), vdevs),
        VdevKind::Mirror => return Err("a mirror needs at least 2 devices".to_owned()),
        VdevKind::Raidz1 => (raidz(1)?, vdevs),
        VdevKind::Raidz2 => (raidz(2)?, vdevs),
        VdevKind::Raidz3 => (raidz(3)?, vdevs),
        _ => return Err("only data vdevs have usable space".to_owned()),
    };
    if disk_bytes < weir_format::label::MIN_DEVICE_BYTES {
        return Err(format!("a device has at least {} bytes", weir_format::label::MIN_DEVICE_BYTES));
    }
    // The drive has no part in the arithmetic.
    let drive = DriveSpec::named("hdd-7k").ok_or_else(|| "no drive".to_owned())?;
    let spec = PoolSpec { drive_bytes: disk_bytes, ..PoolSpec::new(drive, layout, vdevs) };
    let space = capacity::computed(&spec);
    let redundancy = layout.redundancy();
    Ok(UsableSpace {
        raw_bytes: space.raw_bytes,
        usable_bytes: space.computed_bytes,
        slop_bytes: space.slop_bytes,
        redundancy,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_no_device() {
        let folder = tempfile::tempdir().unwrap();
        let machine = weir_linux::machine().unwrap();
        let line = described(&machine, &folder.path().display().to_string());
        assert!(line.contains("a directory, and no device"), "{line}");
    }

    #[test]
    fn layouts_have_the_planners_space_and_impossible_ones_are_refused() {
        let of = |kind, disks, vdevs, disk_bytes| usable_space(&LayoutQuery { kind, disks, vdevs, disk_bytes });
        let tb = 1_000_000_000_000;
        let mirror = of(VdevKind::Mirror, 2, 3, 8 * tb).unwrap();
        assert_eq!((mirror.raw_bytes, mirror.redundancy), (48 * tb, 1));
        assert!(mirror.usable_bytes < 24 * tb && mirror.usable_bytes > 23 * tb, "{mirror:?}");
        let wide = of(VdevKind::Raidz2, 9, 1, 4 * tb).unwrap();
        // Padding: 42 sectors for 32, not 41.1.
        assert!(wide.usable_bytes < 28 * tb * 98 / 100, "{wide:?}");
        assert_eq!(
            of(VdevKind::Stripe, 2, 1, tb).unwrap().usable_bytes,
            of(VdevKind::Stripe, 1, 2, tb).unwrap().usable_bytes
        );
        for (kind, disks, vdevs, bytes) in [
            (VdevKind::Mirror, 1, 1, tb),
            (VdevKind::Raidz3, 3, 1, tb),
            (VdevKind::Raidz1, 0, 1, tb),
            (VdevKind::Raidz1, 3, 0, tb),
            (VdevKind::Raidz1, 300, 1, tb),
            (VdevKind::Raidz1, 3, 1, 1000),
            (VdevKind::Raidz1, 3, 1, u64::MAX),
            (VdevKind::Log, 1, 1, tb),
        ] {
            assert!(of(kind, disks, vdevs, bytes).is_err(), "{kind:?} {disks} {vdevs} {bytes}");
        }
    }
}

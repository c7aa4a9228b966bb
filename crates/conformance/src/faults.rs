//! A server whose devices hang, are slow, fail or have no room: what an administrator sees, and that nothing is lost.
//!
//! ```text
//!   weir zpool, weir zfs ─► weir serve ─► files d0, d1 ─► FUSE file system with faults ─► a folder
//! ```
//!
//! The commands are those of an administrator, with a limit of time each: the state of a pool must be answered at all times.
#![allow(clippy::disallowed_methods, reason = "a judge runs other programs in real time")]

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::JudgeError;
use crate::fault_fs::{FaultAnswer, FaultFs};
use crate::process::{Running, weir};
use crate::report::Report;

const POOL: &str = "faulty";
const DEVICE_BYTES: u64 = 128 << 20;
/// Thresholds that the server is given, in seconds.
const SLOW_S: &str = "1";
const DEADMAN_S: &str = "3";
/// Maximum time in which the state of a pool is shown, on a busy machine.
const SHOWN_WITHIN: Duration = Duration::from_secs(5);
/// Maximum time of a change, including that until a device is taken out of service.
const DONE_WITHIN: Duration = Duration::from_secs(40);
const ENOSPC: i32 = 28;
const EIO: i32 = 5;
/// Time of each operation of a slow device: above the first threshold, and below the second.
const SLOW_TIME: Duration = Duration::from_millis(1300);

/// A judge of one case: its command lines and what went wrong.
struct Case<'a> {
    devices: &'a Path,
    differences: Vec<String>,
}

/// A command that was started.
struct Started {
    child: Child,
    begun: Instant,
}

impl<'a> Case<'a> {
    fn of(disks: &'a FaultFs) -> Self {
        Case { devices: disks.path(), differences: Vec::new() }
    }

    /// Creates the pool, a mirror of `d0` and `d1`; returns their paths.
    fn create_mirror(&mut self) -> Result<[String; 2], JudgeError> {
        let sides = ["d0", "d1"].map(|name| self.devices.join(name).display().to_string());
        self.demand(&["zpool", "create", POOL, "mirror", &sides[0], &sides[1]], DONE_WITHIN)?;
        Ok(sides)
    }

    /// Demands that `zpool status -x` find nothing.
    fn is_healthy(&mut self) -> Result<(), JudgeError> {
        let text = self.demand(&["zpool", "status", "-x", POOL], SHOWN_WITHIN)?;
        self.contains("zpool status -x", &text, &["is healthy"]);
        Ok(())
    }

    /// Demands that zdb find each block allocated once.
    fn has_no_leaks(&mut self) -> Result<(), JudgeError> {
        let folder = self.devices.display().to_string();
        let text = self.demand(&["zdb", "-e", "-p", &folder, POOL, "-bcc"], DONE_WITHIN)?;
        self.contains("zdb -bcc", &text, &["No leaks"]);
        Ok(())
    }

    /// Puts the devices back into service. Demands that a scrub end, and that the closed pool have no leaks.
    fn recovers(&mut self, server: Running) -> Result<(), JudgeError> {
        self.demand(&["zpool", "clear", POOL], DONE_WITHIN)?;
        // A resilver of what the device lacks begins by itself, before or after this; no scrub begins while one runs.
        let until = Instant::now() + DONE_WITHIN;
        loop {
            let (code, text) = self.run(&["zpool", "scrub", "-w", POOL], DONE_WITHIN)?;
            if code == 0 {
                break;
            }
            if !text.contains("currently resilvering") || Instant::now() > until {
                self.differences.push(format!("zpool scrub: exit {code}: {text}"));
                break;
            }
            self.demand(&["zpool", "wait", "-t", "resilver", POOL], DONE_WITHIN)?;
        }
        self.is_healthy()?;
        server.stop()?;
        self.has_no_leaks()
    }

    fn command(&self, arguments: &[&str]) -> Result<Command, JudgeError> {
        let mut command = Command::new(weir()?);
        command.env("WEIR_POOL_DIRS", self.devices).args(arguments).stdin(Stdio::null());
        Ok(command)
    }

    fn start(&self, arguments: &[&str]) -> Result<Started, JudgeError> {
        let mut command = self.command(arguments)?;
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = child.map_err(|source| JudgeError::Io { what: format!("{command:?}"), source })?;
        Ok(Started { child, begun: Instant::now() })
    }

    /// Waits for a command, and kills it after `limit`. Returns its exit code and what it printed.
    fn finish(&mut self, what: &str, mut started: Started, limit: Duration) -> Result<(i32, String), JudgeError> {
        let failed = |source| JudgeError::Io { what: what.to_string(), source };
        while started.child.try_wait().map_err(failed)?.is_none() {
            if started.begun.elapsed() > limit {
                self.differences.push(format!("{what}: no answer within {} s", limit.as_secs()));
                started.child.kill().map_err(failed)?;
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let Output { status, stdout, stderr } = started.child.wait_with_output().map_err(failed)?;
        let text = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        Ok((status.code().unwrap_or(-1), text))
    }

    fn run(&mut self, arguments: &[&str], limit: Duration) -> Result<(i32, String), JudgeError> {
        let started = self.start(arguments)?;
        self.finish(&arguments.join(" "), started, limit)
    }

    /// Runs a command that must succeed.
    fn demand(&mut self, arguments: &[&str], limit: Duration) -> Result<String, JudgeError> {
        let (code, text) = self.run(arguments, limit)?;
        if code != 0 {
            self.differences.push(format!("{}: exit {code}: {}", arguments.join(" "), text.trim()));
        }
        Ok(text)
    }

    /// Demands that `text` contain all of `parts`.
    fn contains(&mut self, what: &str, text: &str, parts: &[&str]) {
        for part in parts.iter().filter(|part| !text.contains(**part)) {
            self.differences.push(format!("{what}: '{part}' is missing in: {}", text.replace('\n', " | ")));
        }
    }

    /// Shows the state until it contains `part`. Each answer must be prompt.
    fn status_until(&mut self, part: &str) -> Result<String, JudgeError> {
        let until = Instant::now() + DONE_WITHIN;
        loop {
            let text = self.run(&["zpool", "status", "-s", POOL], SHOWN_WITHIN)?.1;
            if text.contains(part) {
                return Ok(text);
            }
            if Instant::now() > until || !self.differences.is_empty() {
                self.differences.push(format!("zpool status: no '{part}': {}", text.replace('\n', " | ")));
                return Ok(text);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn serve(&self) -> Result<Running, JudgeError> {
        let mut command = self.command(&["serve", POOL, "--rw", "127.0.0.1", "--nfs-port", "0", "--nbd-port", "0"])?;
        let mut running = Running::start(command.args(["--slow-io", SLOW_S, "--deadman", DEADMAN_S]))?;
        running.wait_for(|line| line == "ready")?;
        Ok(running)
    }
}

/// Runs all cases.
///
/// # Errors
/// If a program is missing.
pub fn run(report: &mut Report) -> Result<(), JudgeError> {
    weir()?;
    let cases = [
        ("B1: a side of a mirror whose writes hang", hanging()),
        ("a side of a mirror whose reads hang", hanging_reads()),
        ("a side of a mirror that is slow", slow()),
        ("a side of a mirror whose reads fail", failing_reads()),
        ("B3: no room below the pool", without_room()),
        ("no room below a pool with failmode=panic", panicking()),
    ];
    for (name, outcome) in cases {
        match outcome {
            Ok(differences) if differences.is_empty() => report.pass(name, ""),
            Ok(differences) => report.fail(name, &differences),
            Err(JudgeError::Missing { what }) => report.skip(name, &what),
            Err(error) => report.fail(name, &[error.to_string()]),
        }
    }
    Ok(())
}

/// One side of a mirror takes no more writes: it is taken out of service, and comes back when it is cleared.
fn hanging() -> Result<Vec<String>, JudgeError> {
    let disks = FaultFs::new(2, DEVICE_BYTES)?;
    let mut case = Case::of(&disks);
    case.create_mirror()?;
    let server = case.serve()?;
    case.demand(&["zfs", "create", &format!("{POOL}/before")], DONE_WITHIN)?;
    disks.set_writes(1, FaultAnswer::Hang);
    disks.set_flushes(1, FaultAnswer::Hang);
    let change = case.start(&["zfs", "create", &format!("{POOL}/during")])?;
    // The device is out of service before a txg has recorded why.
    let text = case.status_until("external device fault")?;
    case.contains("zpool status", &text, &["state: DEGRADED", "FAULTED", "SLOW"]);
    let (code, text) = case.finish("zfs create", change, DONE_WITHIN)?;
    if code != 0 {
        case.differences.push(format!("zfs create while one side hangs: exit {code}: {text}"));
    }
    // The device is out of service: nothing waits for it any more.
    case.demand(&["zfs", "create", &format!("{POOL}/after")], SHOWN_WITHIN)?;
    case.demand(&["zpool", "list"], SHOWN_WITHIN)?;
    let text = case.demand(&["zpool", "events"], SHOWN_WITHIN)?;
    case.contains("zpool events", &text, &["ereport.fs.zfs.delay", "ereport.fs.zfs.deadman", "statechange"]);
    let (code, text) = case.run(&["zpool", "clear", POOL], SHOWN_WITHIN)?;
    if code == 0 {
        case.differences.push(format!("zpool clear, while writes still hang: exit 0: {text}"));
    }
    let late = disks.lift(1);
    if late == 0 {
        case.differences.push("no operation was hanging".to_string());
    }
    // The kernel hands the late answers to the server.
    std::thread::sleep(Duration::from_millis(500));
    case.recovers(server)?;
    let names = case.demand(&["zfs", "list", "-H", "-o", "name"], DONE_WITHIN)?;
    case.contains("zfs list", &names, &["faulty/before", "faulty/during", "faulty/after"]);
    Ok(case.differences)
}

/// One side of a mirror answers no read: the state is shown at all times, and the other side has what is read.
fn hanging_reads() -> Result<Vec<String>, JudgeError> {
    let disks = FaultFs::new(2, DEVICE_BYTES)?;
    let mut case = Case::of(&disks);
    case.create_mirror()?;
    let server = case.serve()?;
    case.demand(&["zfs", "create", &format!("{POOL}/before")], DONE_WITHIN)?;
    disks.set_reads(1, FaultAnswer::Hang);
    disks.set_writes(1, FaultAnswer::Hang);
    // Both before and after the device is taken out of service.
    let names = case.demand(&["zfs", "list", "-H", "-o", "name"], SHOWN_WITHIN)?;
    case.contains("zfs list", &names, &["faulty/before"]);
    case.demand(&["zfs", "create", &format!("{POOL}/during")], DONE_WITHIN)?;
    let text = case.status_until("external device fault")?;
    case.contains("zpool status", &text, &["state: DEGRADED", "FAULTED"]);
    let text = case.demand(&["zpool", "list", "-v"], SHOWN_WITHIN)?;
    case.contains("zpool list", &text, &["DEGRADED", "FAULTED"]);
    let names = case.demand(&["zfs", "list", "-H", "-o", "name", POOL, &format!("{POOL}/during")], SHOWN_WITHIN)?;
    case.contains("zfs list", &names, &["faulty/during"]);
    case.demand(&["zpool", "get", "health", POOL], SHOWN_WITHIN)?;
    if disks.lift(1) == 0 {
        case.differences.push("no operation was hanging".to_string());
    }
    std::thread::sleep(Duration::from_millis(500));
    case.recovers(server)?;
    Ok(case.differences)
}

/// Words of the line of a device in `zpool status -s`.
fn words_of<'a>(status: &'a str, device: &str) -> Vec<&'a str> {
    let lines = status.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines.into_iter().find(|words| words.first() == Some(&device)).unwrap_or_default()
}

/// One side of a mirror answers slowly: that is counted and reported, and the side stays in service.
fn slow() -> Result<Vec<String>, JudgeError> {
    let disks = FaultFs::new(2, DEVICE_BYTES)?;
    let mut case = Case::of(&disks);
    let [first, second] = case.create_mirror()?;
    let server = case.serve()?;
    disks.set_writes(1, FaultAnswer::Delay(SLOW_TIME));
    disks.set_flushes(1, FaultAnswer::Delay(SLOW_TIME));
    case.demand(&["zfs", "create", &format!("{POOL}/during")], DONE_WITHIN)?;
    let text = case.demand(&["zpool", "status", "-s", POOL], SHOWN_WITHIN)?;
    // Name, state, errors of reads, writes and checksums, slow operations.
    let slow_ios = |device: &str| words_of(&text, device).get(5).and_then(|count| count.parse::<u64>().ok());
    if slow_ios(&second).is_none_or(|count| count == 0) || slow_ios(&first) != Some(0) {
        case.differences.push(format!("zpool status -s: slow operations of {second} alone: {text}"));
    }
    case.contains("zpool status", &text, &["state: ONLINE", "No known data errors"]);
    let text = case.demand(&["zpool", "events"], SHOWN_WITHIN)?;
    case.contains("zpool events", &text, &["ereport.fs.zfs.delay"]);
    if text.contains("ereport.fs.zfs.deadman") {
        case.differences.push(format!("zpool events: a slow device is taken for one that hangs: {text}"));
    }
    disks.lift(1);
    case.demand(&["zpool", "scrub", "-w", POOL], DONE_WITHIN)?;
    server.stop()?;
    case.has_no_leaks()?;
    Ok(case.differences)
}

/// One side of a mirror fails all reads: it goes out of service, and comes back when it is cleared.
fn failing_reads() -> Result<Vec<String>, JudgeError> {
    let disks = FaultFs::new(2, DEVICE_BYTES)?;
    let mut case = Case::of(&disks);
    case.create_mirror()?;
    let server = case.serve()?;
    case.demand(&["zfs", "create", &format!("{POOL}/before")], DONE_WITHIN)?;
    disks.set_reads(1, FaultAnswer::Error(EIO));
    case.demand(&["zpool", "scrub", "-w", POOL], DONE_WITHIN)?;
    let text = case.demand(&["zpool", "status", POOL], SHOWN_WITHIN)?;
    case.contains("zpool status", &text, &["state: DEGRADED", "with 0 errors", "No known data errors"]);
    // The scrub looks at all devices first, and finds no labels on this one.
    let text = case.demand(&["zpool", "events"], SHOWN_WITHIN)?;
    case.contains("zpool events", &text, &["ereport.fs.zfs.vdev.open_failed"]);
    case.demand(&["zfs", "create", &format!("{POOL}/during")], DONE_WITHIN)?;
    disks.lift(1);
    case.recovers(server)?;
    Ok(case.differences)
}

/// The file system below the only device is full: the pool is suspended, says so, and resumes when there is room.
fn without_room() -> Result<Vec<String>, JudgeError> {
    let disks = FaultFs::new(1, DEVICE_BYTES)?;
    let mut case = Case::of(&disks);
    case.demand(&["zpool", "create", POOL, &disks.path().join("d0").display().to_string()], DONE_WITHIN)?;
    let server = case.serve()?;
    case.demand(&["zfs", "create", &format!("{POOL}/before")], DONE_WITHIN)?;
    disks.set_writes(0, FaultAnswer::Error(ENOSPC));
    let change = case.start(&["zfs", "create", &format!("{POOL}/during")])?;
    let text = case.status_until("SUSPENDED")?;
    case.contains("zpool status", &text, &["ZFS-8000-HC", "No space left on device", "zpool clear"]);
    let text = case.demand(&["zpool", "list"], SHOWN_WITHIN)?;
    case.contains("zpool list", &text, &["SUSPENDED"]);
    // The failure is reported within a second.
    std::thread::sleep(Duration::from_millis(1500));
    let text = case.demand(&["zpool", "events"], SHOWN_WITHIN)?;
    case.contains("zpool events", &text, &["ereport.fs.zfs.io_failure"]);
    disks.lift(0);
    case.demand(&["zpool", "clear", POOL], DONE_WITHIN)?;
    let (code, text) = case.finish("zfs create", change, DONE_WITHIN)?;
    if code != 0 {
        case.differences.push(format!("zfs create, resumed: exit {code}: {text}"));
    }
    case.is_healthy()?;
    server.stop()?;
    let names = case.demand(&["zfs", "list", "-H", "-o", "name"], DONE_WITHIN)?;
    case.contains("zfs list", &names, &["faulty/before", "faulty/during"]);
    case.has_no_leaks()?;
    Ok(case.differences)
}

/// With `failmode=panic`, a failed write ends the process, and nothing that was stable is lost.
fn panicking() -> Result<Vec<String>, JudgeError> {
    let disks = FaultFs::new(1, DEVICE_BYTES)?;
    let mut case = Case::of(&disks);
    case.demand(&["zpool", "create", POOL, &disks.path().join("d0").display().to_string()], DONE_WITHIN)?;
    case.demand(&["zpool", "set", "failmode=panic", POOL], DONE_WITHIN)?;
    let mut server = case.serve()?;
    case.demand(&["zfs", "create", &format!("{POOL}/before")], DONE_WITHIN)?;
    disks.set_writes(0, FaultAnswer::Error(ENOSPC));
    let change = case.start(&["zfs", "create", &format!("{POOL}/during")])?;
    let said = server.wait_for(|line| line.starts_with("failmode=panic"))?;
    let reason = said.last().map_or("", String::as_str).to_string();
    case.contains("the process that ended", &reason, &["No space left on device"]);
    let (code, text) = case.finish("zfs create", change, DONE_WITHIN)?;
    if code == 0 {
        case.differences.push(format!("zfs create, when the process ended: exit 0: {text}"));
    }
    if server.stop().is_ok() {
        case.differences.push("the process went on".to_string());
    }
    disks.lift(0);
    let names = case.demand(&["zfs", "list", "-H", "-o", "name"], DONE_WITHIN)?;
    case.contains("zfs list", &names, &["faulty/before"]);
    case.has_no_leaks()?;
    Ok(case.differences)
}

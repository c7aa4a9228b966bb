//! Locks of a kernel NFS client on a pool that `weir daemon` shares by its properties, and mounts on this machine.
//!
//! ```text
//!   this machine                                             QEMU, tap device: the guest has an address of its own
//!   weir daemon 10.0.2.2:2049, NLM ◄──── rpcbind ────────── mount -t nfs 10.0.2.2:/tank, lockd
//!        │   └──── SM_NOTIFY after a restart ──────────────► rpc.statd ─► lockd reclaims
//!        └── FUSE mount ◄─── locks of this machine
//! ```
//!
//! QEMU's user network would hide the guest's status monitor from the server. So the guest is connected to a tap device of
//! the judge's own network namespace, which needs root and /dev/net/tun; without them the cases are skipped.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use super::emulator::{Guest, HOST, Network};
use super::parts::Parts;
use super::server::{self, DEVICE_BYTES, POOL};
use crate::JudgeError;
use crate::kill::failed;
use crate::process::Running;
use crate::report::Report;

/// Name of the tap device.
const TAP: &str = "weirtap0";
/// Time in which a client must have reclaimed its locks after a restart, on a slow machine.
const RECLAIMED_WITHIN: Duration = Duration::from_secs(120);
/// Time after a restart in which clients reclaim, and after it.
const GRACE_IS_OVER: Duration = Duration::from_secs(55);
/// Time of the guest for one step.
const STEP: Duration = Duration::from_secs(180);
/// The program that takes locks, the same on both sides.
const LOCKS: &str = include_str!("scripts/locks.py");

/// The daemon, its pool and its directories.
struct Daemon {
    folder: PathBuf,
    running: Option<Running>,
}

impl Daemon {
    fn start(folder: &Path) -> Result<Daemon, JudgeError> {
        let mut daemon = Daemon { folder: folder.to_path_buf(), running: None };
        let device = folder.join("device");
        let made = std::fs::File::create(&device).and_then(|file| file.set_len(DEVICE_BYTES));
        made.map_err(|e| failed("a device", e))?;
        std::fs::create_dir_all(folder.join("etc")).map_err(|e| failed("a folder", e))?;
        std::fs::write(folder.join("etc/weir.toml"), "listen = \"0.0.0.0\"\nmounts = true\n")
            .map_err(|e| failed("the configuration", e))?;
        daemon.restart()?;
        let (mount, device) = (daemon.mount().display().to_string(), device.display().to_string());
        let share = "sharenfs=rw,no_root_squash";
        server::command(folder, &["zpool", "create", "-m", &mount, "-O", share, POOL, &device])?;
        Ok(daemon)
    }

    /// Where the pool's root is mounted on this machine, and the path of its export.
    fn mount(&self) -> PathBuf {
        self.folder.join("mount")
    }

    fn restart(&mut self) -> Result<(), JudgeError> {
        debug_assert!(self.running.is_none(), "one daemon at a time");
        let mut running = Running::start(server::program(&self.folder)?.arg("daemon"))?;
        running.wait_for(|line| line.trim() == "ready")?;
        self.running = Some(running);
        Ok(())
    }

    /// Kills it (SIGKILL), and starts it again.
    fn killed_and_restarted(&mut self) -> Result<(), JudgeError> {
        drop(self.running.take());
        self.restart()
    }

    /// Runs the program for locks on this machine's mount.
    fn locks(&self, file: &str, what: &str) -> Result<Output, JudgeError> {
        let path = self.mount().join(file);
        let mut command = Command::new("python3");
        command.args(["-c", LOCKS]).arg(path).arg(what);
        command.output().map_err(|e| failed("python3", e))
    }

    /// Whether the program for locks succeeds on this machine's mount; its last line, if not.
    fn can(&self, file: &str, what: &str) -> Result<Result<(), String>, JudgeError> {
        let done = self.locks(file, what)?;
        let text = String::from_utf8_lossy(&done.stderr).into_owned();
        let last = text.lines().last().unwrap_or_default().to_owned();
        Ok(if done.status.success() { Ok(()) } else { Err(format!("on this machine: {what} {file}: {last}")) })
    }
}

/// Makes the tap device with the address that the guest knows as its server's.
fn tap() -> Result<(), String> {
    let address = format!("{HOST}/24");
    let steps: [&[&str]; 3] = [
        &["tuntap", "add", "dev", TAP, "mode", "tap"],
        &["addr", "add", &address, "dev", TAP],
        &["link", "set", TAP, "up"],
    ];
    for words in steps {
        let done = Command::new("ip").args(words).output().map_err(|e| format!("ip: {e}"))?;
        if !done.status.success() {
            let why = String::from_utf8_lossy(&done.stderr).into_owned();
            return Err(format!("ip {}: {}", words.join(" "), why.trim()));
        }
    }
    Ok(())
}

/// Runs the cases.
///
/// # Errors
/// If the guest or the daemon ends.
pub fn run(parts: &Parts, folder: &Path, report: &mut Report) -> Result<(), JudgeError> {
    if let Err(why) = tap() {
        report.skip("guest daemon", &format!("no tap device: {why}"));
        return Ok(());
    }
    let home = folder.join("daemon");
    std::fs::create_dir(&home).map_err(|e| failed("a folder", e))?;
    let daemon = Daemon::start(&home)?;
    let guest = Guest::boot(parts, folder, "daemon", Network::Tap(TAP))?;
    let mut cases = Cases { guest, daemon, report };
    cases.all()?;
    let Cases { guest, daemon, .. } = cases;
    drop(guest);
    daemon.running.map_or(Ok(()), Running::stop)?;
    Ok(())
}

/// Machine, daemon and report.
struct Cases<'a> {
    guest: Guest,
    daemon: Daemon,
    report: &'a mut Report,
}

impl Cases<'_> {
    /// Reports a case; `steps` end at the first reason why it fails.
    fn case(
        &mut self,
        name: &str,
        steps: impl FnOnce(&mut Self) -> Result<Result<(), String>, JudgeError>,
    ) -> Result<bool, JudgeError> {
        let begun = Instant::now();
        let outcome = steps(self)?;
        let passed = outcome.is_ok();
        match outcome {
            Ok(()) => self.report.pass(&format!("guest {name}"), &format!("{:.1} s", begun.elapsed().as_secs_f32())),
            Err(why) => self.report.fail(&format!("guest {name}"), &[why]),
        }
        Ok(passed)
    }

    /// Runs a call of a function of `nfs.sh` in the guest; the end of its output, if it fails.
    fn call(&mut self, call: &str) -> Result<Result<(), String>, JudgeError> {
        let job = self.guest.run(&format!("set -ex\n. /judge/nfs.sh\n{call}\n"), STEP)?;
        let last = job.lines[job.lines.len().saturating_sub(4)..].join(" | ");
        Ok(if job.code == Some(0) { Ok(()) } else { Err(format!("in the guest: {call}: {last}")) })
    }

    fn all(&mut self) -> Result<(), JudgeError> {
        let mount = format!("mounted mount -t nfs -o vers=3 {HOST}:{} /mnt", self.daemon.mount().display());
        let is_mounted = self.case("daemon mount", |cases| {
            let services = cases.call("locking_started")?;
            if services.is_ok() { cases.call(&mount) } else { Ok(services) }
        })?;
        if !is_mounted {
            return Ok(());
        }
        self.case("daemon locks", |cases| cases.call("locks locked"))?;
        self.case("daemon locks of a client and this machine", Self::exclude_each_other)?;
        self.case("daemon locks after SIGKILL", Self::reclaimed)?;
        self.case("daemon unmount", |cases| cases.call("unmounted"))?;
        Ok(())
    }

    /// Starts a process in the guest that holds a lock until /tmp/release exists.
    fn hold(&mut self, file: &str) -> Result<u32, JudgeError> {
        let script = format!("set -e\nrm -f /tmp/release\n. /judge/nfs.sh\nlocks {file} hold\n");
        let holder = self.guest.start(&script, Duration::from_secs(900))?;
        self.guest.wait(holder, STEP, |job| job.lines.iter().any(|line| line == "HELD"))?;
        Ok(holder)
    }

    /// Ends it; what went wrong, if it did not succeed.
    fn release(&mut self, holder: u32) -> Result<Result<(), String>, JudgeError> {
        self.guest.run("touch /tmp/release\n", Duration::from_secs(20))?;
        let job = self.guest.end(holder, STEP)?;
        Ok(if job.code == Some(0) { Ok(()) } else { Err(format!("the holder ended: {}", job.lines.join(" | "))) })
    }

    /// A lock of the client excludes this machine's processes, and theirs excludes the client.
    fn exclude_each_other(&mut self) -> Result<Result<(), String>, JudgeError> {
        let holder = self.hold("shared")?;
        let refused = self.daemon.can("shared", "refused")?;
        let released = self.release(holder)?;
        if refused.is_err() || released.is_err() {
            return Ok(refused.and(released));
        }
        let granted = self.daemon.can("shared", "granted")?;
        if granted.is_err() {
            return Ok(granted);
        }
        let path = self.daemon.mount().join("shared");
        let mut holder = Running::start(Command::new("python3").args(["-c", LOCKS]).arg(&path).arg("hold"))?;
        holder.wait_for(|line| line == "HELD")?;
        let refused = self.call("locks shared refused")?;
        drop(holder);
        if refused.is_err() { Ok(refused) } else { self.call("locks shared granted") }
    }

    /// The daemon is killed while the client holds a lock and writes: the client reclaims its lock, which excludes this machine
    /// again, and what its fsync returned for is there.
    fn reclaimed(&mut self) -> Result<Result<(), String>, JudgeError> {
        let stable =
            self.call("head -c 300000 /dev/urandom >/tmp/stable; cp /tmp/stable /mnt/stable; sync /mnt/stable")?;
        if stable.is_err() {
            return Ok(stable);
        }
        let holder = self.hold("kept")?;
        self.daemon.killed_and_restarted()?;
        let begun = Instant::now();
        // The client learns of the restart, and asks for its lock again, in the first seconds.
        let mut refused = self.daemon.can("kept", "refused")?;
        while refused.is_err() && begun.elapsed() < RECLAIMED_WITHIN {
            std::thread::sleep(Duration::from_secs(1));
            refused = self.daemon.can("kept", "refused")?;
        }
        // Later, too: it was not only the time in which no new locks are granted.
        std::thread::sleep(GRACE_IS_OVER.saturating_sub(begun.elapsed()));
        let still = self.daemon.can("kept", "refused")?;
        let released = self.release(holder)?;
        let granted = self.daemon.can("kept", "granted")?;
        let locked = refused.and(still).and(released).and(granted);
        if locked.is_err() {
            return Ok(locked);
        }
        self.call("echo 3 >/proc/sys/vm/drop_caches; cmp /tmp/stable /mnt/stable; locks locked")
    }
}

//! Weir's own program as a process: `weir mount` and `weir serve`, started, awaited, and ended by their process id.
//!
//! A front end is judged from outside, as its users see it: by its command line, the line that says it is ready, and
//! the view of the kernel or of a client.
#![allow(clippy::disallowed_methods, reason = "judges run other programs in real time")]

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::JudgeError;

const READY_WITHIN: Duration = Duration::from_secs(60);
const ENDS_WITHIN: Duration = Duration::from_secs(15);

/// Where Weir's binary is: `WEIR_BIN`, else beside this program.
///
/// # Errors
/// If it is in neither place.
pub fn weir() -> Result<PathBuf, JudgeError> {
    let beside = || std::env::current_exe().ok().map(|exe| exe.with_file_name("weir"));
    let path = std::env::var_os("WEIR_BIN").map(PathBuf::from).or_else(beside);
    path.filter(|path| path.is_file())
        .ok_or_else(|| JudgeError::Missing { what: "the binary weir is not built (set WEIR_BIN)".to_string() })
}

/// A program running in the foreground, ended when dropped.
pub struct Running {
    command: String,
    child: Child,
    lines: Receiver<String>,
}

impl Running {
    /// Starts a program; its standard output and error are read line by line.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(command: &mut Command) -> Result<Running, JudgeError> {
        let name = format!("{command:?}");
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|source| JudgeError::Io { what: name.clone(), source })?;
        let (sender, lines) = channel();
        if let Some(stdout) = child.stdout.take() {
            let sender = sender.clone();
            std::thread::spawn(move || forward(stdout, &sender));
        }
        if let Some(stderr) = child.stderr.take() {
            std::thread::spawn(move || forward(stderr, &sender));
        }
        Ok(Running { command: name, child, lines })
    }

    /// Waits until it prints a line that `is` knows, and gives every line up to it.
    ///
    /// # Errors
    /// If it ends before, or a minute passes.
    pub fn wait_for(&mut self, is: impl Fn(&str) -> bool) -> Result<Vec<String>, JudgeError> {
        let until = Instant::now() + READY_WITHIN;
        let mut seen = Vec::new();
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    let done = is(&line);
                    seen.push(line);
                    if done {
                        return Ok(seen);
                    }
                }
                Err(RecvTimeoutError::Timeout) => return Err(self.failure("not ready within a minute", &seen)),
                Err(RecvTimeoutError::Disconnected) => return Err(self.failure("ended", &seen)),
            }
        }
    }

    fn failure(&mut self, how: &str, seen: &[String]) -> JudgeError {
        let status = self.child.try_wait().ok().flatten().map(|status| format!(" ({status})")).unwrap_or_default();
        let last: Vec<&str> = seen.iter().rev().take(3).rev().map(String::as_str).collect();
        JudgeError::Process { command: self.command.clone(), why: format!("{how}{status}: {}", last.join(" | ")) }
    }

    /// Process id, for looking at its memory.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end, then makes it. Tells how it ended.
    ///
    /// # Errors
    /// If it had to be killed, or ended with a failure.
    pub fn stop(mut self) -> Result<(), JudgeError> {
        self.ask();
        let until = Instant::now() + ENDS_WITHIN;
        while Instant::now() < until {
            if let Ok(Some(status)) = self.child.try_wait() {
                let stopped = status.success() || std::os::unix::process::ExitStatusExt::signal(&status) == Some(15);
                return if stopped { Ok(()) } else { Err(self.failure("ended badly", &[])) };
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(self.failure("did not end when asked", &[]))
    }

    /// Ends it like [`Running::stop`], and returns the lines that it printed since it was last waited for.
    ///
    /// # Errors
    /// As [`Running::stop`].
    pub fn stop_and_read(mut self) -> Result<Vec<String>, JudgeError> {
        let (_, closed) = channel();
        let lines = std::mem::replace(&mut self.lines, closed);
        self.stop()?;
        // The threads that forward the lines end with the process.
        Ok(lines.iter().collect())
    }

    fn ask(&mut self) {
        if matches!(self.child.try_wait(), Ok(None))
            && let Some(id) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
        {
            // The process may have ended in between; then the signal fails without harm.
            let _ = kill_process(id, Signal::TERM);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn forward(stream: impl std::io::Read, sender: &std::sync::mpsc::Sender<String>) {
    for line in BufReader::new(stream).split(b'\n') {
        let Ok(line) = line else { return };
        if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
            return;
        }
    }
}

/// A pool mounted by `weir mount`.
pub struct Mounted {
    running: Option<Running>,
    mountpoint: tempfile::TempDir,
}

impl Mounted {
    /// Mounts read-only, loading the keys in these files (dataset, file).
    ///
    /// # Errors
    /// If FUSE is not here, or Weir does not get ready.
    pub fn new(devices: &Path, pool: &str, keys: &[(String, PathBuf)]) -> Result<Mounted, JudgeError> {
        Self::with(devices, pool, keys, "ro")
    }

    /// Mounts for reading and writing.
    ///
    /// # Errors
    /// As [`Mounted::new`].
    pub fn writable(devices: &Path, pool: &str) -> Result<Mounted, JudgeError> {
        Self::with(devices, pool, &[], "rw")
    }

    fn with(devices: &Path, pool: &str, keys: &[(String, PathBuf)], how: &str) -> Result<Mounted, JudgeError> {
        if !Path::new("/dev/fuse").exists() {
            return Err(JudgeError::Missing { what: "no /dev/fuse on this machine".to_string() });
        }
        let mountpoint = tempfile::Builder::new()
            .prefix("weir-mount-")
            .tempdir()
            .map_err(|source| JudgeError::Io { what: "mount point".to_string(), source })?;
        let mut command = Command::new(weir()?);
        command.envs(LIMITS).args(["mount", "-o", how, "-d"]).arg(devices);
        add_keys(&mut command, keys);
        let mut running = Running::start(command.arg(pool).arg(mountpoint.path()))?;
        running.wait_for(|line| line.trim() == "ready")?;
        Ok(Mounted { running: Some(running), mountpoint })
    }

    /// Where a dataset is mounted.
    pub fn path(&self, below_pool: &str) -> PathBuf {
        self.mountpoint.path().join(below_pool)
    }

    /// The process that serves it.
    pub fn id(&self) -> Option<u32> {
        self.running.as_ref().map(Running::id)
    }

    /// Unmounts and waits for the end.
    ///
    /// # Errors
    /// If Weir does not end when asked.
    pub fn stop(mut self) -> Result<(), JudgeError> {
        self.running.take().map_or(Ok(()), Running::stop)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(self.running.take());
        // After a clean end nothing is mounted there, and this fails without harm.
        let mut unmount = Command::new("umount");
        unmount.arg("-l").arg(self.mountpoint.path()).stdout(Stdio::null()).stderr(Stdio::null());
        let _ = unmount.status();
    }
}

/// The ARC and the dirty limit of each mount and server, so that their memory does not depend on the machine's.
pub(crate) const LIMITS: [(&str, &str); 2] = [("WEIR_ARC_MAX", "256M"), ("WEIR_DIRTY_MAX", "256M")];

/// A pool served by `weir serve`.
pub struct Serving {
    running: Option<Running>,
    /// Where NFS answers.
    pub nfs: SocketAddr,
    /// Where MOUNT answers.
    pub mount: SocketAddr,
    /// Where NBD answers, if there are volumes.
    pub nbd: Option<SocketAddr>,
}

impl Serving {
    /// Serves read-only on free ports of the loopback, and reads the ports from the mount lines that Weir prints.
    ///
    /// # Errors
    /// If Weir does not get ready or prints no mount line.
    pub fn new(devices: &Path, pool: &str, keys: &[(String, PathBuf)]) -> Result<Serving, JudgeError> {
        Self::with(devices, pool, keys, &["--ro"])
    }

    /// Serves for reading and writing.
    ///
    /// # Errors
    /// As [`Serving::new`].
    pub fn writable(devices: &Path, pool: &str) -> Result<Serving, JudgeError> {
        Self::with(devices, pool, &[], &[])
    }

    fn with(devices: &Path, pool: &str, keys: &[(String, PathBuf)], how: &[&str]) -> Result<Serving, JudgeError> {
        let mut command = Command::new(weir()?);
        command.envs(LIMITS).arg("serve").args(how);
        command.args(["--no-root-squash", "--nfs-port", "0", "--nbd-port", "0", "-d"]).arg(devices);
        add_keys(&mut command, keys);
        let mut running = Running::start(command.arg(pool))?;
        let lines = running.wait_for(|line| line.trim() == "ready")?;
        let port = |name: &str| {
            let options = lines.iter().flat_map(|line| line.split([' ', ',']));
            options.filter_map(|option| option.strip_prefix(name)).find_map(|port| port.parse().ok())
        };
        let nbd = lines.iter().find_map(|line| {
            let rest = line.split("nbd://").nth(1)?;
            let address = rest.split(['/', ' ']).next()?;
            address.replace("localhost", "127.0.0.1").parse().ok()
        });
        let local = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let Some(nfs) = port("port=") else {
            return Err(running.failure("printed no mount line with port=", &lines));
        };
        let mount = port("mountport=").unwrap_or(nfs);
        Ok(Serving { running: Some(running), nfs: local(nfs), mount: local(mount), nbd })
    }

    /// Kills it (SIGKILL). Returns its peak resident memory in bytes.
    ///
    /// # Errors
    /// If it had ended by itself.
    pub fn kill(mut self) -> Result<u64, JudgeError> {
        let Some(mut running) = self.running.take() else { return Ok(0) };
        if !matches!(running.child.try_wait(), Ok(None)) {
            return Err(running.failure("ended by itself", &running.lines.try_iter().collect::<Vec<_>>()));
        }
        Ok(peak_bytes(running.id()))
    }

    /// Ends the service, and returns what it printed since it was ready.
    ///
    /// # Errors
    /// If Weir does not end when asked.
    pub fn stop_and_read(mut self) -> Result<Vec<String>, JudgeError> {
        self.running.take().map_or(Ok(Vec::new()), Running::stop_and_read)
    }

    /// Ends the service.
    ///
    /// # Errors
    /// If Weir does not end when asked.
    pub fn stop(mut self) -> Result<(), JudgeError> {
        self.running.take().map_or(Ok(()), Running::stop)
    }
}

/// The most memory that a process has held so far, in bytes.
pub fn peak_bytes(id: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.and_then(|rest| rest.split_whitespace().next()).and_then(|number| number.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

fn add_keys(command: &mut Command, keys: &[(String, PathBuf)]) {
    for (dataset, file) in keys {
        command.arg("--key").arg(format!("{dataset}=file://{}", file.display()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_awaited_and_ended() {
        let mut running =
            Running::start(Command::new("sh").args(["-c", "echo one; echo ready; exec sleep 60"])).unwrap();
        assert_eq!(running.wait_for(|line| line == "ready").unwrap(), ["one", "ready"]);
        running.stop().unwrap();
    }

    #[test]
    fn a_program_that_ends_early_is_reported_with_its_last_lines() {
        let mut running = Running::start(Command::new("sh").args(["-c", "echo no such pool >&2; exit 2"])).unwrap();
        let error = running.wait_for(|line| line == "ready").unwrap_err().to_string();
        assert!(error.contains("no such pool"), "{error}");
    }
}

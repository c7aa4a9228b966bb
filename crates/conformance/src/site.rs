//! A host of its own for a judge: directories, `weir daemon`, the commands that it runs, and volumes that are written and compared.
#![allow(clippy::disallowed_methods, reason = "judges run other programs in real time")]

use crate::nbd::NbdDevice;
use crate::process::weir;
use crate::tree::BlockDevice;
use crate::zdb::output;
use crate::{JudgeError, io, wrong};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longest time for which a step is awaited: the lease of a killed process is 33 s.
pub const PATIENCE: Duration = Duration::from_secs(150);
/// Bytes that clients write at a time.
pub const PIECE: usize = 64 << 10;

/// A host.
pub struct Site {
    folder: tempfile::TempDir,
    environment: Vec<(&'static str, String)>,
}

/// A daemon; killed when it is dropped.
pub struct Daemon(Child);

impl Daemon {
    /// Process id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Ends it by SIGTERM: its pools are closed.
    ///
    /// # Errors
    /// It ends with a failure.
    pub fn end(mut self) -> Result<(), JudgeError> {
        let id = rustix::process::Pid::from_child(&self.0);
        let sent = rustix::process::kill_process(id, rustix::process::Signal::TERM);
        sent.map_err(|error| wrong("weir daemon", error.to_string()))?;
        let status = self.0.wait().map_err(io("weir daemon"))?;
        if status.success() { Ok(()) } else { Err(wrong("weir daemon", format!("ended with {status}"))) }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Site {
    /// A host whose programs have these variables in their environment, with which they reach an object store.
    ///
    /// # Errors
    /// Its directories cannot be made.
    pub fn reaching(environment: Vec<(&'static str, String)>) -> Result<Site, JudgeError> {
        Ok(Site { environment, ..Site::local()? })
    }

    /// A host without a store.
    ///
    /// # Errors
    /// Its directories cannot be made.
    pub fn local() -> Result<Site, JudgeError> {
        let folder = tempfile::tempdir().map_err(io("a folder"))?;
        for name in ["run", "state", "conf"] {
            std::fs::DirBuilder::new().mode(0o700).create(folder.path().join(name)).map_err(io(name))?;
        }
        let ports = "nfs_port = 0\nnbd_port = 0\niscsi_port = 0\nsmb_port = 0\nhttp_port = 0\nmounts = false\n";
        std::fs::write(folder.path().join("conf/weir.toml"), ports).map_err(io("weir.toml"))?;
        Ok(Site { folder, environment: Vec::new() })
    }

    /// A path in the host's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Makes a sparse file for a local device; returns its path.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn device(&self, name: &str, bytes: u64) -> Result<String, JudgeError> {
        let path = self.path(name);
        let made = std::fs::File::create(&path).and_then(|file| file.set_len(bytes));
        made.map_err(io(name))?;
        Ok(path.display().to_string())
    }

    fn command(&self, words: &[&str]) -> Result<Command, JudgeError> {
        let mut command = Command::new(weir()?);
        command.args(words).current_dir(self.folder.path()).stdin(Stdio::null());
        let of_others = std::env::vars_os().map(|(name, _)| name);
        for name in of_others.filter(|name| name.to_string_lossy().starts_with("AWS_")) {
            command.env_remove(name);
        }
        for (variable, name) in
            [("RUNTIME_DIRECTORY", "run"), ("STATE_DIRECTORY", "state"), ("CONFIGURATION_DIRECTORY", "conf")]
        {
            command.env(variable, self.path(name));
        }
        command.env_remove("WEIR_POOL_DIRS").env_remove("WEIR_LOG").envs(self.environment.iter().cloned());
        Ok(command)
    }

    fn run(&self, line: &str) -> Result<Output, JudgeError> {
        output(&mut self.command(&line.split(' ').collect::<Vec<_>>())?)
    }

    /// Runs a command that has to succeed; returns what it printed.
    ///
    /// # Errors
    /// It failed.
    pub fn ok(&self, line: &str) -> Result<String, JudgeError> {
        self.succeed(&line.split(' ').collect::<Vec<_>>())
    }

    /// As [`Site::ok`], for a command with blanks in its words.
    ///
    /// # Errors
    /// It failed.
    pub fn succeed(&self, words: &[&str]) -> Result<String, JudgeError> {
        let out = output(&mut self.command(words)?)?;
        match out.status.success() {
            true => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
            false => Err(wrong(words.join(" "), String::from_utf8_lossy(&out.stderr).trim())),
        }
    }

    /// Runs a command that has to fail with a text in its error; returns the error.
    ///
    /// # Errors
    /// It succeeded, or the text is missing.
    pub fn fails(&self, line: &str, with: &str) -> Result<String, JudgeError> {
        let out = self.run(line)?;
        let error = String::from_utf8_lossy(&out.stderr).trim().to_owned();
        match !out.status.success() && error.contains(with) {
            true => Ok(error),
            false => Err(wrong(line, format!("it did not fail with '{with}' ({}): {error}", out.status))),
        }
    }

    /// Waits until something is so.
    ///
    /// # Errors
    /// It was not within [`PATIENCE`].
    pub fn until(&self, what: &str, is_so: impl Fn() -> Result<bool, JudgeError>) -> Result<(), JudgeError> {
        let begun = Instant::now();
        while !is_so()? {
            if begun.elapsed() > PATIENCE {
                let log = std::fs::read_to_string(self.path("daemon.log")).unwrap_or_default();
                let last: Vec<&str> = log.lines().rev().take(4).collect();
                return Err(wrong(what, format!("not within {PATIENCE:?}: {}", last.join(" | "))));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    /// Starts the daemon, and waits until it has the pool open.
    ///
    /// # Errors
    /// It does not open it in time.
    pub fn daemon(&self, pool: &str) -> Result<Daemon, JudgeError> {
        let log = std::fs::File::create(self.path("daemon.log")).map_err(io("daemon.log"))?;
        let other = log.try_clone().map_err(io("daemon.log"))?;
        let child = self.command(&["daemon"])?.stdout(other).stderr(log).spawn().map_err(io("weir daemon"))?;
        let daemon = Daemon(child);
        let line = format!("zpool list {pool}");
        self.until("the daemon has the pool", || {
            Ok(self.run("daemon status")?.status.success() && self.run(&line)?.status.success())
        })?;
        Ok(daemon)
    }

    /// Connects to a volume that the daemon serves.
    ///
    /// # Errors
    /// It is not served in time.
    pub fn volume(&self, name: &str) -> Result<NbdDevice, JudgeError> {
        let begun = Instant::now();
        loop {
            let status: serde_json::Value = serde_json::from_str(&self.ok("daemon status -j")?)
                .map_err(|error| wrong("daemon status -j", error.to_string()))?;
            let address = status.pointer("/protocols/nbd/address").and_then(|address| address.as_str()?.parse().ok());
            let opened = address.map(|address| NbdDevice::open(address, name));
            match opened {
                Some(Ok(device)) => return Ok(device),
                Some(Err(error)) if begun.elapsed() > PATIENCE => return Err(wrong(name, error.to_string())),
                None if begun.elapsed() > PATIENCE => return Err(wrong(name, "NBD is not served")),
                _ => std::thread::sleep(Duration::from_millis(200)),
            }
        }
    }

    /// Waits until the daemon knows that no client is connected.
    ///
    /// # Errors
    /// It is not so in time.
    pub fn detached(&self) -> Result<(), JudgeError> {
        self.until("the volumes are detached", || {
            let status: serde_json::Value = serde_json::from_str(&self.ok("daemon status -j")?)
                .map_err(|error| wrong("daemon status -j", error.to_string()))?;
            let clients = status.pointer("/protocols/nbd/clients").and_then(|clients| clients.as_array());
            Ok(clients.is_none_or(Vec::is_empty))
        })
    }

    /// Scrubs the pool, which has to be whole.
    ///
    /// # Errors
    /// An error was found.
    pub fn scrub(&self, pool: &str) -> Result<(), JudgeError> {
        self.until("a scrub can begin", || {
            // A resilver of what a device lacks begins by itself after a `clear`; no scrub begins while one runs.
            let out = self.run(&format!("zpool scrub -w {pool}"))?;
            let error = String::from_utf8_lossy(&out.stderr).trim().to_owned();
            match out.status.success() {
                false if !error.contains("currently resilvering") => Err(wrong("zpool scrub -w", error)),
                is_done => Ok(is_done),
            }
        })?;
        let status = self.ok(&format!("zpool status {pool}"))?;
        match status.contains("with 0 errors") && status.contains("No known data errors") {
            true => Ok(()),
            false => Err(wrong("zpool scrub", status)),
        }
    }
}

/// The bytes of a piece of a volume in a version.
pub fn content(version: u64, piece: u64) -> Vec<u8> {
    (0..PIECE as u64 / 8)
        .flat_map(|word| crate::kill::mixed(version << 40 | piece << 20 | word).to_le_bytes())
        .collect()
}

/// Writes pieces of a version and flushes: then they are promised.
///
/// # Errors
/// The server refuses.
pub fn fill(device: &mut NbdDevice, version: u64, pieces: std::ops::Range<u64>) -> Result<(), JudgeError> {
    let failed = |error: crate::tree::TreeError| wrong("NBD", error.to_string());
    for piece in pieces {
        device.write(piece * PIECE as u64, &content(version, piece), false).map_err(failed)?;
    }
    device.flush().map_err(failed)
}

/// Compares pieces with a version.
///
/// # Errors
/// A piece has other bytes.
pub fn check(device: &mut NbdDevice, version: u64, pieces: std::ops::Range<u64>) -> Result<(), JudgeError> {
    for piece in pieces {
        let found = device.read(piece * PIECE as u64, PIECE).map_err(|error| wrong("NBD", error.to_string()))?;
        if found != content(version, piece) {
            return Err(wrong("the volume", format!("piece {piece} is not what was flushed")));
        }
    }
    Ok(())
}

/// Runs OpenZFS's zdb over devices in a folder, which must find no leak.
///
/// # Errors
/// zdb is missing, failed, or found something.
pub fn zdb(folder: &Path, pool: &str) -> Result<String, JudgeError> {
    let mut zdb = crate::zdb::Tools::find()?.program("sbin/zdb");
    let out = output(zdb.args(["-bcc", "-e", "-p"]).arg(folder).arg(pool))?;
    let text = String::from_utf8_lossy(&out.stdout);
    match out.status.success() && text.contains("No leaks") {
        true => Ok("No leaks".to_owned()),
        false => Err(wrong("zdb -bcc", format!("{text}{}", String::from_utf8_lossy(&out.stderr)))),
    }
}

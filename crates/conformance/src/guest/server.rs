//! Weir as the guest's server: a pool made by its commands, served on ports that stay over restarts.

use std::io::{Seek, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::JudgeError;
use crate::kill::failed;
use crate::process::{LIMITS, Running, weir};

/// Name of the pool.
pub const POOL: &str = "guest";
/// Size of each of the three devices.
pub const DEVICE_BYTES: u64 = 1 << 30;
/// Size of each volume: the smallest xfs is 300 MB.
const VOLUME: &str = "320M";
/// User of SMB and the password, as `weir smb user add` reads it.
pub const SMB_USER: (&str, &str) = ("tester", "correct horse\n");
/// Directories of the server, by the variables that name them.
const DIRECTORIES: [(&str, &str); 4] = [
    // smbd's are in /run, since its users must be able to reach its mount.
    ("WEIR_STATE_DIR", "state"),
    ("STATE_DIRECTORY", "state"),
    ("RUNTIME_DIRECTORY", "run"),
    ("CONFIGURATION_DIRECTORY", "etc"),
];
/// Volumes of the pool.
pub const VOLUMES: [&str; 2] = ["vol", "disk"];

/// Options of `weir serve` that this build has.
#[derive(Clone, Copy, Debug)]
pub struct Abilities {
    /// NFS locks, by NLM, which clients find through rpcbind.
    pub locks: bool,
    /// iSCSI.
    pub iscsi: bool,
    /// SMB.
    pub smb: bool,
}

/// A served pool.
pub struct Server {
    folder: PathBuf,
    running: Option<Running>,
    /// Arguments after `serve`.
    arguments: Vec<String>,
    /// Lines that it printed at its last start.
    pub lines: Vec<String>,
    /// Properties of this build.
    pub abilities: Abilities,
}

/// A port that is free now, and stays ours unless another program takes it in the meantime.
fn free_port() -> Result<u16, JudgeError> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(|e| failed("a free port", e))?;
    listener.local_addr().map(|address| address.port()).map_err(|e| failed("a free port", e))
}

/// Weir, with all its directories in this folder.
///
/// # Errors
/// If it is not built, or a folder cannot be made.
pub fn program(folder: &Path) -> Result<Command, JudgeError> {
    let mut command = Command::new(weir()?);
    command.envs(LIMITS).env("WEIR_POOL_DIRS", folder).current_dir(folder);
    for (variable, name) in DIRECTORIES {
        let path = folder.join(name);
        std::fs::create_dir_all(&path).map_err(|e| failed("a folder", e))?;
        let private = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o700);
        std::fs::set_permissions(&path, private).map_err(|e| failed("a folder", e))?;
        command.env(variable, path);
    }
    Ok(command)
}

/// Runs a command of Weir; returns its output.
///
/// # Errors
/// If it fails.
pub fn command(folder: &Path, words: &[&str]) -> Result<String, JudgeError> {
    command_with(folder, words, "")
}

/// Runs a command of Weir that reads this standard input; returns its output.
fn command_with(folder: &Path, words: &[&str], input: &str) -> Result<String, JudgeError> {
    let mut file = tempfile::tempfile().map_err(|e| failed("a file", e))?;
    let written = file.write_all(input.as_bytes()).and_then(|()| file.rewind());
    written.map_err(|e| failed("a file", e))?;
    let done = program(folder)?.args(words).stdin(file).output().map_err(|e| failed("weir", e))?;
    let text = String::from_utf8_lossy(&[&done.stdout[..], &done.stderr[..]].concat()).into_owned();
    if done.status.success() { Ok(text) } else { Err(failed(&format!("weir {}", words.join(" ")), text.trim())) }
}

impl Server {
    /// Makes a pool in a folder, and serves it. With `has_rpcbind` it may register with the rpcbind of this namespace.
    ///
    /// # Errors
    /// If a command fails, or the server does not get ready.
    pub fn start(folder: &Path, has_rpcbind: bool) -> Result<Server, JudgeError> {
        for name in ["a", "b", "c"] {
            let made = std::fs::File::create(folder.join(name)).and_then(|file| file.set_len(DEVICE_BYTES));
            made.map_err(|e| failed("a device", e))?;
        }
        command(folder, &["zpool", "create", POOL, "raidz", "a", "b", "c"])?;
        for volume in VOLUMES {
            command(folder, &["zfs", "create", "-s", "-V", VOLUME, &format!("{POOL}/{volume}")])?;
        }
        let help = command(folder, &["serve", "--help"])?;
        let abilities = Abilities {
            locks: help.contains("--no-rpcbind"),
            iscsi: help.contains("--iscsi-port"),
            smb: help.contains("--smb-port"),
        };
        let mut arguments = vec!["--no-root-squash".to_owned()];
        if abilities.smb {
            command_with(folder, &["smb", "user", "add", SMB_USER.0], SMB_USER.1)?;
            arguments.push("--smb".to_owned());
        }
        match (abilities.locks, has_rpcbind) {
            (true, true) => arguments.extend(["--state-dir".to_owned(), folder.join("state").display().to_string()]),
            (true, false) => arguments.push("--no-rpcbind".to_owned()),
            (false, _) => {}
        }
        for (option, has) in [
            ("--nfs-port", true),
            ("--nbd-port", true),
            ("--iscsi-port", abilities.iscsi),
            ("--smb-port", abilities.smb),
        ] {
            if has {
                arguments.extend([option.to_owned(), free_port()?.to_string()]);
            }
        }
        let folder = folder.to_path_buf();
        let mut server = Server { folder, running: None, arguments, lines: Vec::new(), abilities };
        server.restart()?;
        Ok(server)
    }

    /// Starts it again, on the same ports.
    ///
    /// # Errors
    /// If it does not get ready.
    pub fn restart(&mut self) -> Result<(), JudgeError> {
        debug_assert!(self.running.is_none(), "one server at a time");
        let mut command = program(&self.folder)?;
        command.arg("serve").args(&self.arguments).arg("-d").arg(&self.folder).arg(POOL);
        let mut running = Running::start(&mut command)?;
        self.lines = running.wait_for(|line| line.trim() == "ready")?;
        self.running = Some(running);
        Ok(())
    }

    /// Kills it (SIGKILL).
    pub fn kill(&mut self) {
        // A process that is dropped is killed.
        drop(self.running.take());
    }

    /// Asks it to end.
    ///
    /// # Errors
    /// If it does not.
    pub fn stop(&mut self) -> Result<(), JudgeError> {
        self.running.take().map_or(Ok(()), Running::stop)
    }

    /// Runs an administrator's command on the served pool.
    ///
    /// # Errors
    /// If it fails.
    pub fn administer(&self, words: &[&str]) -> Result<String, JudgeError> {
        command(&self.folder, words)
    }

    /// Port that follows an option of the command line.
    pub fn port(&self, option: &str) -> Option<&str> {
        let at = self.arguments.iter().position(|argument| argument == option)?;
        self.arguments.get(at + 1).map(String::as_str)
    }

    /// The first printed line with each of these words, as the guest reaches it.
    ///
    /// # Errors
    /// If there is none.
    pub fn line(&self, words: &[&str], host: &str) -> Result<String, JudgeError> {
        let found = self.lines.iter().find(|line| words.iter().all(|word| line.contains(word)));
        let line = found.ok_or_else(|| failed("weir serve", format!("printed no line with {}", words.join(", "))))?;
        Ok(line.trim().replace("127.0.0.1", host).replace("localhost", host))
    }
}

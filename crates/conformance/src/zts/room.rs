//! A room: namespaces for mounts, processes, network, IPC and host name, in which tests run as root and can do no harm.
//!
//! Process 1 is `zts/room.sh`, which prepares the root directory (an overlay), starts `weir daemon`, and reads standard
//! input until this process ends or closes it. Scripts enter the room by nsenter(1). When a room is dropped, the kernel
//! kills every process in it and ends its mounts.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::suite::Suite;
use crate::JudgeError;
use crate::kill::failed;
use crate::process::weir;

const ROOM: &str = include_str!("../../zts/room.sh");
const SUDO: &str = include_str!("../../zts/sudo.sh");
/// Replaces zinject: tests remove injected faults when they end, also those that inject none.
const ZINJECT: &str = "#!/bin/sh\n[ \"$*\" = '-c all' ]\n";
/// Names under which `weir` is called.
const NAMES: [&str; 5] = ["zpool", "zfs", "zdb", "zstream", "arcstat"];
/// Programs that do nothing here: there are no block devices to wait for.
const NOTHING: [&str; 1] = ["udevadm"];
/// Programs of OpenZFS's packages that tests use besides the commands.
const THEIRS: [&str; 2] = ["zhack", "zgenhostid"];
/// The disks are where `zpool import` looks without `-d`, as block devices are.
const CONFIGURATION: &str =
    "nfs_port = 0\nnbd_port = 0\niscsi_port = 0\nsmb_port = 0\nhttp_port = 0\npool_dirs = [\"/var/tmp\"]\n";
/// Reads the suite's constants, as `zfs-tests.sh` does, and runs a script.
const CALL: &str = ". \"$STF_SUITE/include/default.cfg\"; exec ksh -p \"$1\"";
/// Where the room has the suite and the programs.
const INSIDE: &str = "/weir-zts";

/// A room with a running daemon.
pub(super) struct Room {
    process: Child,
    /// Process id of its process 1, seen from outside.
    first: u32,
    /// Folder of the suite inside is [`INSIDE`]`/tools`; outside it is this.
    tools: PathBuf,
    _folder: tempfile::TempDir,
}

/// How a script ended.
#[derive(Debug)]
pub(super) enum End {
    /// By itself, with this exit code, or -1 if a signal ended it.
    Code(i32),
    /// Killed at the end of its time.
    TimeOut(Duration),
}

impl Room {
    /// Opens a room in a folder of its own below `scratch`.
    ///
    /// # Errors
    /// If a namespace, a mount or the daemon cannot be made.
    pub fn open(scratch: &Path, suite: &Suite) -> Result<Room, JudgeError> {
        let folder = tempfile::Builder::new().prefix("room-").tempdir_in(scratch).map_err(|e| failed("a folder", e))?;
        furnish(folder.path()).map_err(|e| failed("a room", e))?;
        let mut command = Command::new("unshare");
        command.args([
            "--mount",
            "--pid",
            "--fork",
            "--net",
            "--uts",
            "--ipc",
            "--kill-child",
            "--propagation",
            "private",
        ]);
        command.arg("sh").arg(folder.path().join("room.sh")).arg(folder.path()).arg(&suite.tools);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").current_dir(folder.path());
        let errors = File::create(folder.path().join("log/room.log")).map_err(|e| failed("a log", e))?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let mut process = command.spawn().map_err(|e| failed("unshare", e))?;
        let mut line = String::new();
        if let Some(stdout) = process.stdout.take() {
            // Without its line the room has ended; that is found below.
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        let first = line.trim().strip_prefix("room ").and_then(|number| number.parse().ok());
        let Some(first) = first else {
            let _ = process.kill();
            let _ = process.wait();
            let said = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap_or_default();
            return Err(failed("a room", format!("{}{}", said("log/room.log"), said("log/daemon.log"))));
        };
        Ok(Room { process, first, tools: suite.tools.clone(), _folder: folder })
    }

    /// Runs a ksh script of the suite; what it prints goes to `log`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn script(&self, script: &Path, as_root: bool, log: &Path, limit: Duration) -> Result<End, JudgeError> {
        if let Some(folder) = log.parent() {
            std::fs::create_dir_all(folder).map_err(|e| failed("a folder of logs", e))?;
        }
        let out = File::create(log).map_err(|e| failed("a log", e))?;
        let both = out.try_clone().map_err(|e| failed("a log", e))?;
        let mut command = Command::new("nsenter");
        command.arg("--target").arg(self.first.to_string());
        command.args(["--mount", "--pid", "--net", "--uts", "--ipc", "--root", "--wd"]);
        command.arg("--");
        if !as_root {
            command.arg(format!("{INSIDE}/bin/sudo")).args(["-E", "-u", "weirzts"]);
        }
        let below = script.strip_prefix(&self.tools).map_err(|e| failed("a path of the suite", e))?;
        command.args(["sh", "-c", CALL, "sh"]).arg(Path::new(INSIDE).join("tools").join(below));
        environment(&mut command, as_root);
        let mut child =
            command.stdin(Stdio::null()).stdout(out).stderr(both).spawn().map_err(|e| failed("nsenter", e))?;
        let begun = Instant::now();
        loop {
            if let Some(status) = child.try_wait().map_err(|e| failed("nsenter", e))? {
                return Ok(End::Code(status.code().unwrap_or(-1)));
            }
            if begun.elapsed() > limit {
                // The rest of it ends with the room.
                let _ = child.kill();
                let _ = child.wait();
                return Ok(End::TimeOut(limit));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // unshare --kill-child kills process 1, and the kernel the rest.
        let _ = self.process.kill();
        let _ = self.process.wait();
        // Its mounts have ended when the last process has: the folder is removed after that.
        let end = Instant::now() + Duration::from_secs(10);
        while Path::new(&format!("/proc/{}", self.first)).exists() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Makes the folders of a room, its programs and the daemon's configuration.
fn furnish(folder: &Path) -> std::io::Result<()> {
    let bin = folder.join("upper").join(INSIDE.trim_start_matches('/')).join("bin");
    for name in ["work", "root", "tmp", "var-tmp", "log", "upper/etc/weir"] {
        std::fs::create_dir_all(folder.join(name))?;
    }
    std::fs::create_dir_all(&bin)?;
    let mode = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode));
    mode(folder, 0o755)?;
    for name in ["tmp", "var-tmp"] {
        mode(&folder.join(name), 0o1777)?;
    }
    std::fs::write(folder.join("upper/etc/weir/weir.toml"), CONFIGURATION)?;
    std::fs::write(folder.join("room.sh"), ROOM)?;
    for (name, text) in [("sudo", SUDO), ("zinject", ZINJECT)] {
        std::fs::write(bin.join(name), text)?;
        mode(&bin.join(name), 0o755)?;
    }
    let program = weir().map_err(std::io::Error::other)?;
    if std::fs::hard_link(&program, bin.join("weir")).is_err() {
        std::fs::copy(&program, bin.join("weir"))?;
    }
    for name in NAMES {
        symlink("weir", bin.join(name))?;
    }
    for name in NOTHING {
        symlink("/bin/true", bin.join(name))?;
    }
    for name in THEIRS {
        symlink(format!("{INSIDE}/tools/sbin/{name}"), bin.join(name))?;
    }
    symlink("/sbin/mkfs.ext4", bin.join("newfs"))?;
    symlink("/sbin/fsck.ext4", bin.join("fsck"))
}

/// Environment of the scripts: what `zfs-tests.sh` sets.
fn environment(command: &mut Command, as_root: bool) {
    let share = format!("{INSIDE}/tools/usr/share/zfs");
    let path = format!("{INSIDE}/bin:{share}/zfs-tests/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    let disks = "/var/tmp/file-vdev0 /var/tmp/file-vdev1 /var/tmp/file-vdev2";
    command.env_clear();
    command.env("PATH", &path).env("STF_PATH", &path).env("DISKS", disks).env("UNAME", "Linux");
    command.env("STF_SUITE", format!("{share}/zfs-tests")).env("STF_TOOLS", format!("{share}/test-runner"));
    command.env("LD_LIBRARY_PATH", format!("{INSIDE}/tools/lib/x86_64-linux-gnu"));
    command.env("FILEDIR", "/var/tmp").env("TMPDIR", "/var/tmp").env("KEEP", "rpool").env("LC_ALL", "C");
    command.env("HOME", if as_root { "/root" } else { "/weir-zts/user" });
}

//! csi-sanity, the test suite of the Container Storage Interface, on `weir csi` with a daemon and a pool of files.
//!
//! | Case | Driver |
//! |---|---|
//! | nfs | controller and node; file systems, which the node binds from the mounts of the daemon (root and FUSE) |
//! | iscsi | controller; ZFS volumes as block devices |
//!
//! The program is found by `WEIR_CSI_SANITY`, or in `PATH`; `go install github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity@v5.6.0`
//! makes it. Without it the judge is skipped with a line. Every test of the suite that the capabilities of the driver select has to pass.
#![allow(clippy::disallowed_methods, reason = "judges run other programs in real time")]

use crate::process::{Running, weir};
use crate::report::Report;
use crate::{JudgeError, io};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const DEVICE_BYTES: u64 = 1 << 30;
/// Time within which the driver listens.
const READY_TIME: Duration = Duration::from_secs(30);

/// The program csi-sanity.
fn sanity() -> Result<PathBuf, JudgeError> {
    let in_path = || {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&folders).map(|folder| folder.join("csi-sanity")).find(|path| path.is_file())
    };
    let given = std::env::var_os("WEIR_CSI_SANITY").map(PathBuf::from);
    given.or_else(in_path).filter(|path| path.is_file()).ok_or_else(|| JudgeError::Missing {
        what: "csi-sanity is not installed: go install github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity@v5.6.0"
            .to_string(),
    })
}

/// Directories of a daemon, and its pool `sane`.
struct Site {
    folder: tempfile::TempDir,
    _daemon: Running,
}

fn command(folder: &Path, words: &[&str]) -> Result<Command, JudgeError> {
    let mut command = Command::new(weir()?);
    command.args(words).current_dir(folder).env_remove("WEIR_POOL_DIRS").env_remove("WEIR_LOG");
    command.env("RUNTIME_DIRECTORY", folder.join("run")).env("STATE_DIRECTORY", folder.join("state"));
    command.env("CONFIGURATION_DIRECTORY", folder.join("conf"));
    Ok(command)
}

impl Site {
    fn new(mounts: bool) -> Result<Site, JudgeError> {
        let folder = tempfile::tempdir().map_err(io("a folder"))?;
        let path = folder.path();
        for name in ["run", "state", "conf"] {
            std::fs::DirBuilder::new().mode(0o700).create(path.join(name)).map_err(io(name))?;
        }
        let ports = "nfs_port = 0\nnbd_port = 0\niscsi_port = 0\nsmb_port = 0\nhttp_port = 0\n";
        std::fs::write(path.join("conf/weir.toml"), format!("{ports}mounts = {mounts}\n")).map_err(io("weir.toml"))?;
        let device = std::fs::File::create(path.join("d0")).map_err(io("d0"))?;
        device.set_len(DEVICE_BYTES).map_err(io("d0"))?;
        let mut daemon = Running::start(&mut command(path, &["daemon"])?)?;
        daemon.wait_for(|line| line == "ready")?;
        let mountpoint = format!("mountpoint={}", path.join("mnt").display());
        for words in [&["zpool", "create", "-O", &mountpoint, "sane", "d0"][..], &["zfs", "create", "sane/k8s"]] {
            let status = command(path, words)?.status().map_err(io("weir"))?;
            if !status.success() {
                let why = format!("ended with {status}");
                return Err(JudgeError::Process { command: words.join(" "), why });
            }
        }
        Ok(Site { folder, _daemon: daemon })
    }
}

/// Runs the suite against a driver with these options, and returns the lines about what failed.
fn judge(program: &Path, mounts: bool, driver: &[&str], suite: &[&str]) -> Result<(String, Vec<String>), JudgeError> {
    let site = Site::new(mounts)?;
    let folder = site.folder.path();
    let socket = folder.join("csi.sock");
    let endpoint = format!("unix://{}", socket.display());
    let shared = ["csi", "--endpoint", &endpoint, "--parent", "sane/k8s", "--server", "127.0.0.1"];
    let running = Running::start(&mut command(folder, &[&shared[..], driver].concat())?)?;
    let until = Instant::now() + READY_TIME;
    while !socket.exists() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut command = Command::new(program);
    command.current_dir(folder).arg(format!("--csi.endpoint={endpoint}")).arg("--csi.testvolumesize=67108864");
    command.arg("--csi.testvolumeexpandsize=134217728").arg("--ginkgo.no-color").args(suite);
    command.arg(format!("--csi.mountdir={}", folder.join("target").display()));
    command.arg(format!("--csi.stagingdir={}", folder.join("staging").display()));
    let out = command.output().map_err(io("csi-sanity"))?;
    let text = String::from_utf8_lossy(&out.stdout);
    let about = text.lines().find(|line| line.contains("Passed") && line.contains("Failed"));
    let about = about.unwrap_or("no summary").trim().to_owned();
    let mut wrong: Vec<String> =
        text.lines().filter(|line| line.contains("[FAIL]")).map(|line| line.trim().to_owned()).collect();
    if wrong.is_empty() && !(out.status.success() && about.contains("0 Failed")) {
        wrong.push(format!("csi-sanity ended with {}: {about}", out.status));
    }
    running.stop()?;
    Ok((about, wrong))
}

/// Runs the suite over both protocols.
///
/// # Errors
/// If csi-sanity or the daemon cannot be run.
pub fn run(report: &mut Report) -> Result<(), JudgeError> {
    let program = sanity()?;
    let parameters = tempfile::NamedTempFile::new().map_err(io("a file"))?;
    std::fs::write(parameters.path(), "protocol: iscsi\n").map_err(io("a file"))?;
    let of_iscsi = format!("--csi.testvolumeparameters={}", parameters.path().display());
    let node = ["--controller", "--node", "--node-id", "sane", "--node-address", "127.0.0.1", "--node-mount", "bind"];
    let is_root = rustix::process::geteuid().is_root();
    if is_root && Path::new("/dev/fuse").exists() {
        book(report, "csi nfs", judge(&program, true, &node, &[]));
    } else {
        report.skip("csi nfs", "the node needs root and /dev/fuse");
    }
    let suite = [of_iscsi.as_str(), "--csi.testvolumeaccesstype=block", "--ginkgo.skip=Node Service"];
    if is_root {
        book(report, "csi iscsi", judge(&program, false, &node, &suite));
    } else {
        report.skip("csi iscsi", "the suite asks the node for its name, and the node needs root");
    }
    Ok(())
}

fn book(report: &mut Report, case: &str, outcome: Result<(String, Vec<String>), JudgeError>) {
    match outcome {
        Ok((about, wrong)) if wrong.is_empty() => report.pass(case, &about),
        Ok((_, wrong)) => report.fail(case, &wrong),
        Err(JudgeError::Missing { what }) => report.skip(case, &what),
        Err(error) => report.fail(case, &[error.to_string()]),
    }
}

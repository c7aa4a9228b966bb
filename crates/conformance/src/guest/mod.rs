//! The clients of a real Linux kernel, in an emulated machine, on a pool that Weir serves on this machine's loopback.
//!
//! ```text
//!   this machine                                        QEMU (TCG), user network
//!   weir serve 127.0.0.1:PORT ◄───── 10.0.2.2:PORT ───── nfs.ko, nbd.ko, iscsi_tcp.ko, cifs.ko
//!   weir-judge ──── virtio port: scripts, results ────── weir-guest-agent ─ mkfs, fsck, fio, fsx, tcc, …
//! ```
//!
//! | Client | Cases |
//! |---|---|
//! | NFSv3 | mounted by the line that Weir prints; contents, names, many files, a build, fsx, pjdfstest, snapshots, locks |
//! | NBD, iSCSI | attached; ext4 and xfs with discard, fsck, random writes verified by fio |
//! | SMB | `vers=2.1`, `3.0`, `3.1.1`, encrypted; contents, fsx |
//! | NFSv3, `weir daemon` | locks of a client and of this machine's mount; the daemon is killed: the client reclaims them |
//! | each | the server is killed and restarted while the client writes: it goes on, and what fsync promised is there |
//!
//! A protocol that this build does not serve is skipped by name. The emulated machine's parts come from Debian packages
//! (`xtask/scripts/fetch-guest.sh`); without them or QEMU the whole judge is skipped. `--long` does more of everything.
#![allow(clippy::disallowed_methods, reason = "judges run other programs in real time")]

mod cases;
mod daemon;
mod emulator;
mod parts;
mod restarts;
mod server;
pub mod units;

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::JudgeError;
use crate::kill::{demand_clean, failed};
use crate::report::Report;
use crate::suites::program;
use crate::zdb::Tools;

use cases::Cases;
use emulator::{Guest, Network};
use parts::Parts;
use server::{POOL, Server};

/// Socket of rpcbind.
const RPCBIND: &str = "/run/rpcbind.sock";
/// Set in the namespaces of [`isolated`].
const ISOLATED: &str = "WEIR_GUEST_ISOLATED";
/// Commands of the namespaces: a /run and a loopback of their own, and a port mapper there.
const NAMESPACES: &str = "mount -t tmpfs -o mode=755 run /run && ip link set lo up && \
                          if command -v rpcbind >/dev/null; then rpcbind; fi && exec \"$0\" \"$@\"";

/// Starts this program again in namespaces for network, mounts and processes, if it runs as root: NFS clients look for the
/// lock manager at rpcbind's well-known port, and rpcbind must not be this machine's. Returns if that is not possible.
fn isolated(rest: &[String]) {
    let has = |name| program("", name).is_ok();
    if std::env::var_os(ISOLATED).is_some() || !rustix::process::geteuid().is_root() || !has("unshare") || !has("ip") {
        return;
    }
    let Ok(here) = std::env::current_exe() else { return };
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.args(["sh", "-c", NAMESPACES]).arg(here).arg("guest").args(rest).env(ISOLATED, "1");
    // Comes back only if unshare cannot be started; then this machine's own network has to do.
    let _ = command.exec();
}

/// Runs all cases in one emulated machine, then has zdb read the pool.
///
/// # Errors
/// If a part is missing, or the machine or the server does not start.
pub fn run(rest: &[String], report: &mut Report) -> Result<(), JudgeError> {
    let long = rest.iter().any(|word| word == "--long");
    let only = rest.iter().position(|word| word == "--only").and_then(|at| rest.get(at + 1));
    let wanted = |protocol: &str| only.is_none_or(|only| only == protocol);
    let parts = Parts::find()?;
    isolated(rest);
    let folder = tempfile::tempdir().map_err(|e| failed("a folder", e))?;
    if only.is_none_or(|only| only != "daemon") {
        served(&parts, folder.path(), long, wanted, report)?;
    }
    if wanted("daemon") {
        match has_rpcbind() {
            true => daemon::run(&parts, folder.path(), report)?,
            false => report.skip("guest daemon", "no rpcbind, or no namespace to run it in"),
        }
    }
    Ok(())
}

/// Whether there is a namespace of this run with an rpcbind in it.
fn has_rpcbind() -> bool {
    Path::new(RPCBIND).exists() && std::env::var_os(ISOLATED).is_some()
}

/// The cases on `weir serve`.
fn served(
    parts: &Parts,
    folder: &Path,
    long: bool,
    wanted: impl Fn(&str) -> bool,
    report: &mut Report,
) -> Result<(), JudgeError> {
    let devices = folder.join("devices");
    std::fs::create_dir(&devices).map_err(|e| failed("a folder", e))?;
    let server = Server::start(&devices, has_rpcbind())?;
    let guest = Guest::boot(parts, folder, "one", Network::User)?;
    report.pass("guest boot", "a Linux kernel with its agent");
    let mut cases = Cases { guest, server, parts, folder, long, report };
    cases.settings()?;
    if wanted("nfs") {
        cases.nfs()?;
    }
    if wanted("nbd") {
        cases.nbd()?;
    }
    if wanted("iscsi") {
        cases.iscsi()?;
    }
    if wanted("smb") {
        cases.smb()?;
    }
    let Cases { guest, mut server, .. } = cases;
    drop(guest);
    server.stop()?;
    let mut differences = Vec::new();
    let tools = Tools::find().ok();
    demand_clean(&tools, &devices, POOL, "stopped", &mut differences)?;
    match (tools.is_some(), differences.is_empty()) {
        (false, _) => report.skip("guest zdb", "OpenZFS's tools are not there (set WEIR_ZFS_TOOLS)"),
        (true, true) => report.pass("guest zdb", "no leaks"),
        (true, false) => report.fail("guest zdb", &differences),
    }
    Ok(())
}

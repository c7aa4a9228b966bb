//! The cases, by client. Each is a shell function of `scripts/` that ends with 0, within a limit of time.

use std::path::Path;
use std::time::{Duration, Instant};

use super::emulator::{Guest, HOST, Network};
use super::parts::Parts;
use super::server::{POOL, SMB_USER, Server};
use crate::JudgeError;
use crate::kill::failed;
use crate::report::Report;
use crate::suites;

/// Lines of output that explain a failure.
const EXPLAINED_LINES: usize = 8;

/// Machine, server and report of a run.
pub struct Cases<'a> {
    /// The emulated machine.
    pub guest: Guest,
    /// Weir.
    pub server: Server,
    /// Contents of the guest's archive.
    pub parts: &'a Parts,
    /// Folder for consoles of guests.
    pub folder: &'a Path,
    /// Whether to do more of everything.
    pub long: bool,
    /// Receives the results.
    pub report: &'a mut Report,
}

impl Cases<'_> {
    /// Runs a call of a function in a script; returns whether it succeeded, and its output.
    pub fn call(
        &mut self,
        file: &str,
        call: &str,
        seconds: u64,
    ) -> Result<Result<Vec<String>, Vec<String>>, JudgeError> {
        let script = format!("set -ex\n. /judge/{file}\n{call}\n");
        let job = self.guest.run(&script, Duration::from_secs(seconds))?;
        match job.code {
            Some(0) => Ok(Ok(job.lines.into_iter().filter(|line| !line.starts_with('+')).collect())),
            Some(137) => Err(failed("the guest", format!("{call}: cannot be killed; {}", job.lines.join(" | ")))),
            code => {
                let mut lines = vec![format!("{call}: exit {}, at most {seconds} s", code.unwrap_or_default())];
                lines.extend(job.lines[job.lines.len().saturating_sub(EXPLAINED_LINES)..].iter().cloned());
                Ok(Err(lines))
            }
        }
    }

    /// Reports a call as a case; returns whether it passed.
    fn case(&mut self, name: &str, file: &str, call: &str, seconds: u64) -> Result<bool, JudgeError> {
        let begun = Instant::now();
        let outcome = self.call(file, call, seconds)?;
        let passed = outcome.is_ok();
        match outcome {
            Ok(_) => self.report.pass(&format!("guest {name}"), &format!("{:.1} s", begun.elapsed().as_secs_f32())),
            Err(lines) => self.report.fail(&format!("guest {name}"), &lines),
        }
        Ok(passed)
    }

    /// Writes the settings of the suites into the guest.
    ///
    /// # Errors
    /// If the guest ends.
    pub fn settings(&mut self) -> Result<(), JudgeError> {
        // Version 3 of NFS has no operation to punch a hole.
        let operations = suites::OPERATIONS.replace("punch_hole = 3\n", "");
        let fsx = format!("flen = {}\n[opsize]\nmax = {}\n{operations}", 256 << 10, 32 << 10);
        for (file, text) in [("fsx.toml", fsx.as_str()), ("pjdfstest.toml", suites::FEATURES)] {
            let script = format!("cat >/judge/{file} <<'SETTINGS'\n{text}SETTINGS\n");
            self.guest.run(&script, Duration::from_secs(20))?;
        }
        Ok(())
    }

    /// NFSv3.
    ///
    /// # Errors
    /// If the guest or the server ends.
    pub fn nfs(&mut self) -> Result<(), JudgeError> {
        let mount = self.server.line(&["mount -t nfs", &format!("/{POOL} /mnt")], HOST)?;
        let locks = self.server.abilities.locks && !mount.contains("nolock");
        if locks && !self.case("nfs lock services", "nfs.sh", "locking_started", 60)? {
            return Ok(());
        }
        if !self.case("nfs mount", "nfs.sh", &format!("mounted {mount}"), 60)? {
            return Ok(());
        }
        self.case("nfs contents", "nfs.sh", &format!("files {mount}"), 120)?;
        self.case("nfs names", "nfs.sh", &format!("names {mount}"), 60)?;
        let files = if self.long { 2000 } else { 200 };
        self.case("nfs many files", "nfs.sh", &format!("many {files}"), 900)?;
        if self.parts.sources {
            self.case("nfs build", "nfs.sh", "build", 300)?;
        } else {
            self.report.skip("guest nfs build", "no C sources");
        }
        if self.parts.suites.contains(&"fsx") {
            let operations = if self.long { 20_000 } else { 500 };
            self.case("nfs fsx", "nfs.sh", &format!("fsx {operations}"), if self.long { 1800 } else { 120 })?;
        } else {
            self.report.skip("guest nfs fsx", "fsx is not installed");
        }
        self.pjdfstest()?;
        self.snapshot()?;
        match (self.server.abilities.locks, locks) {
            (false, _) => self.report.skip("guest nfs locks", "this build has no lock manager"),
            (true, false) => self.report.skip("guest nfs locks", "no rpcbind, or no namespace to run it in"),
            (true, true) => self.locks(&mount)?,
        }
        self.nfs_restarted(&mount)?;
        self.case("nfs unmount", "nfs.sh", "unmounted", 60)?;
        Ok(())
    }

    /// Locks of two processes in the guest, then of two guests.
    fn locks(&mut self, mount: &str) -> Result<(), JudgeError> {
        self.case("nfs locks", "nfs.sh", "locks locked", 180)?;
        if !self.long {
            self.report.skip("guest nfs locks of two clients", "only with --long");
            return Ok(());
        }
        let limit = Duration::from_secs(600);
        let holder = self.guest.start("set -e\n. /judge/nfs.sh\nlocks shared hold\n", limit)?;
        self.guest.wait(holder, limit, |job| job.lines.iter().any(|line| line == "HELD"))?;
        let second = Guest::boot(self.parts, self.folder, "two", Network::User)?;
        let first = std::mem::replace(&mut self.guest, second);
        // The cases of the second guest, then of both.
        let mounted = self.call("nfs.sh", "locking_started", 60)?.is_ok()
            && self.call("nfs.sh", &format!("mounted {mount}"), 60)?.is_ok();
        let refused =
            if mounted { self.call("nfs.sh", "locks shared refused", 60)? } else { Err(vec!["no mount".into()]) };
        let second = std::mem::replace(&mut self.guest, first);
        self.guest.run("touch /tmp/release\n", Duration::from_secs(20))?;
        self.guest.end(holder, limit)?;
        let first = std::mem::replace(&mut self.guest, second);
        let granted = if refused.is_ok() { self.call("nfs.sh", "locks shared granted", 120)? } else { refused };
        self.guest = first;
        match granted {
            Ok(_) => self.report.pass("guest nfs locks of two clients", "refused while held, granted afterwards"),
            Err(lines) => self.report.fail("guest nfs locks of two clients", &lines),
        }
        Ok(())
    }

    fn pjdfstest(&mut self) -> Result<(), JudgeError> {
        if !self.long || !self.parts.suites.contains(&"pjdfstest") {
            let why = if self.long { "it is not installed" } else { "only with --long" };
            self.report.skip("guest nfs pjdfstest", why);
            return Ok(());
        }
        match self.call("nfs.sh", "pjdfstest", 3600)? {
            Ok(lines) => {
                let summary = lines.iter().find(|line| line.starts_with("Summary:")).cloned().unwrap_or_default();
                if summary.contains(" 0 failed,") {
                    self.report.pass("guest nfs pjdfstest", &summary);
                } else {
                    self.report.fail("guest nfs pjdfstest", &lines);
                }
            }
            Err(lines) => self.report.fail("guest nfs pjdfstest", &lines),
        }
        Ok(())
    }

    fn snapshot(&mut self) -> Result<(), JudgeError> {
        if let Err(lines) = self.call("nfs.sh", "before_snapshot", 60)? {
            self.report.fail("guest nfs snapshot", &lines);
            return Ok(());
        }
        self.server.administer(&["zfs", "snapshot", &format!("{POOL}@one")])?;
        self.case("nfs snapshot", "nfs.sh", "after_snapshot", 60)?;
        Ok(())
    }

    /// NBD.
    ///
    /// # Errors
    /// If the guest or the server ends.
    pub fn nbd(&mut self) -> Result<(), JudgeError> {
        let attach = self.server.line(&["nbd-client", &format!("{POOL}/vol")], HOST)?;
        if self.case("nbd attach", "block.sh", &format!("nbd {attach}"), 60)? {
            self.block("nbd", "/dev/nbd0")?;
            self.case("nbd detach", "block.sh", "nbd-client -d /dev/nbd0", 60)?;
        }
        // nbd-client -N NAME HOST PORT DEVICE
        let words: Vec<&str> = attach.split_whitespace().collect();
        let &["nbd-client", "-N", name, host, port, ..] = words.as_slice() else {
            return Err(failed("weir serve", format!("printed another line for nbd-client: {attach}")));
        };
        // A write that was answered and not flushed is lost with the server, and no client of NBD repeats it. With
        // sync=always each write is stable when it is answered.
        self.server.administer(&["zfs", "set", "sync=always", &format!("{POOL}/vol")])?;
        if self.case("nbd attach again", "block.sh", &format!("nbd_persistent {name} {host} {port} 1"), 60)? {
            self.block_restarted("nbd", "/dev/nbd1")?;
            self.case("nbd detach again", "block.sh", "nbd-client -d /dev/nbd1", 60)?;
        }
        Ok(())
    }

    /// Cases on a block device.
    fn block(&mut self, protocol: &str, device: &str) -> Result<(), JudgeError> {
        self.case(&format!("{protocol} discard"), "block.sh", &format!("discarded {device}"), 60)?;
        for kind in ["ext4", "xfs"] {
            let call = format!("file_system {device} {kind}");
            self.case(&format!("{protocol} {kind}"), "block.sh", &call, 300)?;
        }
        let (size, seconds) = if self.long { ("256M", 1200) } else { ("12M", 200) };
        self.case(&format!("{protocol} verify"), "block.sh", &format!("verified {device} {size}"), seconds)?;
        Ok(())
    }

    /// iSCSI, without and with CHAP.
    ///
    /// # Errors
    /// If the guest or the server ends.
    pub fn iscsi(&mut self) -> Result<(), JudgeError> {
        if !self.server.abilities.iscsi {
            self.report.skip("guest iscsi", "this build serves no iSCSI");
            return Ok(());
        }
        let line = self.server.line(&["iscsi://", "disk"], HOST)?;
        // iscsi://HOST:PORT/TARGET/LUN
        let parts: Vec<&str> = line.split("iscsi://").nth(1).unwrap_or_default().split(['/', ' ']).collect();
        let &[portal, target, ..] = parts.as_slice() else {
            return Err(failed("weir serve", format!("printed a line without portal and target: {line}")));
        };
        if !self.case("iscsi login", "block.sh", &format!("iscsi {target} {portal}"), 120)? {
            return Ok(());
        }
        let device = match self.call("block.sh", "scsi_disk", 60)? {
            Ok(lines) => lines.last().cloned().unwrap_or_default(),
            Err(lines) => {
                self.report.fail("guest iscsi disk", &lines);
                return Ok(());
            }
        };
        self.block("iscsi", &device)?;
        self.block_restarted("iscsi", &device)?;
        self.case("iscsi logout", "block.sh", "iscsi_logout", 60)?;
        Ok(())
    }

    /// SMB in each dialect.
    ///
    /// # Errors
    /// If the guest or the server ends.
    pub fn smb(&mut self) -> Result<(), JudgeError> {
        if !self.server.abilities.smb {
            self.report.skip("guest smb", "this build serves no SMB");
            return Ok(());
        }
        let Some(port) = self.server.port("--smb-port").map(ToString::to_string) else {
            return Err(failed("weir serve", "has no SMB port"));
        };
        let (user, password) = SMB_USER;
        let credentials = format!("printf 'username={user}\\npassword={}\\n' >/tmp/smb-credentials", password.trim());
        self.guest.run(&credentials, Duration::from_secs(20))?;
        // The pool's root belongs to root: a folder for the user of SMB, made over NFS.
        let nfs = self.server.line(&["mount -t nfs", &format!("/{POOL} /mnt")], HOST)?;
        let folder = format!("mounted {nfs} -o nolock\nmkdir -p -m 777 /mnt/open\numount /mnt");
        if let Err(lines) = self.call("nfs.sh", &folder, 60)? {
            self.report.fail("guest smb folder", &lines);
            return Ok(());
        }
        for (version, options) in [("2.1", ""), ("3.0", "seal"), ("3.1.1", ""), ("3.1.1", "seal")] {
            let name = format!("smb {version}{}{options}", if options.is_empty() { "" } else { " " });
            let mount = format!("smb_mounted {port} {POOL} {user} {version} {options}");
            if self.case(&format!("{name} mount"), "smb.sh", &mount, 120)? {
                self.case(&format!("{name} contents"), "smb.sh", &format!("smb_files {version}"), 240)?;
                if self.parts.suites.contains(&"fsx") && (self.long || version == "3.1.1" && options.is_empty()) {
                    let operations = if self.long { 5000 } else { 300 };
                    self.case(&format!("{name} fsx"), "smb.sh", &format!("smb_fsx {operations}"), 1200)?;
                }
                self.case(&format!("{name} unmount"), "smb.sh", "smb_unmounted", 60)?;
            }
        }
        Ok(())
    }
}

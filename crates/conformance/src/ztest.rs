//! Pools under fire: OpenZFS's own `ztest` makes them in every arrangement, with all that it knows to do to a pool at
//! once (snapshots, clones, attaching, detaching, removing, expanding, checkpoints, deduplication, gangs, injected
//! damage), and is killed (SIGKILL) in the middle of it.
//!
//! ```text
//!   ztest … ─► SIGKILL ─► zdb -bcc: clean? ─► weir zdb -bcc: the same figures
//!                     ─► import, a workload in file systems of our own ─► export ─► zdb -bcc ─► our files are there
//! ```
//!
//! The datasets of ztest contain no file system and are left alone. A pool in the middle of an operation that
//! Weir cannot continue (a vdev removal, a RAID-Z expansion) is refused for writing by name; the
//! line says so, and then nothing may have been written to it. A pool that zdb itself cannot walk is not judged.
#![allow(clippy::disallowed_methods, reason = "a judge kills other programs in real time")]

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use weir_engine::{Engine, ImportOptions};
use weir_machine::Machine;
use weir_pool::{OpenOptions, PoolError};

use crate::JudgeError;
use crate::compare::Findings;
use crate::engine::{Opened, look};
use crate::kill::{failed, mixed};
use crate::report::Report;
use crate::workload::{self, Done};
use crate::zdb::{Tools, compare, fault, ours, theirs};

const POOL: &str = "ztest";

/// Output of ztest, in its folder.
const LOG: &str = "ztest.log";

/// The arrangements: a name, and ztest's arguments.
const KINDS: &[(&str, &[&str])] = &[
    ("mirrors", &["-v", "2", "-m", "2", "-K", "raidz", "-r", "1"]),
    ("raidz1", &["-v", "2", "-m", "1", "-K", "raidz", "-r", "4", "-R", "1"]),
    ("raidz2 that grows", &["-v", "1", "-m", "1", "-K", "eraidz", "-r", "5", "-R", "2"]),
    ("draid1", &["-v", "1", "-m", "1", "-K", "draid", "-r", "6", "-R", "1", "-D", "4", "-S", "1"]),
    ("one disk each", &["-v", "3", "-m", "1", "-K", "raidz", "-r", "1", "-a", "12"]),
    ("mirrored raidz3", &["-v", "1", "-m", "2", "-K", "raidz", "-r", "5", "-R", "3"]),
];

/// Maximum time for ztest to make its pool.
const BEGINS_WITHIN: Duration = Duration::from_secs(120);
/// Running time of ztest after that: minimum, and the range above it, in ms.
const LIVES_MS: (u64, u64) = (10_000, 15_000);

/// ztest, and all processes that it started; killed when dropped.
struct Fire(Child);

impl Fire {
    fn start(tools: &Tools, folder: &Path, kind: &[&str]) -> Result<Fire, JudgeError> {
        let mut command = tools.program("sbin/ztest");
        // It calls zdb by its name.
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", tools.folder().join("sbin").display()));
        // Its passes are longer than its running time, because the judge ends it.
        command.args(["-T", "600", "-P", "300", "-t", "8", "-d", "3", "-s", "192m", "-p", POOL, "-f"]).arg(folder);
        let log = File::create(folder.join(LOG)).map_err(|error| failed("a log", error))?;
        let both = log.try_clone().map_err(|error| failed("a log", error))?;
        command.args(kind).current_dir(folder).stdout(log).stderr(both).process_group(0);
        Ok(Fire(command.spawn().map_err(|error| failed("ztest", error))?))
    }

    fn ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }

    fn kill(&mut self) {
        if let Some(group) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            // All may have ended already.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

impl Drop for Fire {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs this number of rounds (one argument; otherwise one of each arrangement).
///
/// # Errors
/// If OpenZFS's tools are not here.
pub fn run(words: &[String], report: &mut Report) -> Result<(), JudgeError> {
    let tools = Tools::find()?;
    if !tools.folder().join("sbin/ztest").is_file() {
        return Err(JudgeError::Missing { what: "no ztest among OpenZFS's tools (package zfs-test)".to_owned() });
    }
    let rounds = words.iter().find_map(|word| word.parse::<u64>().ok()).unwrap_or(KINDS.len() as u64);
    let keep = words.iter().any(|word| word == "--keep");
    for (round, (name, kind)) in (0..rounds).zip(KINDS.iter().cycle()) {
        let case = format!("ztest {round}, {name}");
        let folder = tempfile::Builder::new().prefix("weir-ztest-").tempdir().map_err(|e| failed("a folder", e))?;
        let before = report.failed;
        match judge(&tools, folder.path(), kind, round) {
            Ok((findings, about)) if findings.is_empty() => report.pass(&case, &about),
            Ok((findings, _)) => report.fail(&case, &findings.lines()),
            Err(error) => report.book(&case, Err(error)),
        }
        if keep && report.failed > before {
            crate::report::line(&format!("        kept in {}", folder.keep().display()));
        }
    }
    Ok(())
}

/// Runs ztest for a while and kills it; returns whether it had made a pool.
fn fire(tools: &Tools, folder: &Path, kind: &[&str], round: u64) -> Result<(), JudgeError> {
    let mut ztest = Fire::start(tools, folder, kind)?;
    let until = Instant::now() + BEGINS_WITHIN;
    let is_pool = || {
        let mut zdb = tools.timed("sbin/zdb", 20);
        zdb.args(["-e", "-u", "-p"]).arg(folder).arg(POOL).stdout(Stdio::null()).stderr(Stdio::null());
        zdb.status().is_ok_and(|status| status.success())
    };
    while !is_pool() {
        if ztest.ended() || Instant::now() > until {
            return Err(gave_up("did not come to make a pool", folder));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    std::thread::sleep(Duration::from_millis(LIVES_MS.0 + mixed(round) % LIVES_MS.1));
    if ztest.ended() {
        return Err(gave_up("ended by itself", folder));
    }
    ztest.kill();
    Ok(())
}

/// ztest injects damage, and sometimes stops at it.
fn gave_up(how: &str, folder: &Path) -> JudgeError {
    let log = std::fs::read(folder.join(LOG)).unwrap_or_default();
    let log = String::from_utf8_lossy(&log).into_owned();
    let why = log.lines().find(|line| ["ASSERT", "VERIFY", "error", "ztest:"].iter().any(|word| line.contains(word)));
    JudgeError::Missing { what: format!("ztest {how}: {}", why.unwrap_or_default()) }
}

fn judge(tools: &Tools, folder: &Path, kind: &[&str], round: u64) -> Result<(Findings, String), JudgeError> {
    fire(tools, folder, kind, round)?;
    if let Some(before) = fault(tools, folder, POOL)? {
        return Err(JudgeError::Missing { what: format!("zdb finds fault with what ztest left: {before}") });
    }
    let expected = theirs(tools, folder, POOL)?;
    let mut findings = compare(&ours(folder, POOL)?, &expected);
    let machine = weir_linux::machine().map_err(|error| failed("machine", error))?;
    let done = match machine.block_on(write(&machine, folder))? {
        Ok(done) => done,
        Err(why) => {
            if theirs(tools, folder, POOL)? != expected {
                findings.differs("it was refused, and is another now".to_owned());
            }
            return Ok((findings, format!("read; {why}")));
        }
    };
    if let Some(found) = fault(tools, folder, POOL)? {
        findings.differs(format!("zdb -bcc, written: {found}"));
    }
    let options = OpenOptions::new(vec![folder.to_owned()], POOL);
    findings.absorb("", look(&Opened::new(&options)?, &done));
    Ok((findings, format!("{} folders written; {}", done.written.len(), done.left.join("; "))))
}

/// Works on the pool and exports it; `Err` with the reason if it may not be written.
async fn write(machine: &Machine, folder: &Path) -> Result<Result<Done, String>, JudgeError> {
    let mut options = ImportOptions::new(OpenOptions::new(vec![folder.to_owned()], POOL));
    options.force = true;
    let engine = match Engine::import(machine, &options).await {
        Ok(engine) => engine,
        Err(PoolError::Refused { what }) => return Ok(Err(what)),
        Err(other) => return Err(failed("import", other)),
    };
    let done = workload::work(&engine, true).await;
    engine.export().await.map_err(|error| failed("export", error))?;
    done.map(Ok).map_err(|why| failed("workload", why))
}

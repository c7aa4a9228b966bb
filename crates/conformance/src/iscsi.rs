//! Other people's initiators against volumes of a pool: every test of `iscsi-test-cu` (libiscsi), and qemu's driver.
//!
//! The pool and the target run in this process. A test passes, or is skipped by the suite for a reason in
//! [`EXPECTED_SKIPS`]; any other skip is a failure, so that a command which disappears does not disappear unnoticed.
//!
//! | LUN | Volume | For |
//! |---|---|---|
//! | 0 | blocks of 16 KiB, write cache | all suites |
//! | 1 | blocks of 512 bytes, write cache | [`SMALL_BLOCKS`] |
//! | 2 | read-only | `ReadOnly` |
#![allow(clippy::disallowed_methods, reason = "a judge runs other programs in real time")]

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use weir_daemon::exports::{Exports, OpenPool};
use weir_dsl::sync_tasks::{Kind, NewDataset, VolumeSpec};
use weir_engine::{CreateOptions, Engine, Layout, NewLeaf, NewTopLevelVdev};
use weir_front::{BlockExports, Hosts};
use weir_iscsi::{ChapConfig, Credentials, LunConfig, ReservationStore, Secret, Server, TargetConfig, serve};
use weir_machine::{Machine, Request};
use weir_pool::config::Class;

use crate::JudgeError;
use crate::report::Report;

const POOL: &str = "judged";
const TARGET: &str = "iqn.2000-01.org.example:judged";
const CHAP_TARGET: &str = "iqn.2000-01.org.example:chap";
const HIDDEN_TARGET: &str = "iqn.2000-01.org.example:hidden";
const USER: &str = "judge";
const SECRET: &str = "a-secret-of-16-b";
const DEVICE_BYTES: u64 = 2 << 30;
const VOLUME_BYTES: u64 = 128 << 20;

/// Suites, and how long they take: the slow ones are not in the short form.
const SUITES: &[(&str, bool)] = &[
    ("CompareAndWrite", false),
    ("ExtendedCopy", false),
    ("GetLBAStatus", false),
    ("Inquiry", false),
    ("Mandatory", false),
    ("ModeSense6", false),
    ("NoMedia", false),
    ("OrWrite", true),
    ("Prefetch10", false),
    ("Prefetch16", false),
    ("PreventAllow", false),
    ("PrinReadKeys", false),
    ("PrinServiceactionRange", false),
    ("PrinReportCapabilities", false),
    ("ProutRegister", false),
    ("ProutReserve", false),
    ("ProutClear", false),
    ("ProutPreempt", false),
    ("Read6", false),
    ("Read10", false),
    ("Read12", false),
    ("Read16", false),
    ("ReadCapacity10", false),
    ("ReadCapacity16", false),
    ("ReadDefectData10", false),
    ("ReadDefectData12", false),
    ("ReadOnly", false),
    ("ReceiveCopyResults", false),
    ("ReportSupportedOpcodes", false),
    ("Reserve6", true),
    ("Sanitize", false),
    ("StartStopUnit", false),
    ("TestUnitReady", false),
    ("Unmap", false),
    ("Verify10", true),
    ("Verify12", true),
    ("Verify16", true),
    ("Write10", false),
    ("Write12", true),
    ("Write16", false),
    ("WriteAtomic16", false),
    ("WriteSame10", true),
    ("WriteSame16", false),
    ("WriteVerify10", true),
    ("WriteVerify12", true),
    ("WriteVerify16", true),
    ("iSCSIcmdsn", false),
    ("iSCSIdatasn", true),
    ("iSCSIResiduals", false),
    ("iSCSITMF", false),
    ("MultipathIO", true),
];

/// Suites that expect one logical block per physical block: `GetLBAStatus.UnmapSingle` asks for the status of the block
/// after the first, and expects a descriptor that begins at the next physical block.
const SMALL_BLOCKS: &[&str] = &["GetLBAStatus"];

/// Texts of expected skips, and why Weir does not support the subject.
const EXPECTED_SKIPS: &[(&str, &str)] = &[
    ("SANITIZE", "erasing a volume beyond recovery is not possible in a pool with snapshots"),
    ("not removable", "volumes are not removable media"),
    ("not write-protected", "only the read-only unit is"),
    ("WRITEATOMIC16 is not implemented", "blocks are written atomically one by one only"),
    ("WRITE_ATOMIC", "blocks are written atomically one by one only"),
    ("LBPPB", "the unit has one logical block per physical block"),
    ("not SPC-3", "the unit claims SPC-4"),
    ("does not support 0-blocks", "WSNZ=1: a length of 0 would mean the whole volume"),
    ("does not support protection", "no protection information: the pool has checksums"),
];

/// Reservations in memory.
#[derive(Default)]
struct Reservations(Mutex<BTreeMap<u64, Vec<u8>>>);

impl ReservationStore for Reservations {
    fn load(&self, device: u64) -> BoxFuture<'_, io::Result<Vec<u8>>> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ready(Ok(all.get(&device).cloned().unwrap_or_default())).boxed()
    }

    fn store(&self, device: u64, bytes: Vec<u8>) -> BoxFuture<'_, io::Result<()>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(device, bytes);
        ready(Ok(())).boxed()
    }
}

fn failed(what: &str, why: impl std::fmt::Display) -> JudgeError {
    JudgeError::Process { command: what.to_string(), why: why.to_string() }
}

/// Output of a program, and whether it succeeded.
fn run_program(program: &str, arguments: &[&str]) -> Result<(bool, String), JudgeError> {
    let missing = |error| JudgeError::Missing { what: format!("{program} cannot be run: {error}") };
    let output = Command::new("timeout").arg("600").arg(program).args(arguments).output().map_err(missing)?;
    let text = [output.stdout, output.stderr].concat();
    if output.status.code() == Some(127) {
        return Err(JudgeError::Missing { what: format!("{program} is not installed") });
    }
    Ok((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
}

/// Runs all suites; with `--short`, the fast ones; or the named ones.
///
/// # Errors
/// If the pool cannot be created, or the suite is not installed.
pub fn run(arguments: &[String], report: &mut Report) -> Result<(), JudgeError> {
    run_program("iscsi-test-cu", &["--list"])?;
    let is_short = arguments.iter().any(|word| word == "--short");
    let named: Vec<&String> = arguments.iter().filter(|word| !word.starts_with("--")).collect();
    let folder = tempfile::tempdir().map_err(|source| JudgeError::Io { what: "folder".to_string(), source })?;
    let machine = weir_linux::Production::default().build().map_err(|error| failed("machine", error))?;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let (engine, server, address) = machine.block_on(start(&machine, folder.path(), stopped))?;
    let wanted = |name: &str, is_slow: bool| match named.is_empty() {
        true => !is_short || !is_slow,
        false => named.iter().any(|wanted| *wanted == name),
    };
    for (suite, _) in SUITES.iter().filter(|(suite, is_slow)| wanted(suite, *is_slow)) {
        judge_suite(suite, address, report)?;
    }
    if named.is_empty() {
        judge_qemu(folder.path(), address, report)?;
        judge_discovery(address, report)?;
    }
    server.set_targets(Vec::new());
    let _ = stop.send(true);
    machine.block_on(async {
        while server.sessions() > 0 {
            server.session_ended().await;
        }
        engine.export().await.map_err(|error| failed("export", error))
    })
}

/// Creates the pool, and serves its volumes.
async fn start(
    machine: &Machine,
    folder: &Path,
    stopped: tokio::sync::watch::Receiver<bool>,
) -> Result<(Arc<Engine>, Arc<Server>, SocketAddr), JudgeError> {
    let path = folder.join("d0");
    let file = std::fs::File::create(&path).and_then(|file| file.set_len(DEVICE_BYTES));
    file.map_err(|source| JudgeError::Io { what: path.display().to_string(), source })?;
    let leaf = NewLeaf { path, is_file: true };
    let top = NewTopLevelVdev { class: Class::Normal, layout: Layout::Single, leaves: vec![leaf] };
    let options = CreateOptions::new(POOL, vec![top]);
    let engine = Engine::create(machine, &options).await.map_err(|error| failed("create", error))?;
    for (name, block_bytes) in [("large", 16 << 10), ("small", 512), ("fixed", 16 << 10)] {
        let kind = Kind::Volume(VolumeSpec { size_bytes: VOLUME_BYTES, block_bytes });
        let new = NewDataset { name: format!("{POOL}/{name}"), kind, properties: Vec::new() };
        engine.create_dataset(new).await.map_err(|error| failed("create a volume", error))?;
    }
    let rq = Request::internal("judge");
    let volume = engine.volume(&rq, &format!("{POOL}/fixed")).await.map_err(|error| failed("volume", error))?;
    volume.set_read_only(true);
    let exports = Exports::open(&rq, &OpenPool::Engine(engine.clone())).await;
    let exports = exports.map_err(|error| failed("exports", error))?;
    let volumes: Arc<dyn BlockExports> = exports.volumes.clone();
    let server = Arc::new(Server::new(volumes, Arc::new(Reservations::default())));
    server.set_targets(targets());
    let loopback = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    let listener = machine.net.listen(loopback).await.map_err(|error| failed("listen", error))?;
    let address = listener.address();
    drop(machine.tasks.spawn(serve(listener, server.clone(), machine.clone(), stopped)));
    Ok((engine, server, address))
}

fn targets() -> Vec<TargetConfig> {
    let lun = |lun, name| LunConfig { lun, export: format!("{POOL}/{name}"), write_cache: true, read_only: false };
    let target = |iqn: &str| TargetConfig {
        iqn: iqn.to_string(),
        luns: vec![lun(0, "large"), lun(1, "small"), lun(2, "fixed")],
        initiators: Vec::new(),
        hosts: Hosts::loopback(),
        chap: None,
    };
    let credentials = |user: &str, secret: &str| Credentials { user: user.to_string(), secret: Secret::new(secret) };
    let chap = ChapConfig { initiator: credentials(USER, SECRET), mutual: Some(credentials("target", "other secret")) };
    vec![
        target(TARGET),
        TargetConfig { chap: Some(chap), ..target(CHAP_TARGET) },
        TargetConfig { initiators: vec!["iqn.2000-01.org.example:other".to_string()], ..target(HIDDEN_TARGET) },
    ]
}

/// Results of one test of the suite.
#[derive(Debug, PartialEq, Eq)]
enum TestResult {
    Passed,
    Skipped(String),
    Failed(Vec<String>),
}

/// The tests in the output of CUnit, with their results.
fn results(output: &str) -> Vec<(String, TestResult)> {
    let mut out = Vec::new();
    for part in output.split("  Test: ").skip(1) {
        let part = part.split("\nSuite: ").next().unwrap_or(part);
        let part = part.split("\nRun Summary:").next().unwrap_or(part);
        let (name, text) = part.split_once(" ...").unwrap_or((part, ""));
        let is_failed = text.lines().any(|line| line.trim_end() == "FAILED");
        let skipped = text.split_once("[SKIPPED]").map(|(_, reason)| reason.lines().next().unwrap_or("").trim());
        let result = match (is_failed, skipped, text.contains("passed")) {
            (true, ..) => {
                let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && *line != "FAILED");
                TestResult::Failed(lines.take(4).map(str::to_string).collect())
            }
            (false, Some(reason), true) => TestResult::Skipped(reason.to_string()),
            (false, None, true) => TestResult::Passed,
            (false, _, false) => TestResult::Failed(vec!["it did not end".to_string()]),
        };
        out.push((name.to_string(), result));
    }
    out
}

fn judge_suite(suite: &str, address: SocketAddr, report: &mut Report) -> Result<(), JudgeError> {
    let lun = match suite {
        "ReadOnly" => 2,
        suite => u8::from(SMALL_BLOCKS.contains(&suite)),
    };
    let url = format!("iscsi://{address}/{TARGET}/{lun}");
    let test = format!("ALL.{suite}");
    let (_, output) =
        run_program("iscsi-test-cu", &["--dataloss", "--allow-sanitize", "--verbose", "--test", &test, &url, &url])?;
    let results = results(&output);
    if results.is_empty() {
        let last: Vec<String> = output.lines().rev().take(4).map(str::to_string).collect();
        report.fail(&format!("iscsi-test-cu {suite}"), &last);
    }
    for (name, result) in results {
        let case = format!("iscsi-test-cu {suite}.{name}");
        match result {
            TestResult::Passed => report.pass(&case, ""),
            TestResult::Failed(lines) => report.fail(&case, &lines),
            TestResult::Skipped(reason) => match EXPECTED_SKIPS.iter().find(|(part, _)| reason.contains(part)) {
                Some((_, why)) => report.skip(&case, why),
                None => report.fail(&case, &[format!("skipped, which is not expected: {reason}")]),
            },
        }
    }
    Ok(())
}

/// An image that is written to a unit is read back the same, with and without authentication.
fn judge_qemu(folder: &Path, address: SocketAddr, report: &mut Report) -> Result<(), JudgeError> {
    let image = folder.join("image");
    let copy = folder.join("copy");
    let bytes: Vec<u8> = (0..32u64 << 20).step_by(8).flat_map(|at| crate::kill::mixed(at).to_le_bytes()).collect();
    std::fs::write(&image, &bytes).map_err(|source| JudgeError::Io { what: "image".to_string(), source })?;
    let [image, copy] = [&image, &copy].map(|path| path.display().to_string());
    let login = format!("{USER}%{SECRET}");
    let urls = [
        ("without authentication", format!("iscsi://{address}/{TARGET}/0"), true),
        ("with CHAP", format!("iscsi://{login}@{address}/{CHAP_TARGET}/1"), true),
        ("with a wrong secret", format!("iscsi://{USER}%wrong@{address}/{CHAP_TARGET}/1"), false),
        ("without a secret", format!("iscsi://{address}/{CHAP_TARGET}/1"), false),
        ("as another initiator", format!("iscsi://{address}/{HIDDEN_TARGET}/0"), false),
    ];
    for (how, url, is_admitted) in urls {
        let case = format!("qemu-img {how}");
        let written = run_program("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &image, &url]);
        let (written, text) = match written {
            Err(JudgeError::Missing { what }) => {
                report.skip(&case, &what);
                continue;
            }
            written => written?,
        };
        if text.contains("Unknown protocol") {
            report.skip(&case, "qemu has no iSCSI driver (qemu-block-extra)");
            continue;
        }
        if !is_admitted || !written {
            match written == is_admitted {
                true => report.pass(&case, "refused"),
                false => report.fail(&case, &[text]),
            }
            continue;
        }
        let (read, text) = run_program("qemu-img", &["convert", "-f", "raw", "-O", "raw", &url, &copy])?;
        let is_same = std::fs::read(&copy).is_ok_and(|copy| copy.starts_with(&bytes));
        match read && is_same {
            true => report.pass(&case, "32 MiB written and read"),
            false => report.fail(&case, &[format!("read back: {read}, the same: {is_same}"), text]),
        }
    }
    Ok(())
}

/// Discovery lists the targets that the initiator may use, and no others.
fn judge_discovery(address: SocketAddr, report: &mut Report) -> Result<(), JudgeError> {
    let (listed, text) = run_program("iscsi-ls", &[&format!("iscsi://{address}")])?;
    let sees = |name: &str| text.lines().any(|line| line.contains(name));
    match listed && sees(TARGET) && sees(CHAP_TARGET) && !sees(HIDDEN_TARGET) {
        true => report.pass("iscsi-ls", "two of three targets"),
        false => report.fail("iscsi-ls", &[text]),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_the_suite_is_understood() {
        let output = "Suite: A\n  Test: One ...passed\n  Test: Two ...    [SKIPPED] No such thing. Skipping\npassed\n  \
                      Test: Three ...    [FAILED] wrong\nFAILED\n    1. x.c:1  - CU_ASSERT\nSuite: B\n  Test: Four ...";
        let found = results(output);
        assert_eq!(found[0], ("One".to_string(), TestResult::Passed));
        assert_eq!(found[1].1, TestResult::Skipped("No such thing. Skipping".to_string()));
        assert!(matches!(&found[2].1, TestResult::Failed(lines) if lines.len() == 2));
        assert!(matches!(&found[3].1, TestResult::Failed(_)));
    }
}

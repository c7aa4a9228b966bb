//! `cargo xtask test`: all tests that can run on this machine, and their totals.
//!
//! First the workspace's tests (unit, integration, documentation), then the conformance runs whose prerequisites
//! exist: golden pools, OpenZFS's tools. Whatever cannot run counts as skipped, with a line that gives the reason.
//! A test that waits for the kernel or for other programs, and fails beside other tests, is run once more by itself: a
//! machine that is busy for seconds delays both. If it passes then, it counts as passed, and a line before the totals
//! names it: it has to be mended all the same.
//! The last line is `N passed, N failed, N skipped`.

use crate::failures::Failures;
use crate::process::{Outcome, Totals, cargo, watch};
use crate::{conformance, judge};

/// Entry point of the task. `--fast` skips the conformance runs; other arguments are passed to `cargo test`.
pub fn run(arguments: &[String]) -> Outcome {
    let fast = arguments.iter().any(|argument| argument == "--fast");
    let others: Vec<&String> = arguments.iter().filter(|argument| *argument != "--fast").collect();
    let mut totals = Totals::default();
    let mut failed_runs = Vec::new();
    let mut failures = Failures::default();

    let mut command = cargo(&["test", "--workspace", "--no-fail-fast"]);
    command.args(others);
    if let Some(tools) = judge::tools() {
        command.env("WEIR_ZFS_TOOLS", tools);
    }
    let mut seen = failures.of("tests of the workspace");
    let mut failed_tests = Vec::new();
    let succeeded = watch("tests of the workspace", &mut command, |line| {
        seen.line(line);
        failed_tests.extend(failed_test(line).map(str::to_owned));
        if let Some(result) = Totals::from_test_result(line) {
            totals.add(result);
        }
    })?;
    let mut passed_alone = Vec::new();
    if !succeeded {
        if totals.failed == failed_tests.len() as u64 && pass_alone(&failed_tests)? {
            totals.passed += std::mem::take(&mut totals.failed);
            passed_alone = failed_tests;
        } else {
            failed_runs.push("cargo test".to_owned());
        }
    }
    if !fast {
        let done = conformance::run(&mut failures)?;
        totals.add(done.totals);
        failed_runs.extend(done.failed_runs);
    }
    // A run that ends without totals (a crash, a build error) counts as one failure.
    if !failed_runs.is_empty() && totals.failed == 0 {
        totals.failed = failed_runs.len() as u64;
    }
    if totals.failed > 0 || !passed_alone.is_empty() {
        failures.print();
    }
    for name in passed_alone {
        println!("unreliable: {name} failed beside other tests and passed by itself");
    }
    println!("\n{} passed, {} failed, {} skipped", totals.passed, totals.failed, totals.skipped);
    if failed_runs.is_empty() && totals.failed == 0 {
        Ok(())
    } else {
        Err(format!("failed: {}", failed_runs.join(", ")))
    }
}

/// Test programs that wait for the kernel's file systems, for daemons or for other people's clients. What the tests of the
/// engine, of formats and of protocols' decoders print depends on nothing but their input.
const WAITING: [&str; 17] = [
    "administering",
    "analytics",
    "bench",
    "csi",
    "daemon",
    "iscsi",
    "keys",
    "locks",
    "main",
    "nfs",
    "object_store",
    "page",
    "plan",
    "server",
    "serving",
    "sessions",
    "sharing",
];
/// More failures have another cause than a busy machine.
const MAX_ALONE: usize = 3;

/// The name in `test NAME ... FAILED` of Rust's test harness.
fn failed_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

/// Whether each of these tests is one of [`WAITING`] and passes by itself.
fn pass_alone(names: &[String]) -> Result<bool, String> {
    if names.is_empty() || names.len() > MAX_ALONE {
        return Ok(false);
    }
    // Of the whole workspace, so that nothing is built again. Programs without a test of that name run none.
    let mut command = cargo(&["test", "--workspace", "--no-fail-fast"]);
    command.args(WAITING.iter().flat_map(|program| ["--test", program]));
    if let Some(tools) = judge::tools() {
        command.env("WEIR_ZFS_TOOLS", tools);
    }
    command.args(["--", "--exact", "--test-threads=1"]).args(names);
    let mut passed = 0;
    let succeeded = watch("failed tests, by themselves", &mut command, |line| {
        passed += Totals::from_test_result(line).map_or(0, |totals| totals.passed);
    })?;
    Ok(succeeded && passed >= names.len() as u64)
}

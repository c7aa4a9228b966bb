//! `cargo xtask test`: all tests that can run on this machine, and their totals.
//!
//! First the workspace's tests (unit, integration, documentation), then the conformance runs whose prerequisites
//! exist: golden pools, OpenZFS's tools. Whatever cannot run counts as skipped, with a line that gives the reason.
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
    let succeeded = watch("tests of the workspace", &mut command, |line| {
        seen.line(line);
        if let Some(result) = Totals::from_test_result(line) {
            totals.add(result);
        }
    })?;
    if !succeeded {
        failed_runs.push("cargo test".to_string());
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
    if totals.failed > 0 {
        failures.print();
    }
    println!("\n{} passed, {} failed, {} skipped", totals.passed, totals.failed, totals.skipped);
    if failed_runs.is_empty() && totals.failed == 0 {
        Ok(())
    } else {
        Err(format!("failed: {}", failed_runs.join(", ")))
    }
}

//! `cargo xtask test`: all tests that can run on this machine, and their totals.
//!
//! The workspace's tests (unit, integration, documentation) and the conformance runs whose prerequisites exist: golden
//! pools, OpenZFS's tools. Whatever cannot run counts as skipped, with a line that gives the reason. With `--complete` also
//! a short form of the simulator, and the fuzz targets.
//!
//! The test programs in [`COMPUTING`], the simulator and the fuzz targets run at the lowest priority beside the tests and
//! conformance runs that wait for clients, timers and disks, and use the processors while those wait. Conformance runs that
//! compare times follow, one at a time.
//!
//! The task runs failed tests once more by themselves if they are integration tests outside [`COMPUTING`], at most
//! [`MAX_ALONE`], and nothing else failed: on a busy machine, the kernel and other programs may answer later than a test
//! waits. A test that passes then counts as passed, and a line before the totals names it as unreliable.
//! The last line is `N passed, N failed, N skipped`.

use crate::conformance;
use crate::judge::{self, Build, Judge};
use crate::licences;
use crate::outcomes::Outcomes;
use crate::process::{Outcome, Totals, at_lowest_priority, cargo, cargo_program, must, target, watch_beside};
use crate::sim;
use std::process::Command;

/// Test programs without limits of time: they wait for no daemon, mount or client, and may run at the lowest priority.
const COMPUTING: [&str; 9] =
    ["allocations", "cuts", "errors", "hostile", "invariants", "laws", "log", "violated", "writing"];
/// Most failed tests that are run once more: a busy machine delays few.
const MAX_ALONE: usize = 3;

/// The tests that the command line selects.
struct Selection {
    /// Without conformance runs.
    fast: bool,
    /// With the simulator and the fuzz targets.
    complete: bool,
    /// Other arguments, for `cargo test`.
    others: Vec<String>,
}

impl Selection {
    fn parse(arguments: &[String]) -> Selection {
        let has = |switch: &str| arguments.iter().any(|argument| argument == switch);
        let others = arguments.iter().filter(|argument| !["--fast", "--complete"].contains(&argument.as_str()));
        Selection { fast: has("--fast"), complete: has("--complete"), others: others.cloned().collect() }
    }
}

/// Entry point of the task. `--fast` skips the conformance runs, `--complete` adds the simulator and the fuzz targets; other
/// arguments are passed to `cargo test`.
pub fn run(arguments: &[String]) -> Outcome {
    let selection = Selection::parse(arguments);
    must("build the tests", cargo(&["test", "--workspace", "--no-run", "--quiet"]).args(&selection.others))?;
    if selection.complete {
        sim::build_short()?;
    }
    let judge = match selection.fast {
        true => None,
        false => Some(Judge::build(Build::WithTests, true)?),
    };
    let mut all = std::thread::scope(|scope| {
        let computing = scope.spawn(|| computing(&selection));
        let mut all = waiting(&selection)?;
        if let Some(judge) = &judge {
            all.add(conformance::run_side_by_side(judge)?);
        }
        all.add(computing.join().map_err(|_| "the thread that runs what only computes panicked".to_owned())??);
        Ok::<_, String>(all)
    })?;
    if let Some(judge) = &judge {
        all.add(conformance::run_alone(judge)?);
    }
    let unreliable = all.take_failed_tests();
    if !unreliable.is_empty() {
        match pass_alone(&unreliable)? {
            true => all.totals.passed += unreliable.len() as u64,
            false => {
                all.totals.failed += unreliable.len() as u64;
                all.failed_runs.push("cargo test".to_owned());
            }
        }
    }
    all.report(&unreliable)
}

/// Runs the test programs in [`COMPUTING`], the examples of the documentation, the fuzz targets and the simulator, at the
/// lowest priority.
fn computing(selection: &Selection) -> Result<Outcomes, String> {
    let mut all = Outcomes::default();
    if selection.others.is_empty() {
        let mut programs = at_lowest_priority(cargo_program());
        programs.args(["test", "--workspace", "--no-fail-fast"]);
        programs.args(COMPUTING.iter().flat_map(|program| ["--test", program]));
        if selection.complete {
            programs.envs(sim::short_settings());
        }
        all.add(tests("tests that only compute", "computing: ", &mut programs)?.without_another_try());
        let mut examples = at_lowest_priority(cargo_program());
        examples.args(["test", "--workspace", "--no-fail-fast", "--doc"]);
        all.add(tests("examples of the documentation", "computing: ", &mut examples)?.without_another_try());
    }
    if selection.complete {
        // Building the tests has replaced the program that runs now.
        let mut fuzz = at_lowest_priority(target().join("debug/xtask"));
        fuzz.args(["fuzz", "--seconds", "1", "--with-tests"]);
        for (name, mut program) in [("fuzz", fuzz), ("simulator", at_lowest_priority(sim::short_program()))] {
            if !watch_beside(name, &format!("{name}: "), &mut program, |_| {})? {
                all.failed_runs.push(name.to_owned());
            }
        }
    }
    Ok(all)
}

/// Runs all other tests of the workspace, or those that the command line selects.
fn waiting(selection: &Selection) -> Result<Outcomes, String> {
    let mut command = cargo(&["test", "--workspace", "--no-fail-fast"]);
    if selection.others.is_empty() {
        command.args(["--lib", "--bins"]);
        command.args(waiting_programs()?.iter().flat_map(|program| ["--test", program]));
    } else {
        command.args(&selection.others);
    }
    tests("tests of the workspace", "", &mut command)
}

/// The test programs of the workspace that are not among [`COMPUTING`].
fn waiting_programs() -> Result<Vec<String>, String> {
    let metadata = licences::metadata(true)?;
    Ok(test_programs(&metadata).into_iter().filter(|name| !COMPUTING.contains(&name.as_str())).collect())
}

/// Names of all test programs in the answer of `cargo metadata`, each once.
fn test_programs(metadata: &serde_json::Value) -> Vec<String> {
    let list = |value: &serde_json::Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
    let targets = list(metadata, "packages").into_iter().flat_map(|package| list(&package, "targets"));
    let tests = targets.filter(|target| list(target, "kind").iter().any(|kind| kind == "test"));
    let mut names: Vec<String> = tests.filter_map(|target| target["name"].as_str().map(str::to_owned)).collect();
    names.sort();
    names.dedup();
    names
}

/// Runs `cargo test`; `label` begins each line of its output.
fn tests(title: &str, label: &str, command: &mut Command) -> Result<Outcomes, String> {
    if let Some(tools) = judge::tools() {
        command.env("WEIR_ZFS_TOOLS", tools);
    }
    let mut all = Outcomes::default();
    let mut failed_tests = Vec::new();
    let mut seen = all.failures.of(title);
    let mut totals = Totals::default();
    // Programs that have not ended with a result.
    let mut unfinished = 0_i64;
    let succeeded = watch_beside(title, label, command, |line| {
        seen.line(line);
        failed_tests.extend(failed_test(line).map(str::to_owned));
        unfinished += i64::from(line.starts_with("running ") && line.trim_end_matches('s').ends_with(" test"));
        if let Some(result) = Totals::from_test_result(line) {
            totals.add(result);
            unfinished -= 1;
        }
    })?;
    all.totals = totals;
    all.failed_tests = failed_tests;
    if unfinished != 0 {
        all.failed_runs.push(format!("{title}: {unfinished} programs ended without a result"));
    } else if !succeeded {
        all.failed_runs.push("cargo test".to_owned());
    }
    Ok(all)
}

/// The name in `test NAME ... FAILED` of Rust's test harness.
fn failed_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

/// Whether each of these tests passes by itself.
fn pass_alone(names: &[String]) -> Result<bool, String> {
    if names.len() > MAX_ALONE {
        return Ok(false);
    }
    // Of the whole workspace, so that nothing is built again. Programs without a test of that name run none.
    let mut command = cargo(&["test", "--workspace", "--no-fail-fast"]);
    command.args(waiting_programs()?.iter().flat_map(|program| ["--test", program]));
    command.args(["--", "--exact", "--test-threads=1"]).args(names);
    let all = tests("failed tests, by themselves", "", &mut command)?;
    Ok(all.failed_runs.is_empty() && all.totals.passed >= names.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_test_program_is_named_once() {
        let target = |kind: &str, name: &str| serde_json::json!({ "kind": [kind], "name": name });
        let metadata = serde_json::json!({ "packages": [
            { "targets": [target("lib", "weir_a"), target("test", "main")] },
            { "targets": [target("test", "main"), target("bin", "b"), target("test", "a")] },
        ] });
        assert_eq!(test_programs(&metadata), ["a", "main"]);
        assert!(waiting_programs().unwrap().contains(&"daemon".to_owned()));
    }
}

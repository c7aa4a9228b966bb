//! `cargo xtask test`: all tests that can run on this machine, and their totals.
//!
//! First the workspace's tests (unit, integration, documentation), then the conformance runs whose prerequisites
//! exist: golden pools, OpenZFS's tools. Whatever cannot run counts as skipped, with a line that gives the reason.
//! The last line is `N passed, N failed, N skipped`.

use crate::failures::Failures;
use crate::process::{Outcome, Totals, cargo, must, target, watch};
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
    // A test of the fuzzer prints a failure that it expects.
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

/// Default number of simulated power cuts.
const CUTS: &str = "20000";
/// Number of simulated power cuts with `--long`.
const LONG_CUTS: &str = "1000000";
/// Default number of injected device errors.
const ERRORS: &str = "10000";
/// Number of injected device errors with `--long`.
const LONG_ERRORS: &str = "1000000";

/// Options of `cargo xtask sim` that configure the tests of pools, with the environment variable that the tests read.
const POOL_OPTIONS: &[(&str, &str)] = &[
    ("--cuts", "WEIR_SIM_CUTS"),
    ("--errors", "WEIR_SIM_ERRORS"),
    ("--seed", "WEIR_SIM_SEED"),
    ("--at", "WEIR_SIM_AT"),
    ("--zdb", "WEIR_SIM_ZDB"),
    ("--state", "WEIR_SIM_STATE"),
];

/// Settings of glibc's allocator for the tests of pools: thousands of short-lived worlds would otherwise give their memory
/// back to the kernel and fault it in again.
const KEEPS_MEMORY: [(&str, &str); 3] = [
    ("MALLOC_MMAP_THRESHOLD_", "1073741824"),
    ("MALLOC_TRIM_THRESHOLD_", "4294967296"),
    ("MALLOC_TOP_PAD_", "67108864"),
];

/// Environment variables for the tests of pools, with their values.
type Settings = Vec<(&'static str, String)>;

/// Splits the arguments into settings of the tests of pools and the rest; variables of the environment override
/// defaults.
fn pool_settings(arguments: &[String]) -> Result<(Settings, Vec<String>), String> {
    let long = arguments.iter().any(|word| word == "--long");
    let mut settings = vec![("WEIR_SIM_CUTS", if long { LONG_CUTS } else { CUTS }.to_owned())];
    settings.push(("WEIR_SIM_ERRORS", if long { LONG_ERRORS } else { ERRORS }.to_owned()));
    // zdb needs the pools as files, which is slow, so only a sample is checked.
    settings.push(("WEIR_SIM_ZDB", "500".to_owned()));
    if long {
        settings.push(("WEIR_SIM_STATE", target().join("sim-state").display().to_string()));
    }
    settings.retain(|(name, _)| std::env::var_os(name).is_none());
    let mut rest = Vec::new();
    let mut words = arguments.iter().filter(|word| *word != "--long");
    while let Some(word) = words.next() {
        match POOL_OPTIONS.iter().find(|(known, _)| known == word) {
            Some((_, variable)) => {
                let value = words.next().ok_or_else(|| format!("sim: {word} needs a value"))?;
                settings.retain(|(name, _)| name != variable);
                settings.push((variable, value.clone()));
            }
            None => rest.push(word.clone()),
        }
    }
    Ok((settings, rest))
}

/// `cargo xtask sim`: runs the simulator, optimised, with the arguments that do not concern pools; then power cuts of
/// recorded pool histories, and histories in which devices fail. `--state FILE`, implied by `--long`, resumes an
/// interrupted run of power cuts.
pub fn sim(arguments: &[String]) -> Outcome {
    let (settings, rest) = pool_settings(arguments)?;
    let mut command = cargo(&["run", "--quiet", "--profile", "sim", "-p", "weir-sim", "--bin", "weir-sim", "--"]);
    command.args(rest);
    if !watch("simulator", &mut command, |_| {})? {
        return Err("the simulator found a failure".to_string());
    }
    let tests = [
        ("cuts", "power cuts of pools", "a power cut broke a pool"),
        ("errors", "device errors", "a device error broke a promise"),
        ("laws", "laws on modelled hardware", "modelled hardware broke a law"),
    ];
    // All are built at once, and each is started with the same packages: another selection has other features, and every
    // crate would be built again.
    let test = ["test", "--quiet", "--profile", "sim", "-p", "weir-engine", "-p", "weir-planner"];
    let mut build = cargo(&test);
    build.arg("--no-run").args(tests.iter().flat_map(|(name, ..)| ["--test", *name]));
    must("build the tests of the simulator", &mut build)?;
    for (name, title, failure) in tests {
        let mut command = cargo(&test);
        command.args(["--test", name, "--", "--nocapture"]);
        command.envs(settings.clone()).envs(KEEPS_MEMORY);
        if let Some(tools) = judge::tools() {
            command.env("WEIR_ZFS_TOOLS", tools);
        }
        if !watch(title, &mut command, |_| {})? {
            return Err(failure.to_string());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_options_are_separated_from_other_arguments() {
        let words = ["--seeds", "5", "--long", "--cuts", "77", "--errors", "9"].map(ToString::to_string);
        let (settings, rest) = pool_settings(&words).unwrap();
        assert_eq!(rest, ["--seeds", "5"]);
        assert!(settings.contains(&("WEIR_SIM_CUTS", "77".to_owned())));
        assert!(settings.contains(&("WEIR_SIM_ERRORS", "9".to_owned())));
        assert_eq!(settings.iter().filter(|(name, _)| *name == "WEIR_SIM_CUTS").count(), 1);
        assert!(settings.iter().any(|(name, _)| *name == "WEIR_SIM_STATE"));
        assert!(pool_settings(&["--cuts".to_owned()]).is_err());
    }
}

//! `cargo xtask test`: everything that proves Weir on this machine in one go, and the sums at the end.
//!
//! First the workspace's own tests (unit, integration, documentation), then the judges that need only what is at
//! hand: the golden pools if their folder is there, OpenZFS's tools if they were fetched. Whatever cannot run is
//! counted as skipped with one line that says why. The last line is `N passed, N failed, N skipped`.

use crate::judge;
use crate::process::{Outcome, Tally, cargo, golden, watch};

/// The judges that belong to every test run, with what each needs.
const JUDGES: &[(&[&str], Needs)] = &[
    (&["golden", "--via", "engine"], Needs::Golden),
    (&["golden", "--via", "nfs"], Needs::Golden),
    (&["golden", "--via", "fuse"], Needs::Golden),
    (&["readers"], Needs::Golden),
    (&["streams"], Needs::Golden),
    (&["bcc"], Needs::Both),
    (&["old-pools"], Needs::Tools),
    (&["kill", "5"], Needs::Nothing),
    (&["suites"], Needs::Nothing),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    Nothing,
    Golden,
    Tools,
    Both,
}

/// Entry point of the chore. `--fast` leaves the judges out; other arguments go to `cargo test`.
pub fn run(arguments: &[String]) -> Outcome {
    let fast = arguments.iter().any(|argument| argument == "--fast");
    let others: Vec<&String> = arguments.iter().filter(|argument| *argument != "--fast").collect();
    let mut tally = Tally::default();
    let mut broken = Vec::new();

    let mut command = cargo(&["test", "--workspace", "--no-fail-fast"]);
    command.args(others);
    if let Some(tools) = judge::tools() {
        command.env("WEIR_ZFS_TOOLS", tools);
    }
    let succeeded = watch("tests of the workspace", &mut command, |line| {
        if let Some(result) = Tally::from_test_result(line) {
            tally.add(result);
        }
    })?;
    if !succeeded {
        broken.push("cargo test".to_string());
    }
    if !fast {
        for (arguments, needs) in JUDGES {
            let name = arguments.join(" ");
            if let Some(reason) = missing(*needs) {
                println!("== judge {name}\nskipped: {reason}");
                tally.skipped += 1;
                continue;
            }
            let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
            let (figures, succeeded) = judge::start(&arguments, "dev")?;
            tally.add(figures);
            if !succeeded {
                broken.push(format!("judge {name}"));
            }
        }
    }
    // A run that ends without a figure for what broke (a crash, a build error) still counts as one failure.
    if !broken.is_empty() && tally.failed == 0 {
        tally.failed = broken.len() as u64;
    }
    println!("\n{} passed, {} failed, {} skipped", tally.passed, tally.failed, tally.skipped);
    if broken.is_empty() && tally.failed == 0 { Ok(()) } else { Err(format!("failed: {}", broken.join(", "))) }
}

/// Power cuts of recorded histories when nobody says how many (`WEIR_SIM_CUTS`).
const CUTS: &str = "20000";

/// `cargo xtask sim`: seeds through the simulator, optimised, with what follows handed to it; then power cuts of recorded
/// histories of pools. `WEIR_SIM_CUTS` says how many, `WEIR_SIM_SEED` from which seed on.
pub fn sim(arguments: &[String]) -> Outcome {
    let mut command = cargo(&["run", "--quiet", "--release", "-p", "weir-sim", "--bin", "weir-sim", "--"]);
    command.args(arguments);
    if !watch("simulator", &mut command, |_| {})? {
        return Err("the simulator found a failure".to_string());
    }
    let mut command =
        cargo(&["test", "--quiet", "--release", "-p", "weir-pool", "--test", "cuts", "--", "--nocapture"]);
    if std::env::var_os("WEIR_SIM_CUTS").is_none() {
        command.env("WEIR_SIM_CUTS", CUTS);
    }
    if watch("power cuts of pools", &mut command, |_| {})? {
        Ok(())
    } else {
        Err("a power cut broke a pool".to_string())
    }
}

fn missing(needs: Needs) -> Option<&'static str> {
    if matches!(needs, Needs::Golden | Needs::Both) && golden().is_none() {
        return Some("no golden pools (set WEIR_GOLDEN to their folder)");
    }
    if matches!(needs, Needs::Tools | Needs::Both) && judge::tools().is_none() {
        return Some("OpenZFS's tools are not here (cargo xtask judge --fetch)");
    }
    None
}

//! `cargo xtask test`: everything that proves Weir on this machine in one go, and the sums at the end.
//!
//! First the workspace's own tests (unit, integration, documentation), then the judges that need only what is at
//! hand: the golden pools if their folder is there, OpenZFS's tools if they were fetched. Whatever cannot run is
//! counted as skipped with one line that says why. The last line is `N passed, N failed, N skipped`.

use crate::judge;
use crate::process::{Outcome, Tally, cargo, golden, target, watch};

/// The judges that belong to every test run, with what each needs.
const JUDGES: &[(&[&str], Needs)] = &[
    (&["golden", "--via", "engine"], Needs::Golden),
    (&["golden", "--via", "nfs"], Needs::Golden),
    (&["golden", "--via", "fuse"], Needs::Golden),
    (&["golden-rw", "--short"], Needs::Both),
    (&["readers"], Needs::Golden),
    (&["streams"], Needs::Golden),
    (&["bcc"], Needs::Both),
    (&["old-pools"], Needs::Tools),
    (&["kill", "5"], Needs::Nothing),
    (&["kill-serve", "3"], Needs::Nothing),
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

/// Power cuts of recorded histories when nobody says how many.
const CUTS: &str = "20000";
/// And in the long form.
const LONG_CUTS: &str = "1000000";

/// The words of `cargo xtask sim` that are about power cuts, with the variable that the test reads for each.
const CUT_WORDS: &[(&str, &str)] = &[
    ("--cuts", "WEIR_SIM_CUTS"),
    ("--seed", "WEIR_SIM_SEED"),
    ("--at", "WEIR_SIM_AT"),
    ("--zdb", "WEIR_SIM_ZDB"),
    ("--state", "WEIR_SIM_STATE"),
];

/// Variables for the test of power cuts, with their values.
type Settings = Vec<(&'static str, String)>;

/// What `arguments` and the environment say of power cuts, and the arguments that are left.
fn cut_settings(arguments: &[String]) -> Result<(Settings, Vec<String>), String> {
    let long = arguments.iter().any(|word| word == "--long");
    let mut settings = vec![("WEIR_SIM_CUTS", if long { LONG_CUTS } else { CUTS }.to_owned())];
    // The pools have to be put into files for zdb: now and then will do.
    settings.push(("WEIR_SIM_ZDB", "500".to_owned()));
    if long {
        settings.push(("WEIR_SIM_STATE", target().join("sim-state").display().to_string()));
    }
    settings.retain(|(name, _)| std::env::var_os(name).is_none());
    let (mut rest, mut words) = (Vec::new(), arguments.iter().filter(|word| *word != "--long"));
    while let Some(word) = words.next() {
        match CUT_WORDS.iter().find(|(known, _)| known == word) {
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

/// `cargo xtask sim`: seeds through the simulator, optimised, with what is not about power cuts handed to it; then power
/// cuts of recorded histories of pools. A run with `--state FILE`, or `--long`, goes on where the last one was stopped.
pub fn sim(arguments: &[String]) -> Outcome {
    let (settings, rest) = cut_settings(arguments)?;
    let mut command = cargo(&["run", "--quiet", "--release", "-p", "weir-sim", "--bin", "weir-sim", "--"]);
    command.args(rest);
    if !watch("simulator", &mut command, |_| {})? {
        return Err("the simulator found a failure".to_string());
    }
    let mut command =
        cargo(&["test", "--quiet", "--release", "-p", "weir-pool", "--test", "cuts", "--", "--nocapture"]);
    command.envs(settings);
    if let Some(tools) = judge::tools() {
        command.env("WEIR_ZFS_TOOLS", tools);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_about_power_cuts_are_told_from_others() {
        let words = ["--seeds", "5", "--long", "--cuts", "77"].map(ToString::to_string);
        let (settings, rest) = cut_settings(&words).unwrap();
        assert_eq!(rest, ["--seeds", "5"]);
        assert!(settings.contains(&("WEIR_SIM_CUTS", "77".to_owned())));
        assert_eq!(settings.iter().filter(|(name, _)| *name == "WEIR_SIM_CUTS").count(), 1);
        assert!(settings.iter().any(|(name, _)| *name == "WEIR_SIM_STATE"));
        assert!(cut_settings(&["--cuts".to_owned()]).is_err());
    }
}

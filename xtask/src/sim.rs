//! `cargo xtask sim`: the simulator, and what tests do in it: power cuts, failing devices, workloads on modelled hardware.
//! `cargo xtask test --complete` has a short form, of fewer cuts and errors and without optimisation.

use std::path::PathBuf;
use std::process::Command;

use crate::judge;
use crate::process::{Outcome, cargo, must, target, top, watch};

/// Default number of simulated power cuts.
const CUTS: &str = "20000";
/// Number of simulated power cuts with `--long`.
const LONG_CUTS: &str = "1000000";
/// Number of simulated power cuts in the short form.
const SHORT_CUTS: &str = "3000";
/// Default number of injected device errors.
const ERRORS: &str = "10000";
/// Number of injected device errors in the short form.
const SHORT_ERRORS: &str = "2000";
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

/// Settings of cargo with which the workspace's own crates are built as in a release, without the slow optimisation at link
/// time. They belong to the profile `dev`, which optimises all other crates already: those are not built a second time.
const OPTIMISED: [(&str, &str); 4] = [
    ("CARGO_PROFILE_DEV_OPT_LEVEL", "3"),
    ("CARGO_PROFILE_DEV_DEBUG", "0"),
    ("CARGO_PROFILE_DEV_DEBUG_ASSERTIONS", "false"),
    ("CARGO_PROFILE_DEV_OVERFLOW_CHECKS", "false"),
];

/// Crates for which `Cargo.toml` sets an opt-level in the profile `dev`. Environment variables do not override that of a single crate.
const WITH_OWN_LEVEL: [&str; 8] =
    ["weir-blocks", "weir-dmu", "weir-dsl", "weir-engine", "weir-format", "weir-machine", "weir-pool", "weir-sim"];

/// The program of the simulator and the tests in it. They are selected from the whole workspace, and built together, as `cargo
/// test --workspace` builds them: another selection has other features, for which other crates would be built again.
const PROGRAMS: [&str; 8] = ["--bin", "weir-sim", "--test", "cuts", "--test", "errors", "--test", "laws"];
/// The packages; weir-daemon has a test of the same name, of which the simulator's power cuts are a small part.
const PACKAGES: [&str; 3] = ["--workspace", "--exclude", "weir-daemon"];

fn optimised(subcommand: &str) -> Command {
    let mut command = cargo(&[subcommand, "--quiet"]);
    command.envs(OPTIMISED);
    for package in WITH_OWN_LEVEL {
        command.arg("--config").arg(format!("profile.dev.package.{package}.opt-level=3"));
    }
    command.args(PACKAGES);
    command
}

/// Builds the simulator's program for the short form. The short form runs the tests as `cargo test` builds them, because a second,
/// optimised build of the engine takes longer than it saves.
pub fn build_short() -> Outcome {
    must("build the simulator", &mut cargo(&["build", "--quiet", "--workspace", "--bin", "weir-sim"]))
}

/// The simulator's program in the short form.
pub fn short_program() -> PathBuf {
    target().join("debug/weir-sim")
}

/// Settings for the tests in the simulator in the short form. zdb checks few pools, which it needs as files.
pub fn short_settings() -> [(&'static str, &'static str); 3] {
    [("WEIR_SIM_CUTS", SHORT_CUTS), ("WEIR_SIM_ERRORS", SHORT_ERRORS), ("WEIR_SIM_ZDB", "500")]
}

/// `cargo xtask sim`: runs the simulator, optimised, with the arguments that do not concern pools; then power cuts of
/// recorded pool histories, histories in which devices fail, and workloads on modelled hardware. `--state FILE`, implied by
/// `--long`, resumes an interrupted run of power cuts.
pub fn run(arguments: &[String]) -> Outcome {
    let (settings, rest) = pool_settings(arguments)?;
    let tests = [
        ("cuts", "power cuts of pools", "a power cut broke a pool"),
        ("errors", "device errors", "a device error broke a promise"),
        ("laws", "laws on modelled hardware", "modelled hardware broke a law"),
    ];
    must("build the simulator", optimised("build").args(PROGRAMS))?;
    let mut simulator = Command::new(target().join("debug/weir-sim"));
    if !watch("simulator", simulator.current_dir(top()).args(rest), |_| {})? {
        return Err("the simulator found a failure".to_string());
    }
    for (name, title, failure) in tests {
        let mut command = optimised("test");
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

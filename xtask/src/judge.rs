//! `cargo xtask judge`: third-party tools as conformance tests.
//!
//! `--fetch` unpacks OpenZFS's user-space tools (see `scripts/fetch-zfs-tools.sh`); everything else is passed to the
//! binary `weir-judge`, which links the engine.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::failures::Failures;
use crate::package;
use crate::process::{Outcome, Totals, cargo, must, on_path, target, top, watch};

/// Folder of OpenZFS's tools, if they exist: `WEIR_ZFS_TOOLS`, else `target/judges/zfs`.
pub fn tools() -> Option<PathBuf> {
    let folder = std::env::var_os("WEIR_ZFS_TOOLS").map_or_else(|| target().join("judges/zfs"), PathBuf::from);
    folder.join("sbin/zdb").is_file().then_some(folder)
}

/// Entry point of the task.
pub fn run(arguments: &[String]) -> Outcome {
    match arguments.first().map(String::as_str) {
        Some("package") => package::judge(&arguments[1..]),
        Some("--fetch") => fetch(arguments.iter().any(|argument| argument == "--peer")),
        Some(_) => {
            let (totals, succeeded) = start(arguments, Build::Alone("dev"), &mut Failures::default())?;
            if succeeded && totals.failed == 0 { Ok(()) } else { Err("conformance tests failed".to_string()) }
        }
        None => Err("judge: needs --fetch or the name of a run (`cargo xtask judge help`)".to_string()),
    }
}

/// Unpacks the tools, with `peer` also zfs-fuse, unless they exist.
pub fn fetch(peer: bool) -> Outcome {
    if let (Some(folder), Some(_)) = (tools(), std::env::var_os("WEIR_ZFS_TOOLS")) {
        println!("OpenZFS tools: {} (WEIR_ZFS_TOOLS)", folder.display());
        return Ok(());
    }
    let folder = target().join("judges/zfs");
    let mut script = Command::new(top().join("xtask/scripts/fetch-zfs-tools.sh"));
    script.arg(&folder);
    if peer {
        script.arg("--peer");
    }
    must("fetch OpenZFS tools", &mut script)
}

/// Whose features the programs of a run are built with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Build<'a> {
    /// Those of the programs alone, in a cargo profile: the least to build for a single run.
    Alone(&'a str),
    /// Those of the whole workspace and its tests, in the profile `dev`. After `cargo test --workspace` nothing is left to
    /// build, while programs built alone would have other features, and every crate would be built again.
    WithTests,
}

impl Build<'_> {
    /// Builds a program of a package; returns the command that starts it.
    pub fn program(self, package: &str, program: &str) -> Result<Command, String> {
        let (arguments, folder) = match self {
            Build::Alone(profile) => {
                let folder = if profile == "dev" { "debug" } else { profile };
                (vec!["build", "--quiet", "--profile", profile, "-p", package, "--bin", program], folder)
            }
            Build::WithTests => (vec!["build", "--quiet", "--workspace", "--bins", "--tests"], "debug"),
        };
        must(&format!("build {program}"), &mut cargo(&arguments))?;
        let mut command = Command::new(target().join(folder).join(program));
        command.current_dir(top()).stdin(Stdio::null());
        Ok(command)
    }
}

/// Builds the agent of the emulated machine and unpacks the packages that the machine is made of. Without a network they
/// are absent, which the script says; the judge then skips itself.
fn prepare_guest(build: Build<'_>) -> Outcome {
    build.program("weir-conformance", "weir-guest-agent")?;
    if on_path("qemu-system-x86_64") && std::env::var_os("WEIR_GUEST").is_none() {
        let mut script = Command::new(top().join("xtask/scripts/fetch-guest.sh"));
        let _ = must("fetch the guest", script.arg(target().join("judges/guest")));
    }
    Ok(())
}

/// Builds `weir` and `weir-judge`, runs `weir-judge` with these arguments and parses its totals; `failures` collects the lines about
/// failed cases.
pub fn start(arguments: &[String], build: Build<'_>, failures: &mut Failures) -> Result<(Totals, bool), String> {
    // Most conformance runs start the `weir` program itself.
    build.program("weir", "weir")?;
    if arguments.first().is_some_and(|judge| judge == "guest") {
        prepare_guest(build)?;
    }
    let mut command = build.program("weir-conformance", "weir-judge")?;
    command.args(arguments);
    if let Some(folder) = tools() {
        command.env("WEIR_ZFS_TOOLS", folder);
    }
    let mut totals = Totals::default();
    let mut ended = false;
    let title = format!("judge {}", arguments.join(" "));
    let mut seen = failures.of(&title);
    let succeeded = watch(&title, &mut command, |line| {
        seen.line(line);
        if let Some(run) = Totals::from_last_line(line) {
            totals.add(run);
            ended = true;
        }
    })?;
    if !ended {
        failures.note(&title, "it ended without its totals");
    }
    Ok((totals, succeeded))
}

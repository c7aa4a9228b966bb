//! `cargo xtask judge`: third-party tools as conformance tests.
//!
//! `--fetch` unpacks OpenZFS's user-space tools (see `scripts/fetch-zfs-tools.sh`); everything else is passed to the
//! binary `weir-judge`, which links the engine.

use std::path::PathBuf;
use std::process::Command;

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
            let (totals, succeeded) = start(arguments, "dev", &mut Failures::default())?;
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

/// Builds the agent of the emulated machine and unpacks the packages that the machine is made of. Without a network they
/// are absent, which the script says; the judge then skips itself.
fn prepare_guest(profile: &str) -> Outcome {
    let agent = ["build", "--quiet", "--profile", profile, "-p", "weir-conformance", "--bin", "weir-guest-agent"];
    must("build weir-guest-agent", &mut cargo(&agent))?;
    if on_path("qemu-system-x86_64") && std::env::var_os("WEIR_GUEST").is_none() {
        let mut script = Command::new(top().join("xtask/scripts/fetch-guest.sh"));
        let _ = must("fetch the guest", script.arg(target().join("judges/guest")));
    }
    Ok(())
}

/// Runs `weir-judge` with these arguments in a cargo profile and parses its totals; `failures` collects the lines about
/// failed cases.
pub fn start(arguments: &[String], profile: &str, failures: &mut Failures) -> Result<(Totals, bool), String> {
    // Most conformance runs start the `weir` program itself.
    must("build weir", &mut cargo(&["build", "--quiet", "--profile", profile, "-p", "weir", "--bin", "weir"]))?;
    if arguments.first().is_some_and(|judge| judge == "guest") {
        prepare_guest(profile)?;
    }
    let mut command =
        cargo(&["run", "--quiet", "--profile", profile, "-p", "weir-conformance", "--bin", "weir-judge", "--"]);
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

//! `cargo xtask judge`: third-party tools as conformance tests.
//!
//! `--fetch` unpacks OpenZFS's user-space tools (see `scripts/fetch-zfs-tools.sh`), `--fetch --stores` brings object stores; everything else is passed to the
//! binary `weir-judge`, which links the engine.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::failures::Failures;
use crate::package;
use crate::process::{Outcome, Totals, cargo, must, on_path, target, top, watch_beside};

/// Folder of OpenZFS's tools, if they exist: `WEIR_ZFS_TOOLS`, else `target/judges/zfs`.
pub fn tools() -> Option<PathBuf> {
    let folder = std::env::var_os("WEIR_ZFS_TOOLS").map_or_else(|| target().join("judges/zfs"), PathBuf::from);
    folder.join("sbin/zdb").is_file().then_some(folder)
}

/// Entry point of the task.
pub fn run(arguments: &[String]) -> Outcome {
    match arguments.first().map(String::as_str) {
        Some("package") => package::judge(&arguments[1..]),
        Some("--fetch") if arguments.iter().any(|argument| argument == "--stores") => {
            let mut script = Command::new(top().join("xtask/scripts/fetch-stores.sh"));
            must("fetch object stores", script.arg(target().join("judges/stores")))
        }
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

/// Builds what a conformance run needs and runs it with these arguments: [`Judge::build`], then [`Judge::run`].
pub fn start(arguments: &[String], build: Build<'_>, failures: &mut Failures) -> Result<(Totals, bool), String> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    Judge::build(build, words.first() == Some(&"guest"))?.run(&words, "", failures)
}

/// The program `weir-judge`, with everything built and unpacked that its runs start.
pub struct Judge {
    program: PathBuf,
}

impl Judge {
    /// Builds `weir`, `weir-judge` and, for the run `guest`, the emulated machine.
    pub fn build(build: Build<'_>, with_guest: bool) -> Result<Judge, String> {
        // Most conformance runs start the `weir` program itself.
        build.program("weir", "weir")?;
        if with_guest {
            prepare_guest(build)?;
        }
        let command = build.program("weir-conformance", "weir-judge")?;
        Ok(Judge { program: command.get_program().into() })
    }

    /// Runs `weir-judge` with these arguments and parses its totals; `failures` collects the lines about failed cases. `label`
    /// begins each line of the output.
    pub fn run(&self, arguments: &[&str], label: &str, failures: &mut Failures) -> Result<(Totals, bool), String> {
        let mut command = Command::new(&self.program);
        command.current_dir(top()).stdin(Stdio::null()).args(arguments);
        if let Some(folder) = tools() {
            command.env("WEIR_ZFS_TOOLS", folder);
        }
        let mut totals = Totals::default();
        let mut ended = false;
        let title = format!("judge {}", arguments.join(" "));
        let mut seen = failures.of(&title);
        let succeeded = watch_beside(&title, label, &mut command, |line| {
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
}

//! `cargo xtask judge`: other people's tools as judges.
//!
//! `--fetch` unpacks OpenZFS's own user-space tools (see `scripts/fetch-zfs-tools.sh`); everything else is handed to
//! the binary `weir-judge` of `weir-judges`, which knows the engine.

use std::path::PathBuf;
use std::process::Command;

use crate::process::{Outcome, Tally, cargo, must, target, top, watch};

/// The folder that holds OpenZFS's tools, if it is there: `WEIR_ZFS_TOOLS`, else `target/judges/zfs`.
pub fn tools() -> Option<PathBuf> {
    let folder = std::env::var_os("WEIR_ZFS_TOOLS").map_or_else(|| target().join("judges/zfs"), PathBuf::from);
    folder.join("sbin/zdb").is_file().then_some(folder)
}

/// Entry point of the chore.
pub fn run(arguments: &[String]) -> Outcome {
    match arguments.first().map(String::as_str) {
        Some("--fetch") => fetch(arguments.iter().any(|argument| argument == "--peer")),
        Some(_) => {
            let (tally, succeeded) = start(arguments, "dev")?;
            if succeeded && tally.failed == 0 { Ok(()) } else { Err("the judges disagree with Weir".to_string()) }
        }
        None => Err("judge: say --fetch, or which judge (`cargo xtask judge help`)".to_string()),
    }
}

/// Unpacks the tools; with `peer` also zfs-fuse. Nothing is done when they are there already.
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

/// Runs `weir-judge` with these arguments in a cargo profile and reads its closing figures.
pub fn start(arguments: &[String], profile: &str) -> Result<(Tally, bool), String> {
    // Most judges start the program itself.
    must("build weir", &mut cargo(&["build", "--quiet", "--profile", profile, "-p", "weir", "--bin", "weir"]))?;
    let mut command =
        cargo(&["run", "--quiet", "--profile", profile, "-p", "weir-judges", "--bin", "weir-judge", "--"]);
    command.args(arguments);
    if let Some(folder) = tools() {
        command.env("WEIR_ZFS_TOOLS", folder);
    }
    let mut tally = Tally::default();
    let succeeded = watch(&format!("judge {}", arguments.join(" ")), &mut command, |line| {
        if let Some(closing) = Tally::from_closing_line(line) {
            tally.add(closing);
        }
    })?;
    Ok((tally, succeeded))
}

//! `cargo xtask fuzz`: every decoder on bytes that lie.
//!
//! Two forms over the same bodies. The short form is the binary `weir-fuzz` of `weir-judges`: it mutates the kept
//! seeds and blocks of the golden pools on the stable compiler for some seconds per target, and is quick enough for
//! CI. The long form hands a target to cargo-fuzz (coverage guided, nightly compiler) in the folder `fuzz/`.

use std::process::{Command, Stdio};

use crate::process::{Outcome, cargo, must, on_path, top};

/// Entry point of the chore.
pub fn run(arguments: &[String]) -> Outcome {
    if let Some(at) = arguments.iter().position(|argument| argument == "--long") {
        return long(&arguments[at + 1..]);
    }
    let mut command = cargo(&["run", "--quiet", "-p", "weir-judges", "--bin", "weir-fuzz", "--"]);
    must("fuzz", command.args(arguments))
}

fn long(arguments: &[String]) -> Outcome {
    if !on_path("cargo-fuzz") {
        return Err("fuzz --long needs cargo-fuzz (`cargo install cargo-fuzz`) and a nightly compiler".to_string());
    }
    let mut command = Command::new("cargo");
    command.args(["+nightly", "fuzz", "run"]).args(arguments).current_dir(top()).stdin(Stdio::null());
    must("cargo-fuzz", &mut command)
}

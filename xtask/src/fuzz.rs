//! `cargo xtask fuzz`: every decoder on bytes that lie.
//!
//! Two forms over the same bodies. The short form is the binary `weir-fuzz` of `weir-judges`: it mutates the kept
//! seeds and blocks of the golden pools on the stable compiler for some seconds per target, and is quick enough for
//! CI. The long form gives each body to libFuzzer (coverage guided, with AddressSanitizer: cargo-fuzz and the nightly
//! compiler) in the folder `fuzz/`. What a run learns stays in `fuzz/corpus`, and the next one begins with it; what it
//! finds lies in `fuzz/artifacts` and becomes a seed under `fuzz/seeds` once the decoder is mended.

use std::path::Path;
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

/// Seconds that each body gets, unless told.
const LONG_SECONDS: u64 = 60;
/// The longest that one input may take, in seconds, and the memory of the process: AddressSanitizer takes much of both.
const SLOWEST_SECONDS: u64 = 15;
const MEMORY_MIB: u64 = 2048;

fn long(arguments: &[String]) -> Outcome {
    if !on_path("cargo-fuzz") {
        return Err("fuzz --long needs cargo-fuzz (`cargo install cargo-fuzz`) and a nightly compiler".to_string());
    }
    let (mut seconds, mut only) = (LONG_SECONDS, None);
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match (word.as_str(), words.next()) {
            ("--seconds", Some(said)) => seconds = said.parse().map_err(|e| format!("--seconds {said}: {e}"))?,
            ("--target", Some(name)) => only = Some(name.clone()),
            _ => return Err(format!("fuzz --long: '{word}' is no option, or lacks its value")),
        }
    }
    let corpus = top().join("fuzz/corpus");
    let targets = write_seeds(&corpus, only.as_deref())?;
    let mut found = Vec::new();
    for (n, target) in targets.iter().enumerate() {
        eprintln!("{target} ({} of {}, {seconds} s)", n + 1, targets.len());
        if guided(target, &corpus.join(target), seconds).is_err() {
            found.push(target.as_str());
        }
    }
    println!("{} passed, {} failed, 0 skipped", targets.len() - found.len(), found.len());
    if found.is_empty() { Ok(()) } else { Err(format!("see fuzz/artifacts: {}", found.join(", "))) }
}

/// Has the bodies' seeds written to where libFuzzer takes them; gives the names of the bodies.
fn write_seeds(corpus: &Path, only: Option<&str>) -> Result<Vec<String>, String> {
    let mut command = cargo(&["run", "--quiet", "-p", "weir-judges", "--bin", "weir-fuzz", "--", "--seeds-to"]);
    command.arg(corpus).args(only.map(|name| ["--target", name]).into_iter().flatten());
    let output = command.stderr(Stdio::inherit()).output().map_err(|e| format!("weir-fuzz: {e}"))?;
    let names: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    match (output.status.success(), only) {
        (false, _) => Err(format!("weir-fuzz writes no seeds: {}", output.status)),
        (true, Some(name)) if names.is_empty() => Err(format!("there is no target '{name}'")),
        (true, _) => Ok(names),
    }
}

/// One body under libFuzzer, for a time.
fn guided(target: &str, corpus: &Path, seconds: u64) -> Outcome {
    let artifacts = top().join("fuzz/artifacts").join(target);
    std::fs::create_dir_all(&artifacts).map_err(|e| format!("{}: {e}", artifacts.display()))?;
    let mut command = Command::new("cargo");
    command.args(["+nightly", "fuzz", "run", "one"]).arg(corpus).arg("--");
    command.arg(format!("-max_total_time={seconds}")).arg(format!("-timeout={SLOWEST_SECONDS}"));
    command.arg(format!("-rss_limit_mb={MEMORY_MIB}")).arg("-max_len=65536").arg("-verbosity=0");
    command.arg("-print_final_stats=1").arg(format!("-artifact_prefix={}/", artifacts.display()));
    command.env("WEIR_FUZZ_TARGET", target).current_dir(top()).stdin(Stdio::null());
    must("cargo-fuzz", &mut command)
}

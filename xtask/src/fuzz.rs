//! `cargo xtask fuzz`: every decoder on malformed input.
//!
//! Two forms with the same fuzz targets. The short form is the binary `weir-fuzz`: it mutates the stored seeds and
//! blocks of the golden pools with the stable compiler for some seconds per target, fast enough for CI. The long form
//! runs each target in libFuzzer (coverage guided, with AddressSanitizer: cargo-fuzz and the nightly compiler) in the
//! folder `fuzz/`. Its corpus is kept in `fuzz/corpus` for the next run; inputs that fail are stored in
//! `fuzz/artifacts` and become seeds in `fuzz/seeds` when the decoder is fixed.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::judge::Build;
use crate::process::{Outcome, cargo, must, on_path, top};

/// Entry point of the task.
pub fn run(arguments: &[String]) -> Outcome {
    if let Some(at) = arguments.iter().position(|argument| argument == "--long") {
        return long(&arguments[at + 1..]);
    }
    let with_tests = arguments.iter().any(|argument| argument == "--with-tests");
    let build = if with_tests { Build::WithTests } else { Build::Alone("dev") };
    let mut command = build.program("weir-conformance", "weir-fuzz")?;
    must("fuzz", command.args(arguments.iter().filter(|argument| *argument != "--with-tests")))
}

/// Default seconds per target.
const DEFAULT_SECONDS: u64 = 60;
/// Maximum seconds per input and memory of the process; AddressSanitizer needs much of both.
const MAX_INPUT_SECONDS: u64 = 15;
const MAX_MEMORY_MIB: u64 = 2048;

fn long(arguments: &[String]) -> Outcome {
    if !on_path("cargo-fuzz") {
        return Err("fuzz --long needs cargo-fuzz (`cargo install cargo-fuzz`) and a nightly compiler".to_string());
    }
    let mut seconds = DEFAULT_SECONDS;
    let mut only = None;
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match (word.as_str(), words.next()) {
            ("--seconds", Some(value)) => seconds = value.parse().map_err(|e| format!("--seconds {value}: {e}"))?,
            ("--target", Some(name)) => only = Some(name.clone()),
            _ => return Err(format!("fuzz --long: '{word}' is not an option, or its value is missing")),
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

/// Writes the seeds to libFuzzer's corpus; returns the names of the targets.
fn write_seeds(corpus: &Path, only: Option<&str>) -> Result<Vec<String>, String> {
    let mut command = cargo(&["run", "--quiet", "-p", "weir-conformance", "--bin", "weir-fuzz", "--", "--seeds-to"]);
    command.arg(corpus).args(only.map(|name| ["--target", name]).into_iter().flatten());
    let output = command.stderr(Stdio::inherit()).output().map_err(|e| format!("weir-fuzz: {e}"))?;
    let names: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    match (output.status.success(), only) {
        (false, _) => Err(format!("weir-fuzz could not write seeds: {}", output.status)),
        (true, Some(name)) if names.is_empty() => Err(format!("there is no target '{name}'")),
        (true, _) => Ok(names),
    }
}

/// Runs one target under libFuzzer.
fn guided(target: &str, corpus: &Path, seconds: u64) -> Outcome {
    let artifacts = top().join("fuzz/artifacts").join(target);
    std::fs::create_dir_all(&artifacts).map_err(|e| format!("{}: {e}", artifacts.display()))?;
    let mut command = Command::new("cargo");
    command.args(["+nightly", "fuzz", "run", "one"]).arg(corpus).arg("--");
    command.arg(format!("-max_total_time={seconds}")).arg(format!("-timeout={MAX_INPUT_SECONDS}"));
    command.arg(format!("-rss_limit_mb={MAX_MEMORY_MIB}")).arg("-max_len=65536").arg("-verbosity=0");
    command.arg("-print_final_stats=1").arg(format!("-artifact_prefix={}/", artifacts.display()));
    command.env("WEIR_FUZZ_TARGET", target).current_dir(top()).stdin(Stdio::null());
    must("cargo-fuzz", &mut command)
}

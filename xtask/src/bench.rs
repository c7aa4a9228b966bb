//! `cargo xtask bench read` and `bench write`: Weir compared with others in the same run, as ratios. `bench compare`: this
//! build compared with another build of Weir. `bench object`: pools on an object store. `bench scan`: long directories and lists of
//! snapshots, commands with many datasets. `bench resilver`: a disk is replaced, in virtual time and on files. `bench plan`: the
//! planner's predictions beside measured loads. `bench memory`: memory by the size of the pool. `bench scale`: a daemon with many
//! datasets. `bench serve`: the servers compared with nfs-ganesha, nbdkit, tgt, smbd and others. `bench kernels`: parity compared with
//! OpenZFS. `bench accounting`: the cost of accounting requests. `bench locks`: the locks of the hot paths, how often they are taken
//! and waited for.
//!
//! Results are comparable only if measured on the same files in the same minute, so each benchmark is one program
//! (built in release mode) that alternates between Weir, fio and other file systems.

use crate::bench_kernels;
use crate::failures::Failures;
use crate::judge::{self, Build};
use crate::process::{self, Outcome, cargo, must};

/// Benchmarks that the judges' program runs.
const COMPARISONS: [&str; 10] =
    ["read", "scan", "serve", "write", "compare", "memory", "object", "scale", "resilver", "plan"];

/// Entry point of the task.
pub fn run(arguments: &[String]) -> Outcome {
    match arguments.split_first() {
        Some((kind, [])) if kind == "kernels" => bench_kernels::run(),
        Some((kind, [])) if kind == "accounting" => accounting(),
        Some((kind, [])) if kind == "locks" => {
            let arguments = ["run", "--release", "-p", "weir-daemon", "--features", "lock-stats", "--example", "locks"];
            must("bench locks", &mut cargo(&arguments))
        }
        Some((kind, rest)) if COMPARISONS.contains(&kind.as_str()) => {
            let mut all = vec![format!("{kind}-bench")];
            all.extend_from_slice(rest);
            match judge::start(&all, Build::Alone("release"), &mut Failures::default())? {
                (_, true) => Ok(()),
                _ => Err(format!("bench {kind}: failed or below a target")),
            }
        }
        _ => Err("usage: `bench read [--prepare] [--only CASE]`, `bench scan [--prepare] [--only lists|commands]`, \
                  `bench serve [--short] [--rounds N] [--only TEXT] [--mib N] [--minutes N]`, \
                  `bench write [--rounds N] [--only ROW]`, `bench plan [--rounds N]`, `bench resilver [--rounds N] [--only \
                  modelled|files]`, `bench compare OTHER/target/release/weir-judge [--rounds N] [--only TEXT]`, `bench memory \
                  [--most SEGMENTS]`, `bench object [--rounds N] [--mib N]`, `bench scale [--most DATASETS]`, `bench accounting`, \
                  `bench locks` or `bench kernels`"
            .to_string()),
    }
}

/// Compares the processor time of requests that the ARC answers with that of a build without accounting, which may take
/// at most 2 % less.
fn accounting() -> Outcome {
    let folder = process::target().join("no-accounting").display().to_string();
    let flags = format!("{} --cfg weir_no_accounting", std::env::var("RUSTFLAGS").unwrap_or_default());
    let mut build = cargo(&["build", "--release", "--target-dir", &folder, "-p", "weir", "-p", "weir-conformance"]);
    must("build without accounting", build.env("RUSTFLAGS", flags.trim()))?;
    let other = format!("{folder}/release/weir-judge");
    // Makes the pool that both builds read.
    let prepare = ["read-bench", "--prepare", "--only", "b-single"].map(str::to_string);
    judge::start(&prepare, Build::Alone("release"), &mut Failures::default())?;
    let arguments =
        ["compare-bench", other.as_str(), "--only", "single requests", "--rounds", "20", "--processor", "2"];
    match judge::start(&arguments.map(str::to_string), Build::Alone("release"), &mut Failures::default())? {
        (_, true) => Ok(()),
        _ => Err("bench accounting: failed, or accounting takes more than 2 % of the processor time".to_string()),
    }
}

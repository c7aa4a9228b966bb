//! `cargo xtask bench read` and `bench write`: Weir beside others, side by side in one run, as ratios. `bench scan`: long
//! directories and lists of snapshots. `bench kernels`: parity beside OpenZFS's.
//!
//! Figures only mean something beside a peer's on the same files in the same minute, so each bench is a part of one
//! program (`weir-judge`, built in release) that runs Weir, fio and other file systems in turn.

use crate::process::Outcome;
use crate::{bench_kernels, judge};

/// Entry point of the chore.
pub fn run(arguments: &[String]) -> Outcome {
    match arguments.split_first() {
        Some((kind, [])) if kind == "kernels" => bench_kernels::run(),
        Some((kind, rest)) if matches!(kind.as_str(), "read" | "scan" | "write") => {
            let mut all = vec![format!("{kind}-bench")];
            all.extend_from_slice(rest);
            match judge::start(&all, "release")? {
                (_, true) => Ok(()),
                _ => Err(format!("bench {kind}: failed or below a target")),
            }
        }
        _ => Err("bench: say `bench read [--prepare] [--only CASE]`, `bench scan [--prepare]`, `bench write [--rounds N] [--only ROW]` or `bench kernels`".to_string()),
    }
}

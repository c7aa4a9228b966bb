//! `cargo xtask bench read` and `bench write`: Weir compared with others in the same run, as ratios. `bench compare`: this
//! build compared with another build of Weir. `bench scan`: long directories and lists of snapshots. `bench kernels`:
//! parity compared with OpenZFS.
//!
//! Results are comparable only if measured on the same files in the same minute, so each benchmark is one program
//! (built in release mode) that alternates between Weir, fio and other file systems.

use crate::process::Outcome;
use crate::{bench_kernels, judge};

/// Entry point of the task.
pub fn run(arguments: &[String]) -> Outcome {
    match arguments.split_first() {
        Some((kind, [])) if kind == "kernels" => bench_kernels::run(),
        Some((kind, rest)) if matches!(kind.as_str(), "read" | "scan" | "write" | "compare") => {
            let mut all = vec![format!("{kind}-bench")];
            all.extend_from_slice(rest);
            match judge::start(&all, "release")? {
                (_, true) => Ok(()),
                _ => Err(format!("bench {kind}: failed or below a target")),
            }
        }
        _ => Err("usage: `bench read [--prepare] [--only CASE]`, `bench scan [--prepare]`, \
                  `bench write [--rounds N] [--only ROW]`, `bench compare OTHER/target/release/weir-judge [--rounds N] \
                  [--only TEXT]` or `bench kernels`"
            .to_string()),
    }
}

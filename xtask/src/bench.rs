//! `cargo xtask bench read`: reads beside other readers, side by side in one run, as ratios. `cargo xtask bench scan`: long
//! directories and lists of snapshots.
//!
//! Figures only mean something beside a peer's on the same files in the same minute, so the bench is one program
//! (`weir-judge read-bench`, built in release) that runs Weir, fio, OpenZFS's zdb and zfs-fuse in turn.

use crate::judge;
use crate::process::Outcome;

/// Entry point of the chore.
pub fn run(arguments: &[String]) -> Outcome {
    match arguments.split_first() {
        Some((kind, rest)) if kind == "read" || kind == "scan" => {
            let mut all = vec![format!("{kind}-bench")];
            all.extend_from_slice(rest);
            match judge::start(&all, "release")? {
                (_, true) => Ok(()),
                _ => Err(format!("bench {kind}: failed or below a target")),
            }
        }
        _ => Err("bench: say `bench read [--prepare] [--only CASE]` or `bench scan [--prepare]`".to_string()),
    }
}

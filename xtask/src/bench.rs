//! `cargo xtask bench read`: reads beside other readers, side by side in one run, as ratios.
//!
//! Figures only mean something beside a peer's on the same files in the same minute, so the bench is one program
//! (`weir-judge read-bench`, built in release) that runs Weir, fio, OpenZFS's zdb and zfs-fuse in turn.

use crate::judge;
use crate::process::Outcome;

/// Entry point of the chore.
pub fn run(arguments: &[String]) -> Outcome {
    match arguments.split_first() {
        Some((kind, rest)) if kind == "read" => {
            let mut all = vec!["read-bench".to_string()];
            all.extend_from_slice(rest);
            match judge::start(&all, "release")? {
                (_, true) => Ok(()),
                _ => Err("bench read: failed or below a target".to_string()),
            }
        }
        _ => Err("bench: say `bench read [--prepare] [--only CASE]`".to_string()),
    }
}

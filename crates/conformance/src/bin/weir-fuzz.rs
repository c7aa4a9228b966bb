//! `weir-fuzz`: runs every fuzz target for some seconds on mutated seeds, one on each processor; prints `N passed, N failed,
//! N skipped` at the end. With `--seeds-to DIR` it writes the seeds to `DIR/TARGET/` instead, and prints the names of the
//! targets.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use weir_conformance::fuzz::{self, Finding, Limits, Target};
use weir_conformance::golden::{Unpacked, folder};
use weir_conformance::report::{Report, side_by_side};

const USAGE: &str = "weir-fuzz [--seconds S] [--seed N] [--target NAME] [--input FILE] [--seeds-to DIR]\n";

/// Goldens whose images give seeds: both block sizes, many object types, small to unpack.
const SEED_POOLS: &[&str] = &["nofeat-d", "props"];

fn main() -> ExitCode {
    let mut limits = Limits { each: Duration::from_secs(2), seed: 1 };
    let mut only = None;
    let mut input = None;
    let mut seeds_to = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().unwrap_or_default();
        match (argument.as_str(), value.parse()) {
            ("--seconds", Ok(seconds)) => limits.each = Duration::from_secs(seconds),
            ("--seed", Ok(seed)) => limits.seed = seed,
            ("--target", _) => only = Some(value),
            ("--input", _) => input = Some(PathBuf::from(value)),
            ("--seeds-to", _) => seeds_to = Some(PathBuf::from(value)),
            _ => {
                print!("{USAGE}");
                return ExitCode::from(2);
            }
        }
    }
    let chosen = fuzz::targets().into_iter().filter(|(name, _)| only.as_deref().is_none_or(|only| only == *name));
    let chosen: Vec<Target> = chosen.collect();
    if let Some(input) = input {
        // Runs one input and shows its panic, to debug a finding.
        let bytes = std::fs::read(&input).unwrap_or_default();
        chosen.iter().for_each(|(_, body)| body(&bytes));
        return ExitCode::SUCCESS;
    }
    let images = images();
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds");
    let seeds_of = |name| {
        let mut seeds = fuzz::kept_seeds(&kept, name);
        seeds.extend(images.iter().flat_map(|image| fuzz::image_seeds(image, name)));
        seeds
    };
    if let Some(folder) = seeds_to {
        for (name, _) in &chosen {
            if let Err(error) = fuzz::write_seeds(&folder.join(name), &seeds_of(name)) {
                eprintln!("{}: {error}", folder.join(name).display());
                return ExitCode::FAILURE;
            }
            println!("{name}");
        }
        return ExitCode::SUCCESS;
    }
    let findings = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/fuzz-findings");
    fuzz::prepare();
    let mut report = Report::default();
    let run = |target: &Target| fuzz::run(target, &seeds_of(target.0), &limits, &findings);
    side_by_side(&chosen, run, |(name, _), outcome| match outcome {
        Ok(about) => report.pass(name, &about),
        Err(Finding { case, why }) => report.fail(&case, &why),
    });
    if report.close() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Images of some golden pools, if they are present.
fn images() -> Vec<Vec<u8>> {
    let Some(folder) = folder() else { return Vec::new() };
    let unpacked = SEED_POOLS.iter().filter_map(|name| Unpacked::new(&folder, name).ok());
    unpacked.filter_map(|unpacked| std::fs::read(unpacked.path().join("d0.img")).ok()).collect()
}

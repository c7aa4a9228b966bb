//! `weir-sim [--seeds N] [--start S]`: runs N seeds starting at S; the last line of output is `N passed, M failed`.

#![allow(
    clippy::disallowed_methods,
    reason = "progress is reported in real time, which the simulated worlds cannot observe"
)]

use std::process::ExitCode;
use std::time::Instant;
use weir_sim::runs::{Counts, seed};

fn options() -> Result<(u64, u64), String> {
    let mut seeds = 100;
    let mut start = 0;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let option = match arg.as_str() {
            "--seeds" => &mut seeds,
            "--start" => &mut start,
            _ => return Err(format!("unknown argument {arg}; usage: weir-sim [--seeds N] [--start S]")),
        };
        let value = args.next().ok_or_else(|| format!("{arg} needs a number"))?;
        *option = value.parse().map_err(|_| format!("{arg} needs a number, not {value}"))?;
    }
    Ok((seeds, start))
}

fn main() -> ExitCode {
    let (seeds, start) = match options() {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    let begin = Instant::now();
    let mut last = Instant::now();
    let mut counts = Counts::default();
    let mut passed = 0u64;
    let mut failed = 0u64;
    for number in start..start.saturating_add(seeds) {
        match seed(number, &mut counts) {
            Ok(()) => passed += 1,
            Err(message) => {
                failed += 1;
                eprintln!("{message}\n  reproduce: weir-sim --seeds 1 --start {number}");
            }
        }
        if last.elapsed().as_secs() >= 2 {
            last = Instant::now();
            report(passed + failed, &counts, begin);
        }
    }
    report(passed + failed, &counts, begin);
    if seeds > 0 && counts.caught == 0 {
        failed += 1;
        eprintln!("no planted bug was caught: the simulator is broken and the results above are meaningless");
    }
    println!("{passed} passed, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn report(seeds: u64, counts: &Counts, begin: Instant) {
    let rate = counts.cuts as f64 / begin.elapsed().as_secs_f64().max(1e-9);
    let Counts { cuts, failures, caught, steps } = counts;
    println!(
        "{seeds} seeds: {cuts} cuts ({rate:.0}/s) and {failures} failed operations survived, \
         {caught} of {} planted bugs caught, {steps} steps under faults, each seed twice",
        5 * seeds
    );
}

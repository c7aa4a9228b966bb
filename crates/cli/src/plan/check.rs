//! `weir plan check`: how far the planner may be believed on a machine: what `weir bench` measured, beside what it predicts.

use super::{check_seconds, failed, print_json, read};
use crate::bench::read_result;
use crate::failure::Failure;
use clap::Parser;
use std::path::PathBuf;
use weir_lab::result::{Round, RunResult, Step};
use weir_planner::plan::check::{Check, MeasuredLoad, check};
use weir_planner::plan::description::{Description, WorkloadSection};

/// Compare the planner's predictions with what was measured.
///
/// FILE describes the server, its pool and its drives; each load that a RESULT of 'weir bench' measured (with fio, or in process) is simulated
/// on it. Prints measured and predicted operations per second, and the median and the greatest deviation.
#[derive(Debug, Parser)]
#[command(name = "check", override_usage = "weir plan check [-j] [--seconds S] [--seed N] FILE RESULT…")]
pub struct CheckArgs {
    /// Description; its [workload] does not count
    file: PathBuf,
    /// Directories of runs of 'weir bench', or their result.json
    #[arg(required = true, value_name = "RESULT")]
    results: Vec<PathBuf>,
    /// Virtual seconds of a simulation at most
    #[arg(long, value_name = "S", default_value_t = 5.0)]
    seconds: f64,
    /// Number from which all that is random follows
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print JSON instead of text
    #[arg(short = 'j', long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &CheckArgs) -> Result<u8, Failure> {
    check_seconds::<CheckArgs>(args.seconds)?;
    let description = Description::parse(&read(&args.file)?).map_err(|error| failed(&args.file, &error))?;
    let mut loads = Vec::new();
    for path in &args.results {
        loads.extend(loads_of(&read_result(path)?));
    }
    if loads.is_empty() {
        let text = "weir plan check: the results have no load of blocks of one size that was measured: run stream, grid or quick";
        return Err(Failure::failed(text.to_owned()));
    }
    let mut number = 0;
    let mut show = |name: &str| {
        number += 1;
        eprintln!("{number} of {}: {name}", loads.len());
    };
    let checked = check(&description, &loads, args.seed, args.seconds, &mut show);
    let checked = checked.map_err(|error| failed(&args.file, &error))?;
    if args.json {
        print_json(&checked)?
    } else {
        print!("{}", text(&checked))
    }
    Ok(0)
}

fn loads_of(result: &RunResult) -> Vec<MeasuredLoad> {
    let is_volume = result.environment.contains_key("dataset.volblocksize");
    result.steps.iter().filter_map(|step| load_of(step, is_volume)).collect()
}

/// A step as the planner describes loads; `None` for one without a rate, or that the planner has no load for.
fn load_of(step: &Step, volume: bool) -> Option<MeasuredLoad> {
    let Step { name, workload, .. } = step;
    let order = match workload.pattern.as_str() {
        "read" | "write" | "rw" => "sequential",
        "randread" | "randwrite" | "randrw" => "random",
        _ => return None,
    };
    let operations_per_second = step.median(Round::operations_per_s);
    if workload.block_bytes == 0 || workload.size_bytes == 0 || operations_per_second <= 0.0 {
        return None;
    }
    let threads = workload.workers.max(1);
    let workload = WorkloadSection {
        threads: threads as usize,
        depth: workload.depth.max(1) as usize,
        operation_kib: workload.block_bytes as f64 / 1024.0,
        read_percent: workload.read_percent.into(),
        order: order.to_owned(),
        file_mib: workload.size_bytes as f64 / f64::from(threads) / f64::from(1 << 20),
        stable: workload.sync,
        volume,
        ..WorkloadSection::default()
    };
    Some(MeasuredLoad { name: name.clone(), workload, operations_per_second })
}

fn text(checked: &Check) -> String {
    let widest = checked.loads.iter().map(|load| load.name.chars().count()).max().unwrap_or(0).max(4);
    let mut out =
        format!("{:<widest$}  {:>10}  {:>10}  {:>9}  {}\n", "load", "measured/s", "predicted/s", "deviation", "limit");
    for load in &checked.loads {
        out.push_str(&format!(
            "{:<widest$}  {:>10.0}  {:>11.0}  {:>+8.0} %  {}\n",
            load.name,
            load.measured,
            load.predicted,
            load.deviation * 100.0,
            load.limit
        ));
    }
    out.push_str(&format!(
        "{} loads: median deviation {:.0} %, greatest {:.0} %\n",
        checked.loads.len(),
        checked.median * 100.0,
        checked.worst * 100.0
    ));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_lab::result::Workload;

    fn step(pattern: &str, block_bytes: u64) -> Step {
        let workload = Workload {
            pattern: pattern.to_owned(),
            block_bytes,
            read_percent: 70,
            workers: 2,
            depth: 8,
            sync: true,
            direct: true,
            size_bytes: 64 << 20,
            seconds: 1,
        };
        let mut round = Round { seconds: 2.0, ..Round::default() };
        (round.read.operations, round.written.operations) = (150, 50);
        Step { name: "mixed".to_owned(), workload, expected: None, rounds: vec![round] }
    }

    #[test]
    fn a_measured_step_becomes_a_load_of_the_planner() {
        let load = load_of(&step("randrw", 8192), true).unwrap();
        assert_eq!(load.operations_per_second, 100.0);
        let WorkloadSection { threads, depth, operation_kib, read_percent, order, file_mib, stable, volume, .. } =
            load.workload;
        assert_eq!((threads, depth, operation_kib, read_percent), (2, 8, 8.0, 70));
        assert_eq!((order.as_str(), file_mib, stable, volume), ("random", 32.0, true, true));
    }

    #[test]
    fn steps_without_a_block_size_a_rate_or_a_known_pattern_are_left_out() {
        assert!(load_of(&step("list", 4096), false).is_none());
        assert!(load_of(&step("read", 0), false).is_none());
        let without = Step { rounds: Vec::new(), ..step("read", 4096) };
        assert!(load_of(&without, false).is_none());
    }
}

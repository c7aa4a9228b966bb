//! GoBonnieGo's cycle: a sequential write, a sequential read, and random operations, again and again.
//!
//! As its README describes it: files of 64 KiB blocks written and read concurrently by as many threads as there are processors, then operations of
//! 512 bytes at random places, nine of ten of them reads. Results are decimal megabytes a second. The JSON has its field names, so that scripts for
//! GoBonnieGo read ours.

use crate::load::Load;
use crate::plan::{Plan, StepPlan};
use crate::result::{Round, RunResult};
use serde_json::{Value, json};

/// Parameters of the cycle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cycle {
    /// Bytes of test data.
    pub size_bytes: u64,
    /// Threads, each with a file of its own.
    pub threads: u32,
    /// Seconds of random operations.
    pub iops_seconds: u64,
    /// Size of a random operation: 512, or the sector of the device if that is larger and the page cache is bypassed.
    pub operation_bytes: u64,
}

/// The steps of one cycle; each round is a cycle.
#[must_use]
pub fn cycle(cycle: &Cycle) -> Plan {
    let load = |load: Load| Load { workers: cycle.threads, size_bytes: cycle.size_bytes, ..load };
    let random = Load { seconds: cycle.iops_seconds, ..load(Load::random(cycle.operation_bytes, 90)) };
    let steps = vec![
        StepPlan::fio("sequential write 64K", load(Load::sequential(65_536, 0))),
        StepPlan::fio("sequential read 64K", load(Load::sequential(65_536, 100))),
        StepPlan::fio(format!("random {}-byte operations, 90% reads", cycle.operation_bytes), random),
    ];
    Plan { method: "loop", steps, data_bytes: 0, data_workers: cycle.threads }
}

/// The rounds of the write, of the read and of the random operations, cycle by cycle.
fn cycles(result: &RunResult) -> impl Iterator<Item = [&Round; 3]> {
    let rounds = |step: usize| result.steps.get(step).map_or(&[][..], |step| &step.rounds);
    let pairs = rounds(0).iter().zip(rounds(1));
    pairs.zip(rounds(2)).map(|((write, read), random)| [write, read, random])
}

/// GoBonnieGo's three lines for each cycle that is complete.
#[must_use]
pub fn lines(result: &RunResult) -> String {
    let line = cycles(result).map(|[write, read, random]| {
        format!(
            "Sequential Write MB/s: {:.2}\nSequential Read MB/s: {:.2}\nIOPS: {:.0}\n",
            megabytes(write),
            megabytes(read),
            random.operations_per_s()
        )
    });
    line.collect()
}

/// Megabytes a second over the whole round, as GoBonnieGo counts them.
fn megabytes(round: &Round) -> f64 {
    (round.read.bytes + round.written.bytes) as f64 / round.seconds.max(1e-9) / 1e6
}

/// GoBonnieGo's JSON.
#[must_use]
pub fn document(result: &RunResult) -> Value {
    let workload = result.steps.first().map(|step| step.workload.clone()).unwrap_or_default();
    let iops_seconds = result.steps.get(2).map_or(0, |step| step.workload.seconds);
    let memory: u64 = result.environment.get("memory_bytes").and_then(|bytes| bytes.parse().ok()).unwrap_or_default();
    let start = |round: &Round| crate::clock::rfc3339(result.started_unix_seconds + round.at_seconds as u64);
    let results = cycles(result).map(|[write, read, random]| {
        json!({
            "write_megabytes_per_second": megabytes(write),
            "read_megabytes_per_second": megabytes(read),
            "iops": random.operations_per_s(),
            "write_seconds": write.seconds,
            "read_seconds": read.seconds,
            "io_seconds": random.seconds,
            "start_time": start(write),
            "write_bytes": write.written.bytes,
            "read_bytes": read.read.bytes,
            "io_operations": random.read.operations + random.written.operations,
        })
    });
    json!({
        "version": format!("weir {}", env!("CARGO_PKG_VERSION")),
        "start_time": result.started,
        "gobonniego_directory": result.target,
        "disk_space_used_gib": workload.size_bytes as f64 / (1_u64 << 30) as f64,
        "num_readers_and_writers": workload.workers,
        "physical_memory_bytes": memory,
        "iops_duration_seconds": iops_seconds,
        "results": results.collect::<Vec<Value>>(),
    })
}

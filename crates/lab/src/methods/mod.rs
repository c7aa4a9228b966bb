//! Methods: sets of workloads with a meaning, each a function from its parameters to a [`Plan`].
//!
//! `stream` and `users` repeat the streaming clients of the Sun 7410 and of napp-it, `grid` the IOMeter tables of AnandTech, `loop` GoBonnieGo,
//! `singlestream`, `fileserver`, `varmail`, `webserver` and `oltp` filebench's personalities of these names, `frames` the film scans of AJA's test. `quick` is a minute's overview, `device` asks
//! what a disk is fit for, `services` asks what compression, encryption and deduplication cost, `list` lists a directory.
//! `powercut` cuts the power below a server and counts what is lost.

pub mod bonnie;
pub mod device;
pub mod filebench;
pub mod icf;
pub mod powercut;

use crate::error::LabError;
use crate::load::Load;
use crate::native::frames::FrameLoad;
use crate::native::list::ListLoad;
use crate::native::services::{SERVICES, Sample, ServiceLoad};
use crate::plan::{Plan, StepLoad, StepPlan};
use crate::result::{Round, RunResult};
use crate::text;
use std::sync::Arc;

/// Methods that have one operation in flight by definition.
pub const ONE_IN_FLIGHT: [&str; 6] = ["singlestream", "frames", "list", "loop", "services", "powercut"];

/// Largest number of operations in flight over all workers; more would measure the memory of the client.
pub const MAX_IN_FLIGHT: u32 = 65_536;

/// Seconds of load before each measurement of a fixed length.
const RAMP_SECONDS: u64 = 1;

/// An overview in a minute: streams, random access, and synchronous writes. Steps that write are left out if `reads_only`.
#[must_use]
pub fn quick(size_bytes: u64, seconds: u64, reads_only: bool) -> Plan {
    let timed = |load: Load, depth: u32| Load { depth, size_bytes, seconds, ramp_seconds: RAMP_SECONDS, ..load };
    let mut steps = vec![
        StepPlan::fio("sequential read 1M", timed(Load::sequential(1 << 20, 100), 8)),
        StepPlan::fio("random read 4K, 1 in flight", timed(Load::random(4096, 100), 1)),
        StepPlan::fio("random read 4K, 32 in flight", timed(Load::random(4096, 100), 32)),
        StepPlan::fio("sequential write 1M", timed(Load::sequential(1 << 20, 0), 8)),
        StepPlan::fio("random write 4K, 32 in flight", timed(Load::random(4096, 0), 32)),
        StepPlan::fio("synchronous write 4K", Load { sync: true, ..timed(Load::sequential(4096, 0), 1) }),
    ];
    steps.retain(|step| !(reads_only && step.writes()));
    Plan { method: "quick", steps, data_bytes: size_bytes, data_workers: 1 }
}

/// Streams of several clients with several threads each: every thread reads or writes a file of its own from beginning to end, again and again.
///
/// # Errors
/// If there are no threads or too many.
pub fn stream(
    clients: u32,
    threads: u32,
    block_bytes: u64,
    writes: bool,
    size_bytes: u64,
    seconds: u64,
) -> Result<Plan, LabError> {
    let workers = bounded(clients.saturating_mul(threads), 1)?;
    let name = format!(
        "{clients} clients x {threads} threads, {} {}",
        text::block(block_bytes),
        if writes { "writes" } else { "reads" }
    );
    let load = Load {
        workers,
        size_bytes,
        seconds,
        ramp_seconds: RAMP_SECONDS,
        ..Load::sequential(block_bytes, if writes { 0 } else { 100 })
    };
    Ok(Plan { method: "stream", steps: vec![StepPlan::fio(name, load)], data_bytes: size_bytes, data_workers: workers })
}

/// One user beside several: streams of 1 MiB operations, reading and writing.
///
/// # Errors
/// If there are no users or too many.
pub fn users(users: u32, size_bytes: u64, seconds: u64) -> Result<Plan, LabError> {
    let most = bounded(users, 1)?;
    let mut steps = Vec::new();
    for (what, read_percent) in [("write", 0), ("read", 100)] {
        for workers in [1, most] {
            let name = if workers == 1 { format!("1 user {what}s") } else { format!("{workers} users {what}") };
            let size_bytes = size_bytes / u64::from(most) * u64::from(workers);
            let load = Load {
                workers,
                size_bytes,
                seconds,
                ramp_seconds: RAMP_SECONDS,
                ..Load::sequential(1 << 20, read_percent)
            };
            steps.push(StepPlan::fio(name, load));
        }
    }
    if most == 1 {
        steps.dedup_by(|a, b| a.name == b.name);
    }
    Ok(Plan { method: "users", steps, data_bytes: size_bytes, data_workers: most })
}

/// Access pattern of a grid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// Name, such as `random read`.
    pub name: String,
    /// Sizes of operations; empty for the sizes of the grid.
    pub blocks: Vec<(u64, u32)>,
    /// Reads, in percent.
    pub read_percent: u32,
    /// Random places, in percent.
    pub random_percent: u32,
}

/// Parameters of a grid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grid {
    /// Sizes of operations in bytes.
    pub blocks: Vec<u64>,
    /// Patterns.
    pub patterns: Vec<Pattern>,
    /// Operations in flight.
    pub depths: Vec<u32>,
    /// Seconds of each point.
    pub seconds: u64,
    /// Seconds of load before each point.
    pub ramp_seconds: u64,
}

impl Default for Grid {
    /// AnandTech's grid: four sizes, four patterns, a ladder of queue depths.
    fn default() -> Self {
        let pattern = |name: &str, read_percent, random_percent| Pattern {
            name: name.to_owned(),
            blocks: Vec::new(),
            read_percent,
            random_percent,
        };
        Self {
            blocks: vec![4096, 8192, 16_384, 32_768],
            patterns: vec![
                pattern("sequential read", 100, 0),
                pattern("random read", 100, 100),
                pattern("random write", 0, 100),
                pattern("random 67% write 33% read", 33, 100),
            ],
            depths: vec![1, 2, 4, 8, 16, 24, 32],
            seconds: 10,
            ramp_seconds: RAMP_SECONDS,
        }
    }
}

/// Every pattern with every block size at every depth.
///
/// # Errors
/// If a depth is 0 or too large, or the grid is empty.
pub fn grid(grid: &Grid, size_bytes: u64, reads_only: bool) -> Result<Plan, LabError> {
    let mut steps = Vec::new();
    for pattern in &grid.patterns {
        let own = if pattern.blocks.is_empty() { None } else { Some(pattern.blocks.clone()) };
        let sizes: Vec<Vec<(u64, u32)>> =
            own.map_or_else(|| grid.blocks.iter().map(|&bytes| vec![(bytes, 100)]).collect(), |own| vec![own]);
        for blocks in sizes {
            for &depth in &grid.depths {
                let name = match blocks[..] {
                    [(bytes, _)] if pattern.blocks.is_empty() => {
                        format!("{} {}, {depth} in flight", text::block(bytes), pattern.name)
                    }
                    _ => format!("{}, {depth} in flight", pattern.name),
                };
                let load = Load {
                    blocks: blocks.clone(),
                    read_percent: pattern.read_percent,
                    random_percent: pattern.random_percent,
                    workers: 1,
                    depth: bounded(depth, 1)?,
                    sync: false,
                    size_bytes,
                    seconds: grid.seconds,
                    ramp_seconds: grid.ramp_seconds,
                };
                steps.push(StepPlan::fio(name, load));
            }
        }
    }
    steps.retain(|step| !(reads_only && step.writes()));
    if steps.is_empty() {
        return Err(LabError::Parameter(
            "the grid has no points: it needs a block size, a pattern and a depth".to_owned(),
        ));
    }
    Ok(Plan { method: "grid", steps, data_bytes: size_bytes, data_workers: 1 })
}

/// Files of one frame each: written, then read.
#[must_use]
pub fn frames(frame_bytes: u64, frames: u64) -> Plan {
    let step = |name: &str, writes| StepPlan {
        name: name.to_owned(),
        load: StepLoad::Frames(FrameLoad { frame_bytes, frames, writes }),
        claims_disks: true,
    };
    Plan {
        method: "frames",
        steps: vec![step("write frames", true), step("read frames", false)],
        data_bytes: 0,
        data_workers: 1,
    }
}

/// Listing of a directory.
#[must_use]
pub fn list(entries: u64, listings: u64) -> Plan {
    let name = format!("list {entries} entries");
    let step = StepPlan { name, load: StepLoad::List(ListLoad { entries, listings }), claims_disks: false };
    Plan { method: "list", steps: vec![step], data_bytes: 0, data_workers: 1 }
}

/// All data services on a sample.
#[must_use]
pub fn services(sample: &Arc<Sample>) -> Plan {
    let steps = SERVICES.iter().map(|(name, service)| StepPlan {
        name: (*name).to_owned(),
        load: StepLoad::Service(ServiceLoad { service: *service, sample: Arc::clone(sample) }),
        claims_disks: false,
    });
    Plan { method: "services", steps: steps.collect(), data_bytes: 0, data_workers: 1 }
}

fn bounded(count: u32, least: u32) -> Result<u32, LabError> {
    if (least..=MAX_IN_FLIGHT).contains(&count) {
        return Ok(count);
    }
    Err(LabError::Parameter(format!("{count} operations in flight: from {least} to {MAX_IN_FLIGHT} are possible")))
}

/// Sentences about the result as a whole.
#[must_use]
pub fn advice(result: &RunResult) -> Vec<String> {
    match result.method.as_str() {
        "quick" => quick_advice(result),
        "device" => device::advice(result),
        "services" => services_advice(result),
        "users" => users_advice(result),
        "powercut" => powercut::advice(result),
        _ => Vec::new(),
    }
}

/// Median of a figure of a step, if it was measured.
pub fn figure(result: &RunResult, step: &str, figure: impl Fn(&Round) -> f64) -> Option<f64> {
    let step = result.steps.iter().find(|have| have.name == step && !have.rounds.is_empty())?;
    Some(step.median(figure))
}

fn quick_advice(result: &RunResult) -> Vec<String> {
    // A figure with a warning is not for a summary.
    let sound =
        |step: &str, value: fn(&Round) -> f64| figure(result, step, value).filter(|_| result.is_comparable(step));
    let bytes = |step| sound(step, Round::bytes_per_s).map(text::rate);
    let operations = |step| sound(step, Round::operations_per_s).map(text::operations);
    let read = bytes("sequential read 1M");
    let streams = if read.is_some() { "them" } else { "streams" };
    let parts = [
        read.map(|rate| format!("reads streams at {rate}")),
        bytes("sequential write 1M").map(|rate| format!("writes {streams} at {rate}")),
        operations("random read 4K, 32 in flight").map(|rate| format!("reads {rate} random 4K blocks")),
        operations("synchronous write 4K").map(|rate| format!("makes {rate} small writes stable")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { Vec::new() } else { vec![format!("In short: {} {}.", result.target, parts.join(", "))] }
}

fn services_advice(result: &RunResult) -> Vec<String> {
    let lines = result.steps.iter().filter(|step| !step.rounds.is_empty()).map(|step| {
        format!(
            "{}: ratio {:.2}, writes {}, reads {} by one processor",
            step.name,
            step.median(|round| own(round, "ratio")),
            text::rate(step.median(|round| own(round, "write_bytes_per_s"))),
            text::rate(step.median(|round| own(round, "read_bytes_per_s")))
        )
    });
    lines.collect()
}

/// A figure of the method's own.
fn own(round: &Round, name: &str) -> f64 {
    round.figures.get(name).copied().unwrap_or_default()
}

fn users_advice(result: &RunResult) -> Vec<String> {
    let mut lines = Vec::new();
    for step in result.steps.iter().filter(|step| step.workload.workers > 1 && !step.rounds.is_empty()) {
        let each = step.median(Round::bytes_per_s) / f64::from(step.workload.workers);
        lines.push(format!("{}: {} each", step.name, text::rate(each)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_has_every_pattern_size_and_depth() {
        let plan = grid(&Grid::default(), 1 << 30, false).unwrap();
        assert_eq!(plan.steps.len(), 4 * 4 * 7);
        assert!(plan.steps.iter().any(|step| step.name == "32K random 67% write 33% read, 24 in flight"));
        let reads = grid(&Grid::default(), 1 << 30, true).unwrap();
        assert_eq!(reads.steps.len(), 2 * 4 * 7);
        let empty = Grid { depths: Vec::new(), ..Grid::default() };
        assert!(grid(&empty, 1, false).is_err());
        assert!(grid(&Grid { depths: vec![0], ..Grid::default() }, 1, false).is_err());
    }

    #[test]
    fn streams_and_users_have_their_workers() {
        let plan = stream(10, 2, 131_072, false, 20 << 30, 60).unwrap();
        assert_eq!(plan.data_workers, 20);
        assert!(matches!(&plan.steps[0].load, StepLoad::Fio(load) if load.workers == 20 && !load.writes()));
        assert!(stream(0, 2, 4096, true, 1, 1).is_err());
        let names: Vec<String> = users(6, 6 << 30, 10).unwrap().steps.into_iter().map(|step| step.name).collect();
        assert_eq!(names, ["1 user writes", "6 users write", "1 user reads", "6 users read"]);
        assert_eq!(users(1, 1 << 30, 10).unwrap().steps.len(), 2);
    }

    #[test]
    fn a_target_that_must_not_be_written_gets_the_reading_steps() {
        assert_eq!(quick(1 << 30, 8, true).steps.len(), 3);
        assert!(quick(1 << 30, 8, true).steps.iter().all(|step| !step.writes()));
    }
}

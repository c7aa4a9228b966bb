//! Fitness of a disk as data, log or L2ARC device.

use super::figure;
use crate::load::Load;
use crate::plan::{Plan, StepPlan};
use crate::result::{Round, RunResult};
use crate::statistics::{mean, median};
use crate::text;

/// Names of the steps.
/// Flushed writes, one at a time.
pub const FLUSHED: &str = "flushed write 4K, 1 in flight";
const FLUSHED_8: &str = "flushed write 4K, 8 in flight";
/// Large sequential writes until the rate has settled.
pub const SUSTAINED: &str = "sustained write 1M";
/// Random reads.
pub const RANDOM_READ: &str = "random read 4K, 32 in flight";
/// Random writes.
pub const RANDOM_WRITE: &str = "random write 4K, 32 in flight";
/// Random reads, one at a time.
pub const RANDOM_READ_1: &str = "random read 4K, 1 in flight";
/// Writes that are not flushed, one at a time.
pub const WRITE_1: &str = "write 4K, 1 in flight";
/// Large sequential reads.
pub const READ: &str = "read 1M";
/// Large random reads, one at a time.
pub const LARGE_READ_1: &str = "random read 128K, 1 in flight";
/// As many reads as writes.
pub const MIXED: &str = "random read and write 128K, 8 in flight";

/// Turns a second of the fastest disks with platters (15,000 rpm): more flushed writes a second than this do not reach a platter.
const FASTEST_TURNS_PER_S: f64 = 250.0;

/// Small flushed writes, sustained writes for `sustained_seconds`, and random access.
#[must_use]
pub fn device(size_bytes: u64, seconds: u64, sustained_seconds: u64) -> Plan {
    let timed =
        |load: Load, workers: u32, depth: u32| Load { workers, depth, size_bytes, seconds, ramp_seconds: 1, ..load };
    let steps = vec![
        StepPlan::fio(FLUSHED, Load { sync: true, ..timed(Load::sequential(4096, 0), 1, 1) }),
        StepPlan::fio(FLUSHED_8, Load { sync: true, ..timed(Load::sequential(4096, 0), 8, 1) }),
        StepPlan::fio(WRITE_1, timed(Load::sequential(4096, 0), 1, 1)),
        StepPlan::fio(RANDOM_READ_1, timed(Load::random(4096, 100), 1, 1)),
        StepPlan::fio(RANDOM_READ, timed(Load::random(4096, 100), 1, 32)),
        StepPlan::fio(READ, timed(Load::sequential(1 << 20, 100), 1, 8)),
        StepPlan::fio(LARGE_READ_1, timed(Load::random(128 << 10, 100), 1, 1)),
        StepPlan::fio(MIXED, timed(Load::random(128 << 10, 50), 1, 8)),
        StepPlan::fio(RANDOM_WRITE, timed(Load::random(4096, 0), 1, 32)),
        StepPlan::fio(SUSTAINED, Load { seconds: sustained_seconds, ..timed(Load::sequential(1 << 20, 0), 1, 8) }),
    ];
    Plan { method: "device", steps, data_bytes: size_bytes, data_workers: 1 }
}

/// Sentences about what the device is fit for. Thresholds are stated in them.
#[must_use]
pub fn advice(result: &RunResult) -> Vec<String> {
    let mut lines = Vec::new();
    let is_rotational = result
        .environment
        .iter()
        .any(|(key, value)| key.starts_with("disk.sd") && key.ends_with(".rotational") && value == "1");
    if let Some(flushed) = figure(result, FLUSHED, Round::operations_per_s) {
        if is_rotational && flushed > FASTEST_TURNS_PER_S {
            lines.push(format!(
                "Flushes do not reach the platters: {} flushed writes, a platter turns at most {FASTEST_TURNS_PER_S:.0} times a second. Either the \
                 disk ignores flushes, and loses acknowledged data with the power, or a cache with a battery answers them.",
                text::operations(flushed)
            ));
        }
        lines.push(format!(
            "As log device: {} flushed writes one after the other. It makes synchronous writes faster if the pool without it manages \
             fewer (measure the pool with 'weir bench quick'), and slower if the pool manages more.",
            text::operations(flushed)
        ));
    }
    if let Some(reads) = figure(result, RANDOM_READ, Round::operations_per_s) {
        lines.push(format!(
            "As L2ARC device: {} random reads. It helps working sets larger than the ARC if the pool's disks together read fewer.",
            text::operations(reads)
        ));
    }
    lines.extend(cliff(result));
    lines
}

/// Names the second from which on a sustained write is slower: the end of a disk's write buffer.
fn cliff(result: &RunResult) -> Option<String> {
    let step = result.steps.iter().find(|step| step.name == SUSTAINED)?;
    let round = step.rounds.first()?;
    let rates: Vec<f64> = round.series.iter().map(|second| second.written_bytes as f64).collect();
    if rates.len() < 10 {
        return None;
    }
    // The place that parts the run best: between its sides is the largest share of the variance.
    let parted = |place: usize| {
        let (left, right) = rates.split_at(place);
        let difference = mean(left).unwrap_or_default() - mean(right).unwrap_or_default();
        difference * difference * (left.len() * right.len()) as f64
    };
    let place = (3..=rates.len() - 3).max_by(|a, b| parted(*a).total_cmp(&parted(*b)))?;
    let before = median(&rates[..place])?;
    let after = median(&rates[place..])?;
    if after > 0.7 * before {
        return Some(format!(
            "As data device: no end of a write buffer within {} s; sustained {}.",
            rates.len(),
            text::rate(step.median(Round::bytes_per_s))
        ));
    }
    let buffer: f64 = rates[..place].iter().sum();
    Some(format!(
        "As data device: after {place} s and {} the rate falls from {} to {}: plan with the second figure.",
        text::bytes(buffer),
        text::rate(before),
        text::rate(after)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Second, Step};

    fn sustained(rates: &[u64]) -> RunResult {
        let series = rates.iter().map(|&bytes| Second { written_bytes: bytes, ..Second::default() }).collect();
        let seconds = rates.len() as f64;
        let written = crate::result::Flow { bytes: rates.iter().sum(), operations: 1 };
        let round = Round { seconds, written, series, ..Round::default() };
        let step =
            Step { name: SUSTAINED.to_owned(), workload: Default::default(), expected: None, rounds: vec![round] };
        let text = serde_json::json!({"schema": crate::result::SCHEMA, "warnings": [], "verdict": [], "method": "device", "target": "t", "command": [],
            "started_unix_seconds": 0, "started": "", "complete": true, "client": "", "environment": {"disk.sda.rotational": "1"}, "ceilings": [], "steps": []});
        let mut result = RunResult::parse("made", &text.to_string()).unwrap();
        result.steps.push(step);
        result
    }

    #[test]
    fn the_end_of_a_write_buffer_is_named() {
        let mut rates = vec![500_000_000; 12];
        rates.extend([80_000_000; 28]);
        let text = advice(&sustained(&rates)).join("\n");
        assert!(text.contains("after 12 s and 6.00 GB the rate falls from 500 MB/s to 80.0 MB/s"), "{text}");
        let text = advice(&sustained(&[100_000_000; 30])).join("\n");
        assert!(text.contains("no end of a write buffer within 30 s; sustained 100 MB/s"), "{text}");
    }

    #[test]
    fn flushes_faster_than_platters_turn_are_named() {
        let mut result = sustained(&[1; 3]);
        let round = Round {
            seconds: 1.0,
            written: crate::result::Flow { bytes: 4096 * 9000, operations: 9000 },
            ..Round::default()
        };
        result.steps[0] =
            Step { name: FLUSHED.to_owned(), workload: Default::default(), expected: None, rounds: vec![round] };
        assert!(advice(&result).join("\n").contains("Flushes do not reach the platters: 9.00 k/s"));
    }
}

//! filebench's single streams, and its line of summary.

use crate::load::Load;
use crate::plan::{Plan, StepPlan};
use crate::result::{Round, RunResult};

/// One thread that reads or writes a file from beginning to end in operations of 1 MiB, as `singlestreamread` and `singlestreamwrite`.
#[must_use]
pub fn singlestream(writes: bool, sync: bool, size_bytes: u64, seconds: u64) -> Plan {
    let load =
        Load { size_bytes, seconds, sync, ramp_seconds: 1, ..Load::sequential(1 << 20, if writes { 0 } else { 100 }) };
    let name = match (writes, sync) {
        (false, _) => "singlestreamread",
        (true, false) => "singlestreamwrite",
        (true, true) => "singlestreamwrite, each write flushed",
    };
    Plan { method: "singlestream", steps: vec![StepPlan::fio(name, load)], data_bytes: size_bytes, data_workers: 1 }
}

/// filebench's line `IO Summary` for a round: operations, their rate, reads and writes a second, MiB/s, processor time of
/// the client per operation, and mean latency.
#[must_use]
pub fn io_summary(round: &Round) -> String {
    let operations = round.read.operations + round.written.operations;
    let seconds = round.seconds.max(1e-9);
    let rate = |count: u64| count as f64 / seconds;
    let bytes = (round.read.bytes + round.written.bytes) as f64;
    let cpu_us = round.client_cpu_seconds.unwrap_or_default() * 1e6 / (operations.max(1)) as f64;
    let latency_ms = round.latency.as_ref().map_or(0.0, |latency| latency.mean_ns / 1e6);
    format!(
        "IO Summary: {operations} ops, {:.3} ops/s, ({:.0}/{:.0} r/w), {:.1}mb/s, {cpu_us:.0}us cpu/op, {latency_ms:.1}ms latency",
        rate(operations),
        rate(round.read.operations),
        rate(round.written.operations),
        bytes / seconds / (1 << 20) as f64
    )
}

/// The lines of all rounds.
#[must_use]
pub fn lines(result: &RunResult) -> String {
    result.steps.iter().flat_map(|step| &step.rounds).map(|round| io_summary(round) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Flow, Latency};

    #[test]
    fn the_summary_has_filebenchs_form() {
        let round = Round {
            seconds: 30.0,
            read: Flow { bytes: 157_739 << 20, operations: 157_739 },
            client_cpu_seconds: Some(33.28),
            latency: Some(Latency { mean_ns: 2.0e5, ..Latency::default() }),
            ..Round::default()
        };
        let line = "IO Summary: 157739 ops, 5257.967 ops/s, (5258/0 r/w), 5258.0mb/s, 211us cpu/op, 0.2ms latency";
        assert_eq!(io_summary(&round), line);
    }
}

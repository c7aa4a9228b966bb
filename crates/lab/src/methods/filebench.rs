//! filebench's single streams and mixes, and its line of summary.

use crate::error::LabError;
use crate::load::Load;
use crate::native::mix::{MixLoad, Personality};
use crate::plan::{Plan, StepLoad, StepPlan};
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

/// A mix with `scale_percent` of the published files and `threads` threads; `None` for the published number.
///
/// # Errors
/// If the scale or the threads are out of bounds.
pub fn mix(personality: Personality, scale_percent: u64, threads: Option<u32>, seconds: u64) -> Result<Plan, LabError> {
    if !(1..=1000).contains(&scale_percent) {
        return Err(LabError::Parameter(format!("a scale of {scale_percent} percent: from 1 to 1000 are possible")));
    }
    let threads = threads.unwrap_or_else(|| personality.threads());
    if !(1..=1000).contains(&threads) {
        return Err(LabError::Parameter(format!("{threads} threads: from 1 to 1000 are possible")));
    }
    let load = MixLoad { personality, scale_percent, threads, seconds };
    let name = format!(
        "{}, {} of {} files, {threads} of {} threads",
        personality.name(),
        load.shape().files,
        personality.shape().files,
        personality.threads()
    );
    let step = StepPlan { name, load: StepLoad::Mix(load), claims_disks: true };
    Ok(Plan { method: personality.name(), steps: vec![step], data_bytes: 0, data_workers: 1 })
}

/// filebench's line `IO Summary` for a round: operations, their rate, reads and writes a second, MiB/s, processor time of
/// the client per operation, and mean latency; `-` stands for what was not measured.
#[must_use]
pub fn io_summary(round: &Round) -> String {
    let operations = round.read.operations + round.written.operations + round.other_operations;
    let seconds = round.seconds.max(1e-9);
    let rate = |count: u64| count as f64 / seconds;
    let bytes = (round.read.bytes + round.written.bytes) as f64;
    let unknown = || "-".to_owned();
    let cpu_us = |seconds| format!("{:.0}", seconds * 1e6 / (operations.max(1)) as f64);
    let cpu_us = round.client_cpu_seconds.map_or_else(unknown, cpu_us);
    let latency_ms = round.latency.as_ref().map_or_else(unknown, |latency| format!("{:.1}", latency.mean_ns / 1e6));
    format!(
        "IO Summary: {operations} ops, {:.3} ops/s, ({:.0}/{:.0} r/w), {:.1}mb/s, {cpu_us}us cpu/op, {latency_ms}ms latency",
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
        // Operations without data count among all, but neither as reads nor as writes.
        let mixed = Round { other_operations: 157_739, ..round };
        assert!(
            io_summary(&mixed)
                .starts_with("IO Summary: 315478 ops, 10515.933 ops/s, (5258/0 r/w), 5258.0mb/s, 105us cpu/op")
        );
    }

    #[test]
    fn names_of_mixes_say_how_far_they_are_scaled_down() {
        let plan = mix(Personality::Fileserver, 5, Some(8), 10).unwrap();
        assert_eq!(plan.steps[0].name, "fileserver, 500 of 10000 files, 8 of 50 threads");
        let plan = mix(Personality::Varmail, 100, None, 10).unwrap();
        assert_eq!(plan.steps[0].name, "varmail, 1000 of 1000 files, 16 of 16 threads");
        assert!(mix(Personality::Oltp, 0, None, 10).is_err() && mix(Personality::Oltp, 100, Some(0), 10).is_err());
    }
}

//! The drive of a description from a run of `weir bench device`.

use crate::failure::Failure;
use weir_lab::methods::device::{
    FLUSHED, LARGE_READ_1, MIXED, RANDOM_READ, RANDOM_READ_1, RANDOM_WRITE, READ, SUSTAINED, WRITE_1,
};
use weir_lab::methods::figure;
use weir_lab::result::{Round, RunResult};
use weir_planner::hardware::flash::FlashSpec;

/// Bytes of a small operation of the run.
const SMALL_BYTES: f64 = 4096.0;
/// Bytes of a large one.
const LARGE_BYTES: f64 = 131_072.0;
/// Seconds at the beginning of the sustained write that show whether a write buffer is faster than the flash behind it.
const FIRST_SECONDS: usize = 3;
/// The beginning counts as faster from this factor on.
const FASTER: f64 = 1.2;

fn failed(why: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("weir plan calibrate: {why}"))
}

/// The model of a flash drive that a run of `device` measured.
///
/// # Errors
/// If a step is missing, or the disk has platters: those are modelled by data sheets.
pub fn flash(result: &RunResult) -> Result<FlashSpec, Failure> {
    let rotates =
        |(key, value): (&String, &String)| key.ends_with(".rotational") && value == "1" && !key.contains(".vd");
    if result.environment.iter().any(rotates) {
        return Err(failed("the disk has platters: take the drive of a description from its data sheet, or hdd-7k"));
    }
    let rate = |name: &str, of: fn(&Round) -> f64| {
        let missing = || failed(format!("{} has no rate of '{name}': measure with 'weir bench device'", result.target));
        figure(result, name, of).filter(|rate| *rate > 0.0).ok_or_else(missing)
    };
    let operations = |name: &str| rate(name, Round::operations_per_s);
    let mb_s = |name: &str| Ok::<f64, Failure>(rate(name, Round::bytes_per_s)? / 1e6);
    let read_mb_s = mb_s(READ)?;
    let small_us = |rate: f64, mb_s: f64| (1e6 / rate - SMALL_BYTES / mb_s).max(1.0);
    let read_us = small_us(operations(RANDOM_READ_1)?, read_mb_s);
    let channels = (operations(RANDOM_READ)? * read_us / 1e6).round().clamp(1.0, 1024.0) as u32;
    let sustained_mb_s = mb_s(SUSTAINED)?;
    let sustained = result.steps.iter().find(|step| step.name == SUSTAINED);
    let (first_mb_s, buffer_gb) = buffer(sustained.map_or(&[], |step| &step.rounds), sustained_mb_s);
    let write_mb_s = first_mb_s.max(sustained_mb_s);
    // Runs of earlier versions lack these steps.
    let large_read_us = figure(result, LARGE_READ_1, Round::operations_per_s).map_or(0.0, |rate| 1e6 / rate);
    let further_us = large_read_us - read_us - LARGE_BYTES / read_mb_s;
    let read_us_per_kib = (further_us / ((LARGE_BYTES - SMALL_BYTES) / 1024.0)).max(0.0);
    let mixed_mb_s = figure(result, MIXED, Round::bytes_per_s).map_or(0.0, |rate| rate / 1e6);
    let write_us = small_us(operations(WRITE_1)?, write_mb_s);
    let flush_us = (1e6 / operations(FLUSHED)? - write_us - SMALL_BYTES / write_mb_s).max(0.0);
    let random_amplification = (sustained_mb_s * 1e6 / (operations(RANDOM_WRITE)? * SMALL_BYTES)).max(1.0);
    Ok(FlashSpec {
        read_mb_s,
        write_mb_s,
        read_us,
        write_us,
        read_us_per_kib,
        channels,
        buffer_gb,
        sustained_mb_s,
        random_amplification,
        flush_us,
        mixed_mb_s,
    })
}

/// The rate of the first seconds of a sustained write in MB/s, and the GB that a write buffer has taken meanwhile, if it was faster.
fn buffer(rounds: &[Round], sustained_mb_s: f64) -> (f64, f64) {
    let series = rounds.first().map(|round| round.series.as_slice()).unwrap_or_default();
    let seconds: Vec<f64> = series.iter().map(|second| second.written_bytes as f64 / 1e6).collect();
    let first = seconds.iter().take(FIRST_SECONDS).sum::<f64>() / seconds.len().clamp(1, FIRST_SECONDS) as f64;
    if first < sustained_mb_s * FASTER {
        return (sustained_mb_s, 0.0);
    }
    let fast = seconds.iter().take_while(|mb| **mb >= (first + sustained_mb_s) / 2.0);
    (first, fast.map(|mb| (mb - sustained_mb_s) / 1e3).sum())
}

/// The line of a description.
pub fn line(spec: &FlashSpec, target: &str) -> String {
    format!(
        "# [pool]: as 'weir bench device' measured {target}\n\
         drive = {{ kind = \"flash\", read_mb_s = {:.1}, write_mb_s = {:.1}, read_us = {:.1}, write_us = {:.1}, read_us_per_kib = {:.3}, channels = {}, \
         buffer_gb = {:.2}, sustained_mb_s = {:.1}, random_amplification = {:.2}, flush_us = {:.1}, mixed_mb_s = {:.1} }}\n",
        spec.read_mb_s,
        spec.write_mb_s,
        spec.read_us,
        spec.write_us,
        spec.read_us_per_kib,
        spec.channels,
        spec.buffer_gb,
        spec.sustained_mb_s,
        spec.random_amplification,
        spec.flush_us,
        spec.mixed_mb_s
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_lab::result::{Flow, Second, Step};

    fn step(name: &str, bytes: u64, operations: u64) -> Step {
        let read = Flow { bytes, operations };
        let round = Round { seconds: 1.0, read, ..Round::default() };
        Step { name: name.to_owned(), workload: Default::default(), expected: None, rounds: vec![round] }
    }

    fn measured() -> RunResult {
        let small = |name: &str, operations: u64| step(name, operations * 4096, operations);
        let steps = vec![
            small(FLUSHED, 1_000),
            small(WRITE_1, 20_000),
            small(RANDOM_READ_1, 9_000),
            small(RANDOM_READ, 90_000),
            step(LARGE_READ_1, 2000 * 131_072, 2000),
            step(MIXED, 800_000_000, 6000),
            step(READ, 1_000_000_000, 1_000),
            small(RANDOM_WRITE, 30_000),
            step(SUSTAINED, 500_000_000, 500),
        ];
        let text = r#"{"schema":"SCHEMA","warnings":[],"verdict":[],"method":"device","target":"/mnt/d","command":[],
            "started_unix_seconds":0,"started":"","complete":true,"client":"","environment":{},"ceilings":[],"steps":[]}"#;
        let text = text.replace("SCHEMA", weir_lab::result::SCHEMA);
        RunResult { steps, ..RunResult::parse("test", &text).unwrap() }
    }

    #[test]
    fn the_model_follows_from_the_steps() {
        let spec = flash(&measured()).unwrap();
        assert_eq!((spec.read_mb_s, spec.sustained_mb_s, spec.write_mb_s, spec.buffer_gb), (1000.0, 500.0, 500.0, 0.0));
        assert!((spec.read_us - 107.0).abs() < 0.1 && spec.channels == 10, "{spec:?}");
        assert!((spec.write_us - 41.8).abs() < 0.1 && (spec.flush_us - 950.0).abs() < 0.1, "{spec:?}");
        assert!((spec.random_amplification - 4.07).abs() < 0.01, "{spec:?}");
        // 500 µs, of which 107 µs are the latency of a small read and 131 µs the interface.
        assert!((spec.read_us_per_kib - 2.113).abs() < 0.01 && spec.mixed_mb_s == 800.0, "{spec:?}");
        let pool = format!("[pool]\ndrive_tb = 1\nlayout = \"single\"\n{}", line(&spec, "/mnt/d"));
        weir_planner::plan::description::Description::parse(&pool).unwrap();
    }

    #[test]
    fn a_write_buffer_is_what_the_first_seconds_take_beyond_the_sustained_rate() {
        let second = |mb: u64| Second { written_bytes: mb * 1_000_000, ..Second::default() };
        let round = Round { series: [900, 900, 900, 900, 300, 300].map(second).to_vec(), ..Round::default() };
        let (first, gb) = buffer(&[round], 300.0);
        assert!((first - 900.0).abs() < 0.1 && (gb - 2.4).abs() < 0.01, "{first} {gb}");
    }

    #[test]
    fn disks_with_platters_and_runs_without_a_step_are_refused() {
        let mut result = measured();
        result.environment.insert("disk.sda.rotational".into(), "1".into());
        assert!(flash(&result).is_err());
        let mut result = measured();
        result.steps.pop();
        assert!(flash(&result).unwrap_err().to_string().contains(SUSTAINED));
    }
}

//! Judgement of a result: warnings first, then a sentence for each step about what limited it.

use crate::fio::FLUSH_ALONE;
use crate::methods::powercut;
use crate::native::services::SERVICE;
use crate::plan::Plan;
use crate::result::{Flow, RunResult, Step, Warning};
use crate::statistics::median;
use crate::{ceilings, methods, text};
use std::collections::BTreeMap;

/// Share of the bytes that were read which the disks must have delivered, for a step that claims to measure them.
const MIN_DISK_SHARE: f64 = 0.5;

/// Share of a ceiling from which on it is named as the limit.
const NEAR: f64 = 0.85;

/// Share of a ceiling from which on the ceiling itself was measured too low, and limits nothing.
const EXCEEDED: f64 = 1.2;

/// Difference between the sum of the seconds and the total from which on they contradict each other.
const MAX_SUM_ERROR: f64 = 0.1;

/// Replaces warnings and sentences of a result.
pub fn judge(result: &mut RunResult, plan: &Plan) {
    result.warnings.clear();
    let mut warnings = Vec::new();
    if !result.complete {
        warnings.push(warning(
            "incomplete",
            None,
            "the run was stopped before its end; rounds that were finished are valid",
            false,
        ));
    }
    if result.environment.get("content").is_some_and(|content| content == "as found") {
        let text = "the target was read as found: blocks that were never written may be answered without a disk";
        warnings.push(warning("content", None, text, false));
    }
    let measured: Vec<&Step> = result.steps.iter().filter(|step| !step.rounds.is_empty()).collect();
    let with_depth: Vec<&&Step> =
        measured.iter().filter(|step| step.workload.depth > 0 && step.workload.block_bytes > 0).collect();
    if !with_depth.is_empty() && with_depth.iter().all(|step| step.in_flight() == 1) {
        let is_defined = methods::ONE_IN_FLIGHT.contains(&plan.method);
        let text = match is_defined {
            true => {
                "one operation in flight, as the method demands: this is the rate of one process, not of the storage"
            }
            false => "one operation in flight throughout: this is the latency of the storage, not its capacity",
        };
        warnings.push(warning("depth-1", None, text, !is_defined));
    }
    for step in &measured {
        let claims_disks = plan.steps.iter().any(|planned| planned.name == step.name && planned.claims_disks);
        step_warnings(step, claims_disks, &result.environment, &mut warnings);
        for (share, part) in shares(step, result).into_iter().filter(|(share, _)| *share > EXCEEDED) {
            let text = format!(
                "{} of the ceiling of the {part}: this ceiling was measured too low, maybe beside other work of the machine, and is left out",
                text::percent(share)
            );
            warnings.push(warning("ceiling-exceeded", Some(step), text, false));
        }
        if powercut::is_cut(step) {
            let of_cuts = powercut::warnings(step).into_iter();
            warnings.extend(of_cuts.map(|(rule, text)| warning(rule, Some(step), text, false)));
        }
    }
    // A service moves every byte twice, in memory: its own sentences name both rates. A cut asks for no rate.
    let has_rate = |step: &&&Step| step.workload.pattern != SERVICE && !powercut::is_cut(step);
    let sentences = measured.iter().filter(has_rate);
    let sentences: Vec<String> = sentences.map(|step| sentence(step, result)).collect();
    result.warnings = warnings;
    result.verdict = sentences;
    let advice = methods::advice(result);
    result.verdict.extend(advice);
}

fn warning(rule: &str, step: Option<&Step>, text: impl Into<String>, not_comparable: bool) -> Warning {
    Warning { rule: rule.to_owned(), step: step.map(|step| step.name.clone()), text: text.into(), not_comparable }
}

/// Sum of a figure over the rounds; `None` unless it is known in all of them.
fn known(step: &Step, figure: impl Fn(&crate::result::Round) -> Option<u64>) -> Option<f64> {
    let values: Vec<f64> = step.rounds.iter().filter_map(figure).map(|value| value as f64).collect();
    (values.len() == step.rounds.len() && !values.is_empty()).then(|| values.iter().sum())
}

fn step_warnings(step: &Step, claims_disks: bool, environment: &BTreeMap<String, String>, warnings: &mut Vec<Warning>) {
    let read: f64 = step.rounds.iter().map(|round| round.read.bytes as f64).sum();
    let written: f64 = step.rounds.iter().map(|round| round.written.bytes as f64).sum();
    let memory: Option<f64> = environment.get("memory_bytes").and_then(|bytes| bytes.parse().ok());
    let fits_in_memory = memory.is_some_and(|memory| (step.workload.size_bytes as f64) < memory);
    let is_seen_below = if read > 0.0 { delivered(step).is_some() } else { stored(step).is_some() };
    if claims_disks && !step.workload.direct && fits_in_memory && !is_seen_below {
        let text = "the client's page cache could not be bypassed and holds the data: this is the speed of the client's memory";
        warnings.push(warning("client-cache", Some(step), text, true));
    }
    if claims_disks
        && read > 0.0
        && let Some((part, delivered)) = delivered(step)
        && delivered < MIN_DISK_SHARE * read
    {
        let text = format!(
            "{part} delivered {} of the bytes that were read: a cache, or nothing stored, answered the rest",
            text::percent(delivered / read)
        );
        warnings.push(warning("disks-not-reached", Some(step), text, true));
    }
    if claims_disks
        && written > 0.0
        && let Some((part, stored)) = stored(step)
        && stored < MIN_DISK_SHARE * written
    {
        let text = format!(
            "{part} took {} of the bytes that were written: the rest was compressed away, is still in memory, or was overwritten there",
            text::percent(stored / written)
        );
        warnings.push(warning("disks-not-reached", Some(step), text, true));
    }
    let unsteady = step.rounds.iter().filter(|round| round.is_steady() == Some(false)).count();
    if unsteady > 0 && step.workload.seconds > 0 {
        let worst =
            step.rounds.iter().filter_map(|round| round.window.as_ref()).map(|window| window.range).fold(0.0, f64::max);
        let text = format!(
            "not steady in {unsteady} of {} rounds: the rate differs by up to {} of its mean within a round; measure longer, or find the cause in the series",
            step.rounds.len(),
            text::percent(worst)
        );
        warnings.push(warning("not-steady", Some(step), text, 2 * unsteady > step.rounds.len()));
    }
    sums(step, warnings);
}

/// Warnings about figures of a step that contradict each other.
fn sums(step: &Step, warnings: &mut Vec<Warning>) {
    let block_bytes = step.workload.block_bytes;
    // Loads of Weir's own, whose patterns are not fio's, have operations of other sizes too.
    let is_fio = ["read", "write", "rw", "randread", "randwrite", "randrw"].contains(&step.workload.pattern.as_str());
    let of_one_size = |flow: &Flow| flow.bytes == flow.operations.saturating_mul(block_bytes);
    if is_fio
        && block_bytes > 0
        && !step.rounds.iter().all(|round| of_one_size(&round.read) && of_one_size(&round.written))
    {
        let text = format!(
            "the bytes are not those of the operations, of {} each: bytes and operations a second contradict each other",
            text::block(block_bytes)
        );
        warnings.push(warning("sums", Some(step), text, false));
    }
    for round in &step.rounds {
        let sum: f64 = round.series.iter().map(|second| (second.read_bytes + second.written_bytes) as f64).sum();
        let expected = (round.read.bytes + round.written.bytes) as f64
            * (round.series.len() as f64 / round.seconds.max(1e-9)).min(1.0);
        if round.series.len() >= 5 && (sum - expected).abs() > MAX_SUM_ERROR * expected {
            let text = format!(
                "the seconds add up to {}, the total is {}: do not use the series",
                text::bytes(sum),
                text::bytes(expected)
            );
            warnings.push(warning("sums", Some(step), text, false));
            break;
        }
    }
}

/// Bytes read from disks, and the name of these disks: the server's if its counters are known, else those of this machine.
fn delivered(step: &Step) -> Option<(&'static str, f64)> {
    if step.rounds.iter().any(|round| !round.server.is_empty()) {
        // What prefetch brought into the ARC was read from the disks before it was asked for.
        let of =
            |round: &crate::result::Round, source: &str| round.server.get(source).copied().unwrap_or_default() as f64;
        let disks =
            step.rounds.iter().map(|round| of(round, "read_bytes.disk") + of(round, "read_bytes.arc_prefetched"));
        return Some(("the server's disks", disks.sum()));
    }
    known(step, |round| round.disk_read_bytes).map(|bytes| ("the disks", bytes))
}

/// Bytes written to disks, and the name of these disks: the server's if its counters are known, else those of this machine.
fn stored(step: &Step) -> Option<(&'static str, f64)> {
    if step.rounds.iter().any(|round| !round.server.is_empty()) {
        let causes =
            step.rounds.iter().flat_map(|round| &round.server).filter(|(name, _)| name.starts_with("device_bytes."));
        return Some(("the server's disks", causes.map(|(_, bytes)| *bytes as f64).sum()));
    }
    known(step, |round| round.disk_written_bytes).map(|bytes| ("the disks", bytes))
}

/// Bytes and operations a second: medians of the rounds.
fn rates(step: &Step) -> (f64, f64) {
    (step.median(crate::result::Round::bytes_per_s), step.median(crate::result::Round::operations_per_s))
}

/// Sentence about a step: its rates, what limited them, and what would change it.
fn sentence(step: &Step, result: &RunResult) -> String {
    let (bytes_per_s, operations_per_s) = rates(step);
    let figures = match step.workload.block_bytes {
        1..=65_536 => format!("{}, {}", text::operations(operations_per_s), text::rate(bytes_per_s)),
        _ if bytes_per_s > 0.0 => text::rate(bytes_per_s),
        _ => text::operations(operations_per_s),
    };
    let latencies: Vec<f64> =
        step.rounds.iter().filter_map(|round| Some(round.latency.as_ref()?.p99_ns as f64)).collect();
    let latency = median(&latencies).map(|ns| format!(", 99 % within {}", text::time(ns))).unwrap_or_default();
    let is_sum = step.rounds.iter().any(|round| round.figures.contains_key(FLUSH_ALONE));
    let latency = if is_sum && !latency.is_empty() { latency + " (write and flush measured apart)" } else { latency };
    let limit = limit(step, result).map(|limit| format!("; {limit}")).unwrap_or_default();
    let served = served_from(step).map(|served| format!("; {served}")).unwrap_or_default();
    format!("{}: {figures}{latency}{limit}{served}", step.name)
}

/// Shares of the ceilings that fit a step, with their parts, the largest first.
fn shares<'a>(step: &Step, result: &'a RunResult) -> Vec<(f64, &'a str)> {
    let (bytes_per_s, operations_per_s) = rates(step);
    let workload = &step.workload;
    let is_write = workload.read_percent == 0;
    let is_random = workload.pattern.starts_with("rand");
    let fits = |part: &str, load: &str| match part {
        "client" => load == ceilings::client_load(workload.block_bytes, workload.read_percent < 100),
        "disk" => {
            !is_write && (load.starts_with("random") == is_random) && (!is_random || workload.block_bytes == 4096)
        }
        _ => true,
    };
    let share =
        |measured: f64, bound: Option<f64>| bound.filter(|bound| *bound > 0.0).map_or(0.0, |bound| measured / bound);
    let mut shares: Vec<(f64, &str)> = result
        .ceilings
        .iter()
        .filter(|ceiling| fits(&ceiling.part, &ceiling.load))
        .map(|ceiling| {
            (
                share(bytes_per_s, ceiling.bytes_per_s).max(share(operations_per_s, ceiling.operations_per_s)),
                ceiling.part.as_str(),
            )
        })
        .collect();
    shares.sort_by(|a, b| b.0.total_cmp(&a.0));
    shares
}

/// The part that limits a step, if a figure shows it.
fn limit(step: &Step, result: &RunResult) -> Option<String> {
    let workload = &step.workload;
    let is_write = workload.read_percent == 0;
    let near = shares(step, result).into_iter().find(|(share, _)| *share <= EXCEEDED);
    let busy: Vec<f64> = step.rounds.iter().filter_map(|round| round.machine_busy).collect();
    let busy = median(&busy).unwrap_or_default();
    match near {
        Some((share, part)) if share >= NEAR => {
            let remedy = match part {
                "client" => "a faster client, or several, would show more",
                "link" => "a faster link would change it",
                "disk" => "faster or more disks would change it",
                _ => "nothing outside this machine's memory limits it",
            };
            return Some(format!("limited by the {part} ({} of its ceiling): {remedy}", text::percent(share)));
        }
        _ => {}
    }
    if busy >= 0.9 {
        return Some(format!("limited by this machine's processors ({} busy)", text::percent(busy)));
    }
    if workload.sync && is_write {
        return Some(
            "limited by the time of a flush: a log device with power-loss protection would change it".to_owned(),
        );
    }
    if step.in_flight() == 1 && workload.depth > 0 && workload.block_bytes > 0 {
        return Some("limited by the latency of one operation: more in flight would show more".to_owned());
    }
    None
}

/// Shares of the bytes by the source that served them, if the server's counters are known.
fn served_from(step: &Step) -> Option<String> {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, bytes) in step.rounds.iter().flat_map(|round| &round.server) {
        if let Some(source) = name.strip_prefix("read_bytes.") {
            *sums.entry(source).or_default() += bytes;
        }
    }
    let total: u64 = sums.values().sum();
    if total == 0 || step.workload.read_percent == 0 {
        return None;
    }
    let mut shares: Vec<(&str, f64)> =
        sums.iter().map(|(source, bytes)| (*source, *bytes as f64 / total as f64)).collect();
    shares.sort_by(|a, b| b.1.total_cmp(&a.1));
    let shares: Vec<String> = shares
        .iter()
        .filter(|(_, share)| *share >= 0.005)
        .map(|(source, share)| format!("{} {}", source.replace('_', " "), text::percent(*share)))
        .collect();
    Some(format!("served from {}", shares.join(", ")))
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;

//! Judgements of results with a planted defect or limit.

use super::*;
use crate::load::Load;
use crate::plan::StepPlan;
use crate::result::{Ceiling, Flow, Latency, Round, SCHEMA, Second};

/// A plan of one step, and a result of one steady round of ten seconds of 100 MB/s with 4K operations.
fn made(load: Load) -> (Plan, RunResult) {
    let load = Load { size_bytes: 1 << 30, seconds: 10, ..load };
    let step = StepPlan::fio("step", load);
    let block_bytes = step.workload(true).block_bytes;
    let operations = 1_000_000_000 / block_bytes;
    let flow = Flow { bytes: operations * block_bytes, operations };
    let second = Second { read_bytes: 100_000_000, ..Second::default() };
    let round = Round {
        seconds: 10.0,
        read: if step.writes() { Flow::default() } else { flow },
        written: if step.writes() { flow } else { Flow::default() },
        latency: Some(Latency { p99_ns: 1_000_000, ..Latency::default() }),
        series: vec![second; 10],
        window: crate::steady::window(&[1e8; 10], 1.0),
        disk_read_bytes: Some(1_000_000_000),
        disk_written_bytes: Some(1_000_000_000),
        ..Round::default()
    };
    let result = RunResult {
        schema: SCHEMA.to_owned(),
        warnings: Vec::new(),
        verdict: Vec::new(),
        method: "grid".to_owned(),
        target: "/t".to_owned(),
        command: Vec::new(),
        started_unix_seconds: 0,
        started: String::new(),
        complete: true,
        client: "fio".to_owned(),
        environment: BTreeMap::from([("memory_bytes".to_owned(), (16_u64 << 30).to_string())]),
        ceilings: Vec::new(),
        steps: vec![Step {
            name: step.name.clone(),
            workload: step.workload(true),
            expected: None,
            rounds: vec![round],
        }],
    };
    (Plan { method: "grid", steps: vec![step], data_bytes: 0, data_workers: 1 }, result)
}

fn deep(load: Load) -> Load {
    Load { depth: 32, ..load }
}

/// Rules of the warnings after a change to the result.
fn rules(load: Load, change: impl FnOnce(&mut RunResult)) -> Vec<String> {
    let (plan, mut result) = made(load);
    change(&mut result);
    judge(&mut result, &plan);
    result.warnings.into_iter().map(|warning| warning.rule).collect()
}

fn sentences(load: Load, change: impl FnOnce(&mut RunResult)) -> String {
    let (plan, mut result) = made(load);
    change(&mut result);
    judge(&mut result, &plan);
    result.verdict.join("\n")
}

#[test]
fn a_good_run_has_no_warning() {
    assert!(rules(deep(Load::random(4096, 100)), |_| {}).is_empty());
    assert!(rules(deep(Load::random(4096, 0)), |_| {}).is_empty());
}

#[test]
fn each_defect_has_its_warning() {
    let read = || deep(Load::random(4096, 100));
    let write = || deep(Load::random(4096, 0));
    assert_eq!(rules(read(), |r| r.complete = false), ["incomplete"]);
    let cached = |disk_read_bytes| {
        move |r: &mut RunResult| {
            r.steps[0].workload.direct = false;
            r.steps[0].rounds[0].disk_read_bytes = disk_read_bytes;
        }
    };
    assert_eq!(rules(read(), cached(None)), ["client-cache"]);
    assert_eq!(rules(read(), cached(Some(1_000_000_000))), [""; 0]);
    assert_eq!(rules(read(), |r| r.steps[0].rounds[0].disk_read_bytes = Some(400_000_000)), ["disks-not-reached"]);
    assert_eq!(rules(write(), |r| r.steps[0].rounds[0].disk_written_bytes = Some(1)), ["disks-not-reached"]);
    assert_eq!(rules(read(), |r| r.steps[0].rounds[0].disk_read_bytes = None), [""; 0]);
    assert_eq!(rules(read(), |r| r.steps[0].rounds[0].series.truncate(5)), [""; 0]);
    assert_eq!(rules(read(), |r| r.steps[0].rounds[0].series[0].read_bytes = 500_000_000), ["sums"]);
    assert_eq!(rules(read(), |r| r.steps[0].rounds[0].read.bytes += 32 * 4096), ["sums"]);
    assert_eq!(rules(Load::random(4096, 100), |_| {}), ["depth-1"]);
    let swings: Vec<f64> = (0..10).map(|second| if second % 2 == 0 { 5e7 } else { 1.5e8 }).collect();
    assert_eq!(rules(read(), |r| r.steps[0].rounds[0].window = crate::steady::window(&swings, 1.0)), ["not-steady"]);
    let as_found = |r: &mut RunResult| drop(r.environment.insert("content".to_owned(), "as found".to_owned()));
    assert_eq!(rules(read(), as_found), ["content"]);
}

#[test]
fn the_counters_of_a_server_decide_where_bytes_came_from() {
    let read = || deep(Load::random(4096, 100));
    let from_arc = |r: &mut RunResult| {
        r.steps[0].rounds[0].server =
            BTreeMap::from([("read_bytes.arc_demand".to_owned(), 900), ("read_bytes.disk".to_owned(), 100)]);
    };
    assert_eq!(rules(read(), from_arc), ["disks-not-reached"]);
    let text = sentences(read(), from_arc);
    assert!(text.contains("served from arc demand 90 %, disk 10 %"), "{text}");
}

#[test]
fn the_lowest_ceiling_that_was_reached_is_the_limit() {
    let ceiling = |part: &str, load: &str, rate: f64| Ceiling {
        part: part.to_owned(),
        load: load.to_owned(),
        bytes_per_s: Some(rate),
        operations_per_s: None,
        source: String::new(),
    };
    let read = || deep(Load::random(4096, 100));
    let with = |part: &'static str, load: &'static str, rate: f64| {
        move |r: &mut RunResult| r.ceilings.push(ceiling(part, load, rate))
    };
    assert!(
        sentences(read(), with("client", "4K read", 1.05e8)).contains("limited by the client (95 % of its ceiling)")
    );
    assert!(sentences(read(), with("link", "", 1.1e8)).contains("limited by the link (91 %"));
    assert!(sentences(read(), with("disk", "random read 4K", 1.1e8)).contains("limited by the disk (91 %"));
    for (part, load, rate) in [("client", "1M read", 1.05e8), ("disk", "sequential read", 1.1e8), ("link", "", 2e8)] {
        assert!(!sentences(read(), with(part, load, rate)).contains("limited by"), "{part} {load}");
    }
    let low = |r: &mut RunResult| r.ceilings.push(ceiling("memory", "", 1e7));
    assert!(!sentences(read(), low).contains("limited by the memory"), "a ceiling that was exceeded is no limit");
    assert_eq!(rules(read(), low), ["ceiling-exceeded"]);
    let busy = sentences(read(), |r| r.steps[0].rounds[0].machine_busy = Some(0.97));
    assert!(busy.contains("limited by this machine's processors (97 % busy)"), "{busy}");
    assert!(sentences(Load::random(4096, 100), |_| {}).contains("limited by the latency of one operation"));
    assert!(sentences(Load { sync: true, ..Load::random(4096, 0) }, |_| {}).contains("limited by the time of a flush"));
}

//! Comparisons of results with known differences.

use super::*;
use crate::result::{Flow, Latency, SCHEMA, Warning, Workload};
use crate::statistics::Seeded;

/// Rates that scatter around a centre with a relative deviation.
fn rates(seeded: &mut Seeded, rounds: usize, centre: f64, spread: f64) -> Vec<f64> {
    (0..rounds).map(|_| centre * (1.0 + spread * ((0..12).map(|_| seeded.unit()).sum::<f64>() - 6.0))).collect()
}

fn step(name: &str, rates: &[f64], latencies: &[f64]) -> Step {
    let rounds = rates.iter().zip(latencies).map(|(rate, latency)| Round {
        seconds: 1.0,
        read: Flow { bytes: *rate as u64, operations: *rate as u64 / 4096 },
        latency: Some(Latency { p99_ns: *latency as u64, ..Latency::default() }),
        ..Round::default()
    });
    Step {
        name: name.to_owned(),
        workload: Workload { block_bytes: 4096, ..Workload::default() },
        expected: None,
        rounds: rounds.collect(),
    }
}

fn result(steps: Vec<Step>) -> RunResult {
    RunResult {
        schema: SCHEMA.to_owned(),
        warnings: Vec::new(),
        verdict: Vec::new(),
        method: "quick".to_owned(),
        target: "/pool".to_owned(),
        command: Vec::new(),
        started_unix_seconds: 0,
        started: String::new(),
        complete: true,
        client: "fio-3.33".to_owned(),
        environment: BTreeMap::from([("memory_bytes".to_owned(), "34359738368".to_owned())]),
        ceilings: Vec::new(),
        steps,
    }
}

/// Two results with five steps; rates of the second are `factor` times those of the first.
fn pair(seed: u64, rounds: usize, factor: f64) -> (RunResult, RunResult) {
    let mut seeded = Seeded::new(seed);
    let mut make = |factor: f64| {
        let steps = (0..5).map(|number| {
            let bytes = rates(&mut seeded, rounds, 1e8 * factor, 0.03);
            let latency = rates(&mut seeded, rounds, 1e6, 0.03);
            step(&format!("step {number}"), &bytes, &latency)
        });
        result(steps.collect())
    };
    (make(1.0), make(factor))
}

fn alarms(rows: &[Row]) -> bool {
    rows.iter().any(|row| matches!(row.verdict, Verdict::Better | Verdict::Worse))
}

#[test]
fn equal_systems_raise_at_most_17_false_alarms_in_200_comparisons() {
    let mut false_alarms = 0;
    for seed in 0..200 {
        let (first, second) = pair(seed, 8, 1.0);
        let rows = compare(("a", "b"), &first, &second).rows;
        assert_eq!(rows.len(), 10);
        false_alarms += u32::from(alarms(&rows));
    }
    assert!(false_alarms <= 17, "{false_alarms} of 200");
}

#[test]
fn a_difference_of_5_percent_is_found_in_samples_of_20_with_3_percent_spread() {
    let mut found = 0;
    for seed in 1000..1040 {
        let (first, second) = pair(seed, 20, 1.05);
        let rows = compare(("a", "b"), &first, &second).rows;
        let row = rows.iter().find(|row| row.step == "step 0" && row.figure == "bytes/s").unwrap();
        assert!(row.visible.unwrap() < 0.05, "{row:?}");
        found += u32::from(row.verdict == Verdict::Better);
        assert!(
            rows.iter()
                .all(|row| row.figure != "p99 latency ns" || row.verdict == Verdict::NoDifferenceShown || seed > 1000)
        );
    }
    assert!(found >= 32, "{found} of 40");
}

#[test]
fn higher_latency_is_worse_and_a_slower_rate_too() {
    let slow = step("read", &[50.0, 51.0, 52.0, 49.0, 48.0, 47.0], &[9e6, 9.1e6, 9.2e6, 9.3e6, 9.4e6, 9.5e6]);
    let fast = step("read", &[100.0, 101.0, 102.0, 99.0, 98.0, 97.0], &[1e6, 1.1e6, 1.2e6, 1.3e6, 1.4e6, 1.5e6]);
    let rows = compare(("fast", "slow"), &result(vec![fast]), &result(vec![slow])).rows;
    assert!(rows.iter().all(|row| row.verdict == Verdict::Worse), "{rows:?}");
    assert!((rows[0].shift + 0.5).abs() < 0.02);
}

#[test]
fn six_rounds_are_enough_for_the_figures_of_quick_and_five_are_not() {
    let tests = 12.0;
    assert!(smallest_p(6, 6) * tests <= LEVEL && smallest_p(5, 5) * tests > LEVEL);
}

#[test]
fn three_runs_are_too_few_whatever_they_show() {
    let (first, second) = pair(5, 3, 3.0);
    assert!(compare(("a", "b"), &first, &second).rows.iter().all(|row| row.verdict == Verdict::TooFewRuns));
}

#[test]
fn two_differing_facts_are_not_separated() {
    let (first, mut second) = pair(6, 8, 1.0);
    second.environment.insert("memory_bytes".to_owned(), "137438953472".to_owned());
    let one = compare(("a", "b"), &first, &second);
    assert_eq!(one.differences.len(), 1);
    assert!(one.remarks.is_empty(), "{:?}", one.remarks);
    second.environment.insert("link.eth0.mbit_per_s".to_owned(), "10000".to_owned());
    let two = compare(("a", "b"), &first, &second);
    assert!(two.remarks.iter().any(|remark| remark.contains("cannot be attributed")), "{:?}", two.remarks);
    assert!(two.to_string().contains("differs: link.eth0.mbit_per_s: (unknown) | 10000"));
}

#[test]
fn a_warning_forbids_the_comparison_of_its_step() {
    let (first, mut second) = pair(7, 20, 1.5);
    second.warnings.push(Warning {
        rule: "client-cache".to_owned(),
        step: Some("step 2".to_owned()),
        text: String::new(),
        not_comparable: true,
    });
    let rows = compare(("a", "b"), &first, &second).rows;
    for row in rows.iter().filter(|row| row.figure == "bytes/s") {
        let expected = if row.step == "step 2" { Verdict::NotComparable } else { Verdict::Better };
        assert_eq!(row.verdict, expected, "{row:?}");
    }
}

#[test]
fn steps_and_workloads_that_differ_are_named() {
    let (mut first, mut second) = pair(8, 4, 1.0);
    first.steps[0].workload.depth = 7;
    second.steps.remove(1);
    let compared = compare(("a", "b"), &first, &second);
    assert!(compared.remarks.iter().any(|remark| remark.contains("'step 0' differ")));
    assert!(compared.remarks.iter().any(|remark| remark.contains("only the first result has the step 'step 1'")));
    assert_eq!(compared.rows.len(), 6);
}

//! Comparison of results: is one better, and by how much, or were there too few runs to tell?
//!
//! Each step that the results share is compared in its bytes (or operations) a second and in its 99th percentile of latency. The shift is
//! the median of all differences with a bootstrap interval, the test is Mann and Whitney's with Holm's correction over all figures of
//! the comparison. A verdict other than "no difference shown" needs both: a corrected p of at most 0.05, and an interval without 0.

use crate::result::{Round, RunResult, Step};
use crate::statistics::rank::{holm, mann_whitney, smallest_p};
use crate::statistics::shift::{Shift, shift};
use crate::statistics::{deviation, median};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Probability of any false alarm in a comparison.
pub const LEVEL: f64 = 0.05;

/// Facts that describe how a run was made and not the system: they may differ.
const IGNORED_FACTS: [&str; 1] = ["content"];

/// Outcome of a comparison of one figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The second result is better.
    Better,
    /// The second result is worse.
    Worse,
    /// A difference is not shown; there may be one smaller than the smallest visible effect.
    NoDifferenceShown,
    /// Even results that do not overlap could not have shown a difference.
    TooFewRuns,
    /// A warning of one of the results forbids the comparison.
    NotComparable,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::NoDifferenceShown => "no difference shown",
            Self::TooFewRuns => "too few runs",
            Self::NotComparable => "not comparable",
        })
    }
}

/// Comparison of one figure of one step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Step.
    pub step: String,
    /// Figure, with its unit: `bytes/s`, `operations/s` or `p99 latency ns`.
    pub figure: String,
    /// Median of the first result.
    pub first: f64,
    /// Median of the second result.
    pub second: f64,
    /// Shift as a share of the first median.
    pub shift: f64,
    /// Lower end of its 95 % interval.
    pub low: f64,
    /// Upper end of its 95 % interval.
    pub high: f64,
    /// p of the test after Holm's correction.
    pub p: f64,
    /// Smallest shift that these samples would have shown with a probability of 80 %, as a share of the first median; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub visible: Option<f64>,
    /// Outcome.
    pub verdict: Verdict,
}

/// Comparison of two results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Names of the two results.
    pub names: (String, String),
    /// Facts that differ: name, first value, second value.
    pub differences: Vec<(String, String, String)>,
    /// Limits of what the comparison says.
    pub remarks: Vec<String>,
    /// Figures.
    pub rows: Vec<Row>,
}

/// A figure of rounds, and whether more is better.
struct Figure {
    name: &'static str,
    more_is_better: bool,
    value: fn(&Round) -> Option<f64>,
}

/// Compares a second result with a first one.
#[must_use]
pub fn compare(names: (&str, &str), first: &RunResult, second: &RunResult) -> Comparison {
    let differences = differences(first, second);
    let mut remarks = Vec::new();
    if first.method != second.method {
        remarks.push(format!("the methods differ: {} and {}", first.method, second.method));
    }
    if differences.len() > 1 {
        remarks.push(format!(
            "{} facts differ between the runs: a change cannot be attributed to one of them",
            differences.len()
        ));
    }
    let mut drafts = Vec::new();
    for step in &first.steps {
        let Some(other) = second.steps.iter().find(|other| other.name == step.name) else {
            remarks.push(format!("only the first result has the step '{}'", step.name));
            continue;
        };
        if step.workload != other.workload {
            remarks.push(format!("the workloads of the step '{}' differ; it is left out", step.name));
            continue;
        }
        let is_comparable = first.is_comparable(&step.name) && second.is_comparable(&step.name);
        drafts.extend(figures(step).into_iter().filter_map(|figure| draft(step, other, &figure, is_comparable)));
    }
    let only_second = second.steps.iter().filter(|step| !first.steps.iter().any(|have| have.name == step.name));
    remarks.extend(only_second.map(|step| format!("only the second result has the step '{}'", step.name)));
    Comparison { names: (names.0.to_owned(), names.1.to_owned()), differences, remarks, rows: decide(drafts) }
}

/// Figures in which a step is compared.
fn figures(step: &Step) -> Vec<Figure> {
    let bytes = Figure { name: "bytes/s", more_is_better: true, value: |round| Some(round.bytes_per_s()) };
    let operations =
        Figure { name: "operations/s", more_is_better: true, value: |round| Some(round.operations_per_s()) };
    let latency = Figure {
        name: "p99 latency ns",
        more_is_better: false,
        value: |round| Some(round.latency.as_ref()?.p99_ns as f64),
    };
    let has_bytes = step.rounds.iter().any(|round| round.read.bytes + round.written.bytes > 0);
    vec![if has_bytes { bytes } else { operations }, latency]
}

/// A row without its final p and verdict.
struct Draft {
    row: Row,
    more_is_better: bool,
    raw_p: f64,
    smallest_p: f64,
}

fn draft(first: &Step, second: &Step, figure: &Figure, is_comparable: bool) -> Option<Draft> {
    let values = |step: &Step| step.rounds.iter().filter_map(figure.value).collect::<Vec<f64>>();
    let a = values(first);
    let b = values(second);
    let centre = median(&a)?;
    let other = median(&b)?;
    let Shift { estimate, low, high } = shift(&a, &b, 1)?;
    let share = |value: f64| if centre > 0.0 { value / centre } else { 0.0 };
    let row = Row {
        step: first.name.clone(),
        figure: figure.name.to_owned(),
        first: centre,
        second: other,
        shift: share(estimate),
        low: share(low),
        high: share(high),
        p: 1.0,
        visible: visible(&a, &b).map(share),
        verdict: if is_comparable { Verdict::NoDifferenceShown } else { Verdict::NotComparable },
    };
    let raw_p = mann_whitney(&a, &b).map_or(1.0, |test| test.p);
    Some(Draft { row, more_is_better: figure.more_is_better, raw_p, smallest_p: smallest_p(a.len(), b.len()) })
}

/// Corrects the p of all comparable rows together, and decides.
fn decide(drafts: Vec<Draft>) -> Vec<Row> {
    let tested: Vec<usize> = (0..drafts.len()).filter(|&i| drafts[i].row.verdict != Verdict::NotComparable).collect();
    let corrected = holm(&tested.iter().map(|&i| drafts[i].raw_p).collect::<Vec<f64>>());
    let mut p: Vec<f64> = vec![1.0; drafts.len()];
    for (&i, &value) in tested.iter().zip(&corrected) {
        p[i] = value;
    }
    let tests = tested.len();
    drafts
        .into_iter()
        .zip(p)
        .map(|(draft, p)| {
            let mut row = Row { p, ..draft.row };
            if row.verdict == Verdict::NotComparable {
                return row;
            }
            let is_outside = row.low > 0.0 || row.high < 0.0;
            row.verdict = if draft.smallest_p * tests as f64 > LEVEL {
                Verdict::TooFewRuns
            } else if p > LEVEL || !is_outside {
                Verdict::NoDifferenceShown
            } else if (row.shift > 0.0) == draft.more_is_better {
                Verdict::Better
            } else {
                Verdict::Worse
            };
            row
        })
        .collect()
}

/// Smallest shift that a test of these samples at 0.05 shows with a probability of 80 %, from their spread: (1.960 + 0.842) standard errors, divided by
/// the efficiency of rank tests on normal samples (√(3/π)). In the unit of the samples.
fn visible(a: &[f64], b: &[f64]) -> Option<f64> {
    let first = deviation(a)?;
    let second = deviation(b)?;
    let error = (first.powi(2) / a.len() as f64 + second.powi(2) / b.len() as f64).sqrt();
    Some(2.802 * error / (3.0 / std::f64::consts::PI).sqrt())
}

/// Facts in which the environments differ.
fn differences(first: &RunResult, second: &RunResult) -> Vec<(String, String, String)> {
    let all = |result: &RunResult| {
        let mut facts = result.environment.clone();
        facts.insert("target".to_owned(), result.target.clone());
        facts.insert("client".to_owned(), result.client.clone());
        facts
    };
    let a: BTreeMap<String, String> = all(first);
    let b: BTreeMap<String, String> = all(second);
    let names: std::collections::BTreeSet<&String> =
        a.keys().chain(b.keys()).filter(|name| !IGNORED_FACTS.contains(&name.as_str())).collect();
    let value = |facts: &BTreeMap<String, String>, name: &String| {
        facts.get(name).cloned().unwrap_or_else(|| "(unknown)".to_owned())
    };
    names.into_iter().map(|name| (name.clone(), value(&a, name), value(&b, name))).filter(|(_, a, b)| a != b).collect()
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} compared with {}", self.names.1, self.names.0)?;
        for (name, first, second) in &self.differences {
            writeln!(f, "  differs: {name}: {first} | {second}")?;
        }
        for remark in &self.remarks {
            writeln!(f, "  note: {remark}")?;
        }
        let width = self.rows.iter().map(|row| row.step.chars().count()).max().unwrap_or(0);
        for row in &self.rows {
            let show = |value: f64| match row.figure.as_str() {
                "bytes/s" => crate::text::rate(value),
                "operations/s" => crate::text::operations(value),
                _ => crate::text::time(value),
            };
            let name = match row.figure.as_str() {
                "p99 latency ns" => "p99",
                _ => "rate",
            };
            let visible = row.visible.map(|share| format!(", shows ≥ {:.1} %", share * 100.0)).unwrap_or_default();
            writeln!(
                f,
                "  {:width$}  {name:4}  {:>10} → {:>10}  {:+.1} % [{:+.1}, {:+.1}]  p {:.3}{visible}: {}",
                row.step,
                show(row.first),
                show(row.second),
                row.shift * 100.0,
                row.low * 100.0,
                row.high * 100.0,
                row.p,
                row.verdict
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;

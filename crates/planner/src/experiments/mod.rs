//! The experiments of four published documents, repeated on hardware modelled like theirs.
//!
//! Each row has the document's figures or statements beside those of a simulation. A figure agrees within 25 %, a statement
//! if it holds. Where the first run does not agree, some rows have a second one, with the presumed cause of the difference
//! removed: if its figures agree, the row is *explained*; else it *differs*.
//!
//! Memory and files are divided by a factor k, which the row names, so that a simulation fits into a few GiB; rates and
//! latencies are not scaled.

mod anandtech;
mod gobonniego;
mod hardware;
mod napp_it;
mod power_cut;
mod sun;

use crate::simulate::SimulationError;
use serde::Serialize;

/// Deviation up to which a figure agrees.
const TOLERANCE: f64 = 0.25;

/// A comparison of one figure or statement.
#[derive(Clone, Debug)]
pub enum Check {
    /// A figure.
    Figure {
        /// Name of the figure, with its unit.
        what: String,
        /// The document's.
        document: f64,
        /// The simulation's.
        ours: f64,
    },
    /// A statement of the document, and whether it holds in the simulation.
    Statement {
        /// The statement, with the simulation's figures.
        what: String,
        /// Whether it holds.
        holds: bool,
    },
}

impl Check {
    fn figure(what: impl Into<String>, document: f64, ours: f64) -> Check {
        Check::Figure { what: what.into(), document, ours }
    }

    fn statement(what: impl Into<String>, holds: bool) -> Check {
        Check::Statement { what: what.into(), holds }
    }

    fn deviation(&self) -> Option<f64> {
        match self {
            Check::Figure { document, ours, .. } => Some(ours / document - 1.0),
            Check::Statement { .. } => None,
        }
    }

    fn agrees(&self) -> bool {
        match self {
            Check::Figure { .. } => self.deviation().is_some_and(|deviation| deviation.abs() <= TOLERANCE),
            Check::Statement { holds, .. } => *holds,
        }
    }

    fn text(&self) -> String {
        match self {
            Check::Figure { what, document, ours } => {
                format!("{what}: {} (document {})", short(*ours), short(*document))
            }
            Check::Statement { what, holds: true } => format!("{what}: holds"),
            Check::Statement { what, holds: false } => format!("{what}: does not hold"),
        }
    }
}

fn short(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Results of the runs of a row.
#[derive(Debug, Default)]
pub struct Finding {
    checks: Vec<Check>,
    /// The presumed cause of a difference, and the checks of the run without it.
    without_cause: Option<(String, Vec<Check>)>,
    /// Parameters that are ours, and the factor k.
    note: String,
}

/// Agreement of a row with its document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// All figures and statements agree.
    Agrees,
    /// The figures agree in the run without the named cause.
    Explained,
    /// Some figures do not agree.
    Differs,
}

impl Verdict {
    /// The verdict in a word.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Agrees => "agrees",
            Verdict::Explained => "explained",
            Verdict::Differs => "differs",
        }
    }
}

/// The result of a row, as it is printed and written as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// Id of the experiment.
    pub id: &'static str,
    /// Figures or statements of the document.
    pub document: &'static str,
    /// Figures of the simulation.
    pub ours: String,
    /// Largest deviation of a figure as a share, with its sign; none if there are statements only.
    pub deviation: Option<f64>,
    /// Agreement.
    pub verdict: Verdict,
    /// Reason of the verdict, and parameters.
    pub why: String,
}

type Run = fn() -> Result<Finding, SimulationError>;

/// An experiment.
#[derive(Clone, Copy)]
pub struct Experiment {
    /// Id, as in the list of experiments.
    pub id: &'static str,
    /// Figures or statements of the document.
    pub document: &'static str,
    run: Run,
}

impl Experiment {
    /// All experiments, in the order of the documents.
    pub fn all() -> Vec<Experiment> {
        [&napp_it::ROWS[..], &anandtech::ROWS, &gobonniego::ROWS, &sun::ROWS].concat()
    }

    /// Runs the experiment.
    ///
    /// # Errors
    /// Those of a simulation.
    pub fn run(&self) -> Result<Line, SimulationError> {
        let finding = (self.run)()?;
        let agree = |checks: &[Check]| checks.iter().all(Check::agrees);
        let verdict = match &finding.without_cause {
            _ if agree(&finding.checks) => Verdict::Agrees,
            Some((_, checks)) if agree(checks) => Verdict::Explained,
            _ => Verdict::Differs,
        };
        let text = |checks: &[Check]| checks.iter().map(Check::text).collect::<Vec<_>>().join("; ");
        let deviations = finding.checks.iter().filter_map(Check::deviation);
        let deviation = deviations.max_by(|a, b| a.abs().total_cmp(&b.abs()));
        let mut why = Vec::new();
        if let Some((cause, checks)) = &finding.without_cause
            && verdict != Verdict::Agrees
        {
            why.push(format!("without the presumed cause ({cause}): {}", text(checks)));
        }
        if !finding.note.is_empty() {
            why.push(finding.note.clone());
        }
        let why = why.join(". ");
        Ok(Line { id: self.id, document: self.document, ours: text(&finding.checks), deviation, verdict, why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_of_the_list_is_there_once() {
        let mut ids: Vec<&str> = Experiment::all().iter().map(|experiment| experiment.id).collect();
        let numbers = |letter: char, range: std::ops::RangeInclusive<u32>| range.map(move |n| format!("{letter}{n}"));
        let want =
            numbers('N', 0..=19).chain(numbers('A', 1..=17)).chain(numbers('G', 1..=5)).chain(numbers('S', 1..=6));
        let mut want: Vec<String> = want.collect();
        ids.sort_unstable();
        want.sort_unstable();
        assert_eq!(ids, want);
    }

    #[test]
    fn a_row_agrees_is_explained_or_differs() {
        let of = |run: Run| Experiment { id: "X", document: "100 MB/s", run }.run().unwrap();
        let agrees = of(|| Ok(Finding { checks: vec![Check::figure("MB/s", 100.0, 124.0)], ..Finding::default() }));
        assert_eq!(agrees.verdict, Verdict::Agrees);
        let explained = of(|| {
            let without_cause = Some(("a cable".into(), vec![Check::figure("MB/s", 100.0, 90.0)]));
            Ok(Finding { checks: vec![Check::figure("MB/s", 100.0, 126.0)], without_cause, note: String::new() })
        });
        assert_eq!((explained.verdict, explained.deviation), (Verdict::Explained, Some(0.26)));
        assert!(explained.why.contains("a cable"), "{explained:?}");
        let differs = of(|| Ok(Finding { checks: vec![Check::statement("more", false)], ..Finding::default() }));
        assert_eq!((differs.verdict, differs.deviation), (Verdict::Differs, None));
    }
}

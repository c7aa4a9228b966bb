//! Verdicts of all runs, and the table of docs/zfs-test-suite.md.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::Outcome;
use super::suite::{GROUPS, Suite};
use super::verdicts::{Expected, Verdicts};
use crate::JudgeError;
use crate::kill::failed;
use crate::report::Report;

/// Text before the table.
const ABOUT: &str = include_str!("../../zts/about.md");

/// The last verdict of each test.
pub(super) struct Results {
    file: PathBuf,
    outcomes: BTreeMap<String, Outcome>,
}

impl Results {
    /// Reads the verdicts of earlier runs.
    ///
    /// # Errors
    /// If the file is there and cannot be read.
    pub fn open(file: &Path) -> Result<Results, JudgeError> {
        let text = match std::fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(source) => return Err(JudgeError::Io { what: file.display().to_string(), source }),
        };
        Ok(Results { file: file.to_owned(), outcomes: text.lines().filter_map(parse).collect() })
    }

    /// Sets the verdict of a test.
    pub fn set(&mut self, test: &str, outcome: Outcome) {
        self.outcomes.insert(test.to_owned(), outcome);
    }

    /// Writes the verdicts of all runs.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self) -> Result<(), JudgeError> {
        let mut text = String::new();
        for (test, outcome) in &self.outcomes {
            let (word, reason) = match outcome {
                Outcome::Passed => ("passed", ""),
                Outcome::Failed(reason) => ("failed", reason.as_str()),
                Outcome::NotApplicable(reason) => ("not-applicable", reason.as_str()),
            };
            let reason = reason.replace(['\t', '\n'], " ");
            let _ = writeln!(text, "{test}\t{word}\t{reason}");
        }
        if let Some(folder) = self.file.parent() {
            std::fs::create_dir_all(folder).map_err(|e| failed("a folder", e))?;
        }
        std::fs::write(&self.file, text).map_err(|e| failed("the file of verdicts", e))
    }

    /// Writes docs/zfs-test-suite.md.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_table(&self, suite: &Suite, verdicts: &Verdicts, report: &mut Report) -> Result<(), JudgeError> {
        let place = PathBuf::from("docs/zfs-test-suite.md");
        std::fs::write(&place, self.table(suite, verdicts)).map_err(|e| failed("docs/zfs-test-suite.md", e))?;
        report.pass("table", &place.display().to_string());
        Ok(())
    }

    fn table(&self, suite: &Suite, verdicts: &Verdicts) -> String {
        let mut counts: BTreeMap<String, Counts> = BTreeMap::new();
        let mut reasons: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut failures = String::new();
        for group in suite.groups(&[], |_| true) {
            let row = counts.entry(group.name.clone()).or_default();
            for test in &group.tests {
                // What does not apply may have been run before that was known.
                let outcome = match verdicts.expected(test) {
                    Expected::NotApplicable(reason) => Some(Outcome::NotApplicable(reason)),
                    Expected::Runs => self.outcomes.get(&test.name).cloned(),
                };
                match outcome {
                    Some(Outcome::Passed) => row.passed += 1,
                    Some(Outcome::Failed(why)) => {
                        row.failed += 1;
                        let reason = verdicts.known_failure(&test.name).unwrap_or(&why);
                        let _ = writeln!(failures, "| {} | {} |", test.name, reason.replace('|', "\\|"));
                    }
                    Some(Outcome::NotApplicable(reason)) => {
                        row.not_applicable += 1;
                        reasons.entry(reason).or_default().push(test.name.clone());
                    }
                    None => row.not_run += 1,
                }
            }
        }
        let mut text = ABOUT.to_owned();
        text.push_str("\n| Group | Passed | Failed | Not applicable | Not run |\n|---|---|---|---|---|\n");
        let mut sum = Counts::default();
        for name in GROUPS {
            let rows = counts.iter().filter(|(group, _)| group.split('/').next() == Some(name));
            for (group, row) in rows {
                let _ = writeln!(text, "| {group} | {row} |");
                sum.add(row);
            }
        }
        let _ = writeln!(text, "| **all** | {sum} |");
        let run = sum.passed + sum.failed;
        let _ = writeln!(text, "\nOf the {run} tests that apply and were run, {} passed.", sum.passed);
        text.push_str("\n## Failures\n\n| Test | Reason |\n|---|---|\n");
        text.push_str(&failures);
        text.push_str("\n## Not applicable\n\n| Reason | Tests |\n|---|---|\n");
        for (reason, tests) in reasons {
            let _ = writeln!(text, "| {} | {} |", reason.replace('|', "\\|"), short(&tests));
        }
        text
    }
}

/// Names of tests, the first ones in full.
fn short(tests: &[String]) -> String {
    const NAMED: usize = 4;
    let named: Vec<&str> = tests.iter().take(NAMED).map(String::as_str).collect();
    let more = tests.len().saturating_sub(NAMED);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{rest}", named.join(", "))
}

/// Numbers of tests by their verdicts.
#[derive(Default)]
struct Counts {
    passed: usize,
    failed: usize,
    not_applicable: usize,
    not_run: usize,
}

impl Counts {
    fn add(&mut self, other: &Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.not_applicable += other.not_applicable;
        self.not_run += other.not_run;
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} | {} | {} | {}", self.passed, self.failed, self.not_applicable, self.not_run)
    }
}

fn parse(line: &str) -> Option<(String, Outcome)> {
    let mut fields = line.splitn(3, '\t');
    let test = fields.next()?;
    let word = fields.next()?;
    let reason = fields.next()?.to_owned();
    let outcome = match word {
        "passed" => Outcome::Passed,
        "failed" => Outcome::Failed(reason),
        "not-applicable" => Outcome::NotApplicable(reason),
        _ => return None,
    };
    Some((test.to_owned(), outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_kept_over_runs() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a/zts.tsv");
        let mut results = Results::open(&file).unwrap();
        results.set("rsend/x", Outcome::Failed("it\tfailed".into()));
        results.set("rsend/y", Outcome::Passed);
        results.save().unwrap();
        let again = Results::open(&file).unwrap();
        assert_eq!(again.outcomes.get("rsend/x"), Some(&Outcome::Failed("it failed".into())));
        assert_eq!(again.outcomes.get("rsend/y"), Some(&Outcome::Passed));
    }
}

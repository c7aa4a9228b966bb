//! What a run of cases prints: a line per case, what differs below it, and the closing figures.

use std::io::Write;

use crate::JudgeError;
use crate::compare::Findings;

/// A run of cases.
#[derive(Debug, Default)]
pub struct Report {
    /// Cases without a difference.
    pub passed: u64,
    /// Cases with one, or that could not be judged although everything needed was there.
    pub failed: u64,
    /// Cases that could not be judged for want of something.
    pub skipped: u64,
}

impl Report {
    /// Books a case that passed.
    pub fn pass(&mut self, case: &str, about: &str) {
        self.passed += 1;
        line(&format!("ok    {case}  {about}"));
    }

    /// Books a case that failed, with its differences.
    pub fn fail(&mut self, case: &str, differences: &[String]) {
        self.failed += 1;
        line(&format!("FAIL  {case}"));
        for difference in differences {
            line(&format!("        {difference}"));
        }
    }

    /// Books a case that was not run.
    pub fn skip(&mut self, case: &str, reason: &str) {
        self.skipped += 1;
        line(&format!("skip  {case}  {reason}"));
    }

    /// Books whatever a comparison came to. What is missing on this machine skips the case.
    pub fn book(&mut self, case: &str, outcome: Result<Findings, JudgeError>) {
        match outcome {
            Ok(findings) if findings.is_empty() => {
                let about = format!("{} facts, {} KiB", findings.facts, findings.bytes >> 10);
                self.pass(case, &about);
            }
            Ok(findings) => self.fail(case, &findings.lines()),
            Err(JudgeError::Missing { what }) => self.skip(case, &what),
            Err(error) => self.fail(case, &[error.to_string()]),
        }
    }

    /// Prints the closing line; tells whether nothing failed.
    pub fn close(&self) -> bool {
        line(&format!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped));
        self.failed == 0
    }
}

/// Prints a line at once: whoever watches a long run sees where it is. A closed pipe is the watcher's wish to stop.
pub fn line(text: &str) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{text}").and_then(|()| out.flush()).is_err() {
        std::process::exit(1);
    }
}

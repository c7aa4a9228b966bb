//! Output of a run of cases: a line per case, its differences, and the counts.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use crate::JudgeError;
use crate::compare::Findings;

/// A run of cases.
#[derive(Debug, Default)]
pub struct Report {
    /// Cases without a difference.
    pub passed: u64,
    /// Cases with a difference, or that could not be judged although everything needed was present.
    pub failed: u64,
    /// Cases that could not be judged because something is missing.
    pub skipped: u64,
}

impl Report {
    /// Records a case that passed.
    pub fn pass(&mut self, case: &str, about: &str) {
        self.passed += 1;
        line(&format!("ok    {case}  {about}"));
    }

    /// Records a case that failed, with its differences.
    pub fn fail(&mut self, case: &str, differences: &[String]) {
        self.failed += 1;
        line(&format!("FAIL  {case}"));
        for difference in differences {
            line(&format!("        {difference}"));
        }
    }

    /// Records a case that was not run.
    pub fn skip(&mut self, case: &str, reason: &str) {
        self.skipped += 1;
        line(&format!("skip  {case}  {reason}"));
    }

    /// Records the result of a comparison. A case that misses something on this machine is skipped.
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

    /// Books a case that says in a line what was found.
    pub fn outcome(&mut self, case: &str, outcome: Result<String, JudgeError>) {
        match outcome {
            Ok(about) => self.pass(case, &about),
            Err(JudgeError::Missing { what }) => self.skip(case, &what),
            Err(error) => self.fail(case, &[error.to_string()]),
        }
    }

    /// Prints the counts; returns whether nothing failed.
    pub fn close(&self) -> bool {
        line(&format!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped));
        self.failed == 0
    }
}

/// Does `work` on each of `items`, concurrently on all processors, and calls `each` with each result as it comes.
pub fn side_by_side<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync, mut each: impl FnMut(&T, R)) {
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let (sender, results) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..workers {
            let (sender, next, work) = (sender.clone(), &next, &work);
            scope.spawn(move || {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if sender.send((item, work(item))).is_err() {
                        return;
                    }
                }
            });
        }
        // The results end when the last of the workers does.
        drop(sender);
        results.into_iter().for_each(|(item, result)| each(item, result));
    });
}

/// Prints a line without buffering, so that a long run shows its progress. A closed pipe ends the run.
pub fn line(text: &str) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{text}").and_then(|()| out.flush()).is_err() {
        std::process::exit(1);
    }
}

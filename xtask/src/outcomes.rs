//! Sums of the results of all runs of `cargo xtask test`.

use crate::failures::Failures;
use crate::process::{Outcome, Totals};

/// Results of runs.
#[derive(Default)]
pub struct Outcomes {
    /// Their cases. A run that was left out is one skipped case.
    pub totals: Totals,
    /// Names of the runs that failed.
    pub failed_runs: Vec<String>,
    /// Names of failed tests that may have failed because the machine was busy.
    pub failed_tests: Vec<String>,
    /// The lines about failed cases.
    pub failures: Failures,
}

impl Outcomes {
    /// Adds the results of other runs.
    pub fn add(&mut self, other: Outcomes) {
        self.totals.add(other.totals);
        self.failed_runs.extend(other.failed_runs);
        self.failed_tests.extend(other.failed_tests);
        self.failures.append(&other.failures);
    }

    /// These results, of tests whose failures have no other cause than a fault.
    pub fn without_another_try(mut self) -> Outcomes {
        self.failed_tests.clear();
        self
    }

    /// Takes the failed tests out of the results, so that another try decides, if nothing else failed beside them. Else leaves
    /// everything as it is.
    pub fn take_failed_tests(&mut self) -> Vec<String> {
        let other_failures = self.failed_runs.iter().any(|run| run != "cargo test");
        let known = !self.failed_tests.is_empty();
        if other_failures || !known || self.totals.failed != self.failed_tests.len() as u64 {
            return Vec::new();
        }
        self.totals.failed = 0;
        self.failed_runs.clear();
        std::mem::take(&mut self.failed_tests)
    }

    /// Prints failures and totals. `unreliable` are tests that failed beside others and were tried by themselves.
    pub fn report(mut self, unreliable: &[String]) -> Outcome {
        // A run that ends without totals (a crash, a build error) counts as one failure.
        if !self.failed_runs.is_empty() && self.totals.failed == 0 {
            self.totals.failed = self.failed_runs.len() as u64;
        }
        if self.totals.failed > 0 || !unreliable.is_empty() {
            self.failures.print();
        }
        if self.totals.failed == 0 {
            for name in unreliable {
                println!("unreliable: {name} failed beside other tests and passed by itself");
            }
        }
        let Totals { passed, failed, skipped } = self.totals;
        println!("\n{passed} passed, {failed} failed, {skipped} skipped");
        if self.failed_runs.is_empty() && failed == 0 {
            Ok(())
        } else {
            Err(format!("failed: {}", self.failed_runs.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_tests_get_another_try_only_if_nothing_else_failed() {
        let failed = |run: &str, failed: u64| Outcomes {
            totals: Totals { passed: 7, failed, skipped: 0 },
            failed_runs: vec![run.to_owned()],
            failed_tests: vec!["a".to_owned()],
            failures: Failures::default(),
        };
        let mut all = failed("cargo test", 1);
        assert_eq!(all.take_failed_tests(), ["a"]);
        assert_eq!((all.totals.failed, all.failed_runs.len()), (0, 0));
        assert!(failed("cargo test", 2).take_failed_tests().is_empty(), "one of them is not known by name");
        assert!(failed("a program ended", 1).take_failed_tests().is_empty());
        let not_built = || Outcomes { failed_tests: Vec::new(), ..failed("cargo test", 0) };
        assert!(not_built().take_failed_tests().is_empty() && not_built().report(&[]).is_err());
        assert!(failed("judge kill", 1).take_failed_tests().is_empty());
        assert!(failed("cargo test", 1).without_another_try().take_failed_tests().is_empty());
    }
}

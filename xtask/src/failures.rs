//! The lines about failed tests and cases of all runs, which are printed again before the totals: the output of a whole
//! test run is long, and often only its end is kept.

use std::fmt::Write as _;

/// Lines kept about one failed case, beside its name.
const LINES_PER_CASE: usize = 8;
/// Lines kept about one run.
const LINES_PER_RUN: usize = 60;

/// The failures of all runs.
#[derive(Default)]
pub struct Failures {
    text: String,
}

/// Recognises the lines about failures in the output of one run.
pub struct Run<'a> {
    title: Option<String>,
    text: &'a mut String,
    /// How many lines about the last failed case are still kept.
    details: usize,
    /// Whether these lines are indented; the next one that is not ends them.
    indented: bool,
    left: usize,
}

impl Failures {
    /// Starts with the output of a run.
    pub fn of(&mut self, title: &str) -> Run<'_> {
        Run { title: Some(title.to_owned()), text: &mut self.text, details: 0, indented: true, left: LINES_PER_RUN }
    }

    /// Adds a line about a run.
    pub fn note(&mut self, title: &str, line: &str) {
        let _ = writeln!(self.text, "== {title}\n{line}");
    }

    /// Adds the lines of runs that were made beside these.
    pub fn append(&mut self, other: &Failures) {
        self.text.push_str(&other.text);
    }

    /// Prints all lines, with a headline if there are any.
    pub fn print(&self) {
        if !self.text.is_empty() {
            println!("\n===== failures\n{}", self.text.trim_end());
        }
    }
}

impl Run<'_> {
    /// Keeps the line if it is about a failure: `FAIL  case` of a judge with the indented lines below it, or
    /// `test name ... FAILED` of Rust's test harness and what it prints later below `---- name stdout ----`.
    pub fn line(&mut self, line: &str) {
        let heads_output = line.starts_with("---- ") && line.ends_with(" stdout ----");
        let names_a_case = line.starts_with("FAIL ") || (line.starts_with("test ") && line.ends_with("... FAILED"));
        if names_a_case || heads_output {
            self.details = LINES_PER_CASE;
            self.indented = !heads_output;
        } else if self.details == 0 || (self.indented && !line.starts_with("    ")) {
            self.details = 0;
            return;
        } else if line.is_empty() {
            return;
        } else {
            self.details -= 1;
        }
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        if let Some(title) = self.title.take() {
            let _ = writeln!(self.text, "== {title}");
        }
        let _ = writeln!(self.text, "{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_cases_are_kept_with_their_details() {
        let mut failures = Failures::default();
        let mut run = failures.of("judge x");
        for line in ["ok    a", "    detail of a", "FAIL  b", "        why", "ok    c", "    detail of c"] {
            run.line(line);
        }
        run.line("test d::e ... FAILED");
        run.line("test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out");
        assert_eq!(failures.text, "== judge x\nFAIL  b\n        why\ntest d::e ... FAILED\n");
    }

    #[test]
    fn messages_of_panics_are_kept() {
        let mut failures = Failures::default();
        let mut run = failures.of("tests");
        let message = ["", "thread 'a' (7) panicked at b.rs:1:2:", "assertion failed: c"];
        run.line("---- a stdout ----");
        message.iter().for_each(|line| run.line(line));
        (0..20).for_each(|_| run.line("more"));
        run.line("failures:");
        let text = format!("== tests\n---- a stdout ----\n{}\n{}\n", message[1], message[2]);
        assert_eq!(failures.text, text + &"more\n".repeat(LINES_PER_CASE - 2));
    }

    #[test]
    fn lines_are_bounded() {
        let mut failures = Failures::default();
        let mut run = failures.of("judge x");
        for _ in 0..3 * LINES_PER_RUN {
            run.line("FAIL  b");
            for _ in 0..20 {
                run.line("        why");
            }
        }
        assert_eq!(failures.text.lines().count(), LINES_PER_RUN + 1);
        assert!(
            failures.text.lines().skip(1).take(LINES_PER_CASE + 2).filter(|line| line.starts_with("FAIL")).count() == 2
        );
    }
}

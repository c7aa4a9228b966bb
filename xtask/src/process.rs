//! Runs other programs and reports their failures.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Result of a task; the error is the message to print.
pub type Outcome = Result<(), String>;

/// Numbers of passed, failed and skipped cases of a run.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Cases that passed.
    pub passed: u64,
    /// Cases that failed.
    pub failed: u64,
    /// Cases that were not run; whatever skipped a case printed the reason.
    pub skipped: u64,
}

impl Totals {
    /// Adds another run's numbers.
    pub fn add(&mut self, other: Totals) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// Parses the last line `N passed, N failed, N skipped` of a conformance run.
    pub fn from_last_line(line: &str) -> Option<Totals> {
        let mut totals = Totals::default();
        let mut parts = line.trim().split(", ");
        for (field, word) in
            [(&mut totals.passed, "passed"), (&mut totals.failed, "failed"), (&mut totals.skipped, "skipped")]
        {
            let (number, label) = parts.next()?.split_once(' ')?;
            if label != word {
                return None;
            }
            *field = number.parse().ok()?;
        }
        parts.next().is_none().then_some(totals)
    }

    /// Parses a `test result:` line of Rust's test harness.
    pub fn from_test_result(line: &str) -> Option<Totals> {
        let figures = line.trim().strip_prefix("test result: ")?.split_once(". ")?.1;
        let mut totals = Totals::default();
        for part in figures.split(';') {
            let mut words = part.split_whitespace();
            let (Some(number), Some(label)) = (words.next(), words.next()) else { continue };
            let Ok(number) = number.parse() else { continue };
            match label {
                "passed" => totals.passed = number,
                "failed" => totals.failed = number,
                "ignored" => totals.skipped = number,
                _ => {}
            }
        }
        Some(totals)
    }
}

/// Root folder of the workspace.
pub fn top() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// Cargo's target folder.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| top().join("target"), PathBuf::from)
}

/// Folder of the golden pools: `WEIR_GOLDEN`, else `../shared/golden` beside the workspace; `None` if it does not
/// exist.
pub fn golden() -> Option<PathBuf> {
    let folder = std::env::var_os("WEIR_GOLDEN").map_or_else(|| top().join("../shared/golden"), PathBuf::from);
    folder.is_dir().then_some(folder)
}

/// A cargo command in the workspace root with empty standard input.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(cargo_program());
    command.args(arguments).current_dir(top()).stdin(Stdio::null());
    command
}

/// A command that starts a program at the lowest priority (`nice -n 19`), in the workspace root with empty standard input.
pub fn at_lowest_priority(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", "19"]).arg(program).current_dir(top()).stdin(Stdio::null());
    command
}

/// The cargo that runs this task.
pub fn cargo_program() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Current time, to measure steps.
#[allow(clippy::disallowed_methods, reason = "tasks run in real time")]
fn now() -> Instant {
    Instant::now()
}

/// Runs a command; fails, naming the step, unless it succeeds.
pub fn must(step: &str, command: &mut Command) -> Outcome {
    println!("== {step}");
    let started = now();
    let status = command.status().map_err(|error| format!("{step}: could not start: {error}"))?;
    println!("== {step}: {} s", started.elapsed().as_secs());
    if status.success() { Ok(()) } else { Err(format!("{step}: failed ({status})")) }
}

/// Runs a command, prints its standard output and passes each line to `see`. Returns whether it succeeded; prints the
/// elapsed time.
pub fn watch(step: &str, command: &mut Command, see: impl FnMut(&str)) -> Result<bool, String> {
    watch_beside(step, "", command, see)
}

/// As [`watch`], for a command that runs beside others: `label` begins each line of its output.
pub fn watch_beside(step: &str, label: &str, command: &mut Command, mut see: impl FnMut(&str)) -> Result<bool, String> {
    println!("== {step}");
    let started = now();
    let mut child =
        command.stdout(Stdio::piped()).spawn().map_err(|error| format!("{step}: could not start: {error}"))?;
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).split(b'\n') {
            let line = line.map_err(|error| format!("{step}: {error}"))?;
            let line = String::from_utf8_lossy(&line);
            println!("{label}{line}");
            see(&line);
        }
    }
    let status = child.wait().map_err(|error| format!("{step}: {error}"))?;
    println!("== {step}: {} s", started.elapsed().as_secs());
    Ok(status.success())
}

/// Whether a program of this name is on the PATH.
pub fn on_path(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_last_lines_of_runs_are_parsed() {
        let totals = Totals { passed: 61, failed: 2, skipped: 4 };
        assert_eq!(Totals::from_last_line("61 passed, 2 failed, 4 skipped"), Some(totals));
        assert_eq!(Totals::from_last_line("61 passed, 2 failed"), None);
        assert_eq!(Totals::from_last_line("pool x: 61 passed, 2 failed, 4 skipped"), None);
    }

    #[test]
    fn results_of_failed_tests_are_parsed() {
        let line = "test result: FAILED. 12 passed; 1 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.1s";
        assert_eq!(Totals::from_test_result(line), Some(Totals { passed: 12, failed: 1, skipped: 3 }));
        assert_eq!(Totals::from_test_result("running 3 tests"), None);
    }
}

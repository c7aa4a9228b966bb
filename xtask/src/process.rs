//! Running other programs: one place that knows the workspace's top and how a failure is reported.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// What a chore ends with: nothing, or the line that says why it failed.
pub type Outcome = Result<(), String>;

/// How many cases of a run passed, failed and were skipped.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Tally {
    /// Cases that passed.
    pub passed: u64,
    /// Cases that failed.
    pub failed: u64,
    /// Cases that were not run, each with a reason printed by whoever skipped it.
    pub skipped: u64,
}

impl Tally {
    /// Adds another run's figures.
    pub fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// Reads a closing line `N passed, N failed, N skipped` (of our judges) if this is one.
    pub fn from_closing_line(line: &str) -> Option<Tally> {
        let mut tally = Tally::default();
        let mut parts = line.trim().split(", ");
        for (field, word) in
            [(&mut tally.passed, "passed"), (&mut tally.failed, "failed"), (&mut tally.skipped, "skipped")]
        {
            let (number, label) = parts.next()?.split_once(' ')?;
            if label != word {
                return None;
            }
            *field = number.parse().ok()?;
        }
        parts.next().is_none().then_some(tally)
    }

    /// Reads a `test result:` line of Rust's test harness if this is one.
    pub fn from_test_result(line: &str) -> Option<Tally> {
        let figures = line.trim().strip_prefix("test result: ")?.split_once(". ")?.1;
        let mut tally = Tally::default();
        for part in figures.split(';') {
            let mut words = part.split_whitespace();
            let (Some(number), Some(label)) = (words.next(), words.next()) else { continue };
            let Ok(number) = number.parse() else { continue };
            match label {
                "passed" => tally.passed = number,
                "failed" => tally.failed = number,
                "ignored" => tally.skipped = number,
                _ => {}
            }
        }
        Some(tally)
    }
}

/// The top of the workspace.
pub fn top() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// The folder that cargo builds into.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| top().join("target"), PathBuf::from)
}

/// The golden pools: `WEIR_GOLDEN`, else `../shared/golden` beside the workspace; none if the folder is not there.
pub fn golden() -> Option<PathBuf> {
    let folder = std::env::var_os("WEIR_GOLDEN").map_or_else(|| top().join("../shared/golden"), PathBuf::from);
    folder.is_dir().then_some(folder)
}

/// A cargo command at the workspace's top, with nothing on its standard input.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(top()).stdin(Stdio::null());
    command
}

/// The time, to tell how long a step took.
#[allow(clippy::disallowed_methods, reason = "chores run in real time")]
fn now() -> Instant {
    Instant::now()
}

/// Runs a command to its end and fails, naming the step, unless it succeeded.
pub fn must(step: &str, command: &mut Command) -> Outcome {
    println!("== {step}");
    let started = now();
    let status = command.status().map_err(|error| format!("{step}: could not start: {error}"))?;
    println!("== {step}: {} s", started.elapsed().as_secs());
    if status.success() { Ok(()) } else { Err(format!("{step}: failed ({status})")) }
}

/// Runs a command, shows its standard output line by line, and hands each line to `see`. Tells whether it succeeded, and
/// says how long it took.
pub fn watch(step: &str, command: &mut Command, mut see: impl FnMut(&str)) -> Result<bool, String> {
    println!("== {step}");
    let started = now();
    let mut child =
        command.stdout(Stdio::piped()).spawn().map_err(|error| format!("{step}: could not start: {error}"))?;
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).split(b'\n') {
            let line = line.map_err(|error| format!("{step}: {error}"))?;
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            see(&line);
        }
    }
    let status = child.wait().map_err(|error| format!("{step}: {error}"))?;
    println!("== {step}: {} s", started.elapsed().as_secs());
    Ok(status.success())
}

/// Whether a program of this name stands on the PATH.
pub fn on_path(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_are_read_and_others_are_not() {
        let tally = Tally { passed: 61, failed: 2, skipped: 4 };
        assert_eq!(Tally::from_closing_line("61 passed, 2 failed, 4 skipped"), Some(tally));
        assert_eq!(Tally::from_closing_line("61 passed, 2 failed"), None);
        assert_eq!(Tally::from_closing_line("pool x: 61 passed, 2 failed, 4 skipped"), None);
    }

    #[test]
    fn test_results_are_read_also_when_they_failed() {
        let line = "test result: FAILED. 12 passed; 1 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.1s";
        assert_eq!(Tally::from_test_result(line), Some(Tally { passed: 12, failed: 1, skipped: 3 }));
        assert_eq!(Tally::from_test_result("running 3 tests"), None);
    }
}

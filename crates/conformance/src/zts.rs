//! OpenZFS's own functional test suite, which drives Weir's `zpool`, `zfs`, `zdb` and `zstream`.
//!
//! The suite (Debian's package `zfs-test`) is run as it is unpacked. Its ksh scripts call the commands by name; here these
//! are links to `weir`. Each list of tests gets a [`room::Room`]: namespaces with a root directory whose changes are
//! discarded, three sparse files as disks, a daemon that mounts file systems through FUSE, and no network.
//!
//! ```text
//!   zts/tests.txt: what cannot apply, known failures, the short form ──┐
//!   runfiles/*.run: tests by group ──► room: setup, test, test, …, ────┴► verdicts ──► target/judges/zts.tsv
//!                                      cleanup; a new room after a failure              └► docs/zfs-test-suite.md
//! ```
//!
//! A test that does not apply is not run. A known failure is run; it is a failure of the table with its reason. The run
//! fails if a test fails that is not known, or if one passes that is known to fail. The verdicts of several runs are
//! kept in one file, so that the long form can be made group by group.
#![allow(clippy::disallowed_methods, reason = "judges run other programs in real time")]

mod results;
mod room;
mod suite;
mod verdicts;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::JudgeError;
use crate::kill::failed;
use crate::report::{Report, side_by_side};
use crate::suites::program;
use crate::zdb::Tools;
use results::Results;
use room::{End, Room};
use suite::{Group, Suite, Test};
use verdicts::{Expected, Verdicts};

/// Time for a setup or a cleanup script.
const PREPARES_WITHIN: Duration = Duration::from_secs(600);
/// Time for a test: as much as the suite's own runner gives it.
const TEST_WITHIN: Duration = Duration::from_secs(600);
/// Exit code of a test that found that it cannot run here.
const UNSUPPORTED: i32 = 4;

/// How a test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    /// With the reason that the test printed.
    Failed(String),
    /// With the reason why it does not apply.
    NotApplicable(String),
}

/// Runs the groups whose names begin with the given words (`cli_root/zpool_create`, `rsend`), or all that the issue
/// names. `--short` runs a fixed list of tests that pass; `--table` writes the table of docs/zfs-test-suite.md from the kept
/// verdicts and runs nothing.
///
/// # Errors
/// If the suite, ksh, root or FUSE is missing, or a file cannot be written.
pub fn run(words: &[String], report: &mut Report) -> Result<(), JudgeError> {
    let tools = Tools::find()?;
    let suite = Suite::find(tools.folder())?;
    let verdicts = Verdicts::read()?;
    let flag = |name: &str| words.iter().any(|word| word == name);
    let mut results = Results::open(&kept(tools.folder()))?;
    if flag("--table") {
        return results.write_table(&suite, &verdicts, report);
    }
    prerequisites()?;
    let wanted: Vec<&str> = words.iter().map(String::as_str).filter(|word| !word.starts_with("--")).collect();
    let groups = suite.groups(&wanted, |test| if flag("--short") { verdicts.in_short_form(test) } else { true });
    let scratch = tempfile::Builder::new().prefix("weir-zts-").tempdir().map_err(|e| failed("a folder", e))?;
    let logs = kept(tools.folder()).with_extension("logs");
    let run = Run { suite: &suite, verdicts: &verdicts, scratch: scratch.path(), logs: &logs };
    let mut saved = Ok(());
    side_by_side(
        &groups,
        |group| run.group(group),
        |group, outcomes| match outcomes {
            Ok(outcomes) => {
                // The verdicts of a long run outlive its interruption.
                for (test, outcome) in outcomes {
                    book(report, &verdicts, &test, &outcome);
                    results.set(&test, outcome);
                }
                saved = results.save();
            }
            Err(error) => report.fail(&group.name, &[error.to_string()]),
        },
    );
    saved
}

/// File of the verdicts of all runs: beside the folder of the tools if that is in a target directory, else beside this
/// program.
fn kept(tools: &Path) -> PathBuf {
    let beside = std::env::current_exe().ok().and_then(|exe| exe.ancestors().nth(2).map(Path::to_owned));
    beside.unwrap_or_else(|| tools.to_owned()).join("judges/zts.tsv")
}

fn prerequisites() -> Result<(), JudgeError> {
    let missing = |what: &str| JudgeError::Missing { what: what.to_owned() };
    if !rustix::process::geteuid().is_root() {
        return Err(missing("OpenZFS's test suite needs root"));
    }
    if !Path::new("/dev/fuse").exists() {
        return Err(missing("no /dev/fuse on this machine"));
    }
    for name in ["ksh", "unshare", "nsenter", "bc", "setpriv"] {
        program("WEIR_ZTS_PATH", name)?;
    }
    Ok(())
}

fn book(report: &mut Report, verdicts: &Verdicts, test: &str, outcome: &Outcome) {
    match (outcome, verdicts.known_failure(test)) {
        (Outcome::Passed, None) => report.pass(test, ""),
        (Outcome::Passed, Some(reason)) => {
            report.fail(test, &[format!("passes, although zts/tests.txt names a reason why it fails: {reason}")]);
        }
        (Outcome::Failed(why), None) => report.fail(test, std::slice::from_ref(why)),
        (Outcome::Failed(_), Some(reason)) => report.skip(test, &format!("known failure: {reason}")),
        (Outcome::NotApplicable(reason), _) => report.skip(test, &format!("does not apply: {reason}")),
    }
}

/// A run of groups.
struct Run<'a> {
    suite: &'a Suite,
    verdicts: &'a Verdicts,
    scratch: &'a Path,
    logs: &'a Path,
}

impl Run<'_> {
    /// Runs the tests of a group in order. A room is kept until a test fails or does not end.
    fn group(&self, group: &Group) -> Result<Vec<(String, Outcome)>, JudgeError> {
        let mut outcomes = Vec::new();
        let mut room: Option<Room> = None;
        for test in &group.tests {
            let outcome = match self.verdicts.expected(test) {
                Expected::NotApplicable(reason) => Outcome::NotApplicable(reason),
                Expected::Runs => {
                    let (outcome, left) = self.test(group, test, room.take())?;
                    room = left;
                    outcome
                }
            };
            outcomes.push((test.name.clone(), outcome));
        }
        if let Some(room) = room {
            self.script(&room, group, "cleanup", &self.logs.join(&group.name))?;
        }
        Ok(outcomes)
    }

    /// Runs a test, in a new room unless one is given, and returns the room if it can be used further.
    fn test(&self, group: &Group, test: &Test, room: Option<Room>) -> Result<(Outcome, Option<Room>), JudgeError> {
        let logs = self.logs.join(&group.name);
        let room = match room {
            Some(room) => room,
            None => {
                let room = Room::open(self.scratch, self.suite)?;
                match self.script(&room, group, "setup", &logs)? {
                    Some(Outcome::Failed(why)) if self.verdicts.setup_may_end(&group.name, &why) => {}
                    Some(outcome) => return Ok((outcome, None)),
                    None => {}
                }
                room
            }
        };
        let log = logs.join(format!("{}.log", test.short_name()));
        let end = room.script(&test.script, group.as_root, &log, TEST_WITHIN)?;
        let outcome = outcome(&end, &log);
        let usable = matches!(outcome, Outcome::Passed) || matches!(end, End::Code(UNSUPPORTED));
        Ok((outcome, usable.then_some(room)))
    }

    /// Runs a group's setup or cleanup script, if it has one. `None`: it succeeded.
    fn script(&self, room: &Room, group: &Group, name: &str, logs: &Path) -> Result<Option<Outcome>, JudgeError> {
        let script = group.folder.join(format!("{name}.ksh"));
        if !script.is_file() {
            return Ok(None);
        }
        let log = logs.join(format!("{name}.log"));
        let end = room.script(&script, true, &log, PREPARES_WITHIN)?;
        Ok(match outcome(&end, &log) {
            Outcome::Passed => None,
            Outcome::Failed(why) => Some(Outcome::Failed(format!("{name}: {why}"))),
            Outcome::NotApplicable(why) => Some(Outcome::NotApplicable(format!("{name}: {why}"))),
        })
    }
}

/// Outcome of a script, with the reason from what it printed: the first error, which is that of the test and not of its
/// clean-up, else the last line.
fn outcome(end: &End, log: &Path) -> Outcome {
    let said = std::fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines = || said.lines().map(str::trim).filter(|line| !line.is_empty());
    let error = lines().find(|line| line.starts_with("ERROR: ")).or_else(|| {
        let cleans = |line: &&str| line.starts_with("NOTE: Performing local cleanup");
        lines().take_while(|line| !cleans(line)).last()
    });
    let why = error.unwrap_or("no output").to_owned();
    match end {
        End::Code(0) => Outcome::Passed,
        End::Code(UNSUPPORTED) => {
            let why = lines().rev().find(|line| !line.starts_with("NOTE: ")).unwrap_or("the test says so");
            Outcome::NotApplicable(why.to_owned())
        }
        End::Code(code) => Outcome::Failed(format!("{why} (exit code {code})")),
        End::TimeOut(limit) => Outcome::Failed(format!("not within {} s; {why}", limit.as_secs())),
    }
}

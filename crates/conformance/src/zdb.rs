//! Compares Weir's zdb with OpenZFS's: both walk the same pool, and the figures of `-bcc` must be equal.
//!
//! OpenZFS's figures come from the golden's manifest where it has them (those were taken by a zdb that knows every
//! feature of the pool), else from the zdb of the unpacked tools (`WEIR_ZFS_TOOLS`). Only lines that count are
//! compared: block counts and sizes, per allocation class where both print it. Averages and ratios follow from them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::JudgeError;
use crate::compare::Findings;
use crate::golden::{Unpacked, chosen};
use crate::manifest::Golden;
use crate::process::weir;
use crate::report::{Report, side_by_side};

/// Labels of the lines that count, as OpenZFS prints them. The first number after the label is compared.
const COUNTED: &[&str] = &[
    "bp count:",
    "ganged count:",
    "bp logical:",
    "bp physical:",
    "bp allocated:",
    "bp deduped:",
    "bp cloned:",
    "Normal class:",
    "Special class",
    "Dedup class",
    "Log class",
    "Embedded log class",
];

/// How long zdb may take for a pool of a test.
const PATIENCE_SECONDS: u64 = 120;
/// Exit code of timeout(1) if a program did not end in time.
pub const DID_NOT_END: i64 = 124;
/// Stands for the exit code of a program that a signal ended.
const ENDED_BY_SIGNAL: i64 = -1;

/// OpenZFS's tools on this machine.
pub struct Tools {
    folder: PathBuf,
}

impl Tools {
    /// The unpacked folder: `WEIR_ZFS_TOOLS`, else `target/judges/zfs` above this program.
    ///
    /// # Errors
    /// If it is not there.
    pub fn find() -> Result<Tools, JudgeError> {
        let beside = || {
            let exe = std::env::current_exe().ok()?;
            exe.ancestors().map(|above| above.join("judges/zfs")).find(|folder| folder.is_dir())
        };
        let folder = std::env::var_os("WEIR_ZFS_TOOLS").map(PathBuf::from).or_else(beside);
        folder
            .filter(|folder| folder.join("sbin/zdb").is_file())
            .map(|folder| Tools { folder })
            .ok_or_else(|| JudgeError::Missing { what: "no OpenZFS tools (cargo xtask judge --fetch)".to_string() })
    }

    /// One of the programs, ready to take arguments.
    pub fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.folder.join(name));
        command.env("LD_LIBRARY_PATH", self.folder.join("lib/x86_64-linux-gnu")).stdin(Stdio::null());
        command
    }

    /// One of the programs with a time limit in seconds (by timeout(1), which then exits with [`DID_NOT_END`]).
    pub fn timed(&self, name: &str, seconds: u64) -> Command {
        let mut command = Command::new("timeout");
        command.arg(seconds.to_string()).arg(self.folder.join(name));
        command.env("LD_LIBRARY_PATH", self.folder.join("lib/x86_64-linux-gnu")).stdin(Stdio::null());
        command
    }

    /// Where they are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of zfs-test's files.
    pub fn tests(&self) -> PathBuf {
        self.folder.join("usr/share/zfs/zfs-tests/tests/functional")
    }
}

/// Runs a command to its end and returns its output.
///
/// # Errors
/// If it cannot be started.
pub fn output(command: &mut Command) -> Result<Output, JudgeError> {
    let name = format!("{command:?}");
    command.stdin(Stdio::null()).output().map_err(|source| JudgeError::Io { what: name, source })
}

/// Figures of a `-bcc` report that are compared.
pub fn figures(report: &str) -> BTreeMap<&'static str, Vec<u64>> {
    let mut found: BTreeMap<&'static str, Vec<u64>> = BTreeMap::new();
    for line in report.split(['\n', '\r']).map(str::trim) {
        let Some(label) = COUNTED.iter().find(|label| line.starts_with(**label)) else { continue };
        let number = line.get(label.len()..).unwrap_or_default().trim_start_matches([':', ' ']);
        let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
        if let Ok(number) = digits.parse() {
            found.entry(label).or_default().push(number);
        }
    }
    found
}

/// Share of each class and dedup ratio, as printed.
fn shares(report: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for line in report.split(['\n', '\r']).map(str::trim) {
        for word in ["used:", "deduplication:"] {
            let Some((front, share)) = line.split_once(word) else { continue };
            let Some(label) = COUNTED.iter().find(|label| front.starts_with(**label)) else { continue };
            found.insert(format!("{label} {word}"), share.trim().to_owned());
        }
    }
    found
}

/// `weir zdb -e -p DEVICES POOL -bcc`: exit code and report.
///
/// # Errors
/// If the binary is not there.
pub fn ours(devices: &Path, pool: &str) -> Result<(i64, String), JudgeError> {
    let mut command = Command::new(weir()?);
    report(command.args(["zdb", "-e", "-p"]).arg(devices).arg(pool).arg("-bcc"))
}

/// Returns findings of `weir zdb --invariants` in a few lines; nothing if all invariants hold.
///
/// # Errors
/// If the binary is not there.
pub fn invariants_fault(devices: &Path, pool: &str) -> Result<Option<String>, JudgeError> {
    let mut command = Command::new(weir()?);
    let (code, text) = report(command.args(["zdb", "-e", "-p"]).arg(devices).args([pool, "--invariants"]))?;
    let lines: Vec<&str> = text.lines().take(8).collect();
    Ok((code != 0).then(|| format!("exit {code}: {}", lines.join(" | "))))
}

/// Runs OpenZFS's zdb likewise, and again if a signal ended it: the expected result is what it finds when it does not
/// crash, and a crash that is due to the pool repeats itself.
///
/// # Errors
/// If it is not there.
pub fn theirs(tools: &Tools, devices: &Path, pool: &str) -> Result<(i64, String), JudgeError> {
    let run = || report(tools.program("sbin/zdb").args(["-e", "-p"]).arg(devices).arg(pool).arg("-bcc"));
    let mut outcome = run()?;
    for _ in 0..2 {
        if outcome.0 != ENDED_BY_SIGNAL {
            break;
        }
        outcome = run()?;
    }
    Ok(outcome)
}

/// Returns errors that OpenZFS's `zdb -bcc` finds in a few lines; nothing if it reads every block and each is
/// allocated once.
///
/// # Errors
/// If it cannot be started.
pub fn fault(tools: &Tools, devices: &Path, pool: &str) -> Result<Option<String>, JudgeError> {
    let mut zdb = tools.timed("sbin/zdb", PATIENCE_SECONDS);
    let (code, text) = report(zdb.args(["-e", "-p"]).arg(devices).arg(pool).arg("-bcc"))?;
    Ok((code != 0 || !text.contains("No leaks")).then(|| last_words(code, &text)))
}

/// Returns the lines of `zdb -d` on unreferenced objects and wrong reference counts of features.
///
/// # Errors
/// If it cannot be started.
pub fn counting_fault(tools: &Tools, devices: &Path, pool: &str) -> Result<Option<String>, JudgeError> {
    let mut zdb = tools.timed("sbin/zdb", PATIENCE_SECONDS);
    let (code, text) = report(zdb.args(["-e", "-p"]).arg(devices).args(["-d", pool]))?;
    let wrong: Vec<&str> = text
        .lines()
        .filter(|line| ["leaked", "mismatch", "incorrect"].iter().any(|word| line.contains(word)))
        .collect();
    Ok(match (code, wrong.is_empty()) {
        (0, true) => None,
        (_, true) => Some(last_words(code, &text)),
        (_, false) => Some(format!("exit {code}: {}", wrong.join(" | "))),
    })
}

/// Words in lines of zdb that state why it stops.
const WHY: [&str; 5] = ["ASSERT", "VERIFY", "leaked space", "error", "failed"];

fn last_words(code: i64, text: &str) -> String {
    if code == DID_NOT_END {
        return format!("it did not end within {PATIENCE_SECONDS} s");
    }
    let lines = || text.split(['\n', '\r']).filter(|line| !line.trim().is_empty());
    // If it stops by itself, its last line only shows its position.
    let why: Vec<&str> = lines().filter(|line| WHY.iter().any(|word| line.contains(word))).take(4).collect();
    let mut last: Vec<&str> = lines().rev().take(if why.is_empty() { 6 } else { 1 }).collect();
    last.reverse();
    format!("exit {code}: {}", [why, last].concat().join(" | "))
}

fn report(command: &mut Command) -> Result<(i64, String), JudgeError> {
    let output = output(command)?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    Ok((output.status.code().map_or(ENDED_BY_SIGNAL, i64::from), text))
}

/// Compares two reports with their exit codes.
pub fn compare(ours: &(i64, String), theirs: &(i64, String)) -> Findings {
    let mut findings = Findings::default();
    findings.facts += 1;
    if (ours.0 == 0) != (theirs.0 == 0) {
        let last = ours.1.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        findings.differs(format!("exit code {} where OpenZFS gives {}: {last}", ours.0, theirs.0));
    }
    let our_figures = figures(&ours.1);
    let their_figures = figures(&theirs.1);
    for (label, expected) in &their_figures {
        findings.facts += 1;
        match our_figures.get(label) {
            Some(found) if found == expected => {}
            Some(found) => findings.differs(format!("{label} {found:?}, OpenZFS says {expected:?}")),
            None if expected.iter().all(|figure| *figure == 0) => {}
            None => findings.differs(format!("{label} not printed, OpenZFS says {expected:?}")),
        }
    }
    let our_shares = shares(&ours.1);
    let their_shares = shares(&theirs.1);
    for (label, found) in &our_shares {
        let Some(expected) = their_shares.get(label) else { continue };
        findings.facts += 1;
        if found != expected {
            findings.differs(format!("{label} {found}, OpenZFS says {expected}"));
        }
    }
    for (label, words) in [("no leaks", "No leaks"), ("leaks", "leaked space")] {
        if ours.1.contains(words) != theirs.1.contains(words) {
            findings.differs(format!("only one of both speaks of {label}"));
        }
    }
    findings
}

/// Every golden: our `-bcc` beside OpenZFS's.
///
/// # Errors
/// If the goldens cannot be listed.
pub fn run(folder: &Path, wanted: &[String], report: &mut Report) -> Result<(), JudgeError> {
    let chosen = chosen(folder, wanted)?;
    side_by_side(&chosen, |name| golden(folder, name), |name, outcome| report.book(name, outcome));
    Ok(())
}

fn golden(folder: &Path, name: &str) -> Result<Findings, JudgeError> {
    let golden = Golden::read(folder, name)?;
    let unpacked = Unpacked::new(folder, name)?;
    let expected = match golden.zdb_bcc() {
        Some((code, text)) => (code, text.to_string()),
        None => theirs(&Tools::find()?, unpacked.path(), &golden.pool)?,
    };
    let mut findings = compare(&ours(unpacked.path(), &golden.pool)?, &expected);
    for image in unpacked.changed(&golden)? {
        findings.differs(format!("{image} was written to"));
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "
Traversing all blocks to verify checksums and verify nothing leaked ...

\tNo leaks (block sum matches space maps exactly)

\tbp count:                   331
\tbp allocated:           1187840      avg:   3588     compression:   6.73
\tbp cloned:                    0    count:      0
\tNormal class:           1236992     used:  1.47%
\tEmbedded log class              0     used:  -nan%
";

    #[test]
    fn figures_are_read_and_compared() {
        let found = figures(REPORT);
        assert_eq!(found.get("bp count:"), Some(&vec![331]));
        assert_eq!(found.get("Normal class:"), Some(&vec![1_236_992]));
        assert_eq!(found.get("Embedded log class"), Some(&vec![0]));
        let same = (0, REPORT.to_string());
        assert!(compare(&same, &same).is_empty());
        let other = (3, REPORT.replace("331", "332").replace("No leaks", "leaked space"));
        assert_eq!(compare(&other, &same).lines().len(), 4);
        let other = (0, REPORT.replace("1.47%", "1.48%"));
        assert_eq!(compare(&same, &other).lines(), ["Normal class: used: 1.47%, OpenZFS says 1.48%"]);
    }
}

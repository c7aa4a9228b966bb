//! `zts/tests.txt`: which tests cannot apply to Weir, which are known to fail, and which the short form runs.

use std::path::Path;

use super::suite::{Test, under};
use crate::JudgeError;

/// The data file. Each line has a kind, a name or text, and a reason, separated by tabs.
const LISTS: &str = include_str!("../../zts/tests.txt");

/// The lists.
#[derive(Default)]
pub(super) struct Verdicts {
    /// Names of groups and tests, and the reason.
    not_applicable: Vec<(String, String)>,
    /// Texts in a test's script, and the reason.
    scripts: Vec<(String, String)>,
    /// Texts in the setup of a test's group, and the reason.
    setups: Vec<(String, String)>,
    /// Groups whose setup may end early, and a text in the error at which it does.
    setup_ends: Vec<(String, String)>,
    /// Names of tests, and the reason.
    failures: Vec<(String, String)>,
    /// Names of tests.
    short: Vec<String>,
}

/// Whether a test is run.
pub(super) enum Expected {
    Runs,
    /// With the reason.
    NotApplicable(String),
}

impl Verdicts {
    /// Reads the data file.
    ///
    /// # Errors
    /// If a line is malformed.
    pub fn read() -> Result<Verdicts, JudgeError> {
        parse(LISTS).map_err(|line| JudgeError::Process { command: "zts/tests.txt".to_owned(), why: line })
    }

    /// Whether a test is run, or why it does not apply.
    pub fn expected(&self, test: &Test) -> Expected {
        self.reason_not_to_apply(test).map_or(Expected::Runs, Expected::NotApplicable)
    }

    fn reason_not_to_apply(&self, test: &Test) -> Option<String> {
        if let Some((_, reason)) = self.not_applicable.iter().find(|(name, _)| under(&test.name, name)) {
            return Some(reason.clone());
        }
        let read = |path: &Path| std::fs::read(path).map(|bytes| code(&String::from_utf8_lossy(&bytes)));
        let setup = test.script.with_file_name("setup.ksh");
        let found = |texts: &[(String, String)], path: &Path| {
            let script = read(path).unwrap_or_default();
            texts.iter().find(|(text, _)| script.contains(text.as_str())).map(|(_, reason)| reason.clone())
        };
        found(&self.scripts, &test.script).or_else(|| found(&self.setups, &setup))
    }

    /// Reason why a test is known to fail.
    pub fn known_failure(&self, test: &str) -> Option<&str> {
        self.failures.iter().find(|(name, _)| name == test).map(|(_, reason)| reason.as_str())
    }

    /// Whether the tests of a group are run although its setup ended with this error: what comes after it concerns few of them.
    pub fn setup_may_end(&self, group: &str, error: &str) -> bool {
        self.setup_ends.iter().any(|(name, text)| name == group && error.contains(text.as_str()))
    }

    /// Whether the short form has a test.
    pub fn in_short_form(&self, test: &str) -> bool {
        self.short.iter().any(|name| under(test, name))
    }
}

/// A script without the lines that are comments.
fn code(script: &str) -> String {
    let lines = script.lines().filter(|line| !line.trim_start().starts_with('#'));
    lines.collect::<Vec<_>>().join("\n")
}

fn parse(text: &str) -> Result<Verdicts, String> {
    let mut verdicts = Verdicts::default();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut fields = line.splitn(3, '\t').map(str::trim);
        let (kind, name, reason) = (fields.next(), fields.next(), fields.next().filter(|reason| !reason.is_empty()));
        let with = |reason: &str| (name.unwrap_or_default().to_owned(), reason.to_owned());
        match (kind, name, reason) {
            (Some("not-applicable"), Some(_), Some(reason)) => verdicts.not_applicable.push(with(reason)),
            (Some("script"), Some(_), Some(reason)) => verdicts.scripts.push(with(reason)),
            (Some("setup"), Some(_), Some(reason)) => verdicts.setups.push(with(reason)),
            (Some("setup-ends"), Some(_), Some(text)) => verdicts.setup_ends.push(with(text)),
            (Some("fails"), Some(_), Some(reason)) => verdicts.failures.push(with(reason)),
            (Some("short"), Some(name), None) => verdicts.short.push(name.to_owned()),
            _ => return Err(format!("cannot be read: {line}")),
        }
    }
    Ok(verdicts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_file_can_be_read_and_the_short_form_expects_success() {
        let verdicts = parse(LISTS).unwrap();
        assert!(!verdicts.short.is_empty());
        for name in &verdicts.short {
            assert!(verdicts.failures.iter().all(|(test, _)| !under(test, name)), "{name} is known to fail");
        }
    }

    #[test]
    fn lines_have_a_kind_a_name_and_a_reason() {
        assert!(parse("fails\trsend/x").is_err());
        assert!(parse("short\trsend/x\treason").is_err());
        let verdicts = parse("# text\n\nfails\trsend/x\tit does\nshort\trsend/y\n").unwrap();
        let ends = parse("setup-ends\tcli_user/misc\timport of v1").unwrap();
        assert!(ends.setup_may_end("cli_user/misc", "ERROR: import of v1 (exit code 1)"));
        assert!(
            !ends.setup_may_end("cli_user/misc", "ERROR: zpool create") && !ends.setup_may_end("rsend", "import of v1")
        );
        assert_eq!(verdicts.known_failure("rsend/x"), Some("it does"));
        assert!(verdicts.in_short_form("rsend/y") && !verdicts.in_short_form("rsend/yy"));
    }

    #[test]
    fn comments_of_a_script_are_not_searched() {
        assert_eq!(code("# zinject\nzpool list\n\t# x"), "zpool list");
    }
}

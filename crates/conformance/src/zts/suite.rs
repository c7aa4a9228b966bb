//! The unpacked suite: which tests there are, by its own lists (`runfiles/common.run` and `linux.run`).

use std::path::{Path, PathBuf};

use crate::JudgeError;
use crate::kill::failed;

/// The groups of the table, as folders below `tests/functional`.
pub(super) const GROUPS: [&str; 22] = [
    "cli_root",
    "cli_user",
    "snapshot",
    "rsend",
    "redacted_send",
    "replacement",
    "redundancy",
    "removal",
    "raidz",
    "pool_checkpoint",
    "online_offline",
    "fault",
    "history",
    "quota",
    "reservation",
    "refreserv",
    "userquota",
    "refquota",
    "bclone",
    "channel_program",
    "dedup",
    "slog",
];

/// The suite.
pub(super) struct Suite {
    /// Folder of the unpacked packages.
    pub tools: PathBuf,
    groups: Vec<Group>,
}

/// Tests that share a setup.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// Folder below `tests/functional`, such as `cli_root/zpool_add`.
    pub name: String,
    /// The whole path of the folder.
    pub folder: PathBuf,
    /// Whether its tests run as root; otherwise as an ordinary user, its setup as root.
    pub as_root: bool,
    /// Tests in order.
    pub tests: Vec<Test>,
}

/// One test.
#[derive(Clone, Debug)]
pub(super) struct Test {
    /// Group and name.
    pub name: String,
    /// The ksh script.
    pub script: PathBuf,
}

impl Test {
    /// Name without the group.
    pub fn short_name(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or(&self.name)
    }
}

impl Suite {
    /// Reads the lists of the suite below a folder of unpacked packages.
    ///
    /// # Errors
    /// If it is not there.
    pub fn find(tools: &Path) -> Result<Suite, JudgeError> {
        let share = tools.join("usr/share/zfs");
        let missing =
            || JudgeError::Missing { what: "no test suite among OpenZFS's tools (package zfs-test)".to_owned() };
        if !share.join("zfs-tests/tests/functional").is_dir() {
            return Err(missing());
        }
        let tools = std::fs::canonicalize(tools).map_err(|e| failed("the folder of OpenZFS's tools", e))?;
        let functional = tools.join("usr/share/zfs/zfs-tests/tests/functional");
        let mut groups = Vec::new();
        for list in ["common.run", "linux.run"] {
            let text = std::fs::read_to_string(share.join("runfiles").join(list)).map_err(|_| missing())?;
            for section in parse(&text) {
                add(&mut groups, &functional, section);
            }
        }
        groups.retain(|group: &Group| GROUPS.contains(&group.name.split('/').next().unwrap_or_default()));
        groups.sort_by_key(|group| GROUPS.iter().position(|name| group.name.starts_with(name)));
        Ok(Suite { tools, groups })
    }

    /// Groups, and single tests, whose names begin with one of the words (all without words), with those of their tests that
    /// are `wanted`.
    pub fn groups(&self, words: &[&str], wanted: impl Fn(&str) -> bool) -> Vec<Group> {
        let begins = |name: &str| words.is_empty() || words.iter().any(|word| under(name, word));
        let chosen = self.groups.iter().cloned().map(|mut group| {
            group.tests.retain(|test| begins(&test.name) && wanted(&test.name));
            group
        });
        chosen.filter(|group| !group.tests.is_empty()).collect()
    }
}

/// Whether a name is the word, or below it.
pub(super) fn under(name: &str, word: &str) -> bool {
    name.strip_prefix(word).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A section of a list.
#[derive(Debug, PartialEq, Eq)]
struct Section {
    group: String,
    tests: Vec<String>,
    as_root: bool,
}

/// Sections of functional tests of a list in test-runner's form: `[tests/functional/GROUP]` or, for one system, `…:Linux]`;
/// then `tests = ['A', 'B',` over several lines, and `user =` for tests of ordinary users.
fn parse(text: &str) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    let mut in_tests = false;
    let mut known = false;
    for line in text.lines() {
        if let Some(title) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let group = title.strip_prefix("tests/functional/").map(|name| name.trim_end_matches(":Linux").to_owned());
            known = group.is_some();
            sections.extend(group.map(|group| Section { group, tests: Vec::new(), as_root: true }));
            in_tests = false;
            continue;
        }
        let Some(section) = sections.last_mut().filter(|_| known) else { continue };
        if line.starts_with(char::is_alphabetic) {
            in_tests = line.starts_with("tests =");
            section.as_root &= line.trim() != "user =";
        }
        if in_tests {
            // Names are in single quotes.
            section.tests.extend(line.split('\'').skip(1).step_by(2).map(str::to_owned));
        }
    }
    sections
}

fn add(groups: &mut Vec<Group>, functional: &Path, section: Section) {
    let folder = functional.join(&section.group);
    let tests = section.tests.iter().map(|name| Test {
        name: format!("{}/{name}", section.group),
        script: folder.join(format!("{}.ksh", name.trim_end_matches(".ksh"))),
    });
    let tests: Vec<Test> = tests.filter(|test| test.script.is_file()).collect();
    match groups.iter_mut().find(|group| group.name == section.group) {
        Some(group) => group.tests.extend(tests),
        None => groups.push(Group { name: section.group, folder, as_root: section.as_root, tests }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_groups_tests_and_users() {
        let text = "[DEFAULT]\npre = setup\n\n[tests/functional/cli_user/misc]\ntests = ['a', 'b',\n    'c']\nuser =\ntags = ['x']\n\n\
                    [tests/functional/rsend:Linux]\ntests = ['d']\n[tests/perf/x]\ntests = ['e']\n";
        let section = |group: &str, tests: &[&str], as_root| Section {
            group: group.to_owned(),
            tests: tests.iter().map(|&name| name.to_owned()).collect(),
            as_root,
        };
        assert_eq!(parse(text), [section("cli_user/misc", &["a", "b", "c"], false), section("rsend", &["d"], true)]);
    }

    #[test]
    fn words_choose_by_whole_names() {
        assert!(under("cli_root/zfs", "cli_root") && under("cli_root/zfs", "cli_root/zfs"));
        assert!(!under("cli_root/zfs_set/x", "cli_root/zfs"));
    }
}

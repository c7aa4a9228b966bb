//! smbtorture's tests, one by one, on Weir's share and on the same smbd over this machine's own file system.

use std::path::Path;
use std::process::Command;

use super::server::{PASSWORD, SHARE, Server, USER};
use crate::JudgeError;
use crate::report::{Report, line};
use crate::suites::program;
use crate::zdb::output;

/// Time for one test, in seconds.
const TEST_SECONDS: &str = "90";

/// The tests of the short form: each part of the protocol that depends on the file system.
pub const SHORT: &[&str] = &[
    "smb2.acls.INHERITANCE",
    "smb2.acls.GENERIC",
    "smb2.compound.related1",
    "smb2.connect",
    "smb2.create.open",
    "smb2.create.blob",
    "smb2.delete-on-close-perms.OVERWRITE_IF",
    "smb2.dir.find",
    "smb2.dosmode",
    "smb2.durable-open.open-oplock",
    "smb2.durable-v2-open.open-lease",
    "smb2.ea.acl_xattr",
    "smb2.fileid.unique",
    "smb2.getinfo.fsinfo",
    "smb2.getinfo.qfile_buffercheck",
    "smb2.ioctl.copy_chunk_simple",
    "smb2.ioctl.sparse_file_flag",
    "smb2.lease.request",
    "smb2.lock.rw-exclusive",
    "smb2.maximum_allowed.maximum_allowed",
    "smb2.mkdir",
    "smb2.notify.dir",
    "smb2.openattr",
    "smb2.oplock.batch1",
    "smb2.read.eof",
    "smb2.rename.simple",
    "smb2.rw.rw1",
    "smb2.setinfo",
    "smb2.sharemode.sharemode-access",
    "smb2.streams.io",
    "smb2.streams.names",
    "smb2.timestamps.time_t_0",
    "smb2.winattr",
    "vfs.fruit.read metadata",
    "vfs.fruit.resource fork IO",
    "vfs.fruit.delete",
];

/// Parts of the names of tests that are not run: they measure, never end, need several addresses or the kernel's oplocks, or
/// make tens of thousands of files.
const NOT_RUN: &[&str] = &[
    "bench",
    "scan",
    "multichannel",
    "kernel-oplocks",
    "inotify",
    "maxfid",
    "hold-",
    "netatalk",
    "delay",
    "session.anon",
    "session.bind",
];

/// Tests that pass on the other file system and not on Weir's, and why.
const EXPLAINED: &[(&str, &str)] = &[
    (
        "smb2.acls.DYNAMIC",
        "Windows users pass directories without the right to search them; ZFS, as POSIX, demands it, also of smbd",
    ),
    ("smb2.durable-open.delete_on_close1", "the test expects no allocated bytes for an empty file; ZFS counts 512"),
    ("smb2.durable-open.delete_on_close2", "the test expects no allocated bytes for an empty file; ZFS counts 512"),
];

/// Outcome of one test.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Skipped,
    Failed(String),
}

impl Outcome {
    /// The outcome in smbtorture's output.
    fn of(success: bool, text: &str) -> Outcome {
        let failure = || {
            let mut lines =
                text.lines().skip_while(|line| !line.starts_with("failure:") && !line.starts_with("error:"));
            let said: Vec<&str> = lines.by_ref().take(3).map(str::trim).collect();
            if said.is_empty() { text.lines().last().unwrap_or("no output").to_owned() } else { said.join(" ") }
        };
        match success {
            true if text.lines().any(|line| line.starts_with("skip:")) => Outcome::Skipped,
            true => Outcome::Passed,
            false => Outcome::Failed(failure()),
        }
    }
}

fn test(server: &Server, name: &str, folder: &Path) -> Result<Outcome, JudgeError> {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=2", TEST_SECONDS]).arg(program("WEIR_SMBTORTURE", "smbtorture")?);
    command.arg(format!("//127.0.0.1/{SHARE}")).args(["-p", &server.port.to_string()]);
    command.args(["-U", &format!("{USER}%{PASSWORD}"), name, "--option=client min protocol=SMB2_02"]);
    let output = output(command.current_dir(folder))?;
    let text = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned();
    Ok(match output.status.code() {
        Some(124 | 137) => Outcome::Failed(format!("no end within {TEST_SECONDS} s")),
        _ => Outcome::of(output.status.success(), &text),
    })
}

/// All tests of SMB 2 and later and of macOS's extensions that smbtorture lists.
fn all() -> Result<Vec<String>, JudgeError> {
    let listed = output(Command::new(program("WEIR_SMBTORTURE", "smbtorture")?).arg("--list"))?;
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let names = text.lines().filter(|name| name.starts_with("smb2.") || name.starts_with("vfs.fruit."));
    let names = names.filter(|name| !NOT_RUN.iter().any(|part| name.contains(part)));
    // A test is listed as `smb2.read.eof.eof`: its own name, then that of its case.
    let named = |name: &str| match name.rsplit_once('.') {
        Some((suite, last)) if suite.ends_with(&format!(".{last}")) => suite.to_owned(),
        _ => name.to_owned(),
    };
    Ok(names.map(named).collect())
}

/// Runs the tests on both servers. A test that passes on the other and fails on Weir's is a failure, unless it is explained.
pub fn run(weir: &Server, other: &Server, folder: &Path, long: bool, report: &mut Report) {
    let names = match if long { all() } else { Ok(SHORT.iter().map(ToString::to_string).collect()) } {
        Ok(names) => names,
        Err(JudgeError::Missing { what }) => return report.skip("smb torture", &what),
        Err(error) => return report.fail("smb torture", &[error.to_string()]),
    };
    let mut both = 0;
    let mut neither = 0;
    let mut better = 0;
    for name in &names {
        let case = format!("smb torture {name}");
        match (test(weir, name, folder), test(other, name, folder)) {
            (Ok(Outcome::Passed), Ok(Outcome::Passed)) => both += 1,
            (Ok(Outcome::Passed | Outcome::Skipped), Ok(Outcome::Failed(why))) => {
                better += 1;
                line(&format!("      {case}: passes here alone; beside: {why}"));
            }
            (Ok(Outcome::Failed(why)), Ok(Outcome::Passed)) => {
                match EXPLAINED.iter().find(|(known, _)| known == name) {
                    Some((_, reason)) => report.skip(&case, reason),
                    None => report.fail(&case, &[why]),
                }
            }
            (Ok(_), Ok(_)) => neither += 1,
            (Err(JudgeError::Missing { what }), _) => return report.skip("smb torture", &what),
            (Err(error), _) | (_, Err(error)) => report.fail(&case, &[error.to_string()]),
        }
    }
    let about = format!("{both} of {} tests pass on both, {better} here alone, {neither} on neither", names.len());
    if both > 0 { report.pass("smb torture", &about) } else { report.fail("smb torture", &[about]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_read_from_the_output() {
        assert_eq!(Outcome::of(true, "test: x\nsuccess: x\n"), Outcome::Passed);
        assert_eq!(Outcome::of(true, "test: x\nskip: x [\nno second user\n]\n"), Outcome::Skipped);
        let failed = Outcome::of(false, "test: x\nfailure: x [\n../a.c:7: wrong\n]\n");
        assert_eq!(failed, Outcome::Failed("failure: x [ ../a.c:7: wrong ]".into()));
        assert_eq!(Outcome::of(false, ""), Outcome::Failed("no output".into()));
    }

    #[test]
    fn explained_tests_have_reasons() {
        assert!(EXPLAINED.iter().all(|(name, reason)| name.contains('.') && reason.len() > 20));
    }
}

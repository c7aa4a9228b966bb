//! smbtorture's tests, one by one, on Weir's share and on the same smbd over this machine's own file system.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use super::server::{PASSWORD, Server, USER};
use crate::JudgeError;
use crate::report::{Report, line};
use crate::suites::program;
use crate::zdb::output;

/// Time for one test, in seconds.
const TEST_SECONDS: u32 = 90;
/// Time for tests that make thousands of files: smbd lists the whole directory before it makes each.
const SLOW_SECONDS: u32 = 900;
const SLOW: &[&str] = &["smb2.dir.large-files", "smb2.compound_find.compound_find_close"];

/// The tests of the short form: each part of the protocol that depends on the file system, in tests that pass on both.
pub const SHORT: &[&str] = &[
    "smb2.acls.CREATOR",
    "smb2.acls.DENY1",
    "smb2.acls.GENERIC",
    "smb2.acls.INHERITANCE",
    "smb2.acls.INHERITFLAGS",
    "smb2.acls.MXAC-NOT-GRANTED",
    "smb2.acls.OVERWRITE_READ_ONLY_FILE",
    "smb2.acls.OWNER",
    "smb2.acls.SDFLAGSVSCHOWN",
    "smb2.async_dosmode",
    "smb2.compound.create-write-close",
    "smb2.compound.related1",
    "smb2.compound.related4",
    "smb2.compound.unrelated1",
    "smb2.compound_async.flush_flush",
    "smb2.compound_find.compound_find_related",
    "smb2.connect",
    "smb2.create.delete",
    "smb2.create.dosattr_tmp_dir",
    "smb2.create.dir-alloc-size",
    "smb2.create.mkdir-dup",
    "smb2.create.multi",
    "smb2.delete-on-close-perms.CREATE_IF",
    "smb2.delete-on-close-perms.FIND_and_set_DOC",
    "smb2.delete-on-close-perms.OVERWRITE_IF",
    "smb2.delete-on-close-perms.READONLY",
    "smb2.deny.deny1",
    "smb2.dir.find",
    "smb2.dir.fixed",
    "smb2.dir.many",
    "smb2.dir.sorted",
    "smb2.durable-open.open-lease",
    "smb2.durable-open.open-oplock",
    "smb2.durable-open.reopen2",
    "smb2.durable-v2-open.open-lease",
    "smb2.durable-v2-open.reopen1",
    "smb2.fileid.fileid",
    "smb2.fileid.fileid-dir",
    "smb2.fileid.unique",
    "smb2.fileid.unique-dir",
    "smb2.getinfo.getinfo_access",
    "smb2.getinfo.normalized",
    "smb2.getinfo.qfile_buffercheck",
    "smb2.getinfo.qsec_buffercheck",
    "smb2.ioctl-on-stream",
    "smb2.ioctl.copy-chunk streams",
    "smb2.ioctl.copy_chunk_append",
    "smb2.ioctl.copy_chunk_multi",
    "smb2.ioctl.copy_chunk_overwrite",
    "smb2.ioctl.copy_chunk_simple",
    "smb2.ioctl.copy_chunk_sparse_dest",
    "smb2.ioctl.sparse_file_attr",
    "smb2.ioctl.sparse_file_flag",
    "smb2.ioctl.sparse_hole_dealloc",
    "smb2.ioctl.sparse_punch",
    "smb2.ioctl.sparse_qar",
    "smb2.ioctl.sparse_qar_multi",
    "smb2.lease.break",
    "smb2.lease.request",
    "smb2.lease.upgrade",
    "smb2.lock.rw-exclusive",
    "smb2.lock.rw-shared",
    "smb2.lock.truncate",
    "smb2.maximum_allowed.maximum_allowed",
    "smb2.mkdir",
    "smb2.notify.basedir",
    "smb2.notify.rmdir1",
    "smb2.openattr",
    "smb2.oplock.batch1",
    "smb2.oplock.exclusive1",
    "smb2.read.access",
    "smb2.read.dir",
    "smb2.read.eof",
    "smb2.rename.close-full-information",
    "smb2.rename.msword",
    "smb2.rename.rename_dir_openfile",
    "smb2.rename.simple",
    "smb2.rw.rw1",
    "smb2.rw.rw2",
    "smb2.secleak",
    "smb2.session.encryption-aes-128-gcm",
    "smb2.session.signing-aes-128-gmac",
    "smb2.sharemode.access-sharemode",
    "smb2.sharemode.sharemode-access",
    "smb2.streams.attributes1",
    "smb2.streams.basefile-rename-with-open-stream",
    "smb2.streams.create-disposition",
    "smb2.streams.delete",
    "smb2.streams.dir",
    "smb2.streams.io",
    "smb2.streams.names",
    "smb2.streams.names2",
    "smb2.streams.sharemodes",
    "smb2.streams.zero-byte",
    "smb2.timestamps.freeze-thaw",
    "smb2.timestamps.time_t_-1",
    "smb2.timestamps.time_t_0",
    "smb2.timestamps.time_t_1968",
    "smb2.timestamps.time_t_15032385535",
    "smb2.winattr",
    "vfs.fruit.File without AFP_AfpInfo",
    "vfs.fruit.copy-chunk streams",
    "vfs.fruit.create delete-on-close AFP_AfpInfo",
    "vfs.fruit.creating rsrc with read-only access",
    "vfs.fruit.delete",
    "vfs.fruit.delete AFP_AfpInfo by writing all 0",
    "vfs.fruit.null afpinfo",
    "vfs.fruit.read metadata",
    "vfs.fruit.setinfo eof AFP_AfpInfo",
    "vfs.fruit.stream names",
    "vfs.fruit.write metadata",
    "vfs.fruit.writing_afpinfo",
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
    (
        "smb2.ioctl.sparse_qar_ob1",
        "the test expects holes of 64 KiB; ZFS keeps holes of whole records (recordsize, 128 KiB)",
    ),
    (
        "smb2.notify.valid-req",
        "the number of changes that it counts depends on the time: it fails there, too, now and then",
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
    let seconds = if SLOW.contains(&name) { SLOW_SECONDS } else { TEST_SECONDS };
    let mut command = Command::new("timeout");
    command.args(["--kill-after=2", &seconds.to_string()]).arg(program("WEIR_SMBTORTURE", "smbtorture")?);
    command.arg(format!("//127.0.0.1/{}", server.share)).args(["-p", &server.port.to_string()]);
    command.args(["-U", &format!("{USER}%{PASSWORD}"), name, "--option=client min protocol=SMB2_02"]);
    let output = output(command.current_dir(folder))?;
    let text = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned();
    Ok(match output.status.code() {
        Some(124 | 137) => Outcome::Failed(format!("no end within {seconds} s")),
        _ => Outcome::of(output.status.success(), &text),
    })
}

/// The duration of a test, or why it failed.
///
/// # Errors
/// If smbtorture is not installed.
pub fn seconds_of(server: &Server, name: &str, folder: &Path) -> Result<Result<f32, String>, JudgeError> {
    let from = Instant::now();
    Ok(match test(server, name, folder)? {
        Outcome::Passed => Ok(from.elapsed().as_secs_f32()),
        Outcome::Skipped => Err("skipped".into()),
        Outcome::Failed(why) => Err(why),
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

/// Runs the tests on Weir's server, and on the other one those that do not pass there; the long form runs all on both. A test
/// that passes on the other and fails on Weir's is a failure, unless it is explained.
pub fn run(weir: &Server, other: &Server, folder: &Path, long: bool, report: &mut Report) {
    let names = match if long { all() } else { Ok(SHORT.iter().map(ToString::to_string).collect()) } {
        Ok(names) => names,
        Err(JudgeError::Missing { what }) => return report.skip("smb torture", &what),
        Err(error) => return report.fail("smb torture", &[error.to_string()]),
    };
    let mut passed = 0;
    let mut neither = 0;
    let mut better = 0;
    for name in &names {
        let case = format!("smb torture {name}");
        let here = test(weir, name, folder);
        if !long && matches!(here, Ok(Outcome::Passed)) {
            passed += 1;
            continue;
        }
        let mut pair = (here, test(other, name, folder));
        if let (Ok(Outcome::Failed(why)), Ok(Outcome::Passed)) = &pair {
            // Tests of notifications depend on the time. A line remains.
            line(&format!("      {case}: run again, after: {why}"));
            pair.0 = test(weir, name, folder);
        }
        match pair {
            (Ok(Outcome::Passed), Ok(Outcome::Passed)) => passed += 1,
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
    let on = if long { "on both" } else { "here" };
    let about = format!("{passed} of {} tests pass {on}, {better} here alone, {neither} on neither", names.len());
    if passed > 0 { report.pass("smb torture", &about) } else { report.fail("smb torture", &[about]) }
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

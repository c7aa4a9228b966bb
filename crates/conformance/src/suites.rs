//! Test suites for file systems, by others, on a mounted pool.
//!
//! | Suite | Coverage | Source |
//! |---|---|---|
//! | `pjdfstest` | POSIX's rules for each call, its errors and times | `cargo install pjdfstest`, or `WEIR_PJDFSTEST` |
//! | `fsx` | reads, writes, maps, truncations and holes of one file in any order | `cargo install fsx`, or `WEIR_FSX` |
//! | `stress-ng` | many ways to use files at once, verified | its Debian package |
//! | a tree | a folder of sources copied in, compared, and compared again after a remount | `diff` |
//! | a build | these sources built there and on this machine's own file system, with the same result | `cargo` |
//!
//! A suite that is absent is skipped with a line. At the end the pool is unmounted, and zdb reads every block of it.
//! With `--long` each suite does much more: fsx a million operations; cargo's whole folder of sources is copied.
#![allow(clippy::disallowed_methods, reason = "judges run other programs in real time")]

mod build;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use build::Sources;

use crate::JudgeError;
use crate::kill::{demand_clean, failed, new_pool};
use crate::process::{Mounted, weir};
use crate::report::Report;
use crate::zdb::{Tools, output};

const POOL: &str = "suites";
const DEVICE_BYTES: u64 = 1 << 30;

/// Features of Linux and OpenZFS that pjdfstest does not assume.
pub(crate) const FEATURES: &str = "\
[features]
posix_fallocate = {}
rename_ctime = {}
utimensat = {}
utime_now = {}
[settings]
naptime = 0.05
allow_remount = false
[dummy_auth]
entries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"], [\"bin\", \"bin\"]]
";

/// Weights of fsx's operations. `posix_fallocate` is left to pjdfstest and stress-ng: fsx sometimes calls it for 0
/// bytes, which POSIX refuses, and takes the refusal for a fault of the file system.
pub(crate) const OPERATIONS: &str = "\
[weights]
close_open = 1
read = 10
write = 10
mapread = 5
mapwrite = 5
truncate = 3
fsync = 1
fdatasync = 1
punch_hole = 3
copy_file_range = 3
";

/// The stressors of files that verify what they did.
const STRESSORS: [&str; 24] = [
    "access",
    "chmod",
    "chown",
    "dentry",
    "dir",
    "dup",
    "fallocate",
    "hdd",
    "link",
    "rename",
    "seek",
    "symlink",
    "utime",
    "xattr",
    "mknod",
    "open",
    "touch",
    "flock",
    "filename",
    "fstat",
    "getdent",
    "iomix",
    "revio",
    "sync-file",
];
/// Those of them that write large files.
const WITH_BYTES: [&str; 5] = ["fallocate", "hdd", "iomix", "revio", "sync-file"];

/// A program by the variable that names it, or in the search path.
pub(crate) fn program(variable: &str, name: &str) -> Result<PathBuf, JudgeError> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    let searched = || {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).map(|folder| folder.join(name)).find(|program| program.is_file())
    };
    named.or_else(searched).ok_or_else(|| JudgeError::Missing { what: format!("{name} is not installed") })
}

/// Returns the last lines of a program's output.
fn tail(output: &Output) -> Vec<String> {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    let lines: Vec<String> = text.lines().filter(|line| !line.trim().is_empty()).map(ToString::to_string).collect();
    lines.into_iter().rev().take(12).rev().collect()
}

/// One suite: a description of what passed, or of what did not.
type Verdict = Result<String, Vec<String>>;

/// Tests of pjdfstest that are skipped, by a part of their names, and why. Any other skipped test fails the suite.
const SKIPPED: [(&str, &str); 2] = [
    ("erofs", "they have mount(8) change a mount to read-only, which it cannot do with a FUSE server's"),
    ("link_count_max", "it would need a limit of links that one can reach: here, as in OpenZFS, there is none such"),
];

fn pjdfstest(folder: &Path, config: &Path) -> Result<Verdict, JudgeError> {
    let program = program("WEIR_PJDFSTEST", "pjdfstest")?;
    if !rustix::process::geteuid().is_root() {
        return Err(JudgeError::Missing { what: "pjdfstest needs to be run by root".into() });
    }
    let file = config.join("pjdfstest.toml");
    std::fs::write(&file, FEATURES).map_err(|e| failed("pjdfstest's settings", e))?;
    // Another file system, for what cannot be done between two.
    let output = output(Command::new(program).arg("-c").arg(&file).arg("-p").arg(folder).arg("-s").arg(config))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let summary = text.lines().find(|line| line.starts_with("Summary:")).unwrap_or_default().to_owned();
    let known = |line: &&str| SKIPPED.iter().any(|(name, _)| line.contains(name));
    let skipped = text.lines().filter(|line| line.trim_end().ends_with(" skipped") && !known(line));
    let failed = text.lines().filter(|line| line.contains("FAILED"));
    let mut lines: Vec<String> = failed.chain(skipped).map(ToString::to_string).collect();
    if output.status.success() && summary.contains(" 0 failed,") && lines.is_empty() {
        return Ok(Ok(summary));
    }
    lines.push(summary);
    Ok(Err(lines))
}

/// Operations of one run of fsx. It never unmaps the memory that it maps to read, so that after about half a million
/// operations Linux refuses to map more (`vm.max_map_count`).
const FSX_RUN: u64 = 200_000;

/// Runs fsx on a file of this size with operations up to this size: many small operations meet more orders of
/// events, large ones span many blocks. Many operations are divided into several runs with different seeds.
fn fsx(folder: &Path, config: &Path, sizes: (u64, u64), operations: u64) -> Result<Verdict, JudgeError> {
    let program = program("WEIR_FSX", "fsx")?;
    let file = config.join("fsx.toml");
    let (file_bytes, most_bytes) = sizes;
    let settings = format!("flen = {file_bytes}\n[opsize]\nmax = {most_bytes}\n{OPERATIONS}");
    std::fs::write(&file, settings).map_err(|e| failed("fsx's settings", e))?;
    let mut done = 0;
    let mut seed = 7;
    while done < operations {
        let run = FSX_RUN.min(operations - done);
        let mut command = Command::new(&program);
        command.arg("-f").arg(&file).arg("-P").arg(config).args(["-S", &seed.to_string(), "-N", &run.to_string()]);
        let output = output(command.arg(folder.join("fsx")))?;
        if !output.status.success() {
            return Ok(Err([vec![format!("after {done} operations, seed {seed}")], tail(&output)].concat()));
        }
        (done, seed) = (done + run, seed + 1);
    }
    Ok(Ok(format!("{done} operations")))
}

fn stress(folder: &Path, seconds: u64) -> Result<Verdict, JudgeError> {
    let program = program("WEIR_STRESS_NG", "stress-ng")?;
    let place = folder.join("stress");
    std::fs::create_dir_all(&place).map_err(|e| failed("a folder for stress-ng", e))?;
    let mut command = Command::new(program);
    command.arg("--temp-path").arg(&place).args(["--verify", "--timeout", &format!("{seconds}s")]);
    for stressor in STRESSORS {
        command.args([format!("--{stressor}"), "1".into()]);
    }
    for stressor in WITH_BYTES {
        command.args([format!("--{stressor}-bytes"), "8M".into()]);
    }
    let output = output(&mut command)?;
    let text = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned();
    let wrong: Vec<String> = text.lines().filter(|l| l.contains("fail:")).map(ToString::to_string).collect();
    Ok(match output.status.success() && wrong.is_empty() {
        true => Ok(format!("{} stressors for {seconds} s", STRESSORS.len())),
        false => Err(if wrong.is_empty() { tail(&output) } else { wrong }),
    })
}

fn same_tree(sources: &Path, copy: &Path) -> Result<Verdict, JudgeError> {
    let output = output(Command::new("diff").arg("-r").arg(sources).arg(copy))?;
    Ok(if output.status.success() { Ok("no difference".into()) } else { Err(tail(&output)) })
}

fn copied_tree(sources: &Path, copy: &Path) -> Result<Verdict, JudgeError> {
    let output = output(Command::new("cp").arg("-a").arg(sources).arg(copy))?;
    if output.status.success() { same_tree(sources, copy) } else { Ok(Err(tail(&output))) }
}

fn book(report: &mut Report, case: &str, verdict: Result<Verdict, JudgeError>) {
    match verdict {
        Ok(Ok(about)) => report.pass(case, &about),
        Ok(Err(differences)) => report.fail(case, &differences),
        Err(JudgeError::Missing { what }) => report.skip(case, &what),
        Err(error) => report.fail(case, &[error.to_string()]),
    }
}

/// Packages that are built: small ones; in the long form packages with more dependencies.
fn packages(long: bool) -> &'static [&'static str] {
    if long { &["xtask", "weir-format"] } else { &["xtask"] }
}

/// Folder where cargo keeps the sources of this program's dependencies: some ten thousand files.
pub(crate) fn all_crates() -> Result<PathBuf, JudgeError> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")));
    let folder = home.map(|home| home.join("registry/src")).filter(|folder| folder.is_dir());
    folder.ok_or_else(|| JudgeError::Missing { what: "no folder of crates' sources".into() })
}

/// Runs the suites on a mounted pool.
fn on_mount(folder: &Path, long: bool, report: &mut Report) -> Result<(), JudgeError> {
    let config = tempfile::tempdir().map_err(|e| failed("a folder", e))?;
    let open = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o777);
    std::fs::set_permissions(folder, open).map_err(|e| failed("chmod of the mount", e))?;
    book(report, "suites pjdfstest", pjdfstest(folder, config.path()));
    let (small, large) = if long { (1_000_000, 50_000) } else { (5_000, 5_000) };
    book(report, "suites fsx", fsx(folder, config.path(), (256 << 10, 8 << 10), small));
    book(report, "suites fsx, large", fsx(folder, config.path(), (1 << 20, 64 << 10), large));
    book(report, "suites stress-ng", stress(folder, if long { 60 } else { 5 }));
    let sources = match Sources::copied() {
        Ok(sources) => sources,
        Err(missing) => {
            book(report, "suites tree", Err(missing));
            return Ok(());
        }
    };
    book(report, "suites tree", copied_tree(sources.path(), &folder.join("tree")));
    if long {
        let crates = all_crates().and_then(|crates| copied_tree(&crates, &folder.join("crates")));
        book(report, "suites crates", crates);
    }
    book(report, "suites build", build::both(&sources, &folder.join("build"), packages(long)));
    Ok(())
}

/// Runs all suites that are present, on a pool of its own.
///
/// # Errors
/// If there is no FUSE, or no pool can be made and mounted.
pub fn run(rest: &[String], report: &mut Report) -> Result<(), JudgeError> {
    let long = rest.iter().any(|word| word == "--long");
    weir()?;
    let machine = weir_linux::machine().map_err(|e| failed("machine", e))?;
    let devices = tempfile::tempdir().map_err(|e| failed("a folder", e))?;
    new_pool(&machine, devices.path(), POOL, DEVICE_BYTES)?;
    let mounted = Mounted::writable(devices.path(), POOL)?;
    on_mount(&mounted.path(""), long, report)?;
    let before = build::listing(&mounted.path(""))?;
    mounted.stop()?;
    let tools = Tools::find().ok();
    let mut differences = Vec::new();
    demand_clean(&tools, devices.path(), POOL, "unmounted", &mut differences)?;
    match (tools.is_some(), differences.is_empty()) {
        (false, _) => report.skip("suites zdb", "OpenZFS's tools are not there (set WEIR_ZFS_TOOLS)"),
        (true, true) => report.pass("suites zdb", "no leaks"),
        (true, false) => report.fail("suites zdb", &differences),
    }
    let again = Mounted::writable(devices.path(), POOL)?;
    let after = build::listing(&again.path(""))?;
    match build::differs(&before, &after) {
        none if none.is_empty() => report.pass("suites mounted again", &format!("{} files as they were", after.len())),
        differences => report.fail("suites mounted again", &differences),
    }
    again.stop()
}

//! What the commands print, on pools that OpenZFS made: the text is kept beside this file and compared as a whole.
//! `WEIR_BLESS=1` writes it anew. Without the golden pools (`WEIR_GOLDEN`) the tests say so and pass.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The commands whose text is kept, with the golden that each is run on.
const SHOWN: &[(&str, &[&str])] = &[
    ("dataerr", &["zpool", "status", "-v"]),
    ("dataerr", &["zpool", "list", "-v"]),
    ("dataerr", &["zfs", "list"]),
    ("slog-cache", &["zpool", "status"]),
    ("slog-cache", &["zpool", "list", "-v"]),
    ("slog-cache", &["zpool", "import"]),
    ("props", &["zpool", "get", "all"]),
    ("props", &["zpool", "list", "-j", "--json-int"]),
    ("props", &["zfs", "list", "-t", "all", "-o", "name,used,refer,compression,origin"]),
    ("props", &["zfs", "list", "-Hp", "-s", "used", "-o", "name,used"]),
    ("props", &["zfs", "get", "-r", "-s", "local,received", "atime,compression,mountpoint,acltype"]),
];

/// Invalid command lines, their exit code, and a part of the line on standard error.
const MISUSED: &[(&[&str], i32, &str)] = &[
    (&["zpool"], 2, "missing command"),
    (&["zpool", "frob"], 2, "unrecognized command 'frob'"),
    (&["zpool", "lsit"], 2, "unrecognized command 'lsit'; did you mean 'list'?"),
    (&["zpol"], 2, "unrecognized command 'zpol'; did you mean 'zpool'?"),
    (&["serve", "--nfs-prot", "0", "p"], 2, "invalid option '--nfs-prot'; did you mean '--nfs-port'?"),
    (&["zfs", "list", "-o"], 2, "zfs list: option -o needs a value\nusage: zfs list"),
    (&["zfs", "list", "--json=x"], 2, "zfs list: option --json takes no value"),
    (&["zpool", "list", "-q"], 2, "invalid option '-q'"),
    (&["zpool", "list", "--json-int"], 2, "only works with '-j'"),
    (&["zpool", "list", "-o", "bogus"], 2, "invalid property 'bogus'"),
    (&["zpool", "get"], 2, "missing property argument"),
    (&["zpool", "get", "bogus"], 2, "invalid property 'bogus'"),
    (&["zpool", "get", "-o", "what", "size"], 2, "invalid field 'what'"),
    (&["zpool", "status", "nopool"], 1, "cannot open 'nopool': no such pool"),
    (&["zfs", "frob"], 2, "unrecognized command 'frob'"),
    (&["zfs", "list", "-t", "what"], 2, "invalid type 'what'"),
    (&["zfs", "list", "--json-int"], 2, "only works with '-j'"),
    (&["zfs", "list", "-s", "bogus"], 2, "invalid property 'bogus'"),
    (&["zfs", "get", "-s", "what", "all"], 2, "invalid source 'what'"),
    (&["zfs", "list", "nopool/x"], 1, "cannot open 'nopool/x': dataset does not exist"),
    (&["zfs", "list", "g-props/nothing"], 1, "cannot open 'g-props/nothing': dataset does not exist"),
];

#[test]
fn texts_are_as_kept() {
    let Some(folder) = goldens() else { return };
    let mut differ = Vec::new();
    let mut unpacked: Option<(&str, tempfile::TempDir)> = None;
    for (golden, line) in SHOWN {
        if unpacked.as_ref().is_none_or(|(name, _)| name != golden) {
            unpacked = Some((golden, unpack(&folder, golden)));
        }
        let Some((_, devices)) = &unpacked else { continue };
        let out = weir(line, devices.path());
        assert!(out.status.success(), "{line:?}: {}", String::from_utf8_lossy(&out.stderr));
        // Images are named by where they were found, which is another folder each time.
        let text = String::from_utf8(out.stdout).unwrap().replace(&devices.path().display().to_string(), "DIR");
        let file = expected().join(format!("{golden}.{}.txt", line.join("_").replace(',', "+")));
        if std::env::var_os("WEIR_BLESS").is_some() {
            std::fs::create_dir_all(expected()).unwrap();
            std::fs::write(&file, &text).unwrap();
        } else if std::fs::read_to_string(&file).unwrap_or_default() != text {
            differ.push(format!("{}:\n{text}", file.display()));
        }
    }
    assert!(differ.is_empty(), "not as kept:\n{}", differ.join("\n"));
}

/// OpenZFS on Linux tells disks that are missing from those with bad labels by no other message id than the latter's.
#[test]
fn missing_disks_have_the_message_id_of_openzfs() {
    let Some(folder) = goldens() else { return };
    for golden in ["degraded-raidz1", "degraded-raidz2", "degraded-raidz3-s"] {
        let devices = unpack(&folder, golden);
        let manifest = std::fs::read_to_string(folder.join(format!("{golden}.json"))).unwrap();
        assert!(manifest.contains("ZFS-8000-4J"), "{golden}");
        let out = weir(&["zpool", "status"], devices.path());
        let shown = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(shown.contains("msg/ZFS-8000-4J") && shown.contains(" state: DEGRADED"), "{golden}: {shown}");
    }
}

#[test]
fn misuse_is_one_clear_line_with_its_exit_code() {
    let Some(folder) = goldens() else { return };
    let devices = unpack(&folder, "props");
    for (line, code, what) in MISUSED {
        let out = weir(line, devices.path());
        let error = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(*code), "{line:?}: {error}");
        assert!(error.contains(what), "{line:?}: {error}");
        assert!(out.stdout.is_empty(), "{line:?}");
    }
}

#[test]
fn answers_to_the_names_of_openzfs() {
    let links = tempfile::tempdir().unwrap();
    for name in ["zpool", "zfs"] {
        let link = links.path().join(name);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_weir"), &link).unwrap();
        let out = Command::new(&link).arg("version").output().unwrap();
        assert_eq!(String::from_utf8_lossy(&out.stdout), format!("weir {}\n", env!("CARGO_PKG_VERSION")));
    }
}

/// Runs `--help` of a command and of all commands below it; returns the texts.
fn helps(path: &[String]) -> Vec<String> {
    let out = Command::new(env!("CARGO_BIN_EXE_weir")).args(path).arg("--help").output().unwrap();
    assert!(out.status.success() && out.stderr.is_empty(), "{path:?}: {out:?}");
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(text.contains("Usage: "), "{path:?}: {text}");
    let listed = text.split("\nCommands:\n").nth(1).unwrap_or_default().lines().take_while(|line| !line.is_empty());
    let names: Vec<String> = listed.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect();
    let mut all = vec![text];
    for name in names.into_iter().filter(|name| name != "help") {
        all.extend(helps(&[path, &[name]].concat()));
    }
    all
}

#[test]
fn each_command_prints_help_of_its_own() {
    let texts = helps(&[]);
    assert!(texts.len() > 45, "{} commands", texts.len());
    let different: std::collections::BTreeSet<&String> = texts.iter().collect();
    assert_eq!(different.len(), texts.len());
}

#[test]
fn completions_and_manual_pages_follow_from_the_definitions() {
    let out = Command::new(env!("CARGO_BIN_EXE_weir")).args(["completions", "bash", "zfs"]).output().unwrap();
    let script = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success() && script.contains("WEIR_COMPLETE"), "{script}");
    let dir = tempfile::tempdir().unwrap();
    let out = Command::new(env!("CARGO_BIN_EXE_weir")).arg("man").arg(dir.path()).output().unwrap();
    assert!(out.status.success(), "{out:?}");
    for (page, part) in [("weir.1", "zpool"), ("weir-zfs-list.1", "json"), ("weir-zdb.1", "uberblock")] {
        let text = std::fs::read_to_string(dir.path().join(page)).unwrap();
        assert!(text.contains(part), "{page}: {text}");
    }
}

/// Runs a command; its pools are in `devices`.
fn weir(line: &[&str], devices: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(line).env("WEIR_POOL_DIRS", devices).stdin(Stdio::null());
    command.output().unwrap()
}

fn expected() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/expected")
}

fn goldens() -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden");
    let folder = std::env::var_os("WEIR_GOLDEN").map_or_else(beside, PathBuf::from);
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("skipped: no golden pools (set WEIR_GOLDEN)");
    None
}

fn unpack(folder: &Path, golden: &str) -> tempfile::TempDir {
    let devices = tempfile::tempdir().unwrap();
    let archive = folder.join(format!("{golden}.tar.zst"));
    let mut zstd = Command::new("zstd").arg("-dqc").arg(archive).stdout(Stdio::piped()).spawn().unwrap();
    let stdout = zstd.stdout.take().unwrap();
    let tar = Command::new("tar").args(["-xSf", "-", "-C"]).arg(devices.path()).stdin(stdout).status().unwrap();
    assert!(tar.success() && zstd.wait().unwrap().success(), "cannot unpack {golden}");
    devices
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let device = folder.path().join("d0");
    std::fs::File::create(&device).unwrap().set_len(128 << 20).unwrap();
    let ok = |line: &[&str]| assert!(weir(line, folder.path()).status.success(), "{line:?}");
    ok(&["zpool", "create", "full", device.to_str().unwrap()]);
    ok(&["zfs", "snapshot", "full@1"]);
    for line in [&["zfs", "send", "full@1"][..], &["zfs", "list"], &["zpool", "status"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(line).env("WEIR_POOL_DIRS", folder.path());
        let device = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let out = command.stdout(device).output().unwrap();
        let error = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(1), "{line:?}: {error}");
        assert!(error.starts_with("cannot write to standard output: No space left"), "{line:?}: {error}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let out = command.stdout(writer).output().unwrap();
        assert_eq!((out.status.code(), out.stderr.as_slice()), (Some(141), &b""[..]), "{line:?}");
    }
}

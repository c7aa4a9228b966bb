//! Pools that are served and written: the demo from its first run to its second, and a server that is killed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::disallowed_methods, reason = "ports that are in use are real ones")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

thread_local! {
    /// State and runtime directory of a test: each test has a thread of its own.
    static STATE: tempfile::TempDir = tempfile::tempdir().unwrap();
}

fn weir(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(words).stdin(Stdio::null());
    STATE.with(|state| command.env("STATE_DIRECTORY", state.path()).env("RUNTIME_DIRECTORY", state.path().join("run")));
    command
}

fn ok(words: &[&str]) -> String {
    let out = weir(words).output().unwrap();
    assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// Demands a pool's invariants, and that OpenZFS's zdb, if present (`WEIR_ZFS_TOOLS`), counts every block of it.
fn check(folder: &Path, pool: &str) {
    ok(&["zdb", "-e", "-p", folder.to_str().unwrap(), pool, "--invariants"]);
    let Some(tools) = std::env::var_os("WEIR_ZFS_TOOLS").map(PathBuf::from) else { return };
    let mut zdb = Command::new(tools.join("sbin/zdb"));
    zdb.env("LD_LIBRARY_PATH", tools.join("lib/x86_64-linux-gnu"));
    let out = zdb.args(["-e", "-p"]).arg(folder).args([pool, "-bcc"]).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && text.contains("No leaks"), "zdb: {text}{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn the_demo_makes_its_pool_once_and_leaves_it_clean() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    let first = ok(&["demo", "--once", "--dir", folder]);
    for said in [
        "making a pool",
        "mount -t nfs -o rw",
        "demo/volume",
        "iscsi-inq iscsi://",
        "nbdinfo nbd://",
        "macOS:",
        "Windows",
        "all users may write",
        "of the bytes read:",
    ] {
        assert!(first.contains(said), "{said}: {first}");
    }
    check(dir.path(), "demo");
    let second = ok(&["demo", "--once", "--dir", folder]);
    assert!(second.contains("opening the pool"), "{second}");
    check(dir.path(), "demo");
    let names = ok(&["zfs", "list", "-d", folder, "-H", "-o", "name"]);
    assert_eq!(names, "demo\ndemo/files\ndemo/volume\n");
}

#[test]
fn ports_of_the_demo_can_be_chosen_and_must_then_be_free() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for option in ["--nfs-port", "--nbd-port", "--iscsi-port", "--http-port"] {
        let out = weir(&["demo", "--once", "--dir", folder, option, &port]).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(1), "{option}: {said}");
        let is_clear = said.contains("\nweir demo: cannot listen on 127.0.0.1:") && said.contains(&port);
        assert!(is_clear && said.contains(&format!("; {option} chooses another port")), "{said}");
    }
    drop(taken);
    // Another process may take a free port before the demo does.
    let chosen = (0..10).any(|_| {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
        let out = weir(&["demo", "--once", "--dir", folder, "--nfs-port", "0", "--nbd-port", &free]).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success() || said.contains("Address already in use"), "{said}");
        out.status.success() && String::from_utf8_lossy(&out.stdout).contains(&format!(":{free}/"))
    });
    assert!(chosen, "the demo does not listen on a free port that was chosen");
    assert_eq!(weir(&["demo", "--nfs-port", "70000"]).output().unwrap().status.code(), Some(2));
}

/// A server that is up, and the address of its volumes.
fn serve(folder: &str) -> (Child, String) {
    let words = ["serve", "-d", folder, "--nfs-port", "0", "--nbd-port", "0", "--rw", "127.0.0.0/8", "p"];
    let mut child = weir(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut uri = String::new();
    for line in lines.by_ref() {
        if let Some(at) = line.find("nbd://") {
            uri = line[at..].to_owned();
        }
        if line == "ready" {
            return (child, uri);
        }
    }
    let ended = child.wait().unwrap();
    panic!("the server ended: {ended}");
}

#[test]
fn the_demo_overwrites_no_file_that_it_did_not_make() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    let demo = |words: &[&str]| weir(&[&["demo", "--once", "--dir", folder], words].concat()).output().unwrap();
    let path = |name: &str| dir.path().join(name);
    let file = std::fs::File::create(path("disk3")).unwrap();
    file.set_len(1 << 30).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"\x53\xef", 1080).unwrap();
    std::fs::write(path("log"), b"what the boiler did\n").unwrap();
    std::fs::hard_link(path("log"), path("diary")).unwrap();
    for (name, what) in [("disk3", "ext4"), ("log", "data of an unknown kind")] {
        let out = demo(&[]);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(1), "{said}");
        assert!(said.contains(path(name).to_str().unwrap()) && said.contains(what), "{said}");
        assert!(said.contains("--dir") && said.contains("-f"), "{said}");
        assert!(!path("disk0").exists(), "nothing was made");
        if name == "disk3" {
            std::fs::remove_file(path("disk3")).unwrap();
        }
    }
    // One disk fewer is a degraded pool, not a reason to make it anew; -f replaces names, not contents.
    let made = demo(&["-f"]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    assert_eq!(std::fs::read(path("diary")).unwrap(), b"what the boiler did\n");
    std::fs::remove_file(path("disk5")).unwrap();
    let again = demo(&[]);
    assert!(String::from_utf8_lossy(&again.stdout).contains("opening the pool"), "{again:?}");
    assert!(!path("disk5").exists());
}

/// Messages of the log go to standard error with a time stamp; `WEIR_LOG` selects them.
#[test]
fn a_server_logs_to_standard_error() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    let disk = format!("{folder}/d0");
    std::fs::File::create(&disk).unwrap().set_len(128 << 20).unwrap();
    ok(&["zpool", "create", "p", &disk]);
    let logged = |level: &str| {
        let words = ["serve", "-d", folder, "--nfs-port", "0", "--nbd-port", "0", "p"];
        let mut command = weir(&words);
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let mut child = command.env("WEIR_LOG", level).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line == "ready"));
        child.kill().unwrap();
        child.wait().unwrap();
        std::fs::read_to_string(dir.path().join("log")).unwrap()
    };
    let lines = logged("trace");
    let year = |line: &str| line.get(..2) == Some("20") && line.contains("TRACE weir_");
    assert!(lines.lines().any(year), "{lines}");
    assert!(!logged("off").contains("TRACE"));
}

#[test]
fn the_memory_limits_are_shown_and_can_be_set() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    let disk = format!("{folder}/d0");
    std::fs::File::create(&disk).unwrap().set_len(128 << 20).unwrap();
    ok(&["zpool", "create", "p", &disk]);
    let line = ["serve", "-d", folder, "--nfs-port", "0", "--nbd-port", "0"];
    let said = |words: &[&str], environment: Option<&str>| {
        let mut command = weir(&[&line[..], words, &["p"]].concat());
        command.envs(environment.map(|value| ("WEIR_DIRTY_MAX", value)));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        if lines.any(|line| line == "ready") {
            let pid = rustix::process::Pid::from_child(&child);
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        }
        drop(lines);
        String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap()
    };
    let usual = said(&[], None);
    assert!(usual.contains("memory: ARC at most ") && usual.contains("dirty data at most "), "{usual}");
    let set = said(&["--arc-max", "48M"], Some("20M"));
    assert!(set.contains("ARC at most 48M, dirty data at most 20M"), "{set}");
    assert!(said(&["--dirty-max", "1k"], None).contains("--dirty-max takes a size of at least 16M"));
}

#[test]
fn what_was_flushed_outlives_a_server_that_is_killed() {
    if Command::new("qemu-io").arg("--version").output().is_err() {
        eprintln!("skipped: no qemu-io");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    let disks: Vec<String> = (0..2).map(|i| format!("{folder}/d{i}")).collect();
    for disk in &disks {
        std::fs::File::create(disk).unwrap().set_len(256 << 20).unwrap();
    }
    ok(&["zpool", "create", "p", "mirror", &disks[0], &disks[1]]);
    ok(&["zfs", "create", "--dir", folder, "-s", "-V", "64M", "p/v"]);
    let qemu = |uri: &str, commands: &[&str]| {
        let commands = commands.iter().flat_map(|command| ["-c", command]);
        let out = Command::new("qemu-io").args(["-f", "raw"]).args(commands).arg(uri).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success() && !text.contains("failed"), "{text}{}", String::from_utf8_lossy(&out.stderr));
    };
    let (mut server, uri) = serve(folder);
    qemu(
        &uri,
        &["write -P 0xaa 0 4M", "write -P 0xbb 9M 512", "flush", "write -f -P 0xcc 20M 64k", "write -z 1M 1M", "flush"],
    );
    // The server does it.
    ok(&["zfs", "create", "--dir", folder, "p/w"]);
    server.kill().unwrap();
    server.wait().unwrap();
    check(dir.path(), "p");
    let (mut server, uri) = serve(folder);
    let reads =
        ["read -P 0xaa 0 1M", "read -P 0 1M 1M", "read -P 0xaa 2M 2M", "read -P 0xbb 9M 512", "read -P 0xcc 20M 64k"];
    for read in reads {
        let out = Command::new("qemu-io").args(["-f", "raw", "-c", read, &uri]).output().unwrap();
        let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success() && !text.contains("Pattern verification failed"), "{read}: {text}");
    }
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(server.wait().unwrap().success());
    check(dir.path(), "p");
    ok(&["zfs", "create", "--dir", folder, "-o", "sync=disabled", "p/x"]);
    let (mut server, _) = serve(folder);
    rustix::process::kill_process(rustix::process::Pid::from_child(&server), rustix::process::Signal::TERM).unwrap();
    let mut said = String::new();
    std::io::Read::read_to_string(&mut server.stderr.take().unwrap(), &mut said).unwrap();
    assert!(server.wait().unwrap().success());
    assert!(said.starts_with("p/x: sync=disabled"), "{said}");
}

/// A mount that ends with this.
struct Mount(Child);

impl Mount {
    /// `None` with one line where there is no FUSE.
    fn new(folder: &str, pool: &str, at: &Path) -> Option<Self> {
        if !Path::new("/dev/fuse").exists() {
            eprintln!("skipped: no /dev/fuse");
            return None;
        }
        let mut child = weir(&["mount", "-d", folder, pool]).arg(at).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        for line in lines {
            if line.trim() == "ready" {
                return Some(Mount(child));
            }
        }
        eprintln!("skipped: it cannot be mounted: {}", child.wait().unwrap());
        None
    }

    fn end(mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

/// A directory with the pool `p`, and an empty one to mount it at.
fn pool_and_mount_point() -> [tempfile::TempDir; 2] {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("d");
    std::fs::File::create(&disk).unwrap().set_len(256 << 20).unwrap();
    ok(&["zpool", "create", "p", disk.to_str().unwrap()]);
    [dir, tempfile::tempdir().unwrap()]
}

/// Runs another program on a file; returns its success and output, or `None` if the program is absent.
fn run_in(program: &str, words: &[&str], at: &Path) -> Option<(bool, String)> {
    let out = Command::new(program).args(words).arg(at).output().ok()?;
    Some((out.status.success(), String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned()))
}

#[test]
fn a_pool_with_a_busy_mount_is_not_exported_unless_forced() {
    let [dir, at] = pool_and_mount_point();
    let folder = dir.path().to_str().unwrap();
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root learns whether a mount is busy");
        return;
    }
    let Some(mut mount) = Mount::new(folder, "p", at.path()) else { return };
    // It works in a directory of the mount, and has no file open.
    let mut user = Command::new("sleep").arg("600").current_dir(at.path()).spawn().unwrap();
    let refused = weir(&["zpool", "export", "-d", folder, "p"]).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    let busy = format!("cannot unmount '{}': pool or dataset is busy", at.path().display());
    assert!(refused.status.code() == Some(1) && said.contains(&busy), "{said}");
    assert!(mount.0.try_wait().unwrap().is_none(), "the mount is still served");
    user.kill().unwrap();
    user.wait().unwrap();
    ok(&["zpool", "export", "-d", folder, "p"]);
    assert!(mount.0.wait().unwrap().success());
}

#[test]
fn rewritten_files_take_new_properties_and_keep_contents_times_and_holes() {
    let [dir, at] = pool_and_mount_point();
    let folder = dir.path().to_str().unwrap();
    ok(&["zfs", "create", "-d", folder, "-o", "compression=off", "p/fs"]);
    let Some(mount) = Mount::new(folder, "p", at.path()) else { return };
    let inner = at.path().join("fs/inner");
    std::fs::create_dir_all(&inner).unwrap();
    // Text, a hole of 4 MiB, and a last block that is not full.
    let text: Vec<u8> = b"the same words again and again ".iter().copied().cycle().take(5_000_001).collect();
    let path = inner.join("file");
    std::fs::write(&path, &text).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &text, 12 << 20).unwrap();
    drop(file);
    let before = std::fs::metadata(&path).unwrap();
    let contents = std::fs::read(&path).unwrap();
    let referenced = || -> u64 {
        ok(&["zpool", "sync", "-d", folder, "p"]);
        ok(&["zfs", "get", "-d", folder, "-Hpo", "value", "referenced", "p/fs"]).trim().parse().unwrap()
    };
    let uncompressed = referenced();
    ok(&["zfs", "snapshot", "-d", folder, "p/fs@before"]);
    ok(&["zfs", "set", "-d", folder, "compression=lz4", "p/fs"]);
    let name = path.to_str().unwrap();
    // Up to the hole; then all of it.
    assert_eq!(ok(&["zfs", "rewrite", "-v", "-l", "6M", name]), format!("{name}\n"));
    let half = referenced();
    assert!(half < uncompressed * 3 / 4, "{half} of {uncompressed}");
    assert_eq!(ok(&["zfs", "rewrite", "-rvx", at.path().to_str().unwrap()]), format!("{name}\n"));
    let compressed = referenced();
    assert!(compressed < uncompressed / 4, "{compressed} of {uncompressed}");
    let after = std::fs::metadata(&path).unwrap();
    let times = |of: &std::fs::Metadata| {
        use std::os::unix::fs::MetadataExt;
        [of.mtime(), of.mtime_nsec(), of.ctime(), of.ctime_nsec()]
    };
    assert_eq!((after.len(), times(&after)), (before.len(), times(&before)));
    assert!(std::fs::read(&path).unwrap() == contents, "the contents changed");
    assert!(std::fs::read(at.path().join("fs/.zfs/snapshot/before/inner/file")).unwrap() == contents);
    let elsewhere = dir.path().join("plain");
    std::fs::write(&elsewhere, "x").unwrap();
    for (words, why) in [
        (vec!["zfs", "rewrite", elsewhere.to_str().unwrap()], "it is not on a mounted ZFS file system"),
        (vec!["zfs", "rewrite", inner.to_str().unwrap()], "is a directory: -r rewrites its files"),
        (vec!["zfs", "rewrite", "-v", "/nowhere/file"], "failed to stat /nowhere/file"),
    ] {
        let out = weir(&words).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.code() == Some(1) && said.contains(why), "{words:?}: {said}");
    }
    mount.end();
    check(dir.path(), "p");
}

#[test]
fn projects_are_set_through_a_mount() {
    let [dir, at] = pool_and_mount_point();
    let folder = dir.path().to_str().unwrap();
    ok(&["zfs", "create", "--dir", folder, "-o", "defaultuserquota=1G", "p/fs"]);
    let quota = ok(&["zfs", "get", "-d", folder, "-Hpo", "value", "defaultuserquota", "p/fs"]);
    assert_eq!(quota.trim(), "1073741824");
    let Some(mount) = Mount::new(folder, "p", at.path()) else { return };
    let top = at.path().join("fs/top");
    std::fs::create_dir_all(top.join("in")).unwrap();
    std::fs::write(top.join("in/old"), [7; 5000]).unwrap();
    let name = |path: &str| top.join(path).to_str().unwrap().to_owned();
    let whole = top.to_str().unwrap().to_owned();
    let inner = name("in");
    let old = name("in/old");
    assert_eq!(ok(&["zfs", "project", &whole]), format!("    0 - {whole}\n    0 - {inner}\n"));
    ok(&["zfs", "project", "-p", "42", "-s", &whole]);
    let found = ok(&["zfs", "project", "-cr", &whole]);
    let wrong = "project ID is not set properly (0/42)";
    let unset = "project inherit flag is not set";
    assert_eq!(found, format!("{inner} - {wrong}\n{inner} - {unset}\n{old} - {wrong}\n{old} - {unset}\n"));
    assert_eq!(ok(&["zfs", "project", "-c0r", &whole]), format!("{inner}\0{old}\0"));
    ok(&["zfs", "project", "-rs", &whole]);
    assert_eq!(ok(&["zfs", "project", "-cr", &whole]), "");
    std::fs::write(top.join("in/new"), b"heir").unwrap();
    assert_eq!(ok(&["zfs", "project", "-d", &inner]), format!("   42 P {inner}\n"));
    assert_eq!(ok(&["zfs", "project", &name("in/new")]), format!("   42 P {}\n", name("in/new")));
    // Other programs see the same, and set it.
    if let Some((_, said)) = run_in("lsattr", &["-pd"], &top) {
        assert!(said.trim_start().starts_with("42 ") && said.contains('P'), "{said}");
        assert_eq!(run_in("chattr", &["-p", "43"], Path::new(&old)), Some((true, String::new())));
        assert_eq!(ok(&["zfs", "project", &old]), format!("   43 P {old}\n"));
        if rustix::process::geteuid().is_root() {
            assert_eq!(run_in("chattr", &["+a"], Path::new(&old)), Some((true, String::new())));
            assert!(std::fs::write(&old, b"anew").is_err() && std::fs::remove_file(&old).is_err());
            assert_eq!(run_in("chattr", &["-a"], Path::new(&old)), Some((true, String::new())));
        }
        assert!(!run_in("chattr", &["+c"], Path::new(&old)).unwrap().0, "a flag that there is none of");
        assert_eq!(run_in("chattr", &["-p", "42"], Path::new(&old)), Some((true, String::new())));
    }
    let moved = std::fs::rename(at.path().join("fs/lone"), top.join("lone")).unwrap_err();
    assert_eq!(moved.kind(), std::io::ErrorKind::NotFound);
    std::fs::write(at.path().join("fs/lone"), b"none").unwrap();
    let moved = std::fs::hard_link(at.path().join("fs/lone"), top.join("lone")).unwrap_err();
    assert_eq!(moved.kind(), std::io::ErrorKind::CrossesDevices);
    ok(&["zfs", "project", "-C", "-k", &old]);
    assert_eq!(ok(&["zfs", "project", &old]), format!("   42 - {old}\n"));
    ok(&["zfs", "project", "-C", "-r", &whole]);
    assert_eq!(ok(&["zfs", "project", "-d", &inner]), format!("    0 - {inner}\n"));
    ok(&["zfs", "project", "-p", "9", &old]);
    assert!(!weir(&["zfs", "project", "/dev/null"]).output().unwrap().status.success());
    assert!(!weir(&["zfs", "project", "-r", &old]).output().unwrap().status.success());
    ok(&["zfs", "set", "projectquota@9=1M", "p/fs"]);
    ok(&["zfs", "set", "defaultprojectquota=2M", "p/fs"]);
    mount.end();
    let space = ok(&["zfs", "projectspace", "--dir", folder, "-Ho", "name,quota,objused", "p/fs"]);
    assert!(space.contains("9\t1M\t1\n") && space.contains("0\t2M\t"), "{space}");
    ok(&["zfs", "set", "--dir", folder, "defaultprojectquota=none", "p/fs"]);
    let quota = ok(&["zfs", "get", "-d", folder, "-Hpo", "value", "defaultprojectquota", "p/fs"]);
    assert_eq!(quota.trim(), "0");
    check(dir.path(), "p");
}

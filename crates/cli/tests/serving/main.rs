//! Pools that are served and written: the demo from its first run to its second, and a server that is killed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

fn weir(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(words).stdin(Stdio::null());
    command
}

fn ok(words: &[&str]) -> String {
    let out = weir(words).output().unwrap();
    assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// Lets OpenZFS count every block of a pool, if it is there (`WEIR_ZFS_TOOLS`).
fn check(folder: &Path, pool: &str) {
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
    for said in
        ["making a pool", "mount -t nfs -o rw", "demo/volume", "everybody may write there", "of the bytes read:"]
    {
        assert!(first.contains(said), "{said}: {first}");
    }
    check(dir.path(), "demo");
    let second = ok(&["demo", "--once", "--dir", folder]);
    assert!(second.contains("opening the pool"), "{second}");
    check(dir.path(), "demo");
    let names = ok(&["zfs", "list", "-d", folder, "-H", "-o", "name"]);
    assert_eq!(names, "demo\ndemo/files\ndemo/volume\n");
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

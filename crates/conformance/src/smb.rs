//! Samba's own clients and test suite on a pool that `weir serve --smb` serves.
//!
//! | Case | Judge |
//! |---|---|
//! | files | `smbclient` puts, lists and gets back what it put |
//! | snapshots | `smbclient allinfo` lists every snapshot of a file, whatever its name, and each can be read |
//! | ACLs | `smbcacls` adds entries and reads them back; the engine finds the same ones in the pool |
//! | ACLs decide | an entry denies over SMB, and to a process on the mount, what the mode permits, and the other way round |
//! | all rights | smbtorture opens files that it created with FILE_ALL_ACCESS, on a share whose root has no inheritable ACL entries |
//! | attributes | DOS attributes, streams, a copy on the server |
//! | case | `casesensitivity=insensitive` and `mixed`: names and patterns of another case find a file; smbtorture makes 2,000 |
//! | idle | a dataset whose files smbd has used and closed can be rolled back; one with an open file is busy |
//! | status | `weir smb status` names user, dialect, signing and share of a connection |
//! | restart | a server that is killed serves again within ten seconds |
//! | accounts | bytes written are accounted to `user@address` |
//! | torture | `smbtorture`: each test of Weir's share that fails also fails on the same smbd over this machine's file system |
//!
//! smbtorture's tests run one by one, so that none hides another. The short form runs [`torture::SHORT`], the long one
//! (`--long`) all of `smb2` and `vfs.fruit`. Without smbd, FUSE, or root, the judge is skipped with a line.
#![allow(clippy::disallowed_methods, reason = "judges run other programs in real time")]

mod accounts;
pub(crate) mod server;
mod torture;
mod windows;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use weir_engine::{Engine, ImportOptions};
use weir_files::{AceWho, Acl};
use weir_machine::{Machine, Request};
use weir_pool::OpenOptions;

use crate::JudgeError;
use crate::kill::{demand_clean, failed, new_pool};
use crate::process::weir;
use crate::report::Report;
use crate::suites::program;
use crate::zdb::{Tools, output};
use server::{PASSWORD, SHARE, SMBCACLS_PORT, Server, USER};

const DEVICE_BYTES: u64 = 1 << 30;
/// Time within which a killed server serves again.
const RESTART_TIME: Duration = Duration::from_secs(10);
/// Names of snapshots: none fits a format of times.
const SNAPSHOTS: [&str; 4] = ["before", "auto-2001-01-01", "x", "z.9"];

type Verdict = Result<Result<String, Vec<String>>, JudgeError>;

fn book(report: &mut Report, case: &str, verdict: Verdict) {
    match verdict {
        Ok(Ok(about)) => report.pass(case, &about),
        Ok(Err(differences)) => report.fail(case, &differences),
        Err(JudgeError::Missing { what }) => report.skip(case, &what),
        Err(error) => report.fail(case, &[error.to_string()]),
    }
}

/// Passes if `wrong` is empty.
fn verdict(about: String, wrong: Vec<String>) -> Verdict {
    Ok(if wrong.is_empty() { Ok(about) } else { Err(wrong) })
}

fn files(server: &Server, folder: &Path) -> Verdict {
    let bytes: Vec<u8> = (0..8_000_003u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 9) as u8).collect();
    let sent = folder.join("sent");
    let got = folder.join("got");
    std::fs::write(&sent, &bytes).map_err(|e| failed("a file", e))?;
    let commands = format!("mkdir d; put {} d\\f; ls d\\*; get d\\f {}", sent.display(), got.display());
    let said = server.client(&commands)?;
    let mut wrong = Vec::new();
    if std::fs::read(&got).ok().as_deref() != Some(&bytes[..]) {
        wrong.push("what was read is not what was written".into());
    }
    if !said.contains("8000003") {
        wrong.push(format!("the listing does not show the file: {said}"));
    }
    verdict(format!("{} bytes", bytes.len()), wrong)
}

fn snapshots(server: &Server, folder: &Path, devices: &Path) -> Verdict {
    let mut wrong = Vec::new();
    for (age, name) in SNAPSHOTS.iter().enumerate() {
        let text = folder.join("text");
        std::fs::write(&text, format!("version {age}")).map_err(|e| failed("a file", e))?;
        server.client(&format!("put {} v", text.display()))?;
        let mut command = Command::new(weir()?);
        command.env("WEIR_POOL_DIRS", devices).args(["zfs", "snapshot", &format!("{SHARE}@{name}")]);
        if !output(&mut command)?.status.success() {
            return Err(failed("weir zfs snapshot", name));
        }
    }
    let said = server.client("allinfo v")?;
    let mut times: Vec<&str> = said.lines().map(str::trim).filter(|line| line.starts_with("@GMT-")).collect();
    times.sort_unstable();
    times.dedup();
    if times.len() != SNAPSHOTS.len() {
        return Ok(Err(vec![format!("{} snapshots, and allinfo lists {times:?}", SNAPSHOTS.len()), said]));
    }
    for (age, time) in times.iter().enumerate() {
        let old = folder.join("old");
        let _ = std::fs::remove_file(&old);
        let said = server.client(&format!("get {time}\\v {}", old.display()))?;
        if std::fs::read_to_string(&old).ok() != Some(format!("version {age}")) {
            wrong.push(format!("{time} does not have the contents of its time: {said}"));
        }
    }
    verdict(format!("{} snapshots by their times", times.len()), wrong)
}

/// Rolls back what smbd has written and closed: the kernel still knows the file's inode number.
fn idle(server: &Server, folder: &Path, devices: &Path) -> Verdict {
    let text = folder.join("idle");
    std::fs::write(&text, "a text").map_err(|e| failed("a file", e))?;
    let zfs = |arguments: &[&str]| {
        let mut command = Command::new(weir()?);
        let output = output(command.env("WEIR_POOL_DIRS", devices).arg("zfs").args(arguments))?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        Ok::<_, JudgeError>(if output.status.success() { Ok(()) } else { Err(said) })
    };
    let snapshot = format!("{SHARE}@idle");
    let mut wrong = Vec::new();
    wrong.extend(zfs(&["snapshot", &snapshot])?.err());
    server.client(&format!("put {} idle", text.display()))?;
    let open = std::fs::File::open(server.directory.join("idle")).map_err(|e| failed("the mount", e))?;
    match zfs(&["rollback", &snapshot])? {
        Err(said) if said.contains("busy") => {}
        other => wrong.push(format!("a file is open, and rollback says {other:?}")),
    }
    drop(open);
    // The kernel tells the mount a moment later that the file is closed.
    let end = Instant::now() + RESTART_TIME;
    let mut rolled_back = zfs(&["rollback", &snapshot])?;
    while rolled_back.is_err() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(100));
        rolled_back = zfs(&["rollback", &snapshot])?;
    }
    wrong.extend(rolled_back.err().map(|said| format!("no file is open, and rollback says {said}")));
    // The kernel may answer from its cache for a second.
    let mut said = server.client("ls idle")?;
    while !said.contains("NO_SUCH_FILE") && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(100));
        said = server.client("ls idle")?;
    }
    if !said.contains("NO_SUCH_FILE") {
        wrong.push(format!("the file is still there after the rollback: {said}"));
    }
    server.client(&format!("put {} idle; rm idle", text.display()))?;
    wrong.extend(zfs(&["destroy", &snapshot])?.err());
    verdict("rolled back without a restart; busy while a file is open".into(), wrong)
}

fn smbcacls(server: &Server, file: &str, words: &[&str]) -> Result<String, JudgeError> {
    if server.port != SMBCACLS_PORT {
        return Err(JudgeError::Missing { what: "port 445, the only one that smbcacls knows, is in use".into() });
    }
    let mut command = Command::new(program("WEIR_SMBCACLS", "smbcacls")?);
    command.args(["-U", &format!("{USER}%{PASSWORD}")]);
    let output = output(command.arg(format!("//127.0.0.1/{SHARE}")).arg(file).args(words))?;
    Ok(String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned())
}

/// Adds an entry for everyone and one for a group by number, and demands that both are read back.
fn acls(server: &Server) -> Verdict {
    let before = smbcacls(server, "v", &["--numeric"])?;
    let entry = "ACL:S-1-22-2-4711:0/0x0/0x00120089";
    let said = smbcacls(server, "v", &["--numeric", "--add", entry])?;
    let after = smbcacls(server, "v", &["--numeric"])?;
    let mut wrong = Vec::new();
    if !after.to_lowercase().contains(&entry.to_lowercase()) {
        wrong.push(format!("the entry is not there:\n{after}{said}"));
    }
    let kept = before.lines().filter(|line| line.starts_with("ACL:")).all(|line| after.contains(line));
    if !kept {
        wrong.push(format!("other entries changed: from\n{before}to\n{after}"));
    }
    verdict("an entry for group 4711 beside those that were there".into(), wrong)
}

/// The ACL of the file in the pool, which no process has open.
fn stored_acl(machine: &Machine, devices: &Path) -> Result<Acl, JudgeError> {
    machine.block_on(async {
        let rq = &Request::internal("judge");
        let open = OpenOptions::new(vec![devices.to_owned()], SHARE);
        // A process of this host had it open, which has ended.
        let options = ImportOptions { force: true, ..ImportOptions::new(open) };
        let engine = Engine::import(machine, &options).await.map_err(|e| failed("import", e))?;
        let files = engine.file_system(rq, SHARE).await.map_err(|e| failed("file system", e))?;
        let found = files.directories().lookup(rq, files.root(), b"v").await.map_err(|e| failed("v", e))?;
        let acl = files.acls().get(rq, found).await.map_err(|e| failed("its ACL", e))?;
        drop(files);
        engine.export().await.map_err(|e| failed("export", e))?;
        Ok(acl)
    })
}

fn in_pool(machine: &Machine, devices: &Path, is_set: bool) -> Verdict {
    if !is_set {
        return Err(JudgeError::Missing { what: "smbcacls set no ACL".into() });
    }
    let acl = stored_acl(machine, devices)?;
    let is_there =
        acl.entries.iter().any(|ace| ace.who == AceWho::Group(4711) && ace.kind == 0 && ace.mask == 0x12_0089);
    let wrong = if is_there { Vec::new() } else { vec![format!("the pool has {acl:?}")] };
    verdict(format!("{} entries", acl.entries.len()), wrong)
}

/// The status while a client is connected.
fn status(server: &Server) -> Verdict {
    let mut client = Command::new(program("WEIR_SMBCLIENT", "smbclient")?);
    client.args(["-p", &server.port.to_string(), "-U", &format!("{USER}%{PASSWORD}")]);
    client.arg(format!("//127.0.0.1/{SHARE}")).stdin(std::process::Stdio::piped());
    client.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut client = client.spawn().map_err(|e| failed("smbclient", e))?;
    let until = Instant::now() + RESTART_TIME;
    let row = loop {
        let text = server.weir_smb(&["status", "-H"])?;
        let row = text.lines().find(|line| line.contains(USER) && line.contains(SHARE)).map(str::to_owned);
        if row.is_some() || Instant::now() >= until {
            break row;
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    drop(client.stdin.take());
    let _ = client.wait();
    let Some(row) = row else { return Ok(Err(vec!["weir smb status does not show the connection".into()])) };
    let wrong = ["127.0.0.1", "SMB3_11", "AES-128-GMAC"].iter().filter(|part| !row.contains(*part));
    verdict(row.replace('\t', " "), wrong.map(|part| format!("{row}: {part} is missing")).collect())
}

fn restart(server: &Server) -> Verdict {
    server.kill_smbd()?;
    let from = Instant::now();
    while from.elapsed() < RESTART_TIME {
        if server.client("ls")?.contains("blocks available") {
            return verdict(format!("after {:.1} s", from.elapsed().as_secs_f32()), Vec::new());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(Err(vec!["smbd does not serve again".into()]))
}

/// Runs the judge.
///
/// # Errors
/// If smbd or FUSE is not here, or a server does not start.
pub fn run(rest: &[String], report: &mut Report) -> Result<(), JudgeError> {
    let long = rest.iter().any(|word| word == "--long");
    if !rustix::process::geteuid().is_root() {
        return Err(JudgeError::Missing { what: "root: smbd acts as several users here".into() });
    }
    let machine = weir_linux::machine().map_err(|e| failed("machine", e))?;
    let top = tempfile::tempdir().map_err(|e| failed("a folder", e))?;
    let devices = top.path().join("devices");
    std::fs::create_dir(&devices).map_err(|e| failed("a folder", e))?;
    new_pool(&machine, &devices, SHARE, DEVICE_BYTES)?;
    let mut command = Command::new(weir()?);
    command.env("WEIR_POOL_DIRS", &devices).args(["zpool", "import", SHARE]);
    if !output(&mut command)?.status.success() {
        return Err(failed("weir zpool import", SHARE));
    }
    for property in ["aclinherit=passthrough", "aclmode=passthrough"] {
        let mut command = Command::new(weir()?);
        if !output(command.env("WEIR_POOL_DIRS", &devices).args(["zfs", "set", property, SHARE]))?.status.success() {
            return Err(failed("weir zfs set", property));
        }
    }
    let pass = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o711);
    std::fs::set_permissions(top.path(), pass).map_err(|e| failed("chmod", e))?;
    let server = Server::weir(&top.path().join("weir"), &devices, SHARE, &[])?;
    server.open_to_all()?;
    let scratch = top.path().join("scratch");
    std::fs::create_dir(&scratch).map_err(|e| failed("a folder", e))?;
    book(report, "smb files", files(&server, &scratch));
    book(report, "smb snapshots", snapshots(&server, &scratch, &devices));
    book(report, "smb idle", idle(&server, &scratch, &devices));
    book(report, "smb ACLs", acls(&server));
    book(report, "smb ACLs decide", windows::acls_decide(&server, &scratch));
    book(report, "smb attributes", windows::attributes_streams_copies(&server, &scratch));
    book(report, "smb status", status(&server));
    book(report, "smb restart", restart(&server));
    match Server::other(&server, &top.path().join("other")) {
        Ok(other) => {
            torture::run(&server, &other, &scratch, long, report);
            other.stop()?;
        }
        Err(error) => book(report, "smb torture", Err(error)),
    }
    let is_set = server.port == SMBCACLS_PORT;
    server.stop()?;
    book(report, "smb ACLs in the pool", in_pool(&machine, &devices, is_set));
    let served = top.path().join("weir");
    book(report, "smb accounts", accounts::accounts(&machine, &served, &devices, &scratch));
    for (sensitivity, many) in [("insensitive", true), ("mixed", long)] {
        let found = windows::caseless(top.path(), sensitivity, sensitivity, many);
        book(report, &format!("smb case {sensitivity}"), found);
    }
    book(report, "smb all rights", windows::owner_has_all_rights(top.path()));
    let mut wrong = Vec::new();
    demand_clean(&Tools::find().ok(), &devices, SHARE, "after SMB", &mut wrong)?;
    book(report, "smb zdb", verdict("no leaks, where OpenZFS's zdb is present".into(), wrong));
    Ok(())
}

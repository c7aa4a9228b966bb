//! What the properties share, seen by clients of a served pool.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::disallowed_methods, reason = "clients connect in real time")]

mod clients;

use clients::{ACCES, NOENT, Nbd, Nfs, ROFS, STALE};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const A: [u8; 4] = [127, 0, 0, 1];
const B: [u8; 4] = [127, 0, 0, 2];

fn weir(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(words).stdin(Stdio::null());
    command
}

/// A pool in a folder, and the process that serves it.
struct Served {
    dir: tempfile::TempDir,
    child: Child,
    nfs_port: u16,
    nbd_port: u16,
    lines: Vec<String>,
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes the pool `t`, runs commands on it, and serves what the properties share.
fn served(commands: &[&[&str]]) -> Served {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("d0");
    std::fs::File::create(&disk).unwrap().set_len(128 << 20).unwrap();
    run(dir.path(), &["zpool", "create", "t", disk.to_str().unwrap()]).unwrap();
    for command in commands {
        run(dir.path(), command).unwrap();
    }
    serve(dir, &["--shared"])
}

fn serve(dir: tempfile::TempDir, options: &[&str]) -> Served {
    let path = dir.path().to_str().unwrap().to_owned();
    let ports = ["serve", "-d", &path, "--nfs-port", "0", "--nbd-port", "0"];
    // The ports are in the lines of a file system and a volume.
    let errors = std::fs::File::create(dir.path().join("errors")).unwrap();
    let mut command = weir(&[&ports[..], options, &["t"]].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(errors).spawn().unwrap();
    let mut lines = Vec::new();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    for line in output.by_ref() {
        if line == "ready" {
            break;
        }
        lines.push(line);
    }
    let number = |mark: &str| {
        let found = lines.iter().find_map(|line| Some(line.split_once(mark)?.1.to_owned()));
        let digits: String = found.unwrap_or_default().chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap_or(0)
    };
    let nfs_port = number(",port=");
    let nbd_port = number("nbd://127.0.0.1:");
    Served { dir, child, nfs_port, nbd_port, lines }
}

/// Runs a command; the error is its message.
fn run(folder: &Path, words: &[&str]) -> Result<String, String> {
    let out = weir(words).env("WEIR_POOL_DIRS", folder).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if out.status.success() { Ok(text(&out.stdout)) } else { Err(text(&out.stderr)) }
}

impl Served {
    fn run(&self, words: &[&str]) -> Result<String, String> {
        run(self.dir.path(), words)
    }

    fn zfs(&self, words: &[&str]) -> String {
        self.run(&[&["zfs"], words].concat()).unwrap()
    }

    fn nfs(&self, from: [u8; 4], uid: u32) -> Nfs {
        Nfs::connect(from, self.nfs_port, uid)
    }

    fn nbd(&self, from: [u8; 4]) -> Nbd {
        Nbd::connect(from, self.nbd_port)
    }
}

/// TRIAL C5: what is not shared is not reachable, and an export ends with the property, also for a client that has a file open.
#[test]
fn sharenfs_off_ends_an_export_at_once() {
    let served = served(&[
        &["zfs", "create", "-o", "sharenfs=on", "t/a"],
        &["zfs", "create", "t/a/inner"],
        &["zfs", "create", "t/private"],
        &["zfs", "create", "-o", "sharenfs=on", "t/private/public"],
        &["zfs", "snapshot", "t/a@s"],
    ]);
    let mut client = served.nfs(A, 0);
    assert_eq!(client.exports(), ["/t/a", "/t/a/inner", "/t/private/public"]);
    assert_eq!((client.mount("/t"), client.mount("/t/private")), (Err(ACCES), Err(ACCES)));
    assert_eq!((client.mount("/t/nothing"), client.mount("/u")), (Err(ACCES), Err(NOENT)));
    let public = client.mount("/t/private/public").unwrap();
    assert_eq!(client.lookup(&public, "..").as_ref(), Ok(&public), "the parent is not shared");
    let root = client.mount("/t/a").unwrap();
    assert_eq!(client.list(&root), [".", "..", "inner"]);
    let inner = client.lookup(&root, "inner").unwrap();
    assert_eq!(client.lookup(&inner, "..").as_ref(), Ok(&root));
    let snapshot = client.mount("/t/a/.zfs/snapshot/s").unwrap();
    assert_eq!(client.getattr(&snapshot), Ok(()));
    // One that is not shared is hidden by its parent, and ends for handles.
    served.zfs(&["set", "sharenfs=off", "t/a/inner"]);
    assert_eq!(client.getattr(&inner), Err(STALE));
    assert_eq!(client.lookup(&root, "inner"), Err(NOENT));
    assert_eq!(client.list(&root), [".", ".."]);
    assert_eq!(client.mount("/t/a/inner"), Err(ACCES));
    served.zfs(&["inherit", "sharenfs", "t/a/inner"]);
    assert_eq!(client.getattr(&inner), Ok(()));
    // A rename keeps handles.
    served.zfs(&["rename", "t/private/public", "t/a/moved"]);
    assert_eq!(client.getattr(&public), Ok(()));
    served.zfs(&["set", "sharenfs=off", "t/a"]);
    for handle in [&root, &inner, &snapshot] {
        assert_eq!(client.getattr(handle), Err(STALE));
    }
    assert_eq!((client.exports(), client.getattr(&public)), (vec!["/t/a/moved".to_owned()], Ok(())));
    served.zfs(&["set", "sharenfs=on", "t/a"]);
    assert_eq!((client.getattr(&root), client.getattr(&snapshot)), (Ok(()), Ok(())));
}

#[test]
fn hosts_read_and_write_as_the_property_says() {
    let served = served(&[&["zfs", "create", "-o", "sharenfs=rw=127.0.0.1,ro=@127.0.0.0/24,root=127.0.0.1", "t/a"]]);
    let mut writer = served.nfs(A, 0);
    let mut reader = served.nfs(B, 0);
    let mut stranger = served.nfs([127, 0, 1, 1], 0);
    let root = writer.mount("/t/a").unwrap();
    assert_eq!(reader.mount("/t/a").as_ref(), Ok(&root));
    assert_eq!((stranger.mount("/t/a"), stranger.getattr(&root)), (Err(ACCES), Err(ACCES)));
    assert!(stranger.exports().is_empty());
    let file = writer.create(&root, "f").unwrap();
    assert_eq!(writer.owner(&file), Ok(0), "root is not squashed");
    assert_eq!((reader.write(&file, b"x"), reader.getattr(&file)), (Err(ROFS), Ok(())));
    served.zfs(&["set", "sharenfs=rw,all_squash,anonuid=1234,anongid=99", "t/a"]);
    assert_eq!(writer.write(&file, b"x"), Err(ACCES), "user 1234 may not write root's file");
    assert_eq!(stranger.getattr(&file), Ok(()));
    served.zfs(&["set", "sharenfs=rw,no_root_squash", "t/a"]);
    assert_eq!(stranger.write(&file, b"x"), Ok(()));
    served.zfs(&["set", "readonly=on", "t/a"]);
    assert_eq!(writer.write(&file, b"y"), Err(ROFS));
    served.zfs(&["set", "readonly=off", "t/a"]);
    // Clients connect from a port above 1023.
    served.zfs(&["set", "sharenfs=rw,secure", "t/a"]);
    assert_eq!(writer.getattr(&file), Err(ACCES));
}

#[test]
fn file_systems_that_cannot_be_mounted_are_not_shared() {
    let served = served(&[
        &["zfs", "create", "-o", "sharenfs=on", "t/a"],
        &["zfs", "create", "-o", "mountpoint=/srv/elsewhere", "t/a/moved"],
        &["zfs", "create", "-o", "mountpoint=none", "t/a/none"],
        &["zfs", "create", "-o", "mountpoint=legacy", "t/a/legacy"],
        &["zfs", "create", "-o", "canmount=off", "t/a/off"],
        &["zfs", "create", "-o", "canmount=noauto", "t/a/noauto"],
        &["zfs", "create", "-o", "zoned=on", "t/a/zoned"],
    ]);
    let mut client = served.nfs(A, 0);
    assert_eq!(client.exports(), ["/srv/elsewhere", "/t/a"]);
    let moved = client.mount("/srv/elsewhere").unwrap();
    assert_eq!(client.mount("/t/a/moved").as_ref(), Ok(&moved), "the dataset's name leads there, too");
    for name in ["none", "legacy", "off", "noauto", "zoned"] {
        assert_eq!(client.mount(&format!("/t/a/{name}")), Err(ACCES), "{name}");
    }
    served.zfs(&["set", "canmount=on", "t/a/off"]);
    assert!(client.mount("/t/a/off").is_ok());
    served.zfs(&["set", "canmount=off", "t/a/off"]);
    assert_eq!(client.mount("/t/a/off"), Err(ACCES));
}

#[test]
fn volumes_exist_for_the_hosts_that_they_are_shared_with() {
    let served = served(&[
        &["zfs", "create", "-s", "-V", "1M", "-o", "weir:nbd=on", "t/v"],
        &["zfs", "create", "-s", "-V", "1M", "-o", "weir:nbd=name=disk,hosts=127.0.0.2,ro", "t/w"],
        &["zfs", "create", "-s", "-V", "1M", "t/private"],
        &["zfs", "create", "-s", "-V", "1M", "-o", "weir:nbd=on", "-o", "volmode=none", "t/none"],
        &["zfs", "snapshot", "t/v@s"],
    ]);
    assert_eq!(served.nbd(A).list(), ["t/v"]);
    assert_eq!(served.nbd(B).list(), ["disk", "t/v"]);
    if let Ok(out) = Command::new("nbdinfo").args(["--list", &format!("nbd://127.0.0.1:{}", served.nbd_port)]).output()
    {
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(text.contains("export=\"t/v\"") && !text.contains("private") && !text.contains("disk"), "{text}");
    } else {
        eprintln!("skipped: no nbdinfo");
    }
    for (name, found) in [("t/v", Some(false)), ("disk", None), ("t/private", None), ("t/v@s", None), ("", Some(false))]
    {
        assert_eq!(served.nbd(A).open(name), found, "{name}");
    }
    assert_eq!((served.nbd(B).open("disk"), served.nbd(B).open("t/w")), (Some(true), None));
    served.zfs(&["set", "snapdev=visible", "t/v"]);
    assert_eq!(served.nbd(A).open("t/v@s"), Some(true));
    let mut open = served.nbd(A);
    assert_eq!(open.open("t/v"), Some(false));
    assert_eq!(open.read(), Some(true));
    served.zfs(&["set", "weir:nbd=off", "t/v"]);
    open.wait_for_end();
    assert!(served.nbd(A).list().is_empty());
}

#[test]
fn wrong_values_are_refused_with_the_wrong_word() {
    let served = served(&[&["zfs", "create", "-o", "sharenfs=on", "t/a"]]);
    for (value, why) in [
        ("sharenfs=rw,sec=krb5", "cannot set property for 't/a': invalid value of 'sharenfs': 'sec=krb5': Kerberos"),
        ("sharesmb=name=a/b", "'name=a/b': a name has none of"),
        ("weir:iscsi=target=disk", "'disk': not a name like iqn."),
        ("weir:nbd=hosts=*.example.org", "'*.example.org': patterns of host names"),
    ] {
        let message = served.run(&["zfs", "set", value, "t/a"]).unwrap_err();
        assert!(message.contains(why), "{value}: {message}");
        let message = served.run(&["zfs", "create", "-o", value, "t/b"]).unwrap_err();
        assert!(message.contains("cannot create 't/b'"), "{message}");
    }
    assert_eq!(served.nfs(A, 0).exports(), ["/t/a"]);
}

#[test]
fn serve_shares_everything_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("d0");
    std::fs::File::create(&disk).unwrap().set_len(128 << 20).unwrap();
    run(dir.path(), &["zpool", "create", "t", disk.to_str().unwrap()]).unwrap();
    run(dir.path(), &["zfs", "create", "-o", "canmount=off", "t/a"]).unwrap();
    let served = serve(dir, &[]);
    assert!(served.lines.iter().any(|line| line.contains(":/t/a ")), "{:?}", served.lines);
    let said = std::fs::read_to_string(served.dir.path().join("errors")).unwrap();
    assert!(said.contains("everything in pool 't' is shared with this machine, whatever the properties say"), "{said}");
    let mut client = served.nfs(A, 0);
    assert_eq!(client.exports(), ["/t", "/t/a"]);
    assert!(client.mount("/t/a").is_ok());
    let message = served.run(&["serve", "--shared", "--no-root-squash", "t"]).unwrap_err();
    assert!(message.contains("--shared follows the properties"), "{message}");
}

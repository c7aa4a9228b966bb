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

/// A file system that is not shared is not reachable, and an export ends with the property, also for a client that has a file open.
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

#[test]
fn share_and_unshare_override_until_the_process_ends() {
    let served = served(&[
        &["zfs", "create", "-o", "sharenfs=on", "t/a"],
        &["zfs", "create", "-o", "canmount=noauto", "t/a/noauto"],
        &["zfs", "create", "-o", "sharenfs=off", "t/a/off"],
    ]);
    let mut client = served.nfs(A, 0);
    assert_eq!(client.exports(), ["/t/a"]);
    served.zfs(&["share", "t/a/noauto"]);
    assert_eq!(client.exports(), ["/t/a", "/t/a/noauto"]);
    let message = served.run(&["zfs", "share", "t/a/off"]).unwrap_err();
    assert!(message.contains("cannot share 't/a/off': sharenfs and sharesmb are off"), "{message}");
    served.zfs(&["unshare", "t/a"]);
    assert_eq!(client.exports(), ["/t/a/noauto"]);
    served.zfs(&["share", "-a", "t"]);
    assert_eq!(client.exports(), ["/t/a", "/t/a/noauto"]);
    served.zfs(&["unshare", "-a", "t"]);
    assert!(client.exports().is_empty());
    let message = served.run(&["zfs", "share", "t/nothing"]).unwrap_err();
    assert!(message.contains("dataset does not exist"), "{message}");
}

/// The property `mounted` is true for what is mounted, and for nothing else.
#[test]
fn file_systems_are_mounted_at_their_mount_points() {
    if std::fs::File::options().read(true).write(true).open("/dev/fuse").is_err() {
        eprintln!("skipped: no /dev/fuse");
        return;
    }
    let mounts = tempfile::tempdir().unwrap();
    let at = |name: &str| mounts.path().join(name);
    let point = |name: &str| format!("mountpoint={}", at(name).display());
    let served = served(&[
        &["zfs", "create", "-o", &point("a"), "t/a"],
        &["zfs", "create", "t/a/below"],
        &["zfs", "create", "-o", "canmount=noauto", "t/a/noauto"],
        &["zfs", "create", "-o", &point("away"), "t/a/away"],
        &["zfs", "create", "-o", "mountpoint=legacy", "t/legacy"],
        &["zfs", "create", "-o", "canmount=off", "t/off"],
        &["zfs", "set", "mountpoint=none", "t"],
    ]);
    let mounted = |name: &str| served.zfs(&["get", "-H", "-o", "value", "mounted", name]).trim().to_owned();
    if let Err(message) = served.run(&["zfs", "mount", "t/a"]) {
        assert!(message.contains("cannot mount"), "{message}");
        eprintln!("skipped: {message}");
        return;
    }
    assert_eq!((mounted("t/a"), mounted("t/a/below")), ("yes".into(), "no".into()));
    assert!(!at("a").join("below").exists());
    served.zfs(&["mount", "-a"]);
    for (name, found) in [
        ("t/a", "yes"),
        ("t/a/below", "yes"),
        ("t/a/noauto", "no"),
        ("t/a/away", "yes"),
        ("t/legacy", "no"),
        ("t/off", "no"),
    ] {
        assert_eq!(mounted(name), found, "{name}");
    }
    let names = |path: &Path| {
        let mut names: Vec<String> =
            std::fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&at("a")), ["below"]);
    std::fs::write(at("a").join("below/file"), "below").unwrap();
    std::fs::write(at("away").join("file"), "away").unwrap();
    served.zfs(&["mount", "t/a/noauto"]);
    assert_eq!((names(&at("a")), names(&at("away"))), (vec!["below".into(), "noauto".into()], vec!["file".to_owned()]));
    let list = served.zfs(&["mount"]);
    assert!(list.contains(at("away").to_str().unwrap()) && list.contains("t/a/away"), "{list}");
    for (name, why) in [
        ("t/a", "cannot mount 't/a': filesystem already mounted"),
        ("t/legacy", "legacy mountpoint"),
        ("t/off", "'canmount' property is set to 'off'"),
        ("t", "'mountpoint' property is set to 'none'"),
    ] {
        let message = served.run(&["zfs", "mount", name]).unwrap_err();
        assert!(message.contains(why), "{message}");
    }
    // A file system in use stays mounted; -f detaches it.
    let open = std::fs::File::open(at("away").join("file")).unwrap();
    let message = served.run(&["zfs", "unmount", "t/a/away"]).unwrap_err();
    assert!(message.contains("busy"), "{message}");
    assert_eq!(mounted("t/a/away"), "yes");
    served.zfs(&["unmount", "-f", "t/a/away"]);
    drop(open);
    assert_eq!((mounted("t/a/away"), names(&at("away")).len()), ("no".into(), 0));
    served.zfs(&["umount", at("a").to_str().unwrap()]);
    assert_eq!((mounted("t/a"), mounted("t/a/below"), names(&at("a")).len()), ("no".into(), "no".into(), 0));
    let message = served.run(&["zfs", "unmount", "t/a"]).unwrap_err();
    assert!(message.contains("not currently mounted"), "{message}");
    served.zfs(&["mount", "-o", "ro", "t/a/below"]);
    let below = at("a").join("below");
    assert_eq!(std::fs::read_to_string(below.join("file")).unwrap(), "below");
    assert_eq!(std::fs::write(below.join("new"), "x").unwrap_err().kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    served.zfs(&["unmount", "-a"]);
    assert_eq!(mounted("t/a/below"), "no");
}

#[test]
fn chap_secrets_are_read_from_standard_input() {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let user = |words: &[&str], input: &str| {
        let mut command = weir(&[&["user"], words].concat());
        command
            .env("STATE_DIRECTORY", &state)
            .env("RUNTIME_DIRECTORY", dir.path().join("run"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let out = child.wait_with_output().unwrap();
        let text = [out.stdout, out.stderr].concat();
        (out.status.success(), String::from_utf8(text).unwrap())
    };
    assert_eq!(user(&["add", "ann"], "a long secret\n"), (true, "added user 'ann'\n".into()));
    let (good, message) = user(&["add", "bob"], "short\n");
    assert!(!good && message.contains("12 to 255 bytes") && !message.contains("short"), "{message}");
    assert_eq!(user(&["add", "ann"], "another secret\n"), (true, "set the secret of user 'ann'\n".into()));
    assert_eq!(user(&["list"], ""), (true, "ann\n".into()));
    for file in ["chap-secrets", "chap.key"] {
        let path = state.join(file);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!std::fs::read(&path).unwrap().windows(6).any(|part| part == b"secret"));
    }
    assert!(user(&["remove", "ann"], "").0);
    assert!(!user(&["remove", "ann"], "").0 && !user(&["add", "ann", "the secret"], "").0);
}

/// Spellings that guides use.
#[test]
fn other_spellings_of_values_are_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("d0");
    std::fs::File::create(&disk).unwrap().set_len(256 << 20).unwrap();
    let zfs = |words: &[&str]| run(dir.path(), &[&["zfs"], words].concat()).unwrap();
    run(dir.path(), &["zpool", "create", "t", disk.to_str().unwrap()]).unwrap();
    zfs(&["create", "-o", "acltype=posixacl", "-o", "xattr=on", "t/a"]);
    assert_eq!(zfs(&["get", "-H", "-o", "value", "acltype,xattr", "t/a"]), "posix\nsa\n");
    zfs(&["set", "acltype=noacl", "t/a"]);
    assert_eq!(zfs(&["get", "-H", "-o", "value", "acltype", "t/a"]), "off\n");
    zfs(&["create", "-V", "16M", "t/thick"]);
    zfs(&["create", "-s", "-V", "16M", "t/thin"]);
    zfs(&["create", "-s", "-V", "16M", "-o", "refreservation=auto", "t/auto"]);
    let reserved = |name: &str| zfs(&["get", "-Hp", "-o", "value", "refreservation", name]);
    assert_eq!((reserved("t/thin"), reserved("t/auto")), ("0\n".into(), reserved("t/thick")));
    zfs(&["set", "refreservation=auto", "t/thin"]);
    assert_eq!(reserved("t/thin"), reserved("t/thick"));
}

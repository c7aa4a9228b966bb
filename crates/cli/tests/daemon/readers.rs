//! Users who administer nothing: they read names, properties and state of the pools of root's daemon, and change nothing.

use super::{CONFIGURATION, Site, text};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Output};
use weir_daemon::admin::{Frame, HEADER_BYTES};

/// A user without any rights.
const USER: &str = "65534";

/// A site of root whose directories users may pass; `None` without root or setpriv.
fn open_site(configuration: &str) -> Option<Site> {
    let can_switch = Command::new("setpriv").args(["--reuid", USER, "true"]).status().is_ok_and(|done| done.success());
    if !rustix::process::geteuid().is_root() || !can_switch {
        eprintln!("skipped: it needs root and setpriv");
        return None;
    }
    let site = Site::new(2);
    std::fs::set_permissions(site.dir.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    site.configure(&format!("{CONFIGURATION}{configuration}"));
    Some(site)
}

/// Runs a command as that user.
fn as_user(site: &Site, line: &str) -> Output {
    let own = site.command(line);
    let mut command = Command::new("setpriv");
    command.args(["--reuid", USER, "--regid", USER, "--clear-groups", "--"]).arg(own.get_program());
    command.args(own.get_args()).current_dir("/").stdin(std::process::Stdio::null());
    command.env_clear().env("RUNTIME_DIRECTORY", site.path("run")).env("WEIR_WAIT", "1");
    command.output().unwrap()
}

fn read(site: &Site, line: &str) -> String {
    let out = as_user(site, line);
    assert!(out.status.success(), "{line}: {}\n{}", text(&out.stderr), site.log());
    text(&out.stdout)
}

#[test]
fn users_read_the_pools_of_roots_daemon() {
    let Some(site) = open_site("") else { return };
    let daemon = site.start();
    site.ok("zpool create tank mirror d0 d1");
    site.ok("zfs create -o compression=zstd tank/a");
    site.ok("zfs snapshot tank/a@s");
    site.ok("zfs hold keep tank/a@s");
    assert_eq!(read(&site, "zpool list -H -o name"), "tank\n");
    assert_eq!(read(&site, "zfs list -H -o name -t all"), "tank\ntank/a\ntank/a@s\n");
    assert_eq!(read(&site, "zfs get -H -o value compression tank/a"), "zstd\n");
    assert_eq!(read(&site, "zpool get -H -o value health tank"), "ONLINE\n");
    assert!(read(&site, "zpool status -v tank").contains("mirror-0"));
    assert!(read(&site, "zpool iostat -H tank").starts_with("tank\t"));
    assert!(read(&site, "zfs holds -H tank/a@s").contains("keep"));
    assert_eq!(read(&site, &format!("zfs get -Hp -o value userused@{USER} tank/a")), "0\n");
    // Sockets of a daemon that has ended lead nowhere.
    drop(daemon);
    assert_eq!(read(&site, "zpool list"), "no pools available\n");
}

#[test]
fn users_change_nothing_and_read_nothing_private() {
    let Some(site) = open_site("") else { return };
    let _daemon = site.start();
    site.ok("zpool create tank mirror d0 d1");
    site.ok("zfs create tank/a");
    site.ok("zfs snapshot tank/a@s");
    let before = site.ok("zfs get -r -H all tank");
    for line in [
        "zfs create tank/b",
        "zfs destroy tank/a@s",
        "zfs set atime=off tank/a",
        "zfs inherit atime tank/a",
        "zfs snapshot tank/a@t",
        "zfs rollback tank/a@s",
        "zfs clone tank/a@s tank/c",
        "zfs promote tank/a",
        "zfs rename tank/a tank/b",
        "zfs hold x tank/a@s",
        "zfs bookmark tank/a@s tank/a#b",
        "zfs allow everyone create tank/a",
        "zfs upgrade tank/a",
        "zfs mount tank/a",
        "zfs unmount tank/a",
        "zfs share tank/a",
        "zfs send tank/a@s",
        "zfs receive tank/d",
        "zpool scrub tank",
        "zpool export tank",
        "zpool destroy tank",
        "zpool offline tank d0",
        "zpool detach tank d0",
        "zpool clear tank",
        "zpool set comment=x tank",
        "zpool upgrade tank",
        "zpool reguid tank",
        "zpool split tank half",
        "zpool sync tank",
        "zpool history tank",
        "zpool events tank",
        "zfs userspace tank/a",
        "zfs diff tank/a@s tank/a",
        "zfs get userused@0 tank/a",
        "daemon stop",
    ] {
        let out = as_user(&site, line);
        assert!(!out.status.success(), "{line}: {}", text(&out.stdout));
    }
    for line in ["daemon status", "arcstat", "why tank"] {
        let out = as_user(&site, line);
        let said = text(&out.stderr);
        assert!(
            out.status.code() == Some(1) && said.contains("permission denied: only its user and root may ask"),
            "{line}: {said}"
        );
    }
    assert_eq!(text(&as_user(&site, "zfs create tank/b").stderr), "cannot open 'tank': permission denied\n");
    let unchanged = |all: &str| all.lines().filter(|line| !line.contains("\tavailable\t")).count();
    assert_eq!(unchanged(&site.ok("zfs get -r -H all tank")), unchanged(&before));
    assert_eq!(site.ok("zfs list -H -o name -t all"), "tank\ntank/a\ntank/a@s\n");
}

/// The answer to a frame on the socket of all users.
fn answer(site: &Site, frame: &Frame) -> Vec<Frame> {
    let mut stream = UnixStream::connect(site.path("run/readers.sock")).unwrap();
    stream.write_all(&frame.encode()).unwrap();
    let mut bytes = Vec::new();
    // A connection that is closed with bytes unread ends in an error after the answer.
    let _ = stream.read_to_end(&mut bytes);
    let mut rest = &bytes[..];
    let mut frames = Vec::new();
    while let Some((header, contents)) = rest.split_first_chunk::<HEADER_BYTES>() {
        let (contents, later) = contents.split_at(Frame::length(*header).unwrap());
        frames.push(Frame::decode(header[0], contents).unwrap());
        rest = later;
    }
    frames
}

#[test]
fn the_socket_of_users_knows_queries_alone() {
    let Some(site) = open_site("") else { return };
    let _daemon = site.start();
    site.ok("zpool create tank d0");
    for json in [
        r#"{"pool":"tank","line":"","action":{"change":{"change":"promote","name":"tank"}}}"#,
        r#"{"pool":"tank","line":"","action":"sample"}"#,
        "",
    ] {
        let said = answer(&site, &Frame::Command(json.into()));
        let [Frame::Begun, Frame::Answer(refusal)] = &said[..] else { panic!("{json}: {said:?}") };
        assert!(String::from_utf8_lossy(refusal).contains("permission denied"), "{json}");
    }
    for json in ["{", r#"{"pool":{"name":"tank","query":{"history":{"internal":true}}}}"#] {
        let said = answer(&site, &Frame::Query(json.into()));
        assert!(matches!(&said[..], [Frame::Begun, Frame::Answer(_)]), "{json}: {said:?}");
    }
    let said = answer(&site, &Frame::Query(br#""pools""#.to_vec()));
    assert!(matches!(&said[..], [Frame::Begun, Frame::Part(_), Frame::Answer(_)]), "{said:?}");
    // Connections that send nothing keep no administrator out, and no other user.
    let idle: Vec<UnixStream> =
        (0..200).filter_map(|_| UnixStream::connect(site.path("run/readers.sock")).ok()).collect();
    site.ok("zfs create tank/a");
    assert_eq!(read(&site, "zpool list -H -o name"), "tank\n");
    drop(idle);
}

#[test]
fn users_read_nothing_if_the_daemon_does_not_let_them() {
    let Some(site) = open_site("user_queries = false\n") else { return };
    let _daemon = site.start();
    site.ok("zpool create tank d0");
    assert!(!site.path("run/readers.sock").exists());
    assert_eq!(read(&site, "zpool list"), "no pools available\n");
    assert!(!as_user(&site, "zfs list tank").status.success());
}

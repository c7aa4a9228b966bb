//! iSCSI of a process that serves a pool: reservations across its end, and copies that share blocks.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::disallowed_methods, reason = "clients connect in real time")]

mod initiator;

use initiator::Initiator;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const TARGET: &str = "iqn.2000-01.org.example:disks";
const RESERVATIONS: &str = "weir:iscsi-reservations";
const CONFLICT: u8 = 0x18;
const CHECK_CONDITION: u8 = 2;

fn weir(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(words).stdin(Stdio::null()).env("WEIR_POOL_DIRS", folder);
    command.env("STATE_DIRECTORY", folder.join("state")).env("RUNTIME_DIRECTORY", folder.join("state/run"));
    command
}

fn ok(folder: &Path, words: &[&str]) -> String {
    let out = weir(folder, words).output().unwrap();
    assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap().trim_end().to_owned()
}

/// A pool `t` with the volumes `t/a` and `t/b` as units 0 and 1 of a target.
fn pool() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    // The socket for commands is there.
    std::fs::create_dir_all(dir.path().join("state/run")).unwrap();
    let disk = dir.path().join("d0");
    std::fs::File::create(&disk).unwrap().set_len(256 << 20).unwrap();
    ok(dir.path(), &["zpool", "create", "t", disk.to_str().unwrap()]);
    for (lun, name) in ["t/a", "t/b"].into_iter().enumerate() {
        let shared = format!("weir:iscsi=target={TARGET},lun={lun},hosts=127.0.0.1");
        ok(dir.path(), &["zfs", "create", "-V", "16M", "-o", &shared, name]);
    }
    dir
}

/// A process that serves the pool until it is killed.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(folder: &Path) -> Self {
        Server::listening(folder, "127.0.0.1")
    }

    fn listening(folder: &Path, address: &str) -> Self {
        let errors = std::fs::File::create(folder.join("errors")).unwrap();
        let ports =
            ["serve", "-d", folder.to_str().unwrap(), "--nfs-port", "0", "--nbd-port", "0", "--iscsi-port", "0"];
        let mut command = weir(folder, &[&ports[..], &["--listen", address, "--shared", "t"]].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(errors).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut port = None;
        for line in lines.by_ref().take_while(|line| line != "ready") {
            let found = line.split_once(&format!("iscsi://{address}:")).and_then(|(_, rest)| rest.split('/').next());
            port = port.or(found.and_then(|port| port.parse().ok()));
        }
        Server { child, port: port.expect("a line that names the port of iSCSI") }
    }

    fn initiator(&self, name: &str) -> Initiator {
        Initiator::login(self.port, name, TARGET, &[0, 1])
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGKILL: nothing is written at the end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const REGISTER_AND_IGNORE: u8 = 6;
const RESERVE: u8 = 1;
const WRITE_EXCLUSIVE: u8 = 1;

/// PERSISTENT RESERVE OUT at unit 0.
fn reserve_out(by: &mut Initiator, action: u8, key: u64, new_key: u64, survives: bool) {
    let cdb = [0x5f, action, WRITE_EXCLUSIVE, 0, 0, 0, 0, 0, 24, 0];
    let list = [&key.to_be_bytes()[..], &new_key.to_be_bytes(), &[0, 0, 0, 0, u8::from(survives), 0, 0, 0]].concat();
    by.done(0, &cdb, &list, 0);
}

/// The registered keys of a unit, and the key and type of its reservation.
fn reserved(by: &mut Initiator, lun: u8) -> (Vec<u64>, Option<(u64, u8)>) {
    let words = |bytes: &[u8]| bytes.chunks_exact(8).map(|word| u64::from_be_bytes(word.try_into().unwrap())).collect();
    let keys = by.done(lun, &[0x5e, 0, 0, 0, 0, 0, 0, 1, 0, 0], &[], 256);
    let held = by.done(lun, &[0x5e, 1, 0, 0, 0, 0, 0, 1, 0, 0], &[], 256);
    let first = |held: &[u8]| (u64::from_be_bytes(held[..8].try_into().unwrap()), held[13] & 0xf);
    (words(&keys[8..]), held.get(8..24).map(first))
}

#[test]
fn reservations_survive_the_process_if_the_initiator_asked_for_it() {
    let dir = pool();
    let folder = dir.path();
    let source = || ok(folder, &["zfs", "get", "-H", "-o", "source", RESERVATIONS, "t/a"]);
    let server = Server::start(folder);
    let mut one = server.initiator("one");
    let mut two = server.initiator("two");
    reserve_out(&mut one, REGISTER_AND_IGNORE, 0, 0x11, true);
    reserve_out(&mut one, RESERVE, 0x11, 0, false);
    reserve_out(&mut two, REGISTER_AND_IGNORE, 0, 0x22, true);
    assert_eq!(source(), "local");
    drop(server);

    let server = Server::start(folder);
    let mut other = server.initiator("other");
    assert_eq!(reserved(&mut other, 0), (vec![0x11, 0x22], Some((0x11, WRITE_EXCLUSIVE))));
    assert_eq!(reserved(&mut other, 1), (vec![], None), "another unit");
    assert_eq!(other.write(0, 0, &[7; 512]), CONFLICT);
    assert_eq!(other.read(0, 0, 512), [0; 512], "readers are not excluded");
    let mut one = server.initiator("one");
    assert_eq!(one.write(0, 0, &[1; 512]), 0, "the holder is known by its names");
    // The last registration decides.
    reserve_out(&mut one, REGISTER_AND_IGNORE, 0, 0x33, false);
    assert_eq!(reserved(&mut other, 0), (vec![0x33, 0x22], Some((0x33, WRITE_EXCLUSIVE))));
    assert_eq!(source(), "-");
    drop(server);

    let server = Server::start(folder);
    let mut other = server.initiator("other");
    assert_eq!(reserved(&mut other, 0), (vec![], None));
    assert_eq!(other.write(0, 0, &[2; 512]), 0);
}

/// A malformed value, which a pool of another system may bring along, is no reservation; neither is a value of the parent.
#[test]
fn a_malformed_reservation_is_reported_once_and_ignored() {
    let dir = pool();
    let folder = dir.path();
    let valid = format!("1;1;0;0000000000000011,iqn.2000-01.org.example:gone,i,0x800000000000,{TARGET}");
    ok(folder, &["zfs", "set", &format!("{RESERVATIONS}={valid}"), "t"]);
    ok(folder, &["zfs", "set", &format!("{RESERVATIONS}=1;9;7;zz{}", ";".repeat(7000)), "t/a"]);
    let server = Server::start(folder);
    for name in ["one", "two"] {
        let mut initiator = server.initiator(name);
        assert_eq!(reserved(&mut initiator, 0), (vec![], None), "malformed");
        assert_eq!(reserved(&mut initiator, 1), (vec![], None), "inherited");
        assert_eq!(initiator.write(0, 0, &[1; 512]), 0);
    }
    let log = std::fs::read_to_string(folder.join("errors")).unwrap();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("malformed")).collect();
    assert!(matches!(lines[..], [line] if line.contains("t/a") && line.len() < 400), "{log}");
    // A new registration replaces it.
    let mut one = server.initiator("one");
    reserve_out(&mut one, REGISTER_AND_IGNORE, 0, 0x11, true);
    drop(server);
    let server = Server::start(folder);
    assert_eq!(reserved(&mut server.initiator("one"), 0), (vec![0x11], None));
}

/// A daemon with directories of its own, as on another machine; it keeps its pools in mind, and the last state of their units.
fn daemon(folder: &Path) -> (Child, impl Fn(&[&str]) -> String + use<>) {
    let site = folder.join("site");
    std::fs::create_dir(&site).unwrap();
    std::fs::write(
        site.join("weir.toml"),
        "nfs_port = 0\nnbd_port = 0\niscsi_port = 0\nsmb_port = 0\nhttp_port = 0\nmounts = false\n",
    )
    .unwrap();
    let command = move |words: &[&str]| {
        let mut command = weir(&site, words);
        command.env("STATE_DIRECTORY", site.join("state")).env("RUNTIME_DIRECTORY", site.join("run"));
        command.env("CONFIGURATION_DIRECTORY", &site);
        command
    };
    let errors = std::fs::File::create(folder.join("daemon-errors")).unwrap();
    let mut child = command(&["daemon"]).stdout(Stdio::piped()).stderr(errors).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "ready"));
    let ok = move |words: &[&str]| {
        let out = command(words).output().unwrap();
        assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap().trim_end().to_owned()
    };
    (child, ok)
}

/// Reservations move with the pool from one process to another and back, where the process that had it before knows the changes.
#[test]
fn reservations_follow_an_exported_pool() {
    let dir = pool();
    let folder = dir.path();
    let (child, command) = daemon(folder);
    let import = || drop(command(&["zpool", "import", "-d", folder.to_str().unwrap(), "t"]));
    let port = || -> u16 {
        let status: serde_json::Value =
            serde_json::from_str(&command(&["daemon", "status", "-j", "--json-int"])).unwrap();
        let address = status.pointer("/protocols/iscsi/address").and_then(|value| value.as_str()).unwrap();
        address.rsplit_once(':').unwrap().1.parse().unwrap()
    };
    let login = |name: &str| Initiator::login(port(), name, TARGET, &[0, 1]);
    import();
    let server = Server { port: port(), child };
    let mut one = login("one");
    reserve_out(&mut one, REGISTER_AND_IGNORE, 0, 0x11, true);
    reserve_out(&mut one, RESERVE, 0x11, 0, false);
    // The export ends the session.
    command(&["zpool", "export", "-f", "t"]);
    import();
    let mut other = login("other");
    assert_eq!(reserved(&mut other, 0), (vec![0x11], Some((0x11, WRITE_EXCLUSIVE))), "imported again");
    assert_eq!(other.write(0, 0, &[7; 512]), CONFLICT);
    command(&["zpool", "export", "-f", "t"]);
    {
        let second = Server::start(folder);
        let mut other = second.initiator("other");
        assert_eq!(reserved(&mut other, 0), (vec![0x11], Some((0x11, WRITE_EXCLUSIVE))), "in another process");
        assert_eq!(other.write(0, 0, &[7; 512]), CONFLICT);
        // The registration, and with it the reservation, is given up there.
        reserve_out(&mut second.initiator("one"), REGISTER_AND_IGNORE, 0, 0, true);
        assert_eq!(reserved(&mut other, 0), (vec![], None));
    }
    import();
    let mut other = login("other");
    assert_eq!(reserved(&mut other, 0), (vec![], None), "given up elsewhere");
    assert_eq!(other.write(0, 0, &[7; 512]), 0);
    drop(server);
}

/// The designator of a unit: its NAA identifier in page 83h.
fn designator(initiator: &mut Initiator, lun: u8) -> Vec<u8> {
    let page = initiator.done(lun, &[0x12, 1, 0x83, 4, 0, 0], &[], 1024);
    let mut rest = &page[4..];
    while let [_, kind, _, len, ..] = *rest {
        let (one, next) = rest.split_at(4 + usize::from(len));
        if kind & 0xf == 3 {
            return one[4..].to_vec();
        }
        rest = next;
    }
    panic!("no NAA identifier in {page:x?}");
}

/// EXTENDED COPY of blocks from unit 0 to unit 1.
fn copy(initiator: &mut Initiator, from_lba: u64, to_lba: u64, blocks: u16) {
    let mut list = vec![1, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 28, 0, 0, 0, 0];
    for lun in [0, 1] {
        let naa = designator(initiator, lun);
        let mut one = [0; 32];
        (one[0], one[4], one[5], one[7]) = (0xe4, 1, 3, naa.len() as u8);
        one[8..8 + naa.len()].copy_from_slice(&naa);
        one[29..32].copy_from_slice(&[0, 2, 0]);
        list.extend(one);
    }
    let mut segment = [0; 28];
    (segment[0], segment[3], segment[7]) = (0x02, 24, 1);
    segment[10..12].copy_from_slice(&blocks.to_be_bytes());
    segment[12..20].copy_from_slice(&from_lba.to_be_bytes());
    segment[20..28].copy_from_slice(&to_lba.to_be_bytes());
    list.extend(segment);
    let mut cdb = [0; 16];
    (cdb[0], cdb[13]) = (0x83, list.len() as u8);
    initiator.done(1, &cdb, &list, 0);
}

#[test]
fn extended_copy_shares_blocks() {
    let dir = pool();
    let folder = dir.path();
    let used = || ok(folder, &["zpool", "get", "-Hp", "-o", "value", "bcloneused", "t"]).parse::<u64>().unwrap();
    let server = Server::start(folder);
    let mut initiator = server.initiator("one");
    // Data that does not compress.
    let mut state = 1u64;
    let mut noise = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let data: Vec<u8> = (0..4 << 20).map(|_| noise()).collect();
    const PIECE: usize = 32 << 10;
    for (n, piece) in data.chunks(PIECE).enumerate() {
        assert_eq!(initiator.write(0, (n * PIECE / 512) as u64, piece), 0);
    }
    assert_eq!(used(), 0);
    // 4 MiB are cloned; of one and a half blocks after them, the half block is copied.
    copy(&mut initiator, 0, 2048, 8192);
    copy(&mut initiator, 0, 16384, 48);
    initiator.done(1, &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0);
    assert_eq!(used(), 4 << 20, "256 blocks are shared");
    let check = |initiator: &mut Initiator| {
        for (n, piece) in data.chunks(PIECE).enumerate() {
            assert!(initiator.read(1, 2048 + (n * PIECE / 512) as u64, PIECE) == piece, "piece {n}");
        }
        assert!(initiator.read(1, 16384, 48 * 512) == data[..48 * 512]);
        assert!(initiator.read(1, 16384 + 48, 512) == [0; 512]);
    };
    check(&mut initiator);
    // The source's blocks are overwritten: the copy keeps its own.
    assert_eq!(initiator.write(0, 0, &[5; PIECE]), 0);
    initiator.done(0, &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0);
    check(&mut initiator);
    drop(server);
    let server = Server::start(folder);
    check(&mut server.initiator("one"));
    drop(server);
    ok(folder, &["zdb", "-e", "-p", folder.to_str().unwrap(), "t", "--invariants"]);
}

/// A session that is open learns at once that it may only read, and that it may write again.
#[test]
fn a_volume_becomes_read_only_under_an_open_session() {
    let dir = pool();
    let folder = dir.path();
    let server = Server::start(folder);
    let mut one = server.initiator("one");
    assert_eq!(one.write(0, 0, &[1; 512]), 0);
    let share = |more: &str| {
        ok(folder, &["zfs", "set", &format!("weir:iscsi=target={TARGET},lun=0,hosts=127.0.0.1{more}"), "t/a"])
    };
    share(",ro");
    // The first command gets the unit attention that the unit has changed.
    let statuses = [one.write(0, 0, &[2; 512]), one.write(0, 0, &[2; 512])];
    assert_eq!(statuses, [CHECK_CONDITION; 2]);
    assert_eq!(one.read(0, 0, 512), [1; 512]);
    let statuses = [one.write(1, 0, &[3; 512]), one.write(1, 0, &[3; 512])];
    assert_eq!(statuses, [CHECK_CONDITION, 0], "the other unit stays writable");
    share("");
    assert_eq!(one.write(0, 0, &[4; 512]), CHECK_CONDITION, "the unit has changed");
    assert_eq!(one.write(0, 0, &[4; 512]), 0);
    assert_eq!(one.read(0, 0, 512), [4; 512]);
}

/// A server that listens on all addresses names the one at which it was found, without which iscsi-ls lists nothing.
#[test]
fn targets_are_listed_by_a_server_on_all_addresses() {
    if Command::new("iscsi-ls").output().is_err() {
        println!("skipped: iscsi-ls is not installed");
        return;
    }
    let dir = pool();
    let server = Server::listening(dir.path(), "0.0.0.0");
    let portal = format!("127.0.0.1:{}", server.port);
    let listed = Command::new("iscsi-ls").arg(format!("iscsi://{portal}")).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains(&format!("Target:{TARGET} Portal:{portal},1")), "{listed}");
}

//! Streams through the daemon: `zfs send` and `zfs receive` on pools that it has open.

use super::*;
use std::io::Write;
use weir_daemon::admin::Frame;

/// Magic number of a BEGIN record, 8 bytes after its start.
const BEGIN_MAGIC: [u8; 8] = 0x2_f5ba_cbac_u64.to_le_bytes();

/// Sends a snapshot; the stream is in this file.
fn sent(site: &Site, line: &str, file: &str) -> Vec<u8> {
    let out = site.command(line).output().unwrap();
    assert!(out.status.success(), "{line}: {}", text(&out.stderr));
    std::fs::write(site.path(file), &out.stdout).unwrap();
    out.stdout
}

fn receive(site: &Site, line: &str, file: &str) -> Output {
    site.command(line).stdin(std::fs::File::open(site.path(file)).unwrap()).output().unwrap()
}

#[test]
fn datasets_move_from_one_pool_to_another_and_failed_streams_leave_nothing() {
    let site = Site::new(2);
    let _daemon = site.start();
    site.ok("zpool create one d0");
    site.ok("zpool create two d1");
    site.ok("zfs create one/a");
    site.ok("zfs create -V 8M one/v");
    site.ok("zfs snapshot one/a@1 one/v@1");
    site.ok("zfs snapshot one/a@2");
    let full = sent(&site, "zfs send one/a@1", "full");
    sent(&site, "zfs send -i @1 one/a@2", "incremental");
    sent(&site, "zfs send one/v@1", "volume");
    for (line, file) in
        [("zfs receive -u two/a", "full"), ("zfs recv -v two/a", "incremental"), ("zfs receive two/v", "volume")]
    {
        let out = receive(&site, line, file);
        assert!(out.status.success(), "{line}: {}\n{}", text(&out.stderr), site.log());
    }
    let guids = |names: &str| site.ok(&format!("zfs get -Hp -o value guid {names}"));
    assert_eq!(guids("one/a@1 one/a@2 one/v@1"), guids("two/a@1 two/a@2 two/v@1"));
    assert_eq!(site.ok("zfs get -Hp -o value volsize two/v"), "8388608\n");
    std::fs::write(site.path("cut"), &full[..full.len() - 400]).unwrap();
    let mut wrong = full.clone();
    wrong[2000] ^= 1;
    std::fs::write(site.path("wrong"), wrong).unwrap();
    for (line, file, why) in [
        ("zfs receive two/b", "cut", "cannot receive new filesystem stream: incomplete stream"),
        ("zfs receive two/b", "wrong", "cannot receive new filesystem stream: checksum mismatch"),
        ("zfs receive two/b", "incremental", "cannot receive incremental stream: destination 'two/b' does not exist"),
        ("zfs receive two/a@3", "full", "exists\nmust specify -F to overwrite it"),
        ("zfs receive -c two/b", "full", "weir does not support zfs receive -c yet"),
    ] {
        let out = receive(&site, line, file);
        assert_eq!(out.status.code(), Some(1), "{line} < {file}");
        assert!(text(&out.stderr).contains(why), "{line} < {file}: {}", text(&out.stderr));
    }
    // A dry run makes the same checks.
    for (line, file, why) in [
        ("zfs receive -nv two/b", "incremental", "destination 'two/b' does not exist"),
        ("zfs receive -nv two/a@3", "full", "exists\nmust specify -F to overwrite it"),
        ("zfs receive -n two/no/b", "full", "parent does not exist"),
    ] {
        let out = receive(&site, line, file);
        assert_eq!((out.status.code(), text(&out.stdout).as_str()), (Some(1), ""), "{line} < {file}");
        assert!(text(&out.stderr).contains(why), "{line} < {file}: {}", text(&out.stderr));
    }
    for (line, file, said) in [
        ("zfs receive -nv two/b", "full", "would receive full stream of one/a@1 into two/b@1\n"),
        ("zfs receive -nv two/a", "incremental", "snap two/a@2 already exists; ignoring\n"),
    ] {
        let out = receive(&site, line, file);
        assert!(
            out.status.success() && text(&out.stdout) == said,
            "{line}: {}{}",
            text(&out.stdout),
            text(&out.stderr)
        );
    }
    assert_eq!(site.ok("zfs list -H -o name -r two"), "two\ntwo/a\ntwo/v\n");
}

#[test]
fn packages_carry_properties_holds_and_clones_and_follow_renames() {
    let site = Site::new(2);
    let _daemon = site.start();
    site.ok("zpool create one d0");
    site.ok("zpool create two d1");
    for name in ["one/a", "one/a/x", "one/a/x/y", "two/b"] {
        site.ok(&format!("zfs create {name}"));
    }
    site.ok("zfs create -V 8M one/a/v");
    site.ok("zfs set compression=lz4 atime=off my:p=hello one/a");
    site.ok("zfs set recordsize=64K one/a/x/y");
    site.ok("zfs snapshot -r one/a@1");
    site.ok("zfs set my:s=first one/a@1");
    site.ok("zfs hold keep one/a/x@1");
    site.ok("zfs clone one/a/x@1 one/a/c");
    site.ok("zfs snapshot -r one/a@2");
    let estimate = site.ok("zfs send -nP -R one/a@2");
    assert!(estimate.starts_with("full\tone/a@1\t") && estimate.contains("\nincremental\t1\tone/a@2\t"), "{estimate}");
    sent(&site, "zfs send -Rh one/a@2", "all");
    // A dry run in the pool of the sender finds the datasets of the package, not those that were sent.
    let out = receive(&site, "zfs receive -nv one/z", "all");
    let said = text(&out.stdout);
    let why = text(&out.stderr);
    assert!(out.status.success() && why.is_empty(), "{said}{why}");
    for (kind, of) in [("full", "@1"), ("incremental", "@2"), ("full", "/x/y@1"), ("incremental", "/c@2")] {
        let line = format!("would receive {kind} stream of one/a{of} into one/z{of}\n");
        assert!(said.contains(&line), "{line}{said}");
    }
    assert!(said.contains("found clone origin one/z/x@1\n") && !said.contains("already exists"), "{said}");
    let out = receive(&site, "zfs receive -u -o exec=off -x atime two/b/a", "all");
    assert!(out.status.success(), "{}\n{}", text(&out.stderr), site.log());
    let of = |property: &str, name: &str| site.ok(&format!("zfs get -Hp -o value,source {property} {name}"));
    for (property, name, expected) in [
        ("compression", "two/b/a", "lz4\treceived\n"),
        ("my:p", "two/b/a", "hello\treceived\n"),
        ("exec", "two/b/a", "off\tlocal\n"),
        ("exec", "two/b/a/x", "off\tinherited from two/b/a\n"),
        ("atime", "two/b/a", "on\tdefault\n"),
        ("recordsize", "two/b/a/x/y", "65536\treceived\n"),
        ("my:s", "two/b/a@1", "first\treceived\n"),
        ("origin", "two/b/a/c", "two/b/a/x@1\t-\n"),
    ] {
        assert_eq!(of(property, name), expected, "{property} of {name}");
    }
    assert!(site.ok("zfs holds -H two/b/a/x@1").starts_with("two/b/a/x@1\tkeep\t"));
    // A value of its own hides the received one; -S brings that back.
    site.ok("zfs set compression=zstd two/b/a");
    let columns = "zfs get -H -o received,value,source";
    assert_eq!(site.ok(&format!("{columns} compression two/b/a")), "lz4\tzstd\tlocal\n");
    assert_eq!(site.ok(&format!("{columns} recordsize two/b/a/x/y")), "64K\t64K\treceived\n");
    assert_eq!(site.ok(&format!("{columns} atime two/b/a/x")), "-\ton\tdefault\n");
    site.ok("zfs inherit compression two/b/a");
    assert_eq!(of("compression", "two/b/a"), "on\tdefault\n");
    site.ok("zfs inherit -S compression two/b/a");
    assert_eq!(of("compression", "two/b/a"), "lz4\treceived\n");
    site.ok("zfs rename one/a/x/y one/a/y");
    site.ok("zfs create one/a/n");
    site.ok("zfs rename one/a/y one/a/n/z");
    site.ok("zfs destroy -r one/a/c");
    site.ok("zfs rename one/a@1 one/a@first");
    site.ok("zfs inherit my:p one/a");
    site.ok("zfs snapshot -r one/a@3");
    sent(&site, "zfs send -R -I @2 one/a@3", "more");
    let out = receive(&site, "zfs receive -uF two/b/a", "more");
    assert!(out.status.success(), "{}\n{}", text(&out.stderr), site.log());
    let names = |top: &str| {
        let all = site.ok(&format!("zfs list -H -t all -o name -r {top}"));
        all.lines().map(|line| line.strip_prefix(top).unwrap_or(line).to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names("one/a"), names("two/b/a"));
    assert_eq!(of("my:p", "two/b/a"), "-\t-\n");
    // Received values are those of a backup that is sent back.
    site.ok("zfs set compression=off two/b/a");
    sent(&site, "zfs send -b two/b/a@3", "back");
    let out = receive(&site, "zfs receive -u one/back", "back");
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert_eq!(of("compression", "one/back"), "lz4\treceived\n");
    assert!(site.fails("zfs receive -o used=1 two/c").contains("invalid property 'used'"));
}

#[test]
fn interrupted_streams_are_continued_or_discarded() {
    let site = Site::new(2);
    let _daemon = site.start();
    site.ok("zpool create one d0");
    site.ok("zpool create two d1");
    site.ok("zfs create one/a");
    site.ok("zfs snapshot one/a@1");
    site.ok("zfs set userquota@7=5M one/a");
    site.ok("zfs snapshot one/a@2");
    let token_of = |name: &str| site.ok(&format!("zfs get -Hp -o value receive_resume_token {name}")).trim().to_owned();
    let full = sent(&site, "zfs send one/a@1", "full");
    let mut tokens = Vec::new();
    // Of a stream that ends after its BEGIN record nothing is left to continue.
    std::fs::write(site.path("cut"), &full[..312]).unwrap();
    let out = receive(&site, "zfs receive -su two/a", "cut");
    assert!(out.status.code() == Some(1) && !text(&out.stderr).contains("saved"), "{}", text(&out.stderr));
    assert!(site.fails("zfs list two/a").contains("does not exist"));
    for cut in [full.len() - 400, full.len() / 2] {
        std::fs::write(site.path("cut"), &full[..cut]).unwrap();
        let out = receive(&site, "zfs receive -su two/a", "cut");
        let why = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1));
        let token = token_of("two/a");
        assert!(why.contains("Partially received snapshot is saved.") && why.contains(&token), "{why}");
        // Nothing else is received meanwhile, and nothing of it is seen.
        let out = receive(&site, "zfs receive -u two/a", "full");
        assert!(text(&out.stderr).contains("contains partially-complete state"), "{}", text(&out.stderr));
        assert_eq!(site.ok("zfs list -H -t all -o name -r two"), "two\ntwo/a\n");
        tokens.push(token.clone());
        if cut == full.len() - 400 {
            site.ok("zfs receive -A two/a");
            assert_eq!(site.ok("zfs list -H -t all -o name -r two"), "two\n");
            assert!(site.fails("zfs receive -A two").contains("does not have any resumable receive state to abort"));
        } else {
            // The name of the snapshot at the sender does not matter.
            site.ok("zfs rename one/a one/c");
            sent(&site, &format!("zfs send -t {token}"), "rest");
            let out = receive(&site, "zfs receive -su two/a", "rest");
            assert!(out.status.success(), "{}\n{}", text(&out.stderr), site.log());
            assert_eq!(token_of("two/a"), "-");
        }
    }
    assert!(site.fails("zfs send -t 1-0-0-").contains("resume token is corrupt"));
    let guids = |names: &str| site.ok(&format!("zfs get -Hp -o value guid {names}"));
    assert_eq!(guids("one/c@1"), guids("two/a@1"));
    // Into an existing dataset: the clone is hidden, and goes with the dataset.
    let more = sent(&site, "zfs send -i @1 one/c@2", "more");
    assert!(more.len() > 624);
    std::fs::write(site.path("cut"), &more[..more.len() - 312]).unwrap();
    let out = receive(&site, "zfs receive -su two/a", "cut");
    assert_eq!(out.status.code(), Some(1), "{}", text(&out.stderr));
    assert_eq!(site.ok("zfs list -H -t all -o name -r two"), "two\ntwo/a\ntwo/a@1\n");
    site.ok("zfs destroy -r two/a");
    assert_eq!(site.ok("zfs list -H -t all -o name -r two"), "two\n");
}

#[test]
fn encrypted_parents_encrypt_what_they_receive_and_raw_streams_need_no_key() {
    let site = Site::new(2);
    let _daemon = site.start();
    site.ok("zpool create one d0");
    site.ok("zpool create two d1");
    std::fs::write(site.path("key"), [7; 32]).unwrap();
    let location = format!("file://{}", site.path("key").display());
    site.ok("zfs create one/a");
    site.ok("zfs snapshot one/a@1");
    site.ok("zfs set userquota@7=5M one/a");
    site.ok("zfs snapshot one/a@2");
    site.ok("zfs clone one/a@1 one/c");
    site.ok("zfs snapshot one/c@3");
    let key = format!("-o encryption=aes-256-gcm -o keyformat=raw -o keylocation={location}");
    site.ok(&format!("zfs create {key} two/e"));
    sent(&site, "zfs send one/a@1", "full");
    sent(&site, "zfs send -i @1 one/a@2", "more");
    sent(&site, "zfs send -i one/a@1 one/c@3", "clone");
    sent(&site, "zfs send -p one/a@1", "props");
    for (line, file) in [
        ("zfs receive -u two/e/a".to_owned(), "full"),
        ("zfs receive -u two/e/a".to_owned(), "more"),
        ("zfs receive -u two/e/c".to_owned(), "clone"),
        ("zfs receive -u -x encryption two/e/p".to_owned(), "props"),
        (format!("zfs receive -u {key} two/own"), "full"),
    ] {
        let out = receive(&site, &line, file);
        assert!(out.status.success(), "{line} < {file}: {}\n{}", text(&out.stderr), site.log());
    }
    for (name, root) in [
        ("two/e/a", "two/e"),
        ("two/e/a@2", "two/e"),
        ("two/e/c", "two/e"),
        ("two/e/p", "two/e"),
        ("two/own", "two/own"),
    ] {
        assert_eq!(site.ok(&format!("zfs get -H -o value encryptionroot {name}")), format!("{root}\n"), "{name}");
    }
    // Back into plain text, and the same again.
    sent(&site, "zfs send two/e/a@1", "again");
    let out = receive(&site, "zfs receive -u one/back", "again");
    assert!(out.status.success(), "{}", text(&out.stderr));
    let raw = sent(&site, "zfs send -w two/e/a@2", "raw");
    site.ok("zfs unload-key -r two/e");
    assert_eq!(sent(&site, "zfs send -w two/e/a@2", "raw"), raw);
    let out = receive(&site, "zfs receive -u one/raw", "raw");
    assert!(out.status.success(), "{}\n{}", text(&out.stderr), site.log());
    assert_eq!(site.ok("zfs get -H -o value encryptionroot,keystatus one/raw"), "one/raw\nunavailable\n");
    assert!(site.fails("zfs send two/e/a@2").contains("source key must be loaded"));
    for (line, file, why) in [
        ("zfs receive -u two/e/b", "full", "key is not loaded"),
        ("zfs receive -u -d two/nowhere", "full", "specified fs (two/nowhere) does not exist"),
        ("zfs receive -uF two/own", "full", "zfs receive -F cannot be used to destroy an encrypted filesystem"),
        ("zfs receive -u -o encryption=on -o keyformat=raw two/k", "full", "the stream is on standard input"),
    ] {
        let out = receive(&site, line, file);
        assert_eq!(out.status.code(), Some(1), "{line} < {file}");
        assert!(text(&out.stderr).contains(why), "{line} < {file}: {}", text(&out.stderr));
    }
    // A stream with properties is that of a dataset that is not encrypted, and so is what is received.
    let out = receive(&site, "zfs receive -u two/e/plain", "props");
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert_eq!(site.ok("zfs get -H -o value encryption two/e/plain"), "off\n");
}

#[test]
fn raw_streams_are_received_without_the_key_which_is_loaded_later() {
    let site = Site::new(2);
    let _daemon = site.start();
    site.ok("zpool create one d0");
    site.ok("zpool create two d1");
    let key = site.path("key");
    std::fs::write(&key, "2a".repeat(32)).unwrap();
    let location = format!("file://{}", key.display());
    site.ok(&format!("zfs create -o encryption=on -o keyformat=hex -o keylocation={location} one/e"));
    site.ok("zfs create one/e/child");
    site.ok("zfs create two/plain");
    site.ok("zfs snapshot -r one/e@1");
    site.ok("zfs set userquota@7=5M one/e");
    for snapshot in ["2", "3", "4"] {
        site.ok(&format!("zfs snapshot -r one/e@{snapshot}"));
    }
    sent(&site, "zfs send -w -R one/e@1", "all");
    sent(&site, "zfs send -w -i @1 one/e@2", "raw2");
    sent(&site, "zfs send -i @2 one/e@3", "plain3");
    sent(&site, "zfs send -w -i @3 one/e@4", "raw4");
    let refused = |line: &str, file: &str, why: &str| {
        let out = receive(&site, line, file);
        assert_eq!(out.status.code(), Some(1), "{line} < {file}");
        assert!(text(&out.stderr).contains(why), "{line} < {file}: {}", text(&out.stderr));
    };
    refused("zfs receive -x encryption two/e", "all", "cannot be set or excluded for raw streams");
    for (line, file) in [("zfs receive -u two/e", "all"), ("zfs receive -u two/e", "raw2")] {
        let out = receive(&site, line, file);
        assert!(out.status.success(), "{line} < {file}: {}\n{}", text(&out.stderr), site.log());
    }
    let of = |property: &str, name: &str| site.ok(&format!("zfs get -Hp -o value {property} {name}"));
    assert_eq!(of("guid", "two/e@2"), of("guid", "one/e@2"));
    assert_eq!(of("encryptionroot", "two/e two/e/child"), "two/e\ntwo/e\n");
    assert_eq!(of("keystatus", "two/e two/e/child"), "unavailable\nunavailable\n");
    refused("zfs receive -u two/plain", "raw2", "cannot perform raw receive on top of existing unencrypted dataset");
    refused("zfs receive -uF two/plain", "all", "zfs receive -F cannot be used to destroy an encrypted filesystem");
    refused("zfs receive -u two/e", "plain3", "inherited key must be loaded");
    site.ok(&format!("zfs load-key -L {location} two/e"));
    assert_eq!(of("keystatus", "two/e two/e/child"), "available\navailable\n");
    assert_eq!(of("userquota@7", "two/e"), "5242880\n");
    // After a stream that was encrypted here, the IVs are others than the sender's.
    let out = receive(&site, "zfs receive -u two/e", "plain3");
    assert!(out.status.success(), "{}\n{}", text(&out.stderr), site.log());
    refused("zfs receive -u two/e", "raw4", "IV set guid mismatch");
}

/// Receives the pieces of a stream as a client that ends right after it has sent the last of them.
fn receive_and_end(site: &Site, line: &str, pieces: &[&[u8]]) {
    let mut socket = races::call(site, "zfs", line);
    for piece in pieces {
        while !matches!(races::read_frame(&mut socket), Frame::AskBytes(_)) {}
        socket.write_all(&Frame::Input(piece.to_vec()).encode()).unwrap();
    }
    // The daemon reads the end of the client, and closes the connection when the command has ended.
    socket.shutdown(std::net::Shutdown::Write).unwrap();
    std::io::copy(&mut socket, &mut std::io::sink()).unwrap();
}

#[test]
fn a_client_that_ends_within_a_stream_leaves_whole_datasets_alone() {
    let site = Site::new(2);
    let _daemon = site.start();
    site.ok("zpool create one d0");
    site.ok("zpool create two d1");
    site.ok("zfs create one/a");
    site.ok("zfs create one/a/x");
    site.ok("zfs snapshot -r one/a@1");
    let all = sent(&site, "zfs send -R one/a@1", "all");
    let begins: Vec<usize> = (0..all.len() - 16).filter(|at| all[at + 8..at + 16] == BEGIN_MAGIC).collect();
    let [_, a, x] = begins[..] else { panic!("{begins:?}") };
    let list = || site.ok("zfs list -H -t all -o name -r two");
    for (cut, left) in [(a + 700, "two\n"), (x + 700, "two\ntwo/a\ntwo/a@1\n")] {
        receive_and_end(&site, "receive -u two/a", &[&all[..cut / 2], &all[cut / 2..cut]]);
        site.wait_until("the incomplete dataset is gone", || list() == left);
        if left != "two\n" {
            site.ok("zfs destroy -r two/a");
        }
    }
    // No command is left that waits for the rest of a stream.
    site.ok("zpool export two");
}

#[test]
fn bookmarks_of_an_origin_are_copied_to_its_clone() {
    let site = Site::new(1);
    site.ok("zpool create -O mountpoint=none tank d0");
    site.ok("zfs create tank/a");
    site.ok("zfs snapshot tank/a@old");
    site.ok("zfs bookmark tank/a@old tank/a#old");
    site.ok("zfs snapshot tank/a@origin");
    site.ok("zfs clone tank/a@origin tank/c");
    site.ok("zfs snapshot tank/a@new");
    site.ok("zfs bookmark tank/a@new tank/a#new");
    site.ok("zfs create tank/other");
    site.ok("zfs bookmark tank/a#old tank/c#copy");
    let guids = site.ok("zfs get -Hp -o value guid tank/a#old tank/c#copy");
    let guids: Vec<&str> = guids.lines().collect();
    assert_eq!((guids.len(), guids.first()), (2, guids.last()));
    // The clone's history ends at its origin, and another file system has none of these snapshots.
    for line in ["zfs bookmark tank/a#new tank/c#new", "zfs bookmark tank/a#old tank/other#old"] {
        let out = site.command(line).output().unwrap();
        let why = String::from_utf8(out.stderr).unwrap();
        assert!(why.contains("source is not an ancestor of the new bookmark's dataset"), "{line}: {why}");
        assert_eq!(out.status.code(), Some(1));
    }
    assert_eq!(site.ok("zfs list -H -t bookmark -o name -r tank/c tank/other"), "tank/c#copy\n");
}

//! Streams through the daemon: `zfs send` and `zfs receive` on pools that it has open.

use super::*;

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
        ("zfs receive -s two/b", "full", "weir does not support zfs receive -s yet"),
    ] {
        let out = receive(&site, line, file);
        assert_eq!(out.status.code(), Some(1), "{line} < {file}");
        assert!(text(&out.stderr).contains(why), "{line} < {file}: {}", text(&out.stderr));
    }
    assert!(site.fails("zfs send -R one/a@1").contains("weir does not support zfs send -R yet"));
    assert_eq!(site.ok("zfs list -H -o name -r two"), "two\ntwo/a\ntwo/v\n");
}

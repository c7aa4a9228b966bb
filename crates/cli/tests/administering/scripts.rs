//! What scripts for OpenZFS rely on: exit codes, texts and the output of `zdb`.

use super::Lab;
use std::os::unix::process::ExitStatusExt;

/// The field after a word in a text.
fn after<'a>(text: &'a str, word: &str) -> &'a str {
    text.split_once(word).and_then(|(_, rest)| rest.split_whitespace().next()).unwrap()
}

#[test]
fn a_forced_sync_writes_a_txg_without_changes() {
    let lab = Lab::new();
    let mut process = lab.serve();
    let txg = || after(&lab.ok("zdb -u p"), "\ttxg = ").parse::<u64>().unwrap();
    lab.ok("zpool sync p");
    let before = txg();
    lab.ok("zpool sync -f p");
    assert!(txg() > before, "{before}");
    process.kill().unwrap();
    process.wait().unwrap();
    lab.ok("zpool sync -f p");
    lab.check();
}

#[test]
fn a_dataset_with_snapshots_has_children_although_they_have_clones() {
    let lab = Lab::new();
    lab.ok("zfs create p/a");
    lab.ok("zfs snapshot p/a@s");
    lab.ok("zfs clone p/a@s p/a/clone");
    lab.ok("zfs promote p/a/clone");
    for name in ["p/a", "p/a/clone"] {
        let said = lab.fails(&format!("zfs destroy {name}"));
        assert!(said.contains("filesystem has children"), "{said}");
    }
    lab.ok("zfs create p/b");
    lab.ok("zfs snapshot p/b@s");
    lab.ok("zfs clone p/b@s p/c");
    assert!(lab.fails("zfs destroy -r p/b").contains("filesystem has dependent clones"));
}

#[test]
fn invalid_calls_of_zpool_and_zfs_end_with_their_usage() {
    let lab = Lab::new();
    for program in ["zpool", "zfs"] {
        let out = lab.run(program);
        let said = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(2));
        assert!(said.contains(&format!("usage: {program} command args")), "{said}");
        assert!(said.lines().all(|line| line.chars().count() <= 80), "{said}");
    }
    // OpenZFS's commands have no -h.
    for line in ["zfs get -h", "zpool resilver -h p", "zpool events -Hh"] {
        let out = lab.run(line);
        assert_eq!(out.status.code(), Some(2), "{line}");
        assert!(String::from_utf8(out.stderr).unwrap().to_lowercase().contains("usage: z"), "{line}");
    }
    assert!(lab.ok("zfs get --help").contains("Usage: zfs get"));
    lab.ok("zfs snapshot p@a");
    lab.ok("zfs snapshot p@b");
    assert_eq!(lab.run("zfs send -i @a -i @a p@b").status.code(), Some(2));
    assert!(lab.fails("zfs create -s -V 1z p/v").contains("value is too large"));
    let aborted = lab.weir("zfs list").env("ZFS_ABORT", "yes").output().unwrap();
    assert_eq!(aborted.status.signal(), Some(6), "a core is dumped on request");
}

#[test]
fn a_clone_of_a_volume_reserves_what_the_volume_can_occupy() {
    let lab = Lab::new();
    let reserved = |name: &str| lab.ok(&format!("zfs get -Hp -o value refreservation {name}"));
    lab.ok("zfs create -V 16M p/thick");
    lab.ok("zfs create -s -V 16M p/sparse");
    lab.ok("zfs snapshot p/sparse@s");
    lab.ok("zfs clone -o refreservation=auto p/sparse@s p/clone");
    assert_eq!(reserved("p/clone"), reserved("p/thick"));
    assert_ne!(reserved("p/clone").trim(), "0");
    lab.ok("zfs create p/f");
    lab.ok("zfs snapshot p/f@s");
    assert!(lab.fails("zfs clone -o refreservation=auto p/f@s p/g").contains("only for volumes"));
}

#[test]
fn the_status_names_features_that_compatibility_allows_and_the_pool_lacks() {
    let lab = Lab::new();
    std::fs::File::create(lab.path("e0")).unwrap().set_len(128 << 20).unwrap();
    std::fs::write(lab.path("old"), "lz4_compress\nasync_destroy\n").unwrap();
    std::fs::write(lab.path("new"), "lz4_compress\nasync_destroy\nlarge_blocks\n").unwrap();
    let set = |name: &str| format!("compatibility={}", lab.path(name).display());
    lab.ok(&format!("zpool create -o {} q {}", set("old"), lab.path("e0").display()));
    let lacks = || lab.ok("zpool status q").contains("features are not enabled");
    assert!(!lacks());
    lab.ok(&format!("zpool set {} q", set("new")));
    assert!(lacks());
    lab.ok("zpool upgrade q");
    assert!(!lacks());
}

#[test]
fn zdb_shows_objects_by_range_and_bytes_by_address() {
    let lab = Lab::new();
    let rows = |line: &str| {
        let text = lab.ok(line);
        let is_row =
            |line: &&str| line.split_whitespace().take(7).filter(|word| word.parse::<u64>().is_ok()).count() >= 6;
        text.lines().filter(is_row).map(str::to_owned).collect::<Vec<String>>()
    };
    let all = rows("zdb -P -dd p 0:-1");
    assert!(all.len() > 10);
    assert_eq!(rows("zdb -P -dd p 0x0:-1:A"), all);
    let zaps = rows("zdb -P -dd p 0:-1:z");
    assert!(!zaps.is_empty() && zaps.iter().all(|row| all.contains(row)));
    assert_eq!(rows("zdb -P -dd p 0:-1:A-z").len() + zaps.len(), all.len());
    assert!(lab.fails("zdb -dd p 0:1:A-").contains("invalid object range"));
    // Number 1 in a file system that a mount of another one contains.
    assert_eq!(rows(&format!("zdb -P -dd p {}", (2u64 << 48) + 1)), rows("zdb -P -dd p 1"));

    let shown = lab.ok("zdb -ddddd p 1");
    let pointer = shown.lines().find(|line| line.contains(" L0 DVA[0]=<")).unwrap();
    let place = pointer.split_once("DVA[0]=<").unwrap().1.split_once('>').unwrap().0;
    let (vdev, offset) = place.rsplit_once(':').unwrap().0.split_once(':').unwrap();
    let sizes = after(pointer, " size=");
    let sum = after(pointer, " cksum=");
    let (logical, physical) = sizes.split_once('/').unwrap();
    assert_ne!(logical.trim_end_matches('L'), physical.trim_end_matches('P'), "it is compressed: {pointer}");
    let bytes = |word: &str| lab.run(&format!("zdb -R p {word}")).stdout;
    let block = bytes(&format!("{vdev}:{offset}:{sizes}:dr"));
    assert_eq!(block.len(), usize::from_str_radix(logical.trim_end_matches('L'), 16).unwrap());
    assert_eq!(bytes(&format!("{vdev}.1:{offset}:{sizes}:dr")), block, "the other side of the mirror");
    assert!(lab.ok(&format!("zdb -R p {vdev}:{offset}:{physical}:c")).contains(sum));
    for (word, why) in [
        ("9:0:200", "there is no vdev 9"),
        ("0.7:0:200", "there is no vdev 0.7"),
        ("0:1:200", "multiple of sector size"),
        ("0:fffffffffffffe00:200", "0:fffffffffffffe00:200"),
    ] {
        let said = lab.fails(&format!("zdb -R p {word}"));
        assert!(said.contains(why), "{word}: {said}");
    }
    assert_eq!(lab.run("zdb -R p").status.code(), Some(2));
    assert_eq!(lab.run("zdb /x p").status.code(), Some(2), "no name of a pool");
}

#[test]
fn zdb_without_a_pool_shows_the_cache_file() {
    let lab = Lab::new();
    let file = lab.path("cache");
    lab.ok(&format!("zpool set cachefile={} p", file.display()));
    let text = lab.ok(&format!("zdb -C -U {}", file.display()));
    assert!(text.starts_with("p:\n") && text.contains("pool_guid: "), "{text}");
    let other = lab.fails(&format!("zdb -U {}", lab.path("none").display()));
    assert!(other.contains("no pool is in the cache file"), "{other}");
}

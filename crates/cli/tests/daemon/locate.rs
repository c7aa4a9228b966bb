//! `weir where` on a pool that the daemon has open, and on one that no process has.

use super::*;

#[test]
fn blocks_are_located_and_cached_ones_are_known_to_the_daemon_alone() {
    let site = Site::new(1);
    let daemon = site.start();
    site.ok("zpool create one d0");
    site.ok("zfs create one/a");
    site.ok("zfs snapshot one/a@1");
    // The master node: a look-up of its entries has brought it into the cache.
    site.ok("zfs get -H version one/a@1");
    let blocks = |line: &str| {
        let answer: serde_json::Value = serde_json::from_str(&site.ok(line)).unwrap();
        answer["blocks"].as_array().unwrap().clone()
    };
    let served = blocks("where -j --json-int one/a 1");
    assert_eq!(served.len(), 1, "{served:?}");
    assert!(served[0]["cached"].is_boolean() && served[0]["level"] == 0, "{served:?}");
    let copies = served[0]["copies"].as_array().unwrap();
    assert!(copies.len() == 2 && copies.iter().all(|copy| copy["checksum"] == "ok"), "{copies:?}");
    // The root directory of a snapshot, by its path.
    assert_eq!(blocks("where -j one/a@1 /")[0]["offset"], "0");
    assert!(site.fails("where one/a /nothing").contains("/nothing"));
    assert!(site.fails("where d0").contains("is not on a mount of weir"));
    drop(daemon);
    let dir = site.path("");
    let closed = blocks(&format!("where -j --json-int -d {} one/a 1", dir.display()));
    assert!(closed[0]["cached"].is_null() && closed[0]["copies"] == served[0]["copies"], "{closed:?}");
}

#[test]
fn holes_are_shown_and_a_file_without_blocks_says_so() {
    let site = Site::new(1);
    let _daemon = site.start();
    site.ok("zpool create -O weir:nbd=on one d0");
    site.ok("zfs create -V 16M -o compression=off one/v");
    let shown = site.ok("where one/v 1");
    assert!(
        shown.contains("one/v: 1 (object 1) has no blocks in the last synced txg: it is empty, was written after that"),
        "{shown}"
    );
    assert_eq!(site.ok("where -H one/v 1"), "");
    site.nbd("one/v").write(1 << 20, &[7; 16 << 10]);
    site.ok("zpool sync one");
    let shown = site.ok("where -H one/v 1");
    let starts: Vec<&str> = shown.lines().map(|line| line.trim_end_matches(['-', '\t'])).collect();
    let [top, "hole\t0\t1048576", block] = starts[..] else { panic!("{shown}") };
    assert!(top.starts_with("L1\t0\t") && block.starts_with("L0\t1048576\t16384\t"), "{shown}");
    assert!(site.ok("where one/v 1").contains("\nhole              0      1M"), "{}", site.ok("where one/v 1"));
    let answer: serde_json::Value = serde_json::from_str(&site.ok("where -j --json-int one/v 1")).unwrap();
    assert_eq!(answer["holes"], serde_json::json!([{ "offset": 0, "length": 1 << 20 }]));
}

//! `zpool attach -s` and `replace -s`: sequential rebuilds.

use super::*;

#[test]
fn a_device_is_rebuilt_in_a_pool_that_is_not_served_and_in_one_that_is() {
    let lab = Lab::new();
    for name in ["e", "f"] {
        std::fs::File::create(lab.path(name)).unwrap().set_len(256 << 20).unwrap();
    }
    lab.ok("zpool attach -s p d0 e");
    let status = lab.ok("zpool status p");
    assert!(status.contains("  scan: scrub repaired 0B"), "{status}");
    assert!(status.contains("  scan: resilvered (mirror-0) ") && status.contains(" with 0 errors on "), "{status}");
    let json: serde_json::Value = serde_json::from_str(&lab.ok("zpool status -j p")).unwrap();
    let rebuild = &json["pools"]["p"]["scan_stats"]["rebuild_stats"]["mirror-0"];
    assert_eq!((rebuild["state"].as_str(), rebuild["errors"].as_str()), (Some("COMPLETE"), Some("0")), "{rebuild}");
    assert_eq!(lab.ok("zpool get -Ho value feature@device_rebuild p"), "enabled\n");
    let history = lab.ok("zpool history -i p");
    let lines: Vec<&str> = history.lines().filter(|line| line.contains("] rebuild vdev_id=0 vdev_guid=")).collect();
    assert!(lines.len() == 2 && lines[0].ends_with(" started") && lines[1].ends_with(" complete"), "{history}");
    let mut server = lab.serve();
    lab.ok("zpool replace -s -w p d1 f");
    let status = lab.ok("zpool status p");
    assert!(status.contains(&lab.path("f").display().to_string()) && !status.contains("replacing"), "{status}");
    let events = lab.ok("zpool events -v p");
    for class in ["sysevent.fs.zfs.resilver_start", "sysevent.fs.zfs.resilver_finish"] {
        assert!(events.contains(class), "{class}: {events}");
    }
    assert!(events.contains("resilver_type = \"sequential\""), "{events}");
    lab.ok("zpool wait p");
    lab.ok("zpool export p");
    assert!(server.wait().unwrap().success());
    check(lab.0.path());
}

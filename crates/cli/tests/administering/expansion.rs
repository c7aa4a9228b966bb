//! `zpool attach` of a device to a RAID-Z vdev.

use super::*;

#[test]
fn a_raidz_vdev_is_expanded_in_a_pool_that_is_served_and_in_one_that_is_not() {
    let lab = Lab::new();
    for name in ["a", "b", "c", "d", "e"] {
        lab.disk(name, 96);
    }
    // The pool of the lab is not in the way of the one that is served.
    lab.ok("zpool destroy p");
    ["d0", "d1"].iter().for_each(|disk| std::fs::remove_file(lab.path(disk)).unwrap());
    lab.ok("zpool create p raidz1 a b c");
    assert_eq!(
        lab.fails("zpool attach p raidz1-0 d"),
        "cannot attach d to raidz1-0: raidz_expansion feature must be enabled in order to attach a device to raidz\n"
    );
    lab.ok("zpool set feature@raidz_expansion=enabled p");
    let size = |lab: &Lab| lab.ok("zpool list -Hpo size p").trim().parse::<u64>().unwrap();
    let before = size(&lab);
    lab.ok("zpool attach p raidz1-0 d");
    let status = lab.ok("zpool status p");
    assert!(status.contains("expand: expanded raidz1-0 copied ") && status.contains(" in 00:0"), "{status}");
    assert!(status.contains("scan: scrub repaired 0B"), "{status}");
    assert!(size(&lab) > before);
    assert_eq!(lab.ok("zpool get -Ho value raidz_expanding p raidz1-0"), "off\n");
    let history = lab.ok("zpool history -i p");
    assert!(history.contains("raidz vdev expansion started p vdev 0 new width 4"), "{history}");
    assert!(history.contains("raidz vdev expansion completed p vdev 0 new width 4"), "{history}");
    let mut server = lab.serve();
    lab.ok("zpool attach -w p raidz1-0 e");
    lab.ok("zpool wait -t raidz_expand p");
    let status = lab.ok("zpool status p");
    assert!(status.contains("expand: expanded raidz1-0 copied "), "{status}");
    assert!(status.contains(&lab.path("e").display().to_string()), "{status}");
    lab.ok("zpool wait -t scrub p");
    lab.ok("zpool export p");
    assert!(server.wait().unwrap().success());
    check(lab.0.path());
}

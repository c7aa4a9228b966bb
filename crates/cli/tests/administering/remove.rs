//! `zpool remove` of log vdevs, and of vdevs with data.

use super::*;

#[test]
fn a_log_leaves_a_pool_that_is_served_and_one_that_is_not() {
    let lab = Lab::new();
    let disk = |name: &str| {
        std::fs::File::create(lab.path(name)).unwrap().set_len(128 << 20).unwrap();
        lab.path(name).display().to_string()
    };
    let l0 = disk("l0");
    let l1 = disk("l1");
    let m0 = disk("m0");
    lab.ok(&format!("zpool add p log {m0} mirror {l0} {l1}"));
    assert_eq!(
        lab.ok("zpool remove -n p mirror-2 m0"),
        "Memory that will be used after removing mirror-2: 0\nMemory that will be used after removing m0: 0\n"
    );
    assert_eq!(lab.ok("zpool remove -np p m0"), "m0 0\n");
    assert!(lab.fails("zpool remove p l0").contains("operation not supported on this type of pool"));
    lab.ok("zpool remove p m0");
    let mut server = lab.serve();
    lab.ok("zpool remove p mirror-2");
    let status = lab.ok("zpool status p");
    assert!(!status.contains("logs") && status.contains("errors: No known data errors"), "{status}");
    // A device that was added meanwhile is free at once.
    for _ in 0..2 {
        lab.ok(&format!("zpool add p log {m0}"));
        lab.ok(&format!("zpool remove p {m0}"));
    }
    assert!(lab.ok("zpool history p").contains("zpool remove p mirror-2"));
    lab.ok("zpool export p");
    assert!(server.wait().unwrap().success());
    check(lab.0.path());
}

#[test]
fn a_vdev_with_data_leaves_a_pool_that_is_served_and_one_that_is_not() {
    let lab = Lab::new();
    for (name, mib) in [("a", 128), ("b", 128), ("c", 768)] {
        lab.disk(name, mib);
    }
    let a = lab.path("a");
    let b = lab.path("b");
    lab.ok("zpool create q a b c");
    lab.ok("zfs create q/home");
    let estimate = lab.ok(&format!("zpool remove -np q {}", a.display()));
    let bytes = estimate.trim_end().rsplit(' ').next().unwrap().parse::<u64>().unwrap();
    assert!(bytes > 0 && bytes % 24 == 0, "{estimate}");
    assert!(lab.ok("zpool remove -n q a").starts_with("Memory that will be used after removing a: "));
    assert_eq!(lab.fails("zpool remove -s q"), "cannot cancel removal: there is no active removal\n");
    assert_eq!(lab.run("zpool remove -s q a").status.code(), Some(2));
    lab.ok("zpool remove q a");
    let status = lab.ok("zpool status q");
    assert!(
        status.contains("remove: Removal of vdev 0 copied ") && status.contains(" in 0h0m, completed on "),
        "{status}"
    );
    assert!(status.contains(" memory used for removed device mappings\n"), "{status}");
    assert!(!status.contains(&a.display().to_string()), "{status}");
    // The device is free again.
    lab.ok("zpool create r a");
    lab.ok("zpool export r");
    lab.ok("zpool remove -w q b");
    assert!(!lab.ok("zpool status q").contains(&b.display().to_string()));
    lab.ok("zpool wait -t remove q");
    assert_eq!(lab.fails("zpool remove q c"), "cannot remove c: out of space\n");
    for name in ["x", "y", "z"] {
        lab.disk(name, 128);
    }
    let raidz = lab.fails("zpool add -f q raidz1 x y z");
    assert!(raidz.contains("cannot be added to a pool with removed vdevs"), "{raidz}");
    lab.ok("zpool export q");
}

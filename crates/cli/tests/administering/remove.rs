//! `zpool remove` of log vdevs.

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
    lab.ok(&format!("zpool add p log mirror {l0} {l1} log {m0}"));
    assert_eq!(
        lab.ok("zpool remove -n p mirror-1 m0"),
        "Memory that will be used after removing mirror-1: 0\nMemory that will be used after removing m0: 0\n"
    );
    assert_eq!(lab.ok("zpool remove -np p m0"), "m0 0\n");
    assert!(lab.fails("zpool remove p l0").contains("operation not supported on this type of pool"));
    lab.ok("zpool remove p m0");
    let mut server = lab.serve();
    lab.ok("zpool remove p mirror-1");
    let status = lab.ok("zpool status p");
    assert!(!status.contains("logs") && status.contains("errors: No known data errors"), "{status}");
    // A device that was added meanwhile is free at once.
    for _ in 0..2 {
        lab.ok(&format!("zpool add p log {m0}"));
        lab.ok(&format!("zpool remove p {m0}"));
    }
    assert!(lab.ok("zpool history p").contains("zpool remove p mirror-1"));
    lab.ok("zpool export p");
    assert!(server.wait().unwrap().success());
    check(lab.0.path());
}

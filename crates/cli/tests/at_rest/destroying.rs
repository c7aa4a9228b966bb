//! What `zfs destroy` and `zfs rollback` destroy, and what they say of it.

use super::*;

#[test]
fn a_rollback_destroys_clones_of_later_snapshots_if_asked() {
    let lab = Lab::new(1);
    lab.ok("zpool create p D0");
    lab.ok("zfs create p/w");
    for line in ["snapshot p/w@a", "snapshot p/w@b", "bookmark p/w@b #m", "clone p/w@b p/c", "create p/c/below"] {
        lab.ok(&format!("zfs {line}"));
    }
    for line in ["snapshot p/c@x", "clone p/c@x p/cc", "snapshot p/w@c"] {
        lab.ok(&format!("zfs {line}"));
    }
    let names = || lab.ok("zfs list -H -t all -o name");
    let before = names();
    let later = "cannot rollback to 'p/w@a': more recent snapshots or bookmarks exist\nuse '-r' to force deletion of the \
                 following snapshots and bookmarks:\np/w@b\np/w@c\np/w#m\n";
    assert_eq!(lab.fails("zfs rollback p/w@a"), (1, later.into()));
    let clones = "cannot rollback to 'p/w@a': clones of previous snapshots exist\nuse '-R' to force deletion of the \
                  following clones and dependents:\np/cc\np/c/below\np/c@x\np/c\n";
    assert_eq!(lab.fails("zfs rollback -r p/w@a"), (1, clones.into()));
    assert_eq!(names(), before, "a refused rollback changes nothing");
    lab.ok("zfs rollback -R p/w@a");
    assert_eq!(names(), "p\np/w\np/w@a\n");
    assert!(lab.ok("zpool history p").contains("zfs rollback -R p/w@a"));
    lab.check("p");
}

#[test]
fn a_missing_bookmark_is_not_destroyed() {
    let lab = Lab::new(1);
    lab.ok("zpool create p D0");
    for line in ["create p/w", "snapshot p/w@a", "bookmark p/w@a #a"] {
        lab.ok(&format!("zfs {line}"));
    }
    for name in ["p/w#nope", "p/no#a", "p/w#"] {
        assert_eq!(lab.fails(&format!("zfs destroy {name}")), (1, format!("bookmark '{name}' does not exist.\n")));
    }
    for (option, what) in [("-n", "dryrun"), ("-d", "defer destroy"), ("-r", "recursive")] {
        let said = format!("{what} is not supported with bookmark\n");
        assert_eq!(lab.fails(&format!("zfs destroy {option} p/w#a")), (1, said));
    }
    assert!(!lab.ok("zpool history p").contains("zfs destroy"), "what failed is not in the history");
    lab.ok("zfs destroy p/w#a");
    assert_eq!(lab.ok("zfs list -H -t bookmark"), "");
}

/// Several snapshots together free more than each of them alone.
#[test]
fn a_destruction_says_what_it_reclaims() {
    let lab = Lab::new(2);
    lab.ok("zpool create p D0 D1");
    lab.ok("zfs create -s -V 64M p/v");
    fill(&lab, "p", "p/v");
    lab.ok("zfs snapshot p/v@a");
    lab.ok("zfs snapshot p/v@b");
    fill_with(&lab, "p", "p/v", 100);
    lab.ok("zfs snapshot p/v@c");
    let one = lab.ok("zfs destroy -nvp p/v@a");
    let lines: Vec<&str> = one.lines().collect();
    assert!(lines[0] == "destroy\tp/v@a" && lines[1].starts_with("reclaim\t") && lines.len() == 2, "{one}");
    let bytes = |text: &str| text.lines().last().unwrap().split('\t').nth(1).unwrap().parse::<u64>().unwrap();
    let both = bytes(&lab.ok("zfs destroy -nvp p/v@a,b"));
    assert!(bytes(&one) < 1 << 20 && both > 32 << 20, "{one}, {both}");
    // Blocks that two snapshots share with one between them stay if that one stays.
    assert!(bytes(&lab.ok("zfs destroy -nvp p/v@a,c")) < 1 << 20);
    let said = lab.ok("zfs destroy -nv p/v@a%b");
    assert!(said.starts_with("would destroy p/v@a\nwould destroy p/v@b\nwould reclaim 3"), "{said}");
    let freed = || lab.ok("zfs get -Hp -o value used p/v").trim().parse::<u64>().unwrap();
    let before = freed();
    let said = lab.ok("zfs destroy -v p/v@a%b");
    assert!(said.starts_with("will destroy p/v@a\nwill destroy p/v@b\nwill reclaim 3"), "{said}");
    assert_eq!(before - freed(), both, "the figure is exact");
    assert!(!lab.ok("zfs destroy -nv -r p/v").contains("reclaim"), "of a dataset, the names alone");
}

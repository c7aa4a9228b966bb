//! `zpool split`.

use super::*;

#[test]
fn a_pool_in_use_is_split_and_both_are_imported() {
    let lab = Lab::new();
    let disk = |name: &str| {
        std::fs::File::create(lab.path(name)).unwrap().set_len(128 << 20).unwrap();
        lab.path(name).display().to_string()
    };
    let paths = ["a", "b", "c", "d", "s", "t"].map(disk);
    let [a, b, c, d, s, t] = &paths;
    lab.ok(&format!("zpool create q mirror {a} {b} mirror {c} {d} special mirror {s} {t}"));
    lab.ok("zfs create q/home");
    let layout = lab.ok("zpool split -n q new c");
    assert_eq!(
        layout,
        format!("would create 'new' with the following layout:\n\n\tnew\n\t  {b}\n\t  {c}\n\tspecial\n\t  {t}\n")
    );
    for (line, why) in [
        ("zpool split q new c d", "Unable to split q: Device list must include at most one disk from each mirror"),
        ("zpool split q new nothing", "Unable to split q: no such device in pool"),
        ("zpool split q p", "Unable to split q: pool already exists"),
    ] {
        assert_eq!(lab.fails(line), format!("{why}\n"));
    }
    assert_eq!(lab.run("zpool split q").status.code(), Some(2));
    assert!(lab.ok("zpool list -H -o name").contains('q'));
    for property in ["ashift=4", "ashift=17", "version=28", "readonly=on", "propname=propval"] {
        let said = lab.fails(&format!("zpool split -o {property} q new"));
        assert!(said.contains(property.split('=').next().unwrap()), "{said}");
    }
    lab.ok("zpool split -o comment=half -o ashift=13 q new c");
    assert!(lab.fails("zpool split q other").contains("Source pool must be composed only of mirrors"));
    check_pool(lab.0.path(), "q");
    check_pool(lab.0.path(), "new");
    lab.ok("zpool import new");
    assert_eq!(lab.ok("zfs list -H -o name -r new q"), "new\nnew/home\nq\nq/home\n");
    assert_eq!(lab.ok("zpool get -H -o value comment new"), "half\n");
    assert_eq!(lab.ok("zpool get -H -o value ashift new"), "13\n");
    assert!(lab.ok("zpool history new").contains("zpool split -o comment=half -o ashift=13 q new c"));
    let guid = |pool: &str| lab.ok(&format!("zpool get -H -o value guid {pool}"));
    assert_ne!(guid("q"), guid("new"));
    assert!(lab.ok("zpool status q").contains("errors: No known data errors"));
    check_pool(lab.0.path(), "q");
    check_pool(lab.0.path(), "new");
}

#[test]
fn a_pool_that_is_split_with_r_is_imported() {
    let lab = Lab::new();
    let mut server = lab.serve();
    lab.ok("zpool split p first");
    assert_eq!(lab.ok("zpool list -H -o name,health first"), "first\tEXPORTED\n");
    lab.ok("zpool export p");
    assert!(server.wait().unwrap().success());
    lab.ok("zpool import first");
    let disk = |name: &str| {
        std::fs::File::create(lab.path(name)).unwrap().set_len(128 << 20).unwrap();
        lab.path(name).display().to_string()
    };
    let e = disk("e");
    let f = disk("f");
    lab.ok(&format!("zpool create q mirror {e} {f}"));
    lab.ok("zpool split -R /nowhere q second");
    assert_eq!(lab.ok("zpool list -H -o name,health second"), "second\tONLINE\n");
    check_pool(lab.0.path(), "second");
}

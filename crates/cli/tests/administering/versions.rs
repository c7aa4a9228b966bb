//! Versions of file systems: created with an old one, upgraded by commands and by clones.

use super::Lab;

#[test]
fn file_systems_of_old_versions_are_created_and_upgraded() {
    let lab = Lab::new();
    let version = |name: &str| lab.ok(&format!("zfs get -H -o value version {name}")).trim().to_owned();
    for number in 1..=5 {
        lab.ok(&format!("zfs create -o version={number} p/v{number}"));
        assert_eq!(version(&format!("p/v{number}")), number.to_string());
    }
    lab.ok("zfs create -p -o version=2 p/new/leaf");
    assert_eq!(
        (version("p/new"), version("p/new/leaf")),
        ("5".into(), "2".into()),
        "only the last one is of that version"
    );
    for (line, why) in [
        ("zfs create -o version=6 p/x", "'version' must be one of '1 | 2 | 3 | 4 | 5 | current'"),
        ("zfs create -o version=2 -o utf8only=on p/x", "file systems of version 2 have no 'utf8only'"),
        ("zfs set version=1 p/v2", "it can not be downgraded; it is already at version 2"),
    ] {
        let said = lab.fails(line);
        assert!(said.contains(why), "{line}: {said}");
    }
    lab.check();
    lab.ok("zfs snapshot p/v2@s");
    assert!(lab.fails("zfs clone -o version=1 p/v2@s p/c").contains("can not be downgraded"));
    lab.ok("zfs clone -o version=4 p/v2@s p/c");
    assert_eq!(version("p/c"), "4");
    let old = lab.ok("zfs upgrade");
    assert!(old.contains("The following filesystems are out of date, and can be upgraded."), "{old}");
    let listed: Vec<&str> =
        old.lines().filter_map(|line| line.trim().split_once("   ")).map(|(_, name)| name).collect();
    assert_eq!(listed, ["p/c", "p/new/leaf", "p/v1", "p/v2", "p/v3", "p/v4"]);
    assert_eq!(lab.ok("zfs upgrade -V 3 p/v1"), "1 filesystems upgraded\n");
    assert_eq!(version("p/v1"), "3");
    let out = lab.run("zfs upgrade -V 3 p/v4 p/v3");
    let said = String::from_utf8(out.stdout).unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(said.contains("p/v4: can not be downgraded; it is already at version 4"), "{said}");
    assert!(said.ends_with("0 filesystems upgraded\n1 filesystems already at this version\n"), "{said}");
    lab.ok("zfs set version=current p/v2");
    assert_eq!(version("p/v2"), "5");
    let said = lab.ok("zfs upgrade -a");
    assert!(said.starts_with("5 filesystems upgraded\n"), "{said}");
    assert!(lab.ok("zfs upgrade").contains("All filesystems are formatted with the current version."));
    lab.check();
}

//! Properties of pools, vdevs and datasets as commands name them, with and without the daemon.

use super::Site;

/// Exit code of a command that fails, and what it says.
fn said(site: &Site, line: &str) -> (i32, String) {
    let out = site.command(line).output().unwrap();
    assert!(!out.status.success(), "{line}");
    (out.status.code().unwrap(), String::from_utf8(out.stderr).unwrap())
}

#[test]
fn import_sets_properties_of_the_pool() {
    for with_daemon in [false, true] {
        let site = Site::new(1);
        let _daemon = with_daemon.then(|| site.start());
        let dir = site.dir.path().display().to_string();
        site.ok("zpool create tank d0");
        site.ok("zpool export tank");
        for (options, why) in [
            ("-o failmode=maybe", "'failmode' must be one of"),
            ("-o comment=new -o bogus=1", "property 'bogus' is not a valid pool or vdev property"),
            ("-o ashift=12", "property 'ashift' cannot be set at import time"),
            ("-o comment=a -o comment=b", "property 'comment' specified multiple times"),
        ] {
            let (code, why_not) = said(&site, &format!("zpool import -d {dir} {options} tank"));
            assert_eq!(code, 1, "{options}");
            assert!(why_not.starts_with("cannot import 'tank': ") && why_not.contains(why), "{why_not}");
        }
        let found = site.ok(&format!("zpool import -d {dir}"));
        assert!(found.contains("pool: tank") && !found.contains("comment"), "nothing changed: {found}");
        // Properties of a pool that is not written to stay as they are.
        site.ok(&format!("zpool import -d {dir} -o readonly=on -o failmode=panic tank"));
        if with_daemon {
            assert_eq!(site.ok("zpool get -H -o value failmode tank"), "wait\n");
            site.ok("zpool export tank");
        }
        let options = "-o failmode=continue -o comment=hello -o autotrim=on -o listsnapshots=on -o my:note=x";
        site.ok(&format!("zpool import -d {dir} {options} -o feature@async_destroy=enabled tank"));
        let shown = site.ok("zpool get -H -o value failmode,comment,autotrim,listsnapshots,delegation,my:note tank");
        assert_eq!(shown, "continue\nhello\non\non\non\nx\n", "daemon: {with_daemon}");
    }
}

#[test]
fn vdevs_are_named_by_relative_paths() {
    let site = Site::new(0);
    std::fs::create_dir(site.path("disks")).unwrap();
    std::fs::File::create(site.path("disks/u1")).unwrap().set_len(128 << 20).unwrap();
    std::os::unix::fs::symlink("disks", site.path("link")).unwrap();
    let daemon = site.start();
    site.ok("zpool create tank disks/u1");
    for vdev in ["disks/u1", "./disks/u1", "disks/../disks/u1", "link/u1", "u1"] {
        site.ok(&format!("zpool set my:note=x tank {vdev}"));
        let shown = site.ok(&format!("zpool get -H -o name,value size tank {vdev}"));
        assert!(shown.ends_with("\t112M\n") && shown.contains("u1"), "{vdev}: {shown}");
        assert!(site.ok(&format!("zpool iostat -H tank {vdev}")).contains("u1"), "{vdev}");
        site.ok(&format!("zpool clear tank {vdev}"));
    }
    for line in ["zpool get size tank disks/u2", "zpool set my:note=x tank disks/u2", "zpool iostat tank disks/u2"] {
        let (code, why) = said(&site, line);
        assert!(code == 1 && why.contains("'disks/u2' in 'tank'"), "{line}: {why}");
    }
    drop(daemon);
}

#[test]
fn no_property_is_given_twice() {
    let site = Site::new(2);
    let twice = |line: &str, code: i32, property: &str| {
        let (got, why) = said(&site, line);
        assert!(
            got == code && why.contains(&format!("property '{property}' specified multiple times")),
            "{line}: {got} {why}"
        );
    };
    twice("zpool create -o autotrim=on -o autotrim=off tank d0", 1, "autotrim");
    twice("zpool create -o listsnapshots=on -o listsnaps=off tank d0", 1, "listsnaps");
    twice("zpool create -O atime=on -O atime=off tank d0", 1, "atime");
    // As in OpenZFS, the last of these counts.
    site.ok("zpool create -O mountpoint=/a -O mountpoint=none -o cachefile=none -o cachefile= tank d0");
    twice("zpool add -o ashift=12 -o ashift=12 tank d1", 2, "ashift");
    twice("zpool attach -o ashift=12 -o ashift=12 tank d0 d1", 2, "ashift");
    twice("zfs create -o atime=on -o atime=off tank/x", 1, "atime");
    twice("zfs create -o compress=lz4 -o compression=off tank/x", 1, "compression");
    twice("zfs create -V 1M -o refreservation=auto -o refreservation=none tank/x", 1, "refreservation");
    twice("zfs set quota=none quota=1G tank", 1, "quota");
    twice("zfs set userquota@7=none userquota@7=1G tank", 1, "userquota@7");
    twice("zfs snapshot -o a:b=1 -o a:b=2 tank@s", 1, "a:b");
    site.ok("zfs snapshot tank@s");
    twice("zfs clone -o atime=on -o atime=off tank@s tank/x", 1, "atime");
    assert_eq!(site.ok("zfs list -H -o name,quota -t all"), "tank\tnone\ntank@s\t-\n", "nothing was made or set");
}

#[test]
fn vdevs_and_guids_are_accepted_as_openzfs_accepts_them() {
    let site = Site::new(3);
    let _daemon = site.start();
    for class in ["log", "cache", "spare"] {
        let (code, why) = said(&site, &format!("zpool create tank d0 {class} d1 {class} d2"));
        assert!(code == 1 && why.contains(&format!("'{class}' can be specified only once")), "{why}");
    }
    site.ok("zpool create tank d0");
    // Shells whose numbers have a sign write large ones as negative numbers.
    site.ok("zpool reguid -g -2 tank");
    assert_eq!(site.ok("zpool get -H -o value guid tank"), format!("{}\n", u64::MAX - 1));
}

#[test]
fn quotas_of_users_are_set_at_creation() {
    for with_daemon in [false, true] {
        let site = Site::new(1);
        let _daemon = with_daemon.then(|| site.start());
        site.ok("zpool create -O userquota@root=1M -O defaultgroupquota=2M -O mountpoint=none tank d0");
        site.ok("zfs create -o userquota@7=3M -o groupobjquota@0=4 tank/a");
        site.ok("zfs snapshot tank/a@s");
        site.ok("zfs clone -o userquota@7=none -o projectquota@9=5M tank/a@s tank/c");
        let shown = site.ok("zfs get -Hp -o value userquota@0,defaultgroupquota tank");
        assert_eq!(shown, "1048576\n2097152\n", "daemon: {with_daemon}");
        let shown = site.ok("zfs get -Hp -o value userquota@7,groupobjquota@root tank/a");
        assert_eq!(shown, "3145728\n4\n", "daemon: {with_daemon}");
        let shown = site.ok("zfs get -Hp -o value userquota@7,groupobjquota@0,projectquota@9 tank/c");
        assert_eq!(shown, "0\n4\n5242880\n", "daemon: {with_daemon}");
        // None of them is stored as a property.
        assert!(!site.ok("zfs get -H -o property -s local all tank/c").contains("quota"));
        for (line, why) in [
            ("zfs create -o userquota@no-such-user=1M tank/b", "invalid user or group 'no-such-user'"),
            ("zfs create -o userquota@7=much tank/b", "bad numeric value 'much'"),
            ("zfs create -o userused@7=1M tank/b", "'userused@7' is readonly"),
            ("zfs create -V 8M -o userquota@7=1M tank/b", "'userquota@7' does not apply to datasets of this type"),
        ] {
            let (code, why_not) = said(&site, line);
            assert!(code == 1 && why_not.contains(why), "{line}: {why_not}");
        }
        site.ok("zfs create -V 8M tank/v");
        site.ok("zfs snapshot tank/v@s");
        let (code, why) = said(&site, "zfs clone -o userquota@7=1M tank/v@s tank/b");
        assert!(code == 1 && why.contains("'userquota@7' does not apply to datasets of this type"), "{why}");
        assert!(!site.ok("zfs list -H -o name").contains("tank/b"), "nothing was created");
    }
}

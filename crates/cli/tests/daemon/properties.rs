//! Properties of pools, vdevs and datasets as commands name them, with and without the daemon.

use super::Site;

/// Exit code of a command that fails, and what it says.
fn said(site: &Site, line: &str) -> (i32, String) {
    let out = site.command(line).output().unwrap();
    assert!(!out.status.success(), "{line}");
    (out.status.code().unwrap(), String::from_utf8(out.stderr).unwrap())
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

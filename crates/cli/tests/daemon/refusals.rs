//! What refused commands say: the thing in the way, and what helps.

use super::*;

#[test]
fn a_device_of_an_open_pool_is_refused_with_that_pools_name() {
    let site = Site::new(3);
    let _daemon = site.start();
    site.ok("zpool create tank d0");
    site.ok("zpool create other d1");
    let d0 = site.path("d0").display().to_string();
    for line in ["zpool create new d0", "zpool create -f new d0", "zpool add -f other d0", "zpool add -f tank d0"] {
        let error = site.fails(line);
        assert!(error.contains(&format!("{d0} is part of active pool 'tank'")), "{line}: {error}");
        assert!(error.contains("zpool destroy tank") && !error.contains("'new'"), "{line}: {error}");
    }
    // A vdev that was added later, and a spare, whose label names no pool.
    site.ok("zpool add -f tank spare d2");
    let error = site.fails("zpool create -f new d2");
    assert!(error.contains("d2 is part of active pool 'tank'"), "{error}");
}

#[test]
fn a_device_of_a_pool_that_another_process_serves_is_refused_with_that_pools_name() {
    let site = Site::new(2);
    site.ok("zpool create tank d0");
    let dir = site.dir.path().display().to_string();
    let server = serve(&site, &format!("serve -d {dir} --nfs-port 0 --nbd-port 0 --iscsi-port 0 tank"));
    let error = site.fails("zpool create -f new d0");
    assert!(error.contains("d0 is part of active pool 'tank'"), "{error}");
    assert!(error.contains(&format!("process {}", server.child.id())), "{error}");
}

#[test]
fn an_import_tells_an_open_pool_from_another_of_its_name() {
    let site = Site::new(2);
    let _daemon = site.start();
    let dir = site.dir.path().display().to_string();
    site.ok("zpool create tank d0");
    site.ok("zpool export tank");
    site.ok("zpool create tank d1");
    assert_eq!(site.fails(&format!("zpool import -d {dir}/d1 tank")), "cannot import 'tank': it is already imported\n");
    let error = site.fails(&format!("zpool import -d {dir} tank"));
    let (first, how) = error.split_once('\n').unwrap();
    assert_eq!(first, "cannot import 'tank': a pool with that name already exists");
    let guid = how.strip_prefix("use the form 'zpool import ").unwrap().split(' ').next().unwrap();
    site.ok(&format!("zpool import -d {dir} {guid} older"));
    assert_eq!(site.pools(), ["older", "tank"]);
}

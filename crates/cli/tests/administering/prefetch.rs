//! `zpool prefetch`.

use super::*;

#[test]
fn tables_are_prefetched_by_the_process_that_has_the_pool() {
    let lab = Lab::new();
    lab.ok("zfs set dedup=on p");
    assert!(lab.fails("zpool prefetch p").contains("no process has it open"));
    let mut server = lab.serve();
    for line in ["zpool prefetch p", "zpool prefetch -t ddt p", "zpool prefetch -t brt p"] {
        assert_eq!(lab.ok(line), "");
    }
    for (line, why) in [
        ("zpool prefetch -t all p", "unsupported prefetch type"),
        ("zpool prefetch", "missing pool name argument"),
        ("zpool prefetch p q", "too many arguments"),
    ] {
        let said = lab.run(line);
        assert_eq!(said.status.code(), Some(2), "{line}");
        assert!(String::from_utf8_lossy(&said.stderr).contains(why), "{line}");
    }
    lab.ok("zpool export p");
    assert!(server.wait().unwrap().success());
}

//! Commands and options that docs/coverage.md lists as working, run on a pool.

use super::Lab;

/// A row of a scripted list, by its first column.
fn row<'a>(text: &'a str, first: &str) -> Vec<&'a str> {
    let found = text.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    found.into_iter().find(|cells| cells[0] == first).unwrap_or_else(|| panic!("no '{first}' in:\n{text}"))
}

/// TRIAL C17: `zfs allow`, `unallow`.
#[test]
fn permissions_are_stored_and_shown() {
    let lab = Lab::new();
    lab.ok("zfs create p/a");
    lab.ok("zfs allow -u 4000000001 create,mount p");
    lab.ok("zfs allow -d everyone snapshot p/a");
    lab.ok("zfs allow -s @tools send,hold p");
    lab.ok("zfs allow -c destroy p");
    let text = lab.ok("zfs allow p/a");
    let (own, above) = text.split_once("---- Permissions on p ---").unwrap();
    assert!(own.contains("Descendent permissions:\n\teveryone snapshot\n"), "{own}");
    assert!(above.contains("Permission sets:\n\t@tools hold,send\n"), "{above}");
    assert!(above.contains("Create time permissions:\n\tdestroy\n"), "{above}");
    assert!(above.contains("Local+Descendent permissions:\n\tuser 4000000001 create,mount\n"), "{above}");
    lab.ok("zfs unallow -u 4000000001 mount p");
    assert!(lab.ok("zfs allow p").contains("\tuser 4000000001 create\n"));
    lab.ok("zfs unallow -u 4000000001 p");
    lab.ok("zfs unallow -s @tools p");
    lab.ok("zfs unallow -c p");
    lab.ok("zfs unallow -r everyone p");
    assert_eq!(lab.ok("zfs allow p/a"), "");
    lab.ok("zfs allow -g 4000000001 rename p/a");
    lab.ok("zfs destroy p/a");
    lab.check();
}

/// TRIAL C3 and C17: `zfs rename -p`, `zfs upgrade`, `zfs wait`.
#[test]
fn small_commands_of_zfs_do_their_work() {
    let lab = Lab::new();
    lab.ok("zfs create p/a");
    assert!(lab.fails("zfs rename p/a p/x/y/a").contains("cannot rename 'p/a'"));
    lab.ok("zfs rename -p p/a p/x/y/a");
    assert_eq!(lab.ok("zfs list -H -o name -r p"), "p\np/x\np/x/y\np/x/y/a\n");
    let features = lab.ok("zpool upgrade");
    assert!(
        features.contains("Every feature flags pool has all features enabled that new pools have.\n"),
        "{features}"
    );
    assert!(features.contains("feature@FEATURE=enabled") && features.contains("\np\n"), "{features}");
    assert!(features.contains("      raidz_expansion\n") && !features.contains("lz4_compress"), "{features}");
    assert!(lab.ok("zpool upgrade p").contains("Pool 'p' already has all features of new pools enabled."));
    lab.ok("zpool set feature@raidz_expansion=enabled p");
    assert!(!lab.ok("zpool upgrade").contains("raidz_expansion"));
    assert!(lab.ok("zfs upgrade").contains("All filesystems are formatted with the current version."));
    assert!(lab.ok("zfs upgrade -v").contains(" 5   System attributes"));
    assert!(lab.ok("zfs upgrade -a").contains("0 filesystems upgraded\n4 filesystems already at this version"));
    let out = lab.run("zfs upgrade -V 4 p");
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8(out.stdout).unwrap().contains("can not be downgraded; it is already at version 5"));
    lab.ok("zfs wait p/x");
    let misused = |line: &str| lab.run(line).status.code() == Some(2);
    assert!(misused("zfs wait -t sleep p") && misused("zfs userspace -t bogus p") && misused("zfs jail 1 p"));
    assert_eq!(lab.ok("zfs userspace -H -t smbuser p"), "");
    assert!(lab.ok("zfs userspace -H -t posixuser p").contains("POSIX User"));
}

/// TRIAL C17 and C18: vdev properties, user properties of pools and vdevs, `compatibility`.
#[test]
fn pools_and_vdevs_have_their_properties() {
    let lab = Lab::new();
    let get = |line: &str| lab.ok(&format!("zpool get -H -o value {line}"));
    assert_eq!(get("parity,numchildren,ashift p mirror-0"), "1\n2\n12\n");
    assert_eq!(get("parent,path p d0"), format!("mirror-0\n{}\n", lab.path("d0").display()));
    assert!(lab.ok("zpool get -H all p mirror-0").lines().count() > 40);
    assert_eq!(lab.ok("zpool get -H -o property,value guid p root").lines().count(), 1);
    lab.ok("zpool set comment=shelf p d1");
    lab.ok("zpool set org.weir:bay=7 p d1");
    lab.ok("zpool set org.weir:owner=me p");
    lab.ok("zpool set slow_io_n=5 p mirror-0");
    assert_eq!(get("comment,org.weir:bay,slow_io_n p d1"), "shelf\n7\n-\n");
    assert_eq!(get("slow_io_n p mirror-0"), "5\n");
    assert_eq!(get("org.weir:owner,org.weir:none p"), "me\n-\n");
    lab.ok("zpool set org.weir:owner= p");
    assert_eq!(get("org.weir:owner p"), "-\n");
    lab.ok("zpool set compatibility=openzfs-2.1-linux p");
    assert_eq!(get("compatibility p"), "openzfs-2.1-linux\n");
    assert!(lab.fails("zpool set allocating=off p mirror-0").contains("the only vdev on which data is allocated"));
    assert!(lab.fails("zpool set allocating=off p d0").contains("only top-level vdevs"));
    assert!(lab.fails("zpool set allocating=0 p mirror-0").contains("must be one of 'off | on'"));
    assert!(lab.fails("zpool set failfast=off p mirror-0").contains("cannot be set"));
    assert!(lab.fails("zpool set comment=x p d7").contains("no such vdev in pool"));
    assert!(lab.fails("zpool set bootfs=p p").contains("Weir starts no machine"));
    let all: serde_json::Value = serde_json::from_str(&lab.ok("zpool get -j guid p all-vdevs")).unwrap();
    assert_eq!(all["vdevs"].as_object().unwrap().len(), 3);
    lab.check();
}

/// A vdev that does not allocate keeps its blocks and gets no new ones, also after an import, and OpenZFS's zdb agrees.
#[test]
fn a_vdev_allocates_or_not() {
    let lab = Lab::new();
    for name in ["d2", "d3"] {
        std::fs::File::create(lab.path(name)).unwrap().set_len(256 << 20).unwrap();
    }
    lab.ok(&format!("zpool add p mirror {} {}", lab.path("d2").display(), lab.path("d3").display()));
    let get = |line: &str| lab.ok(&format!("zpool get -Hp -o value {line}"));
    let number = |line: &str| get(line).trim().parse::<u64>().unwrap();
    let size = number("size p");
    let available = |lab: &Lab| lab.ok("zfs get -Hp -o value available p").trim().parse::<u64>().unwrap();
    let before = available(&lab);
    assert_eq!(get("allocating p mirror-1"), "on\n");
    lab.ok("zpool set allocating=off p mirror-1");
    assert!(lab.fails("zpool set allocating=off p mirror-0").contains("the only vdev on which data is allocated"));
    let off = |lab: &Lab| {
        assert_eq!(lab.ok("zpool get -H -o value,source allocating p mirror-1"), "off\tlocal\n");
        let status = lab.ok("zpool status p");
        assert_eq!(status.matches("(non-allocating)").count(), 3, "{status}");
        let less = available(lab);
        assert!(less < before * 6 / 10, "{less} of {before} bytes are available");
    };
    off(&lab);
    let mut server = lab.serve();
    off(&lab);
    server.kill().unwrap();
    server.wait().unwrap();
    lab.ok("zpool export p");
    lab.ok("zpool import p");
    off(&lab);
    let allocated = number("allocated p mirror-1");
    super::fill_volume(&lab, "p/v");
    assert!(number("allocated p mirror-0") > 12 << 20);
    assert!(number("allocated p mirror-1") <= allocated, "nothing new is there");
    lab.check();
    lab.ok("zpool set allocating=on p mirror-1");
    assert_eq!(lab.ok("zpool get -H -o value,source allocating p mirror-1"), "on\tdefault\n");
    assert!(!lab.ok("zpool status p").contains("(non-allocating)"));
    assert_eq!(number("size p"), size);
    super::fill_volume(&lab, "p/w");
    assert!(number("allocated p mirror-1") > allocated + (8 << 20), "both vdevs take data again");
    lab.check();
}

/// TRIAL C17: `list -g -L -P -T`, intervals, `list -v` with cache and spares; `status -D`, `-j`.
#[test]
fn lists_and_status_have_their_options() {
    let lab = Lab::new();
    for name in ["c", "s"] {
        std::fs::File::create(lab.path(name)).unwrap().set_len(128 << 20).unwrap();
    }
    lab.ok(&format!("zpool add p cache {}", lab.path("c").display()));
    lab.ok(&format!("zpool add p spare {}", lab.path("s").display()));
    let text = lab.ok("zpool list -v p");
    let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("no '{part}' in:\n{text}"));
    assert!(at("mirror-0") < at("\ncache ") && at("\ncache ") < at("\nspare ") && text.contains("AVAIL"), "{text}");
    let guids = lab.ok("zpool list -Hvg -o name p");
    assert_eq!(guids.lines().skip(1).filter(|line| line.trim().parse::<u64>().is_ok()).count(), 5, "{guids}");
    let thrice = lab.ok("zpool list -H -T u -o name p 0.01 3");
    let (times, names): (Vec<&str>, Vec<&str>) = thrice.lines().partition(|line| line.parse::<u64>().is_ok());
    assert_eq!((times.len(), names), (3, vec!["p"; 3]));
    lab.ok("zfs set dedup=on p");
    assert!(lab.ok("zpool status -D p").contains(" dedup: no DDT entries\n"));
    let flat: serde_json::Value =
        serde_json::from_str(&lab.ok("zpool status -j --json-flat-vdevs --json-pool-key-guid p")).unwrap();
    let (key, pool) = flat["pools"].as_object().unwrap().iter().next().unwrap();
    assert!(key.parse::<u64>().is_ok());
    assert_eq!(pool["vdevs"][lab.path("d0").display().to_string()]["parent"], "mirror-0");
    let versions: serde_json::Value = serde_json::from_str(&lab.ok("zpool version -j")).unwrap();
    assert!(versions["zfs_version"]["userland"].as_str().unwrap().starts_with("weir "));
    for (line, why) in [
        ("zpool status --power p", "enclosure slots"),
        ("zpool online --power p d0", "power of enclosure slots"),
        ("zpool import -V p", "devices were not read"),
    ] {
        let out = lab.run(line);
        let error = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.code() == Some(2) && error.contains(why), "{line}: {error}");
    }
}

/// TRIAL C17: iostat's options.
#[test]
fn iostat_shows_times_sizes_and_queues() {
    let lab = Lab::new();
    let mut server = lab.serve();
    lab.ok("zpool set org.weir:x=1 p");
    lab.ok("zpool sync p");
    let cells = row(&lab.ok("zpool iostat -Hplq p"), "p").len();
    assert_eq!(cells, 1 + 6 + 11 + 14);
    let text = lab.ok("zpool iostat -Hp p d0");
    assert!(row(&text, &lab.path("d0").display().to_string())[4].parse::<u64>().unwrap() > 0, "{text}");
    let written = |text: &str| -> u64 {
        let cells = text.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
        cells.sum()
    };
    assert!(written(&lab.ok("zpool iostat -w p")) > 0);
    let sizes = lab.ok("zpool iostat -r p");
    assert!(
        sizes.lines().any(|line| line.starts_with("4K ") && line.split_whitespace().skip(1).any(|n| n != "0")),
        "{sizes}"
    );
    assert!(lab.ok("zpool iostat -v -T u p 0.05 2").lines().filter(|line| line.parse::<u64>().is_ok()).count() == 2);
    let out = lab.run("zpool iostat -rl p");
    assert_eq!(out.status.code(), Some(2));
    server.kill().unwrap();
    server.wait().unwrap();
}

/// TRIAL C17: `zpool import -c`, `-T`, `-X`.
#[test]
fn a_pool_goes_back_to_a_txg() {
    let lab = Lab::new();
    lab.ok("zfs create p/old");
    let txg = |lab: &Lab| -> u64 {
        let json: serde_json::Value = serde_json::from_str(&lab.ok("zpool list -j --json-int p")).unwrap();
        json["pools"]["p"]["txg"].as_u64().unwrap()
    };
    let before = txg(&lab);
    lab.ok("zfs create p/new");
    // A pool that commands use is not changed by an import.
    for (line, how) in [
        (format!("zpool import -T {before} p"), "export it before it goes back to an earlier state"),
        ("zpool import --rewind-to-checkpoint p".to_owned(), "export it before it goes back to an earlier state"),
        ("zpool import p other".to_owned(), "export it before it gets another name"),
    ] {
        let said = lab.fails(&line);
        assert!(said.contains("cannot import 'p': it is imported") && said.contains(how), "{line}: {said}");
    }
    assert!(lab.ok("zfs list -H -o name -r p").contains("p/new"));
    lab.ok("zpool export p");
    lab.ok(&format!("zpool import -T {before} p"));
    let names = lab.ok("zfs list -H -o name -r p");
    assert!(names.contains("p/old") && !names.contains("p/new"), "{names}");
    lab.check();
}

/// TRIAL C13: one wrong name does not hide the rest; bookmarks; users in lists.
#[test]
fn c13_what_is_there_is_shown_beside_what_is_not() {
    let lab = Lab::new();
    lab.ok("zfs create p/a");
    lab.ok("zfs snapshot p/a@s");
    lab.ok("zfs bookmark p/a@s p/a#b");
    for line in [
        "zfs get -H -o value type p/a nosuch",
        "zfs get -H -o value type p/nosuch p/a",
        "zfs list -H -o type p/a p/a#no",
    ] {
        let out = lab.run(line);
        assert_eq!(out.status.code(), Some(1), "{line}");
        assert_eq!(String::from_utf8_lossy(&out.stdout), "filesystem\n", "{line}");
        assert_eq!(String::from_utf8_lossy(&out.stderr).matches("does not exist").count(), 1, "{line}");
    }
    assert_eq!(lab.ok("zfs get -H -o value type p/a#b"), "bookmark\n");
    let used = lab.ok("zfs list -Hp -o userused@0 p/a");
    assert!(used.trim().parse::<u64>().is_ok(), "{used}");
    assert_eq!(lab.ok("zpool get -H -o value readonly p"), "off\n");
    let nothing = lab.run("zfs list nosuch");
    assert!(nothing.stdout.is_empty() && nothing.status.code() == Some(1));
}

/// TRIAL C3: what depends on a snapshot goes with it, and `-r` destroys what is in a pool.
#[test]
fn c3_dependents_are_destroyed_as_promised() {
    let lab = Lab::new();
    for line in ["create p/a", "snapshot p/a@s", "clone p/a@s p/c", "snapshot p/c@t", "clone p/c@t p/d", "create p/c/e"]
    {
        lab.ok(&format!("zfs {line}"));
    }
    assert!(lab.fails("zfs destroy p/a@s").contains("p/c"));
    let promised = lab.ok("zfs destroy -nvR p/a@s");
    assert!(["p/c/e", "p/d", "p/c@t", "p/c", "p/a@s"].iter().all(|name| promised.contains(name)), "{promised}");
    lab.ok("zfs destroy -R p/a@s");
    assert_eq!(lab.ok("zfs list -H -t all -o name"), "p\np/a\n");
    assert!(lab.fails("zfs destroy p").contains("does not apply to pools"));
    lab.ok("zfs snapshot -r p@x");
    lab.ok("zfs destroy -r p");
    assert_eq!(lab.ok("zfs list -H -t all -o name"), "p\n");
    lab.check();
}

/// TRIAL C12: devices of different sizes need -f, and so does a single special device beside redundant ones.
#[test]
fn c12_weak_and_unequal_vdevs_need_force() {
    let lab = Lab::new();
    for (name, size) in [("x0", 64 << 20), ("x1", 128 << 20), ("x2", 64 << 20)] {
        std::fs::File::create(lab.path(name)).unwrap().set_len(size).unwrap();
    }
    assert!(lab.fails("zpool create q mirror x0 x1").contains("mirror contains devices of different sizes"));
    assert!(lab.fails("zpool create q mirror x0 x2 special x1").contains("mismatched replication level"));
    lab.ok("zpool create -f q mirror x0 x1");
}

/// `zfs list` shows snapshots if the pool says so.
#[test]
fn listsnapshots_decides_what_zfs_list_shows() {
    let lab = Lab::new();
    lab.ok("zfs snapshot p@s");
    assert_eq!(lab.ok("zfs list -H -o name"), "p\n");
    lab.ok("zpool set listsnapshots=on p");
    assert_eq!(lab.ok("zfs list -H -o name"), "p\np@s\n");
    assert_eq!(lab.ok("zfs list -H -t filesystem -o name"), "p\n");
}

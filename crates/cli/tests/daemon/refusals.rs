//! What refused commands say: the thing in the way, and what helps.

use super::*;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

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
fn changes_reach_a_pool_that_another_process_serves_beside_the_daemon() {
    let site = Site::new(2);
    let _daemon = site.start();
    site.ok("zpool create tank d0");
    site.ok("zpool create beside d1");
    site.ok("zpool export beside");
    let dir = site.dir.path().display().to_string();
    let mut server = serve(&site, &format!("serve -d {dir} --nfs-port 0 --nbd-port 0 --iscsi-port 0 beside"));
    for line in
        ["zfs create beside/new", "zfs snapshot beside/new@s", "zfs set atime=off beside/new", "zpool scrub beside"]
    {
        site.ok(line);
    }
    assert_eq!(site.ok("zfs get -H -o value atime beside/new"), "off\n");
    site.ok("zfs create tank/new");
    let error = site.fails("zfs create neither/new");
    assert!(error.contains("no such pool"), "{error}");
    site.ok("zpool export beside");
    assert!(server.ended());
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

#[test]
fn a_runtime_directory_that_others_may_enter_is_used_and_one_that_they_may_change_is_not() {
    let site = Site::new(1);
    let set = |mode| std::fs::set_permissions(site.path("run"), Permissions::from_mode(mode)).unwrap();
    set(0o755);
    let daemon = site.start();
    site.ok("zpool create tank d0");
    for name in ["run/daemon.lock".to_owned(), format!("run/{}.sock", daemon.child.id())] {
        let mode = std::fs::metadata(site.path(&name)).unwrap().mode() & 0o777;
        assert_eq!(mode, 0o600, "{name}");
    }
    set(0o777);
    let error = site.fails("daemon status");
    assert!(error.contains("no daemon is running") && error.contains("its mode is 0777"), "{error}");
    drop(daemon);
    let error = site.fails("daemon");
    assert!(error.contains("run: its mode is 0777") && error.contains("chmod go-w"), "{error}");
}

#[test]
fn a_share_that_names_what_does_not_exist_is_refused_when_it_is_set() {
    let site = Site::new(2);
    let _daemon = site.start();
    site.ok("zpool create tank d0");
    site.ok("zfs create -V 16M tank/v");
    for (value, why) in [
        ("weir:iscsi=on,chap=carol", "there is no CHAP user 'carol'; 'weir user add carol' adds it"),
        ("weir:nbd=on,hosts=no-such-host.invalid", "host name 'no-such-host.invalid' cannot be resolved"),
        ("weir:iscsi=on,ro,rw", "'rw': an option before it says something else"),
        ("weir:iscsi=wce=maybe", "'wce=maybe': it takes on or off"),
        ("weir:iscsi=on,chap=bob,mutual=bob", "chap= and mutual= must be two users"),
        ("weir:nbd=on,hosts=::1", "IPv6 addresses are written in brackets"),
        (
            "weir:ndb=on",
            "invalid property 'weir:ndb': of those that begin with 'weir:' there are weir:iscsi and weir:nbd",
        ),
    ] {
        let error = site.fails(&format!("zfs set {value} tank/v"));
        assert!(error.starts_with("cannot set property for 'tank/v': ") && error.contains(why), "{value}: {error}");
        for line in ["zfs create -V 16M -o VALUE tank/w", "zpool create -O VALUE other d1"] {
            let out = site.command(&line.replace("VALUE", value)).output().unwrap();
            assert!(!out.status.success() && text(&out.stderr).contains(why), "{line} {value}: {}", text(&out.stderr));
        }
    }
    assert_eq!(site.ok("zfs list -H -o name"), "tank\ntank/v\n");
    assert_eq!(site.pools(), ["tank"]);
    // User properties with another prefix may have any name; a host name that can be resolved is accepted.
    site.ok("zfs set org.example:ndb=on weir:nbd=on,hosts=localhost tank/v");
    site.ok("zfs inherit weir:ndb tank/v");
}

/// Whatever cannot be refused when it is set is in the status: users that go, hosts that go, conflicts, other properties.
#[test]
fn the_status_says_how_each_dataset_is_shared_and_why_not() {
    let site = Site::new(1);
    let _daemon = site.start();
    site.with_input("user add bob", "a secret of bob\n");
    site.ok("zpool create -O sharenfs=on -O canmount=off tank d0");
    site.ok("zfs create tank/home");
    site.ok("zfs create -o canmount=noauto tank/later");
    site.ok("zfs create -V 16M -o weir:iscsi=on,target=iqn.2026-01.test:v,chap=bob -o weir:nbd=name=disk tank/v");
    // A name, or a logical unit, that another dataset has is refused when it is set. It stays with the dataset that has it.
    site.ok("zfs set sharesmb=name=TANK_V tank/home");
    for (line, why) in [
        ("zfs create -V 16M -o weir:nbd=name=disk tank/w", "'weir:nbd': 'tank/v' has the name 'disk' already"),
        (
            "zfs create -V 16M -o weir:iscsi=on,target=iqn.2026-01.test:v,chap=bob tank/w",
            "'weir:iscsi': 'tank/v' is LUN 0 of iqn.2026-01.test:v already; lun=N sets another",
        ),
        ("zfs create -o sharesmb=name=tank_v tank/x", "'sharesmb': 'tank/home' has the name 'tank_v' already"),
    ] {
        let error = site.fails(line);
        assert!(error.contains(why), "{line}: {error}");
    }
    site.ok("zfs set sharesmb=off tank/home");
    site.ok("zfs set volmode=none tank/v");
    site.ok("zfs create -V 16M -o weir:nbd=name=disk tank/w");
    site.ok("zfs set volmode=default tank/v");
    let status = site.ok("daemon status");
    assert!(status.contains("    nbd: not served: weir:nbd: 'tank/w' has the name 'disk' already"), "{status}");
    site.ok("zfs set volmode=none tank/w");
    site.ok("zfs set volmode=default tank/w");
    let status = site.ok("daemon status");
    let has = |status: &str, line: &str| assert!(status.lines().any(|found| found == line), "{line}: {status}");
    has(&status, "  tank: not served");
    has(&status, "    nfs3: not served: canmount=off");
    has(&status, "  tank/home: nfs3 /tank/home");
    has(&status, "    nfs3: not served: canmount=noauto: it waits for zfs share or zfs mount");
    has(&status, "  tank/v: nbd disk, iscsi iqn.2026-01.test:v LUN 0");
    has(&status, "    nbd: not served: weir:nbd: 'tank/v' has the name 'disk' already");
    // The end of a share lasts until its property is set again, above it as well.
    for set in ["sharenfs=ro tank/home", "sharenfs=on tank"] {
        let said = site.fails("zfs share tank/home");
        assert!(said.contains("cannot share 'tank/home': filesystem already shared"), "{said}");
        site.ok("zfs unshare tank/home");
        let said = site.fails("zfs unshare tank/home");
        assert!(said.contains("cannot unshare 'tank/home': not currently shared"), "{said}");
        has(&site.ok("daemon status"), "    nfs3: not served: zfs unshare ended it");
        site.ok(&format!("zfs set {set}"));
        has(&site.ok("daemon status"), "  tank/home: nfs3 /tank/home");
    }
    site.ok("user remove bob");
    let status = site.ok("daemon status");
    has(&status, "  tank/v: nbd disk");
    has(&status, "    iscsi: not served: there is no CHAP user 'bob'; 'weir user add bob' adds it");
    let shares = site.status("/pools/tank/shares");
    let iscsi = shares.as_array().unwrap().iter().find(|share| share["protocol"] == "iscsi").unwrap();
    assert_eq!((&iscsi["dataset"], &iscsi["served"]), (&"tank/v".into(), &false.into()), "{shares}");
    assert!(
        site.log().contains("not shared: tank/v: iqn.2026-01.test:v: there is no CHAP user 'bob'"),
        "{}",
        site.log()
    );
}

#[test]
fn the_tuning_sheet_shows_the_limits_of_the_daemon() {
    let site = Site::new(0);
    let current = || {
        let sheet = site.ok("tune show");
        let line = sheet.lines().find(|line| line.starts_with("weir.arc_max ")).unwrap().to_owned();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!(current(), "-", "no daemon runs");
    site.configure(&format!("{CONFIGURATION}arc_max = \"96M\"\n"));
    let _daemon = site.start();
    assert_eq!(current(), "96M");
}

#[test]
fn commands_that_weir_lacks_and_things_that_are_not_there_are_named() {
    let site = Site::new(1);
    site.ok("zpool create tank d0");
    let said = |line: &str, code: i32| {
        let out = site.command(line).output().unwrap();
        assert_eq!(out.status.code(), Some(code), "{line}: {}", text(&out.stderr));
        text(&out.stderr)
    };
    for line in ["zpool ddtprune tank", "zfs jail 1 tank/x"] {
        let error = said(line, 2);
        assert!(error.contains("is refused: "), "{line}: {error}");
        assert!(!error.contains("did you mean"), "{line}: {error}");
    }
    assert!(said("zfs sned tank@a", 2).contains("unrecognized command 'sned'"));
    let error = said("zpool create t2 disks/nofile", 1);
    assert!(error.contains("cannot open 'disks/nofile': there is neither /"), "{error}");
    for line in ["zpool import -D", "zpool import -D gone", "zpool import gone"] {
        let error = said(line, 1);
        assert!(error.contains("-d DIR"), "{line}: {error}");
        assert_eq!(error.contains("destroyed pool"), line.contains("-D"), "{line}: {error}");
    }
    site.ok("zfs create -V 20000 tank/v");
    assert_eq!(site.ok("zfs get -Hp -o value volsize tank/v"), "32768\n", "rounded up, as by OpenZFS");
    let error = said("zfs set volsize=40000 tank/v", 1);
    assert!(error.contains("must be a multiple of volblocksize, 16384 bytes; the next is 49152"), "{error}");
}

#[test]
fn refusals_hint_at_what_helps() {
    let site = Site::new(2);
    let daemon = site.start();
    site.ok("zpool create tank d0 d1");
    let said = site.fails(&format!("zpool attach -f tank {} d1", site.path("d0").display()));
    assert!(said.contains("is part of this pool") && !said.contains("use -f"), "{said}");
    drop(daemon);
    for line in ["zpool iostat tank", "zpool events tank"] {
        let said = site.fails(line);
        assert!(said.contains("(weir daemon, serve, mount, demo)"), "{line}: {said}");
    }
}

/// As OpenZFS with the pools that its kernel module has open; here no process has them open.
#[test]
fn devices_of_imported_pools_are_not_taken() {
    let site = Site::new(3);
    site.ok("zpool create one d0");
    site.ok("zfs create one/data");
    site.ok("zpool create two d1");
    for line in
        ["zpool create three d0", "zpool create -f three d0", "zpool add -f two d0", "zpool attach -f two d1 d0"]
    {
        let line = line.replace(" d1 ", &format!(" {} ", site.path("d1").display()));
        let said = site.fails(&line);
        assert!(said.contains("d0 is part of active pool 'one'"), "{line}: {said}");
        assert!(said.contains("zpool export one") && !said.contains("use -f"), "{line}: {said}");
    }
    for line in ["zpool create one d0", "zpool create -f one d0", "zpool create -f one d2"] {
        let said = site.fails(line);
        assert!(said.contains("cannot create 'one': pool already exists on "), "{line}: {said}");
    }
    // They are not imported again.
    let dir = site.dir.path().display();
    let said = site.fails(&format!("zpool import -d {dir} one"));
    assert!(said.starts_with("cannot import 'one': a pool with that name already exists\nuse the form"), "{said}");
    let said = site.fails(&format!("zpool import -d {dir}"));
    assert!(said.contains("no pools available to import"), "{said}");
    site.ok("zfs list one/data");
    // An exported pool is not in use.
    site.ok("zpool export one");
    let said = site.fails("zpool create three d0");
    assert!(said.contains("use -f to take it nevertheless"), "{said}");
    site.ok("zpool create -f one d0");
    assert_eq!(site.pools(), ["one", "two"]);
}

#[test]
fn options_that_are_wrong_leave_a_pool_exported() {
    let site = Site::new(1);
    site.ok("zpool create tank d0");
    site.ok("zpool export tank");
    for options in ["--nbd-tls required", "--nbd-tls-cert nowhere --nbd-tls-key nowhere", "--http-port many"] {
        let out = site.command(&format!("serve -d d0 --nfs-port 0 --nbd-port 0 {options} tank")).output().unwrap();
        assert!(!out.status.success(), "{options}");
        assert!(!text(&out.stderr).contains("was exported"), "{options}: {}", text(&out.stderr));
        assert!(site.ok("zpool import -d d0").contains("pool: tank"));
        let listed = site.command("zpool list -H -o name,health -d d0").output().unwrap();
        assert_eq!(text(&listed.stdout).trim(), "tank\tEXPORTED", "{options}");
    }
}

#[test]
fn properties_of_keys_need_encryption() {
    let site = Site::new(1);
    let _daemon = site.start();
    site.ok("zpool create one d0");
    for (options, property) in [
        ("-o keyformat=raw", "keyformat"),
        ("-o keylocation=file:///k", "keylocation"),
        ("-p -o pbkdf2iters=400000", "pbkdf2iters"),
        ("-o encryption=off -o keyformat=hex", "keyformat"),
    ] {
        let why = site.fails(&format!("zfs create {options} one/a"));
        let expected =
            format!("cannot create 'one/a': '{property}' is a property of encrypted datasets, and encryption");
        assert!(why.starts_with(&expected) && why.contains("-o encryption=on"), "{options}: {why}");
    }
    std::fs::write(site.path("key"), "2a".repeat(32)).unwrap();
    let location = format!("-o keylocation=file://{}", site.path("key").display());
    site.ok(&format!("zfs create -o encryption=on -o keyformat=hex {location} one/e"));
    // Below an encrypted dataset it is the key of its own.
    site.ok(&format!("zfs create -p -o keyformat=hex {location} one/e/b/c"));
    assert_eq!(site.ok("zfs get -H -o value encryptionroot one/e/b/c"), "one/e/b/c\n");
    assert!(site.fails(&format!("zfs create {location} one/e/d")).contains("Keyformat required"));
}

#[test]
fn a_pool_of_the_daemon_is_observed_once() {
    let site = Site::new(1);
    let _daemon = site.start();
    site.ok("zpool create tank d0");
    assert_eq!(site.ok("arcstat 1 1").lines().count(), 2, "a heading and the pool");
    let why: serde_json::Value = serde_json::from_str(&site.ok("why -j")).unwrap();
    assert_eq!(why["diagnoses"].as_array().unwrap().len(), 1, "{why}");
    let top = site.ok("top -b 1 1");
    assert_eq!(top.lines().filter(|line| line.starts_with("tank:")).count(), 1, "{top}");
}

#[test]
fn zfs_get_and_list_select_as_openzfs_does() {
    let site = Site::new(1);
    let _daemon = site.start();
    site.ok("zpool create p d0");
    site.ok("zfs create -V 1M p/v");
    site.ok("zfs create p/f");
    site.ok("zfs create p/f/a");
    site.ok("zfs create p/f-b");
    site.ok("zfs snapshot -r p@s");
    site.ok("zfs bookmark p/f@s p/f#m");
    let names =
        |line: &str| site.ok(line).lines().map(|l| l.split('\t').next().unwrap().to_owned()).collect::<Vec<_>>();
    let all = ["p", "p@s", "p/f", "p/f@s", "p/f#m", "p/f-b", "p/f-b@s", "p/f/a", "p/f/a@s", "p/v", "p/v@s"];
    assert_eq!(names("zfs get -H -r createtxg p"), all);
    assert_eq!(names("zfs get -H createtxg"), all);
    assert_eq!(names("zfs get -H createtxg p/f"), ["p/f"]);
    assert!(site.ok("zfs get -H mountpoint").contains("p/v\tmountpoint\t-\t-\n"));
    assert_eq!(site.ok("zfs get -H written@none p/f"), "p/f\twritten@none\t-\t-\n");
    assert_eq!(names("zfs list -H -o name p/f p p/f"), ["p", "p/f"]);
    assert_eq!(names("zfs list -H -o name -r p"), ["p", "p/f", "p/f-b", "p/f/a", "p/v"]);
    for (line, code, why) in [
        ("zfs get used, p", 2, "no properties specified"),
        ("zfs list -o name,,used p", 2, "no properties specified"),
        ("zfs create -s p/x", 2, "'-s' and '-b' can only be used when creating a volume"),
        ("zfs create -b 8k p/x", 2, "'-s' and '-b' can only be used when creating a volume"),
        ("zfs create -u -V 1M p/x", 2, "'-u' can only be used when creating a filesystem"),
        ("zpool create q d0 log", 1, "log requires at least 1 device"),
        ("zpool get all none", 1, "cannot open 'none': no such pool"),
    ] {
        let out = site.command(line).output().unwrap();
        let error = super::text(&out.stderr);
        assert_eq!((out.status.code(), out.stdout.as_slice()), (Some(code), &b""[..]), "{line}: {error}");
        assert!(error.contains(why), "{line}: {error}");
    }
    let empty = site.command("zfs destroy").arg("").output().unwrap();
    assert!(super::text(&empty.stderr).contains("the name is empty"));
}

#[test]
fn a_configuration_that_silences_the_log_or_takes_all_memory_is_noticed() {
    let site = Site::new(0);
    for (line, why) in [
        ("log = \"infoo\"", "log: 'infoo' is no level"),
        ("deadman = -1", "deadman: '-1' is no number"),
        ("slow_io = -2.5", "slow_io: '-2.5' is no number"),
        ("arc_max = \"1k\"", "arc_max takes a size"),
    ] {
        site.configure(&format!("{CONFIGURATION}{line}\n"));
        let error = site.fails("daemon --check");
        assert!(error.contains(&format!("weir.toml: {why}")), "{line}: {error}");
    }
    site.configure(&format!("{CONFIGURATION}arc_max = \"10E\"\n"));
    let out = site.command("daemon --check").output().unwrap();
    assert!(out.status.success() && super::text(&out.stderr).contains("exceed the memory"));
}

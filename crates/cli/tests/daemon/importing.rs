//! The cache file: imports at the start of a daemon, by one that is older than the pools (`-c`), and under temporary names (`-t`).

use super::Site;

#[test]
fn a_cache_file_finds_pools_whose_devices_were_renamed_and_added() {
    let site = Site::new(4);
    let _daemon = site.start();
    let old = site.path("old.cache");
    site.ok(&format!("zpool create -o cachefile={} tank d0 d1", site.path("own.cache").display()));
    std::fs::copy(site.path("own.cache"), &old).unwrap();
    site.ok("zpool add tank d2");
    site.ok("zpool export tank");
    std::fs::rename(site.path("d0"), site.path("renamed")).unwrap();
    // Another pool of that name is in the folder, and not in the file.
    site.ok("zpool create -o cachefile=none tank d3");
    site.ok("zpool export tank");
    let listed = site.ok("zpool import -c old.cache");
    assert_eq!(listed.matches("pool: tank").count(), 1, "{listed}");
    site.ok("zpool import -c old.cache tank");
    let status = site.ok("zpool status tank");
    for device in ["renamed", "d1", "d2"] {
        assert!(
            status.lines().any(|line| line.contains(&format!("/{device} ")) && line.contains("ONLINE")),
            "{status}"
        );
    }
    assert!(!status.contains("d3") && status.contains("state: ONLINE"), "{status}");
}

/// A power cut after the labels have the new GUID of `zpool reguid`, and before the cache file has it.
#[test]
fn a_pool_whose_guid_changed_is_found_by_its_leaves() {
    let site = Site::new(2);
    let mut daemon = site.start();
    site.ok("zpool create -O sharenfs=on tank mirror d0 d1");
    let cache = site.path("state/zpool.cache");
    let old = std::fs::read(&cache).unwrap();
    let guid = || site.ok("zpool get -Hpo value guid tank");
    let before = guid();
    site.ok("zpool reguid tank");
    daemon.signal(rustix::process::Signal::KILL);
    daemon.ended();
    let new = std::fs::read(&cache).unwrap();
    assert_ne!(old, new, "the file has the new GUID");
    std::fs::write(&cache, &old).unwrap();
    let _daemon = site.start();
    assert_eq!(site.pools(), ["tank"], "{}", site.log());
    assert_ne!(guid(), before);
    assert_ne!(std::fs::read(&cache).unwrap(), old);
    assert!(!site.ok("daemon status").contains("not served"));
}

#[test]
fn a_temporary_name_is_not_written_to_the_pool() {
    let site = Site::new(2);
    let daemon = site.start();
    site.ok("zpool create -O sharenfs=on tank d0");
    site.ok("zfs create tank/a");
    site.ok("zpool export tank");
    let labels = |disk: &str| site.ok(&format!("zdb -l {disk}"));
    let at = site.path("d0");
    site.ok(&format!("zpool import -t -d {} tank tried", at.display()));
    assert_eq!(site.ok("zfs list -Hr -o name tried"), "tried\ntried/a\n");
    assert_eq!(site.ok("zpool list -Ho name"), "tried\n");
    site.ok("zfs create tried/b");
    site.ok("zpool set comment=changed tried");
    site.ok("zpool sync -f tried");
    assert!(labels("d0").contains("name: 'tank'") && !labels("d0").contains("tried"), "{}", labels("d0"));
    site.ok("zpool create -t other -o comment=new -O canmount=off made d1");
    assert_eq!(site.ok("zpool get -Ho value comment other"), "new\n");
    assert_eq!(site.ok("zfs get -Ho value canmount other"), "off\n");
    assert!(site.fails("zpool status made").contains("no such pool"));
    site.ok("zpool export other");
    assert!(labels("d1").contains("name: 'made'") && !labels("d1").contains("other"), "{}", labels("d1"));
    // A pool under such a name is not remembered, and has its own one from the next import on.
    drop(daemon);
    let _daemon = site.start();
    assert!(site.pools().is_empty());
    site.ok(&format!("zpool import -f -d {} tank", at.display()));
    assert_eq!(site.ok("zfs list -Hr -o name tank"), "tank\ntank/a\ntank/b\n");
}

#[test]
fn cachefile_none_and_a_path_are_respected() {
    let site = Site::new(3);
    let mut daemon = site.start();
    let path = site.path("own.cache");
    site.ok("zpool create -O sharenfs=on -O weir:nbd=on kept d0");
    site.ok("zpool create -O sharenfs=on -O weir:nbd=on -o cachefile=none unknown d1");
    site.ok(&format!("zpool create -O sharenfs=on -O weir:nbd=on -o cachefile={} elsewhere d2", path.display()));
    assert!(path.exists());
    let shown = || site.ok("zpool get -H -o name,value,source cachefile kept unknown elsewhere");
    let own = path.display().to_string();
    assert_eq!(shown(), format!("kept\t-\tdefault\nunknown\tnone\tlocal\nelsewhere\t{own}\tlocal\n"));
    site.ok("zpool set cachefile=none elsewhere");
    site.ok("zpool set cachefile= unknown");
    assert_eq!(shown(), "kept\t-\tdefault\nunknown\t-\tdefault\nelsewhere\tnone\tlocal\n");
    site.ok(&format!("zpool set cachefile={own} elsewhere"));
    site.ok("zpool set cachefile=none unknown");
    daemon.signal(rustix::process::Signal::TERM);
    daemon.ended();
    let _daemon = site.start();
    assert_eq!(site.pools(), ["kept"]);
    assert!(
        site.fails(&format!("zpool import -d {} -o cachefile=relative unknown", site.path("d1").display()))
            .contains("absolute")
    );
}

/// A power cut may leave an empty file of the page's token: that ends the page, and not the service. Files of the state directory
/// are not writable for others, whatever the umask.
#[test]
fn a_damaged_token_ends_the_page_alone() {
    let site = Site::new(1);
    let by_umask = || {
        let mut shell = std::process::Command::new("sh");
        let daemon = site.command("daemon");
        shell.args(["-c", "umask 000; exec \"$@\"", "sh"]).arg(daemon.get_program()).args(daemon.get_args());
        shell.current_dir(site.dir.path()).stdin(std::process::Stdio::null());
        for (name, value) in daemon.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        shell
    };
    let mut daemon = site.start_by(by_umask());
    site.ok("zpool create -O sharenfs=on tank d0");
    for entry in std::fs::read_dir(site.path("state")).unwrap().map(Result::unwrap) {
        let mode = std::os::unix::fs::PermissionsExt::mode(&entry.metadata().unwrap().permissions());
        assert_eq!(mode & 0o022, 0, "{:?} {mode:o}", entry.path());
    }
    daemon.signal(rustix::process::Signal::TERM);
    daemon.ended();
    std::fs::write(site.path("state/web.token"), "").unwrap();
    let _daemon = site.start();
    assert_eq!(site.pools(), ["tank"], "{}", site.log());
    assert!(site.log().contains("no page, API and metrics: "), "{}", site.log());
    assert!(site.ok("daemon status").contains("nfs3 on"));
}

/// A pool that cannot be recorded is served. The command says that it will not be after a restart, until it is recorded.
#[test]
fn a_pool_that_cannot_be_recorded_says_so() {
    let site = Site::new(1);
    let mut daemon = site.start();
    let obstacle = site.path("state/zpool.cache.new");
    std::fs::create_dir(&obstacle).unwrap();
    let created = site.command("zpool create -O sharenfs=on tank d0").output().unwrap();
    let said = super::text(&created.stderr);
    assert!(
        created.status.success() && said.contains("will not be after a restart of the daemon: cannot update"),
        "{said}"
    );
    assert_eq!(site.pools(), ["tank"]);
    std::fs::remove_dir(&obstacle).unwrap();
    site.ok("zpool set comment=x tank");
    daemon.signal(rustix::process::Signal::KILL);
    daemon.ended();
    let _daemon = site.start();
    assert_eq!(site.pools(), ["tank"], "{}", site.log());
}

/// A disk of `pool_dirs` may be unplugged; the pools on others are served without it.
#[test]
fn a_folder_that_is_gone_keeps_no_pool_from_being_served() {
    let site = Site::new(1);
    let usb = site.path("usb");
    site.configure(&format!("{}pool_dirs = [{usb:?}]\n", super::CONFIGURATION));
    std::fs::create_dir(&usb).unwrap();
    let mut daemon = site.start();
    site.ok("zpool create -O sharenfs=on tank d0");
    daemon.signal(rustix::process::Signal::TERM);
    daemon.ended();
    std::fs::remove_dir(&usb).unwrap();
    let out = site.command("daemon --check").output().unwrap();
    assert!(super::text(&out.stderr).contains("usb: No such file or directory"), "{out:?}");
    let _daemon = site.start();
    assert_eq!(site.pools(), ["tank"], "{}", site.log());
    assert!(site.log().contains("no pools are searched there"), "{}", site.log());
    site.ok("zpool export tank");
    site.ok(&format!("zpool import -d {} tank", site.path("d0").display()));
}

#[test]
fn a_pool_that_is_imported_readonly_is_served_and_not_changed() {
    let site = Site::new(3);
    let daemon = site.start();
    site.ok("zpool create -O sharenfs=on -O weir:nbd=on tank mirror d0 d1");
    site.ok("zfs create tank/a");
    site.ok("zfs create -V 8M tank/vol");
    std::fs::write(site.path("key"), "password\n").unwrap();
    let key = format!("-o encryption=on -o keyformat=passphrase -o keylocation=file://{}", site.path("key").display());
    site.ok(&format!("zfs create {key} -V 8M tank/secret"));
    for volume in ["tank/vol", "tank/secret"] {
        site.nbd(volume).write(0, &[7; 4096]);
    }
    site.ok("zfs snapshot -r tank@s");
    site.ok("zpool sync");
    site.ok("zpool export -f tank");
    // The labels have the path where it was.
    std::fs::rename(site.path("d1"), site.path("moved")).unwrap();
    let contents = || ["d0", "moved"].map(|disk| std::fs::read(site.path(disk)).unwrap());
    let before = contents();
    let import = format!("zpool import -o readonly=on -d {} tank", site.dir.path().display());
    site.ok(&import);
    assert_eq!(site.ok("zpool get -Ho value readonly tank"), "on\n");
    let status = site.ok("zpool status tank");
    assert!(status.contains("state: ONLINE") && status.contains("/moved ") && !status.contains("exported"), "{status}");
    assert_eq!(site.ok("zpool list -Ho health tank"), "ONLINE\n", "its labels say that it is exported");
    assert_eq!(site.ok("zfs list -Ho name -t all -r tank").lines().count(), 8);
    assert_eq!(site.nbd("tank/vol").read(0, 4096), [7; 4096]);
    assert_eq!(site.ok("zfs get -Ho value keystatus tank/secret"), "unavailable\n");
    site.ok("zfs load-key tank/secret");
    assert_eq!(site.nbd("tank/secret").read(0, 4096), [7; 4096]);
    site.wait_until("no client uses the volume", || {
        site.command("zfs unload-key tank/secret").status().unwrap().success()
    });
    assert_eq!(site.ok("zfs get -Ho value keystatus tank/secret"), "unavailable\n");
    let io = site.ok("zpool iostat -Hp tank");
    let sizes: Vec<u64> = io.split_whitespace().skip(1).take(2).map(|word| word.parse().unwrap()).collect();
    let listed = site.ok("zpool list -Hpo alloc,free tank");
    assert_eq!(sizes, listed.split_whitespace().map(|word| word.parse().unwrap()).collect::<Vec<u64>>());
    assert_eq!(site.nfs().exports(), ["/tank", "/tank/a"]);
    for line in [
        "zfs create tank/b",
        "zfs snapshot tank@t",
        "zfs set compression=off tank/a",
        "zfs destroy tank@s",
        "zfs rollback tank/vol@s",
        "zpool scrub tank",
        "zpool set comment=x tank",
        "zpool add tank d2",
        "zpool detach tank moved",
        "zpool offline tank moved",
        "zpool checkpoint tank",
        "zpool reguid tank",
        "zpool destroy tank",
    ] {
        let why = site.fails(line);
        assert!(why.contains("pool is read-only"), "{line}: {why}");
    }
    let stream = site.command("zfs send -wR tank@s").output().unwrap();
    assert!(stream.status.success() && stream.stdout.len() > 4096, "{}", super::text(&stream.stderr));
    site.ok("zpool sync tank");
    site.ok("zpool export -f tank");
    assert!(before == contents(), "not a byte was changed");
    // It is not in the cache file.
    site.ok(&import);
    drop(daemon);
    let _daemon = site.start();
    assert!(site.pools().is_empty());
    site.ok(&format!("zpool import -d {} tank", site.dir.path().display()));
    assert_eq!(site.ok("zpool get -Ho value readonly tank"), "off\n");
}

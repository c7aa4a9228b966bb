//! What commands say of hot spares, vdevs above devices, and other arguments that they cannot act on.

use super::*;

impl Lab {
    pub fn disk(&self, name: &str, mib: u64) -> String {
        std::fs::File::create(self.path(name)).unwrap().set_len(mib << 20).unwrap();
        self.path(name).display().to_string()
    }
}

/// The messages are those of OpenZFS.
#[test]
fn commands_say_why_they_do_not_act_on_a_vdev() {
    let lab = Lab::new();
    let s = lab.disk("s", 256);
    lab.ok(&format!("zpool add p spare {s}"));
    for (line, why) in [
        (format!("zpool offline p {s}"), "device is reserved as a hot spare"),
        ("zpool online p s".to_owned(), "device is reserved as a hot spare"),
        ("zpool detach p s".to_owned(), "device is reserved as a hot spare"),
        ("zpool replace p s d0".to_owned(), "device is reserved as a hot spare"),
        ("zpool offline p mirror-0".to_owned(), "operation not supported on this type of pool"),
        ("zpool detach p mirror-0".to_owned(), "only applicable to mirror and replacing vdevs"),
        ("zpool remove p mirror-0".to_owned(), "out of space"),
        ("zpool remove p nothing".to_owned(), "no such device in pool"),
        ("zpool offline p p".to_owned(), "no such device in pool"),
    ] {
        let said = lab.fails(&line);
        assert!(said.contains(&format!(": {why}")), "{line}: {said}");
    }
    for disk in ["r0", "r1", "r2"] {
        lab.disk(disk, 256);
    }
    lab.ok("zpool create q raidz1 r0 r1 r2");
    let why =
        "cannot remove raidz1-0: invalid config; all top-level vdevs must have the same sector size and not be raidz.";
    assert_eq!(lab.fails("zpool remove q raidz1-0"), format!("{why}\n"));
    let said = lab.run("zpool reguid -g 0 p");
    assert_eq!(said.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&said.stderr).contains("invalid GUID '0'"));
    check(lab.0.path());
}

/// Whether or not a process serves the pool, and whatever the device is called.
#[test]
fn a_device_does_not_replace_itself_even_by_force() {
    let lab = Lab::new();
    let x = lab.disk("x", 256);
    lab.ok(&format!("zpool create one {x}"));
    std::os::unix::fs::symlink(&x, lab.path("link")).unwrap();
    let link = lab.path("link").display().to_string();
    let mut server = None;
    for is_served in [false, true] {
        if is_served {
            server = Some(lab.serve());
        }
        let pools = if is_served { vec![("p", "d0")] } else { vec![("p", "d0"), ("one", x.as_str())] };
        for (pool, device) in pools {
            for line in
                [format!("zpool replace -f {pool} {device}"), format!("zpool replace -f {pool} {device} {device}")]
            {
                let said = lab.fails(&line);
                assert!(said.contains("is part of this pool already"), "{line}: {said}");
            }
        }
    }
    server.into_iter().for_each(end);
    for line in [
        format!("zpool replace -f one {x} {link}"),
        format!("zpool attach -f one {x} {link}"),
        format!("zpool add -f one {link}"),
        format!("zpool add -f one spare {link}"),
    ] {
        let said = lab.fails(&line);
        assert!(said.contains("part of") || said.contains("in use"), "{line}: {said}");
    }
    // After its labels were cleared while it is offline, it may come back as a new device.
    lab.ok("zpool offline p d0");
    let said = lab.fails("zpool replace -f p d0");
    assert!(said.contains("is part of this pool already"), "{said}");
    let d0 = lab.path("d0");
    let length = std::fs::metadata(&d0).unwrap().len();
    std::fs::write(&d0, []).unwrap();
    std::fs::OpenOptions::new().write(true).open(&d0).unwrap().set_len(length).unwrap();
    lab.ok("zpool replace p d0");
    assert!(!lab.ok("zpool status p").contains("DEGRADED"));
    check(lab.0.path());
}

#[test]
fn a_device_that_was_refused_is_free_for_the_next_command() {
    let lab = Lab::new();
    let server = lab.serve();
    let x = lab.disk("x", 64);
    assert!(lab.fails(&format!("zpool attach p d0 {x}")).contains("is too small"));
    lab.disk("x", 256);
    lab.ok(&format!("zpool attach -w p d0 {x}"));
    end(server);
    check(lab.0.path());
}

#[test]
fn the_pools_own_spare_replaces_a_device_without_force() {
    let lab = Lab::new();
    let s = lab.disk("s", 256);
    lab.ok(&format!("zpool add p spare {s}"));
    lab.ok(&format!("zpool replace p d0 {s}"));
    assert!(lab.ok("zpool status p").contains("INUSE"));
    check(lab.0.path());
}

/// As `redundancy_mirror` of OpenZFS's test suite does it: the pool has not noticed yet that the device has other contents.
#[test]
fn a_device_that_was_overwritten_in_service_is_replaced_by_itself() {
    let lab = Lab::new();
    let server = lab.serve();
    for options in ["", "-f ", "-w ", "-wf "] {
        let d0 = std::fs::OpenOptions::new().write(true).open(lab.path("d0")).unwrap();
        let length = d0.metadata().unwrap().len();
        d0.set_len(0).unwrap();
        d0.set_len(length).unwrap();
        lab.ok(&format!("zpool replace {options}p d0 d0"));
        lab.ok("zpool wait -t replace p");
        let status = lab.ok("zpool status p");
        assert!(status.contains("state: ONLINE") && !status.contains("replacing"), "{options}: {status}");
    }
    end(server);
    check(lab.0.path());
}

#[test]
fn a_removed_spare_is_free_unless_another_pool_shares_it() {
    let lab = Lab::new();
    let s = lab.disk("s", 256);
    lab.ok(&format!("zpool add p spare {s}"));
    lab.ok("zpool remove p s");
    lab.ok(&format!("zpool add p spare {s}"));
    lab.ok("zpool remove p s");
    let other = lab.disk("other", 256);
    lab.ok(&format!("zpool create q {other} spare {s}"));
    check(lab.0.path());
}

/// A spare that is detached by hand stays out; its original gets one again after it was repaired and fails anew.
#[test]
fn a_detached_spare_stays_available() {
    let lab = Lab::new();
    let s = lab.disk("s", 256);
    lab.ok(&format!("zpool add p spare {s}"));
    let server = lab.serve();
    let wait = |what: &str| {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while !lab.ok("zpool status p").contains(what) {
            assert!(std::time::Instant::now() < until, "no {what}: {}", lab.ok("zpool status p"));
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    };
    lab.ok("zpool offline -f p d0");
    wait("spare-0");
    lab.ok("zpool wait -t resilver p");
    lab.ok("zpool detach p s");
    std::thread::sleep(std::time::Duration::from_secs(5));
    let status = lab.ok("zpool status p");
    assert!(!status.contains("spare-0") && status.contains("AVAIL"), "{status}");
    lab.ok("zpool clear p");
    wait(" state: ONLINE");
    std::thread::sleep(std::time::Duration::from_secs(3));
    lab.ok("zpool offline -f p d0");
    wait("spare-0");
    end(server);
    check(lab.0.path());
}

#[test]
fn space_that_devices_have_gained_is_shown_before_it_is_used() {
    let lab = Lab::new();
    let column = || lab.ok("zpool list -Hp -o expandsize p").trim().to_owned();
    assert_eq!(column(), "-");
    for disk in ["d0", "d1"] {
        let file = std::fs::File::options().write(true).open(lab.path(disk)).unwrap();
        file.set_len(512 << 20).unwrap();
        drop(file);
        // The space is that of the smallest device.
        if disk == "d0" {
            assert_eq!(column(), "-");
        }
    }
    assert_eq!(column(), (256u64 << 20).to_string());
    assert!(lab.ok("zpool list -v p").contains("256M"));
    lab.ok("zpool online -e p d0");
    assert_eq!(column(), "-");
    check(lab.0.path());
}

/// A distributed spare is put into use by its name, by command and by itself, and is available again afterwards.
#[test]
fn distributed_spares_are_put_into_use_by_name() {
    let lab = Lab::new();
    let disks: Vec<String> = (0..10).map(|i| lab.disk(&format!("e{i}"), 128)).collect();
    let [first, second] = [&disks[..4], &disks[4..8]].map(|four| four.join(" "));
    lab.ok(&format!("zpool create q draid1:2d:1s {first} draid1:2d:1s {second}"));
    for (line, why) in [
        ("replace q e0 draid1-1-0", "dRAID spares can only replace child devices in their parent's dRAID vdev"),
        ("replace q e0 draid1-7-0", "the pool has no such distributed spare"),
        ("attach q e0 draid1-0-0", "it can only replace a device"),
        ("detach q draid1-0-0", "device is reserved as a hot spare"),
        ("remove q draid1-0-0", "dRAID spares cannot be removed"),
        ("add q draid1-0-0", "a distributed spare comes with its dRAID vdev"),
    ] {
        let said = lab.fails(&format!("zpool {line}"));
        assert!(said.contains(why), "{line}: {said}");
    }
    let used = |spare: &str| {
        let status = lab.ok("zpool status q");
        let line = status.lines().find(|line| line.contains(spare) && !line.contains("ONLINE"));
        line.unwrap_or_else(|| panic!("{spare}: {status}")).split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!(used("draid1-0-0"), "AVAIL");
    lab.ok("zpool replace q e0 draid1-0-0");
    assert_eq!((used("draid1-0-0"), used("draid1-1-0")), ("INUSE".into(), "AVAIL".into()));
    assert!(lab.ok("zpool status q").contains("spare-0"));
    let said = lab.fails("zpool replace q e1 draid1-0-0");
    assert!(said.contains("is an active hot spare"), "{said}");
    check_pool(lab.0.path(), "q");
    lab.ok("zpool export q");
    lab.ok("zpool import q");
    assert_eq!(used("draid1-0-0"), "INUSE");
    lab.ok("zpool detach q draid1-0-0");
    assert_eq!(used("draid1-0-0"), "AVAIL");
    let server = lab.start("serve --nfs-port 0 --nbd-port 0 q");
    lab.ok("zpool offline -f q e5");
    let until = std::time::Instant::now() + std::time::Duration::from_secs(40);
    while used("draid1-1-0") != "INUSE" {
        assert!(std::time::Instant::now() < until, "{}", lab.ok("zpool status q"));
        wait_ms(100);
    }
    lab.ok("zpool wait -t resilver q");
    for command in ["list -v q", "iostat -v q", "get -H all q draid1-1-0", "status -j q", "reopen q"] {
        lab.ok(&format!("zpool {command}"));
    }
    lab.ok(&format!("zpool replace -w q e5 {}", disks[9]));
    while used("draid1-1-0") != "AVAIL" {
        assert!(std::time::Instant::now() < until, "{}", lab.ok("zpool status q"));
        wait_ms(100);
    }
    assert!(lab.ok("zpool status q").contains(" state: ONLINE"), "{}", lab.ok("zpool status q"));
    end(server);
    std::fs::remove_file(&disks[5]).unwrap();
    check_pool(lab.0.path(), "q");
}

/// As OpenZFS shows it: with what the pool has.
#[test]
fn a_dry_run_of_add_shows_the_whole_layout() {
    let lab = Lab::new();
    let [s, t, l, m] = ["s", "t", "l", "m"].map(|name| lab.disk(name, 256));
    lab.ok(&format!("zpool add p spare {s}"));
    let shown = lab.ok(&format!("zpool add -n p mirror {t} {l} log {m}"));
    let disks = ["d0", "d1"].map(|name| lab.path(name).display().to_string());
    let expected = format!(
        "would update 'p' to the following configuration:\n\n\tp\n\t  mirror-0\n\t    {}\n\t    {}\n\t  mirror\n\t    {t}\n\t    \
         {l}\n\tlogs\n\t  {m}\n\tspares\n\t  {s}\n\n",
        disks[0], disks[1]
    );
    assert_eq!(shown, expected);
    assert!(!lab.ok("zpool status p").contains(&t), "nothing is added");
}

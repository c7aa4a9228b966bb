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

/// As OpenZFS shows it: with what the pool has.
#[test]
fn a_dry_run_of_add_shows_the_whole_layout() {
    let lab = Lab::new();
    let [s, t, l, m] = ["s", "t", "l", "m"].map(|name| lab.disk(name, 256));
    lab.ok(&format!("zpool add p spare {s}"));
    let shown = lab.ok(&format!("zpool add -n p mirror {t} {l} log {m}"));
    let disks = ["d0", "d1"].map(|name| lab.path(name).display().to_string());
    let expected = format!(
        "would update 'p' to the following configuration:\n\n\tp\n\t  mirror\n\t    {}\n\t    {}\n\t  mirror\n\t    {t}\n\t    \
         {l}\n\tlogs\n\t  {m}\n\tspares\n\t  {s}\n\n",
        disks[0], disks[1]
    );
    assert_eq!(shown, expected);
    assert!(!lab.ok("zpool status p").contains(&t), "nothing is added");
}

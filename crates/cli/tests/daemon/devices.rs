//! Device files that are removed, renamed or overwritten while the daemon has their pool open.

use crate::{Site, text};
use std::time::{Duration, Instant};

impl Site {
    /// State of a device as `zpool status` shows it.
    fn device_state(&self, device: &str) -> String {
        let shown = self.ok("zpool status p");
        let is_it = |word: &str| word.trim_end_matches(',').rsplit('/').next() == Some(device);
        // A device that cannot be opened is shown by its GUID, and its path after "was".
        let line = shown.lines().find(|line| line.split_whitespace().any(is_it));
        line.and_then(|line| line.split_whitespace().nth(1)).unwrap_or("absent").to_owned()
    }

    fn wait_for_state(&self, device: &str, state: &str) {
        let until = Instant::now() + Duration::from_secs(40);
        while self.device_state(device) != state {
            assert!(Instant::now() < until, "{device} is not {state}: {}{}", self.ok("zpool status p"), self.log());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Demands that `zdb`, if it is there, finds no leak and no bad block in the closed pool.
    fn judge(&self) {
        self.ok("zpool export p");
        self.ok("zdb -e -p . p --invariants");
        let Some(tools) = std::env::var_os("WEIR_ZFS_TOOLS").map(std::path::PathBuf::from) else { return };
        let mut zdb = std::process::Command::new(tools.join("sbin/zdb"));
        zdb.env("LD_LIBRARY_PATH", tools.join("lib/x86_64-linux-gnu")).args(["-e", "-p"]).arg(self.dir.path());
        let out = zdb.args(["-bcc", "p"]).output().unwrap();
        assert!(
            out.status.success() && text(&out.stdout).contains("No leaks"),
            "{}{}",
            text(&out.stdout),
            text(&out.stderr)
        );
    }
}

#[test]
fn a_renamed_device_is_used_until_it_is_looked_at_and_comes_back() {
    let site = Site::new(2);
    let _running = site.start();
    site.ok("zpool create p mirror d0 d1");
    std::fs::rename(site.path("d0"), site.path("away")).unwrap();
    site.ok("zfs create p/a");
    assert_eq!(site.device_state("d0"), "ONLINE", "its open file is used");
    assert!(site.ok("zpool status -x p").contains("is healthy"));
    // The last good side is not taken offline: the other one is looked at first.
    for option in ["-f", "-t", ""] {
        assert!(site.fails(&format!("zpool offline {option} p d1")).contains("no valid replicas"));
        assert_eq!((site.device_state("d0"), site.device_state("d1")), ("UNAVAIL".into(), "ONLINE".into()));
    }
    assert!(site.ok("zpool events -v").contains("ereport.fs.zfs.vdev.open_failed"));
    site.ok("zfs create p/b");
    std::fs::rename(site.path("away"), site.path("d0")).unwrap();
    site.wait_for_state("d0", "ONLINE");
    site.ok("zpool wait -t resilver p");
    site.ok("zpool scrub -w p");
    let shown = site.ok("zpool status p");
    assert!(shown.contains("with 0 errors") && shown.contains("No known data errors"), "{shown}");
    site.judge();
}

#[test]
fn the_only_device_stays_in_service_through_its_open_file() {
    let site = Site::new(1);
    let _running = site.start();
    site.ok("zpool create p d0");
    std::fs::rename(site.path("d0"), site.path("away")).unwrap();
    site.ok("zpool reopen -n p");
    site.ok("zfs create p/a");
    assert_eq!(site.device_state("d0"), "REMOVED");
    let shown = site.ok("zpool status p");
    assert!(shown.contains("state: DEGRADED") && shown.contains("gone from their paths"), "{shown}");
    assert!(site.log().contains("the pool needs it"), "{}", site.log());
    std::fs::rename(site.path("away"), site.path("d0")).unwrap();
    site.wait_for_state("d0", "ONLINE");
    assert!(site.ok("zpool status -x p").contains("is healthy"));
    site.judge();
}

#[test]
fn no_device_whose_file_was_removed_is_online_after_a_reopen() {
    let site = Site::new(3);
    let _running = site.start();
    site.ok("zpool create p raidz d0 d1 d2");
    for device in ["d0", "d1"] {
        std::fs::remove_file(site.path(device)).unwrap();
    }
    site.ok("zpool reopen -n p");
    let mut states = ["d0", "d1", "d2"].map(|device| site.device_state(device));
    states.sort();
    assert_eq!(states, ["ONLINE", "REMOVED", "UNAVAIL"]);
    assert_eq!(site.ok("zpool list -H -o health p"), "DEGRADED\n");
    site.ok("zfs create p/a");
}

#[test]
fn an_overwritten_device_is_found_by_a_scrub_and_replaced() {
    let site = Site::new(3);
    let _running = site.start();
    // By the labels of another pool: a hot spare steps in.
    site.ok("zpool create p mirror d0 d1 spare d2");
    site.ok("zfs create p/a");
    std::fs::File::create(site.path("other")).unwrap().set_len(128 << 20).unwrap();
    site.ok("zpool create q other");
    site.ok("zpool export q");
    std::fs::write(site.path("d0"), std::fs::read(site.path("other")).unwrap()).unwrap();
    site.ok("zpool scrub -w p");
    assert_eq!(site.device_state("d0"), "UNAVAIL", "{}", site.ok("zpool status p"));
    let shown = site.ok("zpool status p");
    assert!(shown.contains("DEGRADED") && shown.contains("ZFS-8000-4J"), "{shown}");
    assert!(site.ok("zpool events").contains("ereport.fs.zfs.vdev.bad_label"));
    let before = std::fs::read(site.path("d0")).unwrap();
    site.wait_for_state("spare-0", "DEGRADED");
    site.ok("zpool wait -t resilver p");
    assert!(std::fs::read(site.path("d0")).unwrap() == before, "a device of another pool is not written to");
    // By nothing: autoreplace takes it.
    std::fs::File::create(site.path("d0")).unwrap().set_len(128 << 20).unwrap();
    site.ok("zpool set autoreplace=on p");
    site.wait_for_state("d0", "ONLINE");
    site.ok("zpool wait p");
    site.wait_for_state("d2", "AVAIL");
    site.judge();
}

/// The pass over the free space goes on by itself after an export, and after the daemon was killed.
#[test]
fn a_trim_goes_on_at_the_next_import() {
    let site = Site::new(2);
    let mut running = site.start();
    site.ok("zpool create p d0 d1");
    site.ok("zpool trim -r 16M p");
    site.ok("zpool export p");
    site.ok("zpool import -d . p");
    assert!(!site.ok("zpool status -t p").contains("completed"), "it takes longer: {}", site.ok("zpool status -t p"));
    running.signal(rustix::process::Signal::KILL);
    assert!(!running.ended());
    let _running = site.start();
    site.ok("zpool wait -t trim p");
    let shown = site.ok("zpool status -t p");
    assert_eq!(shown.matches("100% trimmed, completed").count(), 2, "{shown}");
}

/// A disk that is dying may be there and refuse to be opened; so does a socket (ENXIO).
#[test]
fn a_device_that_cannot_be_opened_hides_neither_its_pool_nor_others() {
    let site = Site::new(3);
    let killed = site.start();
    site.ok("zpool create p mirror d0 d1");
    site.ok("zpool create other d2");
    site.ok("zfs create p/a");
    std::fs::rename(site.path("d0"), site.path("away")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(site.path("d0")).unwrap();
    for line in ["zpool status p", "zpool list", "zfs list p/a", "zpool status other", "zpool status -x"] {
        site.ok(line);
    }
    drop(killed);
    let _running = site.start();
    site.wait_until("the pools are served", || site.command("zfs list p/a other").output().unwrap().status.success());
    assert!(site.ok("zpool status p").contains("state: DEGRADED"));
    assert_eq!((site.device_state("d1"), site.device_state("d2")), ("ONLINE".into(), "absent".into()));
    site.ok("zfs create p/b");
}

#[test]
fn a_suspended_pool_is_listed_and_exported_only_if_that_is_asked_for() {
    let site = Site::new(2);
    let _running = site.start();
    site.ok("zpool create -O mountpoint=none p mirror d0 d1");
    site.ok("zpool sync");
    for device in ["d0", "d1"] {
        std::fs::File::options().write(true).open(site.path(device)).unwrap().set_len(0).unwrap();
    }
    let mut waiting = site.command("zfs create p/a").spawn().unwrap();
    site.wait_until("the pool is suspended", || site.ok("zpool list -Ho health p") == "SUSPENDED\n");
    // One device is out of service; the other stays in service, because the pool needs it, and does not work either.
    site.wait_for_state("mirror-0", "UNAVAIL");
    let why = site.fails("zpool export p");
    assert!(why.contains("pool I/O is currently suspended") && why.contains("zpool export -F"), "{why}");
    // They would wait, and be carried out later, when who asked for them may be gone.
    for line in ["zfs create p/c", "zfs snapshot p@1", "zfs set compression=off p", "zpool sync p", "zpool scrub p"] {
        let why = site.fails(line);
        assert!(why.contains("pool I/O is currently suspended"), "{line}: {why}");
    }
    assert_eq!(site.ok("zpool list -Ho name,health"), "p\tSUSPENDED\n");
    // Although nothing of it can be read: the state, its vdevs and their errors are in memory.
    let status = site.ok("zpool status p");
    assert!(status.contains("state: SUSPENDED") && status.contains(site.path("d0").to_str().unwrap()), "{status}");
    assert!(site.ok("zpool status -x").contains("SUSPENDED"));
    assert!(site.ok("daemon status").contains("pool p: SUSPENDED"));
    let why = site.fails("zpool clear p");
    assert!(why.contains("cannot clear errors for p: the pool is still suspended"), "{why}");
    let why = site.fails("zpool destroy -f p");
    assert!(why.contains("pool I/O is currently suspended"), "{why}");
    assert_eq!(site.ok("zpool list -Ho name,health"), "p\tSUSPENDED\n");
    site.ok("zpool export -F p");
    assert_eq!(site.ok("zpool list -H"), "");
    waiting.wait().unwrap();
}

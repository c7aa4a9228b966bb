//! Alerts: conditions of pools that programs receive.

use super::{CONFIGURATION, Site};
use rustix::process::Signal;
use serde_json::Value;

impl Site {
    /// A configuration with alerts that a program appends to the file `got`, one line each; `more` are keys of `[alerts]`.
    fn alert(&self, more: &str) {
        let program = self.path("notify");
        std::fs::write(&program, format!("#!/bin/sh\n(cat; echo) >> {}\n", self.path("got").display())).unwrap();
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, executable).unwrap();
        let send = format!("[[alerts.send]]\ncommand = [\"{}\"]\n", program.display());
        self.configure(&format!("{CONFIGURATION}[alerts]\ninterval = 1\n{more}{send}"));
    }

    /// Events and names of the alerts that the program received.
    fn received(&self) -> Vec<String> {
        let got = std::fs::read_to_string(self.path("got")).unwrap_or_default();
        let line = |line: &str| -> Option<String> {
            let alert: Value = serde_json::from_str(line).ok()?;
            Some(format!("{} {}", alert["event"].as_str()?, alert["name"].as_str()?))
        };
        got.lines().filter_map(line).collect()
    }

    fn wait_for_alert(&self, wanted: &str) {
        self.wait_until(wanted, || self.received().iter().any(|alert| alert == wanted));
    }
}

#[test]
fn what_happens_to_a_pool_is_sent_once_and_its_end_too() {
    let site = Site::new(3);
    site.alert("");
    let mut daemon = site.start();
    site.ok("zpool create tank mirror d0 d1");
    site.ok("zpool create other d2");
    site.ok("zfs set sync=disabled other");
    site.wait_for_alert("raised sync-disabled:other");
    site.ok("zpool offline tank d1");
    site.wait_for_alert("raised pool:tank");
    site.wait_for_alert("raised no-redundancy:tank/mirror-0");
    let shown = site.ok("daemon alerts");
    assert!(shown.starts_with("pool:tank  critical since 2") || shown.starts_with("no-redundancy:tank"), "{shown}");
    assert!(shown.contains("pool 'tank' is DEGRADED: One or more devices were taken offline"), "{shown}");
    assert!(shown.contains("sync=disabled on other: a crash loses"), "{shown}");

    // A restart does not send it again.
    daemon.signal(Signal::KILL);
    daemon.ended();
    let _daemon = site.start();
    site.ok("zpool online tank d1");
    site.ok("zpool wait -t resilver tank");
    site.wait_for_alert("resolved pool:tank");
    site.wait_for_alert("resolved no-redundancy:tank/mirror-0");
    let all = site.received();
    let count = |wanted: &str| all.iter().filter(|alert| alert.as_str() == wanted).count();
    assert_eq!((count("raised pool:tank"), count("raised sync-disabled:other")), (1, 1), "{all:?}");
    assert_eq!(site.status("/alerts/alerts/0/name"), "sync-disabled:other");
    assert!(site.status("/alerts/history").as_array().unwrap().len() >= 5);
}

#[test]
fn alerts_are_muted_and_tried() {
    let site = Site::new(1);
    site.alert("capacity = 1\nignore = [\"sync-disabled\"]\n");
    let _daemon = site.start();
    site.ok("zpool create tank d0");
    site.ok("zfs set sync=disabled tank");
    site.ok("daemon alerts test");
    site.wait_for_alert("test pool:test");
    assert!(site.ok("daemon alerts").contains("/notify: ok"), "{}", site.ok("daemon alerts"));
    site.ok("zfs create -V 8M -o compression=off -o weir:nbd=on tank/volume");
    let mut volume = site.nbd("tank/volume");
    (0..64).for_each(|block| volume.write(block << 16, &[7; 1 << 16]));
    site.ok("zpool sync tank");
    site.wait_for_alert("raised capacity:tank");
    site.ok("daemon alerts ack capacity:tank");
    assert_eq!(site.status("/alerts/alerts/0/acknowledged"), true);
    site.ok("daemon alerts mute capacity:tank --hours 2");
    assert!(site.ok("daemon alerts").contains(", acknowledged, muted until 2"));
    for (line, why) in [
        ("daemon alerts ack pool:none", "there is no alert 'pool:none'"),
        ("daemon alerts mute pool:none", "there is no alert 'pool:none'"),
    ] {
        let error = site.fails(line);
        assert!(error.contains(why), "{line}: {error}");
    }
    assert!(site.received().iter().all(|alert| !alert.contains("sync-disabled")));

    site.configure(&format!("{CONFIGURATION}[alerts]\ncapacity = 99\n[[alerts.send]]\ncommand = [\"/bin/false\"]\n"));
    site.ok("daemon reload");
    site.ok("daemon alerts test");
    site.wait_until("the failure is shown", || {
        site.status("/alerts/receivers/0/problem").as_str().is_some_and(|why| why.contains("exit status: 1"))
    });
    site.configure(&format!("{CONFIGURATION}[alerts]\nlimit = 1\n"));
    assert!(site.fails("daemon --check").contains("unknown field `limit`"));
    site.configure(CONFIGURATION);
    site.ok("daemon reload");
    assert!(site.fails("daemon alerts test").contains("[[alerts.send]]"));
}

#[test]
fn a_replication_that_lags_is_an_alert_until_the_target_has_caught_up() {
    let site = Site::new(2);
    site.alert("");
    let _daemon = site.start();
    site.ok("zpool create tank d0");
    site.ok("zpool create backup d1");
    site.ok("zfs create tank/docs");
    let with_alerts = std::fs::read_to_string(site.path("conf/weir.toml")).unwrap();
    let job = |more: &str| {
        format!(
            "{with_alerts}[[jobs]]\nname = \"off-site\"\nreplicate = \"tank/docs\"\nto = \"{more}\nschedule = \"monthly 1 00:00\"\n"
        )
    };
    // The target's machine cannot be reached.
    site.configure(&job("nas:backup/docs\"\nthrough = \"/bin/false\"\nlag_seconds = 1"));
    site.ok("daemon reload");
    site.wait_for_alert("raised replication-lag:off-site");
    let shown = site.ok("daemon alerts");
    assert!(shown.contains("nas:backup/docs is behind tank/docs: it has no snapshot, and the dataset is"), "{shown}");
    site.configure(&job("backup/docs\"\nlag_seconds = 3600"));
    site.ok("daemon reload");
    site.wait_for_alert("resolved replication-lag:off-site");
    site.ok("daemon job run off-site");
    site.wait_until("the target has the snapshot", || {
        site.ok("zfs list -H -t snapshot -r backup").contains("@off-site-")
    });
    // What it has is as old as the last run.
    site.configure(&job("backup/docs\"\nlag_seconds = 1"));
    site.ok("daemon reload");
    site.wait_until("it lags again", || {
        site.ok("daemon alerts").contains("backup/docs is behind tank/docs: the last snapshot that it has is")
    });
}

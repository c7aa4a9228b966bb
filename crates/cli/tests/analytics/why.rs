//! `weir why` on pools that are served to real clients.

use super::{Site, has};
use std::io::Write;
use std::process::{Command, Stdio};
use weir_analytics::why::{Cause, Diagnosis};

/// Writes of the client, each followed by a flush.
const SYNC_WRITES: u64 = 200;

/// The diagnosis of the only pool.
fn diagnosis(site: &Site, words: &[&str]) -> Diagnosis {
    let mut report: serde_json::Value = serde_json::from_str(&site.ok(&[&["why", "-j"], words].concat())).unwrap();
    assert_eq!(report["diagnoses"].as_array().unwrap().len(), 1, "{report}");
    serde_json::from_value(report["diagnoses"][0].take()).unwrap()
}

/// Writes of 4 KiB at scattered places, each made stable before the next.
fn write_sync(site: &Site) {
    let uri = site.said("nbd://");
    let places = (0..SYNC_WRITES).map(|n| n * 37 % 512);
    let commands: String = places.map(|place| format!("write -P 5 {} 4k\nflush\n", place * 65_536)).collect();
    let mut qemu = Command::new("qemu-io");
    let mut qemu = qemu.args(["-f", "raw", &uri]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    qemu.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
    assert!(qemu.wait().unwrap().success());
}

#[test]
fn sync_writers_without_a_log_device_are_named_and_an_idle_pool_is_well() {
    if !has("qemu-io") {
        println!("skipped: qemu-io is not installed");
        return;
    }
    let site = Site::new();
    let idle = diagnosis(&site, &["tank"]);
    assert_eq!((idle.requests, idle.findings.len(), idle.subject), (0, 0, None));
    assert!(idle.limit.starts_with("Nothing waits: no request of a client ended in "), "{}", idle.limit);

    write_sync(&site);
    let all = diagnosis(&site, &[]);
    let of_log = |cause: Cause| cause == Cause::SyncWritesWithoutLogDevice;
    let found = all.findings.iter().find(|found| of_log(found.cause)).unwrap_or_else(|| panic!("{all:?}"));
    assert_eq!(found.subject, "tank");
    let figure = |name: &str| found.figures[name];
    assert!(figure("writes_and_flushes") >= 2.0 * SYNC_WRITES as f64, "{found:?}");
    assert!(figure("log_commit_percent") >= 30.0 && figure("log_bytes") >= 4096.0 * SYNC_WRITES as f64, "{found:?}");
    assert!(all.requests >= 2 * SYNC_WRITES && all.seconds > 0.0);
    let text = site.ok(&["why", "tank"]);
    assert!(text.starts_with("tank: ") && text.contains("the pool has no log device"), "{text}");

    // A dataset and a client have their own requests (a flush of NBD is of no dataset); a watch sees only its own time.
    for subject in ["tank/vol", "127.0.0.1"] {
        let of = diagnosis(&site, &[subject]);
        assert_eq!((of.subject.as_deref(), of.requests >= SYNC_WRITES), (Some(subject), true), "{of:?}");
    }
    let watched = diagnosis(&site, &["-t", "0.3", "tank"]);
    assert_eq!((watched.requests, watched.findings.len()), (0, 0), "{watched:?}");
    assert!(watched.seconds >= 0.3 && watched.seconds < 20.0, "{}", watched.seconds);

    let refused = site.weir(&["why", "other/vol"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("'other'"), "{refused:?}");
}

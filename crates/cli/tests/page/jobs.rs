//! Jobs that the page adds, changes, runs and removes.

use super::{Site, act, until};
use serde_json::{Value, json};

fn listed(site: &Site) -> Value {
    let list: Value = serde_json::from_str(&site.ok("daemon job list -j --json-int")).unwrap();
    list["jobs"].clone()
}

#[test]
fn jobs_and_their_runs_survive_a_killed_daemon() {
    let configured = "[[jobs]]\nname = \"fixed\"\nscrub = [\"tank\"]\nschedule = \"monthly 1 03:00\"\n";
    let mut site = Site::new(1, configured);
    site.ok("zpool create tank d0");
    site.ok("zfs create tank/a");
    let own = site.http();
    let job = |keep: u32, replace: bool| {
        let work = json!({"snapshot": ["tank/a"]});
        json!({"do": "add_job", "name": "often", "work": work, "keep": keep, "schedule": "monthly 1 04:00", "time_zone": "UTC", "replace": replace})
    };
    let (code, done) = act(&own, job(2, false));
    assert_eq!(code, 200, "{done}");
    let snapshots = |site: &Site| site.ok("zfs list -H -t snapshot -o name").lines().count();
    assert_eq!(act(&own, json!({"do": "run_job", "job": "often"})).0, 200);
    until("the first run", || (snapshots(&site) == 1).then_some(()));
    let (code, why) = act(&own, job(2, false));
    assert!(code == 422 && why["error"].as_str().unwrap().contains("--replace replaces it"), "{why}");
    assert_eq!(act(&own, job(1, true)).0, 200);
    assert_eq!(listed(&site)["often"]["added"]["keep"], 1);
    for name in ["fixed", "none"] {
        assert_eq!(act(&own, json!({"do": "remove_job", "job": name})).0, 422, "{name}");
    }
    let (code, why) =
        act(&own, json!({"do": "add_job", "name": "fixed", "work": {"scrub": ["tank"]}, "schedule": "hourly"}));
    assert!(code == 422 && why["error"].as_str().unwrap().contains("is one of weir.toml"), "{why}");
    let (code, why) =
        act(&own, json!({"do": "add_job", "name": "x", "work": {"scrub": ["tank"]}, "schedule": "yearly"}));
    assert!(code == 422 && why["error"].as_str().unwrap().contains("'yearly'"), "{why}");

    // Out of turn: a second snapshot, and the first goes.
    let first = site.ok("zfs list -H -t snapshot -o name");
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert_eq!(act(&own, json!({"do": "run_job", "job": "often"})).0, 200);
    let done = until("the run ends", || {
        let jobs = listed(&site);
        let run = jobs["often"]["runs"][0]["done"].as_str().map(str::to_owned);
        run.filter(|done| done.ends_with("1 destroyed") && site.ok("zfs list -H -t snapshot -o name") != first)
    });
    assert_eq!((done.as_str(), snapshots(&site)), ("snapshots of 1 datasets taken; 1 destroyed", 1));
    assert_eq!(act(&own, json!({"do": "run_job", "job": "fixed"})).0, 200);
    until("the scrub is started", || listed(&site)["fixed"]["runs"][0]["done"].as_str().map(drop));
    let before = listed(&site);

    site.start();
    until("the pool is open", || site.ok("zpool list -H -o name").contains("tank").then_some(()));
    let after = listed(&site);
    assert_eq!(
        (&after["often"]["runs"], &after["often"]["added"]),
        (&before["often"]["runs"], &before["often"]["added"])
    );
    assert_eq!((&after["fixed"]["added"], &after["fixed"]["runs"]), (&Value::Null, &before["fixed"]["runs"]));
    assert_eq!(before["fixed"]["runs"].as_array().map(Vec::len), Some(1), "{before}");
    assert_eq!(act(&site.http(), json!({"do": "remove_job", "job": "often"})).0, 200);
    assert_eq!(listed(&site)["often"], Value::Null);
    assert_eq!(snapshots(&site), 1, "what a job made stays");

    // A damaged file is kept beside, and the daemon starts.
    site.kill();
    std::fs::write(site.path("state/jobs.json"), "{\"jobs\": [{").unwrap();
    site.start();
    assert_eq!(listed(&site).as_object().unwrap().len(), 1);
    assert!(site.path("state/jobs.json.damaged").exists());
}

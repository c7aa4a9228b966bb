//! Scheduled snapshots and scrubs.

use super::{CONFIGURATION, Site};
use rustix::process::Signal;

const SNAPSHOTS: &str = r#"
[[jobs]]
name = "auto"
snapshot = ["tank/docs"]
recursive = true
schedule = "monthly 1 00:00"
keep = 2
"#;

impl Site {
    /// Names of the snapshots after the `@`, oldest first.
    fn snapshots_of(&self, dataset: &str) -> Vec<String> {
        let listed = self.ok(&format!("zfs list -H -d 1 -t snapshot -o name -s createtxg {dataset}"));
        listed.lines().filter_map(|line| Some(line.split_once('@')?.1.to_owned())).collect()
    }

    /// Makes the stopped daemon know a job with this schedule since 1970, so that it has missed the last run.
    pub(super) fn has_known_job(&self, job: &str, schedule: &str) {
        let file = self.path("state/jobs.json");
        let stored = std::fs::read(&file).ok().map(|bytes| serde_json::from_slice(&bytes).unwrap());
        let mut stored: serde_json::Value = stored.unwrap_or_else(|| serde_json::json!({}));
        stored["since"][job] = serde_json::json!({"schedule": schedule, "at": 0});
        std::fs::write(file, stored.to_string()).unwrap();
    }

    fn job_line(&self, job: &str) -> String {
        let status = self.ok("daemon status");
        let found = status.lines().find(|line| line.starts_with(&format!("job {job}:"))).map(str::to_owned);
        found.unwrap_or_else(|| panic!("no job {job} in {status}"))
    }
}

#[test]
fn a_job_takes_snapshots_and_destroys_its_own_oldest() {
    let site = Site::new(1);
    let mut daemon = site.start();
    site.ok("zpool create tank d0");
    site.ok("zfs create -p tank/docs/a");
    let others = ["mine", "auto", "auto-2", "other-20200101T000000Z"];
    let old = ["auto-20200101T000000Z", "auto-20200102T000000Z", "auto-20200103T000000Z"];
    others.iter().chain(&old).for_each(|name| drop(site.ok(&format!("zfs snapshot tank/docs@{name}"))));
    site.ok("zfs snapshot tank@auto-20200101T000000Z");
    site.ok(&format!("zfs hold here tank/docs@{}", old[0]));
    site.configure(&format!("{CONFIGURATION}{SNAPSHOTS}"));
    site.ok("daemon reload");

    // A new job has missed no run.
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert!(site.job_line("auto").contains("next at 2") && site.snapshots_of("tank/docs").len() == 7);
    daemon.signal(Signal::KILL);
    daemon.ended();
    site.has_known_job("auto", "monthly 1 00:00");
    let mut daemon = site.start();

    // The run of this month was missed: it is made up at once.
    site.wait_until("the job has run", || site.job_line("auto").contains("destroyed"));
    let found = site.snapshots_of("tank/docs");
    let (kept, taken) = found.split_at(found.len() - 1);
    assert_eq!(kept, [&others[..], &[old[0], old[2]]].concat(), "the oldest is held, and the second is destroyed");
    assert!(taken[0].starts_with("auto-2") && taken[0].as_str() > old[2], "{taken:?}");
    assert_eq!(site.snapshots_of("tank/docs/a"), taken);
    assert_eq!(site.snapshots_of("tank"), ["auto-20200101T000000Z"]);
    let line = site.job_line("auto");
    let start = "job auto: snapshot -r of tank/docs, keep 2; monthly 1 00:00, next at 2";
    assert!(
        line.starts_with(start) && line.contains("taken, with the descendants; 1 destroyed; not destroyed: "),
        "{line}"
    );
    assert!(line.contains(&format!("tank/docs@{}: ", old[0])), "{line}");
    assert!(site.ok("zpool history tank").contains(&format!("zfs snapshot -r tank/docs@{}", taken[0])));

    // A daemon that starts again finds the run in the pool, and destroys what is no longer held.
    site.ok(&format!("zfs release here tank/docs@{}", old[0]));
    daemon.signal(Signal::KILL);
    daemon.ended();
    let _daemon = site.start();
    site.wait_until("the oldest is destroyed", || site.job_line("auto").contains("0 datasets taken"));
    assert_eq!(site.snapshots_of("tank/docs"), [&others[..], &[old[2], &taken[0]]].concat());
    assert_eq!(site.snapshots_of("tank/docs/a"), taken);
}

#[test]
fn a_job_waits_for_its_pool_and_starts_one_scrub() {
    let site = Site::new(1);
    let scrub = "\n[[jobs]]\nname = \"month\"\nscrub = [\"tank\"]\nschedule = \"monthly 1 00:00\"\n";
    site.configure(&format!("{CONFIGURATION}{scrub}"));
    site.has_known_job("month", "monthly 1 00:00");
    let mut daemon = site.start();
    site.wait_until("the pool is missed", || site.job_line("month").contains("failed at "));
    assert!(site.job_line("month").contains("tank: the pool is not open"), "{}", site.job_line("month"));
    site.ok("zpool create tank d0");
    let scrubs = || site.ok("zpool history tank").matches("zpool scrub tank").count();
    assert_eq!(scrubs(), 0, "a failed run is repeated after a minute");

    daemon.signal(Signal::TERM);
    daemon.ended();
    let mut daemon = site.start();
    site.wait_until("the scrub has started", || site.job_line("month").contains("scrub of tank started"));
    assert_eq!(scrubs(), 1);
    site.ok("zpool wait -t scrub tank");
    assert!(site.ok("zpool status tank").contains("scrub repaired 0B"));
    daemon.signal(Signal::TERM);
    daemon.ended();
    let mut daemon = site.start();
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(scrubs(), 1, "one that began since the job was due is enough");

    // No run is missed when the pool goes away after one.
    site.ok("zpool destroy tank");
    daemon.signal(Signal::TERM);
    daemon.ended();
    let _daemon = site.start();
    std::thread::sleep(std::time::Duration::from_secs(3));
    let line = site.job_line("month");
    assert!(line.contains("scrub of tank started") && !line.contains("failed at"), "{line}");
}

#[test]
fn a_wrong_job_keeps_the_configuration_out() {
    let site = Site::new(0);
    let _daemon = site.start();
    for (change, why) in [
        (("monthly 1 00:00", "monthly 1"), "job 'auto': schedule: 'monthly 1' is none of"),
        (("keep = 2", ""), "job 'auto': keep: the number"),
        (("tank/docs", "tank@home"), "job 'auto': snapshot: 'tank@home' is no name of a dataset"),
        (("keep = 2", "keep = 2\ntime_zone = \"Moon/Sea\""), "job 'auto': time_zone: there is no time zone 'Moon/Sea'"),
        (("keep = 2", "kept = 2"), "line 13: unknown field `kept`"),
    ] {
        site.configure(&format!("{CONFIGURATION}{}", SNAPSHOTS.replace(change.0, change.1)));
        for line in ["daemon --check", "daemon reload"] {
            let error = site.fails(line);
            assert!(error.contains(why) && error.contains("weir.toml"), "{line}: {error}");
        }
    }
    assert_eq!(site.status("/jobs"), serde_json::json!({}));
}

#[test]
fn a_job_is_added_with_a_warning_of_what_is_missing_and_waits_for_its_time() {
    let site = Site::new(1);
    let mut daemon = site.start();
    site.ok("zpool create tank d0");
    let add = |line: &str| {
        let mut words = vec!["daemon", "job", "add"];
        words.extend(line.split_whitespace());
        let out = site.command("").args(words).args(["--schedule", "daily 02:30"]).output().unwrap();
        assert!(out.status.success(), "{line}");
        super::text(&out.stderr)
    };
    assert_eq!(add("there --snapshot tank --keep 2"), "");
    assert_eq!(
        add("gone --snapshot tank --snapshot tank/gone --keep 2"),
        "warning: job 'gone' was added, but there is no dataset 'tank/gone'\n"
    );
    assert_eq!(add("away --scrub other"), "warning: job 'away' was added, but the pool 'other' is not open\n");
    // Also after a restart, no run before the job was added counts as missed.
    daemon.signal(Signal::KILL);
    daemon.ended();
    let _daemon = site.start();
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(site.snapshots_of("tank").len(), 0);
    site.ok("daemon job run there");
    site.wait_until("the job has run", || site.job_line("there").contains("1 datasets taken"));
    assert_eq!(site.snapshots_of("tank").len(), 1);
}

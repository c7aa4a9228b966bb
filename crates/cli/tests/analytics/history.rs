//! The history of a daemon on disk: what a crash, a restart, damage and a disk that takes nothing leave of it.

use super::http::Http;
use super::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const CONFIGURATION: &str = "nfs_port = 0\nnbd_port = 0\niscsi_port = 0\nsmb_port = 0\nhttp_port = 0\nmounts = false\n";

/// Directories of one daemon, and a file as a disk.
struct Site {
    folder: tempfile::TempDir,
}

/// A running daemon; it is killed when the test ends.
struct Daemon {
    child: Child,
    http: Http,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It has ended already if the test stopped it.
        let _gone = self.child.kill();
        let _code = self.child.wait();
    }
}

impl Site {
    fn new(more: &str) -> Site {
        let site = Site { folder: tempfile::tempdir().unwrap() };
        for name in ["run", "state", "conf"] {
            std::fs::DirBuilder::new().mode(0o700).create(site.path(name)).unwrap();
        }
        site.configure(more);
        std::fs::File::create(site.path("disk")).unwrap().set_len(128 << 20).unwrap();
        site
    }

    fn configure(&self, more: &str) {
        std::fs::write(self.path("conf/weir.toml"), format!("{CONFIGURATION}{more}")).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn weir(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(line.split(' ')).stdin(Stdio::null()).current_dir(self.folder.path());
        command.env_remove("WEIR_POOL_DIRS").env_remove("WEIR_LOG");
        command.env("RUNTIME_DIRECTORY", self.path("run")).env("STATE_DIRECTORY", self.path("state"));
        command.env("CONFIGURATION_DIRECTORY", self.path("conf"));
        command
    }

    fn ok(&self, line: &str) -> String {
        let out = self.weir(line).output().unwrap();
        assert!(out.status.success(), "{line}: {}\n{}", String::from_utf8_lossy(&out.stderr), self.log());
        String::from_utf8(out.stdout).unwrap()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    fn start(&self) -> Daemon {
        let log = std::fs::File::options().create(true).append(true).open(self.path("log")).unwrap();
        let mut child = self.weir("daemon").stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line == "ready"), "the daemon ended: {}", self.log());
        let token = std::fs::read_to_string(self.path("state/web.token")).unwrap();
        let address = self.status("/http/address");
        let url = format!("http://{}/?token={}", address.as_str().unwrap(), token.trim());
        Daemon { child, http: Http::of(&url) }
    }

    /// Stops the daemon and waits for its end.
    fn stop(&self, mut daemon: Daemon) {
        kill_process(Pid::from_child(&daemon.child), Signal::TERM).unwrap();
        assert!(daemon.child.wait().unwrap().success(), "{}", self.log());
    }

    /// A field of the status, by JSON pointer.
    fn status(&self, pointer: &str) -> Value {
        let status: Value = serde_json::from_str(&self.ok("daemon status -j --json-int")).unwrap();
        status.pointer(pointer).cloned().unwrap_or_default()
    }

    /// Files of the history of the pool, by name.
    fn files(&self) -> Vec<PathBuf> {
        let guid = self.status("/pools/tank/guid");
        let folder = self.path(&format!("state/history/{guid}"));
        let mut files: Vec<PathBuf> =
            std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }
}

impl Daemon {
    /// Values of the pool by time, in milliseconds.
    fn history(&self, resolution: &str) -> BTreeMap<u64, Vec<Value>> {
        let (code, body) = self.http.get(&format!("/api/v1/pools/tank/history?resolution={resolution}"));
        if code == 404 {
            return BTreeMap::new();
        }
        assert_eq!(code, 200, "{body}");
        let columns: Value = serde_json::from_str(&body).unwrap();
        let values = columns["values"].as_array().unwrap();
        let times = columns["time_ms"].as_array().unwrap().iter().map(|time| time.as_u64().unwrap());
        times.enumerate().map(|(n, time)| (time, values.iter().map(|column| column[n].clone()).collect())).collect()
    }

    /// Values by time, once there are some up to this time.
    fn history_until(&self, resolution: &str, time_ms: u64) -> BTreeMap<u64, Vec<Value>> {
        until(|| {
            Some(self.history(resolution)).filter(|found| found.keys().next_back().is_some_and(|last| *last >= time_ms))
        })
    }
}

fn last(history: &BTreeMap<u64, Vec<Value>>) -> u64 {
    *history.keys().next_back().unwrap()
}

#[test]
fn the_history_survives_sigkill_a_restart_and_damage() {
    let site = Site::new("");
    let mut daemon = site.start();
    let disk = site.path("disk");
    site.ok(&format!("zpool create tank {}", disk.display()));
    // The first flush is after 20 s.
    let files = until(|| Some(site.files()).filter(|files| !files.is_empty()));
    assert!(files.iter().all(|path| path.file_name().unwrap().to_str().unwrap().contains('-')), "{files:?}");
    std::thread::sleep(Duration::from_millis(1500));
    let before = daemon.history("second");
    assert!(before.len() >= 10, "{before:?}");
    // SIGKILL.
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    std::thread::sleep(Duration::from_millis(2500));

    let daemon = site.start();
    let again = daemon.history_until("second", last(&before) + 1);
    // What was taken up to 20 s before the crash, and nothing else, in the time before it.
    let stored: Vec<&u64> = again.keys().filter(|time| **time <= last(&before)).collect();
    assert!(stored.len() >= 10 && stored.len() + 21 >= before.len(), "{} of {}", stored.len(), before.len());
    assert!(stored.iter().all(|time| again.get(*time) == before.get(*time)), "{again:?}\n{before:?}");
    let times: Vec<u64> = again.keys().copied().collect();
    let gap = times.windows(2).map(|two| two[1] - two[0]).max().unwrap();
    assert!(gap >= 2500, "no point is made for the time without a daemon: {times:?}");
    assert!(!daemon.history("ten_seconds").is_empty());
    assert!(site.status("/history/disk_bytes").as_u64().unwrap() >= 4096);
    assert_eq!(site.status("/history/damaged"), 0);
    let text = site.ok("daemon status");
    assert!(
        text.lines().any(|line| line.starts_with("history: ") && line.ends_with("on disk, at most 256M")),
        "{text}"
    );

    // A clean end stores everything.
    let before = daemon.history("second");
    site.stop(daemon);
    let daemon = site.start();
    let again = daemon.history_until("second", last(&before) + 1);
    assert!(before.iter().all(|(time, values)| again.get(time) == Some(values)), "{again:?}\n{before:?}");

    // A damaged byte in a file of seconds takes nothing of the other files.
    let files = site.files();
    let tens = daemon.history("ten_seconds");
    site.stop(daemon);
    let damaged = files.iter().find(|path| path.to_str().unwrap().contains("/second-")).unwrap();
    let mut bytes = std::fs::read(damaged).unwrap();
    bytes[60] ^= 1;
    std::fs::write(damaged, bytes).unwrap();
    let daemon = site.start();
    until(|| (site.status("/history/damaged") == 1).then_some(()));
    let again = daemon.history_until("ten_seconds", last(&tens));
    assert!(tens.iter().all(|(time, values)| again.get(time) == Some(values)), "{again:?}\n{tens:?}");
    let lines = site.log().lines().filter(|line| line.contains("damaged places in")).count();
    assert_eq!(lines, 1, "{}", site.log());
}

#[test]
fn a_disk_that_takes_nothing_leaves_the_history_in_memory() {
    let site = Site::new("");
    // The directory cannot be made while a file has its name.
    std::fs::write(site.path("state/history"), "").unwrap();
    let daemon = site.start();
    site.ok(&format!("zpool create tank {}", site.path("disk").display()));
    let first = until(|| daemon.history("second").keys().next().copied());
    until(|| site.status("/history/problem").as_str().map(str::to_owned));
    let text = site.ok("daemon status");
    assert!(text.lines().any(|line| line.starts_with("history: ") && line.contains("; not stored: ")), "{text}");
    std::fs::remove_file(site.path("state/history")).unwrap();
    until(|| (site.status("/history/problem") == Value::Null).then_some(()));
    let log = site.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("the history of analytics")).collect();
    assert_eq!(lines.len(), 2, "one line when it begins, one when it ends: {lines:?}");
    // Nothing of it is missing afterwards.
    let before = daemon.history("second");
    site.stop(daemon);
    let daemon = site.start();
    let again = daemon.history_until("second", last(&before) + 1);
    assert_eq!(again.keys().next(), Some(&first));
    assert!(before.iter().all(|(time, values)| again.get(time) == Some(values)));
}

#[test]
fn the_history_is_stored_where_the_configuration_says_so() {
    let site = Site::new("history = \"1K\"\n");
    let out = site.weir("daemon --check").output().unwrap();
    let error = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && error.contains("history takes 'off' or a size of at least 1M"), "{error}");
    site.configure("history = \"off\"\n");
    let daemon = site.start();
    site.ok(&format!("zpool create tank {}", site.path("disk").display()));
    until(|| (!daemon.history("second").is_empty()).then_some(()));
    assert!(site.ok("daemon status").lines().any(|line| line.ends_with("in memory, not on disk")));
    site.configure("history = \"2M\"\n");
    assert!(site.ok("daemon reload").contains("history changes when the daemon is started again"));
    site.stop(daemon);
    assert!(!site.path("state/history").exists());
    let daemon = site.start();
    assert_eq!(site.status("/history/disk_max_bytes"), 2 << 20);
    until(|| (!daemon.history("second").is_empty()).then_some(()));
    site.stop(daemon);
    assert!(site.path("state/history").read_dir().unwrap().count() == 1);
}

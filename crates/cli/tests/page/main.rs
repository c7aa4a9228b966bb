//! Administration by the page: its API does what the command line does, for those who may, and its screens in a browser.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::disallowed_methods, reason = "a real daemon and its clients")]

mod accessibility;
mod api;
#[path = "../analytics/chromium.rs"]
mod chromium;
#[allow(dead_code, reason = "shared with the tests of analytics, which use more of it")]
#[path = "../analytics/http.rs"]
mod http;
mod jobs;
mod metrics;
mod pools;
#[path = "../analytics/promtool.rs"]
mod promtool;
mod roles;
mod screens;
mod streams;
mod tls;

use http::Http;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Any free ports, and no mounts: pools of tests have common names.
const CONFIGURATION: &str = "nfs_port = 0\nnbd_port = 0\niscsi_port = 0\nsmb_port = 0\nhttp_port = 0\nmounts = false\n";
/// Header lines of the page's own requests.
const JSON: &str = "Content-Type: application/json\r\n";

/// A daemon in directories of its own, with files as disks.
struct Site {
    dir: tempfile::TempDir,
    daemon: Option<Child>,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Site {
    /// A running daemon with files `d0`… of 128 MiB, and this at the end of its configuration.
    fn new(disks: usize, more: &str) -> Site {
        let mut site = Site { dir: tempfile::tempdir().unwrap(), daemon: None };
        for name in ["run", "state", "conf"] {
            std::fs::DirBuilder::new().mode(0o700).create(site.path(name)).unwrap();
        }
        std::fs::write(site.path("conf/weir.toml"), format!("{CONFIGURATION}{more}")).unwrap();
        for disk in 0..disks {
            std::fs::File::create(site.disk(disk)).unwrap().set_len(128 << 20).unwrap();
        }
        site.start();
        site
    }

    /// Starts the daemon, and kills the one that runs.
    fn start(&mut self) {
        self.kill();
        let log = std::fs::File::options().create(true).append(true).open(self.path("log")).unwrap();
        let mut daemon = self.command("daemon").stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut lines = BufReader::new(daemon.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line == "ready"));
        self.daemon = Some(daemon);
    }

    fn kill(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _gone = daemon.kill();
            let _code = daemon.wait();
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Path of a disk.
    fn disk(&self, number: usize) -> String {
        self.path(&format!("d{number}")).display().to_string()
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(line.split_whitespace()).stdin(Stdio::null()).current_dir(self.dir.path());
        command.env_remove("WEIR_POOL_DIRS").env_remove("WEIR_LOG");
        command.env("RUNTIME_DIRECTORY", self.path("run")).env("STATE_DIRECTORY", self.path("state"));
        command.env("CONFIGURATION_DIRECTORY", self.path("conf"));
        command
    }

    fn ok(&self, line: &str) -> String {
        let out: Output = self.command(line).output().unwrap();
        assert!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    /// The error of a command that fails.
    fn fails(&self, line: &str) -> String {
        let out: Output = self.command(line).output().unwrap();
        assert!(!out.status.success(), "{line}");
        String::from_utf8(out.stderr).unwrap()
    }

    /// Address of the page with the daemon's own token.
    fn url(&self) -> String {
        let status: Value = serde_json::from_str(&self.ok("daemon status -j")).unwrap();
        let token = std::fs::read_to_string(self.path("state/web.token")).unwrap();
        format!("http://{}/?token={}", status["http"]["address"].as_str().unwrap(), token.trim())
    }

    fn http(&self) -> Http {
        Http::of(&self.url())
    }

    /// The last line of the audit log.
    fn audited(&self) -> Value {
        let text = std::fs::read_to_string(self.path("state/audit.log")).unwrap_or_default();
        serde_json::from_str(text.lines().last().unwrap_or("null")).unwrap()
    }

    fn audit_lines(&self) -> usize {
        std::fs::read_to_string(self.path("state/audit.log")).unwrap_or_default().lines().count()
    }
}

/// Sends an order; the code and the answer.
fn order(http: &Http, path: &str, order: &Value) -> (u16, Value) {
    let (code, body) = http.post(&format!("/api/v1/admin/{path}"), JSON, &order.to_string());
    (code, serde_json::from_str(&body).unwrap_or(Value::String(body)))
}

/// Does an action that needs no confirmation.
fn act(http: &Http, action: Value) -> (u16, Value) {
    order(http, "act", &json!({ "action": action }))
}

/// Does an action with the confirmation of its dry run; what the dry run showed, the code and the answer.
fn act_twice(http: &Http, action: Value) -> (String, u16, Value) {
    let (code, dry) = order(http, "preview", &json!({ "action": action }));
    assert_eq!(code, 200, "{dry}");
    let shown = dry["shown"].as_array().unwrap().iter().map(|one| one["text"].as_str().unwrap()).collect::<String>();
    let (code, done) = order(http, "act", &json!({ "action": action, "confirmation": dry["confirmation"] }));
    (shown, code, done)
}

/// Whether a program can be started.
fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|out| out.status.success())
}

/// Does `work` until it returns something, for at most a minute.
fn until<T>(what: &str, mut work: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = work() {
            return found;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

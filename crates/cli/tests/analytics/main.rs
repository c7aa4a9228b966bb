//! Analytics of a pool that is served to real clients: all ways to see its numbers agree, and no client sees them without the token.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::disallowed_methods, reason = "a real server and its clients")]

mod browser;
mod chromium;
mod cost;
mod files;
mod history;
mod hour;
mod http;
mod network;
mod prometheus;
mod promtool;
mod seeds;
mod what_if;
mod why;

use http::Http;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Bytes that the client writes and reads.
const WRITTEN_BYTES: u64 = 8 << 20;
const READ_BYTES: u64 = 5 << 20;

/// A server of a pool with a volume, in a directory of its own.
struct Site {
    folder: tempfile::TempDir,
    server: Option<Child>,
    lines: Vec<String>,
}

impl Site {
    fn weir(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let folder = self.folder.path();
        command.args(words).stdin(Stdio::null()).env("WEIR_POOL_DIRS", folder.join("pool"));
        command.env("STATE_DIRECTORY", folder.join("state")).env("RUNTIME_DIRECTORY", folder.join("run"));
        command
    }

    fn ok(&self, words: &[&str]) -> String {
        let out = self.weir(words).output().unwrap();
        assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    /// A pool of a mirror with a volume, served with the HTTP server.
    fn new() -> Site {
        Site::serving(&[])
    }

    /// The same, served on this address to those hosts.
    fn listening(address: &str, hosts: &str) -> Site {
        Site::serving(&["--listen", address, "--rw", hosts])
    }

    fn serving(more: &[&str]) -> Site {
        Site::of(&["mirror"], 2, &["-V", "32M", "-o", "compression=off", "tank/vol"], more)
    }

    /// A pool of this many disks in this layout, with the dataset that these words create, served with further options.
    fn of(layout: &[&str], count: usize, dataset: &[&str], more: &[&str]) -> Site {
        let folder = tempfile::tempdir().unwrap();
        for name in ["pool", "state", "run"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        let mut site = Site { folder, server: None, lines: Vec::new() };
        let disks = (b'a'..).take(count).map(|name| {
            let path = site.folder.path().join("pool").join(char::from(name).to_string());
            std::fs::File::create(&path).unwrap().set_len(200 << 20).unwrap();
            path.to_str().unwrap().to_owned()
        });
        let disks: Vec<String> = disks.collect();
        let words: Vec<&str> = disks.iter().map(String::as_str).collect();
        site.ok(&[&["zpool", "create", "tank"], layout, &words].concat());
        site.ok(&[&["zfs", "create"], dataset].concat());
        site.serve(&[&["--http-port", "0"], more].concat());
        site
    }

    /// Serves the pool.
    fn serve(&mut self, more: &[&str]) {
        drop(self.server.take().map(|mut server| (server.kill(), server.wait())));
        let words = ["serve", "--nfs-port", "0", "--nbd-port", "0"];
        let mut server = self.weir(&[&words, more, &["tank"]].concat()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(server.stdout.take().unwrap()).lines().map_while(Result::ok);
        self.lines = lines.take_while(|line| line != "ready").collect();
        self.server = Some(server);
    }

    /// The part of the server's lines from `start` on, up to the next space.
    fn said(&self, start: &str) -> String {
        let found = self.lines.iter().find_map(|line| Some(line[line.find(start)?..].to_owned()));
        found.unwrap().split(' ').next().unwrap().to_owned()
    }

    fn http(&self) -> Http {
        Http::of(&self.said("http://"))
    }

    /// Writes and reads the volume through NBD, as another program does.
    fn use_volume(&self) {
        let uri = self.said("nbd://");
        let commands = format!("write -P 7 0 {WRITTEN_BYTES}\nflush\nread -P 7 0 {READ_BYTES}\n");
        let mut qemu = Command::new("qemu-io").args(["-f", "raw", &uri]).stdin(Stdio::piped()).spawn().unwrap();
        qemu.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
        assert!(qemu.wait().unwrap().success());
    }

    fn sample(&self) -> Value {
        let (code, body) = self.http().get("/api/v1/pools/tank/sample");
        assert_eq!(code, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _gone = server.kill();
            let _code = server.wait();
        }
    }
}

fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|out| out.status.success())
}

/// The value of a metric with these labels.
fn metric(text: &str, start: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(start)?.rsplit(' ').next()?.parse().ok())
}

fn sum(rows: &Value, of: impl Fn(&Value) -> u64) -> u64 {
    rows.as_array().unwrap().iter().map(of).sum()
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or(0)
}

/// Does `work` until it returns something, for at most half a minute.
fn until<T>(mut work: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = work() {
            return found;
        }
        assert!(started.elapsed() < Duration::from_secs(30), "it does not happen");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn api_metrics_commands_and_client_agree() {
    if !has("qemu-io") {
        println!("skipped: qemu-io is not installed");
        return;
    }
    let site = Site::new();
    site.use_volume();
    // All that is compared is of one state, in which nothing happens any more.
    let (sample, metrics, iostat, top) = until(|| {
        let before = site.sample();
        let (code, metrics) = site.http().get("/metrics");
        assert_eq!(code, 200);
        let iostat = site.ok(&["zpool", "iostat", "-Hpv", "tank"]);
        let top = site.ok(&["top", "-bp", "tank"]);
        let after = site.sample();
        let is_still = ["operations", "leaves", "written", "clients"].iter().all(|part| before[part] == after[part]);
        (is_still && number(&after["txg"], "unstable_bytes") == 0).then_some((before, metrics, iostat, top))
    });

    // The client's own counts.
    let of = |operation: &str| {
        let rows = sample["operations"].as_array().unwrap();
        rows.iter().find(|row| row["protocol"] == "nbd" && row["operation"] == operation).unwrap().clone()
    };
    assert_eq!(number(&of("write"), "written_bytes"), WRITTEN_BYTES);
    let sources = of("read")["read_bytes"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum::<u64>();
    // The client may also read what it looks at when it opens a disk.
    assert!((READ_BYTES..READ_BYTES + (1 << 20)).contains(&sources), "{sources} bytes read");
    let clients = sample["clients"].as_array().unwrap();
    let client = clients.iter().find(|row| row["dataset"] == "tank/vol" && row["protocol"] == "nbd").unwrap();
    assert_eq!((client["client"].as_str(), number(client, "written_bytes")), (Some("127.0.0.1"), WRITTEN_BYTES));
    assert_eq!(number(client, "read_bytes"), sources);

    // Metrics are the numbers of the sample.
    let written = metric(&metrics, r#"weir_received_bytes_total{pool="tank",proto="nbd",op="write"}"#);
    assert_eq!(written, Some(WRITTEN_BYTES));
    let served = metrics.lines().filter(|line| line.starts_with(r#"weir_served_bytes_total{pool="tank",proto="nbd""#));
    assert_eq!(served.map(|line| metric(line, "").unwrap()).sum::<u64>(), sources);
    let devices = sum(&sample["leaves"], |leaf| number(leaf, "write_bytes"));
    let of_vdevs = metrics.lines().filter(|line| line.starts_with("weir_vdev_written_bytes_total{"));
    assert_eq!(of_vdevs.map(|line| metric(line, "").unwrap()).sum::<u64>(), devices);
    // Labels of the first txg are written before the pool's accounts begin.
    assert_eq!(sum(&sample["written"], |cause| number(cause, "bytes")), devices, "each byte written has a cause");

    // The kernel's counters grow with each request to the API. The payload is that of the clients on loopback.
    let loopback = sample["host"]["interfaces"].as_array().unwrap().iter().find(|one| one["name"] == "lo").unwrap();
    let payload = [("received", WRITTEN_BYTES), ("sent", sources)];
    for (direction, bytes) in payload {
        let name = format!("payload_{direction}_bytes");
        assert_eq!(number(loopback, &name), bytes);
        let start = format!("weir_network_payload_{direction}_bytes_total{{pool=\"tank\",interface=\"lo\"}}");
        assert_eq!(metric(&metrics, &start), Some(bytes));
        let shown = metric(&metrics, &format!("weir_network_{direction}_bytes_total{{interface=\"lo\"}}")).unwrap();
        assert!(shown >= number(loopback, &format!("{direction}_bytes")) && shown >= bytes, "{shown}: {loopback}");
    }

    // `zpool iostat` shows rates since the pool was opened, which was a little longer ago then.
    let cells: Vec<&str> = iostat.lines().next().unwrap().split('\t').collect();
    let rate: f64 = cells[6].parse().unwrap();
    let seconds = number(&sample, "uptime_ns") as f64 / 1e9;
    let shown = rate * seconds;
    assert!(shown <= devices as f64 * 1.02 && shown > devices as f64 * 0.5, "{shown} of {devices} bytes: {iostat}");
    let row = top.lines().find(|line| line.starts_with("127.0.0.1") && line.contains("tank/vol")).unwrap();
    let columns: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(columns[..3], ["127.0.0.1", "nbd", "tank/vol"]);
    let shown = columns[5].parse::<f64>().unwrap() * seconds;
    assert!(shown <= WRITTEN_BYTES as f64 * 1.02 && shown > WRITTEN_BYTES as f64 * 0.5, "{row}");

    if has("promtool") {
        promtool::check(&metrics);
    }
}

#[test]
fn the_live_stream_and_the_history_follow_the_load() {
    if !has("qemu-io") {
        println!("skipped: qemu-io is not installed");
        return;
    }
    let site = Site::new();
    let get = |path: &str| serde_json::from_str::<Value>(&site.http().get(path).1).unwrap();
    let series = get("/api/v1/series");
    let mut live = site.http().open("/api/v1/live");
    site.use_volume();
    let mut seen = 0;
    until(|| {
        let event = live.event()?;
        let intervals: Value = serde_json::from_str(&event).unwrap();
        let columns = |one: &Value| one["values"].as_array().unwrap().len();
        assert!(intervals.as_array().unwrap().iter().all(|one| columns(one) == series.as_array().unwrap().len()));
        let writes = |row: &Value| if row["operation"] == "write" { number(row, "written_bytes") } else { 0 };
        seen += intervals.as_array().unwrap().iter().map(|one| sum(&one["operations"], writes)).sum::<u64>();
        (seen >= WRITTEN_BYTES).then_some(())
    });
    assert_eq!(seen, WRITTEN_BYTES, "each byte is in one second");
    let column = series.as_array().unwrap().iter().position(|one| one["name"] == "written").unwrap();
    let history = get("/api/v1/pools/tank/history?resolution=second");
    let rates = history["values"][column].as_array().unwrap();
    let total: f64 = rates.iter().map(|rate| rate.as_f64().unwrap()).sum();
    // The live stream has exact bytes. These are rates, of intervals that are longer than a second on a busy machine.
    assert!((total / WRITTEN_BYTES as f64 - 1.0).abs() < 0.4, "{total} of {WRITTEN_BYTES} bytes in {history}");
    // Steps hold the same bytes, in fewer points.
    let steps = get("/api/v1/pools/tank/history?resolution=second&step=10");
    let times = |of: &Value| of["time_ms"].as_array().unwrap().len();
    assert!(steps["seconds"] == 10 && times(&steps) <= times(&history) && times(&steps) > 0, "{steps}");
    for wrong in ["second&step=0", "ten_seconds&step=15", "second&step=86401", "second&step=x"] {
        let (code, body) = site.http().get(&format!("/api/v1/pools/tank/history?resolution={wrong}"));
        let problem: Value = serde_json::from_str(&body).unwrap();
        assert!(code == 400 && problem["error"].is_string(), "{wrong}: {code} {body}");
    }
    let arcstat = site.ok(&["arcstat", "-Hp", "-f", "pool,read,size,c", "tank"]);
    let cells: Vec<&str> = arcstat.trim().split('\t').collect();
    assert_eq!((cells.len(), cells[0]), (4, "tank"));
    assert!(cells[2].parse::<u64>().unwrap() <= cells[3].parse().unwrap(), "{arcstat}");
}

#[test]
fn nothing_is_answered_without_the_token() {
    let site = Site::new();
    let http = site.http();
    let paths = [
        "/",
        "/weir.js",
        "/metrics",
        "/api/v1/pools",
        "/api/v1/live",
        "/api/v1/pools/tank/sample",
        "/api/v1/why",
        "/api/v1/why?pool=tank",
        "/../etc",
    ];
    for path in paths {
        for token in ["", "0000", &http.token.to_uppercase()[1..]] {
            let (code, body) = http.clone().with_token(token).get(path);
            assert_eq!(code, 401, "{path} with token '{token}'");
            assert!(!body.contains("tank") && !body.contains(&http.token), "{body}");
        }
        assert_eq!(http.clone().with_host("evil.example").get(path).0, 421, "{path}");
    }
    assert_eq!(http.get("/api/v1/pools").0, 200);
    assert_eq!(http.get("/api/v1/pools/none/sample").0, 404);
    assert_eq!(http.get("/%2e%2e/%2e%2e/etc/passwd").0, 404);
    // The page's address loses the token.
    let answer = http.clone().with_token("").raw(&format!("GET /?token={} HTTP/1.1", http.token));
    assert!(answer.starts_with("HTTP/1.1 303") && answer.contains("HttpOnly; SameSite=Strict"), "{answer}");
    // Bodies and headers have bounds, and other methods do nothing.
    assert_eq!(http.method("POST", "/api/v1/pools").0, 405);
    let answer = http.raw(&format!("GET /{} HTTP/1.1", "a".repeat(100_000)));
    assert!(!answer.starts_with("HTTP/1.1 2"), "{answer}");
    assert_eq!(http.get("/api/v1/pools").0, 200);
}

#[test]
fn idle_connections_keep_no_client_out() {
    let site = Site::new();
    let http = site.http();
    let idle: Vec<_> = (0..200).map(|_| http.connect()).collect();
    let half: Vec<_> = (0..200)
        .map(|_| {
            let mut stream = http.connect();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localh").unwrap();
            stream
        })
        .collect();
    let started = Instant::now();
    assert_eq!(http.get("/metrics").0, 200);
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    drop((idle, half));
}

#[test]
fn the_daemons_token_stays_in_its_file_of_mode_0600() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    std::fs::create_dir(&state).unwrap();
    std::fs::create_dir(folder.path().join("run")).unwrap();
    let config = folder.path().join("weir.toml");
    std::fs::write(&config, "nfs_port = 0\nnbd_port = 0\niscsi_port = 0\nhttp_port = 0\nmounts = false\n").unwrap();
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let (status, said) = run_daemon(folder.path(), &config);
        let file = state.join("web.token");
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        let token = std::fs::read_to_string(&file).unwrap().trim().to_owned();
        assert!(!said.contains(&token) && !status.contains(&token), "no secret in the log: {said}");
        let line = status.lines().find(|line| line.starts_with("page, API and metrics: http://127.0.0.1:")).unwrap();
        assert!(line.contains(file.to_str().unwrap()), "{line}");
        tokens.push(token);
    }
    assert_eq!(tokens[0], tokens[1]);
}

/// Starts a daemon, asks for its status, and stops it. Returns the status, and what the daemon said.
fn run_daemon(folder: &Path, config: &Path) -> (String, String) {
    let weir = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(words).stdin(Stdio::null());
        command.env("STATE_DIRECTORY", folder.join("state")).env("RUNTIME_DIRECTORY", folder.join("run"));
        command
    };
    let words = ["daemon", "--config", config.to_str().unwrap()];
    let mut daemon = weir(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(daemon.stdout.take().unwrap());
    let mut said = String::new();
    while out.read_line(&mut said).unwrap() > 0 && !said.ends_with("ready\n") {}
    let status = weir(&["daemon", "status"]).output().unwrap();
    assert!(weir(&["daemon", "stop"]).status().unwrap().success());
    let ended = daemon.wait_with_output().unwrap();
    said.push_str(&String::from_utf8_lossy(&ended.stderr));
    (String::from_utf8(status.stdout).unwrap(), said)
}

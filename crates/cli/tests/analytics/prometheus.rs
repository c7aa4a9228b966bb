//! A real Prometheus scrapes the server with the documented configuration; every panel of the dashboard for Grafana and every
//! alert rule asks for metrics that exist.

use super::{Site, WRITTEN_BYTES, has, until};
use crate::http::Http;
use serde_json::Value;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A Prometheus on a port of its own; it is killed when the test ends.
struct Prometheus {
    child: Child,
    http: Http,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _code = self.child.wait();
    }
}

impl Prometheus {
    /// Starts Prometheus with the files of docs/monitoring. It changes only the address, the path of the token and the intervals.
    fn start(site: &Site) -> Prometheus {
        let folder = site.folder.path().join("prometheus");
        std::fs::create_dir(&folder).unwrap();
        let server = site.http();
        let token = folder.join("token");
        let config = folder.join("prometheus.yml");
        std::fs::write(&token, &server.token).unwrap();
        std::fs::copy(documented("alerts.yml"), folder.join("alerts.yml")).unwrap();
        let text = std::fs::read_to_string(documented("prometheus.yml")).unwrap();
        let changes = [
            ("/var/lib/weir/web.token", token.to_str().unwrap()),
            ("127.0.0.1:8420", server.address()),
            ("interval: 10s", "interval: 1s"),
        ];
        let changed = changes.iter().fold(text, |text, (from, to)| {
            assert!(text.contains(from), "prometheus.yml has no {from}");
            text.replace(from, to)
        });
        std::fs::write(&config, changed).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!("--storage.tsdb.path={}", folder.join("data").display()));
        command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Prometheus { child, http: Http::of(&format!("http://127.0.0.1:{port}/?token=")) }
    }

    /// The data of an answer of its API; nothing while it starts.
    fn data(&self, path: &str) -> Option<Value> {
        TcpStream::connect(self.http.address()).ok()?;
        let (code, body) = self.http.get(path);
        let answer: Value = serde_json::from_str(&body).ok()?;
        (code == 200 && answer["status"] == "success").then(|| answer["data"].clone())
    }

    /// The values that an expression has now; nothing if Prometheus refuses it.
    fn values(&self, expression: &str) -> Option<Vec<f64>> {
        let data = self.data(&format!("/api/v1/query?query={}", encoded(expression)))?;
        let rows = data["result"].as_array()?;
        Some(rows.iter().filter_map(|row| row["value"][1].as_str()?.parse().ok()).collect())
    }
}

fn documented(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/monitoring").join(name)
}

/// Text as a part of a query.
fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| if byte.is_ascii_alphanumeric() { char::from(byte).into() } else { format!("%{byte:02X}") })
        .collect()
}

/// The expressions of the dashboard's panels, with the panels' titles and Grafana's variables replaced.
fn panels() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(documented("grafana.json")).unwrap();
    let board: Value = serde_json::from_str(&text).unwrap();
    let mut found = Vec::new();
    for panel in board["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().unwrap().replace("$__rate_interval", "10s").replace("$pool", ".*");
            assert!(!expression.contains('$'), "{expression}");
            found.push((panel["title"].as_str().unwrap().to_owned(), expression));
        }
    }
    found
}

/// Names of metrics in a text.
fn metrics_in(text: &str) -> Vec<&str> {
    let names = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    names.filter(|name| name.starts_with("weir_")).collect()
}

/// Panels that have no data here: too little is written for an amplification.
const EMPTY: [&str; 1] = ["Write amplification"];

/// Metrics that only a daemon has, and only while there is an alert: the tests of the page look at them.
const OF_DAEMON: [&str; 1] = ["weir_alert"];

#[test]
fn prometheus_fills_every_panel_and_fires_an_alert() {
    if !has("prometheus") || !has("qemu-io") {
        println!("skipped: prometheus or qemu-io is not installed");
        return;
    }
    let site = Site::new();
    let prometheus = Prometheus::start(&site);
    until(|| prometheus.values("weir_pool_size_bytes").filter(|values| !values.is_empty()));
    site.use_volume();
    until(|| {
        let received = prometheus.values("sum(weir_received_bytes_total)")?;
        (received == [WRITTEN_BYTES as f64]).then_some(())
    });

    let names = prometheus.data("/api/v1/label/__name__/values").unwrap();
    let exists = |name: &str| names.as_array().unwrap().iter().any(|known| known == name);
    let alerts = std::fs::read_to_string(documented("alerts.yml")).unwrap();
    let panels = panels();
    assert!(panels.len() > 20);
    for (title, expression) in &panels {
        metrics_in(expression).iter().for_each(|name| assert!(exists(name), "{title}: there is no metric {name}"));
        until(|| prometheus.values(expression).filter(|values| !values.is_empty() || EMPTY.contains(&title.as_str())));
    }
    for name in metrics_in(&alerts) {
        assert!(exists(name) || OF_DAEMON.contains(&name), "alerts.yml: there is no metric {name}");
    }

    let firing = r#"ALERTS{alertname="WeirDeviceOutOfService"}"#;
    assert_eq!(prometheus.values(firing), Some(Vec::new()));
    let disk = site.folder.path().join("pool/b");
    site.ok(&["zpool", "offline", "tank", disk.to_str().unwrap()]);
    // It is pending for a minute before it fires.
    until(|| prometheus.values(firing).filter(|values| values == &[1.0]));
}

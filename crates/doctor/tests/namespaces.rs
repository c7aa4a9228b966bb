//! The doctor on real links: pairs of virtual Ethernet devices between network namespaces that the test makes.
//!
//! The test runs itself again in a network and mount namespace of its own, in which it is the server; the client is a second
//! namespace. Without the permission to make namespaces it is skipped with a line.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on real links")]

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use weir_doctor::tune::{Sets, TuningSet};
use weir_doctor::{Reader, RealHost, findings};

const INSIDE: &str = "WEIR_DOCTOR_NAMESPACE";
const SERVER: &str = "10.9.0.1";
const CLIENT: &str = "10.9.0.2";
const PORT: u16 = 2049;

fn run(program: &str, arguments: &[&str]) {
    let done = Command::new(program).args(arguments).output().unwrap();
    assert!(done.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// The client's namespace: it lives as long as this process.
struct Client(Child);

impl Client {
    fn new() -> Client {
        let mut command = Command::new("unshare");
        command.args(["--net", "--", "sh", "-c", "echo ready; exec sleep 600"]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = [0; 6];
        child.stdout.take().unwrap().read_exact(&mut ready).unwrap();
        Client(child)
    }

    fn run(&self, arguments: &[&str]) {
        let id = self.0.id().to_string();
        run("nsenter", &[&["--target", &id, "--net", "--"], arguments].concat());
    }

    /// Connects both namespaces by a new link with these MTUs.
    fn link(&self, server_mtu: &str, client_mtu: &str) {
        // On the first call there is no link yet.
        let _ = Command::new("ip").args(["link", "del", "srv"]).stderr(Stdio::null()).status();
        let id = self.0.id().to_string();
        run("ip", &["link", "add", "srv", "mtu", server_mtu, "type", "veth", "peer", "name", "cli"]);
        run("ip", &["link", "set", "cli", "netns", &id]);
        run("ip", &["addr", "add", &format!("{SERVER}/24"), "dev", "srv"]);
        run("ip", &["link", "set", "srv", "up"]);
        self.run(&["ip", "addr", "add", &format!("{CLIENT}/24"), "dev", "cli"]);
        self.run(&["ip", "link", "set", "cli", "mtu", client_mtu, "up"]);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The rules that find something, with the texts of the findings.
fn found() -> (Vec<&'static str>, String) {
    let peer: IpAddr = CLIENT.parse().unwrap();
    let facts = Reader::new(RealHost).facts(&[PORT], &[peer]);
    assert_eq!(facts.missing_programs, [] as [&str; 0]);
    let found = findings(&facts);
    let text = format!("{found:#?}\n{facts:#?}");
    (found.into_iter().map(|finding| finding.rule).collect(), text)
}

#[test]
fn faults_of_links_are_named_and_a_set_is_rolled_back() {
    if std::env::var_os(INSIDE).is_some() {
        return inside();
    }
    let have = |program: &str, argument: &str| {
        Command::new(program).arg(argument).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    };
    let unshared = ["--net", "--mount", "--propagation", "private", "--"];
    let can = Command::new("unshare").args(unshared).arg("true").stderr(Stdio::null()).status();
    if !can.is_ok_and(|status| status.success()) {
        return eprintln!("skipped: no permission to make network namespaces");
    }
    if !(have("ip", "-V") && have("tc", "-V") && have("ss", "-V") && have("ping", "-V") && have("nsenter", "-V")) {
        return eprintln!("skipped: ip, tc, ss, ping or nsenter is not installed");
    }
    // The kernel shows the devices of the namespace in a sysfs that is mounted inside it.
    let script = "mount -t sysfs sysfs /sys && ip link set lo up && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(unshared).args(["sh", "-c", script, "sh"]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "--nocapture", "faults_of_links_are_named_and_a_set_is_rolled_back"]).env(INSIDE, "1");
    assert!(command.status().unwrap().success());
}

fn inside() {
    let client = Client::new();
    client.link("9000", "9000");
    transfer(&client);
    let (rules, text) = found();
    assert_eq!(rules, [] as [&str; 0], "a good link: {text}");

    client.link("9000", "1500");
    let (rules, text) = found();
    assert_eq!(rules, ["mtu-mismatch"], "{text}");
    assert!(text.contains("MTU 9000 here, but 10.9.0.2 answers packets of up to 1500 bytes only"), "{text}");

    client.link("1500", "1500");
    run("tc", &["qdisc", "add", "dev", "srv", "root", "tbf", "rate", "1gbit", "burst", "256kb", "latency", "50ms"]);
    let (rules, text) = found();
    assert_eq!(rules, ["slow-link"], "{text}");
    assert!(
        text.contains("1000 Mbit/s; clients get at most 117 MB/s through it (a queueing discipline limits it)"),
        "{text}"
    );

    client.link("1500", "1500");
    small_buffers();
}

/// Sends some megabytes to a client, whose connection stays open while facts are read.
fn transfer(client: &Client) {
    let listener = TcpListener::bind((SERVER, PORT)).unwrap();
    let id = client.0.id().to_string();
    let script = format!("exec 3<>/dev/tcp/{SERVER}/{PORT}; head -c 4000000 <&3 >/dev/null; echo got; sleep 2");
    let mut reader = Command::new("nsenter")
        .args(["--target", &id, "--net", "--", "bash", "-c", &script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(&vec![7; 4_000_000]).unwrap();
    let mut got = [0; 3];
    reader.stdout.take().unwrap().read_exact(&mut got).unwrap();
    let facts = Reader::new(RealHost).facts(&[PORT], &[]);
    let connection = facts.connections.first().expect("the connection of the client");
    assert_eq!(connection.peer.ip(), CLIENT.parse::<IpAddr>().unwrap());
    assert!(connection.mss_bytes.is_some_and(|mss| mss > 8000) && connection.sent_bytes >= 4_000_000, "{connection:?}");
    assert_eq!(findings(&facts), [], "{facts:#?}");
    let _ = reader.kill();
    let _ = reader.wait();
}

/// A set with small buffers is applied, found by the rule, and rolled back.
fn small_buffers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tuning.json");
    let setting = "/proc/sys/net/ipv4/tcp_wmem";
    let before = std::fs::read_to_string(setting).unwrap();
    let values = [("net.ipv4.tcp_wmem".to_owned(), "4096 16384 65536".to_owned())].into();
    let mut sets = Sets::open(&path).unwrap();
    sets.put("small", TuningSet { comment: "as on an old machine".into(), values }).unwrap();
    sets.apply("small").unwrap();
    let (rules, text) = found();
    assert_eq!(rules, ["small-buffers"], "{text}");
    assert!(text.contains("net.ipv4.tcp_wmem: a connection may send 65536 bytes at a time"), "{text}");
    Sets::open(&path).unwrap().rollback().unwrap();
    assert_eq!(std::fs::read_to_string(setting).unwrap(), before);
    let (rules, text) = found();
    assert_eq!(rules, [] as [&str; 0], "{text}");
}

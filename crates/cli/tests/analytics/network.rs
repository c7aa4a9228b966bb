//! `weir why` on real links: a pair of virtual Ethernet devices between two network namespaces that the test makes.
//!
//! The test runs itself again in a network and mount namespace of its own, in which it is the server; the client is a second
//! namespace. Without the permission to make namespaces it is skipped with a line.

use super::why::diagnosis;
use super::{Site, has, until};
use std::io::Read;
use std::process::{Child, Command, Stdio};
use weir_analytics::why::{Cause, Finding};

const INSIDE: &str = "WEIR_WHY_NAMESPACE";
const NAME: &str = "network::a_slow_link_a_slow_client_and_lost_packets_are_named";
pub const SERVER: &str = "10.9.1.1";
const CLIENT: &str = "10.9.1.2";

/// A client of NBD that reads the first 16 MiB of an export again and again, and takes the answers slowly. Arguments: host, port
/// and export.
const SLOW_READER: &str = r#"
import socket, struct, sys, time
host, port, name = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode()
peer = socket.create_connection((host, port))
def take(n):
    data = b""
    while len(data) < n:
        part = peer.recv(n - len(data))
        if not part: sys.exit(1)
        data += part
    return data
take(18)
peer.sendall(struct.pack(">I", 3))
body = struct.pack(">I", len(name)) + name + struct.pack(">H", 0)
peer.sendall(b"IHAVEOPT" + struct.pack(">II", 7, len(body)) + body)
while True:
    magic, option, kind, length = struct.unpack(">QIII", take(20))
    take(length)
    if kind == 1: break
    assert kind == 3, kind
while True:
    for n in range(64):
        peer.sendall(struct.pack(">IHHQQI", 0x25609513, 0, 0, n, n << 18, 1 << 18))
    for _ in range(64 * 4):
        take((1 << 16) + 4)
        time.sleep(0.1)
"#;

pub fn run(program: &str, words: &[&str]) -> bool {
    Command::new(program).args(words).stdout(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// The client's namespace, connected by a link with the server's: it lives as long as this process.
pub struct Client(Child);

impl Client {
    pub fn new() -> Client {
        let script = ["--net", "--", "sh", "-c", "echo ready; exec sleep 600"];
        let mut child = Command::new("unshare").args(script).stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = [0; 6];
        child.stdout.take().unwrap().read_exact(&mut ready).unwrap();
        let client = Client(child);
        let id = client.0.id().to_string();
        assert!(run("ip", &["link", "add", "srv", "type", "veth", "peer", "name", "cli"]));
        assert!(run("ip", &["link", "set", "cli", "netns", &id]));
        assert!(run("ip", &["addr", "add", &format!("{SERVER}/24"), "dev", "srv"]));
        assert!(run("ip", &["link", "set", "srv", "up"]));
        assert!(run(
            "nsenter",
            &["--target", &id, "--net", "--", "ip", "addr", "add", &format!("{CLIENT}/24"), "dev", "cli"]
        ));
        assert!(run("nsenter", &["--target", &id, "--net", "--", "ip", "link", "set", "cli", "up"]));
        client
    }

    /// Runs a program in the namespace to its end.
    pub fn run(&self, words: &[&str]) -> bool {
        let id = self.0.id().to_string();
        run("nsenter", &[&["--target", &id, "--net", "--"], words].concat())
    }

    /// Starts a command of the shell in the namespace.
    fn start(&self, script: &str) -> Running {
        let id = self.0.id().to_string();
        let mut command = Command::new("nsenter");
        command.args(["--target", &id, "--net", "--", "sh", "-c", script]).stdin(Stdio::null()).stdout(Stdio::null());
        // A group of its own, so that all of its processes end with it.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        Running(command.spawn().unwrap())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A load.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        assert!(run("kill", &["-KILL", "--", &format!("-{}", self.0.id())]), "the load does not end");
        let _ = self.0.wait();
    }
}

/// Looks at the last second until a cause is found.
fn named(site: &Site, cause: Cause) -> Finding {
    until(|| diagnosis(site, &["-t", "1.5", "tank"]).findings.into_iter().find(|found| found.cause == cause))
}

#[test]
fn a_slow_link_a_slow_client_and_lost_packets_are_named() {
    if std::env::var_os(INSIDE).is_some() {
        return inside();
    }
    in_namespace(INSIDE, NAME, &["ip", "tc", "ss", "nsenter", "nbdcopy", "qemu-io", "python3"]);
}

/// Runs a test of this program again in a network namespace of its own, with this variable in its environment. If the
/// process may not make namespaces, or a program is not installed, the test prints a line and is skipped.
pub fn in_namespace(inside: &str, name: &str, programs: &[&str]) {
    let unshared = ["--net", "--mount", "--propagation", "private", "--"];
    if !run("unshare", &[&unshared[..], &["true"]].concat()) {
        return println!("skipped: no permission to make network namespaces");
    }
    // `ip` and `tc` know no long option for their version.
    let is_there = |program: &str| has(program) || run(program, &["-V"]);
    if let Some(missing) = programs.iter().find(|program| !is_there(program)) {
        return println!("skipped: {missing} is not installed");
    }
    // The kernel shows the devices of the namespace in a sysfs that is mounted inside it.
    let script = "mount -t sysfs sysfs /sys && ip link set lo up && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(unshared).args(["sh", "-c", script, "sh"]).arg(std::env::current_exe().unwrap());
    assert!(command.args(["--exact", "--nocapture", name]).env(inside, "1").status().unwrap().success());
}

fn inside() {
    let client = Client::new();
    let site = Site::listening(SERVER, "10.9.1.0/24");
    let uri = site.said("nbd://");
    assert!(run("qemu-io", &["-f", "raw", "-c", "write -P 7 0 32M", "-c", "flush", &uri]));
    let copies = format!("while nbdcopy {uri} null:; do :; done");

    assert!(run(
        "tc",
        &["qdisc", "add", "dev", "srv", "root", "tbf", "rate", "100mbit", "burst", "64kb", "latency", "50ms"]
    ));
    let load = client.start(&copies);
    let found = named(&site, Cause::SaturatedLink);
    drop(load);
    assert_eq!(found.subject, "srv");
    assert!(found.sentence.contains("1 client read ") && found.figures["used_percent"] >= 80.0, "{found:?}");
    assert!(run("tc", &["qdisc", "del", "dev", "srv", "root"]));

    // A client that asks for all, and takes 64 KiB every tenth of a second.
    let port = uri.trim_start_matches("nbd://").split(['/', ':']).nth(1).unwrap();
    let load = client.start(&format!("exec python3 -c '{SLOW_READER}' {SERVER} {port} tank/vol"));
    let found = named(&site, Cause::SlowClient);
    drop(load);
    assert_eq!(found.subject, CLIENT);
    assert!(found.figures["window_limited_percent"] >= 20.0, "{found:?}");

    if !run("tc", &["qdisc", "add", "dev", "srv", "root", "netem", "loss", "1%"]) {
        return println!("lost packets were not tried: the kernel has no netem");
    }
    let _load = client.start(&copies);
    let found = named(&site, Cause::Retransmissions);
    assert_eq!(found.subject, CLIENT);
    assert!(found.figures["retransmitted_bytes"] > 0.0, "{found:?}");
}

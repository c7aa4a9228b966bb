//! Reads the facts: files below /proc and /sys, and the programs ip, tc, ss (iproute2) and ping.
//!
//! The programs are asked instead of the kernel's netlink interface because they are installed wherever there is a network to
//! configure, and their JSON is stable. They run without privileges and are given at most [`PROGRAM_TIME`].

use crate::facts::{Buffers, Disk, Duplex, Facts, Interface, InterruptUse, MtuProbe};
use crate::findings::MAX_PACKET_BYTES;
use crate::ss;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::Read;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Time for a program to answer; `timeout(1)` of coreutils ends it.
const PROGRAM_TIME: Duration = Duration::from_secs(10);
/// Most bytes of a program's answer.
const ANSWER_BYTES: u64 = 16 << 20;
/// Bytes of an IPv4 or IPv6 header, and of an ICMP header.
const IPV4_HEADER_BYTES: u32 = 20;
const IPV6_HEADER_BYTES: u32 = 40;
const ICMP_HEADER_BYTES: u32 = 8;
/// Smallest MTU that is probed for: what every host takes.
const LEAST_MTU_BYTES: u32 = 576;
/// MTUs that people set.
const COMMON_MTUS: [u32; 5] = [1280, 1492, 1500, 4000, 9000];
/// Bytes of a VLAN tag.
const VLAN_TAG_BYTES: u32 = 4;
/// Most peers that are probed, so that a doctor's visit ends.
const MAX_PEERS: usize = 16;

/// Where facts come from: this machine, or a test.
pub trait Host {
    /// Contents of a file; `None` if it cannot be read.
    fn file(&self, path: &str) -> Option<String>;
    /// Names in a directory.
    fn names(&self, path: &str) -> Vec<String>;
    /// Standard output of a program that succeeded; `None` if it failed.
    ///
    /// # Errors
    /// If the program is not installed.
    fn run(&self, program: &str, arguments: &[&str]) -> Result<Option<String>, NotInstalled>;
}

/// A program is not installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotInstalled;

/// This machine.
#[derive(Clone, Debug, Default)]
pub struct RealHost;

impl Host for RealHost {
    fn file(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(path).ok()
    }

    fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<Option<String>, NotInstalled> {
        let program = find(program).ok_or(NotInstalled)?;
        let seconds = PROGRAM_TIME.as_secs().to_string();
        let mut command = Command::new("timeout");
        command.arg(seconds).arg(program).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).env("LC_ALL", "C");
        let Ok(mut child) = command.spawn() else { return Ok(None) };
        let mut bytes = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            // What was read before an error is of no use, and the program's exit code tells of it.
            let _ = stdout.take(ANSWER_BYTES).read_to_end(&mut bytes);
        }
        let succeeded = child.wait().is_ok_and(|status| status.success());
        Ok(succeeded.then(|| String::from_utf8_lossy(&bytes).into_owned()))
    }
}

/// A program in `PATH`, or where system programs are that an ordinary user's `PATH` lacks.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders.into_iter().map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Reads facts from a host.
pub struct Reader<H> {
    host: H,
    missing: BTreeSet<String>,
}

impl<H: Host> Reader<H> {
    /// A reader of this host.
    pub fn new(host: H) -> Self {
        Reader { host, missing: BTreeSet::new() }
    }

    /// Reads all facts. `ports` are those of the servers, `peers` hosts to which packets are probed besides the clients that
    /// are connected.
    pub fn facts(mut self, ports: &[u16], peers: &[IpAddr]) -> Facts {
        let mut facts = self.traffic(ports);
        let clients = facts.connections.iter().map(|connection| connection.peer.ip());
        let hosts: BTreeSet<IpAddr> = peers.iter().copied().chain(clients).filter(|peer| !peer.is_loopback()).collect();
        facts.buffers = self.buffers();
        for peer in hosts.into_iter().take(MAX_PEERS) {
            match self.probe(&facts.interfaces, peer) {
                Some(probe) => facts.probes.push(probe),
                None => facts.silent_peers.push(peer),
            }
        }
        facts.disks = self.disks();
        facts.missing_programs = self.missing.into_iter().collect();
        facts
    }

    /// Reads the interfaces, and the connections to the servers with these ports. Sends nothing.
    pub fn traffic(&mut self, ports: &[u16]) -> Facts {
        let interfaces = self.interfaces();
        let text = self.run("ss", &["-tinHO", "state", "established"]).unwrap_or_default();
        let mut connections = ss::connections(&text);
        connections.retain(|connection| ports.contains(&connection.local.port()));
        Facts { interfaces, connections, ..Facts::default() }
    }

    fn run(&mut self, program: &str, arguments: &[&str]) -> Option<String> {
        self.host.run(program, arguments).unwrap_or_else(|NotInstalled| {
            self.missing.insert(program.to_owned());
            None
        })
    }

    fn json(&mut self, program: &str, arguments: &[&str]) -> Vec<Value> {
        let text = self.run(program, arguments).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    fn interfaces(&mut self) -> Vec<Interface> {
        let disciplines = self.json("tc", &["-j", "qdisc", "show"]);
        let interrupts = self.host.file("/proc/interrupts").unwrap_or_default();
        let links = self.json("ip", &["-j", "-s", "addr", "show", "up"]);
        links.iter().filter_map(|link| self.interface(link, &disciplines, &interrupts)).collect()
    }

    fn interface(&self, link: &Value, disciplines: &[Value], interrupts: &str) -> Option<Interface> {
        let name = link["ifname"].as_str()?.to_owned();
        let addresses = link["addr_info"].as_array().into_iter().flatten();
        let of_kernel = |file: &str| self.host.file(&format!("/sys/class/net/{name}/{file}"));
        let megabits: Option<i64> = of_kernel("speed").and_then(|text| text.trim().parse().ok());
        let count = |way: &str, what: &str| link["stats64"][way][what].as_u64().unwrap_or(0);
        let shaped = disciplines.iter().filter(|d| d["dev"].as_str() == Some(&name)).filter_map(shaped_rate).min();
        Some(Interface {
            addresses: addresses.filter_map(|address| address["local"].as_str()?.parse().ok()).collect(),
            is_loopback: link["link_type"].as_str() == Some("loopback"),
            mtu_bytes: u32::try_from(link["mtu"].as_u64()?).ok()?,
            // A driver that does not know says -1.
            link_bits_per_second: megabits
                .and_then(|mb| u64::try_from(mb).ok())
                .filter(|mb| *mb > 0)
                .map(|mb| mb * 1_000_000),
            duplex: match of_kernel("duplex").as_deref().map(str::trim) {
                Some("full") => Some(Duplex::Full),
                Some("half") => Some(Duplex::Half),
                _ => None,
            },
            shaped_bits_per_second: shaped,
            rx_packets: count("rx", "packets"),
            rx_errors: count("rx", "errors"),
            rx_dropped: count("rx", "dropped"),
            tx_packets: count("tx", "packets"),
            tx_errors: count("tx", "errors"),
            interrupts: interrupt_use(interrupts, &name),
            name,
        })
    }

    fn buffers(&self) -> Buffers {
        let third = |path: &str| self.host.file(path)?.split_whitespace().nth(2)?.parse().ok();
        Buffers {
            tcp_receive_max: third("/proc/sys/net/ipv4/tcp_rmem"),
            tcp_send_max: third("/proc/sys/net/ipv4/tcp_wmem"),
        }
    }

    /// Finds the largest packet that a host answers: whole, and else by bisection.
    fn probe(&mut self, interfaces: &[Interface], peer: IpAddr) -> Option<MtuProbe> {
        let route = self.json("ip", &["-j", "route", "get", &peer.to_string()]);
        let name = route.first()?["dev"].as_str()?.to_owned();
        let mtu = interfaces.iter().find(|interface| interface.name == name)?.mtu_bytes.min(MAX_PACKET_BYTES);
        if !self.answers(peer, LEAST_MTU_BYTES) {
            return None;
        }
        let mut answered = LEAST_MTU_BYTES;
        let mut refused = mtu.max(LEAST_MTU_BYTES) + 1;
        // The usual sizes first, so that most probes end after one or two packets.
        for usual in [mtu, 1500] {
            if usual > answered && usual < refused {
                if self.answers(peer, usual) { answered = usual } else { refused = usual }
            }
        }
        while refused - answered > 1 {
            let middle = answered.midpoint(refused);
            if self.answers(peer, middle) { answered = middle } else { refused = middle }
        }
        // Receivers take a VLAN tag more than their MTU.
        let is_tagged = |usual: &&u32| (1..=VLAN_TAG_BYTES).contains(&answered.saturating_sub(**usual));
        let path_mtu_bytes = COMMON_MTUS.iter().find(is_tagged).copied().unwrap_or(answered);
        Some(MtuProbe { peer, interface: name, path_mtu_bytes })
    }

    /// Whether a host answers a packet of this size that must not be fragmented; two packets, because one may be lost.
    fn answers(&mut self, peer: IpAddr, packet_bytes: u32) -> bool {
        let header = if peer.is_ipv4() { IPV4_HEADER_BYTES } else { IPV6_HEADER_BYTES };
        let size = packet_bytes.saturating_sub(header + ICMP_HEADER_BYTES).to_string();
        let peer = peer.to_string();
        self.run("ping", &["-n", "-q", "-M", "do", "-i", "0.2", "-c", "2", "-W", "1", "-s", &size, &peer]).is_some()
    }

    fn disks(&self) -> Vec<Disk> {
        let mut names = self.host.names("/sys/block");
        names.sort();
        let timeout = |name: &str| self.host.file(&format!("/sys/block/{name}/device/timeout"))?.trim().parse().ok();
        names.into_iter().filter_map(|name| Some(Disk { timeout_seconds: timeout(&name)?, name })).collect()
    }
}

/// Rate of a discipline that limits it, in bits per second; `tc` prints bytes per second.
fn shaped_rate(discipline: &Value) -> Option<u64> {
    let rate = discipline["options"]["rate"].as_u64()?;
    matches!(discipline["kind"].as_str(), Some("tbf" | "htb" | "cake" | "netem")).then(|| rate.saturating_mul(8))
}

/// The interrupts whose description names an interface (`eth0`, `eth0-TxRx-3`), summed by processor.
fn interrupt_use(text: &str, interface: &str) -> Option<InterruptUse> {
    let of_processors = text.lines().next()?.split_whitespace().count();
    let mut counts = vec![0u64; of_processors];
    let mut found = false;
    for line in text.lines().skip(1) {
        let is_ours = line.split(|c: char| c.is_whitespace() || c == ',' || c == '-').any(|word| word == interface);
        if !is_ours {
            continue;
        }
        found = true;
        for (sum, word) in counts.iter_mut().zip(line.split_whitespace().skip(1)) {
            *sum = sum.saturating_add(word.parse().unwrap_or(0));
        }
    }
    let interrupts = counts.iter().fold(0u64, |sum, count| sum.saturating_add(*count));
    let processors = counts.iter().filter(|count| **count > interrupts / 20).count();
    found.then_some(InterruptUse { interrupts, processors, of_processors })
}

/// Whether a path is a file that settings may be written to.
pub(crate) fn is_setting(path: &Path) -> bool {
    path.starts_with("/proc/sys/net") || (path.starts_with("/sys/block") && path.ends_with("device/timeout"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_are_summed_by_processor() {
        let text = "           CPU0       CPU1\n 24:     900000          3  PCI-MSI 1-edge      eth0-TxRx-0\n \
                     25:          0         10  PCI-MSI 2-edge      eth0-TxRx-1\n 26:  5  5  PCI-MSI 3-edge  eth01\n";
        let found = interrupt_use(text, "eth0").unwrap();
        assert_eq!((found.interrupts, found.processors, found.of_processors), (900_013, 1, 2));
        assert_eq!(interrupt_use(text, "eth7"), None);
        assert_eq!(interrupt_use("", "eth0"), None);
    }

    #[test]
    fn only_limiting_disciplines_have_a_rate() {
        let shaped = |text: &str| shaped_rate(&serde_json::from_str(text).unwrap());
        assert_eq!(shaped(r#"{"kind":"tbf","options":{"rate":125000000}}"#), Some(1_000_000_000));
        assert_eq!(shaped(r#"{"kind":"fq_codel","options":{"rate":5}}"#), None);
        assert_eq!(shaped(r#"{"kind":"tbf","options":{}}"#), None);
    }
}

//! `weir doctor`: what limits the network between clients and this machine.

use crate::args::CommandLine;
use crate::failure::Failure;
use clap::Parser;
use serde_json::json;
use std::fmt::Write;
use std::net::IpAddr;
use weir_daemon::service::{NBD_PORT, NFS_PORT};
use weir_doctor::{Facts, Finding, Level, Reader, RealHost, clients, findings, payload_ceiling_bytes};

/// Ports of SMB and iSCSI, on which clients of other servers may be connected.
const OTHER_PORTS: [u16; 3] = [445, 4450, 3260];

/// Look for what limits the network between clients and this machine.
///
/// It reads the state of links, buffers and connections, and sends small and large packets to the hosts that --peer names and
/// to clients that are connected. It changes nothing.
#[derive(Debug, Parser)]
#[command(name = "weir doctor", override_usage = "weir doctor [-j] [--peer ADDRESS]… [--port N]… [--clients]")]
pub struct DoctorArgs {
    /// Host to which packets are sent, to find the largest that arrives; may be repeated
    #[arg(long = "peer", value_name = "ADDRESS")]
    peers: Vec<String>,
    /// Port of a server whose connections are looked at; may be repeated [default: those of NFS, SMB, iSCSI and NBD]
    #[arg(long = "port", value_name = "N")]
    ports: Vec<String>,
    /// Show what to check on clients, which this command cannot look into
    #[arg(long)]
    clients: bool,
    /// Print facts and findings as JSON
    #[arg(short = 'j', long)]
    json: bool,
}

/// Runs the command and returns what it prints.
pub fn run(args: &DoctorArgs) -> Result<String, Failure> {
    let mut ports = Vec::new();
    for text in &args.ports {
        let port: Result<u16, _> = text.parse();
        ports.push(port.map_err(|_| DoctorArgs::misused(&format!("--port takes a port, 1 to 65535, not '{text}'")))?);
    }
    if ports.is_empty() {
        ports = [&[NFS_PORT, NBD_PORT][..], &OTHER_PORTS].concat();
    }
    let mut peers: Vec<IpAddr> = Vec::new();
    for text in &args.peers {
        peers
            .push(text.parse().map_err(|_| DoctorArgs::misused(&format!("--peer takes an IP address, not '{text}'")))?);
    }
    let facts = Reader::new(RealHost).facts(&ports, &peers);
    let found = findings(&facts);
    if args.json {
        let text = serde_json::to_string_pretty(&json!({ "facts": facts, "findings": found }));
        return text.map(|text| text + "\n").map_err(|error| Failure::failed(format!("weir doctor: {error}")));
    }
    let mut text = examined(&facts);
    text += &shown(&found);
    if args.clients {
        text += &client_checks();
    } else {
        text += "\nOn clients: weir doctor --clients\n";
    }
    Ok(text)
}

/// The links, hosts and connections that were looked at.
fn examined(facts: &Facts) -> String {
    let mut text = String::new();
    for interface in facts.interfaces.iter().filter(|interface| !interface.is_loopback) {
        let rate = match interface.rate() {
            Some(rate) => format!(
                "{} Mbit/s (at most {} MB/s of payload)",
                rate / 1_000_000,
                payload_ceiling_bytes(rate, interface.mtu_bytes) / 1_000_000
            ),
            None => "rate unknown to its driver".to_owned(),
        };
        // Writing to a String does not fail.
        let _ = writeln!(text, "{}: {rate}, MTU {}", interface.name, interface.mtu_bytes);
    }
    for probe in &facts.probes {
        let _ = writeln!(text, "{}: packets of up to {} bytes arrive", probe.peer, probe.path_mtu_bytes);
    }
    for peer in &facts.silent_peers {
        let _ = writeln!(text, "{peer}: does not answer ping; the MTU on the way is not known");
    }
    let _ = writeln!(text, "{} connections of clients looked at", facts.connections.len());
    if !facts.missing_programs.is_empty() {
        let programs = facts.missing_programs.join(", ");
        let _ = writeln!(text, "not installed, so that facts are missing: {programs} (Debian: iproute2, iputils-ping)");
    }
    text
}

fn shown(found: &[Finding]) -> String {
    if found.is_empty() {
        return "\nNothing was found that limits the network.\n".to_owned();
    }
    let mut text = String::new();
    for finding in found {
        let level = match finding.level {
            Level::Problem => "problem",
            Level::Limit => "limit",
        };
        let _ = writeln!(text, "\n{level}: {}\n  why: {}", finding.what, finding.why);
        for fix in &finding.fix {
            let _ = writeln!(text, "  fix: {fix}");
        }
    }
    text
}

fn client_checks() -> String {
    let mut text = String::new();
    for system in &clients::SYSTEMS {
        let _ = writeln!(text, "\n{}", system.name);
        for (command, expected) in system.checks {
            let _ = writeln!(text, "  {command}\n      {expected}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_shown_with_reason_and_fix() {
        assert!(shown(&[]).contains("Nothing was found"));
        let finding = Finding {
            rule: "slow-link",
            level: Level::Limit,
            what: "eth0: 1000 Mbit/s".into(),
            why: "it limits".into(),
            fix: vec!["ethtool eth0".into()],
        };
        assert_eq!(shown(&[finding]), "\nlimit: eth0: 1000 Mbit/s\n  why: it limits\n  fix: ethtool eth0\n");
        assert!(client_checks().contains("PowerShell"));
    }
}

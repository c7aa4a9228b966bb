//! The rules: facts in, findings out.

use crate::facts::{Connection, Duplex, Facts, Interface};
use serde::Serialize;

/// Longest packet that IP allows; longer ones cannot be probed.
pub(crate) const MAX_PACKET_BYTES: u32 = 65_535;
/// Ethernet's cost of a packet beside its MTU: preamble, header, checksum, gap.
const FRAME_BYTES: u64 = 38;
/// Headers of IPv4 and TCP with time stamps within the MTU.
const HEADER_BYTES: u64 = 52;
/// A link up to this rate limits a pool of a few disks.
const SLOW_LINK: u64 = 2_500_000_000;
/// Packets after which a share of errors says something.
const ENOUGH_PACKETS: u64 = 10_000;
/// Number of packets of which one may have an error on a good cable.
const ERROR_SHARE: u64 = 100_000;
/// Bytes sent to a client from which the share of those sent again is judged.
pub const ENOUGH_BYTES: u64 = 1 << 20;
/// Share of the bytes sent that may be sent again, in thousandths: TCP halves its window with each loss.
pub const RETRANSMITTED_PERMILLE: u64 = 1;
/// Time with something to send from which the limits of a connection are judged, in milliseconds.
pub const ENOUGH_BUSY_MS: u64 = 1000;
/// Share of that time in which a window or a buffer may be the limit, in percent.
pub const LIMITED_PERCENT: u64 = 20;
/// Least MTU of an interface with jumbo frames, in bytes.
pub const JUMBO_MTU_BYTES: u32 = 4000;
/// Round-trip time on a local network, in microseconds: the least that buffers must cover.
const LOCAL_RTT_US: f64 = 1000.0;
/// A round trip longer than this is not a local cable.
const LONG_RTT_US: f64 = 5000.0;
/// Interrupts after which their spread says something.
const ENOUGH_INTERRUPTS: u64 = 1_000_000;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Something is wrong.
    Problem,
    /// Something limits the speed.
    Limit,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Stable name of the rule.
    pub rule: &'static str,
    /// How much it matters.
    pub level: Level,
    /// The fault, with its figures.
    pub what: String,
    /// Consequence of the fault.
    pub why: String,
    /// Commands, or steps, that help.
    pub fix: Vec<String>,
}

/// The payload that a link carries at most, in bytes per second: its rate less the headers of full packets.
pub fn payload_ceiling_bytes(rate: u64, mtu_bytes: u32) -> u64 {
    let mtu = u64::from(mtu_bytes).max(HEADER_BYTES);
    // In this order so that the product cannot overflow: rates are below 2^40.
    (rate / 8).saturating_mul(mtu - HEADER_BYTES) / (mtu + FRAME_BYTES)
}

/// All findings, the gravest first.
pub fn findings(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    for interface in facts.interfaces.iter().filter(|interface| !interface.is_loopback) {
        found.extend(half_duplex(interface));
        found.extend(slow_link(interface));
        found.extend(errors(interface));
        found.extend(interrupts(interface));
    }
    found.extend(mtu(facts));
    found.extend(buffers(facts));
    for connection in &facts.connections {
        found.extend(retransmissions(connection));
        found.extend(limited(connection));
        found.extend(no_jumbo(facts, connection));
        found.extend(far(connection));
    }
    found.sort_by_key(|finding| finding.level);
    found
}

fn half_duplex(interface: &Interface) -> Option<Finding> {
    (interface.duplex == Some(Duplex::Half)).then(|| Finding {
        rule: "half-duplex",
        level: Level::Problem,
        what: format!("{}: the link is half duplex", interface.name),
        why: "sending and receiving take turns, and collisions cost most of the rate; usually one side does not negotiate".into(),
        fix: vec![format!("ethtool -s {} autoneg on; the switch's port likewise", interface.name)],
    })
}

fn slow_link(interface: &Interface) -> Option<Finding> {
    let rate = interface.rate().filter(|rate| *rate <= SLOW_LINK)?;
    let ceiling = payload_ceiling_bytes(rate, interface.mtu_bytes);
    let (cause, fix) = match interface.shaped_bits_per_second {
        Some(shaped) if interface.link_bits_per_second.is_none_or(|link| shaped < link) => (
            "a queueing discipline limits it",
            format!("tc qdisc show dev {0}; tc qdisc del dev {0} root", interface.name),
        ),
        _ => (
            "this is the rate of the link",
            format!("ethtool {}: compare with what cable, switch and adapters support", interface.name),
        ),
    };
    Some(Finding {
        rule: "slow-link",
        level: Level::Limit,
        what: format!(
            "{}: {} Mbit/s; clients get at most {} MB/s through it ({cause})",
            interface.name,
            rate / 1_000_000,
            ceiling / 1_000_000
        ),
        why: "a few disks or one SSD deliver more than that: the network is the limit of sequential transfers".into(),
        fix: vec![fix],
    })
}

fn errors(interface: &Interface) -> Option<Finding> {
    let errors = interface.rx_errors.saturating_add(interface.tx_errors);
    let packets = interface.rx_packets.saturating_add(interface.tx_packets);
    let is_bad = packets >= ENOUGH_PACKETS && errors > packets / ERROR_SHARE;
    is_bad.then(|| Finding {
        rule: "interface-errors",
        level: Level::Problem,
        what: format!("{}: {errors} of {packets} packets had errors", interface.name),
        why: "each lost packet halts its connection for a round trip or longer; a cable or a connector is the usual cause".into(),
        fix: vec![
            format!("ethtool -S {} | grep -i err: which kind", interface.name),
            "replace the cable, then try another port and adapter".into(),
        ],
    })
}

fn interrupts(interface: &Interface) -> Option<Finding> {
    let spread = interface.interrupts?;
    let is_fast = interface.rate().is_some_and(|rate| rate > SLOW_LINK);
    let is_single = spread.interrupts >= ENOUGH_INTERRUPTS && spread.processors <= 1 && spread.of_processors > 1;
    (is_fast && is_single).then(|| Finding {
        rule: "interrupts",
        level: Level::Limit,
        what: format!(
            "{}: one of {} processors takes the interrupts ({})",
            interface.name, spread.of_processors, spread.interrupts
        ),
        why: "a fast link needs several processors for its packets".into(),
        fix: vec![
            format!(
                "ethtool -l {0}: number of queues; ethtool -L {0} combined {1}",
                interface.name, spread.of_processors
            ),
            "systemctl enable --now irqbalance".into(),
        ],
    })
}

fn mtu(facts: &Facts) -> Vec<Finding> {
    let smaller = |probe: &&crate::MtuProbe| {
        let interface = facts.interfaces.iter().find(|interface| interface.name == probe.interface);
        // The loopback's MTU is larger than any packet.
        interface.is_some_and(|interface| probe.path_mtu_bytes < interface.mtu_bytes.min(MAX_PACKET_BYTES))
    };
    let finding = |probe: &crate::MtuProbe| {
        let interface = facts.interfaces.iter().find(|interface| interface.name == probe.interface)?;
        Some(Finding {
            rule: "mtu-mismatch",
            level: Level::Problem,
            what: format!(
                "{}: MTU {} here, but {} answers packets of up to {} bytes only",
                interface.name, interface.mtu_bytes, probe.peer, probe.path_mtu_bytes
            ),
            why: "larger packets are dropped on the way: transfers hang or crawl until TCP finds the smaller size"
                .into(),
            fix: vec![
                format!("the same MTU on server, switch and client: {} everywhere, or", interface.mtu_bytes),
                format!("ip link set dev {} mtu {}", interface.name, probe.path_mtu_bytes),
            ],
        })
    };
    facts.probes.iter().filter(smaller).filter_map(finding).collect()
}

/// Buffers must hold what is sent during a round trip.
fn buffers(facts: &Facts) -> Vec<Finding> {
    let rate = facts.interfaces.iter().filter(|i| !i.is_loopback).filter_map(Interface::rate).max();
    let Some(rate) = rate else { return Vec::new() };
    let measured = facts.connections.iter().filter_map(|connection| connection.min_rtt_us);
    let rtt_us = measured.fold(LOCAL_RTT_US, f64::max);
    let needed = (rate as f64 / 8.0 * rtt_us / 1e6) as u64;
    let settings = [
        ("net.ipv4.tcp_rmem", "4096 131072", facts.buffers.tcp_receive_max, "receive"),
        ("net.ipv4.tcp_wmem", "4096 16384", facts.buffers.tcp_send_max, "send"),
    ];
    let small = settings.into_iter().filter_map(|(key, first, max, way)| Some((key, first, max?, way)));
    let finding = |(key, first, max, way): (&str, &str, u64, &str)| Finding {
        rule: "small-buffers",
        level: Level::Limit,
        what: format!(
            "{key}: a connection may {way} {max} bytes at a time; {} Mbit/s over {:.1} ms need {needed}",
            rate / 1_000_000,
            rtt_us / 1000.0
        ),
        why: format!("one connection gets at most {} MB/s", (max as f64 / rtt_us) as u64),
        fix: vec![format!("sysctl -w {key}='{first} {}'", needed.saturating_mul(2).next_power_of_two())],
    };
    small.filter(|(_, _, max, _)| *max < needed).map(finding).collect()
}

fn retransmissions(connection: &Connection) -> Option<Finding> {
    let permitted_bytes = connection.sent_bytes / 1000 * RETRANSMITTED_PERMILLE;
    let is_bad = connection.sent_bytes >= ENOUGH_BYTES && connection.retransmitted_bytes > permitted_bytes;
    is_bad.then(|| Finding {
        rule: "retransmissions",
        level: Level::Problem,
        what: format!(
            "{}: {} of {} bytes were sent again ({:.2} %)",
            connection.peer,
            connection.retransmitted_bytes,
            connection.sent_bytes,
            connection.retransmitted_bytes as f64 * 100.0 / connection.sent_bytes as f64
        ),
        why: "packets are lost on the way to this client: a cable, a switch without buffers, or a wireless link".into(),
        fix: vec!["try another cable and port for this client; look at the counters of the switch".into()],
    })
}

fn limited(connection: &Connection) -> Vec<Finding> {
    if connection.busy_ms < ENOUGH_BUSY_MS {
        return Vec::new();
    }
    let limits = [
        (
            connection.receive_window_limited_percent,
            "receive-window",
            "the client's receive window",
            "the client takes data more slowly than the server sends it, or its buffers are small",
            "on the client: larger receive buffers (Linux: net.ipv4.tcp_rmem; Windows: netsh int tcp set global autotuninglevel=normal)",
        ),
        (
            connection.send_buffer_limited_percent,
            "send-buffer",
            "the server's send buffer",
            "the server could send more if it might have more in flight",
            "sysctl -w net.ipv4.tcp_wmem='4096 16384 16777216'",
        ),
    ];
    let is_held = |(percent, ..): &(f64, &str, &str, &str, &str)| *percent >= LIMITED_PERCENT as f64;
    let finding = |(percent, rule, what, why, fix): (f64, &'static str, &str, &str, &str)| Finding {
        rule,
        level: Level::Limit,
        what: format!("{}: {what} was the limit for {percent:.0} % of {} ms", connection.peer, connection.busy_ms),
        why: why.into(),
        fix: vec![fix.into()],
    };
    limits.into_iter().filter(is_held).map(finding).collect()
}

fn no_jumbo(facts: &Facts, connection: &Connection) -> Option<Finding> {
    let interface = facts.interface_of(connection.local.ip()).filter(|interface| !interface.is_loopback)?;
    let mss =
        connection.mss_bytes.filter(|mss| interface.mtu_bytes >= JUMBO_MTU_BYTES && *mss < interface.mtu_bytes / 2)?;
    Some(Finding {
        rule: "no-jumbo-frames",
        level: Level::Limit,
        what: format!(
            "{}: segments of {mss} bytes, although {} has MTU {}",
            connection.peer, interface.name, interface.mtu_bytes
        ),
        why: "the client does not use jumbo frames: six times as many packets for the same bytes".into(),
        fix: vec![format!("set MTU {} on the client and on the switch", interface.mtu_bytes)],
    })
}

fn far(connection: &Connection) -> Option<Finding> {
    let rtt_us = connection.min_rtt_us.filter(|rtt| *rtt > LONG_RTT_US)?;
    Some(Finding {
        rule: "long-round-trip",
        level: Level::Limit,
        what: format!("{}: a round trip takes {:.1} ms at least", connection.peer, rtt_us / 1000.0),
        why: "every call that waits for its answer waits that long: small files and listings are slow over a distance or a wireless link".into(),
        fix: vec!["a cable in place of wireless; more calls in flight (NFS: nconnect; iSCSI and SMB: deeper queues)".into()],
    })
}

#[cfg(test)]
mod tests;

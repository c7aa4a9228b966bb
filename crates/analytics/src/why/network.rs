//! Rules on the network: links, packets that are lost or small, and clients that take data slowly.
//!
//! The thresholds of connections are those of `weir doctor`, so that both judge alike. Bytes of clients are those of the interval. The kernel counts packets and waiting of a connection (`TCP_INFO`) since it began, so
//! that sentences on these say so.

use super::{Cause, Finding, View, figures, share, text};
use crate::facts::{ConnectionFacts, LinkFacts};
use std::collections::{BTreeMap, BTreeSet};
use weir_doctor::{ENOUGH_BUSY_MS, ENOUGH_BYTES, JUMBO_MTU_BYTES, LIMITED_PERCENT, RETRANSMITTED_PERMILLE};

/// Share of the payload that the rate of a link allows, from which the link is taken to limit its clients. That payload includes headers
/// of the protocols, which the counters of clients leave out.
const FULL_SHARE: f64 = 0.8;
/// Share of bytes sent again that gives a finding the weight 1.
const LOST_SHARE: f64 = 0.05;
/// Weight of small segments: they cost processor time and packets, but seldom most of the rate.
const SMALL_SEGMENTS_WEIGHT: f64 = 0.1;

/// `1 client`, `2 clients`.
fn counted(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// Whether the address of a row of clients, as `192.0.2.1` or `user@192.0.2.1`, is this one.
fn is_at(client: &str, address: &str) -> bool {
    client == address || client.strip_suffix(address).is_some_and(|user| user.ends_with('@'))
}

/// Bytes that a client at an address read and wrote.
fn bytes_of(view: &View<'_>, address: &str) -> (u64, u64) {
    let rows = view.clients.iter().filter(|row| is_at(&row.client, address));
    rows.fold((0, 0), |(read, written), row| (read + row.read_bytes, written + row.written_bytes))
}

/// Connections of the clients that are looked at and sent something in the interval.
fn connections<'a>(view: &'a View<'_>) -> impl Iterator<Item = &'a ConnectionFacts> {
    view.facts.connections.iter().filter(|connection| bytes_of(view, &connection.client) != (0, 0))
}

/// Links that carry what they can.
pub(super) fn saturated_link(view: &View<'_>) -> Vec<Finding> {
    view.facts.links.iter().filter_map(|link| saturated(view, link)).collect()
}

fn saturated(view: &View<'_>, link: &LinkFacts) -> Option<Finding> {
    let ceiling = link.payload_bytes_per_second.filter(|ceiling| *ceiling > 0)?;
    let on_link = view.facts.connections.iter().filter(|connection| connection.interface == link.name);
    let addresses: BTreeSet<&str> = on_link.map(|connection| connection.client.as_str()).collect();
    let clients: Vec<_> = addresses.iter().map(|client| bytes_of(view, client)).filter(|of| *of != (0, 0)).collect();
    // Links carry both directions at once.
    let (read, written) = clients.iter().fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
    let (bytes, way) = if read >= written { (read, "read") } else { (written, "wrote") };
    let rate = view.interval.rate(bytes);
    let full = (rate / ceiling as f64).min(1.0);
    (full >= FULL_SHARE).then(|| Finding {
        cause: Cause::SaturatedLink,
        subject: link.name.clone(),
        weight: full,
        figures: figures([("bytes_per_second", rate), ("ceiling_bytes_per_second", ceiling as f64), ("used_percent", 100.0 * full)]),
        sentence: format!(
            "The network interface {} carries what it can: {} {way} {}/s through it, {} of the {}/s that its rate allows.",
            link.name,
            counted(clients.len(), "client"),
            text::bytes(rate as u64),
            text::percent(full),
            text::bytes(ceiling),
        ),
        advice: "A faster link, or a second one for some of the clients; what they read again is faster from their own caches. Faster \
                 disks or more memory in the server change nothing."
            .into(),
    })
}

/// Clients to which packets are lost.
pub(super) fn retransmissions(view: &View<'_>) -> Vec<Finding> {
    let mut sums: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    // Within this machine no packet is lost: what is sent again there are probes of a full receive window.
    let is_here = |client: &str| client.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback());
    for connection in connections(view).filter(|connection| !is_here(&connection.client)) {
        let (sent, again) = sums.entry(&connection.client).or_default();
        *sent = sent.saturating_add(connection.sent_bytes);
        *again = again.saturating_add(connection.retransmitted_bytes);
    }
    sums.retain(|_, (sent, again)| {
        *sent >= ENOUGH_BYTES && 1000.0 * share(*again, *sent) >= RETRANSMITTED_PERMILLE as f64
    });
    let finding = |(client, (sent, again)): (&str, (u64, u64))| {
        Finding {
        cause: Cause::Retransmissions,
        subject: client.to_owned(),
        weight: (share(again, sent) / LOST_SHARE).min(1.0),
        figures: figures([("sent_bytes", sent as f64), ("retransmitted_bytes", again as f64)]),
        sentence: format!(
            "Packets to client {client} are lost: {} of {} were sent again, {:.2} %, since its connections began.",
            text::bytes(again),
            text::bytes(sent),
            100.0 * share(again, sent),
        ),
        advice: "Another cable and another port of the switch; the counters of the switch and 'weir doctor' show on which side the \
                 errors are. Over wireless links this is usual."
            .into(),
    }
    };
    sums.into_iter().map(finding).collect()
}

/// Clients with small segments on a link with jumbo frames.
pub(super) fn small_segments(view: &View<'_>) -> Vec<Finding> {
    let mut clients: BTreeMap<&str, (u32, &LinkFacts)> = BTreeMap::new();
    for connection in connections(view) {
        let link = view.facts.links.iter().find(|link| link.name == connection.interface);
        let link = link.filter(|link| link.mtu_bytes >= JUMBO_MTU_BYTES);
        if let (Some(link), Some(mss)) = (link, connection.mss_bytes)
            && mss < link.mtu_bytes / 2
        {
            clients.insert(&connection.client, (mss, link));
        }
    }
    let finding = |(client, (mss, link)): (&str, (u32, &LinkFacts))| Finding {
        cause: Cause::SmallSegments,
        subject: client.to_owned(),
        weight: SMALL_SEGMENTS_WEIGHT,
        figures: figures([("segment_bytes", mss.into()), ("mtu_bytes", link.mtu_bytes.into())]),
        sentence: format!(
            "Client {client} gets segments of {mss} bytes, although {} has an MTU of {}: it or a switch on the way has a smaller MTU.",
            link.name, link.mtu_bytes
        ),
        advice: format!(
            "MTU {} on the client and on each switch between; 'weir doctor --peer {client}' measures the way.",
            link.mtu_bytes
        ),
    };
    clients.into_iter().map(finding).collect()
}

/// Clients that take data more slowly than the server sends it.
pub(super) fn slow_clients(view: &View<'_>) -> Vec<Finding> {
    let mut clients: BTreeMap<&str, &ConnectionFacts> = BTreeMap::new();
    // While the slowest take their first answers, no request of theirs has ended.
    let has_answered = view.clients.iter().any(|row| row.requests > 0);
    let busy = view.facts.connections.iter().filter(|connection| connection.busy_ms >= ENOUGH_BUSY_MS);
    for connection in busy.filter(|connection| !has_answered || bytes_of(view, &connection.client) != (0, 0)) {
        let most = clients.entry(&connection.client).or_insert(connection);
        if connection.window_limited_ms > most.window_limited_ms {
            *most = connection;
        }
    }
    let limited = |connection: &ConnectionFacts| share(connection.window_limited_ms, connection.busy_ms);
    let all = clients.len();
    clients.retain(|_, connection| 100.0 * limited(connection) >= LIMITED_PERCENT as f64);
    let slow = clients.len();
    let finding = |(client, connection): (&str, &ConnectionFacts)| {
        let part = limited(connection);
        let (read, _) = bytes_of(view, client);
        let others = match all - slow {
            0 => String::new(),
            others => format!(" It is not so for {}.", counted(others, "other busy client")),
        };
        Finding {
            cause: Cause::SlowClient,
            subject: client.to_owned(),
            weight: part,
            figures: figures([
                ("window_limited_percent", 100.0 * part),
                ("busy_ms", connection.busy_ms as f64),
                ("read_bytes_per_second", view.interval.rate(read)),
            ]),
            sentence: format!(
                "Client {client} takes data more slowly than the server sends it: for {} of the time with something to send, since its \
                 connection began, its receive window was full. It got {}/s.{others}",
                text::percent(part),
                text::bytes(view.interval.rate(read) as u64),
            ),
            advice: "The cause is on the client: its processor, the program that reads, its disk, or small receive buffers (Linux: \
                     net.ipv4.tcp_rmem; Windows: netsh int tcp set global autotuninglevel=normal)."
                .into(),
        }
    };
    clients.into_iter().map(finding).collect()
}

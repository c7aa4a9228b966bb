//! The network's part of a diagnosis: what the kernel knows of interfaces and connections of clients.

use std::collections::BTreeSet;
use weir_analytics::{ConnectionFacts, LinkFacts};
use weir_doctor::{Connection, Facts, Interface, payload_ceiling_bytes};

/// Interfaces through which clients are connected, and their connections.
pub fn network_of(facts: &Facts) -> (Vec<LinkFacts>, Vec<ConnectionFacts>) {
    let connections: Vec<ConnectionFacts> = facts.connections.iter().map(|one| connection(facts, one)).collect();
    let used: BTreeSet<&str> = connections.iter().map(|one| one.interface.as_str()).collect();
    let links = facts.interfaces.iter().filter(|interface| used.contains(interface.name.as_str())).map(link).collect();
    (links, connections)
}

/// The loopback has no rate, and its packets are larger than any network's.
fn link(interface: &Interface) -> LinkFacts {
    let mtu_bytes = if interface.is_loopback { 0 } else { interface.mtu_bytes };
    let rate = interface.rate().filter(|_| !interface.is_loopback);
    let payload_bytes_per_second = rate.map(|rate| payload_ceiling_bytes(rate, interface.mtu_bytes));
    LinkFacts { name: interface.name.clone(), mtu_bytes, payload_bytes_per_second }
}

fn connection(facts: &Facts, one: &Connection) -> ConnectionFacts {
    // The share is of 0 to 100 percent, and the product far below 2^53.
    let window_limited_ms = (one.busy_ms as f64 * one.receive_window_limited_percent / 100.0) as u64;
    ConnectionFacts {
        client: one.peer.ip().to_canonical().to_string(),
        interface: facts.interface_of(one.local.ip()).map(|interface| interface.name.clone()).unwrap_or_default(),
        mss_bytes: one.mss_bytes,
        sent_bytes: one.sent_bytes,
        retransmitted_bytes: one.retransmitted_bytes,
        busy_ms: one.busy_ms,
        window_limited_ms,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_without_clients_are_left_out_and_the_loopback_has_no_rate() {
        let interface = |name: &str, address: &str, is_loopback| Interface {
            name: name.into(),
            addresses: vec![address.parse().unwrap()],
            is_loopback,
            mtu_bytes: 1500,
            link_bits_per_second: Some(1_000_000_000),
            duplex: None,
            shaped_bits_per_second: None,
            rx_packets: 0,
            rx_errors: 0,
            rx_dropped: 0,
            tx_packets: 0,
            tx_errors: 0,
            interrupts: None,
        };
        let connection = |local: &str, peer: &str| Connection {
            local: local.parse().unwrap(),
            peer: peer.parse().unwrap(),
            mss_bytes: Some(1448),
            rtt_us: None,
            min_rtt_us: None,
            sent_bytes: 10,
            retransmitted_bytes: 1,
            busy_ms: 2000,
            receive_window_limited_percent: 25.0,
            send_buffer_limited_percent: 0.0,
            delivery_bits_per_second: None,
        };
        let facts = Facts {
            interfaces: vec![
                interface("lo", "127.0.0.1", true),
                interface("eth0", "192.0.2.1", false),
                interface("eth1", "192.0.2.129", false),
            ],
            connections: vec![
                connection("127.0.0.1:2049", "127.0.0.1:700"),
                connection("[::ffff:192.0.2.1]:2049", "[::ffff:192.0.2.9]:700"),
            ],
            ..Facts::default()
        };
        let (links, connections) = network_of(&facts);
        let rates: Vec<_> = links.iter().map(|link| (link.name.as_str(), link.payload_bytes_per_second)).collect();
        assert_eq!(rates, [("lo", None), ("eth0", Some(117_685_305))]);
        assert_eq!((connections[1].client.as_str(), connections[1].interface.as_str()), ("192.0.2.9", "eth0"));
        assert_eq!(connections[1].window_limited_ms, 500);
    }
}

use super::*;
use crate::facts::{Buffers, InterruptUse, MtuProbe};

fn interface() -> Interface {
    Interface {
        name: "eth0".into(),
        addresses: vec!["192.0.2.1".parse().unwrap()],
        is_loopback: false,
        mtu_bytes: 1500,
        link_bits_per_second: Some(10_000_000_000),
        duplex: Some(Duplex::Full),
        shaped_bits_per_second: None,
        rx_packets: 1_000_000,
        rx_errors: 0,
        rx_dropped: 0,
        tx_packets: 1_000_000,
        tx_errors: 0,
        interrupts: Some(InterruptUse { interrupts: 2_000_000, processors: 4, of_processors: 8 }),
    }
}

fn connection() -> Connection {
    Connection {
        local: "192.0.2.1:2049".parse().unwrap(),
        peer: "192.0.2.9:700".parse().unwrap(),
        mss_bytes: Some(1448),
        rtt_us: Some(200.0),
        min_rtt_us: Some(100.0),
        sent_bytes: 1 << 30,
        retransmitted_bytes: 0,
        busy_ms: 5000,
        receive_window_limited_percent: 1.0,
        send_buffer_limited_percent: 0.0,
        delivery_bits_per_second: None,
    }
}

fn good() -> Facts {
    Facts {
        interfaces: vec![interface()],
        buffers: Buffers { tcp_receive_max: Some(6_291_456), tcp_send_max: Some(4_194_304) },
        connections: vec![connection()],
        probes: vec![MtuProbe { peer: "192.0.2.9".parse().unwrap(), interface: "eth0".into(), path_mtu_bytes: 1500 }],
        ..Facts::default()
    }
}

/// The rules that find something after this change of a good machine.
fn rules(change: impl FnOnce(&mut Facts)) -> Vec<&'static str> {
    let mut facts = good();
    change(&mut facts);
    findings(&facts).into_iter().map(|finding| finding.rule).collect()
}

#[test]
fn nothing_is_found_on_a_good_link() {
    assert_eq!(findings(&good()), []);
    assert_eq!(findings(&Facts::default()), []);
}

#[test]
fn each_rule_finds_its_fault_alone() {
    assert_eq!(rules(|f| f.interfaces[0].duplex = Some(Duplex::Half)), ["half-duplex"]);
    assert_eq!(rules(|f| f.interfaces[0].link_bits_per_second = Some(1_000_000_000)), ["slow-link"]);
    assert_eq!(rules(|f| f.interfaces[0].shaped_bits_per_second = Some(1_000_000_000)), ["slow-link"]);
    assert_eq!(rules(|f| f.interfaces[0].rx_errors = 300), ["interface-errors"]);
    let one = InterruptUse { interrupts: 2_000_000, processors: 1, of_processors: 8 };
    assert_eq!(rules(|f| f.interfaces[0].interrupts = Some(one)), ["interrupts"]);
    assert_eq!(rules(|f| f.interfaces[0].mtu_bytes = 1600), ["mtu-mismatch"]);
    assert_eq!(rules(|f| f.buffers.tcp_send_max = Some(212_992)), ["small-buffers"]);
    assert_eq!(rules(|f| f.connections[0].retransmitted_bytes = 5 << 20), ["retransmissions"]);
    assert_eq!(rules(|f| f.connections[0].receive_window_limited_percent = 55.0), ["receive-window"]);
    assert_eq!(rules(|f| f.connections[0].send_buffer_limited_percent = 55.0), ["send-buffer"]);
    let far = rules(|f| f.connections[0].min_rtt_us = Some(6000.0));
    assert_eq!(far, ["small-buffers", "small-buffers", "long-round-trip"], "both buffers are too small for 6 ms");
    let jumbo = |f: &mut Facts| {
        f.interfaces[0].mtu_bytes = 9000;
        f.probes.clear();
    };
    assert_eq!(rules(jumbo), ["no-jumbo-frames"]);
}

#[test]
fn too_few_packets_say_nothing() {
    let young = |f: &mut Facts| {
        f.interfaces[0].rx_packets = 100;
        f.interfaces[0].tx_packets = 100;
        f.interfaces[0].rx_errors = 1;
        f.connections[0].sent_bytes = 1000;
        f.connections[0].retransmitted_bytes = 500;
    };
    assert_eq!(rules(young), [] as [&str; 0]);
}

#[test]
fn the_ceiling_is_that_of_full_packets() {
    assert_eq!(payload_ceiling_bytes(1_000_000_000, 1500) / 100_000, 1176, "117.6 MB/s");
    assert_eq!(payload_ceiling_bytes(10_000_000_000, 9000) / 1_000_000, 1237);
    assert_eq!(payload_ceiling_bytes(1_000_000_000, 0), 0);
}

#[test]
fn the_loopback_carries_the_largest_packet_and_has_no_mismatch() {
    let on_loopback = |path_mtu_bytes| {
        rules(|facts| {
            facts.interfaces.push(Interface { name: "lo".into(), is_loopback: true, mtu_bytes: 65_536, ..interface() });
            facts.probes =
                vec![MtuProbe { peer: "127.0.0.1".parse().unwrap(), interface: "lo".into(), path_mtu_bytes }];
        })
    };
    assert_eq!(on_loopback(65_535), [""; 0]);
    assert_eq!(on_loopback(1500), ["mtu-mismatch"]);
}

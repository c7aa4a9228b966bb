//! Network links: headers, and both directions at once.

use serde::{Deserialize, Serialize};

/// Bytes of an Ethernet frame that are not payload of TCP: preamble 8, header 14, checksum 4, gap 12 (IEEE 802.3), IPv4 20,
/// TCP 20 with 12 of time stamps (RFC 7323).
const FRAME_BYTES: u64 = 8 + 14 + 4 + 12;
const IP_TCP_BYTES: u64 = 20 + 20 + 12;

/// Direction of bytes on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

/// A link as it is bought and set up.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSpec {
    /// Rate in Gbit/s.
    pub gbit: f64,
    /// Largest IP packet in bytes.
    #[serde(default = "LinkSpec::default_mtu")]
    pub mtu: u64,
    /// Time that a packet needs from one end to the other, in microseconds.
    #[serde(default = "LinkSpec::default_latency")]
    pub latency_us: f64,
    /// Share of packets that are lost, from 0 to 1. Each costs a retransmission after `retransmit_ms`.
    #[serde(default)]
    pub loss: f64,
}

/// Cost of a lost packet for the connection that lost it: about one round trip with fast retransmit, but a timeout
/// (RFC 6298: at least 200 ms on Linux) when it is the last one of a message.
const RETRANSMIT_NS: u64 = 200_000_000;

impl LinkSpec {
    /// A link of `gbit` Gbit/s with packets of 1500 bytes.
    pub fn new(gbit: f64) -> Self {
        LinkSpec { gbit, mtu: Self::default_mtu(), latency_us: Self::default_latency(), loss: 0.0 }
    }

    fn default_mtu() -> u64 {
        1500
    }

    fn default_latency() -> f64 {
        50.0
    }

    /// Bytes on the wire for a message of `bytes` bytes, with all headers.
    pub fn wire_bytes(&self, bytes: u64) -> u64 {
        let payload = self.mtu.saturating_sub(IP_TCP_BYTES).max(1);
        let packets = bytes.div_ceil(payload).max(1);
        bytes + packets * (FRAME_BYTES + IP_TCP_BYTES)
    }

    /// Payload per second at most, in bytes, for messages of `bytes` bytes.
    pub fn payload_rate(&self, bytes: u64) -> f64 {
        self.gbit * 1e9 / 8.0 * bytes as f64 / self.wire_bytes(bytes) as f64
    }

    fn wire_ns(&self, wire_bytes: u64) -> u64 {
        (wire_bytes as f64 * 8.0 / self.gbit) as u64
    }
}

/// A link in use.
#[derive(Clone, Debug)]
pub struct Link {
    spec: LinkSpec,
    free_ns: [u64; 2],
    busy_ns: [u64; 2],
    wire_bytes: [u64; 2],
    /// Packets that are due to be lost: the sum of the loss of every packet so far, less those lost.
    due_losses: f64,
}

impl Link {
    /// An idle link.
    pub fn new(spec: LinkSpec) -> Self {
        Link { spec, free_ns: [0; 2], busy_ns: [0; 2], wire_bytes: [0; 2], due_losses: 0.0 }
    }

    /// Sends a message of `bytes` at `now_ns`; returns when its last bit has arrived.
    pub fn send(&mut self, way: Way, bytes: u64, now_ns: u64) -> u64 {
        let wire_bytes = self.spec.wire_bytes(bytes);
        let wire_ns = self.spec.wire_ns(wire_bytes);
        let at = way as usize;
        self.free_ns[at] = self.free_ns[at].max(now_ns) + wire_ns;
        self.busy_ns[at] += wire_ns;
        self.wire_bytes[at] += wire_bytes;
        let packets = bytes.div_ceil(self.spec.mtu.saturating_sub(IP_TCP_BYTES).max(1)).max(1);
        self.due_losses += packets as f64 * self.spec.loss;
        let lost = self.due_losses.floor();
        self.due_losses -= lost;
        self.free_ns[at] + (self.spec.latency_us * 1e3) as u64 + lost as u64 * RETRANSMIT_NS
    }

    /// The link as it was bought.
    pub fn spec(&self) -> &LinkSpec {
        &self.spec
    }

    /// Bytes on the wire so far, by [`Way`].
    pub fn wire_bytes(&self) -> [u64; 2] {
        self.wire_bytes
    }

    /// Nanoseconds in which bits were on the wire so far, by [`Way`].
    pub fn busy_ns(&self) -> [u64; 2] {
        self.busy_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_carries_its_rate_less_headers() {
        // 1448 of 1538 bytes of a full frame are payload: 94.1 %.
        let gigabit = LinkSpec::new(1.0);
        assert_eq!(gigabit.wire_bytes(1448), 1538);
        assert!((gigabit.payload_rate(1 << 20) / 1e6 - 117.7).abs() < 0.1, "{}", gigabit.payload_rate(1 << 20));
        let jumbo = LinkSpec { mtu: 9000, ..gigabit };
        assert!((jumbo.payload_rate(1 << 20) / 1e6 - 123.7).abs() < 0.2, "{}", jumbo.payload_rate(1 << 20));
    }

    #[test]
    fn the_directions_do_not_share_the_wire_and_losses_cost_time() {
        let mut link = Link::new(LinkSpec { latency_us: 0.0, ..LinkSpec::new(1.0) });
        let first = link.send(Way::ToClient, 1448, 0);
        assert_eq!(first, 12_304);
        assert_eq!(link.send(Way::ToClient, 1448, 0), 2 * 12_304);
        assert_eq!(link.send(Way::ToServer, 1448, 0), 12_304);
        assert_eq!(link.wire_bytes(), [1538, 2 * 1538]);
        let mut lossy = Link::new(LinkSpec { latency_us: 0.0, loss: 0.5, ..LinkSpec::new(1.0) });
        assert!(lossy.send(Way::ToServer, 100, 0) < RETRANSMIT_NS);
        assert!(lossy.send(Way::ToServer, 100, 0) > RETRANSMIT_NS);
    }
}

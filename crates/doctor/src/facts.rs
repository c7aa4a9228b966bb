//! What was read of the machine and its network. Sizes are bytes, rates bits per second, times microseconds.

use serde::Serialize;
use std::net::{IpAddr, SocketAddr};

/// Duplex mode of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Duplex {
    /// Both directions at once.
    Full,
    /// One direction at a time: an old switch, or a failed negotiation.
    Half,
}

/// A network interface that is up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interface {
    /// Name.
    pub name: String,
    /// Addresses.
    pub addresses: Vec<IpAddr>,
    /// Whether it is the loopback.
    pub is_loopback: bool,
    /// Largest packet.
    pub mtu_bytes: u32,
    /// Rate of the link; `None` if the driver does not say.
    pub link_bits_per_second: Option<u64>,
    /// Duplex mode.
    pub duplex: Option<Duplex>,
    /// Rate to which a queueing discipline limits it.
    pub shaped_bits_per_second: Option<u64>,
    /// Packets received, and of these with errors and dropped.
    pub rx_packets: u64,
    /// Received packets with errors.
    pub rx_errors: u64,
    /// Received packets dropped by the kernel.
    pub rx_dropped: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Sent packets with errors.
    pub tx_errors: u64,
    /// How its interrupts are spread; `None` if it has none of its own.
    pub interrupts: Option<InterruptUse>,
}

impl Interface {
    /// The rate that the link can carry.
    pub fn rate(&self) -> Option<u64> {
        match (self.link_bits_per_second, self.shaped_bits_per_second) {
            (Some(link), Some(shaped)) => Some(link.min(shaped)),
            (link, shaped) => link.or(shaped),
        }
    }
}

/// How the interrupts of an interface are spread over processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct InterruptUse {
    /// Interrupts since the machine started.
    pub interrupts: u64,
    /// Processors that took more than a twentieth of them.
    pub processors: usize,
    /// Processors of the machine.
    pub of_processors: usize,
}

/// Limits of the sockets' buffers (`tcp(7)`, `socket(7)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Buffers {
    /// Third value of net.ipv4.tcp_rmem.
    pub tcp_receive_max: Option<u64>,
    /// Third value of net.ipv4.tcp_wmem.
    pub tcp_send_max: Option<u64>,
}

/// A TCP connection of a client (`TCP_INFO`).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Connection {
    /// Address of the server.
    pub local: SocketAddr,
    /// Address of the client.
    pub peer: SocketAddr,
    /// Largest segment to the client.
    pub mss_bytes: Option<u32>,
    /// Smoothed round-trip time.
    pub rtt_us: Option<f64>,
    /// Least round-trip time.
    pub min_rtt_us: Option<f64>,
    /// Bytes sent, including repeated ones.
    pub sent_bytes: u64,
    /// Bytes sent again.
    pub retransmitted_bytes: u64,
    /// Time in which there was something to send.
    pub busy_ms: u64,
    /// Share of it in which the client's receive window was the limit, in percent.
    pub receive_window_limited_percent: f64,
    /// Share of it in which the server's send buffer was the limit, in percent.
    pub send_buffer_limited_percent: f64,
    /// Recent rate of delivery.
    pub delivery_bits_per_second: Option<u64>,
}

/// Result of probing the largest packet that reaches a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MtuProbe {
    /// The host.
    pub peer: IpAddr,
    /// Interface on the way.
    pub interface: String,
    /// Largest packet that was answered.
    pub path_mtu_bytes: u32,
}

/// A disk that the kernel drives through its SCSI layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Disk {
    /// Name below /sys/block.
    pub name: String,
    /// Seconds after which the kernel gives a command up.
    pub timeout_seconds: u64,
}

/// All facts.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Facts {
    /// Interfaces that are up.
    pub interfaces: Vec<Interface>,
    /// Buffers of sockets.
    pub buffers: Buffers,
    /// Connections of clients.
    pub connections: Vec<Connection>,
    /// Probes.
    pub probes: Vec<MtuProbe>,
    /// Hosts that were to be probed and did not answer a small packet either.
    pub silent_peers: Vec<IpAddr>,
    /// Disks.
    pub disks: Vec<Disk>,
    /// Programs that are not installed, so that some facts are absent.
    pub missing_programs: Vec<String>,
}

impl Facts {
    /// The interface that has an address.
    pub fn interface_of(&self, local: IpAddr) -> Option<&Interface> {
        let local = local.to_canonical();
        self.interfaces.iter().find(|interface| interface.addresses.contains(&local))
    }
}

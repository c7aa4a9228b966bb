//! Counters of the host and the process beside those of a pool: bytes of network interfaces, and processor time.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InterfaceTotals {
    /// Name.
    pub name: String,
    /// Whether clients of the pool have had requests over it.
    pub has_clients: bool,
    /// Bytes received since the interface was made, with the headers of Ethernet and of all layers above it, of all programs.
    pub received_bytes: u64,
    /// Bytes sent, counted in the same way.
    pub sent_bytes: u64,
    /// Bytes of data that clients of the pool wrote over it, without any header.
    pub payload_received_bytes: u64,
    /// Bytes of data that were answered to clients of the pool over it, without any header.
    pub payload_sent_bytes: u64,
}

/// Counters of the host and of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HostTotals {
    /// Network interfaces, in the order of their names.
    pub interfaces: Vec<InterfaceTotals>,
    /// Processor time of the process, in nanoseconds, in steps of 10 ms.
    pub processor_ns: u64,
}

impl HostTotals {
    /// Numbers since `before`; an interface that was not there then has those since it was made.
    #[must_use]
    pub fn since(&self, before: &HostTotals) -> HostTotals {
        let of = |now: &InterfaceTotals| {
            let was = before.interfaces.iter().find(|was| was.name == now.name).cloned().unwrap_or_default();
            InterfaceTotals {
                name: now.name.clone(),
                has_clients: now.has_clients,
                received_bytes: now.received_bytes.saturating_sub(was.received_bytes),
                sent_bytes: now.sent_bytes.saturating_sub(was.sent_bytes),
                payload_received_bytes: now.payload_received_bytes.saturating_sub(was.payload_received_bytes),
                payload_sent_bytes: now.payload_sent_bytes.saturating_sub(was.payload_sent_bytes),
            }
        };
        HostTotals {
            interfaces: self.interfaces.iter().map(of).collect(),
            processor_ns: self.processor_ns.saturating_sub(before.processor_ns),
        }
    }
}

//! Facts of a pool that are read from its devices or its MOS, beside the counters of a [`crate::Sample`], and both together.

use crate::interval::Interval;
use crate::sample::Sample;
use crate::why::{Diagnosis, diagnose, is_of};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// State of a pool that is read when it is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolFacts {
    /// Activities in progress, as `zpool wait` names them: `scrub`, `resilver`, `trim` …
    pub activities: Vec<String>,
    /// Why the pool is suspended, if it is.
    #[serde(default)]
    pub suspended: Option<String>,
    /// State of the pool, as `zpool status` names it, unless it is ONLINE.
    #[serde(default)]
    pub unhealthy: Option<String>,
    /// Fragmentation of free space in percent; `None` if no space map has a histogram.
    pub fragmentation_percent: Option<u64>,
    /// Bytes of memory that the blocks of the dedup tables take if all are cached.
    pub dedup_table_bytes: u64,
    /// Network interfaces that connect clients; empty if they could not be read.
    pub links: Vec<LinkFacts>,
    /// TCP connections of clients; empty if they could not be read.
    pub connections: Vec<ConnectionFacts>,
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkFacts {
    /// Name.
    pub name: String,
    /// Largest packet in bytes.
    pub mtu_bytes: u32,
    /// Payload that its rate allows; `None` if the driver does not say its rate.
    pub payload_bytes_per_second: Option<u64>,
}

/// A TCP connection of a client, as the kernel counts it since the connection began (`TCP_INFO`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConnectionFacts {
    /// Address of the client.
    pub client: String,
    /// Interface with the server's address; empty if it is not known.
    pub interface: String,
    /// Largest segment to the client in bytes.
    pub mss_bytes: Option<u32>,
    /// Bytes sent, including repeated ones.
    pub sent_bytes: u64,
    /// Bytes sent again.
    pub retransmitted_bytes: u64,
    /// Time with something to send, in milliseconds.
    pub busy_ms: u64,
    /// Part of it in which the client's receive window was the limit.
    pub window_limited_ms: u64,
}

/// Counters of a pool at two instants, and its state: the input of a diagnosis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolObservation {
    /// The counters before; `None` if the process keeps none.
    pub before: Option<Sample>,
    /// The counters now.
    pub after: Sample,
    /// State of the pool as of its last synced txg.
    pub facts: PoolFacts,
}

impl PoolObservation {
    /// Diagnoses the pool, or a dataset with its descendants or a client of it.
    pub fn diagnosis(&self, subject: Option<&str>) -> Diagnosis {
        diagnose(&Interval::between(self.before.as_ref(), &self.after), &self.facts, subject)
    }

    /// Whether a dataset, one of its descendants, or a client of that name has had requests since the pool was opened, or
    /// a dataset of that name is open.
    pub fn knows(&self, subject: &str) -> bool {
        let mut of_clients = self.after.clients.iter().filter(|row| row.protocol != "internal");
        of_clients.any(|row| is_of(row, subject)) || self.after.datasets.iter().any(|row| row.name == subject)
    }
}

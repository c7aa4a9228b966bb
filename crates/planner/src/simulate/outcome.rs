//! What a simulated load achieved, and what limited it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use weir_machine::Source;

/// Share of the time from which a resource counts as the limit.
const BUSY: f64 = 0.85;

/// Sums over the operations of a measurement.
#[derive(Default)]
pub(super) struct Totals {
    pub reads: u64,
    pub writes: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub latencies_ns: Vec<u64>,
    pub by_source: BTreeMap<&'static str, u64>,
}

impl Totals {
    pub fn bytes(&self) -> u64 {
        self.read_bytes + self.written_bytes
    }
}

/// Shares of the time, from 0 to 1, in which each part of the hardware was at work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Busy {
    /// Mean of the data disks.
    pub disks: f64,
    /// The busiest device.
    pub busiest_disk: f64,
    /// The log device.
    pub log: f64,
    /// The cache device (L2ARC).
    #[serde(default)]
    pub cache: f64,
    /// Mean of the processors.
    pub processors: f64,
    /// The server's link, towards the server.
    pub link_to_server: f64,
    /// The server's link, towards the clients.
    pub link_to_clients: f64,
    /// The busiest client's link.
    pub client_link: f64,
}

/// Operations and bytes of the devices and of the server's link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Bytes read from devices.
    pub disk_read_bytes: u64,
    /// Bytes written to devices.
    pub disk_written_bytes: u64,
    /// Reads of devices.
    pub disk_reads: u64,
    /// Writes of devices.
    pub disk_writes: u64,
    /// Flushes of devices.
    pub flushes: u64,
    /// Bytes on the server's link with all headers: to the server, to the clients.
    pub wire_bytes: [u64; 2],
}

/// The resource that limited a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// The data disks.
    Disks,
    /// The log device.
    LogDevice,
    /// The cache device.
    CacheDevice,
    /// The processors.
    Processors,
    /// The server's link.
    ServerLink,
    /// The link of a client.
    ClientLink,
    /// Nothing is saturated: the clients wait for the answers to the few requests that they have outstanding.
    Latency,
}

impl Limit {
    /// The limit in words.
    pub fn words(self) -> &'static str {
        match self {
            Limit::Disks => "the data disks",
            Limit::LogDevice => "the log device",
            Limit::CacheDevice => "the cache device",
            Limit::Processors => "the processors",
            Limit::ServerLink => "the server's network link",
            Limit::ClientLink => "the clients' network links",
            Limit::Latency => "latency: the clients have too few requests outstanding to saturate anything",
        }
    }

    /// A change that would make such a load faster.
    pub fn remedy(self) -> &'static str {
        match self {
            Limit::Disks => "more vdevs, faster disks, or more memory for reads that repeat",
            Limit::LogDevice => "a faster log device",
            Limit::CacheDevice => "a faster cache device, or more memory",
            Limit::Processors => "more or faster processors, or cheaper compression and checksums",
            Limit::ServerLink => "a faster link of the server",
            Limit::ClientLink => "faster links of the clients",
            Limit::Latency => "more requests at a time, or devices and links with less latency",
        }
    }
}

/// The result of a simulation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Virtual seconds of the measurement.
    pub seconds: f64,
    /// Reads and writes per second.
    pub operations_per_second: f64,
    /// Payload read in MB/s (10⁶ bytes).
    pub read_mb_s: f64,
    /// Payload written in MB/s.
    pub write_mb_s: f64,
    /// Mean, median, 95th and 99th percentile of the latency in microseconds.
    pub latency_us: [f64; 4],
    /// Bytes that answered reads, by source.
    pub bytes_by_source: BTreeMap<String, u64>,
    /// How busy the hardware was.
    pub busy: Busy,
    /// Traffic of the devices and the link.
    pub traffic: Traffic,
    /// Payload in MB/s in each sixtieth of the measurement.
    pub series_mb_s: Vec<f64>,
    /// The limit of the load.
    pub limit: Limit,
}

impl Outcome {
    pub(super) fn new(seconds: f64, totals: Totals, busy: Busy, traffic: Traffic, points: &[u64]) -> Self {
        let mut latencies = totals.latencies_ns;
        latencies.sort_unstable();
        let count = latencies.len();
        let mean = latencies.iter().sum::<u64>() as f64 / count.max(1) as f64;
        let quantile = |percent: usize| {
            let at = (count * percent / 100).min(count.saturating_sub(1));
            latencies.get(at).map_or(0.0, |ns| *ns as f64 / 1e3)
        };
        let step = seconds / points.len().max(1) as f64;
        let before = std::iter::once(&0).chain(points);
        let series = before.zip(points).map(|(a, b)| (b - a) as f64 / 1e6 / step).collect();
        Outcome {
            seconds,
            operations_per_second: (totals.reads + totals.writes) as f64 / seconds,
            read_mb_s: totals.read_bytes as f64 / 1e6 / seconds,
            write_mb_s: totals.written_bytes as f64 / 1e6 / seconds,
            latency_us: [mean / 1e3, quantile(50), quantile(95), quantile(99)],
            bytes_by_source: totals.by_source.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect(),
            busy,
            traffic,
            series_mb_s: series,
            limit: limit(&busy),
        }
    }

    /// Payload of both directions in MB/s.
    pub fn mb_s(&self) -> f64 {
        self.read_mb_s + self.write_mb_s
    }

    /// Share of the bytes read that the ARC gave, from 0 to 1. The rest came from dirty data, holes and devices.
    pub fn arc_share(&self) -> f64 {
        self.share_of(&[Source::ArcDemand, Source::ArcPrefetch])
    }

    /// Share of the bytes read that a cache device (L2ARC) gave, from 0 to 1.
    pub fn l2arc_share(&self) -> f64 {
        self.share_of(&[Source::L2arc])
    }

    fn share_of(&self, sources: &[Source]) -> f64 {
        let of = |source: &Source| self.bytes_by_source.get(source.name()).copied().unwrap_or(0);
        let all: u64 = self.bytes_by_source.values().sum();
        let some: u64 = sources.iter().map(of).sum();
        if all == 0 { 0.0 } else { some as f64 / all as f64 }
    }
}

fn limit(busy: &Busy) -> Limit {
    let link = busy.link_to_server.max(busy.link_to_clients);
    let shares = [
        (Limit::ClientLink, busy.client_link),
        (Limit::ServerLink, link),
        (Limit::Processors, busy.processors),
        (Limit::LogDevice, busy.log),
        (Limit::CacheDevice, busy.cache),
        (Limit::Disks, busy.disks),
    ];
    let busiest = shares.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
    busiest.filter(|(_, share)| *share >= BUSY).map_or(Limit::Latency, |(limit, _)| limit)
}

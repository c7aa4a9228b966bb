//! Loads that fio cannot carry: files of one frame each, listings of directories, loops of file operations, data services on a
//! sample, network protocols for which the usual fio has no engine, and datasets in this process.

pub mod carrier;
pub mod frames;
pub mod in_process;
pub mod list;
pub mod mix;
pub mod network;
pub mod services;
pub mod smb;

use crate::result::{Flow, Latency, Round, Second};
use std::collections::BTreeMap;

/// Monitor that allows a load to run to its end.
#[cfg(test)]
pub(crate) struct NeverStops;

#[cfg(test)]
impl crate::fio::Monitor for NeverStops {
    fn poll(&mut self, _: f64) -> bool {
        true
    }
}

/// Collects the latencies and rates of operations of a load of ours; its memory does not grow with their number.
#[derive(Debug, Default)]
pub struct Recorder {
    latencies: Latencies,
    series: Vec<Second>,
    read: Flow,
    written: Flow,
    other_operations: u64,
}

impl Recorder {
    /// Records an operation that ended at `at_seconds` after the beginning.
    pub fn record(&mut self, at_seconds: f64, latency_seconds: f64, read_bytes: u64, written_bytes: u64) {
        let second = at_seconds.max(0.0) as usize;
        if self.series.len() <= second {
            self.series.resize(second + 1, Second::default());
        }
        self.series[second].read_bytes += read_bytes;
        self.series[second].written_bytes += written_bytes;
        self.latencies.add((latency_seconds * 1e9) as u64);
        if written_bytes > 0 {
            self.written.bytes += written_bytes;
            self.written.operations += 1;
        } else {
            self.read.bytes += read_bytes;
            self.read.operations += 1;
        }
    }

    /// Records an operation that moves no data, such as the making or closing of a file.
    pub fn record_other(&mut self, latency_seconds: f64) {
        self.latencies.add((latency_seconds * 1e9) as u64);
        self.other_operations += 1;
    }

    /// Joins the operations of this one and of another.
    #[must_use]
    pub fn join(mut self, other: Self) -> Self {
        self.latencies.join(&other.latencies);
        self.series.resize(self.series.len().max(other.series.len()), Second::default());
        for (sum, second) in self.series.iter_mut().zip(&other.series) {
            sum.read_bytes += second.read_bytes;
            sum.written_bytes += second.written_bytes;
        }
        self.other_operations += other.other_operations;
        for (sum, flow) in [(&mut self.read, other.read), (&mut self.written, other.written)] {
            sum.bytes += flow.bytes;
            sum.operations += flow.operations;
        }
        self
    }

    /// The round, if it took `seconds`. The last second of the series is left out if it is not a whole one.
    #[must_use]
    pub fn round(mut self, seconds: f64) -> Round {
        self.series.truncate(seconds as usize);
        Round {
            seconds,
            read: self.read,
            written: self.written,
            other_operations: self.other_operations,
            latency: self.latencies.latency(),
            series: self.series,
            ..Round::default()
        }
    }
}

/// Histogram of latencies in ns.
#[derive(Debug, Default)]
struct Latencies {
    bins: BTreeMap<u64, u64>,
    sum_ns: u128,
    max_ns: u64,
}

impl Latencies {
    fn add(&mut self, ns: u64) {
        *self.bins.entry(crate::fio::bucket(ns)).or_insert(0) += 1;
        self.sum_ns += u128::from(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    fn join(&mut self, other: &Self) {
        for (bound, count) in &other.bins {
            *self.bins.entry(*bound).or_insert(0) += count;
        }
        self.sum_ns += other.sum_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    fn latency(self) -> Option<Latency> {
        let count: u64 = self.bins.values().sum();
        let mean_ns = self.sum_ns as f64 / count as f64;
        (count > 0).then(|| crate::fio::from_histogram(self.bins.into_iter().collect(), mean_ns, self.max_ns))
    }
}

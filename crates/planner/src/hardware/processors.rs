//! Processors: how long modelled work takes, and when a free processor has done it.

use serde::{Deserialize, Serialize};

/// Costs of the work of a storage server on one processor, in nanoseconds.
///
/// `weir plan calibrate` measures these on the machine it runs on. The defaults are of one core of a server of 2020.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Costs {
    /// Checksum (fletcher4) of a KiB.
    pub checksum_ns_per_kib: f64,
    /// Compression of a KiB with the dataset's method, when writing. 0: the dataset does not compress.
    pub compress_ns_per_kib: f64,
    /// Decompression of a KiB of the answer.
    pub decompress_ns_per_kib: f64,
    /// Parity of a KiB, for each parity column.
    pub parity_ns_per_kib: f64,
    /// Copies and protocol of a KiB that a client reads or writes.
    pub copy_ns_per_kib: f64,
    /// One request of a client, whatever its size.
    pub request_ns: f64,
    /// One operation of a device.
    pub device_operation_ns: f64,
}

impl Default for Costs {
    fn default() -> Self {
        Costs {
            checksum_ns_per_kib: 150.0,
            compress_ns_per_kib: 0.0,
            decompress_ns_per_kib: 0.0,
            parity_ns_per_kib: 100.0,
            copy_ns_per_kib: 250.0,
            request_ns: 25_000.0,
            device_operation_ns: 8_000.0,
        }
    }
}

/// The processors of a machine: each does one piece of work at a time.
#[derive(Clone, Debug)]
pub struct Processors {
    free_ns: Vec<u64>,
    busy_ns: u64,
}

impl Processors {
    /// `count` idle processors; at least one.
    pub fn new(count: usize) -> Self {
        Processors { free_ns: vec![0; count.max(1)], busy_ns: 0 }
    }

    /// Does `work_ns` of work that is asked for at `now_ns` on the processor that is free first; returns when it is done.
    pub fn work(&mut self, now_ns: u64, work_ns: u64) -> u64 {
        self.busy_ns += work_ns;
        let Some(free) = self.free_ns.iter_mut().min() else { return now_ns + work_ns };
        *free = (*free).max(now_ns) + work_ns;
        *free
    }

    /// Number of processors.
    pub fn count(&self) -> usize {
        self.free_ns.len()
    }

    /// Work done since the beginning, in nanoseconds of processor time.
    pub fn busy_ns(&self) -> u64 {
        self.busy_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_waits_for_a_free_processor() {
        let mut two = Processors::new(2);
        assert_eq!([two.work(0, 10), two.work(0, 10), two.work(0, 10), two.work(100, 5)], [10, 10, 20, 105]);
        assert_eq!((two.busy_ns(), two.count()), (35, 2));
    }
}

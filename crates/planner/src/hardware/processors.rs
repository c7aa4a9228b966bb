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
    /// One request beyond that while others are in progress, or of a network client: it is a task of its own.
    pub task_ns: f64,
    /// One request that writes, beyond `request_ns`, until its data are dirty.
    pub write_request_ns: f64,
    /// One operation of a device.
    pub device_operation_ns: f64,
    /// Inserting one record that a device has read into the ARC. Its bytes and the operation of the device have costs of their own.
    pub read_record_ns: f64,
    /// A KiB that a device reads, besides its checksum: the kernel, and memory.
    pub read_ns_per_kib: f64,
    /// A KiB that a device writes, besides its checksum and parity: the kernel, and memory.
    pub write_ns_per_kib: f64,
    /// One record that a txg writes, besides its bytes: allocation, block pointers, and the blocks of metadata that hold them. 0 if
    /// it was not measured: then `device_operation_ns` is all that a write costs besides its bytes.
    pub written_record_ns: f64,
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
            task_ns: 0.0,
            write_request_ns: 0.0,
            device_operation_ns: 8_000.0,
            read_record_ns: 0.0,
            read_ns_per_kib: 0.0,
            write_ns_per_kib: 0.0,
            written_record_ns: 0.0,
        }
    }
}

/// The processors of a machine: each does one piece of work at a time.
#[derive(Clone, Debug)]
pub struct Processors {
    free_ns: Vec<u64>,
    /// When the work of [`Processors::work_first`] is done, of each processor.
    first_ns: Vec<u64>,
    busy_ns: u64,
}

impl Processors {
    /// `count` idle processors; at least one.
    pub fn new(count: usize) -> Self {
        Processors { free_ns: vec![0; count.max(1)], first_ns: vec![0; count.max(1)], busy_ns: 0 }
    }

    /// Does `work_ns` of work that is asked for at `now_ns` on the processor that is free first; returns when it is done.
    pub fn work(&mut self, now_ns: u64, work_ns: u64) -> u64 {
        self.work_on(self.count(), now_ns, work_ns)
    }

    /// Like [`Processors::work`], on one of the first `some` processors, at least one.
    pub fn work_on(&mut self, some: usize, now_ns: u64, work_ns: u64) -> u64 {
        self.busy_ns += work_ns;
        // Of processors that are free at the same time the last one, which leaves the first ones to work that is bound to them.
        let Some(free) = self.free_ns.iter_mut().take(some.max(1)).rev().min() else { return now_ns + work_ns };
        *free = (*free).max(now_ns) + work_ns;
        *free
    }

    /// Like [`Processors::work`], before all other work: this waits for work of its kind only. What was asked for before keeps the
    /// time that it was given; what is asked for later is later by this work.
    pub fn work_first(&mut self, now_ns: u64, work_ns: u64) -> u64 {
        self.busy_ns += work_ns;
        let processors = self.first_ns.iter_mut().zip(&mut self.free_ns);
        let Some((first, free)) = processors.min_by_key(|(first, free)| (**first, **free)) else {
            return now_ns + work_ns;
        };
        *first = (*first).max(now_ns) + work_ns;
        *free = (*free).max(now_ns) + work_ns;
        *first
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

    #[test]
    fn first_work_waits_for_its_kind_only_and_delays_what_comes_later() {
        let mut two = Processors::new(2);
        assert_eq!([two.work(0, 100), two.work(0, 100)], [100, 100]);
        assert_eq!([two.work_first(0, 10), two.work_first(0, 10), two.work_first(0, 10)], [10, 10, 20]);
        assert_eq!((two.work(0, 5), two.work(0, 5)), (115, 120), "after 110 and 120");
        assert_eq!((two.work_first(500, 5), two.busy_ns()), (505, 245));
    }

    #[test]
    fn bound_work_leaves_the_other_processors_free() {
        let mut three = Processors::new(3);
        assert_eq!(
            [three.work(0, 10), three.work_on(2, 0, 10), three.work_on(2, 0, 10), three.work_on(2, 0, 10)],
            [10, 10, 10, 20]
        );
        assert_eq!(three.work(0, 5), 15, "the third one is free from 10 on");
        assert_eq!((three.work_on(0, 100, 5), three.busy_ns()), (105, 50));
    }
}

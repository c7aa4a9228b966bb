//! Flash drives: channels, the interface, a write buffer and the rate beyond it.

use super::drive::Command;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use weir_machine::Op;

/// Bytes that one channel reads in one go.
const STRIPE_BYTES: u64 = 32 << 10;
/// Bytes of the reads that [`FlashSpec::read_us`] is the latency of.
const SMALL_BYTES: u64 = 4 << 10;
/// Writes shorter than this that do not continue the last one are random for the flash translation layer.
const RANDOM_BYTES: u64 = 64 << 10;

/// A flash drive as its data sheet describes it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlashSpec {
    /// Sequential reads in MB/s.
    pub read_mb_s: f64,
    /// Sequential writes in MB/s while the write buffer has room.
    pub write_mb_s: f64,
    /// Latency of a 4 KiB read in microseconds.
    pub read_us: f64,
    /// Latency of a 4 KiB write in microseconds.
    pub write_us: f64,
    /// Further latency of each KiB of a read, in microseconds, beyond the first 4 and beyond its time on the interface.
    #[serde(default)]
    pub read_us_per_kib: f64,
    /// Reads of 4 KiB that the drive does at the same time.
    pub channels: u32,
    /// Bytes that the drive writes at full rate before the sustained rate shows (SLC cache, over-provisioning).
    pub buffer_gb: f64,
    /// Sequential writes in MB/s when the buffer is full.
    pub sustained_mb_s: f64,
    /// Bytes that are programmed for each byte of random writes: garbage collection.
    pub random_amplification: f64,
    /// Time of a flush in microseconds; near zero with power-loss protection.
    pub flush_us: f64,
    /// Reads and writes together in MB/s. 0: neither slows the other.
    #[serde(default)]
    pub mixed_mb_s: f64,
}

impl FlashSpec {
    /// SATA SSD for desktops.
    pub const DESKTOP: FlashSpec = FlashSpec {
        read_mb_s: 540.0,
        write_mb_s: 510.0,
        read_us: 100.0,
        write_us: 45.0,
        read_us_per_kib: 0.0,
        channels: 9,
        buffer_gb: 8.0,
        sustained_mb_s: 250.0,
        random_amplification: 12.0,
        flush_us: 2500.0,
        mixed_mb_s: 0.0,
    };
    /// SATA SSD for servers.
    pub const ENTERPRISE: FlashSpec = FlashSpec {
        read_mb_s: 540.0,
        write_mb_s: 500.0,
        read_us: 95.0,
        write_us: 40.0,
        read_us_per_kib: 0.0,
        channels: 10,
        buffer_gb: 2.0,
        sustained_mb_s: 480.0,
        random_amplification: 3.0,
        flush_us: 20.0,
        mixed_mb_s: 0.0,
    };
    /// NVMe SSD of PCIe 3.0.
    pub const NVME: FlashSpec = FlashSpec {
        read_mb_s: 3200.0,
        write_mb_s: 2000.0,
        read_us: 85.0,
        write_us: 20.0,
        read_us_per_kib: 0.0,
        channels: 40,
        buffer_gb: 20.0,
        sustained_mb_s: 1100.0,
        random_amplification: 3.0,
        flush_us: 400.0,
        mixed_mb_s: 0.0,
    };
    /// Log device.
    pub const LOG: FlashSpec = FlashSpec {
        read_mb_s: 2500.0,
        write_mb_s: 2200.0,
        read_us: 10.0,
        write_us: 10.0,
        read_us_per_kib: 0.0,
        channels: 6,
        buffer_gb: 1.0,
        sustained_mb_s: 2100.0,
        random_amplification: 1.0,
        flush_us: 5.0,
        mixed_mb_s: 0.0,
    };
}

/// A flash drive in use.
pub struct Flash {
    spec: FlashSpec,
    channel_free_ns: Vec<u64>,
    /// When the interface is free, for reads and for writes.
    link_free_ns: [u64; 2],
    /// When what reads and writes share is free.
    shared_free_ns: u64,
    /// Bytes in the write buffer that are not programmed yet, and the time of that count.
    buffered_bytes: f64,
    buffered_ns: u64,
    last_write_end: u64,
    /// Latest completion of a write: a flush follows it.
    written_ns: u64,
    pending: BTreeMap<(u64, u64), ()>,
    busy_ns: u64,
    busy_until_ns: u64,
}

fn transfer_ns(len: u64, mb_s: f64) -> u64 {
    (len as f64 * 1e3 / mb_s) as u64
}

impl Flash {
    /// An idle drive with an empty buffer.
    pub fn new(spec: FlashSpec) -> Self {
        Flash {
            spec,
            channel_free_ns: vec![0; spec.channels.max(1) as usize],
            link_free_ns: [0; 2],
            shared_free_ns: 0,
            buffered_bytes: 0.0,
            buffered_ns: 0,
            last_write_end: 0,
            written_ns: 0,
            pending: BTreeMap::new(),
            busy_ns: 0,
            busy_until_ns: 0,
        }
    }

    /// Accepts a command: its completion follows from the state of the channels, the interface and the buffer.
    pub fn submit(&mut self, now_ns: u64, command: Command) {
        let done_ns = match command.op {
            Op::Read => self.read(now_ns, command.len).max(self.share(now_ns, command.len)),
            Op::Write => self.write(now_ns, command).max(self.share(now_ns, command.len)),
            Op::Flush => now_ns.max(self.written_ns) + (self.spec.flush_us * 1e3) as u64,
            Op::Discard => now_ns + 20_000,
        };
        let begins = self.busy_until_ns.max(now_ns);
        self.busy_ns += done_ns.saturating_sub(begins);
        self.busy_until_ns = self.busy_until_ns.max(done_ns);
        self.pending.insert((done_ns, command.id), ());
    }

    /// When the part of the drive that reads and writes share has carried these bytes.
    fn share(&mut self, now_ns: u64, len: u64) -> u64 {
        if self.spec.mixed_mb_s <= 0.0 {
            return now_ns;
        }
        self.shared_free_ns = self.shared_free_ns.max(now_ns) + transfer_ns(len, self.spec.mixed_mb_s);
        self.shared_free_ns
    }

    fn read(&mut self, now_ns: u64, len: u64) -> u64 {
        let read_ns = (self.spec.read_us * 1e3) as u64;
        let mut ready = now_ns;
        for _ in 0..len.div_ceil(STRIPE_BYTES).max(1) {
            let Some(free) = self.channel_free_ns.iter_mut().min() else { break };
            *free = (*free).max(now_ns) + read_ns;
            ready = ready.max(*free);
        }
        // The interface sends what has been read; it does not wait for the last channel to begin.
        self.link_free_ns[0] = self.link_free_ns[0].max(now_ns + read_ns) + transfer_ns(len, self.spec.read_mb_s);
        let further_kib = (len.saturating_sub(SMALL_BYTES)) as f64 / 1024.0;
        ready.max(self.link_free_ns[0]) + (further_kib * self.spec.read_us_per_kib * 1e3) as u64
    }

    fn write(&mut self, now_ns: u64, command: Command) -> u64 {
        let Command { offset, len, .. } = command;
        let sustained = self.spec.sustained_mb_s;
        let programmed = (now_ns - self.buffered_ns.min(now_ns)) as f64 * sustained / 1e3;
        self.buffered_bytes = (self.buffered_bytes - programmed).max(0.0);
        self.buffered_ns = now_ns;
        let random = len < RANDOM_BYTES && offset != self.last_write_end;
        self.last_write_end = offset + len;
        self.buffered_bytes += len as f64 * if random { self.spec.random_amplification } else { 1.0 };
        let excess = (self.buffered_bytes - self.spec.buffer_gb * 1e9).max(0.0);
        let room_ns = now_ns + (excess * 1e3 / sustained) as u64;
        self.link_free_ns[1] = self.link_free_ns[1].max(now_ns) + transfer_ns(len, self.spec.write_mb_s);
        let done_ns = self.link_free_ns[1].max(room_ns) + (self.spec.write_us * 1e3) as u64;
        self.written_ns = self.written_ns.max(done_ns);
        done_ns
    }

    /// Completions until `now_ns`.
    pub fn advance(&mut self, now_ns: u64) -> Vec<u64> {
        let later = self.pending.split_off(&(now_ns + 1, 0));
        std::mem::replace(&mut self.pending, later).into_keys().map(|(_, id)| id).collect()
    }

    /// Time of the next completion.
    pub fn next_ns(&self) -> Option<u64> {
        self.pending.keys().next().map(|(done_ns, _)| *done_ns)
    }

    /// Time with at least one command in the drive.
    pub fn busy_ns(&self) -> u64 {
        self.busy_ns
    }
}

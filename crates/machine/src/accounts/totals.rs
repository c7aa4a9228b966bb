//! Totals of requests: the registers of one operation, and their sums.

use crate::request::{ANSWERED, DEVICE_OPS, SLOTS, STAGES, SUPPORT, Source, Stage, WRITTEN};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Latencies are counted in classes: class n holds those from 2ⁿ to below 2ⁿ⁺¹ nanoseconds.
pub const LATENCY_CLASSES: usize = 40;

/// Registers of one operation.
pub(super) struct OperationRegisters {
    pub(super) requests: AtomicU64,
    /// Sums of the requests' slots.
    pub(super) slots: [AtomicU64; SLOTS],
    pub(super) latency: [AtomicU64; LATENCY_CLASSES],
}

impl Default for OperationRegisters {
    fn default() -> Self {
        OperationRegisters {
            requests: AtomicU64::default(),
            slots: Default::default(),
            latency: std::array::from_fn(|_| AtomicU64::default()),
        }
    }
}

/// Totals of the requests of one protocol, or of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestTotals {
    /// Requests that ended.
    pub requests: u64,
    answered_bytes: [u64; Source::ALL.len()],
    support_bytes: [u64; Source::ALL.len()],
    /// Bytes written by clients.
    pub written_bytes: u64,
    stage_ns: [u64; Stage::ALL.len()],
    /// Device operations that requests waited for.
    pub device_ops: u64,
    /// Number of requests by latency: class n holds those from 2ⁿ to below 2ⁿ⁺¹ nanoseconds.
    pub latency: [u64; LATENCY_CLASSES],
}

impl Default for RequestTotals {
    fn default() -> Self {
        RequestTotals {
            requests: 0,
            answered_bytes: Default::default(),
            support_bytes: Default::default(),
            written_bytes: 0,
            stage_ns: Default::default(),
            device_ops: 0,
            latency: [0; LATENCY_CLASSES],
        }
    }
}

impl std::ops::Add for RequestTotals {
    type Output = RequestTotals;

    fn add(mut self, other: RequestTotals) -> RequestTotals {
        let all = |to: &mut [u64], from: &[u64]| to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
        self.requests += other.requests;
        self.written_bytes += other.written_bytes;
        self.device_ops += other.device_ops;
        all(&mut self.answered_bytes, &other.answered_bytes);
        all(&mut self.support_bytes, &other.support_bytes);
        all(&mut self.stage_ns, &other.stage_ns);
        all(&mut self.latency, &other.latency);
        self
    }
}

impl RequestTotals {
    /// Bytes answered from `source`.
    pub fn answered_bytes(&self, source: Source) -> u64 {
        self.answered_bytes[source as usize]
    }

    /// Bytes answered.
    pub fn all_answered_bytes(&self) -> u64 {
        self.answered_bytes.iter().sum()
    }

    /// Bytes read from `source` for requests that are not part of their answers.
    pub fn support_bytes(&self, source: Source) -> u64 {
        self.support_bytes[source as usize]
    }

    /// Nanoseconds spent in `stage`.
    pub fn stage_ns(&self, stage: Stage) -> u64 {
        self.stage_ns[stage as usize]
    }

    pub(super) fn record(&mut self, registers: &OperationRegisters) {
        let get = |register: &AtomicU64| register.load(Ordering::Relaxed);
        let all = |to: &mut [u64], from: &[AtomicU64]| to.iter_mut().zip(from).for_each(|(to, from)| *to += get(from));
        let of = |slots: Range<usize>| registers.slots.get(slots).unwrap_or_default();
        self.requests += get(&registers.requests);
        self.written_bytes += get(&registers.slots[WRITTEN]);
        self.device_ops += get(&registers.slots[DEVICE_OPS]);
        all(&mut self.answered_bytes, of(ANSWERED));
        all(&mut self.support_bytes, of(SUPPORT));
        all(&mut self.stage_ns, of(STAGES));
        all(&mut self.latency, &registers.latency);
    }
}

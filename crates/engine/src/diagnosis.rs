//! Diagnosis of devices by their errors: too many in too short a time, and a device is degraded, or faulted.
//!
//! ```text
//!   checksum errors ─► N in T ─► degraded: it is used as before, and shown
//!   slow operations ─► N in T ─► degraded, if `slow_io_n` and `slow_io_t` are set
//!   I/O errors ──────► N in T ─► faulted: out of service, if the pool has all blocks without it; else degraded
//! ```
//!
//! Only errors that were reported count, so equal errors count once ([`super::events`]). Checksum errors that a scrub or
//! resilver finds do not count: they are being repaired. If another device below the same vdev has errors of the same kind,
//! the cause is probably what they have in common, a cable or a controller: no verdict is passed then.
//!
//! A device that was diagnosed is not diagnosed again until its errors are cleared.
//!
//! OpenZFS waits 15 seconds before it faults a device for I/O errors, for the message that the device was removed. There is no
//! such message here, so the verdict holds at once.
//!
//! Source: OpenZFS `cmd/zed/agents/zfs_diagnosis.c`, `zfs_retire.c`, `fmd_serd.c`.

pub mod thresholds;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use weir_machine::Nanos;
use weir_machine::lock::{Mutex, order};

/// Maximum N: the number of recent errors of a kind that are kept for a device.
const MAX_N: u64 = 1000;

/// Kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ErrorKind {
    /// Wrong bytes.
    Checksum,
    /// A failed read, write or flush.
    Io,
    /// An operation that took too long.
    Slow,
}

impl ErrorKind {
    /// Threshold without properties: `DEFAULT_CHECKSUM_N`, `DEFAULT_CHECKSUM_T`, `DEFAULT_IO_N`, `DEFAULT_IO_T`. Slow operations
    /// are diagnosed only if both `slow_io_n` and `slow_io_t` are set.
    pub fn threshold(self) -> Threshold {
        match self {
            ErrorKind::Checksum | ErrorKind::Io => Threshold { n: 10, t: Duration::from_secs(600) },
            ErrorKind::Slow => Threshold { n: 0, t: Duration::ZERO },
        }
    }
}

/// N errors within T.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Threshold {
    /// Number of errors; 0 for no diagnosis.
    pub n: u64,
    /// Time.
    pub t: Duration,
}

/// Verdict about a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Too many checksum errors, or slow operations.
    Degraded,
    /// Too many I/O errors.
    Faulted,
}

/// Recent errors of one kind (a SERD engine: soft error rate discrimination).
#[derive(Debug, Default)]
struct ErrorRate {
    /// Times of the last errors, at most N.
    times: VecDeque<Nanos>,
    has_fired: bool,
}

impl ErrorRate {
    /// Records an error; returns whether it is the Nth within T, the first time.
    fn record(&mut self, now: Nanos, threshold: Threshold) -> bool {
        let Threshold { n, t } = threshold;
        if self.has_fired || n == 0 {
            return false;
        }
        let n = n.min(MAX_N) as usize;
        while self.times.len() >= n {
            self.times.pop_front();
        }
        self.times.push_back(now);
        debug_assert!(self.times.len() <= n);
        let first = self.times.front().copied().unwrap_or(now);
        self.has_fired = self.times.len() == n && now.since(first) <= t;
        self.has_fired
    }

    /// Whether there were errors within T (`fmd_serd_active`, after garbage collection).
    fn is_active(&self, now: Nanos, t: Duration) -> bool {
        self.has_fired || self.times.back().is_some_and(|last| now.since(*last) <= t)
    }
}

/// Errors of one device.
#[derive(Debug, Default)]
struct Case {
    parent: u64,
    rates: BTreeMap<ErrorKind, ErrorRate>,
}

#[derive(Debug, Default)]
struct State {
    cases: BTreeMap<u64, Case>,
    thresholds: BTreeMap<(u64, ErrorKind), Threshold>,
    /// Leaves whose slow operations are no events.
    without_slow_events: BTreeSet<u64>,
    verdicts: Vec<(u64, Verdict)>,
    /// Devices that had an error since the supervisor last checked their paths and labels.
    suspects: BTreeSet<u64>,
    /// Failed devices whose hot spare a command has detached. No hot spare replaces such a device until it is ONLINE again.
    without_spare: BTreeSet<u64>,
}

/// The diagnosis of a pool's devices.
#[derive(Default)]
pub(crate) struct Diagnosis(Mutex<State, { order::DIAGNOSIS }>);

impl Diagnosis {
    /// Records an error of leaf `leaf` below vdev `parent`.
    pub fn record(&self, leaf: u64, parent: u64, kind: ErrorKind, now: Nanos) {
        let state = &mut *self.0.lock();
        let threshold = state.thresholds.get(&(leaf, kind)).copied().unwrap_or(kind.threshold());
        let case = state.cases.entry(leaf).or_default();
        case.parent = parent;
        if !case.rates.entry(kind).or_default().record(now, threshold) {
            return;
        }
        let is_peer = |(guid, case): (&u64, &Case)| {
            let is_active = case.rates.get(&kind).is_some_and(|rate| rate.is_active(now, threshold.t));
            *guid != leaf && case.parent == parent && is_active
        };
        if state.cases.iter().any(is_peer) {
            state.cases.remove(&leaf);
            return;
        }
        let verdict = match kind {
            ErrorKind::Checksum | ErrorKind::Slow => Verdict::Degraded,
            ErrorKind::Io => Verdict::Faulted,
        };
        state.verdicts.push((leaf, verdict));
    }

    /// Records that a device had an error, so that its path and labels are looked at ([`super::probe`]).
    pub fn suspect(&self, leaf: u64) {
        self.0.lock().suspects.insert(leaf);
    }

    /// Takes the devices that had errors since the last call.
    pub fn take_suspects(&self) -> BTreeSet<u64> {
        std::mem::take(&mut self.0.lock().suspects)
    }

    /// Records that a command detached the hot spare of a device.
    pub fn want_no_spare(&self, leaf: u64) {
        self.0.lock().without_spare.insert(leaf);
    }

    /// Devices whose hot spare was detached by a command.
    pub fn without_spare(&self) -> BTreeSet<u64> {
        self.0.lock().without_spare.clone()
    }

    /// Forgets that of the devices that are healthy again.
    pub fn want_spares(&self, is_healthy: impl Fn(u64) -> bool) {
        self.0.lock().without_spare.retain(|leaf| !is_healthy(*leaf));
    }

    /// Takes the verdicts since the last call.
    pub fn take_verdicts(&self) -> Vec<(u64, Verdict)> {
        std::mem::take(&mut self.0.lock().verdicts)
    }

    /// Whether a verdict about a device was passed, and its errors were not cleared since.
    pub fn has_verdict(&self, leaf: u64) -> bool {
        self.0.lock().cases.get(&leaf).is_some_and(|case| case.rates.values().any(|rate| rate.has_fired))
    }

    /// Forgets the errors of a device.
    pub fn clear(&self, leaf: u64) {
        let mut state = self.0.lock();
        state.cases.remove(&leaf);
        state.verdicts.retain(|(guid, _)| *guid != leaf);
    }

    /// Sets the thresholds of the devices that have other ones than the default.
    pub fn set_thresholds(&self, thresholds: BTreeMap<(u64, ErrorKind), Threshold>) {
        self.0.lock().thresholds = thresholds;
    }

    /// Sets the leaves whose slow operations are no events (`slow_io_events=off`).
    pub fn set_without_slow_events(&self, leaves: BTreeSet<u64>) {
        self.0.lock().without_slow_events = leaves;
    }

    /// Whether slow operations of a leaf are events.
    pub fn has_slow_events(&self, leaf: u64) -> bool {
        !self.0.lock().without_slow_events.contains(&leaf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Nanos {
        Nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn the_tenth_error_within_ten_minutes_is_one_too_many() {
        for (kind, verdict) in [(ErrorKind::Checksum, Verdict::Degraded), (ErrorKind::Io, Verdict::Faulted)] {
            let diagnosis = Diagnosis::default();
            (0..9).for_each(|second| diagnosis.record(7, 1, kind, at(second)));
            assert_eq!(diagnosis.take_verdicts(), []);
            diagnosis.record(7, 1, kind, at(600));
            assert_eq!(diagnosis.take_verdicts(), [(7, verdict)]);
            (0..20).for_each(|_| diagnosis.record(7, 1, kind, at(600)));
            assert_eq!(diagnosis.take_verdicts(), [], "once");
            assert!(diagnosis.has_verdict(7) && !diagnosis.has_verdict(8));
            diagnosis.clear(7);
            assert!(!diagnosis.has_verdict(7));
            (0..10).for_each(|_| diagnosis.record(7, 1, kind, at(601)));
            assert_eq!(diagnosis.take_verdicts(), [(7, verdict)], "and again after it was cleared");
        }
    }

    #[test]
    fn errors_that_are_rare_are_no_fault() {
        let diagnosis = Diagnosis::default();
        (0..1000).for_each(|i| diagnosis.record(7, 1, ErrorKind::Io, at(i * 67)));
        assert_eq!(diagnosis.take_verdicts(), []);
    }

    #[test]
    fn errors_of_several_devices_of_a_vdev_are_none_of_one_device() {
        let diagnosis = Diagnosis::default();
        diagnosis.record(8, 1, ErrorKind::Io, at(0));
        (0..10).for_each(|second| diagnosis.record(7, 1, ErrorKind::Io, at(second)));
        assert_eq!(diagnosis.take_verdicts(), []);
        // Others of another kind, of another vdev, or of long ago do not matter.
        diagnosis.clear(8);
        diagnosis.record(8, 1, ErrorKind::Checksum, at(20));
        diagnosis.record(9, 2, ErrorKind::Io, at(20));
        (20..30).for_each(|second| diagnosis.record(7, 1, ErrorKind::Io, at(second)));
        assert_eq!(diagnosis.take_verdicts(), [(7, Verdict::Faulted)]);
        (1000..1010).for_each(|second| diagnosis.record(6, 1, ErrorKind::Checksum, at(second)));
        assert_eq!(diagnosis.take_verdicts(), [(6, Verdict::Degraded)]);
    }

    #[test]
    fn slow_operations_count_if_a_property_says_so() {
        let diagnosis = Diagnosis::default();
        (0..100).for_each(|second| diagnosis.record(7, 1, ErrorKind::Slow, at(second)));
        assert_eq!(diagnosis.take_verdicts(), []);
        let few = Threshold { n: 3, t: Duration::from_secs(30) };
        diagnosis.set_thresholds(BTreeMap::from([((7, ErrorKind::Slow), few)]));
        (200..203).for_each(|second| diagnosis.record(7, 1, ErrorKind::Slow, at(second)));
        assert_eq!(diagnosis.take_verdicts(), [(7, Verdict::Degraded)]);
    }

    #[test]
    fn thresholds_are_those_of_the_device() {
        let diagnosis = Diagnosis::default();
        let few = Threshold { n: 2, t: Duration::from_secs(5) };
        let none = Threshold { n: 0, ..few };
        diagnosis.set_thresholds(BTreeMap::from([((7, ErrorKind::Io), few), ((8, ErrorKind::Io), none)]));
        diagnosis.record(7, 1, ErrorKind::Io, at(0));
        diagnosis.record(7, 1, ErrorKind::Io, at(6));
        assert_eq!(diagnosis.take_verdicts(), []);
        diagnosis.record(7, 1, ErrorKind::Io, at(7));
        assert_eq!(diagnosis.take_verdicts(), [(7, Verdict::Faulted)]);
        (0..100).for_each(|second| diagnosis.record(8, 2, ErrorKind::Io, at(second)));
        assert_eq!(diagnosis.take_verdicts(), []);
    }
}

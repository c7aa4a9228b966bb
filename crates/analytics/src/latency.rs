//! Requests by latency, small enough for the history of a month.
//!
//! A class has the latencies from a power of two of nanoseconds to below the next one; the first and the last have all that are
//! lower and higher. A count takes 16 bits: five bits e and eleven bits m stand for m × 2^e. Counts up to 2047 are exact; a greater
//! one is rounded down by less than 0.1 %, and a sum of points that were summed before by less than 0.3 %.

use crate::interval::Interval;
use serde::Serialize;
use utoipa::ToSchema;

/// Operations whose requests are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LatencyKind {
    /// Reads of data.
    Reads,
    /// Writes of data.
    Writes,
    /// All other operations of clients.
    Others,
}

impl LatencyKind {
    /// All of them.
    pub const ALL: [LatencyKind; 3] = [LatencyKind::Reads, LatencyKind::Writes, LatencyKind::Others];

    /// Name in the numbers of series.
    pub(crate) fn name(self) -> &'static str {
        match self {
            LatencyKind::Reads => "reads",
            LatencyKind::Writes => "writes",
            LatencyKind::Others => "others",
        }
    }
}

/// Number of classes.
pub(crate) const CLASSES: usize = 22;
/// Binary logarithm, rounded down, of the latencies in the first class in nanoseconds; lower latencies are in it too.
pub(crate) const FIRST_CLASS: usize = 11;
/// Codes of a [`LatencyCounts`].
pub(crate) const CODES: usize = CLASSES * LatencyKind::ALL.len();

/// Bits of the factor in a code.
const FACTOR_BITS: u32 = 11;
/// Greatest factor.
const MAX_FACTOR: u64 = (1 << FACTOR_BITS) - 1;
/// Code of a count that is not known.
const UNKNOWN: u16 = u16::MAX;

/// Numbers of requests in an interval, by kind of operation and class of latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencyCounts([u16; CODES]);

fn code(count: u64) -> u16 {
    let exponent = (u64::BITS - count.leading_zeros()).saturating_sub(FACTOR_BITS);
    let code = (u64::from(exponent) << FACTOR_BITS) | (count >> exponent);
    u16::try_from(code).unwrap_or(UNKNOWN - 1).min(UNKNOWN - 1)
}

fn count(code: u16) -> Option<u64> {
    let code = u64::from(code);
    (code != u64::from(UNKNOWN)).then_some((code & MAX_FACTOR) << (code >> FACTOR_BITS))
}

impl LatencyCounts {
    /// Counts of points of a version that had none.
    pub const NOT_KNOWN: LatencyCounts = LatencyCounts([UNKNOWN; CODES]);

    /// Counts by powers of two of nanoseconds, as [`OperationTotals`](crate::OperationTotals) has them.
    pub fn of(rows: &[(LatencyKind, &[u64])]) -> Self {
        let mut sums = [0u64; CODES];
        for (kind, latency) in rows {
            for (class, count) in latency.iter().enumerate() {
                let class = class.clamp(FIRST_CLASS, FIRST_CLASS + CLASSES - 1) - FIRST_CLASS;
                let sum = sums.get_mut(*kind as usize * CLASSES + class);
                sum.into_iter().for_each(|sum| *sum = sum.saturating_add(*count));
            }
        }
        LatencyCounts(sums.map(code))
    }

    /// Requests of clients in an interval.
    pub(crate) fn of_interval(interval: &Interval) -> Self {
        let of_clients = interval.operations.iter().filter(|row| row.protocol != "internal");
        let rows: Vec<(LatencyKind, &[u64])> = of_clients
            .map(|row| {
                let kind = match row.operation.as_str() {
                    "read" => LatencyKind::Reads,
                    "write" => LatencyKind::Writes,
                    _ => LatencyKind::Others,
                };
                (kind, row.latency.as_slice())
            })
            .collect();
        LatencyCounts::of(&rows)
    }

    /// Sum of those that are known.
    pub(crate) fn sum(all: impl Iterator<Item = LatencyCounts>) -> Self {
        let mut sums = [None; CODES];
        for counts in all {
            for (sum, code) in sums.iter_mut().zip(counts.0) {
                *sum = count(code).map(|count| count.saturating_add(sum.unwrap_or(0))).or(*sum);
            }
        }
        LatencyCounts(sums.map(|sum: Option<u64>| sum.map_or(UNKNOWN, code)))
    }

    /// Number of requests of each class; `None` if they are not known.
    pub fn classes(&self, kind: LatencyKind) -> Option<Vec<u64>> {
        let start = kind as usize * CLASSES;
        self.0.get(start..start + CLASSES)?.iter().map(|code| count(*code)).collect()
    }

    /// Upper bounds of the classes but the last, which has none, in nanoseconds.
    pub fn bounds_ns() -> Vec<u64> {
        (FIRST_CLASS + 1..FIRST_CLASS + CLASSES).map(|power| 1 << power).collect()
    }

    pub(crate) fn codes(&self) -> [u16; CODES] {
        self.0
    }

    pub(crate) fn set_code(&mut self, at: usize, code: u16) {
        self.0.get_mut(at).into_iter().for_each(|place| *place = code);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn classes_have_the_requests_of_their_latency_and_the_outer_ones_all_beyond() {
        let mut latency = vec![0u64; 40];
        [0, 10, 11, 12, 33, 39].into_iter().for_each(|class| latency[class] = 1);
        let counts = LatencyCounts::of(&[(LatencyKind::Writes, &latency), (LatencyKind::Writes, &latency[..13])]);
        let writes = counts.classes(LatencyKind::Writes).unwrap();
        assert_eq!((writes.len(), writes[0], writes[1], writes[21]), (CLASSES, 6, 2, 2));
        assert_eq!(counts.classes(LatencyKind::Reads).unwrap(), [0; CLASSES]);
        let bounds = LatencyCounts::bounds_ns();
        assert_eq!((bounds.len(), bounds[0], bounds[20]), (CLASSES - 1, 4096, 1 << 32));
    }

    #[test]
    fn a_sum_has_what_is_known() {
        let one = LatencyCounts::of(&[(LatencyKind::Others, &[5; 12])]);
        let sum = LatencyCounts::sum([one, LatencyCounts::NOT_KNOWN, one].into_iter());
        assert_eq!(sum.classes(LatencyKind::Others).unwrap()[0], 120);
        assert_eq!(LatencyCounts::sum([LatencyCounts::NOT_KNOWN].into_iter()), LatencyCounts::NOT_KNOWN);
        assert_eq!(LatencyCounts::NOT_KNOWN.classes(LatencyKind::Reads), None);
    }

    proptest! {
        #[test]
        fn counts_are_rounded_by_less_than_their_error(n in 0u64..1 << 40, small in 0u64..2048) {
            prop_assert_eq!(count(code(small)), Some(small));
            let shown = count(code(n)).unwrap();
            prop_assert!(shown <= n && (n - shown) as f64 <= n as f64 / 1024.0);
            prop_assert!(count(code(u64::MAX)).unwrap() >= 1 << 41);
        }
    }
}

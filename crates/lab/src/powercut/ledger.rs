//! Records of a writer, what was promised about each, and the count of what a cut took.
//!
//! A record is a block with a place of its own: number `n` is at `n` times its size in the writer's range. Its content follows from the
//! run's seed, the writer and the number, all bytes of it, so that a record is recognized without being kept. Promises:
//!
//! | State | Meaning |
//! |---|---|
//! | sent | no answer yet: it may be there or not |
//! | acknowledged | the server has it; a cut may take it |
//! | promised | a flush that began after its acknowledgement has ended, or it was written to be stable at once: no cut may take it |

use crate::statistics::Seeded;

/// Bytes at the beginning of a record.
const MAGIC: [u8; 8] = *b"WEIRCUT1";

/// Writer of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Writer {
    /// Seed of the run.
    pub seed: u64,
    /// Number of the writer.
    pub number: u32,
}

impl Writer {
    /// The content of record `number`, of `len` bytes.
    #[must_use]
    pub fn content(self, number: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let mut head = MAGIC.to_vec();
        head.extend_from_slice(&self.seed.to_le_bytes());
        head.extend_from_slice(&u64::from(self.number).to_le_bytes());
        head.extend_from_slice(&number.to_le_bytes());
        Seeded::new(self.seed ^ (u64::from(self.number) << 48) ^ number).fill(&mut bytes);
        let len = head.len().min(bytes.len());
        bytes[..len].copy_from_slice(&head[..len]);
        bytes
    }
}

/// A record and what was promised about it. Times are seconds since the writers began.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Entry {
    acknowledged: Option<f64>,
    promised: Option<f64>,
}

/// Knowledge of a writer about its records.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    entries: Vec<Entry>,
    /// Records before this one are promised, or were never acknowledged.
    settled: usize,
}

/// Count of what was promised, and of what is missing.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Losses {
    /// Records that were acknowledged, promised ones included.
    pub acknowledged: u64,
    /// Records that were promised to be stable.
    pub promised: u64,
    /// Promised records that are missing.
    pub lost_promised: u64,
    /// Acknowledged records that are missing and were not promised.
    pub lost_acknowledged: u64,
    /// Missing records whose place holds something else than zeros.
    pub damaged: u64,
    /// Seconds before the cut at which the first of the missing promised records was promised.
    pub promised_seconds: f64,
    /// Seconds before the cut at which the first of the missing unpromised records was acknowledged.
    pub acknowledged_seconds: f64,
}

impl Losses {
    /// Adds the count of another writer.
    pub fn add(&mut self, other: &Self) {
        self.acknowledged += other.acknowledged;
        self.promised += other.promised;
        self.lost_promised += other.lost_promised;
        self.lost_acknowledged += other.lost_acknowledged;
        self.damaged += other.damaged;
        self.promised_seconds = self.promised_seconds.max(other.promised_seconds);
        self.acknowledged_seconds = self.acknowledged_seconds.max(other.acknowledged_seconds);
    }
}

impl Ledger {
    /// Number of records that were sent.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Notes that the next record is sent; returns its number.
    pub fn send(&mut self) -> u64 {
        self.entries.push(Entry::default());
        self.entries.len() as u64 - 1
    }

    /// Notes that the record sent last was acknowledged, and promised at once if it `is_stable`.
    pub fn acknowledge(&mut self, at: f64, is_stable: bool) {
        if let Some(entry) = self.entries.last_mut() {
            *entry = Entry { acknowledged: Some(at), promised: is_stable.then_some(at) };
        }
    }

    /// Notes that a flush ended which began after the last acknowledgement.
    pub fn flush(&mut self, at: f64) {
        for entry in self.entries.iter_mut().skip(self.settled) {
            if entry.acknowledged.is_some() && entry.promised.is_none() {
                entry.promised = Some(at);
            }
        }
        self.settled = self.entries.len();
    }

    /// Counts what is missing. `found` has the places of all records, each of `record_bytes`; what is missing at its end reads as
    /// zeros. `cut_at` is the time of the cut.
    #[must_use]
    pub fn check(&self, writer: Writer, record_bytes: usize, found: &[u8], cut_at: f64) -> Losses {
        let mut losses = Losses::default();
        for (number, entry) in self.entries.iter().enumerate() {
            let Some(acknowledged) = entry.acknowledged else { continue };
            losses.acknowledged += 1;
            losses.promised += u64::from(entry.promised.is_some());
            let there = found.get(number * record_bytes..(number + 1) * record_bytes).unwrap_or_default();
            if there == writer.content(number as u64, record_bytes) {
                continue;
            }
            losses.damaged += u64::from(there.iter().any(|byte| *byte != 0));
            match entry.promised {
                Some(promised) => {
                    losses.lost_promised += 1;
                    losses.promised_seconds = losses.promised_seconds.max(cut_at - promised);
                }
                None => {
                    losses.lost_acknowledged += 1;
                    losses.acknowledged_seconds = losses.acknowledged_seconds.max(cut_at - acknowledged);
                }
            }
        }
        losses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 512;
    const WRITER: Writer = Writer { seed: 7, number: 1 };

    fn disk(records: u64) -> Vec<u8> {
        (0..records).flat_map(|number| WRITER.content(number, LEN)).collect()
    }

    /// Records 0 to 5: two promised by a flush, one written stable, one acknowledged, one stable, one without an answer.
    fn ledger() -> Ledger {
        let mut ledger = Ledger::default();
        for (at, stable) in [(1.0, false), (2.0, false), (3.0, true), (4.0, false), (5.0, true)] {
            ledger.send();
            ledger.acknowledge(at, stable);
            if at == 2.0 {
                ledger.flush(2.5);
            }
        }
        ledger.send();
        ledger
    }

    #[test]
    fn a_flush_promises_what_was_acknowledged_before_it() {
        let whole = ledger().check(WRITER, LEN, &disk(6), 10.0);
        assert_eq!(whole, Losses { acknowledged: 5, promised: 4, ..Losses::default() });
        // The last record had no answer, so nothing may be said about it.
        assert_eq!(ledger().check(WRITER, LEN, &disk(5), 10.0), whole);
    }

    #[test]
    fn missing_records_count_once_by_what_was_promised() {
        let mut found = disk(6);
        found[..LEN].fill(0);
        found[3 * LEN] ^= 1;
        found.truncate(4 * LEN);
        let losses = ledger().check(WRITER, LEN, &found, 10.0);
        let expected = Losses {
            acknowledged: 5,
            promised: 4,
            lost_promised: 2,
            lost_acknowledged: 1,
            damaged: 1,
            promised_seconds: 7.5,
            acknowledged_seconds: 6.0,
        };
        assert_eq!(losses, expected);
    }

    #[test]
    fn records_of_other_runs_writers_and_places_are_not_taken_for_the_right_ones() {
        let content = WRITER.content(4, LEN);
        for other in [Writer { seed: 8, ..WRITER }, Writer { number: 2, ..WRITER }] {
            assert_ne!(other.content(4, LEN), content);
        }
        assert_ne!(WRITER.content(5, LEN), content);
        let moved: Vec<u8> = (1..7).flat_map(|number| WRITER.content(number, LEN)).collect();
        let losses = ledger().check(WRITER, LEN, &moved, 10.0);
        assert_eq!((losses.lost_promised, losses.lost_acknowledged, losses.damaged), (4, 1, 5));
    }
}

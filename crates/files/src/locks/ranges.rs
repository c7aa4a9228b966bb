//! The byte ranges that one owner holds of one file: they never overlap, and equal neighbours are one range.
//!
//! ```text
//!   held    [0      shared      99]            [200 exclusive 299]
//!   set exclusive 50..=210
//!   held    [0  shared 49][50        exclusive                299]
//! ```

use super::{LockKind, LockRange};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// A held range; its start is its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeldRange {
    end: u64,
    kind: LockKind,
    /// Process that set it, for callers that ask which lock is in the way.
    process: u32,
}

/// Ranges by start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(BTreeMap<u64, HeldRange>);

/// A lock that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeldLock {
    pub(super) range: LockRange,
    pub(super) kind: LockKind,
    pub(super) process: u32,
}

/// How a change alters the ranges: it removes some and adds at most three.
pub(super) struct RangeChange {
    remove: SmallVec<[u64; 4]>,
    add: SmallVec<[HeldLock; 3]>,
    /// Whether a part of an exclusive range becomes shared or free, which others may wait for.
    pub(super) loosens: bool,
}

impl RangeChange {
    /// Number of ranges afterwards, less the number before.
    pub(super) fn growth(&self) -> i64 {
        self.add.len() as i64 - self.remove.len() as i64
    }
}

impl Ranges {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All ranges in ascending order.
    pub(super) fn iter(&self) -> impl Iterator<Item = HeldLock> + '_ {
        self.0.iter().map(|(start, held)| held_lock(*start, held))
    }

    /// The ranges that share a byte with `range`, in ascending order.
    fn overlapping(&self, range: LockRange) -> impl Iterator<Item = HeldLock> + '_ {
        // Only the last range that starts before can reach into it, because ranges do not overlap.
        let before = self.0.range(..range.start).next_back().filter(|(_, held)| held.end >= range.start);
        let inside = self.0.range(range.start..=range.end);
        before.into_iter().chain(inside).map(|(start, held)| held_lock(*start, held))
    }

    /// The first range that a lock of another owner conflicts with.
    pub(super) fn conflict(&self, range: LockRange, kind: LockKind) -> Option<HeldLock> {
        self.overlapping(range).find(|held| held.kind.conflicts(kind))
    }

    /// Plans to hold `range` as `kind`, or to release it.
    pub(super) fn plan(&self, range: LockRange, kind: Option<LockKind>, process: u32) -> RangeChange {
        // Neighbours of the same kind are merged, so they are looked at, too.
        let wide = LockRange { start: range.start.saturating_sub(1), end: range.end.saturating_add(1) };
        let mut change = RangeChange { remove: SmallVec::new(), add: SmallVec::new(), loosens: false };
        let mut merged = range;
        for held in self.overlapping(wide) {
            let overlaps = held.range.overlaps(range);
            if kind == Some(held.kind) {
                merged = LockRange { start: merged.start.min(held.range.start), end: merged.end.max(held.range.end) };
            } else if overlaps {
                change.loosens |= kind.is_none() || held.kind == LockKind::Exclusive;
                if held.range.start < range.start {
                    let end = range.start - 1;
                    change.add.push(HeldLock { range: LockRange { start: held.range.start, end }, ..held });
                }
                if held.range.end > range.end {
                    let start = range.end + 1;
                    change.add.push(HeldLock { range: LockRange { start, end: held.range.end }, ..held });
                }
            } else {
                continue;
            }
            change.remove.push(held.range.start);
        }
        if let Some(kind) = kind {
            change.add.push(HeldLock { range: merged, kind, process });
        }
        debug_assert!(change.add.len() <= 3, "a range was split into more than three");
        change
    }

    /// Executes a plan that was made for the present ranges.
    pub(super) fn apply(&mut self, change: RangeChange) {
        let before = self.0.len() as i64;
        let growth = change.growth();
        for start in change.remove {
            let removed = self.0.remove(&start);
            debug_assert!(removed.is_some(), "the plan is for other ranges");
        }
        for HeldLock { range, kind, process } in change.add {
            let replaced = self.0.insert(range.start, HeldRange { end: range.end, kind, process });
            debug_assert!(replaced.is_none(), "two ranges start at {}", range.start);
        }
        debug_assert_eq!(self.0.len() as i64, before + growth, "the growth was planned wrongly");
        debug_assert!(
            self.0.iter().zip(self.0.iter().skip(1)).all(|((_, a), (start, _))| a.end < *start),
            "ranges of one owner overlap"
        );
    }
}

fn held_lock(start: u64, held: &HeldRange) -> HeldLock {
    HeldLock { range: LockRange { start, end: held.end }, kind: held.kind, process: held.process }
}

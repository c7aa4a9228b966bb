//! Sets of byte ranges: the allocated segments of a vdev.
//!
//! A map from start to end. Adjacent ranges are merged. Adding bytes that are in the set, or removing bytes that are
//! not, is reported by the number of such bytes, which is how double allocations and unallocated blocks are found.

use std::collections::BTreeMap;

/// Set of bytes as disjoint ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    map: BTreeMap<u64, u64>,
    bytes: u64,
}

impl Ranges {
    /// Returns the total number of bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of ranges.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Returns the ranges as (start, length), ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.map.iter().map(|(s, e)| (*s, e - s))
    }

    /// Returns the parts of `start..end` that are in the set, as (start, length), ascending.
    pub fn within(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let first = self.map.range(..=start).next_back().filter(|(_, e)| **e > start).map_or(start, |(s, _)| *s);
        let parts = self.map.range(first..end.max(first));
        parts.map(move |(s, e)| ((*s).max(start), (*e).min(end))).filter(|(s, e)| e > s).map(|(s, e)| (s, e - s))
    }

    /// Whether all of `len` bytes at `start` are in the set.
    pub fn contains(&self, start: u64, len: u64) -> bool {
        let Some(end) = start.checked_add(len) else { return false };
        self.map.range(..=start).next_back().is_some_and(|(_, e)| *e >= end)
    }

    /// Returns how many of the `len` bytes at `start` are in the set.
    pub fn overlap(&self, start: u64, len: u64) -> u64 {
        let end = start.saturating_add(len);
        let first = self.map.range(..=start).next_back().filter(|(_, e)| **e > start).map_or(start, |(s, _)| *s);
        self.map.range(first..end).map(|(s, e)| (*e).min(end).saturating_sub((*s).max(start))).sum()
    }

    /// Adds `len` bytes at `start`; returns how many were in the set before.
    pub fn add(&mut self, start: u64, len: u64) -> u64 {
        let Some(mut end) = start.checked_add(len) else { return 0 };
        if len == 0 {
            return 0;
        }
        let mut from = start;
        let mut already = 0;
        // Merges all ranges that overlap or are adjacent.
        let first = self.map.range(..=start).next_back().filter(|(_, e)| **e >= start).map_or(start, |(s, _)| *s);
        while let Some((s, e)) = self.map.range(first..=end).next().map(|(s, e)| (*s, *e)) {
            already += e.min(start + len).saturating_sub(s.max(start));
            self.map.remove(&s);
            self.bytes -= e - s;
            from = from.min(s);
            end = end.max(e);
        }
        self.map.insert(from, end);
        self.bytes += end - from;
        already
    }

    /// Removes `len` bytes at `start`; returns how many were not in the set.
    pub fn remove(&mut self, start: u64, len: u64) -> u64 {
        let Some(end) = start.checked_add(len) else { return len };
        if len == 0 {
            return 0;
        }
        let mut removed = 0;
        // A range that begins earlier keeps its front, and its tail if it extends further.
        let before = self.map.range(..start).next_back().map(|(s, e)| (*s, *e));
        if let Some((s, e)) = before.filter(|(_, e)| *e > start) {
            self.map.insert(s, start);
            if e > end {
                self.map.insert(end, e);
            }
            removed += e.min(end) - start;
        }
        // The loop ends, because each step removes one range from `start..end` and adds none there.
        while let Some((s, e)) = self.map.range(start..end).next().map(|(s, e)| (*s, *e)) {
            self.map.remove(&s);
            if e > end {
                self.map.insert(end, e);
            }
            removed += e.min(end) - s;
        }
        self.bytes -= removed;
        len - removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn holes_and_overlaps_are_counted() {
        let mut r = Ranges::default();
        assert_eq!(r.add(10, 10), 0);
        assert_eq!(r.add(15, 10), 5);
        assert_eq!(r.iter().collect::<Vec<_>>(), [(10, 15)]);
        assert_eq!(r.remove(0, 12), 10);
        assert_eq!(r.remove(14, 2), 0);
        assert_eq!(r.iter().collect::<Vec<_>>(), [(12, 2), (16, 9)]);
        assert!(r.contains(16, 9) && !r.contains(12, 5));
        assert_eq!(r.overlap(0, 18), 4);
    }

    #[test]
    fn a_removal_from_within_one_range_into_the_next_ends() {
        let mut r = Ranges::default();
        r.add(0, 10);
        r.add(12, 4);
        assert_eq!(r.remove(5, 9), 2);
        assert_eq!(r.iter().collect::<Vec<_>>(), [(0, 5), (14, 2)]);
        assert_eq!((r.remove(3, 0), r.len(), r.bytes()), (0, 2, 7));
    }

    proptest! {
        #[test]
        fn like_a_set_of_bytes(ops in proptest::collection::vec((any::<bool>(), 0u64..60, 0u64..20), 0..60)) {
            let mut r = Ranges::default();
            let mut model = std::collections::BTreeSet::new();
            for (add, start, len) in ops {
                let range = start..start + len;
                if add {
                    let already = range.clone().filter(|b| model.contains(b)).count() as u64;
                    model.extend(range);
                    prop_assert_eq!(r.add(start, len), already);
                } else {
                    let absent = range.clone().filter(|b| !model.contains(b)).count() as u64;
                    range.for_each(|b| { model.remove(&b); });
                    prop_assert_eq!(r.remove(start, len), absent);
                }
                prop_assert_eq!(r.bytes(), model.len() as u64);
                let all: Vec<u64> = r.iter().flat_map(|(s, l)| s..s + l).collect();
                prop_assert_eq!(&all, &model.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(r.overlap(start, len), (start..start + len).filter(|b| model.contains(b)).count() as u64);
            }
        }
    }
}

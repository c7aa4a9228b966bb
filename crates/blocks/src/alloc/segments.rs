//! Sets of disjoint byte ranges; adjacent ranges are merged.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use weir_machine::invariant;

/// A set of byte ranges, indexed by offset and by size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segments {
    /// Start → end.
    by_offset: BTreeMap<u64, u64>,
    /// Length and start.
    by_size: BTreeSet<(u64, u64)>,
    total_bytes: u64,
    /// Number of segments of 2ⁿ to 2ⁿ⁺¹−1 bytes, n from 0 to 31 and from 32 to 63.
    counts: [[u64; 32]; 2],
}

impl Segments {
    /// Bytes in all segments.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Number of segments.
    pub fn len(&self) -> usize {
        self.by_offset.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_offset.is_empty()
    }

    /// The segments in the order of their offsets.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.by_offset.iter().map(|(&start, &end)| start..end)
    }

    /// Length of the longest segment, in bytes.
    pub fn largest_bytes(&self) -> u64 {
        self.by_size.last().map_or(0, |&(len, _)| len)
    }

    fn insert(&mut self, start: u64, end: u64) {
        let former = self.by_offset.insert(start, end);
        let is_new = self.by_size.insert((end - start, start));
        invariant!(former.is_none() && is_new, "segment {start:#x} is in the set already");
        self.total_bytes += end - start;
        *self.count_of(end - start) += 1;
    }

    fn delete(&mut self, start: u64, end: u64) {
        let known = self.by_offset.remove(&start);
        let was_sized = self.by_size.remove(&(end - start, start));
        invariant!(known == Some(end) && was_sized, "segment {start:#x} to {end:#x} is not in the set");
        self.total_bytes -= end - start;
        *self.count_of(end - start) -= 1;
    }

    /// Counter of the segments whose length has the same log2.
    fn count_of(&mut self, len: u64) -> &mut u64 {
        let log = len.max(1).ilog2() as usize;
        &mut self.counts[log / 32][log % 32]
    }

    /// The segment that holds the byte at `offset`.
    fn around(&self, offset: u64) -> Option<Range<u64>> {
        let (&start, &end) = self.by_offset.range(..=offset).next_back()?;
        (offset < end).then_some(start..end)
    }

    /// Whether all of `range` is in the set.
    pub fn contains(&self, range: &Range<u64>) -> bool {
        range.is_empty() || self.around(range.start).is_some_and(|s| range.end <= s.end)
    }

    /// Whether any of `range` is in the set.
    pub fn touches(&self, range: &Range<u64>) -> bool {
        let before = self.by_offset.range(..range.end).next_back();
        !range.is_empty() && before.is_some_and(|(_, &end)| end > range.start)
    }

    /// Adds a range, none of which may be in the set: false (and no change) if some is.
    pub fn add(&mut self, range: Range<u64>) -> bool {
        if self.touches(&range) {
            return false;
        }
        if range.is_empty() {
            return true;
        }
        let Range { mut start, mut end } = range;
        let before = self.by_offset.range(..start).next_back().map(|(&s, &e)| (s, e));
        if let Some((s, e)) = before.filter(|&(_, e)| e == start) {
            self.delete(s, e);
            start = s;
        }
        if let Some(&e) = self.by_offset.get(&end) {
            self.delete(end, e);
            end = e;
        }
        self.insert(start, end);
        true
    }

    /// Removes a range, all of which must be in the set: false (and no change) if some is not.
    pub fn remove(&mut self, range: Range<u64>) -> bool {
        if range.is_empty() {
            return true;
        }
        let Some(whole) = self.around(range.start).filter(|s| range.end <= s.end) else { return false };
        self.delete(whole.start, whole.end);
        if whole.start < range.start {
            self.insert(whole.start, range.start);
        }
        if range.end < whole.end {
            self.insert(range.end, whole.end);
        }
        true
    }

    /// Removes the intersection of the set with `range`, and returns the removed segments.
    pub fn remove_common(&mut self, range: &Range<u64>) -> Vec<Range<u64>> {
        let first = self.around(range.start).map_or(range.start, |s| s.start);
        let common = |(&s, &e): (&u64, &u64)| s.max(range.start)..e.min(range.end);
        let found: Vec<Range<u64>> =
            self.by_offset.range(first..range.end.max(first)).map(common).filter(|r| !r.is_empty()).collect();
        for part in &found {
            self.remove(part.clone());
        }
        found
    }

    /// The start of the first segment from `from` on, among the next `tries`, that is `len` bytes long; the segment that
    /// holds `from` counts from there.
    pub fn first_fit(&self, from: u64, len: u64, tries: usize) -> Option<u64> {
        if let Some(rest) = self.around(from).filter(|s| s.end - from >= len) {
            return Some(rest.start.max(from));
        }
        let next = self.by_offset.range(from..).take(tries);
        next.map(|(&s, &e)| (s, e)).find(|(s, e)| e - s >= len).map(|(s, _)| s)
    }

    /// The start of the shortest segment that is `len` bytes long, the first of several.
    pub fn best_fit(&self, len: u64) -> Option<u64> {
        self.by_size.range((len, 0)..).next().map(|&(_, start)| start)
    }

    /// Adds to `histogram[n]` the number of segments of 2ⁿ to 2ⁿ⁺¹−1 bytes.
    pub fn histogram(&self, histogram: &mut [u64; 64]) {
        for (bin, count) in histogram.iter_mut().zip(self.counts.as_flattened()) {
            *bin += count;
        }
    }
}

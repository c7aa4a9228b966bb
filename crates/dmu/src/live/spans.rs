//! Sets of block numbers as disjoint spans: the blocks that a txg freed.

use std::collections::BTreeMap;
use std::ops::Range;

/// Set of numbers; adjacent spans are merged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans(BTreeMap<u64, u64>);

impl Spans {
    /// Adds `span`.
    pub fn add(&mut self, span: Range<u64>) {
        if span.is_empty() {
            return;
        }
        let (mut start, mut end) = (span.start, span.end);
        let first = self.0.range(..=start).next_back().filter(|(_, e)| **e >= start).map_or(start, |(s, _)| *s);
        while let Some((s, e)) = self.0.range(first..=end).next().map(|(s, e)| (*s, *e)) {
            self.0.remove(&s);
            start = start.min(s);
            end = end.max(e);
        }
        self.0.insert(start, end);
    }

    /// Whether `n` is in the set.
    pub fn contains(&self, n: u64) -> bool {
        self.0.range(..=n).next_back().is_some_and(|(_, end)| *end > n)
    }

    /// Returns the span that contains `n`, or the first one after it.
    pub fn at_or_after(&self, n: u64) -> Option<Range<u64>> {
        let around = self.0.range(..=n).next_back().filter(|(_, end)| **end > n);
        around.or_else(|| self.0.range(n..).next()).map(|(start, end)| *start..*end)
    }

    /// Returns all spans, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.0.iter().map(|(start, end)| *start..*end)
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn like_a_set_of_numbers(spans in proptest::collection::vec((0u64..60, 0u64..12), 0..30)) {
            let mut set = Spans::default();
            let mut model = std::collections::BTreeSet::new();
            for (start, len) in spans {
                set.add(start..start + len);
                model.extend(start..start + len);
                let all: Vec<u64> = set.iter().flatten().collect();
                prop_assert_eq!(&all, &model.iter().copied().collect::<Vec<_>>());
            }
            for n in 0..80 {
                prop_assert_eq!(set.contains(n), model.contains(&n));
                let next = set.at_or_after(n).map(|s| s.start.max(n));
                prop_assert_eq!(next, model.range(n..).next().copied());
            }
        }
    }
}

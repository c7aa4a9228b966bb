//! Dirty time logs: the txgs whose writes a vdev may lack.
//!
//! ```text
//!   opened     DTL in the MOS and the labels when the pool was opened
//!   failed     failed writes and flushes since then
//!   unstable   txgs of failed flushes whose writes can still be repeated
//!   scrub      the failed repairs of a scrub among them  (OpenZFS `DTL_SCRUB`)
//!              opened ∪ failed ∪ unstable                (OpenZFS `DTL_MISSING`)
//! ```
//!
//! A scrub that verified or repaired every block born up to some txg excises a leaf's DTL, except for repairs that failed.
//! It does not if the DTL has later txgs, nor after a failed flush, because the operating system may answer reads from its
//! page cache with bytes that the device has dropped.
//!
//! Source: OpenZFS `module/zfs/vdev.c` (theory above `vdev_dtl_dirty`, `vdev_dtl_reassess`, `vdev_dtl_should_excise`).

use std::fmt;
use weir_format::Txg;

/// A set of txgs: disjoint inclusive ranges, ascending, that do not touch each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dtl(Vec<(Txg, Txg)>);

impl Dtl {
    /// Every txg.
    pub fn all() -> Self {
        Dtl(vec![(Txg(0), Txg(u64::MAX))])
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ranges in ascending order, first and last txg of each.
    pub fn ranges(&self) -> &[(Txg, Txg)] {
        &self.0
    }

    /// The last txg of the set.
    pub fn max(&self) -> Option<Txg> {
        self.0.last().map(|range| range.1)
    }

    /// Whether the set contains `txg`.
    pub fn contains(&self, txg: Txg) -> bool {
        self.0.iter().any(|(first, last)| (*first..=*last).contains(&txg))
    }

    /// Whether the set contains any txg of `other`.
    pub fn intersects(&self, other: &Dtl) -> bool {
        self.0.iter().any(|(from, to)| other.0.iter().any(|(first, last)| from <= last && first <= to))
    }

    /// Adds the txgs from `first` to `last`, both included. Returns whether any of them is new.
    pub fn add(&mut self, first: Txg, last: Txg) -> bool {
        assert!(first <= last, "a range of txgs that ends before it begins");
        if self.0.iter().any(|(from, to)| *from <= first && last <= *to) {
            return false;
        }
        // Ranges that overlap or touch are merged.
        let apart = |&(from, to): &(Txg, Txg)| to.0.saturating_add(1) < first.0 || last.0.saturating_add(1) < from.0;
        let touching = self.0.iter().filter(|range| !apart(range));
        let joined = touching.fold((first, last), |(a, b), &(from, to)| (a.min(from), b.max(to)));
        self.0.retain(apart);
        self.0.push(joined);
        self.0.sort_unstable();
        debug_assert!(self.0.windows(2).all(|pair| pair[0].1 < pair[1].0));
        true
    }

    /// Adds the txgs of `other`. Returns whether any of them is new.
    pub fn add_all(&mut self, other: &Dtl) -> bool {
        other.0.iter().fold(false, |new, &(first, last)| self.add(first, last) | new)
    }

    /// The part of the set up to `last`, which is included.
    pub fn until(&self, last: Txg) -> Dtl {
        let ranges = self.0.iter().filter(|range| range.0 <= last);
        Dtl(ranges.map(|&(from, to)| (from, to.min(last))).collect())
    }

    /// The txgs that are in more than `tolerated` of the sets. With the DTLs of a vdev's children and the number of failures
    /// that its redundancy tolerates, these are the txgs whose blocks the vdev cannot read completely.
    pub fn in_more_than<'a>(tolerated: usize, sets: impl IntoIterator<Item = &'a Dtl>) -> Dtl {
        let mut edges = Vec::new();
        for (first, last) in sets.into_iter().flat_map(|set| &set.0) {
            edges.push((u128::from(first.0), 1i64));
            edges.push((u128::from(last.0) + 1, -1));
        }
        edges.sort_unstable();
        let mut out = Dtl::default();
        let mut depth = 0;
        let mut edges = edges.into_iter().peekable();
        while let Some((at, step)) = edges.next() {
            depth += step;
            let end = edges.peek().map_or(at, |next| next.0);
            if depth > tolerated as i64 && at < end {
                out.add(Txg(at as u64), Txg((end - 1) as u64));
            }
        }
        out
    }
}

impl From<Vec<(Txg, Txg)>> for Dtl {
    fn from(ranges: Vec<(Txg, Txg)>) -> Self {
        let mut out = Dtl::default();
        for (first, last) in ranges {
            out.add(first, last);
        }
        out
    }
}

/// Number of ranges that the text of a [`Dtl`] names; further ones are counted.
const RANGES_SHOWN: usize = 4;

/// Formats as `txg 7` or `txgs 120-340, 351`.
impl fmt::Display for Dtl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let single = matches!(self.0[..], [(first, last)] if first == last);
        f.write_str(if single { "txg" } else { "txgs" })?;
        for (i, (first, last)) in self.0.iter().take(RANGES_SHOWN).enumerate() {
            let comma = if i == 0 { "" } else { "," };
            match last.0 {
                last if last == first.0 => write!(f, "{comma} {last}")?,
                u64::MAX => write!(f, "{comma} from {} on", first.0)?,
                last => write!(f, "{comma} {}-{last}", first.0)?,
            }
        }
        match self.0.len().saturating_sub(RANGES_SHOWN) {
            0 => Ok(()),
            1 => f.write_str(" and 1 more range"),
            more => write!(f, " and {more} more ranges"),
        }
    }
}

/// The DTL of a leaf, by origin.
#[derive(Debug, Default)]
pub(super) struct LeafDtl {
    opened: Dtl,
    failed: Dtl,
    scrub: Dtl,
    /// Txgs that a failed flush covered, as long as their writes can be repeated.
    unstable: Dtl,
}

impl LeafDtl {
    pub fn new(opened: Dtl) -> Self {
        LeafDtl { opened, ..LeafDtl::default() }
    }

    /// All txgs whose writes the leaf lacks.
    pub fn missing(&self) -> Dtl {
        let mut all = self.opened.clone();
        all.add_all(&self.failed);
        all.add_all(&self.unstable);
        all
    }

    /// Whether the leaf lacks nothing.
    pub fn is_empty(&self) -> bool {
        self.opened.is_empty() && self.failed.is_empty() && self.unstable.is_empty()
    }

    pub fn contains(&self, txg: Txg) -> bool {
        self.opened.contains(txg) || self.failed.contains(txg) || self.unstable.contains(txg)
    }

    /// Whether the DTL has a txg after `birth`.
    pub fn reaches_beyond(&self, birth: Txg) -> bool {
        let last = self.opened.max().max(self.failed.max()).max(self.unstable.max());
        last.is_some_and(|last| last > birth)
    }

    /// Txgs of failed writes and flushes since the pool was opened.
    pub fn failed(&self) -> Dtl {
        let mut all = self.failed.clone();
        all.add_all(&self.unstable);
        all
    }

    /// Adds txgs that a failed flush covered, whose writes can be repeated.
    pub fn dirty_unstable(&mut self, first: Txg, last: Txg) {
        self.unstable.add(first, last);
    }

    /// The writes of a failed flush were repeated, and a flush covers them.
    pub fn repeated(&mut self) {
        self.unstable = Dtl::default();
    }

    /// The writes of a failed flush will not be repeated.
    pub fn settle(&mut self) {
        let unstable = std::mem::take(&mut self.unstable);
        self.failed.add_all(&unstable);
    }

    /// Adds txgs; `scrub` if a repair of a scrub failed.
    pub fn dirty(&mut self, first: Txg, last: Txg, scrub: bool) {
        self.failed.add(first, last);
        if scrub {
            self.scrub.add(first, last);
        }
    }

    /// Begins a scrub: it tries repairs again that failed in earlier scrubs.
    pub fn begin_scrub(&mut self) {
        self.scrub = Dtl::default();
    }

    /// Whether repairs failed since the scan began.
    pub fn has_unrepaired(&self) -> bool {
        !self.scrub.is_empty()
    }

    /// Excises the DTL after a scrub that verified or repaired every block born up to `scrubbed`. Returns the rest: the
    /// repairs that failed. `None`, without a change, if the DTL has txgs after `scrubbed`.
    pub fn excise(&mut self, scrubbed: Txg) -> Option<Dtl> {
        if self.reaches_beyond(scrubbed) {
            return None;
        }
        self.opened = Dtl::default();
        self.failed = std::mem::take(&mut self.scrub);
        Some(self.failed.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn dtl(ranges: &[(u64, u64)]) -> Dtl {
        Dtl::from(ranges.iter().map(|(first, last)| (Txg(*first), Txg(*last))).collect::<Vec<_>>())
    }

    #[test]
    fn a_dtl_is_shown_as_ranges_of_txgs() {
        assert_eq!(dtl(&[(7, 7)]).to_string(), "txg 7");
        assert_eq!(dtl(&[(120, 340), (351, 351)]).to_string(), "txgs 120-340, 351");
        assert_eq!(Dtl::all().to_string(), "txgs from 0 on");
        let many: Vec<(u64, u64)> = (0..6).map(|n| (n * 10, n * 10)).collect();
        assert_eq!(dtl(&many).to_string(), "txgs 0, 10, 20, 30 and 2 more ranges");
    }

    #[test]
    fn a_scrub_excises_a_dtl_except_for_failed_repairs() {
        let mut leaf = LeafDtl::new(dtl(&[(10, 20)]));
        leaf.dirty(Txg(30), Txg(31), false);
        assert!(leaf.excise(Txg(30)).is_none() && leaf.contains(Txg(15)), "it has txgs after the scrub's last");
        leaf.begin_scrub();
        leaf.dirty(Txg(12), Txg(12), true);
        assert_eq!(leaf.excise(Txg(31)), Some(dtl(&[(12, 12)])));
        assert_eq!(leaf.missing(), dtl(&[(12, 12)]));
        leaf.begin_scrub();
        assert_eq!(leaf.excise(Txg(40)), Some(Dtl::default()));
    }

    #[test]
    fn txgs_in_more_dtls_than_tolerated_are_found() {
        let sets = [dtl(&[(10, 20)]), dtl(&[(15, 30)]), Dtl::all()];
        assert_eq!(Dtl::in_more_than(1, &sets), dtl(&[(10, 30)]));
        assert_eq!(Dtl::in_more_than(2, &sets), dtl(&[(15, 20)]));
        assert_eq!(Dtl::in_more_than(3, &sets), Dtl::default());
        assert_eq!(Dtl::in_more_than(0, &sets), Dtl::all());
    }

    proptest! {
        #[test]
        fn a_dtl_agrees_with_a_set_of_txgs(
            sets in proptest::collection::vec(proptest::collection::vec((0u64..60, 0u64..12), 0..6), 0..5),
            tolerated in 0usize..4,
        ) {
            let dtls: Vec<Dtl> = sets.iter().map(|set| {
                let mut out = Dtl::default();
                let mut model = BTreeSet::new();
                for (first, more) in set {
                    let range = *first..=first + more;
                    let new = range.clone().any(|txg| !model.contains(&txg));
                    model.extend(range);
                    assert_eq!(out.add(Txg(*first), Txg(first + more)), new);
                }
                (0..90).for_each(|txg| assert_eq!(out.contains(Txg(txg)), model.contains(&txg)));
                let early = out.until(Txg(30));
                (0..90).for_each(|txg| assert_eq!(early.contains(Txg(txg)), txg <= 30 && model.contains(&txg)));
                assert_eq!(out.max().map(|txg| txg.0), model.last().copied());
                out
            }).collect();
            let lost = Dtl::in_more_than(tolerated, &dtls);
            for txg in 0..90 {
                let lacking = dtls.iter().filter(|dtl| dtl.contains(Txg(txg))).count();
                prop_assert_eq!(lost.contains(Txg(txg)), lacking > tolerated);
            }
            for (a, b) in dtls.iter().zip(dtls.iter().skip(1)) {
                let both = (0..90).any(|txg| a.contains(Txg(txg)) && b.contains(Txg(txg)));
                prop_assert_eq!(a.intersects(b), both);
            }
        }
    }
}

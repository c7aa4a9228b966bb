//! Rates of a pool over time: one second for an hour, ten seconds for a day, one minute for a month.
//!
//! ```text
//!   Interval ──► Point ──► ring of seconds ── mean of 10 ──► ring of tens ── mean of 6 ──► ring of minutes
//! ```
//!
//! The rings have a fixed number of points of a fixed size, so that the memory of a history is bounded: [`History::MAX_BYTES`].
//!
//! Points of a ring are in ascending order of time. A clock that is set back puts points between those that are there; a full
//! ring then drops the point at the end that is farther from the new one. A time without points is a gap: a mean is that of the
//! points in its ten seconds, or its minute.
//!
//! A history knows which of its segments have points that were not stored yet ([`History::take_unstored`]), and goes on from
//! stored ones ([`History::restore`]).

use crate::point::Point;
use crate::segment::Segment;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, VecDeque};
use utoipa::ToSchema;

/// Length of the time between two points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Resolution {
    /// One second, for an hour.
    Second,
    /// Ten seconds, for a day.
    TenSeconds,
    /// One minute, for 30 days.
    Minute,
}

impl Resolution {
    /// All of them, from the finest.
    pub const ALL: [Resolution; 3] = [Resolution::Second, Resolution::TenSeconds, Resolution::Minute];

    /// Name in the API and of files.
    pub fn name(self) -> &'static str {
        match self {
            Resolution::Second => "second",
            Resolution::TenSeconds => "ten_seconds",
            Resolution::Minute => "minute",
        }
    }

    /// Number of points that are kept.
    pub fn kept(self) -> usize {
        match self {
            Resolution::Second => 3600,
            Resolution::TenSeconds => 8640,
            Resolution::Minute => 43_200,
        }
    }

    /// The next coarser resolution.
    fn coarser(self) -> Option<Resolution> {
        match self {
            Resolution::Second => Some(Resolution::TenSeconds),
            Resolution::TenSeconds => Some(Resolution::Minute),
            Resolution::Minute => None,
        }
    }

    /// Seconds between two points of the next finer resolution.
    fn finer_seconds(self) -> u64 {
        match self {
            Resolution::Second | Resolution::TenSeconds => 1,
            Resolution::Minute => 10,
        }
    }

    /// Seconds between two points.
    pub fn seconds(self) -> u64 {
        match self {
            Resolution::Second => 1,
            Resolution::TenSeconds => 10,
            Resolution::Minute => 60,
        }
    }
}

/// The history of a pool.
#[derive(Clone, Debug, Default)]
pub struct History {
    rings: [VecDeque<Point>; Resolution::ALL.len()],
    /// Points of the finer resolution that wait for the next point of this one.
    waiting: [Vec<Point>; Resolution::ALL.len()],
    /// Numbers of segments with points that were not taken to be stored yet; each has points in its ring.
    unstored: [BTreeSet<u64>; Resolution::ALL.len()],
}

impl History {
    /// Maximum size of a history in memory, in bytes: that of its points.
    pub const MAX_BYTES: usize = (3600 + 8640 + 43_200) * size_of::<Point>();

    /// Adds the point of a second.
    pub fn push(&mut self, point: Point) {
        self.push_to(Resolution::Second, point);
        debug_assert!(self.rings.iter().zip(Resolution::ALL).all(|(ring, of)| ring.len() <= of.kept()));
    }

    fn push_to(&mut self, resolution: Resolution, point: Point) {
        self.insert(resolution, point);
        self.mark_unstored(resolution, point.time_ms);
        if let Some(next) = resolution.coarser() {
            self.merge_into(next, point);
        }
    }

    /// Puts a point at the place of its time.
    fn insert(&mut self, resolution: Resolution, point: Point) {
        let Some(ring) = self.rings.get_mut(resolution as usize) else { return };
        let is_last = ring.back().is_none_or(|last| last.time_ms < point.time_ms);
        let place = if is_last { ring.len() } else { ring.partition_point(|other| other.time_ms < point.time_ms) };
        if let Some(same) = ring.get_mut(place).filter(|other| other.time_ms == point.time_ms) {
            *same = point;
            return;
        }
        if ring.len() == ring.capacity() {
            let more = ring.len().max(60).min(resolution.kept() - ring.len().min(resolution.kept()));
            ring.reserve_exact(more);
        }
        let far = |other: Option<&Point>| other.map_or(0, |other| other.time_ms.abs_diff(point.time_ms));
        if ring.len() < resolution.kept() {
            ring.insert(place, point);
        } else if far(ring.front()) >= far(ring.back()) {
            ring.pop_front();
            // Those before its place are one less.
            ring.insert(place.saturating_sub(1), point);
        } else {
            ring.pop_back();
            ring.insert(place, point);
        }
    }

    /// Notes that the segment of a point has changed, and forgets segments without points.
    fn mark_unstored(&mut self, resolution: Resolution, time_ms: u64) {
        let of = |point: &Point| Segment::of(resolution, point.time_ms).index;
        let ring = self.rings.get(resolution as usize);
        let Some((first, last)) = ring.and_then(|ring| Some((of(ring.front()?), of(ring.back()?)))) else { return };
        let Some(unstored) = self.unstored.get_mut(resolution as usize) else { return };
        unstored.insert(Segment::of(resolution, time_ms).index);
        while unstored.first().is_some_and(|index| *index < first) {
            unstored.pop_first();
        }
        while unstored.last().is_some_and(|index| *index > last) {
            unstored.pop_last();
        }
    }

    /// Adds a point of the finer resolution to the mean that it belongs to.
    fn merge_into(&mut self, resolution: Resolution, point: Point) {
        let length_ms = resolution.seconds() * 1000;
        // A point has the time of its end.
        let mean_of = |time_ms: u64| time_ms.saturating_sub(1) / length_ms;
        let Some(waiting) = self.waiting.get_mut(resolution as usize) else { return };
        let is_other = waiting.last().is_some_and(|before| mean_of(before.time_ms) != mean_of(point.time_ms));
        // The one before remains incomplete: points are missing, or the clock was set.
        let incomplete = if is_other { Point::merge(waiting.drain(..)) } else { None };
        waiting.push(point);
        let next_ms = point.time_ms + resolution.finer_seconds() * 1000;
        let complete = if mean_of(next_ms) != mean_of(point.time_ms) { Point::merge(waiting.drain(..)) } else { None };
        incomplete.into_iter().chain(complete).for_each(|merged| self.push_to(resolution, merged));
    }

    /// Continues a history that was stored: its points come before those of this one. Points of means that it lacks are made of
    /// its finer points.
    pub fn restore(&mut self, stored: impl IntoIterator<Item = (Resolution, Vec<Point>)>) {
        let own = std::mem::take(self);
        for (resolution, points) in stored {
            points.into_iter().for_each(|point| self.insert(resolution, point));
        }
        // The coarsest first: the points that are made for the others go on to it.
        for coarser in [Resolution::Minute, Resolution::TenSeconds] {
            let [finer, ring] = [coarser as usize - 1, coarser as usize].map(|level| self.rings.get(level));
            let after_ms = ring.and_then(|ring| ring.back()).map_or(0, |last| last.time_ms);
            let newer = |ring: &VecDeque<Point>| {
                let from = ring.partition_point(|point| point.time_ms <= after_ms);
                ring.range(from..).copied().collect::<Vec<Point>>()
            };
            let newer = finer.map(newer).unwrap_or_default();
            newer.into_iter().for_each(|point| self.merge_into(coarser, point));
        }
        let [seconds, ..] = own.rings;
        seconds.into_iter().for_each(|point| self.push(point));
    }

    /// Takes the segments that have points which were not stored: copies of all of their points.
    pub fn take_unstored(&mut self) -> Vec<(Segment, Vec<Point>)> {
        let mut taken = Vec::new();
        for resolution in Resolution::ALL {
            let unstored = self.unstored.get_mut(resolution as usize).map(std::mem::take).unwrap_or_default();
            for index in unstored {
                let segment = Segment { resolution, index };
                let points = self.points(resolution, segment.start_ms(), segment.last_ms());
                taken.push((segment, points.copied().collect()));
            }
        }
        taken
    }

    /// Says that a segment could not be stored, so that it is taken again.
    pub fn not_stored(&mut self, segment: Segment) {
        let found = self.points(segment.resolution, segment.start_ms(), segment.last_ms()).next().map(|p| p.time_ms);
        found.into_iter().for_each(|time_ms| self.mark_unstored(segment.resolution, time_ms));
    }

    /// Says that nothing of it was stored: the pool has another GUID now.
    pub fn nothing_stored(&mut self) {
        for resolution in Resolution::ALL {
            let all = self.points(resolution, 0, u64::MAX);
            let indexes: BTreeSet<u64> = all.map(|point| Segment::of(resolution, point.time_ms).index).collect();
            self.unstored.get_mut(resolution as usize).into_iter().for_each(|unstored| unstored.clone_from(&indexes));
        }
    }

    /// Size in memory, in bytes: the allocated capacity of the rings, including room for points that are not there yet.
    pub fn bytes(&self) -> usize {
        self.rings.iter().map(VecDeque::capacity).sum::<usize>() * size_of::<Point>()
    }

    /// Points of a resolution whose time is in a range of milliseconds since 1970, oldest first.
    pub fn points(&self, resolution: Resolution, from_ms: u64, to_ms: u64) -> impl Iterator<Item = &Point> {
        let [seconds, tens, minutes] = &self.rings;
        let ring = match resolution {
            Resolution::Second => seconds,
            Resolution::TenSeconds => tens,
            Resolution::Minute => minutes,
        };
        let from = ring.partition_point(|point| point.time_ms < from_ms);
        ring.range(from..).take_while(move |point| point.time_ms <= to_ms)
    }

    /// Points of a range as [`History::points`] gives them, merged to one for each `step_ms` milliseconds since 1970, if that is
    /// longer than the resolution. Of the first and the last step, only the points in the range count.
    pub fn merged(&self, resolution: Resolution, step_ms: u64, from_ms: u64, to_ms: u64) -> Vec<Point> {
        let points: Vec<Point> = self.points(resolution, from_ms, to_ms).copied().collect();
        // Two points of a second may be in one second of the clock, and none in the next.
        if step_ms <= resolution.seconds() * 1000 {
            return points;
        }
        // A point has the time of its end.
        let step_of = |point: &Point| point.time_ms.saturating_sub(1) / step_ms;
        let steps = points.chunk_by(|one, next| step_of(one) == step_of(next));
        steps.filter_map(|step| Point::merge(step.iter().copied())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::{LatencyCounts, LatencyKind};
    use crate::point::{COUNT, SERIES};

    fn point(second: u64) -> Point {
        let latency = LatencyCounts::of(&[(LatencyKind::Reads, &[0; 20]), (LatencyKind::Reads, &[second; 21])]);
        Point { time_ms: second * 1000, values: [second as f32; COUNT], latency }
    }

    #[test]
    fn coarser_points_have_the_mean_and_of_latencies_the_maximum() {
        let mut history = History::default();
        (1..=60).for_each(|second| history.push(point(second)));
        let tens: Vec<Point> = history.points(Resolution::TenSeconds, 0, u64::MAX).copied().collect();
        assert_eq!((tens.len(), tens[0].time_ms, tens[0].values[0]), (6, 10_000, 5.5));
        let latency = SERIES.iter().position(|(name, _)| *name == "read_latency.p99").unwrap();
        assert_eq!(tens[0].values[latency], 10.0);
        let minutes: Vec<Point> = history.points(Resolution::Minute, 0, u64::MAX).copied().collect();
        assert_eq!((minutes.len(), minutes[0].time_ms, minutes[0].values[0]), (1, 60_000, 30.5));
        assert_eq!(minutes[0].values[latency], 60.0);
    }

    #[test]
    fn a_range_has_the_points_of_its_time_and_memory_is_bounded() {
        let mut history = History::default();
        (1..=10_000).for_each(|second| history.push(point(second)));
        let times: Vec<u64> = history.points(Resolution::Second, 9_000_500, 9_003_000).map(|p| p.time_ms).collect();
        assert_eq!(times, [9_001_000, 9_002_000, 9_003_000]);
        assert_eq!(history.points(Resolution::Second, 0, u64::MAX).next().unwrap().time_ms, 6_401_000);
        assert_eq!(history.points(Resolution::Second, 0, u64::MAX).count(), Resolution::Second.kept());
        for (ring, resolution) in history.rings.iter().zip(Resolution::ALL) {
            assert!(ring.capacity() <= resolution.kept());
        }
        assert!(history.bytes() <= History::MAX_BYTES);
        const { assert!(History::MAX_BYTES <= 20 << 20) };
    }

    #[test]
    fn points_are_merged_by_steps_and_a_series_that_points_lack_stays_unknown() {
        let mut history = History::default();
        (1..=25).for_each(|second| history.push(point(second)));
        let merged = |history: &History| history.merged(Resolution::Second, 10_000, 2_000, u64::MAX);
        let found: Vec<(u64, f32)> = merged(&history).iter().map(|p| (p.time_ms, p.values[0])).collect();
        assert_eq!(found, [(10_000, 6.0), (20_000, 15.5), (25_000, 23.0)]);
        let latency = SERIES.iter().position(|(name, _)| *name == "read_latency.p99").unwrap();
        assert_eq!(merged(&history)[1].values[latency], 20.0);
        assert_eq!(history.merged(Resolution::Second, 1000, 0, u64::MAX).len(), 25);
        history.push(Point { time_ms: 25_900, ..point(26) });
        assert_eq!(history.merged(Resolution::Second, 1000, 0, u64::MAX).len(), 26, "both of a second are there");
        // Points of a version that had neither of two series, the last of them in the middle of a step.
        let mut history = History::default();
        for second in 1..=14 {
            let mut old = point(second);
            [0, latency].into_iter().for_each(|series| old.values[series] = f32::NAN);
            history.push(old);
        }
        (15..=20).for_each(|second| history.push(point(second)));
        let found = merged(&history);
        assert!(found[0].values[0].is_nan() && found[0].values[latency].is_nan() && found[0].values[1] == 6.0);
        assert_eq!([found[1].values[0], found[1].values[latency]], [17.5, 20.0]);
        let tens: Vec<&Point> = history.points(Resolution::TenSeconds, 0, u64::MAX).collect();
        assert!(tens[0].values[latency].is_nan() && tens[1].values[latency] == 20.0);
    }

    fn times(history: &History, resolution: Resolution) -> Vec<u64> {
        history.points(resolution, 0, u64::MAX).map(|point| point.time_ms).collect()
    }

    #[test]
    fn a_gap_is_no_zeros_and_belongs_to_no_mean() {
        let mut history = History::default();
        (1..=14).chain(3657..=3671).for_each(|second| history.push(point(second)));
        let tens: Vec<(u64, f32)> =
            history.points(Resolution::TenSeconds, 0, u64::MAX).map(|p| (p.time_ms, p.values[0])).collect();
        // The means of 11 to 14, and of 3657 to 3660.
        assert_eq!(tens, [(10_000, 5.5), (14_000, 12.5), (3_660_000, 3658.5), (3_670_000, 3665.5)]);
        assert_eq!(times(&history, Resolution::Minute), [14_000, 3_660_000]);
    }

    #[test]
    fn a_clock_that_is_set_loses_no_points_and_a_full_ring_drops_the_farthest() {
        let mut history = History::default();
        (10..=20).chain(15..=16).chain(1..=2).for_each(|second| history.push(point(second)));
        let expected: Vec<u64> = (1..=2).chain(10..=20).map(|second| second * 1000).collect();
        assert_eq!(times(&history, Resolution::Second), expected);
        // An hour in a wrong future, then the right time.
        (1_000_000..1_003_600).chain(100..3700).for_each(|second| history.push(point(second)));
        let right: Vec<u64> = (100..3700).map(|second| second * 1000).collect();
        assert_eq!(times(&history, Resolution::Second), right);
    }

    #[test]
    fn what_was_taken_restores_the_history() {
        let mut history = History::default();
        (1..=5000).for_each(|second| history.push(point(second)));
        let mut stored = history.take_unstored();
        assert!(history.take_unstored().is_empty());
        (5001..=5007).for_each(|second| history.push(point(second)));
        let more = history.take_unstored();
        assert_eq!(more.iter().map(|(segment, _)| segment.name()).collect::<Vec<_>>(), ["second-8"]);
        stored.retain(|(segment, _)| more.iter().all(|(newer, _)| newer != segment));
        stored.extend(more);
        let stored = |without: &[Resolution]| {
            let kept = stored.iter().filter(|(segment, _)| !without.contains(&segment.resolution));
            kept.map(|(segment, points)| (segment.resolution, points.clone())).collect::<Vec<_>>()
        };
        // The process ended for two seconds, and has taken two points before it read the history.
        let mut again = History::default();
        (5010..=5011).for_each(|second| again.push(point(second)));
        again.restore(stored(&[]));
        (5010..=5100).for_each(|second| history.push(point(second)));
        (5012..=5100).for_each(|second| again.push(point(second)));
        for resolution in Resolution::ALL {
            let [one, other] = [&history, &again].map(|of| of.points(resolution, 0, u64::MAX).collect::<Vec<_>>());
            assert_eq!(one, other, "{resolution:?}");
        }
        assert_eq!(
            again.take_unstored().iter().map(|(segment, _)| segment.name()).collect::<Vec<_>>(),
            ["second-8", "ten_seconds-1", "minute-0"]
        );
        // Means that are lost are made again of what there is.
        let mut again = History::default();
        again.restore(stored(&[Resolution::TenSeconds, Resolution::Minute]));
        assert_eq!(times(&again, Resolution::Minute), (24..=83).map(|minute| minute * 60_000).collect::<Vec<_>>());
    }

    #[test]
    fn what_could_not_be_stored_is_taken_again_while_it_has_points() {
        let mut history = History::default();
        (1..=700).for_each(|second| history.push(point(second)));
        let taken = history.take_unstored();
        assert_eq!(taken.len(), 4);
        taken.iter().for_each(|(segment, _)| history.not_stored(*segment));
        assert_eq!(history.take_unstored(), taken);
        taken.iter().for_each(|(segment, _)| history.not_stored(*segment));
        (701..=10_000).for_each(|second| history.push(point(second)));
        let names: Vec<String> = history.take_unstored().iter().map(|(segment, _)| segment.name()).collect();
        // Seconds before 6401 are not kept.
        let seconds = (10..=16).map(|index| format!("second-{index}"));
        let expected: Vec<String> =
            seconds.chain((0..=2).map(|index| format!("ten_seconds-{index}"))).chain(["minute-0".into()]).collect();
        assert_eq!(names, expected);
        history.nothing_stored();
        assert_eq!(history.take_unstored().len(), expected.len());
    }
}

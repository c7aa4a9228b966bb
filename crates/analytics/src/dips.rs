//! Dips in a series of the history, and their period if they repeat at equal intervals, as those of a periodic job do.
//!
//! A dip is a run of points below three quarters of the median of the points with load, with load before and after it. Two dips with
//! one point between them count as one. The middle of a dip is the mean of its times, each weighted by the difference of its value
//! from the median: its error is smaller than the interval between two points.
//!
//! Dips repeat if there are at least five, and the times between their middles are multiples of one time: of five times between
//! two dips at most one may differ from its multiple by more than 15 % of it. Points of equal steps are assumed, and a gap in the
//! history ends a dip like load.

use serde::Serialize;
use utoipa::ToSchema;

/// Share of the median below which a point belongs to a dip.
const LOW: f64 = 0.75;
/// Points without which nothing is said.
const MIN_POINTS: usize = 20;
/// Dips without which no period is said.
const MIN_DIPS: usize = 5;
/// Maximum length of a dip, as a share of the range; a longer one counts as a pause of the load.
const MAX_SHARE: f64 = 0.25;
/// Greatest difference of a time between two dips from a multiple of the period, as a share of the period.
const TOLERANCE: f64 = 0.15;

/// A time in which a series was low.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Dip {
    /// Time of the first low point, in milliseconds since 1970.
    pub from_ms: u64,
    /// Time of the last low point.
    pub to_ms: u64,
    /// Middle, weighted with what is missing.
    pub middle_ms: u64,
    /// Least value.
    pub least: f32,
}

/// Dips of a series in a range.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Dips {
    /// Median of the points with load; 0 if there are too few points.
    pub median: f32,
    /// Dips, oldest first.
    pub dips: Vec<Dip>,
    /// Time after which they repeat, in milliseconds; `None` if they do not.
    pub period_ms: Option<u64>,
}

/// Finds the dips in points of a series: times in milliseconds since 1970 in ascending order, and values, of which those that are
/// not numbers are left out. `step_ms` is the time between two points.
pub fn dips(points: &[(u64, f32)], step_ms: u64) -> Dips {
    let known: Vec<(u64, f64)> =
        points.iter().filter(|(_, value)| value.is_finite()).map(|(time, value)| (*time, f64::from(*value))).collect();
    let mut loads: Vec<f64> = known.iter().map(|(_, value)| *value).filter(|value| *value > 0.0).collect();
    loads.sort_by(f64::total_cmp);
    let median = loads.get(loads.len() / 2).copied().unwrap_or(0.0);
    if loads.len() < MIN_POINTS {
        return Dips::default();
    }
    let is_low = |value: f64| value < LOW * median;
    let mut runs: Vec<Vec<(u64, f64)>> = Vec::new();
    let mut last_high = None;
    let mut open: Vec<(u64, f64)> = Vec::new();
    for (time, value) in &known {
        let is_gap = |before: u64| time - before > step_ms.saturating_mul(5) / 2;
        if open.last().is_some_and(|(before, _)| is_gap(*before)) {
            open.clear();
            last_high = None;
        }
        if is_low(*value) {
            open.push((*time, *value));
            continue;
        }
        let ended = std::mem::take(&mut open);
        // Without load before it, it is the time before the load began.
        if last_high.is_some() && !ended.is_empty() {
            let is_near = |run: &Vec<(u64, f64)>| {
                run.last().zip(ended.first()).is_some_and(|(one, next)| next.0 - one.0 <= step_ms.saturating_mul(5) / 2)
            };
            match runs.last_mut().filter(|run| is_near(run)) {
                Some(run) => run.extend(ended),
                None => runs.push(ended),
            }
        }
        last_high = Some(*time);
    }
    let range_ms = known.last().zip(known.first()).map_or(0, |(last, first)| last.0 - first.0) as f64;
    let dips: Vec<Dip> = runs.iter().filter_map(|run| dip(run, median)).collect();
    let dips: Vec<Dip> =
        dips.into_iter().filter(|dip| (dip.to_ms - dip.from_ms) as f64 <= MAX_SHARE * range_ms).collect();
    debug_assert!(dips.is_sorted_by(|one, next| one.to_ms < next.from_ms));
    let period_ms = period(&dips);
    Dips { median: median as f32, dips, period_ms }
}

/// The dip of its low points.
fn dip(run: &[(u64, f64)], median: f64) -> Option<Dip> {
    let (first, last) = (run.first()?.0, run.last()?.0);
    let missing: f64 = run.iter().map(|(_, value)| median - value).sum();
    let moment: f64 = run.iter().map(|(time, value)| (time - first) as f64 * (median - value)).sum();
    let middle_ms = first + (moment / missing.max(f64::MIN_POSITIVE)) as u64;
    let least = run.iter().map(|(_, value)| *value).fold(f64::INFINITY, f64::min);
    Some(Dip { from_ms: first, to_ms: last, middle_ms, least: least as f32 })
}

/// The time after which dips repeat.
fn period(dips: &[Dip]) -> Option<u64> {
    if dips.len() < MIN_DIPS {
        return None;
    }
    let times: Vec<f64> =
        dips.iter().zip(dips.iter().skip(1)).map(|(one, next)| (next.middle_ms - one.middle_ms) as f64).collect();
    let mut sorted = times.clone();
    sorted.sort_by(f64::total_cmp);
    let usual = sorted.get(sorted.len() / 2).copied()?;
    let mut sum = (0.0, 0.0);
    let mut misfits = 0;
    for time in &times {
        let multiple = (time / usual).round();
        if multiple >= 1.0 && (time - multiple * usual).abs() <= TOLERANCE * usual {
            sum = (sum.0 + time, sum.1 + multiple);
        } else {
            misfits += 1;
        }
    }
    (misfits * 5 <= times.len()).then_some((sum.0 / sum.1) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Points a second apart: of each `period` seconds, the last `low` have a tenth of the load.
    fn load(seconds: u64, period: u64, low: u64) -> Vec<(u64, f32)> {
        let noise = |second: u64| (second.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as f32 / 2560.0;
        (0..seconds)
            .map(|n| (1000 * n + 7, if n % period < period - low { 1e6 * (1.0 + noise(n)) } else { 1e5 }))
            .collect()
    }

    #[test]
    fn repeated_dips_have_their_period() {
        let found = dips(&load(120, 20, 3), 1000);
        assert_eq!(found.dips.len(), 5, "the last one has no load after it: {found:?}");
        assert!(found.period_ms.unwrap().abs_diff(20_000) < 200, "{found:?}");
        assert!(found.dips.iter().all(|dip| dip.least == 1e5 && dip.to_ms - dip.from_ms == 2000));
        // One that is missed is a multiple, one more is at most one of five.
        let mut points = load(240, 20, 3);
        points.iter_mut().filter(|(time, _)| (77_000..80_100).contains(time)).for_each(|point| point.1 = 1e6);
        assert!(dips(&points, 1000).period_ms.unwrap().abs_diff(20_000) < 200);
    }

    #[test]
    fn dips_without_order_have_no_period_and_no_load_is_no_dip() {
        let mut points: Vec<(u64, f32)> = (0..200).map(|n| (1000 * n, 1e6)).collect();
        for second in [10, 15, 43, 77, 90, 130, 138] {
            points[second].1 = 2e5;
        }
        let found = dips(&points, 1000);
        assert_eq!((found.dips.len(), found.period_ms), (7, None));
        // Low points before the load, after it, in a long pause and beside a gap are no dips.
        points.iter_mut().for_each(|point| point.1 = 1e6);
        points.iter_mut().filter(|(time, _)| !(9_000..190_000).contains(time)).for_each(|point| point.1 = 0.0);
        points.iter_mut().filter(|(time, _)| (50_000..110_000).contains(time)).for_each(|point| point.1 = 0.0);
        points.retain(|(time, _)| !(120_000..140_000).contains(time));
        assert_eq!(dips(&points, 1000), Dips { median: 1e6, dips: Vec::new(), period_ms: None });
        assert_eq!(dips(&[], 1000), Dips::default());
        assert_eq!(dips(&[(5, f32::NAN); 40], 1000), Dips::default());
    }
}
